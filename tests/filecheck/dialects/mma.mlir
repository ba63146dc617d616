// RUN: emmy-opt %s | emmy-opt | filecheck %s
// RUN: emmy-opt %s --print-op-generic | emmy-opt | filecheck %s

// CHECK:      tile.kernel @fragments
tile.kernel @fragments(%c: !tile.view<?x4096xf16>) {
  async_copy.pipeline @ab stages 3 {a = !tile.tile<128x64xf16>, b = !tile.tile<64x256xf16>}
  async_copy.pipeline @out stages 1 {c = !tile.tile<128x256xf16>} outbound
  %z = arith.constant 0 : index
  async_copy.consumer {
    // CHECK:           %wm = mma.warp 0 of [2, 4]
    %wm = mma.warp 0 of [2, 4]
    // CHECK-NEXT:      %zero = mma.fill 0.000000e+00 : f32 : !mma.fragment<64x64xf32, c, m16n8k16>
    %zero = mma.fill 0.0 : f32 : !mma.fragment<64x64xf32, c, m16n8k16>
    %none = mma.fill 0.0 : f16 : !mma.fragment<64x64xf16, c, m16n8k16>
    %r0 = async_copy.begin_read @ab
    %s, %r1 = async_copy.wait @ab[%r0]
    // CHECK:           %fa = mma.load %s["a"] [%wm, %z] : !async_copy.slot<@ab, read> -> !mma.fragment<64x16xf16, a, m16n8k16>
    // CHECK-NEXT:      %fb = mma.load %s["b"] [%z, %wm] transposed : !async_copy.slot<@ab, read> -> !mma.fragment<64x16xf16, b, m16n8k16>
    %fa = mma.load %s["a"][%wm, %z] : !async_copy.slot<@ab, read> -> !mma.fragment<64x16xf16, a, m16n8k16>
    %fb = mma.load %s["b"][%z, %wm] transposed : !async_copy.slot<@ab, read> -> !mma.fragment<64x16xf16, b, m16n8k16>
    // CHECK-NEXT:      %d = mma.mma %fa, %fb, %none accumulate<hybrid, max_k = 64> : (!mma.fragment<64x16xf16, a, m16n8k16>, !mma.fragment<64x16xf16, b, m16n8k16>) -> !mma.fragment<64x64xf16, c, m16n8k16>
    // CHECK-NEXT:      %p = mma.promote %d into %zero : !mma.fragment<64x64xf16, c, m16n8k16> -> !mma.fragment<64x64xf32, c, m16n8k16>
    %d = mma.mma %fa, %fb, %none accumulate<hybrid> : (!mma.fragment<64x16xf16, a, m16n8k16>, !mma.fragment<64x16xf16, b, m16n8k16>) -> !mma.fragment<64x64xf16, c, m16n8k16>
    %p = mma.promote %d into %zero : !mma.fragment<64x64xf16, c, m16n8k16> -> !mma.fragment<64x64xf32, c, m16n8k16>
    async_copy.release @ab, %s
    async_copy.drain @ab
    // CHECK:           %m = mma.reduce max %p : !mma.fragment<64x64xf32, c, m16n8k16> -> !mma.fragment<64x1xf32, c, m16n8k16>
    // CHECK-NEXT:      %q = mma.map sub %p, %m : (!mma.fragment<64x64xf32, c, m16n8k16>, !mma.fragment<64x1xf32, c, m16n8k16>) -> !mma.fragment<64x64xf32, c, m16n8k16>
    // CHECK-NEXT:      %i = mma.coord 1 from %z : !mma.fragment<1x64xi32, c, m16n8k16>
    %m = mma.reduce max %p : !mma.fragment<64x64xf32, c, m16n8k16> -> !mma.fragment<64x1xf32, c, m16n8k16>
    %q = mma.map sub %p, %m : (!mma.fragment<64x64xf32, c, m16n8k16>, !mma.fragment<64x1xf32, c, m16n8k16>) -> !mma.fragment<64x64xf32, c, m16n8k16>
    %i = mma.coord 1 from %z : !mma.fragment<1x64xi32, c, m16n8k16>
    // CHECK-NEXT:      %h = mma.convert %q : !mma.fragment<64x64xf32, c, m16n8k16> to !mma.fragment<64x64xf16, a, m16n8k16>
    // CHECK-NEXT:      %half = mma.convert %q : !mma.fragment<64x64xf32, c, m16n8k16> to !mma.fragment<64x64xf16, c, m16n8k16>
    %h = mma.convert %q : !mma.fragment<64x64xf32, c, m16n8k16> to !mma.fragment<64x64xf16, a, m16n8k16>
    %half = mma.convert %q : !mma.fragment<64x64xf32, c, m16n8k16> to !mma.fragment<64x64xf16, c, m16n8k16>
    // CHECK-NEXT:      %l = mma.slice %half at [0, 0] : !mma.fragment<64x64xf16, c, m16n8k16> -> !mma.fragment<64x32xf16, c, m16n8k16>
    // CHECK-NEXT:      %r = mma.slice %half at [0, 32] : !mma.fragment<64x64xf16, c, m16n8k16> -> !mma.fragment<64x32xf16, c, m16n8k16>
    // CHECK-NEXT:      %j = mma.join %l, %r axis 1 : !mma.fragment<64x32xf16, c, m16n8k16>, !mma.fragment<64x32xf16, c, m16n8k16> -> !mma.fragment<64x64xf16, c, m16n8k16>
    %l = mma.slice %half at [0, 0] : !mma.fragment<64x64xf16, c, m16n8k16> -> !mma.fragment<64x32xf16, c, m16n8k16>
    %r = mma.slice %half at [0, 32] : !mma.fragment<64x64xf16, c, m16n8k16> -> !mma.fragment<64x32xf16, c, m16n8k16>
    %j = mma.join %l, %r axis 1 : !mma.fragment<64x32xf16, c, m16n8k16>, !mma.fragment<64x32xf16, c, m16n8k16> -> !mma.fragment<64x64xf16, c, m16n8k16>
    // CHECK-NEXT:      mma.store_global %j -> %c[%z, %wm] : !mma.fragment<64x64xf16, c, m16n8k16> -> !tile.view<?x4096xf16>
    mma.store_global %j -> %c[%z, %wm] : !mma.fragment<64x64xf16, c, m16n8k16> -> !tile.view<?x4096xf16>
    %o0 = async_copy.begin_fill @out
    %o, %o1 = async_copy.acquire @out[%o0]
    // CHECK:           mma.store %half -> %o["c"] [%z, %z] : !mma.fragment<64x64xf16, c, m16n8k16> -> !async_copy.slot<@out, fill>
    mma.store %half -> %o["c"][%z, %z] : !mma.fragment<64x64xf16, c, m16n8k16> -> !async_copy.slot<@out, fill>
    async_copy.commit @out, %o
    async_copy.drain @out
  }
}
