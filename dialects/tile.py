"""Level 2: the work of one CTA over tiles, and the host's launch plan. No threads, no barriers, no transports.

A kernel reads like the algorithm on a whiteboard:

    tile.kernel @matmul(%a: !tile.view<512x3840xf16>, %b: !tile.view<4096x3840xf16>, %c: !tile.view<512x4096xf16>)
        schedule <block = [128, 256, 64], warps = [2, 4]> {
      %M = arith.constant 512 : index ...
      %m, %n = tile.grid [%M by 128, %N by 256] raster 8        // element offsets of this CTA's tile
      %zero = tile.fill 0.0 : !tile.tile<128x256xf32>
      %acc = scf.for %k = %c0 to %K step %c64 iter_args(%s = %zero) -> (!tile.tile<128x256xf32>) {
        %x = tile.load %a[%m, %k] : !tile.view<512x3840xf16> -> !tile.tile<128x64xf16>
        %y = tile.load %b[%n, %k] : !tile.view<4096x3840xf16> -> !tile.tile<256x64xf16>
        %d = tile.dot %x, %y into %s transpose_b : (...) -> !tile.tile<128x256xf32>
        scf.yield %d : !tile.tile<128x256xf32>
      }
      %out = tile.cast %acc : !tile.tile<128x256xf32> to !tile.tile<128x256xf16>
      tile.store %out, %c[%m, %n] : !tile.tile<128x256xf16>, !tile.view<512x4096xf16>
    }

Edges need no code: a load beyond a view's bounds gives zeros, a store beyond them is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import cast

from xdsl.dialects.builtin import (
    AnyFloat,
    ArrayAttr,
    DenseArrayBase,
    FloatAttr,
    FunctionType,
    IndexType,
    IntAttr,
    IntegerAttr,
    NoneAttr,
    StringAttr,
    SymbolNameConstraint,
    SymbolRefAttr,
    TensorType,
    UnitAttr,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, Dialect, Operation, ParametrizedAttribute, Region, SSAValue, TypeAttribute
from xdsl.irdl import (
    AnyAttr,
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_attr_definition,
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
from xdsl.parser import AttrParser, Parser
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

from emmy.dialects.common import (
    DYNAMIC,
    MapKindAttr,
    ReduceKindAttr,
    check_map,
    check_map_elements,
    int_array,
    parse_int_list,
    print_int_list,
    shape_text,
)
from emmy.dialects.tensor_op import AccumulateAttr, check_accumulate, check_matmul_types, contraction
from emmy.schedules import SCHEDULE_FIELDS, Schedule

Index = IndexType()

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


# ---- the host's side: what is allocated and launched -----------------------------------------------------------------


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
class AllocOp(IRDLOperation):
    """A result or workspace of the host function; `sizes` gives the `?` dimensions in order. Contents are undefined."""

    name = "tile.alloc"
    sizes = var_operand_def(IndexType)
    result = result_def(TensorType)
    assembly_format = "`[` $sizes `]` attr-dict `:` type($result)"

    def __init__(self, sizes: Sequence[SSAValue], result_type: Attribute):
        super().__init__(operands=[sizes], result_types=[result_type])

    def verify_(self) -> None:
        dynamic = sum(s == DYNAMIC for s in self.result.type.get_shape())
        if dynamic != len(self.sizes):
            raise VerifyException(f"alloc of {dynamic} dynamic dimension(s) got {len(self.sizes)} size(s)")


@irdl_op_definition
class ReshapeOp(IRDLOperation):
    """Host: the same tensor with dimensions split and sizes of 1 added or left out; nothing is moved.

    `tensor<2x8x1x64xf16> to tensor<2x2x4x64xf16>`: element indices in row-major order stay. Every dimension of the source is
    the product of neighbouring dimensions of the result, so that any strides of the source give strides of the result.
    """

    name = "tile.reshape"
    source = operand_def(TensorType)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$source attr-dict `:` type($source) `to` type($result)"

    def __init__(self, source: SSAValue, result_type: Attribute):
        super().__init__(operands=[source], result_types=[result_type])

    def origins(self) -> list[tuple[int, int]]:
        """For each dimension of the result: that of the source which it is a part of, and how many elements along it one step is.

        Raises VerifyException if the result is no split of the source.
        """
        source, result = (cast("TensorType[Attribute]", x.type).get_shape() for x in (self.source, self.result))
        left = [(place, size) for place, size in enumerate(result) if size != 1]
        found: dict[int, tuple[int, int]] = {}
        for axis, size in enumerate(source):
            step, parts = (
                1,
                0 if size == 1 else next((n for n in range(1, len(left) + 1) if _makes(left[:n], size)), -1),
            )
            if parts < 0:
                raise VerifyException(f"{shape_text(result)} is not {shape_text(source)} with dimensions split")
            for place, extent in reversed(left[:parts]):
                found[place] = (axis, step)
                step *= extent
            left = left[parts:]
        if left:
            raise VerifyException(f"{shape_text(result)} is not {shape_text(source)} with dimensions split")
        return [found.get(place, (0, 1)) for place in range(len(result))]

    def verify_(self) -> None:
        if cast("TensorType[Attribute]", self.source.type).element_type != self.result.type.element_type:
            raise VerifyException("reshape keeps the element type")
        self.origins()


def _makes(parts: Sequence[tuple[int, int]], size: int) -> bool:
    """Whether sizes multiply to `size`; one known at run time only is a part of its own."""
    sizes = [extent for _, extent in parts]
    return sizes == [size] or (DYNAMIC not in (*sizes, size) and prod(sizes) == size)


@irdl_op_definition
class LaunchOp(IRDLOperation):
    """Run `ctas` CTAs of a kernel over tensors; tensors that the kernel stores to are changed in place."""

    name = "tile.launch"
    kernel = prop_def(SymbolRefAttr)
    ctas = operand_def(IndexType)
    args = var_operand_def(TensorType)
    assembly_format = "$kernel `[` $ctas `]` `(` $args `)` attr-dict `:` type($args)"

    def __init__(self, kernel: str, ctas: SSAValue, args: Sequence[SSAValue]):
        super().__init__(operands=[ctas, args], properties={"kernel": SymbolRefAttr(kernel)})

    @property
    def names(self) -> tuple[str, ...]:
        """The kernel, as `DispatchOp` has several; its number of CTAs is the operand of that position."""
        return (self.kernel.root_reference.data,)

    def verify_(self) -> None:
        check_launched(self, self.kernel.root_reference.data, [cast(TensorType[Attribute], a.type) for a in self.args])


def check_launched(op: Operation, name: str, args: Sequence[TensorType[Attribute]]) -> None:
    """The tensors fit the views of kernel `name`, if it is a `tile.kernel` of the op's module."""
    module = op
    while (parent := module.parent_op()) is not None:
        module = parent
    kernel = None if module is op else find_kernel(module, name)
    if kernel is None:
        return
    views = [cast(ViewType, v.type) for v in kernel.block.args]
    if len(views) != len(args):
        raise VerifyException(f"kernel @{name} takes {len(views)} view(s), got {len(args)} tensor(s)")
    for tensor, view in zip(args, views, strict=True):
        pairs = list(zip(tensor.get_shape(), view.get_shape(), strict=False))
        fits = len(tensor.get_shape()) == len(view.get_shape()) and all(t == v or DYNAMIC in (t, v) for t, v in pairs)
        if not fits or tensor.element_type != view.element_type:
            raise VerifyException(f"kernel @{name} takes a {view} here, got a {tensor}")


