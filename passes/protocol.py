"""What the passes over pipelines share: which ring an op belongs to, what consumes a slot, where an op stands in the text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from xdsl.ir import Operation, SSAValue

from emmy.dialects import async_copy as ac
from emmy.dialects.tile import KernelOp
from emmy.errors import EmmyError
from emmy.locations import location_of

Step = ac.AcquireOp | ac.CommitOp | ac.WaitOp | ac.ReleaseOp
"""The four ops that move a ticket of a ring."""

PROTOCOL_OPS = (ac.AcquireOp, ac.CopyOp, ac.CommitOp, ac.WaitOp, ac.ReleaseOp, ac.StoreOp, ac.DrainOp)
"""Ops with a meaning in tickets; `lower-transport` leaves none of them."""

MbarrierEvent = (
    ac.WaitFullOp
    | ac.WaitEmptyOp
    | ac.WaitReleasedOp
    | ac.ExpectTxOp
    | ac.ArriveFullOp
    | ac.ArriveFullNoincOp
    | ac.ArriveEmptyOp
)
"""Events on the mbarriers of a ring's slots."""

EVENT_OPS = (
    ac.SlotOp,
    ac.CpAsyncOp,
    ac.PlainCopyOp,
    ac.PlainStoreOp,
    ac.CommitGroupOp,
    ac.WaitGroupOp,
    ac.BarrierOp,
    ac.ElectOp,
    ac.TmaLoadOp,
    ac.TmaStoreOp,
    ac.BulkCommitOp,
    ac.BulkWaitOp,
    ac.FenceProxyAsyncOp,
    ac.WarpSyncOp,
    ac.ClusterWaitOp,
    ac.WaitReleasedOp,
    ac.WaitFullOp,
    ac.WaitEmptyOp,
    ac.ExpectTxOp,
    ac.ArriveFullOp,
    ac.ArriveFullNoincOp,
    ac.ArriveEmptyOp,
)
"""Ops that `lower-transport` makes."""


def fail(op: Operation, message: str) -> NoReturn:
    """Raise the EmmyError of one sentence at an op's place."""
    raise EmmyError(message, location_of(op))


def pipelines_of(kernel: KernelOp) -> dict[str, ac.PipelineOp]:
    """The pipelines of a kernel by name, in the order of the text."""
    return {op.sym_name.data: op for op in kernel.block.ops if isinstance(op, ac.PipelineOp)}


def is_inbound(pipeline: ac.PipelineOp) -> bool:
    """Does the producer fill a pipeline, and the consumer read it?"""
    return pipeline.outbound is None and pipeline.internal is None


def ring_of(op: Operation) -> str | None:
    """The pipeline that a step, begin, skip, drain, slot or mbarrier op names; None for any other op."""
    if isinstance(op, Step | ac.BeginFillOp | ac.BeginReadOp | ac.SkipOp | ac.DrainOp | ac.SlotOp | MbarrierEvent):
        return op.pipeline.root_reference.data
    return None


def steps(op: Operation) -> Iterator[Step]:
    """All steps in an op's regions (itself included), in the order of the text."""
    for nested in op.walk():
        if isinstance(nested, Step):
            yield nested


def takes_turns(op: Operation) -> bool:
    """Is an op a consumer or role that takes turns with another one?"""
    turns = (inner for inner in op.walk() if isinstance(inner, ac.AwaitTurnOp | ac.PassTurnOp))
    return any(turn.consumer is not None for turn in turns)


def is_cursor(value: SSAValue) -> bool:
    """Is the value a cursor of some pipeline?"""
    return isinstance(value.type, ac.CursorType)


def equivalent(one: SSAValue, other: SSAValue) -> bool:
    """Do two values hold the same number, as far as their pure defining ops show?"""
    if one is other:
        return True
    a, b = one.owner, other.owner
    if not isinstance(a, Operation) or not isinstance(b, Operation) or a.name != b.name or a.regions or b.regions:
        return False
    if a.name.startswith("async_copy.") or a.properties != b.properties or len(a.operands) != len(b.operands):
        return False
    if one.type != other.type or list(a.results).index(one) != list(b.results).index(other):  # pyright: ignore
        return False
    return all(equivalent(x, y) for x, y in zip(a.operands, b.operands, strict=True))
