"""The part of docs/static.md on attention: instruction mixes of main loops, and what limits them by a model of GeForce dies.

The model counts cycles of one of the four sub-cores of an SM for a loop's instructions: the tensor pipe, the special function
unit (16 lanes an SM: CUDA C++ Programming Guide, "Arithmetic Instructions", 16 results a cycle for exp2 of every compute
capability here), shared memory (128 bytes a cycle and SM, which the sub-cores share) and the slots of issued instructions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from emmy.bench.pages import markdown_table, wrapped
from emmy.bench.records import Record
from emmy.bench.static_attention import KIND
from emmy.bench.static_page import TENSOR_CYCLES, product_kind

PRODUCTS = 128
"""Tensor instructions that mixes are given for: 64 keys of 32 rows at a head dimension of 64."""

SPECIAL_CYCLES = 8
"""Of a warp's `MUFU`: 32 results, 4 lanes a sub-core."""

MATRIX_CYCLES = 16
"""Of a warp's `LDSM` of four matrices, while each sub-core has one: 4 x 512 bytes at 128 bytes a cycle."""

HOPPER_CYCLES = 6.4
"""A product of m16n8k16 on an H200, either accumulator (measured: docs/measurements.md, `mma.sync` on registers alone)."""

SHARED_LIMIT = 99 * 1024
"""Bytes of shared memory that a block can have on sm_89 and sm_120."""

COLUMNS: dict[str, tuple[str, ...]] = {
    "LDSM": ("LDSM",),
    "LDGSTS": ("LDGSTS",),
    "UTMALDG": ("UTMALDG",),
    "MUFU": ("MUFU",),
    "FMUL": ("FMUL",),
    "FADD": ("FADD",),
    "FFMA": ("FFMA",),
    "FMNMX": ("FMNMX", "FMNMX3"),
    "convert, promote": ("F2FP", "HADD2", "FHADD", "F2F", "HFMA2"),
    "barrier": ("LDGDEPBAR", "DEPBAR", "BAR", "SYNCS", "WARPSYNC", "FENCE", "MEMBAR", "ELECT"),
    "integer": (
        *("IADD", "IADD3", "IMAD", "ISETP", "LEA", "LOP3", "MOV", "PLOP3", "SEL", "SHF", "UIADD3", "UIMAD", "UISETP"),
        *("ULEA", "ULOP3", "UMOV", "UPLOP3", "USEL", "USHF", "R2UR", "VIADD", "VOTE", "VOTEU", "S2UR", "UPRMT", "PRMT"),
    ),
}  # fmt: skip
"""Column -> opcodes; all that is left is `rest`: shuffles, branches, fillers."""

INTRODUCTION = f"""
# Attention on paper

Kernels of `tensor_op.attention` (4 x 16 heads, 4096 rows and keys, f16) with `mma.sync`, assembled for `sm_89` with `cp.async`
and for `sm_120a` with TMA, beside what might be changed there. A block of those cards has {SHARED_LIMIT // 1024} KiB of shared
memory. Counted is the main loop, which has no masks, for each {PRODUCTS} products: 64 keys of 32 rows at a head dimension of 64,
32 keys of 32 rows at 128.

* *convert, promote* are roundings of the weights to f16, and additions of f16 sums to f32 ones where sums are hybrid; *rest* are
  shuffles, branches and fillers (NOPs, which ptxas puts between instructions for `sm_120a`).
* *tensor*, *special*, *shared* and *issue* are cycles of a sub-core for those {PRODUCTS} products: an HMMA takes 32 with f32 sums
  and 16 with f16 sums on GeForce dies; a MUFU {SPECIAL_CYCLES} (4 lanes); an LDSM {MATRIX_CYCLES} (the four sub-cores share 128
  bytes a cycle); any instruction one slot. The largest is the least time that the loop can take.
* *all overlaps* is the speed over the first row of the target and head dimension by those largest numbers, *nothing overlaps*
  the same by sums of tensor, special and all other slots: a change is worth something between the two. *H200* is the largest
  number over the tensor cycles there ({HOPPER_CYCLES} a product, either sum): above 1 something else than products is the limit.
"""


