"""Which SSA values of a kernel share a virtual register, so that loops print without needless moves.

Code is structured (`scf.for`, `scf.if`), so a walk in text order numbers it, and the positions between which a value is live
are a few intervals: from its definition to its last use, or to the end of the outermost loop that uses it and does not
define it; but of the two regions of an if only one is run (`find_holes`). Values whose intervals are disjoint may share a
register.

A loop's argument and its result must share; all else is a wish, granted where no interval overlaps: initial and yielded
value with the loop's argument, the yields of an if with its result, the accumulators that go into an `mma` with those that
come out. `assign` names the registers; what was not granted, the printer writes as a move.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import cast

from xdsl.dialects.builtin import f32, i1, i16, i32, i64
from xdsl.dialects.scf import ForOp, IfOp, YieldOp
from xdsl.ir import Attribute, Block, SSAValue

from emmy.atoms import ATOMS
from emmy.dialects.ptx import CommentOp, ConstantOp, Instruction
from emmy.dialects.ptx_table import mma_name
from emmy.errors import EmmyError
from emmy.locations import location_of

PREFIXES: dict[Attribute, str] = {i1: "%p", i16: "%h", i32: "%r", i64: "%rd", f32: "%f"}
"""Register name prefix of each type."""

# An op at number n reads the values of a false predicate (or those that it changes in place) first, then writes what is tied
# to them, then reads its operands, then writes its results.
STEP, EARLY_READ, EARLY_WRITE, READ, WRITE = 4, 0, 1, 2, 3

HALF_SUMS = frozenset(mma_name(atom) for atom in ATOMS if not atom.asynchronous and atom.accumulator_dtype == "f16")
"""The tensor instructions that sum in f16."""

Interval = tuple[int, int]

Alternatives = tuple[int, dict[SSAValue, int], int, dict[SSAValue, int], int]
"""An if with two regions: where it stands, last uses in the first one, where the second one begins, last uses there, its end."""


@dataclass
class Liveness:
    """Live intervals and wishes, gathered by one walk."""

    next: int = 1
    half_sums: bool = False
    loops: list[list[SSAValue]] = field(default_factory=list[list[SSAValue]])
    depth: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    start: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    end: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    extra: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    musts: list[tuple[SSAValue, SSAValue]] = field(default_factory=list[tuple[SSAValue, SSAValue]])
    wishes: list[tuple[SSAValue, SSAValue]] = field(default_factory=list[tuple[SSAValue, SSAValue]])
    tied: list[tuple[SSAValue, SSAValue]] = field(default_factory=list[tuple[SSAValue, SSAValue]])
    arms: list[dict[SSAValue, int]] = field(default_factory=list[dict[SSAValue, int]])
    alternatives: list[Alternatives] = field(default_factory=list["Alternatives"])
    holes: dict[SSAValue, list[Interval]] = field(default_factory=dict[SSAValue, list[Interval]])

    def define(self, values: Iterable[SSAValue], position: int) -> None:
        """`values` are written at `position`."""
        depth = len(self.loops)
        for value in values:
            self.depth[value] = depth
            self.start[value] = position
            self.end[value] = position

    def use(self, values: Iterable[SSAValue], position: int) -> None:
        """`values` are read at `position`; those from outside of a loop live until its end."""
        depth = len(self.loops)
        for value in values:
            self.end[value] = max(self.end[value], position)
            if self.depth[value] < depth:
                self.loops[self.depth[value]].append(value)
            for arm in self.arms:
                arm[value] = position

    def number(self) -> int:
        """The base position of the next op in text order."""
        self.next += 1
        return self.next * STEP

    def block(self, block: Block) -> int:
        """Walk a block. Gives the base position of its last op. Raises `EmmyError` at an op that is not of level 4."""
        position = self.next * STEP
        for op in block.ops:
            position = self.number()
            if isinstance(op, Instruction):
                self.instruction(op, position)
            elif isinstance(op, ForOp):
                self.loop(op, position)
            elif isinstance(op, IfOp):
                self.branch(op, position)
            elif isinstance(op, ConstantOp | CommentOp | YieldOp):
                self.use(op.operands, position + READ)
                self.define(op.results, position + WRITE)
            else:
                raise EmmyError(f"'{op.name}' is no op of level 4", location_of(op))
        return position

    def instruction(self, op: Instruction, position: int) -> None:
        """An instruction; a predicated one overwrites the values that stand for its results where the predicate is false."""
        operands = list(op.operands)
        self.half_sums |= op.row.name in HALF_SUMS
        count = len(op.row.operands)
        if len(operands) > count and op.results:
            otherwise = operands[count + 1 :]
            self.use(otherwise, position + EARLY_READ)
            self.use(operands[: count + 1], position + READ)
            self.define(op.results, position + EARLY_WRITE)
            for result in op.results:
                self.end[result] = position + WRITE
            self.tied.extend(zip(op.results, otherwise, strict=True))
            return
        if op.row.moves == "before":
            self.changed(op, position)
            return
        self.use(operands, position + READ)
        self.define(op.results, position + WRITE)
        repeated = {value for value in operands if operands.count(value) > 1} if op.row.piecewise else set[SSAValue]()
        self.tied.extend((op.results[i], operands[j]) for i, j in op.row.tied if operands[j] not in repeated)

    def changed(self, op: Instruction, position: int) -> None:
        """An instruction that changes its results' registers in place; they may be no register that it reads."""
        operands, tied = op.operands, op.row.tied
        changed = {j for _, j in tied}
        self.use([operands[j] for _, j in tied], position + EARLY_READ)
        self.use([value for j, value in enumerate(operands) if j not in changed], position + READ)
        self.define(op.results, position + EARLY_WRITE)
        for result in op.results:
            self.end[result] = position + WRITE
        self.tied.extend((op.results[i], operands[j]) for i, j in tied)

    def loop(self, op: ForOp, position: int) -> None:
        """A loop: its arguments are written at its head and again by the yield."""
        self.use(op.operands, position + READ)
        self.loops.append([])
        block = op.body.block
        self.define(block.args, position + WRITE)
        self.use((op.ub, op.step), position + READ)
        at_yield = self.block(block)
        end = self.number()
        for value in self.loops.pop():
            self.end[value] = max(self.end[value], end + READ)
            for arm in self.arms:  # a region that holds the loop reads it as long as the loop runs
                arm[value] = max(arm[value], end + READ)
        self.end[block.args[0]] = end + WRITE
        self.define(op.results, at_yield + WRITE)
        for result in op.results:
            self.end[result] = end + WRITE
        arguments = block.args[1:]
        self.musts.extend(zip(arguments, op.results, strict=True))
        self.wishes.extend(zip(arguments, cast(YieldOp, block.last_op).operands, strict=True))
        self.wishes.extend(zip(arguments, op.iter_args, strict=True))

    def branch(self, op: IfOp, position: int) -> None:
        """An if: its results are written by either yield."""
        self.use((op.cond,), position + READ)
        yields: list[int] = []
        arms: list[dict[SSAValue, int]] = []
        for region in op.regions:
            if region.blocks:
                self.arms.append({})
                yields.append(self.block(region.block))
                arms.append(self.arms.pop())
                self.wishes.extend(zip(op.results, cast(YieldOp, region.block.last_op).operands, strict=True))
        if len(arms) == 2:
            self.alternatives.append((position, arms[0], yields[0] + STEP, arms[1], yields[1] + WRITE))
        end = self.number()
        self.define(op.results, yields[-1] + WRITE)
        for result in op.results:
            self.end[result] = end + WRITE
            self.extra[result] = yields[0] + WRITE

    def find_holes(self) -> None:
        """What only the second region of an if reads further on is not live in the first one after its last use there.

        Kernels that sum in f16 are left out: partial sums and those that promotions in a branch add them to fill the
        registers, and ptxas spills (8 to 28 bytes of 255 registers, 13.0) where the text has the branch change them in place.
        """
        if self.half_sums:
            return
        for position, first, begin, second, end in self.alternatives:
            for value in second:
                if self.start[value] < position and self.end[value] <= end:
                    hole = (max(first.get(value, 0), position + READ), begin)
                    self.holes.setdefault(value, []).append(hole)

    def intervals(self, value: SSAValue) -> list[Interval]:
        """Where `value` is live, in order."""
        start, live = self.start[value], list[Interval]()
        for last, begin in sorted(self.holes.get(value, ())):
            live.append((start, last))
            start = begin
        live.append((start, self.end[value]))
        extra = self.extra.get(value)
        return live if extra is None else [(extra, extra), *live]


