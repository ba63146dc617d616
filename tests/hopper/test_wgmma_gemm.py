"""GEMMs of TMA, mbarriers and wgmma on the emulator, alone and in clusters with multicast; then one fault at a time."""

from __future__ import annotations

import functools
import itertools
import re

import numpy as np
import pytest
from hopper_texts import WgmmaGemm

from emmy.assemble import assemble, find_tool
from emmy.emulator import Emulator, EmulatorError, TensorMap, Uninitialised

MODES = list(itertools.product(("late", "early", "random"), ("fixed", "reversed", "random")))
KERNELS = {
    "one warpgroup": WgmmaGemm(1, 64, 3),
    "two warpgroups": WgmmaGemm(2, 128, 2),
    "B is MN-major": WgmmaGemm(1, 128, 2, mn_b=True),
    "cluster of 2": WgmmaGemm(1, 64, 2, cluster=2),
    "cluster of 2, two warpgroups": WgmmaGemm(2, 64, 3, cluster=2),
    "cluster of 4": WgmmaGemm(1, 32, 2, cluster=4),
}


@functools.cache
def operands(m: int, n: int, k: int, mn_b: bool) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    a, b = (random.integers(-4, 5, shape).astype(np.float16) for shape in ((m, k), (k, n) if mn_b else (n, k)))
    return a, b


def launch(kernel: WgmmaGemm, emulator: Emulator, tiles_m: int, tiles_n: int, nk: int, **mode):
    """C, and the report."""
    m, n, k = tiles_m * kernel.bm, tiles_n * kernel.bn, nk * kernel.BK
    a, b = operands(m, n, k, kernel.mn_b)
    c = np.full((m, n), np.nan, np.float32)
    maps = [
        TensorMap(array, 2, array.shape, [array.strides[0]], box, 128)
        for array, box in ((a, (kernel.bm, kernel.BK)), (b, kernel.box_b))
    ]
    arguments = [*maps, Uninitialised(c), n, nk]
    report = emulator.launch(
        "gemm",
        (tiles_m, tiles_n, 1),
        (kernel.threads, 1, 1),
        arguments,
        kernel.shared_bytes,
        max_instructions=400_000,
        **mode,
    )
    wanted = a.astype(np.float64) @ (b if kernel.mn_b else b.T).astype(np.float64)
    return c, wanted, report


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("landing", "order"), MODES)
def test_gemm(name: str, landing: str, order: str):
    kernel = KERNELS[name]
    for nk in (1, 5):
        c, wanted, report = launch(
            kernel, Emulator(kernel.text()), kernel.cluster, 1, nk, landing=landing, order=order, seed=nk
        )
        assert (c == wanted).all()
        assert report.instructions["wgmma"] == 4 * nk * 4 * kernel.groups * kernel.cluster


def test_a_grid_of_clusters():
    kernel = KERNELS["cluster of 2"]
    c, wanted, _ = launch(kernel, Emulator(kernel.text()), 4, 3, 3)
    assert (c == wanted).all()


@pytest.mark.skipif(find_tool("ptxas") is None, reason="ptxas is not installed")
@pytest.mark.parametrize("name", KERNELS)
def test_the_texts_assemble(name: str):
    """Without a C75xx message, and without spills."""
    assert assemble(KERNELS[name].text(), "sm_90a").messages == ()


# One fault at a time: kernel, tag of the line, what becomes of it, messages of which one must come (None: wrong numbers).