@irdl_op_definition
class DispatchOp(IRDLOperation):
    """Run the first of several kernels whose views the tensors are, as they lie in memory at the call.

    `tile.dispatch [@fast[%ctas], @any[%more]] (%a, %c) : tensor<..>, tensor<..>`: all kernels compute the same, each with
    its own number of CTAs; what they want differs in their view types. A view without strides takes a row-major tensor, static
    strides take those, `?` strides any; `align` wants what it promises (`!tile.view`). The choice is made on the host, from
    shapes, strides and addresses; a call that fits none is an error. Tensors that a kernel stores to are changed in place.
    `@k[%ctas] transposed [0]` hands the tensor of that position to the kernel with its last two dimensions exchanged.
    """

    name = "tile.dispatch"
    kernels = prop_def(ArrayAttr[SymbolRefAttr])
    transposed = prop_def(ArrayAttr[ArrayAttr[IntAttr]])
    ctas = var_operand_def(IndexType)
    args = var_operand_def(TensorType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    def __init__(
        self,
        kernels: Sequence[str],
        ctas: Sequence[SSAValue],
        args: Sequence[SSAValue],
        transposed: Sequence[Sequence[int]] | None = None,
    ):
        symbols = ArrayAttr([SymbolRefAttr(name) for name in kernels])
        positions = ArrayAttr([int_array(one) for one in transposed or [()] * len(kernels)])
        super().__init__(operands=[ctas, args], properties={"kernels": symbols, "transposed": positions})

    @property
    def names(self) -> tuple[str, ...]:
        """The kernels, the preferred one first; their numbers of CTAs are the first operands."""
        return tuple(kernel.root_reference.data for kernel in self.kernels)

    def get_transposed(self) -> tuple[tuple[int, ...], ...]:
        """For each kernel the positions of the tensors that it gets transposed."""
        return tuple(tuple(position.data for position in positions) for positions in self.transposed)

    @classmethod
    def parse(cls, parser: Parser) -> DispatchOp:
        def one() -> tuple[str, SSAValue, Sequence[int]]:
            name = parser.parse_symbol_name().data
            with parser.in_square_brackets():
                ctas = parser.parse_operand(Index)
            if parser.parse_optional_keyword("transposed") is None:
                return name, ctas, ()
            return name, ctas, parse_int_list(parser)

        kernels = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, one)
        args = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type) if args else []
        operands = parser.resolve_operands(args, types, parser.pos)
        op = cls([k[0] for k in kernels], [k[1] for k in kernels], operands, [k[2] for k in kernels])
        op.attributes = attributes
        return op

    def print(self, printer: Printer) -> None:
        def one(kernel: tuple[str, SSAValue, tuple[int, ...]]) -> None:
            printer.print_symbol_name(kernel[0])
            with printer.in_square_brackets():
                printer.print_ssa_value(kernel[1])
            if kernel[2]:
                printer.print_string(" transposed ")
                print_int_list(printer, kernel[2])

        printer.print_string(" ")
        with printer.in_square_brackets():
            printer.print_list(list(zip(self.names, self.ctas, self.get_transposed(), strict=True)), one)
        printer.print_string(" ")
        with printer.in_parens():
            printer.print_list(self.args, printer.print_ssa_value)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_list(self.args, lambda arg: printer.print_attribute(arg.type))

    def verify_(self) -> None:
        if not self.kernels.data or len(self.kernels.data) != len(self.ctas):
            raise VerifyException("dispatch chooses among one kernel or more, each with a number of CTAs")
        if len(set(self.names)) != len(self.names):
            raise VerifyException("dispatch names each kernel once")
        if len(self.transposed.data) != len(self.kernels.data):
            raise VerifyException("dispatch says of each kernel which tensors it gets transposed")
        tensors = [cast(TensorType[Attribute], arg.type) for arg in self.args]
        for name, positions in zip(self.names, self.get_transposed(), strict=True):
            for position in positions:
                if not 0 <= position < len(tensors) or len(tensors[position].get_shape()) < 2:
                    raise VerifyException(f"there is no tensor {position} of rank 2 or more to transpose for @{name}")
            given = [_transposed(tensor) if i in positions else tensor for i, tensor in enumerate(tensors)]
            check_launched(self, name, given)


