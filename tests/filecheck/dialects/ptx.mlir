// RUN: emmy-opt %s | emmy-opt | filecheck %s
// RUN: emmy-opt %s --print-op-generic | emmy-opt | filecheck %s
// RUN: emmy-opt %s -t ptx --target sm_80 | filecheck %s --check-prefix TEXT

// TEXT:      .version 7.4
// TEXT-NEXT: .target sm_80
// TEXT:      .visible .entry kernel(
// TEXT-NEXT:   .param .u64 kernel_0,
// TEXT-NEXT:   .param .u32 kernel_1
// TEXT-NEXT: )
// TEXT-NEXT: .maxntid 64, 1, 1

// CHECK:      ptx.kernel @kernel(%p: i64, %n: i32) threads 64 min_ctas 1 shared_bytes 4096 params ["pointer 0", "dim 0 1"] {
ptx.kernel @kernel(%p: i64, %n: i32) threads 64 min_ctas 1 shared_bytes 4096 params ["pointer 0", "dim 0 1"] {
  // CHECK-NEXT:    ptx.comment "addresses"
  // CHECK-NEXT:    %c1 = ptx.constant 1 : i32
  // CHECK-NEXT:    %f0 = ptx.constant 0.000000e+00 : f32
  ptx.comment "addresses"
  %c1 = ptx.constant 1 : i32
  %f0 = ptx.constant 0.0 : f32
  %tid = ptx.tid_x
  // CHECK:         %sum = ptx.add_s32 %tid, %c1
  // CHECK-NEXT:    %in = ptx.setp_lt_s32 %sum, %n
  // TEXT:        // addresses
  // TEXT:        add.s32 [[SUM:%r[0-9]+]], {{%r[0-9]+}}, 1;
  // TEXT-NEXT:   setp.lt.s32 [[IN:%p[0-9]+]], [[SUM]], {{%r[0-9]+}};
  %sum = ptx.add_s32 %tid, %c1
  %in = ptx.setp_lt_s32 %sum, %n
  // CHECK-NEXT:    %x = ptx.ld_global_f32 %p, 8 if %in else %f0
  // TEXT:        @[[IN]] ld.global.f32 {{%f[0-9]+}}, [{{%rd[0-9]+}}+8];
  %x = ptx.ld_global_f32 %p, 8 if %in else %f0
  // CHECK-NEXT:    %r0, %r1, %r2, %r3 = ptx.ldmatrix_x4 %sum, 1024
  // TEXT:        ldmatrix.sync.aligned.m8n8.x4.shared.b16 {[[A:.*]]}, {{\[}}[[SUM]]+1024];
  %r0, %r1, %r2, %r3 = ptx.ldmatrix_x4 %sum, 1024
  // CHECK-NEXT:    ptx.cp_async_cg_16 %sum, %p, 4096, 32 if %in
  // CHECK-NEXT:    %policy = ptx.createpolicy_evict_first
  // CHECK-NEXT:    ptx.cp_async_cg_16_cache_hint %sum, %p, %policy, 4096, 32 if %in
  // CHECK-NEXT:    ptx.cp_async_ca_8_zfill_cache_hint %sum, %p, %n, %policy, 4096, 32
  // CHECK-NEXT:    ptx.cp_async_commit_group
  // CHECK-NEXT:    ptx.cp_async_wait_group 3
  // CHECK-NEXT:    ptx.bar_sync 0
  // TEXT:        createpolicy.fractional.L2::evict_first.b64 [[POLICY:%rd[0-9]+]];
  // TEXT-NEXT:   @[[IN]] cp.async.cg.shared.global.L2::cache_hint.L2::128B {{\[}}[[SUM]]+4096], [{{%rd[0-9]+}}+32], 16, [[POLICY]];
  // TEXT-NEXT:   cp.async.ca.shared.global.L2::cache_hint.L2::128B {{\[}}[[SUM]]+4096], [{{%rd[0-9]+}}+32], 8, {{%r[0-9]+}}, [[POLICY]];
  // TEXT-NEXT:   cp.async.commit_group;
  // TEXT-NEXT:   cp.async.wait_group 3;
  // TEXT-NEXT:   bar.sync 0;
  ptx.cp_async_cg_16 %sum, %p, 4096, 32 if %in
  %policy = ptx.createpolicy_evict_first
  ptx.cp_async_cg_16_cache_hint %sum, %p, %policy, 4096, 32 if %in
  ptx.cp_async_ca_8_zfill_cache_hint %sum, %p, %n, %policy, 4096, 32
  ptx.cp_async_commit_group
  ptx.cp_async_wait_group 3
  ptx.bar_sync 0
  // CHECK-NEXT:    %d0, %d1, %d2, %d3 = ptx.mma_m16n8k16_f32_f16 %r0, %r1, %r2, %r3, %r0, %r1, %x, %x, %x, %x
  // TEXT:        mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{.*}}{[[A]]}
  %d0, %d1, %d2, %d3 = ptx.mma_m16n8k16_f32_f16 %r0, %r1, %r2, %r3, %r0, %r1, %x, %x, %x, %x
  // CHECK-NEXT:    %last = scf.for %i = %c1 to %n step %c1 iter_args(%s = %d0) -> (f32) : i32 {
  // TEXT:      [[LOOP:LOOP_[0-9]+]]:
  // TEXT-NEXT:   add.f32
  // TEXT:        bra.uni [[LOOP]];
  %last = scf.for %i = %c1 to %n step %c1 iter_args(%s = %d0) -> (f32) : i32 {
    %t = ptx.add_f32 %s, %d1
    scf.yield %t : f32
  }
  // CHECK:         ptx.st_global_f32 %p, %last, 0 if %in
  // TEXT:        @[[IN]] st.global.f32 [{{%rd[0-9]+}}+0], {{%f[0-9]+}};
  ptx.st_global_f32 %p, %last, 0 if %in
}
