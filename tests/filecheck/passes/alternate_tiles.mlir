// RUN: emmy-opt %s -p 'lower-tile,alternate-tiles,verify-pipelines' | filecheck %s
// RUN: emmy-opt %s -p 'lower-tile,alternate-tiles,alternate-tiles' | filecheck %s
// RUN: emmy-opt %s -p 'lower-tile,alternate-tiles,place-roles{target=sm_90a},lower-transport{kind=tma}' | filecheck %s --check-prefix ROLES

// The bias has a slot for each consumer, and results leave through a pipeline of each. A tile takes three tickets of @ab.
// CHECK-LABEL: tile.kernel @kernel
// CHECK-NEXT:    async_copy.pipeline @ab stages 2
// CHECK-NEXT:    async_copy.pipeline @r stages 2 {r = !tile.tile<64xf16>}
// CHECK-NEXT:    async_copy.pipeline @out stages 1 {c = !tile.tile<64x64xf16>} outbound
// CHECK-NEXT:    async_copy.pipeline @out_1 stages 1 {c = !tile.tile<64x64xf16>} outbound
// CHECK:         %[[cta:.*]] = tile.cta_id
// CHECK:         %[[count:.*]] = tile.cta_count
// The producer fills all tiles of the CTA.
// CHECK:         async_copy.producer {
// CHECK:           scf.for %{{.*}} = %[[cta]] to %c12 step %[[count]]
// CHECK:         async_copy.consumer {
// CHECK:           %[[twice:.*]] = arith.muli %[[count]], %{{.*}} : index
// CHECK:           scf.for %[[tile:.*]] = %[[cta]] to %c12 step %[[twice]]
// CHECK:             async_copy.await_turn consumer 0
// CHECK-NEXT:        %{{.*}} = scf.for %{{.*}} = %c0 to %c96 step %c32
// CHECK:               async_copy.wait @ab
// CHECK:             %[[next:.*]] = arith.addi %[[tile]], %[[count]] : index
// CHECK-NEXT:        %more = arith.cmpi slt, %[[next]], %c12 : index
// CHECK-NEXT:        async_copy.pass_turn consumer 1 if %more
// CHECK:             async_copy.wait @r
// CHECK:             async_copy.acquire @out[
// CHECK:             async_copy.skip @ab[%{{.*}}] by %[[three:c3.*]]
// CHECK-NEXT:        async_copy.skip @r[%{{.*}}] by %{{c1.*}}
// Consumer 1 gives the first turn away, and begins behind the first tile.
// CHECK:         async_copy.consumer {
// CHECK:           %[[some:.*]] = arith.cmpi slt, %[[cta]], %c12 : index
// CHECK-NEXT:      async_copy.pass_turn consumer 0 if %[[some]]
// CHECK-NEXT:      %[[behind:.*]] = async_copy.skip @ab[%{{.*}}] by %{{c3.*}}
// CHECK-NEXT:      %{{.*}} = async_copy.skip @r[%{{.*}}] by %{{c1.*}}
// CHECK-NEXT:      %[[second:.*]] = arith.addi %[[cta]], %[[count]] : index
// CHECK:           scf.for %{{.*}} = %[[second]] to %c12 step %{{.*}} iter_args(%{{.*}} = %[[behind]]
// CHECK:             async_copy.await_turn consumer 1
// CHECK:             async_copy.pass_turn consumer 0 if %{{.*}}
// CHECK:             async_copy.acquire @out_1[

// A slot counts the warps of one consumer.
// ROLES:       async_copy.pipeline @ab stages 2 {{.*}}empty_count = 4
// ROLES:       async_copy.role "consumer" warps 4 regs 240
// ROLES:       async_copy.role "consumer_1" warps 4 regs 240
// ROLES:       async_copy.role "producer" warps 4 active 1 regs 24

tile.kernel @kernel(%a: !tile.view<256x96xf16>, %b: !tile.view<192x96xf16>, %r: !tile.view<192xf16>, %c: !tile.view<256x192xf16>)
    schedule <block = [64, 64, 32], warps = [4, 1], stages = 2, roles = specialized, persistent = 1, consumers = pingpong, fragments = 1> {
  %c256 = arith.constant 256 : index
  %c192 = arith.constant 192 : index
  %c12 = arith.constant 12 : index
  %c0 = arith.constant 0 : index
  %c96 = arith.constant 96 : index
  %c32 = arith.constant 32 : index
  %cta = tile.cta_id
  %count = tile.cta_count
  scf.for %t = %cta to %c12 step %count {
    %m, %n = tile.grid [%c256 by 64, %c192 by 64] raster 4 at %t
    %zero = tile.fill 0.000000e+00 : f32 : !tile.tile<64x64xf32>
    %acc = scf.for %k = %c0 to %c96 step %c32 iter_args(%sum = %zero) -> (!tile.tile<64x64xf32>) {
      %x = tile.load %a[%m, %k] : !tile.view<256x96xf16> -> !tile.tile<64x32xf16>
      %w = tile.load %b[%n, %k] : !tile.view<192x96xf16> -> !tile.tile<64x32xf16>
      %d = tile.dot %x, %w into %sum transpose_b : (!tile.tile<64x32xf16>, !tile.tile<64x32xf16>, !tile.tile<64x64xf32>) -> !tile.tile<64x64xf32>
      scf.yield %d : !tile.tile<64x64xf32>
    }
    %h = tile.cast %acc : !tile.tile<64x64xf32> to !tile.tile<64x64xf16>
    %bias = tile.load %r[%n] : !tile.view<192xf16> -> !tile.tile<64xf16>
    %e = tile.map add %h, %bias : (!tile.tile<64x64xf16>, !tile.tile<64xf16>) -> !tile.tile<64x64xf16>
    tile.store %e, %c[%m, %n] : !tile.tile<64x64xf16>, !tile.view<256x192xf16>
    scf.yield
  }
}
