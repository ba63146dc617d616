"""Launching softmax(scale * Q K^T, masked) V: the kernels of `online_softmax_kernels` in all variants, how many CTAs, and, where
keys are split, how often, the workspaces and the kernel that combines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import TensorType, UnitAttr, f32, i32
from xdsl.ir import Block, SSAValue

from emmy.chained_schedules import COMBINE, PACK, variant_schedule
from emmy.dialects.common import DYNAMIC, Index
from emmy.dialects.tensor_op import tensor_type
from emmy.dialects.tile import (
    AllocOp,
    CoordOp,
    DimOp,
    DispatchOp,
    KernelOp,
    LaunchOp,
    ReshapeOp,
    SmCountOp,
    TileType,
)
from emmy.lowering.online_softmax_kernels import CARRIED, FINAL, Program, statistic_columns
from emmy.lowering.tile_builder import Number, TileBuilder, named
from emmy.lowering.weighted_sum import LOWEST, KernelBuilder, Parts, WeightedSum, Whole
from emmy.passes.emitter import Emitter
from emmy.passes.masks import NEEDS_MASKS
from emmy.schedules import Schedule
from emmy.variants import PREFERRED, VARIANTS, Variant


def lower_weighted_sum(
    what: WeightedSum,
    whole: Whole,
    schedule: Schedule,
    host: Emitter,
    fresh: Callable[[str], str],
    variants: Sequence[Variant],
) -> list[KernelOp]:
    """Launch what fills `whole`; the kernels. `fresh` makes a name from a suffix."""
    variants = [variant for variant in variants if not variant.transposed] or [VARIANTS[PREFERRED]]
    build = TileBuilder(host)
    kernels: list[KernelOp] = []
    if what.tokens is not None:
        what, kernels = _pack(what, host, fresh, variants)
    batch, heads, rows, _ = (_host_size(build, what.q, axis) for axis in range(4))
    if what.starts is not None:
        batch = build.sub(_host_size(build, what.starts[0], 0), 1, "sequences")
        rows = rows if what.most_rows is None else what.most_rows
    tiles = build.mul(build.mul(batch, heads), build.ceildiv(rows, schedule.block[0]), "tiles")
    parts = flat = None
    if schedule.splits:
        splits = _host_splits(build, what, schedule, tiles)
        width = tensor_type(what.v).get_shape()[3]

        def workspace(name: str, last: Number) -> SSAValue:
            sizes = (batch, heads, splits, last)
            type_ = TensorType(f32, [size if isinstance(size, int) else DYNAMIC for size in sizes])
            return named(host.value(AllocOp([size for size in sizes if not isinstance(size, int)], type_)), name)

        columns_each = statistic_columns(schedule)
        widths = {"part_sums": width, "part_tops": columns_each, "part_totals": columns_each}
        flat = Parts(*(workspace(name, build.mul(rows, columns)) for name, columns in widths.items()))
        own_rows = rows if isinstance(rows, int) else DYNAMIC
        parts = Parts(
            *(
                named(
                    host.value(ReshapeOp(x, TensorType(f32, [*tensor_type(x).get_shape()[:3], own_rows, columns]))),
                    name,
                )
                for x, (name, columns) in zip(flat.tensors(), widths.items(), strict=True)
            )
        )
        tiles = build.mul(tiles, splits, "ctas")
    further = what.bias is not None and tensor_type(what.bias).get_shape()[2] != 1
    programs = [
        Program(what, parts or whole, variant_schedule(variant, schedule, further), variant).kernel(
            fresh(_ending(variant))
        )
        for variant in variants
    ]
    _launch(host, programs, build.index(tiles), [*what.tensors(), *(parts or whole).tensors()])
    kernels += programs
    if flat is not None:
        combines = [Combine(what, flat, whole, variant, statistic_columns(schedule)) for variant in variants]
        blocks = build.ceildiv(tensor_type(what.v).get_shape()[3], combines[0].columns)
        ctas = build.index(build.mul(build.mul(build.mul(batch, heads), rows), blocks, "combine_ctas"))
        last = [c.kernel(fresh(f"_combine{_ending(c.variant)}")) for c in combines]
        _launch(host, last, ctas, [*flat.tensors(), *whole.tensors()])
        kernels += last
    return kernels


def _pack(
    what: WeightedSum, host: Emitter, fresh: Callable[[str], str], variants: Sequence[Variant]
) -> tuple[WeightedSum, list[KernelOp]]:
    """The same of a q in which all heads that share a key head are rows, and the kernels that copy it."""
    build, element = TileBuilder(host), tensor_type(what.q).element_type
    batch, (_, heads, rows, depth) = _host_size(build, what.q, 0), tensor_type(what.q).get_shape()
    groups = tensor_type(what.k).get_shape()[1]
    size, dynamic = (batch, []) if isinstance(batch, int) else (DYNAMIC, [batch])
    alloc = AllocOp(dynamic, TensorType(element, [size, groups, heads // groups * rows, depth]))
    packed = named(host.value(alloc), "q_rows")
    by_head = TensorType(element, [size, groups, heads // groups, rows, depth])
    apart = named(host.value(ReshapeOp(packed, by_head)), "q_heads")
    packs = [Pack(what, apart, variant) for variant in variants]
    ctas = build.mul(build.mul(batch, heads), -(-rows // PACK.block[0]) * -(-depth // PACK.block[1]), "pack_ctas")
    kernels = [pack.kernel(fresh(f"_pack{_ending(pack.variant)}")) for pack in packs]
    _launch(host, kernels, build.index(ctas), [what.q, apart])
    return replace(what, q=packed), kernels


class Pack(KernelBuilder):
    """The kernel that copies queries, B x H x S x D in any memory order, to B x G x H/G x S x D without gaps."""

    def __init__(self, what: WeightedSum, packed: SSAValue, variant: Variant):
        super().__init__(what.source, PACK, [what.q], [packed], None, variant)
        self.q, self.packed = what.q, packed

    def kernel(self, name: str) -> KernelOp:
        """All of it."""
        build, (rows, columns, _) = self.build, PACK.block
        sizes = [self.size(self.q, axis, n) for axis, n in enumerate(("batch", "heads", "rows", "depth"))]
        b, h, m, e = self.grid(sizes, (1, 1, rows, columns), "bhme")
        together = tensor_type(self.packed).get_shape()[2]
        group = build.div(h, together, "group")
        head = build.sub(h, build.mul(group, together), "head")
        tile = build.load(self.views[self.q], (b, h, m, e), (rows, columns), "q_tile")
        self.store(tile, self.packed, (b, group, head, m, e))
        return self.finished(name)


def _ending(variant: Variant) -> str:
    """Of the names of a variant's kernels."""
    return "" if variant.name == PREFERRED else f"_{variant.name}"


