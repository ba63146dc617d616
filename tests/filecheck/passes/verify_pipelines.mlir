// RUN: emmy-opt %s -p 'verify-pipelines' | filecheck %s
// RUN: emmy-opt %s -p 'verify-pipelines,place-roles,verify-pipelines,lower-transport,verify-pipelines' | filecheck %s --check-prefix LOWERED

// A slot released an iteration later: it crosses as an iter_arg. The pass changes nothing.
// CHECK-LABEL: tile.kernel @deferred
// CHECK:       async_copy.consumer {
// CHECK:         scf.for %{{.*}} = %c1 to %n step %c1 iter_args(%kept = %s0, %[[cur:.*]] = %r1)
// CHECK-NEXT:      %[[s:.*]], %[[next:.*]] = async_copy.wait @k[%[[cur]]]
// CHECK-NEXT:      async_copy.release @k, %kept
// CHECK-NEXT:      scf.yield %[[s]], %[[next]]
// LOWERED-LABEL: tile.kernel @deferred
// LOWERED-NOT:   async_copy.wait @
tile.kernel @deferred(%v: !tile.view<?x8xf16>) {
  async_copy.pipeline @k stages 2 {k = !tile.tile<1x8xf16>}
  %n = tile.dim %v, 0 : !tile.view<?x8xf16>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  async_copy.producer {
    %f0 = async_copy.begin_fill @k
    %f = scf.for %k = %c0 to %n step %c1 iter_args(%cur = %f0) -> (!async_copy.cursor<@k, fill>) {
      %s, %next = async_copy.acquire @k[%cur]
      async_copy.copy %v[%k, %c0] -> %s["k"] : !tile.view<?x8xf16> -> !async_copy.slot<@k, fill>
      async_copy.commit @k, %s
      scf.yield %next : !async_copy.cursor<@k, fill>
    }
  }
  async_copy.consumer {
    %r0 = async_copy.begin_read @k
    %s0, %r1 = async_copy.wait @k[%r0]
    %last, %r = scf.for %k = %c1 to %n step %c1 iter_args(%kept = %s0, %cur = %r1) -> (!async_copy.slot<@k, read>, !async_copy.cursor<@k, read>) {
      %s, %next = async_copy.wait @k[%cur]
      async_copy.release @k, %kept
      scf.yield %s, %next : !async_copy.slot<@k, read>, !async_copy.cursor<@k, read>
    }
    async_copy.release @k, %last
  }
}
