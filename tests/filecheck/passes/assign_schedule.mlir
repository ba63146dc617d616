// RUN: emmy-opt %s -p 'assign-schedule{target=sm_90a}' | filecheck %s
// RUN: emmy-opt %s -p 'assign-schedule{target=sm_90a atom=m16n8k16}' | filecheck %s --check-prefix SYNC
// RUN: emmy-opt %s -p 'assign-schedule{target=sm_120a}' | filecheck %s --check-prefix SMALL
// RUN: emmy-opt %s -p 'assign-schedule{target=sm_80 block_k=32 warps_m=4 stages=5 transport=plain raster=1 opt_level=1}' | filecheck %s --check-prefix OPTION

// `?` rows count as many: the fastest tile; and those that are better for fewer, with the time of a step: 128 x 256 x 64 / 1.45.
// No transport is named where the target's own one takes any tensor.
// CHECK-LABEL:  func.func @large
// CHECK:          tensor_op.matmul %x, %w transpose_b {emmy.schedule = #tile.schedule<block = [128, 256, 64], warps = [8, 1], atom = wgmma, stages = 4, roles = specialized, persistent = 1, fragments = 1, delay = 0, prefetch = 0, store_columns = 64>, emmy.schedules = [
// CHECK-SAME:     {schedule = #tile.schedule<block = [128, 256, 64], {{[^>]*}}>, step_time = 1446312 : index},
// CHECK-SAME:     {schedule = #tile.schedule<block = [128, 192, 64], {{[^>]*}}>, step_time = 1099905 : index},
// CHECK-SAME:     {schedule = #tile.schedule<block = [64, 64, 256], {{[^>]*}}>, step_time = 1233619 : index}
// SYNC-LABEL:   func.func @large
// SYNC:           tensor_op.matmul %x, %w transpose_b {emmy.schedule = #tile.schedule<block = [128, 128, 64], warps = [2, 2], delay = 0, unroll = 3>, emmy.schedules = [
// SMALL-LABEL:  func.func @large
// SMALL:          tensor_op.matmul %x, %w transpose_b {emmy.schedule = #tile.schedule<block = [128, 256, 32], warps = [2, 4], stages = 4, delay = 0>, emmy.schedules = [
// OPTION-LABEL: func.func @large
// OPTION:         {emmy.schedule = #tile.schedule<block = [128, 256, 32], warps = [4, 4], stages = 5, transport = plain, raster = 1, delay = 0, batches = 2, opt_level = 1>}
func.func @large(%x: tensor<?x3840xf16>, %w: tensor<4096x3840xf16>) -> tensor<?x4096xf16> {
  %y = tensor_op.matmul %x, %w transpose_b : (tensor<?x3840xf16>, tensor<4096x3840xf16>) -> tensor<?x4096xf16>
  func.return %y : tensor<?x4096xf16>
}

// Few tiles: smaller ones, so that more SMs work.
// CHECK-LABEL:  func.func @small
// CHECK:          block = [64, 64, 256], warps = [4, 1], atom = wgmma, roles
// SYNC-LABEL:   func.func @small
// SYNC:           block = [64, 64, 64], warps = [2, 2], stages = 5
// SMALL-LABEL:  func.func @small
// SMALL:          block = [64, 64, 64], warps = [2, 2], stages = 4
func.func @small(%x: tensor<256x256xf16>, %w: tensor<256x256xf16>) -> tensor<256x256xf16> {
  %y = tensor_op.matmul %x, %w : (tensor<256x256xf16>, tensor<256x256xf16>) -> tensor<256x256xf16>
  func.return %y : tensor<256x256xf16>
}

// 128 tiles of 128 x 128 fit 170 SMs at once; 64 tiles of 128 x 256 would leave more than half of them idle.
// SMALL-LABEL:  func.func @middle
// SMALL:          block = [128, 128, 32], warps = [2, 2], delay
func.func @middle(%x: tensor<4096x512xbf16>, %w: tensor<512x512xbf16>) -> tensor<4096x512xbf16> {
  %y = tensor_op.matmul %x, %w : (tensor<4096x512xbf16>, tensor<512x512xbf16>) -> tensor<4096x512xbf16>
  func.return %y : tensor<4096x512xbf16>
}

