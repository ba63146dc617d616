// Gemma 4 12B, o, sliding layers: the attention output back to the hidden size.
// tokens x 4096 times a weight stored 3840 x 4096; any number of tokens.
func.func @o_proj(%x: tensor<?x4096xf16>, %w: tensor<3840x4096xf16>) -> tensor<?x3840xf16> {
  %y = tensor_op.matmul %x, %w transpose_b : (tensor<?x4096xf16>, tensor<3840x4096xf16>) -> tensor<?x3840xf16>
  func.return %y : tensor<?x3840xf16>
}
