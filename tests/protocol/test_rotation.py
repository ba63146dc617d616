"""`delay-copies` and `prefetch-fragments` on the hand-written kernels of this folder: all of them stay right, bit for bit, and
those whose loops can be rotated are."""

from __future__ import annotations

from itertools import product

import numpy as np
import protocol_support as support
import pytest
from xdsl.dialects.builtin import ModuleOp

from emmy.interpreters.level3 import LANDINGS, ORDERS
from emmy.ir import print_module, verify_module
from emmy.passes.delay_copies import DelayCopies
from emmy.passes.prefetch_fragments import PrefetchFragments
from emmy.passes.verify_pipelines import VerifyPipelines

ATTENTION = ("flash_attention", "flash_attention_lag", "flash_attention_persistent")
GEMMS = ("gemm", "gemm_persistent", "gemm_two_waits", "gemm_deferred_release")


def rewritten(module: ModuleOp, delay: int, prefetch: bool) -> ModuleOp:
    """A copy after the passes; its pipelines still verify."""
    copy = module.clone()
    DelayCopies(delay).apply(support.CONTEXT, copy)
    if prefetch:
        PrefetchFragments(force=True).apply(support.CONTEXT, copy)
    verify_module(copy)
    VerifyPipelines().apply(support.CONTEXT, copy)
    return copy


def check(forms: support.Forms, cases: list[list[np.ndarray]]) -> dict[tuple[int, bool], bool]:
    """Every combination of the passes gives the bits of the lowered form in all modes; which of them changed the text."""
    before, changed = print_module(forms.lowered), {}
    expected = [support.run(forms.lowered, inputs, "late", "fixed") for inputs in cases]
    for delay, prefetch in ((0, True), (1, False), (1, True), (3, True)):
        module = rewritten(forms.lowered, delay, prefetch)
        changed[delay, prefetch] = print_module(module) != before
        if changed[delay, prefetch]:
            for (inputs, result), landing, order in product(zip(cases, expected, strict=True), LANDINGS, ORDERS):
                assert support.run(module, inputs, landing, order).tobytes() == result.tobytes(), (delay, prefetch)
    return changed


def attention_cases(name: str) -> list[list[np.ndarray]]:
    if name == "flash_attention_persistent":
        return [support.attention_inputs(80, 80)]
    return [support.attention_inputs(40, keys) for keys in ((0, 16, 43) if name == "flash_attention" else (16, 48))]


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("sites", ["eager", "first"])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_attention_with_cp_async(name: str, sites: str, stages: int) -> None:
    """Two products a block, with a softmax between: rotated, but where the copy of the block stands before K's wait."""
    forms = support.forms(name, (("k", stages), ("v", stages)), sites, "cp_async")
    changed = check(forms, attention_cases(name))
    assert changed[1, False]
    assert changed[0, True] == (stages > 1 or sites == "eager")


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_with_plain_copies(name: str) -> None:
    forms = support.forms(name, (("k", 2), ("v", 2)), "eager", "plain")
    changed = check(forms, attention_cases(name))
    assert not changed[1, False]
    assert changed[0, True]


@pytest.mark.parametrize("name", GEMMS)
@pytest.mark.parametrize("kind", ["cp_async", "plain"])
@pytest.mark.parametrize("stages", [2, 3])
def test_gemm(name: str, kind: str, stages: int) -> None:
    """One product a k-tile can be delayed behind, unless the copies stand behind the last one already as they are where
    the slot is given back late; two waits a loop body make two products, which rotate."""
    forms = support.forms(name, (("ab", stages),), "eager", kind)
    changed = check(forms, [support.gemm_inputs(40, 32, 96)])
    assert changed[1, False] == (kind == "cp_async" and (name, stages) != ("gemm_deferred_release", 2))
    assert changed[0, True] == (name == "gemm_two_waits" and stages == 3)
