"""Run an artefact on a CUDA device: load its kernels, check the arguments, launch on the caller's stream.

    runtime = Runtime(device=0)
    module = runtime.load(Artefact.load("q_proj"))
    c = module.run("matmul", (a, b))                 # NumPy in, NumPy out; or CUDA arrays in, CUDA arrays out

Modules are loaded and kernels launched through `cuda.bindings.driver`, which has had one spelling for these calls since
CUDA 12, while `cuda.core` renamed them between its versions; its streams are taken by the `__cuda_stream__` protocol.

The warm path is short on purpose (the aim is under 10 us of host time a call): checks and size expressions are done
once for each combination of shapes, strides and dtypes, and their outcome, a *plan*, is kept. A warm call looks the
plan up, allocates results, tests the alignment of addresses, and launches.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from emmy.artefact import (
    DTYPES,
    Array,
    ArrayInfo,
    Artefact,
    BoundCall,
    BoundLaunch,
    BoundTensorMap,
    Image,
    bind,
    check_alignment,
    numpy_info,
    row_major,
)
from emmy.device_arrays import DeviceArray, allocate_like, is_torch_tensor, read_device_array
from emmy.errors import EmmyError
from emmy.targets import get_target
from emmy.tensor_maps import HostMap, encode, encoder

MAX_PLANS = 4096
MAX_MAPS = 256  # tensor maps kept for one parameter of one plan
JIT_LOG_BYTES = 8192
POISON = 0xFF  # as every byte of a buffer it reads as NaN in f16, bf16 and f32


@functools.cache
def _driver() -> Any:
    """The driver API, initialised. `EmmyError` without bindings, driver or device."""
    try:
        driver = importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise EmmyError(
            f"the CUDA bindings cannot be imported ({error}); install them with: pip install cuda-python"
        ) from None
    try:
        (status,) = driver.cuInit(0)
    except Exception as error:  # which one differs between versions of the bindings
        raise EmmyError(f"no CUDA driver was found ({error}); a GPU and its driver are needed to run kernels") from None
    if status != driver.CUresult.CUDA_SUCCESS:
        raise EmmyError(f"the CUDA driver cannot be used: {_describe(driver, status)}")
    return driver


def _describe(driver: Any, status: Any) -> str:
    """The driver's name and sentence for a status."""
    _, name = driver.cuGetErrorName(status)
    _, text = driver.cuGetErrorString(status)
    return f"{(name or b'unknown error').decode()}: {(text or b'').decode()}"


def _call(what: str, function: Any, *args: Any) -> Any:
    """Call the driver: its result, or an `EmmyError` that says what was being done."""
    status, *results = function(*args)
    driver = _driver()
    if status != driver.CUresult.CUDA_SUCCESS:
        raise EmmyError(f"cannot {what}: {_describe(driver, status)}")
    return results[0] if results else None


def is_available() -> bool:
    """Whether there is a driver with at least one device. Never raises."""
    try:
        return _call("count devices", _driver().cuDeviceGetCount) > 0
    except EmmyError:
        return False


def stream_handle(stream: Any) -> int:
    """The driver's handle of a stream: an integer, a PyTorch or CuPy stream, or an object with `__cuda_stream__`."""
    if isinstance(stream, int):
        return stream
    protocol: Any = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        # A method by the protocol; early versions of cuda.core had a property.
        version_and_handle: Any = protocol() if callable(protocol) else protocol
        return int(version_and_handle[1])
    for attribute in ("cuda_stream", "ptr"):
        if hasattr(stream, attribute):
            return int(getattr(stream, attribute))
    raise EmmyError(f"'{type(stream).__name__}' is no CUDA stream; pass a handle or an object with __cuda_stream__")


