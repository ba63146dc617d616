"""Peers in the rounds of a measurement, on stand-ins for PyTorch and for the clock; the Triton kernel where it is installed."""

import contextlib
import os
import subprocess
import sys
import time
from argparse import ArgumentTypeError
from types import SimpleNamespace

import pytest

from emmy.bench import fused, measure
from emmy.bench.cases import Case
from emmy.bench.peers import PEERS, START_SECONDS, make_peer
from emmy.bench.run import Options, default_seconds, peer_list, seconds_of


class FakeTorch:
    float16, bfloat16, float32 = "f16", "bf16", "f32"

    def __init__(self):
        self.products = 0

    def matmul(self, a, b, out=None):
        self.products += 1
        return out or (a, b)


class FakeTensor:
    def __init__(self, dtype="f16", name="x"):
        self.dtype, self.name = dtype, name
        self.mT = self

    def dim(self):
        return 2

    def to(self, dtype):
        return self if dtype == self.dtype else FakeTensor(dtype)


class FakeArtefact:
    """An artefact of one product whose operands have a type."""

    def __init__(self, dtype):
        self.dtype = dtype

    def entry(self, name):
        return {"arguments": [{"dtype": self.dtype}, {"dtype": self.dtype}], "results": []}


class TimedOnly(measure.Measurement):
    """A measurement without a device: only what timing needs."""

    def __init__(self, work):
        self.torch, self.work, self.args = FakeTorch(), work, [FakeTensor(), FakeTensor()]
        self.inputs = self.outputs = self.outs = []
        self.entry = FakeArtefact("f16").entry("mm")
        self.against = None
        self.launch = lambda: None
        self.synchronize = lambda: None


MATMUL = {"kind": "matmul", "flops": 2_000_000, "transpose_b": True}


@pytest.fixture
def clock(monkeypatch):
    """Fixed times: ours 10 us, each peer 5 us more than the one before."""

    def interleaved(torch, functions, rounds, clean):
        for function in functions.values():
            function()
        return {name: [10.0 + 5 * i] * rounds for i, name in enumerate(functions)}

    monkeypatch.setattr(measure, "interleaved", interleaved)


def test_every_peer_is_in_the_rounds_and_the_first_stands_beside_ours(clock, monkeypatch):
    monkeypatch.setitem(PEERS, "other", lambda torch, args, work: lambda: None)
    measured = TimedOnly(MATMUL)
    found = measured.time(4, ("cublas", "other"))
    assert "clean" not in found
    assert TimedOnly(MATMUL).time(4, ("cublas",), clean=True)["clean"]
    assert measured.torch.products == 2  # one to make the result, one in the rounds
    assert (found["us"], found["tflops"]) == (10.0, pytest.approx(0.2))
    assert (found["peer_us"], found["ratio"]) == (15.0, 1.5)
    assert found["peers"]["other"] == {
        "us": 20.0,
        "us_p20": 20.0,
        "us_p80": 20.0,
        "tflops": pytest.approx(0.1),
        "ratio": 2,
    }
    assert set(found["peers"]) == {"cublas", "other"}


def test_the_artefact_that_a_case_is_compared_with_is_in_the_rounds(clock):
    calls = []

    class Static:
        artefact = FakeArtefact("f16")

        def run(self, entry, args, out):
            calls.append((entry, args, out))

    measured = TimedOnly(MATMUL)
    measured.against, measured.case = Static(), Case("dynamic", "mm", {}, against="static")
    found = measured.time(4)
    assert calls == [("mm", measured.args, [])]
    assert (found["peers"]["static"]["us"], found["peers"]["static"]["ratio"]) == (20.0, 2.0)
    assert found["ratio"] == 1.5


def test_an_artefact_of_another_type_gets_the_operands_in_its_own(clock):
    calls = []

    class Other:
        artefact = FakeArtefact("f32")

        def run(self, entry, args, out):
            calls.append([tensor.dtype for tensor in args])

    measured = TimedOnly(MATMUL)
    measured.against, measured.case = Other(), Case("f16", "mm", {}, against="f32")
    found = measured.time(4)
    assert calls == [[FakeTorch.float32] * 2]
    assert found["peers"]["f32"]["ratio"] == 2.0


def test_a_peer_that_fails_or_cannot_is_no_reason_to_stop(clock, monkeypatch):
    def broken(torch, args, work):
        raise RuntimeError("no compiler")

    monkeypatch.setitem(PEERS, "broken", broken)
    found = TimedOnly(MATMUL).time(4, ("broken", "cublas"))
    assert found["peers"]["broken"] == {"message": "RuntimeError: no compiler"}
    assert found["ratio"] == 1.5
    alone = TimedOnly({"kind": "add"}).time(4, ("cublas", "triton"))
    assert alone["peers"] == {}
    assert "ratio" not in alone


