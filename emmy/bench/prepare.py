"""Compile a suite of kernels into a folder that `python -m emmy.bench.run` measures on a machine without the compiler.

    python -m emmy.bench.prepare DIR --suite gemm --suite gemma4 [--target sm_90a] [--variant NAME:FIELD=VALUE,...]
    python -m emmy.bench.prepare DIR --suite gemm --ablate roles,stages=2|3|4,transport,accumulate

Suites: `gemm` (the six shapes quoted in docs/, timed), `squares` (512 to 8192), `gemma4` (every projection of
docs/examples at 512 and 4096 tokens, compiled once with `?` tokens), `projections` (the six shapes and every product of Gemma 4
at 512, 2048 and 4096 tokens with all sizes known, f16 and bf16, timed), `attention` (whole, causal, windows, decoding; timed;
see `emmy.bench.attention`), `integers` (small products whose bits the emulator foretells), `stress` (products with few and many
k-tiles and with edges, for `--check-only --repeats 3000`), `ragged` (313 products of any size in any layout, three of them with
more than 2^31 elements, for `--check-only --repeats 2`), `dynamic` (the six shapes with `?` for every size, timed against static
ones: as the compiler schedules them, and with the static schedule).
A variant compiles every case of the suites once more with other schedule fields, or another accumulation policy (the field
`accumulate`); its name is put behind the case's. `--ablate` makes a variant of every combination of the values of some fields;
those that cannot be compiled are listed in refused.json, with the reason. The artefact `peak` measures the card itself.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from emmy.artefact import Artefact
from emmy.bench.ablation import AXES, cross_product, parse_axes
from emmy.bench.attention import attention_cases
from emmy.bench.cases import Case, matches, write_cases, write_expectation, write_refused
from emmy.bench.pages import told
from emmy.bench.peak import PEAK_ARTEFACT, peak_artefact
from emmy.bench.ragged import ragged_cases
from emmy.compiler import compile as compile_module
from emmy.dialects.tensor_op import AccumulateAttr
from emmy.errors import EmmyError
from emmy.ir import parse_attribute
from emmy.progress import Progress
from emmy.schedules import SCHEDULE_FIELDS
from emmy.targets import DEFAULT_TARGET, TARGETS

SIX = (
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (4096, 15360, 3840),
    (4096, 3840, 15360),
    (2048, 2048, 2048),
    (512, 15360, 3840),
)
"""M, N, K of the shapes that docs/ quotes: three squares, and Gemma 4's MLP at 4096 and 512 tokens."""

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
"""Of the checkout that this file is in: the examples are no part of the wheel."""

PROJECTIONS = (
    (4096, 3840),
    (2048, 3840),
    (3840, 4096),
    (8192, 3840),
    (512, 3840),
    (3840, 8192),
    (15360, 3840),
    (30720, 3840),
    (3840, 15360),
    (262144, 3840),
)
"""N, K of Gemma 4 12B: q, k and v each, o; of global layers q, k, o; gate and up alone and together, down, logits."""

SQUARES = (512, 1024, 2048, 4096, 8192)
TOKENS = (512, 4096)

NAME = re.compile(r"[A-Za-z0-9_.+]+")
"""Of a variant: it becomes part of a folder's name."""

INTEGERS = ((256, 256, 256), (384, 512, 192), (200, 304, 72), (128, 256, 64), (1, 8, 16))
"""M, N, K of products that the emulator runs too; with edges and a single k-tile."""

STRESS = ((4096, 4096, 4096), (2048, 2048, 2048), (1000, 1096, 1048), (2048, 4096, 64), (2048, 4096, 192))
"""M, N, K: many k-tiles under full load, a part of a wave, edges everywhere, one k-tile, as many as stages."""

MATMUL = """func.func @matmul(%a: tensor<{m}x{k}x{t}>, %b: tensor<{n}x{k}x{t}>) -> tensor<{m}x{n}x{t}> {{
  %c = tensor_op.matmul %a, %b transpose_b
     : (tensor<{m}x{k}x{t}>, tensor<{n}x{k}x{t}>) -> tensor<{m}x{n}x{t}>
  func.return %c : tensor<{m}x{n}x{t}>
}}
"""


@dataclass(frozen=True)
class Work:
    """A case before it is compiled: a source (text or file), the folder of its artefact, and the case without it.

    dtype: of the operands; products of bf16 have f32 sums whatever the policy. baseline: the source of the artefact that the
    case is timed against; same_schedule: whether this one gets the schedule of that one. variants: whether the artefact takes
    tensors of any strides and alignment (see `emmy.variants`), or only dense ones, which is compiled in a sixth of the time.
    """

    source: str | Path
    artefact: str
    case: Case
    dtype: str = "f16"
    baseline: str | None = None
    same_schedule: bool = False
    variants: bool = False


def product(m: int, n: int, k: int, dtype: str = "f16", **fields: Any) -> Work:
    """C = A B^T of one static shape; `fields` are those of `Case`."""
    text = MATMUL.format(m=m, n=n, k=k, t=dtype)
    name = f"{m}x{n}x{k} {dtype}"
    case = Case("", "matmul", {"a": [m, k], "b": [n, k]}, name=name, **fields)
    return Work(text, name.replace(" ", "_"), case, dtype)


