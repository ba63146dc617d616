"""Texts of lower levels, edited wrongly: a sentence with its place, never an error of the compiler's own."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest

import emmy

ATTENTION = """func.func @f(%q: tensor<1x2x?x32xf16>, %k: tensor<1x1x40x32xf16>) -> tensor<1x2x?x32xf16> {
  %o = tensor_op.attention %q, %k, %k scale 0.125 causal
    : (tensor<1x2x?x32xf16>, tensor<1x1x40x32xf16>, tensor<1x1x40x32xf16>) -> tensor<1x2x?x32xf16>
  func.return %o : tensor<1x2x?x32xf16>
}
"""


@functools.cache
def level(stage: str) -> str:
    schedule = {"block": [16, 32, 32], "warps": [1, 1], "stages": 2}
    return emmy.compile(ATTENTION, "sm_80", schedule=schedule).ir(stage)


def refused(text: str, sentence: str) -> None:
    with pytest.raises(emmy.EmmyError, match=sentence) as caught:
        assert emmy.compile(text, "sm_80").portable_artefact
    assert "internal error" not in str(caught.value)
    assert caught.value.location is not None


@pytest.mark.parametrize("stage", ["lower-tile", "lower-transport", "prefetch-fragments", "unroll-loops"])
def test_a_pipeline_that_is_gone(stage: str):
    text = re.sub(r"\n *async_copy.pipeline @q .*", "", level(stage))
    assert text != level(stage)
    refused(text, "@q")


@pytest.mark.parametrize("divisor", [0, -4])
def test_a_divisor_that_is_not_positive(divisor: int):
    """In the host function, and in the kernel."""
    for stage, of_host in (("lower-tile", True), ("split-masks", False)):
        text = level(stage)
        at = 0 if of_host else text.index("tile.kernel")
        wrong = rf"%wrong = arith.constant {divisor} : index\n\1 = arith.ceildivui \2, %wrong"
        edited, count = re.subn(r"(%\w+) = arith.ceildivui (%\w+), %\w+", wrong, text[at:], count=1)
        assert count
        refused(text[:at] + edited, f"ceildivui by {divisor}; divisors are positive")


@pytest.mark.parametrize("stage", ["lower-tensor-op", "lower-tile"])
def test_a_coordinate_of_a_third_axis(stage: str):
    text, count = re.subn(r"coord 0 from", "coord 2 from", level(stage), count=1)
    assert count
    refused(text, "axis")


def test_a_size_of_the_call_is_no_divisor_if_it_is_0():
    text, count = re.subn(r"(arith.ceildivui (%\w+), )%\w+", r"\1\2", level("lower-tile"), count=1)
    assert count
    module = emmy.compile(text, "sm_80")
    with pytest.raises(emmy.EmmyError, match="the launch divides 0 by a size that is 0"):
        module.f(np.ones((1, 2, 0, 32), np.float16), np.ones((1, 1, 40, 32), np.float16), device="emulator")


SIZES = """func.func @f(%a: tensor<?x?xf16>, %b: tensor<?x?xf16>, %c: tensor<?x?xf16>) -> tensor<?x?xf16> {
  %p = tensor_op.matmul %a, %b : (tensor<?x?xf16>, tensor<?x?xf16>) -> tensor<?x?xf16>
  %s = tensor_op.map add %p, %c : (tensor<?x?xf16>, tensor<?x?xf16>) -> tensor<?x?xf16>
  func.return %s : tensor<?x?xf16>
}
"""


@pytest.mark.parametrize("stage", ["input", "lower-tensor-op", "lower-tile", "allocate-shared", "ptx"])
def test_sizes_that_must_be_equal_are_compared_in_texts_of_every_level(stage: str):
    """What a kernel reads beyond a tensor's bounds is zero: without the comparison a wrong call would give wrong numbers."""
    options = {"schedule": {"block": [16, 32, 32], "warps": [1, 1], "stages": 2}}
    text = emmy.compile(SIZES, "sm_80", **options).ir(stage)
    module = emmy.compile(text, "sm_80", **(options if stage == "input" else {}))
    a, b, c = np.ones((16, 24), np.float16), np.ones((24, 32), np.float16), np.ones((16, 32), np.float16)
    assert np.array_equal(module.f(a, b, c, device="emulator"), np.full((16, 32), 25))
    for wrong, message in (
        ((a[:, :16].copy(), b, c), r"contracts sizes .* dimension 1 of 'a' and dimension 0 of 'b' \(it is 16\)"),
        ((a, b, c[:8].copy()), "elementwise operation has operands whose sizes must be equal: dimension 0 of 'c'"),
        ((a, b, np.ones((16, 24), np.float16)), "dimension 1 of 'c' and dimension 1 of 'b'"),
    ):
        with pytest.raises(emmy.EmmyError, match=message):
            module.f(*wrong, device="emulator")


