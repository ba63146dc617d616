"""Writing tile programs by hand: one call for each op, with result types worked out and index arithmetic folded.

A *number* is an index value or a plain integer; constants become ops only where an op takes them, before the outermost loop
under construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, cast

from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat, FloatAttr, IntegerAttr, f32, i1, i32
from xdsl.ir import Attribute, Block, Operation, SSAValue

from emmy.dialects.common import COMPARISONS, Index, MapKind, MapKindAttr, ReduceKind, ReduceKindAttr
from emmy.dialects.tensor_op import AccumulateAttr
from emmy.dialects.tile import CastOp, DotOp, FillOp, LoadOp, MapOp, ReduceOp, TileType
from emmy.passes.emitter import Emitter

Number: TypeAlias = SSAValue | int


def named(value: SSAValue, name: str | None) -> SSAValue:
    """The value, called `name` in the text."""
    if name is not None:
        value.name_hint = name
    return value


def tile_type(value: SSAValue) -> TileType:
    """The type of a tile."""
    return cast(TileType, value.type)


class TileBuilder:
    """Adds ops where `emit` stands; constants go where the outermost builder stands."""

    def __init__(self, emit: Emitter, outer: TileBuilder | None = None):
        self.emit = emit
        self.outer = outer
        self.constants: dict[str, SSAValue] = {} if outer is None else outer.constants

    def inside(self, block: Block) -> TileBuilder:
        """A builder at the end of the body of a loop, which is to be added where this one stands."""
        return TileBuilder(self.emit.inside(block), self)

    def _constant(self, key: str, op: Operation, name: str) -> SSAValue:
        if key not in self.constants:
            top = self
            while top.outer is not None:
                top = top.outer
            self.constants[key] = named(top.emit.value(op), name)
        return self.constants[key]

    # ---- index values

    def index(self, number: Number) -> SSAValue:
        """A number as a value."""
        if not isinstance(number, int):
            return number
        name = f"c{number}" if number >= 0 else f"minus_{-number}"
        return self._constant(str(number), arith.ConstantOp(IntegerAttr(number, Index)), name)

    def add(self, a: Number, b: Number, name: str | None = None) -> Number:
        """a + b; a sum with a negative constant is a difference."""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if isinstance(a, int):
            a, b = b, a
        if isinstance(b, int) and b < 0:
            return self.sub(a, -b, name)
        return a if b == 0 else named(self.emit.value(arith.AddiOp(self.index(a), self.index(b))), name)

    def sub(self, a: Number, b: Number, name: str | None = None) -> Number:
        """a - b"""
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        return a if b == 0 else named(self.emit.value(arith.SubiOp(self.index(a), self.index(b))), name)

    def mul(self, a: Number, b: Number, name: str | None = None) -> Number:
        """a * b"""
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if isinstance(a, int):
            a, b = b, a
        return a if b == 1 else named(self.emit.value(arith.MuliOp(self.index(a), self.index(b))), name)

    def div(self, a: Number, b: Number, name: str | None = None) -> Number:
        """a / b rounded down; neither is negative."""
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        return a if b == 1 else named(self.emit.value(arith.DivUIOp(self.index(a), self.index(b))), name)

    def ceildiv(self, a: Number, b: Number, name: str | None = None) -> Number:
        """a / b rounded up; neither is negative."""
        if isinstance(a, int) and isinstance(b, int):
            return -(-a // b)
        return a if b == 1 else named(self.emit.value(arith.CeilDivUIOp(self.index(a), self.index(b))), name)

    def min(self, a: Number, b: Number, name: str | None = None) -> Number:
        """The smaller one, signed."""
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return named(self.emit.value(arith.MinSIOp(self.index(a), self.index(b))), name)

    def max(self, a: Number, b: Number, name: str | None = None) -> Number:
        """The larger one, signed."""
        if isinstance(a, int) and isinstance(b, int):
            return max(a, b)
        return named(self.emit.value(arith.MaxSIOp(self.index(a), self.index(b))), name)

    # ---- tiles

    def scalar(self, value: float, name: str) -> SSAValue:
        """An f32 constant, which stands for a whole tile in a map; one op for each value, named by its first use."""
        return self._constant(repr(float(value)), arith.ConstantOp(FloatAttr(value, f32)), name)

    def fill(self, value: float, shape: Sequence[int], name: str, element: AnyFloat = f32) -> SSAValue:
        """A tile of one value."""
        return named(self.emit.value(FillOp(FloatAttr(value, element), TileType.get(shape, element))), name)

    def load(self, view: SSAValue, indices: Sequence[Number], shape: Sequence[int], name: str) -> SSAValue:
        """The tile of a view at element offsets."""
        element = cast(TileType, view.type).element_type  # a view's type has one, too
        places = [self.index(i) for i in indices]
        return named(self.emit.value(LoadOp(view, places, TileType.get(shape, element))), name)

    def map(self, kind: str, *args: SSAValue, name: str) -> SSAValue:
        """An elementwise function: comparisons give i1, functions of integers i32, others f32."""
        shapes = [tile_type(a).get_shape() for a in args if isinstance(a.type, TileType)]
        shape = [max(sizes) for sizes in zip(*shapes, strict=True)]
        of_values = args[1:] if kind == "select" else args
        elements = [a.type.element_type if isinstance(a.type, TileType) else a.type for a in of_values]
        element: Attribute = i32 if all(e in (i32, Index) for e in elements) else f32
        result = TileType.get(shape, i1 if kind in COMPARISONS else element)
        return named(self.emit.value(MapOp(MapKindAttr(MapKind(kind)), args, result)), name)

    def reduce(self, kind: str, arg: SSAValue, name: str, left: int = 1, axis: int = 1) -> SSAValue:
        """Reduce the columns (or, of axis 0, the rows) to `left` of them."""
        return named(self.emit.value(ReduceOp(ReduceKindAttr(ReduceKind(kind)), arg, axis, left)), name)

    def cast(self, arg: SSAValue, element: Attribute, name: str) -> SSAValue:
        """The tile rounded to an element type, unless it has it."""
        type_ = tile_type(arg)
        if type_.element_type == element:
            return arg
        return named(self.emit.value(CastOp(arg, TileType.get(type_.get_shape(), element))), name)

    def dot(
        self,
        a: SSAValue,
        b: SSAValue,
        acc: SSAValue,
        name: str,
        transpose_b: bool = False,
        policy: AccumulateAttr | None = None,
    ) -> SSAValue:
        """acc + a * b; a policy that says no more than the types is left out."""
        policy = None if policy is None or policy.policy.data == "f32" else policy
        return named(self.emit.value(DotOp(a, b, acc, False, transpose_b, policy)), name)
