"""`emmy`: compile, run and check kernels from the command line.

    emmy compile FILE [--target T] [-o out.ptx | out.cubin | out.mlir | DIR] [--dump-ir DIR] [--report]
    emmy run FILE [--device auto | cuda | emulator] [--random SEED] [--check] [--report]
    emmy check FILE                      run every level on the same inputs; name the first that differs
    (of all three) --schedule 'block = [64, 64, 64], stages = 4'     what replaces the table's choice
    emmy bench DIR [--out FILE]          time artefacts on a GPU
    emmy bench --suite gemm [--peers cublas,triton] [--ablate FIELDS] [--out DIR]     compile and time suites of kernels
    emmy view layout | ir                a layout as SVG, all levels of a module as one HTML page
    emmy cache [path | list | clear]     compiled kernels that are kept on disk
    emmy study accumulation              errors of the accumulation policies

Exit codes: 0 done, 1 something is wrong with the input or a check failed, 2 wrong command line.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Any

from emmy import __version__

COMMANDS: dict[str, tuple[str, str]] = {
    "compile": ("emmy.tools.compile_command", "text to PTX, a cubin, the text of a level, or an artefact folder"),
    "run": ("emmy.tools.run_command", "call a function with random inputs, on the GPU or the emulator"),
    "check": ("emmy.tools.check_command", "run every level on the same inputs; name the first that differs"),
    "view": ("emmy.tools.view_command", "a layout as an SVG picture, or all levels of a module as one HTML page"),
    "cache": ("emmy.tools.cache_command", "compiled kernels that are kept on disk: where, which, remove them"),
    "study": ("emmy.tools.study_command", "errors of the accumulation policies, as JSON and a page"),
}
"""Command -> (module with `add_arguments` and `run`, summary). Only the one that is called is imported."""

BENCH = ("bench", "time artefacts on a GPU (the arguments of python -m emmy.bench.run), or compile and time a --suite")
COMPILED_BENCH = ("--suite", "--ablate", "--variant")
"""Options of `emmy bench` that ask for kernels to be compiled first, instead of a folder of artefacts."""


class PrintCompletion(argparse.Action):
    """`--completion SHELL`: print the script and exit."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: Any = None):
        from emmy.tools.completion import script
        from emmy.tools.opt import make_parser as make_opt_parser

        sys.stdout.write(script(str(values), {"emmy": complete_parser(), "emmy-opt": make_opt_parser()}))
        parser.exit()


def complete_parser() -> argparse.ArgumentParser:
    """The parser with the arguments of every command: what completion and the manual page are made from."""
    return make_parser(*COMMANDS, BENCH[0])


def make_parser(*wanted: str) -> argparse.ArgumentParser:
    """The parser; only the commands `wanted` get their own arguments, because that imports them."""
    parser = argparse.ArgumentParser(
        prog="emmy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"emmy {__version__}")
    parser.add_argument(
        "--completion", choices=("bash", "zsh"), action=PrintCompletion, help="print a completion script for this shell"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, summary) in COMMANDS.items():
        sub = commands.add_parser(name, help=summary, description=summary)
        if name in wanted:
            importlib.import_module(module).add_arguments(sub)
    bench = commands.add_parser(BENCH[0], help=BENCH[1], description=BENCH[1], add_help=False)
    if BENCH[0] in wanted:
        importlib.import_module("emmy.tools.bench_command").add_arguments(bench)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run emmy on `argv` (default: the process's arguments); the exit code."""
    try:
        return _dispatch(list(sys.argv[1:] if argv is None else argv))
    except ModuleNotFoundError as error:
        return _told_missing(error)


def opt() -> int | None:
    """`emmy-opt`, which says in a sentence if there is no xDSL."""
    try:
        from emmy.tools.opt import main as run
    except ModuleNotFoundError as error:
        return _told_missing(error)
    return run()


def _told_missing(error: ModuleNotFoundError) -> int:
    """Exit code 1 and a sentence if it is xDSL that this Python has not; else the error is raised."""
    from emmy.errors import EmmyError, missing_module

    told = missing_module(error)
    if not isinstance(told, EmmyError):
        raise error
    print(told, file=sys.stderr)
    return 1


def _dispatch(words: list[str]) -> int:
    """Run the command that the words are; only what it needs is imported."""
    command = next((word for word in words if not word.startswith("-")), None)
    helped = words[1:] in (["-h"], ["--help"])
    if words[:1] == [BENCH[0]] and (helped or any(word.partition("=")[0] in COMPILED_BENCH for word in words)):
        from emmy.tools.bench_command import main as bench_suites

        return bench_suites(words[1:])
    if words == [BENCH[0]]:
        print(
            "error: emmy bench wants a folder of artefacts, or a --suite to compile; see emmy bench --help",
            file=sys.stderr,
        )
        return 2
    if words[:1] == [BENCH[0]]:
        # The device runner imports no xDSL, and neither does the way to it.
        from emmy.bench.run import main as bench
        from emmy.errors import EmmyError

        try:
            return bench(words[1:])
        except EmmyError as error:
            print(error, file=sys.stderr)
            return 1
    args = make_parser(*([command] if command else [])).parse_args(words)
    from emmy.tools.shell import guarded

    return guarded(lambda: importlib.import_module(COMMANDS[args.command][0]).run(args))


if __name__ == "__main__":
    sys.exit(main())
