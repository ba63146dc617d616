"""Which row of the table of chained products a chain takes on sm_90a, and what pins change."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

import emmy
from emmy.chained_schedules import (
    CHAINED_ROWS,
    Chain,
    chained_shared_bytes,
    choose_chained_schedule,
    problem_of_chain,
    table_row,
    variant_schedule,
)
from emmy.dialects.tile import KernelOp
from emmy.ir import parse_module
from emmy.passes.allocate_shared import SHARED_BYTES
from emmy.schedules import Schedule
from emmy.targets import get_target
from emmy.variants import VARIANTS

HOPPER = get_target("sm_90a")


def chain(depth: int, batches: int | None, rows: int | None, ranged: bool, **fields) -> Chain:
    return Chain(depth, depth, rows=rows, batches=batches, ranged=ranged, **fields)


@pytest.mark.parametrize(
    ("depth", "batches", "rows", "ranged", "block"),
    [
        (64, 8, 4096, False, (256, 64)),  # 128 tiles of 256 rows are one wave of 132 SMs, 176 of 192 rows are two
        (64, 64, 4096, False, (192, 128)),
        (64, 8, 4096, True, (128, 128)),  # the longest tile is what all wait for
        (64, 64, 4096, True, (192, 128)),
        (128, 64, 4096, False, (192, 80)),
        (128, 64, 4096, True, (192, 80)),
        (128, None, None, False, (192, 80)),
        (256, 16, 4096, False, (128, 64)),
        (256, 16, 4096, True, (128, 64)),
    ],
)
def test_warpgroups_by_waves(depth: int, batches: int | None, rows: int | None, ranged: bool, block: tuple[int, int]):
    schedule = choose_chained_schedule(HOPPER, chain(depth, batches, rows, ranged))
    assert (schedule.atom, schedule.block) == ("wgmma", (*block, depth))
    assert schedule.overlap == (block != (256, 64))


@pytest.mark.parametrize(
    "asked",
    [
        {"atom": "m16n8k16"},
        {"transport": "cp_async"},
        {"roles": "unified"},
        {"block": (64, 64, 128), "warps": (2, 1)},
    ],
)
def test_pins_that_wgmma_cannot_have_take_another_row(asked: dict):
    def pinned(schedule: Schedule) -> Schedule:
        return replace(schedule, **asked)

    schedule = choose_chained_schedule(HOPPER, chain(128, 64, 4096, True), pinned)
    assert schedule.atom == "m16n8k16"
    assert all(getattr(schedule, name) == value for name, value in asked.items())
    assert problem_of_chain(schedule, HOPPER, chain(128, 64, 4096, True)) is None


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({"tensors": (2,)}, {"atom": "wgmma"}),  # no row with wgmma has further tensors
        ({"tensors": (4,)}, {"atom": "wgmma", "roles": "unified"}),
        ({"rows": 8}, {"atom": "wgmma"}),  # rows for few rows have 16 of them
        ({}, {"atom": "wgmma", "roles": "unified"}),  # what belongs to roles of their own is left out
        ({}, {"atom": "wgmma", "stages": 4}),
        ({}, {"warps": (4, 2)}),
    ],
)
@pytest.mark.parametrize(("depth", "ranged"), [(64, True), (128, False), (256, True)])
def test_fields_that_are_not_stated_fit_those_that_are(depth: int, ranged: bool, fields: dict, asked: dict):
    what = chain(depth, 16, 4096, ranged)
    what = replace(what, **fields)
    schedule = choose_chained_schedule(HOPPER, what, lambda one: replace(one, **asked))
    assert problem_of_chain(schedule, HOPPER, what) is None
    assert all(getattr(schedule, name) == value for name, value in asked.items())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_k": 64}, "has no hybrid sums"),
        ({"ragged": True}, "TMA cannot copy these: sequences are packed"),
        ({"page": 64}, "TMA cannot copy these: keys lie in pages"),
        ({"wide": False}, "TMA cannot copy these: rows are no whole units of 16 bytes"),
    ],
)
def test_what_cannot_be_had_is_refused_for_its_own_reason(fields: dict, message: str):
    """And not for fields of a row that has nothing to do with it."""
    what = chain(128, 16, 4096, False, **fields)
    schedule = choose_chained_schedule(HOPPER, what, lambda one: replace(one, atom="wgmma"))
    assert message in str(problem_of_chain(schedule, HOPPER, what))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"warps": (4, 1), "block": (64, 64, 64), "stages": 1}, None),
        ({"warps": (4, 1), "block": (64, 128, 64), "stages": 2, "overlap": 0}, None),
        ({"warps": (8, 1), "block": (128, 64, 64), "stages": 2, "overlap": 0}, None),
        ({"warps": (12, 1), "block": (192, 64, 64)}, "registers and can have"),
        ({"warps": (4, 1), "block": (64, 128, 64), "stages": 4}, "one of 2 on an SM, has"),
    ],
)
def test_two_ctas_share_an_sm(fields: dict, message: str | None):
    """Registers, of roles too, shared memory and threads are those of half an SM."""
    what = chain(64, 64, 4096, False)
    schedule = replace(table_row(HOPPER, what)[1].schedule, min_ctas=2, persistent=0, **fields)
    problem = problem_of_chain(schedule, HOPPER, what)
    assert problem is None if message is None else message in str(problem)


def test_an_instruction_finds_its_registers_at_the_entry_of_the_kernel():
    """256 columns of f32 sums are 128 registers, and as many are all that 512 threads start with (ptxas: C7602)."""
    what = chain(256, 16, 4096, False)
    schedule = replace(table_row(HOPPER, what)[1].schedule, block=(192, 16, 256), warps=(12, 1), overlap=0, stages=1)
    problem = problem_of_chain(replace(schedule, producer_regs=24, consumer_regs=160), HOPPER, what)
    assert problem is not None
    narrow = replace(table_row(HOPPER, what)[1].schedule, block=(64, 64, 256), warps=(4, 1), stages=1, min_ctas=2)
    assert "names 158 registers, and 256 threads, one of 2 on an SM, start with 128 each" in str(
        problem_of_chain(replace(narrow, persistent=0, overlap=0), HOPPER, what)
    )


@pytest.mark.parametrize("ranged", [False, True])
def test_warpgroups_beside_each_other_share_a_large_width(ranged: bool):
    what = chain(512, 16, 4096, ranged)
    schedule = choose_chained_schedule(HOPPER, what)
    assert (schedule.atom, schedule.block, schedule.warps, schedule.repeat) == ("wgmma", (64, 64, 512), (4, 2), 1)
    narrower = replace(what, width=320)  # 160 columns are no whole panels
    assert choose_chained_schedule(HOPPER, narrower).atom == "m16n8k16"
    parts = replace(schedule, repeat=0)
    assert "want repeat = 1" in str(problem_of_chain(parts, HOPPER, what))


@pytest.mark.parametrize(
    "fields", [{"max_k": 64}, {"tensors": (4,)}, {"ragged": True}, {"page": 64}, {"wide": False}], ids=str
)
def test_what_tma_or_wgmma_cannot_do_takes_another_row(fields: dict):
    assert choose_chained_schedule(HOPPER, chain(64, 64, 4096, False, **fields)).atom == "m16n8k16"


def test_an_atom_that_no_row_has_is_refused_by_name():
    target, asked = get_target("sm_89"), replace(CHAINED_ROWS["sm_89"][4].schedule, atom="wgmma", warps=(8, 1))
    message = problem_of_chain(replace(asked, transport="auto"), target, chain(64, 8, 4096, False))
    assert message == "atom = wgmma needs sm_90a, and the target is sm_89"
    hybrid = problem_of_chain(
        table_row(HOPPER, chain(64, 64, 4096, False))[1].schedule, HOPPER, chain(64, 64, 4096, False, max_k=64)
    )
    assert hybrid == "atom = wgmma has no hybrid sums; use accumulate<f32>, or atom = m16n8k16"


@pytest.mark.parametrize(
    ("warpgroups", "keys", "legal"), [(3, 80, True), (3, 96, False), (2, 160, True), (4, 80, False)]
)
def test_registers_as_ptxas_counts_them(warpgroups: int, keys: int, legal: bool):
    """At a depth of 128 (64 for four warpgroups): what spills or serialises on the real assembler is refused before."""
    depth = 64 if warpgroups == 4 else 128
    schedule = replace(
        table_row(HOPPER, chain(128, 64, 4096, True))[1].schedule,
        block=(64 * warpgroups, keys, depth),
        warps=(4 * warpgroups, 1),
        stages=1,
    )
    problem = problem_of_chain(schedule, HOPPER, chain(depth, 64, 4096, True))
    assert (problem is None) == legal
    assert legal or "registers" in str(problem)


def test_tensors_that_lie_anyhow_are_copied_and_multiplied_by_warps():
    schedule = choose_chained_schedule(HOPPER, chain(128, 64, 4096, False))
    assert variant_schedule(VARIANTS["dense"], schedule) is schedule
    copied = variant_schedule(VARIANTS["any"], schedule)
    assert (copied.atom, copied.transport, copied.roles, copied.overlap) == ("m16n8k16", "cp_async", "unified", 0)
    assert problem_of_chain(copied, HOPPER, chain(128, 64, 4096, False)) is None


def test_operands_in_registers_are_not_written_while_products_run():
    problem = Schedule(block=(64, 64, 64), warps=(4, 1), atom="wgmma", stagger=1).problem()
    assert problem is not None
    assert "use overlap, not stagger" in problem


@pytest.mark.parametrize("depth", [64, 128, 256])
def test_few_rows_split_their_keys(depth: int):
    """One warp a CTA, several CTAs a multiprocessor, whose own copies were measured to be faster than TMA's."""
    schedule = choose_chained_schedule(HOPPER, chain(depth, 8, 2, False))
    assert (schedule.block[0], schedule.warps, schedule.transport) == (16, (1, 1), "cp_async")
    assert schedule.splits > 1
    assert problem_of_chain(schedule, HOPPER, chain(depth, 8, 2, False)) is None
    for streamed, evict in ((1 << 27, "b"), (1 << 28, "none"), (None, "none")):
        few = replace(chain(depth, 8, 2, False), streamed=streamed)
        assert choose_chained_schedule(HOPPER, few) == replace(schedule, evict=evict)


