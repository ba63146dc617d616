"""The runtime without a GPU: choices it makes, its errors, and its use of the driver API against a fake driver."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from emmy import runtime
from emmy.artefact import Image
from emmy.errors import EmmyError

HERE = Path(__file__).parent
BOTH, PTX, CUBIN = Image("ptx", b"cubin"), Image("ptx"), Image(cubin=b"cubin")


@pytest.mark.parametrize(
    ("target", "capability", "image", "form"),
    [
        ("sm_90a", (9, 0), BOTH, "cubin"),
        ("sm_90a", (9, 0), PTX, "ptx"),
        ("sm_90a", (10, 0), BOTH, None),
        ("sm_80", (8, 0), CUBIN, "cubin"),
        ("sm_80", (8, 9), CUBIN, "cubin"),
        ("sm_80", (9, 0), BOTH, "ptx"),
        ("sm_80", (9, 0), CUBIN, None),
        ("sm_89", (8, 0), BOTH, None),
        ("sm_120a", (12, 1), BOTH, None),
    ],
)
def test_which_form_of_an_image_a_device_loads(target, capability, image, form):
    assert runtime.loadable(target, capability, image) == form


class WithMethod:
    def __cuda_stream__(self):
        return (0, 41)


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (40, 40),
        (WithMethod(), 41),
        (SimpleNamespace(__cuda_stream__=(0, 42)), 42),
        (SimpleNamespace(cuda_stream=43), 43),
        (SimpleNamespace(ptr=44), 44),
    ],
)
def test_streams_of_every_kind(stream, handle):
    assert runtime.stream_handle(stream) == handle


def test_what_is_no_stream():
    with pytest.raises(EmmyError, match="'str' is no CUDA stream"):
        runtime.stream_handle("default")


NO_DRIVER = """
from emmy import runtime
from emmy.errors import EmmyError
assert not runtime.is_available()
try:
    runtime.Runtime()
except EmmyError as error:
    print(error)
"""


def test_without_a_device_the_error_is_one_sentence():
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", NO_DRIVER], capture_output=True, text=True, check=True, env=environment
    )
    assert "CUDA" in done.stdout
    assert len(done.stdout.splitlines()) == 1


def test_against_the_fake_driver(tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler: not run")
    library = tmp_path / "libcuda.so.1"
    source = HERE / "fake_cuda_driver.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", str(library), str(source), "-ldl"], check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    files = [str(HERE / name) for name in ("runtime_on_fake_driver.py", "calls_on_fake_driver.py")]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=HERE.parent.parent)
    assert done.returncode == 0, done.stdout + done.stderr
