"""What `launch.json` of an artefact holds, as types, and the size expressions in it. Imports neither xDSL nor CUDA.

Sizes that are known only at the call are *expressions* over the shapes and strides of arguments and results:

    E = int | ["dim", argument, axis] | ["stride", argument, axis]        (elements)
      | ["add" | "mul" | "sub" | "min" | "max", E, E, ...] | ["ceildiv" | "floordiv", E, E]
      | ["sms"]                                                           (multiprocessors of the device)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NotRequired, TypeAlias, TypedDict

import ml_dtypes
import numpy as np
import numpy.typing as npt

from emmy.errors import EmmyError

Expression: TypeAlias = int | Sequence[Any]
Array: TypeAlias = npt.NDArray[Any]
Shape: TypeAlias = tuple[int, ...]

# The element types of buffers, by their name in the IR.
DTYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "i32": np.dtype(np.int32),
    "i8": np.dtype(np.int8),
}
DTYPE_NAMES: dict[np.dtype[Any], str] = {dtype: name for name, dtype in DTYPES.items()}

MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_MAP_SIZE, MAX_MAP_STRIDE, MAP_STRIDE = 2**32, 2**40, 16
# A launch parameter is a pointer, or a number of one of these types with its range.
SCALAR_RANGES: dict[str, tuple[int, int]] = {"u32": (0, 2**32 - 1), "u64": (0, 2**64 - 1)}


MAX_SIZE = 2**31 - 2**10
"""The largest size of a dimension: kernels count elements of one dimension in 32 bits, whatever a tensor's bytes, and a tile
may end beyond the last one."""


class ArgumentSpec(TypedDict):
    """An input. Without `strides` it is row-major; a stride of None may be any (what kernels want of it stands in the
    launches); `align` is the bytes that its address must be a multiple of."""

    name: str
    dtype: str
    shape: list[Any]
    strides: NotRequired[list[Any]]
    align: NotRequired[int]


class BufferSpec(TypedDict):
    """A result or a temporary: row-major, allocated by whoever runs the entry, contents undefined before. A result of a
    caller's own (`out=`) may lie otherwise, if the launches take that."""

    name: str
    dtype: str
    shape: list[Any]
    align: NotRequired[int]


class CheckSpec(TypedDict):
    """A condition on a call: `value` is a multiple of, or equal to, an expression; `message` is the error's text."""

    value: Expression
    multiple_of: NotRequired[Expression]
    equals: NotRequired[Expression]
    message: str


class TensorMapSpec(TypedDict):
    """What TMA needs of a tensor, outermost dimension first: sizes in elements, strides in bytes (of all dimensions but the
    innermost), the elements of a box, and the bytes that the swizzle of shared memory spans (0, 32, 64 or 128)."""

    of: str
    dtype: str
    sizes: list[Any]
    strides: list[Any]
    box: list[int]
    swizzle: int


class WantedSpec(TypedDict):
    """What a kernel wants of a buffer: `strides` in elements (absent: row-major; None: any), its address a multiple of `align`
    bytes, and the bytes of a row and all other strides multiples of `rows` bytes. `transposed`: of the buffer with its last two
    dimensions exchanged."""

    strides: NotRequired[list[Any]]
    align: NotRequired[int]
    rows: NotRequired[int]
    transposed: NotRequired[bool]


class LaunchSpec(TypedDict):
    """One kernel launch: an image, the kernel in it, grid and block in x, y, z, and parameters in order.

    A parameter is {"pointer": buffer}, {"u32" | "u64": E} or {"tensor_map": TensorMapSpec}. `wants` says, by name of the
    buffer, when the kernel may be launched; if that does not hold, the first of `otherwise` for which it does is launched
    instead (they have no `otherwise` of their own). Of kernels with a `time`, which stand before those without, the one whose
    time is least is launched, if it may be. `variant`: its name in `emmy.variants`. `programmatic`:
    it may begin before the launch before it has ended (it waits by itself). `cluster`: the CTAs of its clusters along x, y and z;
    a device that cannot hold one does not take it. `persistent`: any number of its clusters computes all tiles, and the grid is
    as many CTAs as run at once: fewer, where a device holds fewer clusters.
    """

    image: str
    kernel: str
    grid: list[Any]
    block: list[int]
    shared_bytes: int
    params: list[dict[str, Any]]
    time: NotRequired[Any]
    variant: NotRequired[str]
    programmatic: NotRequired[bool]
    cluster: NotRequired[list[int]]
    persistent: NotRequired[bool]
    wants: NotRequired[dict[str, WantedSpec]]
    otherwise: NotRequired[list[LaunchSpec]]


class EntrySpec(TypedDict):
    """What a user calls. `work` says what it computes (for references and rates) and is not used to run it."""

    arguments: list[ArgumentSpec]
    results: list[BufferSpec]
    temporaries: NotRequired[list[BufferSpec]]
    checks: NotRequired[list[CheckSpec]]
    launches: list[LaunchSpec]
    work: NotRequired[dict[str, Any]]


def row_major(shape: Sequence[int]) -> Shape:
    """The strides, in elements, of a dense row-major array."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return tuple(strides)


SMS = "(multiprocessors)"
"""Where `evaluate` finds the value of `["sms"]` among the shapes; no argument has such a name."""

EMULATED_SMS = 3
"""Multiprocessors of the emulated device: few, so that a small grid has more tiles than CTAs."""

OPERATIONS: dict[str, Callable[[list[int]], int]] = {
    "add": sum,
    "mul": math.prod,
    "sub": lambda values: values[0] - sum(values[1:]),
    "min": min,
    "max": max,
    "ceildiv": lambda values: -(-values[0] // values[1]),
    "floordiv": lambda values: values[0] // values[1],
}


def evaluate(expression: Expression, shapes: Mapping[str, Shape], strides: Mapping[str, Shape]) -> int:
    """The value of an expression, given each argument's shape and strides (in elements) by name."""
    if isinstance(expression, int):
        return expression
    operation, operands = str(expression[0]), expression[1:]
    if operation in ("dim", "stride"):
        table = shapes if operation == "dim" else strides
        return table[str(operands[0])][int(operands[1])]
    if operation == "sms":
        return shapes[SMS][0]
    if operation not in OPERATIONS:
        raise EmmyError(f"'{operation}' is no operation of a size expression; those are {', '.join(OPERATIONS)}")
    values = [evaluate(operand, shapes, strides) for operand in operands]
    if operation in ("ceildiv", "floordiv") and not values[1]:
        raise EmmyError(f"the launch divides {values[0]} by a size that is 0")
    return OPERATIONS[operation](values)
