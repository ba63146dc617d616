"""How long a run will take, from what its cases compute: device time is often lent by the second.

Rough by intent (a factor of two): rates are those of a data-centre card, and each launch is counted with its flush or its
comparison. What peers need to be compiled first comes on top, and is `emmy.bench.peers.START_SECONDS` a case at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from emmy.artefact import Artefact
from emmy.bench.attention import KIND
from emmy.bench.cases import Case, work_of
from emmy.bench.fp8 import PEERS as FP8_PEERS
from emmy.errors import EmmyError

FLOPS_PER_SECOND = 5e14
BYTES_PER_SECOND = 3e12
LAUNCH_SECONDS = 8e-6
FLUSH_SECONDS = 1e-4  # of 256 MiB, and the events around a launch
COMPARE_SECONDS = 1.2e-4  # of one repeated launch, and the poison before it
CASE_SECONDS = 0.02  # data, guards, answers
REFERENCE_RATE = 2.5e13  # flops a second of a reference in f32 or float64
PEER_SLOWER = 1.8
"""A peer's time over ours, as a guess."""

START_SECONDS = 6.0
"""Of the process, PyTorch, and both brackets."""

WARM_UP_CALLS = 3


def timed_peers(work: Mapping[str, Any], peers: Sequence[str]) -> list[str]:
    """Those of the peers that can do the work."""
    if work.get("kind") != KIND:
        possible = FP8_PEERS if work.get("eight_bits") else ("cublas", "triton", "eager", "compile")
    else:
        possible = ("flex", "eager", "compile") if work["window"] else ("flash", "cudnn", "eager", "compile")
    return [peer for peer in peers if peer in possible]


def case_seconds(
    work: Mapping[str, Any], time: bool, nbytes: int, peers: Sequence[str], repeats: int, rounds: int
) -> float:
    """Of one case: the check against a reference, repeated launches, and, if `time`, the rounds with each peer."""
    flops = float(work.get("flops", 0))
    launch = max(flops / FLOPS_PER_SECOND, nbytes / BYTES_PER_SECOND) + LAUNCH_SECONDS
    compare = COMPARE_SECONDS + 2 * nbytes / BYTES_PER_SECOND
    seconds = CASE_SECONDS + flops / REFERENCE_RATE + repeats * (launch + compare)
    if time:
        others = len(timed_peers(work, peers))
        seconds += (rounds + WARM_UP_CALLS) * ((1 + PEER_SLOWER * others) * launch + (1 + others) * FLUSH_SECONDS)
    return seconds


def run_seconds(
    directory: Path, cases: Sequence[Case], peers: Sequence[Sequence[str]], repeats: int, rounds: int, check_only: bool
) -> float:
    """Of all cases of a folder; `peers` are those of each. A case whose artefact cannot be read fails at once."""
    loaded: dict[str, Artefact | None] = {}
    total = START_SECONDS
    for case, names in zip(cases, peers, strict=True):
        if case.artefact not in loaded:
            loaded[case.artefact] = _load(directory / case.artefact)
        artefact = loaded[case.artefact]
        if artefact is None:
            continue
        work = work_of(case, artefact.entry(case.entry))
        nbytes = 2 * sum(_elements(shape) for shape in case.shapes.values())
        total += case_seconds(work, case.time and not check_only, nbytes, names, repeats, rounds)
    return total


def _load(path: Path) -> Artefact | None:
    try:
        return Artefact.load(path)
    except EmmyError:
        return None


def _elements(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
