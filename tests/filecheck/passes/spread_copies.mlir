// RUN: emmy-opt %s -p 'spread-copies{batches=2}' | filecheck %s
// RUN: emmy-opt %s -p 'spread-copies{batches=2},spread-copies' | filecheck %s
// RUN: emmy-opt %s -p 'spread-copies{batches=1}' | filecheck %s --check-prefix NONE
// RUN: emmy-opt %s -p spread-copies | filecheck %s --check-prefix OWN
// RUN: not emmy-opt %s -p 'spread-copies{batches=0}' 2>&1 | filecheck %s --check-prefix ZERO
// ZERO: spread-copies makes 1 or more batches of a group, got 0

builtin.module {
  // Of two products behind the group, a batch comes before each; the address of the second one with it. What others read,
  // the loads and the wait stay where they are.
  // CHECK-LABEL: ptx.kernel @group
  // CHECK-NOT:     emmy.batches
  // CHECK:         %both = ptx.add_s32
  // CHECK-NEXT:    %a0 = ptx.ldmatrix_x1
  // CHECK-NEXT:    ptx.comment "cp.async into @ab.a"
  // CHECK-NEXT:    %early = ptx.add_s32
  // CHECK-NEXT:    ptx.cp_async_cg_16 %early
  // CHECK-NEXT:    {{.*}} = ptx.mma
  // CHECK-NEXT:    %a1 = ptx.ldmatrix_x1
  // CHECK-NEXT:    %late = ptx.add_s32
  // CHECK-NEXT:    ptx.cp_async_cg_16 %late
  // CHECK-NEXT:    ptx.cp_async_commit_group
  // CHECK-NEXT:    {{.*}} = ptx.mma
  // CHECK-NEXT:    ptx.cp_async_wait_group 0
  // NONE-LABEL:  ptx.kernel @group
  // NONE:          ptx.cp_async_cg_16 %late
  // NONE-NEXT:     ptx.cp_async_commit_group
  // NONE-NEXT:     %a0 = ptx.ldmatrix
  // OWN-LABEL:   ptx.kernel @group
  // OWN:           %a1 = ptx.ldmatrix
  // OWN-NEXT:      %late
  // OWN-NEXT:      ptx.cp_async_cg_16 %late
  // OWN-NEXT:      ptx.cp_async_commit_group
  ptx.kernel @group(%from: i64) threads 32 min_ctas 1 shared_bytes 4096 params ["pointer 0"] attributes {emmy.batches = 2 : i64} {
    %zero = ptx.constant 0.0 : f32
    %step = ptx.constant 512 : i32
    %base = ptx.shared_base
    %both = ptx.add_s32 %base, %step
    ptx.comment "cp.async into @ab.a"
    %early = ptx.add_s32 %both, %step
    ptx.cp_async_cg_16 %early, %from, 0, 0
    %late = ptx.add_s32 %early, %both
    ptx.cp_async_cg_16 %late, %from, 0, 0
    ptx.cp_async_commit_group
    %a0 = ptx.ldmatrix_x1 %both, 0
    %s0, %s1, %s2, %s3 = ptx.mma_m16n8k8_f32_f16 %a0, %a0, %a0, %zero, %zero, %zero, %zero
    %a1 = ptx.ldmatrix_x1 %both, 16
    %t0, %t1, %t2, %t3 = ptx.mma_m16n8k8_f32_f16 %a1, %a1, %a1, %s0, %s1, %s2, %s3
    ptx.cp_async_wait_group 0
  }

  // Nothing goes behind a wait or a barrier, and narrower copies stay: their addresses would be too many registers.
  // CHECK-LABEL: ptx.kernel @stay
  // CHECK:         ptx.cp_async_cg_16
  // CHECK-NEXT:    ptx.cp_async_commit_group
  // CHECK-NEXT:    ptx.bar_sync 0
  // CHECK:         ptx.cp_async_ca_8
  // CHECK-NEXT:    ptx.cp_async_commit_group
  // CHECK-NEXT:    {{.*}} = ptx.mma
  ptx.kernel @stay(%from: i64) threads 32 min_ctas 1 shared_bytes 4096 params ["pointer 0"] {
    %zero = ptx.constant 0.0 : f32
    %base = ptx.shared_base
    ptx.cp_async_cg_16 %base, %from, 0, 0
    ptx.cp_async_commit_group
    ptx.bar_sync 0
    %a0 = ptx.ldmatrix_x1 %base, 0
    %s0, %s1, %s2, %s3 = ptx.mma_m16n8k8_f32_f16 %a0, %a0, %a0, %zero, %zero, %zero, %zero
    ptx.cp_async_ca_8 %base, %from, 0, 0
    ptx.cp_async_commit_group
    %t0, %t1, %t2, %t3 = ptx.mma_m16n8k8_f32_f16 %a0, %a0, %a0, %s0, %s1, %s2, %s3
  }
}
