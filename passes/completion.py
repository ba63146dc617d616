"""When copies are complete and visible: one forward dataflow over a role in program order.

State: for each ring its outstanding tickets, oldest first, each with the number of commit groups since its own (`age`), whether
it is complete (landed, for the thread that waited) and visible (complete before some earlier barrier); and what was read or
written in shared memory since the last barrier. Where paths join, the cautious one of both holds; loops run to a fixed point.
TMA stores are tickets of a second kind: their groups are counted apart, and all slots of their ring begin as complete ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from xdsl.dialects import scf
from xdsl.ir import Block, Operation

from emmy.dialects import async_copy as ac
from emmy.dialects import mma
from emmy.dialects.async_copy_rings import ring_name
from emmy.passes.protocol import fail, ring_of


@dataclass(frozen=True)
class Way:
    """How the slots of one ring are filled (`outbound`: emptied), and by whom.

    `tma`, `cp_async`, `plain`: is there a copy (store) of that kind? `apart`: one role fills the ring and another reads it.
    `cluster`: each CTA of a cluster fills the slots of the others. `across`: of an internal ring, the warps beside each other
    that alone share each of its rows; 0 if more may.
    """

    stages: int
    outbound: bool = False
    tma: bool = False
    cp_async: bool = False
    plain: bool = False
    apart: bool = False
    cluster: bool = False
    across: int = 0


@dataclass(frozen=True)
class Need:
    """What must be printed at an op, in this order.

    full, empty: a wait for the slot's mbarrier. bulk: an elected `bulk_wait` with so many groups left. pending: `wait_group`
    with so many groups left. fence: a proxy fence. barrier: over the role, or over `across` warps beside each other. group: a
    commit group ends here. begun: all CTAs of the cluster have begun.
    """

    full: bool = False
    empty: bool = False
    bulk: int | None = None
    pending: int | None = None
    fence: bool = False
    barrier: bool = False
    group: bool = False
    begun: bool = False
    across: int = 0


@dataclass(frozen=True)
class _Ticket:
    age: int
    complete: bool
    visible: bool = False

    def meet(self, other: _Ticket) -> _Ticket:
        return _Ticket(min(self.age, other.age), self.complete and other.complete, self.visible and other.visible)


Tickets = dict[str, list[_Ticket]]


def _change(tickets: Tickets, least_age: int, **change: bool) -> None:
    """Apply a change to all tickets with at least that age."""
    for ring, queue in tickets.items():
        tickets[ring] = [replace(t, **change) if t.age >= least_age else t for t in queue]


def _end_group(tickets: Tickets) -> None:
    for ring, queue in tickets.items():
        tickets[ring] = [replace(t, age=t.age + 1) for t in queue]


def _meet(one: Tickets, other: Tickets, at: Operation) -> Tickets:
    met: Tickets = {}
    for ring in sorted({*one, *other}):
        a, b = one.get(ring, []), other.get(ring, [])
        if len(a) != len(b):
            fail(
                at,
                f"pipeline @{ring}: the paths that meet here leave {len(a)} and {len(b)} tickets outstanding: "
                "drain the pipeline before",
            )
        met[ring] = [x.meet(y) for x, y in zip(a, b, strict=True)]
    return met


@dataclass
class _State:
    tickets: Tickets = field(default_factory=Tickets)
    """Inbound rings: filled and not yet waited for."""
    stores: Tickets = field(default_factory=Tickets)
    """Rings that TMA empties: one ticket a slot, complete once its store has read the slot."""
    read: frozenset[str] = frozenset()
    """Rings with a slot read (released, or stored from) since the last barrier over the role."""
    near: frozenset[str] = frozenset()
    """The same since the last barrier over the warps that share a ring's rows."""
    written: frozenset[str] = frozenset()
    """Outbound rings with a fragment stored into a slot since the last barrier."""
    unfenced: frozenset[str] = frozenset()
    """The same since the last proxy fence."""

    def copy(self) -> _State:
        return replace(self, tickets=_copied(self.tickets), stores=_copied(self.stores))

    def barrier(self, shared: frozenset[str] | None = None) -> None:
        """Over the role; or over the warps that share the rows of some rings."""
        for tickets in (self.tickets, self.stores):
            for ring, queue in tickets.items():
                if shared is None or ring in shared:
                    tickets[ring] = [replace(t, visible=True) if t.complete else t for t in queue]
        self.near = frozenset() if shared is None else self.near - shared
        if shared is None:
            self.read = self.written = frozenset()

    def meet(self, other: _State, at: Operation) -> _State:
        return _State(
            _meet(self.tickets, other.tickets, at),
            _meet(self.stores, other.stores, at),
            self.read | other.read,
            self.near | other.near,
            self.written | other.written,
            self.unfenced | other.unfenced,
        )


def _copied(tickets: Tickets) -> Tickets:
    return {ring: list(queue) for ring, queue in tickets.items()}


