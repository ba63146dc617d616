// RUN: emmy-opt %s -p split-accumulation | filecheck %s
// RUN: emmy-opt %s -p 'split-accumulation,issue-products' | filecheck %s --check-prefix ISSUED

// Partial sums of 8-bit operands are f32 unless the policy says f16: what they are short of is bits inside the tensor cores.
// CHECK-LABEL: tile.kernel @slices
// CHECK:       %[[ZERO:.*]] = mma.fill 0.000000e+00 : f32 : !mma.fragment<32x16xf32, c, m16n8k32>
// CHECK-NEXT:  %[[A0:.*]] = mma.load %slot["a"] [%c0, %c0] : {{.*}} -> !mma.fragment<32x32xf8E4M3FN, a, m16n8k32>
// CHECK-NEXT:  %[[B0:.*]] = mma.load %slot["b"] [%c0, %c0] : {{.*}} -> !mma.fragment<16x32xf8E5M2, b, m16n8k32>
// CHECK-NEXT:  %[[P0:.*]] = mma.mma %[[A0]], %[[B0]], %[[ZERO]]
// CHECK-NEXT:  %[[A1:.*]] = mma.load %slot["a"] [%c0, %c32]
// CHECK-NEXT:  %[[B1:.*]] = mma.load %slot["b"] [%c0, %c32]
// CHECK-NEXT:  %[[P1:.*]] = mma.mma %[[A1]], %[[B1]], %[[P0]]
// CHECK-NEXT:  %[[S0:.*]] = mma.slice %s at [0, 0]
// CHECK-NEXT:  %[[D0:.*]] = mma.promote %[[P1]] into %[[S0]] : !mma.fragment<32x16xf32, c, m16n8k32> -> !mma.fragment<32x16xf32, c, m16n8k32>
// CHECK:       %[[D1:.*]] = mma.promote
// CHECK-NEXT:  mma.join %[[D0]], %[[D1]] axis 1
tile.kernel @slices(%x: !tile.view<64x64xf16>) {
  async_copy.pipeline @ab stages 2 {a = !tile.tile<32x64xf8E4M3FN>, b = !tile.tile<32x64xf8E5M2>}
  %c0 = arith.constant 0 : index
  %c32 = arith.constant 32 : index
  async_copy.consumer {
    %s = mma.fill 0.0 : f32 : !mma.fragment<32x32xf32, c, m16n8k32>
    %read = async_copy.begin_read @ab
    %slot, %next = async_copy.wait @ab[%read]
    %a0 = mma.load %slot["a"][%c0, %c0] : !async_copy.slot<@ab, read> -> !mma.fragment<32x32xf8E4M3FN, a, m16n8k32>
    %b0 = mma.load %slot["b"][%c0, %c0] : !async_copy.slot<@ab, read> -> !mma.fragment<32x32xf8E5M2, b, m16n8k32>
    %s0 = mma.mma %a0, %b0, %s accumulate<hybrid, max_k = 64> : (!mma.fragment<32x32xf8E4M3FN, a, m16n8k32>, !mma.fragment<32x32xf8E5M2, b, m16n8k32>) -> !mma.fragment<32x32xf32, c, m16n8k32>
    %a1 = mma.load %slot["a"][%c0, %c32] : !async_copy.slot<@ab, read> -> !mma.fragment<32x32xf8E4M3FN, a, m16n8k32>
    %b1 = mma.load %slot["b"][%c0, %c32] : !async_copy.slot<@ab, read> -> !mma.fragment<32x32xf8E5M2, b, m16n8k32>
    %s1 = mma.mma %a1, %b1, %s0 accumulate<hybrid, max_k = 64> : (!mma.fragment<32x32xf8E4M3FN, a, m16n8k32>, !mma.fragment<32x32xf8E5M2, b, m16n8k32>) -> !mma.fragment<32x32xf32, c, m16n8k32>
    async_copy.release @ab, %slot
    %c = mma.convert %s1 : !mma.fragment<32x32xf32, c, m16n8k32> to !mma.fragment<32x32xf16, c, m16n8k32>
  }
}

