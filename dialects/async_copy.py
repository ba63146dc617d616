"""Level 3, movement: shared-memory rings, what is in flight, when it is complete.

A *pipeline* is a ring of slots named by a symbol. One `producer` and one `consumer` region a kernel serve all pipelines:

    producer:  acquire slot - copy into it - commit          consumer:  wait slot - read it - release

A *cursor* (which slot, which phase) is carried through every loop; `acquire` and `wait` give a *slot* and the next cursor.
Slots are linear: one commit or release on every path, no use after. An `outbound` pipeline has one half only: acquire, fill
(`mma.store`), `store`, commit. `drain` ends a pipeline's level: all its tickets are done after it.

`place-roles` merges or assigns the halves; `lower-transport` turns acquire/commit/wait/release into the *event* ops of the
last section (`slot`, `cp_async`, `commit_group`, `wait_group`, `barrier`, ...), which a lowering prints one to one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, cast

from xdsl.dialects.builtin import (
    DictionaryAttr,
    IndexType,
    IntegerAttr,
    StringAttr,
    SymbolNameConstraint,
    SymbolRefAttr,
    UnitAttr,
    i1,
    i64,
)
from xdsl.ir import Attribute, Dialect, Operation, ParametrizedAttribute, Region, SSAValue, TypeAttribute
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
    opt_operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.traits import NoTerminator, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from emmy.dialects.tile_types import TileType, ViewType, check_box

SIDES = ("fill", "read")

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
    many CTAs each fills a slot of its own, and reads those of all, which are full when all of them are. Written by
    `lower-transport`: `full_count`, `empty_count` (arrivals that end a phase of
    a slot's full or empty mbarrier; absent: the ring has no such barriers), `tx_bytes` (bytes that one ticket brings by TMA).
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
        "$sym_name `stages` $stages $fields (`outbound` $outbound^)? (`internal` $internal^)? (`cluster` $cluster^)? attr-dict"
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
        if self.stages.value.data < 1:
            raise VerifyException(f"a pipeline has at least 1 stage, got {self.stages.value.data}")
        if not self.fields.data:
            raise VerifyException("a pipeline has at least one field")
        if self.outbound is not None and self.internal is not None:
            raise VerifyException("a pipeline is outbound or internal, not both")
        if self.cluster is not None:
            if self.internal is None or self.stages.value.data != 1:
                raise VerifyException("a pipeline of a cluster is internal, and has 1 stage")
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

    def __init__(self, role: str, warps: int, body: Region, regs: int | None = None, active: int | None = None):
        super().__init__(
            regions=[body],
            properties={
                "role": StringAttr(role),
                "warps": IntegerAttr(warps, i64),
                "regs": None if regs is None else IntegerAttr(regs, i64),
                "active": None if active is None else IntegerAttr(active, i64),
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


# ---- the protocol ----------------------------------------------------------------------------------------------------


@irdl_op_definition
class BeginFillOp(IRDLOperation):
    """The first cursor of the filling side. Not pure: two halves must not share one."""

    PIPE: ClassVar = VarConstraint("PIPE", base(SymbolRefAttr))
    name = "async_copy.begin_fill"
    pipeline = prop_def(PIPE)
    cursor = result_def(ParamAttrConstraint(CursorType, (PIPE, eq(StringAttr("fill")))))
    assembly_format = "$pipeline attr-dict"

    def __init__(self, pipeline: str):
        super().__init__(
            result_types=[CursorType.get(pipeline, "fill")], properties={"pipeline": SymbolRefAttr(pipeline)}
        )


@irdl_op_definition
class BeginReadOp(IRDLOperation):
    """The first cursor of the reading side."""

    PIPE: ClassVar = VarConstraint("PIPE", base(SymbolRefAttr))
    name = "async_copy.begin_read"
    pipeline = prop_def(PIPE)
    cursor = result_def(ParamAttrConstraint(CursorType, (PIPE, eq(StringAttr("read")))))
    assembly_format = "$pipeline attr-dict"

    def __init__(self, pipeline: str):
        super().__init__(
            result_types=[CursorType.get(pipeline, "read")], properties={"pipeline": SymbolRefAttr(pipeline)}
        )


@irdl_op_definition
class AcquireOp(IRDLOperation):
    """Wait until the slot at the cursor is free; it is being filled after that. With `if %p` false: no slot, same cursor."""

    PIPE: ClassVar = VarConstraint("PIPE", base(SymbolRefAttr))
    name = "async_copy.acquire"
    pipeline = prop_def(PIPE)
    cursor = operand_def(ParamAttrConstraint(CursorType, (PIPE, eq(StringAttr("fill")))))
    predicate = opt_operand_def(i1)
    slot = result_def(ParamAttrConstraint(SlotType, (PIPE, eq(StringAttr("fill")))))
    next = result_def(ParamAttrConstraint(CursorType, (PIPE, eq(StringAttr("fill")))))
    assembly_format = "$pipeline `[` $cursor `]` (`if` $predicate^)? attr-dict"

    def __init__(self, cursor: SSAValue, predicate: SSAValue | None = None):
        ring = ring_name(cursor)
        super().__init__(
            operands=[cursor, predicate],
            result_types=[SlotType.get(ring, "fill"), cursor.type],
            properties={"pipeline": SymbolRefAttr(ring)},
        )


@irdl_op_definition
class CopyOp(IRDLOperation):
    """Copy the box at element offsets `indices` of a view into a field of a slot being filled; beyond the bounds: zeros."""

    name = "async_copy.copy"
    view = operand_def(ViewType)
    indices = var_operand_def(IndexType)
    slot = operand_def(SlotType)
    field = prop_def(StringAttr)
    assembly_format = "$view `[` $indices `]` `->` $slot `[` $field `]` attr-dict `:` type($view) `->` type($slot)"

    def __init__(self, view: SSAValue, indices: Sequence[SSAValue], slot: SSAValue, field: str):
        super().__init__(operands=[view, indices, slot], properties={"field": StringAttr(field)})

    def verify_(self) -> None:
        check_copy(self, self.view, self.indices, self.slot, self.field.data)


def check_copy(op: Operation, view: SSAValue, indices: Sequence[SSAValue], slot: SSAValue, field: str) -> None:
    """A copy between a box of a view and a field of a slot: the field exists, ranks and element types agree."""
    pipeline = find_pipeline(op, ring_name(slot))
    if pipeline is None:
        return
    tile = pipeline.field(field)
    if tile is None:
        raise VerifyException(f"pipeline @{ring_name(slot)} has no field '{field}'")
    check_box(cast(ViewType, view.type), len(indices), tile.get_shape(), tile.element_type)


@irdl_op_definition
class CommitOp(IRDLOperation):
    """All copies into the slot have been issued: the slot is full when they have landed. Consumes the slot.

    `joined`: one commit group with the next commit. With `if %p` false: an empty commit.
    """

    PIPE: ClassVar = VarConstraint("PIPE", base(SymbolRefAttr))
    name = "async_copy.commit"
    pipeline = prop_def(PIPE)
    slot = operand_def(ParamAttrConstraint(SlotType, (PIPE, eq(StringAttr("fill")))))
    predicate = opt_operand_def(i1)
    joined = opt_prop_def(UnitAttr)
    assembly_format = "$pipeline `,` $slot (`if` $predicate^)? (`joined` $joined^)? attr-dict"

    def __init__(self, slot: SSAValue, predicate: SSAValue | None = None, joined: bool = False):
        super().__init__(
            operands=[slot, predicate],
            properties={"pipeline": SymbolRefAttr(ring_name(slot)), "joined": UnitAttr() if joined else None},
        )


@irdl_op_definition
class WaitOp(IRDLOperation):
    """Wait until the slot at the cursor is full; it may be read after that."""

    PIPE: ClassVar = VarConstraint("PIPE", base(SymbolRefAttr))
    name = "async_copy.wait"
    pipeline = prop_def(PIPE)
    cursor = operand_def(ParamAttrConstraint(CursorType, (PIPE, eq(StringAttr("read")))))
    slot = result_def(ParamAttrConstraint(SlotType, (PIPE, eq(StringAttr("read")))))
    next = result_def(ParamAttrConstraint(CursorType, (PIPE, eq(StringAttr("read")))))
    assembly_format = "$pipeline `[` $cursor `]` attr-dict"

    def __init__(self, cursor: SSAValue):
        ring = ring_name(cursor)
        super().__init__(
            operands=[cursor],
            result_types=[SlotType.get(ring, "read"), cursor.type],
            properties={"pipeline": SymbolRefAttr(ring)},
        )


@irdl_op_definition
class ReleaseOp(IRDLOperation):
    """This reader is done with the slot. Consumes the slot."""

    PIPE: ClassVar = VarConstraint("PIPE", base(SymbolRefAttr))
    name = "async_copy.release"
    pipeline = prop_def(PIPE)
    slot = operand_def(ParamAttrConstraint(SlotType, (PIPE, eq(StringAttr("read")))))
    assembly_format = "$pipeline `,` $slot attr-dict"

    def __init__(self, slot: SSAValue):
        super().__init__(operands=[slot], properties={"pipeline": SymbolRefAttr(ring_name(slot))})


@irdl_op_definition
class StoreOp(IRDLOperation):
    """Outbound: copy a field of a slot to the box at `indices` of a view; elements beyond the view's bounds are dropped."""

    name = "async_copy.store"
    slot = operand_def(SlotType)
    field = prop_def(StringAttr)
    view = operand_def(ViewType)
    indices = var_operand_def(IndexType)
    assembly_format = "$slot `[` $field `]` `->` $view `[` $indices `]` attr-dict `:` type($slot) `->` type($view)"

    def __init__(self, slot: SSAValue, field: str, view: SSAValue, indices: Sequence[SSAValue]):
        super().__init__(operands=[slot, view, indices], properties={"field": StringAttr(field)})

    def verify_(self) -> None:
        check_copy(self, self.view, self.indices, self.slot, self.field.data)


