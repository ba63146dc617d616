"""`carry-products`: the last products of an iteration of a main loop stay in flight while the next one begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.traits import is_side_effect_free

from emmy.dialects import async_copy as ac
from emmy.dialects import mma, tile
from emmy.dialects.common import constant
from emmy.passes.emitter import Emitter


@dataclass(frozen=True)
class CarryProducts(ModulePass):
    """Contract: rewrites main loops of `async_copy.consumer`s; products are issued in the same order, so no result changes.

    Accepts level 3 between `issue-products` and `place-roles`, with roles apart. By default it acts where the schedule says
    `carry = 1`; `force` acts everywhere. It looks for loops that are known to run, whose body waits for one slot, issues one
    group of products to one sum that it carries, waits for it (`mma.wait 0`), releases the slot, and does nothing else.

    Guarantees: the first iteration stands before the loop. Each further one issues its products, waits for the group before
    them (`mma.wait_older`), and releases the slot that this one read, which the loop carries; the last group is waited for
    behind the loop. A slot is held for one iteration longer, so the ring wants two stages; loops of rings with one stay.

    Why: between the end of an iteration's products and the first of the next one a lone warpgroup leaves the tensor cores idle.

    Before:                                         After:
        scf.for %k = %c0 to %K step %s (%sum) {         %a = wait @ab;  issue .. %zero; commit;  %t = mma.wait_older ..
          %a = wait @ab                                 scf.for %k = %s to %K step %s (%sum = %t, %o = %a) {
          fence; %t = issue .. %sum; commit               %a = wait @ab
          %u = mma.wait 0 %t                              fence; %t = issue .. %sum; commit
          release @ab, %a                                 %u = mma.wait_older %t
          yield %u                                        release @ab, %o
        }                                                 yield %u, %a
                                                        }
                                                        %v = mma.wait 0 ..;  release the last slot
    """

    name = "carry-products"
    force: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in [k for k in op.walk() if isinstance(k, tile.KernelOp)]:
            schedule = kernel.schedule.data if kernel.schedule else None
            if not self.force and (schedule is None or not schedule.carry):
                continue
            stages = {p.sym_name.data: p.stages.value.data for p in kernel.block.ops if isinstance(p, ac.PipelineOp)}
            for consumer in [c for c in kernel.block.ops if isinstance(c, ac.ConsumerOp)]:
                for loop in [x for x in consumer.walk() if isinstance(x, scf.ForOp)]:
                    parts = parts_of(loop)
                    if parts is not None and stages[parts.ring] > 1:
                        carry(parts)


@dataclass(frozen=True)
class Parts:
    """The ops of a main loop that change: the wait for its slot, that for its sum, the release, and the sum's position."""

    loop: scf.ForOp
    slot: ac.WaitOp
    sum: mma.WaitOp
    release: ac.ReleaseOp
    position: int

    @property
    def ring(self) -> str:
        """The pipeline of the slot."""
        return self.slot.pipeline.root_reference.data


OTHERS = (mma.LoadOp, mma.FenceOp, mma.IssueOp)
"""What may stand in a main loop beside what `Parts` names, a commit, and ops without effects."""


def parts_of(loop: scf.ForOp) -> Parts | None:
    """The parts of a loop as `CarryProducts` describes it, or None."""
    first, last, step = (constant(value) for value in (loop.lb, loop.ub, loop.step))
    if first is None or last is None or step is None or first >= last:
        return None
    ops, end = list(loop.body.block.ops), loop.body.block.last_op
    kinds = ac.WaitOp, mma.WaitOp, ac.ReleaseOp, mma.CommitOp
    found = [[op for op in ops if isinstance(op, kind)] for kind in kinds]
    known = {op for ops in found for op in ops} | {op for op in ops if isinstance(op, OTHERS)}
    if any(len(ops) != 1 for ops in found) or not isinstance(end, scf.YieldOp):
        return None
    if any(op not in known and op is not end and (op.regions or not is_side_effect_free(op)) for op in ops):
        return None
    ((slot,), (total,), (release,), _) = found
    assert isinstance(slot, ac.WaitOp)
    assert isinstance(total, mma.WaitOp)
    assert isinstance(release, ac.ReleaseOp)
    positions = [number for number, value in enumerate(end.operands) if value is total.result]
    if total.pending.value.data or len(positions) != 1 or release.slot is not slot.slot:
        return None
    uses = [use.operation for use in (*loop.body.block.args[1 + positions[0]].uses, *total.result.uses)]
    if len(uses) != 2 or not isinstance(uses[0], mma.IssueOp):
        return None
    return Parts(loop, slot, total, release, positions[0])


def carry(parts: Parts) -> None:
    """Rewrite one loop."""
    loop, block = parts.loop, parts.loop.parent
    assert isinstance(block, Block)
    emit = Emitter(block, loop, loop)
    carried, slot = iteration(emit, parts, loop.lb, loop.iter_args, None)
    body = Block(arg_types=[loop.body.block.args[0].type, *(v.type for v in carried), slot.type])
    for old, new in zip(loop.body.block.args, body.args, strict=False):
        new.name_hint = old.name_hint
    body.args[-1].name_hint = f"{parts.ring}_before"
    inner = emit.inside(body)
    ends, last = iteration(inner, parts, body.args[0], body.args[1:-1], body.args[-1])
    inner.at(loop)(scf.YieldOp(*ends, last))
    first, step = constant(loop.lb), constant(loop.step)
    assert first is not None
    assert step is not None
    second = emit.at(loop).value(arith.ConstantOp.from_int_and_width(first + step, IndexType()))
    new = emit(scf.ForOp(second, loop.ub, loop.step, [*carried, slot], body))
    total = emit.at(parts.sum)(mma.WaitOp(0, new.results[parts.position]))
    emit.at(parts.release)(ac.ReleaseOp(new.results[-1]))
    results: list[SSAValue] = list(new.results[:-1])
    results[parts.position] = total.result
    for old, result in zip(loop.results, results, strict=True):
        result.name_hint = old.name_hint
        old.replace_all_uses_with(result)
    loop.detach()
    loop.erase()


def iteration(
    emit: Emitter, parts: Parts, counter: SSAValue, args: Sequence[SSAValue], before: SSAValue | None
) -> tuple[list[SSAValue], SSAValue]:
    """The body once more, which leaves its products in flight and releases the slot `before`: what it carries, and its slot."""
    old = parts.loop.body.block
    values: dict[SSAValue, SSAValue] = dict(zip(old.args, (counter, *args), strict=True))
    ops: list[Operation] = [op for op in old.ops if not isinstance(op, scf.YieldOp)]
    for op in ops:
        emit.at(op)
        if op is parts.sum:
            kept = emit(mma.WaitOlderOp(values[parts.sum.sum]))
            kept.result.name_hint = parts.sum.result.name_hint
            values[parts.sum.result] = kept.result
        elif op is parts.release:
            if before is not None:
                emit(ac.ReleaseOp(before))
        else:
            emit(op.clone(values))
    last = old.last_op
    assert last is not None
    return [values.get(value, value) for value in last.operands], values[parts.slot.slot]
