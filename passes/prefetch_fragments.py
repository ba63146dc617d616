"""`prefetch-fragments`: the first fragments of the next slot are loaded before the last product of this one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, ModuleOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.traits import is_side_effect_free

from emmy.dialects import async_copy, mma, tile
from emmy.dialects.common import constant
from emmy.passes.delay_copies import CP_ASYNC, TMA, is_copy
from emmy.passes.emitter import Emitter

WAITS = (
    async_copy.WaitGroupOp,
    async_copy.BarrierOp,
    async_copy.WaitFullOp,
    async_copy.FenceProxyAsyncOp,
    async_copy.WarpSyncOp,
)
"""What a head may hold beside loads: no load crosses one of these."""

COPIES = (*CP_ASYNC, *TMA, async_copy.PlainCopyOp)
"""What loads may overtake: copies fill slots that nobody reads before the next wait or barrier."""

RELEASES = (async_copy.FenceProxyAsyncOp, async_copy.WarpSyncOp, async_copy.ArriveEmptyOp)
"""How a slot is given back; behind the last product it moves before it, and so before the next wait."""


@dataclass(frozen=True)
class PrefetchFragments(ModulePass):
    """Contract: rotates loops of lowered `tile.kernel` bodies by their head; results stay the same bit for bit.

    Accepts kernels after `lower-transport`. By default it acts where the schedule says `prefetch = 1`; `force` acts
    everywhere, in inner loops first. The *head* of a loop body is what must happen before its first `mma.mma` can: the
    wait, the barrier, the slot, the loads of that product's operands, and every load before the last of these waits. A
    loop is left as it is
    * if its head holds anything else that touches memory, or would overtake anything but copies and loads,
    * if it has fewer than two products, or does more behind the last one than to give its slot back,
    * if what the head needs comes from the last product or from what follows it.

    Guarantees: every wait, barrier, commit and copy happens in the same order as before, seen by one warp, and no load
    crosses a wait or a barrier: only the place where the loop is cut moves, from before the head to behind it, and the
    next head comes before the last product of this body. The last iteration stands behind the loop, so nothing is loaded
    that no copy has filled.

    Why: after the barrier the tensor cores would wait for `ldmatrix`; now the last product runs meanwhile.

    Before:                                     After:
        scf.for %k = .. iter_args(%s) {             wait_group; barrier; %a0, %b0 = mma.load ..       // head
          wait_group; barrier                       scf.for %k = .. - step iter_args(%s, %a0, %b0) {
          %a0, %b0 = mma.load .. %c0                  %s0 = mma.mma %a0, %b0, %s
          %s0 = mma.mma %a0, %b0, %s                  %a1, %b1 = mma.load .. %c16
          %a1, %b1 = mma.load .. %c16                 wait_group; barrier; %a0n, %b0n = mma.load ..   // next head
          %s1 = mma.mma %a1, %b1, %s0                 %s1 = mma.mma %a1, %b1, %s0
          scf.yield %s1                               scf.yield %s1, %a0n, %b0n
        }                                           }
                                                    the body once more, without a head
    """

    name = "prefetch-fragments"
    force: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.walk():
            if not isinstance(kernel, tile.KernelOp):
                continue
            wanted = kernel.schedule is not None and kernel.schedule.data.prefetch > 0
            if self.force or wanted:
                for loop in reversed([o for o in kernel.walk() if isinstance(o, scf.ForOp)]):
                    plan = plan_rotation(loop)
                    if plan is not None:
                        rotate(loop, plan)


@dataclass(frozen=True)
class Rotation:
    """How a loop body is cut: the head, the rest before the last product, the last product and what follows, the yield."""

    head: Sequence[Operation]
    middle: Sequence[Operation]
    tail: Sequence[Operation]
    yielded: Sequence[SSAValue]

    @property
    def used_later(self) -> set[SSAValue]:
        """What the body without its head uses, and what it yields."""
        return {v for op in (*self.middle, *self.tail) for v in operands_of(op)} | set(self.yielded)


def operands_of(op: Operation) -> set[SSAValue]:
    """What an op uses, in its regions too."""
    return {operand for inner in op.walk() for operand in inner.operands}


def computes(op: Operation) -> bool:
    """Whether an op touches no memory and waits for nothing."""
    return isinstance(op, async_copy.SlotOp) or is_side_effect_free(op)


def plan_rotation(loop: scf.ForOp) -> Rotation | None:
    """The cut of a loop, or None if it is to be left alone."""
    *ops, yielded = loop.body.block.ops
    products = [op for op in ops if isinstance(op, mma.MmaOp)]
    if len(products) < 2 or not isinstance(loop.lb.type, IndexType):
        return None
    head = head_of(ops[: ops.index(products[0])], products[0])
    if head is None:
        return None
    last = ops.index(products[-1])
    releases = [op for op in ops[last:] if isinstance(op, RELEASES)]
    middle = [*(op for op in ops[:last] if op not in head), *releases]
    tail = [op for op in ops[last:] if op not in releases]
    if not all(map(computes, tail)):
        return None
    made_late = {result for op in tail for result in op.results}
    needed = {operand for op in head for operand in operands_of(op)}
    for argument, value in zip(loop.body.block.args[1:], yielded.operands, strict=True):
        if argument in needed and value in made_late:
            return None
    return Rotation(head, middle, tail, yielded.operands)


def head_of(before: Sequence[Operation], product: mma.MmaOp) -> list[Operation] | None:
    """What the first product waits for, in order; None if that cannot be told apart from what stands `before` it too."""
    last_wait = max((i for i, op in enumerate(before) if isinstance(op, WAITS)), default=-1)
    owners: dict[SSAValue, Operation] = {result: op for op in before for result in op.results}
    # Loads before the last wait stay before it: it may be the barrier behind which their slot is filled again.
    work = [op for op in before[: last_wait + 1] if not computes(op)]
    work += [owners[value] for value in (product.a, product.b) if value in owners]
    wanted: set[Operation] = set()
    while work:
        op = work.pop()
        if op not in wanted:
            wanted.add(op)
            work += [owners[value] for value in operands_of(op) if value in owners]
    head = [op for op in before if op in wanted]
    loads = [op for op in head if isinstance(op, mma.LoadOp)]
    if last_wait < 0 or not loads:
        return None
    if not all(computes(op) or isinstance(op, (*WAITS, mma.LoadOp)) for op in head):
        return None
    overtaken = [op for op in before[: before.index(loads[-1])] if op not in wanted]
    if not all(
        computes(op) or is_copy(op, COPIES) or isinstance(op, (async_copy.CommitGroupOp, mma.LoadOp))
        for op in overtaken
    ):
        return None
    return head


def rotate(loop: scf.ForOp, plan: Rotation) -> None:
    """Replace a loop by head, rotated loop and last body; under a guard if it may run not at all."""
    block = loop.parent
    assert isinstance(block, Block)
    emit = Emitter(block, loop, loop)
    trips = static_trips(loop)
    if trips == 0:
        return
    if trips is not None:
        results = emit_rotated(emit, loop, plan)
    else:
        some = emit.value(arith.CmpiOp(loop.lb, loop.ub, "slt"))
        filled, empty = Block(), Block()
        inner = emit.inside(filled)
        inner(scf.YieldOp(*emit_rotated(inner, loop, plan)))
        emit.inside(empty)(scf.YieldOp(*loop.iter_args))
        types = [result.type for result in loop.results]
        results = list(emit(scf.IfOp(some, types, Region(filled), Region(empty))).results)
    for old, new in zip(loop.results, results, strict=True):
        new.name_hint = new.name_hint or old.name_hint
        old.replace_all_uses_with(new)
    loop.detach()
    loop.erase()


def static_trips(loop: scf.ForOp) -> int | None:
    """How often the body runs, or None."""
    bounds = [constant(v) for v in (loop.lb, loop.ub, loop.step)]
    if None in bounds:
        return None
    lower, upper, step = (b for b in bounds if b is not None)
    return max(-(-(upper - lower) // step), 0)


def emit_rotated(emit: Emitter, loop: scf.ForOp, plan: Rotation) -> list[SSAValue]:
    """The three parts; the values of the loop's results."""
    old = loop.body.block
    first: dict[SSAValue, SSAValue] = dict(zip(old.args, [loop.lb, *loop.iter_args], strict=True))
    copy(emit, plan.head, first)
    later = plan.used_later
    # What only the head reads (the cursor) has been read by then: it is no longer carried.
    kept = [argument for argument in old.args[1:] if argument in later]
    carried: list[SSAValue] = [*kept, *(v for op in plan.head for v in op.results if v in later)]
    # ub - step: all iterations but the last. The guard, or the static bounds, make sure that there is a last one.
    short = emit.value(arith.SubiOp(loop.ub, loop.step))
    starts = [first[v] for v in carried]
    types: list[Attribute] = [v.type for v in starts]
    body = Block(arg_types=[loop.lb.type, *types])
    values: dict[SSAValue, SSAValue] = dict(zip((old.args[0], *carried), body.args, strict=True))
    for model, argument in zip((old.args[0], *carried), body.args, strict=True):
        argument.name_hint = model.name_hint
    inner = emit.inside(body)
    copy(inner, plan.middle, values)
    early = [values.get(v, v) for v in plan.yielded]
    following: dict[SSAValue, SSAValue] = dict(zip(old.args[1:], early, strict=True))
    if any(old.args[0] in operands_of(op) for op in plan.head):
        following[old.args[0]] = inner.value(arith.AddiOp(values[old.args[0]], loop.step))
    copy(inner, plan.head, following)
    copy(inner, plan.tail, values)
    ends: dict[SSAValue, SSAValue] = dict(zip(old.args[1:], plan.yielded, strict=True))
    inner(scf.YieldOp(*(values.get(ends[v], ends[v]) if v in ends else following[v] for v in carried)))
    new = emit(scf.ForOp(loop.lb, short, loop.step, starts, body))
    last: dict[SSAValue, SSAValue] = dict(zip(carried, new.results, strict=True))
    last[old.args[0]] = last_index(emit, loop)
    copy(emit, [*plan.middle, *plan.tail], last)
    return [last.get(v, v) for v in plan.yielded]


def last_index(emit: Emitter, loop: scf.ForOp) -> SSAValue:
    """lb + (trips - 1) * step, for a loop that runs."""
    kind = IndexType()
    trips, lower, step = static_trips(loop), constant(loop.lb), constant(loop.step)
    if trips is not None and lower is not None and step is not None:
        return emit.value(arith.ConstantOp.from_int_and_width(lower + (trips - 1) * step, kind))
    span = emit.value(arith.SubiOp(loop.ub, loop.lb))
    one = emit.value(arith.ConstantOp.from_int_and_width(1, kind))
    whole = emit.value(arith.DivUIOp(emit.value(arith.SubiOp(span, one)), loop.step))
    return emit.value(arith.AddiOp(loop.lb, emit.value(arith.MuliOp(whole, loop.step))))


def copy(emit: Emitter, ops: Sequence[Operation], values: dict[SSAValue, SSAValue]) -> None:
    """Clone ops in order; `values` maps old values to new ones and is extended."""
    for op in ops:
        emit.at(op)(op.clone(values))
