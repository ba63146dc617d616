"""How many tickets of a ring a loop over tiles takes for each tile: what one of two consumers passes over for the other."""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from emmy.dialects import async_copy as ac
from emmy.passes.lower_raster import Arithmetic, Number, known
from emmy.passes.protocol import fail, ring_of

Taking = type[ac.WaitOp] | type[ac.AcquireOp]
"""The op that takes a ticket: on the reading side, or on the filling one."""


def takes(op: Operation, ring: str, kind: Taking) -> bool:
    """Does an op take tickets of a ring, itself or inside?"""
    return any(isinstance(inner, kind) and ring_of(inner) == ring for inner in op.walk())


def tile_loop(half: ac.ConsumerOp | ac.ProducerOp | ac.RoleOp, ring: str, kind: Taking) -> scf.ForOp | None:
    """The loop at the top of a half or role that takes all its tickets of a ring, or None."""
    ops = [op for op in half.body.block.ops if takes(op, ring, kind)]
    return ops[0] if len(ops) == 1 and isinstance(ops[0], scf.ForOp) else None


def tickets_of(loop: scf.ForOp, ring: str, kind: Taking, do: Arithmetic) -> Number:
    """Tickets of a ring that an iteration of a loop takes, by arithmetic that `do` emits where they are not known.

    Raises EmmyError where iterations may take different numbers of them.
    """
    return _tickets(loop, loop.body.block, ring, kind, do)


def _tickets(loop: scf.ForOp, block: Block, ring: str, kind: Taking, do: Arithmetic) -> Number:
    total: Number = 0
    for op in block.ops:
        if isinstance(op, kind) and ring_of(op) == ring:
            total = do.add(total, 1)
        elif isinstance(op, scf.ForOp) and takes(op, ring, kind):
            inner = _tickets(loop, op.body.block, ring, kind, do)
            total = do.add(total, do.multiply(_iterations(loop, op, ring, do), inner))
        elif op.regions and takes(op, ring, kind):
            fail(op, f"pipeline @{ring} is used under a condition: tiles may take different numbers of its tickets")
    return total


def _iterations(around: scf.ForOp, loop: scf.ForOp, ring: str, do: Arithmetic) -> Number:
    """How often a loop's body runs, the same for every tile."""
    first, last, step = known(loop.lb), known(loop.ub), known(loop.step)
    if isinstance(first, int) and isinstance(last, int) and isinstance(step, int):
        return len(range(first, last, step))
    if first != 0 or not isinstance(step, int) or isinstance(last, int) or not _before(around, last):
        fail(loop, f"tiles may take different numbers of tickets of pipeline @{ring}: this loop's bounds differ")
    return do.blocks(last, step)


def _before(loop: scf.ForOp, value: SSAValue) -> bool:
    """Is a value made before a loop?"""
    block = value.owner if isinstance(value.owner, Block) else value.owner.parent_block()
    while block is not None and block is not loop.body.block:
        block = block.parent_block()
    return block is None
