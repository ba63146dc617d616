"""stagger-products changes the order of work and of one sum: what the staggered kernel gives is right at every later level."""

from __future__ import annotations

import numpy as np
from chained_support import Chain
from hypothesis import given, settings
from hypothesis import strategies as st

import emmy
from emmy.artefact import run_on_emulator
from emmy.interpreters import level3
from emmy.ir import make_context, parse_module, verify_module
from emmy.lowering.tile_to_level3 import LowerTile
from emmy.passes.place_roles import PlaceRoles
from emmy.passes.stagger_products import StaggerProducts
from emmy.passes.verify_pipelines import VerifyPipelines


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    return Chain(
        rows=draw(st.sampled_from((32, 40, 64))),
        columns=draw(st.sampled_from((32, 64, 100))),
        depth=32,
        width=draw(st.sampled_from((16, 48))),
        block=(32, draw(st.sampled_from((32, 48)))),
        causal=draw(st.booleans()),
        window=draw(st.sampled_from((0, 20))),
        bias=draw(st.booleans()),
        statistic=draw(st.booleans()),
    )


def close(got: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(np.isfinite(one), np.isfinite(other))
        seen = np.isfinite(other)
        np.testing.assert_allclose(one[seen].astype(np.float64), other[seen], rtol=2e-3, atol=2e-3)


@settings(max_examples=20, deadline=None)
@given(chains(), st.sampled_from(("unified", "specialized")), st.sampled_from(level3.LANDINGS), st.integers(0, 99))
def test_level_3_computes_the_same(chain: Chain, mode: str, landing: str, seed: int):
    module, context, arguments = parse_module(chain.text(), "chain.mlir"), make_context(), chain.arguments(seed)
    for one in (LowerTile(), StaggerProducts(force=True), VerifyPipelines(), PlaceRoles(mode)):
        one.apply(context, module)
        verify_module(module)
    names = [op.name for op in module.walk()]
    steps = chain.block[1] // 16
    assert names.count("mma.convert") == steps + 1 + chain.bias  # k-steps, the result, the bias
    close(level3.run_module(module, "f", arguments, landing, seed=seed), chain.reference(*arguments))


@settings(max_examples=5, deadline=None)
@given(chains(), st.sampled_from(("cp_async", "tma")), st.integers(0, 99))
def test_ptx_computes_the_same(chain: Chain, transport: str, seed: int):
    if transport == "tma" and chain.bias:
        transport = "cp_async"
    text = chain.with_schedule(stagger=1, stages=2, transport=transport).text()
    module, arguments = emmy.compile(text, target="sm_90a"), chain.arguments(seed)
    results, reports = run_on_emulator(module.portable_artefact, "f", arguments)
    close(results, chain.reference(*arguments))
    assert reports[0].total_bank_conflicts == 0
