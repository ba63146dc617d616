"""The summary that a benchmark run ends with: at most 40 lines, failures first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

MAX_LINES = 40
NAME_WIDTH = 36
AVERAGED = ("six", "attention", "attention lengths", "attention window", "attention decoding")
"""Suites whose ratios have a geometric mean."""
HEADER = (
    f"{'case':<{NAME_WIDTH}} {'ok':<4} {'rms err':>8} {'max err':>8} {'us':>9} {'TFLOPS':>7} {'peer':>7} {'ratio':>6} "
    f"{'%peak':>5} {'%copy':>5}"
)


def geometric_mean(ratios: Sequence[float]) -> float | None:
    """The geometric mean, or None of nothing."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def suite_mean(results: Sequence[dict[str, Any]], suite: str) -> tuple[float | None, int]:
    """The geometric mean of the ratios of the correct, timed cases of a suite, and how many those are."""
    ratios = [r["ratio"] for r in results if r.get("suite") == suite and r["ok"] and r.get("ratio")]
    return geometric_mean(ratios), len(ratios)


def format_table(results: Sequence[dict[str, Any]], brackets: Sequence[dict[str, Any]]) -> list[str]:
    """Lines for all cases if they fit; otherwise failures first, and a line that says how many are left out."""
    failed = sum(not r["ok"] for r in results)
    footer = [f"{len(results)} cases, {failed} failed"]
    for suite in AVERAGED:
        size = sum(r.get("suite") == suite for r in results)
        mean, count = suite_mean(results, suite)
        shown = "-" if mean is None else f"{mean:.3f}"
        told = f"geometric mean of ratios, suite {suite}, {count} of {size} cases: {shown}"
        footer += [told + _peer_means([r for r in results if r.get("suite") == suite])] if size else []
    footer += _peer_failures(results) + _repeat_lines(results)
    footer += [_bracket_line(bracket) for bracket in brackets]
    room = MAX_LINES - 1 - len(footer)
    rows = list(results)
    if len(rows) > room:
        rows = sorted(rows, key=lambda r: r["ok"])[: room - 1]
        footer.insert(0, f"... {len(results) - len(rows)} more cases are in the file")
    return [HEADER, *(_row(row, brackets) for row in rows), *footer]


def percent_of_peak(result: dict[str, Any], brackets: Sequence[dict[str, Any]]) -> float | None:
    """The rate over that of `mma.sync` on registers alone (the best bracket), in percent; hybrid may use either accumulator."""
    policy = result.get("policy", "f32")
    names = [f"peak_{accumulator}_tflops" for accumulator in (("f32", "f16") if policy == "hybrid" else (policy,))]
    peak = max((bracket[name] for bracket in brackets for name in names if bracket.get(name)), default=None)
    return 100 * result["tflops"] / peak if peak and result.get("tflops") else None


def percent_of_copy(result: dict[str, Any], brackets: Sequence[dict[str, Any]]) -> float | None:
    """The compulsory traffic (operands and result once) over the bandwidth of a copy (the best bracket), in percent."""
    copy = max((bracket["copy_tb_per_s"] for bracket in brackets if bracket.get("copy_tb_per_s")), default=None)
    return 100 * result["bytes"] / result["us"] * 1e-6 / copy if copy and result.get("bytes") else None


def _row(result: dict[str, Any], brackets: Sequence[dict[str, Any]]) -> str:
    name = result["name"]
    if len(name) > NAME_WIDTH:
        name = name[: NAME_WIDTH - 1] + "~"
    line = f"{name:<{NAME_WIDTH}} {'yes' if result['ok'] else 'NO':<4}"
    if not result["ok"] and result.get("message"):
        return f"{line} {result['message'].splitlines()[0][:78]}"
    error = result.get("error", {})
    cells = (
        _cell(error.get("rms_error", error.get("mean_error")), "8.1e"),
        _cell(error.get("max_error"), "8.1e"),
        _cell(result.get("us"), "9.2f"),
        _cell(result.get("tflops"), "7.1f"),
        _cell(result.get("peer_tflops"), "7.1f"),
        _cell(result.get("ratio"), "6.3f"),
        _cell(percent_of_peak(result, brackets), "5.0f"),
        _cell(percent_of_copy(result, brackets), "5.0f"),
    )
    return " ".join((line, *cells))


def _cell(value: float | None, form: str) -> str:
    width = int(form.split(".")[0])
    return "-".rjust(width) if value is None else format(value, form)


def _peer_means(results: Sequence[dict[str, Any]]) -> str:
    """The mean and the least ratio to each peer beside cuBLAS, of correct cases."""
    told = ""
    timed = [r for r in results if r["ok"]]
    for name in sorted({name for r in timed for name in r.get("peers", {})} - {"cublas"}):
        ratios = [ratio for r in timed if (ratio := r["peers"].get(name, {}).get("ratio"))]
        told += f"; to {name} {geometric_mean(ratios):.3f} ({len(ratios)}, least {min(ratios):.3f})" if ratios else ""
    return told


def _peer_failures(results: Sequence[dict[str, Any]]) -> list[str]:
    """Why peers failed, one line each."""
    messages = {name: f["message"] for r in results for name, f in r.get("peers", {}).items() if f.get("message")}
    return [f"{name}: {message}"[:100] for name, message in messages.items()]


def _repeat_lines(results: Sequence[dict[str, Any]]) -> list[str]:
    """How often launches were compared bit for bit."""
    counts = [r["repeats"] for r in results if r.get("repeats")]
    if not counts:
        return []
    differing = sum(r.get("differing_launches", 0) for r in results)
    return [
        f"{sum(counts)} launches compared bit for bit ({min(counts)} to {max(counts)} a case), {differing} differed"
    ]


def _bracket_line(bracket: dict[str, Any]) -> str:
    if not bracket.get("ok"):
        return f"{bracket.get('when')} bracket failed: {str(bracket.get('message', ''))[:80]}"
    clock = f", {bracket['clocks']}" if bracket.get("clocks") else ""
    tflops, copy = bracket["cublas_4096_tflops"], bracket["copy_tb_per_s"]
    rates = [f"{a} {bracket[f'peak_{a}_tflops']:.0f}" for a in ("f32", "f16") if bracket.get(f"peak_{a}_tflops")]
    peak = f", mma.sync peak {' and '.join(rates)}" if rates else ""
    return f"{bracket['when']}: cuBLAS 4096^3 {tflops:.0f} TFLOPS{peak}, copy {copy:.2f} TB/s{clock}"
