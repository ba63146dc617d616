"""TMA-loaded GEMMs on the emulator (`tma_gemm_text`); then the same texts with one fault seeded at a time, each of which the
emulator must name in every mode."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from tma_gemm_text import TARGETS, TmaGemmText

from emmy.assemble import assemble, find_tool
from emmy.emulator import Emulator, EmulatorError

MODES = list(itertools.product(("late", "early", "random"), ("fixed", "reversed", "random")))


@functools.cache
def emulator(text: str) -> Emulator:
    return Emulator(text)


@functools.cache
def operands(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Small integers: every sum is exact in f16 too, so the result must be equal bit for bit."""
    rng = np.random.default_rng(7)
    a = rng.integers(-2, 3, (m, k)).astype(np.float16)
    b = rng.integers(-2, 3, (n, k)).astype(np.float16)
    return a, b, a.astype(np.float32) @ b.astype(np.float32).T


def run(gemm: TmaGemmText, text: str, m: int, n: int, k: int, tiles: int = 1, **mode):
    a, b, wanted = operands(m, n, k)
    c = np.full((m, n), np.nan, np.float16)
    report = emulator(text).launch(
        "gemm",
        grid=(-(-n // (gemm.bn * tiles)), -(-m // gemm.bm), 1),
        block=(gemm.threads, 1, 1),
        args=[*gemm.maps(a, b, c), -(-k // gemm.bk), tiles],
        shared_bytes=gemm.shared_bytes,
        **mode,
    )
    np.testing.assert_array_equal(c, wanted)
    return report


UNIFIED = TmaGemmText(32, 64, 32, 2, 1, 3, specialised=False)
SPECIALISED = TmaGemmText(32, 64, 32, 2, 2, 3, specialised=True)
BOTH = {"unified": UNIFIED, "specialised": SPECIALISED}
SHAPE = {"m": 32, "n": 128, "k": 128, "tiles": 2}


@pytest.mark.parametrize(("landing", "order"), MODES)
@pytest.mark.parametrize("kind", BOTH)
def test_gemm_is_exact(kind, landing, order):
    gemm = BOTH[kind]
    report = run(gemm, gemm.text(), **SHAPE, landing=landing, order=order, seed=3)
    counts = report.instructions
    assert counts["mma"] == 32 * 128 * 128 // (16 * 8 * 16)
    assert counts["cp.async.bulk.tensor"] == 2 * (2 * 4 + 1)
    assert counts["mbarrier.arrive.expect_tx"] == 2 * 4
    # Waits count once, however often the emulator tries: full by each consumer warp, empty by the producer.
    assert counts["mbarrier.try_wait"] == 2 * 4 * (gemm.warps + (kind == "specialised"))
    assert counts["mbarrier.arrive"] == (2 * 4 * 4 if kind == "specialised" else 0)
    assert counts["stmatrix"] == 32 * 128 // (16 * 16)
    assert counts["setmaxnreg"] == (8 if kind == "specialised" else 0)
    assert report.total_bank_conflicts == 0


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("bk", [16, 32, 64])
@pytest.mark.parametrize("stages", [2, 4])
def test_every_swizzle_and_trip_count(kind, bk, stages):
    gemm = TmaGemmText(32, 64, bk, 1, 2, stages, specialised=kind == "specialised")
    if kind == "specialised":
        gemm = TmaGemmText(64, 64, bk, 2, 2, stages, specialised=True)
    text = gemm.text()
    for trips in (1, stages - 1, stages, stages + 1):
        report = run(gemm, text, gemm.bm, 64, bk * trips)
        assert report.total_bank_conflicts == 0


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("landing", ["late", "random"])
def test_edges_are_filled_and_clipped(kind, landing):
    """Boxes reach beyond M, N and K: rows and columns of zeros come in, nothing goes out."""
    gemm = BOTH[kind]
    run(gemm, gemm.text(), m=40, n=72, k=72, tiles=2, landing=landing, seed=1)


@pytest.mark.skipif(find_tool("ptxas") is None, reason="needs ptxas")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", BOTH)
def test_the_texts_assemble(kind, target):
    """Without spills and without messages C75xx (setmaxnreg ignored): `assemble` refuses both."""
    text = BOTH[kind].text(target)
    assemble(text, target)
    run(BOTH[kind], text, **SHAPE)


# name: (what is replaced, by what, words of the error); "" as a new text drops it.
TOO_EARLY = "race|poison|uninit"
COMMON_FAULTS = {
    "no expect_tx": (
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%at], 6144;",
        "mbarrier.arrive.shared::cta.b64 _, [%at];",
        TOO_EARLY + "|deadlock",
    ),
    "bytes of A only": ("[%at], 6144;", "[%at], 2048;", TOO_EARLY + "|deadlock"),
    "too few bytes": ("[%at], 6144;", "[%at], 6128;", "deadlock.*-16 bytes outstanding"),
    "too many bytes": ("[%at], 6144;", "[%at], 6160;", "deadlock.*16 bytes outstanding"),
    "no wait for full": (
        "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 %p, [%at], %read_phase; // wait full\n@!%p bra AGAIN;\n",
        "",
        TOO_EARLY,
    ),
    "wrong parity of full": ("[%at], %read_phase;", "[%at], %fill_phase;", TOO_EARLY + "|deadlock"),
    "parity never flips": ("@%q xor.b32 %read_phase, %read_phase, 1;", "", TOO_EARLY + "|deadlock"),
    "misaligned destination of B": ("[%dst+2048]", "[%dst+2176]", "misaligned"),
    "fragments beyond the slot": ("[%b_at+2048]", "[%b_at+999424]", "out of bounds"),
    "no fence before the store": ("fence.proxy.async.shared::cta; // fence store", "", "proxy: the bulk copy reads"),
    "fence behind the barrier": None,
    "no barrier before the store": ("SYNC // barrier store", "", "race: reads|uninit|race: overwrites"),
    "no wait before reuse": (
        "@%lead cp.async.bulk.wait_group.read 0; // acquire",
        "",
        "race: overwrites .* bulk store",
    ),
    "a wait for too few groups": (
        "wait_group.read 0; // acquire",
        "wait_group.read 1;",
        "race: overwrites .* bulk store",
    ),
    "no barrier after the wait": ("SYNC // barrier acquire", "", "race"),
    "no commit": ("@%lead cp.async.bulk.commit_group; // commit", "", "race: overwrites|the CTA ends"),
    "no drain": ("@%lead cp.async.bulk.wait_group 0; // drain", "", "the CTA ends without"),
    "no barrier after initialisation": ("bar.sync 0; // barrier init", "", "race|no mbarrier"),
    "no fence after initialisation": ("@%p fence.mbarrier_init.release.cluster; // fence init", "", "proxy: neither"),
    "full expects another arrival": ("], 1; // init full 1", "], 2;", "deadlock"),
    "every lane issues": ("setp.lt.and.u32 %go, %k, %nk, %lead;", "setp.lt.u32 %go, %k, %nk;", "race|arrivals"),
    "a ring of three used as two": ("%fill, 3; // wrap fill", "%fill, 2;", TOO_EARLY + "|deadlock"),
}
UNIFIED_FAULTS = {
    "no barrier before the refill": ("bar.sync 0; // barrier loop", "", "race: overwrites .* still read by warp"),
    "barrier after the refill": None,
}
SPECIALISED_FAULTS = {
    "no wait for empty": (
        "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 %p, [%at], %x; // wait empty\n@!%p bra AGAIN;\n",
        "",
        "race: overwrites|arrivals",
    ),
    "wrong parity of empty": ("xor.b32 %x, %fill_phase, 1;", "mov.u32 %x, %fill_phase;", "deadlock"),
    "release without a fence": (
        "fence.proxy.async.shared::cta; // fence release",
        "",
        "proxy: the bulk copy overwrites",
    ),
    "release without a warp barrier": (
        "bar.warp.sync 0xffffffff; // sync release",
        "",
        "race: overwrites|proxy: the bulk copy",
    ),
    "release before the reads": None,
    "fence before the reads": None,
    "release of one warp": ("@%elected mbarrier.arrive", "@%lead mbarrier.arrive", "deadlock"),
    "release of every lane": ("@%elected mbarrier.arrive", "mbarrier.arrive", "arrivals at the mbarrier|race|poison"),
    "empty expects too few": ("], 4; // init empty 0", "], 3;", "race|arrivals at the mbarrier|poison|deadlock"),
    "empty expects too many": ("], 4; // init empty 0", "], 5;", "deadlock"),
    "the barrier of half the consumers": ("bar.sync 1, 128; // barrier store", "bar.sync 1, 64;", "race|uninit"),
    "the barrier of the whole CTA": ("bar.sync 1, 128; // barrier acquire", "bar.sync 0;", "deadlock"),
    "too many registers": (
        "setmaxnreg.inc.sync.aligned.u32 208;",
        "setmaxnreg.inc.sync.aligned.u32 224;",
        "deadlock.*12288? registers|deadlock",
    ),
    "producers keep their registers": (
        "PRODUCER: setmaxnreg.dec.sync.aligned.u32 40;",
        "PRODUCER:",
        "deadlock.*registers, the CTA's pool has 0 free",
    ),
    "one producer warp gives registers back": None,
    "consumers lower their registers": (
        "setmaxnreg.inc.sync.aligned.u32 208;",
        "setmaxnreg.inc.sync.aligned.u32 120;",
        "cannot raise 128 registers to 120",
    ),
    "setmaxnreg is ignored": (".minnctapersm 2", "", "C7508"),
}


def moved(text: str, line: str, before: str) -> str:
    """The text with one line moved before another."""
    assert line in text
    assert before in text
    return text.replace(line, "").replace(before, line + before)


def with_fault(gemm: TmaGemmText, text: str, fault: str) -> tuple[str, str]:
    """The text with a fault, and the words to expect."""
    slot = "mad.lo.u32 %slot, %read"
    if fault == "fence behind the barrier":
        return moved(text, f"{gemm.sync} // barrier store\n", "fence.proxy.async.shared::cta; // fence store"), "proxy"
    if fault == "barrier after the refill":
        return moved(text, "bar.sync 0; // barrier loop\n", slot), "race: overwrites"
    if fault == "release before the reads":
        start = text.index("fence.proxy.async.shared::cta; // fence release")
        end = text.index("; // release\n") + len("; // release\n")
        release = text[start:end]
        return text.replace(release, "").replace(slot, release + slot), "race|proxy|poison"
    if fault == "fence before the reads":
        return moved(text, "fence.proxy.async.shared::cta; // fence release\n", slot), "proxy: the bulk copy overwrites"
    if fault == "one producer warp gives registers back":
        dec, skip = "PRODUCER: setmaxnreg.dec.sync.aligned.u32 40;\n", "setp.ne.u32 %p, %w, 4;\n@%p bra DONE;\n"
        assert dec + skip in text
        changed = text.replace(dec + skip, "PRODUCER:\n" + skip + dec.removeprefix("PRODUCER: "))
        return changed, "deadlock.*registers|all four warps"
    old, new, words = {**COMMON_FAULTS, **UNIFIED_FAULTS, **SPECIALISED_FAULTS}[fault]
    if "SYNC" in old:
        old = old.replace("SYNC", gemm.sync)
    assert old in text
    return text.replace(old, new), words


CASES = [
    (kind, f)
    for kind, own in (("unified", UNIFIED_FAULTS), ("specialised", SPECIALISED_FAULTS))
    for f in [*COMMON_FAULTS, *own]
]


@pytest.mark.parametrize(("landing", "order"), MODES)
@pytest.mark.parametrize(("kind", "fault"), CASES)
def test_seeded_fault(kind, fault, landing, order):
    gemm = BOTH[kind]
    text, words = with_fault(gemm, gemm.text(), fault)
    with pytest.raises(EmulatorError, match=f"(?s){words}") as caught:
        run(gemm, text, **SHAPE, landing=landing, order=order, seed=5)
    assert "CTA (" in str(caught.value)
    assert caught.value.line > 0


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("order", ["fixed", "reversed", "random"])
def test_a_poll_may_fail(kind, order):
    """One try_wait whose answer is ignored is no wait."""
    gemm = BOTH[kind]
    text = gemm.text()
    old = "// wait full\n@!%p bra AGAIN;\n"
    assert old in text
    with pytest.raises(EmulatorError, match=TOO_EARLY):
        run(gemm, text.replace(old, "\n"), **SHAPE, landing="late", order=order, seed=5)


@pytest.mark.parametrize("kind", BOTH)
def test_a_swizzle_that_does_not_match_is_a_wrong_result(kind):
    """Nothing is out of order then, so only the numbers tell: of the ring's swizzle, and of the staging buffer's."""
    gemm = BOTH[kind]
    text = gemm.text()
    for old, new in (("and.b32 %y, %y, 3; // swizzle", "and.b32 %y, %y, 1;"), ("xor.b32 %y, %y, %x;", "")):
        assert old in text
        with pytest.raises(AssertionError, match="Mismatched elements"):
            run(gemm, text.replace(old, new), **SHAPE)


def test_speed_of_a_full_size_tile():
    gemm = TmaGemmText(128, 128, 64, 2, 4, 3, specialised=False)
    report = run(gemm, gemm.text(), 256, 256, 256)
    assert report.instructions["mma"] == 256**3 // (16 * 8 * 16)
    assert report.seconds < 5  # about 0.4 s on an idle core
