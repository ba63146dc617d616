"""`place-roles`: one set of warps runs both halves, or each half has warps of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from emmy.dialects import async_copy as ac
from emmy.dialects import mma
from emmy.dialects.tile import KernelOp
from emmy.passes.merge_halves import Merger
from emmy.passes.protocol import fail
from emmy.schedule_limits import register_split
from emmy.schedules import CONSUMERS, Schedule
from emmy.targets import Target, get_target


@dataclass(frozen=True)
class PlaceRoles(ModulePass):
    """Give the producer and the consumer of every kernel to one role, or to two.

    Accepts halves that `verify-pipelines` accepts. `unified`: both become `async_copy.role "main" warps N`. The producer's
    copies of a ring become a stream (a loop, or one ticket);
    the consumer keeps its loops and carries each stream's next index and cursor through them. Guarantees: no producer and no
    consumer is left; a prologue as deep as the occupancy allows; in loops, what earlier releases freed is issued right after
    a wait (`sites = eager`: after each wait; `first`: after the first wait of a loop body, in one commit group); acquire and
    commit are predicated where the stream may have ended; `drain` follows the last use of a ring at each level.

    `specialized`: the consumer becomes `role "consumer" warps N` (a second one, of `alternate-tiles`, `"consumer_1"`), the
    producer `role "producer" warps P` after it, with the schedule's `producer_warps`. Their ops stay as they are, but a release
    moves up to the last read of its slot. Where `target` has `setmaxnreg` and both are whole warpgroups, the roles say how many
    registers their threads have: what the schedule says, or `emmy.schedule_limits.register_split`; more than the CTA has is an
    EmmyError.

    `mode` and `sites` come from the kernel's schedule (`roles`, `sites`) where they are not given. N is the product of the
    schedule's warp grid; without a schedule the consumer's attribute `warps`, else the largest grid of its `mma.warp` ops.

        async_copy.producer {                              async_copy.role "main" warps 8 {
          for %k = %lb to %ub step %s {                      // prologue: stages - 1 tickets
            acquire; copy %a[%m, %k]; commit                 for %k = %lb to %ub step %s {
          }                                                    wait
        }                                            ->        %i = %k + (stages - 1) * %s;  %more = %i < %ub
        async_copy.consumer {                                  acquire if %more;  scf.if %more { copy %a[%m, %i] }
          for %k = %lb to %ub step %s {                        commit if %more
            wait; mma.load ..; release                         mma.load ..; release
          }                                                  }
        }                                                    drain
                                                           }
    """

    name = "place-roles"
    mode: Literal["unified", "specialized"] | None = None
    sites: Literal["eager", "first"] | None = None
    target: str = "sm_90a"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in list(op.walk()):
            if isinstance(kernel, KernelOp):
                self._place(kernel)

    def _place(self, kernel: KernelOp) -> None:
        producers = [op for op in kernel.block.ops if isinstance(op, ac.ProducerOp)]
        consumers = [op for op in kernel.block.ops if isinstance(op, ac.ConsumerOp)]
        if not producers and not consumers:
            return
        schedule = kernel.schedule.data if kernel.schedule else Schedule()
        mode = self.mode or schedule.roles
        if len(producers) > 1 or not 1 <= len(consumers) <= 2 or (len(consumers) == 2 and mode == "unified"):
            fail(
                kernel,
                "a kernel has one async_copy.consumer, or two that are roles of their own, and at most one async_copy.producer",
            )
        sites = self.sites or schedule.sites
        warps = _warps(kernel, consumers[0])
        if mode == "specialized" and producers:
            roles = _specialize(kernel, producers[0], consumers, warps, get_target(self.target))
        else:
            roles = [_unify(kernel, producers, consumers[0], warps, sites)]
        halves: list[Operation] = [*producers, *consumers]
        anchor = max(halves, key=list(kernel.block.ops).index)
        for role in roles:
            kernel.block.insert_op_before(role, anchor)
        for half in halves:
            half.detach()
            half.erase()


def _unify(
    kernel: KernelOp, producers: Sequence[ac.ProducerOp], consumer: ac.ConsumerOp, warps: int, sites: str
) -> ac.RoleOp:
    """Both halves as one role."""
    body = Block()
    fills = producers[0].body.block if producers else Block()
    Merger(kernel, sites).merge(fills, consumer.body.block, body)
    _drop_unused(body)
    role = ac.RoleOp("main", warps, Region(body))
    role.location = consumer.location
    return role


def _specialize(
    kernel: KernelOp, producer: ac.ProducerOp, consumers: Sequence[ac.ConsumerOp], warps: int, target: Target
) -> list[ac.RoleOp]:
    """Each half as a role of its own; the consumers' warps come first, so that warpgroups belong to one role."""
    schedule = kernel.schedule.data if kernel.schedule else Schedule(block=(16 * warps, 16, 16), warps=(warps, 1))
    if len(consumers) != schedule.groups:
        schedule = replace(schedule, consumers=CONSUMERS[len(consumers) - 1])
    split = register_split(schedule, target)
    if isinstance(split, str):
        fail(kernel, split)
    roles: list[ac.RoleOp] = []
    for number, consumer in enumerate(consumers):
        _release_early(consumer)
        name = f"consumer_{number}" if number else "consumer"
        roles.append(ac.RoleOp(name, warps, consumer.detach_region(0), split.consumer if split else None))
    registers = split.producer if split else None
    roles.append(ac.RoleOp("producer", schedule.producer_warps, producer.detach_region(0), registers))
    for role, half in zip(roles, (*consumers, producer), strict=True):
        role.location = half.location
    return roles


