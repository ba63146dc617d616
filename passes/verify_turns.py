"""What `verify-pipelines` checks where two consumers read one pipeline: alternate tiles, tickets passed over, turns."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import arith, scf
from xdsl.ir import Block, Operation, SSAValue

from emmy.dialects import async_copy as ac
from emmy.dialects.async_copy_rings import ring_name
from emmy.dialects.common import constant
from emmy.dialects.tile import KernelOp
from emmy.passes.emitter import Emitter
from emmy.passes.lower_raster import Arithmetic, Number
from emmy.passes.protocol import equivalent, fail, is_inbound, pipelines_of, ring_of, takes_turns
from emmy.passes.tickets import Taking, takes, tickets_of, tile_loop

LESS_THAN = (2, 6)
"""`slt` and `ult` among the predicates of `arith.cmpi`; numbers of tiles are never negative."""

Half = ac.ConsumerOp | ac.ProducerOp | ac.RoleOp


def check_turns(kernel: KernelOp) -> None:
    """Check the pipelines of a kernel that two consumers read, and that only such consumers take turns. Raises EmmyError."""
    halves = [op for op in kernel.block.ops if isinstance(op, Half)]
    shared: set[Operation] = set()
    for ring, pipeline in pipelines_of(kernel).items():
        readers = [half for half in halves if takes(half, ring, ac.WaitOp)]
        fillers = [half for half in halves if takes(half, ring, ac.AcquireOp)]
        if len(readers) < 2:
            continue
        if len(readers) > 2 or len(fillers) != 1 or not is_inbound(pipeline):
            fail(pipeline, f"pipeline @{ring} has {len(readers)} readers: two take turns at what one producer fills")
        check_pipeline(pipeline, fillers[0], readers)
        shared.update(readers)
    for half in halves:
        if half not in shared and takes_turns(half):
            fail(half, "turns of consumers are for two that read one pipeline")


def check_pipeline(pipeline: ac.PipelineOp, filler: Half, readers: Sequence[Half]) -> None:
    """One pipeline that two consumers read in turn."""
    ring = pipeline.sym_name.data
    filling, loops = tile_loop(filler, ring, ac.AcquireOp), [tile_loop(half, ring, ac.WaitOp) for half in readers]
    if filling is None or None in loops:
        fail(pipeline, f"pipeline @{ring} has two readers, and not all of its tickets are taken in a loop over tiles")
    expected = count_of(filling, ring, ac.AcquireOp)
    for number, (half, loop) in enumerate(zip(readers, loops, strict=True)):
        assert loop is not None
        if not alternates(loop, filling, number):
            fail(
                loop,
                f"consumer {number} of pipeline @{ring} does not compute every second tile from number {number} on",
            )
        if not same(count_of(loop, ring, ac.WaitOp), expected):
            fail(loop, f"a tile takes other numbers of tickets of pipeline @{ring} here than where it is filled")
        check_skips(half, loop, ring, expected, number)
        if not own_slots(pipeline, loop, expected):
            check_order(half, loop, ring, number)


def count_of(loop: scf.ForOp, ring: str, kind: Taking) -> Number:
    """Tickets of a tile: a number, or the value that arithmetic gives, which stands in no text."""
    return tickets_of(loop, ring, kind, Arithmetic(Emitter(Block())))


def same(one: Number, other: Number) -> bool:
    """Are two numbers of tickets equal, as far as the text shows?"""
    if isinstance(one, int) or isinstance(other, int):
        known = [n if isinstance(n, int) else constant(n) for n in (one, other)]
        return known[0] is not None and known[0] == known[1]
    return equivalent(one, other)


def alternates(loop: scf.ForOp, filling: scf.ForOp, number: int) -> bool:
    """Does a loop take the tiles number, number + 2, .. of those that are filled?"""
    first, step = loop.lb.owner, loop.step.owner
    begins = equivalent(loop.lb, filling.lb) if number == 0 else _sums(first, filling.lb, filling.step)
    twice = isinstance(step, arith.MuliOp) and any(
        equivalent(x, filling.step) and constant(y) == 2 for x, y in (step.operands, reversed(step.operands))
    )
    return begins and twice and equivalent(loop.ub, filling.ub)


def _sums(op: Operation | Block, x: SSAValue, y: SSAValue) -> bool:
    """Is an op the sum of two values?"""
    if not isinstance(op, arith.AddiOp):
        return False
    return any(equivalent(op.lhs, a) and equivalent(op.rhs, b) for a, b in ((x, y), (y, x)))


def check_skips(half: Half, loop: scf.ForOp, ring: str, expected: Number, number: int) -> None:
    """Behind each of its tiles a consumer passes over the other's; number 1 before its first one, too."""
    skips = [op for op in half.walk() if isinstance(op, ac.SkipOp) and ring_of(op) == ring]
    last = loop.body.block.last_op
    carried = [i for i, v in enumerate(loop.iter_args) if isinstance(v.type, ac.CursorType) and ring_name(v) == ring]
    ends = [last.operands[i].owner for i in carried] if isinstance(last, scf.YieldOp) else []
    starts = [loop.iter_args[i].owner for i in carried] if number else []
    if len(carried) != 1 or set(skips) != {*ends, *starts}:
        fail(
            loop,
            f"consumer {number} of pipeline @{ring} passes over the other one's tickets "
            + (
                "before its first tile and after each, and nowhere else"
                if number
                else "after each tile, and nowhere else"
            ),
        )
    for op in skips:
        if not same(op.count, expected):
            fail(op, f"a tile takes other numbers of tickets of pipeline @{ring} than are passed over here")


