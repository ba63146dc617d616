"""Attention checked without PyTorch: `emmy.bench.attention_check` in NumPy, for small problems (`--one`, and the emulator)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emmy.bench.attention import Task
from emmy.bench.attention_check import sequences
from emmy.bench.attention_inputs import counted_rows, keys_of_rows
from emmy.bench.eager import judged

Array = NDArray[Any]


def rounded(values: Array, dtype: Any) -> Array:
    """`values` as an eager run keeps them: rounded to `dtype`, and taken up again in f32. None leaves float64 as it is."""
    return values if dtype is None else values.astype(dtype).astype(np.float32)


def one_head(tensors: Sequence[Any], task: Task, dtype: Any = None) -> Array:
    """q (rows x depth), k, v (keys x depth) and a bias (rows x keys) or None, in float64, or each step rounded to `dtype`; rows
    that see no key give zeros."""
    wide = np.float64 if dtype is None else np.float32
    q, k, v = (x.astype(wide) for x in tensors[:3])
    bias = None if tensors[3] is None else tensors[3].astype(wide)
    with np.errstate(invalid="ignore"):
        scores = rounded(rounded(q @ k.T, dtype) * wide(task["scale"]), dtype)
        if bias is not None:
            scores = rounded(scores + bias, dtype)
        first, last = keys_of_rows(task, q.shape[0], k.shape[0])
        key: Array = np.arange(k.shape[0], dtype=np.int64)
        scores = np.where((key >= first[:, None]) & (key <= last[:, None]), scores, -math.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-math.inf))
        weights = rounded(weights / weights.sum(-1, keepdims=True), dtype)
        nothing = np.all(scores == -math.inf, axis=-1, keepdims=True)
        return rounded(np.where(nothing, 0.0, weights) @ v, dtype)


def compare(args: Sequence[Array], task: Task, out: Array) -> dict[str, Any]:
    """As `attention_check.compare`, every head against float64."""
    errors: dict[str, list[Array]] = {"ours": [], "eager": [], "rounding": []}
    not_finite = 0
    for _, _, given, got in sequences(args, task, out):
        counted = counted_rows(task, *(x.shape[0] for x in given[:2]))
        exact = one_head(given, task)
        found = {"ours": got, "eager": one_head(given, task, out.dtype), "rounding": rounded(exact, out.dtype)}
        not_finite += int(np.sum(~np.isfinite(got[counted].astype(np.float64))))
        for name, value in found.items():
            errors[name].append(np.abs(value.astype(np.float64) - exact)[counted].ravel())
    figures: dict[str, tuple[float, float]] = {}
    for name, parts in errors.items():
        every = np.concatenate([*parts, np.zeros(0)])
        figures[name] = (float(np.mean(every)) if every.size else 0.0, float(np.max(every, initial=0.0)))
    return judged(figures, None, not_finite)
