"""Which fields of a schedule say something about which programs. What is stated and says nothing is refused, not ignored.

A field is stated if it has another value than its default. What a field says only together with others (`batches` with copies
by threads, `producer_warps` with specialised roles) is said where `Schedule` describes it, and is no question of the program.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

from emmy.schedules import SCHEDULE_FIELDS, Schedule

Products = Literal[0, 1, 2]
"""Of a kernel: none, one, or two in a row (the second one's operand a is made of the first one's result)."""

ABOUT_TWO = (
    *("splits", "late_stages", "repeat", "reuse", "hold", "order", "masks"),
    *("stagger", "overlap", "turns", "lazy", "seldom", "exponentials", "polynomial"),
)
"""Fields about two products in a row: an operand that is computed, or stays the same; rows that see some of the keys; weights."""

ABOUT_ONE = ("split_k", "share", "consumers", "carry")
"""Fields about one product: what its CTAs share, and whether its warps do."""

ABOUT_HYBRID = ("promote", "promotion", "partials")
"""Fields about the partial sums of the hybrid policy."""

ABOUT_LENGTHS = ("order",)
"""Fields about loops that are longer for some tiles than for others: where rows see keys by their positions."""

COPIED_IN_LOOPS: Mapping[str, str] = {"b": "operands b", "both": "tiles"}
"""What of a kernel has to be copied in loops for `evict` to say something, by its value."""

ABOUT: Mapping[Products, tuple[tuple[tuple[str, ...], str], ...]] = {
    0: (
        (ABOUT_TWO, "is about two products in a row, and this kernel has none"),
        (ABOUT_ONE, "is about a product, and this kernel has none"),
        (ABOUT_HYBRID, "is about a product, and this kernel has none"),
    ),
    1: ((ABOUT_TWO, "is about two products in a row, and this is one product"),),
    2: ((ABOUT_ONE, "is about one product, and these are two in a row"),),
}
"""Products of a kernel -> the fields that say nothing about it, and why."""


def stated(schedule: Schedule) -> Iterator[tuple[str, Any]]:
    """Names and values of the fields that differ from their defaults."""
    for name, default in SCHEDULE_FIELDS.items():
        value = getattr(schedule, name)
        if value != default:
            yield name, value


def problem_with_meaning(
    schedule: Schedule,
    products: Products,
    policy: str = "hybrid",
    lengths_differ: bool = True,
    copied_in_loops: Collection[str] = tuple(COPIED_IN_LOOPS),
) -> str | None:
    """One sentence about a stated field that says nothing about a kernel, or None.

    `policy`: by which its products accumulate. `lengths_differ`: whether its loops may be longer for some tiles than for others.
    `copied_in_loops`: which of `COPIED_IN_LOOPS` it copies in loops.
    """
    whose = "these products accumulate" if products == 2 else "this product accumulates"
    for name, value in stated(schedule):
        for fields, why in ABOUT[products]:
            if name in fields:
                return f"{name} = {value} {why}"
        if name in ABOUT_HYBRID and policy != "hybrid":
            return f"{name} belongs to the hybrid policy, and {whose} in {policy}"
        if name in ABOUT_LENGTHS and not lengths_differ:
            return f"{name} = {value} is about tiles whose loops differ in length, and all of these are alike"
        if name == "evict" and value not in copied_in_loops:
            return f"{name} = {value} is about {COPIED_IN_LOOPS[value]} that are copied in loops, and this kernel copies none so"
    return None
