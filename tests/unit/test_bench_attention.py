"""The attention cases of the bench: what is counted is what is seen; a right result passes and wrong ones do not."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from emmy.bench import attention
from emmy.bench.attention import Attention
from emmy.bench.prepare import SUITES
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
        shown &= key > own - problem.window
    return shown


@pytest.mark.parametrize("problem", KINDS[:4], ids=range(4))
def test_flops_are_those_of_what_is_seen(problem: Attention):
    pairs = problem.batch * problem.heads * int(seen(problem).sum())
    assert problem.task["flops"] == 4 * problem.depth * pairs


def test_every_case_has_a_name_and_a_text_of_its_own_shapes():
    works = list(SUITES["attention"]())
    assert len({work.case.name for work in works}) == len({work.artefact for work in works}) == len(works) == 17
    for work in works:
        (function,) = parse_module(str(work.source), work.artefact).body.block.ops
        shapes = [list(arg.type.get_shape()) for arg in function.body.block.args]
        assert shapes == list(work.case.shapes.values())
        assert work.case.task["kind"] == attention.KIND


@pytest.mark.parametrize("problem", KINDS[:4], ids=range(4))
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


@pytest.mark.parametrize("problem", [KINDS[0], KINDS[1], KINDS[3]], ids=range(3))
def test_errors_are_judged_by_those_of_eager(problem: Attention):
    torch = pytest.importorskip("torch", reason="needs PyTorch: not run")
    torch.manual_seed(0)
    args = [torch.randn(shape).half() for shape in problem.shapes.values()]
    heads = [attention.one_head(torch, args, problem.task, 0, h, torch.float32).half() for h in range(problem.heads)]
    out = torch.stack(heads)[None]
    assert attention.compare(torch, args, problem.task, out)["ok"]
    wrong = out.clone()
    wrong[0, 1, 3, 5] += 0.1
    assert "largest of all heads" in attention.compare(torch, args, problem.task, wrong)["message"]
    wrong[0, 1, 3, 5] = math.nan
    assert "NaN" in attention.compare(torch, args, problem.task, wrong)["message"]
    assert not attention.compare(torch, args, problem.task, (out.float() * 1.01).half())["ok"]
