"""Properties of layouts, each against a brute-force answer that does not use `emmy.layout`'s own arithmetic."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from emmy.atoms import ATOMS, fragment_layout, get_atom, ldmatrix_plan
from emmy.errors import EmmyError
from emmy.layout import (
    Dimension,
    Layout,
    Repeat,
    SharedLayout,
    bank_conflicts,
    fit,
    ldmatrix_conflicts,
    ldmatrix_legal,
    shared_layout,
    tma_swizzle,
)

SIZES = (16, 32, 48, 80, 96, 192, 256, 320)
ATOM = get_atom("m16n8k16", "f16", "f32")

bounded = settings(deadline=None, max_examples=40)


@st.composite
def bijections(draw: st.DrawFn) -> Layout:
    """Any onto, one-to-one layout of (row, col) to one axis: a random invertible panel, repeats of random counts that are
    nested in random order, and random broadcasting on both sides."""
    row_bits, col_bits = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    panel = row_bits + col_bits
    columns = [1 << bit for bit in range(panel)]
    for _ in range(draw(st.integers(0, 12)) if panel > 1 else 0):  # elementary steps keep a matrix invertible
        i, j = draw(st.permutations(range(panel)))[:2]
        columns[i] ^= columns[j]
    extent = 1 << panel
    repeats: dict[str, list[Repeat]] = {"row": [], "col": []}
    copies: list[Repeat] = []
    for owner in draw(st.lists(st.sampled_from(["row", "col", "copy", "shared row", "shared col"]), max_size=4)):
        count = draw(st.sampled_from([2, 3, 5]))
        if owner == "copy":
            copies.append(Repeat(count, (extent,)))
        elif owner.startswith("shared"):
            repeats[owner.removeprefix("shared ")].append(Repeat(count, (0,)))
            continue
        else:
            repeats[owner].append(Repeat(count, (extent,)))
        extent *= count
    places = [(column,) for column in columns]
    return Layout(
        (
            Dimension("row", tuple(places[:row_bits]), tuple(repeats["row"])),
            Dimension("col", tuple(places[row_bits:]), tuple(repeats["col"])),
        ),
        ("byte",),
        tuple(copies),
    )


@st.composite
def fragments(draw: st.DrawFn, sizes: tuple[int, ...] = SIZES) -> Layout:
    """A fragment of any atom and place: whole, a row vector or a column vector."""
    atom, place = draw(st.sampled_from(ATOMS)), draw(st.sampled_from(["a", "b", "c"]))
    operand = atom.operand(place)
    # Whole operands: those of 8-bit elements are 32 long.
    rows, cols = (-(-draw(st.sampled_from(sizes)) // whole) * whole for whole in (operand.rows, operand.cols))
    rows, cols = draw(st.sampled_from([(rows, cols), (rows, 1), (1, cols)]))
    return fragment_layout(atom, place, rows, cols)


@st.composite
def tiles(draw: st.DrawFn) -> SharedLayout:
    """Any tile of shared memory, odd extents included."""
    rows = draw(st.sampled_from(SIZES) | st.integers(1, 130))
    cols = draw(st.sampled_from(SIZES) | st.integers(1, 330))
    swizzle = draw(st.sampled_from(["auto", "none", 32]))
    return shared_layout(rows, cols, draw(st.sampled_from([1, 2, 4])), swizzle)


def shared_tiles_of(cols: int, swizzle: str = "auto") -> SharedLayout:
    return shared_layout(64, cols, 2, swizzle)


any_layout = bijections() | fragments() | tiles().map(lambda tile: tile.layout)


# ---- The algebra ----


def brute_force_map(layout: Layout) -> dict[tuple[int, ...], set[tuple[int, ...]]]:
    """Place -> the coordinates of all elements that it holds, by enumeration."""
    held: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    coordinates = np.stack(np.meshgrid(*map(np.arange, layout.shape), indexing="ij"), -1).reshape(-1, len(layout.shape))
    places = np.stack(layout.places(*coordinates.T), -1)
    for coordinate, copies in zip(coordinates.tolist(), places.tolist(), strict=True):
        for place in copies:
            held.setdefault(tuple(place), set()).add(tuple(coordinate))
    return held


@bounded
@given(bijections())
def test_every_place_holds_one_element_up_to_broadcasting(layout: Layout):
    assert layout.is_onto()
    assert layout.is_one_to_one()
    held = brute_force_map(layout)
    assert len(held) == math.prod(layout.place_shape)
    together = math.prod(r.count for d in layout.dimensions for r in d.repeats if not any(r.stride))
    assert {len(elements) for elements in held.values()} == {together}


@bounded
@given(any_layout)
def test_layouts_in_use_are_onto_and_one_to_one(layout: Layout):
    assert layout.is_onto()
    assert layout.is_one_to_one()


@bounded
@given(any_layout)
def test_the_inverse_undoes_every_copy(layout: Layout):
    inverse = layout.inverse()
    grid = np.ix_(*map(np.arange, layout.shape))
    found = inverse.apply(*layout.places(*grid))
    # of elements that share a place the inverse names one, which has the same place
    for back, place in zip(layout.apply(*found), layout.apply(*grid), strict=True):
        assert np.array_equal(back, np.broadcast_to(place[..., None], back.shape))
    if not inverse.copies:
        for axis, coordinate in zip(found, np.broadcast_arrays(*grid), strict=True):
            assert np.array_equal(axis, np.broadcast_to(coordinate[..., None], axis.shape))


@bounded
@given(any_layout)
def test_the_inverse_of_the_inverse_is_the_layout(layout: Layout):
    assert layout.inverse().inverse() == layout


@bounded
@given(bijections())
def test_fit_recovers_a_layout_from_its_table(layout: Layout):
    assert fit(layout.names, layout.axes, layout.values, layout.copies) == layout


@bounded
@given(bijections(), st.data())
def test_fit_never_accepts_a_wrong_table(layout: Layout, data: st.DataObject):
    table = layout.values[0].copy()
    index = tuple(data.draw(st.integers(0, extent - 1)) for extent in table.shape)
    table[index] += data.draw(st.integers(1, 9))
    try:
        found = fit(layout.names, layout.axes, (table,))
    except EmmyError:
        return
    assert np.array_equal(found.values[0], table)


# ---- Shared memory ----


def formula(tile: SharedLayout, row: int, col: int) -> int:
    """The address by the words of the hardware manual: fill panels row by row, then XOR address bits."""
    panel, inside = divmod(col, tile.row_bytes // tile.element_bytes)
    linear = panel * tile.padded_rows * tile.row_bytes + row * tile.row_bytes + inside * tile.element_bytes
    mask = {128: 0b111, 64: 0b011, 32: 0b001, 0: 0}[tile.swizzle]
    return linear ^ (((linear >> 7) & mask) << 4)


@bounded
@given(tiles(), st.data())
def test_offsets_are_the_bit_formula_of_the_hardware(tile: SharedLayout, data: st.DataObject):
    rows = data.draw(st.lists(st.integers(0, tile.padded_rows - 1), min_size=1, max_size=40))
    cols = data.draw(st.lists(st.integers(0, tile.padded_cols - 1), min_size=len(rows), max_size=len(rows)))
    for row, col, offset in zip(rows, cols, tile.offset(rows, cols), strict=True):
        assert offset == formula(tile, row, col)


@bounded
@given(tiles())
def test_padding_is_small_and_panels_are_aligned(tile: SharedLayout):
    assert 0 <= (tile.padded_cols - tile.cols) * tile.element_bytes < 32
    assert 0 <= tile.padded_rows - tile.rows < (8 if tile.swizzle else 1)
    assert tile.panel_bytes % (tile.alignment if tile.swizzle else 1) == 0
    assert tile.size_bytes == tile.padded_rows * tile.padded_cols * tile.element_bytes


@bounded
@given(tiles())
def test_the_tensor_map_swizzle_is_that_of_the_span(tile: SharedLayout):
    unswizzled = "none" if tile.panels == 1 or tile.panel_bytes % 128 == 0 else None
    assert tma_swizzle(tile) == {128: "128B", 64: "64B", 32: "32B", 0: unswizzled}[tile.swizzle]


@bounded
@given(st.sampled_from(SIZES), st.sampled_from(SIZES), st.sampled_from(["a", "b"]), st.booleans(), st.data())
def test_every_block_of_a_tile_is_reached_from_the_same_lane_addresses(rows, cols, place, transposed, data):
    tile = shared_layout(rows, cols, 2)
    plan = ldmatrix_plan(place, transposed)
    row_const = 16 * data.draw(st.integers(0, rows // 16 - 1))
    col_const = 16 * data.draw(st.integers(0, cols // 16 - 1))
    xor, add = tile.xor_step(col_const)
    for row, col in zip(plan.rows.tolist(), plan.cols.tolist(), strict=True):
        moved = (formula(tile, row, col) ^ xor) + add + row_const * tile.row_bytes
        assert moved == formula(tile, row + row_const, col + col_const)


# ---- Cost and legality ----


def brute_force_conflicts(addresses: list[int], access_bytes: int) -> int:
    """Extra wavefronts by counting: in each phase, how many different words does the busiest bank serve?"""
    lanes_per_phase = min(32, 128 // access_bytes)
    extra = 0
    for start in range(0, len(addresses), lanes_per_phase):
        words: list[set[int]] = [set() for _ in range(32)]
        for address in addresses[start : start + lanes_per_phase]:
            for byte in range(address, address + access_bytes):
                words[byte // 4 % 32].add(byte // 4)
        extra += max(map(len, words)) - 1
    return extra


@bounded
@given(st.sampled_from([4, 8, 16]), st.data())
def test_bank_conflicts_are_the_counted_ones(access_bytes: int, data: st.DataObject):
    addresses = data.draw(st.lists(st.integers(0, 400).map(lambda i: i * access_bytes), min_size=1, max_size=32))
    assert bank_conflicts(addresses, access_bytes) == brute_force_conflicts(addresses, access_bytes)


@bounded
@given(st.sampled_from([1, 2]), st.data())
def test_bank_conflicts_of_narrow_accesses(access_bytes: int, data: st.DataObject):
    addresses = data.draw(st.lists(st.integers(0, 400).map(lambda i: i * access_bytes), min_size=1, max_size=32))
    assert bank_conflicts(addresses, access_bytes) == brute_force_conflicts([a // 4 * 4 for a in addresses], 4)


@bounded
@given(st.sampled_from(SIZES), st.sampled_from(["a", "b"]), st.booleans(), st.data())
def test_ldmatrix_on_swizzled_tiles_has_no_conflicts(cols: int, place: str, transposed: bool, data: st.DataObject):
    plan = ldmatrix_plan(place, transposed)
    row, col = 16 * data.draw(st.integers(0, 3)), 16 * data.draw(st.integers(0, cols // 16 - 1))
    tile = shared_tiles_of(cols)
    assert ldmatrix_conflicts(tile, plan.rows + row, plan.cols + col) == 0
    ways = tile.row_bytes // 16  # unswizzled rows of 128, 64, 32 bytes: 8, 4, 2 of 8 rows hit the same banks
    assert ldmatrix_conflicts(shared_tiles_of(cols, "none"), plan.rows + row, plan.cols + col) == 4 * (ways - 1)


@bounded
@given(st.sampled_from(SIZES), st.sampled_from(SIZES), st.sampled_from(["a", "b", "c"]), st.booleans())
def test_ldmatrix_legality(rows: int, cols: int, place: str, transposed: bool):
    operand = fragment_layout(ATOM, place, rows, cols)
    stored = (cols, rows) if transposed else (rows, cols)
    assert ldmatrix_legal(shared_layout(*stored, 2), operand, transposed)
    assert not ldmatrix_legal(shared_layout(*stored, 4), operand, transposed)
