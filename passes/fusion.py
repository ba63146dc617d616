"""Which level-1 ops of a function become one kernel.

A *group* is a product with the elementwise ops that follow it on the same shape, or elementwise ops alone, or a composite
alone. It is launched
where its last op stands, so a group may grow only until an op outside it reads one of its values: whatever the function
looks like, every launch then comes after the launches that it reads from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.ir import Block, Operation, SSAValue

from emmy.dialects.tensor_op import CastOp, CompositeOp, MapOp, MatmulOp, TensorOp, tensor_type

Elementwise = MapOp | CastOp
LEVEL1_OPS = (*TensorOp.operations, CompositeOp)


@dataclass(eq=False)
class Group:
    """Ops of one kernel in program order; `shape` is that of its grid: every value in it broadcasts to `shape`."""

    shape: tuple[int, ...]
    ops: list[Operation] = field(default_factory=list[Operation])
    open: bool = True

    @property
    def matmul(self) -> MatmulOp | None:
        """The product of the group, or None if it is elementwise."""
        return next((op for op in self.ops if isinstance(op, MatmulOp)), None)

    @property
    def elementwise(self) -> list[Operation]:
        """The ops after (and beside) the product."""
        return [op for op in self.ops if not isinstance(op, MatmulOp)]

    @property
    def composite(self) -> CompositeOp | None:
        """The only op of the group, if it is a composite."""
        return next((op for op in self.ops if isinstance(op, CompositeOp)), None)

    def inputs(self) -> list[SSAValue]:
        """Tensors that the group reads and does not make, in the order of their first use, the product's operands first."""
        made = {r for op in self.ops for r in op.results}
        matmul = self.matmul
        ordered = self.ops if matmul is None else [matmul, *self.elementwise]
        return list(dict.fromkeys(v for op in ordered for v in op.operands if v not in made))

    def outputs(self) -> list[SSAValue]:
        """Values of the group that something outside it reads."""
        ops = set(self.ops)
        return [r for op in self.ops for r in op.results if any(use.operation not in ops for use in r.uses)]


def live_ops(block: Block) -> list[Operation]:
    """The tensor_op ops of a block, in order, without those that no other op ever reads."""
    live: dict[Operation, None] = {}
    for op in reversed(list(block.ops)):
        readers = [use.operation for r in op.results for use in r.uses]
        if isinstance(op, LEVEL1_OPS) and any(r in live or not isinstance(r, LEVEL1_OPS) for r in readers):
            live[op] = None
    return list(reversed(live))


def group_ops(ops: Sequence[Operation]) -> list[Group]:
    """Partition the level-1 ops of a block, in program order, into groups in the order of their launches."""
    position = {op: i for i, op in enumerate(ops)}
    owner: dict[Operation, Group] = {}
    for op in ops:
        sources = _sources(op, owner)
        group = _host(op, sources) or Group(tensor_type(op.results[0]).get_shape())
        for source in sources:
            if source is group:
                continue
            if isinstance(op, Elementwise) and _absorbable(source, group, op):
                group.ops = sorted([*group.ops, *source.ops], key=position.__getitem__)
                owner.update(dict.fromkeys(source.ops, group))
            else:
                source.open = False
        group.ops.append(op)
        group.open = group.open and not isinstance(op, CompositeOp)
        owner[op] = group
    groups = list(dict.fromkeys(owner.values()))
    return sorted(groups, key=lambda group: position[group.ops[-1]])


def _sources(op: Operation, owner: dict[Operation, Group]) -> list[Group]:
    makers = [v.owner for v in op.operands if isinstance(v.owner, Operation)]
    return list(dict.fromkeys(owner[maker] for maker in makers if maker in owner))


def _host(op: Operation, sources: Sequence[Group]) -> Group | None:
    """The group that an elementwise op joins: one with a product before one without."""
    if not isinstance(op, Elementwise):
        return None
    shape = tensor_type(op.results[0]).get_shape()
    fitting = [group for group in sources if group.open and group.shape == shape]
    return next((group for group in fitting if group.matmul is not None), fitting[0] if fitting else None)


def _absorbable(source: Group, group: Group, reader: Operation) -> bool:
    """Whether `reader` in `group` is all that reads an elementwise group, which then needs no kernel of its own."""
    if source.matmul is not None or source.composite is not None:
        return False
    inside = {*source.ops, *group.ops, reader}
    return all(use.operation in inside for op in source.ops for r in op.results for use in r.uses)
