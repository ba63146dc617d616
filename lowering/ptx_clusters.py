"""Fragments of f32 that the CTAs of a cluster give each other: they lie in shared memory as they do in registers.

The four registers that a lane has of 16 x 8 elements are 16 bytes of its own, those of 32 lanes follow each other: no bank
conflict, and what travels between multiprocessors is whole lines. An element's place depends on where its fragment begins, so
only parts that begin and end at such blocks can be read back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from xdsl.ir import Operation, SSAValue

from emmy.errors import EmmyError
from emmy.locations import location_of
from emmy.lowering.ptx_addresses import SharedField
from emmy.lowering.ptx_builder import Builder, Number
from emmy.lowering.ptx_shapes import Registers, Shape

ROWS, COLUMNS = 16, 8
"""Elements of a block."""

BLOCK_BYTES, LANE_BYTES, BLOCK_REGISTERS = 512, 16, 4


class ClusterFragments:
    """Stores into the slots of other CTAs, and loads from the own one."""

    def __init__(self, builder: Builder, lane: SSAValue):
        self.builder = builder
        self.lane = lane

    def places(
        self, shape: Shape, field: SharedField, slot: Number, at: tuple[Number, Number], op: Operation
    ) -> Iterator[tuple[SSAValue, int]]:
        """Register and immediate of the address of this lane's part of each block of a fragment, in the order of registers."""
        b, across = self.builder, field.shape[-1] // COLUMNS
        if (shape.place, shape.dtype) != ("c", "f32") or shape.rows % ROWS or shape.cols % COLUMNS:
            raise EmmyError(
                "what the CTAs of a cluster exchange is whole blocks of 16 x 8 sums of f32", location_of(op)
            )
        if any(b.multiple(place) % size for place, size in zip(at, (ROWS, COLUMNS), strict=True)):
            raise EmmyError("what the CTAs of a cluster exchange begins at a block of 16 x 8 sums", location_of(op))
        row, column = b.divide(at[0], ROWS), b.divide(at[1], COLUMNS)
        first = b.mul(b.add(b.mul(row, across), column), BLOCK_BYTES)
        inside = b.add(b.add(b.mul(self.lane, LANE_BYTES), first), slot)
        base, known = b.split(b.add(inside, b.pure("shared_base")))
        for i in range(shape.rows // ROWS):
            for j in range(shape.cols // COLUMNS):
                yield b.register(base), field.start + known + (i * across + j) * BLOCK_BYTES

    def load(
        self, shape: Shape, field: SharedField, slot: Number, at: tuple[Number, Number], op: Operation
    ) -> Registers:
        """16 bytes of each lane at once."""
        registers: Registers = []
        for address, immediate in self.places(shape, field, slot, at, op):
            registers.extend(self.builder.emit("ld_shared_v4_f32", (address,), (immediate,)).results)
        return registers

    def scatter(
        self,
        shape: Shape,
        registers: Registers,
        field: SharedField,
        at: tuple[Number, Number],
        part: Number,
        barrier: tuple[SSAValue, int],
        op: Operation,
    ) -> None:
        """Each part of the columns but the own one into the slot of another CTA; `at`: byte offset of the slot, row of the warp.

        barrier: register and immediate of the address of this CTA's full mbarrier: others have theirs at the same place.
        """
        b, (slot, row) = self.builder, at
        columns = field.shape[-1]
        ctas = shape.cols // columns
        block = field.shape[0] // (ctas - 1)
        for rank in range(ctas):
            other = b.predicate(b.compare("ne", part, rank))
            before = b.remainder(b.add(part, ctas - 1 - rank), ctas)
            there = (b.add(b.mul(before, block), row) if ctas > 2 else row, 0)
            own = self.slice(shape, registers, rank * columns, columns)
            mbarrier = b.pure("mapa", barrier[0], rank, here=True)
            piece = replace(shape, cols=columns)
            for number, (address, immediate) in enumerate(self.places(piece, field, slot, there, op)):
                values = own[BLOCK_REGISTERS * number : BLOCK_REGISTERS * (number + 1)]
                operands = (b.pure("mapa", address, rank, here=True), *values, mbarrier, other)
                b.emit("st_async_v4_f32", operands, (immediate, barrier[1]))

    def slice(self, shape: Shape, registers: Registers, first: int, columns: int) -> Registers:
        """The registers of some columns of a fragment."""
        across = shape.cols // COLUMNS
        found: Registers = []
        for row in range(shape.rows // ROWS):
            start = row * across + first // COLUMNS
            found.extend(registers[BLOCK_REGISTERS * start : BLOCK_REGISTERS * (start + columns // COLUMNS)])
        return found

    def part(self, shape: Shape, registers: Registers, part: Number, parts: int) -> Registers:
        """The registers of the columns of a part that is known at run time."""
        b, columns = self.builder, shape.cols // parts
        found = self.slice(shape, registers, 0, columns)
        for number in range(1, parts):
            if b.compare("eq", part, number) is False:
                continue
            chosen = b.predicate(b.compare("eq", part, number))
            one = self.slice(shape, registers, number * columns, columns)
            found = [b.pure("selp_f32", x, y, chosen) for x, y in zip(one, found, strict=True)]
        return found
