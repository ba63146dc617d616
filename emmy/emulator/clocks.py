"""Who knows of whose memory accesses: one vector clock for each warp, one agent for each warp's cp.async queue.

Agents 0 .. W-1 are the warps, W .. 2W-1 their cp.async queues. An access is stamped with its agent's epoch;
it is ordered before warp w if the epoch is at most `known[w, agent]`. For w itself, `known[w, w]` counts what
*all* lanes of w know, which is up to the last warp-wide synchronisation: between lanes a bar.warp.sync is due.
"""

from __future__ import annotations

import numpy as np

from emmy.emulator.datatypes import Array

FULL_MASK = 0xFFFFFFFF


class Clocks:
    """Vector clocks of one CTA. Epochs are int64 counters that begin at 1."""

    def __init__(self, warps: int):
        self.warps = warps
        self.agents = 2 * warps
        self.own = np.arange(warps)
        self.reset()

    def reset(self) -> None:
        self.known = np.zeros((self.warps, self.agents), np.int64)
        self.epoch = np.ones(self.warps, np.int64)
        self.queue_epoch = np.ones(self.warps, np.int64)
        self.waited = np.zeros(self.warps, np.int64)
        self.touched = np.zeros(self.warps, np.uint32)
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
        queues = self.warps + rows
        self.known[rows, queues] = np.maximum(self.known[rows, queues], self.waited[low:high])
        self.epoch[low:high] += 1
        self.touched[low:high] = 0

    def publish(self, warp: int, lanes: int, live: int) -> Array:
        """The clock that `lanes` of a warp release (by an arrival); the warp's own epoch then moves on.

        Lanes that were the only ones to touch shared memory since the last warp-wide synchronisation release their
        accesses; otherwise only what came before that synchronisation is released.
        """
        clock: Array = self.known[warp].copy()
        if lanes == live:
            clock[self.warps + warp] = max(int(clock[self.warps + warp]), int(self.waited[warp]))
        if int(self.touched[warp]) & ~lanes == 0:
            clock[warp] = self.epoch[warp]
        for mask, learnt in self.partial[warp].items():
            if lanes == live or lanes & ~mask == 0:
                np.maximum(clock, learnt, out=clock)
        self.epoch[warp] += 1
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

    def knows(self, warp: int, lanes: int, agent: int, epoch: int) -> bool:
        """Do these lanes of a warp know of the access (agent, epoch)? Slow path, after a check by `known` failed."""
        if epoch <= self.known[warp, agent]:
            return True
        return any(lanes & ~mask == 0 and epoch <= clock[agent] for mask, clock in self.partial[warp].items())
