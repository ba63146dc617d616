"""Compile a suite of kernels into a folder that `python -m emmy.bench.run` measures on a machine without the compiler.

    python -m emmy.bench.prepare DIR --suite gemm --suite gemma4 [--target sm_90a] [--variant NAME:FIELD=VALUE,...]
    python -m emmy.bench.prepare DIR --suite gemm --ablate roles,stages=2|3|4,transport,accumulate

Suites: `gemm` (the six shapes quoted in docs/, timed), `short` (contractions of 256 to 2048, timed), `squares` (512
to 8192), `projections` (the six shapes and every
product of Gemma 4 12B at 512, 2048 and 4096 tokens, f16 and bf16, timed), `tokens` (those products compiled once with
`?` tokens, from docs/examples), `gemma4` (every product and attention kernel of that model at 512 and 2048 tokens,
timed against PyTorch in eager mode and through `torch.compile`, with how often the model calls it), `attention` (whole,
causal, windows, decoding; timed; see `emmy.bench.attention`), `attention_accuracy` (hard inputs, each atom, f16 and
bf16: errors beside those of an eager run; `emmy.bench.attention_inputs`), `integers` (small products whose bits the
emulator foretells), `stress` (products with few and many k-tiles and with edges, for `--check-only --repeats 3000`),
`ragged` (313 products of any size in any layout, three of them with more than 2^31 elements, for `--check-only
--repeats 2`), `dynamic` (the six shapes with `?` for every size, timed against static ones: as the compiler schedules
them, and with the static schedule), `open_rows` (projections whose number of tokens is `?`, for few and many tokens,
timed against static ones), `fp8` (products of 8-bit floats against those of f16 and `torch._scaled_mm`;
`emmy.bench.fp8`), `fp8_checks` (small ones whose bits the emulator foretells), `fp8_hybrid` (f16 sums and
partial sums of them, against f32 sums; and small ones).
A variant compiles every case of the suites once more with other schedule fields, or another accumulation policy (the field
`accumulate`); its name is put behind the case's. `--ablate` makes a variant of every combination of the values of some fields;
those that cannot be compiled are listed in refused.json, with the reason. The artefact `peak` measures the card itself.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from emmy.artefact import Artefact
from emmy.bench.ablation import AXES, cross_product, parse_axes
from emmy.bench.cases import Case, matches, write_cases, write_expectation, write_refused
from emmy.bench.pages import told
from emmy.bench.peak import PEAK_ARTEFACT, peak_artefact
from emmy.bench.suites import SUITES, Work, accumulate_of
from emmy.compiler import compile as compile_module
from emmy.errors import EmmyError
from emmy.progress import Progress
from emmy.schedules import SCHEDULE_FIELDS, WARPGROUP_ATOM
from emmy.targets import DEFAULT_TARGET, TARGETS, get_target

NAME = re.compile(r"[A-Za-z0-9_.+]+")
"""Of a variant: it becomes part of a folder's name."""


def parse_variant(text: str) -> tuple[str, dict[str, Any]]:
    """`wide:block=(128,256,64),stages=4` as a name and schedule fields. `EmmyError` for anything else."""
    name, _, fields = text.partition(":")
    try:
        call = ast.parse(f"f({fields})", mode="eval").body
        if not NAME.fullmatch(name) or not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError(text)
        if call.args or any(keyword.arg is None for keyword in call.keywords):
            raise ValueError(text)
        values = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError):
        raise EmmyError(f"'{text}' is no variant; write NAME:FIELD=VALUE,... with Python literals") from None
    if len(values) < len(call.keywords):
        raise EmmyError(f"variant '{text}' gives a field twice")
    for field in values:
        if field not in SCHEDULE_FIELDS and field != "accumulate":
            raise EmmyError(f"a schedule has no field '{field}'; its fields are {', '.join(SCHEDULE_FIELDS)}")
    return name, values


