"""Branches, named barriers, mbarriers, cp.async groups, warp-wide instructions and deadlocks of the emulator."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from emmy.emulator import Emulator, EmulatorError

MODES = list(itertools.product(("late", "early", "random"), ("fixed", "reversed", "random")))
ORDERS = ("fixed", "reversed", "random")


def kernel(body: str) -> Emulator:
    """A kernel of (in, out, n): %t thread, %l lane, %w warp, %s = smem + 16 * thread, %src = in + 16 * thread."""
    return Emulator(f"""
.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out, .param .u32 n)
{{
.reg .pred %p<6>;
.reg .b32 %r<20>;
.reg .b32 %t, %w, %l, %n, %s, %smem, %bar;
.reg .b64 %rd<6>;
.reg .b64 %in, %out, %src;
.shared .align 16 .b8 smem[8192];
.shared .align 8 .b8 bars[64];
ld.param.u64 %in, [in];
ld.param.u64 %out, [out];
ld.param.u32 %n, [n];
mov.u32 %t, %tid.x;
shr.u32 %w, %t, 5;
and.b32 %l, %t, 31;
mov.u32 %smem, smem;
mov.u32 %bar, bars;
mad.lo.u32 %s, %t, 16, %smem;
mad.wide.u32 %src, %t, 16, %in;
{body}
ret;
}}
""")


def launch(body: str, source=None, out=None, n: int = 0, threads: int = 128, **mode):
    source = np.arange(4 * threads, dtype=np.uint32) if source is None else source
    out = np.zeros(4 * threads, np.uint32) if out is None else out
    report = kernel(body).launch("k", (1, 1, 1), (threads, 1, 1), [source, out, n], **mode)
    return out, report


def fails(body: str, words: str, **arguments) -> str:
    with pytest.raises(EmulatorError, match=words) as caught:
        launch(body, **arguments)
    return str(caught.value)


STORE = "mad.wide.u32 %rd0, %t, 4, %out; st.global.u32 [%rd0], {};"


# Control flow


@pytest.mark.parametrize("order", ORDERS)
def test_loops_and_warp_uniform_branches(order):
    body = """
    mov.u32 %r0, 0; mov.u32 %r1, 0;
    { setp.eq.u32 %p0, %w, 2; @%p0 bra.uni SKIP; add.u32 %r0, %r0, 1000;
    SKIP: add.u32 %r0, %r0, 1; }
    LOOP: add.u32 %r0, %r0, %r1; add.u32 %r1, %r1, 1;
    setp.le.u32 %p1, %r1, %w; @%p1 bra LOOP;
    { bra SKIP; add.u32 %r0, %r0, 77;
    SKIP: add.u32 %r0, %r0, 1; }
    """
    out, report = launch(body + STORE.format("%r0"), order=order)
    warp = np.arange(128) // 32
    np.testing.assert_array_equal(out[:128], np.where(warp == 2, 2, 1002) + warp * (warp + 1) // 2)
    assert report.instructions["bra"] == 4 + (1 + 2 + 3 + 4) + 4


@pytest.mark.parametrize("order", ORDERS)
def test_divergence_is_an_error(order):
    message = fails(
        "setp.lt.u32 %p0, %l, 5; @%p0 bra END; add.u32 %r0, %t, 1;\nEND: mov.u32 %r1, 0;", "divergent", order=order
    )
    assert "lane 5" in message
    fails("setp.lt.u32 %p0, %l, 5; @%p0 ret;", "divergent.*leaving the kernel", order=order)
    fails("setp.lt.u32 %p0, %l, 5; @%p0 bar.sync 0;", "they disagree", order=order)


def test_endless_loop_uses_up_the_budget():
    fails("mov.u32 %r0, 0; LOOP: add.u32 %r0, %r0, 1; bra LOOP;", "budget of 5000", max_instructions=5000)


# Named barriers


@pytest.mark.parametrize("order", ORDERS)
def test_named_barriers_and_arrive(order):
    """Warps 0 and 1 produce, warps 2 and 3 consume; producers only arrive."""
    body = """
    setp.ge.u32 %p0, %w, 2;
    @%p0 bra CONSUME;
    st.shared.u32 [%s], %t;
    bar.arrive 3, 128;
    bra DONE;
    CONSUME: bar.sync 3, 128;
    ld.shared.u32 %r0, [%s+-1024];
    mad.wide.u32 %rd0, %t, 4, %out; st.global.u32 [%rd0], %r0;
    DONE: barrier.sync.aligned 1;
    """
    out, report = launch(body, order=order)
    np.testing.assert_array_equal(out[64:128], np.arange(64))
    assert report.instructions["bar.arrive"] == 2
    assert report.instructions["bar.sync"] == 6
    fails(body.replace("bar.arrive 3, 128;", ""), "deadlock|race|uninit", order=order)


@pytest.mark.parametrize("order", ORDERS)
def test_deadlock_lists_every_warp(order):
    body = "setp.eq.u32 %p0, %w, 1; @%p0 bra OTHER;\nbar.sync 1;\nbra DONE;\nOTHER: bar.sync 2;\nDONE: mov.u32 %r0, 0;"
    message = fails(body, "deadlock", order=order)
    for warp in (0, 2, 3):
        assert f"warp {warp} at PTX line" in message
    assert "`OTHER: bar.sync 2;` waits for barrier 2" in message
    assert "barrier 1: 96 of 128 threads arrived" in message
    message = fails("setp.eq.u32 %p0, %w, 1; @%p0 ret; bar.sync 0;", "deadlock", order=order)
    assert "warp 1 has exited" in message
    fails("bar.sync 0, 96;", "deadlock", order=order, threads=64 + 64)
    fails("bar.sync 16;", "does not exist")
    fails("bar.sync 0, 33;", "multiple of 32")
    fails("mad.lo.u32 %r0, %w, 32, 32; bar.sync 0, %r0;", "deadlock|others expect", order=order)


# cp.async

COPY = """
cp.async.cg.shared.global [%s], [%src], 16;
{commit}
{wait}
{barrier}
add.u32 %r0, %t, 32; rem.u32 %r0, %r0, 128; mad.lo.u32 %r0, %r0, 16, %smem;
ld.shared.u32 %r1, [%r0+4];
mad.wide.u32 %rd0, %t, 4, %out;
st.global.u32 [%rd0], %r1;
"""
COMMIT, BARRIER = "cp.async.commit_group;", "bar.sync 0;"


@pytest.mark.parametrize(("landing", "order"), MODES)
def test_copies_need_wait_and_barrier(landing, order):
    mode = {"landing": landing, "order": order, "seed": 2}
    wait = "cp.async.wait_group 0;"
    for commit, waits in (
        (COMMIT, wait),
        (COMMIT, "cp.async.wait_all;"),
        ("", "cp.async.wait_all;"),
        (COMMIT + COMMIT + COMMIT, "cp.async.wait_group 2;"),
    ):
        out, _ = launch(COPY.format(commit=commit, wait=waits, barrier=BARRIER), **mode)
        np.testing.assert_array_equal(out[:128], 4 * ((np.arange(128) + 32) % 128) + 1)
    broken = "race|poison|uninit"
    fails(COPY.format(commit=COMMIT, wait="", barrier=BARRIER), broken, **mode)
    fails(COPY.format(commit=COMMIT, wait="cp.async.wait_group 1;", barrier=BARRIER), broken, **mode)
    fails(COPY.format(commit="", wait=wait, barrier=BARRIER), broken, **mode)
    fails(COPY.format(commit=COMMIT, wait=wait, barrier=""), broken, **mode)
    fails(COPY.format(commit=COMMIT, wait=BARRIER, barrier=wait), broken, **mode)


@pytest.mark.parametrize("landing", ["late", "early", "random"])
def test_a_lane_sees_its_own_copy_after_its_wait_only(landing):
    body = """
    cp.async.ca.shared.global [%s], [%src], 8;
    {wait}
    {sync}
    ld.shared.u32 %r1, [{address}];
    """
    wait = "cp.async.wait_all;"
    launch(body.format(wait=wait, sync="", address="%s"), landing=landing)
    neighbour = "xor.b32 %s, %s, 16;"
    launch(body.format(wait=wait, sync=neighbour + "bar.warp.sync 0xffffffff;", address="%s"), landing=landing)
    fails(body.format(wait=wait, sync=neighbour, address="%s"), "race", landing=landing)
    message = fails(body.format(wait="", sync="", address="%s"), "poison|race", landing=landing)
    assert "cp.async.ca.shared.global [%s], [%src], 8;" in message
    assert "not waited for" in message


@pytest.mark.parametrize(("landing", "order"), MODES)
def test_short_sources_fill_with_zeros_and_touch_nothing_else(landing, order):
    """Thread t copies min(16, max(0, n - 16 t)) bytes; the buffer ends there."""
    body = """
    mul.lo.u32 %r2, %t, 16;
    min.u32 %r3, %r2, %n;
    sub.u32 %r2, %n, %r3;
    min.u32 %r2, %r2, 16;
    cp.async.cg.shared.global.L2::128B [%s], [%src], 16, %r2;
    cp.async.wait_all;
    ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%s];
    mad.wide.u32 %rd0, %t, 16, %out;
    st.global.v4.u32 [%rd0], {%r4, %r5, %r6, %r7};
    """
    source = np.arange(1, 708, dtype=np.uint8)
    out, _ = launch(body, source, n=707, landing=landing, order=order)
    np.testing.assert_array_equal(out.view(np.uint8), np.pad(source, (0, 2048 - 707)))
    fails(body, "out of bounds.*lane", source=source, n=708, landing=landing, order=order)
    fails(body.replace("min.u32 %r2, %r2, 16;", ""), "source bytes in a copy of 16", source=source, n=707)


@pytest.mark.parametrize("landing", ["late", "early", "random"])
def test_late_copies_read_their_source_late(landing):
    """Overwriting the source of a copy in flight is the program's fault, and shows in late landing."""
    body = """
    cp.async.ca.shared.global [%s], [%src], 4;
    st.global.u32 [%src], 99;
    cp.async.wait_all;
    ld.shared.u32 %r0, [%s];
    """
    out, _ = launch(body + STORE.format("%r0"), landing=landing)
    if landing != "random":
        assert (out[:128] == (99 if landing == "late" else 4 * np.arange(128))).all()