def test_peers_on_the_command_line_and_the_time_they_get():
    assert peer_list("cublas,triton") == ("cublas", "triton")
    assert peer_list("") == ()
    with pytest.raises(ArgumentTypeError, match="there is no peer cutlass; there are cublas, triton"):
        peer_list("cublas,cutlass")
    assert default_seconds(250, ("cublas",)) == 20.0
    assert default_seconds(3000, ("cublas",)) == 75.0
    assert default_seconds(10, ("cublas", "triton")) == 80.0
    asked = Case("q", "mm", {}, peers=["eager", "compile"])
    assert seconds_of(asked, Options()) == default_seconds(10, ("compile",))
    assert seconds_of(asked, Options(peers=("eager",))) == 20.0
    assert seconds_of(asked, Options(seconds_per_case=3.0)) == 3.0


class Compiler(FakeTorch):
    """Forgets, and compiles at the first call."""

    def __init__(self):
        super().__init__()
        self.asked = []
        self.compiler = SimpleNamespace(reset=lambda: self.asked.append("reset"))

    def compile(self, function, **how):
        self.asked.append(how)
        return function


def test_what_torch_compile_is_asked():
    """It forgets the case before, whose code is the same: it keeps 8 of them. Parts that would run eagerly are errors."""
    torch = Compiler()
    for _ in range(2):
        make_peer("compile", torch, [FakeTensor(), FakeTensor()], MATMUL)()
    how = {"dynamic": False, "fullgraph": True, "mode": "max-autotune-no-cudagraphs"}
    assert torch.asked == ["reset", how] * 2
    assert torch.products == 4
    make_peer("cublas", torch, [FakeTensor(), FakeTensor()], MATMUL)
    assert len(torch.asked) == 4


def test_a_compiler_that_fails_or_does_not_end_is_told(clock, monkeypatch):
    """In one line of the record; the others are timed all the same."""

    def fails(torch, args, work):
        raise RuntimeError("backend='inductor' raised:\n  no room\n\nSet TORCH_LOGS")

    def hangs(torch, args, work):
        while True:
            with contextlib.suppress(Exception):
                time.sleep(5)

    monkeypatch.setitem(PEERS, "fails", fails)
    monkeypatch.setitem(PEERS, "hangs", hangs)
    monkeypatch.setitem(START_SECONDS, "hangs", 0.05)
    found = TimedOnly(MATMUL).time(4, ("fails", "hangs", "cublas"))
    assert found["peers"]["fails"] == {"message": "RuntimeError: backend='inductor' raised: no room Set TORCH_LOGS"}
    assert found["peers"]["hangs"] == {"message": "TimeoutError: not ready within 0.05 s"}
    assert found["ratio"] == 1.5


def test_torch_compile_itself():
    """On the CPU; as many shapes as its cache holds of one function, and one more."""
    torch = pytest.importorskip("torch", reason="needs PyTorch: not run")
    torch.manual_seed(0)
    for rows in range(8, 18):
        a, b = torch.randn(rows, 24), torch.randn(16, 24)
        call = make_peer("compile", torch, [a, b], MATMUL)
        assert torch.allclose(call(), a @ b.mT, atol=1e-5)
    x, gate, up = (torch.randn(8, 24) for _ in range(3))
    call = make_peer("compile", torch, [x, gate, up], {"kind": "geglu"})
    assert torch.allclose(call(), fused.geglu(torch, x, gate, up), atol=1e-5)


TRITON = """
import torch
from emmy.bench import triton_matmul as peer
a, b = torch.randn(200, 150).half(), torch.randn(140, 150).half().mT
c = torch.full((200, 140), float("nan")).half()
grid = (-(-200 // 64) * -(-140 // 64),)
peer.matmul_kernel[grid](a, b, c, 200, 140, 150, *a.stride(), *b.stride(), c.stride(0), 64, 64, 32, 2)
print(float((c.float() - a.float() @ b.float()).abs().max()))
"""


def test_the_triton_kernel_on_tritons_interpreter():
    pytest.importorskip("triton", reason="needs Triton: not run")
    pytest.importorskip("torch", reason="needs PyTorch: not run")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", TRITON], capture_output=True, text=True, check=True, env=environment)
    assert float(done.stdout) < 0.05
