"""What an array that a user passes is: its address, shape, strides, dtype and device, read without copying.

PyTorch tensors are read through their own methods (the fast path), other device arrays through DLPack
(`__dlpack__`, https://dmlc.github.io/dlpack) or, failing that, the CUDA array interface (`__cuda_array_interface__`).
No framework is imported: one that a user passes arrays of has been imported already.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from emmy.artefact import DTYPE_NAMES, ArrayInfo, BoundBuffer
from emmy.errors import EmmyError

DLPACK_CUDA = 2
# (code, bits) of DLDataType to our names; codes: 0 signed integer, 2 IEEE float, 4 bfloat, 10 float8_e4m3fn, 12 float8_e5m2.
DLPACK_DTYPES = {
    (2, 16): "f16",
    (4, 16): "bf16",
    (2, 32): "f32",
    (0, 32): "i32",
    (0, 8): "i8",
    (10, 8): "f8E4M3FN",
    (12, 8): "f8E5M2",
}
TORCH_DTYPES = {
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "i32": "int32",
    "i8": "int8",
    "f8E4M3FN": "float8_e4m3fn",
    "f8E5M2": "float8_e5m2",
}


@dataclass(frozen=True)
class DeviceArray:
    """An array in a GPU's memory. `owner` keeps the memory alive while a kernel is being launched on it."""

    name: str  # of the argument, for messages
    info: ArrayInfo
    device: int  # the ordinal; -1 where only the driver knows
    owner: object


def is_torch_tensor(array: Any) -> bool:
    """Whether `array` is a PyTorch tensor; false without importing PyTorch if nobody has."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def device_ordinal(arrays: Sequence[Any]) -> int:
    """The GPU that a call's first array in GPU memory is on; 0 if that is not known, or all are in host memory."""
    for array in arrays:
        if is_torch_tensor(array):
            return max(array.get_device(), 0)
        if hasattr(array, "__dlpack_device__"):
            kind, device = array.__dlpack_device__()
            if int(kind) == DLPACK_CUDA:
                return int(device)
    return 0


def read_device_array(array: Any, name: str, stream: int) -> DeviceArray:
    """Describe a device array. `stream` is the handle that will use it: a producer makes its pending writes visible
    to it. Raises `EmmyError`, naming the argument, for arrays in host memory and objects that are no arrays."""
    if is_torch_tensor(array):
        return _read_torch(array, name)
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return _read_dlpack(array, name, stream)
    if hasattr(array, "__cuda_array_interface__"):
        return _read_cuda_array_interface(array, name)
    raise EmmyError(f"argument '{name}' is a {type(array).__name__}; expected an array (NumPy, PyTorch, DLPack)")


def _read_torch(tensor: Any, name: str) -> DeviceArray:
    if not tensor.is_cuda:
        raise EmmyError(f"argument '{name}' is a tensor on '{tensor.device}'; move it to a CUDA device or pass NumPy")
    torch = sys.modules["torch"]
    if tensor.layout != torch.strided:
        kind = str(tensor.layout).removeprefix("torch.")
        raise EmmyError(f"argument '{name}' is a {kind} tensor; pass a dense one, as .to_dense() gives")
    if tensor.is_neg():  # a view that PyTorch negates when it reads it
        raise EmmyError(f"argument '{name}' is a view that is still to be negated; pass .resolve_neg() of it")
    names = {getattr(torch, theirs): ours for ours, theirs in TORCH_DTYPES.items() if hasattr(torch, theirs)}
    dtype = names.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
    info = ArrayInfo(dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.data_ptr())
    return DeviceArray(name, info, tensor.get_device(), tensor)


class _DLTensor(ctypes.Structure):
    """`DLTensor` of dlpack.h, with DLDevice and DLDataType written out."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


def _read_dlpack(array: Any, name: str, stream: int) -> DeviceArray:
    kind, device = array.__dlpack_device__()
    if int(kind) != DLPACK_CUDA:
        raise EmmyError(f"argument '{name}' is a {type(array).__name__} in host memory; expected NumPy or a CUDA array")
    # DLPack counts the legacy default stream, handle 0, as 1. The capsule is not consumed: it frees itself.
    capsule = array.__dlpack__(stream=stream or 1)
    tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    strides = tuple(tensor.strides[axis] for axis in range(tensor.ndim)) if tensor.strides else None
    dtype = DLPACK_DTYPES.get((tensor.code, tensor.bits), f"DLPack type ({tensor.code}, {tensor.bits} bits)")
    address = (tensor.data or 0) + tensor.byte_offset
    return DeviceArray(name, ArrayInfo(dtype, shape, strides, address), int(device), (array, capsule))


def _read_cuda_array_interface(array: Any, name: str) -> DeviceArray:
    """Version 3 of the interface. It names no device; the driver says where the address lies when it is used."""
    interface: dict[str, Any] = array.__cuda_array_interface__
    dtype = np.dtype(interface["typestr"])
    strides = interface.get("strides")
    if strides is not None:
        strides = tuple(int(stride) // dtype.itemsize for stride in strides)
    if interface.get("mask") is not None:
        raise EmmyError(f"argument '{name}' is a masked array; pass a plain one")
    address = int(interface["data"][0] or 0)
    info = ArrayInfo(DTYPE_NAMES.get(dtype, str(dtype)), tuple(interface["shape"]), strides, address)
    return DeviceArray(name, info, -1, array)


def allocate_like(example: Any, buffers: Sequence[BoundBuffer], device: int) -> list[Any]:
    """Uninitialised arrays from the framework of `example`, on `device`. `EmmyError` where there is no way to."""
    if is_torch_tensor(example):
        torch = sys.modules["torch"]
        return [
            torch.empty(buffer.shape, dtype=getattr(torch, TORCH_DTYPES[buffer.dtype]), device=example.device)
            for buffer in buffers
        ]
    if type(example).__module__.partition(".")[0] == "cupy" and all(b.dtype != "bf16" for b in buffers):
        cupy: Any = sys.modules["cupy"]
        with cupy.cuda.Device(device):
            return [cupy.empty(buffer.shape, TORCH_DTYPES[buffer.dtype]) for buffer in buffers]
    framework = type(example).__module__.partition(".")[0]
    raise EmmyError(f"cannot allocate {buffers[0].dtype} results as {framework} arrays; pass out=")
