"""Fragments as registers: loads, stores, products, promotions, conversions, parts. Which element is where: `ptx_shapes`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import cast

from xdsl.dialects.builtin import i16, i32
from xdsl.ir import SSAValue

from emmy.atoms import LdmatrixPlan, OperandPlace, any_atom, fragment_layout, get_atom, ldmatrix_plan
from emmy.dialects import mma
from emmy.dialects.ptx import INSTRUCTIONS, ROWS, mma_name
from emmy.dialects.tensor_op import K_MAJOR_ONLY
from emmy.errors import EmmyError
from emmy.locations import location_of
from emmy.lowering.ptx_addresses import (
    ANYWHERE,
    BoxAddresses,
    SharedAddresses,
    SharedField,
    TileOffset,
    View,
    inside,
    lane_expression,
    room,
    room_of_fragment,
)
from emmy.lowering.ptx_builder import Builder, Condition, Number
from emmy.lowering.ptx_clusters import ClusterFragments
from emmy.lowering.ptx_maps import FragmentMaps, lane_position
from emmy.lowering.ptx_shapes import FLOAT_DTYPES, Registers, Shape, element_coordinates, shape_of
from emmy.passes.alignment import VECTOR_COLUMNS, stored_by_vectors
from emmy.targets import Target

MATRIX = 16
"""Rows, and columns of 16 bits, of the block that one ldmatrix.x4 loads."""

PROMOTING = get_atom("m16n8k8", "f16", "f32")
"""The atom that adds f16 partial sums, as its operand a, into f32 sums."""

ONE_F16 = 0x3C00
"""1.0 as f16."""


@lru_cache(maxsize=64)
def matrix_plan(place: OperandPlace, transposed: bool, rows: int, cols: int, atom: str) -> LdmatrixPlan:
    """`ldmatrix_plan`, kept: it costs a millisecond."""
    return ldmatrix_plan(place, transposed, rows, cols, any_atom(atom))


def check_column(op: mma.LoadOp | mma.StoreOp, at: tuple[Number, Number], step: int) -> None:
    """`EmmyError` if a fragment is known to begin at a column at which no access of so many elements can."""
    if isinstance(at[1], int) and at[1] % step:
        message = (
            f"a lane moves {step} elements of a row of '{op.field.data}' at once: column {at[1]} is no multiple of that"
        )
        raise EmmyError(message, location_of(op))


class Fragments(FragmentMaps):
    """Lowers the fragment ops of a kernel."""

    def __init__(self, builder: Builder, shared: SharedAddresses, lane: SSAValue, target: Target):
        """lane: lane number."""
        super().__init__(builder, lane)
        self.shared = shared
        self.target = target

    # ---- shared memory -----------------------------------------------------------------------------------------------

    def load(
        self, op: mma.LoadOp, field: SharedField, slot: Number, at: tuple[Number, Number], transposed: bool
    ) -> Registers:
        """A fragment from a field; `at` is the warp's element offset in the field as stored."""
        shape = shape_of(op.result.type)
        if field.in_blocks:
            return ClusterFragments(self.builder, self.lane).load(shape, field, slot, at, op)
        if shape.per_register > 1 and shape.rows > 1 and shape.cols > 1:
            if transposed and not shape.packed:
                raise EmmyError(K_MAJOR_ONLY, location_of(op))
            check_column(op, at, 4 * shape.per_register)
            return self._load_matrices(shape, field, slot, at, transposed)
        if transposed or shape.place != "c":
            raise EmmyError(f"no instruction loads the fragment {op.result.type} from shared memory", location_of(op))
        check_column(op, at, min(shape.cols, 2))
        return self._load_pairs(shape, field, slot, at)

    def _load_matrices(
        self, shape: Shape, field: SharedField, slot: Number, at: tuple[Number, Number], transposed: bool
    ) -> Registers:
        """16 x 16 blocks of 16 bits (or what is left of them) by ldmatrix, each straight into the registers of its atoms."""
        atom, packed = any_atom(shape.atom), shape.per_register
        operand = atom.operand(shape.place)
        step_rows, step_cols = MATRIX, MATRIX * packed // 2
        lanes_of: dict[LdmatrixPlan, tuple[Number, Number]] = {}
        across, each = shape.cols // operand.cols, operand.elements // packed
        registers: list[SSAValue | None] = [None] * (shape.rows * shape.cols // (32 * packed))
        for row in range(0, shape.rows, step_rows):
            for col in range(0, shape.cols, step_cols):
                rows, cols = min(shape.rows - row, step_rows), min(shape.cols - col, step_cols)
                plan = matrix_plan(shape.place, transposed, rows, cols, shape.atom)
                if plan not in lanes_of:
                    lanes_of[plan] = self.matrix_lanes(plan)
                lanes, name = lanes_of[plan], f"ldmatrix_x{plan.count}{'_trans' if transposed else ''}"
                steps = (col, row) if transposed else (row, col)
                address = self.shared.address(field, slot, lanes, at, steps)
                results = self.builder.emit(name, (address.register,), (address.immediate,)).results
                for (inner, register), result in zip(plan.destinations, results, strict=True):
                    inner_row, inner_col = divmod(inner, cols // operand.cols)
                    number = (row // operand.rows + inner_row) * across + col // operand.cols + inner_col
                    registers[number * each + register] = result
        return cast(Registers, registers)

    def matrix_lanes(self, plan: LdmatrixPlan) -> tuple[Number, Number]:
        """(row, column) of the 16 bytes whose address this lane passes."""
        return (
            lane_expression(self.builder, self.lane, plan.rows),
            lane_expression(self.builder, self.lane, plan.cols),
        )

    def _load_pairs(self, shape: Shape, field: SharedField, slot: Number, at: tuple[Number, Number]) -> Registers:
        """A c fragment by plain loads: two neighbouring columns at once where there are two."""

        b, lanes = self.builder, lane_position(self.builder, self.lane, shape)
        coordinates = element_coordinates(shape.rows, shape.cols, shape.place, shape.atom)
        registers: Registers = []
        if shape.cols == 1:
            name = "ld_shared_f32" if shape.dtype == "f32" else "ld_shared_b16"
            for steps in coordinates:
                address = self.shared.address(field, slot, lanes, at, steps)
                registers.append(b.emit(name, (address.register,), (address.immediate,)).results[0])
            return registers if shape.dtype == "f32" else self._pair_up(registers)
        for steps in coordinates[::2]:
            address = self.shared.address(field, slot, lanes, at, steps)
            name = "ld_shared_v2_f32" if shape.dtype == "f32" else "ld_shared_b32"
            registers.extend(b.emit(name, (address.register,), (address.immediate,)).results)
        return registers

    def _pair_up(self, halves: Registers) -> Registers:
        """16-bit registers as 32-bit ones; a lone last one fills both halves."""
        pairs = zip(halves[::2], halves[1::2] + halves[len(halves) - len(halves) % 2 :], strict=True)
        return [self.builder.pure("pack_b32", even, odd) for even, odd in pairs]

    def store(
        self, op: mma.StoreOp, registers: Registers, field: SharedField, slot: Number, at: tuple[Number, Number]
    ) -> None:
        """A c fragment into a field."""
        b, shape = self.builder, shape_of(op.value.type)
        if shape.place != "c" or 1 in (shape.rows, shape.cols) or shape.dtype not in FLOAT_DTYPES:
            raise EmmyError(f"no instruction stores the fragment {op.value.type} to shared memory", location_of(op))
        by_matrices = shape.packed and self.target.stmatrix and shape.cols % MATRIX == 0
        check_column(op, at, MATRIX // 2 if by_matrices else 2)
        if by_matrices:
            self._store_matrices(shape, registers, field, slot, at)
            return
        lanes, count = lane_position(self.builder, self.lane, shape), 1 if shape.packed else 2
        name = "st_shared_b32" if shape.packed else "st_shared_v2_f32"
        coordinates = element_coordinates(shape.rows, shape.cols, shape.place, shape.atom)
        for number, steps in enumerate(coordinates[::2]):
            address = self.shared.address(field, slot, lanes, at, steps)
            values = registers[number * count : (number + 1) * count]
            b.emit(name, (address.register, *values), (address.immediate,))

    def _store_matrices(
        self, shape: Shape, registers: Registers, field: SharedField, slot: Number, at: tuple[Number, Number]
    ) -> None:
        plan = matrix_plan("c", False, MATRIX, MATRIX, shape.atom)
        lanes = self.matrix_lanes(plan)
        operand = any_atom(shape.atom).c
        across, each = shape.cols // operand.cols, operand.elements // 2
        for row in range(0, shape.rows, MATRIX):
            for col in range(0, shape.cols, MATRIX):
                values: Registers = []
                for inner, register in plan.destinations:
                    inner_row, inner_col = divmod(inner, MATRIX // operand.cols)
                    number = (row // operand.rows + inner_row) * across + col // operand.cols + inner_col
                    values.append(registers[number * each + register])
                address = self.shared.address(field, slot, lanes, at, (row, col))
                self.builder.emit("stmatrix_x4", (address.register, *values), (address.immediate,))

    # ---- global memory -----------------------------------------------------------------------------------------------

    def store_global(
        self, op: mma.StoreGlobalOp, registers: Registers, view: View, at: TileOffset, block: Sequence[int]
    ) -> None:
        """A c fragment straight to a view; block: rows and columns of the CTA's tile (see `room_of_fragment`)."""
        b, shape = self.builder, shape_of(op.value.type)
        if (
            shape.place != "c"
            or shape.dtype not in FLOAT_DTYPES
            or (view.rank < 2 and 1 not in (shape.rows, shape.cols))
        ):
            raise EmmyError(f"no instruction stores the fragment {op.value.type} to global memory", location_of(op))
        if 1 in (shape.rows, shape.cols):
            self._store_vector(shape, registers, view, at, block)
            return
        if stored_by_vectors(op):
            self._store_vectors(shape, registers, view, at, block)
            return
        lanes = lane_position(self.builder, self.lane, shape)
        box = BoxAddresses(b, view, at.indices, lanes)
        rows_left, columns_left = room_of_fragment(b, view, at, (shape.rows, shape.cols), block[:2], lanes)
        pairs = self._stored_in_words(view, at.indices)
        coordinates = element_coordinates(shape.rows, shape.cols, shape.place, shape.atom)
        for number, (row, col) in enumerate(coordinates[::2]):
            values, name = self._stored(shape, registers, number, pairs)
            for part, operands in enumerate(values):
                address = box.address(row, col + part)
                guard = b.both(inside(b, rows_left, row), inside(b, columns_left, col + part))
                guards = [] if guard is True else [b.predicate(guard)]
                b.emit(name, (address.register, *operands, *guards), (address.immediate,))

    def _store_vectors(
        self, shape: Shape, registers: Registers, view: View, at: TileOffset, block: Sequence[int]
    ) -> None:
        """16 bytes a lane: the four lanes of a row, each of which has 4 bytes of four atoms side by side, take an atom each."""
        b, quarter = self.builder, self.builder.low_bits(self.lane, 3)
        lanes = b.divide(self.lane, 4), b.mul(quarter, 8)
        box = BoxAddresses(b, view, at.indices, lanes)
        left = room_of_fragment(b, view, at, (shape.rows, shape.cols), block[:2], lanes)
        odd, upper = (b.predicate(b.compare("ne", b.binary("and_b32", self.lane, bit), 0)) for bit in (1, 2))
        places = element_coordinates(shape.rows, shape.cols, shape.place, shape.atom)[::2]
        held = dict(zip(places, registers, strict=True))
        for row, column in sorted(place for place in held if place[1] % VECTOR_COLUMNS == 0):
            four = [held[row, column + 8 * atom] for atom in range(4)]
            four = self._exchanged(four, ((0, 1), (2, 3)), 1, odd)
            four = self._exchanged(four, ((0, 2), (1, 3)), 2, upper)
            address = box.address(row, column)
            guard = b.both(inside(b, left[0], row), inside(b, left[1], column))
            guards = [] if guard is True else [b.predicate(guard)]
            b.emit("st_global_v4_b32", (address.register, *four, *guards), (address.immediate,))

    def _exchanged(
        self, values: Registers, pairs: Sequence[tuple[int, int]], lanes: int, second: SSAValue
    ) -> Registers:
        """Of each pair of registers, the other lane (so many further) gets the first one of this, if this is the `second`, and
        gives its own second one for it: one half of a transposition between lanes and registers."""
        b, found = self.builder, list(values)
        for one, other in pairs:
            given = b.emit("selp_b32", (values[one], values[other], second)).results[0]
            taken = b.emit("shfl_bfly_b32", (given,), (lanes,)).results[0]
            found[one] = b.emit("selp_b32", (taken, values[one], second)).results[0]
            found[other] = b.emit("selp_b32", (values[other], taken, second)).results[0]
        return found

    def _store_vector(
        self, shape: Shape, registers: Registers, view: View, at: TileOffset, block: Sequence[int]
    ) -> None:
        """A fragment of one row or column along a view's last dimension, each element by the first lane that holds it."""
        b, axis = self.builder, 0 if shape.cols == 1 else 1
        extents, position = (shape.rows, shape.cols), lane_position(self.builder, self.lane, shape)
        others = b.low_bits(self.lane, 3) if axis == 0 else b.divide(self.lane, 4)
        first: Condition = b.compare("eq", others, 0) if max(extents) > 1 else b.compare("eq", self.lane, 0)
        box = BoxAddresses(b, view, at.indices, (0, position[axis]))
        tile = block[axis] if at.step(-1, extents[axis]) != ANYWHERE else ANYWHERE
        left = room(b, view.sizes[-1], tile, at.indices[-1], position[axis])
        places = element_coordinates(shape.rows, shape.cols, shape.place, shape.atom)
        name = "st_global_f32" if shape.dtype == "f32" else "st_global_b16"
        for place, value in zip(places, self.singles(shape, registers), strict=True):
            address = box.address(0, place[axis])
            guard = b.both(inside(b, left, place[axis]), first)
            b.emit(name, (address.register, value, b.predicate(guard)), (address.immediate,))

    def singles(self, shape: Shape, registers: Registers) -> Registers:
        """Each element in a register of its own size."""
        if not shape.packed:
            return registers
        halves: Registers = []
        for register in registers:
            halves.extend(self.builder.emit("unpack_b32", (register,)).results)
        return halves[: len(element_coordinates(shape.rows, shape.cols, shape.place, shape.atom))]

    def load_global(
        self, op: mma.LoadGlobalOp, view: View, at: TileOffset, transposed: bool, block: Sequence[int]
    ) -> Registers:
        """A packed fragment straight from a view, two or four elements a register; zeros beyond the bounds.

        block: rows, columns and depth of the CTA's tile (see `room_of_fragment`).
        """
        b, shape = self.builder, shape_of(op.result.type)
        each = shape.per_register
        if each == 1 or 1 in (shape.rows, shape.cols) or view.rank < 2:
            raise EmmyError(f"no instruction loads the fragment {op.result.type} from global memory", location_of(op))
        row, column = lane_position(self.builder, self.lane, shape)  # of the first element, in all places
        tile, extents = (block[0] if shape.place == "a" else block[1], block[2]), (shape.rows, shape.cols)
        lanes = (column, row) if transposed else (row, column)
        if transposed:
            tile, extents = tile[::-1], extents[::-1]
        box = BoxAddresses(b, view, at.indices, lanes)
        left = room_of_fragment(b, view, at, extents, tile, lanes)
        whole = not transposed and self._stored_in_words(view, at.indices)
        coordinates = element_coordinates(shape.rows, shape.cols, shape.place, shape.atom)
        places = [(place[::-1] if transposed else place) for place in coordinates]
        loaded: dict[int, SSAValue] = {}
        for number in sorted(range(0, len(places), each if whole else 1), key=places.__getitem__):
            at_row, at_column = places[number]
            address = box.address(at_row, at_column)
            guard = b.both(inside(b, left[0], at_row), inside(b, left[1], at_column))
            zero = b.constant(0, i32 if whole else i16)
            operands = [address.register] if guard is True else [address.register, b.predicate(guard), zero]
            name = "ld_global_b32" if whole else f"ld_global_b{32 // each}"
            loaded[number] = b.emit(name, operands, (address.immediate,)).results[0]
        if whole:
            return [loaded[number] for number in range(0, len(places), each)]
        apart = [loaded[number] for number in range(len(places))]
        return self._pair_up(apart) if each == 2 else self._join_bytes(apart)

    def _join_bytes(self, apart: Registers) -> Registers:
        """Bytes, in 16-bit registers each, as 32-bit registers of four."""
        b = self.builder
        even, odd = (self._pair_up(apart[first::2]) for first in (0, 1))
        return [b.pure("or_b32", x, b.pure("shl_b32", y, b.constant(8, i32))) for x, y in zip(even, odd, strict=True)]

    def _stored_in_words(self, view: View, indices: Sequence[Number]) -> bool:
        """Whether neighbouring columns of a view, four of 8 bits or two of others, lie together at a multiple of their bytes, and
        are inside all or none."""
        strides, size = view.strides, view.element_bytes
        count = 4 if size == 1 else 2
        words = strides[-1] == size and self.builder.multiple(indices[-1]) % count == 0
        words = words and all(isinstance(s, int) and s % (count * size) == 0 for s in strides[:-1])
        return words and isinstance(view.sizes[-1], int) and view.sizes[-1] % count == 0

    def _stored(
        self, shape: Shape, registers: Registers, number: int, pairs: bool
    ) -> tuple[list[Sequence[SSAValue]], str]:
        """What to store of pair `number` of neighbouring elements: operands of one store or two, and the store."""
        if shape.dtype == "f32":
            two = registers[2 * number : 2 * number + 2]
            return ([two], "st_global_v2_f32") if pairs else ([[value] for value in two], "st_global_f32")
        if pairs:
            return [[registers[number]]], "st_global_b32"
        halves = self.builder.emit("unpack_b32", (registers[number],)).results
        return [[half] for half in halves], "st_global_b16"

    # ---- arithmetic --------------------------------------------------------------------------------------------------

    def multiply(
        self, op: mma.MmaOp, a: Registers, b: Registers, c: Registers, columns_first: bool = False
    ) -> Registers:
        """One mma for each atom: K outermost, then rows, columns back and forth, so that operands are used again at once; or,
        so that operand b can arrive little by little, columns, rows back and forth."""
        if op.accumulate is not None and op.accumulate.policy.data != shape_of(op.c.type).dtype:
            policy = op.accumulate.policy.data
            raise EmmyError(f"accumulate<{policy}> needs split-accumulation before lower-to-ptx", location_of(op))
        shape_a, shape_c = shape_of(op.a.type), shape_of(op.c.type)
        try:
            atom = get_atom(shape_a.atom, shape_a.dtype, shape_c.dtype, b_dtype=shape_of(op.b.type).dtype)
        except EmmyError as error:
            raise EmmyError(error.message, location_of(op)) from None
        row, emit = ROWS[mma_name(atom)], INSTRUCTIONS[mma_name(atom)].create
        types, block, location = row.result_types, self.builder.scopes[-1].block, self.builder.location
        na, nb, nc = atom.a.registers, atom.b.registers, atom.c.registers
        depth, across, sums = shape_a.cols // atom.k, shape_c.cols // atom.n, list(c)
        for k in range(depth):
            for i, j in walk(shape_c.rows // atom.m, across, columns_first):
                at_a, at_b, at_c = (i * depth + k) * na, (j * depth + k) * nb, (i * across + j) * nc
                operands = (*a[at_a : at_a + na], *b[at_b : at_b + nb], *sums[at_c : at_c + nc])
                made = emit(operands=operands, result_types=types, location=location)
                block.add_op(made)
                sums[at_c : at_c + nc] = made.results
        return sums

    def promote(self, op: mma.PromoteOp, partial: Registers, sums: Registers, by: str) -> Registers:
        """Partial sums into f32 ones: f32 ones are added; f16 ones by `convert` and add, or by a product with an `identity`."""
        source, result = shape_of(op.partial.type), shape_of(op.acc.type)
        if (result.dtype, source.place, result.place) != ("f32", "c", "c") or source.dtype not in ("f16", "f32"):
            raise EmmyError(f"no promotion of {op.partial.type} into {op.acc.type}", location_of(op))
        if source.dtype == "f32":
            return [
                self.builder.emit("add_f32", (total, part)).results[0]
                for total, part in zip(sums, partial, strict=True)
            ]
        return self._promote_by_identity(partial, sums) if by == "identity" else self._promote_by_add(partial, sums)

    def _promote_by_identity(self, partial: Registers, sums: Registers) -> Registers:
        """16x8 partial sums are an operand a as they lie in registers: sums + partial * I, one mma an atom.

        An infinity among them times the zeros of I gives NaN to its row of the atom.
        """
        b, name = self.builder, mma_name(PROMOTING)
        # Column n of I is held by the lanes 4n .. 4n + 3, rows 2t and 2t + 1 by lane 4n + t, in halves of a register.
        row, column = b.mul(b.low_bits(self.lane, 3), 2), b.divide(self.lane, 4)
        low = b.select(b.compare("eq", column, row), ONE_F16, 0)
        identity = b.register(b.select(b.compare("eq", column, b.add(row, 1)), ONE_F16 << 16, low))
        found: Registers = []
        for i in range(len(partial) // 2):
            operands = (*partial[2 * i : 2 * i + 2], identity, *sums[4 * i : 4 * i + 4])
            found.extend(b.emit(name, operands).results)
        return found

    def _promote_by_add(self, partial: Registers, sums: Registers) -> Registers:
        """Each partial sum is widened and added, by one instruction where the target has it."""
        b, found = self.builder, Registers()
        for register, pair in zip(partial, zip(sums[::2], sums[1::2], strict=True), strict=True):
            halves = b.emit("unpack_b32", (register,)).results
            for half, total in zip(halves, pair, strict=True):
                if self.target.mixed_add:
                    found.append(b.emit("add_f32_f16", (half, total)).results[0])
                else:
                    wide = b.emit("cvt_f32_f16", (half,)).results[0]
                    found.append(b.emit("add_f32", (total, wide)).results[0])
        return found

    def convert(self, op: mma.ConvertOp, registers: Registers) -> Registers:
        """Another element type, or another place whose layout is the same."""
        source, result = shape_of(op.arg.type), shape_of(op.result.type)
        if {source.dtype, result.dtype} - set(FLOAT_DTYPES):
            raise EmmyError(f"no conversion from {source.dtype} to {result.dtype}", location_of(op))
        if (source.place, source.atom) != (result.place, result.atom):
            layouts = [fragment_layout(any_atom(s.atom), s.place, s.rows, s.cols) for s in (source, result)]
            if layouts[0] != layouts[1]:
                raise EmmyError(
                    f"a conversion from {op.arg.type} to {op.result.type} would exchange elements between lanes",
                    location_of(op),
                )
        if source.dtype == result.dtype:
            return registers
        return self.pack(result.dtype, self.elements(source, registers))

    # ---- parts -------------------------------------------------------------------------------------------------------

    def slice(self, op: mma.SliceOp, registers: Registers) -> Registers:
        """The registers of the atoms of a part."""
        source, result = shape_of(op.arg.type), shape_of(op.result.type)
        at = cast(tuple[int, int], op.at.get_values())
        operand = any_atom(source.atom).operand(source.place)
        sizes = (at[0], result.rows), (at[1], result.cols)
        if any(n % operand.rows for n in sizes[0]) or any(n % operand.cols for n in sizes[1]):
            raise EmmyError(f"a slice of {op.arg.type} is cut at whole atoms", location_of(op))
        across = source.cols // operand.cols
        each = len(registers) // (source.rows // operand.rows * across)
        found: Registers = []
        for row in range(at[0] // operand.rows, (at[0] + result.rows) // operand.rows):
            first, last = at[1] // operand.cols, (at[1] + result.cols) // operand.cols
            found.extend(registers[(row * across + first) * each : (row * across + last) * each])
        return found

    def join(self, op: mma.JoinOp, args: Sequence[Registers]) -> Registers:
        """The registers of the parts, row of atoms by row of atoms."""
        if op.axis.value.data == 0:
            return [register for arg in args for register in arg]
        operand = any_atom(shape_of(op.result.type).atom).operand(shape_of(op.result.type).place)
        rows = shape_of(op.result.type).rows // operand.rows
        found: Registers = []
        for row in range(rows):
            for arg in args:
                each = len(arg) // rows
                found.extend(arg[row * each : (row + 1) * each])
        return found


def walk(rows: int, columns: int, columns_first: bool) -> Iterator[tuple[int, int]]:
    """Row and column of each atom of a product, the inner ones back and forth."""
    outer, inner = (columns, rows) if columns_first else (rows, columns)
    for x in range(outer):
        for y in range(inner) if x % 2 == 0 else reversed(range(inner)):
            yield (y, x) if columns_first else (x, y)
