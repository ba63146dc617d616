"""Check and time artefacts on a CUDA device.

    python -m emmy.bench.run DIR --out FILE.jsonl                # every case of DIR/cases.json
    python -m emmy.bench.run DIR --peers cublas,triton           # timed against several peers
    python -m emmy.bench.run DIR --check-only --repeats 3000     # stress: thousands of launches, compared bit for bit
    python -m emmy.bench.run DIR --estimate                      # about how many seconds of a GPU that takes
    python -m emmy.bench.run DIR --one NAME                      # one case in this process, for compute-sanitizer

Each case runs in a child process that is killed if it takes too long; a hang or a crash is a failed case, and the next
one goes on. Each outcome is appended to FILE at once. The run begins and ends with a cuBLAS product, a copy and the tensor
peak (if DIR has the artefact `peak`), and prints a table of at most 40 lines.
Needs PyTorch (except for `--one`); never imports xDSL.
The exit status is 0 if every case is correct.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emmy.bench.accuracy import accuracy_lines
from emmy.bench.against import against_lines
from emmy.bench.cases import Case, load_cases, load_refused
from emmy.bench.child import Child, ChildFailed
from emmy.bench.estimate import run_seconds, timed_peers
from emmy.bench.fp8 import fp8_lines
from emmy.bench.gemma4 import gemma_lines
from emmy.bench.peers import DEFAULT_PEERS, PEERS, START_SECONDS
from emmy.bench.table import format_table, suite_mean
from emmy.errors import EmmyError

BRACKET_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class Options:
    """How thoroughly to run cases; the command line's flags of the same names. peers: None leaves them to each case;
    seconds_per_case: None leaves it to `default_seconds`."""

    check_only: bool = False
    repeats: int = 250
    rounds: int = 32
    seconds_per_case: float | None = None
    peers: tuple[str, ...] | None = None
    clean: bool = False


CASE_SECONDS = 20.0  # of a case with no more than `Options.repeats` launches, without what its peers need to be made
REPEAT_SECONDS = 0.02  # of a launch, its comparison included, beyond the first `Options.repeats`


def default_seconds(repeats: int, peers: Sequence[str]) -> float:
    """What a case may take: more for thousands of launches, and for peers that are compiled first."""
    return CASE_SECONDS + max(repeats - Options.repeats, 0) * REPEAT_SECONDS + start_seconds(peers)


def start_seconds(peers: Sequence[str]) -> float:
    """What making peers may take at most."""
    return sum(START_SECONDS.get(peer, 0.0) for peer in peers)


def seconds_of(case: Case, options: Options) -> float:
    """What a case may take before it is killed."""
    return options.seconds_per_case or default_seconds(options.repeats, peers_of(case, options))


def peers_of(case: Case, options: Options) -> Sequence[str]:
    """Those of the command line, else the case's own, else the default ones."""
    return options.peers if options.peers is not None else case.peers or DEFAULT_PEERS


def append_line(path: Path, fields: dict[str, Any]) -> None:
    """Append one JSON line and see it on the disk, so that nothing is lost if the machine goes away."""
    with path.open("a") as file:
        file.write(json.dumps(fields) + "\n")
        file.flush()
        os.fsync(file.fileno())


