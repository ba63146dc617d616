"""The suites of 8-bit products: their cases, what is said of a run, the peer's call, bounds."""

from types import SimpleNamespace

import numpy as np
import pytest

from emmy.bench import fp8
from emmy.bench.bounds import ErrorSums, accumulation_rms, judge
from emmy.bench.cases import Case, work_of
from emmy.bench.measure import scaled_reference
from emmy.bench.one import compare
from emmy.bench.prepare import variant_case
from emmy.bench.suites import SUITES
from emmy.ir import parse_module, verify_module


@pytest.mark.parametrize(("suite", "count"), [("fp8", 15), ("fp8_checks", 40), ("fp8_hybrid", 34)])
def test_the_texts_of_the_suites_are_legal_and_named_apart(suite: str, count: int):
    works = list(SUITES[suite]())
    assert len({work.case.name for work in works}) == len({work.artefact for work in works}) == len(works) == count
    for work in works:
        verify_module(parse_module(str(work.source), work.artefact))


def test_a_scaled_product_has_no_f16_beside_it():
    by_name = {work.case.name: work for work in SUITES["fp8"]()}
    plain, scaled = (by_name[f"4096x4096x4096 f8{kind}"] for kind in ("", " scaled"))
    assert (plain.case.against, plain.own_schedule) == ("4096x4096x4096_f16", True)
    assert scaled.case.against is None
    assert scaled.case.task == {"kind": fp8.SCALED, "k": 4096, "transpose_b": True}
    assert by_name["4096x4096x4096 f8 promoted"].case.max_k == 128


def test_f16_sums_are_timed_against_f32_sums_of_8_bits():
    by_name = {work.case.name: work for work in SUITES["fp8_hybrid"]()}
    for name, policy, max_k, partial in (("hybrid 64", "hybrid", 64, "f16"), ("f16", "f16", 0, "")):
        work = by_name[f"4096x4096x4096 f8 {name}"]
        assert (work.case.policy, work.case.max_k, work.case.partial) == (policy, max_k, partial)
        assert (work.case.suite, work.case.against) == ("fp8_hybrid", "4096x4096x4096_f8")
        assert "accumulate<f32>" in str(work.baseline)


def test_variants_keep_the_type_of_partial_sums():
    (work, *_) = SUITES["fp8"]()
    case = variant_case(work, "halves", {"accumulate": "hybrid, max_k = 32, partial = f16"})
    assert (case.policy, case.max_k, case.partial) == ("hybrid", 32, "f16")


def case(name: str, us: float, **ratios: float) -> dict:
    peers = {peer: {"us": us * ratio, "ratio": ratio} for peer, ratio in ratios.items()}
    return {
        "name": name,
        "suite": "fp8",
        "ok": True,
        "us": us,
        "tflops": 1.0,
        "peers": peers,
        "error": {"rms_error": 0.002},
    }


def test_lines_and_table_hold_the_mean_and_the_least_ratio():
    results = [
        case("one f8", 10.0, f16=2.0, scaled_mm=1.0),
        case("two f8", 20.0, f16=1.28),
        {**case("no", 1.0), "ok": False},
    ]
    assert fp8.fp8_lines(results) == [
        "fp8: f16 / it 1.600 (geometric mean of 2), least 1.280",
        "fp8: scaled_mm / it 1.000 (geometric mean of 1), least 1.000",
    ]
    table = fp8.fp8_table(results)
    assert "| one f8 | 10.0 | 1 | 2.0e-03 | 20.0 | 10.0 | - | 2.000 | 1.000 | - |" in table
    assert "| two f8 | 20.0 | 1 | 2.0e-03 | 25.6 | - | - | 1.280 | - | - |" in table
    halves = {**case("three f8 hybrid 64", 5.0, static=1.8), "suite": "fp8_hybrid"}
    assert fp8.fp8_lines([halves]) == ["fp8_hybrid: static / it 1.800 (geometric mean of 1), least 1.800"]
    assert "| three f8 hybrid 64 | 5.0 | 1 | 2.0e-03 | - | 9.0 | - | - | - | 1.800 | - | - |" in fp8.fp8_table([halves])
    assert fp8.fp8_table([]) == ""
    assert fp8.fp8_lines([]) == []


