// RUN: emmy-opt %s -p 'place-roles{mode=unified},lower-transport{kind=tma},allocate-shared' | filecheck %s --check-prefix UNIFIED
// RUN: emmy-opt %s -p 'place-roles{mode=specialized},lower-transport{kind=tma},allocate-shared' | filecheck %s --check-prefix TMA
// RUN: emmy-opt %s -p 'place-roles{mode=specialized},lower-transport{kind=cp_async},allocate-shared' | filecheck %s --check-prefix CP
// RUN: emmy-opt %s -p 'place-roles{mode=specialized},lower-transport{kind=plain}' | filecheck %s --check-prefix PLAIN

// One mbarrier a slot, one barrier a k-tile: the one before the issue, which frees the slot that the last iteration read.
// @out lies over @ab, the mbarriers behind both.
// UNIFIED:      async_copy.pipeline @ab stages 3 {{.*}} {full_count = 1 : i64, tx_bytes = 2048 : i64, base = 0 : i64, slot_bytes = 2048 : i64, {{.*}}, full_base = 6144 : i64}
// UNIFIED-NEXT: async_copy.pipeline @out {{.*}} {base = 0 : i64
// UNIFIED:      async_copy.role "main" warps 2 {
// UNIFIED:        async_copy.slot @ab
// UNIFIED-NEXT:   async_copy.elect {
// UNIFIED-NEXT:     async_copy.expect_tx @ab, %s bytes 2048
// UNIFIED-NEXT:     async_copy.tma_load %a[%m, %c0] -> %s["a"]
// UNIFIED-NEXT:     async_copy.tma_load %b[%n, %c0] -> %s["b"]
// UNIFIED-NEXT:   }
// UNIFIED:        scf.for %k
// UNIFIED-NEXT:     async_copy.wait_full @ab[%cur]
// UNIFIED-NEXT:     %[[s:.*]], %next = async_copy.slot @ab[%cur]
// UNIFIED:          async_copy.barrier
// UNIFIED-NEXT:     async_copy.slot @ab[{{.*}}] if %[[more:.*]] : !async_copy.cursor<@ab, fill>
// UNIFIED-NEXT:     scf.if %[[more]] {
// UNIFIED-NEXT:       async_copy.elect {
// UNIFIED-NEXT:         async_copy.expect_tx
// UNIFIED-NEXT:         async_copy.tma_load
// UNIFIED-NEXT:         async_copy.tma_load
// UNIFIED-NEXT:       }
// UNIFIED-NEXT:     }
// UNIFIED-NEXT:     mma.load %[[s]]["a"]
// UNIFIED-NEXT:     mma.load %[[s]]["b"]
// UNIFIED-NEXT:     mma.mma
// UNIFIED-NEXT:     scf.yield
// UNIFIED-NEXT:   }
// UNIFIED:        async_copy.barrier
// UNIFIED-NEXT:   async_copy.slot @out
// UNIFIED-NEXT:   mma.store
// UNIFIED-NEXT:   async_copy.fence_proxy_async
// UNIFIED-NEXT:   async_copy.barrier
// UNIFIED-NEXT:   async_copy.elect {
// UNIFIED-NEXT:     async_copy.tma_store %os["c"] -> %c[%m, %n]
// UNIFIED-NEXT:     async_copy.bulk_commit
// UNIFIED-NEXT:     async_copy.bulk_wait 0
// UNIFIED-NEXT:   }

// A release is fence, warp_sync, arrive; the producer's body is one warp's.
// TMA:      async_copy.pipeline @ab {{.*}} {empty_count = 2 : i64, full_count = 1 : i64, tx_bytes = 2048 : i64, base = 0 : i64, {{.*}}, full_base = 6144 : i64, empty_base = 6168 : i64}
// TMA-NEXT: async_copy.pipeline @out {{.*}} {base = 0 : i64
// TMA:      async_copy.role "consumer" warps 2 {
// TMA:          async_copy.wait_full @ab[%cur]
// TMA-NEXT:     async_copy.slot @ab[%cur]
// TMA-NEXT:     mma.load
// TMA-NEXT:     mma.load
// TMA-NEXT:     async_copy.fence_proxy_async
// TMA-NEXT:     async_copy.warp_sync
// TMA-NEXT:     async_copy.arrive_empty @ab, %s
// TMA-NEXT:     mma.mma
// TMA:      async_copy.role "producer" warps 4 active 1 {
// TMA:          async_copy.wait_empty @ab
// TMA-NEXT:     async_copy.slot @ab
// TMA-NEXT:     async_copy.elect {
// TMA-NEXT:       async_copy.expect_tx
// TMA-NEXT:       async_copy.tma_load
// TMA-NEXT:       async_copy.tma_load
// TMA-NEXT:     }
// TMA-NEXT:     scf.yield

