"""What the tickets of level 3 do to shared memory, global memory and each other (events: `level3_events`).

The generated programs (`level3_codegen`) call these methods; `cannot_*` give the reason why a warp is blocked, or None.
Every misuse raises `Level3Error`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from emmy.errors import EmmyError
from emmy.interpreters.level3_memory import Cells, Flight, Outflow, Place, Ring, read_box, write_box

Array = NDArray[Any]
LANDINGS = ("late", "early", "random")
ORDERS = ("fixed", "reversed", "random")


class Level3Error(EmmyError):
    """The program broke the protocol, read poison, raced or deadlocked."""


@dataclass(frozen=True)
class Slot:
    """A slot value: one ticket of a ring, on one side (`fill` or `read`)."""

    ring: Ring
    side: str
    ticket: int

    @property
    def stage(self) -> int:
        """Index of the slot in its ring."""
        return self.ticket % self.ring.stages


@dataclass(eq=False)
class Warp:
    """One logical warp of a role. `number`: among all warps of the cluster; `index`: in its role, as `mma.warp` sees it; copies:
    its share."""

    number: int
    role: str
    index: int
    share: int
    shares: int
    turns: bool = False
    """Does its role take turns with another one?"""
    line: int = 0
    """The op (its number in the program) that is being executed."""
    next: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """(ring, side) -> the next ticket."""
    held: dict[Slot, int] = field(default_factory=dict[Slot, int])
    """Slots between acquire and commit, or wait and release -> stores made from them."""
    clock: Array = field(default_factory=lambda: np.zeros(0, np.int32))
    """What the warp knows of everybody's time: accesses of `n` up to time `clock[n]` come before its own."""
    arrivals: dict[str, int] = field(default_factory=dict[str, int])
    """How often the warp has come to a meeting, by kind."""
    copies: list[Flight] = field(default_factory=list[Flight])
    """cp.asyncs since the last commit_group or arrival."""
    groups: list[list[Flight]] = field(default_factory=list[list[Flight]])
    stores: list[Outflow] = field(default_factory=list[Outflow])
    """TMA stores since the last bulk_commit."""
    bulk: list[list[Outflow]] = field(default_factory=list[list[Outflow]])
    unfenced: list[tuple[Cells, Place]] = field(default_factory=list[tuple[Cells, Place]])
    """What the warp has written since its last proxy fence."""
    loaded: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    copied: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    """(ring, stage) -> events before its last load from there, and before its last plain copy into it."""
    events: int = 0
    fenced: int = -1
    synced: int = -1
    """How many events came before the last proxy fence, and before the last warp_sync."""