// With `partial = f16` they are f16: GeForce cards sum those at twice the rate.
// CHECK-LABEL: tile.kernel @halves
// CHECK:       %[[ZERO:.*]] = mma.fill 0.000000e+00 : f16 : !mma.fragment<32x16xf16, c, m16n8k32>
// CHECK:       %[[P0:.*]] = mma.mma %{{.*}}, %{{.*}}, %[[ZERO]] : {{.*}} -> !mma.fragment<32x16xf16, c, m16n8k32>
// CHECK:       %[[P1:.*]] = mma.mma %{{.*}}, %{{.*}}, %[[P0]] : {{.*}} -> !mma.fragment<32x16xf16, c, m16n8k32>
// CHECK-NEXT:  %[[S0:.*]] = mma.slice %s at [0, 0]
// CHECK-NEXT:  %[[D0:.*]] = mma.promote %[[P1]] into %[[S0]] : !mma.fragment<32x16xf16, c, m16n8k32> -> !mma.fragment<32x16xf32, c, m16n8k32>
tile.kernel @halves(%x: !tile.view<64x64xf16>) {
  async_copy.pipeline @ab stages 2 {a = !tile.tile<32x64xf8E4M3FN>, b = !tile.tile<32x64xf8E5M2>}
  %c0 = arith.constant 0 : index
  %c32 = arith.constant 32 : index
  async_copy.consumer {
    %s = mma.fill 0.0 : f32 : !mma.fragment<32x32xf32, c, m16n8k32>
    %read = async_copy.begin_read @ab
    %slot, %next = async_copy.wait @ab[%read]
    %a0 = mma.load %slot["a"][%c0, %c0] : !async_copy.slot<@ab, read> -> !mma.fragment<32x32xf8E4M3FN, a, m16n8k32>
    %b0 = mma.load %slot["b"][%c0, %c0] : !async_copy.slot<@ab, read> -> !mma.fragment<32x32xf8E5M2, b, m16n8k32>
    %s0 = mma.mma %a0, %b0, %s accumulate<hybrid, max_k = 64, partial = f16> : (!mma.fragment<32x32xf8E4M3FN, a, m16n8k32>, !mma.fragment<32x32xf8E5M2, b, m16n8k32>) -> !mma.fragment<32x32xf32, c, m16n8k32>
    %a1 = mma.load %slot["a"][%c0, %c32] : !async_copy.slot<@ab, read> -> !mma.fragment<32x32xf8E4M3FN, a, m16n8k32>
    %b1 = mma.load %slot["b"][%c0, %c32] : !async_copy.slot<@ab, read> -> !mma.fragment<32x32xf8E5M2, b, m16n8k32>
    %s1 = mma.mma %a1, %b1, %s0 accumulate<hybrid, max_k = 64, partial = f16> : (!mma.fragment<32x32xf8E4M3FN, a, m16n8k32>, !mma.fragment<32x32xf8E5M2, b, m16n8k32>) -> !mma.fragment<32x32xf32, c, m16n8k32>
    async_copy.release @ab, %slot
    %c = mma.convert %s1 : !mma.fragment<32x32xf32, c, m16n8k32> to !mma.fragment<32x32xf16, c, m16n8k32>
  }
}

// Products of warpgroups keep a second accumulator as a whole, and promote it when it has been waited for.
// CHECK-LABEL: tile.kernel @whole
// CHECK:       async_copy.wait
// CHECK-NEXT:  %{{.*}} = mma.fill 0.000000e+00 : f32 : !mma.fragment<16x32xf32, c, m16n8k32>
// CHECK:       %[[P:.*]] = mma.mma
// CHECK-NEXT:  %d = mma.promote %[[P]] into %s
// CHECK-NEXT:  async_copy.release
// ISSUED-LABEL: tile.kernel @whole
// ISSUED:       async_copy.wait
// ISSUED-NEXT:  %[[ZERO:.*]] = mma.fill 0.000000e+00 : f32 : !mma.fragment<16x32xf32, c, m16n8k32>
// ISSUED-NEXT:  %{{.*}} = mma.load %slot["a"] [%row, %c0] in_place
// ISSUED-NEXT:  %{{.*}} = mma.load %slot["b"] [%c0, %c0] in_place
// ISSUED-NEXT:  mma.fence
// ISSUED-NEXT:  %[[P:.*]] = mma.issue %{{.*}}, %{{.*}}, %[[ZERO]]
// ISSUED-NEXT:  mma.commit
// ISSUED-NEXT:  %[[W:.*]] = mma.wait 0 %[[P]]
// ISSUED-NEXT:  %d = mma.promote %[[W]] into %s
// ISSUED-NEXT:  async_copy.release
tile.kernel @whole(%x: !tile.view<64x64xf32>) schedule <block = [64, 32, 32], warps = [4, 1], atom = wgmma> {
  async_copy.pipeline @ab stages 2 {a = !tile.tile<64x32xf8E4M3FN>, b = !tile.tile<32x32xf8E4M3FN>}
  %c0 = arith.constant 0 : index
  %c16 = arith.constant 16 : index
  async_copy.consumer {
    %warp = mma.warp 0 of [4, 1]
    %row = arith.muli %warp, %c16 : index
    %s = mma.fill 0.0 : f32 : !mma.fragment<16x32xf32, c, m16n8k32>
    %read = async_copy.begin_read @ab
    %slot, %next = async_copy.wait @ab[%read]
    %a0 = mma.load %slot["a"][%row, %c0] : !async_copy.slot<@ab, read> -> !mma.fragment<16x32xf8E4M3FN, a, m16n8k32>
    %b0 = mma.load %slot["b"][%c0, %c0] : !async_copy.slot<@ab, read> -> !mma.fragment<32x32xf8E4M3FN, b, m16n8k32>
    %d = mma.mma %a0, %b0, %s accumulate<hybrid, max_k = 32> : (!mma.fragment<16x32xf8E4M3FN, a, m16n8k32>, !mma.fragment<32x32xf8E4M3FN, b, m16n8k32>) -> !mma.fragment<16x32xf32, c, m16n8k32>
    async_copy.release @ab, %slot
    mma.store_global %d -> %x[%row, %c0] : !mma.fragment<16x32xf32, c, m16n8k32> -> !tile.view<64x64xf32>
  }
}
