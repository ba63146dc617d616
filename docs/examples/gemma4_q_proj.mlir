// Gemma 4 12B, q, sliding layers: 16 heads of 256.
// tokens x 3840 times a weight stored 4096 x 3840; any number of tokens.
func.func @q_proj(%x: tensor<?x3840xf16>, %w: tensor<4096x3840xf16>) -> tensor<?x4096xf16> {
  %y = tensor_op.matmul %x, %w transpose_b : (tensor<?x3840xf16>, tensor<4096x3840xf16>) -> tensor<?x4096xf16>
  func.return %y : tensor<?x4096xf16>
}
