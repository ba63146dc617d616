"""The benchmark runner without a GPU: cases, bounds, orchestration of a child that crashes or hangs, the table."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import two_kernels

from emmy.artefact import DTYPES
from emmy.bench import run
from emmy.bench.bounds import ErrorSums, judge
from emmy.bench.cases import (
    Case,
    bits,
    integer_data,
    load_cases,
    numpy_inputs,
    save_bits,
    work_of,
    write_cases,
    write_expectation,
)
from emmy.bench.child import Child, ChildFailed
from emmy.bench.estimate import case_seconds, timed_peers
from emmy.bench.one import compare, reference
from emmy.bench.run import Options, run_cases
from emmy.bench.table import MAX_LINES, format_table, geometric_mean
from emmy.errors import EmmyError

FAKE_WORKER = [sys.executable, str(Path(__file__).parent / "fake_bench_worker.py")]


def case(name, **fields):
    return Case("smoke", "naive_matmul", {"a": [8, 16], "b": [4, 16]}, name=name, **fields)


# --- cases and data ---


def test_cases_are_read_named_and_selected(tmp_path):
    write_cases(tmp_path, [case("first", suite="six"), case("second"), case("", data="integers")])
    assert [c.name for c in load_cases(tmp_path)] == ["first", "second", "naive_matmul 8x16 4x16"]
    assert load_cases(tmp_path)[0] == case("first", suite="six")
    assert [c.name for c in load_cases(tmp_path, "s*d")] == ["second"]
    assert [c.name for c in load_cases(tmp_path, "matmul 8")] == ["naive_matmul 8x16 4x16"]
    assert json.loads((tmp_path / "cases.json").read_text())[1] == {
        "artefact": "smoke",
        "entry": "naive_matmul",
        "shapes": {"a": [8, 16], "b": [4, 16]},
        "name": "second",
    }


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"artefact": "x", "entry": "y", "shapes": {}, "speed": 1}, r"unknown fields \['speed'\]"),
        ({"artefact": "x", "shapes": {}}, r"lacks \['entry'\]"),
        ({"artefact": "x", "entry": "y", "shapes": {}, "name": "n", "data": "zeros"}, "asks for data 'zeros'"),
    ],
)
def test_a_malformed_case_is_named(fields, message):
    with pytest.raises(EmmyError, match=message):
        Case.parse(fields)


def test_integer_data_is_the_same_everywhere():
    data = integer_data((3, 4), seed=1, position=0, magnitude=4)
    assert data.tolist() == [[-1, 1, -3, 3], [3, -2, 0, 3], [4, -3, -4, -2]]
    wide = integer_data((100, 100), 0, 1, 4)
    assert (wide.min(), wide.max()) == (-4, 4)


def test_work_is_evaluated_for_the_shapes():
    work = work_of(case("x"), two_kernels.ENTRIES["naive_matmul"])
    assert (work["kind"], work["m"], work["n"], work["k"], work["flops"]) == ("matmul", 8, 4, 16, 2 * 8 * 4 * 16)
    with pytest.raises(EmmyError, match=r"case 'y' has shapes for \['a'\]"):
        work_of(Case("smoke", "naive_matmul", {"a": [1, 1]}, name="y"), two_kernels.ENTRIES["naive_matmul"])


def test_bits_keep_nan_and_negative_zero(tmp_path):
    array = np.array([1.0, -0.0, np.nan], DTYPES["bf16"])
    save_bits(tmp_path / "x.npy", array)
    loaded = np.load(tmp_path / "x.npy")
    assert loaded.dtype == np.uint16
    assert np.array_equal(loaded, bits(array))
    assert loaded[1] == 0x8000


def test_an_expectation_comes_from_the_emulator(tmp_path):
    two_kernels.save_cases(tmp_path, "sm_80")
    add = Case("smoke", "vector_add", {"a": [256], "b": [256]}, data="integers", expect="add.npy")
    write_expectation(tmp_path, add)
    a, b = numpy_inputs(add, two_kernels.ENTRIES["vector_add"])
    assert np.array_equal(np.load(tmp_path / "add.npy"), bits(a + b))
    with pytest.raises(EmmyError, match="needs integer data and a file to expect"):
        write_expectation(tmp_path, case("x"))


# --- bounds ---


def sums_of(result, wanted, dtype):
    error = np.abs(result.astype(np.float64) - wanted)
    rounding = wanted.astype(DTYPES[dtype]).astype(np.float64) - wanted
    half_ulp = {"f16": 2.0**-11, "f32": 2.0**-24}[dtype]
    excess = error - np.abs(wanted) * half_ulp
    squares = [float(np.sum(values**2)) for values in (error, wanted, rounding)]
    return ErrorSums(wanted.size, 0, *squares, float(error.max()), float(excess.max()))


WANTED = np.random.default_rng(0).standard_normal((256, 256)) * 64


def test_correct_rounding_passes_and_a_tenth_of_an_ulp_more_does_not():
    exact = WANTED.astype(np.float16)
    found = judge(sums_of(exact, WANTED, "f16"), "f32", 4096, "f16")
    assert found["ok"]
    assert found["rms_error"] == found["rounding_floor"] == pytest.approx(2.07e-4, rel=0.02)
    noise = 1 + 1.5e-4 * np.random.default_rng(1).standard_normal(WANTED.shape)
    assert not judge(sums_of((WANTED * noise).astype(np.float16), WANTED, "f16"), "f32", 4096, "f16")["ok"]


def test_one_wrong_element_among_many_fails_by_its_excess():
    wrong = WANTED.astype(np.float16)
    wrong[7, 7] = np.float16(WANTED[7, 7] + 0.5)
    found = judge(sums_of(wrong, WANTED, "f16"), "f32", 4096, "f16")
    assert found["rms_error"] < found["rms_bound"]
    assert found["max_excess"] > found["max_excess_bound"]
    assert not found["ok"]


@pytest.mark.parametrize(
    ("policy", "k", "dtype", "measured", "passes"),
    [
        ("f32", 4096, "f32", 4.9e-6, True),
        ("f32", 16384, "f32", 1.9e-5, True),
        ("f32", 4096, "f32", 2.07e-4, False),  # hybrid is no f32
        ("hybrid", 4096, "f32", 3.28e-4, True),
        ("hybrid", 4096, "f32", 4.39e-4, False),  # promoted too seldom
        ("f16", 4096, "f32", 2.35e-3, True),
        ("f16", 16384, "f32", 4.69e-3, True),
        ("hybrid", 16384, "f32", 4.69e-3, False),  # f16 is no hybrid
    ],
)
def test_measured_errors_of_each_policy(policy, k, dtype, measured, passes):
    elements = 1 << 20
    sums = ErrorSums(elements, 0, measured**2 * elements, elements, 0.0, 5 * measured, 5 * measured)
    assert judge(sums, policy, k, dtype)["ok"] is passes


def test_what_is_not_finite_never_passes():
    clean = ErrorSums(10, 0, 0.0, 10.0, 0.0, 0.0, 0.0)
    assert judge(clean, "f32", 16, "f16")["ok"]
    assert not judge(ErrorSums(10, 1, 0.0, 10.0, 0.0, 0.0, 0.0), "f32", 16, "f16")["ok"]
    assert not judge(ErrorSums(10, 0, 0.0, 10.0, math.inf, 0.0, 0.0), "f32", 16, "f16")["ok"]
    with pytest.raises(EmmyError, match="unknown accumulation policy 'bf16'"):
        judge(clean, "bf16", 16, "f16")


def test_the_sanitizer_modes_own_reference():
    a, b = numpy_inputs(case("x"), two_kernels.ENTRIES["naive_matmul"])
    work = work_of(case("x"), two_kernels.ENTRIES["naive_matmul"])
    wanted = reference([a, b], work)
    assert np.array_equal(wanted, a.astype(np.float64) @ b.astype(np.float64).T)
    good = wanted.astype(np.float16)
    assert compare(good, wanted, case("x"), work)["ok"]
    bad = good.copy()
    bad[0, 0] = np.nan
    assert not compare(bad, wanted, case("x"), work)["ok"]
    assert compare(bad, wanted, case("x", data="integers"), work)["wrong_elements"] >= 1
    assert reference([a, b], {"kind": "unheard of"}) is None


# --- the child and the runner ---


@pytest.fixture
def child():
    made = Child(FAKE_WORKER)
    yield made
    made.stop()


def test_failures_of_every_kind_are_recorded_and_the_run_goes_on(tmp_path, child):
    names = ["good", "crashes", "wrong", "good again", "hangs", "raises", "refuses", "last"]
    out = tmp_path / "results.jsonl"
    results, brackets = run_cases(tmp_path, [case(name) for name in names], child, out, Options(seconds_per_case=1.5))
    assert {r["name"]: r["ok"] for r in results} == {name: name in ("good", "good again", "last") for name in names}
    messages = {r["name"]: r.get("message", "") for r in results}
    assert "the process ended with status -6" in messages["crashes"]
    assert "last words" in messages["crashes"]
    assert "no answer within 1.5 s: killed" in messages["hangs"]
    assert messages["raises"] == "RuntimeError: an illegal memory access was encountered"
    assert messages["refuses"] == "error: argument 'b' has shape (1,); expected (2,)"
    assert [b["when"] for b in brackets] == ["first", "last"]
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["device", "bracket", *["case"] * len(names), "bracket", "summary"]
    assert lines[-1]["failed"] == ["crashes", "wrong", "hangs", "raises", "refuses"]
    # One child at first, and one more after each of: crash, hang, exception. A refused call keeps it.
    assert child.starts == 4
    pids = {r["name"]: r.get("pid") for r in results}
    assert pids["wrong"] == pids["good again"] != pids["good"]


def test_checking_only_takes_no_brackets(tmp_path, child):
    out = tmp_path / "results.jsonl"
    _, brackets = run_cases(tmp_path, [case("good")], child, out, Options(check_only=True))
    assert brackets == []
    assert [json.loads(line)["kind"] for line in out.read_text().splitlines()] == ["device", "case", "summary"]


def test_without_a_device_the_run_stops_at_once(tmp_path):
    child = Child([*FAKE_WORKER, "--no-device"])
    with pytest.raises(EmmyError, match="no CUDA device can be used: RuntimeError: no device here"):
        run_cases(tmp_path, [case("good")], child, tmp_path / "x.jsonl", Options())
    assert child.starts == 1


def test_a_child_that_never_gets_ready_is_killed():
    child = Child([sys.executable, "-c", "import time; time.sleep(600)"], startup_seconds=0.5)
    with pytest.raises(ChildFailed, match=r"no answer within 0.5 s: killed"):
        child.ask({"do": "device"}, 1.0)


def test_the_command_line_runs_and_reports(tmp_path, monkeypatch, capsys):
    write_cases(tmp_path, [case("good", suite="six"), case("wrong")])
    monkeypatch.setattr(run, "worker_child", lambda: Child(FAKE_WORKER))
    assert run.main([str(tmp_path), "--out", str(tmp_path / "deep" / "x.jsonl"), "--only", "good"]) == 0
    assert run.main([str(tmp_path), "--out", str(tmp_path / "deep" / "x.jsonl")]) == 1
    printed = capsys.readouterr().out
    assert "geometric mean of ratios, suite six, 1 of 1 cases: 0.600" in printed
    assert "2 cases, 1 failed" in printed
    assert len((tmp_path / "deep" / "x.jsonl").read_text().splitlines()) == 5 + 6
    with pytest.raises(EmmyError, match=r"no case of .* matches 'nothing'"):
        run.main([str(tmp_path), "--only", "nothing"])
    with pytest.raises(EmmyError, match="there is no case 'nothing'"):
        run.main([str(tmp_path), "--one", "nothing"])
    with pytest.raises(EmmyError, match=r"has no readable cases\.json"):
        run.main([str(tmp_path / "deep")])


def test_the_runner_imports_neither_xdsl_nor_torch():
    code = "import sys, emmy.bench.run, emmy.bench.one, emmy.bench.worker; "
    code += "print([m for m in ('xdsl', 'torch', 'cuda.bindings') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- the table ---


def result(number, ok=True, **fields):
    return {"name": f"case {number}", "ok": ok, "suite": None, **fields}


def test_the_table_shows_figures_and_failures():
    timed = result(1, suite="six", error={"rms_error": 2.07e-4, "max_error": 1e-3}, us=210.0, tflops=654.0)
    timed |= {"peer_tflops": 700.0, "ratio": 0.934}
    failed = result(2, ok=False, suite="six", message="no answer within 20 s: killed\nmore")
    lines = format_table(
        [timed, failed], [{"ok": True, "when": "first", "cublas_4096_tflops": 701, "copy_tb_per_s": 4.2}]
    )
    assert "2.1e-04" in lines[1]
    assert "654.0" in lines[1]
    assert "0.934" in lines[1]
    assert lines[2].split()[2:] == "NO no answer within 20 s: killed".split()
    assert lines[3] == "2 cases, 1 failed"
    assert lines[4] == "geometric mean of ratios, suite six, 1 of 2 cases: 0.934"
    assert lines[5] == "first: cuBLAS 4096^3 701 TFLOPS, copy 4.20 TB/s"
    assert len({len(line) for line in lines[:2]}) == 1


def test_the_table_never_has_more_than_forty_lines():
    results = [result(number, ok=number != 99) for number in range(100)]
    brackets = [{"ok": True, "when": when, "cublas_4096_tflops": 1, "copy_tb_per_s": 1} for when in ("first", "last")]
    lines = format_table(results, brackets)
    assert len(lines) == MAX_LINES
    assert "case 99" in lines[1]
    shown = len([line for line in lines if line.startswith("case ") and "rms" not in line])
    assert f"... {100 - shown} more cases are in the file" in lines


def test_geometric_mean():
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert geometric_mean([]) is None


# --- how long it takes ---


def test_the_estimate_counts_launches_rounds_and_peers():
    work = {"kind": "attention", "window": 0, "flops": 5e11}
    small = case_seconds(work, False, 0, (), 0, 0)
    launch = 1e-3 + 8e-6
    assert case_seconds(work, False, 0, (), 10, 0) - small == pytest.approx(10 * (launch + 1.2e-4))
    timed = case_seconds(work, True, 0, ("flash", "cudnn", "cublas"), 0, 5) - small
    assert timed == pytest.approx(8 * ((1 + 2 * 1.8) * launch + 3 * 1e-4))
    asked = ("flash", "cudnn", "flex", "cublas")
    assert [timed_peers({**work, "window": w}, asked) for w in (0, 1024)] == [["flash", "cudnn"], ["flex"]]
    assert timed_peers({"kind": "matmul"}, ("cublas", "flash", "eager")) == ["cublas", "eager"]


def test_the_estimate_is_printed_without_a_gpu(tmp_path, capsys):
    two_kernels.save_cases(tmp_path, "sm_80")
    capsys.readouterr()
    assert run.main([str(tmp_path), "--estimate"]) == 0
    cases = load_cases(tmp_path)
    assert capsys.readouterr().out.startswith(f"{len(cases)} cases, about ")
    assert run.main([str(tmp_path), "--estimate", "--only", cases[0].name]) == 0
    told = capsys.readouterr().out
    assert told.startswith("1 case, about ")
    assert "need to be compiled" not in told
    assert not (tmp_path / "results.jsonl").exists()
