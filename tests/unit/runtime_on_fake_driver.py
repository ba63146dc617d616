"""Checks of emmy.runtime against the fake driver; run by test_runtime.py in a process whose library path has it."""

import os
from pathlib import Path

import numpy as np
import pytest
from two_kernels import ENTRIES, smoke_artefact, smoke_ptx

from emmy import runtime
from emmy.artefact import Artefact, Image
from emmy.binding import ArrayInfo
from emmy.errors import EmmyError
from emmy.module import Module


class ThroughInterface:
    """A "device" array that speaks the CUDA array interface."""

    def __init__(self, array, strides=None):
        self.array, self.strides = array, strides
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.ctypes.data, False),
            "strides": strides,
            "version": 3,
        }


class ThroughDlpack:
    """A "device" array that speaks DLPack; it notes the stream that it was asked for."""

    def __init__(self, array, device=0):
        self.array, self.device, self.stream = array, device, None

    def __dlpack_device__(self):
        return (2, self.device)

    def __dlpack__(self, stream=None):
        self.stream = stream
        return self.array.__dlpack__()


A = np.arange(1000, dtype=np.float32)
B = np.full(1000, 0.5, np.float32)


@pytest.fixture
def module():
    return runtime.Runtime().load(smoke_artefact("sm_90a"))


@pytest.fixture
def log(tmp_path, monkeypatch):
    path = tmp_path / "log"
    monkeypatch.setenv("FAKE_CUDA_LOG", str(path))
    # The C side reads its own copy of the environment, which monkeypatch's os.environ writes through putenv.
    assert os.environ["FAKE_CUDA_LOG"] == str(path)
    return lambda: path.read_text().splitlines() if path.exists() else []


def test_device_is_described():
    device = runtime.Runtime()
    assert runtime.is_available()
    assert (device.name, device.compute_capability) == ("Fake 0", (9, 0))
    with pytest.raises(EmmyError, match="there is no CUDA device 3; 1 found"):
        runtime.Runtime(3)


def test_numpy_goes_both_ways(module, log):
    assert np.array_equal(module.run("vector_add", (A, B)), A + B)
    assert np.array_equal(module.run("vector_add", (B, B)), B + B)
    assert log() == ["cubin"] + ["launch 8,1,1 128,1,1 0 stream 0"] * 2


def test_numpy_out_is_filled_and_checked(module):
    out = np.zeros(1000, np.float32)
    assert module.run("vector_add", (A, B), out=out) is out
    assert np.array_equal(out, A + B)
    with pytest.raises(EmmyError, match=r"out is f32 of shape \(999,\); expected f32 of shape \(1000,\)"):
        module.run("vector_add", (A, B), out=out[:999])
    apart = np.zeros(2000, np.float32)
    module.run("vector_add", (A, B), out=apart[::2])
    assert np.array_equal(apart[::2], A + B)
    assert not apart[1::2].any()


def test_empty_arrays_launch_nothing(module, log):
    empty = np.zeros(0, np.float32)
    assert module.run("vector_add", (empty, empty)).shape == (0,)
    assert log() == []


@pytest.mark.parametrize("wrap", [ThroughInterface, ThroughDlpack])
def test_device_arrays_are_used_in_place(module, log, wrap):
    for _ in range(2):
        out = np.zeros(1000, np.float32)
        module.run("vector_add", (wrap(A), wrap(B)), out=wrap(out), stream=77)
        assert np.array_equal(out, A + B)
    assert log()[1:] == ["launch 8,1,1 128,1,1 0 stream 77"] * 2


def test_dlpack_is_told_the_stream(module):
    first, out = ThroughDlpack(A), ThroughDlpack(np.zeros(1000, np.float32))
    module.run("vector_add", (first, ThroughDlpack(B)), out=out)
    assert first.stream == 1  # the legacy default stream
    module.run("vector_add", (first, ThroughDlpack(B)), out=out, stream=77)
    assert first.stream == 77


def test_a_misaligned_address_is_refused_on_a_warm_plan_too(module):
    bytes_ = np.zeros(4004, np.uint8)
    shifted = ThroughInterface(np.frombuffer(bytes_.data, np.uint8)[1:4001].view(np.float32))
    with pytest.raises(EmmyError, match=r"argument 'a' is at address .* multiple of 4 bytes"):
        module.run("vector_add", (shifted, ThroughInterface(B)), out=ThroughInterface(np.zeros(1000, np.float32)))
    module.run("vector_add", (ThroughInterface(A), ThroughInterface(B)), out=ThroughInterface(A.copy()))
    with pytest.raises(EmmyError, match=r"argument 'a' is at address .* multiple of 4 bytes"):
        module.run("vector_add", (shifted, ThroughInterface(B)), out=ThroughInterface(np.zeros(1000, np.float32)))


