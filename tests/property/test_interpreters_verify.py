"""Interpreters that are given a wrong module say what is wrong with it: one sentence, no traceback and no result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from xdsl.ir import Operation

import emmy
from emmy.errors import EmmyError
from emmy.interpreters import level1, level2, level3
from emmy.ir import parse_module, verify_module

M = "tensor<32x32xf16>"
TEXT = f"""func.func @f(%a: {M}, %b: {M}) -> {M} {{
  %c = tensor_op.matmul %a, %b transpose_b : ({M}, {M}) -> {M}
  func.return %c : {M}
}}
"""
SCHEDULE = {
    "block": (32, 32, 16),
    "warps": (1, 1),
    "stages": 2,
    "atom": "m16n8k16",
    "roles": "specialized",
    "producer_warps": 1,
}
A = np.ones((32, 32), np.float16)
RUN: dict[str, Callable[..., Any]] = {
    "tensor_op": level1.run,
    "tile": level2.run_module,
    "lower-tile": level3.run_module,
    "lower-transport": level3.run_module,
}


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    module = emmy.compile(TEXT, "sm_90a", schedule=SCHEDULE)
    return {stage: module.ir(stage) for stage in RUN}


def exchange_an_operand(op: Operation, ops: list[Operation]) -> bool:
    others = [v for o in ops for v in o.results if op.operands and v.type != op.operands[0].type]
    if others:
        op.operands[0] = others[len(others) // 2]
    return bool(others)


def drop_a_property(op: Operation, ops: list[Operation]) -> bool:
    dropped = bool(op.properties)
    if dropped:
        op.properties.pop(next(iter(op.properties)))
    return dropped


def drop(op: Operation, ops: list[Operation]) -> bool:
    dropped = op.parent is not None and not any(tuple(result.uses) for result in op.results)
    if dropped:
        op.detach()
    return dropped


def sentence_of(function: Callable[[], Any]) -> str | None:
    """What a function says is wrong. Anything but an `EmmyError` is a failure of the test."""
    try:
        function()
    except EmmyError as error:
        return error.message
    return None


@pytest.mark.parametrize("change", [exchange_an_operand, drop_a_property, drop])
@pytest.mark.parametrize("stage", RUN)
def test_a_module_that_is_wrong_is_refused(texts: dict[str, str], stage: str, change: Callable[..., bool]):
    """Every third op, changed by itself: what verification refuses is refused; what it lets through runs, or is told of."""
    refused = 0
    for number in range(1, sum(1 for _ in parse_module(texts[stage], "t.mlir").walk()), 3 if stage[0] == "l" else 1):
        module = parse_module(texts[stage], "t.mlir")
        ops = list(module.walk())
        if not change(ops[number], ops):
            continue
        told = sentence_of(lambda module=module: verify_module(module))
        said = sentence_of(lambda module=module: RUN[stage](module, "f", [A, A]))
        assert told in (None, said)
        refused += told is not None
    assert refused or (stage, change) == ("tensor_op", exchange_an_operand)


def test_a_module_that_is_changed_between_runs_is_verified_again(texts: dict[str, str]):
    module = parse_module(texts["tile"], "t.mlir")
    [result] = level2.run_module(module, "f", [A, A])
    assert np.array_equal(result, A @ A)
    store = next(op for op in module.walk() if op.name == "tile.store")
    store.operands[0], store.operands[1] = store.operands[1], store.operands[0]
    for _ in range(2):
        with pytest.raises(EmmyError, match=r"tile\.store"):
            level2.run_module(module, "f", [A, A])


@pytest.mark.parametrize("stage", ["lower-tile", "lower-transport"])
def test_a_pipeline_that_is_not_there(texts: dict[str, str], stage: str):
    module = parse_module(texts[stage], "t.mlir")
    next(op for op in module.walk() if op.name == "async_copy.pipeline").detach()
    with pytest.raises(EmmyError, match="the kernel has no pipeline @ab"):
        level3.run_module(module, "f", [A, A])
