"""Why each kernel has its schedule, in words: pinned by the text, a row of the target's table, or replaced by options.

The words are made beside `assign-schedule`, from its input and its result, and find the kernel by its place in the text, and
by its schedule where a product has several, so that they need no room in the IR.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from math import prod
from typing import Any, cast

from xdsl.dialects.builtin import AnyFloat, ModuleOp, StringAttr
from xdsl.ir import Operation

from emmy.chained_schedules import CHAINED_ROWS, table_row
from emmy.dialects import async_copy, tile
from emmy.dialects.async_copy_rings import ring_name
from emmy.dialects.common import DYNAMIC
from emmy.dialects.tensor_op import (
    EIGHT_BITS,
    CompositeOp,
    MatmulOp,
    accumulation_policy,
    partial_sum_type,
    tensor_type,
)
from emmy.dialects.tile import ScheduleAttr
from emmy.errors import SourceLocation
from emmy.locations import location_of
from emmy.options import Options
from emmy.passes.timed_schedules import timed_schedules
from emmy.schedule_choice import BY_SIZES, UNKNOWN_SIZE
from emmy.schedule_table import TABLES, Candidate
from emmy.schedules import Schedule
from emmy.targets import get_target
from emmy.variants import VARIANTS, schedule_of

Places = dict[tuple[SourceLocation | None, Schedule | None], str]


def pinned_products(module: ModuleOp) -> set[Operation]:
    """The products and composites whose schedule stands in the text."""
    return {op for op in module.walk() if isinstance(op, MatmulOp | CompositeOp) and "emmy.schedule" in op.attributes}


def schedule_reasons(module: ModuleOp, pinned: set[Operation], options: Options) -> Places:
    """Why each product and composite of a module has the schedule that `assign-schedule` left, by its place; and each of the
    schedules among which a call chooses, and of those of the product's variants, by place and schedule."""
    reasons: Places = {}
    for op in module.walk():
        schedule = op.attributes.get("emmy.schedule")
        if isinstance(op, MatmulOp | CompositeOp) and isinstance(schedule, ScheduleAttr):
            if op in pinned:
                reason = "pinned by the text"
            elif isinstance(op, CompositeOp):
                reason = _chain_reason(op, schedule.data, options)
            else:
                reason = _table_reason(op, schedule.data, options)
            reasons[location_of(op), None] = f"{reason}; {_waves(op, schedule.data, options.target)}"
            if not isinstance(op, MatmulOp):
                continue
            reasons |= _variant_reasons(op, schedule.data, options)
            competing = timed_schedules(op)
            for one in competing:
                row = "given by the text" if op in pinned else _row_of(op, one.schedule, options)
                reasons[location_of(op), one.schedule] = (
                    f"{row}; a call takes the one of {len(competing)} whose time is least"
                )
    return reasons


def _variant_reasons(op: MatmulOp, preferred: Schedule, options: Options) -> Places:
    """Of the schedules of variants that do not keep the product's own."""
    hybrid, bits = (
        accumulation_policy(op).policy.data == "hybrid",
        cast(AnyFloat, tensor_type(op.a).element_type).bitwidth,
    )
    schedules = {schedule_of(variant, preferred, hybrid, bits) for variant in VARIANTS.values()} - {preferred}
    text = "for tensors that threads copy: a tile no larger than the dense kernel's, one set of warps"
    return {(location_of(op), one): f"{text}; {_waves(op, one, options.target)}" for one in schedules}


def kernel_schedules(module: ModuleOp, reasons: Places, complete: bool) -> dict[str, dict[str, Any]]:
    """`schedule` (its fields), `reason`, `copies` and, where there is one, `remark` of each lowered `tile.kernel`, by name.

    `complete`: whether the text was at level 1.
    """
    found: dict[str, dict[str, Any]] = {}
    for kernel in module.body.block.ops:
        if isinstance(kernel, tile.KernelOp) and kernel.schedule is not None:
            given = "the fixed schedule of kernels without a product" if complete else "given by the text"
            reason = reasons.get((location_of(kernel), kernel.schedule.data)) or reasons.get(
                (location_of(kernel), None), given
            )
            schedule: dict[str, Any] = asdict(kernel.schedule.data)
            schedule |= {name: list(schedule[name]) for name in ("block", "warps")}  # as JSON has them
            found[kernel.sym_name.data] = {"schedule": schedule, "reason": reason, "copies": _copies(kernel)}
            remark = kernel.attributes.get("emmy.remark")
            if isinstance(remark, StringAttr):
                found[kernel.sym_name.data]["remark"] = remark.data
    return found


COPIES: dict[type[Operation], str] = {
    async_copy.TmaLoadOp: "tma",
    async_copy.CpAsyncOp: "cp_async",
    async_copy.PlainCopyOp: "plain",
    async_copy.TmaStoreOp: "tma",
    async_copy.PlainStoreOp: "plain",
}
"""Event -> the transport that it is."""


