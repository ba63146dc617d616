"""Schedules of kernels with two products in a row: the first one's result is, after elementwise ops, operand a of the second.

The block of such a kernel is (rows, keys, depth): rows of both results, what the first product's columns and the second one's
contraction are cut into, and the whole contraction of the first one. Where warps split the rows only, the first result's
registers are the operand of the second product; where they split columns as well, it passes through shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from emmy.atoms import get_atom
from emmy.errors import EmmyError
from emmy.schedule_choice import UNKNOWN_SIZE, as_it_is
from emmy.schedule_fitting import fitted
from emmy.schedule_limits import (
    ADDRESS_REGISTERS,
    MBARRIER_BYTES,
    SHARED_ALIGNMENT,
    problem_with_limits,
    problem_with_parts,
    problem_with_warpgroups,
    transport_on,
)
from emmy.schedules import WARPGROUP_ATOM, WARPGROUP_SHARE, Schedule
from emmy.targets import Target
from emmy.variants import Variant

EXCHANGED_BYTES = 32
"""Of a statistic of one row, that each of several warps beside each other writes: 8 values in f32."""


PANEL_COLUMNS = 64
"""Columns of 16 bits of a panel in shared memory (`emmy.layout.shared`): a descriptor of transposed operands begins at one."""

WARPGROUP_REGISTERS = 28
"""Registers beside sums and operands in a loop on `wgmma`; with fewer ptxas serialises the products (measured: C7512)."""


@dataclass(frozen=True)
class Chain:
    """What a chain of products asks for.

    depth: contraction of the first product; width: columns of the second one, both padded to whole k-steps of 16 elements.
    element: `f16` or `bf16`. max_k: elements that either product sums in f16 at most, 0 if neither does.
    result_bytes: of one element of the result. tensors: bytes of an element of each further tensor of rows x keys.
    rows: of both products in each batch, None for what is known at run time only. page: keys that lie together, which a block
    must divide; None for all. ragged: whether batches have different numbers of rows and keys. ranged: whether rows see some of
    the keys only, by their positions; window: whether all but the first rows see equally many. batches: how many pairs of
    products there are, None for what is known at run time only. wide: whether rows of the three tensors are whole units of 16
    bytes, as TMA moves them. narrow: whether there are further tensors and rows of some tensor are no such units, so that threads
    copy many small pieces. alike: whether both products have the same operand b, of one size for all batches. streamed: bytes of
    the operands b of all batches, None for what is known at run time only.
    """

    depth: int
    width: int
    element: str = "f16"
    max_k: int = 0
    result_bytes: int = 2
    tensors: tuple[int, ...] = ()
    rows: int | None = None
    page: int | None = None
    ragged: bool = False
    ranged: bool = False
    batches: int | None = None
    wide: bool = True
    narrow: bool = False
    window: bool = False
    alike: bool = False
    streamed: int | None = None


@dataclass(frozen=True)
class ChainRow:
    """A row of the table: the schedule of chains up to this depth and width; if `rows` is given, of so few rows; if `ranged` or
    `window` is, of such chains; with `tiles`, of so many blocks of its rows at least, or of an unknown number. `f16_sums`:
    whether it has registers for a product that is summed in f16 first. `plain`: of chains that have three tensors of one size
    for all batches: addresses of others take registers that it has not; `alone`: of such chains, where TMA moves the tensors.
    `wider`: of chains with further tensors.
    `rate`: how fast its products are where there are many tiles, among the rows of its depth that have one; 0 for none.

    The schedule's block[2] stands for the depth of the chain.
    """

    most: int
    schedule: Schedule
    rows: int | None = None
    ranged: bool | None = None
    f16_sums: bool = True
    tiles: int = 0
    plain: bool = False
    alone: bool = False
    wider: bool = False
    rate: float = 0.0
    window: bool | None = None

    def fits(self, chain: Chain) -> bool:
        """Whether the row is for a chain."""
        few = self.rows is None or (chain.rows is not None and chain.rows <= self.rows)
        alike = (
            self.ranged in (None, chain.ranged)
            and self.window in (None, chain.window)
            and (self.f16_sums or not chain.max_k)
        )
        known = chain.rows is not None and chain.batches is not None
        enough = not known or (chain.batches or 0) * -(-(chain.rows or 0) // self.schedule.block[0]) >= self.tiles
        plain = not (chain.tensors or chain.ragged or chain.page)
        whose = (plain or not self.plain) and ((plain and chain.wide) or not self.alone)
        whose = whose and (bool(chain.tensors) or not self.wider)
        return few and alike and enough and whose and max(chain.depth, chain.width) <= self.most


def _row(most: int, block: tuple[int, int], warps: int, stages: int, across: int = 1, **fields: Any) -> ChainRow:
    base = Schedule(raster=1, delay=0, prefetch=0)
    return ChainRow(most, replace(base, block=(*block, most), warps=(warps, across), stages=stages, **fields))


NARROW_KEYS = 32
"""Keys of a block at most, where threads copy small pieces of further tensors as well: with 64 a kernel has up to 7,200 ops."""
FEW_ROWS = 16
"""As many as have schedules of their own: one warp of them streams keys as fast as they come."""


def _few(most: int, keys: int, stages: int, splits: int, across: int = 1, **fields: Any) -> ChainRow:
    """Few rows: one warp of rows a CTA, and as many CTAs on a multiprocessor as keep its share of the memory busy."""
    base: dict[str, Any] = {"splits": splits, "epilogue": "direct", **fields}
    return replace(_row(most, (FEW_ROWS, keys), 1, stages, across, **base), rows=FEW_ROWS)


# 32 rows a warp halve the traffic of shared memory against 16, where registers allow them: at a depth of 128 they do not,
# without warps of their own for copies.
_LARGE_SHARED = (
    _few(64, 64, 3, 4),
    _few(128, 64, 2, 3),
    _few(256, 32, 2, 3),
    _few(512, 32, 1, 2, across=2),
    replace(_row(64, (128, 64), 8, 2), wider=True),
    _row(64, (128, 64), 4, 2),
    _row(128, (128, 64), 8, 2),
    _row(256, (128, 64), 8, 1),
    _row(512, (64, 32), 4, 1, across=2),
)
_SMALL_SHARED = (
    _few(64, 64, 2, 2),
    _few(128, 32, 2, 2),
    _few(256, 16, 2, 2),
    _few(512, 32, 1, 1, across=2),
    replace(_row(64, (128, 64), 8, 2), wider=True),
    _row(64, (128, 64), 4, 2),
    _row(128, (64, 32), 4, 2),
    _row(256, (64, 32), 4, 1),
    _row(512, (16, 32), 1, 1, across=2),
)


def _apart(
    most: int, block: tuple[int, int], stages: int, ranged: bool, across: int = 1, min_ctas: int = 1, **fields: Any
) -> ChainRow:
    """A warpgroup that only copies and gives its registers to the 8 warps of the others, `across` of them beside each other; or
    to 4 warps where an SM has room for two such CTAs."""
    consumer = 240 if min_ctas == 1 else 232
    base: dict[str, Any] = {
        "roles": "specialized",
        "producer_regs": 24,
        "consumer_regs": consumer,
        "min_ctas": min_ctas,
    }
    row = _row(most, block, 8 // across // min_ctas, stages, across, **base, lazy=8, fragments=1, **fields)
    return replace(row, ranged=ranged, f16_sums=False)


_PAIRS: dict[str, Any] = {"across": 2, "seldom": 1, "spills": 128}

# Measured on an H200 beside PyTorch's FA-2 (docs/measurements.md): 32 rows a warp; at a depth of 256 two warps share them, and
# the columns. Where the work of tiles differs and there are few of them, small ones that two CTAs of a multiprocessor share
# fill it best; so they do for windows, of which large tiles see more keys that most of their rows do not.
_MEASURED = (
    _apart(64, (256, 64), 2, False, prefetch=1),
    replace(_apart(64, (256, 64), 2, True, prefetch=1, masks="guard"), tiles=512),
    replace(_row(64, (128, 64), 4, 2, transport="cp_async", prefetch=1), ranged=True, f16_sums=False),
    replace(_apart(128, (256, 64), 2, False, stagger=1, ahead=8, opt_level=1, spills=320), plain=True),
    replace(_apart(128, (256, 64), 2, True, masks="guard", spills=320), plain=True),
    replace(_apart(256, (128, 96), 1, False, **_PAIRS), plain=True),
    replace(
        _apart(256, (64, 64), 1, True, min_ctas=2, masks="guard", ahead=8, opt_level=1, **_PAIRS),
        plain=True,
        window=True,
    ),
    replace(_apart(256, (128, 96), 1, True, masks="guard", **_PAIRS), plain=True),
)


def _warpgroups(
    most: int,
    warpgroups: int,
    keys: int,
    ranged: bool,
    rate: float = 1.0,
    stages: int = 2,
    across: int = 1,
    **fields: Any,
) -> ChainRow:
    """Warpgroups of 64 rows each on `wgmma` (`across` beside each other share the result's columns), and one that only copies."""
    base: dict[str, Any] = {"atom": WARPGROUP_ATOM, "roles": "specialized", "lazy": 8, "fragments": 1}
    base |= {"overlap": 1, "repeat": int(across > 1)}
    row = _row(most, (64 * warpgroups, keys), 4 * warpgroups, stages, across, **{**base, **fields})
    return replace(row, ranged=ranged, f16_sums=False, alone=True, rate=rate)


# Measured on an H200 beside cuDNN (docs/measurements.md). Registers decide: 160, 112 or 240 a thread with 3, 4 or 2 warpgroups.
# Tiles of one length leave no SM idle between them if CTAs stay; others start by their lengths, which balances better.
_WARPGROUPS = (
    _warpgroups(64, 3, 128, False, persistent=1),
    _warpgroups(64, 4, 64, False, 0.92, overlap=0),
    _warpgroups(64, 2, 128, False, 0.77),
    _warpgroups(64, 3, 128, True),
    _warpgroups(64, 2, 128, True, 0.8, masks="guard"),
    _warpgroups(128, 3, 80, False, persistent=1),
    _warpgroups(128, 2, 128, False, 0.91, persistent=1),
    _warpgroups(128, 3, 80, True),
    _warpgroups(128, 2, 128, True, 0.95),
    _warpgroups(256, 2, 64, False, persistent=1, store_columns=64),
    _warpgroups(256, 2, 64, True, persistent=1, store_columns=64),
    # Where there is at most a wave of tiles the longest one decides: 1.24 times as fast at 512 rows of 16 heads.
    _warpgroups(256, 1, 64, True, 0.65, store_columns=64, lazy=0),
)
# Two warpgroups beside each other compute the same scores: as halves they would be too narrow for operands that are read from
# shared memory, and would have to be exchanged.
_WARPGROUPS_BESIDE = (
    # Keys that are the values are copied once, which leaves no room to stage the result; looking whether sums must be rescaled
    # costs more than rescaling them (4 % at 2048 rows). CTAs that stay are worth 2 %.
    _warpgroups(512, 1, 64, True, stages=2, across=2, overlap=0, persistent=1, reuse=1, lazy=0, epilogue="direct"),
    _warpgroups(512, 1, 64, False, stages=1, across=2, overlap=0),
    _warpgroups(512, 1, 64, True, stages=1, across=2, overlap=0),
)


def _by_threads(row: ChainRow) -> ChainRow:
    """The row with copies by `cp.async`: one warp that streams keys has 4.55 TB/s so and 4.08 by TMA at a depth of 256 (H200).
    Keys and values are read once, and where they are few (`STREAMED_CACHES`) take no place in the L2 cache from what is read
    again or has to be written first."""
    return replace(row, schedule=replace(row.schedule, transport="cp_async", evict="b"))


STREAMED_CACHES = 4
"""L2 caches that operands b may be at most to be given up first. Beside an L2 full of what others wrote that made decoding 1.11
times as fast with 67 MB, 1.05 with 134 MB, and no faster with 268 MB; from 537 MB it cost 4 % (H200)."""

CHAINED_ROWS: dict[str, tuple[ChainRow, ...]] = {
    "sm_80": _LARGE_SHARED,
    "sm_89": _SMALL_SHARED,
    "sm_90a": (
        *map(_by_threads, _LARGE_SHARED[:3]),
        _LARGE_SHARED[3],
        *(replace(row, rows=row.schedule.block[0]) for row in _LARGE_SHARED[4:-1]),
        *_WARPGROUPS,
        *_MEASURED,
        *_LARGE_SHARED[4:-1],
        *_WARPGROUPS_BESIDE,
        _row(512, (64, 64), 2, 1, across=4, roles="specialized", prefetch=1, masks="guard", spills=16),
    ),
    "sm_120a": _SMALL_SHARED,
}
"""Target name -> rows, those for few rows first, by growing depth; `table_row` says which one a chain takes."""


PACK = Schedule(block=(16, 64, 16), warps=(1, 1), stages=1, raster=1, delay=0, prefetch=0, epilogue="direct")
"""Of the kernel that makes rows of one tile of the heads that share keys."""
COMBINE = Schedule(block=(64, 32, 16), warps=(1, 1), stages=2, raster=1, delay=0, prefetch=0, epilogue="direct")
"""Of the kernel that combines splits, some columns of one row a CTA. The block's rows are splits, of which there are seldom more:
all that a CTA does is one wait for memory."""


def choose_chained_schedule(target: Target, chain: Chain, asked: Callable[[Schedule], Schedule] = as_it_is) -> Schedule:
    """The row of the target's table, completed by `asked`, which sets the fields that are not left to the table.

    Where further tensors leave no room it has fewer stages, then fewer keys; where what is asked for leaves no row, other fields
    that are not stated are fitted to it (`schedule_fitting`). Raises nothing: if nothing is legal, what comes nearest is given.
    """
    row = table_row(target, chain, asked)[1]
    schedule = _tried(row, target, chain, asked)
    if problem_of_chain(schedule, target, chain) is None:
        return schedule
    others = [one for one in CHAINED_ROWS[target.name] if one.most >= max(chain.depth, chain.width)]
    of_atom = [one for one in others if asked(one.schedule).atom == one.schedule.atom and one.rows is None]
    bases = [replace(one.schedule, block=(*one.schedule.block[:2], chain.depth)) for one in (row, *of_atom)]
    return fitted(bases, asked, lambda one: problem_of_chain(one, target, chain))


def _tried(row: ChainRow, target: Target, chain: Chain, asked: Callable[[Schedule], Schedule]) -> Schedule:
    """The row with as many stages and keys as are legal. What it says of asynchronous copies goes where others are asked for, or
    there is more to stream than is worth it."""
    schedule = row.schedule
    few = chain.streamed is not None and chain.streamed <= STREAMED_CACHES * target.l2_bytes
    if not few or asked(schedule).transport == "plain":
        schedule = replace(schedule, evict="none")
    rows, most, _ = schedule.block
    most = min(most, NARROW_KEYS) if chain.narrow else most
    tried = [
        asked(replace(schedule, block=(rows, keys, chain.depth), warps=_split_over(schedule, keys), stages=stages))
        for keys in (most >> shift & ~15 for shift in range(most.bit_length() - 4))
        for stages in range(schedule.stages, 0, -1)
    ]
    return next((one for one in tried if problem_of_chain(one, target, chain) is None), tried[-1])


def _split_over(schedule: Schedule, keys: int) -> tuple[int, int]:
    """The warp grid, with fewer of its warps beside each other where there are too few keys for them to share."""
    warps, across = schedule.warps, schedule.warps[1]
    while across > 1 and keys % (16 * across) and not schedule.repeat:
        across //= 2
    return warps[0] * warps[1] // across, across


def table_row(target: Target, chain: Chain, asked: Callable[[Schedule], Schedule] = as_it_is) -> tuple[int, ChainRow]:
    """The row for a chain, and its number from 1: the first that is for it and legal with what is asked, else the last one
    that is for it. Where the table has rows of the atom that is asked for, others do not count.

    If that row has a rate, all of its depth that have one compete: whose waves over the target's SMs take least time.
    """
    rows = CHAINED_ROWS[target.name]
    atoms = {row.schedule.atom for row in rows}
    fitting, legal = [(len(rows), rows[-1])], list[tuple[int, ChainRow]]()
    for number, row in enumerate(rows, 1):
        atom = asked(row.schedule).atom
        if row.fits(chain) and (atom == row.schedule.atom or atom not in atoms):
            fitting.append((number, row))
            if problem_of_chain(_tried(row, target, chain, asked), target, chain) is None:
                legal.append((number, row))
    if not legal:
        return fitting[-1]
    first = legal[0][1]
    rivals = [one for one in legal if one[1].rate and one[1].most == first.most]
    return min(rivals, key=lambda one: _time(one[1], target, chain)) if first.rate else legal[0]


def _time(row: ChainRow, target: Target, chain: Chain) -> float:
    """Of a chain, relative: rows that the busiest SM computes; where tiles differ in length they even out, up to the longest."""
    block = row.schedule.block[0]
    rows, batches = (UNKNOWN_SIZE if size is None else size for size in (chain.rows, chain.batches))
    tiles = -(-rows // block) * batches
    busiest = max(tiles / 2 / target.sms, 1) if chain.ranged else -(-tiles // target.sms)
    return busiest * block / row.rate


def variant_schedule(variant: Variant, schedule: Schedule, further: bool = False) -> Schedule:
    """The schedule of a variant: tensors that are aligned to less than 16 bytes are copied by the threads that compute.
    `further`: whether there are more than the three tensors of both products."""
    if variant.layout == "dense" or variant.align == 16:
        return schedule
    atom = WARPGROUP_SHARE if schedule.atom == WARPGROUP_ATOM else schedule.atom
    rows, keys, depth = schedule.block
    if further:
        keys = min(keys, NARROW_KEYS if variant.align > 2 else NARROW_KEYS // 2)
    block = rows, keys, depth
    plain = replace(schedule, block=block, atom=atom, transport="cp_async", roles="unified", overlap=0, turns=0)
    return replace(plain, producer_regs=0, consumer_regs=0)


def chained_shared_bytes(schedule: Schedule, chain: Chain, operand_bytes: int = 2) -> int:
    """Bytes of shared memory: the rows' operand once, rings of the two others and of further tensors, each on its own.

    Warps beside each other exchange the second product's operand, and twice a statistic of each row, 8 f32 of each warp, unless
    each of them computes all of it.
    """
    rows, keys, depth = schedule.block
    slots = [
        (1, rows * depth * operand_bytes),
        (schedule.stages, keys * depth * operand_bytes),
    ]
    if not schedule.reuse:
        slots.append((schedule.late_stages or schedule.stages, keys * chain.width * operand_bytes))
    slots += [(schedule.stages, rows * keys * element) for element in chain.tensors]
    across = 1 if schedule.repeat else schedule.warps[1]
    exchanges = [rows * keys * operand_bytes, *[rows * EXCHANGED_BYTES * across] * 2] if across > 1 else []
    slots += [(1, size) for size in exchanges]
    end = 0
    for stages, size in slots:
        end = -(-end // SHARED_ALIGNMENT) * SHARED_ALIGNMENT + stages * size
    result_bytes = 4 if schedule.splits else chain.result_bytes
    staged = min(2 * schedule.store_columns, chain.width) or chain.width
    result = rows * staged * result_bytes if schedule.epilogue == "shared" else 0
    if schedule.persistent:
        # The next tile's operands arrive while the result leaves.
        end, result = -(-end // SHARED_ALIGNMENT) * SHARED_ALIGNMENT + result, 0
    each = 2 if schedule.roles == "specialized" else int(schedule.transport == "tma")
    return max(end, result) + sum(stages for stages, _ in slots[: len(slots) - len(exchanges)]) * each * MBARRIER_BYTES


def chained_registers(schedule: Schedule, chain: Chain) -> int:
    """32-bit registers that a thread cannot do without: both accumulators, operands in registers, addresses.

    With `wgmma` the second product's operand is whole, beside the next scores if they overlap.
    """
    rows, keys, _ = schedule.block
    each, across = rows // schedule.warps[0], schedule.warps[1]
    sums = each * (keys // (1 if schedule.repeat else across) + chain.width // across) // 32
    if schedule.atom == WARPGROUP_ATOM:
        return sums + each * keys // 64 * schedule.overlap + WARPGROUP_REGISTERS
    return sums + (each + 16) * 16 // 64 + ADDRESS_REGISTERS


def problem_of_chain(schedule: Schedule, target: Target, chain: Chain) -> str | None:
    """One sentence about why a target cannot run the chain with this schedule, or None."""
    depth, problem = schedule.block[2], schedule.problem()
    if problem is not None:
        return problem
    if schedule.block[1] % 16:
        return f"block[1] is the second product's contraction too: it is a multiple of 16, got {schedule.block[1]}"
    if chain.width % (8 * schedule.warps[1]):
        return (
            f"{chain.width} columns of the second product do not split over {schedule.warps[1]} warps in multiples of 8"
        )
    if schedule.atom == WARPGROUP_ATOM and schedule.warps[1] > 1:
        if not schedule.repeat:
            return f"atom = {WARPGROUP_ATOM} reads computed operands from registers: warps that split columns want repeat = 1"
        if chain.width % (PANEL_COLUMNS * schedule.warps[1]):
            return (
                f"{chain.width} columns of the second product do not split over {schedule.warps[1]} warps in multiples of "
                f"{PANEL_COLUMNS}, where atom = {WARPGROUP_ATOM} finds them in shared memory"
            )
    if schedule.reuse and not chain.alike:
        return "reuse = 1 is for keys that are the values, where both are one tensor of one size for all batches"
    if depth != chain.depth:
        return f"block[2] is the whole depth of the first product, {chain.depth}, got {depth}"
    if chain.page is not None and chain.page % schedule.block[1]:
        return f"block[1] divides a page's {chain.page} keys, got {schedule.block[1]}"
    if chain.ragged and schedule.splits:
        return f"splits wants sequences of one number of rows, got {schedule.splits}"
    for problem in (
        problem_with_parts(schedule, chain.width),
        problem_with_warpgroups(schedule, target, hybrid=bool(chain.max_k)),
        _problem_with_tma(schedule, chain),
    ):
        if problem is not None:
            return problem
    if schedule.promote > chain.max_k:
        return f"promote = {schedule.promote} is more than the policy's max_k = {chain.max_k}"
    if schedule.transport == "tma" and not target.tma:
        return f"transport = tma needs sm_90 or later, and the target is {target.name}; use cp_async"
    try:
        get_atom(schedule.fragment_atom, chain.element, "f16" if chain.max_k else "f32", target.name)
    except EmmyError as error:
        return error.message
    needed = chained_shared_bytes(replace(schedule, transport=transport_on(schedule, target)), chain)
    columns = max(schedule.block[1], chain.width // schedule.warps[1])
    return problem_with_limits(schedule, target, needed, chained_registers(schedule, chain), columns)


def _problem_with_tma(schedule: Schedule, chain: Chain) -> str | None:
    """One sentence about why TMA cannot fill what products of warpgroups read, or None."""
    if schedule.atom != WARPGROUP_ATOM:
        return None
    why = "rows are no whole units of 16 bytes" * (not chain.wide)
    why = why or "sequences are packed" * chain.ragged or "keys lie in pages" * (chain.page is not None)
    return f"atom = {WARPGROUP_ATOM} reads what TMA has written, and TMA cannot copy these: {why}" if why else None
