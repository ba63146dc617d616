"""Kernels of one instruction a thread, and what they are tried on, for tests of the emulator."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np

from emmy.emulator import Emulator, Uninitialised

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
