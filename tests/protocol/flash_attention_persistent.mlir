// Causal flash attention by two persistent CTAs, 64 query rows a tile, 32 a warp: an outer loop over query tiles in both halves,
// Q once a tile, the number of key blocks different for each tile; unmasked blocks left of the diagonal, then masked ones.
// As many queries as keys, multiples of 16.
!qkv = !tile.view<?x32xf16>
!score = !mma.fragment<32x16xf32, c, m16n8k16>
!stat = !mma.fragment<32x1xf32, c, m16n8k16>
!acc = !mma.fragment<32x32xf32, c, m16n8k16>
!kread = !async_copy.cursor<@k, read>
!vread = !async_copy.cursor<@v, read>
builtin.module {
  func.func @entry(%q: tensor<?x32xf16>, %k: tensor<?x32xf16>, %v: tensor<?x32xf16>) -> tensor<?x32xf16> {
    %rows = tile.dim %q, 0 : tensor<?x32xf16>
    %o = tile.alloc[%rows] : tensor<?x32xf16>
    %ctas = arith.constant 2 : index
    tile.launch @flash[%ctas] (%q, %k, %v, %o) : tensor<?x32xf16>, tensor<?x32xf16>, tensor<?x32xf16>, tensor<?x32xf16>
    func.return %o : tensor<?x32xf16>
  }
  tile.kernel @flash(%q: !qkv, %k: !qkv, %v: !qkv, %o: !qkv) {
    async_copy.pipeline @q stages 1 {q = !tile.tile<64x32xf16>}
    async_copy.pipeline @k stages 2 {k = !tile.tile<16x32xf16>}
    async_copy.pipeline @v stages 2 {v = !tile.tile<16x32xf16>}
    async_copy.pipeline @out stages 1 {o = !tile.tile<64x32xf16>} outbound
    %rows = tile.dim %q, 0 : !qkv
    %keys = tile.dim %k, 0 : !qkv
    %c0 = arith.constant 0 : index
    %c16 = arith.constant 16 : index
    %c2 = arith.constant 2 : index
    %c64 = arith.constant 64 : index
    %tiles = arith.ceildivui %rows, %c64 : index
    %cta = tile.cta_id
    async_copy.producer {
      %fq = async_copy.begin_fill @q
      %fk = async_copy.begin_fill @k
      %fv = async_copy.begin_fill @v
      %eq, %ek, %ev = scf.for %t = %cta to %tiles step %c2 iter_args(%tq = %fq, %tk = %fk, %tv = %fv) -> (!async_copy.cursor<@q, fill>, !async_copy.cursor<@k, fill>, !async_copy.cursor<@v, fill>) {
        %m = arith.muli %t, %c64 : index
        %below = arith.addi %m, %c64 : index
        %end = arith.minui %keys, %below : index
        %sq, %nq = async_copy.acquire @q[%tq]
        async_copy.copy %q[%m, %c0] -> %sq["q"] : !qkv -> !async_copy.slot<@q, fill>
        async_copy.commit @q, %sq
        %lk, %lv = scf.for %j = %c0 to %end step %c16 iter_args(%ck = %tk, %cv = %tv) -> (!async_copy.cursor<@k, fill>, !async_copy.cursor<@v, fill>) {
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
        scf.yield %nq, %lk, %lv : !async_copy.cursor<@q, fill>, !async_copy.cursor<@k, fill>, !async_copy.cursor<@v, fill>
      }
    }
    async_copy.consumer {
      %c32 = arith.constant 32 : index
      %warp = mma.warp 0 of [2]
      %row = arith.muli %warp, %c32 : index
      %scale = arith.constant 0.25 : f32
      %hidden = arith.constant -1.0e30 : f32
      %least = arith.constant 1.0e-30 : f32
      %zero_s = mma.fill 0.0 : f32 : !score
      %zero_l = mma.fill 0.0 : f32 : !stat
      %low = mma.fill -1.0e30 : f32 : !stat
      %zero_o = mma.fill 0.0 : f32 : !acc
      %bq = async_copy.begin_read @q
      %bk = async_copy.begin_read @k
      %bv = async_copy.begin_read @v
      %bo = async_copy.begin_fill @out
      %eq, %ek, %ev, %eo = scf.for %t = %cta to %tiles step %c2 iter_args(%tq = %bq, %tk = %bk, %tv = %bv, %to = %bo) -> (!async_copy.cursor<@q, read>, !kread, !vread, !async_copy.cursor<@out, fill>) {
        %m = arith.muli %t, %c64 : index
        %first = arith.addi %m, %row : index
        %below = arith.addi %m, %c64 : index
        %end = arith.minui %keys, %below : index
        %full = arith.minui %m, %keys : index
        %sq, %nq = async_copy.wait @q[%tq]
        %fq = mma.load %sq["q"][%row, %c0] : !async_copy.slot<@q, read> -> !mma.fragment<32x32xf16, a, m16n8k16>
        async_copy.release @q, %sq
        %m1, %l1, %o1, %k1, %v1 = scf.for %j = %c0 to %full step %c16 iter_args(%mi = %low, %li = %zero_l, %oi = %zero_o, %ck = %tk, %cv = %tv) -> (!stat, !stat, !acc, !kread, !vread) {
          %sk, %nk = async_copy.wait @k[%ck]
          %fk = mma.load %sk["k"][%c0, %c0] : !async_copy.slot<@k, read> -> !mma.fragment<16x32xf16, b, m16n8k16>
          %s = mma.mma %fq, %fk, %zero_s : (!mma.fragment<32x32xf16, a, m16n8k16>, !mma.fragment<16x32xf16, b, m16n8k16>) -> !score
          async_copy.release @k, %sk
          %ss = mma.map mul %s, %scale : (!score, f32) -> !score
          %mx = mma.reduce max %ss : !score -> !stat
          %mn = mma.map max %mi, %mx : (!stat, !stat) -> !stat
          %sd = mma.map sub %ss, %mn : (!score, !stat) -> !score
          %p = mma.map exp2 %sd : (!score) -> !score
          %md = mma.map sub %mi, %mn : (!stat, !stat) -> !stat
          %al = mma.map exp2 %md : (!stat) -> !stat
          %ps = mma.reduce sum %p : !score -> !stat
          %ln = mma.map fma %li, %al, %ps : (!stat, !stat, !stat) -> !stat
          %or = mma.map mul %oi, %al : (!acc, !stat) -> !acc
          %pa = mma.convert %p : !score to !mma.fragment<32x16xf16, a, m16n8k16>
          %sv, %nv = async_copy.wait @v[%cv]
          %fv = mma.load %sv["v"][%c0, %c0] transposed : !async_copy.slot<@v, read> -> !mma.fragment<32x16xf16, b, m16n8k16>
          %on = mma.mma %pa, %fv, %or : (!mma.fragment<32x16xf16, a, m16n8k16>, !mma.fragment<32x16xf16, b, m16n8k16>) -> !acc
          async_copy.release @v, %sv
          scf.yield %mn, %ln, %on, %nk, %nv : !stat, !stat, !acc, !kread, !vread
        }
        %m2, %l2, %o2, %k2, %v2 = scf.for %j = %full to %end step %c16 iter_args(%mi = %m1, %li = %l1, %oi = %o1, %ck = %k1, %cv = %v1) -> (!stat, !stat, !acc, !kread, !vread) {
          %sk, %nk = async_copy.wait @k[%ck]
          %fk = mma.load %sk["k"][%c0, %c0] : !async_copy.slot<@k, read> -> !mma.fragment<16x32xf16, b, m16n8k16>
          %s = mma.mma %fq, %fk, %zero_s : (!mma.fragment<32x32xf16, a, m16n8k16>, !mma.fragment<16x32xf16, b, m16n8k16>) -> !score
          async_copy.release @k, %sk
          %key = mma.coord 1 from %j : !mma.fragment<32x16xi32, c, m16n8k16>
          %query = mma.coord 0 from %first : !mma.fragment<32x16xi32, c, m16n8k16>
          %seen = mma.map ge %query, %key : (!mma.fragment<32x16xi32, c, m16n8k16>, !mma.fragment<32x16xi32, c, m16n8k16>) -> !mma.fragment<32x16xi1, c, m16n8k16>
          %st = mma.map mul %s, %scale : (!score, f32) -> !score
          %ss = mma.map select %seen, %st, %hidden : (!mma.fragment<32x16xi1, c, m16n8k16>, !score, f32) -> !score
          %mx = mma.reduce max %ss : !score -> !stat
          %mn = mma.map max %mi, %mx : (!stat, !stat) -> !stat
          %sd = mma.map sub %ss, %mn : (!score, !stat) -> !score
          %p = mma.map exp2 %sd : (!score) -> !score
          %md = mma.map sub %mi, %mn : (!stat, !stat) -> !stat
          %al = mma.map exp2 %md : (!stat) -> !stat
          %ps = mma.reduce sum %p : !score -> !stat
          %ln = mma.map fma %li, %al, %ps : (!stat, !stat, !stat) -> !stat
          %or = mma.map mul %oi, %al : (!acc, !stat) -> !acc
          %pa = mma.convert %p : !score to !mma.fragment<32x16xf16, a, m16n8k16>
          %sv, %nv = async_copy.wait @v[%cv]
          %fv = mma.load %sv["v"][%c0, %c0] transposed : !async_copy.slot<@v, read> -> !mma.fragment<32x16xf16, b, m16n8k16>
          %on = mma.mma %pa, %fv, %or : (!mma.fragment<32x16xf16, a, m16n8k16>, !mma.fragment<32x16xf16, b, m16n8k16>) -> !acc
          async_copy.release @v, %sv
          scf.yield %mn, %ln, %on, %nk, %nv : !stat, !stat, !acc, !kread, !vread
        }
        async_copy.drain @q
        async_copy.drain @k
        async_copy.drain @v
        %some = mma.map max %l2, %least : (!stat, f32) -> !stat
        %inv = mma.map rcp %some : (!stat) -> !stat
        %of = mma.map mul %o2, %inv : (!acc, !stat) -> !acc
        %oh = mma.convert %of : !acc to !mma.fragment<32x32xf16, c, m16n8k16>
        %so, %no = async_copy.acquire @out[%to]
        mma.store %oh -> %so["o"][%row, %c0] : !mma.fragment<32x32xf16, c, m16n8k16> -> !async_copy.slot<@out, fill>
        async_copy.store %so["o"] -> %o[%m, %c0] : !async_copy.slot<@out, fill> -> !qkv
        async_copy.commit @out, %so
        scf.yield %nq, %k2, %v2, %no : !async_copy.cursor<@q, read>, !kread, !vread, !async_copy.cursor<@out, fill>
      }
      async_copy.drain @out
    }
  }
}
