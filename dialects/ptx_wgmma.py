"""`wgmma.mma_async` and the wait for it: the two instructions whose number of registers depends on their form.

    %d0, %d1, %d2, %d3 = ptx.wgmma_mma_async "m64n8k16.f32.f16.f16 zero" %a, %b
    %e0, %e1, %e2, %e3 = ptx.wgmma_mma_async "m64n8k16.f32.f16.f16" %a1, %b1, %d0, %d1, %d2, %d3
    ptx.wgmma_commit_group
    %s0, %s1, %s2, %s3 = ptx.wgmma_wait_group 0 "f4" %e0, %e1, %e2, %e3

The sums that go in and those that come out are one register each. They are in flight until a wait gives them back: nothing
but another `wgmma` may use a result of `wgmma_mma_async`, and what is read afterwards is a result of the wait. Registers of
operand a are read in flight, too: the wait names them (`keep "r4" %a0, ...`), so that nothing takes their place before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, cast

from xdsl.dialects.builtin import IntAttr, StringAttr
from xdsl.ir import OpTraits, SSAValue
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import OpTrait
from xdsl.utils.exceptions import VerifyException

from emmy.dialects.ptx_instruction import Instruction, integer
from emmy.dialects.ptx_table import REGISTER_TYPES, Row, listed

ScaleD = Literal["one", "zero", "predicate"]

K_OF_TYPE = {"f16": 16, "bf16": 16, "e4m3": 32, "e5m2": 32}
"""Operand types and the k of their instruction: 256 bits (PTX ISA, `wgmma.mma_async`)."""

FLAGS = ("a_registers", "zero", "predicate", "negate_a", "negate_b", "transpose_a", "transpose_b")
"""The words of a form after its first one, in the order in which they are written."""

A_REGISTERS = 4


@dataclass(frozen=True)
class WgmmaForm:
    """Everything about a `wgmma.mma_async` but its registers: D (64 x n) = A (64 x k) B (k x n) + D.

    accumulator: f32 or f16. a, b: types of the operands, f16 or bf16 (the same for both), or e4m3 and e5m2.
    a_registers: A comes in 4 registers, else by a descriptor. scale_d: `zero` leaves the old D out, `predicate` does where
    an operand is false. transpose_a, transpose_b: the operand lies MN-major in shared memory.
    """

    n: int
    accumulator: str
    a: str
    b: str
    a_registers: bool = False
    scale_d: ScaleD = "one"
    negate_a: bool = False
    negate_b: bool = False
    transpose_a: bool = False
    transpose_b: bool = False

    @property
    def k(self) -> int:
        """Elements of k: 256 bits of them."""
        return K_OF_TYPE[self.a]

    @property
    def registers(self) -> int:
        """Registers of D that a lane holds."""
        return self.n // 2 if self.accumulator == "f32" else self.n // 4

    @cached_property
    def text(self) -> str:
        """As the op writes it: `m64n8k16.f32.f16.f16 zero transpose_b`."""
        flags = [flag for flag in FLAGS if flag == self.scale_d or getattr(self, flag, False)]
        return " ".join([f"m64n{self.n}k{self.k}.{self.accumulator}.{self.a}.{self.b}", *flags])

    @staticmethod
    def of(text: str) -> WgmmaForm:
        """The form that a text writes. Raises `VerifyException` if it is none, or none that `wgmma` has."""
        return _parse_form(text)

    def check(self) -> None:
        """Raises `VerifyException` for what `wgmma.mma_async` does not have (PTX ISA, "wgmma.mma_async")."""
        if self.n % 8 or not 8 <= self.n <= 256:
            raise VerifyException(f"the n of wgmma is a multiple of 8 from 8 to 256, got {self.n}")
        wide = self.k == 16
        if K_OF_TYPE[self.b] != self.k or (wide and self.a != self.b):
            raise VerifyException(f"wgmma has no operands of types {self.a} and {self.b}")
        if self.accumulator == "f16" and self.a == "bf16":
            raise VerifyException("wgmma with bf16 operands accumulates in f32")
        if not wide and (self.transpose_a or self.transpose_b):
            raise VerifyException("wgmma reads 8-bit operands K-major only")
        if self.a_registers and self.transpose_a:
            raise VerifyException("an operand a in registers is not transposed")


@lru_cache(maxsize=1024)
def _parse_form(text: str) -> WgmmaForm:
    first, *flags = text.split(" ")
    found = re.fullmatch(r"m64n(\d+)k(\d+)\.(f32|f16)\.(f16|bf16|e4m3|e5m2)\.(f16|bf16|e4m3|e5m2)", first)
    if found is None or [flag for flag in FLAGS if flag in flags] != flags or {"zero", "predicate"} <= set(flags):
        raise VerifyException(
            f"'{text}' is no form of wgmma; an example is \"m64n128k16.f32.f16.f16 predicate transpose_b\""
        )
    scale: ScaleD = "zero" if "zero" in flags else "predicate" if "predicate" in flags else "one"
    booleans = {flag: True for flag in flags if flag not in ("zero", "predicate")}
    form = WgmmaForm(int(found[1]), found[3], found[4], found[5], scale_d=scale, **booleans)
    if int(found[2]) != form.k:
        raise VerifyException(f"the k of wgmma with {form.a} operands is {form.k}, got {found[2]}")
    form.check()
    return form


@lru_cache(maxsize=1024)
def _mma_row(form: WgmmaForm) -> Row:
    sums = ("f" if form.accumulator == "f32" else "r") * form.registers
    count = len(sums)
    a = "r" * A_REGISTERS if form.a_registers else "l"
    b = count + len(a)
    left = f"{{{listed(count, len(a))}}}" if form.a_registers else f"${count}"
    predicate = {"one": "1", "zero": "0", "predicate": f"${b + 1}"}[form.scale_d]
    numbers = ["-1" if form.negate_a else "1", "-1" if form.negate_b else "1"]
    if form.k == 16:
        numbers += (
            [str(int(form.transpose_b))]
            if form.a_registers
            else [str(int(form.transpose_a)), str(int(form.transpose_b))]
        )
    shape = f"m64n{form.n}k{form.k}.{form.accumulator}.{form.a}.{form.b}"
    text = (
        f"wgmma.mma_async.sync.aligned.{shape} {{{listed(0, count)}}}, {left}, ${b}, {predicate}, {', '.join(numbers)}"
    )
    operands = a + "l" + ("p" if form.scale_d == "predicate" else "")
    tied = () if form.scale_d == "zero" else tuple((i, len(operands) + i) for i in range(count))
    operands += sums if tied else ""
    return Row("wgmma_mma_async", sums, operands, (), text, tied=tied, moves="before", needs="wgmma")


@lru_cache(maxsize=1024)
def _wait_row(passed: str, kept: str) -> Row:
    results = _letters(passed)
    text = f"wgmma.wait_group.sync.aligned ${2 * len(results) + len(_letters(kept))}"
    tied = tuple((i, i) for i in range(len(results)))
    operands = results + _letters(kept)
    return Row("wgmma_wait_group", results, operands, ("pending",), text, tied=tied, moves="after", needs="wgmma")


def _letters(runs: str) -> str:
    """`ffffrr` for "f4 r2". Raises `VerifyException` for anything else."""
    letters = ""
    for run in runs.split():
        found = re.fullmatch(r"([hrlfp])(\d+)", run)
        if found is None:
            raise VerifyException(f'registers are counted as in "f64 r4", got "{runs}"')
        letters += found[1] * int(found[2])
    return letters


def count_registers(values: Sequence[SSAValue]) -> str:
    """The runs of the values' register types: "f64 r4"."""
    names = {type_: letter for letter, type_ in REGISTER_TYPES.items()}
    runs: list[list[str]] = []
    for value in values:
        letter = names[value.type]  # pyright: ignore[reportArgumentType]
        if runs and runs[-1][0] == letter:
            runs[-1].append(letter)
        else:
            runs.append([letter])
    return " ".join(f"{run[0]}{len(run)}" for run in runs)


