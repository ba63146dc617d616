"""Shared memory of the level-3 interpreter: rings of slots whose every cell knows what it holds and who may see it.

A cell is one row by up to 8 columns of a field. It records the ticket whose data is in it (-1: poison), who wrote it, when that
one knew the data to be there, and when each one last read it. Who: a warp, or the copy engine of a slot. When: in that one's own
time, which moves on whenever it arrives somewhere. A later access of another one is ordered after it exactly if that one's clock
has come to know of that time (vector clocks): no luck is involved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emmy.errors import EmmyError

Array = NDArray[Any]
Place = tuple[int | slice, ...]

NEVER = 1 << 30
"""`done` of a cell whose copy is in flight."""


def read_box(view: Array, indices: Sequence[int], box: Sequence[int], share: int = 0, shares: int = 1) -> Array:
    """A box of a view at element offsets, zeros beyond the bounds; of its rows (axis -2) only every `shares`-th from `share`."""
    full, rows = _full_box(view, box), _rows(box, share, shares)
    part = np.zeros([1] * (view.ndim - len(box)) + _share_shape(box, rows), view.dtype)
    source, target = _overlap(view, indices, full, rows)
    part[target] = view[source]
    return part.reshape(_share_shape(box, rows))


def write_box(view: Array, indices: Sequence[int], value: Array, share: int = 0, shares: int = 1) -> None:
    """Write a box (its full rows in `value`) into a view at element offsets; what is beyond the bounds is dropped."""
    rows = _rows(value.shape, share, shares)
    part = value[..., rows, :] if value.ndim > 1 else value[rows]
    source, target = _overlap(view, indices, _full_box(view, value.shape), rows)
    view[source] = part.reshape([1] * (view.ndim - part.ndim) + list(part.shape))[target]


def _full_box(view: Array, box: Sequence[int]) -> list[int]:
    return [1] * (view.ndim - len(box)) + list(box)


def _rows(box: Sequence[int], share: int, shares: int) -> slice:
    """The rows of one share; a box of rank 1 belongs to share 0 whole."""
    if len(box) > 1:
        return slice(share, box[-2], shares)
    return slice(0, box[0] if share == 0 else 0, 1)


def _share_shape(box: Sequence[int], rows: slice) -> list[int]:
    axis = max(0, len(box) - 2)
    return [len(range(rows.start, rows.stop, rows.step)) if i == axis else b for i, b in enumerate(box)]


def _overlap(view: Array, indices: Sequence[int], box: Sequence[int], rows: slice) -> tuple[Place, Place]:
    """(slices of the view, slices of the box's share) where both exist. Raises `EmmyError` for an offset below 0."""
    if min(indices, default=0) < 0:
        raise EmmyError(f"a box begins at {list(map(int, indices))}: element offsets are not negative")
    source: list[slice] = []
    target: list[slice] = []
    row_axis = max(0, view.ndim - 2)
    for axis, (start, extent, size) in enumerate(zip(indices, box, view.shape, strict=True)):
        valid = max(0, min(extent, size - start))
        first, step = (rows.start, rows.step) if axis == row_axis else (0, 1)
        if axis == row_axis:
            valid = min(valid, rows.stop)
        count = len(range(first, valid, step))
        source.append(slice(start + first, start + valid if count else start + first, step))
        target.append(slice(0, count))
    return tuple(source), tuple(target)


class Cells:
    """One field of a ring: `data` (stages, *shape) and what is known of each cell."""

    def __init__(self, stages: int, shape: tuple[int, ...], dtype: np.dtype[Any], parties: int):
        self.shape = shape
        self.granule = gcd(8, shape[-1])
        self.poison: Any = np.iinfo(np.int32).min if dtype.kind == "i" else np.nan
        self.data: Array = np.full((stages, *shape), self.poison, dtype)
        cells = (stages, *shape[:-1], shape[-1] // self.granule)
        self.ticket = np.full(cells, -1, np.int32)
        self.writer = np.full(cells, -1, np.int32)
        self.done = np.full(cells, -1, np.int32)
        self.reads = np.full((parties, *cells), -1, np.int32)
        self.fenced = np.ones(cells, np.bool_)
        """Not where a thread has written since its last proxy fence: the copy engine may not see that."""

    def place(self, stage: int, at: Sequence[int], box: Sequence[int]) -> tuple[Place, Place] | None:
        """(elements, cells) of a box at an offset in a stage; None if it leaves the field. A row fits a field of rank 1."""
        box = box[-len(self.shape) :]
        sizes = [1] * (len(self.shape) - len(box)) + list(box)
        if any(a < 0 or a + b > s for a, b, s in zip(at, sizes, self.shape, strict=True)):
            return None
        elements = tuple(slice(a, a + b) for a, b in zip(at, sizes, strict=True))
        last = slice(at[-1] // self.granule, -(-(at[-1] + sizes[-1]) // self.granule))
        return (stage, *elements), (stage, *elements[:-1], last)

    def share(self, stage: int, share: int, shares: int) -> Place:
        """A warp's share of a stage: the same rows that `read_box` gives; good for elements and for cells."""
        axes = len(self.shape)
        return (stage, *([slice(None)] * max(0, axes - 2)), _rows(self.shape, share, shares))

    def clear(self, stage: int) -> None:
        """Poison a whole stage."""
        self.data[stage] = self.poison
        self.ticket[stage] = -1


@dataclass(eq=False)
class Flight:
    """A copy that has been issued: where it goes and what it will write there. `on_landing` is told once."""

    cells: Cells
    place: Place
    value: Array
    ticket: int
    landed: bool = False
    on_landing: Callable[[], None] | None = None

    def land(self) -> None:
        """Write the data, once."""
        if not self.landed:
            self.cells.data[self.place] = self.value
            self.cells.ticket[self.place] = self.ticket
            self.landed = True
            if self.on_landing is not None:
                self.on_landing()


@dataclass(eq=False)
class Outflow:
    """A TMA store that has been issued: it reads its field when it lands, and finds out what is there by then."""

    cells: Cells
    stage: int
    ticket: int
    write: Callable[[Array], None]
    landed: bool = False
    intact: bool = True

    def land(self) -> None:
        """Read the slot and write the view, once. Not `intact` if somebody has changed the slot in the meantime."""
        if not self.landed:
            self.landed = True
            self.intact = bool((self.cells.ticket[self.stage] == self.ticket).all())
            self.write(self.cells.data[self.stage])


@dataclass(eq=False)
class Arrival:
    """An arrival that comes by itself when copies have landed (`cp.async.mbarrier.arrive.noinc`)."""

    flights: list[Flight]
    count: int


class Mbarrier:
    """The full or empty barrier of one slot: ends a phase when all arrivals and all expected bytes are there."""

    def __init__(self, count: int, parties: int):
        self.count = count
        self.pending = count
        self.bytes = 0
        """Expected bytes that have not landed."""
        self.phases = 0
        """Phases that have ended."""
        self.known: Array = np.zeros(parties, np.int32)
        """What those know that wait for the last phase that has ended."""
        self.arriving: Array = np.zeros(parties, np.int32)
        self.flights: list[Flight] = []
        self.arrivals: list[Arrival] = []

    def passes(self, parity: int) -> bool:
        """`try_wait.parity`: has the phase of that parity, the running one or the one before it, ended?"""
        return self.phases % 2 != parity

    def arrive(self, clock: Array, count: int = 1) -> bool:
        """False if more arrive than are counted."""
        self.arriving = np.maximum(self.arriving, clock)
        self.pending -= count
        self.settle()
        return self.pending >= 0

    def settle(self) -> None:
        """End the phase if nothing is missing."""
        if self.pending == 0 and self.bytes == 0:
            self.phases += 1
            self.pending = self.count
            self.known = np.maximum(self.known, self.arriving)

    def land(self) -> None:
        """What has been issued for this barrier lands now."""
        for flight in [*self.flights, *(f for arrival in self.arrivals for f in arrival.flights)]:
            flight.land()


@dataclass(frozen=True)
class Barriers:
    """What a lowered pipeline says of itself: arrivals of its mbarriers, whether TMA fills it, and its bytes, where known."""

    full: int | None = None
    empty: int | None = None
    tma: bool = False
    span: tuple[int, int] | None = None


class Ring:
    """A pipeline: its fields, who fills and who reads it, and how far each ticket has come."""

    def __init__(
        self,
        name: str,
        stages: int,
        outbound: bool,
        fields: dict[str, tuple[tuple[int, ...], np.dtype[Any]]],
        warps: int,
        parties: int,
        engine: int,
        barriers: Barriers = Barriers(),
        cluster: int = 1,
    ):
        self.name = name
        self.cluster = cluster
        """CTAs that each fill a slot of their own, and read those of all."""
        self.stages = stages
        self.outbound = outbound
        self.fields = {field: Cells(stages, shape, dtype, parties) for field, (shape, dtype) in fields.items()}
        self.fillers = 0
        self.readers = 0
        self.opened = 0
        """Tickets that some warp has acquired."""
        self.committed: dict[int, int] = {}
        self.released: dict[int, int] = {}
        """Ticket -> warps that have committed (released) it."""
        self.arrived: dict[tuple[int, int], int] = {}
        """(ticket, number of the store) -> warps that are there."""
        self.waited: dict[int, set[int]] = {}
        """Ticket -> the warps that have waited for it."""
        self.in_turn = False
        """Do two roles read it in turn?"""
        self.flights: dict[int, list[Flight]] = {}
        self.engine = engine
        """The number of slot 0's copy engine among all parties, which are the warps and then the engines."""
        self.barriers = barriers
        self.full = [Mbarrier(barriers.full, parties) for _ in range(stages) if barriers.full is not None]
        self.empty = [Mbarrier(barriers.empty, parties) for _ in range(stages) if barriers.empty is not None]
        self.last_read = [-1] * warps
        """For each warp, its time at its last read of any slot."""

    def poison(self, ticket: int) -> None:
        """Nothing in the ticket's slot may be read any more."""
        for cells in self.fields.values():
            cells.clear(ticket % self.stages)
