"""What was asked of Emmy on an H200, beside what was measured: one table, made from the result files that are kept.

A claim names its file and computes its figure from it; without the file it is `not measured`. `python -m emmy.bench.report
docs/measurements --add NAME=FILE` with the names here replaces the figures: see `FILES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from emmy.bench import accuracy, gemma4
from emmy.bench.pages import markdown_table
from emmy.bench.records import Record, Run, base_name
from emmy.bench.table import geometric_mean, percent_of_copy

PINGPONG = "consumers='pingpong',atom='wgmma',roles='specialized',persistent=1"
"""Two consumers that compute tiles in turn (`alternate-tiles`)."""

VARIANTS = " ".join(
    f'--variant "{name}:{fields}"'
    for name, fields in (
        ("carry", "carry=1"),
        ("p256", f"{PINGPONG},carry=1,warps=(4,1),block=(64,256,64),stages=4"),
        ("p192", f"{PINGPONG},carry=1,warps=(4,1),block=(64,192,64),stages=6"),
        ("p128", f"{PINGPONG},carry=1,warps=(4,1),block=(64,128,64),stages=8"),
        ("q128", f"{PINGPONG},carry=1,warps=(8,1),block=(128,128,64),stages=4"),
        ("p256_deep", f"{PINGPONG},warps=(4,1),block=(64,256,128),stages=2"),
        ("one256", "atom='wgmma',roles='specialized',persistent=1,warps=(4,1),block=(64,256,64),stages=4"),
        (
            "one256_carry",
            "atom='wgmma',roles='specialized',persistent=1,warps=(4,1),block=(64,256,64),stages=4,carry=1",
        ),
    )
)
"""What is beside the table's choice: that with products carried over iterations; ping-pong tiles of one warpgroup and of two that
share a tile; and a lone warpgroup, to see what carrying is worth."""

FILES = {
    "96_projections": "--suite projections",
    "962_pingpong": f"--suite gemm --suite short --variant table: {VARIANTS}",
    "97_attention": "--suite attention",
    "971_attention_sync": "--suite attention --variant \"sync:atom='m16n8k16'\"",
    "972_decode_clean": "--suite attention, --only 'decode*' --clean",
    "973_attention_launches": "--suite attention, --check-only --repeats 250",
    "98_stress": "--suite stress, --check-only --repeats 3000",
    "99_gemma4": "--suite gemma4",
    "992_accuracy": "--suite attention_accuracy, --check-only",
    "995_fp8": "--suite fp8",
}
"""Name of a kept file -> how it is made."""

Finding = tuple[str, bool | None]
"""The figure, and whether it is what was asked; None where the file lacks it."""

NOT_MEASURED: Finding = ("not measured", None)


@dataclass(frozen=True)
class Claim:
    """What is asked of the figures of a file."""

    text: str
    asked: str
    file: str
    find: Callable[[Run], Finding]


# ---- figures ---------------------------------------------------------------------------------------------------------


def ratio_to(case: Record, peers: Sequence[str]) -> float | None:
    """The least ratio to peers: to the fastest of those that ran."""
    ratios = [ratio for peer in peers if (ratio := case.get("peers", {}).get(peer, {}).get("ratio"))]
    return min(ratios, default=None)


def of_suites(*suites: str) -> Callable[[Record], bool]:
    """Whether a case is of one of the suites."""
    return lambda case: case.get("suite") in suites


def mean_and_least(
    chosen: Callable[[Record], bool], peers: Sequence[str], mean: float | None, least: float | None
) -> Callable[[Run], Finding]:
    """The geometric mean and the least ratio to the fastest of `peers`; what is asked of each, None for nothing."""

    def find(run: Run) -> Finding:
        ratios = {c["name"]: ratio for c in run.timed if chosen(c) and (ratio := ratio_to(c, peers))}
        if not ratios:
            return NOT_MEASURED
        average, (name, worst) = (
            geometric_mean(list(ratios.values())) or 0.0,
            min(ratios.items(), key=lambda item: item[1]),
        )
        ok = (mean is None or average >= mean) and (least is None or worst >= least)
        told = f"{average:.3f} over {len(ratios)}, " if mean is not None or len(ratios) > 1 else ""
        return f"{told}least {worst:.3f} ({name})", ok

    return find


def best_variants(peers: Sequence[str]) -> Callable[[Run], Finding]:
    """The geometric mean of the best variant of each case, and how often each was the best; nothing is asked of it."""

    def find(run: Run) -> Finding:
        best: dict[str, tuple[float, str]] = {}
        for case in run.timed:
            ratio = ratio_to(case, peers)
            if ratio:
                one = ratio, str(case.get("variant") or "")
                best[base_name(case)] = max(best.get(base_name(case), one), one)
        if not best:
            return NOT_MEASURED
        names = [name for _, name in best.values()]
        often = ", ".join(f"{name} {names.count(name)}" for name in dict.fromkeys(names))
        return f"{geometric_mean([ratio for ratio, _ in best.values()]) or 0.0:.3f} over {len(best)} ({often})", None

    return find


def least_rate(chosen: Callable[[Record], bool], asked: float) -> Callable[[Run], Finding]:
    """The least TFLOPS."""

    def find(run: Run) -> Finding:
        rates = {c["name"]: c["tflops"] for c in run.timed if chosen(c)}
        if not rates:
            return NOT_MEASURED
        name, rate = min(rates.items(), key=lambda item: item[1])
        return f"{rate:.0f} TFLOPS ({name})", rate >= asked

    return find


def least_bandwidth(chosen: Callable[[Record], bool], asked: float) -> Callable[[Run], Finding]:
    """The least share of a copy's bandwidth, in percent."""

    def find(run: Run) -> Finding:
        known = {c["name"]: percent for c in run.timed if chosen(c) and (percent := percent_of_copy(c, run.brackets))}
        if not known:
            return NOT_MEASURED
        return "; ".join(f"{percent:.0f} % ({name})" for name, percent in known.items()), min(known.values()) >= asked

    return find


