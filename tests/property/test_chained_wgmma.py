"""Chained products on `wgmma`: what warpgroups compute, in any order of ops, is right on the emulator, which knows when an
instruction reads its operands, when sums may be touched, and which warps must issue together.
"""

from __future__ import annotations

import numpy as np
import pytest
from chained_support import Chain
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import emmy
from emmy.artefact import run_on_emulator
from emmy.errors import EmmyError
from emmy.interpreters import level3
from emmy.ir import make_context, parse_module, print_module, verify_module
from emmy.passes.issue_products import IssueProducts
from emmy.passes.overlap_products import OverlapProducts
from emmy.passes.verify_pipelines import VerifyPipelines

HEADS = st.sampled_from(((64, 64), (64, 64), (128, 128), (256, 256), (24, 40), (72, 64), (64, 136)))
"""Depth and width; the odd ones are padded to whole k-steps."""

HEADS_BESIDE = st.sampled_from(((64, 128), (40, 256), (256, 128)))
"""The same where two warpgroups share the columns of the width."""

Run = st.fixed_dictionaries(
    {
        "landing": st.sampled_from(level3.LANDINGS),
        "order": st.sampled_from(level3.ORDERS),
        "seed": st.integers(0, 1000),
    }
)


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    across = draw(st.sampled_from((1, 1, 2)))
    depth, width = draw(HEADS_BESIDE if across == 2 else HEADS)
    large = max(depth, width) > 64
    warpgroups, groups = draw(st.sampled_from((1,) if large else (1, 2, 3))), draw(st.sampled_from((1, 2)))
    specialized = draw(st.booleans())
    return Chain(
        heads=groups * (1 if large else draw(st.sampled_from((1, 2)))),
        groups=groups,
        rows=draw(st.integers(1, 64 * warpgroups)),
        columns=draw(st.one_of(st.just(0), st.integers(1, 200))),
        depth=depth,
        width=width,
        block=(64 * warpgroups, draw(st.sampled_from((16, 48, 64, 80)))),
        warps=4 * warpgroups,
        across=across,
        causal=draw(st.booleans()),
        window=draw(st.sampled_from((0, 0, 1, 16, 40, 100))),
        bias=draw(st.booleans()) and not large,
        statistic=draw(st.booleans()),
        ranged=draw(st.booleans()),
        schedule={
            "atom": "wgmma",
            "transport": "tma",
            "stages": draw(st.integers(1, 2)),
            "late_stages": draw(st.integers(0, 2)),
            "repeat": int(across > 1),
            "epilogue": draw(st.sampled_from(("shared", "direct"))),
            "roles": "specialized" if specialized else "unified",
            "overlap": draw(st.integers(0, 1)) if specialized else 0,
            "lazy": draw(st.sampled_from((0, 8))),
            "masks": draw(st.sampled_from(("loops", "guard"))),
            "persistent": draw(st.sampled_from((0, 0, 1))),
        },
    )


