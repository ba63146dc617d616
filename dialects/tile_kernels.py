"""Level 2, kernels: which tile a CTA has, and what it reads and writes of views."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import cast

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    IndexType,
    IntegerAttr,
    StringAttr,
    SymbolNameConstraint,
    TensorType,
    UnitAttr,
    i32,
    i64,
)
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import (
    IsolatedFromAbove,
    MemoryReadEffect,
    MemoryWriteEffect,
    NoTerminator,
    Pure,
    SymbolOpInterface,
    SymbolTable,
)
from xdsl.utils.exceptions import VerifyException

from emmy.dialects.common import DYNAMIC, Index, constant, shape_text
from emmy.dialects.tile_types import ScheduleAttr, TileType, ViewType, check_box


@irdl_op_definition
class DimOp(IRDLOperation):
    """The size of one dimension of a view (in a kernel) or of a tensor (on the host), in elements."""

    name = "tile.dim"
    source = operand_def(ViewType | TensorType)
    axis = prop_def(IntegerAttr.constr(type=i64))
    result = result_def(IndexType)
    traits = traits_def(Pure())
    assembly_format = "$source `,` $axis attr-dict `:` type($source)"

    def __init__(self, source: SSAValue, axis: int):
        super().__init__(operands=[source], result_types=[Index], properties={"axis": IntegerAttr(axis, i64)})

    def verify_(self) -> None:
        rank = len(cast(ViewType, self.source.type).get_shape())
        if not 0 <= self.axis.value.data < rank:
            raise VerifyException(f"dim {self.axis.value.data} of a value of rank {rank}")


@irdl_op_definition
class KernelOp(IRDLOperation):
    """The program of one CTA; its arguments are views. Level-3 passes rewrite its body in place."""

    name = "tile.kernel"
    sym_name = prop_def(SymbolNameConstraint())
    schedule = opt_prop_def(ScheduleAttr)
    body = region_def("single_block")
    traits = traits_def(IsolatedFromAbove(), SymbolOpInterface(), SymbolTable(), NoTerminator())

    def __init__(self, name: str, schedule: ScheduleAttr | None, body: Region):
        super().__init__(regions=[body], properties={"sym_name": StringAttr(name), "schedule": schedule})

    @property
    def block(self) -> Block:
        """The kernel's only block; its arguments are the views."""
        return self.body.block

    @classmethod
    def parse(cls, parser: Parser) -> KernelOp:
        name = parser.parse_symbol_name()
        args = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_argument)
        schedule = None
        if parser.parse_optional_keyword("schedule") is not None:
            schedule = ScheduleAttr.new(ScheduleAttr.parse_parameters(parser))
        attributes = parser.parse_optional_attr_dict_with_keyword()
        op = cls(name.data, schedule, parser.parse_region(args))
        if attributes is not None:
            op.attributes = dict(attributes.data)
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name.data)
        with printer.in_parens():
            printer.print_list(self.block.args, printer.print_block_argument)
        if self.schedule is not None:
            printer.print_string(" schedule ")
            self.schedule.print_parameters(printer)
        printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False, print_empty_block=False)

    def verify_(self) -> None:
        for arg in self.block.args:
            if not isinstance(arg.type, ViewType):
                raise VerifyException(f"kernel arguments are views, got {arg.type}")


class DependencyOp(IRDLOperation):
    """What launches that follow each other agree on: an op of the kernel's block, in front of all that touches memory."""

    def __init__(self):
        super().__init__()

    def verify_(self) -> None:
        if not isinstance(self.parent_op(), KernelOp):
            raise VerifyException("stands in a kernel, outside of loops and roles")


@irdl_op_definition
class DependencyWaitOp(DependencyOp):
    """The launches before this one are done, and what they wrote can be read. PTX: griddepcontrol.wait.

    A kernel that has it is launched while the launch before it may still run (*programmatic dependent launch*): its barriers
    are there and its tensor maps fetched when it gets to read. It touches no memory before. Targets without it launch one
    kernel after the other.
    """

    name = "tile.dependency_wait"
    assembly_format = "attr-dict"


@irdl_op_definition
class LaunchDependentsOp(DependencyOp):
    """From here on, if all CTAs have got here, a kernel that waits may begin. PTX: griddepcontrol.launch_dependents."""

    name = "tile.launch_dependents"
    assembly_format = "attr-dict"


