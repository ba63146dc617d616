"""What an access to shared memory may do and what it costs, computed from layouts.

Costs are in *wavefronts*, the unit in which the profiler counts them (metric
`l1tex__data_bank_conflicts_pipe_lsu_mem_shared`): one wavefront serves each of the 32 banks of 4 bytes once.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from emmy.errors import EmmyError
from emmy.layout.algebra import Layout
from emmy.layout.shared import CHUNK_BYTES, SharedLayout

BANKS = 32
BANK_BYTES = 4
WARP_LANES = 32
MATRIX_ROWS = 8
"""`ldmatrix` moves matrices of 8 rows of 16 bytes (PTX ISA, `ldmatrix`)."""

TmaSwizzle = Literal["none", "32B", "64B", "128B"]

# mode -> (bytes the inner box may have, how many address bits from bit 7 are XORed onto those from bit 4, alignment)
_TMA_MODES: dict[TmaSwizzle, tuple[int, int, int]] = {
    "none": (1 << 30, 0, 128),
    "32B": (32, 1, 256),
    "64B": (64, 2, 512),
    "128B": (128, 3, 1024),
}


def bank_conflicts(addresses: ArrayLike, access_bytes: int, active: ArrayLike | None = None) -> int:
    """Extra wavefronts of one warp-wide access of `access_bytes` (1, 2, 4, 8, 16) a lane at byte `addresses` (up to
    32).

    Lanes are served in phases of 128 bytes: all 32 for up to 4 bytes, two halves for 8, four quarters for 16. In a
    phase, a bank takes one wavefront for each different 4-byte word that is asked of it; the same word for several
    lanes is free. `active` marks the lanes that take part (default: all given).
    """
    lanes = np.asarray(addresses, dtype=np.int64).reshape(-1)
    mask = np.ones(len(lanes), dtype=bool) if active is None else np.asarray(active, dtype=bool).reshape(-1)
    if access_bytes not in (1, 2, 4, 8, 16) or len(lanes) > WARP_LANES or len(mask) != len(lanes):
        raise EmmyError(f"not an access of a warp: {len(lanes)} addresses of {access_bytes} bytes")
    words_each = max(access_bytes // BANK_BYTES, 1)
    phase_lanes = WARP_LANES // words_each
    extra = 0
    for start in range(0, len(lanes), phase_lanes):
        phase = slice(start, start + phase_lanes)
        first = lanes[phase][mask[phase]] // BANK_BYTES
        words = np.unique(first[:, None] + np.arange(words_each))
        if words.size:
            extra += int(np.bincount(words % BANKS).max()) - 1
    return extra


def ldmatrix_conflicts(shared: SharedLayout, rows: ArrayLike, cols: ArrayLike) -> int:
    """Extra wavefronts of one `ldmatrix` (or `stmatrix`) whose lanes give the rows at stored coordinates (`rows`,
    `cols`).

    Pass 8, 16 or 32 lanes for .x1, .x2, .x4; each group of 8 lanes is one matrix and one phase.
    """
    return bank_conflicts(shared.offset(rows, cols), CHUNK_BYTES)


def ldmatrix_legal(shared: SharedLayout, operand: Layout, transposed: bool) -> bool:
    """Can `ldmatrix` load this operand from that tile, every element into the lane and register that `operand` says?

    `operand` maps (row, col) to (register, lane), registers counting elements. If `transposed`, element (row, col) is
    stored at (col, row) and `ldmatrix.trans` is meant. It is legal if, for each 32-bit register, the elements that the
    32 lanes want are eight rows of 16 bytes, contiguous and aligned, in the distribution of the instruction: lane t
    gets bytes 4*(t%4) to 4*(t%4)+3 of row t/4, or, transposed, element t/4 of rows 2*(t%4) and 2*(t%4)+1.
    """
    if transposed and shared.element_bytes != 2:
        return False  # .trans exchanges 16-bit elements only
    packed = BANK_BYTES // shared.element_bytes
    registers, lanes = operand.place_shape
    stored = operand.shape[::-1] if transposed else operand.shape
    fits = stored[0] <= shared.padded_rows and stored[1] <= shared.padded_cols
    if lanes != WARP_LANES or registers % packed or not fits or not (operand.is_onto() and operand.is_one_to_one()):
        return False
    row, col = operand.inverse().apply(*np.ix_(np.arange(registers), np.arange(lanes)))
    offsets = shared.offset(col, row) if transposed else shared.offset(row, col)
    # axes: 32-bit register, element in it, lane/4, lane%4
    offsets = offsets.reshape(registers // packed, packed, MATRIX_ROWS, 4)
    if transposed:  # axes become: register, row of the matrix (2 * (lane%4) + half), element of the row (lane/4)
        matrices = offsets.transpose(0, 3, 1, 2).reshape(-1, MATRIX_ROWS, MATRIX_ROWS)
    else:  # register, row of the matrix (lane/4), element of the row (lane%4, then inside the register)
        matrices = offsets.transpose(0, 2, 3, 1).reshape(-1, MATRIX_ROWS, 4 * packed)
    starts = matrices[..., :1]
    inside = np.arange(matrices.shape[-1]) * shared.element_bytes
    return bool(np.all(starts % CHUNK_BYTES == 0)) and np.array_equal(matrices, starts + inside)


def tma_swizzle(shared: SharedLayout) -> TmaSwizzle | None:
    """The tensor-map swizzle with which TMA writes this tile panel by panel (a box of all rows x `panel_columns`), or
    None.

    TMA fills a box row by row without gaps and then XORs address bits; it is found by comparing every address with
    that.
    """
    rows, cols = np.ix_(np.arange(shared.padded_rows), np.arange(shared.padded_cols))
    panel, inside = np.divmod(cols, shared.panel_columns)
    linear = rows * shared.row_bytes + inside * shared.element_bytes
    offsets = shared.offset(rows, cols)
    for mode, (span, bits, alignment) in _TMA_MODES.items():
        swizzled = linear ^ (((linear >> 7) & ((1 << bits) - 1)) << 4)
        aligned = shared.panels == 1 or shared.panel_bytes % alignment == 0
        fits = shared.row_bytes <= span and shared.alignment % alignment == 0
        if aligned and fits and np.array_equal(offsets, swizzled + panel * shared.panel_bytes):
            return mode
    return None
