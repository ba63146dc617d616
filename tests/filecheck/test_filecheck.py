"""Runs the `// RUN:` lines of tests/filecheck/**/*.mlir, in this process: a few milliseconds each.

A RUN line is a pipeline of `emmy-opt`, `emmy`, `xdsl-opt` (each optionally behind `not`, and with `2>&1` for its
errors) and `filecheck`; `%s` is the file, `%t` a fresh path, a trailing backslash continues the line:

    // RUN: emmy-opt %s -p 'cse' | filecheck %s
    // RUN: not emmy-opt %s -p 'no-such-pass' 2>&1 | filecheck %s --check-prefix ERROR
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import parse_argv_options
from filecheck.parser import Parser

from emmy.tools import cli, opt

HERE = Path(__file__).parent
FILES = sorted(HERE.rglob("*.mlir"))
TOOLS = {"emmy-opt": opt.main, "emmy": cli.main}


@dataclass
class Outcome:
    """What one program of a pipeline did. `output` goes to the next one."""

    code: int
    output: str
    errors: str


def run_lines(path: Path) -> list[str]:
    """The commands of the file's RUN lines, continuations joined."""
    lines: list[str] = []
    continued = False
    for line in path.read_text().splitlines():
        match = re.match(r"\s*//\s*RUN:\s*(.*?)\s*$", line)
        if not match:
            continue
        text = match[1]
        if continued:
            lines[-1] += " " + text.removesuffix("\\").strip()
        else:
            lines.append(text.removesuffix("\\").strip())
        continued = text.endswith("\\")
    return lines


def split_pipeline(command: str) -> list[list[str]]:
    """The words of each program between the pipes."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|")
    lexer.whitespace_split = True
    lexer.commenters = ""
    programs: list[list[str]] = [[]]
    for word in lexer:
        if word == "|":
            programs.append([])
        else:
            programs[-1].append(word)
    return programs


@contextlib.contextmanager
def standard_streams(text: str):
    """Replace stdin by `text` and capture stdout and stderr; all three have a `buffer`, as real ones do."""
    streams = [io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2)]
    saved = sys.stdin, sys.stdout, sys.stderr
    sys.stdin = io.TextIOWrapper(io.BytesIO(text.encode()))
    sys.stdout, sys.stderr = streams
    try:
        yield streams
    finally:
        sys.stdin, sys.stdout, sys.stderr = saved


def run_tool(words: list[str], text: str) -> Outcome:
    """Run one of `TOOLS` with `text` as its standard input."""
    merged, inverted = "2>&1" in words, words[0] == "not"
    words = [word for word in words if word != "2>&1"][inverted:]
    if words[0] not in TOOLS:
        raise ValueError(f"'{words[0]}' is none of filecheck, {', '.join(TOOLS)}")
    with standard_streams(text) as (out, err):
        if merged:
            sys.stderr = sys.stdout
        try:
            code = TOOLS[words[0]](words[1:])
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 2
    output, errors = (stream.buffer.getvalue().decode() for stream in (out, err))
    return Outcome(int(not code) if inverted else code, output, errors)


def run_filecheck(words: list[str], text: str) -> Outcome:
    """Match `text` against the checks of the file that `words` names."""
    options = parse_argv_options(list(words))
    matcher = Matcher(options, FInput("<stdin>", text), Parser.from_opts(options))
    matcher.stderr = io.StringIO()
    return Outcome(matcher.run(), "", matcher.stderr.getvalue())


def run_pipeline(command: str) -> str | None:
    """None, or a report of what failed."""
    text, given = "", ""
    for words in split_pipeline(command):
        is_check = words[0] == "filecheck"
        outcome = run_filecheck(words, text) if is_check else run_tool(words, text)
        if outcome.code:
            report = [f"RUN: {command}", f"{words[0]} exits with {outcome.code}", outcome.errors.rstrip()]
            if is_check:
                numbered = [f"{n:4} | {line}" for n, line in enumerate(given.splitlines(), 1)]
                report += ["---- its input was", *numbered]
            return "\n".join(report)
        text = given = outcome.output
    return None


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(HERE)) for path in FILES])
def test_file(path: Path, tmp_path: Path):
    commands = run_lines(path)
    assert commands, f"{path} has no RUN line"
    for number, command in enumerate(commands):
        command = command.replace("%s", shlex.quote(str(path))).replace("%t", shlex.quote(str(tmp_path / str(number))))
        failure = run_pipeline(command)
        if failure is not None:
            pytest.fail(failure, pytrace=False)


def test_a_failed_check_is_reported(tmp_path: Path):
    path = tmp_path / "bad.mlir"
    path.write_text("// CHECK: no such line\nbuiltin.module {}\n")
    failure = run_pipeline(f"emmy-opt {path} | filecheck {path}")
    assert failure is not None
    assert "filecheck exits with 1" in failure
    assert "builtin.module" in failure


def test_exit_codes_count(tmp_path: Path):
    path = tmp_path / "good.mlir"
    path.write_text("// CHECK: error\nbuiltin.module {}\n")
    assert "not exits with 1" in (run_pipeline(f"not emmy-opt {path}") or "")
    assert run_pipeline(f"not emmy-opt {path} -p no-such-pass 2>&1 | filecheck {path}") is None
