// RUN: not emmy-opt %s -p 'lower-tensor-op' 2>&1 | filecheck %s

// CHECK: tensor_op_to_tile_errors.mlir:5:3: error: this product has no emmy.schedule; run assign-schedule{target=..} before lower-tensor-op
func.func @pinned(%x: tensor<512x512xf16>) -> tensor<512x512xf16> {
  %y = tensor_op.matmul %x, %x : (tensor<512x512xf16>, tensor<512x512xf16>) -> tensor<512x512xf16>
  func.return %y : tensor<512x512xf16>
}
