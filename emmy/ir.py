"""From text to a checked module and back.

`parse_module` gives every op the place in the text that it came from, and turns whatever is wrong with the text into
one `EmmyError` with that place. `verify_module` checks ops one by one, so that an error names the op and not the whole
module, and checks dominance, which xDSL does not.
"""

from __future__ import annotations

import importlib
import os
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from io import StringIO
from operator import is_not
from typing import Any, TypeVar

from xdsl.context import Context
from xdsl.dialects.builtin import FileLineColLoc, IntAttr, ModuleOp, StringAttr, UnknownLoc
from xdsl.ir import Attribute, Dialect, Operation, SSAValue
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import SymbolOpInterface, SymbolTable
from xdsl.utils.exceptions import ArgSpecParseError, DiagnosticException, ParseError, VerifyException
from xdsl.utils.lexer import Span
from xdsl.utils.mlir_lexer import MLIRLexer

from emmy.errors import EmmyError, SourceLocation
from emmy.locations import location_of
from emmy.passes.check_dominance import check_dominance

ResultT = TypeVar("ResultT")

DIALECTS: dict[str, str] = {
    "builtin": "xdsl.dialects.builtin:Builtin",
    "func": "xdsl.dialects.func:Func",
    "arith": "xdsl.dialects.arith:Arith",
    "scf": "xdsl.dialects.scf:Scf",
    "tensor_op": "emmy.dialects.tensor_op:TensorOp",
    "tile": "emmy.dialects.tile:Tile",
    "async_copy": "emmy.dialects.async_copy:AsyncCopy",
    "mma": "emmy.dialects.mma:Mma",
    "ptx": "emmy.dialects.ptx:Ptx",
}
"""The dialects that Emmy's levels use, and where each is defined."""

DEBUG_VARIABLE = "EMMY_DEBUG"
"""Set to 1, the environment variable lets unexpected exceptions through with their traceback."""


def load_dialect(name: str) -> Dialect:
    """One of `DIALECTS`, imported now."""
    module, variable = DIALECTS[name].split(":")
    dialect = getattr(importlib.import_module(module), variable)
    if name == "tensor_op":
        from emmy.lowering.composites import composite_ops

        return Dialect(name, [*dialect.operations, *composite_ops()], list(dialect.attributes))
    return dialect


def make_context() -> Context:
    """A context in which the dialects of `DIALECTS` are known; each is imported when its first op or type is met."""
    context = Context()
    for name in DIALECTS:
        context.register_dialect(name, lambda name=name: load_dialect(name))
    return context


MLIRLexer._unescaped_characters_regex = re.compile(  # pyright: ignore[reportPrivateUsage]
    r'"(?:[^"\\\n\v\f]++|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*+"'
)
"""xDSL's expression for a string, made possessive: as it is, a string that is not closed takes time that doubles with every
character of its line."""


# ---- parsing ---------------------------------------------------------------------------------------------------------


class LocatedParser(Parser):
    """xDSL's parser, which also sets `op.location` of every op and points at the first use of an undefined value."""

    def __init__(self, ctx: Context, text: str, file: str, line_offset: int = 0):
        self.file = StringAttr(file)
        self.line_offset = line_offset
        self.line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self.op_start = 0
        self.first_uses: dict[str, Span] = {}
        try:
            super().__init__(ctx, text, file)
        except ParseError as error:  # the first token is none
            raise EmmyError(plain_sentence(error.msg), self.place(error.span.start)) from None

    def place(self, position: int) -> SourceLocation:
        """The line and column of a character offset."""
        line = bisect_right(self.line_starts, position)
        return SourceLocation(self.file.data, line + self.line_offset, position - self.line_starts[line - 1] + 1)

    def parse_operation(self) -> Operation:
        start = self.op_start = self._current_token.span.start
        op = super().parse_operation()
        if isinstance(op.location, UnknownLoc):
            place = self.place(start)
            op.location = FileLineColLoc(self.file, IntAttr(place.line), IntAttr(place.column))
        return op

    def resolve_operand(self, operand: UnresolvedOperand, type: Attribute) -> SSAValue:  # pyright: ignore[reportIncompatibleMethodOverride]
        if operand.operand_name not in self.ssa_values:
            self.first_uses.setdefault(operand.operand_name, operand.span)
        return super().resolve_operand(operand, type)

    def _get_op_by_name(self, name: str) -> type[Operation]:
        op_type = self.ctx.get_optional_op(name, dialect_stack=self._parser_state.dialect_stack)
        if op_type is None:
            content, here = self.lexer.input.content, self._current_token.span.start
            start = max(content.rfind(name, self.op_start, here), self.op_start)
            self.raise_error(f"there is no operation '{name}'", start, start + len(name))
        return op_type

    def parse_module(self, allow_implicit_module: bool = True) -> ModuleOp:
        module = super().parse_module(allow_implicit_module)
        if isinstance(module.location, UnknownLoc):
            module.location = FileLineColLoc(self.file, IntAttr(1 + self.line_offset), IntAttr(1))
        return module


