"""How far a box of a kernel of level 2 may reach, from what the IR proves."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import cast

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import DenseArrayBase, i64
from xdsl.ir import Block, Operation, SSAValue

from emmy.dialects import tile
from emmy.dialects.common import DYNAMIC, constant
from emmy.passes.alignment import divisor

OVERRUNS = "emmy.overruns"
"""Attribute of a kernel: the arguments whose boxes may pass the end although the size is a multiple of the box's."""

OUTER_OVERRUNS = "emmy.outer_overruns"
"""Attribute of a kernel: the arguments whose boxes may lie past the end of a dimension before the last two."""


def greatest(value: SSAValue) -> int | None:
    """The greatest value that an index (never negative) provably has, or None."""
    known = constant(value)
    if known is not None:
        return known
    owner = value.owner
    if isinstance(owner, Block):
        loop = owner.parent_op()
        if not isinstance(loop, scf.ForOp) or value is not owner.args[0]:
            return None
        return _last_multiple(greatest(loop.ub), divisor(value))
    if isinstance(owner, tile.GridOp):
        axis = list(owner.offsets).index(value)  # pyright: ignore[reportArgumentType]
        return _last_multiple(greatest(owner.extents[axis]), owner.get_blocks()[axis])
    return _of_parts(owner, [greatest(operand) for operand in owner.operands])


def _of_parts(owner: Operation, parts: list[int | None]) -> int | None:
    """The same for the result of an op, from what its operands have at most."""
    if isinstance(owner, arith.MinUIOp | arith.MinSIOp):
        return min((part for part in parts if part is not None), default=None)
    if isinstance(owner, arith.SelectOp):
        parts = parts[1:]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    match owner:
        case arith.AddiOp():
            return sum(known)
        case arith.MuliOp():
            return prod(known)
        case arith.MaxUIOp() | arith.MaxSIOp() | arith.SelectOp():
            return max(known)
        case arith.SubiOp():
            return known[0]
        case arith.DivUIOp():
            return known[0] // (constant(owner.rhs) or 1)
        case arith.RemUIOp():
            return min(known[0], known[1] - 1)
        case _:
            return None


def _divisor_of_remainder(owner: arith.SubiOp) -> int | None:
    """c, where an op is what x - x / c * c is: the remainder by c."""
    product = owner.rhs.owner
    if not isinstance(product, arith.MuliOp):
        return None
    for quotient, factor in ((product.lhs, product.rhs), (product.rhs, product.lhs)):
        division, by = quotient.owner, constant(factor)
        if isinstance(division, arith.DivUIOp) and division.lhs is owner.lhs and by and constant(division.rhs) == by:
            return by
    return None


def _last_multiple(end: int | None, step: int) -> int | None:
    """The last multiple of `step` below `end`; 0 stands for a value that is 0."""
    if end is None:
        return None
    return max(end - 1, 0) // step * step if step else 0


def note_overruns(kernel: tile.KernelOp) -> None:
    """Write `emmy.overruns` and `emmy.outer_overruns` on a kernel of level 2, if there are any.

    A box begins at a multiple of its extent, so that it lies inside a view whose size is one too, if the offset stays below
    the size: as it does where the loop or the grid ends there, and as it need not where the text says otherwise. Outer offsets
    that come from memory (pages of keys) are what the caller says they are.
    """
    arguments: list[SSAValue] = list(kernel.block.args)
    found, outer = set[int](), set[int]()
    for op in kernel.walk():
        if isinstance(op, tile.LoadOp | tile.StoreOp):
            box = op.result if isinstance(op, tile.LoadOp) else op.value
            shape = cast(tile.TileType, box.type).get_shape()
            # The sizes of a slice are in registers anyway.
            if op.view in arguments and _may_pass(op.view, op.indices, shape, _part(kernel, op, shape)):
                found.add(arguments.index(op.view))
            if op.view in arguments and _may_pass_outside(op.view, op.indices, shape):
                outer.add(arguments.index(op.view))
    for name, noted in ((OVERRUNS, found), (OUTER_OVERRUNS, outer)):
        if noted:
            kernel.attributes[name] = DenseArrayBase.from_list(i64, sorted(noted))


def _part(kernel: tile.KernelOp, op: tile.LoadOp | tile.StoreOp, box: Sequence[int]) -> int:
    """Columns that are moved at once: of a result that leaves in parts (`store_columns`), those of a part."""
    part = kernel.schedule.data.store_columns if kernel.schedule and isinstance(op, tile.StoreOp) else 0
    return part if part and box[-1] % part == 0 else box[-1]


def may_overrun(kernel: tile.KernelOp, argument: int, attribute: str = OVERRUNS) -> bool:
    """Whether the attribute names an argument."""
    noted = kernel.attributes.get(attribute)
    return isinstance(noted, DenseArrayBase) and argument in cast(Sequence[int], noted.get_values())


def _may_pass(view: SSAValue, indices: Sequence[SSAValue], box: Sequence[int], part: int) -> bool:
    """part: columns of the box that are moved at once; a part may begin where a view ends of which it divides the size."""
    sizes = cast(tile.ViewType, view.type).get_shape()
    units = [*box[:-1], part]
    axes = zip(reversed(sizes), reversed(indices), reversed(box), reversed(units), strict=False)
    for size, index, extent, unit in list(axes)[:2]:
        if size != DYNAMIC and size % unit == 0:
            last = greatest(index)
            if last is None or last + extent > size:
                return True
    return False


def _may_pass_outside(view: SSAValue, indices: Sequence[SSAValue], box: Sequence[int]) -> bool:
    """The same in a dimension before the last two, of a known size and an offset that is no datum."""
    sizes = cast(tile.ViewType, view.type).get_shape()
    extents = [1] * (len(sizes) - len(box)) + list(box)
    for size, index, extent in list(zip(sizes, indices, extents, strict=True))[:-2]:
        remainder = _divisor_of_remainder(index.owner) if isinstance(index.owner, arith.SubiOp) else None
        last = greatest(index) if remainder is None else remainder - 1
        if size != DYNAMIC and last is not None and last + extent > size:
            return True
    return False
