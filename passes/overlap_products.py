"""`overlap-products`: a product with a computed operand runs one iteration later, under what that iteration computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import AnyFloat, FloatAttr, ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from emmy.dialects import async_copy as ac
from emmy.dialects import mma, tile
from emmy.passes.emitter import Emitter
from emmy.passes.linear_forms import IndexSums


@dataclass(frozen=True)
class OverlapProducts(ModulePass):
    """Contract: rewrites loops of `async_copy.consumer`s; every sum is added up in the same order, so no result changes.

    Accepts level 3 between `split-masks` and `issue-products`, with roles apart. By default it acts where the schedule says
    `overlap = 1`; `force` acts everywhere. It looks for loops that end with the product of a computed operand (*late*): the
    `mma.mma`s that take the slices of one `mma.convert`, the wait, loads and release of the slot that only they read. The loop
    carries the slot's cursor and the sums.

    Guarantees: in iteration j stands the late product of iteration j - 1, behind the other products; its wait is before, its
    release in front of the first use of its sums. The computed operand is carried. Loops that go on where one ended become: for
    each, an iteration without late product if none was before, and the rest with it; behind them the last late product. All are
    loops, of at most one iteration where that is meant. Cursors lag, and so the ring of the late slot is read as before.

    Why: the late product needs what is computed of the other one, so one iteration leaves either the tensor cores or all else
    idle. The next iteration's other product and the late one do not need each other.

    Before:                                            After (%s: where the loop begins, %x: %s + %c64, at most %hi):
        scf.for %j = %s to %hi step %c64 (%o)              scf.for %j = %s to %x step %c64 (%r = %o, %q = %zero)
          %k = wait @k                                       the same without the late product; yield rescaled %o, and %p
          %x = mma.mma .. %k ..                            scf.for %j = %x to %hi step %c64 (%r, %q)
          release @k, %k                                     %k = wait @k
          %p = .. of %x                                      %x = mma.mma .. %k ..
          %r = rescaled %o                                   %v = wait @v
          %v = wait @v                                       %o = mma.mma %q, .. %v .., %r
          %n = mma.mma %p, .. %v .., %r                      release @k, %k
          release @v, %v                                     %p = .. of %x
          yield %n                                           release @v, %v
                                                             yield rescaled %o, and %p
                                                           scf.for ..: %n = mma.mma %q, .. %v .., %r, if an iteration was
    """

    name = "overlap-products"
    force: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in [k for k in op.walk() if isinstance(k, tile.KernelOp)]:
            wanted = self.force or (kernel.schedule is not None and kernel.schedule.data.overlap)
            for block in blocks_of(kernel) if wanted else ():
                for chain in chains_of(block):
                    overlap(chain)


def blocks_of(kernel: tile.KernelOp) -> list[Block]:
    """All blocks of its consumers."""
    consumers = [op for op in kernel.block.ops if isinstance(op, ac.ConsumerOp)]
    return [b for c in consumers for op in c.walk() for region in op.regions for b in region.blocks]


@dataclass(frozen=True)
class Late:
    """The late product of a loop."""

    loop: scf.ForOp
    convert: mma.ConvertOp
    first: mma.MmaOp
    wait: ac.WaitOp
    release: ac.ReleaseOp
    ops: tuple[Operation, ...]
    """Slices, wait, loads, products, in the order of the text."""

    @property
    def result(self) -> SSAValue:
        """What the last product gives."""
        return next(op for op in reversed(self.ops) if isinstance(op, mma.MmaOp)).results[0]

    @property
    def ends(self) -> list[SSAValue]:
        """What the loop yields."""
        last = self.loop.body.block.last_op
        assert last is not None
        return list(last.operands)

    @property
    def sums(self) -> int:
        """Number of the sums among what the loop carries."""
        return self.ends.index(self.result)

    @property
    def cursor(self) -> int:
        """Number of the slot's cursor among what the loop carries."""
        return self.ends.index(self.wait.next)

    def can_wait(self) -> bool:
        """Whether nothing but the next iteration needs the product, and the loop carries what it is made of."""
        block, argument = self.loop.body.block, self.loop.body.block.args[self.sums + 1]
        products = [op for op in block.ops if isinstance(op, mma.MmaOp)]
        late = [op for op in products if op in self.ops]
        made = [result for op in self.ops for result in op.results]
        taken = {v for op in self.ops for v in op.operands if is_of(v, block)} - {*made}
        return (
            all(use.operation in {*self.ops, self.release, block.last_op} for value in made for use in value.uses)
            and all([use.operation for use in v.uses] == [block.last_op] for v in (self.result, self.wait.next))
            and all(after.c is before.result for before, after in pairwise(late))
            and taken == {self.convert.result, self.first.c, block.args[self.cursor + 1]}
            and argument.first_use is not None
            and self.first.c is not argument
            and late != products
        )


