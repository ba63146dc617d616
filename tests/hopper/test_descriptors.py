"""Matrix descriptors: for every n, both majors and all swizzles, what the emulator reads through a descriptor is the tile.

The emulator reads descriptors by the manual's formulas; `emmy.layout.descriptor` reads strides off the layout algebra.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emmy.emulator.faults import Fault
from emmy.emulator.matrix_descriptor import MatrixDescriptor as Emulated
from emmy.errors import EmmyError
from emmy.layout import Layout, OperandDescriptors, matrix_descriptor, shared_layout
from emmy.layout.algebra import Dimension, Repeat

BASE = 4096  # where a tile begins: a multiple of every swizzle's period
EVERY_N = range(8, 257, 8)


def read(bits: int, mn: int, mn_major: bool, element_bytes: int) -> np.ndarray:
    """Byte addresses of the elements [mn, k] that the emulator reads."""
    chunks = Emulated.decode(bits, "the operand").chunks(mn, mn_major)
    elements = chunks[..., None] + np.arange(0, 16, element_bytes)
    return elements.reshape(16, mn).T if mn_major else elements.reshape(mn, -1)


def stored(layout: Layout, mn: int, k: int, mn_major: bool, at=(0, 0)) -> np.ndarray:
    row, column = at[0] + np.arange(mn)[:, None], at[1] + np.arange(k)
    return BASE + (layout.apply(column, row) if mn_major else layout.apply(row, column))[0]


@pytest.mark.parametrize("swizzle", [128, 64, 32])
@pytest.mark.parametrize("n", EVERY_N)
def test_k_major_tiles_of_every_width(n: int, swizzle: int):
    for element_bytes in (1, 2):
        shared = shared_layout(n, 256 // element_bytes, element_bytes, swizzle)
        operands = OperandDescriptors(shared, False, n)
        for k in range(0, shared.cols, operands.k):
            descriptor = operands.at(0, k)
            assert (descriptor.start, descriptor.constant) == (operands.start(0, k), operands.constant)
            wanted = stored(shared.layout, n, operands.k, False, (0, k))
            assert (read(descriptor.bits(BASE), n, False, element_bytes) == wanted).all()


@pytest.mark.parametrize("swizzle", [128, 64, 32])
@pytest.mark.parametrize("n", EVERY_N)
def test_mn_major_tiles_of_every_width(n: int, swizzle: int):
    columns = -(-n // (swizzle // 2)) * (swizzle // 2)
    shared = shared_layout(48, columns, 2, swizzle)
    operands = OperandDescriptors(shared, True, n)
    for k in (0, 16, 32):
        descriptor = operands.at(0, k)
        assert (read(descriptor.bits(BASE), n, True, 2) == stored(shared.layout, n, 16, True, (0, k))).all()


def core_matrices(rows: int, columns: int) -> Layout:
    """Without swizzle: blocks of 8 rows x 16 bytes, which have 128 bytes, row-major over the tile."""
    byte = Dimension("col", ((2,), (4,), (8,)), (Repeat(columns // 8, (128,)),))
    return Layout((Dimension("row", ((16,), (32,), (64,)), (Repeat(rows // 8, (16 * columns,)),)), byte), ("byte",))


@pytest.mark.parametrize("n", EVERY_N)
def test_tiles_without_swizzle(n: int):
    """K-major and MN-major, every width: the two strides change places."""
    for mn_major, layout in ((False, core_matrices(n, 32)), (True, core_matrices(32, n))):
        for k in (0, 16):
            descriptor = matrix_descriptor(layout, 0, 2, mn_major, n, (0, k))
            assert (read(descriptor.bits(BASE), n, mn_major, 2) == stored(layout, n, 16, mn_major, (0, k))).all()
    assert matrix_descriptor(core_matrices(64, 32), 0, 2, False, 64).lbo == 128
    assert matrix_descriptor(core_matrices(32, 64), 0, 2, True, 64).lbo == 16 * 64


def test_the_panels_that_tma_writes():
    """The facts of the reference: 64-column panels of 128-byte rows."""
    a = OperandDescriptors(shared_layout(128, 128, 2), False, 64)
    starts = [a.start(0, k) for k in range(0, 128, 16)]
    assert (a.at(0, 0).sbo, starts) == (1024, [0, 32, 64, 96, 16384, 16416, 16448, 16480])
    assert a.start(64, 16) == 64 * 128 + 32
    v = OperandDescriptors(shared_layout(80, 128, 2), True, 128)
    assert (v.at(0, 0).lbo, v.at(0, 0).sbo) == (80 * 128, 1024)
    assert [v.start(0, k) for k in range(0, 80, 16)] == [0, 2048, 4096, 6144, 8192]
    assert a.constant == 1 << 62 | 64 << 32 | 1 << 16


@given(st.data())
def test_operands_inside_a_tile(data: st.DataObject):
    """Anywhere in a tile the descriptor either reads exactly the operand, or there is none."""
    swizzle = data.draw(st.sampled_from([128, 64, 32]))
    mn_major = data.draw(st.booleans())
    shared = shared_layout(data.draw(st.integers(2, 12)) * 16, data.draw(st.integers(1, 4)) * 128, 2, swizzle)
    mn_extent, k_extent = (shared.cols, shared.rows) if mn_major else (shared.rows, shared.cols)
    mn = 8 * data.draw(st.integers(1, min(mn_extent, 256) // 8))
    unit = (8, 1) if mn_major else (1, 8)  # rows may be any, columns are whole chunks
    at = tuple(
        u * data.draw(st.integers(0, most // u)) for u, most in zip(unit, (mn_extent - mn, k_extent - 16), strict=True)
    )
    columns, width = (at[0], mn) if mn_major else (at[1], 16)
    straddles = columns % shared.panel_columns + min(width, shared.panel_columns) > shared.panel_columns
    try:
        descriptor = matrix_descriptor(shared.layout, swizzle, 2, mn_major, mn, at)
    except EmmyError:
        assert straddles  # the operand begins inside a panel and ends in another
    else:
        assert (read(descriptor.bits(BASE), mn, mn_major, 2) == stored(shared.layout, mn, 16, mn_major, at)).all()


def test_what_no_descriptor_can_say():
    plain = shared_layout(64, 64, 2, "none")  # unswizzled rows of 128 bytes: no core matrices
    with pytest.raises(EmmyError, match="cannot read the K-major operand of 64 x 16 elements"):
        matrix_descriptor(plain.layout, 0, 2, False, 64)
    with pytest.raises(EmmyError, match="MN-major operands of 16 bits only"):
        matrix_descriptor(shared_layout(64, 64, 1).layout, 64, 1, True, 64)


@pytest.mark.parametrize(
    ("bits", "message"),
    [
        (1 << 15, "reserved bits"),
        (1 << 46, "reserved bits"),
        (1 << 62 | 1 << 49, "the base offset in the descriptor of operand a moves the pattern"),
    ],
)
def test_descriptors_that_the_emulator_refuses(bits: int, message: str):
    with pytest.raises(Fault, match=message):
        Emulated.decode(bits, "operand a")
