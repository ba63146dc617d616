"""A grid of labelled, coloured cells as SVG: what both kinds of layout are drawn as. Integers only, so that output repeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

MARGIN = 12
LINE = 18
ROW_LABELS = 44
FONT = "font-family='ui-monospace, Menlo, Consolas, &quot;DejaVu Sans Mono&quot;, monospace'"


@dataclass(frozen=True)
class Cell:
    """One rectangle: what it says, its fill (a CSS colour), and what it says in full (a tooltip)."""

    text: str
    fill: str
    title: str


@dataclass(frozen=True)
class Grid:
    """A picture: `caption` lines, a legend, and rows of cells with a label for each row and each column.

    `heavy`: (rows, columns) after which a thicker line is drawn, such as the extent of an atom.
    """

    caption: Sequence[str]
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    cell_width: int
    cell_height: int = 18
    legend: Sequence[tuple[str, str]] = ()
    heavy: tuple[int, int] | None = None
    notes: Sequence[str] = field(default=())


def draw(grid: Grid) -> str:
    """The SVG document, ending in a newline."""
    left = MARGIN + ROW_LABELS
    top = MARGIN + LINE * (len(grid.caption) + (2 if grid.legend else 0)) + LINE
    needed = [left + grid.cell_width * len(grid.columns), MARGIN + 8 * max(map(len, grid.caption))]
    width = max(*needed, MARGIN + sum(_legend_width(text) for text, _ in grid.legend)) + MARGIN
    bottom = top + grid.cell_height * len(grid.rows)
    height = bottom + LINE * len(grid.notes) + MARGIN
    body = [_text(MARGIN, MARGIN + LINE * i + 12, line, 13) for i, line in enumerate(grid.caption)]
    body += _legend(grid.legend, MARGIN + LINE * len(grid.caption))
    body += [
        _text(left + grid.cell_width * i + grid.cell_width // 2, top - 5, label, 10, "middle")
        for i, label in enumerate(grid.columns)
    ]
    for r, (label, cells) in enumerate(grid.rows):
        y = top + grid.cell_height * r
        body.append(_text(left - 6, y + grid.cell_height - 5, label, 10, "end"))
        for c, cell in enumerate(cells):
            body += _cell(cell, left + grid.cell_width * c, y, grid.cell_width, grid.cell_height)
    body += _heavy_lines(grid, left, top)
    body += [_text(MARGIN, bottom + LINE * (i + 1), line, 11) for i, line in enumerate(grid.notes)]
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {FONT}>'
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="#ffffff"/>', *body, "</svg>"]) + "\n"


def _text(x: int, y: int, text: str, size: int, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}">{escape(text)}</text>'


def _cell(cell: Cell, x: int, y: int, width: int, height: int) -> list[str]:
    box = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{escape(cell.fill)}" stroke="#ffffff"/>'
    label = _text(x + width // 2, y + height - 5, cell.text, 10, "middle")
    return [f"<g><title>{escape(cell.title)}</title>{box}{label}</g>"]


def _legend(entries: Sequence[tuple[str, str]], y: int) -> list[str]:
    parts: list[str] = []
    x = MARGIN
    for text, fill in entries:
        parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{escape(fill)}"/>')
        parts.append(_text(x + 16, y + 11, text, 11))
        x += _legend_width(text)
    return parts


def _legend_width(text: str) -> int:
    return 28 + 7 * len(text)


def _heavy_lines(grid: Grid, left: int, top: int) -> list[str]:
    if grid.heavy is None:
        return []
    rows, columns = grid.heavy
    right, bottom = left + grid.cell_width * len(grid.columns), top + grid.cell_height * len(grid.rows)
    xs = range(left, right + 1, grid.cell_width * columns)
    ys = range(top, bottom + 1, grid.cell_height * rows)
    lines = [(x, top, x, bottom) for x in xs] + [(left, y, right, y) for y in ys]
    return [f'<path d="M{a} {b}L{c} {d}" stroke="#202020" stroke-width="2"/>' for a, b, c, d in lines]
