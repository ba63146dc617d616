"""Addresses of level 4: lanes in shared memory, threads in global memory.

A shared address is a register for what differs between lanes and warps, XORed with a constant inside a swizzled row, plus an
immediate. A global address is a 64-bit base for what a thread keeps, plus what moves, plus an immediate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from xdsl.dialects.builtin import AnyFloat, ArrayAttr, IntegerAttr, i64
from xdsl.ir import SSAValue

from emmy.dialects import async_copy, tile
from emmy.dialects.async_copy_rings import ctas_of
from emmy.dialects.common import DYNAMIC
from emmy.errors import EmmyError
from emmy.layout.algebra import Integers
from emmy.layout.shared import CHUNK_BYTES, SWIZZLE_PERIOD_ROWS, SharedLayout, Swizzle, shared_layout
from emmy.locations import location_of
from emmy.lowering.ptx_builder import Builder, Condition, Number

IMMEDIATE_LIMIT = 1 << 31
"""Offsets below this fit the signed 32-bit immediate of an address."""


def element_bytes(type_: tile.TileType | tile.ViewType) -> int:
    """Bytes of an element."""
    return cast(AnyFloat, type_.element_type).bitwidth // 8


# ---- shared memory ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SharedField:
    """A field of a pipeline: where slot 0 holds it (bytes from the start of shared memory), and how it lies there.

    `in_blocks`: as `ptx_clusters` says, and not as `layout` does.
    """

    start: int
    layout: SharedLayout
    shape: tuple[int, ...]
    in_blocks: bool = False


@dataclass(frozen=True)
class Barriers:
    """The mbarriers of a ring, one a stage: bytes from the start of shared memory, arrivals that end a phase."""

    start: int
    count: int


@dataclass(frozen=True, eq=False)
class Ring:
    """A pipeline as addresses."""

    stages: int
    slot_bytes: int
    fields: dict[str, SharedField]
    full: Barriers | None = None
    empty: Barriers | None = None
    ctas: int = 1


def make_ring(op: async_copy.PipelineOp) -> Ring:
    """The ring of a pipeline. Raises `EmmyError` if `allocate-shared` has not been run."""
    if op.base is None or op.slot_bytes is None or op.offsets is None or op.swizzles is None:
        raise EmmyError(
            f"pipeline @{op.sym_name.data} has no place in shared memory; run allocate-shared", location_of(op)
        )
    fields: dict[str, SharedField] = {}
    for name, type_ in op.fields.data.items():
        assert isinstance(type_, tile.TileType)
        shape, span = type_.get_shape(), cast(IntegerAttr, op.swizzles.data[name]).value.data
        rows = int(np.prod(shape[:-1]))
        layout = shared_layout(rows, shape[-1], element_bytes(type_), cast(Swizzle, span or "none"))
        offset = cast(IntegerAttr, op.offsets.data[name]).value.data
        in_blocks = op.cluster is not None and op.internal is not None
        fields[name] = SharedField(op.base.value.data + offset, layout, shape, in_blocks)
    full, empty = (_barriers(op, name) for name in ("full", "empty"))
    return Ring(op.stages.value.data, op.slot_bytes.value.data, fields, full, empty, ctas_of(op))


def _barriers(op: async_copy.PipelineOp, name: str) -> Barriers | None:
    """The full or empty mbarriers of a pipeline, or None."""
    count, start = (cast("IntegerAttr | None", op.properties.get(f"{name}_{what}")) for what in ("count", "base"))
    if count is None:
        return None
    if start is None:
        raise EmmyError(
            f"the {name} mbarriers of @{op.sym_name.data} have no place; run allocate-shared", location_of(op)
        )
    return Barriers(start.value.data, count.value.data)


@dataclass(frozen=True)
class SharedAddress:
    """register + immediate"""

    register: SSAValue
    immediate: int


class SharedAddresses:
    """Makes the addresses of one kernel's shared memory."""

    def __init__(self, builder: Builder):
        self.builder = builder

    def swizzled(self, layout: SharedLayout, row: Number, column: Number) -> Number:
        """Bytes from the start of a tile to its element (row, column); the same as `layout.offset`."""
        b = self.builder
        if isinstance(row, int) and isinstance(column, int):
            return int(layout.offset(row, column))
        width = layout.panel_columns
        panel = b.divide(column, width) if layout.panels > 1 else 0
        inside = b.remainder(column, width) if layout.panels > 1 else column
        offset = b.add(b.mul(row, layout.row_bytes), b.mul(inside, layout.element_bytes))
        chunks = layout.swizzle // CHUNK_BYTES
        if chunks:  # address bits from 7 choose the chunk
            mask = (chunks - 1) << 4
            moved = b.low_bits(b.binary("shr_u32", offset, 3) if isinstance(offset, SSAValue) else offset >> 3, mask)
            offset = b.binary("xor_b32", offset, moved)
        return b.add(offset, b.mul(panel, layout.panel_bytes))

    def lane_base(self, layout: SharedLayout, row: Number, column: Number) -> SSAValue:
        """The shared address of an element of a tile that starts at 0."""
        base = self.builder.pure("shared_base")
        return self.builder.register(self.builder.add(base, self.swizzled(layout, row, column)))

    def address(
        self,
        field: SharedField,
        slot: Number,
        lanes: tuple[Number, Number],
        at: tuple[Number, Number],
        steps: tuple[int, int] = (0, 0),
    ) -> SharedAddress:
        """The address of element (lane + at + step) of a field of the slot that starts `slot` bytes into its ring.

        lanes: (row, column) that differ between lanes; the column shares no bit with the known columns. at: the warp's
        offsets. steps: known offsets on top. What the layout allows becomes an XOR and an immediate; the rest goes into the
        base: rows inside the period of the swizzle, and known columns that could carry into those of the warp.
        """
        b, layout = self.builder, field.layout
        (row, known_row), (column, known_column) = b.split(at[0]), b.split(at[1])
        known_row, known_column = known_row + steps[0], known_column + steps[1]
        loose = known_row % (SWIZZLE_PERIOD_ROWS if layout.swizzle else 1)
        row, known_row = b.add(row, loose), known_row - loose
        free = min(b.multiple(column), layout.panel_columns)
        if known_column % layout.panel_columns >= free or known_column % layout.chunk_columns:
            column, known_column = b.add(column, known_column), 0
        step = layout.xor_step(known_column) if known_column else None
        base = self.lane_base(layout, b.add(lanes[0], row), b.add(lanes[1], column))
        immediate = field.start + known_row * layout.row_bytes + (step.add if step else 0)
        register = b.xor(base, step.xor if step else 0)
        if isinstance(slot, int):
            return SharedAddress(b.register(register), immediate + slot)
        # The slot is added last: it is uniform, and the sum then is an address of a uniform and a lane register.
        return SharedAddress(b.register(b.add(register, slot)), immediate)


