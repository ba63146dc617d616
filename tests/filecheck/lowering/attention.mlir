// RUN: emmy-opt %s -p 'assign-schedule{target=sm_80},lower-tensor-op' | filecheck %s
// RUN: emmy-opt %s -p 'assign-schedule{target=sm_89}' | filecheck %s --check-prefix SMALL

// Nothing is hidden: every block of keys, no compare, no select. The scale goes into the unit of the exponents.
// CHECK-LABEL:  func.func @plain
// CHECK-NEXT:     %o = tile.alloc[] : tensor<2x4x256x64xf16>
// CHECK-NEXT:     %c16 = arith.constant 16 : index
// CHECK-NEXT:     tile.launch @plain_kernel[%c16] (%q, %k, %v, %o)
// CHECK:        tile.kernel @plain_kernel
// CHECK-SAME:     schedule <block = [128, 64, 64], warps = [4, 1], stages = 2, raster = 1, delay = 0, prefetch = 0>
// CHECK:          %b, %h, %m = tile.grid [%c2 by 1, %c4 by 1, %c256 by 128] raster 1
// CHECK:          %q_tile = tile.load %q[%b, %h, %m, %c0] : !tile.view<2x4x256x64xf16> -> !tile.tile<128x64xf16>
// CHECK:          %kv_head = arith.divui %h, %c2 : index
// CHECK:          %unit = arith.constant 0.180336878 : f32
// CHECK:          scf.for %j = %c0 to %c512 step %c64 iter_args(%top = %lowest, %total = %none, %sums = %nothing)
// CHECK-NEXT:       %k_tile = tile.load %k[%b, %kv_head, %j, %c0]
// CHECK-NEXT:       %scores = tile.dot %q_tile, %k_tile into %zero transpose_b :
// CHECK-NEXT:       %row_max = tile.reduce max %scores axis 1 : !tile.tile<128x64xf32> -> !tile.tile<128x1xf32>
// CHECK-NEXT:       %peak = tile.map mul %row_max, %unit
// CHECK-NEXT:       %new_top = tile.map max %top, %peak
// CHECK-NEXT:       %minus_top = tile.map neg %new_top
// CHECK-NEXT:       %exponents = tile.map fma %scores, %unit, %minus_top
// CHECK-NEXT:       %weights = tile.map exp2 %exponents
// CHECK-NEXT:       %fallen = tile.map add %top, %minus_top
// CHECK-NEXT:       %kept = tile.map exp2 %fallen
// CHECK-NEXT:       %gained = tile.reduce sum %weights axis 1 : !tile.tile<128x64xf32> -> !tile.tile<128x8xf32>
// CHECK-NEXT:       %new_total = tile.map fma %total, %kept, %gained
// CHECK-NEXT:       %rescaled = tile.map mul %sums, %kept
// CHECK-NEXT:       %p = tile.cast %weights
// CHECK-NEXT:       %v_tile = tile.load %v[%b, %kv_head, %j, %c0]
// CHECK-NEXT:       %new_sums = tile.dot %p, %v_tile into %rescaled :
// CHECK-NEXT:       scf.yield %new_top, %new_total, %new_sums
// CHECK-NEXT:     } {emmy.hidden_is_identity}
// CHECK-NEXT:     %sum = tile.reduce sum %last_total axis 1 : !tile.tile<128x8xf32> -> !tile.tile<128x1xf32>
// CHECK:          tile.store %rounded, %o[%b, %h, %m, %c0]
// SMALL-LABEL:  func.func @plain
// SMALL:          block = [128, 64, 64], warps = [4, 1], stages = 2
func.func @plain(%q: tensor<2x4x256x64xf16>, %k: tensor<2x2x512x64xf16>, %v: tensor<2x2x512x64xf16>) -> tensor<2x4x256x64xf16> {
  %o = tensor_op.attention %q, %k, %v scale 0.125
    : (tensor<2x4x256x64xf16>, tensor<2x2x512x64xf16>, tensor<2x2x512x64xf16>) -> tensor<2x4x256x64xf16>
  func.return %o : tensor<2x4x256x64xf16>
}

