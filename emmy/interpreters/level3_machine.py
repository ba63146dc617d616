"""What the ops of level 3 do to shared memory, global memory and each other: tickets (protocol) and events.

The generated programs (`level3_codegen`) call these methods; `cannot_*` give the reason why a warp is blocked, or None.
Every misuse raises `Level3Error`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from emmy.errors import EmmyError
from emmy.interpreters.level3_memory import NEVER, Cells, Flight, Place, Ring, read_box, write_box

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
    """One logical warp of a role. `number`: among all warps; `index`: in its role, as `mma.warp` sees it; copies: its share."""

    number: int
    role: str
    index: int
    share: int
    shares: int
    line: int = 0
    """The op (its number in the program) that is being executed."""
    barriers: int = 0
    arrivals: int = 0
    next: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """(ring, side) -> the next ticket."""
    held: dict[Slot, int] = field(default_factory=dict[Slot, int])
    """Slots between acquire and commit, or wait and release -> stores made from them."""
    copies: list[Flight] = field(default_factory=list[Flight])
    """cp.asyncs since the last commit_group."""
    groups: list[list[Flight]] = field(default_factory=list[list[Flight]])


class Machine:
    """The state of one CTA. `landing`: when copies land, `late` (only what is waited for), `early` or `random`."""

    def __init__(self, rings: dict[str, Ring], warps: list[Warp], landing: str, chance: random.Random):
        self.rings = rings
        self.warps = warps
        self.landing = landing
        self.chance = chance
        self.flying: list[Flight] = []
        self.running = 0
        """Number of the warp that runs now."""
        self.steps = 0
        """Counts what has happened, so that the scheduler sees progress."""

    def fault(self, warp: Warp, message: str) -> NoReturn:
        """Stop: warp and reason; the interpreter adds the place in the text."""
        raise Level3Error(f"{warp.role} warp {warp.number}: {message}")

    # ---- common ------------------------------------------------------------------------------------------------------

    def take(self, warp: Warp, ring: str, side: str, cursor: int) -> Slot:
        """The slot at a cursor, which must be the next of its side."""
        expected = warp.next.get((ring, side), 0)
        if cursor != expected:
            self.fault(warp, f"cursor out of order: {side} of @{ring} is at ticket {expected}, the cursor at {cursor}")
        warp.next[ring, side] = cursor + 1
        self.steps += 1
        return Slot(self.rings[ring], side, cursor)

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

    def flight(self, warp: Warp, view: Array, at: Sequence[int], slot: Slot, name: str) -> Flight:
        """This warp's share of a copy."""
        cells = slot.ring.fields[name]
        value = read_box(view, at, cells.shape, warp.share, warp.shares)
        return Flight(cells, cells.share(slot.stage, warp.share, warp.shares), value, slot.ticket)


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
        if before < 0 or done == wanted:
            return None
        return f"acquire @{name}: ticket {before} in its slot is given back by {done} of {wanted} warps"

    def acquire(self, warp: Warp, name: str, cursor: int, taken: bool) -> tuple[Slot | None, int]:
        """(slot, next cursor); nothing happens if it is not taken."""
        if not taken:
            return None, cursor
        slot = self.take(warp, name, "fill", cursor)
        if slot.ring.opened <= cursor:
            slot.ring.opened = cursor + 1
            slot.ring.poison(cursor)
        warp.held[slot] = 0
        return slot, cursor + 1

    def copy(self, warp: Warp, view: Array, at: Sequence[int], slot: Slot | None, name: str) -> None:
        """Issue a copy into an acquired slot."""
        held = self.holds(warp, slot, "copies into")
        flight = self.flight(warp, view, at, held, name)
        held.ring.flights.setdefault(held.ticket, []).append(flight)
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
        ring = self.rings[name]
        done = ring.committed.get(cursor, 0)
        if done < ring.fillers or not ring.fillers:
            return f"wait @{name}: ticket {cursor} is committed by {done} of {ring.fillers} warps"
        for flight in ring.flights.pop(cursor, []):
            flight.land()
        return None

    def wait(self, warp: Warp, name: str, cursor: int) -> tuple[Slot, int]:
        """(slot, next cursor)."""
        slot = self.take(warp, name, "read", cursor)
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

    def load(self, warp: Warp, slot: Slot, name: str, at: Sequence[int], shape: tuple[int, int]) -> Array:
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
            t for t in range(max(0, filled - ring.stages), filled) if ring.released.get(t, 0) < ring.readers
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
            read = {w.next[name, "read"] for w in self.warps if (name, "read") in w.next} or {0}
            if len(filled) > 1 or (not ring.outbound and filled != read):
                raise Level3Error(
                    f"@{name} ends with tickets left: acquired {sorted(filled)}, waited for {sorted(read)}"
                )


