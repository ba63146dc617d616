"""Errors judged by those of an eager run: the same computation in the operands' own type, step by step, as PyTorch does it."""

from __future__ import annotations

from typing import Any

TIMES_EAGER = 2.0
"""How many times the error of an eager run is allowed, in the mean and at most."""

TIMES_EAGER_ANYWHERE = 4.0
"""The same for the largest error of all elements, against f32: those that the eager run is measured on may be lucky."""


def judged(
    figures: dict[str, tuple[float, float]], anywhere: float | None = None, not_finite: int = 0
) -> dict[str, Any]:
    """The verdict: `figures` are mean and largest error of `ours`, `eager` and `rounding` (of the exact result to the type);
    `anywhere`, where some elements only were compared with float64, is the largest error of all."""
    bounds = [TIMES_EAGER * max(e, r) for e, r in zip(figures["eager"], figures["rounding"], strict=True)]
    errors, told = list(figures["ours"]), "mean error, largest"
    if anywhere is not None:
        errors, bounds = [*errors, anywhere], [*bounds, bounds[1] / TIMES_EAGER * TIMES_EAGER_ANYWHERE]
        told += ", largest of all"
    ok = not not_finite and all(error <= bound for error, bound in zip(errors, bounds, strict=True))
    found: dict[str, Any] = {"ok": ok}
    found["error"] = {
        "mean_error": figures["ours"][0],
        "max_error": figures["ours"][1],
        "eager_mean": bounds[0] / TIMES_EAGER,
        "eager_max": bounds[1] / TIMES_EAGER,
        "not_finite": not_finite,
    }
    if not_finite:
        return found | {"message": f"{not_finite} elements are NaN or infinite"}
    if not ok:
        said = ", ".join(f"{error:.2e} (bound {bound:.2e})" for error, bound in zip(errors, bounds, strict=True))
        return found | {"message": f"{told}: {said}"}
    return found
