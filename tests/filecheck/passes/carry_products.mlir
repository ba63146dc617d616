// RUN: emmy-opt %s -p 'lower-tile,issue-products,carry-products,verify-pipelines' | filecheck %s
// RUN: emmy-opt %s -p 'lower-tile,issue-products,carry-products,carry-products' | filecheck %s
// RUN: emmy-opt %s -p 'lower-tile,issue-products,carry-products,place-roles{target=sm_90a}' | filecheck %s

// The first iteration stands before the loop; each further one releases the slot of the one before, and the last is waited for.
// CHECK-LABEL: tile.kernel @kernel
// CHECK:           %zero = mma.fill
// CHECK:           %[[first:.*]], %[[second:.*]] = async_copy.wait @ab[%{{.*}}]
// CHECK:           %{{.*}} = mma.issue %{{.*}}, %{{.*}}, %zero
// CHECK:           %[[total:.*]] = mma.issue
// CHECK-NEXT:      mma.commit
// CHECK-NEXT:      %[[kept:.*]] = mma.wait_older %[[total]]
// CHECK-NEXT:      %[[start:.*]] = arith.constant 32 : index
// CHECK-NEXT:      %[[sums:.*]], %{{.*}}, %[[last:.*]] = scf.for %{{.*}} = %[[start]] to %c96 step %c32 iter_args(%sum = %[[kept]], %{{.*}} = %[[second]], %ab_before = %[[first]])
// CHECK-NEXT:        %[[slot:.*]], %{{.*}} = async_copy.wait @ab
// CHECK:             mma.issue %{{.*}}, %{{.*}}, %sum
// CHECK:             mma.commit
// CHECK-NEXT:        %[[next:.*]] = mma.wait_older
// CHECK-NEXT:        async_copy.release @ab, %ab_before
// CHECK-NEXT:        scf.yield %[[next]], %{{.*}}, %[[slot]] :
// CHECK:           %{{.*}} = mma.wait 0 %[[sums]]
// CHECK-NEXT:      async_copy.release @ab, %[[last]]

tile.kernel @kernel(%a: !tile.view<64x96xf16>, %b: !tile.view<64x96xf16>, %c: !tile.view<64x64xf16>)
    schedule <block = [64, 64, 32], warps = [4, 1], atom = wgmma, stages = 2, roles = specialized, carry = 1, fragments = 1> {
  %c64 = arith.constant 64 : index
  %c0 = arith.constant 0 : index
  %c96 = arith.constant 96 : index
  %c32 = arith.constant 32 : index
  %m, %n = tile.grid [%c64 by 64, %c64 by 64] raster 4
  %zero = tile.fill 0.000000e+00 : f32 : !tile.tile<64x64xf32>
  %acc = scf.for %k = %c0 to %c96 step %c32 iter_args(%sum = %zero) -> (!tile.tile<64x64xf32>) {
    %x = tile.load %a[%m, %k] : !tile.view<64x96xf16> -> !tile.tile<64x32xf16>
    %w = tile.load %b[%n, %k] : !tile.view<64x96xf16> -> !tile.tile<64x32xf16>
    %d = tile.dot %x, %w into %sum transpose_b : (!tile.tile<64x32xf16>, !tile.tile<64x32xf16>, !tile.tile<64x64xf32>) -> !tile.tile<64x64xf32>
    scf.yield %d : !tile.tile<64x64xf32>
  }
  %h = tile.cast %acc : !tile.tile<64x64xf32> to !tile.tile<64x64xf16>
  tile.store %h, %c[%m, %n] : !tile.tile<64x64xf16>, !tile.view<64x64xf16>
}
