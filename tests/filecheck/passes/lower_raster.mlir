// RUN: emmy-opt %s -p lower-raster | filecheck %s

// 32 x 16 blocks in groups of 8 rows: all constants are known.
// CHECK-LABEL: tile.kernel @static
// CHECK:      %cta = tile.cta_id
// CHECK-NEXT: %c128 = arith.constant 128 : index
// CHECK-NEXT: [[GROUP:%[0-9]+]] = arith.divui %cta, %c128
// CHECK-NEXT: %c8 = arith.constant 8 : index
// CHECK-NEXT: [[FIRST:%[0-9]+]] = arith.muli [[GROUP]], %c8
// CHECK-NEXT: [[IN:%[0-9]+]] = arith.remui %cta, %c128
// CHECK-NEXT: [[R:%[0-9]+]] = arith.remui [[IN]], %c8
// CHECK-NEXT: [[I:%[0-9]+]] = arith.addi [[FIRST]], [[R]]
// CHECK-NEXT: [[J:%[0-9]+]] = arith.divui [[IN]], %c8
// CHECK-NEXT: %m = arith.muli [[I]], %c128
// CHECK-NEXT: %c256 = arith.constant 256 : index
// CHECK-NEXT: %n = arith.muli [[J]], %c256
// CHECK-NEXT: tile.fill
tile.kernel @static(%c: !tile.view<4096x4096xf16>) {
  %e = arith.constant 4096 : index
  %m, %n = tile.grid [%e by 128, %e by 256] raster 8
  %t = tile.fill 0.0 : f16 : !tile.tile<128x256xf16>
  tile.store %t, %c[%m, %n] : !tile.tile<128x256xf16>, !tile.view<4096x4096xf16>
}

// A dynamic first dimension: the last group may be lower. Its height does not depend on the group's number.
// CHECK-LABEL: tile.kernel @dynamic
// CHECK:      [[GROUP:%[0-9]+]] = arith.divui %cta, %c128
// CHECK:      [[INSIDE:%[0-9]+]] = arith.remui %cta, %c128
// CHECK-NEXT: arith.remui [[ROWS:%[0-9]+]], %c8
// CHECK:      [[FEWER:%[0-9]+]] = arith.maxui
// CHECK-NEXT: arith.divui [[ROWS]], %c8
// CHECK-NEXT: [[LAST:%[0-9]+]] = arith.cmpi eq, [[GROUP]]
// CHECK-NEXT: arith.remui [[INSIDE]], [[FEWER]]
// CHECK-NEXT: arith.remui [[INSIDE]], %c8
// CHECK-NEXT: arith.select [[LAST]]
// CHECK-NEXT: arith.divui [[INSIDE]], [[FEWER]]
// CHECK-NEXT: arith.divui [[INSIDE]], %c8
// CHECK-NEXT: arith.select [[LAST]]
tile.kernel @dynamic(%c: !tile.view<?x4096xf16>) {
  %e = tile.dim %c, 0 : !tile.view<?x4096xf16>
  %w = tile.dim %c, 1 : !tile.view<?x4096xf16>
  %m, %n = tile.grid [%e by 128, %w by 256] raster 8
  %t = tile.fill 0.0 : f16 : !tile.tile<128x256xf16>
  tile.store %t, %c[%m, %n] : !tile.tile<128x256xf16>, !tile.view<?x4096xf16>
}

// One block needs no CTA number; row-major order is one division; batches are outermost.
// CHECK-LABEL: tile.kernel @small
// CHECK-NOT:  tile.cta_id
// CHECK:      tile.store %{{.*}}, %c[%c0, %c0]
// CHECK:      %cta = tile.cta_id
// CHECK-NEXT: %c6 = arith.constant 6 : index
// CHECK-NEXT: %b = arith.divui %cta, %c6
// CHECK-NEXT: [[IN:%[0-9]+]] = arith.remui %cta, %c6
// CHECK-NEXT: %c3 = arith.constant 3 : index
// CHECK-NEXT: arith.divui [[IN]], %c3
// CHECK-NEXT: arith.remui [[IN]], %c3
tile.kernel @small(%c: !tile.view<64x64xf16>, %d: !tile.view<5x32x48xf16>) {
  %e = arith.constant 64 : index
  %m, %n = tile.grid [%e by 64, %e by 64] raster 4
  %t = tile.fill 0.0 : f16 : !tile.tile<64x64xf16>
  tile.store %t, %c[%m, %n] : !tile.tile<64x64xf16>, !tile.view<64x64xf16>
  %c5 = arith.constant 5 : index
  %c32 = arith.constant 32 : index
  %c48 = arith.constant 48 : index
  %b, %i, %j = tile.grid [%c5 by 1, %c32 by 16, %c48 by 16] raster 1
  %u = tile.fill 0.0 : f16 : !tile.tile<16x16xf16>
  tile.store %u, %d[%b, %i, %j] : !tile.tile<16x16xf16>, !tile.view<5x32x48xf16>
}
