"""Attention down to PTX, called on the emulator: memory orders, split keys, one query's heads as rows."""

import re

import numpy as np
import pytest

import emmy
from emmy.emulated_calls import run_on_emulator
from emmy.interpreters import level1
from emmy.ir import parse_module


def text(q, k, v, clauses, element="f16", schedule=""):
    """A function over tensors of these sizes ("?" for what comes with the call) with both results."""
    shapes = [tuple(size.split("x")) for size in (q, k, v)]
    tensors = [f"tensor<{'x'.join(s)}x{element}>" for s in shapes]
    rows = "x".join(shapes[0][:3])
    results = f"(tensor<{rows}x{shapes[2][3]}x{element}>, tensor<{rows}xf32>)"
    pinned = f" {{emmy.schedule = #tile.schedule<{schedule}>}}" if schedule else ""
    return f"""func.func @f(%q: {tensors[0]}, %k: {tensors[1]}, %v: {tensors[2]}) -> {results} {{
      %o, %l = tensor_op.attention %q, %k, %v {clauses}{pinned} : ({", ".join(tensors)}) -> {results}
      func.return %o, %l : {results[1:-1]}
    }}"""


def order(array, axes):
    """The array, lying in memory in another order of its axes."""
    return np.ascontiguousarray(array.transpose(axes)).transpose(np.argsort(axes))


