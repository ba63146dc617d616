"""Level 3, movement: the events that `lower-transport` leaves, which a lowering prints one to one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, cast

from xdsl.dialects.builtin import (
    IntegerAttr,
    StringAttr,
    SymbolRefAttr,
    UnitAttr,
    i1,
    i64,
)
from xdsl.ir import Attribute, Operation, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    ParamAttrConstraint,
    VarConstraint,
    base,
    eq,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
)
from xdsl.traits import NoTerminator
from xdsl.utils.exceptions import VerifyException

from emmy.dialects.async_copy_rings import (
    FILL_CURSOR,
    FILL_SLOT,
    PIPE,
    READ_CURSOR,
    READ_SLOT,
    CursorType,
    FromSlot,
    IntoSlot,
    MulticastSlot,
    OfSlot,
    SlotType,
    ring_name,
)


@irdl_op_definition
class SlotOp(IRDLOperation):
    """The slot at a cursor and the next cursor: address and phase arithmetic, no waiting. `if %p` false: cursor unchanged."""

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


class _CopyByThreads(IntoSlot):
    """A copy that threads share out, `bytes` at a time."""

    bytes = prop_def(IntegerAttr.constr(type=eq(i64)))
    assembly_format = (
        "$view `[` $indices `]` `->` $slot `[` $field `]` `bytes` $bytes attr-dict `:` type($view) `->` type($slot)"
    )

    def __init__(self, view: SSAValue, indices: Sequence[SSAValue], slot: SSAValue, field: str, bytes: int = 16):
        super().__init__(view, indices, slot, field)
        self.properties["bytes"] = IntegerAttr(bytes, i64)


@irdl_op_definition
class CpAsyncOp(_CopyByThreads):
    """Copy a box of a view into a field of a slot with `cp.async`, `bytes` at a time, shared out over the role's threads.

    `evict_first`: with the cache policy `L2::evict_first`, which 4, 8 and 16 bytes take alike (PTX ISA, `cp.async`: sm_80, 7.4).
    """

    name = "async_copy.cp_async"
    evict_first = opt_prop_def(UnitAttr)
    assembly_format = (
        "$view `[` $indices `]` `->` $slot `[` $field `]` `bytes` $bytes (`evict_first` $evict_first^)? attr-dict "
        "`:` type($view) `->` type($slot)"
    )

    def __init__(
        self,
        view: SSAValue,
        indices: Sequence[SSAValue],
        slot: SSAValue,
        field: str,
        bytes: int = 16,
        evict_first: bool = False,
    ):
        super().__init__(view, indices, slot, field, bytes)
        if evict_first:
            self.properties["evict_first"] = UnitAttr()

    def verify_(self) -> None:
        if self.bytes.value.data not in (4, 8, 16):
            raise VerifyException(f"cp.async copies 4, 8 or 16 bytes, not {self.bytes.value.data}")
        super().verify_()


@irdl_op_definition
class PlainCopyOp(_CopyByThreads):
    """The same by `ld.global` and `st.shared`, `bytes` (1, 2, 4, 8 or 16) at a time; complete for its thread when it returns."""

    name = "async_copy.plain_copy"

    def verify_(self) -> None:
        if self.bytes.value.data not in (1, 2, 4, 8, 16):
            raise VerifyException(f"a plain copy moves 1, 2, 4, 8 or 16 bytes at a time, not {self.bytes.value.data}")
        super().verify_()


@irdl_op_definition
class PlainStoreOp(FromSlot):
    """Outbound: a field of a slot to a box of a view by `ld.shared` and `st.global`, `bytes` at a time."""

    name = "async_copy.plain_store"
    bytes = prop_def(IntegerAttr.constr(type=eq(i64)))
    assembly_format = (
        "$slot `[` $field `]` `->` $view `[` $indices `]` `bytes` $bytes attr-dict `:` type($slot) `->` type($view)"
    )

    def __init__(self, slot: SSAValue, field: str, view: SSAValue, indices: Sequence[SSAValue], bytes: int = 16):
        super().__init__(slot, field, view, indices)
        self.properties["bytes"] = IntegerAttr(bytes, i64)

    def verify_(self) -> None:
        if self.bytes.value.data not in (2, 4, 8, 16):
            raise VerifyException(f"a plain store moves 2, 4, 8 or 16 bytes at a time, not {self.bytes.value.data}")
        super().verify_()


@irdl_op_definition
class CommitGroupOp(IRDLOperation):
    """`cp.async.commit_group`: the thread's cp.asyncs since the last one form a group (possibly empty)."""

    name = "async_copy.commit_group"
    assembly_format = "attr-dict"


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
    """A barrier over the warps of the role that executes it (`bar.sync`): orders its memory accesses.

    With `across N` it is over N warps that follow each other, those of a row of a grid of warps [M, N]: others do not wait.
    """

    name = "async_copy.barrier"
    across = opt_prop_def(IntegerAttr.constr(type=eq(i64)))
    assembly_format = "(`across` $across^)? attr-dict"

    def __init__(self, across: int = 0):
        super().__init__(properties={"across": IntegerAttr(across, i64) if across else None})

    def verify_(self) -> None:
        if self.across is not None and self.across.value.data < 1:
            raise VerifyException(f"a barrier is over 1 or more warps beside each other, got {self.across.value.data}")


