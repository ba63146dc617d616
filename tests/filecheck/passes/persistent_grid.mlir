// RUN: emmy-opt %s -p 'persistent-grid' | filecheck %s
// RUN: emmy-opt %s -p 'persistent-grid{ctas_per_sm=2}' | filecheck %s --check-prefix TWO
// RUN: emmy-opt %s -p 'persistent-grid,persistent-grid' | filecheck %s
// RUN: emmy-opt %s -p 'persistent-grid,lower-raster' | filecheck %s --check-prefix RASTER

// The launch is bounded; what does not depend on the tile stays before the loop; a second time changes nothing.
// CHECK-LABEL: func.func @mm
// CHECK:         %[[sms:.*]] = tile.sm_count
// CHECK-NEXT:    %[[ctas:.*]] = arith.minui %tiles, %[[sms]] : index
// CHECK-NEXT:    tile.launch @kernel[%[[ctas]]]
// CHECK-LABEL: tile.kernel @kernel
// CHECK-NEXT:    %rows = tile.dim %x, 0
// CHECK-NEXT:    %columns = arith.constant 128
// CHECK-NEXT:    arith.constant 63
// CHECK-NEXT:    arith.addi %rows
// CHECK-NEXT:    arith.constant 64
// CHECK-NEXT:    arith.divui
// CHECK-NEXT:    arith.constant 2
// CHECK-NEXT:    %[[tiles:.*]] = arith.muli
// CHECK-NEXT:    %[[first:.*]] = tile.cta_id
// CHECK-NEXT:    %[[step:.*]] = tile.cta_count
// CHECK-NEXT:    %c5 = arith.constant 5
// CHECK-NEXT:    scf.for %tile = %[[first]] to %[[tiles]] step %[[step]] {
// CHECK-NEXT:      %m, %n = tile.grid [%rows by 64, %columns by 64] raster 2 at %tile
// CHECK-NEXT:      tile.load
// CHECK-NEXT:      tile.store
// CHECK-NEXT:    }
// CHECK-NEXT:  }

// TWO:         %[[sms:.*]] = tile.sm_count
// TWO-NEXT:    %[[each:.*]] = arith.constant 2 : index
// TWO-NEXT:    %[[limit:.*]] = arith.muli %[[sms]], %[[each]] : index
// TWO-NEXT:    arith.minui %tiles, %[[limit]] : index

// RASTER-LABEL: tile.kernel @kernel
// RASTER:         scf.for %tile
// RASTER-NOT:     tile.cta_id
// RASTER:         arith.divui %tile
// RASTER:         tile.load

// Without persistent = 1 in its schedule a kernel stays as it is.
// CHECK-LABEL: tile.kernel @other
// CHECK-NEXT:    arith.constant
// CHECK-NEXT:    tile.grid
// CHECK-NEXT:    tile.load

func.func @mm(%x: tensor<?x128xf16>) -> tensor<?x128xf16> {
  %rows = tile.dim %x, 0 : tensor<?x128xf16>
  %y = tile.alloc[%rows] : tensor<?x128xf16>
  %c64 = arith.constant 64 : index
  %c2 = arith.constant 2 : index
  %0 = arith.ceildivui %rows, %c64 : index
  %tiles = arith.muli %0, %c2 : index
  tile.launch @kernel[%tiles] (%x, %y) : tensor<?x128xf16>, tensor<?x128xf16>
  func.return %y : tensor<?x128xf16>
}
tile.kernel @kernel(%x: !tile.view<?x128xf16>, %y: !tile.view<?x128xf16>) schedule <block = [64, 64, 16], warps = [2, 2], persistent = 1> {
  %rows = tile.dim %x, 0 : !tile.view<?x128xf16>
  %columns = arith.constant 128 : index
  %m, %n = tile.grid [%rows by 64, %columns by 64] raster 2
  %c5 = arith.constant 5 : index
  %t = tile.load %x[%m, %n] : !tile.view<?x128xf16> -> !tile.tile<64x64xf16>
  tile.store %t, %y[%m, %n] : !tile.tile<64x64xf16>, !tile.view<?x128xf16>
}
tile.kernel @other(%x: !tile.view<?x128xf16>, %y: !tile.view<?x128xf16>) schedule <block = [64, 64, 16], warps = [2, 2]> {
  %c128 = arith.constant 128 : index
  %m, %n = tile.grid [%c128 by 64, %c128 by 64] raster 2
  %t = tile.load %x[%m, %n] : !tile.view<?x128xf16> -> !tile.tile<64x64xf16>
  tile.store %t, %y[%m, %n] : !tile.tile<64x64xf16>, !tile.view<?x128xf16>
}
