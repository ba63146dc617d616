"""The pool of registers by the measured examples of `setmaxnreg`: registers at entry x threads is all that there is."""

from __future__ import annotations

import numpy as np
import pytest

from emmy.emulator import Emulator, EmulatorError

#  threads, CTAs of a multiprocessor, registers at entry, of producers, of consumers, does it run
MEASURED = [
    (640, 1, 96, 24, 120, False),  # 128 * 24 + 512 * 120 = 64,512, but 640 * 96 = 61,440
    (640, 1, 96, 24, 112, True),
    (384, 2, 80, 24, 112, False),
    (384, 2, 80, 24, 104, True),
    (384, 1, 168, 24, 240, True),
    (384, 1, 168, 32, 240, False),
    (384, 1, 168, 40, 232, True),
    (512, 1, 128, 32, 160, True),
    (512, 1, 128, 24, 168, False),
    (256, 1, 248, 24, 248, True),
]


def text(threads: int, ctas: int, producers: int, consumers: int, cluster: str = "") -> str:
    return f"""
.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out)
{cluster}
.maxntid {threads}, 1, 1
.minnctapersm {ctas}
{{
.reg .pred %p<2>;
.reg .b32 %t, %r;
.reg .b64 %out;
ld.param.u64 %out, [out];
mov.u32 %t, %tid.x;
setp.lt.u32 %p0, %t, 128;
@%p0 bra PRODUCER;
setmaxnreg.inc.sync.aligned.u32 {consumers};
bra DONE;
PRODUCER: setmaxnreg.dec.sync.aligned.u32 {producers};
DONE: setp.eq.u32 %p1, %t, 0;
mov.u32 %r, 1;
@%p1 st.global.u32 [%out], %r;
ret;
}}
"""


@pytest.mark.parametrize("order", ["fixed", "reversed", "random"])
@pytest.mark.parametrize(("threads", "ctas", "entry", "producers", "consumers", "runs"), MEASURED)
def test_what_runs_and_what_hangs(threads, ctas, entry, producers, consumers, runs, order):
    emulator = Emulator(text(threads, ctas, producers, consumers))
    out = np.zeros(1, np.uint32)
    if runs:
        emulator.launch("k", (1, 1, 1), (threads, 1, 1), [out], order=order)
        assert out[0] == 1
        return
    with pytest.raises(EmulatorError, match="deadlock") as caught:
        emulator.launch("k", (1, 1, 1), (threads, 1, 1), [out], order=order)
    assert f"register pool: {entry} at entry for {threads} threads" in str(caught.value)


def test_every_cta_of_a_cluster_has_its_own_pool():
    out = np.zeros(1, np.uint32)
    good = text(384, 1, 24, 240, ".reqnctapercluster 2, 1, 1")
    Emulator(good).launch("k", (2, 1, 1), (384, 1, 1), [out])
    with pytest.raises(EmulatorError, match="deadlock in the cluster") as caught:
        Emulator(good.replace("u32 24;", "u32 32;")).launch("k", (2, 1, 1), (384, 1, 1), [out])
    assert "register pool of CTA rank 1: 168 at entry for 384 threads" in str(caught.value)
