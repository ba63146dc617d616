"""The consumer that `lower-tile` writes: tiles as fragments of warps, products as k-steps, results on their way out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Block, Operation, SSAValue

from emmy.atoms import Atom, accumulator_feeds, any_atom, get_atom
from emmy.dialects import async_copy, mma, tile
from emmy.dialects.common import Index, MapKind, MapKindAttr
from emmy.dialects.tensor_op import EIGHT_BITS, K_MAJOR_ONLY, AccumulateAttr, contraction
from emmy.errors import EmmyError
from emmy.locations import located, location_of
from emmy.lowering.tile_exchange import LEFT, End, Exchange
from emmy.lowering.tile_plan import Outbound, Plan, hint, is_matrix
from emmy.lowering.tile_redo import Redo, wants_redo
from emmy.lowering.tile_rings import Ring, is_index_arithmetic, tile_type
from emmy.passes.emitter import Emitter
from emmy.schedules import WARPGROUP_ATOM

OpT = TypeVar("OpT", bound=Operation)


@dataclass
class ConsumerHalf:
    """Writes the reading half: tiles as fragments, waits and releases around the uses of slots, results on their way out.

    `prelude` collects constants and this warp's offsets, which come first in the block.
    """

    plan: Plan
    values: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])
    cursors: dict[Ring | Outbound | End, SSAValue] = field(default_factory=dict["Ring | Outbound | End", SSAValue])
    slots: dict[SSAValue, tuple[SSAValue, str]] = field(default_factory=dict[SSAValue, tuple[SSAValue, str]])
    loaded: dict[tuple[SSAValue, Block], SSAValue] = field(default_factory=dict[tuple[SSAValue, Block], SSAValue])
    prelude: list[Operation] = field(default_factory=list[Operation])
    constants: dict[int, SSAValue] = field(default_factory=dict[int, SSAValue])
    offsets: dict[tuple[int, int], SSAValue] = field(default_factory=dict[tuple[int, int], SSAValue])
    carried: list[Ring | Outbound | End] = field(default_factory=list["Ring | Outbound | End"])
    held: dict[tile.DotOp, list[SSAValue]] = field(default_factory=dict[tile.DotOp, list[SSAValue]])
    """Fragments of operands a, by k-step, that were loaded before the loop."""

    def build(self, block: Block) -> None:
        """Fill the consumer's block."""
        kernel, emit = self.plan.kernel, Emitter(block, self.plan.kernel)
        for op in self.plan.staying:
            if isinstance(op, arith.ConstantOp) and isinstance(op.value, IntegerAttr) and op.result.type == Index:
                self.constants.setdefault(op.value.value.data, op.result)
        for op in kernel.block.ops:
            if op in self.plan.staying:
                continue
            self.begin(op, emit.at(op))
            self.convert(op, emit.at(op))
            self.end(op, emit.at(op))

        for new in self.prelude:
            new.location = kernel.location
        if block.first_op is None:
            block.add_ops(self.prelude)
        else:
            block.insert_ops_before(self.prelude, block.first_op)

    def begin(self, op: Operation, emit: Emitter) -> None:
        """The first cursors of the pipelines whose uses begin in `op`, an op of the kernel's block."""
        for ring in self.plan.rings:
            if self.plan.outermost(ring.first_use) is op:
                self.cursors[ring] = hint(emit.value(async_copy.BeginReadOp(ring.name)), f"{ring.name}_read")
        for out in self.plan.outbound.values():
            if self.plan.outermost(out.store) is op:
                self.cursors[out] = hint(emit.value(async_copy.BeginFillOp(out.name)), f"{out.name}_fill")
        for one in self.plan.exchanges.values():
            if self.plan.outermost(one.use) is op:
                self.cursors[one.fill] = hint(emit.value(async_copy.BeginFillOp(one.name)), f"{one.name}_fill")
                self.cursors[one.read] = hint(emit.value(async_copy.BeginReadOp(one.name)), f"{one.name}_read")

    def end(self, op: Operation, emit: Emitter) -> None:
        """Drain the pipelines whose uses end in `op`, an op of the kernel's block."""
        for ring in self.plan.rings:
            if self.plan.outermost(ring.last_use) is op:
                emit(async_copy.DrainOp(ring.name))
        for out in self.plan.outbound.values():
            if self.plan.outermost(out.store) is op:
                emit(async_copy.DrainOp(out.name))
        for one in self.plan.exchanges.values():
            if self.plan.outermost(one.use) is op:
                emit(async_copy.DrainOp(one.name))

    def convert(self, op: Operation, emit: Emitter) -> None:
        """One op of level 2, with the waits before it and the releases after it."""
        for ring in self.plan.rings:
            if ring.first_use is op:
                self.wait(ring, emit)
        convert = CONVERSIONS.get(type(op))
        if convert is not None:
            convert(self, op, emit)
        elif is_index_arithmetic(op):
            emit(op.clone(self.values))
        else:
            raise EmmyError(f"lower-tile cannot lower {op.name} yet", location_of(op))
        if not isinstance(op, scf.YieldOp):
            self.release_after(op, emit)

    def wait(self, ring: Ring, emit: Emitter) -> None:
        """Wait for the next slot of a ring; its fields can be read from here on."""
        wait = emit(async_copy.WaitOp(self.cursors[ring]))
        self.cursors[ring] = hint(wait.next, f"{ring.name}_next")
        slot = hint(wait.slot, f"{ring.name}_slot")
        for load, name in ring.fields.items():
            self.slots[load.result] = (slot, name)

    def release_after(self, op: Operation, emit: Emitter) -> None:
        """Release the slots whose last use `op` is."""
        for ring in self.plan.rings:
            if ring.last_use is op:
                slot, _ = self.slots[next(iter(ring.fields)).result]
                emit.at(op)(async_copy.ReleaseOp(slot))

    # ---- where a warp's part of a tile is

    def constant(self, number: int) -> SSAValue:
        """An index constant, made once."""
        if number not in self.constants:
            op = arith.ConstantOp(IntegerAttr(number, Index))
            self.prelude.append(op)
            self.constants[number] = hint(op.result, f"c{number}")
        return self.constants[number]

    def offset(self, axis: int, extent: int) -> SSAValue:
        """Element offset of this warp's part of `extent` elements that are split over a warp axis."""
        warps = self.plan.schedule.warps
        if extent == 1 or warps[axis] == 1:
            return self.constant(0)
        if (axis, extent) not in self.offsets:
            warp = mma.WarpOp(axis, warps, by_columns=self.plan.schedule.atom == WARPGROUP_ATOM and warps[1] > 1)
            each = self.constant(extent // warps[axis])
            at = arith.MuliOp(warp.result, each)
            self.prelude += [warp, at]
            hint(warp.result, ("warp_m", "warp_n")[axis])
            self.offsets[axis, extent] = hint(at.result, ("row", "col")[axis])
        return self.offsets[axis, extent]

    def part(self, axis: int, extent: int, step: int, op: Operation) -> int:
        """How many of `extent` rows (axis 0) or columns (axis 1) one warp has: whole steps of the atom, or the only one."""
        warps = self.plan.schedule.warps[axis]
        if extent != 1 and extent % (warps * step):
            raise EmmyError(
                f"{extent} {('rows', 'columns')[axis]} of a tile do not split over {warps} warps "
                f"in multiples of {step}, as {self.plan.fragment_atom} needs",
                location_of(op),
            )
        return extent if extent == 1 else extent // warps

    def shape(self, op: Operation) -> Atom:
        """An atom of the schedule's shape, which is the same for all element types."""
        with located(op):
            return any_atom(self.plan.fragment_atom)

    def atom(self, op: Operation, a: str, b: str, accumulator: str) -> Atom:
        """The schedule's atom for these element types."""
        with located(op):
            return get_atom(self.plan.fragment_atom, a, accumulator, b_dtype=b)

    def fragment_type(self, type_: tile.TileType, op: Operation) -> mma.FragmentType:
        """What one warp holds of a tile: a fragment of place c. Rank 1 is one row."""
        shape = type_.get_shape()
        if len(shape) > 2:
            raise EmmyError(
                f"lower-tile takes tiles of rank 1 or 2; {op.name} has one of rank {len(shape)}", location_of(op)
            )
        rows, cols = (1, *shape)[-2:]
        atom = self.shape(op)
        held = (self.part(0, rows, atom.m, op), self.part(1, cols, atom.n, op))
        return mma.FragmentType.get(held, type_.element_type, "c", atom.name)

    def held_type(self, value: SSAValue, op: Operation) -> mma.FragmentType:
        """What one warp holds of a tile. Of a sum in parts, and of what is computed whole, it is all columns."""
        if value not in self.plan.partial and value not in self.plan.whole:
            return self.fragment_type(tile_type(value), op)
        (rows, cols), atom = tile_type(value).get_shape(), self.shape(op)
        return mma.FragmentType.get(
            (self.part(0, rows, atom.m, op), cols), tile_type(value).element_type, "c", atom.name
        )

    def position(self, shape: Sequence[int]) -> list[SSAValue]:
        """Element offsets of this warp's part in a tile, one for each dimension."""
        return [self.offset(axis, extent) for axis, extent in zip((0, 1)[-len(shape) :], shape, strict=True)]

    def position_of(self, value: SSAValue) -> list[SSAValue]:
        """The same of a tile of level 2, of which warps beside each other may each hold all columns."""
        position = self.position(tile_type(value).get_shape())
        return [*position[:-1], self.constant(0)] if value in self.plan.whole else position

    def moved(self, start: SSAValue, by: SSAValue, emit: Emitter) -> SSAValue:
        """An index plus this warp's offset."""
        start = self.values.get(start, start)
        return start if by is self.constants.get(0) else emit.value(arith.AddiOp(start, by))

    # ---- values

    def value(self, old: SSAValue, op: Operation, emit: Emitter) -> SSAValue:
        """What stands for a value of level 2 in `op`: a fragment for a tile (read from its slot, if it was loaded)."""
        if old not in self.slots:
            return self.values.get(old, old)
        if (old, emit.block) not in self.loaded:
            slot, name = self.slots[old]
            load = mma.LoadOp(slot, name, self.position_of(old), self.held_type(old, op))
            self.loaded[old, emit.block] = hint(emit.value(load), old.name_hint)
        return self.loaded[old, emit.block]

    def define(self, old: SSAValue, new: SSAValue) -> None:
        """From now on `new` stands for `old`."""
        self.values[old] = hint(new, old.name_hint)

    # ---- ops

    def load(self, op: tile.LoadOp, emit: Emitter) -> None:
        """Nothing: the uses of a load read its slot."""

    def fill(self, op: tile.FillOp, emit: Emitter) -> None:
        """The same fragment in every warp."""
        self.define(op.result, emit.value(mma.FillOp(op.value, self.held_type(op.result, op))))

    def map(self, op: tile.MapOp, emit: Emitter) -> None:
        """Elementwise on fragments: sizes of 1 and scalars broadcast as they do on tiles."""
        args = [self.value(arg, op, emit) for arg in op.args]
        self.define(op.result, emit.value(mma.MapOp(op.kind, args, self.held_type(op.result, op))))

    def cast(self, op: tile.CastOp, emit: Emitter) -> None:
        """The same fragment with another element type."""
        type_ = self.held_type(op.result, op)
        self.define(op.result, emit.value(mma.ConvertOp(self.value(op.arg, op, emit), type_)))

    def reduce(self, op: tile.ReduceOp, emit: Emitter) -> None:
        """Of columns; where several warps hold a row, each reduces its part, and then all parts, or sums stay in parts.

        Of rows, which one warp has whole, and as few are left as there can be.
        """
        source, exchange = tile_type(op.arg), self.plan.exchanges.get(op)
        if len(source.get_shape()) != 2:
            raise EmmyError("lower-tile reduces tiles of two dimensions", location_of(op))
        value = self.value(op.arg, op, emit)
        if op.axis.value.data == 0:
            if self.plan.schedule.warps[0] > 1 or tile_type(op.result).get_shape()[0] > 1:
                raise EmmyError(
                    "lower-tile reduces the rows of a tile to one, where no others of them are another warp's",
                    location_of(op),
                )
            columns = self.held_type(op.result, op).get_shape()[1]
            self.define(op.result, emit.value(mma.ReduceOp(op.kind, value, columns, 1)))
            return
        if exchange is None:
            kept = self.held_type(op.result, op).get_shape()[1]
            if self.plan.schedule.warps[1] > 1 and op.result not in self.plan.partial and op.arg not in self.plan.whole:
                raise EmmyError("where warps split columns, a maximum is over whole rows", location_of(op))
            self.define(op.result, emit.value(mma.ReduceOp(op.kind, value, kept)))
            return
        rows, wide = exchange.type.get_shape()
        if cast(mma.FragmentType, value.type).get_shape()[1] != LEFT:
            value = emit.value(mma.ReduceOp(op.kind, value, LEFT))
        slot = self.exchange(exchange, value, [self.offset(0, rows), self.offset(1, wide)], emit)
        held = cast(mma.FragmentType, value.type)
        all_parts = mma.FragmentType.get((held.get_shape()[0], wide), held.element_type, "c", held.atom.data)
        loaded = emit.value(mma.LoadOp(slot, exchange.name, [self.offset(0, rows), self.constant(0)], all_parts))
        emit(async_copy.ReleaseOp(slot))
        self.define(op.result, emit.value(mma.ReduceOp(op.kind, loaded, 1)))

    def exchange(self, one: Exchange, value: SSAValue, at: Sequence[SSAValue], emit: Emitter) -> SSAValue:
        """Write this warp's part into an exchange; the slot in which all parts are, to be released."""
        acquire = emit(async_copy.AcquireOp(self.cursors[one.fill]))
        emit(mma.StoreOp(value, hint(acquire.slot, f"{one.name}_slot"), one.name, at))
        emit(async_copy.CommitOp(acquire.slot))
        wait = emit(async_copy.WaitOp(self.cursors[one.read]))
        self.cursors[one.fill] = hint(acquire.next, f"{one.name}_next")
        self.cursors[one.read] = hint(wait.next, f"{one.name}_next")
        return hint(wait.slot, f"{one.name}_all")

    def cluster_sum(self, op: tile.ClusterSumOp, emit: Emitter) -> None:
        """Each other CTA of the cluster gets its columns, and gives this one's, which are added to the own ones in order."""
        one, sums = self.plan.exchanges[op], self.value(op.arg, op, emit)
        if self.plan.schedule.warps[1] > 1:
            raise EmmyError("a sum over a cluster is cut where one warp holds a whole row", location_of(op))
        rows, _ = tile_type(op.arg).get_shape()
        row, part = self.offset(0, rows), self.values.get(op.part, op.part)
        acquire = emit(async_copy.AcquireOp(self.cursors[one.fill]))
        emit(mma.ScatterOp(sums, part, hint(acquire.slot, f"{one.name}_slot"), one.name, row))
        emit(async_copy.CommitOp(acquire.slot))
        total = emit.value(mma.PartOp(sums, part, one.ctas))
        wait = emit(async_copy.WaitOp(self.cursors[one.read]))
        slot, type_ = hint(wait.slot, f"{one.name}_all"), self.held_type(op.result, op)
        for number in range(one.ctas - 1):
            at = row if number == 0 else emit.value(arith.AddiOp(row, self.constant(number * rows)))
            other = emit.value(mma.LoadOp(slot, one.name, [at, self.constant(0)], type_))
            total = emit.value(mma.MapOp(MapKindAttr(MapKind.ADD), [total, other], type_))
        emit(async_copy.ReleaseOp(slot))
        self.define(op.result, total)

    def coord(self, op: tile.CoordOp, emit: Emitter) -> None:
        """Counted from where this warp's part begins."""
        shape = tile_type(op.result).get_shape()
        axis = op.axis.value.data + 2 - len(shape)
        start = self.moved(op.base, self.position_of(op.result)[op.axis.value.data], emit)
        self.define(op.result, emit.value(mma.CoordOp(axis, start, self.held_type(op.result, op))))

    def squeeze(self, op: tile.SqueezeOp, emit: Emitter) -> None:
        """The same fragment: a store runs along whichever axis is left."""
        if not all(isinstance(use.operation, tile.StoreOp) for use in op.result.uses):
            raise EmmyError("what tile.squeeze gives can be stored, and nothing else", location_of(op))
        self.define(op.result, self.value(op.arg, op, emit))

    def dot(self, op: tile.DotOp, emit: Emitter) -> None:
        """One `mma.mma` for each k-step; a and b are read from their slots, transposed if they are stored that way."""
        a, b, c = (tile_type(v) for v in (op.a, op.b, op.acc))
        ta, tb = op.transpose_a is not None, op.transpose_b is not None
        acc, held = self.value(op.acc, op, emit), self.held_type(op.result, op)
        m, n, k, _ = contraction(a.get_shape(), b.get_shape(), ta, tb)
        atom = self.atom(op, *(str(type_.element_type) for type_ in (a, b, c)))
        if isinstance(a.element_type, EIGHT_BITS) and (ta or not tb):
            raise EmmyError(K_MAJOR_ONLY, location_of(op))
        if k % atom.k:
            raise EmmyError(f"a dot over {k} elements of K is not whole k-steps of {atom.k}", location_of(op))
        if wants_redo(op) and (not isinstance(op.parent_op(), scf.ForOp) or str(c.element_type) != "f32"):
            raise EmmyError("overflow = redo needs a product in a loop that sums in f32", location_of(op))
        row, col = self.offset(0, m), self.constant(0) if op.result in self.plan.whole else self.offset(1, n)
        rows, cols = held.get_shape()
        a_type = mma.FragmentType.get((rows, atom.k), a.element_type, "a", atom.name)
        b_type = mma.FragmentType.get((cols, atom.k), b.element_type, "b", atom.name)
        policy = policy_left(op.accumulate, str(c.element_type))
        if op.b not in self.slots:
            raise EmmyError("lower-tile takes operand b of a tile.dot from a tile.load only", location_of(op))
        exchange, computed = self.plan.exchanges.get(op), None
        if exchange is not None:
            mine = self.value(op.a, op, emit)
            slot = self.exchange(exchange, mine, self.position(a.get_shape()), emit)
            self.slots[op.a] = slot, exchange.name
        elif op.a not in self.slots:
            computed = self.computed_operand(op, (rows, k), atom, emit)
        slot_b, field_b = self.slots[op.b]
        for step in range(k // atom.k):
            at = self.constant(step * atom.k)
            if op in self.held:
                fa = self.held[op][step]
            elif computed is not None:
                fa = emit.value(mma.SliceOp(computed, (0, step * atom.k), a_type))
            else:
                slot_a, field_a = self.slots[op.a]
                fa = emit.value(mma.LoadOp(slot_a, field_a, [at, row] if ta else [row, at], a_type, ta))
            fb = emit.value(mma.LoadOp(slot_b, field_b, [col, at] if tb else [at, col], b_type, not tb))
            acc = emit.value(mma.MmaOp(hint(fa, f"a{step}"), hint(fb, f"b{step}"), acc, policy))
        if exchange is not None:
            emit(async_copy.ReleaseOp(self.slots.pop(op.a)[0]))
        self.define(op.result, acc)

    def hold(self, loop: scf.ForOp, emit: Emitter) -> None:
        """Load the operands a that a loop's products take from outside of it, as a whole, before the loop."""
        for op in loop.body.block.ops:
            load = op.a.owner if isinstance(op, tile.DotOp) else None
            if not isinstance(op, tile.DotOp) or not isinstance(load, tile.LoadOp) or load.parent is loop.body.block:
                continue
            a, ta = tile_type(op.a), op.transpose_a is not None
            rows, depth = a.get_shape()[::-1] if ta else a.get_shape()
            atom = self.atom(op, *(str(tile_type(value).element_type) for value in (op.a, op.b, op.acc)))
            type_ = mma.FragmentType.get((self.part(0, rows, atom.m, op), atom.k), a.element_type, "a", atom.name)
            (slot, name), row = self.slots[op.a], self.offset(0, rows)
            self.held[op] = []
            for step in range(0, depth, atom.k):
                at = [self.constant(step), row] if ta else [row, self.constant(step)]
                fragment = emit.value(mma.LoadOp(slot, name, at, type_, ta))
                self.held[op].append(hint(fragment, f"a{step // atom.k}"))

    def computed_operand(self, op: tile.DotOp, shape: tuple[int, int], atom: Atom, emit: Emitter) -> SSAValue:
        """Operand a of a dot that is no load: what warps hold as place c, converted to place a (with the cast before it)."""
        if op.transpose_a is not None or not accumulator_feeds(atom, atom, *shape):
            raise EmmyError(
                "lower-tile takes a computed operand a of a tile.dot only where it lies in registers as the atom wants it, "
                "and not transposed",
                location_of(op),
            )
        source = op.a.owner.arg if isinstance(op.a.owner, tile.CastOp) else op.a
        type_ = mma.FragmentType.get(shape, tile_type(op.a).element_type, "a", atom.name)
        return hint(emit.value(mma.ConvertOp(self.value(source, op, emit), type_)), op.a.name_hint)

    def store(self, op: tile.StoreOp, emit: Emitter) -> None:
        """Through the store's outbound pipeline, or straight from registers."""
        shape, value = tile_type(op.value).get_shape(), self.value(op.value, op, emit)
        position = self.position_of(op.value)
        if isinstance(op.value.owner, tile.SqueezeOp):
            position = [self.offset(1 - op.value.owner.axis.value.data, shape[-1])]
        elif not is_matrix(tile_type(op.value)):
            got = "x".join(map(str, shape))
            remedy = "; make a tensor<Nxf16> of one dimension a tensor<1xNxf16>" if len(shape) == 1 else ""
            message = f"kernels store tiles of two dimensions, neither of them 1; got {got}{remedy}"
            raise EmmyError(message, location_of(op))
        indices = [self.values.get(index, index) for index in op.indices]
        out, view = self.plan.outbound.get(op), self.values.get(op.view, op.view)
        if out is None:
            count = len(position)
            moved = [self.moved(i, at, emit) for i, at in zip(indices[-count:], position, strict=True)]
            emit(mma.StoreGlobalOp(value, view, [*indices[:-count], *moved]))
            return
        for part in range(out.parts):
            acquire = emit(async_copy.AcquireOp(self.cursors[out]))
            self.cursors[out] = hint(acquire.next, f"{out.name}_next")
            slot = hint(acquire.slot, f"{out.name}_slot")
            leaving, at = value, indices
            if out.parts > 1:
                held = cast(mma.FragmentType, value.type)
                rows, atom = held.get_shape()[0], held.atom.data
                type_ = mma.FragmentType.get((rows, out.columns), held.element_type, "c", atom)
                leaving = emit.value(mma.SliceOp(value, (0, part * out.columns), type_))
                at = [*indices[:-1], self.moved(indices[-1], self.constant(part * out.columns), emit)]
            emit(mma.StoreOp(leaving, slot, out.field, position))
            emit(async_copy.StoreOp(slot, out.field, view, at))
            emit(async_copy.CommitOp(slot))

    def loop(self, op: scf.ForOp, emit: Emitter) -> None:
        """The same loop over fragments, carrying the cursors of the pipelines inside."""
        old, outer = op.body.block, self.carried
        stores = [out for out in self.plan.outbound.values() if op.is_ancestor(out.store)]
        ends = [end for one in self.plan.exchanges.values() if op.is_ancestor(one.use) for end in one.ends]
        self.carried = [*self.plan.rings_inside(op), *stores, *ends]
        starts = [self.value(arg, op, emit) for arg in op.iter_args] + [self.cursors[ring] for ring in self.carried]
        bounds = [self.values.get(v, v) for v in (op.lb, op.ub, op.step)]
        body = Block(arg_types=[old.args[0].type, *(v.type for v in starts)])
        for arg, new in zip(old.args, body.args, strict=False):
            self.define(arg, new)
        for ring, new in zip(self.carried, body.args[len(old.args) :], strict=True):
            self.cursors[ring] = hint(new, f"{ring.name}_cursor")
        if self.plan.schedule.hold:
            self.hold(op, emit)
        inner = emit.inside(body)
        for inside in old.ops:
            self.convert(inside, inner.at(inside))
        loop = emit.at(op)(scf.ForOp(bounds[0], bounds[1], bounds[2], starts, body))
        loop.attributes |= op.attributes
        sums: list[SSAValue] = list(loop.results[: len(op.results)])
        if wants_redo(op):
            sums = Redo(self.values, self.constant, self.offset).of_loop(op, sums, starts[: len(sums)], emit)
        for result, new in zip(op.results, sums, strict=True):
            self.define(result, new)
        for ring, new in zip(self.carried, loop.results[len(op.results) :], strict=True):
            self.cursors[ring] = hint(new, f"{ring.name}_done")
        self.carried = outer

    def yield_(self, op: scf.YieldOp, emit: Emitter) -> None:
        """The end of a loop's body: slots whose last use it is are released just before."""
        ends = [self.value(arg, op, emit) for arg in op.arguments]
        self.release_after(op, emit)
        emit(scf.YieldOp(*ends, *(self.cursors[ring] for ring in self.carried)))


def policy_left(policy: AccumulateAttr | None, accumulator: str) -> AccumulateAttr | None:
    """The policy, unless an accumulator of this type is all that it asks for."""
    return None if policy is None or policy.policy.data == accumulator else policy


CONVERSIONS: dict[type[Operation], Callable[[ConsumerHalf, Operation, Emitter], None]] = {}
"""How the consumer writes each op of level 2; what is not here is index arithmetic, or an error."""


def _register(op: type[OpT], convert: Callable[[ConsumerHalf, OpT, Emitter], None]) -> None:
    def typed(half: ConsumerHalf, operation: Operation, emit: Emitter) -> None:
        assert isinstance(operation, op)
        convert(half, operation, emit)

    CONVERSIONS[op] = typed


_register(tile.LoadOp, ConsumerHalf.load)
_register(tile.FillOp, ConsumerHalf.fill)
_register(tile.MapOp, ConsumerHalf.map)
_register(tile.CastOp, ConsumerHalf.cast)
_register(tile.ReduceOp, ConsumerHalf.reduce)
_register(tile.ClusterSumOp, ConsumerHalf.cluster_sum)
_register(tile.CoordOp, ConsumerHalf.coord)
_register(tile.SqueezeOp, ConsumerHalf.squeeze)
_register(tile.DotOp, ConsumerHalf.dot)
_register(tile.StoreOp, ConsumerHalf.store)
_register(scf.ForOp, ConsumerHalf.loop)
_register(scf.YieldOp, ConsumerHalf.yield_)