def lane_expression(builder: Builder, lane: SSAValue, values: Integers) -> Number:
    """`values[lane]` as arithmetic; the values of the 32 lanes are sums of one power of two (or nothing) for each lane bit.

    Raises `AssertionError` if they are not, which no layout of a matrix load has.
    """
    weights = [int(values[1 << bit]) for bit in range(5)]
    lanes = np.arange(32)
    expected = sum(((lanes >> bit & 1) * weight for bit, weight in enumerate(weights)), np.zeros(32, dtype=np.int64))
    assert np.array_equal(values, expected), "a lane's coordinate is a sum over the bits of the lane"
    total: Number = 0
    bit = 0
    while bit < 5:
        if not weights[bit]:
            bit += 1
            continue
        count = 1
        while bit + count < 5 and weights[bit + count] == weights[bit] << count:
            count += 1
        part = builder.divide(lane, 1 << bit)
        if bit + count < 5:
            part = builder.low_bits(part, (1 << count) - 1)
        total = builder.add(total, builder.mul(part, weights[bit]))
        bit += count
    return total


# ---- global memory ---------------------------------------------------------------------------------------------------


Stride = int | SSAValue
"""Bytes: known, or an i64."""


@dataclass(frozen=True, eq=False)
class View:
    """A kernel argument: its address and, for each dimension, size (elements) and stride (bytes). `outer_checked`: whether a box
    may lie past the end of a dimension before the last two."""

    pointer: SSAValue
    sizes: tuple[Number, ...]
    strides: tuple[Stride, ...]
    element_bytes: int
    outer_checked: bool = False

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.sizes)

    def with_bounds(self, builder: Builder) -> View:
        """The same view for boxes that may pass its end: sizes in registers, from which no bound is left out."""
        sizes = tuple(builder.constant(size) if isinstance(size, int) else size for size in self.sizes)
        return replace(self, sizes=sizes)

    def seen_from(self, builder: Builder, offsets: Sequence[Number]) -> View:
        """The view for a box at element offsets: without columns, if these are past an end that is to be checked."""
        if not self.outer_checked:
            return self
        inside_: Condition = True
        for offset, size in list(zip(offsets, self.sizes, strict=True))[:-2]:
            inside_ = builder.both(inside_, builder.compare("lt", offset, size))
        return replace(self, sizes=(*self.sizes[:-1], builder.select(inside_, self.sizes[-1], 0)))

    def part(self, builder: Builder, offsets: Sequence[Number], sizes: Sequence[Number]) -> View:
        """The view of other sizes that begins at element offsets of this one."""
        pointer = self.pointer
        for offset, stride in zip(offsets, self.strides, strict=True):
            pointer = builder.offset_address(pointer, offset, stride)
        return replace(self, pointer=pointer, sizes=tuple(sizes))