def gemm() -> Iterator[Work]:
    """The six shapes."""
    yield from (product(m, n, k, suite="six") for m, n, k in SIX)


def squares() -> Iterator[Work]:
    """Squares from 512 to 8192, f16 and bf16."""
    for size in SQUARES:
        for dtype in ("f16", "bf16"):
            yield replace_name(product(size, size, size, dtype, time=False), "square ")


def gemma4() -> Iterator[Work]:
    """Every projection of Gemma 4 12B with its tokens given at run time. `EmmyError` outside a checkout."""
    files = sorted(EXAMPLES.glob("gemma4_*.mlir"))
    if not files:
        raise EmmyError(
            f"suite gemma4 compiles docs/examples/gemma4_*.mlir of a checkout of Emmy, and {EXAMPLES} has none; "
            "install with 'pip install -e' from a checkout"
        )
    for path in files:
        entry, shapes = signature(path)
        for tokens in TOKENS:
            sizes = {name: [tokens if size is None else size for size in shape] for name, shape in shapes.items()}
            case = Case("", entry, sizes, name=f"{entry} {tokens} tokens", time=False, seed=tokens)
            yield Work(path, path.stem, case)


def projections() -> Iterator[Work]:
    """The six shapes and the products of every projection at three numbers of tokens, f16 and bf16."""
    for dtype in ("f16", "bf16"):
        yield from (product(m, n, k, dtype, suite="six" if dtype == "f16" else "six bf16") for m, n, k in SIX)
        for tokens in (512, 2048, 4096):
            for n, k in PROJECTIONS:
                if (tokens, n, k) not in SIX:
                    yield product(tokens, n, k, dtype, suite=f"{tokens} tokens")


def integers() -> Iterator[Work]:
    """Products of small integers: exact on any machine, and foretold bit for bit by the emulator."""
    for m, n, k in INTEGERS:
        for dtype in ("f16", "bf16"):
            work = product(m, n, k, dtype, data="integers", time=False, magnitude=2, seed=m)
            yield replace_name(replace(work, case=replace(work.case, expect=f"{work.artefact}.npy")), "integers ")


def replace_name(work: Work, prefix: str) -> Work:
    """The same work under a longer name."""
    return replace(work, case=replace(work.case, name=prefix + work.case.name))


def stress() -> Iterator[Work]:
    """Products for thousands of launches: a race shows as bits that differ."""
    yield from (replace_name(product(m, n, k, time=False), "stress ") for m, n, k in STRESS)


def ragged() -> Iterator[Work]:
    """Any sizes in any layout."""
    yield from (Work(kind.text, kind.artefact, case, kind.dtype, variants=True) for kind, case in ragged_cases())


def dynamic() -> Iterator[Work]:
    """The six shapes twice, each against its static artefact: all sizes `?` in one artefact; and, as what the sizes alone cost,
    an artefact with `?` for each of the static schedules."""
    text = MATMUL.format(m="?", n="?", k="?", t="f16")
    for m, n, k in SIX:
        static = product(m, n, k)
        for variant, artefact in (("dynamic", "dynamic"), ("same_schedule", f"{static.artefact}_dynamic")):
            name = f"{static.case.name} {variant}"
            case = replace(static.case, name=name, variant=variant, suite=variant, against=static.artefact)
            baseline = str(static.source)
            yield Work(text, artefact, case, baseline=baseline, same_schedule=variant == "same_schedule")


def attention() -> Iterator[Work]:
    """The problems of `emmy.bench.attention`."""
    for problem in attention_cases():
        case = Case("", "attention", problem.shapes, name=problem.name, suite="attention", task=problem.task)
        yield Work(problem.text, re.sub(r"[ /]", "_", problem.name), case, problem.dtype)


SUITES = {
    "attention": attention,
    "gemm": gemm,
    "squares": squares,
    "gemma4": gemma4,
    "projections": projections,
    "integers": integers,
    "stress": stress,
    "ragged": ragged,
    "dynamic": dynamic,
}


def signature(path: Path) -> tuple[str, dict[str, list[int | None]]]:
    """The only function of a file and its arguments' sizes, None for `?`."""
    module = compile_module(path, target="sm_90a")
    entry = module.entries[0]
    arguments = module.portable_artefact.entry(entry)["arguments"]
    return entry, {a["name"]: [size if isinstance(size, int) else None for size in a["shape"]] for a in arguments}


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
    works = [work for suite in suites for work in SUITES[suite]()]
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
    policy = parse_attribute(f"#tensor_op.accumulate<{settings['accumulate']}>")
    assert isinstance(policy, AccumulateAttr)
    return replace(case, policy=policy.policy.data, max_k=policy.max_k.data)


def compile_case(directory: Path, target: str, work: Work, case: Case, settings: Mapping[str, Any]) -> None:
    """Write the case's artefact, unless it is there, and what the case expects. Raises `EmmyError`."""
    fields = {name: value for name, value in settings.items() if name != "accumulate"}
    policy = settings.get("accumulate", "f32")
    if case.against is not None and work.baseline is not None:
        static = directory / case.against
        if not static.exists():
            baseline = compile_module(work.baseline, target, accumulate=policy, schedule=fields)
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
