// RUN: emmy-opt %s -p lower-tile | filecheck %s
// RUN: emmy-opt %s -p lower-tile,verify-pipelines,lower-tile | filecheck %s

// A GEMM: one ring for both operands, two loops with the same bounds, four k-steps, the result by way of @out.
// CHECK-LABEL: tile.kernel @gemm
tile.kernel @gemm(%a: !tile.view<?x3840xf16>, %b: !tile.view<4096x3840xf16>, %c: !tile.view<?x4096xf16>) schedule <block = [128, 256, 64], warps = [2, 4], stages = 3> {
  // CHECK-NEXT: async_copy.pipeline @ab stages 3 {a = !tile.tile<128x64xf16>, b = !tile.tile<256x64xf16>}
  // CHECK-NEXT: async_copy.pipeline @out stages 1 {c = !tile.tile<128x256xf16>} outbound
  // CHECK-NEXT: %M = tile.dim %a, 0
  // CHECK:      %m, %n = tile.grid [%M by 128, %N by 256] raster 8
  %M = tile.dim %a, 0 : !tile.view<?x3840xf16>
  %N = arith.constant 4096 : index
  %K = arith.constant 3840 : index
  %c0 = arith.constant 0 : index
  %c64 = arith.constant 64 : index
  %m, %n = tile.grid [%M by 128, %N by 256] raster 8
  %zero = tile.fill 0.0 : f32 : !tile.tile<128x256xf32>
  %acc = scf.for %k = %c0 to %K step %c64 iter_args(%s = %zero) -> (!tile.tile<128x256xf32>) {
    %x = tile.load %a[%m, %k] : !tile.view<?x3840xf16> -> !tile.tile<128x64xf16>
    %y = tile.load %b[%n, %k] : !tile.view<4096x3840xf16> -> !tile.tile<256x64xf16>
    %d = tile.dot %x, %y into %s transpose_b accumulate<f32> : (!tile.tile<128x64xf16>, !tile.tile<256x64xf16>, !tile.tile<128x256xf32>) -> !tile.tile<128x256xf32>
    scf.yield %d : !tile.tile<128x256xf32>
  }
  %half = tile.cast %acc : !tile.tile<128x256xf32> to !tile.tile<128x256xf16>
  tile.store %half, %c[%m, %n] : !tile.tile<128x256xf16>, !tile.view<?x4096xf16>
  // CHECK-NEXT: async_copy.producer {
  // CHECK-NEXT:   %ab_fill = async_copy.begin_fill @ab
  // CHECK-NEXT:   scf.for %k = %c0 to %K step %c64 iter_args(%ab_cursor = %ab_fill)
  // CHECK-NEXT:     %ab_slot, %ab_next = async_copy.acquire @ab[%ab_cursor]
  // CHECK-NEXT:     async_copy.copy %a[%m, %k] -> %ab_slot["a"]
  // CHECK-NEXT:     async_copy.copy %b[%n, %k] -> %ab_slot["b"]
  // CHECK-NEXT:     async_copy.commit @ab, %ab_slot
  // CHECK-NEXT:     scf.yield %ab_next
  // CHECK:        async_copy.drain @ab
  // CHECK-NEXT: }
  // CHECK-NEXT: async_copy.consumer {
  // CHECK-NEXT:   %warp_m = mma.warp 0 of [2, 4]
  // CHECK-NEXT:   %row = arith.muli %warp_m, %c64
  // CHECK-NEXT:   %warp_n = mma.warp 1 of [2, 4]
  // CHECK-NEXT:   %col = arith.muli %warp_n, %c64
  // CHECK-NEXT:   %c16 = arith.constant 16
  // CHECK-NEXT:   %c32 = arith.constant 32
  // CHECK-NEXT:   %c48 = arith.constant 48
  // CHECK-NEXT:   %zero = mma.fill 0.000000e+00 : f32 : !mma.fragment<64x64xf32, c, m16n8k16>
  // CHECK-NEXT:   %ab_read = async_copy.begin_read @ab
  // CHECK-NEXT:   %acc, %ab_done = scf.for %{{.*}} = %c0 to %K step %c64 iter_args(%s = %zero, %{{.*}} = %ab_read)
  // CHECK-NEXT:     [[SLOT:%[a-z_0-9]+]], [[NEXT:%[a-z_0-9]+]] = async_copy.wait @ab
  // CHECK-NEXT:     %a0 = mma.load [[SLOT]]["a"] [%row, %c0] : !async_copy.slot<@ab, read> -> !mma.fragment<64x16xf16, a, m16n8k16>
  // CHECK-NEXT:     %b0 = mma.load [[SLOT]]["b"] [%col, %c0] : !async_copy.slot<@ab, read> -> !mma.fragment<64x16xf16, b, m16n8k16>
  // CHECK-NEXT:     [[S0:%[0-9]+]] = mma.mma %a0, %b0, %s :
  // CHECK-NEXT:     %a1 = mma.load [[SLOT]]["a"] [%row, %c16]
  // CHECK-NEXT:     %b1 = mma.load [[SLOT]]["b"] [%col, %c16]
  // CHECK-NEXT:     [[S1:%[0-9]+]] = mma.mma %a1, %b1, [[S0]] :
  // CHECK:          %d = mma.mma %a3, %b3,
  // CHECK-NEXT:     async_copy.release @ab, [[SLOT]]
  // CHECK-NEXT:     scf.yield %d, [[NEXT]]
  // CHECK:        async_copy.drain @ab
  // CHECK-NEXT:   %half = mma.convert %acc : !mma.fragment<64x64xf32, c, m16n8k16> to !mma.fragment<64x64xf16, c, m16n8k16>
  // CHECK-NEXT:   %out_fill = async_copy.begin_fill @out
  // CHECK-NEXT:   %out_slot, %out_next = async_copy.acquire @out[%out_fill]
  // CHECK-NEXT:   mma.store %half -> %out_slot["c"] [%row, %col]
  // CHECK-NEXT:   async_copy.store %out_slot["c"] -> %c[%m, %n]
  // CHECK-NEXT:   async_copy.commit @out, %out_slot
  // CHECK-NEXT:   async_copy.drain @out
  // CHECK-NEXT: }
}

