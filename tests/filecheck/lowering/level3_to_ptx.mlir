// RUN: emmy-opt %s -p 'lower-to-ptx{target=sm_90a}' | filecheck %s
// RUN: emmy-opt %s -p 'lower-to-ptx{target=sm_80}' | filecheck %s --check-prefix AMPERE

// One warp, one 16 x 16 product for each of the k-tiles in a ring of two slots of 1024 bytes.
tile.kernel @k(%a: !tile.view<16x64xf16>, %b: !tile.view<?x64xf16>, %c: !tile.view<16x16xf16>) attributes {emmy.shared_bytes = 2560 : i64} {
  async_copy.pipeline @ab stages 2 {a = !tile.tile<16x16xf16>, b = !tile.tile<16x16xf16>} {base = 0 : i64, slot_bytes = 1024 : i64, offsets = {a = 0 : i64, b = 512 : i64}, swizzles = {a = 32 : i64, b = 32 : i64}}
  async_copy.pipeline @out stages 1 {c = !tile.tile<16x16xf16>} outbound {base = 2048 : i64, slot_bytes = 512 : i64, offsets = {c = 0 : i64}, swizzles = {c = 32 : i64}}
  %c0 = arith.constant 0 : index
  %c16 = arith.constant 16 : index
  %c64 = arith.constant 64 : index
  async_copy.role "main" warps 1 {
    // Parameters: addresses, and the one size that is not known. Thread and lane addresses come first.
    // CHECK:      ptx.kernel @k(%a_pointer: i64, %b_pointer: i64, %b_dim: i32, %c_pointer: i64) threads 32 min_ctas 1 shared_bytes 2560 params ["pointer 0", "pointer 1", "dim 1 0", "pointer 2"] {
    // CHECK:      %tid = ptx.tid_x
    // CHECK-NEXT: [[M31:%[0-9]+]] = ptx.constant 31 : i32
    // CHECK-NEXT: %lane = ptx.and_b32 %tid, [[M31]]
    %f = async_copy.begin_fill @ab
    %r = async_copy.begin_read @ab

    // The first slot is at a known place; a has all its rows, b perhaps not: zeros where it has none.
    // CHECK:      ptx.comment "cp.async into @ab.a"
    // CHECK:      [[A:%[0-9]+]] = ptx.mad_wide_s32
    // CHECK:      [[SMEM:%[0-9]+]] = ptx.shared_base
    // CHECK:      [[TO:%[0-9]+]] = ptx.add_s32 [[SMEM]],
    // CHECK-NEXT: ptx.cp_async_cg_16 [[TO]], {{%[0-9]+}}, 0, 0
    // CHECK:      ptx.comment "cp.async into @ab.b"
    // CHECK:      [[LEFT:%[0-9]+]] = ptx.sub_s32 %b_dim, {{%[0-9]+}}
    // CHECK:      [[IN:%[0-9]+]] = ptx.setp_gt_s32 [[LEFT]], {{%[0-9]+}}
    // CHECK:      [[SIZE:%[0-9]+]] = ptx.selp_b32 {{%[0-9]+}}, {{%[0-9]+}}, [[IN]]
    // CHECK:      ptx.cp_async_cg_16_zfill [[TO]], {{%[0-9]+}}, [[SIZE]], 512, 0
    // CHECK:      ptx.cp_async_commit_group
    %s0, %f1 = async_copy.slot @ab[%f] : !async_copy.cursor<@ab, fill>
    async_copy.cp_async %a[%c0, %c0] -> %s0["a"] bytes 16 : !tile.view<16x64xf16> -> !async_copy.slot<@ab, fill>
    async_copy.cp_async %b[%c0, %c0] -> %s0["b"] bytes 16 : !tile.view<?x64xf16> -> !async_copy.slot<@ab, fill>
    async_copy.commit_group
    %zero = mma.fill 0.0 : f32 : !mma.fragment<16x16xf32, c, m16n8k16>

    // A fragment is its registers, a cursor the byte offset of a slot.
    // CHECK:      [[SUMS:%[0-9]+]], {{.*}} = scf.for [[K:%[0-9]+]] = {{.*}} iter_args({{.*}}) -> (f32, f32, f32, f32, f32, f32, f32, f32, i32, i32) : i32 {
    %sum, %f2, %r1 = scf.for %k = %c0 to %c64 step %c16 iter_args(%d = %zero, %fc = %f1, %rc = %r) -> (!mma.fragment<16x16xf32, c, m16n8k16>, !async_copy.cursor<@ab, fill>, !async_copy.cursor<@ab, read>) {
      // CHECK-NEXT: ptx.cp_async_wait_group 0
      // CHECK-NEXT: ptx.bar_sync 0
      async_copy.wait_group 0
      async_copy.barrier

      // The next slot: one further on, or the first again.
      // CHECK-NEXT: [[UP:%[0-9]+]] = ptx.add_s32 [[READ:%[0-9]+]], {{%[0-9]+}}
      // CHECK-NEXT: [[LAST:%[0-9]+]] = ptx.setp_eq_s32 [[UP]], {{%[0-9]+}}
      // CHECK-NEXT: ptx.selp_b32 {{%[0-9]+}}, [[UP]], [[LAST]]
      %s, %rn = async_copy.slot @ab[%rc] : !async_copy.cursor<@ab, read>
      %next = arith.addi %k, %c16 : index
      %more = arith.cmpi ult, %next, %c64 : index
      %t, %fn = async_copy.slot @ab[%fc] if %more : !async_copy.cursor<@ab, fill>

      // An if of copies becomes a predicate; known offsets are immediates (16 columns are 32 bytes).
      // CHECK:      [[MORE:%[0-9]+]] = ptx.setp_lt_u32
      // CHECK-NOT:  scf.if
      // CHECK:      ptx.mad_wide_s32 [[K]], {{%[0-9]+}}, {{%[0-9]+}}
      // CHECK:      ptx.cp_async_cg_16 {{%[0-9]+}}, {{%[0-9]+}}, 0, 32 if [[MORE]]
      // CHECK:      ptx.cp_async_cg_16_zfill {{%[0-9]+}}, {{%[0-9]+}}, [[SIZE]], 512, 32 if [[MORE]]
      scf.if %more {
        async_copy.cp_async %a[%c0, %next] -> %t["a"] bytes 16 : !tile.view<16x64xf16> -> !async_copy.slot<@ab, fill>
        async_copy.cp_async %b[%c0, %next] -> %t["b"] bytes 16 : !tile.view<?x64xf16> -> !async_copy.slot<@ab, fill>
      }
      async_copy.commit_group

      // CHECK:      [[AT:%[0-9]+]] = ptx.add_s32 {{%[0-9]+}}, [[READ]]
      // CHECK-NEXT: [[A0:%[0-9]+]], [[A1:%[0-9]+]], [[A2:%[0-9]+]], [[A3:%[0-9]+]] = ptx.ldmatrix_x4 [[AT]], 0
      // CHECK:      [[B0:%[0-9]+]], [[B1:%[0-9]+]], [[B2:%[0-9]+]], [[B3:%[0-9]+]] = ptx.ldmatrix_x4 {{%[0-9]+}}, 512
      // CHECK-NEXT: ptx.mma_m16n8k16_f32_f16 [[A0]], [[A1]], [[A2]], [[A3]], [[B0]], [[B1]],
      // CHECK-NEXT: ptx.mma_m16n8k16_f32_f16 [[A0]], [[A1]], [[A2]], [[A3]], [[B2]], [[B3]],
      // CHECK-NEXT: scf.yield
      %fa = mma.load %s["a"][%c0, %c0] : !async_copy.slot<@ab, read> -> !mma.fragment<16x16xf16, a, m16n8k16>
      %fb = mma.load %s["b"][%c0, %c0] : !async_copy.slot<@ab, read> -> !mma.fragment<16x16xf16, b, m16n8k16>
      %e = mma.mma %fa, %fb, %d : (!mma.fragment<16x16xf16, a, m16n8k16>, !mma.fragment<16x16xf16, b, m16n8k16>) -> !mma.fragment<16x16xf32, c, m16n8k16>
      scf.yield %e, %fn, %rn : !mma.fragment<16x16xf32, c, m16n8k16>, !async_copy.cursor<@ab, fill>, !async_copy.cursor<@ab, read>
    }

    // The result leaves by stmatrix where the target has it, and in rows of 16 bytes.
    // CHECK:        ptx.cvt_rn_f16x2_f32
    // CHECK:        ptx.stmatrix_x4
    // CHECK-NEXT:   ptx.bar_sync 0
    // CHECK:        [[R0:%[0-9]+]], [[R1:%[0-9]+]], [[R2:%[0-9]+]], [[R3:%[0-9]+]] = ptx.ld_shared_v4_b32 {{%[0-9]+}}, 2048
    // CHECK:        ptx.st_global_v4_b32 {{%[0-9]+}}, [[R0]], [[R1]], [[R2]], [[R3]], 0
    // AMPERE-NOT:   stmatrix
    // AMPERE:       ptx.st_shared_b32
    %h = mma.convert %sum : !mma.fragment<16x16xf32, c, m16n8k16> to !mma.fragment<16x16xf16, c, m16n8k16>
    %o = async_copy.begin_fill @out
    %os, %on = async_copy.slot @out[%o] : !async_copy.cursor<@out, fill>
    mma.store %h -> %os["c"][%c0, %c0] : !mma.fragment<16x16xf16, c, m16n8k16> -> !async_copy.slot<@out, fill>
    async_copy.barrier
    async_copy.plain_store %os["c"] -> %c[%c0, %c0] bytes 16 : !async_copy.slot<@out, fill> -> !tile.view<16x16xf16>
  }
}
