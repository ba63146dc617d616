"""Layouts: the algebra on small examples, shared-memory tiles, legality and cost against hand-computed values."""

import numpy as np
import pytest

from emmy.atoms import fragment_layout, get_atom, ldmatrix_plan
from emmy.errors import EmmyError
from emmy.layout import (
    Dimension,
    Layout,
    Repeat,
    Step,
    bank_conflicts,
    fit,
    ldmatrix_conflicts,
    ldmatrix_legal,
    shared_layout,
    tma_swizzle,
)

ATOM = get_atom("m16n8k16", "f16", "f32")
LANES = np.arange(32)


def row_major(rows: int, cols: int) -> Layout:
    return Layout(
        (Dimension("row", (), (Repeat(rows, (cols,)),)), Dimension("col", (), (Repeat(cols, (1,)),))), ("byte",)
    )


# ---- The algebra ----


def test_apply_xors_bits_and_adds_repeats():
    layout = Layout(
        (Dimension("row", ((3,), (6,)), (Repeat(3, (100,)), Repeat(2, (1000,)))), Dimension("col", ((1,),))), ("byte",)
    )
    assert layout.shape == (24, 2)
    assert int(layout.apply(3, 1)[0]) == 3 ^ 6 ^ 1
    assert int(layout.apply(3 + 4 * 2, 1)[0]) == (3 ^ 6 ^ 1) + 200
    assert int(layout.apply(3 + 4 * 2 + 12, 0)[0]) == (3 ^ 6) + 1200


def test_apply_broadcasts_arrays_and_rejects_what_lies_outside():
    layout = row_major(5, 3)
    (offsets,) = layout.apply(np.arange(5)[:, None], np.arange(3))
    assert np.array_equal(offsets, np.arange(15).reshape(5, 3))
    for outside in ((5, 0), (0, 3), (-1, 0)):
        with pytest.raises(EmmyError, match="outside"):
            layout.apply(*outside)
    with pytest.raises(EmmyError, match="row, col"):
        layout.apply(0)


def test_gaps_are_not_onto_and_collisions_are_not_one_to_one():
    gap = Layout((Dimension("row", ((2,),)),), ("byte",))
    collision = Layout((Dimension("row", ((1,), (1,))),), ("byte",))
    assert (gap.is_onto(), gap.is_one_to_one()) == (False, True)
    assert (collision.is_onto(), collision.is_one_to_one()) == (True, False)
    for layout in (gap, collision):
        with pytest.raises(EmmyError, match="no inverse"):
            layout.inverse()


def test_copies_that_collide_with_elements_are_not_one_to_one():
    assert not Layout((Dimension("row", ((1,),)),), ("lane",), (Repeat(2, (1,)),)).is_one_to_one()


def test_broadcasting_both_ways_survives_the_inverse():
    # four rows share a place in pairs (bit 0 contributes nothing), each place has a copy
    layout = Layout((Dimension("row", ((0,), (1,))),), ("lane",), (Repeat(2, (2,)),))
    assert layout.is_onto()
    assert layout.is_one_to_one()
    assert [list(map(int, layout.places(row)[0])) for row in range(4)] == [[0, 2], [0, 2], [1, 3], [1, 3]]
    inverse = layout.inverse()
    assert list(map(int, inverse.apply(np.arange(4))[0])) == [0, 2, 0, 2]
    assert inverse.inverse() == layout


def test_equality_is_about_places_not_about_spelling():
    bits = Layout((Dimension("row", ((1,), (2,), (4,))),), ("byte",))
    repeats = Layout((Dimension("row", (), (Repeat(8, (1,)),)),), ("byte",))
    assert bits == repeats
    assert hash(bits) == hash(repeats)
    assert bits != Layout(bits.dimensions, ("lane",))
    assert bits != Layout(bits.dimensions, ("byte",), (Repeat(2, (8,)),))
    assert bits != Layout((Dimension("row", ((1,), (4,), (2,))),), ("byte",))


