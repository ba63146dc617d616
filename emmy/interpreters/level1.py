"""Level 1 on a CPU: what a program means (`float64`), and what its accumulation policies make of it (`policy`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from emmy.dialects.common import DYNAMIC
from emmy.dialects.tensor_op import EIGHT_BITS, CastOp, CompositeOp, MapOp, MatmulOp, accumulation_policy, tensor_type
from emmy.elementwise import ELEMENTWISE
from emmy.errors import EmmyError
from emmy.interpreters.contraction import contract, to_f32
from emmy.interpreters.scalars import numpy_dtype
from emmy.ir import verify_once
from emmy.locations import location_of

Array = NDArray[Any]
Mode = Literal["float64", "policy"]


def run(module: ModuleOp, entry: str, arrays: Sequence[Array], mode: Mode = "float64") -> list[Array]:
    """Run the function `entry` on arrays of its parameter types; the arrays that it returns.

    `float64`: every op in float64 on the given (already rounded) operands, nothing is rounded; results are float64.
    `policy`: products are summed as their policies say, one k-step of 16 elements after another, maps are computed in f32,
    and every value is rounded to its type. Raises `EmmyError` if `verify_module` refuses the module, there is no such function or
    an array does not fit.
    """
    verify_once(module)
    if mode not in get_args(Mode):
        raise EmmyError(f"mode is one of {', '.join(get_args(Mode))}, got '{mode}'")
    functions = [f for f in module.body.block.ops if isinstance(f, FuncOp) and f.sym_name.data == entry]
    if not functions:
        raise EmmyError(f"the module has no function @{entry}")
    parameters = functions[0].body.block.args
    if len(parameters) != len(arrays):
        message = f"@{entry} takes {len(parameters)} array(s), got {len(arrays)}"
        raise EmmyError(message, location_of(functions[0]))
    values: dict[SSAValue, Array] = {}
    for i, (parameter, array) in enumerate(zip(parameters, arrays, strict=True)):
        if not _fits(array, parameter):
            message = f"argument {i} of @{entry} is {parameter.type}, got {array.dtype} of shape {array.shape}"
            raise EmmyError(message, location_of(functions[0]))
        values[parameter] = array.astype(np.float64) if mode == "float64" else array
    with np.errstate(all="ignore"):
        for op in functions[0].body.block.ops:
            if isinstance(op, ReturnOp):
                return [values[v] for v in op.arguments]
            values.update(zip(op.results, _evaluate(op, [values[v] for v in op.operands], mode), strict=True))
    raise EmmyError(f"@{entry} does not return", location_of(functions[0]))


def _fits(array: Array, parameter: SSAValue) -> bool:
    type_ = tensor_type(parameter)
    shape = type_.get_shape()
    sizes = len(shape) == array.ndim and all(s in (n, DYNAMIC) for s, n in zip(shape, array.shape, strict=True))
    return sizes and array.dtype == numpy_dtype(type_.element_type)


def _evaluate(op: Operation, operands: list[Array], mode: Mode) -> list[Array]:
    if not isinstance(op, MatmulOp | MapOp | CastOp | CompositeOp):
        raise EmmyError(f"level 1 knows no op '{op.name}'", location_of(op))
    working = [x if mode == "float64" else to_f32(x) for x in operands]
    if isinstance(op, MatmulOp):
        values = [_matmul(op, working, mode)]
    elif isinstance(op, MapOp):
        values = [_map(op, working)]
    elif isinstance(op, CompositeOp):
        values = op.evaluate(working, None if mode == "float64" else contract)
    else:
        values = working
    if mode == "float64":
        return values
    return [v.astype(numpy_dtype(tensor_type(r).element_type)) for v, r in zip(values, op.results, strict=True)]


def _matmul(op: MatmulOp, operands: list[Array], mode: Mode) -> Array:
    a, b = operands
    a = a.swapaxes(-1, -2) if op.transpose_a is not None else a
    b = b.swapaxes(-1, -2) if op.transpose_b is not None else b
    if a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        message = f"matmul of shapes {operands[0].shape} and {operands[1].shape}: the `?` sizes do not agree"
        raise EmmyError(message, location_of(op))
    if mode == "float64":
        return a @ b
    policy = accumulation_policy(op)
    shape = (*a.shape[:-1], b.shape[-1])
    eight_bits = isinstance(tensor_type(op.a).element_type, EIGHT_BITS)
    zero = np.zeros(shape, np.float16 if policy.policy.data == "f16" else np.float32)
    total = contract(zero, a, b, policy, eight_bits=eight_bits)
    if policy.overflow.data == "propagate":
        return total
    # A tile with one such sum is computed again; where sums are finite both ways agree within the policy's bound.
    again = contract(np.zeros(shape, np.float32), a, b, policy.get("f32"))
    return np.where(np.isfinite(total), total, again)


def _map(op: MapOp, operands: list[Array]) -> Array:
    shapes = [x.shape for x in operands]
    declared = [tensor_type(v).get_shape() for v in op.args]
    sizes: dict[int, int] = {}
    for shape, type_shape in zip(shapes, declared, strict=True):
        for axis, (size, known) in enumerate(zip(shape[::-1], type_shape[::-1], strict=True)):
            if known == DYNAMIC and sizes.setdefault(axis, size) != size:
                message = f"map of shapes {', '.join(map(str, shapes))}: the `?` sizes do not agree"
                raise EmmyError(message, location_of(op))
    value = ELEMENTWISE[op.kind.data.value].function(*operands)
    result = tensor_type(op.result).get_shape()[::-1]
    shape = tuple(sizes.get(axis, 1) if size == DYNAMIC else size for axis, size in enumerate(result))[::-1]
    return np.broadcast_to(value.astype(operands[0].dtype), shape)
