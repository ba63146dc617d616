"""skip-unit-factors: the same bits with and without the branch; lazy maxima stay within the errors of exact ones."""

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
from emmy.passes.skip_unit_factors import SkipUnitFactors
from emmy.passes.verify_pipelines import VerifyPipelines

chains = st.builds(
    Chain,
    rows=st.sampled_from((32, 40)),
    columns=st.sampled_from((64, 100, 160)),
    width=st.sampled_from((16, 48)),
    block=st.sampled_from(((32, 16), (32, 32))),
    causal=st.booleans(),
    window=st.sampled_from((0, 20)),
)


@settings(max_examples=20, deadline=None)
@given(chains, st.sampled_from(("unified", "specialized")), st.integers(0, 99), st.sampled_from((1.0, 4.0)))
def test_the_branch_changes_no_bit(chain: Chain, mode: str, seed: int, spread: float):
    context, arguments = make_context(), chain.arguments(seed, spread)
    results = []
    for passes in ([], [SkipUnitFactors(force=True)]):
        module = parse_module(chain.text(), "chain.mlir")
        for one in (LowerTile(), *passes, VerifyPipelines(), PlaceRoles(mode)):
            one.apply(context, module)
            verify_module(module)
        assert sum(op.name == "mma.any" for op in module.walk()) == len(passes)
        results.append(level3.run_module(module, "f", arguments, "random", seed=seed))
    for before, after in zip(*results, strict=True):
        np.testing.assert_array_equal(before, after)


@settings(max_examples=5, deadline=None)
@given(chains, st.integers(0, 99), st.sampled_from((1.0, 4.0)))
def test_the_branch_changes_no_bit_of_the_ptx(chain: Chain, seed: int, spread: float):
    arguments, results = chain.arguments(seed, spread), []
    for lazy in (0, 8):
        module = emmy.compile(chain.with_schedule(lazy=lazy, stages=2).text(), target="sm_90a")
        assert lazy or "vote.sync.any" not in module.ptx
        results.append(run_on_emulator(module.portable_artefact, "f", arguments)[0])
    for before, after in zip(*results, strict=True):
        np.testing.assert_array_equal(before, after)
