// RUN: emmy-opt %s -p 'split-masks' | filecheck %s
// RUN: emmy-opt %s -p 'split-masks,split-masks' | filecheck %s
// RUN: emmy-opt %s -p 'split-masks{mode=guard roles=specialized}' | filecheck %s --check-prefix GUARD
// RUN: not emmy-opt %s -p 'split-masks{mode=guard roles=specialized},place-roles{mode=unified}' 2>&1 \
// RUN:   | filecheck %s --check-prefix ALONE
// RUN: emmy-opt %s -p 'split-masks,verify-pipelines,place-roles,lower-transport' | filecheck %s --check-prefix PLACED

!score = !mma.fragment<32x64xf32, c, m16n8k16>

// Rows see columns up to their own number and no older than 99: masked, free, masked; two warps split alike.
// CHECK-LABEL: tile.kernel @both
// CHECK:         async_copy.consumer
// CHECK:           %[[trips:.*]] = arith.ceildivui
// CHECK:           %[[first:.*]] = arith.minsi %{{.*}}, %[[trips]] : index
// CHECK:           %[[last:.*]] = arith.maxsi %{{.*}}, %[[first]] : index
// CHECK-NEXT:      %[[a:.*]] = arith.muli %[[first]], %{{.*}} : index
// CHECK-NEXT:      %{{.*}} = scf.for %j{{.*}} = %c0 to %[[a]] step %c64 iter_args
// CHECK-NEXT:        %{{.*}} = async_copy.wait @k
// CHECK-NEXT:        %[[low:.*]] = arith.cmpi sge, %j
// CHECK-NEXT:        %[[high:.*]] = arith.cmpi slt, %j
// CHECK-NEXT:        %[[sees:.*]] = arith.andi %[[low]], %[[high]] : i1
// CHECK-NEXT:        %{{.*}} = scf.if %[[sees]] -> (!mma.fragment<32x64xf32, c, m16n8k16>) {
// CHECK:               mma.map select
// CHECK:               mma.map select
// CHECK:             } else {
// CHECK-NEXT:          scf.yield %acc
// CHECK-NEXT:        }
// CHECK-NEXT:        async_copy.release @k
// CHECK-NEXT:        scf.yield
// CHECK-NEXT:      } {emmy.needs_masks}
// CHECK-NEXT:      %[[b:.*]] = arith.muli %[[last]], %{{.*}} : index
// CHECK-NEXT:      %{{.*}} = scf.for %j{{.*}} = %[[a]] to %[[b]] step %c64 iter_args
// CHECK-NOT:         mma.coord
// CHECK-NOT:         mma.map
// CHECK:             mma.promote
// CHECK-NEXT:        scf.yield
// CHECK-NEXT:      }
// CHECK-NEXT:      %{{.*}} = scf.for %j{{.*}} = %[[b]] to %columns step %c64 iter_args
// CHECK:             scf.if
// CHECK:             scf.yield
// CHECK:           } {emmy.needs_masks}
// CHECK-NEXT:      async_copy.drain @k

// Each warp has its own part of the iterations; before and behind it only waits and gives slots back.
// GUARD-LABEL: tile.kernel @both
// GUARD:         async_copy.consumer
// GUARD:           %{{.*}} = scf.for %j{{.*}} = %c0 to %[[a:.*]] step %c64 iter_args
// GUARD-NEXT:        %{{.*}} = async_copy.wait @k
// GUARD-NEXT:        async_copy.release @k
// GUARD-NEXT:        scf.yield
// GUARD:           %{{.*}} = scf.for %j{{.*}} = %[[a]] to %[[b:.*]] step %c64 iter_args
// GUARD:             async_copy.release @k
// GUARD-NEXT:        %wide = mma.convert
// GUARD-NEXT:        %[[early:.*]] = arith.cmpi slt, %j
// GUARD-NEXT:        %[[late:.*]] = arith.cmpi sge, %j
// GUARD-NEXT:        %[[needed:.*]] = arith.ori %[[early]], %[[late]] : i1
// GUARD-NEXT:        %b = scf.if %[[needed]]
// GUARD-COUNT-2:       mma.map select
// GUARD:             } else {
// GUARD-NEXT:          scf.yield %wide
// GUARD-NEXT:        }
// GUARD-NEXT:        %h = mma.convert %b
// GUARD:           } {emmy.needs_masks}
// GUARD-NEXT:      %{{.*}} = scf.for %j{{.*}} = %[[b]] to %columns step %c64 iter_args
// GUARD-NEXT:        %{{.*}} = async_copy.wait @k
// GUARD-NEXT:        async_copy.release @k

