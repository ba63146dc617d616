"""The choice of a product's schedule among the rows of its target's table: by waves over the SMs, and what fits."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from emmy.schedule_fitting import fitted
from emmy.schedule_limits import Epilogue, problem_on_target, transport_on
from emmy.schedule_table import SPILLS, TABLES, Candidate
from emmy.schedules import WARPGROUP_ATOM, Schedule
from emmy.targets import Target

UNKNOWN_SIZE = 65536
"""What a `?` dimension counts as: large enough that full waves decide."""

SAMPLED_SIZES = (*range(64, 16384, 64), UNKNOWN_SIZE)
"""Of a `?` dimension, to find the tiles that are worth a kernel of their own: every number of tiles, up to many waves."""

SPARSE_SIZES = (*(64 * n for n in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 256)), UNKNOWN_SIZE)
"""The same of each of two."""

WORTHWHILE = 1.02
"""How many times as long all other kernels take, at a sampled size, where another one is worth compiling."""

BY_SIZES = ("raster", "evict")
"""Fields of a row that known sizes of a product change (`Product.complete`, `choose_schedule`)."""

PARTIALS_IN_LINE, WIDE_PARTIAL = 4, 128 * 32
"""Partial sums of a step, and bits of a row of each, from which ptxas serialises products of 8-bit operands (C7512) where K is
one step: it has the sums side by side there, which in a loop it has not."""

NO_EPILOGUE = Epilogue()


def as_it_is(schedule: Schedule) -> Schedule:
    return schedule


EXCHANGE_DEPTH = 320
"""Elements of K that a CTA could multiply while its sums travel: two CTAs took 1.5 to 2 us on an H200, and 0.3 us for 64."""


@dataclass(frozen=True)
class Timed:
    """A schedule, and how long its CTA takes for one step of the loop over K, in multiply-adds of the target's best rate."""

    schedule: Schedule
    step: int

    def time(self, rows: int, columns: int, batch: int, k: int, sms: int) -> int:
        """What `batch` products of (rows, k) and (k, columns) take on so many SMs: waves x steps over K x time of a step.

        CTAs that share an SM share its tensor cores too: a wave of one on each SM counts, however many run side by side.
        """
        block_m, block_n, block_k = self.schedule.block
        split = self.schedule.split_k
        waves = -(-(-(-rows // block_m) * -(-columns // block_n) * batch * split) // sms)
        return waves * -(-(k + self.exchange) // (block_k * split)) * self.step

    @property
    def exchange(self) -> int:
        """Elements of K that the CTAs of a cluster could multiply while they exchange their sums."""
        return EXCHANGE_DEPTH * self.schedule.split_k if self.schedule.split_k > 1 else 0


@dataclass(frozen=True)
class Product:
    """What the choice of a schedule depends on, and how.

    `m`, `n`: rows and columns of the result; `batch`: number of products; `k`: the contraction, of which whole tiles are
    multiplied; None for what is known at run time only.
    `partial`: contraction elements of a partial sum at most, under the hybrid policy, else 0; `partial_bits`: of such a sum.
    `asked`: sets the fields that are not left to the table; a candidate must be legal, and keep within registers (`SPILLS`), with
    them. `wide`: whether rows of the operands are known to be whole units of 16 bytes. `f16_sums`: whether accumulators are f16.
    `eight_bits`: whether operands have 8 bits, or 16.
    """

    m: int | None
    n: int | None
    batch: int | None = 1
    epilogue: Epilogue = NO_EPILOGUE
    partial: int = 0
    asked: Callable[[Schedule], Schedule] = as_it_is
    wide: bool = True
    f16_sums: bool = False
    k: int | None = None
    eight_bits: bool = False
    partial_bits: int = 16

    @property
    def held_bits(self) -> int:
        """Of the partial sums, 0 if there are none."""
        return self.partial_bits if self.partial else 0

    def fits(self, schedule: Schedule, target: Target) -> bool:
        """Whether the target can run it."""
        operand_bytes = 1 if self.eight_bits else 2
        return (
            schedule.problem()
            or problem_on_target(schedule, target, self.epilogue, self.f16_sums, operand_bytes, self.held_bits)
        ) is None

    def complete(self, schedule: Schedule) -> Schedule:
        """A row of the table with what is asked for."""
        # Partial sums that a loop carries leave no registers for the next slot's first fragments.
        schedule = replace(schedule, prefetch=0) if self.partial >= 2 * schedule.block[2] else schedule
        all_rows = Schedule().raster
        if (
            schedule.carry
            and schedule.raster < all_rows
            and self.m is not None
            and self.m <= all_rows * schedule.block[0]
        ):
            # One group of all rows of tiles: 1.03 times as fast as two at 512 x 2048 x 3840.
            schedule = replace(schedule, raster=all_rows)
        if schedule.split_k > 1 and self.m is not None:
            # Where all tiles run at once, neighbours that read the same rows of the larger operand wait for each other: on an
            # H200 two groups of tiles of 128 rows were best by 2 to 10 %, for tall results and for wide ones, and four of 64.
            schedule = replace(schedule, raster=max(1, -(-self.m // 128) // 2))
        return self.asked(schedule)

    def rows(self, target: Target) -> list[Candidate]:
        """The rows of the table for products of this kind."""
        candidates = TABLES[self.eight_bits, self.held_bits][target.name]
        # A row is about its atom: with another one it would be another row. What TMA cannot move, wgmma does not read.
        atoms = [c for c in candidates if self.wide or c.schedule.atom != WARPGROUP_ATOM]
        # And a row that splits K, or keeps products in flight, is about its tile.
        atoms = [
            c
            for c in atoms
            if (c.schedule.split_k == 1 and not c.schedule.carry) or self.complete(c.schedule).block == c.schedule.block
        ]
        return [c for c in atoms if self.complete(c.schedule).atom == c.schedule.atom] or list(candidates)

    def kept(self, target: Target) -> list[Candidate]:
        """Those that the target can run, and ptxas keeps in registers."""
        legal = [
            c
            for c in self.rows(target)
            if self.partial >= c.least_partial
            and (not c.least_waves or self.tiles(c.schedule) >= c.least_waves * target.sms)
            and (not c.most_k or self.sizes()[-1] <= c.most_k)
            and (not c.most_m or self.sizes()[0] <= c.most_m)
            and self.fits(self.complete(c.schedule), target)
        ]
        # What is asked for may spill in any row; ptxas has the last word on that.
        return [c for c in legal if not self.refused(self.complete(c.schedule), target)] or legal

    def tiles(self, schedule: Schedule) -> int:
        """Tiles of the result, 0 where their number is known at run time only."""
        rows, columns, _ = schedule.block
        return -(-(self.m or 0) // rows) * -(-(self.n or 0) // columns) * (self.batch or 0)

    def refused(self, schedule: Schedule, target: Target) -> bool:
        """Whether ptxas was seen to make nothing of such a kernel that may be run."""
        return self.serialised(schedule) or self.spills(schedule, target)

    def spills(self, schedule: Schedule, target: Target) -> bool:
        """Whether ptxas was seen to spill such a kernel, or one of 16-bit operands with as many bytes."""
        rows, columns, depth = schedule.block
        block = (rows, columns, depth // 2 if self.eight_bits else depth)
        return _spills(replace(schedule, block=block), target, 0 if self.eight_bits else self.partial, self.wide)

    def serialised(self, schedule: Schedule) -> bool:
        """Whether ptxas was seen to serialise the products of such a kernel."""
        _, columns, depth = schedule.block
        if schedule.atom != WARPGROUP_ATOM or not (self.eight_bits and self.partial):
            return False
        one_step = self.k is not None and 0 < self.k <= depth
        many, wide = depth // self.partial >= PARTIALS_IN_LINE, columns * self.partial_bits >= WIDE_PARTIAL
        return one_step and many and wide

    def sizes(self) -> tuple[int, int, int, int]:
        """m, n, batch and k; what is known at run time only is large, but one product is enough for it."""
        m, n, k = (UNKNOWN_SIZE if size is None else size for size in (self.m, self.n, self.k))
        return m, n, 1 if self.batch is None else self.batch, k


def timed(schedule: Schedule, candidate: Candidate) -> Timed:
    """A schedule that comes of a row, with the row's time."""
    return Timed(schedule, round(prod(candidate.schedule.block) / candidate.rate))


def choose_schedule(target: Target, product: Product) -> Schedule:
    """The candidate whose waves over the target's SMs take least time (`Timed.time`); the first of equals.

    Where the epilogue leaves no room for any candidate, the smallest tile is given, with as many stages as fit (at least 1);
    where no row goes with what is asked for, other fields that are not stated are fitted to it (`schedule_fitting`).
    """
    kept, sizes = product.kept(target), product.sizes()
    if kept:
        row = min(kept, key=lambda candidate: timed(candidate.schedule, candidate).time(*sizes, target.sms))
        return _streaming(row.schedule, product, target)
    smallest = product.rows(target)[-1].schedule
    fewer = [product.complete(replace(smallest, stages=stages)) for stages in range(smallest.stages, 0, -1)]
    found = next((schedule for schedule in fewer if product.fits(schedule, target)), None)
    rows = [product.complete(candidate.schedule) for candidate in product.rows(target)]
    return found or fitted(
        [*rows, smallest], product.asked, lambda one: None if product.fits(one, target) else "it does not fit"
    )


def _streaming(schedule: Schedule, product: Product, target: Target) -> Schedule:
    """The complete schedule; where all CTAs of warpgroups run at once with operand b given up first by the L2 cache: they read
    each tile of it at about the same time. Beside an L2 full of what others wrote that is worth 1 to 4 % at 512 rows (H200)."""
    whole = product.complete(schedule)
    at_once = 0 < product.tiles(whole) * whole.split_k <= target.sms
    return product.complete(replace(schedule, evict="b")) if whole.atom == WARPGROUP_ATOM and at_once else whole


def competing_schedules(target: Target, product: Product) -> tuple[Timed, ...]:
    """The schedules among which a call chooses by its sizes as `choose_schedule` does, in the order of the table.

    They are the rows without which some sizes would take more than `WORTHWHILE` times as long: none where all sizes are known,
    or where one schedule is enough. A row that what is asked for gives another tile is not among them.
    """
    if None not in (product.m, product.n, product.batch):
        return ()
    rows = [timed(product.complete(c.schedule), c) for c in product.kept(target) if _keeps_tile(product, c)]
    times = [[row.time(*sizes, target.sms) for row in rows] for sizes in _sampled_sizes(product)]
    usual = choose_schedule(target, product)
    chosen = {number for number, row in enumerate(rows) if row.schedule == usual}
    while chosen:
        losses = [(min(at[row] for row in chosen) / min(at), at.index(min(at))) for at in times if min(at)]
        loss, best = max(losses, default=(1.0, 0))
        if loss <= WORTHWHILE:
            break
        chosen.add(best)
    return tuple(rows[number] for number in sorted(chosen)) if len(chosen) > 1 else ()


def _sampled_sizes(product: Product) -> list[tuple[int, int, int, int]]:
    """m, n, batch and k of some products. Many count as many rows: a batch that is `?` is sampled where m and n are known."""
    whole = None not in (product.m, product.n)
    sizes = SPARSE_SIZES if product.m is None and product.n is None else SAMPLED_SIZES
    rows, columns, batches = (
        sizes if size is None and sampled else (1 if size is None else size,)
        for size, sampled in ((product.m, True), (product.n, True), (product.batch, whole))
    )
    k = product.sizes()[-1]
    return [(m, n, batch, k) for m, n, batch in itertools.product(rows, columns, batches)]


def _keeps_tile(product: Product, candidate: Candidate) -> bool:
    """Whether a row still has its own tile when it has what is asked for."""
    return product.complete(candidate.schedule).block == candidate.schedule.block


def _spills(schedule: Schedule, target: Target, partial: int, wide: bool) -> bool:
    """Whether ptxas was seen to spill such a kernel."""
    transport = transport_on(schedule, target)
    copies = "narrow" if not wide else "tma" if transport == "tma" else "threads"
    return any(spill.meets(schedule, copies, partial) for spill in SPILLS[target.name])