class Machine:
    """The state of one CTA. `landing`: when copies land, `late` (only what is waited for), `early` or `random`."""

    def __init__(self, rings: dict[str, Ring], warps: list[Warp], landing: str, chance: random.Random):
        self.rings = rings
        self.warps = warps
        self.cluster: list[Machine] = [self]
        """The CTAs of its cluster, in the order of their ranks."""
        self.landing = landing
        self.chance = chance
        self.flying: list[Flight] = []
        self.running = 0
        """Number of the warp that runs now."""
        self.ctas = 1
        """How many CTAs the launch has."""
        self.steps = 0
        """Counts what has happened, so that the scheduler sees progress."""
        self.meetings: dict[tuple[str, str, int], Array] = {}
        """(kind, who meets, how manieth time) -> what all that have come knew."""

    def fault(self, warp: Warp, message: str) -> NoReturn:
        """Stop: warp and reason; the interpreter adds the place in the text."""
        raise Level3Error(f"{warp.role} warp {warp.number}: {message}")

    @property
    def everyone(self) -> list[Warp]:
        """The warps of the cluster, by number."""
        return [warp for machine in self.cluster for warp in machine.warps]

    def rings_of(self, ring: Ring) -> list[Ring]:
        """The ring as every CTA of its cluster has it; itself alone if it is no cluster's."""
        return [machine.rings[ring.name] for machine in self.cluster] if ring.cluster > 1 else [ring]

    def scattered(
        self, warp: Warp, value: Array, slot: Slot, name: str, row: int, part: int
    ) -> Iterator[tuple[Machine, Flight]]:
        """What a warp of CTA number `part` of a cluster gives each other one of a fragment, in flight (`mma.scatter`)."""
        rings = self.rings_of(slot.ring)
        for number, (machine, ring) in enumerate(zip(self.cluster, rings, strict=True)):
            if number == part:
                continue
            cells = ring.fields[name]
            first = (part - number - 1) % len(rings) * (cells.shape[0] // (len(rings) - 1)) + row
            columns = cells.shape[1]
            if first < 0 or first + len(value) > cells.shape[0] or value.shape[1] != len(rings) * columns:
                self.fault(
                    warp, f"a fragment of {value.shape} at row {first} leaves field '{name}' of @{slot.ring.name}"
                )
            piece = value[:, number * columns : (number + 1) * columns].copy()
            yield machine, Flight(cells, (slot.stage, slice(first, first + len(value))), piece, slot.ticket)

    def part(self, warp: Warp, value: Array, part: int, columns: int) -> Array:
        """Part number `part` of a fragment's columns (`mma.part`)."""
        if not 0 <= part * columns < value.shape[1]:
            self.fault(warp, f"there is no part {part} of {columns} columns in a fragment of {value.shape}")
        return value[:, part * columns : (part + 1) * columns]

    def multicast(
        self, warp: Warp, view: Array, at: Sequence[int], slot: Slot, name: str, whole: bool = False
    ) -> Iterator[tuple[Machine, Ring, Flight]]:
        """This CTA's part of the rows of a shared copy (of that, this warp's share, or all), on its way to each CTA."""
        rank = self.cluster.index(self)
        for machine, ring in zip(self.cluster, self.rings_of(slot.ring), strict=True):
            cells = ring.fields[name]
            rows = cells.shape[0] // len(self.cluster)
            share, shares = (0, 1) if whole else (warp.share, warp.shares)
            first = rank * rows
            place = [*at[:-2], at[-2] + first, at[-1]]
            value = read_box(view, place, (rows, cells.shape[1]), share, shares)
            lines = slice(first + share, first + rows, shares)
            yield machine, ring, Flight(cells, (slot.stage, lines), value, slot.ticket)

    # ---- common ------------------------------------------------------------------------------------------------------

    def take(self, warp: Warp, ring: str, side: str, cursor: int) -> Slot:
        """The slot at a cursor, which must be the next of its side."""
        expected = warp.next.get((ring, side), 0)
        if cursor != expected:
            self.fault(warp, f"cursor out of order: {side} of @{ring} is at ticket {expected}, the cursor at {cursor}")
        warp.next[ring, side] = cursor + 1
        self.steps += 1
        return Slot(self.rings[ring], side, cursor)

    def skip(self, warp: Warp, ring: str, cursor: int, count: int) -> int:
        """The cursor behind `count` tickets that are for another role."""
        self.take(warp, ring, "read", cursor)
        warp.next[ring, "read"] = cursor + count
        self.rings[ring].in_turn = True
        return cursor + count

    def check_turn(self, warp: Warp, ring: Ring, cursor: int) -> None:
        """A wait tells a phase from the one before only: this warp, or all that read the slot's last ticket, waited for that."""
        before = cursor - ring.stages
        there = ring.waited.get(before, set())
        if ring.in_turn and before >= 0 and warp.number not in there and len(there) < ring.readers:
            self.fault(
                warp,
                f"waits for ticket {cursor} of @{ring.name} before its turn: ticket {before}, in the same slot, has not been "
                "waited for",
            )

    def read_tickets(self, ring: Ring) -> set[int]:
        """How many tickets each reader has been through; where they read in turn, how many they all have between them."""
        read = {w.next[ring.name, "read"] for w in self.warps if (ring.name, "read") in w.next} or {0}
        if not ring.in_turn:
            return read
        done = [ticket for ticket, there in ring.waited.items() if len(there) == ring.readers]
        return {len(done) if len(done) == len(ring.waited) == max(ring.waited, default=-1) + 1 else -1}

    def launch(self, flight: Flight) -> None:
        """A copy begins: its destination is poison until it lands."""
        flight.cells.data[flight.place] = flight.cells.poison
        flight.cells.ticket[flight.place] = -1
        self.steps += 1
        if self.landing == "early":
            flight.land()
        elif self.landing == "random":
            self.flying.append(flight)

    def finish(self) -> None:
        """Check what must hold when all warps have ended."""
        raise NotImplementedError

    def land_some(self) -> None:
        """In mode `random`, now and then a copy lands by itself."""
        if self.flying and self.chance.random() < 0.3:
            self.flying.pop(self.chance.randrange(len(self.flying))).land()

    def fragment_place(
        self, warp: Warp, slot: Slot, name: str, at: Sequence[int], shape: tuple[int, int]
    ) -> tuple[Cells, Place, Place]:
        """(field, elements, cells) of a fragment in a slot."""
        cells = slot.ring.fields[name]
        places = cells.place(slot.stage, at, shape)
        if places is None:
            self.fault(
                warp, f"a fragment of {shape} at {list(at)} leaves field '{name}' of @{slot.ring.name}, {cells.shape}"
            )
        return cells, *places

    def check_data(self, warp: Warp, slot: Slot, cells: Cells, place: Place) -> None:
        """The cells hold data of the slot's ticket."""
        tickets = cells.ticket[place]
        if (tickets != slot.ticket).any():
            other = int(tickets[tickets != slot.ticket].flat[0])
            what = "poison (nothing has landed there)" if other < 0 else f"the data of ticket {other}"
            self.fault(warp, f"reads ticket {slot.ticket} of @{slot.ring.name} and finds {what}")

    def flight(self, warp: Warp, view: Array, at: Sequence[int], slot: Slot, name: str, whole: bool = False) -> Flight:
        """This warp's share of a copy, or all of it."""
        cells = slot.ring.fields[name]
        share, shares = (0, 1) if whole else (warp.share, warp.shares)
        value = read_box(view, at, cells.shape, share, shares)
        return Flight(cells, cells.share(slot.stage, share, shares), value, slot.ticket)

    # ---- meetings ----------------------------------------------------------------------------------------------------

    def publish(self, warp: Warp) -> Any:
        """What the warp knows at a meeting: of tickets nothing that others do not."""
        self.steps += 1
        return 0

    def learn(self, warp: Warp, known: Any) -> None:
        """The warp comes after all that is known at a meeting."""
        self.steps += 1

    def party(self, warp: Warp, kind: str) -> str:
        """Who meets at a barrier, or for a turn: the role; at a `barrier across N`: so many warps that follow each other; at a
        warp_sync: the parts of one warp."""
        across = 1 if kind == "warp_sync" else int(kind.partition(" across ")[2] or 0)
        if across:
            return f"{warp.role} {warp.index // across}"
        return "consumers" if warp.turns and kind.startswith("turn of consumer") else warp.role

    def mates(self, warp: Warp, kind: str) -> list[Warp]:
        """All whom a warp meets."""
        return [other for other in self.warps if self.party(other, kind) == self.party(warp, kind)]

    def turn(self, warp: Warp, own: bool) -> str:
        """The meeting at which the warp's half of its role, or the other half, gets its turn; all of the role are there."""
        warps = 1 + max(other.index for other in self.mates(warp, "barrier"))
        return f"turn of half {int((warp.index >= warps // 2) == own)}"

    def arrive(self, warp: Warp, kind: str) -> None:
        """The warp is at its next meeting of a kind."""
        number = warp.arrivals[kind] = warp.arrivals.get(kind, 0) + 1
        key = (kind, self.party(warp, kind), number)
        self.meetings[key] = np.maximum(self.meetings.get(key, 0), self.publish(warp))

    def cannot_pass(self, warp: Warp, kind: str) -> str | None:
        """A barrier opens when all are there."""
        mates, number = self.mates(warp, kind), warp.arrivals[kind]
        there = sum(other.arrivals.get(kind, 0) >= number for other in mates)
        if there == len(mates):
            self.learn(warp, self.meetings[kind, self.party(warp, kind), number])
            if kind == "warp_sync":
                warp.synced = warp.events
            return None
        return f"{kind} {number}: {there} of {len(mates)} warps are there"


class ProtocolMachine(Machine):
    """Executes tickets: halves and placed roles."""

    def holds(self, warp: Warp, slot: Slot | None, doing: str) -> Slot:
        """The slot, if the warp has it."""
        if slot is None:
            self.fault(warp, f"{doing} a slot that was not acquired (its condition was false)")
        if slot not in warp.held:
            self.fault(
                warp, f"{doing} ticket {slot.ticket} of @{slot.ring.name}, which is not held on the {slot.side} side"
            )
        return slot

    def cannot_acquire(self, warp: Warp, name: str, cursor: int) -> str | None:
        """A slot is free when all that read its last ticket have released it (outbound: when it is stored)."""
        ring = self.rings[name]
        before = cursor - ring.stages
        done = (ring.committed if ring.outbound else ring.released).get(before, 0)
        wanted = ring.fillers if ring.outbound else ring.readers
        others = [one for one in self.rings_of(ring) if one.released.get(before, 0) < one.readers]
        if before < 0 or (done == wanted and (ring.cluster == 1 or not others)):
            return None
        return f"acquire @{name}: ticket {before} in its slot is given back by {done} of {wanted} warps"

    def acquire(self, warp: Warp, name: str, cursor: int, taken: bool) -> tuple[Slot | None, int]:
        """(slot, next cursor); nothing happens if it is not taken."""
        if not taken:
            return None, cursor
        slot = self.take(warp, name, "fill", cursor)
        if slot.ring.opened <= cursor:
            slot.ring.opened = cursor + 1
            if slot.ring.cluster == 1:  # other CTAs may have filled it already
                slot.ring.poison(cursor)
        warp.held[slot] = 0
        return slot, cursor + 1

    def copy(self, warp: Warp, view: Array, at: Sequence[int], slot: Slot | None, name: str) -> None:
        """Issue a copy into an acquired slot."""
        held = self.holds(warp, slot, "copies into")
        flight = self.flight(warp, view, at, held, name)
        held.ring.flights.setdefault(held.ticket, []).append(flight)
        self.launch(flight)

    def copy_shared(self, warp: Warp, view: Array, at: Sequence[int], slot: Slot | None, name: str) -> None:
        """Issue a copy into an acquired slot of every CTA."""
        held = self.holds(warp, slot, "copies into")
        for _, ring, flight in self.multicast(warp, view, at, held, name):
            ring.flights.setdefault(held.ticket, []).append(flight)
            self.launch(flight)

    def commit(self, warp: Warp, slot: Slot | None, taken: bool) -> None:
        """The warp has issued all its copies into the slot (outbound: has stored it)."""
        if taken:
            held = self.holds(warp, slot, "commits")
            del warp.held[held]
            held.ring.committed[held.ticket] = held.ring.committed.get(held.ticket, 0) + 1
            self.steps += 1

    def cannot_wait(self, warp: Warp, name: str, cursor: int) -> str | None:
        """A slot is full when every filling warp has committed it and its copies have landed, which they do now at the latest."""
        self.check_turn(warp, self.rings[name], cursor)
        for ring in self.rings_of(self.rings[name]):
            done = ring.committed.get(cursor, 0)
            if done < ring.fillers or not ring.fillers:
                return f"wait @{name}: ticket {cursor} is committed by {done} of {ring.fillers} warps"
        for flight in self.rings[name].flights.pop(cursor, []):
            flight.land()
        return None

    def wait(self, warp: Warp, name: str, cursor: int) -> tuple[Slot, int]:
        """(slot, next cursor)."""
        slot = self.take(warp, name, "read", cursor)
        slot.ring.waited.setdefault(cursor, set()).add(warp.number)
        warp.held[slot] = 0
        return slot, cursor + 1

    def release(self, warp: Warp, slot: Slot) -> None:
        """The warp reads the slot no more; after the last one its contents are poison."""
        self.holds(warp, slot, "releases")
        del warp.held[slot]
        ring = slot.ring
        ring.released[slot.ticket] = ring.released.get(slot.ticket, 0) + 1
        self.steps += 1
        if ring.released[slot.ticket] == ring.readers:
            ring.poison(slot.ticket)

    def scatter(self, warp: Warp, value: Array, slot: Slot | None, name: str, row: int, part: int) -> None:
        """Each other CTA of the cluster gets its part of the columns, which lands when its slot is waited for."""
        held = self.holds(warp, slot, "scatters into")
        for machine, flight in self.scattered(warp, value, held, name, row, part):
            machine.rings[held.ring.name].flights.setdefault(flight.ticket, []).append(flight)
            self.launch(flight)

    def load(
        self, warp: Warp, slot: Slot, name: str, at: Sequence[int], shape: tuple[int, int], in_place: bool = False
    ) -> Array:
        """A fragment's elements as stored."""
        self.holds(warp, slot, "loads from")
        cells, elements, place = self.fragment_place(warp, slot, name, at, shape)
        self.check_data(warp, slot, cells, place)
        return cells.data[elements].reshape(shape).copy()

    def fragment_store(self, warp: Warp, value: Array, slot: Slot, name: str, at: Sequence[int]) -> None:
        """A fragment into an outbound slot."""
        self.holds(warp, slot, "stores into")
        cells, elements, place = self.fragment_place(warp, slot, name, at, (value.shape[0], value.shape[1]))
        cells.data[elements] = value
        cells.ticket[place] = slot.ticket
        self.steps += 1

    def arrive_store(self, warp: Warp, slot: Slot) -> tuple[int, int]:
        """All warps store a slot together: this one is there. Gives the key to wait with."""
        self.holds(warp, slot, "stores")
        key = (slot.ticket, warp.held[slot])
        warp.held[slot] += 1
        slot.ring.arrived[key] = slot.ring.arrived.get(key, 0) + 1
        self.steps += 1
        return key

    def cannot_store(self, warp: Warp, slot: Slot, key: tuple[int, int]) -> str | None:
        """Not before all warps have written their fragments."""
        there = slot.ring.arrived[key]
        if there == slot.ring.fillers:
            return None
        return f"store @{slot.ring.name}: {there} of {slot.ring.fillers} warps are at ticket {slot.ticket}"

    def store(self, warp: Warp, slot: Slot, name: str, view: Array, at: Sequence[int]) -> None:
        """This warp's share of a field goes to the view."""
        cells = slot.ring.fields[name]
        self.check_data(warp, slot, cells, cells.share(slot.stage, warp.share, warp.shares))
        write_box(view, at, cells.data[slot.stage], warp.share, warp.shares)
        self.steps += 1

    def cannot_drain(self, warp: Warp, name: str) -> str | None:
        """A warp that fills and does not read waits until all its tickets have been released."""
        ring = self.rings[name]
        filled = warp.next.get((name, "fill"), 0)
        if ring.outbound or (name, "read") in warp.next:
            return None
        open_tickets = [
            t
            for t in range(max(0, filled - ring.stages), filled)
            if any(one.released.get(t, 0) < one.readers for one in self.rings_of(ring))
        ]
        if open_tickets:
            return f"drain @{name}: acquired {filled}, ticket {open_tickets[0]} is not released"
        return None

    def drain(self, warp: Warp, name: str) -> None:
        """Every ticket is done. A warp that fills and reads must have waited for all that it filled."""
        if any(slot.ring.name == name for slot in warp.held):
            self.fault(warp, f"drain @{name} while a slot of it is held")
        filled, read = warp.next.get((name, "fill")), warp.next.get((name, "read"))
        if filled is not None and read is not None and filled != read:
            self.fault(warp, f"drain @{name}: acquired {filled}, waited for {read}")
        self.steps += 1

    def finish(self) -> None:
        """At the end of all roles: nothing held, as many tickets read as filled."""
        for warp in self.warps:
            for slot in warp.held:
                self.fault(warp, f"ends with ticket {slot.ticket} of @{slot.ring.name} held on the {slot.side} side")
        for name, ring in self.rings.items():
            filled = {w.next[name, "fill"] for w in self.warps if (name, "fill") in w.next} or {0}
            read = self.read_tickets(ring)
            if len(filled) > 1 or (not ring.outbound and filled != read):
                raise Level3Error(
                    f"@{name} ends with tickets left: acquired {sorted(filled)}, waited for {sorted(read)}"
                )
