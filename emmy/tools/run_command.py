"""`emmy run`: call a function with random inputs, on the GPU or the emulator, and compare with level 1 in float64."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emmy.artefact import DTYPE_NAMES, Array, numpy_info, run_on_emulator
from emmy.compiler import CompiledModule, compile
from emmy.errors import EmmyError
from emmy.module import runs_on_gpu
from emmy.progress import Progress
from emmy.report import show_choice
from emmy.tools.compile_command import add_compile_options, add_report_option, print_remarks, print_report
from emmy.tools.inputs import choose_entry, flops, parse_shapes, random_arrays, resolve_shapes
from emmy.tools.schedule_option import parse_schedule

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

EMULATED_FLOPS_PER_SECOND = 1.5e8
"""Roughly what the emulator does by `mma.sync` (by `wgmma` more), for the estimate that is printed before a long run."""

LONG_SECONDS = 20
"""An emulation that is expected to take longer is announced."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `emmy run`."""
    add = parser.add_argument
    add("file", help="a module of textual IR")
    add("--target", metavar="SM", help="sm_80, sm_89, sm_90a or sm_120a (default: the GPU's, else sm_90a)")
    add("--device", choices=("auto", "cuda", "emulator"), default="auto", help="where to run (default: auto)")
    add(
        "--check",
        action="store_true",
        help="compare with the float64 interpreter; exit code 1 beyond the policy's bound",
    )
    add_report_option(parser)
    add_data_options(parser)
    add_compile_options(parser)


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """What run and check share."""
    add = parser.add_argument
    add("--entry", metavar="NAME", help="the function to call, if there are several")
    add("--random", type=int, default=0, metavar="SEED", help="seed of the random inputs (default: 0)")
    add(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=MxN",
        help="shape of an argument with `?` sizes (default 256)",
    )


def run(args: argparse.Namespace) -> int:
    """Compile, run, report."""
    start = time.perf_counter()
    schedule = parse_schedule(args.schedule)
    module = compile(
        Path(args.file), args.target, accumulate=args.accumulate, schedule=schedule, opt_level=args.opt_level
    )
    seconds = time.perf_counter() - start
    print_remarks(module, schedule)
    source = level1_source(module) if args.check else None
    entry = choose_entry(module.entries, args.entry)
    spec = module.portable_artefact.entry(entry)
    shapes = resolve_shapes(spec, parse_shapes(args.shape, spec))
    arrays = random_arrays(spec, shapes, args.random, "normal")
    inputs = ", ".join(f"{name}: {describe(array)}" for name, array in zip(shapes, arrays, strict=True))
    print(f"{entry}({inputs}) compiled for {module.target} in {seconds:.2f} s")
    on_gpu = args.device == "cuda" or (args.device == "auto" and runs_on_gpu(module.target))
    work = flops(spec, shapes)
    results = run_on_gpu(module, entry, arrays) if on_gpu else emulate(module, entry, arrays, work)
    for buffer, result in zip(spec["results"], results, strict=True):
        print(f"{buffer['name']}: {describe(result)}")
    # Arrays are copied to the GPU, to aligned memory; in the emulator they stay where they are.
    infos = [numpy_info(array, placed=not on_gpu) for array in arrays]
    for line in show_choice(
        module.cuda().choose(entry, infos) if on_gpu else module.portable_artefact.bind(entry, infos)
    ):
        print(f"kernel: {line}")
    if args.report:
        if not on_gpu:
            module.artefact.bind(entry, infos)  # with the variants that this call takes
        print_report(module, args.report)
    return 0 if source is None else check(module, source, entry, arrays, results)


def describe(array: Array) -> str:
    """`f16 256x256`."""
    return f"{DTYPE_NAMES[array.dtype]} {'x'.join(map(str, array.shape))}"


def run_on_gpu(module: CompiledModule, entry: str, arrays: Sequence[Array]) -> list[Array]:
    """The results, computed by the GPU."""
    cuda = module.cuda()
    start = time.perf_counter()
    results: Any = cuda.run(entry, arrays)
    print(f"ran on {cuda.runtime.name} in {time.perf_counter() - start:.3f} s, copies and loading included")
    return list(results) if isinstance(results, tuple) else [results]  # pyright: ignore[reportUnknownArgumentType]


def emulate(module: CompiledModule, entry: str, arrays: Sequence[Array], work: int) -> list[Array]:
    """The results, computed by the PTX emulator; prints what was executed."""
    expected = work / EMULATED_FLOPS_PER_SECOND
    if expected > LONG_SECONDS:
        print(
            f"emulating {work / 1e9:.1f} GFLOP takes about {expected:.0f} s; --shape chooses smaller inputs", flush=True
        )
    start = time.perf_counter()
    with Progress() as progress:
        progress.count_seconds("emulating", expected)
        results, reports = run_on_emulator(module.portable_artefact, entry, arrays)
    seconds = time.perf_counter() - start
    executed, conflicts = Counter[str](), 0
    for report in reports:
        executed.update(report.instructions)
        conflicts += report.total_bank_conflicts
    total = sum(report.warp_instructions for report in reports)
    common = [f"{kind} {count}" for kind, count in executed.most_common(6)] + ["..."] * (len(executed) > 6)
    kinds = f" ({', '.join(common)})" if common else ""
    print(f"emulated in {seconds:.2f} s: {total} warp instructions{kinds}, {conflicts} bank conflicts")
    return results


def level1_source(module: CompiledModule) -> ModuleOp:
    """The module as it came, for `check`. `EmmyError`, before anything runs, if that is below level 1."""
    from emmy.ir import parse_module
    from emmy.pipelines import level_of

    source = parse_module(module.ir("input"), module.file)
    if level_of(source) != "tensor_op":
        raise EmmyError("--check compares with level 1, and this module begins below it; use emmy check")
    return source


def check(
    module: CompiledModule, source: ModuleOp, entry: str, arrays: Sequence[Array], results: Sequence[Array]
) -> int:
    """Print the error of each result against level 1, `source`, in float64; 1 if one is beyond its bound."""
    from emmy.interpreters import level1
    from emmy.tools.compare import compare, error_terms

    references = level1.run(source, entry, arrays, "float64")
    roundings, terms = error_terms(source, entry, arrays)
    failed = False
    for buffer, result, reference in zip(
        module.portable_artefact.entry(entry)["results"], results, references, strict=True
    ):
        outcome = compare(result, reference, roundings, terms)
        verdict = "ok" if outcome.ok else "FAILED"
        print(f"{buffer['name']}: RMS error {outcome.rms:.2e} of the RMS, bound {outcome.bound:.2e}: {verdict}")
        failed = failed or not outcome.ok
    if failed:
        print("error: the result is beyond the bound; emmy check names the level at which it parts", file=sys.stderr)
    return 1 if failed else 0
