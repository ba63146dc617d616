"""Placement and transport change no result: all forms of a text agree bit for bit, whatever is drawn."""

from __future__ import annotations

import numpy as np
import protocol_support as support
from hypothesis import given, settings
from hypothesis import strategies as st

from emmy.interpreters.level3 import LANDINGS, ORDERS


def mode(draw: st.DrawFn) -> tuple[str, str, int]:
    return draw(st.sampled_from(LANDINGS)), draw(st.sampled_from(ORDERS)), draw(st.integers(0, 1000))


@st.composite
def gemm_cases(draw: st.DrawFn) -> tuple[support.Forms, list[np.ndarray], list[tuple[str, str, int]]]:
    name = draw(st.sampled_from(["gemm", "gemm_persistent", "gemm_two_waits", "gemm_deferred_release"]))
    double = name in ("gemm_two_waits", "gemm_deferred_release")
    stages = [("ab", draw(st.integers(2 if double else 1, 5))), ("out", draw(st.integers(1, 2)))]
    sites, kind = draw(st.sampled_from(["eager", "first"])), draw(st.sampled_from(support.KINDS))
    placement = draw(st.sampled_from(support.MODES))
    # Trips of 0, 1, stages - 1, stages, stages + 1 and others; rows of 16 bytes where TMA reads them.
    depth = 32 * draw(st.integers(1, 4)) if double else draw(st.integers(0, 100))
    depth -= depth % 8 if kind == "tma" else 0
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    inputs = [rng.normal(size=(draw(st.integers(1, 70)), depth)).astype(np.float16) for _ in range(2)]
    return support.forms(name, tuple(stages), sites, kind, depth, placement), inputs, [mode(draw) for _ in range(3)]


@st.composite
def attention_cases(draw: st.DrawFn) -> tuple[support.Forms, list[np.ndarray], list[tuple[str, str, int]]]:
    name = draw(st.sampled_from(["flash_attention", "flash_attention_lag", "flash_attention_persistent"]))
    stages = tuple((ring, draw(st.integers(1, 4))) for ring in ("q", "k", "v"))
    sites, kind = draw(st.sampled_from(["eager", "first"])), draw(st.sampled_from(support.KINDS))
    placement = draw(st.sampled_from(support.MODES))
    keys = draw(st.integers(0, 90)) if name == "flash_attention" else 16 * draw(st.integers(1, 6))
    queries = keys if name == "flash_attention_persistent" else draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    inputs = [rng.normal(size=(n, 32)).astype(np.float16) for n in (queries, keys, keys)]
    return support.forms(name, stages, sites, kind, mode=placement), inputs, [mode(draw) for _ in range(3)]


def check(case: tuple[support.Forms, list[np.ndarray], list[tuple[str, str, int]]]) -> None:
    forms, inputs, modes = case
    results = [support.run(module, inputs, *mode) for module, mode in zip(forms.all(), modes, strict=True)]
    assert not np.isnan(results[0].astype(np.float32)).any()
    assert results[0].tobytes() == results[1].tobytes() == results[2].tobytes()


@settings(max_examples=120)
@given(gemm_cases())
def test_gemm_forms_agree(case: tuple[support.Forms, list[np.ndarray], list[tuple[str, str, int]]]) -> None:
    check(case)


@settings(max_examples=120)
@given(attention_cases())
def test_attention_forms_agree(case: tuple[support.Forms, list[np.ndarray], list[tuple[str, str, int]]]) -> None:
    check(case)
