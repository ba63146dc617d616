"""`emmy bench --suite`: everything in one go where there is a GPU (a stand-in here), one sentence where there is none."""

import json
import sys
import types
from pathlib import Path

import pytest

from emmy.bench import plot, prepare, run, suites
from emmy.bench.cases import load_cases
from emmy.bench.child import Child
from emmy.bench.records import read_run, sort_records
from emmy.tools import bench_command, cli

FAKE_WORKER = [sys.executable, str(Path(__file__).parent / "fake_bench_worker.py")]


@pytest.fixture
def gpu(monkeypatch):
    """A machine with PyTorch and a GPU, whose worker answers without either; a suite of one small product."""
    monkeypatch.setattr(bench_command, "is_available", lambda: True)
    monkeypatch.setattr(bench_command.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(bench_command, "default_target", lambda: "sm_89")
    monkeypatch.setattr(run, "worker_child", lambda: Child(FAKE_WORKER))
    monkeypatch.setattr(suites, "SIX", ((32, 32, 32),))


def test_without_a_gpu_one_sentence_says_how(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(bench_command, "is_available", lambda: False)
    words = ["bench", "--suite", "gemm", "--ablate", "roles,stages=2|3", "--out", str(tmp_path / "x")]
    assert cli.main(words) == 1
    told = capsys.readouterr().err
    assert "no GPU that can be used: prepare with `python -m emmy.bench.prepare DIR --suite gemm --ablate " in told
    assert "'roles,stages=2|3'`" in told
    assert "`python -m emmy.bench.run DIR --out results.jsonl`" in told
    assert not (tmp_path / "x").exists()


def test_without_pytorch_too(monkeypatch, capsys):
    monkeypatch.setattr(bench_command, "is_available", lambda: True)
    monkeypatch.setattr(bench_command.importlib.util, "find_spec", lambda name: None)
    assert cli.main(["bench", "--suite", "gemm", "--target", "sm_80", "--variant", "a:stages=2"]) == 1
    assert (
        "no PyTorch: prepare with `python -m emmy.bench.prepare DIR --suite gemm --variant a:stages=2 --target sm_80`"
        in (capsys.readouterr().err)
    )


def test_an_ablation_needs_no_suite(monkeypatch, capsys):
    monkeypatch.setattr(bench_command, "is_available", lambda: False)
    assert cli.main(["bench", "--ablate", "roles,stages,transport,accumulate"]) == 1
    assert "prepare DIR --suite gemm --ablate roles,stages,transport,accumulate`" in capsys.readouterr().err


def test_one_go(gpu, tmp_path, capsys):
    out = tmp_path / "out"
    words = [
        "bench",
        "--suite",
        "gemm",
        "--ablate",
        "stages=2|99,delay=0",
        "--out",
        str(out),
        "--peers",
        "cublas,triton",
    ]
    assert cli.main(words) == 0
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    kinds = [line["kind"] for line in lines]
    assert kinds == ["device", "refused", "bracket", "case", "bracket", "summary"]
    assert lines[0]["command"] == f"emmy {' '.join(words)}".replace("stages=2|99,delay=0", "'stages=2|99,delay=0'")
    assert (lines[1]["variant"], lines[1]["settings"]) == ("stages99-delay0", {"stages": 99, "delay": 0})
    assert lines[3]["settings"] == {"stages": 2, "delay": 0}
    table = (out / "table.md").read_text()
    assert "| `stages2-delay0` | 0.600 | 0.600 |" in table
    assert "* `stages99-delay0` was not built: the schedule's stages is from 1 to" in table
    assert (out / "artefacts" / "peak" / "launch.json").is_file()
    assert "1 cases, 0 failed" in capsys.readouterr().out
    # The folder is in use now.
    assert cli.main(words) == 1


def test_only_some_cases_are_compiled(gpu, tmp_path):
    words = [
        str(tmp_path / "d"),
        "--suite",
        "gemm",
        "--variant",
        "a:stages=2",
        "--variant",
        "b:stages=3",
        "--only",
        "* b",
    ]
    assert prepare.main(words) == 0
    assert [case.name for case in load_cases(tmp_path / "d")] == ["32x32x32 f16 b"]
    assert prepare.main([str(tmp_path / "e"), "--suite", "gemm", "--only", "nothing"]) == 1


def run_of_two():
    case = {"kind": "case", "ok": True, "us": 10.0, "tflops": 500.0, "name": "a"}
    peers = {"cublas": {"tflops": 700.0}, "triton": {"message": "failed"}}
    return sort_records(
        [
            {"kind": "bracket", "ok": True, "peak_f32_tflops": 625.0, "cublas_4096_tflops": 1, "copy_tb_per_s": 1},
            {**case, "peers": peers},
            {**case, "name": "b", "ok": False},
            {**case, "name": "c", "peers": {"cublas": {"tflops": 650.0}}},
        ]
    )


def test_series_of_the_plot():
    names, series = plot.rates(run_of_two())
    assert names == ["a", "c"]
    assert series == {"Emmy": [500.0, 500.0], "cublas": [700.0, 650.0], "triton": [None, None]}


def test_no_plot_without_matplotlib_or_figures(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not plot.plot_rates(run_of_two(), tmp_path / "p.png")
    monkeypatch.setitem(sys.modules, "matplotlib", types.ModuleType("matplotlib"))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", types.ModuleType("matplotlib.figure"))
    assert not plot.plot_rates(sort_records([]), tmp_path / "p.png")
    assert not (tmp_path / "p.png").exists()


def test_the_plot_where_matplotlib_is_installed(tmp_path):
    pytest.importorskip("matplotlib", reason="needs matplotlib: not run")
    assert plot.plot_rates(run_of_two(), tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_runs_are_read_back(tmp_path):
    (tmp_path / "r.jsonl").write_text('{"kind": "summary"}\n\n{"kind": "device", "ok": true, "card": "c"}\n')
    assert read_run(tmp_path / "r.jsonl").device["card"] == "c"
