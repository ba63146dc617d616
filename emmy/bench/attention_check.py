"""Attention checked on a device: float64 against the same steps in the operands' own type ("eager"), with PyTorch.

An eager run rounds scores, scaled scores, masked scores, weights and the result to f16 or bf16, as PyTorch does where no fused
kernel runs. Mean and largest error of ours may each be twice its, or twice that of rounding the exact result where that is more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from emmy.bench.attention import Task
from emmy.bench.attention_inputs import counted_rows
from emmy.bench.eager import judged

SMALL_FLOPS = 2e10
"""Up to so many, every head is compared with float64."""


def operands(args: Sequence[Any], task: Task) -> tuple[Any, Any, Any, Any]:
    """q, k, v and the additive mask or None, of a case's arguments."""
    rest = list(args[1:])
    k = rest.pop(0)
    v = k if task.get("shared") else rest.pop(0)
    return args[0], k, v, rest.pop(0) if task.get("bias") else None


def hidden_pairs(torch: Any, rows: int, keys: int, task: Task, device: Any) -> Any:
    """Which (row, key) are hidden, or None if none is."""
    if not task["causal"] and not task["window"]:
        return None
    own = torch.arange(rows, device=device)[:, None] + (keys - rows)
    key = torch.arange(keys, device=device)[None, :]
    hidden = key > own if task["causal"] else key >= own + task["window"]
    return hidden | (key <= own - task["window"]) if task["window"] else hidden


def one_head(torch: Any, tensors: Sequence[Any], task: Task, dtype: Any) -> Any:
    """q (rows x depth), k, v (keys x depth) and a bias (rows x keys) or None, each step rounded to `dtype`; rows that see no key
    give zeros."""
    q, k, v = (x.to(dtype) for x in tensors[:3])
    bias = None if tensors[3] is None else tensors[3].to(dtype)
    scores = (q @ k.mT) * task["scale"]
    if bias is not None:
        scores = scores + bias
    hidden = hidden_pairs(torch, q.shape[0], k.shape[0], task, q.device)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    weights = torch.softmax(scores, -1)
    if bias is not None or q.shape[0] > k.shape[0]:
        weights = weights.masked_fill((scores == -math.inf).all(-1, keepdim=True), 0.0)
    return weights @ v


def sequences(args: Sequence[Any], task: Task, out: Any) -> Iterator[tuple[int, int, list[Any], Any]]:
    """(batch, head, its q, k, v and bias, its result) of every head of every sequence that has rows."""
    q, k, v, bias = operands(args, task)
    whole = [(0, q.shape[2], 0, k.shape[2])]
    if "starts" in task:
        pairs = [list(pairwise(starts)) for starts in task["starts"]]
        whole = [(*rows, *keys) for rows, keys in zip(*pairs, strict=True) if rows[0] < rows[1]]
    for batch in range(q.shape[0]):
        for head in range(q.shape[1]):
            group = head * k.shape[1] // q.shape[1]
            one = None if bias is None else bias[batch % bias.shape[0], head % bias.shape[1]]
            for first, last, begin, end in whole:
                given = [q[batch, head, first:last], k[batch, group, begin:end], v[batch, group, begin:end], one]
                yield batch, head, given, out[batch, head, first:last]


def compare(torch: Any, args: Sequence[Any], task: Task, out: Any) -> dict[str, Any]:
    """`ok`, the errors, and a `message` if something is wrong."""
    every = task["flops"] <= SMALL_FLOPS
    heads = range(out.shape[1]) if every else sorted({0, out.shape[1] // 2, out.shape[1] - 1})
    chosen = [one for one in sequences(args, task, out) if one[1] in heads and (every or one[0] == 0)]
    sums = {name: [0.0, 0.0] for name in ("ours", "eager", "rounding")}
    not_finite, elements = 0, 0
    for _, _, given, got in chosen:
        reference = one_head(torch, given, task, torch.float64)
        plain = one_head(torch, given, task, out.dtype)
        counted = torch.from_numpy(counted_rows(task, *(x.shape[0] for x in given[:2]))).to(out.device)
        not_finite += int((~torch.isfinite(got[counted])).sum())
        for name, value in (("ours", got), ("eager", plain), ("rounding", reference.to(out.dtype))):
            error = (value.double() - reference)[counted].abs()
            sums[name][0] += float(error.sum())
            sums[name][1] = max(sums[name][1], float(error.max())) if error.numel() else sums[name][1]
        elements += int(counted.sum()) * got.shape[1]
    figures = {name: (total / max(elements, 1), most) for name, (total, most) in sums.items()}
    anywhere = None if every else largest_error(torch, args, task, out)
    not_finite += 0 if every else int((~torch.isfinite(out)).sum())
    return judged(figures, anywhere, not_finite)


def largest_error(torch: Any, args: Sequence[Any], task: Task, out: Any) -> float:
    """Of all heads, against f32."""
    worst = 0.0
    for _, _, given, got in sequences(args, task, out):
        reference = one_head(torch, given, task, torch.float32)
        worst = max(worst, float((got.float() - reference).abs().max()))
    return worst
