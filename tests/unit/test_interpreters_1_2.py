"""The interpreters of levels 1 and 2 on cases worked out by hand, and their errors."""

import ml_dtypes
import numpy as np
import pytest

from emmy.dialects.tensor_op import AccumulateAttr
from emmy.errors import EmmyError
from emmy.interpreters import level1, level2
from emmy.interpreters.contraction import contract, to_f32
from emmy.ir import parse_module, verify_module


def module_of(text):
    module = parse_module(text, "t.mlir")
    verify_module(module)
    return module


# ---- policies --------------------------------------------------------------------------------------------------------


def test_to_f32_of_every_f16_and_bf16():
    bits = np.arange(2**16, dtype=np.uint16)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        values = bits.view(dtype)
        np.testing.assert_array_equal(to_f32(values), values.astype(np.float32))


def test_f16_sums_round_after_each_k_step():
    """2048 + 1 is not an f16: sixteen ones in a step count, one in each of sixteen steps does not."""
    ones = np.ones((1, 16), np.float32)
    steps = np.zeros((1, 256), np.float32)
    steps[:, ::16] = 1
    start = np.full((1, 1), 2048, np.float16)
    policy = AccumulateAttr.get("f16")
    assert contract(start, ones, np.ones((16, 1), np.float32), policy)[0, 0] == 2064
    assert contract(start, steps, np.ones((256, 1), np.float32), policy)[0, 0] == 2048


def test_hybrid_promotes_after_max_k_elements():
    """Each run of 64 sums to 2048 + 3 * 1 in f16 (2048); each run of 16 keeps its own."""
    a = np.tile(np.repeat(np.float32([128, 0.0625, 0.0625, 0.0625]), 16), 2)[None]
    b = np.ones((128, 1), np.float32)
    zero = np.zeros((1, 1), np.float32)
    assert contract(zero, a, b, AccumulateAttr.get("hybrid", 64))[0, 0] == 2 * 2048
    assert contract(zero, a, b, AccumulateAttr.get("hybrid", 16))[0, 0] == 2 * 2051
    assert contract(zero, a, b, AccumulateAttr.get("f32"))[0, 0] == 2 * 2051


# ---- level 1 ---------------------------------------------------------------------------------------------------------

LEVEL1 = """func.func @f(%a: tensor<?x?xf16>, %b: tensor<?x4xf16>, %r: tensor<?xf32>) -> tensor<?x4xf16> {
  %y = tensor_op.matmul %a, %b : (tensor<?x?xf16>, tensor<?x4xf16>) -> tensor<?x4xf16>
  func.return %y : tensor<?x4xf16>
}
func.func @g(%a: tensor<?xf32>, %b: tensor<?xf32>) -> tensor<3x?xf32> {
  %y = tensor_op.map add %a, %b : (tensor<?xf32>, tensor<?xf32>) -> tensor<3x?xf32>
  func.return %y : tensor<3x?xf32>
}
func.func @foreign(%a: tensor<?xf32>) -> tensor<?xf32> {
  %c = arith.constant 1 : index
  func.return %a : tensor<?xf32>
}
"""


def test_float64_rounds_nothing():
    a, b = np.float16([[0.1, 0.2]]), np.float16([[1, 2, 3, 4], [5, 6, 7, 8]])
    [exact] = level1.run(module_of(LEVEL1), "f", [a, b, np.zeros(1, np.float32)])
    assert exact.dtype == np.float64
    np.testing.assert_array_equal(exact, a.astype(np.float64) @ b.astype(np.float64))
    [rounded] = level1.run(module_of(LEVEL1), "f", [a, b, np.zeros(1, np.float32)], "policy")
    np.testing.assert_array_equal(rounded, exact.astype(np.float16))


def test_a_map_may_broadcast_to_new_dimensions():
    a = np.float32([1, 2])
    np.testing.assert_array_equal(level1.run(module_of(LEVEL1), "g", [a, a])[0], np.tile([2.0, 4.0], (3, 1)))


@pytest.mark.parametrize(
    ("entry", "shapes", "dtype", "sentence"),
    [
        ("f", [(2, 3), (4, 4), (1,)], np.float16, "argument 2 of @f is tensor<?xf32>, got float16 of shape (1,)"),
        ("f", [(2, 3), (4, 5)], np.float16, "@f takes 3 array(s), got 2"),
        ("h", [], np.float16, "the module has no function @h"),
        ("g", [(2,), (3,)], np.float32, "map of shapes (2,), (3,): the `?` sizes do not agree"),
        ("g", [(2, 2), (2,)], np.float32, "argument 0 of @g is tensor<?xf32>, got float32 of shape (2, 2)"),
        ("foreign", [(2,)], np.float32, "level 1 knows no op 'arith.constant'"),
    ],
)
def test_level1_errors(entry, shapes, dtype, sentence):
    with pytest.raises(EmmyError) as caught:
        level1.run(module_of(LEVEL1), entry, [np.zeros(s, dtype) for s in shapes])
    assert sentence in caught.value.message


