"""`take-turns`: two halves of the warps compute their products one after the other, each while the other computes all else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from emmy.dialects import async_copy as ac
from emmy.dialects import mma, tile
from emmy.passes.emitter import Emitter


@dataclass(frozen=True)
class TakeTurns(ModulePass):
    """Contract: adds turns to loops of `async_copy.consumer`s; nothing that is computed changes, nor its order in a warp.

    Accepts level 3 between `overlap-products` and `issue-products`, with roles apart and an even number of consuming warps. By
    default it acts where the schedule says `turns = 1`; `force` acts everywhere. It looks for loops whose last products take a
    computed operand (*late*: the slices of one `mma.convert`), behind other products (*early*), and for loops that go on where
    such a loop ended.

    Guarantees: a half has its turn from before the loads of its late products to behind the early products of its next
    iteration; the first half begins with the turn. The late products' slot is waited for before the turn. All warps
    pass the turn and wait for it once an iteration, in iterations without products too, so that either half waits as often as the
    other one passes.

    Why: two warps of a scheduler do the same; side by side, one's exponentials are under the other's products only by chance.

    Before:                          After:
        scf.for %j ..                    scf.if (second half) { await_turn }
          %x = mma.mma .. (early)        scf.for %j ..
          %p = exp2 .. %x                  %x = mma.mma .. (early)
          %v = wait @v                     pass_turn
          %b = mma.load %v                 %v = wait @v
          %n = mma.mma %p, %b (late)       %p = exp2 .. %x
        }                                  await_turn
                                           %b = mma.load %v
                                           %n = mma.mma %p, %b (late)
                                         }
                                         scf.if (first half) { pass_turn }
    """

    name = "take-turns"
    force: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in [k for k in op.walk() if isinstance(k, tile.KernelOp)]:
            if self.force or (kernel.schedule is not None and kernel.schedule.data.turns):
                for consumer in [op for op in kernel.block.ops if isinstance(op, ac.ConsumerOp)]:
                    for chain in chains_of(consumer):
                        take_turns(chain)


def chains_of(consumer: ac.ConsumerOp) -> list[list[scf.ForOp]]:
    """Runs of loops of which each goes on with what the one before ends with, if all that have products have late ones."""
    chains: list[list[scf.ForOp]] = []
    for loop in [op for op in consumer.walk() if isinstance(op, scf.ForOp) and waits(op)]:
        if chains and list(chains[-1][-1].results) == list(loop.iter_args):
            chains[-1].append(loop)
        else:
            chains.append([loop])
    return [c for c in chains if any(map(products_of, c)) and all(late_of(x) for x in c if products_of(x))]


def waits(loop: scf.ForOp) -> bool:
    """Does a loop's body itself wait for a slot?"""
    return any(isinstance(op, ac.WaitOp) for op in loop.body.block.ops)


def products_of(loop: scf.ForOp) -> list[mma.MmaOp]:
    """The products of a loop, in the order of the text."""
    return [op for op in loop.body.block.ops if isinstance(op, mma.MmaOp)]


def late_of(loop: scf.ForOp) -> list[mma.MmaOp]:
    """The last products, which take slices of a computed operand, if others are before them."""
    products = products_of(loop)
    late = [
        p for p in products if isinstance(p.a.owner, mma.SliceOp) and isinstance(p.a.owner.arg.owner, mma.ConvertOp)
    ]
    return late if late and late != products and late == products[-len(late) :] else []


def take_turns(chain: Sequence[scf.ForOp]) -> None:
    """Add the turns of one chain of loops."""
    block = cast(Block, chain[0].parent)
    emit = Emitter(block, chain[0], chain[0])
    consumer = chain[0].parent_op()
    while consumer is not None and not isinstance(consumer, ac.ConsumerOp):
        consumer = consumer.parent_op()
    assert consumer is not None, "loops over slots are a consumer's"
    grid = next(op.get_grid() for op in consumer.walk() if isinstance(op, mma.WarpOp))
    half = grid[0] * grid[1] // 2
    warp = emit.value(mma.WarpOp(0, (grid[0] * grid[1], 1)))
    middle = emit.value(arith.ConstantOp.from_int_and_width(half, IndexType()))
    first = emit.value(arith.CmpiOp(warp, middle, "slt"))
    second = emit.value(arith.CmpiOp(warp, middle, "sge"))
    under(emit, second, ac.AwaitTurnOp())
    for loop in chain:
        add_turn(loop)
    last = chain[-1]
    under(Emitter(block, last, last.next_op), first, ac.PassTurnOp())


def under(emit: Emitter, condition: SSAValue, op: Operation) -> None:
    """One op in a branch."""
    taken = Block()
    inner = emit.inside(taken)
    inner(op)
    inner(scf.YieldOp())
    emit(scf.IfOp(condition, [], Region(taken)))


def add_turn(loop: scf.ForOp) -> None:
    """The turn of each iteration."""
    body, late = loop.body.block, late_of(loop)
    if not late:
        first = body.first_op
        Emitter(body, loop, first)(ac.PassTurnOp())
        Emitter(body, loop, first)(ac.AwaitTurnOp())
        return
    early = [p for p in products_of(loop) if p not in late][-1]
    loads = [p.b.owner for p in late if isinstance(p.b.owner, mma.LoadOp)]
    behind = early.next_op
    assert behind is not None
    Emitter(body, early, behind)(ac.PassTurnOp())
    for wait in dict.fromkeys(load.slot.owner for load in loads):
        # A slot that the early products read as well is there already.
        if isinstance(wait, ac.WaitOp) and wait.parent is body and early.is_before_in_block(wait):
            wait.detach()
            body.insert_op_before(wait, behind)
    start = next(op for op in body.ops if op in late or op in loads)
    Emitter(body, start, start)(ac.AwaitTurnOp())
