"""Exponentials of chained products: of e, two at a time in f16, by a polynomial; each within the bound that its page states."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
from chained_support import Chain
from hypothesis import given, settings
from hypothesis import strategies as st

import emmy
from emmy.artefact import run_on_emulator
from emmy.passes.approximate_exponentials import COEFFICIENTS

chains = st.builds(
    Chain,
    rows=st.sampled_from((32, 40)),
    columns=st.sampled_from((64, 100, 160)),
    width=st.sampled_from((16, 48)),
    block=st.sampled_from(((32, 16), (32, 32))),
    causal=st.booleans(),
    window=st.sampled_from((0, 20)),
)

ALIKE = {"exponentials": "exp2", "polynomial": 0}
TEXT = """func.func @attend(%q: tensor<1x1x48x32xf16>, %k: tensor<1x1x48x32xf16>, %v: tensor<1x1x48x32xf16>)
    -> (tensor<1x1x48x32xf32>, tensor<1x1x48xf32>) {
  %o, %l = tensor_op.attention %q, %k, %v scale 0.2 causal
     : (tensor<1x1x48x32xf16>, tensor<1x1x48x32xf16>, tensor<1x1x48x32xf16>) -> (tensor<1x1x48x32xf32>, tensor<1x1x48xf32>)
  func.return %o, %l : tensor<1x1x48x32xf32>, tensor<1x1x48xf32>
}
"""


def run(chain: Chain, seed: int, spread: float, **fields: object) -> list[np.ndarray]:
    module = emmy.compile(chain.with_schedule(**(ALIKE | fields)).text(), target="sm_90a")
    assert ("ex2.approx.f16x2" in module.ptx) == (fields.get("exponentials") == "halves")
    return [
        x.astype(np.float64) for x in run_on_emulator(module.portable_artefact, "f", chain.arguments(seed, spread))[0]
    ]


@settings(max_examples=8, deadline=None)
@given(chains, st.integers(0, 99), st.sampled_from((1.0, 3.0)), st.integers(2, 9), st.sampled_from((0, 8)))
def test_a_polynomial_stays_within_its_error(chain: Chain, seed: int, spread: float, every: int, lazy: int):
    """Of weights that are each off by at most e, a weighted mean of values is off by at most 2 e of the largest."""
    plain = run(chain, seed, spread, lazy=lazy)
    for before, after in zip(plain, run(chain, seed, spread, polynomial=every, lazy=lazy), strict=True):
        largest = np.abs(chain.arguments(seed, spread)[2].astype(np.float64)).max()
        # Weights are rounded to f16 behind it: a rounding may fall to the other side.
        assert np.abs(after - before).max() <= (2 * 1.1e-4 + 2 * 2.0**-11) * largest


@settings(max_examples=8, deadline=None)
@given(chains, st.integers(0, 99), st.sampled_from((1.0, 3.0)), st.sampled_from((0, 8)))
def test_f16_exponentials_stay_within_their_error(chain: Chain, seed: int, spread: float, lazy: int):
    plain = run(chain, seed, spread, lazy=lazy)
    # A weight w = 2^-x has the relative error 2^-10 + x 2^-11 ln 2: w x is at most 1 / (e ln 2) of the largest weight.
    bound = 2.0**-10 + 2.0**-11 * max(1 / np.e, 8 * log(2) if lazy else 0)
    for before, after in zip(plain, run(chain, seed, spread, exponentials="halves", lazy=lazy), strict=True):
        largest = np.abs(chain.arguments(seed, spread)[2].astype(np.float64)).max()
        assert np.abs(after - before).max() <= 4 * bound * largest


def test_the_polynomial():
    """2^f to 1.1e-4, and exactly 1 at 0: what is far below is exactly 0."""
    f = np.linspace(-0.5, 0.5, 4001, dtype=np.float32)
    power = np.polyval(np.array(COEFFICIENTS, np.float32), f)
    assert np.abs(power / np.exp2(f.astype(np.float64)) - 1).max() < 1.1e-4
    assert COEFFICIENTS[-1] == 1.0


@pytest.mark.parametrize("fields", [{"exponentials": "exp"}, {"exponentials": "halves"}, {"polynomial": 3}])
def test_results_and_logarithms(fields: dict[str, object]):
    """Powers of e have their maxima in other units: the logarithm of a row's sum is the same."""
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((1, 1, 48, 32)).astype(np.float16) for _ in range(3))
    module = emmy.compile(
        TEXT, target="sm_90a", schedule={"atom": "m16n8k16", "block": (16, 16, 32), "warps": (1, 1), **fields}
    )
    value, logarithm = run_on_emulator(module.portable_artefact, "attend", [q, k, v])[0]
    scores = 0.2 * q[0, 0].astype(np.float64) @ k[0, 0].astype(np.float64).T
    scores[np.triu_indices(48, 1)] = -np.inf
    weights = np.exp(scores)
    np.testing.assert_allclose(value[0, 0], weights @ v[0, 0] / weights.sum(1, keepdims=True), atol=4e-3)
    np.testing.assert_allclose(logarithm[0, 0], np.log(weights.sum(1)), atol=2e-3)
