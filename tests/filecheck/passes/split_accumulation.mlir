// RUN: emmy-opt %s -p split-accumulation | filecheck %s
// RUN: emmy-opt %s -p 'split-accumulation{order=steps}' | filecheck %s --check-prefix STEPS
// RUN: emmy-opt %s -p 'split-accumulation{promote=16}' | filecheck %s --check-prefix OFTEN
// RUN: not emmy-opt %s -p 'split-accumulation{promote=24}' 2>&1 | filecheck %s --check-prefix WRONG

// WRONG: split-accumulation promotes after a multiple of 16 elements, got 24

// Two k-steps a partial, slices of 16 columns: all k-steps of a slice, its promotion, the next slice. Operand a is loaded
// once, operand b slice by slice.
// CHECK-LABEL: tile.kernel @slices
// CHECK:       %[[COL:.*]] = arith.addi %col, %{{.*}} : index
// CHECK:       async_copy.wait @ab
// CHECK-NEXT:  %[[ZERO:.*]] = mma.fill 0.000000e+00 : f16 : !mma.fragment<32x16xf16, c, m16n8k16>
// CHECK-NEXT:  %[[A0:.*]] = mma.load %slot["a"] [%c0, %c0] : {{.*}} -> !mma.fragment<32x16xf16, a, m16n8k16>
// CHECK-NEXT:  %[[B00:.*]] = mma.load %slot["b"] [%col, %c0] : {{.*}} -> !mma.fragment<16x16xf16, b, m16n8k16>
// CHECK-NEXT:  %[[P00:.*]] = mma.mma %[[A0]], %[[B00]], %[[ZERO]] : {{.*}} -> !mma.fragment<32x16xf16, c, m16n8k16>
// CHECK-NEXT:  %[[A1:.*]] = mma.load %slot["a"] [%c0, %c16]
// CHECK-NEXT:  %[[B01:.*]] = mma.load %slot["b"] [%col, %c16]
// CHECK-NEXT:  %[[P01:.*]] = mma.mma %[[A1]], %[[B01]], %[[P00]]
// CHECK-NEXT:  %[[T0:.*]] = mma.slice %s at [0, 0]
// CHECK-NEXT:  %[[D0:.*]] = mma.promote %[[P01]] into %[[T0]] : !mma.fragment<32x16xf16, c, m16n8k16> -> !mma.fragment<32x16xf32, c, m16n8k16>
// CHECK-NEXT:  mma.fill 0.000000e+00 : f16
// CHECK-NEXT:  mma.load %slot["b"] [%[[COL]], %c0]
// CHECK-NEXT:  mma.mma %[[A0]],
// CHECK-NEXT:  mma.load %slot["b"] [%[[COL]], %c16]
// CHECK-NEXT:  mma.mma %[[A1]],
// CHECK-NEXT:  mma.slice %s at [0, 16]
// CHECK-NEXT:  %[[D1:.*]] = mma.promote
// CHECK-NEXT:  mma.join %[[D0]], %[[D1]] axis 1
// CHECK-NOT:   accumulate

// K-step by k-step: both slices of one before the next.
// STEPS-LABEL: tile.kernel @slices
// STEPS:       mma.load %slot["a"] [%c0, %c0]
// STEPS-NEXT:  mma.load %slot["b"]
// STEPS-NEXT:  mma.mma
// STEPS-NEXT:  mma.fill
// STEPS-NEXT:  mma.load %slot["b"]
// STEPS-NEXT:  mma.mma
// STEPS-NEXT:  mma.load %slot["a"] [%c0, %c16]
// STEPS-NEXT:  mma.load %slot["b"]
// STEPS-NEXT:  mma.mma
// STEPS-NEXT:  mma.slice
// STEPS-NEXT:  mma.promote
// STEPS-NEXT:  mma.load %slot["b"]
// STEPS-NEXT:  mma.mma
// STEPS-NEXT:  mma.slice
// STEPS-NEXT:  mma.promote
// STEPS-NEXT:  mma.join

