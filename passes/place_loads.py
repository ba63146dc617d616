"""`place-loads`: each `ldmatrix` stands a chosen number of tensor instructions before the first one that takes what it loads."""

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

AHEAD = "emmy.ahead"
"""Attribute of a `ptx.kernel` that has not been through this pass: the `ahead` of its schedule."""

MMA, LOAD = "ptx.mma_", "ptx.ldmatrix"
RELEASE = ("ptx.fence_proxy_async_shared", "ptx.bar_warp_sync", "ptx.mbarrier_arrive")
"""How a slot is given back; later does no harm."""


@dataclass(frozen=True)
class PlaceLoads(ModulePass):
    """Contract: moves `ldmatrix`, and releases of slots, inside their block; no op is added, removed or changed.

    Accepts `ptx.kernel`s. `ahead`: so many tensor instructions; by default what the kernel's schedule said, which `lower-to-ptx`
    left at the kernel; that note is gone afterwards. With 0 nothing moves.

    Guarantees: a *run* is what stands between waits, barriers, branches and other accesses to memory. In a run a load stands
    `ahead` tensor instructions before the first one that takes what it loads, but never before what its address is made of, or
    before a release that it came behind; loads of the first `ahead` tensor instructions stay. A release stands behind the loads
    that it came behind. All else keeps its order.

    Why: ptxas -O1 keeps the order of the text. Fragments that are loaded all at once take registers until the last of them is
    used, and the first product waits for the last load; one by one they take few, and arrive under the products before.

    Before:                     After, with ahead 1:
        ldmatrix %a, %b             ldmatrix %a, %b
        ldmatrix %c                 mma %a, %b, %s
        mma %a, %b, %s              mma %a, %b, %t
        mma %a, %b, %t              ldmatrix %c
        mma %a, %b, %u              mma %a, %b, %u
        mma %a, %c, %v              mma %a, %c, %v
    """

    name = "place-loads"
    ahead: int | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.walk():
            if not isinstance(kernel, ptx.KernelOp):
                continue
            noted = cast("IntegerAttr | None", kernel.attributes.pop(AHEAD, None))
            ahead = self.ahead if self.ahead is not None else noted.value.data if noted is not None else 0
            if ahead:
                for block in [b for inner in kernel.walk() for region in inner.regions for b in region.blocks]:
                    for run in runs(block):
                        reorder(run, ahead)


def runs(block: Block) -> list[list[Operation]]:
    """The runs of a block that have tensor instructions."""
    found: list[list[Operation]] = [[]]
    for op in block.ops:
        inside = is_side_effect_free(op) or isinstance(op, ptx.CommentOp) or op.name.startswith((MMA, LOAD))
        if not op.regions and (inside or op.name in RELEASE):
            found[-1].append(op)
        else:
            found.append([])
    return [run for run in found if any(op.name.startswith(MMA) for op in run)]


def reorder(run: Sequence[Operation], ahead: int) -> None:
    """Put the loads of a run where they belong.

    Each op gets a place: tensor instruction number n has n, what stands before it n - 1/2; ops of one place keep their order.
    """
    block, behind = cast(Block, run[0].parent), run[-1].next_op
    numbers = {op: number for number, op in enumerate(op for op in run if op.name.startswith(MMA))}
    places: dict[Operation, float] = {}
    passed, loaded, released = 0, -1.0, -1.0
    for op in run:
        place = passed - 0.5
        if op in numbers:
            place, passed = float(numbers[op]), passed + 1
        elif op.name.startswith(LOAD):
            due = min((numbers[user] for user in users_of(op) if user in numbers), default=0)
            place = max(due - ahead - 0.5 if due > ahead else place, released)
        elif op.name in RELEASE:
            place = released = max(place, loaded)
        places[op] = max([place, *(places[source] for source in sources_of(op) if source in places)])
        loaded = max(loaded, places[op]) if op.name.startswith(LOAD) else loaded
    for op in run:
        op.detach()
    for op in sorted(run, key=places.__getitem__):
        if behind is None:
            block.add_op(op)
        else:
            block.insert_op_before(op, behind)


def users_of(op: Operation) -> Iterator[Operation]:
    """Who takes the values of an op."""
    return (use.operation for result in op.results for use in result.uses)


def sources_of(op: Operation) -> Iterator[Operation]:
    """Whose values an op takes."""
    return (operand.owner for operand in op.operands if isinstance(operand.owner, Operation))
