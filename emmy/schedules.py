"""A schedule: every decision about one kernel that changes its speed and not its meaning. Plain data.

It stands in the IR as `#tile.schedule<...>`; the fields, their defaults and what they may be are this file's table, and
so are the schedules that each target starts from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from emmy.targets import Target

TRANSPORTS = ("auto", "cp_async", "plain", "tma")
ROLES = ("unified", "specialized")
EPILOGUES = ("shared", "direct")
SITES = ("eager", "first")
PROMOTIONS = ("auto", "convert", "identity")
PARTIALS = ("auto", "slices", "steps")
ORDERS = ("auto", "grid", "heavy")
MASKS = ("loops", "guard")

WARPGROUP_ATOM = "wgmma"
"""`atom` of products that four warps issue together, 64 rows of a block at a time and all its columns (sm_90a)."""

WARPGROUP_WARPS = 4
"""Warps of a warpgroup, which issue each product of `wgmma` together."""

WARPGROUP_SHARE = "m16n8k16"
"""The atom whose register layouts one warp's share of a `wgmma` has (PTX ISA, "Register Fragments for wgmma")."""

NO_HYBRID_WARPGROUPS = f"atom = {WARPGROUP_ATOM} has no hybrid sums; use accumulate<f32>, or atom = {WARPGROUP_SHARE}"
"""Partial sums would be waited for one by one."""

CHOICES: dict[str, tuple[str, ...]] = {
    "transport": TRANSPORTS,
    "roles": ROLES,
    "epilogue": EPILOGUES,
    "sites": SITES,
    "promotion": PROMOTIONS,
    "partials": PARTIALS,
    "order": ORDERS,
    "masks": MASKS,
}
"""Fields that hold one word, and the words."""

RANGES: dict[str, tuple[int, int]] = {
    "stages": (1, 16),
    "raster": (1, 1024),
    "fragments": (1, 2),
    "delay": (0, 64),
    "prefetch": (0, 1),
    "hold": (0, 1),
    "unroll": (1, 16),
    "opt_level": (0, 3),
    "store_columns": (0, 1024),
    "batches": (1, 8),
    "producer_warps": (1, 8),
    "persistent": (0, 1),
    "splits": (0, 32),
    "spills": (0, 1024),
    "stagger": (0, 1),
    "lazy": (0, 12),
    "overlap": (0, 1),
}
"""Fields that hold a count: the smallest and the largest one."""