def test_copies_through_registers_leave_the_row_as_it_is():
    """What belongs to asynchronous copies is not said of them, unless it is asked for."""
    first, plain = (
        choose_chained_schedule(HOPPER, replace(chain(128, 8, 2, False), streamed=1), partial(replace, **asked))
        for asked in ({}, {"transport": "plain"})
    )
    assert plain == replace(first, transport="plain", evict="none")


@pytest.mark.parametrize("asked", [{}, {"atom": "m16n8k16"}, {"epilogue": "direct", "store_columns": 0}], ids=str)
@pytest.mark.parametrize(("depth", "flags"), [(128, ""), (256, "causal"), (512, ""), (512, "causal")])
def test_shared_memory_is_what_is_allocated(depth: int, flags: str, asked: dict):
    """Of rings with slots of their own numbers, exchanges or none, and results in parts beside rings that fill again."""
    type_ = f"tensor<1x2x300x{depth}xf16>"
    text = f"""func.func @f(%q: {type_}, %k: {type_}, %v: {type_}) -> {type_} {{
      %o = tensor_op.attention %q, %k, %v scale 0.1 {flags} : ({type_}, {type_}, {type_}) -> {type_}
      func.return %o : {type_}
    }}"""
    module = parse_module(emmy.compile(text, "sm_90a", schedule=asked).ir("allocate-shared"), "allocated.mlir")
    kernel = next(op for op in module.walk() if isinstance(op, KernelOp))
    estimate = chained_shared_bytes(kernel.schedule.data, Chain(depth, depth))
    assert kernel.attributes[SHARED_BYTES].value.data == estimate


