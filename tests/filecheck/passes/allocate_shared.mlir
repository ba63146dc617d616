// RUN: emmy-opt %s -p 'allocate-shared{target=sm_90a}' | filecheck %s
// RUN: not emmy-opt %s -p 'allocate-shared{target=sm_89}' 2>&1 | filecheck %s --check-prefix SMALL

// Canonical halves: @out begins after @ab is drained and takes its bytes; @bias is in flight beside @ab.
// CHECK-LABEL: tile.kernel @canonical
// CHECK-SAME:  emmy.shared_bytes = 148480 : i64
// CHECK-NEXT:  async_copy.pipeline @ab stages 3 {a = !tile.tile<128x64xf16>, b = !tile.tile<256x64xf16>} {base = 0 : i64, slot_bytes = 49152 : i64, offsets = {a = 0 : i64, b = 16384 : i64}, swizzles = {a = 128 : i64, b = 128 : i64}}
// CHECK-NEXT:  async_copy.pipeline @bias stages 1 {bias = !tile.tile<256xf32>} {base = 147456 : i64, slot_bytes = 1024 : i64, offsets = {bias = 0 : i64}, swizzles = {bias = 0 : i64}}
// CHECK-NEXT:  async_copy.pipeline @out stages 1 {c = !tile.tile<128x256xf32>} outbound {base = 0 : i64, slot_bytes = 131072 : i64, offsets = {c = 0 : i64}, swizzles = {c = 128 : i64}}
// SMALL: allocate_shared.mlir:11:1: error: kernel @canonical needs 148480 bytes of shared memory (@ab has 3 x 49152 bytes, @bias has 1 x 1024 bytes, @out has 1 x 131072 bytes), and a CTA of sm_89 has 101376: take fewer stages or a smaller block
tile.kernel @canonical(%a: !tile.view<128x64xf16>, %b: !tile.view<256x64xf16>, %v: !tile.view<256xf32>, %c: !tile.view<128x256xf32>) {
  async_copy.pipeline @ab stages 3 {a = !tile.tile<128x64xf16>, b = !tile.tile<256x64xf16>}
  async_copy.pipeline @bias stages 1 {bias = !tile.tile<256xf32>}
  async_copy.pipeline @out stages 1 {c = !tile.tile<128x256xf32>} outbound
  %z = arith.constant 0 : index
  async_copy.producer {
    %f0 = async_copy.begin_fill @ab
    %s, %f1 = async_copy.acquire @ab[%f0]
    async_copy.copy %a[%z, %z] -> %s["a"] : !tile.view<128x64xf16> -> !async_copy.slot<@ab, fill>
    async_copy.copy %b[%z, %z] -> %s["b"] : !tile.view<256x64xf16> -> !async_copy.slot<@ab, fill>
    async_copy.commit @ab, %s
    %g0 = async_copy.begin_fill @bias
    %t, %g1 = async_copy.acquire @bias[%g0]
    async_copy.copy %v[%z] -> %t["bias"] : !tile.view<256xf32> -> !async_copy.slot<@bias, fill>
    async_copy.commit @bias, %t
    async_copy.drain @ab
    async_copy.drain @bias
  }
  async_copy.consumer {
    %o0 = async_copy.begin_fill @out
    %r0 = async_copy.begin_read @ab
    %s, %r1 = async_copy.wait @ab[%r0]
    async_copy.release @ab, %s
    async_copy.drain @ab
    %q0 = async_copy.begin_read @bias
    %t, %q1 = async_copy.wait @bias[%q0]
    async_copy.release @bias, %t
    async_copy.drain @bias
    %o, %o1 = async_copy.acquire @out[%o0]
    async_copy.store %o["c"] -> %c[%z, %z] : !async_copy.slot<@out, fill> -> !tile.view<128x256xf32>
    async_copy.commit @out, %o
    async_copy.drain @out
  }
}

