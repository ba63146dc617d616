"""Global memory: each buffer at its own 64-bit base address, so far apart that no stray index reaches another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from emmy.emulator.datatypes import Array
from emmy.emulator.faults import EmulatorError, Fault

_SLOT = 36  # address bits of one buffer's slot: 64 GiB, the buffer begins in its middle
_MIDDLE = 1 << (_SLOT - 1)


@dataclass(frozen=True)
class Pointer:
    """A kernel argument: the address `byte_offset` bytes into the buffer `array`."""

    array: Array
    byte_offset: int = 0


@dataclass(frozen=True)
class Uninitialised:
    """A kernel argument: a buffer whose contents may not be read before they are written."""

    array: Array


@dataclass
class _Buffer:
    index: int
    bytes: Array
    initialised: Array | None

    def words(self, width: int) -> Array:
        count = self.bytes.size // width * width
        return self.bytes[:count].view(f"uint{8 * width}")


class GlobalMemory:
    """The buffers of one launch."""

    def __init__(self) -> None:
        self.buffers: list[_Buffer] = []
        self.known: dict[tuple[int, int], int] = {}
        self.views: list[dict[int, Array]] = []

    def add(self, argument: Array | Uninitialised | Pointer) -> int:
        """The device address of an array argument; the same memory gets the same address. Raises EmulatorError."""
        array = argument if isinstance(argument, np.ndarray) else argument.array
        if not array.flags.c_contiguous or not array.flags.writeable:
            raise EmulatorError("a buffer must be a writeable, C-contiguous array")
        key = (array.ctypes.data, array.nbytes)
        if key not in self.known:
            flat: Array = array.reshape(-1).view(np.uint8)
            buffer = _Buffer(len(self.buffers) + 1, flat, None)
            self.known[key] = len(self.buffers)
            self.buffers.append(buffer)
            self.views.append({width: buffer.words(width) for width in (1, 2, 4, 8)})
        buffer = self.buffers[self.known[key]]
        if isinstance(argument, Uninitialised):
            buffer.initialised = np.zeros(buffer.bytes.size, np.bool_)
        offset = argument.byte_offset if isinstance(argument, Pointer) else 0
        return (buffer.index << _SLOT) + _MIDDLE + offset

    def window(self, address: int, shape: Sequence[int], strides: Sequence[int]) -> tuple[Array, Array | None]:
        """Bytes of one buffer, strided (strides in bytes), and which of them are initialised (None: all).

        Raises Fault if they do not lie within a buffer.
        """
        slot = address >> _SLOT
        size = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        if not 1 <= slot <= len(self.buffers):
            raise Fault(f"global address {address:#x} is out of bounds: no buffer is near")
        buffer = self.buffers[slot - 1]
        offset = address - ((slot << _SLOT) + _MIDDLE)
        if not 0 <= offset <= buffer.bytes.size - size:
            raise Fault(
                f"global address {address:#x} is out of bounds: byte {offset} of a buffer of {buffer.bytes.size} "
                f"bytes, the access takes {size}"
            )

        def strided(flat: Array) -> Array:
            return np.lib.stride_tricks.as_strided(flat[offset:], shape, strides)

        return strided(buffer.bytes), None if buffer.initialised is None else strided(buffer.initialised)

    def _locate(self, addresses: Array, size: int, warp: Array, lane: Array) -> list[tuple[int, Any, Array]]:
        """(buffer position, which accesses, byte offsets) for each buffer that is touched."""
        slots = addresses >> _SLOT
        first = int(slots[0])
        if (slots == first).all():
            parts: list[tuple[int, Any]] = [(first, slice(None))]
        else:
            parts = [(int(s), np.flatnonzero(slots == s)) for s in np.unique(slots)]
        found: list[tuple[int, Any, Array]] = []
        for slot, chosen in parts:
            mine = addresses[chosen]
            if not 1 <= slot <= len(self.buffers):
                self._out_of_bounds(mine, mine == mine, warp[chosen], lane[chosen], "no buffer is near")
            buffer = self.buffers[slot - 1]
            offsets: Array = mine - ((slot << _SLOT) + _MIDDLE)
            bad = (offsets < 0) | (offsets > buffer.bytes.size - size)
            if bad.any():
                where = int(offsets[bad.argmax()])
                text = f"byte {where} of a buffer of {buffer.bytes.size} bytes, the access takes {size}"
                self._out_of_bounds(mine, bad, warp[chosen], lane[chosen], text)
            bad = (offsets & (size - 1)) != 0
            if bad.any():
                i = int(bad.argmax())
                raise Fault(
                    f"misaligned: global address {int(mine[i]):#x} (byte {int(offsets[i])} of its buffer) is no "
                    f"multiple of {size} bytes",
                    int(warp[chosen][i]),
                    int(lane[chosen][i]),
                )
            found.append((slot - 1, chosen, offsets))
        return found

    def _out_of_bounds(self, addresses: Array, bad: Array, warp: Array, lane: Array, text: str) -> NoReturn:
        i = int(bad.argmax())
        raise Fault(f"global address {int(addresses[i]):#x} is out of bounds: {text}", int(warp[i]), int(lane[i]))

    def load(self, addresses: Array, width: int, count: int, warp: Array, lane: Array) -> Array:
        """`count` words of `width` bytes at each address: unsigned array [accesses, count].

        Raises Fault for out-of-bounds, misaligned and uninitialised accesses.
        """
        size = width * count
        parts = self._locate(addresses, size, warp, lane)
        steps = np.arange(count)
        result: Array = np.empty((addresses.size, count), f"uint{8 * width}")
        for position, chosen, offsets in parts:
            initialised = self.buffers[position].initialised
            if initialised is not None:
                missing = ~initialised[offsets[:, None] + np.arange(size)].all(axis=1)
                if missing.any():
                    i = int(missing.argmax())
                    raise Fault(
                        f"uninitialised: byte {int(offsets[i])} of a global buffer was never written",
                        int(warp[chosen][i]),
                        int(lane[chosen][i]),
                    )
            result[chosen] = self.views[position][width][(offsets // width)[:, None] + steps]
        return result

    def load_bytes(self, addresses: Array, count: int, alignment: int, warp: Array, lane: Array) -> Array:
        """`count` (1 .. alignment) bytes at each address, which must be a multiple of `alignment`: [accesses, count]."""
        flat = (addresses[:, None] + np.arange(count)).reshape(-1)
        bad = (addresses & (alignment - 1)) != 0
        if bad.any():
            i = int(bad.argmax())
            raise Fault(
                f"misaligned: global address {int(addresses[i]):#x} is no multiple of {alignment} bytes",
                int(warp[i]),
                int(lane[i]),
            )
        return self.load(flat, 1, 1, np.repeat(warp, count), np.repeat(lane, count)).reshape(-1, count)

    def store(self, addresses: Array, values: Array, warp: Array, lane: Array) -> None:
        """Write values [accesses, count] of an unsigned dtype. Raises Fault as `load` does."""
        width, count = values.dtype.itemsize, values.shape[1]
        for position, chosen, offsets in self._locate(addresses, width * count, warp, lane):
            self.views[position][width][(offsets // width)[:, None] + np.arange(count)] = values[chosen]
            initialised = self.buffers[position].initialised
            if initialised is not None:
                initialised[offsets[:, None] + np.arange(width * count)] = True
