"""PTX types as NumPy dtypes, and roundings that NumPy lacks. Every table here follows PTX ISA, "Fundamental Types"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
Kind = Literal["signed", "unsigned", "bits", "float", "pred"]


@dataclass(frozen=True)
class DataType:
    """One PTX type. `bits` is the whole width; `packed` elements of `dtype` share it (2 for f16x2)."""

    name: str
    bits: int
    kind: Kind
    dtype: np.dtype[Any]
    packed: int = 1

    @property
    def bytes(self) -> int:
        return max(1, self.bits // 8)


def _table() -> dict[str, DataType]:
    types = [DataType("pred", 1, "pred", np.dtype(np.bool_))]
    for bits in (8, 16, 32, 64):
        types.append(DataType(f"s{bits}", bits, "signed", np.dtype(f"int{bits}")))
        types.append(DataType(f"u{bits}", bits, "unsigned", np.dtype(f"uint{bits}")))
        types.append(DataType(f"b{bits}", bits, "bits", np.dtype(f"uint{bits}")))
    types += [
        DataType("e4m3", 8, "float", np.dtype(ml_dtypes.float8_e4m3fn)),
        DataType("e5m2", 8, "float", np.dtype(ml_dtypes.float8_e5m2)),
        DataType("f16", 16, "float", np.dtype(np.float16)),
        DataType("bf16", 16, "float", _BFLOAT16),
        DataType("f32", 32, "float", np.dtype(np.float32)),
        DataType("f64", 64, "float", np.dtype(np.float64)),
        DataType("f16x2", 32, "float", np.dtype(np.float16), 2),
        DataType("bf16x2", 32, "float", _BFLOAT16, 2),
        DataType("f32x2", 64, "float", np.dtype(np.float32), 2),
    ]
    return {t.name: t for t in types}


TYPES = _table()

# How a register of each width is stored; predicates are Booleans.
STORAGE: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.bool_),
    8: np.dtype(np.uint8),
    16: np.dtype(np.uint16),
    32: np.dtype(np.uint32),
    64: np.dtype(np.uint64),
}


_LEAST_NORMAL = np.finfo(np.float32).tiny


def any_true(flags: Array) -> bool:
    """`flags.any()` of a few booleans, in a quarter of the time."""
    return b"\1" in flags.tobytes()


def all_true(flags: Array) -> bool:
    """`flags.all()` of a few booleans, in a quarter of the time."""
    return b"\0" not in flags.tobytes()


def flush_subnormals(value: Array) -> Array:
    """`.ftz`: float32 subnormals become zero of the same sign."""
    return np.where(np.abs(value) < _LEAST_NORMAL, np.copysign(np.float32(0), value), value)


def add_round_to_odd(a: Array, b: Array) -> Array:
    """a + b (float64) rounded to odd, so that a second rounding to float32 or less is the rounding of the exact sum."""
    total = a + b
    rest = total - a
    error = (a - (total - rest)) + (b - rest)
    even = (total.view(np.int64) & 1) == 0
    inexact = (error != 0) & even & np.isfinite(total)
    if inexact.any():
        total = np.where(inexact, np.nextafter(total, np.where(error > 0, np.inf, -np.inf)), total)
    return total


def narrow(value: Array, dtype: np.dtype[Any], mode: str = "rn") -> Array:
    """Round `value` (a float type at least as wide as `dtype`) to `dtype`; mode rn, rz, rm or rp."""
    if mode == "rn" and dtype == _BFLOAT16 and value.dtype.itemsize > 4:
        # The cast would round to float32 on the way: make that step round to odd.
        single = narrow(value, np.dtype(np.float32), "rz")
        inexact = (single.astype(value.dtype) != value) & ~np.isnan(value)
        value = (single.view(np.uint32) | inexact).view(np.float32)
    result = value.astype(dtype)
    if mode == "rn":
        return result
    back = result.astype(value.dtype)
    if mode == "rz":
        down, up = (back > value) & (value > 0), (back < value) & (value < 0)
    elif mode == "rm":
        down, up = back > value, np.zeros(value.shape, bool)
    else:
        down, up = np.zeros(value.shape, bool), back < value
    unsigned = STORAGE[dtype.itemsize * 8]
    bits = result.view(unsigned).copy()
    sign: Array = np.array(1 << (dtype.itemsize * 8 - 1), unsigned)
    one: Array = np.array(1, unsigned)
    negative = (bits & sign) != 0
    zero = (bits & ~sign) == 0
    # Floats are sign and magnitude: towards minus infinity is magnitude - 1 above zero and + 1 below it.
    lower: Array = np.where(zero, sign | one, np.where(negative, bits + one, bits - one))
    higher: Array = np.where(zero, one, np.where(negative, bits - one, bits + one))
    return np.where(down, lower, np.where(up, higher, bits)).astype(unsigned).view(dtype)