def choosing_module():
    """vector_add for addresses that are multiples of 64 bytes; in CTAs of 64 threads for any others, also of the result."""
    spec = ENTRIES["vector_add"]
    arguments = [{**argument, "strides": [None]} for argument in spec["arguments"]]
    first = spec["launches"][0]
    otherwise = {
        **first,
        "grid": [["ceildiv", ["dim", "a", 0], 64], 1, 1],
        "block": [64, 1, 1],
        "wants": {name: {"align": 4} for name in ("a", "b", spec["results"][0]["name"])},
    }
    wants = {name: {"align": 16} for name in otherwise["wants"]}
    launch = {**first, "wants": wants, "otherwise": [otherwise]}
    entry = {**spec, "arguments": arguments, "launches": [launch]}
    return runtime.Runtime().load(Artefact("sm_90a", {"smoke": Image(smoke_ptx("sm_90a"))}, {"vector_add": entry}))


def test_each_address_takes_its_variant_whichever_came_first(log):
    """Plans are kept by shapes and strides; what an address is a multiple of decides anew in every call."""
    module, out = choosing_module(), np.zeros(1032, np.float32)
    start = -(out.ctypes.data // 4) % 16
    aligned, shifted = out[start : start + 1000], out[start + 1 : start + 1001]
    a, b = (ThroughInterface(array.copy()) for array in (A, B))
    for target, threads in ((shifted, 64), (aligned, 128), (shifted, 64), (aligned, 128)):
        target[...] = 0
        module.run("vector_add", (a, b), out=ThroughInterface(target))
        assert np.array_equal(target, A + B)
        assert f" {threads},1,1 " in log()[-1]
    assert sum(line.startswith("launch") for line in log()) == 4


@pytest.mark.parametrize("wrap", [ThroughInterface, np.asarray])
def test_out_that_shares_memory_with_an_argument_is_refused(log, wrap):
    """Warm calls too: the same shapes at other addresses."""
    module = choosing_module()
    memory = np.zeros(3000, np.float32)
    a, b, out = memory[:1000], memory[1000:2000], memory[2000:]
    for _ in range(2):
        module.run("vector_add", (wrap(a), wrap(b)), out=wrap(out))
        with pytest.raises(EmmyError, match="out shares memory with argument 'b'; pass an array of its own"):
            module.run("vector_add", (wrap(a), wrap(b)), out=wrap(memory[1500:2500]))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((A,), "1 arguments given; expected 2: a, b"),
        ((A, B, B), "3 arguments given; expected 2: a, b"),
        ((A, B.astype(np.float16)), "argument 'b' has dtype f16; expected f32"),
        ((A, B[:500]), r"argument 'b' has shape \(500,\); expected \(1000,\)"),
        ((A, ThroughDlpack(B)), "argument 'b' is a ThroughDlpack beside NumPy arrays"),
        ((ThroughDlpack(A), ThroughDlpack(B, device=2)), "argument 'b' is on CUDA device 2; the kernel is on 0"),
        ((ThroughInterface(A), ThroughInterface(B[::2].copy(), strides=(8,))), "argument 'b' has shape"),
        ((ThroughInterface(A), ThroughInterface(B, strides=(8,))), r"argument 'b' has strides \(2,\)"),
        ((ThroughInterface(A), [1.0]), "argument 'b' is a list; expected an array"),
        ((ThroughInterface(A), ThroughInterface(B)), "cannot allocate f32 results as .* arrays; pass out="),
    ],
)
def test_a_broken_contract_is_one_sentence(module, args, message):
    with pytest.raises(EmmyError, match=message):
        module.run("vector_add", args)


def test_ptx_is_compiled_by_the_driver_where_the_cubin_does_not_run(log):
    older = Artefact("sm_80", {"smoke": Image(smoke_ptx("sm_80"), b"\x7fELF for another card")}, ENTRIES)
    assert np.array_equal(runtime.Runtime().load(older).run("vector_add", (A, B)), A + B)
    assert log()[0] == "ptx"


def test_the_driver_compilers_error_is_shown():
    broken = Artefact("sm_90a", {"smoke": Image("reject me")}, ENTRIES)
    with pytest.raises(EmmyError, match=r"cannot compile image 'smoke': CUDA_ERROR_FAKE.*line 7: what is this"):
        runtime.Runtime().load(broken).run("vector_add", (A, B))


def test_an_image_for_another_card_is_refused():
    other = Artefact("sm_120a", {"smoke": Image(smoke_ptx("sm_120a"))}, ENTRIES)
    with pytest.raises(
        EmmyError, match=r"image 'smoke' is for sm_120a; device 0 \(Fake 0\) has compute capability 9.0"
    ):
        runtime.Runtime().load(other).run("vector_add", (A, B))


