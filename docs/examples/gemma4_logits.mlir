// Gemma 4 12B, logits: the hidden state against the whole vocabulary, before the soft cap.
// tokens x 3840 times a weight stored 262144 x 3840; any number of tokens.
func.func @logits(%x: tensor<?x3840xf16>, %w: tensor<262144x3840xf16>) -> tensor<?x262144xf16> {
  %y = tensor_op.matmul %x, %w transpose_b : (tensor<?x3840xf16>, tensor<262144x3840xf16>) -> tensor<?x262144xf16>
  func.return %y : tensor<?x262144xf16>
}
