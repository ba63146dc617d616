"""Calls of modules against the fake driver: tensors (of a stand-in for PyTorch), CUDA graphs, several devices, old drivers.

Run by test_runtime.py in a process whose library path has the fake driver.
"""

import contextlib
import sys
import threading
import types

import numpy as np
import pytest
from two_kernels import ENTRIES, smoke_artefact, smoke_ptx

from emmy import runtime
from emmy.artefact import Artefact, Image
from emmy.errors import EmmyError
from emmy.module import Module

CAPTURED = 99
"""The stream that the fake driver calls captured."""

A = np.arange(1000, dtype=np.float32)
B = np.full(1000, 0.5, np.float32)


class Tensor:
    """What emmy uses of a PyTorch tensor, over an array in host memory."""

    def __init__(self, array, device=0, layout="torch.strided", negated=False):
        self.array, self.index, self.layout, self.negated = array, device, layout, negated
        self.dtype = getattr(sys.modules["torch"], str(array.dtype))

    shape = property(lambda self: sys.modules["torch"].Size(self.array.shape))
    is_cuda = property(lambda self: self.index >= 0)
    device = property(lambda self: f"cuda:{self.index}" if self.is_cuda else "cpu")

    def is_neg(self):
        return self.negated

    def new_empty(self, *size):
        torch = sys.modules["torch"]
        torch.allocated.append(torch.current)
        return Tensor(np.full(size, np.nan, self.array.dtype), self.index)

    def stride(self):
        if self.layout != "torch.strided":
            raise RuntimeError("sparse tensors do not have strides")
        return tuple(stride // self.array.itemsize for stride in self.array.strides)

    def get_device(self):
        return self.index

    def data_ptr(self):
        return self.array.ctypes.data


class Parameter(Tensor):
    pass


class TensorGuards:
    """Counts how often it was asked; strict about the type, as PyTorch's own is."""

    asked = 0

    def __init__(self, *tensors, dynamic_dims_sizes, dynamic_dims_strides):
        self.known = [self.facts(t) for t in tensors]
        assert [list(t.shape) for t in tensors] == dynamic_dims_sizes
        assert [list(t.stride()) for t in tensors] == dynamic_dims_strides

    @staticmethod
    def facts(tensor):
        if not isinstance(tensor, Tensor):
            return None
        return (
            type(tensor),
            tensor.dtype,
            tensor.shape,
            tensor.layout,
            tensor.negated,
            tensor.index,
            tensor.array.strides,
        )

    def check(self, *tensors):
        if len(tensors) != len(self.known):
            raise TypeError("wrong length")
        TensorGuards.asked += 1
        return [self.facts(t) for t in tensors] == self.known


def stand_in():
    torch = types.ModuleType("torch")
    torch.Tensor, torch.Size = Tensor, type("Size", (tuple,), {})
    for name in ("float16", "bfloat16", "float32", "int32", "int8"):
        setattr(torch, name, f"torch.{name}")
    torch.allocated, torch.current, torch.strided = [], 7, "torch.strided"

    def empty(size, dtype, device):
        return Tensor(np.full(size, np.nan, dtype.removeprefix("torch.")), int(device[5:]))

    @contextlib.contextmanager
    def stream(other):
        before, torch.current = torch.current, other
        yield
        torch.current = before

    torch.empty = empty
    torch.cuda = types.SimpleNamespace(stream=stream, ExternalStream=lambda handle, device: handle)

    def empty_strided_cuda(size, stride, dtype):
        torch.allocated += [torch.current] * bool(np.prod(size))
        made = Tensor(np.full(size, np.nan, dtype.removeprefix("torch.")), 0)
        assert made.stride() == stride or 0 in size
        return made

    private = types.SimpleNamespace(TensorGuards=TensorGuards, _empty_strided_cuda=empty_strided_cuda)
    guards = types.SimpleNamespace(guards=private)
    torch._C = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda device: torch.current, _dynamo=guards)
    return torch


