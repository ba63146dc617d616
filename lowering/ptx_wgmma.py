"""Products of warpgroups: `mma.issue` as `wgmma.mma_async`, operands read in place as descriptors.

A fragment is one warp's share, 16 rows; the instruction takes the 64 rows of the four warps. So operand a's descriptor begins
at the rows of the warpgroup's first warp. A descriptor is a 64-bit register that is uniform over the warp: what the layout
says, the start of the operand in slot 0 and the slot, in units of 16 bytes, are added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

from xdsl.dialects.builtin import f32, i64
from xdsl.ir import SSAValue

from emmy.atoms import PTX_F8
from emmy.dialects import mma
from emmy.dialects.ptx import ConstantOp, WgmmaForm, WgmmaMmaAsyncOp, WgmmaWaitGroupOp
from emmy.errors import EmmyError
from emmy.layout.descriptor import MatrixDescriptor, OperandDescriptors
from emmy.layout.shared import CHUNK_BYTES, SharedLayout
from emmy.locations import location_of
from emmy.lowering.ptx_addresses import SharedField
from emmy.lowering.ptx_builder import Builder, Number
from emmy.lowering.ptx_shapes import shape_of

Registers = list[SSAValue]

WARP_ROWS = 16
"""Rows of a product that one warp holds."""

WARPGROUP_ROWS = 64
"""Rows of an instruction."""

MOST_COLUMNS = 256
"""The largest n of an instruction."""


@dataclass(frozen=True)
class InPlace:
    """An operand in shared memory: `base` describes the begin of its field, `at` is its place there as (m or n, k).

    transposed: it lies with rows of K (MN-major), else with rows of M or N (K-major).
    """

    base: SSAValue
    layout: SharedLayout
    transposed: bool
    at: tuple[int, int]


@lru_cache(maxsize=1024)
def descriptor_of(layout: SharedLayout, transposed: bool, extent: int, at: tuple[int, int]) -> MatrixDescriptor:
    """The descriptor of `extent` rows of M or N of a tile, kept: each k-step of each kernel asks for it."""
    return OperandDescriptors(layout, transposed, extent).at(*at)


def is_zero(register: SSAValue) -> bool:
    """Whether a register holds a known 0 (of f16 pairs, too): then the old sums are left out, and need no registers."""
    return isinstance(register.owner, ConstantOp) and register.owner.value.value.data == 0


def parts_of(columns: int, unit: int) -> list[tuple[int, int]]:
    """(first, number) of columns of each instruction: as even as whole units allow, the last one takes what is over."""
    if columns <= MOST_COLUMNS:
        return [(0, columns)]
    units, count = -(-columns // unit), -(-columns // MOST_COLUMNS)
    firsts = [units * part // count * unit for part in range(count)]
    return [(first, end - first) for first, end in zip(firsts, [*firsts[1:], columns], strict=True)]


class WarpgroupProducts:
    """Lowers the asynchronous products of a role."""

    def __init__(self, builder: Builder):
        self.builder = builder
        self.operands: Registers = []  # of a, in registers that live until the next wait

    def operand(
        self, op: mma.LoadOp, field: SharedField, slot: Number, at: tuple[Number, Number], warp: Number
    ) -> InPlace:
        """An operand that is read in place; `at` is its element offset in the field as stored, `warp` this warp's number.

        Raises `EmmyError` where no descriptor says where its elements are.
        """
        b, layout, transposed = self.builder, field.layout, op.transposed is not None
        (row, known_row), (column, known_column) = b.split(at[0]), b.split(at[1])
        shape = shape_of(op.result.type)
        first = shape.place == "a"
        if first:
            # The rows of the warpgroup's first warp; transposed they are columns.
            above = b.mul(b.low_bits(warp, 3), WARP_ROWS)
            row, column = (row, b.sub(column, above)) if transposed else (b.sub(row, above), column)
        moving = b.mul(row, layout.row_bytes)
        # The columns of a warpgroup are a multiple of 64 from the first, those of a warp among others say of what themselves.
        steps = WARPGROUP_ROWS if first else b.multiple(column)
        if transposed and column != 0 and steps % layout.panel_columns == 0:
            panel = b.divide(column, layout.panel_columns)
            moving, column = b.add(moving, b.mul(panel, layout.panel_bytes)), 0
        if column != 0:
            raise EmmyError("no descriptor begins at this offset of an operand", location_of(op))
        known = (known_column, known_row) if transposed else (known_row, known_column)
        try:
            descriptor = descriptor_of(layout, transposed, WARPGROUP_ROWS if first else shape.rows, known)
        except EmmyError as error:
            raise EmmyError(error.message, location_of(op)) from None
        # One base for all steps: they differ by constants, which are added last.
        start = b.add(b.add(b.pure("shared_base"), moving), field.start)
        units = b.pure("cvt_u64_u32", b.register(b.divide(start, CHUNK_BYTES)))
        base = b.pure("add_s64", units, b.constant(descriptor.constant, i64))
        return InPlace(self.moved(base, slot), layout, transposed, known)

    def moved(self, descriptor: SSAValue, offset: Number) -> SSAValue:
        """A descriptor that begins `offset` bytes later, a multiple of 16.

        A known offset is added where it is used, by the uniform datapath: sums that wait in front of a loop would take two
        registers of every lane each.
        """
        b = self.builder
        if offset == 0:
            return descriptor
        if isinstance(offset, int):
            return b.pure("add_s64", descriptor, b.constant(offset // CHUNK_BYTES, i64), here=True)
        return b.pure("add_s64", descriptor, b.pure("cvt_u64_u32", b.register(b.divide(offset, CHUNK_BYTES))))

    def described(self, operand: InPlace, extent: int, first: int = 0) -> SSAValue:
        """The descriptor of `extent` rows of M or N, from the `first`."""
        at = operand.at[0] + first, operand.at[1]
        return self.moved(operand.base, descriptor_of(operand.layout, operand.transposed, extent, at).start)

    def issue(self, op: mma.IssueOp, a: InPlace | Registers, b: InPlace, c: Registers) -> Registers:
        """One instruction for each part of the columns that it can take."""
        left = [self.described(a, WARPGROUP_ROWS)] if isinstance(a, InPlace) else a
        if not isinstance(a, InPlace):
            self.operands += a
        sums = Registers()
        # Rows of K are cut where a panel ends: an instruction begins at the start of one.
        unit = b.layout.panel_columns if b.transposed else 8
        for first, width in parts_of(shape_of(op.c.type).cols, unit):
            form = WgmmaForm(
                width,
                shape_of(op.c.type).dtype,
                *(PTX_F8.get(dtype, dtype) for dtype in (shape_of(op.a.type).dtype, shape_of(op.b.type).dtype)),
                a_registers=not isinstance(a, InPlace),
                scale_d="zero" if all(map(is_zero, c)) else "one",
                transpose_a=isinstance(a, InPlace) and a.transposed,
                transpose_b=b.transposed,
            )
            old = [] if form.scale_d == "zero" else c[len(sums) : len(sums) + form.registers]
            made = WgmmaMmaAsyncOp.make(form, left, self.described(b, width, first), old)
            self.builder.add_op(made)
            sums += made.results
        return sums

    def apart(self, sums: Registers) -> Registers:
        """The same numbers, in registers of which each is there once."""
        if len(set(sums)) == len(sums) or all(map(is_zero, sums)) or any(value.type != f32 for value in sums):
            return sums
        b = self.builder
        return [b.emit("mov_b32_f32", (b.pure("mov_f32_b32", value),)).results[0] for value in sums]

    def wait(self, pending: int, sums: Sequence[SSAValue]) -> Registers:
        """The sums, finished; operands in registers are free from here on."""
        made = WgmmaWaitGroupOp.make(pending, sums, [] if pending else list(dict.fromkeys(self.operands)))
        self.builder.add_op(made)
        if not pending:
            self.operands = []
        return list(cast(Sequence[SSAValue], made.results))
