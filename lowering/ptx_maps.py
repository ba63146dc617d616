"""Arithmetic on fragments: elementwise functions, reductions of rows, coordinates, votes of a warp.

Floats are computed in f32 and rounded once; i32 are exact; i1 are predicates, which no register ever holds as 0 or 1. Sizes
of 1 broadcast without an instruction: an element of the result reads the one register that its operand has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, cast

from xdsl.dialects.builtin import f32, i1, i32
from xdsl.ir import SSAValue

from emmy.dialects import mma
from emmy.errors import EmmyError
from emmy.locations import location_of
from emmy.lowering.ptx_builder import Builder, Number
from emmy.lowering.ptx_elementwise import COMPARISONS, FUNCTIONS, INTEGER_FUNCTIONS, select
from emmy.lowering.ptx_shapes import FLOAT_DTYPES, Registers, Shape, element_coordinates, element_numbers, shape_of

Argument = Registers | Number
"""An operand of a map: a fragment's registers, or a scalar: an f32 register, a number, a predicate."""

ElementFunction = Callable[..., SSAValue]
"""What computes one element of a result from those of the operands."""

NONFINITE_CHAINS = 4
"""Independent sums of a test for infinities: as many as an f32 instruction has cycles of latency."""

ATOM_COLUMNS = 8
"""Columns of an accumulator's atom, which lie in the same lanes in each atom."""

LANES_APART = ((4, 8, 16), (1, 2))
"""By axis: how far apart the lanes are that hold the rows of a column, and those that hold the columns of a row."""

REDUCTIONS = {"sum": "add", "max": "max"}
"""What of `emmy.elementwise` combines the elements of a reduction."""


def lane_position(b: Builder, lane: SSAValue, shape: Shape) -> tuple[Number, Number]:
    """(row, column) of the first element of this lane, of two neighbours, or four of 8 bits; sizes of 1 are held by all lanes."""
    row = b.divide(lane, 4) if shape.rows > 1 else 0
    return row, b.mul(b.low_bits(lane, 3), max(shape.per_register, 2)) if shape.cols > 1 else 0