@irdl_op_definition
class DrainOp(IRDLOperation):
    """Every ticket of the pipeline is done: nothing is in flight after it (outbound: the stores are complete)."""

    name = "async_copy.drain"
    pipeline = prop_def(SymbolRefAttr)
    assembly_format = "$pipeline attr-dict"

    def __init__(self, pipeline: str):
        super().__init__(properties={"pipeline": SymbolRefAttr(pipeline)})


# ---- events: what lower-transport leaves -----------------------------------------------------------------------------


@irdl_op_definition
class SlotOp(IRDLOperation):
    """The slot at a cursor and the next cursor: address and phase arithmetic, no waiting. `if %p` false: cursor unchanged."""

    PIPE: ClassVar = VarConstraint("PIPE", base(SymbolRefAttr))
    SIDE: ClassVar = VarConstraint("SIDE", base(StringAttr))
    name = "async_copy.slot"
    pipeline = prop_def(PIPE)
    cursor = operand_def(ParamAttrConstraint(CursorType, (PIPE, SIDE)))
    predicate = opt_operand_def(i1)
    slot = result_def(ParamAttrConstraint(SlotType, (PIPE, SIDE)))
    next = result_def(ParamAttrConstraint(CursorType, (PIPE, SIDE)))
    assembly_format = "$pipeline `[` $cursor `]` (`if` $predicate^)? attr-dict `:` type($cursor)"

    def __init__(self, cursor: SSAValue, predicate: SSAValue | None = None):
        type_ = cast(CursorType, cursor.type)
        super().__init__(
            operands=[cursor, predicate],
            result_types=[SlotType(type_.pipeline, type_.side), type_],
            properties={"pipeline": type_.pipeline},
        )


