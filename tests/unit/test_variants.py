"""Variants of kernels: which one a call takes, what it says of those passed over, and when it is compiled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import emmy
from emmy.artefact import ArrayInfo, Artefact, NoVariant, bind, run_on_emulator
from emmy.compiler import CompiledModule
from emmy.emulated_calls import Placed, numpy_info
from emmy.errors import EmmyError
from emmy.launch_specs import MAX_SIZE
from emmy.report import show_choice
from emmy.schedules import Schedule
from emmy.variants import VARIANTS, Lying, fitting, parse_variants, schedule_of

TEXT = """func.func @mm(%a: tensor<?x?xf16>, %b: tensor<?x?xf16>) -> tensor<?x?xf16> {
  %c = tensor_op.matmul %a, %b transpose_b : (tensor<?x?xf16>, tensor<?x?xf16>) -> tensor<?x?xf16>
  func.return %c : tensor<?x?xf16>
}
"""
STATIC = TEXT.replace("?x?", "64x64")
M, N, K = 24, 16, 32


@pytest.fixture(scope="module")
def module() -> CompiledModule:
    return emmy.compile(TEXT, "sm_90a")


def info(shape: tuple[int, ...], strides: tuple[int, ...], address: int = 0) -> ArrayInfo:
    return ArrayInfo("f16", shape, strides, address)


B = info((N, K), (K, 1))


@pytest.mark.parametrize(
    ("a", "variant"),
    [
        (info((M, K), (K, 1)), "dense"),
        (info((M, K), (K + 8, 1)), "rows16"),
        (info((M, K), (K, 1), 8), "rows8"),
        (info((M, K), (K + 2, 1)), "rows4"),
        (info((M, K), (K + 1, 1)), "rows2"),
        (info((M, K), (2 * K, 2)), "any"),
        (info((M, K), (1, M)), "rows16_ta"),
        (info((M, K), (1, M + 4)), "rows8_ta"),
        (info((M, K), (1, M), 2), "rows2_ta"),
        (info((1, K), (999, 1)), "dense"),  # the stride of a single row does not matter
        (info((M, K), (0, 1)), "rows8"),  # one row again and again: TMA does not take a stride of 0
        (info((0, K), (7, 3), 6), "dense"),
    ],
)
def test_a_call_takes_the_first_variant_that_fits(module: CompiledModule, a: ArrayInfo, variant: str):
    call = module.portable_artefact.bind("mm", [a, B])
    for launch in call.launches:
        assert launch.variant == variant
        assert launch.kernel == f"mm_kernel_{variant}" or variant == "dense"


def test_sizes_that_are_no_multiples_take_another_variant(module: CompiledModule):
    for k, variant in ((12, "rows8"), (6, "rows4"), (7, "rows2")):
        (launch,) = module.portable_artefact.bind("mm", [info((8, k), (k, 1)), info((8, k), (k, 1))]).launches
        assert launch.kernel == f"mm_kernel_{variant}"
        assert launch.passed_over[0][1] == f"dimension 1 of 'a' must be a multiple of 8 (it is {k})"


def test_results_of_the_caller_choose_too(module: CompiledModule):
    for out, variant in (
        (info((M, N), (N, 1)), "dense"),
        (info((M, N), (N + 8, 1)), "rows16"),
        (info((M, N), (N, 1), 4), "rows4"),
        (info((M, N), (1, M)), "any"),
    ):
        call = module.portable_artefact.bind("mm", [info((M, K), (K, 1)), B], outs=[out])
        assert call.launches[0].variant == variant
    with pytest.raises(EmmyError, match="several elements of it share one place"):
        module.portable_artefact.bind("mm", [info((M, K), (K, 1)), B], outs=[info((M, N), (0, 1))])


@pytest.mark.parametrize(
    ("a", "words"),
    [
        (info((M, K), (-K, 1)), "negative ones are not supported"),
        (info((M, K), (K, 1), 1), "must be a multiple of 2 bytes"),
        (info((MAX_SIZE + 1, K), (K, 1)), f"a dimension has at most {MAX_SIZE} elements"),
    ],
)
def test_what_no_variant_takes_is_one_sentence(module: CompiledModule, a: ArrayInfo, words: str):
    with pytest.raises(EmmyError, match=words):
        module.portable_artefact.bind("mm", [a, B])


def test_variants_are_compiled_when_a_call_needs_them():
    artefact = emmy.compile(TEXT, "sm_90a").portable_artefact
    artefact.bind("mm", [info((M, K), (K, 1)), B])
    assert artefact.supplied == {"dense"}
    artefact.bind("mm", [info((M, K), (2 * K, 2)), B])
    assert artefact.supplied == {"dense", "any"}
    # A general variant is there; the better one is compiled all the same, and comes first.
    artefact.bind("mm", [info((M, K), (K + 8, 1)), B])
    (launch,) = artefact.entry("mm")["launches"]
    added = [one["variant"] for one in launch["otherwise"] if one["variant"] != "dense"]
    assert added == ["rows16", "any"]
    assert set(artefact.images) == {"kernels", "kernels_any", "kernels_rows16"}


def test_a_saved_artefact_takes_any_call(tmp_path: Path):
    emmy.compile(STATIC, "sm_80").artefact.save(tmp_path / "static")
    loaded = Artefact.load(tmp_path / "static")
    kernels = [one["kernel"] for one in loaded.entry("mm")["launches"][0].get("otherwise", [])]
    assert kernels == ["mm_kernel_rows16", "mm_kernel_any"]
    a, b = (np.arange(64 * 65, dtype=np.float16).reshape(64, 65)[:, 1:] % 5 for _ in range(2))
    (c,), _ = run_on_emulator(loaded, "mm", [a, b.T])
    assert np.array_equal(c, (a.astype(float) @ b.astype(float)).astype(np.float16))


def test_text_below_level_1_has_no_variants():
    module = emmy.compile(emmy.compile(STATIC, "sm_80").ir("tile"), "sm_80")
    with pytest.raises(NoVariant, match=r"argument 'a' has strides \(72, 1\) \(in elements\); expected \(64, 1\)"):
        module.portable_artefact.bind("mm", [info((64, 64), (72, 1)), info((64, 64), (64, 1))])


def test_text_with_all_variants_runs_at_level_2_and_on_the_emulator():
    module = emmy.compile(STATIC, "sm_80", variants="dense, rows16, any")
    assert "tile.dispatch [@mm_kernel[" in module.ir("tile")
    from emmy.interpreters import level2
    from emmy.ir import parse_module

    text = parse_module(module.ir("tile"), "t.mlir")
    whole = (np.arange(64 * 80, dtype=np.float16) % 3).reshape(64, 80)
    for a in (whole[:, :64].copy(), whole[:, :64], whole[:, 3:67]):
        (c,) = level2.run_module(text, "mm", [a, a])
        assert np.array_equal(c, module.mm(a, a, device="emulator"))
        assert np.array_equal(c, (a.astype(float) @ a.astype(float).T).astype(np.float16))


def test_the_report_says_what_each_kernel_takes(module: CompiledModule):
    (line,) = show_choice(module.portable_artefact.bind("mm", [info((M, K), (K + 8, 1)), B]))
    assert line.startswith("mm_kernel_rows16, not mm_kernel")
    assert line.count("has strides (40, 1) (in elements); expected (32, 1)") == 1  # of all dense kernels


def test_names_of_variants():
    assert parse_variants("any, dense") == ("dense", "any")
    assert parse_variants("all") == tuple(VARIANTS)
    with pytest.raises(EmmyError, match="there is no variant 'rows3'; there are dense, rows16"):
        parse_variants("rows3")
    with pytest.raises(EmmyError, match="no variant is named"):
        parse_variants("")
    with pytest.raises(EmmyError, match="'all' stands alone"):
        parse_variants("all, any")


def test_fitting_is_about_all_tensors():
    a, b = Lying((8, 64), (64, 1), 0, 2), Lying((64, 8), (8, 1), 4, 2)
    assert fitting([a, b]) == ("rows4", "rows2", "any")
    assert fitting([a, Lying((8, 1), (3, 2), 2, 2, single=True)])[0] == "rows16"


def test_schedules_of_variants():
    tuned = Schedule(block=(128, 256, 64), warps=(2, 4), stages=4, roles="specialized", unroll=2, delay=0)
    assert schedule_of(VARIANTS["rows16_ta"], tuned, False) is tuned
    for name, block in (("rows8", (128, 128, 64)), ("any", (64, 128, 64))):
        own = schedule_of(VARIANTS[name], tuned, True)
        assert (own.block, own.transport, own.roles, own.stages) == (block, "cp_async", "unified", 3)
        assert own.problem() is None
    small = schedule_of(VARIANTS["rows2"], Schedule(block=(16, 16, 16), warps=(1, 1)), False)
    assert (small.block, small.warps, small.problem()) == ((16, 16, 16), (1, 1), None)


def test_arrays_are_placed_as_they_lie():
    memory = np.full(400, 7, np.float16)
    start = -(memory.ctypes.data // 2) % 8 + 3
    array = memory[start : start + 160].reshape(10, 16)[:, 2:12:2]
    array[...] = 1
    placed = Placed.copy(array)
    assert placed.offset % 16 == array.ctypes.data % 16
    assert placed.array.strides == array.strides
    assert np.array_equal(placed.array, array)
    everything = placed.memory[placed.offset :].view(np.float16)
    assert np.isnan(everything).sum() == everything.size - array.size
    around = Placed.around(array)
    assert np.isnan(around.array).all()
    assert (around.memory[around.offset :].view(np.float16) == 7).sum() == everything.size - array.size


def test_bind_alone_says_what_is_wrong(module: CompiledModule):
    entry = emmy.compile(STATIC, "sm_80").portable_artefact.entry("mm")
    with pytest.raises(NoVariant, match=r"argument 'b' has strides \(1, 64\)"):
        bind(entry, [numpy_info(np.zeros((64, 64), np.float16)), info((64, 64), (1, 64))])
