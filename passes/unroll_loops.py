"""`unroll-loops`: several steps of a main loop in one body, so that the slots of its rings are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, ModuleOp, i1, i64
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from emmy.dialects import async_copy, mma, tile
from emmy.dialects.common import constant
from emmy.errors import EmmyError
from emmy.passes.emitter import Emitter

UNROLLED = "emmy.unrolled"
"""Attribute of a `tile.kernel`: how many steps of its main loops are in one body."""

LESS_THAN = (2, 6)
"""`slt` and `ult` among the predicates of `arith.cmpi`; sizes are never negative."""


@dataclass(frozen=True)
class UnrollLoops(ModulePass):
    """Contract: a main loop becomes one of `factor` steps a body and one for the steps that are left; nothing else changes,
    and the order of events stays what it was.

    Acts on innermost loops of placed and lowered kernels that take slots and compute products. `factor` comes from the
    schedule (`unroll`) where it is not given; 1 leaves the loop alone. Guarantees: conditions `k + c < bound` of the loop
    ("is there more to copy?") hold in every step of the unrolled body and are gone from it; the remainder loop has them. A loop
    that is known not to fill one body stays as it is. A kernel that has been through this says so (`emmy.unrolled`, the factor)
    and is left alone, so that text that was printed after this pass compiles to what it would have become.

    Why: where the factor is a multiple of the stages, the slot of each step is known when `lower-to-ptx` meets it, and
    addresses are immediates; only the phase is carried.

    Before:                                             After, with factor 2:
        scf.for %k = %lb to %ub step %s iter_args(..) {     %end = .. // whole pairs of steps in which %k + %ahead < %K
          %more = arith.cmpi ult, %k + %ahead, %K           %0 = scf.for %k = %lb to %end step 2*%s iter_args(..) {
          scf.if %more { .. }                                 ..; ..
          ..                                                }
        }                                                   scf.for %k = %end to %ub step %s iter_args(%0) { as before }
    """

    name = "unroll-loops"
    factor: int | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.factor is not None and self.factor < 1:
            raise EmmyError(f"unroll-loops puts 1 or more steps into a body, got {self.factor}")
        for kernel in list(op.walk()):
            if isinstance(kernel, tile.KernelOp):
                scheduled = kernel.schedule.data.unroll if kernel.schedule else 1
                factor = scheduled if self.factor is None else self.factor
                if factor == 1 or UNROLLED in kernel.attributes:
                    continue
                kernel.attributes[UNROLLED] = IntegerAttr(factor, i64)
                for loop in [o for o in kernel.walk() if isinstance(o, scf.ForOp)]:
                    if is_main_loop(loop):
                        unroll(loop, factor)


def is_main_loop(loop: scf.ForOp) -> bool:
    """Does a loop take slots and compute products, without a loop inside, in steps of known size?"""
    inner = [op for op in loop.body.walk() if op is not loop]
    kinds = async_copy.SlotOp, mma.MmaOp | mma.IssueOp, scf.ForOp
    has = [any(isinstance(op, kind) for op in inner) for kind in kinds]
    return has == [True, True, False] and constant(loop.step) is not None and isinstance(loop.lb.type, IndexType)


@dataclass(frozen=True)
class Condition:
    """`k + ahead < bound` for the loop's counter k; `bound` and `ahead` are known before the loop (None: 0)."""

    op: arith.CmpiOp
    ahead: SSAValue | None
    bound: SSAValue


def conditions(loop: scf.ForOp) -> list[Condition]:
    """The conditions of a loop that hold in its first steps and then no longer."""
    counter, body = loop.body.block.args[0], loop.body.block
    found: list[Condition] = []
    for op in body.ops:
        if not isinstance(op, arith.CmpiOp) or op.predicate.value.data not in LESS_THAN or not before(loop, op.rhs):
            continue
        ahead: SSAValue | None = None
        if op.lhs is not counter:
            total = op.lhs.owner
            if not isinstance(total, arith.AddiOp) or counter not in total.operands:
                continue
            ahead = total.rhs if total.lhs is counter else total.lhs
            if not before(loop, ahead):
                continue
        found.append(Condition(op, ahead, op.rhs))
    return found


def before(loop: scf.ForOp, value: SSAValue) -> bool:
    """Is a value made outside of a loop?"""
    block: Block | None = value.owner.parent_block() if isinstance(value.owner, Operation) else value.owner
    while block is not None and block is not loop.body.block:
        block = block.parent_block()
    return block is None


