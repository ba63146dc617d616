"""Attention in the bench: cases, what they are checked against, and PyTorch's own kernels as peers.

A case's `task` says what is computed: kind (`attention`), scale, causal, window (0 for none; the last key is the row's own under
`causal`). Arguments are q (batch, heads, rows, depth) and k, v (batch, groups, keys, depth); causal rows are aligned at the
bottom right. Three heads are compared with float64: mean and largest error may each be twice those of the same computation in
the operands' type, step by step (`eager`); all heads are compared with f32.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Task = dict[str, Any]

KIND = "attention"
TIMES_EAGER = 2.0
"""How many times the error of `eager` is allowed, in the mean and at most."""

TIMES_EAGER_ANYWHERE = 4.0
"""The same for the largest error of all heads, against f32: the three heads that `eager` is measured on may be lucky."""

TEXT = """func.func @attention(%q: {q}, %k: {k}, %v: {k}) -> {q} {{
  %o = tensor_op.attention %q, %k, %v scale {scale}{flags} : ({q}, {k}, {k}) -> {q}
  func.return %o : {q}
}}
"""


@dataclass(frozen=True)
class Attention:
    """One problem: q is batch x heads x rows x depth, k and v are batch x groups x keys x depth."""

    name: str
    batch: int
    heads: int
    groups: int
    rows: int
    keys: int
    depth: int
    causal: bool = False
    window: int = 0
    dtype: str = "f16"

    @property
    def text(self) -> str:
        """Level 1."""
        q, k = ("x".join(map(str, shape)) for shape in (self.shapes["q"], self.shapes["k"]))
        flags = " causal" * self.causal + (f" window {self.window}" if self.window else "")
        types = {name: f"tensor<{shape}x{self.dtype}>" for name, shape in (("q", q), ("k", k))}
        return TEXT.format(scale=self.scale, flags=flags, **types)

    @property
    def scale(self) -> float:
        """Of the scores."""
        return self.depth**-0.5

    @property
    def shapes(self) -> dict[str, list[int]]:
        """Of the arguments."""
        keys = [self.batch, self.groups, self.keys, self.depth]
        return {"q": [self.batch, self.heads, self.rows, self.depth], "k": keys, "v": list(keys)}

    @property
    def task(self) -> Task:
        """What `cases.json` says of it; flops count pairs of a row and a key that it sees."""
        seen = sum(min(self.keys, last + 1) - max(0, first) for first, last in map(self.range_of, range(self.rows)))
        flops = 4 * self.batch * self.heads * self.depth * seen
        fields = {"kind": KIND, "scale": self.scale, "causal": self.causal, "window": self.window}
        return fields | {"flops": flops}

    def range_of(self, row: int) -> tuple[int, int]:
        """The first and the last key that a row sees (beyond the keys where it sees none)."""
        own = row + self.keys - self.rows
        last = max(own, -1) if self.causal else self.keys - 1
        return (own - self.window + 1 if self.window else 0), last


def attention_cases() -> Iterator[Attention]:
    """The problems that docs/ quotes: four sizes with and without causal masks, Gemma's layers, decoding."""
    sizes = (("A", 1, 8, 8, 64), ("B", 4, 16, 16, 64), ("C", 4, 16, 16, 128), ("D", 1, 16, 8, 256))
    for causal in (False, True):
        for letter, batch, heads, groups, depth in sizes:
            name = f"{letter} b{batch} h{heads}/{groups} s4096 d{depth}{' causal' * causal}"
            yield Attention(name, batch, heads, groups, 4096, 4096, depth, causal)
    for length in (2048, 4096, 8192):
        yield Attention(f"gemma window s{length} d256", 1, 16, 8, length, length, 256, True, 1024)
    for causal in (False, True):
        yield Attention(f"gemma global s4096 d512{' causal' * causal}", 1, 16, 1, 4096, 4096, 512, causal)
    for batch, heads, groups, keys, depth in (
        (1, 16, 8, 8192, 128),
        (1, 16, 8, 32768, 128),
        (8, 16, 8, 8192, 256),
        (8, 16, 8, 32768, 256),
    ):
        name = f"decode b{batch} h{heads}/{groups} k{keys} d{depth}"
        yield Attention(name, batch, heads, groups, 1, keys, depth)


# ---- references ------------------------------------------------------------------------------------------------------


def hidden_pairs(torch: Any, rows: int, keys: int, task: Task, device: Any) -> Any:
    """Which (row, key) are hidden, or None if none is."""
    if not task["causal"] and not task["window"]:
        return None
    own = torch.arange(rows, device=device)[:, None] + (keys - rows)
    key = torch.arange(keys, device=device)[None, :]
    hidden = key > own if task["causal"] else key >= own + task["window"]
    return hidden | (key <= own - task["window"]) if task["window"] else hidden


