"""`spread-copies`: the copies of a slot are issued in batches between the tensor instructions, not all at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass
from xdsl.traits import is_side_effect_free

from emmy.dialects import ptx
from emmy.errors import EmmyError

BATCHES = "emmy.batches"
"""Attribute of a `ptx.kernel` that has not been through this pass: the `batches` of its schedule."""

COPY_NAMES = tuple(f"ptx.{name}" for name in ptx.INSTRUCTIONS if name.startswith(("cp_async_ca_", "cp_async_cg_")))
NARROW = tuple(name for name in COPY_NAMES if "_16" not in name)
"""Of less than 16 bytes: so many that the addresses of a batch would be more registers than there are."""

COMMENT = "cp.async into"
"""How `lower-to-ptx` begins a comment on copies."""

COMMIT = "ptx.cp_async_commit_group"
MMA = "ptx.mma_"
LOAD = "ptx.ldmatrix"


@dataclass(frozen=True)
class SpreadCopies(ModulePass):
    """Contract: moves `cp.async` and their commits down inside their block; no op is added, removed or changed.

    Accepts `ptx.kernel`s. `batches` is how many batches the copies of a commit group become; by default what the kernel's
    schedule said, which `lower-to-ptx` left at the kernel; that note is gone afterwards, so that text that was printed behind
    this pass is not spread again. With 1 nothing moves.

    Guarantees: a group (the copies since the last wait, barrier or commit, and their commit) only passes arithmetic, tensor
    instructions and `ldmatrix`; the order among copies stays. So what is in flight at each wait, and which barrier a copy
    comes behind, stay the same. Of `n` tensor instructions between the group and what it may not pass, batch `j` of `b` goes
    before number (2 j + 1) n / 2 b, and the commit behind the last batch. Groups without tensor instructions behind them stay.

    Why: a `cp.async` holds the load/store queue for longer than an `ldmatrix`. All of a slot's at once let the `ldmatrix` of
    the next product wait, and all warps of a CTA do that at the same moment, right behind the barrier. Singly they would be no
    better: ptxas puts three fillers before each that follows an `ldmatrix`.

    Before:                          After, with batches 2:
        cp_async ..                      ldmatrix ..
        cp_async ..                      mma ..
        cp_async_commit_group            cp_async ..
        ldmatrix ..                      mma ..
        mma ..                           mma ..
        mma ..                           cp_async ..
        mma ..                           cp_async_commit_group
        mma ..                           mma ..
        cp_async_wait_group 1            cp_async_wait_group 1
    """

    name = "spread-copies"
    batches: int | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.batches is not None and self.batches < 1:
            raise EmmyError(f"spread-copies makes 1 or more batches of a group, got {self.batches}")
        for kernel in op.walk():
            if not isinstance(kernel, ptx.KernelOp):
                continue
            noted = cast("IntegerAttr | None", kernel.attributes.pop(BATCHES, None))
            batches = self.batches or (noted.value.data if noted is not None else 1)
            if batches > 1:
                # The last group first: the ones before it follow up to its copies, and never pass them.
                for commit in reversed([o for o in kernel.walk() if o.name == COMMIT]):
                    spread(commit, batches)


def spread(commit: Operation, batches: int) -> None:
    """Move a commit and its copies to where they are issued in so many batches."""
    block, group = commit.parent, group_of(commit)
    assert isinstance(block, Block)
    anchors = tensor_instructions_behind(commit)
    if not anchors or not group or any(copy[-1].name in NARROW for copy in group):
        return
    numbers = [op for op in before(group[-1][-1]) if is_side_effect_free(op)]
    for number in range(batches):
        anchor = anchors[(2 * number + 1) * len(anchors) // (2 * batches)]
        for copy in group[number * len(group) // batches : (number + 1) * len(group) // batches]:
            for op in copy:
                op.detach()
                block.insert_op_before(op, anchor)
        if number == batches - 1:
            commit.detach()
            block.insert_op_before(commit, anchor)
    sink(block, numbers, {op for copy in group for op in copy})


def sink(block: Block, numbers: Sequence[Operation], moved: set[Operation]) -> None:
    """Move arithmetic, given last first, to its first user where that has moved: registers are taken no earlier than before."""
    places = {op: place for place, op in enumerate(block.ops)}
    for op in numbers:
        users = [use.operation for result in op.results for use in result.uses]
        if not users or not all(user in places for user in users):
            continue
        first = min(users, key=places.__getitem__)
        if first in moved:
            op.detach()
            block.insert_op_before(op, first)
            places[op] = places[first]
            moved.add(op)


def before(op: Operation) -> Iterator[Operation]:
    """The ops before one back to the first that copies may not pass, that one not included."""
    previous = op.prev_op
    while previous is not None and (previous.name in COPY_NAMES or may_be_passed(previous)):
        yield previous
        previous = previous.prev_op


def group_of(commit: Operation) -> Sequence[Sequence[Operation]]:
    """The copies that a commit ends, in order, each behind the comment on it if there is one."""
    group: list[list[Operation]] = []
    for op in before(commit):
        if op.name in COPY_NAMES:
            group.insert(0, [op])
        elif group and isinstance(op, ptx.CommentOp) and op.text.data.startswith(COMMENT):
            group[0].insert(0, op)
    return group


def tensor_instructions_behind(commit: Operation) -> Sequence[Operation]:
    """Those up to the first op that copies may not pass."""
    found: list[Operation] = []
    op = commit.next_op
    while op is not None and may_be_passed(op):
        if op.name.startswith(MMA):
            found.append(op)
        op = op.next_op
    return found


def may_be_passed(op: Operation) -> bool:
    """Arithmetic, tensor instructions, and loads from slots that nobody fills: a copy that lands later cannot disturb them."""
    return not op.regions and (
        is_side_effect_free(op) or isinstance(op, ptx.CommentOp) or op.name.startswith((LOAD, MMA))
    )