// More often than the policy asks for: after each k-step.
// OFTEN-LABEL: tile.kernel @slices
// OFTEN:       mma.mma
// OFTEN-NEXT:  mma.slice
// OFTEN-NEXT:  mma.promote
// OFTEN:       mma.mma
// OFTEN-NEXT:  mma.slice
// OFTEN-NEXT:  mma.promote
// OFTEN:       mma.mma
// OFTEN-NEXT:  mma.promote
// OFTEN:       mma.mma
// OFTEN-NEXT:  mma.promote
// OFTEN-NEXT:  mma.join
tile.kernel @slices(%x: !tile.view<64x64xf16>) {
  async_copy.pipeline @ab stages 2 {a = !tile.tile<32x32xf16>, b = !tile.tile<64x32xf16>}
  %c0 = arith.constant 0 : index
  %c16 = arith.constant 16 : index
  async_copy.consumer {
    %warp = mma.warp 0 of [2]
    %c32 = arith.constant 32 : index
    %col = arith.muli %warp, %c32 : index
    %s = mma.fill 0.0 : f32 : !mma.fragment<32x32xf32, c, m16n8k16>
    %read = async_copy.begin_read @ab
    %slot, %next = async_copy.wait @ab[%read]
    %a0 = mma.load %slot["a"][%c0, %c0] : !async_copy.slot<@ab, read> -> !mma.fragment<32x16xf16, a, m16n8k16>
    %b0 = mma.load %slot["b"][%col, %c0] : !async_copy.slot<@ab, read> -> !mma.fragment<32x16xf16, b, m16n8k16>
    %s0 = mma.mma %a0, %b0, %s accumulate<hybrid, max_k = 32> : (!mma.fragment<32x16xf16, a, m16n8k16>, !mma.fragment<32x16xf16, b, m16n8k16>) -> !mma.fragment<32x32xf32, c, m16n8k16>
    %a1 = mma.load %slot["a"][%c0, %c16] : !async_copy.slot<@ab, read> -> !mma.fragment<32x16xf16, a, m16n8k16>
    %b1 = mma.load %slot["b"][%col, %c16] : !async_copy.slot<@ab, read> -> !mma.fragment<32x16xf16, b, m16n8k16>
    %s1 = mma.mma %a1, %b1, %s0 accumulate<hybrid, max_k = 32> : (!mma.fragment<32x16xf16, a, m16n8k16>, !mma.fragment<32x16xf16, b, m16n8k16>) -> !mma.fragment<32x32xf32, c, m16n8k16>
    async_copy.release @ab, %slot
    %c = mma.convert %s1 : !mma.fragment<32x32xf32, c, m16n8k16> to !mma.fragment<32x32xf16, c, m16n8k16>
  }
}