def one_head(torch: Any, args: Sequence[Any], task: Task, batch: int, head: int, dtype: Any) -> Any:
    """One head, each step rounded to `dtype`."""
    q, k, v = args[:3]
    group = head * k.shape[1] // q.shape[1]
    one_q, one_k, one_v = q[batch, head].to(dtype), k[batch, group].to(dtype), v[batch, group].to(dtype)
    scores = (one_q @ one_k.mT) * task["scale"]
    hidden = hidden_pairs(torch, q.shape[2], k.shape[2], task, q.device)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    return torch.softmax(scores, -1) @ one_v


def compare(torch: Any, args: Sequence[Any], task: Task, out: Any) -> dict[str, Any]:
    """`ok`, the errors, and a `message` if something is wrong."""
    q = args[0]
    not_finite = int((~torch.isfinite(out)).sum())
    heads = sorted({0, q.shape[1] // 2, q.shape[1] - 1})
    ours, eager = [0.0, 0.0], [0.0, 0.0]
    for head in heads:
        reference = one_head(torch, args, task, 0, head, torch.float64)
        plain = one_head(torch, args, task, 0, head, q.dtype)
        for sums, got in ((ours, out[0, head]), (eager, plain)):
            error = (got.double() - reference).abs()
            sums[0] += float(error.mean()) / len(heads)
            sums[1] = max(sums[1], float(error.max()))
    anywhere = largest_error(torch, args, task, out)
    bounds = [TIMES_EAGER * eager[0], TIMES_EAGER * eager[1], TIMES_EAGER_ANYWHERE * eager[1]]
    ok = not not_finite and all(e <= b for e, b in zip((*ours, anywhere), bounds, strict=True))
    errors = {"mean_error": ours[0], "max_error": ours[1], "eager_mean": eager[0], "eager_max": eager[1]}
    found: dict[str, Any] = {"ok": ok, "error": {**errors, "anywhere": anywhere, "not_finite": not_finite}}
    if not_finite:
        return found | {"message": f"{not_finite} of {out.numel()} elements are NaN or infinite"}
    if not ok:
        told = ", ".join(f"{e:.2e} (bound {b:.2e})" for e, b in zip((*ours, anywhere), bounds, strict=True))
        return found | {"message": f"mean error, largest, largest of all heads: {told}"}
    return found


def largest_error(torch: Any, args: Sequence[Any], task: Task, out: Any) -> float:
    """Of all heads, against f32."""
    worst = 0.0
    for batch in range(out.shape[0]):
        for head in range(out.shape[1]):
            reference = one_head(torch, args, task, batch, head, torch.float32)
            worst = max(worst, float((out[batch, head].float() - reference).abs().max()))
    return worst


# ---- peers -----------------------------------------------------------------------------------------------------------


def fused(backend: str, torch: Any, args: Sequence[Any], task: Task) -> Any:
    """`scaled_dot_product_attention` by one backend; None for masks that only a tensor of them could say."""
    if task.get("kind") != KIND or task["window"] or (task["causal"] and args[0].shape[2] != args[1].shape[2]):
        return None
    choice = importlib.import_module("torch.nn.attention")
    attend = functools.partial(
        torch.nn.functional.scaled_dot_product_attention,
        *args[:3],
        is_causal=task["causal"],
        scale=task["scale"],
        enable_gqa=args[0].shape[1] != args[1].shape[1],
    )

    def call() -> Any:
        with choice.sdpa_kernel(getattr(choice.SDPBackend, backend)):
            return attend()

    call()
    return call


def flex(torch: Any, args: Sequence[Any], task: Task) -> Any:
    """`flex_attention`, compiled, for windows."""
    if task.get("kind") != KIND or not task["window"] or not task["causal"]:
        return None
    module, shift = importlib.import_module("torch.nn.attention.flex_attention"), args[1].shape[2] - args[0].shape[2]

    def seen(batch: Any, head: Any, row: Any, key: Any) -> Any:
        return (key <= row + shift) & (key > row + shift - task["window"])

    mask = module.create_block_mask(seen, None, None, args[0].shape[2], args[1].shape[2], device=args[0].device)
    attend = torch.compile(module.flex_attention, dynamic=False)
    grouped = args[0].shape[1] != args[1].shape[1]
    call = functools.partial(attend, *args[:3], block_mask=mask, scale=task["scale"], enable_gqa=grouped)
    call()
    return call
