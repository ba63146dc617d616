"""The elementwise functions as PTX, on f32 registers: what `emmy.elementwise` says, in few instructions.

exp2 and reciprocal are the hardware's approximations, good to about 2 units in the last place of f32 (PTX ISA, `ex2.approx`,
`rcp.approx`). Sigmoid, SiLU and both tanh are built from them, because `tanh.approx` keeps 11 bits only.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from xdsl.dialects.builtin import f32
from xdsl.ir import SSAValue

from emmy.lowering.ptx_builder import Builder

Function = Callable[..., SSAValue]

LOG2_E = math.log2(math.e)
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
    return b.pure("mul_f32", x, _number(b, factor))


def _exp(b: Builder, x: SSAValue) -> SSAValue:
    return b.pure("ex2_approx_f32", _scaled(b, x, LOG2_E))


def _over_one_plus_exp2(b: Builder, numerator: SSAValue, exponent: SSAValue) -> SSAValue:
    """numerator / (1 + 2^exponent)"""
    below = b.pure("add_f32", b.pure("ex2_approx_f32", exponent), _number(b, 1.0))
    return b.pure("mul_f32", numerator, b.pure("rcp_approx_f32", below))


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


def _test(name: str) -> Function:
    """A comparison as 1.0 or 0.0."""

    def build(b: Builder, x: SSAValue, y: SSAValue) -> SSAValue:
        return b.pure("selp_f32", _number(b, 1.0), _number(b, 0.0), b.pure(name, x, y))

    return build


def _select(b: Builder, condition: SSAValue, x: SSAValue, y: SSAValue) -> SSAValue:
    return b.pure("selp_f32", x, y, b.pure("setp_neu_f32", condition, _number(b, 0.0)))


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
    "exp2": _one("ex2_approx_f32"),
    "rcp": _one("rcp_approx_f32"),
    "sqrt": _one("sqrt_approx_f32"),
    "rsqrt": _one("rsqrt_approx_f32"),
    "tanh": _tanh,
    "relu": _relu,
    "silu": _silu,
    "gelu_tanh": _gelu_tanh,
    "fma": _one("fma_rn_f32"),
    "ge": _test("setp_ge_f32"),
    "lt": _test("setp_lt_f32"),
    "select": _select,
}
"""Name of `emmy.elementwise.ELEMENTWISE` -> builder of the function; NaN passes through max, min and relu, as in NumPy."""
