"""Global and shared memory of the emulator: bounds, alignment, uninitialised bytes, races, bank conflicts, atomics."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from emmy.emulator import Emulator, EmulatorError, Pointer, Uninitialised

MODES = list(itertools.product(("late", "early", "random"), ("fixed", "reversed", "random")))
ORDERS = ("fixed", "reversed", "random")


def kernel(body: str, shared: str = ".shared .align 16 .b8 smem[8192];") -> Emulator:
    """A kernel of (in, out, n) whose %t is the thread, %in and %out its pointers, %s = smem + 4 * thread."""
    return Emulator(f"""
.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out, .param .u32 n)
{{
.reg .pred %p<4>;
.reg .b16 %h<4>;
.reg .b32 %r<12>;
.reg .b32 %t, %w, %l, %n, %s, %smem;
.reg .b64 %rd<6>;
.reg .b64 %in, %out;
{shared}
ld.param.u64 %in, [in];
ld.param.u64 %out, [out];
ld.param.u32 %n, [n];
mov.u32 %t, %tid.x;
shr.u32 %w, %t, 5;
and.b32 %l, %t, 31;
mov.u32 %smem, smem;
shl.b32 %s, %t, 2;
add.u32 %s, %s, %smem;
{body}
ret;
}}
""")


def launch(emulator: Emulator, source=None, out=None, n: int = 0, threads: int = 128, grid: int = 1, **mode):
    source = np.arange(1024, dtype=np.uint32) if source is None else source
    out = np.zeros(1024, np.uint32) if out is None else out
    report = emulator.launch("k", (grid, 1, 1), (threads, 1, 1), [source, out, n], **mode)
    return out, report


def fails(body: str, words: str, **arguments) -> str:
    with pytest.raises(EmulatorError, match=words) as caught:
        launch(kernel(body), **arguments)
    assert "PTX line" in str(caught.value)
    return str(caught.value)


# Global memory


@pytest.mark.parametrize("suffix", ["u8", "u16", "u32", "u64", "v2.u32", "v4.u32", "v2.u64", "v4.u16", "v2.u8"])
def test_vectors_of_every_width_move_bytes(suffix):
    count = int(suffix[1]) if suffix[0] == "v" else 1
    width = int(suffix.split("u")[1]) // 8
    size = count * width
    registers = [f"%{'rd' if width == 8 else 'r'}{i}" for i in range(count)]
    vector = registers[0] if count == 1 else "{" + ", ".join(registers) + "}"
    body = f"""
    mad.wide.u32 %rd4, %t, {size}, %in;
    mad.wide.u32 %rd5, %t, {size}, %out;
    ld.global.nc.L1::no_allocate.L2::128B.{suffix} {vector}, [%rd4];
    mad.lo.u32 %s, %t, {size}, %smem;
    st.shared.{suffix} [%s+16], {vector};
    ld.shared.{suffix} {vector}, [%s+16];
    st.global.{suffix} [%rd5], {vector};
    """
    source = np.random.default_rng(0).integers(0, 256, 128 * size, np.uint8)
    out = np.zeros(128 * size, np.uint8)
    launch(kernel(body), source, out)
    np.testing.assert_array_equal(out, source)


def test_narrow_loads_extend():
    body = """
    cvt.u64.u32 %rd0, %t;
    add.s64 %rd1, %in, %rd0;
    ld.global.s8 %r0, [%rd1];
    ld.global.u8 %r1, [%rd1];
    mad.wide.u32 %rd2, %t, 8, %out;
    st.global.v2.u32 [%rd2], {%r0, %r1};
    """
    source = np.arange(128, dtype=np.uint8) * 2
    out, _ = launch(kernel(body), source, np.zeros((128, 2), np.uint32))
    np.testing.assert_array_equal(out[:, 0].view(np.int32), source.view(np.int8))
    np.testing.assert_array_equal(out[:, 1], source)


COPY = """
mad.wide.u32 %rd0, %t, 4, %in;
mad.wide.u32 %rd1, %t, 4, %out;
ld.global.u32 %r0, [%rd0{a}];
st.global.u32 [%rd1{b}], %r0;
"""


@pytest.mark.parametrize("order", ORDERS)
def test_bounds_of_global_buffers(order):
    source, out = np.arange(128, dtype=np.uint32), np.zeros(128, np.uint32)
    launch(kernel(COPY.format(a="", b="")), source, out, order=order)
    np.testing.assert_array_equal(out, source)
    message = fails(COPY.format(a="+4", b=""), "out of bounds: byte 512 of a buffer of 512", source=source, out=out)
    assert "ld.global.u32" in message
    assert "CTA (0, 0, 0), warp 3, lane 31" in message
    message = fails(COPY.format(a="", b="+-4"), "out of bounds: byte -4", source=source, out=out, order=order)
    assert "st.global.u32" in message
    fails(COPY.format(a="+1099511627776", b=""), "out of bounds", source=source, out=out, order=order)
    fails("mov.u64 %rd0, 0; ld.global.u32 %r0, [%rd0];", "out of bounds: no buffer", order=order)


def test_misaligned_accesses():
    fails(COPY.format(a="+2", b=""), "misaligned: global")
    fails("mad.wide.u32 %rd0, %t, 4, %in; ld.global.v2.u32 {%r0, %r1}, [%rd0];", "misaligned.*lane 1")
    fails("st.shared.v4.u32 [%s], {%t, %t, %t, %t};", "misaligned: shared.*lane 1")
    fails("st.shared.u32 [%s+2], %t;", "misaligned: shared.*lane 0")


def test_uninitialised_global_memory():
    out = np.zeros(128, np.uint32)
    body = """
    mad.wide.u32 %rd1, %t, 4, %out;
    setp.lt.u32 %p0, %t, %n;
    @%p0 st.global.u32 [%rd1], %t;
    ld.global.u32 %r0, [%rd1];
    add.u32 %r0, %r0, 1;
    st.global.u32 [%rd1], %r0;
    """
    launch(kernel(body), out=Uninitialised(out), n=128)
    np.testing.assert_array_equal(out, np.arange(128) + 1)
    fails(body, r"uninitialised: byte 400 .*warp 3, lane 4\)", out=Uninitialised(out), n=100)


def test_one_array_has_one_address_and_pointers_reach_into_it():
    array = np.arange(256, dtype=np.uint32)
    body = COPY.format(a="", b="")
    launch(kernel(body), array, Pointer(array, 512))
    np.testing.assert_array_equal(array[128:], np.arange(128))
    launch(kernel("sub.s64 %rd0, %in, %out; st.global.u64 [%out], %rd0;"), array, array, threads=1)
    assert array[:2].view(np.uint64)[0] == 0
    brain = np.arange(64).astype(ml_dtypes.bfloat16)
    launch(kernel(body), brain, copied := np.zeros(64, ml_dtypes.bfloat16), threads=32)
    np.testing.assert_array_equal(copied.view(np.uint16), brain.view(np.uint16))
    with pytest.raises(EmulatorError, match="C-contiguous"):
        launch(kernel(body), array[::2], array)


def test_atomics():
    body = """
    mov.u64 %rd0, 8;
    add.s64 %rd0, %rd0, %out;
    atom.global.add.u32 %r0, [%out], 1;
    red.global.add.f32 [%out+4], 0f3F000000;
    atom.global.max.u32 %r1, [%rd0], %t;
    mad.wide.u32 %rd1, %t, 4, %out;
    st.global.u32 [%rd1+16], %r0;
    """
    out, report = launch(kernel(body), out=np.zeros(260, np.uint32), grid=2)
    assert out[0] == 256
    assert out[1:2].view(np.float32)[0] == 128
    assert out[2] == 127
    np.testing.assert_array_equal(out[4:132], np.arange(128) + 128)
    assert report.instructions["atom.global"] == 16
    assert report.instructions["red.global"] == 8


# Shared memory

# Each thread writes its word and reads that of a thread in the next warp.
EXCHANGE = """
st.shared.u32 [%s], %t;
{barrier}
add.u32 %r0, %t, 32; rem.u32 %r0, %r0, 128; mad.lo.u32 %r0, %r0, 4, %smem;
ld.shared.u32 %r1, [%r0];
{second}
mad.wide.u32 %rd0, %t, 4, %out;
st.global.u32 [%rd0], %r1;
"""


@pytest.mark.parametrize(("landing", "order"), MODES)
def test_a_barrier_orders_writes_before_reads(landing, order):
    mode = {"landing": landing, "order": order}
    out, report = launch(kernel(EXCHANGE.format(barrier="bar.sync 0;", second="")), **mode)
    np.testing.assert_array_equal(out[:128], (np.arange(128) + 32) % 128)
    assert report.instructions["bar.sync"] == 4
    fails(EXCHANGE.format(barrier="", second=""), "race: reads|race: overwrites|uninitialised", **mode)
    # Writing again what another warp reads needs a second barrier.
    again = "st.shared.u32 [%s], %l;"
    launch(kernel(EXCHANGE.format(barrier="bar.sync 0;", second="bar.sync 0; " + again)), **mode)
    fails(EXCHANGE.format(barrier="bar.sync 0;", second=again), "race: (overwrites|reads)", **mode)


def test_race_names_both_lines():
    body = EXCHANGE.format(barrier="", second="")
    message = fails("st.shared.u32 [%s], 1; bar.sync 0;" + body, "race")
    assert "ld.shared.u32 %r1, [%r0];" in message
    assert "st.shared.u32 [%s], %t;" in message
    message = fails("st.shared.u32 [%smem], %l;", "in the same instruction")
    assert "also written by warp" in message


def test_writes_of_two_warps_race():
    body = """
    setp.eq.u32 %p0, %w, 0; setp.eq.u32 %p1, %w, 1; setp.eq.u32 %p2, %l, 3;
    and.pred %p0, %p0, %p2; and.pred %p1, %p1, %p2;
    @%p0 st.shared.u32 [%smem], 1;
    {barrier}
    @%p1 st.shared.u32 [%smem], 2;
    """
    for order in ORDERS:
        fails(body.format(barrier=""), "race: overwrites .* written by warp", order=order)
        launch(kernel(body.format(barrier="bar.sync 0;")), order=order)


def test_lanes_of_a_warp_need_a_warp_barrier():
    body = """
    st.shared.u32 [%s], %t;
    {barrier}
    xor.b32 %r0, %s, 4;
    ld.shared.u32 %r1, [%r0];
    {second}
    st.shared.u32 [%s], %r1;
    ld.shared.u32 %r2, [%s];
    """
    sync = "bar.warp.sync 0xffffffff;"
    launch(kernel(body.format(barrier=sync, second=sync)))
    fails(body.format(barrier="", second=sync), "race: reads .* written by warp 0")
    fails(body.format(barrier=sync, second=""), "race: overwrites .* still read by warp 0")


def test_broadcast_reads_are_remembered_for_all_lanes():
    body = """
    @%p0 st.shared.u32 [%smem], 5;
    bar.warp.sync 0xffffffff;
    ld.shared.u32 %r0, [%smem];
    {barrier}
    @%p1 st.shared.u32 [%smem], 6;
    """
    setup = "setp.eq.u32 %p0, %t, 0; setp.eq.u32 %p1, %t, {lane};"
    for lane in (0, 17, 31):
        prefix = setup.format(lane=lane)
        fails(prefix + body.format(barrier=""), "race: overwrites .* still read", threads=32)
        launch(kernel(prefix + body.format(barrier="bar.warp.sync 0xffffffff;")), threads=32)


def test_uninitialised_and_out_of_bounds_shared_memory():
    message = fails("ld.shared.u32 %r0, [%s];", "uninitialised: shared address 0x400 was never written")
    assert "warp 0, lane 0" in message
    fails("st.shared.u32 [%s], 1; ld.shared.v2.u32 {%r0, %r1}, [%smem+512];", "uninitialised")
    fails("st.shared.u32 [%s+8192], 1;", "out of bounds: the CTA has 8192 bytes")
    fails("mov.u32 %r0, 0; st.shared.u32 [%r0], 1;", "out of bounds")
    # Half a word is not a word, and neighbouring halves belong to whoever wrote them.
    halves = "mad.lo.u32 %r0, %t, 2, %smem; mov.u16 %h0, 7; {} st.shared.u16 [%r0], %h0; ld.shared.u16 %h1, [%r0];"
    launch(kernel(halves.format("")))
    fails(halves.format("st.shared.u16 [%smem+512], 1; bar.sync 0; ld.shared.u32 %r1, [%smem+512];"), "race|uninit")


def test_dynamic_shared_memory():
    source = """
