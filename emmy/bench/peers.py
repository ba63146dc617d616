"""What our kernels are compared with, in the same process and the same rounds: one table, name -> how to make the call."""

from __future__ import annotations

import contextlib
import functools
import importlib
import signal
from collections.abc import Callable, Generator, Sequence
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


COMPILE_MODE = "max-autotune-no-cudagraphs"
"""Of `torch.compile`: the most that it does for a kernel. It times its own templates beside the library's products, and fuses
what follows them. A CUDA graph would save host time only, which no figure here has in it, and keep results in its own memory."""


def compiled(torch: Any, args: Sequence[Any], work: dict[str, Any]) -> Peer | None:
    """What `eager` calls through `torch.compile`, as one graph: a part that would run eagerly is an error. It is compiled by its
    first call, here."""
    call = eager(torch, args, work)
    if call is None:
        return None
    made: Peer = torch.compile(lambda: call(), dynamic=False, fullgraph=True, mode=COMPILE_MODE)
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

START_SECONDS = {"triton": 60.0, "flex": 60.0, "compile": 90.0}
"""What making a peer's first call may take, beside a case's own time: compiling and tuning."""

BY_TORCH_COMPILE = ("flex", "compile")
"""Peers that `torch.compile` makes. It keeps what it made by the code that it is of, which is the same in every case, and after
some of them runs further ones eagerly, without an error: it must forget those of the case before."""


def make_peer(name: str, torch: Any, args: Sequence[Any], work: dict[str, Any]) -> Peer | None:
    """The call of a peer, ready to be timed; None if it cannot do the work. Raises whatever goes wrong, and `TimeoutError`."""
    if name in BY_TORCH_COMPILE:
        torch.compiler.reset()
    with within(START_SECONDS.get(name)):
        return PEERS[name](torch, args, work)


class _Rung(BaseException):
    """The time is over. No `Exception`: a compiler that tries many kernels goes on after those."""


@contextlib.contextmanager
def within(seconds: float | None) -> Generator[None]:
    """`TimeoutError` if what is inside takes longer; None: any time. For the main thread, where signals arrive."""
    if seconds is None:
        yield
        return

    def ring(*_: Any) -> None:
        raise _Rung

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _Rung:
        raise TimeoutError(f"not ready within {seconds:g} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