def unroll(loop: scf.ForOp, factor: int) -> None:
    """Replace a loop by the unrolled one and what is left."""
    block, step = loop.parent, constant(loop.step)
    assert isinstance(block, Block)
    assert step is not None
    holding, emit = conditions(loop), Emitter(block, loop, loop)
    numbers = [
        constant(v) for v in (loop.lb, loop.ub, *(v for c in holding for v in (c.ahead, c.bound) if v is not None))
    ]
    if None in numbers:
        end = run_time_end(emit, loop, holding, factor * step)
        left = None
    else:
        known = static_end(loop, holding, factor * step)
        if known == numbers[0]:
            return
        end, left = index(emit, known), known < (numbers[1] or 0)
    old = loop.body.block
    body = Block(arg_types=[a.type for a in old.args])
    for argument, new in zip(old.args, body.args, strict=True):
        new.name_hint = argument.name_hint
    inner = emit.inside(body)
    carried: Sequence[SSAValue] = body.args[1:]
    holds = inner(arith.ConstantOp.from_int_and_width(1, i1)) if holding else None
    true = holds.result if holds is not None else None
    for number in range(factor):
        counter: SSAValue = body.args[0]
        if number:
            counter = inner.value(arith.AddiOp(counter, index(inner, number * step)))
        carried = one_step(inner, loop, [counter, *carried], {c.op for c in holding}, true)
    inner.at(loop)(scf.YieldOp(*carried))
    if holds is not None and not any(True for _ in holds.result.uses):
        body.erase_op(holds)
    main = emit.at(loop)(scf.ForOp(loop.lb, end, index(emit, factor * step), loop.iter_args, body))
    if left is False:
        for result, new in zip(loop.results, main.results, strict=True):
            result.replace_all_uses_with(new)
        loop.detach()
        loop.erase()
        return
    loop.operands = [end, loop.ub, loop.step, *main.results]


def index(emit: Emitter, number: int) -> SSAValue:
    """A constant"""
    return emit.value(arith.ConstantOp.from_int_and_width(number, IndexType()))


def static_end(loop: scf.ForOp, holding: Sequence[Condition], stride: int) -> int:
    """Where the unrolled loop ends."""

    def known(value: SSAValue | None) -> int:
        return (constant(value) or 0) if value is not None else 0

    first = known(loop.lb)
    limit = min(known(loop.ub), *(known(c.bound) - known(c.ahead) for c in holding), known(loop.ub))
    return first + max(limit - first, 0) // stride * stride


def run_time_end(emit: Emitter, loop: scf.ForOp, holding: Sequence[Condition], stride: int) -> SSAValue:
    """The same as operations."""
    limit = loop.ub
    for condition in holding:
        bound = condition.bound
        if condition.ahead is not None:
            bound = emit.value(arith.SubiOp(bound, condition.ahead))
        limit = emit.value(arith.MinSIOp(limit, bound))
    span = emit.value(arith.MaxSIOp(emit.value(arith.SubiOp(limit, loop.lb)), index(emit, 0)))
    whole = index(emit, stride)
    bodies = emit.value(arith.DivUIOp(span, whole))
    return emit.value(arith.AddiOp(loop.lb, emit.value(arith.MuliOp(bodies, whole))))


def one_step(
    emit: Emitter, loop: scf.ForOp, args: Sequence[SSAValue], hold: set[arith.CmpiOp], true: SSAValue | None
) -> list[SSAValue]:
    """The body of a loop once more, for these arguments; the values that it yields."""
    old = loop.body.block
    values: dict[SSAValue, SSAValue] = dict(zip(old.args, args, strict=True))
    yielded = copy_block(emit, old, values, hold, true)
    return [values.get(v, v) for v in yielded]


def copy_block(
    emit: Emitter, block: Block, values: dict[SSAValue, SSAValue], hold: set[arith.CmpiOp], true: SSAValue | None
) -> Sequence[SSAValue]:
    """Clone a block's ops but its yield, whose operands are given back; what depends on a condition that holds is done."""
    for op in block.ops:
        emit.at(op)
        if op in hold and true is not None:
            values[op.results[0]] = true
        elif isinstance(op, scf.IfOp) and values.get(op.cond) is true and true is not None:
            inner = copy_block(emit, op.true_region.block, values, hold, true)
            values.update(zip(op.results, [values.get(v, v) for v in inner], strict=True))
        elif isinstance(op, scf.YieldOp):
            return op.operands
        elif isinstance(op, UNCONDITIONAL) and op.predicate is not None and values.get(op.predicate) is true:
            new = emit(type(op)(values.get(op.cursor, op.cursor)))
            for old_result, result in zip(op.results, new.results, strict=True):
                result.name_hint = old_result.name_hint
                values[old_result] = result
        else:
            emit(op.clone(values))
    return ()


UNCONDITIONAL = (async_copy.SlotOp, async_copy.WaitEmptyOp)
"""Events whose predicate goes away where it holds."""
