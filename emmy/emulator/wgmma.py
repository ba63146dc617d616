"""wgmma in flight: one queue for each warpgroup, whose groups land as the launch's `landing` says.

late: operands are read and sums written when a wait_group needs them; early: at the issue; random: between. A wgmma, a commit
and a wait are one operation of four warps: a warp that comes first waits for the others. From the issue to the wait nobody
may read or write its sums, nor write its registers of A, nor the shared memory that it reads; before the issue a
wgmma.fence is due after every access to those registers. PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from emmy.emulator.barriers import Waiting
from emmy.emulator.clocks import FULL_MASK, WARPGROUP
from emmy.emulator.datatypes import Array, any_true
from emmy.emulator.faults import Fault

if TYPE_CHECKING:
    from emmy.emulator.machine import Machine


@dataclass(eq=False)
class Registers:
    """The registers of one wgmma instruction, by number. sums: of D. a: of operand A, if it is in registers."""

    sums: Array
    a: Array
    line: int

    @property
    def all(self) -> Array:
        return np.concatenate([self.sums, self.a])


@dataclass(eq=False)
class Flight:
    """One wgmma in flight. land: reads the operands and writes the sums."""

    registers: Registers
    shape: str
    land: Callable[[], None]
    landed: bool = False


@dataclass(eq=False)
class Warpgroup:
    """Four warps from `first`, and what they issued. index: of their queue among the agents of the clocks."""

    index: int
    first: int
    epoch: int = 1
    current: list[Flight] = field(default_factory=list[Flight])
    groups: list[list[Flight]] = field(default_factory=list[list[Flight]])
    met: dict[int, int] = field(default_factory=dict[int, int])  # warps that stand at an instruction -> its position
    locked: list[Registers] = field(default_factory=list[Registers])

    @property
    def warps(self) -> slice:
        return slice(self.first, self.first + WARPGROUP)

    @property
    def flights(self) -> list[Flight]:
        """All that is in flight, the oldest first."""
        return [f for group in [*self.groups, self.current] for f in group]


class WgmmaQueues:
    """The queues of all warpgroups."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self.operands: list[Registers] = []  # of all wgmma of the kernel
        self.locked: Array | None = None
        self.reset()

    def watch(self) -> None:
        """All instructions are bound: note which of them touch registers that wgmma uses."""
        if not self.operands:
            return
        machine = self.machine
        count = len(machine.kernel.registers)
        used: Array = np.zeros(count, np.bool_)
        for registers in self.operands:
            used[registers.all] = True
        for slot in machine.slots:
            if not slot.operation.in_place:
                touched = np.unique(np.concatenate([slot.sources, slot.destinations]))
                slot.touches = touched[used[touched]] if used[touched].any() else None
        self.locked = np.zeros((count, machine.warps), np.bool_)
        self.unfenced = np.ones((count, machine.warps), np.bool_)

    def reset(self) -> None:
        machine = self.machine
        each = -(-machine.cta_warps // WARPGROUP)
        self.warpgroups = [
            Warpgroup(rank * each + i, rank * machine.cta_warps + i * WARPGROUP)
            for rank in range(machine.ctas)
            for i in range(machine.cta_warps // WARPGROUP)
        ]
        if self.locked is not None:
            self.locked.fill(False)
            self.unfenced.fill(True)  # also before the first wgmma

    # Meeting of the four warps

    def meet(self, low: int, high: int, act: Callable[[Warpgroup], None]) -> None:
        """Warps low .. high - 1 are at a wgmma instruction; `act` once for each warpgroup that is complete there."""
        machine = self.machine
        for warp in range(low, high):
            group = self._group(warp)
            position = machine.pcs[warp] - 1
            for other, at in group.met.items():
                if at != position:
                    where = machine.describe(machine.slots[at].source.line)
                    name = other % machine.cta_warps
                    raise Fault(
                        f"the four warps of a warpgroup issue wgmma together, but warp {name} is at {where}", warp
                    )
            group.met[warp] = position
            if len(group.met) < WARPGROUP:
                machine.waiting[warp] = Waiting("the other warps of its warpgroup")
                continue
            for member in group.met:
                machine.waiting[member] = None
            group.met.clear()
            act(group)

    def _group(self, warp: int) -> Warpgroup:
        rank, local = divmod(warp, self.machine.cta_warps)
        number = local // WARPGROUP
        if number >= self.machine.cta_warps // WARPGROUP:
            raise Fault(f"wgmma is for warpgroups of {WARPGROUP} warps, and this warp's is not whole", warp)
        return self.warpgroups[rank * (self.machine.cta_warps // WARPGROUP) + number]

    # Registers

    def fence(self, low: int, high: int) -> None:
        """wgmma.fence: these warps' accesses to registers are before their wgmma from here on."""
        if self.locked is not None:
            self.unfenced[:, low:high] = False

    def touch(self, numbers: Array, low: int, high: int) -> None:
        """Another instruction reads or writes these registers, which some wgmma uses."""
        self.unfenced[numbers, low:high] = True

    def check_written(self, numbers: Array, low: int, high: int) -> None:
        """Fault if one of these registers, which were written, is in use by a wgmma in flight."""
        if self.locked is None:
            return
        bad = self.locked[numbers, low:high]
        if any_true(bad):
            i, warp = (int(x[0]) for x in bad.nonzero())
            raise Fault(self.in_flight(int(numbers[i]), warp + low) or "", warp + low)

    def in_flight(self, number: int, warp: int) -> str | None:
        """Why a register must not be used now, or None."""
        if self.locked is None or not self.locked[number, warp]:
            return None
        name = self.machine.kernel.registers[number].name
        for flight in self._group(warp).flights:
            what = "a sum" if number in flight.registers.sums else "operand a"
            if number in flight.registers.all:
                where = self.machine.describe(flight.registers.line)
                return f"poison: the register {name} is {what} of the wgmma at {where}, in flight: a wgmma.wait_group is due"
        return None

    def _check_registers(self, group: Warpgroup, flight: Flight, adds: bool) -> None:
        machine, registers = self.machine, flight.registers
        unfenced = self.unfenced[registers.all, group.warps]
        if unfenced.any():
            i, warp = (int(x[0]) for x in unfenced.nonzero())
            name = machine.kernel.registers[int(registers.all[i])].name
            raise Fault(f"no wgmma.fence follows the last access to the register {name}", group.first + warp)
        for other in group.flights:
            same = np.array_equal(other.registers.sums, registers.sums) and other.shape == flight.shape
            if not same and np.isin(registers.sums, other.registers.all).any():
                where = machine.describe(other.registers.line)
                raise Fault(f"its sums overlap registers of another wgmma in flight, {where}", group.first)
            if same and adds:
                adds = False  # they are in flight, hence written
        if adds:
            missing = ~machine.initialised[registers.sums, group.warps]
            if missing.any():
                i, warp = (int(x[0]) for x in missing.nonzero())
                name = machine.kernel.registers[int(registers.sums[i])].name
                raise Fault(f"uninitialised: the register {name} was never written", group.first + warp)

    def _lock(self, group: Warpgroup, registers: Registers) -> None:
        """Poison the sums; whoever uses them, or writes A, is looked at again."""
        if registers in group.locked:
            return
        assert self.locked is not None
        group.locked.append(registers)
        machine = self.machine
        self.locked[registers.all, group.warps] = True
        machine.initialised[registers.sums, group.warps] = 0
        bits = ((1 << WARPGROUP) - 1) << group.first
        for slot in machine.slots:
            if slot.touches is not None:
                slot.checked &= ~bits
                slot.written &= ~bits
            elif slot.operation.in_place:
                slot.checked &= ~bits

    # Issue, commit, wait

    def issue(self, group: Warpgroup, flight: Flight, adds: bool) -> None:
        """A wgmma begins. adds: the old sums count."""
        self._check_registers(group, flight, adds)
        self._lock(group, flight.registers)
        group.current.append(flight)
        if self.machine.landing == "early":
            self._land(flight)

    def _land(self, flight: Flight) -> None:
        if not flight.landed:
            flight.landed = True
            flight.land()

    def land_some(self) -> None:
        """Random landing: the oldest of each warpgroup lands now with probability 1/4."""
        for group in self.warpgroups:
            waiting = next((f for f in group.flights if not f.landed), None)
            if waiting is not None and self.machine.chance.random() < 0.25:
                self._land(waiting)

    def commit(self, group: Warpgroup) -> None:
        group.groups.append(group.current)
        group.current = []
        group.epoch += 1

    def wait(self, group: Warpgroup, pending: int) -> None:
        """All but the `pending` youngest groups complete: sums are there, and the four warps know that memory was read."""
        machine = self.machine
        done = group.groups[: max(0, len(group.groups) - pending)]
        if not done:
            return
        assert self.locked is not None
        del group.groups[: len(done)]
        for flight in [f for members in done for f in members]:
            self._land(flight)
        left = list(dict.fromkeys(f.registers for f in group.flights))
        for registers in group.locked:
            if registers not in left:
                self.locked[registers.all, group.warps] = False
                machine.initialised[registers.sums, group.warps] = FULL_MASK
        group.locked = left
        for registers in left:
            self.locked[registers.all, group.warps] = True
            machine.initialised[registers.sums, group.warps] = 0
        known = group.epoch - 1 - len(group.groups)
        machine.clocks.known[group.warps, machine.clocks.wgmma + group.index] = known

    def finish(self) -> None:
        """All warps have left: nothing may be in flight."""
        for group in self.warpgroups:
            for flight in group.flights:
                text = "the kernel ends with this wgmma in flight: commit_group and wait_group are due"
                raise Fault(text, group.first, line=flight.registers.line)
