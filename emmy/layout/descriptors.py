"""Matrix descriptors: how `wgmma` is told where an operand lies in shared memory (PTX ISA, "Matrix Descriptor Format").

Bits 0-13 start, 16-29 leading dimension offset, 32-45 stride dimension offset, all in units of 16 bytes; 62-63 the swizzle.
Tiles start at a multiple of their swizzle's period, so the base offset (bits 49-51) is 0.
"""

from __future__ import annotations

from emmy.layout.shared import SWIZZLE_PERIOD_ROWS, SharedLayout

UNIT_BYTES = 16
"""What addresses and offsets in a descriptor count."""

SWIZZLE_MODES = {128: 1, 64: 2, 32: 3}
"""Bytes of a swizzle's span -> its number."""


def descriptor_bits(layout: SharedLayout, transposed: bool) -> int:
    """A descriptor of a swizzled tile that starts at 0, as a 64-bit integer (below 2^63: bit 63 is the sign).

    Not transposed (K-major, rows of M or N): stride = 8 rows; the leading offset is not used. Transposed (MN-major, rows of
    K): leading = from panel to panel of M or N, stride = 8 rows of K.
    """
    leading = layout.panel_bytes if transposed else UNIT_BYTES
    stride = SWIZZLE_PERIOD_ROWS * layout.row_bytes
    bits = leading // UNIT_BYTES << 16 | stride // UNIT_BYTES << 32 | SWIZZLE_MODES[layout.swizzle] << 62
    return bits - (1 << 64) if bits >> 63 else bits
