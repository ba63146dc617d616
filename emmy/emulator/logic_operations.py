"""Bits, comparisons and selections: and, or, xor, not, shifts, bfe, bfi, lop3, prmt, shf, popc, clz, setp, selp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from emmy.emulator.datatypes import TYPES, Array, DataType
from emmy.emulator.decode import Execute, Operation, Spelling, elementwise, instruction
from emmy.emulator.machine import Machine
from emmy.emulator.syntax import Operand, Pair, Sink

U32, S32, PRED = TYPES["u32"], TYPES["s32"], TYPES["pred"]
_BITWISE: dict[str, Callable[..., Array]] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
}


@instruction("and", "or", "xor", "not")
def decode_bitwise(spelling: Spelling) -> Operation:
    """Bitwise, on predicates too."""
    type_ = spelling.type("pred", "b16", "b32", "b64")
    name = spelling.prefix
    return elementwise(spelling, name, _BITWISE[name], type_, [type_] * (1 if name == "not" else 2))


@instruction("shl", "shr")
def decode_shift(spelling: Spelling) -> Operation:
    """Shifts by a 32-bit amount; amounts beyond the width shift everything out."""
    type_ = spelling.type("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64")
    bits, dtype = type_.bits, type_.dtype
    if spelling.prefix == "shl":

        def shift(a: Array, n: Array) -> Array:
            moved = a << np.minimum(n, bits - 1).astype(dtype)
            return np.where(n >= bits, dtype.type(0), moved)

    elif type_.kind == "signed":

        def shift(a: Array, n: Array) -> Array:
            return a >> np.minimum(n, bits - 1).astype(dtype)

    else:

        def shift(a: Array, n: Array) -> Array:
            return np.where(n >= bits, dtype.type(0), a >> np.minimum(n, bits - 1).astype(dtype))

    return elementwise(spelling, spelling.prefix, shift, type_, [type_, U32])


@instruction("shf")
def decode_funnel_shift(spelling: Spelling) -> Operation:
    """shf.l/.r: 32 bits of the 64-bit value (b:a) shifted left (the upper half) or right (the lower half)."""
    left = spelling.require("l", "r") == "l"
    wrap = spelling.require("wrap", "clamp") == "wrap"

    def shift(a: Array, b: Array, n: Array) -> Array:
        amount = (n & 31 if wrap else np.minimum(n, 32)).astype(np.uint64)
        both = b.astype(np.uint64) << np.uint64(32) | a
        moved = (both << amount) >> np.uint64(32) if left else both >> amount
        return (moved & np.uint64(0xFFFFFFFF)).astype(np.uint32)

    type_ = spelling.type("b32")
    return elementwise(spelling, "shf", shift, type_, [type_, type_, U32])


@instruction("popc", "clz", "brev")
def decode_count(spelling: Spelling) -> Operation:
    """Population count, leading zeros, bit reversal."""
    type_ = spelling.type("b32", "b64")
    bits, dtype = type_.bits, type_.dtype
    places = np.arange(bits, dtype=dtype)

    def unpack(a: Array) -> Array:
        return (a[..., None] >> places) & dtype.type(1)

    functions: dict[str, Callable[[Array], Array]] = {
        "popc": lambda a: np.bitwise_count(a).astype(np.uint32),
        "clz": lambda a: np.where(a == 0, bits, np.argmax(unpack(a)[..., ::-1], axis=-1)).astype(np.uint32),
        "brev": lambda a: (unpack(a)[..., ::-1] << places).sum(axis=-1, dtype=dtype),
    }
    result = type_ if spelling.prefix == "brev" else U32
    return elementwise(spelling, spelling.prefix, functions[spelling.prefix], result, [type_])


@instruction("bfe")
def decode_extract(spelling: Spelling) -> Operation:
    """d = length bits of a from a position, sign-extended for .s32/.s64."""
    type_ = spelling.type("u32", "s32", "u64", "s64")
    bits = type_.bits

    def extract(a: Array, position: Array, length: Array) -> Array:
        start, count = (position & 0xFF).astype(np.int64), (length & 0xFF).astype(np.int64)
        shifted = np.where(start >= bits, 0, a.astype(object) >> np.minimum(start, bits - 1))
        if type_.kind == "signed":
            shifted = a.astype(object) >> np.minimum(start, bits - 1)
        field = shifted & ((1 << count.astype(object)) - 1)
        if type_.kind == "signed":
            top = np.minimum(start + count - 1, bits - 1)
            sign = (a.astype(object) >> np.maximum(top, 0)) & 1
            field = np.where((count > 0) & (sign == 1), field - (1 << count.astype(object)), field)
        return (field & ((1 << bits) - 1)).astype(f"uint{bits}").view(type_.dtype)

    return elementwise(spelling, "bfe", extract, type_, [type_, U32, U32])


@instruction("bfi")
def decode_insert(spelling: Spelling) -> Operation:
    """d = b with length bits from a position replaced by the low bits of a."""
    type_ = spelling.type("b32", "b64")
    bits, dtype = type_.bits, type_.dtype

    def insert(a: Array, b: Array, position: Array, length: Array) -> Array:
        start, count = (position & 0xFF).astype(object), (length & 0xFF).astype(object)
        field = (((1 << count) - 1) << start) & ((1 << bits) - 1)
        return ((b.astype(object) & ~field) | ((a.astype(object) << start) & field)).astype(dtype)

    return elementwise(spelling, "bfi", insert, type_, [type_, type_, U32, U32])


@instruction("lop3")
def decode_lop3(spelling: Spelling) -> Operation:
    """Any function of three bits; bit (a << 2 | b << 1 | c) of the constant is its value."""
    type_ = spelling.type("b32")
    table = spelling.integer(spelling.operands[-1])
    if not 0 <= table < 256:
        spelling.fail("the table of lop3 has 8 bits")

    def combine(a: Array, b: Array, c: Array) -> Array:
        result = np.zeros_like(a)
        for minterm in range(8):
            if table >> minterm & 1:
                result |= (a if minterm & 4 else ~a) & (b if minterm & 2 else ~b) & (c if minterm & 1 else ~c)
        return result

    spelling.operands = spelling.operands[:-1]
    return elementwise(spelling, "lop3", combine, type_, [type_] * 3)


@instruction("prmt")
def decode_permute(spelling: Spelling) -> Operation:
    """d's byte i is byte (selector nibble i) of (b:a); bit 3 of the nibble replicates that byte's sign."""
    type_ = spelling.type("b32")

    def permute(a: Array, b: Array, selector: Array) -> Array:
        both = b.astype(np.uint64) << np.uint64(32) | a
        result = np.zeros_like(a)
        for i in range(4):
            nibble = (selector >> np.uint32(4 * i)).astype(np.uint64)
            byte = (both >> ((nibble & np.uint64(7)) * np.uint64(8))).astype(np.uint32) & np.uint32(0xFF)
            sign = np.where(byte & 0x80, np.uint32(0xFF), np.uint32(0))
            result |= np.where(nibble & np.uint64(8), sign, byte) << np.uint32(8 * i)
        return result

    return elementwise(spelling, "prmt", permute, type_, [type_, type_, U32])


# Comparisons

_ORDERED: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_COMPARISONS = [*_ORDERED, *_UNSIGNED, *[f"{c}u" for c in _ORDERED], "num", "nan"]


def _comparison(name: str, type_: DataType) -> Callable[[Array, Array], Array]:
    if type_.kind != "float":
        return _ORDERED[_UNSIGNED.get(name, name)]
    if name == "num":
        return lambda a, b: ~(np.isnan(a) | np.isnan(b))
    if name == "nan":
        return lambda a, b: np.isnan(a) | np.isnan(b)
    compare = _ORDERED[name.removesuffix("u")]
    if name.endswith("u"):
        return lambda a, b: compare(a, b) | np.isnan(a) | np.isnan(b)
    # IEEE comparison is already false on NaN, except `ne`.
    return lambda a, b: compare(a, b) & ~(np.isnan(a) | np.isnan(b))


@instruction("setp")
def decode_setp(spelling: Spelling) -> Operation:
    """p|q = a cmp b [boolean c]; q is the same with the comparison negated."""
    name = spelling.require(*_COMPARISONS)
    boolean = spelling.take("and", "or", "xor")
    spelling.skip("ftz")
    integers = [f"{k}{n}" for k in "bsu" for n in (16, 32, 64)]
    type_ = spelling.type(*integers, "f16", "bf16", "f32", "f64")
    if (type_.kind == "float") == (name in _UNSIGNED) and name in _UNSIGNED:
        spelling.fail(f".{name} compares unsigned integers")
    if type_.kind != "float" and (name in ("num", "nan") or name[:-1] in _ORDERED):
        spelling.fail(f".{name} compares floats")
    spelling.finish(4 if boolean else 3)
    target, a, b = spelling.operands[:3]
    targets = (target.first, target.second) if isinstance(target, Pair) else (target, Sink())
    for operand, wanted in ((targets[0], PRED), (targets[1], PRED), (a, type_), (b, type_)):
        spelling.check(operand, wanted)
    extra: Operand | None = spelling.operands[3] if boolean else None
    if extra is not None:
        spelling.check(extra, PRED, negatable=True)
    compare = _comparison(name, type_)
    combine = _BITWISE.get(boolean)

    def bind(machine: Machine) -> Execute:
        left, right = machine.source(a, type_), machine.source(b, type_)
        write, write_negated = (machine.writer(t, PRED) for t in targets)
        condition = machine.predicate(extra) if extra is not None else None
        both = not isinstance(targets[1], Sink)

        def execute(low: int, high: int, mask: Array | None) -> None:
            result = compare(left[low:high], right[low:high])
            other = ~result
            if combine is not None and condition is not None:
                with_ = condition(low, high)
                result, other = combine(result, with_), combine(other, with_)
            write(low, high, mask, result)
            if both:
                write_negated(low, high, mask, other)

        return execute

    return Operation("setp", bind)


@instruction("selp")
def decode_selp(spelling: Spelling) -> Operation:
    """d = p ? a : b"""
    names = [f"{k}{n}" for k in "bsu" for n in (16, 32, 64)]
    type_ = spelling.type(*names, "f32", "f64")
    spelling.finish(4)
    d, a, b, p = spelling.operands
    for operand in (d, a, b):
        spelling.check(operand, type_)
    spelling.check(p, PRED)

    def bind(machine: Machine) -> Execute:
        left, right, chosen = machine.source(a, type_), machine.source(b, type_), machine.predicate(p)
        write = machine.writer(d, type_)

        def execute(low: int, high: int, mask: Array | None) -> None:
            write(low, high, mask, np.where(chosen(low, high), left[low:high], right[low:high]))

        return execute

    return Operation("selp", bind)
