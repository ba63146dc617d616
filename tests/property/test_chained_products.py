"""Chained products: the softmax of one product is operand a of the next. Every level gives what the text of level 2 says.

Level 2 sums a product at once, lower levels k-step by k-step, so those agree to rounding; forms of level 3 that keep the
order of sums agree bit for bit.
"""

from __future__ import annotations

import numpy as np
import pytest
from chained_support import Chain
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp

from emmy.interpreters import level2, level3
from emmy.ir import make_context, parse_module, print_module, verify_module
from emmy.lowering.tile_to_level3 import LowerTile
from emmy.passes.verify_pipelines import VerifyPipelines

SIZES = st.sampled_from((1, 7, 16, 31, 32, 40, 64, 65, 100))

Run = st.fixed_dictionaries(
    {
        "landing": st.sampled_from(level3.LANDINGS),
        "order": st.sampled_from(level3.ORDERS),
        "seed": st.integers(0, 1000),
    }
)


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    warps, groups = draw(st.sampled_from((1, 2))), draw(st.sampled_from((1, 2)))
    return Chain(
        batch=draw(st.sampled_from((1, 1, 2))),
        heads=groups * draw(st.sampled_from((1, 2))),
        groups=groups,
        rows=draw(SIZES),
        columns=draw(st.one_of(st.just(0), SIZES)),
        depth=draw(st.sampled_from((16, 24, 32, 48))),
        width=draw(st.sampled_from((16, 24, 32, 64))),
        block=(16 * warps * draw(st.sampled_from((1, 2))), draw(st.sampled_from((16, 32, 48)))),
        warps=warps,
        causal=draw(st.booleans()),
        window=draw(st.sampled_from((0, 0, 1, 5, 16, 40))),
        bias=draw(st.booleans()),
        statistic=draw(st.booleans()),
        ranged=draw(st.booleans()),
        schedule={
            "stages": draw(st.integers(1, 3)),
            "sites": draw(st.sampled_from(("eager", "first"))),
            "epilogue": draw(st.sampled_from(("shared", "direct"))),
        },
    )


def read(text: str) -> ModuleOp:
    module = parse_module(text, "chain.mlir")
    verify_module(module)
    return module


def apply(module: ModuleOp, *passes) -> ModuleOp:
    """A copy of the module after some passes, read back from its text."""
    context, module = make_context(), module.clone()
    for one in passes:
        one.apply(context, module)
        verify_module(module)
    text = print_module(module)
    again = parse_module(text, "again.mlir")
    assert print_module(again) == text
    return again


def check_close(got: list[np.ndarray], expected: list[np.ndarray]) -> None:
    """The same to rounding: f16 results of values near 1, f32 results."""
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(np.isfinite(one), np.isfinite(other))
        seen = np.isfinite(other)
        np.testing.assert_allclose(one[seen].astype(np.float64), other[seen], rtol=2e-3, atol=2e-3)


def check_equal(got: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@settings(max_examples=60, deadline=None)
@given(chains(), Run)
def test_level_2_and_the_halves_of_level_3(chain: Chain, how: dict):
    before, arguments = read(chain.text()), chain.arguments(how["seed"])
    expected = chain.reference(*arguments)
    check_close(level2.run_module(before, "f", arguments), expected)
    halves = apply(before, LowerTile(), VerifyPipelines())
    check_close(level3.run_module(halves, "f", arguments, **how), expected)


def test_rings_follow_last_uses():
    """q is released behind the loop, k behind the first product, v behind the second one; nothing else is shared."""
    halves = apply(read(Chain(bias=True).with_schedule(stages=2).text()), LowerTile())
    rings = {op.sym_name.data: op.stages.value.data for op in halves.walk() if op.name == "async_copy.pipeline"}
    assert rings == {"q": 1, "k": 2, "bias": 2, "v": 2, "out": 1}
    text = print_module(halves)
    order = [text.index(mark) for mark in ("wait @q", "wait @k", "release @k", "wait @bias", "wait @v", "release @v")]
    assert order == sorted(order)
    assert text.index("release @q") > text.index("release @v")


@pytest.mark.parametrize("columns", [0, 1, 33])
def test_rows_that_see_nothing_give_zeros(columns: int):
    chain = Chain(rows=64, columns=columns, causal=True, statistic=True, block=(32, 16))
    arguments = chain.arguments(0)
    out, statistic = level3.run_module(apply(read(chain.text()), LowerTile()), "f", arguments)
    blind = ~chain.mask().any(axis=1)
    assert blind.any()
    assert (out[..., blind, :] == 0).all()
    assert (statistic[..., blind] == -np.inf).all()
