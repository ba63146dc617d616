"""Instructions of a whole warp: shfl, vote, elect, activemask, redux, bar.warp.sync."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from emmy.emulator.datatypes import TYPES, Array
from emmy.emulator.decode import Execute, Operation, Spelling, instruction
from emmy.emulator.faults import Fault
from emmy.emulator.machine import Machine, mask_bits
from emmy.emulator.syntax import Operand, Pair, Sink

U32, PRED, B32 = TYPES["u32"], TYPES["pred"], TYPES["b32"]
_LANES = np.arange(32)


def _member_check(machine: Machine, operand: Operand) -> Callable[[int, int, Array | None], None]:
    """The member mask must name exactly the live lanes (bits of lanes that do not exist are ignored)."""
    members = machine.source(operand, U32)

    def check(low: int, high: int, mask: Array | None) -> None:
        live = machine.live_bits[low:high, None]
        active = live if mask is None else mask_bits(mask)[:, None]
        wrong = ((members[low:high] & live) != active) & machine.live[low:high]
        if wrong.any():
            warp, lane = (int(x[0]) for x in wrong.nonzero())
            named = int(members[low + warp, lane])
            raise Fault(
                f"the member mask {named:#x} does not match the active lanes {int(active[warp, 0]):#x}",
                low + warp,
                lane,
            )

    return check


@instruction("shfl.sync")
def decode_shfl(spelling: Spelling) -> Operation:
    """d|p = a of another lane; PTX ISA, shfl.sync: c holds the clamp (bits 0-4) and the segment mask (8-12)."""
    mode = spelling.require("idx", "bfly", "up", "down")
    spelling.type("b32")
    spelling.finish(5)
    target, a, b, c, members = spelling.operands
    targets = (target.first, target.second) if isinstance(target, Pair) else (target, Sink())
    for operand, type_ in ((targets[0], B32), (targets[1], PRED), (a, B32), (b, U32), (c, U32), (members, U32)):
        spelling.check(operand, type_)

    def bind(machine: Machine) -> Execute:
        source, amount, control = machine.source(a, U32), machine.source(b, U32), machine.source(c, U32)
        write, write_valid = machine.writer(targets[0], U32), machine.writer(targets[1], PRED)
        check = _member_check(machine, members)

        def execute(low: int, high: int, mask: Array | None) -> None:
            check(low, high, mask)
            shift = (amount[low:high] & 31).astype(np.int64)
            limit = (control[low:high] & 31).astype(np.int64)
            segment = (control[low:high] >> 8 & 31).astype(np.int64)
            first = _LANES & segment
            last = first | (limit & ~segment)
            if mode == "up":
                lane = _LANES - shift
                valid = lane >= last
            else:
                lane = {"idx": first | (shift & ~segment), "bfly": _LANES ^ shift, "down": _LANES + shift}[mode]
                valid = lane <= last
            lane = np.where(valid, lane, _LANES)
            rows = np.arange(high - low)[:, None]
            if mask is not None:
                bad = mask & ~mask[rows, lane]
                if bad.any():
                    warp, where = (int(x[0]) for x in bad.nonzero())
                    raise Fault(f"shfl reads lane {int(lane[warp, where])}, which is not active", low + warp, where)
            write(low, high, mask, source[low:high][rows, lane])
            write_valid(low, high, mask, valid)

        return execute

    return Operation("shfl.sync", bind, collective=True)


@instruction("vote.sync")
def decode_vote(spelling: Spelling) -> Operation:
    """d = all, any or uni of a predicate over the warp, or its ballot."""
    mode = spelling.require("all", "any", "uni", "ballot")
    result = spelling.type("b32" if mode == "ballot" else "pred")
    spelling.finish(3)
    target, p, members = spelling.operands
    for operand, type_ in ((target, result), (p, PRED), (members, U32)):
        spelling.check(operand, type_, negatable=operand is p)

    def bind(machine: Machine) -> Execute:
        predicate = machine.predicate(p)
        write = machine.writer(target, result)
        check = _member_check(machine, members)

        def execute(low: int, high: int, mask: Array | None) -> None:
            check(low, high, mask)
            value = predicate(low, high)
            live = machine.live[low:high]
            every: Array = np.asarray((value | ~live).all(axis=1))
            some: Array = np.asarray((value & live).any(axis=1))
            if mode == "ballot":
                row = mask_bits(value & live)
            else:
                row = {"all": every, "any": some, "uni": every | ~some}[mode]
            write(low, high, mask, np.repeat(row[:, None], 32, axis=1))

        return execute

    return Operation("vote.sync", bind, collective=True)


@instruction("redux.sync")
def decode_redux(spelling: Spelling) -> Operation:
    """d = add, min, max, and, or, xor of a over the warp."""
    reductions = {
        "add": np.add,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }
    name = spelling.require(*reductions)
    type_ = spelling.type("s32", "u32", "b32")
    spelling.finish(3)
    target, a, members = spelling.operands
    for operand, wanted in ((target, type_), (a, type_), (members, U32)):
        spelling.check(operand, wanted)

    def bind(machine: Machine) -> Execute:
        source = machine.source(a, type_)
        write = machine.writer(target, type_)
        check = _member_check(machine, members)

        def execute(low: int, high: int, mask: Array | None) -> None:
            check(low, high, mask)
            rows = [
                reductions[name].reduce(source[warp][machine.live[warp]], dtype=type_.dtype)
                for warp in range(low, high)
            ]
            write(low, high, mask, np.repeat(np.array(rows, type_.dtype)[:, None], 32, axis=1))

        return execute

    return Operation("redux.sync", bind, collective=True)


@instruction("elect.sync")
def decode_elect(spelling: Spelling) -> Operation:
    """d|p: p is true in one lane, here always the lowest live one; d is its number."""
    spelling.available((8, 0), 90)
    spelling.finish(2)
    target, members = spelling.operands
    if not isinstance(target, Pair):
        spelling.fail("elect.sync writes a pair d|p")
    for operand, type_ in ((target.first, B32), (target.second, PRED), (members, U32)):
        spelling.check(operand, type_)

    def bind(machine: Machine) -> Execute:
        write, write_elected = machine.writer(target.first, U32), machine.writer(target.second, PRED)
        check = _member_check(machine, members)

        def execute(low: int, high: int, mask: Array | None) -> None:
            check(low, high, mask)
            leader = np.argmax(machine.live[low:high], axis=1)[:, None]
            write(low, high, mask, np.repeat(leader, 32, axis=1).astype(np.uint32))
            write_elected(low, high, mask, leader == _LANES)

        return execute

    return Operation("elect.sync", bind, collective=True)


@instruction("activemask")
def decode_activemask(spelling: Spelling) -> Operation:
    """d = the active lanes."""
    spelling.type("b32")
    spelling.finish(1)
    spelling.check(spelling.operands[0], B32)

    def bind(machine: Machine) -> Execute:
        write = machine.writer(spelling.operands[0], U32)

        def execute(low: int, high: int, mask: Array | None) -> None:
            bits = machine.live_bits[low:high] if mask is None else mask_bits(mask)
            write(low, high, mask, np.repeat(bits[:, None], 32, axis=1))

        return execute

    return Operation("activemask", bind)


@instruction("bar.warp.sync")
def decode_warp_barrier(spelling: Spelling) -> Operation:
    """The lanes of a warp wait for each other and see each other's accesses."""
    spelling.finish(1)
    spelling.check(spelling.operands[0], U32)

    def bind(machine: Machine) -> Execute:
        check = _member_check(machine, spelling.operands[0])

        def execute(low: int, high: int, mask: Array | None) -> None:
            check(low, high, mask)
            machine.clocks.synchronize_warps(low, high)

        return execute

    return Operation("bar.warp.sync", bind, destinations=0, collective=True)
