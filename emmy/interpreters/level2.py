"""Level 2 on a CPU: tiles are NumPy arrays; one CTA after another walks through its kernel, in order of their numbers, those
of a cluster together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from emmy.dialects import tile
from emmy.dialects.common import DYNAMIC
from emmy.dialects.tensor_op import AccumulateAttr
from emmy.elementwise import ELEMENTWISE
from emmy.errors import EmmyError
from emmy.interpreters.contraction import contract, reduce_axis, to_f32
from emmy.interpreters.host import grid_offsets, run_host
from emmy.interpreters.scalars import evaluate_scalar, numpy_dtype
from emmy.ir import verify_once
from emmy.locations import location_of
from emmy.passes.clusters import cluster_of

Array = NDArray[Any]


def run_module(module: ModuleOp, entry: str, arrays: Sequence[Array]) -> list[Array]:
    """Run the host function `entry` of a level-2 module on arrays of its parameter types; the arrays that it returns.

    Dots accumulate in f32 (in f16 where their policy says so), maps are computed in f32, values are rounded to their types.
    What no CTA stores stays NaN. Raises `EmmyError` for a module that `verify_module` refuses, a missing function, arrays that do
    not fit, and unknown ops.
    """
    verify_once(module)
    with np.errstate(all="ignore"):
        return run_host(module, entry, arrays, run_kernel)


def run_kernel(kernel: Operation, arrays: list[Array], ctas: int) -> None:
    """Run all CTAs of a `tile.kernel` over the arrays of its views, which are written in place."""
    if not isinstance(kernel, tile.KernelOp):
        raise EmmyError(f"level 2 launches tile.kernel ops, got '{kernel.name}'", location_of(kernel))
    views = kernel.block.args
    if len(views) != len(arrays) or not all(_fits(a, v) for a, v in zip(arrays, views, strict=True)):
        given = ", ".join(f"{a.dtype} of shape {a.shape}" for a in arrays)
        raise EmmyError(f"the views of kernel @{kernel.sym_name.data} do not fit {given}", location_of(kernel))
    for cluster in _clusters(kernel, ctas):
        for cta in cluster:
            cta.values.update(zip(views, arrays, strict=True))
        _run_cluster(kernel, cluster)


def _clusters(kernel: tile.KernelOp, ctas: int) -> Iterator[list[Cta]]:
    """The CTAs of a launch, those together that run together. `EmmyError` for a launch that is no multiple of them."""
    size = cluster_of(kernel)
    if ctas % size:
        raise EmmyError(f"a launch of {ctas} CTAs is no multiple of its clusters of {size}", location_of(kernel))
    for first in range(0, ctas, size):
        yield [Cta(number, ctas) for number in range(first, first + size)]


def _run_cluster(kernel: tile.KernelOp, ctas: list[Cta]) -> None:
    """Run the CTAs of a cluster, one after the other up to where they add up what they have."""
    ops: list[Operation] = []
    for op in kernel.block.ops:
        if not isinstance(op, tile.ClusterSumOp):
            ops.append(op)
            continue
        for cta in ctas:
            cta.run(ops)
        ops = []
        parts = {int(cta.values[op.part]): cta for cta in ctas}
        if sorted(parts) != list(range(op.parts.value.data)):
            raise EmmyError(
                f"the CTAs of a cluster have parts {sorted(parts)} of {op.parts.value.data}", location_of(op)
            )
        for part, cta in parts.items():
            order = [(part + step) % len(parts) for step in range(len(parts))]
            columns = [np.split(parts[other].values[op.arg], len(parts), axis=-1)[part] for other in order]
            cta.values[op.result] = functools.reduce(np.add, columns)
    for cta in ctas:
        cta.run(ops)


def _fits(array: Array, view: SSAValue) -> bool:
    type_ = cast(tile.ViewType, view.type)
    shape = type_.get_shape()
    sizes = len(shape) == array.ndim and all(s in (n, DYNAMIC) for s, n in zip(shape, array.shape, strict=True))
    return sizes and array.dtype == numpy_dtype(type_.element_type)


class Cta:
    """One CTA: its number, and the value of everything that it has computed."""

    def __init__(self, number: int, count: int):
        self.number = number
        self.count = count
        self.values: dict[SSAValue, Any] = {}

    def run(self, ops: Iterable[Operation]) -> list[Any]:
        """Execute the ops of a block; the operands of its `scf.yield`, if it has one."""
        for op in ops:
            operands = [self.values[v] for v in op.operands]
            if isinstance(op, scf.YieldOp):
                return operands
            step = STEPS.get(type(op))
            if step is None:
                scalar = evaluate_scalar(op, operands)
                if scalar is None:
                    raise EmmyError(f"level 2 knows no op '{op.name}'", location_of(op))
                results = [scalar]
            else:
                results = step(self, op, operands)
            self.values.update(zip(op.results, results, strict=True))
        return []


def _for(cta: Cta, op: scf.ForOp, operands: list[Any]) -> list[Any]:
    first, end, stride, *carried = operands
    block = op.body.block
    for i in range(first, end, stride):
        cta.values.update(zip(block.args, (i, *carried), strict=True))
        carried = cta.run(block.ops)
    return carried


def _if(cta: Cta, op: scf.IfOp, operands: list[Any]) -> list[Any]:
    region = op.true_region if operands[0] else op.false_region
    return cta.run(region.block.ops) if region.blocks else []


def _dependency(cta: Cta, op: tile.DependencyWaitOp | tile.LaunchDependentsOp, operands: list[Any]) -> list[Any]:
    """Nothing: launches run one after the other here."""
    return []


def _dim(cta: Cta, op: tile.DimOp, operands: list[Any]) -> list[Any]:
    return [operands[0].shape[op.axis.value.data]]


def _grid(cta: Cta, op: tile.GridOp, operands: list[Any]) -> list[Any]:
    rank = len(op.extents)
    number = operands[rank] if op.number is not None else cta.number
    return list(grid_offsets(number, operands[:rank], op.get_blocks(), op.raster.value.data))


def _cta_id(cta: Cta, op: tile.CtaIdOp, operands: list[Any]) -> list[Any]:
    return [cta.number]


def _cta_count(cta: Cta, op: tile.CtaCountOp, operands: list[Any]) -> list[Any]:
    return [cta.count]


def _box(array: Array, offsets: Sequence[int], shape: Sequence[int]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """The part of a box that lies within an array, as slices of the array and of the box (of the array's rank)."""
    sizes = [1] * (array.ndim - len(shape)) + list(shape)
    spans = [(max(o, 0), max(min(o + s, n), 0, o)) for o, s, n in zip(offsets, sizes, array.shape, strict=True)]
    inside = tuple(slice(low, high) for low, high in spans)
    return inside, tuple(slice(low - o, high - o) for (low, high), o in zip(spans, offsets, strict=True))


def _load(cta: Cta, op: tile.LoadOp, operands: list[Any]) -> list[Any]:
    array, *offsets = operands
    shape = op.result.type.get_shape()
    inside, part = _box(array, offsets, shape)
    value = np.zeros(shape, array.dtype)
    value.reshape([1] * (array.ndim - len(shape)) + list(shape))[part] = array[inside]
    return [value]


def _store(cta: Cta, op: tile.StoreOp, operands: list[Any]) -> list[Any]:
    value, array, *offsets = operands
    inside, part = _box(array, offsets, value.shape)
    array[inside] = value.reshape([1] * (array.ndim - value.ndim) + list(value.shape))[part]
    return []


def _fill(cta: Cta, op: tile.FillOp, operands: list[Any]) -> list[Any]:
    type_ = op.result.type
    return [np.full(type_.get_shape(), op.value.value.data, numpy_dtype(type_.element_type))]


def _dot(cta: Cta, op: tile.DotOp, operands: list[Any]) -> list[Any]:
    a, b = (to_f32(x) for x in operands[:2])
    a = a.swapaxes(-1, -2) if op.transpose_a is not None else a
    b = b.swapaxes(-1, -2) if op.transpose_b is not None else b
    policy, eight_bits = op.accumulate or AccumulateAttr.get(), operands[0].dtype.itemsize == 1
    total = contract(operands[2], a, b, policy, step=max(a.shape[-1], 1), eight_bits=eight_bits)
    return [total.astype(operands[2].dtype)]


def _slice(cta: Cta, op: tile.SliceOp, operands: list[Any]) -> list[Any]:
    array, *places = operands
    rank = array.ndim
    given = iter(places[rank:])
    sizes = [next(given) if s == DYNAMIC else s for s in op.result.type.get_shape()]
    if not all(0 <= o and 0 <= s and o + s <= n for o, s, n in zip(places, sizes, array.shape, strict=False)):
        message = f"a slice of sizes {sizes} at {places[:rank]} leaves a view of sizes {list(array.shape)}"
        raise EmmyError(message, location_of(op))
    return [array[tuple(slice(o, o + s) for o, s in zip(places, sizes, strict=False))]]


def _read(cta: Cta, op: tile.ReadOp, operands: list[Any]) -> list[Any]:
    array, *place = operands
    if not all(0 <= i < n for i, n in zip(place, array.shape, strict=True)):
        raise EmmyError(f"tile.read of element {place} of a view of sizes {list(array.shape)}", location_of(op))
    return [int(array[tuple(place)])]


def _map(cta: Cta, op: tile.MapOp, operands: list[Any]) -> list[Any]:
    type_ = op.result.type
    value = ELEMENTWISE[op.kind.data.value].function(*(_working(x) for x in operands))
    return [np.broadcast_to(value.astype(numpy_dtype(type_.element_type)), type_.get_shape())]


def _working(value: Any) -> Array:
    """An operand of a map in the type that it is computed in: conditions as they are, integers exactly, floats in f32."""
    array = np.asarray(value)
    if array.dtype.kind == "b":
        return array
    return array.astype(np.int64) if array.dtype.kind == "i" else to_f32(array)


def _cast(cta: Cta, op: tile.CastOp, operands: list[Any]) -> list[Any]:
    dtype = numpy_dtype(op.result.type.element_type)
    return [to_f32(operands[0]).astype(dtype)]


def _reduce(cta: Cta, op: tile.ReduceOp, operands: list[Any]) -> list[Any]:
    axis = op.axis.value.data
    return [reduce_axis(op.kind.data.value, operands[0], axis, op.result.type.get_shape()[axis])]


def _squeeze(cta: Cta, op: tile.SqueezeOp, operands: list[Any]) -> list[Any]:
    return [operands[0].squeeze(op.axis.value.data)]


def _coord(cta: Cta, op: tile.CoordOp, operands: list[Any]) -> list[Any]:
    shape, axis = op.result.type.get_shape(), op.axis.value.data
    along = (operands[0] + np.arange(shape[axis], dtype=np.int32)).astype(np.int32)
    return [np.broadcast_to(along.reshape([-1 if i == axis else 1 for i in range(len(shape))]), shape)]


STEPS: dict[type[Operation], Callable[[Cta, Any, list[Any]], list[Any]]] = {
    scf.ForOp: _for,
    scf.IfOp: _if,
    tile.DependencyWaitOp: _dependency,
    tile.LaunchDependentsOp: _dependency,
    tile.DimOp: _dim,
    tile.GridOp: _grid,
    tile.CtaIdOp: _cta_id,
    tile.CtaCountOp: _cta_count,
    tile.SliceOp: _slice,
    tile.LoadOp: _load,
    tile.ReadOp: _read,
    tile.StoreOp: _store,
    tile.FillOp: _fill,
    tile.DotOp: _dot,
    tile.MapOp: _map,
    tile.CastOp: _cast,
    tile.ReduceOp: _reduce,
    tile.SqueezeOp: _squeeze,
    tile.CoordOp: _coord,
}
"""How one CTA executes each op that is not a scalar of `arith`: (CTA, op, operand values) to result values."""
