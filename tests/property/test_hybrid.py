"""Sums of the hybrid policy: every level means the same, partial sums lose no more than the policy allows, and one that
overflows is summed again in f32."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import emmy
from emmy.artefact import Array, run_on_emulator
from emmy.interpreters import level1, level2, level3
from emmy.ir import parse_module

STAGES = ("lower-tile", "split-accumulation", "double-buffer-fragments", "prefetch-fragments", "level3")
SMALL = {"block": (32, 32, 32), "warps": (2, 1), "stages": 2, "transport": "cp_async"}


@dataclass(frozen=True)
class Product:
    """C = A * B, its policy and schedule."""

    sizes: tuple[int, int, int]
    policy: str
    schedule: tuple[tuple[str, object], ...] = tuple(SMALL.items())
    target: str = "sm_90a"
    transpose_a: bool = False
    transpose_b: bool = True
    dynamic: bool = False
    result: str = "f32"

    @property
    def text(self) -> str:
        def tensor(shape: tuple[int, int], dtype: str) -> str:
            return "tensor<" + "x".join("?" if self.dynamic else str(s) for s in shape) + f"x{dtype}>"

        a, b = (tensor(s, "f16") for s in self.shapes)
        c = tensor(self.sizes[:2], self.result)
        flags = " transpose_a" * self.transpose_a + " transpose_b" * self.transpose_b
        return (
            f"func.func @mm(%a: {a}, %b: {b}) -> {c} {{\n"
            f"  %c = tensor_op.matmul %a, %b{flags} accumulate<{self.policy}> : ({a}, {b}) -> {c}\n"
            f"  func.return %c : {c}\n}}\n"
        )

    @property
    def shapes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        m, n, k = self.sizes
        return (k, m) if self.transpose_a else (m, k), (n, k) if self.transpose_b else (k, n)

    def compile(self) -> emmy.compiler.CompiledModule:
        return emmy.compile(self.text, self.target, schedule=dict(self.schedule), verify_each=True)

    def reference(self, arrays: list[Array]) -> Array:
        a, b = (x.astype(np.float64) for x in arrays)
        return (a.T if self.transpose_a else a) @ (b.T if self.transpose_b else b)


def integers(product: Product, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.integers(-2, 3, shape).astype(np.float16) for shape in product.shapes]


def run_levels(product: Product, arrays: list[Array], landing: str = "late", order: str = "fixed") -> dict[str, Array]:
    """The result of every level, level 3 after each pass that changes sums."""
    module = product.compile()
    results = {"policy": level1.run(parse_module(product.text, "mm"), "mm", arrays, "policy")[0]}
    results["level 2"] = level2.run_module(parse_module(module.ir("tile"), "mm"), "mm", arrays)[0]
    for stage in STAGES:
        text = parse_module(module.ir(stage), "mm")
        results[stage] = level3.run_module(text, "mm", arrays, landing=landing, order=order)[0]
    results["emulator"] = run_on_emulator(module.portable_artefact, "mm", arrays, landing=landing, order=order)[0][0]
    return results


SCHEDULES = st.fixed_dictionaries(
    {
        "block": st.sampled_from(((32, 32, 32), (32, 16, 64), (16, 32, 16), (32, 48, 48))),
        "warps": st.sampled_from(((1, 1), (2, 1), (1, 1))),
        "stages": st.integers(1, 3),
        "transport": st.sampled_from(("cp_async", "plain", "auto", "tma")),
        "roles": st.sampled_from(("unified", "specialized")),
        "fragments": st.integers(1, 2),
        "delay": st.integers(0, 5),
        "prefetch": st.integers(0, 1),
        "promote": st.sampled_from((0, 0, 16, 32)),
        "promotion": st.sampled_from(("convert", "identity")),
        "partials": st.sampled_from(("auto", "slices", "steps")),
    }
).filter(lambda s: s["block"][0] % (16 * s["warps"][0]) == 0)


@st.composite
def products(draw: st.DrawFn) -> Product:
    schedule = draw(SCHEDULES)
    tma = schedule["transport"] == "tma"  # wants rows of whole 16 bytes
    size = st.sampled_from((8, 32, 40) if tma else (1, 8, 31, 32, 65))
    trips = st.sampled_from((8, 32, 64, 104, 192) if tma else (0, 1, 16, 31, 32, 64, 100, 129, 192))
    overflow = draw(st.sampled_from(("", ", overflow = redo")))
    return Product(
        sizes=(draw(size), draw(size), draw(trips)),
        policy=f"hybrid, max_k = {draw(st.sampled_from((32, 64, 96, 128, 256)))}{overflow}",
        schedule=tuple(schedule.items()),
        target=draw(st.sampled_from(("sm_90a", "sm_120a") if tma else ("sm_80", "sm_89", "sm_90a", "sm_120a"))),
        transpose_a=draw(st.booleans()),
        transpose_b=draw(st.booleans()),
        dynamic=not tma and draw(st.booleans()),
    )


@settings(max_examples=25, deadline=None)
@given(product=products(), landing=st.sampled_from(("late", "early", "random")), seed=st.integers(0, 9))
def test_all_levels_agree_on_integers(product: Product, landing: str, seed: int):
    arrays = integers(product, seed)
    order = ("fixed", "reversed", "random")[seed % 3]
    reference = product.reference(arrays)
    for level, result in run_levels(product, arrays, landing, order).items():
        np.testing.assert_array_equal(result, reference, err_msg=level)


# ---- what is lost ----------------------------------------------------------------------------------------------------


def rms(x: Array) -> float:
    return float(np.sqrt(np.mean(np.square(x.astype(np.float64)))))


def normals(product: Product, seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float16) for shape in product.shapes]


def errors(policy: str, result: str, depth: int) -> dict[str, float]:
    """RMS error over 32 seeds, of levels 1, 2 and 3, as a fraction of rms(C)."""
    product = Product((32, 32, depth), policy, result=result)
    source, module = parse_module(product.text, "mm"), product.compile()
    lowered = {stage: parse_module(module.ir(stage), "mm") for stage in ("tile", "level3")}
    found: dict[str, list[Array]] = {"level 1": [], "level 2": [], "level 3": []}
    size: list[Array] = []
    for seed in range(32):
        arrays = normals(product, seed)
        reference = product.reference(arrays)
        size.append(reference)
        found["level 1"].append(level1.run(source, "mm", arrays, "policy")[0] - reference)
        found["level 2"].append(level2.run_module(lowered["tile"], "mm", arrays)[0] - reference)
        found["level 3"].append(level3.run_module(lowered["level3"], "mm", arrays)[0] - reference)
    return {level: rms(np.stack(parts)) / rms(np.stack(size)) for level, parts in found.items()}


@pytest.mark.parametrize("depth", [96, 512])
def test_errors_are_within_the_policys_bound(depth: int):
    """f16 results: at most twice the f32 policy's error for max_k <= 64. f32 results: at most 4e-4 of rms(C)."""
    exact = errors("f32", "f16", depth)
    for max_k in (32, 64):
        rounded = errors(f"hybrid, max_k = {max_k}", "f16", depth)
        summed = errors(f"hybrid, max_k = {max_k}", "f32", depth)
        for level in exact:
            assert exact[level] < rounded[level] <= 2 * exact[level], (level, max_k)
            assert 5e-5 < summed[level] <= 4e-4, (level, max_k)


