"""How full each ring is along the consumer, counted without running it: where a unified role issues its copies.

For every ring: `issued` slots (filled and not yet waited for) and `free` ones. A wait needs an issued slot; a release frees
slots (in ring order: `holding`); an *issue site* refills all free ones. Loop heads are fixed points, found by running the body
from the state before it. The result says where to issue, and how deep the prologue is; `place-roles` writes it as ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects import scf
from xdsl.ir import Block, Operation

from emmy.dialects import async_copy as ac
from emmy.passes.holding import Holding, none_free
from emmy.passes.protocol import fail, ring_of, steps


@dataclass(frozen=True)
class Issue:
    """One ticket of a ring to be acquired, filled and committed; `joined`: one commit group with the next issue."""

    ring: str
    joined: bool = False


@dataclass
class Plan:
    """Where issues stand. `before` and `after` are keyed by ops of the consumer, `tail` by its loops (before the yield)."""

    prologue: list[Issue] = field(default_factory=list[Issue])
    before: dict[Operation, list[Issue]] = field(default_factory=dict[Operation, list[Issue]])
    after: dict[Operation, list[Issue]] = field(default_factory=dict[Operation, list[Issue]])
    tail: dict[Operation, list[Issue]] = field(default_factory=dict[Operation, list[Issue]])

    def sites(self) -> list[tuple[Operation, str, list[Issue]]]:
        """All places in the consumer with issues: (op, which table, issues)."""
        tables = {"before": self.before, "after": self.after, "tail": self.tail}
        return [(op, name, issues) for name, table in tables.items() for op, issues in table.items() if issues]


@dataclass(frozen=True)
class Supply:
    """What fills a ring at this level: its stages, and whether it is one ticket (`once`) or a loop of them."""

    ring: str
    stages: int
    once: bool


class _ShortenError(Exception):
    """The prologue filled more of a ring than the loop's head can keep."""

    def __init__(self, loop: Operation, ring: str, count: int):
        super().__init__(ring)
        self.loop, self.ring, self.count = loop, ring, count


@dataclass
class _Occupancy:
    supplies: dict[str, Supply]
    sites: str
    depth: dict[str, int]
    tails: set[tuple[Operation, str]]
    plan: Plan = field(default_factory=Plan)
    holding: Holding = field(default_factory=Holding)
    issued: dict[str, int] = field(default_factory=dict[str, int])
    free: dict[str, int] = field(default_factory=dict[str, int])

    def run(self, block: Block) -> Plan:
        for ring, supply in self.supplies.items():
            self.issued[ring] = self.depth[ring]
            self.free[ring] = 0 if supply.once else supply.stages - self.depth[ring]
        self.walk(block, False)
        return self.plan

    def walk(self, block: Block, in_loop: bool) -> None:
        seen = False
        for op in block.ops:
            ring = ring_of(op)
            if isinstance(op, ac.WaitOp) and ring in self.supplies:
                self.wait(op, ring)
                site = in_loop and not (seen and self.sites == "first")
                self.plan.after[op] = self.refill() if site else []
                seen = True
            elif isinstance(op, ac.ReleaseOp) and ring in self.supplies:
                self.free[ring] += self.holding.give((ring, "read"), op.slot)
            elif isinstance(op, scf.ForOp) and self.touches(op):
                self.loop(op)
            elif op.regions and self.touches(op):
                touched = next(str(ring_of(s)) for s in steps(op) if ring_of(s) in self.supplies)
                fail(
                    op,
                    f"pipeline @{touched} is waited for or released under a condition: one set of warps cannot refill it",
                )

    def touches(self, op: Operation) -> bool:
        return any(ring_of(step) in self.supplies for step in steps(op))

    def wait(self, op: ac.WaitOp, ring: str) -> None:
        self.plan.before[op] = []
        if self.issued[ring] == 0:
            if self.supplies[ring].once:
                fail(op, f"pipeline @{ring} is waited for more often than it is filled")
            if self.free[ring] == 0:
                fail(op, none_free(ring, self.supplies[ring].stages, self.holding.windows[ring, "read"]))
            self.plan.before[op] = [Issue(ring)]
            self.free[ring] -= 1
            self.issued[ring] += 1
        self.issued[ring] -= 1
        self.holding.take((ring, "read"), op.slot)

    def refill(self) -> list[Issue]:
        counts = {ring: self.free[ring] for ring, supply in self.supplies.items() if not supply.once}
        return self.issue(counts)

    def issue(self, counts: dict[str, int]) -> list[Issue]:
        """Issue so many tickets of each ring, in turn."""
        rings = [ring for turn in range(max(counts.values(), default=0)) for ring, n in counts.items() if n > turn]
        for ring in rings:
            self.free[ring] -= 1
            self.issued[ring] += 1
        return _group(rings, self.sites)

    def loop(self, op: scf.ForOp) -> None:
        """Find the state at the loop's head that its body gives back."""
        before: list[Issue] = []
        while True:
            issued, free, head = dict(self.issued), dict(self.free), self.holding.enter(op)
            self.walk(op.body.block, True)
            self.holding.leave(op, head)
            surplus = {ring: self.free[ring] - free[ring] for ring in self.supplies if (op, ring) in self.tails}
            self.plan.tail[op] = self.issue({ring: n for ring, n in surplus.items() if n > 0})
            for ring in self.supplies:
                if self.free[ring] > free[ring]:
                    raise _ShortenError(op, ring, self.free[ring] - free[ring])
            missing = {ring: free[ring] - self.free[ring] for ring in self.supplies}
            self.issued, self.free = issued, free
            if not any(missing.values()):
                break
            before += self.issue(missing)
        self.plan.before[op] = before


