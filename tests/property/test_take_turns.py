"""take-turns: no bit changes, no half waits for ever, whatever the masks leave to each warp."""

from __future__ import annotations

import numpy as np
import pytest
from chained_support import Chain
from hypothesis import given, settings
from hypothesis import strategies as st

import emmy
from emmy.artefact import run_on_emulator
from emmy.errors import EmmyError
from emmy.interpreters import level3
from emmy.ir import make_context, parse_module, verify_module
from emmy.lowering.tile_to_level3 import LowerTile
from emmy.passes.place_roles import PlaceRoles
from emmy.passes.split_masks import SplitMasks
from emmy.passes.take_turns import TakeTurns
from emmy.passes.verify_pipelines import VerifyPipelines

chains = st.builds(
    Chain,
    rows=st.sampled_from((64, 72, 128)),
    columns=st.sampled_from((16, 64, 100, 160)),
    width=st.sampled_from((16, 48)),
    block=st.sampled_from(((64, 16), (64, 32))),
    warps=st.sampled_from((2, 4)),
    causal=st.booleans(),
    window=st.sampled_from((0, 20)),
    ranged=st.booleans(),
)


@settings(max_examples=25, deadline=None)
@given(chains, st.sampled_from(("loops", "guard")), st.sampled_from(level3.ORDERS), st.integers(0, 99))
def test_no_bit_of_level_3_changes(chain: Chain, masks: str, order: str, seed: int):
    context, arguments = make_context(), chain.arguments(seed)
    results = []
    for passes in ([], [TakeTurns(force=True)]):
        module = parse_module(chain.with_schedule(roles="specialized").text(), "chain.mlir")
        for one in (
            LowerTile(),
            SplitMasks(masks, "specialized"),
            *passes,
            VerifyPipelines(),
            PlaceRoles("specialized"),
        ):
            one.apply(context, module)
            verify_module(module)
        assert any(op.name == "async_copy.await_turn" for op in module.walk()) == bool(passes)
        results.append(level3.run_module(module, "f", arguments, "random", order, seed))
    for before, after in zip(*results, strict=True):
        np.testing.assert_array_equal(before, after)


@settings(max_examples=6, deadline=None)
@given(
    chains,
    st.sampled_from(("loops", "guard")),
    st.integers(2, 3),
    st.integers(0, 1),
    st.sampled_from(level3.ORDERS),
    st.integers(0, 99),
)
def test_no_bit_of_the_ptx_changes(chain: Chain, masks: str, stages: int, prefetch: int, order: str, seed: int):
    fields = {"roles": "specialized", "masks": masks, "stages": stages, "prefetch": prefetch, "lazy": 8}
    results = []
    for turns in (0, 1):
        module = emmy.compile(chain.with_schedule(turns=turns, **fields).text(), target="sm_90a")
        assert ("bar.arrive" in module.ptx) == bool(turns)
        results.append(run_on_emulator(module.portable_artefact, "f", chain.arguments(seed), order=order, seed=seed)[0])
    for before, after in zip(*results, strict=True):
        np.testing.assert_array_equal(before, after)


def test_one_slot_is_refused():
    """A half would wait for a slot that the other one, waiting for its turn, has not released: a deadlock of windows."""
    chain = Chain(rows=64, columns=64, width=16, block=(64, 16), warps=4, window=20)
    with pytest.raises(EmmyError, match="stages of at least 2"):
        emmy.compile(chain.with_schedule(turns=1, roles="specialized", stages=1).text(), target="sm_90a")


@pytest.mark.parametrize(
    ("fields", "clauses"),
    [
        ({"block": (64, 16, 128), "warps": (4, 2), "repeat": 1, "stages": 2}, "causal"),
        ({"block": (64, 48, 128), "warps": (4, 2), "repeat": 1, "stages": 3}, "causal window 40"),
        ({"block": (128, 32, 32), "warps": (8, 1), "stages": 2}, "causal"),
        ({"block": (128, 16, 32), "warps": (8, 1), "stages": 2, "persistent": 1}, "causal"),
    ],
)
def test_halves_that_multiply_by_one_tile(fields: dict, clauses: str):
    """Keys that are values: the slot of the late products is that of the early ones. Halves below or beside each other; a loop
    over tiles around them."""
    q, k = (f"tensor<1x1x{rows}x{fields['block'][2]}xf16>" for rows in (130, 70))
    text = (
        f"func.func @f(%q: {q}, %k: {k}) -> {q} {{\n"
        f"  %o = tensor_op.attention %q, %k, %k scale 0.1 {clauses} : ({q}, {k}, {k}) -> {q}\n  func.return %o : {q}\n}}\n"
    )
    rng = np.random.default_rng(1)
    arguments = [rng.standard_normal((1, 1, n, fields["block"][2])).astype(np.float16) for n in (130, 70)]
    base = {"atom": "wgmma", "roles": "specialized", "reuse": 1, "lazy": 8}
    results = []
    for turns in (0, 1):
        module = emmy.compile(text, "sm_90a", schedule={**base, **fields, "turns": turns})
        assert ("bar.arrive" in module.ptx) == bool(turns)
        run, _ = run_on_emulator(module.portable_artefact, "f", arguments, landing="random", order="random", seed=2)
        results.append(run[0])
    np.testing.assert_array_equal(*results)


def test_a_warpgroup_is_not_halved():
    """Half of its warps would wait for the turn, and the others for them to issue a product together: a deadlock."""
    chain = Chain(rows=64, columns=64, width=64, depth=64, block=(64, 16), warps=4)
    fields = {"atom": "wgmma", "transport": "tma", "roles": "specialized", "stages": 2, "turns": 1}
    with pytest.raises(EmmyError, match="multiple of 8"):
        emmy.compile(chain.with_schedule(**fields).text(), target="sm_90a")
