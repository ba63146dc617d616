"""`python -m emmy.bench.prepare`: what it makes of variants, what it writes, and that wrong input is one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from emmy.artefact import Artefact
from emmy.bench import prepare, suites
from emmy.bench.cases import load_cases
from emmy.errors import EmmyError

TINY = "block=(32,32,16),warps=(1,1)"

PROJECTION = """func.func @proj(%x: tensor<?x16xf16>, %w: tensor<16x16xf16>) -> tensor<?x16xf16> {
  %y = tensor_op.matmul %x, %w transpose_b accumulate<f32> : (tensor<?x16xf16>, tensor<16x16xf16>) -> tensor<?x16xf16>
  func.return %y : tensor<?x16xf16>
}
"""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Suites of one small product each."""
    monkeypatch.setattr(suites, "INTEGERS", ((40, 24, 16),))
    monkeypatch.setattr(suites, "SIX", ((32, 32, 32),))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("wide:block=(128,256,64),stages=4", ("wide", {"block": (128, 256, 64), "stages": 4})),
        ("plain:transport='plain'", ("plain", {"transport": "plain"})),
        ("same:", ("same", {})),
        ("same", ("same", {})),
    ],
)
def test_variants(text: str, expected: tuple[str, dict[str, object]]) -> None:
    assert prepare.parse_variant(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "a:stages",
        "a:stages=",
        "a:stages=x",
        "a:4",
        "a:**{'stages': 3}",
        "a:stages=4)+f(",
        "a:stages=4),(",
        "a:)(",
        ":stages=4",
        "../a:stages=4",
        "",
    ],
)
def test_no_variants(text: str) -> None:
    with pytest.raises(EmmyError, match=r"is no variant; write NAME:FIELD=VALUE,\.\.\. with Python literals"):
        prepare.parse_variant(text)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a:stages=3,stages=4"], "variant 'a:stages=3,stages=4' gives a field twice"),
        (["a:depth=3"], "a schedule has no field 'depth'; its fields are block"),
        (["a:stages=3", "b:stages=2", "a:stages=4"], "variants need different names, got a, b, a"),
    ],
)
def test_wrong_variants(texts: list[str], message: str) -> None:
    with pytest.raises(EmmyError, match=message):
        prepare.parse_variants(texts)


def test_without_variants_the_schedule_is_the_compilers() -> None:
    assert prepare.parse_variants([]) == {"": {}}


@pytest.mark.usefixtures("small")
def test_a_folder_of_cases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two suites, two variants: a case and an artefact of each, and the bits that integers must give."""
    out = tmp_path / "new" / "folder"
    words = ["--suite", "gemm", "--suite", "integers", "--variant", f"one:{TINY}", "--variant", f"two:{TINY},stages=2"]
    assert prepare.main([str(out), *words]) == 0
    assert capsys.readouterr().out == f"6 cases in {out}\n"
    cases = load_cases(out)
    assert [case.name for case in cases] == [
        "32x32x32 f16 one",
        "32x32x32 f16 two",
        "integers 40x24x16 f16 one",
        "integers 40x24x16 f16 two",
        "integers 40x24x16 bf16 one",
        "integers 40x24x16 bf16 two",
    ]
    assert [case.artefact for case in cases[:3]] == ["32x32x32_f16-one", "32x32x32_f16-two", "40x24x16_f16-one"]
    six, integer = cases[0], cases[2]
    assert (six.suite, six.time, six.data, six.shapes) == ("six", True, "normal", {"a": [32, 32], "b": [32, 32]})
    assert (integer.suite, integer.time, integer.data, integer.magnitude) == (None, False, "integers", 2)
    for case in cases:
        artefact = Artefact.load(out / case.artefact)
        assert artefact.target == "sm_90a"
        assert case.entry in artefact.entries
    assert integer.expect is not None
    assert np.load(out / integer.expect).shape == (40, 24)
    assert np.load(out / integer.expect).dtype == np.uint16
    listed = json.loads((out / "cases.json").read_text())
    assert "magnitude" not in listed[0]


def test_projections_come_from_the_checkout_whatever_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert suites.EXAMPLES == Path(__file__).resolve().parents[2] / "docs" / "examples"
    files = sorted(suites.EXAMPLES.glob("gemma4_*.mlir"))
    assert len(files) == 10
    monkeypatch.setattr(suites, "signature", lambda path: (path.stem, {"x": [None, 8], "w": [8, 8]}))
    works = list(suites.tokens())
    assert [work.source for work in works] == [path for path in files for _ in suites.TOKENS]
    assert {work.case.shapes["x"][0] for work in works} == {512, 4096}


def test_tokens_of_a_projection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled once with `?` tokens, measured with each number of them."""
    (tmp_path / "gemma4_proj.mlir").write_text(PROJECTION)
    monkeypatch.setattr(suites, "EXAMPLES", tmp_path)
    assert suites.signature(tmp_path / "gemma4_proj.mlir") == ("proj", {"x": [None, 16], "w": [16, 16]})
    out = tmp_path / "out"
    assert prepare.main([str(out), "--suite", "tokens", "--target", "sm_80"]) == 0
    cases = load_cases(out)
    assert [(case.name, case.shapes) for case in cases] == [
        ("proj 512 tokens", {"x": [512, 16], "w": [16, 16]}),
        ("proj 4096 tokens", {"x": [4096, 16], "w": [16, 16]}),
    ]
    assert {case.artefact for case in cases} == {"gemma4_proj"}
    assert Artefact.load(out / "gemma4_proj").target == "sm_80"


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--suite", "gemm", "--variant", "a:stages"], "'a:stages' is no variant"),
        (["--suite", "gemm", "--variant", "a:stages=99"], "stages is from 1 to 16, got 99"),
        (["--suite", "gemm", "--variant", "a:block=3"], "the schedule's block is 3 positive numbers, got 3"),
        (["--suite", "tokens"], "of a checkout of Emmy, and "),
    ],
)
def test_wrong_input_is_one_sentence(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Outside a checkout there are no examples, which only matters to the suite that needs them."""
    monkeypatch.setattr(suites, "EXAMPLES", tmp_path / "nowhere")
    assert prepare.main([str(tmp_path / "out"), *words]) == 1
    errors = capsys.readouterr().err
    assert message in errors
    assert "Traceback" not in errors


@pytest.mark.usefixtures("small")
def test_what_is_there_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An artefact of another target or variant would pass for a new one."""
    (tmp_path / "32x32x32_f16").mkdir()
    file = tmp_path / "file"
    file.write_text("")
    for place in (tmp_path, file):
        assert prepare.main([str(place), "--suite", "gemm"]) == 1
        assert (
            capsys.readouterr().err == f"error: '{place}' is there already; artefacts go into a new or empty folder\n"
        )
    assert not (tmp_path / "cases.json").exists()


@pytest.mark.parametrize("words", [[], ["--suite", "none"], ["--suite", "gemm", "--target", "sm_70"]])
def test_command_line(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        prepare.main([str(tmp_path), *words])
    assert "usage:" in capsys.readouterr().err
