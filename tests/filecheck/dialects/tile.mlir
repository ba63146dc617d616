// RUN: emmy-opt %s | emmy-opt | filecheck %s
// RUN: emmy-opt %s --print-op-generic | emmy-opt | filecheck %s

// CHECK:       func.func @host(%a: tensor<?x3840xf16>, %b: tensor<4096x3840xf16>) -> tensor<?x4096xf16> {
func.func @host(%a: tensor<?x3840xf16>, %b: tensor<4096x3840xf16>) -> tensor<?x4096xf16> {
  // CHECK-NEXT:    %M = tile.dim %a, 0 : tensor<?x3840xf16>
  // CHECK-NEXT:    %c = tile.alloc[%M] : tensor<?x4096xf16>
  %M = tile.dim %a, 0 : tensor<?x3840xf16>
  %c = tile.alloc [%M] : tensor<?x4096xf16>
  // CHECK:         tile.launch @kernel[%M] (%a, %b, %c) : tensor<?x3840xf16>, tensor<4096x3840xf16>, tensor<?x4096xf16>
  tile.launch @kernel[%M] (%a, %b, %c) : tensor<?x3840xf16>, tensor<4096x3840xf16>, tensor<?x4096xf16>
  // CHECK-NEXT:    tile.dispatch [@kernel[%M], @other[%M], @columns[%M] transposed [0]] (%a, %b, %c) : tensor<?x3840xf16>, tensor<4096x3840xf16>, tensor<?x4096xf16>
  tile.dispatch [@kernel[%M], @other[%M], @columns[%M] transposed [0]] (%a, %b, %c) : tensor<?x3840xf16>, tensor<4096x3840xf16>, tensor<?x4096xf16>
  // CHECK-NEXT:    tile.dispatch [@kernel[%M] time %M, @columns[%M] transposed [0] time %M, @other[%M]] (%a, %b, %c) : tensor<?x3840xf16>, tensor<4096x3840xf16>, tensor<?x4096xf16>
  tile.dispatch [@kernel[%M] time %M, @columns[%M] transposed [0] time %M, @other[%M]] (%a, %b, %c) : tensor<?x3840xf16>, tensor<4096x3840xf16>, tensor<?x4096xf16>
  func.return %c : tensor<?x4096xf16>
}

// CHECK:       tile.kernel @other(%a: !tile.view<?x3840xf16, strides [?, ?], align 2>, %b: !tile.view<4096x3840xf16, align 8>, %c: !tile.view<?x4096xf16, strides [?, 1], align 16>) {
tile.kernel @other(%a: !tile.view<?x3840xf16, align 2, strides [?, ?]>, %b: !tile.view<4096x3840xf16, align 8>, %c: !tile.view<?x4096xf16, strides [?, 1], align 16>) {
}

tile.kernel @columns(%a: !tile.view<3840x?xf16, strides [?, 1], align 16>, %b: !tile.view<4096x3840xf16>, %c: !tile.view<?x4096xf16>) {
}

// Fields of a schedule that have their default are not printed.
// CHECK:       tile.kernel @kernel(%a: !tile.view<?x3840xf16, strides [?, 1]>, %b: !tile.view<4096x3840xf16>, %c: !tile.view<?x4096xf16>) schedule <block = [128, 256, 64], warps = [2, 4], stages = 4> attributes {emmy.note = 1 : i64} {
tile.kernel @kernel(%a: !tile.view<?x3840xf16, strides [?, 1]>, %b: !tile.view<4096x3840xf16>, %c: !tile.view<?x4096xf16>)
    schedule <block = [128, 256, 64], stages = 4, warps = [2, 4], transport = auto> attributes {emmy.note = 1} {
  // CHECK-NEXT:    %M = tile.dim %a, 0 : !tile.view<?x3840xf16, strides [?, 1]>
  %M = tile.dim %a, 0 : !tile.view<?x3840xf16, strides [?, 1]>
  %N = arith.constant 4096 : index
  // CHECK:         %m, %n = tile.grid [%M by 128, %N by 256] raster 8
  %m, %n = tile.grid [%M by 128, %N by 256] raster 8
  // CHECK-NEXT:    tile.launch_dependents
  tile.launch_dependents
  // CHECK-NEXT:    tile.dependency_wait
  tile.dependency_wait
  // CHECK-NEXT:    %id = tile.cta_id
  %id = tile.cta_id
  // CHECK-NEXT:    %zero = tile.fill 0.000000e+00 : f32 : !tile.tile<128x256xf32>
  %zero = tile.fill 0.0 : f32 : !tile.tile<128x256xf32>
  // CHECK-NEXT:    %x = tile.load %a[%m, %id] : !tile.view<?x3840xf16, strides [?, 1]> -> !tile.tile<128x64xf16>
  %x = tile.load %a[%m, %id] : !tile.view<?x3840xf16, strides [?, 1]> -> !tile.tile<128x64xf16>
  %y = tile.load %b[%n, %id] : !tile.view<4096x3840xf16> -> !tile.tile<256x64xf16>
  // CHECK:         %d = tile.dot %x, %y into %zero transpose_b accumulate<f16> : (!tile.tile<128x64xf16>, !tile.tile<256x64xf16>, !tile.tile<128x256xf32>) -> !tile.tile<128x256xf32>
  %d = tile.dot %x, %y into %zero transpose_b accumulate<f16> : (!tile.tile<128x64xf16>, !tile.tile<256x64xf16>, !tile.tile<128x256xf32>) -> !tile.tile<128x256xf32>
  // CHECK-NEXT:    %r = tile.reduce max %d axis 1 : !tile.tile<128x256xf32> -> !tile.tile<128x1xf32>
  %r = tile.reduce max %d axis 1 : !tile.tile<128x256xf32> -> !tile.tile<128x1xf32>
  // CHECK-NEXT:    %s = tile.map sub %d, %r : (!tile.tile<128x256xf32>, !tile.tile<128x1xf32>) -> !tile.tile<128x256xf32>
  %s = tile.map sub %d, %r : (!tile.tile<128x256xf32>, !tile.tile<128x1xf32>) -> !tile.tile<128x256xf32>
  // CHECK-NEXT:    %i = tile.coord 0 from %m : !tile.tile<128x1xi32>
  %i = tile.coord 0 from %m : !tile.tile<128x1xi32>
  // CHECK-NEXT:    %out = tile.cast %s : !tile.tile<128x256xf32> to !tile.tile<128x256xf16>
  %out = tile.cast %s : !tile.tile<128x256xf32> to !tile.tile<128x256xf16>
  // CHECK-NEXT:    tile.store %out, %c[%m, %n] : !tile.tile<128x256xf16>, !tile.view<?x4096xf16>
  tile.store %out, %c[%m, %n] : !tile.tile<128x256xf16>, !tile.view<?x4096xf16>
}

// CHECK:       func.func @sizes(
func.func @sizes(%a: tensor<?x8xf16>, %b: tensor<?x8xf16>) {
  %m = tile.dim %a, 0 : tensor<?x8xf16>
  %n = tile.dim %b, 0 : tensor<?x8xf16>
  // CHECK:         tile.require_equal %m, %n, "a and b have as many rows"
  tile.require_equal %m, %n, "a and b have as many rows"
  func.return
}
