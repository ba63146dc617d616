"""How TMA moves a tile: in *boxes* of at most 256 elements a dimension and, swizzled, one swizzle span across.

    128 x 128 f16 in a view of rank 2   -> two boxes of 128 x 64 (one a panel)
    320 x 64 f16                        -> two boxes of 160 x 64
    a tile of 64 x 64 in a view of rank 3 -> one box of 1 x 64 x 64

Limits: CUDA driver API, `cuTensorMapEncodeTiled`; alignment of shared addresses: PTX ISA, `cp.async.bulk.tensor`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from emmy.errors import EmmyError
from emmy.layout.shared import SWIZZLE_PERIOD_ROWS, UNSWIZZLED_ALIGNMENT, SharedLayout

MAX_BOX = 256
"""Elements of a box in one dimension."""

MAX_RANK = 5
"""Dimensions of a tensor map."""


@dataclass(frozen=True)
class Box:
    """One transfer: element offsets in the view from the tile's, outermost first, and bytes in the slot from the field's."""

    offsets: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class Boxes:
    """The transfers of a tile: `shape`, outermost first, is the same for all of them."""

    shape: tuple[int, ...]
    places: tuple[Box, ...]
    element_bytes: int

    @property
    def total_bytes(self) -> int:
        """What all boxes count on an mbarrier: elements beyond a view's bounds too."""
        return prod(self.shape) * self.element_bytes * len(self.places)


def divide_evenly(size: int, limit: int, step: int = 1) -> int | None:
    """The largest part of at most `limit` that divides `size`; a multiple of `step` unless it is all of it."""
    parts = (size // count for count in range(1, size + 1) if size % count == 0)
    return next((part for part in parts if part <= limit and (part == size or part % step == 0)), None)


def plan_boxes(shape: Sequence[int], rank: int, layout: SharedLayout) -> Boxes:
    """The boxes of a tile of `shape` in a view of `rank` dimensions, whose missing leading extents are 1.

    `layout` is that of the tile's rows (all dimensions but the last, counted through) in shared memory. Raises `EmmyError`,
    one sentence, if TMA cannot fill or empty it.
    """
    if rank > MAX_RANK:
        raise EmmyError(f"TMA moves boxes of at most {MAX_RANK} dimensions, and the view has {rank}")
    leading, rows = [1] * (rank - len(shape)) + list(shape[:-2]), shape[-2] if len(shape) > 1 else 1
    swizzled, element = layout.swizzle > 0, layout.element_bytes
    alignment = layout.alignment if swizzled else UNSWIZZLED_ALIGNMENT
    if layout.padded_rows == 1:  # panels of one row follow each other: any width will do
        columns = divide_evenly(layout.padded_cols, MAX_BOX, alignment // element)
    else:
        columns = layout.panel_columns if layout.panels == 1 or layout.panel_bytes % alignment == 0 else None
    height = divide_evenly(rows, MAX_BOX, SWIZZLE_PERIOD_ROWS if swizzled else 1)
    matrices = [index for index in product(*(range(size) for size in leading[: rank - 2]))] if rank > 1 else [()]
    bytes_of_matrix = rows * layout.row_bytes
    if (
        columns is None
        or height is None
        or ((len(matrices) > 1 or height < rows) and height * layout.row_bytes % alignment)
    ):
        raise EmmyError(
            f"TMA cannot move a tile of {'x'.join(map(str, shape))} elements of {element} bytes in aligned boxes"
        )
    places: list[Box] = []
    for number, index in enumerate(matrices):
        for row in range(0, rows, height):
            for column in range(0, layout.padded_cols, columns):
                panel = column * element if layout.padded_rows == 1 else column // columns * layout.panel_bytes
                offsets = (*index, row, column) if rank > 1 else (column,)
                places.append(Box(offsets, number * bytes_of_matrix + row * layout.row_bytes + panel))
    box = (*([1] * (rank - 2)), height, columns) if rank > 1 else (columns,)
    return Boxes(box, tuple(places), element)