@irdl_op_definition
class WaitFullOp(IRDLOperation):
    """Wait until the full mbarrier of the cursor's slot has ended phase `cursor.phase` (`mbarrier.try_wait.parity` loop).

    Every warp that reads the slot afterwards executes it.
    """

    name = "async_copy.wait_full"
    pipeline = prop_def(PIPE)
    cursor = operand_def(READ_CURSOR)
    assembly_format = "$pipeline `[` $cursor `]` attr-dict"

    def __init__(self, cursor: SSAValue):
        super().__init__(operands=[cursor], properties={"pipeline": SymbolRefAttr(ring_name(cursor))})


@irdl_op_definition
class WaitEmptyOp(IRDLOperation):
    """Wait until the empty mbarrier of the cursor's slot has ended phase `cursor.phase ^ 1` (at once in the first round).

    With `if %p` false nothing is waited for.
    """

    name = "async_copy.wait_empty"
    pipeline = prop_def(PIPE)
    cursor = operand_def(FILL_CURSOR)
    predicate = opt_operand_def(i1)
    assembly_format = "$pipeline `[` $cursor `]` (`if` $predicate^)? attr-dict"

    def __init__(self, cursor: SSAValue, predicate: SSAValue | None = None):
        super().__init__(operands=[cursor, predicate], properties={"pipeline": SymbolRefAttr(ring_name(cursor))})


@irdl_op_definition
class WaitReleasedOp(IRDLOperation):
    """Wait until every slot that was filled before the cursor has been released: on the empty mbarrier of each slot in turn.

    A role that fills slots of other CTAs ends with it: they have arrived at the mbarriers of this one for the last time.
    """

    name = "async_copy.wait_released"
    pipeline = prop_def(PIPE)
    cursor = operand_def(FILL_CURSOR)
    assembly_format = "$pipeline `[` $cursor `]` attr-dict"

    def __init__(self, cursor: SSAValue):
        super().__init__(operands=[cursor], properties={"pipeline": SymbolRefAttr(ring_name(cursor))})


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

    name = "async_copy.expect_tx"
    pipeline = prop_def(PIPE)
    slot = operand_def(FILL_SLOT)
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
class TmaLoadOp(MulticastSlot):
    """Copy a box of a view into a field of a slot by TMA; its bytes, zeros beyond the bounds too, count on the full mbarrier.

    The whole field: a lowering splits it into boxes of at most 256 elements a dimension and one swizzle span across. `shared`:
    this CTA's part of the rows, multicast into that slot of all CTAs of the cluster; counted on the full mbarrier of each.
    `evict_first`: with the cache policy `L2::evict_first`.
    """

    name = "async_copy.tma_load"

    def verify_(self) -> None:
        check_elected(self)
        super().verify_()


@irdl_op_definition
class ArriveFullOp(OfSlot):
    """One arrival a warp on the slot's full mbarrier: the warp's plain copies are done. Stands after `warp_sync`."""

    name = "async_copy.arrive_full"
    slot = operand_def(FILL_SLOT)


