"""Interpret(level 1) = interpret(level 2): exactly on small integers, within the policy's bound on normal data."""

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from levels_support import lower

from emmy.elementwise import ELEMENTWISE
from emmy.interpreters import level1, level2

DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}
UNIT = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24}  # unit roundoffs
SIZES = st.sampled_from([0, 1, 2, 7, 16, 17, 31, 64, 65, 100, 130])


def tensor(shape, dtype, dynamic=frozenset()):
    return f"tensor<{''.join('?x' if axis in dynamic else f'{axis_size}x' for axis, axis_size in shape)}{dtype}>"


@dataclass(frozen=True)
class Product:
    """One product: sizes, which of the named axes are `?` in the text, how operands are stored, types, policy, tile."""

    batch: tuple[int, ...]
    m: int
    n: int
    k: int
    dynamic: frozenset
    transpose_a: bool
    transpose_b: bool
    dtype: str
    result: str
    policy: str
    block: tuple[int, int, int]

    def axes(self, *names):
        sizes = {"m": self.m, "n": self.n, "k": self.k, "1": 1}
        return [(f"b{i}", size) for i, size in enumerate(self.batch)] + [(name, sizes[name]) for name in names]

    @property
    def a_axes(self):
        return self.axes("k", "m") if self.transpose_a else self.axes("m", "k")

    @property
    def b_axes(self):
        return self.axes("n", "k") if self.transpose_b else self.axes("k", "n")

    def text(self, tail="", parameters="", result="%y", result_type=None):
        a, b = (tensor(axes, self.dtype, self.dynamic) for axes in (self.a_axes, self.b_axes))
        c = tensor(self.axes("m", "n"), self.result, self.dynamic)
        flags = (" transpose_a" if self.transpose_a else "") + (" transpose_b" if self.transpose_b else "")
        schedule = f"#tile.schedule<block = {list(self.block)}, warps = [1, 1], stages = 2, raster = 3>"
        return f"""func.func @f(%a: {a}, %b: {b}{parameters}) -> {result_type or c} {{
          %y = tensor_op.matmul %a, %b{flags} accumulate<{self.policy}> {{emmy.schedule = {schedule}}} : ({a}, {b}) -> {c}
          {tail}
          func.return {result} : {result_type or c}
        }}"""

    def operands(self, rng, integers):
        shapes = [[size for _, size in axes] for axes in (self.a_axes, self.b_axes)]
        draw = (lambda s: rng.integers(-2, 3, s)) if integers else (lambda s: rng.standard_normal(s))
        return [np.asarray(draw(s)).astype(DTYPES[self.dtype]) for s in shapes]


@st.composite
def products(draw, policies=("f32", "f16", "hybrid, max_k = 32")):
    policy = draw(st.sampled_from(policies))
    dtype = draw(st.sampled_from(["f16", "bf16"] if policy == "f32" else ["f16"]))
    block = [draw(st.sampled_from([16, 32, 64])) for _ in range(3)]
    # Warps of 64 x 64 at most: 1 x 1 warps do for every block here.
    return Product(
        batch=tuple(draw(st.lists(st.integers(1, 3), max_size=2))),
        m=draw(SIZES),
        n=draw(SIZES),
        k=draw(SIZES),
        dynamic=frozenset(draw(st.sets(st.sampled_from(["m", "n", "k", "b0", "b1"])))),
        transpose_a=draw(st.booleans()),
        transpose_b=draw(st.booleans()),
        dtype=dtype,
        result=draw(st.sampled_from([dtype, "f32"])),
        policy=policy,
        block=tuple(block),
    )


@settings(max_examples=120, deadline=None)
@given(products(), st.integers(0, 2**32 - 1))
def test_products_of_small_integers_are_exact(product, seed):
    module, lowered = lower(product.text())
    operands = product.operands(np.random.default_rng(seed), integers=True)
    exact = level1.run(module, "f", operands)[0]
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32).astype(DTYPES[product.result])
    [policy], [tiles] = level1.run(module, "f", operands, "policy"), level2.run_module(lowered, "f", operands)
    assert policy.dtype == tiles.dtype == rounded.dtype
    np.testing.assert_array_equal(policy, rounded)
    np.testing.assert_array_equal(tiles, rounded)
    if product.k == 0:
        assert not np.any(tiles)


