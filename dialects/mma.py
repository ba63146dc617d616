"""Level 3, mathematics: fragments and tensor-core atoms.

A *fragment* is a tile of one warp, held in the registers of its lanes, as one SSA value. Its type says the logical shape, the
element type, the *place* (operand `a`: M x K; operand `b`: N x K; accumulator `c`: M x N) and the atom whose register layout
it has (`emmy.atoms`). The order of ops here is the order of the PTX.

    %wm = mma.warp 0 of [2, 4]
    %fa = mma.load %s["a"][%row, %k] : !async_copy.slot<@ab, read> -> !mma.fragment<64x16xf16, a, m16n8k16>
    %fb = mma.load %s["b"][%col, %k] : !async_copy.slot<@ab, read> -> !mma.fragment<64x16xf16, b, m16n8k16>
    %d  = mma.mma %fa, %fb, %c : (...) -> !mma.fragment<64x64xf32, c, m16n8k16>
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar, cast

from xdsl.dialects.builtin import (
    AnyFloat,
    ArrayAttr,
    DenseArrayBase,
    FloatAttr,
    IndexType,
    IntAttr,
    IntegerAttr,
    StringAttr,
    UnitAttr,
    i1,
    i32,
    i64,
)
from xdsl.ir import Attribute, Dialect, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    VarConstraint,
    base,
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
from emmy.dialects.common import MapKindAttr, ReduceKindAttr, check_map, int_array, shape_text
from emmy.dialects.tensor_op import AccumulateAttr, check_accumulate, check_matmul_types
from emmy.dialects.tile_types import TileType, ViewType, check_box

PLACES = ("a", "b", "c")
Index = IndexType()


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


@irdl_op_definition
class LoadOp(IRDLOperation):
    """A fragment from a field of a slot; `indices`: element offset in the field as stored. `transposed`: the field is stored
    columns x rows relative to the fragment. `of` a rank: the slot of that CTA of the cluster. PTX: ldmatrix (with .trans where
    `transposed` asks for it), ld.shared (::cluster); with `in_place` only a descriptor, for the products of asynchronous atoms
    that read the field where it lies."""

    name = "mma.load"
    slot = operand_def(SlotType)
    field = prop_def(StringAttr)
    indices = var_operand_def(IndexType)
    transposed = opt_prop_def(UnitAttr)
    in_place = opt_prop_def(UnitAttr)
    rank = opt_prop_def(IntegerAttr.constr(type=eq(i64)))
    result = result_def(FragmentType)
    traits = traits_def(MemoryReadEffect())
    assembly_format = (
        "$slot `[` $field `]` `[` $indices `]` (`of` $rank^)? (`transposed` $transposed^)? (`in_place` $in_place^)? attr-dict "
        "`:` type($slot) `->` type($result)"
    )

    def __init__(
        self,
        slot: SSAValue,
        field: str,
        indices: Sequence[SSAValue],
        result_type: FragmentType,
        transposed: bool = False,
        rank: int | None = None,
    ):
        super().__init__(
            operands=[slot, indices],
            result_types=[result_type],
            properties={
                "field": StringAttr(field),
                "transposed": UnitAttr() if transposed else None,
                "rank": None if rank is None else IntegerAttr(rank, i64),
            },
        )

    def verify_(self) -> None:
        check_field(self, self.slot, self.field.data, len(self.indices), self.result.type)
        pipeline = find_pipeline(self, ring_name(self.slot))
        if self.rank is not None and pipeline is not None:
            ctas = 1 if pipeline.cluster is None else pipeline.cluster.value.data
            if not 0 <= self.rank.value.data < ctas:
                raise VerifyException(f"pipeline @{ring_name(self.slot)} has slots of {ctas} CTA(s), none of {self.rank.value.data}")
        if self.in_place is not None and not all(
            isinstance(use.operation, IssueOp) and use.index < 2 for use in self.result.uses
        ):
            raise VerifyException("a fragment that is read in place is an operand a or b of mma.issue and nothing else")


def check_field(op: IRDLOperation, slot: SSAValue, field: str, indices: int, fragment: FragmentType) -> None:
    """A fragment read from or written to a field of a slot: the field exists, rank 2, one element type."""
    pipeline = find_pipeline(op, ring_name(slot))
    if pipeline is None:
        return
    tile: TileType | None = pipeline.field(field)
    if tile is None:
        raise VerifyException(f"pipeline @{ring_name(slot)} has no field '{field}'")
    if len(tile.get_shape()) != indices:
        raise VerifyException(f"field '{field}' has rank {len(tile.get_shape())}, got {indices} offset(s)")
    if tile.element_type != fragment.element_type:
        raise VerifyException(f"field '{field}' holds {tile.element_type}, the fragment {fragment.element_type}")


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
        check_field(self, self.slot, self.field.data, len(self.indices), cast(FragmentType, self.value.type))


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
class MmaOp(IRDLOperation):
    """`c` + A * B^T of the logical operands: a is M x K, b is N x K, c is M x N. Sums in c's element type.

    `accumulate` is the policy still to be applied by `split-accumulation`; without it the op means what its types say.
    PTX: one `mma.sync` for each atom, K outermost, then rows, columns serpentine.
    """

    ACC: ClassVar = VarConstraint("ACC", base(FragmentType))
    name = "mma.mma"
    a = operand_def(FragmentType)
    b = operand_def(FragmentType)
    c = operand_def(ACC)
    accumulate = opt_prop_def(AccumulateAttr)
    result = result_def(ACC)
    traits = traits_def(Pure())
    assembly_format = (
        "$a `,` $b `,` $c (`accumulate` `` $accumulate^)? attr-dict "
        "`:` `(` type($a) `,` type($b) `)` `->` type($result)"
    )

    def __init__(self, a: SSAValue, b: SSAValue, c: SSAValue, accumulate: AccumulateAttr | None = None):
        super().__init__(operands=[a, b, c], result_types=[c.type], properties={"accumulate": accumulate})

    def verify_(self) -> None:
        check_product(self.a, self.b, self.c)
        check_accumulate(self.accumulate, cast(FragmentType, self.a.type).element_type)


def check_product(*operands: SSAValue) -> None:
    """The fragments a, b, c of a product fit each other. Raises VerifyException."""
    a, b, c = (cast(FragmentType, v.type) for v in operands)
    for fragment, place in ((a, "a"), (b, "b"), (c, "c")):
        if fragment.place.data != place:
            raise VerifyException(f"operand {place} of mma is a fragment of place {place}, got {fragment.place.data}")
    if a.get_shape()[1] != b.get_shape()[1]:
        raise VerifyException(f"mma contracts K = {a.get_shape()[1]} of a with K = {b.get_shape()[1]} of b")
    if c.get_shape() != (a.get_shape()[0], b.get_shape()[0]):
        raise VerifyException(
            f"mma of these operands gives {shape_text((a.get_shape()[0], b.get_shape()[0]))}, "
            f"not {shape_text(c.get_shape())}"
        )
    if not a.atom == b.atom == c.atom:
        raise VerifyException("mma wants fragments of one atom")
    check_matmul_types(a.element_type, b.element_type, c.element_type)


# ---- asynchronous products: four warps issue one together, and wait for it later --------------------------------------


@irdl_op_definition
class FenceOp(IRDLOperation):
    """What this warp wrote into registers before is there for the products that it issues from here on. PTX: wgmma.fence."""

    name = "mma.fence"
    assembly_format = "attr-dict"

    def __init__(self):
        super().__init__()


@irdl_op_definition
class IssueOp(IRDLOperation):
    """`mma.mma` begun and not waited for: the result is in flight, and only another issue (as `c`) or a wait takes it.

    The four warps of a warpgroup issue together; each fragment is one warp's share, 16 rows of 64. b is read in place, a
    in place or from registers. PTX: wgmma.mma_async, one for each 256 columns or fewer.
    """

    ACC: ClassVar = VarConstraint("ACC", base(FragmentType))
    name = "mma.issue"
    a = operand_def(FragmentType)
    b = operand_def(FragmentType)
    c = operand_def(ACC)
    result = result_def(ACC)
    assembly_format = "$a `,` $b `,` $c attr-dict `:` `(` type($a) `,` type($b) `)` `->` type($result)"

    def __init__(self, a: SSAValue, b: SSAValue, c: SSAValue):
        super().__init__(operands=[a, b, c], result_types=[c.type])

    def verify_(self) -> None:
        check_product(self.a, self.b, self.c)
        if cast(FragmentType, self.a.type).get_shape()[0] != 16:
            raise VerifyException("mma.issue multiplies 16 rows of each warp, 64 of a warpgroup")
        if not isinstance(self.b.owner, LoadOp) or self.b.owner.in_place is None:
            raise VerifyException("operand b of mma.issue is read in place")
        for use in self.result.uses:
            if not (isinstance(use.operation, IssueOp) and use.index == 2) and not isinstance(use.operation, WaitOp):
                raise VerifyException("the result of mma.issue is in flight: mma.wait for it first")


@irdl_op_definition
class CommitOp(IRDLOperation):
    """The products issued since the last commit are one group, for `mma.wait`. PTX: wgmma.commit_group."""

    name = "mma.commit"
    assembly_format = "attr-dict"

    def __init__(self):
        super().__init__()


@irdl_op_definition
class WaitOp(IRDLOperation):
    """Wait until at most `pending` groups are unfinished; `sum`, of a finished one, is passed on. PTX: wgmma.wait_group."""

    ACC: ClassVar = VarConstraint("ACC", base(FragmentType))
    name = "mma.wait"
    pending = prop_def(IntegerAttr.constr(type=eq(i64)))
    sum = operand_def(ACC)
    result = result_def(ACC)
    assembly_format = "$pending $sum attr-dict `:` type($result)"

    def __init__(self, pending: int, sum_: SSAValue):
        super().__init__(operands=[sum_], result_types=[sum_.type], properties={"pending": IntegerAttr(pending, i64)})

    def verify_(self) -> None:
        if self.pending.value.data < 0:
            raise VerifyException(f"mma.wait leaves 0 or more groups pending, got {self.pending.value.data}")


@irdl_op_definition
class PromoteOp(IRDLOperation):
    """`acc` (f32) + `partial` (f16, or f32 of 8-bit operands), elementwise: ends a partial sum of the hybrid policy."""

    ACC: ClassVar = VarConstraint("ACC", base(FragmentType))
    name = "mma.promote"
    partial = operand_def(FragmentType)
    acc = operand_def(ACC)
    result = result_def(ACC)
    traits = traits_def(Pure())
    assembly_format = "$partial `into` $acc attr-dict `:` type($partial) `->` type($result)"

    def __init__(self, partial: SSAValue, acc: SSAValue):
        super().__init__(operands=[partial, acc], result_types=[acc.type])


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
    With the 8 columns of an atom each lane adds up what it holds, and nothing is exchanged.
    """

    name = "mma.reduce"
    kind = prop_def(ReduceKindAttr)
    arg = operand_def(FragmentType)
    result = result_def(FragmentType)
    traits = traits_def(Pure())
    assembly_format = "$kind $arg attr-dict `:` type($arg) `->` type($result)"

    def __init__(self, kind: ReduceKindAttr, arg: SSAValue, columns: int = 1):
        source = cast(FragmentType, arg.type)
        shape = (source.get_shape()[0], columns)
        result = FragmentType.get(shape, source.element_type, source.place.data, source.atom.data)
        super().__init__(operands=[arg], result_types=[result], properties={"kind": kind})

    def verify_(self) -> None:
        source, result = cast(FragmentType, self.arg.type), self.result.type
        (rows, columns), (kept, left) = source.get_shape(), result.get_shape()
        if source.place.data != "c" or kept != rows or columns % left:
            raise VerifyException("reduce takes a c fragment of R x C to R x 1, or to R x D where D divides C")


