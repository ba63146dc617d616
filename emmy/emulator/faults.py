"""Errors of the emulator: a fault inside an instruction, and the user's error that says where it happened."""

from __future__ import annotations

from emmy.errors import EmmyError


class EmulatorError(EmmyError):
    """A PTX text that cannot be run, or a run that broke a rule.

    The message names the PTX line (number and text) and, for a run, the CTA, the warp and the first offending lane.
    `line` is that PTX line's number (from 1; 0 if the error has no line).
    """

    def __init__(self, message: str, line: int = 0):
        super().__init__(message)
        self.line = line


class Fault(Exception):
    """Raised while one instruction runs; the scheduler adds line, CTA and warp and makes an `EmulatorError` of it.

    `line`: the PTX line at fault, where that is not the instruction that runs (a copy that lands later).
    """

    def __init__(self, message: str, warp: int | None = None, lane: int | None = None, line: int = 0):
        super().__init__(message)
        self.message = message
        self.warp = warp
        self.lane = lane
        self.line = line
