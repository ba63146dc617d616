// RUN: emmy-opt %s -p 'reduce-seldom' | filecheck %s
// RUN: emmy-opt %s -p 'reduce-seldom,reduce-seldom' | filecheck %s

// Lanes compare the maxima of their own columns; where one reaches the limit, all is as before.
// CHECK-LABEL: tile.kernel @lazy
// CHECK:         scf.for
// CHECK:           %limit = mma.map add %top, %lazy
// CHECK-NEXT:      %[[part:.*]] = mma.reduce max %x : !mma.fragment<16x32xf32, c, m16n8k16> -> !mma.fragment<16x8xf32, c, m16n8k16>
// CHECK-NEXT:      %[[high:.*]] = mma.map mul %[[part]], %unit
// CHECK-NEXT:      %[[over:.*]] = mma.map ge %[[high]], %limit : {{.*}} -> !mma.fragment<16x8xi1, c, m16n8k16>
// CHECK-NEXT:      %[[some:.*]] = mma.any %[[over]]
// CHECK-NEXT:      %new_top = scf.if %[[some]]
// CHECK-NEXT:        %row_max = mma.reduce max %[[part]]
// CHECK-NEXT:        %peak = mma.map mul %row_max, %unit
// CHECK-NEXT:        %passed = mma.map ge %peak, %limit
// CHECK-NEXT:        %[[taken:.*]] = mma.map select %passed, %peak, %top
// CHECK-NEXT:        scf.yield %[[taken]]
// CHECK-NEXT:      } else {
// CHECK-NEXT:        scf.yield %top
// CHECK-NEXT:      }
tile.kernel @lazy() schedule <block = [16, 32, 16], warps = [1, 1], lazy = 8, seldom = 1> {
  %c0 = arith.constant 0 : index
  %c4 = arith.constant 4 : index
  %c1 = arith.constant 1 : index
  %unit = arith.constant 0.5 : f32
  %lazy = arith.constant 8.0 : f32
  %start = mma.fill 0.0 : f32 : !mma.fragment<16x1xf32, c, m16n8k16>
  %x = mma.fill 3.0 : f32 : !mma.fragment<16x32xf32, c, m16n8k16>
  %last = scf.for %j = %c0 to %c4 step %c1 iter_args(%top = %start) -> (!mma.fragment<16x1xf32, c, m16n8k16>) {
    %row_max = mma.reduce max %x : !mma.fragment<16x32xf32, c, m16n8k16> -> !mma.fragment<16x1xf32, c, m16n8k16>
    %peak = mma.map mul %row_max, %unit : (!mma.fragment<16x1xf32, c, m16n8k16>, f32) -> !mma.fragment<16x1xf32, c, m16n8k16>
    %limit = mma.map add %top, %lazy : (!mma.fragment<16x1xf32, c, m16n8k16>, f32) -> !mma.fragment<16x1xf32, c, m16n8k16>
    %passed = mma.map ge %peak, %limit
      : (!mma.fragment<16x1xf32, c, m16n8k16>, !mma.fragment<16x1xf32, c, m16n8k16>) -> !mma.fragment<16x1xi1, c, m16n8k16>
    %new_top = mma.map select %passed, %peak, %top
      : (!mma.fragment<16x1xi1, c, m16n8k16>, !mma.fragment<16x1xf32, c, m16n8k16>, !mma.fragment<16x1xf32, c, m16n8k16>)
      -> !mma.fragment<16x1xf32, c, m16n8k16>
    scf.yield %new_top : !mma.fragment<16x1xf32, c, m16n8k16>
  }
}
