"""The op of a PTX instruction: operands, results and text come from its row of `ptx_table`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar, cast

from xdsl.dialects.builtin import IntAttr, i1
from xdsl.ir import Attribute, Operation, OpTraits, SSAValue
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from emmy.dialects.ptx_table import ROWS, Row


@lru_cache(maxsize=4096)
def integer(value: int) -> IntAttr:
    """The attribute of an immediate; attributes are costly to build and the same few return."""
    return IntAttr(value)


class Instruction(Operation):
    """One PTX instruction, described by its row of the table.

    Operands: those of the row; then the predicate if there is one; then, if there are results too, one value for each
    result where the predicate is false.
    """

    table_row: ClassVar[Row]

    @property
    def row(self) -> Row:
        """The instruction's row; that of its class, unless the op says more."""
        return self.table_row

    @property
    def predicate(self) -> SSAValue | None:
        """The i1 under which the instruction runs, or None."""
        count = len(self.row.operands)
        return self.operands[count] if len(self.operands) > count else None

    @classmethod
    def parse(cls, parser: Parser) -> Instruction:
        row, names, values = cls.table_row, list[UnresolvedOperand](), list[int]()
        types = list(row.operand_types)
        for index in range(len(row.operands) + len(row.immediates)):
            if index:
                parser.parse_punctuation(",")
            if index < len(row.operands):
                names.append(parser.parse_unresolved_operand())
            else:
                values.append(parser.parse_integer(allow_boolean=False))
        if parser.parse_optional_keyword("if") is not None:
            names.append(parser.parse_unresolved_operand())
            types.append(i1)
            for index, type_ in enumerate(row.result_types):
                parser.parse_keyword("else") if index == 0 else parser.parse_punctuation(",")
                names.append(parser.parse_unresolved_operand())
                types.append(type_)
        operands = parser.resolve_operands(names, types, parser.pos)
        op = cls.create(
            operands=operands,
            result_types=row.result_types,
            properties=dict(zip(row.immediates, map(integer, values), strict=True)),
        )
        op.attributes = parser.parse_optional_attr_dict()
        return op

    def print(self, printer: Printer) -> None:
        row, count = self.row, len(self.row.operands)
        if count or row.immediates:
            printer.print_string(" ")
        printer.print_list(self.operands[:count], printer.print_ssa_value)
        if count and row.immediates:
            printer.print_string(", ")
        printer.print_string(", ".join(str(cast(IntAttr, self.properties[name]).data) for name in row.immediates))
        if len(self.operands) > count:
            printer.print_string(" if ")
            printer.print_ssa_value(self.operands[count])
            if row.results:
                printer.print_string(" else ")
                printer.print_list(self.operands[count + 1 :], printer.print_ssa_value)
        printer.print_op_attributes(self.attributes)

    def verify_(self) -> None:
        row, types = self.row, tuple(self.operand_types)
        wanted = row.operand_types
        if len(types) > len(wanted):
            if row.pure or row.until:
                what = "that is repeated" if row.until else "without effects"
                raise VerifyException(f"an instruction {what} takes no predicate")
            wanted = (*wanted, i1, *row.result_types)
        if types != wanted:
            raise VerifyException(f"operands are {_type_list(wanted)}, got {_type_list(types)}")
        if tuple(self.result_types) != row.result_types:
            raise VerifyException(f"results are {_type_list(row.result_types)}, got {_type_list(self.result_types)}")
        for name in row.immediates:
            if not isinstance(self.properties.get(name), IntAttr):
                raise VerifyException(f"the immediate '{name}' is missing")


def _type_list(types: Sequence[Attribute]) -> str:
    return f"({', '.join(str(t) for t in types)})"


def _define(row: Row) -> type[Instruction]:
    """The op of a row. Pure ones have xDSL's Pure trait; the others have none, so that nothing moves or drops them."""
    traits = (Pure(),) if row.pure else ()
    body: dict[str, object] = {"name": f"ptx.{row.name}", "table_row": row, "traits": OpTraits(lambda: traits)}
    body["__doc__"] = f"`{row.text};`"
    return type(f"Ptx_{row.name}", (Instruction,), body)


INSTRUCTIONS: dict[str, type[Instruction]] = {name: _define(row) for name, row in ROWS.items()}
"""Row name -> op class; build with `INSTRUCTIONS[name].create(operands=, result_types=, properties=)`."""
