"""TMA on the emulator: tensor maps, boxes and swizzles against NumPy, mbarrier byte counts, bulk groups, proxy fences.

The kernels are hand-written; `test_the_texts_assemble` keeps ptxas's opinion of them.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emmy.assemble import assemble, find_tool
from emmy.emulator import Emulator, EmulatorError, Pointer, TensorMap, Uninitialised

MODES = list(itertools.product(("late", "early", "random"), ("fixed", "reversed", "random")))
LANDINGS = ("late", "early", "random")
# .version, and the destination space of loads: sm_120a wants .shared::cta, which PTX 8.0 does not have.
TARGETS = {"sm_90a": ("8.0", "shared::cluster"), "sm_120a": ("8.7", "shared::cta")}


def text(body: str, target: str = "sm_90a", rank: int = 2) -> str:
    """A kernel of maps `source` and `sink`, a pointer `out`, and c0 ..: %from and %to the maps' addresses, %smem 16 KiB,
    %bar 64 bytes of mbarriers, %t thread, %w warp, %first true in thread 0. {load} and {store} move one box at %c."""
    version, space = TARGETS[target]
    corner = ", ".join(f"%c{i}" for i in range(rank))
    parts = {
        "load": f"cp.async.bulk.tensor.{rank}d.{space}.global.mbarrier::complete_tx::bytes "
        f"[%smem], [%from, {{{corner}}}], [%bar];",
        "store": f"cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group [%to, {{{corner}}}], [%smem];",
        "wait": "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p0, [%bar], 0; @!%p0 bra WAIT;",
        "expect": "@%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], %bytes;",
        "commit": "cp.async.bulk.commit_group;",
    }
    for name, part in parts.items():
        body = body.replace("{" + name + "}", part)
    coordinates = "".join(f", .param .u32 c{i}" for i in range(rank))
    loads = "\n".join(f"ld.param.u32 %c{i}, [c{i}];" for i in range(rank))
    return f"""
