"""Merges a producer's and a consumer's ops into one program for one set of warps: the work of `place-roles`.

A *level* is a pair of blocks, one of each half, that run together: the halves themselves, or the bodies of two matching outer
loops. At the innermost level the producer's loops become *streams*, which the plan of `occupancy` weaves into the consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr
from xdsl.ir import Block, Operation, Region, SSAValue

from emmy.dialects import async_copy as ac
from emmy.dialects import mma
from emmy.dialects.async_copy_rings import ring_name
from emmy.dialects.common import constant
from emmy.dialects.tile import KernelOp
from emmy.passes.emitter import Emitter
from emmy.passes.occupancy import Issue, Plan, Supply, plan_issues
from emmy.passes.protocol import equivalent, fail, is_cursor, is_inbound, pipelines_of, ring_of, steps

INDEX = IndexType()


@dataclass(frozen=True)
class Stream:
    """What fills one ring at one level: a producer loop, or (`loop` None) one ticket. `body`: the block with the copies."""

    ring: str
    acquire: ac.AcquireOp
    loop: scf.ForOp | None

    @property
    def body(self) -> Block:
        """The block that holds acquire, copies and commit."""
        block = self.acquire.parent_block()
        assert block is not None
        return block


def _acquires(op: Operation) -> list[ac.AcquireOp]:
    return [step for step in steps(op) if isinstance(step, ac.AcquireOp)]


def _is_outer(op: Operation) -> bool:
    """Does a producer loop contain loops that acquire?"""
    if not isinstance(op, scf.ForOp):
        return False
    return any(isinstance(inner, scf.ForOp) and _acquires(inner) for inner in op.body.block.ops)


class Merger:
    """Merges the halves of one kernel. Raises EmmyError for halves that one set of warps cannot run together."""

    def __init__(self, kernel: KernelOp, sites: str):
        self.pipelines = pipelines_of(kernel)
        self.sites = sites
        self.filled: dict[SSAValue, SSAValue] = {}
        """Producer values -> values of the role."""
        self.read: dict[SSAValue, SSAValue] = {}
        """Consumer values -> values of the role."""
        self.cursors: dict[str, SSAValue] = {}
        """The next fill cursor of each inbound ring."""

    def merge(self, producer: Block, consumer: Block, into: Block) -> None:
        """Emit one program for both blocks at the end of `into` (the consumer's terminator is left out)."""
        outer, streams = self._sort(producer)
        emit = Emitter(into)
        for op in producer.ops:
            inner = op.walk() if op.regions else ()
            moves = any(isinstance(part, ac.AcquireOp | ac.CopyOp) for part in inner)
            if moves or isinstance(op, ac.AcquireOp | ac.CommitOp | ac.CopyOp | ac.DrainOp | scf.YieldOp):
                continue
            copied = emit(op.clone(self.filled))
            if isinstance(copied, ac.BeginFillOp):
                self.cursors[str(ring_of(copied))] = copied.cursor
        if streams and outer:
            fail(
                outer[0],
                "a producer block holds copies, or loops of copies, beside a loop of such loops: split the kernel",
            )
        if streams:
            _Level(self, streams, consumer).emit(emit)
        else:
            self._emit_outer(outer, consumer, emit)

    def _sort(self, producer: Block) -> tuple[list[scf.ForOp], list[Stream]]:
        outer: list[scf.ForOp] = []
        streams: dict[str, Stream] = {}
        for op in producer.ops:
            if isinstance(op, scf.ForOp) and _is_outer(op):
                outer.append(op)
                continue
            for acquire in _acquires(op):
                ring, loop = str(ring_of(acquire)), op if isinstance(op, scf.ForOp) else None
                if ring in streams:
                    fail(op, f"pipeline @{ring} is filled at two places of one producer block: fuse them first")
                if acquire.parent_block() is not (loop.body.block if loop else producer):
                    fail(acquire, f"pipeline @{ring} is acquired under a condition of the producer")
                streams[ring] = Stream(ring, acquire, loop)
        for stream in streams.values():
            if stream.loop and not all(is_cursor(arg) for arg in stream.loop.iter_args):
                fail(stream.loop, f"the producer loop of pipeline @{stream.ring} carries a value that is no cursor")
        return outer, list(streams.values())

    def _emit_outer(self, outer: Sequence[scf.ForOp], consumer: Block, emit: Emitter) -> None:
        """A level whose producer has outer loops only (or nothing): each runs with the consumer loop of the same rings."""
        left = list(outer)
        for op in consumer.ops:
            rings = {str(ring_of(s)) for s in steps(op)} & {str(ring_of(a)) for o in outer for a in _acquires(o)}
            if isinstance(op, scf.YieldOp) or self.is_inbound_drain(op):
                continue
            if not rings:
                emit(op.clone(self.read))
                continue
            if not isinstance(op, scf.ForOp) or not left or not rings <= {str(ring_of(a)) for a in _acquires(left[0])}:
                fail(
                    op,
                    f"pipeline @{min(rings)} is filled in a loop of loops and read outside the consumer's matching loop",
                )
            self._emit_pair(left.pop(0), op, emit)
        if left:
            fail(left[0], "the consumer has no loop that matches this loop of the producer")

    def is_inbound_drain(self, op: Operation) -> bool:
        """Drains of inbound rings are placed anew."""
        return isinstance(op, ac.DrainOp) and is_inbound(self.pipelines[str(ring_of(op))])

    def _emit_pair(self, fills: scf.ForOp, reads: scf.ForOp, emit: Emitter) -> None:
        """One outer loop of each half as one loop, which carries what both carry."""
        pairs = ((fills.lb, reads.lb), (fills.ub, reads.ub), (fills.step, reads.step))
        if not all(equivalent(self.filled.get(a, a), self.read.get(b, b)) for a, b in pairs):
            fail(
                reads,
                "the outer loops of producer and consumer run over different values: one set of warps needs one loop",
            )
        if not all(is_cursor(arg) for arg in fills.iter_args):
            fail(fills, "an outer loop of the producer carries a value that is no cursor")
        rings = [ring_name(arg) for arg in fills.iter_args]

        def body(inner: Emitter, iv: SSAValue) -> None:
            self.filled[fills.body.block.args[0]] = iv
            self.merge(fills.body.block, reads.body.block, inner.block)

        self.rebuild_loop(reads, emit, rings, [], body)

    def rebuild_loop(
        self,
        loop: scf.ForOp,
        emit: Emitter,
        rings: Sequence[str],
        extras: Sequence[tuple[SSAValue, Callable[[SSAValue], None], Callable[[], SSAValue]]],
        body: Callable[[Emitter, SSAValue], None],
    ) -> scf.ForOp:
        """The consumer loop with further iter_args: fill cursors of `rings`, then `extras`.

        An extra is (initial value, how to set the current value, how to get it at the loop's end).
        """
        inits = [self.read.get(v, v) for v in loop.iter_args]
        check_uniform(loop)
        carried = [*inits, *(self.cursors[ring] for ring in rings), *(init for init, _, _ in extras)]
        block = Block(arg_types=[INDEX, *(v.type for v in carried)])
        bounds = [self.read.get(v, v) for v in (loop.lb, loop.ub, loop.step)]
        for old, new in zip(loop.body.block.args, block.args[: 1 + len(inits)], strict=True):
            self.read[old] = new
            new.name_hint = old.name_hint
        more = block.args[1 + len(inits) :]
        for ring, arg in zip(rings, more[: len(rings)], strict=True):
            self.cursors[ring] = arg
        for (_, put, _), arg in zip(extras, more[len(rings) :], strict=True):
            put(arg)
        emit.at(loop)
        inner = emit.inside(block)
        body(inner, block.args[0])
        last = loop.body.block.last_op
        yields = [self.read.get(v, v) for v in last.operands] if isinstance(last, scf.YieldOp) else []
        inner.at(loop)(scf.YieldOp(*yields, *(self.cursors[ring] for ring in rings), *(get() for _, _, get in extras)))
        result = emit(scf.ForOp(bounds[0], bounds[1], bounds[2], carried, Region(block)))
        for old, new in zip(loop.results, result.results[: len(inits)], strict=True):
            self.read[old] = new
            new.name_hint = old.name_hint
        after = result.results[len(inits) :]
        for ring, value in zip(rings, after[: len(rings)], strict=True):
            self.cursors[ring] = value
        for (_, put, _), value in zip(extras, after[len(rings) :], strict=True):
            put(value)
        return result


def check_uniform(loop: scf.ForOp) -> None:
    """All warps of a role meet at barriers, so a loop with waits runs alike for all. Raises EmmyError where it does not."""
    work, seen = [loop.lb, loop.ub], set[SSAValue]()
    while work:
        value = work.pop()
        if value in seen:
            continue
        seen.add(value)
        if isinstance(value.owner, mma.WarpOp):
            ring = next((str(ring_of(step)) for step in steps(loop)), "")
            fail(loop, f"the loop of pipeline @{ring} differs between warps: such a kernel has specialized roles")
        if isinstance(value.owner, Operation):
            work += value.owner.operands


@dataclass
class _Position:
    """The next ticket of a stream: its index, or (folded) `loop variable + ahead * step`. `count`: tickets issued so far."""

    index: SSAValue
    count: int = 0
    folded: scf.ForOp | None = None


class _Level:
    """The innermost level: the consumer's ops with the streams' issues woven in."""

    def __init__(self, merger: Merger, streams: Sequence[Stream], consumer: Block):
        self.merger = merger
        self.streams = {stream.ring: stream for stream in streams}
        self.consumer = consumer
        supplies = [Supply(s.ring, self._stages(s), s.loop is None) for s in streams]
        self.plan: Plan = plan_issues(consumer, supplies, merger.sites)
        self.positions: dict[str, _Position] = {}
        self.variable: SSAValue | None = None
        """The variable of the folded loop that is being emitted."""
        self.advanced: dict[tuple[Block, SSAValue, scf.ForOp], tuple[SSAValue | None, SSAValue]] = {}

    def _stages(self, stream: Stream) -> int:
        return self.merger.pipelines[stream.ring].stages.value.data

    def value(self, producer_value: SSAValue) -> SSAValue:
        """The role's value for one of the producer."""
        return self.merger.filled.get(producer_value, producer_value)

    def emit(self, emit: Emitter) -> None:
        """Emit the whole level: prologue, the consumer's ops with issues between them, drains."""
        for ring, stream in self.streams.items():
            if stream.loop:
                self.positions[ring] = _Position(self.value(stream.loop.lb))
        last = self._last_uses()
        self._issue_all(self.plan.prologue, emit)
        self._emit_block(self.consumer, emit, last)

    def _last_uses(self) -> dict[Operation, list[str]]:
        """The op of the consumer's block after which each ring is drained."""
        last: dict[str, Operation] = {}
        for op in self.consumer.ops:
            for step in steps(op):
                if ring_of(step) in self.streams:
                    last[str(ring_of(step))] = op
        for ring, stream in self.streams.items():
            if ring not in last:
                fail(stream.acquire, f"pipeline @{ring} is filled at this level of loops and never waited for there")
        drains: dict[Operation, list[str]] = {}
        for ring in self.streams:
            drains.setdefault(last[ring], []).append(ring)
        return drains

    def _emit_block(self, block: Block, emit: Emitter, drains: dict[Operation, list[str]]) -> None:
        for op in block.ops:
            if isinstance(op, scf.YieldOp) or self.merger.is_inbound_drain(op):
                continue
            emit.at(op)
            self._issue_all(self.plan.before.get(op, []), emit)
            if isinstance(op, scf.ForOp) and any(ring_of(step) in self.streams for step in steps(op)):
                self._emit_loop(op, emit)
            else:
                emit(op.clone(self.merger.read))
            self._issue_all(self.plan.after.get(op, []), emit)
            for ring in drains.get(op, []):
                emit.at(op)(ac.DrainOp(ring))

    # ---- loops ---------------------------------------------------------------------------------------------------

    def _issued_in(self, loop: Operation) -> list[str]:
        inside = {op for op in loop.walk() if op is not loop}
        rings = {
            issue.ring
            for op, table, issues in self.plan.sites()
            for issue in issues
            if op in inside or (op is loop and table == "tail")
        }
        return [ring for ring in self.streams if ring in rings]

    def _emit_loop(self, loop: scf.ForOp, emit: Emitter) -> None:
        rings = self._issued_in(loop)
        folded = [ring for ring in rings if self._folds(ring, loop)]
        for ring in folded:
            self.positions[ring].folded = loop
        carried: dict[tuple[object, ...], list[str]] = {}
        for ring in rings:
            if ring not in folded:
                carried.setdefault((self.positions[ring].index, *self._pattern(ring, loop)), []).append(ring)

        def extra(
            group: list[str],
        ) -> tuple[SSAValue, Callable[[SSAValue], None], Callable[[], SSAValue]]:
            def put(value: SSAValue) -> None:
                for ring in group:
                    self.positions[ring].index = value

            return self.positions[group[0]].index, put, lambda: self.positions[group[0]].index

        def body(inner: Emitter, iv: SSAValue) -> None:
            outside, self.variable = self.variable, iv
            self._emit_block(loop.body.block, inner, {})
            self._issue_all(self.plan.tail.get(loop, []), inner.at(loop))
            self.variable = outside

        self.merger.rebuild_loop(loop, emit, rings, [extra(group) for group in carried.values()], body)

    def _pattern(self, ring: str, loop: Operation) -> tuple[object, ...]:
        """Rings with one producer loop and one pattern of issues in a loop have one index."""
        sites = [
            (id(op), table, sum(issue.ring == ring for issue in issues))
            for op, table, issues in self.plan.sites()
            if any(op is inner for inner in loop.walk())
        ]
        return (self.streams[ring].loop, *(site for site in sites if site[2]))

    def _folds(self, ring: str, loop: scf.ForOp) -> bool:
        """Is the index of a ring's next ticket the loop's variable plus a constant number of steps?

        So it is if the loop runs over what the producer's does, issues one ticket an iteration, directly in its body,
        and is the only place in a loop that issues this ring.
        """
        source = self.streams[ring].loop
        assert source is not None
        if loop.parent_block() is not self.consumer:
            return False
        pairs = ((source.lb, loop.lb), (source.ub, loop.ub), (source.step, loop.step))
        if not all(equivalent(self.value(a), self.merger.read.get(b, b)) for a, b in pairs):
            return False
        order = list(self.consumer.ops)
        inside = 0
        for op, table, issues in self.plan.sites():
            count = sum(issue.ring == ring for issue in issues)
            if not count:
                continue
            if op.parent_op() is loop or (op is loop and table == "tail"):
                inside += count
            elif op.parent_block() is not self.consumer or table != "before" or order.index(op) > order.index(loop):
                return False
        return inside == 1

    # ---- issues --------------------------------------------------------------------------------------------------

    def _issue_all(self, issues: Sequence[Issue], emit: Emitter) -> None:
        for issue in issues:
            self._issue(issue, emit)

    def _issue(self, issue: Issue, emit: Emitter) -> None:
        """Acquire, copies, commit of one ticket; predicated unless the stream is known to reach that far."""
        stream = self.streams[issue.ring]
        more, index = self._advance(stream, emit)
        emit.at(stream.acquire)
        acquire = emit(ac.AcquireOp(self.merger.cursors[issue.ring], more))
        self.merger.cursors[issue.ring] = acquire.next
        acquire.slot.name_hint = stream.acquire.slot.name_hint
        values = {**self.merger.filled, stream.acquire.slot: acquire.slot}
        if stream.loop and index:
            values[stream.loop.body.block.args[0]] = index
        if more is None:
            self._copies(stream, emit, values)
        else:
            block = Block()
            inner = emit.inside(block)
            self._copies(stream, inner, values)
            inner.at(stream.acquire)(scf.YieldOp())
            emit.at(stream.acquire)(scf.IfOp(more, [], Region(block)))
        emit.at(stream.acquire)(ac.CommitOp(acquire.slot, more, issue.joined))

    def _copies(self, stream: Stream, emit: Emitter, values: dict[SSAValue, SSAValue]) -> None:
        """The ring's copies and what they are computed from, out of the producer's block."""
        wanted: set[Operation] = set()
        for op in reversed(list(stream.body.ops)):
            copies = [inner for inner in op.walk() if isinstance(inner, ac.CopyOp)]
            mine = [copy for copy in copies if ring_name(copy.slot) == stream.ring]
            if mine and len(mine) != len(copies):
                fail(
                    op,
                    f"copies of pipeline @{stream.ring} and of another one share a region of the producer: part them",
                )
            used = any(use.operation in wanted for result in op.results for use in result.uses)
            if mine or (used and not isinstance(op, ac.AcquireOp)):
                wanted.update(op.walk())
        for op in stream.body.ops:
            if op in wanted and (stream.loop or op not in self._emitted(stream)):
                emit(op.clone(values))

    def _emitted(self, stream: Stream) -> set[Operation]:
        """Ops of a single ticket's block that the level has already emitted: all but the copies."""
        return {op for op in stream.body.ops if op.results and all(r in self.merger.filled for r in op.results)}

    def _advance(self, stream: Stream, emit: Emitter) -> tuple[SSAValue | None, SSAValue | None]:
        """(is there a next ticket; None: surely), its index; moves the position on."""
        if stream.loop is None:
            return None, None
        emit.at(stream.acquire)
        position = self.positions[stream.ring]
        ub, step = self.value(stream.loop.ub), self.value(stream.loop.step)
        if position.folded and self.variable:
            ahead = self._times(step, position.count, emit)
            index = self._add(self.variable, ahead, emit)
            return self._less(index, ub, emit), index
        index = position.index
        key = (emit.block, index, stream.loop)
        if key not in self.advanced:
            more = self._less(index, ub, emit)
            self.advanced[key] = (more, self._add(index, step, emit))
        more, position.index = self.advanced[key]
        position.count += 1
        return more, index

    def _times(self, step: SSAValue, count: int, emit: Emitter) -> SSAValue:
        known = constant(step)
        if known is not None:
            return emit.value(arith.ConstantOp(IntegerAttr(known * count, INDEX)))
        factor = emit.value(arith.ConstantOp(IntegerAttr(count, INDEX)))
        return emit.value(arith.MuliOp(step, factor))

    def _add(self, one: SSAValue, other: SSAValue, emit: Emitter) -> SSAValue:
        a, b = constant(one), constant(other)
        if a is not None and b is not None:
            return emit.value(arith.ConstantOp(IntegerAttr(a + b, INDEX)))
        return one if b == 0 else emit.value(arith.AddiOp(one, other))

    def _less(self, index: SSAValue, ub: SSAValue, emit: Emitter) -> SSAValue | None:
        """`index < ub`, or None where both are known and it is so."""
        a, b = constant(index), constant(ub)
        if a is not None and b is not None and a < b:
            return None
        return emit.value(arith.CmpiOp(index, ub, "slt"))
