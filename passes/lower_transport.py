"""`lower-transport`: tickets become copies, commit groups, mbarrier events and barriers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import FixedBitwidthType, IntegerAttr, ModuleOp, i64
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from emmy.dialects import async_copy as ac
from emmy.dialects import mma
from emmy.dialects.async_copy_rings import ctas_of, ring_name
from emmy.dialects.common import constant
from emmy.dialects.tensor_op import EIGHT_BITS
from emmy.dialects.tile import KernelOp, TileType, ViewType
from emmy.passes.alignment import vector_bytes
from emmy.passes.completion import Completion, Need, Way
from emmy.passes.emitter import Emitter
from emmy.passes.protocol import PROTOCOL_OPS, fail, pipelines_of, ring_of
from emmy.passes.tma import copied_bytes, field_bytes, field_of, stands_alone, tma_problem
from emmy.schedule_limits import AUTO_TRANSPORT
from emmy.schedules import EIGHT_BIT_SHARE, WARPGROUP_SHARE
from emmy.targets import get_target

CP_ASYNC_BYTES = (16, 8, 4)
"""Widths of `cp.async` (PTX ISA, cp.async: cp-size is 4, 8 or 16)."""

WARP = 32
"""Threads of a warp."""

MOST_PARTIES = 8
"""Rows of warps with a barrier of their own: of 16 barriers (PTX ISA, `bar`), as many as those of a CTA and its roles leave."""

Moves = ac.CpAsyncOp | ac.PlainCopyOp | ac.PlainStoreOp | ac.TmaLoadOp | ac.TmaStoreOp


@dataclass(frozen=True)
class LowerTransport(ModulePass):
    """Lower the protocol of placed kernels to events that print one to one.

    Accepts kernels whose halves `place-roles` has placed. Guarantees: no acquire, copy, commit, wait, release, store or drain
    is left (slots and cursors stay as values); waits, arrivals and barriers stand only where they are needed. Where one role
    fills and reads a ring:

    * a wait became `wait_group N`, with N the smallest number of younger commit groups over all paths, and a barrier over the
      role's warps; for TMA it became `wait_full`, without a barrier. An acquire has a barrier before it if a slot of its ring
      (or one that may share its bytes) was read since the last barrier. A commit that is not `joined` ends a commit group.

    Where one role fills and another one reads:

    * acquire waits for the slot's empty mbarrier, a release arrives on it, one arrival a warp after `warp_sync` (and before
      that a proxy fence, if TMA refills the slot: an arrive does not wait for earlier `ldmatrix`); wait waits for the full
      mbarrier, on which the filling role arrives: `expect_tx` and the bytes for TMA, `arrive_full_noinc` of each thread for
      cp.async, `arrive_full` of each warp for plain copies. A role that fills by TMA only runs in one warp (`active 1`).

    Results leave by plain stores after a barrier, or by TMA: proxy fence, barrier, elected store, bulk commit; the slot is
    acquired again after an elected `bulk_wait .. read` and a barrier.

    Where the CTAs of a cluster fill slots together, by TMA only, by a role that does nothing else, that role begins when all of
    them have begun (`cluster_wait`), and ends when all slots are empty again; a release arrives at the empty mbarriers of all.

    Where the CTAs of a cluster fill each other's slots, an acquire waits until all of them have begun (`cluster_wait`), and says
    how many bytes the others will write into this CTA's slot (`expect_tx`); a wait is one for its full mbarrier, on which these
    bytes count as they arrive. Nobody says that such a slot is empty again: a step of its pipeline in a loop is an EmmyError.

    A copy that is `evict_first` stays so as a `cp_async` and as a `tma_load`; a plain one has no such priority.

    Pipelines get `full_count`, `empty_count` and `tx_bytes`. One ring may mix transports, copy by copy.

    `kind`: `tma`, `cp_async`, `plain` (through registers), or `auto`: the schedule's `transport`; where that is `auto` too,
    what `emmy.schedule_limits.AUTO_TRANSPORT` has for `target`, with cp.async wherever TMA cannot move a tensor, or could not in
    some call. If TMA is asked for by name, such a tensor is an error, here or at the call. A copy for which 4 bytes cannot
    be proved aligned is a plain one in any kind. Widths: the widest of 16, 8, 4, 2 bytes that divides the last dimension's
    offset, extent and size and all other strides; of `?` sizes, `?` strides and the address is known what the view's `align`
    promises (without it: one element of sizes and strides, and an address that is a multiple of whatever comes out).

        %s, %n = async_copy.wait @ab[%c]                       async_copy.wait_group 1         async_copy.wait_full @ab[%c]
        %f, %m = async_copy.acquire @ab[%d] if %p              async_copy.barrier              %s, %n = async_copy.slot @ab[%c]
        scf.if %p {                                            %s, %n = async_copy.slot ..     async_copy.barrier
          async_copy.copy %a[%i, %k] -> %f["a"]           ->   %f, %m = async_copy.slot ..     %f, %m = .. slot @ab[%d] if %p
        }                                                      scf.if %p {                     scf.if %p { elect {
        async_copy.commit @ab, %f if %p                          cp_async .. bytes 16            expect_tx @ab, %f bytes 8192
        async_copy.release @ab, %s                             }                                 tma_load ..
                                                               async_copy.commit_group         } }
    """

    name = "lower-transport"
    kind: Literal["auto", "cp_async", "plain", "tma"] = "auto"
    target: str = "sm_90a"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in list(op.walk()):
            if isinstance(kernel, KernelOp):
                self._lower(kernel)

    def _lower(self, kernel: KernelOp) -> None:
        if any(isinstance(op, ac.ProducerOp | ac.ConsumerOp) for op in kernel.block.ops):
            fail(kernel, "lower-transport wants roles, and this kernel has halves: run place-roles first")
        kind, strict = self._kind(kernel)
        lowering = _Lowering(kernel, _moves(kernel, kind, strict))
        for role in lowering.roles:
            lowering.lower(role)
        for op in kernel.walk():
            if isinstance(op, PROTOCOL_OPS):
                fail(op, f"{op.name} stands outside a role")

    def _kind(self, kernel: KernelOp) -> tuple[str, bool]:
        """(transport, whether it was asked for by name)."""
        kind = self.kind
        if kind == "auto" and kernel.schedule:
            kind = kernel.schedule.data.transport
        if kind == "auto":
            return AUTO_TRANSPORT[get_target(self.target).name], False
        return kind, True


# ---- what each copy becomes ----------------------------------------------------------------------------------------------


def _moves(kernel: KernelOp, kind: str, strict: bool) -> dict[Operation, type[Moves]]:
    """The event of every copy and store of a kernel. TMA empties a ring if it can make all stores from it."""
    moves: dict[Operation, type[Moves]] = {}
    in_place = {
        (ring_name(op.slot), op.field.data) for op in kernel.walk() if isinstance(op, mma.LoadOp) and op.in_place
    }
    stores: dict[str, list[ac.StoreOp]] = {}
    for op in kernel.walk():
        if isinstance(op, ac.CopyOp):
            read_in_place = (ring_name(op.slot), op.field.data) in in_place
            strict_here = strict or read_in_place or op.shared is not None
            by_tma = (kind == "tma" or read_in_place) and _by_tma(op, strict_here, read_in_place)
            by_cp_async = kind != "plain" and width(op) in CP_ASYNC_BYTES
            moves[op] = ac.TmaLoadOp if by_tma else ac.CpAsyncOp if by_cp_async else ac.PlainCopyOp
        elif isinstance(op, ac.StoreOp):
            stores.setdefault(ring_name(op.slot), []).append(op)
    for ring in stores.values():
        by_tma = kind == "tma" and all([_by_tma(op, strict) for op in ring])
        moves |= {op: ac.TmaStoreOp if by_tma else ac.PlainStoreOp for op in ring}
    return moves


def _by_tma(op: ac.CopyOp | ac.StoreOp, strict: bool, read_in_place: bool = False) -> bool:
    problem = tma_problem(op, certain=not strict, padded=read_in_place)
    if problem is None and isinstance(op, ac.CopyOp) and not stands_alone(op):
        problem = "it stands under a condition or in a loop of its own"
    if problem is not None and strict:
        way = "transport = auto in the schedule"
        if read_in_place:
            share = EIGHT_BIT_SHARE if isinstance(field_of(op).element_type, EIGHT_BITS) else WARPGROUP_SHARE
            way = f"atom = {share} in the schedule, for wgmma reads what TMA has written"
        verb = "fill" if isinstance(op, ac.CopyOp) else "store"
        fail(
            op,
            f"TMA cannot {verb} '{op.field.data}' of pipeline @{ring_name(op.slot)}: {problem}; set {way}",
        )
    return problem is None


def width(op: ac.CopyOp | ac.StoreOp) -> int:
    """The width in bytes of one access of a copy or store that does not go by TMA."""
    tile = field_of(op)
    element = tile.element_type
    if not isinstance(element, FixedBitwidthType) or element.size not in (1, 2, 4, 8):
        fail(op, f"copies move elements of 1, 2, 4 or 8 bytes, not {element}")
    return vector_bytes(cast(ViewType, op.view.type), list(op.indices), tile.get_shape(), element.size)


# ---- one kernel ----------------------------------------------------------------------------------------------------------


class _Lowering:
    """Rewrites the roles of one kernel. `moves`: the event of each copy and store."""

    def __init__(self, kernel: KernelOp, moves: dict[Operation, type[Moves]]):
        self.moves = moves
        self.pipelines = pipelines_of(kernel)
        self.roles = [op for op in kernel.block.ops if isinstance(op, ac.RoleOp)]
        self.fillers = {ring: role for role in self.roles for ring in _rings(role, ac.AcquireOp)}
        self.readers = {ring: role for role in self.roles for ring in _rings(role, ac.WaitOp)}
        self.ways = {ring: self._way(ring, op) for ring, op in self.pipelines.items()}
        loads = [op for op in kernel.walk() if isinstance(op, mma.LoadOp)]
        self.read_by_lanes = {ring_name(op.slot) for op in loads if op.in_place is None}
        for ring, pipeline in self.pipelines.items():
            self._check_sharing(ring, pipeline)
        self._activate()
        self.tickets = {ring: self._ticket_bytes(ring) for ring in self.pipelines}
        for ring in self.pipelines:
            self._count(ring)

    def _moved(self, ring: str) -> Iterator[tuple[ac.CopyOp | ac.StoreOp, type[Moves]]]:
        for op, new in self.moves.items():
            if isinstance(op, ac.CopyOp | ac.StoreOp) and ring_name(op.slot) == ring:
                yield op, new

    def _way(self, ring: str, pipeline: ac.PipelineOp) -> Way:
        kinds = {new for _, new in self._moved(ring)}
        outbound = pipeline.outbound is not None
        return Way(
            stages=pipeline.stages.value.data,
            outbound=outbound,
            tma=bool(kinds & {ac.TmaLoadOp, ac.TmaStoreOp}),
            cp_async=ac.CpAsyncOp in kinds,
            plain=bool(kinds & {ac.PlainCopyOp, ac.PlainStoreOp}),
            apart=not outbound and self.fillers.get(ring) is not self.readers.get(ring),
            cluster=pipeline.cluster is not None and pipeline.internal is not None,
            across=self._sharers(ring) if pipeline.internal is not None and pipeline.cluster is None else 0,
        )

    def _sharers(self, ring: str) -> int:
        """How many warps beside each other share each row of an internal ring: those of a grid whose every row of warps stores
        and loads its own rows only; 0 if that does not show, or there are more rows of warps than barriers for them."""
        used = [op for role in self.roles for op in role.walk() if isinstance(op, mma.LoadOp | mma.StoreOp)]
        used = [op for op in used if ring_name(op.slot) == ring]
        row = {op.indices[0] for op in used}
        product = next(iter(row)).owner if len(row) == 1 else None
        warp, rows = (product.lhs.owner, constant(product.rhs)) if isinstance(product, arith.MuliOp) else (None, None)
        if (
            not isinstance(warp, mma.WarpOp)
            or warp.axis.value.data
            or rows is None
            or warp.get_grid()[0] > MOST_PARTIES
        ):
            return 0
        fragments = [op.result.type if isinstance(op, mma.LoadOp) else op.value.type for op in used]
        return warp.get_grid()[1] if all(cast(mma.FragmentType, f).get_shape()[0] <= rows for f in fragments) else 0

    def _check_sharing(self, ring: str, pipeline: ac.PipelineOp) -> None:
        """What CTAs fill together is filled by TMA, by a role that does nothing else, and everything in it."""
        way = self.ways[ring]
        together = pipeline.cluster is not None and pipeline.internal is None
        if together and (not way.apart or not way.tma or way.cp_async or way.plain):
            fail(pipeline, f"pipeline @{ring} of a cluster is filled by TMA only, by another role than reads it")

    def _activate(self) -> None:
        """A role that only fills, and by TMA only, runs in one warp: another one could fall a phase behind."""
        for role in self.roles:
            filled = [self.ways[ring] for ring, filler in self.fillers.items() if filler is role]
            only = all(way.apart and way.tma and not way.cp_async and not way.plain for way in filled)
            if filled and only and role not in self.readers.values():
                role.active = IntegerAttr(1, i64)

    def _all_arrive(self, ring: str) -> bool:
        """Does each filling warp arrive once? After plain copies; and for TMA, where others of its role fill other rings."""
        way = self.ways[ring]
        crowd = way.tma and not way.cp_async and ring in self.fillers and self.fillers[ring].active_warps > 1
        return way.apart and (way.plain or crowd)

    def _ticket_bytes(self, ring: str) -> int:
        """Bytes that TMA, or the other CTAs of a cluster, bring with one ticket. Every ticket of a ring is filled alike, or its
        copies stand at two places."""
        if self.ways[ring].cluster:
            return sum(field_bytes(cast(TileType, type_)) for type_ in self.pipelines[ring].fields.data.values())
        sums: dict[SSAValue, int] = {}
        for op, new in self._moved(ring):
            if new is ac.TmaLoadOp:
                sums[op.slot] = sums.get(op.slot, 0) + copied_bytes(field_of(op))
        if len(set(sums.values())) > 1:
            fail(
                self.pipelines[ring],
                f"pipeline @{ring} is filled by TMA with {sorted(set(sums.values()))} bytes a slot",
            )
        return next(iter(sums.values()), 0)

    def _count(self, ring: str) -> None:
        """How many arrivals end a phase of the ring's mbarriers."""
        way, pipeline = self.ways[ring], self.pipelines[ring]
        if way.outbound or not (way.apart or way.tma or way.cluster) or ring not in self.fillers:
            return
        warps = self.fillers[ring].active_warps
        full = int(way.tma or way.cluster)
        if way.apart:
            full += WARP * warps * way.cp_async + warps * self._all_arrive(ring)
            # Of two roles that read it in turn each ticket is for one; they have equally many warps.
            readers = self.readers.get(ring)
            if readers is not None:
                pipeline.empty_count = IntegerAttr(readers.active_warps * ctas_of(pipeline), i64)
        pipeline.full_count = IntegerAttr(full, i64)
        if way.tma or way.cluster:
            pipeline.tx_bytes = IntegerAttr(self.tickets[ring], i64)

    # ---- ops of a role ---------------------------------------------------------------------------------------------------

    def lower(self, role: ac.RoleOp) -> None:
        """Put events in the place of a role's protocol ops."""
        self._check_clusters(role)
        self._end_together(role)
        needs = Completion(self.ways).run(role.body.block)
        loads = _last_loads(role, self.moves)
        for op in list(role.walk()):
            if isinstance(op, PROTOCOL_OPS):
                block = op.parent_block()
                assert block is not None
                self._replace(op, needs.get(op, Need()), Emitter(block, op, op), loads)
                op.detach()
                op.erase()

    def _end_together(self, role: ac.RoleOp) -> None:
        """A role that fills slots of all CTAs of a cluster, or releases them, begins when all of them have begun; one that fills
        ends when none of them arrives at the mbarriers of this CTA any more: when every slot has been released by all."""
        waited = False
        for op in list(role.body.block.ops):
            ring = ring_of(op)
            if ring is None or self.pipelines[ring].cluster is None or self.ways[ring].cluster:
                continue
            if isinstance(op, ac.BeginFillOp | ac.BeginReadOp):
                if not waited:
                    Emitter(role.body.block, op, op)(ac.ClusterWaitOp())
                waited = True
            elif isinstance(op, ac.DrainOp) and self.fillers.get(ring) is role:
                Emitter(role.body.block, op, op)(ac.WaitReleasedOp(_last_cursor(op, ring)))

    def _check_clusters(self, role: ac.RoleOp) -> None:
        """A slot that other CTAs fill is filled once."""
        for op in role.walk():
            ring = ring_of(op)
            if (
                ring is not None
                and self.ways[ring].cluster
                and op.parent_op() is not role
                and not isinstance(op, ac.SlotOp)
            ):
                fail(op, f"pipeline @{ring} of a cluster is used once, and not in a loop or under a condition")

    def _replace(self, op: Operation, need: Need, emit: Emitter, loads: dict[Operation, list[ac.CopyOp]]) -> None:
        if need.full and isinstance(op, ac.WaitOp):
            emit(ac.WaitFullOp(op.cursor))
        if need.empty and isinstance(op, ac.AcquireOp):
            emit(ac.WaitEmptyOp(op.cursor, op.predicate))
        if need.bulk is not None:
            _elect(emit, [ac.BulkWaitOp(need.bulk, read=isinstance(op, ac.AcquireOp))])
        if need.pending is not None:
            emit(ac.WaitGroupOp(need.pending))
        if need.fence:
            emit(ac.FenceProxyAsyncOp())
        if need.barrier:
            emit(ac.BarrierOp(need.across))
        if need.group:
            emit(ac.CommitGroupOp())
        if need.begun:
            emit(ac.ClusterWaitOp())
        if isinstance(op, ac.AcquireOp | ac.WaitOp):
            slot = emit(ac.SlotOp(op.cursor, op.predicate if isinstance(op, ac.AcquireOp) else None))
            for old, new in zip(op.results, slot.results, strict=True):
                new.name_hint = old.name_hint
                old.replace_all_uses_with(new)
            if need.begun:
                _elect(emit, [ac.ExpectTxOp(slot.slot, self.tickets[str(ring_of(op))])])
        elif isinstance(op, ac.CopyOp):
            self._copy(op, emit, loads)
        elif isinstance(op, ac.StoreOp):
            self._store(op, emit)
        elif isinstance(op, ac.CommitOp):
            self._commit(op, str(ring_of(op)), emit)
        elif isinstance(op, ac.ReleaseOp):
            self._release(op, self.ways[str(ring_of(op))], emit)

    def _copy(self, op: ac.CopyOp, emit: Emitter, loads: dict[Operation, list[ac.CopyOp]]) -> None:
        kind = self.moves[op]
        if kind is ac.CpAsyncOp:
            first = op.evict_first is not None
            emit(ac.CpAsyncOp(op.view, list(op.indices), op.slot, op.field.data, width(op), evict_first=first))
        elif kind is ac.PlainCopyOp:
            emit(ac.PlainCopyOp(op.view, list(op.indices), op.slot, op.field.data, width(op)))
        elif op in loads:
            # All of a ticket's loads at the place of the last one, where all their offsets are known.
            expect = ac.ExpectTxOp(op.slot, self.tickets[ring_name(op.slot)])
            copies = loads[op]
            _elect(emit, [expect, *(_tma_load(copy) for copy in copies)])

    def _store(self, op: ac.StoreOp, emit: Emitter) -> None:
        if self.moves[op] is ac.TmaStoreOp:
            _elect(emit, [ac.TmaStoreOp(op.slot, op.field.data, op.view, list(op.indices))])
        else:
            emit(ac.PlainStoreOp(op.slot, op.field.data, op.view, list(op.indices), width(op)))

    def _commit(self, op: ac.CommitOp, ring: str, emit: Emitter) -> None:
        way = self.ways[ring]
        if way.outbound and way.tma:
            _elect(emit, [ac.BulkCommitOp()])
        arrivals: list[Operation] = [ac.ArriveFullNoincOp(op.slot)] if way.apart and way.cp_async else []
        if self._all_arrive(ring):
            arrivals += [ac.WarpSyncOp(), ac.ArriveFullOp(op.slot)]
        if arrivals and op.predicate is not None:
            block = Block()
            for event in arrivals:
                emit.inside(block)(event)
            emit.inside(block)(scf.YieldOp())
            arrivals = [scf.IfOp(op.predicate, [], Region(block))]
        for event in arrivals:
            emit(event)

    def _release(self, op: ac.ReleaseOp, way: Way, emit: Emitter) -> None:
        if not way.apart:
            return
        # What wgmma reads in place the async proxy itself has read by the time its products have been waited for.
        if way.tma and ring_name(op.slot) in self.read_by_lanes:
            emit(ac.FenceProxyAsyncOp())
        emit(ac.WarpSyncOp())
        emit(ac.ArriveEmptyOp(op.slot))