@dataclass(frozen=True)
class Schedule:
    """One kernel's schedule.

    block: CTA tile (M, N, K) in elements. warps: warp grid (M, N) over the CTA tile. atom: tensor-core shape, or
    `wgmma` for products of whole warpgroups, 16 rows a warp.
    stages: slots of the operand ring. transport: how global tiles reach shared memory.
    roles: one set of warps, or specialised ones: `producer_warps` more warps that only fill the rings. producer_regs,
    consumer_regs: registers of a thread of each (`setmaxnreg`); 0 takes `register_split`'s.
    persistent: 1 for as many CTAs as the card runs at once, each of which computes one tile after the other.
    splits: CTAs for each multiprocessor that share the keys of chained products, for a second kernel to combine; 0 for none.
    raster: group size of M tiles in CTA order (1 = row-major).
    fragments: operand fragments in flight (2 = double-buffered).
    epilogue: results leave through shared memory (16-byte rows) or straight from registers.
    sites: where a unified kernel issues copies: after each wait, or once a loop body.
    delay: products of a loop body that stand before its copies: one a k-step, in hybrid sums one a slice and k-step.
    batches: how many the cp.async copies of a slot are issued in, spread over the tensor instructions up to the next wait.
    hold: 1 to keep fragments of an operand that stays the same in the main loop in registers.
    prefetch: 1 to load the first fragments of the next slot before the last product of this one.
    unroll: steps of the main loop in one body; a multiple of the stages makes the slots of its rings known.
    promote: contraction elements per f16 partial; 0 takes the policy's max_k.
    promotion: how a partial goes into the f32 sum: `convert` and add, or a product with an `identity`; `auto` takes the target's.
    partials: what order the products of a partial have (`split-accumulation`); `auto` takes what registers suffice for.
    order: of tiles whose loops differ in length: as the grid numbers them, or the `heavy` ones first; `auto` is heavy.
    masks: where iterations need them: `loops` of their own, or a `guard` in one loop (`split-masks`).
    opt_level: of ptxas. spills: bytes that it may spill (stored and loaded, of each thread); more are an error.
    lazy: powers of two by which a running maximum may be passed before sums are rescaled; 0 rescales always.
    stagger: 1 to compute a product's operand k-step by k-step, each under the product of the step before (`stagger-products`).
    overlap: 1 to put a product with a computed operand under the next iteration, where roles are apart (`overlap-products`).
    store_columns: columns of a result that are staged in shared memory at once, two such parts at a time; 0 for the whole tile.
    """

    block: tuple[int, ...] = (128, 128, 64)
    warps: tuple[int, ...] = (2, 2)
    atom: str = "m16n8k16"
    stages: int = 3
    transport: str = "auto"
    roles: str = "unified"
    producer_warps: int = 4
    producer_regs: int = 0
    consumer_regs: int = 0
    persistent: int = 0
    splits: int = 0
    raster: int = 8
    fragments: int = 2
    epilogue: str = "shared"
    sites: str = "eager"
    delay: int = 1
    batches: int = 1
    prefetch: int = 1
    hold: int = 0
    unroll: int = 1
    promote: int = 0
    promotion: str = "auto"
    partials: str = "auto"
    order: str = "auto"
    masks: str = "loops"
    opt_level: int = 3
    spills: int = 0
    stagger: int = 0
    lazy: int = 0
    overlap: int = 0
    store_columns: int = 0

    def problem(self) -> str | None:
        """One sentence about what is wrong with this schedule on any target, or None."""
        if len(self.block) != 3 or any(b < 16 or b % 16 for b in self.block):
            return f"block is three positive multiples of 16 (M, N, K), got {list(self.block)}"
        if len(self.warps) != 2 or any(w < 1 for w in self.warps):
            return f"warps is a grid of two positive numbers, got {list(self.warps)}"
        for axis, step in ((0, 16), (1, 16)):
            if self.block[axis] % (self.warps[axis] * step):
                return (
                    f"block[{axis}] = {self.block[axis]} does not split over {self.warps[axis]} warps "
                    f"in multiples of {step}"
                )
        for name, words in CHOICES.items():
            if getattr(self, name) not in words:
                return f"{name} is one of {', '.join(words)}, got '{getattr(self, name)}'"
        for name, (least, most) in RANGES.items():
            if not least <= getattr(self, name) <= most:
                return f"{name} is from {least} to {most}, got {getattr(self, name)}"
        for name in ("producer_regs", "consumer_regs"):
            registers = getattr(self, name)
            if registers and (registers % 8 or not 24 <= registers <= 256):
                return f"{name} is 0 or a multiple of 8 from 24 to 256, got {registers}"
            if registers and self.roles == "unified":
                return f"{name} belongs to roles = specialized"
        if self.atom == WARPGROUP_ATOM and self.transport not in ("auto", "tma"):
            return f"atom = {WARPGROUP_ATOM} reads what TMA has written, and transport is {self.transport}"
        if self.atom == WARPGROUP_ATOM and (self.warps[0] % 4 or self.block[0] != 16 * self.warps[0]):
            return (
                f"atom = {WARPGROUP_ATOM} wants warps in fours along M and 16 rows for each, "
                f"got {self.block[0]} rows for {self.warps[0]} warps"
            )
        if self.atom == WARPGROUP_ATOM and self.stagger:
            return f"atom = {WARPGROUP_ATOM} reads registers that nothing may write meanwhile; use overlap, not stagger"
        if self.overlap and self.roles == "unified":
            return "overlap belongs to roles = specialized"
        if self.promote % 16 or self.promote < 0:
            return f"promote is a multiple of 16 elements, got {self.promote}"
        if self.store_columns and (self.block[1] % self.store_columns or self.store_columns % 16 or self.warps[1] > 1):
            return (
                f"store_columns is 0, or a multiple of 16 that divides the block's columns where one warp holds a whole row, "
                f"got {self.store_columns} of {self.block[1]} columns for {self.warps[1]} warps"
            )
        if self.cta_threads > 1024:
            return f"a CTA has at most 32 warps, got {self.cta_threads // 32}"
        return None

    @property
    def fragment_atom(self) -> str:
        """The atom that says how fragments lie in registers."""
        return WARPGROUP_SHARE if self.atom == WARPGROUP_ATOM else self.atom

    @property
    def threads(self) -> int:
        """Threads of the math warps."""
        return 32 * self.warps[0] * self.warps[1]

    @property
    def cta_threads(self) -> int:
        """Threads of all roles."""
        return self.threads + (32 * self.producer_warps if self.roles == "specialized" else 0)