def attention_page(records: Sequence[Record]) -> str:
    """Text for the records of attention; empty if there are none."""
    own = [record for record in records if record["kind"] == KIND]
    if not own:
        return ""
    targets = list(dict.fromkeys(record["target"] for record in own))
    sections = [_section(target, [r for r in own if r["target"] == target]) for target in targets]
    return "\n".join([INTRODUCTION, *sections, *judgement(own)])


def _section(target: str, records: Sequence[Record]) -> str:
    good = [record for record in records if "message" not in record]
    refused = [f"* {label(r)} was not compiled: {str(r['message']).splitlines()[0]}" for r in records if "message" in r]
    lines = "\n".join(wrapped(line, "  ") for line in refused)
    return "\n".join(
        [f"## Attention, {target}\n", mix_table(good), model_table(good), *([lines + "\n"] if lines else [])]
    )


def label(record: Record) -> str:
    """Head dimension and variant."""
    return f"d{record['depth']} {record['variant']}"


def useful(record: Record) -> int:
    """m16n8k16 products of the loop."""
    return sum(count for opcode, count in record["products"].items() if product_kind(opcode)[0] == "16816")


def mix(record: Record) -> dict[str, float]:
    """Instructions by column, for `PRODUCTS` products; the tensor instructions by accumulator."""
    scale = PRODUCTS / useful(record)
    found: Counter[str] = Counter()
    columns = {opcode: column for column, opcodes in COLUMNS.items() for opcode in opcodes}
    for opcode, count in record["mix"].items():
        if opcode != "HMMA":
            found[columns.get(opcode, "rest")] += count
    for opcode, count in record["products"].items():
        found[f"HMMA {product_kind(opcode)[1].lower()}"] += count
    return {name: found[name] * scale for name in ("HMMA f32", "HMMA f16", *COLUMNS, "rest")}


def cycles(record: Record) -> dict[str, float]:
    """`tensor`, `special`, `shared` and `issue` cycles of a sub-core of a GeForce die, for `PRODUCTS` products."""
    scale = PRODUCTS / useful(record)
    counts: Mapping[str, int] = record["mix"]
    tensor = sum(TENSOR_CYCLES[product_kind(opcode)] * count for opcode, count in record["products"].items())
    found = {
        "tensor": tensor,
        "special": SPECIAL_CYCLES * counts.get("MUFU", 0),
        "shared": MATRIX_CYCLES * counts.get("LDSM", 0),
        "issue": sum(counts.values()),
    }
    return {name: value * scale for name, value in found.items()}


def serial(record: Record) -> float:
    """Cycles if neither pipe works under the other, nor instructions under either."""
    found = cycles(record)
    others = found["issue"] - PRODUCTS - mix(record)["MUFU"]
    return found["tensor"] + found["special"] + others


def hopper(record: Record) -> float:
    """The largest of the cycles beside the tensor pipe over the tensor pipe's, on an H200; at least 1."""
    found = cycles(record)
    tensor = HOPPER_CYCLES * PRODUCTS
    return max(tensor, found["special"], found["shared"], found["issue"]) / tensor


def mix_table(records: Sequence[Record]) -> str:
    """Instructions of the main loop for `PRODUCTS` products."""
    rows = [[label(r), *(_count(value) for value in mix(r).values())] for r in records]
    return markdown_table(["loop", "HMMA f32", "HMMA f16", *COLUMNS, "rest"], rows)


