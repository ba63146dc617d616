"""wgmma on the emulator: every form against NumPy, and every rule about registers, fences and waits broken once."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hopper_texts import DTYPES, HEAD, one_product, pack_a, place, unpack_sums
from hypothesis import given, settings
from hypothesis import strategies as st

from emmy.assemble import assemble, find_tool
from emmy.emulator import Emulator, EmulatorError, Uninitialised
from emmy.layout import Layout, matrix_descriptor, shared_layout
from emmy.layout.algebra import Dimension, Repeat

MODES = list(itertools.product(("late", "early", "random"), ("fixed", "reversed", "random")))
A_AT, B_AT, SHARED = 0, 16384, 49152


def core_matrices(rows: int, columns: int, element_bytes: int = 2) -> Layout:
    """Without swizzle: blocks of 8 rows x 16 bytes, row-major over the tile."""
    each = 16 // element_bytes
    bits = tuple((element_bytes << i,) for i in range(each.bit_length() - 1))
    column = Dimension("col", bits, (Repeat(columns // each, (128,)),))
    row = Dimension("row", ((16,), (32,), (64,)), (Repeat(rows // 8, (128 * columns // each,)),))
    return Layout((row, column), ("byte",))


def operand(rows: int, k: int, mn_major: bool, swizzle: int, element_bytes: int, at_k: int):
    """A descriptor of the operand at (0, at_k) of a tile that holds it, and the offsets of its elements [rows, k]."""
    stored_rows, columns = (2 * k, rows) if mn_major else (rows, 2 * k)
    if swizzle:
        columns = -(-columns * element_bytes // swizzle) * swizzle // element_bytes
        layout = shared_layout(stored_rows, columns, element_bytes, swizzle).layout
    else:
        layout = core_matrices(stored_rows, columns, element_bytes)
    row, column = np.arange(rows)[:, None], at_k + np.arange(k)
    offsets = (layout.apply(column, row) if mn_major else layout.apply(row, column))[0]
    return matrix_descriptor(layout, swizzle, element_bytes, mn_major, rows, (0, at_k)), offsets


def integers(shape, dtype, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


def setup(n, a_type, b_type, *, in_registers=False, mn_a=False, mn_b=False, swizzles=(128, 128), at_k=0, seed=0):
    """Arguments of `one_product`, the operands, and the image of shared memory."""
    size = DTYPES[a_type].itemsize
    k = 32 // size
    a, b = integers((64, k), DTYPES[a_type], seed), integers((n, k), DTYPES[b_type], seed + 1)
    image = np.full(SHARED, 0xFF, np.uint8)
    left, a_offsets = operand(64, k, mn_a, swizzles[0], size, at_k)
    right, b_offsets = operand(n, k, mn_b, swizzles[1], size, at_k)
    place(image, A_AT, a_offsets, a)
    place(image, B_AT, b_offsets, b)
    first = pack_a(a) if in_registers else np.array(left.bits(A_AT), np.uint64)
    return a, b, image, first, np.array(right.bits(B_AT), np.uint64)


def run(text: str, n: int, sums: str, image, first, second, **mode) -> np.ndarray:
    registers = n // 2 if sums == "f32" else n // 4
    out = np.zeros((2, 128, registers), np.uint32)
    argument = first if first.ndim else int(first)
    Emulator(HEAD + text).launch(
        "k", (1, 1, 1), (128, 1, 1), [image, Uninitialised(out), argument, int(second), SHARED], SHARED, **mode
    )
    return np.stack([unpack_sums(words, n, sums) for words in out])


def check(n, sums, a_type, b_type, *, signs=(1, 1), mode=None, **layout):
    flags = {key: layout[key] for key in ("in_registers", "mn_a", "mn_b") if key in layout}
    a, b, image, first, second = setup(n, a_type, b_type, **layout)
    text = one_product("k", n, sums, a_type, b_type, signs=signs, **flags)
    out = run(text, n, sums, image, first, second, **(mode or {}))
    product = signs[0] * signs[1] * (a.astype(np.float64) @ b.astype(np.float64).T)
    assert (out[0] == product).all()
    assert (out[1] == 2 * product).all()


@pytest.mark.parametrize("n", range(8, 257, 8))
def test_every_width(n: int):
    check(n, "f32", "f16", "f16")
    check(n, "f16", "f16", "f16", mn_b=True)


@pytest.mark.parametrize("swizzles", list(itertools.product((0, 32, 64, 128), repeat=2)))
@pytest.mark.parametrize(("mn_a", "mn_b"), list(itertools.product((False, True), repeat=2)))
def test_every_swizzle_and_major(swizzles, mn_a: bool, mn_b: bool):
    check(40, "f32", "bf16", "bf16", mn_a=mn_a, mn_b=mn_b, swizzles=swizzles, at_k=16)


@pytest.mark.parametrize(
    ("sums", "a_type", "b_type"),
    [("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "bf16", "bf16")]
    + [(sums, a, b) for sums in ("f32", "f16") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")],
)
def test_types_scales_and_registers(sums: str, a_type: str, b_type: str):
    for signs, in_registers in itertools.product([(1, 1), (-1, 1), (1, -1)], (False, True)):
        check(24, sums, a_type, b_type, signs=signs, in_registers=in_registers)


@settings(max_examples=60)
@given(st.data())
def test_forms_at_random(data: st.DataObject):
    a_type, b_type = data.draw(st.sampled_from([("f16", "f16"), ("bf16", "bf16"), ("e4m3", "e5m2"), ("e5m2", "e5m2")]))
    wide, in_registers = DTYPES[a_type].itemsize == 2, data.draw(st.booleans())
    check(
        8 * data.draw(st.integers(1, 32)),
        "f32" if a_type == "bf16" else data.draw(st.sampled_from(["f32", "f16"])),
        a_type,
        b_type,
        in_registers=in_registers,
        mn_a=wide and not in_registers and data.draw(st.booleans()),
        mn_b=wide and data.draw(st.booleans()),
        swizzles=tuple(data.draw(st.sampled_from([0, 32, 64, 128])) for _ in range(2)),
        at_k=data.draw(st.sampled_from([0, 32 // DTYPES[a_type].itemsize])),
        signs=data.draw(st.sampled_from([(1, 1), (-1, 1), (1, -1), (-1, -1)])),
        mode=dict(zip(("landing", "order"), data.draw(st.sampled_from(MODES)), strict=True)),
    )


# One rule broken at a time: (what is replaced, by what, the message)

FAULTS = {
    "no fence": (
        "wgmma.fence.sync.aligned; // fence",
        "",
        "no wgmma.fence follows the last access to the register %d0",
    ),
    "no fence after reads": (
        "wgmma.fence.sync.aligned; // second fence",
        "",
        "no wgmma.fence follows the last access to the register %d0",
    ),
    "no wait": ("wgmma.wait_group.sync.aligned 0; // wait", "", "%d0 is a sum of the wgmma at line"),
    "waits for nothing": (
        "wait_group.sync.aligned 0; // wait",
        "wait_group.sync.aligned 1;",
        "%d0 is a sum of the wgmma at",
    ),
    "no commit": ("wgmma.commit_group.sync.aligned; // commit", "", "%d0 is a sum of the wgmma at line"),
    "sums written in flight": (
        "wgmma.commit_group.sync.aligned; // commit",
        "mov.b32 %d3, 0;",
        "%d3 is a sum of the wgmma at",
    ),
    "no proxy fence": (
        "fence.proxy.async.shared::cta; // proxy fence",
        "",
        "no fence.proxy.async of that warp follows the write",
    ),
    "operands overwritten in flight": (
        "wgmma.commit_group.sync.aligned; // commit",
        "setp.eq.u32 %p0, %r1, 0;\n@%p0 st.shared.u32 [%r2+16384], %r1;",
        "still read by warpgroup 0 in the wgmma at line",
    ),
    "sums never written": (", 0, 1, 1, 0, 0; // first", ", 1, 1, 1, 0, 0;", "the register %d0 was never written"),
    "warps disagree on a descriptor": (
        "bar.sync 0;\n",
        "bar.sync 0;\nsetp.gt.u32 %p0, %r1, 63;\n@%p0 add.s64 %db, %db, 64;\n",
        "the threads of a warpgroup disagree on the descriptor of operand b",
    ),
    "one warp does not come": (
        "wgmma.fence.sync.aligned; // fence",
        "wgmma.fence.sync.aligned;\nsetp.gt.u32 %p0, %r1, 95;\n@%p0 bra END;",
        "waits for the other warps of its warpgroup",
    ),
    "warps at different instructions": (
        "wgmma.commit_group.sync.aligned; // commit",
        "setp.gt.u32 %p0, %r1, 95;\n@%p0 wgmma.commit_group.sync.aligned;\n@!%p0 wgmma.commit_group.sync.aligned;",
        "the four warps of a warpgroup issue wgmma together, but warp",
    ),
    "lanes of a warp disagree": (
        "wgmma.commit_group.sync.aligned; // commit",
        "and.b32 %r5, %r1, 1;\nsetp.eq.u32 %p0, %r5, 0;\n@%p0 wgmma.commit_group.sync.aligned;",
        "all lanes of a warp must execute this together",
    ),
    "uninitialised operands": ("add.s64 %db, %db, %rd3;", "add.s64 %db, %db, 1600;", "was never written"),
    "operands out of bounds": ("add.s64 %db, %db, %rd3;", "add.s64 %db, %db, 8000;", "is out of bounds"),
    "a base offset": (
        "add.s64 %db, %db, %rd3;",
        "add.s64 %db, %db, 562949953421312;",
        "the base offset in the descriptor of",
    ),
    "no sums of this kind": (".f32.f16.f16", ".f32.bf16.f16", "no wgmma multiplies .bf16 by .f16"),
    "not on this target": (".target sm_90a", ".target sm_100a", "wgmma is for sm_90a only"),
}


def faulty(name: str) -> tuple[str, str]:
    old, new, message = FAULTS[name]
    text = HEAD + one_product("k", 16, "f32", "f16", "f16")
    assert old in text
    text = text.replace(old, new, 1)
    return text.replace("ret;", "END: ret;"), message


@pytest.mark.parametrize(("landing", "order"), MODES)
@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str, landing: str, order: str):
    text, message = faulty(name)
    _, _, image, first, second = setup(16, "f16", "f16")
    out = np.zeros((2, 128, 8), np.uint32)
    with pytest.raises(EmulatorError, match=re.escape(message)) as caught:
        Emulator(text).launch(
            "k",
            (1, 1, 1),
            (128, 1, 1),
            [image, Uninitialised(out), int(first), int(second), 40000],
            SHARED,
            landing=landing,
            order=order,
        )
    assert caught.value.line > 0


def test_registers_of_a_in_flight():
    """Operand a in registers may be read, not written, until the wait."""
    _, _, image, first, second = setup(16, "f16", "f16", in_registers=True)
    text = one_product("k", 16, "f32", "f16", "f16", in_registers=True)
    run(text.replace("// commit", "mov.b32 %r11, %a0;"), 16, "f32", image, first, second)
    with pytest.raises(EmulatorError, match="%a0 is operand a of the wgmma at line"):
        run(text.replace("// commit", "mov.b32 %a0, 0;"), 16, "f32", image, first, second)


def test_a_warpgroup_is_four_warps():
    _, _, image, first, second = setup(16, "f16", "f16")
    out = np.zeros((2, 128, 8), np.uint32)
    with pytest.raises(EmulatorError, match="warpgroups of 4 warps, and this warp's is not whole"):
        Emulator(HEAD + one_product("k", 16, "f32", "f16", "f16")).launch(
            "k", (1, 1, 1), (96, 1, 1), [image, Uninitialised(out), int(first), int(second), 32], SHARED
        )


def test_a_wgmma_in_flight_at_the_end():
    text = one_product("k", 16, "f32", "f16", "f16").split("// first")[0] + "\nret;\n}\n"
    _, _, image, first, second = setup(16, "f16", "f16")
    with pytest.raises(EmulatorError, match="the kernel ends with this wgmma in flight"):
        run(text, 16, "f32", image, first, second)


@pytest.mark.skipif(find_tool("ptxas") is None, reason="ptxas is not installed")
def test_the_texts_assemble():
    texts = [
        one_product("k", 8, "f32", "f16", "f16"),
        one_product("k", 256, "f32", "bf16", "bf16", mn_a=True, mn_b=True, signs=(-1, 1)),
        one_product("k", 128, "f16", "f16", "f16", in_registers=True, mn_b=True),
        one_product("k", 96, "f32", "e4m3", "e5m2"),
        one_product("k", 96, "f16", "e5m2", "e4m3", in_registers=True, signs=(1, -1)),
    ]
    for text in texts:
        assert assemble(HEAD + text, "sm_90a").messages == ()
