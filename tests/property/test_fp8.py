"""Products of 8-bit floats: for any pair of types, sizes, scales, promotion, schedule and target the interpreters of every level
and the emulator give the same bits on small integers."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import emmy
from emmy.artefact import Array, run_on_emulator
from emmy.errors import EmmyError
from emmy.interpreters import level1, level2, level3
from emmy.ir import make_context, parse_module, verify_module
from emmy.passes.split_accumulation import SplitAccumulation

DTYPES = {"f8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn), "f8E5M2": np.dtype(ml_dtypes.float8_e5m2)}
SCALES = {
    "": (),
    "tensor": ("1",),
    "matrix": ("1x1",),
    "rows": ("{m}x1",),
    "columns": ("1x{n}",),
    "both": ("{m}x1", "1x{n}"),
}
"""Which scales there are, as shapes."""


@dataclass(frozen=True)
class Product:
    """C = scale * A * B^T as level-1 text, and its arguments."""

    m: int
    n: int
    k: int
    a: str
    b: str
    result: str
    policy: str
    scales: str
    dynamic: bool
    batch: tuple[int, ...] = ()

    def text(self) -> str:
        """Scales are multiplied in f32 before the only rounding."""
        m, n, k = ("?",) * 3 if self.dynamic else (self.m, self.n, self.k)
        lead = "".join(f"{size}x" for size in self.batch)
        a, b = f"tensor<{lead}{m}x{k}x{self.a}>", f"tensor<{lead}{n}x{k}x{self.b}>"
        shapes = [f"tensor<{shape.format(m=m, n=n)}xf32>" for shape in SCALES[self.scales]]
        parameters = "".join(f", %s{i}: {shape}" for i, shape in enumerate(shapes))
        sums = f"tensor<{lead}{m}x{n}xf32>" if shapes else f"tensor<{lead}{m}x{n}x{self.result}>"
        lines = [f"%c0 = tensor_op.matmul %a, %b transpose_b accumulate<{self.policy}> : ({a}, {b}) -> {sums}"]
        for i, shape in enumerate(shapes):
            lines.append(f"%c{i + 1} = tensor_op.map mul %c{i}, %s{i} : ({sums}, {shape}) -> {sums}")
        last, result = f"%c{len(shapes)}", f"tensor<{lead}{m}x{n}x{self.result}>"
        if sums != result:
            lines.append(f"%r = tensor_op.cast {last} : {sums} to {result}")
            last = "%r"
        body = "\n".join(f"  {line}" for line in (*lines, f"func.return {last} : {result}"))
        return f"func.func @mm(%a: {a}, %b: {b}{parameters}) -> {result} {{\n{body}\n}}\n"

    def arguments(self, seed: int) -> list[Array]:
        """Small integers, and scales that are powers of two: every sum is exact."""
        chance = np.random.default_rng(seed)
        shapes = [(*self.batch, self.m, self.k), (*self.batch, self.n, self.k)]
        operands = [
            chance.integers(-2, 3, shape).astype(DTYPES[dtype])
            for shape, dtype in zip(shapes, (self.a, self.b), strict=True)
        ]
        scales = [
            np.exp2(chance.integers(-2, 3, [int(s) for s in shape.format(m=self.m, n=self.n).split("x")]))
            for shape in SCALES[self.scales]
        ]
        return [*operands, *(scale.astype(np.float32) for scale in scales)]


def check_levels(
    product: Product, module: emmy.CompiledModule, how: dict, arguments: list[Array] | None = None
) -> None:
    """All levels give the reference's bits."""
    arguments = arguments or product.arguments(how["seed"])
    (expected,) = level1.run(parse_module(product.text(), "input"), "mm", arguments, "policy")

    def check(level: str, results: list[Array]) -> None:
        assert results[0].dtype == expected.dtype, level
        wrong = np.count_nonzero(results[0].astype(np.float64) != expected.astype(np.float64))
        assert wrong == 0, f"{level}: {wrong} of {expected.size} wrong"

    check("level 2", level2.run_module(parse_module(module.ir("tile"), "tile"), "mm", arguments))
    for stage in ("split-accumulation", "issue-products", "level3"):
        check(stage, level3.run_module(parse_module(module.ir(stage), stage), "mm", arguments, **how))
    results, _ = run_on_emulator(module.portable_artefact, "mm", arguments, **how)
    check("PTX", results)


