"""`issue-products` changes no number of a product: level 3 before = level 3 after, and the emulator, which knows when a
`wgmma` reads its operands and when its sums may be touched, agrees with float64 on small integers.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import emmy
from emmy.artefact import run_on_emulator
from emmy.errors import EmmyError
from emmy.interpreters import level3
from emmy.ir import make_context, parse_module, print_module, verify_module
from emmy.passes.issue_products import IssueProducts

DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}


def text(m: int, n: int, k: int, transpose_a: bool, transpose_b: bool, dtype: str, result: str, policy: str) -> str:
    a = f"tensor<{k}x{m}x{dtype}>" if transpose_a else f"tensor<{m}x{k}x{dtype}>"
    b = f"tensor<{n}x{k}x{dtype}>" if transpose_b else f"tensor<{k}x{n}x{dtype}>"
    flags = " transpose_a" * transpose_a + " transpose_b" * transpose_b + f" accumulate<{policy}>"
    c = f"tensor<{m}x{n}x{result}>"
    return (
        f"func.func @mm(%a: {a}, %b: {b}) -> {c} {{\n"
        f"  %c = tensor_op.matmul %a, %b{flags} : ({a}, {b}) -> {c}\n  func.return %c : {c}\n}}\n"
    )


@settings(max_examples=30, phases=(Phase.explicit, Phase.generate))
@given(
    m=st.integers(1, 140),
    n=st.integers(1, 25).map(lambda n: 8 * n),
    k=st.integers(0, 20).map(lambda k: 8 * k),
    transposes=st.tuples(st.booleans(), st.booleans()),
    dtype=st.sampled_from(("f16", "bf16")),
    f32_result=st.booleans(),
    f16_sums=st.booleans(),
    rows=st.sampled_from((64, 128)),
    columns=st.sampled_from((16, 24, 48, 64, 80, 120, 320)),
    depth=st.sampled_from((16, 32, 64)),
    stages=st.integers(1, 3),
    specialized=st.booleans(),
    persistent=st.integers(0, 1),
    parts=st.booleans(),
    unroll=st.integers(1, 2),
    landing=st.sampled_from(level3.LANDINGS),
    order=st.sampled_from(level3.ORDERS),
    seed=st.integers(0, 1000),
)
def test_products_of_warpgroups(
    m: int, n: int, k: int, transposes: tuple[bool, bool], dtype: str, f32_result: bool, f16_sums: bool, rows: int,
    columns: int, depth: int, stages: int, specialized: bool, persistent: int, parts: bool, unroll: int, landing: str,
    order: str, seed: int,
) -> None:  # fmt: skip
    transpose_a, transpose_b = transposes
    m += -m % 8 if transpose_a else 0  # TMA moves rows of whole 16 bytes
    policy = "f16" if f16_sums and dtype == "f16" else "f32"
    schedule = {
        "atom": "wgmma",
        "block": [rows, columns, depth],
        "warps": [rows // 16, 1],
        "stages": stages,
        "transport": "tma",
        "roles": "specialized" if specialized else "unified",
        "persistent": persistent,
        "store_columns": 16 if parts and columns % 16 == 0 else 0,
        "unroll": unroll,
    }
    program = text(m, n, k, transpose_a, transpose_b, dtype, "f32" if f32_result else dtype, policy)
    module = emmy.compile(program, "sm_90a", schedule=schedule)
    before = parse_module(module.ir("double-buffer-fragments"), "before.mlir")
    after = before.clone()
    IssueProducts().apply(make_context(), after)
    verify_module(after)
    after = parse_module(print_module(after), "after.mlir")
    generator = np.random.default_rng(seed)
    a, b = (
        generator.integers(-2, 3, size=(second, first) if swapped else (first, second)).astype(DTYPES[dtype])
        for first, second, swapped in ((m, k, transpose_a), (k, n, transpose_b))
    )
    exact = (a.T if transpose_a else a).astype(np.float64) @ (b.T if transpose_b else b).astype(np.float64)
    for form in (before, after):
        (got,) = level3.run_module(form, "mm", [a, b], landing, order, seed)
        np.testing.assert_array_equal(got.astype(np.float64), exact.astype(got.dtype).astype(np.float64))
    (got,), _ = run_on_emulator(module.portable_artefact, "mm", [a, b], landing=landing, order=order, seed=seed)
    np.testing.assert_array_equal(got.astype(np.float64), exact.astype(got.dtype).astype(np.float64))


@pytest.mark.parametrize(
    ("schedule", "target", "words"),
    [
        ({"warps": [4, 1], "block": [128, 64, 64]}, "sm_90a", "16 rows for each"),
        ({"warps": [2, 1], "block": [32, 64, 64]}, "sm_90a", "warps in fours along M"),
        ({"warps": [4, 1], "block": [64, 64, 64]}, "sm_120a", "needs sm_90a"),
        ({"warps": [4, 1], "block": [64, 64, 64], "transport": "cp_async"}, "sm_90a", "reads what TMA has written"),
    ],
)
def test_what_wgmma_cannot_do(schedule: dict[str, object], target: str, words: str):
    program = text(128, 64, 64, False, True, "f16", "f16", "f32")
    with pytest.raises(EmmyError, match=words):
        emmy.compile(program, target, schedule={"atom": "wgmma", **schedule})


def test_wgmma_has_no_hybrid_sums():
    program = text(128, 64, 64, False, True, "f16", "f16", "hybrid")
    with pytest.raises(EmmyError, match="no hybrid sums"):
        emmy.compile(program, "sm_90a", schedule={"atom": "wgmma", "warps": [4, 1], "block": [64, 64, 64]})


def test_operands_that_tma_cannot_move_take_another_atom():
    """An odd row is copied by threads: the table's row for that is of mma.sync; a pin is an error that says why."""
    program = text(128, 64, 59, False, True, "f16", "f16", "f32")
    assert "atom = wgmma" not in emmy.compile(program, "sm_90a").ir("assign-schedule")
    with pytest.raises(EmmyError, match="wgmma"):
        emmy.compile(program, "sm_90a", schedule={"atom": "wgmma", "warps": [4, 1], "block": [64, 64, 64]})