SCHEDULE_FIELDS: dict[str, object] = {f.name: f.default for f in fields(Schedule)}
"""Field name -> default, in declaration order."""


# ---- what a target can run -------------------------------------------------------------------------------------------

AUTO_TRANSPORT = {"sm_80": "cp_async", "sm_89": "cp_async", "sm_90a": "tma", "sm_120a": "tma"}
"""Target name -> what `transport = auto` means; with `tma`, tensors that TMA cannot move are copied by cp.async."""


def transport_on(schedule: Schedule, target: Target) -> str:
    """What moves a schedule's tiles on a target: `auto` by its name."""
    return AUTO_TRANSPORT[target.name] if schedule.transport == "auto" else schedule.transport


MBARRIER_BYTES = 8
"""Bytes of shared memory of an mbarrier: a slot has one if TMA fills it, two if another role reads it than fills it."""

PRODUCER_REGISTERS = {"tma": 24, "cp_async": 40, "plain": 72}
"""Transport -> registers of a thread that only fills rings: TMA needs a few counters, copies by threads addresses."""

MOST_CONSUMER_REGISTERS = 240
"""More than the 255 that an instruction can name, rounded down to what `setmaxnreg` takes, would be idle."""

ELEMENTWISE_BLOCK = (32, 256)
"""Tile (rows, columns) of a kernel without a product."""

ELEMENTWISE_SCHEDULE = Schedule(block=(*ELEMENTWISE_BLOCK, 16), warps=(2, 2), stages=1, raster=1)
"""Of a kernel without a product (its block's K is not used): bound by memory, so nothing here matters much."""

ADDRESS_REGISTERS = 24
"""Registers that a product's main loop needs beside accumulators and fragments: addresses, counters (measured: 20-30)."""


SHARED_ALIGNMENT = 1024
"""Bytes at a multiple of which each ring begins in shared memory (`allocate-shared`; the 128-byte swizzle wants it)."""

SHARED_ROW_BYTES = 32
"""What each row of a tile takes at least in shared memory, and a multiple of (`emmy.layout.shared`)."""


@dataclass(frozen=True)
class Epilogue:
    """What a product's kernel does with its sums, as far as shared memory goes.

    result_bytes: of one element of the widest result, which is staged over the drained operand ring.
    tensors: of each tensor that it reads beside the product's operands, whether its tile spans rows and columns, and the
    bytes of one element; each tile has a place of its own, so that it can arrive during the main loop.
    further_bytes: of one element of all other results; where the ring fills again meanwhile, each has a place of its own.
    """

    result_bytes: int = 2
    tensors: tuple[tuple[bool, bool, int], ...] = ()
    further_bytes: int = 0


