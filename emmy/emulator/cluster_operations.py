"""barrier.cluster and mapa."""

from __future__ import annotations

import numpy as np

from emmy.emulator.datatypes import TYPES, Array
from emmy.emulator.decode import Execute, Operation, Spelling, instruction
from emmy.emulator.faults import Fault
from emmy.emulator.machine import Machine
from emmy.emulator.shared_memory import WINDOW

U32 = TYPES["u32"]


@instruction("barrier.cluster.arrive", "barrier.cluster.wait")
def decode_cluster_barrier(spelling: Spelling) -> Operation:
    """arrive{.release, .relaxed}{.aligned} and wait{.acquire}{.aligned}: all threads of the cluster that have not exited."""
    spelling.available((7, 8), 90)
    arrives = spelling.prefix.endswith("arrive")
    # The defaults are .release and .acquire. A wait cannot be relaxed.
    semantics = spelling.take("release", "relaxed") if arrives else spelling.take("acquire")
    if semantics:
        spelling.available((8, 0), 90)
    spelling.take("aligned")
    spelling.finish(0)

    def bind(machine: Machine) -> Execute:
        def execute(low: int, high: int, mask: Array | None) -> None:
            barrier = machine.cluster.barrier
            for warp in range(low, high):
                if arrives:
                    barrier.arrive(warp, semantics != "relaxed")
                else:
                    barrier.wait(warp)

        return execute

    return Operation(spelling.prefix, bind, destinations=0, collective=True, control=True)


@instruction("mapa")
def decode_mapa(spelling: Spelling) -> Operation:
    """d = the address of what [a] is in the own CTA, in the CTA of rank b."""
    spelling.available((7, 8), 90)
    spelling.require("shared::cluster")
    spelling.require("u32")
    spelling.finish(3)
    for operand in spelling.operands:
        spelling.check(operand, U32)

    def bind(machine: Machine) -> Execute:
        write = machine.writer(spelling.operands[0], U32)
        addresses, ranks = (machine.source(o, U32) for o in spelling.operands[1:])

        def execute(low: int, high: int, mask: Array | None) -> None:
            at, rank = addresses[low:high], ranks[low:high]
            bad = (rank >= machine.ctas) | (at >= WINDOW)
            if mask is not None:
                bad = bad & mask
            if bad.any():
                warp, lane = (int(x[0]) for x in bad.nonzero())
                raise Fault(
                    f"no address of the cluster: {int(at[warp, lane]):#x} in the CTA of rank {int(rank[warp, lane])} "
                    f"of {machine.ctas}",
                    warp + low,
                    lane,
                )
            write(low, high, mask, ((rank + np.uint32(1)) * np.uint32(WINDOW) + at).astype(np.uint32))

        return execute

    return Operation("mapa", bind)
