"""When copies are complete and visible: one forward dataflow over a role in program order.

State: for each ring its outstanding tickets, oldest first, each with the number of commit groups since its own (`age`), whether
it is complete (landed, for the thread that waited) and visible (complete before some earlier barrier); and what was read or
written in shared memory since the last barrier. Where paths join, the cautious one of both holds; loops run to a fixed point.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from xdsl.dialects import scf
from xdsl.ir import Block, Operation

from emmy.dialects import async_copy as ac
from emmy.dialects import mma
from emmy.passes.protocol import fail, ring_of


@dataclass(frozen=True)
class Need:
    """What must be printed at an op. `pending`: `wait_group` with so many groups left; `group`: a commit group ends here."""

    pending: int | None = None
    barrier: bool = False
    group: bool = False


@dataclass(frozen=True)
class _Ticket:
    age: int
    complete: bool
    visible: bool = False

    def meet(self, other: _Ticket) -> _Ticket:
        return _Ticket(min(self.age, other.age), self.complete and other.complete, self.visible and other.visible)


@dataclass
class _State:
    tickets: dict[str, list[_Ticket]] = field(default_factory=dict[str, list[_Ticket]])
    read: frozenset[str] = frozenset()
    """Rings with a slot read (released, or stored from) since the last barrier."""
    written: frozenset[str] = frozenset()
    """Outbound rings with a fragment stored into a slot since the last barrier."""

    def copy(self) -> _State:
        return _State({ring: list(tickets) for ring, tickets in self.tickets.items()}, self.read, self.written)

    def each(self, change: dict[str, bool], least_age: int) -> None:
        """Apply a change to all tickets with at least that age."""
        for ring, tickets in self.tickets.items():
            self.tickets[ring] = [replace(t, **change) if t.age >= least_age else t for t in tickets]

    def barrier(self) -> None:
        for ring, tickets in self.tickets.items():
            self.tickets[ring] = [replace(t, visible=True) if t.complete else t for t in tickets]
        self.read = self.written = frozenset()

    def end_group(self) -> None:
        for ring, tickets in self.tickets.items():
            self.tickets[ring] = [replace(t, age=t.age + 1) for t in tickets]

    def meet(self, other: _State, at: Operation) -> _State:
        met = _State({}, self.read | other.read, self.written | other.written)
        for ring in sorted({*self.tickets, *other.tickets}):
            a, b = self.tickets.get(ring, []), other.tickets.get(ring, [])
            if len(a) != len(b):
                fail(
                    at,
                    f"pipeline @{ring}: the paths that meet here leave {len(a)} and {len(b)} tickets outstanding: "
                    "drain the pipeline before",
                )
            met.tickets[ring] = [x.meet(y) for x, y in zip(a, b, strict=True)]
        return met


class Completion:
    """Computes the `Need` of every protocol op of a role.

    grouped: rings with a `cp.async` copy (the others copy by plain loads and stores, complete for their thread at once).
    outbound: rings through which results leave. They may lie over the bytes of any other ring; inbound rings never overlap.
    """

    def __init__(self, grouped: frozenset[str], outbound: frozenset[str]):
        self.grouped = grouped
        self.outbound = outbound
        self.needs: dict[Operation, Need] = {}

    def run(self, block: Block) -> dict[Operation, Need]:
        """The needs of all ops in a role's block. Raises EmmyError where paths disagree."""
        self._walk(block, _State())
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
        ring = ring_of(op)
        if isinstance(op, ac.WaitOp):
            self._wait(op, str(ring), state)
        elif isinstance(op, ac.AcquireOp):
            barrier = bool(state.read if ring in self.outbound else state.read & {str(ring), *self.outbound})
            self._need(op, Need(barrier=barrier), state)
        elif isinstance(op, ac.CommitOp):
            self._commit(op, str(ring), state)
        elif isinstance(op, ac.ReleaseOp):
            state.read |= {str(ring)}
        elif isinstance(op, mma.StoreOp):
            state.written |= {ac.ring_name(op.slot)}
        elif isinstance(op, ac.StoreOp):
            self._need(op, Need(barrier=ac.ring_name(op.slot) in state.written), state)
            state.read |= {ac.ring_name(op.slot)}
        elif isinstance(op, ac.DrainOp):
            # Every ticket has been waited for: what is outstanding are the empty ones of a stream that has ended.
            state.tickets[str(ring)] = []

    def _need(self, op: Operation, need: Need, state: _State) -> None:
        self.needs[op] = need
        if need.barrier:
            state.barrier()

    def _wait(self, op: ac.WaitOp, ring: str, state: _State) -> None:
        if not state.tickets.get(ring):
            fail(op, f"pipeline @{ring} is waited for here with no ticket outstanding")
        oldest = state.tickets[ring][0]
        if oldest.age < 0:
            fail(op, f"pipeline @{ring} is waited for before the commit that its joined commit belongs to")
        pending = None if oldest.complete else oldest.age
        if pending is not None:
            state.each({"complete": True}, pending)
        self._need(op, Need(pending=pending, barrier=not oldest.visible), state)
        state.tickets[ring].pop(0)

    def _commit(self, op: ac.CommitOp, ring: str, state: _State) -> None:
        if ring in self.outbound:
            return
        joined = op.joined is not None
        grouped = ring in self.grouped
        open_group = grouped or any(t.age < 0 for tickets in state.tickets.values() for t in tickets)
        if not joined and open_group:
            state.end_group()
        self.needs[op] = Need(group=not joined and open_group)
        age = -1 if joined and grouped else 0
        state.tickets.setdefault(ring, []).append(_Ticket(age, not grouped))
