"""The one exception that a user sees: a sentence, and where in the IR it applies."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SourceLocation:
    """A position in the IR text. `line` and `column` count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class EmmyError(Exception):
    """What was asked, what is wrong, what would do; `location` says where, if the fault has a place in the text."""

    def __init__(self, message: str, location: SourceLocation | None = None):
        super().__init__(message)
        self.message = message
        self.location = location

    def __str__(self) -> str:
        return f"{self.location}: error: {self.message}" if self.location else f"error: {self.message}"


def missing_module(error: ModuleNotFoundError) -> Exception:
    """What to raise for a module that this Python has not: of xDSL a sentence, else the error itself."""
    if error.name is None or error.name.partition(".")[0] != "xdsl":
        return error
    return EmmyError(
        "xDSL is not installed; without it there are only emmy.load and emmy bench DIR (emmy's dependencies bring it)"
    )
