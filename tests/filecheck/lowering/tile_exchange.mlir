// RUN: emmy-opt %s -p 'lower-tile,verify-pipelines' | filecheck %s
// RUN: emmy-opt %s -p 'lower-tile,place-roles,lower-transport{kind=cp_async}' | filecheck %s --check-prefix LOWERED

// Four warps, two beside each other: the maximum of a row and the weights of all columns pass through shared memory; the sum
// stays in parts until it is needed whole.
// CHECK-LABEL: tile.kernel @weighted
// CHECK-DAG:     async_copy.pipeline @max stages 1 {max = !tile.tile<32x16xf32>} internal
// CHECK-DAG:     async_copy.pipeline @w stages 1 {w = !tile.tile<32x32xf16>} internal
// CHECK-DAG:     async_copy.pipeline @sum stages 1 {sum = !tile.tile<32x16xf32>} internal
// CHECK:         async_copy.consumer
// CHECK:           %[[part:.*]] = mma.reduce max %{{.*}} : !mma.fragment<16x16xf32, c, m16n8k16> -> !mma.fragment<16x8xf32, c, m16n8k16>
// CHECK-NEXT:      %max_slot, %max_next = async_copy.acquire @max[%max_fill]
// CHECK-NEXT:      mma.store %[[part]] -> %max_slot["max"] [%row, %{{.*}}]
// CHECK-NEXT:      async_copy.commit @max, %max_slot
// CHECK-NEXT:      %max_all, %{{.*}} = async_copy.wait @max[%max_read]
// CHECK-NEXT:      %[[all:.*]] = mma.load %max_all["max"] [%row, %c0] : !async_copy.slot<@max, read> -> !mma.fragment<16x16xf32, c, m16n8k16>
// CHECK-NEXT:      async_copy.release @max, %max_all
// CHECK-NEXT:      %top = mma.reduce max %[[all]] : {{.*}} -> !mma.fragment<16x1xf32, c, m16n8k16>
// CHECK:           %parts = mma.reduce sum %{{.*}} -> !mma.fragment<16x8xf32, c, m16n8k16>
// CHECK:           mma.store %w -> %w_slot["w"] [%row, %col]
// CHECK:           %w_all, %{{.*}} = async_copy.wait @w
// CHECK:           mma.load %w_all["w"] [%row, %c0] : !async_copy.slot<@w, read> -> !mma.fragment<16x16xf16, a, m16n8k16>
// CHECK:           async_copy.release @w, %w_all
// CHECK:           mma.store %parts -> %sum_slot["sum"]
// CHECK:           %total = mma.reduce sum %{{.*}} -> !mma.fragment<16x1xf32, c, m16n8k16>

// A wait of an internal pipeline is a barrier of the warps that share the row, nothing else.
// LOWERED:         mma.store %{{.*}} -> %max_slot["max"]
// LOWERED-NEXT:    async_copy.barrier across 2
// LOWERED-NEXT:    %max_all, %{{.*}} = async_copy.slot @max
// LOWERED-NEXT:    mma.load %max_all["max"]
// LOWERED-NEXT:    mma.reduce max

// With `repeat` nothing is exchanged: both warps beside each other compute all 32 columns of what becomes an operand, from
// column 0, and split those of the product with it. Each use of a constant has its own fill.
// CHECK-LABEL: tile.kernel @repeated
// CHECK-NOT:     internal
// CHECK:         async_copy.consumer
// CHECK:           mma.fill 0.000000e+00 : f32 : !mma.fragment<16x16xf32, c, m16n8k16>
// CHECK:           mma.fill 0.000000e+00 : f32 : !mma.fragment<16x32xf32, c, m16n8k16>
// CHECK:           mma.load %{{.*}}["y"] [%c0, %c0] : {{.*}} -> !mma.fragment<32x16xf16, b, m16n8k16>
// CHECK:           %top = mma.reduce max %{{.*}} : !mma.fragment<16x32xf32, c, m16n8k16> -> !mma.fragment<16x1xf32, c, m16n8k16>
// CHECK:           %parts = mma.reduce sum %{{.*}} -> !mma.fragment<16x8xf32, c, m16n8k16>
// CHECK:           mma.convert %{{.*}} to !mma.fragment<16x32xf16, a, m16n8k16>
// CHECK:           mma.load %{{.*}}["y"] [%c0, %col] transposed : {{.*}} -> !mma.fragment<16x16xf16, b, m16n8k16>
// CHECK:           %total = mma.reduce sum %parts : !mma.fragment<16x8xf32, c, m16n8k16> -> !mma.fragment<16x1xf32, c, m16n8k16>
// CHECK:           mma.store_global %r -> %o

