"""Launching softmax(scale * Q K^T, masked) V: the kernels of `online_softmax_kernels` in all variants, how many CTAs, and, where
keys are split, how often, the workspaces and the kernel that combines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import scf
from xdsl.dialects.builtin import TensorType, f32
from xdsl.ir import Block, SSAValue

from emmy.chained_schedules import combine_schedule, variant_schedule
from emmy.dialects.common import DYNAMIC, Index
from emmy.dialects.tensor_op import tensor_type
from emmy.dialects.tile import AllocOp, DimOp, DispatchOp, KernelOp, LaunchOp, ReshapeOp, SmCountOp
from emmy.lowering.online_softmax_kernels import CARRIED, FINAL, Program
from emmy.lowering.tile_builder import Number, TileBuilder, named
from emmy.lowering.weighted_sum import LOWEST, KernelBuilder, Parts, WeightedSum, Whole
from emmy.passes.emitter import Emitter
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
    batch, heads, rows, _ = (_host_size(build, what.q, axis) for axis in range(4))
    if what.starts is not None:
        batch = build.sub(_host_size(build, what.starts[0], 0), 1, "sequences")
        rows = rows if what.most_rows is None else what.most_rows
    tiles = build.mul(build.mul(batch, heads), build.ceildiv(rows, schedule.block[0]), "tiles")
    parts = None
    if schedule.splits:
        splits = _host_splits(build, what, schedule, tiles)
        shape = [tensor_type(what.q).get_shape()[axis] for axis in range(3)]
        width = tensor_type(what.v).get_shape()[3]
        dynamic = [size for size in (batch, heads, splits, rows) if not isinstance(size, int)]
        split = splits if isinstance(splits, int) else DYNAMIC

        def workspace(name: str, *columns: int) -> SSAValue:
            type_ = TensorType(f32, [shape[0], shape[1], split, shape[2], *columns])
            return named(host.value(AllocOp(dynamic, type_)), name)

        parts = Parts(workspace("part_sums", width), workspace("part_tops"), workspace("part_totals"))
        tiles = build.mul(tiles, splits, "ctas")
    kernels = [
        Program(what, parts or whole, variant_schedule(variant, schedule), variant).kernel(fresh(_ending(variant)))
        for variant in variants
    ]
    _launch(host, kernels, build.index(tiles), [*what.tensors(), *(parts or whole).tensors()])
    if parts is not None:
        # The combining kernel reads maxima and sums as columns.
        parts = Parts(parts.sums, *(_as_column(host, x) for x in (parts.tops, parts.totals)))
        combines = [Combine(what, parts, whole, variant) for variant in variants]
        block = combines[0].rows, combines[0].columns
        blocks = build.ceildiv(rows, block[0]), build.ceildiv(tensor_type(what.v).get_shape()[3], block[1])
        ctas = build.index(build.mul(build.mul(build.mul(batch, heads), blocks[0]), blocks[1], "combine_ctas"))
        last = [c.kernel(fresh(f"_combine{_ending(c.variant)}")) for c in combines]
        _launch(host, last, ctas, [*parts.tensors(), *whole.tensors()])
        kernels += last
    return kernels


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


def _as_column(host: Emitter, tensor: SSAValue) -> SSAValue:
    type_ = tensor_type(tensor)
    return named(host.value(ReshapeOp(tensor, TensorType(f32, [*type_.get_shape(), 1]))), tensor.name_hint)


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
    """The kernel that makes the result of parts: the same running maximum, over splits instead of keys."""

    def __init__(self, what: WeightedSum, parts: Parts, whole: Whole, variant: Variant):
        # A CTA that stores the logarithms has all columns, so that they are stored once.
        schedule = combine_schedule(tensor_type(what.v).get_shape()[3], whole.logarithm is not None)
        super().__init__(what.source, schedule, [], parts.tensors(), whole, variant)
        self.parts = parts
        self.whole = whole
        self.rows, self.columns, _ = schedule.block

    def kernel(self, name: str) -> KernelOp:
        """All of it."""
        build, parts, tile = self.build, self.parts, (self.rows, self.columns)
        extents = [
            self.size(parts.sums, axis, n) for axis, n in enumerate(("batch", "heads", "splits", "rows", "width"))
        ]
        batch, heads, splits, rows, width = extents
        b, h, m, e = self.grid((batch, heads, rows, width), (1, 1, *tile), "bhme")
        starts = [
            build.fill(LOWEST, (self.rows, 1), "lowest"),
            build.fill(0.0, (self.rows, 1), "none"),
            build.fill(0.0, tile, "nothing"),
        ]
        body = Block(arg_types=[Index, *(start.type for start in starts)])
        x, top, total, sums = (named(arg, n) for arg, n in zip(body.args, ("x", *CARRIED[1:]), strict=True))
        bounds = build.index(0), build.index(splits), build.index(1)
        inner = build.inside(body)
        part_top = inner.load(self.views[parts.tops], (b, h, x, m, 0), (self.rows, 1), "part_top")
        part_total = inner.load(self.views[parts.totals], (b, h, x, m, 0), (self.rows, 1), "part_total")
        part_sums = inner.load(self.views[parts.sums], (b, h, x, m, e), tile, "part_sums")
        new_top = inner.map("max", top, part_top, name="new_top")
        kept, gained = (
            inner.map("exp2", inner.map("sub", old, new_top, name="fallen"), name=n)
            for old, n in ((top, "kept"), (part_top, "weight"))
        )
        new_total = inner.map(
            "fma", part_total, gained, inner.map("mul", total, kept, name="old_total"), name="new_total"
        )
        new_sums = inner.map("fma", part_sums, gained, inner.map("mul", sums, kept, name="rescaled"), name="new_sums")
        inner.emit(scf.YieldOp(new_top, new_total, new_sums))
        results = build.emit(scf.ForOp(*bounds, starts, body)).results
        self.finish(self.whole, [named(r, n) for r, n in zip(results, FINAL, strict=True)], (b, h, m), e)
        return self.finished(name)
