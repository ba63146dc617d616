"""Products of which two CTAs of a cluster read an operand together agree with float64 at every level, on small integers, in any
order of events: no slot is refilled before both have read it, and no CTA ends before the other one is done with it.
"""

from __future__ import annotations

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
from emmy.ir import parse_module

DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
LEVELS = ("lower-tile", "place-roles", "lower-transport", "unroll-loops")


def text(m: int, n: int, k: int, transpose_a: bool, transpose_b: bool, dtype: str) -> str:
    a = f"tensor<{k}x{m}x{dtype}>" if transpose_a else f"tensor<{m}x{k}x{dtype}>"
    b = f"tensor<{n}x{k}x{dtype}>" if transpose_b else f"tensor<{k}x{n}x{dtype}>"
    flags, c = " transpose_a" * transpose_a + " transpose_b" * transpose_b, f"tensor<{m}x{n}x{dtype}>"
    return (
        f"func.func @mm(%a: {a}, %b: {b}) -> {c} {{\n"
        f"  %c = tensor_op.matmul %a, %b{flags} : ({a}, {b}) -> {c}\n  func.return %c : {c}\n}}\n"
    )


@settings(max_examples=20, phases=(Phase.explicit, Phase.generate))
@given(
    m=st.integers(1, 38).map(lambda m: 8 * m),
    n=st.integers(1, 25).map(lambda n: 8 * n),
    k=st.integers(0, 30).map(lambda k: 8 * k),
    transposes=st.tuples(st.booleans(), st.booleans()),
    dtype=st.sampled_from(("f16", "bf16")),
    share=st.sampled_from(("a", "b")),
    rows=st.sampled_from((64, 128)),
    columns=st.sampled_from((32, 64, 96, 128)),
    depth=st.sampled_from((32, 64)),
    stages=st.integers(1, 3),
    persistent=st.integers(0, 1),
    warpgroups=st.booleans(),
    unroll=st.integers(1, 2),
    landing=st.sampled_from(level3.LANDINGS),
    order=st.sampled_from(level3.ORDERS),
    seed=st.integers(0, 1000),
)
def test_shared_operands(
    m: int, n: int, k: int, transposes: tuple[bool, bool], dtype: str, share: str, rows: int, columns: int, depth: int,
    stages: int, persistent: int, warpgroups: bool, unroll: int, landing: str, order: str, seed: int,
) -> None:  # fmt: skip
    transpose_a, transpose_b = transposes
    schedule = {
        "atom": "wgmma" if warpgroups else "m16n8k16",
        "block": [rows, columns, depth],
        "warps": [rows // 16, 1],
        "stages": stages,
        "roles": "specialized",
        "persistent": persistent,
        "store_columns": 0,
        "fragments": 1,
        "prefetch": 0,
        "unroll": unroll,
        "share": share,
    }
    program = text(m, n, k, transpose_a, transpose_b, dtype)
    module = emmy.compile(program, "sm_90a", schedule=schedule, variants="dense")
    generator = np.random.default_rng(seed)
    a, b = (
        generator.integers(-2, 3, size=(second, first) if swapped else (first, second)).astype(DTYPES[dtype])
        for first, second, swapped in ((m, k, transpose_a), (k, n, transpose_b))
    )
    exact = (a.T if transpose_a else a).astype(np.float64) @ (b.T if transpose_b else b).astype(np.float64)
    wanted = exact.astype(DTYPES[dtype]).astype(np.float64)
    (got,) = level2.run_module(parse_module(module.ir("share-operands"), "share.mlir"), "mm", [a, b])
    np.testing.assert_array_equal(got.astype(np.float64), wanted)
    for level in LEVELS:
        form = parse_module(module.ir(level), f"{level}.mlir")
        (got,) = level3.run_module(form, "mm", [a, b], landing, order, seed)
        np.testing.assert_array_equal(got.astype(np.float64), wanted)
    (got,), _ = run_on_emulator(module.portable_artefact, "mm", [a, b], landing=landing, order=order, seed=seed)
    np.testing.assert_array_equal(got.astype(np.float64), wanted)


SCHEDULE = {
    "atom": "wgmma",
    "block": [64, 64, 64],
    "warps": [4, 1],
    "stages": 2,
    "roles": "specialized",
    "persistent": 1,
    "fragments": 1,
    "prefetch": 0,
    "share": "b",
}


@pytest.mark.parametrize(
    "line",
    ["barrier.cluster.wait.acquire.aligned;", "mbarrier.arrive.shared::cluster", "mbarrier.arrive.expect_tx"],
)
def test_a_missing_event_is_seen(line: str):
    module = emmy.compile(text(256, 64, 512, False, True, "f16"), "sm_90a", schedule=SCHEDULE)
    lines = module.ptx.splitlines()
    number = next(i for i, one in enumerate(lines) if line in one)
    broken = "\n".join(lines[:number] + lines[number + 1 :])
    artefact = replace(module.portable_artefact, images={"kernels": Image(broken)}, supply=None)
    generator = np.random.default_rng(1)
    arrays = [generator.standard_normal(shape).astype(np.float16) for shape in ((256, 512), (64, 512))]
    seen = 0
    for landing, order in (("late", "fixed"), ("late", "reversed"), ("early", "reversed"), ("random", "random")):
        try:
            run_on_emulator(artefact, "mm", arrays, landing=landing, order=order)
        except EmulatorError:
            seen += 1
    assert seen


@pytest.mark.parametrize(
    ("changes", "target", "words"),
    [
        ({"roles": "unified"}, "sm_90a", "by a role that fills only"),
        ({"split_k": 2, "persistent": 0}, "sm_90a", "set one of them"),
        ({"block": [64, 48, 64]}, "sm_90a", "copies halves of tiles"),
        ({"atom": "m16n8k16"}, "sm_120a", "needs the multicast of sm_90a, and the target is sm_120a"),
        ({"atom": "m16n8k16", "transport": "cp_async"}, "sm_90a", "multicast by TMA"),
    ],
)
def test_what_cannot_be_shared(changes: dict[str, object], target: str, words: str):
    with pytest.raises(EmmyError, match=words):
        emmy.compile(text(256, 64, 512, False, True, "f16"), target, schedule={**SCHEDULE, **changes})


def test_sizes_that_are_not_known_are_refused():
    program = text(256, 64, 512, False, True, "f16").replace("256x", "?x")
    with pytest.raises(EmmyError, match="whose sizes are known"):
        emmy.compile(program, "sm_90a", schedule=SCHEDULE)


@pytest.mark.parametrize("share", ["a", "b"])
@pytest.mark.parametrize("place", ["%m, %k", "%k, %n"])
def test_tiles_that_only_one_cta_reads_are_not_shared(share: str, place: str):
    """In an edited text of level 2: the operand that both would read is loaded from where one of them computes."""
    given = emmy.compile(text(256, 256, 256, False, False, "f16"), "sm_90a", schedule={**SCHEDULE, "share": "none"})
    own, edited = ("%m, %k", "%k, %n")[share == "a"], given.ir("lower-tensor-op")
    both = {"a": "%m, %k", "b": "%k, %n"}[share]
    assert edited.count(f"[{both}]") == 1
    edited = edited.replace(f"[{both}]", f"[{place}]").replace(
        "roles = specialized", f"roles = specialized, share = {share}"
    )
    if place == own:
        with pytest.raises(EmmyError, match=f"share = {share} wants tiles of that operand that both CTAs read"):
            emmy.compile(edited, "sm_90a")
    else:
        assert "shared : " in emmy.compile(edited, "sm_90a").ir("share-operands")


@pytest.mark.parametrize("fields", [{"share": "a"}, {"share": "b"}, {"split_k": 2}])
@pytest.mark.parametrize("target", ["sm_90a", "sm_120a"])
def test_attention_has_no_clusters(fields: dict[str, object], target: str):
    q = "tensor<1x2x64x64xf16>"
    program = (
        f"func.func @f(%q: {q}, %k: {q}, %v: {q}) -> {q} {{\n"
        f"  %o = tensor_op.attention %q, %k, %v scale 0.125 : ({q}, {q}, {q}) -> {q}\n  func.return %o : {q}\n}}\n"
    )
    with pytest.raises(EmmyError, match="is about one product, and these are two in a row"):
        emmy.compile(program, target, schedule=fields)
