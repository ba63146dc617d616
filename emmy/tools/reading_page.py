"""The counted parts of `docs/guide/reading.md`: how long each area is, and the files that one GEMM passes through.

The page is written by hand but for the lines between `<!-- counted NAME -->` and `<!-- end -->`. Counts that are off by less than
`TOLERANCE` stay, so that the page is not out of date after every edit.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

from emmy.bench.pages import markdown_table

PAGE = "docs/guide/reading.md"
TOLERANCE = 0.05
"""Of a count: what it may differ from the truth."""

AREAS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("[Dialects](#dialects)", ("dialects/*.py",)),
    ("[Passes](#passes)", ("passes/*.py",)),
    ("[Lowering](#lowering)", ("lowering/**/*.py",)),
    (
        "[Tables and choices](#tables-and-choices)",
        (
            "emmy/targets.py",
            "emmy/atoms.py",
            "emmy/elementwise.py",
            "emmy/variants.py",
            "emmy/schedule*.py",
            "emmy/chained_schedules.py",
            "emmy/layout/*.py",
        ),
    ),
    (
        "[The front door](#the-front-door)",
        (
            "emmy/__init__.py",
            "emmy/compil*.py",
            "emmy/ir.py",
            "emmy/pipelines.py",
            "emmy/registry.py",
            "emmy/universe.py",
            "emmy/ptx_target.py",
            "emmy/options.py",
            "emmy/parameters.py",
            "emmy/function_checks.py",
            "emmy/explain.py",
            "emmy/launch_plan.py",
            "emmy/launch_facts.py",
            "emmy/launch_expressions.py",
            "emmy/errors.py",
            "emmy/locations.py",
            "emmy/files.py",
            "emmy/progress.py",
        ),
    ),
    ("[Interpreters](#interpreters)", ("emmy/interpreters/*.py",)),
    ("[Emulator](#emulator)", ("emmy/emulator/*.py",)),
    ("[Tools](#tools)", ("emmy/tools/*.py", "emmy/views/*.py")),
    ("[Benchmarks](#benchmarks)", ("emmy/bench/*.py",)),
    ("[Running kernels](#running-kernels)", ("emmy/*.py",)),
    ("[Tests](#tests)", ("tests/**/*.py",)),
)
"""Area -> patterns of its files; a file belongs to the first area that has it."""

COMPILER = 5
"""The first so many areas are what turns text into PTX."""

COUNTED = re.compile(r"(<!-- counted (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
NUMBER = re.compile(r"\d[\d,]*")
FILE = re.compile(r"`((?:emmy|dialects|passes|lowering)/\w[\w/]*\.py)`")


def code_lines(text: str) -> int:
    """Lines that are neither blank, nor a comment, nor part of a docstring."""
    told: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            told.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(1 for number, line in lines if number not in told and line.strip() and line.lstrip()[0] != "#")


def count(files: Iterable[Path]) -> tuple[int, int, int]:
    """How many files, lines, and lines of code."""
    texts = [path.read_text() for path in files]
    return len(texts), sum(len(text.splitlines()) for text in texts), sum(map(code_lines, texts))


def area_table(root: Path) -> str:
    """One row an area, and sums: of the compiler, and of all but the tests."""
    taken: set[Path] = set()
    counts: list[tuple[int, int, int]] = []
    for _, patterns in AREAS:
        files = {path for pattern in patterns for path in root.glob(pattern)} - taken
        taken |= files
        counts.append(count(sorted(files)))
    rows = [(name, found) for (name, _), found in zip(AREAS, counts, strict=True)]
    for at, name, last in ((COMPILER, "**text to PTX**", COMPILER), (len(rows), "**all but tests**", len(rows) - 1)):
        files, lines, code = (sum(numbers) for numbers in zip(*counts[:last], strict=True))
        rows.insert(at, (name, (files, lines, code)))
    return markdown_table(
        ["area", "files", "lines", "of code"], [[name, *(f"{number:,}" for number in found)] for name, found in rows]
    )


def path_length(root: Path, page: str) -> str:
    """A sentence: how long the files are that the section on the path of one GEMM names."""
    section = page.partition("\n## The path of one GEMM\n")[2].partition("\n## ")[0]
    names = dict.fromkeys(FILE.findall(section))
    files, lines, code = count(root / name for name in names)
    return f"These {files} files are {lines:,} lines, {code:,} of them code.\n"


def still_true(shown: str, counted: str) -> bool:
    """Whether a text differs in its numbers only, and in these by little."""
    if NUMBER.sub("", shown) != NUMBER.sub("", counted):
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(counted), strict=True)
    numbers = [[int(text.replace(",", "")) for text in pair] for pair in pairs]
    return all(abs(one - other) <= TOLERANCE * max(one, other) for one, other in numbers)


def reading_page(root: Path) -> str:
    """The page with its counts as they are now, or as they were where that is near enough."""
    page = (root / PAGE).read_text()
    made = {"area": area_table(root), "path": path_length(root, page)}

    def counted(match: re.Match[str]) -> str:
        head, name, shown, end = match.groups()
        return head + (shown if still_true(shown, made[name]) else made[name]) + end

    return COUNTED.sub(counted, page)
