"""The schedules that each target starts from, as measured, and what ptxas spills: `emmy.schedule_choice` picks one of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from emmy.schedule_limits import AUTO_TRANSPORT
from emmy.schedules import EIGHT_BIT_SHARE, PINGPONG, WARPGROUP_ATOM, Schedule

ELEMENTWISE_BLOCK = (32, 256)
"""Tile (rows, columns) of a kernel without a product."""

ELEMENTWISE_SCHEDULE = Schedule(block=(*ELEMENTWISE_BLOCK, 16), warps=(2, 2), stages=1, raster=1)
"""Of a kernel without a product (its block's K is not used): bound by memory, so nothing here matters much."""


@dataclass(frozen=True)
class Candidate:
    """A schedule to choose from; `rate`: tensor throughput of full waves of it, relative to the target's best.

    `resident`: CTAs that an SM runs side by side, as far as that decides how many tiles make a wave.
    `least_partial`: it is for hybrid sums whose partials may have so many elements. `least_waves`: for so many waves, of known
    sizes; `most_k`, `most_m`: for contractions known to be no longer, for results known to have no more rows; 0 for any.
    """

    schedule: Schedule
    rate: float
    resident: int = 1
    least_partial: int = 0
    least_waves: int = 0
    most_k: int = 0
    most_m: int = 0


def _tiles(
    *rows: tuple[tuple[int, int, int], tuple[int, int], int, float], base: Schedule = Schedule(transport="cp_async")
) -> tuple[Candidate, ...]:
    """Candidates of rows (block, warps, stages, rate); what else they are is in `base`."""
    return tuple(
        Candidate(replace(base, block=block, warps=warps, stages=stages), rate) for block, warps, stages, rate in rows
    )


# Sums of the hybrid policy fill the register file: ptxas keeps the order of the text, and with it the registers, at -O1 only
# (-O3 takes 255 and spills some). Their products are slices, four k-steps a slice: copies come behind two of them, for at the
# end of the first slice, when all of operand a is there, no registers are left for their addresses. A depth of 64 lets a
# partial sum be as long as the default max_k, but leaves one CTA of four warps on an SM where two were.
_HYBRID = Schedule(transport="cp_async", delay=2, opt_level=1)

# Rates of 128x256 and 128x128 are measured on an H200 at 4096^3 (0.660 and 0.621 of cuBLAS); the others follow from the
# shared-memory traffic of a multiply-add, which grows as the warp tile shrinks, and wait for a measurement. Two batches of
# copies gain 3 % where one CTA has the SM to itself (three: 0 to 3), and nothing where two share it.
_LARGE_SHARED = (
    *_tiles(((128, 256, 64), (2, 4), 3, 1.0), base=Schedule(transport="cp_async", delay=0, batches=2)),
    *_tiles(
        ((128, 128, 64), (2, 2), 3, 0.92),
        ((64, 128, 64), (2, 2), 4, 0.75),
        ((128, 64, 64), (2, 2), 4, 0.75),
        ((64, 64, 64), (2, 2), 5, 0.55),
    ),
)
# By TMA, two CTAs of the square tile hide each other's ends and starts, and gain 2 to 4 % where there are many waves; 192
# columns make whole waves of what 256 do not (N = 3840). Measured on an H200 (docs/measurements.md).
_LARGE_SHARED_TMA = (
    Candidate(Schedule(block=(128, 128, 64), warps=(2, 2), stages=3, unroll=3), 1.01, resident=2),
    Candidate(Schedule(block=(128, 256, 64), warps=(2, 4), stages=3, batches=2, unroll=3), 1.0),
    *_tiles(((128, 192, 64), (2, 4), 4, 0.97)),
    *_LARGE_SHARED[2:],
)
# With 99 KB of shared memory: a depth of 32 keeps four stages of the large tile, and two CTAs of the next one on an SM.
_SMALL_SHARED = _tiles(
    ((128, 256, 32), (2, 4), 4, 1.0),
    ((128, 128, 32), (2, 2), 3, 0.92),
    ((64, 128, 64), (2, 2), 3, 0.75),
    ((128, 64, 64), (2, 2), 3, 0.75),
    ((64, 64, 64), (2, 2), 4, 0.55),
)


# Products of warpgroups, which all rows below do in the same way: a producer warpgroup, two that multiply 64 rows each (one
# for tiles of 64 rows), the result staged in parts of 64 columns while the next tile's operands arrive. Rates are relative to
# those of mma.sync above, and measured on an H200 (docs/measurements.md). One warpgroup has nothing to hide the wait for its
# products behind: deeper tiles wait more seldom.
_WGMMA = Schedule(
    atom=WARPGROUP_ATOM, warps=(8, 1), roles="specialized", persistent=1, store_columns=64, fragments=1, prefetch=0
)


def _warpgroups(block: tuple[int, int, int], stages: int, **fields: Any) -> Schedule:
    """A tile of theirs. Parts of its result are panels, or another multiple of 16 columns that divides it, or all of it."""
    part = next((columns for columns in (_WGMMA.store_columns, 48, 80) if block[1] % columns == 0), 0)
    base = replace(_WGMMA, block=block, warps=(block[0] // 16, 1), stages=stages, store_columns=part)
    return replace(base, **fields)


_LARGE_SHARED_WGMMA = tuple(
    Candidate(_warpgroups((rows, columns, depth), stages), rate)
    for rows, columns, depth, stages, rate in (
        (128, 256, 64, 4, 1.45),
        (128, 320, 64, 3, 1.45),
        (128, 192, 64, 4, 1.43),
        (128, 192, 64, 3, 1.4),
        (128, 128, 64, 6, 1.38),
        (128, 128, 64, 4, 1.35),
        (128, 64, 64, 8, 1.1),
        (64, 128, 128, 4, 1.15),
        (64, 64, 256, 3, 0.85),
        (64, 64, 64, 8, 0.7),
    )
) + tuple(
    # Two CTAs share a tile where tiles fill half a wave: 1.09 and 1.1 times as fast as the rows above at N = 512, K = 3840.
    Candidate(_warpgroups(block, stages, split_k=2, persistent=0, carry=carry), rate)
    for block, stages, carry, rate in (((128, 128, 64), 6, 0, 1.38), ((64, 64, 128), 4, 1, 0.8))
)

# Of 16-bit operands only, as measured. 240 columns make whole waves of N = 3840 from M = 2048 on (1.04 to 1.06 of the rows
# above), and 120 columns at M = 512 (1.01 to 1.03). One warpgroup whose products stay in flight over an iteration is 1.08 times
# as fast at 2048 x 512 x 3840 as two CTAs for each tile. Two that take turns hide the store of their results: of many waves
# that is worth 2 to 8 % (262144 columns), most of it where the card is at its limit of power, and 3 to 10 % where K is short;
# elsewhere it costs 5 %. Of few rows 192 columns are 1.02 to 1.04 times as fast as 256.
_WHOLE_WAVES_WGMMA = (
    Candidate(_warpgroups((128, 240, 64), 4, store_columns=80, carry=1), 1.44),
    Candidate(_warpgroups((128, 240, 64), 3), 1.39),
    Candidate(_warpgroups((128, 120, 64), 6, carry=1), 1.34),
    Candidate(_warpgroups((64, 128, 64), 8, carry=1, raster=4), 1.3),
    Candidate(_warpgroups((64, 256, 64), 4, carry=1, raster=32, consumers=PINGPONG), 1.48, least_waves=60),
    Candidate(_warpgroups((64, 192, 64), 6, carry=1, consumers=PINGPONG), 1.5, least_waves=60, most_m=512),
    Candidate(_warpgroups((64, 256, 64), 4, carry=1, consumers=PINGPONG), 1.5, least_waves=16, most_k=1024),
)


def _transported(target: str, candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
    """The candidates with the target's transport by name; `auto` where that is TMA, so that any tensor is legal."""
    word = "auto" if AUTO_TRANSPORT[target] == "tma" else AUTO_TRANSPORT[target]
    delay = 0 if word == "auto" else None
    return tuple(
        replace(c, schedule=replace(c.schedule, transport=word, delay=c.schedule.delay if delay is None else delay))
        for c in candidates
    )


CANDIDATES: dict[str, tuple[Candidate, ...]] = {
    target: _transported(target, candidates)
    for target, candidates in (
        ("sm_80", _LARGE_SHARED),
        ("sm_89", _SMALL_SHARED),
        ("sm_90a", _LARGE_SHARED_WGMMA + _WHOLE_WAVES_WGMMA + _LARGE_SHARED_TMA),
        ("sm_120a", _SMALL_SHARED),
    )
}
"""Target name -> the schedules that `choose_schedule` picks from, largest tile first."""

_LARGE_SHARED_HYBRID = tuple(
    replace(c, schedule=replace(c.schedule, delay=_HYBRID.delay, batches=1, opt_level=_HYBRID.opt_level))
    for c in _LARGE_SHARED
)
_SMALL_SHARED_HYBRID = _tiles(
    ((128, 256, 64), (2, 4), 2, 1.0),
    ((128, 128, 64), (2, 2), 3, 0.85),
    ((64, 128, 64), (2, 2), 3, 0.75),
    ((128, 64, 64), (2, 2), 3, 0.75),
    ((64, 64, 64), (2, 2), 4, 0.55),
    base=_HYBRID,
)

# On an H200, where promotion is not paid for by a doubled rate: k-step by k-step over a depth of 128, 0.87 of the f32 kernel
# (0.81 slice by slice over a depth of 64). That depth also holds a partial sum of 128 elements: 0.93.
_LONG_HYBRID = Schedule(block=(128, 256, 128), warps=(2, 4), stages=2, delay=2, opt_level=1)
# Two bodies of promotions every 32 elements would be more than 2,000 instructions, and gain 0.5 %.
_STEPS_HYBRID = replace(_LONG_HYBRID, partials="steps")

HYBRID_CANDIDATES: dict[str, tuple[Candidate, ...]] = {
    "sm_80": _LARGE_SHARED_HYBRID,
    "sm_89": _SMALL_SHARED_HYBRID,
    "sm_90a": (
        Candidate(_LONG_HYBRID, 1.04, least_partial=128),
        Candidate(replace(_STEPS_HYBRID, unroll=2), 1.005, least_partial=64),
        Candidate(_STEPS_HYBRID, 1.0),
        # Slice by slice over a depth of 64: 0.81 of the f32 kernel.
        *(
            replace(c, rate=0.93 * c.rate, schedule=replace(c.schedule, transport="auto"))
            for c in _LARGE_SHARED_HYBRID[:2]
        ),
        *_LARGE_SHARED_HYBRID[2:],
    ),
    "sm_120a": _SMALL_SHARED_HYBRID,
}
"""The same for sums of the hybrid policy."""


def _eight_bits(candidate: Candidate) -> Candidate:
    """The row for operands of 8 bits: as many bytes of K, and so twice as many elements; everything else stays."""
    schedule, (rows, columns, depth) = candidate.schedule, candidate.schedule.block
    atom = schedule.atom if schedule.atom == WARPGROUP_ATOM else EIGHT_BIT_SHARE
    return replace(candidate, schedule=replace(schedule, block=(rows, columns, 2 * depth), atom=atom, carry=0))


# Beside scales of each row there is no room for a fourth stage, which is no loss (H200, 4096^3: 94.2 us with three, 93.9 with
# four). The other rows relate to each other as those of f16 do.
_EIGHT_BIT_WGMMA = Candidate(replace(_WGMMA, block=(128, 256, 128), stages=3), 1.44)

# mma.sync of 8 bits is two products of f16 on Hopper, whose operands are unpacked in registers: ptxas spills where a warp has
# 64 x 64 sums. It is for rows that TMA does not take.
_EIGHT_BIT_UNPACKED = _tiles(
    ((128, 128, 128), (2, 4), 3, 0.92),
    ((64, 128, 128), (2, 4), 4, 0.75),
    ((64, 64, 128), (2, 2), 5, 0.55),
    base=Schedule(transport="cp_async", atom=EIGHT_BIT_SHARE),
)

EIGHT_BIT_CANDIDATES: dict[str, tuple[Candidate, ...]] = {
    "sm_89": tuple(map(_eight_bits, CANDIDATES["sm_89"])),
    "sm_90a": _transported(
        "sm_90a",
        (
            *map(_eight_bits, _LARGE_SHARED_WGMMA[:1]),
            _EIGHT_BIT_WGMMA,
            *map(_eight_bits, _LARGE_SHARED_WGMMA[1:]),
            *_EIGHT_BIT_UNPACKED,
        ),
    ),
    "sm_120a": tuple(map(_eight_bits, CANDIDATES["sm_120a"])),
}
"""The schedules of products of 8-bit operands."""

# Partial sums in f32 are as large as the sums: a warp has 64 rows of 32 columns, and a warpgroup 192 columns at most, where 256
# would be 256 registers.
_EIGHT_BIT_HYBRID = _tiles(
    ((128, 128, 128), (2, 4), 3, 1.0),
    ((64, 128, 128), (2, 4), 4, 0.8),
    ((64, 64, 128), (2, 2), 4, 0.6),
    base=replace(_HYBRID, atom=EIGHT_BIT_SHARE),
)

EIGHT_BIT_HYBRID_CANDIDATES: dict[str, tuple[Candidate, ...]] = {
    target: (
        *(
            # In partials of less than a slot's K, 192 columns are too many for ptxas (C7512).
            replace(c, rate=0.9 * c.rate, least_partial=128 if c.schedule.block[1] == 192 else 0)
            for c in rows
            if c.schedule.atom == WARPGROUP_ATOM and c.schedule.block[1] <= 192 and c.schedule.split_k == 1
        ),
        *_transported(target, _EIGHT_BIT_HYBRID),
    )
    for target, rows in EIGHT_BIT_CANDIDATES.items()
}
"""The same for sums of the hybrid policy."""


# With partial sums of f16 registers are those of f16 operands, whose k-steps have as many bytes; and of warpgroups' 256 columns
# they are 64 beside 128. None of these is timed: rates are those of the tables that they come from.
EIGHT_BIT_F16_HYBRID_CANDIDATES: dict[str, tuple[Candidate, ...]] = {
    "sm_89": tuple(map(_eight_bits, HYBRID_CANDIDATES["sm_89"])),
    "sm_90a": (
        *(
            replace(c, rate=0.9 * c.rate)
            for c in EIGHT_BIT_CANDIDATES["sm_90a"]
            if c.schedule.atom == WARPGROUP_ATOM and c.schedule.block[1] <= 256 and c.schedule.split_k == 1
        ),
        *_transported("sm_90a", _EIGHT_BIT_HYBRID),
    ),
    "sm_120a": tuple(map(_eight_bits, HYBRID_CANDIDATES["sm_120a"])),
}
"""The same where partial sums are f16."""


@dataclass(frozen=True)
class Spill:
    """Kernels that ptxas was seen to spill, in some layout of the operands: the table's choice is another row there.

    copies: what fills the ring (words of `COPIES`). roles: one set of warps, or two. partial: elements of the shortest f16
    partial sum that spills; 0 stands for all sums, f32 and f16 ones included.
    """

    block: tuple[int, int, int]
    copies: tuple[str, ...]
    roles: tuple[str, ...]
    partial: int = 0

    def meets(self, schedule: Schedule, copies: str, partial: int) -> bool:
        """Whether it is about this schedule."""
        return (
            schedule.block == self.block
            and copies in self.copies
            and schedule.roles in self.roles
            and partial >= self.partial
        )


COPIES = ("tma", "threads", "narrow")
"""What fills a ring, as far as registers go: TMA; threads, 16 bytes at a time; threads, with less or by an unknown stride."""

_BY_THREADS = COPIES[1:]
_APART = ("specialized",)
_TOGETHER = ("unified",)

SPILLS: dict[str, tuple[Spill, ...]] = {
    "sm_80": (Spill((128, 128, 64), _BY_THREADS, _TOGETHER, partial=128),),
    "sm_89": (
        Spill((128, 128, 64), _BY_THREADS, _TOGETHER, partial=128),
        Spill((128, 256, 32), ("narrow",), _TOGETHER),
    ),
    # Of 12 warps, 4 of which copy, neither role has the registers that it needs, by a few bytes.
    "sm_90a": (
        Spill((128, 192, 64), _BY_THREADS, _APART),
        Spill((128, 256, 64), _BY_THREADS, _APART),
        Spill((128, 256, 64), ("tma",), _APART, partial=16),
        Spill((128, 256, 128), COPIES, _APART),
        Spill((128, 256, 128), _BY_THREADS, _TOGETHER),
        Spill((128, 128, 64), _BY_THREADS, _TOGETHER, partial=128),
    ),
    "sm_120a": (
        Spill((128, 256, 32), _BY_THREADS, _APART),
        Spill((128, 256, 64), _BY_THREADS, _APART),
    ),
}
"""Target name -> what spills there; `tests/unit/test_registers.py` assembles what is left."""

TABLES = {
    (False, 0): CANDIDATES,
    (False, 16): HYBRID_CANDIDATES,
    (True, 0): EIGHT_BIT_CANDIDATES,
    (True, 32): EIGHT_BIT_HYBRID_CANDIDATES,
    (True, 16): EIGHT_BIT_F16_HYBRID_CANDIDATES,
}
"""Whether operands have 8 bits, and bits of the partial sums of the hybrid policy, 0 for others -> the table."""
