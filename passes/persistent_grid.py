"""`persistent-grid`: as many CTAs as the device runs at once, each of which computes one tile after the other."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, ModuleOp
from xdsl.ir import Block, Operation, Region
from xdsl.passes import ModulePass
from xdsl.traits import is_side_effect_free

from emmy.dialects import tile
from emmy.errors import EmmyError
from emmy.locations import location_of
from emmy.passes.emitter import Emitter
from emmy.passes.lower_raster import Arithmetic, Number, known


@dataclass(frozen=True)
class PersistentGrid(ModulePass):
    """Contract: wraps the work of `tile.kernel`s of level 2 in a loop over tiles, and bounds their launches.

    Accepts kernels with one `tile.grid` and no loop over tiles yet. By default it acts where the schedule says
    `persistent = 1`; `force` acts on every kernel that has a grid.

    Guarantees: CTA number c of n computes tiles c, c + n, c + 2 n, ..; the raster numbers tiles as it numbered CTAs. A launch
    has min(tiles, `ctas_per_sm` (or the schedule's `min_ctas`) x multiprocessors) CTAs. What does not depend on the tile stays
    before the loop.

    Before:                                                 After:
        %m, %n = tile.grid [%M by 128, %N by 256] raster 8      %c = tile.cta_id;  %n = tile.cta_count
        ...                                                     scf.for %t = %c to %tiles step %n {
                                                                  %m, %n = tile.grid [..] raster 8 at %t
                                                                  ...
                                                                }
        tile.launch @k[%tiles] (..)                             %limit = tile.sm_count
                                                                %ctas = arith.minui %tiles, %limit
                                                                tile.launch @k[%ctas] (..)
    """

    name = "persistent-grid"
    ctas_per_sm: int = 1
    force: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.ctas_per_sm < 1:
            raise EmmyError(f"persistent-grid runs 1 or more CTAs on each multiprocessor, got {self.ctas_per_sm}")
        wrapped: dict[str, int] = {}
        for kernel in op.walk():
            if isinstance(kernel, tile.KernelOp):
                wanted = kernel.schedule is not None and kernel.schedule.data.persistent > 0
                if (self.force or wanted) and wrap(kernel):
                    each = kernel.schedule.data.min_ctas if kernel.schedule else 1
                    wrapped[kernel.sym_name.data] = max(each, self.ctas_per_sm)
        for launch in list(op.walk()):
            names = launch.names if isinstance(launch, tile.LaunchOp | tile.DispatchOp) else ()
            for position, name in enumerate(names):
                if name in wrapped:
                    self.bound(launch, position, wrapped[name])

    def bound(self, launch: Operation, position: int, ctas_per_sm: int) -> None:
        """No more CTAs of the launch's kernel of that position than the device runs at once."""
        assert launch.parent is not None
        emit = Emitter(launch.parent, launch, launch)
        limit = emit.value(tile.SmCountOp())
        if ctas_per_sm != 1:
            each = emit.value(arith.ConstantOp(IntegerAttr(ctas_per_sm, IndexType())))
            limit = emit.value(arith.MuliOp(limit, each))
        launch.operands[position] = emit.value(arith.MinUIOp(launch.operands[position], limit))


def wrap(kernel: tile.KernelOp) -> bool:
    """Put a kernel's work into a loop over tiles; False if it has no grid at its top."""
    grids = [op for op in kernel.block.ops if isinstance(op, tile.GridOp) and op.number is None]
    if not grids:
        return False
    if len(grids) > 1:
        raise EmmyError("a persistent kernel has one tile.grid", location_of(grids[1]))
    grid = grids[0]
    moving = work_of(kernel, grid)
    emit = Emitter(kernel.block, grid, moving[0])
    do = Arithmetic(emit)
    tiles: Number = 1
    for extent, block in zip(grid.extents, grid.get_blocks(), strict=True):
        tiles = do.multiply(tiles, do.blocks(known(extent), block))
    first, last, step = emit.value(tile.CtaIdOp()), do.value(tiles), emit.value(tile.CtaCountOp())
    body = Block(arg_types=[IndexType()])
    for op in moving:
        op.detach()
        body.add_op(op)
    body.args[0].name_hint = "tile"
    numbered = tile.GridOp(grid.extents, grid.get_blocks(), grid.raster.value.data, body.args[0])
    numbered.location = grid.location
    for old, new in zip(grid.offsets, numbered.offsets, strict=True):
        new.name_hint = old.name_hint
        old.replace_all_uses_with(new)
    body.insert_op_before(numbered, grid)
    grid.detach()
    grid.erase()
    Emitter(body, kernel)(scf.YieldOp())
    loop = scf.ForOp(first, last, step, [], Region(body))
    loop.location = numbered.location
    kernel.block.add_op(loop)
    return True


def work_of(kernel: tile.KernelOp, grid: tile.GridOp) -> list[Operation]:
    """The grid and every op that depends on it, touches tiles or memory, or comes from such an op; in order.

    What is about other launches is once a CTA, and stays before.
    """
    moving: list[Operation] = []
    inside: set[Operation] = set()
    for op in kernel.block.ops:
        operands = [v.owner for part in op.walk() for v in part.operands]
        tiles = any(isinstance(v.type, tile.TileType) for part in op.walk() for v in (*part.operands, *part.results))
        stays = isinstance(op, tile.DependencyWaitOp | tile.LaunchDependentsOp) or (
            is_side_effect_free(op)
            and not tiles
            and op is not grid
            and not inside.intersection(owner for owner in operands if isinstance(owner, Operation))
        )
        if not stays:
            moving.append(op)
            inside.add(op)
    return moving
