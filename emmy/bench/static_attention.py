"""Attention for cards that are not there: the main loop's instructions, registers and shared memory, for `emmy.bench.static`.

One problem a head dimension (4 x 16 heads, 4096 rows and keys), for each target the transport that it has and the variants whose
worth there is in question; the schedule beside is the table's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from emmy.assemble import main_loop_mix, main_loop_products, occupancy, sass
from emmy.bench.attention import Attention
from emmy.bench.records import Record
from emmy.compiler import compile as compile_module
from emmy.errors import EmmyError
from emmy.targets import get_target

KIND = "static attention"
DEPTHS = (64, 128, 256)
ATOM = "m16n8k16"

HYBRID = " accumulate<hybrid, max_k = 64>"
HYBRID_BOTH = f"{HYBRID} accumulate_scores<hybrid, max_k = 64>"


@dataclass(frozen=True)
class Variant:
    """A row: its name, schedule fields beside the table's, clauses of the op."""

    name: str
    schedule: Mapping[str, Any]
    clauses: str = ""


CP_ASYNC = Variant("cp_async", {"transport": "cp_async"})
TMA = Variant("tma", {"transport": "tma"})

ROWS: dict[str, tuple[Variant, ...]] = {
    "sm_89": (
        CP_ASYNC,
        replace(CP_ASYNC, name="cp_async, hybrid values", clauses=HYBRID),
        replace(CP_ASYNC, name="cp_async, both hybrid", clauses=HYBRID_BOTH),
    ),
    "sm_120a": (
        TMA,
        CP_ASYNC,
        Variant("tma, specialized", {"transport": "tma", "roles": "specialized"}),
        Variant("tma, lazy", {"transport": "tma", "lazy": 8}),
        Variant("tma, powers of e", {"transport": "tma", "exponentials": "exp"}),
        Variant("tma, polynomial 4", {"transport": "tma", "polynomial": 4}),
        Variant("tma, powers in f16", {"transport": "tma", "exponentials": "halves"}),
        replace(TMA, name="tma, hybrid values", clauses=HYBRID),
        replace(TMA, name="tma, both hybrid", clauses=HYBRID_BOTH),
    ),
}
"""Target -> variants, the one that others are compared with first."""


def attention_rows() -> Iterator[Record]:
    """A record for every target, head dimension and variant."""
    for target, variants in ROWS.items():
        for depth in DEPTHS:
            for variant in variants:
                yield attention_row(target, depth, variant)


def attention_row(target: str, depth: int, variant: Variant) -> Record:
    """What is known about one kernel; `message` instead of figures if it cannot be compiled."""
    known: Record = {"kind": KIND, "target": target, "depth": depth, "variant": variant.name}
    problem = Attention("", 4, 16, 16, 4096, 4096, depth)
    text = problem.text.replace(" : (", f"{variant.clauses} : (", 1)
    try:
        artefact = compile_module(text, target, schedule={"atom": ATOM, **variant.schedule}).artefact
    except EmmyError as error:
        return known | {"message": error.message}
    launch = artefact.entry("attention")["launches"][0]
    kernel, used = launch["kernel"], artefact.resources[launch["kernel"]]
    cubin = artefact.images[launch["image"]].cubin
    if cubin is None:
        raise EmmyError('SASS needs ptxas and nvdisasm; install them with: pip install "emmy[ptxas]"')
    code = sass(cubin)
    fits = occupancy(get_target(target), used["registers"], launch["block"][0], launch["shared_bytes"])
    return known | {
        "block": list(artefact.kernels[kernel]["schedule"]["block"][:2]),
        "registers": used["registers"],
        "spill_bytes": used["spill_store_bytes"] + used["spill_load_bytes"],
        "threads": launch["block"][0],
        "shared_bytes": launch["shared_bytes"],
        "blocks_per_sm": fits.blocks,
        "limited_by": fits.limited_by,
        "mix": main_loop_mix(code, kernel),
        "products": main_loop_products(code, kernel),
    }
