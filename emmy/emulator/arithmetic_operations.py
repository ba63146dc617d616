"""add, sub, mul, mad, fma, div, rem, min, max, neg, abs and the approximate functions, integer and floating.

f32 sums and products round to nearest in NumPy itself. Everything else is computed in float64, sums with rounding to
odd, and rounded once more to the type: for f16, bf16 and f32 that equals one rounding of the exact result (53 bits are
at least twice the type's plus 2), for fma too.
The approximate functions (.approx) return the correctly rounded value, which hardware only comes close to.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from emmy.emulator.datatypes import TYPES, Array, DataType, add_round_to_odd, flush_subnormals, narrow
from emmy.emulator.decode import Execute, Operation, Spelling, elementwise, instruction
from emmy.emulator.faults import Fault
from emmy.emulator.machine import Machine

Function = Callable[..., Array]
_ROUNDINGS = ("rn", "rz", "rm", "rp")
_FLOATS = ("f16", "bf16", "f16x2", "bf16x2", "f32", "f32x2", "f64")
_WORDS = ("s32", "u32", "s64", "u64", "s16", "u16")
_DOUBLE = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}


# Integers


def _high(a: Array, b: Array) -> Array:
    """The upper half of the double-width product."""
    bits = 8 * a.dtype.itemsize
    if bits < 64:
        wide = np.dtype(f"{a.dtype.kind}{a.dtype.itemsize * 2}")
        return (a.astype(wide) * b.astype(wide) >> wide.type(bits)).astype(a.dtype)
    return ((a.astype(object) * b.astype(object)) >> 64).astype(a.dtype)


def _quotient(a: Array, b: Array) -> Array:
    """Division that truncates towards zero, as C and PTX do; NumPy's rounds down."""
    floor = a // b
    return floor + ((floor < 0) & (floor * b != a)).astype(a.dtype)


def _remainder(a: Array, b: Array) -> Array:
    return a - _quotient(a, b) * b


_INTEGER: dict[str, Function] = {
    "add": np.add,
    "sub": np.subtract,
    "min": np.minimum,
    "max": np.maximum,
    "neg": np.negative,
    "abs": np.abs,
}


def _integer(spelling: Spelling, name: str) -> Operation:
    sat = spelling.take("sat")
    type_ = spelling.type(*_WORDS)
    if sat and (type_.name != "s32" or name not in ("add", "sub")):
        spelling.fail(".sat applies to add.s32 and sub.s32")
    function = _INTEGER[name]
    if sat:
        plain = function
        low, high = np.iinfo(np.int32).min, np.iinfo(np.int32).max

        def function(*sources: Array) -> Array:
            return np.clip(plain(*[s.astype(np.int64) for s in sources]), low, high).astype(np.int32)

    count = 1 if name in ("neg", "abs") else 2
    return elementwise(spelling, name, function, type_, [type_] * count)


def _product(spelling: Spelling, name: str) -> Operation:
    """mul and mad of integers, .lo .hi .wide."""
    half = spelling.require("lo", "hi", "wide")
    type_ = spelling.type(*_WORDS)
    result = type_
    if half == "wide":
        if type_.name not in _DOUBLE:
            spelling.fail(f".wide is not defined for .{type_.name}")
        result = TYPES[_DOUBLE[type_.name]]
    dtype = result.dtype

    def multiply(a: Array, b: Array) -> Array:
        return _high(a, b) if half == "hi" else a.astype(dtype) * b.astype(dtype)

    def multiply_add(a: Array, b: Array, c: Array) -> Array:
        return multiply(a, b) + c

    if name == "mul":
        return elementwise(spelling, "mul", multiply, result, [type_, type_])
    return elementwise(spelling, "mad", multiply_add, result, [type_, type_, result])


def _division(spelling: Spelling, name: str) -> Operation:
    """Integer div and rem; a zero divisor in an active lane is a fault (PTX leaves the result unspecified)."""
    type_ = spelling.type(*_WORDS)
    function = _quotient if name == "div" else _remainder
    spelling.finish(3)
    for operand in spelling.operands:
        spelling.check(operand, type_)

    def bind(machine: Machine) -> Execute:
        a, b = (machine.source(o, type_) for o in spelling.operands[1:])
        write = machine.writer(spelling.operands[0], type_)

        def execute(low: int, high: int, mask: Array | None) -> None:
            divisor = b[low:high]
            zero = divisor == 0
            if zero.any():
                bad = zero & machine.live[low:high] if mask is None else zero & mask
                if bad.any():
                    warp, lane = (int(x[0]) for x in bad.nonzero())
                    raise Fault("division by zero", low + warp, lane)
                divisor = np.where(zero, type_.dtype.type(1), divisor)
            write(low, high, mask, function(a[low:high], divisor))

        return execute

    return Operation(name, bind)


# Floats


