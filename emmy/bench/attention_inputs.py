"""Hard inputs of attention, and the cases of the suite `attention_accuracy` that have them.

An input is made from standard normal arrays by a function of the table `INPUTS`, in NumPy, so that it is the same on every
machine. What may be NaN is what no row that counts may see: keys that masks hide, and all that lies beyond packed sequences.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emmy.bench.attention import Attention, Task
from emmy.schedules import WARPGROUP_ATOM, WARPGROUP_SHARE

Array = NDArray[Any]
Arrays = dict[str, Array]

HIDDEN_SHARE = 0.5
"""Of the keys that an additive mask hides at random."""

HIDDEN_PREFIX = 128
"""Keys that it hides from the first half of the rows, so that whole blocks of keys are masked."""

HIDDEN_ROW = 5
"""A row that sees nothing."""


def keys_of_rows(task: Task, rows: int, keys: int) -> tuple[Array, Array]:
    """The first and the last key that each row sees (the last before the first where it sees none)."""
    own = np.arange(rows) + (keys - rows)
    window = task["window"]
    first = np.maximum(own - window + 1, 0) if window else np.zeros(rows, int)
    last = np.minimum(own + window - 1, keys - 1) if window else np.full(rows, keys - 1)
    return first, np.minimum(own, last) if task["causal"] else last


def poisoned_keys(task: Task, rows: int, keys: int) -> slice:
    """The keys that are NaN: those that a window hides from every row; without one, the last sixteenth, which a causal mask
    hides from all rows but a sixteenth."""
    first, _ = keys_of_rows(task, rows, keys)
    return slice(0, int(first.min(initial=keys))) if task["window"] else slice(keys - keys // 16, keys)


def counted_rows(task: Task, rows: int, keys: int) -> Array:
    """Whether each row sees no key that is NaN: the others may be anything."""
    if task.get("inputs") != "NaN in hidden keys":
        return np.ones(rows, bool)
    poisoned = poisoned_keys(task, rows, keys)
    first, last = keys_of_rows(task, rows, keys)
    return (last < poisoned.start) | (first >= poisoned.stop)


# ---- the inputs: normal arrays in f32, changed in place --------------------------------------------------------------


def normal(arrays: Arrays, task: Task) -> None:
    """Standard normal."""


def queries_x4(arrays: Arrays, task: Task) -> None:
    """Scores of standard deviation 4."""
    arrays["q"] *= 4


def large_logits(arrays: Arrays, task: Task) -> None:
    """Scores of standard deviation 32: most of softmax is one key or two, and f16 rounds a score of 128 to a sixteenth."""
    arrays["q"] *= 8
    arrays["k"] *= 4


def all_equal(arrays: Arrays, task: Task) -> None:
    """Every score is the same, so that the result is a mean of the values."""
    arrays["q"][:] = 1
    arrays["k"][:] = 0.5


def one_hot(arrays: Arrays, task: Task) -> None:
    """Each row's own key wins: keys of signs, each query four times its own key; the next score is far below."""
    q, k = arrays["q"], arrays["k"]
    k[:] = np.where(k < 0, -1.0, 1.0)
    own: Array = np.arange(q.shape[2], dtype=np.int64) + (k.shape[2] - q.shape[2])
    own = np.clip(own, 0, k.shape[2] - 1)
    q[:] = 4 * np.repeat(k, q.shape[1] // k.shape[1], axis=1)[:, :, own]


def nan_in_hidden_keys(arrays: Arrays, task: Task) -> None:
    """NaN in keys that masks hide (`poisoned_keys`)."""
    arrays["k"][:, :, poisoned_keys(task, arrays["q"].shape[2], arrays["k"].shape[2])] = math.nan


def infinite_masks(arrays: Arrays, task: Task) -> None:
    """An additive mask of minus infinity: half of the keys at random, whole blocks for half of the rows, all of one row."""
    bias = arrays["bias"]
    bias[bias < np.quantile(bias, HIDDEN_SHARE)] = -math.inf
    bias[..., : bias.shape[2] // 2, :HIDDEN_PREFIX] = -math.inf
    bias[..., HIDDEN_ROW, :] = -math.inf


def nan_beyond_sequences(arrays: Arrays, task: Task) -> None:
    """NaN in rows, keys and values after the last packed sequence."""
    starts_q, starts_k = task["starts"]
    arrays["q"][:, :, starts_q[-1] :] = math.nan
    for name in ("k", "v"):
        arrays[name][:, :, starts_k[-1] :] = math.nan


INPUTS: dict[str, Callable[[Arrays, Task], None]] = {
    "normal": normal,
    "queries x4": queries_x4,
    "large logits": large_logits,
    "all equal": all_equal,
    "one-hot": one_hot,
    "NaN in hidden keys": nan_in_hidden_keys,
    "minus infinity": infinite_masks,
    "NaN beyond sequences": nan_beyond_sequences,
}
"""Name in a task -> what it does to normal arrays; its docstring says what is hard about it."""


@functools.lru_cache(maxsize=64)
def _normal(shape: tuple[int, ...], seed: int) -> Array:
    return np.random.RandomState(seed).standard_normal(shape).astype(np.float32)


def make_inputs(task: Task, shapes: Mapping[str, Sequence[int]], seed: int = 0) -> list[Array]:
    """The arguments of a case whose task has `inputs`, in the order of `shapes`: f32, and i32 for where sequences start."""
    arrays = {
        name: _normal(tuple(shape), seed * 1000 + position).copy()
        for position, (name, shape) in enumerate(shapes.items())
        if not name.startswith("starts")
    }
    INPUTS[task["inputs"]](arrays, task)
    for name, starts in zip(("starts_q", "starts_k"), task.get("starts", ()), strict=False):
        arrays[name] = np.array(starts, np.int32)
    return [arrays[name] for name in shapes]


# ---- the cases -------------------------------------------------------------------------------------------------------

DEPTHS = (64, 128, 256)
DTYPES = ("f16", "bf16")
ATOMS = {"mma.sync": WARPGROUP_SHARE, "wgmma": WARPGROUP_ATOM}
"""Class of atoms -> `atom` of the schedule."""

WHOLE = ("normal", "queries x4", "large logits", "all equal", "one-hot")
"""What every mask is tried with."""

KINDS: tuple[tuple[str, dict[str, Any], tuple[str, ...], tuple[str, ...]], ...] = (
    ("whole", {"rows": 1000, "keys": 1000}, WHOLE, ("mma.sync", "wgmma")),
    ("causal", {"rows": 768, "keys": 1024, "causal": True}, (*WHOLE, "NaN in hidden keys"), ("mma.sync", "wgmma")),
    (
        "window",
        {"rows": 640, "keys": 1024, "causal": True, "window": 200},
        ("normal", "large logits", "one-hot", "NaN in hidden keys"),
        ("mma.sync", "wgmma"),
    ),
    ("mask", {"rows": 500, "keys": 700, "bias": (1, 1, 500, 700)}, ("minus infinity",), ("mma.sync",)),
    ("causal mask", {"rows": 500, "keys": 700, "causal": True, "bias": (1, 4, 500, 700)}, ("minus infinity",), ("mma.sync",)),
    (
        "packed",
        {"rows": 900, "keys": 1000, "starts": ((0, 100, 100, 357, 870), (0, 130, 190, 500, 960))},
        ("NaN beyond sequences",),
        ("mma.sync",),
    ),
    (
        "packed causal",
        {"rows": 900, "keys": 1000, "causal": True, "starts": ((0, 100, 100, 357, 870), (0, 130, 190, 500, 960))},
        ("NaN beyond sequences",),
        ("mma.sync",),
    ),
    ("one query", {"rows": 1, "keys": 3000}, ("normal", "large logits", "one-hot"), ("mma.sync",)),
)  # fmt: skip
"""Name, sizes and masks, inputs, classes of atoms: `wgmma` has no further tensors, no packed sequences and no single queries."""

HYBRID = "hybrid, max_k = 64"


def accuracy_cases() -> Iterator[tuple[Attention, str]]:
    """Every problem of the suite with its class of atoms; 4 heads share 2 pairs of keys and values."""
    for depth in DEPTHS:
        for dtype in DTYPES:
            for kind, fields, inputs, classes in KINDS:
                for atoms in classes:
                    for given in inputs:
                        name = f"{kind} d{depth} {dtype} {atoms}, {given}"
                        yield _case(name, depth, dtype, fields, given), atoms
        for given in WHOLE[:2]:
            name = f"whole d{depth} f16 mma.sync hybrid, {given}"
            yield _case(name, depth, "f16", {**KINDS[0][1], "accumulate": HYBRID}, given), "mma.sync"


def _case(name: str, depth: int, dtype: str, fields: Mapping[str, Any], inputs: str) -> Attention:
    shape = {"batch": 1, "heads": 4, "groups": 2, "depth": depth, "dtype": dtype}
    return Attention(name, suite="accuracy", inputs=inputs, **shape, **fields)
