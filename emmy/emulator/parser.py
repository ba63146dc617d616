"""From PTX text to `syntax`: one .version/.target/.address_size, shared variables, any number of .entry kernels.

Registers and labels are local to the `{}` that declares them. Anything not understood is an `EmulatorError`.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from emmy.emulator.datatypes import TYPES
from emmy.emulator.faults import EmulatorError
from emmy.emulator.syntax import (
    Address,
    Immediate,
    Instruction,
    Kernel,
    Label,
    Module,
    Negated,
    Operand,
    Pair,
    Parameter,
    Register,
    SharedVariable,
    Sink,
    Special,
    Symbol,
    TensorAddress,
    Vector,
)

_TOKEN = re.compile(
    r"""(?P<blank>[ \t\r\f]+|//[^\n]*)|(?P<newline>\n)|(?P<comment>/\*.*?\*/)
    |(?P<number>0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b|0[xX][0-9a-fA-F]+U?|\d+\.\d+(?:[eE][-+]?\d+)?|\d+U?)
    |(?P<word>[.%A-Za-z_$][\w$.%]*(?:::[\w$.]+)*)|(?P<string>"[^"]*")|(?P<mark>[\[\]{}(),;:@!<>=+|-])""",
    re.VERBOSE | re.DOTALL,
)
_MOST_TEXT = 150  # characters of a line in a report
_DEBUG_LINE = re.compile(r"^[ \t]*\.(?:loc|file)\b[^\n]*$", re.MULTILINE)
_LIMITS = {f".{name}": name for name in ("maxntid", "reqntid", "minnctapersm", "maxnreg", "reqnctapercluster")}
_DIMENSIONS = ("x", "y", "z")
SPECIAL_REGISTERS = frozenset(
    [f"%{name}.{d}" for name in ("tid", "ntid", "ctaid", "nctaid") for d in _DIMENSIONS]
    + [f"%{name}.{d}" for name in ("cluster_ctaid", "cluster_nctaid", "clusterid", "nclusterid") for d in _DIMENSIONS]
    + ["%cluster_ctarank", "%cluster_nctarank"]
    + ["%laneid", "%warpid", "%nwarpid", "%dynamic_smem_size", "%total_smem_size"]
    + [f"%lanemask_{c}" for c in ("eq", "lt", "le", "gt", "ge")]
)


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


@dataclass(frozen=True)
class _Reference:
    """A name in operand position that is not a register: a shared variable, or a label not yet seen."""

    name: str


