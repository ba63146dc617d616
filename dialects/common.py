"""What several dialects share: the elementwise functions' names, reductions, symbolic shapes, known numbers."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import DYNAMIC_INDEX, AnyFloat, ArrayAttr, IndexType, IntAttr, IntegerAttr, i1, i32
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, SpacedOpaqueSyntaxAttribute, SSAValue
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.str_enum import StrEnum

from emmy.elementwise import ELEMENTWISE

DYNAMIC = DYNAMIC_INDEX
"""How a dimension or stride that is known at run time only is stored; it prints as `?`."""

Index = IndexType()
"""The type of sizes, offsets and counters."""


def constant(value: SSAValue) -> int | None:
    """The integer that an `arith.constant` makes a value, or None."""
    owner = value.owner
    if isinstance(owner, arith.ConstantOp) and isinstance(owner.value, IntegerAttr):
        return owner.value.value.data
    return None


class MapKind(StrEnum):
    """The elementwise functions; their meaning is `emmy.elementwise.ELEMENTWISE`."""

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    MAX = "max"
    MIN = "min"
    NEG = "neg"
    ABS = "abs"
    EXP = "exp"
    EXP2 = "exp2"
    LOG = "log"
    LOG2 = "log2"
    RCP = "rcp"
    SQRT = "sqrt"
    RSQRT = "rsqrt"
    TANH = "tanh"
    RELU = "relu"
    SILU = "silu"
    GELU_TANH = "gelu_tanh"
    FMA = "fma"
    GE = "ge"
    LT = "lt"
    NE = "ne"
    SELECT = "select"


COMPARISONS = ("ge", "lt", "ne")
"""The functions that may give i1."""

INTEGER_KINDS = ("add", "sub", "mul", "max", "min", "neg", "abs", *COMPARISONS, "select")
"""The functions that are defined on i32."""


@irdl_attr_definition
class MapKindAttr(EnumAttribute[MapKind], SpacedOpaqueSyntaxAttribute):
    """Which elementwise function a `map` applies."""

    name = "tensor_op.map_kind"


class ReduceKind(StrEnum):
    """The reductions along one axis."""

    SUM = "sum"
    MAX = "max"


@irdl_attr_definition
class ReduceKindAttr(EnumAttribute[ReduceKind], SpacedOpaqueSyntaxAttribute):
    """Which reduction a `reduce` applies."""

    name = "tensor_op.reduce_kind"


def check_map(kind: MapKindAttr, shapes: Sequence[Sequence[int]], result: Sequence[int]) -> None:
    """Check operand count and NumPy broadcasting of a `map`. Raises VerifyException."""
    name = kind.data.value
    arity = ELEMENTWISE[name].arity
    if len(shapes) != arity:
        raise VerifyException(f"map {name} takes {arity} operand(s), got {len(shapes)}")
    for shape in shapes:
        padded = [1] * (len(result) - len(shape)) + list(shape)
        if len(shape) > len(result) or any(s not in (1, r) for s, r in zip(padded, result, strict=True)):
            raise VerifyException(f"operand of shape {shape_text(shape)} does not broadcast to {shape_text(result)}")


def check_map_elements(kind: MapKindAttr, elements: Sequence[Attribute], result: Attribute) -> None:
    """Check the element types of a `map` over tiles or fragments (an operand that is a scalar gives its own type).

    Floats of any types mix, and give floats. i32 and index mix, and give i32. A comparison gives i1, of floats also a float
    of 1 or 0. The condition of a select is i1 or a float. Raises VerifyException.
    """
    name = kind.data.value
    if name == "select" and elements[0] == i1:
        elements = elements[1:]
    given = ", ".join(dict.fromkeys(map(str, elements)))
    integers = all(e == i32 or isinstance(e, IndexType) for e in elements)
    if not integers and not all(isinstance(e, AnyFloat) for e in elements):
        raise VerifyException(f"map {name} takes floats, or integers of i32 and index, got {given}")
    if integers and name not in INTEGER_KINDS:
        raise VerifyException(f"map {name} is not for integers; {', '.join(INTEGER_KINDS)} are")
    if name in COMPARISONS and result == i1:
        return
    if integers and (result != i32 or name in COMPARISONS):
        raise VerifyException(f"map {name} of {given} gives {'i1' if name in COMPARISONS else 'i32'}, got {result}")
    if not integers and not isinstance(result, AnyFloat):
        wanted = "i1 or a float" if name in COMPARISONS else "a float"
        raise VerifyException(f"map {name} of {given} gives {wanted}, got {result}")


def shape_text(shape: Sequence[int]) -> str:
    """`128x?x64` for (128, DYNAMIC, 64)."""
    return "x".join("?" if s == DYNAMIC else str(s) for s in shape)


def int_array(values: Sequence[int]) -> ArrayAttr[IntAttr]:
    """An ArrayAttr of IntAttr from Python integers."""
    return ArrayAttr([IntAttr(v) for v in values])


def parse_int_list(parser: AttrParser) -> list[int]:
    """Parse `[1, ?, 3]`; `?` is DYNAMIC."""

    def one() -> int:
        if parser.parse_optional_punctuation("?") is not None:
            return DYNAMIC
        return parser.parse_integer(allow_boolean=False, allow_negative=False)

    return list(parser.parse_comma_separated_list(parser.Delimiter.SQUARE, one))


def print_int_list(printer: Printer, values: Sequence[int]) -> None:
    """Print `[1, ?, 3]`."""
    printer.print_string("[" + ", ".join("?" if v == DYNAMIC else str(v) for v in values) + "]")
