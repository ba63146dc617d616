"""`split-masks`: a loop with masks becomes iterations that need them and iterations that do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.traits import is_side_effect_free

from emmy.dialects import async_copy as ac
from emmy.dialects import mma
from emmy.passes.constants import constant
from emmy.passes.emitter import Emitter
from emmy.passes.linear_forms import IndexSums, LinearForm, linear_form
from emmy.passes.protocol import is_cursor

HIDDEN_IS_IDENTITY = "emmy.hidden_is_identity"
"""Attribute of a loop: an iteration in which one of its masks is false everywhere leaves what it carries as it is."""

NEEDS_MASKS = "emmy.needs_masks"
"""Attribute of a loop that has been split off: its masks stay."""


@dataclass(frozen=True)
class SplitMasks(ModulePass):
    """Contract: loops of `async_copy.consumer`s are split where their masks begin and end; no result changes, bit for bit.

    A *mask* is a `mma.map select` whose condition compares coordinates (`mma.coord`, and sums of them) that move with the
    loop's variable by 1 a step of 1. Accepts canonical level 3. Loops without masks, or whose step is no constant, stay, as do
    masked loops that this pass made (`emmy.needs_masks`).

    Guarantees: the loop becomes up to three with the same iterations in the same order: masked, free, masked. In the free one
    every mask is known to be true for all warps, and is gone with what only it needed; so all warps split alike, and
    barriers meet. Bounds are index arithmetic before the loops; any of them may run not at all. The producer's loop stays one.

    Where the loop says `emmy.hidden_is_identity`, masked bodies wait first and release last, and compute in between only if
    each mask may be true somewhere in this warp's rows: one comparison of index values, uniform over the warp.

    Before:                                                   After:
        scf.for %j = %lo to %hi step %c64 .. {                    scf.for %j = %lo to %b step %c64 .. {
          wait @k; .. %s ..; release @k                             wait @k; .. %s .. uses of %s; release @k; ..
          %key = mma.coord 1 from %j                              }
          %seen = mma.map ge %pos, %key                           scf.for %j = %b to %hi step %c64 .. {
          %x = mma.map select %seen, %s, %hidden                    wait @k; wait @v
          .. uses of %x                                             %sees = arith.cmpi sle, %j, %last
        } {emmy.hidden_is_identity}                                 scf.if %sees -> .. { as before } else { what is carried }
                                                                    release @k; release @v
                                                                  }
    """

    name = "split-masks"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for consumer in list(op.walk()):
            if isinstance(consumer, ac.ConsumerOp):
                for loop in [inner for inner in consumer.walk() if isinstance(inner, scf.ForOp)]:
                    masks = masks_of(loop)
                    if masks:
                        split(loop, masks)


@dataclass(frozen=True)
class Mask:
    """A select whose condition is true where `margin` is not negative.

    margin: of all elements of this warp; `direction` is 1 or -1, the factor of the loop's variable in it, and `rest` is the
    margin without that. `warps`: the warp coordinates in it, with their largest values.
    """

    select: mma.MapOp
    direction: int
    rest: LinearForm
    warps: dict[SSAValue, int]

    @property
    def of_all_warps(self) -> LinearForm:
        """The margin over all warps, without the loop's variable."""
        form = self.rest
        for warp, most in self.warps.items():
            form = form.spread(warp, most)
        return form


def masks_of(loop: scf.ForOp) -> list[Mask]:
    """The masks of a loop's body, in order; none where the loop cannot be split."""
    step, variable = constant(loop.step), loop.body.block.args[0]
    if step is None or step < 1 or NEEDS_MASKS in loop.attributes:
        return []

    def interesting(value: SSAValue) -> bool:
        return value is variable or isinstance(value.owner, mma.WarpOp)

    found: list[Mask] = []
    for op in loop.body.block.ops:
        if not isinstance(op, mma.MapOp) or op.kind.data.value != "select":
            continue
        condition = op.args[0].owner
        if not isinstance(condition, mma.MapOp) or condition.kind.data.value not in ("ge", "lt"):
            continue
        sides = [linear_form(arg, interesting) for arg in condition.args]
        if (
            sides[0] is None
            or sides[1] is None
            or not any(isinstance(a.type, mma.FragmentType) for a in condition.args)
        ):
            continue
        margin = sides[0].minus(sides[1]) if condition.kind.data.value == "ge" else sides[1].minus(sides[0]).shifted(-1)
        direction, rest = margin.terms.get(variable, 0), margin.without(variable)
        if direction in (1, -1) and not any(is_inside(value, loop) for value in rest.terms):
            warps = {v: v.owner for v in rest.terms if isinstance(v.owner, mma.WarpOp)}
            largest = {v: owner.get_grid()[owner.axis.value.data] - 1 for v, owner in warps.items()}
            found.append(Mask(op, direction, rest, largest))
    return found