def is_of(value: SSAValue, block: Block) -> bool:
    """Is a value made in a block, or an argument of it?"""
    return (value.owner.parent if isinstance(value.owner, Operation) else value.owner) is block


def late_of(loop: scf.ForOp) -> Late | None:
    """The late product, if the loop ends with one."""
    block = loop.body.block
    for convert in [op for op in block.ops if isinstance(op, mma.ConvertOp) and op.result.type.place.data == "a"]:
        slices = [use.operation for use in convert.result.uses]
        users = [use.operation for cut in slices for result in cut.results for use in result.uses]
        products = [op for op in block.ops if isinstance(op, mma.MmaOp) and op in users]
        loads = [product.b.owner for product in products if isinstance(product.b.owner, mma.LoadOp)]
        whole = all(isinstance(op, mma.SliceOp) for op in slices) and set(users) == set(products)
        slots = {load.slot for load in loads}
        if not whole or len(slots) != 1 or not len(loads) == len(products) == len(slices):
            continue
        slot = slots.pop()
        wait = slot.owner
        releases = [use.operation for use in slot.uses if isinstance(use.operation, ac.ReleaseOp)]
        if isinstance(wait, ac.WaitOp) and wait.parent is block and len(releases) == 1 and releases[0].parent is block:
            parts = {*slices, *products, *loads, wait}
            late = Late(loop, convert, products[0], wait, releases[0], tuple(op for op in block.ops if op in parts))
            if late.can_wait():
                return late
    return None


def chains_of(block: Block) -> list[list[Late]]:
    """Runs of loops of which each goes on with what the one before ends with."""
    chains: list[list[Late]] = []
    for loop in [op for op in block.ops if isinstance(op, scf.ForOp)]:
        late = late_of(loop)
        if late is None:
            continue
        before = chains[-1][-1] if chains else None
        if before is not None and list(before.loop.results) == list(loop.iter_args):
            chains[-1].append(late)
        else:
            chains.append([late])
    return chains


def overlap(chain: Sequence[Late]) -> None:
    """Rewrite the loops of a chain."""
    head, tail = chain[0].loop, chain[-1].loop
    block = cast(Block, head.parent)
    do = IndexSums(Emitter(block, head, head))
    once = do.add(head.lb, head.step)
    type_ = operand_type(chain[0])
    zero = FloatAttr(0.0, cast(AnyFloat, type_.element_type))
    pending = do.emit.value(mma.FillOp(zero, type_))
    carried = [*head.iter_args, pending]
    for late in chain:
        do = IndexSums(Emitter(block, late.loop, late.loop))
        middle = do.least(do.most(late.loop.lb, once), late.loop.ub)
        carried = write(late, do.emit, (late.loop.lb, middle), carried, early_body)
        carried = write(late, do.emit, (middle, late.loop.ub), carried, whole_body)
    do = IndexSums(Emitter(block, tail, tail))
    end = do.least(once, do.most(tail.lb, tail.ub))
    carried = write(chain[-1], do.emit, (head.lb, end), carried, late_body)
    for old, new in zip(tail.results, carried[:-1], strict=True):
        new.name_hint = old.name_hint
        old.replace_all_uses_with(new)
    for late in reversed(chain):
        late.loop.detach()
        late.loop.erase()


