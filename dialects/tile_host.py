"""Level 2, the host's side: what is allocated and launched."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import cast

from xdsl.dialects.builtin import ArrayAttr, IndexType, IntAttr, StringAttr, SymbolRefAttr, TensorType
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from emmy.dialects.common import DYNAMIC, Index, constant, int_array, parse_int_list, print_int_list, shape_text
from emmy.dialects.tile_kernels import GridOp, find_kernel
from emmy.dialects.tile_types import ViewType


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
class RequireEqualOp(IRDLOperation):
    """Host: a call in which two sizes differ is refused, with `message` and the first of them.

    `tile.require_equal %k, %k_1, "the matmul contracts sizes that must be equal: dimension 1 of 'a' and dimension 1 of 'b'"`.
    Kernels take the size of one tensor where two agree, and what lies beyond a tensor's bounds is zero to them.
    """

    name = "tile.require_equal"
    left = operand_def(IndexType)
    right = operand_def(IndexType)
    message = prop_def(StringAttr)
    assembly_format = "$left `,` $right `,` $message attr-dict"

    def __init__(self, left: SSAValue, right: SSAValue, message: str):
        super().__init__(operands=[left, right], properties={"message": StringAttr(message)})


@irdl_op_definition
class ReshapeOp(IRDLOperation):
    """Host: the same tensor with dimensions split and sizes of 1 added or left out; nothing is moved.

    `tensor<2x8x1x64xf16> to tensor<2x2x4x64xf16>`: element indices in row-major order stay. Every dimension of the source is
    the product of neighbouring dimensions of the result, so that any strides of the source give strides of the result. A last
    dimension `?` may become `?` and static ones, of whose product it is a multiple.
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
            lengths = (len(left),) if axis == len(source) - 1 else range(1, len(left) + 1)
            step, parts = 1, 0 if size == 1 else next((n for n in lengths if _makes(left[:n], size)), -1)
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
    """Whether sizes multiply to `size`; one known at run time only has no other such part, and that one is the first."""
    sizes = [extent for _, extent in parts]
    if size == DYNAMIC:
        return sizes[:1] == [DYNAMIC] and DYNAMIC not in sizes[1:]
    return DYNAMIC not in sizes and prod(sizes) == size


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
        given = [cast(TensorType[Attribute], a.type) for a in self.args]
        check_launched(self, self.kernel.root_reference.data, self.ctas, given)


def check_launched(op: Operation, name: str, ctas: SSAValue, args: Sequence[TensorType[Attribute]]) -> None:
    """The tensors fit the views of kernel `name`, if it is a `tile.kernel` of the op's module, and CTAs have tiles."""
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
    given, grids = constant(ctas), [inner for inner in kernel.block.ops if isinstance(inner, GridOp)]
    most = grids[0].tiles if grids and grids[0].number is None else None
    if given is not None and most is not None and given > most:
        raise VerifyException(
            f"the tile.grid of kernel @{name} has {most} tile(s), and {given} CTAs are launched: the others would have none"
        )


