"""What the loads of a level-2 kernel become: which of them share a ring, where a slot is waited for and released, and
which of the kernel's ops the producer needs in order to issue the copies.

A load becomes a field of a slot. Loads in one loop body whose last uses are at one place share a ring, because their
bytes become free together; a load outside all loops is a ring of one slot. The loop of a persistent kernel over its tiles
(`work_block`) is none of these loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from xdsl.dialects import arith, scf
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue
from xdsl.traits import is_side_effect_free

from emmy.dialects import tile
from emmy.errors import EmmyError
from emmy.locations import location_of


def touches_tiles(op: Operation) -> bool:
    """Does `op`, or an op inside it, read, make or store a tile?"""
    return any(
        isinstance(inner, tile.StoreOp)
        or any(isinstance(v.type, tile.TileType) for v in (*inner.operands, *inner.results))
        for inner in op.walk()
    )


def in_block(op: Operation, block: Block) -> Operation:
    """The op of `block` that is `op` or holds it."""
    found = block.find_ancestor_op_in_block(op)
    assert found is not None, "the use of a value is inside the block that defines it"
    return found


@dataclass(frozen=True, eq=False)
class Ring:
    """An inbound pipeline to be. `fields` names the field of each load; all loads are ops of `block`.

    The slot is waited for before `first_use` and released after `last_use`, two ops of the same block; it is filled
    where the last of the loads stands; `in_loop` says whether that is in a loop.
    """

    name: str
    stages: int
    fields: dict[tile.LoadOp, str]
    block: Block
    first_use: Operation
    last_use: Operation
    in_loop: bool

    @property
    def filled_at(self) -> tile.LoadOp:
        """The load at whose place all copies of the slot are issued."""
        return list(self.fields)[-1]

    @property
    def field_types(self) -> dict[str, tile.TileType]:
        """Field name -> the tile as stored."""
        return {name: tile_type(load.result) for load, name in self.fields.items()}


def tile_type(value: SSAValue) -> tile.TileType:
    """The type of a tile value."""
    assert isinstance(value.type, tile.TileType)
    return value.type


def unique_name(wanted: str, taken: set[str]) -> str:
    """`wanted`, or `wanted` with the first number that makes it new; the name is taken from then on."""
    name, number = wanted, 0
    while name in taken:
        number += 1
        name = f"{wanted}{number}"
    taken.add(name)
    return name


def view_name(view: SSAValue, fallback: str) -> str:
    """The name of a view in the text, or `fallback` if it has none."""
    return view.name_hint or fallback


def work_block(kernel: tile.KernelOp) -> Block:
    """The block with the work on one tile: the kernel's, or the body of its loop over tiles (`persistent-grid`)."""
    for op in kernel.block.ops:
        if isinstance(op, scf.ForOp) and any(isinstance(inner, tile.GridOp) for inner in op.body.block.ops):
            return op.body.block
    return kernel.block


def plan_rings(kernel: tile.KernelOp, stages: int, late_stages: int) -> list[Ring]:
    """The rings of a kernel's loads, in program order; those in loops have `stages` slots, or `late_stages` where all that
    they hold is multiplied by computed operands. Unused loads have none.
    """
    work = work_block(kernel)
    groups: dict[tuple[Operation | Block, ...], list[tile.LoadOp]] = {}
    for op in kernel.walk():
        if not isinstance(op, tile.LoadOp) or op.result.first_use is None:
            continue
        block = op.parent
        assert block is not None
        in_loop = block is not work
        groups.setdefault((block, _uses(op, block)[-1]) if in_loop else (op,), []).append(op)
    rings, taken = list[Ring](), set[str]()
    for loads in groups.values():
        in_loop = loads[0].parent is not work
        slots = (late_stages if all(map(_is_late, loads)) else stages) if in_loop else 1
        rings.append(_ring(loads, slots, taken, in_loop))
    return rings


def _is_late(load: tile.LoadOp) -> bool:
    """Is a load multiplied by a computed operand, and nothing else?"""
    users = [use.operation for use in load.result.uses]
    return all(isinstance(op, tile.DotOp) and not isinstance(op.a.owner, tile.LoadOp) for op in users)


def _uses(load: tile.LoadOp, block: Block) -> list[Operation]:
    """The ops of `block` that use a load, themselves or inside, in program order."""
    using = {in_block(use.operation, block) for use in load.result.uses}
    return [op for op in block.ops if op in using]


