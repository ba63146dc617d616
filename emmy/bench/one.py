"""Run one case a few times in this process, without PyTorch, timing or children: made for compute-sanitizer.

    compute-sanitizer --tool memcheck python -m emmy.bench.run DIR --one NAME

Buffers are allocated at their exact size, so that the first byte outside one is an error, and no kernels but ours run. Dense
arguments take the runtime's NumPy path; arguments in other layouts are placed on the device here, in allocations that end with
their last element, and so is the result.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import numpy as np

from emmy.artefact import DTYPE_NAMES, DTYPES, Array, Artefact, bind
from emmy.bench import attention_numpy
from emmy.bench.attention import KIND
from emmy.bench.bounds import HALF_ULP, ErrorSums, judge
from emmy.bench.cases import Case, bits, infos_of, numpy_inputs, shapes_of, work_of
from emmy.bench.layouts import layout_of, place
from emmy.driver import call
from emmy.errors import EmmyError
from emmy.runtime import CudaModule, Runtime


def reference(arrays: list[Array], work: dict[str, Any]) -> Array | None:
    """The result in float64, or None for a kind of work that is not known."""
    wide = [array.astype(np.float64) for array in arrays[:2]]
    if work.get("kind") == "add":
        return wide[0] + wide[1]
    if work.get("kind") == "matmul":
        a = wide[0].swapaxes(-1, -2) if work.get("transpose_a") else wide[0]
        b = wide[1].swapaxes(-1, -2) if work.get("transpose_b") else wide[1]
        return a @ b
    return None


def compare(result: Array, wanted: Array, case: Case, work: dict[str, Any]) -> dict[str, Any]:
    """Equality for integer data, else the policy's bound."""
    if case.data == "integers":
        wrong = int(np.sum(result != wanted.astype(result.dtype)))
        return {"ok": wrong == 0, "wrong_elements": wrong}
    dtype = DTYPE_NAMES[result.dtype]
    got = result.astype(np.float64)
    finite = np.isfinite(got)
    error = np.abs(np.where(finite, got - wanted, 0.0))
    rounding = wanted.astype(result.dtype).astype(np.float64) - wanted
    sums = ErrorSums(
        elements=wanted.size,
        not_finite=int(np.sum(~finite)),
        squared_error=float(np.sum(error**2)),
        squared_reference=float(np.sum(wanted**2)),
        squared_rounding=float(np.sum(rounding**2)),
        largest_error=float(np.max(error, initial=0.0)),
        largest_excess=float(np.max(error - np.abs(wanted) * HALF_ULP[dtype], initial=-math.inf)),
    )
    eight_bits = work.get("eight_bits", False)
    return judge(sums, case.policy, int(work.get("k", 1)), dtype, case.max_k, eight_bits, case.partial)


class DeviceView:
    """An array on the device, as the CUDA array interface (version 3) describes it."""

    def __init__(self, address: int, array: Array):
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "strides": array.strides,
            "data": (address, False),
            "version": 3,
        }


def run_views(module: CudaModule, case: Case) -> tuple[list[Array], Array]:
    """Run `case` once on views of poisoned allocations: its arguments, of their full shapes, and the result.

    `EmmyError` for types that the CUDA array interface has no name for, and if a byte around the arguments' elements changed.
    """
    entry = module.artefact.entry(case.entry)
    shapes = shapes_of(case, entry)
    nameless = [a["dtype"] for a in entry["arguments"] if DTYPES[a["dtype"]].isbuiltin != 1]
    if nameless:
        message = f"its arguments are {nameless[0]} views; choose a case of f16"
        raise EmmyError(f"case '{case.name}' cannot run alone: {message}")
    layouts = [
        layout_of(case.layouts, argument["name"], shape)
        for argument, shape in zip(entry["arguments"], shapes, strict=True)
    ]
    placed = [
        place(data, shape, layout)
        for data, shape, layout in zip(numpy_inputs(case, entry), shapes, layouts, strict=True)
    ]
    (wanted,) = bind(entry, infos_of(case, entry)).results
    result: Array = np.full(wanted.shape, np.nan, DTYPES[wanted.dtype])
    host = [*(memory for memory, _ in placed), result]
    driver, addresses = module.runtime.driver, list[int]()
    previous = module.runtime.enter()
    try:
        for array in host:
            addresses.append(int(call("allocate", driver.cuMemAlloc, max(array.nbytes, 1))))
            if array.nbytes:
                call("copy to the device", driver.cuMemcpyHtoD, addresses[-1], array.ctypes.data, array.nbytes)
        views = [
            DeviceView(address + layout.offset * view.itemsize, view)
            for address, layout, (_, view) in zip(addresses, layouts, placed, strict=False)
        ]
        module.run(case.entry, views, out=DeviceView(addresses[-1], result))
        call(f"run '{case.entry}'", driver.cuCtxSynchronize)
        copies = [np.empty_like(array) for array in host]
        for copy, address in zip(copies, addresses, strict=True):
            if copy.nbytes:
                call("copy from the device", driver.cuMemcpyDtoH, copy.ctypes.data, address, copy.nbytes)
    finally:
        for address in addresses:
            driver.cuMemFree(address)
        module.runtime.leave(previous)
    if not all(map(np.array_equal, host[:-1], copies[:-1])):
        raise EmmyError(f"case '{case.name}' changed its arguments' memory")
    return [view for _, view in placed], copies[-1]


def run_one(directory: Path, case: Case, times: int = 3) -> dict[str, Any]:
    """Check `case` and that `times` launches give the same bits."""
    artefact = Artefact.load(directory / case.artefact)
    entry = artefact.entry(case.entry)
    module = Runtime().load(artefact)
    inputs, work = numpy_inputs(case, entry), work_of(case, entry)
    results: list[Array] = []
    for _ in range(times):
        if case.layouts is not None:
            inputs, result = run_views(module, case)
            results.append(result)
            continue
        produced = module.run(case.entry, inputs)
        results.append(cast("tuple[Array, ...]", produced)[0] if isinstance(produced, tuple) else produced)
    wanted = reference(inputs, work)
    if work.get("kind") == KIND:
        found = attention_numpy.compare(inputs, work, results[0])
    else:
        found = compare(results[0], wanted, case, work) if wanted is not None else {"ok": True}
    same = all(np.array_equal(bits(results[0]), bits(other)) for other in results[1:])
    if case.expect is not None:
        found["as_expected"] = bool(np.array_equal(bits(results[0]), np.load(directory / case.expect)))
    ok = found["ok"] and same and found.get("as_expected", True)
    return {"kind": "one", "name": case.name, **found, "same_bits": same, "ok": ok}
