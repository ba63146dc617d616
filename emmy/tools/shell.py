"""What every command-line tool does with an exception: one sentence on stderr, and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

from emmy.ir import as_emmy_error
from emmy.locations import show_error


def guarded(action: Callable[[], int], texts: Mapping[str, str] | None = None) -> int:
    """The exit code of `action()`, or 1 after printing what went wrong, with the source line where there is one.

    `texts` maps file names to their text, for input that was not read from a file.
    """
    try:
        code = action()
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever reads our output, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 1
    except SystemExit:
        raise
    except BaseException as error:
        print(show_error(as_emmy_error(error, "running the tool"), texts or {}), file=sys.stderr)
        return 1
