"""Level 3, movement: rings of slots in shared memory, and the roles whose warps fill and read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.dialects.builtin import (
    DictionaryAttr,
    IndexType,
    IntegerAttr,
    StringAttr,
    SymbolNameConstraint,
    SymbolRefAttr,
    UnitAttr,
    i64,
)
from xdsl.ir import Attribute, Operation, ParametrizedAttribute, Region, SSAValue, TypeAttribute
from xdsl.irdl import (
    IRDLOperation,
    ParamAttrConstraint,
    ParsePropInAttrDict,
    VarConstraint,
    base,
    eq,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.traits import NoTerminator, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from emmy.dialects.tile_types import TileType, ViewType, check_box

SIDES = ("fill", "read")

MAX_STAGES = 1024
"""Slots of a ring: each takes 128 bytes of shared memory or more, and two mbarriers, of which no CTA has room for 2048."""

MAX_CLUSTER = 8
"""CTAs of a cluster that every GPU with clusters can place (CUDA C++ Programming Guide, "Thread Block Clusters")."""


def _parse_ring(parser: AttrParser) -> Sequence[Attribute]:
    with parser.in_angle_brackets():
        symbol = parser.parse_symbol_name()
        parser.parse_punctuation(",")
        side = parser.parse_identifier()
        if side not in SIDES:
            parser.raise_error(f"a cursor or slot is of the side fill or read, got '{side}'")
    return (SymbolRefAttr(symbol), StringAttr(side))


@irdl_attr_definition
class CursorType(ParametrizedAttribute, TypeAttribute):
    """`!async_copy.cursor<@k, fill>`: slot index and phase of the next ticket of one side of a pipeline."""

    name = "async_copy.cursor"
    pipeline: SymbolRefAttr
    side: StringAttr

    @staticmethod
    def get(pipeline: str, side: str) -> CursorType:
        """The cursor type of a side (`fill` or `read`) of a pipeline."""
        return CursorType(SymbolRefAttr(pipeline), StringAttr(side))

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        return _parse_ring(parser)

    def print_parameters(self, printer: Printer) -> None:
        printer.print_string(f"<@{self.pipeline.root_reference.data}, {self.side.data}>")


@irdl_attr_definition
class SlotType(ParametrizedAttribute, TypeAttribute):
    """`!async_copy.slot<@k, fill>`: one acquired (fill) or filled (read) slot of a pipeline; a linear value."""

    name = "async_copy.slot"
    pipeline: SymbolRefAttr
    side: StringAttr

    @staticmethod
    def get(pipeline: str, side: str) -> SlotType:
        """The slot type of a side (`fill` or `read`) of a pipeline."""
        return SlotType(SymbolRefAttr(pipeline), StringAttr(side))

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        return _parse_ring(parser)

    def print_parameters(self, printer: Printer) -> None:
        printer.print_string(f"<@{self.pipeline.root_reference.data}, {self.side.data}>")


def ring_name(value: SSAValue) -> str:
    """The pipeline's symbol of a cursor or slot value."""
    return cast(CursorType | SlotType, value.type).pipeline.root_reference.data


