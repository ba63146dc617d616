"""`stagger-products`: what a product's operand is computed of is computed k-step by k-step, each under the product before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.traits import is_side_effect_free

from emmy.dialects import mma, tile
from emmy.dialects.common import MapKind, MapKindAttr, ReduceKind
from emmy.passes.emitter import Emitter


@dataclass(frozen=True)
class StaggerProducts(ModulePass):
    """Contract: rewrites products inside blocks of `tile.kernel` whose operand a is computed; results stay the same, but for
    the order in which a sum of columns is added up.

    Accepts any form of level 3 before `double-buffer-fragments`. By default it acts where the schedule says `stagger = 1`;
    `force` acts everywhere. It looks for an `mma.convert` to place a whose slices are the k-steps of products. What it is
    computed of column by column (maps, as far as nothing else needs them as a whole, and sums of them to R x n) is cut into
    the same slices.

    Guarantees: the parts of slice j + 1 stand before the product of slice j, those of the first before all; what depends on
    a sum stands behind its last part. Nothing else moves, and no loads or events do.

    Why: exponentials and products use different units, and a warp issues in order: only neighbours run at once.

    Before:                                        After:
        %p = mma.map exp2 %e                           %e0 = mma.slice %e at [0, 0]
        %l = mma.reduce sum %p                         %p0 = mma.map exp2 %e0
        %pa = mma.convert %p                           %l0 = mma.reduce sum %p0
        %a0 = mma.slice %pa at [0, 0]                  %a0 = mma.convert %p0
        %o0 = mma.mma %a0, %b0, %o                     (the same for %e1: %p1, %l1, %a1; %l = mma.map add %l0, %l1)
        %a1 = mma.slice %pa at [0, 16]                 %o0 = mma.mma %a0, %b0, %o
        %o1 = mma.mma %a1, %b1, %o0                    %o1 = mma.mma %a1, %b1, %o0
    """

    name = "stagger-products"
    force: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in [k for k in op.walk() if isinstance(k, tile.KernelOp)]:
            if self.force or (kernel.schedule is not None and kernel.schedule.data.stagger):
                for convert in [c for c in kernel.walk() if isinstance(c, mma.ConvertOp)]:
                    steps = steps_of(convert)
                    if len(steps) > 1:
                        Staggering(convert, steps).rewrite()


@dataclass(frozen=True)
class Step:
    """One k-step: a slice of the operand, and the product that takes it."""

    slice: mma.SliceOp
    product: mma.MmaOp

    @property
    def column(self) -> int:
        """Where the slice begins."""
        return int(self.slice.at.get_values()[1])

    @property
    def columns(self) -> int:
        """How many columns the slice has."""
        return self.slice.result.type.get_shape()[1]


def steps_of(convert: mma.ConvertOp) -> list[Step]:
    """The k-steps of an operand a in the order of their products, or nothing if it has other uses."""
    if convert.result.type.place.data != "a":
        return []
    found: list[Step] = []
    for use in convert.result.uses:
        cut = use.operation
        users = [u.operation for u in cut.results[0].uses] if isinstance(cut, mma.SliceOp) else []
        if not isinstance(cut, mma.SliceOp) or len(users) != 1 or not isinstance(users[0], mma.MmaOp):
            return []
        if users[0].parent is not convert.parent or cut.result.type.get_shape()[0] != rows_of(convert.result):
            return []
        found.append(Step(cut, users[0]))
    position = {op: number for number, op in enumerate(cast(Block, convert.parent).ops)}
    return sorted(found, key=lambda step: position[step.product])


def rows_of(value: SSAValue) -> int:
    """Rows of a fragment."""
    return cast(mma.FragmentType, value.type).get_shape()[0]


class Staggering:
    """The rewrite of one operand."""

    def __init__(self, convert: mma.ConvertOp, steps: Sequence[Step]):
        self.convert, self.steps = convert, steps
        self.block = cast(Block, convert.parent)
        self.columns = convert.result.type.get_shape()[1]
        self.chain: set[Operation] = set()
        self.sums: list[mma.ReduceOp] = []
        self.find_chain()

    def find_chain(self) -> None:
        """The maps that are cut, and the sums of them: backwards, so that all users of a map are decided before it."""
        chain: set[Operation] = {self.convert}
        for op in reversed(list(self.block.ops)):
            users = [use.operation for result in op.results for use in result.uses]
            if isinstance(op, mma.ReduceOp) and self.is_cut_sum(op):
                self.sums.append(op)
            elif isinstance(op, mma.MapOp) and op.result.type.get_shape()[1] == self.columns:
                wanted = [user for user in users if user not in self.sums]
                if wanted and all(user in chain for user in wanted):
                    chain.add(op)
        self.chain = chain - {self.convert}
        self.sums = [op for op in self.sums if op.arg.owner in self.chain]

    def is_cut_sum(self, op: mma.ReduceOp) -> bool:
        """A sum that can be added up part by part, and that no product waits for."""
        kept = op.result.type.get_shape()[1]
        whole = all(step.columns % kept == 0 for step in self.steps)
        return op.kind.data is ReduceKind.SUM and kept > 1 and whole and self.dependants(op) is not None

    def dependants(self, op: Operation) -> list[Operation] | None:
        """What of the block is computed from a value and can stand further down, or None if something cannot."""
        found: set[Operation] = set()
        work = [op]
        while work:
            for user in [use.operation for result in work.pop().results for use in result.uses]:
                if isinstance(user, scf.YieldOp):
                    continue
                movable = user.parent is self.block and is_side_effect_free(user) and not user.regions
                if not movable or isinstance(user, mma.MmaOp):
                    return None
                if user not in found:
                    found.add(user)
                    work.append(user)
        return [inner for inner in self.block.ops if inner in found]

    def rewrite(self) -> None:
        """Write the parts; drop what they replace."""
        depending = {op for total in self.sums for op in self.dependants(total) or ()}
        moved = [op for op in self.block.ops if op in depending]
        order = [op for op in self.block.ops if op in self.chain]
        totals: dict[mma.ReduceOp, SSAValue] = {}
        for number, step in enumerate(self.steps):
            anchor = self.convert if number == 0 else self.steps[number - 1].product
            self.write_part(step, order, totals, Emitter(self.block, self.convert, anchor))
        behind = self.steps[-2].product
        for op in moved:
            op.detach()
            self.block.insert_op_before(op, behind)
        for total, value in totals.items():
            total.result.replace_all_uses_with(value)
        for op in (*self.sums, self.convert, *reversed(order)):
            op.detach()
            op.erase()

    def write_part(
        self, step: Step, order: Sequence[Operation], totals: dict[mma.ReduceOp, SSAValue], emit: Emitter
    ) -> None:
        """What one slice of the operand is computed of."""
        part: dict[SSAValue, SSAValue] = {}
        for op in order:
            assert isinstance(op, mma.MapOp)
            args = [self.cut(arg, step, part, emit.at(op)) for arg in op.args]
            part[op.result] = emit.value(mma.MapOp(op.kind, args, self.narrow(op.result, step)))
            for total in self.sums:
                if total.arg is op.result:
                    self.add_up(total, part[op.result], totals, emit.at(total))
        source = self.cut(self.convert.arg, step, part, emit.at(self.convert))
        step.slice.result.replace_all_uses_with(emit.value(mma.ConvertOp(source, step.slice.result.type)))
        step.slice.detach()
        step.slice.erase()

    def add_up(self, total: mma.ReduceOp, part: SSAValue, totals: dict[mma.ReduceOp, SSAValue], emit: Emitter) -> None:
        """One more part of a sum."""
        type_ = total.result.type
        value = emit.value(mma.ReduceOp(total.kind, part, type_.get_shape()[1]))
        before = totals.get(total)
        add = MapKindAttr(MapKind.ADD)
        totals[total] = value if before is None else emit.value(mma.MapOp(add, [before, value], type_))

    def cut(self, value: SSAValue, step: Step, part: dict[SSAValue, SSAValue], emit: Emitter) -> SSAValue:
        """The columns of a step; statistics of rows and scalars as they are."""
        type_ = value.type
        if not isinstance(type_, mma.FragmentType) or type_.get_shape()[1] != self.columns:
            return value
        if value not in part:
            part[value] = emit.value(mma.SliceOp(value, (0, step.column), self.narrow(value, step)))
        return part[value]

    def narrow(self, value: SSAValue, step: Step) -> mma.FragmentType:
        """The type of a step's columns of a value."""
        type_ = cast(mma.FragmentType, value.type)
        shape = (type_.get_shape()[0], step.columns)
        return mma.FragmentType.get(shape, type_.element_type, type_.place.data, type_.atom.data)
