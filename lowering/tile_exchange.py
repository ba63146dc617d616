"""Where warps split columns, what belongs to whole rows passes through shared memory: statistics, and computed operands.

Or it does not: with the schedule's `repeat` each warp of a row computes all columns of what becomes an operand (they are
`whole`), and only the product with it is split.

A warp of a grid [W, C] with C > 1 holds a part of each row. Sums in part (`tile.reduce` that leaves 8 columns) stay *partial*:
each warp adds up its own columns, and what is done with them is linear. A reduction to one value a row, and an operand a
that is computed, go through a pipeline that the consumer fills and reads itself:

    %s, %n = async_copy.acquire @max[%c]                 // rows x (8 for each of the warps beside each other)
    mma.store %mine -> %s["max"][%row, %col]
    async_copy.commit @max, %s
    %t, %m = async_copy.wait @max[%d]                    // becomes a barrier
    %all = mma.load %t["max"][%row, %c0]
    async_copy.release @max, %t
    %top = mma.reduce max %all

So do the sums of the CTAs of a cluster (`tile.cluster_sum`): each gives the others their columns of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.dialects import scf
from xdsl.dialects.builtin import Float32Type
from xdsl.ir import Operation, SSAValue

from emmy.dialects import tile
from emmy.errors import EmmyError
from emmy.locations import location_of
from emmy.lowering.tile_rings import tile_type, unique_name
from emmy.passes.emitter import Emitter

LEFT = 8
"""Columns of a statistic that each warp writes: those of an atom, so that its lanes exchange nothing before."""


@dataclass(eq=False)
class End:
    """One side of an exchange: what has a cursor."""

    name: str


@dataclass(frozen=True, eq=False)
class Exchange:
    """A pipeline of one slot between the warps of a row, or the CTAs of a cluster. `use`: the op of level 2 that needs what all
    of them hold. `ctas`: of the cluster."""

    name: str
    type: tile.TileType
    use: Operation
    ends: tuple[End, End] = field(default_factory=lambda: (End(""), End("")))
    ctas: int = 1

    @property
    def fill(self) -> End:
        """The side that is written."""
        return self.ends[0]

    @property
    def read(self) -> End:
        """The side that is read."""
        return self.ends[1]


def whole_tiles(kernel: tile.KernelOp) -> set[SSAValue]:
    """Computed tiles that become operands of products, and all that has their columns: what goes into them, element by
    element, and sums of their columns in part. Constant tiles get a fill for each use, so that they tie nothing together.
    """
    for fill in [op for op in kernel.walk() if isinstance(op, tile.FillOp)]:
        block = fill.parent_block()
        assert block is not None
        for use in list(fill.result.uses)[1:]:
            own = Emitter(block, fill, fill.next_op)(fill.clone())
            own.result.name_hint = fill.result.name_hint
            use.operation.operands[use.index] = own.result
    whole = {op.a for op in kernel.walk() if isinstance(op, tile.DotOp) and not isinstance(op.a.owner, tile.LoadOp)}
    before = -1
    while before != len(whole):
        before = len(whole)
        for op in kernel.walk():
            if isinstance(op, scf.ForOp):
                _carry(op, whole)
            elif isinstance(op, tile.MapOp | tile.CastOp | tile.DotOp | tile.ReduceOp):
                operands = [op.acc] if isinstance(op, tile.DotOp) else list(op.operands)
                alike = [value for value in (*operands, op.results[0]) if _has_columns(value)]
                if any(value in whole for value in alike):
                    whole.update(alike)
    return whole


def _has_columns(value: SSAValue) -> bool:
    """Is a value a tile of more than one column?"""
    return isinstance(value.type, tile.TileType) and value.type.get_shape()[-1] != 1


def plan_exchanges(kernel: tile.KernelOp, columns: int, taken: set[str]) -> dict[Operation, Exchange]:
    """The exchanges of a kernel whose rows are split over `columns` warps, or sums over CTAs. `taken`: names of pipelines,
    which grow."""
    found: dict[Operation, Exchange] = {}
    for op in kernel.walk():
        ctas = 1
        if isinstance(op, tile.ClusterSumOp):
            (rows, columns_of_part), ctas = tile_type(op.result).get_shape(), op.parts.value.data
            shape = (rows * (ctas - 1), columns_of_part)
            wanted, type_ = "sums", tile.TileType.get(shape, tile_type(op.arg).element_type)
        elif columns == 1:
            continue
        elif isinstance(op, tile.DotOp) and not isinstance(op.a.owner, tile.LoadOp):
            wanted, type_ = op.a.name_hint or "p", tile_type(op.a)
        elif isinstance(op, tile.ReduceOp) and _leaves(op) == 1:
            shape = tile_type(op.arg).get_shape()
            wanted = op.kind.data.value
            type_ = tile.TileType.get((shape[0], LEFT * columns), tile_type(op.arg).element_type)
            if not isinstance(type_.element_type, Float32Type):
                raise EmmyError(
                    f"warps exchange statistics in f32, and these are {type_.element_type}", location_of(op)
                )
        else:
            continue
        name = unique_name(wanted, taken)
        found[op] = Exchange(name, type_, op, (End(name), End(name)), ctas)
    return found


def _leaves(op: tile.ReduceOp) -> int:
    """How many columns a reduction of columns leaves; 0 for one of rows, which warps beside each other have whole."""
    return tile_type(op.result).get_shape()[-1] if op.axis.value.data == len(tile_type(op.arg).get_shape()) - 1 else 0


def partial_sums(kernel: tile.KernelOp, columns: int) -> set[SSAValue]:
    """Values of which each of `columns` warps beside each other holds a summand.

    Raises EmmyError where one is used in another way than a sum allows.
    """
    partial: set[SSAValue] = set()
    if columns == 1:
        return partial
    for op in kernel.walk():
        if isinstance(op, tile.ReduceOp) and op.kind.data.value == "sum" and _leaves(op) > 1:
            partial.add(op.result)
    before = -1
    while before != len(partial):
        before = len(partial)
        for op in kernel.walk():
            if isinstance(op, tile.MapOp) and any(arg in partial for arg in op.args):
                partial.add(op.result)
            elif isinstance(op, scf.ForOp):
                _carry(op, partial)
    for value in partial:
        for user in [value.owner, *(use.operation for use in value.uses)]:
            if isinstance(user, Operation):
                _check(user, partial)
    return partial


def _carry(loop: scf.ForOp, partial: set[SSAValue]) -> None:
    """What a loop carries is partial as a whole."""
    last = loop.body.block.last_op
    assert last is not None
    for values in zip(loop.iter_args, loop.body.block.args[1:], last.operands, loop.results, strict=True):
        if any(value in partial for value in values):
            partial.update(values)


def _check(op: Operation, partial: set[SSAValue]) -> None:
    """Is an op linear in its partial operands, or the sum over them?"""
    if isinstance(op, tile.MapOp):
        kind, given = op.kind.data.value, tuple(arg in partial for arg in op.args)
        allowed = {"fma": ((True, False, True), (False, True, True)), "mul": ((True, False), (False, True))}
        if given in allowed.get(kind, ((True, True),) if kind in ("add", "sub") else ()):
            return
    elif isinstance(op, tile.FillOp):
        if op.value.value.data == 0.0:
            return
    elif isinstance(op, tile.ReduceOp) and op.kind.data.value == "sum":
        return
    elif isinstance(op, scf.ForOp | scf.YieldOp):
        return
    raise EmmyError(
        f"warps hold parts of this sum, which can be scaled and added up, and then reduced; {op.name} is none of these",
        location_of(op),
    )
