"""Fragments of f32 that the CTAs of a cluster read of each other: they lie in shared memory as they do in registers.

The four registers that a lane has of 16 x 8 elements are 16 bytes of its own, those of 32 lanes follow each other: no bank
conflict, and what travels between multiprocessors is whole lines. An element's place depends on where its fragment begins, so
only parts that begin and end at such blocks can be read back.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import Operation, SSAValue

from emmy.errors import EmmyError
from emmy.locations import location_of
from emmy.lowering.ptx_addresses import SharedField
from emmy.lowering.ptx_builder import Builder, Number
from emmy.lowering.ptx_shapes import Registers, Shape

ROWS, COLUMNS = 16, 8
"""Elements of a block."""

BLOCK_BYTES, LANE_BYTES = 512, 16


def blocks(
    builder: Builder, lane: SSAValue, shape: Shape, field: SharedField, slot: Number, at: tuple[Number, Number], op: Operation
) -> Iterator[tuple[SSAValue, int]]:
    """Register and immediate of the address of this lane's part of each block of a fragment, in the order of its registers."""
    b, across = builder, field.shape[-1] // COLUMNS
    if (shape.place, shape.dtype) != ("c", "f32") or shape.rows % ROWS or shape.cols % COLUMNS:
        raise EmmyError("what the CTAs of a cluster exchange is whole blocks of 16 x 8 sums of f32", location_of(op))
    if any(b.multiple(place) % size for place, size in zip(at, (ROWS, COLUMNS), strict=True)):
        raise EmmyError("what the CTAs of a cluster exchange begins at a block of 16 x 8 sums", location_of(op))
    row, column = b.divide(at[0], ROWS), b.divide(at[1], COLUMNS)
    first = b.mul(b.add(b.mul(row, across), column), BLOCK_BYTES)
    inside = b.add(b.add(b.mul(lane, LANE_BYTES), first), slot)
    base, known = b.split(b.add(inside, b.pure("shared_base")))
    for i in range(shape.rows // ROWS):
        for j in range(shape.cols // COLUMNS):
            yield b.register(base), field.start + known + (i * across + j) * BLOCK_BYTES


def store_blocks(builder: Builder, registers: Registers, places: Iterator[tuple[SSAValue, int]]) -> None:
    """Four registers a block."""
    for number, (address, immediate) in enumerate(places):
        builder.emit("st_shared_v4_f32", (address, *registers[4 * number : 4 * number + 4]), (immediate,))


def load_blocks(builder: Builder, rank: int | None, places: Iterator[tuple[SSAValue, int]]) -> Registers:
    """The same from this CTA, or from that of a rank."""
    registers: Registers = []
    for address, immediate in places:
        there = address if rank is None else builder.pure("mapa", address, rank)
        name = "ld_shared_v4_f32" if rank is None else "ld_shared_cluster_v4_f32"
        registers.extend(builder.emit(name, (there,), (immediate,)).results)
    return registers
