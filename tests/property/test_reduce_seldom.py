"""reduce-seldom: the same bits with and without the branch, whatever maxima do, and however they meet masks."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import emmy
from emmy.artefact import run_on_emulator
from emmy.interpreters import level3
from emmy.ir import make_context, parse_module, verify_module
from emmy.lowering.tile_to_level3 import LowerTile
from emmy.passes.place_roles import PlaceRoles
from emmy.passes.reduce_seldom import ReduceSeldom
from emmy.passes.skip_unit_factors import SkipUnitFactors
from emmy.passes.verify_pipelines import VerifyPipelines

ATTENTION = """func.func @attend(%q: {q}, %k: {k}, %v: {k}) -> {q} {{
  %o = tensor_op.attention %q, %k, %v scale {scale}{flags} : ({q}, {k}, {k}) -> {q}
  func.return %o : {q}
}}
"""


@st.composite
def problems(draw: st.DrawFn) -> tuple[str, list[np.ndarray]]:
    rows, keys, depth = (
        draw(st.sampled_from((32, 40))),
        draw(st.sampled_from((48, 64, 100))),
        draw(st.sampled_from((16, 32))),
    )
    flags = draw(st.sampled_from(("", " causal", " causal window 20")))
    q, k = (f"tensor<1x1x{size}x{depth}xf16>" for size in (rows, keys))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    arguments = [rng.standard_normal((1, 1, size, depth)).astype(np.float16) for size in (rows, keys, keys)]
    # Keys that get larger pass the running maximum again and again.
    arguments[1] *= np.linspace(0.5, draw(st.sampled_from((1.0, 30.0))), keys).astype(np.float16)[:, None]
    if draw(st.booleans()):
        arguments[0][0, 0, 3, 0] = np.nan
    return ATTENTION.format(q=q, k=k, scale=draw(st.sampled_from((0.2, 1.0))), flags=flags), arguments


@settings(max_examples=15, deadline=None)
@given(problems(), st.sampled_from(("unified", "specialized")), st.integers(1, 9), st.integers(0, 99))
def test_no_bit_of_level_3_changes(problem: tuple[str, list[np.ndarray]], mode: str, lazy: int, seed: int):
    text, arguments = problem
    schedule = {"atom": "m16n8k16", "block": (32, 16, 32 if "x32xf16" in text else 16), "warps": (1, 1), "lazy": lazy}
    level2 = emmy.compile(text, target="sm_90a", schedule=schedule | {"roles": mode}).ir("lower-tensor-op")
    results = []
    for passes in ([], [SkipUnitFactors()], [ReduceSeldom(force=True), SkipUnitFactors()]):
        module = parse_module(level2, "chain.mlir")
        for one in (LowerTile(), *passes, VerifyPipelines(), PlaceRoles(mode)):
            one.apply(make_context(), module)
            verify_module(module)
        # With both, one vote serves the maximum and the factors.
        assert sum(op.name == "mma.any" for op in module.walk()) == min(len(passes), 1)
        results.append(level3.run_module(module, "attend", arguments, "random", seed=seed))
    for other in results[1:]:
        for before, after in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(before, after)


@settings(max_examples=5, deadline=None)
@given(problems(), st.integers(1, 9))
def test_no_bit_of_the_ptx_changes(problem: tuple[str, list[np.ndarray]], lazy: int):
    text, arguments = problem
    schedule = {"atom": "m16n8k16", "block": (32, 16, 32 if "x32xf16" in text else 16), "warps": (1, 1), "lazy": lazy}
    found: list[np.ndarray] = []
    for seldom in (0, 1):
        module = emmy.compile(text, target="sm_90a", schedule=schedule | {"seldom": seldom})
        found.append(run_on_emulator(module.portable_artefact, "attend", arguments)[0][0])
    np.testing.assert_array_equal(found[0], found[1])