@pytest.mark.parametrize(("landing", "order"), MODES)
def test_overwriting_while_others_read_or_copies_fly(landing, order):
    mode = {"landing": landing, "order": order}
    body = """
    st.shared.u32 [%s], %t; bar.sync 0;
    xor.b32 %r0, %s, 512; ld.shared.u32 %r1, [%r0];
    {barrier}
    cp.async.ca.shared.global [%s], [%src], 4;
    {then}
    cp.async.wait_all;
    """
    launch(body.format(barrier=BARRIER, then=""), **mode)
    fails(body.format(barrier="", then=""), "race|poison", **mode)
    fails(body.format(barrier=BARRIER, then="st.shared.u32 [%s], 1;"), "race", **mode)
    fails(body.format(barrier=BARRIER, then="cp.async.ca.shared.global [%s], [%src], 4;"), "race", **mode)


# mbarriers: warp 0 copies 16 bytes a lane, the others read them

MBARRIER = """
setp.eq.u32 %p0, %t, 0;
@%p0 mbarrier.init.shared::cta.b64 [%bar], {count};
@%p0 mbarrier.init.shared::cta.b64 [%bar+8], 3;
{visible}
setp.ne.u32 %p1, %w, 0; @%p1 bra CONSUMER;
mov.u32 %r0, 0;
PRODUCE:
and.b32 %r1, %r0, 1; xor.b32 %r1, %r1, 1;
EMPTY: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%bar+8], %r1; @!%p2 bra EMPTY;
{after_empty}
mul.wide.u32 %rd0, %r0, 512; mad.wide.u32 %rd0, %l, 16, %rd0; add.s64 %rd0, %rd0, %in;
cp.async.cg.shared.global [%s], [%rd0], 16;
{arrive}
add.u32 %r0, %r0, 1; setp.lt.u32 %p3, %r0, 3; @%p3 bra PRODUCE;
bra DONE;
CONSUMER:
mov.u32 %r0, 0; mov.u32 %r5, 0;
CONSUME:
and.b32 %r1, %r0, 1;
FULL: mbarrier.test_wait.parity.shared::cta.b64 %p2, [%bar], {parity}; @!%p2 bra FULL;
mad.lo.u32 %r2, %l, 16, %smem; xor.b32 %r2, %r2, 16; ld.shared.u32 %r3, [%r2]; add.u32 %r5, %r5, %r3;
{release}
@%p4 mbarrier.arrive.shared::cta.b64 _, [%bar+8];
add.u32 %r0, %r0, 1; setp.lt.u32 %p3, %r0, 3; @%p3 bra CONSUME;
mad.wide.u32 %rd1, %t, 4, %out; st.global.u32 [%rd1], %r5;
DONE:
"""
GOOD = {
    "count": "32",
    "visible": "fence.mbarrier_init.release.cluster; bar.sync 0;",
    "after_empty": "bar.warp.sync 0xffffffff;",
    "arrive": "cp.async.mbarrier.arrive.noinc.shared.b64 [%bar];",
    "parity": "%r1",
    "release": "bar.warp.sync 0xffffffff; elect.sync _|%p4, 0xffffffff;",
}
MBARRIER_FAULTS = {
    "initialisation not visible": ({"visible": ""}, "race|no mbarrier"),
    "arrival does not wait for the copy": (
        {"arrive": "mbarrier.arrive.shared::cta.b64 %rd5, [%bar];"},
        "poison|race",
    ),
    "wrong parity": ({"parity": "1"}, "poison|race|uninit|deadlock"),
    "too many arrivals expected": ({"count": "33"}, "deadlock"),
    "too few arrivals expected": ({"count": "31"}, "arrivals at the mbarrier"),
    "release without the warp's reads": (
        {"release": "elect.sync _|%p4, 0xffffffff;"},
        "race",
    ),
    "release of one warp only": (
        {"release": "bar.warp.sync 0xffffffff; elect.sync _|%p4, 0xffffffff; setp.eq.and.u32 %p4, %w, 1, %p4;"},
        "deadlock",
    ),
}


