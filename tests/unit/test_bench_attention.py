"""The attention cases of the bench: what is counted is what is seen; a right result passes and wrong ones do not."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from emmy.bench import attention, attention_check, attention_numpy, eager
from emmy.bench.attention import Attention
from emmy.bench.suites import SUITES
from emmy.interpreters import level1
from emmy.ir import parse_module

SMALL = Attention("small", 1, 4, 2, 24, 40, 16)
KINDS = [
    SMALL,
    dataclasses.replace(SMALL, causal=True),
    dataclasses.replace(SMALL, causal=True, rows=48),
    dataclasses.replace(SMALL, causal=True, window=7),
    dataclasses.replace(SMALL, window=7),
]


def seen(problem: Attention) -> np.ndarray:
    own = np.arange(problem.rows)[:, None] + problem.keys - problem.rows
    key = np.arange(problem.keys)[None, :]
    shown = np.ones((problem.rows, problem.keys), bool)
    if problem.causal:
        shown &= key <= own
    if problem.window:
        shown &= (key > own - problem.window) & (key < own + problem.window)
    return shown


@pytest.mark.parametrize("problem", KINDS, ids=range(5))
def test_flops_are_those_of_what_is_seen(problem: Attention):
    pairs = problem.batch * problem.heads * int(seen(problem).sum())
    assert problem.task["flops"] == 4 * problem.depth * pairs


@pytest.mark.parametrize(("suite", "count"), [("attention", 27), ("gemma4", 22)])
def test_every_case_has_a_name_and_a_text_of_its_own_shapes(suite: str, count: int):
    works = list(SUITES[suite]())
    assert len({work.case.name for work in works}) == len(works) == count
    for work in works:
        (function,) = parse_module(str(work.source), work.artefact).body.block.ops
        shapes = [list(arg.type.get_shape()) for arg in function.body.block.args]
        assert shapes == list(work.case.shapes.values())
        assert "q" not in work.case.shapes or work.case.task["kind"] == attention.KIND
    texts = {work.artefact: work.source for work in works}
    assert all(texts[work.artefact] == work.source for work in works)


@pytest.mark.parametrize("problem", KINDS, ids=range(5))
def test_the_text_means_the_task(problem: Attention):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for shape in problem.shapes.values())
    (got,) = level1.run(parse_module(problem.text, "test"), "attention", [q, k, v])
    wide = [x.astype(np.float64) for x in (q, k, v)]
    k64, v64 = (np.repeat(x, problem.heads // problem.groups, axis=1) for x in wide[1:])
    scores = np.where(seen(problem), wide[0] @ k64.swapaxes(-1, -2) * problem.scale, -math.inf)
    with np.errstate(all="ignore"):
        p = np.exp(scores - scores.max(-1, keepdims=True))
        expected = np.nan_to_num(p / p.sum(-1, keepdims=True)) @ v64
    np.testing.assert_allclose(got.astype(np.float64), expected, atol=2e-3)
    exact = np.stack([attention_numpy.one_head(g, problem.task) for *_, g, _ in sequences(problem, (q, k, v), got)])
    np.testing.assert_allclose(exact[None], expected, atol=1e-12)


def sequences(problem: Attention, args, out):
    return attention_check.sequences(args, problem.task, out)


def test_the_eager_run_rounds_each_step():
    """By hand: a score of 3/8 + 2^-12 is 3/8 in f16, and a weight of a third is rounded."""
    task = {"causal": False, "window": 0, "scale": 1.0}
    q, k = np.array([[1.0, 1.0]]), np.array([[0.375, 2.0**-12]] * 3)
    v = np.array([[3.0], [0.0], [0.0]])
    got = attention_numpy.one_head((q, k, v, None), task, np.float16)
    assert got.dtype == np.float32
    assert got == np.float16(3 * np.float32(np.float16(1 / 3)))
    assert attention_numpy.one_head((q, k, v, None), task) == pytest.approx(1.0)


def test_a_verdict_has_the_bounds_of_an_eager_run_or_of_rounding():
    fine = eager.judged({"ours": (2e-4, 2e-3), "eager": (1e-4, 1e-3), "rounding": (0.0, 0.0)})
    assert fine["ok"]
    assert fine["error"]["eager_max"] == 1e-3
    assert not eager.judged({"ours": (2.1e-4, 2e-3), "eager": (1e-4, 1e-3), "rounding": (0.0, 0.0)})["ok"]
    large = eager.judged({"ours": (1e-4, 2.1e-3), "eager": (1e-4, 1e-3), "rounding": (0.0, 0.0)})
    assert large["message"] == "mean error, largest: 1.00e-04 (bound 2.00e-04), 2.10e-03 (bound 2.00e-03)"
    assert eager.judged({"ours": (1e-4, 1e-3), "eager": (0.0, 0.0), "rounding": (1e-4, 1e-3)})["ok"]
    anywhere = eager.judged({"ours": (0, 0), "eager": (1, 1), "rounding": (0, 0)}, anywhere=4.1)
    assert "largest of all: 0.00e+00 (bound 2.00e+00)" in anywhere["message"]
    assert (
        "3 elements are NaN" in eager.judged({"ours": (0, 0), "eager": (0, 0), "rounding": (0, 0)}, None, 3)["message"]
    )


@pytest.mark.parametrize("problem", [KINDS[0], KINDS[1], KINDS[3]], ids=range(3))
def test_errors_are_judged_by_those_of_eager(problem: Attention):
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(shape).astype(np.float16) for shape in problem.shapes.values()]
    heads = [
        attention_numpy.one_head(g, problem.task) for *_, g, _ in sequences(problem, args, np.zeros((1, 4, 24, 16)))
    ]
    out = np.stack(heads)[None].astype(np.float16)
    assert attention_numpy.compare(args, problem.task, out)["ok"]
    wrong = out.copy()
    wrong[0, 1, 3, 5] += 0.1
    assert "mean error, largest: " in attention_numpy.compare(args, problem.task, wrong)["message"]
    wrong[0, 1, 3, 5] = math.nan
    assert "NaN" in attention_numpy.compare(args, problem.task, wrong)["message"]
    assert not attention_numpy.compare(args, problem.task, (out * 1.01).astype(np.float16))["ok"]


@pytest.mark.parametrize("problem", [KINDS[0], KINDS[1], KINDS[3]], ids=range(3))
def test_torch_says_the_same(problem: Attention):
    torch = pytest.importorskip("torch", reason="needs PyTorch: not run")
    torch.manual_seed(0)
    args = [torch.randn(shape).half() for shape in problem.shapes.values()]
    out = torch.stack([attention_check.one_head(torch, g, problem.task, torch.float32) for *_, g, _ in
                       attention_check.sequences(args, problem.task, torch.zeros(1, 4, 24, 16))])[None].half()  # fmt: skip
    for result in (out, out * 1.01):
        found = attention_check.compare(torch, args, problem.task, result)
        twin = attention_numpy.compare([x.numpy() for x in args], problem.task, result.numpy())
        assert found["ok"] == twin["ok"]
        assert found["error"] == pytest.approx(twin["error"], rel=0.3, abs=1e-5)
