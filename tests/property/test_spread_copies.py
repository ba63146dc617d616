"""`spread-copies` changes no bit of a product, whatever is drawn, and keeps what is in flight at each wait.

Drawn together: tile, stages, k-tiles around the number of stages, ragged and `?` sizes, unrolling, placement, landing time
and warp order. The data are no integers: an order of sums that changed would show.
"""

from __future__ import annotations

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp

import emmy
from emmy.artefact import run_on_emulator
from emmy.dialects import ptx
from emmy.interpreters import level3
from emmy.ir import make_context, parse_module, print_module, verify_module
from emmy.passes.spread_copies import COMMIT, COPY_NAMES, SpreadCopies

TILES = (((32, 32, 32), (1, 1)), ((64, 32, 64), (2, 1)), ((32, 64, 64), (1, 2)), ((64, 64, 48), (1, 1)))
"""(block, warps)"""


def text(m: int, n: int, k: int, dynamic: bool) -> str:
    rows = "?" if dynamic else m
    a, b, c = f"tensor<{rows}x{k}xf16>", f"tensor<{n}x{k}xf16>", f"tensor<{rows}x{n}xf16>"
    return (
        f"func.func @mm(%a: {a}, %b: {b}) -> {c} {{\n"
        f"  %c = tensor_op.matmul %a, %b transpose_b : ({a}, {b}) -> {c}\n  func.return %c : {c}\n}}\n"
    )


def groups(module: ModuleOp) -> list[list[tuple[str, ...]]]:
    """For each block: what stands between waits, barriers and loops, with the copies of each commit, in order."""
    found: list[list[tuple[str, ...]]] = []
    for kernel in module.walk():
        if not isinstance(kernel, ptx.KernelOp):
            continue
        for block in (b for op in kernel.walk() for region in op.regions for b in region.blocks):
            events: list[tuple[str, ...]] = []
            copies: list[str] = []
            for op in block.ops:
                if op.name in COPY_NAMES:
                    copies.append(str(op))
                elif op.name == COMMIT:
                    events.append((op.name, *copies))
                    copies = []
                elif op.name.startswith(("ptx.bar", "ptx.cp_async", "ptx.mbarrier", "ptx.st_")) or op.regions:
                    events.append((op.name,))
            found.append([*events, tuple(copies)])
    return found


@settings(max_examples=25)
@given(
    tile=st.sampled_from(TILES),
    ends=st.tuples(st.sampled_from((0, 0, 8, 5)), st.sampled_from((0, 0, 8)), st.sampled_from((0, 8, 16, 0, 8, 5))),
    trips=st.sampled_from((7, 5, 3, 9, 4, 2, 1, 0)),
    dynamic=st.booleans(),
    stages=st.sampled_from((3, 2, 4, 1)),
    batches=st.integers(2, 5),
    delay=st.sampled_from((0, 0, 1, 2)),
    prefetch=st.integers(0, 1),
    unroll=st.integers(1, 3),
    roles=st.sampled_from((*["unified"] * 5, "specialized")),
    landing=st.sampled_from(level3.LANDINGS),
    order=st.sampled_from(level3.ORDERS),
    seed=st.integers(0, 1000),
)
def test_no_bit_changes(
    tile: tuple[tuple[int, int, int], tuple[int, int]],
    ends: tuple[int, int, int],
    trips: int,
    dynamic: bool,
    stages: int,
    batches: int,
    delay: int,
    prefetch: int,
    unroll: int,
    roles: str,
    landing: str,
    order: str,
    seed: int,
) -> None:
    block, warps = tile
    m, n, k = block[0] - ends[0], block[1] - ends[1], max(trips * block[2] - ends[2], 0)
    schedule = {
        "block": block,
        "warps": warps,
        "stages": stages,
        "transport": "cp_async",
        "delay": delay,
        "prefetch": prefetch,
        "unroll": unroll,
        "roles": roles,
    }
    generator = np.random.default_rng(seed)
    arguments = [generator.normal(size=shape).astype(np.float16) for shape in ((m, k), (n, k))]
    source = text(m, n, k, dynamic)
    plain = emmy.compile(source, "sm_90a", schedule={**schedule, "batches": 1})

    before = parse_module(plain.ir("lower-to-ptx"), "before.mlir")
    after = before.clone()
    SpreadCopies(batches).apply(make_context(), after)
    verify_module(after)
    event(f"moved: {print_module(after) != print_module(before)}")
    assert [[(e[0] if e else "", len(e)) for e in b] for b in groups(after)] == [
        [(e[0] if e else "", len(e)) for e in b] for b in groups(before)
    ]

    spread = emmy.compile(source, "sm_90a", schedule={**schedule, "batches": batches})
    results = [
        run_on_emulator(module.portable_artefact, "mm", arguments, landing=landing, order=order, seed=seed)[0][0]
        for module in (plain, spread)
    ]
    assert results[0].tobytes() == results[1].tobytes()
    exact = arguments[0].astype(np.float64) @ arguments[1].astype(np.float64).T
    np.testing.assert_allclose(results[1].astype(np.float64), exact, rtol=2e-3, atol=2e-3)
