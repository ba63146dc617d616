"""Cases that are timed against an artefact of ours (`Case.against`, the peer `static`): what `?` sizes cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from emmy.bench.pages import figure, markdown_table
from emmy.bench.records import Record, base_name
from emmy.bench.table import geometric_mean


def against_ratio(case: Mapping[str, Any]) -> float | None:
    """The static artefact's time over the case's own (1 is equal, less is slower); None if it was not timed."""
    return case.get("peers", {}).get("static", {}).get("ratio") if case["ok"] else None


def against_cases(cases: Sequence[Record]) -> dict[str, dict[str, Record]]:
    """Variant -> shape -> case, of those that have a ratio to a static artefact."""
    found: dict[str, dict[str, Record]] = {}
    for case in cases:
        if against_ratio(case) is not None:
            found.setdefault(case.get("variant") or "dynamic", {})[base_name(case)] = case
    return found


def against_table(cases: Sequence[Record]) -> str:
    """One row a shape and the geometric mean: the time of the static artefact, and of each variant its time and ratio. Nothing
    if there are no such cases."""
    by_variant = against_cases(cases)
    if not by_variant:
        return ""
    shapes = list(dict.fromkeys(shape for cases_of in by_variant.values() for shape in cases_of))
    header = ["shape", "static us"]
    for variant in by_variant:
        header += [f"`{variant}` us", "static / it", "its ratio to cuBLAS"]
    rows = [[shape, figure(_static_us(by_variant, shape), ".1f")] for shape in shapes]
    rows.append(["geometric mean", ""])
    for found in by_variant.values():
        for shape, row in zip(shapes, rows, strict=False):
            case = found.get(shape, {"ok": False})
            row += [figure(case.get("us"), ".1f"), figure(against_ratio(case)), figure(case.get("ratio"))]
        static = geometric_mean([ratio for case in found.values() if (ratio := against_ratio(case))])
        cublas = geometric_mean([ratio for case in found.values() if (ratio := case.get("ratio"))])
        rows[-1] += ["", *(figure(mean if len(found) == len(shapes) else None) for mean in (static, cublas))]
    return markdown_table(header, rows)


def _static_us(by_variant: Mapping[str, Mapping[str, Record]], shape: str) -> float | None:
    """Of the first variant that has it: each variant has its own measurement, which its ratio is made from."""
    return next((found[shape]["peers"]["static"]["us"] for found in by_variant.values() if shape in found), None)


def against_lines(results: Sequence[dict[str, Any]]) -> list[str]:
    """The geometric mean and the least ratio of each variant, for the table that a run prints."""
    lines: list[str] = []
    for variant, found in against_cases(results).items():
        ratios = [ratio for case in found.values() if (ratio := against_ratio(case))]
        mean = geometric_mean(ratios) or 0.0
        lines.append(f"{variant}: static / it {mean:.3f} (geometric mean of {len(ratios)}), least {min(ratios):.3f}")
    return lines
