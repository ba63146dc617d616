// flash_attention.mlir with the second product one block behind the first (P*V(j-1) between Q*K(j) and its softmax): the first
// block is peeled off the consumer's loop and the last product follows it, the producer is unchanged. Keys: 16, 32, 48, ...
!qkv = !tile.view<?x32xf16>
!score = !mma.fragment<16x16xf32, c, m16n8k16>
!stat = !mma.fragment<16x1xf32, c, m16n8k16>
!acc = !mma.fragment<16x32xf32, c, m16n8k16>
!kread = !async_copy.cursor<@k, read>
!vread = !async_copy.cursor<@v, read>
builtin.module {
  func.func @entry(%q: tensor<?x32xf16>, %k: tensor<?x32xf16>, %v: tensor<?x32xf16>) -> tensor<?x32xf16> {
    %rows = tile.dim %q, 0 : tensor<?x32xf16>
    %o = tile.alloc[%rows] : tensor<?x32xf16>
    %c32 = arith.constant 32 : index
    %ctas = arith.ceildivui %rows, %c32 : index
    tile.launch @flash[%ctas] (%q, %k, %v, %o) : tensor<?x32xf16>, tensor<?x32xf16>, tensor<?x32xf16>, tensor<?x32xf16>
    func.return %o : tensor<?x32xf16>
  }
  tile.kernel @flash(%q: !qkv, %k: !qkv, %v: !qkv, %o: !qkv) {
    async_copy.pipeline @q stages 1 {q = !tile.tile<32x32xf16>}
    async_copy.pipeline @k stages 2 {k = !tile.tile<16x32xf16>}
    async_copy.pipeline @v stages 2 {v = !tile.tile<16x32xf16>}
    async_copy.pipeline @out stages 1 {o = !tile.tile<32x32xf16>} outbound
    %rows = tile.dim %q, 0 : !qkv
    %keys = tile.dim %k, 0 : !qkv
    %c0 = arith.constant 0 : index
    %c16 = arith.constant 16 : index
    %m = tile.grid [%rows by 32] raster 1
    async_copy.producer {
      %fq = async_copy.begin_fill @q
      %fk = async_copy.begin_fill @k
      %fv = async_copy.begin_fill @v
      %sq, %nq = async_copy.acquire @q[%fq]
      async_copy.copy %q[%m, %c0] -> %sq["q"] : !qkv -> !async_copy.slot<@q, fill>
      async_copy.commit @q, %sq
      %ek, %ev = scf.for %j = %c0 to %keys step %c16 iter_args(%ck = %fk, %cv = %fv) -> (!async_copy.cursor<@k, fill>, !async_copy.cursor<@v, fill>) {
        %sk, %nk = async_copy.acquire @k[%ck]
        async_copy.copy %k[%j, %c0] -> %sk["k"] : !qkv -> !async_copy.slot<@k, fill>
        async_copy.commit @k, %sk
        %sv, %nv = async_copy.acquire @v[%cv]
        async_copy.copy %v[%j, %c0] -> %sv["v"] : !qkv -> !async_copy.slot<@v, fill>
        async_copy.commit @v, %sv
        scf.yield %nk, %nv : !async_copy.cursor<@k, fill>, !async_copy.cursor<@v, fill>
      }
      async_copy.drain @q
      async_copy.drain @k
      async_copy.drain @v
    }
    async_copy.consumer {
      %warp = mma.warp 0 of [2]
      %row = arith.muli %warp, %c16 : index
      %scale = arith.constant 0.25 : f32
      %least = arith.constant 1.0e-30 : f32
      %zero_s = mma.fill 0.0 : f32 : !score
      %zero_o = mma.fill 0.0 : f32 : !acc
      %bq = async_copy.begin_read @q
      %bk = async_copy.begin_read @k
      %bv = async_copy.begin_read @v
      %sq, %nq = async_copy.wait @q[%bq]
      %fq = mma.load %sq["q"][%row, %c0] : !async_copy.slot<@q, read> -> !mma.fragment<16x32xf16, a, m16n8k16>
      async_copy.release @q, %sq
      %sk0, %k0 = async_copy.wait @k[%bk]
      %fk0 = mma.load %sk0["k"][%c0, %c0] : !async_copy.slot<@k, read> -> !mma.fragment<16x32xf16, b, m16n8k16>
      %s0 = mma.mma %fq, %fk0, %zero_s : (!mma.fragment<16x32xf16, a, m16n8k16>, !mma.fragment<16x32xf16, b, m16n8k16>) -> !score
      async_copy.release @k, %sk0
      %ss0 = mma.map mul %s0, %scale : (!score, f32) -> !score
      %m0 = mma.reduce max %ss0 : !score -> !stat
      %sd0 = mma.map sub %ss0, %m0 : (!score, !stat) -> !score
      %p0 = mma.map exp2 %sd0 : (!score) -> !score
      %l0 = mma.reduce sum %p0 : !score -> !stat
      %pa0 = mma.convert %p0 : !score to !mma.fragment<16x16xf16, a, m16n8k16>
      %ml, %l2, %ol, %pl, %kl, %vl = scf.for %j = %c16 to %keys step %c16 iter_args(%mi = %m0, %li = %l0, %oi = %zero_o, %pi = %pa0, %ck = %k0, %cv = %bv) -> (!stat, !stat, !acc, !mma.fragment<16x16xf16, a, m16n8k16>, !kread, !vread) {
        %sk, %nk = async_copy.wait @k[%ck]
        %fk = mma.load %sk["k"][%c0, %c0] : !async_copy.slot<@k, read> -> !mma.fragment<16x32xf16, b, m16n8k16>
        %s = mma.mma %fq, %fk, %zero_s : (!mma.fragment<16x32xf16, a, m16n8k16>, !mma.fragment<16x32xf16, b, m16n8k16>) -> !score
        async_copy.release @k, %sk
        %sv, %nv = async_copy.wait @v[%cv]
        %fv = mma.load %sv["v"][%c0, %c0] transposed : !async_copy.slot<@v, read> -> !mma.fragment<32x16xf16, b, m16n8k16>
        %op = mma.mma %pi, %fv, %oi : (!mma.fragment<16x16xf16, a, m16n8k16>, !mma.fragment<32x16xf16, b, m16n8k16>) -> !acc
        async_copy.release @v, %sv
        %ss = mma.map mul %s, %scale : (!score, f32) -> !score
        %mx = mma.reduce max %ss : !score -> !stat
        %mn = mma.map max %mi, %mx : (!stat, !stat) -> !stat
        %sd = mma.map sub %ss, %mn : (!score, !stat) -> !score
        %p = mma.map exp2 %sd : (!score) -> !score
        %md = mma.map sub %mi, %mn : (!stat, !stat) -> !stat
        %al = mma.map exp2 %md : (!stat) -> !stat
        %ps = mma.reduce sum %p : !score -> !stat
        %ln = mma.map fma %li, %al, %ps : (!stat, !stat, !stat) -> !stat
        %on = mma.map mul %op, %al : (!acc, !stat) -> !acc
        %pa = mma.convert %p : !score to !mma.fragment<16x16xf16, a, m16n8k16>
        scf.yield %mn, %ln, %on, %pa, %nk, %nv : !stat, !stat, !acc, !mma.fragment<16x16xf16, a, m16n8k16>, !kread, !vread
      }
      %svl, %v2 = async_copy.wait @v[%vl]
      %fvl = mma.load %svl["v"][%c0, %c0] transposed : !async_copy.slot<@v, read> -> !mma.fragment<32x16xf16, b, m16n8k16>
      %o2 = mma.mma %pl, %fvl, %ol : (!mma.fragment<16x16xf16, a, m16n8k16>, !mma.fragment<32x16xf16, b, m16n8k16>) -> !acc
      async_copy.release @v, %svl
      async_copy.drain @q
      async_copy.drain @k
      async_copy.drain @v
      %some = mma.map max %l2, %least : (!stat, f32) -> !stat
      %inv = mma.map rcp %some : (!stat) -> !stat
      %of = mma.map mul %o2, %inv : (!acc, !stat) -> !acc
      %oh = mma.convert %of : !acc to !mma.fragment<16x32xf16, c, m16n8k16>
      %bo = async_copy.begin_fill @out
      %so, %no = async_copy.acquire @out[%bo]
      mma.store %oh -> %so["o"][%row, %c0] : !mma.fragment<16x32xf16, c, m16n8k16> -> !async_copy.slot<@out, fill>
      async_copy.store %so["o"] -> %o[%m, %c0] : !async_copy.slot<@out, fill> -> !qkv
      async_copy.commit @out, %so
      async_copy.drain @out
    }
  }
}
