"""What the runner finds wrong with a result, on CPU tensors: a stand-in for the module computes, well or badly."""

import dataclasses

import pytest
import two_kernels

from emmy.bench.cases import Case, save_bits

torch = pytest.importorskip("torch", reason="needs PyTorch: not run")

from emmy.bench.measure import Measurement, matmul_reference  # noqa: E402

NORMAL = Case("smoke", "naive_matmul", {"a": [96, 64], "b": [80, 64]}, name="normal")
INTEGERS = dataclasses.replace(NORMAL, data="integers")


class StandIn:
    """Computes on the CPU what the kernel would, then lets `fault(call number, result)` spoil it."""

    def __init__(self, fault=None):
        self.artefact, self.fault, self.calls = two_kernels.smoke_artefact("sm_90a"), fault, 0

    def run(self, entry, args, out):
        self.calls += 1
        a, b = (tensor.double() for tensor in args)
        out[0].copy_(a + b if entry == "vector_add" else a @ b.mT)
        if self.fault:
            self.fault(self.calls, out[0])


def check(case, tmp_path, fault=None, repeats=0, monkeypatch=None):
    measurement = Measurement(StandIn(fault), case, tmp_path, "cpu")
    measurement.synchronize = lambda: None
    found = measurement.check()
    return found | measurement.repeat(repeats, 10.0) if repeats and found["ok"] else found


def unwritten(call, out):
    out[3, 3] = float("nan")


def wrong(call, out):
    out[3, 3] += 1


def flaky(call, out):
    out[0, 0] += call == 7


def overrun(call, out):
    torch.as_strided(out, (1,), (1,), out.storage_offset() + out.numel()).fill_(0)


def underrun(call, out):
    torch.as_strided(out, (1,), (1,), out.storage_offset() - 1).fill_(0)


@pytest.mark.parametrize("case", [NORMAL, INTEGERS])
def test_a_correct_kernel_passes(case, tmp_path):
    found = check(case, tmp_path, repeats=10)
    assert found["ok"]
    assert (found["repeats"], found["differing_launches"]) == (10, 0)


@pytest.mark.parametrize(
    ("fault", "normal", "integers"),
    [
        (unwritten, "1 of 7680 elements are NaN or infinite", "1 of 7680 integer elements are wrong"),
        (wrong, "excess", "1 of 7680 integer elements are wrong"),
        (flaky, "1 of 10 repeated launches differ", "1 of 10 repeated launches differ"),
        (overrun, "bytes outside out0 were overwritten", "bytes outside out0 were overwritten"),
        (underrun, "bytes outside out0 were overwritten", "bytes outside out0 were overwritten"),
    ],
)
def test_each_fault_is_found(fault, normal, integers, tmp_path):
    for case, message in ((NORMAL, normal), (INTEGERS, integers)):
        found = check(case, tmp_path, fault, repeats=10)
        assert not found["ok"]
        assert message in found["message"]


def test_expected_bits(tmp_path):
    measurement = Measurement(StandIn(), INTEGERS, tmp_path, "cpu")
    measurement.launch()
    save_bits(tmp_path / "bits.npy", measurement.outs[0].numpy())
    case = dataclasses.replace(INTEGERS, expect="bits.npy")
    assert check(case, tmp_path)["differ_from_expected"] == 0
    found = check(case, tmp_path, lambda call, out: out[0].neg_())
    assert not found["ok"]
    assert found["differ_from_expected"] > 0


def test_a_study_over_seeds_has_f32_and_f16_results(tmp_path):
    measurement = Measurement(StandIn(), dataclasses.replace(NORMAL, seeds=3), tmp_path, "cpu")
    measurement.synchronize = lambda: None
    found = measurement.study(3)["study"]
    assert set(found) == {"f32", "f16"}
    assert found["f16"]["seeds"] == 3
    assert found["f16"]["rms"][0] == pytest.approx(2.07e-4, rel=0.05)  # the stand-in's result is rounded to f16
    assert found["f16"]["rms"][1] > 0  # seeds differ
    assert found["f16"]["not_finite"] == 0


def test_work_without_a_reference_is_not_called_correct(tmp_path):
    measurement = Measurement(StandIn(), NORMAL, tmp_path, "cpu")
    measurement.synchronize = lambda: None
    measurement.work = {"kind": "unheard of"}
    assert measurement.check() == {"ok": False, "message": "no reference for work of kind 'unheard of'"}


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_the_reference_in_blocks_of_rows(transpose_a, transpose_b, monkeypatch):
    monkeypatch.setattr("emmy.bench.measure.BLOCK_ELEMENTS", 100)
    a, b = torch.randn(3, 10, 8), torch.randn(3, 8, 6)
    args = [a.mT.contiguous() if transpose_a else a, b.mT.contiguous() if transpose_b else b]
    out = torch.full((3, 10, 6), float("nan"), dtype=torch.float64)
    work = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    blocks = list(matmul_reference(args, work, torch.float64))
    for where, block in blocks:
        out[where] = block
    assert len(blocks) > 1
    assert torch.allclose(out, a.double() @ b.double())
