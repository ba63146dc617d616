"""Level 3, mathematics: what the CTAs of a cluster give each other of their fragments."""

from __future__ import annotations

from typing import cast

from xdsl.dialects.builtin import Float32Type, IndexType, IntegerAttr, StringAttr, i64
from xdsl.ir import SSAValue
from xdsl.irdl import IRDLOperation, eq, irdl_op_definition, operand_def, prop_def, result_def, traits_def
from xdsl.traits import MemoryWriteEffect, Pure
from xdsl.utils.exceptions import VerifyException

from emmy.dialects.async_copy_rings import SlotType, find_pipeline, ring_name
from emmy.dialects.common import shape_text
from emmy.dialects.mma_fragments import FragmentType


@irdl_op_definition
class ScatterOp(IRDLOperation):
    """Give each other CTA of the cluster its part of the columns of a fragment of f32 sums, asynchronously.

    The pipeline is one of a `cluster` of S CTAs; a field of it has (S - 1) x R rows, R of them for each other CTA, and the
    columns of one part. This CTA, number `part`, writes into the slots of CTAs p != part, at row ((part - p - 1) mod S) x R +
    `row`: so each finds those of the CTAs after it in order. PTX: st.async.shared::cluster, which counts its bytes on the full
    mbarrier of the slot that it writes into; 16 bytes of a lane for each 16 x 8 elements, as they lie in registers.
    """

    name = "mma.scatter"
    value = operand_def(FragmentType)
    part = operand_def(IndexType)
    slot = operand_def(SlotType)
    field = prop_def(StringAttr)
    row = operand_def(IndexType)
    traits = traits_def(MemoryWriteEffect())
    assembly_format = (
        "$value `by` $part `->` $slot `[` $field `]` `[` $row `]` attr-dict `:` type($value) `->` type($slot)"
    )

    def __init__(self, value: SSAValue, part: SSAValue, slot: SSAValue, field: str, row: SSAValue):
        super().__init__(operands=[value, part, slot, row], properties={"field": StringAttr(field)})

    def verify_(self) -> None:
        fragment = cast(FragmentType, self.value.type)
        if fragment.place.data != "c" or not isinstance(fragment.element_type, Float32Type):
            raise VerifyException(f"CTAs give each other f32 sums, got {fragment}")
        pipeline = find_pipeline(self, ring_name(self.slot))
        if pipeline is None:
            return
        if pipeline.cluster is None:
            raise VerifyException(f"pipeline @{ring_name(self.slot)} is not one of a cluster")
        ctas, tile = pipeline.cluster.value.data, pipeline.field(self.field.data)
        rows, columns = fragment.get_shape()
        if tile is None or len(tile.get_shape()) != 2 or tile.element_type != fragment.element_type:
            raise VerifyException(f"pipeline @{ring_name(self.slot)} has no field '{self.field.data}' of rows of f32")
        wanted = tile.get_shape()[0] % ((ctas - 1) * rows) == 0 and columns == ctas * tile.get_shape()[1]
        if not wanted:
            raise VerifyException(
                f"{ctas} CTAs share {columns} columns of {rows} rows, and field '{self.field.data}' has "
                f"{shape_text(tile.get_shape())}"
            )


@irdl_op_definition
class PartOp(IRDLOperation):
    """Part `part` (known at run time) of the columns of a c fragment, in `parts` equal parts. PTX: selp."""

    name = "mma.part"
    arg = operand_def(FragmentType)
    part = operand_def(IndexType)
    parts = prop_def(IntegerAttr.constr(type=eq(i64)))
    result = result_def(FragmentType)
    traits = traits_def(Pure())
    assembly_format = "$arg `,` $part `of` $parts attr-dict `:` type($arg) `->` type($result)"

    def __init__(self, arg: SSAValue, part: SSAValue, parts: int):
        source = cast(FragmentType, arg.type)
        rows, columns = source.get_shape()
        type_ = FragmentType.get((rows, columns // parts), source.element_type, source.place.data, source.atom.data)
        super().__init__(operands=[arg, part], result_types=[type_], properties={"parts": IntegerAttr(parts, i64)})

    def verify_(self) -> None:
        source, parts = cast(FragmentType, self.arg.type), self.parts.value.data
        rows, columns = source.get_shape()
        wanted = (rows, columns // max(parts, 1))
        if source.place.data != "c" or parts < 2 or columns % parts or self.result.type.get_shape() != wanted:
            raise VerifyException(f"{self.result.type} is none of {parts} parts of the columns of {source}")
