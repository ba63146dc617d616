"""Masks of a loop: selects whose conditions compare coordinates that move with the loop's variable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from xdsl.dialects import arith, scf
from xdsl.ir import Operation, SSAValue

from emmy.dialects import mma
from emmy.dialects.common import constant
from emmy.passes.linear_forms import IndexSums, LinearForm, linear_form

HIDDEN_IS_IDENTITY = "emmy.hidden_is_identity"
"""Attribute of a loop: an iteration in which one of its masks is false everywhere leaves what it carries as it is."""

NEEDS_MASKS = "emmy.needs_masks"
"""Attribute of a loop that has been split off: its masks stay."""


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

    def together(self, warps: int, do: IndexSums) -> Mask:
        """The margin of all elements of so many warps, of which this one is: with the first one's number, written by `do`."""
        form, largest = self.rest, dict[SSAValue, int]()
        for warp, most in self.warps.items():
            first = do.scaled(do.emit.value(arith.DivUIOp(warp, do.number(warps))), warps)
            form = form.substitute(warp, LinearForm({first: 1}, 0, warps - 1))
            largest[first] = most - (warps - 1)
        return replace(self, rest=form, warps=largest)

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


# ---- where masks begin and end ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Edges:
    """Where all masks of a loop are true (or may be): from the value `start` of its variable to before `end`. None: no edge."""

    start: SSAValue | None
    end: SSAValue | None


def edges_of_all_warps(masks: Sequence[Mask], do: IndexSums) -> Edges:
    """Where every mask is true for all elements of all warps."""
    rising = [do.total(m.of_all_warps.times(-1), -m.of_all_warps.low) for m in masks if m.direction == 1]
    falling = [do.total(m.of_all_warps, m.of_all_warps.low + 1) for m in masks if m.direction == -1]
    return Edges(_outermost(rising, do.most), _outermost(falling, do.least))


def edges_of_sight(loop: scf.ForOp, masks: Sequence[Mask], do: IndexSums) -> Edges:
    """Where no mask is false for all elements of this warp; edges that a loop does not reach are left out."""
    rising = [do.total(m.rest.times(-1), -m.rest.high) for m in masks if m.direction == 1]
    reached = [
        m for m in masks if m.direction == -1 and not is_bound(loop.ub, m.rest.shifted(m.rest.high - m.rest.low + 1))
    ]
    falling = [do.total(m.rest, m.rest.high + 1) for m in reached]
    return Edges(_outermost(rising, do.most), _outermost(falling, do.least))


def edges_of_warp(masks: Sequence[Mask], do: IndexSums) -> Edges:
    """Where every mask is true for all elements of this warp."""
    rising = [do.total(m.rest.times(-1), -m.rest.low) for m in masks if m.direction == 1]
    falling = [do.total(m.rest, m.rest.low + 1) for m in masks if m.direction == -1]
    return Edges(_outermost(rising, do.most), _outermost(falling, do.least))


def _outermost(values: Sequence[SSAValue], choose: Callable[[SSAValue, SSAValue], SSAValue]) -> SSAValue | None:
    return reduce(choose, values) if values else None


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
