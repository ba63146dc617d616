// RUN: emmy-opt %s -p 'place-roles{mode=unified sites=eager}' | filecheck %s
// RUN: emmy-opt %s -p 'place-roles' | filecheck %s
// RUN: emmy-opt %s -p 'place-roles{mode=specialized}' | filecheck %s --check-prefix SPECIALIZED

// The halves stay as they are, the consumer's warps first; a slot is released as soon as it has been read.
// SPECIALIZED:      async_copy.role "consumer" warps 2 {
// SPECIALIZED:        scf.for %k
// SPECIALIZED-NEXT:     async_copy.wait @ab
// SPECIALIZED-NEXT:     mma.load
// SPECIALIZED-NEXT:     %fb = mma.load
// SPECIALIZED-NEXT:     async_copy.release @ab
// SPECIALIZED-NEXT:     mma.mma
// SPECIALIZED-NEXT:     scf.yield
// SPECIALIZED:        async_copy.drain @out
// SPECIALIZED:      async_copy.role "producer" warps 4 {
// SPECIALIZED-NEXT:   async_copy.begin_fill @ab
// SPECIALIZED-NEXT:   scf.for
// SPECIALIZED-NEXT:     async_copy.acquire @ab
// SPECIALIZED-NOT:  async_copy.producer

// Stages 3: two tickets ahead, whose copies need no condition (the loop has six iterations). In the loop the next ticket's
// index is the loop's variable plus two steps, and the copies stand right behind the wait.
// CHECK:       async_copy.role "main" warps 2 {
// CHECK-NEXT:    %[[f0:.*]] = async_copy.begin_fill @ab
// CHECK-NEXT:    %[[one:.*]] = arith.constant 16 : index
// CHECK-NEXT:    %[[s0:.*]], %[[f1:.*]] = async_copy.acquire @ab[%[[f0]]]
// CHECK-NEXT:    async_copy.copy %a[%m, %c0] -> %[[s0]]["a"]
// CHECK-NEXT:    async_copy.copy %b[%n, %c0] -> %[[s0]]["b"]
// CHECK-NEXT:    async_copy.commit @ab, %[[s0]]
// CHECK-NEXT:    %[[s1:.*]], %[[f2:.*]] = async_copy.acquire @ab[%[[f1]]]
// CHECK-NEXT:    async_copy.copy %a[%m, %[[one]]] -> %[[s1]]["a"]
// CHECK-NEXT:    async_copy.copy %b[%n, %[[one]]] -> %[[s1]]["b"]
// CHECK-NEXT:    async_copy.commit @ab, %[[s1]]
// CHECK:         %acc, %r, %{{.*}} = scf.for %k = %c0 to %depth step %c16 iter_args(%sum = %zero, %cur = %r0, %[[f:.*]] = %[[f2]])
// CHECK-NEXT:      %[[s:.*]], %next = async_copy.wait @ab[%cur]
// CHECK-NEXT:      %[[two:.*]] = arith.constant 32 : index
// CHECK-NEXT:      %[[i:.*]] = arith.addi %k, %[[two]] : index
// CHECK-NEXT:      %[[more:.*]] = arith.cmpi slt, %[[i]], %depth : index
// CHECK-NEXT:      %[[fill:.*]], %[[g:.*]] = async_copy.acquire @ab[%[[f]]] if %[[more]]
// CHECK-NEXT:      scf.if %[[more]] {
// CHECK-NEXT:        async_copy.copy %a[%m, %[[i]]] -> %[[fill]]["a"]
// CHECK-NEXT:        async_copy.copy %b[%n, %[[i]]] -> %[[fill]]["b"]
// CHECK-NEXT:      }
// CHECK-NEXT:      async_copy.commit @ab, %[[fill]] if %[[more]]
// CHECK-NEXT:      %fa = mma.load %[[s]]["a"]
// CHECK:           async_copy.release @ab, %[[s]]
// CHECK-NEXT:      scf.yield %d, %next, %[[g]]
// CHECK-NEXT:    }
// CHECK-NEXT:    async_copy.drain @ab
// CHECK:         async_copy.acquire @out
// CHECK:         async_copy.drain @out
// CHECK-NEXT:  }
// CHECK-NOT:   async_copy.producer

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