def test_keys_that_are_values_leave_room_for_a_second_tile():
    """Reuse is for chains with one operand b, and has one ring for both products."""
    what = chain(512, 16, 512, True, alike=True)
    usual = choose_chained_schedule(HOPPER, replace(what, alike=False))
    assert (usual.stages, usual.reuse) == (1, 0)
    assert "shared memory" in str(problem_of_chain(replace(usual, stages=2), HOPPER, what))
    once = choose_chained_schedule(HOPPER, what)
    assert (once.stages, once.reuse) == (2, 1)
    assert (once.atom, once.block, once.warps, once.overlap) == ("wgmma", (64, 64, 512), (4, 2), 0)
    assert problem_of_chain(once, HOPPER, what) is None
    assert "keys that are the values" in str(problem_of_chain(once, HOPPER, replace(what, alike=False)))
    q, k = "tensor<1x2x70x512xf16>", "tensor<1x1x70x512xf16>"
    text = f"""func.func @f(%q: {q}, %k: {k}) -> {q} {{
      %o = tensor_op.attention %q, %k, %k scale 0.1 causal : ({q}, {k}, {k}) -> {q}
      func.return %o : {q}
    }}"""
    compiled = emmy.compile(text, "sm_90a", schedule={"reuse": 1, "stages": 2}).ir("allocate-shared")
    kernel = next(op for op in parse_module(compiled, "allocated.mlir").walk() if isinstance(op, KernelOp))
    assert kernel.attributes[SHARED_BYTES].value.data == chained_shared_bytes(once, what)
    assert "it wants overlap = 0" in str(problem_of_chain(replace(once, overlap=1), HOPPER, what))


@pytest.mark.parametrize("name", ["rows8", "any"])
def test_variants_of_schedules_with_roles_are_legal(name: str):
    """Threads that copy are no role of their own: what roles are for is left out."""
    apart = Schedule((128, 64, 64), (8, 1), "wgmma", stages=2, roles="specialized", turns=1, overlap=1, fragments=1)
    assert apart.problem() is None
    assert variant_schedule(VARIANTS[name], apart).problem() is None
