"""Run an artefact on a CUDA device: load its kernels, check the arguments, launch on the caller's stream.

    runtime = Runtime(device=0)
    module = runtime.load(Artefact.load("q_proj"))
    c = module.run("matmul", (a, b))                 # NumPy in, NumPy out; or CUDA arrays in, CUDA arrays out

Modules are loaded and kernels launched through `cuda.bindings.driver`, which has had one spelling for these calls since
CUDA 12, while `cuda.core` renamed them between its versions; its streams are taken by the `__cuda_stream__` protocol.

The warm path is short on purpose (the aim is under 10 us of host time a call): checks and size expressions are done
once for each combination of shapes, strides and dtypes, and their outcome, a *plan* (`emmy.plans`), is kept. A warm call looks
the plan up, allocates results, looks up what is made ready for its addresses, and launches. A plan is made for addresses that are
aligned; it keeps others beside it, with other variants of the kernels, for addresses that are not.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from emmy.artefact import Artefact, numpy_info
from emmy.binding import ArrayInfo, BoundCall, BoundLaunch, BoundTensorMap, check_outs
from emmy.device_arrays import DeviceArray, allocate_like, is_torch_tensor, read_device_array
from emmy.device_images import DeviceImages
from emmy.device_images import loadable as loadable
from emmy.driver import call, describe, launch_config, open_driver
from emmy.driver import is_available as is_available
from emmy.driver import stream_handle as stream_handle
from emmy.errors import EmmyError
from emmy.launch_specs import DTYPES, Array, LaunchSpec
from emmy.overlap import apart_test, check_apart, refuse_overlap
from emmy.plans import Addresses, Plan, PlannedLaunch, PlannedMap, Ready
from emmy.tensor_maps import HostMap, encode, encoder
from emmy.torch_calls import TorchCaller

MAX_PLANS = 4096
MAX_ALIGNMENT = 16  # bytes: what more an address is a multiple of makes no difference to a kernel
MAX_STREAMS = 256  # stream objects kept by their handles
MAX_MAPS = 256  # tensor maps kept for one parameter of one plan
POISON = 0xFF  # as every byte of a buffer it reads as NaN in f16, bf16 and f32


@functools.cache
def open_device(device: int) -> Runtime:
    """The `Runtime` of a device, made once. Raises `EmmyError` without a driver or such a device."""
    return Runtime(device)


class Runtime:
    """One CUDA device, used through its primary context (the one that PyTorch and the CUDA runtime use)."""

    def __init__(self, device: int = 0):
        driver = self.driver = open_driver()
        count = call("count devices", driver.cuDeviceGetCount)
        if not 0 <= device < count:
            raise EmmyError(f"there is no CUDA device {device}; {count} found")
        handle = call("open the device", driver.cuDeviceGet, device)
        kinds = driver.CUdevice_attribute
        major, minor, self.sms = (
            int(call("query the device", driver.cuDeviceGetAttribute, kind, handle))
            for kind in (
                kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                kinds.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            )
        )
        self.device = device
        self.compute_capability = (major, minor)
        # The bindings return the whole buffer, with whatever stood behind the terminating zero.
        self.name = call("name the device", driver.cuDeviceGetName, 256, handle).split(b"\0")[0].decode()
        self.context = call("open the device's context", driver.cuDevicePrimaryCtxRetain, handle)
        self._context_handle = int(self.context)

    def load(self, artefact: Artefact) -> CudaModule:
        """Make an artefact callable on this device. Kernels are loaded when they are first needed."""
        return CudaModule(self, artefact)

    def is_capturing(self, stream: int) -> bool:
        """Whether launches on the stream are recorded into a CUDA graph instead of being run."""
        driver = self.driver
        status, *state = driver.cuStreamIsCapturing(driver.CUstream(stream))
        if (
            status == driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
        ):  # the default stream, beside one that is captured
            return True
        if status != driver.CUresult.CUDA_SUCCESS:
            raise EmmyError(f"cannot query the stream: {describe(driver, status)}")
        return state[0] != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE

    def driver_cuda(self) -> tuple[int, int]:
        """The CUDA version that the driver belongs to, (major, minor)."""
        version = int(call("query the driver", self.driver.cuDriverGetVersion))
        return version // 1000, version % 1000 // 10

    def enter(self) -> Any:
        """Make this device's context current for this thread; returns what `leave` takes."""
        _, current = self.driver.cuCtxGetCurrent()
        if int(current) == self._context_handle:
            return None
        call("select the device", self.driver.cuCtxSetCurrent, self.context)
        return current if int(current) else None

    def leave(self, previous: Any) -> None:
        """Restore the context that `enter` replaced, so that a caller's current device does not change."""
        if previous is not None:
            call("select the caller's device", self.driver.cuCtxSetCurrent, previous)