@irdl_op_definition
class CpAsyncOp(IRDLOperation):
    """Copy a box of a view into a field of a slot with `cp.async`, `bytes` at a time, shared out over the role's threads."""

    name = "async_copy.cp_async"
    view = operand_def(ViewType)
    indices = var_operand_def(IndexType)
    slot = operand_def(SlotType)
    field = prop_def(StringAttr)
    bytes = prop_def(IntegerAttr.constr(type=eq(i64)))
    assembly_format = (
        "$view `[` $indices `]` `->` $slot `[` $field `]` `bytes` $bytes attr-dict `:` type($view) `->` type($slot)"
    )

    def __init__(self, view: SSAValue, indices: Sequence[SSAValue], slot: SSAValue, field: str, bytes: int = 16):
        super().__init__(
            operands=[view, indices, slot],
            properties={"field": StringAttr(field), "bytes": IntegerAttr(bytes, i64)},
        )

    def verify_(self) -> None:
        if self.bytes.value.data not in (4, 8, 16):
            raise VerifyException(f"cp.async copies 4, 8 or 16 bytes, not {self.bytes.value.data}")
        check_copy(self, self.view, self.indices, self.slot, self.field.data)


@irdl_op_definition
class PlainCopyOp(IRDLOperation):
    """The same by `ld.global` and `st.shared`, `bytes` (2, 4, 8 or 16) at a time; complete for its thread when it returns."""

    name = "async_copy.plain_copy"
    view = operand_def(ViewType)
    indices = var_operand_def(IndexType)
    slot = operand_def(SlotType)
    field = prop_def(StringAttr)
    bytes = prop_def(IntegerAttr.constr(type=eq(i64)))
    assembly_format = (
        "$view `[` $indices `]` `->` $slot `[` $field `]` `bytes` $bytes attr-dict `:` type($view) `->` type($slot)"
    )

    def __init__(self, view: SSAValue, indices: Sequence[SSAValue], slot: SSAValue, field: str, bytes: int = 16):
        super().__init__(
            operands=[view, indices, slot],
            properties={"field": StringAttr(field), "bytes": IntegerAttr(bytes, i64)},
        )

    def verify_(self) -> None:
        if self.bytes.value.data not in (2, 4, 8, 16):
            raise VerifyException(f"a plain copy moves 2, 4, 8 or 16 bytes at a time, not {self.bytes.value.data}")
        check_copy(self, self.view, self.indices, self.slot, self.field.data)


