// Gemma 4 12B, q, global layers: 16 heads of 512.
// tokens x 3840 times a weight stored 8192 x 3840; any number of tokens.
func.func @q_global(%x: tensor<?x3840xf16>, %w: tensor<8192x3840xf16>) -> tensor<?x8192xf16> {
  %y = tensor_op.matmul %x, %w transpose_b : (tensor<?x3840xf16>, tensor<8192x3840xf16>) -> tensor<?x8192xf16>
  func.return %y : tensor<?x8192xf16>
}
