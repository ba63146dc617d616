// RUN: emmy-opt %s -p 'assign-schedule{target=sm_90a}' | filecheck %s --check-prefix HOPPER
// RUN: emmy-opt %s -p 'assign-schedule{target=sm_89}' | filecheck %s --check-prefix ADA
// RUN: not emmy-opt %s -p 'assign-schedule{target=sm_80}' 2>&1 | filecheck %s --check-prefix AMPERE

// As many bytes of K as products of 16 bits have; the promoted one has room for fewer columns beside its partial sums.
// HOPPER: matmul %a, %b transpose_b {emmy.schedule = #tile.schedule<block = [128, 256, 128], warps = [8, 1], atom = wgmma, stages = 4,
// HOPPER: matmul %a, %b transpose_b accumulate<hybrid, max_k = 128> {emmy.schedule = #tile.schedule<block = [128, 128, 128], warps = [8, 1], atom = wgmma, stages = 6,
// ADA: block = [128, 256, 64], warps = [2, 4], atom = m16n8k32, stages = 4
// ADA: block = [128, 128, 128], warps = [2, 4], atom = m16n8k32
// AMPERE: assign_schedule_8_bits.mlir:12:3: error: target sm_80 does not have atom m16n8k32 with f8E4M3FN operands; it needs sm_89 or newer
func.func @mm(%a: tensor<4096x4096xf8E4M3FN>, %b: tensor<4096x4096xf8E4M3FN>) -> (tensor<4096x4096xbf16>, tensor<4096x4096xbf16>) {
  %c = tensor_op.matmul %a, %b transpose_b : (tensor<4096x4096xf8E4M3FN>, tensor<4096x4096xf8E4M3FN>) -> tensor<4096x4096xbf16>
  %d = tensor_op.matmul %a, %b transpose_b accumulate<hybrid, max_k = 128> : (tensor<4096x4096xf8E4M3FN>, tensor<4096x4096xf8E4M3FN>) -> tensor<4096x4096xbf16>
  func.return %c, %d : tensor<4096x4096xbf16>, tensor<4096x4096xbf16>
}
