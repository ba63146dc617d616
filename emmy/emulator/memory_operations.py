"""ld, st, atom and red on parameter, global and shared memory. Cache hints and scopes change nothing here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from emmy.emulator.datatypes import STORAGE, TYPES, Array, DataType
from emmy.emulator.decode import Execute, Operation, Spelling, instruction, kind_of
from emmy.emulator.machine import Machine
from emmy.emulator.syntax import Address, Operand, Symbol

_HINTS = ("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "weak", "volatile", "relaxed", "acquire", "release")
_SCOPES = ("cta", "cluster", "gpu", "sys")
_CACHE = (
    *[f"L1::{h}" for h in ("evict_normal", "evict_unchanged", "evict_first", "evict_last", "no_allocate")],
    *[f"L2::{n}B" for n in (64, 128, 256)],
)
_TYPES = [f"{k}{n}" for k in "bsu" for n in (8, 16, 32, 64)] + ["f16", "bf16", "f16x2", "bf16x2", "f32", "f64"]
_SPACES = ("param", "global", "shared", "shared::cta", "shared::cluster")


def _space_and_type(spelling: Spelling) -> tuple[str, int, DataType]:
    """State space, vector length and element type of ld and st."""
    spelling.skip(*_HINTS, *_SCOPES, *_CACHE)
    space = spelling.take(*_SPACES)
    if not space:
        spelling.fail("generic addresses are not supported: name the state space")
    count = {"": 1, "v2": 2, "v4": 4}[spelling.take("v2", "v4")]
    type_ = spelling.type(*_TYPES)
    if count * type_.bytes > 16:
        spelling.fail("an access of more than 16 bytes")
    return space.split("::")[0], count, type_


def _address(machine: Machine, spelling: Spelling, address: Address) -> Callable[[int, int, Array | None], Array]:
    """Where ld and st access memory: with the CTA in shared memory, whose other CTAs .shared::cluster can name."""
    if ".shared" not in spelling.source.opcode:
        return machine.address(address)
    return machine.shared_address(address, ".shared::cluster" in spelling.source.opcode)


def _element(type_: DataType) -> DataType:
    """How one element travels: floats as bits, integers with their sign (a wider register is extended)."""
    return TYPES[f"b{type_.bits}"] if type_.kind == "float" else type_


def _spread(machine: Machine, targets: tuple[Operand, ...], type_: DataType) -> Callable[..., None]:
    """A function that stores loaded words [accesses, count] into the target registers of the active lanes."""
    writers = [machine.writer(t, type_) for t in targets]

    def store(low: int, high: int, mask: Array | None, values: Array) -> None:
        values = values.view(type_.dtype)
        for i, write in enumerate(writers):
            if mask is None:
                write(low, high, None, values[:, i].reshape(-1, 32))
            else:
                whole = np.zeros(mask.shape, type_.dtype)
                whole[mask] = values[:, i]
                write(low, high, mask, whole)

    return store


@instruction("ld")
def decode_load(spelling: Spelling) -> Operation:
    """d = [a], {d, ...} = [a]"""
    space, count, type_ = _space_and_type(spelling)
    spelling.finish(2)
    targets = spelling.vector(spelling.operands[0], count)
    for target in targets:
        spelling.check(target, type_, wider=True)
    address = spelling.address(spelling.operands[1], space)
    if space == "param":
        return _load_parameter(spelling, targets, address, _element(type_))
    element = _element(type_)
    size = count * element.bytes
    line = spelling.source.line

    def bind(machine: Machine) -> Execute:
        addresses = _address(machine, spelling, address)
        store = _spread(machine, targets, element)

        def execute_global(low: int, high: int, mask: Array | None) -> None:
            warp, lane = machine.lanes(low, high, mask)
            store(low, high, mask, machine.memory.load(addresses(low, high, mask), element.bytes, count, warp, lane))

        def execute_shared(low: int, high: int, mask: Array | None) -> None:
            warp, lane = machine.lanes(low, high, mask)
            shared = machine.shared
            offsets = shared.locate(addresses(low, high, mask), size, warp, lane)
            shared.check_read(shared.granules(offsets, size), warp, lane, line)
            machine.touch(low, high, mask)
            machine.count_conflicts(line, offsets, size, warp, lane)
            words = shared.words[element.bytes][(offsets // element.bytes)[:, None] + np.arange(count)]
            store(low, high, mask, words)

        return execute_global if space == "global" else execute_shared

    return Operation(kind_of("ld", space), bind, shared_bytes=size if space == "shared" else 0)


def _load_parameter(spelling: Spelling, targets: tuple[Operand, ...], address: Address, element: DataType) -> Operation:
    assert isinstance(address.base, Symbol)
    name = address.base.name
    size = len(targets) * element.bytes

    def bind(machine: Machine) -> Execute:
        found = [p for p in machine.kernel.parameters if p.name == name]
        if not found or not 0 <= address.offset <= found[0].size - size:
            spelling.fail(f"{size} bytes at offset {address.offset} lie outside the parameter {name}")
        start = found[0].offset + address.offset
        values = machine.parameters[start : start + size].view(element.dtype)
        writers = [machine.writer(t, element) for t in targets]

        def execute(low: int, high: int, mask: Array | None) -> None:
            for i, write in enumerate(writers):
                write(low, high, mask, np.full((high - low, 32), values[i]))

        return execute

    return Operation("ld.param", bind)


@instruction("st")
def decode_store(spelling: Spelling) -> Operation:
    """[a] = b, [a] = {b, ...}"""
    space, count, type_ = _space_and_type(spelling)
    if space == "param":
        spelling.fail("kernel parameters cannot be written")
    spelling.finish(2)
    address = spelling.address(spelling.operands[0], space)
    values = spelling.vector(spelling.operands[1], count)
    element = TYPES[f"b{type_.bits}"]
    for value in values:
        spelling.check(value, element, wider=True)
    size = count * element.bytes
    line = spelling.source.line

    def bind(machine: Machine) -> Execute:
        addresses = _address(machine, spelling, address)
        sources = [machine.source(v, element) for v in values]

        def collect(low: int, high: int, mask: Array | None) -> Array:
            chosen = [s[low:high].reshape(-1) if mask is None else s[low:high][mask] for s in sources]
            return np.stack(chosen, axis=1)

        def execute_global(low: int, high: int, mask: Array | None) -> None:
            warp, lane = machine.lanes(low, high, mask)
            machine.memory.store(addresses(low, high, mask), collect(low, high, mask), warp, lane)

        def execute_shared(low: int, high: int, mask: Array | None) -> None:
            warp, lane = machine.lanes(low, high, mask)
            shared = machine.shared
            offsets = shared.locate(addresses(low, high, mask), size, warp, lane)
            shared.check_write(shared.granules(offsets, size), warp, lane, line)
            machine.touch(low, high, mask)
            machine.count_conflicts(line, offsets, size, warp, lane)
            words = shared.words[element.bytes]
            words[(offsets // element.bytes)[:, None] + np.arange(count)] = collect(low, high, mask)

        return execute_global if space == "global" else execute_shared

    return Operation(kind_of("st", space), bind, destinations=0, shared_bytes=size if space == "shared" else 0)


# Atomics: one lane after another, in the order of the lanes

_ATOMIC: dict[str, Callable[[Array, Array], Array]] = {
    "add": lambda old, b: old + b,
    "min": np.minimum,
    "max": np.maximum,
    "and": lambda old, b: old & b,
    "or": lambda old, b: old | b,
    "xor": lambda old, b: old ^ b,
    "exch": lambda old, b: b,
}


@instruction("atom", "red")
def decode_atomic(spelling: Spelling) -> Operation:
    """d = [a]; [a] = d op b, on global memory; `red` has no d. `cas`: [a] = d == b ? c : d."""
    returns = spelling.prefix == "atom"
    spelling.skip("relaxed", "acquire", "release", "acq_rel", "noftz", *_SCOPES)
    spelling.require("global")
    name = spelling.require(*_ATOMIC, "cas")
    type_ = spelling.type("u32", "s32", "u64", "s64", "b32", "b64", "f32", "f64", "f16x2", "bf16x2")
    if type_.kind == "float" and name != "add":
        spelling.fail("floats can only be added")
    operands = spelling.operands if returns else (None, *spelling.operands)
    spelling.finish((2 if returns else 1) + (2 if name == "cas" else 1))
    target = operands[0]
    if target is not None:
        spelling.check(target, type_)
    assert operands[1] is not None
    address = spelling.address(operands[1], "global")
    values = [o for o in operands[2:] if o is not None]
    for value in values:
        spelling.check(value, type_)
    unsigned, packed = STORAGE[type_.bits], type_.packed

    def bind(machine: Machine) -> Execute:
        addresses = machine.address(address)
        sources = [machine.source(v, type_) for v in values]
        write = None if target is None else machine.writer(target, type_)

        def execute(low: int, high: int, mask: Array | None) -> None:
            warp, lane = machine.lanes(low, high, mask)
            where = addresses(low, high, mask)
            before = np.zeros((high - low, 32 * packed), type_.dtype)
            for i in range(where.size):
                row, column = int(warp[i]) - low, slice(int(lane[i]) * packed, (int(lane[i]) + 1) * packed)
                one = slice(i, i + 1)
                raw = machine.memory.load(where[one], type_.bytes, 1, warp[one], lane[one])
                old = raw.view(type_.dtype).reshape(-1)
                b = sources[0][low + row, column]
                if name == "cas":
                    new = np.where(old == b, sources[1][low + row, column], old)
                else:
                    new = _ATOMIC[name](old, b)
                stored = np.ascontiguousarray(new.astype(type_.dtype)).view(unsigned).reshape(1, 1)
                machine.memory.store(where[one], stored, warp[one], lane[one])
                before[row, column] = old
            if write is not None:
                write(low, high, mask, before)

        return execute

    return Operation(kind_of(spelling.prefix, "global"), bind, destinations=1 if returns else 0)
