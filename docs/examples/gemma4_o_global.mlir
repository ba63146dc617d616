// Gemma 4 12B, o, global layers: the attention output back to the hidden size.
// tokens x 8192 times a weight stored 3840 x 8192; any number of tokens.
func.func @o_global(%x: tensor<?x8192xf16>, %w: tensor<3840x8192xf16>) -> tensor<?x3840xf16> {
  %y = tensor_op.matmul %x, %w transpose_b : (tensor<?x8192xf16>, tensor<3840x8192xf16>) -> tensor<?x3840xf16>
  func.return %y : tensor<?x3840xf16>
}