def parse_variants(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The variants by name; without any, one that has no name and changes nothing. `EmmyError` for a name used twice."""
    variants = [parse_variant(text) for text in texts]
    names = [name for name, _ in variants]
    if len(set(names)) < len(names):
        raise EmmyError(f"variants need different names, got {', '.join(names)}")
    return dict(variants) or {"": {}}


def build(
    directory: Path,
    target: str,
    suites: Sequence[str],
    variants: Mapping[str, Mapping[str, Any]],
    refused: list[dict[str, Any]] | None = None,
    only: str | None = None,
) -> list[Case]:
    """Compile the suites into `directory`; the cases that were written. `only`: as in `cases.matches`.

    `refused` receives the variants that cannot be compiled (name, variant, settings, message); without it the first of
    them raises `EmmyError`.
    """
    cases: list[Case] = []
    works = [work for suite in suites for work in SUITES[suite]() if runs_on(work, target)]
    asked = [(work, variant_case(work, *variant), *variant) for work in works for variant in variants.items()]
    wanted = [one for one in asked if matches(one[1], only)]
    with Progress() as progress:
        for number, (work, case, variant, settings) in enumerate(wanted, 1):
            progress.tell(f"compiling {number} of {len(wanted)}: {case.name}")
            try:
                compile_case(directory, target, work, case, settings)
            except EmmyError as error:
                if refused is None:
                    raise
                told = {"name": case.name, "variant": variant, "settings": dict(settings), "message": error.message}
                refused.append(told)
            else:
                cases.append(case)
    write_cases(directory, cases)
    return cases


def runs_on(work: Work, target: str) -> bool:
    """Whether the target has the atom that the work asks for."""
    return work.schedule.get("atom") != WARPGROUP_ATOM or get_target(target).wgmma


def variant_case(work: Work, variant: str, settings: Mapping[str, Any]) -> Case:
    """The work's case as a variant."""
    case = replace(
        work.case,
        artefact="-".join(filter(None, (work.artefact, variant))),
        name=" ".join(filter(None, (work.case.name, variant))),
        variant=variant or work.case.variant,
        settings=dict(settings) or None,
    )
    if "accumulate" not in settings or work.dtype == "bf16":
        return case
    policy = accumulate_of(settings["accumulate"])
    return replace(case, policy=policy.policy.data, max_k=policy.max_k.data, partial=policy.partial.data)


def compile_case(directory: Path, target: str, work: Work, case: Case, settings: Mapping[str, Any]) -> None:
    """Write the case's artefact, unless it is there, and what the case expects. Raises `EmmyError`."""
    fields = {**work.schedule, **{name: value for name, value in settings.items() if name != "accumulate"}}
    policy = settings.get("accumulate", "f32")
    if case.against is not None and work.baseline is not None:
        static = directory / case.against
        if not static.exists():
            asked: dict[str, Any] = {} if work.own_schedule else {"accumulate": policy, "schedule": fields}
            baseline = compile_module(work.baseline, target, **asked)
            replace(baseline.artefact, supply=None).save(static)
        if work.same_schedule:
            saved = Artefact.load(static)
            fields = dict(saved.kernels[saved.entry(case.entry)["launches"][0]["kernel"]]["schedule"])
    if not (directory / case.artefact).exists():
        artefact = compile_module(work.source, target, accumulate=policy, schedule=fields).artefact
        (artefact if work.variants else replace(artefact, supply=None)).save(directory / case.artefact)
    if case.expect is not None and not (directory / case.expect).exists():
        write_expectation(directory, case)


def add_arguments(parser: argparse.ArgumentParser, suite_required: bool = True) -> None:
    """What is compiled: shared with `emmy bench`, where `gemm` is the suite if none is named."""
    add = parser.add_argument
    add("--suite", action="append", choices=sorted(SUITES), required=suite_required, help="repeatable")
    add("--target", choices=sorted(TARGETS))
    add("--only", help="only cases whose name contains this or matches it as a shell pattern")
    add("--variant", action="append", default=[], help="NAME:FIELD=VALUE,... of a schedule; repeatable")
    add(
        "--ablate", metavar="FIELD[=VALUE|VALUE],...", help=f"every combination; values are known for {', '.join(AXES)}"
    )


def prepare(directory: Path, args: argparse.Namespace, target: str) -> int:
    """Compile what the command line asks for, and the peak; how many cases there are. Raises `EmmyError`."""
    variants = parse_variants(args.variant)
    refused: list[dict[str, Any]] | None = None
    if args.ablate:
        refused = []
        combinations = cross_product(parse_axes(args.ablate))
        variants = {
            "-".join(filter(None, (name, combined))): {**fields, **settings}
            for name, fields in variants.items()
            for combined, settings in combinations.items()
        }
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise EmmyError(f"'{directory}' is there already; artefacts go into a new or empty folder")
    directory.mkdir(parents=True, exist_ok=True)
    cases = build(directory, target, args.suite, variants, refused, args.only)
    write_refused(directory, refused or [])
    peak_artefact(target).save(directory / PEAK_ARTEFACT)
    if not cases:
        raise EmmyError(
            f"no variant can be compiled; the first one: {refused[0]['message'] if refused else 'there is none'}"
        )
    print(f"{len(cases)} cases in {directory}" + (f", {len(refused)} refused" if refused else ""))
    return len(cases)


def main(argv: Sequence[str] | None = None) -> int:
    """Compile what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="emmy.bench.prepare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, help="a new or empty folder")
    add_arguments(parser)
    args = parser.parse_args(argv)

    def action() -> int:
        prepare(args.directory, args, args.target or DEFAULT_TARGET)
        return 0

    return told(action)


if __name__ == "__main__":
    sys.exit(main())
