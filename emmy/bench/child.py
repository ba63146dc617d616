"""A child process that answers requests and can be killed: a GPU kernel that hangs cannot be stopped otherwise.

Requests and answers are JSON, one a line. One child serves many requests, since starting one costs seconds; after a
crash, a timeout or an answer with `"fatal"`, it is thrown away and the next request starts another.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from typing import IO, Any, cast

STDERR_TAIL = 600


class ChildFailed(Exception):
    """The child crashed or did not answer in time; the message says which and ends with what it printed last."""


class Child:
    """Runs `command` when it is first needed. It must print `{"ready": true}` before it takes requests, or
    `{"ready": false, "message": ...}` if it cannot."""

    def __init__(
        self, command: Sequence[str], startup_seconds: float = 180.0, environment: dict[str, str] | None = None
    ):
        self.command = list(command)
        self.startup_seconds = startup_seconds
        self.environment = environment
        self.starts = 0
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._stderr: IO[bytes] | None = None

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send a request and wait at most `seconds` for its answer. Raises `ChildFailed`; the child is gone then."""
        if self._process is None:
            self._start()
        process = cast("subprocess.Popen[str]", self._process)
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        except OSError:
            pass  # it has died: the answer's end of file says so, with its exit status
        answer = self._answer(seconds)
        if answer.get("fatal"):
            self.stop()
        return answer

    def stop(self) -> None:
        """Kill the child, if there is one, and all that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            pass  # stuck in the driver; the next child can only try
        for stream in (process.stdin, process.stdout, self._stderr):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    pass

    def _start(self) -> None:
        self._stderr = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env=self.environment,
            start_new_session=True,
        )
        self.starts += 1
        # Each child has its own queue, so that a late line of a killed one is never taken for an answer.
        self._lines = queue.Queue()
        threading.Thread(target=_forward, args=(self._process.stdout, self._lines), daemon=True).start()
        greeting = self._answer(self.startup_seconds)
        if not greeting.get("ready"):
            self.stop()
            raise ChildFailed(str(greeting.get("message", "the process is not ready")))

    def _answer(self, seconds: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise self._failure(f"no answer within {seconds:g} s: killed") from None
        if line is None:
            process = cast("subprocess.Popen[str]", self._process)
            try:
                status = process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                status = None
            raise self._failure(f"the process ended with status {status}")
        try:
            return json.loads(line)
        except ValueError:
            raise self._failure(f"unreadable answer {line[:80]!r}") from None

    def _failure(self, message: str) -> ChildFailed:
        """Read what the child printed last, kill it, and make the exception."""
        tail = ""
        if self._stderr is not None:
            size = self._stderr.seek(0, os.SEEK_END)
            self._stderr.seek(max(0, size - STDERR_TAIL))
            tail = self._stderr.read().decode(errors="replace").strip()
        self.stop()
        return ChildFailed(f"{message}\n{tail}" if tail else message)


def _forward(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    """Move a child's lines to a queue; None marks its end."""
    try:
        for line in stream:
            lines.put(line)
    except ValueError:
        pass  # closed while reading: the child was killed
    lines.put(None)
