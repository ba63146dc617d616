// Flash attention at level 2, as printed: softmax(0.125 * Q K^T, causal) V of 8 heads, 4096 queries and keys, head dimension 64.
// From one tensor_op (docs/guide/level1.md): emmy-opt -p 'assign-schedule{target=sm_80},lower-tensor-op'.
builtin.module {
  func.func @flash_causal(%q: tensor<1x8x4096x64xf16>, %k: tensor<1x8x4096x64xf16>, %v: tensor<1x8x4096x64xf16>) -> tensor<1x8x4096x64xf16> {
    %o = tile.alloc[] : tensor<1x8x4096x64xf16>
    %c256 = arith.constant 256 : index
    tile.launch @flash_causal_kernel[%c256] (%q, %k, %v, %o) : tensor<1x8x4096x64xf16>, tensor<1x8x4096x64xf16>, tensor<1x8x4096x64xf16>, tensor<1x8x4096x64xf16>
    func.return %o : tensor<1x8x4096x64xf16>
  }
  tile.kernel @flash_causal_kernel(%q: !tile.view<1x8x4096x64xf16>, %k: !tile.view<1x8x4096x64xf16>, %v: !tile.view<1x8x4096x64xf16>, %o: !tile.view<1x8x4096x64xf16>) schedule <block = [128, 64, 64], warps = [4, 1], stages = 2, raster = 1, delay = 0, prefetch = 0> {
    %c1 = arith.constant 1 : index
    %c8 = arith.constant 8 : index
    %c4096 = arith.constant 4096 : index
    %b, %h, %m = tile.grid [%c1 by 1, %c8 by 1, %c4096 by 128] raster 1
    %c0 = arith.constant 0 : index
    %q_tile = tile.load %q[%b, %h, %m, %c0] : !tile.view<1x8x4096x64xf16> -> !tile.tile<128x64xf16>
    %c128 = arith.constant 128 : index
    %reach = arith.addi %m, %c128 : index
    %last = arith.minsi %reach, %c4096 : index
    %position = tile.coord 0 from %m : !tile.tile<128x1xi32>
    %zero = tile.fill 0.000000e+00 : f32 : !tile.tile<128x64xf32>
    %lowest = tile.fill -1.000000e+30 : f32 : !tile.tile<128x1xf32>
    %none = tile.fill 0.000000e+00 : f32 : !tile.tile<128x8xf32>
    %nothing = tile.fill 0.000000e+00 : f32 : !tile.tile<128x64xf32>
    %hidden = arith.constant 0xff800000 : f32
    %c64 = arith.constant 64 : index
    %unit = arith.constant 0.180336878 : f32
    %last_top, %last_total, %last_sums = scf.for %j = %c0 to %last step %c64 iter_args(%top = %lowest, %total = %none, %sums = %nothing) -> (!tile.tile<128x1xf32>, !tile.tile<128x8xf32>, !tile.tile<128x64xf32>) {
      %k_tile = tile.load %k[%b, %h, %j, %c0] : !tile.view<1x8x4096x64xf16> -> !tile.tile<64x64xf16>
      %scores = tile.dot %q_tile, %k_tile into %zero transpose_b : (!tile.tile<128x64xf16>, !tile.tile<64x64xf16>, !tile.tile<128x64xf32>) -> !tile.tile<128x64xf32>
      %key = tile.coord 1 from %j : !tile.tile<1x64xi32>
      %seen = tile.map ge %position, %key : (!tile.tile<128x1xi32>, !tile.tile<1x64xi32>) -> !tile.tile<128x64xi1>
      %shown = tile.map select %seen, %scores, %hidden : (!tile.tile<128x64xi1>, !tile.tile<128x64xf32>, f32) -> !tile.tile<128x64xf32>
      %row_max = tile.reduce max %shown axis 1 : !tile.tile<128x64xf32> -> !tile.tile<128x1xf32>
      %peak = tile.map mul %row_max, %unit : (!tile.tile<128x1xf32>, f32) -> !tile.tile<128x1xf32>
      %new_top = tile.map max %top, %peak : (!tile.tile<128x1xf32>, !tile.tile<128x1xf32>) -> !tile.tile<128x1xf32>
      %minus_top = tile.map neg %new_top : (!tile.tile<128x1xf32>) -> !tile.tile<128x1xf32>
      %exponents = tile.map fma %shown, %unit, %minus_top : (!tile.tile<128x64xf32>, f32, !tile.tile<128x1xf32>) -> !tile.tile<128x64xf32>
      %weights = tile.map exp2 %exponents : (!tile.tile<128x64xf32>) -> !tile.tile<128x64xf32>
      %fallen = tile.map add %top, %minus_top : (!tile.tile<128x1xf32>, !tile.tile<128x1xf32>) -> !tile.tile<128x1xf32>
      %kept = tile.map exp2 %fallen : (!tile.tile<128x1xf32>) -> !tile.tile<128x1xf32>
      %gained = tile.reduce sum %weights axis 1 : !tile.tile<128x64xf32> -> !tile.tile<128x8xf32>
      %new_total = tile.map fma %total, %kept, %gained : (!tile.tile<128x8xf32>, !tile.tile<128x1xf32>, !tile.tile<128x8xf32>) -> !tile.tile<128x8xf32>
      %rescaled = tile.map mul %sums, %kept : (!tile.tile<128x64xf32>, !tile.tile<128x1xf32>) -> !tile.tile<128x64xf32>
      %p = tile.cast %weights : !tile.tile<128x64xf32> to !tile.tile<128x64xf16>
      %v_tile = tile.load %v[%b, %h, %j, %c0] : !tile.view<1x8x4096x64xf16> -> !tile.tile<64x64xf16>
      %new_sums = tile.dot %p, %v_tile into %rescaled : (!tile.tile<128x64xf16>, !tile.tile<64x64xf16>, !tile.tile<128x64xf32>) -> !tile.tile<128x64xf32>
      scf.yield %new_top, %new_total, %new_sums : !tile.tile<128x1xf32>, !tile.tile<128x8xf32>, !tile.tile<128x64xf32>
    } {emmy.hidden_is_identity}
    %sum = tile.reduce sum %last_total axis 1 : !tile.tile<128x8xf32> -> !tile.tile<128x1xf32>
    %least = arith.constant 1.000000e-30 : f32
    %safe = tile.map max %sum, %least : (!tile.tile<128x1xf32>, f32) -> !tile.tile<128x1xf32>
    %inverse = tile.map rcp %safe : (!tile.tile<128x1xf32>) -> !tile.tile<128x1xf32>
    %value = tile.map mul %last_sums, %inverse : (!tile.tile<128x64xf32>, !tile.tile<128x1xf32>) -> !tile.tile<128x64xf32>
    %rounded = tile.cast %value : !tile.tile<128x64xf32> to !tile.tile<128x64xf16>
    tile.store %rounded, %o[%b, %h, %m, %c0] : !tile.tile<128x64xf16>, !tile.view<1x8x4096x64xf16>
  }
}

