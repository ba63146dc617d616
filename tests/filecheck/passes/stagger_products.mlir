// RUN: emmy-opt %s -p 'stagger-products{force=true}' | filecheck %s
// RUN: emmy-opt %s -p stagger-products | filecheck %s --check-prefix AS_IT_IS

!full = !mma.fragment<16x32xf32, c, m16n8k16>
!stat = !mma.fragment<16x1xf32, c, m16n8k16>
!sum = !mma.fragment<16x8xf32, c, m16n8k16>
!step = !mma.fragment<16x16xf16, a, m16n8k16>
!b = !mma.fragment<16x16xf16, b, m16n8k16>
!out = !mma.fragment<16x16xf32, c, m16n8k16>

// What the first k-step takes is computed before the first product; what the second takes stands between the first two. The
// sum of both parts is complete there, so what is computed from it follows.
// CHECK-LABEL: tile.kernel @computed
// AS_IT_IS-LABEL: tile.kernel @computed
tile.kernel @computed(%y: !tile.view<64x64xf32>) schedule <block = [64, 64, 64], warps = [1, 1]> {
  async_copy.pipeline @v stages 2 {v = !tile.tile<64x64xf16>}
  %c0 = arith.constant 0 : index
  %c16 = arith.constant 16 : index
  %c32 = arith.constant 32 : index
  %c64 = arith.constant 64 : index
  async_copy.consumer {
    %s = mma.fill 1.0 : f32 : !full
    %m = mma.fill 1.0 : f32 : !stat
    %l0 = mma.fill 0.0 : f32 : !sum
    %z = mma.fill 0.0 : f32 : !out
    %r0 = async_copy.begin_read @v
    %lz, %oz, %rz = scf.for %j = %c0 to %c64 step %c32 iter_args(%l = %l0, %o = %z, %r = %r0) -> (!sum, !out, !async_copy.cursor<@v, read>) {
    // AS_IT_IS:      mma.map sub
    // AS_IT_IS-NEXT: mma.map exp2
    // AS_IT_IS-NEXT: mma.reduce sum
    // AS_IT_IS-NEXT: mma.map add
    // AS_IT_IS-NEXT: mma.convert
    %d = mma.map sub %s, %m : (!full, !stat) -> !full
    %p = mma.map exp2 %d : (!full) -> !full
    %rs = mma.reduce sum %p : !full -> !sum
    %ln = mma.map add %l, %rs : (!sum, !sum) -> !sum
    %pa = mma.convert %p : !full to !mma.fragment<16x32xf16, a, m16n8k16>
    // CHECK:      [[S0:%.*]] = mma.slice %s at [0, 0] : !mma.fragment<16x32xf32, c, m16n8k16> -> !mma.fragment<16x16xf32, c, m16n8k16>
    // CHECK-NEXT: [[D0:%.*]] = mma.map sub [[S0]], %m
    // CHECK-NEXT: [[P0:%.*]] = mma.map exp2 [[D0]]
    // CHECK-NEXT: [[L0:%.*]] = mma.reduce sum [[P0]] : !mma.fragment<16x16xf32, c, m16n8k16> -> !mma.fragment<16x8xf32, c, m16n8k16>
    // CHECK-NEXT: [[A0:%.*]] = mma.convert [[P0]]
    // CHECK-NEXT: async_copy.wait
    %slot, %next = async_copy.wait @v[%r]
    %b0 = mma.load %slot["v"][%c0, %c0] transposed : !async_copy.slot<@v, read> -> !b
    %a0 = mma.slice %pa at [0, 0] : !mma.fragment<16x32xf16, a, m16n8k16> -> !step
    %o0 = mma.mma %a0, %b0, %o : (!step, !b) -> !out
    // CHECK:      [[S1:%.*]] = mma.slice %s at [0, 16]
    // CHECK-NEXT: [[D1:%.*]] = mma.map sub [[S1]], %m
    // CHECK-NEXT: [[P1:%.*]] = mma.map exp2 [[D1]]
    // CHECK-NEXT: [[L1:%.*]] = mma.reduce sum [[P1]]
    // CHECK-NEXT: [[L:%.*]] = mma.map add [[L0]], [[L1]]
    // CHECK-NEXT: [[A1:%.*]] = mma.convert [[P1]]
    // CHECK-NEXT: %ln = mma.map add %l, [[L]]
    // CHECK-NEXT: %o0 = mma.mma [[A0]], %b0, %o
    %b1 = mma.load %slot["v"][%c16, %c0] transposed : !async_copy.slot<@v, read> -> !b
    %a1 = mma.slice %pa at [0, 16] : !mma.fragment<16x32xf16, a, m16n8k16> -> !step
    %o1 = mma.mma %a1, %b1, %o0 : (!step, !b) -> !out
    // CHECK-NEXT: mma.load
    // CHECK-NEXT: mma.mma [[A1]], %b1, %o0
    async_copy.release @v, %slot
    scf.yield %ln, %o1, %next : !sum, !out, !async_copy.cursor<@v, read>
    }
    mma.store_global %oz -> %y[%c0, %c0] : !out -> !tile.view<64x64xf32>
    mma.store_global %lz -> %y[%c0, %c16] : !sum -> !tile.view<64x64xf32>
  }
}
