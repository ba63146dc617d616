// RUN: emmy-opt %s -p 'delay-copies{products=1}' | filecheck %s
// RUN: emmy-opt %s -p 'delay-copies{products=1},delay-copies{products=1}' | filecheck %s
// RUN: emmy-opt %s -p 'delay-copies{products=2}' | filecheck %s --check-prefix TWO
// RUN: emmy-opt %s -p 'delay-copies{products=9}' | filecheck %s --check-prefix TWO
// RUN: emmy-opt %s -p 'delay-copies{products=0}' | filecheck %s --check-prefix NONE
// RUN: emmy-opt %s -p delay-copies | filecheck %s --check-prefix OWN
// RUN: not emmy-opt %s -p 'delay-copies{products=-1}' 2>&1 | filecheck %s --check-prefix NEGATIVE
// NEGATIVE: delay-copies moves copies behind 0 or more products, got -1

!view = !tile.view<16x?xf16>
!fa = !mma.fragment<16x16xf16, a, m16n8k16>
!fb = !mma.fragment<16x16xf16, b, m16n8k16>
!fc = !mma.fragment<16x16xf32, c, m16n8k16>
!fill = !async_copy.cursor<@ab, fill>
!read = !async_copy.cursor<@ab, read>
!filled = !async_copy.slot<@ab, fill>
!slot = !async_copy.slot<@ab, read>

