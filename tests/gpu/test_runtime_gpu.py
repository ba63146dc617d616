"""The runtime on a real device: hand-written kernels, every kind of array, streams, and the benchmark runner."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import two_kernels

from emmy import runtime
from emmy.artefact import Artefact, Image
from emmy.errors import EmmyError


@pytest.fixture(scope="module")
def module():
    if not runtime.is_available():
        pytest.skip("needs a GPU: not run")
    # sm_80 text runs on every later card, compiled by the driver.
    artefact = Artefact("sm_80", {"smoke": Image(two_kernels.smoke_ptx("sm_80"))}, two_kernels.ENTRIES)
    return runtime.Runtime().load(artefact)


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="needs PyTorch: not run")


def test_numpy_both_ways(module):
    a, b = (np.random.default_rng(seed).standard_normal(1000).astype(np.float32) for seed in (0, 1))
    assert np.array_equal(module.run("vector_add", (a, b)), a + b)
    empty = a[:0]
    assert module.run("vector_add", (empty, empty)).shape == (0,)


def test_integer_matmul_is_exact(module):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (rows, 96)).astype(np.float16) for rows in (40, 72))
    wanted = (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float16)
    assert np.array_equal(module.run("naive_matmul", (a, b)), wanted)


def test_a_cubin_gives_what_the_drivers_compiler_gives(module):
    targets = [name for name in ("sm_80", "sm_89", "sm_90a", "sm_120a")]
    capability = module.runtime.compute_capability
    for target in targets:
        artefact = two_kernels.smoke_artefact(target)
        if runtime.loadable(target, capability, artefact.images["smoke"]) == "cubin":
            a = np.arange(512, dtype=np.float32)
            assert np.array_equal(runtime.Runtime().load(artefact).run("vector_add", (a, a)), a + a)
            return
    pytest.skip("no cubin for this card, or no assembler: not run")


def test_the_drivers_compiler_explains_itself(module):
    broken = Artefact(
        "sm_80", {"smoke": Image(two_kernels.smoke_ptx("sm_80").replace("mul.wide", "mul.wise"))}, two_kernels.ENTRIES
    )
    with pytest.raises(EmmyError, match=r"cannot compile image 'smoke': CUDA_ERROR_INVALID_PTX.*line \d+"):
        runtime.Runtime().load(broken).run("vector_add", (np.zeros(4, np.float32),) * 2)


def test_torch_tensors_are_used_in_place(module, torch):
    a, b = torch.randn(4096, device="cuda"), torch.randn(4096, device="cuda")
    result = module.run("vector_add", (a, b))
    assert result.device == a.device
    assert torch.equal(result, a + b)
    out = torch.full_like(a, float("nan"))
    assert module.run("vector_add", (a, b), out=out) is out
    assert torch.equal(out, a + b)


def test_the_callers_stream_is_used(module, torch):
    a, b = torch.zeros(1 << 24, device="cuda"), torch.ones(1 << 24, device="cuda")
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    for explicit in (False, True):
        a.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            a.fill_(3.0)  # after a pause, on the same stream: a launch elsewhere would read zeros
            if not explicit:
                result = module.run("vector_add", (a, b))
        if explicit:
            result = module.run("vector_add", (a, b), stream=stream)
        stream.synchronize()
        assert bool((result == 4.0).all())


def test_dlpack_and_the_array_interface(module, torch):
    a, b, out = (torch.randn(512, device="cuda") for _ in range(3))

    class Interface:
        def __init__(self, tensor):
            self.__cuda_array_interface__ = tensor.__cuda_array_interface__

    class Dlpack:
        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self, stream=None):
            return self.tensor.__dlpack__(stream=stream)

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

    for wrap in (Interface, Dlpack):
        out.zero_()
        module.run("vector_add", (wrap(a), wrap(b)), out=wrap(out))
        torch.cuda.synchronize()
        assert torch.equal(out, a + b)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.cpu(), "argument 'b' is a tensor on 'cpu'"),
        (lambda a: a.half(), "argument 'b' has dtype f16; expected f32"),
        (lambda a: a[:-4], "argument 'b' has shape"),
        (lambda a: a.repeat(2)[::2], "argument 'b' has strides"),
    ],
)
def test_broken_contracts(module, torch, change, message):
    a = torch.randn(512, device="cuda")
    with pytest.raises(EmmyError, match=message):
        module.run("vector_add", (a, change(a)))


def test_the_runner_checks_and_times_the_smoke_cases(module, torch, tmp_path):
    major, minor = module.runtime.compute_capability
    target = {(8, 0): "sm_80", (8, 9): "sm_89", (9, 0): "sm_90a", (12, 0): "sm_120a"}.get((major, minor), "sm_80")
    two_kernels.save_cases(tmp_path, target)
    command = [sys.executable, "-m", "emmy.bench.run", str(tmp_path), "--out", str(tmp_path / "out.jsonl")]
    root = Path(__file__).parents[2]
    done = subprocess.run([*command, "--repeats", "20"], capture_output=True, text=True, cwd=root, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert all(line["ok"] for line in lines if line["kind"] != "summary")
    assert lines[2]["us"] > 0
    one = subprocess.run([*command, "--one", "matmul 256"], capture_output=True, text=True, cwd=root, timeout=300)
    assert one.returncode == 0, one.stdout + one.stderr