@settings(max_examples=60, deadline=None)
@given(products(), st.integers(0, 2**32 - 1))
def test_products_of_normals_are_within_the_bound(product, seed):
    """|error| <= (roundings of sums) x (unit roundoff of sums) x sum |a||b|, and one rounding of the result."""
    module, lowered = lower(product.text())
    a, b = operands = product.operands(np.random.default_rng(seed), integers=False)
    exact = level1.run(module, "f", operands)[0]
    magnitude = level1.run(module, "f", [abs(a), abs(b)])[0]
    # f32 sums round once for each element; f16 sums once for each k-step, with the product of a step in f32.
    bound = product.k * UNIT["f32"] * magnitude
    if product.policy != "f32":
        bound = bound + (product.k // 16 + 1) * UNIT["f16"] * magnitude
    bound = bound * 1.01 + UNIT[product.result] * 1.01 * (abs(exact) + bound) + 1e-7
    for run in (level1.run(module, "f", operands, "policy"), level2.run_module(lowered, "f", operands)):
        assert np.all(abs(run[0].astype(np.float64) - exact) <= bound)


@settings(max_examples=60, deadline=None)
@given(
    products(policies=("f32", "f16")),
    st.lists(st.sampled_from([name for name, function in ELEMENTWISE.items() if function.arity < 3]), max_size=3),
    st.sampled_from(["mn", "n", "1n", "m1"]),
    st.sampled_from(["f16", "bf16", "f32"]),
    st.integers(0, 2**32 - 1),
)
def test_epilogues(product, names, other, last, seed):
    """Chains of maps with a second tensor of the same shape, a row or a column, ending in a cast."""
    rng = np.random.default_rng(seed)
    other_axes = [(name, size) for name, size in product.axes(*other) if name in other or other == "mn"]
    type_, d = (
        tensor(product.axes("m", "n"), product.result, product.dynamic),
        tensor(other_axes, "f32", product.dynamic),
    )
    lines, value = [], "%y"
    for i, name in enumerate(names):
        operands = [(value, type_), ("%d", d)][: ELEMENTWISE[name].arity]
        types = ", ".join(t for _, t in operands)
        lines.append(f"%e{i} = tensor_op.map {name} {', '.join(v for v, _ in operands)} : ({types}) -> {type_}")
        value = f"%e{i}"
    result = tensor(product.axes("m", "n"), last, product.dynamic)
    lines.append(f"%z = tensor_op.cast {value} : {type_} to {result}")
    module, lowered = lower(product.text("\n".join(lines), f", %d: {d}", "%z", result))
    operands = product.operands(rng, integers=True)
    operands.append(rng.integers(-2, 3, [size for _, size in other_axes]).astype(np.float32))
    [policy], [tiles] = level1.run(module, "f", operands, "policy"), level2.run_module(lowered, "f", operands)
    assert policy.dtype == tiles.dtype == DTYPES[last]
    # Sums are exact, so both compute the same functions of the same numbers; NumPy's may differ in the last bit.
    tolerance = 4 * max(UNIT[last], UNIT[product.result])
    np.testing.assert_allclose(tiles.astype(np.float32), policy.astype(np.float32), rtol=tolerance, atol=1e-30)


EXACT = ["add", "sub", "max", "min", "neg", "abs", "relu"]


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_any_graph_of_products_and_maps(data):
    """However values are shared, returned and broadcast, every launch comes after those that it reads from."""
    m, n = 20, 40
    shapes = {"full": f"{m}x{n}", "row": f"{n}", "column": f"{m}x1"}
    parameters = {"%x": f"tensor<{m}x30xf16>", "%w": f"tensor<30x{n}xf16>"}
    parameters |= {f"%{name}": f"tensor<{shape}xf32>" for name, shape in shapes.items()}
    pool = {f"%{name}": name for name in shapes}
    lines = []
    for i in range(data.draw(st.integers(1, 10))):
        kind, name = data.draw(st.sampled_from(["matmul", *EXACT])), f"%v{i}"
        if kind == "matmul":
            pool[name] = "full"
            types = f"({parameters['%x']}, {parameters['%w']}) -> tensor<{shapes['full']}xf32>"
            lines.append(f"{name} = tensor_op.matmul %x, %w : {types}")
            continue
        args = [data.draw(st.sampled_from(sorted(pool))) for _ in range(ELEMENTWISE[kind].arity)]
        kinds = {pool[a] for a in args}
        pool[name] = kinds.pop() if len(kinds) == 1 else "full"
        types = ", ".join(f"tensor<{shapes[pool[a]]}xf32>" for a in args)
        lines.append(f"{name} = tensor_op.map {kind} {', '.join(args)} : ({types}) -> tensor<{shapes[pool[name]]}xf32>")
    made = [v for v in pool if v.startswith("%v")]
    returned = data.draw(st.lists(st.sampled_from(made), min_size=1, max_size=3))
    types = ", ".join(f"tensor<{shapes[pool[v]]}xf32>" for v in returned)
    head = ", ".join(f"{name}: {type_}" for name, type_ in parameters.items())
    body = "\n".join([*lines, f"func.return {', '.join(returned)} : {types}"])
    module, lowered = lower(f"func.func @f({head}) -> ({types}) {{\n{body}\n}}")
    rng = np.random.default_rng(len(lines))
    arrays = [rng.integers(-2, 3, s).astype(np.float16) for s in ((m, 30), (30, n))]
    arrays += [rng.integers(-2, 3, s).astype(np.float32) for s in ((m, n), (n,), (m, 1))]
    for expected, got in zip(level1.run(module, "f", arrays), level2.run_module(lowered, "f", arrays), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_a_product_of_a_product_and_a_result_that_is_returned_twice():
    types = "tensor<?x64xf16>, tensor<?x64xf32>, tensor<?x64xf16>"
    text = f"""func.func @f(%x: tensor<?x64xf16>, %w: tensor<64x64xf16>) -> ({types}) {{
      %y = tensor_op.matmul %x, %w transpose_b : (tensor<?x64xf16>, tensor<64x64xf16>) -> tensor<?x64xf16>
      %z = tensor_op.matmul %y, %w : (tensor<?x64xf16>, tensor<64x64xf16>) -> tensor<?x64xf32>
      func.return %y, %z, %y : {types}
    }}"""
    module, lowered = lower(text)
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-1, 2, s).astype(np.float16) for s in ((33, 64), (64, 64))]
    for expected, got in zip(level1.run(module, "f", arrays), level2.run_module(lowered, "f", arrays), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("policy", ["f16", "hybrid, max_k = 32"])
def test_overflow_of_f16_sums(policy):
    """Sums of f16 overflow where f32 ones do not, unless the policy asks to sum again."""
    schedule = "{emmy.schedule = #tile.schedule<block = [16, 16, 32], warps = [1, 1]>}"
    results = []
    for overflow in ("propagate", "redo"):
        text = f"""func.func @f(%x: tensor<16x64xf16>) -> tensor<16x16xf32> {{
          %y = tensor_op.matmul %x, %x transpose_b accumulate<{policy}, overflow = {overflow}> {schedule}
            : (tensor<16x64xf16>, tensor<16x64xf16>) -> tensor<16x16xf32>
          func.return %y : tensor<16x16xf32>
        }}"""
        results.append(level1.run(lower(text)[0], "f", [np.full((16, 64), 64, np.float16)], "policy")[0])
    assert np.all(np.isinf(results[0]))
    assert np.all(results[1] == 64 * 64 * 64)
