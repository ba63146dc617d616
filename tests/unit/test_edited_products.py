"""Texts of level 3 of one product, edited wrongly: what the card would fault on, or lose in silence, is a sentence."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest

import emmy
from emmy.interpreters import level3
from emmy.ir import parse_module

PRODUCT = """func.func @f(%a: tensor<64x64xf16>, %b: tensor<32x64xf16>) -> tensor<64x32xf16> {
  %c = tensor_op.matmul %a, %b transpose_b : (tensor<64x64xf16>, tensor<32x64xf16>) -> tensor<64x32xf16>
  func.return %c : tensor<64x32xf16>
}
"""
WGMMA = {"atom": "wgmma", "block": [64, 32, 32], "warps": [4, 1], "stages": 2, "roles": "specialized", "fragments": 1}
MMA = {"atom": "m16n8k16", "block": [32, 32, 32], "warps": [2, 1], "stages": 2}


@functools.cache
def level(stage: str, wgmma: bool) -> str:
    return emmy.compile(PRODUCT, "sm_90a", schedule=WGMMA if wgmma else MMA, variants="dense").ir(stage)


EDITS = {
    "products without a fence": ("issue-products", True, r" *mma.fence\n", "", "mma.fence stands in the block before"),
    "products not committed": ("issue-products", True, r" *mma.commit\n", "", "mma.commit is missing"),
    "a wait for too few": ("issue-products", True, "mma.wait 0", "mma.wait 1", "leaves the group of its sum in flight, with 0"),
    "a column within 16 bytes": (
        "lower-tile", False, r'(%a\d = )(mma.load %\w+\["a"\] \[%\w+, )%c16',
        r"%odd = arith.constant 1 : index\n\1\2%odd", "column 1 is no",
    ),
    "a column past the end": (
        "lower-tile", False, r'(%a\d = )(mma.load %\w+\["a"\] \[%\w+, )%c16',
        r"%odd = arith.constant 24 : index\n\1\2%odd", r"16x16 elements at \[0, 24\] are not all in field 'a', which has 32x32",
    ),
    "a field filled twice": (
        "lower-tile", False, r"( *async_copy.copy %b.*\n)", r"\1\1", "'b' of this slot of pipeline @ab is filled twice",
    ),
    "no column of warps": (
        "lower-tile", False, r"mma.warp 0 of \[2, 1\]", "mma.warp 0 of [2, 0]", "at least 1 warp along each axis",
    ),
    "endless stages": ("lower-tile", False, "@ab stages 2", "@ab stages 2147483648", "1 to 1024 stages, got 2147483648"),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_what_is_refused(name: str):
    stage, wgmma, old, new, sentence = EDITS[name]
    text, count = re.subn(old, new, level(stage, wgmma), count=1)
    assert count
    with pytest.raises(emmy.EmmyError, match=sentence) as caught:
        assert emmy.compile(text, "sm_90a").portable_artefact
    assert caught.value.location is not None


def test_a_condition_whose_results_are_not_yielded():
    text = """tile.kernel @k() {
  %c = arith.constant true
  %x = arith.constant 1 : index
  %y = scf.if %c -> (index) {
    scf.yield %x : index
  } else {
  }
}
"""
    with pytest.raises(emmy.EmmyError, match=r"results are \(index\), and its else region yields \(\)") as caught:
        emmy.compile(text, "sm_90a")
    assert caught.value.location is not None
    assert caught.value.location.line == 4


def test_results_that_no_kernel_writes():
    text, count = re.subn(r" *tile.launch .*\n", "", level("lower-tile", False))
    assert count == 1
    a, b = np.ones((64, 64), np.float16), np.ones((32, 64), np.float16)
    assert emmy.compile(text, "sm_90a").f(a, b, device="emulator").shape == (64, 32)


def test_who_waits_for_several_barriers_may_deadlock():
    """The end of a role that shares an operand asks for each of its slots; the first was released, the second never is."""
    shared = emmy.compile(
        PRODUCT.replace("64x64xf16", "128x64xf16", 1).replace("(tensor<64x64", "(tensor<128x64").replace("64x32", "128x32"),
        "sm_90a",
        schedule={**WGMMA, "share": "b"},
        variants="dense",
    )  # fmt: skip
    consumer, producer = shared.ir("lower-transport").split('role "producer"')
    consumer, count = re.subn(r"(scf.for %k = %\w+ to )%\w+", r"\1%c32", consumer)
    assert count == 1
    form = parse_module(consumer + 'role "producer"' + producer, "t.mlir")
    with pytest.raises(emmy.EmmyError, match="deadlock"):
        level3.run_module(form, "f", [np.ones((128, 64), np.float16), np.ones((32, 64), np.float16)])


def test_an_offset_below_zero():
    text, count = re.subn(
        r"(async_copy.store .* -> %c\[)%m",
        r"%below = arith.subi %c0, %c32 : index\n\1%below",
        level("lower-tile", False),
    )
    assert count == 1
    with pytest.raises(emmy.EmmyError, match=r"a box begins at \[-32, 0\]: element offsets are not negative") as caught:
        level3.run_module(
            parse_module(text, "t.mlir"), "f", [np.ones((64, 64), np.float16), np.ones((32, 64), np.float16)]
        )
    assert caught.value.location is not None
