"""The elementwise functions that every level shares: name, number of operands, meaning.

One table serves `tensor_op.map`, `tile.map` and `mma.map`: the names (for the dialects), the NumPy meaning (for the
interpreters). How each prints as PTX is a table of the lowering, not of this file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Elementwise:
    """`arity` operands of one shape (sizes of 1 broadcast); `function` is exact in the precision of its operands."""

    arity: int
    function: Callable[..., Array]


def _silu(x: Array) -> Array:
    return x / (1.0 + np.exp(-x))


def _relu(x: Array) -> Array:
    return np.maximum(x, 0)


def _rsqrt(x: Array) -> Array:
    return 1.0 / np.sqrt(x)


def _fma(x: Array, y: Array, z: Array) -> Array:
    return x * y + z


def _gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1.0 + np.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))


def _select(c: Array, x: Array, y: Array) -> Array:
    return np.where(c.astype(bool), x, y)


ELEMENTWISE: dict[str, Elementwise] = {
    "add": Elementwise(2, np.add),
    "sub": Elementwise(2, np.subtract),
    "mul": Elementwise(2, np.multiply),
    "div": Elementwise(2, np.divide),
    "max": Elementwise(2, np.maximum),
    "min": Elementwise(2, np.minimum),
    "neg": Elementwise(1, np.negative),
    "abs": Elementwise(1, np.abs),
    "exp": Elementwise(1, np.exp),
    "exp2": Elementwise(1, np.exp2),
    "log": Elementwise(1, np.log),
    "log2": Elementwise(1, np.log2),
    "rcp": Elementwise(1, np.reciprocal),
    "sqrt": Elementwise(1, np.sqrt),
    "rsqrt": Elementwise(1, _rsqrt),
    "tanh": Elementwise(1, np.tanh),
    "relu": Elementwise(1, _relu),
    "silu": Elementwise(1, _silu),
    "gelu_tanh": Elementwise(1, _gelu_tanh),
    "fma": Elementwise(3, _fma),
    "ge": Elementwise(2, np.greater_equal),
    "lt": Elementwise(2, np.less),
    "ne": Elementwise(2, np.not_equal),
    "select": Elementwise(3, _select),
}
