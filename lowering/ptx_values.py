"""What stands for the values of level 3 while a kernel is lowered to level 4.

An index is a number or an i32; a fragment is the list of its registers; a cursor or slot of a ring without mbarriers is the
byte offset of the slot in its ring. With mbarriers a cursor is (barrier, phase) and a slot (offset, barrier), where `barrier`
is the byte offset of the slot's mbarrier in the ring's array of them: eight times the number of the slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.dialects.builtin import f32, i1, i32
from xdsl.ir import SSAValue

from emmy.lowering.ptx_builder import Builder, Condition, Number
from emmy.lowering.ptx_fragments import Registers

Pair = tuple[Number, Number]
"""A cursor or a slot of a ring with mbarriers."""

Value = int | float | SSAValue | Registers | Pair
"""A number or condition known now, a register, the registers of a fragment, or a cursor or slot."""


class LoweredValues:
    """The map from values of level 3 to what stands for them."""

    def __init__(self, builder: Builder):
        self.builder = builder
        self.values: dict[SSAValue, Value] = {}

    def number(self, value: SSAValue) -> Number:
        """What stands for an index, an i1, or a cursor or slot without mbarriers."""
        found = self.values[value]
        assert isinstance(found, int | SSAValue)
        return found

    def condition(self, value: SSAValue) -> Condition:
        """What stands for an i1."""
        found = self.number(value)
        return found if isinstance(found, SSAValue) else bool(found)

    def registers(self, value: SSAValue) -> Registers:
        """What stands for a fragment."""
        found = self.values[value]
        assert isinstance(found, list)
        return found

    def pair(self, value: SSAValue) -> Pair:
        """What stands for a cursor or slot with mbarriers."""
        found = self.values[value]
        assert isinstance(found, tuple)
        return found

    def flat(self, value: SSAValue) -> Registers:
        """What stands for a value that a loop carries, as registers."""
        found = self.values[value]
        if isinstance(found, list):
            return found
        if isinstance(found, tuple):
            return [self.builder.register(part) for part in found]
        if value.type == i1:
            return [self.builder.predicate(self.condition(value))]
        return [self.builder.register(found, f32 if value.type == f32 else i32)]

    def bind(self, values: Sequence[SSAValue], like: Sequence[SSAValue], registers: Registers) -> None:
        """Let `values` be made of `registers`, as many for each as `like` has."""
        at = 0
        for value, model in zip(values, like, strict=True):
            known = self.values[model]
            count = len(known) if isinstance(known, list | tuple) else 1
            mine = registers[at : at + count]
            if isinstance(known, list):
                self.values[value] = mine
            else:
                self.values[value] = cast(Pair, tuple(mine)) if isinstance(known, tuple) else mine[0]
            at += count

    def offsets(self, indices: Sequence[SSAValue]) -> list[Number]:
        """Element offsets."""
        return [self.number(index) for index in indices]

    def offsets_in(self, indices: Sequence[SSAValue]) -> tuple[Number, Number]:
        """Element offsets in a field as (row, column)."""
        found = self.offsets(indices)
        return (0, found[0]) if len(found) == 1 else (found[-2], found[-1])