def check(source, arrays, target="sm_90a", **how):
    """Every result is near the float64 meaning."""
    module = emmy.compile(source, target)
    results, _ = run_on_emulator(module.portable_artefact, "f", arrays, **how)
    exact = level1.run(parse_module(source, "t.mlir"), "f", arrays)
    np.testing.assert_allclose(results[0].astype(float), exact[0], rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(results[1], exact[1], rtol=1e-5, atol=1e-5)


def draw(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float16)


@pytest.mark.parametrize("target", ["sm_89", "sm_90a"])
@pytest.mark.parametrize("axes", [(0, 2, 1, 3), (2, 0, 1, 3)])
def test_memory_orders(target, axes):
    """Batch, rows, heads, columns, as models have them; or rows outermost."""
    arrays = [order(draw(2, 4, 41, 32), axes), order(draw(2, 2, 73, 32), axes), order(draw(2, 2, 73, 32), axes)]
    assert not arrays[0].flags.c_contiguous
    check(text("?x4x?x32", "?x2x?x32", "?x2x?x32", "scale 0.2 causal"), arrays, target, landing="random", seed=1)


def test_rows_that_are_not_16_bytes():
    """An odd head dimension: copies of single elements."""
    arrays = [draw(1, 2, 40, 59), draw(1, 2, 50, 59), draw(1, 2, 50, 21)]
    check(text("1x2x40x59", "1x2x50x59", "1x2x50x21", "scale 0.2 window 20"), arrays)


@pytest.mark.parametrize("target", ["sm_89", "sm_90a", "sm_120a"])
@pytest.mark.parametrize("keys", [0, 1, 65, 500])
def test_one_query(target, keys):
    """Heads that share keys are rows; keys are split, some splits get none."""
    arrays = [draw(2, 6, 1, 64), draw(2, 2, keys, 64), draw(2, 2, keys, 64)]
    check(text("2x6x1x64", "2x2x?x64", "2x2x?x64", "scale 0.2 causal"), arrays, target, landing="random", seed=2)


@pytest.mark.parametrize(
    ("target", "clauses", "tokens", "heads"),
    [
        ("sm_89", "scale 0.2 causal", 2, 6),
        ("sm_90a", "scale 0.2", 3, 10),
        ("sm_90a", "scale -0.2 causal window 20", 4, 8),
        ("sm_89", "scale 0.2 window 9", 8, 4),
        ("sm_90a", "scale 0.2 causal", 8, 4),
    ],
)
def test_few_queries_of_heads_that_share_keys(target, clauses, tokens, heads):
    """Rows of one tile are those of all heads and tokens: each at its own key; fewer keys than tokens, none, many splits."""
    source = text(f"?x{heads}x{tokens}x32", "?x2x?x32", "?x2x?x48", clauses)
    assert "f_kernel_pack" in emmy.compile(source, target).portable_artefact.kernels
    for keys in (0, tokens - 1, 100):
        arrays = [draw(2, heads, tokens, 32), draw(2, 2, keys, 32), draw(2, 2, keys, 48)]
        check(source, arrays, target, landing="random", seed=6)


def test_few_queries_lie_anywhere():
    """Rows, heads, columns, as models have them; an odd head dimension; pages."""
    arrays = [order(draw(2, 4, 3, 59), (0, 2, 1, 3)), draw(2, 2, 90, 59), draw(2, 2, 90, 21)]
    check(text("2x4x3x59", "2x2x90x59", "2x2x90x21", "scale 0.2 causal"), arrays)
    table, counts = np.int32([[3, 1, 5, 0], [2, 8, 7, 6], [0, 0, 0, 0]]), np.int32([74, 128, 1])
    arrays = [order(draw(3, 8, 3, 64), (0, 2, 1, 3)), draw(9, 2, 32, 64), draw(9, 2, 32, 64), table, counts]
    source = ragged("?x8x3x64", "?x2x32x64", "?x2x32x64", "pages %x, %y", "tensor<?x?xi32>", "tensor<?xi32>")
    assert "f_kernel_pack" in emmy.compile(source, "sm_90a").portable_artefact.kernels
    check(source, arrays, landing="random", seed=7)


def test_one_query_of_a_cache():
    """Keys lie as batch, keys, heads, columns; queries in a larger tensor. Windows begin within a split."""
    cache = order(draw(2, 2, 300, 64), (0, 2, 1, 3))
    q = np.zeros((2, 6, 1, 128), np.float16)
    q[..., :64] = draw(2, 6, 1, 64)
    arrays = [q[..., :64], cache, order(cache[::-1], (0, 2, 1, 3))]
    check(text("2x6x1x64", "2x2x?x64", "2x2x?x64", "scale 0.2 window 150"), arrays)


def ragged(q, k, v, clause, first, second, clauses="scale 0.2 causal"):
    """The function of `text` with a clause of two more tensors."""
    source = text(q, k, v, f"{clauses} {clause}")
    source = source.replace(") -> (", f", %x: {first}, %y: {second}) -> (", 1)
    before, after = source.rsplit(") -> (", 1)
    return f"{before}, {first}, {second}) -> ({after}"


@pytest.mark.parametrize("target", ["sm_89", "sm_90a"])
@pytest.mark.parametrize("clauses", ["scale 0.2 causal", "scale 0.2", "scale -0.2 causal window 20"])
def test_packed_sequences(target, clauses):
    """Sequences without rows, without keys, with fewer keys than rows; what follows in memory does not matter."""
    starts, ends = np.int32([0, 7, 7, 40, 40, 61, 90]), np.int32([0, 20, 50, 50, 55, 170, 175])
    arrays = [draw(1, 4, 90, 32), draw(1, 2, 175, 32), draw(1, 2, 175, 48), starts, ends]
    source = ragged(
        "1x4x?x32", "1x2x?x32", "1x2x?x48", "lengths %x, %y rows 33", "tensor<?xi32>", "tensor<?xi32>", clauses
    )
    check(source, arrays, target, landing="random", seed=3)


def test_packed_sequences_as_models_have_them():
    """Rows, heads, columns; values of another sequence that are not finite do not leak."""
    q, k, v = (order(draw(1, h, 64, 32), (0, 2, 1, 3)) for h in (4, 2, 2))
    starts = np.int32([0, 10, 30, 64])
    source = ragged("1x4x?x32", "1x2x?x32", "1x2x?x32", "lengths %x, %y", "tensor<?xi32>", "tensor<?xi32>")
    check(source, [q, k, v, starts, starts])
    [clean, _], _ = run_on_emulator(emmy.compile(source, "sm_90a").portable_artefact, "f", [q, k, v, starts, starts])
    k[:, :, 10:30], v[:, :, 10:30] = np.nan, np.inf
    [spoilt, _], _ = run_on_emulator(emmy.compile(source, "sm_90a").portable_artefact, "f", [q, k, v, starts, starts])
    np.testing.assert_array_equal(spoilt[:, :, :10], clean[:, :, :10])
    np.testing.assert_array_equal(spoilt[:, :, 30:], clean[:, :, 30:])


@pytest.mark.parametrize("target", ["sm_89", "sm_90a"])
@pytest.mark.parametrize("rows", [1, 3])
def test_pages(target, rows):
    """A batch without keys, one that fills its pages, one that does not; the rest of a page is not finite."""
    k, v = draw(9, 2, 32, 64), draw(9, 2, 32, 64)
    k[5, :, 10:], v[5, :, 10:], v[4], k[0] = np.nan, np.inf, np.nan, np.nan
    table, counts = np.int32([[3, 1, 5, 0], [2, 8, 7, 6], [0, 0, 0, 0]]), np.int32([74, 128, 0])
    arrays = [draw(3, 8, rows, 64), k, v, table, counts]
    source = ragged(f"?x8x{rows}x64", "?x2x32x64", "?x2x32x64", "pages %x, %y", "tensor<?x?xi32>", "tensor<?xi32>")
    check(source, arrays, target, landing="random", seed=4)


@pytest.mark.parametrize("splits", [1, 3])
def test_split_keys_of_many_rows(splits):
    """A pinned schedule splits any number of rows: splits without a visible block count for nothing."""
    schedule = f"block = [32, 16, 32], warps = [2, 1], stages = 2, splits = {splits}"
    arrays = [draw(1, 2, 70, 32), draw(1, 1, 90, 32), draw(1, 1, 90, 48)]
    check(text("1x2x70x32", "1x1x90x32", "1x1x90x48", "scale 0.2 causal", schedule=schedule), arrays)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("heads", "width"), [(2, 16), (6, 40), (4, 100)])