class Classes:
    """Disjoint sets of values, each set with the sorted intervals in which its register is taken."""

    def __init__(self, live: Liveness):
        self.live = live
        self.parent: dict[SSAValue, SSAValue] = {}
        self.intervals: dict[SSAValue, list[Interval]] = {}

    def find(self, value: SSAValue) -> SSAValue:
        """The value that stands for the set of `value`."""
        root = value
        while (above := self.parent.get(root)) is not None:
            root = above
        while value is not root:
            self.parent[value], value = root, self.parent[value]
        return root

    def taken(self, root: SSAValue) -> list[Interval]:
        """The intervals of a set."""
        return self.intervals.get(root) or self.live.intervals(root)

    def unite(self, first: SSAValue, second: SSAValue) -> bool:
        """Let two values share a register if nothing speaks against it."""
        first, second = self.find(first), self.find(second)
        if first is second:
            return True
        if first.type != second.type:
            return False
        merged = sorted(self.taken(first) + self.taken(second))
        if any(after[0] <= before[1] for before, after in pairwise(merged)):
            return False
        self.parent[second] = first
        self.intervals[first] = merged
        return True


def is_literal(value: SSAValue) -> bool:
    """Is it a constant that all users can print in place of a register?"""
    if not isinstance(value.owner, ConstantOp):
        return False
    for use in value.uses:
        user = use.operation
        if isinstance(user, Instruction) and use.index < len(user.row.operands) and not user.row.literals:
            return False
    return True


def assign(block: Block) -> tuple[dict[SSAValue, str], dict[Attribute, int]]:
    """Register names of the values in a kernel's block (all but literals), and how many names each type uses.

    Nothing here limits the number of registers: ptxas allocates the real ones.
    """
    live = Liveness()
    live.define(block.args, 0)
    live.block(block)
    live.find_holes()
    classes = Classes(live)
    for argument, result in live.musts:
        if not classes.unite(argument, result):
            raise AssertionError("a loop's argument and result are never live together")
    literals = {value for value in live.start if is_literal(value)}
    for first, second in (*live.wishes, *live.tied):
        if first not in literals and second not in literals:
            classes.unite(first, second)
    names: dict[SSAValue, str] = {}
    counts: dict[Attribute, int] = dict.fromkeys(PREFIXES, 0)
    for value in sorted(live.start, key=live.start.__getitem__):
        if value in literals:
            continue
        root = classes.find(value)
        if root not in names:
            names[root] = f"{PREFIXES[root.type]}{counts[root.type]}"
            counts[root.type] += 1
        names[value] = names[root]
    return names, counts
