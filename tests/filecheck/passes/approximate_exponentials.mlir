// RUN: emmy-opt %s -p 'approximate-exponentials{halves=1}' | filecheck %s
// RUN: emmy-opt %s -p 'approximate-exponentials{polynomial=2 halves=0}' | filecheck %s --check-prefix POLYNOMIAL
// RUN: emmy-opt %s -p approximate-exponentials | filecheck %s --check-prefix NOTED

builtin.module {
  // Both exponentials become one of a pair; their sum takes its halves. The third one is no weight.
  // CHECK-LABEL: ptx.kernel @weights
  // CHECK:         %[[pair:.*]] = ptx.cvt_rn_f16x2_f32 %y, %x
  // CHECK-NEXT:    %[[both:.*]] = ptx.ex2_approx_f16x2 %[[pair]]
  // CHECK-NEXT:    %[[low:.*]], %[[high:.*]] = ptx.unpack_b32 %[[both]]
  // CHECK-NEXT:    %[[p:.*]] = ptx.cvt_f32_f16 %[[low]]
  // CHECK-NEXT:    %[[q:.*]] = ptx.cvt_f32_f16 %[[high]]
  // CHECK-NEXT:    ptx.add_f32 %[[p]], %[[q]]
  // CHECK-NEXT:    ptx.ex2_approx_ftz_f32
  // CHECK-NEXT:    ptx.mma_m16n8k8_f32_f16 %[[both]], %[[both]], %[[both]]

  // Every second weight.
  // POLYNOMIAL-LABEL: ptx.kernel @weights
  // POLYNOMIAL:         %p = ptx.ex2_approx_ftz_f32 %x
  // POLYNOMIAL:         %[[least:.*]] = ptx.max_NaN_f32 %y
  // POLYNOMIAL:         %[[sum:.*]] = ptx.add_f32 %[[least]]
  // POLYNOMIAL-COUNT-3: ptx.fma_rn_f32
  // POLYNOMIAL:         ptx.shl_b32
  // POLYNOMIAL:         ptx.add_s32
  // POLYNOMIAL:         %[[q:.*]] = ptx.mov_b32_f32
  // POLYNOMIAL-NEXT:    ptx.add_f32 %p, %[[q]]
  // POLYNOMIAL-NEXT:    ptx.ex2_approx_ftz_f32

  // NOTED-LABEL: ptx.kernel @weights
  // NOTED-NOT:     emmy.halves
  // NOTED:         ptx.ex2_approx_f16x2
  ptx.kernel @weights() threads 32 min_ctas 1 shared_bytes 0 params [] attributes {emmy.halves = 1 : i64} {
    %zero = ptx.constant 0.0 : f32
    %lane = ptx.tid_x
    %x = ptx.mov_b32_f32 %lane
    %y = ptx.add_f32 %x, %x
    %p = ptx.ex2_approx_ftz_f32 %x
    %q = ptx.ex2_approx_ftz_f32 %y
    %l = ptx.add_f32 %p, %q
    %m = ptx.ex2_approx_ftz_f32 %l
    %w = ptx.cvt_rn_f16x2_f32 %q, %p
    %s0, %s1, %s2, %s3 = ptx.mma_m16n8k8_f32_f16 %w, %w, %w, %m, %zero, %zero, %zero
  }
}
