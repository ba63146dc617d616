"""What `lower-tile` decides of a kernel before it writes the halves: pipelines of loads, of results, and between warps."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from xdsl.dialects.builtin import AnyFloat
from xdsl.ir import Operation, SSAValue

from emmy.dialects import tile
from emmy.errors import EmmyError
from emmy.locations import location_of
from emmy.lowering.tile_exchange import Exchange, partial_sums, plan_exchanges, whole_tiles
from emmy.lowering.tile_rings import (
    Ring,
    Slice,
    copy_slice,
    in_block,
    plan_rings,
    stays_at_top,
    tile_type,
    unique_name,
    view_name,
)
from emmy.schedule_meaning import COPIED_IN_LOOPS, Products, problem_with_meaning
from emmy.schedule_table import ELEMENTWISE_SCHEDULE
from emmy.schedules import Schedule


@dataclass(frozen=True, eq=False)
class Outbound:
    """The pipeline of one store: its name, its only field, and the columns of the tile that leave at once."""

    name: str
    field: str
    store: tile.StoreOp
    columns: int

    @property
    def parts(self) -> int:
        """How many slots' worth the tile is."""
        return tile_type(self.store.value).get_shape()[1] // self.columns

    @property
    def slots(self) -> int:
        """Two, where a part can leave while the next one is written."""
        return min(self.parts, 2)

    @property
    def type(self) -> tile.TileType:
        """What a slot holds."""
        whole = tile_type(self.store.value)
        return tile.TileType.get((whole.get_shape()[0], self.columns), whole.element_type)


@dataclass(frozen=True, eq=False)
class Plan:
    """What both halves are written from. `staying` are the ops of the kernel that remain before the halves; `partial` are
    tiles of which warps beside each other hold summands, `whole` those of which each of them holds all columns."""

    kernel: tile.KernelOp
    schedule: Schedule
    rings: list[Ring]
    outbound: dict[tile.StoreOp, Outbound]
    exchanges: dict[Operation, Exchange]
    partial: set[SSAValue]
    whole: set[SSAValue]
    copies: Slice
    staying: set[Operation]

    @cached_property
    def fragment_atom(self) -> str:
        """The atom that says how fragments lie in registers: one for all of the kernel, by what it multiplies."""
        operands = (tile_type(op.a).element_type for op in self.kernel.walk() if isinstance(op, tile.DotOp))
        bits = [element.bitwidth for element in operands if isinstance(element, AnyFloat)]
        return self.schedule.fragment_atom_of(bits[0] if bits else 16)

    def rings_inside(self, op: Operation) -> list[Ring]:
        """Rings that are filled and read inside a loop."""
        return [ring for ring in self.rings if op.is_ancestor(ring.block)]

    def outermost(self, op: Operation) -> Operation:
        """The op of the kernel's block that holds `op`."""
        return in_block(op, self.kernel.block)


def make_plan(kernel: tile.KernelOp, limit: int) -> Plan:
    """Decide the pipelines of a kernel. A kernel with products and no schedule is an EmmyError, and so is a field of a schedule
    that says nothing about its kernel."""
    if kernel.schedule is None and not any(isinstance(op, tile.DotOp) for op in kernel.walk()):
        kernel.schedule = tile.ScheduleAttr.get(ELEMENTWISE_SCHEDULE)
    if kernel.schedule is None:
        raise EmmyError(
            f"kernel @{kernel.sym_name.data} has no schedule: run assign-schedule, or write `schedule <...>` after its views",
            location_of(kernel),
        )
    schedule = kernel.schedule.data
    rings = plan_rings(kernel, schedule.stages, schedule.late_stages or schedule.stages)
    copied = [load for ring in rings if ring.in_loop for load in ring.fields]
    in_loops = [which for which in COPIED_IN_LOOPS if any(evicted_first(load, which) for load in copied)]
    problem = problem_with_meaning(schedule, products_in_a_row(kernel), policy_of(kernel), copied_in_loops=in_loops)
    if problem is not None:
        raise EmmyError(f"illegal schedule of kernel @{kernel.sym_name.data}: {problem}", location_of(kernel))
    loops = sum(r.stages * sum(tile_bytes(t) for t in r.field_types.values()) for r in rings)
    taken = {ring.name for ring in rings}
    outbound: dict[tile.StoreOp, Outbound] = {}
    if schedule.epilogue == "shared":
        for op in kernel.walk():
            if not isinstance(op, tile.StoreOp) or not is_matrix(tile_type(op.value)):
                continue
            columns = tile_type(op.value).get_shape()[1]
            if schedule.store_columns and schedule.warps[1] == 1 and columns % schedule.store_columns == 0:
                columns = schedule.store_columns
            out = Outbound("out", view_name(op.view, "c"), op, columns)
            if out.slots * tile_bytes(out.type) <= max(limit, loops):
                outbound[op] = replace(out, name=unique_name("out", taken))
    staying: set[Operation] = set()
    for op in kernel.block.ops:
        if stays_at_top(op, staying):
            staying.add(op)
    copies = copy_slice(kernel, [load for ring in rings for load in ring.fields])
    columns = schedule.warps[1]
    if columns > 1 and schedule.repeat:
        return Plan(kernel, schedule, rings, outbound, {}, set(), whole_tiles(kernel), copies, staying)
    exchanges, partial = plan_exchanges(kernel, columns, taken), partial_sums(kernel, columns)
    return Plan(kernel, schedule, rings, outbound, exchanges, partial, set(), copies, staying)


def evicted_first(load: tile.LoadOp, evict: str) -> bool:
    """Whether the L2 cache gives up what a loop loads here before all else, by the `evict` of the schedule."""
    users = (use.operation for use in load.result.uses)
    of_b = any(isinstance(op, tile.DotOp) and op.b is load.result for op in users)
    return evict == "both" or (evict == "b" and of_b)


def products_in_a_row(kernel: tile.KernelOp) -> Products:
    """Two, if an operand a of a product is made of another one's result; else one, if the kernel has any."""
    dots = [op for op in kernel.walk() if isinstance(op, tile.DotOp)]
    for dot in dots:
        seen, left = set[Operation](), [dot.a.owner]
        while left:
            op = left.pop()
            if isinstance(op, tile.DotOp):
                return 2
            if isinstance(op, Operation) and op not in seen:
                seen.add(op)
                left += [operand.owner for operand in op.operands]
    return 1 if dots else 0


def policy_of(kernel: tile.KernelOp) -> str:
    """By which a kernel's products accumulate: `hybrid` if any of them does."""
    policies = {
        op.accumulate.policy.data for op in kernel.walk() if isinstance(op, tile.DotOp) and op.accumulate is not None
    }
    return "hybrid" if "hybrid" in policies else next(iter(policies), "f32")


def is_matrix(type_: tile.TileType) -> bool:
    """Two dimensions, neither of them 1."""
    return len(type_.get_shape()) == 2 and 1 not in type_.get_shape()


def tile_bytes(type_: tile.TileType) -> int:
    """Bytes of a tile's elements."""
    assert isinstance(type_.element_type, AnyFloat)
    return math.prod(type_.get_shape()) * type_.element_type.bitwidth // 8


def hint(value: SSAValue, name: str | None) -> SSAValue:
    """Name a value for readers of the text."""
    value.name_hint = name
    return value
