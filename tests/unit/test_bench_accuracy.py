"""The suite `attention_accuracy`: inputs are as hard as they say, the emulator passes on small ones, registers suffice."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from emmy.artefact import Artefact, run_on_emulator
from emmy.assemble import find_tool
from emmy.bench import accuracy, attention_numpy
from emmy.bench.attention import Attention
from emmy.bench.attention_inputs import ATOMS, INPUTS, KINDS, accuracy_cases, counted_rows, make_inputs
from emmy.bench.cases import Case, numpy_inputs
from emmy.bench.prepare import runs_on
from emmy.bench.suites import SUITES, attention_work
from emmy.compiler import compile as compile_module

CASES = list(accuracy_cases())
SMALL = {
    "whole": {"rows": 40, "keys": 56},
    "causal": {"rows": 48, "keys": 64, "causal": True},
    "window": {"rows": 40, "keys": 64, "causal": True, "window": 13},
    "mask": {"rows": 20, "keys": 40, "bias": (1, 1, 20, 40)},
    "causal mask": {"rows": 20, "keys": 40, "causal": True, "bias": (1, 4, 20, 40)},
    "packed": {"rows": 48, "keys": 64, "starts": ((0, 7, 7, 30), (0, 13, 20, 50))},
    "packed causal": {"rows": 48, "keys": 64, "causal": True, "starts": ((0, 7, 7, 30), (0, 13, 20, 50))},
    "one query": {"rows": 1, "keys": 100},
}


def small(kind: str, dtype: str, inputs: str) -> Attention:
    return Attention("small", 1, 4, 2, depth=64, dtype=dtype, inputs=inputs, **SMALL[kind])


def arrays_of(problem: Attention, entry=None) -> list[np.ndarray]:
    return make_inputs(problem.task, problem.shapes)


def test_the_suite_has_every_input_mask_depth_type_and_class_of_atoms():
    assert {problem.inputs for problem, _ in CASES} == set(INPUTS)
    assert {(problem.depth, problem.dtype, atoms) for problem, atoms in CASES} == {
        (depth, dtype, atoms) for depth in (64, 128, 256) for dtype in ("f16", "bf16") for atoms in ATOMS
    }
    assert len({problem.name for problem, _ in CASES}) == len(CASES)
    assert set(SMALL) == {kind for kind, *_ in KINDS}
    works = list(SUITES["attention_accuracy"]())
    by_artefact = {work.artefact: (work.source, work.schedule) for work in works}
    assert all(by_artefact[work.artefact] == (work.source, work.schedule) for work in works)
    assert [runs_on(work, "sm_89") for work in works] == [atoms == "mma.sync" for _, atoms in CASES]


def test_inputs_are_as_hard_as_they_say():
    def scores(inputs: str, kind: str = "whole") -> np.ndarray:
        problem = small(kind, "f16", inputs)
        q, k = arrays_of(problem)[:2]
        return q[0, 0] @ k[0, 0].T * problem.scale

    assert scores("normal").std() == pytest.approx(1, rel=0.2)
    assert scores("queries x4").std() == pytest.approx(4, rel=0.2)
    assert scores("large logits").std() == pytest.approx(32, rel=0.2)
    assert np.ptp(scores("all equal")) == 0
    hot = scores("one-hot")
    assert np.all(hot.argmax(-1) == np.arange(40) + 16)
    assert np.all(np.sort(hot)[:, -1] - np.sort(hot)[:, -2] > 10)
    bias = arrays_of(small("mask", "f16", "minus infinity"))[3][0, 0]
    hidden = bias == -math.inf
    assert hidden[5].all()
    assert 0.3 < hidden[12:].mean() < 0.7
    q, k, v, starts_q, starts_k = arrays_of(small("packed", "f16", "NaN beyond sequences"))
    assert np.isnan(q[:, :, 30:]).all()
    assert np.isnan(v[:, :, 50:]).all()
    assert np.isfinite(k[:, :, :50]).all()
    assert (starts_q.dtype, starts_k.tolist()) == (np.int32, [0, 13, 20, 50])


@pytest.mark.parametrize("kind", ["causal", "window"])
def test_rows_that_count_see_no_nan(kind: str):
    problem = small(kind, "f16", "NaN in hidden keys")
    q, k, v = arrays_of(problem)
    counted = counted_rows(problem.task, problem.rows, problem.keys)
    assert np.isnan(k).any()
    assert counted.mean() > 0.5
    exact = attention_numpy.one_head((q[0, 0], k[0, 0], v[0, 0], None), problem.task)
    assert np.array_equal(np.isfinite(exact).all(-1), counted)


def test_inputs_are_the_same_every_time_and_the_runner_gives_them_in_the_types_of_the_arguments():
    problem = small("packed", "bf16", "NaN beyond sequences")
    case = replace(attention_work(problem).case, artefact="x")
    dtypes = [problem.type_of(name) for name in problem.shapes]
    entry = {"arguments": [{"name": n, "dtype": d} for n, d in zip(problem.shapes, dtypes, strict=True)]}
    first, again = (numpy_inputs(Case.parse(vars(case)), entry) for _ in range(2))  # type: ignore[arg-type]
    assert [str(a.dtype) for a in first] == ["bfloat16"] * 3 + ["int32"] * 2
    for one, other, wide in zip(first, again, arrays_of(problem), strict=True):
        assert np.array_equal(one.view(np.uint8), other.view(np.uint8))
        assert np.array_equal(one.astype(np.float32), wide.astype(one.dtype).astype(np.float32), equal_nan=True)


EMULATED = [
    *((kind, "f16", given, "mma.sync") for kind, _, inputs, _ in KINDS for given in inputs),
    *((kind, "f16", given, "wgmma") for kind in ("whole", "causal", "window") for given in ("large logits", "one-hot")),
    *((kind, "f16", "NaN in hidden keys", "wgmma") for kind in ("causal", "window")),
    ("causal", "bf16", "large logits", "mma.sync"),
    ("causal", "bf16", "normal", "wgmma"),
    ("mask", "bf16", "minus infinity", "mma.sync"),
    ("packed", "bf16", "NaN beyond sequences", "mma.sync"),
]

_ARTEFACTS: dict[tuple[str, str], Artefact] = {}


def artefact_of(problem: Attention, atoms: str) -> Artefact:
    key = problem.text, atoms
    if key not in _ARTEFACTS:
        module = compile_module(problem.text, "sm_90a", schedule={"atom": ATOMS[atoms]})
        _ARTEFACTS[key] = module.portable_artefact
    return _ARTEFACTS[key]


@pytest.mark.parametrize(("kind", "dtype", "inputs", "atoms"), EMULATED)
def test_on_the_emulator(kind: str, dtype: str, inputs: str, atoms: str):
    problem = small(kind, dtype, inputs)
    artefact = artefact_of(problem, atoms)
    given = numpy_inputs(replace(attention_work(problem).case, artefact="x"), artefact.entry("attention"))
    (out, *_), _ = run_on_emulator(artefact, "attention", given)
    found = attention_numpy.compare(given, problem.task, out)
    assert found["ok"], found


@pytest.mark.skipif(find_tool("ptxas") is None, reason="needs ptxas: not run")
@pytest.mark.parametrize("target", ["sm_89", "sm_90a", "sm_120a"])
@pytest.mark.parametrize("depth", [64, 128, 256])
@pytest.mark.parametrize("kind", ["mask", "causal mask", "packed"])
def test_masks_and_packed_sequences_have_registers_enough(kind: str, depth: int, target: str):
    """Their addresses took registers that the table's rows for sm_90a had not, and ptxas refused them."""
    problem = next(p for p, _ in CASES if p.name.startswith(f"{kind} d{depth} f16"))
    module = compile_module(problem.text, target, schedule={"atom": ATOMS["mma.sync"]})
    assert all(used["spill_store_bytes"] == 0 for used in module.artefact.resources.values())