def rows_of(case: Record) -> int:
    """M of a product."""
    return case["shapes"]["a"][0]


def model(run: Run) -> Finding:
    """Gemma 4 against eager: all kernels, products alone, all calls of a pass."""
    found = gemma4.means(gemma4.called(run.cases), "eager")
    if found["all"] is None or found["products"] is None or found["calls"] is None:
        return NOT_MEASURED
    told = f"{found['all']:.3f}; without attention {found['products']:.3f}; all calls of a pass {found['calls']:.3f}"
    return told, found["all"] >= 1.30


def launches(run: Run) -> Finding:
    """Launches compared bit for bit, and how many of a case at least."""
    counts = [case["repeats"] for case in run.cases if case.get("repeats")]
    if not counts:
        return NOT_MEASURED
    differ = sum(case.get("differing_launches", 0) for case in run.cases)
    return f"{sum(counts)} ({min(counts)} to {max(counts)} a case), {differ} differ", not differ


def errors(run: Run) -> Finding:
    """The worst errors over those of an eager run, and launches."""
    found = accuracy.checked(run.cases)
    if not found:
        return NOT_MEASURED
    mean, most = (max(accuracy.ratio(record, which) for record in found) for which in ("mean", "max"))
    correct = sum(record["ok"] for record in found)
    told = f"{correct} of {len(found)} cases; mean at most {mean:.2f}, largest {most:.2f} of eager's"
    return told, correct == len(found) and max(mean, most) <= 2


def repeats(asked: int) -> Callable[[Run], Finding]:
    """As `launches`, at least `asked` of each case."""

    def find(run: Run) -> Finding:
        told, ok = launches(run)
        return told, ok and min(case.get("repeats", 0) for case in run.cases) >= asked if ok is not None else None

    return find


# ---- the claims ------------------------------------------------------------------------------------------------------

PRODUCTS = of_suites("six", "six bf16", "512 tokens", "2048 tokens", "4096 tokens")
EIGHT = of_suites("attention")


def tall(case: Record) -> bool:
    """A product with 2048 rows or more."""
    return PRODUCTS(case) and rows_of(case) >= 2048


def decoding(words: str) -> Callable[[Record], bool]:
    """Cases of one query whose names have all of the words."""
    return lambda case: (
        case.get("suite") == "attention decoding" and all(word in case["name"] for word in words.split())
    )


FUSED = ("flash", "cudnn")