// Both operands stored with K outside, batches, hybrid sums, bias and residual, one warp a row, results straight out.
// CHECK-LABEL: tile.kernel @fused
tile.kernel @fused(%x: !tile.view<3x64x100xf16>, %w: !tile.view<3x64x128xf16>, %bias: !tile.view<128xf16>, %res: !tile.view<3x100x128xf16>, %y: !tile.view<3x100x128xf16>) schedule <block = [64, 64, 32], warps = [1, 2], stages = 2, epilogue = direct> {
  // CHECK-NEXT: async_copy.pipeline @xw stages 2 {x = !tile.tile<32x64xf16>, w = !tile.tile<32x64xf16>}
  // CHECK-NEXT: async_copy.pipeline @bias stages 1 {bias = !tile.tile<64xf16>}
  // CHECK-NEXT: async_copy.pipeline @res stages 1 {res = !tile.tile<64x64xf16>}
  // CHECK-NOT:  outbound
  %c0 = arith.constant 0 : index
  %c3 = arith.constant 3 : index
  %c32 = arith.constant 32 : index
  %c64 = arith.constant 64 : index
  %c100 = arith.constant 100 : index
  %c128 = arith.constant 128 : index
  %b, %m, %n = tile.grid [%c3 by 1, %c100 by 64, %c128 by 64] raster 1
  %zero = tile.fill 0.0 : f32 : !tile.tile<64x64xf32>
  // CHECK:      async_copy.producer {
  // CHECK:        async_copy.copy %x[%b, %k, %m] -> [[F:%[a-z_0-9]+]]["x"]
  // CHECK-NEXT:   async_copy.copy %w[%b, %k, %n] -> [[F]]["w"]
  // CHECK:        async_copy.copy %bias[%n] ->
  // CHECK:        async_copy.copy %res[%b, %m, %n] ->
  // CHECK:        async_copy.drain @xw
  // CHECK-NEXT:   async_copy.drain @bias
  // CHECK-NEXT:   async_copy.drain @res
  // CHECK-NEXT: }
  // CHECK:        [[X:%[a-z_0-9]+]], {{.*}} = async_copy.wait @xw
  // CHECK-NEXT:   %a0 = mma.load [[X]]["x"] [%c0, %c0] transposed : {{.*}} -> !mma.fragment<64x16xf16, a, m16n8k16>
  // CHECK-NEXT:   %b0 = mma.load [[X]]["w"] [%c0, %col] transposed : {{.*}} -> !mma.fragment<32x16xf16, b, m16n8k16>
  // CHECK-NEXT:   mma.mma %a0, %b0, %s accumulate<hybrid, max_k = 32> :
  // CHECK-NEXT:   %a1 = mma.load [[X]]["x"] [%c16, %c0] transposed
  // CHECK:        async_copy.drain @xw
  %acc = scf.for %k = %c0 to %c64 step %c32 iter_args(%s = %zero) -> (!tile.tile<64x64xf32>) {
    %tx = tile.load %x[%b, %k, %m] : !tile.view<3x64x100xf16> -> !tile.tile<32x64xf16>
    %tw = tile.load %w[%b, %k, %n] : !tile.view<3x64x128xf16> -> !tile.tile<32x64xf16>
    %d = tile.dot %tx, %tw into %s transpose_a accumulate<hybrid, max_k = 32> : (!tile.tile<32x64xf16>, !tile.tile<32x64xf16>, !tile.tile<64x64xf32>) -> !tile.tile<64x64xf32>
    scf.yield %d : !tile.tile<64x64xf32>
  }
  // A loaded tile of an elementwise op is waited for at its first use and is free as soon as it is in registers.
  // CHECK:        [[BIAS:%[a-z_0-9]+]], {{.*}} = async_copy.wait @bias
  // CHECK-NEXT:   %vec = mma.load [[BIAS]]["bias"] [%col] : !async_copy.slot<@bias, read> -> !mma.fragment<1x32xf16, c, m16n8k16>
  // CHECK-NEXT:   %wide = mma.convert %vec : {{.*}} to !mma.fragment<1x32xf32, c, m16n8k16>
  // CHECK-NEXT:   async_copy.release @bias, [[BIAS]]
  // CHECK-NEXT:   async_copy.drain @bias
  // CHECK-NEXT:   %sum = mma.map add %acc, %wide : (!mma.fragment<64x32xf32, c, m16n8k16>, !mma.fragment<1x32xf32, c, m16n8k16>) -> !mma.fragment<64x32xf32, c, m16n8k16>
  // CHECK:        mma.load %{{.*}}["res"] [%c0, %col] : !async_copy.slot<@res, read> -> !mma.fragment<64x32xf16, c, m16n8k16>
  // CHECK:        [[J:%[0-9]+]] = arith.addi %n, %col
  // CHECK-NEXT:   mma.store_global %out -> %y[%b, %m, [[J]]]
  %vec = tile.load %bias[%n] : !tile.view<128xf16> -> !tile.tile<64xf16>
  %wide = tile.cast %vec : !tile.tile<64xf16> to !tile.tile<64xf32>
  %sum = tile.map add %acc, %wide : (!tile.tile<64x64xf32>, !tile.tile<64xf32>) -> !tile.tile<64x64xf32>
  %r = tile.load %res[%b, %m, %n] : !tile.view<3x100x128xf16> -> !tile.tile<64x64xf16>
  %half = tile.cast %sum : !tile.tile<64x64xf32> to !tile.tile<64x64xf16>
  %out = tile.map add %half, %r : (!tile.tile<64x64xf16>, !tile.tile<64x64xf16>) -> !tile.tile<64x64xf16>
  tile.store %out, %y[%b, %m, %n] : !tile.tile<64x64xf16>, !tile.view<3x100x128xf16>
}

