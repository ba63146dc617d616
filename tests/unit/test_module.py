"""Modules without the compiler: artefacts that are loaded and called, and reports."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from two_kernels import smoke_artefact

import emmy
from emmy.artefact import Artefact, Image
from emmy.assemble import find_tool
from emmy.compiler import CompiledModule
from emmy.errors import EmmyError
from emmy.report import count_ptx, make_report, show_expression
from emmy.schedule_table import CANDIDATES
from emmy.tools import cli

MATMUL = """func.func @mm(%a: tensor<?x64xf16>, %b: tensor<192x64xf16>) -> tensor<?x192xf16> {
  %c = tensor_op.matmul %a, %b transpose_b : (tensor<?x64xf16>, tensor<192x64xf16>) -> tensor<?x192xf16>
  func.return %c : tensor<?x192xf16>
}
"""
SCHEDULE = {"block": (64, 64, 32), "warps": (2, 1), "stages": 2}
needs_ptxas = pytest.mark.skipif(find_tool("ptxas") is None, reason="ptxas is not installed")
needs_nvdisasm = pytest.mark.skipif(find_tool("nvdisasm") is None, reason="nvdisasm is not installed")


@pytest.fixture(scope="module")
def module() -> CompiledModule:
    return emmy.compile(MATMUL, "sm_90a", schedule=SCHEDULE)


def integers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-2, 3, shape).astype(np.float16)


# ---- ahead of time ---------------------------------------------------------------------------------------------------

WITHOUT_COMPILER = """
import sys
import numpy as np
import emmy
module = emmy.load(sys.argv[1])
a, b = np.load(sys.argv[2] + "/a.npy"), np.load(sys.argv[2] + "/b.npy")
np.save(sys.argv[2] + "/c.npy", module.mm(a, b, device="emulator"))
print(module.entries, "mm" in dir(module), str(module.report()).splitlines()[0])
print([name for name in ("xdsl", "emmy.compiler", "emmy.dialects", "cuda") if name in sys.modules])
"""


def test_an_artefact_is_called_without_the_compiler(module: CompiledModule, tmp_path: Path):
    module.artefact.save(tmp_path / "mm")
    a, b = integers(70, 64), integers(192, 64)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    command = [sys.executable, "-c", WITHOUT_COMPILER, str(tmp_path / "mm"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["('mm',) True for sm_90a", "[]"]
    assert np.array_equal(np.load(tmp_path / "c.npy"), a.astype(np.float64) @ b.astype(np.float64).T)


WITHOUT_XDSL = """
import sys
sys.modules["xdsl"] = None
import emmy
from emmy.tools import cli
assert cli.main(["cache", "path"]) == 1
assert cli.opt() == 1
emmy.compile("{")
"""


def test_a_python_without_xdsl_says_so():
    done = subprocess.run([sys.executable, "-c", WITHOUT_XDSL], capture_output=True, text=True, check=False)
    assert done.stderr.count("xDSL is not installed") == 3
    assert done.stderr.splitlines()[-1].startswith("emmy.errors.EmmyError: error: xDSL is not installed")


def test_a_function_says_which_kernel_a_call_takes(module: CompiledModule):
    a, b = integers(64, 64), integers(192, 64)
    assert module.mm.choice(a, b) == ["mm_kernel"]
    wide = np.zeros((64, 72), np.float16)[:, :64]
    (line,) = module.mm.choice(wide, b)
    assert line.startswith(
        "mm_kernel_rows16, not mm_kernel: argument 'a' has strides (72, 1) (in elements); expected (64, 1)"
    )
    with pytest.raises(EmmyError, match="'a' has shape"):
        module.mm.choice(a[:, :32], b)
    with pytest.raises(EmmyError, match="argument 'b' is a list; expected an array"):
        module.mm.choice(a, [1])
    for arguments in ((a,), (a, b, a)):
        with pytest.raises(EmmyError, match="given; expected 2: a, b"):
            module.mm.choice(*arguments)


def test_a_loaded_module_is_called_like_a_compiled_one(module: CompiledModule, tmp_path: Path):
    module.artefact.save(tmp_path / "mm")
    loaded = emmy.load(tmp_path / "mm")
    a, b = integers(64, 64), integers(192, 64)
    expected = module.mm(a, b, device="emulator")
    out = np.empty((64, 192), np.float16)
    assert loaded["mm"](a, b, device="emulator", out=out) is out
    assert np.array_equal(out, expected)
    assert loaded.mm is loaded["mm"]
    assert repr(loaded.mm) == "<Emmy function mm for sm_90a>"
    with pytest.raises(EmmyError, match="no streams"):
        loaded.mm(a, b, device="emulator", stream=1)
    with pytest.raises(EmmyError, match="'a' has shape"):
        loaded.mm(a[:, :32], b, device="emulator")
    assert repr(loaded) == "<Emmy module of mm for sm_90a>"
    with pytest.raises(AttributeError, match="no function 'nn'; it has mm"):
        _ = loaded.nn
    with pytest.raises(EmmyError, match="no entry 'nn'; it has mm"):
        _ = loaded["nn"]


def test_the_command_line_exports_what_load_takes(tmp_path: Path):
    (tmp_path / "mm.mlir").write_text(MATMUL)
    assert cli.main(["compile", str(tmp_path / "mm.mlir"), "--target", "sm_80", "-o", str(tmp_path / "mm")]) == 0
    assert emmy.load(tmp_path / "mm").target == "sm_80"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "launch.json cannot be read"),
        ("{", "launch.json cannot be read"),
        ("[]", "has format None"),
        ('{"format": 1}', "launch.json has no target"),
        ('{"format": 1, "target": "sm_90a", "images": {}}', "launch.json has no entries"),
        (
            '{"format": 1, "target": "sm_90a", "images": {"k": {"ptx": "k.ptx"}}, "entries": {}}',
            r"lacks its file k\.ptx",
        ),
    ],
)
def test_what_is_no_artefact(tmp_path: Path, text: str | None, words: str):
    if text is not None:
        (tmp_path / "launch.json").write_text(text)
    with pytest.raises(EmmyError, match=words):
        emmy.load(tmp_path)


# ---- reports ---------------------------------------------------------------------------------------------------------


@needs_ptxas
@needs_nvdisasm
def test_a_report():
    module = emmy.compile(MATMUL.replace("x64x", "x512x"), "sm_90a", schedule=SCHEDULE)
    (kernel,) = module.report().kernels
    assert kernel.name == "mm_kernel"
    assert kernel.threads == 64
    assert kernel.spill_bytes == 0
    assert kernel.registers is not None
    assert 32 < kernel.registers <= 255
    assert kernel.shared_bytes == module.portable_artefact.entry("mm")["launches"][0]["shared_bytes"]
    assert kernel.occupancy is not None
    assert kernel.occupancy.warps == 2 * kernel.occupancy.blocks
    assert kernel.main_loop is not None
    assert kernel.main_loop["HMMA"] % 32 == 0
    assert kernel.ptx_instructions is not None
    assert 100 < kernel.ptx_instructions < 2000
    assert kernel.schedule is not None
    assert kernel.schedule["block"] == [64, 64, 32]
    assert kernel.grids == ("3 * ceil(a.0 / 64)",)
    text = str(module.report())
    for words in ("for sm_90a", "no spills (ptxas -O3)", "an SM, limited by", "instructions: ", "block = [64, 64, 32]"):
        assert words in text
    again = json.loads(json.dumps(module.report().as_json()))
    assert again["kernels"][0]["occupancy"]["blocks"] == kernel.occupancy.blocks


def reason(text: str = MATMUL, target: str = "sm_90a", **options) -> str:
    (kernel,) = make_report(emmy.compile(text, target, verify_each=False, **options).portable_artefact).kernels
    assert kernel.reason is not None
    return kernel.reason


@pytest.mark.parametrize(
    ("k", "target", "transport"),
    [(64, "sm_90a", "tma"), (68, "sm_90a", "cp_async"), (67, "sm_90a", "plain"), (64, "sm_89", "cp_async")],
)
def test_reports_say_how_tensors_are_copied(k: int, target: str, transport: str):
    """Rows of 136 bytes are no multiple of 16, which TMA wants; rows of 134 are none of 4, which cp.async wants."""
    a, c = f"tensor<64x{k}xf16>", "tensor<64x64xf16>"
    text = (
        f"func.func @m(%a: {a}, %b: {a}) -> {c} {{\n"
        f"  %c = tensor_op.matmul %a, %b transpose_b : ({a}, {a}) -> {c}\n  func.return %c : {c}\n}}\n"
    )
    (kernel,) = make_report(emmy.compile(text, target, verify_each=False).portable_artefact).kernels
    assert kernel.copies is not None
    assert {kernel.copies["ab.a"], kernel.copies["ab.b"]} == {transport}
    assert f"ab.a by {transport}" in str(kernel)
    assert ("launch     1 CTA of " in str(kernel)) == (transport != "tma")  # persistent: min(1, SMs)
    assert "; 1 CTA is 1 wave of " in str(kernel)
    assert "main loop  none" in str(replace(kernel, main_loop={}))


def test_reasons():
    static = MATMUL.replace("?", "4096").replace("192", "4096")
    rows = f"of {len(CANDIDATES['sm_90a'])} of the table of sm_90a"
    assert f"{rows}, whose waves take least time; 512 CTAs are 4 waves of 132 SMs, 97 % full" in reason(static)
    # Two CTAs of this tile share an SM, and a wave.
    assert "1024 CTAs are 4 waves of 2 on each of 132 SMs" in reason(static, schedule={"atom": "m16n8k16"})
    small = MATMUL.replace("?", "128")
    assert rows in reason(small)
    assert reason(small).endswith("; 6 CTAs are 1 wave of 132 SMs, 5 % full")
    assert rows in reason(small, schedule={"stages": 3})
    assert "with stages from options" in reason(small, schedule={"stages": 3})
    assert reason(small, schedule=SCHEDULE).startswith(
        "options choose the block, with block, warps, stages from options"
    )
    assert reason(small, variants="rows8").startswith("for tensors that threads copy: a tile no larger than the dense")
    assert reason(small, variants="rows16") == reason(small)
    # Sizes change the order of its tiles, and what leaves the L2 cache first.
    shared = MATMUL.replace("?", "512").replace("192", "512").replace("64x", "3840x").replace("x64", "x3840")
    assert rows in reason(shared)
    assert reason(MATMUL, schedule=SCHEDULE).endswith("(a ? size counts as 65536)")
    assert "of the hybrid table of sm_89" in reason(static, "sm_89", accumulate="hybrid")
    pinned = "transpose_b {emmy.schedule = #tile.schedule<block = [64, 64, 32], warps = [2, 1], stages = 2>} :"
    assert reason(small.replace("transpose_b :", pinned)).startswith("pinned by the text; 6 CTAs")
    assert reason(emmy.compile(small, "sm_90a", verify_each=False).ir("tile")) == "given by the text"
    assert reason(emmy.compile(small, "sm_90a", verify_each=False).ir("tensor_op")).startswith("pinned by the text")


def test_a_kernel_without_a_product():
    text = """func.func @relu(%a: tensor<64x64xf16>) -> tensor<64x64xf16> {
  %c = tensor_op.map relu %a : (tensor<64x64xf16>) -> tensor<64x64xf16>
  func.return %c : tensor<64x64xf16>
}
"""
    assert reason(text) == "the fixed schedule of kernels without a product"


def test_a_report_of_what_has_no_notes():
    artefact = smoke_artefact("sm_80")
    plain = Artefact("sm_80", {"smoke": Image(artefact.images["smoke"].ptx)}, artefact.entries)
    vector_add, naive_matmul = make_report(plain).kernels
    assert (vector_add.registers, vector_add.occupancy, vector_add.main_loop, vector_add.reason) == (None,) * 4
    assert vector_add.threads == 128
    assert vector_add.ptx_instructions == 18
    assert "registers" not in str(vector_add)
    assert naive_matmul.grids


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (7, "7"),
        (["sms"], "SMs"),
        (["mul", ["ceildiv", ["dim", "a", 0], 128], 16], "ceil(a.0 / 128) * 16"),
        (["mul", ["add", ["dim", "a", 0], 1], 2], "(a.0 + 1) * 2"),
        (["min", ["stride", "b", 0], ["floordiv", ["dim", "b", 1], 2]], "min(stride(b.0), floor(b.1 / 2))"),
        (["sub", ["dim", "a", 0], ["mul", 2, ["dim", "a", 1]]], "a.0 - 2 * a.1"),
    ],
)
def test_expressions_are_shown_as_formulas(expression, text):
    assert show_expression(expression) == text


def test_counting_ptx():
    text = ".visible .entry k(\n  .param .u64 a\n)\n{\n  .reg .b32 %r<2>;\n$L: \n  mov.u32 %r1, 0;\n  @%p1 bra $L;\n  ret;\n}\n"
    assert count_ptx(text, "k") == 3
    assert count_ptx(text, "other") is None
    assert count_ptx(None, "k") is None


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_command_line_prints_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, form: str
):
    monkeypatch.setenv("EMMY_CACHE", "1")
    monkeypatch.setenv("EMMY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("EMMY_VERIFY_EACH", "0")
    (tmp_path / "mm.mlir").write_text(MATMUL)
    options = ["--report"] if form == "text" else ["--report", "json"]
    assert cli.main(["compile", str(tmp_path / "mm.mlir"), "--target", "sm_80", *options]) == 0
    out = capsys.readouterr().out
    if form == "json":
        assert json.loads(out)["kernels"][0]["name"] == "mm_kernel"
    else:
        assert out.startswith("for sm_80\nmm_kernel\n")
    shape = ["--shape", "a=16x64", "--device", "emulator"]
    assert cli.main(["run", str(tmp_path / "mm.mlir"), "--target", "sm_80", *shape, *options]) == 0
    assert "mm_kernel" in capsys.readouterr().out