class Parser:
    """Recursive descent over the tokens of one PTX text."""

    def __init__(self, text: str):
        self.lines = text.splitlines()
        self.tokens = self._tokenize(_DEBUG_LINE.sub("", text))
        self.position = 0
        self.module_shared: list[SharedVariable] = []
        self.header: dict[str, str] = {}
        self.kernels: dict[str, Kernel] = {}

    def parse(self) -> dict[str, Kernel]:
        """All kernels of the text, by name."""
        while self.position < len(self.tokens):
            token = self.next()
            if token.text in (".version", ".target", ".address_size"):
                self.header[token.text] = self.next().text
                while self.position < len(self.tokens) and self.peek().line == token.line:
                    self.next()
            elif token.text in (".visible", ".extern", ".weak"):
                continue
            elif token.text == ".shared":
                self.module_shared.append(self.shared_variable())
            elif token.text == ".entry":
                kernel = self._entry(token.line)
                self.kernels[kernel.name] = kernel
            else:
                self.fail(f"`{token.text}` is not understood at module level", token.line)
        return self.kernels

    # Tokens

    def _tokenize(self, text: str) -> list[_Token]:
        tokens: list[_Token] = []
        line, position = 1, 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                self.fail(f"the character {text[position]!r} is not PTX", line)
            kind = match.lastgroup or ""
            if kind == "newline":
                line += 1
            elif kind == "comment":
                line += match.group().count("\n")
            elif kind != "blank":
                tokens.append(_Token(kind, match.group(), line))
            position = match.end()
        return tokens

    def peek(self) -> _Token:
        if self.position >= len(self.tokens):
            self.fail("the text ends in the middle of a statement", len(self.lines))
        return self.tokens[self.position]

    def next(self) -> _Token:
        token = self.peek()
        self.position += 1
        return token

    def accept(self, text: str) -> bool:
        if self.peek().text == text:
            self.position += 1
            return True
        return False

    def expect(self, text: str) -> None:
        token = self.next()
        if token.text != text:
            self.fail(f"expected `{text}` before `{token.text}`", token.line)

    def fail(self, message: str, line: int) -> NoReturn:
        text = self.lines[line - 1].strip() if 0 < line <= len(self.lines) else ""
        raise EmulatorError(f"PTX line {line}: `{text}`: {message}", line)

    def number(self) -> int:
        sign = 1
        while self.peek().text in ("+", "-"):
            sign = -sign if self.next().text == "-" else sign
        token = self.next()
        if token.kind != "number" or token.text[:2].lower() in ("0f", "0d") or "." in token.text:
            self.fail(f"expected an integer before `{token.text}`", token.line)
        return sign * int(token.text.rstrip("U"), 0)

    # Declarations

    def type_name(self) -> str:
        token = self.next()
        if token.text[1:] not in TYPES:
            self.fail(f"`{token.text}` is not a type that the emulator knows", token.line)
        return token.text[1:]

    def shared_variable(self) -> SharedVariable:
        alignment = 0
        if self.accept(".align"):
            alignment = self.number()
        element = TYPES[self.type_name()].bytes
        name = self.next().text
        size, dynamic = element, False
        while self.accept("["):
            if self.accept("]"):
                size, dynamic = 0, True
            else:
                size *= self.number()
                self.expect("]")
        self.expect(";")
        return SharedVariable(name, size, max(alignment, element), dynamic)

    def _parameter(self, offset: int) -> Parameter:
        self.expect(".param")
        alignment = self.number() if self.accept(".align") else 0
        declared = TYPES[self.type_name()]
        if self.accept(".ptr"):  # the space and alignment that follow are the pointee's
            while self.peek().text.startswith("."):
                if self.next().text == ".align":
                    self.number()
        name = self.next().text
        size = declared.bytes
        if self.accept("["):
            size *= self.number()
            self.expect("]")
        alignment = max(alignment, declared.bytes)
        return Parameter(name, declared, -(-offset // alignment) * alignment, size, alignment)

    def _entry(self, line: int) -> Kernel:
        kernel = Kernel(self.next().text, line, self._module(line), shared=list(self.module_shared))
        if self.accept("("):
            while not self.accept(")"):
                kernel.parameters.append(self._parameter(kernel.parameter_bytes))
                self.accept(",")
        while not self.accept("{"):
            token = self.next()
            if token.text == ".explicitcluster":
                kernel.limits["explicitcluster"] = ()
                continue
            if token.text not in _LIMITS:
                self.fail(f"the directive `{token.text}` is not known to the emulator", token.line)
            values = [self.number()]
            while self.accept(","):
                values.append(self.number())
            kernel.limits[_LIMITS[token.text]] = tuple(values)
        _Body(self, kernel).parse()
        return kernel

    def _module(self, line: int) -> Module:
        version = re.fullmatch(r"(\d+)\.(\d+)", self.header.get(".version", ""))
        target = self.header.get(".target", "")
        if version is None or not re.fullmatch(r"sm_\d+[af]?", target):
            self.fail("a .version and a .target sm_NN must come before the first kernel", line)
        return Module((int(version[1]), int(version[2])), target)


def _shortened(text: str) -> str:
    """A line for a report: of a wgmma, with its hundreds of registers, the beginning and the end."""
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 40]} ... {text[-30:]}"


