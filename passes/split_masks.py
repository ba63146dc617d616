"""`split-masks`: a loop with masks becomes iterations that need them and iterations that do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.traits import is_side_effect_free

from emmy.dialects import async_copy as ac
from emmy.dialects import mma, tile
from emmy.dialects.common import constant
from emmy.passes.emitter import Emitter
from emmy.passes.linear_forms import IndexSums
from emmy.passes.masks import (
    HIDDEN_IS_IDENTITY,
    NEEDS_MASKS,
    Edges,
    Mask,
    edges_of_all_warps,
    edges_of_sight,
    edges_of_warp,
    masks_of,
)
from emmy.passes.protocol import is_cursor
from emmy.schedules import WARPGROUP_ATOM, WARPGROUP_WARPS, Schedule

Carried = Sequence[SSAValue]


@dataclass(frozen=True)
class SplitMasks(ModulePass):
    """Contract: loops of `async_copy.consumer`s are split where their masks begin and end; no result changes, bit for bit.

    A *mask* is a `mma.map select` whose condition compares coordinates (`mma.coord`, and sums of them) that move with the
    loop's variable by 1 a step of 1. Accepts canonical level 3. Loops without masks, or whose step is no constant, stay, as do
    masked loops that this pass made (`emmy.needs_masks`).

    Guarantees: the loop becomes several with the same iterations in the same order; any of them may run not at all. The
    producer's loop stays one. With `mode = loops` (by default the schedule's `masks`) they are masked, free, masked: in the free
    one every mask is known to be true for all warps, and is gone with what only it needed; so all warps split alike.

    Where the loop says `emmy.hidden_is_identity`, warps leave out what they do not see (no row of the warp does):
    * `unified`, where barriers make all warps go through all iterations: masked bodies wait first and release last, and compute
      in between under a comparison of index values that is uniform over the warp;
    * `specialized` (by default the schedule's `roles`): before the first and behind the last iteration that the warp sees are
      loops that wait and release, and do nothing else.

    `mode = guard`, for specialized kernels: all that a warp sees is one loop, and the masks stand under a condition: the
    warp's rows need them. Half the code, and fewer registers, for a branch an iteration.

    "The warp" above is `together` warps that follow each other, of which each leaves out what none of them sees: four where the
    schedule's atom is `wgmma`, whose products a warpgroup issues together.

    Before:                                                   After (loops, unified):
        scf.for %j = %lo to %hi step %c64 .. {                    scf.for %j = %lo to %b step %c64 .. {
          wait @k; .. %s ..; release @k                             wait @k; .. %s .. uses of %s; release @k; ..
          %key = mma.coord 1 from %j                              }
          %seen = mma.map ge %pos, %key                           scf.for %j = %b to %hi step %c64 .. {
          %x = mma.map select %seen, %s, %hidden                    wait @k; wait @v
          .. uses of %x                                             %sees = arith.cmpi slt, %j, %end
        } {emmy.hidden_is_identity}                                 scf.if %sees -> .. { as before } else { what is carried }
                                                                    release @k; release @v
                                                                  }
    """

    name = "split-masks"
    mode: Literal["loops", "guard"] | None = None
    roles: Literal["unified", "specialized"] | None = None
    together: int = 1

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in [k for k in op.walk() if isinstance(k, tile.KernelOp)]:
            schedule = kernel.schedule.data if kernel.schedule else Schedule()
            apart = (self.roles or schedule.roles) == "specialized"
            guard = apart and (self.mode or schedule.masks) == "guard"
            for consumer in [c for c in kernel.block.ops if isinstance(c, ac.ConsumerOp)]:
                for loop in [inner for inner in consumer.walk() if isinstance(inner, scf.ForOp)]:
                    masks = masks_of(loop)
                    if masks:
                        together = WARPGROUP_WARPS if schedule.atom == WARPGROUP_ATOM else self.together
                        Splitting(loop, masks, apart, guard, together).run()


class Splitting:
    """Writes the loops of one loop, front to back; `at` is where the next one begins, `carried` what it starts from."""

    def __init__(self, loop: scf.ForOp, masks: Sequence[Mask], apart: bool, guard: bool, together: int):
        block, step = loop.parent, constant(loop.step)
        assert isinstance(block, Block)
        assert step is not None
        self.loop, self.apart, self.guard, self.step = loop, apart, guard, step
        self.emit = Emitter(block, loop, loop)
        self.do = IndexSums(self.emit)
        self.masks = masks if together == 1 else [mask.together(together, self.do) for mask in masks]
        self.trips = self.do.steps(self.do.subtract(loop.ub, loop.lb), step)
        self.at: SSAValue = loop.lb
        self.carried: Carried = loop.iter_args
        skips = HIDDEN_IS_IDENTITY in loop.attributes and only_waits(loop)
        self.sight = edges_of_sight(loop, self.masks, self.do) if skips else Edges(None, None)

    def run(self) -> None:
        """Replace the loop."""
        if self.guard:
            self.one_loop()
        else:
            self.three_loops()
        for old, new in zip(self.loop.results, self.carried, strict=True):
            new.name_hint = old.name_hint
            old.replace_all_uses_with(new)
        self.loop.detach()
        self.loop.erase()

    def three_loops(self) -> None:
        """Masked, free, masked; where roles are apart with loops before and behind for what the warp does not see."""
        do, sight, free = self.do, self.sight, edges_of_all_warps(self.masks, self.do)
        first = do.number(0) if free.start is None else do.least(self.count_to(free.start), self.trips)
        last = self.trips if free.end is None else do.most(do.least(self.count_to(free.end), self.trips), first)
        if self.apart and sight.start is not None:
            self.write(idle_copy, self.place(do.least(self.count_to(sight.start), first)))
        if free.start is not None:
            self.write(self.masked_copy, self.place(first))
        self.write(self.free_copy, self.loop.ub if free.end is None else self.place(last))
        if free.end is None:
            return
        if self.apart and sight.end is not None:
            self.write(self.masked_copy, self.place(do.most(do.least(self.count_to(sight.end), self.trips), last)))
            self.write(idle_copy, self.loop.ub)
        else:
            self.write(self.masked_copy, self.loop.ub)

    def one_loop(self) -> None:
        """All that the warp sees, with masks under a condition; loops before and behind for what it does not see."""
        do, sight, first = self.do, self.sight, self.do.number(0)
        if sight.start is not None:
            first = do.least(self.count_to(sight.start), self.trips)
            self.write(idle_copy, self.place(first))
        if sight.end is None:
            self.write(self.guarded_copy, self.loop.ub)
        else:
            self.write(self.guarded_copy, self.place(do.most(do.least(self.count_to(sight.end), self.trips), first)))
            self.write(idle_copy, self.loop.ub)

    def count_to(self, edge: SSAValue) -> SSAValue:
        """Iterations before an edge."""
        return self.do.steps(self.do.subtract(edge, self.loop.lb), self.step)

    def place(self, count: SSAValue) -> SSAValue:
        """The loop's variable after so many iterations."""
        return self.do.add(self.loop.lb, self.do.scaled(count, self.step))

    def write(self, copy: Callable[[scf.ForOp], None], end: SSAValue) -> None:
        """The next loop: a copy of the old one, changed by `copy`, up to `end`."""
        old = self.loop.body.block
        body = Block(arg_types=[arg.type for arg in old.args])
        values: dict[SSAValue, SSAValue] = dict(zip(old.args, body.args, strict=True))
        for one, other in zip(old.args, body.args, strict=True):
            other.name_hint = one.name_hint
        for op in old.ops:
            body.add_op(op.clone(values))
        new = scf.ForOp(self.at, end, self.loop.step, list(self.carried), body)
        new.attributes = {name: value for name, value in self.loop.attributes.items() if name != HIDDEN_IS_IDENTITY}
        copy(new)
        self.emit(new)
        self.at, self.carried = end, new.results

    # ---- what becomes of a copy

    def selects(self, new: scf.ForOp) -> list[Operation]:
        """The masks' selects in a copy of the loop."""
        places, ops = {op: number for number, op in enumerate(self.loop.body.block.ops)}, list(new.body.block.ops)
        return [ops[places[mask.select]] for mask in self.masks]

    def free_copy(self, new: scf.ForOp) -> None:
        """All masks are true: without them."""
        for select in self.selects(new):
            select.results[0].replace_all_uses_with(select.operands[1])
        erase_unused(new)

    def masked_copy(self, new: scf.ForOp) -> None:
        """Masks may be false; where all warps go through all iterations, those that see nothing compute nothing."""
        new.attributes[NEEDS_MASKS] = UnitAttr()
        sight = self.sight
        if not self.apart and (sight.start is not None or sight.end is not None):
            skip_unless(new, sight)

    def guarded_copy(self, new: scf.ForOp) -> None:
        """Masks stand under a condition of the warp; what comes after one as the next one's value goes with it."""
        new.attributes[NEEDS_MASKS] = UnitAttr()
        chains: list[list[tuple[Mask, Operation]]] = []
        for mask, select in zip(self.masks, self.selects(new), strict=True):
            before = chains[-1][-1][1].results[0] if chains else select.results[0]
            if before is select.operands[1] and len(list(before.uses)) == 1:
                chains[-1].append((mask, select))
            else:
                chains.append([(mask, select)])
        for chain in chains:
            guard_chain(new, [s for _, s in chain], edges_of_warp([m for m, _ in chain], self.do))
        erase_unused(new)


def only_waits(loop: scf.ForOp) -> bool:
    """Are waits and releases of slots all that a body does beside computing?"""
    return all(
        isinstance(op, ac.WaitOp | ac.ReleaseOp | mma.LoadOp | scf.YieldOp) or is_side_effect_free(op)
        for op in loop.body.block.ops
    ) and all(is_cursor(arg) or isinstance(arg.type, mma.FragmentType) for arg in loop.body.block.args[1:])


def erase_unused(loop: scf.ForOp) -> None:
    """Erase what computes, or is loaded, for nobody."""
    for op in reversed(list(loop.body.block.ops)):
        unused = op.results and all(result.first_use is None for result in op.results)
        if unused and (is_side_effect_free(op) or isinstance(op, mma.LoadOp)):
            op.detach()
            op.erase()


def idle_copy(new: scf.ForOp) -> None:
    """Only waits and releases: fragments are carried as they are."""
    block = new.body.block
    last = block.last_op
    assert last is not None
    for number, argument in enumerate(block.args[1:]):
        if isinstance(argument.type, mma.FragmentType):
            last.operands[number] = argument
    erase_unused(new)


def guard_chain(loop: scf.ForOp, selects: Sequence[Operation], free: Edges) -> None:
    """Selects, each of the result of the one before, in a branch that is taken where the warp is not between `free`'s edges."""
    block, variable = loop.body.block, loop.body.block.args[0]
    emit = Emitter(block, selects[-1], selects[-1].next_op)
    tests = [("slt", free.start), ("sge", free.end)]
    beyond = [emit.value(arith.CmpiOp(variable, edge, test)) for test, edge in tests if edge is not None]
    needed = beyond[0] if len(beyond) == 1 else emit.value(arith.OrIOp(beyond[0], beyond[1]))
    masked, free_of_masks = Block(), Block()
    inner, values = emit.inside(masked), dict[SSAValue, SSAValue]()
    wanted: set[Operation] = set()
    work: list[Operation] = list(selects)
    while work:
        op = work.pop()
        if op not in wanted:
            wanted.add(op)
            sources = op.operands if op not in selects else op.operands[:1]
            work += [v.owner for v in sources if isinstance(v.owner, Operation) and v.owner.parent is block]
    for op in [op for op in block.ops if op in wanted]:
        inner.at(op)(op.clone(values))
    result = selects[-1].results[0]
    inner(scf.YieldOp(values[result]))
    emit.inside(free_of_masks)(scf.YieldOp(selects[0].operands[1]))
    chosen = emit(scf.IfOp(needed, [result.type], Region(masked), Region(free_of_masks))).results[0]
    chosen.name_hint = result.name_hint
    result.replace_all_uses_with(chosen)


def skip_unless(loop: scf.ForOp, sight: Edges) -> None:
    """Put all that a body computes under the condition that the warp sees the iteration; waits come first, releases last."""
    block = loop.body.block
    ops = list(block.ops)
    last = ops.pop()
    waits = [op for op in ops if isinstance(op, ac.WaitOp)]
    releases = [op for op in ops if isinstance(op, ac.ReleaseOp)]
    work = [op for op in ops if op not in waits and op not in releases]
    for op in (*ops, last):
        op.detach()
    emit = Emitter(block, loop)
    for wait in waits:
        emit(wait)
    tests = [("sge", sight.start), ("slt", sight.end)]
    inside = [emit.value(arith.CmpiOp(block.args[0], edge, test)) for test, edge in tests if edge is not None]
    sees = inside[0] if len(inside) == 1 else emit.value(arith.AndIOp(inside[0], inside[1]))
    taken, skipped = Block(), Block()
    for op in work:
        taken.add_op(op)
    computed = [n for n, value in enumerate(last.operands) if isinstance(value.type, mma.FragmentType)]
    Emitter(taken, last)(scf.YieldOp(*(last.operands[n] for n in computed)))
    Emitter(skipped, last)(scf.YieldOp(*(block.args[n + 1] for n in computed)))
    types = [last.operands[n].type for n in computed]
    chosen = emit(scf.IfOp(sees, types, Region(taken), Region(skipped)))
    for release in releases:
        emit(release)
    ends = list(last.operands)
    for n, result in zip(computed, chosen.results, strict=True):
        result.name_hint = ends[n].name_hint
        ends[n] = result
    emit.at(last)(scf.YieldOp(*ends))
    last.erase()
