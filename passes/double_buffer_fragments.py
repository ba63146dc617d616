"""`double-buffer-fragments`: operand fragments of the next k-step are loaded before the mma of this one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass
from xdsl.traits import MemoryEffectKind, get_effects

from emmy.dialects import mma, tile
from emmy.errors import EmmyError


@dataclass(frozen=True)
class DoubleBufferFragments(ModulePass):
    """Contract: reorders ops inside blocks of `tile.kernel`; no op is added, removed or changed, no result changes.

    Accepts any form of level 3. `depth` is how many k-steps of operand fragments are in registers at once; by default
    the `fragments` of the kernel's schedule. With depth 1 nothing moves.

    Guarantees: between two ops that move or wait for data (wait, release, acquire, commit, copy, barrier, a loop, ..)
    the `mma.load`s that feed the a and b operands of `mma.mma` number j + depth - 1 stand before `mma.mma` number j, so
    far as their operands are defined there. Nothing moves across such an op: a load stays inside the lifetime of its
    slot.

    Before (depth 2):                        After:
        %a0 = mma.load .. [%row, %c0]            %a0 = mma.load .. [%row, %c0]
        %b0 = mma.load .. [%col, %c0]            %b0 = mma.load .. [%col, %c0]
        %s0 = mma.mma %a0, %b0, %s               %a1 = mma.load .. [%row, %c16]
        %a1 = mma.load .. [%row, %c16]           %b1 = mma.load .. [%col, %c16]
        %b1 = mma.load .. [%col, %c16]           %s0 = mma.mma %a0, %b0, %s
        %s1 = mma.mma %a1, %b1, %s0              %s1 = mma.mma %a1, %b1, %s0
        async_copy.release @ab, %slot            async_copy.release @ab, %slot
    """

    name = "double-buffer-fragments"
    depth: int | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.depth is not None and self.depth < 1:
            raise EmmyError(f"double-buffer-fragments keeps at least 1 k-step of fragments, got depth {self.depth}")
        for kernel in op.walk():
            if not isinstance(kernel, tile.KernelOp):
                continue
            depth = self.depth
            if depth is None:
                depth = 1 if kernel.schedule is None else kernel.schedule.data.fragments
            if depth > 1:
                for inner in list(kernel.walk()):
                    for region in inner.regions:
                        for block in region.blocks:
                            reorder_block(block, depth)


def reorder_block(block: Block, depth: int) -> None:
    """Move the loads of one block, segment by segment."""
    for segment in list(segments(block)):
        order = Reordering(segment, depth).run()
        if order != segment:
            after = segment[-1].next_op
            for op in segment:
                op.detach()
            if after is None:
                block.add_ops(order)
            else:
                block.insert_ops_before(order, after)


def segments(block: Block) -> Iterator[list[Operation]]:
    """Runs of ops that only compute or read: everything else orders memory accesses and stays where it is."""
    run: list[Operation] = []
    for op in block.ops:
        effects = get_effects(op)
        if effects is not None and all(e.kind == MemoryEffectKind.READ for e in effects) and not op.regions:
            run.append(op)
            continue
        if run:
            yield run
        run = []
    if run:
        yield run


@dataclass
class Reordering:
    """The new order of one segment, built from front to back."""

    segment: Sequence[Operation]
    depth: int
    order: list[Operation] = field(default_factory=list[Operation])
    done: set[Operation] = field(default_factory=set[Operation])

    def run(self) -> list[Operation]:
        """The ops of the segment, loads moved up."""
        inside = set(self.segment)
        products = [op for op in self.segment if isinstance(op, mma.MmaOp)]
        ahead = [self.operand_loads(op, inside) for op in products]
        number = {op: i for i, op in enumerate(products)}
        for op in self.segment:
            if isinstance(op, mma.MmaOp):
                for loads in ahead[number[op] : number[op] + self.depth]:
                    for load in loads:
                        self.emit(load, inside)
            self.emit(op, inside)
        return self.order

    def emit(self, op: Operation, inside: set[Operation]) -> None:
        """Put `op` next, after what it needs from the segment."""
        if op in self.done:
            return
        for operand in op.operands:
            if isinstance(operand.owner, Operation) and operand.owner in inside:
                self.emit(operand.owner, inside)
        self.done.add(op)
        self.order.append(op)

    def operand_loads(self, product: mma.MmaOp, inside: set[Operation]) -> list[Operation]:
        """The ops of the segment that a and b of a product are made of; none if one of them waits for another product."""
        found: list[Operation] = []
        work = [product.a.owner, product.b.owner]
        while work:
            op = work.pop()
            if not isinstance(op, Operation) or op not in inside:
                continue
            if isinstance(op, mma.MmaOp):
                return []
            found.append(op)
            work += [operand.owner for operand in op.operands]
        return [op for op in self.segment if op in found]
