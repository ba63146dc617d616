"""Products with the elementwise work that a model puts behind them, in one program: GeGLU, and capped logits.

A case's `task` has a `kind` of the table `FUSED`, the `values` of arguments that are one number, and the products' `flops`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from emmy.bench.eager import judged

CAP = 30.0
"""Of the final logits (Gemma)."""

EXACT_ROWS = 64
"""Rows at either end of the result that are compared with float64; all are compared with f32."""

BLOCK_ELEMENTS = 1 << 27
"""Of a reference held at a time."""

GEGLU = """func.func @geglu(%x: {x}, %gate: {w}, %up: {w}) -> {y} {{
  %u = tensor_op.matmul %x, %up transpose_b : ({x}, {w}) -> {y}
  %g = tensor_op.matmul %x, %gate transpose_b : ({x}, {w}) -> {wide}
  %a = tensor_op.map gelu_tanh %g : ({wide}) -> {wide}
  %h = tensor_op.map mul %a, %u : ({wide}, {y}) -> {wide}
  %o = tensor_op.cast %h : {wide} to {y}
  func.return %o : {y}
}}
"""

CAPPED = """func.func @capped(%x: {x}, %w: {w}, %cap: tensor<1x1xf32>, %inverse: tensor<1x1xf32>) -> {y} {{
  %s = tensor_op.matmul %x, %w transpose_b : ({x}, {w}) -> {wide}
  %r = tensor_op.map mul %s, %inverse : ({wide}, tensor<1x1xf32>) -> {wide}
  %t = tensor_op.map tanh %r : ({wide}) -> {wide}
  %c = tensor_op.map mul %t, %cap : ({wide}, tensor<1x1xf32>) -> {wide}
  %o = tensor_op.cast %c : {wide} to {y}
  func.return %o : {y}
}}
"""


def geglu(torch: Any, x: Any, gate: Any, up: Any) -> Any:
    """gelu(x gate^T) * (x up^T), by tanh."""
    return torch.nn.functional.gelu(x @ gate.mT, approximate="tanh") * (x @ up.mT)


def capped(torch: Any, x: Any, w: Any, *_: Any) -> Any:
    """30 tanh(x w^T / 30)."""
    return torch.tanh((x @ w.mT) / CAP) * CAP


FUSED: Mapping[str, Callable[..., Any]] = {"geglu": geglu, "capped": capped}
"""Kind of task, and name of the function -> what a user writes; the first argument has the rows of the result."""


def text_of(kind: str, m: int, n: int, k: int, dtype: str = "f16") -> str:
    """Level 1: x is m x k, weights are n x k."""
    sizes = {"x": (m, k, dtype), "w": (n, k, dtype), "y": (m, n, dtype), "wide": (m, n, "f32")}
    types = {name: f"tensor<{a}x{b}x{t}>" for name, (a, b, t) in sizes.items()}
    return {"geglu": GEGLU, "capped": CAPPED}[kind].format(**types)


def shapes_of(kind: str, m: int, n: int, k: int) -> dict[str, list[int]]:
    """Of the arguments."""
    if kind == "geglu":
        return {"x": [m, k], "gate": [n, k], "up": [n, k]}
    return {"x": [m, k], "w": [n, k], "cap": [1, 1], "inverse": [1, 1]}


def task_of(kind: str, m: int, n: int, k: int) -> dict[str, Any]:
    """What `cases.json` says of it."""
    values = {"cap": CAP, "inverse": 1 / CAP} if kind == "capped" else {}
    return {"kind": kind, "flops": 2 * m * n * k * (2 if kind == "geglu" else 1), "values": values}


def call_of(torch: Any, args: Sequence[Any], work: Mapping[str, Any]) -> Callable[[], Any]:
    """What a user calls in eager mode."""
    return lambda: FUSED[work["kind"]](torch, *args)


def compare(torch: Any, args: Sequence[Any], work: Mapping[str, Any], out: Any) -> dict[str, Any]:
    """Against float64, f32 and an eager run: `ok`, the errors, and a `message` if something is wrong."""
    x, weights = args[0], args[1:]
    function, rows = FUSED[work["kind"]], x.shape[0]
    chosen = sorted({*range(min(EXACT_ROWS, rows)), *range(max(rows - EXACT_ROWS, 0), rows)})
    exact = function(torch, x[chosen].double(), *(w.double() for w in weights))
    found = {"ours": out[chosen], "eager": function(torch, x[chosen], *weights), "rounding": exact.to(out.dtype)}
    figures: dict[str, tuple[float, float]] = {}
    for name, value in found.items():
        error = (value.double() - exact).abs()
        figures[name] = (float(error.mean()), float(error.max()))
    step = max(BLOCK_ELEMENTS // out.shape[1], 1)
    wide, worst = [w.float() for w in weights], 0.0
    for start in range(0, rows, step):
        block = slice(start, start + step)
        error = (out[block].float() - function(torch, x[block].float(), *wide)).abs()
        worst = max(worst, float(error.nan_to_num(0.0).max()))
    return judged(figures, worst, int((~torch.isfinite(out)).sum()))
