"""Pages on attention and on what was asked, Gemma's table, programs with elementwise ends: figures are those of the records."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from emmy.artefact import run_on_emulator
from emmy.bench import attention_page, claims, fused, gemma4
from emmy.bench.attention_inputs import accuracy_cases
from emmy.bench.peers import PEERS
from emmy.bench.records import Run, read_run
from emmy.bench.run import Options, peers_of
from emmy.bench.suites import SUITES
from emmy.bench.svg import bar_chart
from emmy.compiler import compile as compile_module
from emmy.registry import PASSES

ROOT = Path(__file__).parents[2]
MEASUREMENTS = ROOT / "docs" / "measurements"


def case(name: str, us: float = 100.0, suite: str = "attention", peers: dict[str, float] | None = None, **fields):
    found = {name: {"us": us * ratio, "ratio": ratio, "tflops": 500 / ratio} for name, ratio in (peers or {}).items()}
    base = {
        "name": name,
        "ok": True,
        "suite": suite,
        "us": us,
        "tflops": 500.0,
        "peers": found,
        "shapes": {"q": [1, 8, 64, 64]},
    }
    return {"kind": "case", **base, **fields}


# ---- the page on attention -------------------------------------------------------------------------------------------


def test_the_page_and_its_plot_are_up_to_date():
    runs = {name: read_run(path) for name in attention_page.FILES if (path := MEASUREMENTS / f"{name}.jsonl").is_file()}
    text = attention_page.level2_text()
    assert (ROOT / "docs" / "attention.md").read_text() == attention_page.page(runs, text), (
        "run: python -m emmy.bench.attention_page"
    )
    table, sync = (attention_page.by_name(runs.get(name)) for name in (attention_page.TABLE, attention_page.SYNC))
    assert (ROOT / "docs" / "attention.svg").read_text() == attention_page.plot(table, sync)


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90a", "sm_120a"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_level_2_of_grouped_causal_attention_is_under_60_lines(target: str, dtype: str):
    """As printed, with the host function and the module around it."""
    text = attention_page.EXAMPLE.text.replace("f16", dtype)
    printed = compile_module(text, target, schedule=attention_page.SCHEDULE).ir("lower-tensor-op")
    assert "tile.launch" in printed
    assert len(printed.rstrip().splitlines()) < 60


def test_what_the_page_names_is_there():
    words = set(attention_page.INTRODUCTION.split("`"))
    named = {word for word in words if "-" in word and word.replace("-", "").isalpha()}
    assert named - {"lower-tensor-op"} <= set(PASSES)
    names = {problem.name for problem, _ in accuracy_cases()}
    assert set(attention_page.SANITIZED) <= names
    assert len(attention_page.SANITIZED) == 6


def test_experiments_are_compared_with_the_tables_choice_of_their_class_of_atoms():
    def variant(name: str, label: str, us: float, **fields):
        return case(f"{name} {label}", us, variant=label, **fields)

    cases = [
        variant("A b1 d64", "mma.base", 100.0, spills=8),
        variant("A b1 d64", "mma.lazy0", 80.0, spills=16),
        variant("A b1 d64", "mma.other", 80.0),
        variant("A b1 d64", "wgmma.base", 50.0, ratio=2.0),
        variant("A b1 d64", "wgmma.overlap0", 60.0, ratio=1.5),
        variant("B b1 d64", "mma.lazy0", 50.0),
    ]
    first, second = attention_page.ablation_tables(Run(cases=cases))
    assert first.splitlines() == [
        "| `mma.sync` | A d64 | on `sm_120a`, by the model |",
        "| --- | ---: | ---: |",
        "| the table's choice | 100.0 us |  |",
        "| always rescaling (`lazy = 0`) | 80.0 (1.250)* | no: products hide the slots |",
    ]
    assert second.splitlines()[2:] == [
        "| the table's choice | 50.0 us |",
        "| no product under the next softmax (`overlap = 0`) | 60.0 (0.750) |",
    ]


def test_rates_and_ratios_of_both_classes_stand_side_by_side():
    table = {"A": case("A", peers={"flash": 1.5, "cudnn": 1.1})}
    sync = {"A": case("A", peers={"flash": 1.2}), "W": case("W", peers={"flex": 2.0})}
    lines = attention_page.speed_table(table, sync).splitlines()
    assert lines[2] == "| A | 500 | 500 | 333 | 455 | - | 1.500 | 1.100 | - | 1.200 |"
    assert lines[3] == "| W | - | 500 | - | - | 250 | - | - | - | - |"


def test_bars_have_the_heights_of_their_values():
    root = ElementTree.fromstring(
        bar_chart({"one": [100.0, None], "two <": [50.0, 25.0]}, ["a", "b&"], "title", "TFLOPS")
    )
    bars = [e for e in root.iter("{http://www.w3.org/2000/svg}rect") if len(e)]
    heights = [float(bar.attrib["height"]) for bar in bars]
    assert heights[0] / heights[1] == pytest.approx(2, rel=0.01)
    assert heights[1] / heights[2] == pytest.approx(2, rel=0.01)
    assert [bar[0].text for bar in bars] == ["one, a: 100", "two <, a: 50", "two <, b&: 25"]


# ---- what was asked --------------------------------------------------------------------------------------------------


def found(file: str, text: str, run: Run):
    (claim,) = (c for section in claims.SECTIONS.values() for c in section if c.file == file and text in c.text)
    return claim.find(run)


def test_a_claim_takes_the_mean_the_least_and_the_fastest_peer():
    run = Run(
        cases=[
            case("A", peers={"cudnn": 1.0, "flash": 2.0}),
            case("B", suite="attention lengths", peers={"cudnn": 1.44}),
        ]
    )
    assert found("97_attention", "against cuDNN", run) == ("1.200 over 2, least 1.000 (A)", True)
    run.cases[0]["peers"]["cudnn"]["ratio"] = 0.99
    assert found("97_attention", "against cuDNN", run)[1] is False
    one = Run(
        cases=[case("decode b8 h16/8 k8192 d256", suite="attention decoding", peers={"cudnn": 1.2, "flash": 0.9})]
    )
    assert found("97_attention", "b8 d256", one) == ("least 0.900 (decode b8 h16/8 k8192 d256)", False)
    assert found("97_attention", "against cuDNN", Run()) == claims.NOT_MEASURED
    assert (
        found("97_attention", "against cuDNN", Run(cases=[case("A", peers={"cudnn": 2.0}) | {"ok": False}]))
        == claims.NOT_MEASURED
    )


def test_claims_on_rates_bandwidth_launches_and_errors():
    deep = Run(
        cases=[case("g d512", suite="attention d512"), case("g d512 causal", suite="attention d512", tflops=1.0)]
    )
    assert found("97_attention", "d512", deep) == ("500 TFLOPS (g d512)", True)
    assert found("971_attention_sync", "d512", deep)[1] is True
    assert found("97_attention", "d512", Run(cases=[case("g", suite="attention d512", tflops=349.0)]))[1] is False
    read = case("decode b1 k32768", 100.0, suite="attention decoding", bytes=3e8)
    brackets = [{"copy_tb_per_s": 4.0}]
    assert found("97_attention", "bandwidth", Run(brackets=brackets, cases=[read])) == ("75 % (decode b1 k32768)", True)
    stress = Run(cases=[{"ok": True, "name": "x", "repeats": 3000, "differing_launches": 0}])
    assert found("98_stress", "bitwise", stress) == ("3000 (3000 to 3000 a case), 0 differ", True)
    assert found("98_stress", "bitwise", Run(cases=[stress.cases[0] | {"repeats": 2999}]))[1] is False
    assert found("98_stress", "bitwise", Run(cases=[stress.cases[0] | {"differing_launches": 1}]))[1] is False
    error = {"mean_error": 1.0, "eager_mean": 1.0, "max_error": 2.0, "eager_max": 1.0}
    accurate = Run(cases=[case("whole d64 f16 wgmma, normal", suite="accuracy", error=error)])
    assert found("992_accuracy", "errors", accurate) == (
        "1 of 1 cases; mean at most 1.00, largest 2.00 of eager's",
        True,
    )
    accurate.cases[0]["error"] = {**error, "max_error": 2.1}
    assert found("992_accuracy", "errors", accurate)[1] is False


def test_the_section_says_what_is_missing_and_is_left_out_without_files():
    text = claims.claims_section({"97_attention": Run(cases=[case("A", peers={"cudnn": 1.2})])})
    assert (
        "| 1.10, none under 1.00 | 1.200 over 1, least 1.200 (A) | yes | `97_attention` |" in text
        or "least 1.200 (A)" in text
    )
    assert "not measured | - | `99_gemma4` |" in text
    assert claims.claims_section({}) == ""
    files = {claim.file for section in claims.SECTIONS.values() for claim in section}
    assert files == set(claims.FILES)


# ---- Gemma -----------------------------------------------------------------------------------------------------------


def test_gemmas_means_are_over_all_kernels_products_and_calls():
    results = [
        case("q 512 tokens", 10.0, "gemma4", {"eager": 1.0}, calls=40, shapes={"a": [512, 8], "b": [8, 8]}),
        case("attention 512 tokens", 30.0, "gemma4", {"eager": 4.0}, calls=40, shapes={"q": [1, 8, 512, 64]}),
        case("logits 2048 tokens", 5.0, "gemma4", {"eager": 2.0}, calls=1, shapes={"x": [2048, 8]}),
        case("other", 5.0, "six", {"eager": 9.0}),
    ]
    assert gemma4.means(gemma4.called(results[:2]), "eager") == {"all": 2.0, "products": 1.0, "calls": 130 / 40}
    lines = gemma4.gemma_lines(results)
    assert lines[0] == (
        "gemma4 against eager: geometric mean of 3 kernels 2.000, without attention 1.414, all calls of a pass 3.246"
    )
    assert [line.partition(":")[0] for line in lines[1:]] == [
        "gemma4 512 tokens against eager",
        "gemma4 2048 tokens against eager",
    ]
    assert gemma4.gemma_table(results).splitlines()[2] == "| q 512 tokens | 40 | 10.0 | 500 | 10.0 | 1.000 |"
    assert gemma4.gemma_table(results[3:]) == ""


def test_gemmas_table_has_a_column_for_each_peer():
    """What one could not do, others keep their figures of, and it is no part of that one's means."""
    both, one = (
        case(f"{name} 512 tokens", 10.0, "gemma4", peers, calls=1, shapes={"a": [512, 8], "b": [8, 8]})
        for name, peers in (("q", {"eager": 1.5, "compile": 1.25}), ("o", {"eager": 1.0}))
    )
    one["peers"]["compile"] = {"message": "TimeoutError: not ready within 90 s"}
    table = gemma4.gemma_table([both, one]).splitlines()
    assert table[0] == "| kernel | calls | us | TFLOPS | eager us | compile us | ratio to eager | ratio to compile |"
    assert table[2].endswith("| 15.0 | 12.5 | 1.500 | 1.250 |")
    assert table[3].endswith("| 10.0 | - | 1.000 | - |")
    assert "gemma4 against compile: geometric mean of 1 kernels 1.250" in gemma4.gemma_lines([both, one])[2]


