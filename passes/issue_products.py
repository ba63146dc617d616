"""`issue-products`: products of an asynchronous atom are begun, committed and waited for."""

from __future__ import annotations

from collections.abc import Sequence
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
from emmy.schedules import NO_HYBRID_WARPGROUPS, WARPGROUP_ATOM

OPERANDS = (mma.LoadOp, async_copy.WaitOp, async_copy.SlotOp)
"""What may stand between the products of a group beside ops without effects: it fetches their operands."""


@dataclass(frozen=True)
class IssueProducts(ModulePass):
    """Contract: in kernels whose schedule's atom is `wgmma` no `mma.mma` of tiles in shared memory is left.

    Accepts kernels of `lower-tile` in which each warp has 16 rows of every product, and four warps of a warpgroup stand one
    below the other: their rows are the 64 of an instruction, and a warp's share of its sums lies in registers exactly as
    those of `m16n8k16` do. So fragments stay what they are; only how products are executed changes.

    Guarantees: operand b is read in place, a in place or, where it was computed, from registers. The products of a block
    that follow each other are a group: `mma.fence`, an `mma.issue` each, `mma.commit`; a new one begins where a new sum does and
    all others are whole. `mma.wait` stands before anything else that uses a group's sum, before the release of a slot that it
    reads, and before other effects; newer groups stay pending. So sums in flight are touched by nothing (`mma.issue` verifies
    it). A product whose operand b is not in shared memory (of a tile that is computed again) stays an `mma.mma`.
    Hybrid sums that `split-accumulation` has not split are an EmmyError; partial sums are sums like others.

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
    newest: Operation | None = None
    committed: bool = False

    def touches(self, op: Operation) -> bool:
        """Whether an op may not run while the group does."""
        if isinstance(op, OPERANDS):
            return False
        if isinstance(op, async_copy.ReleaseOp):
            return op.slot in self.slots
        inside = {operand for inner in op.walk() for operand in inner.operands}
        held = bool(inside & {*self.sums, *self.slots})
        return held or not is_side_effect_free(op) or isinstance(op, scf.YieldOp)


def issue_block(block: Block) -> None:
    """Rewrite the products of one block."""
    heads, groups = heads_of(block), list[Group]()
    for op in list(block.ops):
        if isinstance(op, mma.MmaOp) and isinstance(op.b.owner, mma.LoadOp):
            if not groups or groups[-1].committed or op in heads:
                commit(groups)
                groups.append(Group())
                Emitter(block, op, op)(mma.FenceOp())
            issue(op, groups)
            continue
        touched = [number for number, group in enumerate(groups) if group.touches(op)]
        if touched:
            commit(groups)
            finished, groups = groups[: touched[-1] + 1], groups[touched[-1] + 1 :]
            wait(block, op, [value for group in finished for value in group.sums], len(groups))
    assert not groups, "a block with products ends with an op that has an effect or yields"


def heads_of(block: Block) -> set[Operation]:
    """Products that continue no sum, where all sums that were begun before are whole."""
    products = [op for op in block.ops if isinstance(op, mma.MmaOp)]
    last: dict[Operation, int] = {}
    root: dict[Operation, Operation] = {}
    for number, op in enumerate(products):
        root[op] = root.get(op.c.owner, op) if isinstance(op.c.owner, Operation) else op
        last[root[op]] = number
    heads = [(number, op) for number, op in enumerate(products) if root[op] is op]
    return {op for number, op in heads if all(last[products[n]] < number for n in range(number) if products[n] in last)}


def commit(groups: list[Group]) -> None:
    """End the newest group behind its last product, if there is one that goes on."""
    if groups and not groups[-1].committed:
        last = groups[-1].newest
        block = None if last is None else last.parent_block()
        assert last is not None
        assert block is not None
        Emitter(block, last, last.next_op)(mma.CommitOp())
        groups[-1].committed = True


def issue(op: mma.MmaOp, groups: list[Group]) -> None:
    """Begin a product, in the newest group; an older group whose sum goes on here is waited for with it."""
    if op.accumulate is not None and op.accumulate.policy.data == "hybrid":
        raise EmmyError(NO_HYBRID_WARPGROUPS, location_of(op))
    block, group = op.parent_block(), groups[-1]
    assert block is not None
    emit = Emitter(block, op, op)
    for number, operand in enumerate((op.a, op.b)):
        load = operand.owner
        if isinstance(load, mma.LoadOp):
            group.slots.add(load.slot)
            op.operands[number] = in_place(load, op, emit)
    new = emit(mma.IssueOp(op.a, op.b, op.c))
    new.result.name_hint = op.result.name_hint
    for older in [older for older in groups if op.c in older.sums]:
        older.sums.remove(op.c)
        if older is not group:
            group.sums += older.sums
            group.slots |= older.slots
            groups.remove(older)
    group.sums.append(new.result)
    group.newest = new
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


def wait(block: Block, before: Operation, sums: Sequence[SSAValue], pending: int) -> None:
    """Wait for sums before an op, with so many newer groups in flight; what uses them from here on uses what is passed on."""
    emit = Emitter(block, before, before)
    for value in sums:
        waited = emit(mma.WaitOp(pending, value))
        waited.result.name_hint = value.name_hint
        value.replace_uses_with_if(waited.result, lambda use, waited=waited: use.operation is not waited)
