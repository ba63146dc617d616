"""Pictures of `emmy.layout`: a tile in shared memory with the banks of its chunks, a fragment with its lanes and registers."""

from __future__ import annotations

import numpy as np

from emmy.atoms import Atom, OperandPlace, fragment_layout
from emmy.errors import EmmyError
from emmy.layout import SharedLayout, ldmatrix_conflicts, tma_swizzle
from emmy.layout.access import BANK_BYTES, BANKS, MATRIX_ROWS
from emmy.layout.shared import CHUNK_BYTES
from emmy.views.svg import Cell, Grid, draw

CHUNK_BANKS = CHUNK_BYTES // BANK_BYTES
"""A chunk of 16 bytes lies in four banks."""

BANK_COLOURS = ("#f4a582", "#fddbc7", "#ffe9a8", "#d9f0a3", "#a6dba0", "#a8ddea", "#92c5de", "#c2a5cf")
"""One for each group of four banks: a chunk's."""

LARGEST_FRAGMENT = 128 * 128
"""Elements of a picture that can still be looked at."""


def shared_svg(shared: SharedLayout, dtype: str, shown_rows: int) -> str:
    """The first rows of a tile, a cell for each 16-byte chunk: its byte offset, coloured by the banks that it lies in."""
    chunk = shared.chunk_columns
    count = min(shown_rows, shared.padded_rows)
    starts = np.arange(0, shared.padded_cols, chunk)
    offsets = shared.offset(*np.ix_(np.arange(count), starts))
    rows = [
        (str(r), [_chunk(shared, r, int(c), int(offsets[r, i])) for i, c in enumerate(starts)]) for r in range(count)
    ]
    groups = range(BANKS // CHUNK_BANKS)
    legend = [(f"banks {g * CHUNK_BANKS}-{g * CHUNK_BANKS + CHUNK_BANKS - 1}", BANK_COLOURS[g]) for g in groups]
    left = shared.padded_rows - count
    return draw(
        Grid(
            caption=_shared_caption(shared, dtype),
            columns=[f"{c}-{c + chunk - 1}" for c in starts],
            rows=rows,
            cell_width=56,
            legend=legend,
            heavy=None,
            notes=[f"{left} more rows"] if left else [],
        )
    )


def _shared_caption(shared: SharedLayout, dtype: str) -> list[str]:
    swizzle = f"{shared.swizzle}-byte swizzle" if shared.swizzle else "no swizzle"
    padded = (shared.padded_rows, shared.padded_cols) != (shared.rows, shared.cols)
    size = f"{shared.rows}x{shared.cols} {dtype}" + (
        f", laid out as {shared.padded_rows}x{shared.padded_cols}" if padded else ""
    )
    lines = [
        f"{size}: {swizzle}, panels of {shared.panel_columns} columns, {shared.size_bytes} bytes aligned to {shared.alignment}"
    ]
    if shared.padded_rows >= MATRIX_ROWS:
        extra = ldmatrix_conflicts(shared, np.arange(MATRIX_ROWS), np.zeros(MATRIX_ROWS, dtype=np.int64))
        lines.append(f"ldmatrix of rows 0-7: {1 + extra} wavefront{'s' * (extra > 0)} for each matrix")
    mode = tma_swizzle(shared)
    lines.append(f"TMA writes it with swizzle {mode}" if mode else "TMA has no swizzle that writes it")
    return lines


def _chunk(shared: SharedLayout, row: int, column: int, offset: int) -> Cell:
    bank = offset // BANK_BYTES % BANKS
    title = (
        f"row {row}, columns {column}-{column + shared.chunk_columns - 1}: "
        f"bytes {offset}-{offset + CHUNK_BYTES - 1}, banks {bank}-{bank + CHUNK_BANKS - 1}"
    )
    return Cell(str(offset), BANK_COLOURS[bank // CHUNK_BANKS], title)


def fragment_svg(atom: Atom, place: OperandPlace, rows: int, cols: int) -> str:
    """A fragment, a cell for each element: `lane/register`, coloured by lane. Registers count elements, as `emmy.atoms` does.

    Raises `EmmyError` if the shape is not made of whole atoms, or is too large to be looked at.
    """
    if rows * cols > LARGEST_FRAGMENT:
        raise EmmyError(f"a picture of {rows}x{cols} elements is too large; {LARGEST_FRAGMENT} are the most")
    layout = fragment_layout(atom, place, rows, cols)
    operand = atom.operand(place)
    registers, lanes = layout.places(*np.ix_(np.arange(rows), np.arange(cols)))

    def cell(row: int, col: int) -> Cell:
        register, holders = int(registers[row, col, 0]), sorted({int(lane) for lane in lanes[row, col]})
        word, part = divmod(register, operand.packed)
        half = {1: "", 2: f", {('lower', 'upper')[part % 2]} half", 4: f", byte {part}"}[operand.packed]
        names = f"lane{'s' * (len(holders) > 1)} {', '.join(map(str, holders))}"
        title = f"({row}, {col}): {names}, element {register}: 32-bit register {word}{half}"
        shown = str(holders[0]) if len(holders) == 1 else f"{holders[0]}.."
        return Cell(f"{shown}/{register}", lane_colour(holders[0]), title)

    each = layout.place_shape[0]
    caption = [
        f"operand {place} of {atom.name} ({operand.dtype}), {rows}x{cols}: "
        f"{each} element{'s' * (each > 1)} a lane, in {-(-each // operand.packed)} registers",
        f"lane/element of the lane; atoms are {operand.rows}x{operand.cols}; the colour is the lane's",
    ]
    return draw(
        Grid(
            caption=caption,
            columns=[str(c) for c in range(cols)],
            rows=[(str(r), [cell(r, c) for c in range(cols)]) for r in range(rows)],
            cell_width=52,
            heavy=(min(operand.rows, rows), min(operand.cols, cols)),
        )
    )


def lane_colour(lane: int) -> str:
    """A hue for each group of four lanes, a lightness for the lane in it."""
    return f"hsl({lane // 4 * 45}, 60%, {86 - lane % 4 * 8}%)"
