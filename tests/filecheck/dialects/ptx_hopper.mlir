// RUN: emmy-opt %s | emmy-opt | filecheck %s
// RUN: emmy-opt %s --print-op-generic | emmy-opt | filecheck %s
// RUN: emmy-opt %s -t ptx --target sm_90a | filecheck %s --check-prefix TEXT

// TEXT:      .visible .entry kernel(
// TEXT:      .reqnctapercluster 2, 1, 1
// TEXT-NEXT: .explicitcluster
// TEXT-NEXT: .maxntid 128, 1, 1

// CHECK:      ptx.kernel @kernel(%p: i64, %map: i64) threads 128 min_ctas 1 shared_bytes 16384 cluster [2, 1, 1] params ["pointer 0", "tensor_map 0"]
ptx.kernel @kernel(%p: i64, %map: i64) threads 128 min_ctas 1 shared_bytes 16384 cluster [2, 1, 1] params ["pointer 0", "tensor_map 0"] tensor_maps [{view = 1 : i64, box = array<i64: 64, 64>, swizzle = 128 : i64}] {
  %base = ptx.shared_base
  %c0 = ptx.constant 0 : i32
  %c1 = ptx.constant 1 : i32
  %both = ptx.constant 3 : i16
  %fields = ptx.constant 4611686293305360384 : i64
  // CHECK:         %rank = ptx.cluster_ctarank
  // TEXT:        mov.u32 [[RANK:%r[0-9]+]], %cluster_ctarank;
  %rank = ptx.cluster_ctarank
  // CHECK-NEXT:    %far = ptx.mapa %base, %c1
  // TEXT-NEXT:   mapa.shared::cluster.u32 [[FAR:%r[0-9]+]], {{%r[0-9]+}}, 1;
  %far = ptx.mapa %base, %c1
  // CHECK-NEXT:    ptx.barrier_cluster_arrive_relaxed
  // CHECK-NEXT:    ptx.barrier_cluster_wait
  // TEXT-NEXT:   barrier.cluster.arrive.relaxed.aligned;
  // TEXT-NEXT:   barrier.cluster.wait.acquire.aligned;
  ptx.barrier_cluster_arrive_relaxed
  ptx.barrier_cluster_wait
  // CHECK-NEXT:    ptx.cp_async_bulk_tensor_2d_multicast %base, %map, %c0, %rank, %base, %both, 1024, 8
  // TEXT-NEXT:   cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [{{%r[0-9]+}}+1024], [{{%rd[0-9]+}}, {{.%r[0-9]+}},[[RANK]]}], [{{%r[0-9]+}}+8], {{%h[0-9]+}};
  ptx.cp_async_bulk_tensor_2d_multicast %base, %map, %c0, %rank, %base, %both, 1024, 8
  // CHECK-NEXT:    %policy = ptx.createpolicy_evict_first
  // CHECK-NEXT:    ptx.cp_async_bulk_tensor_2d_multicast_cache_hint %base, %map, %c0, %rank, %base, %both, %policy, 1024, 8
  // CHECK-NEXT:    ptx.cp_async_bulk_tensor_2d_shared_cluster_global_cache_hint %base, %map, %c0, %rank, %base, %policy, 1024, 8
  // TEXT-NEXT:   createpolicy.fractional.L2::evict_first.b64 [[POLICY:%rd[0-9]+]];
  // TEXT-NEXT:   cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [{{%r[0-9]+}}+1024], [{{%rd[0-9]+}}, {{.%r[0-9]+}},[[RANK]]}], [{{%r[0-9]+}}+8], {{%h[0-9]+}}, [[POLICY]];
  // TEXT-NEXT:   cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [{{%r[0-9]+}}+1024], [{{%rd[0-9]+}}, {{.%r[0-9]+}},[[RANK]]}], [{{%r[0-9]+}}+8], [[POLICY]];
  %policy = ptx.createpolicy_evict_first
  ptx.cp_async_bulk_tensor_2d_multicast_cache_hint %base, %map, %c0, %rank, %base, %both, %policy, 1024, 8
  ptx.cp_async_bulk_tensor_2d_shared_cluster_global_cache_hint %base, %map, %c0, %rank, %base, %policy, 1024, 8
  // CHECK-NEXT:    ptx.mbarrier_arrive_remote %far, 16
  // TEXT-NEXT:   mbarrier.arrive.shared::cluster.b64 _, {{\[}}[[FAR]]+16];
  ptx.mbarrier_arrive_remote %far, 16
  // CHECK-NEXT:    ptx.wgmma_fence
  // CHECK-NEXT:    %d0, %d1, %d2, %d3 = ptx.wgmma_mma_async "m64n8k16.f32.f16.f16 zero" %fields, %fields
  // CHECK-NEXT:    %e0, %e1, %e2, %e3 = ptx.wgmma_mma_async "m64n8k16.f32.f16.f16 a_registers negate_b transpose_b" %base, %base, %base, %base, %fields, %d0, %d1, %d2, %d3
  // CHECK-NEXT:    ptx.wgmma_commit_group
  // CHECK-NEXT:    %w0, %w1, %w2, %w3 = ptx.wgmma_wait_group 0 "f4" %e0, %e1, %e2, %e3 keep "r1" %base
  // CHECK-NEXT:    ptx.wgmma_wait_group 0
  // TEXT-NEXT:   wgmma.fence.sync.aligned;
  // TEXT-NEXT:   wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 [[D:.%f.*]], [[B:%rd[0-9]+]], [[B]], 0, 1, 1, 0, 0;
  // TEXT-NEXT:   wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 [[D]], {{.%r.*}}, [[B]], 1, 1, -1, 1;
  // TEXT-NEXT:   wgmma.commit_group.sync.aligned;
  // TEXT-NEXT:   wgmma.wait_group.sync.aligned 0;
  // TEXT-NEXT:   wgmma.wait_group.sync.aligned 0;
  ptx.wgmma_fence
  %d0, %d1, %d2, %d3 = ptx.wgmma_mma_async "m64n8k16.f32.f16.f16 zero" %fields, %fields
  %e0, %e1, %e2, %e3 = ptx.wgmma_mma_async "m64n8k16.f32.f16.f16 a_registers negate_b transpose_b" %base, %base, %base, %base, %fields, %d0, %d1, %d2, %d3
  ptx.wgmma_commit_group
  %w0, %w1, %w2, %w3 = ptx.wgmma_wait_group 0 "f4" %e0, %e1, %e2, %e3 keep "r1" %base
  ptx.wgmma_wait_group 0
  // TEXT-NEXT:   st.global.f32
  ptx.st_global_f32 %p, %w0, 0
}
