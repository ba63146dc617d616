"""`order-tiles`: every tile once, the heavy ones first, results unchanged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from chained_support import Chain
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import ModuleOp

from emmy.dialects import tile
from emmy.interpreters import level2
from emmy.interpreters.scalars import evaluate_scalar
from emmy.ir import make_context, parse_module, print_module, verify_module
from emmy.passes import order_tiles
from emmy.passes.order_tiles import OrderTiles
from emmy.passes.persistent_grid import PersistentGrid


def ordered(chain: Chain, *, target: str = "sm_90a", persistent: bool = False) -> ModuleOp:
    module = parse_module(chain.text(), "chain.mlir")
    for one in (PersistentGrid(force=persistent), OrderTiles(target)):
        one.apply(make_context(), module)
        verify_module(module)
    text = print_module(module)
    OrderTiles(target).apply(make_context(), module)
    assert print_module(module) == text, "a second time changes nothing"
    return parse_module(text, "again.mlir")


def tiles_of(module: ModuleOp, cta: int, ctas: int) -> list[int]:
    """The numbers of the tiles that a CTA computes, in order; from the kernel's index arithmetic."""
    kernel = next(op for op in module.walk() if isinstance(op, tile.KernelOp))
    grid = next(op for op in kernel.walk() if isinstance(op, tile.GridOp))
    values = {}

    def run(ops) -> None:
        for op in ops:
            if isinstance(op, tile.CtaIdOp):
                values[op.result] = cta
            elif isinstance(op, tile.CtaCountOp):
                values[op.result] = ctas
            elif op.name.startswith("arith.") and all(v in values for v in op.operands):
                values[op.results[0]] = evaluate_scalar(op, [values[v] for v in op.operands])

    run(kernel.block.ops)
    loop = grid.parent_op()
    if not isinstance(loop, scf.ForOp):
        return [values[grid.number] if grid.number is not None else cta]
    numbers = []
    for number in range(*(values[v] for v in (loop.lb, loop.ub, loop.step))):
        values[loop.body.block.args[0]] = number
        run(loop.body.block.ops)
        numbers.append(values[grid.number])
    return numbers


@st.composite
def triangles(draw: st.DrawFn) -> Chain:
    groups = draw(st.integers(1, 3))
    return Chain(
        batch=draw(st.integers(1, 2)),
        heads=groups * draw(st.integers(1, 3)),
        groups=groups,
        rows=draw(st.integers(1, 300)),
        columns=draw(st.integers(1, 300)),
        block=(16, 32),
        warps=1,
        causal=True,
        window=draw(st.sampled_from((0, 0, 40))),
    )


