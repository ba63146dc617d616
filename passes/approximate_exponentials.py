"""`approximate-exponentials`: weights whose exponentials are computed two at a time in f16, or some of them by a polynomial."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, ModuleOp, f32, i32
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from emmy.dialects import ptx

POLYNOMIAL, HALVES = "emmy.polynomial", "emmy.halves"
"""Attributes of a `ptx.kernel` that has not been through this pass: what its schedule asks for."""

EXP2, PAIR = "ptx.ex2_approx_ftz_f32", "ptx.cvt_rn_f16x2_f32"
PAIRS = (PAIR, "ptx.cvt_rn_bf16x2_f32")

COEFFICIENTS = (0.0550085828, 0.242210373, 0.693282902, 1.0)
"""2^f for f from -1/2 to 1/2, of falling powers: the least relative error, 1.02e-4, of those that are exactly 1 at 0 (fitted)."""

LEAST = -127.0
"""The exponent that everything below is taken for: its power of 2 has no exponent bits left, and is 0."""

ROUNDER = 1.5 * 2.0**23
"""Added to an f32 below 2^22, this leaves the nearest whole number in the lowest bits (IEEE 754, round to nearest)."""

MANTISSA_BITS = 23


@dataclass(frozen=True)
class ApproximateExponentials(ModulePass):
    """Contract: rewrites `ex2.approx.ftz.f32` whose results are rounded to 16 bits (*weights*) in `ptx.kernel`s.

    By default it does what the kernel's schedule said, which `lower-to-ptx` left at the kernel; those notes are gone afterwards.

    Guarantees: with `halves` two weights that become one register of f16 are one `ex2.approx.f16x2` of their exponents as f16,
    and everything else (sums of rows) takes its two results. Relative error of a weight 2^x: 2^-10 + |x| 2^-11 ln 2, of f16 as
    such, and of the exponent's rounding. With `polynomial` n every n-th weight of a block is a polynomial of degree 3 in f32,
    relative error 1.1e-4; 0 below 2^-126, as before. Nothing else changes.

    Why: special functions have their own unit, which a short head dimension keeps busier than the tensor cores. Measured on an
    H200 neither pays (docs/measurements.md): others have idle time there, and the instructions around them cost more.

    Before:                          After, with halves:
        ex2 %p, %x                       cvt.rn.f16x2 %h, %y, %x
        ex2 %q, %y                       ex2.approx.f16x2 %w, %h
        add %l, %p, %q                   mov {%p0, %q0}, %w; cvt.f32.f16 %p, %p0; cvt.f32.f16 %q, %q0
        cvt.rn.f16x2 %w, %q, %p          add %l, %p, %q
    """

    name = "approximate-exponentials"
    polynomial: int | None = None
    halves: int | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in [k for k in op.walk() if isinstance(k, ptx.KernelOp)]:
            every, halves = (
                noted(kernel, name) if given is None else given
                for name, given in ((POLYNOMIAL, self.polynomial), (HALVES, self.halves))
            )
            for block in [b for inner in kernel.walk() for region in inner.regions for b in region.blocks]:
                if halves:
                    for pair in [op for op in block.ops if op.name == PAIR]:
                        pair_up(pair)
                if every:
                    for weight in [op for op in block.ops if is_weight(op)][every - 1 :: every]:
                        expand(weight)


def noted(kernel: Operation, name: str) -> int:
    """What a note of `lower-to-ptx` says; it is taken away."""
    note = cast("IntegerAttr | None", kernel.attributes.pop(name, None))
    return 0 if note is None else note.value.data


def is_weight(op: Operation) -> bool:
    """Is an op an exponential that is rounded to 16 bits?"""
    return op.name == EXP2 and any(use.operation.name in PAIRS for use in op.results[0].uses)


def adder(before: Operation) -> Callable[..., SSAValue]:
    """A function that puts an instruction (name, operands) before an op, and gives its first result."""
    return partial(insert, before)


def insert(before: Operation, name: str, *operands: SSAValue | float) -> SSAValue:
    """Put an instruction before an op; numbers become constants."""
    block = cast(Block, before.parent)

    def value(operand: SSAValue | float) -> SSAValue:
        if isinstance(operand, SSAValue):
            return operand
        constant = ptx.ConstantOp(FloatAttr(operand, f32) if isinstance(operand, float) else IntegerAttr(operand, i32))
        block.insert_op_before(constant, before)
        return constant.result

    op = ptx.INSTRUCTIONS[name].create(
        operands=[value(operand) for operand in operands],
        result_types=ptx.ROWS[name].result_types,
        location=before.location,
    )
    block.insert_op_before(op, before)
    return op.results[0]


def pair_up(pair: Operation) -> None:
    """Two exponentials that are rounded to one register of f16 become one; nothing if they are not, or stand too far apart."""
    upper, lower = (cast(Operation, operand.owner) for operand in pair.operands)
    block = cast(Block, pair.parent)
    if upper is lower or any(op.name != EXP2 or op.parent is not block for op in (upper, lower)):
        return
    places = {op: number for number, op in enumerate(block.ops)}
    last = max(upper, lower, key=places.__getitem__)
    users = [use.operation for op in (upper, lower) for use in op.results[0].uses if use.operation is not pair]
    if any(places.get(user, len(places)) < places[last] for user in users):
        return
    put = adder(last)
    both = put("ex2_approx_f16x2", put("cvt_rn_f16x2_f32", upper.operands[0], lower.operands[0]))
    pair.results[0].replace_all_uses_with(both)
    pair.detach()
    pair.erase()
    halves = cast(Operation, put("unpack_b32", both).owner).results
    for op, half in zip((lower, upper), halves, strict=True):
        op.results[0].replace_all_uses_with(put("cvt_f32_f16", half))
        op.detach()
        op.erase()


def expand(weight: Operation) -> None:
    """One exponential as a polynomial: 2^x = 2^n 2^f for the whole number n nearest to x."""
    put = adder(weight)
    x = put("max_NaN_f32", weight.operands[0], LEAST)
    rounded = put("add_f32", x, ROUNDER)
    f = put("sub_f32", x, put("sub_f32", rounded, ROUNDER))
    power: SSAValue | float = COEFFICIENTS[0]
    for coefficient in COEFFICIENTS[1:]:
        power = put("fma_rn_f32", power, f, coefficient)
    exponent = put("shl_b32", put("mov_f32_b32", rounded), MANTISSA_BITS)
    result = put("mov_b32_f32", put("add_s32", put("mov_f32_b32", power), exponent))
    weight.results[0].replace_all_uses_with(result)
    weight.detach()
    weight.erase()
