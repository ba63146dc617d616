"""emmy-opt: passes by name, options, output formats, and what it says of malformed input."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from xdsl.context import Context
from xdsl.passes import ModulePass

from emmy.errors import EmmyError
from emmy.ir import DIALECTS
from emmy.registry import PASSES, describe_passes, is_present, load_pass, parse_passes
from emmy.tools import opt

GOOD = """func.func @mm(%a: tensor<64x32xf16>, %b: tensor<32x64xf16>) -> tensor<64x64xf16> {
  %c = tensor_op.matmul %a, %b : (tensor<64x32xf16>, tensor<32x64xf16>) -> tensor<64x64xf16>
  %d = tensor_op.matmul %a, %b : (tensor<64x32xf16>, tensor<32x64xf16>) -> tensor<64x64xf16>
  func.return %d : tensor<64x64xf16>
}
"""


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.mlir"
    path.write_text(GOOD)
    return path


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of emmy-opt."""
    code = opt.main([str(word) for word in argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# ---- malformed input -------------------------------------------------------------------------------------------------

MATMUL = "%c = tensor_op.matmul %a, %b"
TYPES = ": (tensor<64x32xf16>, tensor<32x64xf16>) -> tensor<64x64xf16>"

MALFORMED: dict[str, str] = {
    "empty": "",
    "blank": "\n\n   \n",
    "prose": "this is no IR at all",
    "unknown op": GOOD.replace("tensor_op.matmul", "tensor_op.matmull"),
    "unknown dialect": GOOD.replace("tensor_op.matmul", "tensorop.matmul"),
    "undefined value": GOOD.replace("%a, %b :", "%a, %q :"),
    "redefined value": GOOD.replace("%d =", "%c ="),
    "unclosed brace": GOOD.rstrip("}\n"),
    "stray brace": GOOD + "}\n",
    "unclosed string": 'func.func @f() attributes {a = "x} {\n  func.return\n}',
    "bad type": GOOD.replace("tensor<64x32xf16>", "tensor<64x32xf17>"),
    "operand types differ": GOOD.replace("32x64xf16", "32x64xbf16"),
    "contraction differs": GOOD.replace("32x64xf16", "48x64xf16"),
    "result shape": GOOD.replace("64x64xf16", "64x128xf16"),
    "rank": GOOD.replace("64x32xf16", "64xf16"),
    "integer operands": GOOD.replace("xf16", "xi32"),
    "return type": GOOD.replace("-> tensor<64x64xf16> {", "-> tensor<64x64xf32> {"),
    "policy": GOOD.replace("%a, %b :", "%a, %b accumulate<f64> :"),
    "policy field": GOOD.replace("%a, %b :", "%a, %b accumulate<hybrid, max = 3> :"),
    "policy value": GOOD.replace("%a, %b :", "%a, %b accumulate<hybrid, max_k = 17> :"),
    "policy for bf16": GOOD.replace("xf16", "xbf16").replace("%a, %b :", "%a, %b accumulate<f16> :"),
    "schedule": GOOD.replace("%a, %b :", "%a, %b {s = #tile.schedule<block = [128, 100, 64]>} :"),
    "schedule field": GOOD.replace("%a, %b :", "%a, %b {s = #tile.schedule<blocks = [1]>} :"),
    "schedule word": GOOD.replace("%a, %b :", "%a, %b {s = #tile.schedule<roles = many>} :"),
    "use before definition": "func.func @f() {\n  %b = arith.addi %a, %a : i32\n  %a = arith.constant 1 : i32\n  func.return\n}",
    "no terminator": "func.func @f() {\n  %a = arith.constant 1 : i32\n}",
    "map arity": GOOD.replace(MATMUL, "%c = tensor_op.map exp %a, %b"),
    "map name": GOOD.replace(MATMUL, "%c = tensor_op.map exponential %a"),
    "kernel argument": "tile.kernel @k(%a: tensor<4x4xf16>) {\n}",
    "no such field": (
        "tile.kernel @k(%a: !tile.view<64x64xf16>) {\n  async_copy.pipeline @p stages 2 {x = !tile.tile<64x64xf16>}\n"
        '  %z = arith.constant 0 : index\n  async_copy.producer {\n    %c = async_copy.begin_fill @p\n'
        "    %s, %n = async_copy.acquire @p[%c]\n"
        '    async_copy.copy %a[%z, %z] -> %s["y"] : !tile.view<64x64xf16> -> !async_copy.slot<@p, fill>\n  }\n}'
    ),
    "cursor of another pipeline": (
        "tile.kernel @k() {\n  async_copy.producer {\n    %c = async_copy.begin_fill @p\n"
        "    %s, %n = async_copy.acquire @q[%c]\n  }\n}"
    ),
    "no stages": "tile.kernel @k() {\n  async_copy.pipeline @p stages 0 {x = !tile.tile<64x64xf16>}\n}",
    "fragment place": "tile.kernel @k() {\n  %z = mma.fill 0.0 : f32 : !mma.fragment<16x8xf32, d, m16n8k16>\n}",
    "deep nesting": "builtin.module {" * 2000,
    "deep attribute": "builtin.module attributes {a = " + "[" * 3000 + "} {}",
    "block label": "func.func @f() {\n^0:\n  func.return\n}",
    "huge number": f"%a = arith.constant {10**400} : i32",
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_input_is_one_located_sentence(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path, output = tmp_path / "bad.mlir", tmp_path / "out.mlir"
    path.write_text(MALFORMED[name])
    output.write_text("what was there before")
    code, out, err = run(capsys, path, "-p", "canonicalize", "-o", output)
    assert code == 1
    assert out == ""
    first, *shown = err.splitlines()
    assert first.startswith(f"{path}:")
    assert ": error: " in first
    assert len(shown) in (0, 2)
    assert "Traceback" not in err
    assert "internal error" not in err
    assert output.read_text() == "what was there before"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.mlir", "out.mlir"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-p", "no-such-pass"], "no pass 'no-such-pass'"),
        (["-p", "canonicalise"], "did you mean 'canonicalize'"),
        (["-p", "cse{"], "cannot read the passes"),
        (["-p", "cse,,dce"], "cannot read the passes"),
        (["-p", "cse{x=1}"], "no option 'x'; it has none"),
        (["-p", "assign-schedule{stages=many}"], "option 'stages' of pass 'assign-schedule' takes int, got 'many'"),
        (["-p", "assign-schedule{stagess=1}"], "no option 'stagess'; its options are target,"),
        (["-p", "assign-schedule{target=sm_10}"], "unknown target 'sm_10'"),
        (["--target", "sm_10"], "unknown target 'sm_10'"),
        (["-t", "ptx"], "no ptx.kernel"),
        (["-t", "ptx{target=sm_10}"], "unknown target"),
    ],
)  # fmt: skip
def test_bad_arguments_are_one_sentence(
    arguments: list[str], words: str, good: Path, capsys: pytest.CaptureFixture[str]
):
    code, out, err = run(capsys, good, *arguments)
    assert code == 1
    assert out == ""
    assert words in err.splitlines()[0]
    assert "Traceback" not in err


