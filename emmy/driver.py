"""The CUDA driver API, through `cuda.bindings.driver`, with one sentence for everything that goes wrong."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from emmy.errors import EmmyError


@functools.cache
def open_driver() -> Any:
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
        raise EmmyError(f"the CUDA driver cannot be used: {describe(driver, status)}")
    return driver


def describe(driver: Any, status: Any) -> str:
    """The driver's name and sentence for a status."""
    _, name = driver.cuGetErrorName(status)
    _, text = driver.cuGetErrorString(status)
    return f"{(name or b'unknown error').decode()}: {(text or b'').decode()}"


def call(what: str, function: Any, *args: Any) -> Any:
    """Call the driver: its result, or an `EmmyError` that says what was being done."""
    status, *results = function(*args)
    driver = open_driver()
    if status != driver.CUresult.CUDA_SUCCESS:
        raise EmmyError(f"cannot {what}: {describe(driver, status)}")
    return results[0] if results else None


def launch_config(
    driver: Any,
    grid: Sequence[int],
    block: Sequence[int],
    shared_bytes: int,
    attribute: str,
    set_value: Callable[[Any], None],
) -> Any:
    """A `CUlaunchConfig` with one attribute, named as in `CUlaunchAttributeID` behind `CU_LAUNCH_ATTRIBUTE_`; `set_value`
    fills in its `CUlaunchAttributeValue`."""
    config, one, value = driver.CUlaunchConfig(), driver.CUlaunchAttribute(), driver.CUlaunchAttributeValue()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = block
    config.sharedMemBytes = shared_bytes
    one.id = getattr(driver.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{attribute}")
    set_value(value)
    one.value = value
    config.attrs, config.numAttrs = [one], 1
    return config


def is_available() -> bool:
    """Whether there is a driver with at least one device. Never raises."""
    try:
        return call("count devices", open_driver().cuDeviceGetCount) > 0
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
