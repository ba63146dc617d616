"""The table of instructions: from an opcode to an `Operation`, checking every modifier when the text is parsed.

A decoder takes a `Spelling`, asks it for the modifiers it knows, and returns an operation whose `bind` makes the
closure that runs it on a machine. To add an instruction is to add one decorated function; `load_table` imports the
modules that hold them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from emmy.emulator.datatypes import TYPES, Array, DataType
from emmy.emulator.faults import EmulatorError
from emmy.emulator.syntax import (
    Address,
    Immediate,
    Instruction,
    Label,
    Module,
    Negated,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    TensorAddress,
    Vector,
)

if TYPE_CHECKING:
    from emmy.emulator.machine import Machine

# Runs the instruction for warps [low, high); the mask (None: all 32 lanes of each) says which lanes take part.
Execute = Callable[[int, int, "Array | None"], None]
Bind = Callable[["Machine"], Execute]


@dataclass
class Operation:
    """What the machine needs to know of one decoded instruction.

    kind: the name it is counted under. destinations: how many leading operands it writes.
    collective: `.sync.aligned` and barriers: all live lanes of a warp take part, or none.
    control: it may block a warp or move its program counter, so the scheduler looks again after it.
    branch: the position it jumps to (-1: leaves the kernel), None if it does neither.
    shared_bytes: the narrowest shared access it makes, which bounds the granule of race detection; 0 if none.
    reads_late: it reads shared memory after it was issued.
    in_place: what it writes it also reads, and both later: it checks and marks those registers itself.
    """

    kind: str
    bind: Bind
    destinations: int = 1
    collective: bool = False
    control: bool = False
    branch: int | None = None
    shared_bytes: int = 0
    reads_late: bool = False
    in_place: bool = False


Decoder = Callable[["Spelling"], Operation]
TABLE: dict[str, Decoder] = {}
_MODULES = (
    "arithmetic_operations",
    "logic_operations",
    "move_operations",
    "memory_operations",
    "warp_operations",
    "barrier_operations",
    "copy_operations",
    "bulk_operations",
    "register_pool",
    "matrix_operations",
    "cluster_operations",
    "async_store_operations",
    "wgmma_operations",
)


def instruction(*prefixes: str) -> Callable[[Decoder], Decoder]:
    """Register a decoder for the opcodes that begin with these dotted prefixes; the longest prefix wins."""

    def register(decoder: Decoder) -> Decoder:
        for prefix in prefixes:
            TABLE[prefix] = decoder
        return decoder

    return register


class Spelling:
    """One instruction's modifiers, taken one by one; what is left over at the end is unknown, hence an error."""

    def __init__(self, source: Instruction, prefix: str, module: Module):
        self.source = source
        self.module = module
        self.prefix = prefix
        self.operands = source.operands
        self.rest = source.opcode[len(prefix) :].split(".")[1:]

    def fail(self, message: str) -> NoReturn:
        line = self.source.line
        raise EmulatorError(f"PTX line {line}: `{self.source.text}`: {message}", line)

    def take(self, *choices: str) -> str:
        """The first modifier among `choices`, removed; '' if there is none."""
        for modifier in self.rest:
            if modifier in choices:
                self.rest.remove(modifier)
                return modifier
        return ""

    def require(self, *choices: str) -> str:
        found = self.take(*choices)
        if not found:
            self.fail(f"one of {', '.join('.' + c for c in choices)} is missing")
        return found

    def skip(self, *choices: str) -> None:
        """Drop modifiers that change nothing here (cache hints, scopes)."""
        self.rest = [m for m in self.rest if m not in choices]

    def type(self, *allowed: str) -> DataType:
        """The next type modifier."""
        for modifier in self.rest:
            if modifier in TYPES:
                self.rest.remove(modifier)
                if allowed and modifier not in allowed:
                    self.fail(f"the type .{modifier} is not supported here")
                return TYPES[modifier]
        self.fail("a type is missing")

    def next_is_type(self) -> bool:
        return any(m in TYPES for m in self.rest)

    def finish(self, *counts: int) -> None:
        """All modifiers must be used up, and the operand count must be one of `counts`."""
        if self.rest:
            self.fail(f"the modifier `.{self.rest[0]}` is not known to the emulator")
        if counts and len(self.operands) not in counts:
            self.fail(f"{len(self.operands)} operands, expected {' or '.join(map(str, counts))}")

    def available(self, version: tuple[int, int], architecture: int, specific: bool = False, what: str = "") -> None:
        """Fail unless .version and .target have this instruction; `specific`: on targets sm_NNa and sm_NNf only."""
        module = self.module
        if module.version >= version and module.architecture >= architecture and (module.specific or not specific):
            return
        suffix = "a or sm_NNf" if specific else ""
        self.fail(
            f"{what or self.prefix} needs .version {version[0]}.{version[1]} and .target sm_{architecture}{suffix} or "
            f"later, the text has {module.version[0]}.{module.version[1]} and {module.target}"
        )

    # Operand checks

    def check(self, operand: Operand, type_: DataType, wider: bool = False, negatable: bool = False) -> None:
        """The operand can be read or written as `type_`; `wider` also allows a wider register (ld, st, cvt)."""
        if isinstance(operand, Register | Negated):
            register = operand.register if isinstance(operand, Negated) else operand
            width = 1 if register.type.kind == "pred" else register.type.bits
            if isinstance(operand, Negated) and not negatable:
                self.fail("`!` is not allowed here")
            if width != type_.bits and not (wider and width > type_.bits and type_.bits > 1):
                self.fail(f"the register {register.name} has {width} bits, the instruction uses {type_.bits}")
        elif isinstance(operand, Vector | Pair | Address | TensorAddress | Label):
            self.fail(f"a {type(operand).__name__.lower()} cannot stand here")
        elif isinstance(operand, Special) and type_.bits != 32:
            self.fail("special registers have 32 bits")
        elif isinstance(operand, Symbol) and operand.space == "param" and (self.prefix != "mov" or type_.bits != 64):
            self.fail(f"the address of the parameter {operand.name} cannot be taken")
        elif isinstance(operand, Symbol | Immediate) and type_.kind == "pred":
            self.fail("a predicate register is expected")

    def address(self, operand: Operand, space: str) -> Address:
        """[..] that can point into `space`: "global" (64-bit registers), "shared" or "param"."""
        if not isinstance(operand, Address):
            self.fail("an address in brackets is expected")
        base = operand.base
        if isinstance(base, Register):
            widths = {"global": (64,), "shared": (32, 64), "param": ()}[space]
            if base.type.bits not in widths:
                self.fail(f"{base.name} ({base.type.bits} bits) cannot address {space} memory")
        elif isinstance(base, Symbol) and base.space != space:
            self.fail(f"{base.name} is a {base.space} variable, not a {space} one")
        elif isinstance(base, Immediate) and space == "param":
            self.fail("ld.param reads a parameter by its name")
        return operand

    def vector(self, operand: Operand, count: int) -> tuple[Operand, ...]:
        """The elements of {..} (a bare operand counts as one element)."""
        elements = operand.elements if isinstance(operand, Vector) else (operand,)
        if len(elements) != count:
            self.fail(f"a vector of {count} is expected, {len(elements)} given")
        return elements

    def integer(self, operand: Operand) -> int:
        if not isinstance(operand, Immediate) or isinstance(operand.value, float):
            self.fail("an integer constant is expected")
        return operand.value

    def check_places(self, operation: Operation) -> None:
        """What is written is a register or `_`; `_` and labels stand nowhere else."""
        for position, operand in enumerate(self.source.operands):
            for part in _parts(operand):
                if position < operation.destinations and not isinstance(part, Register | Sink):
                    self.fail("only registers can be written")
                if position >= operation.destinations and isinstance(part, Sink):
                    self.fail("`_` is not a value")
                if isinstance(part, Label) and operation.branch is None:
                    self.fail(f"`{part.name}` is neither a register nor a variable")


