// RUN: emmy-opt %s -p issue-products | filecheck %s

// Two products of one slot are one group, waited for before the slot goes.
// CHECK-LABEL: tile.kernel @gemm
tile.kernel @gemm(%x: !tile.view<64x64xf32>) schedule <block = [64, 32, 32], warps = [4, 1], atom = wgmma> {
  async_copy.pipeline @ab stages 2 {a = !tile.tile<64x32xf16>, b = !tile.tile<32x32xf16>}
  %c0 = arith.constant 0 : index
  %c16 = arith.constant 16 : index
  async_copy.consumer {
    %warp = mma.warp 0 of [4, 1]
    %row = arith.muli %warp, %c16 : index
    %sum = mma.fill 0.0 : f32 : !mma.fragment<16x32xf32, c, m16n8k16>
    %r0 = async_copy.begin_read @ab
    %s, %r1 = async_copy.wait @ab[%r0]
    // CHECK:      %a0 = mma.load %s["a"] [%row, %c0] in_place
    // CHECK-NEXT: %b0 = mma.load %s["b"] [%c0, %c0] in_place
    // CHECK-NEXT: mma.fence
    // CHECK-NEXT: %d0 = mma.issue %a0, %b0, %sum
    // CHECK-NEXT: %a1 = mma.load %s["a"] [%row, %c16] in_place
    // CHECK-NEXT: %b1 = mma.load %s["b"] [%c0, %c16] in_place
    // CHECK-NEXT: %d1 = mma.issue %a1, %b1, %d0
    // CHECK-NEXT: mma.commit
    // CHECK-NEXT: %d1_1 = mma.wait 0 %d1
    // CHECK-NEXT: async_copy.release @ab, %s
    // CHECK-NEXT: mma.store_global %d1_1
    %a0 = mma.load %s["a"][%row, %c0] : !async_copy.slot<@ab, read> -> !mma.fragment<16x16xf16, a, m16n8k16>
    %b0 = mma.load %s["b"][%c0, %c0] : !async_copy.slot<@ab, read> -> !mma.fragment<32x16xf16, b, m16n8k16>
    %d0 = mma.mma %a0, %b0, %sum : (!mma.fragment<16x16xf16, a, m16n8k16>, !mma.fragment<32x16xf16, b, m16n8k16>) -> !mma.fragment<16x32xf32, c, m16n8k16>
    %a1 = mma.load %s["a"][%row, %c16] : !async_copy.slot<@ab, read> -> !mma.fragment<16x16xf16, a, m16n8k16>
    %b1 = mma.load %s["b"][%c0, %c16] : !async_copy.slot<@ab, read> -> !mma.fragment<32x16xf16, b, m16n8k16>
    %d1 = mma.mma %a1, %b1, %d0 : (!mma.fragment<16x16xf16, a, m16n8k16>, !mma.fragment<32x16xf16, b, m16n8k16>) -> !mma.fragment<16x32xf32, c, m16n8k16>
    async_copy.release @ab, %s
    mma.store_global %d1 -> %x[%row, %c0] : !mma.fragment<16x32xf32, c, m16n8k16> -> !tile.view<64x64xf32>
  }
}

// A computed operand a stays in registers; the product that it is computed from is waited for first.
// CHECK-LABEL: tile.kernel @chained
tile.kernel @chained(%x: !tile.view<64x64xf32>) schedule <block = [64, 16, 16], warps = [4, 1], atom = wgmma> {
  async_copy.pipeline @qkv stages 2 {q = !tile.tile<64x16xf16>, k = !tile.tile<16x16xf16>, v = !tile.tile<16x32xf16>}
  %c0 = arith.constant 0 : index
  %c16 = arith.constant 16 : index
  async_copy.consumer {
    %warp = mma.warp 0 of [4, 1]
    %row = arith.muli %warp, %c16 : index
    %zero = mma.fill 0.0 : f32 : !mma.fragment<16x16xf32, c, m16n8k16>
    %sum = mma.fill 0.0 : f32 : !mma.fragment<16x32xf32, c, m16n8k16>
    %r0 = async_copy.begin_read @qkv
    %s, %r1 = async_copy.wait @qkv[%r0]
    // CHECK:      mma.issue %q, %k, %zero
    // CHECK-NEXT: mma.commit
    // CHECK-NEXT: %[[S:.*]] = mma.wait 0
    // CHECK-NEXT: %p = mma.convert %[[S]]
    // CHECK-NEXT: %v = mma.load %s["v"] [%c0, %c0] transposed in_place
    // CHECK-NEXT: mma.fence
    // CHECK-NEXT: %o = mma.issue %p, %v, %sum
    // CHECK-NEXT: mma.commit
    // CHECK-NEXT: %[[O:.*]] = mma.wait 0 %o
    // CHECK-NEXT: async_copy.release
    %q = mma.load %s["q"][%row, %c0] : !async_copy.slot<@qkv, read> -> !mma.fragment<16x16xf16, a, m16n8k16>
    %k = mma.load %s["k"][%c0, %c0] : !async_copy.slot<@qkv, read> -> !mma.fragment<16x16xf16, b, m16n8k16>
    %t = mma.mma %q, %k, %zero : (!mma.fragment<16x16xf16, a, m16n8k16>, !mma.fragment<16x16xf16, b, m16n8k16>) -> !mma.fragment<16x16xf32, c, m16n8k16>
    %p = mma.convert %t : !mma.fragment<16x16xf32, c, m16n8k16> to !mma.fragment<16x16xf16, a, m16n8k16>
    %v = mma.load %s["v"][%c0, %c0] transposed : !async_copy.slot<@qkv, read> -> !mma.fragment<32x16xf16, b, m16n8k16>
    %o = mma.mma %p, %v, %sum : (!mma.fragment<16x16xf16, a, m16n8k16>, !mma.fragment<32x16xf16, b, m16n8k16>) -> !mma.fragment<16x32xf32, c, m16n8k16>
    async_copy.release @qkv, %s
    mma.store_global %o -> %x[%row, %c0] : !mma.fragment<16x32xf32, c, m16n8k16> -> !tile.view<64x64xf32>
  }
}

// Other atoms are not touched.
// CHECK-LABEL: tile.kernel @plain
// CHECK-NOT: in_place
// CHECK: mma.mma %a, %b, %sum
tile.kernel @plain(%x: !tile.view<16x32xf32>) schedule <block = [16, 32, 16], warps = [1, 1]> {
  async_copy.pipeline @ab stages 2 {a = !tile.tile<16x16xf16>, b = !tile.tile<32x16xf16>}
  %c0 = arith.constant 0 : index
  async_copy.consumer {
    %sum = mma.fill 0.0 : f32 : !mma.fragment<16x32xf32, c, m16n8k16>
    %r0 = async_copy.begin_read @ab
    %s, %r1 = async_copy.wait @ab[%r0]
    %a = mma.load %s["a"][%c0, %c0] : !async_copy.slot<@ab, read> -> !mma.fragment<16x16xf16, a, m16n8k16>
    %b = mma.load %s["b"][%c0, %c0] : !async_copy.slot<@ab, read> -> !mma.fragment<32x16xf16, b, m16n8k16>
    %d = mma.mma %a, %b, %sum : (!mma.fragment<16x16xf16, a, m16n8k16>, !mma.fragment<32x16xf16, b, m16n8k16>) -> !mma.fragment<16x32xf32, c, m16n8k16>
    async_copy.release @ab, %s
    mma.store_global %d -> %x[%c0, %c0] : !mma.fragment<16x32xf32, c, m16n8k16> -> !tile.view<16x32xf32>
  }
}
