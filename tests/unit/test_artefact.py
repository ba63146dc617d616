"""Artefacts: round trips, size expressions, and the sentence for every way that a call can break its contract."""

import copy
import json
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from two_kernels import smoke_artefact

from emmy.artefact import (
    DTYPES,
    ArrayInfo,
    Artefact,
    Image,
    bind,
    evaluate,
    numpy_info,
    row_major,
    run_on_emulator,
)
from emmy.errors import EmmyError

M, K, N = ["dim", "a", 0], ["dim", "a", 1], 256
ENTRY = {
    "arguments": [
        {"name": "a", "dtype": "f16", "shape": [M, 3840], "strides": [3840, 1], "align": 16},
        {"name": "b", "dtype": "f16", "shape": [N, K], "strides": [["stride", "b", 0], 1], "align": 16},
    ],
    "results": [{"name": "out0", "dtype": "f32", "shape": [M, N]}],
    "temporaries": [{"name": "partial", "dtype": "bf16", "shape": [2, M, N]}],
    "checks": [
        {"value": M, "multiple_of": 128, "message": "the first dimension of 'a' must be a multiple of 128"},
        {"value": ["stride", "b", 0], "multiple_of": 8, "message": "the row stride of 'b' must be a multiple of 8"},
    ],
    "launches": [
        {
            "image": "matmul",
            "kernel": "matmul_kernel",
            "grid": [["mul", ["ceildiv", M, 128], ["ceildiv", N, 128]], 1, 1],
            "block": [256, 1, 1],
            "shared_bytes": 147456,
            "params": [{"pointer": "a"}, {"pointer": "b"}, {"pointer": "out0"}, {"u32": M}, {"u64": ["mul", M, N]}],
        }
    ],
    "work": {"kind": "matmul", "m": M, "n": N, "k": K, "batch": 1, "transpose_a": False, "transpose_b": True},
}
A = ArrayInfo("f16", (512, 3840), address=4096)
B = ArrayInfo("f16", (256, 3840), address=8192)


def changed(**changes):
    return {**copy.deepcopy(ENTRY), **changes}


def test_a_folder_comes_back_as_it_was(tmp_path):
    saved = Artefact(
        "sm_90a",
        {"matmul": Image("// ptx\n", b"\x7fELF"), "text": Image("// only text\n")},
        {"matmul": ENTRY},
        {"matmul_kernel": {"registers": 236, "spill_bytes": 0, "shared_bytes": 147456}},
        {"matmul_kernel": {"image": "matmul", "opt_level": 3, "schedule": {"stages": 3}, "reason": "pinned"}},
    )
    saved.save(tmp_path / "deep" / "folder")
    assert Artefact.load(tmp_path / "deep" / "folder") == saved
    written = json.loads((tmp_path / "deep" / "folder" / "launch.json").read_text())
    assert written["format"] == 2
    assert written["images"] == {"matmul": {"ptx": "matmul.ptx", "cubin": "matmul.cubin"}, "text": {"ptx": "text.ptx"}}
    assert list(written) == ["format", "emmy", "target", "images", "entries", "resources", "kernels"]


def test_saving_replaces_the_whole_folder_and_leaves_nothing_beside_it(tmp_path):
    Artefact("sm_80", {"old": Image("old")}, {}).save(tmp_path / "x")
    Artefact("sm_80", {"new": Image("new")}, {}).save(tmp_path / "x")
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == ["launch.json", "new.ptx"]
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_failed_save_leaves_the_old_artefact(tmp_path):
    Artefact("sm_80", {"old": Image("old")}, {}).save(tmp_path / "x")
    with pytest.raises(TypeError):
        Artefact("sm_80", {"new": Image("new")}, {"bad": object()}).save(tmp_path / "x")
    assert Artefact.load(tmp_path / "x").images == {"old": Image("old")}
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_what_is_no_artefact_is_said(tmp_path):
    with pytest.raises(EmmyError, match=r"is no artefact: launch\.json cannot be read"):
        Artefact.load(tmp_path)
    (tmp_path / "launch.json").write_text("{")
    with pytest.raises(EmmyError, match="is no artefact"):
        Artefact.load(tmp_path)
    (tmp_path / "launch.json").write_text('{"format": 3}')
    with pytest.raises(EmmyError, match="has format 3; this Emmy reads formats 1 and 2"):
        Artefact.load(tmp_path)
    Artefact("sm_80", {"k": Image("text")}, {}).save(tmp_path / "x")
    (tmp_path / "x" / "k.ptx").unlink()
    with pytest.raises(EmmyError, match=r"lacks its file k\.ptx"):
        Artefact.load(tmp_path / "x")
    with pytest.raises(EmmyError, match="the artefact has no entry 'f'; it has none"):
        Artefact("sm_80", {}, {}).entry("f")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        (7, 7),
        (["dim", "a", 1], 30),
        (["stride", "a", 0], 32),
        (["add", 1, 2, ["dim", "a", 0]], 23),
        (["sub", 10, 3, 2], 5),
        (["mul", 2, 3, 4], 24),
        (["min", 5, 3], 3),
        (["max", 5, 3], 5),
        (["ceildiv", ["dim", "a", 0], 3], 7),
        (["floordiv", ["dim", "a", 0], 3], 6),
        (["ceildiv", 0, 128], 0),
    ],
)
def test_expressions(expression, value):
    assert evaluate(expression, {"a": (20, 30)}, {"a": (32, 1)}) == value


def test_an_unknown_operation_is_named():
    with pytest.raises(EmmyError, match="'pow' is no operation of a size expression"):
        evaluate(["pow", 2, 3], {}, {})


