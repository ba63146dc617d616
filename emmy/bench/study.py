"""The accumulation study: how far each policy is from float64, by K, promotion interval and kind of input.

On the CPU the policy interpreter (`emmy.interpreters.contraction`) sums as the policies say: f16 sums are rounded to nearest
once a k-step of 16 elements, which is what the emulator does. Tensor cores truncate inside of a k-step and in f32 sums, so the
same cases can be compiled (`prepare_study`) for `python -m emmy.bench.run` on a GPU, where larger matrices give the same figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emmy.artefact import DTYPES
from emmy.bench.cases import Case, write_cases, write_refused
from emmy.bench.errors import seed_statistics, summarize
from emmy.compiler import compile as compile_module
from emmy.dialects.tensor_op import AccumulateAttr
from emmy.errors import EmmyError
from emmy.interpreters.contraction import contract

Array = NDArray[Any]
Record = dict[str, Any]

DEPTHS = (256, 1024, 4096, 16384, 65536)
PROMOTIONS = (16, 32, 64, 128, 256)
SEEDS = 32
SIZE = 64
GPU_SIZE = 1024
ADVERSARIAL_DEPTH = 4096
EIGHT_BIT_OPERANDS = "f8E4M3FN"
EIGHT_BIT_DEPTHS = (256, 1024, 4096)
EIGHT_BIT_PROMOTIONS = (32, 64, 128, 256)
EIGHT_BIT_SEEDS = 16
BATCH_ELEMENTS = 1 << 23  # operand elements held at a time


@dataclass(frozen=True)
class Policy:
    """An accumulation policy; `max_k` is 0 except for hybrid."""

    name: str
    max_k: int = 0

    @property
    def text(self) -> str:
        """As a program spells it."""
        return f"hybrid, max_k = {self.max_k}" if self.max_k else self.name

    @property
    def label(self) -> str:
        return f"hybrid {self.max_k}" if self.max_k else self.name

    @property
    def attribute(self) -> AccumulateAttr:
        return AccumulateAttr.get(self.name, self.max_k or None, partial="f16" if self.max_k else "")


def policies(promotions: Sequence[int] = PROMOTIONS) -> list[Policy]:
    """f32, hybrid at each promotion interval, f16."""
    return [Policy("f32"), *(Policy("hybrid", p) for p in promotions), Policy("f16")]


# ---- inputs ----------------------------------------------------------------------------------------------------------

Inputs = Callable[[np.random.Generator, int, int, int], tuple[Array, Array]]


def normal(generator: np.random.Generator, m: int, n: int, k: int) -> tuple[Array, Array]:
    """A [m, k] and B [n, k] of N(0, 1)."""
    return generator.standard_normal((m, k)), generator.standard_normal((n, k))


def large_mean(generator: np.random.Generator, m: int, n: int, k: int) -> tuple[Array, Array]:
    """N(1, 1/4): sums grow with K and f16 sums lose addends."""
    a, b = normal(generator, m, n, k)
    return 1 + a / 4, 1 + b / 4


def cancellation(generator: np.random.Generator, m: int, n: int, k: int) -> tuple[Array, Array]:
    """The second half of K takes away what the first half added, but for 1/64 of noise: C is small beside its sums."""
    a, b = normal(generator, m, n, k // 2)
    noise = generator.standard_normal(b.shape) / 64
    return np.concatenate((a, a), axis=1), np.concatenate((b, noise - b), axis=1)


def small(generator: np.random.Generator, m: int, n: int, k: int) -> tuple[Array, Array]:
    """N(0, 1) / 4096: sums of a k-step are near 2^-22, and f16 knows only multiples of 2^-24 there."""
    a, b = normal(generator, m, n, k)
    return a / 4096, b / 4096


def overflow(generator: np.random.Generator, m: int, n: int, k: int) -> tuple[Array, Array]:
    """48 N(0, 1): partial sums of 64 elements pass 65504 at 3.6 standard deviations; f32 sums are far from their limit."""
    a, b = normal(generator, m, n, k)
    return 48 * a, 48 * b


INPUTS: dict[str, Inputs] = {
    "normal": normal,
    "large mean": large_mean,
    "cancellation": cancellation,
    "small": small,
    "overflow": overflow,
}


def _largest_of_rows(values: Array) -> Array:
    return np.abs(values).max(axis=1, keepdims=True)


def scaled(largest: float) -> Inputs:
    """N(0, 1), each row of either operand scaled so that its largest element is `largest`."""

    def inputs(generator: np.random.Generator, m: int, n: int, k: int) -> tuple[Array, Array]:
        a, b = normal(generator, m, n, k)
        return a * (largest / _largest_of_rows(a)), b * (largest / _largest_of_rows(b))

    return inputs


EIGHT_BIT_INPUTS: dict[str, Inputs] = {
    "scaled to 448": scaled(448),
    "scaled to 64": scaled(64),
    "scaled to 30": scaled(30),
}
"""Scaled to the end of e4m3, as is usual; and less. No sum of 64 products of numbers to 30 is beyond f16."""


# ---- on the CPU ------------------------------------------------------------------------------------------------------


def study(
    depths: Sequence[int] = DEPTHS, promotions: Sequence[int] = PROMOTIONS, seeds: int = SEEDS, size: int = SIZE
) -> Iterator[Record]:
    """Records of every policy: for normal inputs at each depth, for adversarial ones at `ADVERSARIAL_DEPTH` (or the deepest).

    A record has `inputs`, `policy`, `max_k`, `m`, `n`, `k`, and for the result kept in f32 and rounded to f16 (`f32`, `f16`)
    what `summarize` gives.
    """
    cases = [("normal", depth) for depth in depths]
    cases += [(kind, min(ADVERSARIAL_DEPTH, max(depths))) for kind in INPUTS if kind != "normal"]
    for kind, depth in cases:
        yield from study_case(kind, depth, policies(promotions), seeds, size)


def eight_bit_study(seeds: int = EIGHT_BIT_SEEDS, size: int = SIZE) -> Iterator[Record]:
    """The same of e4m3 operands, whose f16 sums are rounded once in 32 elements; `operands` says so in a record, and
    `operand_rounding` what rounding them costs, over rms(C), too."""
    tried = policies(EIGHT_BIT_PROMOTIONS)
    cases = [("normal", depth) for depth in EIGHT_BIT_DEPTHS]
    cases += [(kind, EIGHT_BIT_DEPTHS[-1]) for kind in EIGHT_BIT_INPUTS]
    for kind, depth in cases:
        cost = {"operand_rounding": operand_rounding(kind, depth, size, EIGHT_BIT_OPERANDS)}
        yield from (record | cost for record in study_case(kind, depth, tried, seeds, size, EIGHT_BIT_OPERANDS))


def operand_rounding(kind: str, depth: int, size: int, dtype: str) -> float:
    """The RMS error of a product whose operands were rounded to a type, over rms(C)."""
    a, b = (INPUTS | EIGHT_BIT_INPUTS)[kind](np.random.default_rng(0), size, size, depth)
    reference = operands(kind, depth, (0,), size, dtype)[2][0]
    exact = a @ b.T
    return float(np.linalg.norm(reference - exact) / np.linalg.norm(exact))


def study_case(
    kind: str, depth: int, tried: Sequence[Policy], seeds: int, size: int, dtype: str = "f16"
) -> Iterator[Record]:
    """One kind of input at one depth; `dtype`: of the operands."""
    at_once = max(1, min(seeds, BATCH_ELEMENTS // (size * depth)))
    found: dict[Policy, dict[str, list[dict[str, float]]]] = {p: {"f32": [], "f16": []} for p in tried}
    for first in range(0, seeds, at_once):
        a, b, reference = operands(kind, depth, range(first, min(first + at_once, seeds)), size, dtype)
        for policy in tried:
            sums = accumulate(a, b, policy, DTYPES[dtype].itemsize == 1)
            for result, kept in (("f32", sums), ("f16", as_f16(sums))):
                for one, wanted in zip(kept.astype(np.float64), reference, strict=True):
                    found[policy][result].append(seed_statistics(np, one, wanted))
    for policy in tried:
        record = {
            "kind": "study",
            "source": "interpreter",
            "inputs": kind,
            "policy": policy.name,
            "max_k": policy.max_k,
        }
        record |= {} if dtype == "f16" else {"operands": dtype}
        sizes = {"m": size, "n": size, "k": depth}
        yield record | sizes | {result: summarize(rows) for result, rows in found[policy].items()}


def operands(kind: str, depth: int, seeds: Sequence[int], size: int, dtype: str = "f16") -> tuple[Array, Array, Array]:
    """A [seeds, size, depth] and B^T [seeds, depth, size] rounded to a type and widened to f32, and C in float64."""
    inputs = INPUTS | EIGHT_BIT_INPUTS
    pairs = [inputs[kind](np.random.default_rng(seed), size, size, depth) for seed in seeds]
    rounded = [(a.astype(DTYPES[dtype]), b.astype(DTYPES[dtype])) for a, b in pairs]
    reference = np.stack([a.astype(np.float64) @ b.astype(np.float64).T for a, b in rounded])
    a = np.stack([a for a, _ in rounded]).astype(np.float32)
    b = np.stack([b for _, b in rounded]).astype(np.float32).swapaxes(-1, -2)
    return a, np.ascontiguousarray(b), reference


def accumulate(a: Array, b: Array, policy: Policy, eight_bits: bool = False) -> Array:
    """The policy's sums, f16 under `f16`, else f32, and partial sums of f16; what overflows stays infinite."""
    dtype = np.float16 if policy.name == "f16" else np.float32
    with np.errstate(over="ignore", invalid="ignore"):
        zeros = np.zeros((*a.shape[:-1], b.shape[-1]), dtype)
        return contract(zeros, a, b, policy.attribute, eight_bits=eight_bits)


