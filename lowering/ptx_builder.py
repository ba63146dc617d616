"""Building `ptx` ops: one place per value, constants folded, every pure op in the outermost block that it can stand in.

Three things that ptxas cannot do for us, or does only by luck, are done as the ops are built:

* *hoisting*: a pure op goes to the end of the outermost open block in which all its operands are visible, so lane addresses
  end up before the loops that use them; but not to a block outside `floor`, so that a role computes what it alone needs;
  arithmetic on fragments stays in its `branch`, the innermost one, that it may be skipped with it (`in_branch`);
* *sharing*: the same op on the same operands is built once in a block; not with blocks outside `apart`, so that what runs
  rarely keeps no registers of a loop before it;
* *folding*: numbers known now are Python integers and cost nothing; divisions by constants are shifts or multiplications.

A value of type index is a `Number`: an int, or an i32. All are taken as less than 2^31.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import cast

from xdsl.dialects.builtin import (
    Float32Type,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    LocationAttr,
    UnknownLoc,
    f32,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue

from emmy.dialects.ptx import INSTRUCTIONS, REGISTER_TYPES, ROWS, CommentOp, ConstantOp, Instruction, integer

Number = int | SSAValue
"""An i32 that is known now, or a register."""

Condition = bool | SSAValue
"""An i1 that is known now, or a predicate register."""

MemoKey = tuple[object, ...]

_FOLDED = {"and_b32": int.__and__, "or_b32": int.__or__, "xor_b32": int.__xor__}
_COMPARED = {"eq": int.__eq__, "ne": int.__ne__, "lt": int.__lt__, "le": int.__le__, "gt": int.__gt__, "ge": int.__ge__}


def log2(number: int) -> int | None:
    """The exponent of a power of two, or None."""
    return number.bit_length() - 1 if number > 0 and number & (number - 1) == 0 else None


class Scope:
    """An open block, and what was built in it."""

    def __init__(self, block: Block):
        self.block = block
        self.memo: dict[MemoKey, SSAValue] = {}


class Builder:
    """Adds ops to nested blocks; each op takes the current source location."""

    def __init__(self, block: Block):
        self.scopes = [Scope(block)]
        self.depths: dict[Block, int] = {block: 0}
        self.location: LocationAttr = UnknownLoc()
        self.floor = self.apart = self.branch = 0
        self.multiples: dict[SSAValue, int] = {}
        self.sums: dict[SSAValue, tuple[SSAValue, int]] = {}

    # ---- blocks ------------------------------------------------------------------------------------------------------

    def enter(self, block: Block) -> None:
        """Build in `block` from here on; its op is added to the outer block after `leave`."""
        self.depths[block] = len(self.scopes)
        self.scopes.append(Scope(block))

    @contextmanager
    def in_branch(self) -> Generator[None]:
        """What is built here stays in the innermost branch, even if all that it needs is there before it."""
        floor = self.floor
        self.floor = max(floor, self.branch)
        yield
        self.floor = floor

    def leave(self) -> None:
        """Build in the outer block again."""
        self.scopes.pop()

    def depth(self, value: Number) -> int:
        """How deep the block that holds a value is; known numbers are at 0."""
        if not isinstance(value, SSAValue):
            return 0
        owner = value.owner
        block = owner.parent if isinstance(owner, Operation) else owner
        return self.depths[cast(Block, block)]

    # ---- ops ---------------------------------------------------------------------------------------------------------

    def add_op(self, op: Operation) -> None:
        """Any op, here."""
        op.location = self.location
        self.scopes[-1].block.add_op(op)

    def comment(self, text: str) -> None:
        """A line of explanation, here."""
        self.add_op(CommentOp(text))

    def emit(
        self, name: str, operands: Sequence[SSAValue], immediates: Sequence[int] = (), block: Block | None = None
    ) -> Instruction:
        """An instruction here, or at the end of `block`; a predicate and `else` values follow the row's operands."""
        row = ROWS[name]
        op = INSTRUCTIONS[name].create(
            operands=operands,
            result_types=row.result_types,
            properties={key: integer(value) for key, value in zip(row.immediates, immediates, strict=True)},
            location=self.location,
        )
        (block or self.scopes[-1].block).add_op(op)
        return op

    def result_types(self, name: str) -> tuple[Attribute, ...]:
        """The register types of an instruction's results."""
        return ROWS[name].result_types

    def pure(self, name: str, *operands: Number, here: bool = False) -> SSAValue:
        """The only result of a pure instruction, built once in the outermost block possible (or, if `here`, in this one)."""
        depth = len(self.scopes) - 1 if here else max(self.floor, *map(self.depth, operands), 0)
        scope = self.scopes[depth]
        key = (name, *operands)
        for outer in self.scopes[self.apart : depth + 1]:
            found = outer.memo.get(key)
            if found is not None:
                return found
        row = ROWS[name]
        registers = [
            value if isinstance(value, SSAValue) else self.constant(value, REGISTER_TYPES[letter])
            for value, letter in zip(operands, row.operands, strict=True)
        ]
        result = self.emit(name, registers, (), scope.block).results[0]
        scope.memo[key] = result
        return result

    def constant(self, value: float, type_: Attribute = i32) -> SSAValue:
        """A known number as a value; all of them stand in the outermost block."""
        scope = self.scopes[0]
        key = ("constant", value, type_, math.copysign(1.0, value))
        found = scope.memo.get(key)
        if found is None:
            if type_ == f32:
                attribute: FloatAttr[Float32Type] | IntegerAttr[IntegerType] = FloatAttr(value, f32)
            else:
                attribute = IntegerAttr(int(value), cast(IntegerType, type_))
            op = ConstantOp(attribute)
            op.location = self.location
            scope.block.add_op(op)
            found = scope.memo[key] = op.result
        return found

    def register(self, value: Number | float, type_: Attribute = i32) -> SSAValue:
        """A number, known or not, as a value."""
        return value if isinstance(value, SSAValue) else self.constant(value, type_)

    def predicate(self, condition: Condition) -> SSAValue:
        """A condition, known or not, as a value."""
        if isinstance(condition, SSAValue):
            return condition
        return self.pure("setp_eq_s32", 0, int(not condition))

    # ---- integers ----------------------------------------------------------------------------------------------------

    def multiple(self, value: Number) -> int:
        """A power of two that divides a number; 2^31 for 0."""
        if isinstance(value, SSAValue):
            return self.multiples.get(value, 1)
        return value & -value if value else 1 << 31

    def split(self, value: Number) -> tuple[Number, int]:
        """(x, c) with value = x + c and c known."""
        if not isinstance(value, SSAValue):
            return 0, value
        return self.sums.get(value, (value, 0))

    def _know(self, value: SSAValue, multiple: int) -> SSAValue:
        if multiple > 1:
            self.multiples[value] = multiple
        return value

    def binary(self, name: str, x: Number, y: Number) -> Number:
        """One of the instructions on two numbers, folded if both are known."""
        if isinstance(x, int) and isinstance(y, int) and name in _FOLDED:
            return _FOLDED[name](x, y)
        return self.pure(name, x, y)

    def add(self, x: Number, y: Number) -> Number:
        """x + y"""
        if isinstance(x, int) and isinstance(y, int):
            return x + y
        if isinstance(x, int):
            x, y = y, x
        assert isinstance(x, SSAValue)
        if isinstance(y, int):
            if y == 0:
                return x
            base, known = self.sums.get(x, (x, 0))
            if base is not x:
                return self.add(base, known + y)
        result = self.pure("add_s32", x, y)
        if isinstance(y, int):
            self.sums[result] = (x, y)
        return self._know(result, min(self.multiple(x), self.multiple(y)))

    def sub(self, x: Number, y: Number) -> Number:
        """x - y"""
        if isinstance(y, int):
            return self.add(x, -y)
        return self._know(self.pure("sub_s32", x, y), min(self.multiple(x), self.multiple(y)))

    def mul(self, x: Number, y: Number) -> Number:
        """x * y"""
        if isinstance(x, int) and isinstance(y, int):
            return x * y
        if isinstance(x, int):
            x, y = y, x
        if isinstance(y, int):
            if y in (0, 1):
                return 0 if y == 0 else x
            shift = log2(y)
            name, by = ("mul_lo_s32", y) if shift is None else ("shl_b32", shift)
            return self._know(self.pure(name, x, by), min(self.multiple(x) * self.multiple(y), 1 << 31))
        product = min(self.multiple(x) * self.multiple(y), 1 << 31)
        return self._know(self.pure("mul_lo_s32", x, y), product)

    def divide(self, x: Number, y: Number) -> Number:
        """x / y rounded down, for 0 <= x < 2^31 and y > 0."""
        if not isinstance(y, int):
            return self.pure("div_u32", x, y)
        if isinstance(x, int):
            return x // y
        shift = log2(y)
        if shift is not None:
            multiple = max(self.multiple(x) // y, 1)
            return x if shift == 0 else self._know(self.pure("shr_u32", x, shift), multiple)
        # Granlund and Montgomery, "Division by Invariant Integers using Multiplication" (1994), for dividends of 31 bits:
        # with 2^(l-1) < y < 2^l and m = ceil(2^(31+l) / y), x * m / 2^(31+l) rounds down to x / y.
        bits = y.bit_length()
        factor = -(-(1 << (31 + bits)) // y)
        high = self.pure("mul_hi_u32", x, factor)
        return self.pure("shr_u32", high, bits - 1)

    def remainder(self, x: Number, y: Number) -> Number:
        """x mod y, for 0 <= x < 2^31 and y > 0."""
        if isinstance(y, int) and isinstance(x, int):
            return x % y
        if isinstance(y, int) and log2(y) is not None:
            return 0 if y == 1 else self.low_bits(x, y - 1)
        return self.sub(x, self.mul(self.divide(x, y), y))

    def low_bits(self, x: Number, mask: int) -> Number:
        """x and a known mask"""
        result = self.binary("and_b32", x, mask)
        return self._know(result, self.multiple(x)) if isinstance(result, SSAValue) else result

    def xor(self, x: Number, y: int) -> Number:
        """x xor a known number"""
        return x if y == 0 else self.binary("xor_b32", x, y)

    def compare(self, test: str, x: Number, y: Number, unsigned: bool = False, here: bool = False) -> Condition:
        """eq, ne, lt, le, gt or ge."""
        if isinstance(x, int) and isinstance(y, int):
            return bool(_COMPARED[test](x, y))
        kind = "u32" if unsigned and test not in ("eq", "ne") else "s32"
        return self.pure(f"setp_{test}_{kind}", x, y, here=here)

    def select(self, condition: Condition, x: Number, y: Number, here: bool = False) -> Number:
        """x if the condition holds, else y."""
        if isinstance(condition, bool):
            return x if condition else y
        if x is y or (isinstance(x, int) and x == y):
            return x
        result = self.pure("selp_b32", x, y, condition, here=here)
        return self._know(result, min(self.multiple(x), self.multiple(y)))

    def both(self, x: Condition, y: Condition) -> Condition:
        """x and y"""
        if isinstance(x, bool) or isinstance(y, bool):
            known, other = (x, y) if isinstance(x, bool) else (y, x)
            return other if known else False
        return x if x is y else self.pure("and_pred", x, y)

    # ---- addresses in global memory ----------------------------------------------------------------------------------

    def offset_address(self, base: SSAValue, x: Number, scale: Number | SSAValue) -> SSAValue:
        """base + x * scale as 64 bits; `scale` (bytes) is known, or an i64."""
        if isinstance(scale, SSAValue):
            wide = self.constant(x, i64) if isinstance(x, int) else self.pure("cvt_s64_s32", x)
            return self.pure("add_s64", base, self.pure("mul_lo_s64", wide, scale))
        if isinstance(x, int):
            return base if x * scale == 0 else self.pure("add_s64", base, self.constant(x * scale, i64))
        if scale >= 1 << 31:
            return self.offset_address(base, x, self.constant(scale, i64))
        return base if scale == 0 else self.pure("mad_wide_s32", x, scale, base)