@pytest.fixture(params=["guards", "no guards"])
def torch(request, monkeypatch):
    """With and without the private test of tensors, which a PyTorch may lack."""
    torch = stand_in()
    if request.param == "no guards":
        del torch._C._dynamo
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(TensorGuards, "asked", 0)
    return torch


@pytest.fixture
def log(tmp_path, monkeypatch):
    path = tmp_path / "log"
    monkeypatch.setenv("FAKE_CUDA_LOG", str(path))

    def read():
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    return read


@pytest.fixture
def two_devices(monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "2")


@pytest.fixture
def module():
    return Module(smoke_artefact("sm_90a"))


LAUNCH = "launch 8,1,1 128,1,1 0 stream"


# ---- tensors ---------------------------------------------------------------------------------------------------------


def test_tensors_in_tensors_out(torch, module, log):
    for number in range(3):
        a, b = Tensor(A + number), Tensor(B.copy())
        result = module.vector_add(a, b)
        assert isinstance(result, Tensor)
        assert np.array_equal(result.array, A + number + B)
        out = Tensor(np.zeros(1000, np.float32))
        assert module.vector_add(a, b, out=out) is out
        assert np.array_equal(out.array, A + number + B)
        assert module.vector_add(a, b, out=[out]) is out
    assert torch.allocated == [7] * 3
    assert log() == ["cubin"] + [f"{LAUNCH} 7"] * 9
    assert (TensorGuards.asked > 6) == hasattr(torch._C, "_dynamo")


def test_plans_by_shape_and_type(torch, module, log):
    for _ in range(3):
        for size in (1000, 400, 0):
            for kind in (Tensor, Parameter):
                a, b = kind(A[:size].copy()), Tensor(B[:size].copy())
                assert np.array_equal(module.vector_add(a, b).array, A[:size] + B[:size])
    assert log().count("cubin") == 1
    caller = module.cuda(0).caller("vector_add")
    assert len(caller._kept) == 3


def test_warm_calls_are_checked(torch, module):
    a, b, out = Tensor(A), Tensor(B), Tensor(np.zeros(1000, np.float32))
    module.vector_add(a, b)
    module.vector_add(a, b, out=out)
    bytes_ = np.zeros(4004, np.uint8)
    shifted = Tensor(bytes_[1:4001].view(np.float32))
    for wrong, message in (
        ((a, shifted), "argument 'b' is at address .* multiple of 4 bytes"),
        ((a, Tensor(B.astype(np.float16))), "argument 'b' has dtype f16; expected f32"),
        ((a, Tensor(B[:500])), r"argument 'b' has shape \(500,\); expected \(1000,\)"),
        ((a, Tensor(np.zeros(2000, np.float32)[::2])), r"argument 'b' has strides \(2,\)"),
        ((a, Tensor(B, device=-1)), "argument 'b' is a tensor on 'cpu'; move it to a CUDA device"),
        ((a, Tensor(B, layout="torch.sparse_coo")), "argument 'b' is a sparse_coo tensor; pass a dense one"),
        (
            (a, Tensor(B, negated=True)),
            r"argument 'b' is a view that is still to be negated; pass .resolve_neg\(\) of it",
        ),
        ((a, B), "argument 'a' is a Tensor beside NumPy arrays"),
        ((a,), "1 arguments given; expected 2"),
        ((a, b, out), "3 arguments given; expected 2"),
        ((a, 1.0), "argument 'b' is a float; expected an array"),
    ):
        for options in ({}, {"out": out}):
            with pytest.raises(EmmyError, match=message):
                module.vector_add(*wrong, **options)
    with pytest.raises(EmmyError, match="out holds 2 arrays; expected 1"):
        module.vector_add(a, b, out=[out, out])
    with pytest.raises(EmmyError, match="out is f16"):
        module.vector_add(a, b, out=Tensor(np.zeros(1000, np.float16)))
    assert np.array_equal(module.vector_add(a, b).array, A + B)


