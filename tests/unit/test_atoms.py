"""Atoms: operand layouts against the formulas of the PTX manual, fragments, and ldmatrix plans against a simulation."""

import numpy as np
import pytest

from emmy.atoms import ATOMS, DTYPE_BITS, PTX_F8, accumulator_feeds, fragment_layout, get_atom, ldmatrix_plan, sm_number
from emmy.errors import EmmyError
from emmy.layout import shared_layout

LANES = np.arange(32)
K16 = get_atom("m16n8k16", "f16", "f32")
K8 = get_atom("m16n8k8", "f16", "f32")
K32 = get_atom("m16n8k32", "f8E4M3FN", "f32")


# ---- The PTX manual, "Matrix Fragments for mma.m16n8k16 / .m16n8k8": (row, col) of element i of a lane ----


def manual_a(lane: int, i: int) -> tuple[int, int]:
    group, thread = lane >> 2, lane % 4
    row = group if i % 4 < 2 else group + 8
    return row, thread * 2 + (i & 1) + (8 if i >= 4 else 0)


def manual_b(lane: int, i: int) -> tuple[int, int]:
    """As (n, k); the manual's row is k and its column n."""
    group, thread = lane >> 2, lane % 4
    return group, thread * 2 + (i & 1) + (8 if i >= 2 else 0)


def manual_c(lane: int, i: int) -> tuple[int, int]:
    group, thread = lane >> 2, lane % 4
    return (group if i < 2 else group + 8), thread * 2 + (i & 1)


def manual_a8(lane: int, i: int) -> tuple[int, int]:
    """ "Matrix Fragments for mma.m16n8k32", operands of 8 bits."""
    group, thread = lane >> 2, lane % 4
    row = group if i < 4 or 8 <= i < 12 else group + 8
    return row, thread * 4 + (i & 3) + (0 if i < 8 else 16)


def manual_b8(lane: int, i: int) -> tuple[int, int]:
    """As (n, k)."""
    group, thread = lane >> 2, lane % 4
    return group, thread * 4 + (i & 3) + (0 if i < 4 else 16)


MANUAL = {16: {"a": manual_a, "b": manual_b, "c": manual_c}, 8: {"a": manual_a8, "b": manual_b8, "c": manual_c}}


@pytest.mark.parametrize("place", ["a", "b", "c"])
@pytest.mark.parametrize("atom", ATOMS, ids=lambda atom: atom.ptx)
def test_operand_layouts_are_those_of_the_manual(atom, place):
    operand = atom.operand(place)
    assert operand.layout.is_onto()
    assert operand.layout.is_one_to_one()
    for lane in range(32):
        for i in range(operand.elements):
            row, col = MANUAL[DTYPE_BITS[atom.operand_dtype]][place](lane, i)
            assert tuple(map(int, operand.layout.apply(row, col))) == (i, lane)


@pytest.mark.parametrize("atom", ATOMS, ids=lambda atom: atom.ptx)
def test_atoms_are_consistent(atom):
    assert (atom.a.rows, atom.a.cols) == (atom.m, atom.k)
    assert (atom.b.rows, atom.b.cols) == (atom.n, atom.k)
    assert (atom.c.rows, atom.c.cols) == (atom.m, atom.n)
    assert atom.name == f"m{atom.m}n{atom.n}k{atom.k}"
    for operand in (atom.a, atom.b, atom.c):
        assert operand.elements * 32 == operand.rows * operand.cols


def test_registers_and_spelling():
    assert [(a.name, a.operand_dtype, a.accumulator_dtype) for a in ATOMS] == [
        ("m16n8k16", "f16", "f32"),
        ("m16n8k16", "f16", "f16"),
        ("m16n8k16", "bf16", "f32"),
        ("m16n8k8", "f16", "f32"),
        *(("m16n8k32", a, sums) for sums in ("f32", "f16") for a in PTX_F8 for _ in PTX_F8),
    ]
    assert [(a.a.registers, a.b.registers, a.c.registers) for a in ATOMS] == [
        (4, 2, 4),
        (4, 2, 2),
        (4, 2, 4),
        (2, 1, 4),
        *[(4, 2, 4)] * 4,
        *[(4, 2, 2)] * 4,
    ]
    assert [a.ptx for a in ATOMS] == [
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16",
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32",
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32",
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32",
        "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e4m3.f32",
        "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32",
        "mma.sync.aligned.m16n8k32.row.col.f16.e4m3.e4m3.f16",
        "mma.sync.aligned.m16n8k32.row.col.f16.e4m3.e5m2.f16",
        "mma.sync.aligned.m16n8k32.row.col.f16.e5m2.e4m3.f16",
        "mma.sync.aligned.m16n8k32.row.col.f16.e5m2.e5m2.f16",
    ]
    assert all(a.issue == "warp" and not a.asynchronous for a in ATOMS)


