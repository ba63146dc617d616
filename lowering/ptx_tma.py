"""What one lane of a warp issues at level 4: mbarriers are initialised, TMA, expect_tx, bulk groups.

It stands behind a uniform branch on the warp's number and is predicated by `elect.sync`; its coordinates are computed before
the branch, by all warps. Only so does ptxas keep them in uniform registers and print one instruction for each; under a predicate
of thread 0 it prints loops that vote.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from xdsl.dialects.builtin import i16, i64
from xdsl.ir import Block, Operation, SSAValue

from emmy.dialects import async_copy, tile
from emmy.dialects.async_copy_rings import ring_name
from emmy.dialects.ptx import TensorMap, multicast_load_name, tma_load_name, tma_store_name
from emmy.errors import EmmyError
from emmy.layout.boxes import Boxes, plan_boxes
from emmy.locations import location_of
from emmy.lowering.ptx_addresses import Ring
from emmy.lowering.ptx_copies import EVICT_FIRST
from emmy.lowering.ptx_events import MBARRIER_BYTES, Convert, EventLowering
from emmy.passes.clusters import cluster_of

CTA_SHARED_SINCE = 8.6
"""The PTX version from which TMA loads are spelled with `.shared::cta`."""


class TmaLowering(EventLowering):
    """Lowers what one lane issues."""

    def begin_barriers(self, kernel: tile.KernelOp) -> None:
        """Initialise all mbarriers by one thread, and let all threads and the async proxy see them, and other CTAs of a cluster
        know of it; fetch tensor maps."""
        arrays = [array for ring in self.rings.values() for array in _arrays(ring)]
        if not arrays:
            return
        b = self.builder
        base = b.pure("shared_base")
        tma = self.target.tma
        b.comment("mbarriers")
        with self.branch_on(b.compare("eq", self.cta_warp(), 0)):
            one = b.emit("elect_sync", ()).results[0] if tma else cast(SSAValue, b.compare("eq", self.lane, 0))
            for start, count, stages in arrays:
                for stage in range(stages):
                    b.emit("mbarrier_init", (base, one), (start + MBARRIER_BYTES * stage, count))
            if tma:
                b.emit("fence_mbarrier_init", ())
                for tensor_map in self.all_maps(kernel):
                    b.emit("prefetch_tensormap", (tensor_map, one))
        b.emit("bar_sync", (), (0,))
        if cluster_of(kernel) > 1:
            b.emit("barrier_cluster_arrive_relaxed", ())  # that the mbarriers are there is all that others must know

    def elect(self, op: async_copy.ElectOp) -> None:
        """One lane of the role's first warp."""
        b = self.builder
        _check_bytes(op, self)
        with self.one_lane(b.both(self.elect_guard, self.in_first_warp)) as self.elected:
            self.convert_block(op.body.block)
        self.elected = None

    def convert_block(self, block: Block) -> None:
        """All ops of a block but its yield."""
        raise NotImplementedError

    def emit_elected(self, name: str, operands: Sequence[SSAValue], immediates: Sequence[int] = ()) -> None:
        """An instruction of the elected lane."""
        assert self.elected is not None
        self.builder.emit(name, (*operands, self.elected), immediates)

    def expect_tx(self, op: async_copy.ExpectTxOp) -> None:
        """`mbarrier.arrive.expect_tx`"""
        address, offset = self.mbarrier(op, op.slot, "full", self.pair(op.slot)[1])
        self.emit_elected("mbarrier_arrive_expect_tx", (address,), (offset, op.bytes.value.data))

    def boxes(self, op: async_copy.TmaLoadOp | async_copy.TmaStoreOp) -> Boxes:
        """How the field of a TMA op is cut. Raises `EmmyError` at the op."""
        field = self.ring_of(op.slot).fields[op.field.data]
        if isinstance(op, async_copy.TmaStoreOp) and field.layout.padded_cols != field.layout.cols:
            raise EmmyError("a TMA store would write the padding of the tile's rows too", location_of(op))
        shape = field.shape
        if isinstance(op, async_copy.TmaLoadOp) and op.shared is not None:
            shape = (shape[0] // self.ring_of(op.slot).ctas, shape[1])
        try:
            return plan_boxes(shape, len(op.indices), field.layout)
        except EmmyError as error:
            raise EmmyError(error.message, location_of(op)) from None

    def tensor_map(self, view: SSAValue, shape: tuple[int, ...], swizzle: int) -> SSAValue:
        """The address of a tensor map: a parameter, added when it is first asked for."""
        wanted = TensorMap(self.view_numbers[view], shape, swizzle)
        if wanted not in self.maps:
            self.params.append(f"tensor_map {len(self.maps)}")
            argument = self.block.insert_arg(i64, len(self.block.args))
            argument.name_hint = f"{view.name_hint or 'view'}_map"
            self.maps[wanted] = argument
        return self.maps[wanted]

    def all_maps(self, kernel: tile.KernelOp) -> list[SSAValue]:
        """The tensor maps of a kernel, in the order of their first uses."""
        ops = [o for o in kernel.walk() if isinstance(o, async_copy.TmaLoadOp | async_copy.TmaStoreOp)]
        return list(dict.fromkeys(self.map_of(op, self.boxes(op)) for op in ops))

    def map_of(self, op: async_copy.TmaLoadOp | async_copy.TmaStoreOp, boxes: Boxes) -> SSAValue:
        """The tensor map of a TMA op."""
        swizzle = self.ring_of(op.slot).fields[op.field.data].layout.swizzle
        return self.tensor_map(op.view, boxes.shape, swizzle)

    def transfers(
        self, op: async_copy.TmaLoadOp | async_copy.TmaStoreOp
    ) -> Iterator[tuple[SSAValue, list[SSAValue], SSAValue, int]]:
        """Tensor map, coordinates (innermost first), shared address and its immediate, of each box of a TMA op."""
        b, (field, slot) = self.builder, self.place(op.slot, op.field.data)
        boxes, indices = self.boxes(op), self.offsets(op.indices)
        tensor_map = self.map_of(op, boxes)
        if isinstance(op, async_copy.TmaLoadOp) and op.shared is not None:
            ctas = self.ring_of(op.slot).ctas
            first = b.mul(b.low_bits(b.pure("ctaid_x"), ctas - 1), field.shape[0] // ctas)
            indices = [*indices[:-2], b.add(indices[-2], first), indices[-1]]
            slot = b.add(slot, b.mul(first, field.layout.row_bytes))
        base = b.pure("shared_base")
        known = field.start + slot if isinstance(slot, int) else field.start
        address = base if isinstance(slot, int) else b.register(b.add(base, slot))
        for box in boxes.places:
            at = [b.register(b.add(i, step)) for i, step in zip(indices, box.offsets, strict=True)]
            yield tensor_map, at[::-1], address, known + box.bytes

    def tma_load(self, op: async_copy.TmaLoadOp) -> None:
        """One load a box."""
        space = "shared_cta" if float(self.target.ptx_version) >= CTA_SHARED_SINCE else "shared_cluster"
        barrier, offset = self.mbarrier(op, op.slot, "full", self.pair(op.slot)[1])
        self.builder.comment(f"TMA into @{ring_name(op.slot)}.{op.field.data}")
        mask: list[SSAValue] = []
        if op.shared is not None:
            mask = [self.builder.constant((1 << self.ring_of(op.slot).ctas) - 1, i16)]
        policy = [] if op.evict_first is None else [self.builder.pure(EVICT_FIRST)]
        for tensor_map, at, address, immediate in self.transfers(op):
            hint = bool(policy)
            name = multicast_load_name(len(at), hint) if mask else tma_load_name(len(at), space, hint)
            self.emit_elected(name, (address, tensor_map, *at, barrier, *mask, *policy), (immediate, offset))

    def tma_store(self, op: async_copy.TmaStoreOp) -> None:
        """One store a box."""
        self.builder.comment(f"TMA from @{ring_name(op.slot)}.{op.field.data}")
        for tensor_map, at, address, immediate in self.transfers(op):
            self.emit_elected(tma_store_name(len(at)), (tensor_map, *at, address), (immediate,))

    def bulk_commit(self, op: async_copy.BulkCommitOp) -> None:
        """`cp.async.bulk.commit_group`"""
        self.emit_elected("cp_async_bulk_commit_group", ())

    def bulk_wait(self, op: async_copy.BulkWaitOp) -> None:
        """`cp.async.bulk.wait_group`"""
        suffix = "" if op.read is None else "_read"
        self.emit_elected(f"cp_async_bulk_wait_group{suffix}", (), (op.pending.value.data,))


def _arrays(ring: Ring) -> Iterator[tuple[int, int, int]]:
    """(start, arrivals, stages) of each array of mbarriers of a ring."""
    for array in (ring.full, ring.empty):
        if array is not None:
            yield array.start, array.count, ring.stages


def _check_bytes(op: async_copy.ElectOp, lowering: TmaLowering) -> None:
    """What a slot expects is what its loads bring, where both stand in one place: else no wait would ever end."""
    expected, brought = dict[SSAValue, int](), dict[SSAValue, int]()
    for event in op.body.block.ops:
        if isinstance(event, async_copy.ExpectTxOp):
            expected[event.slot] = expected.get(event.slot, 0) + event.bytes.value.data
        elif isinstance(event, async_copy.TmaLoadOp):
            ctas = 1 if event.shared is None else lowering.ring_of(event.slot).ctas
            brought[event.slot] = brought.get(event.slot, 0) + lowering.boxes(event).total_bytes * ctas
    for slot, count in expected.items():
        if brought.get(slot, count) != count:
            raise EmmyError(f"the slot expects {count} bytes and its TMA loads bring {brought[slot]}", location_of(op))


TMA_EVENTS: dict[type[Operation], Convert] = {
    async_copy.ElectOp: TmaLowering.elect,
    async_copy.ExpectTxOp: TmaLowering.expect_tx,
    async_copy.TmaLoadOp: TmaLowering.tma_load,
    async_copy.TmaStoreOp: TmaLowering.tma_store,
    async_copy.BulkCommitOp: TmaLowering.bulk_commit,
    async_copy.BulkWaitOp: TmaLowering.bulk_wait,
}
"""How each of these events is lowered."""
