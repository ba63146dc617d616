"""Matrix descriptors of wgmma: 64 bits that say where an operand's 16-byte chunks lie in shared memory.

PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout". In units of 16-byte chunks, with W chunks in a swizzle's
span (1 without swizzle) and `lbo`, `sbo` the two offsets, a chunk of K-major operand (row, chunk of k) begins at

    (row mod 8) W + (row / 8) sbo + chunk         without swizzle: (row mod 8) + (row / 8) sbo + chunk lbo

and one of an MN-major operand (chunk of mn, k) at

    (chunk mod W) + (chunk / W) lbo + (k mod 8) W + (k / 8) sbo
                                                  without swizzle: chunk sbo + (k mod 8) + (k / 8) lbo

from the start address; then address bits 4-6 are XORed with bits 7-9 as the swizzle says. These are bits of the address
itself, wherever the start lies in the swizzle's period, as long as the base offset is 0 (found on an H200).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emmy.emulator.datatypes import Array
from emmy.emulator.faults import Fault
from emmy.emulator.tensor_map import swizzle_offsets

CHUNK = 16  # bytes
_SWIZZLES = {0: 0, 1: 128, 2: 64, 3: 32}  # bits 62-63: bytes of the swizzle's span
_RESERVED = 0xFFFF_FFFF_FFFF_FFFF & ~(0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 7 << 49 | 3 << 62)


@dataclass(frozen=True)
class MatrixDescriptor:
    """start, lbo, sbo in bytes; swizzle: 0, 32, 64 or 128 bytes."""

    start: int
    lbo: int
    sbo: int
    swizzle: int

    @staticmethod
    def decode(bits: int, what: str) -> MatrixDescriptor:
        """Raises Fault for reserved bits and a base offset."""
        if bits & _RESERVED:
            raise Fault(f"the descriptor {bits:#018x} of {what} has reserved bits set: {bits & _RESERVED:#x}")
        if bits >> 49 & 7:
            raise Fault(
                f"the base offset in the descriptor of {what} moves the pattern of its swizzle: it must be 0 here"
            )
        start, lbo, sbo = ((bits >> at & 0x3FFF) * CHUNK for at in (0, 16, 32))
        return MatrixDescriptor(start, lbo, sbo, _SWIZZLES[bits >> 62])

    def chunks(self, extent: int, mn_major: bool) -> Array:
        """Addresses of all chunks: [extent rows, 2] K-major, [16 of k, extent / 8] MN-major (16-bit elements)."""
        span = max(self.swizzle, CHUNK)
        if mn_major:
            k, chunk = np.arange(16)[:, None], np.arange(extent // 8)
            within = k % 8 * span
            if self.swizzle:
                offsets = chunk * CHUNK % span + chunk * CHUNK // span * self.lbo + within + k // 8 * self.sbo
            else:
                offsets = chunk * self.sbo + within + k // 8 * self.lbo
        else:
            row, chunk = np.arange(extent)[:, None], np.arange(2)
            offsets = row % 8 * span + row // 8 * self.sbo + chunk * (CHUNK if self.swizzle else self.lbo)
        return swizzle_offsets(self.start + offsets, self.swizzle)
