"""Index arithmetic of `arith` on numbers that are known now or in registers."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects import arith
from xdsl.dialects.builtin import i1
from xdsl.ir import Operation, SSAValue

from emmy.lowering.ptx_builder import Builder, Condition, Number

Build = Callable[[Builder, Number, Number], Number]

COMPARISONS: tuple[tuple[str, bool], ...] = (
    ("eq", False),
    ("ne", False),
    ("lt", False),
    ("le", False),
    ("gt", False),
    ("ge", False),
    ("lt", True),
    ("le", True),
    ("gt", True),
    ("ge", True),
)
"""`arith.cmpi` predicates in the order of their numbers: test, unsigned."""


def _ceil_divide(b: Builder, x: Number, y: Number) -> Number:
    return b.divide(b.add(x, b.sub(y, 1)), y)


def _extremum(name: str) -> Build:
    def build(b: Builder, x: Number, y: Number) -> Number:
        if isinstance(x, int) and isinstance(y, int):
            return min(x, y) if name.startswith("min") else max(x, y)
        return b.pure(name, x, y)

    return build


def _bitwise(name: str) -> Build:
    """and, or, xor of numbers or conditions."""

    def build(b: Builder, x: Number, y: Number) -> Number:
        if isinstance(x, int) and isinstance(y, int):
            return b.binary(f"{name}_b32", x, y)
        conditions = any(isinstance(v, bool) or (isinstance(v, SSAValue) and v.type == i1) for v in (x, y))
        if not conditions:
            return b.binary(f"{name}_b32", x, y)
        return b.pure(f"{name}_pred", b.predicate(_as_condition(x)), b.predicate(_as_condition(y)))

    return build


def _as_condition(value: Number) -> Condition:
    return value if isinstance(value, SSAValue) else bool(value)


def _shift(name: str) -> Build:
    def build(b: Builder, x: Number, y: Number) -> Number:
        if isinstance(y, int):
            return b.mul(x, 1 << y) if name == "shl_b32" else b.divide(x, 1 << y)
        return b.pure(name, x, y)

    return build


BINARY: dict[type[Operation], Build] = {
    arith.AddiOp: Builder.add,
    arith.SubiOp: Builder.sub,
    arith.MuliOp: Builder.mul,
    arith.DivUIOp: Builder.divide,
    arith.DivSIOp: Builder.divide,
    arith.RemUIOp: Builder.remainder,
    arith.RemSIOp: Builder.remainder,
    arith.CeilDivUIOp: _ceil_divide,
    arith.CeilDivSIOp: _ceil_divide,
    arith.MinUIOp: _extremum("min_u32"),
    arith.MinSIOp: _extremum("min_s32"),
    arith.MaxUIOp: _extremum("max_u32"),
    arith.MaxSIOp: _extremum("max_s32"),
    arith.AndIOp: _bitwise("and"),
    arith.OrIOp: _bitwise("or"),
    arith.XOrIOp: _bitwise("xor"),
    arith.ShLIOp: _shift("shl_b32"),
    arith.ShRUIOp: _shift("shr_u32"),
}
"""Arithmetic on two numbers. Index values are not negative, so signed and unsigned division agree."""