class EventMachine(Machine):
    """Executes events: copies, commit groups, waits for groups, barriers."""

    def slot(self, warp: Warp, name: str, side: str, cursor: int, taken: bool) -> tuple[Slot | None, int]:
        """Address arithmetic. A slot to fill may share bytes with another ring's if one of them is outbound: check the reads."""
        if not taken:
            return None, cursor
        slot = self.take(warp, name, side, cursor)
        if side == "fill":
            for other in self.rings.values():
                if other is not slot.ring and (other.outbound or slot.ring.outbound):
                    for reader, barriers in enumerate(other.last_read):
                        if reader != warp.number and barriers >= warp.barriers:
                            self.fault(
                                warp,
                                f"fills @{name}, which may lie over @{other.name}, "
                                f"with no barrier since warp {reader} read that",
                            )
        return slot, cursor + 1

    def check_seen(self, warp: Warp, slot: Slot, cells: Cells, place: Place) -> None:
        """The cells hold the ticket's data, known to be complete, with a barrier after it if another warp wrote it."""
        self.check_data(warp, slot, cells, place)
        done = cells.done[place]
        if not ((done < warp.barriers) | ((cells.writer[place] == warp.number) & (done != NEVER))).all():
            early = (done == NEVER).any()
            what = (
                "before the warp that copied it has waited for it"
                if early
                else "with no barrier since another warp's copy"
            )
            self.fault(warp, f"reads ticket {slot.ticket} of @{slot.ring.name} {what}")
        cells.reads[(warp.number, *place)] = warp.barriers
        slot.ring.last_read[warp.number] = warp.barriers

    def check_write(self, warp: Warp, slot: Slot, cells: Cells, place: Place) -> None:
        """Nobody reads or writes the cells without a barrier between."""
        reads = cells.reads[(slice(None), *place)] >= warp.barriers
        reads[warp.number] = False
        if reads.any():
            reader = int(np.argwhere(reads)[0][0])
            self.fault(warp, f"overwrites a slot of @{slot.ring.name} with no barrier since warp {reader} read it")
        done, other = cells.done[place], cells.writer[place] != warp.number
        if (done == NEVER).any():
            self.fault(warp, f"overwrites a slot of @{slot.ring.name} while a copy into it is in flight")
        if (other & (done >= warp.barriers)).any():
            self.fault(warp, f"overwrites a slot of @{slot.ring.name} with no barrier since another warp wrote it")
        cells.writer[place] = warp.number

    def cp_async(self, warp: Warp, view: Array, at: Sequence[int], slot: Slot | None, name: str) -> Flight:
        """Issue this warp's share."""
        if slot is None:
            self.fault(warp, "copies into a slot that was not acquired (its condition was false)")
        flight = self.flight(warp, view, at, slot, name)
        self.check_write(warp, slot, flight.cells, flight.place)
        flight.cells.done[flight.place] = NEVER
        self.launch(flight)
        warp.copies.append(flight)
        return flight

    def plain_copy(self, warp: Warp, view: Array, at: Sequence[int], slot: Slot | None, name: str) -> None:
        """The same, complete at once."""
        flight = self.cp_async(warp, view, at, slot, name)
        warp.copies.pop()
        self.complete(warp, flight)

    def complete(self, warp: Warp, flight: Flight) -> None:
        """The warp knows that a copy has landed."""
        flight.land()
        flight.cells.done[flight.place] = warp.barriers

    def commit_group(self, warp: Warp) -> None:
        """The copies since the last one are a group."""
        warp.groups.append(warp.copies)
        warp.copies = []
        self.steps += 1

    def wait_group(self, warp: Warp, pending: int) -> None:
        """All but the youngest `pending` groups have landed."""
        keep = max(0, len(warp.groups) - pending)
        for group in warp.groups[:keep]:
            for flight in group:
                self.complete(warp, flight)
        warp.groups = warp.groups[keep:]
        self.steps += 1

    def arrive(self, warp: Warp) -> None:
        """The warp is at its next barrier."""
        warp.arrivals += 1
        self.steps += 1

    def cannot_pass(self, warp: Warp) -> str | None:
        """A barrier opens when all warps of the role are there."""
        mates = [other for other in self.warps if other.role == warp.role]
        there = sum(other.arrivals >= warp.arrivals for other in mates)
        if there == len(mates):
            warp.barriers = warp.arrivals
            self.steps += 1
            return None
        return f"barrier {warp.arrivals}: {there} of {len(mates)} warps are there"

    def load(self, warp: Warp, slot: Slot, name: str, at: Sequence[int], shape: tuple[int, int]) -> Array:
        """A fragment's elements as stored."""
        cells, elements, place = self.fragment_place(warp, slot, name, at, shape)
        self.check_seen(warp, slot, cells, place)
        self.steps += 1
        return cells.data[elements].reshape(shape).copy()

    def fragment_store(self, warp: Warp, value: Array, slot: Slot, name: str, at: Sequence[int]) -> None:
        """A fragment into an outbound slot; of the two halves of a lone warp, the first one stores."""
        self.steps += 1
        if warp.share != warp.index:
            return
        cells, elements, place = self.fragment_place(warp, slot, name, at, (value.shape[0], value.shape[1]))
        self.check_write(warp, slot, cells, place)
        cells.data[elements] = value
        cells.ticket[place] = slot.ticket
        cells.done[place] = warp.barriers

    def store(self, warp: Warp, slot: Slot, name: str, view: Array, at: Sequence[int]) -> None:
        """This warp's share of a field goes to the view."""
        cells = slot.ring.fields[name]
        self.check_seen(warp, slot, cells, cells.share(slot.stage, warp.share, warp.shares))
        write_box(view, at, cells.data[slot.stage], warp.share, warp.shares)
        self.steps += 1

    def finish(self) -> None:
        """At the end of all roles nothing is in flight, and every ticket filled was read."""
        for warp in self.warps:
            if warp.copies or any(warp.groups):
                self.fault(warp, "ends with copies in flight")
        for name, ring in self.rings.items():
            filled = {w.next.get((name, "fill"), 0) for w in self.warps}
            read = {w.next.get((name, "read"), 0) for w in self.warps}
            if not ring.outbound and filled != read:
                raise Level3Error(f"@{name} ends with tickets left: filled {sorted(filled)}, read {sorted(read)}")
