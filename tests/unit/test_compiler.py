"""`emmy.compile`: sources, options, stages, artefacts, calls."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

import emmy
from emmy.artefact import Artefact, run_on_emulator
from emmy.assemble import find_tool
from emmy.compilation import lower
from emmy.compiler import CompiledModule, Options, default_target
from emmy.errors import EmmyError
from emmy.ir import Verifier, parse_module, print_module
from emmy.options import schedule_options
from emmy.pipelines import LEVELS, PIPELINES, level_of, pipeline_for
from emmy.registry import parse_passes
from emmy.schedules import Schedule
from emmy.targets import TARGETS
from emmy.tools import opt

MATMUL = """func.func @mm(%a: tensor<?x64xf16>, %b: tensor<64x64xf16>) -> tensor<?x64xf16> {
  %c = tensor_op.matmul %a, %b transpose_b : (tensor<?x64xf16>, tensor<64x64xf16>) -> tensor<?x64xf16>
  func.return %c : tensor<?x64xf16>
}
"""
SCHEDULE = {"block": (64, 64, 32), "warps": (2, 1), "stages": 2}


@pytest.fixture(scope="module")
def module() -> CompiledModule:
    return emmy.compile(MATMUL, "sm_90a", schedule=SCHEDULE)


def integers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-2, 3, shape).astype(np.float16)


# ---- calling ---------------------------------------------------------------------------------------------------------


def test_a_call_on_the_emulator(module: CompiledModule):
    a, b = integers(64, 64), integers(64, 64)
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    result = module.mm(a, b, device="emulator")
    assert result.dtype == np.float16
    assert np.array_equal(result, expected)
    out = np.empty((64, 64), np.float16)
    assert module["mm"](a, b, device="emulator", out=out) is out
    assert np.array_equal(out, expected)


def test_one_artefact_serves_all_sizes(module: CompiledModule):
    b = integers(64, 64)
    for rows in (0, 1, 63, 65, 129):
        a = integers(rows, 64)
        assert np.array_equal(module.mm(a, b, device="emulator"), a.astype(np.float64) @ b.astype(np.float64).T)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((integers(64, 64),), {}, "1 arguments given; expected 2"),
        ((integers(64, 32), integers(64, 64)), {}, "'a' has shape"),
        ((integers(64, 64).astype(np.float32), integers(64, 64)), {}, "'a' has dtype f32"),
        (([1.0], integers(64, 64)), {}, "takes NumPy arrays, got a list"),
        ((integers(64, 64), integers(64, 64)), {"out": np.empty((2, 2), np.float16)},
         r"out is f16 of shape \(2, 2\); expected f16 of shape \(64, 64\)"),
        ((integers(64, 64), integers(64, 64)), {"stream": 7}, "no streams"),
        ((integers(64, 64), integers(64, 64)), {"device": "gpu"}, "device is one of auto, cuda, cuda:N, emulator, got 'gpu'"),
    ],
)  # fmt: skip
def test_calls_that_break_the_contract(module: CompiledModule, arguments: tuple, options: dict, words: str):
    with pytest.raises(EmmyError, match=words):
        module.mm(*arguments, **{"device": "emulator", **options})


def test_unknown_functions(module: CompiledModule):
    with pytest.raises(AttributeError, match="no function 'nn'"):
        _ = module.nn
    with pytest.raises(EmmyError, match="no entry 'nn'"):
        _ = module["nn"]
    assert module.entries == ("mm",)
    assert "mm" in dir(module)


def test_several_functions_in_one_module():
    text = MATMUL + MATMUL.replace("@mm", "@nn").replace(" transpose_b", "")
    both = emmy.compile(text, "sm_90a", schedule=SCHEDULE)
    assert both.entries == ("mm", "nn")
    a, b = integers(64, 64), integers(64, 64)
    assert np.array_equal(both.nn(a, b, device="emulator"), a.astype(np.float64) @ b.astype(np.float64))
    assert emmy.compile(text, "sm_90a", entry="nn").entries == ("nn",)
    with pytest.raises(EmmyError, match="no function 'oo'; it has mm, nn"):
        emmy.compile(text, "sm_90a", entry="oo")


# ---- reading it ------------------------------------------------------------------------------------------------------


def test_every_stage_can_be_read_back(module: CompiledModule):
    for stage in ("input", *LEVELS, *module.steps):
        text = module.ir(stage)
        assert print_module(parse_module(text, stage)) == text
    assert "emmy.schedule" in module.ir("tensor_op")
    assert "tile.dot" in module.ir("tile")
    assert "mma.mma" in module.ir("level3")
    assert "ptx.kernel" in module.ir("ptx")
    assert "async_copy.producer" in module.ir("lower-tile")
    assert ".target sm_90a" in module.ptx
    with pytest.raises(EmmyError, match="no stage 'nowhere'; there are input, tensor_op, tile, level3, ptx"):
        module.ir("nowhere")


BELOW_LEVEL_1 = [step.name for step in pipeline_for("sm_90a") if step.level != "tensor_op"]


@pytest.mark.parametrize("stage", BELOW_LEVEL_1)
def test_compilation_may_begin_at_any_stage(module: CompiledModule, stage: str):
    """The text of any stage, compiled, gives the same kernel."""
    again = emmy.compile(module.ir(stage), "sm_90a")
    assert again.ptx == module.ptx
    a, b = integers(64, 64), integers(64, 64)
    assert np.array_equal(again.mm(a, b, device="emulator"), module.mm(a, b, device="emulator"))


def test_emmy_opt_runs_the_same_pipeline(module: CompiledModule, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "mm.mlir"
    path.write_text(module.ir("tensor_op"))
    passes = ",".join(step.spec for step in pipeline_for("sm_90a")[1:])
    assert opt.main([str(path), "-p", passes, "--target", "sm_90a", "-t", "ptx"]) == 0
    assert capsys.readouterr().out == module.ptx


def test_dump_ir(tmp_path: Path):
    emmy.compile(MATMUL, "sm_90a", dump_ir=tmp_path / "dump")
    names = sorted(path.name for path in (tmp_path / "dump").iterdir())
    assert names[:2] == ["00_input.mlir", "01_assign-schedule.mlir"]
    assert names[-1].endswith("_kernels.ptx")
    assert len(names) == len(pipeline_for("sm_90a")) + 2
    (tmp_path / "file").write_text("")
    with pytest.raises(EmmyError, match="cannot create"):
        emmy.compile(MATMUL, "sm_90a", dump_ir=tmp_path / "file")


# ---- artefacts -------------------------------------------------------------------------------------------------------


def test_the_artefact_runs_without_the_compiler(module: CompiledModule, tmp_path: Path):
    module.artefact.save(tmp_path / "mm")
    loaded = Artefact.load(tmp_path / "mm")
    a, b = integers(64, 64), integers(64, 64)
    results, reports = run_on_emulator(loaded, "mm", [a, b])
    assert np.array_equal(results[0], a.astype(np.float64) @ b.astype(np.float64).T)
    assert sum(report.total_bank_conflicts for report in reports) == 0
    entry = loaded.entry("mm")
    assert entry["launches"][0]["wants"]["a"] == {"align": 16}
    assert entry.get("work", {})["flops"] == ["mul", 8192, ["dim", "a", 0]]


@pytest.mark.skipif(find_tool("ptxas") is None, reason="ptxas is not installed")
@pytest.mark.parametrize("target", TARGETS)
def test_every_target_assembles(target: str):
    module = emmy.compile(MATMUL, target)
    (image,) = module.artefact.images.values()
    assert image.cubin is not None
    assert image.cubin[:4] == b"\x7fELF"
    assert all(used["spill_store_bytes"] == 0 for used in module.artefact.resources.values())


@pytest.mark.skipif(find_tool("ptxas") is None, reason="ptxas is not installed")
def test_kernels_of_different_optimisation_levels_are_in_different_images():
    pinned = "{emmy.schedule = #tile.schedule<block = [64, 64, 32], warps = [2, 1], stages = 2, opt_level = 1>} :"
    text = MATMUL + MATMUL.replace("@mm", "@nn").replace("transpose_b :", f"transpose_b {pinned}")
    module = emmy.compile(text, "sm_90a", schedule={**SCHEDULE, "opt_level": 3})
    assert {image: level for image, (level, _) in module.images.items()} == {"kernels_O3": 3, "kernels_O1": 1}
    assert module.image_ptx("kernels_O1").count(".entry") == 1
    assert all(image.cubin for image in module.artefact.images.values())
    a, b = integers(64, 64), integers(64, 64)
    assert np.array_equal(module.mm(a, b, device="emulator"), module.nn(a, b, device="emulator"))
    assert len(emmy.compile(text, "sm_90a", opt_level=2).images) == 1


# ---- options ---------------------------------------------------------------------------------------------------------


def test_schedule_overrides_single_fields():
    module = emmy.compile(MATMUL, "sm_90a", schedule={"stages": 2, "block": (64, 64, 64), "warps": [2, 2]})
    assert "block = [64, 64, 64], warps = [2, 2], stages = 2" in module.ir("tile")
    whole = emmy.compile(MATMUL, "sm_90a", schedule=Schedule(block=(64, 64, 32), warps=(2, 2), stages=4))
    assert "block = [64, 64, 32], warps = [2, 2], stages = 4" in whole.ir("tile")


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ({"stage": 2}, "no field 'stage'"),
        ({"block": (64, 64)}, "block is 3 positive numbers"),
        ({"stages": 99}, "the schedule's stages is from 1 to 16, got 99"),
        ({"stages": "many"}, "the schedule's stages is a whole number, got 'many'"),
        ({"block": (4096, 4096, 64)}, "illegal schedule"),
        ({"transport": "pigeon"}, "transport is one of auto, cp_async, plain, tma, got 'pigeon'"),
    ],
)  # fmt: skip
def test_bad_schedules(schedule: dict, words: str):
    with pytest.raises(EmmyError, match=words):
        emmy.compile(MATMUL, "sm_90a", schedule=schedule)


def test_schedule_options_are_pass_options():
    fields = {"block": (64, 128, 32), "transport": "cp_async", "stages": 2}
    (one,) = parse_passes(f"assign-schedule{{{' '.join(schedule_options(fields))}}}")
    names = ("block_m", "block_n", "block_k", "transport", "stages")
    assert [getattr(one, name) for name in names] == [64, 128, 32, "cp_async", 2]


def test_the_accumulation_policy():
    assert "accumulate<f16>" in emmy.compile(MATMUL, "sm_90a", accumulate="f16").ir("tile")
    with pytest.raises(EmmyError, match=r"'f17' is no accumulation policy: accumulate is one of f32, f16, hybrid"):
        emmy.compile(MATMUL, "sm_90a", accumulate="f17")
    with pytest.raises(EmmyError, match="no accumulation policy"):
        emmy.compile(MATMUL, "sm_90a", accumulate="f16> {")


def test_targets():
    assert default_target() in TARGETS
    assert set(PIPELINES) == set(TARGETS)
    for target in ("sm_10", "sm_90"):
        with pytest.raises(EmmyError, match=target):
            emmy.compile(MATMUL, target)


# ---- sources and errors ----------------------------------------------------------------------------------------------


def test_sources(tmp_path: Path):
    path = tmp_path / "mm.mlir"
    path.write_text(MATMUL)
    assert emmy.compile(path, "sm_80").ptx == emmy.compile(str(path), "sm_80").ptx == emmy.compile(MATMUL, "sm_80").ptx
    with pytest.raises(EmmyError, match=r"cannot read 'absent.mlir': no such file"):
        emmy.compile("absent.mlir")


def test_errors_carry_place_and_line(tmp_path: Path):
    path = tmp_path / "bad.mlir"
    path.write_text(MATMUL.replace("64x64xf16>) ->", "64x48xf16>) ->"))
    with pytest.raises(EmmyError, match=r"bad.mlir:2:\d+: error: ") as caught:
        emmy.compile(path)
    note = "\n".join(caught.value.__notes__)
    assert "%c = tensor_op.matmul" in note
    assert note.endswith("^")


def test_a_pass_that_fails_names_itself():
    text = MATMUL.replace("transpose_b", "transpose_b {emmy.schedule = 1 : i64}")
    with pytest.raises(EmmyError, match=r"<text>:2:3: error: emmy.schedule is a #tile.schedule"):
        emmy.compile(text, "sm_90a")


def test_the_collector_is_left_as_it_was():
    assert gc.isenabled()
    emmy.compile(MATMUL, "sm_90a")
    assert gc.isenabled()
    with pytest.raises(EmmyError):
        emmy.compile("nonsense {", "sm_90a")
    assert gc.isenabled()
    gc.disable()
    try:
        emmy.compile(MATMUL, "sm_90a")
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_locations_survive_to_level_4():
    """Every op of the kernel still knows the line of the text that it stands for."""
    lowered = lower(MATMUL, "mm.mlir", Options("sm_90a")).module
    kernel = next(op for op in lowered.body.block.ops if op.name == "ptx.kernel")
    lines = [getattr(getattr(op.location, "line", None), "data", None) for op in kernel.walk()]
    assert set(lines) == {2}


def test_the_level_of_a_module(module: CompiledModule):
    levels = {stage: level_of(parse_module(module.ir(stage), stage)) for stage in ("input", *LEVELS)}
    assert levels == {"input": "tensor_op", "tensor_op": "tensor_op", "tile": "tile", "level3": "level3", "ptx": "ptx"}


def test_what_has_changed_is_verified_again():
    parsed = parse_module(MATMUL, "mm.mlir")
    verify = Verifier(parsed)
    verify()
    verify()
    product = next(op for op in parsed.walk() if op.name == "tensor_op.matmul")
    product.operands[0] = product.operands[1]
    with pytest.raises(EmmyError, match=r"gives 64x64, not \?x64"):
        verify()
