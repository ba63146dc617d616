"""The level-3 texts of this folder: how to vary their stages, lower them step by step, feed them, and what they should give."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from emmy.interpreters.level3 import run_module
from emmy.ir import make_context, parse_module, verify_module
from emmy.passes.lower_transport import LowerTransport
from emmy.passes.place_roles import PlaceRoles
from emmy.passes.verify_pipelines import VerifyPipelines
from emmy.schedule_limits import AUTO_TRANSPORT

HERE = Path(__file__).parent
MODES = ("unified", "specialized")
KINDS = ("tma", "cp_async", "plain")
CONTEXT = make_context()


@dataclass(frozen=True)
class Forms:
    """One text in its three forms."""

    canonical: ModuleOp
    placed: ModuleOp
    lowered: ModuleOp

    def all(self) -> tuple[ModuleOp, ModuleOp, ModuleOp]:
        return self.canonical, self.placed, self.lowered


def parse(name: str, stages: dict[str, int], depth: int = 96) -> ModuleOp:
    """A text of this folder with the stages of some rings, and the depth of a GEMM, changed."""
    text = (HERE / f"{name}.mlir").read_text().replace("x96xf16", f"x{depth}xf16")
    for ring, count in stages.items():
        text, found = re.subn(rf"(pipeline @{ring} stages) \d+", rf"\1 {count}", text)
        assert found == 1, ring
    return parse_module(text, f"{name}.mlir", CONTEXT)


def place(module: ModuleOp, sites: str, mode: str = "unified") -> ModuleOp:
    """A copy of the module after verify-pipelines and place-roles."""
    placed = module.clone()
    VerifyPipelines().apply(CONTEXT, placed)
    PlaceRoles(mode, sites).apply(CONTEXT, placed)
    verify_module(placed)
    VerifyPipelines().apply(CONTEXT, placed)
    return placed


def lower(module: ModuleOp, kind: str) -> ModuleOp:
    """A copy of the placed module after lower-transport; kind `mixed`: TMA where a tensor allows it, cp.async elsewhere."""
    lowered = module.clone()
    with patch.dict(AUTO_TRANSPORT, sm_90a="tma"):
        LowerTransport("auto" if kind == "mixed" else kind).apply(CONTEXT, lowered)
    verify_module(lowered)
    VerifyPipelines().apply(CONTEXT, lowered)
    return lowered


@cache
def forms(
    name: str, stages: tuple[tuple[str, int], ...], sites: str, kind: str, depth: int = 96, mode: str = "unified"
) -> Forms:
    """All forms of a text."""
    canonical = parse(name, dict(stages), depth)
    placed = place(canonical, sites, mode)
    return Forms(canonical, placed, lower(placed, kind))


def gemm_inputs(rows: int, columns: int, depth: int) -> list[np.ndarray]:
    """Small integers, so that every order of sums is exact."""
    rng = np.random.default_rng(rows + 7 * columns + 31 * depth)
    return [rng.integers(-3, 4, (n, depth)).astype(np.float16) for n in (rows, columns)]


def gemm(inputs: list[np.ndarray]) -> np.ndarray:
    a, b = (x.astype(np.float64) for x in inputs)
    return (a @ b.T).astype(np.float16)


def attention_inputs(queries: int, keys: int) -> list[np.ndarray]:
    rng = np.random.default_rng(queries + 7 * keys)
    return [rng.normal(size=(n, 32)).astype(np.float16) for n in (queries, keys, keys)]


def attention(inputs: list[np.ndarray], causal: bool = False) -> np.ndarray:
    """Attention in float64; the texts scale by 0.25 and take powers of two. No keys: zeros."""
    q, k, v = (x.astype(np.float64) for x in inputs)
    if not len(k):
        return np.zeros_like(q)
    scores = 0.25 * (q @ k.T)
    if causal:
        scores = np.where(np.tri(len(q), len(k)) > 0, scores, -np.inf)
    weights = np.exp2(scores - scores.max(axis=1, keepdims=True))
    return weights @ v / weights.sum(axis=1, keepdims=True)


def run(module: ModuleOp, inputs: list[np.ndarray], landing: str, order: str, seed: int = 0) -> np.ndarray:
    """The one result of `@entry`."""
    (result,) = run_module(module, "entry", inputs, landing, order, seed)
    return result
