"""`share-operands`: two CTAs of a cluster read the tiles of one operand together."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from emmy.dialects import tile
from emmy.errors import EmmyError
from emmy.locations import location_of
from emmy.passes.emitter import Emitter
from emmy.passes.lower_raster import Arithmetic, known
from emmy.schedules import SHARING_CTAS


@dataclass(frozen=True)
class ShareOperands(ModulePass):
    """Contract: where the schedule of a `tile.kernel` of level 2 says `share = b` (or `a`), pairs of CTAs compute tiles below
    (beside) each other, whose products have the same tile of that operand, and mark its loads as `shared`.

    Accepts kernels with one `tile.grid` of known sizes, before or after `persistent-grid`, whose products take both operands from
    `tile.load`. Kernels with shared loads stay.

    Guarantees: CTAs 2 p and 2 p + 1 compute the two tiles of pair p, or of pairs p, p + n / 2, .. of n CTAs; both CTAs of a pair
    run the same number of steps, and load shared tiles from the same place in each. A launch has two CTAs for each pair; a
    pair's second tile may lie beyond the bounds of the result.

    Before:                                              After (share = b):
        %m, %n = tile.grid [%M by 128, ..] raster 8          %c = tile.cta_id
        ..                                                   %p = arith.divui %c, %c2;  %rank = arith.remui %c, %c2
        %y = tile.load %b[%n, %k] : ..                       %first, %n = tile.grid [%M by 256, ..] raster 4 at %p
                                                             %m = arith.addi %first, (%rank * 128)
                                                             %y = tile.load %b[%n, %k] shared : ..
        tile.launch @k[%tiles] (..)                          tile.launch @k[%pairs * 2] (..)
    """

    name = "share-operands"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        launched: dict[str, int] = {}
        for kernel in op.walk():
            if isinstance(kernel, tile.KernelOp) and kernel.schedule is not None:
                shared = any(isinstance(inner, tile.LoadOp) and inner.shared is not None for inner in kernel.walk())
                products = any(isinstance(inner, tile.DotOp) for inner in kernel.walk())
                if kernel.schedule.data.share != "none" and products and not shared:
                    launched[kernel.sym_name.data] = SHARING_CTAS * share(kernel, kernel.schedule.data.share)
        for launch in list(op.walk()):
            names = launch.names if isinstance(launch, tile.LaunchOp | tile.DispatchOp) else ()
            for position, name in enumerate(names):
                if name in launched:
                    _launch(launch, position, launched[name])


def _launch(launch: Operation, position: int, ctas: int) -> None:
    """Two CTAs for each pair; of a persistent kernel, as many pairs as the device runs at once, at most."""
    assert launch.parent is not None
    do = Arithmetic(Emitter(launch.parent, launch, launch))
    count = do.value(ctas)
    if isinstance(launch.operands[position].owner, arith.MinUIOp):
        limit = do.multiply(do.divide(do.emit.value(tile.SmCountOp()), SHARING_CTAS), SHARING_CTAS)
        count = do.value(do.minimum(count, limit))
    launch.operands[position] = count


def share(kernel: tile.KernelOp, operand: str) -> int:
    """Pair the CTAs of one kernel; how many pairs of tiles there are. Raises `EmmyError` for what the contract does not name."""
    grids = [op for op in kernel.walk() if isinstance(op, tile.GridOp)]
    if len(grids) != 1:
        raise EmmyError("share wants a kernel with one tile.grid", location_of(kernel))
    grid = grids[0]
    extents = [known(extent) for extent in grid.extents]
    if not all(isinstance(extent, int) for extent in extents):
        raise EmmyError("share wants a result whose sizes are known", location_of(grid))
    axis = len(extents) - (1 if operand == "a" else 2)
    blocks = list(grid.get_blocks())
    each = blocks[axis]
    blocks[axis] = each * SHARING_CTAS
    pairs = 1
    for extent, block in zip(extents, blocks, strict=True):
        assert isinstance(extent, int)
        pairs *= max(1, -(-extent // block))
    emit = Emitter(kernel.block, grid, kernel.block.first_op)
    do = Arithmetic(emit)
    cta = emit.value(tile.CtaIdOp())
    rank, pair = do.value(do.remainder(cta, SHARING_CTAS)), do.value(do.divide(cta, SHARING_CTAS))
    rank.name_hint, pair.name_hint = "rank", "pair"
    loop = grid.parent_op()
    if grid.number is not None:
        if not isinstance(loop, scf.ForOp) or grid.number is not loop.body.block.args[0]:
            raise EmmyError("share wants tiles that are numbered by CTAs, or by a loop over tiles", location_of(grid))
        step = do.value(do.divide(emit.value(tile.CtaCountOp()), SHARING_CTAS))
        loop.operands[0], loop.operands[1], loop.operands[2] = pair, do.value(pairs), step
        pair = grid.number
    offset = _renumber(grid, blocks, axis, pair, do.value(do.multiply(rank, each)))
    own = _depend_on(offset)
    for dot in list(kernel.walk()):
        if isinstance(dot, tile.DotOp):
            load = (dot.a if operand == "a" else dot.b).owner
            if not isinstance(load, tile.LoadOp):
                raise EmmyError(f"share = {operand} wants an operand {operand} that is loaded", location_of(dot))
            if not own.isdisjoint(_decisive(load, loop)):
                raise EmmyError(f"share = {operand} wants tiles of that operand that both CTAs read", location_of(load))
            load.shared = UnitAttr()
    return pairs


def _depend_on(offset: SSAValue) -> set[SSAValue]:
    """What differs between the CTAs of a pair: all that is computed from their offset."""
    found, left = {offset}, [offset]
    while left:
        for use in left.pop().uses:
            blocks = [block for region in use.operation.regions for block in region.blocks]
            values = {*use.operation.results, *(argument for block in blocks for argument in block.args)}
            left += values - found
            found |= values
    return found


def _decisive(load: tile.LoadOp, tiles: Operation | None) -> set[SSAValue]:
    """What says where a load reads, and how often: its operands, those of the ops around it but the loop over tiles."""
    values = set(load.operands)
    around = load.parent_op()
    while around is not None and not isinstance(around, tile.KernelOp):
        if around is not tiles:
            values |= set(around.operands[:3] if isinstance(around, scf.ForOp) else around.operands)
        around = around.parent_op()
    return values


def _renumber(grid: tile.GridOp, blocks: list[int], axis: int, pair: SSAValue, further: SSAValue) -> SSAValue:
    """Let a grid give the offsets of this CTA's tile of pair number `pair`; the one that the CTAs of a pair do not share."""
    assert grid.parent is not None
    raster = grid.raster.value.data
    raster = max(1, raster // SHARING_CTAS) if axis == len(blocks) - 2 else raster
    new = tile.GridOp(grid.extents, blocks, raster, pair)
    emit = Emitter(grid.parent, grid, grid)
    emit(new)
    new.offsets[axis].name_hint = "first"
    own = emit.value(arith.AddiOp(new.offsets[axis], further))
    for number, (old, offset) in enumerate(zip(grid.offsets, new.offsets, strict=True)):
        offset = own if number == axis else offset
        offset.name_hint = old.name_hint
        old.replace_all_uses_with(offset)
    grid.detach()
    grid.erase()
    return own
