"""`unroll-loops` changes no bit of a product, whatever is drawn: interpret(before) = interpret(after) at level 3, and the
emulator agrees. The data are no integers: an order of sums that changed would show.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import emmy
from emmy.artefact import run_on_emulator
from emmy.interpreters import level3
from emmy.ir import make_context, parse_module, print_module, verify_module
from emmy.passes.unroll_loops import UnrollLoops

K_TILE = 32


def text(k: int, dynamic: bool) -> str:
    depth = "?" if dynamic else k
    a, b, c = f"tensor<32x{depth}xf16>", f"tensor<32x{depth}xf16>", "tensor<32x32xf16>"
    return (
        f"func.func @mm(%a: {a}, %b: {b}) -> {c} {{\n"
        f"  %c = tensor_op.matmul %a, %b transpose_b : ({a}, {b}) -> {c}\n  func.return %c : {c}\n}}\n"
    )


@settings(max_examples=40)
@given(
    trips=st.integers(0, 11),
    ragged=st.sampled_from((0, 0, 8)),
    dynamic=st.booleans(),
    stages=st.integers(1, 4),
    factor=st.integers(1, 5),
    prefetch=st.integers(0, 1),
    form=st.sampled_from((("plain", "unified"), ("cp_async", "unified"), ("tma", "unified"), ("tma", "specialized"))),
    landing=st.sampled_from(level3.LANDINGS),
    order=st.sampled_from(level3.ORDERS),
    seed=st.integers(0, 1000),
)
def test_no_bit_changes(
    trips: int, ragged: int, dynamic: bool, stages: int, factor: int, prefetch: int, form: tuple[str, str],
    landing: str, order: str, seed: int,
) -> None:  # fmt: skip
    k = max(trips * K_TILE - ragged, 0)
    transport, roles = form
    warps = [2, 2] if roles == "specialized" else [2, 1]
    schedule = {
        "block": [32, 32, K_TILE],
        "warps": warps,
        "stages": stages,
        "prefetch": prefetch,
        "transport": transport,
        "roles": roles,
    }
    generator = np.random.default_rng(seed)
    arguments = [generator.normal(size=(32, k)).astype(np.float16) for _ in range(2)]
    plain = emmy.compile(text(k, dynamic), "sm_90a", schedule=schedule)
    before = parse_module(plain.ir("cse"), "lowered.mlir")
    after = before.clone()
    UnrollLoops(factor).apply(make_context(), after)
    verify_module(after)
    after = parse_module(print_module(after), "unrolled.mlir")
    event(f"changed: {print_module(after) != print_module(before)}")
    (expected,) = level3.run_module(before, "mm", arguments, landing, order, seed)
    (got,) = level3.run_module(after, "mm", arguments, landing, order, seed)
    assert got.tobytes() == expected.tobytes()

    module = emmy.compile(text(k, dynamic), "sm_90a", schedule={**schedule, "unroll": factor})
    results = [
        run_on_emulator(m.portable_artefact, "mm", arguments, landing=landing, order=order, seed=seed)[0][0]
        for m in (plain, module)
    ]
    assert results[0].tobytes() == results[1].tobytes()
    exact = arguments[0].astype(np.float64) @ arguments[1].astype(np.float64).T
    np.testing.assert_allclose(results[0].astype(np.float64), exact, rtol=2e-3, atol=2e-3)


def test_text_printed_after_the_pass_is_not_unrolled_again() -> None:
    """What follows the pass is `lower-to-ptx` alone, so that text meets clean-up passes once more, and may get shorter."""
    schedule = {"block": [32, 32, K_TILE], "warps": [1, 1], "stages": 2, "unroll": 2}
    for k, dynamic in ((12 * K_TILE, False), (0, True)):
        module = emmy.compile(text(k, dynamic), "sm_90a", schedule=schedule)
        products = module.ptx.count("mma.sync")
        again = emmy.compile(module.ir("unroll-loops"), "sm_90a")
        assert 0 < again.ptx.count("mma.sync") <= products
        assert emmy.compile(module.ir("cse"), "sm_90a").ptx == module.ptx


def test_a_body_holds_one_step_or_more() -> None:
    module = parse_module(emmy.compile(text(K_TILE, False), "sm_90a").ir("cse"), "lowered.mlir")
    for factor in (0, -3):
        with pytest.raises(emmy.EmmyError, match=f"1 or more steps into a body, got {factor}"):
            UnrollLoops(factor).apply(make_context(), module)
