"""The rates of a benchmark run as a PNG, where matplotlib is installed (the extra `bench`)."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from emmy.bench.records import Run

WIDTH = 0.8  # of the bars of one case together


def rates(run: Run) -> tuple[list[str], dict[str, list[float | None]]]:
    """Case names, and TFLOPS of ours and of each peer, None where there is none."""
    timed = [case for case in run.timed if case.get("tflops")]
    peers = list(dict.fromkeys(name for case in timed for name in case.get("peers", {})))
    series: dict[str, list[float | None]] = {"Emmy": [case["tflops"] for case in timed]}
    for peer in peers:
        series[peer] = [case.get("peers", {}).get(peer, {}).get("tflops") for case in timed]
    return [case["name"] for case in timed], series


def plot_rates(run: Run, path: Path) -> bool:
    """Write the plot: bars of TFLOPS for each case, the tensor peak as a line. False without matplotlib or timed cases."""
    names, series = rates(run)
    try:
        figures: Any = importlib.import_module("matplotlib.figure")
    except ImportError:
        return False
    if not names:
        return False
    figure = figures.Figure(figsize=(max(6.0, 1.3 * len(names)), 4.5), layout="constrained")
    axes = figure.subplots()
    for index, (label, values) in enumerate(series.items()):
        width = WIDTH / len(series)
        places = [position + index * width - WIDTH / 2 + width / 2 for position in range(len(names))]
        axes.bar(places, [value or 0.0 for value in values], width, label=label)
    peak = max((bracket["peak_f32_tflops"] for bracket in run.brackets if bracket.get("peak_f32_tflops")), default=None)
    if peak is not None:
        axes.axhline(peak, linestyle="--", color="black", label="mma.sync on registers")
    axes.set_xticks(range(len(names)), names, rotation=20, ha="right")
    axes.set_ylabel("TFLOPS")
    axes.set_title(str(run.device.get("card", "")))
    axes.legend()
    figure.savefig(path, dpi=150)
    return True