@lru_cache(maxsize=1024)
def _string(text: str) -> StringAttr:
    return StringAttr(text)


def _text_of(op: Instruction, name: str) -> str:
    found = op.properties.get(name)
    if not isinstance(found, StringAttr):
        raise VerifyException(f"the property '{name}' is missing")
    return found.data


def _parse_operands(parser: Parser, count: int) -> list[UnresolvedOperand]:
    names: list[UnresolvedOperand] = []
    for index in range(count):
        if index:
            parser.parse_punctuation(",")
        names.append(parser.parse_unresolved_operand())
    return names


class WgmmaMmaAsyncOp(Instruction):
    """`wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 d, a-desc, b-desc, p, 1, 1, 0, 0;`: begins D = A B + D.

    Operands: operand a (a 64-bit descriptor, or 4 registers), the descriptor of b, the predicate if the form has one, then,
    unless the form says `zero`, the registers of D. Results: the registers of D, in flight. See `WgmmaForm`.
    """

    name = "ptx.wgmma_mma_async"
    traits = OpTraits(lambda: cast(tuple[OpTrait, ...], ()))

    @staticmethod
    def make(
        form: WgmmaForm,
        a: Sequence[SSAValue],
        b: SSAValue,
        sums: Sequence[SSAValue] = (),
        predicate: SSAValue | None = None,
    ) -> WgmmaMmaAsyncOp:
        """The op of a form; `a` is one descriptor or four registers, `sums` is empty if the form says `zero`."""
        operands = [*a, b, *([] if predicate is None else [predicate]), *sums]
        return WgmmaMmaAsyncOp.create(
            operands=operands, result_types=_mma_row(form).result_types, properties={"form": _string(form.text)}
        )

    @property
    def form(self) -> WgmmaForm:
        """What it multiplies. Raises `VerifyException` if the property is wrong."""
        return _parse_form(_text_of(self, "form"))

    @property
    def row(self) -> Row:
        return _mma_row(self.form)

    @property
    def predicate(self) -> None:
        """It runs always; the predicate of a form is that of the old D."""
        return None

    @classmethod
    def parse(cls, parser: Parser) -> WgmmaMmaAsyncOp:
        text = parser.parse_str_literal()
        row = _mma_row(_parse_form(text))
        operands = parser.resolve_operands(_parse_operands(parser, len(row.operands)), row.operand_types, parser.pos)
        op = cls.create(operands=operands, result_types=row.result_types, properties={"form": _string(text)})
        op.attributes = parser.parse_optional_attr_dict()
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(f' "{_text_of(self, "form")}" ')
        printer.print_list(self.operands, printer.print_ssa_value)
        printer.print_op_attributes(self.attributes)


