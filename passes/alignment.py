"""How wide a copy between a view and shared memory may be, from what the IR proves."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from xdsl.dialects import arith, scf
from xdsl.ir import Block, SSAValue

from emmy.dialects import tile
from emmy.dialects.common import DYNAMIC
from emmy.passes.constants import constant

WIDEST = 16
"""Bytes: the widest vector access, and what every base pointer is aligned to by contract."""


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


def vector_bytes(view: tile.ViewType, indices: Sequence[SSAValue], box: Sequence[int], element_bytes: int) -> int:
    """The widest access, in bytes (a power of two from `element_bytes` to 16), for which no vector is misaligned or cut.

    The last dimension must be contiguous (stride 1); its offset, its size and the box's extent, and the stride of every
    other dimension longer than 1, must be multiples of the vector. What is not known divides by 1: a `?` last size or a `?`
    stride gives single elements.
    """
    shape, strides = view.get_shape(), view.get_strides()
    if strides[-1] != 1 and shape[-1] != 1:
        return element_bytes
    known = gcd(divisor(indices[-1]), box[-1], 1 if shape[-1] == DYNAMIC else shape[-1])
    for size, stride in zip(shape[:-1], strides[:-1], strict=True):
        if size != 1:
            known = gcd(known, 1 if stride == DYNAMIC else stride)
    width = WIDEST
    while width > element_bytes and (known * element_bytes) % width:
        width //= 2
    return max(width, element_bytes)
