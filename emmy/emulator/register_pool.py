"""setmaxnreg: the registers that warpgroups give back to their CTA's pool and take from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from emmy.emulator.barriers import Waiting
from emmy.emulator.datatypes import Array
from emmy.emulator.decode import Execute, Operation, Spelling, instruction
from emmy.emulator.faults import Fault
from emmy.emulator.syntax import Kernel

if TYPE_CHECKING:
    from emmy.emulator.machine import Machine

REGISTERS_OF_SM = 65536
_MOST_OF_THREAD = 248  # the largest multiple of 8 that a thread can be given, PTX ISA, .maxnreg
_WARPGROUP = 4  # warps


def entry_registers(kernel: Kernel) -> int | None:
    """Registers of a thread at the kernel's start, None if the directives leave it to ptxas, which then ignores every
    setmaxnreg (message C7508)."""
    limits = kernel.limits
    if "maxnreg" in limits:
        return limits["maxnreg"][0]
    threads = limits.get("reqntid") or limits.get("maxntid")
    if threads is None or "minnctapersm" not in limits:
        return None
    each = REGISTERS_OF_SM // int(np.prod(threads)) // limits["minnctapersm"][0]
    return min(_MOST_OF_THREAD, each // 8 * 8)


class RegisterPool:
    """The pools of the CTAs that run together. How many registers a warp really uses is not modelled."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self.entry = entry_registers(machine.kernel)
        self.reset()

    def reset(self) -> None:
        self.free = [0] * self.machine.ctas  # registers of whole warps' threads: count * 32
        self.held = [self.entry or 0] * self.machine.warps
        self.history: list[list[tuple[int, int]]] = [[] for _ in range(self.machine.warps)]

    def set(self, warp: int, registers: int, increase: bool, line: int) -> None:
        """One warp's setmaxnreg; it waits if the pool has too few registers. Raises Fault."""
        machine = self.machine
        if self.entry is None:
            raise Fault(
                "setmaxnreg is ignored (C7508) unless the kernel has .maxnreg, or .maxntid with .minnctapersm", warp
            )
        if warp % machine.cta_warps // _WARPGROUP * _WARPGROUP + _WARPGROUP > machine.cta_warps:
            raise Fault(f"setmaxnreg is for warpgroups of {_WARPGROUP} warps, and this warp's is not whole", warp)
        change = registers - self.held[warp]
        if (change < 0) if increase else (change > 0):
            verb = "raise" if increase else "lower"
            raise Fault(f"setmaxnreg cannot {verb} {self.held[warp]} registers to {registers}", warp)
        rank = machine.cluster.rank_of(warp)
        if 32 * change > self.free[rank]:
            text = f"{32 * change} registers, the CTA's pool has {self.free[rank]} free"
            machine.waiting[warp] = Waiting(text, retry=True, pool=True)
            machine.pcs[warp] -= 1
            return
        self.free[rank] -= 32 * change
        self.held[warp] = registers
        self._record(warp, registers, line)
        if change < 0:
            for other, reason in enumerate(machine.waiting):
                if reason is not None and reason.pool:
                    machine.waiting[other] = None

    def _record(self, warp: int, registers: int, line: int) -> None:
        """Fault if another warp of the warpgroup ran a different setmaxnreg in this place."""
        mine = self.history[warp]
        mine.append((registers, line))
        for other in self._warpgroup(warp):
            theirs = self.history[other]
            if len(theirs) >= len(mine) and theirs[len(mine) - 1] != mine[-1]:
                where = self.machine.describe(theirs[len(mine) - 1][1])
                name = other % self.machine.cta_warps
                raise Fault(f"the warps of a warpgroup run one setmaxnreg, but warp {name} ran that of {where}", warp)

    def _warpgroup(self, warp: int) -> range:
        """The warps of a warp's warpgroup; of the last one of a CTA, those that there are."""
        begin = warp // self.machine.cta_warps * self.machine.cta_warps
        first = begin + (warp - begin) // _WARPGROUP * _WARPGROUP
        return range(first, min(first + _WARPGROUP, begin + self.machine.cta_warps))

    def report(self) -> list[str]:
        """The pools in words, if some warp changed its registers."""
        machine = self.machine
        if self.entry is None or not any(self.history):
            return []
        each = 32 * machine.cta_warps
        return [
            f"register pool{machine.cluster.of_rank(rank)}: {self.entry} at entry for {each} threads, {free} free, its warps "
            f"hold {', '.join(map(str, self.held[machine.cluster.warps_of(rank)]))}"
            for rank, free in enumerate(self.free)
        ]

    def finish(self) -> None:
        """At the end of the CTA: each warpgroup ran its setmaxnreg with all four warps, or not at all."""
        for warp, mine in enumerate(self.history):
            for other in self._warpgroup(warp):
                if len(self.history[other]) < len(mine):
                    line = mine[len(self.history[other])][1]
                    raise Fault(
                        f"all four warps of a warpgroup must run setmaxnreg, warp {other % self.machine.cta_warps} did not",
                        warp,
                        line=line,
                    )


@instruction("setmaxnreg")
def decode_setmaxnreg(spelling: Spelling) -> Operation:
    """setmaxnreg.{inc,dec}.sync.aligned.u32 registers"""
    spelling.available((8, 0), 90, specific=True)
    increase = spelling.require("inc", "dec") == "inc"
    spelling.require("sync")
    spelling.require("aligned")
    spelling.require("u32")
    spelling.finish(1)
    registers = spelling.integer(spelling.operands[0])
    if not 24 <= registers <= 256 or registers % 8:
        spelling.fail(f"a multiple of 8 from 24 to 256 is expected, not {registers}")
    line = spelling.source.line

    def bind(machine: Machine) -> Execute:
        def execute(low: int, high: int, mask: Array | None) -> None:
            for warp in range(low, high):
                machine.registers.set(warp, registers, increase, line)

        return execute

    return Operation("setmaxnreg", bind, destinations=0, collective=True, control=True)
