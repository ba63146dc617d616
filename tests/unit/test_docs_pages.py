"""The pages that people wrote: their files are written, their commands are run, and what they say comes out is compared.

In a page, a fenced block with `title="PATH"` is that file (a `diff` is applied to it); a `console` block is commands behind
`$ ` and what they print. There, `...` within a line stands for anything, and a line of it for any lines.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from emmy.tools import cli
from emmy.tools.cli import complete_parser
from emmy.tools.completion import places_of
from emmy.tools.docs import command_line_page
from emmy.tools.opt import make_parser
from emmy.tools.reading_page import area_table, still_true

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([DOCS / "tutorial.md", *(DOCS / "guide").glob("*.md")])
PACKAGE = ("emmy", "dialects", "passes", "lowering")

FENCE = re.compile(r'^( *)```(\w+)(?: title="([^"]+)")?\n(.*?)^\1```$', re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file that it is, and its lines without the fence's indentation."""

    language: str
    title: str | None
    text: str


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page in order."""
    return [
        Block(m[2], m[3], inspect.cleandoc("\n" + m[4]) + "\n" if m[1] else m[4])
        for m in FENCE.finditer(page.read_text())
    ]


def apply_diff(path: Path, diff: str) -> None:
    """Insert the `+` lines behind the line of context before them, which must be there once."""
    lines = path.read_text().splitlines()
    at = -1
    for line in diff.splitlines():
        if line.startswith("+"):
            at += 1
            lines.insert(at, line[1:])
        else:
            assert lines.count(line[1:]) == 1, f"{path.name} has no line {line[1:]!r}"
            at = lines.index(line[1:])
    path.write_text("\n".join(lines) + "\n")


def pattern_of(shown: str) -> str:
    """What is shown as a regular expression."""
    lines = [
        r"(?:.*\n)*?" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + r"\n"
        for line in shown.splitlines()
    ]
    return "".join(lines)


def run_console(text: str, folder: Path, environment: dict[str, str]) -> None:
    """Run the commands of a console block; each must print what is shown behind it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        printed = (done.stdout + done.stderr).rstrip() + "\n" if done.stdout + done.stderr else ""
        assert re.fullmatch(pattern_of(shown), printed), f"$ {command}\n{printed}"
        assert (done.returncode == 0) == ("error:" not in shown), printed


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the sources, which a page may add to, without the tests of others."""
    for name in PACKAGE:
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "tests/conftest.py", "tests/filecheck/test_filecheck.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "tests" / "filecheck" / "passes").mkdir()
    shutil.copytree(DOCS / "examples", tmp_path / "docs" / "examples", dirs_exist_ok=True)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_does_what_it_says(page: Path, checkout: Path, tmp_path_factory: pytest.TempPathFactory):
    environment = {
        **os.environ,
        "PYTHONPATH": str(checkout),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "EMMY_CACHE_DIR": str(tmp_path_factory.mktemp("cache")),
    }
    ran = 0
    for block in blocks_of(page):
        if block.language == "console":
            run_console(block.text, checkout, environment)
            ran += 1
        elif block.title is not None and block.language == "diff":
            apply_diff(checkout / block.title, block.text)
        elif block.title is not None:
            (checkout / block.title).parent.mkdir(parents=True, exist_ok=True)
            (checkout / block.title).write_text(block.text)
    assert ran


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_that_a_page_names_exist(page: Path):
    text = page.read_text()
    written = {block.title for block in blocks_of(page)}
    for name in re.findall(r"`((?:emmy|passes|dialects|lowering|tests|docs)/[\w/.*]+)`", text):
        assert name in written or (ROOT / name).exists(), name
    sources = "".join(path.read_text() for path in (ROOT / "emmy").rglob("*.py"))
    sources += "".join(path.read_text() for folder in PACKAGE[1:] for path in (ROOT / folder).glob("*.py"))
    for name in re.findall(r"`(_?[A-Z][A-Z_]+)`", text):
        assert re.search(rf"^{name}\b", sources, re.MULTILINE), name


def test_the_site_has_every_page():
    nav = (DOCS / "site" / "mkdocs.yml").read_text()
    for page in [*DOCS.glob("*.md"), *DOCS.glob("guide/*.md")]:
        assert f"- {page.relative_to(DOCS)}\n" in nav


def test_the_pictures_are_what_the_guide_draws(tmp_path: Path):
    for command in re.findall(r"^\$ emmy (view layout .*)$", (DOCS / "guide" / "level3.md").read_text(), re.MULTILINE):
        *words, name = command.split()
        assert cli.main([*words, str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_text() == (DOCS / "guide" / name).read_text()
    assert len(list(tmp_path.iterdir())) == 2


def test_the_command_line_page_has_every_option():
    page = command_line_page(ROOT)
    for place in (*places_of(complete_parser(), "emmy"), *places_of(make_parser(), "emmy-opt")):
        for option in {*place.options} - {"-h", "--help"}:
            assert f"`{option}" in page.partition(f"## `{place.path}`\n")[2].partition("\n## ")[0], option


def test_diffs_and_patterns(tmp_path: Path):
    path = tmp_path / "f"
    path.write_text("a\nb\n")
    apply_diff(path, " a\n+x\n+y\n")
    assert path.read_text() == "a\nx\ny\nb\n"
    with pytest.raises(AssertionError, match="no line 'z'"):
        apply_diff(path, " z\n+x\n")
    assert re.fullmatch(pattern_of("a\n...\nb...d\n"), "a\n1\n2\nbcd\n")
    assert not re.fullmatch(pattern_of("a\nb\n"), "a\nc\n")


def test_every_file_is_counted_once():
    rows = re.findall(r"^\| (.*?) \| (\d+) \|", area_table(ROOT), re.MULTILINE)
    files = sum(int(number) for name, number in rows if not name.startswith("**"))
    assert files == len([path for folder in (*PACKAGE[1:], "emmy", "tests") for path in (ROOT / folder).rglob("*.py")])


def test_counts_may_be_off_by_little():
    assert still_true("| a | 1,000 |", "| a | 1,049 |")
    assert not still_true("| a | 1,000 |", "| a | 1,060 |")
    assert not still_true("| a | 1,000 |", "| b | 1,000 |")


def test_the_path_of_one_gemm_has_the_passes_that_change_it():
    page = (DOCS / "guide" / "reading.md").read_text()
    changing = re.findall(r"^\.\.\._(.*)\.mlir$", page, re.MULTILINE)
    assert [name for name in changing if name not in ("canonicalize", "cse")] == re.findall(
        r"passes\.md#([\w-]+)\)", page
    )
