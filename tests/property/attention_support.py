"""Random attention ops for the property tests: sizes, clauses, schedules, and how far roundings may take a result."""

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from emmy.interpreters import level1

DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}
UNIT = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24}  # unit roundoffs
SIZES = st.sampled_from([0, 1, 7, 16, 31, 33, 64, 70, 100])
DEPTHS = st.sampled_from([1, 5, 16, 17, 32, 59, 64, 80])


@dataclass(frozen=True)
class Case:
    """One op: sizes, element types, clauses, schedule; `bias` is its sizes and type, or None."""

    batch: int
    heads: int
    groups: int
    rows: int
    keys: int
    depth: int
    width: int
    dtype: str
    result: str
    dynamic: bool
    clauses: str
    policies: str
    bias: tuple[tuple[int, ...], str] | None
    logarithm: bool
    block: tuple[int, int]
    warps: int
    splits: int
    more: str = ""
    """Further fields of the schedule."""

    def tensor(self, sizes, dtype, dynamic):
        return (
            f"tensor<{'x'.join('?' if self.dynamic and i in dynamic else str(s) for i, s in enumerate(sizes))}x{dtype}>"
        )

    @property
    def shapes(self):
        heads = (self.batch, self.groups, self.keys)
        given = [(self.batch, self.heads, self.rows, self.depth), (*heads, self.depth), (*heads, self.width)]
        return given if self.bias is None else [*given, self.bias[0]]

    @property
    def text(self):
        types = [self.tensor(shape, self.dtype, (0, 2)) for shape in self.shapes[:3]]
        if self.bias is not None:
            types.append(self.tensor(self.bias[0], self.bias[1], ()))
        rows = (self.batch, self.heads, self.rows)
        results = [self.tensor((*rows, self.width), self.result, (0, 2)), self.tensor(rows, "f32", (0, 2))]
        results = results[: 1 + self.logarithm]
        arguments = ", ".join(f"{n}: {t}" for n, t in zip(("%q", "%k", "%v", "%b"), types, strict=False))
        names = "%o, %l" if self.logarithm else "%o"
        clauses = f"{self.clauses}{' bias %b' if self.bias else ''}{self.policies}"
        padded = -(-self.depth // 16) * 16
        fields = f"block = [{self.block[0]}, {self.block[1]}, {padded}], warps = [{self.warps}, 1]"
        schedule = f"#tile.schedule<{fields}, {self.more or 'stages = 1'}, splits = {self.splits}>"
        returned = ", ".join(results)
        return f"""func.func @f({arguments}) -> ({returned}) {{
          {names} = tensor_op.attention %q, %k, %v {clauses} {{emmy.schedule = {schedule}}}
            : ({", ".join(types)}) -> ({returned})
          func.return {names} : {returned}
        }}"""

    def operands(self, seed):
        rng = np.random.default_rng(seed)
        dtypes = [self.dtype] * 3 + ([self.bias[1]] if self.bias else [])
        return [rng.standard_normal(s).astype(DTYPES[d]) for s, d in zip(self.shapes, dtypes, strict=True)]


@st.composite
def cases(draw):
    groups, batch, keys = draw(st.integers(1, 2)), draw(st.integers(0, 2)), draw(SIZES)
    rows = draw(st.one_of(SIZES, st.just(1)))
    heads = groups * draw(st.integers(1, 3))
    dtype = draw(st.sampled_from(["f16", "f16", "bf16"]))
    scale = draw(st.sampled_from([0.125, 0.5, 1.0, -0.3, 0.0]))
    clauses = [f"scale {scale}"]
    clauses += draw(st.sampled_from([[], ["causal"]]))
    clauses += draw(st.sampled_from([[], [], ["window 1"], ["window 9"], ["window 40"]]))
    clauses += draw(st.sampled_from([[], [], ["softcap 2.5"]]))
    policies = ""
    if dtype == "f16":
        policies += draw(st.sampled_from(["", " accumulate<hybrid, max_k = 32>"]))
        policies += draw(st.sampled_from(["", "", " accumulate_scores<hybrid, max_k = 16>"]))
    full = (batch, heads, rows, keys)
    sizes = tuple(draw(st.sampled_from([1, size])) for size in full)
    warps = draw(st.integers(1, 2))
    return Case(
        batch,
        heads,
        groups,
        rows,
        keys,
        draw(DEPTHS),
        draw(DEPTHS),
        dtype,
        draw(st.sampled_from([dtype, "f32"])),
        draw(st.booleans()),
        " ".join(clauses),
        policies,
        draw(st.sampled_from([None, None, (sizes, draw(st.sampled_from(["f16", "bf16", "f32"])))])),
        draw(st.booleans()),
        (draw(st.sampled_from([16, 32])) * warps, draw(st.sampled_from([16, 32, 48, 64]))),
        warps,
        draw(st.sampled_from([0, 0, 1, 2])),
    )


def bounds(case, module, operands, exact):
    """(of the result, of the logarithms): what roundings may do.

    With weights w that sum to 1, a weight is off by its own rounding and by the error of its score; the sum of w |v| takes up
    both. Sums of f16 are rounded once a k-step. A score is a sum of depth products of normals.
    """
    q, k, v, *bias = operands
    magnitude = level1.run(module, "f", [q, k, abs(v), *bias])[0]
    sizes = [abs(x.astype(np.float64)) for x in (q, np.repeat(k, case.heads // case.groups, axis=1))]
    largest = np.max(sizes[0] @ sizes[1].swapaxes(-1, -2), initial=1.0) * abs(float(case.clauses.split()[1]))
    of_score = (
        (case.depth + 4)
        * UNIT["f32"]
        * (largest + np.max(abs(bias[0].astype(np.float64)), initial=0) if bias else largest)
    )
    if "accumulate_scores" in case.policies:
        of_score += 2 * UNIT["f16"] * largest
    relative = UNIT[case.dtype] + 2 * of_score + 1e-6
    if "accumulate<hybrid" in case.policies:
        relative += 4 * UNIT["f16"]
    value = relative * magnitude + UNIT[case.result] * abs(exact[0]) * 1.01 + 1e-6
    return value, of_score + 1e-5