def _transposed(tensor: TensorType[Attribute]) -> TensorType[Attribute]:
    """The type with its last two dimensions exchanged."""
    *outer, rows, columns = tensor.get_shape()
    return TensorType(tensor.element_type, [*outer, columns, rows])


# ---- kernels ---------------------------------------------------------------------------------------------------------


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
class SmCountOp(IRDLOperation):
    """Host: how many multiprocessors the device has."""

    name = "tile.sm_count"
    result = result_def(IndexType)
    traits = traits_def(Pure())
    assembly_format = "attr-dict"

    def __init__(self):
        super().__init__(result_types=[Index])


# ---- tiles -----------------------------------------------------------------------------------------------------------


def check_box(view: ViewType, indices: int, box: Sequence[int], element: Attribute) -> None:
    """A box in a view: one offset a dimension; the tile's rank may be smaller, its missing leading sizes are 1."""
    rank = len(view.get_shape())
    if indices != rank:
        raise VerifyException(f"a view of rank {rank} wants {rank} element offsets, got {indices}")
    if len(box) > rank:
        raise VerifyException(f"a tile of rank {len(box)} does not fit a view of rank {rank}")
    if view.element_type != element:
        raise VerifyException(f"the view holds {view.element_type}, the tile {element}")


@irdl_op_definition
class LoadOp(IRDLOperation):
    """The tile at element offsets `indices` of a view; elements beyond the view's bounds are zero."""

    name = "tile.load"
    view = operand_def(ViewType)
    indices = var_operand_def(IndexType)
    result = result_def(TileType)
    traits = traits_def(MemoryReadEffect())
    assembly_format = "$view `[` $indices `]` attr-dict `:` type($view) `->` type($result)"

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


