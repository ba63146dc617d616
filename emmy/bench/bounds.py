"""How large an error may be: the rounding of the result, plus what the accumulation policy loses.

Everything is relative to rms(C), over all elements. The rounding floor is measured, not assumed: it is the RMS of
rounding the reference itself to the result's dtype (2.07e-4 of rms(C) for f16 and normal data). What accumulation adds
was measured on tensor cores (`mma.sync` and `wgmma` alike, normal data, against float64):

* f32 accumulators truncate, so the error grows with K: RMS 4.9e-6 at K = 4096, 1.9e-5 at 16384, that is 1.2e-9 K;
* f16 accumulators: 2.35e-3 at K = 4096, 4.69e-3 at 16384, that is 3.7e-5 sqrt(K);
* hybrid (f16 partial sums of at most 64 elements): at most twice the f32 policy's total for an f16 result, 4e-4 for an
  f32 one, independent of K. Longer partial sums err by the square root of their length, as a sum of roundings does
  (3.28e-4 for 64 elements, 4.39e-4 for 128).

Sums of 8-bit floats (e4m3, e5m2) are f32 by name, but Hopper's tensor cores keep about 14 bits of a sum and of what is added to
it, and cut off the rest, once for each 32 products: 1.3e-3 at K = 4096, 2.0e-3 at 8192, 3.0e-3 at 15360 (`wgmma`, measured). The
bound is 2.4e-4 for the square root of the number of such steps, which is `max_k` / 32 where partial sums are promoted (hybrid;
measured 1.8e-4 for 128 elements). They are largest where sums are: to 24 RMS where rows and columns have scales of their own.
Where sums of 8-bit floats, or partial ones, are f16, they may lose that, and what f16 sums of 16-bit floats may; not measured.

The bounds leave a factor of about 2.5 on the f32 term and 1.5 on the f16 term. The element-wise bound allows each
element half a unit in its last place and a multiple of the accumulation's RMS: roundings of f16 sums grow with the sum, so
among 10^7 to 10^8 elements the largest errors are 6 RMS for partial sums of 64 or 128 elements and 13 to 16 RMS for whole
f16 sums (measured, K from 2048 to 15360). A sum of few partial sums is nearly a whole f16 sum: 12 to 13 RMS for one to four of
them (K from 65 to 217).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from emmy.errors import EmmyError

# Half a unit in the last place, relative to the value: 2^-(mantissa bits + 1).
HALF_ULP = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24, "i32": 0.0, "i8": 0.0}
POLICIES = ("f32", "hybrid", "f16")
MAX_OVER_RMS = {"f32": 8.0, "hybrid": 12.0, "f16": 16.0}
DEFAULT_MAX_K = 64  # of the hybrid policy
FEW_PARTIALS = 8


@dataclass(frozen=True)
class ErrorSums:
    """Sums over all elements, of a result against a reference in higher precision."""

    elements: int
    not_finite: int  # elements of the result that are NaN or infinite
    squared_error: float
    squared_reference: float
    squared_rounding: float  # of rounding the reference to the result's dtype
    largest_error: float
    largest_excess: float  # of |error| - |reference| * HALF_ULP


EIGHT_BIT_STEP = 32
"""Products of 8-bit floats that a tensor core adds to a sum at once."""

EIGHT_BIT_LOSS = 2.0**-12
"""What one such step may lose, over the RMS of the sums."""

EIGHT_BIT_MAX_OVER_RMS = 32.0


def accumulation_rms(
    policy: str,
    k: int,
    dtype: str,
    floor: float,
    max_k: int = DEFAULT_MAX_K,
    eight_bits: bool = False,
    partial: str = "",
) -> float:
    """The RMS error, over rms(C), that accumulating `k` products may add to the rounding floor.

    `max_k`: of the hybrid policy; fewer than 64 are allowed what 64 are. `eight_bits`: whether operands are e4m3 or e5m2;
    `partial`: "f16" if their partial sums are.
    """
    f32 = 3e-9 * k + 1e-6
    if eight_bits:
        summed = min(k, max_k) if policy == "hybrid" else k
        inside = EIGHT_BIT_LOSS * math.sqrt(math.ceil(summed / EIGHT_BIT_STEP))
        halves = policy == "f16" or partial == "f16"
        return inside + (accumulation_rms(policy, k, dtype, floor, max_k) if halves else f32)
    if policy == "f32":
        return f32
    if policy == "f16":
        return 5.5e-5 * math.sqrt(k) + f32
    if policy == "hybrid":
        longer = math.sqrt(max(max_k, DEFAULT_MAX_K) / DEFAULT_MAX_K)
        return longer * (4e-4 if dtype == "f32" else floor) + (0 if dtype == "f32" else 2 * f32)
    raise EmmyError(f"unknown accumulation policy '{policy}'; there are {', '.join(POLICIES)}")


def judge(
    sums: ErrorSums,
    policy: str,
    k: int,
    dtype: str,
    max_k: int = DEFAULT_MAX_K,
    eight_bits: bool = False,
    partial: str = "",
) -> dict[str, Any]:
    """The errors as fractions of rms(C), their bounds, and `ok`. Non-finite elements never pass."""
    rms = math.sqrt(sums.squared_reference / max(sums.elements, 1)) or 1.0
    floor = math.sqrt(sums.squared_rounding / max(sums.elements, 1)) / rms
    rms_error = math.sqrt(sums.squared_error / max(sums.elements, 1)) / rms
    added = accumulation_rms(policy, k, dtype, floor, max_k, eight_bits, partial)
    few = policy == "hybrid" and k < FEW_PARTIALS * max(max_k, DEFAULT_MAX_K)
    over_rms = EIGHT_BIT_MAX_OVER_RMS if eight_bits else MAX_OVER_RMS["f16" if few else policy]
    rms_bound, excess_bound = 1.02 * floor + added, over_rms * added
    excess = sums.largest_excess / rms
    # A reference beyond the dtype's range has no finite rounding, and then nothing is proved.
    ok = sums.not_finite == 0 and math.isfinite(floor) and rms_error <= rms_bound and excess <= excess_bound
    return {
        "ok": ok,
        "not_finite": sums.not_finite,
        "rms_error": rms_error,
        "rms_bound": rms_bound,
        "rounding_floor": floor,
        "max_error": sums.largest_error / rms,
        "max_excess": excess,
        "max_excess_bound": excess_bound,
    }