def whole_rows(chain: Chain) -> Chain:
    """With a bias whose rows TMA can move."""
    return Chain(**{**vars(chain), "columns": -(-chain.columns // 8) * 8}) if chain.bias else chain


def check_close(got: list[np.ndarray], expected: list[np.ndarray]) -> None:
    """The same to rounding: f16 results of values near 1, f32 results."""
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(np.isfinite(one), np.isfinite(other))
        seen = np.isfinite(other)
        np.testing.assert_allclose(one[seen].astype(np.float64), other[seen], rtol=2e-3, atol=2e-3)


@settings(max_examples=12, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(chains().map(whole_rows), Run)
def test_level_3_before_and_after_and_instructions(chain: Chain, how: dict):
    """The passes that put products under other work change no bit at level 3; the instructions are right."""
    arguments = chain.arguments(how["seed"])
    module = emmy.compile(chain.text(), "sm_90a")
    before = parse_module(module.ir("stagger-products"), "before.mlir")
    expected = level3.run_module(before, "f", arguments)
    check_close(expected, chain.reference(*arguments))
    for passes in ((IssueProducts(),), (OverlapProducts(force=True), IssueProducts())):
        if len(passes) == 2 and chain.schedule["roles"] == "unified":
            continue
        after = before.clone()
        for one in (*passes, VerifyPipelines()):
            one.apply(make_context(), after)
        verify_module(after)
        after = parse_module(print_module(after), "after.mlir")
        for one, other in zip(level3.run_module(after, "f", arguments, **how), expected, strict=True):
            np.testing.assert_array_equal(one, other)
    results, _ = run_on_emulator(module.portable_artefact, "f", arguments, **how)
    check_close(results, chain.reference(*arguments))


def test_a_late_product_is_in_flight_under_the_next_iteration():
    """Scores are waited for while the product before is pending; each loop of iterations has one without it in front."""
    chain = Chain(rows=64, columns=160, depth=64, width=64, block=(64, 64), warps=4)
    fields = {"atom": "wgmma", "transport": "tma", "roles": "specialized", "stages": 2}
    plain, late = (emmy.compile(chain.with_schedule(**fields, overlap=n).text(), "sm_90a") for n in (0, 1))
    count = [[text.count(f"wgmma.wait_group.sync.aligned {n}") for n in (0, 1)] for text in (plain.ptx, late.ptx)]
    # Two loops, free of masks and masked: one wait for each product; then scores alone, both products, the last one alone.
    assert count == [[4, 0], [2 + 2 + 1, 2]]
    # What is read in place is released without a fence: there is one, before the result is stored.
    assert [module.ptx.count("fence.proxy.async.shared::cta") for module in (plain, late)] == [1, 1]


def test_the_rows_of_the_next_tile_come_under_the_last_late_product():
    """What the loop has read in place is released behind it, not behind products of another slot that are waited for later."""
    chain = Chain(heads=3, rows=64, columns=96, depth=64, width=64, block=(64, 32), warps=4)
    fields = {"atom": "wgmma", "transport": "tma", "roles": "specialized", "stages": 2, "overlap": 1, "persistent": 1}
    module = emmy.compile(chain.with_schedule(**fields).text(), "sm_90a")
    text = module.ir("place-roles")
    assert text.index("async_copy.release @q") < text.rindex("mma.issue")
    arguments = chain.arguments(0)
    for landing in level3.LANDINGS:
        results, _ = run_on_emulator(module.portable_artefact, "f", arguments, landing=landing, order="random", seed=1)
        check_close(results, chain.reference(*arguments))


@pytest.mark.parametrize("warps", [4, 8, 12])
def test_warpgroups_leave_out_together_what_no_row_sees(warps: int):
    """16 rows and 16 columns a block: single warps of a warpgroup would see different numbers of blocks."""
    chain = Chain(
        rows=16 * warps, columns=16 * warps, depth=16, width=16, block=(16 * warps, 16), warps=warps, causal=True
    )
    for masks in ("loops", "guard"):
        fields = {"atom": "wgmma", "transport": "tma", "roles": "specialized", "stages": 2, "masks": masks}
        module = emmy.compile(chain.with_schedule(**fields).text(), "sm_90a")
        arguments = chain.arguments(warps)
        results, _ = run_on_emulator(module.portable_artefact, "f", arguments, landing="late")
        check_close(results, chain.reference(*arguments))


def test_sums_that_begin_as_one_register_are_apart_before_the_fence():
    """One block of keys: the old sums are one number in each row, and a move behind the fence would be a write in flight."""
    type_ = "tensor<1x1x1x64xf16>"
    text = (
        f"func.func @f(%q: {type_}, %k: {type_}, %v: {type_}) -> {type_} {{\n"
        f"  %o = tensor_op.attention %q, %k, %v scale 1 : ({type_}, {type_}, {type_}) -> {type_}\n"
        f"  func.return %o : {type_}\n}}\n"
    )
    fields = {"atom": "wgmma", "roles": "specialized", "block": (64, 32, 64), "warps": (4, 1), "lazy": 0}
    module = emmy.compile(text, "sm_90a", schedule={**fields, "splits": 0, "transport": "tma"})
    q, k, v = (np.full((1, 1, 1, 64), value, np.float16) for value in (1, 2, 3))
    results, _ = run_on_emulator(module.portable_artefact, "f", [q, k, v])
    np.testing.assert_array_equal(results[0], v)


def test_overlap_wants_roles():
    with pytest.raises(EmmyError, match="overlap belongs to roles = specialized"):
        emmy.compile(Chain().with_schedule(overlap=1).text(), "sm_90a")
