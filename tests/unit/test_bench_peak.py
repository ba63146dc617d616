"""The register-only loop that measures the tensor peak, on the emulator and in SASS."""

import numpy as np
import pytest

from emmy.artefact import evaluate, run_on_emulator
from emmy.assemble import find_tool, main_loop_mix, sass
from emmy.bench.peak import ACCUMULATORS, PEAK_ARTEFACT, ROW_ELEMENTS, THREADS, entry_name, peak_artefact, peak_ptx
from emmy.bench.worker import Worker
from emmy.errors import EmmyError
from emmy.targets import TARGETS

ROUNDS = 3


@pytest.mark.parametrize("accumulator", ACCUMULATORS)
def test_it_adds_every_product_and_takes_it_away_again(accumulator):
    artefact = peak_artefact("sm_90a", ROUNDS)
    rows = np.random.default_rng(0).integers(-3, 4, (2 * THREADS, ROW_ELEMENTS)).astype(np.float16)
    (result,), (report,) = run_on_emulator(artefact, entry_name(accumulator), [rows])
    assert not result.any()
    warps = rows.shape[0] // 32
    assert report.instructions["mma"] == warps * ROUNDS * 2 * 16
    flops = artefact.entry(entry_name(accumulator))["work"]["flops"]
    assert evaluate(flops, {"a": rows.shape}, {}) == report.instructions["mma"] * 2 * 16 * 8 * 16


def test_odd_sums_show_that_products_are_not_idle():
    """With one product left out, what remains is not zero: the check above can fail."""
    artefact = peak_artefact("sm_90a", 1)
    image = artefact.images[PEAK_ARTEFACT]
    last = [line for line in image.ptx.splitlines() if "mma.sync" in line and "f32.f16" in line][-1]
    artefact.images[PEAK_ARTEFACT] = type(image)(image.ptx.replace(last, "", 1))
    rows = np.random.default_rng(0).standard_normal((THREADS, ROW_ELEMENTS)).astype(np.float16)
    (result,), _ = run_on_emulator(artefact, entry_name("f32"), [rows])
    assert result.all()


def test_a_part_of_a_block_is_refused():
    with pytest.raises(EmmyError, match="'a' must have whole blocks of 256 rows"):
        run_on_emulator(peak_artefact("sm_80", 1), entry_name("f32"), [np.zeros((100, ROW_ELEMENTS), np.float16)])


@pytest.mark.skipif(find_tool("ptxas") is None or find_tool("nvdisasm") is None, reason="needs ptxas: not run")
@pytest.mark.parametrize("target", TARGETS)
def test_its_loop_is_tensor_instructions_without_spills(target):
    artefact = peak_artefact(target)
    text = sass(artefact.images[PEAK_ARTEFACT].cubin)
    for accumulator in ACCUMULATORS:
        mix = main_loop_mix(text, entry_name(accumulator))
        assert mix["HMMA"] % 32 == 0
        assert sum(count for opcode, count in mix.items() if opcode not in ("HMMA", "NOP")) <= 4
        assert artefact.resources[entry_name(accumulator)]["spill_bytes"] == 0


class EmulatedWorker(Worker):
    """A worker whose device is the emulator, with two SMs, and whose PyTorch is NumPy."""

    class torch:
        float16, int32 = np.float16, np.int32
        randn = staticmethod(lambda shape, device: torch_like(np.random.default_rng(0).standard_normal(shape)))
        empty = staticmethod(lambda shape, dtype, device: np.full(shape, -1, dtype))

        class cuda:
            get_device_properties = staticmethod(lambda device: type("Properties", (), {"multi_processor_count": 2}))

    class runtime:
        device = 0

        @staticmethod
        def load(artefact):
            def run(entry, arrays, out):
                out[0][...] = run_on_emulator(artefact, entry, arrays)[0][0]

            return type("Module", (), {"artefact": artefact, "run": staticmethod(run)})

    def __init__(self):
        self.modules = {}


def torch_like(array):
    class Tensor(np.ndarray):
        def to(self, dtype):
            return self.astype(dtype).view(np.ndarray)

    return array.view(Tensor)


def test_the_worker_runs_it_where_the_artefact_is(tmp_path):
    worker = EmulatedWorker()
    assert worker._peak_calls(tmp_path / PEAK_ARTEFACT) == ({}, {})
    peak_artefact("sm_90a", 1).save(tmp_path / PEAK_ARTEFACT)
    calls, flops = worker._peak_calls(tmp_path / PEAK_ARTEFACT)
    assert list(calls) == ["peak_f32", "peak_f16"]
    assert set(flops.values()) == {2 * THREADS // 32 * 2 * 16 * 2 * 16 * 8 * 16}
    for call in calls.values():
        call()
        assert (call.keywords["out"][0] != -1).all()  # each thread stored its sums


def test_it_is_printed_for_the_target():
    assert peak_ptx("sm_120a").startswith(".version 8.7\n.target sm_120a\n")
