"""Schedules of which only some fields are stated: the others are chosen so that they fit those, where no row of a table does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product

from emmy.schedules import Schedule

PLAIN: dict[str, object] = {
    "transport": "auto",
    "evict": "none",
    "persistent": 0,
    "splits": 0,
    "store_columns": 0,
    "stagger": 0,
    "overlap": 0,
    "hold": 0,
    "repeat": 0,
    "late_stages": 0,
    "turns": 0,
    "carry": 0,
    "reuse": 0,
    "producer_regs": 0,
    "consumer_regs": 0,
}
"""Fields that refine a schedule, and say nothing: without them nearly any other field is legal."""

GRIDS = ((8, 1), (4, 1), (4, 2), (2, 4), (2, 2), (2, 1), (1, 2), (1, 1), (4, 4))
"""Grids of warps that are tried, those with most rows for each warp's columns first."""

ROWS_OF_A_WARP = (16, 32, 64)
"""Rows of a block for each warp that are tried, where a row's own do not split."""

COLUMNS = (256, 128, 64, 32, 16)
"""Columns of a block that are tried, those of the table's row first."""


def fitted(
    rows: Sequence[Schedule], asked: Callable[[Schedule], Schedule], problem: Callable[[Schedule], str | None]
) -> Schedule:
    """The first schedule that has no problem among what the rows become with the fields that `asked` sets, and others that are
    not stated fitted to them: refinements left out, roles, grids of warps, blocks, stages.

    Where all of them have one, the first whose fields at least fit each other, so that the problem is about what is asked for.
    """
    seen, consistent = set[Schedule](), list[Schedule]()
    for row in rows:
        for schedule in _variations(row):
            for stages in range(row.stages, 0, -1):
                one = asked(replace(schedule, stages=stages))
                if one in seen:
                    if one.stages != stages:  # they are stated: all that follow are the same
                        break
                    continue
                seen.add(one)
                if one.problem() is not None:
                    break
                consistent.append(one)
                if problem(one) is None:
                    return one
    return next(iter(consistent), asked(replace(rows[-1], **PLAIN)))  # pyright: ignore[reportArgumentType]


def _variations(row: Schedule) -> Iterator[Schedule]:
    """The row, and what else it may be with the same depth, by how little it differs."""
    plain = replace(row, **PLAIN)  # pyright: ignore[reportArgumentType]
    together = replace(plain, roles="unified")
    apart = replace(plain, roles="specialized")
    for base, warps in product(dict.fromkeys((row, plain, together, apart)), dict.fromkeys((row.warps, *GRIDS))):
        most, columns, depth = row.block
        for each, wide in product(dict.fromkeys((most, *(n * warps[0] for n in ROWS_OF_A_WARP))), (columns, *COLUMNS)):
            if wide <= max(columns, COLUMNS[0]):
                yield replace(base, warps=warps, block=(each, wide, depth))