// Not a template: two products in two nested loops share one operand; each ring has one place of last use, and the offset
// that a loop carries is carried by both halves.
// CHECK-LABEL: tile.kernel @nested
tile.kernel @nested(%x: !tile.view<64x64xf16>, %u: !tile.view<32x64xf16>, %v: !tile.view<32x64xf16>, %y: !tile.view<64x32xf16>) schedule <block = [64, 32, 32], warps = [2, 2], stages = 2> {
  // CHECK-NEXT: async_copy.pipeline @xv stages 2 {x = {{.*}}, v = {{.*}}}
  // CHECK-NEXT: async_copy.pipeline @u stages 2 {u = {{.*}}}
  // CHECK-NEXT: async_copy.pipeline @out stages 1 {y = !tile.tile<64x32xf16>} outbound
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %c1 = arith.constant 1 : index
  %c32 = arith.constant 32 : index
  %zero = tile.fill 0.0 : f16 : !tile.tile<64x32xf16>
  // CHECK:      async_copy.producer {
  // CHECK:        scf.for {{.*}} iter_args(%at = %c0, {{.*}} = %xv_fill, {{.*}} = %u_fill) -> (index, !async_copy.cursor<@xv, fill>, !async_copy.cursor<@u, fill>)
  // CHECK-NEXT:     scf.for {{.*}} -> (!async_copy.cursor<@xv, fill>, !async_copy.cursor<@u, fill>)
  // CHECK:            async_copy.copy %u[%c0, %at]
  // CHECK:            async_copy.copy %x[%c0, %at]
  // CHECK:            async_copy.copy %v[%c0, %at]
  // CHECK:          %next = arith.addi %at, %c32
  // CHECK:      async_copy.consumer {
  // CHECK:        async_copy.wait @xv
  // CHECK:        mma.load %{{.*}}["x"]
  // CHECK-NEXT:   mma.load %{{.*}}["v"]
  // CHECK:        async_copy.wait @u
  // CHECK:        mma.load %{{.*}}["u"]
  // CHECK:        async_copy.release @u
  // CHECK:        mma.load %{{.*}}["x"]
  // CHECK:        async_copy.release @xv
  %acc, %end = scf.for %i = %c0 to %c2 step %c1 iter_args(%s = %zero, %at = %c0) -> (!tile.tile<64x32xf16>, index) {
    %t = scf.for %j = %c0 to %c2 step %c1 iter_args(%q = %s) -> (!tile.tile<64x32xf16>) {
      %tx = tile.load %x[%c0, %at] : !tile.view<64x64xf16> -> !tile.tile<64x32xf16>
      %tu = tile.load %u[%c0, %at] : !tile.view<32x64xf16> -> !tile.tile<32x32xf16>
      %tv = tile.load %v[%c0, %at] : !tile.view<32x64xf16> -> !tile.tile<32x32xf16>
      %d = tile.dot %tx, %tv into %q transpose_b accumulate<f16> : (!tile.tile<64x32xf16>, !tile.tile<32x32xf16>, !tile.tile<64x32xf16>) -> !tile.tile<64x32xf16>
      %e = tile.dot %tx, %tu into %d transpose_b accumulate<f16> : (!tile.tile<64x32xf16>, !tile.tile<32x32xf16>, !tile.tile<64x32xf16>) -> !tile.tile<64x32xf16>
      %f = tile.dot %tx, %tv into %e transpose_b accumulate<f16> : (!tile.tile<64x32xf16>, !tile.tile<32x32xf16>, !tile.tile<64x32xf16>) -> !tile.tile<64x32xf16>
      scf.yield %f : !tile.tile<64x32xf16>
    }
    %next = arith.addi %at, %c32 : index
    scf.yield %t, %next : !tile.tile<64x32xf16>, index
  }
  tile.store %acc, %y[%c0, %c0] : !tile.tile<64x32xf16>, !tile.view<64x32xf16>
}