class _Body:
    """The statements of one kernel, with the stack of scopes for registers and labels."""

    def __init__(self, parser: Parser, kernel: Kernel):
        self.parser = parser
        self.kernel = kernel
        self.names: list[dict[str, Register]] = [{}]
        self.labels: list[dict[str, int]] = [{}]
        self.open_branches: list[tuple[Instruction, list[dict[str, int]]]] = []

    def parse(self) -> None:
        p = self.parser
        while True:
            token = p.next()
            if token.text == "{":
                self.names.append({})
                self.labels.append({})
            elif token.text == "}":
                self.names.pop()
                self.labels.pop()
                if not self.names:
                    break
            elif token.text == ".reg":
                self._registers()
            elif token.text == ".shared":
                self.kernel.shared.append(p.shared_variable())
            elif token.text == ".pragma":
                p.next()
                p.expect(";")
            elif token.text.startswith("."):
                p.fail(f"the directive `{token.text}` is not known to the emulator", token.line)
            elif token.kind == "word" and p.accept(":"):
                if token.text in self.labels[-1]:
                    p.fail(f"the label {token.text} is declared twice", token.line)
                self.labels[-1][token.text] = len(self.kernel.instructions)
            else:
                self._instruction(token)
        self._resolve_labels()
        last = self.kernel.instructions[-1:]
        if not last or last[0].guard or last[0].opcode.split(".")[0] not in ("ret", "exit", "bra"):
            p.fail("the kernel does not end with ret, exit or bra", p.tokens[p.position - 1].line)

    def _registers(self) -> None:
        p = self.parser
        kind = TYPES[p.type_name()]
        while True:
            token = p.next()
            names = [token.text]
            if p.accept("<"):
                names = [f"{token.text}{i}" for i in range(p.number())]
                p.expect(">")
            for name in names:
                width = 1 if kind.kind == "pred" else kind.bits
                index = self.kernel.widths.get(width, 0)
                self.kernel.widths[width] = index + 1
                register = Register(name, kind, index, len(self.kernel.registers))
                self.kernel.registers.append(register)
                self.names[-1][name] = register
            if p.accept(";"):
                return
            p.expect(",")

    def _instruction(self, token: _Token) -> None:
        p = self.parser
        guard: tuple[Register, bool] | None = None
        line = token.line
        if token.text == "@":
            negated = p.accept("!")
            guard = (self._register(p.next()), negated)
            token = p.next()
        if token.kind != "word":
            p.fail(f"expected an instruction before `{token.text}`", token.line)
        instruction = Instruction(line, _shortened(p.lines[line - 1].strip()), token.text, (), guard)
        operands: list[Operand | _Reference] = []
        while not p.accept(";"):
            if operands:
                p.expect(",")
            operands.append(self._operand())
        known: list[Operand] = []
        for operand in operands:
            if isinstance(operand, _Reference):
                known.append(Label(operand.name, -1))
                self.open_branches.append((instruction, list(self.labels)))
            else:
                known.append(operand)
        instruction.operands = tuple(known)
        self.kernel.instructions.append(instruction)

    def _resolve_labels(self) -> None:
        for instruction, scopes in self.open_branches:
            resolved: list[Operand] = []
            for operand in instruction.operands:
                if isinstance(operand, Label):
                    found = [scope[operand.name] for scope in scopes if operand.name in scope]
                    if not found:
                        self.parser.fail(f"`{operand.name}` is neither a label nor a variable", instruction.line)
                    if found[-1] == len(self.kernel.instructions):
                        self.parser.fail(f"no instruction follows the label `{operand.name}`", instruction.line)
                    operand = Label(operand.name, found[-1])
                resolved.append(operand)
            instruction.operands = tuple(resolved)

    # Operands

    def _register(self, token: _Token) -> Register:
        for scope in reversed(self.names):
            if token.text in scope:
                return scope[token.text]
        self.parser.fail(f"the register {token.text} is not declared", token.line)

    def _operand(self) -> Operand | _Reference:
        first = self._simple_operand()
        if self.parser.accept("|"):
            second = self._simple_operand()
            if isinstance(first, _Reference) or isinstance(second, _Reference):
                self.parser.fail("both sides of `|` must be registers", self.parser.peek().line)
            return Pair(first, second)
        return first

    def _simple_operand(self) -> Operand | _Reference:
        p = self.parser
        token = p.peek()
        if token.text == "[":
            return self._address()
        if token.text == "{":
            p.next()
            elements: list[Operand] = []
            while not p.accept("}"):
                element = self._simple_operand()
                if isinstance(element, _Reference):
                    p.fail(f"`{element.name}` cannot stand in a vector", token.line)
                elements.append(element)
                p.accept(",")
            return Vector(tuple(elements))
        if token.text == "!":
            p.next()
            return Negated(self._register(p.next()))
        if token.kind == "number" or token.text in ("-", "+"):
            return self._immediate()
        p.next()
        return self._name(token)

    def _name(self, token: _Token) -> Operand | _Reference:
        if token.text == "_":
            return Sink()
        if token.text in SPECIAL_REGISTERS:
            return Special(token.text)
        if token.text.startswith("%"):
            return self._register(token)
        for scope in self.names:
            if token.text in scope:
                return self._register(token)
        for space, variables in (("shared", self.kernel.shared), ("param", self.kernel.parameters)):
            if any(v.name == token.text for v in variables):
                return Symbol(token.text, space)
        if token.kind != "word":
            self.parser.fail(f"expected an operand before `{token.text}`", token.line)
        return _Reference(token.text)

    def _immediate(self) -> Immediate:
        p = self.parser
        sign = 1
        while p.peek().text in ("+", "-"):
            sign = -sign if p.next().text == "-" else sign
        text = p.next().text
        if text[:2].lower() == "0f":
            return Immediate(sign * struct.unpack(">f", bytes.fromhex(text[2:]))[0])
        if text[:2].lower() == "0d":
            return Immediate(sign * struct.unpack(">d", bytes.fromhex(text[2:]))[0])
        if "." in text:
            return Immediate(sign * float(text))
        return Immediate(sign * int(text.rstrip("U"), 0))

    def _address(self) -> Address | TensorAddress:
        p = self.parser
        p.expect("[")
        base = self._simple_operand()
        if isinstance(base, _Reference) or not isinstance(base, Register | Symbol | Immediate):
            p.fail("an address is a register, a variable or a number, plus a constant", p.peek().line)
        offset = 0
        if p.peek().text in ("+", "-"):
            offset = p.number()
        address = Address(base, offset)
        if not p.accept(","):
            p.expect("]")
            return address
        coordinates = self._simple_operand()
        if not isinstance(coordinates, Vector):
            p.fail("the coordinates of a tensor address stand in braces", p.peek().line)
        p.expect("]")
        return TensorAddress(address, coordinates.elements)
