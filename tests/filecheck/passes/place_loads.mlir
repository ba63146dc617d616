// RUN: emmy-opt %s -p 'place-loads{ahead=1}' | filecheck %s
// RUN: emmy-opt %s -p 'place-loads{ahead=1},place-loads{ahead=1}' | filecheck %s
// RUN: emmy-opt %s -p place-loads | filecheck %s
// RUN: emmy-opt %s -p 'place-loads{ahead=2}' | filecheck %s --check-prefix TWO
// RUN: emmy-opt %s -p 'place-loads{ahead=0}' | filecheck %s --check-prefix NONE

builtin.module {
  // What the third product takes is loaded before the second one; the slot is given back behind that. What the first product
  // takes stays, and so does what comes behind the wait.
  // CHECK-LABEL: ptx.kernel @together
  // CHECK-NOT:     emmy.ahead
  // CHECK:         %a = ptx.ldmatrix_x1 %base, 0
  // CHECK-NEXT:    %{{.*}} = ptx.mma_m16n8k8_f32_f16 %a,
  // CHECK-NEXT:    %b = ptx.ldmatrix_x1 %base, 512
  // CHECK-NEXT:    ptx.bar_warp_sync
  // CHECK-NEXT:    %{{.*}} = ptx.mma_m16n8k8_f32_f16 %a,
  // CHECK-NEXT:    %{{.*}} = ptx.mma_m16n8k8_f32_f16 %b,
  // CHECK-NEXT:    ptx.bar_sync 0
  // CHECK-NEXT:    %c = ptx.ldmatrix_x1 %base, 1024
  // NONE-LABEL:  ptx.kernel @together
  // NONE-NOT:      emmy.ahead
  // NONE:          %a = ptx.ldmatrix_x1
  // NONE-NEXT:     %b = ptx.ldmatrix_x1
  // NONE-NEXT:     ptx.bar_warp_sync
  ptx.kernel @together() threads 32 min_ctas 1 shared_bytes 4096 params [] attributes {emmy.ahead = 1 : i64} {
    %zero = ptx.constant 0.0 : f32
    %base = ptx.shared_base
    %a = ptx.ldmatrix_x1 %base, 0
    %b = ptx.ldmatrix_x1 %base, 512
    ptx.bar_warp_sync
    %s0, %s1, %s2, %s3 = ptx.mma_m16n8k8_f32_f16 %a, %a, %a, %zero, %zero, %zero, %zero
    %t0, %t1, %t2, %t3 = ptx.mma_m16n8k8_f32_f16 %a, %a, %a, %s0, %s1, %s2, %s3
    %u0, %u1, %u2, %u3 = ptx.mma_m16n8k8_f32_f16 %b, %b, %b, %t0, %t1, %t2, %t3
    ptx.bar_sync 0
    %c = ptx.ldmatrix_x1 %base, 1024
    %v0, %v1, %v2, %v3 = ptx.mma_m16n8k8_f32_f16 %c, %c, %c, %u0, %u1, %u2, %u3
  }

  // A load moves up, too, but not before its address, nor before a release that it came behind.
  // CHECK-LABEL: ptx.kernel @late
  // CHECK-COUNT-2: ptx.mma
  // CHECK-NEXT:    ptx.bar_warp_sync
  // CHECK-NEXT:    %b = ptx.ldmatrix_x1 %base, 512
  // CHECK-NEXT:    %{{.*}} = ptx.mma_m16n8k8_f32_f16 %a,
  // CHECK-NEXT:    %at = ptx.add_s32
  // CHECK-NEXT:    %c = ptx.ldmatrix_x1 %at, 0
  // CHECK-NEXT:    %{{.*}} = ptx.mma_m16n8k8_f32_f16 %b, %c
  // TWO-LABEL:   ptx.kernel @late
  // TWO:           ptx.bar_warp_sync
  // TWO-NEXT:      %b = ptx.ldmatrix_x1 %base, 512
  ptx.kernel @late() threads 32 min_ctas 1 shared_bytes 4096 params [] attributes {emmy.ahead = 1 : i64} {
    %zero = ptx.constant 0.0 : f32
    %base = ptx.shared_base
    %a = ptx.ldmatrix_x1 %base, 0
    %s0, %s1, %s2, %s3 = ptx.mma_m16n8k8_f32_f16 %a, %a, %a, %zero, %zero, %zero, %zero
    %t0, %t1, %t2, %t3 = ptx.mma_m16n8k8_f32_f16 %a, %a, %a, %s0, %s1, %s2, %s3
    ptx.bar_warp_sync
    %u0, %u1, %u2, %u3 = ptx.mma_m16n8k8_f32_f16 %a, %a, %a, %t0, %t1, %t2, %t3
    %b = ptx.ldmatrix_x1 %base, 512
    %at = ptx.add_s32 %base, %base
    %c = ptx.ldmatrix_x1 %at, 0
    %v0, %v1, %v2, %v3 = ptx.mma_m16n8k8_f32_f16 %b, %c, %c, %u0, %u1, %u2, %u3
  }
}