RACE, DEADLOCK = "nothing orders the two", "deadlock in"
FAULTS: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "no fence": ("two warpgroups", r"wgmma.fence.*// fence", "", ("no wgmma.fence follows",)),
    "no wait at the end": ("two warpgroups", r"wgmma.wait_group.*// wait end", "", (RACE, "is a sum of the wgmma at")),
    "no wait in the loop": ("one warpgroup", r"wgmma.wait_group.*// wait loop", "", (RACE,)),
    "early release": (
        "one warpgroup",
        r"wait_group.sync.aligned 1; // wait loop",
        "wait_group.sync.aligned 2;",
        (RACE,),
    ),
    "released twice": (
        "one warpgroup",
        r"mov.u32 %before, %stage; // previous",
        "",
        (RACE, "expects only 0 more", DEADLOCK),
    ),
    "wrong parity of a producer": ("one warpgroup", r"xor.b32 %y, %phase, 1;", "mov.u32 %y, %phase;", (DEADLOCK,)),
    "phase not flipped": (
        "two warpgroups",
        r"@%q xor.b32 %phase, %phase, 1;",
        "",
        (DEADLOCK, RACE, "poison", "expects only 0 more"),
    ),
    "wrong count": (
        "two warpgroups",
        r"(\[%empty\+0\]), 2;",
        r"\1, 1;",
        ("expects only 0 more", RACE, "fill a phase", DEADLOCK),
    ),
    "too few bytes": (
        "one warpgroup",
        r"(\[%at\]), \d+; // expect",
        r"\1, 8192;",
        (RACE, "poison", "not waited for", DEADLOCK),
    ),
    "too many bytes": ("one warpgroup", r"(\[%at\]), \d+; // expect", r"\1, 65536;", (DEADLOCK,)),
    "no mbarrier fence": ("one warpgroup", r"@%p fence.mbarrier_init.*", "", ("proxy: neither fence.mbarrier_init",)),
    "wrong stride of a": (
        "one warpgroup",
        f"add.s64 %da, %da, {1 << 62 | 64 << 32 | 1 << 16};",
        f"add.s64 %da, %da, {1 << 62 | 32 << 32 | 1 << 16};",
        (),
    ),
    "no swizzle in a": (
        "one warpgroup",
        f"add.s64 %da, %da, {1 << 62 | 64 << 32 | 1 << 16};",
        f"add.s64 %da, %da, {64 << 32 | 1 << 16};",
        (),
    ),
    "lbo and sbo changed": (
        "B is MN-major",
        f"add.s64 %db, %db, {1 << 62 | 64 << 32 | 512 << 16};",
        f"add.s64 %db, %db, {1 << 62 | 512 << 32 | 64 << 16};",
        (),
    ),
    "not transposed": ("B is MN-major", r"0, 1;$", "0, 0;", ("poison", RACE, "was never written", "out of bounds")),
    "mask of itself": ("cluster of 2", r"mov.u16 %mask, 3;", "mov.u16 %mask, 1;", (DEADLOCK, "expects only", RACE)),
    "mask of the other": ("cluster of 2", r"mov.u16 %mask, 3;", "mov.u16 %mask, 2;", (DEADLOCK, "poison", RACE)),
    "mask beyond the cluster": (
        "cluster of 2",
        r"mov.u16 %mask, 3;",
        "mov.u16 %mask, 7;",
        ("has 2 CTAs, none of rank 2",),
    ),
    "empty mask": ("cluster of 2", r"mov.u16 %mask, 3;", "mov.u16 %mask, 0;", ("names no CTA",)),
    "no remote release": ("cluster of 2", r"@%lead mbarrier.arrive.*// release loop 1", "", (DEADLOCK,)),
    "releases itself twice": (
        "cluster of 2",
        r"mapa.shared::cluster.u32 %far, %at, 1;",
        "mapa.shared::cluster.u32 %far, %at, 0;",
        ("expects only 0 more", DEADLOCK, RACE),
    ),
    "local release": (
        "cluster of 2",
        r"mbarrier.arrive.shared::cluster.b64 _, \[%far\]; // release loop 1",
        "mbarrier.arrive.shared::cta.b64 _, [%at];",
        ("expects only 0 more", DEADLOCK, RACE),
    ),
    "counts one CTA": (
        "cluster of 2",
        r"(\[%empty\+\d\]), 2;",
        r"\1, 1;",
        ("expects only 0 more", RACE, "fill a phase", DEADLOCK),
    ),
    "no cluster barrier at the end": (
        "cluster of 2",
        r"barrier.cluster.*// end",
        "",
        ("a barrier.cluster is due", "has ended"),
    ),
    "no cluster barrier at the beginning": (
        "cluster of 2",
        r"barrier.cluster.*// begin",
        "",
        ("without order after its initialisation", "no mbarrier was initialised", "has ended"),
    ),
    "bar.sync at the beginning": (
        "cluster of 2",
        r"barrier.cluster.arrive.*// begin\n.*// begin",
        "bar.sync 0;",
        ("without order after its initialisation", "no mbarrier was initialised", "has ended"),
    ),
    "no fence before a relaxed arrival": (
        "cluster of 2",
        r"@%p fence.mbarrier_init.*",
        "",
        ("without order after its initialisation",),
    ),
    "no rank": ("cluster of 2", r"%at, 1;\n(.*// release loop)", r"%at, 2;\n\1", ("no address of the cluster",)),
    "arrives without waiting": (
        "cluster of 2",
        r"barrier.cluster.wait.*// begin",
        "",
        ("with no barrier.cluster.wait in between", "without order after"),
    ),
    "waits without arriving": (
        "cluster of 2",
        r"barrier.cluster.arrive.*// end",
        "",
        ("waits at the cluster's barrier without having arrived",),
    ),
}


