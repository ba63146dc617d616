"""`alternate-tiles`: two consumers compute alternate tiles, the main loop of one under the epilogue of the other (ping-pong)."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, SymbolRefAttr, i64
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from emmy.dialects import async_copy as ac
from emmy.dialects import tile
from emmy.dialects.async_copy_rings import ring_name
from emmy.passes.emitter import Emitter
from emmy.passes.lower_raster import Arithmetic, known
from emmy.passes.protocol import fail, is_inbound, pipelines_of, steps
from emmy.passes.tickets import takes, tickets_of
from emmy.schedules import PINGPONG


@dataclass(frozen=True)
class AlternateTiles(ModulePass):
    """Contract: an `async_copy.consumer` with a loop over tiles becomes two of them; what is computed of a tile stays the same.

    Accepts halves of persistent kernels, before `place-roles`. By default it acts where the schedule says
    `consumers = pingpong`; `force` acts on every kernel with halves. The producer stays as it is: it fills one ring in the order
    of the tiles.

    Guarantees: consumer 0 computes the tiles of even number among those of its CTA, consumer 1 the others. Each passes over the
    tickets that the other one takes (`async_copy.skip`), as many as a tile has; a tile's main loop is its consumer's turn
    (`await_turn`, `pass_turn`), so tickets are waited for in the order of the ring, and what comes after the loop runs under the
    other's loop. A turn is passed only where there is a tile for it: none is left over at the end. What each tile has one slot of
    (a bias) gets a slot for each consumer; results leave through a pipeline of each. Raises EmmyError where there is no loop over
    tiles, or tiles may take different numbers of tickets.

    Before:                                        After, for consumer 0 (1 begins at %c + %n, behind a skip of %c1's ring, and
                                                   behind `pass_turn consumer 0`, if there is a tile):
        scf.for %t = %c to %tiles step %n {            scf.for %t = %c to %tiles step 2*%n {
          %sum = scf.for %k = .. {                       async_copy.await_turn consumer 0
            wait @ab; ..; release @ab                    %sum = scf.for %k = .. { wait @ab; ..; release @ab }
          }                                              async_copy.pass_turn consumer 1 if %t + %n < %tiles
          store %sum by way of @out                      store %sum by way of @out
        }                                                async_copy.skip @ab by (tickets of a tile)
                                                       }
    """

    name = "alternate-tiles"
    force: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in [k for k in op.walk() if isinstance(k, tile.KernelOp)]:
            wanted = kernel.schedule is not None and kernel.schedule.data.consumers == PINGPONG
            halves = [h for h in kernel.block.ops if isinstance(h, ac.ProducerOp | ac.ConsumerOp)]
            if halves and (self.force or wanted):
                alternate(kernel)


def alternate(kernel: tile.KernelOp) -> None:
    """Give a kernel two consumers."""
    consumers = [op for op in kernel.block.ops if isinstance(op, ac.ConsumerOp)]
    producers = [op for op in kernel.block.ops if isinstance(op, ac.ProducerOp)]
    if len(consumers) == 2:
        return  # text that has been through this
    if len(consumers) != 1 or len(producers) != 1:
        fail(kernel, f"consumers = {PINGPONG} wants one producer and one consumer")
    first = consumers[0]
    loop = loop_over_tiles(first)
    inbound = [ring for ring, op in pipelines_of(kernel).items() if is_inbound(op)]
    turns = [ring for ring in inbound if not once(loop, ring)]
    for ring in set(inbound) - set(turns):
        stages = pipelines_of(kernel)[ring].stages.value.data
        pipelines_of(kernel)[ring].stages = IntegerAttr(2 * stages, i64)
    second = first.clone()
    kernel.block.insert_op_after(second, first)
    own_pipelines(kernel, second)
    for number, consumer in enumerate((first, second)):
        take_alternate(consumer, number, inbound, turns)


def loop_over_tiles(consumer: ac.ConsumerOp) -> scf.ForOp:
    """The loop of a consumer over tiles, in which it does everything."""
    loops = [
        op
        for op in consumer.body.block.ops
        if isinstance(op, scf.ForOp) and any(isinstance(inner, tile.GridOp) for inner in op.body.block.ops)
    ]
    outside = [op for op in consumer.body.block.ops if op not in loops and any(True for _ in steps(op))]
    if len(loops) != 1 or outside:
        fail(consumer, f"consumers = {PINGPONG} wants a loop over tiles, in which all slots are used: persistent = 1")
    return loops[0]


def once(loop: scf.ForOp, ring: str) -> bool:
    """Is each tile's share of a ring one slot, outside of other loops?"""
    ops = [op for op in loop.body.block.ops if takes(op, ring, ac.WaitOp)]
    return len(ops) == 1 and isinstance(ops[0], ac.WaitOp)