def test_row_major_strides():
    assert row_major((2, 3, 4)) == (12, 4, 1)
    assert row_major(()) == ()


def test_binding_turns_everything_into_numbers():
    call = bind(ENTRY, [A, B])
    (launch,) = call.launches
    assert (launch.grid, launch.block, launch.shared_bytes) == ((8, 1, 1), (256, 1, 1), 147456)
    assert launch.params == (("pointer", "a"), ("pointer", "b"), ("pointer", "out0"), ("u32", 512), ("u64", 512 * 256))
    assert [(b.name, b.dtype, b.shape, b.nbytes) for b in call.results] == [("out0", "f32", (512, 256), 512 * 256 * 4)]
    assert [(b.name, b.shape, b.nbytes) for b in call.temporaries] == [("partial", (2, 512, 256), 2 * 512 * 256 * 2)]
    assert call.alignments == {"a": 16, "b": 16}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ([A], "1 arguments given; expected 2: a, b"),
        ([A, ArrayInfo("f32", (256, 3840))], "argument 'b' has dtype f32; expected f16"),
        ([ArrayInfo("f16", (3840,)), B], "argument 'a' has 1 dimensions; expected 2"),
        ([ArrayInfo("f16", (512, 100)), B], r"argument 'a' has shape \(512, 100\); expected \(512, 3840\)"),
        ([A, ArrayInfo("f16", (128, 64))], r"argument 'b' has shape \(128, 64\); expected \(256, 3840\)"),
        ([ArrayInfo("f16", (512, 3840), (4000, 1)), B], r"argument 'a' has strides \(4000, 1\) \(in elements\)"),
        ([ArrayInfo("f16", (512, 3840), (0, 1)), B], r"argument 'a' has strides \(0, 1\)"),
        ([A, ArrayInfo("f16", (256, 3840), (3840, 2))], r"argument 'b' has strides \(3840, 2\)"),
        ([ArrayInfo("f16", (512, 3840), address=8), B], "argument 'a' is at address 0x8; .* multiple of 16 bytes"),
        ([ArrayInfo("f16", (100, 3840)), B], r"the first dimension of 'a' must be a multiple of 128 \(it is 100\)"),
        ([A, ArrayInfo("f16", (256, 3840), (3844, 1))], r"the row stride of 'b' must be .* \(it is 3844\)"),
    ],
)
def test_a_broken_contract_is_one_sentence(arrays, message):
    with pytest.raises(EmmyError, match=message):
        bind(ENTRY, arrays)


def test_a_free_stride_may_be_anything_that_passes_its_check():
    bind(ENTRY, [A, ArrayInfo("f16", (256, 3840), (4096, 1))])


def test_the_stride_of_a_single_row_is_not_looked_at():
    bind(changed(checks=[]), [ArrayInfo("f16", (1, 3840), (99, 1)), B])


def test_equality_checks():
    entry = changed(checks=[{"value": M, "equals": 512, "message": "'a' must have 512 rows"}])
    bind(entry, [A, B])
    with pytest.raises(EmmyError, match=r"'a' must have 512 rows \(it is 128\)"):
        bind(entry, [ArrayInfo("f16", (128, 3840)), B])


def test_an_empty_grid_is_not_launched():
    call = bind(ENTRY, [ArrayInfo("f16", (0, 3840), address=0), B])
    assert call.launches == ()
    assert call.results[0].shape == (0, 256)


def test_limits_of_grids_and_parameters():
    launch = ENTRY["launches"][0]
    with pytest.raises(EmmyError, match=r"kernel 'matmul_kernel' needs a grid of \(1, 65536, 1\) blocks"):
        bind(changed(launches=[{**launch, "grid": [1, 65536, 1]}]), [A, B])
    with pytest.raises(EmmyError, match="takes a u32 parameter, which cannot hold 4294967296"):
        bind(changed(launches=[{**launch, "params": [{"u32": 2**32}]}]), [A, B])


@pytest.mark.parametrize("name", list(DTYPES))
def test_numpy_arrays_are_described(name):
    array = np.zeros((4, 6), DTYPES[name])
    assert numpy_info(array) == ArrayInfo(name, (4, 6), (6, 1))
    assert numpy_info(array[:, ::2]) == ArrayInfo(name, (4, 3), (6, 2))


def test_bf16_is_ml_dtypes_own():
    assert DTYPES["bf16"] == np.dtype(ml_dtypes.bfloat16)


def test_vector_add_on_the_emulator():
    artefact = smoke_artefact("sm_80")
    a, b = np.arange(300, dtype=np.float32), np.full(300, 0.25, np.float32)
    (out,), (report,) = run_on_emulator(artefact, "vector_add", [a, b])
    assert np.array_equal(out, a + b)
    assert report is not None
    with pytest.raises(EmmyError, match="must be a multiple of 4"):
        run_on_emulator(artefact, "vector_add", [a[:7], b[:7]])


def test_integer_matmul_on_the_emulator_is_exact():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (rows, 24)).astype(np.float16) for rows in (5, 40))
    (out,), _ = run_on_emulator(smoke_artefact("sm_80"), "naive_matmul", [a, b], order="reversed")
    assert np.array_equal(out, (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float16))


def test_the_emulator_needs_ptx():
    artefact = Artefact("sm_80", {"smoke": Image(cubin=b"")}, smoke_artefact("sm_80").entries)
    with pytest.raises(EmmyError, match="image 'smoke' has no PTX"):
        run_on_emulator(artefact, "vector_add", [np.zeros(4, np.float32)] * 2)


def test_importing_is_light():
    code = "import sys, emmy.artefact; print([m for m in ('xdsl', 'cuda', 'torch') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
