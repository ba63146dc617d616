"""Suites: what `python -m emmy.bench.prepare --suite NAME` compiles, and the cases that are run with it.

`SUITES` lists them. A suite yields a `Work` for each case: a source text, the name of its artefact's folder, and the case.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from emmy.bench import fp8, fused
from emmy.bench import gemma4 as gemma
from emmy.bench.attention import Attention, attention_cases
from emmy.bench.attention_inputs import ATOMS, accuracy_cases
from emmy.bench.cases import Case
from emmy.bench.ragged import ragged_cases
from emmy.compiler import compile as compile_module
from emmy.dialects.tensor_op import AccumulateAttr
from emmy.errors import EmmyError
from emmy.ir import parse_attribute

SIX = (
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (4096, 15360, 3840),
    (4096, 3840, 15360),
    (2048, 2048, 2048),
    (512, 15360, 3840),
)
"""M, N, K of the shapes that docs/ quotes: three squares, and Gemma 4's MLP at 4096 and 512 tokens."""

SHORT = ((8192, 8192, 256), (8192, 8192, 512), (8192, 8192, 1024), (4096, 4096, 2048))
"""M, N, K of products whose tiles take as long to store as some of their steps."""

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

OPEN_PROJECTIONS, OPEN_TOKENS = ((4096, 3840), (512, 3840), (3840, 15360)), (16, 128, 512, 1536, 4096)
"""N, K and M of the suite `open_rows`."""

SQUARES = (512, 1024, 2048, 4096, 8192)
TOKENS = (512, 4096)
"""Of the suite `tokens`."""

INTEGERS = ((256, 256, 256), (384, 512, 192), (200, 304, 72), (128, 256, 64), (1, 8, 16))
"""M, N, K of products that the emulator runs too; with edges and a single k-tile."""