def test_the_interpreters_compare_sizes_too():
    from emmy.interpreters import level2
    from emmy.ir import parse_module

    options = {"schedule": {"block": [16, 32, 32], "warps": [1, 1], "stages": 2}}
    text = parse_module(emmy.compile(SIZES, "sm_80", **options).ir("tile"), "t.mlir")
    with pytest.raises(emmy.EmmyError, match="the matmul contracts sizes"):
        level2.run_module(
            text, "f", [np.ones((16, 16), np.float16), np.ones((24, 32), np.float16), np.ones((16, 32), np.float16)]
        )


@pytest.mark.parametrize("kind", ["divui", "ceildivui", "remui"])
@pytest.mark.parametrize("stage", ["tile", "lower-tile"])
def test_the_interpreters_do_not_divide_by_0(kind: str, stage: str):
    """On the host or in a kernel, an error of one sentence says where."""
    from emmy.interpreters import level2, level3
    from emmy.ir import parse_module

    text = emmy.compile(SIZES, "sm_80", schedule={"block": [16, 32, 32], "warps": [1, 1], "stages": 2}).ir(stage)
    run = level2.run_module if stage == "tile" else level3.run_module
    arrays = [np.ones(shape, np.float16) for shape in ((16, 24), (24, 32), (16, 32))]
    divided = f"  %none = arith.constant 0 : index\n    %bad = arith.{kind} %none, %none : index\n  "
    for at in (text.index("  tile.launch"), text.index("  %", text.index("tile.kernel @"))):
        edited = text[:at] + divided + text[at:]
        with pytest.raises(emmy.EmmyError, match="by 0; divisors are positive") as found:
            run(parse_module(edited, "t.mlir"), "f", arrays)
        assert found.value.location is not None


def test_the_part_of_a_cta_of_a_cluster_exists():
    from emmy.interpreters import level3
    from emmy.ir import parse_module

    a, b, c = "tensor<16x64xf16>", "tensor<32x64xf16>", "tensor<16x32xf16>"
    text = (
        f"func.func @f(%a: {a}, %b: {b}) -> {c} {{\n  %c = tensor_op.matmul %a, %b transpose_b : ({a}, {b}) -> {c}\n"
        f"  func.return %c : {c}\n}}\n"
    )
    schedule = {"atom": "m16n8k16", "block": [16, 32, 32], "warps": [1, 1], "split_k": 2}
    edited, count = re.subn(
        r"(mma.part %\w+, )%\w+", r"\1%c32", emmy.compile(text, "sm_90a", schedule=schedule).ir("lower-tile")
    )
    assert count == 1
    with pytest.raises(emmy.EmmyError, match=r"there is no part 32 of 16 columns in a fragment of \(16, 32\)"):
        level3.run_module(
            parse_module(edited, "t.mlir"), "f", [np.ones((16, 64), np.float16), np.ones((32, 64), np.float16)]
        )
