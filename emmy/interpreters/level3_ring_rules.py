"""Rules of level 3 for what moves tiles: tickets of the protocol, and the events that they are lowered to."""

from __future__ import annotations

from typing import Any, cast

from xdsl.ir import Operation

from emmy.dialects import async_copy as ac
from emmy.interpreters.level3_writer import Rule, Rules, Writer, rule_of

RING_RULES: Rules = {}


@rule_of(RING_RULES, ac.BeginFillOp, ac.BeginReadOp)
def _begin(w: Writer, op: ac.BeginFillOp | ac.BeginReadOp) -> None:
    w.put(f"{w.name(op.cursor)} = 0")


def _ring(op: Any) -> str:
    return repr(op.pipeline.root_reference.data)


@rule_of(RING_RULES, ac.AcquireOp)
def _acquire(w: Writer, op: ac.AcquireOp) -> None:
    cursor, taken = w.name(op.cursor), w.name(op.predicate) if op.predicate else "True"
    w.mark(op)
    w.put(f"while {taken} and (why := M.cannot_acquire(W, {_ring(op)}, {cursor})): yield why")
    w.put(f"{w.name(op.slot)}, {w.name(op.next)} = M.acquire(W, {_ring(op)}, {cursor}, {taken})")


@rule_of(RING_RULES, ac.WaitOp)
def _wait(w: Writer, op: ac.WaitOp) -> None:
    at = f"W, {_ring(op)}, {w.name(op.cursor)}"
    w.blocking(op, f"cannot_wait({at})", f"{w.name(op.slot)}, {w.name(op.next)} = M.wait({at})")


@rule_of(RING_RULES, ac.SkipOp)
def _skip(w: Writer, op: ac.SkipOp) -> None:
    w.mark(op, preempt=False)
    w.put(f"{w.name(op.next)} = M.skip(W, {_ring(op)}, {w.name(op.cursor)}, {w.name(op.count)})")


@rule_of(RING_RULES, ac.SlotOp)
def _slot(w: Writer, op: ac.SlotOp) -> None:
    w.mark(op, preempt=False)
    side = cast(ac.CursorType, op.cursor.type).side.data
    taken = w.name(op.predicate) if op.predicate else "True"
    w.put(f"{w.name(op.slot)}, {w.name(op.next)} = M.slot(W, {_ring(op)}, {side!r}, {w.name(op.cursor)}, {taken})")


def _copy(method: str) -> Rule:
    def rule(w: Writer, op: ac.CopyOp | ac.CpAsyncOp | ac.PlainCopyOp | ac.TmaLoadOp) -> None:
        w.mark(op)
        where = f"{w.name(op.view)}, {w.indices(op.indices)}, {w.name(op.slot)}, {op.field.data!r}"
        w.put(f"M.{method}(W, {where})")

    return rule


def _multicast(method: str) -> Rule:
    """The same, of a part of the box for all CTAs of the cluster where it is shared."""

    def rule(w: Writer, op: ac.CopyOp | ac.TmaLoadOp) -> None:
        _copy(method if op.shared is None else f"{method}_shared")(w, op)

    return rule


RING_RULES[ac.CopyOp] = _multicast("copy")
RING_RULES[ac.CpAsyncOp] = _copy("cp_async")
RING_RULES[ac.PlainCopyOp] = _copy("plain_copy")
RING_RULES[ac.TmaLoadOp] = _multicast("tma_load")


@rule_of(RING_RULES, ac.CommitOp)
def _commit(w: Writer, op: ac.CommitOp) -> None:
    w.mark(op)
    w.put(f"M.commit(W, {w.name(op.slot)}, {w.name(op.predicate) if op.predicate else 'True'})")


@rule_of(RING_RULES, ac.ReleaseOp)
def _release(w: Writer, op: ac.ReleaseOp) -> None:
    w.mark(op)
    w.put(f"M.release(W, {w.name(op.slot)})")


@rule_of(RING_RULES, ac.DrainOp)
def _drain(w: Writer, op: ac.DrainOp) -> None:
    w.blocking(op, f"cannot_drain(W, {_ring(op)})", f"M.drain(W, {_ring(op)})")


@rule_of(RING_RULES, ac.StoreOp)
def _store(w: Writer, op: ac.StoreOp) -> None:
    slot = w.name(op.slot)
    w.mark(op)
    w.put(f"key = M.arrive_store(W, {slot})")
    w.put(f"while (why := M.cannot_store(W, {slot}, key)): yield why")
    w.put(f"M.store(W, {slot}, {op.field.data!r}, {w.name(op.view)}, {w.indices(op.indices)})")


def _event_store(method: str) -> Rule:
    def rule(w: Writer, op: ac.PlainStoreOp | ac.TmaStoreOp) -> None:
        w.mark(op)
        where = f"{w.name(op.slot)}, {op.field.data!r}, {w.name(op.view)}, {w.indices(op.indices)}"
        w.put(f"M.{method}(W, {where})")

    return rule


