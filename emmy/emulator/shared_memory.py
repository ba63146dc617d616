"""Shared memory of the CTAs that run together (a cluster, mostly of one): bytes, a shadow that knows what is initialised
or in flight, and the race detector.

The shadow's granule is the narrowest shared access of the kernel (at most 8 bytes), so that every access covers whole
granules. For each granule it keeps the last writer and, for each warp, the last read; `clocks` decides whether they are
ordered before a new access. Reads and writes by different warps (or lanes of one warp) without order are races.
What TMA reads and writes is checked by `async_proxy` on the same shadow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import numpy as np

from emmy.emulator.clocks import Clocks
from emmy.emulator.datatypes import Array
from emmy.emulator.faults import Fault

SHARED_BASE = 1024  # the first valid shared address; what lies below is out of bounds (and 0 is nobody's address)
ALL_LANES = 63  # stands for "the whole warp" where a lane is recorded (ldmatrix, stmatrix)
UNINITIALISED, INITIALISED, IN_FLIGHT, MBARRIER = 0, 1, 2, 3
WINDOW = 1 << 24  # how far the shared memories of a cluster's CTAs lie apart, as addresses
PADDING = 1024  # each CTA's bytes are padded to the period of the widest swizzle

_LANE_BITS, _LINE_BITS = 8, 24  # a stamp is epoch << 32 | line << 8 | lane
NEVER = (1 << 31) - 1  # an epoch that nobody gets to know: that of a write in flight


def stamp_of(epoch: Array, line: int, lane: Array) -> Array:
    """When (in its agent's epochs), by which PTX line and by which lane a granule was accessed."""
    return epoch << 32 | line << _LANE_BITS | lane


class SharedMemory:
    """`size` bytes at SHARED_BASE for each of `ctas` CTAs. Accesses come as flat arrays: one entry an active lane.

    Addresses are those of the CTA's window plus its rank times WINDOW; offsets are into the bytes of all CTAs.
    late_readers: the kernel has bulk stores or wgmma, whose reads are kept beside those of the warps.
    """

    def __init__(
        self,
        size: int,
        granule: int,
        clocks: Clocks,
        describe: Callable[[int], str],
        late_readers: bool = False,
        ctas: int = 1,
    ):
        self.size = size
        self.ctas, self.stride = ctas, -(-size // PADDING) * PADDING
        self.clocks = clocks
        self.describe = describe  # PTX line number -> "line N (`text`)"
        self.shift = granule.bit_length() - 1
        padded = self.stride * ctas
        self.bytes = np.zeros(padded, np.uint8)
        self.words = {width: self.bytes.view(f"uint{8 * width}") for width in (1, 2, 4, 8)}
        self.rows = self.bytes.view(np.uint32).reshape(-1, 4)
        granules = padded >> self.shift
        self.state = np.zeros(granules, np.uint8)
        self.writer = np.zeros(granules, np.int64)
        self.write_stamp = np.zeros(granules, np.int64)
        self.readers = clocks.queue if late_readers else clocks.warps
        self.read_stamp = np.zeros((granules, self.readers), np.int64)
        self.owner = np.zeros(granules, np.int64)
        self.steps = {n: np.arange(max(1, n >> self.shift)) for n in (1, 2, 4, 8, 16)}

    def reset(self) -> None:
        for array in (self.state, self.writer, self.write_stamp, self.read_stamp):
            array.fill(0)

    def locate(self, addresses: Array, size: int, warp: Array, lane: Array) -> Array:
        """Byte offsets of accesses of `size` bytes. Raises Fault if one is out of bounds or misaligned."""
        if self.ctas == 1:
            rank, offsets = None, addresses - SHARED_BASE
            bad = (offsets < 0) | (offsets > self.size - size)
        else:
            rank = addresses // WINDOW
            offsets = addresses - rank * WINDOW - SHARED_BASE
            bad = (offsets < 0) | (offsets > self.size - size) | (rank >= self.ctas)
        if bad.any():
            i = int(bad.argmax())
            raise Fault(
                f"shared address {int(addresses[i]):#x} is out of bounds: the CTA has {self.size} bytes at "
                f"{SHARED_BASE:#x}, the access takes {size}",
                int(warp[i]),
                int(lane[i]),
            )
        if size > 1:
            bad = (offsets & (size - 1)) != 0
            if bad.any():
                i = int(bad.argmax())
                raise Fault(
                    f"misaligned: shared address {int(addresses[i]):#x} is no multiple of {size} bytes",
                    int(warp[i]),
                    int(lane[i]),
                )
        return offsets if rank is None else offsets + rank * self.stride

    def name(self, cell: int) -> str:
        """The address of a granule in words."""
        rank, offset = divmod(cell << self.shift, self.stride)
        return f"shared address {SHARED_BASE + offset:#x}" + (f" of CTA rank {rank}" if self.ctas > 1 else "")

    def granules(self, offsets: Array, size: int) -> Array:
        """Granule numbers, [accesses, granules each]."""
        return (offsets >> self.shift)[:, None] + self.steps[size]

    # Checks

    def check_read(self, cells: Array, warp: Array, lane: Array, line: int) -> None:
        """Every granule is initialised and its last write is ordered before this read; then record the read."""
        state = self.state[cells]
        if (state != INITIALISED).any():
            self.bad_state(cells, state != INITIALISED, warp, lane)
        self._check_writer(cells, warp, lane, line, "reads")
        clocks = self.clocks
        stamp = stamp_of(clocks.epoch[warp], line, lane)[:, None]
        if int(lane[0]) != ALL_LANES:
            stamp = self._merge_readers(cells, warp, lane, stamp)
        self.read_stamp[cells, warp[:, None]] = stamp

    def _merge_readers(self, cells: Array, warp: Array, lane: Array, stamp: Array) -> Array:
        """A granule read by several lanes of a warp since they last synchronised is read by the whole warp."""
        column = warp[:, None]
        old = self.read_stamp[cells, column]
        unsynchronized = (old >> 32) > self.clocks.known[warp, warp][:, None]
        several = unsynchronized & ((old & 255) != lane[:, None])
        self.read_stamp[cells, column] = stamp
        several |= self.read_stamp[cells, column] != stamp
        if several.any():
            # All entries of one granule and warp must agree, whatever order the duplicates are stored in.
            key = cells * self.clocks.warps + column
            return np.where(np.isin(key, key[several]), stamp | ALL_LANES, stamp)
        return stamp

    def check_write(
        self, cells: Array, warp: Array, lane: Array, line: int, queue: bool = False, state: int = INITIALISED
    ) -> None:
        """The last write and all reads of every granule are ordered before this write; then record it.

        `queue`: the write is that of the warp's cp.async queue, which begins at the issue.
        """
        count = np.arange(cells.size).reshape(cells.shape)
        self.owner[cells] = count
        twice = self.owner[cells] != count
        if twice.any():
            self._same_instruction(cells, twice, warp, lane)
        if (self.state[cells] == MBARRIER).any():
            self.bad_state(cells, self.state[cells] == MBARRIER, warp, lane)
        self._check_writer(cells, warp, lane, line, "overwrites")
        self._check_readers(cells, warp, lane, line)
        clocks = self.clocks
        epoch = clocks.queue_epoch[warp] if queue else clocks.epoch[warp]
        self.state[cells] = state
        self.writer[cells] = (warp + clocks.queue if queue else warp)[:, None]
        self.write_stamp[cells] = stamp_of(epoch, line, lane)[:, None]

    def _check_writer(self, cells: Array, warp: Array, lane: Array, line: int, verb: str) -> None:
        clocks = self.clocks
        writer = self.writer[cells]
        stamp = self.write_stamp[cells]
        known = clocks.known.ravel()[(warp * clocks.agents)[:, None] + writer]
        unknown = (stamp >> 32) > known
        if not unknown.any():
            return
        for i, j in zip(*unknown.nonzero(), strict=True):
            agent, at = int(writer[i, j]), int(stamp[i, j])
            who, which = int(warp[i]), int(lane[i])
            if not self._excused(who, which, agent, at):
                self.race(verb, self.written_by(agent, at), int(cells[i, j]), who, which)

    def _check_readers(self, cells: Array, warp: Array, lane: Array, line: int) -> None:
        clocks = self.clocks
        stamps = self.read_stamp[cells]
        unknown = (stamps >> 32) > clocks.known[warp, : self.readers][:, None, :]
        if not unknown.any():
            return
        for i, j, reader in zip(*unknown.nonzero(), strict=True):
            at, who, which = int(stamps[i, j, reader]), int(warp[i]), int(lane[i])
            if not self._excused(who, which, int(reader), at):
                self.race("overwrites", self.read_by(int(reader), at), int(cells[i, j]), who, which)

    def _excused(self, warp: int, lane: int, agent: int, stamp: int) -> bool:
        """An access by the same lane, or one that these lanes alone have learnt of."""
        clocks = self.clocks
        same_lane = lane != ALL_LANES and (stamp & 255) == lane
        if same_lane and agent == warp:
            return True
        if same_lane and agent == warp + clocks.queue and (stamp >> 32) <= clocks.waited[warp]:
            return True
        lanes = 0xFFFFFFFF if lane == ALL_LANES else 1 << lane
        return clocks.knows(warp, lanes, agent, stamp >> 32)

    # Reports

    def _line(self, stamp: int) -> int:
        return (stamp >> _LANE_BITS) & ((1 << _LINE_BITS) - 1)

    def read_by(self, agent: int, stamp: int) -> str:
        where = self.describe(self._line(stamp))
        if agent < self.clocks.warps:
            return f"still read by warp {agent} at {where}"
        if agent < self.clocks.wgmma:
            return f"still read by the bulk store of warp {agent - self.clocks.bulk} at {where}"
        return f"still read by warpgroup {agent - self.clocks.wgmma} in the wgmma at {where}"

    def written_by(self, agent: int, stamp: int) -> str:
        clocks = self.clocks
        where = self.describe(self._line(stamp))
        if agent < clocks.warps:
            return f"written by warp {agent} at {where}"
        if agent >= clocks.mbarriers:
            return f"filled by the bulk copy at {where}, not waited for at its mbarrier"
        owner = agent - clocks.queue
        waited = (stamp >> 32) <= clocks.waited[owner]
        state = "waited for by that warp only" if waited else "not waited for"
        return f"filled by the asynchronous copy of warp {owner} at {where}, {state}"

    def race(self, verb: str, text: str, cell: int, warp: int, lane: int) -> NoReturn:
        raise Fault(
            f"race: {verb} {self.name(cell)}, which is {text}; nothing orders the two",
            warp,
            None if lane == ALL_LANES else lane,
        )

    def proxy_fault(self, verb: str, text: str, reason: str, cell: int, warp: int, lane: int) -> NoReturn:
        raise Fault(
            f"proxy: {verb} {self.name(cell)}, which is {text}; the two are ordered, but {reason}",
            warp,
            None if lane == ALL_LANES else lane,
        )

    def _same_instruction(self, cells: Array, twice: Array, warp: Array, lane: Array) -> NoReturn:
        i, j = (int(x[0]) for x in twice.nonzero())
        other = int(self.owner[cells[i, j]]) // cells.shape[1]
        raise Fault(
            f"race: {self.name(int(cells[i, j]))} is also written by warp {int(warp[other])} in the same instruction",
            int(warp[i]),
            int(lane[i]) if int(lane[i]) != ALL_LANES else None,
        )

    def bad_state(self, cells: Array, bad: Array, warp: Array, lane: Array) -> NoReturn:
        i, j = (int(x[0]) for x in bad.nonzero())
        cell = int(cells[i, j])
        where = self.name(cell)
        state = int(self.state[cell])
        if state == UNINITIALISED:
            text = f"uninitialised: {where} was never written"
        elif state == MBARRIER:
            text = f"{where} belongs to an mbarrier"
        else:
            text = (
                f"poison: {where} is in flight, {self.written_by(int(self.writer[cell]), int(self.write_stamp[cell]))}"
            )
        raise Fault(text, int(warp[i]), int(lane[i]) if int(lane[i]) != ALL_LANES else None)


def bank_conflicts(offsets: Array, size: int, warp: Array, lane: Array) -> int:
    """Extra wavefronts of one access over 32 banks of 4 bytes.

    A 16-byte access is served in groups of 8 lanes, 8-byte in 16, narrower in 32. In a group each bank gives one word
    (of the access's width) a wavefront; lanes that ask for the same word share it.
    """
    width = max(size, 4)
    per_phase = 128 // width
    units = offsets // width
    banks = units % per_phase
    phases = (warp * 32 + lane) // per_phase
    if units.size % per_phase == 0:
        hit = np.bitwise_or.reduce((1 << banks).reshape(-1, per_phase), axis=1)
        if (hit == (1 << per_phase) - 1).all() and units.size == 32 * (int(warp[-1]) - int(warp[0]) + 1):
            return 0
    distinct = np.unique(phases << 40 | units)
    phase, unit = distinct >> 40, distinct & ((1 << 40) - 1)
    load = np.bincount(phase * per_phase + unit % per_phase).reshape(-1)
    load = np.pad(load, (0, -load.size % per_phase)).reshape(-1, per_phase).max(axis=1)
    return int(np.maximum(load - 1, 0).sum())