def parse_module(
    text: str, file: str, context: Context | None = None, line_offset: int = 0, implicit_module: bool = True
) -> ModuleOp:
    """The module that `text` spells, each op with its location; `file` names the text in errors.

    `line_offset` is added to line numbers. Raises `EmmyError` with a location for anything that is no module.
    The module is not verified.
    """
    if not text.strip():
        raise EmmyError("the text holds no operation", SourceLocation(file, 1 + line_offset, 1))
    parser = LocatedParser(context or make_context(), text, file, line_offset)
    return _translated(parser, lambda: parser.parse_module(implicit_module))


def parse_attribute(text: str) -> Attribute:
    """The attribute or type that all of `text` spells, for example a command-line option. Raises `EmmyError`."""
    parser = LocatedParser(make_context(), text, "<option>")

    def parse() -> Attribute:
        attribute = parser.parse_attribute()
        if parser.pos < len(text):
            parser.raise_error("nothing was expected here")
        return attribute

    return _translated(parser, parse)


def _translated(parser: LocatedParser, parse: Callable[[], ResultT]) -> ResultT:
    """The result of `parse()`; whatever it raises becomes an `EmmyError` with a place in the parser's text."""
    try:
        return parse()
    except ParseError as error:
        raise _located(error, parser) from None
    except RecursionError:
        raise EmmyError("operations or attributes are nested too deeply", parser.place(parser.op_start)) from None
    except Exception as error:
        if isinstance(error, EmmyError) or os.environ.get(DEBUG_VARIABLE):
            raise
        raise EmmyError(plain_sentence(first_line(error)), parser.place(parser.op_start)) from None


def _located(error: ParseError, parser: LocatedParser) -> EmmyError:
    # What is missing at the end of the text is missed behind its last word, not in the blank lines below.
    message, position = (
        error.msg.strip().splitlines()[0],
        min(error.span.start, len(parser.lexer.input.content.rstrip())),
    )
    undefined = [name for name in parser.first_uses if name in parser.forward_ssa_references]
    if message.startswith("values used but not defined") and undefined:
        return EmmyError(
            f"%{undefined[0]} is used but not defined", parser.place(parser.first_uses[undefined[0]].start)
        )
    if MISCOUNTED.fullmatch(message):  # found behind the types, which may be the next line
        position = parser.op_start
    word = WORD.match(parser.lexer.input.content, position)
    got = f", got '{word[0]}'" if word and MISSING.fullmatch(message) else ""
    return EmmyError(plain_sentence(message) + got, parser.place(position))


MISSING = re.compile(r"Expected '\S+'")
"""A message that would leave open what stands in the place of the word that is missing."""

WORD = re.compile(r"[%@#!^]?[\w.$]{1,40}|[^\w\s]")
MISCOUNTED = re.compile(r"expected (\d+) operand types but had (\d+)")

REWORDED: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"Could not parse entire input!", "an operation was expected here"),
        (r"in (block|region) definition", r"the \1 is not closed: '}' was expected here"),
        (r"Expected shape type\.", "a dimension, or an element type such as f16, was expected here"),
        (MISCOUNTED.pattern, r"types and operands differ in number: \1 and \2"),
        (
            r"Operation has (\d+) results, but was given (\d+) to bind\.",
            r"results and their names differ in number: \1 and \2",
        ),
        (r"(\S+) should be of base attribute (\S+)", r"a \2 was expected, got \1"),
        (r"'(\S+)' is not registered", r"there is no attribute or type '\1'"),
        (r"Exceeds the limit .*digits.*", "an integer has too many digits"),
        (r"(.*?)\W*Redefinition of symbol \"(.*)\"", r"@\2 is defined twice"),
    )
)
"""What xDSL says to those who write xDSL, and what we say to those who write IR."""

LONGEST = 400
"""How long a sentence that quotes the text may become, in characters."""


def plain_sentence(message: str) -> str:
    """A message of xDSL's parser or verifier in the words of this project, and of bearable length."""
    message = message.strip().splitlines()[0] if message.strip() else "the text cannot be read here"
    for pattern, words in REWORDED:
        if pattern.fullmatch(message):
            message = pattern.sub(words, message)
    return message if len(message) <= LONGEST else f"{message[: LONGEST // 2]} ... {message[-LONGEST // 4 :]}"


# ---- checking --------------------------------------------------------------------------------------------------------


