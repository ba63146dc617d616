"""Progress of long work: one line on a terminal's stderr, written over and wiped away; nothing where nobody watches."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from types import TracebackType
from typing import Self, TextIO

WIPE = "\r\x1b[K"
"""To the line's beginning, and erase it (ECMA-48, EL)."""

TICK_SECONDS = 0.5


class Progress:
    """`with Progress() as progress: progress.tell("3 of 18: matmul")`. Silent if `stream` (stderr) is no terminal."""

    def __init__(self, stream: TextIO | None = None):
        self.stream = sys.stderr if stream is None else stream
        self.live = self.stream.isatty()
        self._stop = threading.Event()
        self._ticker: threading.Thread | None = None

    def tell(self, text: str) -> None:
        """Show `text` in place of what was shown before."""
        if self.live:
            width = shutil.get_terminal_size().columns - 1
            self.stream.write(WIPE + text[:width])
            self.stream.flush()

    def clear(self) -> None:
        """Wipe the line, for example before something else is printed."""
        if self.live:
            self.stream.write(WIPE)
            self.stream.flush()

    def count_seconds(self, text: str, expected: float | None = None) -> None:
        """Show `text` and the seconds that have passed, until the `with` block ends. `expected`: how many it may take."""
        if not self.live or self._ticker is not None:
            return
        start, of = time.monotonic(), "" if expected is None else f" of about {expected:.0f}"

        def tick() -> None:
            while not self._stop.wait(TICK_SECONDS):
                self.tell(f"{text}: {time.monotonic() - start:.0f} s{of}")

        self._ticker = threading.Thread(target=tick, daemon=True)
        self._ticker.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._ticker is not None:
            self._ticker.join()
        self.clear()