// Sizes at run time, an odd head dimension, a window: rows stand at key m + keys - rows; the loop begins at a whole block.
// CHECK-LABEL:  func.func @window
// CHECK:          tile.launch @window_kernel[%tiles] (%q, %k, %o)
// CHECK:        tile.kernel @window_kernel
// CHECK:          %q_tile = tile.load %q[%b, %h, %m, %c0] : !tile.view<?x8x?x59xf16> -> !tile.tile<128x64xf16>
// CHECK:          %shift = arith.subi %keys, %rows : index
// CHECK-NEXT:     %first = arith.addi %m, %shift : index
// CHECK:          %reach = arith.addi %first, %c128 : index
// CHECK-NEXT:     %last = arith.minsi %reach, %keys : index
// CHECK-NEXT:     %high = arith.maxsi %last, %c0 : index
// CHECK:          %reach_back = arith.subi %first, %c99 : index
// CHECK-NEXT:     %oldest = arith.maxsi %reach_back, %c0 : index
// CHECK:          %blocks = arith.divui %oldest, %c16 : index
// CHECK-NEXT:     %low = arith.muli %blocks, %c16 : index
// CHECK:          %before_first = arith.subi %first, %c100 : index
// CHECK-NEXT:     %before = tile.coord 0 from %before_first : !tile.tile<128x1xi32>
// CHECK-NEXT:     %position = tile.coord 0 from %first : !tile.tile<128x1xi32>
// CHECK:          scf.for %j = %low to %high step %c64
// CHECK:            %k_tile = tile.load %k[%b, %c0, %j, %c0]
// CHECK:            %key = tile.coord 1 from %j : !tile.tile<1x64xi32>
// CHECK-NEXT:       %seen = tile.map lt %before, %key : (!tile.tile<128x1xi32>, !tile.tile<1x64xi32>) -> !tile.tile<128x64xi1>
// CHECK-NEXT:       %shown = tile.map select %seen, %scores, %hidden
// CHECK-NEXT:       %seen_1 = tile.map ge %position, %key
// CHECK-NEXT:       %shown_1 = tile.map select %seen_1, %shown, %hidden
// CHECK-NEXT:       %row_max = tile.reduce max %shown_1 axis 1
func.func @window(%q: tensor<?x8x?x59xf16>, %k: tensor<?x1x?x59xf16>) -> tensor<?x8x?x59xf16> {
  %o = tensor_op.attention %q, %k, %k scale 1.0 causal window 100
    : (tensor<?x8x?x59xf16>, tensor<?x1x?x59xf16>, tensor<?x1x?x59xf16>) -> tensor<?x8x?x59xf16>
  func.return %o : tensor<?x8x?x59xf16>
}

// A cap, a bias of one row for all heads, logarithms, hybrid sums; keys that are no whole blocks are compared with their number.
// CHECK-LABEL:  tile.kernel @capped_kernel
// CHECK-DAG:      %inner_scale = arith.constant 6.250000e-02 : f32
// CHECK-DAG:      %scale = arith.constant 2.000000e+00 : f32
// CHECK-DAG:      %unit = arith.constant 1.44269502 : f32
// CHECK:          %uncapped = tile.map mul %scores, %inner_scale
// CHECK-NEXT:     %capped = tile.map tanh %uncapped
// CHECK-NEXT:     %bias_tile = tile.load %bias[%c0, %c0, %c0, %j] : !tile.view<1x1x1x100xbf16> -> !tile.tile<1x64xbf16>
// CHECK-NEXT:     %bias_f32 = tile.cast %bias_tile : !tile.tile<1x64xbf16> to !tile.tile<1x64xf32>
// CHECK-NEXT:     %biased = tile.map fma %capped, %scale, %bias_f32
// CHECK-NEXT:     %key = tile.coord 1 from %j
// CHECK-NEXT:     %seen = tile.map lt %key, %c100 : (!tile.tile<1x64xi32>, index) -> !tile.tile<1x64xi1>
// CHECK-NEXT:     %shown = tile.map select %seen, %biased, %hidden
// CHECK:          tile.dot %p, %v_tile into %rescaled accumulate<hybrid, max_k = 64> :
// CHECK:          %log2_sum = tile.map log2 %sum
// CHECK-NEXT:     %exponent = tile.map add %last_top, %log2_sum
// CHECK:          %log_sum = tile.map mul %exponent, %ln2
// CHECK-NEXT:     %log_row = tile.squeeze %log_sum axis 1 : !tile.tile<128x1xf32> -> !tile.tile<128xf32>
// CHECK-NEXT:     tile.store %log_row, %lse[%b, %h, %m] : !tile.tile<128xf32>, !tile.view<1x2x100xf32>
func.func @capped(%q: tensor<1x2x100x16xf16>, %bias: tensor<1x1x1x100xbf16>) -> (tensor<1x2x100x16xf16>, tensor<1x2x100xf32>) {
  %o, %lse = tensor_op.attention %q, %q, %q scale 0.125 softcap 2.0 bias %bias accumulate<hybrid>
    : (tensor<1x2x100x16xf16>, tensor<1x2x100x16xf16>, tensor<1x2x100x16xf16>, tensor<1x1x1x100xbf16>)
      -> (tensor<1x2x100x16xf16>, tensor<1x2x100xf32>)
  func.return %o, %lse : tensor<1x2x100x16xf16>, tensor<1x2x100xf32>
}