def test_level1_wants_equal_contractions():
    arrays = [np.zeros((2, 3), np.float16), np.zeros((4, 4), np.float16), np.zeros(1, np.float32)]
    with pytest.raises(EmmyError, match="matmul of shapes") as caught:
        level1.run(module_of(LEVEL1), "f", arrays)
    assert caught.value.location.line == 2


def test_level1_modes():
    with pytest.raises(EmmyError, match="mode is one of float64, policy, got 'f64'"):
        level1.run(module_of(LEVEL1), "f", [], "f64")  # pyright: ignore


# ---- level 2 ---------------------------------------------------------------------------------------------------------

LEVEL2 = """func.func @f(%a: tensor<?x6xf32>) -> (tensor<?x6xf32>, tensor<?x1xf32>) {{
  %n = tile.dim %a, 0 : tensor<?x6xf32>
  %c = tile.alloc [%n] : tensor<?x6xf32>
  %s = tile.alloc [%n] : tensor<?x1xf32>
  %ctas = arith.constant {ctas} : index
  tile.launch @k[%ctas] (%a, %c, %s) : tensor<?x6xf32>, tensor<?x6xf32>, tensor<?x1xf32>
  func.return %c, %s : tensor<?x6xf32>, tensor<?x1xf32>
}}
tile.kernel @k(%a: !tile.view<?x6xf32>, %c: !tile.view<?x6xf32>, %s: !tile.view<?x1xf32>) {{
  %zero = arith.constant 0 : index
  %four = arith.constant 4 : index
  %id = tile.cta_id
  %row = arith.muli %id, %four : index
  %x = tile.load %a[%row, %zero] : !tile.view<?x6xf32> -> !tile.tile<4x8xf32>
  {body}
}}
"""


def run_level2(body, array, ctas):
    return level2.run_module(module_of(LEVEL2.format(body=body, ctas=ctas)), "f", [array])


def test_edges_reductions_coordinates_and_branches():
    body = """
  %m = tile.reduce max %x axis 1 : !tile.tile<4x8xf32> -> !tile.tile<4x1xf32>
  %i = tile.coord 1 from %row : !tile.tile<1x8xi32>
  %y = tile.map sub %x, %m : (!tile.tile<4x8xf32>, !tile.tile<4x1xf32>) -> !tile.tile<4x8xf32>
  %one = arith.constant 1 : index
  %first = arith.cmpi ult, %id, %one : index
  %z = scf.if %first -> (!tile.tile<4x8xf32>) {
    scf.yield %y : !tile.tile<4x8xf32>
  } else {
    %seven = arith.constant 7 : index
    %left = tile.map lt %i, %seven : (!tile.tile<1x8xi32>, index) -> !tile.tile<1x8xi1>
    %w = tile.map select %left, %y, %x : (!tile.tile<1x8xi1>, !tile.tile<4x8xf32>, !tile.tile<4x8xf32>) -> !tile.tile<4x8xf32>
    scf.yield %w : !tile.tile<4x8xf32>
  }
  scf.if %first {
    tile.store %m, %s[%row, %zero] : !tile.tile<4x1xf32>, !tile.view<?x1xf32>
  }
  tile.store %z, %c[%row, %zero] : !tile.tile<4x8xf32>, !tile.view<?x6xf32>"""
    array = np.arange(1, 43, dtype=np.float32).reshape(7, 6)
    full, maxima = run_level2(body, array, ctas=2)
    shifted = array - array.max(axis=1, keepdims=True)
    np.testing.assert_array_equal(full[:4], shifted[:4])
    np.testing.assert_array_equal(full[4:], np.where(np.arange(4, 10) < 7, shifted[4:], array[4:]))
    np.testing.assert_array_equal(maxima[:4], array[:4].max(axis=1, keepdims=True))
    assert np.all(np.isnan(maxima[4:]))


def test_sums_and_scalars():
    body = """
  %half = arith.constant 0.5 : f32
  %h = tile.map mul %x, %half : (!tile.tile<4x8xf32>, f32) -> !tile.tile<4x8xf32>
  %m = tile.reduce sum %h axis 1 : !tile.tile<4x8xf32> -> !tile.tile<4x1xf32>
  tile.store %m, %s[%row, %zero] : !tile.tile<4x1xf32>, !tile.view<?x1xf32>"""
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    full, sums = run_level2(body, array, ctas=1)
    np.testing.assert_array_equal(sums, array.sum(axis=1, keepdims=True) / 2)
    assert np.all(np.isnan(full))


def test_offsets_beyond_or_before_a_view():
    body = """
  %far = arith.subi %zero, %four : index
  %y = tile.load %a[%far, %four] : !tile.view<?x6xf32> -> !tile.tile<8x4xf32>
  tile.store %y, %c[%far, %zero] : !tile.tile<8x4xf32>, !tile.view<?x6xf32>"""
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    full, _ = run_level2(body, array, ctas=1)
    np.testing.assert_array_equal(full[:, :2], array[:, 4:])
    assert not np.any(full[:, 2:4])
    assert np.all(np.isnan(full[:, 4:]))


