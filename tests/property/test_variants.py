"""Tensors that lie anyhow: whatever variant a call takes, it computes the product, and touches nothing but its result."""

from __future__ import annotations

import functools
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import emmy
from emmy.compiler import CompiledModule
from emmy.emulated_calls import numpy_info
from emmy.variants import VARIANTS

DTYPES = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}


@functools.cache
def product(
    target: str, dtype: str, batch: int, transpose_a: bool, transpose_b: bool, epilogue: bool
) -> CompiledModule:
    """`mm(a, b)`, with every size `?`, or `mm(a, b, bias)`: relu(A * B + bias) with a bias of one row."""
    kind = f"tensor<{'?x' * (batch + 2)}{dtype}>"
    flags = f"{' transpose_a' if transpose_a else ''}{' transpose_b' if transpose_b else ''}"
    row = f"tensor<?x{dtype}>"
    bias, more = (f", %bias: {row}", "") if epilogue else ("", "")
    if epilogue:
        more = (
            f"  %d = tensor_op.map add %c, %bias : ({kind}, {row}) -> {kind}\n"
            f"  %e = tensor_op.map relu %d : ({kind}) -> {kind}\n"
        )
    text = (
        f"func.func @mm(%a: {kind}, %b: {kind}{bias}) -> {kind} {{\n"
        f"  %c = tensor_op.matmul %a, %b{flags} : ({kind}, {kind}) -> {kind}\n"
        f"{more}  func.return {'%e' if epilogue else '%c'} : {kind}\n}}\n"
    )
    return emmy.compile(text, target)


def lay(draw: st.DrawFn, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator, out: bool = False):
    """An array of small integers of some layout, and its memory, in which all else is NaN."""
    order = draw(
        st.sampled_from([tuple(range(len(shape))), (*range(len(shape) - 2), -1 % len(shape), -2 % len(shape))])
    )
    order = order if len(shape) > 1 else (0,)
    inner = draw(st.sampled_from([1, 1, 1, 2]))
    strides, step = [0] * len(shape), inner
    for axis in reversed(order):
        strides[axis] = step
        step = step * max(shape[axis], 1) + draw(st.sampled_from([0, 0, 1, 2, 4, 8]))
    if not out and len(shape) > 1 and draw(st.integers(0, 7)) == 0:
        strides[draw(st.integers(0, len(shape) - 1))] = 0
    offset = draw(st.sampled_from([0, 0, 0, 1, 2, 4, 8]))
    span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if math.prod(shape) else 0
    memory = np.full(span + offset + 16, np.nan, dtype)
    size = dtype.itemsize
    start = -(memory.ctypes.data // size) % (16 // size) + offset
    array: np.ndarray = np.ndarray(
        shape, dtype, memory.view(np.uint8).data, size * start, [size * stride for stride in strides]
    )
    if not out:
        array[...] = rng.integers(-2, 3, shape)
    return array, memory


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_products_of_tensors_that_lie_anyhow(data: st.DataObject):
    draw = data.draw
    target = draw(st.sampled_from(["sm_80", "sm_90a", "sm_120a"]))
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    batch = draw(st.sampled_from([(), (), (2,), (3,)]))
    transpose_a, transpose_b, epilogue = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    size = st.one_of(st.integers(0, 9), st.integers(10, 140), st.sampled_from([16, 64, 128]))
    m, n, k = draw(size), draw(size), draw(size)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    a, _ = lay(draw, (*batch, k, m) if transpose_a else (*batch, m, k), DTYPES[dtype], rng)
    b, _ = lay(draw, (*batch, n, k) if transpose_b else (*batch, k, n), DTYPES[dtype], rng)
    args = [a, b] + ([lay(draw, (n,), DTYPES[dtype], rng)[0]] if epilogue else [])
    module = product(target, dtype, len(batch), transpose_a, transpose_b, epilogue)
    wide = [array.astype(np.float64) for array in args]
    expected = (wide[0].swapaxes(-1, -2) if transpose_a else wide[0]) @ (
        wide[1].swapaxes(-1, -2) if transpose_b else wide[1]
    )
    if epilogue:
        expected = np.maximum(expected.astype(DTYPES[dtype]).astype(np.float64) + wide[2], 0)
    expected = expected.astype(DTYPES[dtype])
    out, memory = lay(draw, (*batch, m, n), DTYPES[dtype], rng, out=True) if draw(st.booleans()) else (None, None)
    result = module.mm(*args, device="emulator", out=out)
    assert np.array_equal(result, expected)
    if out is not None:
        assert result is out
        out[...] = np.nan
        assert np.isnan(memory.astype(np.float32)).all(), "something beside the result was written"


ELEMENTWISE = """func.func @f(%x: tensor<?x?x?xf16>, %y: tensor<?x1xf32>, %z: tensor<?xf32>) -> tensor<?x?x?xf32> {
  %a = tensor_op.map add %x, %y : (tensor<?x?x?xf16>, tensor<?x1xf32>) -> tensor<?x?x?xf32>
  %b = tensor_op.map mul %a, %z : (tensor<?x?x?xf32>, tensor<?xf32>) -> tensor<?x?x?xf32>
  func.return %b : tensor<?x?x?xf32>
}
"""


@functools.cache
def elementwise(target: str) -> CompiledModule:
    return emmy.compile(ELEMENTWISE, target)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_elementwise_kernels_of_tensors_that_lie_anyhow(data: st.DataObject):
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    batch, m, n = draw(st.integers(0, 3)), draw(st.integers(0, 40)), draw(st.sampled_from([0, 1, 7, 8, 64, 100, 264]))
    x = lay(draw, (batch, m, n), np.dtype(np.float16), rng)[0]
    y = lay(draw, (m, 1), np.dtype(np.float32), rng)[0]
    z = lay(draw, (n,), np.dtype(np.float32), rng)[0]
    out = lay(draw, (batch, m, n), np.dtype(np.float32), rng, out=True)[0] if draw(st.booleans()) else None
    module = elementwise(draw(st.sampled_from(["sm_89", "sm_90a"])))
    result = module.f(x, y, z, device="emulator", out=out)
    assert np.array_equal(result, (x.astype(np.float32) + y) * z)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_call_takes_the_first_variant_that_fits(data: st.DataObject):
    draw = data.draw
    module = product("sm_90a", "f16", 0, False, True, False)
    rng = np.random.default_rng(0)
    m, n, k = (draw(st.integers(1, 40)) for _ in range(3))
    arrays = [lay(draw, shape, DTYPES["f16"], rng)[0] for shape in ((m, k), (n, k))]
    call = module.portable_artefact.bind("mm", [numpy_info(array, placed=True) for array in arrays])
    for launch in call.launches:
        names = [name.removeprefix("mm_kernel_") for name, _ in launch.passed_over]
        refused = list(dict.fromkeys(name if name in VARIANTS else "dense" for name in names))
        assert refused == [name for name in VARIANTS if name in refused]
        assert all(reason for _, reason in launch.passed_over)
        assert launch.kernel.startswith("mm_kernel")
        if all(array.flags.c_contiguous for array in arrays) and not any(size % 8 for size in (n, k)):
            aligned = all(array.ctypes.data % 16 == 0 for array in arrays)
            assert (launch.variant == "dense") == aligned


@pytest.mark.parametrize("wrong", [np.float32, np.int8])
def test_what_no_variant_takes(wrong: type):
    module = product("sm_90a", "f16", 0, False, True, False)
    with pytest.raises(emmy.EmmyError, match="has dtype"):
        module.mm(np.zeros((4, 4), wrong), np.zeros((4, 4), np.float16), device="emulator")
