"""alternate-tiles: two consumers that compute tiles in turn agree with float64 at every level, on small integers, in any order
of events; a lost turn, turns in another order, and other numbers of tickets are refused, and faults where they are run.
"""

from __future__ import annotations

import functools
import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import emmy
from emmy.artefact import Image, run_on_emulator
from emmy.emulator.faults import EmulatorError
from emmy.errors import EmmyError
from emmy.interpreters import level2, level3
from emmy.ir import make_context, parse_module
from emmy.module import Module
from emmy.passes.verify_pipelines import VerifyPipelines
from emmy.schedules import Schedule

DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
LEVELS = ("alternate-tiles", "place-roles", "lower-transport", "unroll-loops")
SCHEDULE = {
    "atom": "wgmma",
    "block": [64, 32, 32],
    "warps": [4, 1],
    "stages": 2,
    "roles": "specialized",
    "persistent": 1,
    "consumers": "pingpong",
    "fragments": 1,
    "prefetch": 0,
    "store_columns": 0,
}


def text(
    m: int, n: int, k: int, transpose_b: bool = True, dtype: str = "f16", bias: bool = False, open_sizes: str = ""
) -> str:
    """A product, with a row added if there is a bias; the sizes named in `open_sizes` are `?`."""
    m_, n_, k_ = ("?" if name in open_sizes else str(size) for name, size in (("m", m), ("n", n), ("k", k)))
    a, b = f"tensor<{m_}x{k_}x{dtype}>", f"tensor<{n_}x{k_}x{dtype}>" if transpose_b else f"tensor<{k_}x{n_}x{dtype}>"
    c, row = f"tensor<{m_}x{n_}x{dtype}>", f"tensor<{n_}x{dtype}>"
    flag = " transpose_b" * transpose_b
    tail = f"  %d = tensor_op.map add %c, %r : ({c}, {row}) -> {c}\n" if bias else ""
    return (
        f"func.func @mm(%a: {a}, %b: {b}{f', %r: {row}' * bias}) -> {c} {{\n"
        f"  %c = tensor_op.matmul %a, %b{flag} : ({a}, {b}) -> {c}\n{tail}  func.return %{'d' if bias else 'c'} : {c}\n}}\n"
    )


def arguments(
    m: int, n: int, k: int, transpose_b: bool, dtype: str, bias: bool, seed: int
) -> tuple[list[np.ndarray], np.ndarray]:
    """Small integers, and the exact result."""
    generator = np.random.default_rng(seed)
    shapes = [(m, k), (n, k) if transpose_b else (k, n), *([(n,)] * bias)]
    arrays = [generator.integers(-2, 3, size=shape).astype(DTYPES[dtype]) for shape in shapes]
    a, b, *row = (array.astype(np.float64) for array in arrays)
    exact = (a @ (b.T if transpose_b else b)).astype(DTYPES[dtype]).astype(np.float64)
    return arrays, (exact + row[0] if row else exact).astype(DTYPES[dtype])


@settings(max_examples=6, phases=(Phase.explicit, Phase.generate), deadline=None)
@given(
    m=st.integers(1, 300),
    n=st.integers(1, 8).map(lambda n: 8 * n),
    k=st.integers(0, 12).map(lambda k: 8 * k),
    transpose_b=st.booleans(),
    dtype=st.sampled_from(("f16", "bf16")),
    bias=st.booleans(),
    open_sizes=st.sampled_from(("", "", "m", "k", "mnk")),
    atom=st.sampled_from(("wgmma", "wgmma", "m16n8k16")),
    transport=st.sampled_from(("auto", "cp_async", "plain")),
    columns=st.sampled_from((16, 32, 64)),
    depth=st.sampled_from((16, 32, 64)),
    stages=st.integers(1, 4),
    store_columns=st.sampled_from((0, 16)),
    share=st.sampled_from(("none", "none", "a", "b")),
    unroll=st.integers(1, 2),
    landing=st.sampled_from(level3.LANDINGS),
    order=st.sampled_from(level3.ORDERS),
    seed=st.integers(0, 1000),
)
def test_alternate_tiles(
    m: int, n: int, k: int, transpose_b: bool, dtype: str, bias: bool, open_sizes: str, atom: str, transport: str,
    columns: int, depth: int, stages: int, store_columns: int, share: str, unroll: int, landing: str, order: str, seed: int,
) -> None:  # fmt: skip
    wide = atom == "wgmma"
    if share != "none" and (open_sizes or not wide or columns % 32 or depth % 32):
        share = "none"
    schedule = {
        **SCHEDULE,
        "atom": atom,
        "block": [64, columns, depth],
        "warps": [4, 1] if wide else [2, 1],
        "transport": "auto" if wide else transport,
        "stages": stages,
        "store_columns": store_columns,
        "share": share,
        "unroll": unroll,
    }
    module = emmy.compile(
        text(m, n, k, transpose_b, dtype, bias, open_sizes), "sm_90a", schedule=schedule, variants="dense"
    )
    arrays, wanted = arguments(m, n, k, transpose_b, dtype, bias, seed)
    (got,) = level2.run_module(parse_module(module.ir("persistent-grid"), "tile.mlir"), "mm", arrays)
    np.testing.assert_array_equal(got, wanted)
    for level in LEVELS:
        form = parse_module(module.ir(level), f"{level}.mlir")
        (got,) = level3.run_module(form, "mm", arrays, landing, order, seed)
        np.testing.assert_array_equal(got, wanted)
    (got,), _ = run_on_emulator(module.portable_artefact, "mm", arrays, landing=landing, order=order, seed=seed)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("blocks", [0, 1, 2, 3, 4])
