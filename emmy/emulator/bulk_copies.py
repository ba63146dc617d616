"""cp.async.bulk: loads that complete on an mbarrier, and stores in bulk groups, landing as the launch's `landing` says.

late: a load lands when no warp can run and one polls its mbarrier, a store when a wait for its group needs it; early:
at the issue; random: between. A load reads global memory when it lands, and its destination is poison until then; a
store reads shared memory when it lands. A store whose reads were waited for (.read) may write global memory later still.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from emmy.emulator import async_proxy
from emmy.emulator.barriers import MBarrier
from emmy.emulator.datatypes import Array
from emmy.emulator.faults import Fault
from emmy.emulator.shared_memory import SHARED_BASE, WINDOW

if TYPE_CHECKING:
    from emmy.emulator.machine import Machine


@dataclass(eq=False)
class Place:
    """Where in shared memory a copy reads or writes, and who issued it. rows: indices of 16-byte rows, in box order.
    rank: of the CTA whose memory it is."""

    rows: Array
    warp: int
    lane: int
    line: int
    rank: int


@dataclass(eq=False)
class Load:
    """One bulk load in flight. read: the bytes it brings, uint8. address: of its mbarrier."""

    place: Place
    read: Callable[[], Array]
    bytes: int
    address: int
    barrier: MBarrier
    cells: Array


@dataclass(eq=False)
class Store:
    """One bulk store. write: puts its bytes into global memory. values: what it read from shared memory, once it did."""

    place: Place
    write: Callable[[Array], None]
    epoch: int
    values: Array | None = None
    written: bool = False
    waited: bool = False


@dataclass
class _Thread:
    """The bulk groups of one thread: the open one, and those committed and not completed."""

    current: list[Store] = field(default_factory=list[Store])
    groups: list[list[Store]] = field(default_factory=list[list[Store]])


class BulkCopies:
    """All bulk copies of the CTAs that run together."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self.reset()

    def reset(self) -> None:
        self.loads: list[Load] = []
        self.stores: list[Store] = []
        self.threads: dict[tuple[int, int], _Thread] = {}
        self.epochs = [1] * self.machine.warps
        self.last_loads: dict[int, tuple[MBarrier, int, Place]] = {}  # by mbarrier: its phase and place

    def place(self, address: int, chunks: Array, alignment: int, warp: int, lane: int, line: int) -> Place:
        """The 16-byte rows of a copy at a shared address. Raises Fault if misaligned or out of bounds."""
        shared = self.machine.shared
        if address % alignment:
            raise Fault(
                f"misaligned: shared address {address:#x} of a bulk copy is no multiple of {alignment} bytes",
                warp,
                lane,
            )
        rank, local = divmod(address, WINDOW)
        begin, size = local - SHARED_BASE, 16 * chunks.size
        if not 0 <= begin <= shared.size - size or rank >= shared.ctas:
            raise Fault(
                f"shared address {address:#x} is out of bounds: the CTA has {shared.size} bytes at {SHARED_BASE:#x}, "
                f"the copy takes {size}",
                warp,
                lane,
            )
        return Place((rank * shared.stride + begin + chunks) >> 4, warp, lane, line, rank)

    def _cells(self, rows: Array) -> Array:
        shared = self.machine.shared
        return shared.granules(rows << 4, 16).reshape(-1)

    # Loads

    def load(self, place: Place, read: Callable[[], Array], mbarrier: int) -> None:
        """Issue: the destination becomes poison."""
        machine = self.machine
        barrier = machine.mbarriers.find(mbarrier, place.warp, place.lane)
        if not barrier.async_visible:
            raise Fault(
                f"proxy: neither fence.mbarrier_init nor fence.proxy.async followed the initialisation of the mbarrier "
                f"at {mbarrier:#x}",
                place.warp,
                place.lane,
            )
        read()  # a bad source is the fault of this line, whenever the copy lands
        cells = self._cells(place.rows)
        async_proxy.begin_write(machine.shared, cells, barrier.agent, place.warp, place.lane, place.line)
        load = Load(place, read, 16 * place.rows.size, mbarrier, barrier, cells)
        if machine.landing == "early":
            self._land(load)
        else:
            self.loads.append(load)

    def _land(self, load: Load) -> None:
        machine, place = self.machine, load.place
        try:
            machine.shared.rows[place.rows] = load.read().view(np.uint32).reshape(-1, 4)
            async_proxy.end_write(machine.shared, load.cells, load.barrier.phase + 1, place.line, place.lane)
            self.last_loads[load.address] = (load.barrier, load.barrier.phase, place)
            machine.mbarriers.complete_tx(load.address, load.barrier, load.bytes)
        except Fault as fault:
            raise Fault(fault.message, place.warp, place.lane, place.line) from fault

    def land_awaited(self) -> bool:
        """Nothing can run: land the oldest load that completes on an mbarrier that a warp polls. False: there is none."""
        polled = {reason.mbarrier for reason in self.machine.waiting if reason is not None}
        for load in self.loads:
            if load.address in polled:
                self.loads.remove(load)
                self._land(load)
                return True
        return False

    def land_some(self) -> None:
        """Random landing: each load and each half of a store in flight happens now with probability 1/4."""
        chance = self.machine.chance
        for load in [load for load in self.loads if chance.random() < 0.25]:
            self.loads.remove(load)
            self._land(load)
        for store in [store for store in self.stores if chance.random() < 0.25]:
            self._write(store) if store.values is not None else self._read(store)

    # Stores

    def store(self, place: Place, covered: Array, write: Callable[[Array], None]) -> None:
        """Issue: the 16-byte rows that `covered` names are being read until the group is waited for."""
        machine = self.machine
        epoch = self.epochs[place.warp]
        cells = self._cells(place.rows[covered])
        async_proxy.begin_read(machine.shared, cells, epoch, place.warp, place.lane, place.line)
        store = Store(place, write, epoch)
        self.stores.append(store)
        self._thread(place.warp, place.lane).current.append(store)
        if machine.landing == "early":
            self._write(store)

    def _thread(self, warp: int, lane: int) -> _Thread:
        return self.threads.setdefault((warp, lane), _Thread())

    def _read(self, store: Store) -> None:
        if store.values is None:
            store.values = self.machine.shared.rows[store.place.rows].view(np.uint8).reshape(-1).copy()

    def _write(self, store: Store) -> None:
        self._read(store)
        assert store.values is not None
        if not store.written:
            store.written = True
            store.write(store.values)

    def commit(self, warp: int, lanes: list[int]) -> None:
        """cp.async.bulk.commit_group of some lanes: each closes its group, which may be empty."""
        for lane in lanes:
            thread = self._thread(warp, lane)
            thread.groups.append(thread.current)
            thread.current = []
        self.epochs[warp] += 1

    def wait(self, warp: int, lanes: list[int], pending: int, read_only: bool) -> None:
        """All but the `pending` youngest groups of each lane complete, or have at least read shared memory."""
        machine = self.machine
        for lane in lanes:
            groups = self._thread(warp, lane).groups
            done = groups[: max(0, len(groups) - pending)]
            for store in [store for group in done for store in group]:
                store.waited = True
                self._read(store) if read_only else self._write(store)
            if not read_only:
                del groups[: len(done)]
        self.stores = [s for s in self.stores if not (s.waited and s.written)]
        open_ = [s.epoch for s in self.stores if s.place.warp == warp and not s.waited]
        clock: Array = np.zeros(machine.clocks.agents, np.int64)
        clock[machine.clocks.bulk + warp] = min(open_, default=self.epochs[warp]) - 1
        machine.clocks.acquire(warp, sum(1 << lane for lane in lanes), int(machine.live_bits[warp]), clock)

    # The end of the CTA

    def check_exit(self, rank: int) -> None:
        """The CTA of a rank ends: no load may still write to its shared memory, and each was waited for."""
        for load in self.loads:
            if load.place.rank == rank:
                place = load.place
                raise Fault("the CTA ends while this copy is in flight", place.warp, place.lane, place.line)
        for barrier, phase, place in self.last_loads.values():
            if place.rank == rank and barrier.seen <= phase:
                raise Fault("the CTA ends, and no warp waited for this copy", place.warp, place.lane, place.line)

    def finish(self) -> None:
        """All warps have left: what is in flight would use shared memory that is no longer the CTA's."""
        for rank in range(self.machine.ctas):
            self.check_exit(rank)
        for store in self.stores:
            if not store.waited:
                place = store.place
                raise Fault(
                    "the CTA ends without cp.async.bulk.wait_group for this store, which may still read shared memory",
                    place.warp,
                    place.lane,
                    place.line,
                )
            self._write(store)