class Completion:
    """Computes the `Need` of every protocol op of a role, from the ways of all rings.

    Outbound rings may lie over the bytes of any other ring; inbound rings never overlap.
    """

    def __init__(self, ways: Mapping[str, Way]):
        self.ways = ways
        self.outbound = frozenset(ring for ring, way in ways.items() if way.outbound)

        self.needs: dict[Operation, Need] = {}

    def run(self, block: Block) -> dict[Operation, Need]:
        """The needs of all ops in a role's block. Raises EmmyError where paths disagree."""
        state = _State()
        for ring, way in self.ways.items():
            if way.outbound and way.tma:
                state.stores[ring] = [_Ticket(way.stages - 1 - slot, True, True) for slot in range(way.stages)]
        self._walk(block, state)
        return self.needs

    def _walk(self, block: Block, state: _State) -> _State:
        for op in block.ops:
            if isinstance(op, scf.ForOp):
                state = self._loop(op, state)
            elif isinstance(op, scf.IfOp):
                branches = [self._walk(r.block, state.copy()) if r.blocks else state for r in op.regions]
                state = branches[0].meet(branches[1], op)
            else:
                self._step(op, state)
        return state

    def _loop(self, op: scf.ForOp, state: _State) -> _State:
        while True:
            head = state.meet(self._walk(op.body.block, state.copy()), op)
            if head == state:
                return head
            state = head

    def _step(self, op: Operation, state: _State) -> None:
        ring = str(ring_of(op))
        if isinstance(op, ac.WaitOp):
            self._wait(op, ring, state)
        elif isinstance(op, ac.AcquireOp):
            self._acquire(op, ring, state)
        elif isinstance(op, ac.CommitOp):
            self._commit(op, ring, state)
        elif isinstance(op, ac.ReleaseOp):
            state.read |= {ring}
            state.near |= {ring}
        elif isinstance(op, mma.StoreOp) and ring_name(op.slot) in self.outbound:
            state.written |= {ring_name(op.slot)}
            state.unfenced |= {ring_name(op.slot)}
        elif isinstance(op, ac.StoreOp):
            self._store(op, ring_name(op.slot), state)
        elif isinstance(op, ac.DrainOp):
            self._drain(op, ring, state)

    def _need(self, op: Operation, need: Need, state: _State) -> None:
        self.needs[op] = need
        if need.fence:
            state.unfenced = frozenset()
        if need.barrier:
            alike = frozenset(ring for ring, way in self.ways.items() if way.across == need.across)
            state.barrier(alike if need.across else None)

    def _acquire(self, op: ac.AcquireOp, ring: str, state: _State) -> None:
        way = self.ways[ring]
        if way.apart:
            self._need(op, Need(empty=True), state)
        elif way.cluster:
            self._need(op, Need(begun=True), state)
        elif not way.outbound:
            # What was written by `st.shared` where TMA may write now is fenced first.
            fence = way.tma and bool(state.unfenced)
            far = fence or bool(state.read & (self.outbound if way.across else {ring, *self.outbound}))
            self._need(op, Need(fence=fence, barrier=far or ring in state.near, across=0 if far else way.across), state)
        elif not way.tma:
            self._need(op, Need(barrier=bool(state.read)), state)
        else:
            oldest = state.stores[ring].pop(0)
            bulk = None if oldest.complete else oldest.age
            if bulk is not None:
                _change(state.stores, bulk, complete=True)
            self._need(op, Need(bulk=bulk, barrier=bool(state.read) or not oldest.visible), state)

    def _wait(self, op: ac.WaitOp, ring: str, state: _State) -> None:
        way = self.ways[ring]
        if way.apart:
            self._need(op, Need(full=True), state)
            return
        if not state.tickets.get(ring):
            fail(op, f"pipeline @{ring} is waited for here with no ticket outstanding")
        oldest = state.tickets[ring][0]
        if way.cluster:
            self._need(op, Need(full=True), state)
            state.tickets[ring].pop(0)
            return
        if oldest.age < 0:
            fail(op, f"pipeline @{ring} is waited for before the commit that its joined commit belongs to")
        pending = None if oldest.complete else oldest.age
        if pending is not None:
            _change(state.tickets, pending, complete=True)
        self._need(op, Need(full=way.tma, pending=pending, barrier=not oldest.visible, across=way.across), state)
        state.tickets[ring].pop(0)

    def _commit(self, op: ac.CommitOp, ring: str, state: _State) -> None:
        way = self.ways[ring]
        if way.outbound and way.tma:
            _end_group(state.stores)
            state.stores[ring].append(_Ticket(0, False))
        if way.outbound or way.apart:
            return
        joined = op.joined is not None
        open_group = way.cp_async or any(t.age < 0 for queue in state.tickets.values() for t in queue)
        if not joined and open_group:
            _end_group(state.tickets)
        self.needs[op] = Need(group=not joined and open_group)
        # What comes by TMA is waited for at its mbarrier, and visible to who has waited there.
        by_mbarrier = way.tma and not way.cp_async and not way.plain
        ticket = _Ticket(-1 if joined and way.cp_async else 0, not way.cp_async, by_mbarrier)
        state.tickets.setdefault(ring, []).append(ticket)

    def _store(self, op: ac.StoreOp, ring: str, state: _State) -> None:
        if self.ways[ring].tma:
            fence = ring in state.unfenced
            self._need(op, Need(fence=fence, barrier=fence or ring in state.written), state)
        else:
            self._need(op, Need(barrier=ring in state.written), state)
            state.read |= {ring}

    def _drain(self, op: ac.DrainOp, ring: str, state: _State) -> None:
        way = self.ways[ring]
        if way.outbound and way.tma:
            self._need(op, Need(bulk=0), state)
            _change(state.stores, 0, complete=True)
            # Only the elected warp knows: what lies over the ring's bytes wants a barrier first.
            state.read |= {ring}
        elif not way.outbound:
            # Every ticket has been waited for: what is outstanding are the empty ones of a stream that has ended.
            state.tickets[ring] = []