def parameter_kinds(number: int, type_: tile.ViewType) -> list[str]:
    """What the launch passes for view `number`, in the words of `ptx.kernel`: address, `?` sizes, explicit `?` strides."""
    kinds = [f"pointer {number}"]
    kinds += [f"dim {number} {axis}" for axis, size in enumerate(type_.get_shape()) if size == DYNAMIC]
    if not is_contiguous(type_):
        kinds += [f"stride {number} {axis}" for axis, stride in enumerate(type_.get_strides()) if stride == DYNAMIC]
    return kinds


def is_contiguous(type_: tile.ViewType) -> bool:
    """Do the strides follow from the sizes?"""
    return not isinstance(type_.strides, ArrayAttr)


def make_view(builder: Builder, type_: tile.ViewType, parameters: Sequence[SSAValue]) -> View:
    """The view whose parameters are those of `parameter_kinds`."""
    given, size_bytes = iter(parameters), element_bytes(type_)
    pointer = builder.pure("cvta_to_global_u64", next(given))
    sizes = tuple(next(given) if size == DYNAMIC else size for size in type_.get_shape())
    strides: list[Stride] = []
    if is_contiguous(type_):
        strides.append(size_bytes)
        for size in reversed(sizes[1:]):
            strides.insert(0, _times(builder, strides[0], size))
    else:
        for stride in type_.get_strides():
            dynamic = stride == DYNAMIC
            strides.append(_times(builder, size_bytes, next(given)) if dynamic else stride * size_bytes)
    return View(pointer, sizes, tuple(strides), size_bytes)


def _times(builder: Builder, x: Stride, y: Number) -> Stride:
    """x * y in 64 bits."""
    if isinstance(x, int) and isinstance(y, int):
        return x * y
    wide = [builder.constant(v, i64) if isinstance(v, int) else v for v in (x, y)]
    return builder.pure("mul_lo_s64", *(v if v.type == i64 else builder.pure("cvt_u64_u32", v) for v in wide))


@dataclass(frozen=True)
class GlobalAddress:
    """register + immediate"""

    register: SSAValue
    immediate: int