def operand_type(late: Late) -> mma.FragmentType:
    """Of the computed operand."""
    return late.convert.result.type


Values = dict[SSAValue, SSAValue]


def write(
    late: Late,
    emit: Emitter,
    bounds: tuple[SSAValue, SSAValue],
    carried: Sequence[SSAValue],
    fill: Callable[[Late, Emitter, Values, SSAValue], list[SSAValue]],
) -> list[SSAValue]:
    """A loop that carries the computed operand too, and what it ends with; `fill` writes the body and says what it yields."""
    old = late.loop.body.block
    body = Block(arg_types=[*(arg.type for arg in old.args), operand_type(late)])
    for one, other in zip(old.args, body.args[:-1], strict=True):
        other.name_hint = one.name_hint
    body.args[-1].name_hint = "pending"
    values: Values = dict(zip(old.args, body.args[:-1], strict=True))
    inner = Emitter(body, late.loop)
    inner(scf.YieldOp(*fill(late, inner, values, body.args[-1])))
    new = emit(scf.ForOp(*bounds, late.loop.step, list(carried), body))
    new.attributes = dict(late.loop.attributes)
    return list(new.results)


def early_body(late: Late, emit: Emitter, values: Values, pending: SSAValue) -> list[SSAValue]:
    """All but the late product, whose operands are yielded."""
    for op in late.loop.body.block.ops:
        if op not in late.ops and op is not late.release and not isinstance(op, scf.YieldOp):
            emit.at(op)(op.clone(values))
    return yielded(late, values, late.loop.body.block.args[late.cursor + 1])


def whole_body(late: Late, emit: Emitter, values: Values, pending: SSAValue) -> list[SSAValue]:
    """The late product of the iteration before stands behind the other products of this one."""
    block = late.loop.body.block
    early = [op for op in block.ops if op not in late.ops and op is not late.release][:-1]
    behind = next(op for op in reversed(early) if isinstance(op, mma.MmaOp))
    argument = block.args[late.sums + 1]
    user = next(op for op in early if any(argument in inner.operands for inner in op.walk()))
    for op in early:
        if op is user:
            emit.at(late.release)(late.release.clone(values))
        emit.at(op)(op.clone(values))
        if op is behind:
            values[argument] = late_product(late, emit, values, pending)
    return yielded(late, values, late.wait.next)


def late_body(late: Late, emit: Emitter, values: Values, pending: SSAValue) -> list[SSAValue]:
    """Only the late product."""
    args = late.loop.body.block.args
    ends: list[SSAValue] = list(args[1:])
    values[args[late.sums + 1]] = late_product(late, emit, values, pending)
    emit.at(late.release)(late.release.clone(values))
    ends[late.cursor] = late.wait.next
    return [*(values[end] for end in ends), pending]


def late_product(late: Late, emit: Emitter, values: Values, pending: SSAValue) -> SSAValue:
    """The late product of what is carried; its result."""
    values[late.convert.result] = pending
    values[late.first.c] = values[late.loop.body.block.args[late.sums + 1]]
    for op in late.ops:
        emit.at(op)(op.clone(values))
    for value in (late.convert.result, late.first.c):
        del values[value]
    return values[late.result]


def yielded(late: Late, values: Values, cursor: SSAValue) -> list[SSAValue]:
    """What an iteration leaves: sums before the late product, and its operand."""
    ends = late.ends
    ends[late.sums], ends[late.cursor] = late.first.c, cursor
    return [values.get(end, end) for end in (*ends, late.convert.result)]