@irdl_op_definition
class FillOp(IRDLOperation):
    """A tile whose elements all have one value."""

    name = "tile.fill"
    value = prop_def(FloatAttr)
    result = result_def(TileType)
    traits = traits_def(Pure())
    assembly_format = "$value attr-dict `:` type($result)"

    def __init__(self, value: FloatAttr[AnyFloat], result_type: TileType):
        super().__init__(result_types=[result_type], properties={"value": value})

    def verify_(self) -> None:
        element = self.result.type.element_type
        if self.value.type != element:
            raise VerifyException(f"fill of a tile of {element} wants a value of that type, got {self.value.type}")


@irdl_op_definition
class DotOp(IRDLOperation):
    """`acc` + A * B over tiles as stored; `transpose_a`: A is K x M; `transpose_b`: B is N x K. Equal leading batch sizes."""

    name = "tile.dot"
    a = operand_def(TileType)
    b = operand_def(TileType)
    acc = operand_def(TileType)
    result = result_def(TileType)
    transpose_a = opt_prop_def(UnitAttr)
    transpose_b = opt_prop_def(UnitAttr)
    accumulate = opt_prop_def(AccumulateAttr)
    traits = traits_def(Pure())
    assembly_format = (
        "$a `,` $b `into` $acc (`transpose_a` $transpose_a^)? (`transpose_b` $transpose_b^)? "
        "(`accumulate` `` $accumulate^)? attr-dict `:` functional-type(operands, results)"
    )

    def __init__(
        self,
        a: SSAValue,
        b: SSAValue,
        acc: SSAValue,
        transpose_a: bool = False,
        transpose_b: bool = False,
        accumulate: AccumulateAttr | None = None,
    ):
        flags = {"transpose_a": UnitAttr() if transpose_a else None, "transpose_b": UnitAttr() if transpose_b else None}
        super().__init__(operands=[a, b, acc], result_types=[acc.type], properties={**flags, "accumulate": accumulate})

    def verify_(self) -> None:
        a, b, c = (cast(TileType, v.type) for v in (self.a, self.b, self.acc))
        if self.result.type != c:
            raise VerifyException("dot gives the type of what it accumulates into")
        ranks = [len(t.get_shape()) for t in (a, b, c)]
        if len(set(ranks)) != 1 or ranks[0] < 2:
            raise VerifyException(
                f"dot wants tiles of one rank, at least 2; got ranks {ranks[0]}, {ranks[1]}, {ranks[2]}"
            )
        m, n, ka, kb = contraction(
            a.get_shape(), b.get_shape(), self.transpose_a is not None, self.transpose_b is not None
        )
        if ka != kb:
            raise VerifyException(f"dot contracts K = {ka} of A with K = {kb} of B")
        if c.get_shape()[-2:] != (m, n):
            raise VerifyException(f"dot of these tiles gives {shape_text((m, n))}, not {shape_text(c.get_shape())}")
        if not a.get_shape()[:-2] == b.get_shape()[:-2] == c.get_shape()[:-2]:
            raise VerifyException("dot wants equal leading (batch) sizes")
        check_matmul_types(a.element_type, b.element_type, c.element_type)
        check_accumulate(self.accumulate, a.element_type)


