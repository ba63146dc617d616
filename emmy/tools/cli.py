"""`emmy`: compile, run and check kernels from the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run emmy on `argv` (default: the process's arguments); the exit code."""
    argparse.ArgumentParser(prog="emmy", description=__doc__).parse_args(argv)
    return 0


if __name__ == "__main__":
    sys.exit(main())
