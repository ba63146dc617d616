"""st.async: stores into the shared memory of any CTA of the cluster, whose bytes count on an mbarrier beside them."""

from __future__ import annotations

import numpy as np

from emmy.emulator.bulk_copies import Place
from emmy.emulator.datatypes import TYPES, Array
from emmy.emulator.decode import Execute, Operation, Spelling, instruction
from emmy.emulator.faults import Fault
from emmy.emulator.machine import Machine
from emmy.emulator.shared_memory import SHARED_BASE, WINDOW

ROW_BYTES = 16


@instruction("st.async")
def decode_async_store(spelling: Spelling) -> Operation:
    """[a], {b, ..}, [mbarrier]: 16 bytes of each lane, in flight until the mbarrier of the CTA that a is in has counted them.

    Lanes whose mbarrier is the same land together.
    """
    spelling.available((8, 1), 90)
    spelling.skip("weak")
    spelling.require("shared::cluster")
    spelling.require("mbarrier::complete_tx::bytes")
    count = int(spelling.require("v4")[1])
    type_ = spelling.type("b32", "u32", "s32", "f32")
    spelling.finish(3)
    target, barrier = (spelling.address(spelling.operands[i], "shared") for i in (0, 2))
    values = spelling.vector(spelling.operands[1], count)
    element = TYPES[f"b{type_.bits}"]
    for value in values:
        spelling.check(value, element, wider=True)
    line = spelling.source.line

    def bind(machine: Machine) -> Execute:
        targets, barriers = machine.address(target), machine.address(barrier)
        sources = [machine.source(v, element) for v in values]

        def execute(low: int, high: int, mask: Array | None) -> None:
            warp, lane = machine.lanes(low, high, mask)
            to = machine.cluster.mapped(targets(low, high, mask), warp)
            at = machine.cluster.mapped(barriers(low, high, mask), warp)
            chosen = [s[low:high].reshape(-1) if mask is None else s[low:high][mask] for s in sources]
            data: Array = np.stack(chosen, axis=1).astype(np.uint32)
            for key in dict.fromkeys(zip(warp.tolist(), at.tolist(), strict=True)):
                these = np.flatnonzero((warp == key[0]) & (at == key[1]))
                _send(machine, to[these], data[these], key[1], key[0], int(lane[these[0]]), line)

        return execute

    return Operation("st.async", bind, destinations=0, shared_bytes=4, reads_late=True)


def _send(machine: Machine, to: Array, data: Array, barrier: int, warp: int, lane: int, line: int) -> None:
    """Begin the stores of some lanes of a warp that count on one mbarrier. Raises Fault for a place that is none of its CTA's."""
    shared, rank = machine.shared, barrier // WINDOW
    machine.cluster.check_rank(rank, warp, lane)
    if (to // WINDOW != rank).any():
        raise Fault("st.async counts on an mbarrier of another CTA than it writes into", warp, lane)
    if (to % ROW_BYTES).any():
        raise Fault(f"misaligned: a shared address of st.async is no multiple of {ROW_BYTES} bytes", warp, lane)
    begin = to % WINDOW - SHARED_BASE
    if (begin < 0).any() or (begin > shared.size - ROW_BYTES).any():
        raise Fault(f"st.async out of bounds: the CTA has {shared.size} bytes at {SHARED_BASE:#x}", warp, lane)
    rows = (rank * shared.stride + begin) // ROW_BYTES
    machine.bulk.load(Place(rows, warp, lane, line, rank), lambda: data.view(np.uint8).reshape(-1), barrier)