def test_longer_partials_lose_more_and_pure_f16_most():
    losses = [errors(policy, "f32", 512)["level 3"] for policy in ("f32", "hybrid, max_k = 16", "hybrid, max_k = 64")]
    losses += [errors("hybrid, max_k = 256", "f32", 512)["level 3"], errors("f16", "f32", 512)["level 3"]]
    assert losses == sorted(losses)
    assert losses[0] < losses[1] / 50


def test_all_levels_round_alike():
    """Partials in the order of k, rounded once a k-step, at every level; the emulator sums a k-step in float64, not f32."""
    product = Product((32, 32, 256), "hybrid, max_k = 32")
    arrays = normals(product, 3)
    results = run_levels(product, arrays)
    for level in ("level 2", *STAGES[1:]):
        np.testing.assert_allclose(results[level], results["policy"], rtol=0, atol=2e-3, err_msg=level)
    assert rms(results["emulator"] - results["policy"]) < 1e-4 * rms(results["policy"])
    np.testing.assert_array_equal(results["level3"], results["split-accumulation"])


# ---- overflow --------------------------------------------------------------------------------------------------------

REDO = [
    pytest.param("cp_async", "unified", (64, 32, 96), True, False, id="cp.async"),
    pytest.param("plain", "unified", (40, 24, 70), True, True, id="plain, edges, run-time sizes"),
    pytest.param("cp_async", "unified", (32, 64, 128), False, False, id="b is stored K x N"),
    pytest.param("tma", "specialized", (64, 40, 160), True, False, id="TMA, roles"),
]


