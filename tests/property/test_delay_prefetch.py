"""`delay-copies` and `prefetch-fragments` change no bit of a lowered product, whatever is drawn: interpret(before) =
interpret(after) at level 3, and the emulator agrees.

Drawn together: tile, warps, stages, k-tiles around the number of stages (0, 1, and dynamic ones too), ragged ends, transposes,
transport, fragments, sites, landing time and warp order. The data are no integers: an order of sums that changed would show.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp

import emmy
from emmy.artefact import run_on_emulator
from emmy.interpreters import level3
from emmy.ir import make_context, parse_module, print_module, verify_module
from emmy.passes.delay_copies import DelayCopies
from emmy.passes.prefetch_fragments import PrefetchFragments
from emmy.passes.verify_pipelines import VerifyPipelines

TILES = (
    ((32, 32, 16), (1, 1)),
    ((32, 32, 32), (1, 1)),
    ((32, 32, 64), (2, 1)),
    ((64, 32, 32), (2, 2)),
    ((48, 32, 48), (3, 1)),
)
"""(block, warps): one, two, three and four products a k-tile."""


@dataclass(frozen=True)
class Product:
    """C = A B with `k` elements to sum, its schedule, how much is delayed and whether fragments are prefetched."""

    k: int
    dynamic: bool
    transpose_a: bool
    transpose_b: bool
    delay: int
    prefetch: bool
    schedule: dict

    def text(self) -> str:
        m, n = self.schedule["block"][:2]
        k = "?" if self.dynamic else self.k
        a = f"tensor<{k}x{m}xf16>" if self.transpose_a else f"tensor<{m}x{k}xf16>"
        b = f"tensor<{n}x{k}xf16>" if self.transpose_b else f"tensor<{k}x{n}xf16>"
        c = f"tensor<{m}x{n}xf16>"
        flags = " transpose_a" * self.transpose_a + " transpose_b" * self.transpose_b
        return (
            f"func.func @mm(%a: {a}, %b: {b}) -> {c} {{\n"
            f"  %c = tensor_op.matmul %a, %b{flags} accumulate<f32> : ({a}, {b}) -> {c}\n  func.return %c : {c}\n}}\n"
        )

    def arguments(self, seed: int) -> list[np.ndarray]:
        generator = np.random.default_rng(seed)
        m, n = self.schedule["block"][:2]
        a = (self.k, m) if self.transpose_a else (m, self.k)
        b = (n, self.k) if self.transpose_b else (self.k, n)
        return [generator.normal(size=shape).astype(np.float16) for shape in (a, b)]


@st.composite
def products(draw: st.DrawFn) -> Product:
    block, warps = draw(st.sampled_from(TILES))
    stages = draw(st.integers(1, 4))
    trips = draw(st.sampled_from(sorted({0, 1, stages - 1, stages, stages + 1, 2 * stages + 1})))
    ragged = draw(st.sampled_from((0, 0, 8, 5)))
    return Product(
        k=max(trips * block[2] - ragged, 0),
        dynamic=draw(st.booleans()),
        transpose_a=draw(st.booleans()),
        transpose_b=draw(st.booleans()),
        delay=draw(st.integers(0, 4)),
        prefetch=draw(st.booleans()),
        schedule={
            "block": block,
            "warps": warps,
            "stages": stages,
            "fragments": draw(st.sampled_from((1, 2))),
            "sites": draw(st.sampled_from(("eager", "first"))),
            "transport": draw(st.sampled_from(("auto", "auto", "plain"))),
        },
    )


def rewritten(before: ModuleOp, product: Product) -> ModuleOp:
    """A copy of the lowered module after the passes, read back from its text; doing them twice is doing them once."""
    context, module, texts = make_context(), before.clone(), []
    for _ in range(2):
        DelayCopies(product.delay).apply(context, module)
        if product.prefetch:
            PrefetchFragments(force=True).apply(context, module)
        verify_module(module)
        VerifyPipelines().apply(context, module)
        texts.append(print_module(module))
    assert texts[0] == texts[1]
    return parse_module(texts[0], "rewritten.mlir")


@settings(max_examples=80)
@given(
    product=products(),
    landing=st.sampled_from(level3.LANDINGS),
    order=st.sampled_from(level3.ORDERS),
    seed=st.integers(0, 1000),
)
def test_no_bit_changes(product: Product, landing: str, order: str, seed: int) -> None:
    arguments = product.arguments(seed)
    plain = emmy.compile(product.text(), "sm_90a", schedule={**product.schedule, "delay": 0, "prefetch": 0})
    before = parse_module(plain.ir("lower-transport"), "lowered.mlir")
    after = rewritten(before, product)
    event(f"changed: {print_module(after) != print_module(before)}")
    (expected,) = level3.run_module(before, "mm", arguments, landing, order, seed)
    (got,) = level3.run_module(after, "mm", arguments, landing, order, seed)
    assert got.tobytes() == expected.tobytes()

    chosen = {**product.schedule, "delay": product.delay, "prefetch": int(product.prefetch)}
    module = emmy.compile(product.text(), "sm_90a", schedule=chosen)
    results = [
        run_on_emulator(m.portable_artefact, "mm", arguments, landing=landing, order=order, seed=seed)[0][0]
        for m in (plain, module)
    ]
    assert results[0].tobytes() == results[1].tobytes()
    a, b = (x.astype(np.float64) for x in arguments)
    exact = (a.T if product.transpose_a else a) @ (b.T if product.transpose_b else b)
    np.testing.assert_allclose(results[0].astype(np.float64), exact, rtol=2e-3, atol=2e-3)
