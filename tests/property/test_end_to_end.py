"""A product through all levels: for any shape, transposition, dtype, schedule, target, landing time and warp order, the
interpreters of every level and the emulator give the same bits on small integers."""

from __future__ import annotations

from dataclasses import dataclass
from unittest.mock import patch

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import emmy
from emmy.artefact import Array, run_on_emulator
from emmy.interpreters import level1, level2, level3
from emmy.ir import parse_module
from emmy.schedule_limits import AUTO_TRANSPORT
from emmy.targets import TARGETS, get_target

DTYPES = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16), "f32": np.dtype(np.float32)}
TYPES = (("f16", "f16"), ("f16", "f32"), ("bf16", "bf16"), ("bf16", "f32"))


@dataclass(frozen=True)
class Product:
    """C = A * B as level-1 text, and its arguments."""

    m: int
    n: int
    k: int
    operand: str
    result: str
    policy: str
    transpose_a: bool
    transpose_b: bool
    batch: tuple[int, ...]
    dynamic: bool

    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        a = (self.k, self.m) if self.transpose_a else (self.m, self.k)
        b = (self.n, self.k) if self.transpose_b else (self.k, self.n)
        return (*self.batch, *a), (*self.batch, *b), (*self.batch, self.m, self.n)

    def text(self) -> str:
        def tensor(shape: tuple[int, ...], dtype: str) -> str:
            sizes = ["?"] * len(shape) if self.dynamic else map(str, shape)
            return f"tensor<{'x'.join(sizes)}x{dtype}>"

        a, b, c = (tensor(s, d) for s, d in zip(self.shapes(), (self.operand, self.operand, self.result), strict=True))
        flags = " transpose_a" * self.transpose_a + " transpose_b" * self.transpose_b
        return (
            f"func.func @mm(%a: {a}, %b: {b}) -> {c} {{\n"
            f"  %c = tensor_op.matmul %a, %b{flags} accumulate<{self.policy}> : ({a}, {b}) -> {c}\n"
            f"  func.return %c : {c}\n}}\n"
        )

    def arguments(self, seed: int) -> list[Array]:
        generator = np.random.default_rng(seed)
        return [generator.integers(-2, 3, shape).astype(DTYPES[self.operand]) for shape in self.shapes()[:2]]


@st.composite
def products(draw: st.DrawFn) -> Product:
    operand, result = draw(st.sampled_from(TYPES))
    policy = draw(st.sampled_from(("f32", "f16"))) if operand == "f16" else "f32"
    size = st.one_of(st.sampled_from((0, 1, 8, 63, 64, 65)), st.integers(1, 150))
    return Product(
        m=draw(size),
        n=draw(size),
        k=draw(size),
        operand=operand,
        result=result,
        policy=policy,
        transpose_a=draw(st.booleans()),
        transpose_b=draw(st.booleans()),
        batch=draw(st.sampled_from(((), (), (2,), (0,), (1, 2)))),
        dynamic=draw(st.booleans()),
    )


TILES = (
    ((64, 64, 32), (1, 1)),
    ((64, 64, 32), (2, 2)),
    ((32, 64, 64), (1, 2)),
    ((64, 32, 16), (2, 1)),
    ((96, 80, 48), (3, 1)),
    ((96, 80, 48), (2, 1)),
    ((128, 64, 32), (2, 2)),
)
"""(block, warps): several sizes that are no powers of two."""

OTHER_FIELDS = {
    "stages": st.integers(1, 4),
    "raster": st.sampled_from((1, 2, 8)),
    "fragments": st.sampled_from((1, 2)),
    "epilogue": st.sampled_from(("shared", "direct")),
    "transport": st.sampled_from(("auto", "cp_async", "plain", "tma")),
    "roles": st.sampled_from(("unified", "specialized")),
    "producer_warps": st.sampled_from((1, 4)),
    "persistent": st.integers(0, 1),
    "sites": st.sampled_from(("eager", "first")),
    "delay": st.integers(0, 4),
    "prefetch": st.integers(0, 1),
}

SCHEDULES = st.builds(
    lambda tile, rest: {"block": tile[0], "warps": tile[1], **rest},
    st.sampled_from(TILES),
    st.fixed_dictionaries(OTHER_FIELDS),
)

RUNS = st.fixed_dictionaries(
    {
        "landing": st.sampled_from(("late", "early", "random")),
        "order": st.sampled_from(("fixed", "reversed", "random")),
        "seed": st.integers(0, 1000),
    }
)


