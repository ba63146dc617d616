"""Tensor maps for a CUDA device: what TMA reads from a kernel's parameters, encoded by the driver in host memory.

The driver's function is called through its address and not through `cuda.bindings`: that places the result in a Python
object, which begins at a multiple of 16 bytes only, and the driver wants 64 (128 since CUDA 13's header).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from emmy.artefact import BoundTensorMap, check_alignment

MAP_BYTES, MAP_ALIGNMENT = 128, 128

INTRODUCED = 12000
"""The CUDA version whose `cuTensorMapEncodeTiled` is meant."""

# CUDA driver API: CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion.
DATA_TYPES = {"f8E4M3FN": 0, "f8E5M2": 0, "i32": 4, "f16": 6, "f32": 7, "bf16": 9}
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
INTERLEAVE_NONE, PROMOTE_256_BYTES, FILL_ZEROS = 0, 3, 0

_PROTOTYPE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_uint32,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
)


class HostMap:
    """128 bytes of host memory at a multiple of 128."""

    def __init__(self) -> None:
        self._memory = (ctypes.c_uint8 * (MAP_BYTES + MAP_ALIGNMENT))()
        self.address = -(-ctypes.addressof(self._memory) // MAP_ALIGNMENT) * MAP_ALIGNMENT


Call = Callable[..., Any]


def encoder(driver: Any, call: Call) -> Callable[..., int]:
    """The driver's `cuTensorMapEncodeTiled`. `call(what, function, *args)` calls the driver and raises what went wrong."""
    name = b"cuTensorMapEncodeTiled"
    flags = driver.CUdriverProcAddress_flags.CU_GET_PROC_ADDRESS_DEFAULT
    return _PROTOTYPE(int(call("find the driver's tensor maps", driver.cuGetProcAddress, name, INTRODUCED, flags)))


def _array(kind: Any, values: Sequence[int]) -> Any:
    return (kind * max(len(values), 1))(*values)


def encode(function: Callable[..., int], bound: BoundTensorMap, address: int) -> tuple[int, HostMap]:
    """The driver's status and the tensor map of a tensor at `address`.

    An empty tensor may have no address, and nothing is read from it; its map is fetched all the same, so it is that of one
    element somewhere. Raises `EmmyError` for an address that is no multiple of 16 bytes.
    """
    host, sizes, strides = HostMap(), bound.sizes, bound.strides
    if bound.empty:
        address, sizes, strides = host.address, (1,) * len(sizes), (16,) * len(strides)
    check_alignment(bound.of, address, 16)
    status = function(
        host.address,
        DATA_TYPES[bound.dtype],
        len(sizes),
        address,
        _array(ctypes.c_uint64, sizes[::-1]),
        _array(ctypes.c_uint64, strides[::-1]),
        _array(ctypes.c_uint32, bound.box[::-1]),
        _array(ctypes.c_uint32, [1] * len(bound.box)),
        INTERLEAVE_NONE,
        SWIZZLES[bound.swizzle],
        PROMOTE_256_BYTES,
        FILL_ZEROS,
    )
    return int(status), host
