"""Pipelines of level 4: slots, copies by threads, mbarriers, barriers of roles. What one lane issues is in `ptx_tma`."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from xdsl.dialects import scf
from xdsl.dialects.builtin import i64
from xdsl.ir import Block, Operation, Region, SSAValue

from emmy.dialects import async_copy
from emmy.dialects.async_copy_rings import ring_name
from emmy.dialects.ptx import TensorMap
from emmy.errors import EmmyError
from emmy.locations import location_of
from emmy.lowering.ptx_addresses import Barriers, Ring, SharedField, TileOffset, View, make_ring
from emmy.lowering.ptx_builder import Builder, Condition, Number
from emmy.lowering.ptx_copies import Copies
from emmy.lowering.ptx_values import LoweredValues
from emmy.targets import Target

MBARRIER_BYTES = 8

FIRST_PARTY_BARRIER = 4
"""The barrier of the first row of warps; the others follow, up to `MOST_PARTIES` of `lower-transport`."""

FIRST_TURN_BARRIER = 14
"""The barrier of a role's first half; the other half has the next one. Those of roles begin at 0."""


@dataclass(frozen=True)
class Role:
    """Some warps of a CTA. first: number of its first warp. active: warps that run its body. barrier: number of its barrier,
    0 if the role is the whole CTA."""

    first: int
    warps: int
    active: int
    barrier: int