STRESS = (
    (4096, 4096, 4096),
    (2048, 2048, 2048),
    (1000, 1096, 1048),
    (2048, 4096, 64),
    (2048, 4096, 192),
    (2048, 512, 3840),
    (488, 504, 3848),
)
"""M, N, K: many k-tiles under full load, a part of a wave, edges everywhere, one k-tile, as many as stages; half a wave, without
edges and with them, which two CTAs share on sm_90a."""

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
    own_schedule: whether the baseline's schedule is its own, whatever the variant.
    schedule: fields that it has beside those of a variant; targets without its atom leave the case out.
    """

    source: str | Path
    artefact: str
    case: Case
    dtype: str = "f16"
    baseline: str | None = None
    same_schedule: bool = False
    own_schedule: bool = False
    variants: bool = False
    schedule: Mapping[str, Any] = field(default_factory=dict[str, Any])


def product(m: int, n: int, k: int, dtype: str = "f16", **fields: Any) -> Work:
    """C = A B^T of one static shape; `fields` are those of `Case`."""
    text = MATMUL.format(m=m, n=n, k=k, t=dtype)
    name = f"{m}x{n}x{k} {dtype}"
    case = Case("", "matmul", {"a": [m, k], "b": [n, k]}, name=name, **fields)
    return Work(text, name.replace(" ", "_"), case, dtype)


def gemm() -> Iterator[Work]:
    """The six shapes."""
    yield from (product(m, n, k, suite="six") for m, n, k in SIX)


def short() -> Iterator[Work]:
    """Products of short contractions."""
    yield from (product(m, n, k, suite="short") for m, n, k in SHORT)


def squares() -> Iterator[Work]:
    """Squares from 512 to 8192, f16 and bf16."""
    for size in SQUARES:
        for dtype in ("f16", "bf16"):
            yield replace_name(product(size, size, size, dtype, time=False), "square ")


def fused_work(name: str, kind: str, m: int, n: int, k: int, **fields: Any) -> Work:
    """A product with what follows it; `fields` are those of `Case`."""
    task = fused.task_of(kind, m, n, k)
    case = Case("", kind, fused.shapes_of(kind, m, n, k), name=name, task=task, **fields)
    return Work(fused.text_of(kind, m, n, k), f"{kind}_{m}x{n}x{k}", case)


def gemma4() -> Iterator[Work]:
    """Every product and attention kernel of Gemma 4 12B at 512 and 2048 tokens, against what PyTorch does in eager mode, and
    through `torch.compile`."""
    for count in gemma.TOKENS:
        fields: dict[str, Any] = {"suite": gemma.SUITE, "peers": list(gemma.PEERS)}
        for name, n, k, calls in gemma.PRODUCTS:
            if name in gemma.WHOLE:
                name, kind, n = gemma.WHOLE[name]
                yield fused_work(f"{name} {count} tokens", kind, count, n, k, calls=calls, **fields)
            else:
                work = product(count, n, k, calls=calls, **fields)
                yield replace(work, case=replace(work.case, name=f"{name} {count} tokens"))
        for problem, calls in gemma.attentions(count):
            yield attention_work(replace(problem, name=f"{problem.name} {count} tokens"), calls=calls, **fields)


def tokens() -> Iterator[Work]:
    """Every projection of Gemma 4 12B with its tokens given at run time. `EmmyError` outside a checkout."""
    files = sorted(EXAMPLES.glob("gemma4_*.mlir"))
    if not files:
        raise EmmyError(
            f"suite tokens compiles docs/examples/gemma4_*.mlir of a checkout of Emmy, and {EXAMPLES} has none; "
            "install with 'pip install -e' from a checkout"
        )
    for path in files:
        entry, shapes = signature(path)
        for count in TOKENS:
            sizes = {name: [count if size is None else size for size in shape] for name, shape in shapes.items()}
            case = Case("", entry, sizes, name=f"{entry} {count} tokens", time=False, seed=count)
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


def open_rows() -> Iterator[Work]:
    """Some projections with their number of tokens `?`, one artefact each, for few and many tokens, against static artefacts."""
    for n, k in OPEN_PROJECTIONS:
        text = MATMUL.format(m="?", n=n, k=k, t="f16")
        for tokens in OPEN_TOKENS:
            static = product(tokens, n, k)
            case = replace(static.case, variant="open_rows", suite="open_rows", against=static.artefact)
            yield Work(text, f"open_{n}x{k}", case, baseline=str(static.source))


def fp8_product(m: int, n: int, k: int, kind: str = "", **fields: Any) -> Work:
    """C = A B^T of e4m3 in one of the ways of `emmy.bench.fp8`, timed against the product of f16."""
    static, scaled, policy = product(m, n, k), kind == "scaled", fp8.POLICIES[kind]
    text = (fp8.SCALED_MATMUL if scaled else fp8.MATMUL).format(
        m=m, n=n, k=k, a="f8E4M3FN", b="f8E4M3FN", c="bf16", policy=policy
    )
    name = f"{m}x{n}x{k} f8{' ' * bool(kind)}{kind}"
    shapes = {"a": [m, k], "b": [n, k], **({"rows": [m, 1], "columns": [1, n]} if scaled else {})}
    task = {"kind": fp8.SCALED, "k": k, "transpose_b": True} if scaled else None
    known: dict[str, Any] = {"policy": policy.partition(",")[0], "max_k": fp8.PROMOTED, "task": task}
    known |= {"suite": fp8.SUITE, "peers": list(fp8.PEERS), "against": None if scaled else static.artefact}
    case = Case("", "matmul", shapes, name=name, **known, **fields)
    baseline = None if scaled else str(static.source)
    return Work(text, name.replace(" ", "_"), case, "f8E4M3FN", baseline=baseline, own_schedule=True)


def fp8_products() -> Iterator[Work]:
    """Two squares in three ways, and the projections of Gemma 4, of 8-bit operands."""
    for kind in ("", "promoted", "scaled"):
        yield from (fp8_product(*shape, kind) for shape in fp8.SQUARES)
    yield from (fp8_product(fp8.TOKENS, n, k) for _, n, k, _ in gemma.PRODUCTS)


def fp8_hybrid() -> Iterator[Work]:
    """Two squares whose sums, or partial sums, are f16, against f32 sums of the same operands; and small products of integers
    that are summed so, every pair of types, foretold by the emulator."""
    for shape in fp8.SQUARES:
        static = fp8_product(*shape)
        for kind in ("hybrid 32", "hybrid 64", "hybrid 128", "f16", "redo"):
            work, policy = fp8_product(*shape, kind), accumulate_of(fp8.POLICIES[kind])
            known = {"max_k": policy.max_k.data, "partial": policy.partial.data, "against": static.artefact}
            case = replace(work.case, suite=fp8.HYBRID_SUITE, **known)
            yield replace(work, case=case, baseline=str(static.source))
    for a, b in fp8.PAIRS:
        for m, n, k, c in fp8.CHECKED[::2]:
            yield from (fp8_check(m, n, k, a, b, c, fp8.POLICIES[kind]) for kind in ("f16", "hybrid 64"))


def accumulate_of(policy: str) -> AccumulateAttr:
    """A policy as it is written between `accumulate<` and `>`."""
    found = parse_attribute(f"#tensor_op.accumulate<{policy}>")
    assert isinstance(found, AccumulateAttr)
    return found


def fp8_check(m: int, n: int, k: int, a: str, b: str, c: str, policy: str) -> Work:
    """A small product of integers of 8 bits."""
    word = policy.partition(",")[0]
    text = fp8.MATMUL.format(m=m, n=n, k=k, a=a, b=b, c=c, policy=policy)
    halves = " f16 sums" if word == "f16" or policy.endswith("partial = f16") else ""
    name = f"integers {m}x{n}x{k} {a} {b} {c} {word}{halves}"
    artefact = name.replace(" ", "_")
    case = Case("", "matmul", {"a": [m, k], "b": [n, k]}, name=name, data="integers", magnitude=2, seed=m)
    case = replace(case, time=False, policy=word, max_k=64, expect=f"{artefact}.npy")
    return Work(text, artefact, case, a)


def fp8_checks() -> Iterator[Work]:
    """Small products of integers of 8 bits, every pair of types, with and without promotion: foretold by the emulator."""
    for a, b in fp8.PAIRS:
        for m, n, k, c in fp8.CHECKED:
            yield from (fp8_check(m, n, k, a, b, c, policy) for policy in ("f32", "hybrid, max_k = 64"))


def attention_work(problem: Attention, **fields: Any) -> Work:
    """A problem of attention; `fields` are those of `Case`."""
    base: dict[str, Any] = {"name": problem.name, "suite": problem.suite, "task": problem.task}
    case = Case("", "attention", problem.shapes, **{**base, **fields})
    return Work(problem.text, re.sub(r"[ /]", "_", problem.name), case, problem.dtype)


def attention() -> Iterator[Work]:
    """The problems of `emmy.bench.attention`."""
    yield from map(attention_work, attention_cases())


def attention_accuracy() -> Iterator[Work]:
    """Hard inputs; cases that differ in their inputs only share an artefact."""
    for problem, atoms in accuracy_cases():
        work = attention_work(problem, time=False)
        artefact = problem.name.partition(",")[0].replace(" ", "_")
        yield replace(work, artefact=artefact, schedule={"atom": ATOMS[atoms]})


SUITES = {
    "attention": attention,
    "attention_accuracy": attention_accuracy,
    "gemm": gemm,
    "short": short,
    "squares": squares,
    "gemma4": gemma4,
    "projections": projections,
    "tokens": tokens,
    "integers": integers,
    "stress": stress,
    "ragged": ragged,
    "dynamic": dynamic,
    "fp8": fp8_products,
    "fp8_checks": fp8_checks,
    "fp8_hybrid": fp8_hybrid,
    "open_rows": open_rows,
}


def signature(path: Path) -> tuple[str, dict[str, list[int | None]]]:
    """The only function of a file and its arguments' sizes, None for `?`."""
    module = compile_module(path, target="sm_90a")
    entry = module.entries[0]
    arguments = module.portable_artefact.entry(entry)["arguments"]
    return entry, {a["name"]: [size if isinstance(size, int) else None for size in a["shape"]] for a in arguments}
