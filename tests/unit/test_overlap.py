"""Results that a caller gives must not share elements with arguments: they are refused on the emulator and on GPUs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import emmy
from emmy.binding import ArrayInfo
from emmy.errors import EmmyError
from emmy.overlap import apart_test, check_apart, span_bytes

MATMUL = """func.func @mm(%a: tensor<16x16xf16>, %b: tensor<16x16xf16>) -> tensor<16x16xf16> {
  %c = tensor_op.matmul %a, %b : (tensor<16x16xf16>, tensor<16x16xf16>) -> tensor<16x16xf16>
  func.return %c : tensor<16x16xf16>
}"""


@pytest.fixture(scope="module")
def mm():
    return emmy.compile(MATMUL, "sm_80").mm


def test_out_that_is_an_argument_is_refused(mm):
    a, b = np.ones((16, 16), np.float16), np.ones((16, 16), np.float16)
    with pytest.raises(EmmyError, match="out shares memory with argument 'a'; pass an array of its own"):
        mm(a, b, device="emulator", out=a)
    with pytest.raises(EmmyError, match="argument 'b'"):
        mm(a, b, device="emulator", out=[b])


def test_out_that_overlaps_in_part_is_refused(mm):
    memory = np.ones((20, 16), np.float16)
    with pytest.raises(EmmyError, match="argument 'b'"):
        mm(np.ones((16, 16), np.float16), memory[:16], device="emulator", out=memory[4:])


def test_out_that_is_read_only_is_refused(mm):
    """Its memory may be of an object that never changes, or of a file that is mapped without writing."""
    a, out = np.ones((16, 16), np.float16), np.frombuffer(bytes(512), np.float16).reshape(16, 16)
    with pytest.raises(EmmyError, match="out is read-only"):
        mm(a, a, device="emulator", out=out)
    assert not out.any()


def test_columns_beside_each_other_share_nothing(mm):
    """The ranges of memory overlap, the elements do not: parts of one buffer are fine."""
    memory = np.ones((16, 48), np.float16)
    out = memory[:, 32:]
    mm(memory[:, :16], memory[:, 16:32], device="emulator", out=out)
    np.testing.assert_array_equal(out, 16)
    np.testing.assert_array_equal(memory[:, :32], 1)


def test_arguments_may_be_the_same_array(mm):
    a = np.ones((16, 16), np.float16)
    np.testing.assert_array_equal(mm(a, a, device="emulator", out=np.empty_like(a)), 16)


def test_ranges_are_compared_for_each_pair():
    """Against the definition, for all places of three arrays in a small memory."""
    shapes = [((2, 2), None), ((3,), (2,)), ((0, 4), None)]
    infos = [ArrayInfo("f16", shape, strides) for shape, strides in shapes]
    assert [span_bytes(info) for info in infos] == [8, 10, 0]
    for order in itertools.permutations(range(3)):
        arrays = [infos[i] for i in order]
        test = apart_test(arrays, 2)
        for addresses in itertools.product(range(0, 24, 2), repeat=3):
            used = [
                set(range(at, at + span_bytes(info))) if span_bytes(info) else set()
                for at, info in zip(addresses, arrays, strict=True)
            ]
            apart = not (used[2] & (used[0] | used[1]))
            assert (test is None or test(addresses)) == apart


def test_elements_decide_where_ranges_meet():
    even, odd = (ArrayInfo("f16", (4,), (2,)) for _ in range(2))
    test = apart_test([even, odd], 1)
    assert test is not None
    assert not test([256, 258])
    check_apart([even, odd], [256, 258], ["a"])
    with pytest.raises(EmmyError, match="argument 'a'"):
        check_apart([even, odd], [256, 260], ["a"])
    with pytest.raises(EmmyError, match="another result"):
        check_apart([even, odd], [256, 260], [])


def test_calls_without_out_have_no_test():
    assert apart_test([ArrayInfo("f16", (4,))], 1) is None
