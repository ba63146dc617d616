"""Where every element of a tile lives: in registers of lanes of warps, or in bytes of shared memory.

A *layout* answers one question for a tile with coordinates (row, col): in which place is this element? Here is the
upper left corner of a 16x8 accumulator of `mma.m16n8k16`; each cell says "lane/register":

            col 0   1     2     3     4     5     6     7
    row 0     0/0   0/1   1/0   1/1   2/0   2/1   3/0   3/1         col bit 0   -> register 1
    row 1     4/0   4/1   5/0   5/1   6/0   6/1   7/0   7/1         col bits 1-2 -> lane 1, 2
    row 2     8/0   8/1   9/0   ...                                 row bits 0-2 -> lane 4, 8, 16
    ...                                                             row bit 3   -> register 2
    row 8     0/2   0/3   1/2   1/3   2/2   2/3   3/2   3/3

The right-hand side is the whole layout: each bit of a coordinate contributes a fixed place, and the contributions of
the bits that are set are XORed. That covers tensor-core fragments and swizzled shared memory alike, because a swizzle
is nothing but a bit that contributes to two places: row bit 0 of a 128-byte swizzled tile moves an element by 128
bytes (the next row) *and* flips bit 4 of its address (the neighbouring 16-byte chunk), so it contributes 128 ^ 16 =
144.

Three ideas make up the algebra:

* A *panel* is a power-of-two block of the tile that is linear over bits, as above.
* *Repeats* place further panels by adding strides. Their counts are any numbers, so a tile of 320 or 80 columns is five
  panels of 64 or of 16 and nobody needs a special case.
* *Copies* (broadcast): an element may live in several places, such as a row maximum that four lanes hold; and several
  elements may share a place, if a bit of a coordinate contributes nothing.

A layout is used when it is *onto* (no place is left empty) and *one-to-one up to broadcasting* (no place holds two
different elements). Then it has an inverse, and everything else is computed from the two: what `ldmatrix` can load,
which swizzle of the tensor memory accelerator (TMA) matches, how many bank conflicts an access has.

`algebra` holds `Layout`, `shared` the tiles of shared memory, `access` legality and cost, `descriptor` what `wgmma` needs.
The layouts of tensor-core operands are in `emmy.atoms`.
"""

from __future__ import annotations

from emmy.layout.access import bank_conflicts, ldmatrix_conflicts, ldmatrix_legal, tma_swizzle
from emmy.layout.algebra import Dimension, Layout, Place, Repeat, fit
from emmy.layout.descriptor import MatrixDescriptor, OperandDescriptors, matrix_descriptor
from emmy.layout.shared import SharedLayout, Step, shared_layout

__all__ = [
    "Dimension",
    "Layout",
    "MatrixDescriptor",
    "OperandDescriptors",
    "Place",
    "Repeat",
    "SharedLayout",
    "Step",
    "bank_conflicts",
    "fit",
    "ldmatrix_conflicts",
    "ldmatrix_legal",
    "matrix_descriptor",
    "shared_layout",
    "tma_swizzle",
]
