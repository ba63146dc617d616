"""Level 3, mathematics: fragments, and how they come from memory and go there."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import cast

from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, IndexType, IntAttr, IntegerAttr, StringAttr, UnitAttr, i64
from xdsl.ir import Attribute, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import (
    IRDLOperation,
    eq,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect, Pure
from xdsl.utils.exceptions import VerifyException

from emmy.dialects.async_copy_rings import SlotType, find_pipeline, ring_name
from emmy.dialects.common import Index, constant, int_array, shape_text
from emmy.dialects.tile_types import TileType, ViewType, check_box

PLACES = ("a", "b", "c")

ISSUE = "mma.issue"
"""The op that reads operands in place."""


@irdl_attr_definition
class FragmentType(ParametrizedAttribute, TypeAttribute):
    """`!mma.fragment<64x16xf16, a, m16n8k16>`: a warp's tile in registers, in the layout of an atom's operand."""

    name = "mma.fragment"
    shape: ArrayAttr[IntAttr]
    element_type: Attribute
    place: StringAttr
    atom: StringAttr

    @staticmethod
    def get(shape: Sequence[int], element_type: Attribute, place: str, atom: str) -> FragmentType:
        """The type from plain values; `place` is a, b or c."""
        return FragmentType(int_array(shape), element_type, StringAttr(place), StringAttr(atom))

    def get_shape(self) -> tuple[int, ...]:
        """(rows, columns) as the place defines them: a M x K, b N x K, c M x N."""
        return tuple(s.data for s in self.shape)

    def verify(self) -> None:
        if len(self.shape.data) != 2 or any(s < 1 for s in self.get_shape()):
            raise VerifyException(f"a fragment has two positive sizes, got {shape_text(self.get_shape())}")
        if self.place.data not in PLACES:
            raise VerifyException(f"a fragment's place is one of {', '.join(PLACES)}, got '{self.place.data}'")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            shape, element = parser.parse_ranked_shape()
            parser.parse_punctuation(",")
            place = parser.parse_identifier()
            parser.parse_punctuation(",")
            atom = parser.parse_identifier()
        return (int_array(shape), element, StringAttr(place), StringAttr(atom))

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(shape_text(self.get_shape()) + "x")
            printer.print_attribute(self.element_type)
            printer.print_string(f", {self.place.data}, {self.atom.data}")


@irdl_op_definition
class WarpOp(IRDLOperation):
    """This warp's coordinate along `axis` of a warp grid `of` its role, from 0.

    Warps are numbered row by row, or, `by columns`, column by column: then four warps that follow each other lie below each
    other, as those of a warpgroup do.
    """

    name = "mma.warp"
    axis = prop_def(IntegerAttr.constr(type=eq(i64)))
    grid = prop_def(DenseArrayBase.constr(i64))
    by_columns = opt_prop_def(UnitAttr)
    result = result_def(IndexType)
    traits = traits_def(Pure())
    assembly_format = "$axis `of` $grid (`by` `columns` $by_columns^)? attr-dict"

    def __init__(self, axis: int, grid: Sequence[int], by_columns: bool = False):
        super().__init__(
            result_types=[Index],
            properties={
                "axis": IntegerAttr(axis, i64),
                "grid": DenseArrayBase.from_list(i64, list(grid)),
                "by_columns": UnitAttr() if by_columns else None,
            },
        )

    def get_grid(self) -> tuple[int, ...]:
        """Warps along each axis."""
        return tuple(int(g) for g in self.grid.get_values())

    @property
    def stride(self) -> int:
        """How many warps further the next one along the axis is."""
        grid, axis = self.get_grid(), self.axis.value.data
        return prod(grid[:axis] if self.by_columns is not None else grid[axis + 1 :])

    def verify_(self) -> None:
        if not 0 <= self.axis.value.data < len(self.get_grid()):
            raise VerifyException(f"axis {self.axis.value.data} of a warp grid of rank {len(self.get_grid())}")
        if min(self.get_grid()) < 1:
            raise VerifyException(f"a warp grid has at least 1 warp along each axis, got {list(self.get_grid())}")


@irdl_op_definition
class LoadOp(IRDLOperation):
    """A fragment from a field of a slot; `indices`: element offset in the field as stored. `transposed`: the field is stored
    columns x rows relative to the fragment. PTX: ldmatrix (with .trans where `transposed` asks for it), ld.shared; with
    `in_place` only a descriptor, for the products of asynchronous atoms that read the field where it lies."""

    name = "mma.load"
    slot = operand_def(SlotType)
    field = prop_def(StringAttr)
    indices = var_operand_def(IndexType)
    transposed = opt_prop_def(UnitAttr)
    in_place = opt_prop_def(UnitAttr)
    result = result_def(FragmentType)
    traits = traits_def(MemoryReadEffect())
    assembly_format = (
        "$slot `[` $field `]` `[` $indices `]` (`transposed` $transposed^)? (`in_place` $in_place^)? attr-dict "
        "`:` type($slot) `->` type($result)"
    )

    def __init__(
        self,
        slot: SSAValue,
        field: str,
        indices: Sequence[SSAValue],
        result_type: FragmentType,
        transposed: bool = False,
    ):
        super().__init__(
            operands=[slot, indices],
            result_types=[result_type],
            properties={"field": StringAttr(field), "transposed": UnitAttr() if transposed else None},
        )

    def verify_(self) -> None:
        check_field(self, self.slot, self.field.data, self.indices, self.result.type, self.transposed is not None)
        if self.in_place is not None and not all(
            use.operation.name == ISSUE and use.index < 2 for use in self.result.uses
        ):
            raise VerifyException("a fragment that is read in place is an operand a or b of mma.issue and nothing else")


def check_field(
    op: IRDLOperation,
    slot: SSAValue,
    field: str,
    indices: Sequence[SSAValue],
    fragment: FragmentType,
    transposed: bool = False,
) -> None:
    """A fragment read from or written to a field of a slot: the field exists, has its rank, element type and room for it."""
    pipeline = find_pipeline(op, ring_name(slot))
    if pipeline is None:
        return
    tile: TileType | None = pipeline.field(field)
    if tile is None:
        raise VerifyException(f"pipeline @{ring_name(slot)} has no field '{field}'")
    if len(tile.get_shape()) != len(indices):
        raise VerifyException(f"field '{field}' has rank {len(tile.get_shape())}, got {len(indices)} offset(s)")
    if tile.element_type != fragment.element_type:
        raise VerifyException(f"field '{field}' holds {tile.element_type}, the fragment {fragment.element_type}")
    stored = fragment.get_shape()[::-1] if transposed else fragment.get_shape()
    extents = stored if len(indices) == 2 else (max(stored),)
    firsts = [constant(index) or 0 for index in indices]  # 0 is the least that an unknown one can be
    if not all(0 <= i <= size - extent for i, extent, size in zip(firsts, extents, tile.get_shape(), strict=True)):
        raise VerifyException(
            f"{shape_text(extents)} elements at {firsts} are not all in field '{field}', which has {shape_text(tile.get_shape())}"
        )


@irdl_op_definition
class StoreOp(IRDLOperation):
    """Write a fragment into a field of an outbound or internal slot at element offset `indices`. PTX: stmatrix or st.shared."""

    name = "mma.store"
    value = operand_def(FragmentType)
    slot = operand_def(SlotType)
    field = prop_def(StringAttr)
    indices = var_operand_def(IndexType)
    traits = traits_def(MemoryWriteEffect())
    assembly_format = "$value `->` $slot `[` $field `]` `[` $indices `]` attr-dict `:` type($value) `->` type($slot)"

    def __init__(self, value: SSAValue, slot: SSAValue, field: str, indices: Sequence[SSAValue]):
        super().__init__(operands=[value, slot, indices], properties={"field": StringAttr(field)})

    def verify_(self) -> None:
        check_field(self, self.slot, self.field.data, self.indices, cast(FragmentType, self.value.type))


@irdl_op_definition
class StoreGlobalOp(IRDLOperation):
    """Write a fragment straight to a view at element offsets `indices`; elements beyond the bounds are dropped.

    A fragment of one row or column runs along the view's last dimension.
    """

    name = "mma.store_global"
    value = operand_def(FragmentType)
    view = operand_def(ViewType)
    indices = var_operand_def(IndexType)
    traits = traits_def(MemoryWriteEffect())
    assembly_format = "$value `->` $view `[` $indices `]` attr-dict `:` type($value) `->` type($view)"

    def __init__(self, value: SSAValue, view: SSAValue, indices: Sequence[SSAValue]):
        super().__init__(operands=[value, view, indices])

    def verify_(self) -> None:
        fragment = cast(FragmentType, self.value.type)
        shape = fragment.get_shape()
        stored = (max(shape),) if 1 in shape else shape
        check_box(cast(ViewType, self.view.type), len(self.indices), stored, fragment.element_type)


@irdl_op_definition
class LoadGlobalOp(IRDLOperation):
    """A fragment straight from a view at element offsets `indices`, zeros beyond the bounds; `transposed` as in `mma.load`.

    PTX: plain loads of each lane, so it is for what runs rarely and may touch no ring.
    """

    name = "mma.load_global"
    view = operand_def(ViewType)
    indices = var_operand_def(IndexType)
    transposed = opt_prop_def(UnitAttr)
    result = result_def(FragmentType)
    traits = traits_def(MemoryReadEffect())
    assembly_format = "$view `[` $indices `]` (`transposed` $transposed^)? attr-dict `:` type($view) `->` type($result)"

    def __init__(
        self, view: SSAValue, indices: Sequence[SSAValue], result_type: FragmentType, transposed: bool = False
    ):
        super().__init__(
            operands=[view, indices],
            result_types=[result_type],
            properties={"transposed": UnitAttr() if transposed else None},
        )

    def verify_(self) -> None:
        fragment = self.result.type
        stored = fragment.get_shape()[::-1] if self.transposed is not None else fragment.get_shape()
        check_box(cast(ViewType, self.view.type), len(self.indices), stored, fragment.element_type)
