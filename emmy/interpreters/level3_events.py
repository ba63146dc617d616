"""What the events of level 3 do: copies in groups or on mbarriers, elections, fences, barriers over a role.

Every warp has a vector clock. It publishes it where it arrives (barrier, warp_sync, mbarrier) and learns what others published
where it waits. An access that is not ordered by that is a fault, whatever the order of execution was; so is a copy engine's
access to what was not fenced, and an arrival on an empty mbarrier that may overtake reads.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from emmy.interpreters.level3_machine import Level3Error, Machine, Slot, Warp
from emmy.interpreters.level3_memory import NEVER, Arrival, Cells, Flight, Mbarrier, Outflow, Place, Ring, write_box

Array = NDArray[Any]
WARP = 32


class EventMachine(Machine):
    """Executes events."""

    def __init__(self, rings: dict[str, Ring], warps: list[Warp], landing: str, chance: random.Random, parties: int):
        """parties: warps and copy engines of the cluster."""
        super().__init__(rings, warps, landing, chance)
        for warp in warps:
            warp.clock = np.zeros(parties, np.int32)
            warp.clock[warp.number] = 1
        self.engines = np.zeros(parties, np.int32)
        """The time of each copy engine."""

    # ---- order -------------------------------------------------------------------------------------------------------

    def now(self, warp: Warp) -> int:
        """The warp's own time."""
        return int(warp.clock[warp.number])

    def publish(self, warp: Warp) -> Array:
        """What the warp knows; what it does after that is later."""
        known = warp.clock.copy()
        warp.clock[warp.number] += 1
        warp.events += 1
        self.steps += 1
        return known

    def learn(self, warp: Warp, known: Array) -> None:
        """The warp comes after all that is known here. A step only if that is new: who waits for several barriers asks again."""
        self.steps += bool((known > warp.clock).any())
        np.maximum(warp.clock, known, out=warp.clock)
        warp.events += 1

    def check_seen(self, warp: Warp, slot: Slot, cells: Cells, place: Place) -> None:
        """The cells hold the ticket's data, and whoever put it there is known to have done so."""
        self.check_data(warp, slot, cells, place)
        done = cells.done[place]
        if (done > warp.clock[cells.writer[place]]).any():
            early = (done == NEVER).any()
            what = (
                "before the warp that copied it has waited for it"
                if early
                else "with no barrier since another warp's copy"
            )
            self.fault(warp, f"reads ticket {slot.ticket} of @{slot.ring.name} {what}")

    def check_read(self, warp: Warp, slot: Slot, cells: Cells, place: Place, by_lanes: bool = True) -> None:
        """The same, and the warp reads them now: its lanes, or the products that it has just waited for."""
        self.check_seen(warp, slot, cells, place)
        cells.reads[(warp.number, *place)] = self.now(warp)
        slot.ring.last_read[warp.number] = self.now(warp)
        if by_lanes:
            warp.loaded[slot.ring.name, slot.stage] = warp.events

    def check_write(self, warp: Warp, slot: Slot, cells: Cells, place: Place) -> None:
        """Nobody reads or writes the cells without a barrier between."""
        times = cells.reads[(slice(None), *place)]
        late = times > warp.clock.reshape(-1, *([1] * (times.ndim - 1)))
        if late.any():
            reader = int(np.argwhere(late)[0][0])
            if reader >= len(self.everyone):
                self.fault(warp, f"overwrites a slot of @{slot.ring.name} that a TMA store may still read")
            self.fault(warp, f"overwrites a slot of @{slot.ring.name} with no barrier since warp {reader} read it")
        done = cells.done[place]
        if (done == NEVER).any():
            self.fault(warp, f"overwrites a slot of @{slot.ring.name} while a copy into it is in flight")
        if (done > warp.clock[cells.writer[place]]).any():
            self.fault(warp, f"overwrites a slot of @{slot.ring.name} with no barrier since another warp wrote it")
        cells.writer[place] = warp.number

    def slot(self, warp: Warp, name: str, side: str, cursor: int, taken: bool) -> tuple[Slot | None, int]:
        """Address arithmetic. A slot to fill may share bytes with another ring's if one of them is outbound: check the reads."""
        if not taken:
            return None, cursor
        slot = self.take(warp, name, side, cursor)
        if side == "read":
            slot.ring.waited.setdefault(cursor, set()).add(warp.number)
        if side == "fill":
            for other in self.rings.values():
                if other is not slot.ring and (other.outbound or slot.ring.outbound):
                    self.check_overlay(warp, slot.ring, other)
        return slot, cursor + 1

    def check_overlay(self, warp: Warp, ring: Ring, other: Ring) -> None:
        """Everybody who may share the bytes has read `other`. Before allocate-shared, that is whoever shares the role."""
        one, two = ring.barriers.span, other.barriers.span
        placed = False
        if one is not None and two is not None:
            placed = True
            if one[1] <= two[0] or two[1] <= one[0]:
                return
        stored = slice(other.engine, other.engine + other.stages)
        if placed and any((cells.reads[stored] == NEVER).any() for cells in other.fields.values()):
            self.fault(
                warp, f"fills @{ring.name}, which lies over @{other.name}, while a TMA store may still read that"
            )
        for reader, time in enumerate(other.last_read):
            mate = placed or self.everyone[reader].role == warp.role
            if mate and reader != warp.number and time > warp.clock[reader]:
                self.fault(
                    warp,
                    f"fills @{ring.name}, which may lie over @{other.name}, with no barrier since warp {reader} read that",
                )
        if ring.barriers.tma:
            for mate in self.warps:
                if mate.role == warp.role and any(c in other.fields.values() for c, _ in mate.unfenced):
                    self.fault(
                        warp,
                        f"fills @{ring.name} by TMA, which may lie over @{other.name}, "
                        f"with no proxy fence since warp {mate.number} wrote that",
                    )

    # ---- copies by threads -------------------------------------------------------------------------------------------

    def cp_async(self, warp: Warp, view: Array, at: Sequence[int], slot: Slot | None, name: str) -> Flight:
        """Issue this warp's share."""
        flight = self.issue(warp, view, at, slot, name)
        self.launch(flight)
        warp.copies.append(flight)
        return flight

    def issue(
        self, warp: Warp, view: Array, at: Sequence[int], slot: Slot | None, name: str, whole: bool = False
    ) -> Flight:
        """A copy (the warp's share, or all of it) that may be launched: nobody uses its destination."""
        if slot is None:
            self.fault(warp, "copies into a slot that was not acquired (its condition was false)")
        flight = self.flight(warp, view, at, slot, name, whole)
        self.check_write(warp, slot, flight.cells, flight.place)
        flight.cells.done[flight.place] = NEVER
        return flight

    def plain_copy(self, warp: Warp, view: Array, at: Sequence[int], slot: Slot | None, name: str) -> None:
        """The same, complete at once."""
        flight = self.cp_async(warp, view, at, slot, name)
        warp.copies.pop()
        self.complete(warp, flight)
        if slot is not None:
            warp.copied[slot.ring.name, slot.stage] = warp.events

    def complete(self, warp: Warp, flight: Flight) -> None:
        """The warp knows that a copy has landed."""
        flight.land()
        flight.cells.done[flight.place] = self.now(warp)

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

    def fence_proxy_async(self, warp: Warp) -> None:
        """What the warp has written is there for the copy engine, what it has read is read."""
        for cells, place in warp.unfenced:
            cells.fenced[place] |= cells.writer[place] == warp.number
        warp.unfenced = []
        warp.events += 1
        warp.fenced = warp.events
        self.steps += 1

    # ---- mbarriers ---------------------------------------------------------------------------------------------------

    def mbarrier(self, warp: Warp, ring: Ring, side: str, stage: int) -> Mbarrier:
        """A slot's full or empty barrier."""
        barriers = ring.full if side == "full" else ring.empty
        if not barriers:
            self.fault(warp, f"pipeline @{ring.name} has no {side} mbarriers: it says no {side}_count")
        return barriers[stage]

    def cannot_wait_for(self, warp: Warp, side: str, name: str, cursor: int) -> str | None:
        """Full: the phase of the cursor's round has ended; empty: the one before it. Blocked, what it waits for lands."""
        ring = self.rings[name]
        if side == "full":
            self.check_turn(warp, ring, cursor)
        round_, stage = divmod(cursor, ring.stages)
        barrier = self.mbarrier(warp, ring, side, stage)
        parity = (round_ if side == "full" else round_ + 1) % 2
        if not barrier.passes(parity) and self.landing != "early":
            barrier.land()
        if barrier.passes(parity):
            self.learn(warp, barrier.known)
            return None
        return (
            f"wait_{side} @{name}: slot {stage} has ended {barrier.phases} phases, {barrier.pending} of {barrier.count} "
            f"arrivals and {barrier.bytes} bytes are missing, ticket {cursor} waits for parity {parity}"
        )

    def signal(self, warp: Warp, side: str, slot: Slot | None) -> None:
        """Arrive on a slot's barrier."""
        if slot is None:
            self.fault(
                warp, f"arrives on the {side} mbarrier of a slot that was not acquired (its condition was false)"
            )
        if not self.mbarrier(warp, slot.ring, side, slot.stage).arrive(self.publish(warp)):
            self.fault(warp, f"more arrivals on the {side} mbarrier of @{slot.ring.name} than it counts in a phase")

    def arrive_full(self, warp: Warp, slot: Slot | None) -> None:
        """One arrival a warp: of two parts of one warp the first one arrives. Its lanes have met since the last copy."""
        if slot is not None and warp.synced <= warp.copied.get((slot.ring.name, slot.stage), -1):
            self.fault(
                warp, f"arrives on the full mbarrier of @{slot.ring.name} without warp_sync since it filled the slot"
            )
        if warp.share == warp.index:
            self.signal(warp, "full", slot)

    def arrive_empty(self, warp: Warp, slot: Slot) -> None:
        """The same for a reader. An arrival does not wait for reads before it, so a meeting of the lanes must."""
        name = slot.ring.name
        loaded = warp.loaded.get((name, slot.stage), -1)
        if slot.ring.barriers.tma and loaded >= 0 and not loaded < warp.fenced < warp.synced:
            self.fault(
                warp,
                f"arrives on the empty mbarrier of @{name}, which TMA refills, without fence_proxy_async; warp_sync",
            )
        if warp.synced <= loaded:
            self.fault(warp, f"arrives on the empty mbarrier of @{name} without warp_sync since it read the slot")
        if warp.share == warp.index:
            for machine, ring in zip(self.cluster, self.rings_of(slot.ring), strict=False):
                cast(EventMachine, machine).signal(warp, "empty", Slot(ring, slot.side, slot.ticket))

    def cannot_end(self, warp: Warp, name: str, cursor: int) -> str | None:
        """Every slot that was filled before the cursor is released."""
        stages = self.rings[name].stages
        reasons = (self.cannot_wait_for(warp, "empty", name, cursor + number) for number in range(stages))
        return next((reason for reason in reasons if reason), None)

    def arrive_full_noinc(self, warp: Warp, slot: Slot | None) -> None:
        """One arrival a thread, when all cp.asyncs that it has issued have landed."""
        if slot is None:
            self.fault(warp, "arrives on the full mbarrier of a slot that was not acquired (its condition was false)")
        barrier = self.mbarrier(warp, slot.ring, "full", slot.stage)
        engine, known = slot.ring.engine + slot.stage, self.publish(warp)
        arrival = Arrival(warp.copies, WARP // len(self.mates(warp, "warp_sync")))
        warp.copies = []
        barrier.arrivals.append(arrival)

        def landed() -> None:
            if arrival in barrier.arrivals and all(flight.landed for flight in arrival.flights):
                barrier.arrivals.remove(arrival)
                known[engine] = self.tick(engine, arrival.flights)
                if not barrier.arrive(known, arrival.count):
                    self.fault(
                        warp, f"more arrivals on the full mbarrier of @{slot.ring.name} than it counts in a phase"
                    )

        for flight in arrival.flights:
            flight.on_landing = landed
        landed()

    def tick(self, engine: int, flights: Sequence[Flight]) -> int:
        """The copy engine of a slot has made copies: its time at that."""
        self.engines[engine] += 1
        for flight in flights:
            flight.cells.writer[flight.place] = engine
            flight.cells.done[flight.place] = self.engines[engine]
        self.steps += 1
        return int(self.engines[engine])

    # ---- TMA ---------------------------------------------------------------------------------------------------------

    def expect_tx(self, warp: Warp, slot: Slot | None, count: int) -> None:
        """One arrival; and so many bytes must land."""
        if slot is not None:
            self.mbarrier(warp, slot.ring, "full", slot.stage).bytes += count
        self.signal(warp, "full", slot)

    def tma_load(self, warp: Warp, view: Array, at: Sequence[int], slot: Slot | None, name: str) -> None:
        """The whole field; its bytes count on the full barrier when they land."""
        flight = self.issue(warp, view, at, slot, name, whole=True)
        assert slot is not None
        barrier, engine = self.mbarrier(warp, slot.ring, "full", slot.stage), slot.ring.engine + slot.stage
        barrier.flights.append(flight)

        def landed() -> None:
            barrier.flights.remove(flight)
            barrier.arriving[engine] = self.tick(engine, [flight])
            barrier.bytes -= flight.value.nbytes
            barrier.settle()

        flight.on_landing = landed
        self.launch(flight)

    def scatter(self, warp: Warp, value: Array, slot: Slot | None, name: str, row: int, part: int) -> None:
        """Each other CTA of the cluster gets its part of the columns; the bytes count on its full barrier when they land.

        Of the two halves of a lone warp, the first one does it.
        """
        if slot is None:
            self.fault(warp, "scatters into a slot that was not acquired (its condition was false)")
        self.steps += 1
        if warp.share != warp.index:
            return
        for machine, flight in self.scattered(warp, value, slot, name, row, part):
            other = cast(EventMachine, machine)
            other.give(warp, flight, slot)
            self.launch(flight)

    def give(self, warp: Warp, flight: Flight, slot: Slot) -> None:
        """A warp of another CTA begins to write into a slot of this one."""
        ring = self.rings[slot.ring.name]
        self.check_write(warp, slot, flight.cells, flight.place)
        flight.cells.done[flight.place] = NEVER
        barrier, engine = self.mbarrier(warp, ring, "full", slot.stage), ring.engine + slot.stage
        barrier.flights.append(flight)

        def landed() -> None:
            barrier.flights.remove(flight)
            barrier.arriving[engine] = self.tick(engine, [flight])
            barrier.bytes -= flight.value.nbytes
            barrier.settle()

        flight.on_landing = landed

    def tma_load_shared(self, warp: Warp, view: Array, at: Sequence[int], slot: Slot | None, name: str) -> None:
        """This CTA's part of a field, for every CTA; its bytes count on the full barrier of each when they land there."""
        if slot is None:
            self.fault(warp, "copies into a slot that was not acquired (its condition was false)")
        for machine, _, flight in self.multicast(warp, view, at, slot, name, whole=True):
            cast(EventMachine, machine).give(warp, flight, slot)
            self.launch(flight)

    def tma_store(self, warp: Warp, slot: Slot, name: str, view: Array, at: Sequence[int]) -> None:
        """The whole field, read some time before the bulk group is done."""
        cells, place = slot.ring.fields[name], (slot.stage,)
        self.check_seen(warp, slot, cells, place)
        if not cells.fenced[place].all():
            self.fault(
                warp, f"stores @{slot.ring.name} by TMA, and who wrote the slot has made no fence_proxy_async since"
            )
        cells.reads[(slot.ring.engine + slot.stage, *place)] = NEVER
        outflow = Outflow(cells, slot.stage, slot.ticket, lambda value: write_box(view, at, value))
        warp.stores.append(outflow)
        if self.landing == "early" or (self.landing == "random" and self.chance.random() < 0.5):
            outflow.land()
        self.steps += 1

    def bulk_commit(self, warp: Warp) -> None:
        """The stores since the last one are a bulk group."""
        warp.bulk.append(warp.stores)
        warp.stores = []
        self.steps += 1

    def bulk_wait(self, warp: Warp, pending: int) -> None:
        """All but the youngest `pending` bulk groups have read their slots."""
        keep = max(0, len(warp.bulk) - pending)
        for group in warp.bulk[:keep]:
            for outflow in group:
                outflow.land()
                if not outflow.intact:
                    self.fault(warp, f"ticket {outflow.ticket} was overwritten before its TMA store had read it")
                self.stored(warp, outflow)
        warp.bulk = warp.bulk[keep:]
        self.steps += 1

    def stored(self, warp: Warp, outflow: Outflow) -> None:
        """The warp knows that the engine has read the slot."""
        for ring in self.rings.values():
            if outflow.cells in ring.fields.values():
                engine = ring.engine + outflow.stage
                self.engines[engine] += 1
                outflow.cells.reads[engine, outflow.stage] = warp.clock[engine] = self.engines[engine]

    # ---- fragments and results ---------------------------------------------------------------------------------------

    def load(
        self, warp: Warp, slot: Slot, name: str, at: Sequence[int], shape: tuple[int, int], in_place: bool = False
    ) -> Array:
        """A fragment's elements as stored. What is read `in_place` the async proxy reads: it needs no fence to be refilled."""
        cells, elements, place = self.fragment_place(warp, slot, name, at, shape)
        self.check_read(warp, slot, cells, place, by_lanes=not in_place)
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
        cells.done[place] = self.now(warp)
        # The copy engine does not see what a thread has written before that one's next fence.
        cells.fenced[place] = False
        warp.unfenced.append((cells, place))

    def store(self, warp: Warp, slot: Slot, name: str, view: Array, at: Sequence[int]) -> None:
        """This warp's share of a field goes to the view."""
        cells = slot.ring.fields[name]
        self.check_read(warp, slot, cells, cells.share(slot.stage, warp.share, warp.shares))
        write_box(view, at, cells.data[slot.stage], warp.share, warp.shares)
        self.steps += 1

    def finish(self) -> None:
        """At the end of all roles nothing is in flight, and every ticket filled was read."""
        for warp in self.warps:
            if warp.copies or any(warp.groups):
                self.fault(warp, "ends with copies in flight")
            if warp.stores or any(warp.bulk):
                self.fault(warp, "ends with TMA stores in flight")
        for name, ring in self.rings.items():
            if any(barrier.flights or barrier.arrivals for barrier in ring.full):
                raise Level3Error(f"@{name} ends with copies in flight")
            filled = {w.next[name, "fill"] for w in self.warps if (name, "fill") in w.next} or {0}
            read = self.read_tickets(ring)
            if not ring.outbound and filled != read:
                raise Level3Error(f"@{name} ends with tickets left: filled {sorted(filled)}, read {sorted(read)}")