def test_few_tickets(blocks: int):
    """K of no block, and around the three stages; one tile for three CTAs, and three, two and two for each."""
    k = 16 * blocks
    schedule = {**SCHEDULE, "block": [64, 16, 16], "stages": 3, "carry": 1}
    module = emmy.compile(text(64, 16, k, open_sizes="m"), "sm_90a", schedule=schedule, variants="dense")
    form = parse_module(module.ir("alternate-tiles"), "tiles.mlir")
    for m in (40, 440):
        arrays, wanted = arguments(m, 16, k, True, "f16", False, m)
        (got,) = level3.run_module(form, "mm", arrays, "random", "random", m)
        np.testing.assert_array_equal(got, wanted)
        (got,), _ = run_on_emulator(module.portable_artefact, "mm", arrays, landing="random", order="random", seed=m)
        np.testing.assert_array_equal(got, wanted)


RUNS = (("late", "fixed"), ("late", "reversed"), ("early", "reversed"), ("random", "random"))
"""Ways to run a broken program: (landing, order)."""

EDITS = {
    "no turn awaited": (r"async_copy.await_turn consumer 1\n", "", "out of its turn"),
    "no turn passed": (r"async_copy.pass_turn consumer 1 if %more\n", "", "out of its turn"),
    "first turn lost": (r"async_copy.pass_turn consumer 0 if %\d+\n", "", "gives consumer 0 the first turn"),
    "another's turn awaited": ("await_turn consumer 1", "await_turn consumer 0", "takes its own turn"),
    "a turn passed to itself": ("pass_turn consumer 1", "pass_turn consumer 0", "takes its own turn"),
    "too few tickets passed over": (r"(skip @ab\[%ab_done_1\] by) %c3", r"\1 %c2", "takes other numbers of tickets"),
    "the same tiles": (r"(scf.for %tile_2 =) %\d+ to", r"\1 %0 to", "does not compute every second tile"),
}


@pytest.mark.parametrize("name", EDITS)
def test_what_breaks_the_order_is_refused_and_faults(name: str):
    old, new, words = EDITS[name]
    whole = compiled().ir("alternate-tiles")
    broken, count = re.subn(old, new, whole)
    assert count == 1
    with pytest.raises(EmmyError, match=words):
        VerifyPipelines().apply(make_context(), parse_module(broken, "broken.mlir"))
    arrays, wanted = arguments(200, 64, 96, True, "f16", False, 1)
    for landing, order in RUNS:
        try:
            (got,) = level3.run_module(parse_module(broken, "broken.mlir"), "mm", arrays, landing, order)
        except EmmyError:
            continue
        assert (got != wanted).any()


@functools.cache
def compiled() -> Module:
    """Eight tiles of three tickets, for three CTAs."""
    return emmy.compile(text(200, 64, 96), "sm_90a", schedule=SCHEDULE)


@pytest.mark.parametrize("line", ["bar.sync %r7, 256;", "bar.arrive %r7, 256;", "bar.arrive %r6, 256;"])
def test_a_missing_turn_is_seen_in_ptx(line: str):
    module = compiled()
    assert line in module.ptx
    artefact = replace(module.portable_artefact, images={"kernels": Image(module.ptx.replace(line, ""))}, supply=None)
    arrays, _ = arguments(200, 64, 96, True, "f16", False, 1)
    seen = 0
    for landing, order in RUNS:
        try:
            run_on_emulator(artefact, "mm", arrays, landing=landing, order=order)
        except EmulatorError:
            seen += 1
    assert seen


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"persistent": 0}, "roles = specialized, persistent = 1"),
        ({"roles": "unified"}, "roles = specialized, persistent = 1"),
        (
            {"block": [128, 256, 64], "warps": [8, 1]},
            "a product of 256 columns names 158 registers, and 640 threads start",
        ),
        ({"block": [64, 256, 128], "stages": 3}, "bytes of shared memory"),
        ({"consumers": "one"}, "consumers is one of cooperative, pingpong"),
    ],
)
def test_what_cannot_alternate(changes: dict[str, object], words: str):
    with pytest.raises(EmmyError, match=words):
        emmy.compile(text(256, 256, 512), "sm_90a", schedule={**SCHEDULE, **changes})


def test_halves_of_a_role_and_roles_do_not_both_take_turns():
    one = Schedule(warps=(4, 1), roles="specialized", persistent=1, consumers="pingpong", turns=1)
    assert "two ways to take turns" in (one.problem() or "")


def test_two_products_in_a_row_do_not_alternate():
    q = "tensor<1x2x64x64xf16>"
    program = (
        f"func.func @f(%q: {q}, %k: {q}, %v: {q}) -> {q} {{\n"
        f"  %o = tensor_op.attention %q, %k, %v scale 0.125 : ({q}, {q}, {q}) -> {q}\n  func.return %o : {q}\n}}\n"
    )
    for fields, words in (({"consumers": "pingpong"}, "consumers = pingpong is"), ({"carry": 1}, "carry( = 1)? is")):
        with pytest.raises(EmmyError, match=f"{words} (for|about) one product"):
            emmy.compile(
                program, "sm_90a", schedule={**fields, "roles": "specialized", "persistent": 1, "atom": "wgmma"}
            )
