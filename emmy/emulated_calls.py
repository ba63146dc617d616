"""Calls on the PTX emulator: NumPy arrays stand in its memory as they lie in ours, gaps between their elements poisoned."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from emmy.binding import ArrayInfo, BoundBuffer, BoundCall, BoundLaunch, BoundTensorMap
from emmy.errors import EmmyError
from emmy.launch_specs import DTYPE_NAMES, DTYPES, Array
from emmy.overlap import refuse_overlap

if TYPE_CHECKING:
    from emmy.artefact import Artefact
    from emmy.emulator import Emulator, Report

POISON = 0xFF
"""As every byte of an element it reads as NaN in f16, bf16 and f32."""

PLACED_ALIGNMENT = 256
"""Bytes: addresses modulo this are those of the NumPy arrays."""

LARGE_SPAN = 1 << 28
"""Bytes from which gaps are zeros, which cost no memory until they are touched, and stay behind when a result is copied back."""


def numpy_info(array: Array, placed: bool = False) -> ArrayInfo:
    """The `ArrayInfo` of a NumPy array; `placed`: with its address, for memory that keeps the array's alignment."""
    itemsize = array.dtype.itemsize
    return ArrayInfo(
        DTYPE_NAMES.get(array.dtype, str(array.dtype)),
        array.shape,
        tuple(stride // itemsize for stride in array.strides),
        array.ctypes.data if placed else None,
    )


def with_plain_strides(array: Array) -> Array:
    """The array, or a dense copy where strides are negative or no whole numbers of elements."""
    itemsize = array.dtype.itemsize
    return array if all(s >= 0 and s % itemsize == 0 for s in array.strides) else np.ascontiguousarray(array)


@dataclass(frozen=True, eq=False)
class Placed:
    """An array in the emulator's memory: `memory` are the bytes from a multiple of `PLACED_ALIGNMENT` to the last element,
    `array` is the view of its elements, at `offset` and with the strides of the original."""

    memory: Array
    offset: int
    array: Array

    @staticmethod
    def like(original: Array) -> Placed:
        """Memory for an array that lies as `original` does; nothing but poison in it."""
        offset = original.ctypes.data % PLACED_ALIGNMENT if original.size else 0
        size = offset + max(span_bytes(original), original.dtype.itemsize)
        memory: Array = np.zeros(size, np.uint8) if size > LARGE_SPAN else np.full(size, POISON, np.uint8)
        view: Array = np.ndarray(original.shape, original.dtype, memory.data, offset, original.strides)
        return Placed(memory, offset, view)

    @staticmethod
    def copy(original: Array) -> Placed:
        """The elements of an array, in memory of the emulator."""
        placed = Placed.like(original)
        placed.array[...] = original
        return placed

    @staticmethod
    def around(original: Array) -> Placed:
        """Memory for a result that is the caller's own: elements are poison, what lies between them is what it is."""
        placed = Placed.like(original)
        if original.size:
            if placed.memory.size <= LARGE_SPAN:
                placed.memory[placed.offset :] = bytes_between(original)
            bits: Array = np.ndarray(
                original.shape, f"u{original.itemsize}", placed.memory.data, placed.offset, original.strides
            )
            bits[...] = np.iinfo(bits.dtype).max
        return placed


def span_bytes(array: Array) -> int:
    """Bytes from the first element of an array to the end of its last one."""
    if not array.size:
        return 0
    return array.itemsize + sum((size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True))


def bytes_between(array: Array) -> Array:
    """The memory from the first element of an array to its last one, gaps included, as bytes that can be written."""
    memory = (ctypes.c_uint8 * span_bytes(array)).from_address(array.ctypes.data)
    return np.frombuffer(memoryview(memory), np.uint8)


def run_on_emulator(
    artefact: Artefact, entry: str, arrays: Sequence[Array], outs: Sequence[Array] | None = None, **options: Any
) -> tuple[list[Array], list[Report]]:
    """Run an entry on the PTX emulator: the results in order (`outs`, if given), and one report for each launch.

    `options` go to `Emulator.launch` (`landing`, `order`, `seed`). Arrays keep their strides and their alignment; a gap that is
    read gives NaN, a gap that is written in `outs` changes there too. Results and temporaries that are allocated here count
    as uninitialised until a kernel writes them. Raises `EmmyError` as `emmy.binding.bind` does.
    """
    arrays = [with_plain_strides(array) for array in arrays]
    infos = [numpy_info(array, placed=True) for array in arrays]
    call = artefact.bind(entry, infos, outs=None if outs is None else [numpy_info(out, placed=True) for out in outs])
    refuse_overlap(arrays, outs or (), [argument["name"] for argument in artefact.entry(entry)["arguments"]])
    run = _Run(artefact, options)
    for argument, array in zip(artefact.entry(entry)["arguments"], arrays, strict=True):
        run.buffers[argument["name"]] = Placed.copy(array)
    for buffer, out in zip(call.results, outs or (), strict=False):
        run.buffers[buffer.name] = Placed.around(out)
    run.allocate([buffer for buffer in (*call.results, *call.temporaries) if buffer.name not in run.buffers])
    run.launch_all(call)
    results = [run.buffers[buffer.name] for buffer in call.results]
    for placed, out in zip(results, outs or (), strict=False):
        if placed.memory.size > LARGE_SPAN:
            out[...] = placed.array
        elif out.size:
            bytes_between(out)[...] = placed.memory[placed.offset :]
    return list(outs) if outs is not None else [placed.array for placed in results], run.reports


@functools.lru_cache(maxsize=16)
def _emulator(ptx: str) -> Emulator:
    """The emulator of a text; parsing one takes as long as a small launch."""
    from emmy.emulator import Emulator

    return Emulator(ptx)


class _Run:
    """The launches of one call."""

    def __init__(self, artefact: Artefact, options: dict[str, Any]):
        self.artefact, self.options = artefact, options
        self.buffers: dict[str, Placed] = {}
        self.unwritten: set[str] = set()
        self.reports: list[Report] = []

    def allocate(self, buffers: Sequence[BoundBuffer]) -> None:
        """Results and temporaries: row-major, aligned, without contents."""
        for buffer in buffers:
            array: Array = np.zeros(buffer.shape, DTYPES[buffer.dtype])
            memory: Array = array.reshape(-1).view(np.uint8) if array.size else np.zeros(array.itemsize, np.uint8)
            self.buffers[buffer.name] = Placed(memory, 0, array)
            self.unwritten.add(buffer.name)

    def launch_all(self, call: BoundCall) -> None:
        """Every launch, in order."""
        for launch in call.launches:
            self.reports.append(self._launch(launch))
            self.unwritten -= {value for _, value in launch.params if isinstance(value, str)}

    def _launch(self, launch: BoundLaunch) -> Report:
        ptx = self.artefact.images[launch.image].ptx
        if ptx is None:
            raise EmmyError(f"image '{launch.image}' has no PTX, so the emulator cannot run it")
        return _emulator(ptx).launch(
            kernel=launch.kernel,
            grid=launch.grid,
            block=launch.block,
            args=[self._argument(value) for _, value in launch.params],
            shared_bytes=launch.shared_bytes,
            **self.options,
        )

    def _argument(self, value: str | int | BoundTensorMap) -> Any:
        if isinstance(value, int):
            return value
        if isinstance(value, str):
            return self._buffer(value)
        return _emulated_map(value, self._buffer(value.of))

    def _buffer(self, name: str) -> Any:
        from emmy.emulator import Pointer, Uninitialised

        placed = self.buffers[name]
        return Uninitialised(placed.memory) if name in self.unwritten else Pointer(placed.memory, placed.offset)


def _emulated_map(bound: BoundTensorMap, buffer: Any) -> Any:
    """The emulator's argument for a tensor map; of an empty tensor one element that nothing reads, as on a device."""
    from emmy.emulator import TensorMap

    size = DTYPES[bound.dtype].itemsize
    if bound.empty:
        sizes, strides = (1,) * len(bound.sizes), (16,) * len(bound.strides)
        return TensorMap(np.zeros(1, DTYPES[bound.dtype]), size, sizes, strides, bound.box, bound.swizzle)
    return TensorMap(buffer, size, bound.sizes, bound.strides, bound.box, bound.swizzle)