def _parts(operand: Operand) -> tuple[Operand, ...]:
    match operand:
        case Vector(elements):
            return elements
        case TensorAddress(_, coordinates):
            return coordinates
        case Pair(first, second):
            return (first, second)
        case _:
            return (operand,)


def kind_of(prefix: str, *parts: str) -> str:
    return ".".join([prefix, *[p for p in parts if p]])


def load_table() -> None:
    """Import every module that registers instructions."""
    for module in _MODULES:
        importlib.import_module(f"emmy.emulator.{module}")


def decode(source: Instruction, module: Module) -> Operation:
    """Find the decoder of an instruction and run it. Raises EmulatorError for anything unknown."""
    parts = source.opcode.split(".")
    for count in range(len(parts), 0, -1):
        prefix = ".".join(parts[:count])
        if prefix in TABLE:
            spelling = Spelling(source, prefix, module)
            operation = TABLE[prefix](spelling)
            spelling.check_places(operation)
            return operation
    raise EmulatorError(
        f"PTX line {source.line}: `{source.text}`: the instruction `{source.opcode}` is not known to the emulator",
        source.line,
    )


def elementwise(
    spelling: Spelling,
    kind: str,
    function: Callable[..., Array],
    result: DataType,
    sources: Sequence[DataType],
    wider: bool = False,
) -> Operation:
    """An operation d = function(a, b, ...) on arrays [warps, 32] (times the packing) of the types' dtypes."""
    operands = spelling.operands
    spelling.finish(len(sources) + 1)
    spelling.check(operands[0], result, wider)
    for operand, type_ in zip(operands[1:], sources, strict=True):
        spelling.check(operand, type_, wider)

    def bind(machine: Machine) -> Execute:
        arrays = [machine.source(o, t) for o, t in zip(operands[1:], sources, strict=True)]
        write = machine.writer(operands[0], result)

        def execute(low: int, high: int, mask: Array | None) -> None:
            write(low, high, mask, function(*[a[low:high] for a in arrays]))

        return execute

    return Operation(kind, bind)