def test_unreadable_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    binary = tmp_path / "binary.mlir"
    binary.write_bytes(bytes(range(256)))
    for path, words in ((tmp_path, "directory"), (tmp_path / "no.mlir", "no such file"), (binary, "not a text file")):
        code, _, err = run(capsys, path)
        assert code == 1
        assert words in err
        assert len(err.splitlines()) == 1


def test_unwritable_output(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for output, words in ((tmp_path, "is a directory"), (tmp_path / "no" / "out.mlir", "no such file")):
        code, _, err = run(capsys, good, "-o", output)
        assert code == 1
        assert words in err


def test_a_wrong_command_line_is_code_2(good: Path):
    for arguments in (["-t", "bogus"], ["--no-such-flag"]):
        with pytest.raises(SystemExit) as caught:
            opt.main([str(good), *arguments])
        assert caught.value.code == 2


# ---- what it does ----------------------------------------------------------------------------------------------------


def test_passes_run_and_output_is_written(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    code, out, err = run(capsys, good, "-p", "cse", "-o", tmp_path / "out.mlir")
    assert (code, out, err) == (0, "", "")
    assert (tmp_path / "out.mlir").read_text().count("tensor_op.matmul") == 1


def test_print_ir_after_all(good: Path, capsys: pytest.CaptureFixture[str]):
    _, out, err = run(capsys, good, "-p", "cse,dce", "--print-ir-after-all")
    assert "// IR after cse:" in err
    assert "// IR after dce:" in err
    assert out.startswith("builtin.module")


def test_split_input_locates_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "split.mlir"
    path.write_text(f"{GOOD}// -----\n{GOOD}// -----\n%x = arith.nonsense\n")
    code, out, err = run(capsys, path, "--split-input-file")
    assert (code, out) == (1, "")
    assert err.startswith(f"{path}:13:6: error:")
    assert err.splitlines()[1] == "%x = arith.nonsense"
    code, out, _ = run(capsys, path, "--split-input-file", "--verify-diagnostics")
    assert code == 0
    assert out.count("// -----") == 2
    assert "13:6: error:" in out


def test_target_fills_the_option_of_passes():
    first, second, third = parse_passes("assign-schedule,cse,assign-schedule{target=sm_80}", "sm_89")
    assert getattr(first, "target", None) == "sm_89"
    assert not hasattr(second, "target")
    assert getattr(third, "target", None) == "sm_80"


def test_a_pass_that_leaves_invalid_ir_is_found(
    good: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    class Breaks(ModulePass):
        name = "breaks"

        def apply(self, ctx: Context, op: object) -> None:
            function = next(iter(op.body.block.ops))  # type: ignore[attr-defined]
            first, *_ = function.body.block.ops
            first.detach()
            function.body.block.insert_op_before(first, function.body.block.last_op)
            second = next(iter(function.body.block.ops))
            second.operands[0] = first.results[0]

    monkeypatch.setattr(opt, "parse_passes", lambda *_: [Breaks()])
    code, _, err = run(capsys, good)
    assert code == 1
    assert err.startswith(f"{good}:3:3: error: ")
    assert "after running breaks" in err


def test_a_crash_is_an_internal_error(good: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    class Crashes(ModulePass):
        name = "crashes"

        def apply(self, ctx: Context, op: object) -> None:
            raise KeyError("lost")

    monkeypatch.setattr(opt, "parse_passes", lambda *_: [Crashes()])
    code, _, err = run(capsys, good)
    assert code == 1
    assert "internal error while running crashes: KeyError: lost" in err
    assert "Traceback" not in err


def test_every_pass_is_there_and_described():
    for name in PASSES:
        assert is_present(name), name
        assert load_pass(name).name == name
    text = describe_passes()
    assert all(f"\n{name}" in f"\n{text}" for name in PASSES)


def test_unknown_pass_in_a_pipeline():
    with pytest.raises(EmmyError, match="no pass 'x'"):
        parse_passes("cse,x")


def test_stock_xdsl_opt_finds_the_universe(good: Path):
    """Through the entry point that the package installs."""
    code = f"from xdsl.xdsl_opt_main import xDSLOptMain; xDSLOptMain(args=[{str(good)!r}, '-p', 'cse,check-dominance']).run()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("tensor_op.matmul") == 1


def test_the_universe_has_everything():
    from emmy.universe import EMMY_UNIVERSE

    ours = [name for name in DIALECTS if name not in ("builtin", "func", "arith", "scf")]
    assert sorted(EMMY_UNIVERSE.all_dialects) == sorted(ours)
    assert set(EMMY_UNIVERSE.all_passes) == set(PASSES)
    assert list(EMMY_UNIVERSE.all_targets) == ["ptx"]
    assert all(EMMY_UNIVERSE.all_dialects[name]().name == name for name in ours)
