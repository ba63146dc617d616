"""Schedules are chosen by an estimate of their shared memory, before there are rings: it is what `allocate-shared` gives."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from emmy.compilation import lower
from emmy.dialects import tile
from emmy.errors import EmmyError
from emmy.options import Options
from emmy.passes.assign_schedule import _epilogue
from emmy.passes.fusion import group_ops, live_ops
from emmy.schedule_limits import Epilogue, shared_bytes, transport_on
from emmy.targets import get_target

GROUPS, CASES = 8, 5

A, B = "tensor<?x192xf16>", "tensor<256x192xf16>"
KINDS = {
    "plain": ("f16", None),
    "f32 result": ("f32", None),
    "residual": ("f16", "tensor<?x256xf16>"),
    "row": ("f16", "tensor<1x256xf32>"),
    "column": ("f16", "tensor<?x1xf16>"),
    "two results": ("f16", None),
    "two f32 results": ("f32", None),
}
"""Kind -> the type of the result, and of a tensor that is added."""


def text_of(kind: str) -> str:
    element, added = KINDS[kind]
    c = f"tensor<?x256x{element}>"
    head = f"%p = tensor_op.matmul %a, %b transpose_b : ({A}, {B}) -> {c}"
    if kind.startswith("two"):
        relu = f"%s = tensor_op.map relu %p : ({c}) -> {c}"
        return f"func.func @f(%a: {A}, %b: {B}) -> ({c}, {c}) {{ {head} {relu} func.return %p, %s : {c}, {c} }}"
    if added is None:
        return f"func.func @f(%a: {A}, %b: {B}) -> {c} {{ {head} func.return %p : {c} }}"
    add = f"%s = tensor_op.map add %p, %r : ({c}, {added}) -> {c}"
    return f"func.func @f(%a: {A}, %b: {B}, %r: {added}) -> {c} {{ {head} {add} func.return %s : {c} }}"


def random_schedule(rng: random.Random, target: str) -> dict[str, Any]:
    """Fields of a schedule, legal or not."""
    warpgroups = target == "sm_90a" and rng.random() < 0.5
    grids = [(4, 1), (8, 1)] if warpgroups else [(1, 1), (2, 1), (1, 2), (2, 2), (2, 4), (4, 1)]
    warps = rng.choice(grids)
    rows = 16 * warps[0] * (1 if warpgroups else rng.choice([1, 2, 3, 4]))
    block = (rows, 16 * warps[1] * rng.choice([1, 2, 3, 4, 5, 8, 12, 16]), 16 * rng.choice([1, 2, 3, 4, 5, 8]))
    if warpgroups and rng.random() < 0.2:
        block = (rows, rng.choice([24, 40, 120]), block[2])
    fields: dict[str, Any] = {
        "block": block,
        "warps": warps,
        "stages": rng.randint(1, 6),
        "transport": "auto" if warpgroups else rng.choice(["auto", "tma", "cp_async", "plain"]),
        "roles": rng.choice(["unified", "specialized"]),
        "persistent": rng.choice([0, 0, 1]),
        "epilogue": rng.choice(["shared", "shared", "direct"]),
        "atom": "wgmma" if warpgroups else "m16n8k16",
    }
    if warps[1] == 1 and block[1] % 16 == 0 and rng.random() < 0.4:
        fields["store_columns"] = rng.choice([c for c in (16, 32, 48, 64, 128) if block[1] % c == 0])
    if warpgroups and block[1] % 16 == 0 and not fields["persistent"] and rng.random() < 0.3:
        fields["split_k"] = rng.choice([2, 4])
    if fields["persistent"] and fields["roles"] == "specialized" and rng.random() < 0.6:
        fields["consumers"] = "pingpong"
    return fields


@pytest.mark.parametrize("group", range(GROUPS))
def test_the_estimate_is_what_rings_take(group: int):
    rng, compared = random.Random(group), 0
    while compared < CASES:
        kind, target = rng.choice(list(KINDS)), rng.choice(["sm_80", "sm_90a", "sm_90a", "sm_120a"])
        fields, epilogues = random_schedule(rng, target), list[Epilogue]()

        def look(stage: str, module: Any, epilogues: list[Epilogue] = epilogues) -> None:
            if stage == "input":
                groups = group_ops(live_ops(next(iter(module.body.block.ops)).body.block))
                epilogues += [_epilogue(one, one.matmul) for one in groups if one.matmul is not None]

        options = Options(target=target, schedule=tuple(fields.items()))
        try:
            lowered = lower(text_of(kind), "t", options, stop_after="allocate-shared", observe=look)
        except EmmyError:  # a schedule that the target cannot run, or a column that is to be moved by TMA
            continue
        (kernel,) = [op for op in lowered.module.walk() if isinstance(op, tile.KernelOp)]
        schedule = kernel.schedule.data
        schedule = replace(schedule, transport=transport_on(schedule, get_target(target)))
        taken = kernel.attributes["emmy.shared_bytes"].value.data
        assert taken == shared_bytes(schedule, epilogues[0]), (kind, target, fields)
        compared += 1