def _tma_load(op: ac.CopyOp) -> ac.TmaLoadOp:
    shared, first = op.shared is not None, op.evict_first is not None
    return ac.TmaLoadOp(op.view, list(op.indices), op.slot, op.field.data, shared=shared, evict_first=first)


def _last_cursor(drain: ac.DrainOp, ring: str) -> SSAValue:
    """The cursor of a ring that a role is left with when it drains it."""
    before = drain.prev_op
    while before is not None:
        for value in before.results:
            if isinstance(value.type, ac.CursorType) and ring_name(value) == ring:
                return value
        before = before.prev_op
    fail(drain, f"pipeline @{ring} is drained before it is filled")


def _rings(role: ac.RoleOp, kind: type[ac.AcquireOp | ac.WaitOp]) -> set[str]:
    return {str(ring_of(op)) for op in role.walk() if isinstance(op, kind)}


def _last_loads(role: ac.RoleOp, moves: dict[Operation, type[Moves]]) -> dict[Operation, list[ac.CopyOp]]:
    """For the last TMA copy into each slot: all of them, in order."""
    slots: dict[SSAValue, list[ac.CopyOp]] = {}
    for op in role.walk():
        if isinstance(op, ac.CopyOp) and moves[op] is ac.TmaLoadOp:
            slots.setdefault(op.slot, []).append(op)
    return {copies[-1]: copies for copies in slots.values()}


def _elect(emit: Emitter, events: Sequence[Operation]) -> None:
    """One lane runs the events; they join an election that stands directly before."""
    before = emit.anchor.prev_op if emit.anchor is not None else emit.block.last_op
    if isinstance(before, ac.ElectOp):
        block = before.body.block
    else:
        block = Block()
        emit(ac.ElectOp(Region(block)))
    inner = emit.inside(block)
    for event in events:
        inner(event)