def test_missing_kernels_and_shared_memory_are_errors():
    with pytest.raises(EmmyError, match="cannot find kernel 'naive_matmul' in image 'smoke'"):
        runtime.Runtime().load(smoke_artefact("sm_90a")).run("naive_matmul", (np.zeros((4, 4), np.float16),) * 2)
    for size, fits in ((200_000, True), (240_000, False)):
        launch = {**ENTRIES["vector_add"]["launches"][0], "shared_bytes": size}
        entries = {"vector_add": {**ENTRIES["vector_add"], "launches": [launch]}}
        module = runtime.Runtime().load(Artefact("sm_90a", {"smoke": Image(smoke_ptx("sm_90a"))}, entries))
        if fits:
            assert np.array_equal(module.run("vector_add", (A, B)), A + B)
        else:
            with pytest.raises(EmmyError, match="cannot give kernel 'vector_add' 240000 bytes of shared memory"):
                module.run("vector_add", (A, B))


MAP = {
    "of": "a",
    "dtype": "f32",
    "sizes": [["dim", "a", 0], 1, 4],
    "strides": [["mul", 16, 1], 16],
    "box": [8, 1, 4],
    "swizzle": 32,
}


def mapped_module(**changes):
    """vector_add with the first argument, of 4 columns, passed as a tensor map."""
    spec = ENTRIES["vector_add"]
    first = {"name": "a", "dtype": "f32", "shape": [["dim", "a", 0], 4]}
    other = {"name": "b", "dtype": "f32", "shape": [["dim", "b", 0], 4]}
    out = {"name": "out", "dtype": "f32", "shape": [["dim", "a", 0], 4]}
    elements = ["mul", ["dim", "a", 0], 4]
    launch = {
        **spec["launches"][0],
        "kernel": "mapped_add",
        "grid": [["ceildiv", elements, 128], 1, 1],
        "params": [{"tensor_map": {**MAP, **changes}}, {"pointer": "b"}, {"pointer": "out"}, {"u32": elements}],
    }
    entry = {"arguments": [first, other], "results": [out], "launches": [launch]}
    return runtime.Runtime().load(Artefact("sm_90a", {"smoke": Image(smoke_ptx("sm_90a"))}, {"mapped_add": entry}))


ENCODE = "encode type 7 dims 4,1,250 strides 16,16 box 4,1,8 steps 1,1,1 interleave 0 swizzle 1 promotion 3 fill 0"


def test_a_tensor_map_is_encoded_once_for_each_address(log):
    module, a, b = mapped_module(), A.reshape(250, 4), B.reshape(250, 4)
    arrays = [ThroughInterface(aligned(a)), ThroughInterface(aligned(a + 1))]
    for number, array in enumerate([*arrays, *arrays]):
        out = np.zeros_like(a)
        module.run("mapped_add", (array, ThroughInterface(b)), out=ThroughInterface(out))
        assert np.array_equal(out, array.array + b)
        assert log().count(ENCODE) == min(number + 1, 2)
    assert np.array_equal(module.run("mapped_add", (a, b)), a + b)


