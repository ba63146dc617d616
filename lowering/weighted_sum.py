"""What kernels of softmax(scale * Q K^T, masked) V read and fill, and what all of them have: views, sizes, the grid, stores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import cast

from xdsl.dialects.builtin import AnyFloat, StringAttr, TensorType, i32
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from emmy.dialects.common import DYNAMIC
from emmy.dialects.tensor_op import AccumulateAttr, tensor_type
from emmy.dialects.tile import (
    DependencyWaitOp,
    DimOp,
    GridOp,
    KernelOp,
    LaunchDependentsOp,
    ScheduleAttr,
    SliceOp,
    SqueezeOp,
    StoreOp,
    ViewType,
)
from emmy.lowering.tensor_op_to_tile import view_type
from emmy.lowering.tile_builder import Number, TileBuilder, named, tile_type
from emmy.passes.alignment import WIDEST
from emmy.passes.emitter import Emitter
from emmy.schedules import Schedule
from emmy.variants import PREFERRED, VARIANT, VARIANTS, Variant

K_STEP = 16
LOWEST = -1e30
"""Where the maximum begins: finite, and below every score that is not minus infinity."""
LEAST = 1e-30
"""What a sum of no keys is divided by."""
TINY = 1e-30
"""Scales up to here are not folded into the unit of the exponents, which must not be 0."""
NOWHERE = -1
"""No position among the operands of one product, which variants may read transposed."""


def slice_align(view: ViewType) -> int:
    """Bytes that a part of a view, of whole rows, is aligned to: those of the view, or of its rows."""
    if view.align.data or view.get_shape()[-1] == DYNAMIC or view.get_strides()[-1] != 1:
        return view.align.data
    row_bytes = view.get_shape()[-1] * cast(AnyFloat, view.element_type).bitwidth // 8
    return gcd(row_bytes, WIDEST)


def padded(size: int) -> int:
    """A size as whole k-steps."""
    return -(-size // K_STEP) * K_STEP


@dataclass(frozen=True)
class WeightedSum:
    """What is computed, over tensors of the host function.

    q: B x H x S x D, k: B x G x T x D, v: B x G x T x E, bias: of sizes B, H, S, T or 1. Row i stands at key i + T - S, or with
    `last_row` every row at the last key. With `tokens` the rows are those of all heads that share a key head, one head after the
    other, and what q becomes has G heads: row i then stands at key (i modulo tokens) + T - tokens. `starts`, `most_rows`, `pages`
    (table, counts): `lengths` and `pages` of level 1, as are `causal`, `window`, `softcap` and `scale`. of_scores, of_values: how
    the two products are summed. `source` is the op that this is a program of; `remark` is a sentence about it, or None.
    """

    source: Operation
    q: SSAValue
    k: SSAValue
    v: SSAValue
    bias: SSAValue | None
    starts: tuple[SSAValue, SSAValue] | None
    most_rows: int | None
    pages: tuple[SSAValue, SSAValue] | None
    scale: float
    softcap: float | None
    causal: bool
    window: int | None
    last_row: bool
    of_scores: AccumulateAttr
    of_values: AccumulateAttr
    remark: str | None = None
    tokens: int | None = None

    def tensors(self) -> list[SSAValue]:
        """All that is read."""
        optional = [] if self.bias is None else [self.bias]
        return list(dict.fromkeys((self.q, self.k, self.v, *optional, *(self.starts or ()), *(self.pages or ()))))


@dataclass(frozen=True)
class Whole:
    """Where results go: B x H x S x E, and B x H x S logarithms of the sums."""

    value: SSAValue
    logarithm: SSAValue | None

    def tensors(self) -> list[SSAValue]:
        """All of them."""
        return [self.value] if self.logarithm is None else [self.value, self.logarithm]

    def views(self, variant: Variant) -> dict[SSAValue, ViewType]:
        """How they may lie in a kernel of a variant: a caller's own results (`out=`) as arguments do. Rows of logarithms are of
        any size, and stored element by element."""
        if variant.layout == "dense":
            return {t: _row_major(tensor_type(t)) for t in self.tensors()}
        views = {self.value: view_type(tensor_type(self.value), variant, NOWHERE)}
        if self.logarithm is not None:
            views[self.logarithm] = view_type(tensor_type(self.logarithm), VARIANTS["any"], NOWHERE)
        return views


@dataclass(frozen=True)
class Parts:
    """Where a split leaves what it has, all f32: products B x H x splits x S x E; for each row its maximum and summands of its
    sum, B x H x splits x S x `statistic_columns`. To who combines them the last two dimensions are one."""

    sums: SSAValue
    tops: SSAValue
    totals: SSAValue

    def tensors(self) -> list[SSAValue]:
        """All of them."""
        return [self.sums, self.tops, self.totals]


def _view(tensor: TensorType[Attribute], variant: Variant) -> ViewType:
    """As of any kernel; of tensors that are read number by number nothing is wanted."""
    if tensor.element_type != i32:
        return view_type(tensor, variant, NOWHERE)
    shape = tensor.get_shape()
    return ViewType.get(shape, i32, None if variant.layout == "dense" else [DYNAMIC] * len(shape))


def _row_major(tensor: TensorType[Attribute]) -> ViewType:
    """Without gaps, rows of any size."""
    return ViewType.get(tensor.get_shape(), tensor.element_type)


class KernelBuilder:
    """A kernel under construction: a view for each tensor of the host that it takes.

    given: arguments of the function. parts: workspaces, which the runtime allocates row-major. into: what the kernel fills.
    """

    def __init__(
        self,
        source: Operation,
        schedule: Schedule,
        given: Sequence[SSAValue],
        parts: Sequence[SSAValue],
        into: Whole | None,
        variant: Variant,
    ):
        self.source = source
        self.schedule = schedule
        self.variant = variant
        types: dict[SSAValue, ViewType] = {t: _view(tensor_type(t), variant) for t in given}
        types |= {t: _row_major(tensor_type(t)) for t in parts}
        if into is not None:
            types |= into.views(variant)
        self.block = Block(arg_types=list(types.values()))
        self.views: dict[SSAValue, SSAValue] = dict(zip(types, self.block.args, strict=True))
        for tensor, view in self.views.items():
            view.name_hint = tensor.name_hint
        self.build = TileBuilder(Emitter(self.block, source))

    def before_other_launches(self) -> None:
        """The kernel that is launched next waits for this one by itself: it may come as soon as there is room for it."""
        self.build.emit(LaunchDependentsOp())

    def after_other_launches(self) -> None:
        """This kernel waits for those before it by itself."""
        self.build.emit(DependencyWaitOp())

    def size(self, tensor: SSAValue, axis: int, name: str) -> Number:
        """A size of a tensor: a number, or read from its view."""
        size = tensor_type(tensor).get_shape()[axis]
        return size if size != DYNAMIC else named(self.build.emit.value(DimOp(self.views[tensor], axis)), name)

    def grid(self, extents: Sequence[Number], blocks: Sequence[int], names: Sequence[str]) -> list[SSAValue]:
        """The element offsets of this CTA's tile."""
        grid = GridOp([self.build.index(x) for x in extents], blocks, self.schedule.raster)
        return [named(offset, name) for offset, name in zip(self.build.emit(grid).results, names, strict=True)]

    @property
    def natural(self) -> bool:
        """Whether maxima are exponents of e, not of 2, as parts always have them."""
        return self.schedule.exponentials == "exp" and not self.schedule.splits

    def store(self, tile: SSAValue, tensor: SSAValue, at: Sequence[Number]) -> None:
        """Store a tile, rounded to the tensor's type; one of a single row as a vector."""
        rounded = self.build.cast(tile, tensor_type(tensor).element_type, "rounded")
        if tile_type(rounded).get_shape()[0] == 1 and len(tile_type(rounded).get_shape()) > 1:
            rounded = named(self.build.emit.value(SqueezeOp(rounded, 0)), "row")
        self.build.emit(StoreOp(rounded, self.views[tensor], [self.build.index(x) for x in at]))

    def part(
        self, build: TileBuilder, view: SSAValue, offsets: Sequence[Number], sizes: Sequence[Number | None], name: str
    ) -> SSAValue:
        """The slice of a view at element offsets; None for a size that stays."""
        type_ = cast(ViewType, view.type)
        shape = [
            s if size is None else size if isinstance(size, int) else DYNAMIC
            for s, size in zip(type_.get_shape(), sizes, strict=True)
        ]
        given = [
            self.build.index(size) if size is not None else build.emit.value(DimOp(view, axis))
            for axis, (s, size) in enumerate(zip(shape, sizes, strict=True))
            if s == DYNAMIC
        ]
        whole_rows = sizes[-1] is None
        result = ViewType.get(shape, type_.element_type, type_.get_strides(), slice_align(type_) if whole_rows else 0)
        return named(build.emit.value(SliceOp(view, [build.index(o) for o in offsets], given, result)), name)

    def finish(self, whole: Whole, state: Sequence[SSAValue], at: Sequence[Number], column: Number = 0) -> None:
        """Divide by the sum; store the result and, if it is asked for, the logarithm."""
        build, (top, total, sums) = self.build, state
        least = build.scalar(LEAST, "least")
        inverse = build.map("rcp", build.map("max", total, least, name="safe"), name="inverse")
        self.store(build.map("mul", sums, inverse, name="value"), whole.value, (*at, column))
        if whole.logarithm is not None:
            # The logarithm of no sum is minus infinity.
            ln2, log2_sum = build.scalar(math.log(2), "ln2"), build.map("log2", total, name="log2_sum")
            if self.natural:
                log = build.map("fma", log2_sum, ln2, top, name="log_sum")
            else:
                log = build.map("mul", build.map("add", top, log2_sum, name="exponent"), ln2, name="log_sum")
            self.store(named(build.emit.value(SqueezeOp(log, 1)), "log_row"), whole.logarithm, at)

    def finished(self, name: str, remark: str | None = None) -> KernelOp:
        """The kernel."""
        kernel = KernelOp(name, ScheduleAttr.get(self.schedule), Region(self.block))
        kernel.location = self.source.location
        notes = {VARIANT: None if self.variant.name == PREFERRED else self.variant.name, "emmy.remark": remark}
        kernel.attributes |= {key: StringAttr(text) for key, text in notes.items() if text is not None}
        return kernel
