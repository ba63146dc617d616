"""Shell completion from the parsers' tables, and the line of progress on a terminal."""

from __future__ import annotations

import io
import shutil
import subprocess
from pathlib import Path

import pytest

from emmy.progress import WIPE, Progress
from emmy.registry import PASSES
from emmy.targets import TARGETS
from emmy.tools import cli
from emmy.tools.cli import BENCH, COMMANDS, complete_parser
from emmy.tools.completion import SHELLS, places_of
from emmy.tools.opt import make_parser


def printed(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The script."""
    with pytest.raises(SystemExit) as caught:
        cli.main(["--completion", shell])
    assert caught.value.code == 0
    return capsys.readouterr().out


LINES = {
    "emmy ": {*COMMANDS, BENCH[0]},
    "emmy co": {"compile"},
    "emmy compile x.mlir --tar": {"--target"},
    "emmy compile x.mlir --target ": set(TARGETS),
    "emmy compile --level til": {"tile"},
    "emmy compile --level c": {"carry-products", "canonicalize", "cse"},
    "emmy run x.mlir --device e": {"emulator"},
    "emmy view ": {"layout", "ir"},
    "emmy view layout --swizzle ": {"auto", "none", "128", "64", "32"},
    "emmy view layout --place b --at": {"--atom"},
    "emmy --completion ": set(SHELLS),
    "/usr/local/bin/emmy ch": {"check"},
    "emmy-opt x.mlir -p lower-t": {name for name in PASSES if name.startswith("lower-t")},
    "emmy-opt --list": {"--list-passes"},
    "emmy compile -o ": set(),
    "emmy run ": set(),
}
"""What stands before the cursor, and what is offered; nothing means files."""

ASK_BASH = """
source completion
COMP_WORDS=({words} '{last}')
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_emmy "${{COMP_WORDS[0]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""

ASK_ZSH = """
compdef() {{ :; }}
compadd() {{ shift; print -l -- "$@"; }}
_files() {{ :; }}
source ./completion
words=({words} '{last}')
CURRENT=$#words
_emmy
"""


@pytest.mark.parametrize("shell", SHELLS)
def test_what_is_offered(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "completion").write_text(printed(shell, capsys))
    for line, wanted in LINES.items():
        *words, last = line.split(" ")
        code = {"bash": ASK_BASH, "zsh": ASK_ZSH}[shell].format(words=" ".join(words), last=last)
        done = subprocess.run([shell, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.stderr == ""
        offered = {word for word in done.stdout.split() if word.startswith(last)}
        assert offered == wanted, line


def test_every_option_is_in_the_scripts(capsys: pytest.CaptureFixture[str]):
    for shell in SHELLS:
        text = printed(shell, capsys)
        assert "@" not in text.replace("[@]", "").replace("(@)", "")
        for place in (*places_of(complete_parser(), "emmy"), *places_of(make_parser(), "emmy-opt")):
            assert f"'{place.path}'" in text
            assert all(word in text for word in (*place.plain, *place.options))


# ---- progress --------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_that_is_wiped():
    stream = Terminal()
    with Progress(stream) as progress:
        progress.tell("1 of 2: first")
        progress.tell("2 of 2: " + "x" * 1000)
    assert stream.getvalue().startswith(f"{WIPE}1 of 2: first{WIPE}2 of 2: xxx")
    assert stream.getvalue().endswith(WIPE)
    assert "\n" not in stream.getvalue()
    assert max(len(line) for line in stream.getvalue().split(WIPE)) < shutil.get_terminal_size().columns


def test_progress_is_silent_where_nobody_watches():
    stream = io.StringIO()
    with Progress(stream) as progress:
        progress.tell("1 of 2")
        progress.count_seconds("emulating", 30)
        progress.clear()
    assert stream.getvalue() == ""


def test_seconds_are_counted_until_the_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("emmy.progress.TICK_SECONDS", 0.01)
    stream = Terminal()
    with Progress(stream) as progress:
        progress.count_seconds("emulating", 30)
        while "of about 30" not in stream.getvalue():
            pass
    told = stream.getvalue()
    assert "emulating: 0 s of about 30" in told
    assert told.endswith(WIPE)


def test_check_tells_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    path, stream = tmp_path / "f.mlir", Terminal()
    path.write_text(
        "func.func @f(%a: tensor<4x8xf16>) -> tensor<4x8xf16> {\n"
        "  %c = tensor_op.map neg %a : (tensor<4x8xf16>) -> tensor<4x8xf16>\n  func.return %c : tensor<4x8xf16>\n}\n"
    )
    monkeypatch.setattr("emmy.tools.check_command.Progress", lambda: Progress(stream))
    assert cli.main(["check", str(path), "--target", "sm_80"]) == 0
    lines = stream.getvalue().split(WIPE)
    assert "lowering to every level" in lines
    assert any(line.startswith("1 of ") for line in lines)
    assert lines[-1] == ""
    assert capsys.readouterr().err == ""
