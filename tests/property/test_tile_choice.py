"""Products of `?` sizes: each call takes the tile that a product of these sizes would have been compiled with, or one that the
table thinks no more than 2 % slower; at every level, from a saved artefact too, and whatever it takes it computes the product."""

from __future__ import annotations

import functools
import itertools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import emmy
from emmy.artefact import EMULATED_SMS, ArrayInfo, Artefact, BoundCall, run_on_emulator
from emmy.compiler import CompiledModule
from emmy.interpreters import level2
from emmy.interpreters.host import find_symbol, run_host
from emmy.ir import parse_module
from emmy.schedule_choice import WORTHWHILE, Product, choose_schedule, competing_schedules, timed
from emmy.schedules import Schedule
from emmy.targets import get_target

H200 = get_target("sm_90a")
SIX = (
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (4096, 15360, 3840),
    (4096, 3840, 15360),
    (2048, 2048, 2048),
    (512, 15360, 3840),
)
"""M, N, K of the shapes of docs/."""


@functools.cache
def product(m: int | str, n: int | str, k: int | str, batch: str = "", policy: str = "f32") -> CompiledModule:
    a, b, c = (f"tensor<{batch}{rows}x{columns}xf16>" for rows, columns in ((m, k), (n, k), (m, n)))
    text = (
        f"func.func @mm(%a: {a}, %b: {b}) -> {c} {{\n"
        f"  %c = tensor_op.matmul %a, %b transpose_b : ({a}, {b}) -> {c}\n"
        f"  func.return %c : {c}\n}}\n"
    )
    return emmy.compile(text, "sm_90a", accumulate=policy)


def call_of(artefact: Artefact, m: int, n: int, k: int, sms: int = H200.sms) -> BoundCall:
    return artefact.bind("mm", [ArrayInfo("f16", (m, k)), ArrayInfo("f16", (n, k))], sms)


def schedule_of_call(artefact: Artefact, m: int, n: int, k: int) -> Schedule:
    (launch,) = call_of(artefact, m, n, k).launches
    fields = artefact.kernels[launch.kernel]["schedule"]
    return Schedule(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})


def time_of(schedule: Schedule, m: int, n: int, k: int) -> int:
    """By the row of the table that the schedule is."""
    plain = replace(schedule, raster=Schedule().raster, evict="none")  # which known rows may change, and known sizes
    (row,) = [row for row in Product(m, n, k=k).kept(H200) if replace(row.schedule, raster=plain.raster) == plain]
    return timed(schedule, row).time(m, n, 1, k, H200.sms)


