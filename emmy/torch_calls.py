"""Calls with PyTorch tensors, which repeat a thousand times a second: the way from a call to its launch, kept short.

What a call depends on beside addresses is the dtypes, shapes, strides and devices of its tensors. They are the key under
which the checked *plan* of such a call is kept (`emmy.runtime.Plan`); a call that finds its plan reads the current stream,
allocates its results, tests the addresses' alignment, and launches. Nothing of that waits for the device, and all memory
comes from PyTorch, so that it can be recorded into a CUDA graph.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from emmy.device_arrays import TORCH_DTYPES
from emmy.driver import stream_handle
from emmy.tensor_guard import Guard, guard_of
from emmy.torch_allocation import Make, maker_of

if TYPE_CHECKING:
    from emmy.runtime import CudaModule, Plan

MAX_KEPT = 4096


def _key_of(tensors: Sequence[Any]) -> Any:
    return tuple([value for t in tensors for value in (t.dtype, t.shape, t.stride(), t.get_device(), t.is_neg())])


def _never(*tensors: Any) -> bool:
    return False


@dataclass(slots=True)
class _Kept:
    """A plan, and what to allocate for it, results and then temporaries."""

    plan: Plan
    guard: Guard
    count: int  # tensors in the key
    makers: tuple[Make, ...]
    results: int  # how many of `makers` are results


class TorchCaller:
    """One entry of a module on a device. A call takes arguments, out and stream as `CudaModule.run` does."""

    def __init__(self, module: CudaModule, entry: str):
        self.module = module
        self.entry = entry
        self.device = module.runtime.device
        self._count = len(module.artefact.entry(entry)["arguments"])
        self._kept: dict[Any, _Kept] = {}  # without out
        self._kept_out: dict[Any, _Kept] = {}  # with out, whose tensors end the key
        self._last: _Kept | None = None
        self._last_out: _Kept | None = None
        self._launch = module.launch
        self._current_context = module.runtime.driver.cuCtxGetCurrent
        self._context = int(module.runtime.context)
        self._current_stream: Callable[[int], int] = int

    def forget(self) -> None:
        """Drop all plans: their kernels are unloaded."""
        self._kept.clear()
        self._kept_out.clear()
        self._last = self._last_out = None

    def __call__(self, args: Sequence[Any], out: Any, stream: Any) -> Any:
        # The usual call is written out here: each function that it does not enter saves a tenth of a microsecond.
        if out is None:
            tensors, kept = args, self._last
        else:
            tensors, kept = (*args, *out) if type(out) in (list, tuple) else (*args, out), self._last_out
        if kept is None or len(tensors) != kept.count or len(args) != self._count or not kept.guard(*tensors):
            kept = self._find(args, tensors, out)
        if kept is None or stream is not None or int(self._current_context()[1]) != self._context:
            return self._unusual(kept, args, tensors, out, stream)
        if not kept.makers:
            self._launch(kept.plan, tuple([tensor.data_ptr() for tensor in tensors]), self._current_stream(self.device))
            return out if type(out) not in (list, tuple) else self._result(kept, tensors, ())
        fresh = [make() for make in kept.makers]
        addresses = tuple([tensor.data_ptr() for tensor in (*tensors, *fresh)])
        self._launch(kept.plan, addresses, self._current_stream(self.device))
        return fresh[0] if kept.results == 1 else self._result(kept, tensors, fresh)

    def _find(self, args: Sequence[Any], tensors: Sequence[Any], out: Any) -> _Kept | None:
        """The plan of a call that is not like the last one."""
        if len(args) != self._count:
            return None
        try:
            kept = (self._kept if out is None else self._kept_out).get(_key_of(tensors))
        except (AttributeError, RuntimeError):  # they are no tensors, or none with strides
            return None
        if kept is None:
            return None
        if out is None:
            last, self._last = self._last, kept
        else:
            last, self._last_out = self._last_out, kept
        if last is kept and kept.guard is not _never:
            # Only the guard did not know them: they differ in something that does not matter here.
            kept.guard = guard_of(tensors) or _never
        return kept

    def _result(self, kept: _Kept, tensors: Sequence[Any], fresh: Sequence[Any]) -> Any:
        """What a call returns: the allocated results or, if there are none, the tensors of `out`."""
        results = fresh[: kept.results] if kept.results else tensors[self._count :]
        return results[0] if len(results) == 1 else tuple(results)

    def _unusual(self, kept: _Kept | None, args: Sequence[Any], tensors: Sequence[Any], out: Any, stream: Any) -> Any:
        """A call that is met for the first time, on a given stream, or while another device is current."""
        if kept is None:
            return self.module.run_first(self.entry, args, out, stream)
        runtime = self.module.runtime
        previous = runtime.enter()
        try:
            return self._run(kept, tensors, stream)
        finally:
            runtime.leave(previous)

    def first(self, args: Sequence[Any], outs: list[Any] | None, stream: Any) -> Any:
        """The call with tensors that are met for the first time: check them, keep the plan, run."""
        torch: Any = sys.modules["torch"]
        # The private query costs a tenth of the public one's microsecond.
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self._current_stream = raw or (lambda device: torch.cuda.current_stream(device).cuda_stream)
        handle = self._current_stream(self.device) if stream is None else stream_handle(stream)
        plan = self.module.plan(self.entry, args, outs, handle)
        buffers = (*(plan.call.results if outs is None else ()), *plan.call.temporaries)
        makers = tuple(maker_of(torch, b.shape, getattr(torch, TORCH_DTYPES[b.dtype]), args[0].device) for b in buffers)
        tensors = (*args, *(outs or ()))
        kept = _Kept(
            plan, guard_of(tensors) or _never, len(tensors), makers, len(plan.call.results) if outs is None else 0
        )
        table = self._kept if outs is None else self._kept_out
        if len(table) >= MAX_KEPT:
            table.clear()
        table[_key_of(tensors)] = kept
        if outs is None:
            self._last = kept
        else:
            self._last_out = kept
        return self._run(kept, tensors, stream)

    def _run(self, kept: _Kept, tensors: Sequence[Any], stream: Any) -> Any:
        """Allocate and launch, on the current stream or on `stream`."""
        current = self._current_stream(self.device)
        handle = current if stream is None else stream_handle(stream)
        on_stream: Any = contextlib.nullcontext()
        if handle != current and kept.makers:
            # Memory from PyTorch's cache belongs to a stream: take it from the one that will use it.
            torch: Any = sys.modules["torch"]
            on_stream = torch.cuda.stream(torch.cuda.ExternalStream(handle, device=self.device))
        with on_stream:
            fresh = [make() for make in kept.makers]
        self._launch(kept.plan, tuple([tensor.data_ptr() for tensor in (*tensors, *fresh)]), handle)
        return self._result(kept, tensors, fresh)
