// RUN: emmy-opt %s -p 'lower-transport{kind=cp_async}' | filecheck %s
// RUN: emmy-opt %s -p 'lower-transport{target=sm_89}' | filecheck %s
// RUN: emmy-opt %s -p 'lower-transport{kind=plain}' | filecheck %s --check-prefix PLAIN

// One barrier a k-tile, the copies right behind it; results leave behind two: one since @out may lie over @ab, one since
// warps store what other warps wrote.
// CHECK-LABEL: tile.kernel @gemm
// CHECK:       async_copy.role "main" warps 2 {
// CHECK-NEXT:    %f0 = async_copy.begin_fill @ab
// CHECK-NEXT:    arith.constant 16
// CHECK-NEXT:    %s, %{{.*}} = async_copy.slot @ab[%f0]
// CHECK-NEXT:    async_copy.cp_async %a[%m, %c0] -> %s["a"] bytes 16
// CHECK-NEXT:    async_copy.cp_async %b[%n, %c0] -> %s["b"] bytes 16
// CHECK-NEXT:    async_copy.commit_group
// CHECK-NEXT:    async_copy.slot @ab
// CHECK-NEXT:    async_copy.cp_async
// CHECK-NEXT:    async_copy.cp_async
// CHECK-NEXT:    async_copy.commit_group
// CHECK:         scf.for %k
// CHECK-NEXT:      async_copy.wait_group 1
// CHECK-NEXT:      async_copy.barrier
// CHECK-NEXT:      %[[s:.*]], %next = async_copy.slot @ab[%cur] : !async_copy.cursor<@ab, read>
// CHECK-NEXT:      arith.constant 32
// CHECK-NEXT:      %[[i:.*]] = arith.addi %k
// CHECK-NEXT:      %[[more:.*]] = arith.cmpi ult, %[[i]], %depth
// CHECK-NEXT:      %[[fill:.*]], %[[f:.*]] = async_copy.slot @ab[%{{.*}}] if %[[more]] : !async_copy.cursor<@ab, fill>
// CHECK-NEXT:      scf.if %[[more]] {
// CHECK-NEXT:        async_copy.cp_async %a[%m, %[[i]]] -> %[[fill]]["a"] bytes 16
// CHECK-NEXT:        async_copy.cp_async %b[%n, %[[i]]] -> %[[fill]]["b"] bytes 16
// CHECK-NEXT:      }
// CHECK-NEXT:      async_copy.commit_group
// CHECK-NEXT:      mma.load %[[s]]["a"]
// CHECK-NEXT:      mma.load %[[s]]["b"]
// CHECK-NEXT:      mma.mma
// CHECK-NEXT:      scf.yield %d, %next, %[[f]]
// CHECK-NEXT:    }
// CHECK-NEXT:    mma.convert
// CHECK-NEXT:    async_copy.begin_fill @out
// CHECK-NEXT:    async_copy.barrier
// CHECK-NEXT:    async_copy.slot @out
// CHECK-NEXT:    mma.store
// CHECK-NEXT:    async_copy.barrier
// CHECK-NEXT:    async_copy.plain_store %os["c"] -> %c[%m, %n] bytes 16
// CHECK-NEXT:  }

// Plain copies are complete for their thread at once: the same barriers, no groups.
// PLAIN-LABEL: tile.kernel @gemm
// PLAIN-NOT:   async_copy.wait_group
// PLAIN:       async_copy.plain_copy %a[%m, %c0] -> %s["a"] bytes 16
// PLAIN:       scf.for %k
// PLAIN-NEXT:    async_copy.barrier
// PLAIN-NEXT:    async_copy.slot @ab
// PLAIN:         scf.if
// PLAIN-NEXT:      async_copy.plain_copy
// PLAIN-NEXT:      async_copy.plain_copy
// PLAIN-NEXT:    }
// PLAIN-NEXT:    mma.load

