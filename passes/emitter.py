"""Building ops in order, each with the source location of the op it stands for."""

from __future__ import annotations

from typing import TypeVar

from xdsl.dialects.builtin import UnknownLoc
from xdsl.ir import Block, Operation, SSAValue

OpT = TypeVar("OpT", bound=Operation)


class Emitter:
    """Adds ops at the end of a block (or before `anchor`); each takes the location of the last `at(source)`."""

    def __init__(self, block: Block, source: Operation | None = None, anchor: Operation | None = None):
        self.block = block
        self.source = source
        self.anchor = anchor

    def at(self, source: Operation) -> Emitter:
        """From now on ops stand for `source`."""
        self.source = source
        return self

    def inside(self, block: Block) -> Emitter:
        """An emitter at the end of another block, for the same source."""
        return Emitter(block, self.source)

    def __call__(self, op: OpT) -> OpT:
        """Insert `op` and give it back."""
        if self.source is not None:
            for nested in op.walk():
                if isinstance(nested.location, UnknownLoc):
                    nested.location = self.source.location
        if self.anchor is None:
            self.block.add_op(op)
        else:
            self.block.insert_op_before(op, self.anchor)
        return op

    def value(self, op: Operation) -> SSAValue:
        """Insert `op` and give its only result."""
        return self(op).results[0]
