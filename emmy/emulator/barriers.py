"""Where warps wait for each other: the 16 named barriers of a CTA, and mbarriers in shared memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from emmy.emulator.datatypes import Array
from emmy.emulator.faults import Fault
from emmy.emulator.shared_memory import MBARRIER, SHARED_BASE, UNINITIALISED, WINDOW

if TYPE_CHECKING:
    from emmy.emulator.machine import Machine

_MAX_ARRIVALS = (1 << 20) - 1  # PTX ISA, mbarrier.init
_MAX_BYTES = (1 << 20) - 1  # PTX ISA, tx-count of an mbarrier; as far below zero
_MAX_POLLS = 16  # polls that may fail in a row, with nothing else able to run, before it is a deadlock


@dataclass
class Waiting:
    """Why a warp cannot run.

    mbarrier: the address it polls, if it does. retry: it stands at the instruction, not behind it, and executes it again.
    pool: it waits for registers. cluster: it waits at the cluster's barrier.
    """

    text: str
    mbarrier: int | None = None
    retry: bool = False
    pool: bool = False
    cluster: bool = False


@dataclass
class _NamedBarrier:
    expected: int
    arrived: int = 0
    clocks: list[Array] = field(default_factory=list[Array])
    warps: list[int] = field(default_factory=list[int])


class NamedBarriers:
    """bar.sync and bar.arrive. A barrier completes when the expected number of threads, whole warps, has arrived.

    Warps that have exited do not count as arrived: a barrier that still expects them is a deadlock.
    """

    def __init__(self, machine: Machine):
        self.machine = machine
        self.open: dict[tuple[int, int], _NamedBarrier] = {}  # by CTA rank and number

    def reset(self) -> None:
        self.open.clear()

    def arrive(self, warp: int, number: int, expected: int, wait: bool) -> None:
        machine = self.machine
        if not 0 <= number < 16:
            raise Fault(f"barrier {number} does not exist, there are 0 to 15", warp)
        if expected % 32 or not 0 < expected <= 32 * machine.cta_warps:
            raise Fault(
                f"barrier {number} expects {expected} threads: a multiple of 32, at most the CTA's "
                f"{32 * machine.cta_warps}, is needed",
                warp,
            )
        key = (warp // machine.cta_warps, number)
        barrier = self.open.setdefault(key, _NamedBarrier(expected))
        if barrier.expected != expected:
            raise Fault(f"barrier {number}: others expect {barrier.expected} threads, this warp {expected}", warp)
        live = int(machine.live_bits[warp])
        barrier.clocks.append(machine.clocks.publish_at_barrier(warp, live))
        barrier.arrived += 32
        if wait:
            barrier.warps.append(warp)
            machine.waiting[warp] = Waiting(f"barrier {number}")
        if barrier.arrived == expected:
            machine.clocks.barrier(barrier.clocks, barrier.warps)
            for released in barrier.warps:
                machine.waiting[released] = None
            del self.open[key]

    def report(self) -> list[str]:
        return [
            f"barrier {number}{self.machine.cluster.of_rank(rank)}: {b.arrived} of {b.expected} threads arrived"
            for (rank, number), b in sorted(self.open.items())
        ]


@dataclass
class MBarrier:
    """One mbarrier object: `pending` arrivals and `tx` bytes outstanding in the current phase.

    agent: its component of the clocks, in which an epoch is the number of phases completed. seen: phases that some warp
    waited for. async_visible: a fence after its initialisation lets TMA use it. fenced: that was fence.mbarrier_init, whose
    effect a relaxed arrival at the cluster's barrier carries to other warps. shown: the warps that learnt of it so.
    """

    count: int
    pending: int
    line: int
    warp: int
    lane: int
    epoch: int
    agent: int
    clock: Array  # released by the arrivals so far
    done: Array  # what the completion of the last phase released
    phase: int = 0
    tx: int = 0
    seen: int = 0
    async_visible: bool = False
    fenced: bool = False
    shown: set[int] = field(default_factory=set[int])


class MBarriers:
    """All mbarriers of the CTAs that run together, by shared address (with the CTA's rank, as `shared_memory` has it).
    PTX ISA, "Parallel Synchronization: mbarrier"."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self.objects: dict[int, MBarrier] = {}
        self.failed_polls = 0
        self.created = 0

    def reset(self) -> None:
        self.objects.clear()
        self.failed_polls = self.created = 0

    def _cells(self, address: int, warp: int, lane: int) -> Array:
        shared = self.machine.shared
        offsets = shared.locate(np.array([address]), 8, np.array([warp]), np.array([lane]))
        return shared.granules(offsets, 8)

    def init(self, address: int, count: int, line: int, warp: int, lane: int) -> None:
        if not 1 <= count <= _MAX_ARRIVALS:
            raise Fault(f"an mbarrier's count is 1 to {_MAX_ARRIVALS}, not {count}", warp, lane)
        if address in self.objects:
            raise Fault(f"the mbarrier at {address:#x} is initialised twice without mbarrier.inval", warp, lane)
        cells = self._cells(address, warp, lane)
        machine = self.machine
        machine.shared.check_write(cells, np.array([warp]), np.array([lane]), line, state=MBARRIER)
        none = np.zeros(machine.clocks.agents, np.int64)
        epoch = int(machine.clocks.epoch[warp])
        if self.created == machine.clocks.most_mbarriers:
            raise Fault(f"the emulator has room for {self.created} mbarriers", warp, lane)
        agent = machine.clocks.mbarriers + self.created
        self.created += 1
        self.objects[address] = MBarrier(count, count, line, warp, lane, epoch, agent, none, none)

    def show_to_async_proxy(self, warp: int, lanes: int, init: bool) -> None:
        """fence.mbarrier_init (init) or fence.proxy.async: TMA may use the mbarriers that these lanes initialised."""
        for barrier in self.objects.values():
            if barrier.warp == warp and lanes >> barrier.lane & 1:
                barrier.async_visible = True
                barrier.fenced = barrier.fenced or init

    def show_to_cluster(self, warp: int) -> None:
        """A warp passes the cluster's barrier: it knows of every mbarrier that was initialised and fenced before that."""
        for barrier in self.objects.values():
            if barrier.fenced:
                barrier.shown.add(warp)

    def invalidate(self, address: int, warp: int, lane: int) -> None:
        self.find(address, warp, lane)
        del self.objects[address]
        self.machine.shared.state[self._cells(address, warp, lane)] = UNINITIALISED

    def find(self, address: int, warp: int, lane: int) -> MBarrier:
        """The object at an address. Fault if there is none, or if its initialisation is not ordered before this use."""
        barrier = self.objects.get(address)
        if barrier is None:
            self._cells(address, warp, lane)
            raise Fault(f"no mbarrier was initialised at shared address {address:#x}", warp, lane)
        clocks = self.machine.clocks
        own = barrier.warp == warp and barrier.lane == lane
        if not own and warp not in barrier.shown and not clocks.knows(warp, 1 << lane, barrier.warp, barrier.epoch):
            raise Fault(
                f"race: uses the mbarrier at {address:#x} without order after its initialisation by warp "
                f"{barrier.warp} at {self.machine.describe(barrier.line)}",
                warp,
                lane,
            )
        return barrier

    def visible_to_warp(self, address: int, warp: int) -> bool:
        """Is there an mbarrier whose initialisation all lanes of the warp know of? (What `find` checks for a lane.)"""
        barrier = self.objects.get(address)
        return barrier is not None and barrier.epoch <= self.machine.clocks.known[warp, barrier.warp]

    def expect(self, address: int, barrier: MBarrier, tx: int) -> None:
        """expect_tx: the current phase waits for `tx` more bytes."""
        self._count_bytes(address, barrier, tx)
        self.complete(address, barrier)

    def complete_tx(self, address: int, barrier: MBarrier, tx: int) -> None:
        """`tx` bytes have arrived; before they are expected the count is negative."""
        if self.objects.get(address) is not barrier:
            raise Fault(f"the mbarrier at {address:#x} was invalidated before this copy completed on it")
        self._count_bytes(address, barrier, -tx)
        self.complete(address, barrier)

    def _count_bytes(self, address: int, barrier: MBarrier, change: int) -> None:
        barrier.tx += change
        if abs(barrier.tx) > _MAX_BYTES:
            raise Fault(f"the mbarrier at {address:#x} counts {barrier.tx} bytes, {_MAX_BYTES} is the most")

    def arrive(self, address: int, barrier: MBarrier, count: int, clock: Array, warp: int, lane: int) -> int:
        """`count` arrivals that release `clock`; returns the phase they belong to. Fault beyond the pending count."""
        if count > barrier.pending:
            raise Fault(
                f"{count} arrivals at the mbarrier at {address:#x}, whose current phase expects only "
                f"{barrier.pending} more (of {barrier.count})",
                warp,
                lane,
            )
        phase = barrier.phase
        barrier.pending -= count
        barrier.clock = np.maximum(barrier.clock, clock)
        self.complete(address, barrier)
        return phase

    def arrive_together(self, addresses: list[int], phases: list[int], warp: int) -> None:
        """Fault if the lanes of one instruction arrived in different phases of one mbarrier: its count is too small."""
        first = dict(zip(reversed(addresses), reversed(phases), strict=True))
        for address, phase in zip(addresses, phases, strict=True):
            if phase != first[address]:
                count = self.objects[address].count
                raise Fault(
                    f"the arrivals at the mbarrier at {address:#x} by lanes of one warp fill a phase (of {count} "
                    "arrivals) and go on into the next",
                    warp,
                )

    def complete(self, address: int, barrier: MBarrier) -> None:
        """End the phase if nothing is outstanding, and wake the warps that poll it."""
        if barrier.pending or barrier.tx:
            return
        barrier.phase += 1
        barrier.clock = barrier.clock.copy()
        barrier.clock[barrier.agent] = barrier.phase
        barrier.pending = barrier.count
        barrier.done = np.maximum(barrier.done, barrier.clock)
        self.failed_polls = 0
        waiting = self.machine.waiting
        for warp, reason in enumerate(waiting):
            if reason is not None and reason.mbarrier == address:
                waiting[warp] = None

    def release_polls(self) -> bool:
        """Nothing else can run: let the pollers see `false`, a bounded number of times. False: it is a deadlock."""
        machine = self.machine
        pollers = [w for w, reason in enumerate(machine.waiting) if reason is not None and reason.mbarrier is not None]
        if not pollers or self.failed_polls >= _MAX_POLLS:
            return False
        self.failed_polls += 1
        for warp in pollers:
            machine.waiting[warp] = None
        machine.poll_fails.update(pollers)
        return True

    def report(self) -> list[str]:
        return [
            f"mbarrier {address % WINDOW:#x} (offset {address % WINDOW - SHARED_BASE})"
            f"{self.machine.cluster.of_rank(address // WINDOW)}: phase {b.phase}, {b.pending} of {b.count} "
            f"arrivals and {b.tx} bytes outstanding"
            for address, b in sorted(self.objects.items())
        ]
