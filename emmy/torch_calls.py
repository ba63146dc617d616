"""Calls with PyTorch tensors, which repeat a thousand times a second: the way from a call to its launch, kept short.

What a call depends on beside addresses is the dtypes, shapes, strides and devices of its tensors. They are the key under
which the checked *plan* of such a call is kept (`emmy.runtime.Plan`); a call that finds its plan reads the current stream,
allocates its results, tests the addresses' alignment, and launches. Nothing of that waits for the device, and all memory
comes from PyTorch, so that it can be recorded into a CUDA graph.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from emmy.artefact import BoundBuffer
from emmy.device_arrays import TORCH_DTYPES
from emmy.driver import stream_handle

if TYPE_CHECKING:
    from emmy.runtime import CudaModule, Plan

MAX_KEPT = 4096


def _key_of(*tensors: Any) -> Any:
    return tuple([value for t in tensors for value in (t.dtype, t.shape, t.stride(), t.get_device())])


def _key_of_2(a: Any, b: Any) -> Any:
    return (a.dtype, a.shape, a.stride(), a.get_device(), b.dtype, b.shape, b.stride(), b.get_device())


def _key_of_3(a: Any, b: Any, c: Any) -> Any:
    return (
        *(a.dtype, a.shape, a.stride(), a.get_device()),
        *(b.dtype, b.shape, b.stride(), b.get_device()),
        *(c.dtype, c.shape, c.stride(), c.get_device()),
    )


_KEYS: dict[int, Callable[..., Any]] = {2: _key_of_2, 3: _key_of_3}
"""`_key_of` for the usual numbers of tensors: its loop costs half a microsecond more."""


@dataclass(slots=True)
class _Kept:
    """A plan, and what to allocate for it: (shape, dtype) of results and of temporaries."""

    plan: Plan
    results: tuple[tuple[Any, Any], ...]
    temporaries: tuple[tuple[Any, Any], ...]


class TorchCaller:
    """One entry of a module on a device. A call takes arguments, out and stream as `CudaModule.run` does."""

    def __init__(self, module: CudaModule, entry: str):
        self.module = module
        self.entry = entry
        self.device = module.runtime.device
        self._count = len(module.artefact.entry(entry)["arguments"])
        self._kept: dict[Any, _Kept] = {}  # without out
        self._kept_out: dict[Any, _Kept] = {}  # with out, whose tensors end the key
        self._current_context = module.runtime.driver.cuCtxGetCurrent
        self._context = int(module.runtime.context)
        self._current_stream: Callable[[int], int] = int

    def forget(self) -> None:
        """Drop all plans: their kernels are unloaded."""
        self._kept.clear()
        self._kept_out.clear()

    def __call__(self, args: Sequence[Any], out: Any, stream: Any) -> Any:
        tensors, table = args, self._kept
        if out is not None:
            tensors, table = (*args, *out) if type(out) in (list, tuple) else (*args, out), self._kept_out
        if len(args) == self._count:
            try:
                kept = table.get(_KEYS.get(len(tensors), _key_of)(*tensors))
            except AttributeError:  # they are no tensors
                kept = None
            if kept is not None:
                return self._again(kept, tensors, out, stream)
        return self.module.run_first(self.entry, args, out, stream)

    def _again(self, kept: _Kept, tensors: Sequence[Any], out: Any, stream: Any) -> Any:
        """A call that was met before. It enters and leaves the device only if another one is current."""
        if int(self._current_context()[1]) == self._context:
            results = self._run(kept, tensors, out is not None, stream)
        else:
            runtime = self.module.runtime
            previous = runtime.enter()
            try:
                results = self._run(kept, tensors, out is not None, stream)
            finally:
                runtime.leave(previous)
        if out is not None:
            results = tensors[self._count :]
        return results[0] if len(results) == 1 else tuple(results)

    def first(self, args: Sequence[Any], outs: list[Any] | None, stream: Any) -> list[Any]:
        """The call with tensors that are met for the first time: check them, keep the plan, run."""
        torch: Any = sys.modules["torch"]
        # The private query costs a tenth of the public one's microsecond.
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self._current_stream = raw or (lambda device: torch.cuda.current_stream(device).cuda_stream)
        handle = self._current_stream(self.device) if stream is None else stream_handle(stream)
        plan = self.module.plan(self.entry, args, outs, handle)

        def sizes(buffers: Sequence[BoundBuffer]) -> tuple[tuple[Any, Any], ...]:
            return tuple((torch.Size(b.shape), getattr(torch, TORCH_DTYPES[b.dtype])) for b in buffers)

        kept = _Kept(plan, sizes(plan.call.results), sizes(plan.call.temporaries))
        tensors = (*args, *(outs or ()))
        table = self._kept if outs is None else self._kept_out
        if len(table) >= MAX_KEPT:
            table.clear()
        table[_KEYS.get(len(tensors), _key_of)(*tensors)] = kept
        results = self._run(kept, tensors, outs is not None, stream)
        return list(results) if outs is None else outs

    def _run(self, kept: _Kept, tensors: Sequence[Any], has_out: bool, stream: Any) -> Sequence[Any]:
        """Allocate and launch; the allocated results."""
        current = handle = self._current_stream(self.device)
        if stream is not None:
            handle = stream_handle(stream)
        fresh: list[Any] = []
        if not has_out or kept.temporaries:
            wanted = kept.temporaries if has_out else kept.results + kept.temporaries
            if handle == current:
                fresh = [tensors[0].new_empty(shape, dtype=dtype) for shape, dtype in wanted]
            else:
                # Memory from PyTorch's cache belongs to a stream: take it from the one that will use it.
                torch: Any = sys.modules["torch"]
                with torch.cuda.stream(torch.cuda.ExternalStream(handle, device=self.device)):
                    fresh = [tensors[0].new_empty(shape, dtype=dtype) for shape, dtype in wanted]
        addresses = [tensor.data_ptr() for tensor in tensors]
        if fresh:
            addresses += [tensor.data_ptr() for tensor in fresh]
        self.module.launch(kept.plan, addresses, handle)
        return () if has_out else fresh[: len(kept.results)]