def test_get_atom():
    assert get_atom("m16n8k16", "bf16", "f32", target="sm_120a").b.dtype == "bf16"
    assert get_atom("m16n8k32", "f8E4M3FN", "f32", "sm_89", b_dtype="f8E5M2").b.dtype == "f8E5M2"
    for arguments, sentence in [
        (("m16n8k16", "bf16", "f16"), "with bf16 operands has no f16 accumulator; it accumulates in f32"),
        (("m16n8k16", "f64", "f64"), "has no f64 operands; it takes f16, bf16"),
        (("m16n8k64", "f16", "f32"), "there is no atom m16n8k64; known atoms are m16n8k16, m16n8k8, m16n8k32"),
        (("m16n8k16", "f8E5M2", "f32"), "has no f8E5M2 operands; it takes f16, bf16; m16n8k32 has them"),
        (("m16n8k32", "f8E5M2", "bf16"), "with f8E5M2 operands has no bf16 accumulator; it accumulates in f32 or f16"),
        (("m16n8k32", "f8E5M2", "f16", "sm_80"), "target sm_80 does not have atom m16n8k32 .* needs sm_89 or newer"),
        (("m16n8k32", "f8E5M2", "f32", "sm_80"), "target sm_80 does not have atom m16n8k32 .* needs sm_89 or newer"),
        (("m16n8k16", "f16", "f32", "sm_75"), "target sm_75 does not have atom m16n8k16 .* sm_80 or newer"),
        (("m16n8k16", "f16", "f32", "hopper"), "'hopper' is not the name of a target"),
    ]:
        with pytest.raises(EmmyError, match=sentence):
            get_atom(*arguments)


def test_sm_number():
    assert [sm_number(t) for t in ("sm_80", "sm_89", "sm_90a", "sm_100f", "sm_120a")] == [80, 89, 90, 100, 120]
    for target in ("sm_", "90", "sm_9x", "compute_90"):
        with pytest.raises(EmmyError):
            sm_number(target)


# ---- Fragments ----


