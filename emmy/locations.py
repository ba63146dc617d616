"""Where in the IR text an op came from, and how an error shows that place."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from xdsl.dialects.builtin import FileLineColLoc
from xdsl.ir import Operation

from emmy.errors import EmmyError, SourceLocation

EXCERPT = 160
"""How much of a long line an error shows, in characters."""


def location_of(op: Operation | None) -> SourceLocation | None:
    """The place in the text that `op`, or the nearest op around it that has one, came from."""
    while op is not None:
        location = op.location
        if isinstance(location, FileLineColLoc):
            return SourceLocation(location.filename.data, location.line.data, location.column.data)
        op = op.parent_op()
    return None


@contextmanager
def located(op: Operation) -> Generator[None]:
    """An `EmmyError` raised inside gets the place of `op`, unless it has one."""
    try:
        yield
    except EmmyError as error:
        raise EmmyError(error.message, error.location or location_of(op)) from error


def show_error(error: EmmyError, texts: Mapping[str, str]) -> str:
    """The error's sentence and, where its line is at hand, that line with a caret below it.

    `texts` maps file names to their text; a file that is not in it is read.
    """
    place = error.location
    if place is None:
        return str(error)
    text = texts.get(place.file)
    if text is None:
        try:
            text = Path(place.file).read_text()
        except (OSError, UnicodeDecodeError):
            return str(error)
    lines = text.split("\n")
    if not 1 <= place.line <= len(lines) or not lines[place.line - 1].strip():
        return str(error)
    start = max(0, place.column - 1 - EXCERPT // 2)
    line = lines[place.line - 1][start : start + EXCERPT].rstrip()
    indent = "".join("\t" if character == "\t" else " " for character in line[: place.column - 1 - start])
    return f"{error}\n{line}\n{indent}^"