class CudaModule:
    """An artefact on a device; `run` calls its entries."""

    def __init__(self, runtime: Runtime, artefact: Artefact):
        self.runtime = runtime
        self.artefact = artefact
        self.images = DeviceImages(runtime, artefact)
        self._plans: dict[Any, Plan] = {}
        self._callers: dict[str, TorchCaller] = {}
        self._unheld: dict[str, str] = {}  # kernels that this device cannot hold, and why
        self._encode_tiled: Callable[..., int] | None = None
        self._streams: dict[int, Any] = {}
        driver = runtime.driver
        self._stream_type = driver.CUstream
        self._success = driver.CUresult.CUDA_SUCCESS

    def run(self, entry: str, args: Sequence[Any], *, out: Any = None, stream: Any = None) -> Any:
        """Call `entry`. Returns its result, or a tuple of them if there are several.

        All of `args` are NumPy arrays (copied to the device, results copied back, finished on return), or all are
        arrays on this device (nothing is copied, the launch is asynchronous, results come from the arguments'
        framework). `out`, an array or a sequence of them, receives the results instead of new arrays.
        `stream` defaults to PyTorch's current stream for tensors, else to the default stream.
        Raises `EmmyError` for a call that breaks the entry's contract (see `emmy.artefact.bind`) or that CUDA refuses.
        """
        return self.caller(entry)(args, out, stream)

    def caller(self, entry: str) -> TorchCaller:
        """The entry as a function of arguments, out and stream (see `run`): one that is quick with PyTorch tensors."""
        caller = self._callers.get(entry)
        if caller is None:
            self.artefact.entry(entry)
            caller = self._callers[entry] = TorchCaller(self, entry)
        return caller

    def run_first(self, entry: str, args: Sequence[Any], out: Any, stream: Any) -> Any:
        """`run`, for arrays of any kind and for tensors of shapes that are met for the first time."""
        outs: list[Any] | None = None
        if out is not None:
            outs = list(cast("Sequence[Any]", out)) if isinstance(out, (list, tuple)) else [out]
        previous = self.runtime.enter()
        try:
            if args and all(map(is_torch_tensor, (*args, *(outs or ())))):
                return self.caller(entry).first(args, outs, stream)
            if any(isinstance(array, np.ndarray) for array in args):
                results = self._run_numpy(entry, args, outs, stream)
            else:
                results = self._run_device_arrays(entry, args, outs, stream)
        finally:
            self.runtime.leave(previous)
        return results[0] if len(results) == 1 else tuple(results)

    def close(self) -> None:
        """Unload the kernels. None of them may be running."""
        previous = self.runtime.enter()
        try:
            self.images.unload()
        finally:
            self.runtime.leave(previous)
        self._plans.clear()
        for caller in self._callers.values():
            caller.forget()

    def _run_device_arrays(self, entry: str, args: Sequence[Any], outs: list[Any] | None, stream: Any) -> list[Any]:
        """Arrays of any framework that speaks DLPack or the CUDA array interface."""
        handle = 0 if stream is None else stream_handle(stream)
        arrays, out_arrays = self._read(entry, args, outs, handle)
        key = (entry, len(args), tuple([(a.info.dtype, a.info.shape, a.info.strides) for a in (*arrays, *out_arrays)]))
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self.plan(entry, args, outs, handle)
        results, temporaries = self._allocate(plan, args, outs)
        used = out_arrays if outs is not None else [read_device_array(array, "out", handle) for array in results]
        used += [read_device_array(array, "temporary", handle) for array in temporaries]
        self.launch(plan, tuple(array.info.address or 0 for array in (*arrays, *used)), handle)
        return results

    def _allocate(self, plan: Plan, args: Sequence[Any], outs: list[Any] | None) -> tuple[list[Any], list[Any]]:
        """Results (or `outs`) and temporaries, from the framework of the first argument."""
        bound, device = plan.call, self.runtime.device
        results = outs if outs is not None else allocate_like(args[0], bound.results, device)
        return results, (allocate_like(args[0], bound.temporaries, device) if bound.temporaries else [])

    def _run_numpy(self, entry: str, args: Sequence[Any], outs: list[Any] | None, stream: Any) -> list[Any]:
        """Copy in, launch, copy back, wait. Results start as NaN, so that an element nobody wrote shows."""
        handle = 0 if stream is None else stream_handle(stream)
        if self.runtime.is_capturing(handle):
            raise EmmyError(
                "NumPy arrays are copied and waited for, which a stream that is being captured cannot do; "
                "pass arrays that are on the device"
            )
        for array, spec in zip(args, self.artefact.entry(entry)["arguments"], strict=False):
            if not isinstance(array, np.ndarray):
                kind = type(array).__name__
                raise EmmyError(f"argument '{spec['name']}' is a {kind} beside NumPy arrays; pass all of one kind")
        inputs = [np.ascontiguousarray(array) for array in args]
        key = (entry, tuple((array.dtype, array.shape) for array in inputs))
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._prepare_all(entry, [numpy_info(array) for array in inputs], None, handle)
        bound = plan.call
        copies = [np.empty(buffer.shape, DTYPES[buffer.dtype]) for buffer in bound.results]
        if outs is not None:
            check_outs(bound.results, [_numpy_out_info(array) for array in outs])
            refuse_overlap(args, outs, [argument["name"] for argument in self.artefact.entry(entry)["arguments"]])
            copies = [out if out.flags.c_contiguous else copy for out, copy in zip(outs, copies, strict=True)]
        sizes = [array.nbytes for array in inputs] + [buffer.nbytes for buffer in (*bound.results, *bound.temporaries)]
        driver, addresses = self.runtime.driver, list[int]()
        stream_object = driver.CUstream(handle)
        try:
            for size in sizes:
                addresses.append(int(call(f"allocate {size} bytes", driver.cuMemAlloc, max(size, 1))))
                call("fill a buffer", driver.cuMemsetD8Async, addresses[-1], POISON, max(size, 1), stream_object)
            for array, address in zip(inputs, addresses, strict=False):
                if array.nbytes:
                    copy_in = (address, array.ctypes.data, array.nbytes, stream_object)
                    call("copy to the device", driver.cuMemcpyHtoDAsync, *copy_in)
            self.launch(plan, tuple(addresses), handle)
            for array, address in zip(copies, addresses[len(inputs) :], strict=False):
                if array.nbytes:
                    copy_out = (array.ctypes.data, address, array.nbytes, stream_object)
                    call("copy from the device", driver.cuMemcpyDtoHAsync, *copy_out)
            call(f"run '{entry}'", driver.cuStreamSynchronize, stream_object)
        finally:
            for address in addresses:
                driver.cuMemFree(address)
        for out, array in zip(outs or (), copies, strict=False):
            if out is not array:
                out[...] = array
        return copies if outs is None else outs

    def choose(self, entry: str, arrays: Sequence[ArrayInfo]) -> BoundCall:
        """A call with such arrays, with the kernels that this device would run. Runs nothing. Raises as `run` does."""
        previous = self.runtime.enter()
        try:
            return self._bind(entry, arrays, None, 0)
        finally:
            self.runtime.leave(previous)

    def clusters(self, launch: LaunchSpec) -> int:
        """How many clusters of a launch, which has some, this device holds at once. Loads its kernel."""
        x, y, z = launch.get("cluster", (1, 1, 1))
        threads_x, threads_y, threads_z = launch["block"]
        one = BoundLaunch(
            launch["image"],
            launch["kernel"],
            (x, y, z),
            (threads_x, threads_y, threads_z),
            launch["shared_bytes"],
            (),
            cluster=(x, y, z),
        )
        previous = self.runtime.enter()
        try:
            return self.images.clusters(one, 0)
        finally:
            self.runtime.leave(previous)

    def _bind(
        self, entry: str, arrays: Sequence[ArrayInfo], outs: Sequence[ArrayInfo] | None, stream: int
    ) -> BoundCall:
        """`Artefact.bind`, past kernels of whose clusters the device cannot hold one (a part of a GPU may be too small)."""
        while True:
            bound = self.artefact.bind(entry, arrays, self.runtime.sms, outs, self._unheld)
            unheld = [one for one in bound.launches if one.cluster and not self.images.clusters(one, stream)]
            if not unheld:
                return bound
            device = f"device {self.runtime.device} ({self.runtime.name})"
            for one in unheld:
                self._unheld[one.kernel] = (
                    f"{device} cannot hold a cluster of {math.prod(one.cluster)} CTAs of {math.prod(one.block)} threads and "
                    f"{one.shared_bytes} bytes of shared memory; schedules without clusters have split_k = 1 and share = none"
                )

    def plan(self, entry: str, args: Sequence[Any], outs: list[Any] | None, stream: int) -> Plan:
        """Check a call with device arrays, load what it launches on `stream`, and make its plan."""
        spec = self.artefact.entry(entry)
        names = [argument["name"] for argument in spec["arguments"]] + ["(too many)"] * len(args)
        arrays = [read_device_array(array, name, 0) for array, name in zip(args, names, strict=False)]
        out_arrays = [read_device_array(array, "out", 0) for array in outs or ()]
        for array, name in zip(
            (*arrays, *out_arrays), [*names[: len(arrays)], *["out"] * len(out_arrays)], strict=True
        ):
            device = self._device_of(array.info.address) if array.device < 0 else array.device
            if device != self.runtime.device:
                raise EmmyError(f"argument '{name}' is on CUDA device {device}; the kernel is on {self.runtime.device}")
        out_infos = [array.info for array in out_arrays] if outs is not None else None
        return self._prepare_all(entry, [array.info for array in arrays], out_infos, stream)

    def _read(
        self, entry: str, args: Sequence[Any], outs: list[Any] | None, stream: int
    ) -> tuple[list[DeviceArray], list[DeviceArray]]:
        names = [argument["name"] for argument in self.artefact.entry(entry)["arguments"]]
        names += [f"number {position}" for position in range(len(names), len(args))]
        arrays = [read_device_array(array, name, stream) for array, name in zip(args, names, strict=False)]
        return arrays, [read_device_array(array, "out", stream) for array in outs or ()]

    def _device_of(self, address: int | None) -> int:
        if not address:  # an empty array lies nowhere
            return self.runtime.device
        attribute = self.runtime.driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        return int(call("find an array's device", self.runtime.driver.cuPointerGetAttribute, attribute, address))

    def _prepare_all(
        self,
        entry: str,
        arrays: Sequence[ArrayInfo],
        outs: Sequence[ArrayInfo] | None,
        stream: int,
        addresses: Sequence[int] | None = None,
    ) -> Plan:
        """Check a call, load what it launches and make its plan: for aligned addresses, or for any like `addresses`."""
        if len(self._plans) >= MAX_PLANS:
            self._plans.clear()
        infos = tuple(
            replace(info, address=None if addresses is None else addresses[position])
            for position, info in enumerate((*arrays, *(outs or ())))
        )
        count = len(arrays)
        bound = self._bind(entry, infos[:count], None if outs is None else infos[count:], stream)
        arguments = [argument["name"] for argument in self.artefact.entry(entry)["arguments"]]
        names = arguments + [buffer.name for buffer in (*bound.results, *bound.temporaries)]
        index = {name: position for position, name in enumerate(names)}
        return Plan(
            bound,
            [self._prepare(launch, index, stream) for launch in bound.launches],
            [(index[name], align) for name, align in bound.alignments.items() if align > 1],
            entry,
            infos,
            apart_test(infos, count),
        )

    def _realigned(self, plan: Plan, addresses: Addresses, stream: int) -> Plan:
        """The plan of the same call for addresses that are less aligned."""
        multiples = tuple(
            min(address & -address, MAX_ALIGNMENT) or MAX_ALIGNMENT for address in addresses[: len(plan.arrays)]
        )
        other = plan.others.get(multiples)
        if other is None:
            count = len(self.artefact.entry(plan.entry)["arguments"])
            outs = plan.arrays[count:] if len(plan.arrays) > count else None
            other = self._prepare_all(plan.entry, plan.arrays[:count], outs, stream, addresses)
            plan.others[multiples] = other
        return other

    def _prepare(self, launch: BoundLaunch, index: dict[str, int], stream: int) -> PlannedLaunch:
        values: list[int] = []
        buffers: list[tuple[int, int]] = []
        maps: list[PlannedMap] = []
        for slot, (_, value) in enumerate(launch.params):
            values.append(value if isinstance(value, int) else 0)
            if isinstance(value, BoundTensorMap):
                maps.append(PlannedMap(slot, index[value.of], value, {}))
            elif isinstance(value, str):
                buffers.append((slot, index[value]))
        start = self._starter(self._limited(launch, stream), self.images.function(launch, stream))
        return PlannedLaunch(start, values, buffers, maps)

    def _limited(self, launch: BoundLaunch, stream: int) -> BoundLaunch:
        """A launch as this device runs it: of a persistent one no more clusters than it holds at once."""
        if not launch.persistent:
            return launch
        x, y, z = launch.grid
        return replace(launch, grid=(min(x, self.images.clusters(launch, stream) * launch.cluster[0]), y, z))

    def _starter(self, launch: BoundLaunch, function: Any) -> Callable[..., Any]:
        """What launches a kernel, given stream, parameters and 0."""
        driver = self.runtime.driver
        if not launch.programmatic:
            return functools.partial(driver.cuLaunchKernel, function, *launch.grid, *launch.block, launch.shared_bytes)

        def allow(value: Any) -> None:
            value.programmaticStreamSerializationAllowed = 1

        attribute = "PROGRAMMATIC_STREAM_SERIALIZATION"
        config = launch_config(driver, launch.grid, launch.block, launch.shared_bytes, attribute, allow)

        def start(stream: Any, parameters: int, extra: int) -> Any:
            config.hStream = stream
            return driver.cuLaunchKernelEx(config, function, parameters, extra)

        return start

    def _tensor_map(self, planned: PlannedMap, address: int) -> HostMap:
        """The tensor map of the tensor at `address`, encoded when it is first met."""
        if self._encode_tiled is None:
            self._encode_tiled = encoder(self.runtime.driver, call)
        status, host = encode(self._encode_tiled, planned.bound, address)
        if status:
            reason = describe(self.runtime.driver, self.runtime.driver.CUresult(status))
            raise EmmyError(f"cannot encode a tensor map of '{planned.bound.of}': {reason}")
        if len(planned.encoded) >= MAX_MAPS:
            planned.encoded.clear()
        planned.encoded[address] = host
        return host

    def _check_apart(self, plan: Plan, addresses: Addresses) -> None:
        """`EmmyError` if the caller's results share memory with arguments."""
        if plan.apart is not None and not plan.apart(addresses):
            names = [argument["name"] for argument in self.artefact.entry(plan.entry)["arguments"]]
            check_apart(plan.arrays, addresses, names)

    def launch(self, plan: Plan, addresses: Addresses, stream: int) -> None:
        """Start the plan's kernels. `addresses` are those of arguments, results and temporaries, in this order."""
        launches = plan.made.get(addresses)
        if launches is None:
            launches = self._make(plan, addresses, stream)
        stream_object = self._streams.get(stream) or self._stream_object(stream)
        for launch in launches:
            (status,) = launch.start(stream_object, launch.pointers_address, 0)
            if status != self._success:
                raise EmmyError(f"cannot launch a kernel: {describe(self.runtime.driver, status)}")

    def _stream_object(self, stream: int) -> Any:
        if len(self._streams) >= MAX_STREAMS:
            self._streams.clear()
        return self._streams.setdefault(stream, self._stream_type(stream))

    def _make(self, plan: Plan, addresses: Addresses, stream: int) -> Sequence[Ready]:
        """Check addresses that are met for the first time, and make the launches of a call that has them."""
        self._check_apart(plan, addresses)
        fitting = plan if plan.takes(addresses) else self._realigned(plan, addresses, stream)
        return plan.keep(addresses, [launch.ready(addresses, self._tensor_map) for launch in fitting.launches])


def _numpy_out_info(array: Any) -> ArrayInfo:
    if not isinstance(array, np.ndarray):
        raise EmmyError(f"out is a {type(array).__name__}; expected a NumPy array, as the arguments are")
    return numpy_info(cast("Array", array))
