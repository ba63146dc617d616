"""Interpret(level 1) = interpret(level 2) for attention, over random combinations of everything that the op can say; the same on
the emulator, whose copies land at random.
"""

import dataclasses

import numpy as np
import pytest
from attention_support import DTYPES, UNIT, Case, bounds, cases
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from levels_support import lower

import emmy
from emmy.emulated_calls import run_on_emulator
from emmy.interpreters import level1, level2
from emmy.ir import parse_module


@settings(max_examples=150, deadline=None)
@given(cases(), st.integers(0, 2**32 - 1))
def test_levels_agree(case, seed):
    module, lowered = lower(case.text)
    operands = case.operands(seed)
    exact = level1.run(module, "f", operands)
    value_bound, logarithm_bound = bounds(case, module, operands, exact)
    for got in (level1.run(module, "f", operands, "policy"), level2.run_module(lowered, "f", operands)):
        check(case, got, exact, value_bound, logarithm_bound)


def check(case: Case, got, exact, value_bound, logarithm_bound):
    """Types and values of both results."""
    assert len(got) == 1 + case.logarithm
    assert got[0].dtype == DTYPES[case.result]
    assert got[0].shape == exact[0].shape
    assert np.all(abs(got[0].astype(np.float64) - exact[0]) <= value_bound)
    if case.logarithm:
        hidden = np.isneginf(exact[1])
        np.testing.assert_array_equal(np.isneginf(got[1]), hidden)
        assert not np.any(got[0][hidden])
        assert np.all(abs(got[1][~hidden].astype(np.float64) - exact[1][~hidden]) <= logarithm_bound)


SCHEDULES = [
    "stages = 1",
    "stages = 2",
    "stages = 3, epilogue = direct",
    "stages = 2, roles = specialized, producer_warps = 1",
]
SCHEDULES += [
    "stages = 2, transport = plain",
    "stages = 2, transport = cp_async, roles = specialized",
    "stages = 2, persistent = 1",
]