@irdl_op_definition
class GridOp(IRDLOperation):
    """The element offsets of this CTA's tile: `extents` split into blocks of `blocks` elements, one CTA for each block.

    `at %t` gives the offsets of tile number t instead (a CTA that computes several). With `raster G` the CTA order of the
    last two dimensions is grouped: G blocks of the last-but-one dimension are walked before the next block of the last one, so
    that neighbouring CTAs share operands in L2; G = 1 is row-major.
    """

    name = "tile.grid"
    extents = var_operand_def(IndexType)
    number = opt_operand_def(IndexType)
    blocks = prop_def(DenseArrayBase.constr(i64))
    raster = prop_def(IntegerAttr.constr(type=i64))
    offsets = var_result_def(IndexType)
    traits = traits_def(Pure())
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    def __init__(
        self, extents: Sequence[SSAValue], blocks: Sequence[int], raster: int = 1, number: SSAValue | None = None
    ):
        super().__init__(
            operands=[extents, number],
            result_types=[[Index] * len(extents)],
            properties={"blocks": DenseArrayBase.from_list(i64, list(blocks)), "raster": IntegerAttr(raster, i64)},
        )

    @classmethod
    def parse(cls, parser: Parser) -> GridOp:
        def one() -> tuple[SSAValue, int]:
            extent = parser.parse_operand(Index)
            parser.parse_keyword("by")
            return extent, parser.parse_integer(allow_boolean=False, allow_negative=False)

        dims = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, one)
        parser.parse_keyword("raster")
        raster = parser.parse_integer(allow_boolean=False, allow_negative=False)
        number = parser.parse_operand(Index) if parser.parse_optional_keyword("at") is not None else None
        op = cls([e for e, _ in dims], [b for _, b in dims], raster, number)
        op.attributes = parser.parse_optional_attr_dict()
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(" [")

        def one(dim: tuple[SSAValue, int]) -> None:
            printer.print_ssa_value(dim[0])
            printer.print_string(f" by {dim[1]}")

        printer.print_list(list(zip(self.extents, self.get_blocks(), strict=True)), one)
        printer.print_string(f"] raster {self.raster.value.data}")
        if self.number is not None:
            printer.print_string(" at ")
            printer.print_ssa_value(self.number)
        printer.print_op_attributes(self.attributes)

    def get_blocks(self) -> tuple[int, ...]:
        """Block sizes in elements."""
        return tuple(int(b) for b in self.blocks.get_values())

    @property
    def tiles(self) -> int | None:
        """How many there are, None where some extent is known at run time only."""
        extents = [constant(extent) for extent in self.extents]
        if None in extents:
            return None
        return prod(-(-(extent or 0) // block) for extent, block in zip(extents, self.get_blocks(), strict=True))

    def verify_(self) -> None:
        if len(self.get_blocks()) != len(self.extents) or any(b < 1 for b in self.get_blocks()):
            raise VerifyException("grid wants one positive block size for each extent")
        if self.raster.value.data < 1:
            raise VerifyException(f"raster is a positive group size, got {self.raster.value.data}")


@irdl_op_definition
class CtaIdOp(IRDLOperation):
    """The number of this CTA in the launch, from 0."""

    name = "tile.cta_id"
    result = result_def(IndexType)
    traits = traits_def(Pure())
    assembly_format = "attr-dict"

    def __init__(self):
        super().__init__(result_types=[Index])


@irdl_op_definition
class CtaCountOp(IRDLOperation):
    """How many CTAs the launch has."""

    name = "tile.cta_count"
    result = result_def(IndexType)
    traits = traits_def(Pure())
    assembly_format = "attr-dict"

    def __init__(self):
        super().__init__(result_types=[Index])


@irdl_op_definition
class LoadOp(IRDLOperation):
    """The tile at element offsets `indices` of a view; elements beyond the view's bounds are zero.

    `shared`: all CTAs of the cluster load this tile, and each reads a part of it for all of them.
    """

    name = "tile.load"
    view = operand_def(ViewType)
    indices = var_operand_def(IndexType)
    shared = opt_prop_def(UnitAttr)
    result = result_def(TileType)
    traits = traits_def(MemoryReadEffect())
    assembly_format = "$view `[` $indices `]` (`shared` $shared^)? attr-dict `:` type($view) `->` type($result)"

    def __init__(self, view: SSAValue, indices: Sequence[SSAValue], result_type: TileType):
        super().__init__(operands=[view, indices], result_types=[result_type])

    def verify_(self) -> None:
        tile = self.result.type
        check_box(cast(ViewType, self.view.type), len(self.indices), tile.get_shape(), tile.element_type)


@irdl_op_definition
class SliceOp(IRDLOperation):
    """The part of a view that begins at element `offsets`; `sizes` are those of its `?` dimensions, in order.

    `tile.slice %q[%c0, %c0, %first, %c0] [%rows] : !tile.view<1x8x?x64xf16> -> !tile.view<1x8x?x64xf16, strides [?, ?, 64, 1]>`:
    a view with bounds of its own, so that loads beyond them give zeros and stores beyond them are dropped. It lies within
    the source. Strides are those of the source, so the type gives them; `align` must follow from the source's.
    """

    name = "tile.slice"
    view = operand_def(ViewType)
    offsets = var_operand_def(IndexType)
    sizes = var_operand_def(IndexType)
    result = result_def(ViewType)
    traits = traits_def(Pure())
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = "$view `[` $offsets `]` `[` $sizes `]` attr-dict `:` type($view) `->` type($result)"

    def __init__(self, view: SSAValue, offsets: Sequence[SSAValue], sizes: Sequence[SSAValue], result_type: ViewType):
        super().__init__(operands=[view, offsets, sizes], result_types=[result_type])

    def verify_(self) -> None:
        source, result = cast(ViewType, self.view.type), self.result.type
        shape = result.get_shape()
        if len(shape) != len(source.get_shape()) or len(self.offsets) != len(shape):
            raise VerifyException(
                f"a slice of a view of rank {len(source.get_shape())} has that rank, and as many offsets"
            )
        if shape.count(DYNAMIC) != len(self.sizes):
            raise VerifyException(f"a slice with {shape.count(DYNAMIC)} `?` size(s) got {len(self.sizes)}")
        if any(DYNAMIC not in (r, s) and r > s for r, s in zip(shape, source.get_shape(), strict=True)):
            raise VerifyException(
                f"a slice of {shape_text(shape)} does not fit a view of {shape_text(source.get_shape())}"
            )
        if result.element_type != source.element_type:
            raise VerifyException(
                f"a slice of {source.element_type} holds {source.element_type}, got {result.element_type}"
            )
        known = zip(result.get_strides(), source.get_strides(), strict=True)
        if not isinstance(result.strides, ArrayAttr) or any(r not in (s, DYNAMIC) for r, s in known):
            raise VerifyException("a slice says its strides, which are those of its source")


@irdl_op_definition
class ReadOp(IRDLOperation):
    """One i32 of a view as an index, the same for all threads: a length, an offset, the number of a page.

    The element must be within the view's bounds, and the launch must not write it: the op is pure.
    """

    name = "tile.read"
    view = operand_def(ViewType)
    indices = var_operand_def(IndexType)
    result = result_def(IndexType)
    traits = traits_def(Pure())
    assembly_format = "$view `[` $indices `]` attr-dict `:` type($view)"

    def __init__(self, view: SSAValue, indices: Sequence[SSAValue]):
        super().__init__(operands=[view, indices], result_types=[Index])

    def verify_(self) -> None:
        view = cast(ViewType, self.view.type)
        check_box(view, len(self.indices), (), i32)


@irdl_op_definition
class StoreOp(IRDLOperation):
    """Write a tile at element offsets `indices` of a view; elements beyond the view's bounds are dropped."""

    name = "tile.store"
    value = operand_def(TileType)
    view = operand_def(ViewType)
    indices = var_operand_def(IndexType)
    traits = traits_def(MemoryWriteEffect())
    assembly_format = "$value `,` $view `[` $indices `]` attr-dict `:` type($value) `,` type($view)"

    def __init__(self, value: SSAValue, view: SSAValue, indices: Sequence[SSAValue]):
        super().__init__(operands=[value, view, indices])

    def verify_(self) -> None:
        tile = cast(TileType, self.value.type)
        check_box(cast(ViewType, self.view.type), len(self.indices), tile.get_shape(), tile.element_type)


def find_kernel(module: Operation, name: str) -> KernelOp | None:
    """The kernel of that name in a module, or None."""
    for op in module.regions[0].block.ops:
        if isinstance(op, KernelOp) and op.sym_name.data == name:
            return op
    return None
