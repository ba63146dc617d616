"""`emmy bench --suite ...`: compile, check and time in one go, on a machine that has both the compiler and a GPU.

`--ablate` and `--variant` do without `--suite`, for the suite `gemm`. It is what `python -m emmy.bench.prepare` and
`python -m emmy.bench.run` do on two machines. Into the folder `--out` go `artefacts/`, `results.jsonl`, `table.md` and, with
matplotlib, `plot.png`.
"""

from __future__ import annotations

import argparse
import importlib.util
import shlex
from collections.abc import Sequence
from pathlib import Path

from emmy.bench import prepare, run
from emmy.bench.pages import told
from emmy.bench.plot import plot_rates
from emmy.bench.records import read_run
from emmy.bench.report import section
from emmy.compiler import default_target
from emmy.errors import EmmyError
from emmy.files import write_file
from emmy.runtime import is_available

DEFAULT_SUITE = "gemm"


def make_parser() -> argparse.ArgumentParser:
    """The command line of `emmy bench --suite`."""
    parser = argparse.ArgumentParser(
        prog="emmy bench",
        description="Compile, check and time suites of kernels.",
        epilog="emmy bench DIR checks and times artefacts that are compiled already; emmy bench DIR --help shows its options",
    )
    add_arguments(parser)
    return parser


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is compiled, and how it is checked and timed."""
    prepare.add_arguments(parser, suite_required=False)
    parser.add_argument("--out", type=Path, default=Path("bench"), help="a folder for artefacts and results")
    run.add_run_arguments(parser)


def main(words: Sequence[str]) -> int:
    """Run the suites; the exit code is 0 if every case is correct."""
    args = make_parser().parse_args(words)
    args.suite = args.suite or [DEFAULT_SUITE]

    def action() -> int:
        need_gpu(args)
        artefacts, results = args.out / "artefacts", args.out / "results.jsonl"
        prepare.prepare(artefacts, args, args.target or default_target())
        results.unlink(missing_ok=True)
        command = shlex.join(["emmy", "bench", *words])
        code = run.run_directory(artefacts, results, run.options_of(args), only=args.only, command=command)
        write_file(args.out / "table.md", section(results))
        plotted = plot_rates(read_run(results), args.out / "plot.png")
        print(f"{results}, {args.out / 'table.md'}{f' and {args.out}/plot.png' if plotted else ''} written")
        return code

    return told(action)


def need_gpu(args: argparse.Namespace) -> None:
    """`EmmyError` that says how to prepare here and measure elsewhere, unless this machine has a GPU and PyTorch."""
    missing = "no GPU that can be used" if not is_available() else None
    if missing is None and importlib.util.find_spec("torch") is None:
        missing = "no PyTorch"
    if missing is None:
        return
    wanted = [*(f"--suite {name}" for name in args.suite), *(f"--variant {shlex.quote(v)}" for v in args.variant)]
    wanted += [f"--ablate {shlex.quote(args.ablate)}"] if args.ablate else []
    wanted += [f"--only {shlex.quote(args.only)}"] if args.only else []
    wanted += [f"--target {args.target}"] if args.target else []
    raise EmmyError(
        f"this machine has {missing}: prepare with `python -m emmy.bench.prepare DIR {' '.join(wanted)}`, then take DIR to one "
        "that has a GPU and PyTorch, and run `python -m emmy.bench.run DIR --out results.jsonl` there (it needs no compiler)"
    )