@functools.cache
def faulty(name: str) -> tuple[WgmmaGemm, Emulator]:
    kernel_name, pattern, replacement, _ = FAULTS[name]
    kernel = KERNELS[kernel_name]
    text, count = re.subn(pattern, replacement, kernel.text(), flags=re.MULTILINE)
    assert count, name
    return kernel, Emulator(text)


@pytest.mark.parametrize(("landing", "order"), MODES)
@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str, landing: str, order: str):
    kernel, emulator = faulty(name)
    messages = FAULTS[name][3]
    try:
        c, wanted, _ = launch(kernel, emulator, kernel.cluster, 1, 5, landing=landing, order=order, seed=1)
    except EmulatorError as error:
        found = str(error)
    else:
        assert not messages, "no fault was found"
        assert (c != wanted).any()
        return
    assert any(message in found for message in messages), found
    assert "PTX line" in found


def test_a_deadlock_shows_the_cluster():
    kernel = KERNELS["cluster of 2, two warpgroups"]
    emulator = Emulator(re.sub(r"@%lead mbarrier.arrive.*// release loop 1", "", kernel.text()))
    with pytest.raises(EmulatorError) as caught:
        launch(kernel, emulator, 2, 1, 9)
    found = str(caught.value)
    assert "deadlock in the cluster of CTA (0, 0, 0)" in found
    assert "of CTA rank 1" in found
    assert re.search(
        r"mbarrier 0x\w+ \(offset \d+\) of CTA rank 1: phase \d, 4 of 4 arrivals and 0 bytes outstanding", found
    )
    assert "barrier.cluster: phase 1" in found
    assert re.search(
        r"register pool of CTA rank 0: 168 at entry for 384 threads, \d+ free, its warps hold 240, ", found
    )


def test_launches_of_clusters():
    kernel = KERNELS["cluster of 2"]
    with pytest.raises(EmulatorError, match=r"the grid \(3, 1, 1\) is no multiple of the cluster \(2, 1, 1\)"):
        launch(kernel, Emulator(kernel.text()), 3, 1, 1)
    with pytest.raises(EmulatorError, match=r"needs clusters of \(2, 1, 1\) by .reqnctapercluster, launched with"):
        launch(kernel, Emulator(kernel.text()), 2, 1, 1, cluster=(1, 2, 1))
    text = kernel.text().replace(".reqnctapercluster 2, 1, 1\n", "")
    c, wanted, _ = launch(kernel, Emulator(text), 2, 1, 2, cluster=(2, 1, 1))
    assert (c == wanted).all()
    with pytest.raises(EmulatorError, match=r"is \.explicitcluster: its launch must give"):
        launch(kernel, Emulator(text), 2, 1, 1)
    with pytest.raises(EmulatorError, match="is none of 1 to 8"):
        launch(kernel, Emulator(text), 16, 1, 1, cluster=(16, 1, 1))
