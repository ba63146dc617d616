"""The CTAs of a cluster, which run together: who is where, barrier.cluster, and accesses to another CTA's shared memory.

A kernel without clusters runs in clusters of one CTA. The warps of all CTAs are counted through: those of rank r begin at
r * (warps of a CTA). An address that `mapa` makes holds rank + 1 above bit 24, so that no address of a CTA's own window is
one, and lane addresses may be added to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from emmy.emulator.barriers import Waiting
from emmy.emulator.datatypes import Array
from emmy.emulator.faults import Fault
from emmy.emulator.shared_memory import WINDOW

if TYPE_CHECKING:
    from emmy.emulator.machine import Machine

Dimensions = tuple[int, int, int]


class ClusterBarrier:
    """barrier.cluster: a phase ends when every warp that has not exited has arrived. PTX ISA, `barrier.cluster`."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self.reset()

    def reset(self) -> None:
        machine = self.machine
        self.phase = 0
        self.arrived_in: list[int | None] = [None] * machine.warps  # the phase of an arrival not yet waited for
        self.clocks: list[Array] = []
        self.done: Array = np.zeros(machine.clocks.agents, np.int64)

    def arrive(self, warp: int, releases: bool) -> None:
        machine = self.machine
        if self.arrived_in[warp] is not None:
            raise Fault("arrives at the cluster's barrier a second time, with no barrier.cluster.wait in between", warp)
        self.arrived_in[warp] = self.phase
        clock = machine.clocks.publish_at_barrier(warp, int(machine.live_bits[warp]))
        self.clocks.append(clock if releases else np.zeros_like(clock))
        self.complete()

    def complete(self) -> None:
        """End the phase if every warp has arrived or exited, and wake those that wait for it."""
        machine = self.machine
        if not self.clocks or any(
            phase != self.phase and not left for phase, left in zip(self.arrived_in, machine.exited, strict=True)
        ):
            return
        self.done = np.stack(self.clocks).max(axis=0)
        self.clocks = []
        self.phase += 1
        for warp, reason in enumerate(machine.waiting):
            if reason is not None and reason.cluster:
                machine.waiting[warp] = None

    def wait(self, warp: int) -> None:
        machine = self.machine
        phase = self.arrived_in[warp]
        if phase is None:
            raise Fault("waits at the cluster's barrier without having arrived there", warp)
        if phase == self.phase:
            machine.waiting[warp] = Waiting(f"the cluster's barrier, phase {phase}", retry=True, cluster=True)
            machine.pcs[warp] -= 1
            return
        self.arrived_in[warp] = None
        live = int(machine.live_bits[warp])
        machine.clocks.acquire(warp, live, live, self.done)
        machine.mbarriers.show_to_cluster(warp)

    def report(self) -> list[str]:
        machine = self.machine
        if machine.ctas == 1 and not self.clocks:
            return []
        waits = sum(p == self.phase for p in self.arrived_in)
        return [f"barrier.cluster: phase {self.phase}, {waits} of {machine.warps - sum(machine.exited)} warps arrived"]