@irdl_op_definition
class AnyNonfiniteOp(IRDLOperation):
    """Whether an element of this warp's fragment is infinite or NaN: one answer for its lanes, warps may differ."""

    name = "mma.any_nonfinite"
    arg = operand_def(FragmentType)
    result = result_def(i1)
    traits = traits_def(Pure())
    assembly_format = "$arg attr-dict `:` type($arg)"

    def __init__(self, arg: SSAValue):
        super().__init__(operands=[arg], result_types=[i1])

    def verify_(self) -> None:
        if not isinstance(cast(FragmentType, self.arg.type).element_type, AnyFloat):
            raise VerifyException(f"any_nonfinite tests floats, got {self.arg.type}")


@irdl_op_definition
class AnyOp(IRDLOperation):
    """Whether an element of this warp's i1 fragment is true: one answer for its lanes, warps may differ. PTX: vote.any."""

    name = "mma.any"
    arg = operand_def(FragmentType)
    result = result_def(i1)
    traits = traits_def(Pure())
    assembly_format = "$arg attr-dict `:` type($arg)"

    def __init__(self, arg: SSAValue):
        super().__init__(operands=[arg], result_types=[i1])

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


Mma = Dialect(
    "mma",
    [
        WarpOp,
        LoadOp,
        StoreOp,
        StoreGlobalOp,
        LoadGlobalOp,
        FillOp,
        MmaOp,
        FenceOp,
        IssueOp,
        CommitOp,
        WaitOp,
        PromoteOp,
        MapOp,
        ReduceOp,
        AnyNonfiniteOp,
        AnyOp,
        ConvertOp,
        CoordOp,
        SliceOp,
        JoinOp,
    ],
    [FragmentType],
)
