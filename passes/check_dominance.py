"""SSA dominance, which xDSL's own verifier leaves out: every value is defined before it is used, on every path."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.irdl.dominance import DominanceInfo
from xdsl.passes import ModulePass
from xdsl.traits import IsolatedFromAbove

from emmy.errors import EmmyError
from emmy.locations import location_of


def check_dominance(root: Operation) -> None:
    """Raise `EmmyError`, at the using op, unless every operand below `root` is dominated by its definition.

    A value is visible after the op that defines it, in the same block, in blocks that this block dominates, and in
    regions nested there, except those of ops that are isolated from above.
    """
    for region in root.regions:
        _check_region(region, set())


def _check_region(region: Region, visible: set[SSAValue]) -> None:
    blocks = list(region.blocks)
    if len(blocks) == 1:
        _check_block(blocks[0], visible)
        return
    dominance = DominanceInfo(region)
    for block in blocks:
        inherited = set(visible)
        for other in blocks:
            if dominance.strictly_dominates(other, block):
                inherited.update(_definitions(other))
        _check_block(block, inherited)


def _definitions(block: Block) -> set[SSAValue]:
    return {*block.args, *(result for op in block.ops for result in op.results)}


def _check_block(block: Block, visible: set[SSAValue]) -> None:
    """Check one block; `visible` is the same after as before."""
    added: list[SSAValue] = list(block.args)
    visible.update(added)
    for op in block.ops:
        for index, operand in enumerate(op.operands):
            if operand not in visible:
                raise EmmyError(_sentence(op, index, operand), location_of(op))
        if op.regions:
            inside: set[SSAValue] = set() if op.has_trait(IsolatedFromAbove) else visible
            for region in op.regions:
                _check_region(region, inside)
        added.extend(op.results)
        visible.update(op.results)
    visible.difference_update(added)


def _sentence(op: Operation, index: int, operand: SSAValue) -> str:
    name = f"%{operand.name_hint}" if operand.name_hint else "a value"
    owner = operand.owner
    what = f"the result of '{owner.name}'" if isinstance(owner, Operation) else "a block argument"
    return f"operand {index} of '{op.name}' uses {name}, {what}, where it is not defined (defined later or elsewhere)"


@dataclass(frozen=True)
class CheckDominance(ModulePass):
    """Accept any module; guarantee that each use is dominated by its definition; change nothing.

    Raises `EmmyError` at the first use that is not, for example the first line of

        %b = arith.addi %a, %a : index          // error: operand 0 of 'arith.addi' uses %a, ...
        %a = arith.constant 1 : index
    """

    name = "check-dominance"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        check_dominance(op)
