"""`skip-unit-factors`: sums that a loop carries are multiplied by factors of rows only where one of the factors is not 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import FloatAttr, ModuleOp, f32, i1
from xdsl.ir import Block, BlockArgument, Region, SSAValue
from xdsl.passes import ModulePass

from emmy.dialects import mma, tile
from emmy.dialects.common import MapKind, MapKindAttr
from emmy.passes.emitter import Emitter

POWERS = (MapKind.EXP2, MapKind.EXP)
"""Of 0 they are exactly 1."""


@dataclass(frozen=True)
class SkipUnitFactors(ModulePass):
    """Contract: puts multiplications in bodies of loops behind a branch; results stay the same bit for bit.

    Accepts any form of level 3. By default it acts where the schedule's `lazy` is not 0; `force` acts everywhere. It looks
    for `mma.map mul` of an f32 fragment that the loop carries by a factor for each row.

    Guarantees: the multiplication is in an `scf.if` whose condition is uniform over the warp: some factor of this warp's rows
    is not 1, or where a maximum may have grown in a branch (`reduce-seldom`), that branch's. A product by 1 is what it was, so
    nothing else changes.

    Why: running maxima seldom grow, and least so where small growth is let be; the sums are a quarter of a warp's arithmetic.

    Before:                                After:
        %r = mma.map mul %sums, %kept          %moved = mma.map ne %kept, %one : (.., f32) -> !mma.fragment<32x1xi1, ..>
                                               %some = mma.any %moved
                                               %r = scf.if %some -> (..) {
                                                 %s = mma.map mul %sums, %kept
                                                 scf.yield %s
                                               } else {
                                                 scf.yield %sums
                                               }
    """

    name = "skip-unit-factors"
    force: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in [k for k in op.walk() if isinstance(k, tile.KernelOp)]:
            if self.force or (kernel.schedule is not None and kernel.schedule.data.lazy):
                for product in [inner for inner in kernel.walk() if is_scaling(inner)]:
                    guard(cast(mma.MapOp, product))


def is_scaling(op: object) -> bool:
    """Is this the product of what a loop carries and a factor for each row?"""
    if not isinstance(op, mma.MapOp) or op.kind.data is not MapKind.MUL or not isinstance(op.parent_op(), scf.ForOp):
        return False
    sums, factor = (arg.type for arg in op.args)
    if not isinstance(sums, mma.FragmentType) or not isinstance(factor, mma.FragmentType):
        return False
    first = op.args[0]
    carried = isinstance(first, BlockArgument) and first.owner is op.parent
    rows, columns = sums.get_shape()
    whole = sums == op.result.type and sums.element_type == factor.element_type == f32
    return carried and whole and columns > 1 and factor.get_shape() == (rows, 1)


def condition_of(factor: SSAValue) -> SSAValue | None:
    """The condition without which no factor can differ from 1: they are 2 (or e) to the difference of what was and what a branch
    may have left as it was."""
    power = factor.owner
    fallen = power.args[0].owner if isinstance(power, mma.MapOp) and power.kind.data in POWERS else None
    if not isinstance(fallen, mma.MapOp) or fallen.kind.data is not MapKind.ADD:
        return None
    before, negated = fallen.args[0], fallen.args[1].owner
    branch = negated.args[0].owner if isinstance(negated, mma.MapOp) and negated.kind.data is MapKind.NEG else None
    if not isinstance(branch, scf.IfOp) or len(branch.results) != 1 or branch.parent is not power.parent:
        return None
    last = branch.false_region.block.last_op
    return branch.cond if isinstance(last, scf.YieldOp) and last.operands[0] is before else None


def some_is_not_one(factor: SSAValue, emit: Emitter) -> SSAValue:
    """Whether some factor of this warp differs from 1."""
    type_ = cast(mma.FragmentType, factor.type)
    flags = mma.FragmentType.get(type_.get_shape(), i1, type_.place.data, type_.atom.data)
    one = emit.value(arith.ConstantOp(FloatAttr(1.0, f32)))
    return emit.value(mma.AnyOp(emit.value(mma.MapOp(MapKindAttr(MapKind.NE), [factor, one], flags))))


def guard(product: mma.MapOp) -> None:
    """Put one multiplication behind a branch."""
    block = cast(Block, product.parent)
    emit = Emitter(block, product, product)
    sums, factor = product.args
    some = condition_of(factor) or some_is_not_one(factor, emit)
    taken, kept = Block(), Block()
    branch = scf.IfOp(some, [product.result.type], Region(taken), Region(kept))
    branch.results[0].name_hint = product.result.name_hint
    emit(branch)
    product.result.replace_all_uses_with(branch.results[0])
    product.detach()
    taken.add_op(product)
    emit.inside(taken)(scf.YieldOp(product.result))
    emit.inside(kept)(scf.YieldOp(sums))
