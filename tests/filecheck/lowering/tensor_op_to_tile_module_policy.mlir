// RUN: emmy-opt %s -p 'lower-tensor-op' | filecheck %s

// A module's policy holds for its products of f16; products of bf16 have no f16 accumulator: they stay f32 and say so.
builtin.module attributes {emmy.accumulate = #tensor_op.accumulate<hybrid, max_k = 32>} {
  // CHECK:      tile.kernel @half_kernel({{.*}}) schedule <block = [64, 64, 64], warps = [2, 2]> {
  // CHECK:        tile.dot {{.*}} accumulate<hybrid, max_k = 32>
  func.func @half(%x: tensor<64x64xf16>) -> tensor<64x64xf16> {
    %y = tensor_op.matmul %x, %x {emmy.schedule = #tile.schedule<block = [64, 64, 64], warps = [2, 2]>} : (tensor<64x64xf16>, tensor<64x64xf16>) -> tensor<64x64xf16>
    func.return %y : tensor<64x64xf16>
  }
  // CHECK:      tile.kernel @brain_kernel({{.*}}) schedule <block = [64, 64, 64], warps = [2, 2]> attributes {emmy.remark = "accumulate<hybrid> of the module needs f16 operands; this product of bf16 stays f32"} {
  // CHECK:        tile.dot {{.*}} accumulate<f32>
  func.func @brain(%x: tensor<64x64xbf16>) -> tensor<64x64xbf16> {
    %y = tensor_op.matmul %x, %x {emmy.schedule = #tile.schedule<block = [64, 64, 64], warps = [2, 2]>} : (tensor<64x64xbf16>, tensor<64x64xbf16>) -> tensor<64x64xbf16>
    func.return %y : tensor<64x64xbf16>
  }
}