tile.kernel @weighted(%x: !tile.view<32x32xf16>, %y: !tile.view<32x32xf16>, %o: !tile.view<32x32xf32>)
    schedule <block = [32, 32, 32], warps = [2, 2], stages = 1, epilogue = direct> {
  %c0 = arith.constant 0 : index
  %zero = tile.fill 0.0 : f32 : !tile.tile<32x32xf32>
  %a = tile.load %x[%c0, %c0] : !tile.view<32x32xf16> -> !tile.tile<32x32xf16>
  %b = tile.load %y[%c0, %c0] : !tile.view<32x32xf16> -> !tile.tile<32x32xf16>
  %s = tile.dot %a, %b into %zero transpose_b
    : (!tile.tile<32x32xf16>, !tile.tile<32x32xf16>, !tile.tile<32x32xf32>) -> !tile.tile<32x32xf32>
  %top = tile.reduce max %s axis 1 : !tile.tile<32x32xf32> -> !tile.tile<32x1xf32>
  %e = tile.map sub %s, %top : (!tile.tile<32x32xf32>, !tile.tile<32x1xf32>) -> !tile.tile<32x32xf32>
  %parts = tile.reduce sum %e axis 1 : !tile.tile<32x32xf32> -> !tile.tile<32x8xf32>
  %w = tile.cast %e : !tile.tile<32x32xf32> to !tile.tile<32x32xf16>
  %d = tile.dot %w, %b into %zero
    : (!tile.tile<32x32xf16>, !tile.tile<32x32xf16>, !tile.tile<32x32xf32>) -> !tile.tile<32x32xf32>
  %total = tile.reduce sum %parts axis 1 : !tile.tile<32x8xf32> -> !tile.tile<32x1xf32>
  %r = tile.map mul %d, %total : (!tile.tile<32x32xf32>, !tile.tile<32x1xf32>) -> !tile.tile<32x32xf32>
  tile.store %r, %o[%c0, %c0] : !tile.tile<32x32xf32>, !tile.view<32x32xf32>
}

tile.kernel @repeated(%x: !tile.view<32x32xf16>, %y: !tile.view<32x32xf16>, %o: !tile.view<32x32xf32>)
    schedule <block = [32, 32, 32], warps = [2, 2], stages = 1, repeat = 1, epilogue = direct> {
  %c0 = arith.constant 0 : index
  %zero = tile.fill 0.0 : f32 : !tile.tile<32x32xf32>
  %a = tile.load %x[%c0, %c0] : !tile.view<32x32xf16> -> !tile.tile<32x32xf16>
  %b = tile.load %y[%c0, %c0] : !tile.view<32x32xf16> -> !tile.tile<32x32xf16>
  %s = tile.dot %a, %b into %zero transpose_b
    : (!tile.tile<32x32xf16>, !tile.tile<32x32xf16>, !tile.tile<32x32xf32>) -> !tile.tile<32x32xf32>
  %top = tile.reduce max %s axis 1 : !tile.tile<32x32xf32> -> !tile.tile<32x1xf32>
  %e = tile.map sub %s, %top : (!tile.tile<32x32xf32>, !tile.tile<32x1xf32>) -> !tile.tile<32x32xf32>
  %parts = tile.reduce sum %e axis 1 : !tile.tile<32x32xf32> -> !tile.tile<32x8xf32>
  %w = tile.cast %e : !tile.tile<32x32xf32> to !tile.tile<32x32xf16>
  %d = tile.dot %w, %b into %zero
    : (!tile.tile<32x32xf16>, !tile.tile<32x32xf16>, !tile.tile<32x32xf32>) -> !tile.tile<32x32xf32>
  %total = tile.reduce sum %parts axis 1 : !tile.tile<32x8xf32> -> !tile.tile<32x1xf32>
  %r = tile.map mul %d, %total : (!tile.tile<32x32xf32>, !tile.tile<32x1xf32>) -> !tile.tile<32x32xf32>
  tile.store %r, %o[%c0, %c0] : !tile.tile<32x32xf32>, !tile.view<32x32xf32>
}