@pytest.mark.parametrize(("landing", "order"), MODES)
def test_a_ring_of_one_slot_with_mbarriers(landing, order):
    source = np.arange(3 * 128, dtype=np.uint32)
    out, report = launch(MBARRIER.format(**GOOD), source, landing=landing, order=order, seed=4)
    lane = np.arange(96) % 32
    np.testing.assert_array_equal(out[32:128], sum(128 * i + 4 * (lane ^ 1) for i in range(3)))
    assert report.instructions["mbarrier.arrive"] == 9


@pytest.mark.parametrize(("landing", "order"), MODES)
@pytest.mark.parametrize("fault", MBARRIER_FAULTS)
def test_mbarrier_faults(fault, landing, order):
    change, words = MBARRIER_FAULTS[fault]
    body = MBARRIER.format(**{**GOOD, **change})
    fails(body, words, source=np.arange(3 * 128, dtype=np.uint32), landing=landing, order=order, seed=4)


def test_mbarrier_rules():
    init = "setp.eq.u32 %p0, %t, 0; @%p0 mbarrier.init.shared.b64 [%bar], {}; bar.sync 0;"
    fails(init.format(0), "count is 1 to")
    fails(init.format(1) + "@%p0 mbarrier.init.shared.b64 [%bar], 1;", "initialised twice")
    again = "@%p0 mbarrier.inval.shared.b64 [%bar]; @%p0 mbarrier.init.shared.b64 [%bar], 1;"
    launch(init.format(1) + again)
    fails("mbarrier.arrive.shared.b64 %rd5, [%bar];", "no mbarrier was initialised")
    fails(init.format(1) + "ld.shared.u32 %r0, [%bar];", "belongs to an mbarrier")
    fails(init.format(1) + "mbarrier.arrive.shared.b64 %rd5, [%bar+4];", "misaligned")
    state = (
        init.format(128)
        + """
    mbarrier.arrive.shared.b64 %rd5, [%bar];
    WAIT: mbarrier.test_wait.shared.b64 %p2, [%bar], %rd5; @!%p2 bra WAIT;
    """
    )
    out, _ = launch(state + STORE.format("%t"))
    np.testing.assert_array_equal(out[:128], np.arange(128))
    expect = init.format(1) + "@%p0 mbarrier.arrive.expect_tx.shared.b64 %rd5, [%bar], 64;"
    message = fails(expect + "WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%bar], 0; @!%p2 bra WAIT;", "deadlock")
    assert "0 of 1 arrivals and 64 bytes outstanding" in message


