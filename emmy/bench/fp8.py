"""Products of 8-bit floats: their shapes, and what a run says of them beside Emmy's own f16 and PyTorch's `torch._scaled_mm`.

The case `NAME f8` sums as the tensor cores do (`accumulate<f32>`), `NAME f8 promoted` adds partial sums of 128 elements up in
f32, `NAME f8 scaled` has an f32 scale for each row and column. `torch._scaled_mm` has both kinds of sums: `use_fast_accum`.
In the suite `fp8_hybrid` sums or partial sums are f16, which GeForce cards sum at twice the rate of f32: `NAME f8 hybrid 64`,
`NAME f8 f16`, timed against Emmy's own f32 sums of the same operands (the peer `static`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from emmy.bench.pages import figure, markdown_table
from emmy.bench.records import Record
from emmy.bench.table import geometric_mean

SUITE = "fp8"
HYBRID_SUITE = "fp8_hybrid"

SQUARES = ((4096, 4096, 4096), (8192, 8192, 8192))
"""M, N, K that are computed in all three ways."""

TOKENS = 2048
"""Rows of the projections of Gemma 4."""

PROMOTED = 128
"""`max_k` of the promoted sums: four products of a tensor core."""

POLICIES = {
    "": "f32",
    "scaled": "f32",
    "promoted": f"hybrid, max_k = {PROMOTED}",
    "f16": "f16",
    "hybrid 32": "hybrid, max_k = 32, partial = f16",
    "hybrid 64": "hybrid, max_k = 64, partial = f16",
    "hybrid 128": "hybrid, max_k = 128, partial = f16",
    "redo": "hybrid, max_k = 64, partial = f16, overflow = redo",
}
"""How the case `NAME f8 WORD` accumulates."""

PEERS = ("scaled_mm", "scaled_mm_promoted")
"""What a run times them against unless it names others; beside them the artefact of f16, as the peer `f16`,
or that of f32 sums, as the peer `static`."""

SCALED = "scaled matmul"
"""The kind of work of a product whose rows and columns are scaled."""

PAIRS = (("f8E4M3FN", "f8E4M3FN"), ("f8E4M3FN", "f8E5M2"), ("f8E5M2", "f8E4M3FN"), ("f8E5M2", "f8E5M2"))

CHECKED = (
    (256, 256, 256, "bf16"),
    (384, 512, 640, "f16"),
    (200, 304, 80, "f32"),
    (130, 90, 200, "f32"),
    (50, 70, 33, "f32"),
)
"""M, N, K and the result's type of products that the emulator runs too: whole tiles, edges, rows of 8 and of 1 bytes."""

MATMUL = """func.func @matmul(%a: tensor<{m}x{k}x{a}>, %b: tensor<{n}x{k}x{b}>) -> tensor<{m}x{n}x{c}> {{
  %c = tensor_op.matmul %a, %b transpose_b accumulate<{policy}>
     : (tensor<{m}x{k}x{a}>, tensor<{n}x{k}x{b}>) -> tensor<{m}x{n}x{c}>
  func.return %c : tensor<{m}x{n}x{c}>
}}
"""

SCALED_MATMUL = """func.func @matmul(
  %a: tensor<{m}x{k}x{a}>, %b: tensor<{n}x{k}x{b}>, %rows: tensor<{m}x1xf32>, %columns: tensor<1x{n}xf32>
) -> tensor<{m}x{n}xbf16> {{
  %sum = tensor_op.matmul %a, %b transpose_b accumulate<{policy}>
     : (tensor<{m}x{k}x{a}>, tensor<{n}x{k}x{b}>) -> tensor<{m}x{n}xf32>
  %x = tensor_op.map mul %sum, %rows : (tensor<{m}x{n}xf32>, tensor<{m}x1xf32>) -> tensor<{m}x{n}xf32>
  %y = tensor_op.map mul %x, %columns : (tensor<{m}x{n}xf32>, tensor<1x{n}xf32>) -> tensor<{m}x{n}xf32>
  %c = tensor_op.cast %y : tensor<{m}x{n}xf32> to tensor<{m}x{n}xbf16>
  func.return %c : tensor<{m}x{n}xbf16>
}}
"""


# ---- peers -----------------------------------------------------------------------------------------------------------


def scaled_mm(fast: bool, torch: Any, args: Sequence[Any], work: Mapping[str, Any]) -> Callable[[], Any] | None:
    """`torch._scaled_mm` with a result of bf16; scales are the last two arguments, or 1. `fast`: sums inside the tensor cores."""
    if args[0].dtype not in (torch.float8_e4m3fn, torch.float8_e5m2):
        return None
    one = torch.ones((), dtype=torch.float32, device=args[0].device)
    rows, columns = args[2:4] if work["kind"] == SCALED else (one, one)
    call = functools.partial(torch._scaled_mm, args[0], args[1].mT, scale_a=rows, scale_b=columns)
    return functools.partial(call, out_dtype=torch.bfloat16, use_fast_accum=fast)


# ---- what a run says of them -----------------------------------------------------------------------------------------


def timed_cases(results: Sequence[Record], *suites: str) -> list[Record]:
    """Correct, timed results of the suites."""
    return [r for r in results if r.get("suite") in suites and r["ok"] and r.get("us")]


def peers_in(timed: Sequence[Record]) -> tuple[str, ...]:
    """What such results may be timed beside; `static` where one is."""
    return ("f16", *(["static"] if any(ratio_to(r, "static") for r in timed) else []), *PEERS)


def ratio_to(record: Mapping[str, Any], peer: str) -> float | None:
    """A peer's time over ours."""
    return record.get("peers", {}).get(peer, {}).get("ratio")


def fp8_lines(results: Sequence[Record]) -> list[str]:
    """For the table that a run prints: geometric mean and least ratio to each peer."""
    lines = list[str]()
    for suite in (SUITE, HYBRID_SUITE):
        timed = timed_cases(results, suite)
        for peer in peers_in(timed):
            ratios = [ratio for r in timed if (ratio := ratio_to(r, peer))]
            if ratios:
                mean = figure(geometric_mean(ratios))
                lines.append(f"{suite}: {peer} / it {mean} (geometric mean of {len(ratios)}), least {min(ratios):.3f}")
    return lines


def fp8_table(results: Sequence[Record]) -> str:
    """One row a case: time, rate, error, and ratios. Nothing if there are no such results."""
    timed = timed_cases(results, SUITE, HYBRID_SUITE)
    if not timed:
        return ""
    peers = peers_in(timed)
    header = [
        "case",
        "us",
        "TFLOPS",
        "RMS error",
        *(f"{peer} us" for peer in peers),
        *(f"{peer} / it" for peer in peers),
    ]
    rows = [
        [
            r["name"],
            f"{r['us']:.1f}",
            figure(r.get("tflops"), ".0f"),
            figure(r.get("error", {}).get("rms_error"), ".1e"),
            *(figure(r["peers"].get(peer, {}).get("us"), ".1f") for peer in peers),
            *(figure(ratio_to(r, peer)) for peer in peers),
        ]
        for r in timed
    ]
    return markdown_table(header, rows) + "\n" + "".join(f"* {line}.\n" for line in fp8_lines(results))
