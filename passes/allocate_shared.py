"""`allocate-shared`: every ring gets its bytes in shared memory, and every field its swizzle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import AnyFloat, DictionaryAttr, IntegerAttr, ModuleOp, SymbolRefAttr, i64
from xdsl.ir import Attribute, Operation
from xdsl.passes import ModulePass

from emmy.dialects import async_copy, tile
from emmy.dialects.async_copy_rings import ring_name
from emmy.errors import EmmyError
from emmy.layout import SharedLayout, shared_layout
from emmy.locations import location_of
from emmy.passes.protocol import ring_of
from emmy.targets import Target, get_target

BASE_ALIGNMENT = 1024
"""The period of the widest swizzle: a ring that starts on a multiple of it can hold any field first."""

MBARRIER_BYTES = 8
"""An mbarrier is a 64-bit word (PTX ISA, mbarrier)."""

SHARED_BYTES = "emmy.shared_bytes"
"""The kernel's attribute that holds the size of its dynamic shared memory."""


@dataclass(frozen=True)
class AllocateShared(ModulePass):
    """Contract: writes `base`, `slot_bytes`, `offsets` and `swizzles` of every `async_copy.pipeline`, `full_base` and
    `empty_base` where it counts arrivals, and `emmy.shared_bytes` (bytes of dynamic shared memory) on every `tile.kernel`.
    Nothing else changes.

    Accepts canonical, placed and lowered forms of level 3.

    Guarantees: a field lies as `emmy.layout.shared_layout` says for its tile (the widest swizzle that fits), at a
    multiple of that layout's alignment in every slot; `base` is a multiple of 1024 bytes. The mbarriers lie behind all
    rings, and share bytes with nothing. An outbound ring shares bytes with rings that are finished before its first use in
    the role that uses it: drained or, in lowered form, read there for the last time (so every copy has landed: what is
    filled is read, as `verify-pipelines` says) and a barrier after that (`lower-transport` has put it there); TMA stores
    also need a `bulk_wait 0` before the barrier. Inbound rings never share bytes. The whole fits a CTA of `target`, else
    an EmmyError gives the numbers.

    Before:
        async_copy.pipeline @ab stages 3 {a = !tile.tile<128x64xf16>, b = !tile.tile<256x64xf16>}
        async_copy.pipeline @out stages 1 {c = !tile.tile<128x256xf16>} outbound
    After, in a kernel with `emmy.shared_bytes = 147456`:
        async_copy.pipeline @ab stages 3 {a = .., b = ..} {base = 0, offsets = {a = 0, b = 16384},
            slot_bytes = 49152, swizzles = {a = 128, b = 128}}
        async_copy.pipeline @out stages 1 {c = ..} outbound {base = 0, offsets = {c = 0}, slot_bytes = 65536,
            swizzles = {c = 128}}
    """

    name = "allocate-shared"
    target: str = "sm_90a"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = get_target(self.target)
        for kernel in op.walk():
            if isinstance(kernel, tile.KernelOp):
                allocate(kernel, target)