@irdl_op_definition
class PipelineOp(IRDLOperation):
    """A ring of `stages` slots; each slot holds the fields (name -> tile type, as stored in memory).

    `outbound`: results leave through it. `internal`: the consumer fills it, with fragments, and reads it; of a `cluster` of so
    many CTAs each fills the slots of the others (`mma.scatter`), and reads its own, which is full when all have done so. Of an
    inbound pipeline of a cluster some fields are filled by all CTAs (copies that are `shared`), a part by each.
    Written by `lower-transport`: `full_count`, `empty_count` (arrivals that end a phase of a slot's full or empty mbarrier;
    absent: the ring has no such barriers), `tx_bytes` (bytes that one ticket brings by TMA, or from other CTAs).
    Written by `allocate-shared`: `base` (bytes from the start of dynamic shared memory), `slot_bytes`, `offsets` (of each field
    in a slot, bytes), `swizzles` (field -> 0, 32, 64 or 128: span of the XOR swizzle), `full_base`, `empty_base` (bytes from the
    start of dynamic shared memory of the mbarriers, 8 bytes each, one a stage).
    """

    name = "async_copy.pipeline"
    sym_name = prop_def(SymbolNameConstraint())
    stages = prop_def(IntegerAttr.constr(type=eq(i64)))
    fields = prop_def(DictionaryAttr)
    outbound = opt_prop_def(UnitAttr)
    internal = opt_prop_def(UnitAttr)
    cluster = opt_prop_def(IntegerAttr.constr(type=eq(i64)))
    base = opt_prop_def(IntegerAttr.constr(type=eq(i64)))
    slot_bytes = opt_prop_def(IntegerAttr.constr(type=eq(i64)))
    offsets = opt_prop_def(DictionaryAttr)
    swizzles = opt_prop_def(DictionaryAttr)
    full_count = opt_prop_def(IntegerAttr.constr(type=eq(i64)))
    empty_count = opt_prop_def(IntegerAttr.constr(type=eq(i64)))
    tx_bytes = opt_prop_def(IntegerAttr.constr(type=eq(i64)))
    full_base = opt_prop_def(IntegerAttr.constr(type=eq(i64)))
    empty_base = opt_prop_def(IntegerAttr.constr(type=eq(i64)))
    traits = traits_def(SymbolOpInterface())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = (
        "$sym_name `stages` $stages $fields (`outbound` $outbound^)? (`internal` $internal^)? (`cluster` $cluster^)? "
        "attr-dict"
    )

    def __init__(
        self,
        name: str,
        stages: int,
        fields: dict[str, TileType],
        outbound: bool = False,
        internal: bool = False,
        cluster: int = 1,
    ):
        super().__init__(
            properties={
                "sym_name": StringAttr(name),
                "stages": IntegerAttr(stages, i64),
                "fields": DictionaryAttr(cast(dict[str, Attribute], fields)),
                "outbound": UnitAttr() if outbound else None,
                "internal": UnitAttr() if internal else None,
                "cluster": IntegerAttr(cluster, i64) if cluster > 1 else None,
            }
        )

    def field(self, name: str) -> TileType | None:
        """The tile type of a field, or None."""
        return cast(TileType | None, self.fields.data.get(name))

    def verify_(self) -> None:
        if not 1 <= self.stages.value.data <= MAX_STAGES:
            raise VerifyException(f"a pipeline has 1 to {MAX_STAGES} stages, got {self.stages.value.data}")
        if not self.fields.data:
            raise VerifyException("a pipeline has at least one field")
        if self.outbound is not None and self.internal is not None:
            raise VerifyException("a pipeline is outbound or internal, not both")
        if self.cluster is not None:
            if self.outbound is not None or (self.internal is not None and self.stages.value.data != 1):
                raise VerifyException("a pipeline of a cluster is inbound, or internal with 1 stage")
            if not 2 <= self.cluster.value.data <= MAX_CLUSTER:
                raise VerifyException(f"a cluster has 2 to {MAX_CLUSTER} CTAs, got {self.cluster.value.data}")
        for field, type_ in self.fields.data.items():
            if not isinstance(type_, TileType):
                raise VerifyException(f"field '{field}' is a tile type, got {type_}")
        for name in ("full_count", "empty_count"):
            count = cast("IntegerAttr | None", self.properties.get(name))
            if count is not None and not 1 <= count.value.data < 1 << 20:
                raise VerifyException(f"an mbarrier counts 1 to 2^20-1 arrivals, got {name} = {count.value.data}")


def find_pipeline(op: Operation, name: str) -> PipelineOp | None:
    """The pipeline of that name in the kernel that holds `op`, or None."""
    parent: Operation | None = op
    while parent is not None and parent.name != "tile.kernel":
        parent = parent.parent_op()
    if parent is None:
        return None
    for candidate in parent.regions[0].block.ops:
        if isinstance(candidate, PipelineOp) and candidate.sym_name.data == name:
            return candidate
    return None