class Cluster:
    """Where the CTAs of the running cluster are, and what they did to each other's shared memory."""

    def __init__(self, machine: Machine, shape: Dimensions):
        self.machine = machine
        self.shape = shape
        self.barrier = ClusterBarrier(machine)
        x, y, z = shape
        self.places = [(i, j, k) for k in range(z) for j in range(y) for i in range(x)]
        self.reset((0, 0, 0))

    def reset(self, cluster: Dimensions) -> None:
        """Begin the cluster with this index: every CTA of it learns its own."""
        self.barrier.reset()
        shape, special = self.shape, self.machine.special
        self.index = [tuple(c * n + i for c, n, i in zip(cluster, shape, place, strict=True)) for place in self.places]
        for rank, cta in enumerate(self.index):
            rows = self.warps_of(rank)
            for axis, index, place in zip("xyz", cta, self.places[rank], strict=True):
                special[f"%ctaid.{axis}"][rows] = index
                special[f"%cluster_ctaid.{axis}"][rows] = place
            special["%cluster_ctarank"][rows] = rank
        for axis, index in zip("xyz", cluster, strict=True):
            special[f"%clusterid.{axis}"].fill(index)
        # Last epoch in which each warp touched the shared memory of another CTA: [CTA, warp].
        self.touched = np.zeros((len(self.places), self.machine.warps), np.int64)

    def warps_of(self, rank: int) -> slice:
        """The warps of a CTA."""
        each = self.machine.cta_warps
        return slice(rank * each, (rank + 1) * each)

    def rank_of(self, warp: int) -> int:
        return warp // self.machine.cta_warps

    def of_rank(self, rank: int) -> str:
        """` of CTA rank 1`, or nothing if there is only one."""
        return f" of CTA rank {rank}" if self.machine.ctas > 1 else ""

    def name(self, warp: int) -> str:
        """CTA and warp for a report."""
        rank = self.rank_of(warp)
        where = f"CTA {self.index[rank]}{f', rank {rank}' if self.machine.ctas > 1 else ''}"
        return f"{where}, warp {warp % self.machine.cta_warps}"

    def own(self, addresses: Array, warp: Array) -> Array:
        """Addresses in each warp's own window as those of `shared_memory`; an address made by mapa is out of bounds."""
        if len(self.places) == 1:
            return addresses
        moved: Array = addresses + warp // self.machine.cta_warps * WINDOW
        return np.where(addresses >= WINDOW, addresses + len(self.places) * WINDOW, moved)

    def anywhere(self, addresses: Array, warp: Array, lane: Array) -> Array:
        """Addresses in the cluster's window (by mapa) or the own one; other CTAs' are noted as touched by these warps."""
        mapped = addresses >= WINDOW
        if not mapped.any():
            return self.own(addresses, warp)
        found: Array = np.where(mapped, addresses - WINDOW, self.own(addresses, warp))
        for address, w, i in zip(found.tolist(), warp.tolist(), lane.tolist(), strict=True):
            self.touch(address // WINDOW, w, i)
        return found

    def mapped(self, addresses: Array, warp: Array) -> Array:
        """The same places, of accesses that end by themselves: the CTA that they are in counts them on an mbarrier of its own."""
        return np.where(addresses >= WINDOW, addresses - WINDOW, self.own(addresses, warp))

    def check_rank(self, rank: int, warp: int, lane: int) -> None:
        """Fault if the CTA of a rank, whose shared memory a lane accesses, does not exist or has ended."""
        if rank >= len(self.places):
            raise Fault(f"the cluster has {len(self.places)} CTAs, none of rank {rank}", warp, lane)
        if all(self.machine.exited[self.warps_of(rank)]):
            raise Fault(f"the CTA of rank {rank}, whose shared memory this accesses, has ended", warp, lane)

    def touch(self, rank: int, warp: int, lane: int) -> None:
        """A lane accesses the shared memory of the CTA of a rank, which may not end without knowing that it is done."""
        self.check_rank(rank, warp, lane)
        if rank != self.rank_of(warp):
            self.touched[rank, warp] = self.machine.clocks.epoch[warp]

    def exit(self, warp: int) -> None:
        """A warp has left the kernel. Fault if its CTA ends with it while another CTA may still use its memory."""
        machine = self.machine
        self.barrier.complete()
        if len(self.places) == 1:
            return
        rank = self.rank_of(warp)
        if not all(machine.exited[self.warps_of(rank)]):
            return
        known = machine.clocks.known[self.warps_of(rank)].max(axis=0)
        late = np.flatnonzero(self.touched[rank] > known[: machine.warps])
        if late.size:
            other = int(late[0])
            raise Fault(
                f"the CTA ends, and nothing tells it that {self.name(other)} has finished with its shared memory: "
                "a barrier.cluster is due",
                warp,
            )
        machine.bulk.check_exit(rank)
