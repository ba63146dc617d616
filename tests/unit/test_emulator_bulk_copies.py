"""Stores by TMA, bulk groups, the async proxy, and bulk copies without tensor maps on the emulator."""

from __future__ import annotations

import numpy as np
import pytest
from tma_kernels import (
    DUMP,
    INIT,
    LANDINGS,
    LOAD,
    MODES,
    STORE,
    TARGETS,
    TMA_HINTED,
    fails,
    launch,
    simple,
    swizzled,
    text,
)

from emmy.assemble import assemble, find_tool
from emmy.emulator import Emulator, EmulatorError

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