@irdl_op_definition
class DispatchOp(IRDLOperation):
    """Run the first of several kernels whose views the tensors are, as they lie in memory at the call.

    `tile.dispatch [@fast[%ctas], @any[%more]] (%a, %c) : tensor<..>, tensor<..>`: all kernels compute the same, each with
    its own number of CTAs; what they want differs in their view types. A view without strides takes a row-major tensor, static
    strides take those, `?` strides any; `align` wants what it promises (`!tile.view`). The choice is made on the host, from
    shapes, strides and addresses; a call that fits none is an error. Tensors that a kernel stores to are changed in place.
    `@k[%ctas] transposed [0]` hands the tensor of that position to the kernel with its last two dimensions exchanged.
    `@k[%ctas] time %t`: of the kernels with a time, which stand before those without, the one whose time is least is tried first;
    the first of equals. The unit is any, the same for all; the host computes times from sizes, `tile.sm_count` and constants.
    """

    name = "tile.dispatch"
    kernels = prop_def(ArrayAttr[SymbolRefAttr])
    transposed = prop_def(ArrayAttr[ArrayAttr[IntAttr]])
    ctas = var_operand_def(IndexType)
    times = var_operand_def(IndexType)
    args = var_operand_def(TensorType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    def __init__(
        self,
        kernels: Sequence[str],
        ctas: Sequence[SSAValue],
        args: Sequence[SSAValue],
        transposed: Sequence[Sequence[int]] | None = None,
        times: Sequence[SSAValue] = (),
    ):
        symbols = ArrayAttr([SymbolRefAttr(name) for name in kernels])
        positions = ArrayAttr([int_array(one) for one in transposed or [()] * len(kernels)])
        super().__init__(operands=[ctas, times, args], properties={"kernels": symbols, "transposed": positions})

    @property
    def names(self) -> tuple[str, ...]:
        """The kernels, the preferred one first; their numbers of CTAs are the first operands."""
        return tuple(kernel.root_reference.data for kernel in self.kernels)

    def get_transposed(self) -> tuple[tuple[int, ...], ...]:
        """For each kernel the positions of the tensors that it gets transposed."""
        return tuple(tuple(position.data for position in positions) for positions in self.transposed)

    @classmethod
    def parse(cls, parser: Parser) -> DispatchOp:
        times: list[SSAValue] = []

        def one() -> tuple[str, SSAValue, Sequence[int]]:
            at, name = parser.pos, parser.parse_symbol_name().data
            with parser.in_square_brackets():
                ctas = parser.parse_operand(Index)
            given = parser.parse_optional_keyword("transposed") is not None
            transposed = parse_int_list(parser) if given else ()
            untimed.append(parser.parse_optional_keyword("time") is None)
            if not untimed[-1]:
                times.append(parser.parse_operand(Index))
                if any(untimed):
                    parser.raise_error(f"@{name} has a time, and stands behind a kernel without one", at)
            return name, ctas, transposed

        untimed: list[bool] = []
        kernels = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, one)
        args = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type) if args else []
        operands = parser.resolve_operands(args, types, parser.pos)
        op = cls([k[0] for k in kernels], [k[1] for k in kernels], operands, [k[2] for k in kernels], times)
        op.attributes = attributes
        return op

    def print(self, printer: Printer) -> None:
        def one(position: int) -> None:
            printer.print_symbol_name(self.names[position])
            with printer.in_square_brackets():
                printer.print_ssa_value(self.ctas[position])
            if self.get_transposed()[position]:
                printer.print_string(" transposed ")
                print_int_list(printer, self.get_transposed()[position])
            if position < len(self.times):
                printer.print_string(" time ")
                printer.print_ssa_value(self.times[position])

        printer.print_string(" ")
        with printer.in_square_brackets():
            printer.print_list(range(len(self.names)), one)
        printer.print_string(" ")
        with printer.in_parens():
            printer.print_list(self.args, printer.print_ssa_value)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_list(self.args, lambda arg: printer.print_attribute(arg.type))

    def verify_(self) -> None:
        if not self.kernels.data or len(self.kernels.data) != len(self.ctas):
            raise VerifyException("dispatch chooses among one kernel or more, each with a number of CTAs")
        if len(self.times) > len(self.ctas):
            raise VerifyException(f"dispatch has {len(self.times)} times for {len(self.ctas)} kernels")
        if len(set(self.names)) != len(self.names):
            raise VerifyException("dispatch names each kernel once")
        if len(self.transposed.data) != len(self.kernels.data):
            raise VerifyException("dispatch says of each kernel which tensors it gets transposed")
        tensors = [cast(TensorType[Attribute], arg.type) for arg in self.args]
        for name, ctas, positions in zip(self.names, self.ctas, self.get_transposed(), strict=True):
            for position in positions:
                if not 0 <= position < len(tensors) or len(tensors[position].get_shape()) < 2:
                    raise VerifyException(f"there is no tensor {position} of rank 2 or more to transpose for @{name}")
            given = [_transposed(tensor) if i in positions else tensor for i, tensor in enumerate(tensors)]
            check_launched(self, name, ctas, given)


def _transposed(tensor: TensorType[Attribute]) -> TensorType[Attribute]:
    """The type with its last two dimensions exchanged."""
    *outer, rows, columns = tensor.get_shape()
    return TensorType(tensor.element_type, [*outer, columns, rows])


@irdl_op_definition
class SmCountOp(IRDLOperation):
    """Host: how many multiprocessors the device has."""

    name = "tile.sm_count"
    result = result_def(IndexType)
    traits = traits_def(Pure())
    assembly_format = "attr-dict"

    def __init__(self):
        super().__init__(result_types=[Index])