// A loop body holds 16 of 48 elements: the partial sum goes round the loop and is promoted every third time, and at the end.
// CHECK-LABEL: tile.kernel @carried
// CHECK:       %[[NONE:.*]] = mma.fill 0.000000e+00 : f16
// CHECK:       scf.for %k = %c0 to %c64 step %c16 iter_args(%sum = %zero, %cursor = %read, %partial = %[[NONE]], %count = %{{.*}})
// CHECK-NEXT:    %[[P0:.*]] = mma.slice %partial at [0, 0]
// CHECK-NEXT:    %[[P1:.*]] = mma.slice %partial at [0, 16]
// CHECK:         mma.mma %{{.*}}, %{{.*}}, %[[P0]]
// CHECK:         mma.mma %{{.*}}, %{{.*}}, %[[P1]]
// CHECK-NEXT:    %[[NEXT:.*]] = mma.join
// CHECK-NEXT:    %[[COUNT:.*]] = arith.addi %count
// CHECK-NEXT:    %[[FULL:.*]] = arith.cmpi eq, %[[COUNT]]
// CHECK-NEXT:    %d, %[[P:.*]], %[[C:.*]] = scf.if %[[FULL]]
// CHECK-NEXT:      %[[SUM:.*]] = mma.promote %[[NEXT]] into %sum
// CHECK-NEXT:      scf.yield %[[SUM]], %[[NONE]]
// CHECK-NEXT:    } else {
// CHECK-NEXT:      scf.yield %sum, %[[NEXT]], %[[COUNT]]
// CHECK:         scf.yield %d, %next, %[[P]], %[[C]]
// CHECK:       mma.promote %{{.*}} into %total : !mma.fragment<32x32xf16, c, m16n8k16> -> !mma.fragment<32x32xf32, c, m16n8k16>
tile.kernel @carried(%x: !tile.view<64x64xf16>) {
  async_copy.pipeline @ab stages 2 {a = !tile.tile<32x16xf16>, b = !tile.tile<32x16xf16>}
  %c0 = arith.constant 0 : index
  %c16 = arith.constant 16 : index
  %c64 = arith.constant 64 : index
  async_copy.consumer {
    %zero = mma.fill 0.0 : f32 : !mma.fragment<32x32xf32, c, m16n8k16>
    %read = async_copy.begin_read @ab
    %total, %done = scf.for %k = %c0 to %c64 step %c16 iter_args(%sum = %zero, %cursor = %read) -> (!mma.fragment<32x32xf32, c, m16n8k16>, !async_copy.cursor<@ab, read>) {
      %slot, %next = async_copy.wait @ab[%cursor]
      %a = mma.load %slot["a"][%c0, %c0] : !async_copy.slot<@ab, read> -> !mma.fragment<32x16xf16, a, m16n8k16>
      %b = mma.load %slot["b"][%c0, %c0] : !async_copy.slot<@ab, read> -> !mma.fragment<32x16xf16, b, m16n8k16>
      %d = mma.mma %a, %b, %sum accumulate<hybrid, max_k = 48> : (!mma.fragment<32x16xf16, a, m16n8k16>, !mma.fragment<32x16xf16, b, m16n8k16>) -> !mma.fragment<32x32xf32, c, m16n8k16>
      async_copy.release @ab, %slot
      scf.yield %d, %next : !mma.fragment<32x32xf32, c, m16n8k16>, !async_copy.cursor<@ab, read>
    }
    async_copy.drain @ab
    %c = mma.convert %total : !mma.fragment<32x32xf32, c, m16n8k16> to !mma.fragment<32x32xf16, c, m16n8k16>
  }
}

// Operands that are no loads of the block are cut by slices, a sum that is used twice ends its chain, f32 stays as it is.
// CHECK-LABEL: tile.kernel @others
// CHECK:       mma.slice %b at [16, 0] : !mma.fragment<32x16xf16, b, m16n8k16> -> !mma.fragment<16x16xf16, b, m16n8k16>
// CHECK:       %[[S0:.*]] = mma.join
// CHECK:       %[[S1:.*]] = mma.join
// CHECK-NEXT:  mma.mma %a, %b, %[[S1]] : {{.*}} -> !mma.fragment<32x32xf32, c, m16n8k16>
// CHECK-NEXT:  mma.convert %[[S0]]
tile.kernel @others(%x: !tile.view<64x64xf16>) {
  async_copy.consumer {
    %s = mma.fill 0.0 : f32 : !mma.fragment<32x32xf32, c, m16n8k16>
    %a = mma.fill 1.0 : f16 : !mma.fragment<32x16xf16, a, m16n8k16>
    %b = mma.fill 1.0 : f16 : !mma.fragment<32x16xf16, b, m16n8k16>
    %s0 = mma.mma %a, %b, %s accumulate<hybrid, max_k = 32> : (!mma.fragment<32x16xf16, a, m16n8k16>, !mma.fragment<32x16xf16, b, m16n8k16>) -> !mma.fragment<32x32xf32, c, m16n8k16>
    %s1 = mma.mma %a, %b, %s0 accumulate<hybrid, max_k = 32> : (!mma.fragment<32x16xf16, a, m16n8k16>, !mma.fragment<32x16xf16, b, m16n8k16>) -> !mma.fragment<32x32xf32, c, m16n8k16>
    %s2 = mma.mma %a, %b, %s1 : (!mma.fragment<32x16xf16, a, m16n8k16>, !mma.fragment<32x16xf16, b, m16n8k16>) -> !mma.fragment<32x32xf32, c, m16n8k16>
    %c = mma.convert %s0 : !mma.fragment<32x32xf32, c, m16n8k16> to !mma.fragment<32x32xf16, c, m16n8k16>
    %d = mma.convert %s2 : !mma.fragment<32x32xf32, c, m16n8k16> to !mma.fragment<32x32xf16, c, m16n8k16>
  }
}
