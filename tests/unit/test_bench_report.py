"""Kept result files, the page made from them, and ablation tables."""

import json
from pathlib import Path

import pytest

from emmy.bench import report
from emmy.bench.ablation import AXES, ablation_tables, cross_product, effects, lesson, parse_axes, variant_name
from emmy.bench.records import Run, read_run, sort_records, strip
from emmy.errors import EmmyError

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs" / "measurements"


def timed(name, us, ratio=None, **fields):
    record = {"kind": "case", "name": name, "ok": True, "suite": "six", "data": "normal", "policy": "f32", "us": us}
    record |= {
        "us_p20": us - 1,
        "us_p80": us + 1,
        "tflops": 1000 / us,
        "peer_tflops": 1000.0,
        "ratio": ratio or 100 / us,
    }
    return record | fields


def bracket(**fields):
    return {"kind": "bracket", "when": "first", "ok": True, "cublas_4096_tflops": 700.0, "copy_tb_per_s": 4.0, **fields}


def test_the_committed_page_is_up_to_date_and_its_files_are_stripped():
    assert (ROOT / "docs" / "measurements.md").read_text() == report.page(KEPT)
    for path in KEPT.glob("*.jsonl"):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        assert [strip(record) for record in records] == records
        assert read_run(path).cases


def test_a_case_is_listed_with_peers_peak_and_bandwidth():
    triton = {"triton": {"us": 150.0, "tflops": 700.0, "ratio": 1.5}, "cublas": {"us": 50.0, "ratio": 0.5}}
    run = sort_records(
        [
            bracket(peak_f32_tflops=20.0),
            timed("64x64x64 f16", 100.0, 0.5, peers=triton, bytes=2e8),
            timed("32x64x64 f16", 50.0, 0.125, peers={"triton": {"ratio": 0.375}}),
            timed("wrong", 10.0, 9.0) | {"ok": False},
        ]
    )
    table = report.timed_table(run).splitlines()
    assert table[0].split("|")[7].strip() == "ratio to triton"
    assert [cell.strip() for cell in table[2].split("|")[1:-1]] == (
        ["64x64x64 f16", "100.0", "99.0-101.0", "10", "1000", "0.500", "1.500", "50", "50", "-"]
    )
    assert table[-1] == "Geometric mean of the ratio over 2 shapes: to cuBLAS 0.250, to triton 0.750."


def test_runs_in_one_file_become_medians():
    device = {"kind": "device", "ok": True, "card": "a card"}
    launches = {"repeats": 10, "differing_launches": 0, "error": {"rms_error": 1e-4, "rms_bound": 2e-4}}
    lines = []
    for us, ratio, triton in ((100.0, 0.5, 1.1), (90.0, 0.7, 1.5), (120.0, 0.6, 1.3)):
        peers = {"triton": {"us": us, "ratio": triton}, "broken": {"message": "no"}}
        lines += [device, bracket(), timed("64x64x64 f16", us, ratio, peers=peers, **launches)]
    run = sort_records([*lines, timed("lost", 1.0), timed("lost", 1.0) | {"ok": False, "message": "once"}])
    case, lost = run.cases
    assert (run.runs, len(run.brackets)) == (3, 3)
    assert (case["us"], case["us_p20"], case["ratio"], case["ratios"]) == (100.0, 99.0, 0.6, [0.5, 0.7])
    assert case["peers"] == {"triton": {"us": 100.0, "ratio": 1.3}, "broken": {"message": "no"}}
    assert (case["repeats"], case["error"]) == (30, {"rms_error": 1e-4, "rms_bound": 2e-4})
    assert (lost["ok"], lost["message"]) == (False, "once")
    assert "| 0.600 (0.500-0.700) | - | 1.300 |" in report.timed_table(run)
    assert "3 runs; figures are medians over them" in report.where_and_when(run)


def test_variants_become_a_ladder_whose_mean_needs_every_shape():
    names = ("4096x4096x4096 f16", "512x15360x3840 f16")
    run = sort_records(
        [timed(f"{name} v1", 100.0, 0.5, variant="v1") for name in names]
        + [timed(f"{names[0]} v2", 90.0, 0.75, artefact="4096x4096x4096_f16-v2")]
    )
    rows = report.ladder(run).splitlines()
    assert rows[0] == "| variant | 4096^3 | 512x15360x3840 | mean | registers |"
    assert rows[2:] == ["| `v1` | 0.500 | 0.500 | 0.500 | - |", "| `v2` | 0.750 | - | - | - |"]


def test_what_was_only_checked_is_summed_up_and_failures_are_named():
    checked = {"kind": "case", "ok": True, "data": "normal", "policy": "f32", "repeats": 10, "differing_launches": 0}
    error = {"rms_error": 1e-4, "rms_bound": 2e-4}
    run = sort_records(
        [
            {**checked, "name": "q_proj 512 tokens", "error": error},
            {
                **checked,
                "name": "k_proj 512 tokens",
                "error": {**error, "rms_error": 3e-4},
                "ok": False,
                "message": "rms",
            },
            {**checked, "name": "integers 8x8x8 f16", "data": "integers", "differ_from_expected": 0},
            {"kind": "refused", "name": "a s9", "variant": "s9", "message": "too much shared memory\nmore"},
            {"kind": "refused", "name": "b s9", "variant": "s9", "message": "too much shared memory"},
        ]
    )
    rows = report.checked_table(run).splitlines()[2:]
    assert rows == [
        "| projections of Gemma 4 | f32 | 2 | 1 | 3.00e-04 | 1.50 | - | 20 | 0 |",
        "| integers f16 | f32 | 1 | 1 | - | - | 1 of 1 | 10 | 0 |",
    ]
    assert report.failures(run).splitlines() == [
        "* `k_proj 512 tokens` failed: rms",
        "* `s9` was not built: too much shared memory",
    ]