def aligned(array):
    """A copy at a multiple of 16 bytes."""
    memory = np.zeros(array.nbytes + 16, np.uint8)
    copy = memory[-memory.ctypes.data % 16 :][: array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def test_an_empty_tensor_has_a_map_of_one_element(log):
    spec = mapped_module().artefact.entries["mapped_add"]
    spec["launches"][0]["grid"] = [1, 1, 1]
    module = runtime.Runtime().load(Artefact("sm_90a", {"smoke": Image(smoke_ptx("sm_90a"))}, {"mapped_add": spec}))
    empty = np.zeros((0, 4), np.float32)
    module.run("mapped_add", (empty, empty))
    assert log()[-2].startswith("encode type 7 dims 1,1,1 strides 16,16 box 4,1,8")
    assert log()[-1].startswith("launch")


def test_what_tma_cannot_take_is_one_sentence():
    a, b = A.reshape(250, 4), B.reshape(250, 4)
    with pytest.raises(EmmyError, match="dimension 0 of 'a' has a stride of 1000 bytes; TMA needs a multiple of 16"):
        mapped_module(strides=[1000, 16]).run("mapped_add", (a, b))
    with pytest.raises(EmmyError, match="'a' is too large for TMA"):
        mapped_module(sizes=[2**33, 1, 4]).run("mapped_add", (a, b))
    with pytest.raises(EmmyError, match="cannot encode a tensor map of 'a': CUDA_ERROR_FAKE: a fake failure"):
        mapped_module(box=[512, 1, 4]).run("mapped_add", (a, b))
    shifted = ThroughInterface(aligned(np.zeros(1004, np.float32))[1:1001].reshape(250, 4))
    with pytest.raises(EmmyError, match=r"argument 'a' is at address .* multiple of 16 bytes"):
        mapped_module().run("mapped_add", (shifted, ThroughInterface(b)), out=ThroughInterface(b.copy()))


def test_closing_unloads_and_the_module_can_be_used_again(module, log):
    module.run("vector_add", (A, B))
    module.close()
    assert np.array_equal(module.run("vector_add", (A, B)), A + B)
    assert log().count("cubin") == 2


CLUSTERS_ASKED = "ask clusters 2,1,1 of 128,1,1 2048"


def clustered_module(otherwise=(), **changes):
    """vector_add in clusters of 2 CTAs, as a persistent kernel; `otherwise`: further kernels' changes to the launch."""
    first = {
        **ENTRIES["vector_add"]["launches"][0],
        "grid": [["mul", 2, ["min", ["ceildiv", ["dim", "a", 0], 256], ["floordiv", ["sms"], 2]]], 1, 1],
        "shared_bytes": 2048,
        "cluster": [2, 1, 1],
        "persistent": True,
    }
    launch = {**first, **changes, "otherwise": [{**first, **fields} for fields in otherwise]}
    entry = {**ENTRIES["vector_add"], "launches": [launch]}
    return runtime.Runtime().load(Artefact("sm_90a", {"smoke": Image(smoke_ptx("sm_90a"))}, {"vector_add": entry}))


@pytest.mark.parametrize(("held", "ctas"), [(66, 8), (4, 8), (3, 6), (1, 2)])
def test_a_persistent_grid_is_what_the_device_holds_of_its_clusters(log, monkeypatch, held, ctas):
    """The driver is asked once; calls of any shape find the answer."""
    monkeypatch.setenv("FAKE_CUDA_CLUSTERS", str(held))
    module = clustered_module()
    for size in (1000, 1000, 996, 1000):
        module.run("vector_add", (A[:size], B[:size]))
    launches = [line for line in log() if line.startswith("launch")]
    assert launches == [f"launch {ctas},1,1 128,1,1 2048 stream 0"] * 4
    assert log().count(CLUSTERS_ASKED) == 1
    assert module.clusters(module.artefact.entries["vector_add"]["launches"][0]) == held
    assert log().count(CLUSTERS_ASKED) == 1


def test_a_grid_that_is_not_persistent_stays(log, monkeypatch):
    """Its CTAs wait for each other's places; the driver is asked all the same, whether it can hold one cluster."""
    monkeypatch.setenv("FAKE_CUDA_CLUSTERS", "1")
    assert np.array_equal(clustered_module(persistent=False).run("vector_add", (A, B)), A + B)
    assert log()[1:] == [CLUSTERS_ASKED, "launch 8,1,1 128,1,1 2048 stream 0"]


@pytest.mark.parametrize("held", ["0", "-1"])
def test_a_device_that_holds_no_cluster_takes_the_kernel_without(log, monkeypatch, held):
    """A part of a GPU may be too small for one; the answer is kept."""
    monkeypatch.setenv("FAKE_CUDA_CLUSTERS", held)
    module = clustered_module()
    sentence = (
        r"device 0 \(Fake 0\) cannot hold a cluster of 2 CTAs of 128 threads and 2048 bytes of shared memory; "
        "schedules without clusters have split_k = 1 and share = none$"
    )
    for _ in range(2):
        with pytest.raises(EmmyError, match=sentence):
            module.run("vector_add", (A, B))
    assert log() == ["ptx", CLUSTERS_ASKED]
    plain = {"cluster": [], "persistent": False, "block": [64, 1, 1], "grid": [16, 1, 1], "kernel": "vector_add"}
    module = clustered_module([plain], kernel="mapped_add")
    for _ in range(2):
        assert np.array_equal(module.run("vector_add", (A, B)), A + B)
    assert log()[-2:] == ["launch 16,1,1 64,1,1 2048 stream 0"] * 2
    assert log().count(CLUSTERS_ASKED) == 2
    infos = [ArrayInfo("f32", (1000,)), ArrayInfo("f32", (1000,))]
    (launch,) = module.choose("vector_add", infos).launches
    assert [name for name, _ in launch.passed_over] == ["mapped_add"]


def test_a_driver_that_does_not_say(monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_CLUSTERS", "-2")
    message = "cannot ask how many clusters of kernel 'vector_add' the device holds: CUDA_ERROR_FAKE"
    with pytest.raises(EmmyError, match=message):
        clustered_module().run("vector_add", (A, B))


def test_reports_show_what_the_device_holds(monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_CLUSTERS", "57")
    (kernel,) = Module(clustered_module().artefact).report().kernels
    assert (kernel.cluster, kernel.clusters_held) == (2, 57)
    assert "clusters   of 2 CTAs; this GPU holds 57 at once" in str(kernel)


def test_this_file_ran_on_the_fake_driver():
    assert Path(os.environ["LD_LIBRARY_PATH"].split(":")[0], "libcuda.so.1").is_file()