def test_the_suite_has_every_kernel_and_is_timed_against_eager_and_torch_compile():
    works = list(SUITES["gemma4"]())
    assert len(works) == 2 * (len(gemma4.PRODUCTS) + 2)
    sliding = 40 * (1 + 2 + 1) + 8 * 3 + 48 * 2 + 1
    assert sum(work.case.calls for work in works if "q" not in work.case.shapes) == 2 * sliding
    assert {peers_of(work.case, Options()) == ["eager", "compile"] for work in works} == {True}
    assert peers_of(works[0].case, Options(peers=("eager",))) == ("eager",)
    assert {"eager", "compile"} <= set(PEERS)


def stepwise(kind: str, args: list[np.ndarray], dtype: type | None) -> np.ndarray:
    """What `fused.FUSED` computes, in float64 or rounded to `dtype` after each step."""
    x, *weights = [a.astype(np.float64 if dtype is None else np.float32) for a in args]

    def kept(values: np.ndarray) -> np.ndarray:
        return values if dtype is None else values.astype(dtype).astype(np.float32)

    first = kept(x @ weights[0].T)
    if kind == "capped":
        return kept(kept(np.tanh(kept(first / fused.CAP))) * fused.CAP)
    inner = np.sqrt(2 / np.pi) * (first + 0.044715 * first**3)
    return kept(kept(0.5 * first * (1 + np.tanh(inner))) * kept(x @ weights[1].T))


@pytest.mark.parametrize("kind", fused.FUSED)
@pytest.mark.parametrize("target", ["sm_89", "sm_90a"])
def test_programs_of_products_and_what_follows(kind: str, target: str):
    sizes = (40, 72, 64)
    rng = np.random.default_rng(0)
    values = fused.task_of(kind, *sizes)["values"]
    args = [
        np.full(shape, values[name], np.float32) if name in values else rng.standard_normal(shape).astype(np.float16)
        for name, shape in fused.shapes_of(kind, *sizes).items()
    ]
    artefact = compile_module(fused.text_of(kind, *sizes), target).portable_artefact
    (out, *_), _ = run_on_emulator(artefact, kind, args)
    exact, eager = stepwise(kind, args, None), stepwise(kind, args, np.float16)
    error, allowed = np.abs(out - exact), np.abs(eager - exact)
    assert error.mean() <= allowed.mean()
    assert error.max() <= 2 * allowed.max()
    assert fused.task_of(kind, *sizes)["flops"] == 2 * 40 * 72 * 64 * (2 if kind == "geglu" else 1)
