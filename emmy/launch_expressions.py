"""Index arithmetic of host functions as JSON: an integer, or a nested list as `emmy.artefact` defines it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from xdsl.dialects import arith
from xdsl.ir import Operation

Expression: TypeAlias = Any
"""An integer, or a nested list as `emmy.artefact` defines it."""

Sizes: TypeAlias = tuple[Expression, ...]


def operation_of(expression: Expression) -> str | None:
    """The operation of an expression that is not a number."""
    return str(expression[0]) if not isinstance(expression, int) else None


def add(*terms: Expression) -> Expression:
    """The sum, constants folded."""
    constant = sum(t for t in terms if isinstance(t, int))
    rest = [t for t in terms if not isinstance(t, int)]
    if not rest:
        return constant
    terms = (*rest, constant) if constant else tuple(rest)
    return terms[0] if len(terms) == 1 else ["add", *terms]


def multiply(*factors: Expression) -> Expression:
    """The product, flattened, constants folded."""
    constant, rest = 1, list[Expression]()
    for factor in factors:
        for part in factor[1:] if operation_of(factor) == "mul" else [factor]:
            if isinstance(part, int):
                constant *= part
            else:
                rest.append(part)
    if not rest or constant == 0:
        return constant
    factors = (constant, *rest) if constant != 1 else tuple(rest)
    return factors[0] if len(factors) == 1 else ["mul", *factors]


def _binary(name: str, fold: Callable[[int, int], int]) -> Callable[[Expression, Expression], Expression]:
    def build(a: Expression, b: Expression) -> Expression:
        return fold(a, b) if isinstance(a, int) and isinstance(b, int) else [name, a, b]

    return build


def _divide(name: str, fold: Callable[[int, int], int]) -> Callable[[Expression, Expression], Expression]:
    def build(a: Expression, b: Expression) -> Expression:
        if b == 1:
            return a
        return fold(a, b) if isinstance(a, int) and isinstance(b, int) and b else [name, a, b]

    return build


ceildiv = _divide("ceildiv", lambda a, b: -(-a // b))
floordiv = _divide("floordiv", lambda a, b: a // b)
minimum, maximum = _binary("min", min), _binary("max", max)

ARITHMETIC: dict[type[Operation], Callable[[Expression, Expression], Expression]] = {
    arith.AddiOp: add,
    arith.SubiOp: _binary("sub", lambda a, b: a - b),
    arith.MuliOp: multiply,
    arith.CeilDivUIOp: ceildiv,
    arith.CeilDivSIOp: ceildiv,
    arith.DivUIOp: floordiv,
    arith.DivSIOp: floordiv,
    arith.FloorDivSIOp: floordiv,
    arith.MinUIOp: minimum,
    arith.MinSIOp: minimum,
    arith.MaxUIOp: maximum,
    arith.MaxSIOp: maximum,
}
"""Host index arithmetic. Sizes are never negative, so signed and unsigned forms agree."""


def describe(expression: Expression) -> str:
    """An expression in words: `dimension 1 of 'a'`."""
    if operation_of(expression) == "dim":
        return f"dimension {expression[2]} of '{expression[1]}'"
    return str(expression)