@pytest.mark.parametrize(("m", "n", "k"), SIX)
def test_the_six_shapes_take_the_static_tile(m: int, n: int, k: int):
    """Of the same time by the table: 8192 x 8192 has tiles of 192 columns in static and `?` kernels alike."""
    static = choose_schedule(H200, Product(m, n, k=k))
    # Whether all CTAs run at once is known of known sizes only.
    assert schedule_of_call(product("?", "?", "?").portable_artefact, m, n, k) == replace(static, evict="none")
    own = schedule_of_call(product("?", n, k).portable_artefact, m, n, k)
    assert time_of(own, m, n, k) <= WORTHWHILE * time_of(static, m, n, k)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 20000),
    st.integers(1, 20000).map(lambda n: 8 * -(-n // 8)),
    st.integers(8, 20000).map(lambda k: 8 * -(-k // 8)),
)
def test_a_call_takes_the_tile_of_the_static_choice(m: int, n: int, k: int):
    """The least time of those that compete; the static choice itself, if that competes."""
    artefact = product("?", "?", "?").portable_artefact
    competing = competing_schedules(H200, Product(None, None))
    best = min(competing, key=lambda one: one.time(m, n, 1, k, H200.sms)).schedule
    assert schedule_of_call(artefact, m, n, k) == best
    static = replace(choose_schedule(H200, Product(m, n, k=k)), evict="none")
    if static in [one.schedule for one in competing]:
        assert best == static


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 16384), st.sampled_from([(4096, 3840), (512, 3840), (3840, 15360)]))
def test_rows_that_are_open(m: int, sizes: tuple[int, int]):
    """The projections of a model: the number of tokens is `?`, all else is known."""
    schedule = schedule_of_call(product("?", *sizes).portable_artefact, m, *sizes)
    static = choose_schedule(H200, Product(m, sizes[0], k=sizes[1]))
    assert time_of(schedule, m, *sizes) <= WORTHWHILE * time_of(static, m, *sizes)


def test_waves_are_those_of_the_device():
    """66 tiles of 128 x 256 are half a wave of 132 multiprocessors, and a whole one of 66."""
    artefact = product("?", "?", "?").portable_artefact
    kernels = {sms: call_of(artefact, 1408, 1536, 4096, sms).launches[0].kernel for sms in (132, 66, 1)}
    assert kernels[66] == "mm_kernel"
    assert kernels[132] != kernels[66]


K = 264


def boundaries(n: int, limit: int = 400) -> list[int]:
    """M beside which the choice changes, on the emulated device."""
    artefact = product("?", "?", "?").portable_artefact
    kernels = [call_of(artefact, m, n, K, EMULATED_SMS).launches[0].kernel for m in range(1, limit)]
    return [m for m, (one, next_) in enumerate(itertools.pairwise(kernels), 1) if one != next_]


@functools.cache
def saved(folder: Path) -> Artefact:
    product("?", "?", "?").artefact.save(folder / "mm")
    return Artefact.load(folder / "mm")


@pytest.mark.parametrize("n", [200, 264, 328])
def test_both_sides_of_every_boundary_compute_the_product(n: int, tmp_path_factory: pytest.TempPathFactory):
    """By a saved artefact, which has no compiler; the interpreter of level 2 takes the same kernel."""
    module, loaded = product("?", "?", "?"), saved(tmp_path_factory.getbasetemp())
    text = parse_module(module.ir("tile"), "t.mlir")
    rng, taken = np.random.default_rng(0), set[str]()
    for m in [m + more for m in boundaries(n) for more in (0, 1)]:
        a, b = rng.integers(-2, 3, (m, K)).astype(np.float16), rng.integers(-2, 3, (n, K)).astype(np.float16)
        (launch,) = call_of(module.portable_artefact, m, n, K, EMULATED_SMS).launches
        assert call_of(loaded, m, n, K, EMULATED_SMS).launches[0].kernel == launch.kernel
        run: list[str] = []
        run_host(text, "mm", [a, b], lambda kernel, arrays, ctas, run=run: run.append(kernel.sym_name.data))
        assert run == [launch.kernel]
        (c,), reports = run_on_emulator(loaded, "mm", [a, b])
        assert len(reports) == 1
        assert np.array_equal(c, (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float16))
        taken.add(launch.kernel)
    assert len(taken) > 2


@pytest.mark.parametrize("policy", ["f32", "f16", "hybrid"])
def test_every_kernel_of_a_module_computes_the_product(policy: str):
    """The one that is not chosen is tried by making it the quickest in the text of level 2."""
    module = product("?", 72, 64, policy=policy)
    text = module.ir("tile")
    names = re.findall(r"@(mm_kernel\w*)\[", text)
    assert len(names) > 1
    a, b = (np.random.default_rng(0).integers(-1, 2, (size, 64)).astype(np.float16) for size in (130, 72))
    for name in names:
        edited = re.sub(rf"(@{name}\[%\S+\] time) %\w+", r"\1 %none", text)
        edited = edited.replace(
            "    %sms = tile.sm_count", "    %none = arith.constant 0 : index\n    %sms = tile.sm_count"
        )
        chosen = emmy.compile(edited, "sm_90a")
        assert chosen.mm.choice(a, b)[0].startswith(f"{name}, not ")
        wanted = (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float16)
        assert np.array_equal(chosen.mm(a, b, device="emulator"), wanted)
        assert np.array_equal(level2.run_module(parse_module(edited, "t.mlir"), "mm", [a, b])[0], wanted)


@pytest.mark.parametrize("sizes", list(itertools.product((0, 40), repeat=3)))
def test_sizes_of_zero(sizes: tuple[int, int, int]):
    m, n, k = sizes
    a, b = np.ones((m, k), np.float16), np.ones((n, k), np.float16)
    result = product("?", "?", "?").mm(a, b, device="emulator")
    assert np.array_equal(result, np.full((m, n), k, np.float16))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 5), st.integers(1, 150), st.integers(1, 20).map(lambda n: 8 * n))
def test_batches(batch: int, m: int, n: int):
    module = product("?", "?", 64, batch="?x")
    rng = np.random.default_rng(batch)
    a, b = (rng.integers(-2, 3, (batch, size, 64)).astype(np.float16) for size in (m, n))
    expected = (a.astype(np.float64) @ b.astype(np.float64).swapaxes(1, 2)).astype(np.float16)
    assert np.array_equal(module.mm(a, b, device="emulator"), expected)


def test_known_sizes_and_pinned_schedules_have_one_kernel():
    assert len(product(64, 64, 64).portable_artefact.kernels) == 1
    assert len(product(4096, 4096, "?").portable_artefact.kernels) == 1
    text = product("?", "?", "?").text
    pinned = emmy.compile(text, "sm_90a", schedule={"block": (64, 64, 64), "warps": (4, 1), "stages": 3})
    assert list(pinned.portable_artefact.kernels) == ["mm_kernel"]


def test_the_schedules_that_compete_are_few_and_enough():
    """None can be left out, and no sampled size wants another one (`WORTHWHILE`)."""
    competing = competing_schedules(H200, Product(None, None))
    assert 1 < len(competing) <= 12
    assert len({(one.schedule.block, one.schedule.split_k) for one in competing}) == len(competing)
    for m, n in itertools.product((64, 512, 2048, 8192), repeat=2):
        best = min(one.time(m, n, 1, 4096, H200.sms) for one in competing)
        assert best <= WORTHWHILE * time_of(choose_schedule(H200, Product(m, n, k=4096)), m, n, 4096)


def test_the_report_names_the_times():
    report = emmy.compile(product("?", "?", "?").text, "sm_90a").report()
    assert all("SMs" in kernel.times[0] and "a call takes the one of" in kernel.reason for kernel in report.kernels)
    assert "the kernel whose time is least is launched" in str(report)


def test_edited_schedules_of_level_1_are_checked():
    text = product("?", 72, 64).ir("assign-schedule")
    with pytest.raises(emmy.EmmyError, match=r"illegal schedule: .* of shared memory"):
        emmy.compile(re.sub(r"stages = \d+(?=[^{]*step_time)", "stages = 16", text), "sm_90a")
    with pytest.raises(emmy.EmmyError, match="is a list of"):
        emmy.compile(re.sub(r"step_time = \d+ : index", "step_time = 0 : index", text), "sm_90a")
    assert find_symbol(parse_module(text, "t.mlir"), "mm") is not None
