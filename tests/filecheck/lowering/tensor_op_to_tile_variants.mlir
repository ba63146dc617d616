// RUN: emmy-opt %s -p 'lower-tensor-op{variants="dense,rows16,rows4,any"}' | filecheck %s
// RUN: emmy-opt %s -p 'lower-tensor-op{variants="rows8"}' | filecheck %s --check-prefix ONE
// RUN: emmy-opt %s -p 'lower-tensor-op{variants="rows16_tab"}' | filecheck %s --check-prefix COLUMNS
// RUN: not emmy-opt %s -p 'lower-tensor-op{variants="rows5"}' 2>&1 | filecheck %s --check-prefix ERROR

// A kernel for each variant; the call chooses the first whose views its tensors are. Only the kernels that are copied element
// by element have a smaller tile, and so a grid of their own.
// CHECK-LABEL: func.func @mm
// CHECK:         %[[large:.*]] = arith.muli {{.*}}
// CHECK:         %[[large:.*]] = arith.muli {{.*}}
// CHECK:         %[[small:.*]] = arith.muli {{.*}}
// CHECK:         %[[small:.*]] = arith.muli {{.*}}
// CHECK:         tile.dispatch [@mm_kernel[%[[large]]], @mm_kernel_rows16[%[[large]]], @mm_kernel_rows4[%[[large]]], @mm_kernel_any[%[[small]]]] (%a, %b, %c)
// CHECK:       tile.kernel @mm_kernel(%a: !tile.view<?x?xf16, align 16>, %b: !tile.view<?x?xf16, align 16>, %c: !tile.view<?x?xf32, align 16>)
// CHECK-SAME:    schedule <block = [128, 128, 64], warps = [2, 2], roles = specialized> {
// CHECK:       tile.kernel @mm_kernel_rows16(%a: !tile.view<?x?xf16, strides [?, 1], align 16>, %b: !tile.view<?x?xf16, strides [?, 1], align 16>, %c: !tile.view<?x?xf32, strides [?, 1], align 16>)
// CHECK-SAME:    schedule <block = [128, 128, 64], warps = [2, 2], roles = specialized> attributes {emmy.variant = "rows16"}
// CHECK:       tile.kernel @mm_kernel_rows4(%a: !tile.view<?x?xf16, strides [?, 1], align 4>, %b: !tile.view<?x?xf16, strides [?, 1], align 4>, %c: !tile.view<?x?xf32, strides [?, 1], align 4>)
// CHECK-SAME:    schedule <block = [128, 128, 64], warps = [2, 4], transport = cp_async, prefetch = 0> attributes {emmy.variant = "rows4"}
// CHECK:       tile.kernel @mm_kernel_any(%a: !tile.view<?x?xf16, strides [?, ?], align 2>, %b: !tile.view<?x?xf16, strides [?, ?], align 2>, %c: !tile.view<?x?xf32, strides [?, ?], align 4>)
// CHECK-SAME:    schedule <block = [64, 128, 64], warps = [2, 4], transport = cp_async, prefetch = 0> attributes {emmy.variant = "any"}
// ONE-LABEL:   func.func @mm
// ONE:           tile.launch @mm_kernel_rows8[
// ONE-NOT:     tile.kernel @mm_kernel(
// Operands whose columns have no gaps are read as if the text had them transposed.
// COLUMNS:       tile.dispatch [@mm_kernel_rows16_tab[{{%\S+}}] transposed [0, 1]] (%a, %b, %c)
// COLUMNS:         tile.load %a[%k, %m] : !tile.view<?x?xf16, strides [?, 1], align 16> -> !tile.tile<64x128xf16>
// COLUMNS:         tile.load %b[%k, %n] : !tile.view<?x?xf16, strides [?, 1], align 16> -> !tile.tile<64x128xf16>
// COLUMNS:         tile.dot {{.*}} transpose_a accumulate
// COLUMNS:       tile.launch @sum_kernel[
// ERROR:       there is no variant 'rows5'; there are dense, rows16, rows16_ta,
func.func @mm(%a: tensor<?x?xf16>, %b: tensor<?x?xf16>) -> tensor<?x?xf32> {
  %c = tensor_op.matmul %a, %b transpose_b {emmy.schedule = #tile.schedule<block = [128, 128, 64], warps = [2, 2], roles = specialized>} : (tensor<?x?xf16>, tensor<?x?xf16>) -> tensor<?x?xf32>
  func.return %c : tensor<?x?xf32>
}

// Rows of static sizes say themselves how they are aligned.
// CHECK-LABEL: tile.kernel @sum_kernel(%x: !tile.view<?x100xf16>, %y: !tile.view<100xf16>, %z: !tile.view<?x100xf16>) {
// CHECK-LABEL: tile.kernel @sum_kernel_rows16(%x: !tile.view<?x100xf16, strides [?, 1], align 16>, %y: !tile.view<100xf16, strides [1], align 16>,
func.func @sum(%x: tensor<?x100xf16>, %y: tensor<100xf16>) -> tensor<?x100xf16> {
  %z = tensor_op.map add %x, %y : (tensor<?x100xf16>, tensor<100xf16>) -> tensor<?x100xf16>
  func.return %z : tensor<?x100xf16>
}
