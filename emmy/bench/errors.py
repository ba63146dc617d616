"""Error statistics of a product against float64, over seeds: the same for NumPy arrays and PyTorch tensors.

All figures are relative to rms(C) of the float64 product of the same rounded operands:

    mean_abs      mean of |error|
    rms           root of the mean square
    max           the largest |error|
    bias          mean of the signed error
    toward_zero   mean of the error in the direction of zero: what truncation gives
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

MEASURES = ("mean_abs", "rms", "max", "bias", "toward_zero")


def seed_statistics(xp: Any, result: Any, reference: Any) -> dict[str, float]:
    """The measures of one seed, and `not_finite`: how many elements of the result are, which then count as no error.

    `xp`: numpy or torch. `result`, `reference`: float64.
    """
    rms = math.sqrt(float((reference * reference).mean())) or 1.0
    finite = xp.isfinite(result)
    error = xp.where(finite, result - reference, 0.0) / rms
    return {
        "mean_abs": float(abs(error).mean()),
        "rms": math.sqrt(float((error * error).mean())),
        "max": float(abs(error).max()),
        "bias": float(error.mean()),
        "toward_zero": -float((error * xp.sign(reference)).mean()),
        "not_finite": int((~finite).sum()),
    }


def summarize(seeds: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Over seeds: of each measure its mean and the standard error of that mean; `max` also has its largest.

    `not_finite` is the total, `worst` the largest error of all seeds. One seed has no standard error: it is 0.
    """
    found: dict[str, Any] = {"seeds": len(seeds)}
    for measure in MEASURES:
        values = [seed[measure] for seed in seeds]
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        found[measure] = [statistics.fmean(values), error]
    return found | {"worst": max(s["max"] for s in seeds), "not_finite": int(sum(s["not_finite"] for s in seeds))}


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    """How many standard errors of their difference two means are apart."""
    spread = math.hypot(one[1], other[1])
    difference = abs(one[0] - other[0])
    return difference / spread if spread else (math.inf if difference else 0.0)