@pytest.mark.parametrize("promotion", ["convert", "identity"])
@pytest.mark.parametrize(("transport", "roles", "sizes", "transpose_b", "dynamic"), REDO)
def test_a_partial_that_overflows_is_summed_again(
    promotion: str, transport: str, roles: str, sizes: tuple[int, int, int], transpose_b: bool, dynamic: bool
):
    """One element's partial sums pass 65504: without the redo it is lost (and with it, by identity, its row of the atom);
    with it every element is what f32 gives."""
    schedule = SMALL | {"transport": transport, "roles": roles, "promotion": promotion}
    results: dict[str, dict[str, Array]] = {}
    for overflow in ("propagate", "redo"):
        policy = f"hybrid, max_k = 64, overflow = {overflow}"
        product = Product(
            sizes, policy, tuple(schedule.items()), transpose_b=transpose_b, transpose_a=dynamic, dynamic=dynamic
        )
        arrays = integers(product)
        row, column = (arrays[0].T if dynamic else arrays[0])[5], (arrays[1] if transpose_b else arrays[1].T)[7]
        row[:], column[:] = 100, 100
        reference = product.reference(arrays)
        assert reference[5, 7] == 100 * 100 * sizes[2] > 65504
        results[overflow] = run_levels(product, arrays)
        for level in ("policy", "level 2", *STAGES, "emulator"):
            if overflow == "redo":
                np.testing.assert_array_equal(results[overflow][level], reference, err_msg=level)
    lost = {level: ~np.isfinite(result) for level, result in results["propagate"].items()}
    assert not lost["lower-tile"].any()  # not split yet
    for level in ("policy", "level 2", "split-accumulation", "level3", "emulator"):
        assert lost[level][5, 7], level
        assert lost[level].sum() <= (8 if (level, promotion) == ("emulator", "identity") else 1), level


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("sizes", [(16, 48, 16), (48, 16, 80), (16, 16, 48), (80, 80, 16)])
def test_the_redo_reads_nothing_beyond_sizes_that_fragments_divide_and_tiles_do_not(
    sizes: tuple[int, int, int], transposed: bool
):
    """Fragments of 16 rows and of a k-step of 16 fit into such sizes, and a tile of 32 has some that lie wholly beyond: they
    were read, as the next row's elements or out of bounds."""
    for schedule in (SMALL, SMALL | {"warps": (1, 1)}):
        product = Product(
            sizes,
            "hybrid, overflow = redo",
            tuple(schedule.items()),
            transpose_a=transposed,
            transpose_b=transposed,
        )
        arrays = integers(product)
        b = arrays[1].T if transposed else arrays[1]  # K x N
        b[0], b[-1] = 3, 3
        arrays[0][0, 0], arrays[0][-1, -1] = 60000, 60000
        np.testing.assert_array_equal(run_levels(product, arrays)["emulator"], product.reference(arrays))


def test_an_infinite_input_stays_infinite_after_the_redo():
    product = Product((32, 32, 64), "hybrid, overflow = redo")
    arrays = integers(product)
    arrays[0][3, 9] = np.inf
    arrays[1][:, 9] = 1
    for level, result in run_levels(product, arrays).items():
        assert np.all(np.isinf(result[3])), level
        assert np.isfinite(np.delete(result, 3, axis=0)).all(), level


def test_the_redo_touches_no_ring_and_runs_under_a_vote_of_the_warp():
    module = Product((32, 32, 64), "hybrid, overflow = redo").compile()
    text = module.ir("level3")
    redo = text[text.index("mma.any_nonfinite") :]
    branch = redo[: redo.index("else")]
    assert branch.count("mma.load_global") == 2
    assert "async_copy" not in branch
    assert "f16, c" not in branch
    assert "vote.sync.any.pred" in module.ptx
    assert "vote.sync" not in Product((32, 32, 64), "hybrid").compile().ptx
