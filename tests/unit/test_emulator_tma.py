"""TMA on the emulator: tensor maps, boxes and swizzles against NumPy, mbarrier byte counts.

The kernels are hand-written; `test_the_texts_assemble` in test_emulator_bulk_copies.py keeps ptxas's opinion of them.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tma_kernels import (
    DUMP,
    INIT,
    LANDINGS,
    LOAD,
    MODES,
    STORE,
    fails,
    launch,
    simple,
    swizzled,
    text,
)

from emmy.emulator import Emulator, EmulatorError, Pointer, TensorMap, Uninitialised

# Boxes and swizzles, against NumPy


def box_of(array: np.ndarray, corner, shape) -> np.ndarray:
    """The box at a corner, zeros outside."""
    result = np.zeros(shape, array.dtype)
    for index in np.ndindex(*shape):
        at = tuple(c + i for c, i in zip(corner, index, strict=True))
        if all(0 <= a < n for a, n in zip(at, array.shape, strict=True)):
            result[index] = array[at]
    return result


@st.composite
def boxes(draw):
    rank = draw(st.integers(1, 4))
    width = draw(st.sampled_from([1, 2, 4, 8]))
    swizzle = draw(st.sampled_from([0, 32, 64, 128]))
    inner = (swizzle if swizzle else 16 * draw(st.integers(1, 16 // width))) // width
    box = [*[draw(st.integers(1, 5)) for _ in range(rank - 1)], inner]
    sizes = [*[draw(st.integers(1, 7)) for _ in range(rank - 1)], draw(st.integers(1, 40))]
    corner = [draw(st.integers(-b - 1, n + 1)) for b, n in zip(box, sizes, strict=True)]
    padding = draw(st.integers(0, 2))
    return width, swizzle, box, sizes, corner, padding


def make(width: int, sizes, padding: int, seed: int = 0):
    """A padded buffer, the array inside it, and the byte strides of its outer dimensions."""
    pitch = -(-sizes[-1] * width // 16) * 16 + 16 * padding
    buffer = np.random.default_rng(seed).integers(1, 256, (*sizes[:-1], pitch), np.uint8)
    array = buffer.view(f"uint{8 * width}")[..., : sizes[-1]]
    return buffer, array, list(array.strides[:-1])


@settings(max_examples=60, deadline=None)
@given(boxes(), st.sampled_from(LANDINGS))
def test_loads_and_stores_of_boxes(case, landing):
    """A load brings the box with zeros outside and counts all of its bytes; a store touches the inside only."""
    width, swizzle, box, sizes, corner, padding = case
    buffer, array, strides = make(width, sizes, padding)
    target, target_array, _ = make(width, sizes, padding, seed=1)
    wanted, before = box_of(array, corner, box), target_array.copy()
    source = TensorMap(buffer, width, sizes, strides, box, swizzle)
    sink = TensorMap(target, width, sizes, strides, box, swizzle)
    out = np.zeros(16384, np.uint8)
    untouched = target.copy()
    report = launch(LOAD + DUMP + STORE, source, sink, corner, out, landing=landing)
    np.testing.assert_array_equal(out[: source.box_bytes], swizzled(wanted.view(np.uint8), swizzle))
    for index in np.ndindex(*sizes):
        inside = all(0 <= i - c < b for i, c, b in zip(index, corner, box, strict=True))
        before[index] = array[index] if inside else before[index]
    np.testing.assert_array_equal(target_array, before)
    # Neither does a store touch the padding.
    padding_bytes = target[..., sizes[-1] * width :]
    np.testing.assert_array_equal(padding_bytes, untouched[..., sizes[-1] * width :])
    assert report.instructions["cp.async.bulk.tensor"] == 2
    assert report.instructions["mbarrier.try_wait"] == 2


def test_a_view_inside_a_buffer():
    """Pointer and strides name a window: here rows 1, 3, 5 of a matrix, from column 8 on."""
    matrix = np.arange(8 * 32, dtype=np.float32).reshape(8, 32)
    source = TensorMap(Pointer(matrix, (32 + 8) * 4), 4, [3, 16], [2 * 32 * 4], [4, 16])
    out = np.zeros(16384, np.uint8)
    launch(LOAD + DUMP, source, source, [0, 0], out)
    result = out.view(np.float32)[:64].reshape(4, 16)
    np.testing.assert_array_equal(result[:3], matrix[1:6:2, 8:24])
    assert not result[3].any()


# What is refused before anything runs

RULES = {
    "1 to 5 dimensions": {"sizes": [1] * 6, "strides": [16] * 5, "box": [1] * 6},
    "has 1 strides and a box of 2 sizes": {"strides": []},
    "elements of 1, 2, 4 or 8 bytes": {"element_bytes": 3},
    "sizes from 1 to 2": {"sizes": [0, 64]},
    "multiples of 16 bytes and less than": {"strides": [120]},
    "box of 1 to 256 elements": {"box": [257, 64]},
    "multiple of 16 bytes, not 24": {"box": [8, 12], "swizzle": 0},
    "swizzle of 0, 32, 64 or 128": {"swizzle": 16},
    "at most that wide": {"swizzle": 64},
    "not modelled": {"box": [8, 32]},
    "begins at a multiple of 16 bytes": {"array": Pointer(np.zeros((17, 64), np.uint16), 8)},
    "lies within its buffer": {"sizes": [17, 64]},
}


@pytest.mark.parametrize("words", RULES)
def test_tensor_map_rules(words):
    good = {
        "array": np.zeros((16, 64), np.uint16),
        "element_bytes": 2,
        "sizes": [16, 64],
        "strides": [128],
        "box": [8, 64],
        "swizzle": 128,
    }
    TensorMap(**good)
    with pytest.raises(EmulatorError, match=words):
        TensorMap(**{**good, **RULES[words]})


MISSPELT = {
    "needs .version 8.6": ("shared::cluster", "shared::cta"),
    "3 operands, expected 4": ("complete_tx::bytes", "complete_tx::bytes.multicast::cluster"),
    "`.im2col` is not known": (".global.mbarrier", ".global.im2col.mbarrier"),
    "must be generic": ("[%from", "[source"),
    "2 coordinates are expected, 1 given": ("{%c0, %c1}], [%bar]", "{%c0}], [%bar]"),
    "a tensor address": (", {%c0, %c1}], [%bar]", "], [%bar]"),
    "stand in braces": ("{%c0, %c1}], [%bar]", "%c0], [%bar]"),
    "operands, expected 4": ("complete_tx::bytes", "complete_tx::bytes.L2::cache_hint"),
    "one of .1d": ("tensor.2d.shared", "tensor.6d.shared"),
    ".bulk_group is missing": (".bulk_group", ""),
    "needs .version 8.0": (".version 8.0", ".version 7.8"),
    "must come before the first kernel": (".target sm_90a", ""),
}


@pytest.mark.parametrize("words", MISSPELT)
def test_misspelt_copies(words):
    good = text(LOAD + STORE)
    Emulator(good)
    old, new = MISSPELT[words]
    assert old in good
    with pytest.raises(EmulatorError, match=words):
        Emulator(good.replace(old, new))


def test_parameters_that_cannot_hold_a_map():
    maps, tail = [simple(), simple(np.zeros((16, 64), np.uint16))], [np.zeros(16384, np.uint8), 0, 0, 0]
    for old, new in ((".align 64 .b8 sink[128]", ".b8 sink[128]"), ("sink[128]", "sink[64]")):
        broken = Emulator(text(INIT).replace(old, new))
        with pytest.raises(EmulatorError, match=r"declare it as .param .align 64 .b8 sink\[128\]"):
            broken.launch("k", (1, 1, 1), (64, 1, 1), [*maps, *tail])
    with pytest.raises(EmulatorError, match="pass a TensorMap"):
        Emulator(text(INIT)).launch("k", (1, 1, 1), (64, 1, 1), [maps[0], tail[0], *tail])


def test_addresses_of_maps_and_boxes():
    fails(LOAD.replace("@%first {load}", "mov.u64 %from, source; @%first {load}"), "becomes generic by cvta.param")
    fails(LOAD.replace("@%first {load}", "add.s64 %from, %from, 64; @%first {load}"), "no tensor map is at")
    fails("mov.u64 %from, sink; prefetch.tensormap [%from];", "no tensor map is at")
    launch("prefetch.tensormap [%from]; prefetch.param.tensormap [sink];", simple(), simple(), [0, 0])

    def shifted(bytes_: int) -> str:
        return f"add.u32 %smem, %smem, {bytes_}; {LOAD}"

    fails(shifted(64), "no multiple of 1024", source=simple(), bytes_=0)
    fails(shifted(128), "no multiple of 1024")
    fails(
        shifted(128),
        "no multiple of 256",
        source=TensorMap(np.zeros((4, 16), np.uint16), 2, [4, 16], [32], [4, 16], 32),
    )
    fails(shifted(64), "no multiple of 128", source=simple_unswizzled())
    launch(shifted(128), simple_unswizzled(), simple(), [0, 0])
    fails(shifted(16384), "out of bounds: the CTA has 16448 bytes")
    fails(shifted(-1024), "out of bounds")
    fails(
        LOAD,
        "a tensor map of 1 dimensions in a copy of 2",
        source=TensorMap(np.zeros(64, np.uint16), 2, [64], [], [64], 128),
    )
    fails(
        LOAD,
        "uninitialised: bytes of the box",
        source=TensorMap(Uninitialised(np.zeros((8, 64), np.uint16)), 2, [8, 64], [128], [8, 64]),
    )


def simple_unswizzled() -> TensorMap:
    return simple(swizzle=0)


# mbarriers that count bytes

BYTES = 8 * 64 * 2


@pytest.mark.parametrize(("landing", "order"), MODES)
def test_bytes_may_come_before_they_are_expected(landing, order):
    """The load is issued first, the tx-count goes below zero; and expect_tx can stand apart from the arrival."""
    mode = {"landing": landing, "order": order, "seed": 1}
    out = np.zeros(16384, np.uint8)
    launch(INIT + "@%first {load}\n{expect}\n{wait}\n" + DUMP, simple(), simple(), [3, 0], out, **mode)
    wanted = np.arange(3 * 64, 11 * 64, dtype=np.uint16).reshape(8, 64)
    np.testing.assert_array_equal(out[:BYTES], swizzled(wanted.view(np.uint8), 128))
    apart = """
    @%first mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%bar], 512;
    @%first {load}
    @%first mbarrier.expect_tx.shared::cta.b64 [%bar], 512;
    @%first mbarrier.arrive.release.cta.shared::cta.b64 _, [%bar];
    {wait}
    """
    launch(INIT + apart + DUMP, simple(), simple(), [3, 0], out, **mode)
    split = """
    @%first mbarrier.arrive.shared::cluster.b64 _, [%bar];
    @%first mbarrier.expect_tx.shared::cta.b64 [%bar], 64;
    @%first mbarrier.complete_tx.shared::cta.b64 [%bar], 64;
    {wait}
    """
    launch(
        INIT.replace("[%bar], 1;", "[%bar], 2;") + split.replace("{wait}", "{expect} @%first {load} {wait}") + DUMP,
        simple(),
        simple(),
        [3, 0],
        out,
        **mode,
    )


TX_FAULTS = {
    "no expect_tx": (
        LOAD.replace("{expect}", "@%first mbarrier.arrive.shared::cta.b64 _, [%bar];"),
        "poison|race|deadlock",
    ),
    "too many bytes expected": (
        LOAD.replace("{expect}", "add.u32 %bytes, %bytes, 16; {expect}"),
        "16 bytes outstanding",
    ),
    "too few bytes expected": (
        LOAD.replace("{expect}", "add.u32 %bytes, %bytes, -16; {expect}"),
        "-16 bytes outstanding",
    ),
    "half the bytes expected": (
        LOAD.replace(
            "{load}", "{load} @%first add.u32 %smem, %smem, 1024; @%first {load} @%first add.u32 %smem, %smem, -1024;"
        ),
        "poison|race|deadlock|no warp waited|in flight",
    ),
    "no wait": (LOAD.replace("{wait}", "bar.sync 0;"), "poison|race"),
    "the wait of one warp": (
        LOAD.replace("{wait}", "setp.ne.u32 %p3, %w, 0; @%p3 bra ON; {wait} ON:"),
        "poison|race|uninit",
    ),
    "wrong parity": (
        LOAD.replace("{wait}", "W: mbarrier.try_wait.parity.shared::cta.b64 %p0, [%bar], 1; @!%p0 bra W;"),
        "poison|race|uninit|deadlock",
    ),
    "initialisation without a fence": (
        LOAD.replace("@%first fence.mbarrier_init.release.cluster;", ""),
        "proxy: neither",
    ),
    "initialisation without a barrier": (LOAD.replace("bar.sync 0;", ""), "race|no mbarrier"),
    "issued by every lane": (LOAD.replace("@%first {load}", "{load}"), "race: overwrites"),
    "nobody waits": ("\n".join(LOAD.splitlines()[:-1]), "the CTA ends"),
    "an mbarrier inside the box": (
        LOAD.replace("[%bar]", "[%smem+64]").replace("{load}", "{load}"),
        "no mbarrier|belongs to an mbarrier",
    ),
    "more bytes than an mbarrier counts": (
        LOAD.replace("{expect}", "mov.u32 %bytes, 1048576; {expect}"),
        "1048575 is the most",
    ),
}


@pytest.mark.parametrize(("landing", "order"), MODES)
@pytest.mark.parametrize("fault", TX_FAULTS)
def test_tx_faults(fault, landing, order):
    body, words = TX_FAULTS[fault]
    dump = "" if fault == "nobody waits" else DUMP.replace("%bytes", "1024")
    message = fails(body + dump, words, landing=landing, order=order, seed=3)
    assert "PTX line" in message or "deadlock" in message
