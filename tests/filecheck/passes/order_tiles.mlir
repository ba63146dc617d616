// RUN: emmy-opt %s -p 'order-tiles' | filecheck %s
// RUN: emmy-opt %s -p 'order-tiles,order-tiles' | filecheck %s
// RUN: emmy-opt %s -p 'persistent-grid{force=true},order-tiles' | filecheck %s --check-prefix ROUNDS

// Rows 0 to 511 of 3 heads in tiles of 64; row r is multiplied with columns 0 to r.
// CHECK-LABEL: tile.kernel @triangle
// CHECK:         %cta = tile.cta_id
// CHECK-NEXT:    %c3_1 = arith.constant 3 : index
// CHECK-NEXT:    %[[head:.*]] = arith.remui %cta, %c3_1 : index
// CHECK-NEXT:    %[[light:.*]] = arith.divui %cta, %c3_1 : index
// CHECK-NEXT:    %c7 = arith.constant 7 : index
// CHECK-NEXT:    %[[heavy:.*]] = arith.subi %c7, %[[light]] : index
// CHECK-NEXT:    %c8 = arith.constant 8 : index
// CHECK-NEXT:    %[[first:.*]] = arith.muli %[[head]], %c8 : index
// CHECK-NEXT:    %number = arith.addi %[[first]], %[[heavy]] : index
// CHECK-NEXT:    %h, %m = tile.grid [%c3 by 1, %c512 by 64] raster 1 at %number

// Every second round of a persistent kernel goes the other way.
// ROUNDS-LABEL: tile.kernel @triangle
// ROUNDS:         scf.for %tile =
// ROUNDS:           %[[ctas:.*]] = tile.cta_count
// ROUNDS:           %[[round:.*]] = arith.divui %tile, %[[ctas]] : index
// ROUNDS:           %[[odd:.*]] = arith.cmpi eq
// ROUNDS:           arith.select %[[odd]], %{{.*}}, %tile : index
// ROUNDS:           tile.grid [%c3 by 1, %c512 by 64] raster 1 at %number

tile.kernel @triangle(%q: !tile.view<3x512x64xf16>, %k: !tile.view<3x512x64xf16>, %o: !tile.view<3x512x64xf32>)
    schedule <block = [64, 64, 64], warps = [4, 1], roles = specialized> {
  %c0 = arith.constant 0 : index
  %c3 = arith.constant 3 : index
  %c64 = arith.constant 64 : index
  %c512 = arith.constant 512 : index
  %h, %m = tile.grid [%c3 by 1, %c512 by 64] raster 1
  %end = arith.addi %m, %c64 : index
  %zero = tile.fill 0.0 : f32 : !tile.tile<64x64xf32>
  %x = tile.load %q[%h, %m, %c0] : !tile.view<3x512x64xf16> -> !tile.tile<64x64xf16>
  %sum = scf.for %j = %c0 to %end step %c64 iter_args(%s = %zero) -> (!tile.tile<64x64xf32>) {
    %y = tile.load %k[%h, %j, %c0] : !tile.view<3x512x64xf16> -> !tile.tile<64x64xf16>
    %d = tile.dot %x, %y into %s transpose_b
      : (!tile.tile<64x64xf16>, !tile.tile<64x64xf16>, !tile.tile<64x64xf32>) -> !tile.tile<64x64xf32>
    scf.yield %d : !tile.tile<64x64xf32>
  }
  tile.store %sum, %o[%h, %m, %c0] : !tile.tile<64x64xf32>, !tile.view<3x512x64xf32>
}
