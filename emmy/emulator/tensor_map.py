"""Tensor maps: what cuTensorMapEncodeTiled would encode, its rules, and the boxes that TMA moves by them.

Lists are written as in NumPy, the outermost dimension first; PTX names coordinates the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emmy.emulator.datatypes import Array
from emmy.emulator.faults import EmulatorError, Fault
from emmy.emulator.global_memory import GlobalMemory, Pointer, Uninitialised

MAP_BYTES = 128
# Where each swizzle repeats, bytes; a box must begin there so that the pattern begins with it.
SWIZZLE_PERIOD = {0: 128, 32: 256, 64: 512, 128: 1024}
_MOST_SIZE, _MOST_STRIDE, _MOST_BOX = 1 << 32, 1 << 40, 256


def swizzle_offsets(offsets: Array, swizzle: int) -> Array:
    """Shared-memory byte addresses under a swizzle of 0, 32, 64 or 128 bytes: bits 4-6 are XORed with bits 7-9."""
    return offsets ^ ((offsets >> 7 & (swizzle // 16 - 1 if swizzle else 0)) << 4)


@dataclass(frozen=True, eq=False)
class TensorMap:
    """A kernel argument for `.param .align 64 .b8 name[128]`.

    array: the buffer, `Uninitialised(buffer)` or `Pointer(buffer, byte offset)`: the address of element 0.
    element_bytes: 1, 2, 4 or 8. sizes: elements of each dimension, the outermost first. strides: bytes from one index to
    the next, of all dimensions but the innermost. box: elements of the box. swizzle: 0, 32, 64 or 128 bytes.

    Raises EmulatorError where cuTensorMapEncodeTiled would fail (CUDA driver API, "Tensor Map Object Management"), if
    the tensor does not lie within the buffer, and for swizzled boxes narrower than the swizzle.
    """

    array: Array | Uninitialised | Pointer
    element_bytes: int
    sizes: Sequence[int]
    strides: Sequence[int]
    box: Sequence[int]
    swizzle: int = 0

    def __post_init__(self) -> None:
        rank = len(self.sizes)
        if not 1 <= rank <= 5:
            _refuse(f"has 1 to 5 dimensions, not {rank}")
        if len(self.strides) != rank - 1 or len(self.box) != rank:
            _refuse(
                f"of {rank} dimensions has {rank - 1} strides and a box of {rank} sizes, "
                f"not {len(self.strides)} and {len(self.box)}"
            )
        if self.element_bytes not in (1, 2, 4, 8):
            _refuse(f"has elements of 1, 2, 4 or 8 bytes, not {self.element_bytes}")
        if not all(1 <= size <= _MOST_SIZE for size in self.sizes):
            _refuse(f"has sizes from 1 to 2^32, not {list(self.sizes)}")
        if not all(0 <= stride < _MOST_STRIDE and stride % 16 == 0 for stride in self.strides):
            _refuse(f"has strides that are multiples of 16 bytes and less than 2^40, not {list(self.strides)}")
        if not all(1 <= size <= _MOST_BOX for size in self.box):
            _refuse(f"has a box of 1 to {_MOST_BOX} elements in each dimension, not {list(self.box)}")
        self._check_inner_box()
        self._check_buffer()

    def _check_inner_box(self) -> None:
        inner = self.inner_bytes
        if inner % 16:
            _refuse(f"has a box whose innermost dimension is a multiple of 16 bytes, not {inner}")
        if self.swizzle not in SWIZZLE_PERIOD:
            _refuse(f"has a swizzle of 0, 32, 64 or 128 bytes, not {self.swizzle}")
        if self.swizzle and inner > self.swizzle:
            _refuse(f"with a {self.swizzle}-byte swizzle has a box at most that wide, not {inner} bytes")
        if self.swizzle and inner < self.swizzle:
            raise EmulatorError(
                f"a box of {inner} bytes under a {self.swizzle}-byte swizzle is not modelled: "
                "make the box as wide as the swizzle"
            )

    def _check_buffer(self) -> None:
        offset = self.array.byte_offset if isinstance(self.array, Pointer) else 0
        if offset % 16:
            _refuse(f"begins at a multiple of 16 bytes, not at byte {offset} of its buffer")
        array = self.array if isinstance(self.array, np.ndarray) else self.array.array
        last = sum((n - 1) * stride for n, stride in zip(self.sizes, self.strides, strict=False))
        end = offset + last + self.sizes[-1] * self.element_bytes
        if offset < 0 or end > array.nbytes:
            _refuse(f"lies within its buffer of {array.nbytes} bytes, but this one ends at byte {end}")

    @property
    def inner_bytes(self) -> int:
        """Bytes of one row of the box."""
        return self.box[-1] * self.element_bytes

    @property
    def box_bytes(self) -> int:
        """Bytes that one load adds to an mbarrier's count, whatever part of the box lies outside the tensor."""
        return int(np.prod(self.box)) * self.element_bytes


