// RUN: emmy-opt %s -p 'lower-tensor-op' | filecheck %s
// RUN: emmy-opt %s -p 'lower-tensor-op,persistent-grid' | filecheck %s --check-prefix PERSISTENT
// RUN: emmy-opt %s -p 'lower-tensor-op{variants="dense,rows8"}' | filecheck %s --check-prefix VARIANTS

// One kernel for each schedule, in their order; the one that is the product's own has the plain name. Times are waves of tiles
// over the multiprocessors x steps over K x time of a step. CTAs of a cluster that share a tile all count, and each has a part
// of the steps.
// CHECK-LABEL: func.func @mm
// CHECK:         %[[k:.*]] = tile.dim %a, 1
// CHECK-NEXT:    %[[of_b:.*]] = tile.dim %b, 1
// CHECK-NEXT:    tile.require_equal %[[k]], %[[of_b]], "the matmul contracts sizes of its operands that must be equal: dimension 1 of 'a' and dimension 1 of 'b'"
// CHECK:         %sms = tile.sm_count
// CHECK-NEXT:    %waves = arith.ceildivui %[[wide:[^,]*]], %sms : index
// CHECK:         %[[extent:.*]] = tile.dim %a, 1
// CHECK:         %[[steps:.*]] = arith.ceildivui %[[extent]], %c64
// CHECK-NEXT:    %step = arith.constant 3000 : index
// CHECK-NEXT:    %[[work:.*]] = arith.muli %[[steps]], %step : index
// CHECK-NEXT:    %time = arith.muli %waves, %[[work]] : index
// CHECK:         %waves_1 = arith.ceildivui %[[narrow:[^,]*]], %sms : index
// CHECK:         %[[ctas:.*]] = arith.muli %[[split:.*]], %c2
// CHECK-NEXT:    %waves_2 = arith.ceildivui %[[ctas]], %sms : index
// CHECK:         %time_2 = arith.muli %waves_2,
// CHECK:         tile.dispatch [@mm_kernel_128x128[%[[wide]]] time %time, @mm_kernel[%[[narrow]]] time %time_1, @mm_kernel_128x64_by2[%[[split]]] time %time_2] (%a, %b, %c)
// CHECK-LABEL: tile.kernel @mm_kernel_128x128(
// CHECK-SAME:    schedule <block = [128, 128, 64], warps = [8, 1], persistent = 1> {
// CHECK-LABEL: tile.kernel @mm_kernel(
// CHECK-SAME:    schedule <block = [64, 64, 64], warps = [4, 1]> {
// CHECK-LABEL: tile.kernel @mm_kernel_128x64_by2(

// The number of CTAs is bounded; what is compared stays.
// PERSISTENT:    %waves = arith.ceildivui %[[tiles:[^,]*]], %sms
// PERSISTENT:    %[[bounded:.*]] = arith.minui %[[tiles]], %{{.*}} : index
// PERSISTENT:    tile.dispatch [@mm_kernel_128x128[%[[bounded]]] time %time, @mm_kernel[

// Variants for tensors that lie otherwise come last, one kernel each, with the product's own schedule.
// VARIANTS:      tile.dispatch [@mm_kernel_128x128[%{{.*}}] time %time, @mm_kernel[%{{.*}}] time %time_1, @mm_kernel_128x64_by2[%{{.*}}] time %time_2, @mm_kernel_rows8[%{{.*}}]] (%a, %b, %c)
func.func @mm(%a: tensor<?x?xf16>, %b: tensor<?x?xf16>) -> tensor<?x?xf16> {
  %c = tensor_op.matmul %a, %b transpose_b {
    emmy.schedule = #tile.schedule<block = [64, 64, 64], warps = [4, 1]>,
    emmy.schedules = [
      {schedule = #tile.schedule<block = [128, 128, 64], warps = [8, 1], persistent = 1>, step_time = 3000 : index},
      {schedule = #tile.schedule<block = [64, 64, 64], warps = [4, 1]>, step_time = 1000 : index},
      {schedule = #tile.schedule<block = [128, 64, 64], warps = [8, 1], split_k = 2>, step_time = 2000 : index}
    ]
  } : (tensor<?x?xf16>, tensor<?x?xf16>) -> tensor<?x?xf16>
  func.return %c : tensor<?x?xf16>
}

// One schedule, one kernel, no dispatch.
// CHECK-LABEL: func.func @one
// CHECK:         tile.launch @one_kernel[
func.func @one(%a: tensor<?x64xf16>, %b: tensor<64x64xf16>) -> tensor<?x64xf16> {
  %c = tensor_op.matmul %a, %b {emmy.schedule = #tile.schedule<block = [64, 64, 64], warps = [4, 1]>} : (tensor<?x64xf16>, tensor<64x64xf16>) -> tensor<?x64xf16>
  func.return %c : tensor<?x64xf16>
}
