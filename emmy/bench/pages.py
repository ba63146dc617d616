"""What generated pages share: Markdown tables, figures, and the commands that write a page or say that it is out of date."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from emmy.errors import EmmyError


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; every column but the first is right-aligned."""
    lines = [f"| {' | '.join(header)} |", f"| --- |{' ---: |' * (len(header) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def figure(value: float | None, form: str = ".3f", scale: float = 1.0) -> str:
    """A number, or a dash."""
    return "-" if value is None else format(value * scale, form)


def wrapped(text: str, indent: str = "") -> str:
    """A generated sentence in lines of a page's width; `indent` begins every line but the first."""
    return textwrap.fill(text, 126, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def told(action: Callable[[], int]) -> int:
    """The exit code of `action()`, or 1 after printing what is wrong."""
    try:
        return action()
    except EmmyError as error:
        print(error, file=sys.stderr)
        return 1


def write_or_check(path: Path, text: str, check: bool) -> int:
    """Write a page, or say whether it is up to date; the exit code."""
    if path.is_file() and path.read_text() == text:
        return 0
    if not check:
        path.write_text(text)
    print(f"{path} {'is out of date' if check else 'written'}")
    return 1 if check else 0
