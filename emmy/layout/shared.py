"""Tiles in shared memory: panels of 128-, 64- or 32-byte rows with the XOR swizzle of the TMA hardware.

A tile of `rows` x `cols` is cut into *panels* of columns. A panel's rows follow each other without gaps, and the panels
follow each other:

    80 columns of f16 = 160 bytes a row -> five panels of 16 columns (32 bytes)       128 columns -> two panels of 64

Inside a panel, 16-byte chunks are swizzled so that eight rows of one chunk column, which is what `ldmatrix` reads at
once, lie in eight different groups of banks. With a panel that starts on a multiple of eight rows' bytes the swizzle
is exactly that of the tensor maps (CUDA driver API, `CUtensorMapSwizzle`): address bits 4-6 are XORed with bits 7-9
(128B), bits 4-5 with bits 7-8 (64B), bit 4 with bit 7 (32B)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from numpy.typing import ArrayLike

from emmy.errors import EmmyError
from emmy.layout.algebra import Dimension, Integers, Layout, Repeat

CHUNK_BYTES = 16
"""What a swizzle moves, a row of an `ldmatrix` matrix, and the largest cp.async."""

SWIZZLE_PERIOD_ROWS = 8
"""Every swizzle repeats after 8 rows of its panel: 8 x 128 = 1024, 8 x 64 = 512, 8 x 32 = 256 bytes."""

SPANS = (128, 64, 32)
"""Bytes of a panel's row, widest first; the spans of the hardware's swizzles."""

UNSWIZZLED_ALIGNMENT = 128
"""TMA writes to shared addresses that are multiples of 128 bytes (PTX ISA, `cp.async.bulk.tensor`)."""

Swizzle = Literal["auto", "none", 128, 64, 32]


class Step(NamedTuple):
    """How an address moves: new = (old XOR `xor`) + `add`, in bytes."""

    xor: int
    add: int


@dataclass(frozen=True)
class SharedLayout:
    """Where the elements of one tile lie, in bytes from the start of the tile; made by `shared_layout`.

    `rows` and `cols` are the tile as asked for, `padded_rows` and `padded_cols` what is laid out. `row_bytes` is a
    panel's row, `swizzle` its span in bytes (then equal to `row_bytes`) or 0.
    """

    rows: int
    cols: int
    element_bytes: int
    padded_rows: int
    padded_cols: int
    row_bytes: int
    swizzle: int

    @property
    def panel_columns(self) -> int:
        """Columns of a panel, in elements."""
        return self.row_bytes // self.element_bytes

    @property
    def panels(self) -> int:
        """How many panels lie side by side."""
        return self.padded_cols // self.panel_columns

    @property
    def panel_bytes(self) -> int:
        """From the start of a panel to the start of the next one."""
        return self.padded_rows * self.row_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole tile, padding included."""
        return self.panels * self.panel_bytes

    @property
    def alignment(self) -> int:
        """The tile must start at a multiple of this: 1024, 512 or 256 for the swizzles, 128 without."""
        return self.swizzle * SWIZZLE_PERIOD_ROWS if self.swizzle else UNSWIZZLED_ALIGNMENT

    @property
    def chunk_columns(self) -> int:
        """Elements in 16 bytes."""
        return CHUNK_BYTES // self.element_bytes

    @cached_property
    def layout(self) -> Layout:
        """The same as a `Layout` of (row, col) over the padded tile to ("byte",); the bytes of an element are
        copies."""
        row_bits: tuple[tuple[int], ...] = ()
        period = 1
        if self.swizzle:
            period = SWIZZLE_PERIOD_ROWS
            chunks = self.swizzle // CHUNK_BYTES
            offsets = [self.row_bytes << bit for bit in range(period.bit_length() - 1)]
            # bits 7 and up of the address choose the chunk: bit 7 is 128, whatever the width of the row
            row_bits = tuple((offset ^ (offset // 128 % chunks * CHUNK_BYTES),) for offset in offsets)
        col_bits = tuple((self.element_bytes << bit,) for bit in range(self.panel_columns.bit_length() - 1))
        row = Dimension("row", row_bits, (Repeat(self.padded_rows // period, (period * self.row_bytes,)),))
        col = Dimension("col", col_bits, (Repeat(self.panels, (self.panel_bytes,)),))
        return Layout((row, col), ("byte",), (Repeat(self.element_bytes, (1,)),))

    def offset(self, row: ArrayLike, col: ArrayLike) -> Integers:
        """Bytes from the start of the tile to element (row, col); takes arrays. Padding may be addressed as well."""
        return self.layout.apply(row, col)[0]

    def xor_step(self, columns: int) -> Step:
        """The step to `columns` further right, a non-negative multiple of 16 bytes, from a column that shares no bit
        with it (column 0 of a panel, or columns 0 to 15 if `columns` is a multiple of 16): XOR inside a panel, plus
        `panel_bytes` from panel to panel."""
        if columns < 0 or columns % self.chunk_columns:
            raise EmmyError(f"a step must be a multiple of {self.chunk_columns} columns (16 bytes); asked: {columns}")
        panels, inside = divmod(columns, self.panel_columns)
        return Step(inside * self.element_bytes, panels * self.panel_bytes)


def shared_layout(rows: int, cols: int, element_bytes: int, swizzle: Swizzle = "auto") -> SharedLayout:
    """The layout of a `rows` x `cols` tile of elements of 1, 2 or 4 bytes.

    Rows of the tile are padded to a multiple of 32 bytes (59 two-byte columns to 64), and swizzled tiles to a
    multiple of 8 rows. "auto" takes the widest of 128, 64, 32 bytes that divides the padded row, swizzled if the tile
    has at least 8 rows (fewer rows have nothing to spread); a number asks for that swizzle; "none" lays out the
    widest panels unswizzled. Raises `EmmyError` for an impossible request.
    """
    if rows < 1 or cols < 1 or element_bytes not in (1, 2, 4):
        raise EmmyError(
            "a shared tile needs positive extents and elements of 1, 2 or 4 bytes;"
            f" asked: {rows} x {cols} elements of {element_bytes} bytes"
        )
    bytes_padded = -(-cols * element_bytes // SPANS[-1]) * SPANS[-1]
    widest = next(span for span in SPANS if bytes_padded % span == 0)
    if isinstance(swizzle, int):
        if swizzle not in SPANS or bytes_padded % swizzle:
            raise EmmyError(
                f"a {swizzle}-byte swizzle does not fit {cols} columns of {element_bytes} bytes (padded row:"
                f" {bytes_padded} bytes); a {widest}-byte swizzle would"
            )
        span, swizzled = swizzle, True
    else:
        span, swizzled = widest, swizzle == "auto" and rows >= SWIZZLE_PERIOD_ROWS
    period = SWIZZLE_PERIOD_ROWS if swizzled else 1
    return SharedLayout(
        rows=rows,
        cols=cols,
        element_bytes=element_bytes,
        padded_rows=-(-rows // period) * period,
        padded_cols=bytes_padded // element_bytes,
        row_bytes=span,
        swizzle=span if swizzled else 0,
    )