@irdl_op_definition
class MapOp(IRDLOperation):
    """An elementwise function of tiles; sizes of 1 broadcast. Scalars (f32, or index with i32) may stand for whole tiles.

    Of floats it is computed in f32 and rounded. Of i32 (`tile.coord`) it is exact, modulo 2^32. `ge` and `lt` give i1,
    which is the condition of `select`.
    """

    name = "tile.map"
    kind = prop_def(MapKindAttr)
    args = var_operand_def(AnyAttr())
    result = result_def(TileType)
    traits = traits_def(Pure())
    assembly_format = "$kind $args attr-dict `:` functional-type($args, $result)"

    def __init__(self, kind: MapKindAttr, args: Sequence[SSAValue], result_type: Attribute):
        super().__init__(operands=[args], result_types=[result_type], properties={"kind": kind})

    def verify_(self) -> None:
        shapes = [a.type.get_shape() if isinstance(a.type, TileType) else () for a in self.args]
        check_map(self.kind, shapes, self.result.type.get_shape())
        elements = [a.type.element_type if isinstance(a.type, TileType) else a.type for a in self.args]
        check_map_elements(self.kind, elements, self.result.type.element_type)


@irdl_op_definition
class CastOp(IRDLOperation):
    """Round every element to another float type (nearest, ties to even)."""

    name = "tile.cast"
    arg = operand_def(TileType)
    result = result_def(TileType)
    traits = traits_def(Pure())
    assembly_format = "$arg attr-dict `:` type($arg) `to` type($result)"

    def __init__(self, arg: SSAValue, result_type: Attribute):
        super().__init__(operands=[arg], result_types=[result_type])

    def verify_(self) -> None:
        if cast(TileType, self.arg.type).get_shape() != self.result.type.get_shape():
            raise VerifyException("cast keeps the shape")


@irdl_op_definition
class ReduceOp(IRDLOperation):
    """Reduce one axis, which stays as a size of 1 (so that the result broadcasts against its source).

    An axis may also be reduced in part, to a divisor D of its size: element i of the result is over the elements that are i
    modulo D. In a loop that leaves to the threads what they hold, and the rest of the reduction to after the loop.
    """

    name = "tile.reduce"
    kind = prop_def(ReduceKindAttr)
    arg = operand_def(TileType)
    axis = prop_def(IntegerAttr.constr(type=i64))
    result = result_def(TileType)
    traits = traits_def(Pure())
    assembly_format = "$kind $arg `axis` $axis attr-dict `:` type($arg) `->` type($result)"

    def __init__(self, kind: ReduceKindAttr, arg: SSAValue, axis: int, left: int = 1):
        source = cast(TileType, arg.type)
        shape = [left if i == axis else s for i, s in enumerate(source.get_shape())]
        super().__init__(
            operands=[arg],
            result_types=[TileType.get(shape, source.element_type)],
            properties={"kind": kind, "axis": IntegerAttr(axis, i64)},
        )

    def verify_(self) -> None:
        axis, source, result = self.axis.value.data, cast(TileType, self.arg.type), self.result.type
        sizes = source.get_shape()
        if not isinstance(source.element_type, AnyFloat):
            raise VerifyException(f"reduce works on tiles of floats, got {source}")
        if not 0 <= axis < len(sizes):
            raise VerifyException(f"axis {axis} of a tile of rank {len(sizes)}")
        left = result.get_shape()[axis] if len(result.get_shape()) == len(sizes) else 1
        shape = tuple(left if i == axis else s for i, s in enumerate(sizes))
        if result != TileType.get(shape, source.element_type) or sizes[axis] % left:
            whole = shape_text(tuple(1 if i == axis else s for i, s in enumerate(sizes)))
            raise VerifyException(
                f"reduce over axis {axis} gives {whole} of {source.element_type}, "
                f"or a divisor of {sizes[axis]} in place of the 1; got {result}"
            )


