"""The emulator's scalar instructions against NumPy: every family, special values, rounding, saturation."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from emmy.emulator import Emulator, EmulatorError, Uninitialised

BF16 = ml_dtypes.bfloat16
RNG = np.random.default_rng(1)


def text(body: str, parameters: str = ".param .u64 out", registers: str = "") -> str:
    return f"""
.version 8.6
.target sm_100
.address_size 64
.visible .entry k({parameters})
{{
{registers}
{body}
ret;
}}
"""


def apply(instruction: str, result: np.dtype | type, *sources: np.ndarray) -> np.ndarray:
    """Run `instruction` (with %d, %a, %b, %c) on one element a thread and return what it writes."""
    count, names = sources[0].size, "abc"[: len(sources)]
    out = np.empty(count, result)
    widths = dict(zip(names, (s.dtype.itemsize for s in sources), strict=True))
    widths["d"] = out.dtype.itemsize
    lines, registers = ["mov.u32 %t, %tid.x;"], [".reg .b32 %t;", ".reg .b64 %w<5>;"]
    registers += [f".reg .b{8 * max(w, 2)} %{n};" for n, w in widths.items()]
    for i, name in enumerate(names):
        lines += [
            f"ld.param.u64 %w{i}, [p{name}];",
            f"mad.wide.u32 %w{i}, %t, {widths[name]}, %w{i};",
            f"ld.global.b{8 * widths[name]} %{name}, [%w{i}];",
        ]
    lines += [
        instruction,
        "ld.param.u64 %w4, [pd];",
        f"mad.wide.u32 %w4, %t, {widths['d']}, %w4;",
        f"st.global.b{8 * widths['d']} [%w4], %d;",
    ]
    parameters = ", ".join(f".param .u64 p{n}" for n in [*names, "d"])
    emulator = Emulator(text("\n".join(lines), parameters, "\n".join(registers)))
    emulator.launch("k", (1, 1, 1), (count, 1, 1), [*sources, Uninitialised(out)])
    return out


def integers(dtype: type, count: int = 96) -> np.ndarray:
    info = np.iinfo(dtype)
    special = [info.min, info.max, 0, 1, info.max - 1, info.min + 1, 31, 32]
    return np.array([*special, *RNG.integers(info.min, info.max, count - 8, dtype, endpoint=True)], dtype)


def wrap(value: int, dtype: type) -> int:
    bits = np.dtype(dtype).itemsize * 8
    value &= (1 << bits) - 1
    return value - (1 << bits) if np.dtype(dtype).kind == "i" and value >> (bits - 1) else value


INTEGER = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "min": min,
    "max": max,
}
TYPES = {"s32": np.int32, "u32": np.uint32, "s64": np.int64, "u64": np.uint64, "s16": np.int16, "u16": np.uint16}


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("name", INTEGER)
def test_integer_arithmetic(name, type_):
    dtype = TYPES[type_]
    a, b = integers(dtype), integers(dtype)[::-1].copy()
    expected = [wrap(INTEGER[name](int(x), int(y)), dtype) for x, y in zip(a, b, strict=True)]
    np.testing.assert_array_equal(apply(f"{name}.{type_} %d, %a, %b;", dtype, a, b), np.array(expected, dtype))


@pytest.mark.parametrize("type_", TYPES)
def test_products_and_quotients(type_):
    dtype = TYPES[type_]
    bits = np.dtype(dtype).itemsize * 8
    a, b, c = integers(dtype), integers(dtype)[::-1].copy(), integers(dtype)
    pairs = [(int(x), int(y), int(z)) for x, y, z in zip(a, b, c, strict=True)]
    high = [wrap(x * y >> bits, dtype) for x, y, _ in pairs]
    np.testing.assert_array_equal(apply(f"mul.hi.{type_} %d, %a, %b;", dtype, a, b), np.array(high, dtype))
    mad = [wrap(x * y + z, dtype) for x, y, z in pairs]
    np.testing.assert_array_equal(apply(f"mad.lo.{type_} %d, %a, %b, %c;", dtype, a, b, c), np.array(mad, dtype))
    if bits < 64:
        wide = np.dtype(f"{'i' if type_[0] == 's' else 'u'}{2 * bits // 8}")
        product = [x * y for x, y, _ in pairs]
        got = apply(f"mul.wide.{type_} %d, %a, %b;", wide, a, b)
        np.testing.assert_array_equal(got, np.array(product, wide))
    b[b == 0] = 3
    pairs = [(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    quotient = [wrap(abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1), dtype) for x, y in pairs]
    np.testing.assert_array_equal(apply(f"div.{type_} %d, %a, %b;", dtype, a, b), np.array(quotient, dtype))
    remainder = [
        wrap(int(math.fmod(Fraction(x), Fraction(y))) if bits < 64 else x - y * q, dtype)
        for (x, y), q in zip(pairs, quotient, strict=True)
    ]
    np.testing.assert_array_equal(apply(f"rem.{type_} %d, %a, %b;", dtype, a, b), np.array(remainder, dtype))


def test_negation_and_saturation():
    a, b = integers(np.int32), integers(np.int32)[::-1].copy()
    np.testing.assert_array_equal(apply("neg.s32 %d, %a;", np.int32, a), -a)
    np.testing.assert_array_equal(apply("abs.s32 %d, %a;", np.int32, a), np.abs(a))
    wide = a.astype(np.int64) + b
    got = apply("add.sat.s32 %d, %a, %b;", np.int32, a, b)
    np.testing.assert_array_equal(got, np.clip(wide, -(2**31), 2**31 - 1).astype(np.int32))


def test_bits():
    a, b, c = integers(np.uint32), integers(np.uint32)[::-1].copy(), RNG.integers(0, 2**32, 96, np.uint32)
    for name, function in {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}.items():
        np.testing.assert_array_equal(apply(f"{name}.b32 %d, %a, %b;", np.uint32, a, b), function(a, b))
    np.testing.assert_array_equal(apply("not.b32 %d, %a;", np.uint32, a), ~a)
    lop = apply("lop3.b32 %d, %a, %b, %c, 0xE8;", np.uint32, a, b, c)
    np.testing.assert_array_equal(lop, (a & b) | (a & c) | (b & c))
    np.testing.assert_array_equal(apply("popc.b32 %d, %a;", np.uint32, a), np.bitwise_count(a))
    leading = [32 - int(x).bit_length() for x in a]
    np.testing.assert_array_equal(apply("clz.b32 %d, %a;", np.uint32, a), leading)
    reverse = [int(f"{int(x):032b}"[::-1], 2) for x in a]
    np.testing.assert_array_equal(apply("brev.b32 %d, %a;", np.uint32, a), np.array(reverse, np.uint32))


def test_shifts():
    a = integers(np.uint32)
    n = RNG.integers(0, 40, 96).astype(np.uint32)
    left = [(int(x) << int(s)) & 0xFFFFFFFF for x, s in zip(a, n, strict=True)]
    np.testing.assert_array_equal(apply("shl.b32 %d, %a, %b;", np.uint32, a, n), np.array(left, np.uint32))
    right = [int(x) >> int(s) for x, s in zip(a, n, strict=True)]
    np.testing.assert_array_equal(apply("shr.u32 %d, %a, %b;", np.uint32, a, n), np.array(right, np.uint32))
    signed = a.view(np.int32)
    arithmetic = [int(x) >> int(s) for x, s in zip(signed, n, strict=True)]
    np.testing.assert_array_equal(apply("shr.s32 %d, %a, %b;", np.int32, signed, n), np.array(arithmetic, np.int32))
    b = a[::-1].copy()
    both = [int(y) << 32 | int(x) for x, y in zip(a, b, strict=True)]
    funnel = [(v << (int(s) & 31)) >> 32 & 0xFFFFFFFF for v, s in zip(both, n, strict=True)]
    got = apply("shf.l.wrap.b32 %d, %a, %b, %c;", np.uint32, a, b, n)
    np.testing.assert_array_equal(got, np.array(funnel, np.uint32))
    funnel = [v >> min(int(s), 32) & 0xFFFFFFFF for v, s in zip(both, n, strict=True)]
    got = apply("shf.r.clamp.b32 %d, %a, %b, %c;", np.uint32, a, b, n)
    np.testing.assert_array_equal(got, np.array(funnel, np.uint32))


def test_bit_fields():
    a = integers(np.uint32)
    position, length = RNG.integers(0, 32, 96).astype(np.uint32), RNG.integers(0, 33, 96).astype(np.uint32)
    fields = [int(x) >> int(p) & ((1 << int(n)) - 1) for x, p, n in zip(a, position, length, strict=True)]
    got = apply("bfe.u32 %d, %a, %b, %c;", np.uint32, a, position, length)
    np.testing.assert_array_equal(got, np.array(fields, np.uint32))
    np.testing.assert_array_equal(
        apply("bfe.s32 %d, %a, 4, 8;", np.int32, a.view(np.int32)),
        ((a >> 4) & 255).astype(np.uint8).view(np.int8).astype(np.int32),
    )
    b = a[::-1].copy()
    inserted = (b & ~np.uint32(0xFF0)) | ((a << np.uint32(4)) & np.uint32(0xFF0))
    np.testing.assert_array_equal(apply("bfi.b32 %d, %a, %b, 4, 8;", np.uint32, a, b), inserted)
    bytes_ = np.stack([a, b], axis=1).view(np.uint8)
    got = apply("prmt.b32 %d, %a, %b, 0x7520;", np.uint32, a, b)
    np.testing.assert_array_equal(got.view(np.uint8).reshape(-1, 4), bytes_[:, [0, 2, 5, 7]])
    signs = apply("prmt.b32 %d, %a, %b, 0xBA98;", np.uint32, a, b).view(np.uint8).reshape(-1, 4)
    np.testing.assert_array_equal(signs, np.where(bytes_[:, :4] >= 128, 255, 0))


def floats(dtype: type, count: int = 64) -> np.ndarray:
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.5, 60000.0]
    return np.array([*special, *RNG.standard_normal(count - 8) * 8], dtype)


def exact_fma(a: float, b: float, c: float, dtype: np.dtype) -> float:
    """a * b + c rounded once, by exact rational arithmetic."""
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    candidate = np.array(float(exact), dtype)
    if exact == 0:
        return float(candidate)
    best = [candidate, np.nextafter(candidate, dtype.type(np.inf)), np.nextafter(candidate, dtype.type(-np.inf))]
    best = [x for x in best if np.isfinite(x)]

    def distance(x: np.ndarray) -> tuple[Fraction, int]:
        last_bit = int(x.view(f"u{dtype.itemsize}")) & 1
        return abs(Fraction(float(x)) - exact), last_bit

    return float(min(best, key=distance))


@pytest.mark.parametrize(("type_", "dtype"), [("f32", np.float32), ("f16", np.float16), ("bf16", BF16)])
def test_fma_rounds_once(type_, dtype):
    dtype = np.dtype(dtype)
    a, b = (RNG.standard_normal(256).astype(dtype) for _ in range(2))
    # Addends close to minus the product, and tiny ones: where double rounding shows.
    c = np.where(np.arange(256) % 2, -(a * b), (RNG.standard_normal(256) * 1e-3).astype(dtype)).astype(dtype)
    expected = [exact_fma(float(x), float(y), float(z), dtype) for x, y, z in zip(a, b, c, strict=True)]
    got = apply(f"fma.rn.{type_} %d, %a, %b, %c;", dtype, a, b, c)
    np.testing.assert_array_equal(got.astype(np.float64), expected)


@pytest.mark.parametrize(
    ("type_", "dtype"), [("f32", np.float32), ("f64", np.float64), ("f16", np.float16), ("bf16", BF16)]
)
def test_float_arithmetic(type_, dtype):
    a, b = floats(dtype), floats(dtype)[::-1].copy()
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        cases = {"add": x + y, "sub": x - y, "mul": x * y, "min": np.fmin(x, y), "max": np.fmax(x, y)}
        for name, expected in cases.items():
            got = apply(f"{name}.{type_} %d, %a, %b;", dtype, a, b)
            np.testing.assert_array_equal(got.astype(np.float64), expected.astype(dtype).astype(np.float64))
        np.testing.assert_array_equal(apply(f"neg.{type_} %d, %a;", dtype, a).astype(float), -x)
        if type_ != "f64":
            got = apply(f"max.NaN.{type_} %d, %a, %b;", dtype, a, b)
            np.testing.assert_array_equal(got.astype(float), np.maximum(x, y))


def test_packed_halves():
    a, b, c = (floats(np.float16, 64).reshape(32, 2) for _ in range(3))
    words = [np.ascontiguousarray(x).view(np.uint32).reshape(-1) for x in (a, b, c)]
    with np.errstate(all="ignore"):
        expected = (a.astype(np.float64) * b + c).astype(np.float16)
        got = apply("fma.rn.f16x2 %d, %a, %b, %c;", np.uint32, *words).view(np.float16).reshape(32, 2)
        np.testing.assert_array_equal(got, expected)
        got = apply("add.f16x2 %d, %a, %b;", np.uint32, *words[:2]).view(np.float16).reshape(32, 2)
        np.testing.assert_array_equal(got, a + b)


def test_directed_rounding_and_saturation():
    a, b = np.float32([1, -1, 1, 3]), np.float32([2**-30, -(2**-30), -(2**-30), 0])
    up, down = np.float32(1 + 2**-23), np.float32(1 - 2**-24)
    np.testing.assert_array_equal(apply("add.rz.f32 %d, %a, %b;", np.float32, a, b), np.float32([1, -1, down, 3]))
    np.testing.assert_array_equal(apply("add.rp.f32 %d, %a, %b;", np.float32, a, b), np.float32([up, -1, 1, 3]))
    np.testing.assert_array_equal(apply("add.rm.f32 %d, %a, %b;", np.float32, a, b), np.float32([1, -up, down, 3]))
    np.testing.assert_array_equal(apply("add.sat.f32 %d, %a, %b;", np.float32, a, b), np.float32([1, 0, 1, 1]))
    tiny = np.float32([1e-40, -1e-40, 1])
    np.testing.assert_array_equal(apply("mul.ftz.f32 %d, %a, 0f3F800000;", np.float32, tiny), np.float32([0, -0.0, 1]))


def test_functions():
    a = np.abs(floats(np.float32)) + np.float32(0.25)
    with np.errstate(all="ignore"):
        functions = {
            "ex2.approx.ftz.f32": np.exp2,
            "lg2.approx.f32": np.log2,
            "rcp.approx.f32": lambda x: 1 / x,
            "rcp.rn.f32": lambda x: 1 / x,
            "rsqrt.approx.f32": lambda x: 1 / np.sqrt(x),
            "sqrt.rn.f32": np.sqrt,
            "tanh.approx.f32": np.tanh,
            "sin.approx.f32": np.sin,
            "cos.approx.f32": np.cos,
        }
        for name, function in functions.items():
            expected = function(a.astype(np.float64)).astype(np.float32)
            np.testing.assert_array_equal(apply(f"{name} %d, %a;", np.float32, a), expected)
        halves = a.astype(np.float16)
        got = apply("ex2.approx.f16 %d, %a;", np.float16, halves)
        np.testing.assert_array_equal(got, np.exp2(halves.astype(np.float64)).astype(np.float16))


def test_conversions_between_floats():
    a = floats(np.float32)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(apply("cvt.rn.f16.f32 %d, %a;", np.float16, a), a.astype(np.float16))
        got = apply("cvt.rn.bf16.f32 %d, %a;", BF16, a)
        np.testing.assert_array_equal(got.astype(np.float32), a.astype(BF16).astype(np.float32))
        halves = a.astype(np.float16)
        np.testing.assert_array_equal(apply("cvt.f32.f16 %d, %a;", np.float32, halves), halves.astype(np.float32))
        brain = a.astype(BF16)
        np.testing.assert_array_equal(apply("cvt.f32.bf16 %d, %a;", np.float32, brain), brain.astype(np.float32))
        np.testing.assert_array_equal(apply("cvt.f64.f32 %d, %a;", np.float64, a), a.astype(np.float64))
        b = a[::-1].copy()
        got = apply("cvt.rn.f16x2.f32 %d, %a, %b;", np.uint32, a, b).view(np.float16).reshape(-1, 2)
        np.testing.assert_array_equal(got[:, 1], a.astype(np.float16))  # the first source is the upper half
        np.testing.assert_array_equal(got[:, 0], b.astype(np.float16))
        got = apply("cvt.rn.bf16x2.f32 %d, %a, %b;", np.uint32, a, b).view(BF16).reshape(-1, 2)
        np.testing.assert_array_equal(got[:, 1].astype(np.float32), a.astype(BF16).astype(np.float32))
    third = np.float64([1 / 3, -1 / 3])
    rounded = apply("cvt.rz.f16.f64 %d, %a;", np.float16, third)
    assert abs(float(rounded[0])) < 1 / 3
    assert -1 / 3 < float(rounded[1])
    # Halfway between two bf16 but for a bit that float32 cannot hold: rounding through float32 would go down to even.
    sticky = np.float64([1 + 2**-8 + 2**-40])
    assert float(apply("cvt.rn.bf16.f64 %d, %a;", BF16, sticky)[0]) == 1 + 2**-7


def test_conversions_of_integers():
    a = integers(np.int32)
    np.testing.assert_array_equal(apply("cvt.s64.s32 %d, %a;", np.int64, a), a.astype(np.int64))
    np.testing.assert_array_equal(apply("cvt.u64.u32 %d, %a;", np.uint64, a.view(np.uint32)), a.view(np.uint32))
    np.testing.assert_array_equal(apply("cvt.u32.u64 %d, %a;", np.uint32, a.astype(np.int64)), a.view(np.uint32))
    np.testing.assert_array_equal(apply("cvt.u16.u32 %d, %a;", np.uint16, a), a.astype(np.uint16))
    np.testing.assert_array_equal(apply("cvt.s32.s8 %d, %a;", np.int32, a), a.astype(np.int8))
    np.testing.assert_array_equal(apply("cvt.sat.s16.s32 %d, %a;", np.int16, a), np.clip(a, -(2**15), 2**15 - 1))
    np.testing.assert_array_equal(apply("cvt.rn.f32.s32 %d, %a;", np.float32, a), a.astype(np.float32))
    down = apply("cvt.rz.f32.s32 %d, %a;", np.float32, a).astype(np.float64)
    assert (np.abs(down) <= np.abs(a.astype(np.float64))).all()
    x = np.float32([1.5, 2.5, -1.5, np.nan, 1e20, -1e20, 0.9])
    limits = [2**31 - 1, -(2**31)]
    np.testing.assert_array_equal(apply("cvt.rzi.s32.f32 %d, %a;", np.int32, x), [1, 2, -1, 0, *limits, 0])
    np.testing.assert_array_equal(apply("cvt.rni.s32.f32 %d, %a;", np.int32, x), [2, 2, -2, 0, *limits, 1])
    np.testing.assert_array_equal(apply("cvt.rmi.f32.f32 %d, %a;", np.float32, x[[0, 2]]), [1, -2])


def compare(spelling: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    instruction = f"{{ .reg .pred %p; {spelling} %p, %a, %b; selp.b32 %d, 1, 0, %p; }}"
    return apply(instruction, np.uint32, a, b).astype(bool)


def test_comparisons():
    operators = {"eq": "__eq__", "ne": "__ne__", "lt": "__lt__", "le": "__le__", "gt": "__gt__", "ge": "__ge__"}
    a = integers(np.int32)
    b = np.where(np.arange(96) % 3 == 0, a, a[::-1]).astype(np.int32)
    x, y = floats(np.float32), np.where(np.arange(64) % 3 == 0, floats(np.float32)[::-1], np.float32(1))
    nan = np.isnan(x) | np.isnan(y)
    for name, method in operators.items():
        np.testing.assert_array_equal(compare(f"setp.{name}.s32", a, b), getattr(a, method)(b))
        u, v = a.view(np.uint32), b.view(np.uint32)
        np.testing.assert_array_equal(compare(f"setp.{name}.u32", u, v), getattr(u, method)(v))
        ordered = getattr(x, method)(y)
        np.testing.assert_array_equal(compare(f"setp.{name}.f32", x, y), ordered & ~nan)
        np.testing.assert_array_equal(compare(f"setp.{name}u.f32", x, y), ordered | nan)
    np.testing.assert_array_equal(
        compare("setp.lo.u32", a.view(np.uint32), b.view(np.uint32)), a.view(np.uint32) < b.view(np.uint32)
    )
    np.testing.assert_array_equal(compare("setp.nan.f32", x, y), nan)


def test_setp_with_boolean_and_second_predicate():
    a, b = integers(np.int32), integers(np.int32)[::-1].copy()
    instruction = """{ .reg .pred %p<4>; .reg .b32 %e;
    setp.gt.s32 %p0, %b, 0;
    setp.lt.and.s32 %p1|%p2, %a, %b, !%p0;
    selp.b32 %d, 1, 0, %p1;
    selp.b32 %e, 2, 0, %p2;
    or.b32 %d, %d, %e; }"""
    got = apply(instruction, np.uint32, a, b)
    np.testing.assert_array_equal(got, (a < b) & ~(b > 0) | ((a >= b) & ~(b > 0)) * 2)


def test_packing_moves():
    a = integers(np.uint32)
    swap = "{ .reg .b16 %l, %h; mov.b32 {%l, %h}, %a; mov.b32 %d, {%h, %l}; }"
    np.testing.assert_array_equal(apply(swap, np.uint32, a), a << np.uint32(16) | a >> np.uint32(16))
    b = a[::-1].copy()
    np.testing.assert_array_equal(
        apply("mov.b64 %d, {%a, %b};", np.uint64, a, b), b.astype(np.uint64) << np.uint64(32) | a
    )
    upper = "{ .reg .b32 %h; mov.b64 {_, %h}, %a; mov.b32 %d, %h; }"
    np.testing.assert_array_equal(apply(upper, np.uint32, a.astype(np.uint64) << np.uint64(32)), a)


@pytest.mark.parametrize(("type_", "dtype"), [("f16", np.float16), ("bf16", BF16)])
def test_mixed_precision(type_, dtype):
    """PTX ISA 8.6: a is widened, c is f32, one rounding."""
    a, b, c = floats(dtype), floats(dtype), floats(np.float32)
    wide = a.astype(np.float32)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(apply(f"add.f32.{type_} %d, %a, %b;", np.float32, a, c), wide + c)
        np.testing.assert_array_equal(apply(f"sub.f32.{type_} %d, %a, %b;", np.float32, a, c), wide - c)
    finite = np.isfinite(wide) & np.isfinite(c) & np.isfinite(b.astype(np.float32))
    a, b, c, wide = a[finite], b[finite], c[finite], wide[finite]
    result = apply(f"fma.rn.f32.{type_} %d, %a, %b, %c;", np.float32, a, b, c)
    cases = zip(wide.tolist(), b.astype(float).tolist(), c.tolist(), strict=True)
    np.testing.assert_array_equal(result, [exact_fma(x, y, z, np.dtype(np.float32)) for x, y, z in cases])
    toward_zero = apply(f"add.rz.f32.{type_} %d, %a, %b;", np.float32, a, c)
    for x, z, got in zip(wide.tolist(), c.tolist(), toward_zero, strict=True):
        exact = Fraction(x) + Fraction(z)
        assert abs(Fraction(float(got))) <= abs(exact)
        away = np.nextafter(got, np.float32(np.inf if exact > 0 else -np.inf))
        assert exact == Fraction(float(got)) or abs(Fraction(float(away))) > abs(exact)
    saturated = apply(f"add.sat.f32.{type_} %d, %a, %b;", np.float32, a, c)
    np.testing.assert_array_equal(saturated, np.clip(wide + c, 0, 1))


def test_what_mixed_precision_refuses():
    registers = ".reg .b16 %h; .reg .f32 %f;"
    good = text("add.f32.f16 %f, %h, %f;", registers=registers)
    Emulator(good)
    for change, words in (
        (("sm_100", "sm_90"), "needs .version 8.6 and .target sm_100"),
        ((".version 8.6", ".version 8.5"), "needs .version 8.6"),
        (("add.f32", "add.ftz.f32"), "ftz"),
        (("%f, %h, %f;", "%f, %f, %h;"), "has 32 bits, the instruction uses 16"),
        (("add.f32", "mul.f32"), "not defined for mul"),
        (("add.f32.f16 %f, %h, %f;", "fma.f32.f16 %f, %h, %h, %f;"), "rn, .rz"),
    ):
        assert change[0] in good
        with pytest.raises(EmulatorError, match=words):
            Emulator(good.replace(*change))


def test_special_registers_and_launch_shape():
    registers = ".reg .b32 %r<12>; .reg .b64 %rd<4>;"
    body = """
    ld.param.u64 %rd0, [out];
    mov.u32 %r0, %tid.x; mov.u32 %r1, %tid.y; mov.u32 %r2, %ntid.x; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.y;
    mad.lo.u32 %r5, %r1, %r2, %r0;
    mul.lo.u32 %r6, %r2, %r4;
    mad.lo.u32 %r7, %r3, %r6, %r5;
    mul.wide.u32 %rd1, %r7, 16;
    add.s64 %rd1, %rd1, %rd0;
    mov.u32 %r8, %laneid; mov.u32 %r9, %warpid; mov.u32 %r10, %nctaid.x; mov.u32 %r11, %lanemask_lt;
    st.global.v4.u32 [%rd1], {%r8, %r9, %r10, %r11};
    """
    for order in ("fixed", "reversed", "random"):
        out = np.zeros((2, 40, 4), np.uint32)
        Emulator(text(body, registers=registers)).launch("k", (2, 1, 1), (20, 2, 1), [Uninitialised(out)], order=order)
        linear = np.arange(40)
        expected = np.stack([linear % 32, linear // 32, linear * 0 + 2, (1 << (linear % 32)) - 1], axis=1)
        np.testing.assert_array_equal(out, np.stack([expected, expected]))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("frobnicate.u32 %r0, %r1;", "not known"),
        ("add.weird.u32 %r0, %r1, %r1;", "modifier `.weird`"),
        ("add.u32 %r0, %r1;", "2 operands"),
        ("add.u64 %r0, %r1, %r1;", "has 32 bits"),
        ("add.u32 %r0, %r9, %r1;", "not declared"),
        ("ld.global.u32 %r0, [%r1];", "cannot address global"),
        ("ld.u32 %r0, [%rd0];", "state space"),
        ("mov.u32 %r0, nothing;", "neither a label nor a variable"),
        ("bra NOWHERE;", "neither a label nor a variable"),
        ("mov.u32 5, %r1;", "only registers"),
        ("mul.u32 %r0, %r1, %r1;", "missing"),
        ("cvt.s32.f32 %r0, %r1;", ".rzi"),
        ("cp.async.cg.shared.global [%r0], [%rd0], 8;", "cannot copy 8"),
        ("mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32 %r0, %r0, %r0, %r0;", ".col is missing"),
        ("cp.async.wait_group %r0;", "integer constant"),
    ],
)
def test_unknown_text_is_an_error_when_parsed(line, words):
    source = text(line, registers=".reg .b32 %r<4>; .reg .b64 %rd<2>;")
    with pytest.raises(EmulatorError, match=re.escape(words)) as caught:
        Emulator(source)
    assert line in str(caught.value)
    number = next(i for i, t in enumerate(source.splitlines(), 1) if t == line)
    assert f"PTX line {number}:" in str(caught.value)
    assert caught.value.line == number


def test_uninitialised_registers_and_division_by_zero():
    registers = ".reg .b32 %r<4>; .reg .pred %p;"
    cases = {
        "add.u32 %r0, %r1, 1;": "register %r1 was never written",
        "mov.u32 %r2, %tid.x; setp.lt.u32 %p, %r2, 7; @%p mov.u32 %r1, 0; add.u32 %r0, %r1, 1;": "lane 7",
        "@%p mov.u32 %r1, 0;": "register %p was never written",
        "mov.u32 %r2, %tid.x; div.u32 %r0, 7, %r2;": "division by zero",
    }
    for body, words in cases.items():
        with pytest.raises(EmulatorError, match=re.escape(words)) as caught:
            Emulator(text(body, registers=registers)).launch("k", (1, 1, 1), (64, 1, 1), [np.zeros(4)])
        assert "CTA (0, 0, 0), warp 0" in str(caught.value)


def test_predicated_definition_is_enough_for_the_lanes_that_have_it():
    body = """
    ld.param.u64 %rd0, [out];
    mov.u32 %r2, %tid.x; setp.lt.u32 %p, %r2, 7;
    @%p mov.u32 %r1, 5;
    mad.wide.u32 %rd0, %r2, 4, %rd0;
    @%p st.global.u32 [%rd0], %r1;
    @!%p st.global.u32 [%rd0], %r2;
    """
    out = np.zeros(40, np.uint32)
    source = text(body, registers=".reg .b32 %r<4>; .reg .pred %p; .reg .b64 %rd<1>;")
    Emulator(source).launch("k", (1, 1, 1), (40, 1, 1), [Uninitialised(out)])
    np.testing.assert_array_equal(out, np.where(np.arange(40) < 7, 5, np.arange(40)))


def test_parameters_are_laid_out_and_checked():
    parameters = (
        ".param .u32 n, .param .u64 .ptr .align 1 out, .param .b8 flag, .param .f32 x, .param .align 16 .b8 blob[8]"
    )
    body = """
    ld.param.u64 %rd0, [out]; ld.param.u32 %r0, [n]; ld.param.b8 %r1, [flag]; ld.param.f32 %f0, [x];
    ld.param.u32 %r2, [blob+4];
    cvt.rzi.u32.f32 %r3, %f0;
    st.global.v4.u32 [%rd0], {%r0, %r1, %r2, %r3};
    """
    source = text(body, parameters, ".reg .b32 %r<4>; .reg .b64 %rd<1>; .reg .f32 %f<1>;")
    out = np.zeros(4, np.uint32)
    args = [7, Uninitialised(out), 255, 9.75, bytes(range(8))]
    Emulator(source).launch("k", (1, 1, 1), (1, 1, 1), args)
    np.testing.assert_array_equal(out, [7, 255, 0x07060504, 9])
    for wrong, words in (
        ([7], "5 parameters"),
        ([2**40, *args[1:]], "does not fit"),
        ([1.5, *args[1:]], "integer"),
        ([out, *args[1:]], "cannot hold an address"),
        ([*args[:4], b"123"], "8 bytes"),
    ):
        with pytest.raises(EmulatorError, match=words):
            Emulator(source).launch("k", (1, 1, 1), (1, 1, 1), wrong)
