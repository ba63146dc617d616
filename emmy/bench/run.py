"""Check and time artefacts on a CUDA device.

    python -m emmy.bench.run DIR --out FILE.jsonl      # every case of DIR/cases.json
    python -m emmy.bench.run DIR --one NAME            # one case in this process, for compute-sanitizer

Each case runs in a child process that is killed if it takes too long; a hang or a crash is a failed case, and the next
one goes on. Each outcome is appended to FILE at once. The run begins and ends with a cuBLAS product and a copy, and
prints a table of at most 40 lines. Needs PyTorch (except for `--one`); never imports xDSL.
The exit status is 0 if every case is correct.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emmy.bench.cases import Case, load_cases
from emmy.bench.child import Child, ChildFailed
from emmy.bench.table import format_table, suite_mean
from emmy.errors import EmmyError

BRACKET_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class Options:
    """How thoroughly to run cases; the command line's flags of the same names."""

    check_only: bool = False
    repeats: int = 250
    rounds: int = 32
    seconds_per_case: float = 20.0


def append_line(path: Path, fields: dict[str, Any]) -> None:
    """Append one JSON line and see it on the disk, so that nothing is lost if the machine goes away."""
    with path.open("a") as file:
        file.write(json.dumps(fields) + "\n")
        file.flush()
        os.fsync(file.fileno())


def run_cases(
    directory: Path, cases: Sequence[Case], child: Child, out: Path, options: Options
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Run all cases through `child`, appending a line for each to `out`: the results, and the two brackets."""
    results: list[dict[str, Any]] = []
    brackets: list[dict[str, Any]] = []

    def ask(kind: str, request: dict[str, Any], seconds: float, **fields: Any) -> dict[str, Any]:
        try:
            answer = child.ask(request, seconds)
        except ChildFailed as failure:
            answer = {"ok": False, "message": str(failure)}
        answer.pop("fatal", None)
        line = {"kind": kind, **fields, **answer}
        append_line(out, line)
        return line

    device = ask("device", {"do": "device"}, BRACKET_SECONDS)
    if not device["ok"]:
        raise EmmyError(f"no CUDA device can be used: {device['message']}")
    if not options.check_only:
        brackets.append(ask("bracket", {"do": "bracket"}, BRACKET_SECONDS, when="first"))
    for case in cases:
        request = {
            "do": "case",
            "directory": str(directory.resolve()),
            "case": dataclasses.asdict(case),
            "repeats": options.repeats,
            "rounds": options.rounds,
            "seconds": options.seconds_per_case,
            "check_only": options.check_only,
        }
        fields = {"name": case.name, "artefact": case.artefact, "entry": case.entry, "shapes": case.shapes}
        fields |= {"data": case.data, "policy": case.policy, "suite": case.suite}
        results.append(ask("case", request, options.seconds_per_case, **fields))
    if not options.check_only:
        brackets.append(ask("bracket", {"do": "bracket"}, BRACKET_SECONDS, when="last"))
    mean, count = suite_mean(results, "six")
    failed = [result["name"] for result in results if not result["ok"]]
    append_line(out, {"kind": "summary", "cases": len(results), "failed": failed, "six_mean": mean, "six_count": count})
    child.stop()
    return results, brackets


def worker_child() -> Child:
    """The child that does the work, with this very `emmy` on its path."""
    package_parent = str(Path(__file__).resolve().parents[2])
    paths = [package_parent, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return Child([sys.executable, "-m", "emmy.bench.worker"], environment=environment)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="emmy.bench.run", description="Check and time artefacts on a CUDA device.")
    parser.add_argument("directory", type=Path, help="folder with cases.json and the artefacts it names")
    parser.add_argument("--out", type=Path, help="file to append JSON lines to (default: results.jsonl in the folder)")
    parser.add_argument("--only", help="run only cases whose name contains this or matches it as a shell pattern")
    parser.add_argument("--check-only", action="store_true", help="check results, time nothing")
    parser.add_argument("--repeats", type=int, default=Options.repeats, help="launches compared bit for bit")
    parser.add_argument("--rounds", type=int, default=Options.rounds, help="timed launches of ours and of the peer")
    parser.add_argument("--seconds-per-case", type=float, default=Options.seconds_per_case, help="then it is killed")
    parser.add_argument("--one", metavar="NAME", help="run this case alone, in this process, without PyTorch")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    directory: Path = options.directory
    if options.one is not None:
        named = [case for case in load_cases(directory) if case.name == options.one]
        if not named:
            raise EmmyError(f"there is no case '{options.one}' in '{directory}'")
        from emmy.bench.one import run_one

        found = run_one(directory, named[0])
        print(json.dumps(found))
        return 0 if found["ok"] else 1
    cases = load_cases(directory, options.only)
    if not cases:
        raise EmmyError(f"no case of '{directory}' matches '{options.only}'")
    out: Path = options.out or directory / "results.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    child = worker_child()
    try:
        how = Options(options.check_only, options.repeats, options.rounds, options.seconds_per_case)
        results, brackets = run_cases(directory, cases, child, out, how)
    finally:
        child.stop()
    print("\n".join(format_table(results, brackets)))
    return 0 if all(result["ok"] for result in results) else 1


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except EmmyError as error:
        raise SystemExit(str(error)) from None
