"""What a parsed PTX text consists of: operands, instructions, kernels. Plain data, made by `parser`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from emmy.emulator.datatypes import DataType


@dataclass(frozen=True)
class Register:
    """A virtual register. `index` counts the registers of the same width in the kernel, `number` all of them."""

    name: str
    type: DataType
    index: int
    number: int


@dataclass(frozen=True)
class Immediate:
    """An integer, or a float literal. `bits` is set for 0f... (32) and 0d... (64) literals."""

    value: int | float


@dataclass(frozen=True)
class Special:
    """A special register such as %tid.x."""

    name: str


@dataclass(frozen=True)
class Symbol:
    """A variable by name; `space` is "shared" or "param"."""

    name: str
    space: str


@dataclass(frozen=True)
class Address:
    """[base + offset]; offset in bytes."""

    base: Register | Symbol | Immediate
    offset: int


@dataclass(frozen=True)
class TensorAddress:
    """[map, {c0, c1, ..}]: the address of a tensor map and the box's coordinates, the innermost first."""

    map: Address
    coordinates: tuple[Operand, ...]


@dataclass(frozen=True)
class Vector:
    """{a, b, ...}"""

    elements: tuple[Operand, ...]


@dataclass(frozen=True)
class Pair:
    """d|p of setp, shfl and elect."""

    first: Operand
    second: Operand


@dataclass(frozen=True)
class Negated:
    """!%p"""

    register: Register


@dataclass(frozen=True)
class Sink:
    """_: a result that is not wanted."""


@dataclass(frozen=True)
class Label:
    """The target of a branch; `position` is the index of the instruction it stands before."""

    name: str
    position: int


Operand = Register | Immediate | Special | Symbol | Address | TensorAddress | Vector | Pair | Negated | Sink | Label


@dataclass
class Instruction:
    """One statement: guard predicate (register, negated), opcode with all its dotted parts, operands in order."""

    line: int
    text: str
    opcode: str
    operands: tuple[Operand, ...]
    guard: tuple[Register, bool] | None = None


@dataclass(frozen=True)
class Parameter:
    """A kernel parameter: byte offset, size and alignment in parameter space; an array if larger than its type."""

    name: str
    type: DataType
    offset: int
    size: int
    alignment: int


@dataclass(frozen=True)
class SharedVariable:
    """A `.shared` array: size in bytes (0: dynamic, `extern`), alignment in bytes."""

    name: str
    size: int
    alignment: int
    dynamic: bool


@dataclass(frozen=True)
class Module:
    """.version (major, minor) and .target of a text."""

    version: tuple[int, int]
    target: str

    @property
    def architecture(self) -> int:
        """90 for sm_90 and sm_90a."""
        return int("".join(c for c in self.target if c.isdigit()))

    @property
    def specific(self) -> bool:
        """An architecture- or family-specific target (sm_90a, sm_120f)."""
        return self.target[-1] in "af"


@dataclass
class Kernel:
    """One `.entry`."""

    name: str
    line: int
    module: Module
    parameters: list[Parameter] = field(default_factory=list[Parameter])
    instructions: list[Instruction] = field(default_factory=list[Instruction])
    shared: list[SharedVariable] = field(default_factory=list[SharedVariable])
    limits: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    widths: dict[int, int] = field(default_factory=dict[int, int])
    registers: list[Register] = field(default_factory=list[Register])

    @property
    def parameter_bytes(self) -> int:
        return max((p.offset + p.size for p in self.parameters), default=0)


def registers_of(operand: Operand) -> Iterator[Register]:
    """All registers that an operand names."""
    match operand:
        case Register():
            yield operand
        case Negated(register):
            yield register
        case Address(base, _):
            yield from registers_of(base)
        case TensorAddress(map_, coordinates):
            yield from registers_of(map_)
            for coordinate in coordinates:
                yield from registers_of(coordinate)
        case Vector(elements):
            for element in elements:
                yield from registers_of(element)
        case Pair(first, second):
            yield from registers_of(first)
            yield from registers_of(second)
        case _:
            return
