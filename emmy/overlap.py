"""Results that a caller gives (`out=`) must have memory of their own: a kernel reads its arguments while it writes them.

A warm call asks one compiled expression whether the ranges of memory are apart; only where they are not, elements are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from emmy.binding import ArrayInfo, used_strides
from emmy.errors import EmmyError
from emmy.launch_specs import DTYPE_NAMES, DTYPES, Array

Apart = Callable[[Sequence[int]], bool]

MAX_WORK = 100_000
"""Steps that NumPy takes at most to find out whether two strided arrays share an element; beyond, they count as sharing."""


def span_bytes(array: ArrayInfo) -> int:
    """Bytes from an array's first element to the end of its last one."""
    if 0 in array.shape:
        return 0
    strides = used_strides(array.shape, array.strides)
    last = sum((size - 1) * stride for size, stride in zip(array.shape, strides, strict=True))
    return (last + 1) * DTYPES[array.dtype].itemsize


def apart_test(arrays: Sequence[ArrayInfo], count: int) -> Apart | None:
    """Whether results, `arrays` from `count` on, are apart from all other arrays, as a function of all addresses.

    None if there are no results, or nothing that they could meet.
    """
    spans = [span_bytes(array) for array in arrays]
    tests = [
        f"not {-spans[i]} < a[{i}] - a[{j}] < {spans[j]}"
        for j in range(count, len(arrays))
        for i in range(j)
        if spans[i] and spans[j]
    ]
    if not tests:
        return None
    test: Apart = eval(f"lambda a: {' and '.join(tests)}")  # numbers only
    return test


def check_apart(arrays: Sequence[ArrayInfo], addresses: Sequence[int], names: Sequence[str]) -> None:
    """`EmmyError` if a result, one of `arrays` that has no name in `names`, shares an element with another array."""
    for j in range(len(names), len(arrays)):
        for i in range(j):
            if _share(arrays[i], addresses[i], arrays[j], addresses[j]):
                other = f"argument '{names[i]}'" if i < len(names) else "another result"
                raise EmmyError(f"out shares memory with {other}; pass an array of its own")


def refuse_overlap(arrays: Sequence[Array], outs: Sequence[Array], names: Sequence[str]) -> None:
    """`check_apart` for NumPy arrays: arguments, called `names`, and results, which nobody may have made read-only."""
    if not all(out.flags.writeable for out in outs):
        raise EmmyError("out is read-only; pass an array that can be written")
    everything = (*arrays, *outs)
    addresses = [array.ctypes.data for array in everything]
    check_apart([_info(array) for array in everything], addresses, names)


def _info(array: Array) -> ArrayInfo:
    size = array.dtype.itemsize
    return ArrayInfo(DTYPE_NAMES[array.dtype], array.shape, tuple(stride // size for stride in array.strides))


def _share(one: ArrayInfo, at: int, other: ArrayInfo, other_at: int) -> bool:
    if at + span_bytes(one) <= other_at or other_at + span_bytes(other) <= at:
        return False
    try:
        limit: Any = MAX_WORK  # NumPy's type stubs only know its two special values
        return np.shares_memory(_as_numpy(one, at), _as_numpy(other, other_at), max_work=limit)
    except np.exceptions.TooHardError:
        return True


class _Memory:
    """What NumPy takes for an array at an address. Nothing is read there: it may be another device's."""

    def __init__(self, array: ArrayInfo, address: int):
        size = DTYPES[array.dtype].itemsize
        strides = tuple(stride * size for stride in used_strides(array.shape, array.strides))
        self.__array_interface__ = {
            "shape": array.shape,
            "typestr": f"|V{size}",
            "data": (address, True),
            "strides": strides,
            "version": 3,
        }


def _as_numpy(array: ArrayInfo, address: int) -> Any:
    return np.asarray(_Memory(array, address))
