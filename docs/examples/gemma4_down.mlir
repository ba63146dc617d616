// Gemma 4 12B, down of the MLP: back to the hidden size.
// tokens x 15360 times a weight stored 3840 x 15360; any number of tokens.
func.func @down(%x: tensor<?x15360xf16>, %w: tensor<3840x15360xf16>) -> tensor<?x3840xf16> {
  %y = tensor_op.matmul %x, %w transpose_b : (tensor<?x15360xf16>, tensor<3840x15360xf16>) -> tensor<?x3840xf16>
  func.return %y : tensor<?x3840xf16>
}
