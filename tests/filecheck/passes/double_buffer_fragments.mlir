// RUN: emmy-opt %s -p double-buffer-fragments | filecheck %s
// RUN: emmy-opt %s -p 'double-buffer-fragments{depth=2}' | filecheck %s
// RUN: emmy-opt %s -p 'double-buffer-fragments{depth=1}' | filecheck %s --check-prefix ONE
// RUN: emmy-opt %s -p 'double-buffer-fragments{depth=3}' | filecheck %s --check-prefix THREE

// CHECK-LABEL: tile.kernel @steps
// ONE-LABEL: tile.kernel @steps
// THREE-LABEL: tile.kernel @steps
tile.kernel @steps(%x: !tile.view<64x64xf16>) schedule <block = [64, 64, 64], warps = [1, 1]> {
  async_copy.pipeline @ab stages 2 {a = !tile.tile<64x64xf16>, b = !tile.tile<64x64xf16>}
  %c0 = arith.constant 0 : index
  %c16 = arith.constant 16 : index
  %c32 = arith.constant 32 : index
  async_copy.consumer {
    %s = mma.fill 0.0 : f32 : !mma.fragment<64x64xf32, c, m16n8k16>
    %r0 = async_copy.begin_read @ab
    // CHECK:      async_copy.wait
    // CHECK-NEXT: %a0 = mma.load
    // CHECK-NEXT: %b0 = mma.load
    // CHECK-NEXT: %a1 = mma.load
    // CHECK-NEXT: %b1 = mma.load
    // CHECK-NEXT: %s0 = mma.mma %a0, %b0, %s
    // CHECK-NEXT: %c48 = arith.addi %c16, %c32
    // CHECK-NEXT: %a2 = mma.load %slot["a"] [%c0, %c48]
    // CHECK-NEXT: %b2 = mma.load
    // CHECK-NEXT: %s1 = mma.mma %a1, %b1, %s0
    // CHECK-NEXT: %s2 = mma.mma %a2, %b2, %s1
    // CHECK-NEXT: async_copy.release @ab, %slot
    // A load of the next slot stays behind the wait that fills it.
    // CHECK-NEXT: async_copy.wait
    // CHECK-NEXT: %a3 = mma.load
    // ONE:        %b0 = mma.load
    // ONE-NEXT:   mma.mma
    // ONE-NEXT:   %a1 = mma.load
    // ONE-NEXT:   %b1 = mma.load
    // ONE-NEXT:   mma.mma
    // THREE:      %b1 = mma.load
    // THREE-NEXT: arith.addi
    // THREE-NEXT: %a2 = mma.load
    // THREE-NEXT: %b2 = mma.load
    // THREE-NEXT: mma.mma
    // THREE-NEXT: mma.mma
    // THREE-NEXT: mma.mma
    %slot, %r1 = async_copy.wait @ab[%r0]
    %a0 = mma.load %slot["a"][%c0, %c0] : !async_copy.slot<@ab, read> -> !mma.fragment<64x16xf16, a, m16n8k16>
    %b0 = mma.load %slot["b"][%c0, %c0] : !async_copy.slot<@ab, read> -> !mma.fragment<64x16xf16, b, m16n8k16>
    %s0 = mma.mma %a0, %b0, %s : (!mma.fragment<64x16xf16, a, m16n8k16>, !mma.fragment<64x16xf16, b, m16n8k16>) -> !mma.fragment<64x64xf32, c, m16n8k16>
    %a1 = mma.load %slot["a"][%c0, %c16] : !async_copy.slot<@ab, read> -> !mma.fragment<64x16xf16, a, m16n8k16>
    %b1 = mma.load %slot["b"][%c0, %c16] : !async_copy.slot<@ab, read> -> !mma.fragment<64x16xf16, b, m16n8k16>
    %s1 = mma.mma %a1, %b1, %s0 : (!mma.fragment<64x16xf16, a, m16n8k16>, !mma.fragment<64x16xf16, b, m16n8k16>) -> !mma.fragment<64x64xf32, c, m16n8k16>
    %c48 = arith.addi %c16, %c32 : index
    %a2 = mma.load %slot["a"][%c0, %c48] : !async_copy.slot<@ab, read> -> !mma.fragment<64x16xf16, a, m16n8k16>
    %b2 = mma.load %slot["b"][%c0, %c48] : !async_copy.slot<@ab, read> -> !mma.fragment<64x16xf16, b, m16n8k16>
    %s2 = mma.mma %a2, %b2, %s1 : (!mma.fragment<64x16xf16, a, m16n8k16>, !mma.fragment<64x16xf16, b, m16n8k16>) -> !mma.fragment<64x64xf32, c, m16n8k16>
    async_copy.release @ab, %slot
    %slot2, %r2 = async_copy.wait @ab[%r1]
    %a3 = mma.load %slot2["a"][%c0, %c0] : !async_copy.slot<@ab, read> -> !mma.fragment<64x16xf16, a, m16n8k16>
    %b3 = mma.load %slot2["b"][%c0, %c0] : !async_copy.slot<@ab, read> -> !mma.fragment<64x16xf16, b, m16n8k16>
    %s3 = mma.mma %a3, %b3, %s2 : (!mma.fragment<64x16xf16, a, m16n8k16>, !mma.fragment<64x16xf16, b, m16n8k16>) -> !mma.fragment<64x64xf32, c, m16n8k16>
    async_copy.release @ab, %slot2
  }
}

// A product that feeds the next one's operand is not overtaken by that operand.
// CHECK-LABEL: tile.kernel @chained
tile.kernel @chained(%x: !tile.view<64x64xf16>) schedule <block = [64, 64, 64], warps = [1, 1]> {
  async_copy.pipeline @v stages 1 {v = !tile.tile<64x64xf16>}
  %c0 = arith.constant 0 : index
  async_copy.consumer {
    %s = mma.fill 0.0 : f16 : !mma.fragment<16x16xf16, c, m16n8k16>
    %q = mma.fill 1.0 : f16 : !mma.fragment<16x16xf16, a, m16n8k16>
    %r0 = async_copy.begin_read @v
    %slot, %r1 = async_copy.wait @v[%r0]
    // CHECK:      %b0 = mma.load
    // CHECK-NEXT: %p = mma.mma %q, %b0, %s
    // CHECK-NEXT: %pa = mma.convert %p
    // CHECK-NEXT: %b1 = mma.load
    // CHECK-NEXT: mma.mma %pa, %b1, %s
    %b0 = mma.load %slot["v"][%c0, %c0] : !async_copy.slot<@v, read> -> !mma.fragment<16x16xf16, b, m16n8k16>
    %p = mma.mma %q, %b0, %s : (!mma.fragment<16x16xf16, a, m16n8k16>, !mma.fragment<16x16xf16, b, m16n8k16>) -> !mma.fragment<16x16xf16, c, m16n8k16>
    %pa = mma.convert %p : !mma.fragment<16x16xf16, c, m16n8k16> to !mma.fragment<16x16xf16, a, m16n8k16>
    %b1 = mma.load %slot["v"][%c0, %c0] transposed : !async_copy.slot<@v, read> -> !mma.fragment<16x16xf16, b, m16n8k16>
    %o = mma.mma %pa, %b1, %s : (!mma.fragment<16x16xf16, a, m16n8k16>, !mma.fragment<16x16xf16, b, m16n8k16>) -> !mma.fragment<16x16xf16, c, m16n8k16>
    async_copy.release @v, %slot
  }
}
