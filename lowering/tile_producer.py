"""The producer that `lower-tile` writes: loops around loads, with copies in the place of loads."""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from emmy.dialects import async_copy
from emmy.lowering.tile_plan import Plan, evicted_first, hint
from emmy.lowering.tile_rings import Ring
from emmy.passes.emitter import Emitter


@dataclass
class ProducerHalf:
    """Writes the filling half: the loops around loads, with a ring's copies where its last load stood."""

    plan: Plan
    values: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])
    cursors: dict[Ring, SSAValue] = field(default_factory=dict[Ring, SSAValue])

    def build(self, block: Block) -> None:
        """Fill the producer's block."""
        emit = Emitter(block, self.plan.kernel)
        for op in self.plan.kernel.block.ops:
            for ring in self.plan.rings:
                if self.plan.outermost(ring.filled_at) is op:
                    cursor = emit.at(op).value(async_copy.BeginFillOp(ring.name))
                    self.cursors[ring] = hint(cursor, f"{ring.name}_fill")
            self.convert(op, emit.at(op))
        for ring in self.plan.rings:
            emit.at(ring.filled_at)(async_copy.DrainOp(ring.name))

    def convert(self, op: Operation, emit: Emitter) -> None:
        """What the producer does of one op of level 2: copies, loops, and index arithmetic that these need."""
        for ring in self.plan.rings:
            if ring.filled_at is op:
                self.fill(ring, emit)
        if op in self.plan.copies.ops and op not in self.plan.staying:
            if isinstance(op, scf.ForOp):
                self.loop(op, emit)
            else:
                emit(op.clone(self.values))

    def fill(self, ring: Ring, emit: Emitter) -> None:
        """Acquire a slot, copy each field into it, commit it."""
        acquire = emit(async_copy.AcquireOp(self.cursors[ring]))
        self.cursors[ring] = hint(acquire.next, f"{ring.name}_next")
        slot = hint(acquire.slot, f"{ring.name}_slot")
        for load, name in ring.fields.items():
            indices = [self.values.get(index, index) for index in load.indices]
            view = self.values.get(load.view, load.view)
            shared, first = load.shared is not None, ring.in_loop and evicted_first(load, self.plan.schedule.evict)
            emit.at(load)(async_copy.CopyOp(view, indices, slot, name, shared=shared, evict_first=first))
        emit(async_copy.CommitOp(slot))

    def loop(self, op: scf.ForOp, emit: Emitter) -> None:
        """The same loop, carrying the iteration arguments that offsets need and the cursors of the rings inside."""
        old, carried, rings = op.body.block, self.plan.copies.carries(op), self.plan.rings_inside(op)
        starts = [self.values.get(op.iter_args[i], op.iter_args[i]) for i in carried]
        starts += [self.cursors[ring] for ring in rings]
        bounds = [self.values.get(v, v) for v in (op.lb, op.ub, op.step)]
        body = Block(arg_types=[old.args[0].type, *(v.type for v in starts)])
        for number, arg in zip([0, *(i + 1 for i in carried)], body.args, strict=False):
            self.values[old.args[number]] = hint(arg, old.args[number].name_hint)
        for ring, arg in zip(rings, body.args[1 + len(carried) :], strict=True):
            self.cursors[ring] = hint(arg, f"{ring.name}_cursor")
        inner = emit.inside(body)
        for inside in old.ops:
            self.convert(inside, inner.at(inside))
        last = old.last_op
        assert last is not None
        ends = [self.values.get(last.operands[i], last.operands[i]) for i in carried]
        inner.at(last)(scf.YieldOp(*ends, *(self.cursors[ring] for ring in rings)))
        new = emit.at(op)(scf.ForOp(bounds[0], bounds[1], bounds[2], starts, body))
        for i, result in zip(carried, new.results, strict=False):
            self.values[op.results[i]] = hint(result, op.results[i].name_hint)
        for ring, result in zip(rings, new.results[len(carried) :], strict=True):
            self.cursors[ring] = hint(result, f"{ring.name}_fill")
