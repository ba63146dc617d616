"""Level 3, movement: the protocol of a ring, whatever moves its tiles: acquire, copy, commit; wait, release; store, drain."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import (
    IndexType,
    SymbolRefAttr,
    UnitAttr,
    i1,
)
from xdsl.ir import SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
)

from emmy.dialects.async_copy_rings import (
    FILL_CURSOR,
    FILL_SLOT,
    PIPE,
    READ_CURSOR,
    READ_SLOT,
    CursorType,
    FromSlot,
    MulticastSlot,
    OfSlot,
    SlotType,
    ring_name,
)


class _BeginOp(IRDLOperation):
    """The first cursor of a side; the subclass says of which."""

    SIDE: ClassVar[str]
    pipeline = prop_def(PIPE)
    assembly_format = "$pipeline attr-dict"

    def __init__(self, pipeline: str):
        super().__init__(
            result_types=[CursorType.get(pipeline, self.SIDE)], properties={"pipeline": SymbolRefAttr(pipeline)}
        )


@irdl_op_definition
class BeginFillOp(_BeginOp):
    """The first cursor of the filling side. Not pure: two halves must not share one."""

    SIDE: ClassVar[str] = "fill"
    name = "async_copy.begin_fill"
    cursor = result_def(FILL_CURSOR)


@irdl_op_definition
class BeginReadOp(_BeginOp):
    """The first cursor of the reading side."""

    SIDE: ClassVar[str] = "read"
    name = "async_copy.begin_read"
    cursor = result_def(READ_CURSOR)


@irdl_op_definition
class AcquireOp(IRDLOperation):
    """Wait until the slot at the cursor is free; it is being filled after that. With `if %p` false: no slot, same cursor."""

    name = "async_copy.acquire"
    pipeline = prop_def(PIPE)
    cursor = operand_def(FILL_CURSOR)
    predicate = opt_operand_def(i1)
    slot = result_def(FILL_SLOT)
    next = result_def(FILL_CURSOR)
    assembly_format = "$pipeline `[` $cursor `]` (`if` $predicate^)? attr-dict"

    def __init__(self, cursor: SSAValue, predicate: SSAValue | None = None):
        ring = ring_name(cursor)
        super().__init__(
            operands=[cursor, predicate],
            result_types=[SlotType.get(ring, "fill"), cursor.type],
            properties={"pipeline": SymbolRefAttr(ring)},
        )


@irdl_op_definition
class CopyOp(MulticastSlot):
    """Copy the box at element offsets `indices` of a view into a field of a slot being filled; beyond the bounds: zeros.

    `shared`: every CTA of the cluster copies this box at the same time, a part of it, into that slot of all of them.
    `evict_first`: the L2 cache gives up the lines of the view before others, for nobody reads them again. Values are the same.
    """

    name = "async_copy.copy"


@irdl_op_definition
class CommitOp(IRDLOperation):
    """All copies into the slot have been issued: the slot is full when they have landed. Consumes the slot.

    `joined`: one commit group with the next commit. With `if %p` false: an empty commit.
    """

    name = "async_copy.commit"
    pipeline = prop_def(PIPE)
    slot = operand_def(FILL_SLOT)
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

    name = "async_copy.wait"
    pipeline = prop_def(PIPE)
    cursor = operand_def(READ_CURSOR)
    slot = result_def(READ_SLOT)
    next = result_def(READ_CURSOR)
    assembly_format = "$pipeline `[` $cursor `]` attr-dict"

    def __init__(self, cursor: SSAValue):
        ring = ring_name(cursor)
        super().__init__(
            operands=[cursor],
            result_types=[SlotType.get(ring, "read"), cursor.type],
            properties={"pipeline": SymbolRefAttr(ring)},
        )


@irdl_op_definition
class SkipOp(IRDLOperation):
    """The cursor after the next `count` tickets, which another consumer reads; arithmetic, no waiting.

    Where two consumers take the tickets of a pipeline in turn, each passes over those of the other. A wait tells two phases of a
    slot apart and no more, so the ticket before, in the same slot, must have been waited for by then: turns see to that.
    """

    name = "async_copy.skip"
    pipeline = prop_def(PIPE)
    cursor = operand_def(READ_CURSOR)
    count = operand_def(IndexType)
    next = result_def(READ_CURSOR)
    assembly_format = "$pipeline `[` $cursor `]` `by` $count attr-dict"

    def __init__(self, cursor: SSAValue, count: SSAValue):
        super().__init__(
            operands=[cursor, count],
            result_types=[cursor.type],
            properties={"pipeline": SymbolRefAttr(ring_name(cursor))},
        )


@irdl_op_definition
class ReleaseOp(OfSlot):
    """This reader is done with the slot. Consumes the slot."""

    name = "async_copy.release"
    slot = operand_def(READ_SLOT)


@irdl_op_definition
class StoreOp(FromSlot):
    """Outbound: copy a field of a slot to the box at `indices` of a view; elements beyond the view's bounds are dropped."""

    name = "async_copy.store"


@irdl_op_definition
class DrainOp(IRDLOperation):
    """Every ticket of the pipeline is done: nothing is in flight after it (outbound: the stores are complete)."""

    name = "async_copy.drain"
    pipeline = prop_def(SymbolRefAttr)
    assembly_format = "$pipeline attr-dict"

    def __init__(self, pipeline: str):
        super().__init__(properties={"pipeline": SymbolRefAttr(pipeline)})
