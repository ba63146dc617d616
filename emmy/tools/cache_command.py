"""`emmy cache`: where the artefact cache is, what it holds, and how to empty it."""

from __future__ import annotations

import argparse
import time

from emmy.cache import Cache, size_limit

SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `emmy cache`."""
    parser.add_argument(
        "action",
        choices=("path", "list", "clear"),
        nargs="?",
        default="list",
        help="print the folder; list the entries, the last used first; remove them (default: list)",
    )


def run(args: argparse.Namespace) -> int:
    """Do what was asked for."""
    cache = Cache()
    if args.action == "path":
        print(cache.root)
    elif args.action == "clear":
        print(f"removed {cache.clear()} entries from {cache.root}")
    else:
        entries = cache.entries()
        for entry in reversed(entries):
            used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
            print(f"{entry.path.name[:12]}  {used}  {show_size(entry.size):>9}  {entry.describe()}")
        total = sum(entry.size for entry in entries)
        print(f"{len(entries)} entries, {show_size(total)} of {show_size(size_limit())}, in {cache.root}")
    return 0


def show_size(size: int) -> str:
    """`1.5 MiB`."""
    for unit, name in SIZES:
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"
