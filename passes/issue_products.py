"""`issue-products`: products of an asynchronous atom are begun, committed and waited for."""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.traits import is_side_effect_free

from emmy.dialects import async_copy, mma, tile
from emmy.errors import EmmyError
from emmy.locations import location_of
from emmy.passes.emitter import Emitter
from emmy.schedules import WARPGROUP_ATOM

OPERANDS = (mma.LoadOp, async_copy.WaitOp, async_copy.SlotOp)
"""What may stand between the products of a group beside ops without effects: it fetches their operands."""


@dataclass(frozen=True)
class IssueProducts(ModulePass):
    """Contract: in kernels whose schedule's atom is `wgmma` no `mma.mma` of tiles in shared memory is left.

    Accepts kernels of `lower-tile` in which each warp has 16 rows of every product, and four warps of a warpgroup stand one
    below the other: their rows are the 64 of an instruction, and a warp's share of its sums lies in registers exactly as
    those of `m16n8k16` do. So fragments stay what they are; only how products are executed changes.

    Guarantees: operand b is read in place, a in place or, where it was computed, from registers. The products of a block
    that follow each other, with nothing but the loads of their operands between, are one group: `mma.fence`, an
    `mma.issue` each, `mma.commit`, `mma.wait 0`. The wait stands before anything else that uses a sum and before the release
    of a slot that a product reads, so sums in flight are touched by nothing (`mma.issue` verifies it). A product whose
    operand b is not in shared memory (of a tile that is computed again) stays an `mma.mma`.
    Hybrid sums are an EmmyError, since their partial sums would be waited for one by one.

    Before:                                                 After:
        %x = mma.load %s["a"][%row, %c0]                        %x = mma.load %s["a"][%row, %c0] in_place
        %y = mma.load %s["b"][%col, %c0]                        %y = mma.load %s["b"][%col, %c0] in_place
        %d0 = mma.mma %x, %y, %sum                              mma.fence
        %z = mma.load %s["a"][%row, %c16]                       %d0 = mma.issue %x, %y, %sum
        %w = mma.load %s["b"][%col, %c16]                       ..
        %d1 = mma.mma %z, %w, %d0                               %d1 = mma.issue %z, %w, %d0
        async_copy.release @ab, %s                              mma.commit
                                                                %d = mma.wait 0 %d1
                                                                async_copy.release @ab, %s
    """

    name = "issue-products"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.walk():
            if isinstance(kernel, tile.KernelOp) and kernel.schedule and kernel.schedule.data.atom == WARPGROUP_ATOM:
                blocks = {product.parent_block() for product in kernel.walk() if isinstance(product, mma.MmaOp)}
                for block in blocks:
                    if block is not None:
                        issue_block(block)


@dataclass
class Group:
    """Products that are in flight: their sums, the newest of each chain, and the slots that they read."""

    sums: list[SSAValue] = field(default_factory=list[SSAValue])
    slots: set[SSAValue] = field(default_factory=set[SSAValue])

    def touches(self, op: Operation) -> bool:
        """Whether an op may not run while the group does."""
        if isinstance(op, OPERANDS):
            return False
        inside = {operand for inner in op.walk() for operand in inner.operands}
        return not is_side_effect_free(op) or bool(inside & {*self.sums, *self.slots}) or isinstance(op, scf.YieldOp)


def issue_block(block: Block) -> None:
    """Rewrite the products of one block."""
    group = Group()
    for op in list(block.ops):
        if isinstance(op, mma.MmaOp) and isinstance(op.b.owner, mma.LoadOp):
            issue(op, group)
        elif group.sums and group.touches(op):
            wait(block, op, group)
            group = Group()
    assert not group.sums, "a block with products ends with an op that has an effect or yields"


def issue(op: mma.MmaOp, group: Group) -> None:
    """Begin a product."""
    if op.accumulate is not None and op.accumulate.policy.data == "hybrid":
        raise EmmyError("atom = wgmma has no hybrid sums; use accumulate<f32>, or atom = m16n8k16", location_of(op))
    block = op.parent_block()
    assert block is not None
    emit = Emitter(block, op, op)
    if not group.sums:
        emit(mma.FenceOp())
    for number, operand in enumerate((op.a, op.b)):
        load = operand.owner
        if isinstance(load, mma.LoadOp):
            group.slots.add(load.slot)
            op.operands[number] = in_place(load, op, emit)
    new = emit(mma.IssueOp(op.a, op.b, op.c))
    new.result.name_hint = op.result.name_hint
    if op.c in group.sums:
        group.sums.remove(op.c)
    group.sums.append(new.result)
    op.result.replace_all_uses_with(new.result)
    op.detach()
    op.erase()


def in_place(load: mma.LoadOp, product: mma.MmaOp, emit: Emitter) -> SSAValue:
    """The fragment of a load, read in place; a load that has other uses stays for them, and the product gets its own."""
    if load.in_place is not None:
        return load.result
    if all(isinstance(use.operation, mma.MmaOp | mma.IssueOp) for use in load.result.uses):
        load.properties["in_place"] = UnitAttr()
        return load.result
    own = load.clone()
    own.properties["in_place"] = UnitAttr()
    emit.at(load)(own)
    return own.result


def wait(block: Block, before: Operation, group: Group) -> None:
    """End a group before an op: commit it, wait for it; what uses its sums from here on uses what the wait passes on."""
    emit = Emitter(block, before, before)
    emit(mma.CommitOp())
    for value in group.sums:
        waited = emit(mma.WaitOp(0, value))
        waited.result.name_hint = value.name_hint
        value.replace_uses_with_if(waited.result, lambda use, waited=waited: use.operation is not waited)
