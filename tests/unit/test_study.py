"""The accumulation study at tiny sizes: statistics, inputs, policies, the command, the page."""

import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from emmy.artefact import DTYPES, run_on_emulator
from emmy.bench import fp8, study
from emmy.bench.cases import load_cases
from emmy.bench.errors import MEASURES, distance, seed_statistics, summarize
from emmy.bench.study_page import files, read_study
from emmy.bench.svg import line_chart
from emmy.compiler import compile
from emmy.tools import cli

ROOT = Path(__file__).parents[2]


# --- statistics ---


def test_statistics_of_one_seed():
    reference = np.array([3.0, -3.0, 3.0, -3.0])
    found = seed_statistics(np, reference + np.array([0.3, 0.3, -0.6, np.inf]), reference)
    assert found["not_finite"] == 1
    assert found["mean_abs"] == pytest.approx(0.1)  # 0.1, 0.1, 0.2 and nothing, of rms(C) = 3
    assert found["rms"] == pytest.approx(math.sqrt(0.06 / 4))
    assert found["max"] == pytest.approx(0.2)
    assert found["bias"] == pytest.approx(0.0)
    assert found["toward_zero"] == pytest.approx((-0.1 + 0.1 + 0.2) / 4)


def test_summary_and_distance():
    seeds = [dict.fromkeys(MEASURES, value) | {"not_finite": 2} for value in (1.0, 3.0)]
    found = summarize(seeds)
    assert found["rms"] == [2.0, pytest.approx(1.0)]
    assert (found["seeds"], found["not_finite"], found["worst"]) == (2, 4, 3.0)
    assert summarize(seeds[:1])["rms"] == [1.0, 0.0]
    assert distance((5.0, 3.0), (0.0, 4.0)) == 1.0
    assert distance((5.0, 0.0), (4.0, 0.0)) == math.inf
    assert distance((5.0, 0.0), (5.0, 0.0)) == 0.0


# --- what is studied ---


def rms(records, dtype="f32", **wanted):
    (found,) = [r for r in records if all(r[key] == value for key, value in wanted.items())]
    return found[dtype]["rms"][0]


@pytest.fixture(scope="module")
def records():
    return list(study.study(depths=(256, 1024), promotions=(16, 64), seeds=4, size=24))


def test_every_policy_input_and_depth_is_there(records):
    normal = [(r["k"], r["policy"], r["max_k"]) for r in records if r["inputs"] == "normal"]
    assert normal == [(k, *p) for k in (256, 1024) for p in (("f32", 0), ("hybrid", 16), ("hybrid", 64), ("f16", 0))]
    assert {r["inputs"] for r in records} == set(study.INPUTS)
    assert len(records) == 8 + 4 * 4


def test_errors_are_those_measured_on_tensor_cores(records):
    """2.07e-4 and 3.28e-4 for partial sums of 16 and 64, whatever K is; an f16 rounding of the result is 2.07e-4."""
    for k in (256, 1024):
        assert rms(records, k=k, inputs="normal", max_k=16, policy="hybrid") == pytest.approx(2.07e-4, rel=0.05)
        assert rms(records, k=k, inputs="normal", max_k=64) == pytest.approx(3.28e-4, rel=0.05)
        assert rms(records, "f16", k=k, inputs="normal", policy="f32") == pytest.approx(2.07e-4, rel=0.05)
    growth = rms(records, k=1024, inputs="normal", policy="f16") / rms(records, k=256, inputs="normal", policy="f16")
    assert growth == pytest.approx(2.0, rel=0.1)  # with the root of K
    assert rms(records, k=1024, inputs="normal", policy="f32") < 1e-6


def test_adversarial_inputs_hurt_where_they_should(records):
    lost = {(r["inputs"], r["policy"], r["max_k"]): r["f32"]["not_finite"] for r in records}
    assert lost["overflow", "f32", 0] == 0
    assert 0 < lost["overflow", "hybrid", 64] < lost["overflow", "f16", 0]
    assert not any(count for (kind, _, _), count in lost.items() if kind != "overflow")
    assert rms(records, inputs="small", max_k=64) > 1e-2 > 1e-5 > rms(records, inputs="small", policy="f32")
    f32_loss = rms(records, inputs="cancellation", policy="f32") / rms(records, inputs="normal", k=1024, policy="f32")
    assert f32_loss > 10
    assert rms(records, inputs="large mean", policy="f16") > 10 * rms(records, inputs="large mean", max_k=64)


def test_seeds_in_parts_are_the_same_seeds(monkeypatch):
    together = list(study.study_case("normal", 64, study.policies((32,)), 3, 16))
    monkeypatch.setattr(study, "BATCH_ELEMENTS", 1)
    assert list(study.study_case("normal", 64, study.policies((32,)), 3, 16)) == together


@pytest.mark.parametrize("policy", study.policies((32,)), ids=lambda p: p.label)
def test_the_interpreter_sums_as_the_emulated_kernel_does(policy):
    """Nearly every sum is the same bit for bit; NumPy rounds a k-step's product to f32 first, which rarely shows."""
    a, b, _ = study.operands("normal", 128, [5], 64)
    text = study.PRODUCT.format(m=64, n=64, k=128, policy=policy.text)
    schedule = {"block": (64, 64, 64), "warps": (2, 2), "stages": 2}
    artefact = compile(text, "sm_90a", schedule=schedule).portable_artefact
    half = [a[0].astype(np.float16), np.ascontiguousarray(b[0].T).astype(np.float16)]
    (result,), _ = run_on_emulator(artefact, "matmul", half)
    ours = study.accumulate(a, b, policy)[0].astype(np.float32)
    tolerance = 1e-5 if policy.name == "f32" else 2.0**-11 * 16
    assert np.abs(result - ours).max() <= tolerance * 2
    if policy.name != "f32":
        assert np.mean(result == ours) > 0.97


