"""`split-k`: the CTAs of a cluster share the contraction of one tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from emmy.dialects import tile
from emmy.dialects.common import constant
from emmy.errors import EmmyError
from emmy.locations import location_of
from emmy.passes.emitter import Emitter
from emmy.passes.lower_raster import Arithmetic, known

NARROWED = (tile.LoadOp, tile.StoreOp, tile.FillOp, tile.MapOp, tile.CastOp, tile.CoordOp)
"""Ops after the product that a part of the columns is enough for."""


@dataclass(frozen=True)
class SplitK(ModulePass):
    """Contract: where the schedule of a `tile.kernel` of level 2 says `split_k = S`, S CTAs of a cluster compute one tile.

    Accepts kernels with one `tile.grid`, without a loop over tiles, whose product is one loop that carries one tile of sums
    from zero; what follows works on whole rows of the tile or on its elements. A kernel that has a `tile.cluster_sum` stays.

    Guarantees: CTA number c computes tile c / S. In the loop it takes the steps that are its own, c mod S: the first ones of
    S nearly equal runs, and so on, which together are all of them in order. After the loop `tile.cluster_sum` gives it a part
    of the columns, of which it alone computes and stores the rest. A launch has S times as many CTAs. Each element is added up in
    one order, so that results do not depend on timing.

    Before:                                              After (S = 2, 60 steps):
        %m, %n = tile.grid [%M by 128, %N by 128] ..         %c = tile.cta_id;  %part = arith.remui %c, %c2
        %acc = scf.for %k = %c0 to %c3840 step %c64 ..       %m, %n = tile.grid [..] .. at (arith.divui %c, %c2)
        %r = tile.cast %acc : 128x128xf32 to ..xf16          %acc = scf.for %k = %first to %end step %c64 ..
        tile.store %r, %c[%m, %n]                            %sum = tile.cluster_sum %acc part %part of 2
                                                             %r = tile.cast %sum : 128x64xf32 to 128x64xf16
        tile.launch @k[%tiles] (..)                          tile.store %r, %c[%m, (%n + %part * 64)]
                                                             tile.launch @k[(%tiles * 2)] (..)
    """

    name = "split-k"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        split: dict[str, int] = {}
        for kernel in op.walk():
            if isinstance(kernel, tile.KernelOp) and kernel.schedule is not None:
                parts = kernel.schedule.data.split_k
                summed = any(isinstance(inner, tile.ClusterSumOp) for inner in kernel.walk())
                if parts > 1 and not summed and any(isinstance(inner, tile.DotOp) for inner in kernel.walk()):
                    split_kernel(kernel, parts)
                    split[kernel.sym_name.data] = parts
        for launch in list(op.walk()):
            names = launch.names if isinstance(launch, tile.LaunchOp | tile.DispatchOp) else ()
            for position, name in enumerate(names):
                if name in split:
                    assert launch.parent is not None
                    do = Arithmetic(Emitter(launch.parent, launch, launch))
                    ctas = do.multiply(known(launch.operands[position]), split[name])
                    launch.operands[position] = do.value(ctas)


def split_kernel(kernel: tile.KernelOp, parts: int) -> None:
    """Let `parts` CTAs compute each tile of a kernel. Raises `EmmyError` for kernels that the contract does not name."""
    grid, loop = _grid(kernel), _product_loop(kernel)
    emit = Emitter(kernel.block, grid, grid)
    do = Arithmetic(emit)
    cta = emit.value(tile.CtaIdOp())
    part = do.value(do.remainder(cta, parts))
    part.name_hint = "part"
    numbered = tile.GridOp(grid.extents, grid.get_blocks(), grid.raster.value.data, do.value(do.divide(cta, parts)))
    numbered.location = grid.location
    kernel.block.insert_op_before(numbered, grid)
    for old, new in zip(grid.offsets, numbered.offsets, strict=True):
        new.name_hint = old.name_hint
        old.replace_all_uses_with(new)
    grid.detach()
    grid.erase()
    _share_loop(loop, part, parts)
    after = loop.next_op
    assert after is not None, "a kernel stores what it computes"
    rest = _following(loop)
    emit = Emitter(kernel.block, loop, after)
    total = emit(tile.ClusterSumOp(loop.results[0], part, parts))
    total.result.name_hint = "total"
    *_, width = total.result.type.get_shape()
    do = Arithmetic(emit)
    column = do.value(do.add(numbered.offsets[-1], do.multiply(part, width)))
    column.name_hint = "column"
    narrow = _Narrow(numbered.offsets[-1], column, width * parts, width, {loop.results[0]: total.result})
    for op in rest:
        narrow.rewrite(op)
    for op in reversed(rest):
        if any(narrow.is_whole(v) for v in (*op.operands, *op.results)):
            op.detach()
            op.erase()


def _grid(kernel: tile.KernelOp) -> tile.GridOp:
    grids = [op for op in kernel.walk() if isinstance(op, tile.GridOp)]
    if len(grids) != 1 or grids[0].number is not None or grids[0].parent is not kernel.block:
        raise EmmyError(
            "split_k wants a kernel with one tile.grid that numbers its CTAs, and no loop over tiles",
            location_of(grids[0] if grids else kernel),
        )
    return grids[0]


def _product_loop(kernel: tile.KernelOp) -> scf.ForOp:
    """The loop over the contraction."""
    loops = [op for op in kernel.block.ops if isinstance(op, scf.ForOp)]
    products = [op for op in kernel.walk() if isinstance(op, tile.DotOp)]
    if (
        len(loops) != 1
        or len(products) != 1
        or products[0].parent is not loops[0].body.block
        or len(loops[0].results) != 1
    ):
        raise EmmyError("split_k wants a kernel whose product is one loop that carries one tile", location_of(kernel))
    start = loops[0].iter_args[0].owner
    if not isinstance(start, tile.FillOp) or start.value.value.data != 0.0:
        raise EmmyError("split_k adds up sums that begin at zero", location_of(loops[0]))
    return loops[0]


def _share_loop(loop: scf.ForOp, part: SSAValue, parts: int) -> None:
    """Of the loop's steps, leave run number `part` of `parts` nearly equal ones."""
    assert loop.parent is not None
    step = constant(loop.step)
    if step is None or constant(loop.lb) != 0:
        raise EmmyError("split_k wants a loop that counts from 0 in known steps", location_of(loop))
    do = Arithmetic(Emitter(loop.parent, loop, loop))
    steps = do.blocks(known(loop.ub), step)
    bounds: list[SSAValue] = []
    for number in (part, do.add(part, 1)):
        bounds.append(do.value(do.multiply(do.divide(do.multiply(number, steps), parts), step)))
    loop.operands[0], loop.operands[1] = bounds
    bounds[0].name_hint, bounds[1].name_hint = "first", "end"