def _copies(kernel: tile.KernelOp) -> dict[str, str]:
    """How each field of a ring is moved: `ab.a` -> `tma`. A tensor that TMA cannot move shows here as what it takes instead."""
    found: dict[str, str] = {}
    for op in kernel.walk():
        transport = COPIES.get(type(op))
        if transport is not None:
            copy = cast(async_copy.TmaLoadOp, op)
            found[f"{ring_name(copy.slot)}.{copy.field.data}"] = transport
    return found


def _table_reason(op: MatmulOp, schedule: Schedule, options: Options) -> str:
    """The row of the table that is chosen, and what options replaced."""
    return _row_of(op, schedule, options, ", whose waves take least time")


def _row_of(op: MatmulOp, schedule: Schedule, options: Options, why: str = "") -> str:
    """The row of the table, why it is chosen, and what options replaced."""
    policy, operand = accumulation_policy(op), tensor_type(op.a).element_type
    hybrid, eight_bits = policy.policy.data == "hybrid", isinstance(operand, EIGHT_BITS)
    rows = TABLES[eight_bits, partial_sum_type(policy, operand).bitwidth if hybrid else 0][options.target]
    replaced = [name for name, _ in options.schedule]
    matching = _numbers(rows, schedule, replaced) or _numbers(rows, schedule, [*replaced, *BY_SIZES])
    if "block" in replaced:
        text = "options choose the block"
    elif matching:
        which = f"{'8-bit ' if eight_bits else ''}{'hybrid ' if hybrid else ''}table of {options.target}"
        text = f"row {matching[0]} of {len(rows)} of the {which}{why}"
    elif replaced:
        text = "no row of the table: fields that fit what options say"
    else:
        text = "the smallest tile of the table, with as many stages as fit beside the epilogue"
    return text + (f", with {', '.join(replaced)} from options" if replaced else "")


def _numbers(rows: Sequence[Candidate], schedule: Schedule, apart: Sequence[str]) -> list[int]:
    """Numbers of the rows that are a schedule but for some fields."""
    kept = [f.name for f in fields(Schedule) if f.name not in apart]
    alike = (all(getattr(row.schedule, name) == getattr(schedule, name) for name in kept) for row in rows)
    return [number for number, same in enumerate(alike, 1) if same]


def _chain_reason(op: CompositeOp, schedule: Schedule, options: Options) -> str:
    """The row of the table of chained products, and what room and options changed."""
    target, replaced = get_target(options.target), [name for name, _ in options.schedule]
    number, row = table_row(target, op.chain(), lambda one: replace(one, **dict(options.schedule)))
    text = f"row {number} of {len(CHAINED_ROWS[target.name])} of the table of chained products of {target.name}"
    same = [f.name for f in fields(Schedule) if f.name not in (*replaced, "block", "warps", "stages", "evict")]
    if any(getattr(schedule, name) != getattr(row.schedule, name) for name in same):
        text = "no row of the table: fields that fit what options say"
    if not replaced and (schedule.block[1], schedule.stages) != (row.schedule.block[1], row.schedule.stages):
        text += ", with the keys and stages that there is room for"
    return text + (f", with {', '.join(replaced)} from options" if replaced else "")


def _waves(op: MatmulOp | CompositeOp, schedule: Schedule, target: str) -> str:
    """How many CTAs there are, and how they fill the target's SMs."""
    *batch, m, n = tensor_type(op.results[0]).get_shape()
    known = [UNKNOWN_SIZE if size == DYNAMIC else size for size in (m, n)]
    # A CTA of a composite computes whole rows.
    blocks = (schedule.block[0], schedule.block[1] if isinstance(op, MatmulOp) else max(n, 1))
    rows, columns = (-(-size // block) for size, block in zip(known, blocks, strict=True))
    ctas = rows * columns * prod(1 if size == DYNAMIC else size for size in batch)
    sms = get_target(target).sms
    resident = _resident(schedule, target)
    waves = -(-ctas // (sms * resident))
    assumed = f" (a ? size counts as {UNKNOWN_SIZE})" if DYNAMIC in (m, n) else ""
    full = 100 * ctas / (waves * sms * resident) if waves else 0
    places = f"{sms} SMs" if resident == 1 else f"{resident} on each of {sms} SMs"
    count = "1 CTA is" if ctas == 1 else f"{ctas} CTAs are"
    return f"{count} {waves} wave{'s'[: waves != 1]} of {places}, {full:.0f} % full{assumed}"


def _resident(schedule: Schedule, target: str) -> int:
    """CTAs that an SM runs side by side, as far as the row of the table with this tile counts on it."""
    tile_ = schedule.block, schedule.warps, schedule.atom
    rows = (row for table in TABLES.values() for row in table.get(target, ()))
    counted = (r.resident for r in rows if (r.schedule.block, r.schedule.warps, r.schedule.atom) == tile_)
    return max(schedule.min_ctas, next(counted, 1))