@settings(max_examples=20, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(cases(), st.sampled_from(SCHEDULES), st.sampled_from(["sm_89", "sm_90a", "sm_120a"]), st.integers(0, 2**32 - 1))
def test_on_the_emulator(case, schedule, target, seed):
    """`ex2.approx` and the other approximations are good to a few units in the last place of f32."""
    case = dataclasses.replace(case, more=schedule)
    module, operands = parse_module(case.text, "t.mlir"), case.operands(seed)
    exact = level1.run(module, "f", operands)
    value_bound, logarithm_bound = bounds(case, module, operands, exact)
    artefact = emmy.compile(case.text, target).portable_artefact
    got, _ = run_on_emulator(artefact, "f", operands, landing="random", order="random", seed=seed % 1000)
    check(case, got, exact, 1.05 * value_bound + 1e-5, 2 * logarithm_bound)


@settings(max_examples=30, deadline=None)
@given(cases(), st.integers(0, 2**32 - 1), st.sampled_from([16, 32, 64]))
def test_the_block_of_keys_is_no_meaning(case, seed, keys):
    """Another block of keys changes roundings only: with values that are all equal, and f32 sums, the result is that value."""
    module, lowered = lower(case.text.replace(f", {case.block[1]}, ", f", {keys}, "))
    operands = case.operands(seed)
    operands[2] = np.ones_like(operands[2])
    [exact, *_], [got, *_] = level1.run(module, "f", operands), level2.run_module(lowered, "f", operands)
    seen = exact[..., :1] > 0.5
    tolerance = 2 * UNIT[case.dtype] + (4 * UNIT["f16"] if "hybrid" in case.policies else 0) + 1e-5
    np.testing.assert_allclose(got.astype(float), np.broadcast_to(seen.astype(float), got.shape), atol=tolerance)


@pytest.mark.parametrize(
    ("target", "rows", "depth", "width", "fields"),
    [
        ("sm_80", 1, 288, 288, {}),
        ("sm_90a", 2, 288, 288, {}),
        ("sm_80", 1, 64, 64, {"warps": (1, 2), "splits": 2}),
        ("sm_120a", 33, 64, 64, {"warps": (2, 2), "splits": 2, "repeat": 1}),
        ("sm_90a", 33, 64, 64, {"warps": (2, 1), "splits": 2, "persistent": 1}),
        ("sm_80", 33, 24, 48, {"warps": (2, 2)}),
    ],
)
def test_fields_that_meet(target: str, rows: int, depth: int, width: int, fields: dict):
    """Splits whose warps share columns (by the table at depths over 256) or whose CTAs take several tiles; warps whose
    columns are an odd number of atoms."""
    q, k, v = (f"tensor<1x2x{n}x{columns}xf16>" for n, columns in ((rows, depth), (70, depth), (70, width)))
    o, logs = f"tensor<1x2x{rows}x{width}xf16>", f"tensor<1x2x{rows}xf32>"
    text = (
        f"func.func @f(%q: {q}, %k: {k}, %v: {v}) -> ({o}, {logs}) {{\n"
        f"  %o, %l = tensor_op.attention %q, %k, %v scale 0.1 : ({q}, {k}, {v}) -> ({o}, {logs})\n"
        f"  func.return %o, %l : {o}, {logs}\n}}\n"
    )
    rng = np.random.default_rng(3)
    shapes = (1, 2, rows, depth), (1, 2, 70, depth), (1, 2, 70, width)
    operands = [rng.standard_normal(shape).astype(np.float16) for shape in shapes]
    exact = level1.run(parse_module(text, "t.mlir"), "f", operands)
    module = emmy.compile(text, target, schedule=fields)
    lowered = level2.run_module(parse_module(module.ir("tile"), "t.mlir"), "f", operands)
    got, _ = run_on_emulator(module.portable_artefact, "f", operands, landing="random", order="random", seed=1)
    for results in (lowered, got):
        for one, other in zip(exact, results, strict=True):
            np.testing.assert_allclose(other.astype(np.float64), one, atol=2e-3)


@pytest.mark.parametrize(
    ("target", "rows", "keys", "clauses", "fields"),
    [
        (
            "sm_90a",
            70,
            90,
            "causal",
            {"atom": "wgmma", "block": (64, 32, 64), "warps": (4, 1), "roles": "specialized", "stages": 2},
        ),
        (
            "sm_90a",
            90,
            70,
            "causal window 40",
            {"atom": "wgmma", "block": (64, 48, 128), "warps": (4, 2), "repeat": 1, "roles": "specialized"},
        ),
        ("sm_120a", 40, 70, "", {"block": (32, 32, 64), "warps": (2, 2), "stages": 2}),
        ("sm_80", 20, 150, "causal", {"block": (32, 32, 64), "warps": (2, 1), "splits": 2}),
    ],
)
def test_keys_that_are_values_are_copied_once(target: str, rows: int, keys: int, clauses: str, fields: dict):
    """Rows that see no key, lengths that are no multiples, both atoms, warps beside each other, splits."""
    depth = fields["block"][2]
    q, k = (f"tensor<1x{heads}x{n}x{depth}xf16>" for heads, n in ((2, rows), (1, keys)))
    logs = f"tensor<1x2x{rows}xf32>"
    text = (
        f"func.func @f(%q: {q}, %k: {k}) -> ({q}, {logs}) {{\n"
        f"  %o, %l = tensor_op.attention %q, %k, %k scale 0.1 {clauses} : ({q}, {k}, {k}) -> ({q}, {logs})\n"
        f"  func.return %o, %l : {q}, {logs}\n}}\n"
    )
    rng = np.random.default_rng(3)
    operands = [rng.standard_normal(shape).astype(np.float16) for shape in ((1, 2, rows, depth), (1, 1, keys, depth))]
    exact = level1.run(parse_module(text, "t.mlir"), "f", operands)
    module = emmy.compile(text, target, schedule={**fields, "reuse": 1})
    program = module.ir("tile")
    assert program.count("tile.load %k[") == 1
    lowered = level2.run_module(parse_module(program, "t.mlir"), "f", operands)
    got, _ = run_on_emulator(module.portable_artefact, "f", operands, landing="random", order="random", seed=1)
    for results in (lowered, got):
        for one, other in zip(exact, results, strict=True):
            np.testing.assert_allclose(other.astype(np.float64), one, atol=2e-3)