def _group(rings: Sequence[str], sites: str) -> list[Issue]:
    """Issues at one place: with sites `first` they share one commit group."""
    return [Issue(ring, sites == "first" and i + 1 < len(rings)) for i, ring in enumerate(rings)]


def plan_issues(block: Block, supplies: Sequence[Supply], sites: str) -> Plan:
    """Plan the issues of one level. `block`: the consumer's ops; `sites`: `eager` (after each wait) or `first` (one a body).

    Raises EmmyError if the stages do not suffice, a body does not release what it waits for, or a wait stands under a condition.
    """
    by_ring = {supply.ring: supply for supply in supplies}
    depth = {supply.ring: 1 if supply.once else supply.stages for supply in supplies}
    tails: set[tuple[Operation, str]] = set()
    tries: dict[tuple[Operation, str], int] = {}
    while True:
        try:
            plan = _Occupancy(by_ring, sites, depth, tails).run(block)
        except _ShortenError as error:
            key = (error.loop, error.ring)
            tries[key] = tries.get(key, 0) + 1
            # Where a shorter prologue does not help (an earlier loop refills it), the loop refills at its own end.
            if depth[error.ring] < error.count or tries[key] > by_ring[error.ring].stages:
                tails.add(key)
            else:
                depth[error.ring] -= error.count
            continue
        plan.prologue = _prologue(block, plan, by_ring, depth, sites)
        return plan


def _prologue(block: Block, plan: Plan, supplies: dict[str, Supply], depth: dict[str, int], sites: str) -> list[Issue]:
    """Single tickets first, then the first loop's cyclic order of issues run backwards from its end.

    In any other order the ages of commit groups would differ between prologue and loop, and waits would wait for too much.
    """
    once = [Issue(ring) for ring, supply in supplies.items() if supply.once]
    left = {ring: n for ring, n in depth.items() if not supplies[ring].once}
    cycles = [cycle for op in block.ops if isinstance(op, scf.ForOp) if (cycle := _cycle(plan, op))]
    cycle = cycles[0] if cycles else []
    groups: list[list[Issue]] = []
    while any(left.get(ring, 0) for group in cycle for ring in group):
        for group in reversed(cycle):
            taken: list[str] = []
            for ring in reversed(group):
                if left[ring] > 0:
                    left[ring] -= 1
                    taken.insert(0, ring)
            groups.insert(0, _group(taken, sites))
    rest = [Issue(ring) for ring, n in left.items() for _ in range(n)]
    return once + rest + [issue for group in groups for issue in group]


def _cycle(plan: Plan, loop: Operation) -> list[list[str]]:
    """The groups of rings that one iteration of a loop issues, in order."""
    groups: list[list[Issue]] = []
    for op in loop.walk():
        if op is not loop:
            groups += [plan.before.get(op, []), plan.after.get(op, [])]
    groups.append(plan.tail.get(loop, []))
    return [[issue.ring for issue in group] for group in groups if group]