def test_more_splits_than_are_combined_at_once(target, heads, width):
    """70 splits, whose sums are weighed some at a time; rows of any size lie in one row of the workspace."""
    schedule = "block = [16, 16, 16], warps = [1, 1], stages = 2, splits = 32"
    arrays = [draw(1, heads, 1, 16), draw(1, 1, 1119, 16), draw(1, 1, 1119, width)]
    source = text(f"1x{heads}x1x16", "1x1x?x16", f"1x1x?x{width}", "scale 0.5", schedule=schedule)
    check(source, arrays, target, landing="random", seed=5)
    alone = source.replace("%o, %l =", "%o =").replace("func.return %o, %l", "func.return %o")
    alone = re.sub(r"\((tensor<[^>]*>), tensor<1x\d+x1xf32>\)", r"\1", alone)
    alone = re.sub(r"(: tensor<[^>]*>), tensor<1x\d+x1xf32>", r"\1", alone)
    [result], _ = run_on_emulator(emmy.compile(alone, target).portable_artefact, "f", arrays)
    exact = level1.run(parse_module(source, "t.mlir"), "f", arrays)
    np.testing.assert_allclose(result.astype(float), exact[0], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("splits", [0, 2])
@pytest.mark.parametrize("axes", [(0, 2, 1, 3), (0, 1, 3, 2)])
def test_results_of_the_caller_lie_anywhere(axes, splits):
    """`out` as models want it, or with gaps between all elements; of split keys, the combining kernel writes it."""
    arrays = [draw(2, 4, 33, 32), draw(2, 2, 50, 32), draw(2, 2, 50, 32)]
    source = text("2x4x?x32", "2x2x?x32", "2x2x?x32", "scale 0.2 causal", schedule=schedule_of_splits(splits))
    outs = [order(np.zeros((2, 4, 33, 32), np.float16), axes), np.zeros((2, 4, 33, 3), np.float32)[..., 1]]
    check(source, arrays, "sm_89", outs=outs)


def test_the_result_of_one_query_begins_anywhere():
    memory = np.zeros(2 * 6 * 64 + 1, np.float16)
    outs = [memory[1:].reshape(2, 6, 1, 64), np.zeros((2, 6, 1), np.float32)]
    arrays = [draw(2, 6, 1, 64), draw(2, 2, 70, 64), draw(2, 2, 70, 64)]
    check(text("2x6x1x64", "2x2x?x64", "2x2x?x64", "scale 0.2 causal"), arrays, outs=outs)
    assert memory[0] == 0


def schedule_of_splits(splits):
    return f"block = [32, 16, 32], warps = [2, 1], stages = 2, splits = {splits}"
