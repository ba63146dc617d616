"""Loops cut out of the text of a kernel, for the generated pages."""

from __future__ import annotations

import inspect
import re


def loop_around(text: str, words: str) -> str:
    """The `scf.for` nearest before the first line of IR that has `words`, without its indentation."""
    lines = text.splitlines()
    found = next(i for i, line in enumerate(lines) if words in line)
    start = max(i for i, line in enumerate(lines[:found]) if "scf.for" in line)
    indent = len(lines[start]) - len(lines[start].lstrip())
    end = next(i for i in range(start + 1, len(lines)) if lines[i].startswith(" " * indent + "}"))
    return inspect.cleandoc("\n" + "\n".join(lines[start : end + 1]))


def main_loop(ptx: str, product: str) -> str:
    """The lines of the innermost loop of PTX that holds an instruction `product`, from its label to its branch."""
    lines = ptx.splitlines()
    loops: list[tuple[int, int]] = []
    labels = {line.strip().rstrip(":"): i for i, line in enumerate(lines) if re.fullmatch(r"\s*[$\w]+:", line)}
    for i, line in enumerate(lines):
        match = re.search(r"\bbra(?:\.uni)?\s+([$\w]+);", line)
        if match and labels.get(match[1], i) < i and any(product in inner for inner in lines[labels[match[1]] : i]):
            loops.append((labels[match[1]], i))
    start, end = min(loops, key=lambda loop: loop[1] - loop[0])
    return "\n".join(lines[start : end + 1])
