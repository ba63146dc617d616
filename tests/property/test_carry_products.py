"""carry-products: products that stay in flight over the end of an iteration change no bit, and read no slot that is free."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from test_alternate_tiles import RUNS, SCHEDULE, arguments, text

import emmy
from emmy.artefact import run_on_emulator
from emmy.errors import EmmyError
from emmy.interpreters import level3
from emmy.ir import parse_module
from emmy.schedules import Schedule

LEVELS = ("carry-products", "place-roles", "lower-transport", "unroll-loops")


@settings(max_examples=4, phases=(Phase.explicit, Phase.generate), deadline=None)
@given(
    m=st.integers(1, 200),
    n=st.integers(1, 8).map(lambda n: 8 * n),
    k=st.integers(0, 12).map(lambda k: 8 * k),
    transpose_b=st.booleans(),
    bias=st.booleans(),
    groups=st.integers(1, 2),
    consumers=st.sampled_from(("cooperative", "pingpong")),
    persistent=st.integers(0, 1),
    stages=st.integers(2, 4),
    unroll=st.integers(1, 2),
    landing=st.sampled_from(level3.LANDINGS),
    order=st.sampled_from(level3.ORDERS),
    seed=st.integers(0, 1000),
)
def test_no_bit_changes(
    m: int, n: int, k: int, transpose_b: bool, bias: bool, groups: int, consumers: str, persistent: int, stages: int,
    unroll: int, landing: str, order: str, seed: int,
) -> None:  # fmt: skip
    schedule = {
        **SCHEDULE,
        "block": [64 * groups, 32, 32],
        "warps": [4 * groups, 1],
        "consumers": consumers,
        "persistent": persistent or int(consumers == "pingpong"),
        "stages": stages,
        "unroll": unroll,
        "carry": 1,
    }
    module = emmy.compile(text(m, n, k, transpose_b, "f16", bias), "sm_90a", schedule=schedule, variants="dense")
    assert ("wgmma.wait_group.sync.aligned 1;" in module.ptx) == (k > 0)
    arrays, wanted = arguments(m, n, k, transpose_b, "f16", bias, seed)
    for level in LEVELS:
        form = parse_module(module.ir(level), f"{level}.mlir")
        (got,) = level3.run_module(form, "mm", arrays, landing, order, seed)
        np.testing.assert_array_equal(got, wanted)
    (got,), _ = run_on_emulator(module.portable_artefact, "mm", arrays, landing=landing, order=order, seed=seed)
    np.testing.assert_array_equal(got, wanted)


ONE = {**SCHEDULE, "consumers": "cooperative", "stages": 3, "carry": 1}


def test_a_slot_that_is_released_too_early_is_seen():
    """The slot that this iteration reads instead of the one before: its products are still in flight."""
    whole = emmy.compile(text(64, 32, 160), "sm_90a", schedule=ONE).ir("carry-products")
    broken, count = re.subn(
        r"release @ab, %ab_before(.*\n.*yield [^:]*), %ab_slot_2 :", r"release @ab, %ab_slot_2\1, %ab_before :", whole
    )
    assert count == 1
    arrays, _ = arguments(64, 32, 160, True, "f16", False, 1)
    for landing, order in RUNS:
        with pytest.raises(EmmyError, match="loads from ticket"):
            level3.run_module(parse_module(broken, "broken.mlir"), "mm", arrays, landing, order)


def test_sums_in_flight_are_not_used():
    whole = emmy.compile(text(64, 32, 160), "sm_90a", schedule=ONE).ir("carry-products")
    broken, count = re.subn(r"%acc = mma.wait 0 (%\d+) : (.*)\n", r"%acc = mma.wait_older \1 : \2\n", whole)
    assert count == 1
    with pytest.raises(EmmyError, match=r"the result of mma\.wait_older is in flight"):
        emmy.compile(broken, "sm_90a")


@pytest.mark.parametrize("changes", [{"stages": 1}, {"roles": "unified"}, {"atom": "m16n8k16", "warps": (2, 1)}])
def test_what_carries_nothing(changes: dict[str, object]):
    fields = {"atom": "wgmma", "block": (64, 64, 64), "warps": (4, 1), "roles": "specialized", "carry": 1, **changes}
    assert "carry is for products of warpgroups" in (Schedule(**fields).problem() or "")
