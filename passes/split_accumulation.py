"""`split-accumulation`: sums of the hybrid policy become partial sums that are promoted into f32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, cast

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import AnyFloat, Float32Type, FloatAttr, IndexType, IntegerAttr, ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.traits import MemoryEffectKind, get_effects

from emmy.atoms import any_atom
from emmy.dialects import mma, tile
from emmy.dialects.common import constant
from emmy.dialects.tensor_op import partial_sum_type
from emmy.errors import EmmyError
from emmy.locations import location_of
from emmy.passes.emitter import Emitter
from emmy.schedules import WARPGROUP_ATOM, Schedule

Order = Literal["auto", "slices", "steps"]
Place = tuple[int, int]

SLICE_COLUMNS = 16
"""Columns of an accumulator slice: what one ldmatrix.x4 of operand b feeds in one k-step."""

REGISTERS = 232
"""Registers up to which accumulators, operands and partial sums may go together: 255 without those for addresses and counters."""


@dataclass(frozen=True)
class SplitAccumulation(ModulePass):
    """Contract: in `tile.kernel` bodies no `mma.mma` asks for the hybrid policy any more; sums stay f32.

    Accepts any form of level 3 in which fragments exist, best right after `lower-tile`: products whose operands are loads of
    the same block are cut by cutting those loads, other operands by `mma.slice`.

    Guarantees: of consecutive k-steps (a chain of `mma.mma`, each adding to the one before), at most `promote` contraction
    elements (by default the schedule's `promote`, else the policy's `max_k`) are summed in f16, from zero, before
    `mma.promote` adds them into the f32 sum. Partial sums of 8-bit operands are f32, too, unless the policy says
    `partial = f16`: what they are short of is bits inside the tensor cores. Where a loop body holds fewer than half of them and
    the registers suffice, the partial sum is carried through the loop and promoted every so many iterations, and once behind the
    loop; else it ends with the body: more often, never less. Loads cross no op that moves or waits for data.

    `order` (by default the schedule's `partials`) is how products follow each other inside a partial, which decides what is
    in registers at once:
    * `slices`: slice by slice of the accumulator (16 columns of all rows, or of some), all k-steps of a slice, then its
      promotion. Live: operand a of all k-steps for those rows, one slice of partial sums. Not for partials that are carried
      or have events between their k-steps.
    * `steps`: k-step by k-step, all slices of one before the next. Live: partial sums of the whole fragment, operand a of
      one k-step.
    `auto`: the first that the registers suffice for of: slices of all rows, steps, slices of fewer rows. Products of
    warpgroups (`wgmma`), which read operands where they lie, have one slice: all rows and columns.

    Before:                                                       After (slices of 16 columns; here two k-steps a partial):
        %a0 = mma.load %s["a"][%row, %c0]                             %a0 = mma.load %s["a"][%row, %c0]
        %b0 = mma.load %s["b"][%col, %c0]                             %b00 = mma.load %s["b"][%col, %c0]
        %s0 = mma.mma %a0, %b0, %s accumulate<hybrid, max_k = 32>     %p00 = mma.mma %a0, %b00, %zero        // 64x16xf16
        %a1 = mma.load %s["a"][%row, %c16]                            %a1 = mma.load %s["a"][%row, %c16]
        %b1 = mma.load %s["b"][%col, %c16]                            %b01 = mma.load %s["b"][%col, %c16]
        %s1 = mma.mma %a1, %b1, %s0 accumulate<hybrid, max_k = 32>    %p01 = mma.mma %a1, %b01, %p00
                                                                      %t0 = mma.slice %s at [0, 0]
                                                                      %d0 = mma.promote %p01 into %t0         // 64x16xf32
                                                                      ... columns 16 to 31, 32 to 47, 48 to 63 ...
                                                                      %s1 = mma.join %d0, %d1, %d2, %d3 axis 1
    """

    name = "split-accumulation"
    promote: int | None = None
    order: Order | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.promote is not None and (self.promote < 16 or self.promote % 16):
            raise EmmyError(f"split-accumulation promotes after a multiple of 16 elements, got {self.promote}")
        for kernel in op.walk():
            if isinstance(kernel, tile.KernelOp):
                schedule = kernel.schedule.data if kernel.schedule else Schedule()
                order = self.order or schedule.partials
                for chain in list(chains(kernel)):
                    whole = schedule.atom == WARPGROUP_ATOM
                    Splitter(chain, self.promote or schedule.promote, order, whole).run()


def is_hybrid(op: Operation) -> bool:
    """A product that asks for the hybrid policy in an f32 sum."""
    if not isinstance(op, mma.MmaOp) or op.accumulate is None or op.accumulate.policy.data != "hybrid":
        return False
    return isinstance(cast(mma.FragmentType, op.c.type).element_type, Float32Type)


def chains(kernel: tile.KernelOp) -> Iterator[list[mma.MmaOp]]:
    """Products of one policy and block, each adding to the sum of the one before, which nothing else uses."""
    done: set[Operation] = set()
    for op in kernel.walk():
        if not is_hybrid(op) or op in done:
            continue
        last = cast(mma.MmaOp, op)
        chain = [last]
        while (following := next_product(last)) is not None:
            chain.append(following)
            last = following
        done.update(chain)
        yield chain


def next_product(product: mma.MmaOp) -> mma.MmaOp | None:
    """The product that goes on with a sum, if that is all that is done with it."""
    uses = list(product.result.uses)
    if len(uses) != 1:
        return None
    user = uses[0].operation
    if not isinstance(user, mma.MmaOp) or user.c is not product.result or user.parent is not product.parent:
        return None
    same = is_hybrid(user) and user.accumulate == product.accumulate and user.a.type == product.a.type
    return user if same and user.b.type == product.b.type else None


def only_reads(op: Operation) -> bool:
    """Whether loads may be moved across an op."""
    effects = get_effects(op)
    return not op.regions and effects is not None and all(e.kind == MemoryEffectKind.READ for e in effects)


def segments(products: Sequence[mma.MmaOp]) -> list[list[mma.MmaOp]]:
    """The k-steps of a partial, cut where an event stands between two of them."""
    found = [[products[0]]]
    for before, after in pairwise(products):
        op = before.next_op
        while op is not None and op is not after and only_reads(op):
            op = op.next_op
        if op is after:
            found[-1].append(after)
        else:
            found.append([after])
    return found


@dataclass(frozen=True)
class Grid:
    """How an accumulator is cut: (rows, columns) of it and of a slice."""

    shape: Place
    slice: Place

    @property
    def places(self) -> list[Place]:
        """Where the slices begin, columns fastest."""
        rows, columns = (range(0, size, step) for size, step in zip(self.shape, self.slice, strict=True))
        return [(row, column) for row in rows for column in columns]


def live_registers(grid: Grid, steps: int, each: int) -> int:
    """32-bit registers by slices: f32 sums, operand a of `steps` k-steps, one slice of partial sums, b double-buffered.

    each: partial sums in a register. A k-step is 32 bytes of a row.
    """
    rows, columns = grid.slice
    operands = (rows * 16 * steps + 2 * columns * 16) // 64
    return grid.shape[0] * grid.shape[1] // 32 + operands + rows * columns // (32 * each)


def live_registers_by_steps(grid: Grid, each: int) -> int:
    """The same by steps: f32 sums, all partial sums, a and b double-buffered."""
    (rows, columns), (_, slice_columns) = grid.shape, grid.slice
    return rows * columns // 32 + rows * columns // (32 * each) + 2 * (rows + slice_columns) * 16 // 64


def bands(shape: Place, atom: str) -> list[Grid]:
    """Ways to cut an accumulator into slices: all rows, half of them, and so on; the columns of one ldmatrix.x4."""
    columns = SLICE_COLUMNS if shape[1] % SLICE_COLUMNS == 0 else any_atom(atom).n
    rows, least, found = shape[0], any_atom(atom).m, [Grid(shape, (shape[0], columns))]
    while rows % (2 * least) == 0:
        rows //= 2
        found.append(Grid(shape, (rows, columns)))
    return found


class Splitter:
    """Rewrites one chain. `sums`: the f32 slices of the accumulator so far; `partials`: those that are not finished."""

    def __init__(self, chain: Sequence[mma.MmaOp], promote: int, order: str, whole: bool):
        """promote: contraction elements of a partial, 0 for the policy's max_k. whole: the accumulator is not cut."""
        self.chain = chain
        self.type = cast(mma.FragmentType, chain[0].c.type)
        policy, a = chain[0].accumulate, cast(mma.FragmentType, chain[0].a.type)
        assert policy is not None
        self.partial: AnyFloat = partial_sum_type(policy, a.element_type)
        each_register = 32 // self.partial.bitwidth
        depth, limit = a.get_shape()[1], policy.max_k.data
        if depth > limit:
            raise EmmyError(f"a product of {depth} elements is more than max_k = {limit}", location_of(chain[0]))
        wanted = min(promote or limit, limit)
        each = max(wanted // depth, 1)
        self.groups = [segments(chain[start : start + each]) for start in range(0, len(chain), each)]
        shape = cast(Place, self.type.get_shape())
        grids = [Grid(shape, shape)] if whole else bands(shape, self.type.atom.data)
        longest = max(len(part) for parts in self.groups for part in parts) * depth // any_atom(a.atom.data).k
        fitting = [grid for grid in grids if live_registers(grid, longest, each_register) <= REGISTERS]
        steps_fit = live_registers_by_steps(grids[0], each_register) <= REGISTERS
        unbroken = all(len(parts) == 1 for parts in self.groups)
        rounds = wanted // (depth * len(chain))
        self.rounds = rounds if rounds > 1 and order != "slices" and steps_fit and carrying_loop(chain) else 1
        """Iterations of the loop around a chain after which its carried partial sums are promoted; 1: none are carried."""
        by_default = bool(fitting) and (fitting[0] is grids[0] or not steps_fit)
        self.by_slices = self.rounds == 1 and unbroken and order != "steps" and (order == "slices" or by_default)
        self.grid = (fitting or grids[-1:] if self.by_slices else grids)[0]
        self.sums: dict[Place, SSAValue] = {}
        self.partials: dict[Place, SSAValue] = {}
        self.offsets: dict[tuple[SSAValue, int], SSAValue] = {}

    def run(self) -> None:
        """Replace the chain by partials, promotions and one join."""
        last = self.chain[-1]
        if self.rounds > 1:
            self.carry()
        else:
            for parts in self.groups:
                for number, part in enumerate(parts):
                    self.segment(part, final=number == len(parts) - 1)
            last.result.replace_all_uses_with(self.joined(emitter_before(last), self.sums, self.type))
        loads = [op for product in self.chain for op in (product.a.owner, product.b.owner)]
        for op in (*reversed(self.chain), *dict.fromkeys(loads)):
            if isinstance(op, mma.MmaOp) or (isinstance(op, mma.LoadOp) and op.result.first_use is None):
                op.detach()
                op.erase()

    def carry(self) -> None:
        """The loop around the chain carries the partial sums and a count of iterations since they were promoted."""
        loop = carrying_loop(self.chain)
        assert loop is not None
        block, end, before = loop.body.block, self.chain[-1], emitter_before(loop)
        type_ = mma.FragmentType.get(self.grid.shape, self.partial, "c", self.type.atom.data)
        none = before.value(mma.FillOp(FloatAttr(0.0, self.partial), type_))
        zero, one, limit = (before.value(arith.ConstantOp(IntegerAttr(n, IndexType()))) for n in (0, 1, self.rounds))
        carried = block.insert_arg(type_, len(block.args))
        count = block.insert_arg(IndexType(), len(block.args))
        carried.name_hint, count.name_hint = "partial", "count"
        head = Emitter(block, end, block.first_op)
        slice_type = mma.FragmentType.get(self.grid.slice, self.partial, "c", self.type.atom.data)
        for place in self.grid.places:
            self.partials[place] = head.value(mma.SliceOp(carried, place, slice_type))
        for parts in self.groups:
            for part in parts:
                self.segment(part, final=False)
        emit = emitter_before(end)
        partial, total = self.joined(emit, self.partials, type_), self.chain[0].c
        following = emit.value(arith.AddiOp(count, one))
        full = emit.value(arith.CmpiOp(following, limit, "eq"))
        due, early = Block(), Block()
        emit.inside(due)(scf.YieldOp(emit.inside(due).value(mma.PromoteOp(partial, total)), none, zero))
        emit.inside(early)(scf.YieldOp(total, partial, following))
        types = [self.type, type_, IndexType()]
        chosen = emit(scf.IfOp(full, types, Region(due), Region(early)))
        end.result.replace_all_uses_with(chosen.results[0])
        new = rebuilt(loop, [none, zero], chosen.results[1:])
        sums = new.results[block.args.index(total) - 1]
        after = Emitter(cast(Block, new.parent), end, new.next_op)
        promoted = mma.PromoteOp(new.results[-2], sums)
        after(promoted)
        sums.replace_uses_with_if(promoted.result, lambda use: use.operation is not promoted)

    def segment(self, products: Sequence[mma.MmaOp], final: bool) -> None:
        """The k-steps of a partial that have no event between them, before the last of them. `final`: they end the partial."""
        emit = emitter_before(products[-1])
        operands = Operands(self.offsets)
        places = self.grid.places
        if self.by_slices:
            turns = [(place, product) for place in places for product in products]
        else:
            turns = [(place, product) for product in products for place in places]
        for place, product in turns:
            self.multiply(emit.at(product), operands, place, product)
            if final and product is products[-1]:
                self.promote(emit, place)

    def multiply(self, emit: Emitter, operands: Operands, place: Place, product: mma.MmaOp) -> None:
        """One k-step of one slice."""
        partial = self.partials.get(place)
        if partial is None:
            type_ = mma.FragmentType.get(self.grid.slice, self.partial, "c", self.type.atom.data)
            partial = emit.value(mma.FillOp(FloatAttr(0.0, self.partial), type_))
        a = operands.rows(emit, product.a, place[0], self.grid.slice[0])
        b = operands.rows(emit, product.b, place[1], self.grid.slice[1])
        self.partials[place] = emit.value(mma.MmaOp(a, b, partial))

    def promote(self, emit: Emitter, place: Place) -> None:
        """A finished slice of partial sums goes into the f32 sum."""
        total = self.sums.get(place, self.chain[0].c)
        if place not in self.sums and self.grid.slice != self.grid.shape:
            type_ = mma.FragmentType.get(self.grid.slice, self.type.element_type, "c", self.type.atom.data)
            total = emit.value(mma.SliceOp(total, place, type_))
        self.sums[place] = emit.value(mma.PromoteOp(self.partials.pop(place), total))

    def joined(self, emit: Emitter, parts: dict[Place, SSAValue], whole: mma.FragmentType) -> SSAValue:
        """Slices as one fragment."""
        (rows, columns), (each, _) = self.grid.shape, self.grid.slice
        found: list[SSAValue] = []
        for row in range(0, rows, each):
            slices = [parts[place] for place in self.grid.places if place[0] == row]
            type_ = mma.FragmentType.get((each, columns), whole.element_type, "c", whole.atom.data)
            found.append(slices[0] if len(slices) == 1 else emit.value(mma.JoinOp(slices, 1, type_)))
        return found[0] if len(found) == 1 else emit.value(mma.JoinOp(found, 0, whole))


def carrying_loop(chain: Sequence[mma.MmaOp]) -> scf.ForOp | None:
    """The loop whose body holds a chain as all that is done with one of its iteration arguments, or None."""
    loop, start, end = chain[0].parent_op(), chain[0].c, chain[-1].result
    if not isinstance(loop, scf.ForOp) or start not in loop.body.block.args[1:] or len(list(start.uses)) != 1:
        return None
    last, number = loop.body.block.last_op, loop.body.block.args.index(start) - 1
    ends = list(end.uses)
    return loop if len(ends) == 1 and ends[0].operation is last and ends[0].index == number else None


def rebuilt(loop: scf.ForOp, starts: Sequence[SSAValue], ends: Sequence[SSAValue]) -> scf.ForOp:
    """The loop with further iteration arguments, whose block arguments are there already: their first values and the next."""
    last = loop.body.block.last_op
    assert isinstance(last, scf.YieldOp)
    last.operands = [*last.operands, *ends]
    new = scf.ForOp(loop.lb, loop.ub, loop.step, [*loop.iter_args, *starts], loop.detach_region(0))
    emitter_before(loop)(new)
    for old, result in zip(loop.results, new.results, strict=False):
        result.name_hint = old.name_hint
        old.replace_all_uses_with(result)
    loop.detach()
    loop.erase()
    return new


def emitter_before(op: Operation) -> Emitter:
    """Builds before an op, at its source location."""
    block = op.parent
    assert isinstance(block, Block)
    return Emitter(block, op, op)


class Operands:
    """Parts of operand fragments, made where they are used."""

    def __init__(self, offsets: dict[tuple[SSAValue, int], SSAValue]):
        """offsets: the sums of an index and a known number that were made so far."""
        self.offsets = offsets
        self.parts: dict[tuple[SSAValue, int], SSAValue] = {}

    def rows(self, emit: Emitter, operand: SSAValue, first: int, count: int) -> SSAValue:
        """Rows `first` to `first + count` of a fragment: a smaller load where it is loaded here, else a slice of it.

        Parts of a are kept for the next columns; parts of b are made again for other rows, as registers would not hold all.
        """
        whole = cast(mma.FragmentType, operand.type)
        if (operand, first) in self.parts:
            return self.parts[operand, first]
        type_ = mma.FragmentType.get(
            (count, whole.get_shape()[1]), whole.element_type, whole.place.data, whole.atom.data
        )
        load = operand.owner
        if isinstance(load, mma.LoadOp) and reads_between(load, emit.anchor):
            part = self.load(emit, load, first, type_)
        else:
            part = operand if type_ == whole else emit.value(mma.SliceOp(operand, (first, 0), type_))
        if whole.place.data == "a":
            self.parts[operand, first] = part
        return part

    def load(self, emit: Emitter, load: mma.LoadOp, first: int, type_: mma.FragmentType) -> SSAValue:
        """A load of some rows of what `load` loads."""
        indices = list(load.indices)
        axis = len(indices) - (1 if load.transposed is not None else 2)
        if first:
            key = (indices[axis], first)
            if key not in self.offsets:
                self.offsets[key] = behind(*key)
            indices[axis] = self.offsets[key]
        part = mma.LoadOp(load.slot, load.field.data, indices, type_, load.transposed is not None)
        part.result.name_hint = load.result.name_hint
        return emit.value(part)


def behind(base: SSAValue, by: int) -> SSAValue:
    """`base` + a known number, computed where `base` is, so that a loop which does not change it holds nothing of it."""
    owner, block = base.owner, cast(Block, base.owner if isinstance(base.owner, Block) else base.owner.parent)
    emit = Emitter(block, owner if isinstance(owner, Operation) else None)
    emit.anchor = owner.next_op if isinstance(owner, Operation) else block.first_op
    known = constant(base)
    if known is not None:
        return emit.value(arith.ConstantOp(IntegerAttr(known + by, IndexType())))
    return emit.value(arith.AddiOp(base, emit.value(arith.ConstantOp(IntegerAttr(by, IndexType())))))


def reads_between(first: Operation, last: Operation | None) -> bool:
    """Whether `first` stands before `last` in one block, with no event between: then a load may be made again there."""
    op = first.next_op
    while op is not None and op is not last and only_reads(op):
        op = op.next_op
    return op is last
