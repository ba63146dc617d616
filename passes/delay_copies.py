"""`delay-copies`: the copies of a loop body are issued behind its first products, not before them."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass
from xdsl.traits import MemoryEffectKind, get_effects

from emmy.dialects import async_copy, mma, tile
from emmy.errors import EmmyError

CP_ASYNC = (async_copy.CpAsyncOp,)
TMA = (async_copy.ExpectTxOp, async_copy.TmaLoadOp)
"""What copies: ops that `is_copy` looks for. TMA has no groups: its issue is one branch that holds one elected lane's events."""


@dataclass(frozen=True)
class DelayCopies(ModulePass):
    """Contract: moves groups of `cp_async`, and TMA issues, down inside their block; no op is added, removed or changed.

    Accepts `tile.kernel` bodies after `lower-transport`. `products` is how many `mma.mma` of the block a group is moved
    behind; by default the `delay` of the kernel's schedule. With 0 nothing moves.

    Guarantees: a group (the copies, or the `scf.if` that guards them, and their `commit_group`; or the `elect` of a TMA
    issue with its `scf.if`) only passes ops that compute or read fragments. It never passes a wait, a barrier, another
    group or a loop, so what is in flight at each wait, and which barrier a copy comes after, stay the same. Doing it twice
    changes nothing more.

    Why: right after the barrier all warps would fill the load/store queue with copies, and the `ldmatrix` that the first
    products wait for would queue behind them while the tensor cores idle.

    Before (products 1):                       After:
        async_copy.wait_group 1                    async_copy.wait_group 1
        async_copy.barrier                         async_copy.barrier
        scf.if %more { cp_async .. }               %a0 = mma.load ..
        async_copy.commit_group                    %s0 = mma.mma %a0, ..
        %a0 = mma.load ..                          scf.if %more { cp_async .. }
        %s0 = mma.mma %a0, ..                      async_copy.commit_group
        %s1 = mma.mma ..                           %s1 = mma.mma ..
    """

    name = "delay-copies"
    products: int | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.products is not None and self.products < 0:
            raise EmmyError(f"delay-copies moves copies behind 0 or more products, got {self.products}")
        for kernel in op.walk():
            if not isinstance(kernel, tile.KernelOp):
                continue
            products = self.products
            if products is None:
                products = 0 if kernel.schedule is None else kernel.schedule.data.delay
            if products:
                # The last group first: the ones before it follow up to it, and never pass it.
                for group in reversed([g for o in kernel.walk() if (g := group_of(o))]):
                    delay_group(group, products)


def delay_group(group: list[Operation], products: int) -> None:
    """Move one group behind up to `products` mma ops."""
    block = group[0].parent
    assert isinstance(block, Block)
    products -= products_before(group[0])
    last: Operation | None = None
    after = group[-1].next_op
    while after is not None and products > 0 and may_be_passed(after):
        if isinstance(after, mma.MmaOp):
            last, products = after, products - 1
        after = after.next_op
    if last is None:
        return
    for op in group:
        op.detach()
        block.insert_op_after(op, last)
        last = op


def products_before(first: Operation) -> int:
    """The products that a group is behind already, since the last wait or barrier: moving it again does nothing."""
    count, op = 0, first.prev_op
    while op is not None and (
        may_be_passed(op) or is_copy(op, (*CP_ASYNC, *TMA)) or isinstance(op, async_copy.CommitGroupOp)
    ):
        count += isinstance(op, mma.MmaOp)
        op = op.prev_op
    return count


def group_of(op: Operation) -> list[Operation]:
    """The group that ends with this op, in order: a commit with the copies directly before it, or a whole TMA issue."""
    if isinstance(op, scf.IfOp | async_copy.ElectOp):
        parent = op.parent_op()
        return [op] if is_copy(op, TMA) and not (parent is not None and is_copy(parent, TMA)) else []
    if not isinstance(op, async_copy.CommitGroupOp):
        return []
    group: list[Operation] = [op]
    while group[0].prev_op is not None and is_copy(group[0].prev_op, CP_ASYNC):
        group.insert(0, group[0].prev_op)
    return group if len(group) > 1 else []


def is_copy(op: Operation, kinds: tuple[type[Operation], ...]) -> bool:
    """A copy of a tile, of one of these kinds, or a branch or elected lane that does nothing else that touches memory."""
    if isinstance(op, kinds):
        return True
    if not isinstance(op, scf.IfOp | async_copy.ElectOp) or op.results:
        return False
    inner = [o for region in op.regions for block in region.blocks for o in block.ops]
    copies = [is_copy(o, kinds) for o in inner]
    return any(copies) and all(
        copy or isinstance(o, scf.YieldOp) or get_effects(o) == set() for o, copy in zip(inner, copies, strict=True)
    )


def may_be_passed(op: Operation) -> bool:
    """Ops that compute, or read shared memory: a copy that lands later cannot disturb them more than before."""
    if isinstance(op, async_copy.SlotOp):
        return True
    effects = get_effects(op)
    return not op.regions and effects is not None and all(e.kind == MemoryEffectKind.READ for e in effects)
