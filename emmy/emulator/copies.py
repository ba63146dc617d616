"""cp.async: one queue of copies a warp, committed in groups, each landing when the launch's `landing` mode says.

late: the source is read and the bytes land at the wait that makes them visible; early: at the issue; random: between.
Until they land the destination is poison; until they are waited for, the race detector treats them as unordered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from emmy.emulator.datatypes import Array
from emmy.emulator.shared_memory import IN_FLIGHT, INITIALISED

if TYPE_CHECKING:
    from emmy.emulator.machine import Machine


@dataclass
class Copy:
    """The copies of one cp.async by one group of warps; entries are active lanes. `missing`: not yet landed."""

    offsets: Array  # destination, bytes into shared memory
    sources: Array  # global addresses
    counts: Array  # bytes to read, at most `size`; the rest is zero
    size: int
    warp: Array
    lane: Array
    missing: Array = field(init=False)

    def __post_init__(self) -> None:
        self.missing = np.ones(self.offsets.size, np.bool_)


@dataclass
class _Group:
    """Copies of one warp between two commits; `epoch` is the queue epoch they were issued in."""

    epoch: int = 0
    copies: list[Copy] = field(default_factory=list[Copy])


@dataclass
class _Arrival:
    """A pending cp.async.mbarrier.arrive of one warp: it fires when the copies before it have landed."""

    warp: int
    lanes: list[int]
    addresses: list[int]
    copies: list[Copy]
    clock: Array


class CopyQueues:
    """The cp.async queues of all warps of a CTA."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self.reset()

    def reset(self) -> None:
        warps = self.machine.warps
        self.current = [_Group() for _ in range(warps)]
        self.committed: list[list[_Group]] = [[] for _ in range(warps)]
        self.arrivals: list[_Arrival] = []
        self.flying: list[Copy] = []

    # Issue and landing

    def issue(self, copy: Copy, cells: Array, low: int, high: int, line: int) -> None:
        """The destination becomes poison, written by the queues of warps low .. high - 1."""
        machine = self.machine
        self._read(copy, copy.missing)  # a bad source address is the fault of this line, whenever the copy lands
        machine.shared.check_write(cells, copy.warp, copy.lane, line, queue=True, state=IN_FLIGHT)
        for warp in range(low, high):
            self.current[warp].copies.append(copy)
        if machine.landing == "early":
            self._land(copy, None)
        elif machine.landing == "random":
            self.flying.append(copy)

    def land_some(self) -> None:
        """Random landing: each copy in flight lands now with probability 1/4, whole or for one of its warps."""
        chance = self.machine.chance
        still: list[Copy] = []
        for copy in self.flying:
            if chance.random() < 0.25:
                self._land(copy, chance.choice([None, int(copy.warp[0])]))
            if copy.missing.any():
                still.append(copy)
        self.flying = still

    def _land(self, copy: Copy, warps: int | range | None) -> None:
        """Read the sources and write the destinations, of all warps (None), one, or a range of them."""
        chosen = copy.missing
        if isinstance(warps, int):
            chosen = chosen & (copy.warp == warps)
        elif warps is not None:
            chosen = chosen & (copy.warp >= warps.start) & (copy.warp < warps.stop)
        if not chosen.any():
            return
        copy.missing = copy.missing & ~chosen
        offsets, size = copy.offsets[chosen], copy.size
        shared = self.machine.shared
        values = self._read(copy, chosen)
        width = values.dtype.itemsize
        shared.words[width][(offsets // width)[:, None] + np.arange(size // width)] = values
        shared.state[shared.granules(offsets, size)] = INITIALISED

    def _read(self, copy: Copy, chosen: Array) -> Array:
        """What the chosen copies bring, zeros behind their source bytes: [copies, words]."""
        memory = self.machine.memory
        sources, counts = copy.sources[chosen], copy.counts[chosen]
        warp, lane, size = copy.warp[chosen], copy.lane[chosen], copy.size
        if (counts == size).all():
            return memory.load(sources, 4, size // 4, warp, lane)
        values = np.zeros((sources.size, size), np.uint8)
        for count in np.unique(counts[counts > 0]):
            # A partial copy touches its first bytes only: those must be inside the buffer, the rest need not.
            part = counts == count
            read = memory.load_bytes(sources[part], int(count), size, warp[part], lane[part])
            values[np.flatnonzero(part)[:, None], np.arange(int(count))] = read
        return values.view(np.uint32)

    # Groups

    def commit(self, low: int, high: int) -> None:
        clocks = self.machine.clocks
        for warp in range(low, high):
            group = self.current[warp]
            group.epoch = int(clocks.queue_epoch[warp])
            self.committed[warp].append(group)
            self.current[warp] = _Group()
        clocks.queue_epoch[low:high] += 1

    def wait_group(self, low: int, high: int, pending: int) -> None:
        """All but the `pending` youngest groups of each warp complete: they land, and their warp knows of it."""
        clocks = self.machine.clocks
        landing: dict[int, Copy] = {}
        for warp in range(low, high):
            groups = self.committed[warp]
            done = groups[: max(0, len(groups) - pending)]
            if done:
                del groups[: len(done)]
                clocks.waited[warp] = max(int(clocks.waited[warp]), done[-1].epoch)
                landing.update((id(copy), copy) for group in done for copy in group.copies)
        self._land_for(landing, low, high)

    def wait_all(self, low: int, high: int) -> None:
        self.commit(low, high)
        self.wait_group(low, high, 0)

    def _land_for(self, landing: dict[int, Copy], low: int, high: int) -> None:
        for copy in landing.values():
            self._land(copy, range(low, high))

    # Arrivals at mbarriers

    def arrive_when_landed(self, warp: int, lanes: list[int], addresses: list[int], clock: Array) -> None:
        """cp.async.mbarrier.arrive: arrive once all earlier copies of these lanes have landed."""
        machine = self.machine
        copies = [c for g in [*self.committed[warp], self.current[warp]] for c in g.copies]
        clock[machine.clocks.queue + warp] = machine.clocks.queue_epoch[warp]
        machine.clocks.queue_epoch[warp] += 1
        arrival = _Arrival(warp, lanes, addresses, copies, clock)
        early = machine.landing == "early" or (machine.landing == "random" and machine.chance.random() < 0.5)
        if early:
            self._fire(arrival)
        else:
            self.arrivals.append(arrival)

    def _fire(self, arrival: _Arrival) -> None:
        barriers = self.machine.mbarriers
        for copy in arrival.copies:
            self._land(copy, arrival.warp)
        phases: list[int] = []
        for lane, address in zip(arrival.lanes, arrival.addresses, strict=True):
            barrier = barriers.find(address, arrival.warp, lane)
            phases.append(barriers.arrive(address, barrier, 1, arrival.clock, arrival.warp, lane))
        barriers.arrive_together(arrival.addresses, phases, arrival.warp)

    def fire_awaited(self) -> bool:
        """Nothing can run: let the oldest arrival at an mbarrier that a warp polls happen. False if there is none."""
        polled = {reason.mbarrier for reason in self.machine.waiting if reason is not None}
        for arrival in self.arrivals:
            if polled.intersection(arrival.addresses):
                self.arrivals.remove(arrival)
                self._fire(arrival)
                return True
        return False
