"""What specialised warps need of the emulator: setmaxnreg with its pool, barriers of a role, spellings of mbarriers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from emmy.assemble import assemble, find_tool
from emmy.emulator import Emulator, EmulatorError

MODES = list(itertools.product(("late", "early", "random"), ("fixed", "reversed", "random")))
ORDERS = ("fixed", "reversed", "random")


def text(body: str, limits: str = ".maxntid 384, 1, 1\n.minnctapersm 1", target: str = "sm_90a", version: str = "8.0"):
    """A kernel of `out`: %t thread, %w warp, %g warpgroup, %bar mbarriers, %s = smem + 4 * thread."""
    return f"""
.version {version}
.target {target}
.address_size 64
.visible .entry k(.param .u64 out)
{limits}
{{
.reg .pred %p<4>;
.reg .b32 %r<6>, %t, %w, %g, %s, %bar;
.reg .b64 %rd<3>, %out;
.shared .align 16 .b8 smem[2048];
.shared .align 8 .b8 bars[64];
ld.param.u64 %out, [out];
mov.u32 %t, %tid.x;
shr.u32 %w, %t, 5;
shr.u32 %g, %t, 7;
mov.u32 %s, smem;
mad.lo.u32 %s, %t, 4, %s;
mov.u32 %bar, bars;
{body}
ret;
}}
"""


def launch(body: str, threads: int = 384, order: str = "fixed", landing: str = "late", **how):
    out = np.zeros(threads, np.uint32)
    emulator = Emulator(text(body, **how))
    return out, emulator.launch("k", (1, 1, 1), (threads, 1, 1), [out], order=order, landing=landing, seed=1)


def fails(body: str, words: str, **how) -> str:
    with pytest.raises(EmulatorError, match=words) as caught:
        launch(body, **how)
    return str(caught.value)


# setmaxnreg: 384 threads begin with 168 registers each (65536 / 384 = 170.7, down to a multiple of 8)

ROLES = """
setp.eq.u32 %p0, %g, 2;
@%p0 bra PRODUCER;
setmaxnreg.inc.sync.aligned.u32 240;
bra DONE;
PRODUCER: setmaxnreg.dec.sync.aligned.u32 24;
DONE: mov.u32 %r0, 0;
"""


@pytest.mark.parametrize("order", ORDERS)
def test_the_pool_gives_what_it_got(order):
    """2 * 128 * 240 + 128 * 24 = 384 * 168; whoever asks first waits for the producers."""
    _, report = launch(ROLES, order=order)
    assert report.instructions["setmaxnreg"] == 12
    by_directive = ".maxntid 384, 1, 1\n.maxnreg 168"
    launch(ROLES, order=order, limits=by_directive)
    # 248 needs 1024 registers more for each warp than the producers gave.
    message = fails(ROLES.replace("240", "248"), "deadlock", order=order)
    assert "waits for 2560 registers, the CTA's pool has" in message
    # One more register from each producer thread is not to be had: 24 is the least.
    fails(ROLES.replace("u32 24;", "u32 32;"), "deadlock", order=order)
    # Back again, after the warpgroups met.
    again = """
    bar.sync 0;
    setp.eq.u32 %p0, %g, 2;
    @!%p0 setmaxnreg.dec.sync.aligned.u32 168;
    @%p0 setmaxnreg.inc.sync.aligned.u32 168;
    """
    launch(ROLES + again, order=order)


RULES = {
    "a multiple of 8 from 24 to 256": (ROLES.replace("u32 24;", "u32 28;"), {}),
    "a multiple of 8 from 24 to 256 .*not 16": (ROLES.replace("u32 24;", "u32 16;"), {}),
    "an integer constant": (ROLES.replace("u32 24;", "u32 %t;"), {}),
    "needs .version 8.0 and .target sm_90a or sm_NNf": (ROLES, {"target": "sm_90"}),
    "cannot lower 168 registers to 240": (ROLES.replace("inc", "dec"), {}),
    "cannot raise 168 registers to 24": (ROLES.replace("dec", "inc"), {}),
    "is ignored \\(C7508\\)": (ROLES, {"limits": ".maxntid 384, 1, 1"}),
    "this warp's is not whole": (ROLES, {"threads": 320}),
    "all lanes of a warp must execute this together": (
        "setp.lt.u32 %p0, %t, 5; @%p0 setmaxnreg.dec.sync.aligned.u32 24;",
        {},
    ),
    "all four warps of a warpgroup must run setmaxnreg, warp 0 did not": (
        "setp.eq.u32 %p0, %w, 1; @%p0 setmaxnreg.dec.sync.aligned.u32 24;",
        {},
    ),
    "run one setmaxnreg, but warp 0 ran that of line": (
        "setp.eq.u32 %p0, %w, 0; @%p0 setmaxnreg.dec.sync.aligned.u32 24;\n@!%p0 setmaxnreg.dec.sync.aligned.u32 24;",
        {},
    ),
}


@pytest.mark.parametrize("words", RULES)
def test_rules_of_setmaxnreg(words):
    body, how = RULES[words]
    fails(body, words, **how)


# Barriers of a role: warps 0 and 1 exchange by barrier 1, warps 2 and 3 by barrier 2

EXCHANGE = """
st.shared.u32 [%s], %t;
shr.u32 %r0, %w, 1; add.u32 %r0, %r0, 1;
BARRIER
xor.b32 %r1, %s, 128; ld.shared.u32 %r2, [%r1];
mad.wide.u32 %rd0, %t, 4, %out; st.global.u32 [%rd0], %r2;
"""


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("spelling", ["bar.sync", "barrier.sync", "barrier.sync.aligned", "bar.cta.sync"])
def test_barriers_of_roles(order, spelling):
    body = EXCHANGE.replace("BARRIER", f"{spelling} %r0, 64;")
    out, _ = launch(body, threads=128, order=order)
    np.testing.assert_array_equal(out, np.arange(128) ^ 32)
    fails(EXCHANGE.replace("BARRIER", f"{spelling} %r0, 32;"), "race|uninit", threads=128, order=order)
    fails(EXCHANGE.replace("BARRIER", f"{spelling} %r0, 96;"), "deadlock", threads=128, order=order)
    fails(EXCHANGE.replace("BARRIER", f"{spelling} %r0;"), "deadlock", threads=128, order=order)


# Spellings

INIT = "setp.eq.u32 %p0, %t, 0; @%p0 mbarrier.init.shared::cta.b64 [%bar], 128; bar.sync 0;\n"
ARRIVALS = [
    "mbarrier.arrive.shared.b64 %rd0, [%bar];",
    "mbarrier.arrive.shared::cta.b64 _, [%bar];",
    "mbarrier.arrive.release.cta.shared::cta.b64 _, [%bar];",
    "mbarrier.arrive.release.cluster.shared::cta.b64 %rd0, [%bar], 1;",
    "mbarrier.arrive.shared::cluster.b64 _, [%bar];",
    "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%bar];",
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 0;",
    "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 %rd0, [%bar], 0;",
]
WAITS = [
    "mbarrier.try_wait.parity.shared.b64 %p1, [%bar], 0;",
    "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%bar], 0, 10000;",
    "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p1, [%bar], 0;",
    "mbarrier.test_wait.parity.shared::cta.b64 %p1, [%bar], 0;",
]


@pytest.mark.parametrize("order", ORDERS)
def test_spellings_of_mbarriers(order):
    """Each orders what came before the arrival before what follows the wait."""
    read = "@!%p1 bra WAIT; xor.b32 %r1, %s, 128; ld.shared.u32 %r2, [%r1];"
    for arrival, wait in [*itertools.product(ARRIVALS, WAITS[:1]), *itertools.product(ARRIVALS[:1], WAITS)]:
        launch(f"{INIT} st.shared.u32 [%s], %t; {arrival} WAIT: {wait} {read}", threads=128, order=order)


REFUSED = {
    "`.relaxed` is not known": ARRIVALS[2].replace("release", "relaxed"),
    "`.cta` is not known": ARRIVALS[2].replace("release.", ""),
    "one of .cta, .cluster is missing": ARRIVALS[2].replace("release.cta", "release"),
    "`.noComplete` is not known": ARRIVALS[0].replace("arrive", "arrive.noComplete"),
    "one of .b64 is missing": ARRIVALS[0].replace(".b64", ""),
    "one of .shared, .shared::cta is missing": ARRIVALS[4].replace("_", "%rd0"),
    "`.proxy` is not known|one of .cta": "fence.proxy.alias;",
    "one of .cta, .cluster, .gpu, .sys": "fence.acq_rel;",
    "`.gpu` is not known": "fence.proxy.async.gpu;",
    "one of .release": "fence.mbarrier_init.cluster;",
}


@pytest.mark.parametrize("words", REFUSED)
def test_refused_spellings(words):
    with pytest.raises(EmulatorError, match=words):
        Emulator(text(INIT + REFUSED[words]))


@pytest.mark.parametrize(
    ("statement", "version", "target", "words"),
    [
        (ARRIVALS[0], "7.0", "sm_80", ""),
        (ARRIVALS[1], "7.8", "sm_90", "8.0"),
        (WAITS[0], "7.8", "sm_89", "sm_90"),
        (WAITS[2], "7.8", "sm_90", "8.0"),
        (ARRIVALS[6], "8.0", "sm_89", "sm_90"),
        ("fence.proxy.async;", "8.0", "sm_89", "sm_90"),
        ("elect.sync _|%p2, 0xffffffff;", "8.0", "sm_89", "sm_90"),
        ("elect.sync _|%p2, 0xffffffff;", "7.8", "sm_90", "8.0"),
    ],
)
def test_versions_and_targets(statement, version, target, words):
    ptx = text(statement, version=version, target=target)
    if not words:
        Emulator(ptx)
        return
    with pytest.raises(EmulatorError, match=f"needs .version .*{words}"):
        Emulator(ptx)


@pytest.mark.skipif(find_tool("ptxas") is None, reason="needs ptxas")
@pytest.mark.parametrize(("target", "version"), [("sm_90a", "8.0"), ("sm_120a", "8.7")])
def test_the_texts_assemble(target, version):
    statements = [*ARRIVALS, *WAITS, "elect.sync _|%p2, 0xffffffff;", "fence.proxy.async.global;"]
    bodies = [ROLES, INIT + "\n".join(statements)]
    bodies += [
        EXCHANGE.replace("BARRIER", f"{s} %r0, 64;") for s in ("bar.sync", "barrier.sync.aligned", "bar.cta.sync")
    ]
    for body in bodies:
        ptx = text(body, target=target, version=version)
        Emulator(ptx)
        assemble(ptx, target)
