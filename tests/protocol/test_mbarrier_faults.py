"""What the level-3 interpreter says of faults with mbarriers, TMA and roles: the reason, and the place in the text."""

from __future__ import annotations

from collections.abc import Callable

import protocol_support as support
import pytest
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.ir import Operation

from emmy.dialects import async_copy as ac
from emmy.interpreters.level3 import Level3Error


def lowered(kind: str, mode: str, text: str = "gemm", stages: int = 2) -> ModuleOp:
    return support.forms(text, (("ab", stages),), "eager", kind, mode=mode).lowered.clone()


def find(module: ModuleOp, kind: type[Operation], rank: int = 0) -> Operation:
    return [op for op in module.walk() if isinstance(op, kind)][rank]


def drop(kind: type[Operation], rank: int = 0) -> Callable[[ModuleOp], None]:
    def change(module: ModuleOp) -> None:
        op = find(module, kind, rank)
        op.detach()
        op.erase()

    return change


def count(name: str, value: int) -> Callable[[ModuleOp], None]:
    def change(module: ModuleOp) -> None:
        find(module, ac.PipelineOp).properties[name] = IntegerAttr(value, i64)

    return change


def fence_last(module: ModuleOp) -> None:
    """`warp_sync; fence_proxy_async` where the lowering has put it the other way round."""
    sync, fence = find(module, ac.WarpSyncOp), find(module, ac.FenceProxyAsyncOp)
    fence.detach()
    sync.parent_block().insert_op_after(fence, sync)


FAULTS = {
    "no bytes are expected": (
        ("tma", "unified"),
        drop(ac.ExpectTxOp),
        r"deadlock: main warp 0: wait_full @ab: slot 0 has ended 0 phases, 1 of 1 arrivals and -2048 bytes are missing",
    ),
    "no data come": (
        ("tma", "unified"),
        drop(ac.TmaLoadOp),
        r"deadlock: .*wait_full @ab: slot 0 has ended 0 phases, 0 of 1 arrivals and 1024 bytes are missing, ticket 0 waits",
    ),
    "no wait for data": (("tma", "unified"), drop(ac.WaitFullOp), r"reads ticket 0 of @ab and finds poison"),
    "no wait for the slot": (
        ("tma", "specialized"),
        drop(ac.WaitEmptyOp),
        r"producer warp 2: more arrivals on the full mbarrier of @ab than it counts in a phase",
    ),
    "no wait for the slot, copies by threads": (
        ("cp_async", "specialized"),
        drop(ac.WaitEmptyOp),
        r"producer warp .: overwrites a slot of @ab (while a copy into it is in flight|with no barrier since)",
    ),
    "nobody releases": (
        ("cp_async", "specialized"),
        drop(ac.ArriveEmptyOp),
        r"deadlock: .*producer warp .: wait_empty @ab: slot 0 has ended 0 phases, 2 of 2 arrivals and 0 bytes are missing",
    ),
    "an arrival that overtakes reads": (
        ("tma", "specialized"),
        drop(ac.FenceProxyAsyncOp),
        r"arrives on the empty mbarrier of @ab, which TMA refills, without fence_proxy_async; warp_sync",
    ),
    "a fence that comes too late": (
        ("tma", "specialized"),
        fence_last,
        r"arrives on the empty mbarrier of @ab, which TMA refills, without fence_proxy_async; warp_sync",
    ),
    "lanes that have not met": (
        ("cp_async", "specialized"),
        drop(ac.WarpSyncOp),
        r"arrives on the empty mbarrier of @ab without warp_sync since it read the slot",
    ),
    "lanes that have not met after copies": (
        ("plain", "specialized"),
        drop(ac.WarpSyncOp, 1),
        r"arrives on the full mbarrier of @ab without warp_sync since it filled the slot",
    ),
    "a result that is not fenced": (
        ("tma", "unified"),
        drop(ac.FenceProxyAsyncOp),
        r"stores @out by TMA, and who wrote the slot has made no fence_proxy_async since",
    ),
    "a store that nobody waits for": (("tma", "unified"), drop(ac.BulkWaitOp), r"ends with TMA stores in flight"),
    "a store in no bulk group": (("tma", "unified"), drop(ac.BulkCommitOp), r"ends with TMA stores in flight"),
    "too few arrivals are counted": (
        ("cp_async", "specialized"),
        count("full_count", 96),
        r"more arrivals on the full mbarrier of @ab than it counts|no barrier since another warp's copy|finds poison|deadlock",
    ),
    "too many arrivals are counted": (
        ("plain", "specialized"),
        count("full_count", 5),
        r"deadlock: .*wait_full @ab: slot 0 has ended 0 phases, 1 of 5 arrivals and 0 bytes are missing",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("landing", ["late", "random"])
def test_the_reason_is_said(name: str, landing: str) -> None:
    (kind, mode), change, message = FAULTS[name]
    module = lowered(kind, mode)
    change(module)
    with pytest.raises(Level3Error, match=message) as caught:
        support.run(module, support.gemm_inputs(32, 32, 96), landing, "fixed")
    if "deadlock" not in message and "ends with" not in message:
        assert caught.value.location is not None


def test_slots_without_mbarriers() -> None:
    module = lowered("tma", "specialized")
    del find(module, ac.PipelineOp).properties["empty_count"]
    with pytest.raises(Level3Error, match="pipeline @ab has no empty mbarriers: it says no empty_count"):
        support.run(module, support.gemm_inputs(32, 32, 96), "late", "fixed")


@pytest.mark.parametrize("order", ["fixed", "reversed", "random"])
def test_rings_that_lie_over_each_other(order: str) -> None:
    """In a persistent kernel the producer fills @ab for the next tile while @out leaves: they may not share bytes."""
    module = lowered("tma", "specialized", "gemm_persistent")
    inputs = support.gemm_inputs(150, 40, 96)
    spans = {"ab": (0, 2048), "out": (4096, 2048)}
    for op in [op for op in module.walk() if isinstance(op, ac.PipelineOp)]:
        base, size = spans[op.sym_name.data]
        op.base, op.slot_bytes = IntegerAttr(base, i64), IntegerAttr(size, i64)
    assert (support.run(module, inputs, "late", order) == support.gemm(inputs)).all()
    find(module, ac.PipelineOp, 1).base = IntegerAttr(0, i64)
    with pytest.raises(Level3Error, match=r"fills @(ab|out).*, which (may lie|lies) over @(ab|out)"):
        support.run(module, inputs, "late", order)
