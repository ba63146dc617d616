"""What docs/runtime.md shows works: its Python, apart from the part that needs a GPU, and its commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from emmy.tools import cli

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "runtime.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the page's paths are right, and which may be written."""
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EMMY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("EMMY_CACHE_SIZE", raising=False)
    monkeypatch.setenv("EMMY_CACHE", "1")
    monkeypatch.setenv("EMMY_VERIFY_EACH", "0")
    return tmp_path


def test_the_python(checkout: Path, capsys: pytest.CaptureFixture[str]):
    names: dict[str, object] = {}
    runnable = [text for text in blocks("python") if not text.startswith("# with torch")]
    assert len(runnable) == len(blocks("python")) - 1
    for text in runnable:
        exec(compile(text, "runtime.md", "exec"), names)
    assert "error: argument 'b' has dtype f32; expected f16\n" in capsys.readouterr().out


def test_the_commands(checkout: Path, capsys: pytest.CaptureFixture[str]):
    lines = [line for text in blocks("sh") for line in text.splitlines()]
    assert len(lines) == 7
    for line in lines:
        name, *words = shlex.split(line)
        assert name == "emmy"
        assert cli.main(words) == 0, line
    assert (checkout / "matmul_artefact" / "launch.json").is_file()
    assert str(checkout / "cache") in capsys.readouterr().out
