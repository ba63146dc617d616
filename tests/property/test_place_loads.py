"""`place-loads` changes no bit of two chained products, in any order of the text that the schedule makes."""

from __future__ import annotations

import numpy as np
from chained_support import Chain
from hypothesis import event, given, settings
from hypothesis import strategies as st

import emmy
from emmy.artefact import run_on_emulator
from emmy.dialects import ptx
from emmy.interpreters import level3
from emmy.ir import make_context, parse_module, print_module, verify_module
from emmy.passes.place_loads import LOAD, MMA, PlaceLoads

chains = st.builds(
    Chain,
    rows=st.sampled_from((32, 40)),
    columns=st.sampled_from((64, 100, 160)),
    depth=st.sampled_from((32, 48)),
    width=st.sampled_from((16, 48)),
    block=st.sampled_from(((32, 16), (32, 32))),
    causal=st.booleans(),
    window=st.sampled_from((0, 20)),
)


@settings(max_examples=20, deadline=None)
@given(
    chain=chains,
    ahead=st.integers(1, 12),
    stagger=st.integers(0, 1),
    roles=st.sampled_from(("unified", "specialized")),
    transport=st.sampled_from(("tma", "cp_async")),
    stages=st.integers(1, 3),
    landing=st.sampled_from(level3.LANDINGS),
    order=st.sampled_from(level3.ORDERS),
    seed=st.integers(0, 99),
)
def test_no_bit_changes(
    chain: Chain, ahead: int, stagger: int, roles: str, transport: str, stages: int, landing: str, order: str, seed: int
) -> None:
    fields = {"stagger": stagger, "roles": roles, "transport": transport, "stages": stages, "fragments": 1}
    results = []
    for value in (0, ahead):
        # Columns come first in both: the order of sums is the same, only the loads differ.
        module = emmy.compile(chain.with_schedule(ahead=value, **fields).text(), target="sm_90a")
        results.append(
            run_on_emulator(
                module.portable_artefact, "f", chain.arguments(seed), landing=landing, order=order, seed=seed
            )[0]
        )
    for before, after in zip(*results, strict=True):
        np.testing.assert_array_equal(before, after)


@settings(max_examples=10, deadline=None)
@given(chains, st.integers(1, 12), st.integers(0, 1))
def test_loads_stand_ahead(chain: Chain, ahead: int, stagger: int) -> None:
    """Of a run's loads only those of its first products, or behind a release, stand closer; none is added, lost or changed."""
    module = emmy.compile(chain.with_schedule(stagger=stagger, fragments=1).text(), target="sm_90a")
    before = parse_module(module.ir("lower-to-ptx"), "before.mlir")
    after = before.clone()
    PlaceLoads(ahead).apply(make_context(), after)
    verify_module(after)
    event(f"moved: {print_module(after) != print_module(before)}")
    assert sorted(op.name for op in after.walk()) == sorted(op.name for op in before.walk())
    for kernel in [op for op in after.walk() if isinstance(op, ptx.KernelOp)]:
        for block in [b for op in kernel.walk() for region in op.regions for b in region.blocks]:
            products = [op for op in block.ops if op.name.startswith(MMA)]
            place = {op: number for number, op in enumerate(products)}
            passed = 0
            for op in block.ops:
                passed += op in place
                users = [place[use.operation] for r in op.results for use in r.uses if use.operation in place]
                if op.name.startswith(LOAD) and users:
                    assert min(users) - passed <= ahead or passed == 0 or op.prev_op not in place