@settings(max_examples=60)
@given(product=products(), schedule=SCHEDULES, target=st.sampled_from(sorted(TARGETS)), how=RUNS)
def test_every_level_gives_the_same_bits(product: Product, schedule: dict, target: str, how: dict):
    arguments = product.arguments(how["seed"])
    # Any size may be drawn, so TMA moves what it can, as it does by default on a target that prefers it.
    preferred = "tma" if schedule["transport"] == "tma" and get_target(target).tma else "cp_async"
    schedule = schedule | {"transport": schedule["transport"].replace("tma", "auto")}
    with patch.dict(AUTO_TRANSPORT, {target: preferred}):
        module = emmy.compile(product.text(), target, schedule=schedule)
        check_levels(product, module, arguments, how)


def check_levels(product: Product, module: emmy.CompiledModule, arguments: list[Array], how: dict) -> None:
    """All levels give the reference's result."""
    (expected,) = level1.run(parse_module(product.text(), "input"), "mm", arguments, "policy")
    assert expected.shape == product.shapes()[2]

    def check(level: str, results: list[Array]) -> None:
        assert results[0].dtype == expected.dtype, level
        wrong = np.count_nonzero(results[0].astype(np.float64) != expected.astype(np.float64))
        assert wrong == 0, f"{level}: {wrong} of {expected.size} wrong"

    check("level 2", level2.run_module(parse_module(module.ir("tile"), "tile"), "mm", arguments))
    for stage in ("double-buffer-fragments", "place-roles", "level3"):
        check(stage, level3.run_module(parse_module(module.ir(stage), stage), "mm", arguments, **how))
    results, _ = run_on_emulator(module.portable_artefact, "mm", arguments, **how)
    check("PTX", results)


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("trips", [0, 1, 2, 3, 4])
def test_trip_counts_around_the_number_of_stages(stages: int, trips: int):
    """The corner where pipelines break: no more k-blocks than stages."""
    product = Product(64, 64, 32 * trips, "f16", "f32", "f32", False, True, (), True)
    schedule = {"block": (64, 64, 32), "warps": (1, 1), "stages": stages}
    arguments = product.arguments(0)
    expected = arguments[0].astype(np.float64) @ arguments[1].astype(np.float64).T
    module = emmy.compile(product.text(), "sm_90a", schedule=schedule)
    for landing in ("late", "early", "random"):
        (result,), _ = run_on_emulator(module.portable_artefact, "mm", arguments, landing=landing)
        assert np.array_equal(result, expected)


SHIFTED = {
    "rows of a load": ("tile.load %a[%m, %k]", "tile.load %a[%moved, %k]", "%m"),
    "columns of a load": ("tile.load %a[%m, %k]", "tile.load %a[%m, %moved]", "%k"),
    "rows of a store": ("%c[%m, %n]", "%c[%moved, %n]", "%m"),
    "columns of a store": ("%c[%m, %n]", "%c[%m, %moved]", "%n"),
}


@pytest.mark.parametrize("by", [1, 8])
@pytest.mark.parametrize("where", SHIFTED)
@pytest.mark.parametrize("how", [("cp_async", "shared"), ("plain", "direct")])
def test_a_tile_that_begins_anywhere_ends_at_the_views_bounds(how: tuple[str, str], where: str, by: int):
    """Text of level 2 may move a tile's window: whole tiles in the view's size say nothing about such tiles."""
    product = Product(64, 64, 64, "f16", "f16", "f32", False, True, (), False)
    schedule = {"block": (32, 32, 32), "warps": (1, 1), "stages": 2, "transport": how[0], "epilogue": how[1]}
    old, new, index = SHIFTED[where]
    lines = emmy.compile(product.text(), "sm_89", schedule=schedule).ir("tile").splitlines()
    at = next(number for number, line in enumerate(lines) if old in line)
    moved = [f"%by = arith.constant {by} : index", f"%moved = arith.addi {index}, %by : index"]
    text = "\n".join([*lines[:at], *moved, lines[at].replace(old, new), *lines[at + 1 :]])
    arguments = product.arguments(0)
    (expected,) = level2.run_module(parse_module(text, "edited"), "mm", arguments)
    module = emmy.compile(text, "sm_89")
    (result,), _ = run_on_emulator(module.portable_artefact, "mm", arguments)
    written = (slice(by * ("rows of a store" in where), None), slice(by * ("columns of a store" in where), None))
    assert np.array_equal(result[written], expected[written])