def run_cases(
    directory: Path, cases: Sequence[Case], child: Child, out: Path, options: Options, command: str = ""
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Run all cases through `child`, appending a line for each to `out`: the results, and the two brackets.

    `command`: how the run was started, for the record.
    """
    results: list[dict[str, Any]] = []
    brackets: list[dict[str, Any]] = []

    def ask(kind: str, request: dict[str, Any], seconds: float, **fields: Any) -> dict[str, Any]:
        began = time.perf_counter()
        try:
            answer = child.ask(request, seconds)
        except ChildFailed as failure:
            answer = {"ok": False, "message": str(failure)}
        answer.pop("fatal", None)
        line = {"kind": kind, **fields, **answer, "seconds": round(time.perf_counter() - began, 3)}
        append_line(out, line)
        return line

    device = ask("device", {"do": "device"}, BRACKET_SECONDS, command=command)
    if not device["ok"] and "No module named 'torch'" in str(device["message"]):
        raise EmmyError(
            "cases are checked and timed beside PyTorch, which this Python has not: install torch, or run one case with --one"
        )
    if not device["ok"]:
        raise EmmyError(f"no CUDA device can be used: {device['message']}")
    for refused in load_refused(directory):
        append_line(out, {"kind": "refused", **refused})
    bracket = {"do": "bracket", "directory": str(directory.resolve())}
    if not options.check_only:
        brackets.append(ask("bracket", bracket, BRACKET_SECONDS, when="first"))
    for case in cases:
        seconds = seconds_of(case, options)
        request = {
            "do": "case",
            "directory": str(directory.resolve()),
            "case": dataclasses.asdict(case),
            "repeats": options.repeats,
            "rounds": options.rounds,
            "seconds": seconds,
            "check_only": options.check_only,
            "clean": options.clean,
            "peers": peers_of(case, options),
        }
        fields = {"name": case.name, "artefact": case.artefact, "entry": case.entry, "shapes": case.shapes}
        fields |= {"data": case.data, "policy": case.policy, "suite": case.suite}
        fields |= {"variant": case.variant, "settings": case.settings, "layouts": case.layouts}
        fields |= {"max_k": case.max_k} if case.policy == "hybrid" else {}
        fields |= {"partial": case.partial} if case.partial else {}
        fields |= {"calls": case.calls} if case.calls else {}
        results.append(ask("case", request, seconds, **fields))
    if not options.check_only:
        brackets.append(ask("bracket", bracket, BRACKET_SECONDS, when="last"))
    mean, count = suite_mean(results, "six")
    failed = [result["name"] for result in results if not result["ok"]]
    append_line(out, {"kind": "summary", "cases": len(results), "failed": failed, "six_mean": mean, "six_count": count})
    child.stop()
    return results, brackets


def peer_list(text: str) -> tuple[str, ...]:
    """`cublas,triton`; an error of the command line for an unknown one."""
    names = tuple(filter(None, text.split(",")))
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no peer {unknown[0]}; there are {', '.join(PEERS)}")
    return names


def worker_child() -> Child:
    """The child that does the work, with this very `emmy` on its path."""
    package_parent = str(Path(__file__).resolve().parents[2])
    paths = [package_parent, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return Child([sys.executable, "-m", "emmy.bench.worker"], environment=environment)


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """How to check and time: shared with `emmy bench --suite`."""
    add = parser.add_argument
    add("--check-only", action="store_true", help="check results, time nothing")
    add("--repeats", type=int, default=Options.repeats, help="launches compared bit for bit")
    add("--rounds", type=int, default=Options.rounds, help="timed launches of ours and of each peer")
    add("--clean", action="store_true", help="before each timed launch L2 has nothing that must be written back")
    add("--peers", type=peer_list, help=f"of {', '.join(PEERS)}; with commas (default: those of the suite)")
    add(
        "--seconds-per-case",
        type=float,
        help="then it is killed (default: 20, more for many repeats and compiled peers)",
    )


def options_of(args: argparse.Namespace) -> Options:
    """What `add_run_arguments` read."""
    return Options(args.check_only, args.repeats, args.rounds, args.seconds_per_case, args.peers, args.clean)


def chosen_cases(directory: Path, only: str | None) -> list[Case]:
    """The cases of `directory` that `only` chooses. Raises `EmmyError` if there are none."""
    cases = load_cases(directory, only)
    if not cases:
        raise EmmyError(f"no case of '{directory}' matches '{only}'")
    return cases


def told_estimate(directory: Path, cases: Sequence[Case], options: Options) -> str:
    """How many cases there are, and how long they will take."""
    peers = [peers_of(case, options) for case in cases]
    seconds = run_seconds(directory, cases, peers, options.repeats, options.rounds, options.check_only)
    timed = [one for one in zip(cases, peers, strict=True) if one[0].time and not options.check_only]
    made = {name for case, names in timed for name in timed_peers(case.task or {}, names) if name in START_SECONDS}
    more = f", and what {', '.join(sorted(made))} need to be compiled" if made else ""
    count = "1 case" if len(cases) == 1 else f"{len(cases)} cases"
    return f"{count}, about {seconds:.0f} s{more}"


def run_directory(directory: Path, out: Path, options: Options, only: str | None = None, command: str = "") -> int:
    """Run the cases of `directory`, print the table; 0 if all are correct, else 1. Raises `EmmyError` if there are none."""
    cases = chosen_cases(directory, only)
    out.parent.mkdir(parents=True, exist_ok=True)
    print(told_estimate(directory, cases, options), flush=True)
    child = worker_child()
    try:
        results, brackets = run_cases(directory, cases, child, out, options, command)
    finally:
        child.stop()
    more = [*against_lines(results), *gemma_lines(results), *fp8_lines(results), *accuracy_lines(results)]
    print("\n".join([*format_table(results, brackets), *more]))
    return 0 if all(result["ok"] for result in results) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="emmy.bench.run", description="Check and time artefacts on a CUDA device.")
    parser.add_argument("directory", type=Path, help="folder with cases.json and the artefacts it names")
    parser.add_argument("--out", type=Path, help="file to append JSON lines to (default: results.jsonl in the folder)")
    parser.add_argument("--only", help="only cases whose name contains this or matches it as a shell pattern")
    add_run_arguments(parser)
    parser.add_argument("--estimate", action="store_true", help="only say how long it would take; needs no GPU")
    parser.add_argument("--one", metavar="NAME", help="run this case alone, in this process, without PyTorch")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    directory: Path = args.directory
    if args.one is not None:
        named = [case for case in load_cases(directory) if case.name == args.one]
        if not named:
            raise EmmyError(f"there is no case '{args.one}' in '{directory}'")
        from emmy.bench.one import run_one

        found = run_one(directory, named[0])
        print(json.dumps(found))
        return 0 if found["ok"] else 1
    if args.estimate:
        print(told_estimate(directory, chosen_cases(directory, args.only), options_of(args)))
        return 0
    words = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "-m", "emmy.bench.run", *words])
    return run_directory(directory, args.out or directory / "results.jsonl", options_of(args), args.only, command)


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except EmmyError as error:
        raise SystemExit(str(error)) from None
