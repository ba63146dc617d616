// RUN: emmy-opt %s -p 'prefetch-fragments{force=true}' | filecheck %s
// RUN: emmy-opt %s -p 'prefetch-fragments{force=true},prefetch-fragments{force=true}' | filecheck %s
// RUN: emmy-opt %s -p 'prefetch-fragments' | filecheck %s --check-prefix OWN

!view = !tile.view<16x?xf16>
!fa = !mma.fragment<16x16xf16, a, m16n8k16>
!fb = !mma.fragment<16x16xf16, b, m16n8k16>
!fc = !mma.fragment<16x16xf32, c, m16n8k16>
!fill = !async_copy.cursor<@ab, fill>
!read = !async_copy.cursor<@ab, read>
!filled = !async_copy.slot<@ab, fill>
!slot = !async_copy.slot<@ab, read>

builtin.module {
  // Three trips: the head, two rotated bodies, the last body at index 32. The read cursor is the head's alone and no longer
  // carried; what the head computes is: the slot, the next cursor, the fragment.
  // CHECK-LABEL: tile.kernel @static
  // CHECK:         async_copy.wait_group 1
  // CHECK-NEXT:    async_copy.barrier
  // CHECK-NEXT:    %[[s:.*]], %[[r:.*]] = async_copy.slot @ab[%br]
  // CHECK-NEXT:    %[[b:.*]] = mma.load %[[s]]["t"]
  // CHECK-NEXT:    %[[short:.*]] = arith.subi %c40, %c16
  // CHECK-NEXT:    %[[sum:.*]], %[[f:.*]], %[[last:.*]], %r, %[[lb:.*]] = scf.for %i = %c0 to %[[short]] step %c16 iter_args(%si = %zero, %fi = %bf, %[[s1:.*]] = %[[s]], %[[r1:.*]] = %[[r]], %[[b1:.*]] = %[[b]])
  // CHECK-NEXT:      %to, %fn = async_copy.slot @ab[%fi] if %more
  // CHECK-NEXT:      scf.if %more {
  // CHECK-NEXT:        async_copy.cp_async %x[%c0, %i] -> %to["t"]
  // CHECK-NEXT:      }
  // CHECK-NEXT:      async_copy.commit_group
  // CHECK-NEXT:      %[[m:.*]] = mma.mma %a, %[[b1]], %si
  // CHECK-NEXT:      %[[c:.*]] = mma.load %[[s1]]["t"]
  // CHECK-NEXT:      async_copy.wait_group 1
  // CHECK-NEXT:      async_copy.barrier
  // CHECK-NEXT:      %[[s2:.*]], %[[r2:.*]] = async_copy.slot @ab[%[[r1]]]
  // CHECK-NEXT:      %[[b2:.*]] = mma.load %[[s2]]["t"]
  // CHECK-NEXT:      %[[n:.*]] = mma.mma %a, %[[c]], %[[m]]
  // CHECK-NEXT:      scf.yield %[[n]], %fn, %[[s2]], %[[r2]], %[[b2]]
  // CHECK-NEXT:    }
  // CHECK-NEXT:    %[[at:.*]] = arith.constant 32
  // CHECK-NEXT:    async_copy.slot @ab[%[[f]]] if %more
  // CHECK-NEXT:    scf.if %more {
  // CHECK-NEXT:      async_copy.cp_async %x[%c0, %[[at]]]
  // CHECK-NEXT:    }
  // CHECK-NEXT:    async_copy.commit_group
  // CHECK-NEXT:    %[[m3:.*]] = mma.mma %a, %[[lb]], %[[sum]]
  // CHECK-NEXT:    %[[c3:.*]] = mma.load %[[last]]["t"]
  // CHECK-NEXT:    mma.mma %a, %[[c3]], %[[m3]]
  // CHECK-NEXT:    mma.store_global
  // OWN-LABEL:   tile.kernel @static
  // OWN:           mma.load
  // OWN-NEXT:      arith.subi
  // OWN-NEXT:      scf.for
  tile.kernel @static(%x: !view) schedule <block = [16, 16, 16], warps = [1, 1], prefetch = 1> {
    async_copy.pipeline @ab stages 3 {t = !tile.tile<16x16xf16>}
    %k = tile.dim %x, 1 : !view
    %c0 = arith.constant 0 : index
    %c16 = arith.constant 16 : index
    %c40 = arith.constant 40 : index
    %more = arith.cmpi ult, %c0, %k : index
    async_copy.role "main" warps 1 {
      %zero = mma.fill 0.0 : f32 : !fc
      %a = mma.fill 1.0 : f16 : !fa
      %bf = async_copy.begin_fill @ab
      %br = async_copy.begin_read @ab
      %s, %f, %r = scf.for %i = %c0 to %c40 step %c16 iter_args(%si = %zero, %fi = %bf, %ri = %br) -> (!fc, !fill, !read) {
        async_copy.wait_group 1
        async_copy.barrier
        %slot, %rn = async_copy.slot @ab[%ri] : !read
        %to, %fn = async_copy.slot @ab[%fi] if %more : !fill
        scf.if %more {
          async_copy.cp_async %x[%c0, %i] -> %to["t"] bytes 16 : !view -> !filled
        }
        async_copy.commit_group
        %b0 = mma.load %slot["t"][%c0, %c0] : !slot -> !fb
        %s0 = mma.mma %a, %b0, %si : (!fa, !fb) -> !fc
        %b1 = mma.load %slot["t"][%c0, %c0] : !slot -> !fb
        %s1 = mma.mma %a, %b1, %s0 : (!fa, !fb) -> !fc
        scf.yield %s1, %fn, %rn : !fc, !fill, !read
      }
      mma.store_global %a -> %x[%c0, %c0] : !fa -> !view
    }
  }
  // A trip count that is not known: all of it under a guard, which gives the starting values if nothing runs.
  // CHECK-LABEL: tile.kernel @dynamic
  // CHECK:         %[[some:.*]] = arith.cmpi slt, %c0, %k
  // CHECK-NEXT:    %s, %f, %r = scf.if %[[some]]
  // CHECK-NEXT:      async_copy.wait_group 1
  // CHECK:           scf.for %i = %c0 to %{{.*}} step %c16
  // CHECK:           scf.yield %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}
  // CHECK-NEXT:      }
  // CHECK-NEXT:      %[[span:.*]] = arith.subi %k, %c0
  // CHECK-NEXT:      %[[one:.*]] = arith.constant 1
  // CHECK-NEXT:      %[[less:.*]] = arith.subi %[[span]], %[[one]]
  // CHECK-NEXT:      %[[whole:.*]] = arith.divui %[[less]], %c16
  // CHECK-NEXT:      %[[far:.*]] = arith.muli %[[whole]], %c16
  // CHECK-NEXT:      %[[at:.*]] = arith.addi %c0, %[[far]]
  // CHECK:             async_copy.cp_async %x[%c0, %[[at]]]
  // CHECK:           scf.yield
  // CHECK-NEXT:    } else {
  // CHECK-NEXT:      scf.yield %zero, %bf, %br
  // CHECK-NEXT:    }
  // OWN-LABEL:   tile.kernel @dynamic
  // OWN:           scf.for %i = %c0 to %k step %c16 iter_args(%si = %zero, %fi = %bf, %ri = %br)
  // OWN-NEXT:        async_copy.wait_group
  tile.kernel @dynamic(%x: !view) schedule <block = [16, 16, 16], warps = [1, 1], prefetch = 0> {
    async_copy.pipeline @ab stages 3 {t = !tile.tile<16x16xf16>}
    %k = tile.dim %x, 1 : !view
    %c0 = arith.constant 0 : index
    %c16 = arith.constant 16 : index
    %c40 = arith.constant 40 : index
    %more = arith.cmpi ult, %c0, %k : index
    async_copy.role "main" warps 1 {
      %zero = mma.fill 0.0 : f32 : !fc
      %a = mma.fill 1.0 : f16 : !fa
      %bf = async_copy.begin_fill @ab
      %br = async_copy.begin_read @ab
      %s, %f, %r = scf.for %i = %c0 to %k step %c16 iter_args(%si = %zero, %fi = %bf, %ri = %br) -> (!fc, !fill, !read) {
        async_copy.wait_group 1
        async_copy.barrier
        %slot, %rn = async_copy.slot @ab[%ri] : !read
        %to, %fn = async_copy.slot @ab[%fi] if %more : !fill
        scf.if %more {
          async_copy.cp_async %x[%c0, %i] -> %to["t"] bytes 16 : !view -> !filled
        }
        async_copy.commit_group
        %b0 = mma.load %slot["t"][%c0, %c0] : !slot -> !fb
        %s0 = mma.mma %a, %b0, %si : (!fa, !fb) -> !fc
        %b1 = mma.load %slot["t"][%c0, %c0] : !slot -> !fb
        %s1 = mma.mma %a, %b1, %s0 : (!fa, !fb) -> !fc
        scf.yield %s1, %fn, %rn : !fc, !fill, !read
      }
      mma.store_global %a -> %x[%c0, %c0] : !fa -> !view
    }
  }
  // A load before the last barrier stays before it, though the first product does not need it.
  // CHECK-LABEL: tile.kernel @early_load
  // CHECK:         scf.for
  // CHECK:           mma.mma
  // CHECK-NEXT:      async_copy.wait_group 1
  // CHECK-NEXT:      async_copy.barrier
  // CHECK-NEXT:      async_copy.slot
  // CHECK-NEXT:      mma.load
  // CHECK-NEXT:      mma.load
  // CHECK-NEXT:      async_copy.barrier
  // CHECK-NEXT:      mma.mma
  // CHECK-NEXT:      scf.yield
  tile.kernel @early_load(%x: !view) schedule <block = [16, 16, 16], warps = [1, 1], prefetch = 1> {
    async_copy.pipeline @ab stages 3 {t = !tile.tile<16x16xf16>}
    %k = tile.dim %x, 1 : !view
    %c0 = arith.constant 0 : index
    %c16 = arith.constant 16 : index
    %c40 = arith.constant 40 : index
    %more = arith.cmpi ult, %c0, %k : index
    async_copy.role "main" warps 1 {
      %zero = mma.fill 0.0 : f32 : !fc
      %a = mma.fill 1.0 : f16 : !fa
      %bf = async_copy.begin_fill @ab
      %br = async_copy.begin_read @ab
      %s, %f, %r = scf.for %i = %c0 to %c40 step %c16 iter_args(%si = %zero, %fi = %bf, %ri = %br) -> (!fc, !fill, !read) {
        async_copy.wait_group 1
        async_copy.barrier
        %slot, %rn = async_copy.slot @ab[%ri] : !read
        %to, %fn = async_copy.slot @ab[%fi] if %more : !fill
        %b0 = mma.load %slot["t"][%c0, %c0] : !slot -> !fb
        %b1 = mma.load %slot["t"][%c0, %c0] : !slot -> !fb
        async_copy.barrier
        scf.if %more {
          async_copy.cp_async %x[%c0, %i] -> %to["t"] bytes 16 : !view -> !filled
        }
        async_copy.commit_group
        %s0 = mma.mma %a, %b0, %si : (!fa, !fb) -> !fc
        %s1 = mma.mma %a, %b1, %s0 : (!fa, !fb) -> !fc
        scf.yield %s1, %fn, %rn : !fc, !fill, !read
      }
      mma.store_global %a -> %x[%c0, %c0] : !fa -> !view
    }
  }
  // What gives the slot back comes before the next wait.
  // CHECK-LABEL: tile.kernel @release
  // CHECK:         scf.for
  // CHECK:           mma.load %[[s:.*]]["t"]
  // CHECK-NEXT:      async_copy.fence_proxy_async
  // CHECK-NEXT:      async_copy.warp_sync
  // CHECK-NEXT:      async_copy.arrive_empty @ab, %[[s]]
  // CHECK-NEXT:      async_copy.wait_full @ab
  // CHECK-NEXT:      async_copy.slot
  // CHECK-NEXT:      mma.load
  // CHECK-NEXT:      mma.mma
  // CHECK-NEXT:      scf.yield
  tile.kernel @release(%x: !view) schedule <block = [16, 16, 16], warps = [1, 1], prefetch = 1> {
    async_copy.pipeline @ab stages 3 {t = !tile.tile<16x16xf16>}
    %k = tile.dim %x, 1 : !view
    %c0 = arith.constant 0 : index
    %c16 = arith.constant 16 : index
    %c40 = arith.constant 40 : index
    %more = arith.cmpi ult, %c0, %k : index
    async_copy.role "main" warps 1 {
      %zero = mma.fill 0.0 : f32 : !fc
      %a = mma.fill 1.0 : f16 : !fa
      %bf = async_copy.begin_fill @ab
      %br = async_copy.begin_read @ab
      %s, %f, %r = scf.for %i = %c0 to %c40 step %c16 iter_args(%si = %zero, %fi = %bf, %ri = %br) -> (!fc, !fill, !read) {
        async_copy.wait_full @ab[%ri]
        %slot, %rn = async_copy.slot @ab[%ri] : !read
        %to, %fn = async_copy.slot @ab[%fi] if %more : !fill
        %b0 = mma.load %slot["t"][%c0, %c0] : !slot -> !fb
        %s0 = mma.mma %a, %b0, %si : (!fa, !fb) -> !fc
        %b1 = mma.load %slot["t"][%c0, %c0] : !slot -> !fb
        %s1 = mma.mma %a, %b1, %s0 : (!fa, !fb) -> !fc
        async_copy.fence_proxy_async
        async_copy.warp_sync
        async_copy.arrive_empty @ab, %slot
        scf.yield %s1, %fn, %rn : !fc, !fill, !read
      }
      mma.store_global %a -> %x[%c0, %c0] : !fa -> !view
    }
  }
  // Left alone: it never runs.
  // CHECK-LABEL: tile.kernel @no_trip
  // CHECK:         scf.for %i = %c40 to %c40 step %c16 iter_args(%si = %zero
  tile.kernel @no_trip(%x: !view) schedule <block = [16, 16, 16], warps = [1, 1], prefetch = 1> {
    async_copy.pipeline @ab stages 3 {t = !tile.tile<16x16xf16>}
    %k = tile.dim %x, 1 : !view
    %c0 = arith.constant 0 : index
    %c16 = arith.constant 16 : index
    %c40 = arith.constant 40 : index
    %more = arith.cmpi ult, %c0, %k : index
    async_copy.role "main" warps 1 {
      %zero = mma.fill 0.0 : f32 : !fc
      %a = mma.fill 1.0 : f16 : !fa
      %bf = async_copy.begin_fill @ab
      %br = async_copy.begin_read @ab
      %s, %f, %r = scf.for %i = %c40 to %c40 step %c16 iter_args(%si = %zero, %fi = %bf, %ri = %br) -> (!fc, !fill, !read) {
        async_copy.wait_group 1
        async_copy.barrier
        %slot, %rn = async_copy.slot @ab[%ri] : !read
        %to, %fn = async_copy.slot @ab[%fi] if %more : !fill
        scf.if %more {
          async_copy.cp_async %x[%c0, %i] -> %to["t"] bytes 16 : !view -> !filled
        }
        async_copy.commit_group
        %b0 = mma.load %slot["t"][%c0, %c0] : !slot -> !fb
        %s0 = mma.mma %a, %b0, %si : (!fa, !fb) -> !fc
        %b1 = mma.load %slot["t"][%c0, %c0] : !slot -> !fb
        %s1 = mma.mma %a, %b1, %s0 : (!fa, !fb) -> !fc
        scf.yield %s1, %fn, %rn : !fc, !fill, !read
      }
      mma.store_global %a -> %x[%c0, %c0] : !fa -> !view
    }
  }
  // Left alone: nothing would hide the loads.
  // CHECK-LABEL: tile.kernel @one_product
  // CHECK:         scf.for %i = %c0 to %c40 step %c16 iter_args(%si = %zero, %fi = %bf, %ri = %br)
  tile.kernel @one_product(%x: !view) schedule <block = [16, 16, 16], warps = [1, 1], prefetch = 1> {
    async_copy.pipeline @ab stages 3 {t = !tile.tile<16x16xf16>}
    %k = tile.dim %x, 1 : !view
    %c0 = arith.constant 0 : index
    %c16 = arith.constant 16 : index
    %c40 = arith.constant 40 : index
    %more = arith.cmpi ult, %c0, %k : index
    async_copy.role "main" warps 1 {
      %zero = mma.fill 0.0 : f32 : !fc
      %a = mma.fill 1.0 : f16 : !fa
      %bf = async_copy.begin_fill @ab
      %br = async_copy.begin_read @ab
      %s, %f, %r = scf.for %i = %c0 to %c40 step %c16 iter_args(%si = %zero, %fi = %bf, %ri = %br) -> (!fc, !fill, !read) {
        async_copy.wait_group 1
        async_copy.barrier
        %slot, %rn = async_copy.slot @ab[%ri] : !read
        %to, %fn = async_copy.slot @ab[%fi] if %more : !fill
        scf.if %more {
          async_copy.cp_async %x[%c0, %i] -> %to["t"] bytes 16 : !view -> !filled
        }
        async_copy.commit_group
        %b0 = mma.load %slot["t"][%c0, %c0] : !slot -> !fb
        %s1 = mma.mma %a, %b0, %si : (!fa, !fb) -> !fc
        scf.yield %s1, %fn, %rn : !fc, !fill, !read
      }
      mma.store_global %a -> %x[%c0, %c0] : !fa -> !view
    }
  }
  // Left alone: there is nothing that the head waits for.
  // CHECK-LABEL: tile.kernel @no_wait
  // CHECK:         scf.for %i = %c0 to %c40 step %c16 iter_args(%si = %zero, %fi = %bf, %ri = %br)
  tile.kernel @no_wait(%x: !view) schedule <block = [16, 16, 16], warps = [1, 1], prefetch = 1> {
    async_copy.pipeline @ab stages 3 {t = !tile.tile<16x16xf16>}
    %k = tile.dim %x, 1 : !view
    %c0 = arith.constant 0 : index
    %c16 = arith.constant 16 : index
    %c40 = arith.constant 40 : index
    %more = arith.cmpi ult, %c0, %k : index
    async_copy.role "main" warps 1 {
      %zero = mma.fill 0.0 : f32 : !fc
      %a = mma.fill 1.0 : f16 : !fa
      %bf = async_copy.begin_fill @ab
      %br = async_copy.begin_read @ab
      %s, %f, %r = scf.for %i = %c0 to %c40 step %c16 iter_args(%si = %zero, %fi = %bf, %ri = %br) -> (!fc, !fill, !read) {
        %slot, %rn = async_copy.slot @ab[%ri] : !read
        %to, %fn = async_copy.slot @ab[%fi] if %more : !fill
        scf.if %more {
          async_copy.cp_async %x[%c0, %i] -> %to["t"] bytes 16 : !view -> !filled
        }
        async_copy.commit_group
        %b0 = mma.load %slot["t"][%c0, %c0] : !slot -> !fb
        %s0 = mma.mma %a, %b0, %si : (!fa, !fb) -> !fc
        %b1 = mma.load %slot["t"][%c0, %c0] : !slot -> !fb
        %s1 = mma.mma %a, %b1, %s0 : (!fa, !fb) -> !fc
        scf.yield %s1, %fn, %rn : !fc, !fill, !read
      }
      mma.store_global %a -> %x[%c0, %c0] : !fa -> !view
    }
  }
  // Left alone: a copy stands before the wait.
  // CHECK-LABEL: tile.kernel @copy_first
  // CHECK:         scf.for %i = %c0 to %c40 step %c16 iter_args(%si = %zero, %fi = %bf, %ri = %br)
  tile.kernel @copy_first(%x: !view) schedule <block = [16, 16, 16], warps = [1, 1], prefetch = 1> {
    async_copy.pipeline @ab stages 3 {t = !tile.tile<16x16xf16>}
    %k = tile.dim %x, 1 : !view
    %c0 = arith.constant 0 : index
    %c16 = arith.constant 16 : index
    %c40 = arith.constant 40 : index
    %more = arith.cmpi ult, %c0, %k : index
    async_copy.role "main" warps 1 {
      %zero = mma.fill 0.0 : f32 : !fc
      %a = mma.fill 1.0 : f16 : !fa
      %bf = async_copy.begin_fill @ab
      %br = async_copy.begin_read @ab
      %s, %f, %r = scf.for %i = %c0 to %c40 step %c16 iter_args(%si = %zero, %fi = %bf, %ri = %br) -> (!fc, !fill, !read) {
        %slot, %rn = async_copy.slot @ab[%ri] : !read
        %to, %fn = async_copy.slot @ab[%fi] if %more : !fill
        scf.if %more {
          async_copy.cp_async %x[%c0, %i] -> %to["t"] bytes 16 : !view -> !filled
        }
        async_copy.commit_group
        async_copy.wait_group 1
        async_copy.barrier
        %b0 = mma.load %slot["t"][%c0, %c0] : !slot -> !fb
        %s0 = mma.mma %a, %b0, %si : (!fa, !fb) -> !fc
        %b1 = mma.load %slot["t"][%c0, %c0] : !slot -> !fb
        %s1 = mma.mma %a, %b1, %s0 : (!fa, !fb) -> !fc
        scf.yield %s1, %fn, %rn : !fc, !fill, !read
      }
      mma.store_global %a -> %x[%c0, %c0] : !fa -> !view
    }
  }
  // Left alone: the load would overtake a store.
  // CHECK-LABEL: tile.kernel @store_between
  // CHECK:         scf.for %i = %c0 to %c40 step %c16 iter_args(%si = %zero, %fi = %bf, %ri = %br)
  tile.kernel @store_between(%x: !view) schedule <block = [16, 16, 16], warps = [1, 1], prefetch = 1> {
    async_copy.pipeline @ab stages 3 {t = !tile.tile<16x16xf16>}
    %k = tile.dim %x, 1 : !view
    %c0 = arith.constant 0 : index
    %c16 = arith.constant 16 : index
    %c40 = arith.constant 40 : index
    %more = arith.cmpi ult, %c0, %k : index
    async_copy.role "main" warps 1 {
      %zero = mma.fill 0.0 : f32 : !fc
      %a = mma.fill 1.0 : f16 : !fa
      %bf = async_copy.begin_fill @ab
      %br = async_copy.begin_read @ab
      %s, %f, %r = scf.for %i = %c0 to %c40 step %c16 iter_args(%si = %zero, %fi = %bf, %ri = %br) -> (!fc, !fill, !read) {
        async_copy.wait_group 1
        async_copy.barrier
        %slot, %rn = async_copy.slot @ab[%ri] : !read
        %to, %fn = async_copy.slot @ab[%fi] if %more : !fill
        mma.store_global %a -> %x[%c0, %c0] : !fa -> !view
        %b0 = mma.load %slot["t"][%c0, %c0] : !slot -> !fb
        %s0 = mma.mma %a, %b0, %si : (!fa, !fb) -> !fc
        %b1 = mma.load %slot["t"][%c0, %c0] : !slot -> !fb
        %s1 = mma.mma %a, %b1, %s0 : (!fa, !fb) -> !fc
        scf.yield %s1, %fn, %rn : !fc, !fill, !read
      }
      mma.store_global %a -> %x[%c0, %c0] : !fa -> !view
    }
  }
  // Left alone: memory is read behind the last product.
  // CHECK-LABEL: tile.kernel @load_behind
  // CHECK:         scf.for %i = %c0 to %c40 step %c16 iter_args(%si = %zero, %fi = %bf, %ri = %br)
  tile.kernel @load_behind(%x: !view) schedule <block = [16, 16, 16], warps = [1, 1], prefetch = 1> {
    async_copy.pipeline @ab stages 3 {t = !tile.tile<16x16xf16>}
    %k = tile.dim %x, 1 : !view
    %c0 = arith.constant 0 : index
    %c16 = arith.constant 16 : index
    %c40 = arith.constant 40 : index
    %more = arith.cmpi ult, %c0, %k : index
    async_copy.role "main" warps 1 {
      %zero = mma.fill 0.0 : f32 : !fc
      %a = mma.fill 1.0 : f16 : !fa
      %bf = async_copy.begin_fill @ab
      %br = async_copy.begin_read @ab
      %s, %f, %r = scf.for %i = %c0 to %c40 step %c16 iter_args(%si = %zero, %fi = %bf, %ri = %br) -> (!fc, !fill, !read) {
        async_copy.wait_group 1
        async_copy.barrier
        %slot, %rn = async_copy.slot @ab[%ri] : !read
        %to, %fn = async_copy.slot @ab[%fi] if %more : !fill
        scf.if %more {
          async_copy.cp_async %x[%c0, %i] -> %to["t"] bytes 16 : !view -> !filled
        }
        async_copy.commit_group
        %b0 = mma.load %slot["t"][%c0, %c0] : !slot -> !fb
        %s0 = mma.mma %a, %b0, %si : (!fa, !fb) -> !fc
        %b1 = mma.load %slot["t"][%c0, %c0] : !slot -> !fb
        %s1 = mma.mma %a, %b1, %s0 : (!fa, !fb) -> !fc
        %b2 = mma.load %slot["t"][%c0, %c0] : !slot -> !fb
        scf.yield %s1, %fn, %rn : !fc, !fill, !read
      }
      mma.store_global %a -> %x[%c0, %c0] : !fa -> !view
    }
  }
  // Left alone: a loop that waits stands between the slot and its load.
  // CHECK-LABEL: tile.kernel @inner_loop
  // CHECK:         scf.for %i = %c0 to %c40 step %c16 iter_args(%si = %zero, %fi = %bf, %ri = %br)
  tile.kernel @inner_loop(%x: !view) schedule <block = [16, 16, 16], warps = [1, 1], prefetch = 1> {
    async_copy.pipeline @ab stages 3 {t = !tile.tile<16x16xf16>}
    %k = tile.dim %x, 1 : !view
    %c0 = arith.constant 0 : index
    %c16 = arith.constant 16 : index
    %c40 = arith.constant 40 : index
    %more = arith.cmpi ult, %c0, %k : index
    async_copy.role "main" warps 1 {
      %zero = mma.fill 0.0 : f32 : !fc
      %a = mma.fill 1.0 : f16 : !fa
      %bf = async_copy.begin_fill @ab
      %br = async_copy.begin_read @ab
      %s, %f, %r = scf.for %i = %c0 to %c40 step %c16 iter_args(%si = %zero, %fi = %bf, %ri = %br) -> (!fc, !fill, !read) {
        async_copy.wait_group 1
        async_copy.barrier
        %slot, %rn = async_copy.slot @ab[%ri] : !read
        %to, %fn = async_copy.slot @ab[%fi] if %more : !fill
        scf.for %j = %c0 to %c40 step %c16 {
          async_copy.barrier
          scf.yield
        }
        %b0 = mma.load %slot["t"][%c0, %c0] : !slot -> !fb
        %s0 = mma.mma %a, %b0, %si : (!fa, !fb) -> !fc
        %b1 = mma.load %slot["t"][%c0, %c0] : !slot -> !fb
        %s1 = mma.mma %a, %b1, %s0 : (!fa, !fb) -> !fc
        scf.yield %s1, %fn, %rn : !fc, !fill, !read
      }
      mma.store_global %a -> %x[%c0, %c0] : !fa -> !view
    }
  }
  // Left alone: the first product needs the last one of the body before.
  // CHECK-LABEL: tile.kernel @fed_back
  // CHECK:         scf.for %i = %c0 to %c40 step %c16 iter_args(%si = %zero, %fi = %bf, %ri = %br)
  tile.kernel @fed_back(%x: !view) schedule <block = [16, 16, 16], warps = [1, 1], prefetch = 1> {
    async_copy.pipeline @ab stages 3 {t = !tile.tile<16x16xf16>}
    %k = tile.dim %x, 1 : !view
    %c0 = arith.constant 0 : index
    %c16 = arith.constant 16 : index
    %c40 = arith.constant 40 : index
    %more = arith.cmpi ult, %c0, %k : index
    async_copy.role "main" warps 1 {
      %zero = mma.fill 0.0 : f32 : !fc
      %a = mma.fill 1.0 : f16 : !fa
      %bf = async_copy.begin_fill @ab
      %br = async_copy.begin_read @ab
      %s, %f, %r = scf.for %i = %c0 to %c40 step %c16 iter_args(%si = %zero, %fi = %bf, %ri = %br) -> (!fc, !fill, !read) {
        async_copy.wait_group 1
        async_copy.barrier
        %slot, %rn = async_copy.slot @ab[%ri] : !read
        %to, %fn = async_copy.slot @ab[%fi] if %more : !fill
        scf.if %more {
          async_copy.cp_async %x[%c0, %i] -> %to["t"] bytes 16 : !view -> !filled
        }
        async_copy.commit_group
        %half = mma.convert %si : !fc to !mma.fragment<16x16xf16, c, m16n8k16>
        %fed = mma.convert %half : !mma.fragment<16x16xf16, c, m16n8k16> to !fa
        %b0 = mma.load %slot["t"][%c0, %c0] : !slot -> !fb
        %s0 = mma.mma %fed, %b0, %si : (!fa, !fb) -> !fc
        %b1 = mma.load %slot["t"][%c0, %c0] : !slot -> !fb
        %s1 = mma.mma %a, %b1, %s0 : (!fa, !fb) -> !fc
        scf.yield %s1, %fn, %rn : !fc, !fill, !read
      }
      mma.store_global %a -> %x[%c0, %c0] : !fa -> !view
    }
  }
}
