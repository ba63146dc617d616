"""Whatever the text leaves to the table is kept in registers: placement x policy x layout of the operands, by ptxas."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

import emmy
from emmy.assemble import find_tool
from emmy.errors import EmmyError
from emmy.schedule_choice import Product, choose_schedule
from emmy.schedule_table import CANDIDATES, EIGHT_BIT_CANDIDATES, HYBRID_CANDIDATES, SPILLS, TABLES
from emmy.schedules import ROLES, TRANSPORTS
from emmy.targets import TARGETS, get_target

QUICK = {"verify_each": False}
"""Kernels of full size: other tests verify such after every pass."""

MATMUL = """func.func @mm(%a: tensor<{a}x{t}>, %b: tensor<{b}x{t}>) -> tensor<{c}x{t}> {{
  %c = tensor_op.matmul %a, %b {flags} : (tensor<{a}x{t}>, tensor<{b}x{t}>) -> tensor<{c}x{t}>
  func.return %c : tensor<{c}x{t}>
}}"""
LAYOUTS = {
    "static": ("4096x4096", "4096x4096", "4096x4096", "transpose_b"),
    "rows at run time": ("?x4096", "4096x4096", "?x4096", ""),
    "8-byte rows": ("4096x4092", "4096x4092", "4096x4096", "transpose_b"),
    "odd rows": ("?x4096", "4096x4095", "?x4095", ""),
    "all at run time": ("?x?", "?x?", "?x?", "transpose_b"),
}
POLICIES = [
    ("f32", "f16"),
    ("f16", "f16"),
    ("hybrid", "f16"),
    ("hybrid, max_k = 128", "f16"),
    ("hybrid, overflow = redo", "f16"),
]


def placements(target: str) -> list[tuple[str, str, str, str]]:
    """(transport, layout, policy, dtype): each transport in the layout that takes most registers, and each layout."""
    transports = [word for word in TRANSPORTS if word != "tma" or TARGETS[target].tma]
    asked = [(word, "rows at run time", *policy) for word in transports for policy in POLICIES]
    laid_out = [("auto", layout, *policy) for layout in LAYOUTS for policy in (POLICIES[0], POLICIES[2])]
    return list(dict.fromkeys([*asked, *laid_out, ("auto", "static", "f32", "bf16")]))


@pytest.mark.skipif(find_tool("ptxas") is None, reason="ptxas is not installed")
@pytest.mark.parametrize("roles", ROLES)
@pytest.mark.parametrize("target", TARGETS)
def test_what_is_left_to_the_table_is_kept_in_registers(target: str, roles: str):
    """Where a transport or roles are asked for, the table's choice is one that has the registers for them."""
    spilled, seen = [], set()
    for transport, layout, policy, element in placements(target):
        a, b, c, flags = LAYOUTS[layout]
        text = MATMUL.format(a=a, b=b, c=c, flags=flags, t=element)
        module = emmy.compile(
            text, target, accumulate=policy, schedule={"transport": transport, "roles": roles}, **QUICK
        )
        if module.ptx not in seen:
            seen.add(module.ptx)
            try:
                assert module.assembled
            except EmmyError as error:
                spilled.append((transport, layout, policy, element, error.message))
    assert spilled == []


EIGHT_BITS = """func.func @mm(%a: tensor<{a}xf8E4M3FN>, %b: tensor<{b}xf8E5M2>) -> tensor<{c}xbf16> {{
  %c = tensor_op.matmul %a, %b transpose_b : (tensor<{a}xf8E4M3FN>, tensor<{b}xf8E5M2>) -> tensor<{c}xbf16>
  func.return %c : tensor<{c}xbf16>
}}"""
EIGHT_BIT_LAYOUTS = {
    "static": ("4096x4096", "4096x4096", "4096x4096"),
    "8-byte rows": ("4096x4088", "4096x4088", "4096x4096"),
    "odd rows": ("?x4095", "4096x4095", "?x4096"),
    "all at run time": ("?x?", "?x?", "?x?"),
}


@pytest.mark.skipif(find_tool("ptxas") is None, reason="ptxas is not installed")
@pytest.mark.parametrize(
    "policy", ["f32", "hybrid, max_k = 128", "hybrid, max_k = 32", "hybrid, max_k = 64, partial = f16"]
)
@pytest.mark.parametrize("target", EIGHT_BIT_CANDIDATES)
def test_products_of_8_bits_are_kept_in_registers(target: str, policy: str):
    """The table's choice for each layout, and each of its rows: no spill, no message about wgmma."""
    table = TABLES[True, 0 if policy == "f32" else 16 if policy.endswith("f16") else 32]
    longest = 32 if policy.endswith("32") else 128
    rows = [asdict(row.schedule) for row in table[target] if row.least_partial <= longest]
    asked = [(layout, {}) for layout in EIGHT_BIT_LAYOUTS] + [("static", row) for row in rows]
    spilled, seen = [], set()
    for layout, schedule in asked:
        a, b, c = EIGHT_BIT_LAYOUTS[layout]
        module = emmy.compile(EIGHT_BITS.format(a=a, b=b, c=c), target, accumulate=policy, schedule=schedule, **QUICK)
        if module.ptx not in seen:
            seen.add(module.ptx)
            try:
                assert module.assembled
            except EmmyError as error:
                spilled.append((layout, schedule.get("block"), schedule.get("stages"), error.message))
    assert spilled == []


@pytest.mark.parametrize(
    ("target", "partial", "asked", "wide", "block"),
    [
        ("sm_90a", 64, {}, True, (128, 256, 128)),
        ("sm_90a", 64, {"transport": "cp_async"}, True, (128, 256, 64)),
        ("sm_90a", 64, {"roles": "specialized"}, True, (128, 128, 64)),
        ("sm_90a", 64, {"transport": "plain", "roles": "specialized"}, True, (128, 128, 64)),
        ("sm_90a", 64, {}, False, (128, 256, 64)),
        ("sm_80", 0, {"roles": "specialized"}, True, (128, 128, 64)),
        ("sm_90a", 0, {"stages": 8}, True, (64, 128, 64)),
    ],
)
def test_the_choice_sees_what_is_asked_for(target, partial, asked, wide, block):
    schedule = choose_schedule(
        get_target(target),
        Product(4096, 4096, partial=partial, asked=lambda one: replace(one, **asked), wide=wide),
    )
    assert schedule.block == block
    assert all(getattr(schedule, name) == value for name, value in asked.items())


@pytest.mark.parametrize("target", TARGETS)
def test_spills_are_of_rows_of_the_table(target: str):
    """An entry that no row meets is left over from a row that is gone."""
    rows = {c.schedule.block for c in (*CANDIDATES[target], *HYBRID_CANDIDATES[target])}
    assert {spill.block for spill in SPILLS[target]} <= rows


def test_what_spills_in_every_row_is_left_to_ptxas():
    """A block that is asked for stays, with the row's other fields."""
    schedule = choose_schedule(
        get_target("sm_90a"),
        Product(
            4096,
            4096,
            asked=lambda one: replace(
                one, block=(128, 192, 64), warps=(2, 4), transport="cp_async", roles="specialized"
            ),
        ),
    )
    assert (schedule.block, schedule.stages) == ((128, 192, 64), 3)