def _refuse(rule: str) -> None:
    raise EmulatorError(f"a tensor map {rule}")


class BoundMap:
    """A tensor map in one launch: it reads and writes boxes of global memory.

    chunks: for each 16 bytes of the box, in its own order, the byte offset from the box's shared address.
    """

    def __init__(self, map_: TensorMap, memory: GlobalMemory):
        self.map = map_
        self.memory = memory
        self.address = memory.add(map_.array)
        self.rank = len(map_.sizes)
        self.bytes = map_.box_bytes
        self.alignment = SWIZZLE_PERIOD[map_.swizzle]
        self.chunks = swizzle_offsets(np.arange(0, self.bytes, 16), map_.swizzle)
        self.box_shape = (*map_.box[:-1], map_.inner_bytes)
        # In bytes, so that the innermost dimension is a dimension like the others.
        self.shape = (*map_.sizes[:-1], map_.sizes[-1] * map_.element_bytes)
        self.strides = (*map_.strides, 1)

    def _inside(self, coordinates: Sequence[int]) -> tuple[tuple[slice, ...], list[int], list[int]]:
        """The part of a box inside the tensor: its slices of the box, its first byte index and extent by dimension."""
        corner = [*coordinates[:-1], coordinates[-1] * self.map.element_bytes]
        first = [max(0, -c) for c in corner]
        last = [min(b, n - c) for b, n, c in zip(self.box_shape, self.shape, corner, strict=True)]
        slices = tuple(slice(low, max(low, high)) for low, high in zip(first, last, strict=True))
        return slices, [c + f for c, f in zip(corner, first, strict=True)], [s.stop - s.start for s in slices]

    def _window(self, start: list[int], extent: list[int]) -> tuple[Array, Array | None]:
        offset = sum(s * stride for s, stride in zip(start, self.strides, strict=True))
        return self.memory.window(self.address + offset, extent, self.strides)

    def covered(self, coordinates: Sequence[int]) -> Array:
        """Which 16-byte chunks of the box hold at least one byte inside the tensor: bool [chunks]."""
        inside: Array = np.zeros(self.box_shape, np.bool_)
        inside[self._inside(coordinates)[0]] = True
        covered: Array = np.asarray(inside.reshape(-1, 16).any(axis=1))
        return covered

    def read(self, coordinates: Sequence[int]) -> Array:
        """The box as uint8 [bytes], zeros outside the tensor. Raises Fault for bytes that were never written."""
        box: Array = np.zeros(self.box_shape, np.uint8)
        slices, start, extent = self._inside(coordinates)
        if all(extent):
            values, initialised = self._window(start, extent)
            if initialised is not None and not initialised.all():
                raise Fault(f"uninitialised: bytes of the box at {list(coordinates)} were never written")
            box[slices] = values
        return box.reshape(-1)

    def write(self, coordinates: Sequence[int], box: Array) -> None:
        """Store the part of a box (uint8 [bytes]) that lies inside the tensor."""
        slices, start, extent = self._inside(coordinates)
        if all(extent):
            values, initialised = self._window(start, extent)
            values[...] = box.reshape(self.box_shape)[slices]
            if initialised is not None:
                initialised[...] = True
