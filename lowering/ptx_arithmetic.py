"""Index arithmetic of `arith` on numbers that are known now or in registers."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects import arith
from xdsl.dialects.builtin import i1
from xdsl.ir import Operation, SSAValue

from emmy.lowering.ptx_builder import Builder, Condition, Number, log2

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


def _divide_signed(b: Builder, x: Number, y: Number) -> Number:
    """Rounded towards zero."""
    if isinstance(x, int) and isinstance(y, int):
        return abs(x) // y if x >= 0 else -(abs(x) // y)
    shift = log2(y) if isinstance(y, int) else None
    if shift is None:
        return b.pure("div_s32", x, y)
    if shift == 0:
        return x
    # A negative dividend is moved up by y - 1, so that the shift, which rounds down, rounds it up.
    return b.pure("shr_s32", b.add(x, b.low_bits(b.pure("shr_s32", x, 31), (1 << shift) - 1)), shift)


def _remainder_signed(b: Builder, x: Number, y: Number) -> Number:
    """What `_divide_signed` leaves: it has the sign of x."""
    return b.sub(x, b.mul(_divide_signed(b, x, y), y))


def _floor_divide(b: Builder, x: Number, y: Number) -> Number:
    """Rounded down."""
    if isinstance(x, int) and isinstance(y, int):
        return x // y
    shift = log2(y) if isinstance(y, int) else None
    if shift is not None:
        return x if shift == 0 else b.pure("shr_s32", x, shift)
    quotient = b.pure("div_s32", x, y)
    return b.select(b.compare("lt", b.sub(x, b.mul(quotient, y)), 0), b.add(quotient, -1), quotient)


def _ceil_divide_signed(b: Builder, x: Number, y: Number) -> Number:
    """Rounded up."""
    return b.sub(0, _floor_divide(b, b.sub(0, x), y))


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


def _shift_signed(b: Builder, x: Number, y: Number) -> Number:
    if isinstance(x, int) and isinstance(y, int):
        return x >> y
    return b.pure("shr_s32", x, y)


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
    arith.DivSIOp: _divide_signed,
    arith.FloorDivSIOp: _floor_divide,
    arith.RemUIOp: Builder.remainder,
    arith.RemSIOp: _remainder_signed,
    arith.CeilDivUIOp: _ceil_divide,
    arith.CeilDivSIOp: _ceil_divide_signed,
    arith.MinUIOp: _extremum("min_u32"),
    arith.MinSIOp: _extremum("min_s32"),
    arith.MaxUIOp: _extremum("max_u32"),
    arith.MaxSIOp: _extremum("max_s32"),
    arith.AndIOp: _bitwise("and"),
    arith.OrIOp: _bitwise("or"),
    arith.XOrIOp: _bitwise("xor"),
    arith.ShLIOp: _shift("shl_b32"),
    arith.ShRUIOp: _shift("shr_u32"),
    arith.ShRSIOp: _shift_signed,
}
"""Arithmetic on two numbers. Unsigned ones are not negative; divisors are positive."""

DIVISIONS = (
    arith.DivUIOp,
    arith.DivSIOp,
    arith.FloorDivSIOp,
    arith.RemUIOp,
    arith.RemSIOp,
    arith.CeilDivUIOp,
    arith.CeilDivSIOp,
)
"""Those whose second number is a divisor."""
