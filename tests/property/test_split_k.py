"""Products that the CTAs of a cluster share agree with float64 at every level, on small integers, in any order of events; what
arrives from other CTAs is waited for; and results do not depend on timing.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import emmy
from emmy.artefact import run_on_emulator
from emmy.emulator.faults import EmulatorError
from emmy.errors import EmmyError
from emmy.interpreters import level2, level3
from emmy.ir import parse_module

DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
LEVELS = ("lower-tile", "place-roles", "lower-transport", "allocate-shared")


def text(m: int, n: int, k: int, dtype: str, bias: bool) -> str:
    """C = A B^T, perhaps with a row that is added."""
    a, b, c = f"tensor<{m}x{k}x{dtype}>", f"tensor<{n}x{k}x{dtype}>", f"tensor<{m}x{n}x{dtype}>"
    v = f"tensor<1x{n}xf32>"
    product = f"  %p = tensor_op.matmul %a, %b transpose_b : ({a}, {b}) -> tensor<{m}x{n}xf32>\n"
    add = f"  %q = tensor_op.map add %p, %v : (tensor<{m}x{n}xf32>, {v}) -> tensor<{m}x{n}xf32>\n" if bias else ""
    last = "%q" if bias else "%p"
    return (
        f"func.func @mm(%a: {a}, %b: {b}, %v: {v}) -> {c} {{\n{product}{add}"
        f"  %c = tensor_op.cast {last} : tensor<{m}x{n}xf32> to {c}\n  func.return %c : {c}\n}}\n"
    )


@settings(max_examples=25, phases=(Phase.explicit, Phase.generate))
@given(
    m=st.integers(1, 150),
    n=st.integers(1, 20).map(lambda n: 8 * n),
    k=st.integers(0, 40).map(lambda k: 8 * k),
    dtype=st.sampled_from(("f16", "bf16")),
    bias=st.booleans(),
    parts=st.sampled_from((2, 2, 4, 8)),
    tile=st.sampled_from(((64, 1), (128, 1), (64, 2))),
    depth=st.sampled_from((16, 32, 64)),
    stages=st.integers(1, 3),
    specialized=st.booleans(),
    warpgroups=st.booleans(),
    transport=st.sampled_from(("tma", "cp_async")),
    direct=st.booleans(),
    target=st.sampled_from(("sm_90a", "sm_90a", "sm_120a")),
    landing=st.sampled_from(level3.LANDINGS),
    order=st.sampled_from(level3.ORDERS),
    seed=st.integers(0, 1000),
)
def test_shared_contractions(
    m: int, n: int, k: int, dtype: str, bias: bool, parts: int, tile: tuple[int, int], depth: int, stages: int,
    specialized: bool, warpgroups: bool, transport: str, direct: bool, target: str, landing: str, order: str, seed: int,
) -> None:  # fmt: skip
    rows, wide = tile
    warpgroups = warpgroups and target == "sm_90a"
    schedule = {
        "atom": "wgmma" if warpgroups else "m16n8k16",
        "block": [rows, 16 * parts * wide, depth],
        "warps": [rows // 16, 1],
        "stages": stages,
        "transport": "tma" if warpgroups else transport,
        "roles": "specialized" if specialized else "unified",
        "epilogue": "direct" if direct else "shared",
        "persistent": 0,
        "store_columns": 0,
        "fragments": 1,
        "prefetch": 0,
        "split_k": parts,
    }
    module = emmy.compile(text(m, n, k, dtype, bias), target, schedule=schedule, variants="dense")
    generator = np.random.default_rng(seed)
    a, b = (generator.integers(-2, 3, size=shape).astype(DTYPES[dtype]) for shape in ((m, k), (n, k)))
    v = generator.integers(-3, 4, size=(1, n)).astype(np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64).T + (v if bias else 0)
    wanted = exact.astype(DTYPES[dtype]).astype(np.float64)
    (got,) = level2.run_module(parse_module(module.ir("split-k"), "split.mlir"), "mm", [a, b, v])
    np.testing.assert_array_equal(got.astype(np.float64), wanted)
    for level in LEVELS:
        form = parse_module(module.ir(level), f"{level}.mlir")
        (got,) = level3.run_module(form, "mm", [a, b, v], landing, order, seed)
        np.testing.assert_array_equal(got.astype(np.float64), wanted)
    (got,), _ = run_on_emulator(module.portable_artefact, "mm", [a, b, v], landing=landing, order=order, seed=seed)
    np.testing.assert_array_equal(got.astype(np.float64), wanted)


SCHEDULE = {
    "atom": "wgmma",
    "block": [64, 64, 64],
    "warps": [4, 1],
    "stages": 2,
    "roles": "specialized",
    "persistent": 0,
    "fragments": 1,
    "prefetch": 0,
    "split_k": 4,
}


def operands() -> list[np.ndarray]:
    generator = np.random.default_rng(7)
    a, b = (generator.standard_normal(shape).astype(np.float16) for shape in ((64, 512), (64, 512)))
    return [a, b, np.zeros((1, 64), np.float32)]


def test_bits_do_not_depend_on_the_order_of_events():
    module = emmy.compile(text(64, 64, 512, "f16", False), "sm_90a", schedule=SCHEDULE)
    arrays, found = operands(), set()
    orders = (("late", "fixed", 0), ("early", "reversed", 0), ("random", "random", 1), ("random", "random", 2))
    for landing, order, seed in orders:
        (got,), _ = run_on_emulator(module.portable_artefact, "mm", arrays, landing=landing, order=order, seed=seed)
        found.add(got.tobytes())
    assert len(found) == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("barrier.cluster.wait.acquire.aligned;", "without order after its initialisation|no mbarrier was initialised"),
        ("mbarrier.arrive.expect_tx", "deadlock|arrivals|expects"),
    ],
)
def test_a_missing_event_is_seen(line: str, words: str):
    """Of the exchange, not of the ring: its `expect_tx` is the first one in the text of the consumer."""
    from emmy.emulator import Emulator

    module = emmy.compile(text(64, 64, 512, "f16", False), "sm_90a", schedule=SCHEDULE)
    lines = module.ptx.splitlines()
    number = next(i for i, one in enumerate(lines) if line in one)
    broken = "\n".join(lines[:number] + lines[number + 1 :])
    artefact = module.portable_artefact
    seen = []
    for landing, order in (("late", "fixed"), ("late", "reversed"), ("early", "reversed"), ("random", "random")):
        try:
            emulated = run_on_emulator(_with_text(artefact, broken), "mm", operands(), landing=landing, order=order)
        except EmulatorError as error:
            seen.append(str(error))
        else:
            assert emulated
    assert Emulator(broken).programs
    assert any(any(word in message for word in words.split("|")) for message in seen), seen


def _with_text(artefact, ptx: str):
    from dataclasses import replace

    from emmy.artefact import Image

    return replace(artefact, images={name: Image(ptx) for name in artefact.images}, supply=None)


@pytest.mark.parametrize(
    ("changes", "target", "words"),
    [
        ({"split_k": 3}, "sm_90a", "split_k is 1, 2, 4 or 8"),
        ({"block": [64, 48, 64], "split_k": 2}, "sm_90a", "in multiples of 16"),
        ({"atom": "m16n8k16", "warps": [2, 2]}, "sm_90a", "one warp holds a whole row"),
        ({"persistent": 1}, "sm_90a", "persistent = 0"),
        ({"atom": "m16n8k16", "roles": "unified"}, "sm_80", "needs sm_90 or later, and the target is sm_80"),
        ({"atom": "m16n8k16", "roles": "unified"}, "sm_89", "needs sm_90 or later, and the target is sm_89"),
    ],
)
def test_what_cannot_be_split(changes: dict[str, object], target: str, words: str):
    with pytest.raises(EmmyError, match=words):
        emmy.compile(text(64, 64, 512, "f16", False), target, schedule={**SCHEDULE, **changes})


def test_other_policies_are_refused():
    with pytest.raises(EmmyError, match="adds up f32 sums"):
        emmy.compile(
            text(64, 64, 512, "f16", False),
            "sm_90a",
            accumulate="hybrid",
            schedule={**SCHEDULE, "atom": "m16n8k16", "roles": "unified"},
        )