def _launch(host: Emitter, kernels: Sequence[KernelOp], ctas: SSAValue, tensors: Sequence[SSAValue]) -> None:
    """Launch the first of these kernels that takes the tensors."""
    names = [kernel.sym_name.data for kernel in kernels]
    host(LaunchOp(names[0], ctas, tensors) if len(names) == 1 else DispatchOp(names, [ctas] * len(names), tensors))


def _host_size(build: TileBuilder, tensor: SSAValue, axis: int) -> Number:
    size = tensor_type(tensor).get_shape()[axis]
    return size if size != DYNAMIC else named(build.emit.value(DimOp(tensor, axis)), "size")


def _host_splits(build: TileBuilder, what: WeightedSum, schedule: Schedule, tiles: Number) -> Number:
    """How many CTAs share the keys of a tile of rows: as many as run at once, but no more than there are blocks of keys.

    Blocks are dealt out evenly, and splits that would get none are left out.
    """
    keys = _host_size(build, what.k, 2)
    if what.pages is not None:
        keys = build.mul(keys, _host_size(build, what.pages[0], 1), "most_keys")
    blocks = build.max(build.ceildiv(keys, schedule.block[1], "blocks"), 1, "some_blocks")
    sms = named(build.emit.value(SmCountOp()), "sms")
    slots = build.mul(sms, schedule.splits, "slots")
    wanted = build.max(build.div(slots, build.max(tiles, 1, "some_tiles"), "shares"), 1, "wanted")
    each = build.ceildiv(blocks, wanted, "each")
    return build.ceildiv(blocks, each, "splits")


