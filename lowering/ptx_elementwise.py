"""The elementwise functions as PTX, on f32 registers: what `emmy.elementwise` says, in few instructions.

exp2, log2 and reciprocal are the hardware's approximations, good to about 2 units in the last place of f32 (PTX ISA,
`ex2.approx`, `lg2.approx`, `rcp.approx`); powers and logarithms take and give zeros for numbers below 2^-126, which saves two
instructions each. Sigmoid, SiLU and both tanh are built from them, because `tanh.approx` keeps 11 bits only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

from xdsl.dialects.builtin import FloatAttr, f32
from xdsl.ir import SSAValue

from emmy.dialects.ptx import ConstantOp, Instruction
from emmy.lowering.ptx_builder import Builder, Number

Function = Callable[..., SSAValue]
IntegerFunction = Callable[..., Number]

LOG2_E = math.log2(math.e)
LN_2 = math.log(2)
GELU_SCALE = 2 * math.sqrt(2 / math.pi)
"""Twice the factor inside the tanh: 0.5 x (1 + tanh u) = x / (1 + exp(-2u))."""
GELU_CUBIC = 0.044715


def _one(name: str) -> Function:
    """An instruction on registers."""

    def build(b: Builder, *x: SSAValue) -> SSAValue:
        return b.pure(name, *x)

    return build


def _number(b: Builder, value: float) -> SSAValue:
    return b.constant(value, f32)


def _scaled(b: Builder, x: SSAValue, factor: float) -> SSAValue:
    """x * factor; where x is a product with a number already, with one factor for both."""
    made = x.owner
    if isinstance(made, Instruction) and made.row.name == "mul_f32" and isinstance(made.operands[1].owner, ConstantOp):
        x, factor = made.operands[0], factor * cast(FloatAttr, made.operands[1].owner.value).value.data
    return b.pure("mul_f32", x, _number(b, factor))


def _exp(b: Builder, x: SSAValue) -> SSAValue:
    return b.pure("ex2_approx_ftz_f32", _scaled(b, x, LOG2_E))


def _over_one_plus_exp2(b: Builder, numerator: SSAValue, exponent: SSAValue) -> SSAValue:
    """numerator / (1 + 2^exponent); the divisor is not below 1, and a reciprocal below 2^-126 is as good as 0."""
    below = b.pure("add_f32", b.pure("ex2_approx_ftz_f32", exponent), _number(b, 1.0))
    return b.pure("mul_f32", numerator, b.pure("rcp_approx_ftz_f32", below))


def _silu(b: Builder, x: SSAValue) -> SSAValue:
    return _over_one_plus_exp2(b, x, _scaled(b, x, -LOG2_E))


def _gelu_tanh(b: Builder, x: SSAValue) -> SSAValue:
    square = b.pure("mul_f32", x, x)
    factor = b.pure(
        "fma_rn_f32", square, _number(b, -GELU_SCALE * LOG2_E * GELU_CUBIC), _number(b, -GELU_SCALE * LOG2_E)
    )
    return _over_one_plus_exp2(b, x, b.pure("mul_f32", x, factor))


def _tanh(b: Builder, x: SSAValue) -> SSAValue:
    twice = _over_one_plus_exp2(b, _number(b, 2.0), _scaled(b, x, -2 * LOG2_E))
    return b.pure("sub_f32", twice, _number(b, 1.0))


def _relu(b: Builder, x: SSAValue) -> SSAValue:
    return b.pure("max_NaN_f32", x, _number(b, 0.0))


def _log(b: Builder, x: SSAValue) -> SSAValue:
    return _scaled(b, b.pure("lg2_approx_ftz_f32", x), LN_2)


FUNCTIONS: dict[str, Function] = {
    "add": _one("add_f32"),
    "sub": _one("sub_f32"),
    "mul": _one("mul_f32"),
    "div": _one("div_full_f32"),
    "max": _one("max_NaN_f32"),
    "min": _one("min_NaN_f32"),
    "neg": _one("neg_f32"),
    "abs": _one("abs_f32"),
    "exp": _exp,
    "exp2": _one("ex2_approx_ftz_f32"),
    "log": _log,
    "log2": _one("lg2_approx_ftz_f32"),
    "rcp": _one("rcp_approx_f32"),
    "sqrt": _one("sqrt_approx_f32"),
    "rsqrt": _one("rsqrt_approx_f32"),
    "tanh": _tanh,
    "relu": _relu,
    "silu": _silu,
    "gelu_tanh": _gelu_tanh,
    "fma": _one("fma_rn_f32"),
}
"""Name of `emmy.elementwise.ELEMENTWISE` -> builder of the function; NaN passes through max, min and relu, as in NumPy.

Comparisons and `select` are not here: they give and take predicates.
"""

COMPARISONS: dict[str, str] = {"ge": "setp_ge_f32", "lt": "setp_lt_f32", "ne": "setp_neu_f32"}
"""The kinds that compare, and what compares floats; NaN differs from everything."""


def select(b: Builder, condition: SSAValue, x: SSAValue, y: SSAValue) -> SSAValue:
    """x where a predicate holds, else y."""
    return b.pure("selp_f32", x, y, condition)


def _integer(name: str) -> IntegerFunction:
    def build(b: Builder, x: Number, y: Number) -> Number:
        return b.pure(name, x, y)

    return build


def _negative(b: Builder, x: Number) -> Number:
    return b.sub(0, x)


def _absolute(b: Builder, x: Number) -> Number:
    return b.pure("max_s32", x, b.sub(0, x))


INTEGER_FUNCTIONS: dict[str, IntegerFunction] = {
    "add": Builder.add,
    "sub": Builder.sub,
    "mul": Builder.mul,
    "max": _integer("max_s32"),
    "min": _integer("min_s32"),
    "neg": _negative,
    "abs": _absolute,
}
"""The functions of 32-bit integers."""
