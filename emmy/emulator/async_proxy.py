"""What the async proxy may touch: checks of the shared memory that TMA reads and writes, and that wgmma reads.

A generic write must be followed by a fence.proxy.async of its warp, and that ordered before the issue. A generic read
must be ordered before the write that refills its bytes by a CTA barrier, or by a fence.proxy.async and an mbarrier: a
bare mbarrier.arrive may overtake an ldmatrix. A fence covers only what came before it. Data that TMA itself wrote or
read takes the wait at its mbarrier or bulk group, and no fence.
"""

from __future__ import annotations

import numpy as np

from emmy.emulator.clocks import WARPGROUP
from emmy.emulator.datatypes import Array
from emmy.emulator.shared_memory import ALL_LANES, IN_FLIGHT, INITIALISED, MBARRIER, NEVER, SharedMemory, stamp_of


def begin_write(shared: SharedMemory, cells: Array, agent: int, warp: int, lane: int, line: int) -> None:
    """A bulk copy begins to write these granules (1-D): everything before is ordered, from now on they are poison."""
    state = shared.state[cells]
    if (state == MBARRIER).any():
        shared.bad_state(cells[:, None], (state == MBARRIER)[:, None], _full(cells, warp), _full(cells, lane))
    known = shared.clocks.known_to_lane(warp, lane)
    _check_writers(shared, cells, known, warp, lane, "the bulk copy", "overwrites")
    _check_readers(shared, cells, known, warp, lane)
    shared.state[cells] = IN_FLIGHT
    shared.writer[cells] = agent
    shared.write_stamp[cells] = NEVER << 32 | line << 8 | lane
    # Whoever is ordered after this write is ordered after the reads before it.
    shared.read_stamp[cells] = 0


def end_write(shared: SharedMemory, cells: Array, epoch: int, line: int, lane: int) -> None:
    """The bytes are there, visible to those who know `epoch` of the mbarrier that counts them."""
    shared.state[cells] = INITIALISED
    shared.write_stamp[cells] = epoch << 32 | line << 8 | lane


def begin_read(shared: SharedMemory, cells: Array, epoch: int, warp: int, lane: int, line: int) -> None:
    """A bulk store begins to read these granules (1-D), and goes on until the warp knows of `epoch` of its stores."""
    bad = shared.state[cells] != INITIALISED
    if bad.any():
        shared.bad_state(cells[:, None], bad[:, None], _full(cells, warp), _full(cells, lane))
    _check_writers(shared, cells, shared.clocks.known_to_lane(warp, lane), warp, lane, "the bulk copy", "reads")
    stamp = stamp_of(np.array(epoch), line, np.array(lane))
    shared.read_stamp[cells, shared.clocks.bulk + warp] = stamp


def begin_wgmma(shared: SharedMemory, cells: Array, epoch: int, first_warp: int, queue: int, line: int) -> None:
    """A wgmma of the warpgroup at `first_warp` begins to read these granules, and goes on until its warps know of `epoch`
    of its queue. Each of the four warps must know of the writes; lanes are not told apart."""
    bad = shared.state[cells] != INITIALISED
    if bad.any():
        shared.bad_state(cells[:, None], bad[:, None], _full(cells, first_warp), _full(cells, ALL_LANES))
    clocks = shared.clocks
    fewest = clocks.known[first_warp : first_warp + WARPGROUP, clocks.fence_of].min(axis=0)
    if ((shared.write_stamp[cells] >> 32) > fewest[shared.writer[cells]]).any():
        for warp in range(first_warp, first_warp + WARPGROUP):
            _check_writers(shared, cells, clocks.known[warp], warp, ALL_LANES, "the wgmma", "reads")
    stamp = stamp_of(np.array(epoch), line, np.array(ALL_LANES))
    shared.read_stamp[cells, clocks.wgmma + queue] = stamp


def _full(cells: Array, value: int) -> Array:
    return np.full(cells.size, value)


def _check_writers(shared: SharedMemory, cells: Array, known: Array, warp: int, lane: int, who: str, verb: str) -> None:
    clocks = shared.clocks
    writer, stamp = shared.writer[cells], shared.write_stamp[cells]
    bad = (stamp >> 32) > known[clocks.fence_of[writer]]
    if not bad.any():
        return
    for i in np.flatnonzero(bad):
        agent, at, cell = int(writer[i]), int(stamp[i]), int(cells[i])
        if _fenced_by_itself(shared, agent, at, warp, lane):
            continue
        text = shared.written_by(agent, at)
        if at >> 32 > known[agent] and not (agent == warp and at & 255 == lane):
            shared.race(verb, text, cell, warp, lane)
        reason = "no fence.proxy.async of that warp follows the write"
        shared.proxy_fault(f"{who} {verb}", text, reason, cell, warp, lane)


def _check_readers(shared: SharedMemory, cells: Array, known: Array, warp: int, lane: int) -> None:
    clocks = shared.clocks
    stamps = shared.read_stamp[cells]
    fenced = known[clocks.fenced : clocks.fenced_queue]
    allowed = np.maximum(fenced, known[clocks.barrier_passed : clocks.mbarriers])
    allowed = np.concatenate([allowed, known[clocks.bulk : clocks.queue]])[: shared.readers]
    for i, reader in zip(*((stamps >> 32) > allowed).nonzero(), strict=True):
        agent, at, cell = int(reader), int(stamps[i, reader]), int(cells[i])
        if _fenced_by_itself(shared, agent, at, warp, lane):
            continue
        text = shared.read_by(agent, at)
        if at >> 32 > known[agent] and not (agent == warp and at & 255 == lane):
            shared.race("overwrites", text, cell, warp, lane)
        reason = "neither a CTA barrier nor a fence.proxy.async of that warp follows the read"
        shared.proxy_fault("the bulk copy overwrites", text, reason, cell, warp, lane)


def _fenced_by_itself(shared: SharedMemory, agent: int, stamp: int, warp: int, lane: int) -> bool:
    """The lane's own access, which the lane itself fenced."""
    return agent == warp and stamp & 255 == lane and stamp >> 32 <= shared.clocks.fenced_epoch[warp]