@irdl_op_definition
class ClusterSumOp(IRDLOperation):
    """The sum over the `parts` CTAs of this CTA's cluster, of which it gets part `part`: that many of the columns.

    Every CTA of the cluster executes it once, each with a `part` of its own; the summands are added in the order of the parts
    to which they belong. PTX: shared memory of the cluster (`ld.shared::cluster`) between two `barrier.cluster`.
    """

    name = "tile.cluster_sum"
    arg = operand_def(TileType)
    part = operand_def(IndexType)
    parts = prop_def(IntegerAttr.constr(type=i64))
    result = result_def(TileType)
    assembly_format = "$arg `part` $part `of` $parts attr-dict `:` type($arg) `->` type($result)"

    def __init__(self, arg: SSAValue, part: SSAValue, parts: int):
        source = cast(TileType, arg.type)
        *outer, columns = source.get_shape()
        super().__init__(
            operands=[arg, part],
            result_types=[TileType.get((*outer, columns // parts), source.element_type)],
            properties={"parts": IntegerAttr(parts, i64)},
        )

    def verify_(self) -> None:
        parts, source = self.parts.value.data, cast(TileType, self.arg.type)
        *outer, columns = source.get_shape()
        if parts < 2 or columns % parts:
            raise VerifyException(f"the columns of a sum over a cluster are cut into 2 or more parts, got {columns} in {parts}")
        if self.result.type != TileType.get((*outer, columns // parts), source.element_type):
            raise VerifyException(f"part of {source} in {parts} parts, got {self.result.type}")


@irdl_op_definition
class SqueezeOp(IRDLOperation):
    """The same elements without an axis of size 1: a statistic of each row as a tile of rank 1, to be stored."""

    name = "tile.squeeze"
    arg = operand_def(TileType)
    axis = prop_def(IntegerAttr.constr(type=i64))
    result = result_def(TileType)
    traits = traits_def(Pure())
    assembly_format = "$arg `axis` $axis attr-dict `:` type($arg) `->` type($result)"

    def __init__(self, arg: SSAValue, axis: int):
        source = cast(TileType, arg.type)
        shape = [s for i, s in enumerate(source.get_shape()) if i != axis]
        super().__init__(
            operands=[arg],
            result_types=[TileType.get(shape, source.element_type)],
            properties={"axis": IntegerAttr(axis, i64)},
        )

    def verify_(self) -> None:
        axis, source = self.axis.value.data, cast(TileType, self.arg.type)
        shape = source.get_shape()
        if len(shape) < 2 or not 0 <= axis < len(shape) or shape[axis] != 1:
            raise VerifyException(
                f"squeeze drops an axis of size 1 of a tile of rank 2 or more, got axis {axis} of {source}"
            )
        wanted = TileType.get([s for i, s in enumerate(shape) if i != axis], source.element_type)
        if self.result.type != wanted:
            raise VerifyException(f"squeeze of axis {axis} of {source} gives {wanted}, got {self.result.type}")


@irdl_op_definition
class CoordOp(IRDLOperation):
    """Element (i, j, ..) of the result is `base` plus its coordinate along `axis`, as i32: feeds masks."""

    name = "tile.coord"
    axis = prop_def(IntegerAttr.constr(type=i64))
    base = operand_def(IndexType)
    result = result_def(TileType)
    traits = traits_def(Pure())
    assembly_format = "$axis `from` $base attr-dict `:` type($result)"

    def __init__(self, axis: int, base: SSAValue, result_type: TileType):
        super().__init__(operands=[base], result_types=[result_type], properties={"axis": IntegerAttr(axis, i64)})

    def verify_(self) -> None:
        result = self.result.type
        if not 0 <= self.axis.value.data < len(result.get_shape()):
            raise VerifyException(f"axis {self.axis.value.data} of a tile of rank {len(result.get_shape())}")
        if result.element_type != i32:
            raise VerifyException(f"coord gives a tile of i32, got {result}")


def kernel_type(kernel: KernelOp) -> FunctionType:
    """The views that a kernel takes, as a function type."""
    return FunctionType.from_lists([a.type for a in kernel.block.args], [])


def find_kernel(module: Operation, name: str) -> KernelOp | None:
    """The kernel of that name in a module, or None."""
    for op in module.regions[0].block.ops:
        if isinstance(op, KernelOp) and op.sym_name.data == name:
            return op
    return None


Tile = Dialect(
    "tile",
    [
        DimOp,
        AllocOp,
        ReshapeOp,
        LaunchOp,
        DispatchOp,
        KernelOp,
        GridOp,
        CtaIdOp,
        CtaCountOp,
        SmCountOp,
        SliceOp,
        LoadOp,
        ReadOp,
        StoreOp,
        FillOp,
        DotOp,
        MapOp,
        CastOp,
        ReduceOp,
        ClusterSumOp,
        SqueezeOp,
        CoordOp,
    ],
    [TileType, ViewType, ScheduleAttr],
)