builtin.module {
  // A loop as lower-transport leaves it: the guarded copies and their commit go behind the first product, loads and all.
  // Without the option it is the schedule's delay, 2 here.
  // CHECK-LABEL: tile.kernel @loop
  // CHECK:         async_copy.wait_group 1
  // CHECK-NEXT:    async_copy.barrier
  // CHECK-NEXT:    async_copy.slot
  // CHECK-NEXT:    async_copy.slot
  // CHECK-NEXT:    %a0 = mma.load
  // CHECK-NEXT:    %b0 = mma.load
  // CHECK-NEXT:    %a1 = mma.load
  // CHECK-NEXT:    %s0 = mma.mma
  // CHECK-NEXT:    scf.if %more {
  // CHECK-NEXT:      async_copy.cp_async %x
  // CHECK-NEXT:    }
  // CHECK-NEXT:    async_copy.commit_group
  // CHECK-NEXT:    %s1 = mma.mma
  // CHECK-NEXT:    scf.yield
  // TWO-LABEL:   tile.kernel @loop
  // TWO:           %s0 = mma.mma
  // TWO-NEXT:      %s1 = mma.mma
  // TWO-NEXT:      scf.if %more {
  // TWO-NEXT:        async_copy.cp_async
  // TWO-NEXT:      }
  // TWO-NEXT:      async_copy.commit_group
  // TWO-NEXT:      scf.yield
  // NONE-LABEL:  tile.kernel @loop
  // NONE:          async_copy.barrier
  // NONE-NEXT:     async_copy.slot
  // NONE-NEXT:     async_copy.slot
  // NONE-NEXT:     scf.if %more {
  // OWN-LABEL:   tile.kernel @loop
  // OWN:           %s1 = mma.mma
  // OWN-NEXT:      scf.if %more {
  tile.kernel @loop(%x: !view) schedule <block = [16, 16, 16], warps = [1, 1], delay = 2> {
    async_copy.pipeline @ab stages 3 {t = !tile.tile<16x16xf16>}
    %k = tile.dim %x, 1 : !view
    %c0 = arith.constant 0 : index
    %c16 = arith.constant 16 : index
    %more = arith.cmpi ult, %c0, %k : index
    async_copy.role "main" warps 1 {
      %zero = mma.fill 0.0 : f32 : !fc
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
        %a0 = mma.load %slot["t"][%c0, %c0] : !slot -> !fa
        %b0 = mma.load %slot["t"][%c0, %c0] : !slot -> !fb
        %a1 = mma.load %slot["t"][%c0, %c0] : !slot -> !fa
        %s0 = mma.mma %a0, %b0, %si : (!fa, !fb) -> !fc
        %s1 = mma.mma %a1, %b0, %s0 : (!fa, !fb) -> !fc
        scf.yield %s1, %fn, %rn : !fc, !fill, !read
      }
    }
  }

  // A group waits behind what it may not pass: a barrier, a wait, an access that writes, another group, a loop.
  // Two groups go together and keep their order. The schedule of the kernel says 0 unless the option says otherwise.
  // CHECK-LABEL: tile.kernel @stops
  // CHECK:         mma.mma %a, %b, %zero
  // CHECK-NEXT:    async_copy.cp_async %x[%c0, %c16] -> %to
  // CHECK-NEXT:    async_copy.commit_group
  // CHECK-NEXT:    async_copy.cp_async %x[%c16, %c0] -> %to
  // CHECK-NEXT:    async_copy.cp_async %x[%c16, %c16] -> %to
  // CHECK-NEXT:    async_copy.commit_group
  // CHECK-NEXT:    async_copy.barrier
  // CHECK-NEXT:    async_copy.cp_async
  // CHECK-NEXT:    async_copy.commit_group
  // CHECK-NEXT:    mma.store_global
  // CHECK-NEXT:    mma.mma
  // CHECK-NEXT:    mma.mma
  // CHECK-NEXT:    async_copy.cp_async
  // CHECK-NEXT:    async_copy.commit_group
  // CHECK-NEXT:    scf.for
  // CHECK:         async_copy.cp_async
  // CHECK-NEXT:    async_copy.commit_group
  // CHECK-NEXT:    async_copy.wait_group 0
  // CHECK-NEXT:    mma.mma
  // CHECK-NEXT:    async_copy.commit_group
  // CHECK-NEXT:    mma.mma
  // OWN-LABEL:   tile.kernel @stops
  // OWN:           async_copy.slot
  // OWN-NEXT:      async_copy.cp_async
  // OWN-NEXT:      async_copy.commit_group
  // OWN-NEXT:      async_copy.cp_async
  tile.kernel @stops(%x: !view) schedule <block = [16, 16, 16], warps = [1, 1], delay = 0> {
    async_copy.pipeline @ab stages 3 {t = !tile.tile<16x16xf16>}
    %k = tile.dim %x, 1 : !view
    %c0 = arith.constant 0 : index
    %c16 = arith.constant 16 : index
    async_copy.role "main" warps 1 {
      %zero = mma.fill 0.0 : f32 : !fc
      %a = mma.fill 1.0 : f16 : !fa
      %b = mma.fill 1.0 : f16 : !fb
      %bf = async_copy.begin_fill @ab
      %to, %f1 = async_copy.slot @ab[%bf] : !fill
      async_copy.cp_async %x[%c0, %c16] -> %to["t"] bytes 16 : !view -> !filled
      async_copy.commit_group
      async_copy.cp_async %x[%c16, %c0] -> %to["t"] bytes 16 : !view -> !filled
      async_copy.cp_async %x[%c16, %c16] -> %to["t"] bytes 16 : !view -> !filled
      async_copy.commit_group
      %s0 = mma.mma %a, %b, %zero : (!fa, !fb) -> !fc
      async_copy.barrier
      async_copy.cp_async %x[%c0, %c0] -> %to["t"] bytes 16 : !view -> !filled
      async_copy.commit_group
      mma.store_global %a -> %x[%c0, %c0] : !fa -> !view
      %s1 = mma.mma %a, %b, %s0 : (!fa, !fb) -> !fc
      %s2 = mma.mma %a, %b, %s1 : (!fa, !fb) -> !fc
      async_copy.cp_async %x[%c0, %c0] -> %to["t"] bytes 16 : !view -> !filled
      async_copy.commit_group
      %s3 = scf.for %i = %c0 to %k step %c16 iter_args(%si = %s2) -> (!fc) {
        %sn = mma.mma %a, %b, %si : (!fa, !fb) -> !fc
        scf.yield %sn : !fc
      }
      %s4 = mma.mma %a, %b, %s3 : (!fa, !fb) -> !fc
      async_copy.cp_async %x[%c0, %c0] -> %to["t"] bytes 16 : !view -> !filled
      async_copy.commit_group
      async_copy.wait_group 0
      %s5 = mma.mma %a, %b, %s4 : (!fa, !fb) -> !fc
      // A commit without copies, which keeps the count, has nothing to delay.
      async_copy.commit_group
      %s6 = mma.mma %a, %b, %s5 : (!fa, !fb) -> !fc
    }
  }

  // A TMA issue moves as a whole, and not twice.
  // CHECK-LABEL: tile.kernel @tma
  // CHECK:         async_copy.wait_full
  // CHECK-NEXT:    async_copy.barrier
  // CHECK-NEXT:    async_copy.slot
  // CHECK-NEXT:    mma.load
  // CHECK-NEXT:    mma.mma
  // CHECK-NEXT:    scf.if %more {
  // CHECK-NEXT:      async_copy.elect {
  // CHECK-NEXT:        async_copy.expect_tx
  // CHECK-NEXT:        async_copy.tma_load
  // CHECK-NEXT:      }
  // CHECK-NEXT:    }
  // CHECK-NEXT:    mma.mma
  tile.kernel @tma(%x: !view) schedule <block = [16, 16, 16], warps = [1, 1], delay = 1> {
    async_copy.pipeline @ab stages 3 {t = !tile.tile<16x16xf16>}
    %k = tile.dim %x, 1 : !view
    %c0 = arith.constant 0 : index
    %more = arith.cmpi ult, %c0, %k : index
    async_copy.role "main" warps 1 {
      %zero = mma.fill 0.0 : f32 : !fc
      %a = mma.fill 1.0 : f16 : !fa
      %bf = async_copy.begin_fill @ab
      %br = async_copy.begin_read @ab
      %to, %fn = async_copy.slot @ab[%bf] if %more : !fill
      async_copy.wait_full @ab[%br]
      async_copy.barrier
      scf.if %more {
        async_copy.elect {
          async_copy.expect_tx @ab, %to bytes 512
          async_copy.tma_load %x[%c0, %c0] -> %to["t"] : !view -> !filled
        }
      }
      %slot, %rn = async_copy.slot @ab[%br] : !read
      %b0 = mma.load %slot["t"][%c0, %c0] : !slot -> !fb
      %s0 = mma.mma %a, %b0, %zero : (!fa, !fb) -> !fc
      %s1 = mma.mma %a, %b0, %s0 : (!fa, !fb) -> !fc
    }
  }
}