// Larger heads take fewer keys or stages; a pinned schedule stays.
// SMALL-LABEL:  func.func @deep
// SMALL:          block = [64, 32, 256], warps = [4, 1], stages = 1
// SMALL:          block = [16, 16, 256], warps = [1, 1], stages = 1
func.func @deep(%q: tensor<1x8x512x256xbf16>) -> (tensor<1x8x512x256xbf16>, tensor<1x8x512x256xbf16>) {
  %o = tensor_op.attention %q, %q, %q scale 1.0
    : (tensor<1x8x512x256xbf16>, tensor<1x8x512x256xbf16>, tensor<1x8x512x256xbf16>) -> tensor<1x8x512x256xbf16>
  %p = tensor_op.attention %q, %q, %q scale 1.0 {emmy.schedule = #tile.schedule<block = [16, 16, 256], warps = [1, 1], stages = 1>}
    : (tensor<1x8x512x256xbf16>, tensor<1x8x512x256xbf16>, tensor<1x8x512x256xbf16>) -> tensor<1x8x512x256xbf16>
  func.return %o, %p : tensor<1x8x512x256xbf16>, tensor<1x8x512x256xbf16>
}

// One query of 8 heads that share 2 key heads: four rows each, all at the last key, so that nothing is after them. Few rows
// have their keys split over as many CTAs as run at once; a second kernel combines.
// CHECK-LABEL:  func.func @decode
// CHECK:          %q_1 = tile.reshape %q : tensor<1x8x1x128xf16> to tensor<1x2x4x128xf16>
// CHECK-NEXT:     %o_1 = tile.reshape %o : tensor<1x8x1x128xf16> to tensor<1x2x4x128xf16>
// CHECK:          %blocks = arith.ceildivui %{{size[_0-9]*}}, %c64 : index
// CHECK:          %sms = tile.sm_count
// CHECK-NEXT:     %c3 = arith.constant 3 : index
// CHECK-NEXT:     %slots = arith.muli %sms, %c3 : index
// CHECK:          %shares = arith.divui %slots, %c2 : index
// CHECK:          %splits = arith.ceildivui %some_blocks, %each : index
// CHECK-NEXT:     %part_sums = tile.alloc[%splits] : tensor<1x2x?x512xf32>
// CHECK-NEXT:     %part_tops = tile.alloc[%splits] : tensor<1x2x?x32xf32>
// CHECK-NEXT:     %part_totals = tile.alloc[%splits] : tensor<1x2x?x32xf32>
// CHECK-NEXT:     %part_sums_1 = tile.reshape %part_sums : tensor<1x2x?x512xf32> to tensor<1x2x?x4x128xf32>
// CHECK-NEXT:     %part_tops_1 = tile.reshape %part_tops : tensor<1x2x?x32xf32> to tensor<1x2x?x4x8xf32>
// CHECK:          tile.launch @decode_kernel[%ctas] (%q_1, %k, %v, %part_sums_1, %part_tops_1, %part_totals_1)
// CHECK:          tile.launch @decode_kernel_combine[%c32] (%part_sums, %part_tops, %part_totals, %o_1)
// CHECK:        tile.kernel @decode_kernel
// CHECK-SAME:     block = [16, 64, 128], warps = [1, 1], stages = 2, splits = 3
// CHECK-NEXT:     tile.launch_dependents
// CHECK:          %b, %h, %x, %m = tile.grid [%c1 by 1, %c2 by 1, %splits by 1, %c4 by 16]
// CHECK:          %before = arith.subi %keys, %c1025 : index
// CHECK:          %span = arith.subi %keys, %low : index
// CHECK:          %from = arith.addi %low, %skipped : index
// CHECK:          %to = arith.minsi %until, %keys : index
// CHECK:          scf.for %j = %from to %to
// CHECK:            tile.map lt %key, %keys
// CHECK:            tile.map lt %before, %key
// CHECK:          tile.store %last_sums, %part_sums[%b, %h, %x, %m, %c0]
// CHECK:          tile.store %tops, %part_tops[%b, %h, %x, %m, %c0]
// CHECK:          tile.store %last_total, %part_totals[%b, %h, %x, %m, %c0]
// CHECK:        tile.kernel @decode_kernel_combine
// CHECK-SAME:     block = [64, 32, 16], warps = [1, 1], stages = 2
// CHECK-NEXT:     tile.dependency_wait
// CHECK:          %b, %h, %m, %e = tile.grid [%c1 by 1, %c2 by 1, %c4 by 1, %c128 by 32]
// CHECK:          scf.for %x = %c0 to %splits step %c64
// CHECK:            tile.load %part_tops[%b, %h, %x, %statistic]
// CHECK:            tile.load %part_sums[%b, %h, %x, %column]
// CHECK:            %highest = tile.reduce max %shown axis 0 : !tile.tile<64x1xf32> -> !tile.tile<1x1xf32>
// CHECK:            %gained_1 = tile.reduce sum %weighed_1 axis 0 : !tile.tile<64x32xf32> -> !tile.tile<1x32xf32>
// CHECK:            %new_sums = tile.map fma %sums, %kept, %gained_1
// CHECK:          %row = tile.squeeze %rounded axis 0 : !tile.tile<1x32xf16> -> !tile.tile<32xf16>
// CHECK:          tile.store %row, %o[%b, %h, %m, %e]
func.func @decode(%q: tensor<1x8x1x128xf16>, %k: tensor<1x2x?x128xf16>, %v: tensor<1x2x?x128xf16>) -> tensor<1x8x1x128xf16> {
  %o = tensor_op.attention %q, %k, %v scale 0.125 causal window 1024
    : (tensor<1x8x1x128xf16>, tensor<1x2x?x128xf16>, tensor<1x2x?x128xf16>) -> tensor<1x8x1x128xf16>
  func.return %o : tensor<1x8x1x128xf16>
}

// Four queries of 8 heads that share 2 key heads: 16 rows of one tile each, which a kernel copies together first. A row of the
// result is found by its head and its query.
// CHECK-LABEL:  func.func @queries
// CHECK:          %q_rows = tile.alloc[] : tensor<1x2x16x64xf16>
// CHECK-NEXT:     %q_heads = tile.reshape %q_rows : tensor<1x2x16x64xf16> to tensor<1x2x4x4x64xf16>
// CHECK:          tile.launch @queries_kernel_pack[%c8] (%q, %q_heads)
// CHECK:          tile.launch @queries_kernel[%ctas] (%q_rows, %k, %v
// CHECK:          tile.launch @queries_kernel_combine[%c64] (%part_sums, %part_tops, %part_totals, %o)
// CHECK:        tile.kernel @queries_kernel_pack
// CHECK:          tile.store %q_tile, %q_heads[%b, %group, %head, %m, %e]
// CHECK:        tile.kernel @queries_kernel
// CHECK:          %of_next_head = tile.map ge %row_number, %c4
// CHECK:          tile.map select %of_next_head
// CHECK:        tile.kernel @queries_kernel_combine
// CHECK:          %group = arith.divui %h, %c4
// CHECK:          tile.load %part_sums[%b, %group, %x, %column]
func.func @queries(%q: tensor<1x8x4x64xf16>, %k: tensor<1x2x?x64xf16>, %v: tensor<1x2x?x64xf16>) -> tensor<1x8x4x64xf16> {
  %o = tensor_op.attention %q, %k, %v scale 0.125 causal
    : (tensor<1x8x4x64xf16>, tensor<1x2x?x64xf16>, tensor<1x2x?x64xf16>) -> tensor<1x8x4x64xf16>
  func.return %o : tensor<1x8x4x64xf16>
}
