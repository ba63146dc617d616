"""`lower-tile`: level 2 to level 3. Loads become rings of shared memory, tiles become fragments of warps.

The kernel's loop nest is written twice: once for the producer (`tile_producer`), which keeps the loads as copies and what they
need, and once for the consumer (`tile_consumer`), which keeps everything else. `tile_plan` decides which pipelines there are,
`tile_rings` which loads share one.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Region
from xdsl.passes import ModulePass
from xdsl.traits import is_side_effect_free

from emmy.dialects import async_copy, tile
from emmy.lowering.tile_consumer import ConsumerHalf
from emmy.lowering.tile_plan import make_plan
from emmy.lowering.tile_producer import ProducerHalf
from emmy.lowering.tile_rings import touches_tiles
from emmy.passes.bounds import note_overruns
from emmy.passes.emitter import Emitter
from emmy.targets import TARGETS, get_target


@dataclass(frozen=True)
class LowerTile(ModulePass):
    """Contract: rewrites the body of every `tile.kernel` that holds tiles into one `async_copy.producer` and one
    `async_copy.consumer`.

    Accepts kernels with a schedule (without products it may be missing) and, over tiles of rank 1 or 2: `tile.load`,
    `fill`, `dot` (of loaded operands; a may be computed), `map`, `cast`, `reduce` of columns, `coord`, `squeeze` before a
    `store`, in any nest of `scf.for`; index arithmetic and `tile.read` anywhere. Other tile ops are an EmmyError that
    names them.

    Guarantees:
    * each load is a field of an inbound pipeline (of the cluster, if it is `shared`); loads of one loop body with one place of
      last use share a pipeline with the schedule's `stages`, loads outside loops have pipelines of one slot;
    * a slot is waited for just before its first use and released just after its last one; every pipeline is drained at
      the end of the producer, and in the consumer after the outermost op that uses it;
    * a tile value is a fragment of place c: rows split over warp axis 0, columns over axis 1, sizes of 1 held by all; what
      then belongs to whole rows passes through `internal` pipelines of one slot (`tile_exchange`), and so do sums over a
      cluster; a
      `dot` is one `mma.mma` for each k-step of the atom, in order of k; a computed operand a is converted to place a, as
      a whole, and cut into k-steps (no instruction: the layouts are equal); with the schedule's `hold`, one that is loaded
      outside of the loop around the `dot` is read before that loop, once;
    * a store goes through an outbound pipeline of one slot (two, for parts of `store_columns`) where the schedule's
      epilogue is `shared`, unless that is larger than both the loops' rings and the memory of a CTA (of `target`, by default
      of the smallest one): then, and with epilogue `direct`, it is `mma.store_global`, as it is for one row or column;
    * an accumulation policy that is more than the types say (hybrid) stays on `mma.mma`; with `overflow = redo` the loop is
      followed by its second computation in f32 (`tile_redo`), for sums that are not finite;
    * views of which a box may pass the end, although the tile divides the size, are in the kernel's `emmy.overruns`; those of
      which a box may lie past the end of a dimension before the last two, in `emmy.outer_overruns`.

    Before:
        %acc = scf.for %k = %c0 to %K step %c64 iter_args(%s = %zero) -> (!tile.tile<128x256xf32>) {
          %x = tile.load %a[%m, %k] : ...
          %y = tile.load %b[%n, %k] : ...
          %d = tile.dot %x, %y into %s transpose_b : ...
          scf.yield %d
        }
    After:
        async_copy.pipeline @ab stages 3 {"a" = !tile.tile<128x64xf16>, "b" = !tile.tile<256x64xf16>}
        async_copy.producer {
          scf.for ... { acquire @ab; copy %a[%m, %k] -> %slot["a"]; copy %b[%n, %k] -> %slot["b"]; commit @ab }
          async_copy.drain @ab
        }
        async_copy.consumer {
          scf.for ... { wait @ab; (mma.load a, mma.load b, mma.mma) for k = 0, 16, 32, 48; release @ab }
          async_copy.drain @ab
          ...
        }
    """

    name = "lower-tile"
    target: str | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        targets = TARGETS.values() if self.target is None else [get_target(self.target)]
        limit = min(target.shared_bytes_per_block for target in targets)
        for kernel in list(op.walk()):
            if isinstance(kernel, tile.KernelOp) and any(touches_tiles(inner) for inner in kernel.block.ops):
                lower_kernel(kernel, limit)


def lower_kernel(kernel: tile.KernelOp, limit: int) -> None:
    """Rewrite one kernel; `limit` is the bytes of shared memory that a staged result may always take."""
    note_overruns(kernel)
    plan = make_plan(kernel, limit)
    producer, consumer = Block(), Block()
    ProducerHalf(plan).build(producer)
    ConsumerHalf(plan).build(consumer)
    old = [op for op in kernel.block.ops if op not in plan.staying]
    top = Emitter(kernel.block, kernel, kernel.block.first_op)
    for ring in plan.rings:
        together = any(load.shared is not None for load in ring.fields)
        ctas = plan.schedule.cluster if together else 1
        top.at(ring.filled_at)(async_copy.PipelineOp(ring.name, ring.stages, ring.field_types, cluster=ctas))
    for out in plan.outbound.values():
        top.at(out.store)(async_copy.PipelineOp(out.name, out.slots, {out.field: out.type}, outbound=True))
    for one in plan.exchanges.values():
        top.at(one.use)(async_copy.PipelineOp(one.name, 1, {one.name: one.type}, internal=True, cluster=one.ctas))
    for op in reversed(old):
        op.detach()
        op.erase(safe_erase=False)
    end = Emitter(kernel.block, kernel)
    end(async_copy.ProducerOp(Region(producer)))
    end(async_copy.ConsumerOp(Region(consumer)))
    erase_dead(kernel)


def erase_dead(kernel: tile.KernelOp) -> None:
    """Erase pure ops whose results nobody uses: each half has copied index arithmetic that only the other one needs."""
    for op in reversed(list(kernel.walk())):
        unused = op.results and all(result.first_use is None for result in op.results)
        if unused and op is not kernel and is_side_effect_free(op):
            op.detach()
            op.erase()
