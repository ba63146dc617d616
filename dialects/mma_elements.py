"""Level 3, mathematics: fragments from fragments, element by element or part by part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.dialects.builtin import AnyFloat, DenseArrayBase, FloatAttr, IndexType, IntegerAttr, i1, i32, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    eq,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from emmy.dialects.common import MapKindAttr, ReduceKindAttr, check_map, shape_text
from emmy.dialects.mma_fragments import FragmentType


@irdl_op_definition
class FillOp(IRDLOperation):
    """A fragment whose elements all have one value."""

    name = "mma.fill"
    value = prop_def(FloatAttr)
    result = result_def(FragmentType)
    traits = traits_def(Pure())
    assembly_format = "$value attr-dict `:` type($result)"

    def __init__(self, value: FloatAttr[AnyFloat], result_type: FragmentType):
        super().__init__(result_types=[result_type], properties={"value": value})


@irdl_op_definition
class MapOp(IRDLOperation):
    """An elementwise function of fragments in one layout; sizes of 1 broadcast, scalars (f32) stand for whole fragments."""

    name = "mma.map"
    kind = prop_def(MapKindAttr)
    args = var_operand_def(AnyAttr())
    result = result_def(FragmentType)
    traits = traits_def(Pure())
    assembly_format = "$kind $args attr-dict `:` functional-type($args, $result)"

    def __init__(self, kind: MapKindAttr, args: Sequence[SSAValue], result_type: Attribute):
        super().__init__(operands=[args], result_types=[result_type], properties={"kind": kind})

    def verify_(self) -> None:
        shapes = [a.type.get_shape() if isinstance(a.type, FragmentType) else () for a in self.args]
        check_map(self.kind, shapes, self.result.type.get_shape())


@irdl_op_definition
class ReduceOp(IRDLOperation):
    """Reduce the columns (axis 1) of a c fragment to R x 1, held by all lanes of a row (shuffles within four lanes).

    R x D, where D divides the columns, is a part of that: column i of the result is over the columns that are i modulo D.
    With the 8 columns of an atom each lane adds up what it holds, and nothing is exchanged. 1 x C is the reduction of the rows
    (axis 0), held by all lanes of a column (shuffles between the eight of them).
    """

    name = "mma.reduce"
    kind = prop_def(ReduceKindAttr)
    arg = operand_def(FragmentType)
    result = result_def(FragmentType)
    traits = traits_def(Pure())
    assembly_format = "$kind $arg attr-dict `:` type($arg) `->` type($result)"

    def __init__(self, kind: ReduceKindAttr, arg: SSAValue, columns: int = 1, rows: int | None = None):
        """rows: None keeps them, 1 reduces them, and `columns` are then those of `arg`."""
        source = cast(FragmentType, arg.type)
        shape = (source.get_shape()[0] if rows is None else rows, columns)
        result = FragmentType.get(shape, source.element_type, source.place.data, source.atom.data)
        super().__init__(operands=[arg], result_types=[result], properties={"kind": kind})

    def verify_(self) -> None:
        source, result = cast(FragmentType, self.arg.type), self.result.type
        (rows, columns), (kept, left) = source.get_shape(), result.get_shape()
        of_columns, of_rows = kept == rows and columns % left == 0, (kept, left) == (1, columns)
        if source.place.data != "c" or not (of_columns or of_rows):
            raise VerifyException(
                "reduce takes a c fragment of R x C to R x 1, to R x D where D divides C, or to 1 x C"
            )

    @property
    def axis(self) -> int:
        """0 where rows are reduced, 1 where columns are."""
        source, result = cast(FragmentType, self.arg.type).get_shape(), self.result.type.get_shape()
        return 0 if source[0] != result[0] else 1


class _VoteOp(IRDLOperation):
    """A question about the elements of this warp's fragment: one answer for its lanes, warps may differ."""

    arg = operand_def(FragmentType)
    result = result_def(i1)
    traits = traits_def(Pure())
    assembly_format = "$arg attr-dict `:` type($arg)"

    def __init__(self, arg: SSAValue):
        super().__init__(operands=[arg], result_types=[i1])


@irdl_op_definition
class AnyNonfiniteOp(_VoteOp):
    """Whether an element of this warp's fragment is infinite or NaN: one answer for its lanes, warps may differ."""

    name = "mma.any_nonfinite"

    def verify_(self) -> None:
        if not isinstance(cast(FragmentType, self.arg.type).element_type, AnyFloat):
            raise VerifyException(f"any_nonfinite tests floats, got {self.arg.type}")


