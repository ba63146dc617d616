"""Executes the host function of a module at levels 2 to 4: sizes, allocations and launches; kernels are the caller's business."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp, NoneAttr, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue

from emmy.binding import used_strides
from emmy.dialects import tile
from emmy.dialects.common import DYNAMIC
from emmy.errors import EmmyError
from emmy.interpreters.scalars import evaluate_scalar, numpy_dtype
from emmy.launch_specs import EMULATED_SMS, row_major
from emmy.locations import location_of

Array = NDArray[Any]
RunKernel = Callable[[Operation, list[Array], int], None]
"""Runs all CTAs of one kernel op: (kernel, arrays of its views, number of CTAs). Arrays are written in place."""


def find_symbol(module: ModuleOp, name: str) -> Operation | None:
    """The op of the module whose symbol is `name` (a function or a kernel of any level), or None."""
    for op in module.body.block.ops:
        symbol = op.properties.get("sym_name") or op.attributes.get("sym_name")
        if symbol is not None and getattr(symbol, "data", None) == name:
            return op
    return None


def run_host(module: ModuleOp, entry: str, arrays: Sequence[Array], run_kernel: RunKernel) -> list[Array]:
    """Run the function `entry` on arrays of its parameter types and give its results; outputs begin as NaN.

    Raises EmmyError if there is no such function, an argument does not fit, or an op is not one of the host's.
    """
    function = find_symbol(module, entry)
    if not isinstance(function, FuncOp):
        raise EmmyError(f"the module has no function @{entry}")
    values: dict[SSAValue, Any] = {}
    parameters = function.body.block.args
    if len(parameters) != len(arrays):
        raise EmmyError(f"@{entry} takes {len(parameters)} array(s), got {len(arrays)}", location_of(function))
    for position, (parameter, array) in enumerate(zip(parameters, arrays, strict=True)):
        _check_argument(entry, position, cast(TensorType[Attribute], parameter.type), array)
        values[parameter] = array
    for op in function.body.block.ops:
        if isinstance(op, ReturnOp):
            return [cast(Array, values[v]) for v in op.arguments]
        _step(module, op, values, run_kernel)
    raise EmmyError(f"@{entry} does not return", location_of(function))


def _check_argument(entry: str, position: int, type_: TensorType[Attribute], array: Array) -> None:
    shape, dtype = type_.get_shape(), numpy_dtype(type_.element_type)
    fits = len(shape) == array.ndim and all(s in (DYNAMIC, n) for s, n in zip(shape, array.shape, strict=True))
    if not fits or array.dtype != dtype:
        raise EmmyError(f"argument {position} of @{entry} is {type_}, got {array.dtype} of shape {array.shape}")


def _step(module: ModuleOp, op: Operation, values: dict[SSAValue, Any], run_kernel: RunKernel) -> None:
    if isinstance(op, tile.DimOp):
        values[op.result] = cast(Array, values[op.source]).shape[op.axis.value.data]
    elif isinstance(op, tile.RequireEqualOp):
        if values[op.left] != values[op.right]:
            raise EmmyError(f"{op.message.data} (it is {values[op.left]})", location_of(op))
    elif isinstance(op, tile.AllocOp):
        values[op.result] = _allocate(op, [int(values[s]) for s in op.sizes])
    elif isinstance(op, tile.ReshapeOp):
        values[op.result] = _reshape(op, cast(Array, values[op.source]))
    elif isinstance(op, tile.SmCountOp):
        values[op.result] = EMULATED_SMS
    elif isinstance(op, tile.LaunchOp):
        name = op.kernel.root_reference.data
        kernel = find_symbol(module, name)
        if kernel is None:
            raise EmmyError(f"the module has no kernel @{name}", location_of(op))
        run_kernel(kernel, [cast(Array, values[a]) for a in op.args], int(values[op.ctas]))
    elif isinstance(op, tile.DispatchOp):
        arrays = [cast(Array, values[a]) for a in op.args]
        position, kernel, arrays = _choose(module, op, arrays, [int(values[time]) for time in op.times])
        run_kernel(kernel, arrays, int(values[op.ctas[position]]))
    else:
        result = evaluate_scalar(op, [values[v] for v in op.operands])
        if result is None:
            raise EmmyError(f"{op.name} is no op of a host function", location_of(op))
        values[op.results[0]] = result


def _choose(
    module: ModuleOp, op: tile.DispatchOp, tensors: Sequence[Array], times: Sequence[int]
) -> tuple[int, Operation, list[Array]]:
    """The first kernel whose views the arrays are, as they lie in memory, those with `times` in the order of these; its
    position, and the arrays as it gets them."""
    timed = sorted(range(len(times)), key=lambda position: times[position])
    for position in (*timed, *range(len(times), len(op.names))):
        name, transposed = op.names[position], op.get_transposed()[position]
        arrays = [t.swapaxes(-1, -2) if number in transposed else t for number, t in enumerate(tensors)]
        kernel = find_symbol(module, name)
        if not isinstance(kernel, tile.KernelOp):
            raise EmmyError(f"the module has no kernel @{name} of level 2 or 3", location_of(op))
        views = [cast(tile.ViewType, arg.type) for arg in kernel.block.args]
        if all(_lies_as(view, array) for view, array in zip(views, arrays, strict=True)):
            return position, kernel, arrays
    raise EmmyError(f"the arrays fit the views of none of {', '.join(op.names)}", location_of(op))


def _lies_as(view: tile.ViewType, array: Array) -> bool:
    """Whether an array has the strides and the alignment that a view says."""
    size = array.itemsize
    strides = used_strides(array.shape, tuple(stride // size for stride in array.strides))
    wanted = row_major(array.shape) if isinstance(view.strides, NoneAttr) else view.get_strides()
    if any(
        have != want and want != DYNAMIC and n > 1 for have, want, n in zip(strides, wanted, array.shape, strict=True)
    ):
        return False
    bytes_ = [array.ctypes.data, array.shape[-1] * size, *(stride * size for stride in strides[:-1])]
    return 0 in array.shape or not view.align.data or not any(count % view.align.data for count in bytes_)


def _reshape(op: tile.ReshapeOp, source: Array) -> Array:
    """The same memory, for dimensions are only split: kernels may write into what comes of it."""
    declared, origins = op.result.type.get_shape(), op.origins()
    return source.reshape(
        [source.shape[axis] // step if s == DYNAMIC else s for s, (axis, step) in zip(declared, origins, strict=True)]
    )


def _allocate(op: tile.AllocOp, sizes: list[int]) -> Array:
    type_ = op.result.type
    given = iter(sizes)
    shape = [next(given) if s == DYNAMIC else s for s in type_.get_shape()]
    dtype = numpy_dtype(type_.element_type)
    poison = np.iinfo(np.int32).min if dtype.kind == "i" else np.nan
    return np.full(shape, poison, dtype)


def grid_offsets(cta: int, extents: Sequence[int], blocks: Sequence[int], raster: int) -> tuple[int, ...]:
    """Element offsets of CTA number `cta` as `tile.grid` defines them (grouped order of the last two dimensions)."""
    counts = [-(-e // b) for e, b in zip(extents, blocks, strict=True)]
    if len(counts) < 2:
        position = [cta]
    else:
        rows, columns = counts[-2:]
        outer, inner = divmod(cta, rows * columns)
        group, within = divmod(inner, raster * columns)
        height = min(raster, rows - group * raster)
        position = [*_unravel(outer, counts[:-2]), group * raster + within % height, within // height]
    return tuple(p * b for p, b in zip(position, blocks, strict=True))


def _unravel(number: int, counts: Sequence[int]) -> list[int]:
    position: list[int] = []
    for count in reversed(counts):
        number, part = divmod(number, count)
        position.insert(0, part)
    return position
