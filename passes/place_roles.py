"""`place-roles`: one set of warps runs both halves."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.ir import Block, Operation, Region
from xdsl.passes import ModulePass

from emmy.dialects import async_copy as ac
from emmy.dialects import mma
from emmy.dialects.tile import KernelOp
from emmy.passes.merge_halves import Merger
from emmy.passes.protocol import fail


@dataclass(frozen=True)
class PlaceRoles(ModulePass):
    """Merge the producer and the consumer of every kernel into one role, `async_copy.role "main" warps N`.

    Accepts halves that `verify-pipelines` accepts. The producer's copies of a ring become a stream (a loop, or one ticket);
    the consumer keeps its loops and carries each stream's next index and cursor through them. Guarantees: no producer and no
    consumer is left; a prologue as deep as the occupancy allows; in loops, what earlier releases freed is issued right after
    a wait (`sites = eager`: after each wait; `first`: after the first wait of a loop body, in one commit group); acquire and
    commit are predicated where the stream may have ended; `drain` follows the last use of a ring at each level.

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

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in list(op.walk()):
            if isinstance(kernel, KernelOp):
                self._place(kernel)

    def _place(self, kernel: KernelOp) -> None:
        producers = [op for op in kernel.block.ops if isinstance(op, ac.ProducerOp)]
        consumers = [op for op in kernel.block.ops if isinstance(op, ac.ConsumerOp)]
        if not producers and not consumers:
            return
        if len(producers) > 1 or len(consumers) != 1:
            fail(kernel, "a kernel has one async_copy.consumer and at most one async_copy.producer")
        schedule = kernel.schedule.data if kernel.schedule else None
        mode = self.mode or (schedule.roles if schedule else "unified")
        if mode != "unified":
            fail(
                kernel,
                f"place-roles places kernels as unified only, not as '{mode}': set roles = unified in the schedule",
            )
        sites = self.sites or (schedule.sites if schedule else "eager")
        warps = _warps(kernel, consumers[0])
        body = Block()
        fills = producers[0].body.block if producers else Block()
        Merger(kernel, sites).merge(fills, consumers[0].body.block, body)
        _drop_unused(body)
        role = ac.RoleOp("main", warps, Region(body))
        role.location = consumers[0].location
        halves: list[Operation] = [*producers, *consumers]
        anchor = max(halves, key=list(kernel.block.ops).index)
        kernel.block.insert_op_before(role, anchor)
        for half in halves:
            half.detach()
            half.erase()


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