// ALONE: error: the loop of pipeline @k differs between warps

// PLACED-LABEL: tile.kernel @both
// PLACED-COUNT-3: scf.for

tile.kernel @both(%x: !tile.view<?x64xf16>, %y: !tile.view<64x64xf32>) {
  async_copy.pipeline @k stages 2 {k = !tile.tile<64x64xf16>}
  %c0 = arith.constant 0 : index
  %c64 = arith.constant 64 : index
  %columns = tile.dim %x, 0 : !tile.view<?x64xf16>
  async_copy.producer {
    %fill = async_copy.begin_fill @k
    %end = scf.for %j = %c0 to %columns step %c64 iter_args(%c = %fill) -> (!async_copy.cursor<@k, fill>) {
      %s, %n = async_copy.acquire @k[%c]
      async_copy.copy %x[%j, %c0] -> %s["k"] : !tile.view<?x64xf16> -> !async_copy.slot<@k, fill>
      async_copy.commit @k, %s
      scf.yield %n : !async_copy.cursor<@k, fill>
    }
    async_copy.drain @k
  }
  async_copy.consumer {
    %warp = mma.warp 0 of [2, 1]
    %c32 = arith.constant 32 : index
    %c99 = arith.constant 99 : index
    %row = arith.muli %warp, %c32 : index
    %first = arith.subi %row, %c99 : index
    %hidden = arith.constant 0.0 : f32
    %newest = mma.coord 0 from %row : !mma.fragment<32x1xi32, c, m16n8k16>
    %oldest = mma.coord 0 from %first : !mma.fragment<32x1xi32, c, m16n8k16>
    %zero = mma.fill 0.0 : f32 : !score
    %read = async_copy.begin_read @k
    %sum, %done = scf.for %j = %c0 to %columns step %c64 iter_args(%acc = %zero, %c = %read)
        -> (!score, !async_copy.cursor<@k, read>) {
      %s, %n = async_copy.wait @k[%c]
      %f = mma.load %s["k"][%row, %c0] : !async_copy.slot<@k, read> -> !mma.fragment<32x64xf16, c, m16n8k16>
      async_copy.release @k, %s
      %wide = mma.convert %f : !mma.fragment<32x64xf16, c, m16n8k16> to !score
      %key = mma.coord 1 from %j : !mma.fragment<1x64xi32, c, m16n8k16>
      %seen = mma.map ge %newest, %key
        : (!mma.fragment<32x1xi32, c, m16n8k16>, !mma.fragment<1x64xi32, c, m16n8k16>) -> !mma.fragment<32x64xi1, c, m16n8k16>
      %a = mma.map select %seen, %wide, %hidden : (!mma.fragment<32x64xi1, c, m16n8k16>, !score, f32) -> !score
      %near = mma.map ge %key, %oldest
        : (!mma.fragment<1x64xi32, c, m16n8k16>, !mma.fragment<32x1xi32, c, m16n8k16>) -> !mma.fragment<32x64xi1, c, m16n8k16>
      %b = mma.map select %near, %a, %hidden : (!mma.fragment<32x64xi1, c, m16n8k16>, !score, f32) -> !score
      %h = mma.convert %b : !score to !mma.fragment<32x64xf16, c, m16n8k16>
      %next = mma.promote %h into %acc : !mma.fragment<32x64xf16, c, m16n8k16> -> !score
      scf.yield %next, %n : !score, !async_copy.cursor<@k, read>
    } {emmy.hidden_is_identity}
    async_copy.drain @k
    mma.store_global %sum -> %y[%row, %c0] : !score -> !tile.view<64x64xf32>
  }
}