def verify_module(module: ModuleOp) -> None:
    """Verify every op and SSA dominance. Raises `EmmyError` at the first op that is wrong."""
    try:
        for op in module.walk():
            if op.regions and op.has_trait(SymbolTable):
                _check_symbols(op)
            _verify_op(op)
        check_dominance(module)
    except RecursionError:
        raise EmmyError("operations are nested too deeply", location_of(module)) from None


class Verifier:
    """Verifies a module again and again: only where something has changed, and most passes leave most kernels as they are."""

    def __init__(self, module: ModuleOp):
        self.module = module
        self.parts: list[Any] = []
        """What was there at the last time: ops, block arguments, operands, types, attributes, in the order of the text."""

    def __call__(self) -> None:
        """Raises `EmmyError` at the first op that is wrong."""
        parts: list[Any] = []
        for op in self.module.walk():
            parts += (op, *op.operands, *op.result_types, *op.properties.values(), *op.attributes.values())
            for region in op.regions:
                for block in region.blocks:
                    parts += (block, *block.arg_types)
        if len(parts) != len(self.parts) or any(map(is_not, parts, self.parts)):
            verify_module(self.module)
            self.parts = parts


_RUN: deque[Verifier] = deque(maxlen=4)
"""Of the modules that interpreters were given last: each is run again and again."""


def verify_once(module: ModuleOp) -> None:
    """`verify_module`, unless the module was among the last ones here and is what it was."""
    verifier = next((one for one in _RUN if one.module is module), None)
    if verifier is None:
        verifier = Verifier(module)
        _RUN.append(verifier)
    verifier()


def _check_symbols(table: Operation) -> None:
    """No symbol twice: xDSL says so too, but of the module or kernel around it."""
    first: dict[str, Operation] = {}
    for op in (op for region in table.regions for block in region.blocks for op in block.ops):
        name = op.get_attr_or_prop("sym_name") if op.has_trait(SymbolOpInterface) else None
        if isinstance(name, StringAttr) and first.setdefault(name.data, op) is not op:
            before = location_of(first[name.data])
            where = f"; the first is in line {before.line}" if before is not None else ""
            raise EmmyError(f"@{name.data} is defined twice{where}", location_of(op))


def _verify_op(op: Operation) -> None:
    try:
        op.verify(verify_nested_ops=False)
        if op.name == "scf.if":
            _check_yields(op)
        for region in op.regions:
            for block in region.blocks:
                if not block.ops:
                    block.verify()
    except RecursionError:
        raise
    except Exception as error:
        if isinstance(error, EmmyError) or (os.environ.get(DEBUG_VARIABLE) and not isinstance(error, _EXPECTED)):
            raise
        message = plain_sentence(first_line(error))
        if op.name not in message:
            message = f"'{op.name}': {message}"
        raise EmmyError(message, location_of(op)) from None


def _check_yields(choice: Operation) -> None:
    """Both regions of an `scf.if` yield its results: xDSL does not ask, and a region without a yield yields nothing."""
    for name, region in zip(("then", "else"), choice.regions, strict=True):
        last = region.blocks[0].last_op if region.blocks else None
        yielded = last.operand_types if last is not None else ()
        if tuple(yielded) != tuple(choice.result_types):
            types = (f"({', '.join(map(str, types))})" for types in (choice.result_types, yielded))
            wanted, got = types
            raise VerifyException(f"its results are {wanted}, and its {name} region yields {got}")


_EXPECTED = (DiagnosticException, ParseError, ValueError)


def first_line(error: BaseException) -> str:
    """The sentence of an exception. xDSL puts whole modules into an exception's notes and further lines."""
    text = str(error.args[0]) if error.args else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def as_emmy_error(error: BaseException, doing: str) -> EmmyError:
    """What a user is told of an exception that arose `doing` something; an unexpected one is called internal."""
    if isinstance(error, EmmyError):
        return error
    if isinstance(error, RecursionError):
        return EmmyError(f"operations are nested too deeply while {doing}")
    if isinstance(error, ArgSpecParseError):
        return EmmyError(f"cannot read the pass pipeline: {str(error).strip().splitlines()[-1].strip()}")
    if isinstance(error, DiagnosticException):
        return EmmyError(f"{first_line(error)} (while {doing})")
    if os.environ.get(DEBUG_VARIABLE):
        raise error
    detail = f"{type(error).__name__}: {first_line(error)}"
    return EmmyError(f"internal error while {doing}: {detail} (set {DEBUG_VARIABLE}=1 for the traceback)")


# ---- printing --------------------------------------------------------------------------------------------------------


def print_module(module: Operation) -> str:
    """The module's text, ending in a newline; `parse_module` reads it back."""
    stream = StringIO()
    Printer(stream).print_op(module)
    return stream.getvalue() + "\n"
