// RUN: emmy-opt %s -p 'unroll-loops{factor=2}' | filecheck %s
// RUN: emmy-opt %s -p 'unroll-loops' | filecheck %s --check-prefix OWN
// RUN: emmy-opt %s -p 'unroll-loops{factor=1}' | filecheck %s --check-prefix ONE

!view = !tile.view<16x?xf16>
!fa = !mma.fragment<16x16xf16, a, m16n8k16>
!fb = !mma.fragment<16x16xf16, b, m16n8k16>
!fc = !mma.fragment<16x16xf32, c, m16n8k16>
!fill = !async_copy.cursor<@ab, fill>
!read = !async_copy.cursor<@ab, read>
!filled = !async_copy.slot<@ab, fill>
!slot = !async_copy.slot<@ab, read>

builtin.module {
  // Seven steps, six of which copy: three bodies of two unconditional ones, then the seventh as it was.
  // CHECK-LABEL: tile.kernel @static
  // CHECK:         %[[END:.*]] = arith.constant 96 : index
  // CHECK:         %[[STEP:.*]] = arith.constant 32 : index
  // CHECK-NEXT:    %[[MAIN:.*]], %{{.*}} = scf.for %k = %c0 to %[[END]] step %[[STEP]] iter_args(%s = %zero, %f = %fill)
  // CHECK-NOT:     scf.if
  // CHECK:         async_copy.slot @ab[%f] : !async_copy.cursor<@ab, fill>
  // CHECK-NEXT:    async_copy.cp_async
  // CHECK:         mma.mma
  // CHECK:         %[[NEXT:.*]] = arith.addi %k, %{{.*}} : index
  // CHECK-NOT:     scf.if
  // CHECK:         async_copy.slot @ab[%{{.*}}] : !async_copy.cursor<@ab, fill>
  // CHECK-NEXT:    async_copy.cp_async
  // CHECK:         mma.mma
  // CHECK-NEXT:    scf.yield
  // CHECK:         scf.for %k{{.*}} = %[[END]] to %c112 step %c16 iter_args(%s{{.*}} = %[[MAIN]]
  // CHECK:           async_copy.slot @ab[%{{.*}}] if %more
  // CHECK:           scf.if %more
  // OWN-LABEL:   tile.kernel @static
  // OWN:           scf.for %k = %c0 to %{{.*}} step %{{.*}} iter_args
  // OWN:           scf.for
  // ONE-LABEL:   tile.kernel @static
  // ONE:           scf.for %k = %c0 to %c112 step %c16
  // ONE-NOT:       scf.for
  // ONE-LABEL:   tile.kernel @dynamic
  tile.kernel @static(%x: !view) schedule <block = [16, 16, 16], warps = [1, 1], unroll = 3> {
    async_copy.pipeline @ab stages 2 {t = !tile.tile<16x16xf16>}
    %c0 = arith.constant 0 : index
    %c16 = arith.constant 16 : index
    %c112 = arith.constant 112 : index
    async_copy.role "main" warps 1 {
      %zero = mma.fill 0.0 : f32 : !fc
      %fill = async_copy.begin_fill @ab
      %sum, %last = scf.for %k = %c0 to %c112 step %c16 iter_args(%s = %zero, %f = %fill) -> (!fc, !fill) {
        %ahead = arith.addi %k, %c16 : index
        %more = arith.cmpi ult, %ahead, %c112 : index
        %w, %g = async_copy.slot @ab[%f] if %more : !async_copy.cursor<@ab, fill>
        scf.if %more {
          async_copy.cp_async %x[%c0, %ahead] -> %w["t"] bytes 16 : !view -> !filled
        }
        %a = mma.load %w["t"] [%c0, %c0] : !filled -> !fa
        %b = mma.load %w["t"] [%c0, %c0] : !filled -> !fb
        %t = mma.mma %a, %b, %s : (!fa, !fb) -> !fc
        scf.yield %t, %g : !fc, !fill
      }
    }
  }

  // Sizes known at run time: the last step that copies, and whole bodies before it, are computed.
  // CHECK-LABEL: tile.kernel @dynamic
  // CHECK:         %[[BOUND:.*]] = arith.subi %K, %c16 : index
  // CHECK-NEXT:    %[[LIMIT:.*]] = arith.minsi %K, %[[BOUND]] : index
  // CHECK-NEXT:    %[[SPAN:.*]] = arith.subi %[[LIMIT]], %c0 : index
  // CHECK:         %[[SOME:.*]] = arith.maxsi %[[SPAN]], %{{.*}} : index
  // CHECK:         %[[BODIES:.*]] = arith.divui %[[SOME]], %{{.*}} : index
  // CHECK:         %[[LONG:.*]] = arith.muli %[[BODIES]], %{{.*}} : index
  // CHECK-NEXT:    %[[END:.*]] = arith.addi %c0, %[[LONG]] : index
  // CHECK:         scf.for %k = %c0 to %[[END]]
  // CHECK:         scf.for %k{{.*}} = %[[END]] to %K step %c16
  // OWN-LABEL:   tile.kernel @dynamic
  // OWN:           scf.for
  // OWN-NOT:       scf.for
  // OWN-LABEL:   tile.kernel @short
  tile.kernel @dynamic(%x: !view) {
    async_copy.pipeline @ab stages 2 {t = !tile.tile<16x16xf16>}
    %c0 = arith.constant 0 : index
    %c16 = arith.constant 16 : index
    %K = tile.dim %x, 1 : !view
    async_copy.role "main" warps 1 {
      %zero = mma.fill 0.0 : f32 : !fc
      %fill = async_copy.begin_fill @ab
      %sum, %last = scf.for %k = %c0 to %K step %c16 iter_args(%s = %zero, %f = %fill) -> (!fc, !fill) {
        %ahead = arith.addi %k, %c16 : index
        %more = arith.cmpi ult, %ahead, %K : index
        %w, %g = async_copy.slot @ab[%f] if %more : !async_copy.cursor<@ab, fill>
        %a = mma.load %w["t"] [%c0, %c0] : !filled -> !fa
        %b = mma.load %w["t"] [%c0, %c0] : !filled -> !fb
        %t = mma.mma %a, %b, %s : (!fa, !fb) -> !fc
        scf.yield %t, %g : !fc, !fill
      }
    }
  }

  // Nothing to unroll: fewer steps than a body, and a loop without products.
  // CHECK-LABEL: tile.kernel @short
  // CHECK:         scf.for
  // CHECK-NOT:     scf.for %k_
  // CHECK:         scf.for %j = %c0 to %c64 step %c16
  // CHECK-NOT:     scf.for
  tile.kernel @short(%x: !view) {
    async_copy.pipeline @ab stages 2 {t = !tile.tile<16x16xf16>}
    %c0 = arith.constant 0 : index
    %c16 = arith.constant 16 : index
    %c64 = arith.constant 64 : index
    async_copy.role "main" warps 1 {
      %zero = mma.fill 0.0 : f32 : !fc
      %read = async_copy.begin_read @ab
      %sum, %last = scf.for %k = %c0 to %c16 step %c16 iter_args(%s = %zero, %r = %read) -> (!fc, !read) {
        %w, %g = async_copy.slot @ab[%r] : !async_copy.cursor<@ab, read>
        %a = mma.load %w["t"] [%c0, %c0] : !slot -> !fa
        %b = mma.load %w["t"] [%c0, %c0] : !slot -> !fb
        %t = mma.mma %a, %b, %s : (!fa, !fb) -> !fc
        scf.yield %t, %g : !fc, !read
      }
      %end = scf.for %j = %c0 to %c64 step %c16 iter_args(%r = %last) -> (!read) {
        %w, %g = async_copy.slot @ab[%r] : !async_copy.cursor<@ab, read>
        scf.yield %g : !read
      }
    }
  }
}
