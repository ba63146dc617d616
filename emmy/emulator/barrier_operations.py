"""Branches, exits, CTA barriers, fences and mbarriers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from emmy.emulator.barriers import MBarrier, Waiting
from emmy.emulator.datatypes import TYPES, Array
from emmy.emulator.decode import Execute, Operation, Spelling, instruction
from emmy.emulator.machine import Machine
from emmy.emulator.syntax import Address, Label, Operand, Sink

U32, B64, PRED = TYPES["u32"], TYPES["b64"], TYPES["pred"]


def _nothing(machine: Machine) -> Execute:
    return lambda low, high, mask: None


# Control flow


@instruction("bra")
def decode_branch(spelling: Spelling) -> Operation:
    """Jump, the whole warp or none of it."""
    spelling.take("uni")
    spelling.finish(1)
    label = spelling.operands[0]
    if not isinstance(label, Label):
        spelling.fail("bra needs a label")
    return Operation("bra", _nothing, destinations=0, control=True, branch=label.position)


@instruction("ret", "exit")
def decode_exit(spelling: Spelling) -> Operation:
    """Leave the kernel."""
    spelling.take("uni")
    spelling.finish(0)
    return Operation(spelling.prefix, _nothing, destinations=0, control=True, branch=-1)


@instruction("nanosleep")
def decode_sleep(spelling: Spelling) -> Operation:
    """Nothing here takes time."""
    spelling.type("u32")
    spelling.finish(1)
    return Operation("nanosleep", _nothing, destinations=0)


@instruction("griddepcontrol")
def decode_dependency(spelling: Spelling) -> Operation:
    """Nothing: launches run one after the other. That global memory is touched after a wait only is seen in the text."""
    spelling.available((7, 8), 90)
    spelling.require("wait", "launch_dependents")
    spelling.finish(0)
    return Operation(spelling.prefix, _nothing, destinations=0)


@instruction("membar", "fence")
def decode_fence(spelling: Spelling) -> Operation:
    """Fences order accesses only together with a barrier or mbarrier, which is where the race detector looks."""
    if spelling.prefix == "membar":
        spelling.require("cta", "gl", "sys")
    else:
        spelling.take("sc", "acq_rel", "acquire", "release")
        spelling.require("cta", "cluster", "gpu", "sys")
    spelling.finish(0)
    return Operation(spelling.prefix, _nothing, destinations=0)


@instruction("fence.proxy.async", "fence.mbarrier_init")
def decode_async_fence(spelling: Spelling) -> Operation:
    """What these lanes did to shared memory before (fence.mbarrier_init: their mbarrier.init) is ready for TMA."""
    spelling.available((8, 0), 90)
    init = spelling.prefix == "fence.mbarrier_init"
    if init:
        spelling.require("release")
        spelling.require("cluster")
    # .global says nothing of shared memory; global memory is not tracked here.
    shared = spelling.take("shared::cta", "shared::cluster", "global") != "global"
    spelling.finish(0)

    def bind(machine: Machine) -> Execute:
        def execute(low: int, high: int, mask: Array | None) -> None:
            for warp, bits in enumerate(machine.lane_bits(low, high, mask), low):
                if bits:
                    machine.mbarriers.show_to_async_proxy(warp, bits, init)
                if bits and not init:
                    machine.clocks.fence_async(warp, bits, int(machine.live_bits[warp]))

        return execute

    return Operation(spelling.prefix, bind if shared else _nothing, destinations=0)


# CTA barriers


@instruction(
    *[f"{name}.{verb}" for name in ("bar", "barrier", "bar.cta", "barrier.cta") for verb in ("sync", "arrive")]
)
def decode_barrier(spelling: Spelling) -> Operation:
    """bar.sync id {, threads}: all warps named wait for each other; bar.arrive only announces itself."""
    wait = spelling.prefix.endswith("sync")
    spelling.take("aligned")
    spelling.finish(*((1, 2) if wait else (2,)))
    for operand in spelling.operands:
        spelling.check(operand, U32)

    def bind(machine: Machine) -> Execute:
        number, *count = (machine.source(o, U32) for o in spelling.operands)

        def execute(low: int, high: int, mask: Array | None) -> None:
            numbers = machine.uniform(number[low:high], low, "the barrier")
            counts = machine.uniform(count[0][low:high], low, "the thread count") if count else []
            for i, warp in enumerate(range(low, high)):
                expected = counts[i] if counts else 32 * machine.cta_warps
                machine.barriers.arrive(warp, numbers[i], expected, wait)

        return execute

    kind = "bar.sync" if wait else "bar.arrive"
    return Operation(kind, bind, destinations=0, collective=True, control=True)


# mbarriers

_SHARED = ("shared", "shared::cta")


def _ordering(spelling: Spelling, semantics: str = "", cluster: bool = False) -> bool:
    """[.semantics][.scope].shared[::cta].b64; `cluster`: .shared::cluster too. Is it .shared::cluster?

    .relaxed where the default orders memory is refused: nothing that the program then reads would be ordered.
    """
    version = (7, 0)
    if semantics and spelling.take(semantics):
        spelling.require("cta", "cluster")
        version = (8, 0)
    spaces = (*_SHARED, "shared::cluster") if cluster else _SHARED
    space = spelling.require(*spaces)
    if "::" in space:
        version = max(version, (7, 8))
    spelling.require("b64")
    spelling.available(version, 80)
    return space == "shared::cluster"


# Acts on one lane's mbarrier: (address, object, warp, lane) -> the lane's result.
Act = Callable[[int, MBarrier, int, int], int]


def _each_lane(machine: Machine, addresses: Array, low: int, high: int, mask: Array | None, act: Act) -> list[int]:
    """Apply `act` for every active lane, in order."""
    warp, lane = machine.lanes(low, high, mask)
    results: list[int] = []
    for address, w, i in zip(addresses.tolist(), warp.tolist(), lane.tolist(), strict=True):
        results.append(act(address, machine.mbarriers.find(address, w, i), w, i))
    return results


def _scatter(low: int, high: int, lanes: tuple[Array, Array], values: list[int], dtype: type[np.generic]) -> Array:
    whole = np.zeros((high - low, 32), dtype)
    whole[lanes[0] - low, lanes[1]] = values
    return whole


@instruction("mbarrier.init", "mbarrier.inval")
def decode_mbarrier_init(spelling: Spelling) -> Operation:
    """mbarrier.init [a], count and mbarrier.inval [a]"""
    init = spelling.prefix == "mbarrier.init"
    _ordering(spelling)
    spelling.finish(2 if init else 1)
    address = spelling.address(spelling.operands[0], "shared")
    if init:
        spelling.check(spelling.operands[1], U32)
    line = spelling.source.line

    def bind(machine: Machine) -> Execute:
        addresses = machine.shared_address(address)
        counts = machine.source(spelling.operands[1], U32) if init else None

        def execute(low: int, high: int, mask: Array | None) -> None:
            warp, lane = machine.lanes(low, high, mask)
            machine.touch(low, high, mask)
            for at, w, i in zip(addresses(low, high, mask).tolist(), warp.tolist(), lane.tolist(), strict=True):
                if counts is None:
                    machine.mbarriers.invalidate(at, w, i)
                else:
                    machine.mbarriers.init(at, int(counts[w, i]), line, w, i)

        return execute

    return Operation(spelling.prefix, bind, destinations=0)


@instruction("mbarrier.arrive", "mbarrier.arrive.expect_tx")
def decode_mbarrier_arrive(spelling: Spelling) -> Operation:
    """state = arrive [a] {, count}; with .expect_tx the second operand is a number of bytes. The state is the phase."""
    expects = spelling.prefix.endswith("expect_tx")
    operands = spelling.operands
    has_state = bool(operands) and not isinstance(operands[0], Address)
    target = operands[0] if has_state else Sink()
    anywhere = _ordering(spelling, "release", cluster=isinstance(target, Sink))
    if expects or isinstance(target, Sink):
        spelling.available((8, 0), 90)
    rest = operands[1:] if has_state else operands
    spelling.finish(len(operands) if len(rest) in ((2,) if expects else (1, 2)) else -1)
    spelling.check(target, B64)
    address = spelling.address(rest[0], "shared")
    if len(rest) == 2:
        spelling.check(rest[1], U32)

    def bind(machine: Machine) -> Execute:
        addresses = machine.shared_address(address, anywhere)
        amounts = machine.source(rest[1], U32) if len(rest) == 2 else None
        write = machine.writer(target, B64)

        def execute(low: int, high: int, mask: Array | None) -> None:
            bits = machine.lane_bits(low, high, mask)
            # First, so that who waits for the arrivals knows that they have been made, in whatever CTA the mbarrier is.
            flat = addresses(low, high, mask)
            clocks = {
                warp: machine.clocks.publish(warp, bits[warp - low], int(machine.live_bits[warp]))
                for warp in range(low, high)
                if bits[warp - low]
            }

            def arrive(at: int, barrier: MBarrier, warp: int, lane: int) -> int:
                amount = 1 if amounts is None else int(amounts[warp, lane])
                if expects:
                    machine.mbarriers.expect(at, barrier, amount)
                    amount = 1
                return machine.mbarriers.arrive(at, barrier, amount, clocks[warp], warp, lane)

            phases = _each_lane(machine, flat, low, high, mask, arrive)
            lanes = machine.lanes(low, high, mask)
            for warp in clocks:
                mine = np.flatnonzero(lanes[0] == warp)
                machine.mbarriers.arrive_together(flat[mine].tolist(), [phases[i] for i in mine], warp)
            write(low, high, mask, _scatter(low, high, lanes, phases, np.uint64))

        return execute

    return Operation(spelling.prefix, bind, destinations=1 if has_state else 0)


@instruction("mbarrier.expect_tx", "mbarrier.complete_tx")
def decode_mbarrier_expect(spelling: Spelling) -> Operation:
    """expect_tx [a], bytes waits for more of them, complete_tx [a], bytes does as if they had arrived."""
    expects = spelling.prefix == "mbarrier.expect_tx"
    spelling.available((8, 0), 90)
    anywhere = _ordering(spelling, "relaxed", cluster=True)
    spelling.finish(2)
    address = spelling.address(spelling.operands[0], "shared")
    spelling.check(spelling.operands[1], U32)

    def bind(machine: Machine) -> Execute:
        addresses = machine.shared_address(address, anywhere)
        amounts = machine.source(spelling.operands[1], U32)

        def expect(at: int, barrier: MBarrier, warp: int, lane: int) -> int:
            change = machine.mbarriers.expect if expects else machine.mbarriers.complete_tx
            change(at, barrier, int(amounts[warp, lane]))
            return 0

        def execute(low: int, high: int, mask: Array | None) -> None:
            _each_lane(machine, addresses(low, high, mask), low, high, mask, expect)

        return execute

    return Operation(spelling.prefix, bind, destinations=0)


@instruction("mbarrier.test_wait", "mbarrier.try_wait")
def decode_mbarrier_wait(spelling: Spelling) -> Operation:
    """p = has the phase (of a state, or of a parity) completed?

    A poll may fail, so the first one does; a warp that polls again at once is suspended until the mbarrier completes a
    phase, and gets another `false` only when nothing else can run."""
    parity = bool(spelling.take("parity"))
    tries = spelling.prefix.endswith("try_wait")
    _ordering(spelling, "acquire")
    if tries:
        spelling.available((7, 8), 90)
    elif parity:
        spelling.available((7, 1), 80, what="mbarrier.test_wait.parity")
    spelling.finish(*((3, 4) if tries else (3,)))
    target, where, phase, *hint = spelling.operands
    spelling.check(target, PRED)
    spelling.check(phase, U32 if parity else B64)
    for operand in hint:
        spelling.check(operand, U32)
    address = spelling.address(where, "shared")

    def bind(machine: Machine) -> Execute:
        return _wait(machine, address, target, phase, parity)

    return Operation(spelling.prefix, bind, control=True)


def _wait(machine: Machine, address: Address, target: Operand, phase: Operand, parity: bool) -> Execute:
    addresses = machine.shared_address(address)
    wanted = machine.source(phase, U32 if parity else B64)
    write = machine.writer(target, PRED)

    def completed(at: int, barrier: MBarrier, warp: int, lane: int) -> int:
        value = int(wanted[warp, lane])
        return (barrier.phase & 1) != (value & 1) if parity else barrier.phase > value

    def execute_warp(warp: int, mask: Array | None) -> None:
        flat = addresses(warp, warp + 1, mask)
        barriers = machine.mbarriers
        at, row = int(flat[0]), wanted[warp]
        if mask is None and (flat == at).all() and (row == row[0]).all() and barriers.visible_to_warp(at, warp):
            results = [completed(at, barriers.objects[at], warp, 0)] * flat.size
        else:
            results = _each_lane(machine, flat, warp, warp + 1, mask, completed)
        if not all(results) and warp not in machine.poll_fails:
            at = flat.tolist()[results.index(False)]
            poll = (machine.pcs[warp] - 1, at)
            if machine.failed_poll[warp] != poll:
                machine.failed_poll[warp] = poll
                write(warp, warp + 1, mask, np.zeros((1, 32), np.bool_))
                return
            text = f"mbarrier {at:#x}, now in phase {barriers.objects[at].phase}"
            machine.waiting[warp] = Waiting(text, at, retry=True)
            machine.pcs[warp] -= 1
            return
        machine.poll_fails.discard(warp)
        if all(results):
            machine.failed_poll[warp] = None
        lanes = machine.lanes(warp, warp + 1, mask)
        for at in set(flat.tolist()):
            mine = [int(i) for i, a, done in zip(lanes[1], flat, results, strict=True) if a == at and done]
            if mine:
                barriers.objects[at].seen = barriers.objects[at].phase
                bits = sum(1 << i for i in mine)
                machine.clocks.acquire(warp, bits, int(machine.live_bits[warp]), barriers.objects[at].done)
        write(warp, warp + 1, mask, _scatter(warp, warp + 1, lanes, results, np.bool_))

    def execute(low: int, high: int, mask: Array | None) -> None:
        for warp in range(low, high):
            row = None if mask is None else mask[warp - low : warp - low + 1]
            if row is None or row.any():
                execute_warp(warp, row)

    return execute