def _count(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def base_of(record: Record, records: Sequence[Record]) -> Record:
    """The first row of the target and head dimension."""
    return next(r for r in records if (r["target"], r["depth"]) == (record["target"], record["depth"]))


def gains(record: Record, base: Record) -> tuple[float, float]:
    """Speed over `base` if everything overlaps, and if nothing does."""
    return max(cycles(base).values()) / max(cycles(record).values()), serial(base) / serial(record)


def model_table(records: Sequence[Record]) -> str:
    """Resources, and what the model says."""

    def cells(record: Record) -> list[str]:
        found = cycles(record)
        best, worst = gains(record, base_of(record, records))
        return [
            "x".join(map(str, record["block"])),
            str(record["registers"]),
            str(record["spill_bytes"]),
            f"{record['shared_bytes'] / 1024:.0f} KiB",
            f"{record['blocks_per_sm']} x {record['threads'] // 32} warps ({record['limited_by']})",
            *(f"{value:.0f}" for value in found.values()),
            f"{best:.2f}",
            f"{worst:.2f}",
            f"{hopper(record):.2f}",
        ]

    header = [
        "kernel",
        "rows x keys",
        "registers",
        "spills",
        "shared",
        "on an SM",
        "tensor",
        "special",
        "shared",
        "issue",
    ]
    return markdown_table([*header, "at best", "at worst", "H200"], [[label(r), *cells(r)] for r in records])


def judgement(records: Sequence[Record]) -> list[str]:
    """What the model says of the experiments on `sm_120a`, in words made from its numbers."""
    known = {(r["target"], r["depth"], r["variant"]): r for r in records if "message" not in r}
    lines: list[str] = []
    for depth in dict.fromkeys(r["depth"] for r in records):
        if any(("sm_120a", depth, variant) not in known for variant in ("tma", *JUDGED, *CHEAP, *POWERS)):
            continue
        base = known["sm_120a", depth, "tma"]
        found = {name: round(value) for name, value in cycles(base).items()}
        slots = [cycles(known["sm_120a", depth, name])["issue"] - found["issue"] for name in CHEAP]
        lines.append(
            f"* d{depth}: products take {found['tensor']} cycles, exponentials {found['special']}, matrix loads "
            f"{found['shared']}, all slots {found['issue']}. Whatever hides softmax better (ping-pong, interleaving, roles, "
            f"deeper rings) gains at most {(serial(base) / found['tensor'] - 1) * 100:.0f} %, as far as other warps of the "
            f"sub-core do not hide it already. Beside powers of 2, {_powers(known, base, depth)}; all overlaps as well. "
            f"Transport, roles and conditional rescaling change the slots by {min(slots):+.0f} to {max(slots):+.0f}, which no "
            f"product waits for. {_worth(known, base, depth)}."
        )
    if not lines:
        return []
    text = "\n".join(wrapped(line, "  ") for line in lines)
    return [f"## The experiments on `sm_120a`, judged\n\n{text}\n\n{SEED}"]


CHEAP = ("cp_async", "tma, specialized", "tma, lazy")
"""Variants that change instructions beside the products."""

POWERS = {
    "tma, powers of e": "powers of e",
    "tma, polynomial 4": "a quarter by a polynomial",
    "tma, powers in f16": "powers in f16",
}
"""Variants that change the exponentials -> how the judgement calls them."""


def _powers(known: Mapping[tuple[str, int, str], Record], base: Record, depth: int) -> str:
    """What other exponentials change of the special function unit's cycles and of the slots."""
    told: list[str] = []
    for name, words in POWERS.items():
        changes = {
            pipe: cycles(known["sm_120a", depth, name])[pipe] - cycles(base)[pipe] for pipe in ("special", "issue")
        }
        told.append(f"{words} take {changes['special']:+.0f} cycles and {changes['issue']:+.0f} slots")
    return ", ".join(told)


JUDGED = {"tma, hybrid values": "Hybrid sums of P*V", "tma, both hybrid": "of both products"}
"""Variants that change the products -> how the judgement calls them."""


def _worth(known: Mapping[tuple[str, int, str], Record], base: Record, depth: int) -> str:
    """What hybrid sums give, between nothing and everything overlapping."""
    told: list[str] = []
    for name, words in JUDGED.items():
        best, worst = gains(known["sm_120a", depth, name], base)
        told.append(f"{words} give {worst:.2f} to {best:.2f} of the speed")
    return ", ".join(told)


SEED = """Published figures of an RTX 5090 agree (b1 h8 s4096 d64, us): 204.7 with f32 sums and 164 with hybrid sums of P*V is
1.25 of the speed; 213 with specialised warps and FA-2's 206 lie within 5 %. With 170 SMs, 2.41 GHz and 32 cycles a
product that case takes 164 us at least with f32 sums, 123 with hybrid sums of P*V: 80 and 75 % of the pipe. So "TMA
barely moves attention", "`exp2` has no effect" and "deeper pipelines have no effect" are what to expect of such a
die, where products take five times as long as on an H200 and hide all else; only sums in f16 move the limit.
"""