@irdl_op_definition
class PlainStoreOp(IRDLOperation):
    """Outbound: a field of a slot to a box of a view by `ld.shared` and `st.global`, `bytes` at a time."""

    name = "async_copy.plain_store"
    slot = operand_def(SlotType)
    field = prop_def(StringAttr)
    view = operand_def(ViewType)
    indices = var_operand_def(IndexType)
    bytes = prop_def(IntegerAttr.constr(type=eq(i64)))
    assembly_format = (
        "$slot `[` $field `]` `->` $view `[` $indices `]` `bytes` $bytes attr-dict `:` type($slot) `->` type($view)"
    )

    def __init__(self, slot: SSAValue, field: str, view: SSAValue, indices: Sequence[SSAValue], bytes: int = 16):
        super().__init__(
            operands=[slot, view, indices],
            properties={"field": StringAttr(field), "bytes": IntegerAttr(bytes, i64)},
        )

    def verify_(self) -> None:
        if self.bytes.value.data not in (2, 4, 8, 16):
            raise VerifyException(f"a plain store moves 2, 4, 8 or 16 bytes at a time, not {self.bytes.value.data}")
        check_copy(self, self.view, self.indices, self.slot, self.field.data)


@irdl_op_definition
class CommitGroupOp(IRDLOperation):
    """`cp.async.commit_group`: the thread's cp.asyncs since the last one form a group (possibly empty)."""

    name = "async_copy.commit_group"
    assembly_format = "attr-dict"

    def __init__(self):
        super().__init__()