class EventLowering(LoweredValues):
    """Lowers the events of one kernel."""

    def __init__(self, builder: Builder, block: Block, target: Target, params: list[str]):
        """block: of the kernel, whose arguments are described by `params`; tensor maps are added to both as they are met."""
        super().__init__(builder)
        self.block, self.target, self.params = block, target, params
        self.rings: dict[str, Ring] = {}
        self.views: dict[SSAValue, View] = {}
        self.view_numbers: dict[SSAValue, int] = {}
        self.maps: dict[TensorMap, SSAValue] = {}
        self.tid: SSAValue
        self.lane: SSAValue
        self.warp_number: SSAValue | None
        self.read_thread()
        self.role: Role
        self.copies: Copies
        self.in_first_warp: Condition = False
        self.elected: SSAValue | None = None
        self.elect_guard: Condition = True
        self.turn_threads = 0
        """Of the roles that take turns."""

    # ---- warps -------------------------------------------------------------------------------------------------------

    def read_thread(self) -> None:
        """Thread and lane, from here on by new registers.

        Each role reads them again: ptxas would spill what lives across a change of the register count.
        """
        b = self.builder
        self.tid = b.emit("tid_x", ()).results[0]
        self.tid.name_hint = "tid"
        self.lane = cast(SSAValue, b.low_bits(self.tid, 31))
        self.lane.name_hint = "lane"
        self.warp_number = None

    def cta_warp(self) -> SSAValue:
        """The warp's number in the CTA, made provably uniform by a shuffle."""
        b = self.builder
        if self.warp_number is None:
            number = b.register(b.divide(self.tid, 32))
            self.warp_number = b.emit("shfl_idx_b32", (number,), (0,), b.scopes[b.floor].block).results[0]
        return self.warp_number

    def role_warp(self) -> Number:
        """The warp's number in its role."""
        return 0 if self.role.active == 1 else self.builder.sub(self.cta_warp(), self.role.first)

    @contextmanager
    def branch_on(self, condition: Condition) -> Generator[None]:
        """Build the body of a uniform branch; none if the condition holds always."""
        if condition is True:
            yield
            return
        b, block = self.builder, Block()
        b.enter(block)
        yield
        b.add_op(scf.YieldOp())
        b.leave()
        b.add_op(scf.IfOp(b.predicate(condition), [], Region(block)))

    @contextmanager
    def one_lane(self, condition: Condition) -> Generator[SSAValue]:
        """One lane of each warp for which a uniform condition holds: gives the predicate of what it issues."""
        with self.branch_on(condition):
            yield self.builder.emit("elect_sync", ()).results[0]

    # ---- slots -------------------------------------------------------------------------------------------------------

    def pipeline(self, op: async_copy.PipelineOp) -> None:
        """Addresses; no instruction."""
        self.rings[op.sym_name.data] = make_ring(op)

    def ring_of(self, value: SSAValue) -> Ring:
        """The ring of a cursor or slot. Raises `EmmyError` if the text has no such pipeline."""
        name = ring_name(value)
        if name not in self.rings:
            op = value.owner if isinstance(value.owner, Operation) else value.owner.parent_op()
            raise EmmyError(f"the kernel has no pipeline @{name}", location_of(op))
        return self.rings[name]

    def begin(self, op: async_copy.BeginFillOp | async_copy.BeginReadOp) -> None:
        """Slot 0, phase 0."""
        ring = self.ring_of(op.cursor)
        self.values[op.cursor] = (0, 0) if has_barriers(ring) else 0

    def slot(self, op: async_copy.SlotOp) -> None:
        """The slot is where the cursor is; the next one is a slot further on, or the first again, in the other phase."""
        b, ring = self.builder, self.ring_of(op.cursor)
        with_barriers = has_barriers(ring)
        place, phase = self.pair(op.cursor) if with_barriers else (self.number(op.cursor), 0)
        step = MBARRIER_BYTES if with_barriers else ring.slot_bytes
        following = b.add(place, step)
        wrapped = b.compare("eq", following, ring.stages * step)
        following = 0 if ring.stages == 1 else b.select(wrapped, 0, following)
        turned = b.select(wrapped, b.xor(phase, 1), phase) if with_barriers else 0
        if op.predicate is not None:
            taken = self.condition(op.predicate)
            following, turned = b.select(taken, following, place), b.select(taken, turned, phase)
        if with_barriers:
            self.values[op.slot] = (b.mul(place, ring.slot_bytes // MBARRIER_BYTES), place)
            self.values[op.next] = (following, turned)
        else:
            self.values[op.slot], self.values[op.next] = place, following

    def skip(self, op: async_copy.SkipOp) -> None:
        """The cursor so many slots further on: past the ring's end as often as the whole rounds among them say, and once more."""
        b, ring, count = self.builder, self.ring_of(op.cursor), self.number(op.count)
        if not has_barriers(ring):
            raise EmmyError(f"@{ring_name(op.cursor)} has no mbarriers, and two roles read it", location_of(op))
        place, phase = self.pair(op.cursor)
        end = ring.stages * MBARRIER_BYTES
        slots = b.remainder(count, ring.stages)
        following = b.add(place, b.mul(slots, MBARRIER_BYTES))
        wrapped = slots != 0 and b.compare("ge", following, end)
        odd = b.compare("eq", b.low_bits(b.divide(count, ring.stages), 1), 1)
        turned = b.select(odd, b.xor(phase, 1), phase)
        self.values[op.next] = (
            b.select(wrapped, b.sub(following, end), following),
            b.select(wrapped, b.xor(turned, 1), turned),
        )

    def fixed_places(self, loop: scf.ForOp) -> list[bool]:
        """Which values that a loop carries are cursors or slots of a known slot, to which the loop comes back each time."""
        block = loop.body.block
        ends = cast(scf.YieldOp, block.last_op).operands
        starts: dict[SSAValue, int | None] = {
            a: self.known_place(v) for a, v in zip(block.args[1:], loop.iter_args, strict=True)
        }
        while True:
            places: dict[SSAValue, int | None] = dict(starts)
            for op in block.ops:
                if isinstance(op, async_copy.SlotOp):
                    place = places[op.slot] = places.get(op.cursor)
                    if place is not None and op.predicate is None:
                        ring = self.ring_of(op.cursor)
                        step = MBARRIER_BYTES if has_barriers(ring) else ring.slot_bytes
                        places[op.next] = (place + step) % (ring.stages * step)
            moved = [
                a for a, end in zip(starts, ends, strict=True) if starts[a] is not None and places.get(end) != starts[a]
            ]
            if not moved:
                return [place is not None for place in starts.values()]
            starts.update(dict.fromkeys(moved))

    def known_place(self, value: SSAValue) -> int | None:
        """The place of a cursor or slot in its ring if it is known, as `places` of `slot` count it."""
        if not isinstance(value.type, async_copy.CursorType | async_copy.SlotType):
            return None
        found = self.values[value]
        if isinstance(found, tuple):
            found = found[0] if isinstance(value.type, async_copy.CursorType) else found[1]
        return found if isinstance(found, int) else None

    def slot_offset(self, slot: SSAValue) -> Number:
        """Bytes from the start of a ring to a slot."""
        found = self.values[slot]
        return found[0] if isinstance(found, tuple) else self.number(slot)

    def place(self, slot: SSAValue, field: str) -> tuple[SharedField, Number]:
        """A field, and the byte offset of a slot in its ring."""
        return self.ring_of(slot).fields[field], self.slot_offset(slot)

    def view_from(self, view: SSAValue, at: TileOffset) -> View:
        """A view, as a box there sees it."""
        return self.views[view].seen_from(self.builder, at.indices)

    # ---- copies by threads -------------------------------------------------------------------------------------------

    def cp_async(self, op: async_copy.CpAsyncOp) -> None:
        """`cp.async` of a box."""
        field, slot = self.place(op.slot, op.field.data)
        self.builder.comment(f"cp.async into @{ring_name(op.slot)}.{op.field.data}")
        at = self.tile_offset(op.indices)
        first = op.evict_first is not None
        self.copies.cp_async(self.view_from(op.view, at), at, field, slot, op.bytes.value.data, first)

    def plain_copy(self, op: async_copy.PlainCopyOp) -> None:
        """Loads and stores of a box, into shared memory."""
        field, slot = self.place(op.slot, op.field.data)
        self.builder.comment(f"load into @{ring_name(op.slot)}.{op.field.data}")
        at = self.tile_offset(op.indices)
        self.copies.plain_copy(self.view_from(op.view, at), at, field, slot, op.bytes.value.data)

    def plain_store(self, op: async_copy.PlainStoreOp) -> None:
        """Loads and stores of a box, out of shared memory."""
        field, slot = self.place(op.slot, op.field.data)
        self.builder.comment(f"store from @{ring_name(op.slot)}.{op.field.data}")
        at = self.tile_offset(op.indices)
        self.copies.plain_store(self.view_from(op.view, at), at, field, slot, op.bytes.value.data)

    def commit_group(self, op: async_copy.CommitGroupOp) -> None:
        """`cp.async.commit_group`"""
        self.builder.emit("cp_async_commit_group", ())

    def wait_group(self, op: async_copy.WaitGroupOp) -> None:
        """`cp.async.wait_group`"""
        self.builder.emit("cp_async_wait_group", (), (op.pending.value.data,))

    # ---- barriers ----------------------------------------------------------------------------------------------------

    def barrier(self, op: async_copy.BarrierOp) -> None:
        """`bar.sync` over the warps of the role, or over those beside each other."""
        if op.across is not None:
            b, warps = self.builder, op.across.value.data
            number = b.add(b.divide(self.role_warp(), warps), FIRST_PARTY_BARRIER)
            b.emit("bar_sync_number", (b.register(number),), (32 * warps,))
        elif self.role.barrier == 0:
            self.builder.emit("bar_sync", (), (0,))
        else:
            self.builder.emit("bar_sync_count", (), (self.role.barrier, 32 * self.role.active))

    def turn(self, op: async_copy.AwaitTurnOp | async_copy.PassTurnOp) -> None:
        """`bar.sync` of this half's barrier, `bar.arrive` of the other's; or of a role's."""
        b, own = self.builder, isinstance(op, async_copy.AwaitTurnOp)
        if op.consumer is not None:
            number, threads = FIRST_TURN_BARRIER + op.consumer.value.data, self.turn_threads
        else:
            second = b.select(b.compare("ge", self.role_warp(), self.role.active // 2), 1, 0)
            number, threads = b.add(b.xor(second, 0 if own else 1), FIRST_TURN_BARRIER), 32 * self.role.active
        given = op.predicate if isinstance(op, async_copy.PassTurnOp) else None
        condition = True if given is None else self.condition(given)
        if condition is not False:
            with self.branch_on(condition):
                b.emit("bar_sync_number" if own else "bar_arrive_number", (b.register(number),), (threads,))

    def warp_sync(self, op: async_copy.WarpSyncOp) -> None:
        """`bar.warp.sync`"""
        self.builder.emit("bar_warp_sync", ())

    def cluster_wait(self, op: async_copy.ClusterWaitOp) -> None:
        """`barrier.cluster.wait`"""
        self.builder.emit("barrier_cluster_wait", ())

    def fence_proxy_async(self, op: async_copy.FenceProxyAsyncOp) -> None:
        """`fence.proxy.async.shared::cta`"""
        self.builder.emit("fence_proxy_async_shared", ())

    def mbarrier(self, op: Operation, value: SSAValue, which: str, place: Number) -> tuple[SSAValue, int]:
        """Register and immediate of the address of a slot's full or empty mbarrier."""
        ring = self.ring_of(value)
        array = cast("Barriers | None", getattr(ring, which))
        if array is None:
            raise EmmyError(f"@{ring_name(value)} has no {which} mbarriers", location_of(op))
        base = self.builder.pure("shared_base")
        if isinstance(place, int):
            return base, array.start + place
        return self.builder.register(self.builder.add(base, place)), array.start

    def wait_full(self, op: async_copy.WaitFullOp) -> None:
        """Wait for the phase that the cursor is in."""
        place, phase = self.pair(op.cursor)
        self.wait(*self.mbarrier(op, op.cursor, "full", place), phase)

    def wait_empty(self, op: async_copy.WaitEmptyOp) -> None:
        """Wait for the phase before the one that the cursor is in."""
        place, phase = self.pair(op.cursor)
        address, offset = self.mbarrier(op, op.cursor, "empty", place)
        parity = self.builder.xor(phase, 1)
        condition = True if op.predicate is None else self.condition(op.predicate)
        if condition is not False:
            with self.branch_on(condition):
                self.wait(address, offset, parity)

    def wait_released(self, op: async_copy.WaitReleasedOp) -> None:
        """Wait at each slot's empty mbarrier, from the cursor on, as if all were to be filled once more."""
        b, ring = self.builder, self.ring_of(op.cursor)
        place, phase = self.pair(op.cursor)
        for _ in range(ring.stages):
            address, offset = self.mbarrier(op, op.cursor, "empty", place)
            self.wait(address, offset, b.xor(phase, 1))
            following = b.add(place, MBARRIER_BYTES)
            wrapped = b.compare("eq", following, ring.stages * MBARRIER_BYTES)
            place, phase = b.select(wrapped, 0, following), b.select(wrapped, b.xor(phase, 1), phase)

    def wait(self, address: SSAValue, offset: int, parity: Number) -> None:
        """Until the phase of this parity has ended."""
        name = "mbarrier_try_wait_parity" if self.target.tma else "mbarrier_test_wait_parity"
        self.builder.emit(name, (address, self.builder.register(parity)), (offset,))

    def arrive(self, op: async_copy.ArriveFullOp | async_copy.ArriveEmptyOp) -> None:
        """One lane of each warp arrives."""
        if isinstance(op, async_copy.ArriveEmptyOp) and self.ring_of(op.slot).ctas > 1:
            self.arrive_at_all(op)
            return
        which = "full" if isinstance(op, async_copy.ArriveFullOp) else "empty"
        address, offset = self.mbarrier(op, op.slot, which, self.pair(op.slot)[1])
        first = self.builder.predicate(self.builder.compare("eq", self.lane, 0))
        self.builder.emit("mbarrier_arrive", (address, first, self.builder.constant(0, i64)), (offset,))

    def arrive_at_all(self, op: async_copy.ArriveEmptyOp) -> None:
        """As many lanes of each warp arrive as the cluster has CTAs, each in one of them."""
        b, ctas = self.builder, self.ring_of(op.slot).ctas
        _, offset = self.mbarrier(op, op.slot, "empty", 0)
        rank = b.low_bits(self.lane, ctas - 1)
        there = b.pure("mapa", b.pure("shared_base"), rank)
        address = b.register(b.add(there, self.pair(op.slot)[1]))
        each = b.predicate(b.compare("lt", self.lane, ctas))
        b.emit("mbarrier_arrive_remote", (address, each), (offset,))

    def arrive_full_noinc(self, op: async_copy.ArriveFullNoincOp) -> None:
        """Each thread arrives when its cp.asyncs have landed."""
        address, offset = self.mbarrier(op, op.slot, "full", self.pair(op.slot)[1])
        self.builder.emit("cp_async_mbarrier_arrive_noinc", (address,), (offset,))


def has_barriers(ring: Ring) -> bool:
    """Do the cursors of a ring need phases?"""
    return ring.full is not None or ring.empty is not None


Convert = Callable[[Any, Any], None]

EVENTS: dict[type[Operation], Convert] = {
    async_copy.PipelineOp: EventLowering.pipeline,
    async_copy.BeginFillOp: EventLowering.begin,
    async_copy.BeginReadOp: EventLowering.begin,
    async_copy.SlotOp: EventLowering.slot,
    async_copy.SkipOp: EventLowering.skip,
    async_copy.CpAsyncOp: EventLowering.cp_async,
    async_copy.PlainCopyOp: EventLowering.plain_copy,
    async_copy.PlainStoreOp: EventLowering.plain_store,
    async_copy.CommitGroupOp: EventLowering.commit_group,
    async_copy.WaitGroupOp: EventLowering.wait_group,
    async_copy.BarrierOp: EventLowering.barrier,
    async_copy.AwaitTurnOp: EventLowering.turn,
    async_copy.PassTurnOp: EventLowering.turn,
    async_copy.WarpSyncOp: EventLowering.warp_sync,
    async_copy.ClusterWaitOp: EventLowering.cluster_wait,
    async_copy.FenceProxyAsyncOp: EventLowering.fence_proxy_async,
    async_copy.WaitFullOp: EventLowering.wait_full,
    async_copy.WaitEmptyOp: EventLowering.wait_empty,
    async_copy.WaitReleasedOp: EventLowering.wait_released,
    async_copy.ArriveFullOp: EventLowering.arrive,
    async_copy.ArriveEmptyOp: EventLowering.arrive,
    async_copy.ArriveFullNoincOp: EventLowering.arrive_full_noinc,
}
"""How each event is lowered."""
