"""cp.async and its groups. The copies themselves, and when they land, are in `copies`."""

from __future__ import annotations

import numpy as np

from emmy.emulator.copies import Copy
from emmy.emulator.datatypes import TYPES, Array
from emmy.emulator.decode import Execute, Operation, Spelling, elementwise, instruction
from emmy.emulator.faults import Fault
from emmy.emulator.machine import Machine
from emmy.emulator.syntax import Operand, Register

U32, B64, F32, PRED = TYPES["u32"], TYPES["b64"], TYPES["f32"], TYPES["pred"]
_SHARED = ("shared", "shared::cta")


def without_policy(spelling: Spelling, *counts: int) -> tuple[Operand, ...]:
    """The operands, of which there are `counts` before the cache policy of .L2::cache_hint; the last thing to be parsed."""
    hint = bool(spelling.take("L2::cache_hint"))
    spelling.finish(*(count + hint for count in counts))
    if not hint:
        return spelling.operands
    spelling.available((7, 4), 80, what=".L2::cache_hint")
    spelling.check(spelling.operands[-1], B64)
    return spelling.operands[:-1]


@instruction("createpolicy.fractional")
def decode_policy(spelling: Spelling) -> Operation:
    """d {, fraction}: an opaque cache policy. There is no cache here: 0, which copies take and do not look at."""
    spelling.available((7, 4), 80)
    spelling.require("L2::evict_first", "L2::evict_last", "L2::evict_normal", "L2::evict_unchanged")
    spelling.take("L2::evict_first", "L2::evict_unchanged")  # of the accesses beyond the fraction
    spelling.type("b64")
    fraction = [F32] if len(spelling.operands) == 2 else []
    return elementwise(spelling, "createpolicy", _no_policy, B64, fraction)


def _no_policy(*fraction: Array) -> Array:
    return np.zeros((1, 1), B64.dtype)


@instruction("cp.async")
def decode_copy(spelling: Spelling) -> Operation:
    """cp.async [shared], [global], size {, source bytes | ignore-source predicate} {, cache policy}; missing bytes are 0."""
    cache = spelling.require("ca", "cg")
    spelling.require(*_SHARED)
    spelling.require("global")
    spelling.take("L2::64B", "L2::128B", "L2::256B")
    operands = without_policy(spelling, 3, 4)
    target, source = spelling.address(operands[0], "shared"), spelling.address(operands[1], "global")
    size = spelling.integer(operands[2])
    if size not in ((16,) if cache == "cg" else (4, 8, 16)):
        spelling.fail(f".{cache} cannot copy {size} bytes")
    extra = operands[3] if len(operands) == 4 else None
    ignores = isinstance(extra, Register) and extra.type.kind == "pred"
    if extra is not None:
        spelling.check(extra, PRED if ignores else U32)
    line = spelling.source.line

    def bind(machine: Machine) -> Execute:
        targets, sources = machine.shared_address(target), machine.address(source)
        amount = None if extra is None else machine.source(extra, PRED if ignores else U32)

        def counts(low: int, high: int, mask: Array | None, warp: Array, lane: Array) -> Array:
            if amount is None:
                return np.full(warp.size, size)
            given = amount[low:high].reshape(-1) if mask is None else amount[low:high][mask]
            if ignores:
                return np.where(given, 0, size)
            if (given > size).any():
                i = int((given > size).argmax())
                raise Fault(f"{int(given[i])} source bytes in a copy of {size}", int(warp[i]), int(lane[i]))
            return given.astype(np.int64)

        def execute(low: int, high: int, mask: Array | None) -> None:
            warp, lane = machine.lanes(low, high, mask)
            shared = machine.shared
            offsets = shared.locate(targets(low, high, mask), size, warp, lane)
            bytes_ = counts(low, high, mask, warp, lane)
            copy = Copy(offsets, sources(low, high, mask), bytes_, size, warp, lane)
            machine.count_conflicts(line, offsets, size, warp, lane)
            machine.copies.issue(copy, shared.granules(offsets, size), low, high, line)

        return execute

    return Operation("cp.async", bind, destinations=0, shared_bytes=4)


@instruction("cp.async.commit_group")
def decode_commit(spelling: Spelling) -> Operation:
    """Close the group of copies issued since the last commit; an empty group counts too."""
    spelling.finish(0)

    def bind(machine: Machine) -> Execute:
        return lambda low, high, mask: machine.copies.commit(low, high)

    return Operation("cp.async.commit_group", bind, destinations=0, collective=True)


@instruction("cp.async.wait_group", "cp.async.wait_all")
def decode_wait(spelling: Spelling) -> Operation:
    """Wait until at most N of the youngest groups are outstanding; wait_all also waits for uncommitted copies."""
    waits_all = spelling.prefix.endswith("all")
    spelling.finish(0 if waits_all else 1)
    pending = 0 if waits_all else spelling.integer(spelling.operands[0])

    def bind(machine: Machine) -> Execute:
        def execute(low: int, high: int, mask: Array | None) -> None:
            if waits_all:
                machine.copies.wait_all(low, high)
            else:
                machine.copies.wait_group(low, high, pending)

        return execute

    return Operation(spelling.prefix, bind, destinations=0, collective=True)


@instruction("cp.async.mbarrier.arrive")
def decode_copy_arrive(spelling: Spelling) -> Operation:
    """Arrive at an mbarrier once this thread's earlier copies have landed; without .noinc it expects one more first."""
    increments = not spelling.take("noinc")
    spelling.require(*_SHARED)
    spelling.require("b64")
    spelling.finish(1)
    address = spelling.address(spelling.operands[0], "shared")

    def bind(machine: Machine) -> Execute:
        addresses = machine.shared_address(address)

        def execute(low: int, high: int, mask: Array | None) -> None:
            warp, lane = machine.lanes(low, high, mask)
            flat = addresses(low, high, mask)
            for w, bits in enumerate(machine.lane_bits(low, high, mask), low):
                mine = warp == w
                if not mine.any():
                    continue
                lanes, where = lane[mine].tolist(), flat[mine].tolist()
                for i, at in zip(lanes, where, strict=True):
                    barrier = machine.mbarriers.find(at, w, i)
                    barrier.pending += increments
                clock = machine.clocks.publish(w, bits, int(machine.live_bits[w]))
                machine.copies.arrive_when_landed(w, lanes, where, clock)

        return execute

    return Operation("cp.async.mbarrier.arrive", bind, destinations=0)
