"""What our kernels are compared with, in the same process and the same rounds: one table, name -> how to make the call."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from emmy.bench import attention_peers, fused
from emmy.bench.fp8 import scaled_mm

Peer = Callable[[], Any]
"""Does the case's work once, into a buffer of its own."""

DEFAULT_PEERS = ("cublas", "flash", "cudnn", "flex")
"""Of cases that name no peers themselves."""


def matmul_operands(args: Sequence[Any], work: dict[str, Any]) -> tuple[Any, Any]:
    """The first two arguments as (..., m, k) and (..., k, n) views."""
    a = args[0].mT if work.get("transpose_a") else args[0]
    b = args[1].mT if work.get("transpose_b") else args[1]
    return a, b


def cublas(torch: Any, args: Sequence[Any], work: dict[str, Any]) -> Peer | None:
    """`torch.matmul`, with the operands as they are stored."""
    if work.get("kind") != "matmul" or args[0].dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return None
    a, b = matmul_operands(args, work)
    out = torch.matmul(a, b)
    return lambda: torch.matmul(a, b, out=out)


def triton(torch: Any, args: Sequence[Any], work: dict[str, Any]) -> Peer | None:
    """A Triton kernel with f32 sums, tuned over a small list; None where Triton is not installed, or for batches."""
    if work.get("kind") != "matmul" or args[0].dtype not in (torch.float16, torch.bfloat16) or args[0].dim() != 2:
        return None
    try:
        kernels = importlib.import_module("emmy.bench.triton_matmul")
    except ImportError:
        return None
    a, b = matmul_operands(args, work)
    out = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)
    call: Peer = kernels.matmul_call(a, b, out)
    call()  # tunes
    return call


def eager(torch: Any, args: Sequence[Any], work: dict[str, Any]) -> Peer | None:
    """What a user calls in eager mode, its result new memory each time."""
    if work.get("kind") in fused.FUSED:
        return fused.call_of(torch, args, work)
    if work.get("kind") != "matmul":
        return attention_peers.eager(torch, args, work)
    return functools.partial(torch.matmul, *matmul_operands(args, work))


def compiled(torch: Any, args: Sequence[Any], work: dict[str, Any]) -> Peer | None:
    """The same through `torch.compile`."""
    call = eager(torch, args, work)
    if call is None:
        return None
    made: Peer = torch.compile(lambda: call(), dynamic=False)
    made()
    return made


PEERS: dict[str, Callable[[Any, Sequence[Any], dict[str, Any]], Peer | None]] = {
    "cublas": cublas,
    "triton": triton,
    "flash": functools.partial(attention_peers.fused, "FLASH_ATTENTION"),
    "cudnn": functools.partial(attention_peers.fused, "CUDNN_ATTENTION"),
    "flex": attention_peers.flex,
    "eager": eager,
    "compile": compiled,
    "scaled_mm": functools.partial(scaled_mm, True),
    "scaled_mm_promoted": functools.partial(scaled_mm, False),
}
"""Peer -> what makes its call, given PyTorch, the case's arguments and its work; None if it cannot do that work."""

START_SECONDS = {"triton": 60.0, "flex": 60.0, "compile": 60.0}
"""What making a peer's first call may take, beside a case's own time: compiling and tuning."""
