"""`verify-pipelines`: the protocol of every ring holds on every path."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from emmy.dialects import async_copy as ac
from emmy.dialects import mma
from emmy.dialects.async_copy_rings import ring_name
from emmy.dialects.tile import KernelOp
from emmy.passes.holding import Holding, none_free
from emmy.passes.protocol import EVENT_OPS, fail, is_cursor, is_inbound, pipelines_of, ring_of, steps, takes_turns
from emmy.passes.verify_turns import check_turns

SIDES: dict[type[Operation], str] = {ac.AcquireOp: "fill", ac.CommitOp: "fill", ac.WaitOp: "read", ac.ReleaseOp: "read"}


@dataclass(frozen=True)
class VerifyPipelines(ModulePass):
    """Check the pipelines of all kernels; change nothing.

    Accepts level 3 in any form: halves, roles, and (for the cursors only) events. Guarantees after it:

    * every slot is committed or released exactly once on every path, and not used after that; it crosses into another
      iteration as an iter_arg only. A cursor is used at most once;
    * a pipeline that is filled is read, and the other way round; an outbound one is filled by the consumer only, an internal
      one filled and read by it;
    * no wait (or acquire) stands where every slot of its ring is held already: the stages suffice;
    * of two consumers that read a pipeline each computes every second tile, passes over as many tickets as the other one takes,
      and waits for its own between taking its turn and passing it (`emmy.passes.verify_turns`);
    * a loop's body releases as many slots as it waits for; slots are free in the order of the ring.

    Raises EmmyError: one sentence that names the pipeline and the reason. Before and after are the same text; this is an error:

        %s, %n = async_copy.wait @k[%c]
        async_copy.release @k, %s
        %f = mma.load %s["k"][%i, %j] : ...       // slot of @k is used after it was released
    """

    name = "verify-pipelines"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.walk():
            if isinstance(kernel, KernelOp):
                verify_kernel(kernel)


def verify_kernel(kernel: KernelOp) -> None:
    """Check one kernel. Raises EmmyError."""
    lowered = any(isinstance(op, EVENT_OPS) for op in kernel.walk())
    if not lowered:
        _check_halves(kernel)
        _check_sides(kernel)
        check_turns(kernel)
    for value in _values(kernel):
        if is_cursor(value) or (isinstance(value.type, ac.SlotType) and not lowered):
            _check_once(value)
    if not lowered:
        for op in kernel.block.ops:
            if isinstance(op, ac.ProducerOp | ac.ConsumerOp | ac.RoleOp):
                _hold(pipelines_of(kernel), op.body.block, Holding())
        _check_filled(kernel)


def _values(kernel: KernelOp) -> list[SSAValue]:
    """Every result and block argument of the kernel."""
    values: list[SSAValue] = []
    for op in kernel.walk():
        values.extend(op.results)
        values.extend(arg for region in op.regions for block in region.blocks for arg in block.args)
    return values


# ---- which half does what ----------------------------------------------------------------------------------------------


def _check_halves(kernel: KernelOp) -> None:
    pipelines = pipelines_of(kernel)
    done: dict[str, set[type[Operation]]] = {name: set() for name in pipelines}
    begun: set[tuple[str, type[Operation], Operation | None]] = set()
    for op in kernel.walk():
        ring = ring_of(op)
        if ring is None:
            continue
        if ring not in pipelines:
            fail(op, f"the kernel has no pipeline @{ring}")
        done[ring].add(type(op))
        if isinstance(op, ac.BeginFillOp | ac.BeginReadOp):
            _check_begin(op, ring, begun)
        elif isinstance(op, ac.WaitOp | ac.ReleaseOp) and pipelines[ring].outbound is not None:
            fail(op, f"pipeline @{ring} is outbound: it is filled and stored, never waited for")
    for name, pipeline in pipelines.items():
        if ac.AcquireOp not in done[name]:
            fail(pipeline, f"pipeline @{name} is never filled: no acquire names it")
        if pipeline.outbound is None and ac.WaitOp not in done[name]:
            fail(pipeline, f"pipeline @{name} is filled but never waited for")


def _check_begin(
    op: ac.BeginFillOp | ac.BeginReadOp, ring: str, begun: set[tuple[str, type[Operation], Operation | None]]
) -> None:
    # Two consumers that read a pipeline in turn begin once each.
    one = (ring, type(op), _reader(op) if isinstance(op, ac.BeginReadOp) else None)
    if one in begun:
        fail(op, f"pipeline @{ring} has two first cursors on one side: its cursor is one chain")
    begun.add(one)
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, KernelOp):
        if isinstance(parent, scf.ForOp):
            fail(
                op, f"the first cursor of pipeline @{ring} stands in a loop: carry the cursor through the loop instead"
            )
        parent = parent.parent_op()


def _reader(op: Operation) -> Operation | None:
    """The consumer or role that holds an op, if it takes turns with another one."""
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, ac.ConsumerOp | ac.RoleOp):
        parent = parent.parent_op()
    return parent if parent is not None and takes_turns(parent) else None


def _check_sides(kernel: KernelOp) -> None:
    """Copies fill inbound slots, each field once; fragments are loaded from waited slots and stored into outbound ones."""
    pipelines = pipelines_of(kernel)
    filled: set[tuple[SSAValue, str, Block | None]] = set()
    for op in kernel.walk():
        if isinstance(op, ac.CopyOp | mma.StoreOp | ac.StoreOp | mma.LoadOp):
            ring, outbound = ring_name(op.slot), pipelines[ring_name(op.slot)].outbound is not None
            reads = isinstance(op.slot.type, ac.SlotType) and op.slot.type.side.data == "read"
            if isinstance(op, mma.LoadOp) and not reads:
                fail(
                    op, f"a fragment is loaded from a slot of pipeline @{ring} that is being filled: wait for it first"
                )
            internal = pipelines[ring].internal is not None
            if isinstance(op, ac.CopyOp) and (reads or outbound or internal):
                fail(op, f"copy fills acquired slots of inbound pipelines; this slot of @{ring} is not one")
            if isinstance(op, ac.CopyOp):
                place = op.slot, op.field.data, op.parent_block()
                if place in filled:
                    fail(
                        op,
                        f"'{op.field.data}' of this slot of pipeline @{ring} is filled twice, and nothing orders the copies",
                    )
                filled.add(place)
            if isinstance(op, mma.StoreOp) and internal and reads:
                fail(op, f"fragments are stored into acquired slots; this slot of @{ring} has been waited for")
            if (
                isinstance(op, mma.StoreOp | ac.StoreOp)
                and not outbound
                and not (internal and isinstance(op, mma.StoreOp))
            ):
                fail(
                    op, f"results leave through outbound pipelines; @{ring} is {'internal' if internal else 'inbound'}"
                )
        elif isinstance(op, ac.CommitOp):
            start = op.slot.owner
            if isinstance(start, ac.AcquireOp) and start.predicate is not op.predicate:
                fail(op, f"a slot of pipeline @{ring_of(op)} is committed under another condition than it was acquired")
        elif isinstance(op, ac.ProducerOp):
            for step in steps(op):
                if isinstance(step, ac.WaitOp | ac.ReleaseOp) or not is_inbound(pipelines[str(ring_of(step))]):
                    fail(
                        step,
                        f"the producer fills inbound pipelines only; {step.name} of @{ring_of(step)} is the consumer's",
                    )
        elif isinstance(op, ac.ConsumerOp):
            for step in steps(op):
                if isinstance(step, ac.AcquireOp | ac.CommitOp) and is_inbound(pipelines[str(ring_of(step))]):
                    fail(step, f"{step.name} of inbound pipeline @{ring_of(step)} is the producer's")


def _check_filled(kernel: KernelOp) -> None:
    """Something is written into every field."""
    filled = {
        (ring_name(op.slot), op.field.data)
        for op in kernel.walk()
        if isinstance(op, ac.CopyOp | mma.StoreOp | mma.ScatterOp)
    }
    for name, pipeline in pipelines_of(kernel).items():
        for field in pipeline.fields.data:
            if (name, field) not in filled:
                fail(pipeline, f"'{field}' of pipeline @{name} is never filled: nothing is copied or stored into it")


# ---- used once -----------------------------------------------------------------------------------------------------------


def _check_once(value: SSAValue) -> None:
    """A slot is consumed exactly once on every path, a cursor at most once, and neither is used after that."""
    block = value.owner if isinstance(value.owner, Block) else value.owner.parent_block()
    assert block is not None
    where = value.owner if isinstance(value.owner, Operation) else block.parent_op()
    assert where is not None
    consumed = _walk(value, block, False, False)
    if not consumed and isinstance(value.type, ac.SlotType):
        verb = "committed" if value.type.side.data == "fill" else "released"
        fail(where, f"a slot of pipeline @{ring_name(value)} is not {verb} on every path")


def _walk(value: SSAValue, block: Block, consumed: bool, in_loop: bool) -> bool:
    """Walk the uses in a block; is the value consumed at its end?"""
    ring, thing = ring_name(value), "cursor" if is_cursor(value) else "slot"
    for op in block.ops:
        if value in op.operands:
            uses = list(op.operands).count(value)
            ends = _consumes(op, value)
            if consumed or (ends and uses > 1):
                fail(op, f"a {thing} of pipeline @{ring} is used after it was consumed")
            if ends and in_loop:
                fail(
                    op, f"a {thing} of pipeline @{ring} from outside a loop is consumed in it: carry it as an iter_arg"
                )
            consumed = ends
        if not op.regions:
            continue
        after = [_walk(value, b, consumed, in_loop or isinstance(op, scf.ForOp)) for r in op.regions for b in r.blocks]
        if isinstance(op, scf.IfOp) and not op.false_region.blocks:
            after.append(consumed)
        if any(after) and not all(after):
            fail(op, f"a {thing} of pipeline @{ring} is consumed in one branch only")
        consumed = consumed or any(after)
    return consumed


def _consumes(op: Operation, value: SSAValue) -> bool:
    if isinstance(op, ac.CommitOp | ac.ReleaseOp | scf.YieldOp):
        return True
    if isinstance(op, ac.WaitFullOp | ac.WaitEmptyOp | ac.WaitReleasedOp):
        return False  # `slot` moves the cursor on
    return isinstance(op, scf.ForOp) or is_cursor(value)


# ---- stages --------------------------------------------------------------------------------------------------------------


def _hold(pipelines: dict[str, ac.PipelineOp], block: Block, holding: Holding) -> None:
    """Follow the slots that are held (waited for and not released; acquired and not committed) through a block."""
    for op in block.ops:
        if isinstance(op, ac.WaitOp | ac.AcquireOp):
            side, stages = (str(ring_of(op)), SIDES[type(op)]), pipelines[str(ring_of(op))].stages.value.data
            if holding.in_use(side) == stages:
                fail(op, none_free(side[0], stages, holding.windows[side]))
            holding.take(side, op.slot)
        elif isinstance(op, ac.ReleaseOp | ac.CommitOp):
            holding.give((str(ring_of(op)), SIDES[type(op)]), op.slot)
        elif isinstance(op, scf.ForOp):
            head = holding.enter(op)
            _hold(pipelines, op.body.block, holding)
            holding.leave(op, head)
        elif isinstance(op, scf.IfOp):
            before = holding.copy()
            _hold(pipelines, op.true_region.block, holding)
            taken, holding.windows = holding.windows, before
            if op.false_region.blocks:
                _hold(pipelines, op.false_region.block, holding)
            holding.meet(op, taken)
