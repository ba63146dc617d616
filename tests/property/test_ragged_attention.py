"""Attention over sequences of different lengths, packed or in pages: level 1 against level 2 and, where copies land at random,
the emulator. What belongs to no sequence is not finite.
"""

from dataclasses import dataclass

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import emmy
from emmy.emulated_calls import run_on_emulator
from emmy.interpreters import level1, level2
from emmy.ir import make_context, parse_module, print_module, verify_module
from emmy.lowering.tensor_op_to_tile import LowerTensorOp
from emmy.passes.assign_schedule import AssignSchedule

LENGTHS = st.sampled_from([0, 1, 5, 16, 33, 64, 70])


@dataclass(frozen=True)
class Ragged:
    """One op. `rows`, `keys`: of each sequence. `page`: keys of a page, or 0 for packed sequences."""

    heads: int
    groups: int
    rows: tuple[int, ...]
    keys: tuple[int, ...]
    depth: int
    width: int
    page: int
    clauses: str
    schedule: str

    @property
    def text(self):
        batch, rows = ("?", self.rows[0]) if self.page else (1, "?")
        outer, inner = ("?", self.page) if self.page else (1, "?")
        q, o = (f"tensor<{batch}x{self.heads}x{rows}x{size}xf16>" for size in (self.depth, self.width))
        k, v = (f"tensor<{outer}x{self.groups}x{inner}x{size}xf16>" for size in (self.depth, self.width))
        clause, x = ("pages", "tensor<?x?xi32>") if self.page else ("lengths", "tensor<?xi32>")
        results = f"({o}, tensor<{batch}x{self.heads}x{rows}xf32>)"
        types = f"{q}, {k}, {v}, {x}, tensor<?xi32>"
        schedule = f"{{emmy.schedule = #tile.schedule<{self.schedule}>}}"
        return f"""func.func @f(%q: {q}, %k: {k}, %v: {v}, %x: {x}, %y: tensor<?xi32>) -> {results} {{
          %o, %l = tensor_op.attention %q, %k, %v {self.clauses} {clause} %x, %y {schedule} : ({types}) -> {results}
          func.return %o, %l : {results[1:-1]}
        }}"""

    def operands(self, seed):
        rng = np.random.default_rng(seed)

        def draw(*shape):
            return rng.standard_normal(shape).astype(np.float16)

        if not self.page:
            starts = [np.int32([0, *np.cumsum(sizes)]) for sizes in (self.rows, self.keys)]
            kv = [draw(1, self.groups, sum(self.keys), size) for size in (self.depth, self.width)]
            return [draw(1, self.heads, sum(self.rows), self.depth), *kv, *starts]
        needed = [-(-count // self.page) for count in self.keys]
        places = iter(rng.permutation(sum(needed) + 2))
        table = np.full((len(needed), max(needed) + 1), sum(needed), np.int32)
        k, v = (
            np.full((sum(needed) + 2, self.groups, self.page, size), np.nan, np.float16)
            for size in (self.depth, self.width)
        )
        for b, (pages, count) in enumerate(zip(needed, self.keys, strict=True)):
            for i in range(pages):
                place, held = next(places), min(self.page, count - i * self.page)
                table[b, i] = place
                for x in (k, v):
                    x[place, :, :held] = draw(self.groups, held, x.shape[3])
        return [draw(len(needed), self.heads, self.rows[0], self.depth), k, v, table, np.int32(self.keys)]


@st.composite
def cases(draw):
    groups, page = draw(st.integers(1, 2)), draw(st.sampled_from([0, 16, 32, 64]))
    count = draw(st.integers(1, 4))
    keys = tuple(draw(LENGTHS) for _ in range(count))
    rows = (draw(st.sampled_from([1, 1, 3, 20])),) * count if page else tuple(draw(LENGTHS) for _ in range(count))
    depth, width = draw(st.sampled_from([16, 24, 64])), draw(st.sampled_from([16, 40, 64]))
    clauses = f"scale {draw(st.sampled_from([0.2, -0.3]))} {draw(st.sampled_from(['', 'causal']))} "
    clauses += draw(st.sampled_from(["", "window 9", "softcap 2.0"]))
    block = (
        draw(st.sampled_from([16, 32])),
        draw(st.sampled_from([b for b in (16, 32, 64) if not page or page % b == 0])),
    )
    splits = draw(st.sampled_from([0, 1, 2])) if page else 0
    schedule = (
        f"block = [{block[0]}, {block[1]}, {-(-depth // 16) * 16}], warps = [1, 1], stages = 2, splits = {splits}"
    )
    schedule += draw(st.sampled_from(["", ", roles = specialized, producer_warps = 1", ", transport = plain"]))
    return Ragged(groups * draw(st.integers(1, 3)), groups, rows, keys, depth, width, page, clauses, schedule)


def check(case, got, exact, operands):
    """Weights and results are rounded to f16 once each; rows without keys are exact."""
    largest = np.max(abs(operands[2][np.isfinite(operands[2])]), initial=1).astype(float)
    np.testing.assert_allclose(got[0].astype(float), exact[0], atol=largest * 2.0**-10)
    np.testing.assert_allclose(got[1], exact[1], rtol=1e-5, atol=1e-5)
    assert not np.any(got[0][np.isneginf(exact[1])])


@settings(max_examples=100, deadline=None)
@given(cases(), st.integers(0, 2**32 - 1))
def test_levels_agree(case, seed):
    context, operands = make_context(), case.operands(seed)
    module = parse_module(case.text, "t.mlir", context)
    verify_module(module)
    exact = level1.run(module, "f", operands)
    AssignSchedule().apply(context, module)
    LowerTensorOp().apply(context, module)
    lowered = parse_module(print_module(module), "lowered.mlir", context)
    verify_module(lowered)
    check(case, level2.run_module(lowered, "f", operands), exact, operands)


@settings(max_examples=15, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(cases(), st.sampled_from(["sm_89", "sm_90a", "sm_120a"]), st.integers(0, 2**32 - 1))
def test_on_the_emulator(case, target, seed):
    operands = case.operands(seed)
    exact = level1.run(parse_module(case.text, "t.mlir"), "f", operands)
    artefact = emmy.compile(case.text, target).portable_artefact
    got, _ = run_on_emulator(artefact, "f", operands, landing="random", order="random", seed=seed % 1000)
    check(case, got, exact, operands)