class Combine(KernelBuilder):
    """The kernel that makes the result of parts: the same running maximum, over splits instead of keys, some at a time.

    A CTA makes some columns of one row. Its tiles have a row for each split, in which all rows of the result follow each other.
    """

    def __init__(self, what: WeightedSum, parts: Parts, whole: Whole, variant: Variant, left: int):
        """left: columns of a statistic of one row."""
        self.left = left
        self.width = tensor_type(what.v).get_shape()[3]
        super().__init__(what.source, COMBINE, [], parts.tensors(), whole, variant)
        self.parts = parts
        self.whole = whole
        self.splits, self.columns, _ = COMBINE.block

    def kernel(self, name: str) -> KernelOp:
        """All of it."""
        build, parts = self.build, self.parts
        self.after_other_launches()
        batch, _, splits = (self.size(parts.tops, axis, n) for axis, n in enumerate(("batch", "heads", "splits")))
        heads = tensor_type(self.whole.value).get_shape()[1]
        together = heads // tensor_type(parts.tops).get_shape()[1]
        rows = build.div(self.size(parts.tops, 3, "statistics"), self.left * together, "rows")
        b, h, m, e = self.grid((batch, heads, rows, self.width), (1, 1, 1, self.columns), "bhme")
        group, row = h, m
        if together > 1:  # heads that share a key head are rows, one after the other
            group = build.div(h, together, "group")
            row = build.add(build.mul(build.sub(h, build.mul(group, together)), rows), m, "row")
        column = build.add(build.mul(row, self.width, "row_start"), e, "column")
        statistic = build.mul(row, self.left, "statistic")
        starts = [
            build.fill(LOWEST, (1, 1), "lowest"),
            build.fill(0.0, (1, self.left), "none"),
            build.fill(0.0, (1, self.columns), "nothing"),
        ]
        body = Block(arg_types=[Index, *(start.type for start in starts)])
        x, top, total, sums = (named(arg, n) for arg, n in zip(body.args, ("x", *CARRIED[1:]), strict=True))
        bounds = build.index(0), build.index(splits), build.index(self.splits)
        hidden = build.scalar(LOWEST, "hidden")
        inner = build.inside(body)
        tops, totals, products = (
            inner.load(self.views[tensor], (b, group, x, place), (self.splits, columns), n)
            for tensor, place, columns, n in (
                (parts.tops, statistic, self.left, "part_tops"),
                (parts.totals, statistic, self.left, "part_totals"),
                (parts.sums, column, self.columns, "part_sums"),
            )
        )
        split = named(inner.emit.value(CoordOp(0, x, TileType.get((self.splits, 1), i32))), "split")
        there = inner.map("lt", split, build.index(splits), name="there")
        part_top = inner.map("select", there, inner.reduce("max", tops, "part_top"), hidden, name="shown")
        new_top = inner.map("max", top, inner.reduce("max", part_top, "highest", axis=0), name="new_top")
        kept, weight = (
            inner.map("exp2", inner.map("sub", old, new_top, name="fallen"), name=n)
            for old, n in ((top, "kept"), (part_top, "weight"))
        )

        def added(old: SSAValue, part: SSAValue, name: str) -> SSAValue:
            gained = inner.reduce("sum", inner.map("mul", part, weight, name="weighed"), "gained", axis=0)
            return inner.map("fma", old, kept, gained, name=name)

        inner.emit(scf.YieldOp(new_top, added(total, totals, "new_total"), added(sums, products, "new_sums")))
        loop = build.emit(scf.ForOp(*bounds, starts, body))
        loop.attributes[NEEDS_MASKS] = UnitAttr()  # as good as always its only iteration has splits that are not there
        top, total, sums = (named(r, n) for r, n in zip(loop.results, FINAL, strict=True))
        if self.whole.logarithm is not None:
            # The CTA of a row's first columns stores it; for the others the tensor has no rows.
            first = build.emit.value(arith.CmpiOp(e, build.index(0), "eq"))
            here = named(build.emit.value(arith.SelectOp(first, build.index(rows), build.index(0))), "rows_or_none")
            view = self.views[self.whole.logarithm]
            self.views[self.whole.logarithm] = self.part(build, view, (0, 0, 0), (None, None, here), "logarithms")
        self.finish(self.whole, (top, build.reduce("sum", total, "sum"), sums), (b, h, m), e)
        return self.finished(name)