def test_fit_rejects_what_is_no_layout():
    with pytest.raises(EmmyError, match="no layout"):
        fit(("row",), ("byte",), (np.array([0, 1, 3, 4, 9]),))
    with pytest.raises(EmmyError, match="no layout"):
        fit(("row", "col"), ("byte",), (np.array([[0, 1], [2, 7]]),))


def test_fit_is_not_misled_by_bits_that_look_like_a_run_of_three():
    # bits 3 and 6, then three repeats: the places start 0, 3, 6 as if a digit of radix 3 came first
    layout = Layout((Dimension("row", ((3,), (6,)), (Repeat(3, (8,)),)),), ("byte",))
    assert layout.values[0].tolist() == [0, 3, 6, 5, 8, 11, 14, 13, 16, 19, 22, 21]
    assert fit(("row",), ("byte",), layout.values) == layout


def test_places_need_a_number_for_each_axis():
    with pytest.raises(EmmyError, match="register, lane"):
        Layout((Dimension("row", ((1,),)),), ("register", "lane"))


def test_repr_reads_like_the_picture_in_the_package_docstring():
    c = fragment_layout(ATOM, "c", 32, 8)
    assert repr(c) == (
        "<Layout row 32: ^lane 4 ^lane 8 ^lane 16 ^register 2 2x register 4; col 8: ^register 1 ^lane 1 ^lane 2>"
    )
    assert "copies: 2x byte 1" in repr(shared_layout(8, 64, 2).layout)


# ---- Shared memory ----


@pytest.mark.parametrize(
    ("cols", "element_bytes", "row_bytes", "panels"),
    [
        (64, 2, 128, 1),
        (320, 2, 128, 5),
        (96, 2, 64, 3),
        (80, 2, 32, 5),
        (59, 2, 128, 1),
        (128, 1, 128, 1),
        (80, 4, 64, 5),
    ],
)
def test_panels_are_the_widest_that_divide_the_padded_row(cols: int, element_bytes: int, row_bytes: int, panels: int):
    shared = shared_layout(24, cols, element_bytes)
    assert (shared.row_bytes, shared.panels, shared.swizzle) == (row_bytes, panels, row_bytes)
    assert shared.panel_columns * element_bytes == row_bytes
    assert shared.panel_bytes == 24 * row_bytes
    assert shared.size_bytes == panels * shared.panel_bytes
    assert shared.alignment == 8 * row_bytes


def test_padding():
    shared = shared_layout(59, 59, 2)
    assert (shared.rows, shared.cols, shared.padded_rows, shared.padded_cols) == (59, 59, 64, 64)
    vector = shared_layout(1, 320, 4)
    assert (vector.swizzle, vector.padded_rows, vector.size_bytes) == (0, 1, 1280)
    assert np.array_equal(vector.offset(0, np.arange(320)), 4 * np.arange(320))


def test_impossible_tiles_are_errors():
    with pytest.raises(EmmyError, match="32-byte swizzle would"):
        shared_layout(16, 80, 2, swizzle=128)
    with pytest.raises(EmmyError, match="1, 2 or 4 bytes"):
        shared_layout(16, 16, 8)
    with pytest.raises(EmmyError, match="positive"):
        shared_layout(0, 16, 2)


def test_narrow_swizzle_on_request():
    shared = shared_layout(16, 128, 2, swizzle=32)
    assert (shared.row_bytes, shared.panels) == (32, 8)
    assert tma_swizzle(shared) == "32B"


def test_k_steps_are_the_xor_of_the_measured_kernel():
    # address(kk) = address(0) XOR (kk << 5): k16 steps of 32 bytes inside a 128-byte row
    shared = shared_layout(128, 64, 2)
    assert [shared.xor_step(16 * kk) for kk in range(4)] == [Step(kk << 5, 0) for kk in range(4)]
    assert shared_layout(128, 192, 2).xor_step(144) == Step(32, 2 * 128 * 128)
    with pytest.raises(EmmyError, match="multiple of 8 columns"):
        shared.xor_step(4)


