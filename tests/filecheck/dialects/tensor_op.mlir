// RUN: emmy-opt %s | emmy-opt | filecheck %s
// RUN: emmy-opt %s --print-op-generic | emmy-opt | filecheck %s

// CHECK:      builtin.module {
// CHECK-NEXT:   func.func @all(%x: tensor<?x3840xf16>, %w: tensor<4096x3840xf16>) -> tensor<?x4096xf32> {
func.func @all(%x: tensor<?x3840xf16>, %w: tensor<4096x3840xf16>) -> tensor<?x4096xf32> {
  // CHECK-NEXT:     %y = tensor_op.matmul %x, %w transpose_b accumulate<hybrid, max_k = 32> : (tensor<?x3840xf16>, tensor<4096x3840xf16>) -> tensor<?x4096xf16>
  %y = tensor_op.matmul %x, %w transpose_b accumulate<hybrid, max_k = 32> : (tensor<?x3840xf16>, tensor<4096x3840xf16>) -> tensor<?x4096xf16>
  // CHECK-NEXT:     %z = tensor_op.map relu %y : (tensor<?x4096xf16>) -> tensor<?x4096xf16>
  %z = tensor_op.map relu %y : (tensor<?x4096xf16>) -> tensor<?x4096xf16>
  // CHECK-NEXT:     %c = tensor_op.cast %z : tensor<?x4096xf16> to tensor<?x4096xf32>
  %c = tensor_op.cast %z : tensor<?x4096xf16> to tensor<?x4096xf32>
  // CHECK-NEXT:     func.return %c : tensor<?x4096xf32>
  func.return %c : tensor<?x4096xf32>
}

// CHECK:        func.func @batched
func.func @batched(%a: tensor<7x64x128xbf16>, %b: tensor<7x64x256xbf16>) -> tensor<7x128x256xf32> {
  // CHECK-NEXT:     %{{.*}} = tensor_op.matmul %a, %b transpose_a : (tensor<7x64x128xbf16>, tensor<7x64x256xbf16>) -> tensor<7x128x256xf32>
  %c = tensor_op.matmul %a, %b transpose_a : (tensor<7x64x128xbf16>, tensor<7x64x256xbf16>) -> tensor<7x128x256xf32>
  func.return %c : tensor<7x128x256xf32>
}

// The schedule may be pinned in the text; the policies that are not the default are printed.
// CHECK:        func.func @pinned
func.func @pinned(%a: tensor<128x64xf16>, %b: tensor<64x128xf16>) -> tensor<128x128xf16> {
  // CHECK-NEXT:     %{{.*}} = tensor_op.matmul %a, %b accumulate<f32, overflow = redo> {emmy.schedule = #tile.schedule<block = [128, 256, 64], warps = [2, 4], stages = 4>} :
  %c = tensor_op.matmul %a, %b accumulate<f32, overflow = redo> {emmy.schedule = #tile.schedule<block = [128, 256, 64], warps = [2, 4], stages = 4, roles = unified>} : (tensor<128x64xf16>, tensor<64x128xf16>) -> tensor<128x128xf16>
  func.return %c : tensor<128x128xf16>
}