@pytest.mark.parametrize("place", ["a", "b", "c"])
@pytest.mark.parametrize(("rows", "cols"), [(16, 16), (64, 16), (48, 80), (32, 192)])
def test_fragment_registers_run_atom_by_atom_row_major(place, rows, cols):
    operand = K16.operand(place)
    layout = fragment_layout(K16, place, rows, cols)
    register, lane = layout.values
    for row in range(0, rows, 7):
        for col in range(cols):
            (i, inner_row), (j, inner_col) = divmod(row, operand.rows), divmod(col, operand.cols)
            element, wanted_lane = (int(x) for x in operand.layout.apply(inner_row, inner_col))
            assert register[row, col] == (i * (cols // operand.cols) + j) * operand.elements + element
            assert lane[row, col] == wanted_lane


def test_a_row_vector_lies_in_every_lane_that_holds_the_row():
    full = fragment_layout(K16, "c", 64, 32)
    vector = fragment_layout(K16, "c", 64, 1)
    assert vector.shape == (64, 1)
    assert vector.place_shape == (8, 32)
    assert vector.is_onto()
    assert vector.is_one_to_one()
    for row in range(64):
        register, lanes = vector.places(row, 0)
        assert set(lanes.tolist()) == set(full.values[1][row].tolist())
        assert set(register.tolist()) == {row // 16 * 2 + row % 16 // 8}


def test_a_column_vector_lies_in_every_lane_that_holds_the_column():
    full = fragment_layout(K16, "c", 64, 32)
    vector = fragment_layout(K16, "c", 1, 32)
    assert vector.is_onto()
    assert vector.is_one_to_one()
    for col in range(32):
        register, lanes = vector.places(0, col)
        assert set(lanes.tolist()) == set(full.values[1][:, col].tolist())
        assert set(register.tolist()) == {col // 8 * 2 + col % 2}


def test_a_fragment_of_half_an_atom_is_an_error():
    with pytest.raises(EmmyError, match=r"24x16 is not made of whole operands of m16n8k16, which are 16x16"):
        fragment_layout(K16, "a", 24, 16)


@pytest.mark.parametrize(("rows", "cols"), [(16, 16), (64, 64), (16, 80), (32, 256)])
def test_accumulators_packed_to_16_bits_are_the_next_a_operand(rows, cols):
    assert accumulator_feeds(K16, K16, rows, cols)


def test_accumulators_of_two_n8_atoms_are_one_k16_operand_register_by_register():
    for lane in range(32):
        for j in range(2):
            for i in range(4):
                row, col = manual_c(lane, i)
                assert manual_a(lane, 4 * j + i) == (row, col + 8 * j)


def test_accumulators_feed_the_promotion_atom():
    assert accumulator_feeds(K16, K8, 64, 64), "an f16 partial c is operand a of m16n8k8 as it is"


# ---- ldmatrix ----


def simulate_ldmatrix(
    memory: np.ndarray, addresses: np.ndarray, count: int, trans: bool, packed: int = 2
) -> np.ndarray:
    """PTX ISA, ldmatrix .m8n8.b16: `memory` holds elements, `packed` of them in 4 bytes, `addresses` bytes of 32 lanes;
    returns [destination register, element in it, lane]."""
    result = np.zeros((count, packed, 32), dtype=memory.dtype)
    for i in range(count):
        matrix = np.zeros((8, 4 * packed), dtype=memory.dtype)
        for row in range(8):
            address = int(addresses[8 * i + row])
            assert address % 16 == 0
            matrix[row] = memory[address * packed // 4 :][: 4 * packed]
        if trans:
            matrix = matrix.T
        for lane in range(32):
            for part in range(packed):
                result[i, part, lane] = matrix[lane // 4, packed * (lane % 4) + part]
    return result


@pytest.mark.parametrize("swizzle", ["auto", "none", 32])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("atom", "place", "rows", "cols"),
    [
        (K16, "a", 16, 16),
        (K16, "b", 16, 16),
        (K16, "b", 8, 32),
        (K16, "b", 8, 16),
        (K16, "c", 16, 16),
        (K8, "a", 16, 8),
        (K8, "a", 32, 8),
        (K8, "b", 8, 8),
        (K8, "b", 32, 8),
        (K32, "a", 16, 32),
        (K32, "b", 16, 32),
        (K32, "b", 8, 32),
    ],
)
def test_plans_fill_the_operand_registers(atom, place, rows, cols, transposed, swizzle):
    """Load the block at (16, 32) of a 64 x 64 tile, and compare each register of each lane with the manual."""
    packed = 2 if place == "c" else atom.operand(place).packed
    if transposed and packed == 4:
        with pytest.raises(EmmyError, match=r"transposes elements of 16 bits only, and those of operand . have 8"):
            ldmatrix_plan(place, transposed, rows, cols, atom)
        return
    shared = shared_layout(64, 64, 4 // packed, swizzle)
    stored = np.arange(64 * 64, dtype=np.int64).reshape(64, 64)
    memory = np.zeros(shared.size_bytes * packed // 4, dtype=np.int64)
    memory[shared.offset(*np.ix_(np.arange(64), np.arange(64))) * packed // 4] = stored
    logical = (stored[16:, 32:]).T if transposed else stored[16:, 32:]

    plan = ldmatrix_plan(place, transposed, rows, cols, atom)
    addresses = shared.offset(16 + plan.rows, 32 + plan.cols)
    loaded = simulate_ldmatrix(memory, addresses, plan.count, plan.transposed, packed)

    operand = atom.operand(place)
    atoms_per_row = cols // operand.cols
    for i, (number, register) in enumerate(plan.destinations):
        atom_row, atom_col = divmod(number, atoms_per_row)
        for lane in range(32):
            for part in range(packed):
                row, col = MANUAL[32 // packed][place](lane, packed * register + part)
                assert loaded[i, part, lane] == logical[atom_row * operand.rows + row, atom_col * operand.cols + col]


def test_plans_have_the_known_lane_maps():
    known = {
        ("a", False, 16, 16): (LANES % 16, LANES // 16),
        ("b", False, 16, 16): (LANES % 8 + 8 * (LANES // 16), LANES // 8 % 2),
        ("b", False, 8, 32): (LANES % 8, LANES // 8),
        ("b", True, 16, 16): (LANES % 16, LANES // 16),
        ("a", True, 16, 16): (LANES % 8 + 8 * (LANES // 16), LANES // 8 % 2),
    }
    for (place, transposed, rows, cols), (row, chunk) in known.items():
        plan = ldmatrix_plan(place, transposed, rows, cols)
        assert np.array_equal(plan.rows, row)
        assert np.array_equal(plan.cols, 8 * chunk)
        assert plan.count == 4


def test_destinations_are_in_mma_operand_order():
    assert ldmatrix_plan("a", False).destinations == ((0, 0), (0, 1), (0, 2), (0, 3))
    # n0k0, n0k8, n8k0, n8k8: consecutive pairs are the b operands of the two n8 atoms
    assert ldmatrix_plan("b", False).destinations == ((0, 0), (0, 1), (1, 0), (1, 1))
    assert ldmatrix_plan("b", True).destinations == ((0, 0), (0, 1), (1, 0), (1, 1))


def test_fewer_matrices_repeat_the_first_addresses():
    plan = ldmatrix_plan("b", False, 8, 16)
    assert plan.count == 2
    assert np.array_equal(plan.rows[16:], plan.rows[:16])
    assert np.array_equal(plan.cols[16:], plan.cols[:16])


def test_a_block_of_eight_registers_is_an_error():
    with pytest.raises(EmmyError, match="32x16 block of operand a has 8"):
        ldmatrix_plan("a", False, 32, 16)
    with pytest.raises(EmmyError, match="loads 1, 2 or 4"):
        ldmatrix_plan("c", False, 16, 1)
