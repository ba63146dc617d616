"""Launches that overlap (programmatic dependent launch): ops of kernels, PTX, what the plan and the runtime make of them."""

from types import SimpleNamespace

import numpy as np
import pytest

import emmy
from emmy.artefact import BoundLaunch
from emmy.emulator import Emulator, EmulatorError
from emmy.errors import EmmyError
from emmy.ir import parse_module, verify_module
from emmy.runtime import CudaModule

DECODE = """func.func @f(%q: tensor<1x4x1x32xf16>, %k: tensor<1x2x?x32xf16>, %v: tensor<1x2x?x32xf16>) -> tensor<1x4x1x32xf16> {
  %o = tensor_op.attention %q, %k, %v scale 0.125
    : (tensor<1x4x1x32xf16>, tensor<1x2x?x32xf16>, tensor<1x2x?x32xf16>) -> tensor<1x4x1x32xf16>
  func.return %o : tensor<1x4x1x32xf16>
}"""

PTX = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p)
{{
  .reg .b64 %rd<3>;
  .reg .b32 %r<3>;
  ld.param.u64 %rd0, [p];
  cvta.to.global.u64 %rd1, %rd0;
  {body}
  ret;
}}
"""
READ, WAIT = "ld.global.u32 %r1, [%rd1];", "griddepcontrol.wait;"


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90a", "sm_120a"])
def test_the_kernel_that_combines_waits_for_the_one_before(target):
    """Where the target has it: the split kernel lets the next one come, which waits after its barriers; its launch says so."""
    artefact = emmy.compile(DECODE, target).portable_artefact
    ptx, launches = artefact.images["kernels"].ptx, artefact.entry("f")["launches"]
    names = [launch["kernel"] for launch in launches]
    overlap = target in ("sm_90a", "sm_120a")
    assert names == ["f_kernel", "f_kernel_combine"]
    assert [launch.get("programmatic", False) for launch in launches] == [False, overlap]
    assert (ptx.count("griddepcontrol.launch_dependents;"), ptx.count("griddepcontrol.wait;")) == (overlap, overlap)
    if overlap:
        combine = ptx[ptx.index(".entry f_kernel_combine") :]
        assert combine.index("mbarrier.init") < combine.index("griddepcontrol.wait;") < combine.index("cp.async.bulk")
        bound = artefact.bind("f", [emmy.artefact.numpy_info(np.zeros(s, np.float16)) for s in SHAPES])
        assert [launch.programmatic for launch in bound.launches] == [False, True]


SHAPES = ((1, 4, 1, 32), (1, 2, 100, 32), (1, 2, 100, 32))


def run(body: str) -> None:
    Emulator(PTX.format(body=body)).launch("k", (1, 1, 1), (32, 1, 1), [np.zeros(1, np.uint32)])


def test_the_emulator_runs_launches_one_after_the_other():
    run(f"griddepcontrol.launch_dependents; {WAIT} {READ}")
    run(f"{READ} griddepcontrol.launch_dependents;")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (f"{READ} {WAIT}", "ld.global.u32 touches global memory before griddepcontrol.wait"),
        (f"st.global.u32 [%rd1], 1; {WAIT}", "st.global.u32 touches global memory before griddepcontrol.wait"),
        (
            f".reg .pred %p<2>; setp.eq.u32 %p0, 1, 1; @%p0 {WAIT} {READ}",
            "griddepcontrol.wait stands under a predicate",
        ),
        ("griddepcontrol.finish;", "griddepcontrol"),
    ],
)
def test_the_emulator_finds_memory_that_is_touched_too_early(body, sentence):
    with pytest.raises(EmulatorError, match=sentence):
        run(body)


def test_the_ops_stand_in_kernels():
    text = """tile.kernel @k(%a: !tile.view<8xf32>) {
      tile.launch_dependents
      tile.dependency_wait
    }"""
    module = parse_module(text, "t.mlir")
    verify_module(module)
    assert "tile.dependency_wait" in str(module)
    with pytest.raises(EmmyError, match="stands in a kernel, outside of loops and roles"):
        verify_module(parse_module("func.func @f() {\n  tile.dependency_wait\n  func.return\n}", "t.mlir"))


def test_the_runtime_says_so_to_the_driver():
    """Launches that wait by themselves carry the attribute; others are launched as ever."""
    calls = []
    serialization = object()
    driver = SimpleNamespace(
        CUlaunchConfig=SimpleNamespace,
        CUlaunchAttribute=SimpleNamespace,
        CUlaunchAttributeValue=SimpleNamespace,
        CUlaunchAttributeID=SimpleNamespace(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION=serialization),
        cuLaunchKernel=lambda *args: calls.append(args),
        cuLaunchKernelEx=lambda *args: calls.append(args),
    )
    module = SimpleNamespace(runtime=SimpleNamespace(driver=driver))
    for programmatic in (False, True):
        launch = BoundLaunch("kernels", "k", (3, 1, 1), (32, 1, 1), 64, (), programmatic=programmatic)
        CudaModule._starter(module, launch, "function")("stream", 1234, 0)
    plain, (config, *rest) = calls
    assert plain == ("function", 3, 1, 1, 32, 1, 1, 64, "stream", 1234, 0)
    assert rest == ["function", 1234, 0]
    assert (config.gridDimX, config.blockDimX, config.sharedMemBytes, config.hStream) == (3, 32, 64, "stream")
    [attribute] = config.attrs
    assert (config.numAttrs, attribute.id) == (1, serialization)
    assert attribute.value.programmaticStreamSerializationAllowed == 1
