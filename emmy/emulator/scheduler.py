"""Runs one CTA or cluster: picks warps, executes instructions for them, turns faults and deadlocks into errors with their place.

`fixed` order runs the warps at the lowest position first; neighbours at one position share each NumPy call.
`reversed` runs the highest warp as far as it gets, `random` a random warp for a random number of instructions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emmy.emulator.datatypes import Array, all_true, any_true
from emmy.emulator.faults import EmulatorError, Fault
from emmy.emulator.machine import Machine, Slot

_FAR = 1 << 60
_MAX_BURST = 24  # instructions of one warp in a row in random order


@dataclass
class Budget:
    """Warp instructions executed so far, and how many are allowed."""

    used: int
    limit: int


class Scheduler:
    """Executes the cluster that `machine` was last reset for."""

    def __init__(self, machine: Machine, order: str, budget: Budget):
        self.machine = machine
        self.order = order
        self.budget = budget

    def run(self) -> None:
        """Until every warp has left the kernel. Raises EmulatorError."""
        machine = self.machine
        while True:
            ready = [w for w in range(machine.warps) if machine.waiting[w] is None and not machine.exited[w]]
            if not ready:
                if all(machine.exited):
                    self._finish()
                    return
                position = next(machine.pcs[w] for w in range(machine.warps) if not machine.exited[w])
                try:
                    moved = self._move_on()
                except Fault as fault:
                    raise self._error(fault, position, 0) from fault
                if not moved:
                    raise self._deadlock()
                continue
            if machine.landing == "random":
                machine.copies.land_some()
                machine.bulk.land_some()
                machine.wgmma.land_some()
            low, high, limit, steps = self._pick(ready)
            position = machine.pcs[low]
            self._run_group(low, high, position, limit, steps)

    def _move_on(self) -> bool:
        """Nothing can run: let what warps wait for happen, and only that. False: nothing can."""
        machine = self.machine
        return machine.copies.fire_awaited() or machine.bulk.land_awaited() or machine.mbarriers.release_polls()

    def _finish(self) -> None:
        try:
            self.machine.bulk.finish()
            self.machine.registers.finish()
            self.machine.wgmma.finish()
        except Fault as fault:
            raise self._error(fault, 0, 0) from fault

    def _pick(self, ready: list[int]) -> tuple[int, int, int, int]:
        """Warps [low, high), the position at which others would join them, and the most steps to take."""
        pcs = self.machine.pcs
        if self.order == "reversed":
            return ready[-1], ready[-1] + 1, _FAR, _FAR
        if self.order == "random":
            chosen = self.machine.chance.choice(ready)
            return chosen, chosen + 1, _FAR, self.machine.chance.randint(1, _MAX_BURST)
        position = min(pcs[w] for w in ready)
        low = next(w for w in ready if pcs[w] == position)
        high = low + 1
        available = set(ready)
        while high in available and pcs[high] == position:
            high += 1
        limit = min((pcs[w] for w in ready if pcs[w] > position), default=_FAR)
        return low, high, limit, _FAR

    def _run_group(self, low: int, high: int, position: int, limit: int, steps: int) -> None:
        machine, budget = self.machine, self.budget
        slots = machine.slots
        bits = ((1 << (high - low)) - 1) << low
        everyone = None if high <= machine.full_warps else machine.live[low:high]
        try:
            while True:
                slot = slots[position]
                mask = everyone
                if slot.guard is not None:
                    if bits & ~slot.checked:
                        machine.check_guard(slot, low, high)
                    taken = slot.guard[low:high] ^ slot.negated
                    mask = taken if everyone is None else taken & everyone
                    if all_true(mask):
                        mask = None
                if slot.operation.control:
                    self._control(slot, low, high, position, mask)
                    return
                if mask is None or any_true(mask):
                    self._execute(slot, low, high, mask, bits)
                budget.used += high - low
                position += 1
                steps -= 1
                if position == limit or steps <= 0 or budget.used > budget.limit:
                    break
        except Fault as fault:
            raise self._error(fault, position, low) from fault
        for warp in range(low, high):
            machine.pcs[warp] = position
        self._check_budget(position, low)

    def _check_budget(self, position: int, low: int) -> None:
        if self.budget.used > self.budget.limit:
            fault = Fault(f"the budget of {self.budget.limit} warp instructions is used up: an endless loop?", low)
            raise self._error(fault, position, low)

    def _execute(self, slot: Slot, low: int, high: int, mask: Array | None, bits: int) -> None:
        machine = self.machine
        if slot.operation.collective and mask is not None:
            self._execute_whole_warps(slot, low, high, mask)
            return
        if bits & ~slot.checked:
            machine.check_sources(slot, low, high, mask, bits)
        slot.execute(low, high, mask)
        if bits & ~slot.written:
            machine.mark_written(slot, low, high, mask, bits)
        if slot.touches is not None:
            machine.wgmma.touch(slot.touches, low, high)
        slot.count += high - low if mask is None or high - low == 1 else int(mask.any(axis=1).sum())

    def _execute_whole_warps(self, slot: Slot, low: int, high: int, mask: Array) -> None:
        """A collective instruction under a mask: each warp takes part with all its live lanes, or not at all."""
        machine = self.machine
        for warp in range(low, high):
            row, live = mask[warp - low], machine.live[warp]
            if not row.any():
                continue
            if (row != live).any():
                lane = int((row != live).argmax())
                raise Fault("all lanes of a warp must execute this together, or none; they disagree", warp, lane)
            inner = None if warp < machine.full_warps else machine.live[warp : warp + 1]
            if 1 << warp & ~slot.checked:
                machine.check_sources(slot, warp, warp + 1, inner, 1 << warp)
            slot.execute(warp, warp + 1, inner)
            machine.mark_written(slot, warp, warp + 1, inner, 1 << warp)
            if slot.touches is not None:
                machine.wgmma.touch(slot.touches, warp, warp + 1)
            slot.count += 1

    def _control(self, slot: Slot, low: int, high: int, position: int, mask: Array | None) -> None:
        machine = self.machine
        self.budget.used += high - low
        for warp in range(low, high):
            machine.pcs[warp] = position + 1
        target = slot.operation.branch
        if target is None:
            if mask is None or mask.any():
                self._execute(slot, low, high, mask, ((1 << (high - low)) - 1) << low)
                slot.count -= self._to_be_repeated(low, high, position, mask)
        else:
            for warp in range(low, high):
                if self._taken(slot, warp, None if mask is None else mask[warp - low]):
                    if target < 0:
                        machine.exited[warp] = True
                        machine.cluster.exit(warp)
                    else:
                        machine.pcs[warp] = target
                        poll = machine.failed_poll[warp]
                        slot.count -= poll is not None and poll[0] == target
            slot.count += high - low
        self._check_budget(position, low)

    def _to_be_repeated(self, low: int, high: int, position: int, mask: Array | None) -> int:
        """How many of the warps failed to poll, or wait for registers or the cluster, and will do so again: only success
        counts."""
        machine = self.machine
        count = 0
        for warp in range(low, high):
            poll, reason = machine.failed_poll[warp], machine.waiting[warp]
            again = (poll is not None and poll[0] == position) or (reason is not None and reason.retry)
            count += again and (mask is None or bool(mask[warp - low].any()))
        return count

    def _taken(self, slot: Slot, warp: int, row: Array | None) -> bool:
        if row is None:
            return True
        live = self.machine.live[warp]
        different = row[live] != row[live][0]
        if different.any():
            lane = int(np.flatnonzero(live)[different.argmax()])
            what = "leaving the kernel" if slot.operation.branch == -1 else "a branch"
            raise Fault(f"divergent: the lanes of a warp disagree on {what}; use predicated instructions", warp, lane)
        return bool(row[live][0])

    # Errors

    def _error(self, fault: Fault, position: int, low: int) -> EmulatorError:
        source = self.machine.slots[position].source
        if fault.line:
            source = next(slot.source for slot in self.machine.slots if slot.source.line == fault.line)
        warp = low if fault.warp is None else fault.warp
        lane = "all lanes" if fault.lane is None else f"lane {fault.lane}"
        return EmulatorError(
            f"PTX line {source.line}: `{source.text}`: {fault.message} ({self.machine.cluster.name(warp)}, {lane})",
            source.line,
        )

    def _deadlock(self) -> EmulatorError:
        machine = self.machine
        what = f"{'' if machine.ctas == 1 else 'the cluster of '}CTA {machine.cluster.index[0]}"
        lines = [f"deadlock in {what} of {machine.kernel.name}: no warp can run"]
        first = 0
        for warp in range(machine.warps):
            name = f"warp {warp % machine.cta_warps}{machine.cluster.of_rank(warp // machine.cta_warps)}"
            if machine.exited[warp]:
                lines.append(f"  {name} has exited")
                continue
            reason = machine.waiting[warp]
            # A warp at a barrier stands behind it, one that will try again stands at the instruction.
            position = machine.pcs[warp] - (1 if reason is not None and not reason.retry else 0)
            source = machine.slots[position].source
            first = first or source.line
            text = "" if reason is None else reason.text
            lines.append(f"  {name} at PTX line {source.line}: `{source.text}` waits for {text}")
        reports = (machine.barriers, machine.cluster.barrier, machine.mbarriers, machine.registers)
        lines += [f"  {text}" for part in reports for text in part.report()]
        return EmulatorError("\n".join(lines), first)