class FakeTorch:
    float8_e4m3fn, float8_e5m2, bfloat16, float32 = "e4m3", "e5m2", "bf16", "f32"

    def __init__(self):
        self.calls = []

    def ones(self, shape, dtype, device):
        return "one"

    def _scaled_mm(self, a, b, **how):
        self.calls.append((a, b, how))


def test_the_peer_multiplies_what_it_can():
    torch, a, b = FakeTorch(), *(SimpleNamespace(dtype="e4m3", device="cuda", mT=name) for name in ("A^T", "B^T"))
    for fast, args, kind, scales in (
        (True, (a, b), "matmul", ("one", "one")),
        (False, (a, b, "rows", "columns"), fp8.SCALED, ("rows", "columns")),
    ):
        call = fp8.scaled_mm(fast, torch, args, {"kind": kind})
        assert call is not None
        call()
        how = {"scale_a": scales[0], "scale_b": scales[1], "out_dtype": "bf16", "use_fast_accum": fast}
        assert torch.calls[-1] == (a, "B^T", how)
    assert fp8.scaled_mm(True, torch, [SimpleNamespace(dtype="f16")] * 2, {"kind": "matmul"}) is None


def test_a_scaled_reference_scales_rows_and_columns():
    class Matrix(np.ndarray):
        @property
        def mT(self):
            return self.swapaxes(-1, -2)

        def to(self, dtype):
            return self.astype(dtype)

    chance = np.random.default_rng(0)
    shapes = ((5, 8), (3, 8), (5, 1), (1, 3))
    a, b, rows, columns = (chance.standard_normal(shape).view(Matrix) for shape in shapes)
    work = {"kind": fp8.SCALED, "transpose_b": True}
    blocks = list(scaled_reference((a, b, rows, columns), work, np.float64))
    result = np.zeros((5, 3))
    for where, values in blocks:
        result[where] = values
    np.testing.assert_allclose(result, (a @ b.T) * rows * columns)


def test_bounds_grow_with_the_sums_that_the_tensor_cores_keep():
    def rms(policy: str, k: int, max_k: int = 128, partial: str = "") -> float:
        return accumulation_rms(policy, k, "bf16", 1.66e-3, max_k, eight_bits=True, partial=partial)

    measured = {4096: 1.34e-3, 8192: 2.04e-3, 15360: 3.0e-3}  # on an H200
    assert all(1.5 * error < rms("f32", k) < 3 * error for k, error in measured.items())
    assert rms("hybrid", 4096) == pytest.approx(rms("hybrid", 8192), rel=0.05)
    assert rms("hybrid", 4096) < rms("f32", 256)
    assert rms("hybrid", 64) < rms("hybrid", 4096)
    assert rms("hybrid", 4096) < rms("hybrid", 4096, partial="f16") < rms("f16", 4096)


def test_what_an_8_bit_product_may_lose_is_too_much_for_f16():
    sums = ErrorSums(10, 0, 10 * 2e-3**2, 10.0, 0.0, 3e-3, 3e-3)
    assert judge(sums, "f32", 4096, "f32", eight_bits=True)["ok"]
    assert not judge(sums, "f32", 4096, "f32")["ok"]


def test_work_says_that_operands_have_8_bits():
    def entry(dtype: str) -> dict:
        arguments = [{"name": name, "dtype": dtype, "shape": [8, 8]} for name in "ab"]
        return {"arguments": arguments, "results": [], "launches": [], "work": {"kind": "matmul", "k": 4096}}

    asked = Case("", "mm", {"a": [8, 8], "b": [8, 8]})
    assert work_of(asked, entry("f8E5M2")) == {"kind": "matmul", "k": 4096, "eight_bits": True}
    assert work_of(asked, entry("f16")) == {"kind": "matmul", "k": 4096}
    wanted = np.ones((2, 2))
    assert compare(wanted.astype(np.float32) * 1.002, wanted, asked, work_of(asked, entry("f8E5M2")))["ok"]
    assert not compare(wanted.astype(np.float32) * 1.002, wanted, asked, work_of(asked, entry("f16")))["ok"]
