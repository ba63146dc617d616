// RUN: emmy-opt %s -p 'share-operands' | filecheck %s
// RUN: emmy-opt %s -p 'share-operands,share-operands' | filecheck %s
// RUN: emmy-opt %s -p 'persistent-grid{force=true},share-operands' | filecheck %s --check-prefix LOOP

// 5 x 2 tiles in pairs below each other: 3 x 2 pairs, two CTAs for each. Loads of the shared operand are marked.
// CHECK-LABEL: func.func @mm
// CHECK:         %[[ctas:.*]] = arith.constant 12 : index
// CHECK-NEXT:    tile.launch @kernel[%[[ctas]]]
// CHECK-LABEL: tile.kernel @kernel
// CHECK-NEXT:    %[[cta:.*]] = tile.cta_id
// CHECK:         %rank = arith.remui %[[cta]], %{{.*}} : index
// CHECK-NEXT:    %pair = arith.divui %[[cta]], %{{.*}} : index
// CHECK:         %[[further:.*]] = arith.muli %rank, %{{.*}} : index
// CHECK:         %first, %n = tile.grid [%c300 by 128, %c128 by 64] raster 2 at %pair
// CHECK-NEXT:    %m = arith.addi %first, %[[further]] : index
// CHECK:           tile.load %a[%m, %k] : !tile.view<300x64xf16> -> !tile.tile<64x32xf16>
// CHECK-NEXT:      tile.load %b[%n, %k] shared : !tile.view<128x64xf16> -> !tile.tile<64x32xf16>
// CHECK:         tile.store %{{.*}}, %c[%m, %n]

// A loop over tiles becomes one over pairs, of which a CTA takes every n / 2 nd; as many pairs as there are multiprocessors in twos.
// LOOP-LABEL: func.func @mm
// LOOP:         %[[pairs:.*]] = arith.constant 12 : index
// LOOP:         %[[sms:.*]] = tile.sm_count
// LOOP:         %[[half:.*]] = arith.divui %{{.*}}, %{{.*}} : index
// LOOP:         %[[limit:.*]] = arith.muli %[[half]], %{{.*}} : index
// LOOP-NEXT:    %[[ctas:.*]] = arith.minui %[[pairs]], %[[limit]] : index
// LOOP-NEXT:    tile.launch @kernel[%[[ctas]]]
// LOOP-LABEL: tile.kernel @kernel
// LOOP:         %[[count:.*]] = tile.cta_count
// LOOP:         %[[step:.*]] = arith.divui %[[count]], %{{.*}} : index
// LOOP:         scf.for %tile = %pair to %{{.*}} step %[[step]] {
// LOOP-NEXT:      %first, %n = tile.grid [%c300 by 128, %c128 by 64] raster 2 at %tile
// LOOP-NEXT:      %m = arith.addi %first, %{{.*}} : index

func.func @mm(%a: tensor<300x64xf16>, %b: tensor<128x64xf16>) -> tensor<300x128xf32> {
  %c = tile.alloc[] : tensor<300x128xf32>
  %tiles = arith.constant 10 : index
  tile.launch @kernel[%tiles] (%a, %b, %c) : tensor<300x64xf16>, tensor<128x64xf16>, tensor<300x128xf32>
  func.return %c : tensor<300x128xf32>
}
tile.kernel @kernel(%a: !tile.view<300x64xf16>, %b: !tile.view<128x64xf16>, %c: !tile.view<300x128xf32>) schedule <block = [64, 64, 32], warps = [4, 1], roles = specialized, share = b> {
  %c300 = arith.constant 300 : index
  %c128 = arith.constant 128 : index
  %m, %n = tile.grid [%c300 by 64, %c128 by 64] raster 4
  %c0 = arith.constant 0 : index
  %c64 = arith.constant 64 : index
  %c32 = arith.constant 32 : index
  %zero = tile.fill 0.000000e+00 : f32 : !tile.tile<64x64xf32>
  %acc = scf.for %k = %c0 to %c64 step %c32 iter_args(%sum = %zero) -> (!tile.tile<64x64xf32>) {
    %x = tile.load %a[%m, %k] : !tile.view<300x64xf16> -> !tile.tile<64x32xf16>
    %w = tile.load %b[%n, %k] : !tile.view<128x64xf16> -> !tile.tile<64x32xf16>
    %d = tile.dot %x, %w into %sum transpose_b : (!tile.tile<64x32xf16>, !tile.tile<64x32xf16>, !tile.tile<64x64xf32>) -> !tile.tile<64x64xf32>
    scf.yield %d : !tile.tile<64x64xf32>
  }
  tile.store %acc, %c[%m, %n] : !tile.tile<64x64xf32>, !tile.view<300x128xf32>
}
