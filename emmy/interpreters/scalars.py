"""What the scalar ops of `arith` mean, as Python expressions, and how IR element types are stored in NumPy.

The expressions serve twice: the host executor evaluates them, the level-3 interpreter pastes them into generated source.
Index values are Python integers; unsigned and signed ops agree because Emmy's index values are never negative where it matters.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, cast

import ml_dtypes
import numpy as np
from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    BFloat16Type,
    Float8E4M3FNType,
    Float8E5M2Type,
    Float16Type,
    Float32Type,
    Float64Type,
    FloatAttr,
    IntegerAttr,
    IntegerType,
)
from xdsl.ir import Attribute, Operation

from emmy.errors import EmmyError
from emmy.locations import location_of

COMPARISONS = ("==", "!=", "<", "<=", ">", ">=", "<", "<=", ">", ">=")
"""By the predicate number of `arith.cmpi`: eq, ne, slt, sle, sgt, sge, ult, ule, ugt, uge."""

EXPRESSIONS: dict[str, str] = {
    "arith.addi": "({0} + {1})",
    "arith.subi": "({0} - {1})",
    "arith.muli": "({0} * {1})",
    "arith.divui": "({0} // {1})",
    "arith.divsi": "int({0} / {1})",
    "arith.floordivsi": "({0} // {1})",
    "arith.ceildivui": "(-(-{0} // {1}))",
    "arith.ceildivsi": "(-(-{0} // {1}))",
    "arith.remui": "({0} % {1})",
    "arith.remsi": "({0} - {1} * int({0} / {1}))",
    "arith.minui": "min({0}, {1})",
    "arith.minsi": "min({0}, {1})",
    "arith.maxui": "max({0}, {1})",
    "arith.maxsi": "max({0}, {1})",
    "arith.andi": "({0} & {1})",
    "arith.ori": "({0} | {1})",
    "arith.xori": "({0} ^ {1})",
    "arith.shli": "({0} << {1})",
    "arith.shrui": "({0} >> {1})",
    "arith.shrsi": "({0} >> {1})",
    "arith.select": "({1} if {0} else {2})",
    "arith.index_cast": "{0}",
    "arith.extui": "int({0})",
    "arith.addf": "({0} + {1})",
    "arith.subf": "({0} - {1})",
    "arith.mulf": "({0} * {1})",
    "arith.divf": "({0} / {1})",
    "arith.negf": "(-{0})",
    "arith.maximumf": "max({0}, {1})",
    "arith.minimumf": "min({0}, {1})",
    "arith.sitofp": "np.float32({0})",
    "arith.uitofp": "np.float32({0})",
}


def scalar_expression(op: Operation, operands: list[str]) -> str | None:
    """The Python expression of an `arith` op over operand texts (it may use `np`); None if the op is not a scalar one."""
    if isinstance(op, arith.ConstantOp):
        value = op.value
        if isinstance(value, IntegerAttr):
            return repr(bool(value.value.data) if value.type == IntegerType(1) else value.value.data)
        if isinstance(value, FloatAttr):
            return f"np.float32(float({str(value.value.data)!r}))"
        return None
    if isinstance(op, arith.CmpiOp):
        return f"({operands[0]} {COMPARISONS[op.predicate.value.data]} {operands[1]})"
    template = EXPRESSIONS.get(op.name)
    return None if template is None else template.format(*operands)


@cache
def _compiled(expression: str, arity: int) -> Callable[..., Any]:
    names = ", ".join(f"x{i}" for i in range(arity))
    return cast(Callable[..., Any], eval(f"lambda {names}: {expression}", {"np": np}))


def evaluate_scalar(op: Operation, operands: list[Any]) -> Any:
    """The value of an `arith` op, or None if it is not a scalar one. Raises EmmyError for a division by 0."""
    expression = scalar_expression(op, [f"x{i}" for i in range(len(operands))])
    if expression is None:
        return None
    try:
        return _compiled(expression, len(operands))(*operands)
    except ZeroDivisionError:
        raise EmmyError(f"{op.name} by 0; divisors are positive", location_of(op)) from None


def numpy_dtype(element: Attribute) -> np.dtype[Any]:
    """The NumPy dtype that stores an IR element type. Raises EmmyError for a type that has none."""
    table: list[tuple[type[Attribute], Any]] = [
        (Float16Type, np.float16),
        (BFloat16Type, ml_dtypes.bfloat16),
        (Float32Type, np.float32),
        (Float64Type, np.float64),
        (Float8E4M3FNType, ml_dtypes.float8_e4m3fn),
        (Float8E5M2Type, ml_dtypes.float8_e5m2),
    ]
    for ir, stored in table:
        if isinstance(element, ir):
            return np.dtype(stored)
    if element == IntegerType(32):
        return np.dtype(np.int32)
    if element == IntegerType(1):
        return np.dtype(np.bool_)
    raise EmmyError(f"no interpreter holds elements of type {element}")
