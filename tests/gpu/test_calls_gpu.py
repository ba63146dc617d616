"""Calls on a real device with PyTorch: warm calls, CUDA graphs, what a call costs the host."""

import time

import numpy as np
import pytest
from two_kernels import ENTRIES, smoke_ptx

import emmy
from emmy import runtime
from emmy.artefact import Artefact, Image
from emmy.errors import EmmyError
from emmy.module import Module

HOST_CALLS = 200
"""Few enough that the launch queue does not fill up."""


@pytest.fixture
def torch():
    if not runtime.is_available():
        pytest.skip("needs a GPU: not run")
    return pytest.importorskip("torch", reason="needs PyTorch: not run")


@pytest.fixture
def module():
    # sm_80 text runs on every later card, compiled by the driver.
    return Module(Artefact("sm_80", {"smoke": Image(smoke_ptx("sm_80"))}, ENTRIES))


def test_warm_calls(torch, module):
    for size in (1000, 400, 1000, 0, 1000):
        a, b = (torch.randn(size, device="cuda") for _ in range(2))
        assert torch.equal(module.vector_add(a, b), a + b)
        out = torch.full_like(a, float("nan"))
        assert module.vector_add(a, b, out=out) is out
        assert torch.equal(out, a + b)
        with torch.inference_mode():
            assert torch.equal(module.vector_add(a, b), a + b)
        assert torch.equal(module.vector_add(torch.nn.Parameter(a), b), a + b)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_8_bit_operands(torch, dtype):
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs a GPU with products of 8-bit floats: not run")
    name = {"float8_e4m3fn": "f8E4M3FN", "float8_e5m2": "f8E5M2"}[dtype]
    types = f"(%a: tensor<?x64x{name}>, %b: tensor<32x64x{name}>) -> tensor<?x32xbf16>"
    product = types.replace("%a: ", "").replace("%b: ", "")
    text = f"func.func @mm{types} {{\n  %c = tensor_op.matmul %a, %b transpose_b : {product}\n"
    compiled = emmy.compile(text + "  func.return %c : tensor<?x32xbf16>\n}\n")
    a, b = (torch.randint(-2, 3, (rows, 64), device="cuda").float().to(getattr(torch, dtype)) for rows in (40, 32))
    expected = (a.float() @ b.float().T).to(torch.bfloat16)
    assert torch.equal(compiled.mm(a, b), expected)
    column_major = b.view(torch.uint8).T.contiguous().T.view(b.dtype)
    assert torch.equal(compiled.mm(a, column_major), expected)


def test_calls_are_recorded_into_a_graph(torch, module):
    a, b, out = (torch.randn(1000, device="cuda") for _ in range(3))
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(EmmyError, match="used for the first time"), torch.cuda.graph(graph):
        module.vector_add(a, b, out=out)
    module.vector_add(a, b, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module.vector_add(a, b, out=out)
        fresh = module.vector_add(out, b)
    a.copy_(torch.arange(1000, device="cuda"))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, a + b)
    assert torch.equal(fresh, a + b + b)


def test_another_stream(torch, module):
    a, b = (torch.randn(1_000_000, device="cuda") for _ in range(2))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    for _ in range(2):
        result = module.vector_add(a, b, stream=stream)
        stream.synchronize()
        assert torch.equal(result, a + b)


@pytest.mark.parametrize("with_out", [True, False])
def test_thousands_of_warm_calls(torch, module, with_out, record_property):
    """Right to the last call; what a call costs the host is printed, not asserted: it depends on the machine's clock."""
    a, b, out = (torch.randn(1024, device="cuda") for _ in range(3))
    options = {"out": out} if with_out else {}
    best = np.inf
    for _ in range(20):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(HOST_CALLS):
            result = module.vector_add(a, b, **options)
        best = min(best, (time.perf_counter() - began) / HOST_CALLS * 1e6)
    record_property("host_us", best)
    print(f"host cost of a warm call {'with' if with_out else 'without'} out: {best:.2f} us")
    assert torch.equal(result, a + b)
