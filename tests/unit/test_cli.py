"""The commands of `emmy`: what they write, what they print, their exit codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from emmy.artefact import Artefact, EntrySpec
from emmy.assemble import find_tool
from emmy.compiler import compile
from emmy.errors import EmmyError
from emmy.files import write_file
from emmy.ir import parse_module
from emmy.tools import check_command, cli, docs, run_command
from emmy.tools.compare import Product, compare, maps_are_exact
from emmy.tools.inputs import choose_entry, parse_shapes, random_arrays, resolve_shapes

ROOT = Path(__file__).parents[2]

MATMUL = """func.func @mm(%a: tensor<?x?xf16>, %b: tensor<64x?xf16>) -> tensor<?x64xf16> {
  %c = tensor_op.matmul %a, %b transpose_b {emmy.schedule = #tile.schedule<block = [64, 64, 32], warps = [2, 1], stages = 2>}
    : (tensor<?x?xf16>, tensor<64x?xf16>) -> tensor<?x64xf16>
  func.return %c : tensor<?x64xf16>
}
"""
SMALL = ("--shape", "a=64x64")


@pytest.fixture
def matmul(tmp_path: Path) -> Path:
    path = tmp_path / "mm.mlir"
    path.write_text(MATMUL)
    return path


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of emmy."""
    code = cli.main([str(word) for word in argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


BF16 = """func.func @m(%a: tensor<64x64xbf16>, %b: tensor<64x64xbf16>) -> tensor<64x64xbf16> {
  %c = tensor_op.matmul %a, %b : (tensor<64x64xbf16>, tensor<64x64xbf16>) -> tensor<64x64xbf16>
  func.return %c : tensor<64x64xbf16>
}
"""


@pytest.mark.parametrize("command", [["compile"], ["run", "--device", "emulator"]])
def test_a_policy_that_cannot_be_followed_is_remarked(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """bf16 products have no f16 accumulator: they stay f32, and the user is told."""
    path = tmp_path / "m.mlir"
    path.write_text(BF16)
    code, _, err = run(capsys, command[0], path, *command[1:], "--accumulate", "hybrid")
    assert code == 0
    assert err == (
        "remark: m_kernel: accumulate<hybrid> of the module needs f16 operands; this product of bf16 stays f32\n"
    )
    code, _, err = run(capsys, command[0], path, *command[1:])
    assert (code, err) == (0, "")


# ---- compile ---------------------------------------------------------------------------------------------------------


def test_compile_prints_ptx(matmul: Path, capsys: pytest.CaptureFixture[str]):
    code, out, err = run(capsys, "compile", matmul, "--target", "sm_80")
    assert (code, err) == (0, "")
    assert ".target sm_80" in out


def test_compile_prints_a_level(matmul: Path, capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "compile", matmul, "--target", "sm_80", "--level", "tile")
    assert code == 0
    assert "tile.dot" in out


FREE = MATMUL.replace(" {emmy.schedule = #tile.schedule<block = [64, 64, 32], warps = [2, 1], stages = 2>}", "")
PINNED = "block = [32, 64, 32], warps = [1, 2], stages = 2"


@pytest.mark.parametrize(
    "text",
    [
        PINNED,
        "block=(32,64,32),warps=(1,2),stages=2",
        f"<{PINNED}>",
        f"schedule <{PINNED}>",
        f"#tile.schedule<{PINNED}>",
        f"emmy.schedule = #tile.schedule<{PINNED}>",
    ],
)
def test_a_schedule_on_the_command_line(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "free.mlir"
    path.write_text(FREE)
    options = ("--target", "sm_80", "--schedule", text)
    code, out, err = run(capsys, "compile", path, *options, "--level", "lower-tensor-op")
    assert (code, err) == (0, "")
    assert f"schedule <{PINNED}" in out


def test_run_and_check_take_a_schedule(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "free.mlir"
    path.write_text(FREE)
    options = ("--target", "sm_80", "--schedule", PINNED, *SMALL)
    code, out, _ = run(capsys, "run", path, "--device", "emulator", *options, "--report", "json")
    assert code == 0
    assert '"stages": 2' in out
    assert "block, warps, stages from options" in out
    code, out, _ = run(capsys, "check", path, *options)
    assert code == 0
    assert "all levels agree" in out
    code, out, _ = run(capsys, "view", "ir", path, *options[:4])
    assert code == 0
    assert "block = [32, 64, 32]" in out


@pytest.mark.parametrize("command", ["compile", "run", "check"])
def test_a_schedule_that_the_text_overrules_is_remarked(
    command: str, matmul: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    data = () if command == "compile" else SMALL
    code, _, err = run(capsys, command, matmul, "--target", "sm_80", "--schedule", "stages = 4", *data)
    assert code == 0
    assert err == "remark: mm_kernel: its schedule is pinned by the text, so --schedule changes nothing there\n"


@pytest.mark.skipif(find_tool("ptxas") is None, reason="ptxas is not installed")
def test_compile_writes_every_format(matmul: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for name in ("out.ptx", "out.cubin", "out.mlir", "folder"):
        code, out, err = run(capsys, "compile", matmul, "--target", "sm_90a", "-o", tmp_path / name)
        assert (code, out) == (0, "")
        assert ("0 bytes spilled" in err) == (name in ("out.cubin", "folder"))
    assert ".target sm_90a" in (tmp_path / "out.ptx").read_text()
    assert (tmp_path / "out.cubin").read_bytes()[:4] == b"\x7fELF"
    assert "ptx.kernel" in (tmp_path / "out.mlir").read_text()
    assert list(Artefact.load(tmp_path / "folder").entries) == ["mm"]
    assert run(capsys, "compile", tmp_path / "out.mlir", "-o", tmp_path / "again.ptx")[0] == 0
    assert (tmp_path / "again.ptx").read_text() == (tmp_path / "out.ptx").read_text()
    assert run(capsys, "compile", matmul, "--level", "level3", "-o", tmp_path / "out.mlir")[0] == 0
    assert "mma.mma" in (tmp_path / "out.mlir").read_text()
    assert run(capsys, "compile", matmul, "-o", tmp_path / "folder")[0] == 0  # an artefact is replaced


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-o", "out.txt"], "ends in none of .ptx, .cubin, .mlir"),
        (["-o", "absent/out.ptx"], "no such file or directory"),
        (["-o", "out.ptx", "--level", "tile"], "--level writes text"),
        (["-o", "."], "is no artefact"),
        (["--level", "nowhere"], "no stage 'nowhere'"),
        (["--target", "sm_10"], "unknown target 'sm_10'"),
        (["--target", "sm_90"], "use 'sm_90a'"),
        (["--accumulate", "f17"], "no accumulation policy"),
        (["--entry", "nn"], "no function 'nn'"),
        (["--schedule", "stages"], "--schedule cannot read 'stages'; write for example block = "),
        (["--schedule", "stages = 2, block = [64, 64"], "--schedule cannot read 'block = [64, 64'; write"),
        (["--schedule", "stages = 2 stages = 3"], "--schedule cannot read 'stages = 2 stages = 3'; write"),
        (["--schedule", "stages = 2, stages = 3"], "--schedule gives the field 'stages' twice"),
        (["--schedule", "stagse = 2"], "a schedule has no field 'stagse'; its fields are block, "),
        (["--schedule", "stages = -1"], "the schedule's stages is from 1 to 16, got -1"),
        (["--schedule", "block = 64"], "the schedule's block is 3 positive numbers, got 64"),
        (["--schedule", "block = []"], "the schedule's block is 3 positive numbers, got ()"),
        (["--schedule", "atom = m8n8k4"], "atom is one of m16n8k16, m16n8k8, m16n8k32, wgmma, got 'm8n8k4'"),
        (["-o", "out.cubin", "--opt-level", "7"], "optimisation level 7"),
        (["--dump-ir", "mm.mlir"], "cannot create"),
    ],
)  # fmt: skip
def test_compile_errors(
    arguments: list[str], words: str, matmul: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(matmul.parent)
    code, out, err = run(capsys, "compile", "mm.mlir", *arguments)
    assert (code, out) == (1, "")
    assert words in err.splitlines()[0]
    assert "Traceback" not in err
    assert "internal error" not in err
    assert [path.name for path in matmul.parent.iterdir()] == ["mm.mlir"]


MALFORMED = {
    "empty": "",
    "syntax": MATMUL.replace("->", "=>"),
    "shape": MATMUL.replace("64x?xf16>) -> tensor<?x64", "64x?xf16>) -> tensor<?x65"),
    "type": MATMUL.replace("xf16", "xf64"),
    "schedule": MATMUL.replace("stages = 2", "stages = 77"),
    "schedule and target": MATMUL.replace("block = [64, 64, 32]", "block = [256, 256, 128]"),
    "policy": MATMUL.replace("transpose_b {", "transpose_b accumulate<f99> {"),
    "kind of schedule": MATMUL.replace("#tile.schedule<block = [64, 64, 32], warps = [2, 1], stages = 2>", "7 : i32"),
    "unknown op": MATMUL.replace("tensor_op.matmul", "tensor_op.mat"),
    "foreign op": MATMUL.replace("  func.return", "  %k = arith.constant 1 : i32\n  func.return"),
    "argument returned": "func.func @f(%a: tensor<4x4xf16>) -> tensor<4x4xf16> {\n  func.return %a : tensor<4x4xf16>\n}",
    "no kernel": "func.func @f() {\n  func.return\n}",
    "unknown kernel": (
        "func.func @f(%a: tensor<4x4xf16>) {\n  %g = arith.constant 1 : index\n"
        "  tile.launch @k[%g] (%a) : tensor<4x4xf16>\n  func.return\n}"
    ),
    "broken protocol": (
        "tile.kernel @k(%a: !tile.view<64x64xf16>) schedule <block = [64, 64, 64], warps = [1, 1]> {\n"
        "  async_copy.pipeline @p stages 1 {x = !tile.tile<64x64xf16>}\n  async_copy.producer {\n"
        "    %c = async_copy.begin_fill @p\n    %s, %n = async_copy.acquire @p[%c]\n    async_copy.commit @p, %s\n"
        "    async_copy.drain @p\n  }\n  async_copy.consumer {\n  }\n}"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("command", ["compile", "run", "check"])
def test_malformed_files(name: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path, output = tmp_path / "bad.mlir", tmp_path / "out.ptx"
    path.write_text(MALFORMED[name])
    output.write_text("what was there before")
    options = ["-o", output] if command == "compile" else []
    code, out, err = run(capsys, command, path, "--target", "sm_90a", *options)
    assert code == 1
    assert out == ""
    lines = err.splitlines()
    assert "error: " in lines[0]
    assert len(lines) in (1, 3)
    assert "Traceback" not in err
    assert "internal error" not in err
    assert output.read_text() == "what was there before"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.mlir", "out.ptx"]


@pytest.mark.parametrize(
    "argv", [[], ["nonsense"], ["compile"], ["run", "x.mlir", "--device", "tpu"], ["compile", "x", "--bogus"]]
)
def test_a_wrong_command_line_is_code_2(argv: list[str]):
    with pytest.raises(SystemExit) as caught:
        cli.main(argv)
    assert caught.value.code == 2


def test_help_and_version(capsys: pytest.CaptureFixture[str]):
    for argv in (["--help"], ["--version"], ["compile", "--help"], ["run", "--help"], ["check", "--help"]):
        with pytest.raises(SystemExit) as caught:
            cli.main(argv)
        assert caught.value.code == 0
    assert "--dump-ir" in capsys.readouterr().out


def test_bench_forwards(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["bench"]) == 2
    assert "--suite" in capsys.readouterr().err
    assert cli.main(["bench", str(tmp_path)]) == 1
    assert "cases.json" in capsys.readouterr().err


# ---- run and check ---------------------------------------------------------------------------------------------------


def test_run(matmul: Path, capsys: pytest.CaptureFixture[str]):
    code, out, err = run(capsys, "run", matmul, "--device", "emulator", "--check", "--random", 3, *SMALL)
    assert (code, err) == (0, "")
    assert "mm(a: f16 64x64, b: f16 64x64) compiled for" in out
    assert "0 bank conflicts" in out
    assert "c: f16 64x64" in out
    assert out.rstrip().endswith(": ok")


def test_run_says_when_a_result_is_wrong(
    matmul: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    right = run_command.run_on_emulator

    def wrong(*args: object, **options: object):
        results, reports = right(*args, **options)
        return [result + np.float16(1) for result in results], reports

    monkeypatch.setattr(run_command, "run_on_emulator", wrong)
    code, out, err = run(capsys, "run", matmul, "--device", "emulator", "--check", *SMALL)
    assert code == 1
    assert "FAILED" in out
    assert "emmy check" in err


def test_check(matmul: Path, capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "check", matmul, "--target", "sm_89", *SMALL)
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "mm for sm_89, a: 64x64, b: 64x64"
    assert lines[-1] == "all levels agree"
    for level in (
        "level 1, by policy",
        "level 1, assign-schedule",
        "level 2",
        "level 3, lower-tile",
        "level 3, place-roles",
        "PTX, random landing",
    ):
        assert any(line.startswith(level) and "exact" in line for line in lines)


def test_check_names_the_level_that_parts(
    matmul: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A pass that swaps two operands is found at the level after it."""
    from emmy.tools.check_command import make_stages

    def broken(module: object, entry: str, seed: int):
        stages = make_stages(module, entry, seed)
        for stage in stages:
            if "place-roles" in stage.name:
                honest = stage.run
                stage.run = lambda arrays, honest=honest: honest([arrays[0], arrays[1] * np.float16(2)])
        return stages

    monkeypatch.setattr(check_command, "make_stages", broken)
    code, out, _ = run(capsys, "check", matmul, "--target", "sm_90a", *SMALL)
    assert code == 1
    assert out.splitlines()[-1].startswith("results part at: level 3, place-roles")


def test_check_reports_an_error_of_a_level(
    matmul: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def explode(*args: object, **options: object):
        raise EmmyError("deadlock")

    monkeypatch.setattr(check_command, "run_on_emulator", explode)
    code, out, _ = run(capsys, "check", matmul, "--target", "sm_90a", *SMALL)
    assert code == 1
    assert "deadlock" in out
    assert out.splitlines()[-1].startswith("results part at: PTX, late landing")


def test_check_of_a_lower_level(matmul: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "low.mlir"
    path.write_text(compile(matmul, "sm_90a").ir("lower-tile"))
    shapes = ("--shape", "a=64x64", "--shape", "b=64x64")
    code, out, _ = run(capsys, "check", path, "--target", "sm_90a", *shapes)
    assert code == 0
    assert out.splitlines()[2].startswith("level 3, input")
    code, out, err = run(capsys, "run", path, "--device", "emulator", "--check", *shapes)
    assert (code, out) == (1, "")  # said before anything runs
    assert "begins below it" in err


def test_integers_are_exact_at_lower_levels_where_nothing_is_approximated(matmul: Path):
    """An example at level 2 parted at PTX, by the last bit of an `exp2`."""
    flash = parse_module((ROOT / "docs/examples/flash_causal.mlir").read_text(), "flash_causal.mlir")
    assert not maps_are_exact(flash)
    redo = compile(matmul, "sm_80", accumulate="hybrid", verify_each=False).ir("lower-transport")
    assert maps_are_exact(parse_module(redo, "redo.mlir"))


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ("x=64x64", "no argument 'x'; there are a, b"),
        ("a=64", "'a' has 2 dimensions, got 1"),
        ("a=64xfoo", "sizes are numbers"),
        ("a", "sizes are numbers"),
        ("b=32x64", "the function takes 64x?"),
        ("a=-1x64", "sizes are numbers"),
    ],
)  # fmt: skip
def test_bad_shapes(shape: str, words: str, matmul: Path, capsys: pytest.CaptureFixture[str]):
    code, out, err = run(capsys, "run", matmul, "--device", "emulator", "--shape", shape)
    assert (code, out) == (1, "")
    assert words in err


# ---- inputs and comparison -------------------------------------------------------------------------------------------

ENTRY: EntrySpec = {
    "arguments": [
        {"name": "a", "dtype": "f16", "shape": [["dim", "a", 0], ["dim", "a", 1]]},
        {"name": "b", "dtype": "f16", "shape": [["dim", "b", 0], 48]},
        {"name": "c", "dtype": "i32", "shape": [["dim", "c", 0]]},
    ],
    "results": [],
    "launches": [],
    "checks": [
        {"value": ["dim", "a", 1], "equals": ["dim", "b", 0], "message": ""},
        {"value": ["dim", "c", 0], "equals": 12, "message": ""},
        {"value": ["dim", "a", 0], "multiple_of": 8, "message": ""},
    ],
}


def test_sizes_follow_the_checks():
    assert resolve_shapes(ENTRY, {}) == {"a": (256, 256), "b": (256, 48), "c": (12,)}
    assert resolve_shapes(ENTRY, parse_shapes(["b=100x48"], ENTRY)) == {"a": (256, 100), "b": (100, 48), "c": (12,)}
    assert resolve_shapes(ENTRY, {"a": (8, 24)}, 7) == {"a": (8, 24), "b": (24, 48), "c": (12,)}


def test_random_arrays_are_reproducible():
    shapes = resolve_shapes(ENTRY, {}, 16)
    first, second = (random_arrays(ENTRY, shapes, 1, "normal") for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert [a.dtype.name for a in first] == ["float16", "float16", "int32"]
    assert set(np.unique(random_arrays(ENTRY, shapes, 1, "integers")[0])) == {-2, -1, 0, 1, 2}
    assert not np.array_equal(first[0], random_arrays(ENTRY, shapes, 2, "normal")[0])


def test_choose_entry():
    assert choose_entry(["f"], None) == choose_entry(["f", "g"], "f") == "f"
    for names, wanted, words in ((["f", "g"], None, "several"), ([], None, "no function"), (["f"], "g", "it has f")):
        with pytest.raises(EmmyError, match=words):
            choose_entry(names, wanted)


def test_compare():
    reference = np.random.default_rng(0).standard_normal((64, 64))
    rounded, terms = reference.astype(np.float16), [Product("f32", 0, 64, eight_bits=False)]
    assert compare(rounded, reference, 1, terms).ok
    assert not compare(rounded + np.float16(0.01), reference, 1, terms).ok
    assert compare(rounded + np.float16(3e-4), reference, 1, [Product("f32", 0, 64, eight_bits=True)]).ok
    poisoned = rounded.copy()
    poisoned[3, 4] = np.nan
    assert not compare(poisoned, reference, 1, terms).ok
    assert compare(np.zeros((0, 4), np.float16), np.zeros((0, 4)), 1, []).ok
    infinite = np.float64([[-np.inf, 1.0], [np.inf, 3.0]])
    assert compare(infinite.astype(np.float32), infinite, 1, [1e-5]).rms == 0
    assert not compare(np.float32([[-np.inf, 1.0], [-np.inf, 3.0]]), infinite, 1, [1e-5]).ok


def test_write_file_keeps_the_old_file_on_errors(tmp_path: Path):
    path, link = tmp_path / "out", tmp_path / "link"
    write_file(path, "one")
    link.symlink_to(path)
    write_file(link, b"two")
    assert link.is_symlink()
    assert path.read_text() == "two"
    assert path.stat().st_mode & 0o777 in (0o644, 0o664, 0o600, 0o640)
    with pytest.raises(EmmyError, match="is a directory"):
        write_file(tmp_path, "three")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "out"]


# ---- documentation ---------------------------------------------------------------------------------------------------


def test_generated_pages_are_up_to_date():
    assert docs.outdated(ROOT) == [], "run: python -m emmy.tools.docs"


def test_help_of_bench_tells_of_both_ways(capsys):
    """Suites that are compiled first, and folders of artefacts; the options of those are under `bench DIR --help`."""
    with pytest.raises(SystemExit) as left:
        cli.main(["bench", "--help"])
    assert left.value.code == 0
    told = capsys.readouterr().out
    assert "--suite" in told
    assert "emmy bench DIR" in told
    with pytest.raises(SystemExit):
        cli.main(["bench", "DIR", "--help"])
    assert "--one" in capsys.readouterr().out