.version {version}
.target {target}
.address_size 64
.visible .entry k(
    .param .align 64 .b8 source[128], .param .align 64 .b8 sink[128], .param .u64 out, .param .u32 bytes{coordinates})
{{
.reg .pred %p<6>, %first;
.reg .b32 %r<12>, %c<5>;
.reg .b32 %t, %w, %smem, %bar, %bytes;
.reg .b64 %rd<6>, %from, %to, %out;
.shared .align 1024 .b8 smem[16384];
.shared .align 8 .b8 bars[64];
mov.u64 %from, source; cvta.param.u64 %from, %from;
mov.u64 %to, sink; cvta.param.u64 %to, %to;
ld.param.u64 %out, [out];
ld.param.u32 %bytes, [bytes];
{loads}
mov.u32 %t, %tid.x;
shr.u32 %w, %t, 5;
setp.eq.u32 %first, %t, 0;
mov.u32 %smem, smem;
mov.u32 %bar, bars;
{body}
ret;
}}
"""


TMA_HINTED = {
    target: f"cp.async.bulk.tensor.2d.{space}.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
    "[%smem], [%from, {%c0, %c1}], [%bar], %rd2;"
    for target, (_, space) in TARGETS.items()
}
INIT = """
@%first mbarrier.init.shared::cta.b64 [%bar], 1;
@%first fence.mbarrier_init.release.cluster;
bar.sync 0;
"""
DUMP = """
mov.u32 %r0, %t;
DUMP: shl.b32 %r1, %r0, 4; setp.lt.u32 %p1, %r1, %bytes; add.u32 %r2, %r1, %smem; cvt.u64.u32 %rd0, %r1;
add.s64 %rd0, %rd0, %out;
@%p1 ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r2];
@%p1 st.global.v4.u32 [%rd0], {%r4, %r5, %r6, %r7};
add.u32 %r0, %r0, 64; setp.lt.u32 %p2, %r0, 1024; @%p2 bra DUMP;
"""
LOAD = INIT + "{expect}\n@%first {load}\n{wait}\n"
STORE = "bar.sync 0;\n@%first {store}\n@%first {commit}\n@%first cp.async.bulk.wait_group 0;\n"


def launch(body: str, source: TensorMap, sink: TensorMap, coordinates, out=None, bytes_: int | None = None, **mode):
    """Coordinates come as NumPy would write them, the outermost first."""
    out = np.zeros(16384, np.uint8) if out is None else out
    rank = len(coordinates)
    return Emulator(text(body, rank=rank)).launch(
        "k",
        (1, 1, 1),
        (64, 1, 1),
        [source, sink, Uninitialised(out), source.box_bytes if bytes_ is None else bytes_, *reversed(coordinates)],
        **mode,
    )


# Boxes and swizzles, against NumPy


def box_of(array: np.ndarray, corner, shape) -> np.ndarray:
    """The box at a corner, zeros outside."""
    result = np.zeros(shape, array.dtype)
    for index in np.ndindex(*shape):
        at = tuple(c + i for c, i in zip(corner, index, strict=True))
        if all(0 <= a < n for a, n in zip(at, array.shape, strict=True)):
            result[index] = array[at]
    return result


def swizzled(rows: np.ndarray, swizzle: int) -> np.ndarray:
    """Dense rows of `swizzle` bytes as they lie in shared memory: row r has its 16-byte chunks permuted by an XOR."""
    if not swizzle:
        return rows.reshape(-1)
    chunks = rows.reshape(-1, swizzle // 16, 16)
    rows_a_line = 128 // swizzle
    result = np.empty_like(chunks)
    for r, row in enumerate(chunks):
        for j, chunk in enumerate(row):
            result[r, j ^ (r // rows_a_line % (swizzle // 16))] = chunk
    return result.reshape(-1)


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


def simple(array=None, swizzle: int = 128) -> TensorMap:
    array = np.arange(16 * 64, dtype=np.uint16).reshape(16, 64) if array is None else array
    return TensorMap(array, 2, [16, 64], [128], [8, 64], swizzle)


def fails(body: str, words: str, **arguments) -> str:
    arguments = {"source": simple(), "sink": simple(np.zeros((16, 64), np.uint16)), "coordinates": [0, 0], **arguments}
    with pytest.raises(EmulatorError, match=words) as caught:
        launch(body, **arguments)
    return str(caught.value)


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


# Stores, bulk groups and the async proxy

FILL = "shl.b32 %r0, %t, 4; add.u32 %r1, %r0, %smem; st.shared.v4.u32 [%r1], {%t, %t, %t, %t};\n"
FENCE, BARRIER = "fence.proxy.async.shared::cta;\n", "bar.sync 0;\n"
ISSUE = "@%first {store}\n@%first {commit}\n"
READ, DONE = "@%first cp.async.bulk.wait_group.read 0;\n", "@%first cp.async.bulk.wait_group 0;\n"
REUSE = "st.shared.u32 [%r1], 7;\n"


def filled() -> np.ndarray:
    rows = np.repeat(np.arange(64, dtype=np.uint32), 4).view(np.uint8)
    return swizzled(rows, 128).view(np.uint16).reshape(8, 64)  # the swizzle is its own inverse


@pytest.mark.parametrize(("landing", "order"), MODES)
def test_a_store_takes_a_fence_a_barrier_and_a_wait(landing, order):
    mode = {"landing": landing, "order": order, "seed": 1}
    for end in (READ, DONE, READ + BARRIER + REUSE, READ + BARRIER + REUSE + DONE):
        target = np.zeros((16, 64), np.uint16)
        launch(FILL + FENCE + BARRIER + ISSUE + end, simple(), simple(target), [9, 0], **mode)
        np.testing.assert_array_equal(target[9:], filled()[:7])
        assert not target[:9].any()


STORE_FAULTS = {
    "no fence": (FILL + BARRIER + ISSUE + DONE, "proxy: the bulk copy reads .* no fence.proxy.async"),
    "fence before the write": (FENCE + FILL + BARRIER + ISSUE + DONE, "proxy: the bulk copy reads"),
    "fence of the issuing lane only": (
        FILL + BARRIER + "@%first fence.proxy.async;\n" + ISSUE + DONE,
        "proxy: the bulk",
    ),
    "fence of global memory": (FILL + "fence.proxy.async.global;\n" + BARRIER + ISSUE + DONE, "proxy: the bulk copy"),
    "fence of one warp": (
        FILL + "setp.eq.u32 %p1, %w, 0; @%p1 fence.proxy.async;\n" + BARRIER + ISSUE + DONE,
        "proxy: .* written by warp 1",
    ),
    "second write without a second fence": (
        FILL + FENCE + BARRIER + ISSUE + READ + BARRIER + FILL + BARRIER + ISSUE + DONE,
        "proxy: the bulk copy reads",
    ),
    "no barrier": (FILL + FENCE + ISSUE + DONE, "race: reads .* written by warp|uninit"),
    "uninitialised": (ISSUE + DONE, "uninit"),
    "no commit": (FILL + FENCE + BARRIER + "@%first {store}\n" + DONE, "the CTA ends without"),
    "no wait": (FILL + FENCE + BARRIER + ISSUE, "the CTA ends without cp.async.bulk.wait_group"),
    "waits for too few": (
        FILL + FENCE + BARRIER + ISSUE + DONE.replace("0;", "1;"),
        "the CTA ends without",
    ),
    "reuse without a wait": (FILL + FENCE + BARRIER + ISSUE + REUSE + DONE, "race: "),
    "reuse with a barrier and no wait": (FILL + FENCE + BARRIER + ISSUE + BARRIER + REUSE + DONE, "race: overwrites"),
    "the wait is that of one lane": (
        FILL + FENCE + BARRIER + ISSUE + READ + REUSE + DONE,
        "race: ",
    ),
    "barrier before the wait": (FILL + FENCE + BARRIER + ISSUE + BARRIER + READ + REUSE + DONE, "race: overwrites"),
    "refill by TMA before the wait": (
        INIT + FILL + FENCE + BARRIER + ISSUE + "{expect}\n@%first {load}\n{wait}\n" + DONE,
        "race: overwrites .* bulk store",
    ),
    "TMA over generic writes without a fence": (INIT + FILL + BARRIER + "{expect}\n@%first {load}\n{wait}\n", "proxy:"),
}


@pytest.mark.parametrize(("landing", "order"), MODES)
@pytest.mark.parametrize("fault", STORE_FAULTS)
def test_store_faults(fault, landing, order):
    body, words = STORE_FAULTS[fault]
    assert "PTX line" in fails(body, words, landing=landing, order=order, seed=2)


@pytest.mark.parametrize(("landing", "order"), MODES)
def test_bulk_groups_are_counted_by_thread(landing, order):
    """Two staging buffers in turn: wait_group.read 1 frees the older one and not the younger."""
    second = "add.u32 %smem, %smem, 1024; add.u32 %c1, %c1, 8;\n"
    begin = FILL + FENCE + BARRIER + ISSUE + "mov.u32 %r9, %r1;\n" + second + FILL + FENCE + BARRIER + ISSUE
    one_left = READ.replace("0;", "1;") + BARRIER
    older, younger = "st.shared.u32 [%r9], 7;\n", REUSE
    mode = {"landing": landing, "order": order, "seed": 5}
    target = np.zeros((16, 64), np.uint16)
    launch(begin + one_left + older + READ + BARRIER + younger, simple(), simple(target), [0, 0], **mode)
    np.testing.assert_array_equal(target, np.concatenate([filled(), filled()]))
    fails(begin + one_left + younger + READ, "race: overwrites .* bulk store", **mode)


@pytest.mark.parametrize("landing", ["late", "early"])
def test_when_copies_read_and_write(landing):
    """A load reads global memory when it lands; a store of which only the reads were waited for may write later."""

    def run(body: str) -> np.ndarray:
        """source, sink and out are one array: element 64 is (1, 0), element 1023 the last."""
        array = np.ones((16, 64), np.uint16)
        both = simple(array)
        arguments = [both, both, array, both.box_bytes, 0, 0]
        Emulator(text(body)).launch("k", (1, 1, 1), (64, 1, 1), arguments, landing=landing)
        return array

    change = "@%first st.global.u16 [%out], 9;\n"
    look = "ld.shared.u16 %r5, [%smem]; @%first st.global.u16 [%out+2046], %r5;\n"
    loaded = run(INIT + "{expect}\n@%first {load}\n" + change + "{wait}\n" + look)
    assert loaded[15, 63] == (9 if landing == "late" else 1)
    look = "@%first ld.global.u16 %r5, [%out+128]; @%first st.global.u16 [%out+2046], %r5;\n"
    stored = run(FILL + FENCE + BARRIER + ISSUE + READ + look)
    assert stored[1, 0] == filled()[1, 0] != 1
    assert stored[15, 63] == (1 if landing == "late" else stored[1, 0])
    assert run(FILL + FENCE + BARRIER + ISSUE + DONE + look)[15, 63] == stored[1, 0]


# Plain bulk copies

PLAIN = """
@%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 1024;
@%first cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%smem+16], [%out], 1024, [%bar];
{wait}
@%first cp.async.bulk.global.shared::cta.bulk_group [%out+1040], [%smem+16], 1008;
@%first {commit}
@%first cp.async.bulk.wait_group 0;
"""


@pytest.mark.parametrize("landing", LANDINGS)
def test_plain_bulk_copies(landing):
    buffer = np.arange(2048, dtype=np.uint16).view(np.uint8).reshape(-1)[:2048].copy()
    before = buffer.copy()
    arguments = [simple(), simple(), buffer, 0, 0, 0]

    def run(body: str):
        Emulator(text(INIT + body)).launch("k", (1, 1, 1), (64, 1, 1), arguments, landing=landing)

    run(PLAIN)
    np.testing.assert_array_equal(buffer[1040:], before[:1008])
    np.testing.assert_array_equal(buffer[:1040], before[:1040])
    for old, new, words in (
        ("1024, [%bar]", "1020, [%bar]", "misaligned"),
        ("[%smem+16], [%out]", "[%smem+8], [%out]", "misaligned"),
        ("[%out], 1024", "[%out+8], 1024", "misaligned"),
        ("[%out], 1024", "[%out+1040], 1024", "out of bounds"),
        ("[%smem+16], 1008", "[%smem+16], 1024", "out of bounds"),
        ("{wait}", "", "race|poison|uninit"),
    ):
        assert old in PLAIN
        with pytest.raises(EmulatorError, match=words):
            run(PLAIN.replace(old, new))


# cp.async is of the generic proxy: a fence is due, by the warp that waited for its copies

COPIED = """
shl.b32 %r0, %t, 4; add.u32 %r1, %r0, %smem; cvt.u64.u32 %rd0, %r0; add.s64 %rd0, %rd0, %out;
cp.async.cg.shared.global [%r1], [%rd0], 16;
WAITED
bar.sync 0;
@%first {store}
@%first {commit}
@%first cp.async.bulk.wait_group 0;
"""


@pytest.mark.parametrize(("landing", "order"), MODES)
def test_a_store_of_copied_bytes_takes_a_fence(landing, order):
    buffer = np.arange(512, dtype=np.uint16)
    target = np.zeros((16, 64), np.uint16)
    sink = simple(target, swizzle=0)

    def run(waited: str):
        emulator = Emulator(text(COPIED.replace("WAITED", waited)))
        emulator.launch("k", (1, 1, 1), (64, 1, 1), [sink, sink, buffer, 0, 0, 8], landing=landing, order=order, seed=4)

    run("cp.async.wait_all; fence.proxy.async;")
    np.testing.assert_array_equal(target[8:].reshape(-1), buffer)
    for waited, words in (
        ("cp.async.wait_all;", "proxy: the bulk copy reads"),
        ("fence.proxy.async; cp.async.wait_all;", "proxy: the bulk copy reads"),
        ("fence.proxy.async;", "race|poison"),
    ):
        with pytest.raises(EmulatorError, match=words):
            run(waited)


# The texts themselves


@pytest.mark.skipif(find_tool("ptxas") is None, reason="needs ptxas")
@pytest.mark.parametrize("target", TARGETS)
def test_the_texts_assemble(target):
    texts = [text(LOAD + DUMP + STORE, target, rank) for rank in range(1, 6)]
    texts += [text(INIT + PLAIN.replace("shared::cluster", TARGETS[target][1]), target)]
    texts += [text(FILL + FENCE + BARRIER + ISSUE + READ + BARRIER + REUSE + DONE, target)]
    texts += [text(COPIED.replace("WAITED", "cp.async.wait_all; fence.proxy.async;"), target)]
    hinted = "mov.u64 %rd2, 0; " + LOAD.replace("{load}", f"{TMA_HINTED[target]}")
    texts += [text(hinted, target)]
    texts += [text("prefetch.tensormap [%from]; prefetch.param.tensormap [sink];", target)]
    for ptx in texts:
        Emulator(ptx)
        assemble(ptx, target)