@irdl_op_definition
class ProducerOp(IRDLOperation):
    """The filling half of all inbound pipelines of a kernel."""

    name = "async_copy.producer"
    body = region_def("single_block")
    traits = traits_def(NoTerminator())
    assembly_format = "attr-dict-with-keyword $body"

    def __init__(self, body: Region):
        super().__init__(regions=[body])


@irdl_op_definition
class ConsumerOp(IRDLOperation):
    """The reading half of all pipelines of a kernel: the mathematics."""

    name = "async_copy.consumer"
    body = region_def("single_block")
    traits = traits_def(NoTerminator())
    assembly_format = "attr-dict-with-keyword $body"

    def __init__(self, body: Region):
        super().__init__(regions=[body])


@irdl_op_definition
class RoleOp(IRDLOperation):
    """After placement: `warps` warps run this body. A unified kernel has one role. Roles own consecutive warps in textual order.

    `regs`: setmaxnreg value, if any; every warp of the role runs it. `active`: only the first `active` warps run the body, the
    others are there to make the warpgroup whole (absent: all of them). What shares work out (`cp_async`, barriers, `mma`) goes
    over the active warps.
    """

    name = "async_copy.role"
    role = prop_def(StringAttr)
    warps = prop_def(IntegerAttr.constr(type=eq(i64)))
    regs = opt_prop_def(IntegerAttr.constr(type=eq(i64)))
    active = opt_prop_def(IntegerAttr.constr(type=eq(i64)))
    body = region_def("single_block")
    traits = traits_def(NoTerminator())
    assembly_format = "$role `warps` $warps (`active` $active^)? (`regs` $regs^)? attr-dict-with-keyword $body"

    def __init__(self, role: str, warps: int, body: Region, regs: int | None = None):
        super().__init__(
            regions=[body],
            properties={
                "role": StringAttr(role),
                "warps": IntegerAttr(warps, i64),
                "regs": None if regs is None else IntegerAttr(regs, i64),
            },
        )

    @property
    def active_warps(self) -> int:
        """How many warps run the body."""
        return (self.warps if self.active is None else self.active).value.data

    def verify_(self) -> None:
        if self.warps.value.data < 1:
            raise VerifyException(f"a role has at least 1 warp, got {self.warps.value.data}")
        if not 1 <= self.active_warps <= self.warps.value.data:
            raise VerifyException(
                f"of {self.warps.value.data} warps 1 to {self.warps.value.data} are active, got {self.active_warps}"
            )
        if self.regs is not None and (self.regs.value.data % 8 or not 24 <= self.regs.value.data <= 256):
            raise VerifyException(f"setmaxnreg takes a multiple of 8 from 24 to 256, got {self.regs.value.data}")


def check_copy(op: Operation, view: SSAValue, indices: Sequence[SSAValue], slot: SSAValue, field: str) -> None:
    """A copy between a box of a view and a field of a slot: the field exists, ranks and element types agree."""
    pipeline = find_pipeline(op, ring_name(slot))
    if pipeline is None:
        return
    tile = pipeline.field(field)
    if tile is None:
        raise VerifyException(f"pipeline @{ring_name(slot)} has no field '{field}'")
    check_box(cast(ViewType, view.type), len(indices), tile.get_shape(), tile.element_type)


# ---- what several ops look like --------------------------------------------------------------------------------------

PIPE = VarConstraint("PIPE", base(SymbolRefAttr))
"""The pipeline that an op names, and that its cursors and slots are of."""

FILL_CURSOR = ParamAttrConstraint(CursorType, (PIPE, eq(StringAttr("fill"))))
READ_CURSOR = ParamAttrConstraint(CursorType, (PIPE, eq(StringAttr("read"))))
FILL_SLOT = ParamAttrConstraint(SlotType, (PIPE, eq(StringAttr("fill"))))
READ_SLOT = ParamAttrConstraint(SlotType, (PIPE, eq(StringAttr("read"))))


