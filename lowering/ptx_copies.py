"""Copies between global and shared memory, shared out over the threads of a role.

Threads take neighbouring chunks of a row, then the next rows, then the next panel; so global accesses are whole sectors, and
with the swizzle shared ones have no bank conflicts. Each thread has one first chunk; all others are known steps from it.

    128 x 64 f16, 256 threads, 16 bytes:   thread t: row t / 8, chunk t % 8     passes: rows + 0, + 32, + 64, + 96
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from xdsl.dialects import scf
from xdsl.dialects.builtin import i32
from xdsl.ir import Block, SSAValue

from emmy.dialects.ptx import CACHE_HINT
from emmy.layout.shared import SWIZZLE_PERIOD_ROWS, SharedLayout
from emmy.lowering.ptx_addresses import (
    BoxAddresses,
    SharedAddress,
    SharedAddresses,
    SharedField,
    TileOffset,
    View,
    inside,
    room,
)
from emmy.lowering.ptx_builder import Builder, Condition, Number

LOADS: dict[int, str] = {1: "b8", 2: "b16", 4: "b32", 8: "v2_b32", 16: "v4_b32"}
"""Width of an access in bytes -> suffix of its op."""

EVICT_FIRST = "createpolicy_evict_first"
"""What makes the cache policy of such copies: once, before the loops of the role that copies."""

BATCH = 8
"""Plain loads in flight before the first of their stores: enough to overlap latencies, 32 registers at most."""

UNROLLED = 2 * BATCH
"""Plain copies of more passes than this are loops."""

HOISTED = 4
"""The row checks of up to so many copies are kept in registers or predicates; more are made where they are used."""


@dataclass(frozen=True)
class Pass:
    """One copy of each thread: known steps from its first chunk. `partial`: threads below this row take part; `narrow`: those
    before this column."""

    row: int
    column: int
    partial: int | None
    narrow: int | None = None


@dataclass(frozen=True, eq=False)
class ThreadMap:
    """How a tile is cut into chunks for threads. `active`: threads that take part at all; `row`, `column`: first element."""

    row: Number
    column: Number
    active: Condition
    passes: tuple[Pass, ...]


def map_threads(builder: Builder, layout: SharedLayout, chunk_bytes: int, threads: int, tid: SSAValue) -> ThreadMap:
    """Share a tile out over `threads` threads, `chunk_bytes` at a time."""
    chunk = chunk_bytes // layout.element_bytes
    across = min(layout.panel_columns // chunk, 1 << (threads.bit_length() - 1))
    rows = min(threads // across, layout.rows)
    if SWIZZLE_PERIOD_ROWS < rows < layout.rows:
        rows -= rows % SWIZZLE_PERIOD_ROWS  # so that each pass sees the same swizzle
    row, column = builder.divide(tid, across), builder.mul(builder.remainder(tid, across), chunk)
    active: Condition = rows * across == threads or builder.compare("lt", tid, rows * across)
    if layout.padded_cols != layout.cols <= across * chunk:
        active = builder.both(active, builder.compare("lt", column, layout.cols))
    return ThreadMap(row, column, active, tuple(_passes(layout, rows, across * chunk)))


def _passes(layout: SharedLayout, rows: int, columns: int) -> Iterator[Pass]:
    for row in range(0, layout.rows, rows):
        for column in range(0, layout.padded_cols, columns):
            if column < layout.cols:
                narrow = layout.cols - column if 0 < column and column + columns > layout.cols else None
                yield Pass(row, column, layout.rows - row if row + rows > layout.rows else None, narrow)


class Copies:
    """Lowers the copies of a kernel."""

    def __init__(self, builder: Builder, shared: SharedAddresses, threads: int, tid: SSAValue):
        self.builder = builder
        self.shared = shared
        self.threads = threads
        self.tid = tid
        self.guard: Condition = True

    def cp_async(
        self,
        view: View,
        at: TileOffset,
        field: SharedField,
        slot: Number,
        chunk_bytes: int,
        evict_first: bool = False,
    ) -> None:
        """Global to shared with `cp.async`; bytes beyond the view's bounds become zeros without being read. `evict_first`: of
        lines that the L2 cache gives up before others."""
        box = Box(self, view, at, field, slot, chunk_bytes)
        name = f"cp_async_{'cg' if chunk_bytes == 16 else 'ca'}_{chunk_bytes}"
        for step in box.map.passes:
            to, from_ = box.shared_address(step), box.addresses.address(step.row, step.column)
            size = self.builder.select(box.in_bounds(step), chunk_bytes, 0, box.here)
            operands = [self.apart(to.register) if evict_first else to.register, from_.register]
            if size != chunk_bytes:
                operands.append(self.builder.register(size))
            if evict_first:
                operands.append(self.builder.pure(EVICT_FIRST))
            guard = self.builder.both(self.guard, box.taking_part(step))
            if guard is not True:
                operands.append(self.builder.predicate(guard))
            suffix = ("" if size == chunk_bytes else "_zfill") + CACHE_HINT * evict_first
            self.builder.emit(name + suffix, operands, (to.immediate, from_.immediate))

    def apart(self, address: SSAValue) -> SSAValue:
        """The same address, which ptxas cannot take for a sum with a register that all lanes share.

        Of 12.9 and 13.0 for sm_90: in such a sum of a `cp.async` with a cache policy it forgets the policy's register, and the
        instruction is illegal. No lane has bit 31 among those below it, which ptxas does not know.
        """
        b = self.builder
        zero = b.pure("shr_u32", b.pure("lanemask_lt"), 31)
        return b.pure("xor_b32", address, zero)

    def plain_copy(self, view: View, at: TileOffset, field: SharedField, slot: Number, chunk_bytes: int) -> None:
        """Global to shared through registers; elements beyond the view's bounds become zeros."""

        def copy(first_row: Number, passes: Sequence[Pass]) -> None:
            box = Box(self, view, at, field, slot, chunk_bytes, first_row)
            for batch in _batches(passes):
                loaded = [self._load(box, step) for step in batch]
                for step, values in zip(batch, loaded, strict=True):
                    to, guard = box.shared_address(step), box.taking_part(step)
                    guards = [] if guard is True else [self.builder.predicate(guard)]
                    operands = [to.register, *values, *guards]
                    self.builder.emit(f"st_shared_{LOADS[chunk_bytes]}", operands, (to.immediate,))

        self._over_rows(field.layout, chunk_bytes, copy)

    def _load(self, box: Box, step: Pass) -> Sequence[SSAValue]:
        from_ = box.addresses.address(step.row, step.column)
        condition = self.builder.both(box.taking_part(step), box.in_bounds(step))
        name = f"ld_global_{LOADS[box.chunk_bytes]}"
        return self._guarded_load(name, from_.register, from_.immediate, condition)

    def _guarded_load(self, name: str, address: SSAValue, immediate: int, condition: Condition) -> Sequence[SSAValue]:
        """A load where a condition holds, zeros elsewhere."""
        operands = [address]
        if condition is not True:
            operands.append(self.builder.predicate(condition))
            operands += [self.builder.constant(0, type_) for type_ in self.builder.result_types(name)]
        return self.builder.emit(name, operands, (immediate,)).results

    def plain_store(self, view: View, at: TileOffset, field: SharedField, slot: Number, chunk_bytes: int) -> None:
        """Shared to global through registers; elements beyond the view's bounds are not stored."""

        def copy(first_row: Number, passes: Sequence[Pass]) -> None:
            box = Box(self, view, at, field, slot, chunk_bytes, first_row)
            for batch in _batches(passes):
                loaded: list[Sequence[SSAValue]] = []
                for step in batch:
                    from_ = box.shared_address(step)
                    name = f"ld_shared_{LOADS[chunk_bytes]}"
                    loaded.append(self._guarded_load(name, from_.register, from_.immediate, box.taking_part(step)))
                for step, values in zip(batch, loaded, strict=True):
                    to = box.addresses.address(step.row, step.column)
                    condition = self.builder.both(box.taking_part(step), box.in_bounds(step))
                    guards = [] if condition is True else [self.builder.predicate(condition)]
                    operands = [to.register, *values, *guards]
                    self.builder.emit(f"st_global_{LOADS[chunk_bytes]}", operands, (to.immediate,))

        self._over_rows(field.layout, chunk_bytes, copy)

    def _over_rows(
        self, layout: SharedLayout, chunk_bytes: int, copy: Callable[[Number, Sequence[Pass]], None]
    ) -> None:
        """Copy all passes in line if they are few, else in a loop over groups of rows, which saves registers and text."""
        b, passes = self.builder, map_threads(self.builder, layout, chunk_bytes, self.threads, self.tid).passes
        rows = sorted({step.row for step in passes})
        each = max(-(-BATCH * len(rows) // len(passes)), 1)
        group = next((rows[n] for n in range(each, len(rows)) if rows[n] % SWIZZLE_PERIOD_ROWS == 0), layout.rows)
        if len(passes) <= UNROLLED or layout.rows % group or any(step.partial is not None for step in passes):
            copy(0, passes)
            return
        body = Block(arg_types=[i32])
        b.enter(body)
        b.multiples[body.args[0]] = group & -group
        copy(body.args[0], [step for step in passes if step.row < group])
        b.add_op(scf.YieldOp())
        b.leave()
        b.add_op(scf.ForOp(b.constant(0), b.constant(layout.rows), b.constant(group), (), body))


def _batches(passes: Sequence[Pass]) -> Iterator[Sequence[Pass]]:
    for start in range(0, len(passes), BATCH):
        yield passes[start : start + BATCH]


class Box:
    """One copy of a box: this thread's addresses and conditions for every pass."""

    def __init__(
        self,
        copies: Copies,
        view: View,
        at: TileOffset,
        field: SharedField,
        slot: Number,
        chunk_bytes: int,
        first_row: Number = 0,
    ):
        """first_row: of the tile, a multiple of the swizzle's period; passes count from there."""
        builder = copies.builder
        self.first_row = first_row
        self.builder, self.shared = builder, copies.shared
        self.field, self.slot, self.chunk_bytes = field, slot, chunk_bytes
        self.map = map_threads(builder, field.layout, chunk_bytes, copies.threads, copies.tid)
        thread = (builder.add(self.map.row, first_row), self.map.column)
        self.addresses = BoxAddresses(builder, view, at.indices, thread)
        rows, columns = field.layout.rows, field.layout.cols
        flat = view.rank == 1
        self.rows_left = None if flat else room(builder, view.sizes[-2], at.step(-2, rows), at.indices[-2], *thread[:1])
        self.columns_left = room(builder, view.sizes[-1], at.step(-1, columns), at.indices[-1], self.map.column)
        self.here = len(self.map.passes) > HOISTED

    def shared_address(self, step: Pass) -> SharedAddress:
        """Where a pass of this thread is in the slot."""
        lanes = (self.map.row, self.map.column)
        return self.shared.address(self.field, self.slot, lanes, (self.first_row, 0), (step.row, step.column))

    def taking_part(self, step: Pass) -> Condition:
        """Does this thread have a chunk of the tile in this pass?"""
        active = self.map.active
        if step.partial is not None:
            active = self.builder.both(active, self.builder.compare("lt", self.map.row, step.partial))
        if step.narrow is not None:
            active = self.builder.both(active, self.builder.compare("lt", self.map.column, step.narrow))
        return active

    def in_bounds(self, step: Pass) -> Condition:
        """Is the chunk inside the view? Its width divides the view's, so it is as a whole or not at all."""
        builder = self.builder
        rows = inside(builder, self.rows_left, step.row, self.here)
        return builder.both(rows, inside(builder, self.columns_left, step.column, self.here))
