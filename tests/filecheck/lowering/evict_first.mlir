// RUN: emmy-opt %s -p 'lower-tile' | filecheck %s
// RUN: emmy-opt %s -p 'lower-tile,place-roles,lower-transport{kind=cp_async}' | filecheck %s --check-prefix EVENTS
// RUN: emmy-opt %s -p 'lower-tile,place-roles,lower-transport{kind=tma}' | filecheck %s --check-prefix TMA
// RUN: emmy-opt %s -p 'lower-tile,place-roles,lower-transport{kind=plain}' | filecheck %s --check-prefix PLAIN
// RUN: emmy-opt %s -p 'lower-tile,place-roles,lower-transport{kind=cp_async},allocate-shared,lower-raster,canonicalize,cse,lower-to-ptx{target=sm_80}' -t ptx --target sm_80 | filecheck %s --check-prefix PTX

// What the loop copies is evicted first: both operands, not the tile that is added once behind it (and copied first of all, where
// one role does both).
// CHECK:       async_copy.producer {
// CHECK:         scf.for
// CHECK:           async_copy.copy %a[%c0, %k] -> %{{.*}}["a"] evict_first :
// CHECK-NEXT:      async_copy.copy %b[%c0, %k] -> %{{.*}}["b"] evict_first :
// CHECK:         async_copy.copy %r[%c0, %c0] -> %{{.*}}["r"] :

// The copies before the loop that fill the first slots are the same ones.
// EVENTS:      async_copy.role
// EVENTS:        async_copy.cp_async %r[%c0, %c0] -> %{{.*}}["r"] bytes 16 :
// EVENTS:        async_copy.cp_async %a[%c0, %c0] -> %{{.*}}["a"] bytes 16 evict_first :
// EVENTS-NEXT:   async_copy.cp_async %b[%c0, %c0] -> %{{.*}}["b"] bytes 16 evict_first :
// EVENTS:        scf.for
// EVENTS:          async_copy.cp_async %a{{.*}} bytes 16 evict_first :
// EVENTS-NEXT:     async_copy.cp_async %b{{.*}} bytes 16 evict_first :

// TMA:         async_copy.tma_load %r[%c0, %c0] -> %{{.*}}["r"] :
// TMA:         async_copy.tma_load %a[%c0, %c0] -> %{{.*}}["a"] evict_first :
// TMA-NEXT:    async_copy.tma_load %b[%c0, %c0] -> %{{.*}}["b"] evict_first :
// TMA:         scf.for
// TMA:           async_copy.tma_load %a{{.*}} evict_first :
// TMA-NEXT:      async_copy.tma_load %b{{.*}} evict_first :

// A plain copy has no such priority.
// PLAIN-NOT:   evict_first :

// One policy, before the loop.
// PTX-NOT:     cache_hint
// PTX:         cp.async.cg.shared.global.L2::128B [
// PTX:         createpolicy.fractional.L2::evict_first.b64 [[POLICY:%rd[0-9]+]];
// PTX-NEXT:    cp.async.cg.shared.global.L2::cache_hint.L2::128B [{{.*}}, 16, [[POLICY]];
// PTX-NOT:     createpolicy
// PTX:         LOOP_
// PTX:         cp.async.cg.shared.global.L2::cache_hint.L2::128B [{{.*}}, 16, [[POLICY]];
// PTX:         bra.uni LOOP_
// PTX-NOT:     cp.async.cg

tile.kernel @k(%a: !tile.view<16x512xf16>, %b: !tile.view<16x512xf16>, %r: !tile.view<16x16xf32>, %c: !tile.view<16x16xf32>) schedule <block = [16, 16, 64], warps = [1, 1], stages = 2, evict = both, epilogue = direct> {
  %c0 = arith.constant 0 : index
  %c64 = arith.constant 64 : index
  %c512 = arith.constant 512 : index
  %zero = tile.fill 0.0 : f32 : !tile.tile<16x16xf32>
  %sum = scf.for %k = %c0 to %c512 step %c64 iter_args(%s = %zero) -> (!tile.tile<16x16xf32>) {
    %x = tile.load %a[%c0, %k] : !tile.view<16x512xf16> -> !tile.tile<16x64xf16>
    %y = tile.load %b[%c0, %k] : !tile.view<16x512xf16> -> !tile.tile<16x64xf16>
    %d = tile.dot %x, %y into %s transpose_b : (!tile.tile<16x64xf16>, !tile.tile<16x64xf16>, !tile.tile<16x16xf32>) -> !tile.tile<16x16xf32>
    scf.yield %d : !tile.tile<16x16xf32>
  }
  %res = tile.load %r[%c0, %c0] : !tile.view<16x16xf32> -> !tile.tile<16x16xf32>
  %out = tile.map add %sum, %res : (!tile.tile<16x16xf32>, !tile.tile<16x16xf32>) -> !tile.tile<16x16xf32>
  tile.store %out, %c[%c0, %c0] : !tile.tile<16x16xf32>, !tile.view<16x16xf32>
}