def is_inside(value: SSAValue, loop: scf.ForOp) -> bool:
    """Is a value made in a loop?"""
    block = value.owner.parent_block() if isinstance(value.owner, Operation) else value.owner
    return block is not None and loop.body.is_ancestor(block)


# ---- the three loops -------------------------------------------------------------------------------------------------


def split(loop: scf.ForOp, masks: Sequence[Mask]) -> None:
    """Replace a loop by a masked, a free and a masked one; those that cannot exist are left out."""
    block, step = loop.parent, constant(loop.step)
    assert isinstance(block, Block)
    assert step is not None
    emit = Emitter(block, loop, loop)
    do = IndexSums(emit)
    trips = do.steps(do.subtract(loop.ub, loop.lb), step)
    # Rising masks (+1) are true from some iteration on, falling ones (-1) up to some iteration.
    rising = [do.total(m.of_all_warps.times(-1), -m.of_all_warps.low) for m in masks if m.direction == 1]
    falling = [do.total(m.of_all_warps, m.of_all_warps.low + 1) for m in masks if m.direction == -1]
    first, last = do.number(0), trips
    if rising:
        start = rising[0]
        for other in rising[1:]:
            start = do.most(start, other)
        first = do.least(do.steps(do.subtract(start, loop.lb), step), trips)
    if falling:
        end = falling[0]
        for other in falling[1:]:
            end = do.least(end, other)
        last = do.most(do.least(do.steps(do.subtract(end, loop.lb), step), trips), first)
    free_from = do.add(loop.lb, do.scaled(first, step)) if rising else loop.lb
    free_to = do.add(loop.lb, do.scaled(last, step)) if falling else loop.ub
    sees = tests_of_warp(loop, masks, do)
    carried: Sequence[SSAValue] = loop.iter_args
    if rising:
        carried = emit(masked_loop(loop, loop.lb, free_from, carried, sees)).results
    carried = emit(free_loop(loop, free_from, free_to, carried, masks)).results
    if falling:
        carried = emit(masked_loop(loop, free_to, loop.ub, carried, sees)).results
    for old, new in zip(loop.results, carried, strict=True):
        new.name_hint = old.name_hint
        old.replace_all_uses_with(new)
    loop.detach()
    loop.erase()


def copy_of(loop: scf.ForOp, lb: SSAValue, ub: SSAValue, carried: Sequence[SSAValue]) -> scf.ForOp:
    """A loop with the same body over other iterations."""
    body = Block(arg_types=[arg.type for arg in loop.body.block.args])
    values: dict[SSAValue, SSAValue] = dict(zip(loop.body.block.args, body.args, strict=True))
    for old, new in zip(loop.body.block.args, body.args, strict=True):
        new.name_hint = old.name_hint
    for op in loop.body.block.ops:
        body.add_op(op.clone(values))
    new = scf.ForOp(lb, ub, loop.step, list(carried), body)
    new.attributes = {name: value for name, value in loop.attributes.items() if name != HIDDEN_IS_IDENTITY}
    return new


def free_loop(
    loop: scf.ForOp, lb: SSAValue, ub: SSAValue, carried: Sequence[SSAValue], masks: Sequence[Mask]
) -> scf.ForOp:
    """Iterations in which all masks are true: without them."""
    places = {op: number for number, op in enumerate(loop.body.block.ops)}
    new = copy_of(loop, lb, ub, carried)
    ops = list(new.body.block.ops)
    for mask in masks:
        select = ops[places[mask.select]]
        select.results[0].replace_all_uses_with(select.operands[1])
    for op in reversed(ops):
        if op.results and all(result.first_use is None for result in op.results) and is_side_effect_free(op):
            op.detach()
            op.erase()
    return new


