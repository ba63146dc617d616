// RUN: emmy-opt %s -p 'lower-tensor-op' | filecheck %s
// RUN: emmy-opt %s -p 'lower-tensor-op' | emmy-opt | filecheck %s

// One product: the host allocates and launches, the kernel walks over K. K = 100 is no multiple of 64: edges need no code.
// CHECK-LABEL:  func.func @one(%a: tensor<?x100xf16>, %b: tensor<4096x100xf16>) -> tensor<?x4096xf16> {
// CHECK-NEXT:     [[SIZE:%\S+]] = tile.dim %a, 0 : tensor<?x100xf16>
// CHECK-NEXT:     %y = tile.alloc[[[SIZE]]] : tensor<?x4096xf16>
// CHECK-NEXT:     [[TILES:%\S+]] = arith.constant 16 : index
// CHECK-NEXT:     [[BM:%\S+]] = arith.constant 128 : index
// CHECK-NEXT:     [[ROWS:%\S+]] = arith.ceildivui [[SIZE]], [[BM]] : index
// CHECK-NEXT:     [[CTAS:%\S+]] = arith.muli [[ROWS]], [[TILES]] : index
// CHECK-NEXT:     tile.launch @one_kernel[[[CTAS]]] (%a, %b, %y) : tensor<?x100xf16>, tensor<4096x100xf16>, tensor<?x4096xf16>
// CHECK-NEXT:     func.return %y : tensor<?x4096xf16>
// CHECK-NEXT:   }
// CHECK-NEXT:   tile.kernel @one_kernel(%a: !tile.view<?x100xf16>, %b: !tile.view<4096x100xf16>, %y: !tile.view<?x4096xf16>) schedule <block = [128, 256, 64], warps = [2, 4], raster = 4> {
// CHECK-NEXT:     [[M:%\S+]] = tile.dim %a, 0 : !tile.view<?x100xf16>
// CHECK-NEXT:     %c4096 = arith.constant 4096 : index
// CHECK-NEXT:     %m, %n = tile.grid [[[M]] by 128, %c4096 by 256] raster 4
// CHECK-NEXT:     %c0 = arith.constant 0 : index
// CHECK-NEXT:     %c100 = arith.constant 100 : index
// CHECK-NEXT:     %c64 = arith.constant 64 : index
// CHECK-NEXT:     %zero = tile.fill 0.000000e+00 : f32 : !tile.tile<128x256xf32>
// CHECK-NEXT:     %acc = scf.for %k = %c0 to %c100 step %c64 iter_args(%sum = %zero) -> (!tile.tile<128x256xf32>) {
// CHECK-NEXT:       %x = tile.load %a[%m, %k] : !tile.view<?x100xf16> -> !tile.tile<128x64xf16>
// CHECK-NEXT:       %w = tile.load %b[%n, %k] : !tile.view<4096x100xf16> -> !tile.tile<256x64xf16>
// CHECK-NEXT:       %total = tile.dot %x, %w into %sum transpose_b accumulate<f32> : (!tile.tile<128x64xf16>, !tile.tile<256x64xf16>, !tile.tile<128x256xf32>) -> !tile.tile<128x256xf32>
// CHECK-NEXT:       scf.yield %total : !tile.tile<128x256xf32>
// CHECK-NEXT:     }
// CHECK-NEXT:     [[OUT:%\S+]] = tile.cast %acc : !tile.tile<128x256xf32> to !tile.tile<128x256xf16>
// CHECK-NEXT:     tile.store [[OUT]], %y[%m, %n] : !tile.tile<128x256xf16>, !tile.view<?x4096xf16>
// CHECK-NEXT:   }
func.func @one(%a: tensor<?x100xf16>, %b: tensor<4096x100xf16>) -> tensor<?x4096xf16> {
  %y = tensor_op.matmul %a, %b transpose_b {emmy.schedule = #tile.schedule<block = [128, 256, 64], warps = [2, 4], raster = 4>} : (tensor<?x100xf16>, tensor<4096x100xf16>) -> tensor<?x4096xf16>
  func.return %y : tensor<?x4096xf16>
}

// A stored [K, M] and batch dimensions; every size may be `?`. f16 sums are a tile of f16 and need no rounding.
// CHECK-LABEL:  func.func @batch
// CHECK:          %y = tile.alloc[{{%\S+}}, {{%\S+}}, {{%\S+}}] : tensor<?x3x?x?xf16>
// CHECK:        tile.kernel @batch_kernel(
// CHECK:          [[I:%\S+]], [[J:%\S+]], %m, %n = tile.grid [{{%\S+}} by 1, %c3 by 1, {{%\S+}} by 64, {{%\S+}} by 64] raster 8
// CHECK:          [[K:%\S+]] = tile.dim %a, 2 : !tile.view<?x3x?x?xf16, align 16>
// CHECK:          %zero = tile.fill 0.000000e+00 : f16 : !tile.tile<64x64xf16>
// CHECK:          scf.for %k = %c0 to [[K]] step %c32
// CHECK-NEXT:       %x = tile.load %a[[[I]], [[J]], %k, %m] : !tile.view<?x3x?x?xf16, align 16> -> !tile.tile<32x64xf16>
// CHECK-NEXT:       %w = tile.load %b[[[I]], [[J]], %k, %n] : !tile.view<?x3x?x?xf16, align 16> -> !tile.tile<32x64xf16>
// CHECK-NEXT:       %total = tile.dot %x, %w into %sum transpose_a accumulate<f16> :
// CHECK:          tile.store %acc, %y[[[I]], [[J]], %m, %n] : !tile.tile<64x64xf16>, !tile.view<?x3x?x?xf16, align 16>
func.func @batch(%a: tensor<?x3x?x?xf16>, %b: tensor<?x3x?x?xf16>) -> tensor<?x3x?x?xf16> {
  %y = tensor_op.matmul %a, %b transpose_a accumulate<f16> {emmy.schedule = #tile.schedule<block = [64, 64, 32], warps = [2, 2]>} : (tensor<?x3x?x?xf16>, tensor<?x3x?x?xf16>) -> tensor<?x3x?x?xf16>
  func.return %y : tensor<?x3x?x?xf16>
}

// What follows a product on the same shape stays in the kernel, and so does what only it reads (%b32). Maps are f32.
// CHECK-LABEL:  func.func @epilogue
// CHECK:          tile.launch @epilogue_kernel[{{%\S+}}] (%a, %b, %bias, %r, %z, %q)
// CHECK-NEXT:     func.return %z, %q
// CHECK:        tile.kernel @epilogue_kernel(
// CHECK:          [[BIAS:%\S+]] = tile.load %bias[%n] : !tile.view<128xbf16> -> !tile.tile<128xbf16>
// CHECK-NEXT:     [[BIAS32:%\S+]] = tile.cast [[BIAS]] : !tile.tile<128xbf16> to !tile.tile<128xf32>
// CHECK-NEXT:     [[Z:%\S+]] = tile.map add %acc, [[BIAS32]] : (!tile.tile<64x128xf32>, !tile.tile<128xf32>) -> !tile.tile<64x128xf32>
// CHECK-NEXT:     [[R:%\S+]] = tile.load %r[%m, %c0{{.*}}] : !tile.view<64x1xbf16> -> !tile.tile<64x1xbf16>
// CHECK-NEXT:     [[R32:%\S+]] = tile.cast [[R]] : !tile.tile<64x1xbf16> to !tile.tile<64x1xf32>
// CHECK-NEXT:     [[Q32:%\S+]] = tile.map mul [[Z]], [[R32]] : (!tile.tile<64x128xf32>, !tile.tile<64x1xf32>) -> !tile.tile<64x128xf32>
// CHECK-NEXT:     [[Q:%\S+]] = tile.cast [[Q32]] : !tile.tile<64x128xf32> to !tile.tile<64x128xbf16>
// CHECK-NEXT:     tile.store [[Z]], %z[%m, %n]
// CHECK-NEXT:     tile.store [[Q]], %q[%m, %n]
func.func @epilogue(%a: tensor<64x64xbf16>, %b: tensor<128x64xbf16>, %bias: tensor<128xbf16>, %r: tensor<64x1xbf16>) -> (tensor<64x128xf32>, tensor<64x128xbf16>) {
  %b32 = tensor_op.cast %bias : tensor<128xbf16> to tensor<128xf32>
  %y = tensor_op.matmul %a, %b transpose_b {emmy.schedule = #tile.schedule<block = [64, 128, 64], warps = [2, 2]>} : (tensor<64x64xbf16>, tensor<128x64xbf16>) -> tensor<64x128xf32>
  %z = tensor_op.map add %y, %b32 : (tensor<64x128xf32>, tensor<128xf32>) -> tensor<64x128xf32>
  %q = tensor_op.map mul %z, %r : (tensor<64x128xf32>, tensor<64x1xbf16>) -> tensor<64x128xbf16>
  func.return %z, %q : tensor<64x128xf32>, tensor<64x128xbf16>
}

// Two products: a kernel each, the second reads what the first has stored. What nothing reads is dropped.
// CHECK-LABEL:  func.func @two
// CHECK-NOT:      emmy.schedule
// CHECK:          tile.launch @two_kernel0[{{%\S+}}] (%x, %u, %b)
// CHECK:          tile.launch @two_kernel1[{{%\S+}}] (%x, %g, %b, %d)
// CHECK-NEXT:     func.return %d
// CHECK-NOT:    @two_kernel2
func.func @two(%x: tensor<64x64xf16>, %g: tensor<64x64xf16>, %u: tensor<64x64xf16>) -> tensor<64x64xf16> {
  %a = tensor_op.matmul %x, %g {emmy.schedule = #tile.schedule<block = [64, 64, 64], warps = [2, 2]>} : (tensor<64x64xf16>, tensor<64x64xf16>) -> tensor<64x64xf16>
  %b = tensor_op.matmul %x, %u {emmy.schedule = #tile.schedule<block = [64, 64, 64], warps = [2, 2]>} : (tensor<64x64xf16>, tensor<64x64xf16>) -> tensor<64x64xf16>
  %c = tensor_op.map gelu_tanh %a : (tensor<64x64xf16>) -> tensor<64x64xf16>
  %d = tensor_op.map mul %c, %b : (tensor<64x64xf16>, tensor<64x64xf16>) -> tensor<64x64xf16>
  %dead = tensor_op.matmul %d, %u : (tensor<64x64xf16>, tensor<64x64xf16>) -> tensor<64x64xf16>
  func.return %d : tensor<64x64xf16>
}

// Elementwise ops alone are a kernel without a schedule.
// CHECK-LABEL:  func.func @elementwise
// CHECK:        tile.kernel @elementwise_kernel(%x: !tile.view<?xf16, align 16>, %y: !tile.view<5x?xf16, align 16>, %b: !tile.view<5x?xf32, align 16>) {
// CHECK:          %m, %n = tile.grid [%c5 by 32, {{%\S+}} by 256] raster 1
// CHECK:          tile.map exp {{%\S+}} : (!tile.tile<256xf32>) -> !tile.tile<256xf32>
// CHECK:          tile.map mul {{%\S+}}, {{%\S+}} : (!tile.tile<256xf32>, !tile.tile<32x256xf32>) -> !tile.tile<32x256xf32>
func.func @elementwise(%x: tensor<?xf16>, %y: tensor<5x?xf16>) -> tensor<5x?xf32> {
  %a = tensor_op.map exp %x : (tensor<?xf16>) -> tensor<?xf32>
  %b = tensor_op.map mul %a, %y : (tensor<?xf32>, tensor<5x?xf16>) -> tensor<5x?xf32>
  func.return %b : tensor<5x?xf32>
}
