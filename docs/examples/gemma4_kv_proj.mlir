// Gemma 4 12B, k or v, sliding layers: 8 heads of 256.
// tokens x 3840 times a weight stored 2048 x 3840; any number of tokens.
func.func @kv_proj(%x: tensor<?x3840xf16>, %w: tensor<2048x3840xf16>) -> tensor<?x2048xf16> {
  %y = tensor_op.matmul %x, %w transpose_b : (tensor<?x3840xf16>, tensor<2048x3840xf16>) -> tensor<?x2048xf16>
  func.return %y : tensor<?x2048xf16>
}