def _following(op: Operation) -> list[Operation]:
    ops: list[Operation] = []
    following = op.next_op
    while following is not None:
        ops.append(following)
        following = following.next_op
    return ops


@dataclass(frozen=True)
class _Narrow:
    """Rewrites ops on tiles of `whole` columns at `start` into ops on `width` of them at `column`; `values`: old ones to new."""

    start: SSAValue
    column: SSAValue
    whole: int
    width: int
    values: dict[SSAValue, SSAValue]

    def rewrite(self, op: Operation) -> None:
        """One op after the product, all ops before it being done."""
        if not any(self.is_whole(v) for v in (*op.operands, *op.results)):
            return
        if not isinstance(op, NARROWED) or op.regions:
            raise EmmyError(f"split_k has no whole rows after the product for {op.name}", location_of(op))
        operands = [self.values.get(v, v) for v in op.operands]
        if isinstance(op, tile.LoadOp | tile.StoreOp):
            if op.indices[-1] is not self.start:
                raise EmmyError("split_k wants tiles that begin where the product's does", location_of(op))
            operands[-1] = self.column
        if isinstance(op, tile.CoordOp) and op.axis.value.data == len(op.result.type.get_shape()) - 1:
            operands = [self.column]
        types = [self.part(v) if self.is_whole(v) else v.type for v in op.results]
        assert op.parent is not None
        new = type(op).create(
            operands=operands,
            result_types=types,
            properties=op.properties,
            attributes=op.attributes,
            location=op.location,
        )
        op.parent.insert_op_before(new, op)
        for old, result in zip(op.results, new.results, strict=True):
            result.name_hint = old.name_hint
            self.values[old] = result

    def is_whole(self, value: SSAValue) -> bool:
        """Is a value a tile of all columns?"""
        return isinstance(value.type, tile.TileType) and value.type.get_shape()[-1] == self.whole

    def part(self, value: SSAValue) -> tile.TileType:
        """The type of a part of it."""
        type_ = cast(tile.TileType, value.type)
        return tile.TileType.get((*type_.get_shape()[:-1], self.width), type_.element_type)
