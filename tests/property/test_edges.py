"""Every edge: products of any sizes (0 to 200), strides, alignments, transposes, batches, dtypes, policies, transports and roles
give NumPy's result on the emulator, and leave what lies around and between the elements of a result as it was.

2,000 cases by default. `EMMY_EDGE_CASES=20000 EMMY_EDGE_SEED=1 pytest tests/property/test_edges.py` runs others; a failure
prints the seed, and the call that repeats its case.
"""

from __future__ import annotations

import ctypes
import itertools
import os

import edge_support as support
import numpy as np
import pytest
from edge_support import Case, Program, View

CASES = int(os.environ.get("EMMY_EDGE_CASES", "2000"))
SEED = int(os.environ.get("EMMY_EDGE_SEED", "0"))
DYNAMIC_IN_GROUP, STATIC_IN_GROUP = 76, 4
"""Cases of a group, which share a compiled product with `?` sizes; and cases of products with sizes, two each."""


@pytest.mark.parametrize("group", range(-(-CASES // (DYNAMIC_IN_GROUP + STATIC_IN_GROUP))))
def test_any_product(group: int):
    cases = support.run_group(SEED, group, DYNAMIC_IN_GROUP, STATIC_IN_GROUP)
    assert cases == DYNAMIC_IN_GROUP + STATIC_IN_GROUP


@pytest.mark.parametrize("group", range(max(CASES // 1000, 1)))
def test_any_product_of_warpgroups(group: int):
    """wgmma where TMA moves the operands, mma.sync where it cannot; 80 cases for each 1,000 above."""
    assert support.run_group(SEED, group, DYNAMIC_IN_GROUP, STATIC_IN_GROUP, wgmma=True) == 80


BLOCK = (64, 64, 32)
CORNERS = ((BLOCK[0] + 1, 2 * BLOCK[1] - 1), (96, 96), (63, 8))
"""M and N: grids of 2x2 tiles whose last row and column are ragged, by an element or by half; one tile, ragged in both."""

TRANSPOSES = {1: (False, True), 2: (True, False), 3: (False, False), 4: (True, True)}
"""Of the operands, by stages: every one of them meets every transport and role."""


def corner_product(transport: str, roles: str, stages: int, static: tuple[int | None, ...] = (None,) * 3) -> Program:
    """A product in f16 whose tile is `BLOCK`."""
    schedule = {"block": BLOCK, "warps": (4, 4), "stages": stages, "transport": transport, "roles": roles}
    return Program("f16", "f16", "f32", *TRANSPOSES[stages], static, False, "sm_90a", tuple(schedule.items()))


def corner_depths(stages: int) -> list[int]:
    """K of 0, 1, stages - 1, stages, stages + 1 trips, the last one whole, and with a single element."""
    trips = sorted({0, 1, stages - 1, stages, stages + 1})
    return [BLOCK[2] * trip for trip in trips] + [BLOCK[2] * (trip - 1) + 1 for trip in trips if trip]


def corner_cases(program: Program, sizes: tuple[int, int, int]) -> list[Case]:
    """Dense; rows that TMA and 16-byte copies take whatever the size; anything, with a result of the caller's own."""
    shapes = program.shapes(sizes)
    dense = tuple(View(support.dense_strides(shape)) for shape in shapes)
    rows = tuple(View((-(-shape[1] // 8) * 8 + 8, 1), 8) for shape in shapes)
    columns = tuple(View((1, max(shape[0], 1) + 3), 1) for shape in shapes)
    found: list[Case] = []
    for landing, views in zip(("late", "early", "random"), (dense, rows, columns), strict=True):
        out = None if views is dense else views[2]
        found.append(Case(sizes, views[:2], out, "integers", sum(sizes), (("landing", landing),)))
    return found


@pytest.mark.parametrize("stages", TRANSPOSES)
@pytest.mark.parametrize("roles", ["unified", "specialized"])
@pytest.mark.parametrize("transport", ["cp_async", "tma", "plain"])
def test_trip_counts_in_every_corner(transport: str, roles: str, stages: int):
    """One product with `?` sizes for all of them; sizes take turns, so that each one meets every manner of lying."""
    compiled = corner_product(transport, roles, stages).compile()
    for turn, k in enumerate(corner_depths(stages)):
        for manner in range(3):
            m, n = CORNERS[(turn + manner) % 3]
            support.run(compiled, corner_cases(compiled.program, (m, n, k))[manner])


@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize("roles", ["unified", "specialized"])
@pytest.mark.parametrize("transport", ["cp_async", "tma", "plain"])
def test_trip_counts_that_the_compiler_knows(transport: str, roles: str, stages: int):
    """Sizes in the text: whole tiles and loops of known lengths may be lowered to less."""
    m, n = CORNERS[1]
    for k in corner_depths(stages)[: len(corner_depths(stages)) // 2 + 1]:
        compiled = corner_product(transport, roles, stages, (m, n, k)).compile()
        support.run(compiled, corner_cases(compiled.program, (m, n, k))[0])


# ---- what these tests see ----------------------------------------------------------------------------------------------


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch):
    """Runs a case whose kernel is NumPy's product, spoiled."""

    def run(spoil, out: View | None = None) -> None:
        def on_emulator(artefact, entry, arrays, outs, **options):
            exact = (arrays[0].astype(np.float64) @ arrays[1].astype(np.float64).T).astype(np.float16)
            got = exact if outs is None else outs[0]
            got[...] = exact
            spoil(got)
            return [got], []

        monkeypatch.setattr(support, "run_on_emulator", on_emulator)
        program = corner_product("cp_async", "unified", 1)
        case = Case((40, 24, 16), (View((16, 1)), View((19, 1), 5)), out)
        support.run(support.Compiled(program, None, "cp_async"), case)

    return run


def test_a_right_product_passes(faulty):
    faulty(lambda got: None)
    faulty(lambda got: None, View((27, 1), 3))


def test_a_wrong_element_is_found(faulty):
    def spoil(got):
        got[39, 23] += 1

    with pytest.raises(AssertionError, match=r"1 of 960 elements are wrong, the first at \[39, 23\]"):
        faulty(spoil)


@pytest.mark.parametrize("where", [-1, 24, 26, 39 * 27 + 24])
def test_a_write_beside_the_elements_is_found(faulty, where):
    def spoil(got):
        address = got.__array_interface__["data"][0] + 2 * where
        ctypes.c_uint16.from_address(address).value = 0

    with pytest.raises(AssertionError, match="bytes around or between the result's elements were written"):
        faulty(spoil, View((27, 1), 3))


def test_arguments_lie_as_drawn_between_nans():
    chance = np.random.default_rng(0)
    for _ in range(300):
        program = support.draw_program(chance, dynamic=True)
        case = support.draw_case(chance, program)
        shapes = program.shapes(case.sizes)
        assert all(size <= 3 for size in case.sizes[:-3])
        assert all(size <= support.MOST + 8 for size in case.sizes[-3:])
        array = support.lying(shapes[0], case.views[0], np.dtype(np.float16), case.data, chance)
        assert array.shape == shapes[0]
        assert np.isfinite(array).all()
        if array.size:
            assert array.ctypes.data % support.ALIGNED == 2 * case.views[0].offset % support.ALIGNED
            assert tuple(stride // 2 for stride in array.strides) == case.views[0].strides
        if case.out is not None:
            places = np.zeros(shapes[2], np.int64)
            for axis, stride in enumerate(case.out.strides):
                places += np.arange(shapes[2][axis]).reshape(-1, *[1] * (len(shapes[2]) - axis - 1)) * stride
            assert np.unique(places).size == places.size, case


def test_drawn_cases_cover_what_they_say():
    """Among 2,000 cases of the default seed: every dtype, policy, transport, role and target; batches; empty products."""
    drawn = [pair for group in range(25) for pair in support.draw_group(0, group, DYNAMIC_IN_GROUP, STATIC_IN_GROUP)]
    assert len(drawn) == 2000
    programs = {program for program, _ in drawn}
    assert {(program.operand, program.result) for program in programs} == set(support.TYPES)
    assert {program.policy for program in programs} == set(support.POLICIES)
    assert {(p.transpose_a, p.transpose_b) for p in programs} == set(itertools.product((False, True), repeat=2))
    assert {program.batch_rank for program in programs} == {0, 1, 2}
    assert {program.target for program in programs} == set(support.TARGET_NAMES)
    for field in ("transport", "roles", "epilogue", "stages", "persistent"):
        assert {dict(program.schedule)[field] for program in programs} == set(support.FIELDS[field])
    sizes = {size for _, case in drawn for size in case.sizes[-3:]}
    assert {0, 1, 200} <= sizes
    assert len(sizes) > 150
    assert {size for _, case in drawn for size in case.sizes[:-3]} == {0, 1, 2, 3}
    assert {view.offset % 8 for _, case in drawn for view in case.views} == set(range(8))
    assert any(0 in view.strides for _, case in drawn for view in case.views)
