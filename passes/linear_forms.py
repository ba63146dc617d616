"""What integers of level 3 are, as far as they are sums: a few values with factors, and a range that elements span.

    %0 = arith.addi %base, %row                  // %row = 32 * mma.warp 0 of [4, 1]
    %pos = mma.coord 0 from %0 : 32x1            // base + 32 warp + [0, 31]

Values are taken apart only as far as they depend on a value of interest (a loop's variable, a warp's number); all else stays
one term.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, IntegerAttr
from xdsl.ir import Operation, SSAValue

from emmy.dialects import mma
from emmy.dialects.common import constant
from emmy.passes.emitter import Emitter


@dataclass(frozen=True)
class LinearForm:
    """The sum of `terms` (value -> factor, none of them 0) plus something from `low` to `high`."""

    terms: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    low: int = 0
    high: int = 0

    def plus(self, other: LinearForm) -> LinearForm:
        """The sum; the ranges are taken as independent."""
        terms = dict(self.terms)
        for value, factor in other.terms.items():
            terms[value] = terms.get(value, 0) + factor
        return LinearForm({v: f for v, f in terms.items() if f}, self.low + other.low, self.high + other.high)

    def times(self, factor: int) -> LinearForm:
        """A multiple."""
        ends = sorted((self.low * factor, self.high * factor))
        return LinearForm({v: f * factor for v, f in self.terms.items() if f * factor}, *ends)

    def minus(self, other: LinearForm) -> LinearForm:
        """The difference; the ranges are taken as independent."""
        return self.plus(other.times(-1))

    def shifted(self, by: int) -> LinearForm:
        """The sum with a number."""
        return LinearForm(self.terms, self.low + by, self.high + by)

    def without(self, value: SSAValue) -> LinearForm:
        """The other terms."""
        return LinearForm({v: f for v, f in self.terms.items() if v is not value}, self.low, self.high)

    def substitute(self, value: SSAValue, form: LinearForm) -> LinearForm:
        """With a form in place of a value."""
        return self.without(value).plus(form.times(self.terms.get(value, 0)))

    def spread(self, value: SSAValue, most: int) -> LinearForm:
        """With a term that is anything from 0 to `most` as a part of the range."""
        factor = self.terms.get(value, 0) * most
        return LinearForm(self.without(value).terms, self.low + min(factor, 0), self.high + max(factor, 0))


def linear_form(value: SSAValue, interesting: Callable[[SSAValue], bool]) -> LinearForm | None:
    """The form of an index or of an i32 fragment; None for a fragment that is no sum.

    `interesting`: which values are to stand alone.
    """
    owner = value.owner
    if isinstance(value.type, mma.FragmentType):
        return _fragment_form(owner, interesting) if isinstance(owner, Operation) else None
    known = constant(value)
    if known is not None:
        return LinearForm({}, known, known)
    if not interesting(value) and isinstance(owner, Operation) and depends(value, interesting):
        parts = [form for operand in owner.operands if (form := linear_form(operand, interesting)) is not None]
        made = _combined(owner, parts[0], parts[1]) if len(parts) == 2 else None
        if made is not None:
            return made
    return LinearForm({value: 1})


def _combined(owner: Operation, x: LinearForm, y: LinearForm) -> LinearForm | None:
    if isinstance(owner, arith.AddiOp):
        return x.plus(y)
    if isinstance(owner, arith.SubiOp):
        return x.minus(y)
    if isinstance(owner, arith.MuliOp):
        for one, other in ((x, y), (y, x)):
            if not other.terms and other.low == other.high:
                return one.times(other.low)
    return None


def _fragment_form(owner: Operation, interesting: Callable[[SSAValue], bool]) -> LinearForm | None:
    if isinstance(owner, mma.CoordOp):
        base = linear_form(owner.base, interesting)
        extent = owner.result.type.get_shape()[owner.axis.value.data]
        return None if base is None else base.plus(LinearForm({}, 0, extent - 1))
    if not isinstance(owner, mma.MapOp):
        return None
    parts = [linear_form(arg, interesting) for arg in owner.args]
    kind = owner.kind.data.value
    if kind == "neg" and parts[0] is not None:
        return parts[0].times(-1)
    if kind in ("add", "sub") and parts[0] is not None and parts[1] is not None:
        return parts[0].plus(parts[1]) if kind == "add" else parts[0].minus(parts[1])
    return None


def depends(value: SSAValue, interesting: Callable[[SSAValue], bool]) -> bool:
    """Is an index made from a value of interest by sums and products?"""
    if interesting(value):
        return True
    owner = value.owner
    sums = (arith.AddiOp, arith.SubiOp, arith.MuliOp)
    return isinstance(owner, sums) and any(depends(operand, interesting) for operand in owner.operands)


class IndexSums:
    """Writes index arithmetic; what is known is computed now."""

    def __init__(self, emit: Emitter):
        self.emit = emit
        self.constants: dict[int, SSAValue] = {}

    def number(self, value: int) -> SSAValue:
        """A constant, made once."""
        if value not in self.constants:
            self.constants[value] = self.emit.value(arith.ConstantOp(IntegerAttr(value, IndexType())))
        return self.constants[value]

    def total(self, form: LinearForm, end: int) -> SSAValue:
        """The sum of a form's terms, plus `end`."""
        result: SSAValue | None = None
        for value, factor in sorted(form.terms.items(), key=lambda term: term[1] < 0):
            if factor == -1 and result is not None:
                result = self.emit.value(arith.SubiOp(result, value))
                continue
            term = value if factor == 1 else self.emit.value(arith.MuliOp(value, self.number(factor)))
            result = term if result is None else self.emit.value(arith.AddiOp(result, term))
        if result is None:
            return self.number(end)
        return self.add(result, self.number(end)) if end else result

    def add(self, x: SSAValue, y: SSAValue) -> SSAValue:
        """x + y"""
        a, b = constant(x), constant(y)
        if a is not None and b is not None:
            return self.number(a + b)
        return y if a == 0 else x if b == 0 else self.emit.value(arith.AddiOp(x, y))

    def subtract(self, x: SSAValue, y: SSAValue) -> SSAValue:
        """x - y"""
        a, b = constant(x), constant(y)
        if a is not None and b is not None:
            return self.number(a - b)
        return x if b == 0 else self.emit.value(arith.SubiOp(x, y))

    def least(self, x: SSAValue, y: SSAValue) -> SSAValue:
        """The smaller one, signed."""
        a, b = constant(x), constant(y)
        return self.number(min(a, b)) if a is not None and b is not None else self.emit.value(arith.MinSIOp(x, y))

    def most(self, x: SSAValue, y: SSAValue) -> SSAValue:
        """The larger one, signed."""
        a, b = constant(x), constant(y)
        return self.number(max(a, b)) if a is not None and b is not None else self.emit.value(arith.MaxSIOp(x, y))

    def steps(self, distance: SSAValue, step: int) -> SSAValue:
        """Steps that cover a distance; none if it is negative."""
        known = constant(distance)
        if known is not None:
            return self.number(max(-(-known // step), 0))
        return self.emit.value(arith.CeilDivUIOp(self.most(distance, self.number(0)), self.number(step)))

    def scaled(self, count: SSAValue, step: int) -> SSAValue:
        """count * step"""
        known = constant(count)
        return (
            self.number(known * step) if known is not None else self.emit.value(arith.MuliOp(count, self.number(step)))
        )
