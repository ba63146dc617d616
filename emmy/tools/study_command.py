"""`emmy study accumulation`: errors of the accumulation policies, as JSON lines, a page and plots."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

from emmy.bench import study
from emmy.bench.pages import write_or_check
from emmy.bench.records import read_records, rounded
from emmy.bench.study_page import files, read_study
from emmy.errors import EmmyError
from emmy.files import write_file
from emmy.targets import TARGETS

STUDIES = ("accumulation",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `emmy study`."""
    add = parser.add_argument
    add("study", choices=STUDIES)
    add("--k", type=numbers, default=study.DEPTHS, metavar="K,...", help="contraction lengths, multiples of 16")
    add("--promote", type=numbers, default=study.PROMOTIONS, metavar="P,...", help="elements a partial sum of hybrid")
    add("--seeds", type=int, default=study.SEEDS)
    add("--size", type=int, help=f"rows and columns of the result ({study.SIZE}; for a GPU {study.GPU_SIZE})")
    add("--out", type=Path, default=Path("study"), help="folder for accumulation/*.jsonl, accumulation.md and plots")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--prepare", type=Path, metavar="DIR", help="compute nothing; write artefacts for emmy.bench.run")
    what.add_argument("--add", type=Path, metavar="FILE", help="compute nothing; add the results of emmy.bench.run")
    what.add_argument("--page", action="store_true", help="compute nothing; write page and plots again")
    what.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 if page or plots are out of date"
    )
    add("--target", choices=sorted(TARGETS), default="sm_90a", help="of --prepare")


def numbers(text: str) -> tuple[int, ...]:
    """`256,1024`; an error of the command line for what is no multiple of 16."""
    try:
        found = tuple(int(word) for word in text.split(","))
    except ValueError:
        found = (0,)
    if any(number < 16 or number % 16 for number in found):
        raise argparse.ArgumentTypeError(f"'{text}' is no list of multiples of 16")
    return found


def run(args: argparse.Namespace) -> int:
    """Study, prepare, add or check."""
    if args.seeds < 1:
        raise EmmyError("a study needs at least one seed")
    if args.prepare is not None:
        size = args.size or study.GPU_SIZE
        cases = study.prepare_study(args.prepare, args.target, args.k, args.promote, args.seeds, size)
        print(
            f"{len(cases)} cases in {args.prepare}; run them with: python -m emmy.bench.run {args.prepare} --out results.jsonl"
        )
        return 0
    folder = args.out / "accumulation"
    if args.add is not None:
        added = study.records_of_run(read_records(args.add))
        if not added:
            raise EmmyError(f"'{args.add}' has no results of the study; run what --prepare wrote")
        write_records(folder / "gpu.jsonl", added)
    elif not (args.page or args.check):
        size = args.size or study.SIZE
        write_records(folder / "cpu.jsonl", progress(study.study(args.k, args.promote, args.seeds, size)))
        eight_bits = study.eight_bit_study(min(args.seeds, study.EIGHT_BIT_SEEDS), size)
        write_records(folder / "cpu_fp8.jsonl", progress(eight_bits))
    codes = [write_or_check(args.out / name, text, args.check) for name, text in files(read_study(folder)).items()]
    return max(codes)


def progress(studied: Iterable[study.Record]) -> list[study.Record]:
    """The study on the CPU, a line for each record."""
    records: list[study.Record] = []
    for record in studied:
        error = record["f32"]["rms"][0]
        print(
            f"{record['inputs']:<12} K {record['k']:>6} {record['policy']:>6} {record['max_k'] or '':>4} RMS {error:.2e}"
        )
        records.append(record)
    return records


def write_records(path: Path, records: list[study.Record]) -> None:
    """JSON lines, figures rounded."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, "".join(json.dumps(rounded(record)) + "\n" for record in records))
