"""st.async on the emulator: data arrives when the mbarrier beside it says so, and every misuse is a fault with its line."""

from __future__ import annotations

import numpy as np
import pytest

from emmy.emulator import Emulator
from emmy.emulator.faults import EmulatorError

STORE = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%to], {%v, %v, %v, %v}, [%bar];"

TEXT = """.version 8.1
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry give(.param .u64 out)
.maxntid 32, 1, 1
.reqnctapercluster 2, 1, 1
{
.reg .b32 %r<8>, %v, %to, %bar, %smem, %other, %rank, %lane;
.reg .b64 %rd<4>;
.reg .pred %p<4>, %first;
mov.u32 %smem, smem;
mov.u32 %lane, %tid.x;
mov.u32 %rank, %cluster_ctarank;
xor.b32 %other, %rank, 1;
setp.eq.u32 %first, %lane, 0;
@%first mbarrier.init.shared.b64 [%smem+1024], 1;
@%first fence.mbarrier_init.release.cluster;
bar.warp.sync -1;
barrier.cluster.arrive.relaxed.aligned;
barrier.cluster.wait.acquire.aligned; // begun
@%first mbarrier.arrive.expect_tx.shared.b64 _, [%smem+1024], 512; // expect
shl.b32 %r0, %lane, 4;
add.u32 %r0, %r0, %smem;
mapa.shared::cluster.u32 %to, %r0, %other;
add.u32 %r1, %smem, 1024;
mapa.shared::cluster.u32 %bar, %r1, %other;
mad.lo.u32 %v, %rank, 100, %lane;
STORE
WAIT: mbarrier.try_wait.parity.shared.b64 %p0, [%smem+1024], 0; // wait
@!%p0 bra WAIT;
ld.shared.v4.b32 {%r2, %r3, %r4, %r5}, [%r0];
ld.param.u64 %rd0, [out];
mad.lo.u32 %r6, %rank, 32, %lane;
mad.wide.u32 %rd1, %r6, 4, %rd0;
st.global.b32 [%rd1], %r5;
ret;
}
""".replace("STORE", STORE)


def run(text: str, landing: str = "late", order: str = "fixed") -> np.ndarray:
    out = np.full(64, -1, np.int32)
    Emulator(text).launch("give", (2, 1, 1), (32, 1, 1), [out], 2048, landing=landing, order=order, seed=3)
    return out


@pytest.mark.parametrize("landing", ["late", "early", "random"])
@pytest.mark.parametrize("order", ["fixed", "reversed", "random"])
def test_each_cta_gets_what_the_other_one_gives(landing, order):
    lanes = np.arange(32)
    np.testing.assert_array_equal(run(TEXT, landing, order), np.concatenate([100 + lanes, lanes]))


FAULTS = {
    "no wait": ("@!%p0 bra WAIT;", "", "poison|not waited for"),
    "mbarriers that may not be there yet": (
        "barrier.cluster.wait.acquire.aligned; // begun",
        "",
        "no mbarrier was initialised|without order after its initialisation",
    ),
    "another CTA's mbarrier": ("[%bar];", "[%smem+1024];", "counts on an mbarrier of another CTA"),
    "misaligned": (STORE, STORE.replace("[%to]", "[%to+4]"), "no multiple of 16 bytes"),
    "out of bounds": (STORE, STORE.replace("[%to]", "[%to+4096]"), "out of bounds"),
    "over an mbarrier": (STORE, STORE.replace("[%to]", "[%to+1024]"), "belongs to an mbarrier"),
    "fewer bytes than expected": (", 512; // expect", ", 528; // expect", "deadlock"),
    "a CTA that does not wait": (
        "WAIT: mbarrier.try_wait",
        "bra END;\nWAIT: mbarrier.try_wait",
        "the CTA ends|has ended",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_misuse_is_a_fault(name):
    old, new, words = FAULTS[name]
    assert old in TEXT
    broken = TEXT.replace(old, new)
    if "END" in new:
        broken = broken.replace("ret;", "END: ret;")
    messages = []
    for landing, order in (("late", "fixed"), ("late", "reversed"), ("early", "fixed")):
        try:
            run(broken, landing, order)
        except EmulatorError as error:
            messages.append(str(error))
    assert any(word in message for word in words.split("|") for message in messages), messages


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (".version 8.1", ".version 8.0", "needs .version 8.1"),
        (".v4.b32", ".v2.b32", "v4"),
        (".shared::cluster.mbarrier::complete_tx", ".mbarrier::complete_tx", "shared::cluster"),
    ],
)
def test_other_spellings_are_refused(old, new, words):
    with pytest.raises(EmulatorError, match=words):
        Emulator(TEXT.replace(old, new))