class BoxAddresses:
    """Addresses of one thread's elements in a box of a view: known rows and columns from the first of them.

    Steps of known stride are immediates. Where the row stride is a parameter, each address is the one before plus a step, so
    ask for rows in ascending order.
    """

    def __init__(self, builder: Builder, view: View, indices: Sequence[Number], thread: tuple[Number, Number]):
        """indices: element offsets of the box. thread: (row, column) of this thread's first element in the box."""
        self.builder = builder
        flat = view.rank == 1
        self.row_stride, self.column_stride = 0 if flat else view.strides[-2], view.strides[-1]
        terms = [
            *zip(indices, view.strides, strict=True),
            (thread[0], self.row_stride),
            (thread[1], self.column_stride),
        ]
        self.immediate = 0
        moving: list[tuple[Number, Stride]] = []
        for index, stride in terms:
            base, known = builder.split(index)
            if isinstance(stride, int):
                self.immediate += known * stride
            else:
                moving.append((known, stride))
            moving.append((base, stride))
        moving.sort(key=lambda term: max(builder.depth(term[0]), builder.depth(term[1])))
        address = view.pointer
        for index, stride in moving:
            address = builder.offset_address(address, index, stride)
        self.last_row, self.last = 0, address

    def address(self, row: int, column: int) -> GlobalAddress:
        """The address `row` rows and `column` columns from the thread's first element."""
        builder, immediate = self.builder, self.immediate
        if isinstance(self.row_stride, int):
            immediate += row * self.row_stride
        elif row != self.last_row:
            self.last = builder.offset_address(self.last, row - self.last_row, self.row_stride)
            self.last_row = row
        base = self.last
        if isinstance(self.column_stride, int):
            immediate += column * self.column_stride
        else:
            base = builder.offset_address(base, column, self.column_stride)
        if not -IMMEDIATE_LIMIT <= immediate < IMMEDIATE_LIMIT:
            return GlobalAddress(builder.pure("add_s64", base, builder.constant(immediate, i64)), 0)
        return GlobalAddress(base, immediate)


ANYWHERE = 1 << 30
"""The `box` of `room` for one that may begin anywhere: no size is a multiple of it, so every element is checked."""


@dataclass(frozen=True)
class TileOffset:
    """Where a tile begins in a view: element offsets, and a number that provably divides each (0 for 0)."""

    indices: Sequence[Number]
    divisors: Sequence[int]

    def step(self, axis: int, extent: int) -> int:
        """The extent, where the tile provably begins at a multiple of it; else `ANYWHERE`."""
        return extent if self.divisors[axis] % extent == 0 else ANYWHERE


def room(builder: Builder, size: Number, box: int, *offsets: Number) -> Number | None:
    """How many elements there are from the sum of `offsets` to `size` (negative beyond), or None if the whole box is inside.

    A box's offset is a multiple of its extent, so a known size that is one too leaves no box across the edge.
    """
    if isinstance(size, int) and size % box == 0:
        return None
    left: Number = size
    for offset in sorted(offsets, key=builder.depth):
        left = builder.sub(left, offset)
    return left


def room_of_fragment(
    builder: Builder,
    view: View,
    at: TileOffset,
    extents: Sequence[int],
    tile_: Sequence[int],
    thread: Sequence[Number],
) -> list[Number | None]:
    """`room` in rows and columns of one thread's elements of a fragment.

    extents: of the fragment. tile_: of the CTA's tile that it is a part of, and that begins at a multiple of that. A part may
    lie beyond the view as a whole, so what counts is whether tiles end where the view does, not whether fragments do.
    """
    return [
        room(builder, view.sizes[axis], tile_[axis] if at.step(axis, extents[axis]) != ANYWHERE else ANYWHERE, *offsets)
        for axis in (-2, -1)
        for offsets in ((at.indices[axis], thread[axis]),)
    ]


def inside(builder: Builder, left: Number | None, step: int, here: bool = False) -> Condition:
    """Is the element `step` further on inside, if `left` elements are?"""
    return True if left is None else builder.compare("gt", left, step, here=here)
