"""Which copies the tensor memory accelerator can make, from what the IR proves; the rest is checked when a tensor is bound."""

from __future__ import annotations

from math import prod
from typing import cast

from xdsl.dialects import scf
from xdsl.dialects.builtin import ArrayAttr, FixedBitwidthType
from xdsl.ir import BlockArgument, SSAValue

from emmy.dialects import async_copy as ac
from emmy.dialects.async_copy_rings import find_pipeline, ring_name
from emmy.dialects.common import DYNAMIC
from emmy.dialects.tile import TileType, ViewType
from emmy.layout import SharedLayout, shared_layout
from emmy.passes.alignment import divisor, stride_divisors

STRIDE_BYTES = 16
"""Strides and the innermost offset of a tensor map are multiples of this (CUDA driver API, cuTensorMapEncodeTiled)."""

MOST_DIMENSIONS = 5
"""Rank of a tensor map (the same)."""


def field_of(op: ac.CopyOp | ac.StoreOp) -> TileType:
    """The tile that a copy or store moves."""
    pipeline = find_pipeline(op, ring_name(op.slot))
    assert pipeline is not None
    field = pipeline.field(op.field.data)
    assert field is not None
    return field


def field_bytes(tile: TileType) -> int:
    """Bytes of a tile's elements."""
    return prod(tile.get_shape()) * cast(FixedBitwidthType, tile.element_type).size


def copied_bytes(tile: TileType) -> int:
    """Bytes of a tile that TMA brings: what pads its rows in shared memory comes with them."""
    *leading, columns = tile.get_shape()
    return shared_layout(prod(leading), columns, cast(FixedBitwidthType, tile.element_type).size).size_bytes


def tma_problem(op: ac.CopyOp | ac.StoreOp, certain: bool, padded: bool = False) -> str | None:
    """Why TMA cannot move the field of a copy or store, as the end of a sentence; None if it can. `padded`: whether what pads
    its rows in shared memory may be filled too, with what follows in the tensor.

    The base pointer is 16-byte aligned by contract. Strides that follow from `?` sizes, and that the view's `align` promises
    nothing of, are a problem if it must be `certain` that every call is legal; else they are left to the check at launch.
    """
    if not isinstance(op.view, BlockArgument):
        return "the tensor is a part of another one that is known at run time only"
    tile, view = field_of(op), cast(ViewType, op.view.type)
    element = tile.element_type
    if not isinstance(element, FixedBitwidthType) or element.size not in (1, 2, 4):
        return f"its elements are {element}, not of 1, 2 or 4 bytes"
    return _view_problem(view, element.size, certain) or _box_problem(tile, op.indices[-1], element.size, padded)


def _view_problem(view: ViewType, element_bytes: int, certain: bool) -> str | None:
    strides = view.get_strides()
    if len(strides) > MOST_DIMENSIONS:
        return f"the tensor has {len(strides)} dimensions, more than {MOST_DIMENSIONS}"
    if strides[-1] != 1:
        return "the tensor's last dimension is not contiguous"
    if 0 < view.align.data < STRIDE_BYTES:
        return f"the tensor is surely aligned to {view.align.data} bytes only, not to {STRIDE_BYTES}"
    for stride, known in zip(strides, stride_divisors(view, element_bytes), strict=False):
        explicit = stride == DYNAMIC and isinstance(view.strides, ArrayAttr)
        if known * element_bytes % STRIDE_BYTES and explicit:
            return "a stride of the tensor is known at run time only"
        if known * element_bytes % STRIDE_BYTES and (stride != DYNAMIC or certain):
            shown = "not surely" if stride == DYNAMIC else f"{stride * element_bytes} bytes, not"
            return f"a stride of the tensor is {shown} a multiple of {STRIDE_BYTES}"
    return None


def _box_problem(tile: TileType, offset: SSAValue, element_bytes: int, padded: bool) -> str | None:
    *leading, columns = tile.get_shape()
    if any(size != 1 for size in leading[:-1]):
        return f"its tile has more than two dimensions, {list(tile.get_shape())}"
    layout: SharedLayout = shared_layout(prod(leading), columns, element_bytes)
    if layout.padded_rows != layout.rows or (layout.padded_cols != layout.cols and not padded):
        return f"its tile of {layout.rows} x {columns} elements is padded in shared memory"
    if divisor(offset) * element_bytes % STRIDE_BYTES:
        return f"its offset along the last dimension is no multiple of {STRIDE_BYTES} bytes"
    return None


def stands_alone(copy: ac.CopyOp) -> bool:
    """Is a copy made exactly when its slot is acquired, and once? The bytes of a ticket must be known when it is issued."""
    acquire = copy.slot.owner
    if not isinstance(acquire, ac.AcquireOp):
        return False
    parent = copy.parent_op()
    if copy.parent_block() is acquire.parent_block():
        return acquire.predicate is None
    return (
        isinstance(parent, scf.IfOp)
        and parent.parent_block() is acquire.parent_block()
        and parent.cond is acquire.predicate
        and copy.parent_block() is parent.true_region.block
    )