def own_pipelines(kernel: tile.KernelOp, consumer: ac.ConsumerOp) -> None:
    """What a consumer fills it gets a pipeline of its own for."""
    pipelines = pipelines_of(kernel)
    names: dict[str, str] = {}
    for ring, old in pipelines.items():
        if not is_inbound(old):
            names[ring] = next(n for n in (f"{ring}_{i}" for i in range(1, 99)) if n not in pipelines)
            new = old.clone()
            new.sym_name = StringAttr(names[ring])
            kernel.block.insert_op_after(new, old)
    for op in consumer.walk():
        named = op.properties.get("pipeline")
        if isinstance(named, SymbolRefAttr) and named.root_reference.data in names:
            op.properties["pipeline"] = SymbolRefAttr(names[named.root_reference.data])
        blocks = [block for region in op.regions for block in region.blocks]
        for value in [*op.results, *(arg for block in blocks for arg in block.args)]:
            if isinstance(value.type, ac.CursorType | ac.SlotType) and ring_name(value) in names:
                renamed: Attribute = type(value.type)(SymbolRefAttr(names[ring_name(value)]), value.type.side)
                Rewriter.replace_value_with_new_type(value, renamed)


def take_alternate(consumer: ac.ConsumerOp, number: int, inbound: list[str], turns: list[str]) -> None:
    """Make a consumer number 0 or 1 of two."""
    loop = loop_over_tiles(consumer)
    block, body = consumer.body.block, loop.body.block
    emit = Emitter(block, loop, loop)
    do = Arithmetic(emit)
    counts = {ring: do.value(tickets_of(loop, ring, ac.WaitOp, do)) for ring in inbound}
    step, end, start = loop.step, loop.ub, loop.lb
    if number == 1:
        some = emit.value(arith.CmpiOp(start, end, "slt"))
        emit(ac.PassTurnOp(0, some))
    add_turn(loop, number, turns)
    last = body.last_op
    assert isinstance(last, scf.YieldOp)
    for position, value in enumerate(loop.iter_args):
        if isinstance(value.type, ac.CursorType) and ring_name(value) in counts:
            count, end_value = counts[ring_name(value)], last.operands[position]
            last.operands[position] = skip(Emitter(body, loop, last), end_value, count)
            if number == 1:
                loop.operands[3 + position] = skip(emit, value, count)
    if number == 1:
        loop.operands[0] = emit.value(arith.AddiOp(start, step))
    loop.operands[2] = do.value(do.multiply(known(step), 2))


def skip(emit: Emitter, cursor: SSAValue, count: SSAValue) -> SSAValue:
    """The cursor behind the other's tickets."""
    op = emit(ac.SkipOp(cursor, count))
    op.next.name_hint = f"{ring_name(cursor)}_skipped"
    return op.next


def add_turn(loop: scf.ForOp, number: int, turns: list[str]) -> None:
    """A tile's waits for what two consumers read in turn are between taking the turn and passing it."""
    body = loop.body.block
    waiting: list[Operation] = [op for op in body.ops if any(takes(op, ring, ac.WaitOp) for ring in turns)]
    if not waiting:
        fail(loop, f"consumers = {PINGPONG} wants a main loop of each tile, and tiles here have none")
    Emitter(body, waiting[0], waiting[0])(ac.AwaitTurnOp(number))
    behind = waiting[-1].next_op
    assert behind is not None
    emit = Emitter(body, waiting[-1], behind)
    following = emit.value(arith.AddiOp(body.args[0], loop.step))
    more = emit.value(arith.CmpiOp(following, loop.ub, "slt"))
    more.name_hint = "more"
    emit(ac.PassTurnOp(1 - number, more))