@irdl_op_definition
class WaitGroupOp(IRDLOperation):
    """`cp.async.wait_group N`: all but the thread's N youngest groups have landed."""

    name = "async_copy.wait_group"
    pending = prop_def(IntegerAttr.constr(type=eq(i64)))
    assembly_format = "$pending attr-dict"

    def __init__(self, pending: int):
        super().__init__(properties={"pending": IntegerAttr(pending, i64)})

    def verify_(self) -> None:
        if self.pending.value.data < 0:
            raise VerifyException(f"wait_group counts from 0, got {self.pending.value.data}")


@irdl_op_definition
class BarrierOp(IRDLOperation):
    """A barrier over the warps of the role that executes it (`bar.sync`): orders its memory accesses."""

    name = "async_copy.barrier"
    assembly_format = "attr-dict"

    def __init__(self):
        super().__init__()


# ---- events of mbarriers, TMA and roles --------------------------------------------------------------------------------


@irdl_op_definition
class WaitFullOp(IRDLOperation):
    """Wait until the full mbarrier of the cursor's slot has ended phase `cursor.phase` (`mbarrier.try_wait.parity` loop).

    Every warp that reads the slot afterwards executes it.
    """

    PIPE: ClassVar = VarConstraint("PIPE", base(SymbolRefAttr))
    name = "async_copy.wait_full"
    pipeline = prop_def(PIPE)
    cursor = operand_def(ParamAttrConstraint(CursorType, (PIPE, eq(StringAttr("read")))))
    assembly_format = "$pipeline `[` $cursor `]` attr-dict"

    def __init__(self, cursor: SSAValue):
        super().__init__(operands=[cursor], properties={"pipeline": SymbolRefAttr(ring_name(cursor))})


@irdl_op_definition
class WaitEmptyOp(IRDLOperation):
    """Wait until the empty mbarrier of the cursor's slot has ended phase `cursor.phase ^ 1` (at once in the first round).

    With `if %p` false nothing is waited for.
    """

    PIPE: ClassVar = VarConstraint("PIPE", base(SymbolRefAttr))
    name = "async_copy.wait_empty"
    pipeline = prop_def(PIPE)
    cursor = operand_def(ParamAttrConstraint(CursorType, (PIPE, eq(StringAttr("fill")))))
    predicate = opt_operand_def(i1)
    assembly_format = "$pipeline `[` $cursor `]` (`if` $predicate^)? attr-dict"

    def __init__(self, cursor: SSAValue, predicate: SSAValue | None = None):
        super().__init__(operands=[cursor, predicate], properties={"pipeline": SymbolRefAttr(ring_name(cursor))})


@irdl_op_definition
class ElectOp(IRDLOperation):
    """One lane of the role's first warp runs the body: a uniform branch on the warp number, then `elect.sync`.

    Values computed outside are visible inside; nothing comes out. The body holds TMA, expect_tx and bulk-group events only.
    """

    name = "async_copy.elect"
    body = region_def("single_block")
    traits = traits_def(NoTerminator())
    assembly_format = "attr-dict-with-keyword $body"

    def __init__(self, body: Region):
        super().__init__(regions=[body])

    def verify_(self) -> None:
        for op in self.body.block.ops:
            if not isinstance(op, ELECTED):
                raise VerifyException(f"'{op.name}' is not an event that one elected lane issues")


def check_elected(op: Operation) -> None:
    """An event of one lane stands in `async_copy.elect`."""
    parent = op.parent_op()
    if parent is not None and not isinstance(parent, ElectOp):
        raise VerifyException(f"'{op.name}' is issued by one lane: it stands in async_copy.elect")


@irdl_op_definition
class ExpectTxOp(IRDLOperation):
    """`mbarrier.arrive.expect_tx` on the slot's full mbarrier: one arrival, and `bytes` bytes must land before the phase ends."""

    PIPE: ClassVar = VarConstraint("PIPE", base(SymbolRefAttr))
    name = "async_copy.expect_tx"
    pipeline = prop_def(PIPE)
    slot = operand_def(ParamAttrConstraint(SlotType, (PIPE, eq(StringAttr("fill")))))
    bytes = prop_def(IntegerAttr.constr(type=eq(i64)))
    assembly_format = "$pipeline `,` $slot `bytes` $bytes attr-dict"

    def __init__(self, slot: SSAValue, bytes: int):
        super().__init__(
            operands=[slot], properties={"pipeline": SymbolRefAttr(ring_name(slot)), "bytes": IntegerAttr(bytes, i64)}
        )

    def verify_(self) -> None:
        check_elected(self)
        if not 0 < self.bytes.value.data < 1 << 20:
            raise VerifyException(f"a phase expects 1 to 2^20-1 bytes, got {self.bytes.value.data}")