def test_memory_of_a_given_stream_is_taken_from_that_stream(torch, module, log):
    for _ in range(2):
        module.vector_add(Tensor(A), Tensor(B), stream=31)
    module.vector_add(Tensor(A), Tensor(B), stream=7)
    assert torch.allocated == [31, 31, 7]
    assert log() == ["cubin", f"{LAUNCH} 31", f"{LAUNCH} 31", f"{LAUNCH} 7"]


@pytest.mark.parametrize("kind", ["missing", "raises", "another type"])
def test_a_private_allocator_that_is_no_good_is_not_used(torch, module, monkeypatch, kind):
    if not hasattr(torch._C, "_dynamo"):
        pytest.skip("this stand-in has none")
    private = torch._C._dynamo.guards
    if kind == "missing":
        del private._empty_strided_cuda
    elif kind == "raises":
        private._empty_strided_cuda = lambda *arguments: 1 // 0
    else:
        private._empty_strided_cuda = lambda size, stride, dtype: Tensor(np.zeros(size, np.int8))
    for _ in range(2):
        assert np.array_equal(module.vector_add(Tensor(A), Tensor(B)).array, A + B)


def test_addresses_that_come_again_and_more_than_are_kept(torch, module, monkeypatch):
    """Launches that are ready for some addresses are found again, and made anew after they were dropped."""
    monkeypatch.setattr("emmy.plans.MAX_READY", 3)
    tensors = [(Tensor(A + number), Tensor(B * number)) for number in range(5)]
    for number in (0, 1, 0, 2, 3, 4, 0, 4):
        a, b = tensors[number]
        assert np.array_equal(module.vector_add(a, b).array, a.array + b.array)
    caller = module.cuda(0).caller("vector_add")
    assert len(caller._last.plan.made) <= 3


def test_threads_share_plans(torch, module):
    sums = [(Tensor(A + number), Tensor(B * number)) for number in range(4)]
    wrong = []

    def work(a, b):
        for _ in range(300):
            if not np.array_equal(module.vector_add(a, b).array, a.array + b.array):
                wrong.append(a)

    threads = [threading.Thread(target=work, args=pair) for pair in sums]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(torch.allocated) == 4 * 300


def test_a_closed_module_loads_again(torch, module, log):
    for _ in range(2):
        assert np.array_equal(module.vector_add(Tensor(A), Tensor(B)).array, A + B)
        module.cuda(0).close()
    assert log().count("cubin") == 2


# ---- CUDA graphs -----------------------------------------------------------------------------------------------------


def test_the_first_use_during_a_capture_is_refused(torch, module, log):
    torch.current = CAPTURED
    with pytest.raises(EmmyError, match=r"kernel 'vector_add' is used for the first time .* call it once before"):
        module.vector_add(Tensor(A), Tensor(B))
    assert log() == []
    torch.current = 7
    module.vector_add(Tensor(A), Tensor(B))
    assert log() == ["cubin", f"{LAUNCH} 7"]


def test_a_capture_records_launches_and_nothing_else(torch, module, log, monkeypatch):
    module.vector_add(Tensor(A), Tensor(B))
    log()
    torch.current = CAPTURED
    driver = runtime.open_device(0).driver
    forbidden = ("cuMemAlloc", "cuMemFree", "cuModuleLoadData", "cuStreamSynchronize", "cuMemcpyDtoHAsync")
    for name in forbidden:
        monkeypatch.setattr(driver, name, lambda *args, name=name: pytest.fail(f"{name} during a capture"))
    a, b = Tensor(A), Tensor(B)
    module.vector_add(a, b)
    module.vector_add(a, b, out=Tensor(A.copy()))
    module.vector_add(Tensor(A[:400].copy()), Tensor(B[:400].copy()))  # a shape that is met here
    assert log() == [f"{LAUNCH} {CAPTURED}"] * 2 + [LAUNCH.replace("8", "4", 1) + f" {CAPTURED}"]
    assert torch.allocated[1:] == [CAPTURED] * 2


