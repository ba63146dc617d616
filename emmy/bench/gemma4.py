"""Every product and attention kernel of a forward pass of Gemma 4 12B, and how often the model calls it.

48 layers, of which every sixth is global: 40 slide a window of 1024 keys (16 heads on 8, head dimension 256), 8 see all keys (16
heads on one, head dimension 512, keys are values). Queries and keys are normalised, so that scores are not scaled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from emmy.bench.attention import Attention
from emmy.bench.pages import figure, markdown_table
from emmy.bench.records import Record
from emmy.bench.table import geometric_mean

SUITE = "gemma4"
TOKENS = (512, 2048)
SLIDING, GLOBAL = 40, 8

PRODUCTS = (
    ("q", 4096, 3840, SLIDING),
    ("k or v", 2048, 3840, 2 * SLIDING),
    ("o", 3840, 4096, SLIDING),
    ("q global", 8192, 3840, GLOBAL),
    ("k global", 512, 3840, GLOBAL),
    ("o global", 3840, 8192, GLOBAL),
    ("gate and up", 30720, 3840, SLIDING + GLOBAL),
    ("down", 3840, 15360, SLIDING + GLOBAL),
    ("logits", 262144, 3840, 1),
)
"""Name, N, K, calls of a forward pass."""

WHOLE = {"gate and up": ("gate and up, GeGLU", "geglu", 15360), "logits": ("logits, capped", "capped", 262144)}
"""Product -> the program that the model has in its place (see `emmy.bench.fused`): its name, its kind, N of each product."""

PEERS = ("eager", "compile")
"""What a run times them against unless it names others; ratios without a name are to the first."""


def attentions(tokens: int) -> Iterator[tuple[Attention, int]]:
    """The two kinds of layers, and how many there are."""
    sliding = Attention("attention window 1024", 1, 16, 8, tokens, tokens, 256, True, 1024, factor=1.0)
    everything = Attention("attention global", 1, 16, 1, tokens, tokens, 512, True, shared=True, factor=1.0)
    yield from ((sliding, SLIDING), (everything, GLOBAL))


# ---- what a run says of them -----------------------------------------------------------------------------------------


def is_attention(record: Mapping[str, Any]) -> bool:
    """Whether a result is of an attention kernel: products have no argument `q`."""
    return "q" in record["shapes"]


def tokens_of(record: Mapping[str, Any]) -> int:
    """Rows of the result."""
    if is_attention(record):
        return record["shapes"]["q"][2]
    return record["shapes"].get("a", record["shapes"].get("x"))[0]


def called(results: Sequence[Record]) -> list[Record]:
    """Correct, timed results of kernels that the model calls."""
    return [r for r in results if r.get("calls") and r["ok"] and r.get("us")]


def peers_of(results: Sequence[Record]) -> list[str]:
    """The peers that ran, in order."""
    return list(dict.fromkeys(name for r in results for name, f in r.get("peers", {}).items() if f.get("ratio")))


def means(results: Sequence[Record], peer: str) -> dict[str, float | None]:
    """Of the ratios to a peer: `all`, `products` (without attention), and `calls`, the time of all calls of the kernels over
    that of ours."""
    timed = [r for r in results if r.get("peers", {}).get(peer, {}).get("ratio")]
    ours = sum(r["calls"] * r["us"] for r in timed)
    theirs = sum(r["calls"] * r["peers"][peer]["us"] for r in timed)
    return {
        "all": geometric_mean([r["peers"][peer]["ratio"] for r in timed]),
        "products": geometric_mean([r["peers"][peer]["ratio"] for r in timed if not is_attention(r)]),
        "calls": theirs / ours if ours else None,
    }


def gemma_lines(results: Sequence[Record]) -> list[str]:
    """For the table that a run prints: means over all kernels, without attention, and weighted by calls."""
    timed = called(results)
    groups = [("", timed), *((f" {tokens} tokens", [r for r in timed if tokens_of(r) == tokens]) for tokens in TOKENS)]
    lines: list[str] = []
    for peer in peers_of(timed):
        for label, group in groups:
            count = sum(bool(r["peers"].get(peer, {}).get("ratio")) for r in group)
            if count:
                found = {name: figure(value) for name, value in means(group, peer).items()}
                told = f"gemma4{label} against {peer}: geometric mean of {count} kernels {found['all']}, "
                lines.append(f"{told}without attention {found['products']}, all calls of a pass {found['calls']}")
    return lines


def gemma_table(results: Sequence[Record]) -> str:
    """One row a kernel and number of tokens, and the means. Nothing if there are no such results."""
    timed = called(results)
    if not timed:
        return ""
    peers = peers_of(timed)
    header = [
        "kernel",
        "calls",
        "us",
        "TFLOPS",
        *(f"{peer} us" for peer in peers),
        *(f"ratio to {peer}" for peer in peers),
    ]
    rows = [
        [
            r["name"],
            str(r["calls"]),
            f"{r['us']:.1f}",
            figure(r.get("tflops"), ".0f"),
            *(figure(r["peers"].get(peer, {}).get("us"), ".1f") for peer in peers),
            *(figure(r["peers"].get(peer, {}).get("ratio")) for peer in peers),
        ]
        for r in timed
    ]
    lines = "".join(f"* {line}.\n" for line in gemma_lines(results))
    return markdown_table(header, rows) + "\n" + lines