class WgmmaWaitGroupOp(Instruction):
    """`wgmma.wait_group.sync.aligned 0;`: all but the `pending` youngest groups are complete.

    Its results are the operands that it passes, the sums of complete groups, which may be used from here on; the property
    `passed` counts them by register type ("f64"). `kept` counts the operands after them, which only live until here.
    """

    name = "ptx.wgmma_wait_group"
    traits = OpTraits(lambda: cast(tuple[OpTrait, ...], ()))

    @staticmethod
    def make(pending: int, passed: Sequence[SSAValue], kept: Sequence[SSAValue] = ()) -> WgmmaWaitGroupOp:
        """Wait, pass `passed` on as results, and keep the registers `kept` until then."""
        return WgmmaWaitGroupOp.create(
            operands=[*passed, *kept],
            result_types=[value.type for value in passed],
            properties={
                "pending": integer(pending),
                "passed": _string(count_registers(passed)),
                "kept": _string(count_registers(kept)),
            },
        )

    @property
    def row(self) -> Row:
        return _wait_row(_text_of(self, "passed"), _text_of(self, "kept"))

    @property
    def predicate(self) -> None:
        """It runs always."""
        return None

    @classmethod
    def parse(cls, parser: Parser) -> WgmmaWaitGroupOp:
        pending = parser.parse_integer(allow_boolean=False, allow_negative=False)
        passed = parser.parse_optional_str_literal() or ""
        count = len(_letters(passed))
        names = _parse_operands(parser, count)
        kept = ""
        if parser.parse_optional_keyword("keep") is not None:
            kept = parser.parse_str_literal()
            names += _parse_operands(parser, len(_letters(kept)))
        row = _wait_row(passed, kept)
        op = cls.create(
            operands=parser.resolve_operands(names, row.operand_types, parser.pos),
            result_types=row.result_types,
            properties={"pending": integer(pending), "passed": _string(passed), "kept": _string(kept)},
        )
        op.attributes = parser.parse_optional_attr_dict()
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {cast(IntAttr, self.properties['pending']).data}")
        count = len(self.results)
        for word, runs, values in (
            ("", _text_of(self, "passed"), self.operands[:count]),
            ("keep ", _text_of(self, "kept"), self.operands[count:]),
        ):
            if values:
                printer.print_string(f' {word}"{runs}" ')
                printer.print_list(values, printer.print_ssa_value)
        printer.print_op_attributes(self.attributes)
