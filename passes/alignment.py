"""How wide a copy between a view and shared memory may be, from what the IR proves."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, lcm, prod
from typing import cast

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import AnyFloat, NoneAttr
from xdsl.ir import Block, SSAValue

from emmy.dialects import mma, tile
from emmy.dialects.common import DYNAMIC, constant

WIDEST = 16
"""Bytes: the widest vector access."""


def divisor(value: SSAValue) -> int:
    """The largest number that provably divides an index value (0 for a constant zero: everything divides it)."""
    return _divisor(value, ())


def _divisor(value: SSAValue, assumed: tuple[SSAValue, ...]) -> int:
    if value in assumed:
        return 0
    assumed = (*assumed, value)
    owner = value.owner
    if isinstance(owner, Block):
        return _loop_divisor(value, owner, assumed)
    known = constant(value)
    if known is not None:
        return abs(known)
    if isinstance(owner, tile.GridOp):
        return owner.get_blocks()[list(owner.offsets).index(value)]  # pyright: ignore[reportArgumentType]
    if isinstance(owner, scf.ForOp):
        position = list(owner.results).index(value)  # pyright: ignore[reportArgumentType]
        return gcd(_divisor(owner.iter_args[position], assumed), _divisor(owner.body.block.args[position + 1], assumed))
    parts = [_divisor(operand, assumed) for operand in owner.operands]
    if isinstance(owner, arith.MuliOp):
        return parts[0] * parts[1]
    if isinstance(owner, arith.AddiOp | arith.SubiOp | arith.MinUIOp | arith.MaxUIOp):
        return gcd(*parts)
    if isinstance(owner, arith.SelectOp):
        return gcd(*parts[1:])
    return 1


def _loop_divisor(value: SSAValue, block: Block, assumed: tuple[SSAValue, ...]) -> int:
    loop, position = block.parent_op(), list(block.args).index(value)  # pyright: ignore[reportArgumentType]
    if not isinstance(loop, scf.ForOp):
        return 1
    if position == 0:
        return gcd(_divisor(loop.lb, assumed), _divisor(loop.step, assumed))
    last = block.last_op
    assert isinstance(last, scf.YieldOp)
    return gcd(_divisor(loop.iter_args[position - 1], assumed), _divisor(last.arguments[position - 1], assumed))


def stride_divisors(view: tile.ViewType, element_bytes: int) -> list[int]:
    """For each dimension but the last, a number of elements that provably divides its stride (0 for a stride of 0).

    A stride that follows from `?` sizes is a multiple of the product of the known ones; `align` of the view promises more.
    """
    promised = max(view.align.data // element_bytes, 1)
    shape, strides = view.get_shape(), view.get_strides()
    implied = isinstance(view.strides, NoneAttr)
    known: list[int] = []
    for axis, stride in enumerate(strides[:-1]):
        if stride == DYNAMIC:
            stride = prod(size for size in shape[axis + 1 :] if size != DYNAMIC) if implied else 1
        known.append(lcm(stride, promised))
    return known


VECTOR_COLUMNS = 32
"""Columns of a fragment of 16-bit elements of which the four lanes of a row can have 16 bytes each."""


def stored_by_vectors(op: mma.StoreGlobalOp) -> bool:
    """Whether a fragment goes straight to memory by 16 bytes a lane."""
    type_, view = cast(mma.FragmentType, op.value.type), cast(tile.ViewType, op.view.type)
    element = type_.element_type
    return (
        isinstance(element, AnyFloat)
        and element.bitwidth == 16
        and type_.place.data == "c"
        and type_.get_shape()[1] % VECTOR_COLUMNS == 0
        and type_.get_shape()[0] > 1
        and len(view.get_shape()) > 1
        and vector_bytes(view, list(op.indices), type_.get_shape(), 2) == WIDEST
    )


def vector_bytes(view: tile.ViewType, indices: Sequence[SSAValue], box: Sequence[int], element_bytes: int) -> int:
    """The widest access, in bytes (a power of two from `element_bytes` to 16), for which no vector is misaligned or cut.

    The last dimension must be contiguous (stride 1); its offset, its size and the box's extent, and the stride of every
    other dimension longer than 1, must be multiples of the vector. Of a `?` last size, of `?` strides and of the address
    is known what the view's `align` promises; without it, a `?` size divides by one element, and the address by anything.
    """
    shape, strides, align = view.get_shape(), view.get_strides(), view.align.data
    if strides[-1] != 1 and shape[-1] != 1:
        return element_bytes
    promised = max(align // element_bytes, 1)
    known = gcd(divisor(indices[-1]), box[-1], promised if shape[-1] == DYNAMIC else shape[-1])
    for size, stride in zip(shape[:-1], stride_divisors(view, element_bytes), strict=True):
        if size != 1:
            known = gcd(known, stride)
    width = min(WIDEST, align or WIDEST)
    while width > element_bytes and (known * element_bytes) % width:
        width //= 2
    return max(width, element_bytes)
