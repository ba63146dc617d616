"""What a run of the suite `attention_accuracy` says: errors against float64 beside those of an eager run, by inputs and atoms."""

from __future__ import annotations

from collections.abc import Sequence

from emmy.bench.pages import figure, markdown_table
from emmy.bench.records import Record

SUITE = "accuracy"


def ratio(record: Record, which: str) -> float:
    """The `mean` or `max` error over that of the eager run; 0 where both are 0."""
    error = record["error"]
    ours, eager = error[f"{which}_error"], error[f"eager_{which}"]
    return ours / eager if eager else float("inf") if ours else 0.0


def checked(results: Sequence[Record]) -> list[Record]:
    """The results of the suite that have errors."""
    return [r for r in results if r.get("suite") == SUITE and r.get("error", {}).get("eager_max") is not None]


def inputs_of(record: Record) -> str:
    """What its name says behind the comma."""
    return str(record["name"]).partition(", ")[2]


def class_of(record: Record) -> str:
    """Element type and atoms, by its name: `f16 mma.sync hybrid`."""
    words = str(record["name"]).partition(",")[0].split()
    return " ".join(words[next(i for i, word in enumerate(words) if word in ("f16", "bf16")) :])


def accuracy_lines(results: Sequence[Record]) -> list[str]:
    """For the table that a run prints: the worst ratios, and where."""
    found = checked(results)
    if not found:
        return []
    lines: list[str] = []
    for which in ("mean", "max"):
        worst = max(found, key=lambda record: ratio(record, which))
        told = f"accuracy: {which} error over that of an eager run at most {ratio(worst, which):.2f} ({worst['name']})"
        lines.append(told)
    return lines


def accuracy_table(results: Sequence[Record]) -> str:
    """One row for inputs, element type and atoms: the worst ratios of the mean and the largest error over all masks and head
    dimensions, the largest error that goes with the latter, and launches. Nothing if there are no such results."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in checked(results):
        groups.setdefault((inputs_of(record), class_of(record)), []).append(record)
    if not groups:
        return ""
    header = ["inputs", "type, atoms", "cases", "correct", "mean error / eager", "largest error / eager"]
    header += ["largest error", "eager's", "launches", "differing"]
    rows: list[list[str]] = []
    for (inputs, kind), records in groups.items():
        worst = max(records, key=lambda record: ratio(record, "max"))
        rows.append(
            [
                inputs,
                kind,
                str(len(records)),
                str(sum(record["ok"] for record in records)),
                figure(max(ratio(record, "mean") for record in records), ".2f"),
                figure(ratio(worst, "max"), ".2f"),
                figure(worst["error"]["max_error"], ".1e"),
                figure(worst["error"]["eager_max"], ".1e"),
                str(sum(record.get("repeats", 0) for record in records)),
                str(sum(record.get("differing_launches", 0) for record in records)),
            ]
        )
    return markdown_table(header, rows)
