// C = A * B^T: one ring for both operands, results through an outbound ring. 32 x 32 tiles in steps of 16, two warps.
!ab = !tile.view<?x96xf16>
!c = !tile.view<?x?xf16>
!acc = !mma.fragment<16x32xf32, c, m16n8k16>
builtin.module {
  func.func @entry(%a: tensor<?x96xf16>, %b: tensor<?x96xf16>) -> tensor<?x?xf16> {
    %rows = tile.dim %a, 0 : tensor<?x96xf16>
    %columns = tile.dim %b, 0 : tensor<?x96xf16>
    %c = tile.alloc[%rows, %columns] : tensor<?x?xf16>
    %c32 = arith.constant 32 : index
    %i = arith.ceildivui %rows, %c32 : index
    %j = arith.ceildivui %columns, %c32 : index
    %ctas = arith.muli %i, %j : index
    tile.launch @gemm[%ctas] (%a, %b, %c) : tensor<?x96xf16>, tensor<?x96xf16>, tensor<?x?xf16>
    func.return %c : tensor<?x?xf16>
  }
  tile.kernel @gemm(%a: !ab, %b: !ab, %c: !c) {
    async_copy.pipeline @ab stages 3 {a = !tile.tile<32x16xf16>, b = !tile.tile<32x16xf16>}
    async_copy.pipeline @out stages 1 {c = !tile.tile<32x32xf16>} outbound
    %rows = tile.dim %a, 0 : !ab
    %columns = tile.dim %b, 0 : !ab
    %depth = tile.dim %a, 1 : !ab
    %c0 = arith.constant 0 : index
    %c16 = arith.constant 16 : index
    %m, %n = tile.grid [%rows by 32, %columns by 32] raster 2
    async_copy.producer {
      %f0 = async_copy.begin_fill @ab
      %f = scf.for %k = %c0 to %depth step %c16 iter_args(%cur = %f0) -> (!async_copy.cursor<@ab, fill>) {
        %s, %next = async_copy.acquire @ab[%cur]
        async_copy.copy %a[%m, %k] -> %s["a"] : !ab -> !async_copy.slot<@ab, fill>
        async_copy.copy %b[%n, %k] -> %s["b"] : !ab -> !async_copy.slot<@ab, fill>
        async_copy.commit @ab, %s
        scf.yield %next : !async_copy.cursor<@ab, fill>
      }
      async_copy.drain @ab
    }
    async_copy.consumer {
      %warp = mma.warp 0 of [2]
      %row = arith.muli %warp, %c16 : index
      %zero = mma.fill 0.0 : f32 : !acc
      %r0 = async_copy.begin_read @ab
      %acc, %r = scf.for %k = %c0 to %depth step %c16 iter_args(%sum = %zero, %cur = %r0) -> (!acc, !async_copy.cursor<@ab, read>) {
        %s, %next = async_copy.wait @ab[%cur]
        %fa = mma.load %s["a"][%row, %c0] : !async_copy.slot<@ab, read> -> !mma.fragment<16x16xf16, a, m16n8k16>
        %fb = mma.load %s["b"][%c0, %c0] : !async_copy.slot<@ab, read> -> !mma.fragment<32x16xf16, b, m16n8k16>
        %d = mma.mma %fa, %fb, %sum : (!mma.fragment<16x16xf16, a, m16n8k16>, !mma.fragment<32x16xf16, b, m16n8k16>) -> !acc
        async_copy.release @ab, %s
        scf.yield %d, %next : !acc, !async_copy.cursor<@ab, read>
      }
      async_copy.drain @ab
      %half = mma.convert %acc : !acc to !mma.fragment<16x32xf16, c, m16n8k16>
      %o0 = async_copy.begin_fill @out
      %os, %on = async_copy.acquire @out[%o0]
      mma.store %half -> %os["c"][%row, %c0] : !mma.fragment<16x32xf16, c, m16n8k16> -> !async_copy.slot<@out, fill>
      async_copy.store %os["c"] -> %c[%m, %n] : !async_copy.slot<@out, fill> -> !c
      async_copy.commit @out, %os
      async_copy.drain @out
    }
  }
}