.version 8.0
.target sm_80
.address_size 64
.extern .shared .align 128 .b8 dynamic[];
.visible .entry k(.param .u64 out)
{
.reg .b32 %r<4>; .reg .b64 %rd<1>;
.shared .align 4 .b8 fixed[20];
ld.param.u64 %rd0, [out];
mov.u32 %r0, dynamic; mov.u32 %r1, fixed; mov.u32 %r2, %dynamic_smem_size;
st.shared.u32 [dynamic+252], %r0;
ld.shared.u32 %r3, [%r0+252];
st.global.v4.u32 [%rd0], {%r0, %r1, %r2, %r3};
ret;
}
"""
    out = np.zeros(4, np.uint32)
    Emulator(source).launch("k", (1, 1, 1), (1, 1, 1), [out], shared_bytes=256)
    np.testing.assert_array_equal(out, [1152, 1024, 256, 1152])
    with pytest.raises(EmulatorError, match="out of bounds"):
        Emulator(source).launch("k", (1, 1, 1), (1, 1, 1), [out], shared_bytes=252)


@pytest.mark.parametrize(
    ("address", "suffix", "extra"),
    [
        ("shl.b32 %r8, %l, 2;", "u32 {}, %t", 0),  # one row of banks
        ("shl.b32 %r8, %l, 3;", "u32 {}, %t", 1),  # stride 2 words: two lanes a bank
        ("shl.b32 %r8, %l, 7;", "u32 {}, %t", 31),  # one bank
        ("shl.b32 %r8, %l, 4;", "v4.u32 {}, {{%t, %t, %t, %t}}", 0),  # four phases of 8 lanes, 128 bytes each
        ("shl.b32 %r8, %l, 7;", "v4.u32 {}, {{%t, %t, %t, %t}}", 28),  # each phase: 8 lanes, one group of banks
        ("shl.b32 %r8, %l, 3;", "v2.u32 {}, {{%t, %t}}", 0),
        ("shl.b32 %r8, %l, 4;", "v2.u32 {}, {{%t, %t}}", 2),  # two phases of 16 lanes, two lanes a bank pair
    ],
)
def test_bank_conflicts_of_stores(address, suffix, extra):
    body = f"{address} add.u32 %r8, %r8, %smem; st.shared.{suffix.format('[%r8]')};"
    _, report = launch(kernel(body), threads=32)
    assert report.total_bank_conflicts == extra
    assert sum(report.bank_conflicts.values()) == extra


def test_broadcast_has_no_bank_conflict():
    body = "st.shared.u32 [%s], %t; bar.sync 0; ld.shared.u32 %r0, [%smem]; {}"
    _, report = launch(
        kernel(body.format("shr.u32 %r1, %l, 1; mad.lo.u32 %r1, %r1, 4, %smem; ld.shared.u32 %r2, [%r1];"))
    )
    assert report.total_bank_conflicts == 0
    _, report = launch(kernel(body.format("mad.lo.u32 %r1, %l, 8, %smem; ld.shared.u32 %r2, [%r1];")))
    assert list(report.bank_conflicts.values()) == [4]


def test_partial_warps_and_grids():
    out, _ = launch(
        kernel(EXCHANGE.replace("128", "40").replace("%t, 32", "%t, 8").format(barrier="bar.sync 0;", second="")),
        threads=40,
    )
    np.testing.assert_array_equal(out[:40], (np.arange(40) + 8) % 40)
    assert (out[40:] == 0).all()
    with pytest.raises(EmulatorError, match="too large"):
        launch(kernel(""), threads=1025)
    with pytest.raises(EmulatorError, match="no kernel"):
        kernel("").launch("other", (1, 1, 1), (1, 1, 1), [])
