"""Chained products: the softmax of one product is operand a of the next. Every level gives what the text of level 2 says.

Level 2 sums a product at once, lower levels k-step by k-step, so those agree to rounding; forms of level 3 that keep the
order of sums agree bit for bit.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from unittest.mock import patch

import numpy as np
import pytest
from chained_support import Chain
from hypothesis import given, settings
from hypothesis import strategies as st
from levels_support import apply
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import ModuleOp

import emmy
from emmy.artefact import run_on_emulator
from emmy.dialects import mma
from emmy.dialects.tile import GridOp, KernelOp
from emmy.interpreters import level2, level3
from emmy.interpreters.scalars import evaluate_scalar
from emmy.ir import parse_module, print_module, verify_module
from emmy.lowering.tile_to_level3 import LowerTile
from emmy.passes.allocate_shared import AllocateShared
from emmy.passes.lower_raster import LowerRaster
from emmy.passes.lower_transport import LowerTransport
from emmy.passes.place_roles import PlaceRoles
from emmy.passes.split_masks import SplitMasks
from emmy.passes.verify_pipelines import VerifyPipelines
from emmy.schedule_limits import AUTO_TRANSPORT
from emmy.targets import TARGETS

MODES = ("unified", "specialized")
KINDS = ("tma", "cp_async", "plain")
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
    warps, groups, across = (
        draw(st.sampled_from((1, 2))),
        draw(st.sampled_from((1, 2))),
        draw(st.sampled_from((1, 1, 2))),
    )
    return Chain(
        batch=draw(st.sampled_from((1, 1, 2))),
        heads=groups * draw(st.sampled_from((1, 2))),
        groups=groups,
        rows=draw(SIZES),
        columns=draw(st.one_of(st.just(0), SIZES)),
        depth=draw(st.sampled_from((16, 24, 32, 48))),
        width=draw(st.sampled_from((16, 24, 32, 64))),
        block=(16 * warps * draw(st.sampled_from((1, 2))), draw(st.sampled_from((16, 32, 48))) * across),
        warps=warps,
        across=across,
        causal=draw(st.booleans()),
        window=draw(st.sampled_from((0, 0, 1, 5, 16, 40))),
        bias=draw(st.booleans()),
        statistic=draw(st.booleans()),
        ranged=draw(st.booleans()),
        schedule={
            "stages": draw(st.integers(1, 3)),
            "sites": draw(st.sampled_from(("eager", "first"))),
            "epilogue": draw(st.sampled_from(("shared", "direct"))),
            "repeat": draw(st.integers(0, 1)),
            "late_stages": draw(st.integers(0, 2)),
        },
    )


def read(text: str) -> ModuleOp:
    module = parse_module(text, "chain.mlir")
    verify_module(module)
    return module


def check_close(got: list[np.ndarray], expected: list[np.ndarray]) -> None:
    """The same to rounding: f16 results of values near 1, f32 results."""
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(np.isfinite(one), np.isfinite(other))
        seen = np.isfinite(other)
        np.testing.assert_allclose(one[seen].astype(np.float64), other[seen], rtol=2e-3, atol=2e-3)


def check_equal(got: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@settings(max_examples=25, deadline=None)
@given(chains(), Run)
def test_level_2_and_the_halves_of_level_3(chain: Chain, how: dict):
    before, arguments = read(chain.text()), chain.arguments(how["seed"])
    expected = chain.reference(*arguments)
    check_close(level2.run_module(before, "f", arguments), expected)
    halves = apply(before, LowerTile(), VerifyPipelines())
    check_close(level3.run_module(halves, "f", arguments, **how), expected)


@settings(max_examples=25, deadline=None)
@given(chains(), Run, st.sampled_from(MODES), st.sampled_from(("loops", "guard")), st.sampled_from(KINDS))
def test_split_placed_and_lowered_forms(chain: Chain, how: dict, mode: str, masks: str, kind: str):
    """Bit for bit what the halves give, with one loop for all iterations."""
    arguments = chain.arguments(how["seed"])
    halves = apply(read(chain.text()), LowerTile(), VerifyPipelines())
    expected = level3.run_module(halves, "f", arguments)
    halves = apply(halves, SplitMasks(masks, mode), VerifyPipelines())
    check_equal(level3.run_module(halves, "f", arguments, **how), expected)
    placed = apply(halves, PlaceRoles(mode), VerifyPipelines(), LowerRaster())
    check_equal(level3.run_module(placed, "f", arguments, **how), expected)
    with patch.dict(AUTO_TRANSPORT, {"sm_90a": kind}):
        lowered = apply(placed, LowerTransport(), AllocateShared())
    check_equal(level3.run_module(lowered, "f", arguments, **how), expected)


def test_rings_follow_last_uses():
    """q is released behind the loop, k behind the first product, v behind the second one; nothing else is shared."""
    halves = apply(read(Chain(bias=True).with_schedule(stages=2).text()), LowerTile())
    rings = {op.sym_name.data: op.stages.value.data for op in halves.walk() if op.name == "async_copy.pipeline"}
    assert rings == {"q": 1, "k": 2, "bias": 2, "v": 2, "out": 1}
    text = print_module(halves)
    order = [text.index(mark) for mark in ("wait @q", "wait @k", "release @k", "wait @bias", "wait @v", "release @v")]
    assert order == sorted(order)
    assert text.index("release @q") > text.index("release @v")


# ---- down to instructions --------------------------------------------------------------------------------------------

FIELDS = st.fixed_dictionaries(
    {
        "stages": st.integers(1, 3),
        "sites": st.sampled_from(("eager", "first")),
        "epilogue": st.sampled_from(("shared", "direct")),
        "fragments": st.sampled_from((1, 2)),
        "delay": st.integers(0, 3),
        "prefetch": st.integers(0, 1),
        "hold": st.integers(0, 1),
        "unroll": st.sampled_from((1, 1, 2)),
        "persistent": st.sampled_from((0, 0, 1)),
        "roles": st.sampled_from(MODES),
        "masks": st.sampled_from(("loops", "guard")),
        "producer_warps": st.sampled_from((1, 4)),
    }
)
POLICIES = st.sampled_from(("", "", " accumulate<hybrid, max_k = 16>", " accumulate<hybrid, max_k = 64>"))


@settings(max_examples=25, deadline=None)
@given(chains(), FIELDS, POLICIES, POLICIES, st.sampled_from(sorted(TARGETS)), Run)
def test_instructions(chain: Chain, fields: dict, policy: str, scores: str, target: str, how: dict):
    """Any schedule and policy, on the emulator, with copies that land late, early or at random."""
    chain = replace(chain, policy=policy, score_policy=scores).with_schedule(**fields)
    arguments = chain.arguments(how["seed"], spread=0.5)
    module = emmy.compile(chain.text(), target)
    results, _ = run_on_emulator(module.portable_artefact, "f", arguments, **how)
    check_close(results, chain.reference(*arguments))


@settings(max_examples=4, deadline=None)
@given(chains(), POLICIES, Run)
def test_transports_and_roles_give_the_same_bits(chain: Chain, policy: str, how: dict):
    """TMA, cp.async and plain copies, one role or two, one tile or several for a CTA: one result."""
    chain = replace(chain, policy=policy)
    arguments = chain.arguments(how["seed"])
    found = []
    for transport in ("cp_async", "auto", "plain"):
        for more in ({}, {"roles": "specialized"}, {"roles": "specialized", "persistent": 1, "masks": "guard"}):
            module = emmy.compile(chain.with_schedule(transport=transport, **more).text(), "sm_90a")
            found.append(run_on_emulator(module.portable_artefact, "f", arguments, **how)[0])
    for results in found[1:]:
        check_equal(results, found[0])


def test_a_held_operand_is_read_before_the_loop():
    """Each k-step once; without `hold` in every iteration."""
    for hold in (0, 1):
        halves = apply(read(Chain(depth=48).with_schedule(hold=hold).text()), LowerTile())
        consumer = next(op for op in halves.walk() if op.name == "async_copy.consumer")
        loop = next(op for op in consumer.body.block.ops if isinstance(op, scf.ForOp))
        of_q = [op for op in consumer.walk() if isinstance(op, mma.LoadOp) and op.field.data == "q"]
        assert len(of_q) == 3
        assert [op.parent_op() for op in of_q] == [consumer if hold else loop] * 3


@pytest.mark.parametrize(("roles", "masks"), [("unified", "loops"), ("specialized", "loops"), ("specialized", "guard")])
def test_text_of_any_stage_compiles_to_the_same(roles: str, masks: str):
    """No pass does its work twice."""
    chain = Chain(rows=100, columns=100, causal=True, window=60).with_schedule(roles=roles, masks=masks)
    module = emmy.compile(chain.text(), "sm_90a")
    for stage in ("order-tiles", "lower-tile", "split-masks", "double-buffer-fragments", "lower-transport"):
        assert emmy.compile(module.ir(stage), "sm_90a").ptx == module.ptx, stage


# ---- where a loop is split ------------------------------------------------------------------------------------------


@st.composite
def ranges(draw: st.DrawFn) -> Chain:
    """Masks of all kinds; rows and columns so that blocks are all free, none is, rows lie before the first column, .."""
    warps = draw(st.sampled_from((1, 2, 4)))
    return Chain(
        rows=draw(st.integers(1, 200)),
        columns=draw(st.integers(0, 300)),
        block=(16 * warps * draw(st.sampled_from((1, 2))), draw(st.sampled_from((16, 48, 64)))),
        warps=warps,
        causal=draw(st.booleans()),
        window=draw(st.one_of(st.just(0), st.integers(1, 320))),
        ranged=draw(st.booleans()),
    )


FORMS = (("loops", "unified"), ("loops", "specialized"), ("guard", "specialized"))
"""(mode, roles) of split-masks"""

CORNERS = (
    Chain(rows=32, columns=32, block=(32, 16), causal=True),  # no block is free
    Chain(rows=32, columns=64, block=(32, 16)),  # no mask at all
    Chain(rows=32, columns=300, block=(32, 16), causal=True, warps=1),  # most are free
    Chain(rows=200, columns=10, block=(32, 16), causal=True),  # rows before the first column
    Chain(rows=200, columns=10, block=(32, 16), causal=True, ranged=False),
    Chain(rows=64, columns=300, block=(32, 16), causal=True, window=1),
    Chain(rows=64, columns=300, block=(32, 16), causal=True, window=100),  # masked, free, masked
    Chain(rows=64, columns=300, block=(32, 16), causal=True, window=33, ranged=False),
    Chain(rows=64, columns=300, block=(32, 16), window=20),
    Chain(rows=64, columns=0, block=(32, 16), causal=True),
)


@settings(max_examples=60, deadline=None)
@given(ranges(), st.sampled_from(FORMS))
def test_iterations_in_which_masks_are_needed(chain: Chain, form: tuple[str, str]):
    check_ranges(chain, *form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chain", CORNERS)
def test_iterations_in_corners(chain: Chain, form: tuple[str, str]):
    check_ranges(chain, *form)


def check_ranges(chain: Chain, mode: str, roles: str) -> None:
    """Every warp of every CTA: its loops cover all iterations in order; masks are left out where they are true everywhere.

    That is for all warps in a loop of its own, or under a guard for this one. Where a mask is false everywhere, the warp skips
    the iteration: under a condition in masked bodies, or in a loop that only waits.
    """
    module = apply(read(chain.text()), LowerTile(), SplitMasks(mode, roles))
    kernel = next(op for op in module.walk() if isinstance(op, KernelOp))
    consumer = next(op for op in kernel.walk() if op.name == "async_copy.consumer")
    (m, n), rows = chain.block, chain.block[0] // chain.warps
    for start, warp in product(range(0, chain.rows, m), range(chain.warps)):
        values: dict = {}
        loops = loops_of([*kernel.block.ops, *consumer.body.block.ops], (0, 0, start), warp, values)
        steps = [(loop, j) for loop in loops for j in range(*(values[v] for v in (loop.lb, loop.ub, loop.step)))]
        low, high = whole_range(chain, start)
        assert [j for _, j in steps] == list(range(low, high, n))
        for loop, j in steps:
            values[loop.body.block.args[0]] = j
            for op in loop.body.block.ops:
                if isinstance(op, arith.CmpiOp | arith.AndIOp | arith.OrIOp):
                    values[op.results[0]] = evaluate_scalar(op, [values[v] for v in op.operands])
            branches = [op for op in loop.body.block.ops if isinstance(op, scf.IfOp)]
            taken = [values[op.cond] for op in branches]
            first = start + warp * rows
            all_seen, some_seen = seen(chain, first, first + rows, j)
            if not any(isinstance(op, mma.MmaOp) for op in loop.walk()):
                assert roles == "specialized"
                assert not some_seen
            elif mode == "guard" and roles == "specialized":
                assert len(branches) == bool(chain.causal or chain.window or chain.columns % n)
                assert not any(isinstance(op, mma.CoordOp) for op in loop.body.block.ops)
                assert taken in ([], [not all_seen])
            else:
                free = not any(isinstance(op, mma.CoordOp) for op in loop.walk())
                assert free == seen(chain, start, start + m, j)[0]
                assert taken in ([], [some_seen])
                assert roles == "unified" or not taken


def whole_range(chain: Chain, start: int) -> tuple[int, int]:
    m, n = chain.block
    base, low, high = start + chain.columns - chain.rows, 0, chain.columns
    if chain.causal and chain.ranged:
        high = max(min(base + m, high), 0)
    if chain.window and chain.ranged:
        low = max(base - chain.window + 1, 0) // n * n
    return low, high


def seen(chain: Chain, first: int, last: int, j: int) -> tuple[bool, bool]:
    """(are all masks true for rows `first` to `last` and columns from j, is each of them true somewhere)"""
    row = np.arange(first, last)[:, None] + chain.columns - chain.rows
    key = np.arange(j, j + chain.block[1])[None, :]
    masks = [key < chain.columns] + ([row >= key] if chain.causal else [])
    masks += [key > row - chain.window] if chain.window else []
    return all(mask.all() for mask in masks), all(mask.any() for mask in masks)


def loops_of(ops, offsets: tuple[int, int, int], warp: int, values: dict) -> list[scf.ForOp]:
    """The loops among ops, and in `values` what the index arithmetic around them comes to."""
    loops: list[scf.ForOp] = []
    for op in ops:
        if isinstance(op, GridOp):
            values.update(zip(op.offsets, offsets, strict=True))
        elif isinstance(op, mma.WarpOp):
            values[op.result] = warp
        elif isinstance(op, scf.ForOp):
            loops.append(op)
        elif op.name.startswith("arith.") and not op.regions:
            values[op.results[0]] = evaluate_scalar(op, [values[v] for v in op.operands])
    return loops


@pytest.mark.parametrize("columns", [0, 1, 33])
def test_rows_that_see_nothing_give_zeros(columns: int):
    chain = Chain(rows=64, columns=columns, causal=True, statistic=True, block=(32, 16))
    arguments = chain.arguments(0)
    out, statistic = level3.run_module(apply(read(chain.text()), LowerTile()), "f", arguments)
    blind = ~chain.mask().any(axis=1)
    assert blind.any()
    assert (out[..., blind, :] == 0).all()
    assert (statistic[..., blind] == -np.inf).all()


@pytest.mark.parametrize(("width", "wide"), [(64, True), (96, True), (88, True), (40, False), (68, False)])
def test_results_leave_registers_by_16_bytes_a_lane(width: int, wide: bool):
    """Where the columns of a warp are whole 32s, rows whole 16 bytes; past the last row and column nothing is written."""
    chain = Chain(rows=21, columns=32, depth=16, width=width, block=(32, 32), warps=2)
    chain = chain.with_schedule(epilogue="direct", stages=1)
    module = emmy.compile(chain.text(), "sm_90a")
    assert ("st.global.v4.b32" in module.ptx) == wide
    wanted = [spec["wants"] for spec in module.portable_artefact.entry("f")["launches"]]
    assert {each["o"]["align"] for each in wanted} == {16 if wide else 4}
    arguments = chain.arguments(0)
    results, _ = run_on_emulator(module.portable_artefact, "f", arguments)
    check_close(results, chain.reference(*arguments))
