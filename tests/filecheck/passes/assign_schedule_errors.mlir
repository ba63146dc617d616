// RUN: not emmy-opt %s -p 'assign-schedule{target=sm_89}' 2>&1 | filecheck %s --check-prefix PINNED
// RUN: not emmy-opt %s -p 'assign-schedule{target=sm_90}' 2>&1 | filecheck %s --check-prefix TARGET
// RUN: not emmy-opt %s -p 'assign-schedule{target=sm_80 transport=tma}' 2>&1 | filecheck %s --check-prefix OPTION

// PINNED: assign_schedule_errors.mlir:10:3: error: illegal schedule: it needs 147456 bytes of shared memory, and a CTA of sm_89 has 101376; reduce block or stages
// TARGET: error: target 'sm_90' is not one of Emmy's; use 'sm_90a'
// OPTION: assign_schedule_errors.mlir:11:3: error: illegal schedule: transport = tma needs sm_90 or later, and the target is sm_80; use cp_async

func.func @pinned(%x: tensor<512x512xf16>) -> tensor<512x512xf16> {
  %y = tensor_op.matmul %x, %x {emmy.schedule = #tile.schedule<block = [128, 256, 64], warps = [2, 4]>} : (tensor<512x512xf16>, tensor<512x512xf16>) -> tensor<512x512xf16>
  %z = tensor_op.matmul %x, %x : (tensor<512x512xf16>, tensor<512x512xf16>) -> tensor<512x512xf16>
  func.return %z : tensor<512x512xf16>
}
