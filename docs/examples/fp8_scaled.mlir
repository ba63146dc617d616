// A product of 8-bit floats: a scale for each row of A and each column of B, and, where the tensor cores keep few bits of a sum,
// partial sums of 128 elements that are added up in f32.
func.func @fp8_scaled(
  %x: tensor<?x256xf8E4M3FN>, %w: tensor<192x256xf8E4M3FN>, %x_scale: tensor<?x1xf32>, %w_scale: tensor<1x192xf32>
) -> tensor<?x192xbf16> {
  %sum = tensor_op.matmul %x, %w transpose_b accumulate<hybrid, max_k = 128>
     : (tensor<?x256xf8E4M3FN>, tensor<192x256xf8E4M3FN>) -> tensor<?x192xf32>
  %rows = tensor_op.map mul %sum, %x_scale : (tensor<?x192xf32>, tensor<?x1xf32>) -> tensor<?x192xf32>
  %scaled = tensor_op.map mul %rows, %w_scale : (tensor<?x192xf32>, tensor<1x192xf32>) -> tensor<?x192xf32>
  %y = tensor_op.cast %scaled : tensor<?x192xf32> to tensor<?x192xbf16>
  func.return %y : tensor<?x192xbf16>
}
