"""`lower-raster`: which tile a CTA computes, as index arithmetic on the CTA's number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from emmy.dialects import tile
from emmy.dialects.common import DYNAMIC, Index, constant
from emmy.passes.emitter import Emitter

Number = int | SSAValue
"""An index that is known now, or one that the kernel computes."""


@dataclass(frozen=True)
class LowerRaster(ModulePass):
    """Contract: replaces every `tile.grid` by `tile.cta_id` (or the number that it is given) and unsigned `arith` on
    index: constant, addi, muli, divui, remui, maxui, cmpi, select. Nothing else changes.

    Guarantees: CTAs number 0 to (number of blocks) - 1 take every block of the grid exactly once. Leading dimensions are
    outermost. Over the last two, T0 x T1 blocks, with `raster G`:

        group = id / (G * T1)            rows = T0 % G if group = T0 / G, else G       (the last group may have fewer)
        i = group * G + id % (G * T1) % rows
        j = id % (G * T1) / rows

    What is known now is computed now: static extents, a G of 1, a G of T0 or more, a G that divides T0.

    Before:
        %m, %n = tile.grid [%c512 by 128, %c4096 by 256] raster 2
    After:
        %id = tile.cta_id
        %group = arith.divui %id, %c32         %inside = arith.remui %id, %c32
        %first = arith.muli %group, %c2        %i = arith.addi %first, (arith.remui %inside, %c2)
        %m = arith.muli %i, %c128              %n = arith.muli (arith.divui %inside, %c2), %c256
    """

    name = "lower-raster"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for grid in list(op.walk()):
            if isinstance(grid, tile.GridOp):
                lower_grid(grid)


class Arithmetic:
    """Unsigned index arithmetic that is done now where both operands are known, and emitted where not."""

    def __init__(self, emit: Emitter):
        self.emit = emit
        self.constants: dict[int, SSAValue] = {}

    def value(self, number: Number) -> SSAValue:
        """An SSA value for a number."""
        if isinstance(number, SSAValue):
            return number
        if number not in self.constants:
            self.constants[number] = self.emit.value(arith.ConstantOp(IntegerAttr(number, Index)))
            self.constants[number].name_hint = f"c{number}"
        return self.constants[number]

    def _op(self, op: Callable[[SSAValue, SSAValue], Operation], x: Number, y: Number) -> SSAValue:
        left, right = self.value(x), self.value(y)
        return self.emit.value(op(left, right))

    def add(self, x: Number, y: Number) -> Number:
        """x + y"""
        if isinstance(x, int) and isinstance(y, int):
            return x + y
        if x == 0 or y == 0:
            return y if x == 0 else x
        return self._op(arith.AddiOp, x, y)

    def subtract(self, x: Number, y: Number) -> Number:
        """x - y, which is not negative"""
        if isinstance(x, int) and isinstance(y, int):
            return x - y
        return x if y == 0 else self._op(arith.SubiOp, x, y)

    def multiply(self, x: Number, y: Number) -> Number:
        """x * y"""
        if isinstance(x, int) and isinstance(y, int):
            return x * y
        if x == 0 or y == 0:
            return 0
        if x == 1 or y == 1:
            return y if x == 1 else x
        return self._op(arith.MuliOp, x, y)

    def divide(self, x: Number, y: Number) -> Number:
        """x / y, rounded down"""
        if isinstance(x, int) and isinstance(y, int):
            return x // y
        if x == 0 or y == 1:
            return x
        return self._op(arith.DivUIOp, x, y)

    def remainder(self, x: Number, y: Number) -> Number:
        """x mod y"""
        if isinstance(x, int) and isinstance(y, int):
            return x % y
        if x == 0 or y == 1:
            return 0
        return self._op(arith.RemUIOp, x, y)

    def minimum(self, x: Number, y: Number) -> Number:
        """The smaller one"""
        if isinstance(x, int) and isinstance(y, int):
            return min(x, y)
        return self._op(arith.MinUIOp, x, y)

    def maximum(self, x: Number, y: Number) -> Number:
        """The larger one"""
        if isinstance(x, int) and isinstance(y, int):
            return max(x, y)
        return self._op(arith.MaxUIOp, x, y)

    def equal(self, x: Number, y: Number) -> bool | SSAValue:
        """x = y"""
        if isinstance(x, int) and isinstance(y, int):
            return x == y
        return self.emit.value(arith.CmpiOp(self.value(x), self.value(y), "eq"))

    def select(self, condition: bool | SSAValue, x: Number, y: Number) -> Number:
        """x if the condition holds, else y"""
        if isinstance(condition, bool):
            return x if condition else y
        return self.emit.value(arith.SelectOp(condition, self.value(x), self.value(y)))

    def blocks(self, extent: Number, block: int) -> Number:
        """extent / block, rounded up; at least 1 where it is known, since a CTA that runs has a block."""
        if isinstance(extent, int):
            return max(1, -(-extent // block))
        return self.divide(self.add(extent, block - 1), block)


def lower_grid(grid: tile.GridOp) -> None:
    """Replace one `tile.grid`."""
    assert grid.parent is not None
    emit = Emitter(grid.parent, grid, grid)
    do = Arithmetic(emit)
    counts = [do.blocks(known(extent), block) for extent, block in zip(grid.extents, grid.get_blocks(), strict=True)]
    at: Number = 0
    if grid.number is not None:
        at = grid.number
    elif any(count != 1 for count in counts):
        at = emit.value(tile.CtaIdOp())
        at.name_hint = "cta"
    coordinates: list[Number] = []
    for number in range(max(0, len(counts) - 2)):
        inner: Number = 1
        for count in counts[number + 1 :]:
            inner = do.multiply(inner, count)
        coordinates.append(do.divide(at, inner))
        at = do.remainder(at, inner)
    if len(counts) == 1:
        coordinates = [at]
    elif len(counts) >= 2:
        coordinates += grouped(do, at, counts[-2], counts[-1], grid.raster.value.data)
    for result, coordinate, block in zip(grid.offsets, coordinates, grid.get_blocks(), strict=True):
        offset = do.value(do.multiply(coordinate, block))
        if offset.name_hint is None:
            offset.name_hint = result.name_hint
        result.replace_all_uses_with(offset)
    grid.detach()
    grid.erase()


def grouped(do: Arithmetic, at: Number, rows: Number, columns: Number, group: int) -> list[Number]:
    """Block coordinates (i, j) of number `at` in a grid of rows x columns, walked in groups of `group` rows."""
    if group == 1 or columns == 1:
        return [do.divide(at, columns), do.remainder(at, columns)]
    if isinstance(rows, int) and rows <= group:
        return [do.remainder(at, rows), do.divide(at, rows)]
    each = do.multiply(columns, group)
    number = do.divide(at, each)
    first = do.multiply(number, group)
    inside = do.remainder(at, each)
    if isinstance(rows, int) and rows % group == 0:
        return [do.add(first, do.remainder(inside, group)), do.divide(inside, group)]
    # What the last group's height divides does not wait for the group's number: it is 1 % of a product of 2048^3.
    fewer = do.maximum(do.remainder(rows, group), 1)
    last = do.equal(number, do.divide(rows, group))
    row = do.select(last, do.remainder(inside, fewer), do.remainder(inside, group))
    column = do.select(last, do.divide(inside, fewer), do.divide(inside, group))
    return [do.add(first, row), column]


def known(value: SSAValue) -> Number:
    """A value as a number where its op says it: a constant, or a static dimension of a view."""
    number = constant(value)
    if number is not None:
        return number
    op = value.owner
    if isinstance(op, tile.DimOp) and isinstance(op.source.type, tile.ViewType):
        size = op.source.type.get_shape()[op.axis.value.data]
        return value if size == DYNAMIC else size
    return value