@irdl_op_definition
class TmaLoadOp(IRDLOperation):
    """Copy a box of a view into a field of a slot by TMA; its bytes, zeros beyond the bounds too, count on the full mbarrier.

    The whole field: a lowering splits it into boxes of at most 256 elements a dimension and one swizzle span across.
    """

    name = "async_copy.tma_load"
    view = operand_def(ViewType)
    indices = var_operand_def(IndexType)
    slot = operand_def(SlotType)
    field = prop_def(StringAttr)
    assembly_format = "$view `[` $indices `]` `->` $slot `[` $field `]` attr-dict `:` type($view) `->` type($slot)"

    def __init__(self, view: SSAValue, indices: Sequence[SSAValue], slot: SSAValue, field: str):
        super().__init__(operands=[view, indices, slot], properties={"field": StringAttr(field)})

    def verify_(self) -> None:
        check_elected(self)
        check_copy(self, self.view, self.indices, self.slot, self.field.data)


@irdl_op_definition
class ArriveFullOp(IRDLOperation):
    """One arrival a warp on the slot's full mbarrier: the warp's plain copies are done. Stands after `warp_sync`."""

    PIPE: ClassVar = VarConstraint("PIPE", base(SymbolRefAttr))
    name = "async_copy.arrive_full"
    pipeline = prop_def(PIPE)
    slot = operand_def(ParamAttrConstraint(SlotType, (PIPE, eq(StringAttr("fill")))))
    assembly_format = "$pipeline `,` $slot attr-dict"

    def __init__(self, slot: SSAValue):
        super().__init__(operands=[slot], properties={"pipeline": SymbolRefAttr(ring_name(slot))})


@irdl_op_definition
class ArriveFullNoincOp(IRDLOperation):
    """`cp.async.mbarrier.arrive.noinc` on the slot's full mbarrier: one arrival a thread, once its cp.asyncs have landed."""

    PIPE: ClassVar = VarConstraint("PIPE", base(SymbolRefAttr))
    name = "async_copy.arrive_full_noinc"
    pipeline = prop_def(PIPE)
    slot = operand_def(ParamAttrConstraint(SlotType, (PIPE, eq(StringAttr("fill")))))
    assembly_format = "$pipeline `,` $slot attr-dict"

    def __init__(self, slot: SSAValue):
        super().__init__(operands=[slot], properties={"pipeline": SymbolRefAttr(ring_name(slot))})


@irdl_op_definition
class ArriveEmptyOp(IRDLOperation):
    """One arrival a warp on the slot's empty mbarrier: the warp has read the slot.

    An arrive does not wait for earlier ldmatrix: it stands after `warp_sync`, and after `fence_proxy_async` before that where
    TMA refills the slot. No other event or read may stand between.
    """

    PIPE: ClassVar = VarConstraint("PIPE", base(SymbolRefAttr))
    name = "async_copy.arrive_empty"
    pipeline = prop_def(PIPE)
    slot = operand_def(ParamAttrConstraint(SlotType, (PIPE, eq(StringAttr("read")))))
    assembly_format = "$pipeline `,` $slot attr-dict"

    def __init__(self, slot: SSAValue):
        super().__init__(operands=[slot], properties={"pipeline": SymbolRefAttr(ring_name(slot))})


@irdl_op_definition
class FenceProxyAsyncOp(IRDLOperation):
    """`fence.proxy.async.shared::cta`: this thread's shared-memory accesses come before later TMA accesses."""

    name = "async_copy.fence_proxy_async"
    assembly_format = "attr-dict"

    def __init__(self):
        super().__init__()