@pytest.mark.parametrize("policy", study.policies((64,))[1:], ids=lambda p: p.label)
def test_f16_sums_of_8_bits_are_those_of_the_emulated_kernel(policy):
    """Rounded once in 32 elements, by the interpreter and by the emulator."""
    a, b, _ = study.operands("normal", 128, [5], 64, "f8E4M3FN")
    text = fp8.MATMUL.format(m=64, n=64, k=128, a="f8E4M3FN", b="f8E4M3FN", c="f32", policy=fp8.POLICIES[policy.label])
    schedule = {"atom": "m16n8k32", "block": (64, 64, 64), "warps": (2, 2), "stages": 2}
    artefact = compile(text, "sm_89", schedule=schedule).portable_artefact
    eighths = [x.astype(DTYPES["f8E4M3FN"]) for x in (a[0], np.ascontiguousarray(b[0].T))]
    (result,), _ = run_on_emulator(artefact, "matmul", eighths)
    ours = study.accumulate(a, b, policy, eight_bits=True)[0].astype(np.float32)
    assert np.mean(result == ours) > 0.97
    assert np.abs(result - ours).max() <= 2.0**-11 * 32


def test_what_is_scaled_to_the_end_of_e4m3_overflows_and_what_is_scaled_to_30_does_not():
    found = {
        (kind, r["policy"]): r["f32"]["not_finite"] / (16 * 16)
        for kind in ("scaled to 448", "scaled to 30")
        for r in study.study_case(kind, 1024, study.policies((64,)), 1, 16, "f8E4M3FN")
    }
    assert found["scaled to 448", "f32"] == found["scaled to 30", "hybrid"] == 0
    assert found["scaled to 448", "hybrid"] > 0.5
    assert 0.02 < study.operand_rounding("normal", 256, 16, "f8E4M3FN") < 0.06


# --- for a GPU ---


def test_cases_for_a_gpu_and_their_results_as_records(tmp_path):
    cases = study.prepare_study(tmp_path, "sm_90a", depths=(128,), promotions=(16, 128), seeds=3, size=64)
    assert [case.policy for case in cases] == ["f32", "hybrid", "hybrid", "f16"]
    assert load_cases(tmp_path) == cases
    assert {(case.seeds, case.time) for case in cases} == {(3, False)}
    statistics = {"rms": [1e-4, 1e-6]}
    lines = [{"kind": "device", "card": "a card"}, {"kind": "summary"}]
    for case in cases:
        line = {"kind": "case", "policy": case.policy, "max_k": case.max_k, "shapes": case.shapes}
        lines.append(line | {"study": {"f32": statistics, "f16": statistics}})
    found = study.records_of_run(lines)
    assert [(r["source"], r["policy"], r["max_k"], r["k"]) for r in found] == (
        [("a card", p, m, 128) for p, m in (("f32", 0), ("hybrid", 16), ("hybrid", 128), ("f16", 0))]
    )
    assert found[0]["f32"] == statistics


# --- the command and the page ---


def test_the_command_writes_records_page_and_plot_and_checks_them(tmp_path, capsys):
    words = ["study", "accumulation", "--out", str(tmp_path)]
    tiny = ["--k", "64,256", "--promote", "32,64", "--seeds", "3", "--size", "16"]
    assert cli.main([*words, *tiny]) == 0
    text = (tmp_path / "accumulation.md").read_text()
    assert "So at 32 elements hybrid adds 1." in text
    assert "| RMS error, f32 result | K = 64 | K = 256 |" in text
    assert "So the statement holds for" in text
    assert "## 8-bit operands (interpreter, 16x16, 3 seeds)" in text
    records = [json.loads(line) for line in (tmp_path / "accumulation" / "cpu.jsonl").read_text().splitlines()]
    gpu = [r | {"source": "A Card"} for r in records if r["inputs"] == "normal"]
    (tmp_path / "accumulation" / "gpu.jsonl").write_text("".join(json.dumps(r) + "\n" for r in gpu))
    assert cli.main([*words, "--check"]) == 1
    assert cli.main([*words, "--page"]) == 0
    assert cli.main([*words, "--check"]) == 0
    assert "## A Card (16x16, 3 seeds)" in (tmp_path / "accumulation.md").read_text()
    assert (tmp_path / "accumulation" / "a_card.svg").is_file()
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert cli.main([*words, "--add", str(empty)]) == 1
    assert "has no results of the study" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "value"), [("--k", "100"), ("--k", "x"), ("--promote", "0")])
def test_wrong_lists_are_wrong_command_lines(option, value, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["study", "accumulation", option, value])
    assert stopped.value.code == 2
    assert "is no list of multiples of 16" in capsys.readouterr().err


def test_the_committed_page_is_up_to_date():
    for name, text in files(read_study(ROOT / "docs" / "accumulation")).items():
        assert (ROOT / "docs" / name).read_text() == text, "run: emmy study accumulation --out docs --page"


def test_a_chart_is_xml_with_a_line_for_each_series():
    text = line_chart({"a < b": [(1, 1e-3), (100, 1e-2)], "c": [(10, 2e-3)]}, "title", "x", "y")
    root = ElementTree.fromstring(text)
    lines = [element.attrib["points"].split() for element in root.iter("{http://www.w3.org/2000/svg}polyline")]
    assert [len(points) for points in lines] == [2, 1]
    (left, low), (right, high) = (tuple(map(float, point.split(","))) for point in lines[0])
    middle = float(lines[1][0].split(",")[0])
    assert middle == pytest.approx((left + right) / 2)  # 10 is half way from 1 to 100
    assert (low, high) == (380.0, 40.0)  # from the bottom, 1e-3, to the top, 1e-2