# ---- Legality and cost ----


def test_tma_swizzle():
    assert [tma_swizzle(shared_layout(64, cols, 2)) for cols in (64, 32, 16, 80, 96, 320)] == [
        "128B", "64B", "32B", "32B", "64B", "128B",
    ]  # fmt: skip
    assert tma_swizzle(shared_layout(64, 64, 2, swizzle="none")) == "none"
    assert tma_swizzle(shared_layout(64, 128, 1)) == "128B"
    # three panels of 5 rows x 64 bytes: the second would start at a multiple of 320 bytes, which TMA cannot write
    assert tma_swizzle(shared_layout(5, 96, 2)) is None


@pytest.mark.parametrize("swizzle", ["auto", "none"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("place", ["a", "b"])
def test_ldmatrix_is_legal_for_16_bit_operands(place, transposed, swizzle):
    operand = fragment_layout(ATOM, place, 48, 80 if not transposed else 32)
    stored = operand.shape[::-1] if transposed else operand.shape
    assert ldmatrix_legal(shared_layout(*stored, 2, swizzle), operand, transposed)


def test_ldmatrix_is_illegal_where_the_distribution_or_the_width_differs():
    shared = shared_layout(64, 64, 2)
    a = fragment_layout(ATOM, "a", 16, 16)
    assert not ldmatrix_legal(shared_layout(64, 64, 4), a, False)
    assert not ldmatrix_legal(shared_layout(64, 64, 1), a, True)
    assert not ldmatrix_legal(shared_layout(8, 64, 2), a, False), "the fragment is taller than the tile"
    assert not ldmatrix_legal(shared, fragment_layout(ATOM, "c", 16, 1), False), "a row vector holds copies"
    row, col = a.dimensions
    rotated = Layout((Dimension("row", (row.bits[1], row.bits[0], *row.bits[2:])), col), a.axes)
    assert ldmatrix_legal(shared, rotated, False), "rows may come from anywhere"
    crossed = Layout((row, Dimension("col", (col.bits[0], col.bits[2], col.bits[1], col.bits[3]))), a.axes)
    assert not ldmatrix_legal(shared, crossed, False), "lanes 1 and 2 would have to change places"
    assert ldmatrix_legal(shared, crossed, True), "with .trans those lanes choose rows, which may come from anywhere"


def test_bank_conflicts_by_hand():
    assert bank_conflicts(4 * LANES, 4) == 0
    assert bank_conflicts(128 * LANES, 4) == 31
    assert bank_conflicts(0 * LANES, 4) == 0, "one word for all is a broadcast"
    assert bank_conflicts(2 * LANES, 2) == 0, "two lanes share a word"
    assert bank_conflicts(8 * LANES, 8) == 0
    assert bank_conflicts(16 * LANES, 16) == 0
    assert bank_conflicts(128 * LANES, 16) == 28, "four phases, eight ways each"
    assert bank_conflicts(8 * LANES, 4) == 1
    assert bank_conflicts(128 * LANES, 4, active=LANES < 3) == 2
    assert bank_conflicts(128 * LANES, 4, active=LANES < 0) == 0
    with pytest.raises(EmmyError, match="not an access"):
        bank_conflicts(LANES, 3)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("place", ["a", "b"])
def test_ldmatrix_conflicts_are_the_measured_ones(place, transposed):
    plan = ldmatrix_plan(place, transposed)
    conflicts = {
        swizzle: ldmatrix_conflicts(shared_layout(64, 64, 2, swizzle), plan.rows, plan.cols)
        for swizzle in ("auto", "none", 64, 32)
    }
    assert conflicts == {"auto": 0, "none": 28, 64: 0, 32: 0}
    assert ldmatrix_conflicts(shared_layout(64, 64, 2, "none"), plan.rows[:8], plan.cols[:8]) == 7
