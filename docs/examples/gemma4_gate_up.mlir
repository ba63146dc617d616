// Gemma 4 12B, gate and up of the MLP together: one product with both weights stacked, before GeGLU.
// tokens x 3840 times a weight stored 30720 x 3840; any number of tokens.
func.func @gate_up(%x: tensor<?x3840xf16>, %w: tensor<30720x3840xf16>) -> tensor<?x30720xf16> {
  %y = tensor_op.matmul %x, %w transpose_b : (tensor<?x3840xf16>, tensor<30720x3840xf16>) -> tensor<?x30720xf16>
  func.return %y : tensor<?x30720xf16>
}