// Placed, and an @out that begins before @ab is drained: beside it. A panel of 32 columns has a 64-byte swizzle, one of 16
// a 32-byte swizzle, 59 columns are padded to 64.
// CHECK-LABEL: tile.kernel @placed
// CHECK-SAME:  emmy.shared_bytes = 22528 : i64
// CHECK-NEXT:  @ab stages 2 {{.*}} {base = 0 : i64, slot_bytes = 9216 : i64, offsets = {a = 0 : i64, b = 4096 : i64, d = 5120 : i64}, swizzles = {a = 64 : i64, b = 32 : i64, d = 128 : i64}}
// CHECK-NEXT:  @out {{.*}} {base = 18432 : i64, slot_bytes = 4096 : i64,
tile.kernel @placed(%a: !tile.view<64x32xf16>, %c: !tile.view<64x32xf16>) {
  async_copy.pipeline @ab stages 2 {a = !tile.tile<64x32xf16>, b = !tile.tile<32x16xf16>, d = !tile.tile<32x59xf16>}
  async_copy.pipeline @out stages 1 {c = !tile.tile<64x32xf16>} outbound
  %z = arith.constant 0 : index
  async_copy.role "all" warps 4 {
    %f0 = async_copy.begin_fill @ab
    %s, %f1 = async_copy.acquire @ab[%f0]
    async_copy.commit @ab, %s
    %o0 = async_copy.begin_fill @out
    %o, %o1 = async_copy.acquire @out[%o0]
    async_copy.store %o["c"] -> %c[%z, %z] : !async_copy.slot<@out, fill> -> !tile.view<64x32xf16>
    async_copy.commit @out, %o
    %r0 = async_copy.begin_read @ab
    %t, %r1 = async_copy.wait @ab[%r0]
    async_copy.release @ab, %t
    async_copy.drain @ab
    async_copy.drain @out
  }
}

// Events: the bytes of @ab are free at the first barrier after its last use. @one begins before it, @two after it.
// CHECK-LABEL: tile.kernel @lowered
// CHECK-SAME:  emmy.shared_bytes = 12288 : i64
// CHECK-NEXT:  @ab {{.*}} {base = 0 : i64, slot_bytes = 8192 : i64,
// CHECK-NEXT:  @one {{.*}} {base = 8192 : i64, slot_bytes = 4096 : i64,
// CHECK-NEXT:  @two {{.*}} {base = 0 : i64, slot_bytes = 4096 : i64,
tile.kernel @lowered(%a: !tile.view<64x64xf16>, %c: !tile.view<64x32xf16>) {
  async_copy.pipeline @ab stages 1 {a = !tile.tile<64x64xf16>}
  async_copy.pipeline @one stages 1 {c = !tile.tile<64x32xf16>} outbound
  async_copy.pipeline @two stages 1 {c = !tile.tile<64x32xf16>} outbound
  %z = arith.constant 0 : index
  async_copy.role "all" warps 4 {
    %f0 = async_copy.begin_fill @ab
    %s, %f1 = async_copy.slot @ab[%f0] : !async_copy.cursor<@ab, fill>
    async_copy.cp_async %a[%z, %z] -> %s["a"] bytes 16 : !tile.view<64x64xf16> -> !async_copy.slot<@ab, fill>
    async_copy.commit_group
    async_copy.wait_group 0
    %o0 = async_copy.begin_fill @one
    %o, %o1 = async_copy.slot @one[%o0] : !async_copy.cursor<@one, fill>
    async_copy.plain_store %o["c"] -> %c[%z, %z] bytes 16 : !async_copy.slot<@one, fill> -> !tile.view<64x32xf16>
    async_copy.barrier
    %p0 = async_copy.begin_fill @two
    %p, %p1 = async_copy.slot @two[%p0] : !async_copy.cursor<@two, fill>
    async_copy.plain_store %p["c"] -> %c[%z, %z] bytes 16 : !async_copy.slot<@two, fill> -> !tile.view<64x32xf16>
    async_copy.barrier
  }
}