def as_f16(sums: Array) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        return sums.astype(np.float16)


# ---- for a GPU -------------------------------------------------------------------------------------------------------

PRODUCT = """func.func @matmul(%a: tensor<{m}x{k}xf16>, %b: tensor<{n}x{k}xf16>) -> tensor<{m}x{n}xf32> {{
  %c = tensor_op.matmul %a, %b transpose_b accumulate<{policy}>
     : (tensor<{m}x{k}xf16>, tensor<{n}x{k}xf16>) -> tensor<{m}x{n}xf32>
  func.return %c : tensor<{m}x{n}xf32>
}}
"""


def prepare_study(
    directory: Path,
    target: str,
    depths: Sequence[int] = DEPTHS,
    promotions: Sequence[int] = PROMOTIONS,
    seeds: int = SEEDS,
    size: int = GPU_SIZE,
) -> list[Case]:
    """Compile every policy at every depth into `directory`; the cases, which `emmy.bench.run` studies over seeds.

    A partial sum ends with its k-tile at the latest, so tiles are as deep as the promotion interval. What cannot be compiled
    is listed in refused.json. Raises `EmmyError` if nothing can.
    """
    directory.mkdir(parents=True, exist_ok=True)
    cases: list[Case] = []
    refused: list[dict[str, Any]] = []
    for depth in depths:
        for policy in policies(promotions):
            case = study_case_of(size, depth, policy, seeds)
            tile = {"block": (64, 64, max(64, policy.max_k)), "warps": (2, 2), "stages": 2}
            text = PRODUCT.format(m=size, n=size, k=depth, policy=policy.text)
            try:
                compile_module(text, target, schedule=tile).artefact.save(directory / case.artefact)
                cases.append(case)
            except EmmyError as error:
                refused.append({"name": case.name, "variant": policy.label, "settings": tile, "message": error.message})
    if not cases:
        raise EmmyError(
            f"no policy can be compiled; the first one: {refused[0]['message'] if refused else 'there is none'}"
        )
    write_cases(directory, cases)
    write_refused(directory, refused)
    return cases


def study_case_of(size: int, depth: int, policy: Policy, seeds: int) -> Case:
    """One case of the study on a GPU."""
    name = f"study {size}x{size}x{depth} {policy.label}"
    case = Case(name.replace(" ", "_"), "matmul", {"a": [size, depth], "b": [size, depth]}, name=name, time=False)
    return replace(case, policy=policy.name, max_k=policy.max_k or case.max_k, seeds=seeds)


def records_of_run(records: Sequence[Record]) -> list[Record]:
    """The records of the study in a result file of `emmy.bench.run`, in the form of `study`."""
    cards = [record["card"] for record in records if record["kind"] == "device"]
    return [
        {
            "kind": "study",
            "source": cards[0] if cards else "GPU",
            "inputs": "normal",
            "policy": record["policy"],
            "max_k": record.get("max_k", 0) if record["policy"] == "hybrid" else 0,
            "m": record["shapes"]["a"][0],
            "n": record["shapes"]["b"][0],
            "k": record["shapes"]["a"][1],
            **record["study"],
        }
        for record in records
        if record["kind"] == "case" and record.get("study")
    ]
