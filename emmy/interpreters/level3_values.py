"""What the mathematics of level 3 means: values of fragments, for generated source to call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from emmy.elementwise import ELEMENTWISE
from emmy.interpreters.contraction import EIGHT_BIT_K_STEP, K_STEP, reduce_axis, to_f32
from emmy.interpreters.host import grid_offsets
from emmy.interpreters.level3_memory import read_box, write_box

Array = NDArray[Any]
HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def mma_value(a: Array, b: Array, c: Array) -> Array:
    """`c + a @ b.T` in the k-steps of an atom, of 32 elements of 8 bits or 16 others; products and the sum of a step in f32."""
    left, right = to_f32(a), to_f32(b)
    step = EIGHT_BIT_K_STEP if a.dtype.itemsize == 1 else K_STEP
    with np.errstate(all="ignore"):
        for k in range(0, a.shape[1], step):
            c = (c.astype(np.float32) + left[:, k : k + step] @ right[:, k : k + step].T).astype(c.dtype)
    return c


@dataclass(frozen=True)
class InFlight:
    """A product that was issued: its operands are read when it is waited for, those in place from shared memory."""

    a: Array | Callable[[], Array]
    b: Callable[[], Array]
    c: Array | InFlight | Kept


@dataclass(frozen=True)
class Kept:
    """The newest group of products, which stays in flight when those before it are waited for."""

    group: InFlight


def wait_value(sums: InFlight | Kept) -> Array:
    """The sums, with operands as shared memory holds them now: what was overwritten too early is wrong, or poison."""
    chain = [sums.group if isinstance(sums, Kept) else sums]
    while isinstance(chain[-1].c, InFlight):
        chain.append(chain[-1].c)
    total = chain[-1].c
    if isinstance(total, Kept):
        total = wait_value(total)
    for product in reversed(chain):
        total = mma_value(product.a() if callable(product.a) else product.a, product.b(), total)
    return total


def wait_older_value(sums: InFlight) -> Kept:
    """The group that continues an older one, which is finished now."""
    chain = [sums]
    while isinstance(chain[-1].c, InFlight):
        chain.append(chain[-1].c)
    total = chain[-1].c
    group: Any = wait_value(total) if isinstance(total, Kept) else total
    for product in reversed(chain):
        group = InFlight(product.a, product.b, group)
    return Kept(group)


def promote_value(partial: Array, acc: Array) -> Array:
    """f32 sums and partial sums."""
    with np.errstate(all="ignore"):
        return acc + to_f32(partial)


def _widen(value: Any) -> Any:
    return to_f32(value) if getattr(value, "dtype", None) in HALVES else value


def map_value(kind: str, dtype: np.dtype[Any], shape: tuple[int, int], *args: Any) -> Array:
    """An elementwise function in f32 (integers and masks stay as they are), rounded to the result's type."""
    wide = [_widen(x) for x in args]
    with np.errstate(all="ignore"):
        result = ELEMENTWISE[kind].function(*wide)
        return np.broadcast_to(np.asarray(result).astype(dtype), shape)


def cast_value(x: Array, dtype: np.dtype[Any]) -> Array:
    """Rounded to nearest even; overflow gives an infinity."""
    with np.errstate(all="ignore"):
        return x.astype(dtype)


def coord_value(axis: int, base: int, shape: tuple[int, int]) -> Array:
    """`base` plus the coordinate along an axis."""
    line = np.arange(shape[axis], dtype=np.int32) + np.int32(base)
    return np.broadcast_to(line.reshape((-1, 1) if axis == 0 else (1, -1)), shape)


HELPERS: dict[str, Any] = {
    "np": np,
    "grid_offsets": grid_offsets,
    "read_box": read_box,
    "write_box": write_box,
    "mma_value": mma_value,
    "InFlight": InFlight,
    "wait_value": wait_value,
    "wait_older_value": wait_older_value,
    "promote_value": promote_value,
    "map_value": map_value,
    "reduce_axis": reduce_axis,
    "cast_value": cast_value,
    "coord_value": coord_value,
}
"""What generated source may call."""
