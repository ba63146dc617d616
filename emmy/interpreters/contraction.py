"""What each accumulation policy and each reduction compute, on NumPy arrays: one definition for the interpreters."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from emmy.dialects.tensor_op import AccumulateAttr

Array = NDArray[Any]

K_STEP = 16
"""Contraction elements of one 16-bit atom: an f16 sum is rounded once a k-step, as the tensor cores do."""

EIGHT_BIT_K_STEP = 32
"""The same of an 8-bit atom."""


_F16_VALUES: Array = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
_F8_VALUES: dict[np.dtype[Any], Array] = {
    np.dtype(dtype): np.arange(2**8, dtype=np.uint8).view(dtype).astype(np.float32)
    for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
}


def to_f32(values: Any) -> Array:
    """An array or scalar as f32. For f16 and 8-bit floats a table of all values, since NumPy converts element by element."""
    array = np.asarray(values)
    if array.dtype in _F8_VALUES:
        return _F8_VALUES[array.dtype][array.view(np.uint8)]
    return _F16_VALUES[array.view(np.uint16)] if array.dtype == np.float16 else array.astype(np.float32)


def contract(
    total: Array, a: Array, b: Array, policy: AccumulateAttr, step: int = K_STEP, eight_bits: bool = False
) -> Array:
    """`total` + a @ b in the dtype of `total` (f32, or f16 under the f16 policy); a is [.., M, K], b [.., K, N], both f32.

    `step`: contraction elements that an f32 sum takes at once. `eight_bits`: whether operands were; the hybrid policy's partial
    sums are f32 then, unless it says `partial = f16`. Policies whose sums are f16 round after each k-step; under `redo` a
    partial sum that is not finite is replaced by that of f32.
    """
    name, depth, k_step = policy.policy.data, a.shape[-1], EIGHT_BIT_K_STEP if eight_bits else K_STEP
    if name == "f32":
        for k in range(0, depth, step):
            total = total + a[..., k : k + step] @ b[..., k : k + step, :]
        return total
    if name == "f16":
        return _sum_f16(total, a, b, k_step)
    for k in range(0, depth, policy.max_k.data):
        part = slice(k, k + policy.max_k.data)
        if eight_bits and policy.partial.data != "f16":
            total = total + a[..., part] @ b[..., part, :]
            continue
        partial = _sum_f16(np.zeros(total.shape, np.float16), a[..., part], b[..., part, :], k_step).astype(np.float32)
        if policy.overflow.data == "redo" and not np.isfinite(partial).all():
            partial = np.where(np.isfinite(partial), partial, a[..., part] @ b[..., part, :])
        total = total + partial
    return total


def _sum_f16(total: Array, a: Array, b: Array, step: int) -> Array:
    for k in range(0, a.shape[-1], step):
        product = a[..., k : k + step] @ b[..., k : k + step, :]
        total = (total.astype(np.float32) + product).astype(np.float16)
    return total


def reduce_axis(kind: str, values: Array, axis: int, left: int = 1) -> Array:
    """The sum (in f32) or maximum along an axis, to `left` elements: number i is over those that are i modulo `left`."""
    shape = values.shape
    parts = values.reshape(*shape[:axis], shape[axis] // left, left, *shape[axis + 1 :])
    if kind == "max":
        return parts.max(axis=axis)
    return to_f32(parts).sum(axis=axis, dtype=np.float32).astype(values.dtype)
