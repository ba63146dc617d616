"""Level 2, types and attributes: tiles, views of global memory, schedules; boxes of views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.dialects.builtin import ArrayAttr, IntAttr, NoneAttr, StringAttr
from xdsl.ir import Attribute, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from emmy.dialects.common import DYNAMIC, int_array, parse_int_list, print_int_list, shape_text
from emmy.schedules import SCHEDULE_FIELDS, Schedule

ALIGNMENTS = (0, 1, 2, 4, 8, 16)
"""Bytes that a view may promise; 0 for no promise. 16 is the widest access, and what TMA needs."""


@irdl_attr_definition
class TileType(ParametrizedAttribute, TypeAttribute):
    """`!tile.tile<128x64xf16>`: a value of static shape that one CTA holds, wherever that may be."""

    name = "tile.tile"
    shape: ArrayAttr[IntAttr]
    element_type: Attribute

    @staticmethod
    def get(shape: Sequence[int], element_type: Attribute) -> TileType:
        """The type from plain sizes."""
        return TileType(int_array(shape), element_type)

    def get_shape(self) -> tuple[int, ...]:
        """Sizes, outermost first."""
        return tuple(s.data for s in self.shape)

    def verify(self) -> None:
        if not self.shape.data or any(s < 1 for s in self.get_shape()):
            raise VerifyException(f"a tile has positive static sizes, got {shape_text(self.get_shape())}")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            shape, element = parser.parse_ranked_shape()
        return (int_array(shape), element)

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(shape_text(self.get_shape()) + "x")
            printer.print_attribute(self.element_type)


@irdl_attr_definition
class ViewType(ParametrizedAttribute, TypeAttribute):
    """`!tile.view<?x3840xf16>`: a tensor in global memory that knows its bounds.

    Without `strides` it is row-major and contiguous (strides follow from the sizes); `strides [?, 1]` gives them in
    elements, `?` being a kernel parameter. `align 16` promises that the address, the bytes of a row (the size of the last
    dimension) and the strides of all other dimensions are multiples of 16 bytes. Without it nothing is known of `?` rows and
    strides, and the address is a multiple of the widest access that the kernel makes.
    """

    name = "tile.view"
    shape: ArrayAttr[IntAttr]
    element_type: Attribute
    strides: ArrayAttr[IntAttr] | NoneAttr
    align: IntAttr

    @staticmethod
    def get(
        shape: Sequence[int], element_type: Attribute, strides: Sequence[int] | None = None, align: int = 0
    ) -> ViewType:
        """The type from plain sizes, strides (elements) and alignment (bytes, 0: not stated)."""
        given = NoneAttr() if strides is None else int_array(strides)
        return ViewType(int_array(shape), element_type, given, IntAttr(align))

    def get_shape(self) -> tuple[int, ...]:
        """Sizes, outermost first; DYNAMIC for `?`."""
        return tuple(s.data for s in self.shape)

    def get_strides(self) -> tuple[int, ...]:
        """Strides in elements; DYNAMIC where a stride is a parameter or follows from a dynamic size."""
        if isinstance(self.strides, ArrayAttr):
            return tuple(s.data for s in self.strides)
        strides: list[int] = []
        step = 1
        for size in reversed(self.get_shape()):
            strides.insert(0, step)
            step = DYNAMIC if DYNAMIC in (size, step) else step * size
        return tuple(strides)

    def verify(self) -> None:
        if any(s < 0 and s != DYNAMIC for s in self.get_shape()):
            raise VerifyException("a view has sizes of 0 or more, or `?`")
        if isinstance(self.strides, ArrayAttr) and len(self.strides.data) != len(self.shape.data):
            raise VerifyException("a view has one stride for each dimension")
        if self.align.data not in ALIGNMENTS:
            raise VerifyException(f"a view is aligned to 1, 2, 4, 8 or 16 bytes, got {self.align.data}")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        strides: ArrayAttr[IntAttr] | NoneAttr = NoneAttr()
        align = 0
        with parser.in_angle_brackets():
            shape, element = parser.parse_ranked_shape()
            while parser.parse_optional_punctuation(",") is not None:
                if align == 0 and parser.parse_optional_keyword("align") is not None:
                    align = parser.parse_integer(allow_boolean=False, allow_negative=False)
                else:
                    parser.parse_keyword("strides")
                    strides = int_array(parse_int_list(parser))
        return (int_array(shape), element, strides, IntAttr(align))

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string("".join("?x" if s == DYNAMIC else f"{s}x" for s in self.get_shape()))
            printer.print_attribute(self.element_type)
            if isinstance(self.strides, ArrayAttr):
                printer.print_string(", strides ")
                print_int_list(printer, self.get_strides())
            if self.align.data:
                printer.print_string(f", align {self.align.data}")


@irdl_attr_definition
class ScheduleAttr(ParametrizedAttribute):
    """`#tile.schedule<block = [128, 256, 64], warps = [2, 4], stages = 3, ...>`: see `emmy.schedules.Schedule`.

    Only fields that differ from their defaults are printed; `block` and `warps` always are.
    """

    name = "tile.schedule"
    values: ArrayAttr[Attribute]

    @staticmethod
    def get(schedule: Schedule) -> ScheduleAttr:
        """The attribute of a plain schedule."""
        values: list[Attribute] = []
        for name in SCHEDULE_FIELDS:
            value: object = getattr(schedule, name)
            if isinstance(value, tuple):
                values.append(int_array(cast(Sequence[int], value)))
            else:
                values.append(StringAttr(value) if isinstance(value, str) else IntAttr(cast(int, value)))
        return ScheduleAttr(ArrayAttr(values))

    @property
    def data(self) -> Schedule:
        """The plain schedule."""
        plain: dict[str, object] = {}
        for name, value in zip(SCHEDULE_FIELDS, self.values, strict=True):
            if isinstance(value, ArrayAttr):
                plain[name] = tuple(v.data for v in cast(ArrayAttr[IntAttr], value))
            else:
                plain[name] = cast(StringAttr | IntAttr, value).data
        return Schedule(**plain)  # pyright: ignore[reportArgumentType]

    def verify(self) -> None:
        problem = self.data.problem()
        if problem:
            raise VerifyException(f"illegal schedule: {problem}")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        given: dict[str, object] = {}

        def field() -> None:
            start = parser.pos
            key = parser.parse_identifier()
            if key not in SCHEDULE_FIELDS:
                known = ", ".join(SCHEDULE_FIELDS)
                parser.raise_error(f"a schedule has no field '{key}'; its fields are {known}", start, start + len(key))
            if key in given:
                parser.raise_error(f"the schedule's field '{key}' is given twice", start, start + len(key))
            parser.parse_punctuation("=")
            default = SCHEDULE_FIELDS[key]
            if isinstance(default, tuple):
                given[key] = tuple(parse_int_list(parser))
            elif isinstance(default, str):
                given[key] = parser.parse_identifier()
            else:
                given[key] = parser.parse_integer(allow_boolean=False, allow_negative=False)

        parser.parse_comma_separated_list(parser.Delimiter.ANGLE, field)
        return ScheduleAttr.get(Schedule(**given)).parameters  # pyright: ignore[reportArgumentType]

    def print_parameters(self, printer: Printer) -> None:
        schedule, texts = self.data, list[str]()
        for name, default in SCHEDULE_FIELDS.items():
            value: object = getattr(schedule, name)
            if name in ("block", "warps") or value != default:
                texts.append(f"{name} = {list(cast(tuple[int, ...], value)) if isinstance(value, tuple) else value}")
        printer.print_string(f"<{', '.join(texts)}>")


def check_box(view: ViewType, indices: int, box: Sequence[int], element: Attribute) -> None:
    """A box in a view: one offset a dimension; the tile's rank may be smaller, its missing leading sizes are 1."""
    rank = len(view.get_shape())
    if indices != rank:
        raise VerifyException(f"a view of rank {rank} wants {rank} element offsets, got {indices}")
    if len(box) > rank:
        raise VerifyException(f"a tile of rank {len(box)} does not fit a view of rank {rank}")
    if view.element_type != element:
        raise VerifyException(f"the view holds {view.element_type}, the tile {element}")