def _subtract(a: Array, b: Array) -> Array:
    return add_round_to_odd(a, -b)


def _multiply_add(a: Array, b: Array, c: Array) -> Array:
    return add_round_to_odd(a * b, c)


def _reciprocal_root(a: Array) -> Array:
    return 1 / np.sqrt(a)


_FLOAT: dict[str, Function] = {
    "add": add_round_to_odd,
    "sub": _subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": np.fmin,
    "max": np.fmax,
    "neg": np.negative,
    "abs": np.abs,
    "fma": _multiply_add,
    "sqrt": np.sqrt,
    "rcp": np.reciprocal,
    "rsqrt": _reciprocal_root,
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}
# Computed in the type itself: NumPy rounds these correctly.
_NATIVE: dict[str, Function] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
_UNARY = ("neg", "abs", "sqrt", "rcp", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh")


def _finisher(spelling: Spelling, type_: DataType) -> Function:
    """.sat and .relu, and .ftz of a float32 result."""
    ftz, sat, relu = (spelling.take(m) for m in ("ftz", "sat", "relu"))
    dtype = type_.dtype

    def finish(value: Array) -> Array:
        if ftz and dtype == np.float32:
            value = flush_subnormals(value)
        if sat:
            value = np.where(value > 0, np.minimum(value, dtype.type(1)), dtype.type(0)).astype(dtype)
        if relu:
            value = np.where(value < 0, dtype.type(0), value).astype(dtype)
        return value

    return finish


def _float(spelling: Spelling, name: str, count: int) -> Operation:
    mode = spelling.require(*_ROUNDINGS) if name == "fma" else spelling.take(*_ROUNDINGS) or "rn"
    nan = spelling.take("NaN") if name in ("min", "max") else ""
    spelling.skip("approx", "full", "noftz")
    ftz = "ftz" in spelling.rest
    type_ = spelling.type(*_FLOATS)
    finish = _finisher(spelling, type_)
    dtype = type_.dtype
    # Mixed precision: add.f32.f16 and fma.rn.f32.f16 read f16 sources and an f32 addend (PTX ISA 8.6).
    sources = [type_] * count
    if spelling.next_is_type():
        mixed = spelling.type("f16", "bf16")
        if type_.name != "f32" or name not in ("add", "sub", "fma"):
            spelling.fail(f".f32.{mixed.name} is not defined for {name}")
        spelling.available((8, 6), 100, what=f"{name}.f32.{mixed.name}")
        if ftz:
            spelling.fail(".ftz is not defined for mixed precision")
        sources = [mixed] * (count - 1) + [type_]
    if nan and type_.name == "f64":
        spelling.fail(".NaN is not defined for .f64")
    if nan:
        function = np.minimum if name == "min" else np.maximum
    elif name in _NATIVE and mode == "rn" and dtype.itemsize >= 4 and sources[0] == type_:
        function = _NATIVE[name]
    else:
        function = _FLOAT[name]
    native = function is _NATIVE.get(name) or name in ("min", "max", "neg", "abs")
    wide = dtype if native and dtype.itemsize >= 4 else np.dtype(np.float64)

    def compute(*values: Array) -> Array:
        if ftz and dtype == np.float32:
            values = tuple(flush_subnormals(v) for v in values)
        result = function(*[v.astype(wide, copy=False) for v in values])
        return finish(result if result.dtype == dtype else narrow(result, dtype, mode))

    return elementwise(spelling, name, compute, type_, sources)


def _is_float(spelling: Spelling) -> bool:
    return next((m for m in spelling.rest if m in TYPES), "").lstrip("b").startswith("f")


@instruction("add", "sub", "min", "max", "neg", "abs")
def decode_simple(spelling: Spelling) -> Operation:
    """d = a op b, or d = op a, for integers and floats."""
    name = spelling.prefix
    if _is_float(spelling):
        return _float(spelling, name, 1 if name in _UNARY else 2)
    return _integer(spelling, name)


@instruction("mul", "mad")
def decode_product(spelling: Spelling) -> Operation:
    """Products; mad of floats is fma."""
    if not _is_float(spelling):
        return _product(spelling, spelling.prefix)
    return _float(spelling, "mul", 2) if spelling.prefix == "mul" else _float(spelling, "fma", 3)


@instruction("div", "rem")
def decode_division(spelling: Spelling) -> Operation:
    """Quotients and remainders."""
    if _is_float(spelling) and spelling.prefix == "div":
        return _float(spelling, "div", 2)
    return _division(spelling, spelling.prefix)


@instruction("fma")
def decode_fma(spelling: Spelling) -> Operation:
    """d = a * b + c, rounded once."""
    return _float(spelling, "fma", 3)


@instruction("sqrt", "rcp", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh")
def decode_function(spelling: Spelling) -> Operation:
    """Functions of one float."""
    return _float(spelling, spelling.prefix, 1)