class FragmentMaps:
    """Lowers what is computed element by element or row by row."""

    def __init__(self, builder: Builder, lane: SSAValue):
        """lane: lane number."""
        self.builder = builder
        self.lane = lane

    # ---- registers and elements --------------------------------------------------------------------------------------

    def elements(self, shape: Shape, registers: Registers) -> Registers:
        """Each element: floats as f32."""
        b = self.builder
        if not shape.packed:
            return registers
        found: Registers = []
        for register in registers:
            halves = b.emit("unpack_b32", (register,)).results
            found.extend(b.pure(f"cvt_f32_{shape.dtype}", half) for half in halves)
        return found[: len(element_coordinates(shape.rows, shape.cols, shape.place, shape.atom))]

    def pack(self, dtype: str, elements: Registers) -> Registers:
        """f32 elements as registers of a dtype, rounded to nearest even. A lone last element fills both halves."""
        if dtype not in ("f16", "bf16"):
            return elements
        evens, odds = elements[::2], elements[1::2]
        odds = odds + evens[len(odds) :]
        return [self.builder.pure(f"cvt_rn_{dtype}x2_f32", odd, even) for even, odd in zip(evens, odds, strict=True)]

    def fill(self, shape: Shape, value: float) -> Registers:
        """One value in all elements."""
        b, count = self.builder, len(element_coordinates(shape.rows, shape.cols, shape.place, shape.atom))
        if shape.dtype == "i32":
            return [b.constant(int(value))] * count
        if shape.packed and value == 0.0:
            return [b.constant(0)] * -(-count // 2)
        return self.pack(shape.dtype, [b.constant(value, f32)] * count)

    def coordinates(self, op: mma.CoordOp, base: Number) -> Registers:
        """Row or column numbers, counted from `base`, as i32."""
        b, shape, axis = self.builder, shape_of(op.result.type), op.axis.value.data
        if shape.place != "c":
            raise EmmyError(f"mma.coord makes c fragments, not {op.result.type}", location_of(op))
        start = b.add(lane_position(b, self.lane, shape)[axis], base)
        places = element_coordinates(shape.rows, shape.cols, shape.place, shape.atom)
        return [b.register(b.add(start, place[axis]), i32) for place in places]

    # ---- element by element ------------------------------------------------------------------------------------------

    def map(self, op: mma.MapOp, args: Sequence[Argument]) -> Registers:
        """An elementwise function. Raises `EmmyError` for operands that it does not take."""
        result, kind = shape_of(op.result.type), op.kind.data.value
        coordinates = element_coordinates(result.rows, result.cols, result.place, result.atom)
        dtypes = [_dtype(op, arg) for arg in op.args]
        columns = [
            self._spread(value, arg, coordinates) if isinstance(arg, list) else [arg] * len(coordinates)
            for value, arg in zip(op.args, args, strict=True)
        ]
        function = self._function(op, kind, dtypes, result.dtype)
        with self.builder.in_branch():
            values = [function(*operands) for operands in zip(*columns, strict=True)]
            return self.pack(result.dtype, values)

    def _spread(self, value: SSAValue, registers: Registers, coordinates: Sequence[tuple[int, int]]) -> Registers:
        """The element of a fragment for each element of the result."""
        source = shape_of(value.type)
        numbers = element_numbers(source.rows, source.cols, source.place, source.atom)
        elements = self.elements(source, registers)
        return [elements[numbers[min(row, source.rows - 1), min(col, source.cols - 1)]] for row, col in coordinates]

    def _function(self, op: mma.MapOp, kind: str, dtypes: Sequence[str], result: str) -> ElementFunction:
        """What computes one element of the result."""
        b, operands = self.builder, set(dtypes[1:] if kind == "select" else dtypes)
        integer = operands == {"i32"}
        if not integer and operands - set(FLOAT_DTYPES):
            raise EmmyError(f"mma.map {kind} does not take {' and '.join(sorted(operands))}", location_of(op))
        if kind in COMPARISONS:
            return self._comparison(kind, integer, result == "i1")
        if (result == "i32") != integer or result == "i1":
            raise EmmyError(f"mma.map {kind} of {' and '.join(dtypes)} does not give {result}", location_of(op))
        if kind == "select":
            return self._selection(dtypes[0], integer)
        if not integer:
            return partial(FUNCTIONS[kind], b)
        if kind not in INTEGER_FUNCTIONS:
            raise EmmyError(f"mma.map {kind} is not for integers", location_of(op))
        function = INTEGER_FUNCTIONS[kind]
        return lambda *x: b.register(function(b, *x))

    def _comparison(self, kind: str, integer: bool, predicates: bool) -> ElementFunction:
        """A test as a predicate, or as 1.0 or 0.0. It stands where it is used: few predicates can be kept."""
        b = self.builder
        one, zero = b.constant(1.0, f32), b.constant(0.0, f32)
        test = self._integer_test(kind) if integer else partial(b.pure, COMPARISONS[kind], here=True)

        def number(*operands: Any) -> SSAValue:
            return select(b, test(*operands), one, zero)

        return test if predicates else number

    def _integer_test(self, kind: str) -> ElementFunction:
        """A comparison of numbers that differ by less than 2^31.

        What is known of both goes to one side, so that one difference serves all elements: setp takes it and a constant.
        """
        b = self.builder

        def test(x: Number, y: Number) -> SSAValue:
            (x, known_x), (y, known_y) = b.split(x), b.split(y)
            if isinstance(x, SSAValue) and isinstance(y, SSAValue):
                x, y = b.sub(x, y), 0
            elif isinstance(y, SSAValue):
                return b.predicate(b.compare(kind, known_x - known_y, y, here=True))
            return b.predicate(b.compare(kind, x, known_y - known_x, here=True))

        return test

    def _selection(self, condition: str, integer: bool) -> ElementFunction:
        """The second operand where the first holds, else the third."""
        b, zero = self.builder, self.builder.constant(0.0, f32)

        def build(c: SSAValue, x: Number, y: Number) -> SSAValue:
            holds = c if condition == "i1" else b.pure("setp_neu_f32", c, zero)
            if integer:
                return b.register(b.select(holds, x, y))
            return select(b, holds, cast(SSAValue, x), cast(SSAValue, y))

        return build

    def any(self, op: mma.AnyOp, registers: Registers) -> SSAValue:
        """Whether one of the predicates holds in one of the lanes."""
        b = self.builder
        some = reduce(lambda x, y: b.pure("or_pred", x, y), registers)
        return b.emit("vote_any_pred", (some,)).results[0]

    def any_nonfinite(self, op: mma.AnyNonfiniteOp, registers: Registers) -> SSAValue:
        """x * 0 is NaN where x is not finite, and so is a sum of such terms; then a vote of the warp."""
        b, shape = self.builder, shape_of(op.arg.type)
        zero = b.constant(0.0, f32)
        sums = [zero] * NONFINITE_CHAINS
        for number, element in enumerate(self.elements(shape, registers)):
            chain = number % NONFINITE_CHAINS
            sums[chain] = b.pure("fma_rn_f32", element, zero, sums[chain])
        while len(sums) > 1:
            sums = [b.pure("add_f32", x, y) for x, y in zip(sums[::2], sums[1::2], strict=True)]
        return b.emit("vote_any_pred", (b.pure("setp_neu_f32", sums[0], zero),)).results[0]

    # ---- row by row --------------------------------------------------------------------------------------------------

    def reduce(self, op: mma.ReduceOp, registers: Registers) -> Registers:
        """Inside the lane; to one column also over the four lanes of a row, to one row over the eight lanes of a column."""
        b, shape, result = self.builder, shape_of(op.arg.type), shape_of(op.result.type)
        if op.axis == 1 and result.cols > 1 and result.cols % ATOM_COLUMNS:
            raise EmmyError(
                f"mma.reduce gives 1 column or multiples of {ATOM_COLUMNS}, got {result.cols}", location_of(op)
            )
        combine = FUNCTIONS[REDUCTIONS[op.kind.data.value]]
        found: dict[tuple[int, int], SSAValue] = {}
        coordinates = element_coordinates(shape.rows, shape.cols, shape.place, shape.atom)
        for (row, column), element in zip(coordinates, self.elements(shape, registers), strict=True):
            at = row % result.rows, column % result.cols
            found[at] = combine(b, found[at], element) if at in found else element
        for lanes in LANES_APART[op.axis] if op.axis == 0 or result.cols == 1 else ():
            for at, value in found.items():
                other = b.emit("shfl_bfly_f32", (value,), (lanes,)).results[0]
                found[at] = combine(b, value, other)
        places = element_coordinates(result.rows, result.cols, result.place, result.atom)
        return self.pack(shape.dtype, [found[place] for place in places])


def _dtype(op: mma.MapOp, value: SSAValue) -> str:
    """The element type of an operand; an index is an i32."""
    if isinstance(value.type, mma.FragmentType):
        return shape_of(value.type).dtype
    if value.type in (f32, i1, i32):
        return str(value.type)
    if str(value.type) == "index":
        return "i32"
    raise EmmyError(f"mma.map takes fragments and scalars of f32, index and i1, got {value.type}", location_of(op))
