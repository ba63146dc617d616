"""The emulator's scalar instructions against NumPy: every family, special values, rounding, saturation."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import numpy as np
import pytest
from scalar_kernels import BF16, RNG, apply, exact_fma, floats, integers, text

from emmy.emulator import Emulator, EmulatorError, Uninitialised


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