def record(name: str, **errors: float):
    fields = {"mean_error": 1e-5, "eager_mean": 2e-5, "max_error": 1e-3, "eager_max": 1e-3, **errors}
    return {"name": name, "suite": "accuracy", "ok": True, "error": fields, "repeats": 250, "differing_launches": 0}


def test_the_table_has_the_worst_of_each_group():
    results = [
        record("whole d64 f16 wgmma, normal"),
        record("causal d128 f16 wgmma, normal", max_error=1.5e-3, mean_error=0.0),
        record("causal d128 bf16 mma.sync, one-hot", eager_mean=0.0, mean_error=0.0),
        {"name": "other", "suite": "six", "ok": True},
    ]
    lines = accuracy.accuracy_table(results).splitlines()
    assert lines[2] == "| normal | f16 wgmma | 2 | 2 | 0.50 | 1.50 | 1.5e-03 | 1.0e-03 | 500 | 0 |"
    assert lines[3].startswith("| one-hot | bf16 mma.sync | 1 | 1 | 0.00 | 1.00 |")
    assert accuracy.accuracy_lines(results)[1] == (
        "accuracy: max error over that of an eager run at most 1.50 (causal d128 f16 wgmma, normal)"
    )
    assert accuracy.accuracy_table(results[3:]) == ""
    assert accuracy.accuracy_lines(results[3:]) == []
