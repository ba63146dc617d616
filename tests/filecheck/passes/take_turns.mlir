// RUN: emmy-opt %s -p 'lower-tile,take-turns' | filecheck %s



// The second half begins by waiting. In the loop the turn is passed behind the scores, the slot of the late product waited for,
// and the turn taken before its loads; at the end the first half passes what the second one waits for.
// CHECK-LABEL: tile.kernel @chain
// CHECK:           %q_slot_1, %{{.*}} = async_copy.wait @q
// CHECK-NEXT:      %[[warp:.*]] = mma.warp 0 of [2, 1]
// CHECK-NEXT:      %[[half:.*]] = arith.constant 1 : index
// CHECK-NEXT:      %[[first:.*]] = arith.cmpi slt, %[[warp]], %[[half]] : index
// CHECK-NEXT:      %[[second:.*]] = arith.cmpi sge, %[[warp]], %[[half]] : index
// CHECK-NEXT:      scf.if %[[second]] {
// CHECK-NEXT:        async_copy.await_turn
// CHECK-NEXT:      }
// CHECK-NEXT:      %{{.*}} = scf.for
// CHECK:             %scores = mma.mma
// CHECK-NEXT:        async_copy.pass_turn
// CHECK-NEXT:        %{{.*}} = async_copy.wait @v
// CHECK:             %weights = mma.map exp2
// CHECK:             async_copy.await_turn
// CHECK-NEXT:        %{{.*}} = mma.load %v_slot
// CHECK-NEXT:        %d = mma.mma
// CHECK:           scf.if %[[first]] {
// CHECK-NEXT:        async_copy.pass_turn
// CHECK-NEXT:      }
tile.kernel @chain(%q: !tile.view<32x16xf16>, %k: !tile.view<64x16xf16>, %v: !tile.view<64x16xf16>, %o: !tile.view<32x16xf32>)
    schedule <block = [32, 16, 16], warps = [2, 1], stages = 2, roles = specialized, fragments = 1, turns = 1> {
  %c0 = arith.constant 0 : index
  %c16 = arith.constant 16 : index
  %c32 = arith.constant 32 : index
  %c64 = arith.constant 64 : index
  %m = tile.grid [%c32 by 32] raster 1
  %zero = tile.fill 0.0 : f32 : !tile.tile<32x16xf32>
  %x = tile.load %q[%m, %c0] : !tile.view<32x16xf16> -> !tile.tile<32x16xf16>
  %sums = scf.for %j = %c0 to %c64 step %c16 iter_args(%s = %zero) -> (!tile.tile<32x16xf32>) {
    %y = tile.load %k[%j, %c0] : !tile.view<64x16xf16> -> !tile.tile<16x16xf16>
    %scores = tile.dot %x, %y into %zero transpose_b
      : (!tile.tile<32x16xf16>, !tile.tile<16x16xf16>, !tile.tile<32x16xf32>) -> !tile.tile<32x16xf32>
    %weights = tile.map exp2 %scores : (!tile.tile<32x16xf32>) -> !tile.tile<32x16xf32>
    %p = tile.cast %weights : !tile.tile<32x16xf32> to !tile.tile<32x16xf16>
    %z = tile.load %v[%j, %c0] : !tile.view<64x16xf16> -> !tile.tile<16x16xf16>
    %d = tile.dot %p, %z into %s : (!tile.tile<32x16xf16>, !tile.tile<16x16xf16>, !tile.tile<32x16xf32>) -> !tile.tile<32x16xf32>
    scf.yield %d : !tile.tile<32x16xf32>
  }
  tile.store %sums, %o[%m, %c0] : !tile.tile<32x16xf32>, !tile.view<32x16xf32>
}