def shared_bytes(schedule: Schedule, epilogue: Epilogue = Epilogue(), operand_bytes: int = 2) -> int:
    """Bytes of shared memory of a product whose operands have `operand_bytes` an element."""
    rows, columns, depth = schedule.block
    slots = schedule.stages + len(epilogue.tensors)
    end = schedule.stages * (rows + columns) * depth * operand_bytes
    for spans_rows, spans_columns, element in epilogue.tensors:
        start = -(-end // SHARED_ALIGNMENT) * SHARED_ALIGNMENT
        row_bytes = (columns if spans_columns else 1) * element
        end = start + (rows if spans_rows else 1) * -(-row_bytes // SHARED_ROW_BYTES) * SHARED_ROW_BYTES
    staged = min(2 * schedule.store_columns, columns) or columns
    each_column = epilogue.result_bytes + (epilogue.further_bytes if schedule.persistent else 0)
    result = rows * staged * each_column if schedule.epilogue == "shared" else 0
    # A CTA that goes on with the next tile fills the ring while the result leaves: they do not share bytes.
    end = (
        -(-end // SHARED_ALIGNMENT) * SHARED_ALIGNMENT + result if schedule.persistent and result else max(end, result)
    )
    each = 2 if schedule.roles == "specialized" else int(schedule.transport == "tma")
    return end + slots * each * MBARRIER_BYTES


def least_registers(schedule: Schedule, f16_sums: bool = False) -> int:
    """32-bit registers that a thread of a product cannot do without: accumulators, one set of fragments, addresses."""
    rows, columns = (schedule.block[axis] // schedule.warps[axis] for axis in (0, 1))
    accumulators = rows * columns // (64 if f16_sums else 32)
    operands = 0 if schedule.atom == WARPGROUP_ATOM else (rows + columns) * 16 // 64
    return accumulators + operands + ADDRESS_REGISTERS


def entry_registers(target: Target, threads: int) -> int:
    """Registers that ptxas gives each thread at entry, one CTA an SM: it rounds down to a multiple of 8."""
    return min(target.registers_per_sm // threads, target.registers_per_thread) // 8 * 8


@dataclass(frozen=True)
class RegisterSplit:
    """Registers of a thread of each role, for `setmaxnreg`."""

    producer: int
    consumer: int


def register_split(schedule: Schedule, target: Target) -> RegisterSplit | str | None:
    """How specialised roles share the registers; a sentence about what is wrong with what the schedule asks for.

    The pool is what all threads have at entry. None where nothing is to be gained, or can be: the target has no
    `setmaxnreg`, a role is no whole number of warpgroups, or each thread has all registers that it can use anyway.
    """
    asked = schedule.producer_regs or schedule.consumer_regs
    warps = schedule.threads // 32, schedule.producer_warps
    if not target.setmaxnreg or any(count % 4 for count in warps):
        if not asked:
            return None
        if not target.setmaxnreg:
            return f"producer_regs and consumer_regs need setmaxnreg, which {target.name} has not"
        return f"setmaxnreg is for whole warpgroups of 4 warps, and the roles have {warps[0]} and {warps[1]}"
    entry = entry_registers(target, schedule.cta_threads)
    if not asked and entry >= MOST_CONSUMER_REGISTERS:
        return None
    pool = entry * schedule.cta_threads
    transport = transport_on(schedule, target)
    producer = schedule.producer_regs or PRODUCER_REGISTERS[transport]
    left = (pool - 32 * warps[1] * producer) // schedule.threads // 8 * 8
    consumer = schedule.consumer_regs or min(left, MOST_CONSUMER_REGISTERS)
    if consumer > left:
        return (
            f"{warps[0]} warps with {consumer} registers a thread and {warps[1]} with {producer} are more than the "
            f"{pool} registers that {schedule.cta_threads} threads start with"
        )
    return RegisterSplit(producer, consumer)


def problem_on_target(
    schedule: Schedule, target: Target, epilogue: Epilogue = Epilogue(), f16_sums: bool = False
) -> str | None:
    """One sentence about why a target cannot run a product of 16-bit operands with this schedule, or None.

    `f16_sums`: whether accumulators are f16.
    """
    if schedule.splits:
        return f"splits is for two products in a row, where it is a number of CTAs; this is one product, got {schedule.splits}"
    if schedule.transport == "tma" and not target.tma:
        return f"transport = tma needs sm_90 or later, and the target is {target.name}; use cp_async"
    needed = shared_bytes(replace(schedule, transport=transport_on(schedule, target)), epilogue)
    return problem_with_limits(schedule, target, needed, least_registers(schedule, f16_sums))


def problem_with_limits(schedule: Schedule, target: Target, shared: int, registers: int) -> str | None:
    """One sentence about which limit of a CTA of the target a kernel exceeds, or None.

    shared: bytes of shared memory that it needs. registers: 32-bit registers that each of its math threads needs.
    """
    limit = target.shared_bytes_per_block
    if shared > limit:
        return (
            f"it needs {shared} bytes of shared memory, and a CTA of {target.name} has {limit}; reduce block or stages"
        )
    if schedule.cta_threads > target.max_threads:
        return f"it has {schedule.cta_threads} threads, and a CTA of {target.name} has at most {target.max_threads}"
    limit = min(target.registers_per_thread, target.registers_per_sm // schedule.cta_threads)
    if schedule.roles == "specialized":
        split = register_split(schedule, target)
        if isinstance(split, str):
            return split
        limit = min(split.consumer, target.registers_per_thread) if split else limit
    if registers > limit:
        return (
            f"each thread needs at least {registers} registers and can have {limit}; use more warps or a smaller block"
        )
    return None


def problem_with_warpgroups(schedule: Schedule, target: Target, hybrid: bool) -> str | None:
    """One sentence about why products of warpgroups, if the schedule asks for them, cannot be, or None."""
    if schedule.atom != WARPGROUP_ATOM:
        return None
    if not target.wgmma:
        return f"atom = {WARPGROUP_ATOM} needs sm_90a, and the target is {target.name}"
    return NO_HYBRID_WARPGROUPS if hybrid else None


# ---- where a target starts from --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """A schedule to choose from; `rate`: tensor throughput of full waves of it, relative to the target's best.

    `resident`: CTAs that an SM runs side by side, as far as that decides how many tiles make a wave.
    `least_partial`: it is for hybrid sums whose partials may have so many elements.
    """

    schedule: Schedule
    rate: float
    resident: int = 1
    least_partial: int = 0


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
# shared-memory traffic of a multiply-add, which grows as the warp tile shrinks, and wait for a measurement. Three batches of
# copies gain 2 % where one CTA has the SM to itself, and nothing where two share it.
_LARGE_SHARED = (
    *_tiles(((128, 256, 64), (2, 4), 3, 1.0), base=Schedule(transport="cp_async", delay=0, batches=3)),
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
    *_tiles(((128, 256, 64), (2, 4), 4, 1.0), ((128, 192, 64), (2, 4), 4, 0.97)),
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
_LARGE_SHARED_WGMMA = tuple(
    Candidate(replace(_WGMMA, block=(rows, columns, depth), warps=(rows // 16, 1), stages=stages), rate)
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
        ("sm_90a", _LARGE_SHARED_WGMMA + _LARGE_SHARED_TMA),
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

UNKNOWN_SIZE = 65536
"""What a `?` dimension counts as: large enough that full waves decide."""


def as_it_is(schedule: Schedule) -> Schedule:
    return schedule


def choose_schedule(
    target: Target,
    m: int | None,
    n: int | None,
    batch: int | None = 1,
    epilogue: Epilogue = Epilogue(),
    partial: int = 0,
    *,
    asked: Callable[[Schedule], Schedule] = as_it_is,
    wide: bool = True,
    f16_sums: bool = False,
    k: int | None = None,
) -> Schedule:
    """The candidate whose waves over the target's SMs take least time: waves x elements of a tile x depth / rate.

    `m`, `n`: rows and columns of the result; `batch`: number of products; `k`: the contraction, of which whole tiles are
    multiplied; None for what is known at run time only.
    `partial`: contraction elements that are summed in f16 at most, under the hybrid policy, else 0. `asked`: sets the fields
    that are not left to the table; a candidate must be legal, and keep within registers (`SPILLS`), with them. `wide`:
    whether rows of the operands are known to be whole units of 16 bytes. `f16_sums`: whether accumulators are f16.
    Where the epilogue leaves no room for any candidate, the smallest tile is given, with as many stages as fit (at least 1).
    """
    rows, columns = (UNKNOWN_SIZE if size is None else size for size in (m, n))

    def time(candidate: Candidate) -> float:
        block_m, block_n, block_k = candidate.schedule.block
        tiles = -(-rows // block_m) * -(-columns // block_n) * (1 if batch is None else batch)
        full, rest = divmod(tiles, target.sms * candidate.resident)
        # CTAs that share an SM share its tensor cores too: a full wave of them takes as long as that many of single ones.
        units = full * candidate.resident + -(-rest // target.sms)
        depth = 1 if not k else -(-k // block_k) * block_k / k
        return units * block_m * block_n * depth / candidate.rate

    def fits(schedule: Schedule) -> bool:
        return (schedule.problem() or problem_on_target(schedule, target, epilogue, f16_sums)) is None

    def complete(schedule: Schedule) -> Schedule:
        # Partial sums that a loop carries leave no registers for the next slot's first fragments.
        return asked(replace(schedule, prefetch=0) if partial >= 2 * schedule.block[2] else schedule)

    candidates = (HYBRID_CANDIDATES if partial else CANDIDATES)[target.name]
    # A row is about its atom: with another one it would be another row. What TMA cannot move, wgmma does not read.
    atoms = [c for c in candidates if wide or c.schedule.atom != WARPGROUP_ATOM]
    rows_of = [c for c in atoms if complete(c.schedule).atom == c.schedule.atom] or candidates
    legal = [c for c in rows_of if partial >= c.least_partial and fits(complete(c.schedule))]
    # What is asked for may spill in any row; ptxas has the last word on that.
    kept = [c for c in legal if not _spills(complete(c.schedule), target, partial, wide)] or legal
    if kept:
        return complete(min(kept, key=time).schedule)
    smallest = rows_of[-1].schedule
    fewer = [complete(replace(smallest, stages=stages)) for stages in range(smallest.stages, 0, -1)]
    return next((schedule for schedule in fewer if fits(schedule)), fewer[-1])


def _spills(schedule: Schedule, target: Target, partial: int, wide: bool) -> bool:
    """Whether ptxas was seen to spill such a kernel."""
    transport = transport_on(schedule, target)
    copies = "narrow" if not wide else "tma" if transport == "tma" else "threads"
    return any(spill.meets(schedule, copies, partial) for spill in SPILLS[target.name])
