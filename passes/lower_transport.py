"""`lower-transport`: tickets become copies, commit groups and barriers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from xdsl.context import Context
from xdsl.dialects.builtin import FixedBitwidthType, ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from emmy.dialects import async_copy as ac
from emmy.dialects.tile import KernelOp, ViewType
from emmy.passes.alignment import vector_bytes
from emmy.passes.completion import Completion, Need
from emmy.passes.emitter import Emitter
from emmy.passes.protocol import PROTOCOL_OPS, fail, pipelines_of

CP_ASYNC_BYTES = (16, 8, 4)
"""Widths of `cp.async` (PTX ISA, cp.async: cp-size is 4, 8 or 16)."""


@dataclass(frozen=True)
class LowerTransport(ModulePass):
    """Lower the protocol of placed kernels to events that print one to one.

    Accepts kernels whose halves `place-roles` has merged. Guarantees: no acquire, copy, commit, wait, release, store or drain
    is left (slots and cursors stay as values); a wait became `wait_group N`, with N the smallest number of younger commit
    groups over all paths, and a barrier over the role's warps, each only where it is needed; an acquire has a barrier before
    it if a slot of its ring (or one that may share its bytes) was read since the last barrier; a commit that is not `joined`
    ends a commit group; results leave by plain stores, with a barrier between `mma.store` and them.

    `kind`: `cp_async`, `plain` (through registers), or `auto`: the schedule's `transport`, where `auto` is `cp_async`. A copy
    for which 4 bytes cannot be proved aligned is a plain one in any kind. Widths: the widest of 16, 8, 4, 2 bytes that divides
    the last dimension's offset, extent and size and all other strides (base pointers are 16-byte aligned by contract;
    `?` divides by one element only).

        %s, %n = async_copy.wait @ab[%c]                       async_copy.wait_group 1
        %f, %m = async_copy.acquire @ab[%d] if %p              async_copy.barrier
        scf.if %p {                                            %s, %n = async_copy.slot @ab[%c]
          async_copy.copy %a[%i, %k] -> %f["a"]           ->   %f, %m = async_copy.slot @ab[%d] if %p
        }                                                      scf.if %p {
        async_copy.commit @ab, %f if %p                          async_copy.cp_async %a[%i, %k] -> %f["a"] bytes 16
        async_copy.release @ab, %s                             }
                                                               async_copy.commit_group
    """

    name = "lower-transport"
    kind: Literal["auto", "cp_async", "plain"] = "auto"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in list(op.walk()):
            if isinstance(kernel, KernelOp):
                self._lower(kernel)

    def _lower(self, kernel: KernelOp) -> None:
        roles = [op for op in kernel.block.ops if isinstance(op, ac.RoleOp)]
        if any(isinstance(op, ac.ProducerOp | ac.ConsumerOp) for op in kernel.block.ops):
            fail(kernel, "lower-transport wants roles, and this kernel has halves: run place-roles first")
        kind = self._kind(kernel)
        copies = {op: _lower_copy(op, kind) for op in kernel.walk() if isinstance(op, ac.CopyOp)}
        grouped = frozenset(ac.ring_name(op.slot) for op, new in copies.items() if isinstance(new, ac.CpAsyncOp))
        outbound = frozenset(name for name, op in pipelines_of(kernel).items() if op.outbound is not None)
        for role in roles:
            needs = Completion(grouped, outbound).run(role.body.block)
            for op in list(role.walk()):
                if isinstance(op, PROTOCOL_OPS):
                    _replace(op, needs.get(op, Need()), copies)
        for op in kernel.walk():
            if isinstance(op, PROTOCOL_OPS):
                fail(op, f"{op.name} stands outside a role")

    def _kind(self, kernel: KernelOp) -> str:
        kind = self.kind
        if kind == "auto" and kernel.schedule:
            kind = kernel.schedule.data.transport
        if kind == "tma":
            fail(kernel, "lower-transport has no transport 'tma': set transport = cp_async in the schedule")
        return "cp_async" if kind == "auto" else kind


def _lower_copy(op: ac.CopyOp, kind: str) -> Operation:
    width = _width(op, op.view, list(op.indices), op.slot, op.field.data)
    make = ac.CpAsyncOp if kind == "cp_async" and width in CP_ASYNC_BYTES else ac.PlainCopyOp
    return make(op.view, list(op.indices), op.slot, op.field.data, width)


def _width(op: Operation, view: SSAValue, indices: list[SSAValue], slot: SSAValue, field: str) -> int:
    """The width in bytes of a copy between a view and a field of a slot."""
    pipeline = ac.find_pipeline(op, ac.ring_name(slot))
    tile = pipeline.field(field) if pipeline else None
    if tile is None:
        fail(op, f"pipeline @{ac.ring_name(slot)} has no field '{field}'")
    element = tile.element_type
    if not isinstance(element, FixedBitwidthType) or element.size not in (2, 4, 8):
        fail(op, f"copies move elements of 2, 4 or 8 bytes, not {element}")
    return vector_bytes(cast(ViewType, view.type), indices, tile.get_shape(), element.size)


def _replace(op: Operation, need: Need, copies: dict[ac.CopyOp, Operation]) -> None:
    """Put the events that stand for one protocol op in its place."""
    block = op.parent_block()
    assert block is not None
    emit = Emitter(block, op, op)
    if need.pending is not None:
        emit(ac.WaitGroupOp(need.pending))
    if need.barrier:
        emit(ac.BarrierOp())
    if need.group:
        emit(ac.CommitGroupOp())
    if isinstance(op, ac.AcquireOp | ac.WaitOp):
        slot = emit(ac.SlotOp(op.cursor, op.predicate if isinstance(op, ac.AcquireOp) else None))
        for old, new in zip(op.results, slot.results, strict=True):
            new.name_hint = old.name_hint
            old.replace_all_uses_with(new)
    elif isinstance(op, ac.CopyOp):
        new = copies[op]
        new.operands = op.operands
        emit(new)
    elif isinstance(op, ac.StoreOp):
        width = _width(op, op.view, list(op.indices), op.slot, op.field.data)
        emit(ac.PlainStoreOp(op.slot, op.field.data, op.view, list(op.indices), width))
    op.detach()
    op.erase()
