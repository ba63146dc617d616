"""Run one case a few times in this process, without PyTorch, timing or children: made for compute-sanitizer.

    compute-sanitizer --tool memcheck python -m emmy.bench.run DIR --one NAME

Buffers are allocated at their exact size by the runtime's NumPy path, so that the first byte outside one is an error,
and no kernels but ours run.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import numpy as np

from emmy.artefact import DTYPE_NAMES, Array, Artefact
from emmy.bench.bounds import HALF_ULP, ErrorSums, judge
from emmy.bench.cases import Case, bits, numpy_inputs, work_of
from emmy.runtime import Runtime


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
    return judge(sums, case.policy, int(work.get("k", 1)), dtype, case.max_k)


def run_one(directory: Path, case: Case, times: int = 3) -> dict[str, Any]:
    """Check `case` and that `times` launches give the same bits."""
    artefact = Artefact.load(directory / case.artefact)
    entry = artefact.entry(case.entry)
    module = Runtime().load(artefact)
    inputs, work = numpy_inputs(case, entry), work_of(case, entry)
    results: list[Array] = []
    for _ in range(times):
        produced = module.run(case.entry, inputs)
        results.append(cast("tuple[Array, ...]", produced)[0] if isinstance(produced, tuple) else produced)
    wanted = reference(inputs, work)
    found = compare(results[0], wanted, case, work) if wanted is not None else {"ok": True}
    same = all(np.array_equal(bits(results[0]), bits(other)) for other in results[1:])
    if case.expect is not None:
        found["as_expected"] = bool(np.array_equal(bits(results[0]), np.load(directory / case.expect)))
    ok = found["ok"] and same and found.get("as_expected", True)
    return {"kind": "one", "name": case.name, **found, "same_bits": same, "ok": ok}
