"""What stands for the values of level 3 while a kernel is lowered to level 4.

An index is a number or an i32; a fragment is the list of its registers; a cursor or slot of a ring without mbarriers is the
byte offset of the slot in its ring. With mbarriers a cursor is (barrier, phase) and a slot (offset, barrier), where `barrier`
is the byte offset of the slot's mbarrier in the ring's array of them: eight times the number of the slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from xdsl.dialects.builtin import f32, i1, i32
from xdsl.ir import SSAValue

from emmy.dialects.async_copy import CursorType
from emmy.lowering.ptx_addresses import TileOffset
from emmy.lowering.ptx_builder import Builder, Condition, Number
from emmy.lowering.ptx_shapes import Registers
from emmy.lowering.ptx_wgmma import InPlace
from emmy.passes.alignment import divisor

Pair = tuple[Number, Number]
"""A cursor or a slot of a ring with mbarriers."""

Value = int | float | SSAValue | Registers | Pair | InPlace
"""A number or condition known now, a register, a fragment's registers or its place in shared memory, a cursor or slot."""


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

    def flat(self, value: SSAValue, fixed: bool = False) -> Registers:
        """What stands for a value that a loop carries, as registers.

        fixed: the loop comes back to the same slot, which is known; what then changes is a cursor's phase.
        """
        found = self.values[value]
        assert not isinstance(found, InPlace)
        if isinstance(found, list):
            return found
        if isinstance(found, tuple):
            if fixed:
                return [self.builder.register(found[1])] if isinstance(value.type, CursorType) else []
            return [self.builder.register(part) for part in found]
        if fixed:
            return []
        if value.type == i1:
            return [self.builder.predicate(self.condition(value))]
        return [self.builder.register(found, f32 if value.type == f32 else i32)]

    def bind(
        self, values: Sequence[SSAValue], like: Sequence[SSAValue], registers: Registers, fixed: Sequence[bool] = ()
    ) -> None:
        """Let `values` be made of `registers`, as many for each as `like` has; `fixed` as for `flat`, one for each."""
        rest = iter(registers)
        for value, model, stays in zip_longest(values, like, fixed, fillvalue=False):
            assert isinstance(value, SSAValue)
            assert isinstance(model, SSAValue)
            known = self.values[model]
            if isinstance(known, list):
                self.values[value] = [next(rest) for _ in known]
            elif isinstance(known, tuple) and stays and isinstance(model.type, CursorType):
                self.values[value] = (known[0], next(rest))
            elif stays:
                self.values[value] = known
            else:
                self.values[value] = (next(rest), next(rest)) if isinstance(known, tuple) else next(rest)

    def offsets(self, indices: Sequence[SSAValue]) -> list[Number]:
        """Element offsets."""
        return [self.number(index) for index in indices]

    def tile_offset(self, indices: Sequence[SSAValue]) -> TileOffset:
        """Where a tile begins, and what is known of that."""
        return TileOffset(self.offsets(indices), [divisor(index) for index in indices])

    def offsets_in(self, indices: Sequence[SSAValue]) -> tuple[Number, Number]:
        """Element offsets in a field as (row, column)."""
        found = self.offsets(indices)
        return (0, found[0]) if len(found) == 1 else (found[-2], found[-1])
