"""Result files of `emmy.bench.run` (JSON lines), read back: what the tables and the pages of docs/ are made of.

A record is the object of one line, with its `kind`: `device`, `bracket`, `case`, `refused` (a variant that could not be
compiled) or `summary`. Files that are kept in docs/ are stripped to the fields that the tables read.
"""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from emmy.errors import EmmyError

Record = dict[str, Any]

KEPT: dict[str, tuple[str, ...]] = {
    "device": ("ok", "card", "sms", "driver", "torch", "cuda", "triton", "date", "emmy", "command"),
    "bracket": ("when", "ok", "message", "cublas_4096_tflops", "copy_tb_per_s", "peak_f32_tflops", "peak_f16_tflops", "clocks"),
    "case": (
        *("name", "variant", "settings", "shapes", "suite", "data", "policy", "max_k", "ok", "message", "error"),
        *("as_expected", "differ_from_expected", "repeats", "differing_launches"),
        *("us", "us_p20", "us_p80", "tflops", "peer_us", "peer_us_p20", "peer_us_p80", "peer_tflops", "ratio", "peers"),
        *("rounds", "clean", "bytes", "registers", "spills", "study", "calls"),
    ),
    "refused": ("name", "variant", "settings", "message"),
}  # fmt: skip
"""Fields of each kind of record that a kept file has; a summary is not kept."""

KEPT_ERRORS = (
    *("rms_error", "rms_bound", "rounding_floor", "max_error", "wrong_elements", "not_finite"),
    *("mean_error", "eager_mean", "eager_max"),
)
DIGITS = 5


@dataclass
class Run:
    """The records of one file, by kind. Several runs that were appended to one file are one: see `merged`.

    runs: how many. device: of the first.
    """

    runs: int = 0
    device: Record = field(default_factory=dict[str, Any])
    brackets: list[Record] = field(default_factory=list[Record])
    cases: list[Record] = field(default_factory=list[Record])
    refused: list[Record] = field(default_factory=list[Record])

    @property
    def timed(self) -> list[Record]:
        """Correct cases with a time."""
        return [case for case in self.cases if case["ok"] and case.get("us")]


def read_records(path: Path) -> list[Record]:
    """The records of a file. Raises `EmmyError` if it cannot be read."""
    try:
        lines = path.read_text().splitlines()
        return [cast(Record, json.loads(line)) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise EmmyError(f"'{path}' is no file of JSON lines ({error})") from None


def read_run(path: Path) -> Run:
    """The records of a file by kind, each stripped to what is kept. Raises `EmmyError`."""
    return sort_records(read_records(path))


def sort_records(records: Iterable[Mapping[str, Any]]) -> Run:
    """Records by kind, stripped."""
    run = Run()
    for record in records:
        kind, kept = record["kind"], strip(record)
        if kind == "device":
            run.runs += 1
            run.device = run.device or kept
        elif kind in ("bracket", "case", "refused"):
            {"bracket": run.brackets, "case": run.cases, "refused": run.refused}[kind].append(kept)
    by_name: dict[str, list[Record]] = {}
    for case in run.cases:
        by_name.setdefault(case["name"], []).append(case)
    run.cases = [merged(cases) for cases in by_name.values()]
    return run


def merged(cases: Sequence[Record]) -> Record:
    """One case measured in several runs as one: medians of figures, sums of launches, correct if it always was.

    `ratios` are the least and the largest ratio of the runs.
    """
    first = cases[0]
    if len(cases) == 1:
        return first
    failed = next((case for case in cases if not case["ok"]), None)
    if failed is not None:
        return failed
    found = {**first, **medians(cases, [key for key in first if key.startswith(FIGURES)])}
    for name in first.get("peers", {}):
        peers = [case["peers"][name] for case in cases if name in case.get("peers", {})]
        found["peers"] = {**found["peers"], name: {**peers[0], **medians(peers, list(peers[0]))}}
    for count in ("repeats", "differing_launches"):
        if count in first:
            found[count] = sum(case[count] for case in cases)
    if first.get("ratio"):
        ratios = [case["ratio"] for case in cases]
        found["ratios"] = [min(ratios), max(ratios)]
    return found


FIGURES = ("us", "tflops", "ratio", "peer_")
"""How the names of a case's figures begin."""


def medians(records: Sequence[Record], keys: Sequence[str]) -> Record:
    """The median of each figure; what is no number stays as it is in the first."""
    numbers = [key for key in keys if isinstance(records[0][key], int | float)]
    return {key: rounded(float(statistics.median(record[key] for record in records))) for key in numbers}


def strip(record: Mapping[str, Any]) -> Record:
    """The record with the fields that are kept, figures rounded; registers and spills are the most of any kernel's."""
    kind = str(record["kind"])
    kept: Record = {"kind": kind}
    source = dict(record)
    if kind == "case":
        # Where cases have no variant, the artefact's folder names it: SHAPE_DTYPE-VARIANT.
        source["variant"] = record.get("variant") or str(record.get("artefact", "")).partition("-")[2]
        if record.get("resources"):
            used: list[dict[str, int]] = list(record["resources"].values())
            source["registers"] = max(kernel["registers"] for kernel in used)
            source["spills"] = max(kernel.get("spill_store_bytes", 0) for kernel in used)
        if record.get("error"):
            source["error"] = {key: value for key, value in record["error"].items() if key in KEPT_ERRORS}
    if source.get("command"):
        source["command"] = plain_command(str(source["command"]))
    for name in KEPT.get(kind, ()):
        if source.get(name) not in (None, "", {}):
            kept[name] = rounded(source[name])
    return kept


def plain_command(command: str) -> str:
    """The command without what belongs to one machine: where results went, and the folders above a path."""
    words = shlex.split(command)
    if "--out" in words:
        at = words.index("--out")
        del words[at : at + 2]
    return shlex.join(word if word.startswith("-") else word.rsplit("/", 1)[-1] for word in words)


def rounded(value: Any) -> Any:
    """The value with every float in it cut to `DIGITS` significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list):
        return [rounded(item) for item in cast("list[Any]", value)]
    return value


def write_stripped(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the records that are kept."""
    kept = [strip(record) for record in records if record["kind"] in KEPT]
    path.write_text("".join(json.dumps(record) + "\n" for record in kept))


def base_name(case: Mapping[str, Any]) -> str:
    """The case's name without its variant."""
    variant = str(case.get("variant") or "")
    name = str(case["name"])
    return name.removesuffix(f" {variant}") if variant else name