def field_layout(type_: tile.TileType) -> SharedLayout:
    """How a field lies in a slot; leading dimensions of its tile count as rows."""
    shape = type_.get_shape()
    assert isinstance(type_.element_type, AnyFloat)
    return shared_layout(prod(shape[:-1]), shape[-1], type_.element_type.bitwidth // 8)


def allocate(kernel: tile.KernelOp, target: Target) -> None:
    """Place the rings of one kernel."""
    rings = [op for op in kernel.block.ops if isinstance(op, async_copy.PipelineOp)]
    for ring in rings:
        lay_out(ring)
    uses = {ring: list(ring_uses(kernel, ring.sym_name.data)) for ring in rings}

    def may_share(one: async_copy.PipelineOp, other: async_copy.PipelineOp) -> bool:
        return any(
            later.outbound is not None and finished_before(uses[earlier], uses[later])
            for earlier, later in ((one, other), (other, one))
        )

    placed: list[async_copy.PipelineOp] = []
    for ring in sorted(rings, key=ring_bytes, reverse=True):
        rivals = [other for other in placed if not may_share(ring, other)]
        ring.base = IntegerAttr(lowest_base(ring_bytes(ring), rivals), i64)
        placed.append(ring)
    total = place_barriers(rings, max((ring_end(ring) for ring in rings), default=0))
    if total > target.shared_bytes_per_block:
        raise EmmyError(too_much(kernel, rings, total, target), location_of(kernel))
    kernel.attributes[SHARED_BYTES] = IntegerAttr(total, i64)


def place_barriers(rings: Sequence[async_copy.PipelineOp], at: int) -> int:
    """Give the mbarriers of all rings their places from `at` on; the first byte after them."""
    at = round_up(at, MBARRIER_BYTES)
    for ring in rings:
        for count, name in ((ring.full_count, "full_base"), (ring.empty_count, "empty_base")):
            if count is not None:
                ring.properties[name] = IntegerAttr(at, i64)
                at += MBARRIER_BYTES * ring.stages.value.data
    return at


def lay_out(ring: async_copy.PipelineOp) -> None:
    """Offsets and swizzles of a ring's fields, and the bytes of a slot: whole alignments of all fields."""
    ring.base = IntegerAttr(0, i64)  # until it is placed
    offsets: dict[str, Attribute] = {}
    swizzles: dict[str, Attribute] = {}
    at = alignment = 0
    for name, type_ in ring.fields.data.items():
        layout = field_layout(cast(tile.TileType, type_))
        at = round_up(at, layout.alignment)
        # What the CTAs of a cluster exchange lies as it does in registers.
        swizzle = 0 if ring.cluster is not None and ring.internal is not None else layout.swizzle
        offsets[name], swizzles[name] = IntegerAttr(at, i64), IntegerAttr(swizzle, i64)
        at += layout.size_bytes
        alignment = max(alignment, layout.alignment)
    ring.slot_bytes = IntegerAttr(round_up(at, alignment), i64)
    ring.offsets, ring.swizzles = DictionaryAttr(offsets), DictionaryAttr(swizzles)


def round_up(number: int, step: int) -> int:
    """The next multiple of `step`."""
    return -(-number // step) * step


def ring_bytes(ring: async_copy.PipelineOp) -> int:
    """Bytes of all slots."""
    assert ring.slot_bytes is not None
    return ring.stages.value.data * ring.slot_bytes.value.data


def ring_end(ring: async_copy.PipelineOp) -> int:
    """The first byte after a ring that has its base."""
    assert ring.base is not None
    return ring.base.value.data + ring_bytes(ring)


def lowest_base(size: int, rivals: Sequence[async_copy.PipelineOp]) -> int:
    """The lowest aligned start of `size` bytes that lie beside those of all rivals."""
    taken = sorted((cast(IntegerAttr, rival.base).value.data, ring_end(rival)) for rival in rivals)
    at = 0
    for start, end in taken:
        if at + size > start and at < end:
            at = round_up(end, BASE_ALIGNMENT)
    return at


# ---- when a ring's bytes are in use ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Uses:
    """How one half or role uses a ring: the ops of its block that touch the ring's bytes or tickets, by number.

    `finished` is the number of the op after which nothing touches them any more, if there is one.
    """

    body: Operation
    first: int
    finished: int | None


def ring_uses(kernel: tile.KernelOp, ring: str) -> Iterator[Uses]:
    """The halves or roles that use a ring."""
    bodies = [op for op in kernel.block.ops if isinstance(op, HALVES)]
    found: list[tuple[Operation, list[Operation], list[int]]] = []
    for body in bodies:
        ops = list(body.regions[0].block.ops)
        numbers = [i for i, op in enumerate(ops) if any(uses_ring(inner, ring) for inner in op.walk())]
        if numbers:
            found.append((body, ops, numbers))
    for body, ops, numbers in found:
        last = ops[numbers[-1]]
        # Whoever reads all tickets knows that they have landed, whoever has filled them.
        reads = len(found) == 1 or any(isinstance(op, READS) and ring_of(op) == ring for op in body.walk())
        drained = isinstance(last, async_copy.DrainOp)
        finished = numbers[-1] if drained else barrier_after(ops, numbers[-1], ring) if reads else None
        yield Uses(body, numbers[0], finished)


READS = (async_copy.WaitOp, async_copy.WaitFullOp)
"""What the reading role of a ring does, if another one fills it."""

HALVES = (async_copy.ProducerOp, async_copy.ConsumerOp, async_copy.RoleOp)
"""The ops of a kernel that run beside each other."""


def uses_ring(op: Operation, ring: str) -> bool:
    """Does `op` itself touch a ring? The first cursor of a side does not."""
    if isinstance(op, async_copy.BeginFillOp | async_copy.BeginReadOp):
        return False
    named = op.properties.get("pipeline")
    if isinstance(named, SymbolRefAttr) and named.root_reference.data == ring:
        return True
    slots = (v.type for v in op.operands if isinstance(v.type, async_copy.SlotType))
    return any(type_.pipeline.root_reference.data == ring for type_ in slots)


def barrier_after(ops: Sequence[Operation], last: int, ring: str) -> int | None:
    """Lowered form: the first barrier after the last use of a ring, and after its TMA stores are done."""
    waiting = any(
        isinstance(inner, async_copy.TmaStoreOp) and ring_name(inner.slot) == ring
        for op in ops[: last + 1]
        for inner in op.walk()
    )
    for number in range(last, len(ops)):
        if any(isinstance(op, async_copy.BulkWaitOp) and op.pending.value.data == 0 for op in ops[number].walk()):
            waiting = False
        if number > last and is_barrier_of_role(ops[number]) and not waiting:
            return number
    return None


def is_barrier_of_role(op: Operation) -> bool:
    """Is an op a barrier over all warps of its role?"""
    return isinstance(op, async_copy.BarrierOp) and op.across is None


def finished_before(earlier: Sequence[Uses], later: Sequence[Uses]) -> bool:
    """Is one ring finished, in the only half or role that uses the other one, before that one's first use there?"""
    return len(later) == 1 and any(
        use.body is later[0].body and use.finished is not None and use.finished < later[0].first for use in earlier
    )


def too_much(kernel: tile.KernelOp, rings: Sequence[async_copy.PipelineOp], total: int, target: Target) -> str:
    """The sentence for a kernel that does not fit."""
    parts = [
        f"@{r.sym_name.data} has {r.stages.value.data} x {ring_bytes(r) // r.stages.value.data} bytes" for r in rings
    ]
    return (
        f"kernel @{kernel.sym_name.data} needs {total} bytes of shared memory ({', '.join(parts)}), "
        f"and a CTA of {target.name} has {target.shared_bytes_per_block}: take fewer stages or a smaller block"
    )
