"""What README.md shows is what the commands print that it names."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from emmy.tools import cli

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()

SHOWN = re.findall(r"`(emmy [^`]+)`[^`]*\n\n```\w*\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
"""(command, the block of output behind it)."""

EXAMPLES = README.partition("`. .venv/bin/activate`")[2].partition("```sh\n")[2].partition("```")[0].splitlines()


def pattern_of(line: str) -> re.Pattern[str]:
    """A line that is shown, without its indentation; `..` stands for anything."""
    return re.compile(r"\s*" + re.escape(line.strip()).replace(r"\.\.", ".*"))


@pytest.mark.parametrize(("command", "shown"), SHOWN, ids=[command for command, _ in SHOWN])
def test_what_is_shown_is_printed_in_this_order(
    command: str, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(ROOT)
    assert cli.main(shlex.split(command)[1:]) == 0
    printed = iter(capsys.readouterr().out.splitlines())
    for line in shown.splitlines():
        assert any(pattern_of(line).fullmatch(one) for one in printed), line


def test_four_commands_are_shown_with_their_output():
    assert len(SHOWN) == 4


def test_the_examples_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(ROOT)
    attention, hopper = EXAMPLES
    assert cli.main([*shlex.split(attention)[1:], "--device", "emulator", "--target", "sm_90a"]) == 0
    assert ": ok\n" in capsys.readouterr().out
    assert cli.main(shlex.split(hopper.partition("|")[0])[1:]) == 0
    assert "wgmma.mma_async" in capsys.readouterr().out