@irdl_op_definition
class ClusterArriveOp(IRDLOperation):
    """`barrier.cluster.arrive`: what this warp has written, other CTAs of the cluster may read; what it read, overwrite."""

    name = "async_copy.cluster_arrive"
    assembly_format = "attr-dict"

    def __init__(self):
        super().__init__()


@irdl_op_definition
class ClusterWaitOp(IRDLOperation):
    """`barrier.cluster.wait`: all warps of the cluster that have not ended have arrived."""

    name = "async_copy.cluster_wait"
    assembly_format = "attr-dict"

    def __init__(self):
        super().__init__()


@irdl_op_definition
class WarpSyncOp(IRDLOperation):
    """`bar.warp.sync`: the lanes of each warp meet."""

    name = "async_copy.warp_sync"
    assembly_format = "attr-dict"

    def __init__(self):
        super().__init__()


@irdl_op_definition
class TmaStoreOp(IRDLOperation):
    """Outbound: a field of a slot to a box of a view by TMA; elements beyond the view's bounds are dropped."""

    name = "async_copy.tma_store"
    slot = operand_def(SlotType)
    field = prop_def(StringAttr)
    view = operand_def(ViewType)
    indices = var_operand_def(IndexType)
    assembly_format = "$slot `[` $field `]` `->` $view `[` $indices `]` attr-dict `:` type($slot) `->` type($view)"

    def __init__(self, slot: SSAValue, field: str, view: SSAValue, indices: Sequence[SSAValue]):
        super().__init__(operands=[slot, view, indices], properties={"field": StringAttr(field)})

    def verify_(self) -> None:
        check_elected(self)
        check_copy(self, self.view, self.indices, self.slot, self.field.data)


@irdl_op_definition
class BulkCommitOp(IRDLOperation):
    """`cp.async.bulk.commit_group`: the lane's TMA stores since the last one form a bulk group."""

    name = "async_copy.bulk_commit"
    assembly_format = "attr-dict"

    def __init__(self):
        super().__init__()

    def verify_(self) -> None:
        check_elected(self)


@irdl_op_definition
class BulkWaitOp(IRDLOperation):
    """`cp.async.bulk.wait_group(.read) N`: all but the lane's N youngest bulk groups are done (`read`: have read their slots)."""

    name = "async_copy.bulk_wait"
    pending = prop_def(IntegerAttr.constr(type=eq(i64)))
    read = opt_prop_def(UnitAttr)
    assembly_format = "$pending (`read` $read^)? attr-dict"

    def __init__(self, pending: int, read: bool = False):
        super().__init__(properties={"pending": IntegerAttr(pending, i64), "read": UnitAttr() if read else None})

    def verify_(self) -> None:
        check_elected(self)
        if self.pending.value.data < 0:
            raise VerifyException(f"bulk_wait counts from 0, got {self.pending.value.data}")


ELECTED = (ExpectTxOp, TmaLoadOp, TmaStoreOp, BulkCommitOp, BulkWaitOp)


AsyncCopy = Dialect(
    "async_copy",
    [
        PipelineOp,
        ProducerOp,
        ConsumerOp,
        RoleOp,
        BeginFillOp,
        BeginReadOp,
        AcquireOp,
        CopyOp,
        CommitOp,
        WaitOp,
        ReleaseOp,
        StoreOp,
        DrainOp,
        SlotOp,
        CpAsyncOp,
        PlainCopyOp,
        PlainStoreOp,
        CommitGroupOp,
        WaitGroupOp,
        BarrierOp,
        WaitFullOp,
        WaitEmptyOp,
        ElectOp,
        ExpectTxOp,
        TmaLoadOp,
        ArriveFullOp,
        ArriveFullNoincOp,
        ArriveEmptyOp,
        FenceProxyAsyncOp,
        WarpSyncOp,
        ClusterArriveOp,
        ClusterWaitOp,
        TmaStoreOp,
        BulkCommitOp,
        BulkWaitOp,
    ],
    [CursorType, SlotType],
)