// A batch of products fills the card like one large product.
// CHECK-LABEL:  func.func @batch
// CHECK:          block = [128, 256, 64], warps = [8, 1], atom = wgmma
// SYNC-LABEL:   func.func @batch
// SYNC:           block = [128, 128, 64]
func.func @batch(%x: tensor<64x512x128xf16>, %w: tensor<64x128x512xf16>) -> tensor<64x512x512xf16> {
  %y = tensor_op.matmul %x, %w : (tensor<64x512x128xf16>, tensor<64x128x512xf16>) -> tensor<64x512x512xf16>
  func.return %y : tensor<64x512x512xf16>
}

// A staged tile of 128 x 256 f32 results needs 128 KB: on a card with 99 KB a smaller one is chosen.
// CHECK-LABEL:  func.func @wide_result
// CHECK:          block = [128, 192, 64], warps = [8, 1], atom = wgmma, stages = 4
// SYNC-LABEL:   func.func @wide_result
// SYNC:           block = [128, 128, 64]
// SMALL-LABEL:  func.func @wide_result
// SMALL:          block = [128, 128, 32], warps = [2, 2], delay
func.func @wide_result(%x: tensor<?x512xf16>, %w: tensor<4096x512xf16>) -> tensor<?x4096xf32> {
  %y = tensor_op.matmul %x, %w transpose_b : (tensor<?x512xf16>, tensor<4096x512xf16>) -> tensor<?x4096xf32>
  func.return %y : tensor<?x4096xf32>
}

// The residual tile has its own place in shared memory, so that it can arrive during the main loop: 64 KB beside the ring.
// CHECK-LABEL:  func.func @residual
// CHECK:          block = [128, 192, 64], warps = [8, 1], atom = wgmma, roles
// SYNC-LABEL:   func.func @residual
// SYNC:           block = [128, 128, 64]
// SMALL-LABEL:  func.func @residual
// SMALL:          block = [128, 128, 32], warps = [2, 2], delay
func.func @residual(%x: tensor<?x512xf16>, %w: tensor<4096x512xf16>, %r: tensor<?x4096xf16>) -> tensor<?x4096xf16> {
  %y = tensor_op.matmul %x, %w transpose_b : (tensor<?x512xf16>, tensor<4096x512xf16>) -> tensor<?x4096xf16>
  %z = tensor_op.map add %y, %r : (tensor<?x4096xf16>, tensor<?x4096xf16>) -> tensor<?x4096xf16>
  func.return %z : tensor<?x4096xf16>
}

// What stands in the text stays.
// CHECK-LABEL:  func.func @pinned
// CHECK:          {emmy.schedule = #tile.schedule<block = [64, 32, 32], warps = [2, 1], stages = 2>}
// SYNC-LABEL:   func.func @pinned
// SYNC:           {emmy.schedule = #tile.schedule<block = [64, 32, 32], warps = [2, 1], stages = 2>}
// SMALL-LABEL:  func.func @pinned
// SMALL:          {emmy.schedule = #tile.schedule<block = [64, 32, 32], warps = [2, 1], stages = 2>}
// OPTION-LABEL: func.func @pinned
// OPTION:         {emmy.schedule = #tile.schedule<block = [64, 32, 32], warps = [2, 1], stages = 2>}
func.func @pinned(%x: tensor<?x512xf16>, %w: tensor<4096x512xf16>) -> tensor<?x4096xf16> {
  %y = tensor_op.matmul %x, %w transpose_b {emmy.schedule = #tile.schedule<block = [64, 32, 32], warps = [2, 1], stages = 2>} : (tensor<?x512xf16>, tensor<4096x512xf16>) -> tensor<?x4096xf16>
  func.return %y : tensor<?x4096xf16>
}
