// RUN: emmy-opt %s -p 'split-k' | filecheck %s
// RUN: emmy-opt %s -p 'split-k,split-k' | filecheck %s

// The launch has two CTAs for each tile; what follows the product is about a part of the columns. A second time changes nothing.
// CHECK-LABEL: func.func @mm
// CHECK:         %[[ctas:.*]] = arith.muli %tiles, %{{.*}} : index
// CHECK-NEXT:    tile.launch @kernel[%[[ctas]]]
// CHECK-LABEL: tile.kernel @kernel
// CHECK:         %[[cta:.*]] = tile.cta_id
// CHECK:         %part = arith.remui %[[cta]], %{{.*}} : index
// CHECK-NEXT:    %[[tile:.*]] = arith.divui %[[cta]], %{{.*}} : index
// CHECK-NEXT:    %m, %n = tile.grid [%rows by 64, %columns by 64] raster 2 at %[[tile]]
// CHECK:         %acc = scf.for %k = %first to %end step %c32 iter_args(%sum = %zero)
// CHECK:         %total = tile.cluster_sum %acc part %part of 2 : !tile.tile<64x64xf32> -> !tile.tile<64x32xf32>
// CHECK:         %column = arith.addi %n, %{{.*}} : index
// CHECK-NEXT:    %bias = tile.load %v[%c0, %column] : !tile.view<1x128xf32> -> !tile.tile<1x32xf32>
// CHECK-NEXT:    %scale = tile.load %s[%m, %c0] : !tile.view<?x1xf32> -> !tile.tile<64x1xf32>
// CHECK-NEXT:    %[[a:.*]] = tile.map add %total, %bias : (!tile.tile<64x32xf32>, !tile.tile<1x32xf32>) -> !tile.tile<64x32xf32>
// CHECK-NEXT:    %[[b:.*]] = tile.map mul %[[a]], %scale : (!tile.tile<64x32xf32>, !tile.tile<64x1xf32>) -> !tile.tile<64x32xf32>
// CHECK-NEXT:    %[[c:.*]] = tile.cast %[[b]] : !tile.tile<64x32xf32> to !tile.tile<64x32xf16>
// CHECK-NEXT:    tile.store %[[c]], %c[%m, %column] : !tile.tile<64x32xf16>, !tile.view<?x128xf16>
// CHECK-NEXT:  }

// Without split_k in its schedule a kernel stays as it is.
// CHECK-LABEL: tile.kernel @other
// CHECK-NOT:     tile.cluster_sum
// CHECK:       }

func.func @mm(%a: tensor<?x256xf16>, %b: tensor<128x256xf16>, %v: tensor<1x128xf32>, %s: tensor<?x1xf32>) -> tensor<?x128xf16> {
  %rows = tile.dim %a, 0 : tensor<?x256xf16>
  %c = tile.alloc[%rows] : tensor<?x128xf16>
  %c64 = arith.constant 64 : index
  %c2 = arith.constant 2 : index
  %0 = arith.ceildivui %rows, %c64 : index
  %tiles = arith.muli %0, %c2 : index
  tile.launch @kernel[%tiles] (%a, %b, %v, %s, %c) : tensor<?x256xf16>, tensor<128x256xf16>, tensor<1x128xf32>, tensor<?x1xf32>, tensor<?x128xf16>
  func.return %c : tensor<?x128xf16>
}
tile.kernel @kernel(%a: !tile.view<?x256xf16>, %b: !tile.view<128x256xf16>, %v: !tile.view<1x128xf32>, %s: !tile.view<?x1xf32>, %c: !tile.view<?x128xf16>) schedule <block = [64, 64, 32], warps = [4, 1], split_k = 2> {
  %rows = tile.dim %a, 0 : !tile.view<?x256xf16>
  %columns = arith.constant 128 : index
  %m, %n = tile.grid [%rows by 64, %columns by 64] raster 2
  %c0 = arith.constant 0 : index
  %c256 = arith.constant 256 : index
  %c32 = arith.constant 32 : index
  %zero = tile.fill 0.000000e+00 : f32 : !tile.tile<64x64xf32>
  %acc = scf.for %k = %c0 to %c256 step %c32 iter_args(%sum = %zero) -> (!tile.tile<64x64xf32>) {
    %x = tile.load %a[%m, %k] : !tile.view<?x256xf16> -> !tile.tile<64x32xf16>
    %w = tile.load %b[%n, %k] : !tile.view<128x256xf16> -> !tile.tile<64x32xf16>
    %d = tile.dot %x, %w into %sum transpose_b : (!tile.tile<64x32xf16>, !tile.tile<64x32xf16>, !tile.tile<64x64xf32>) -> !tile.tile<64x64xf32>
    scf.yield %d : !tile.tile<64x64xf32>
  }
  %bias = tile.load %v[%c0, %n] : !tile.view<1x128xf32> -> !tile.tile<1x64xf32>
  %scale = tile.load %s[%m, %c0] : !tile.view<?x1xf32> -> !tile.tile<64x1xf32>
  %1 = tile.map add %acc, %bias : (!tile.tile<64x64xf32>, !tile.tile<1x64xf32>) -> !tile.tile<64x64xf32>
  %2 = tile.map mul %1, %scale : (!tile.tile<64x64xf32>, !tile.tile<64x1xf32>) -> !tile.tile<64x64xf32>
  %3 = tile.cast %2 : !tile.tile<64x64xf32> to !tile.tile<64x64xf16>
  tile.store %3, %c[%m, %n] : !tile.tile<64x64xf16>, !tile.view<?x128xf16>
}
tile.kernel @other(%x: !tile.view<?x128xf16>, %y: !tile.view<?x128xf16>) schedule <block = [64, 64, 16], warps = [4, 1]> {
  %c128 = arith.constant 128 : index
  %m, %n = tile.grid [%c128 by 64, %c128 by 64] raster 2
  %t = tile.load %x[%m, %n] : !tile.view<?x128xf16> -> !tile.tile<64x64xf16>
  tile.store %t, %y[%m, %n] : !tile.tile<64x64xf16>, !tile.view<?x128xf16>
}