def test_a_loaded_tile_is_a_value():
    """Storing to where a tile was loaded from does not change the tile."""
    body = """
  %y = tile.map neg %x : (!tile.tile<4x8xf32>) -> !tile.tile<4x8xf32>
  tile.store %y, %a[%row, %zero] : !tile.tile<4x8xf32>, !tile.view<?x6xf32>
  tile.store %x, %c[%row, %zero] : !tile.tile<4x8xf32>, !tile.view<?x6xf32>"""
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    before = array.copy()
    full, _ = run_level2(body, array, ctas=1)
    np.testing.assert_array_equal(full, before)
    np.testing.assert_array_equal(array, -before)


def test_an_op_of_another_level_is_an_error_with_its_place():
    body = "%h = mma.warp 0 of [1, 1]"
    with pytest.raises(EmmyError, match=r"level 2 knows no op 'mma.warp'") as caught:
        run_level2(body, np.zeros((4, 6), np.float32), ctas=1)
    assert caught.value.location.line == 15


def test_views_must_fit_the_arrays():
    module = module_of(LEVEL2.format(body="", ctas=1))
    kernel = module.body.block.last_op
    with pytest.raises(EmmyError, match=r"the views of kernel @k do not fit float32 of shape \(4, 5\)"):
        level2.run_kernel(kernel, [np.zeros((4, 5), np.float32)], 1)


SLICES = """func.func @f(%a: tensor<?x4xf32>, %n: tensor<?xi32>) -> tensor<?x4xf32> {
  %s = tile.dim %a, 0 : tensor<?x4xf32>
  %c = tile.alloc [%s] : tensor<?x4xf32>
  %ends = tile.dim %n, 0 : tensor<?xi32>
  %one = arith.constant 1 : index
  %ctas = arith.subi %ends, %one : index
  tile.launch @k[%ctas] (%a, %n, %c) : tensor<?x4xf32>, tensor<?xi32>, tensor<?x4xf32>
  func.return %c : tensor<?x4xf32>
}
tile.kernel @k(%a: !tile.view<?x4xf32>, %n: !tile.view<?xi32>, %c: !tile.view<?x4xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %id = tile.cta_id
  %next = arith.addi %id, %c1 : index
  %first = tile.read %n[%id] : !tile.view<?xi32>
  %end = tile.read %n[%next] : !tile.view<?xi32>
  %rows = arith.subi %end, %first : index
  %part = tile.slice %a[%first, %c0] [%rows] : !tile.view<?x4xf32> -> !tile.view<?x4xf32, strides [4, 1]>
  %to = tile.slice %c[%first, %c0] [%rows] : !tile.view<?x4xf32> -> !tile.view<?x4xf32, strides [4, 1]>
  %x = tile.load %part[%c0, %c0] : !tile.view<?x4xf32, strides [4, 1]> -> !tile.tile<8x4xf32>
  %m = tile.reduce max %x axis 0 : !tile.tile<8x4xf32> -> !tile.tile<1x4xf32>
  %y = tile.map sub %x, %m : (!tile.tile<8x4xf32>, !tile.tile<1x4xf32>) -> !tile.tile<8x4xf32>
  tile.store %y, %to[%c0, %c0] : !tile.tile<8x4xf32>, !tile.view<?x4xf32, strides [4, 1]>
}
"""


def test_slices_end_where_they_say():
    """Loads beyond give zeros, which show in the maxima; stores beyond are dropped."""
    array = -np.arange(1, 37, dtype=np.float32).reshape(9, 4)
    [result] = level2.run_module(module_of(SLICES), "f", [array, np.int32([1, 4, 4, 8])])
    assert np.all(np.isnan(result[[0, 8]]))
    np.testing.assert_array_equal(result[1:8], array[1:8])


@pytest.mark.parametrize(
    ("ends", "sentence"),
    [
        ([0, 10], "a slice of sizes [10, 4] at [0, 0] leaves a view of sizes [9, 4]"),
        ([5, 3], "a slice of sizes [-2, 4] at [5, 0]"),
    ],
)
def test_slices_lie_within_their_view(ends, sentence):
    with pytest.raises(EmmyError) as caught:
        level2.run_module(module_of(SLICES), "f", [np.zeros((9, 4), np.float32), np.int32(ends)])
    assert sentence in caught.value.message


def test_reads_lie_within_their_view():
    text = SLICES.replace("tile.read %n[%next]", "tile.read %n[%far]").replace(
        "%next = arith.addi", "%far = arith.constant 7 : index\n  %next = arith.addi"
    )
    with pytest.raises(EmmyError, match=r"tile.read of element \[7\] of a view of sizes \[2\]"):
        level2.run_module(module_of(text), "f", [np.zeros((9, 4), np.float32), np.int32([0, 9])])