def own_slots(pipeline: ac.PipelineOp, loop: scf.ForOp, expected: Number) -> bool:
    """Has each consumer slots of its own, because the slots are those of two tiles? Then no order is needed."""
    return expected != 0 and 2 * expected == pipeline.stages.value.data if isinstance(expected, int) else False


def check_order(half: Half, loop: scf.ForOp, ring: str, number: int) -> None:
    """All waits are between taking the turn and passing it, if there is a further tile; the first turn is given to number 0."""
    ops = list(loop.body.block.ops)
    turns = [op for op in half.walk() if isinstance(op, ac.AwaitTurnOp | ac.PassTurnOp)]
    before = [op for op in turns if op.parent_op() is not loop]
    inside = [op for op in ops if op in turns]
    waits = [i for i, op in enumerate(ops) if takes(op, ring, ac.WaitOp)]
    taken = len(inside) == 2 and isinstance(inside[0], ac.AwaitTurnOp) and isinstance(inside[1], ac.PassTurnOp)
    if not taken or not ops.index(inside[0]) < waits[0] <= waits[-1] < ops.index(inside[1]):
        fail(
            loop,
            f"consumer {number} waits for tickets of pipeline @{ring}, which another one reads too, out of its turn: between "
            f"await_turn consumer {number} and pass_turn consumer {1 - number}",
        )
    take, give = inside
    assert isinstance(take, ac.AwaitTurnOp)
    assert isinstance(give, ac.PassTurnOp)
    if _number(take) != number or _number(give) != 1 - number:
        fail(take, f"consumer {number} takes its own turn and passes the other one's")
    following = _less(give.predicate, loop.ub)
    if following is None or not _sums(following.owner, loop.body.block.args[0], _step(loop)):
        fail(give, "a turn is passed if there is a tile for it: the one after this")
    first = [op for op in before if isinstance(op, ac.PassTurnOp) and op.parent_op() is half]
    wanted = number
    if len(before) != wanted or len(first) != wanted:
        fail(half, "consumer 1 gives consumer 0 the first turn, before its own loop, and nothing else does")
    for op in first:
        start = _less(op.predicate, loop.ub)
        if _number(op) != 0 or start is None or not _sums(loop.lb.owner, start, _step(loop)):
            fail(op, "the first turn is passed if there is a tile for it: the first")


def _step(loop: scf.ForOp) -> SSAValue:
    """The step of the loop over all tiles, of which a loop over every second one has twice that."""
    owner = loop.step.owner
    assert isinstance(owner, arith.MuliOp)
    return owner.rhs if constant(owner.lhs) == 2 else owner.lhs


def _number(op: ac.AwaitTurnOp | ac.PassTurnOp) -> int | None:
    return None if op.consumer is None else op.consumer.value.data


def _less(predicate: SSAValue | None, end: SSAValue) -> SSAValue | None:
    """What a condition says is less than the number of tiles, if that is what it says."""
    owner = None if predicate is None else predicate.owner
    if not isinstance(owner, arith.CmpiOp) or owner.predicate.value.data not in LESS_THAN:
        return None
    return owner.lhs if equivalent(owner.rhs, end) else None