class OfSlot(IRDLOperation):
    """An op on a slot; the subclass says on which side."""

    pipeline = prop_def(PIPE)
    assembly_format = "$pipeline `,` $slot attr-dict"

    def __init__(self, slot: SSAValue):
        super().__init__(operands=[slot], properties={"pipeline": SymbolRefAttr(ring_name(slot))})


def ctas_of(pipeline: PipelineOp) -> int:
    """CTAs of the cluster that a pipeline is of, or 1."""
    return 1 if pipeline.cluster is None else pipeline.cluster.value.data


class MulticastSlot(IRDLOperation):
    """A copy of the box at element offsets `indices` of a view into a field of a slot; `shared`: into that slot of all CTAs of
    the cluster, a part of the rows by each of them. `evict_first`: L2 gives up the lines before others."""

    view = operand_def(ViewType)
    indices = var_operand_def(IndexType)
    slot = operand_def(SlotType)
    field = prop_def(StringAttr)
    shared = opt_prop_def(UnitAttr)
    evict_first = opt_prop_def(UnitAttr)
    assembly_format = (
        "$view `[` $indices `]` `->` $slot `[` $field `]` (`shared` $shared^)? (`evict_first` $evict_first^)? attr-dict "
        "`:` type($view) `->` type($slot)"
    )

    def __init__(
        self,
        view: SSAValue,
        indices: Sequence[SSAValue],
        slot: SSAValue,
        field: str,
        shared: bool = False,
        evict_first: bool = False,
    ):
        properties = {
            "field": StringAttr(field),
            "shared": UnitAttr() if shared else None,
            "evict_first": UnitAttr() if evict_first else None,
        }
        super().__init__(operands=[view, indices, slot], properties=properties)

    def verify_(self) -> None:
        check_copy(self, self.view, self.indices, self.slot, self.field.data)
        pipeline = find_pipeline(self, ring_name(self.slot))
        if self.shared is None or pipeline is None:
            return
        tile, ctas = pipeline.field(self.field.data), ctas_of(pipeline)
        if ctas == 1 or pipeline.internal is not None:
            raise VerifyException(f"pipeline @{ring_name(self.slot)} is none that the CTAs of a cluster fill together")
        if tile is None or len(tile.get_shape()) != 2 or tile.get_shape()[0] % (8 * ctas):
            raise VerifyException(
                f"{ctas} CTAs share multiples of 8 rows of a field, and '{self.field.data}' is {tile}"
            )


class IntoSlot(IRDLOperation):
    """A copy of the box at element offsets `indices` of a view into a field of a slot."""

    view = operand_def(ViewType)
    indices = var_operand_def(IndexType)
    slot = operand_def(SlotType)
    field = prop_def(StringAttr)
    assembly_format = "$view `[` $indices `]` `->` $slot `[` $field `]` attr-dict `:` type($view) `->` type($slot)"

    def __init__(self, view: SSAValue, indices: Sequence[SSAValue], slot: SSAValue, field: str):
        super().__init__(operands=[view, indices, slot], properties={"field": StringAttr(field)})

    def verify_(self) -> None:
        check_copy(self, self.view, self.indices, self.slot, self.field.data)


class FromSlot(IRDLOperation):
    """A copy of a field of a slot to the box at element offsets `indices` of a view."""

    slot = operand_def(SlotType)
    field = prop_def(StringAttr)
    view = operand_def(ViewType)
    indices = var_operand_def(IndexType)
    assembly_format = "$slot `[` $field `]` `->` $view `[` $indices `]` attr-dict `:` type($slot) `->` type($view)"

    def __init__(self, slot: SSAValue, field: str, view: SSAValue, indices: Sequence[SSAValue]):
        super().__init__(operands=[slot, view, indices], properties={"field": StringAttr(field)})

    def verify_(self) -> None:
        check_copy(self, self.view, self.indices, self.slot, self.field.data)