# Warp-wide instructions


def test_shuffles():
    lane = np.arange(32)
    cases = {
        "idx.b32 %r0|%p0, %l, 7, 31": (lane * 0 + 7, lane >= 0),
        "bfly.b32 %r0|%p0, %l, 5, 31": (lane ^ 5, lane >= 0),
        "up.b32 %r0|%p0, %l, 3, 0": (np.where(lane >= 3, lane - 3, lane), lane >= 3),
        "down.b32 %r0|%p0, %l, 3, 31": (np.where(lane <= 28, lane + 3, lane), lane <= 28),
        "down.b32 %r0|%p0, %l, 3, 6175": (np.where(lane % 8 <= 4, lane + 3, lane), lane % 8 <= 4),
    }
    for text, (value, valid) in cases.items():
        body = f"shfl.sync.{text}, 0xffffffff; selp.b32 %r1, 256, 0, %p0; add.u32 %r0, %r0, %r1;"
        out, _ = launch(body + STORE.format("%r0"), threads=64)
        np.testing.assert_array_equal(out[:64], np.tile(value + 256 * valid, 2))
    fails("shfl.sync.idx.b32 %r0, %l, 31, 31, 0xffffffff;", "lane 31, which is not active", threads=40)
    fails("shfl.sync.idx.b32 %r0, %l, 0, 31, 0xffff;", "member mask 0xffff")


