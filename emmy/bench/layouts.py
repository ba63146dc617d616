"""Where the elements of a tensor lie in memory, for cases whose arguments are no dense row-major arrays.

A layout is what a view of PyTorch or NumPy is: strides and the offset of element 0, both in elements. Strides are not
negative. A stride of 0 repeats elements; apart from that, no two indices of a case's layout name the same element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from emmy.artefact import Array, Shape, row_major
from emmy.errors import EmmyError


@dataclass(frozen=True)
class Layout:
    """`strides`, and the `offset` of element 0 behind an address that any alignment divides; elements."""

    strides: Shape
    offset: int = 0

    def span(self, shape: Sequence[int]) -> int:
        """Elements from the first to the last of a tensor of `shape`, gaps included; 0 for an empty one."""
        if 0 in shape:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(shape, self.strides, strict=True))

    def stored_shape(self, shape: Sequence[int]) -> Shape:
        """The shape without repetition: sizes along strides of 0 are at most 1."""
        return tuple(size if stride else min(size, 1) for size, stride in zip(shape, self.strides, strict=True))


def dense(shape: Sequence[int]) -> Layout:
    """Row-major, without gaps."""
    return Layout(row_major(shape))


def layout_of(layouts: dict[str, dict[str, Any]] | None, name: str, shape: Sequence[int]) -> Layout:
    """The layout of the argument `name`: what a case's `layouts` say of it, else dense. `EmmyError` if it is none."""
    fields = (layouts or {}).get(name)
    if fields is None:
        return dense(shape)
    strides, offset = tuple(fields["strides"]), int(fields.get("offset", 0))
    if len(strides) != len(shape) or min(*strides, offset) < 0:
        raise EmmyError(f"the layout of '{name}' needs {len(shape)} strides and an offset, none of them negative")
    return Layout(strides, offset)


def place(data: Array, shape: Sequence[int], layout: Layout, fill: int = 0xFF) -> tuple[Array, Array]:
    """An allocation (bytes of value `fill`, beginning `layout.offset` elements early, ending with the last element) that
    holds `data` of the stored shape, and the view of it that has `shape`."""
    itemsize = data.dtype.itemsize
    memory: Array = np.full((layout.offset + layout.span(shape)) * itemsize, fill, np.uint8)
    flat = memory.view(data.dtype)[layout.offset :]
    steps = [stride * itemsize for stride in layout.strides]
    stored: Array = np.lib.stride_tricks.as_strided(flat, data.shape, steps)
    stored[...] = data
    return memory, np.lib.stride_tricks.as_strided(flat, tuple(shape), steps, writeable=False)
