"""Ablations: every combination of some decisions, and what each decision is worth with all the others left as they are.

An axis is a field of the schedule, or `accumulate`, with the values to try. `python -m emmy.bench.prepare --ablate` compiles
the cross product; the tables here are made from what `emmy.bench.run` found.
"""

from __future__ import annotations

import ast
import itertools
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from emmy.bench.pages import figure, markdown_table
from emmy.bench.records import Record, Run, base_name
from emmy.bench.table import geometric_mean
from emmy.errors import EmmyError

AXES: dict[str, tuple[Any, ...]] = {
    "roles": ("unified", "specialized"),
    "stages": (2, 3, 4),
    "transport": ("cp_async", "tma"),
    "accumulate": ("f32", "hybrid, max_k = 64", "hybrid, max_k = 128", "f16"),
    "fragments": (1, 2),
    "prefetch": (0, 1),
    "delay": (0, 1, 2),
    "raster": (1, 8),
    "opt_level": (3, 1),
    "epilogue": ("shared", "direct"),
}
"""What `--ablate FIELD` tries, the value that the others are compared with first."""


def parse_axes(text: str) -> dict[str, tuple[Any, ...]]:
    """`roles,stages=2|4` as axes. Raises `EmmyError` for a field without values of its own that gives none."""
    axes: dict[str, tuple[Any, ...]] = {}
    for item in text.split(","):
        name, equals, values = item.strip().partition("=")
        if equals:
            axes[name] = tuple(_literal(value) for value in values.split("|"))
        elif name in AXES:
            axes[name] = AXES[name]
        else:
            raise EmmyError(
                f"--ablate knows no values for '{name}'; write {name}=VALUE|VALUE, or use {', '.join(AXES)}"
            )
    return axes


def _literal(text: str) -> Any:
    """A Python literal, or the text itself: words need no quotes, and a policy's comma is written `;`."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text.replace(";", ",")


def cross_product(axes: dict[str, tuple[Any, ...]]) -> dict[str, dict[str, Any]]:
    """Variant name -> its settings, for every combination."""
    combinations = itertools.product(*axes.values())
    return {variant_name(settings): settings for settings in (dict(zip(axes, c, strict=True)) for c in combinations)}


def variant_name(settings: dict[str, Any]) -> str:
    """Short, and fit for a folder: the values, with the field's name before a number."""
    return "-".join(_word(name, value) for name, value in settings.items())


def _word(name: str, value: Any) -> str:
    if isinstance(value, str):
        return "".join(character for character in value.replace("max_k", "") if character.isalnum() or character == "_")
    if isinstance(value, tuple):
        return name + "x".join(map(str, cast("tuple[Any, ...]", value)))
    return f"{name}{value}"


# ---- tables ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Effect:
    """Speed of one value over that of the axis's first value, all else equal: over pairs of like cases.

    least, most: the extreme ratios, and the settings beside the axis where they occur.
    """

    axis: str
    value: Any
    baseline: Any
    mean: float
    pairs: int
    least: tuple[float, str]
    most: tuple[float, str]


def effects(run: Run) -> list[Effect]:
    """The effect of each value of each axis; values without a pair are left out."""
    cases = [case for case in run.timed if case.get("settings")]
    values: dict[str, list[Any]] = defaultdict(list)
    for case in cases:
        for axis, value in case["settings"].items():
            if value not in values[axis]:
                values[axis].append(value)
    return [
        effect
        for axis, tried in values.items()
        for value in tried[1:]
        if (effect := _effect(cases, axis, value, tried[0])) is not None
    ]


def _effect(cases: Sequence[Record], axis: str, value: Any, baseline: Any) -> Effect | None:
    """Pairs of correct cases that differ in this axis only."""

    def others(case: Record) -> dict[str, Any]:
        return {name: chosen for name, chosen in case["settings"].items() if name != axis}

    first = {
        (base_name(case), json.dumps(others(case))): _speed(case)
        for case in cases
        if case["settings"].get(axis) == baseline
    }
    ratios: list[tuple[float, str]] = []
    for case in cases:
        key = (base_name(case), json.dumps(others(case)))
        if case["settings"].get(axis) == value and key in first:
            ratios.append((_speed(case) / first[key], f"{base_name(case)} {variant_name(others(case))}".strip()))
    mean = geometric_mean([ratio for ratio, _ in ratios])
    return None if mean is None else Effect(axis, value, baseline, mean, len(ratios), min(ratios), max(ratios))


def _speed(case: Record) -> float:
    """The ratio to cuBLAS, which the card's clock does not move, or the rate."""
    return case.get("ratio") or 1.0 / case["us"]


def ablation_tables(run: Run) -> list[str]:
    """What each value is worth, and in words; nothing for variants that do not set the same fields: they are no product."""
    fields = {tuple(case.get("settings", ())) for case in run.cases}
    found = effects(run) if len(fields) == 1 else []
    if not found:
        return []
    rows = [
        [
            f"{e.axis}: {e.value} against {e.baseline}",
            figure(e.mean),
            str(e.pairs),
            f"{e.least[0]:.3f} ({e.least[1]})",
            f"{e.most[0]:.3f} ({e.most[1]})",
        ]
        for e in found
    ]
    table = markdown_table(["all else equal", "speed", "pairs", "least", "most"], rows)
    return [table, "\n".join(map(lesson, found)) + "\n"]


NOISE = 0.01
"""What two runs of one kernel differ by."""


def lesson(effect: Effect) -> str:
    """One effect as a sentence."""
    change = effect.mean - 1
    if abs(change) <= NOISE:
        said = "makes no difference on average"
    else:
        said = f"is {'faster' if change > 0 else 'slower'} by {abs(change) * 100:.0f} %"
    spread = effect.most[0] - effect.least[0]
    if effect.least[0] < 1 - NOISE and effect.most[0] > 1 + NOISE:
        said += f", but it depends: best for {effect.most[1]}, worst for {effect.least[1]}"
    elif spread > 5 * NOISE:
        said += f", most for {effect.most[1] if change > 0 else effect.least[1]}"
    return f"* {effect.axis} = {effect.value} {said} (against {effect.baseline}, {effect.pairs} pairs)."