HOPPER = (
    Claim("products of f16 and bf16 against `torch.matmul`", "1.00, none under 0.95", "96_projections",
          mean_and_least(PRODUCTS, ("cublas",), 1.00, 0.95)),
    Claim("those from M = 2048", "none under 0.98", "96_projections", mean_and_least(tall, ("cublas",), None, 0.98)),
    Claim("ten f16 products, `consumers = pingpong` and `carry` beside the table's: the best of each", "-", "962_pingpong",
          best_variants(("cublas",))),
    Claim("attention against cuDNN: A to D, causal, s2048 and s16384", "1.10, none under 1.00", "97_attention",
          mean_and_least(of_suites("attention", "attention lengths"), ("cudnn",), 1.10, 1.00)),
    Claim("window d256 against `flex_attention`", "3", "97_attention",
          mean_and_least(of_suites("attention window"), ("flex",), None, 3.0)),
    Claim("d512, 16 heads on 1, whole", "350 TFLOPS", "97_attention",
          least_rate(lambda c: c.get("suite") == "attention d512" and "causal" not in c["name"], 350)),
    Claim("every product and attention kernel of Gemma 4 at 512 and 2048 tokens against eager", "1.30", "99_gemma4", model),
    Claim("8-bit products of 4096^3 and 8192^3 against f16", "1.6", "995_fp8",
          mean_and_least(lambda c: c["name"] in ("4096x4096x4096 f8", "8192x8192x8192 f8"), ("f16",), None, 1.6)),
    Claim("launches bitwise equal", "3000", "98_stress", repeats(3000)),
)  # fmt: skip
"""Issue 6: wgmma."""

FLASH = (
    Claim("attention by `mma.sync`, f32 sums, against FA-2: A to D, causal", "1.30, each 1.15", "971_attention_sync",
          mean_and_least(EIGHT, ("flash",), 1.30, 1.15)),
    Claim("window d256 against the best backend, by `mma.sync`", "1.7", "971_attention_sync",
          mean_and_least(of_suites("attention window"), ("flex", *FUSED), None, 1.7)),
    Claim("the same as the compiler does it", "1.7", "97_attention",
          mean_and_least(of_suites("attention window"), ("flex", *FUSED), None, 1.7)),
    Claim("d512, 16 heads on 1, whole, by `mma.sync`", "180 TFLOPS", "971_attention_sync",
          least_rate(lambda c: c.get("suite") == "attention d512" and "causal" not in c["name"], 180)),
    Claim("decode b1 d128, 8k and 32k keys, against the better of FA-2 and cuDNN", "1.1", "97_attention",
          mean_and_least(decoding("b1 d128"), FUSED, None, 1.1)),
    Claim("decode b8 d256, 8k keys", "1.0", "97_attention", mean_and_least(decoding("b8 k8192"), FUSED, None, 1.0)),
    Claim("copy bandwidth at 32k keys", "75 %", "97_attention", least_bandwidth(decoding("k32768"), 75)),
    Claim("decode b1 d128 from a clean cache", "1.1", "972_decode_clean",
          mean_and_least(decoding("b1 d128"), FUSED, None, 1.1)),
    Claim("decode b8 d256, 8k keys, from a clean cache", "1.0", "972_decode_clean",
          mean_and_least(decoding("b8 k8192"), FUSED, None, 1.0)),
    Claim("copy bandwidth at 32k keys from a clean cache", "75 %", "972_decode_clean",
          least_bandwidth(decoding("k32768"), 75)),
    Claim("errors against float64, normal and hard inputs, over those of an eager run", "mean and largest at most 2",
          "992_accuracy", errors),
    Claim("attention's launches bitwise equal", "250", "973_attention_launches", repeats(250)),
)  # fmt: skip
"""Issue 5: flash attention."""

SECTIONS: Mapping[str, Sequence[Claim]] = {"On Hopper": HOPPER, "Attention": FLASH}

TEXT = """## What was asked, and what was measured

Each figure is computed from the kept result file of the last column. A mean is geometric; a ratio is the peer's time over ours,
and the fastest of several peers counts.
"""


def claims_section(runs: Mapping[str, Run]) -> str:
    """The section, from the kept files by name; empty if none of them is there."""
    if not any(claim.file in runs for claims in SECTIONS.values() for claim in claims):
        return ""
    parts = [TEXT]
    for title, claims in SECTIONS.items():
        rows: list[list[str]] = []
        for claim in claims:
            run = runs.get(claim.file)
            figure, ok = NOT_MEASURED if run is None else claim.find(run)
            rows.append([claim.text, claim.asked, figure, {True: "yes", False: "no", None: "-"}[ok], f"`{claim.file}`"])
        parts.append(markdown_table([title, "asked", "measured", "reached", "file"], rows))
    return "\n".join(parts)
