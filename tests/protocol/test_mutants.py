"""Seeded faults: every event or ticket op that is dropped, weakened or moved is noticed by the level-3 interpreter.

What survives is listed with the reason why it is no fault; anything else that survives, and a listed one that does not, fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import protocol_support as support
import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.ir import Operation

from emmy.dialects import async_copy as ac
from emmy.dialects import mma
from emmy.errors import EmmyError
from emmy.interpreters.level3 import LANDINGS, ORDERS

FENCES = (ac.BarrierOp, ac.WaitGroupOp, ac.WaitFullOp, ac.WaitEmptyOp)
ARRIVALS = (ac.ArriveFullOp, ac.ArriveFullNoincOp, ac.ArriveEmptyOp)
ELECTED = (ac.ExpectTxOp, ac.TmaLoadOp, ac.TmaStoreOp, ac.BulkCommitOp, ac.BulkWaitOp)
ORDERING = (ac.FenceProxyAsyncOp, ac.WarpSyncOp)
COPIES = (ac.CommitGroupOp, ac.CpAsyncOp, ac.PlainCopyOp, ac.PlainStoreOp, mma.StoreOp)
DROPPED = (*FENCES, *ARRIVALS, *ELECTED, *ORDERING, *COPIES)
MOVED = (
    ac.BarrierOp,
    ac.CommitGroupOp,
    ac.PlainStoreOp,
    mma.StoreOp,
    mma.LoadOp,
    scf.IfOp,
    ac.ElectOp,
    *ARRIVALS,
    ac.FenceProxyAsyncOp,
)
TICKETS = (ac.CopyOp, ac.CommitOp, ac.ReleaseOp, ac.StoreOp)
Mutant = tuple[str, ModuleOp]


def pick(module: ModuleOp, number: int) -> Operation:
    return next(op for n, op in enumerate(module.walk()) if n == number)


def copies(module: ModuleOp, kinds: tuple[type[Operation], ...]) -> Iterator[tuple[str, ModuleOp, Operation]]:
    """For each op of those kinds: its name with its rank among its kind, a copy of the module, and the op in the copy."""
    ranks: dict[str, int] = {}
    for number, op in enumerate(module.walk()):
        if isinstance(op, kinds):
            ranks[op.name] = ranks.get(op.name, -1) + 1
            mutant = module.clone()
            yield f"{op.name.split('.')[1]} {ranks[op.name]}", mutant, pick(mutant, number)


def drop(op: Operation) -> None:
    op.detach()
    op.erase()


def move_before_fence(op: Operation, fences: tuple[type[Operation], ...]) -> bool:
    """Move an op, with what it needs, before the fence that precedes it in its block; False if there is none."""
    fence = op.prev_op
    while fence is not None and not isinstance(fence, (*fences, scf.ForOp)):
        fence = fence.prev_op
    if not isinstance(fence, fences) or type(fence) is type(op):
        return False
    needed, other = [op], op.prev_op
    while other is not fence:
        operands = {value for part in needed for inner in part.walk() for value in inner.operands}
        if operands & set(other.results):
            needed.insert(0, other)
        other = other.prev_op
    for part in needed:
        part.detach()
        fence.parent_block().insert_op_before(part, fence)
    return True


def event_mutants(module: ModuleOp) -> Iterator[Mutant]:
    for name, mutant, op in copies(module, DROPPED):
        drop(op)
        yield f"drop {name}", mutant
    for name, mutant, op in copies(module, (ac.WaitGroupOp,)):
        op.properties["pending"] = ac.WaitGroupOp(op.pending.value.data + 1).pending
        yield f"one more pending {name}", mutant
    for name, mutant, op in copies(module, MOVED):
        if move_before_fence(op, FENCES):
            yield f"early {name}", mutant
    for name, mutant, op in copies(module, (ac.ExpectTxOp,)):
        for wrong in (16, -16):
            other = mutant.clone()
            next(o for o in other.walk() if isinstance(o, ac.ExpectTxOp)).properties["bytes"] = IntegerAttr(
                op.bytes.value.data + wrong, i64
            )
            yield f"{wrong:+} bytes of {name}", other
    for name, mutant, op in copies(module, ARRIVALS):
        # An arrival that overtakes the loads or copies before it; one too many.
        if move_before_fence(op, (mma.LoadOp, ac.CpAsyncOp, ac.PlainCopyOp)):
            yield f"overtaking {name}", mutant
    for name, mutant, op in copies(module, ARRIVALS):
        op.parent_block().insert_op_after(op.clone(), op)
        yield f"twice {name}", mutant
    for name, mutant, op in copies(module, (ac.SlotOp,)):
        if op.next.uses:
            op.next.replace_all_uses_with(op.cursor)
            yield f"cursor of {name} stands still", mutant


def ticket_mutants(module: ModuleOp) -> Iterator[Mutant]:
    for name, mutant, op in copies(module, TICKETS):
        drop(op)
        yield f"drop {name}", mutant
    for name, mutant, op in copies(module, (ac.ReleaseOp, ac.CommitOp)):
        if move_before_fence(op, (mma.LoadOp, ac.CopyOp, ac.StoreOp)):
            yield f"early {name}", mutant
    for name, mutant, op in copies(module, (ac.AcquireOp, ac.WaitOp)):
        if op.next.uses:
            op.next.replace_all_uses_with(op.cursor)
            yield f"cursor of {name} stands still", mutant


@dataclass(frozen=True)
class Case:
    """One lowered text. `equivalent`: mutants that are no faults."""

    text: str
    stages: tuple[tuple[str, int], ...]
    sites: str = "eager"
    kind: str = "cp_async"
    equivalent: frozenset[str] = frozenset()
    mode: str = "unified"

    def __str__(self) -> str:
        return "-".join([self.text, *(f"{ring}{n}" for ring, n in self.stages), self.sites, self.kind, self.mode])

    def forms(self) -> support.Forms:
        return support.forms(self.text, self.stages, self.sites, self.kind, mode=self.mode)


CASES = [
    *(Case("gemm", (("ab", n),), kind=kind) for n in (1, 2, 3, 4) for kind in ("cp_async", "plain")),
    *(Case("gemm_persistent", (("ab", n), ("out", 1)), kind=kind) for n in (1, 3) for kind in ("cp_async", "plain")),
    *(Case("flash_attention_persistent", (("k", n), ("v", n)), sites) for n in (1, 2) for sites in ("eager", "first")),
    Case("flash_attention_persistent", (("k", 2), ("v", 2)), "first", "plain"),
    # The prologue issues two K in a row, the loop K and V in turn: in the loop K is a group older than the count, which is the
    # minimum over both paths, asks for. A commit that comes too early makes its copies one group younger, which is no harm.
    Case(
        "flash_attention_persistent",
        (("k", 3), ("v", 2)),
        equivalent=frozenset({"early commit_group 6", "early commit_group 8"}),
    ),
    # Here the barrier before the load is that of the acquire between wait and load; the slot was visible before it.
    Case(
        "flash_attention_persistent",
        (("k", 2), ("v", 2)),
        "eager",
        "plain",
        frozenset({"early load 1", "early load 2", "early load 3", "early load 4"}),
    ),
]

# Waits at mbarriers order what a warp reads; the barrier after them orders the refill only. So it may come before the wait, and
# loads of the slot that has been waited for may come before it.
FREE = frozenset({"early barrier 0", "early load 0", "early load 1"})
FREE_ATTENTION = frozenset({*(f"early barrier {n}" for n in range(4)), *(f"early load {n}" for n in range(1, 5))})

BY_MBARRIER = [
    Case("gemm", (("ab", 1),), kind="tma"),
    *(Case("gemm", (("ab", n),), kind="tma", equivalent=FREE) for n in (2, 3)),
    *(Case("gemm", (("ab", n),), kind=kind, mode="specialized") for n in (1, 3) for kind in support.KINDS),
    *(Case("gemm_persistent", (("ab", n), ("out", m)), kind="tma", equivalent=FREE) for n, m in ((2, 1), (3, 2))),
    *(
        Case("gemm_persistent", (("ab", n), ("out", 1)), kind=k, mode="specialized")
        for n in (1, 2)
        for k in support.KINDS
    ),
    Case("flash_attention_persistent", (("k", 2), ("v", 2)), kind="tma", equivalent=FREE_ATTENTION),
    # With fewer stages of V than blocks in a tile, waiting for V would imply that Q, or K, has been read.
    Case("flash_attention_persistent", (("k", 4), ("v", 4)), kind="tma", mode="specialized"),
]


def caught(mutant: ModuleOp, cases: list[tuple[list[np.ndarray], np.ndarray]], tolerance: float) -> bool:
    """Does some mode raise, or give another result?"""
    for landing, order in product(LANDINGS, ORDERS):
        try:
            for inputs, expected in cases:
                result = support.run(mutant, inputs, landing, order).astype(np.float64)
                if not np.abs(result - expected).max(initial=0) <= tolerance:
                    return True
        except EmmyError:
            return True
    return False


def survivors(text: str, mutants: Iterator[Mutant]) -> set[str]:
    if text.startswith("gemm"):
        inputs = [support.gemm_inputs(150, 32, 96)] if text == "gemm_persistent" else [support.gemm_inputs(32, 32, 96)]
        cases, tolerance = [(i, support.gemm(i).astype(np.float64)) for i in inputs], 0.0
    else:
        inputs = [support.attention_inputs(192, 192)]
        cases, tolerance = [(i, support.attention(i, causal=True)) for i in inputs], 2e-3
    return {name for name, mutant in mutants if not caught(mutant, cases, tolerance)}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_event_faults_are_caught(case: Case) -> None:
    mutants = list(event_mutants(case.forms().lowered))
    assert len(mutants) > 12
    assert survivors(case.text, iter(mutants)) == case.equivalent


@pytest.mark.parametrize("case", BY_MBARRIER, ids=str)
def test_faults_with_mbarriers_are_caught(case: Case) -> None:
    mutants = list(event_mutants(case.forms().lowered))
    assert len(mutants) > 12
    assert survivors(case.text, iter(mutants)) == case.equivalent


@pytest.mark.parametrize("form", ["canonical", "placed"])
@pytest.mark.parametrize("case", [CASES[4], CASES[10], CASES[-3]], ids=str)
def test_ticket_faults_are_caught(case: Case, form: str) -> None:
    module = getattr(case.forms(), form)
    mutants = list(ticket_mutants(module))
    assert len(mutants) > 8
    assert survivors(case.text, iter(mutants)) == set()
