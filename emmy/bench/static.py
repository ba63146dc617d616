"""What can be proved about a kernel for a card that is not there: the SASS of its main loop, its resources, bank conflicts.

    python -m emmy.bench.static              # write docs/static.jsonl and docs/static.md
    python -m emmy.bench.static --check      # exit code 1 if they are out of date

A 4096^3 product of `mma.sync`, which all targets and policies have, is compiled and assembled for each target, transport,
placement and policy of `ROWS`, and one of 8-bit operands for those of `EIGHT_BIT_ROWS`; its hottest loop is counted; one CTA of
two short products with the same schedule runs on the emulator, which counts bank conflicts and what is executed for each k-tile.
Attention is in `emmy.bench.static_attention`.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from emmy.artefact import DTYPES, run_on_emulator
from emmy.assemble import main_loop_mix, main_loop_products, occupancy, sass
from emmy.bench.fp8 import MATMUL as EIGHT_BIT_MATMUL
from emmy.bench.pages import told, write_or_check
from emmy.bench.records import Record, read_records
from emmy.bench.static_attention import attention_rows
from emmy.bench.static_attention_page import attention_page
from emmy.bench.static_page import page
from emmy.bench.suites import MATMUL
from emmy.compiler import CompiledModule
from emmy.compiler import compile as compile_module
from emmy.emulator import Report
from emmy.errors import EmmyError
from emmy.targets import get_target

KIND = "static"
SIZE = 4096
SHORT_DEPTHS = (512, 768)  # of the products that are emulated: some rounds of every ring, and a few k-tiles more

CP_ASYNC: Mapping[str, Any] = {"transport": "cp_async"}
TMA: Mapping[str, Any] = {"transport": "tma"}
TMA_SPECIALIZED: Mapping[str, Any] = {"transport": "tma", "roles": "specialized"}
ATOM = "m16n8k16"
POLICIES = ("f32", "hybrid, max_k = 64")

ROWS: dict[str, tuple[Mapping[str, Any], ...]] = {
    "sm_89": (CP_ASYNC,),
    "sm_120a": (CP_ASYNC, TMA, TMA_SPECIALIZED),
    "sm_90a": (CP_ASYNC, TMA, TMA_SPECIALIZED),
}
"""Target -> the schedules to show; each with every policy. sm_89 has no TMA."""

EIGHT_BITS = "f8E4M3FN"
EIGHT_BIT_POLICIES = ("f32", "hybrid, max_k = 64, partial = f16", "hybrid, max_k = 128, partial = f16")

EIGHT_BIT_ROWS: dict[str, tuple[Mapping[str, Any], ...]] = {"sm_89": (CP_ASYNC,), "sm_120a": (CP_ASYNC, TMA)}
"""The same of 8-bit operands: targets where f16 sums have another rate than f32 ones."""

TILES: dict[str, Mapping[str, Any]] = {
    "sm_90a": {"block": (128, 256, 64), "warps": (2, 4), "stages": 3, "unroll": 1, "partials": "auto"},
}
"""Target -> the tile of all its loops, where the table's was measured for one transport and one policy: loops of one tile
can be compared, and registers hold all of them."""


def rows() -> Iterator[Record]:
    """A record for every target, schedule and policy of a product, then those of attention."""
    for target, schedules in ROWS.items():
        for schedule in schedules:
            for policy in POLICIES:
                yield row(target, schedule, policy)
    for target, schedules in EIGHT_BIT_ROWS.items():
        for schedule in schedules:
            for policy in EIGHT_BIT_POLICIES:
                yield row(target, schedule, policy, EIGHT_BITS)
    yield from attention_rows()


def whole_page(records: Sequence[Record]) -> str:
    """The text of docs/static.md."""
    products = [record for record in records if record["kind"] == KIND]
    return "\n".join(filter(None, [page(products), attention_page(records)]))


def row(target: str, schedule: Mapping[str, Any], policy: str, operands: str = "f16") -> Record:
    """What is known about one kernel; `message` instead of figures if it cannot be compiled."""
    known: Record = {"kind": KIND, "target": target, "schedule": dict(schedule), "policy": policy}
    known |= {} if operands == "f16" else {"operands": operands}
    try:
        artefact = compiled(target, schedule, policy, SIZE, operands).artefact
        (short, lines), (longer, _) = (emulated(target, schedule, policy, depth, operands) for depth in SHORT_DEPTHS)
    except EmmyError as error:
        return known | {"message": error.message}
    launch = artefact.entry("matmul")["launches"][0]
    kernel, used = launch["kernel"], artefact.resources[launch["kernel"]]
    cubin = artefact.images[launch["image"]].cubin
    if cubin is None:
        raise EmmyError('SASS needs ptxas and nvdisasm; install them with: pip install "emmy[ptxas]"')
    text = sass(cubin)
    fits = occupancy(get_target(target), used["registers"], launch["block"][0], launch["shared_bytes"])
    return known | {
        "registers": used["registers"],
        "spill_bytes": used["spill_store_bytes"] + used["spill_load_bytes"],
        "threads": launch["block"][0],
        "shared_bytes": launch["shared_bytes"],
        "blocks_per_sm": fits.blocks,
        "warps_per_sm": fits.warps,
        "limited_by": fits.limited_by,
        "mix": main_loop_mix(text, kernel),
        "products": main_loop_products(text, kernel),
        "conflicts": bank_conflicts(short, lines),
        "executed": executed(short, longer),
    }


def compiled(
    target: str, schedule: Mapping[str, Any], policy: str, depth: int, operands: str = "f16"
) -> CompiledModule:
    """The product with `depth` contraction elements; the schedule that is chosen does not depend on it."""
    if operands != "f16":
        types = {"a": operands, "b": operands, "c": "bf16"}
        text = EIGHT_BIT_MATMUL.format(m=SIZE, n=SIZE, k=depth, policy=policy, **types)
        return compile_module(text, target, schedule=dict(schedule))
    schedule = {"atom": ATOM, **TILES.get(target, {}), **schedule}
    text = MATMUL.format(m=SIZE, n=SIZE, k=depth, t="f16")
    return compile_module(text, target, accumulate=policy, schedule=schedule)


def emulated(
    target: str, schedule: Mapping[str, Any], policy: str, depth: int, operands: str = "f16"
) -> tuple[Report, list[str]]:
    """What one CTA of the product does on the emulator, and the lines of its PTX."""
    artefact = compiled(target, schedule, policy, depth, operands).portable_artefact
    entry = copy.deepcopy(artefact.entry("matmul"))
    launch = entry["launches"][0]
    launch["grid"] = [1, 1, 1]
    operand = np.ones((SIZE, depth), DTYPES[operands])
    _, (report,) = run_on_emulator(replace(artefact, entries={"matmul": entry}), "matmul", [operand, operand])
    ptx = artefact.images[launch["image"]].ptx
    assert ptx is not None
    return report, ptx.splitlines()


def executed(one: Report, longer: Report) -> dict[str, int]:
    """PTX warp instructions that more k-tiles cost: `mma`, `ldmatrix` and `other`."""
    more = longer.instructions - one.instructions
    return {"mma": more["mma"], "ldmatrix": more["ldmatrix"], "other": more.total() - more["mma"] - more["ldmatrix"]}


def bank_conflicts(report: Report, lines: Sequence[str]) -> dict[str, int]:
    """Extra wavefronts of the `operands` (copies in, ldmatrix) and of the `result` (all else)."""
    found = {"operands": 0, "result": 0}
    for line, count in report.bank_conflicts.items():
        text = lines[line - 1]
        found["operands" if "ldmatrix" in text or "cp.async" in text else "result"] += count
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(prog="emmy.bench.static", description="SASS, resources and conflicts as a page.")
    parser.add_argument("--root", type=Path, default=Path(), help="the repository (default: the current folder)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if something is out of date")
    parser.add_argument("--page", action="store_true", help="compile nothing; write the page of what is recorded")
    args = parser.parse_args(argv)
    path = args.root / "docs" / "static.jsonl"

    def action() -> int:
        records = read_records(path) if args.page else list(rows())
        text = "".join(json.dumps(record) + "\n" for record in records)
        return max(
            write_or_check(path, text, args.check),
            write_or_check(path.with_suffix(".md"), whole_page(records), args.check),
        )

    return told(action)


if __name__ == "__main__":
    sys.exit(main())
