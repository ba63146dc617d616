"""Matrix descriptors: how `wgmma` finds an operand in shared memory, computed from where a layout puts its elements.

An operand is a tile of `mn` rows of A (or columns of B) and 32 bytes of k. `wgmma` addresses 16-byte chunks by a start
and two strides, then XORs bits of the address like TMA (PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory
Layout"), so an operand may begin at any row of a swizzled tile (found on an H200; the base offset stays 0):

    K-major, stored [mn][k]                                MN-major, stored [k][mn], 16-bit elements only
    8 rows follow each other without gaps                  8 rows of k follow each other without gaps
    sbo: from 8 rows to the next 8                         sbo: from 8 rows of k to the next 8
    lbo: from chunk 0 to chunk 1 of k (no swizzle only)    lbo: from one panel of columns to the next
                                                           (without swizzle the two change places)

In 128-byte swizzled panels of 64 columns, which TMA writes:

    K-major:  sbo 1024, 16 more of k are 32 bytes further        MN-major: sbo 1024, lbo = the panel's bytes,
                                                                 16 more of k are 2048 bytes further

Nothing here is assumed of a layout: strides are read off it, and every element is then looked up through the descriptor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emmy.errors import EmmyError
from emmy.layout.algebra import Integers, Layout
from emmy.layout.shared import CHUNK_BYTES, SWIZZLE_PERIOD_ROWS, SharedLayout

K_BYTES = 32
"""Bytes of k that one `wgmma` multiplies: 16 elements of 16 bits, 32 of 8."""

MODES = {0: 0, 128: 1, 64: 2, 32: 3}
"""Bytes of a swizzle's span -> bits 62 and 63 of a descriptor."""

_FIELD = 0x3FFF  # 14 bits, in units of 16 bytes


@dataclass(frozen=True)
class MatrixDescriptor:
    """One operand. start: bytes from the layout's begin. lbo, sbo: bytes. swizzle: bytes of its span, 0 for none."""

    start: int
    lbo: int
    sbo: int
    swizzle: int

    @property
    def constant(self) -> int:
        """All fields but the start address, as a signed 64-bit number; add (shared address + start) / 16 to it."""
        bits = self.lbo // CHUNK_BYTES << 16 | self.sbo // CHUNK_BYTES << 32 | MODES[self.swizzle] << 62
        return bits - (1 << 64) if bits >> 63 else bits

    def bits(self, address: int) -> int:
        """The 64 bits for a layout that begins at a shared address."""
        return (self.constant + ((address + self.start) // CHUNK_BYTES & _FIELD)) & ((1 << 64) - 1)


def matrix_descriptor(
    layout: Layout, swizzle: int, element_bytes: int, mn_major: bool, mn: int, at: tuple[int, int] = (0, 0)
) -> MatrixDescriptor:
    """The descriptor of the operand of `mn` rows (a multiple of 8) and 32 bytes of k at (mn, k) = `at` of a layout.

    `layout` maps the stored (row, col) to ("byte",): (mn, k), or (k, mn) if `mn_major`. It begins at an address that is a
    multiple of the swizzle's period. Raises `EmmyError` if no descriptor says where the elements are.
    """
    if mn_major and element_bytes != 2:
        raise EmmyError(f"wgmma reads MN-major operands of 16 bits only, these have {8 * element_bytes}")
    row = at[0] + np.arange(mn)[:, None]
    k = at[1] + np.arange(K_BYTES // element_bytes)
    offsets = (layout.apply(k, row) if mn_major else layout.apply(row, k))[0]
    linear = _swizzled(offsets, swizzle)
    start = int(linear[0, 0])

    def stride(of_row: int, of_k: int) -> int:
        """Bytes to another element; what lies outside of the operand is never used, and 16 is what others write then."""
        inside = of_row < mn and of_k < k.size
        return int(linear[of_row, of_k]) - start if inside else CHUNK_BYTES

    chunk = CHUNK_BYTES // element_bytes
    if mn_major:
        lbo, sbo = (stride(swizzle // element_bytes, 0), stride(0, 8)) if swizzle else (stride(0, 8), stride(8, 0))
    else:
        lbo, sbo = CHUNK_BYTES if swizzle else stride(0, chunk), stride(SWIZZLE_PERIOD_ROWS, 0)
    descriptor = MatrixDescriptor(start, lbo, sbo, swizzle)
    wrong = start % CHUNK_BYTES or any(n % CHUNK_BYTES or not 0 <= n // CHUNK_BYTES <= _FIELD for n in (lbo, sbo))
    if wrong or not np.array_equal(_offsets(descriptor, mn, element_bytes, mn_major), offsets):
        order = "MN" if mn_major else "K"
        raise EmmyError(
            f"wgmma cannot read the {order}-major operand of {mn} x {k.size} elements at {at} from this layout with a swizzle"
            f" of {swizzle} bytes"
        )
    return descriptor


def _swizzled(offsets: Integers, swizzle: int) -> Integers:
    """The XOR of the hardware, which is its own inverse."""
    chunks = swizzle // CHUNK_BYTES
    return offsets ^ ((offsets // 128 % chunks) * CHUNK_BYTES) if chunks else offsets


def _offsets(descriptor: MatrixDescriptor, mn: int, element_bytes: int, mn_major: bool) -> Integers:
    """Bytes from the layout's begin to each element (mn, k), as `wgmma` finds them."""
    row, k = np.arange(mn)[:, None], np.arange(K_BYTES // element_bytes)
    chunk = CHUNK_BYTES // element_bytes
    span = max(descriptor.swizzle, CHUNK_BYTES)
    if mn_major:
        column = row * element_bytes
        outer, inner = (descriptor.lbo, descriptor.sbo) if descriptor.swizzle else (descriptor.sbo, descriptor.lbo)
        linear = column % span + column // span * outer + k % 8 * span + k // 8 * inner
    else:
        far = CHUNK_BYTES if descriptor.swizzle else descriptor.lbo
        linear = row % 8 * span + row // 8 * descriptor.sbo + k // chunk * far + k % chunk * element_bytes
    return _swizzled(np.asarray(descriptor.start + linear, np.int64), descriptor.swizzle)


@dataclass(frozen=True)
class OperandDescriptors:
    """The descriptors of all operands of `mn` rows that a tile in shared memory holds: strides are the same for all.

    rows, columns: of the tile, in elements, as (mn, k) whatever the order in memory.
    """

    shared: SharedLayout
    mn_major: bool
    mn: int

    @property
    def k(self) -> int:
        """Elements of k in one operand."""
        return K_BYTES // self.shared.element_bytes

    @property
    def constant(self) -> int:
        """All but the start address; see `MatrixDescriptor.constant`."""
        return self.at(0, 0).constant

    def at(self, mn: int, k: int) -> MatrixDescriptor:
        """The operand that begins at row `mn` and element `k`. Raises `EmmyError` if `wgmma` cannot read it there."""
        shared = self.shared
        return matrix_descriptor(shared.layout, shared.swizzle, shared.element_bytes, self.mn_major, self.mn, (mn, k))

    def start(self, mn: int, k: int) -> int:
        """Bytes from the tile's begin to the operand at (mn, k), a multiple of 16. Raises `EmmyError` as `at` does."""
        return self.at(mn, k).start
