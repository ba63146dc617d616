"""Level 2, mathematics: tiles from tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.dialects.builtin import AnyFloat, FloatAttr, IndexType, IntegerAttr, UnitAttr, i32, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from emmy.dialects.common import MapKindAttr, ReduceKindAttr, check_map, check_map_elements, shape_text
from emmy.dialects.tensor_op import AccumulateAttr, check_accumulate, check_matmul_types, contraction
from emmy.dialects.tile_types import TileType


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

    Every CTA of the cluster executes it once, each with a `part` of its own; the summands are added beginning with the CTA's own,
    then those of the CTAs of the following parts, and after the last one the first. PTX: st.async into the shared memory of the
    other CTAs.
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
            raise VerifyException(
                f"the columns of a sum over a cluster are cut into 2 or more parts, got {columns} in {parts}"
            )
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