def _release_early(consumer: ac.ConsumerOp) -> None:
    """Move each release up to where its slot has been read: the producer may refill it while products still run.

    Products that read a slot in place are waited for in the block where they begin. So behind a loop that reads it the slot is
    free, whatever is waited for later.
    """
    for op in list(consumer.walk()):
        if not isinstance(op, ac.ReleaseOp):
            continue
        block, before = op.parent_block(), op.prev_op
        while before is not None and not _names(before, op.slot):
            before = before.prev_op
        if before is None or not before.regions or op.slot in before.results:
            before = op.prev_op
            while before is not None and not _needs_slot(before, op.slot):
                before = before.prev_op
        if block is not None and before is not None and before is not op.prev_op:
            op.detach()
            block.insert_op_after(op, before)


def _names(op: Operation, slot: SSAValue) -> bool:
    """Whether an op, or one inside it, makes a slot or uses it."""
    return any(slot in (*inner.operands, *inner.results) for inner in op.walk())


def _needs_slot(op: Operation, slot: SSAValue) -> bool:
    """Whether a slot may not be released before an op: one that names it, or waits for products that read it in place."""
    return _names(op, slot) or any(isinstance(inner, mma.WaitOp | mma.WaitOlderOp) for inner in op.walk())


def _drop_unused(body: Block) -> None:
    """Index arithmetic that nothing reads (the index after a stream's last ticket) goes."""
    for op in reversed([op for outer in body.ops for op in outer.walk()]):
        if op.name.startswith("arith.") and not any(result.uses for result in op.results):
            op.detach()
            op.erase()


def _warps(kernel: KernelOp, consumer: ac.ConsumerOp) -> int:
    grids = {op.get_grid() for op in consumer.walk() if isinstance(op, mma.WarpOp)}
    given = consumer.attributes.get("warps")
    if kernel.schedule:
        warps = prod(kernel.schedule.data.warps)
    elif isinstance(given, IntegerAttr):
        warps = given.value.data
    else:
        warps = max((prod(grid) for grid in grids), default=1)
    for grid in grids:
        if prod(grid) != warps:
            fail(consumer, f"the consumer has {warps} warps, but an mma.warp of it splits {prod(grid)} as {list(grid)}")
    return warps