@settings(max_examples=60, deadline=None)
@given(triangles(), st.booleans(), st.integers(1, 20), st.sampled_from((0.00001, 0.75)))
def test_every_tile_is_computed_once(chain: Chain, persistent: bool, ctas: int, share: float):
    """With few heads at once, too, and with any number of CTAs of a persistent kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order_tiles, "L2_SHARE", share)
        module = ordered(chain, persistent=persistent)
    total = chain.batch * chain.heads * -(-chain.rows // 16)
    count = min(total, ctas) if persistent else total
    found = [number for cta in range(count) for number in tiles_of(module, cta, count)]
    assert sorted(found) == list(range(total))


def work(chain: Chain, number: int) -> int:
    """Columns that a tile's loop goes through."""
    tiles = -(-chain.rows // chain.block[0])
    first = number % tiles * chain.block[0] + chain.columns - chain.rows
    begin = max(first - chain.window + 1, 0) // chain.block[1] * chain.block[1] if chain.window else 0
    return max(min(first + chain.block[0], chain.columns) - begin, 0)


@pytest.mark.parametrize(
    ("window", "order", "heavy"),
    [
        (0, "auto", True),
        (0, "heavy", True),
        (0, "light", False),
        (65, "auto", False),
        (65, "heavy", True),
        (65, "light", False),
    ],
)
def test_heavy_tiles_come_first(window: int, order: str, heavy: bool):
    """Of a window the light ones do: the first tiles have less, the others the same."""
    chain = Chain(heads=4, rows=256, columns=256, block=(32, 32), causal=True, window=window).with_schedule(order=order)
    module = ordered(chain)
    order = [tiles_of(module, cta, 32)[0] for cta in range(32)]
    loads = [work(chain, number) for number in order]
    assert loads == sorted(loads, reverse=heavy)
    assert (loads[0] > loads[-1]) == heavy


def test_heads_go_in_groups_that_fit_the_cache(monkeypatch: pytest.MonkeyPatch):
    chain = Chain(heads=6, groups=6, rows=64, columns=64, depth=32, width=32, block=(32, 32), causal=True)
    each = 64 * (32 + 32) * 2
    monkeypatch.setattr(order_tiles, "L2_SHARE", 2.5 * each / (60 * 2**20))
    module = ordered(chain)
    heads = [tiles_of(module, cta, 12)[0] // 2 for cta in range(12)]
    assert [set(heads[i : i + 4]) for i in (0, 4, 8)] == [{0, 1}, {2, 3}, {4, 5}]


def test_a_second_round_is_the_mirror_image_of_the_first():
    """So that the CTAs of a persistent kernel, and multiprocessors with two CTAs, have equal shares."""
    chain = Chain(heads=4, rows=256, columns=256, block=(32, 32), causal=True)
    module = ordered(chain, persistent=True)
    shares = [sum(work(chain, number) for number in tiles_of(module, cta, 16)) for cta in range(16)]
    assert max(shares) == min(shares)
    large = replace(chain, heads=33)  # 264 tiles: two for each of 132 multiprocessors
    module = ordered(large)
    loads = [work(large, tiles_of(module, cta, 264)[0]) for cta in range(264)]
    pairs = [loads[sm] + loads[sm + 132] for sm in range(132)]
    assert max(pairs) == min(pairs)


def test_groups_that_end_within_a_round_leave_shares_equal(monkeypatch: pytest.MonkeyPatch):
    """Groups that all began with their heaviest tiles gave some CTAs two of them in a row, 1.3 times the mean share."""
    chain = Chain(
        heads=16, groups=16, rows=2048, columns=2048, depth=32, width=32, block=(16, 32), warps=1, causal=True
    )
    each = 2048 * (32 + 32) * 2
    monkeypatch.setattr(order_tiles, "L2_SHARE", 4.5 * each / (60 * 2**20))
    module = ordered(chain, persistent=True)
    shares = [sum(work(chain, number) for number in tiles_of(module, cta, 132)) for cta in range(132)]
    assert max(shares) < 1.03 * sum(shares) / 132


@pytest.mark.parametrize(
    "chain",
    [
        Chain(rows=64, columns=96),  # all rows see all columns
        Chain(rows=64, columns=96, causal=True, ranged=False),  # the loop is the same for all
        Chain(rows=64, columns=96, causal=True).with_schedule(order="grid"),
    ],
)
def test_kernels_that_are_left_alone(chain: Chain):
    module = ordered(chain)
    assert not any(
        isinstance(op, tile.CtaIdOp | arith.SubiOp) and op.results[0].name_hint == "cta" for op in module.walk()
    )
    assert all(op.number is None for op in module.walk() if isinstance(op, tile.GridOp))


@settings(max_examples=20, deadline=None)
@given(triangles(), st.booleans())
def test_results_stay_the_same(chain: Chain, persistent: bool):
    arguments = chain.arguments(0)
    expected = level2.run_module(parse_module(chain.text(), "chain.mlir"), "f", arguments)
    got = level2.run_module(ordered(chain, persistent=persistent), "f", arguments)
    np.testing.assert_array_equal(got[0], expected[0])