def test_numpy_cannot_be_captured(module):
    module.vector_add(A, B)
    with pytest.raises(EmmyError, match=r"a stream that is being captured .* pass arrays that are on the device"):
        module.vector_add(A, B, stream=CAPTURED)


# ---- several devices -------------------------------------------------------------------------------------------------


def test_each_device_loads_the_module_once(torch, two_devices, module, log):
    for _ in range(3):
        for device in (0, 1):
            result = module.vector_add(Tensor(A, device), Tensor(B, device))
            assert np.array_equal(result.array, A + B)
            assert result.get_device() == device
    assert log().count("cubin") == 2
    assert module.cuda(0) is not module.cuda(1)


def test_the_callers_device_stays_current(torch, two_devices, module):
    driver, first = runtime.open_device(0).driver, runtime.open_device(0)
    driver.cuCtxSetCurrent(first.context)
    for _ in range(2):
        module.vector_add(Tensor(A, 1), Tensor(B, 1))
        assert int(driver.cuCtxGetCurrent()[1]) == int(first.context)


def test_arguments_on_different_devices(torch, two_devices, module):
    for _ in range(2):
        with pytest.raises(EmmyError, match="argument 'b' is on CUDA device 1; the kernel is on 0"):
            module.vector_add(Tensor(A), Tensor(B, 1))
        with pytest.raises(EmmyError, match="argument 'out' is on CUDA device 1; the kernel is on 0"):
            module.vector_add(Tensor(A), Tensor(B), out=Tensor(A.copy(), 1))
        with pytest.raises(EmmyError, match="argument 'a' is on CUDA device 0; the kernel is on 1"):
            module.vector_add(Tensor(A), Tensor(B), device="cuda:1")
        module.vector_add(Tensor(A), Tensor(B))


def test_a_device_by_number(two_devices, module, log):
    assert np.array_equal(module.vector_add(A, B, device="cuda:1"), A + B)
    assert np.array_equal(module.vector_add(A, B), A + B)
    assert log().count("cubin") == 2
    with pytest.raises(EmmyError, match="there is no CUDA device 2; 2 found"):
        module.vector_add(A, B, device="cuda:2")
    with pytest.raises(EmmyError, match="device is one of auto, cuda, cuda:N, emulator, got 'cuda:x'"):
        module.vector_add(A, B, device="cuda:x")


# ---- drivers ---------------------------------------------------------------------------------------------------------


def loaded(ptx, cubin=None):
    return Module(Artefact("sm_90a", {"smoke": Image(ptx, cubin)}, ENTRIES))


def test_a_driver_that_is_too_old_for_the_ptx():
    message = (
        r"the driver, of CUDA 13\.0, is too old for image 'smoke', whose PTX is of version 99\.1; "
        r"install the driver of CUDA 103\.1 or later"
    )
    with pytest.raises(EmmyError, match=message):
        loaded(".version 99.1\n.target sm_90a\n").vector_add(A, B)


@pytest.mark.parametrize(
    ("version", "release"), [((7, 4), "11.4"), ((7, 8), "11.8"), ((8, 0), "12.0"), ((8, 7), "12.8"), ((9, 0), "13.0")]
)
def test_the_release_that_knows_a_version(version, release):
    from emmy.device_images import first_cuda_with

    assert first_cuda_with(*version) == release


def test_a_cubin_that_is_too_new_is_compiled_from_its_ptx(log):
    future = b"\x7fELF of the future\0"
    assert np.array_equal(loaded(smoke_ptx("sm_90a"), future).vector_add(A, B), A + B)
    assert log()[0] == "ptx"
    with pytest.raises(EmmyError, match="cannot load the cubin of image 'smoke': CUDA_ERROR_FAKE"):
        loaded(None, future).vector_add(A, B)