def masked_loop(
    loop: scf.ForOp, lb: SSAValue, ub: SSAValue, carried: Sequence[SSAValue], sees: Sequence[Test]
) -> scf.ForOp:
    """Iterations in which masks may be false; they are skipped by warps that see nothing."""
    new = copy_of(loop, lb, ub, carried)
    new.attributes[NEEDS_MASKS] = UnitAttr()
    if sees and can_skip(new):
        skip_unless(new, sees)
    return new


# ---- iterations that a warp may skip ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Test:
    """`j <= limit` (sle) or `j >= limit` (sge) for the loop's variable j."""

    predicate: str
    limit: SSAValue


def tests_of_warp(loop: scf.ForOp, masks: Sequence[Mask], do: IndexSums) -> list[Test]:
    """When this warp sees anything: all of the tests hold. Empty where it may not skip, or where it always sees something."""
    if HIDDEN_IS_IDENTITY not in loop.attributes:
        return []
    tests: list[Test] = []
    for mask in masks:
        if mask.direction == 1:
            tests.append(Test("sge", do.total(mask.rest.times(-1), -mask.rest.high)))
        elif not is_bound(loop.ub, mask.rest.shifted(mask.rest.high - mask.rest.low + 1)):
            tests.append(Test("sle", do.total(mask.rest, mask.rest.high)))
    return tests


def is_bound(bound: SSAValue, form: LinearForm) -> bool:
    """Is it clear that a loop ends where `form` (from its low end) does, or before?"""
    known = constant(bound)
    if known is not None:
        return not form.terms and known <= form.low
    if form.terms == {bound: 1} and form.low >= 0:
        return True
    owner = bound.owner
    if isinstance(owner, arith.MaxSIOp):  # a range that is never negative
        return all(is_bound(side, form) or constant(side) == 0 for side in owner.operands)
    return isinstance(owner, arith.MinSIOp | arith.MinUIOp) and any(is_bound(side, form) for side in owner.operands)


def can_skip(loop: scf.ForOp) -> bool:
    """Are waits and releases of slots all that a body does beside computing? Waits can then come first, releases last."""
    return all(
        isinstance(op, ac.WaitOp | ac.ReleaseOp | mma.LoadOp | scf.YieldOp) or is_side_effect_free(op)
        for op in loop.body.block.ops
    ) and all(is_cursor(arg) or isinstance(arg.type, mma.FragmentType) for arg in loop.body.block.args[1:])


def skip_unless(loop: scf.ForOp, tests: Sequence[Test]) -> None:
    """Put all that a body computes under the condition that all tests hold."""
    block = loop.body.block
    ops = list(block.ops)
    last = ops.pop()
    waits = [op for op in ops if isinstance(op, ac.WaitOp)]
    releases = [op for op in ops if isinstance(op, ac.ReleaseOp)]
    work = [op for op in ops if op not in waits and op not in releases]
    for op in (*ops, last):
        op.detach()
    emit = Emitter(block, loop)
    for wait in waits:
        emit(wait)
    conditions = [emit.value(arith.CmpiOp(block.args[0], test.limit, test.predicate)) for test in tests]
    sees = conditions[0]
    for condition in conditions[1:]:
        sees = emit.value(arith.AndIOp(sees, condition))
    taken, skipped = Block(), Block()
    for op in work:
        taken.add_op(op)
    computed = [n for n, value in enumerate(last.operands) if isinstance(value.type, mma.FragmentType)]
    Emitter(taken, last)(scf.YieldOp(*(last.operands[n] for n in computed)))
    Emitter(skipped, last)(scf.YieldOp(*(block.args[n + 1] for n in computed)))
    types = [last.operands[n].type for n in computed]
    chosen = emit(scf.IfOp(sees, types, Region(taken), Region(skipped)))
    for release in releases:
        emit(release)
    ends = list(last.operands)
    for n, result in zip(computed, chosen.results, strict=True):
        result.name_hint = ends[n].name_hint
        ends[n] = result
    emit.at(last)(scf.YieldOp(*ends))
    last.erase()
