"""The source of one role of a level-3 kernel while it is written, by a table of rules: one for each kind of op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from emmy.dialects import tile
from emmy.interpreters.level3_machine import Level3Error
from emmy.interpreters.scalars import scalar_expression
from emmy.locations import location_of


class Writer:
    """Writes the source of one role by the rules; `constants` are the names that it uses besides its parameters.

    ops: of the program, to which those of this role are added as they are met.
    """

    def __init__(self, kernel: tile.KernelOp, ops: list[Operation], rules: Rules):
        self.rules = rules
        self.lines: list[str] = []
        self.depth = 1
        self.names: dict[SSAValue, str] = {}
        self.constants: dict[str, Any] = {}
        self.ops = ops
        for position, view in enumerate(kernel.block.args):
            self.names[view] = f"V[{position}]"

    def put(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def name(self, value: SSAValue) -> str:
        if value not in self.names:
            self.names[value] = f"v{len(self.names)}"
        return self.names[value]

    def names_of(self, values: Sequence[SSAValue]) -> str:
        """`a, b, ` for use in a tuple or a call."""
        return "".join(f"{self.name(v)}, " for v in values)

    def indices(self, values: Sequence[SSAValue]) -> str:
        return f"({self.names_of(values)})"

    def constant(self, value: Any) -> str:
        name = f"K{len(self.constants)}"
        self.constants[name] = value
        return name

    def block(self, block: Block) -> None:
        for op in block.ops:
            if not isinstance(op, scf.YieldOp):
                self.op(op)

    def op(self, op: Operation) -> None:
        rule = self.rules.get(type(op))
        if rule is not None:
            rule(self, op)
            return
        expression = scalar_expression(op, [self.name(v) for v in op.operands])
        if expression is None:
            raise Level3Error(f"the level-3 interpreter has no rule for {op.name}", location_of(op))
        self.put(f"{self.name(op.results[0])} = {expression}")

    def mark(self, op: Operation, preempt: bool = True) -> None:
        """Say which op runs, and let others run before it."""
        if preempt:
            self.put("yield None")
        self.put(f"W.line = {len(self.ops)}")
        self.ops.append(op)

    def blocking(self, op: Operation, condition: str, doing: str) -> None:
        self.mark(op)
        self.put(f"while (why := M.{condition}): yield why")
        self.put(doing)


Rule = Callable[[Writer, Any], None]
"""Writes what an op does."""

Rules = dict[type[Operation], Rule]


def rule_of(rules: Rules, *kinds: type[Operation]) -> Callable[[Rule], Rule]:
    """A decorator that puts a function into `rules` for ops of these kinds."""

    def register(rule: Rule) -> Rule:
        rules.update(dict.fromkeys(kinds, rule))
        return rule

    return register
