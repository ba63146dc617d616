"""Conversions, comparisons, packing and mixed precision on the emulator, against NumPy."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scalar_kernels import BF16, apply, exact_fma, floats, integers, text

from emmy.emulator import Emulator, EmulatorError


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