class Runtime:
    """One CUDA device, used through its primary context (the one that PyTorch and the CUDA runtime use)."""

    def __init__(self, device: int = 0):
        driver = self.driver = _driver()
        count = _call("count devices", driver.cuDeviceGetCount)
        if not 0 <= device < count:
            raise EmmyError(f"there is no CUDA device {device}; {count} found")
        handle = _call("open the device", driver.cuDeviceGet, device)
        kinds = driver.CUdevice_attribute
        major, minor = (
            int(_call("query the device", driver.cuDeviceGetAttribute, kind, handle))
            for kind in (
                kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        self.device = device
        self.compute_capability = (major, minor)
        # The bindings return the whole buffer, with whatever stood behind the terminating zero.
        self.name = _call("name the device", driver.cuDeviceGetName, 256, handle).split(b"\0")[0].decode()
        self.context = _call("open the device's context", driver.cuDevicePrimaryCtxRetain, handle)
        self._context_handle = int(self.context)

    def load(self, artefact: Artefact) -> CudaModule:
        """Make an artefact callable on this device. Kernels are loaded when they are first needed."""
        return CudaModule(self, artefact)

    def enter(self) -> Any:
        """Make this device's context current for this thread; returns what `leave` takes."""
        _, current = self.driver.cuCtxGetCurrent()
        if int(current) == self._context_handle:
            return None
        _call("select the device", self.driver.cuCtxSetCurrent, self.context)
        return current if int(current) else None

    def leave(self, previous: Any) -> None:
        """Restore the context that `enter` replaced, so that a caller's current device does not change."""
        if previous is not None:
            _call("select the caller's device", self.driver.cuCtxSetCurrent, previous)


@dataclass
class _PlannedMap:
    """A parameter that is a tensor map: its slot, whose it is, and those encoded so far by the tensor's address. A plan is
    for one set of shapes and strides, so the address is all that differs."""

    slot: int
    position: int  # index into arguments + results + temporaries
    bound: BoundTensorMap
    encoded: dict[int, HostMap]


@dataclass
class _PlannedLaunch:
    """A launch ready to go: `values` holds one 8-byte slot a parameter (the driver reads as many bytes as the kernel
    declares, from the low end), `pointers` the slots' addresses; `buffers` says which slot takes whose address, `maps`
    which slot points to a tensor map of whom."""

    arguments: tuple[Any, ...]  # function; grid x, y, z; block x, y, z; dynamic shared bytes
    values: Any
    pointers: Any
    buffers: list[tuple[int, int]]  # (slot, index into arguments + results + temporaries)
    maps: list[_PlannedMap]

    @property
    def pointers_address(self) -> int:
        return ctypes.addressof(self.pointers)


@dataclass
class _Plan:
    """All that a warm call needs. The lock keeps two threads from filling the same slots."""

    call: BoundCall
    launches: list[_PlannedLaunch]
    alignments: list[tuple[int, str, int]]  # (index of the argument, its name, bytes), those above 1
    lock: threading.Lock


class CudaModule:
    """An artefact on a device; `run` calls its entries."""

    def __init__(self, runtime: Runtime, artefact: Artefact):
        self.runtime = runtime
        self.artefact = artefact
        self._modules: dict[str, Any] = {}
        self._functions: dict[tuple[str, str], tuple[Any, int]] = {}
        self._plans: dict[Any, _Plan] = {}
        self._encode_tiled: Callable[..., int] | None = None

    def run(self, entry: str, args: Sequence[Any], *, out: Any = None, stream: Any = None) -> Any:
        """Call `entry`. Returns its result, or a tuple of them if there are several.

        All of `args` are NumPy arrays (copied to the device, results copied back, finished on return), or all are
        arrays on this device (nothing is copied, the launch is asynchronous, results come from the arguments'
        framework). `out`, an array or a sequence of them, receives the results instead of new arrays.
        `stream` defaults to PyTorch's current stream for tensors, else to the default stream.
        Raises `EmmyError` for a call that breaks the entry's contract (see `emmy.artefact.bind`) or that CUDA refuses.
        """
        outs: list[Any] | None = None
        if out is not None:
            outs = list(cast("Sequence[Any]", out)) if isinstance(out, (list, tuple)) else [out]
        previous = self.runtime.enter()
        try:
            if args and all(map(is_torch_tensor, (*args, *(outs or ())))):
                results = self._run_torch(entry, args, outs, stream)
            elif any(isinstance(array, np.ndarray) for array in args):
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
            for module in self._modules.values():
                _call("unload a module", self.runtime.driver.cuModuleUnload, module)
        finally:
            self.runtime.leave(previous)
        self._modules.clear()
        self._functions.clear()
        self._plans.clear()

    def _run_torch(self, entry: str, args: Sequence[Any], outs: list[Any] | None, stream: Any) -> list[Any]:
        """The fast path: a plan is found by what PyTorch itself reports."""
        torch: Any = sys.modules["torch"]
        device = self.runtime.device
        tensors = (*args, *outs) if outs is not None else args
        key = (entry, len(args), tuple([(t.dtype, t.shape, t.stride(), t.get_device()) for t in tensors]))
        plan = self._plans.get(key) or self._plan(key, entry, args, outs)
        current = _torch_stream(torch, device)
        handle = current if stream is None else stream_handle(stream)
        if handle == current:
            results, temporaries = self._allocate(plan, args, outs)
        else:
            # Memory from PyTorch's cache belongs to a stream: take it from the one that will use it.
            with torch.cuda.stream(torch.cuda.ExternalStream(handle, device=device)):
                results, temporaries = self._allocate(plan, args, outs)
        self._launch(plan, [tensor.data_ptr() for tensor in (*args, *results, *temporaries)], handle)
        return results

    def _run_device_arrays(self, entry: str, args: Sequence[Any], outs: list[Any] | None, stream: Any) -> list[Any]:
        """Arrays of any framework that speaks DLPack or the CUDA array interface."""
        handle = 0 if stream is None else stream_handle(stream)
        arrays, out_arrays = self._read(entry, args, outs, handle)
        key = (entry, len(args), tuple([(a.info.dtype, a.info.shape, a.info.strides) for a in (*arrays, *out_arrays)]))
        plan = self._plans.get(key) or self._plan(key, entry, args, outs)
        results, temporaries = self._allocate(plan, args, outs)
        used = out_arrays if outs is not None else [read_device_array(array, "out", handle) for array in results]
        used += [read_device_array(array, "temporary", handle) for array in temporaries]
        self._launch(plan, [array.info.address or 0 for array in (*arrays, *used)], handle)
        return results

    def _allocate(self, plan: _Plan, args: Sequence[Any], outs: list[Any] | None) -> tuple[list[Any], list[Any]]:
        """Results (or `outs`) and temporaries, from the framework of the first argument."""
        call, device = plan.call, self.runtime.device
        results = outs if outs is not None else allocate_like(args[0], call.results, device)
        return results, (allocate_like(args[0], call.temporaries, device) if call.temporaries else [])

    def _run_numpy(self, entry: str, args: Sequence[Any], outs: list[Any] | None, stream: Any) -> list[Any]:
        """Copy in, launch, copy back, wait. Results start as NaN, so that an element nobody wrote shows."""
        handle = 0 if stream is None else stream_handle(stream)
        for array, spec in zip(args, self.artefact.entry(entry)["arguments"], strict=False):
            if not isinstance(array, np.ndarray):
                kind = type(array).__name__
                raise EmmyError(f"argument '{spec['name']}' is a {kind} beside NumPy arrays; pass all of one kind")
        inputs = [np.ascontiguousarray(array) for array in args]
        key = (entry, tuple((array.dtype, array.shape) for array in inputs))
        plan = self._plans.get(key)
        if plan is None:
            call = bind(self.artefact.entry(entry), [numpy_info(array) for array in inputs])
            plan = self._keep(key, entry, call)
        call = plan.call
        if outs is None:
            outs = [np.empty(buffer.shape, DTYPES[buffer.dtype]) for buffer in call.results]
        else:
            _check_outs(call, [_numpy_out_info(array) for array in outs])
        sizes = [array.nbytes for array in inputs] + [buffer.nbytes for buffer in (*call.results, *call.temporaries)]
        driver, addresses = self.runtime.driver, list[int]()
        stream_object = driver.CUstream(handle)
        try:
            for size in sizes:
                addresses.append(int(_call(f"allocate {size} bytes", driver.cuMemAlloc, max(size, 1))))
                _call("fill a buffer", driver.cuMemsetD8Async, addresses[-1], POISON, max(size, 1), stream_object)
            for array, address in zip(inputs, addresses, strict=False):
                if array.nbytes:
                    copy_in = (address, array.ctypes.data, array.nbytes, stream_object)
                    _call("copy to the device", driver.cuMemcpyHtoDAsync, *copy_in)
            self._launch(plan, addresses, handle)
            for array, address in zip(outs, addresses[len(inputs) :], strict=False):
                if array.nbytes:
                    copy_out = (array.ctypes.data, address, array.nbytes, stream_object)
                    _call("copy from the device", driver.cuMemcpyDtoHAsync, *copy_out)
            _call(f"run '{entry}'", driver.cuStreamSynchronize, stream_object)
        finally:
            for address in addresses:
                driver.cuMemFree(address)
        return outs

    def _plan(self, key: Any, entry: str, args: Sequence[Any], outs: list[Any] | None) -> _Plan:
        """Check a call with device arrays and make its plan."""
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
        call = bind(spec, [array.info for array in arrays])
        if outs is not None:
            _check_outs(call, [array.info for array in out_arrays])
        return self._keep(key, entry, call)

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
        return int(_call("find an array's device", self.runtime.driver.cuPointerGetAttribute, attribute, address))

    def _keep(self, key: Any, entry: str, call: BoundCall) -> _Plan:
        """Load what `call` launches and remember its plan."""
        arguments = [argument["name"] for argument in self.artefact.entry(entry)["arguments"]]
        names = arguments + [buffer.name for buffer in (*call.results, *call.temporaries)]
        index = {name: position for position, name in enumerate(names)}
        plan = _Plan(
            call,
            [self._prepare(launch, index) for launch in call.launches],
            [(index[name], name, align) for name, align in call.alignments.items() if align > 1],
            threading.Lock(),
        )
        if len(self._plans) >= MAX_PLANS:
            self._plans.clear()
        self._plans[key] = plan
        return plan

    def _prepare(self, launch: BoundLaunch, index: dict[str, int]) -> _PlannedLaunch:
        count = len(launch.params)
        values = (ctypes.c_uint64 * max(count, 1))()
        pointers = (ctypes.c_void_p * max(count, 1))()
        buffers: list[tuple[int, int]] = []
        maps: list[_PlannedMap] = []
        for slot, (_, value) in enumerate(launch.params):
            pointers[slot] = ctypes.addressof(values) + 8 * slot
            if isinstance(value, BoundTensorMap):
                maps.append(_PlannedMap(slot, index[value.of], value, {}))
            elif isinstance(value, str):
                buffers.append((slot, index[value]))
            else:
                values[slot] = value
        arguments = (self._function(launch), *launch.grid, *launch.block, launch.shared_bytes)
        return _PlannedLaunch(arguments, values, pointers, buffers, maps)

    def _tensor_map(self, planned: _PlannedMap, address: int) -> HostMap:
        """The tensor map of the tensor at `address`, encoded when it is first met."""
        if self._encode_tiled is None:
            self._encode_tiled = encoder(self.runtime.driver, _call)
        status, host = encode(self._encode_tiled, planned.bound, address)
        if status:
            reason = _describe(self.runtime.driver, self.runtime.driver.CUresult(status))
            raise EmmyError(f"cannot encode a tensor map of '{planned.bound.of}': {reason}")
        if len(planned.encoded) >= MAX_MAPS:
            planned.encoded.clear()
        planned.encoded[address] = host
        return host

    def _function(self, launch: BoundLaunch) -> Any:
        """The kernel, allowed as much dynamic shared memory as any launch of it has asked for."""
        driver = self.runtime.driver
        function, allowed = self._functions.get((launch.image, launch.kernel), (None, 0))
        if function is None:
            if launch.image not in self._modules:
                self._modules[launch.image] = self._load_image(launch.image)
            what = f"find kernel '{launch.kernel}' in image '{launch.image}'"
            function = _call(what, driver.cuModuleGetFunction, self._modules[launch.image], launch.kernel.encode())
        if launch.shared_bytes > allowed:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            what = f"give kernel '{launch.kernel}' {launch.shared_bytes} bytes of shared memory"
            _call(what, driver.cuFuncSetAttribute, function, attribute, launch.shared_bytes)
            allowed = launch.shared_bytes
        self._functions[launch.image, launch.kernel] = (function, allowed)
        return function

    def _load_image(self, name: str) -> Any:
        """The cubin where this device runs it, else the PTX through the driver's compiler."""
        image = self.artefact.images[name]
        driver = self.runtime.driver
        kind = loadable(self.artefact.target, self.runtime.compute_capability, image)
        if kind == "cubin":
            return _call(f"load the cubin of image '{name}'", driver.cuModuleLoadData, image.cubin)
        if kind == "ptx":
            return self._compile(name, image.ptx or "")
        major, minor = self.runtime.compute_capability
        raise EmmyError(
            f"image '{name}' is for {self.artefact.target}; device {self.runtime.device} ({self.runtime.name}) "
            f"has compute capability {major}.{minor}"
        )

    def _compile(self, name: str, ptx: str) -> Any:
        """Load PTX. The driver's compiler writes its errors into `log`."""
        driver = self.runtime.driver
        log = bytearray(JIT_LOG_BYTES)
        options = {
            driver.CUjit_option.CU_JIT_ERROR_LOG_BUFFER: log,
            driver.CUjit_option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: len(log),
        }
        text = ptx.encode() + b"\0"
        status, module = driver.cuModuleLoadDataEx(text, len(options), list(options), list(options.values()))
        if status != driver.CUresult.CUDA_SUCCESS:
            said = log.split(b"\0")[0].decode(errors="replace").strip()
            raise EmmyError(f"the driver cannot compile image '{name}': {_describe(driver, status)} {said}".rstrip())
        return module

    def _launch(self, plan: _Plan, addresses: list[int], stream: int) -> None:
        """Start the plan's kernels. `addresses` are those of arguments, results and temporaries, in this order."""
        for position, name, align in plan.alignments:
            if addresses[position] % align:
                check_alignment(name, addresses[position], align)
        driver = self.runtime.driver
        success, launch_kernel, stream_object = (
            driver.CUresult.CUDA_SUCCESS,
            driver.cuLaunchKernel,
            driver.CUstream(stream),
        )
        with plan.lock:
            for launch in plan.launches:
                for slot, position in launch.buffers:
                    launch.values[slot] = addresses[position]
                for planned in launch.maps:
                    address = addresses[planned.position]
                    host = planned.encoded.get(address) or self._tensor_map(planned, address)
                    launch.pointers[planned.slot] = host.address
                (status,) = launch_kernel(*launch.arguments, stream_object, launch.pointers_address, 0)
                if status != success:
                    raise EmmyError(f"cannot launch a kernel: {_describe(driver, status)}")


def loadable(target: str, compute_capability: tuple[int, int], image: Image) -> str | None:
    """Which form of an image built for `target` runs on a device: `"cubin"`, `"ptx"` or neither.

    A cubin runs on its own compute capability and later minor ones of the same generation; PTX on every later
    device; code for an `a` target on exactly its own (CUDA C++ Programming Guide, "Binary Compatibility").
    """
    wanted = get_target(target)
    exact = compute_capability == wanted.compute_capability
    later = compute_capability >= wanted.compute_capability and not wanted.architecture_specific
    same_generation = later and compute_capability[0] == wanted.compute_capability[0]
    if image.cubin is not None and (exact or same_generation):
        return "cubin"
    return "ptx" if image.ptx is not None and (exact or later) else None


def _torch_stream(torch: Any, device: int) -> int:
    """The handle of PyTorch's current stream; its private query costs a tenth of the public one's microsecond."""
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(raw(device) if raw is not None else torch.cuda.current_stream(device).cuda_stream)


def _numpy_out_info(array: Any) -> ArrayInfo:
    if not isinstance(array, np.ndarray):
        raise EmmyError(f"out is a {type(array).__name__}; expected a NumPy array, as the arguments are")
    return numpy_info(cast("Array", array))


def _check_outs(call: BoundCall, outs: list[ArrayInfo]) -> None:
    """`EmmyError` unless `outs` are what the results would be: number, dtype, shape, row-major."""
    if len(outs) != len(call.results):
        raise EmmyError(f"out holds {len(outs)} arrays; expected {len(call.results)}")
    for out, wanted in zip(outs, call.results, strict=True):
        if out.dtype != wanted.dtype or out.shape != wanted.shape:
            raise EmmyError(f"out is {out.dtype} of shape {out.shape}; expected {wanted.dtype} of shape {wanted.shape}")
        dense = row_major(wanted.shape)
        strides = out.strides or dense
        if any(strides[axis] != dense[axis] for axis, size in enumerate(wanted.shape) if size > 1):
            raise EmmyError(f"out has strides {strides} (in elements); expected {dense}")
