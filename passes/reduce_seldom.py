"""`reduce-seldom`: a row's maximum over lanes is taken only where some lane has a value that the maximum is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, f32, i1
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from emmy.dialects import mma, tile
from emmy.dialects.common import MapKind, MapKindAttr, ReduceKind
from emmy.passes.emitter import Emitter

LEFT = 8
"""Columns of a reduction within lanes: those of an atom, two of which each lane holds."""


@dataclass(frozen=True)
class ReduceSeldom(ModulePass):
    """Contract: puts reductions over lanes in bodies of loops behind a branch; results stay the same bit for bit.

    Accepts any form of level 3. By default it acts where the schedule says `seldom = 1`; `force` acts everywhere. It looks
    for a maximum of each row, times a positive scalar, that is taken where it is at least a limit of the row, and else what was
    (schedules with `lazy`).

    Guarantees: each lane compares the maxima of its own columns with the limit. Where no lane of the warp reaches one, no row
    does; else all is as before, behind an `scf.if` whose condition is uniform over the warp. Multiplication by a positive number
    and rounding keep the order. A NaN reaches no limit, before and after.

    Why: a lazy maximum stays in most iterations, and shuffles between products and exponentials are latency. At a depth of 256,
    where maxima pass through shared memory, 1 to 2 % of the time; at 64, where ptxas hides them, the branch costs 8 %.

    Before:                                  After:
        %m = mma.reduce max %x : 32x1            %part = mma.reduce max %x : 32x8
        %peak = mma.map mul %m, %unit            %high = mma.map mul %part, %unit
        %passed = mma.map ge %peak, %limit       %some = mma.any (mma.map ge %high, %limit)
        %n = mma.map select %passed, ..          %n = scf.if %some -> (..) {
               %peak, %top                         %m = mma.reduce max %part : 32x1 (and the rest as before)
                                                 } else {
                                                   scf.yield %top
                                                 }
    """

    name = "reduce-seldom"
    force: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in [k for k in op.walk() if isinstance(k, tile.KernelOp)]:
            if self.force or (kernel.schedule is not None and kernel.schedule.data.seldom):
                for inner in [i for i in kernel.walk() if isinstance(i, mma.ReduceOp)]:
                    taken = taken_of(inner)
                    if taken is not None:
                        guard(inner, taken)


def only_user(value: SSAValue, kind: MapKind) -> mma.MapOp | None:
    """The map of a kind that is the only one to use a value."""
    users = [use.operation for use in value.uses]
    return users[0] if len(users) == 1 and isinstance(users[0], mma.MapOp) and users[0].kind.data is kind else None


def taken_of(reduce: mma.ReduceOp) -> tuple[mma.MapOp, mma.MapOp, mma.MapOp] | None:
    """(product with the scalar, comparison, choice) of a maximum that is taken where it reaches a limit, in a loop's body."""
    columns = cast(mma.FragmentType, reduce.arg.type).get_shape()[1]
    whole = reduce.result.type.get_shape()[1] == 1 and columns > LEFT and columns % LEFT == 0
    if not whole or reduce.kind.data is not ReduceKind.MAX or not isinstance(reduce.parent_op(), scf.ForOp):
        return None
    peak = only_user(reduce.result, MapKind.MUL)
    if peak is None or peak.args[0] is not reduce.result or peak.args[1].type != f32 or not is_positive(peak.args[1]):
        return None
    passed = next((u for u in users_of(peak) if isinstance(u, mma.MapOp) and u.kind.data is MapKind.GE), None)
    choice = None if passed is None else only_user(passed.result, MapKind.SELECT)
    if passed is None or choice is None or set(users_of(peak)) != {passed, choice} or passed.args[0] is not peak.result:
        return None
    return (peak, passed, choice) if choice.args[1] is peak.result and choice.args[2] is not peak.result else None


def users_of(op: mma.MapOp) -> list[Operation]:
    """Who takes an op's result."""
    return [use.operation for use in op.result.uses]


def is_positive(value: SSAValue) -> bool:
    """Is a scalar a constant above 0?"""
    owner = value.owner
    number = owner.properties.get("value") if isinstance(owner, Operation) and owner.name == "arith.constant" else None
    return number is not None and getattr(number, "value").data > 0


def guard(reduce: mma.ReduceOp, taken: tuple[mma.MapOp, mma.MapOp, mma.MapOp]) -> None:
    """Put one maximum behind a branch, where the choice was."""
    peak, passed, choice = taken
    block = cast(Block, choice.parent)
    emit = Emitter(block, reduce, choice)
    part = emit.value(mma.ReduceOp(reduce.kind, reduce.arg, LEFT))
    type_ = cast(mma.FragmentType, part.type)
    flags = mma.FragmentType.get(type_.get_shape(), i1, type_.place.data, type_.atom.data)
    high = emit.value(mma.MapOp(peak.kind, [part, peak.args[1]], type_))
    some = emit.value(mma.AnyOp(emit.value(mma.MapOp(MapKindAttr(MapKind.GE), [high, passed.args[1]], flags))))
    old = choice.args[2]
    grown, kept = Block(), Block()
    branch = emit(scf.IfOp(some, [choice.result.type], Region(grown), Region(kept)))
    branch.results[0].name_hint = choice.result.name_hint
    choice.result.replace_all_uses_with(branch.results[0])
    reduce.operands[0] = part
    for op in (reduce, peak, passed, choice):
        op.detach()
        grown.add_op(op)
    emit.inside(grown)(scf.YieldOp(choice.result))
    emit.inside(kept)(scf.YieldOp(old))
