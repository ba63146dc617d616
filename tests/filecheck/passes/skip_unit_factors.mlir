// RUN: emmy-opt %s -p 'skip-unit-factors{force=true}' | filecheck %s
// RUN: emmy-opt %s -p skip-unit-factors | filecheck %s --check-prefix AS_IT_IS

!sums = !mma.fragment<16x32xf32, c, m16n8k16>
!stat = !mma.fragment<16x1xf32, c, m16n8k16>

// CHECK-LABEL: tile.kernel @carried
// AS_IT_IS-LABEL: tile.kernel @carried
tile.kernel @carried(%y: !tile.view<64x64xf32>) schedule <block = [64, 64, 64], warps = [1, 1]> {
  %c0 = arith.constant 0 : index
  %c64 = arith.constant 64 : index
  %c32 = arith.constant 32 : index
  async_copy.consumer {
    %z = mma.fill 1.0 : f32 : !sums
    %k = mma.fill 0.5 : f32 : !stat
    %oz = scf.for %j = %c0 to %c64 step %c32 iter_args(%o = %z) -> (!sums) {
      // CHECK:      [[ONE:%.*]] = arith.constant 1.000000e+00 : f32
      // CHECK-NEXT: [[MOVED:%.*]] = mma.map ne %k, [[ONE]] : (!mma.fragment<16x1xf32, c, m16n8k16>, f32) -> !mma.fragment<16x1xi1, c, m16n8k16>
      // CHECK-NEXT: [[SOME:%.*]] = mma.any [[MOVED]]
      // CHECK-NEXT: %r = scf.if [[SOME]] -> (!mma.fragment<16x32xf32, c, m16n8k16>) {
      // CHECK-NEXT:   [[R:%.*]] = mma.map mul %o, %k
      // CHECK-NEXT:   scf.yield [[R]]
      // CHECK-NEXT: } else {
      // CHECK-NEXT:   scf.yield %o
      // CHECK-NEXT: }
      // AS_IT_IS:      %r = mma.map mul %o, %k
      // AS_IT_IS-NEXT: %s = mma.map mul %r, %k
      %r = mma.map mul %o, %k : (!sums, !stat) -> !sums
      // What the loop does not carry, or no factor of rows: as it is.
      // CHECK-NEXT: %s = mma.map mul %r, %k
      // CHECK-NEXT: mma.map mul %o, %s
      %s = mma.map mul %r, %k : (!sums, !stat) -> !sums
      %t = mma.map mul %o, %s : (!sums, !sums) -> !sums
      scf.yield %t : !sums
    }
    // CHECK: mma.map mul %oz, %k
    %f = mma.map mul %oz, %k : (!sums, !stat) -> !sums
    mma.store_global %f -> %y[%c0, %c0] : !sums -> !tile.view<64x64xf32>
  }
}
