// RUN: emmy-opt %s -p 'lower-to-ptx{target=sm_90a}' | filecheck %s --check-prefix IDENTITY
// RUN: emmy-opt %s -p 'lower-to-ptx{target=sm_89}' | filecheck %s --check-prefix CONVERT
// RUN: emmy-opt %s -p 'lower-to-ptx{target=sm_120a}' | filecheck %s --check-prefix MIXED

// A promotion as each target is best at it: a product with an identity, whose two halves of a register are chosen by the
// lane; widen and add; one addition of both types.
// IDENTITY-LABEL: ptx.kernel @promote
// IDENTITY:       %[[P0:.*]], %[[P1:.*]] = ptx.mma_m16n8k16_f16_f16
// IDENTITY:       %[[LOW:.*]] = ptx.selp_b32
// IDENTITY:       %[[ONE:.*]] = ptx.selp_b32 %{{.*}}, %[[LOW]], %{{.*}}
// IDENTITY-NEXT:  %[[S0:.*]], %[[S1:.*]], %[[S2:.*]], %[[S3:.*]] = ptx.mma_m16n8k8_f32_f16 %[[P0]], %[[P1]], %[[ONE]],
// CONVERT-LABEL:  ptx.kernel @promote
// CONVERT:        %[[P0:.*]], %[[P1:.*]] = ptx.mma_m16n8k16_f16_f16
// CONVERT-NEXT:   %[[H0:.*]], %[[H1:.*]] = ptx.unpack_b32 %[[P0]]
// CONVERT-NEXT:   %[[F0:.*]] = ptx.cvt_f32_f16 %[[H0]]
// CONVERT-NEXT:   %[[S0:.*]] = ptx.add_f32 %{{.*}}, %[[F0]]
// CONVERT-NEXT:   %[[F1:.*]] = ptx.cvt_f32_f16 %[[H1]]
// CONVERT-NOT:    m16n8k8
// MIXED-LABEL:    ptx.kernel @promote
// MIXED:          %[[P0:.*]], %[[P1:.*]] = ptx.mma_m16n8k16_f16_f16
// MIXED-NEXT:     %[[H0:.*]], %[[H1:.*]] = ptx.unpack_b32 %[[P0]]
// MIXED-NEXT:     %[[S0:.*]] = ptx.add_f32_f16 %[[H0]],
// MIXED-NEXT:     %[[S1:.*]] = ptx.add_f32_f16 %[[H1]],

// x * 0 summed is NaN if an x is not finite; one vote of the warp; the branch loads two elements at a time.
// IDENTITY:       ptx.fma_rn_f32 %[[S0]],
// IDENTITY:       ptx.fma_rn_f32 %[[S3]],
// IDENTITY:       %[[NAN:.*]] = ptx.setp_neu_f32
// IDENTITY:       %[[ANY:.*]] = ptx.vote_any_pred %[[NAN]]
// IDENTITY:       scf.if %[[ANY]]
// IDENTITY:         ptx.comment "a fragment from global memory"
// IDENTITY-COUNT-4: ptx.ld_global_b32
// IDENTITY:         ptx.comment "a fragment from global memory"
// IDENTITY-COUNT-2: ptx.ld_global_b32
// IDENTITY:         ptx.mma_m16n8k16_f32_f16
tile.kernel @promote(%a: !tile.view<16x16xf16>, %b: !tile.view<8x16xf16>, %c: !tile.view<16x8xf32>) {
  %c0 = arith.constant 0 : index
  async_copy.role "main" warps 1 {
    %s = mma.fill 1.0 : f32 : !mma.fragment<16x8xf32, c, m16n8k16>
    %x = mma.fill 1.0 : f16 : !mma.fragment<16x16xf16, a, m16n8k16>
    %y = mma.fill 2.0 : f16 : !mma.fragment<8x16xf16, b, m16n8k16>
    %z = mma.fill 0.0 : f16 : !mma.fragment<16x8xf16, c, m16n8k16>
    %p = mma.mma %x, %y, %z : (!mma.fragment<16x16xf16, a, m16n8k16>, !mma.fragment<8x16xf16, b, m16n8k16>) -> !mma.fragment<16x8xf16, c, m16n8k16>
    %d = mma.promote %p into %s : !mma.fragment<16x8xf16, c, m16n8k16> -> !mma.fragment<16x8xf32, c, m16n8k16>
    %bad = mma.any_nonfinite %d : !mma.fragment<16x8xf32, c, m16n8k16>
    %e = scf.if %bad -> (!mma.fragment<16x8xf32, c, m16n8k16>) {
      %ga = mma.load_global %a[%c0, %c0] : !tile.view<16x16xf16> -> !mma.fragment<16x16xf16, a, m16n8k16>
      %gb = mma.load_global %b[%c0, %c0] : !tile.view<8x16xf16> -> !mma.fragment<8x16xf16, b, m16n8k16>
      %again = mma.mma %ga, %gb, %s : (!mma.fragment<16x16xf16, a, m16n8k16>, !mma.fragment<8x16xf16, b, m16n8k16>) -> !mma.fragment<16x8xf32, c, m16n8k16>
      scf.yield %again : !mma.fragment<16x8xf32, c, m16n8k16>
    } else {
      scf.yield %d : !mma.fragment<16x8xf32, c, m16n8k16>
    }
    mma.store_global %e -> %c[%c0, %c0] : !mma.fragment<16x8xf32, c, m16n8k16> -> !tile.view<16x8xf32>
  }
}
