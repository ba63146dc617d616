"""The IR of one module at every level, side by side in one HTML page that needs nothing else.

Every op knows the place in the text that it came from, through all passes. Lines whose ops came from one source line have
one colour; hovering over a line lights up all of them, a click keeps them lit and brings them into view.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from io import StringIO
from itertools import accumulate

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.printer import Printer

from emmy.compilation import lower, print_kernels
from emmy.locations import location_of
from emmy.options import Options

HUES = (210, 30, 120, 280, 60, 330, 175, 0, 90, 250)
"""One for each source line that has ops, over again when there are more."""


@dataclass
class Panel:
    """One text: its title and, for each line, the line of the source that its op came from, or None."""

    title: str
    lines: list[str]
    sources: list[int | None] = field(default_factory=list[int | None])


class PlacedPrinter(Printer):
    """A printer that remembers at which character each op begins."""

    def __init__(self, stream: StringIO):
        super().__init__(stream)
        self.text = stream
        self.starts: list[tuple[int, Operation]] = []

    def print_op(self, op: Operation) -> None:
        self.starts.append((self.text.tell(), op))
        super().print_op(op)


def print_with_sources(module: ModuleOp, file: str) -> tuple[list[str], list[int | None]]:
    """The module's lines, as `print_module` gives them, and the line of `file` that the first op of each came from."""
    stream = StringIO()
    printer = PlacedPrinter(stream)
    printer.print_op(module)
    lines = stream.getvalue().split("\n")
    begins = list(accumulate((len(line) + 1 for line in lines), initial=0))
    sources: list[int | None] = [None] * len(lines)
    for start, op in printer.starts:
        number = bisect_right(begins, start) - 1
        place = location_of(op)
        if op is not module and sources[number] is None and place is not None and place.file == file:
            sources[number] = place.line
    return lines, sources


def panels_of(text: str, file: str, options: Options, every_pass: bool = False) -> list[Panel]:
    """The source, the module after the last pass of each level (or after every pass), and the PTX. Raises `EmmyError`."""
    seen: list[tuple[str, list[str], list[int | None]]] = []
    lowered = lower(
        text, file, options, observe=lambda name, module: seen.append((name, *print_with_sources(module, file)))
    )
    level = {step.name: step.level for step in lowered.steps}
    order = [step.level for step in lowered.steps]
    panels = [Panel(f"{file}", text.rstrip("\n").split("\n"))]
    for index, (name, lines, sources) in enumerate(seen):
        if name == "input":
            continue
        last = index == len(seen) - 1 or order[index - 1] != order[index]
        if every_pass or last:
            panels.append(Panel(f"{level[name]}, after {name}", lines, sources))
    found = {line for panel in panels for line in panel.sources if line is not None}
    panels[0].sources = [n if n in found else None for n in range(1, len(panels[0].lines) + 1)]
    ptx = print_kernels(lowered.module, options.target).rstrip("\n").split("\n")
    return [*panels, Panel(f"PTX for {options.target}", ptx, [None] * len(ptx))]


# ---- the page --------------------------------------------------------------------------------------------------------

STYLE = """
body { margin: 0; font: 13px/1.4 system-ui, sans-serif; color: #202020; background: #ffffff; }
header { padding: 8px 12px; border-bottom: 1px solid #d0d0d0; }
main { display: flex; overflow-x: auto; height: calc(100vh - 58px); }
section { position: relative; flex: 0 0 auto; max-width: 46vw; overflow: auto; border-right: 1px solid #d0d0d0; }
h2 { position: sticky; top: 0; margin: 0; padding: 6px 10px; font-size: 13px; background: #f0f0f0; }
pre { margin: 0; padding: 6px 0; font: 12px/1.45 ui-monospace, Menlo, Consolas, monospace; }
pre span { display: block; padding: 0 10px; border-left: 4px solid transparent; }
pre span[data-line] { cursor: pointer; }
pre span.hot { background: #ffe58a; }
pre span.kept { background: #ffd23f; }
"""

SCRIPT = """
function matching(line) { return document.querySelectorAll('span[data-line="' + line + '"]'); }
let kept = null;
document.querySelectorAll('span[data-line]').forEach(function (span) {
  const line = span.dataset.line;
  span.addEventListener('mouseenter', function () { matching(line).forEach(function (s) { s.classList.add('hot'); }); });
  span.addEventListener('mouseleave', function () { matching(line).forEach(function (s) { s.classList.remove('hot'); }); });
  span.addEventListener('click', function () {
    if (kept !== null) { matching(kept).forEach(function (s) { s.classList.remove('kept'); }); }
    kept = kept === line ? null : line;
    if (kept === null) { return; }
    matching(line).forEach(function (s) { s.classList.add('kept'); });
    document.querySelectorAll('section').forEach(function (section) {
      const first = section.querySelector('span[data-line="' + line + '"]');
      if (first !== null) { section.scrollTop = first.offsetTop - 60; }
    });
  });
});
"""
"""No character of it means anything to XML, so that the page is well-formed XML too."""


def ir_page(title: str, panels: Sequence[Panel]) -> str:
    """The page. All text is escaped."""
    lines = sorted({line for panel in panels for line in panel.sources if line is not None})
    hues = {line: HUES[i % len(HUES)] for i, line in enumerate(lines)}
    colours = "\n".join(
        f'span[data-line="{n}"] {{ border-left-color: hsl({hue}, 70%, 55%); }}' for n, hue in hues.items()
    )
    sections = "\n".join(_section(panel) for panel in panels)
    return (
        '<!DOCTYPE html>\n<html xmlns="http://www.w3.org/1999/xhtml" lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}{colours}\n</style>\n</head>\n<body>\n"
        f"<header><strong>{escape(title)}</strong>: lines of one colour came from one line of the source. "
        f"Hover to see them, click to keep them.</header>\n<main>\n{sections}\n</main>\n"
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _section(panel: Panel) -> str:
    spans = "".join(_spans(panel.lines, panel.sources))
    return f"<section><h2>{escape(panel.title)}</h2><pre>{spans}</pre></section>"


def _spans(lines: Iterable[str], sources: Iterable[int | None]) -> Iterable[str]:
    for line, source in zip(lines, sources, strict=True):
        place = f' data-line="{source}"' if source is not None else ""
        yield f"<span{place}>{escape(line) or ' '}</span>"