def test_the_command_keeps_a_file_writes_the_page_and_checks_it(tmp_path, capsys):
    folder, source = tmp_path / "kept", tmp_path / "raw.jsonl"
    folder.mkdir()
    raw = [
        {"kind": "device", "ok": True, "card": "a card", "kernel": "dropped"},
        timed("8x8x8 f16", 10.123456, host_us=3),
    ]
    source.write_text("\n".join(map(json.dumps, raw)) + '\n{"kind": "summary", "cases": 1}\n')
    (folder / "one.md").write_text("## A heading\n")
    assert report.main([str(folder), "--add", f"one={source}"]) == 0
    kept = [json.loads(line) for line in (folder / "one.jsonl").read_text().splitlines()]
    assert kept[0] == {"kind": "device", "ok": True, "card": "a card"}
    assert (kept[1]["us"], "host_us" in kept[1], len(kept)) == (10.123, False, 2)
    assert "## A heading" in (tmp_path / "kept.md").read_text()
    assert report.main([str(folder), "--check"]) == 0
    (tmp_path / "kept.md").write_text("old")
    assert report.main([str(folder), "--check"]) == 1
    assert (tmp_path / "kept.md").read_text() == "old"
    assert report.main([str(folder), "--add", "no file"]) == 1
    (folder / "copied.jsonl").write_text(source.read_text())
    for flags in ([], ["--check"]):
        assert report.main([str(folder), *flags]) == 1
        assert "holds more than is kept; add it by --add copied=FILE" in capsys.readouterr().err
    (folder / "copied.jsonl").unlink()
    (folder / "one.jsonl").write_text("{")
    assert report.main([str(folder)]) == 1
    assert "is no file of JSON lines" in capsys.readouterr().err


# --- ablations ---


def test_axes_and_their_cross_product():
    axes = parse_axes("roles,stages=2|4,accumulate=f32|hybrid; max_k = 64")
    assert axes == {"roles": AXES["roles"], "stages": (2, 4), "accumulate": ("f32", "hybrid, max_k = 64")}
    product = cross_product(axes)
    assert len(product) == 8
    assert product["unified-stages4-hybrid64"] == {"roles": "unified", "stages": 4, "accumulate": "hybrid, max_k = 64"}
    assert variant_name({"block": (128, 64, 32)}) == "block128x64x32"
    with pytest.raises(EmmyError, match="no values for 'warp'"):
        parse_axes("warp")


def ablation_run():
    """tma is worth 1.2 with two stages and 1.1 with three, which are worth 1.25 for cp_async; specialized tma fails."""
    speed = {("cp_async", 2): 0.4, ("tma", 2): 0.48, ("cp_async", 3): 0.5, ("tma", 3): 0.55}
    cases = [
        timed(f"x {t}-stages{s}", 1.0, ratio, variant=f"{t}-stages{s}", settings={"transport": t, "stages": s})
        for (t, s), ratio in speed.items()
    ]
    return sort_records([*cases, timed("x plain", 1.0, 0.1, settings={"transport": "plain", "stages": 9})])


def test_variants_that_set_different_fields_are_no_ablation():
    run = ablation_run()
    assert len(ablation_tables(run)) == 2
    run.cases.append(timed("x deep", 1.0, settings={"stages": 2}))
    assert ablation_tables(run) == []


def test_a_kept_command_names_no_machine():
    command = "python -m emmy.bench.run /home/me/.art/v --out /home/me/v.jsonl --rounds 24"
    kept = strip({"kind": "device", "command": command})["command"]
    assert kept == "python -m emmy.bench.run v --rounds 24"
    assert strip({"kind": "device", "command": kept})["command"] == kept


def test_an_effect_compares_cases_that_differ_in_one_decision():
    found = {(e.axis, e.value): e for e in effects(ablation_run())}
    assert set(found) == {("transport", "tma"), ("stages", 3)}  # the lone plain case has no partner
    tma = found["transport", "tma"]
    assert tma.mean == pytest.approx((1.2 * 1.1) ** 0.5)
    assert (tma.pairs, tma.baseline) == (2, "cp_async")
    assert tma.least == (pytest.approx(1.1), "x stages3")
    assert tma.most == (pytest.approx(1.2), "x stages2")
    assert lesson(tma) == "* transport = tma is faster by 15 %, most for x stages2 (against cp_async, 2 pairs)."


def test_the_section_of_an_ablation_has_effects_and_every_variant(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(case) + "\n" for case in ablation_run().cases))
    text = report.section(path)
    assert "| transport: tma against cp_async | 1.149 | 2 | 1.100 (x stages3) | 1.200 (x stages2) |" in text
    assert "| `cp_async-stages2` | 0.400 |" in text
    assert effects(Run()) == []