sizes = st.one_of(st.sampled_from((1, 8, 63, 64, 65)), st.integers(1, 150))
depths = st.one_of(st.sampled_from((0, 1, 16, 31, 32, 33, 128, 129)), st.integers(1, 300))


POLICIES = (
    *("f32", "hybrid, max_k = 32", "hybrid, max_k = 64", "hybrid, max_k = 256"),
    *("f16", *(f"hybrid, max_k = {most}, partial = f16" for most in (32, 64, 128, 256))),
)


@st.composite
def products(draw: st.DrawFn) -> Product:
    dynamic = draw(st.booleans())
    n, k = draw(sizes), draw(depths)
    if dynamic:  # rows of `?` tensors that the first variant takes are whole 16 bytes
        n, k = -(-n // 8) * 8, -(-k // 16) * 16
    return Product(
        m=draw(sizes),
        n=n,
        k=k,
        a=draw(st.sampled_from(sorted(DTYPES))),
        b=draw(st.sampled_from(sorted(DTYPES))),
        result=draw(st.sampled_from(("f16", "bf16", "f32"))),
        policy=draw(st.sampled_from(POLICIES)),
        scales=draw(st.sampled_from(sorted(SCALES))),
        dynamic=dynamic,
        batch=draw(st.sampled_from(((), (), (2,)))),
    )


TILES = (
    ((64, 64, 64), (2, 2)),
    ((32, 64, 32), (1, 2)),
    ((64, 32, 128), (2, 1)),
    ((96, 80, 96), (3, 1)),
)
"""(block, warps): several sizes that are no powers of two."""

SCHEDULES = st.one_of(
    st.just({}),
    st.builds(
        lambda tile, rest: {"block": tile[0], "warps": tile[1], "atom": "m16n8k32", **rest},
        st.sampled_from(TILES),
        st.fixed_dictionaries(
            {
                "stages": st.integers(1, 3),
                "fragments": st.sampled_from((1, 2)),
                "epilogue": st.sampled_from(("shared", "direct")),
                "transport": st.sampled_from(("auto", "cp_async", "plain")),
                "roles": st.sampled_from(("unified", "specialized")),
                "partials": st.sampled_from(("auto", "slices", "steps")),
                "promotion": st.sampled_from(("auto", "convert", "identity")),
            }
        ),
    ),
)
RUNS = st.fixed_dictionaries(
    {
        "landing": st.sampled_from(("late", "early", "random")),
        "order": st.sampled_from(("fixed", "reversed", "random")),
        "seed": st.integers(0, 1000),
    }
)


@settings(max_examples=20, phases=(Phase.explicit, Phase.generate))
@given(product=products(), schedule=SCHEDULES, target=st.sampled_from(("sm_89", "sm_90a", "sm_120a")), how=RUNS)
def test_every_level_gives_the_same_bits(product: Product, schedule: dict, target: str, how: dict):
    if not product.policy.startswith("hybrid"):
        schedule = {name: value for name, value in schedule.items() if name not in ("partials", "promotion")}
    check_levels(product, emmy.compile(product.text(), target, schedule=schedule), how)


@settings(max_examples=20, phases=(Phase.explicit, Phase.generate))
@given(product=products(), columns=st.sampled_from((16, 48, 64, 160)), depth=st.sampled_from((32, 64, 128)), how=RUNS)
def test_products_of_warpgroups(product: Product, columns: int, depth: int, how: dict):
    """`wgmma`: rows are whole 16 bytes, as TMA wants them."""
    given_ = {name: getattr(product, name) for name in product.__dataclass_fields__}
    product = Product(**{**given_, "k": -(-product.k // 16) * 16, "n": -(-product.n // 4) * 4})
    schedule = {"atom": "wgmma", "block": (64, columns, depth), "warps": (4, 1), "stages": 2, "fragments": 1}
    module = emmy.compile(product.text(), "sm_90a", schedule=schedule)
    assert "wgmma.mma_async" in module.ptx or product.k == 0
    check_levels(product, module, how)


@pytest.mark.parametrize("atom", ["wgmma", "m16n8k32"])
@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_code_is_decoded_exactly(dtype: str, atom: str):
    """One code in each row, times 1: subnormals, infinities and NaN too."""
    product = Product(256, 32, 32, dtype, "f8E4M3FN", "f32", "f32", "", False)
    warps, rows = ((4, 1), 64) if atom == "wgmma" else ((2, 1), 32)
    schedule = {"atom": atom, "block": (rows, 32, 32), "warps": warps, "stages": 1}
    a, b = np.zeros((256, 32), DTYPES[dtype]), np.zeros((32, 32), DTYPES["f8E4M3FN"])
    a[:, 5] = np.arange(256, dtype=np.uint8).view(DTYPES[dtype])
    b[7, 5] = 1
    module = emmy.compile(product.text(), "sm_90a", schedule=schedule)
    (result,), _ = run_on_emulator(module.portable_artefact, "mm", [a, b])
    assert np.array_equal(result[:, 7], a[:, 5].astype(np.float32), equal_nan=True)


@pytest.mark.parametrize("lie", ["rows apart", "columns", "odd address"])
def test_operands_may_lie_anywhere(lie: str):
    """Whatever `dense` does not take: other row strides, columns without gaps, addresses at single bytes."""
    product = Product(40, 72, 96, "f8E4M3FN", "f8E5M2", "f16", "f32", "", False)
    a, b = product.arguments(3)

    def placed(array: Array) -> Array:
        rows, columns = array.shape
        if lie == "columns":
            return np.asfortranarray(array)
        memory = np.zeros(rows * 128 + 1, array.dtype)[1 if lie == "odd address" else 0 :]
        view = memory[: rows * 128].reshape(rows, 128)[:, :columns]
        view[:] = array
        return view

    (expected,) = level1.run(parse_module(product.text(), "input"), "mm", [a, b], "policy")
    module = emmy.compile(product.text(), "sm_90a")
    (result,), _ = run_on_emulator(module.portable_artefact, "mm", [placed(a), placed(b)])
    assert np.array_equal(result, expected)


def promotions(module: emmy.CompiledModule) -> int:
    return module.ir("split-accumulation").count("mma.promote")


@pytest.mark.parametrize("max_k", [32, 64, 128, 256])
@pytest.mark.parametrize("target", ["sm_89", "sm_90a"])
def test_partial_sums_are_promoted_as_often_as_the_policy_wants(target: str, max_k: int):
    """A body of 128 elements ends every partial sum that is not carried; warpgroups promote whole accumulators."""
    product = Product(128, 64, 512, "f8E4M3FN", "f8E4M3FN", "f32", f"hybrid, max_k = {max_k}", "", False)
    atom = {"atom": "wgmma", "warps": (4, 1)} if target == "sm_90a" else {"atom": "m16n8k32", "warps": (2, 2)}
    schedule = {"block": (64, 64, 128), "stages": 2, "partials": "slices", **atom}
    module = emmy.compile(product.text(), target, schedule=schedule)
    slices = 1 if target == "sm_90a" else 2
    assert promotions(module) == slices * max(128 // max_k, 1)
    a, b = product.arguments(1)
    (result,), _ = run_on_emulator(module.portable_artefact, "mm", [a, b])
    assert np.array_equal(result, a.astype(np.float32) @ b.astype(np.float32).T)


def test_partial_sums_may_be_carried_through_the_loop():
    """Of 256 elements in a body of 128: promoted every second time, and behind the loop."""
    product = Product(64, 64, 640, "f8E4M3FN", "f8E5M2", "f32", "hybrid, max_k = 256", "both", False)
    schedule = {"atom": "wgmma", "block": (64, 64, 128), "warps": (4, 1), "stages": 2, "fragments": 1}
    module = emmy.compile(product.text(), "sm_90a", schedule=schedule)
    text = module.ir("split-accumulation")
    assert (text.count("mma.promote"), text.count("scf.if")) == (2, 1)
    check_levels(product, module, {"landing": "random", "order": "random", "seed": 1})


def test_split_accumulation_alone_keeps_what_it_means():
    """The pass on the text before it: the same bits from the level-3 interpreter."""
    product = Product(70, 90, 250, "f8E5M2", "f8E4M3FN", "f32", "hybrid, max_k = 96", "", False)
    schedule = {"block": (64, 64, 96), "warps": (2, 1), "atom": "m16n8k32", "stages": 2}
    module = parse_module(emmy.compile(product.text(), "sm_89", schedule=schedule).ir("lower-tile"), "before")
    arguments = product.arguments(5)
    (before,) = level3.run_module(module, "mm", arguments, landing="late", order="fixed", seed=0)
    SplitAccumulation().apply(make_context(), module)
    verify_module(module)
    (after,) = level3.run_module(module, "mm", arguments, landing="late", order="fixed", seed=0)
    assert np.array_equal(before, after)


ROUNDED = {
    "mma.sync": ("sm_89", {"atom": "m16n8k32", "block": (32, 64, 64), "warps": (1, 2), "stages": 2}),
    "by TMA": (
        "sm_120a",
        {"atom": "m16n8k32", "block": (32, 64, 64), "warps": (1, 2), "stages": 2, "transport": "tma"},
    ),
    "warpgroups": ("sm_90a", {"atom": "wgmma", "block": (64, 64, 64), "warps": (4, 1), "stages": 2, "fragments": 1}),
}
"""Schedules whose partial sums of 64 elements end where the policy's do."""


@pytest.mark.parametrize("policy", ["f16", "hybrid, max_k = 64, partial = f16", "hybrid, max_k = 32, partial = f16"])
@pytest.mark.parametrize("how", ROUNDED)
def test_f16_sums_are_rounded_once_in_32_elements(how: str, policy: str):
    """Positive integers, even in A: sums of 32 products pass 4096, from where f16 has multiples of 4 only; f32 is exact."""
    target, schedule = ROUNDED[how]
    product = Product(40, 72, 192, "f8E4M3FN", "f8E5M2", "f32", policy, "", False)
    chance = np.random.default_rng(7)
    arguments = [
        chance.choice(values, (size, product.k)).astype(DTYPES[dtype])
        for values, size, dtype in (((16, 18, 22, 30), product.m, product.a), ((4, 5, 6, 7), product.n, product.b))
    ]
    (expected,) = level1.run(parse_module(product.text(), "input"), "mm", arguments, "policy")
    exact = arguments[0].astype(np.float32) @ arguments[1].astype(np.float32).T
    assert 0 < np.abs(expected - exact).max() <= (50 if policy == "f16" else 20)
    module = emmy.compile(product.text(), target, schedule=schedule)
    check_levels(product, module, {"landing": "random", "order": "random", "seed": 7}, arguments)


@pytest.mark.parametrize(("k", "promotion"), [(128, "convert"), (33, "identity")])
@pytest.mark.parametrize("how", ROUNDED)
def test_a_partial_sum_that_overflows_is_summed_again(how: str, k: int, promotion: str):
    """256 x 256 is beyond f16, though it is far from the end of either type of operand."""
    target, schedule = ROUNDED[how]
    lost, kept = (
        Product(40, 72, k, "f8E4M3FN", "f8E5M2", "f32", f"hybrid, partial = f16, overflow = {word}", "", False)
        for word in ("propagate", "redo")
    )
    arguments = lost.arguments(2)
    arguments[0][3], arguments[1][5] = 256, 256
    exact = arguments[0].astype(np.float32) @ arguments[1].astype(np.float32).T
    if how != "mma.sync" and k % 16:
        schedule = {"transport": "cp_async"}  # TMA does not take such rows
    for product in (lost, kept):
        module = emmy.compile(product.text(), target, schedule=schedule | {"promotion": promotion})
        (result,), _ = run_on_emulator(module.portable_artefact, "mm", arguments)
        assert np.isfinite(result).all() == (product is kept)
    assert np.array_equal(result, exact)
    (level_1,) = level1.run(parse_module(kept.text(), "input"), "mm", arguments, "policy")
    assert np.array_equal(level_1, exact)


FAULTS = {
    "the halves of a partial sum are exchanged": (r"mov\.b32 \{(%h\d+),(%h\d+)\}, (%r\d+);", r"mov.b32 {\2,\1}, \3;"),
    "an operand is of the other type": (r"row\.col\.f16\.e4m3\.e5m2\.f16", "row.col.f16.e5m2.e5m2.f16"),
    "a partial sum goes on with the one before": (
        r"(mma\.sync\S* )(\{%r\d+,%r\d+\})(, \{[^}]*\}, \{[^}]*\}, )\{(%r\d+),\4\};",
        r"\1\2\3\2;",
    ),
}
"""What is changed in the PTX of the kernel, once."""


@pytest.mark.parametrize("fault", FAULTS)
def test_seeded_faults_of_promotion_are_caught(fault: str):
    """Each gives other integers, or reads what was never written."""
    product = Product(64, 64, 256, "f8E4M3FN", "f8E5M2", "f32", "hybrid, max_k = 64, partial = f16", "", False)
    schedule = {"atom": "m16n8k32", "block": (64, 64, 128), "warps": (2, 2), "stages": 2}
    artefact = emmy.compile(product.text(), "sm_89", schedule=schedule).portable_artefact
    arguments = product.arguments(4)
    exact = arguments[0].astype(np.float32) @ arguments[1].astype(np.float32).T

    def right(changed: bool) -> bool:
        (image,) = artefact.images.values()
        text, count = re.subn(*FAULTS[fault], image.ptx or "", count=int(changed)) if changed else (image.ptx or "", 0)
        assert count == changed
        images = {name: replace(one, ptx=text) for name, one in artefact.images.items()}
        try:
            (result,), _ = run_on_emulator(replace(artefact, images=images), "mm", arguments)
        except EmmyError:
            return False
        return np.array_equal(result, exact)

    assert right(changed=False)
    assert not right(changed=True)


DENSE = Product(64, 64, 64, "f8E4M3FN", "f8E5M2", "f16", "f32", "", False).text()
REFUSED = {
    "an A100": (
        DENSE,
        "sm_80",
        {},
        r"sm_80 does not have atom m16n8k32 with f8E4M3FN and f8E5M2 operands; it needs sm_89",
    ),
    "B as K x N": (
        DENSE.replace("transpose_b ", ""),
        "sm_89",
        {},
        "8-bit operands are read K-major only: store A as M x K",
    ),
    "A as K x M": (DENSE.replace("%a, %b", "%a, %b transpose_a"), "sm_90a", {}, "8-bit operands are read K-major only"),
    "an atom of 16 bits": (
        DENSE,
        "sm_89",
        {"atom": "m16n8k16"},
        "m16n8k16 has no f8E4M3FN and f8E5M2 operands; .* m16n8k32",
    ),
    "a k-step and a half": (
        DENSE,
        "sm_89",
        {"block": (64, 64, 48), "atom": "m16n8k32"},
        "a dot over 48 elements of K is not whole k-steps of 32",
    ),
    "too many partial sums": (
        DENSE.replace("<f32>", "<hybrid, max_k = 128>"),
        "sm_90a",
        {"atom": "wgmma", "block": (128, 256, 128), "warps": (8, 1), "stages": 2},
        "each thread needs at least 280 registers",
    ),
    "f16 sums on an A100": (
        DENSE.replace("<f32>", "<f16>"),
        "sm_80",
        {},
        r"sm_80 does not have atom m16n8k32 with f8E4M3FN and f8E5M2 operands; it needs sm_89",
    ),
    "a map of 8 bits": (
        "func.func @f(%a: tensor<8x8xf8E5M2>) -> tensor<8x8xf8E5M2> {\n"
        "  %b = tensor_op.map neg %a : (tensor<8x8xf8E5M2>) -> tensor<8x8xf8E5M2>\n"
        "  func.return %b : tensor<8x8xf8E5M2>\n}\n",
        "sm_89",
        {},
        r"kernels read tensors of f8E5M2 as operands of products only; got tensor_op\.map",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals_are_one_sentence_with_a_place(what: str):
    text, target, schedule, sentence = REFUSED[what]
    with pytest.raises(EmmyError, match=sentence) as caught:
        emmy.compile(text, target, schedule=schedule)
    assert caught.value.location is not None
    assert "\n" not in caught.value.message


def test_a_modules_policy_holds_where_it_can():
    """`hybrid` of a module promotes 8-bit sums too, `f16` is theirs; what they cannot follow leaves them at f32, and the kernel
    says so."""
    text = DENSE.replace(" accumulate<f32>", "")
    assert promotions(emmy.compile(text, "sm_89", accumulate="hybrid")) > 0
    assert ".f16.e4m3.e5m2.f16 " in emmy.compile(text, "sm_89", accumulate="f16").ptx
    module = emmy.compile(text, "sm_89", accumulate="hybrid, max_k = 48")
    assert promotions(module) == 0
    (remark,) = (kernel["remark"] for kernel in module.portable_artefact.kernels.values())
    assert "32 elements of K at once" in remark
