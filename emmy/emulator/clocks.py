"""Who knows of whose memory accesses: one vector clock for each warp, with a component for each agent that can access.

With W warps the agents are, in this order: W warps, W of their bulk stores (which read shared memory), a wgmma queue of
each warpgroup (which reads it, too), W cp.async queues, then one for each mbarrier, which stands for the TMA loads that
complete on it. An access is stamped with its agent's epoch; it is ordered before warp w if the epoch is at most
`known[w, agent]`. For w itself, `known[w, w]` counts what *all* lanes of w know, which is up to the last warp-wide
synchronisation: between lanes a bar.warp.sync is due.

3 W more components tell what the async proxy (TMA) may touch, by the same epochs: accesses of a warp, and of its
cp.async queue, that a fence.proxy.async of that warp followed; and accesses that a CTA barrier followed. They travel
with the clocks, so "fenced, and ordered before" is one comparison.
"""

from __future__ import annotations

import numpy as np

from emmy.emulator.datatypes import Array

FULL_MASK = 0xFFFFFFFF
MOST_MBARRIERS = 128  # mbarrier.init that one CTA may execute; a limit of the emulator
WARPGROUP = 4  # warps


class Clocks:
    """Vector clocks of the CTAs that run together. Epochs are int64 counters that begin at 1.

    bulk, wgmma, queue, fenced, fenced_queue, barrier_passed, mbarriers: the first component of each kind.
    """

    def __init__(self, warps: int, ctas: int = 1):
        self.warps = warps
        self.bulk, self.wgmma = warps, 2 * warps
        self.queue = self.wgmma + ctas * -(-warps // ctas // WARPGROUP)
        self.fenced = self.queue + warps
        self.fenced_queue, self.barrier_passed = self.fenced + warps, self.fenced + 2 * warps
        self.mbarriers = self.fenced + 3 * warps
        self.most_mbarriers = MOST_MBARRIERS * ctas
        self.agents = self.mbarriers + self.most_mbarriers
        self.own = np.arange(warps)
        # Where the async proxy looks an agent's epoch up: generic writers, warps and cp.async queues, count from their fence on.
        self.fence_of = np.arange(self.agents)
        self.fence_of[:warps] = self.fenced + self.own
        self.fence_of[self.queue : self.fenced] = self.fenced_queue + self.own
        self.reset()

    def reset(self) -> None:
        self.known = np.zeros((self.warps, self.agents), np.int64)
        self.epoch = np.ones(self.warps, np.int64)
        self.queue_epoch = np.ones(self.warps, np.int64)
        self.waited = np.zeros(self.warps, np.int64)
        self.touched = np.zeros(self.warps, np.uint32)
        # Lanes with accesses since the last fence.proxy.async, and the epochs that this fence covers.
        self.unfenced = np.zeros(self.warps, np.uint32)
        self.fenced_epoch = np.zeros(self.warps, np.int64)
        self.fenced_waited = np.zeros(self.warps, np.int64)
        # What some lanes alone learnt (mask of lanes -> clock), until the warp synchronises.
        self.partial: list[dict[int, Array]] = [{} for _ in range(self.warps)]

    def synchronize_warps(self, low: int, high: int) -> None:
        """bar.warp.sync: each lane of a warp now knows what any lane of it knew or did."""
        for warp in range(low, high):
            for clock in self.partial[warp].values():
                np.maximum(self.known[warp], clock, out=self.known[warp])
            self.partial[warp].clear()
        rows = self.own[low:high]
        self.known[rows, rows] = self.epoch[low:high]
        for first, epochs in (
            (self.queue, self.waited),
            (self.fenced, self.fenced_epoch),
            (self.fenced_queue, self.fenced_waited),
        ):
            own = first + rows
            self.known[rows, own] = np.maximum(self.known[rows, own], epochs[low:high])
        self.epoch[low:high] += 1
        self.touched[low:high] = 0

    def fence_async(self, warp: int, lanes: int, live: int) -> None:
        """fence.proxy.async by some lanes: it covers accesses up to now, if those lanes made all that need a fence."""
        if int(self.unfenced[warp]) & ~lanes == 0 or lanes == live:
            self.fenced_epoch[warp] = self.epoch[warp]
            self.unfenced[warp] = 0
        if lanes == live:
            self.fenced_waited[warp] = self.waited[warp]
        self.epoch[warp] += 1

    def publish(self, warp: int, lanes: int, live: int) -> Array:
        """The clock that `lanes` of a warp release (by an arrival); the warp's own epoch then moves on.

        Lanes that were the only ones to touch shared memory since the last warp-wide synchronisation release their
        accesses; otherwise only what came before that synchronisation is released.
        """
        clock: Array = self.known[warp].copy()
        if lanes == live:
            self._raise(clock, self.queue + warp, self.waited[warp])
            self._raise(clock, self.fenced_queue + warp, self.fenced_waited[warp])
        if int(self.touched[warp]) & ~lanes == 0:
            clock[warp] = self.epoch[warp]
            self._raise(clock, self.fenced + warp, self.fenced_epoch[warp])
        for mask, learnt in self.partial[warp].items():
            if lanes == live or lanes & ~mask == 0:
                np.maximum(clock, learnt, out=clock)
        self.epoch[warp] += 1
        return clock

    def _raise(self, clock: Array, component: int, epoch: int) -> None:
        clock[component] = max(int(clock[component]), int(epoch))

    def publish_at_barrier(self, warp: int, live: int) -> Array:
        """What a warp releases when it arrives at a CTA barrier: all it did, marked as followed by a barrier."""
        clock = self.publish(warp, live, live)
        clock[self.barrier_passed + warp] = clock[warp]
        return clock

    def acquire(self, warp: int, lanes: int, live: int, clock: Array) -> None:
        """`lanes` of a warp learn a released clock (all live lanes: the warp does)."""
        if lanes == live:
            np.maximum(self.known[warp], clock, out=self.known[warp])
        else:
            partial = self.partial[warp]
            partial[lanes] = np.maximum(partial[lanes] if lanes in partial else self.known[warp], clock)

    def barrier(self, arrived: list[Array], synchronized: list[int]) -> None:
        """A CTA barrier completes: the warps that wait at it learn every clock that arrived."""
        joined: Array = np.stack(arrived).max(axis=0)
        for warp in synchronized:
            self.partial[warp].clear()
            np.maximum(self.known[warp], joined, out=self.known[warp])
            self.known[warp, warp] = self.epoch[warp] - 1
            self.touched[warp] = 0

    def known_to_lane(self, warp: int, lane: int) -> Array:
        """The clock of one lane: the warp's, and what that lane alone learnt."""
        clock: Array = self.known[warp].copy()
        for mask, learnt in self.partial[warp].items():
            if mask >> lane & 1:
                np.maximum(clock, learnt, out=clock)
        return clock

    def knows(self, warp: int, lanes: int, agent: int, epoch: int) -> bool:
        """Do these lanes of a warp know of the access (agent, epoch)? Slow path, after a check by `known` failed."""
        if epoch <= self.known[warp, agent]:
            return True
        return any(lanes & ~mask == 0 and epoch <= clock[agent] for mask, clock in self.partial[warp].items())
