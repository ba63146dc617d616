// Gemma 4 12B, k, global layers: one head of 512, which also serves as v.
// tokens x 3840 times a weight stored 512 x 3840; any number of tokens.
func.func @k_global(%x: tensor<?x3840xf16>, %w: tensor<512x3840xf16>) -> tensor<?x512xf16> {
  %y = tensor_op.matmul %x, %w transpose_b : (tensor<?x3840xf16>, tensor<512x3840xf16>) -> tensor<?x512xf16>
  func.return %y : tensor<?x512xf16>
}
