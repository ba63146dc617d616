"""PyTorch's own attention as peers: each fused backend, what a user calls in eager mode, and `flex_attention` for windows."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from emmy.bench.attention import KIND, Task
from emmy.bench.attention_check import hidden_pairs, operands

Call = Callable[[], Any]

TRIAL_CALLS = 5
"""Of each spelling, to choose the faster."""


def plain(task: Task) -> bool:
    """Whether the task is attention without further tensors."""
    return task.get("kind") == KIND and not task.get("bias") and "starts" not in task


def fused(backend: str, torch: Any, args: Sequence[Any], task: Task) -> Call | None:
    """`scaled_dot_product_attention` by one backend; None for masks that only a tensor of them could say."""
    if not plain(task) or task["window"] or (task["causal"] and args[0].shape[2] != args[1].shape[2]):
        return None
    q, k, v, _ = operands(args, task)
    choice = importlib.import_module("torch.nn.attention")
    attend = functools.partial(
        torch.nn.functional.scaled_dot_product_attention,
        *(q, k, v),
        is_causal=task["causal"],
        scale=task["scale"],
        enable_gqa=q.shape[1] != k.shape[1],
    )

    def call() -> Any:
        with choice.sdpa_kernel(getattr(choice.SDPBackend, backend)):
            return attend()

    call()
    return call


def spellings(torch: Any, args: Sequence[Any], task: Task) -> list[Call]:
    """How a model calls attention in eager mode: with `enable_gqa`, or with keys and values repeated for each head.

    Where a causal flag says which keys are hidden it is given; else a boolean mask is, which a model makes once and is not timed.
    """
    q, k, v, _ = operands(args, task)
    rows, keys = q.shape[2], k.shape[2]
    square = rows == keys and (not task["window"] or task["window"] >= keys)
    flag = bool(task["causal"] and square)
    hidden = None if flag else hidden_pairs(torch, rows, keys, task, q.device)
    how = {"attn_mask": None if hidden is None else ~hidden, "is_causal": flag, "scale": task["scale"]}
    attend, repeats = torch.nn.functional.scaled_dot_product_attention, q.shape[1] // k.shape[1]

    def repeated() -> Any:
        return attend(q, k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1), **how)

    grouped = functools.partial(attend, q, k, v, enable_gqa=repeats > 1, **how)
    return [grouped, repeated] if repeats > 1 else [grouped]


def eager(torch: Any, args: Sequence[Any], task: Task) -> Call | None:
    """The faster of the spellings, by whatever kernel PyTorch chooses."""
    if not plain(task):
        return None
    return min(spellings(torch, args, task), key=functools.partial(_milliseconds, torch))


def _milliseconds(torch: Any, call: Call) -> float:
    """Of some calls after a first one."""
    call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(TRIAL_CALLS):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def flex(torch: Any, args: Sequence[Any], task: Task) -> Call | None:
    """`flex_attention`, compiled, for windows."""
    if not plain(task) or not task["window"] or not task["causal"]:
        return None
    q, k, v, _ = operands(args, task)
    module, shift = importlib.import_module("torch.nn.attention.flex_attention"), k.shape[2] - q.shape[2]

    def seen(batch: Any, head: Any, row: Any, key: Any) -> Any:
        return (key <= row + shift) & (key > row + shift - task["window"])

    mask = module.create_block_mask(seen, None, None, q.shape[2], k.shape[2], device=q.device)
    attend = torch.compile(module.flex_attention, dynamic=False)
    grouped = q.shape[1] != k.shape[1]
    call = functools.partial(attend, q, k, v, block_mask=mask, scale=task["scale"], enable_gqa=grouped)
    call()
    return call