// Copies by threads: all warps of the producer copy, each thread arrives; no fence where no other proxy is.
// CP:      async_copy.pipeline @ab {{.*}} {empty_count = 2 : i64, full_count = 128 : i64, base = 0 : i64
// CP:          async_copy.wait_full @ab[%cur]
// CP:          mma.load
// CP-NEXT:     mma.load
// CP-NEXT:     async_copy.warp_sync
// CP-NEXT:     async_copy.arrive_empty @ab, %s
// CP:        async_copy.plain_store
// CP:      async_copy.role "producer" warps 4 {
// CP:          async_copy.wait_empty @ab
// CP-NEXT:     async_copy.slot @ab
// CP-NEXT:     async_copy.cp_async %a
// CP-NEXT:     async_copy.cp_async %b
// CP-NEXT:     async_copy.arrive_full_noinc @ab
// CP-NEXT:     scf.yield

// PLAIN:   async_copy.pipeline @ab {{.*}} {empty_count = 2 : i64, full_count = 4 : i64}
// PLAIN:       async_copy.plain_copy %a
// PLAIN-NEXT:  async_copy.plain_copy %b
// PLAIN-NEXT:  async_copy.warp_sync
// PLAIN-NEXT:  async_copy.arrive_full @ab
// PLAIN-NEXT:  scf.yield

tile.kernel @gemm(%a: !tile.view<64x96xf16>, %b: !tile.view<64x96xf16>, %c: !tile.view<64x64xf16>) {
  async_copy.pipeline @ab stages 3 {a = !tile.tile<32x16xf16>, b = !tile.tile<32x16xf16>}
  async_copy.pipeline @out stages 1 {c = !tile.tile<32x32xf16>} outbound
  %rows = arith.constant 64 : index
  %depth = arith.constant 96 : index
  %c0 = arith.constant 0 : index
  %c16 = arith.constant 16 : index
  %m, %n = tile.grid [%rows by 32, %rows by 32] raster 2
  async_copy.producer {
    %f0 = async_copy.begin_fill @ab
    %f = scf.for %k = %c0 to %depth step %c16 iter_args(%cur = %f0) -> (!async_copy.cursor<@ab, fill>) {
      %s, %next = async_copy.acquire @ab[%cur]
      async_copy.copy %a[%m, %k] -> %s["a"] : !tile.view<64x96xf16> -> !async_copy.slot<@ab, fill>
      async_copy.copy %b[%n, %k] -> %s["b"] : !tile.view<64x96xf16> -> !async_copy.slot<@ab, fill>
      async_copy.commit @ab, %s
      scf.yield %next : !async_copy.cursor<@ab, fill>
    }
    async_copy.drain @ab
  }
  async_copy.consumer {
    %warp = mma.warp 0 of [2]
    %row = arith.muli %warp, %c16 : index
    %zero = mma.fill 0.0 : f32 : !mma.fragment<16x32xf32, c, m16n8k16>
    %r0 = async_copy.begin_read @ab
    %acc, %r = scf.for %k = %c0 to %depth step %c16 iter_args(%sum = %zero, %cur = %r0) -> (!mma.fragment<16x32xf32, c, m16n8k16>, !async_copy.cursor<@ab, read>) {
      %s, %next = async_copy.wait @ab[%cur]
      %fa = mma.load %s["a"][%row, %c0] : !async_copy.slot<@ab, read> -> !mma.fragment<16x16xf16, a, m16n8k16>
      %fb = mma.load %s["b"][%c0, %c0] : !async_copy.slot<@ab, read> -> !mma.fragment<32x16xf16, b, m16n8k16>
      %d = mma.mma %fa, %fb, %sum : (!mma.fragment<16x16xf16, a, m16n8k16>, !mma.fragment<32x16xf16, b, m16n8k16>) -> !mma.fragment<16x32xf32, c, m16n8k16>
      async_copy.release @ab, %s
      scf.yield %d, %next : !mma.fragment<16x32xf32, c, m16n8k16>, !async_copy.cursor<@ab, read>
    }
    async_copy.drain @ab
    %half = mma.convert %acc : !mma.fragment<16x32xf32, c, m16n8k16> to !mma.fragment<16x32xf16, c, m16n8k16>
    %o0 = async_copy.begin_fill @out
    %os, %on = async_copy.acquire @out[%o0]
    mma.store %half -> %os["c"][%row, %c0] : !mma.fragment<16x32xf16, c, m16n8k16> -> !async_copy.slot<@out, fill>
    async_copy.store %os["c"] -> %c[%m, %n] : !async_copy.slot<@out, fill> -> !tile.view<64x64xf16>
    async_copy.commit @out, %os
    async_copy.drain @out
  }
}
