"""Line charts with logarithmic axes, and bars, as SVG text: for pages of docs/, the same from the same figures everywhere."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 80, 170, 40, 60
COLOURS = ("#000000", "#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7", "#999999")
"""Distinguishable with colour blindness (Okabe and Ito, "Color Universal Design", 2008)."""

Series = Mapping[str, Sequence[tuple[float, float]]]


def line_chart(series: Series, title: str, x_label: str, y_label: str) -> str:
    """Lines through (x, y), both positive; x ticks where there are points, y ticks at powers of ten."""
    points = [point for line in series.values() for point in line]
    xs = sorted({x for x, _ in points})
    low, high = (edge(math.log10(pick(y for _, y in points))) for edge, pick in ((math.floor, min), (math.ceil, max)))
    high = max(high, low + 1)
    span = math.log(xs[-1] / xs[0]) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / xs[0]) / span
        up = (math.log10(y) - low) / (high - low)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(WIDTH / 2, 22, title, "middle", 15),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 16, x_label, "middle"),
        f'<g transform="rotate(-90 18 {HEIGHT / 2:g})">{_text(18, HEIGHT / 2, y_label, "middle")}</g>',
    ]
    for power in range(low, high + 1):
        _, y = place(xs[0], 10.0**power)
        parts += [_line(LEFT, y, WIDTH - RIGHT, y, "#dddddd"), _text(LEFT - 8, y + 4, f"1e{power}", "end")]
    for x in xs:
        at, _ = place(x, 10.0**low)
        parts += [
            _line(at, HEIGHT - BOTTOM, at, HEIGHT - BOTTOM + 5, "black"),
            _text(at, HEIGHT - BOTTOM + 20, f"{x:g}", "middle"),
        ]
    for index, (label, line) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        corners = " ".join(f"{a:.1f},{b:.1f}" for a, b in (place(x, y) for x, y in line))
        parts.append(f'<polyline points="{corners}" fill="none" stroke="{colour}" stroke-width="2"/>')
        key = TOP + 10 + 20 * index
        parts += [
            _line(WIDTH - RIGHT + 15, key, WIDTH - RIGHT + 40, key, colour, 2),
            _text(WIDTH - RIGHT + 46, key + 4, label),
        ]
    return "\n".join([*parts, "</svg>", ""])


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: int = 1) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 13) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{html.escape(text)}</text>'


def bar_chart(series: Mapping[str, Sequence[float | None]], names: Sequence[str], title: str, y_label: str) -> str:
    """Bars of each series side by side for each name, from zero; None leaves a gap. Names are written below, slanted."""
    most = max(value for values in series.values() for value in values if value is not None)
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10**9) if most / s <= 8)
    top = math.ceil(most / step) * step
    width, bottom = LEFT + RIGHT + max(len(names) * 52, 300), 130
    group = (width - LEFT - RIGHT) / len(names)
    bar = 0.8 * group / len(series)

    def up(value: float) -> float:
        return HEIGHT - bottom - value / top * (HEIGHT - bottom - TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {HEIGHT}" font-family="sans-serif" font-size="13">',
        f'<rect width="{width:g}" height="{HEIGHT}" fill="white"/>',
        _text(width / 2, 22, title, "middle", 15),
        f'<g transform="rotate(-90 18 {HEIGHT / 2:g})">{_text(18, HEIGHT / 2, y_label, "middle")}</g>',
    ]
    for value in range(0, top + 1, step):
        parts += [
            _line(LEFT, up(value), width - RIGHT, up(value), "#dddddd"),
            _text(LEFT - 8, up(value) + 4, f"{value}", "end"),
        ]
    for place, name in enumerate(names):
        x, y = LEFT + (place + 0.5) * group, HEIGHT - bottom + 16
        parts.append(f'<g transform="rotate(-35 {x:.1f} {y})">{_text(x, y, name, "end", 11)}</g>')
    for index, (label, values) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        for place, value in enumerate(values):
            if value is not None:
                left = LEFT + place * group + 0.1 * group + index * bar
                size = f'width="{bar:.1f}" height="{HEIGHT - bottom - up(value):.1f}"'
                said = html.escape(f"{label}, {names[place]}: {value:.0f}")
                parts.append(
                    f'<rect x="{left:.1f}" y="{up(value):.1f}" {size} fill="{colour}"><title>{said}</title></rect>'
                )
        key = TOP + 10 + 20 * index
        parts += [
            f'<rect x="{width - RIGHT + 15:.1f}" y="{key - 6}" width="25" height="12" fill="{colour}"/>',
            _text(width - RIGHT + 46, key + 4, label),
        ]
    return "\n".join([*parts, "</svg>", ""])
