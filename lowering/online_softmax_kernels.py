"""Tile programs for softmax(scale * Q K^T, masked) V: one loop over blocks of keys with a running maximum and sum.

Online softmax (Milakov and Gimelshein, arXiv 1805.02867) in the loop of Dao (arXiv 2307.08691). Scores are kept in base 2,
and the maximum in units of the exponent: where it does not change, the factor of the old sums is exactly 1. The maximum
begins finite and hidden scores are minus infinity, so that no infinity is ever subtracted from another one.

With `splits` in the schedule the keys are shared by several CTAs: each leaves its maximum, sum and product, which a second
kernel combines. `emmy.lowering.online_softmax` has that one, and launches both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import UnitAttr, f32, i32
from xdsl.ir import Block, SSAValue

from emmy.dialects.common import Index
from emmy.dialects.tensor_op import tensor_type
from emmy.dialects.tile import CoordOp, KernelOp, ReadOp, TileType
from emmy.lowering.tile_builder import Number, TileBuilder, named
from emmy.lowering.weighted_sum import (
    K_STEP,
    LOWEST,
    TINY,
    KernelBuilder,
    Parts,
    WeightedSum,
    Whole,
    padded,
)
from emmy.schedules import Schedule
from emmy.variants import Variant

LOG2_E = math.log2(math.e)
LEFT = 8
"""Columns that the row sum keeps inside the loop: what a lane of an accumulator holds are 2 of every 8."""
CARRIED = ("j", "top", "total", "sums")
FINAL = ("last_top", "last_total", "last_sums")
"""Names of what the loop carries, and of what it leaves."""


def statistic_columns(schedule: Schedule) -> int:
    """Columns of a statistic of one row that a split leaves: as many as its warps beside each other can store."""
    return LEFT * schedule.warps[1]


Edge = tuple[str, SSAValue | None, SSAValue | None]
"""A comparison that is true of a key that is seen, and its operands; None stands for the key."""


@dataclass(frozen=True)
class Keys:
    """The keys that any row of a tile of rows may see, from `low` (where blocks begin) to `high`, and what hides some."""

    low: Number
    high: Number
    edges: tuple[Edge, ...]


@dataclass(frozen=True)
class Segment:
    """One sequence: where its `rows` queries and `keys` keys begin. `batch` is its index in q and in the results, `table_row`
    that in k and v, or in the table of pages."""

    batch: Number
    first_row: Number
    rows: Number
    first_key: Number
    keys: Number
    table_row: Number


class Program(KernelBuilder):
    """The kernel with both products: of all keys into the result, or of a split of them into parts."""

    def __init__(self, what: WeightedSum, into: Whole | Parts, schedule: Schedule, variant: Variant):
        parts, whole = (into.tensors(), None) if isinstance(into, Parts) else ((), into)
        super().__init__(what.source, schedule, what.tensors(), parts, whole, variant)
        self.what = what
        self.into = into
        self.rows, self.keys, self.depth = schedule.block
        self.width = padded(tensor_type(what.v).get_shape()[3])
        self.block_q = self.rows, self.depth
        self.values: SSAValue | None = None

    def kernel(self, name: str) -> KernelOp:
        """All of it."""
        what, build, into = self.what, self.build, self.into
        if isinstance(into, Parts):
            self.before_other_launches()
        batch, heads, rows = (self.size(what.q, axis, n) for axis, n in enumerate(("batch", "heads", "rows")))
        if what.starts is not None:
            batch = build.sub(self.size(what.starts[0], 0, "ends"), 1, "sequences")
            rows = rows if what.most_rows is None else what.most_rows
        splits = x = None
        if isinstance(into, Parts):
            splits = self.size(into.sums, 2, "splits")
            b, h, x, m = self.grid((batch, heads, splits, rows), (1, 1, 1, self.rows), "bhxm")
        else:
            b, h, m = self.grid((batch, heads, rows), (1, 1, self.rows), "bhm")
        own = self.sequence(b, rows)
        q = build.load(
            self.views[what.q], (own.batch, h, build.add(own.first_row, m, "row"), 0), self.block_q, "q_tile"
        )
        keys = self.visible(m, own)
        if splits is not None and x is not None:
            keys = self.share(keys, x, splits)
        top, total, sums = self.loop(q, keys, own, h, m)
        if isinstance(into, Whole):
            self.finish(self.bounded(into, own), (top, build.reduce("sum", total, "sum"), sums), (own.batch, h, m))
        else:
            columns = statistic_columns(self.schedule)
            top = build.map("max", top, build.fill(LOWEST, (self.rows, columns), "lowest_row"), name="tops")
            if columns > LEFT:
                # Each warp has summands of its own; what all have is the same for all of them.
                whole = build.map(
                    "mul", build.reduce("sum", total, "sum"), build.scalar(1 / columns, "share"), name="each"
                )
                total = build.map("add", whole, build.fill(0.0, (self.rows, columns), "nothing"), name="totals")
            for tile, tensor in zip((sums, top, total), into.tensors(), strict=True):
                self.store(tile, tensor, (b, h, x or 0, m, 0))
        return self.finished(name, what.remark)

    # ---- which sequence

    def sequence(self, b: SSAValue, rows: Number) -> Segment:
        """Number `b`: all of a batch, a part of packed rows and keys, or a row of the page table."""
        what, build = self.what, self.build
        keys = self.size(what.k, 2, "keys")
        if what.pages is not None:
            return Segment(b, 0, rows, 0, self.read(what.pages[1], (b,), "keys"), b)
        if what.starts is None:
            return Segment(b, 0, rows, 0, keys, b)
        following = build.add(b, 1, "following")
        (row, rows), (key, keys) = (
            (first, build.sub(self.read(starts, (following,), "end"), first, name))
            for starts, name in zip(what.starts, ("rows", "keys"), strict=True)
            for first in [self.read(starts, (b,), f"first_{name[:-1]}")]
        )
        return Segment(0, row, rows, key, keys, b)

    def read(self, tensor: SSAValue, at: Sequence[Number], name: str, build: TileBuilder | None = None) -> SSAValue:
        """A number of a tensor of i32."""
        build = build or self.build
        return named(build.emit.value(ReadOp(self.views[tensor], [build.index(i) for i in at])), name)

    def bounded(self, into: Whole, own: Segment) -> Whole:
        """Results of one sequence: rows after its last one are another's, so that stores must end there."""
        if self.what.starts is None:
            return into
        for tensor in into.tensors():
            rank = len(tensor_type(tensor).get_shape())
            offsets, sizes = [0, 0, own.first_row, 0][:rank], [None, None, own.rows, None][:rank]
            self.views[tensor] = self.part(self.build, self.views[tensor], offsets, sizes, "own_rows")
        return into

    def key_tiles(
        self, build: TileBuilder, own: Segment, kv: Number, j: SSAValue
    ) -> tuple[tuple[SSAValue, list[Number]], ...]:
        """(view, place) of the keys from `j` on, and of their values.

        What follows the last key of a sequence may be anything: the scores of such keys are hidden, but no weight makes up
        for a value that is not finite, so that values are read from a view that ends there.
        """
        what, at = self.what, own.table_row
        k, v = self.views[what.k], self.views[what.v]
        if what.pages is not None:
            length = tensor_type(what.k).get_shape()[2]
            number = build.div(j, length, "page_number")
            page = self.read(what.pages[0], (at, number), "page", build)
            first = build.mul(number, length, "page_first")
            place, left = build.sub(j, first, "place"), build.min(build.sub(own.keys, first, "left"), length, "filled")
            filled = self.part(build, v, (page, 0, 0, 0), (1, None, left, None), "page_values")
            return (k, [page, kv, place, 0]), (filled, [0, kv, place, 0])
        if what.starts is not None:
            return (k, [0, kv, build.add(own.first_key, j, "key_row"), 0]), (self.own_values(own), [0, kv, j, 0])
        return (k, [at, kv, j, 0]), (v, [at, kv, j, 0])

    def own_values(self, own: Segment) -> SSAValue:
        """The values of one sequence of packed ones."""
        if self.values is None:
            sizes = (None, None, own.keys, None)
            self.values = self.part(self.build, self.views[self.what.v], (0, 0, own.first_key, 0), sizes, "own_values")
        return self.values

    # ---- which keys

    def visible(self, m: SSAValue, own: Segment) -> Keys:
        """The keys that the rows from `m` on see; none where the sequence has no such rows."""
        keys = self.seen_by(m, own.rows, own.keys)
        if self.what.starts is None:
            return keys
        build = self.build
        there = arith.CmpiOp(m, build.index(own.rows), "slt")
        high = arith.SelectOp(build.emit.value(there), build.index(keys.high), build.index(0))
        return replace(keys, high=named(build.emit.value(high), "high_or_none"))

    def seen_by(self, m: SSAValue, rows: Number, keys: Number) -> Keys:
        """The keys that the rows from `m` on of so many see."""
        what, build, window = self.what, self.build, self.what.window
        causal = what.causal and not what.last_row
        # A row that sees no key after its own sees none beyond the last one; rows beyond the last one are not stored.
        whole = causal or (isinstance(keys, int) and keys % self.keys == 0)
        edges: list[Edge] = [] if whole else [("lt", None, build.index(keys))]
        if not causal and window is None:
            return Keys(0, keys, tuple(edges))
        if what.last_row:
            before = build.add(keys, -(window or 0) - 1, "before")
            edges.append(("lt", build.index(before), None))
            oldest = build.max(build.add(before, 1, "reach_back"), 0, "oldest")
            return Keys(self.block_of(oldest), keys, tuple(edges))
        if what.tokens is None:
            shift, span = build.sub(keys, rows, "shift"), self.rows
            first = build.add(m, shift, "first")
        else:  # all rows are in one tile
            shift, span = build.sub(keys, what.tokens, "shift"), what.tokens
            first = shift
        reach = span + (0 if causal or window is None else window - 1)
        high = build.min(build.add(first, reach, "reach"), keys, "last")
        if not isinstance(shift, int) or shift + reach < 0:
            high = build.max(high, 0, "high")
        low: Number = 0
        if window is not None:
            low = self.block_of(
                build.max(build.sub(first, window - 1, "reach_back"), 0, "oldest"), causal and self.what.pages is None
            )
            edges.append(("lt", self.position(first, -window, "before"), None))
            if not causal:
                edges.append(("lt", None, self.position(first, window, "beyond")))
        if causal:
            edges.append(("ge", self.position(first, 0, "position"), None))
        return Keys(low, high, tuple(edges))

    def block_of(self, key: Number, anywhere: bool = False) -> Number:
        """The first key of the block that holds a key; blocks begin `anywhere` (at whole k-steps), or at multiples of their keys.

        Where only rows' own positions end what they see, keys beyond the last one need no mask, wherever blocks begin.
        """
        step = K_STEP if anywhere else self.keys
        return self.build.mul(self.build.div(key, step, "blocks"), step, "low")

    def position(self, first: Number, distance: int, name: str) -> SSAValue:
        """For each row the key at a distance from its own; the first one's is `first`."""
        build, tokens = self.build, self.what.tokens
        start, shape = build.add(first, distance, f"{name}_first"), TileType.get((self.rows, 1), i32)
        found = named(build.emit.value(CoordOp(0, build.index(start), shape)), name)
        if tokens is None:
            return found
        row = named(build.emit.value(CoordOp(0, build.index(0), shape)), "row_number")
        for head_row in range(tokens, self.heads_rows(), tokens):
            again = named(build.emit.value(CoordOp(0, build.index(build.sub(start, head_row, "again")), shape)), name)
            reached = build.map("ge", row, build.index(head_row), name="of_next_head")
            found = build.map("select", reached, again, found, name=name)
        return found

    def heads_rows(self) -> int:
        """Rows of all heads that share a key head."""
        return tensor_type(self.what.q).get_shape()[2]

    def share(self, keys: Keys, split: SSAValue, splits: Number) -> Keys:
        """The keys of one split: whole blocks, dealt out evenly."""
        build, span = self.build, self.build.sub(keys.high, keys.low, "span")
        blocks = build.ceildiv(build.ceildiv(span, self.keys, "blocks"), splits, "blocks_each")
        each = build.mul(blocks, self.keys, "keys_each")
        low = build.add(keys.low, build.mul(split, each, "skipped"), "from")
        return Keys(low, build.min(build.add(low, each, "until"), keys.high, "to"), keys.edges)

    def hide(self, build: TileBuilder, scores: SSAValue, keys: Keys, j: SSAValue, hidden: SSAValue) -> SSAValue:
        """The scores of the keys from `j` on, `hidden` where a row does not see the key."""
        if not keys.edges:
            return scores
        key = named(build.emit.value(CoordOp(1, j, TileType.get((1, self.keys), i32))), "key")
        for comparison, left, right in keys.edges:
            seen = build.map(comparison, left or key, right or key, name="seen")
            scores = build.map("select", seen, scores, hidden, name="shown")
        return scores

    # ---- the loop

    def loop(self, q: SSAValue, keys: Keys, own: Segment, h: SSAValue, m: SSAValue) -> list[SSAValue]:
        """The running maximum (rows x 1, in base 2), sum (rows x LEFT) and product (rows x width) after all keys."""
        build, what = self.build, self.what
        heads, groups = (tensor_type(x).get_shape()[1] for x in (what.q, what.k))
        kv = build.div(h, heads // groups, "kv_head") if groups > 1 else 0
        zero = build.fill(0.0, (self.rows, self.keys), "zero")
        starts = [
            build.fill(LOWEST, (self.rows, 1), "lowest"),
            build.fill(0.0, (self.rows, LEFT), "none"),
            build.fill(0.0, (self.rows, self.width), "nothing"),
        ]
        hidden = build.scalar(-math.inf, "hidden") if keys.edges else starts[0]
        body = Block(arg_types=[Index, *(start.type for start in starts)])
        j, top, total, sums = (named(arg, name) for arg, name in zip(body.args, CARRIED, strict=True))
        bounds = build.index(keys.low), build.index(keys.high), build.index(self.keys)
        inner = build.inside(body)
        (k_view, k_place), (v_view, v_place) = self.key_tiles(inner, own, kv, j)
        k = inner.load(k_view, k_place, (self.keys, self.depth), "k_tile")
        products = inner.dot(q, k, zero, "scores", True, what.of_scores)
        scores, unit = self.scores(inner, products, (own.batch, h, m, j))
        scores = self.hide(inner, scores, keys, j, hidden)
        peak = inner.map("mul", inner.reduce("max", scores, "row_max"), unit, name="peak")
        new_top = self.new_top(inner, top, peak)
        minus_top = inner.map("neg", new_top, name="minus_top")
        power = "exp" if self.natural else "exp2"
        weights = inner.map(power, inner.map("fma", scores, unit, minus_top, name="exponents"), name="weights")
        kept = inner.map(power, inner.map("add", top, minus_top, name="fallen"), name="kept")
        new_total = inner.map("fma", total, kept, inner.reduce("sum", weights, "gained", LEFT), name="new_total")
        rescaled = inner.map("mul", sums, kept, name="rescaled")
        p = inner.cast(weights, tensor_type(what.v).element_type, "p")
        v = k if self.schedule.reuse else inner.load(v_view, v_place, (self.keys, self.width), "v_tile")
        inner.emit(scf.YieldOp(new_top, new_total, inner.dot(p, v, rescaled, "new_sums", policy=what.of_values)))
        loop = build.emit(scf.ForOp(*bounds, starts, body))
        loop.attributes["emmy.hidden_is_identity"] = UnitAttr()
        return [named(result, name) for result, name in zip(loop.results, FINAL, strict=True)]

    def new_top(self, build: TileBuilder, top: SSAValue, peak: SSAValue) -> SSAValue:
        """The running maximum; a lazy one stays until it is passed by so much that weights would get too large.

        Sums in f16 have no room for weights above 1.
        """
        lazy = self.schedule.lazy
        if not lazy or self.what.of_values.policy.data != "f32":
            return build.map("max", top, peak, name="new_top")
        limit = build.map("add", top, build.scalar(float(lazy), "lazy"), name="limit")
        return build.map("select", build.map("ge", peak, limit, name="passed"), peak, top, name="new_top")

    def scores(self, build: TileBuilder, products: SSAValue, at: tuple[Number, ...]) -> tuple[SSAValue, SSAValue]:
        """(scores, unit): a score times the unit is what 2, or e, is raised to; it is positive, so maxima keep their order."""
        what, scale, base = self.what, self.what.scale, 1.0 if self.natural else LOG2_E
        unit = base
        if what.softcap is not None:
            ratio = build.map("mul", products, build.scalar(scale / what.softcap, "inner_scale"), name="uncapped")
            scores, unit, scale = build.map("tanh", ratio, name="capped"), what.softcap * base, what.softcap
        elif what.bias is not None:
            scores = products
        elif scale > TINY:
            scores, unit = products, scale * base
        else:
            scores = build.map("mul", products, build.scalar(scale, "scale"), name="scaled")
        if what.bias is not None:
            bias, unit = build.cast(self.bias(build, what.bias, at), f32, "bias_f32"), base
            scores = build.map("fma", scores, build.scalar(scale, "scale"), bias, name="biased")
        return scores, build.scalar(unit, "unit")

    def bias(self, build: TileBuilder, bias: SSAValue, at: tuple[Number, ...]) -> SSAValue:
        """The tile of the bias; sizes of 1 broadcast."""
        sizes = tensor_type(bias).get_shape()
        places = [0 if size == 1 else place for size, place in zip(sizes, at, strict=True)]
        shape = [1 if size == 1 else block for size, block in zip(sizes[2:], (self.rows, self.keys), strict=True)]
        return build.load(self.views[bias], places, shape, "bias_tile")
