// A product of two f16 matrices, the second stored transposed (as weights are): C = A * B^T.
// Small enough to run in the emulator: emmy check docs/examples/matmul.mlir
func.func @matmul(%a: tensor<256x256xf16>, %b: tensor<256x256xf16>) -> tensor<256x256xf16> {
  %c = tensor_op.matmul %a, %b transpose_b : (tensor<256x256xf16>, tensor<256x256xf16>) -> tensor<256x256xf16>
  func.return %c : tensor<256x256xf16>
}