tile.kernel @gemm(%a: !tile.view<64x96xf16>, %b: !tile.view<64x96xf16>, %c: !tile.view<64x64xf16>) {
  async_copy.pipeline @ab stages 3 {a = !tile.tile<32x16xf16>, b = !tile.tile<32x16xf16>}
  async_copy.pipeline @out stages 1 {c = !tile.tile<32x32xf16>} outbound
  %rows = arith.constant 64 : index
  %depth = arith.constant 96 : index
  %c0 = arith.constant 0 : index
  %c16 = arith.constant 16 : index
  %m, %n = tile.grid [%rows by 32, %rows by 32] raster 2
  async_copy.role "main" warps 2 {
    %f0 = async_copy.begin_fill @ab
    %0 = arith.constant 16 : index
    %s, %1 = async_copy.acquire @ab[%f0]
    async_copy.copy %a[%m, %c0] -> %s["a"] : !tile.view<64x96xf16> -> !async_copy.slot<@ab, fill>
    async_copy.copy %b[%n, %c0] -> %s["b"] : !tile.view<64x96xf16> -> !async_copy.slot<@ab, fill>
    async_copy.commit @ab, %s
    %s_1, %2 = async_copy.acquire @ab[%1]
    async_copy.copy %a[%m, %0] -> %s_1["a"] : !tile.view<64x96xf16> -> !async_copy.slot<@ab, fill>
    async_copy.copy %b[%n, %0] -> %s_1["b"] : !tile.view<64x96xf16> -> !async_copy.slot<@ab, fill>
    async_copy.commit @ab, %s_1
    %warp = mma.warp 0 of [2]
    %row = arith.muli %warp, %c16 : index
    %zero = mma.fill 0.000000e+00 : f32 : !mma.fragment<16x32xf32, c, m16n8k16>
    %r0 = async_copy.begin_read @ab
    %acc, %r, %3 = scf.for %k = %c0 to %depth step %c16 iter_args(%sum = %zero, %cur = %r0, %4 = %2) -> (!mma.fragment<16x32xf32, c, m16n8k16>, !async_copy.cursor<@ab, read>, !async_copy.cursor<@ab, fill>) {
      %s_2, %next = async_copy.wait @ab[%cur]
      %5 = arith.constant 32 : index
      %6 = arith.addi %k, %5 : index
      %7 = arith.cmpi ult, %6, %depth : index
      %s_3, %8 = async_copy.acquire @ab[%4] if %7
      scf.if %7 {
        async_copy.copy %a[%m, %6] -> %s_3["a"] : !tile.view<64x96xf16> -> !async_copy.slot<@ab, fill>
        async_copy.copy %b[%n, %6] -> %s_3["b"] : !tile.view<64x96xf16> -> !async_copy.slot<@ab, fill>
      }
      async_copy.commit @ab, %s_3 if %7
      %fa = mma.load %s_2["a"] [%row, %c0] : !async_copy.slot<@ab, read> -> !mma.fragment<16x16xf16, a, m16n8k16>
      %fb = mma.load %s_2["b"] [%c0, %c0] : !async_copy.slot<@ab, read> -> !mma.fragment<32x16xf16, b, m16n8k16>
      %d = mma.mma %fa, %fb, %sum : (!mma.fragment<16x16xf16, a, m16n8k16>, !mma.fragment<32x16xf16, b, m16n8k16>) -> !mma.fragment<16x32xf32, c, m16n8k16>
      async_copy.release @ab, %s_2
      scf.yield %d, %next, %8 : !mma.fragment<16x32xf32, c, m16n8k16>, !async_copy.cursor<@ab, read>, !async_copy.cursor<@ab, fill>
    }
    async_copy.drain @ab
    %half = mma.convert %acc : !mma.fragment<16x32xf32, c, m16n8k16> to !mma.fragment<16x32xf16, c, m16n8k16>
    %o0 = async_copy.begin_fill @out
    %os, %on = async_copy.acquire @out[%o0]
    mma.store %half -> %os["c"] [%row, %c0] : !mma.fragment<16x32xf16, c, m16n8k16> -> !async_copy.slot<@out, fill>
    async_copy.store %os["c"] -> %c[%m, %n] : !async_copy.slot<@out, fill> -> !tile.view<64x64xf16>
    async_copy.commit @out, %os
    async_copy.drain @out
  }
}

// The width of a copy is what alignment proves: 60 columns are 120 bytes (8), 30 are 60 (4), 33 are 66 (2: no cp.async is that
// narrow), a parameter stride proves nothing, an offset of 4 elements 8 bytes.
// CHECK-LABEL: tile.kernel @widths
// CHECK:         async_copy.cp_async %a[%z, %z] -> %s["a"] bytes 8
// CHECK-NEXT:    async_copy.cp_async %b[%z, %z] -> %s["b"] bytes 4
// CHECK-NEXT:    async_copy.plain_copy %c[%z, %z] -> %s["c"] bytes 2
// CHECK-NEXT:    async_copy.plain_copy %d[%z, %z] -> %s["d"] bytes 2
// CHECK-NEXT:    async_copy.cp_async %e[%z, %four] -> %s["e"] bytes 8
// CHECK-NEXT:    async_copy.commit_group
// CHECK-NEXT:    async_copy.wait_group 0
// CHECK-NEXT:    async_copy.barrier
// CHECK-NEXT:    async_copy.slot @k
// CHECK-NEXT:  }
tile.kernel @widths(%a: !tile.view<?x60xf16>, %b: !tile.view<?x30xf16>, %c: !tile.view<?x33xf16>, %d: !tile.view<?x64xf16, strides [?, 1]>, %e: !tile.view<?x64xf16>) {
  async_copy.pipeline @k stages 1 {a = !tile.tile<8x64xf16>, b = !tile.tile<8x64xf16>, c = !tile.tile<8x64xf16>, d = !tile.tile<8x64xf16>, e = !tile.tile<8x64xf16>}
  %z = arith.constant 0 : index
  %four = arith.constant 4 : index
  async_copy.role "main" warps 1 {
    %f0 = async_copy.begin_fill @k
    %r0 = async_copy.begin_read @k
    %s, %f1 = async_copy.acquire @k[%f0]
    async_copy.copy %a[%z, %z] -> %s["a"] : !tile.view<?x60xf16> -> !async_copy.slot<@k, fill>
    async_copy.copy %b[%z, %z] -> %s["b"] : !tile.view<?x30xf16> -> !async_copy.slot<@k, fill>
    async_copy.copy %c[%z, %z] -> %s["c"] : !tile.view<?x33xf16> -> !async_copy.slot<@k, fill>
    async_copy.copy %d[%z, %z] -> %s["d"] : !tile.view<?x64xf16, strides [?, 1]> -> !async_copy.slot<@k, fill>
    async_copy.copy %e[%z, %four] -> %s["e"] : !tile.view<?x64xf16> -> !async_copy.slot<@k, fill>
    async_copy.commit @k, %s
    %t, %r1 = async_copy.wait @k[%r0]
    async_copy.release @k, %t
    async_copy.drain @k
  }
}