@irdl_op_definition
class AnyOp(_VoteOp):
    """Whether an element of this warp's i1 fragment is true: one answer for its lanes, warps may differ. PTX: vote.any."""

    name = "mma.any"

    def verify_(self) -> None:
        if cast(FragmentType, self.arg.type).element_type != i1:
            raise VerifyException(f"any takes a fragment of i1, got {self.arg.type}")


@irdl_op_definition
class ConvertOp(IRDLOperation):
    """The same matrix with another element type (rounded to nearest even) and / or another place or atom.

    Free where the register layouts are equal (an f16 accumulator as the next a operand).
    """

    name = "mma.convert"
    arg = operand_def(FragmentType)
    result = result_def(FragmentType)
    traits = traits_def(Pure())
    assembly_format = "$arg attr-dict `:` type($arg) `to` type($result)"

    def __init__(self, arg: SSAValue, result_type: FragmentType):
        super().__init__(operands=[arg], result_types=[result_type])

    def verify_(self) -> None:
        if cast(FragmentType, self.arg.type).get_shape() != self.result.type.get_shape():
            raise VerifyException("convert keeps the shape")


@irdl_op_definition
class CoordOp(IRDLOperation):
    """Element (i, j) of the result (i32) is `base` plus its coordinate along `axis`: feeds masks."""

    name = "mma.coord"
    axis = prop_def(IntegerAttr.constr(type=eq(i64)))
    base = operand_def(IndexType)
    result = result_def(FragmentType)
    traits = traits_def(Pure())
    assembly_format = "$axis `from` $base attr-dict `:` type($result)"

    def __init__(self, axis: int, base: SSAValue, result_type: FragmentType):
        super().__init__(operands=[base], result_types=[result_type], properties={"axis": IntegerAttr(axis, i64)})

    def verify_(self) -> None:
        if self.axis.value.data not in (0, 1):
            raise VerifyException(f"coord counts along axis 0 or 1, got {self.axis.value.data}")
        if self.result.type.element_type != i32:
            raise VerifyException(f"coord gives a fragment of i32, got {self.result.type}")


@irdl_op_definition
class SliceOp(IRDLOperation):
    """The part of a fragment that begins at (row, column) `at`; sizes from the result type. Atom-aligned: no instruction."""

    name = "mma.slice"
    arg = operand_def(FragmentType)
    at = prop_def(DenseArrayBase.constr(i64))
    result = result_def(FragmentType)
    traits = traits_def(Pure())
    assembly_format = "$arg `at` $at attr-dict `:` type($arg) `->` type($result)"

    def __init__(self, arg: SSAValue, at: Sequence[int], result_type: FragmentType):
        super().__init__(
            operands=[arg], result_types=[result_type], properties={"at": DenseArrayBase.from_list(i64, list(at))}
        )

    def verify_(self) -> None:
        source, result = cast(FragmentType, self.arg.type), self.result.type
        at = tuple(int(v) for v in self.at.get_values())
        if len(at) != 2 or any(
            a < 0 or a + r > s for a, r, s in zip(at, result.get_shape(), source.get_shape(), strict=True)
        ):
            raise VerifyException(
                f"slice of {shape_text(result.get_shape())} at {list(at)} leaves {shape_text(source.get_shape())}"
            )
        if (source.element_type, source.place, source.atom) != (result.element_type, result.place, result.atom):
            raise VerifyException("slice keeps element type, place and atom")


@irdl_op_definition
class JoinOp(IRDLOperation):
    """Fragments side by side along `axis` (0 rows, 1 columns) as one; atom-aligned: no instruction."""

    name = "mma.join"
    args = var_operand_def(FragmentType)
    axis = prop_def(IntegerAttr.constr(type=eq(i64)))
    result = result_def(FragmentType)
    traits = traits_def(Pure())
    assembly_format = "$args `axis` $axis attr-dict `:` type($args) `->` type($result)"

    def __init__(self, args: Sequence[SSAValue], axis: int, result_type: FragmentType):
        super().__init__(operands=[args], result_types=[result_type], properties={"axis": IntegerAttr(axis, i64)})

    def verify_(self) -> None:
        axis, result = self.axis.value.data, self.result.type
        shapes = [cast(FragmentType, a.type).get_shape() for a in self.args]
        if axis not in (0, 1) or not shapes:
            raise VerifyException("join takes at least one fragment along axis 0 or 1")
        total = [s[axis] for s in shapes]
        if sum(total) != result.get_shape()[axis] or any(s[1 - axis] != result.get_shape()[1 - axis] for s in shapes):
            raise VerifyException(f"join of these fragments along axis {axis} does not give {result}")