def _ring(loads: Sequence[tile.LoadOp], stages: int, taken: set[str], in_loop: bool) -> Ring:
    block = loads[0].parent
    assert block is not None
    names: set[str] = set()
    fields = {load: unique_name(view_name(load.view, "abcdefgh"[i % 8]), names) for i, load in enumerate(loads)}
    name = ("" if all(len(n) == 1 for n in fields.values()) else "_").join(fields.values())
    uses = {op for load in loads for op in _uses(load, block)}
    ordered = [op for op in block.ops if op in uses]
    return Ring(unique_name(name, taken), stages, fields, block, ordered[0], ordered[-1], in_loop)


@dataclass
class Slice:
    """The part of a kernel that computes where the loads are: ops, and of the loops which iteration arguments."""

    ops: set[Operation] = field(default_factory=set[Operation])
    carried: dict[scf.ForOp, set[int]] = field(default_factory=dict[scf.ForOp, set[int]])

    def carries(self, loop: scf.ForOp) -> list[int]:
        """Numbers of the iteration arguments that the slice needs, in order."""
        return sorted(self.carried[loop])


def copy_slice(kernel: tile.KernelOp, loads: Sequence[tile.LoadOp]) -> Slice:
    """Everything in loops around `loads`, and every op, that their offsets depend on.

    Raises EmmyError if an offset or a loop bound comes from a tile, or if a load is inside an op that is no `scf.for`.
    """
    result = Slice()
    work: list[tuple[SSAValue, tile.LoadOp]] = []
    for load in loads:
        work += [(value, load) for value in (load.view, *load.indices)]
        for loop in _loops_around(load, kernel):
            work += [(bound, load) for bound in _enter(result, loop)]
    while work:
        value, load = work.pop()
        if isinstance(value.type, tile.TileType):
            raise EmmyError("the place of this tile.load depends on the contents of a tile", location_of(load))
        owner = value.owner
        if isinstance(value, OpResult) and isinstance(owner, scf.ForOp):
            work += [(v, load) for v in _carry(result, owner, value.index)]
        elif isinstance(owner, Operation):
            if owner not in result.ops and owner.parent_op() is not None:
                result.ops.add(owner)
                work += [(v, load) for inner in owner.walk() for v in inner.operands if not _inside(v, owner)]
                work += [(bound, load) for loop in _loops_around(owner, kernel) for bound in _enter(result, loop)]
        elif isinstance(value, BlockArgument) and isinstance(loop := owner.parent_op(), scf.ForOp):
            needs = _enter(result, loop) if value.index == 0 else _carry(result, loop, value.index - 1)
            work += [(v, load) for v in needs]
    return result


def _inside(value: SSAValue, op: Operation) -> bool:
    block = value.owner.parent if isinstance(value.owner, Operation) else value.owner
    return block is not None and any(region.is_ancestor(block) for region in op.regions)


def _loops_around(op: Operation, kernel: tile.KernelOp) -> Iterator[scf.ForOp]:
    parent = op.parent_op()
    while parent is not None and parent is not kernel:
        if not isinstance(parent, scf.ForOp):
            raise EmmyError(
                f"{op.name} stands in a {parent.name}; copies are issued from scf.for only", location_of(op)
            )
        yield parent
        parent = parent.parent_op()


def _enter(result: Slice, loop: scf.ForOp) -> list[SSAValue]:
    """Take a loop into the slice; what it needs, if it is new."""
    if loop in result.carried:
        return []
    result.carried[loop] = set()
    result.ops.add(loop)
    return [loop.lb, loop.ub, loop.step]


def _carry(result: Slice, loop: scf.ForOp, number: int) -> list[SSAValue]:
    """Take iteration argument `number` of a loop into the slice; what it needs, if it is new."""
    needs = _enter(result, loop)
    if number in result.carried[loop]:
        return needs
    result.carried[loop].add(number)
    last = loop.body.block.last_op
    assert last is not None
    return [*needs, loop.iter_args[number], last.operands[number]]


def is_index_arithmetic(op: Operation) -> bool:
    """Is an op pure, or a read of what no kernel writes while it runs, without tiles? Both halves may do it.

    xDSL does not call remainders pure.
    """
    return (is_side_effect_free(op) or isinstance(op, tile.ReadOp | arith.RemUIOp)) and not touches_tiles(op)


def stays_at_top(op: Operation, staying: set[Operation]) -> bool:
    """Can an op of the kernel's block stand before both halves? It is index arithmetic, and needs only such ops; or it is about
    other launches."""
    if isinstance(op, tile.DependencyWaitOp | tile.LaunchDependentsOp):
        return True
    return is_index_arithmetic(op) and all(
        not isinstance(v.owner, Operation) or v.owner in staying for v in _outer_operands(op)
    )


def _outer_operands(op: Operation) -> list[SSAValue]:
    return [v for inner in op.walk() for v in inner.operands if not _inside(v, op)]
