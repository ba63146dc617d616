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

from xdsl.ir import Dialect

from emmy.dialects.async_copy_events import (
    ArriveEmptyOp,
    ArriveFullNoincOp,
    ArriveFullOp,
    AwaitTurnOp,
    BarrierOp,
    BulkCommitOp,
    BulkWaitOp,
    ClusterWaitOp,
    CommitGroupOp,
    CpAsyncOp,
    ElectOp,
    ExpectTxOp,
    FenceProxyAsyncOp,
    PassTurnOp,
    PlainCopyOp,
    PlainStoreOp,
    SlotOp,
    TmaLoadOp,
    TmaStoreOp,
    WaitEmptyOp,
    WaitFullOp,
    WaitGroupOp,
    WaitReleasedOp,
    WarpSyncOp,
)
from emmy.dialects.async_copy_protocol import (
    AcquireOp,
    BeginFillOp,
    BeginReadOp,
    CommitOp,
    CopyOp,
    DrainOp,
    ReleaseOp,
    SkipOp,
    StoreOp,
    WaitOp,
)
from emmy.dialects.async_copy_rings import ConsumerOp, CursorType, PipelineOp, ProducerOp, RoleOp, SlotType

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
        SkipOp,
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
        AwaitTurnOp,
        PassTurnOp,
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
        ClusterWaitOp,
        WaitReleasedOp,
        TmaStoreOp,
        BulkCommitOp,
        BulkWaitOp,
    ],
    [CursorType, SlotType],
)
