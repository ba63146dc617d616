"""`Layout`: a map from tile coordinates to places, linear over bits inside a panel and repeated by strides.

The package docstring (`emmy.layout`) explains the idea with a picture. This file holds the map itself, its inverse
and equality, and `fit`, which finds the panel and the strides of a map that is given as a table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from emmy.errors import EmmyError

Place = tuple[int, ...]
"""One number for each axis of the place: (register, lane), (register, lane, warp) or (byte,)."""

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Repeat:
    """`count` items, each `stride` after the one before (added axis by axis)."""

    count: int
    stride: Place


@dataclass(frozen=True)
class Digit:
    """A coordinate counts through its digits like an odometer: this one has `radix` values and steps the coordinate by
    `unit` and the place by `place`."""

    unit: int
    radix: int
    place: Place


@dataclass(frozen=True)
class Dimension:
    """What one coordinate contributes to the place.

    `bits[i]` is the place of bit i of the coordinate; they are XORed. What lies above those bits counts through
    `repeats`, the first one fastest; these are added.
    """

    name: str
    bits: tuple[Place, ...] = ()
    repeats: tuple[Repeat, ...] = ()

    @property
    def extent(self) -> int:
        """How many values the coordinate takes, from 0."""
        return (1 << len(self.bits)) * math.prod(repeat.count for repeat in self.repeats)

    def digits(self) -> Iterator[Digit]:
        """The bits, then the repeats, from the least significant."""
        for bit, place in enumerate(self.bits):
            yield Digit(1 << bit, 2, place)
        unit = 1 << len(self.bits)
        for repeat in self.repeats:
            yield Digit(unit, repeat.count, repeat.stride)
            unit *= repeat.count


@dataclass(frozen=True, eq=False)
class Layout:
    """A map from coordinates (usually row, col) to places.

    `dimensions` says what each coordinate contributes, `axes` names the numbers of a place: ("register", "lane"),
    ("register", "lane", "warp") or ("byte",). Registers count *elements*: two 16-bit elements share a 32-bit
    register, the even one in the lower half. `copies` lists where else an element lives: at its place plus any sum of
    multiples below `count` of each `stride`.

    Two layouts are equal if they put the same elements into the same places, however that is written.
    """

    dimensions: tuple[Dimension, ...]
    axes: tuple[str, ...]
    copies: tuple[Repeat, ...] = ()

    def __post_init__(self) -> None:
        places = [digit.place for dimension in self.dimensions for digit in dimension.digits()]
        places += [copy.stride for copy in self.copies]
        if any(len(place) != len(self.axes) for place in places):
            raise EmmyError(f"every place of this layout needs one number for each of the axes {', '.join(self.axes)}")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the coordinates."""
        return tuple(dimension.name for dimension in self.dimensions)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extent of each coordinate."""
        return tuple(dimension.extent for dimension in self.dimensions)

    @cached_property
    def place_shape(self) -> tuple[int, ...]:
        """The extent of each axis of the places in use: one more than the largest number on it."""
        return tuple(
            int(values.max()) + sum((copy.count - 1) * copy.stride[axis] for copy in self.copies) + 1
            for axis, values in enumerate(self.values)
        )

    @cached_property
    def values(self) -> tuple[Integers, ...]:
        """The place of every element, one array of shape `shape` for each axis."""
        return self.apply(*np.ix_(*(np.arange(extent) for extent in self.shape)))

    def apply(self, *coordinates: ArrayLike) -> tuple[Integers, ...]:
        """The place of each element (its first, if it has copies), as one array for each axis.

        Takes one array or number for each coordinate; they are broadcast against each other. Raises `EmmyError` if one
        lies outside the tile.
        """
        if len(coordinates) != len(self.dimensions):
            raise EmmyError(f"this layout takes the coordinates {', '.join(self.names)}; {len(coordinates)} were given")
        arrays = np.broadcast_arrays(*(np.asarray(coordinate, dtype=np.int64) for coordinate in coordinates))
        panel = [np.zeros(arrays[0].shape, dtype=np.int64) for _ in self.axes]
        added = [np.zeros(arrays[0].shape, dtype=np.int64) for _ in self.axes]
        for dimension, coordinate in zip(self.dimensions, arrays, strict=True):
            if coordinate.size and not (0 <= coordinate.min() and coordinate.max() < dimension.extent):
                raise EmmyError(f"a {dimension.name} lies outside the {dimension.extent} that this layout has")
            for bit, place in enumerate(dimension.bits):
                for axis, number in enumerate(place):
                    panel[axis] ^= ((coordinate >> bit) & 1) * number
            above = coordinate >> len(dimension.bits)
            for repeat in dimension.repeats:
                for axis, number in enumerate(repeat.stride):
                    added[axis] += (above % repeat.count) * number
                above = above // repeat.count
        return tuple(p + a for p, a in zip(panel, added, strict=True))

    def places(self, *coordinates: ArrayLike) -> tuple[Integers, ...]:
        """As `apply`, but every place that holds the element, along one more (last) array dimension."""
        offsets = self._copy_offsets
        return tuple(first[..., None] + offsets[:, axis] for axis, first in enumerate(self.apply(*coordinates)))

    @cached_property
    def _copy_offsets(self) -> Integers:
        """Where the copies of an element lie relative to its first place; shape (number of copies, axes)."""
        offsets = np.zeros((1, len(self.axes)), dtype=np.int64)
        for copy in self.copies:
            steps = np.arange(copy.count)[:, None] * np.array(copy.stride, dtype=np.int64)
            offsets = (offsets[:, None, :] + steps).reshape(-1, len(self.axes))
        return offsets

    def _shared(self) -> Iterator[tuple[int, Digit]]:
        """The digits that contribute nothing, so that elements share a place, each with the number of its dimension."""
        for index, dimension in enumerate(self.dimensions):
            for digit in dimension.digits():
                if digit.radix > 1 and not any(digit.place):
                    yield index, digit

    def _representatives(self) -> tuple[Integers, ...]:
        """One coordinate tuple for each set of elements that share a place by broadcasting: an open mesh."""
        lines = [np.arange(extent) for extent in self.shape]
        for index, digit in self._shared():
            lines[index] = lines[index][lines[index] // digit.unit % digit.radix == 0]
        return np.ix_(*lines)

    def _occupied(self) -> Integers:
        """The places of the representatives and of their copies, numbered row-major in `place_shape`; each as often as
        it is used. The last array dimension runs over the copies."""
        number = np.zeros((), dtype=np.int64)
        for extent, values in zip(self.place_shape, self.places(*self._representatives()), strict=True):
            number = number * extent + values
        return number

    def is_onto(self) -> bool:
        """Does every place of `place_shape` hold an element?"""
        return len(np.unique(self._occupied())) == math.prod(self.place_shape)

    def is_one_to_one(self) -> bool:
        """Does no place hold two elements, unless they differ only in coordinates that contribute nothing?"""
        occupied = self._occupied()
        return len(np.unique(occupied)) == occupied.size

    def inverse(self) -> Layout:
        """The layout from places to coordinates. Raises `EmmyError` unless this one is onto and one-to-one.

        Places that are copies map to the same element; elements that share a place are copies in the inverse.
        """
        if not (self.is_onto() and self.is_one_to_one()):
            raise EmmyError(f"this layout has no inverse, because it is not onto and one-to-one: {self}")
        occupied = self._occupied()
        tables: list[Integers] = []
        for line in self._representatives():
            table = np.zeros(math.prod(self.place_shape), dtype=np.int64)
            table[occupied] = line[..., None]
            tables.append(table.reshape(self.place_shape))
        copies = tuple(
            Repeat(digit.radix, tuple(digit.unit * (d == index) for d in range(len(self.dimensions))))
            for index, digit in self._shared()
        )
        return fit(self.axes, self.names, tables, copies)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        return (
            (self.names, self.shape, self.axes) == (other.names, other.shape, other.axes)
            and all(np.array_equal(a, b) for a, b in zip(self.values, other.values, strict=True))
            and np.array_equal(np.unique(self._copy_offsets, axis=0), np.unique(other._copy_offsets, axis=0))
        )

    def __hash__(self) -> int:
        return hash((self.names, self.shape, self.axes))

    def __repr__(self) -> str:
        """For example `row 16: ^lane 4 ^lane 8 ^lane 16 ^register 2; col 8: ^register 1 ^lane 1 ^lane 2`; a repeat
        reads `5x byte 1024`, copies come last."""
        parts: list[str] = []
        for dimension in self.dimensions:
            terms = [f"^{self._describe(place)}" for place in dimension.bits]
            terms += [f"{r.count}x {self._describe(r.stride)}" for r in dimension.repeats if r.count > 1]
            parts.append(f"{dimension.name} {dimension.extent}: {' '.join(terms) or '-'}")
        if self.copies:
            parts.append("copies: " + " ".join(f"{c.count}x {self._describe(c.stride)}" for c in self.copies))
        return f"<Layout {'; '.join(parts)}>"

    def _describe(self, place: Place) -> str:
        named = zip(self.axes, place, strict=True)
        return "+".join(f"{name} {number}" for name, number in named if number) or "nothing"


def fit(
    names: Sequence[str], axes: Sequence[str], values: Sequence[Integers], copies: tuple[Repeat, ...] = ()
) -> Layout:
    """The layout with these `values` (as `Layout.values`: one array for each axis), with the smallest panel that does.

    First each coordinate alone is cut into digits; then the digits whose contributions do not simply add are found to
    be bits of the panel; in the end the result is compared with every value. Raises `EmmyError` if it differs.
    """
    table = np.stack([np.asarray(value, dtype=np.int64) for value in values], axis=-1)
    rank = len(names)
    digits: list[tuple[int, Digit]] = []
    for index in range(rank):
        line = table[tuple(slice(None) if d == index else 0 for d in range(rank))]
        digits += [(index, digit) for digit in _cut(names[index], line)]

    panel = [0] * rank  # below this unit, a dimension's digits are bits of the panel
    for i, (first, a) in enumerate(digits):
        for second, b in digits[:i]:
            both = tuple(a.unit * (d == first) + b.unit * (d == second) for d in range(rank))
            if not np.array_equal(table[both], np.add(a.place, b.place)):
                panel[first] = max(panel[first], a.unit + 1)
                panel[second] = max(panel[second], b.unit + 1)

    dimensions: list[Dimension] = []
    for index, name in enumerate(names):
        own = [digit for owner, digit in digits if owner == index]
        bits = [digit for digit in own if digit.unit < panel[index]]
        if any(digit.radix != 2 for digit in bits):
            raise EmmyError(f"no layout describes this map: {name} needs a panel that is not a power of two")
        dimensions.append(Dimension(name, tuple(bit.place for bit in bits), _join(own[len(bits) :])))
    layout = Layout(tuple(dimensions), tuple(axes), copies)
    if not all(np.array_equal(table[..., axis], found) for axis, found in enumerate(layout.values)):
        raise EmmyError("no layout describes this map: it is not linear over bits in a panel repeated by strides")
    return layout


def _cut(name: str, line: Integers) -> list[Digit]:
    """Cut the places along one coordinate (shape: extent, axes) into digits of prime radix, least significant first."""
    digits: list[Digit] = []
    unit = 1
    while len(line) > 1:
        step = line[1]
        straight = np.all(line == np.arange(len(line))[:, None] * step, axis=1)
        run = len(line) if straight.all() else int(np.argmin(straight))
        radix = next((c for c in range(run, 1, -1) if len(line) % c == 0 and _splits(line, c)), 0)
        if not radix:
            raise EmmyError(f"no layout describes this map: the places along {name} are not regular")
        place = step
        for prime in _primes(radix):
            digits.append(Digit(unit, prime, tuple(int(number) for number in place)))
            unit, place = unit * prime, place * prime
        line = line[::radix]
    return digits


def _splits(line: Integers, radix: int) -> bool:
    """Is the place of every coordinate that of its multiple of `radix`, plus or XOR that of its remainder?"""
    grid = line.reshape(-1, radix, line.shape[-1])
    high, low = grid[:, :1], grid[:1]
    return np.array_equal(grid, high + low) or np.array_equal(grid, high ^ low)


def _primes(number: int) -> Iterator[int]:
    divisor = 2
    while number > 1:
        while number % divisor == 0:
            yield divisor
            number //= divisor
        divisor += 1


def _join(digits: Sequence[Digit]) -> tuple[Repeat, ...]:
    """Write digits as repeats, those that continue the one before (its last step plus one) joined with it."""
    repeats: list[Repeat] = []
    for digit in digits:
        last = repeats[-1] if repeats else None
        if last is not None and digit.place == tuple(last.count * number for number in last.stride):
            repeats[-1] = Repeat(last.count * digit.radix, last.stride)
        else:
            repeats.append(Repeat(digit.radix, digit.place))
    return tuple(repeats)
