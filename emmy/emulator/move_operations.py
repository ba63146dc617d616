"""mov (with packing and unpacking), cvta and cvt."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from emmy.emulator.datatypes import STORAGE, TYPES, Array, DataType, flush_subnormals, narrow
from emmy.emulator.decode import Execute, Operation, Spelling, elementwise, instruction
from emmy.emulator.machine import PARAMETER_WINDOW, Machine
from emmy.emulator.syntax import Vector

_SIZES = [f"{k}{n}" for k in "bsu" for n in (16, 32, 64)]


def _same(a: Array) -> Array:
    return a


@instruction("mov")
def decode_mov(spelling: Spelling) -> Operation:
    """d = a; {a, b} = d and d = {a, b} split and join, the first element being the lowest bits."""
    type_ = spelling.type("pred", *_SIZES, "f16", "bf16", "f16x2", "bf16x2", "f32", "f64")
    spelling.finish(2)
    target, source = spelling.operands
    if isinstance(target, Vector) or isinstance(source, Vector):
        return _split_or_join(spelling, type_)
    bits = type_ if type_.kind == "pred" else TYPES[f"b{type_.bits}"]
    value_type = type_ if type_.packed == 1 else bits
    return elementwise(spelling, "mov", _same, value_type, [value_type])


def _split_or_join(spelling: Spelling, type_: DataType) -> Operation:
    target, source = spelling.operands
    split = isinstance(target, Vector)
    vector, whole = (target, source) if split else (source, target)
    if not isinstance(vector, Vector) or isinstance(whole, Vector) or type_.kind != "bits":
        spelling.fail("mov.b splits or joins one register and one vector")
    count = len(vector.elements)
    if type_.bits % count or type_.bits // count not in STORAGE:
        spelling.fail(f"{type_.bits} bits cannot be cut into {count}")
    part = TYPES[f"b{type_.bits // count}"]
    spelling.check(whole, type_)
    for element in vector.elements:
        spelling.check(element, part)

    def bind_split(machine: Machine) -> Execute:
        pieces = machine.source(whole, type_)
        writers = [machine.writer(e, part) for e in vector.elements]

        def execute(low: int, high: int, mask: Array | None) -> None:
            cut: Array = np.ascontiguousarray(pieces[low:high]).view(part.dtype).copy()
            for i, write in enumerate(writers):
                write(low, high, mask, cut[:, i::count])

        return execute

    def bind_join(machine: Machine) -> Execute:
        pieces = [machine.source(e, part) for e in vector.elements]
        write = machine.writer(whole, type_)

        def execute(low: int, high: int, mask: Array | None) -> None:
            joined = np.empty((high - low, 32, count), part.dtype)
            for i, piece in enumerate(pieces):
                joined[:, :, i] = piece[low:high]
            write(low, high, mask, joined.view(type_.dtype).reshape(high - low, 32))

        return execute

    return Operation("mov", bind_split if split else bind_join)


def _enter_parameter_window(a: Array) -> Array:
    return a + np.uint64(PARAMETER_WINDOW)


def _leave_parameter_window(a: Array) -> Array:
    return a - np.uint64(PARAMETER_WINDOW)


@instruction("cvta")
def decode_cvta(spelling: Spelling) -> Operation:
    """cvta, cvta.to: here the generic addresses are the global and shared ones, which never overlap, and a window of
    parameter space."""
    to = spelling.take("to")
    space = spelling.require("global", "shared", "shared::cta", "param")
    type_ = spelling.type(*(("u64",) if space == "param" else ("u64", "u32")))
    if space == "param":
        spelling.available((7, 7), 70, what="cvta.param")
        return elementwise(spelling, "cvta", _leave_parameter_window if to else _enter_parameter_window, type_, [type_])
    return elementwise(spelling, "cvta", _same, type_, [type_])


_INTEGER_ROUNDING: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}


@instruction("cvt")
def decode_cvt(spelling: Spelling) -> Operation:
    """Conversions between integers, f16, bf16, f32, f64; cvt.f16x2.f32 and .bf16x2.f32 put the first source on top."""
    to_integer = spelling.take(*_INTEGER_ROUNDING)
    mode = spelling.take("rn", "rz", "rm", "rp")
    ftz, sat, relu = (spelling.take(m) for m in ("ftz", "sat", "relu"))
    to, source = spelling.type(), spelling.type()
    if to.packed == 2:
        return _pack(spelling, to, source, mode or "rn", bool(relu))
    if "pred" in (to.kind, source.kind) or source.packed > 1:
        spelling.fail("this conversion does not exist")
    function: Callable[[Array], Array]
    if to.kind != "float" and source.kind != "float":
        function = _integer_to_integer(to, bool(sat))
    elif to.kind != "float":
        if not to_integer:
            spelling.fail("a float becomes an integer with .rni, .rzi, .rmi or .rpi")
        function = _float_to_integer(to, _INTEGER_ROUNDING[to_integer])
    else:
        function = _to_float(to, source, mode or "rn", to_integer)
    if relu and to.kind != "float":
        spelling.fail(".relu needs a float result")

    def convert(a: Array) -> Array:
        if ftz and source.name == "f32":
            a = flush_subnormals(a)
        result = function(a)
        if ftz and to.name == "f32":
            result = flush_subnormals(result)
        if sat and to.kind == "float":
            result = np.where(result > 0, np.minimum(result, to.dtype.type(1)), to.dtype.type(0)).astype(to.dtype)
        if relu:
            result = np.where(result < 0, to.dtype.type(0), result).astype(to.dtype)
        return result

    return elementwise(spelling, "cvt", convert, to, [source], wider=True)


def _pack(spelling: Spelling, to: DataType, source: DataType, mode: str, relu: bool) -> Operation:
    if source.name != "f32":
        spelling.fail("only two f32 can be packed")

    def pack(upper: Array, lower: Array) -> Array:
        both = np.stack([lower, upper], axis=-1).reshape(lower.shape[0], -1)
        result = narrow(both, to.dtype, mode)
        return np.where(result < 0, to.dtype.type(0), result).astype(to.dtype) if relu else result

    return elementwise(spelling, "cvt", pack, to, [source, source])


def _integer_to_integer(to: DataType, sat: bool) -> Callable[[Array], Array]:
    limits = np.iinfo(to.dtype)

    def convert(a: Array) -> Array:
        if sat:
            own = np.iinfo(a.dtype)
            a = np.clip(a, max(int(limits.min), int(own.min)), min(int(limits.max), int(own.max)))
        return a.astype(to.dtype)

    return convert


def _float_to_integer(to: DataType, rounding: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Out-of-range values saturate and NaN becomes 0 (PTX ISA, cvt)."""
    limits = np.iinfo(to.dtype)
    low, high = float(limits.min), float(limits.max)

    def convert(a: Array) -> Array:
        value = rounding(a.astype(np.float64))
        inside = np.where(np.isnan(value) | (value >= high) | (value <= low), 0.0, value).astype(to.dtype)
        inside = np.where(value >= high, to.dtype.type(limits.max), inside)
        return np.where(value <= low, to.dtype.type(limits.min), inside)

    return convert


def _to_float(to: DataType, source: DataType, mode: str, to_integer: str) -> Callable[[Array], Array]:
    # The widest float holds every source exactly, so that one rounding remains.
    wide = np.dtype(np.longdouble if source.kind != "float" and source.bits == 64 else np.float64)

    def convert(a: Array) -> Array:
        value = a.astype(wide)
        if to_integer:
            value = _INTEGER_ROUNDING[to_integer](value)
        if value.dtype == to.dtype:
            return value
        return narrow(value, to.dtype, mode)

    return convert
