"""Level 4: one thread. One op for each PTX instruction, virtual registers as SSA values.

Builtin types stand for registers: i32 = .b32, i64 = .b64, f32 = .f32, i1 = .pred, i16 = .b16; a pair of 16-bit floats is
an i32. Control flow is `scf.for` and `scf.if` on i32 and i1, uniform over the CTA, until the printer turns it into labels
and branches. No op prints types, because the table of instructions below fixes them:

    %x0, %x1, %x2, %x3 = ptx.ldmatrix_x4 %address, 1024
    %y = ptx.ld_global_b32 %pointer, 0 if %inside else %zero
    ptx.cp_async_cg_16 %to, %from, 4096, 0 if %more

An instruction is a row of `ptx_table`: results, register operands and immediates (bytes of an address offset, a count) stand
in the op as in the table. Any instruction with an effect takes a predicate (`if`); if it has results, `else` gives their
values where the predicate is false. `wgmma` and the wait for it, with any number of registers, are in `ptx_wgmma`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    DictionaryAttr,
    Float32Type,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    StringAttr,
    SymbolNameConstraint,
    f32,
    i16,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, Dialect, Operation, Region
from xdsl.irdl import IRDLOperation, eq, irdl_op_definition, opt_prop_def, prop_def, region_def, result_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import ConstantLike, IsolatedFromAbove, NoTerminator, Pure, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from emmy.dialects.ptx_instruction import INSTRUCTIONS as INSTRUCTIONS
from emmy.dialects.ptx_instruction import Instruction as Instruction
from emmy.dialects.ptx_instruction import integer as integer
from emmy.dialects.ptx_table import CACHE_HINT as CACHE_HINT
from emmy.dialects.ptx_table import REGISTER_TYPES as REGISTER_TYPES
from emmy.dialects.ptx_table import ROWS as ROWS
from emmy.dialects.ptx_table import Row as Row
from emmy.dialects.ptx_table import mma_name as mma_name
from emmy.dialects.ptx_table import multicast_load_name as multicast_load_name
from emmy.dialects.ptx_table import tma_load_name as tma_load_name
from emmy.dialects.ptx_table import tma_store_name as tma_store_name
from emmy.dialects.ptx_wgmma import WgmmaForm as WgmmaForm
from emmy.dialects.ptx_wgmma import WgmmaMmaAsyncOp as WgmmaMmaAsyncOp
from emmy.dialects.ptx_wgmma import WgmmaWaitGroupOp as WgmmaWaitGroupOp


@irdl_op_definition
class ConstantOp(IRDLOperation):
    """A register-sized constant. Not an instruction where its users take literals; else a `mov`."""

    name = "ptx.constant"
    value = prop_def(IntegerAttr | FloatAttr)
    result = result_def(IntegerType | Float32Type)
    traits = traits_def(Pure(), ConstantLike())

    def __init__(self, value: IntegerAttr[IntegerType] | FloatAttr[Float32Type]):
        Operation.__init__(self, result_types=[value.type], properties={"value": value})

    @classmethod
    def parse(cls, parser: Parser) -> ConstantOp:
        value = parser.parse_attribute()
        if not isinstance(value, IntegerAttr | FloatAttr):
            parser.raise_error("a constant is a number of type i16, i32, i64 or f32")
        op = cls(cast(IntegerAttr[IntegerType], value))
        op.attributes = parser.parse_optional_attr_dict()
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_attribute(self.value)
        printer.print_op_attributes(self.attributes)

    def verify_(self) -> None:
        if self.result.type not in (i16, i32, i64, f32):
            raise VerifyException("a constant is a number of type i16, i32, i64 or f32")
        if cast(IntegerAttr, self.value).type != self.result.type:
            raise VerifyException(f"a constant {self.value} has the type of its value")


@irdl_op_definition
class CommentOp(IRDLOperation):
    """A line of explanation in the printed text."""

    name = "ptx.comment"
    text = prop_def(StringAttr)
    assembly_format = "$text attr-dict"

    def __init__(self, text: str):
        super().__init__(properties={"text": StringAttr(text)})

    def verify_(self) -> None:
        if "\n" in self.text.data:
            raise VerifyException("a comment is one line")


MAX_CLUSTER = 8
"""CTAs of a cluster that every GPU with clusters can place (CUDA C++ Programming Guide, "Thread Block Clusters")."""

PARAMETER_WORDS: dict[str, tuple[int, IntegerType]] = {
    "pointer": (1, i64),
    "dim": (2, i32),
    "stride": (2, i64),
    "tensor_map": (1, i64),
}
"""What a kernel parameter can be, how many numbers follow the word, and its type."""


@dataclass(frozen=True)
class TensorMap:
    """What TMA moves at once. view: number of the launch argument. box: elements in each of the view's dimensions,
    outermost first. swizzle: 0, 32, 64 or 128 bytes."""

    view: int
    box: tuple[int, ...]
    swizzle: int

    def attribute(self) -> DictionaryAttr:
        """`{view = 0 : i64, box = array<i64: 128, 64>, swizzle = 128 : i64}`"""
        numbers = {"view": IntegerAttr(self.view, i64), "swizzle": IntegerAttr(self.swizzle, i64)}
        return DictionaryAttr({"box": DenseArrayBase.from_list(i64, self.box), **numbers})

    @staticmethod
    def of(attribute: Attribute) -> TensorMap:
        """The tensor map of an attribute. Raises `VerifyException` if it is none."""
        data: dict[str, Attribute] = dict(attribute.data) if isinstance(attribute, DictionaryAttr) else {}
        view, box, swizzle = data.get("view"), data.get("box"), data.get("swizzle")
        if (
            not isinstance(view, IntegerAttr)
            or not isinstance(box, DenseArrayBase)
            or not isinstance(swizzle, IntegerAttr)
        ):
            raise VerifyException(f"a tensor map has a view, a box and a swizzle, got {attribute}")
        return TensorMap(view.value.data, tuple(int(n) for n in box.get_values()), swizzle.value.data)

    def check(self) -> None:
        """Raises `VerifyException` for a box that TMA does not move (CUDA driver API, `cuTensorMapEncodeTiled`)."""
        if not 1 <= len(self.box) <= 5 or not all(1 <= n <= 256 for n in self.box):
            raise VerifyException(f"a box has 1 to 5 dimensions of 1 to 256 elements, got {list(self.box)}")
        if self.swizzle not in (0, 32, 64, 128):
            raise VerifyException(f"a swizzle spans 0, 32, 64 or 128 bytes, got {self.swizzle}")


@irdl_op_definition
class KernelOp(IRDLOperation):
    """The program of one thread: `.entry`. Its block arguments are the parameters.

    threads: of a CTA. min_ctas: CTAs a multiprocessor must be able to hold (bounds registers). shared_bytes: dynamic shared
    memory of a launch. cluster: CTAs of a cluster along x, y and z, if there are clusters; a grid is a multiple of it. params
    says of each parameter what the launch passes: `"pointer 2"`, the address of launch argument 2; `"dim 0 1"`, the size of
    axis 1 of argument 0; `"stride 0 1"`, the stride of that axis in elements; `"tensor_map 0"`, the 128 bytes of the first of
    `tensor_maps`, by value: the block argument is their address.
    """

    name = "ptx.kernel"
    sym_name = prop_def(SymbolNameConstraint())
    threads = prop_def(IntegerAttr.constr(type=eq(i64)))
    min_ctas = prop_def(IntegerAttr.constr(type=eq(i64)))
    shared_bytes = prop_def(IntegerAttr.constr(type=eq(i64)))
    cluster = opt_prop_def(DenseArrayBase.constr(i64))
    params = prop_def(ArrayAttr[StringAttr])
    tensor_maps = opt_prop_def(ArrayAttr[DictionaryAttr])
    body = region_def("single_block")
    traits = traits_def(IsolatedFromAbove(), SymbolOpInterface(), NoTerminator())

    def __init__(
        self,
        name: str,
        threads: int,
        min_ctas: int,
        shared_bytes: int,
        params: Sequence[str],
        body: Region,
        tensor_maps: Sequence[TensorMap] = (),
        cluster: Sequence[int] = (),
    ):
        super().__init__(
            regions=[body],
            properties={
                "sym_name": StringAttr(name),
                "threads": IntegerAttr(threads, i64),
                "min_ctas": IntegerAttr(min_ctas, i64),
                "shared_bytes": IntegerAttr(shared_bytes, i64),
                "cluster": DenseArrayBase.from_list(i64, cluster) if cluster else None,
                "params": ArrayAttr([StringAttr(p) for p in params]),
                "tensor_maps": ArrayAttr([m.attribute() for m in tensor_maps]) if tensor_maps else None,
            },
        )

    @property
    def maps(self) -> tuple[TensorMap, ...]:
        """The tensor maps that a launch passes."""
        return tuple(TensorMap.of(m) for m in self.tensor_maps) if self.tensor_maps is not None else ()

    @property
    def cluster_shape(self) -> tuple[int, ...]:
        """CTAs of a cluster along x, y and z; empty if the kernel has no clusters."""
        return tuple(int(n) for n in self.cluster.get_values()) if self.cluster is not None else ()

    @property
    def block(self) -> Block:
        """The kernel's only block; its arguments are the parameters."""
        return self.body.block

    @classmethod
    def parse(cls, parser: Parser) -> KernelOp:
        name = parser.parse_symbol_name()
        args = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_argument)
        numbers: list[int] = []
        for word in ("threads", "min_ctas", "shared_bytes"):
            parser.parse_keyword(word)
            numbers.append(parser.parse_integer(allow_boolean=False, allow_negative=False))
        cluster: list[int] = []
        if parser.parse_optional_keyword("cluster") is not None:
            cluster = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
        parser.parse_keyword("params")
        params = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_str_literal)
        maps: list[TensorMap] = []
        if parser.parse_optional_keyword("tensor_maps") is not None:
            found = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_attribute)
            maps = [TensorMap.of(attribute) for attribute in found]
        attributes = parser.parse_optional_attr_dict_with_keyword()
        op = cls(name.data, numbers[0], numbers[1], numbers[2], params, parser.parse_region(args), maps, cluster)
        if attributes is not None:
            op.attributes = dict(attributes.data)
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name.data)
        with printer.in_parens():
            printer.print_list(self.block.args, printer.print_block_argument)
        for word, value in (
            ("threads", self.threads),
            ("min_ctas", self.min_ctas),
            ("shared_bytes", self.shared_bytes),
        ):
            printer.print_string(f" {word} {value.value.data}")
        if self.cluster is not None:
            printer.print_string(f" cluster [{', '.join(map(str, self.cluster_shape))}]")
        printer.print_string(" params [" + ", ".join(f'"{p.data}"' for p in self.params) + "]")
        if self.tensor_maps is not None:
            printer.print_string(" tensor_maps [")
            printer.print_list(self.tensor_maps, printer.print_attribute)
            printer.print_string("]")
        printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False, print_empty_block=False)

    def verify_(self) -> None:
        if not 1 <= self.threads.value.data <= 1024 or self.threads.value.data % 32:
            raise VerifyException(f"a CTA has a multiple of 32 threads up to 1024, got {self.threads.value.data}")
        cluster = self.cluster_shape
        if cluster and (len(cluster) != 3 or min(cluster) < 1 or math.prod(cluster) > MAX_CLUSTER):
            raise VerifyException(f"a cluster has three extents and at most {MAX_CLUSTER} CTAs, got {list(cluster)}")
        if len(self.params) != len(self.block.args):
            raise VerifyException(f"{len(self.block.args)} parameter(s) but {len(self.params)} description(s)")
        for param, arg in zip(self.params, self.block.args, strict=True):
            word, *numbers = param.data.split()
            count, type_ = PARAMETER_WORDS.get(word, (0, None))
            if len(numbers) != count or not all(n.isdecimal() for n in numbers):
                raise VerifyException(
                    f"'{param.data}' describes no parameter; examples: pointer 0, dim 0 1, stride 0 1, tensor_map 0"
                )
            if arg.type != type_:
                raise VerifyException(f"the parameter '{param.data}' is {type_}, got {arg.type}")
            if word == "tensor_map" and int(numbers[0]) >= len(self.maps):
                raise VerifyException(f"'{param.data}', and there are {len(self.maps)} tensor map(s)")
        for tensor_map in self.maps:
            tensor_map.check()


Ptx = Dialect(
    "ptx",
    [KernelOp, ConstantOp, CommentOp, WgmmaMmaAsyncOp, WgmmaWaitGroupOp, *INSTRUCTIONS.values()],
    [],
)
