"""`order-tiles`: CTAs take tiles in the order of their work, the heaviest first."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import cast

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import FixedBitwidthType, ModuleOp
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass

from emmy.dialects import tile
from emmy.dialects.common import DYNAMIC, constant
from emmy.passes.emitter import Emitter
from emmy.passes.lower_raster import Arithmetic, Number, known
from emmy.schedules import Schedule
from emmy.targets import Target, get_target

L2_SHARE = 0.75
"""Of the L2 cache, for what the tiles that run at once read again and again."""


@dataclass(frozen=True)
class OrderTiles(ModulePass):
    """Contract: renumbers the tiles of `tile.kernel`s of level 2 whose loop over products is longer for some tiles than for
    others. Each tile is computed once, as before; nothing else changes.

    Accepts kernels with one `tile.grid`, before or after `persistent-grid`. Acts where the schedule says `order = heavy`, `light`
    or `auto`, and the bounds of a loop with products grow (or shrink) with the offset in the grid's last dimension, as
    index arithmetic shows (both of them where a window begins before the first key); raster 1.

    Guarantees: the tiles of all other dimensions' blocks (the *heads*) are taken with the heaviest offset first; with `order =
    light`, which `auto` takes for windows, with the lightest one. Heads go in
    groups, one after the other, so that what a group reads in the loop fits the L2 cache of `target`, as far as static sizes
    say. Where CTAs share multiprocessors, those of the second half of the first wave are taken in reverse, so that each
    multiprocessor has a heavy tile and a light one; in a persistent kernel, so is every second round, and every second group
    begins with its lightest tiles, so that the work of neighbouring rounds differs little where a group ends within one.

    Why: with rows of a triangle in their own order the last CTAs to start are the longest. Of a window all tiles but the first
    are alike: CTAs that begin with those are apart from then on, and do not all want memory at once.

    Before:                                              After (8 heads of 32 tiles):
        %b, %h, %m = tile.grid [..] raster 1                 %c = tile.cta_id
                                                             %head = arith.remui %c, %c8
                                                             %light = arith.divui %c, %c8
                                                             %heavy = arith.subi %c31, %light
                                                             %t = arith.addi (arith.muli %head, %c32), %heavy
                                                             %b, %h, %m = tile.grid [..] raster 1 at %t
    """

    name = "order-tiles"
    target: str = "sm_90a"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.walk():
            if isinstance(kernel, tile.KernelOp):
                order(kernel, get_target(self.target))


def order(kernel: tile.KernelOp, target: Target) -> None:
    """Renumber the tiles of one kernel, if their work differs."""
    schedule = kernel.schedule.data if kernel.schedule else Schedule()
    grids = [op for op in kernel.walk() if isinstance(op, tile.GridOp)]
    if schedule.order == "grid" or len(grids) != 1 or len(grids[0].offsets) < 2 or grids[0].raster.value.data != 1:
        return
    grid = grids[0]
    loops = [op for op in kernel.walk() if isinstance(op, scf.ForOp) and multiplies(op)]
    growth = {growth_of_trips(loop, grid.offsets[-1]) for loop in loops}
    if growth not in ({1}, {-1}) or is_permuted(grid):
        return
    assert grid.parent is not None
    emit = Emitter(grid.parent, grid, grid)
    do = Arithmetic(emit)
    *others, tiles = [do.blocks(known(e), block) for e, block in zip(grid.extents, grid.get_blocks(), strict=True)]
    heads: Number = 1
    for count in others:
        heads = do.multiply(heads, count)
    rank = rank_of_cta(grid, do, do.multiply(heads, tiles), resident_ctas(kernel, schedule, target), target)
    head, light = split_rank(do, rank, heads, tiles, heads_at_once(loops, heads, target), grid.number is not None)
    windows = all(is_window(loop, grid.offsets[-1]) for loop in loops)
    lightest_first = schedule.order == "light" or (schedule.order == "auto" and windows)
    falling = (growth == {1}) != lightest_first
    last = do.subtract(do.subtract(tiles, 1), light) if falling else light
    number = do.value(do.add(do.multiply(head, tiles), last))
    number.name_hint = "number"
    new = emit(tile.GridOp(grid.extents, grid.get_blocks(), 1, number))
    for old, offset in zip(grid.offsets, new.offsets, strict=True):
        offset.name_hint = old.name_hint
        old.replace_all_uses_with(offset)
    grid.detach()
    grid.erase()


def multiplies(loop: scf.ForOp) -> bool:
    """Is a product computed in a loop, and in no loop inside?"""
    return any(isinstance(op, tile.DotOp) for op in loop.body.block.ops)


def is_permuted(grid: tile.GridOp) -> bool:
    """Does a grid have a number that is neither the CTA's nor that of a persistent kernel's loop?"""
    return grid.number is not None and not isinstance(grid.number, BlockArgument)


# ---- which tiles have more work --------------------------------------------------------------------------------------


def growth_of_trips(loop: scf.ForOp, offset: SSAValue) -> int | None:
    """1 if a loop is longer for larger offsets, -1 if it is shorter, 0 if it is the same, None if nothing is known.

    A loop whose bounds both move is a window of one size, except where its beginning stays at 0: the first tiles have less.
    """
    if is_window(loop, offset):
        return 1
    return _sum(growth(loop.ub, offset), _negated(growth(loop.lb, offset)))


def is_window(loop: scf.ForOp, offset: SSAValue) -> bool:
    """Do both bounds of a loop move with an offset, of which the lower one begins at a constant?"""
    return growth(loop.lb, offset) == growth(loop.ub, offset) == 1 and is_held_back(loop.lb)


def is_held_back(value: SSAValue) -> bool:
    """Is an index at least a constant, or made from one that is?"""
    owner = value.owner
    if not isinstance(owner, Operation) or isinstance(owner, tile.GridOp):
        return False
    if isinstance(owner, arith.MaxSIOp | arith.MaxUIOp) and any(constant(side) is not None for side in owner.operands):
        return True
    return any(is_held_back(operand) for operand in owner.operands)


def growth(value: SSAValue, offset: SSAValue) -> int | None:
    """1, -1 or 0 if an index never falls, never rises, or stays with a growing offset; else None."""
    owner = value.owner
    if value is offset:
        return 1
    if not isinstance(owner, Operation) or isinstance(owner, tile.GridOp) or not owner.operands:
        return 0
    parts = [growth(operand, offset) for operand in owner.operands]
    if all(part == 0 for part in parts):
        return 0
    if len(parts) != 2:
        return None
    x, y = parts
    if isinstance(owner, arith.AddiOp | arith.MinSIOp | arith.MinUIOp | arith.MaxSIOp | arith.MaxUIOp):
        return _sum(x, y)
    if isinstance(owner, arith.SubiOp):
        return _sum(x, _negated(y))
    factor = constant(owner.operands[1])
    scaled = isinstance(owner, arith.MuliOp | arith.DivUIOp | arith.CeilDivUIOp)
    return x if scaled and factor is not None and factor > 0 else None


def _sum(x: int | None, y: int | None) -> int | None:
    if x is None or y is None or x * y < 0:
        return None
    return x or y


def _negated(x: int | None) -> int | None:
    return None if x is None else -x


# ---- the order -------------------------------------------------------------------------------------------------------


def rank_of_cta(grid: tile.GridOp, do: Arithmetic, total: Number, resident: int, target: Target) -> Number:
    """The place, from the heaviest tile on, of what this CTA (or this round of a persistent one) computes."""
    if grid.number is not None:
        at, ctas = grid.number, do.emit.value(tile.CtaCountOp())
        first = do.multiply(do.divide(at, ctas), ctas)
        odd = do.equal(do.remainder(do.divide(at, ctas), 2), 1)
        end = do.minimum(do.add(first, ctas), total)
        return mirrored(do, at, odd, first, end)
    at = do.emit.value(tile.CtaIdOp())
    at.name_hint = "cta"
    if resident < 2 or (isinstance(total, int) and total <= target.sms):
        return at
    end = do.minimum(2 * target.sms, total)
    late = do.emit.value(arith.CmpiOp(at, do.value(target.sms), "uge"))
    early = do.emit.value(arith.CmpiOp(at, do.value(end), "ult"))
    return mirrored(do, at, do.emit.value(arith.AndIOp(late, early)), target.sms, end)


def mirrored(do: Arithmetic, at: Number, condition: bool | SSAValue, first: Number, end: Number) -> Number:
    """`at`, or if the condition holds its mirror image among `first` to `end - 1`."""
    image = do.subtract(do.subtract(do.add(first, end), 1), at)
    return do.select(condition, image, at)


def split_rank(
    do: Arithmetic, rank: Number, heads: Number, tiles: Number, at_once: int | None, turning: bool
) -> tuple[Number, Number]:
    """(head, how many tiles of the head come before) of a rank, with `at_once` heads in a group; None: all.

    `turning`: every second group, counted from the last one, takes its tiles the other way round.
    """
    if at_once is None or (isinstance(heads, int) and at_once >= heads):
        return do.remainder(rank, heads), do.divide(rank, heads)
    each = do.multiply(tiles, at_once)
    group = do.divide(rank, each)
    first = do.multiply(group, at_once)
    inside = do.remainder(rank, each)
    whole = isinstance(heads, int) and heads % at_once == 0
    width = at_once if whole else do.minimum(do.subtract(heads, first), at_once)
    head, place = do.add(first, do.remainder(inside, width)), do.divide(inside, width)
    if not turning or not isinstance(heads, int):
        return head, place
    from_last = do.remainder(do.add(group, -(-heads // at_once) - 1), 2)
    back = do.equal(from_last, 1)
    return head, do.select(back, do.subtract(do.subtract(tiles, 1), place), place)


def heads_at_once(loops: list[scf.ForOp], heads: Number, target: Target) -> int | None:
    """How many heads read no more in their loops than the L2 cache holds, in groups of one size; None if sizes are not known."""
    if not isinstance(heads, int):
        return None
    views = {op.view for loop in loops for op in loop.body.block.ops if isinstance(op, tile.LoadOp)}
    total = 0
    for view in views:
        type_ = cast(tile.ViewType, view.type)
        if DYNAMIC in type_.get_shape():
            return None
        total += prod(type_.get_shape()) * cast(FixedBitwidthType, type_.element_type).size
    fitting = max(1, int(L2_SHARE * target.l2_bytes * heads / max(total, 1)))
    groups = -(-heads // fitting)
    return -(-heads // groups)


def resident_ctas(kernel: tile.KernelOp, schedule: Schedule, target: Target) -> int:
    """CTAs that an SM surely has room for at once: threads with all registers they can have, slots of all rings."""
    loads = [op for op in kernel.walk() if isinstance(op, tile.LoadOp)]
    needed = 0
    for op in loads:
        in_loop = any(isinstance(parent, scf.ForOp) and multiplies(parent) for parent in (op.parent_op(),))
        element = cast(FixedBitwidthType, op.result.type.element_type).size
        needed += prod(op.result.type.get_shape()) * element * (schedule.stages if in_loop else 1)
    by_registers = target.registers_per_sm // (schedule.cta_threads * (target.registers_per_thread + 1))
    by_shared = target.shared_bytes_per_sm // max(needed + target.shared_bytes_per_sm // 64, 1)
    return max(min(by_registers, by_shared), schedule.min_ctas)