@irdl_op_definition
class ArriveFullNoincOp(OfSlot):
    """`cp.async.mbarrier.arrive.noinc` on the slot's full mbarrier: one arrival a thread, once its cp.asyncs have landed."""

    name = "async_copy.arrive_full_noinc"
    slot = operand_def(FILL_SLOT)


@irdl_op_definition
class ArriveEmptyOp(OfSlot):
    """One arrival a warp on the slot's empty mbarrier (of a pipeline of a cluster: on that of every CTA): it has read the slot.

    An arrive does not wait for earlier ldmatrix: it stands after `warp_sync`, and after `fence_proxy_async` before that where
    TMA refills the slot. No other event or read may stand between.
    """

    name = "async_copy.arrive_empty"
    slot = operand_def(READ_SLOT)


@irdl_op_definition
class FenceProxyAsyncOp(IRDLOperation):
    """`fence.proxy.async.shared::cta`: this thread's shared-memory accesses come before later TMA accesses."""

    name = "async_copy.fence_proxy_async"
    assembly_format = "attr-dict"


@irdl_op_definition
class ClusterWaitOp(IRDLOperation):
    """`barrier.cluster.wait`: all CTAs of the cluster have begun, and their mbarriers are there to be arrived at.

    Each warp has arrived once its CTA's mbarriers were initialised.
    """

    name = "async_copy.cluster_wait"
    assembly_format = "attr-dict"


@irdl_op_definition
class AwaitTurnOp(IRDLOperation):
    """Wait for the turn of this warp's half of the role (`bar.sync`): until the other half has passed it once more.

    The warps of a role, an even number, are two halves in a row; each has a barrier of its own. `consumer N`: the two that take
    turns are whole roles, or consumers, and this one is number N of 0 and 1.
    """

    name = "async_copy.await_turn"
    consumer = opt_prop_def(IntegerAttr.constr(type=eq(i64)))
    assembly_format = "(`consumer` $consumer^)? attr-dict"

    def __init__(self, consumer: int | None = None):
        super().__init__(properties=_turn_of(consumer))

    def verify_(self) -> None:
        _check_turn(self.consumer)


@irdl_op_definition
class PassTurnOp(IRDLOperation):
    """Pass the turn to the other half of the role (`bar.arrive`), without waiting. All warps of a half do.

    `consumer N`: to the other role, number N of 0 and 1. With `if %p` false nothing is passed.
    """

    name = "async_copy.pass_turn"
    predicate = opt_operand_def(i1)
    consumer = opt_prop_def(IntegerAttr.constr(type=eq(i64)))
    assembly_format = "(`consumer` $consumer^)? (`if` $predicate^)? attr-dict"

    def __init__(self, consumer: int | None = None, predicate: SSAValue | None = None):
        super().__init__(operands=[predicate], properties=_turn_of(consumer))

    def verify_(self) -> None:
        _check_turn(self.consumer)


def _turn_of(consumer: int | None) -> dict[str, Attribute | None]:
    return {"consumer": None if consumer is None else IntegerAttr(consumer, i64)}


def _check_turn(consumer: IntegerAttr | None) -> None:
    """Two consumers take turns."""
    if consumer is not None and consumer.value.data not in (0, 1):
        raise VerifyException(f"turns are of consumer 0 and 1, got {consumer.value.data}")


@irdl_op_definition
class WarpSyncOp(IRDLOperation):
    """`bar.warp.sync`: the lanes of each warp meet."""

    name = "async_copy.warp_sync"
    assembly_format = "attr-dict"


@irdl_op_definition
class TmaStoreOp(FromSlot):
    """Outbound: a field of a slot to a box of a view by TMA; elements beyond the view's bounds are dropped."""

    name = "async_copy.tma_store"

    def verify_(self) -> None:
        check_elected(self)
        super().verify_()


@irdl_op_definition
class BulkCommitOp(IRDLOperation):
    """`cp.async.bulk.commit_group`: the lane's TMA stores since the last one form a bulk group."""

    name = "async_copy.bulk_commit"
    assembly_format = "attr-dict"

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
