// RUN: emmy-opt %s | emmy-opt | filecheck %s
// RUN: emmy-opt %s --print-op-generic | emmy-opt | filecheck %s

// CHECK:      tile.kernel @protocol
tile.kernel @protocol(%a: !tile.view<512x64xf16>, %c: !tile.view<512x128xf16>) {
  // CHECK-NEXT:    async_copy.pipeline @ab stages 3 {a = !tile.tile<128x64xf16>}
  async_copy.pipeline @ab stages 3 {a = !tile.tile<128x64xf16>}
  // CHECK-NEXT:    async_copy.pipeline @out stages 1 {c = !tile.tile<128x128xf16>} outbound {base = 0 : i64, slot_bytes = 32768 : i64, offsets = {c = 0 : i64}, swizzles = {c = 128 : i64}}
  async_copy.pipeline @out stages 1 {c = !tile.tile<128x128xf16>} outbound {base = 0 : i64, slot_bytes = 32768 : i64, offsets = {c = 0 : i64}, swizzles = {c = 128 : i64}}
  %z = arith.constant 0 : index
  %p = arith.constant true
  // CHECK:         async_copy.producer {
  async_copy.producer {
    // CHECK-NEXT:      %f0 = async_copy.begin_fill @ab
    // CHECK-NEXT:      %s0, %f1 = async_copy.acquire @ab[%f0]
    // CHECK-NEXT:      async_copy.copy %a[%z, %z] -> %s0["a"] : !tile.view<512x64xf16> -> !async_copy.slot<@ab, fill>
    %f0 = async_copy.begin_fill @ab
    %s0, %f1 = async_copy.acquire @ab[%f0]
    async_copy.copy %a[%z, %z] -> %s0["a"] : !tile.view<512x64xf16> -> !async_copy.slot<@ab, fill>
    // CHECK-NEXT:      async_copy.copy %a[%z, %z] -> %s0["a"] evict_first : !tile.view<512x64xf16> -> !async_copy.slot<@ab, fill>
    // CHECK-NEXT:      async_copy.commit @ab, %s0
    async_copy.copy %a[%z, %z] -> %s0["a"] evict_first : !tile.view<512x64xf16> -> !async_copy.slot<@ab, fill>
    async_copy.commit @ab, %s0
    // CHECK-NEXT:      %s1, %f2 = async_copy.acquire @ab[%f1] if %p
    // CHECK-NEXT:      async_copy.commit @ab, %s1 if %p joined
    // CHECK-NEXT:      async_copy.drain @ab
    %s1, %f2 = async_copy.acquire @ab[%f1] if %p
    async_copy.commit @ab, %s1 if %p joined
    async_copy.drain @ab
  }
  // CHECK:         async_copy.consumer {
  async_copy.consumer {
    // CHECK-NEXT:      %r0 = async_copy.begin_read @ab
    // CHECK-NEXT:      %t, %r1 = async_copy.wait @ab[%r0]
    // CHECK-NEXT:      async_copy.release @ab, %t
    %r0 = async_copy.begin_read @ab
    %t, %r1 = async_copy.wait @ab[%r0]
    async_copy.release @ab, %t
    async_copy.drain @ab
    %o0 = async_copy.begin_fill @out
    %o, %o1 = async_copy.acquire @out[%o0]
    // CHECK:           async_copy.store %o["c"] -> %c[%z, %z] : !async_copy.slot<@out, fill> -> !tile.view<512x128xf16>
    async_copy.store %o["c"] -> %c[%z, %z] : !async_copy.slot<@out, fill> -> !tile.view<512x128xf16>
    async_copy.commit @out, %o
    async_copy.drain @out
  }
}

// What lower-transport leaves.
// CHECK:      tile.kernel @events
tile.kernel @events(%a: !tile.view<512x64xf16>, %c: !tile.view<512x64xf16>) {
  async_copy.pipeline @ab stages 3 {a = !tile.tile<128x64xf16>}
  %z = arith.constant 0 : index
  %p = arith.constant true
  // CHECK:         async_copy.role "all" warps 8 regs 128 {
  async_copy.role "all" warps 8 regs 128 {
    %f0 = async_copy.begin_fill @ab
    // CHECK:           %s, %f1 = async_copy.slot @ab[%f0] if %p : !async_copy.cursor<@ab, fill>
    // CHECK-NEXT:      async_copy.cp_async %a[%z, %z] -> %s["a"] bytes 16 : !tile.view<512x64xf16> -> !async_copy.slot<@ab, fill>
    // CHECK-NEXT:      async_copy.cp_async %a[%z, %z] -> %s["a"] bytes 8 evict_first : !tile.view<512x64xf16> -> !async_copy.slot<@ab, fill>
    // CHECK-NEXT:      async_copy.elect {
    // CHECK-NEXT:        async_copy.tma_load %a[%z, %z] -> %s["a"] evict_first : !tile.view<512x64xf16> -> !async_copy.slot<@ab, fill>
    // CHECK-NEXT:      }
    // CHECK-NEXT:      async_copy.plain_copy %a[%z, %z] -> %s["a"] bytes 2 : !tile.view<512x64xf16> -> !async_copy.slot<@ab, fill>
    // CHECK-NEXT:      async_copy.plain_store %s["a"] -> %c[%z, %z] bytes 16 : !async_copy.slot<@ab, fill> -> !tile.view<512x64xf16>
    // CHECK-NEXT:      async_copy.commit_group
    // CHECK-NEXT:      async_copy.wait_group 1
    // CHECK-NEXT:      async_copy.barrier
    // CHECK-NEXT:      async_copy.barrier across 2
    %s, %f1 = async_copy.slot @ab[%f0] if %p : !async_copy.cursor<@ab, fill>
    async_copy.cp_async %a[%z, %z] -> %s["a"] bytes 16 : !tile.view<512x64xf16> -> !async_copy.slot<@ab, fill>
    async_copy.cp_async %a[%z, %z] -> %s["a"] bytes 8 evict_first : !tile.view<512x64xf16> -> !async_copy.slot<@ab, fill>
    async_copy.elect {
      async_copy.tma_load %a[%z, %z] -> %s["a"] evict_first : !tile.view<512x64xf16> -> !async_copy.slot<@ab, fill>
    }
    async_copy.plain_copy %a[%z, %z] -> %s["a"] bytes 2 : !tile.view<512x64xf16> -> !async_copy.slot<@ab, fill>
    async_copy.plain_store %s["a"] -> %c[%z, %z] bytes 16 : !async_copy.slot<@ab, fill> -> !tile.view<512x64xf16>
    async_copy.commit_group
    async_copy.wait_group 1
    async_copy.barrier
    async_copy.barrier across 2
  }
}
