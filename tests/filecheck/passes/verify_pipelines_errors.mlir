// RUN: not emmy-opt %s -p 'verify-pipelines' 2>&1 | filecheck %s

// CHECK: verify_pipelines_errors.mlir:20:5: error: a slot of pipeline @k is used after it was consumed
tile.kernel @late(%v: !tile.view<?x16xf16>) {
  async_copy.pipeline @k stages 2 {k = !tile.tile<16x16xf16>}
  %z = arith.constant 0 : index
  async_copy.producer {
    %f0 = async_copy.begin_fill @k
    %s, %f1 = async_copy.acquire @k[%f0]
    async_copy.copy %v[%z, %z] -> %s["k"] : !tile.view<?x16xf16> -> !async_copy.slot<@k, fill>
    async_copy.commit @k, %s
  }
  async_copy.consumer {
    %r0 = async_copy.begin_read @k
    %s, %r1 = async_copy.wait @k[%r0]
    %early = mma.load %s["k"][%z, %z] : !async_copy.slot<@k, read> -> !mma.fragment<16x16xf16, a, m16n8k16>
    async_copy.release @k, %s
    // The slot may be overwritten by now.

    %f = mma.load %s["k"][%z, %z] : !async_copy.slot<@k, read> -> !mma.fragment<16x16xf16, a, m16n8k16>
  }
}
