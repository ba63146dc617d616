"""The emulator's reading of PTX text: directives, comments, scopes, several kernels, launch limits."""

from __future__ import annotations

import numpy as np
import pytest

from emmy.emulator import Emulator, EmulatorError, Uninitialised

TEXT = """
//
// two kernels
//
.version 8.0
.target sm_90a, debug
.address_size 64
.file 1 "gemm.mlir"
.shared .align 16 .b32 table[2][4];   /* 32 bytes,
   shared by both */

.visible .entry first(
    .param .u64 .ptr .global .align 16 first_param_0, // pointer
    .param .b32 first_param_1
)
.maxntid 64, 1, 1
.minnctapersm 2
{
    .reg .pred %p<2>, %q;
    .reg .b32 %r<4>, %extra;
    .reg .f32 %f<2>;
    .reg .b64 %rd<2>;
    .pragma "nounroll";
    .loc 1 7 3
    ld.param.u64 %rd0, [first_param_0+0];
    ld.param.u32 %r0, [first_param_1];
    mov.u32 %r1, 0x10;  mov.f32 %f0, 0f3F800000;
    {
        .reg .b32 %r<2>;
        mov.u32 %r0, 5U; mov.u32 %r1, -1;
        mov.u32 %extra, %r0;
    }
    mov.b32 %r2, %f0;
    mov.b32 %r3, 0f40000000;
    add.u32 %r1, %r1, %extra;
    st.global.v4.u32 [%rd0 + 16], {%r0, %r1, %r2, %r3};
    st.shared.u32 [table+4], %r0;
    ld.shared.u32 %r1, [table+4];
$L_end:
    st.global.u32 [%rd0], %r1;
    ret;
}

.entry second(.param .u64 out)
.reqntid 32
{
    .reg .b64 %rd;
    ld.param.u64 %rd, [out];
    st.global.u32 [%rd], 77;
    exit;
}
"""


def test_two_kernels_scopes_and_literals():
    emulator = Emulator(TEXT)
    out = np.zeros(8, np.uint32)
    emulator.launch("first", (1, 1, 1), (1, 1, 1), [out, 9])
    np.testing.assert_array_equal(out, [9, 0, 0, 0, 9, 16 + 5, 0x3F800000, 0x40000000])
    emulator.launch("second", (1, 1, 1), (32, 1, 1), [Uninitialised(out)])
    assert out[0] == 77


def test_launch_limits_are_enforced():
    emulator = Emulator(TEXT)
    out = np.zeros(8, np.uint32)
    with pytest.raises(EmulatorError, match=r"limited to 64 threads by .maxntid"):
        emulator.launch("first", (1, 1, 1), (65, 1, 1), [out, 9])
    with pytest.raises(EmulatorError, match=r"by .reqntid"):
        emulator.launch("second", (1, 1, 1), (64, 1, 1), [out])
    with pytest.raises(EmulatorError, match="232448 is the most"):
        emulator.launch("first", (1, 1, 1), (1, 1, 1), [out, 9], shared_bytes=232_448)
    with pytest.raises(EmulatorError, match="positive"):
        emulator.launch("first", (0, 1, 1), (1, 1, 1), [out, 9])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (".minnctapersm 2", ".unknowndirective 2", "directive `.unknowndirective`"),
        (".pragma", ".local .b8 x[4]; .pragma", "directive `.local`"),
        ("exit;\n", "", "does not end with ret"),
        ("$L_end:", "$L_end: $L_end:", "declared twice"),
        (".reg .f32 %f<2>;", ".reg .f33 %f<2>;", "not a type"),
        ("[table+4], %r0", "[first_param_0], %r0", "param variable"),
        ("mov.u32 %r1, 0x10;", "mov.u32 %r1, first_param_1;", "cannot be taken"),
        ("mov.u32 %r1, 0x10;", "mov.u32 %r1, 0x10", "expected"),
        ("mov.u32 %r1, 0x10;", "mov.u32 %r1, ?;", "is not PTX"),
        (".address_size 64", ".global .b32 g;", "module level"),
    ],
)
def test_text_that_is_not_understood(old, new, words):
    assert old in TEXT
    with pytest.raises(EmulatorError, match=words) as caught:
        Emulator(TEXT.replace(old, new))
    assert caught.value.line > 0


def test_a_parameter_is_read_within_its_bounds():
    with pytest.raises(EmulatorError, match="outside the parameter"):
        Emulator(TEXT.replace("[first_param_1]", "[first_param_1+4]")).launch(
            "first", (1, 1, 1), (1, 1, 1), [np.zeros(8, np.uint32), 9]
        )