def test_votes_elections_and_reductions():
    lane = np.arange(64) % 32
    setup = "setp.lt.u32 %p0, %l, 5; setp.lt.u32 %p1, %l, 32; setp.eq.u32 %p2, %w, 1; mov.pred %p5, %p2;"
    cases = {
        "vote.sync.ballot.b32 %r0, %p0, 0xffffffff;": lane * 0 + 31,
        "vote.sync.ballot.b32 %r0, !%p0, 0xffffffff;": lane * 0 + 0xFFFFFFE0,
        "vote.sync.any.pred %p4, %p0, 0xffffffff; selp.b32 %r0, 1, 0, %p4;": lane * 0 + 1,
        "vote.sync.all.pred %p4, %p0, 0xffffffff; selp.b32 %r0, 1, 0, %p4;": lane * 0,
        "vote.sync.all.pred %p4, %p1, 0xffffffff; selp.b32 %r0, 1, 0, %p4;": lane * 0 + 1,
        "elect.sync %r1|%p4, 0xffffffff; selp.b32 %r0, 1, 0, %p4;": lane == 0,
        "redux.sync.add.u32 %r0, %l, 0xffffffff;": lane * 0 + 496,
        "redux.sync.max.s32 %r0, %l, 0xffffffff;": lane * 0 + 31,
        "activemask.b32 %r0;": lane * 0 + 0xFFFFFFFF,
        "mov.u32 %r0, 0; @%p0 activemask.b32 %r0;": np.where(lane < 5, 31, 0),
    }
    for text, expected in cases.items():
        out, _ = launch(setup + text + STORE.format("%r0"), threads=64)
        np.testing.assert_array_equal(out[:64], expected)
    out, _ = launch(
        "vote.sync.ballot.b32 %r0, %p0, 0xffffffff;".join(["setp.lt.u32 %p0, %l, 64;", STORE.format("%r0")]), threads=40
    )
    np.testing.assert_array_equal(out[:40], np.where(np.arange(40) < 32, 0xFFFFFFFF, 0xFF))
