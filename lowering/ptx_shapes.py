"""Fragments as lists of registers: which element is where.

A fragment is the list of its 32-bit registers, atom by atom, row-major, as `emmy.atoms` says; 16-bit elements are in pairs,
the even one in the lower half, 8-bit ones in fours. *Elements* are those registers taken apart, in the same order, each an f32;
of an i32 fragment each is an i32, of an i1 fragment a predicate. 8-bit elements are never taken apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import numpy as np
from xdsl.ir import Attribute, SSAValue

from emmy.atoms import DTYPE_BITS, OperandPlace, any_atom, fragment_layout
from emmy.dialects import mma

Registers = list[SSAValue]

FLOAT_DTYPES = ("f16", "bf16", "f32")


@dataclass(frozen=True)
class Shape:
    """What of a fragment's type decides where its elements are. Layouts of all dtypes with an atom's shape agree."""

    rows: int
    cols: int
    place: OperandPlace
    atom: str
    dtype: str

    @property
    def packed(self) -> bool:
        """Two elements in a register?"""
        return self.dtype in ("f16", "bf16")

    @property
    def per_register(self) -> int:
        """Elements in a 32-bit register."""
        return 32 // DTYPE_BITS.get(self.dtype, 32)


def shape_of(type_: Attribute) -> Shape:
    """The shape of a fragment type."""
    assert isinstance(type_, mma.FragmentType)
    rows, cols = type_.get_shape()
    return Shape(rows, cols, cast(OperandPlace, type_.place.data), type_.atom.data, str(type_.element_type))


@lru_cache(maxsize=256)
def element_coordinates(rows: int, cols: int, place: OperandPlace, atom: str) -> tuple[tuple[int, int], ...]:
    """(row, column) of each element that lane 0 holds; other lanes add the coordinates of `lane_coordinates`."""
    layout = fragment_layout(any_atom(atom), place, rows, cols)
    row, col = layout.inverse().apply(np.arange(layout.place_shape[0]), 0)
    return tuple(zip(np.atleast_1d(row).tolist(), np.atleast_1d(col).tolist(), strict=True))


@lru_cache(maxsize=256)
def element_numbers(rows: int, cols: int, place: OperandPlace, atom: str) -> dict[tuple[int, int], int]:
    """The reverse of `element_coordinates`."""
    return {at: number for number, at in enumerate(element_coordinates(rows, cols, place, atom))}
