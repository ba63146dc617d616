// RUN: emmy-opt %s -p 'overlap-products{force=true},verify-pipelines' | filecheck %s
// RUN: emmy-opt %s -p 'overlap-products{force=true},issue-products,verify-pipelines' | filecheck %s --check-prefix ISSUED
// RUN: emmy-opt %s -p overlap-products | filecheck %s --check-prefix AS_IT_IS

!sums = !mma.fragment<16x16xf32, c, m16n8k16>
!half = !mma.fragment<16x16xf16, a, m16n8k16>
!right = !mma.fragment<16x16xf16, b, m16n8k16>
!stat = !mma.fragment<16x1xf32, c, m16n8k16>
!k_at = !async_copy.cursor<@k, read>
!v_at = !async_copy.cursor<@v, read>

// AS_IT_IS-LABEL:     tile.kernel @chain
// AS_IT_IS-COUNT-1:   scf.for
// AS_IT_IS:           scf.for
// AS_IT_IS-NOT:       scf.for
// CHECK-LABEL: tile.kernel @chain
tile.kernel @chain(%q: !tile.view<64x16xf16>, %k: !tile.view<?x16xf16>, %v: !tile.view<?x16xf16>, %y: !tile.view<64x16xf32>) schedule <block = [64, 16, 16], warps = [4, 1], atom = wgmma, roles = specialized> {
  async_copy.pipeline @q stages 1 {q = !tile.tile<64x16xf16>}
  async_copy.pipeline @k stages 2 {k = !tile.tile<16x16xf16>}
  async_copy.pipeline @v stages 1 {v = !tile.tile<16x16xf16>}
  %c0 = arith.constant 0 : index
  %c16 = arith.constant 16 : index
  %n = tile.dim %k, 0 : !tile.view<?x16xf16>
  async_copy.producer {
    %qf = async_copy.begin_fill @q
    %qs, %qn = async_copy.acquire @q[%qf]
    async_copy.copy %q[%c0, %c0] -> %qs["q"] : !tile.view<64x16xf16> -> !async_copy.slot<@q, fill>
    async_copy.commit @q, %qs
    %kf = async_copy.begin_fill @k
    %vf = async_copy.begin_fill @v
    %ke, %ve = scf.for %j = %c0 to %n step %c16 iter_args(%kc = %kf, %vc = %vf) -> (!async_copy.cursor<@k, fill>, !async_copy.cursor<@v, fill>) {
      %ks, %kn = async_copy.acquire @k[%kc]
      async_copy.copy %k[%j, %c0] -> %ks["k"] : !tile.view<?x16xf16> -> !async_copy.slot<@k, fill>
      async_copy.commit @k, %ks
      %vs, %vn = async_copy.acquire @v[%vc]
      async_copy.copy %v[%j, %c0] -> %vs["v"] : !tile.view<?x16xf16> -> !async_copy.slot<@v, fill>
      async_copy.commit @v, %vs
      scf.yield %kn, %vn : !async_copy.cursor<@k, fill>, !async_copy.cursor<@v, fill>
    }
    async_copy.drain @q
    async_copy.drain @k
    async_copy.drain @v
  }
  // CHECK: async_copy.consumer
  // ISSUED: async_copy.consumer
  async_copy.consumer {
    %w = mma.warp 0 of [4, 1]
    %row = arith.muli %w, %c16 : index
    %qr = async_copy.begin_read @q
    %kr = async_copy.begin_read @k
    %vr = async_copy.begin_read @v
    %slot, %qe = async_copy.wait @q[%qr]
    %zero = mma.fill 0.0 : f32 : !sums
    // The first iteration, without the late product.
    // CHECK:      [[END:%[0-9a-z_]+]] = arith.minsi {{.*}}, %n : index
    // CHECK-NEXT: [[F:%[0-9a-z_]+]], [[FK:%[0-9a-z_]+]], [[FV:%[0-9a-z_]+]], [[FP:%[0-9a-z_]+]] = scf.for {{%[0-9a-z_]+}} = %c0 to [[END]] step %c16 iter_args({{.*}} = %zero, {{.*}} = %kr, {{.*}} = %vr, %pending = {{%[0-9a-z_]+}})
    // CHECK-NOT:  wait @v
    // CHECK:      scf.yield %r{{.*}}, {{%[0-9a-z_]+}}, %vc{{[_0-9]*}}, %p{{[_0-9]*}} :
    // The rest: behind the first product, before what is computed of it.
    // CHECK:      scf.for {{%[0-9a-z_]+}} = [[END]] to %n step %c16 iter_args([[O:%[0-9a-z_]+]] = [[F]], {{.*}} = [[FK]], {{.*}} = [[FV]], [[P:%[0-9a-z_]+]] = [[FP]])
    // CHECK:      [[S:%[0-9a-z_]+]] = mma.mma {{.*}}, %zero
    // CHECK-NEXT: [[VS:%[0-9a-z_]+]], {{%[0-9a-z_]+}} = async_copy.wait @v
    // CHECK-NEXT: [[A:%[0-9a-z_]+]] = mma.slice [[P]]
    // CHECK-NEXT: mma.load [[VS]]
    // CHECK-NEXT: [[N:%[0-9a-z_]+]] = mma.mma [[A]], {{%[0-9a-z_]+}}, [[O]]
    // CHECK-NEXT: async_copy.release @k
    // CHECK:      async_copy.release @v, [[VS]]
    // CHECK-NEXT: mma.map mul [[N]]
    // The last late product, if there was an iteration.
    // CHECK:      scf.for {{%[0-9a-z_]+}} = %c0 to {{%[0-9a-z_]+}} step %c16
    // CHECK-NOT:  wait @k
    // CHECK:      mma.mma
    // CHECK-NEXT: async_copy.release @v
    // CHECK-NEXT: scf.yield

    // ISSUED:     scf.for
    // ISSUED:     scf.for
    // ISSUED:      mma.fence
    // ISSUED-NEXT: [[S:%[0-9a-z_]+]] = mma.issue
    // ISSUED-NEXT: mma.commit
    // ISSUED:      async_copy.wait @v
    // ISSUED:      mma.fence
    // ISSUED-NEXT: [[N:%[0-9a-z_]+]] = mma.issue
    // ISSUED-NEXT: mma.commit
    // ISSUED-NEXT: mma.wait 1 [[S]]
    // ISSUED-NEXT: async_copy.release @k
    // ISSUED:      mma.reduce
    // ISSUED:      mma.wait 0 [[N]]
    // ISSUED-NEXT: async_copy.release @v
    %oz, %ke, %ve = scf.for %j = %c0 to %n step %c16 iter_args(%o = %zero, %kc = %kr, %vc = %vr) -> (!sums, !k_at, !v_at) {
      %ks, %kn = async_copy.wait @k[%kc]
      %a = mma.load %slot["q"] [%row, %c0] : !async_copy.slot<@q, read> -> !half
      %b = mma.load %ks["k"] [%c0, %c0] : !async_copy.slot<@k, read> -> !right
      %s = mma.mma %a, %b, %zero : (!half, !right) -> !sums
      async_copy.release @k, %ks
      %m = mma.reduce max %s : !sums -> !stat
      %r = mma.map mul %o, %m : (!sums, !stat) -> !sums
      %vs, %vn = async_copy.wait @v[%vc]
      %p = mma.convert %s : !sums to !half
      %pa = mma.slice %p at [0, 0] : !half -> !half
      %vb = mma.load %vs["v"] [%c0, %c0] transposed : !async_copy.slot<@v, read> -> !right
      %d = mma.mma %pa, %vb, %r : (!half, !right) -> !sums
      async_copy.release @v, %vs
      scf.yield %d, %kn, %vn : !sums, !k_at, !v_at
    }
    async_copy.release @q, %slot
    mma.store_global %oz -> %y[%row, %c0] : !sums -> !tile.view<64x16xf32>
  }
}