RING_RULES[ac.PlainStoreOp] = _event_store("store")
RING_RULES[ac.TmaStoreOp] = _event_store("tma_store")


@rule_of(RING_RULES, ac.CommitGroupOp)
def _commit_group(w: Writer, op: ac.CommitGroupOp) -> None:
    w.mark(op)
    w.put("M.commit_group(W)")


@rule_of(RING_RULES, ac.WaitGroupOp)
def _wait_group(w: Writer, op: ac.WaitGroupOp) -> None:
    w.mark(op)
    w.put(f"M.wait_group(W, {op.pending.value.data})")


@rule_of(RING_RULES, ac.BarrierOp, ac.WarpSyncOp)
def _meeting(w: Writer, op: ac.BarrierOp | ac.WarpSyncOp) -> None:
    kind = "warp_sync"
    if isinstance(op, ac.BarrierOp):
        kind = "barrier" if op.across is None else f"barrier across {op.across.value.data}"
    w.mark(op)
    w.put(f"M.arrive(W, {kind!r})")
    w.put(f"while (why := M.cannot_pass(W, {kind!r})): yield why")


def _turn(op: ac.AwaitTurnOp | ac.PassTurnOp) -> str:
    """The meeting: of a half, or of a consumer."""
    if op.consumer is not None:
        return repr(f"turn of consumer {op.consumer.value.data}")
    return f"M.turn(W, {isinstance(op, ac.AwaitTurnOp)})"


@rule_of(RING_RULES, ac.AwaitTurnOp)
def _await_turn(w: Writer, op: ac.AwaitTurnOp) -> None:
    w.mark(op)
    w.put(f"M.arrive(W, {_turn(op)})")
    w.put(f"while (why := M.cannot_pass(W, {_turn(op)})): yield why")


@rule_of(RING_RULES, ac.PassTurnOp)
def _pass_turn(w: Writer, op: ac.PassTurnOp) -> None:
    w.mark(op)
    condition = "" if op.predicate is None else f"if {w.name(op.predicate)}: "
    w.put(f"{condition}M.arrive(W, {_turn(op)})")


def _simple(method: str) -> Rule:
    """An event without operands."""

    def rule(w: Writer, op: Operation) -> None:
        w.mark(op)
        w.put(f"M.{method}(W)")

    return rule


RING_RULES[ac.FenceProxyAsyncOp] = _simple("fence_proxy_async")
RING_RULES[ac.BulkCommitOp] = _simple("bulk_commit")


@rule_of(RING_RULES, ac.ClusterWaitOp)
def _cluster_wait(w: Writer, op: ac.ClusterWaitOp) -> None:
    w.mark(op)  # the CTAs of a cluster begin together


@rule_of(RING_RULES, ac.BulkWaitOp)
def _bulk_wait(w: Writer, op: ac.BulkWaitOp) -> None:
    w.mark(op)
    w.put(f"M.bulk_wait(W, {op.pending.value.data})")


@rule_of(RING_RULES, ac.WaitFullOp)
def _wait_full(w: Writer, op: ac.WaitFullOp) -> None:
    w.mark(op)
    w.put(f"while (why := M.cannot_wait_for(W, 'full', {_ring(op)}, {w.name(op.cursor)})): yield why")


@rule_of(RING_RULES, ac.WaitEmptyOp)
def _wait_empty(w: Writer, op: ac.WaitEmptyOp) -> None:
    w.mark(op)
    taken = w.name(op.predicate) if op.predicate else "True"
    w.put(f"while {taken} and (why := M.cannot_wait_for(W, 'empty', {_ring(op)}, {w.name(op.cursor)})): yield why")


@rule_of(RING_RULES, ac.WaitReleasedOp)
def _wait_released(w: Writer, op: ac.WaitReleasedOp) -> None:
    w.mark(op)
    w.put(f"while (why := M.cannot_end(W, {_ring(op)}, {w.name(op.cursor)})): yield why")


def _arrival(method: str) -> Rule:
    def rule(w: Writer, op: ac.ArriveFullOp | ac.ArriveFullNoincOp | ac.ArriveEmptyOp) -> None:
        w.mark(op)
        w.put(f"M.{method}(W, {w.name(op.slot)})")

    return rule


RING_RULES[ac.ArriveFullOp] = _arrival("arrive_full")
RING_RULES[ac.ArriveFullNoincOp] = _arrival("arrive_full_noinc")
RING_RULES[ac.ArriveEmptyOp] = _arrival("arrive_empty")


@rule_of(RING_RULES, ac.ElectOp)
def _elect(w: Writer, op: ac.ElectOp) -> None:
    w.put("if W.share == 0:")
    w.depth += 1
    w.block(op.body.block)
    w.put("pass")
    w.depth -= 1


@rule_of(RING_RULES, ac.ExpectTxOp)
def _expect_tx(w: Writer, op: ac.ExpectTxOp) -> None:
    w.mark(op)
    w.put(f"M.expect_tx(W, {w.name(op.slot)}, {op.bytes.value.data})")
