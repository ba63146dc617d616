"""Products of any sizes in any layout: the cases of the suite `ragged`, drawn once and for all from a seed.

    300 cases      sizes up to 5,000, row strides beyond the row, bases on any element, transposed and repeated operands, inner
                   strides above 1; operands transposed at level 1; batches; f16 and bf16; f32 and hybrid sums
    10 cases       small ones for compute-sanitizer (`emmy.bench.run --one "small 0 f16"`): each variant of a kernel, some twice
    3 cases        more than 2^31 elements in the result, in an operand, and between an operand's first and last element

A few artefacts with `?` for every size serve all of them. Everything around and between the elements is NaN.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from emmy.bench.cases import Case
from emmy.bench.layouts import Layout, dense

SEED, CASES = 20261129, 300
MOST = 5000
MOST_IN_BATCH = 700

MATMUL = """func.func @matmul(%a: {a}, %b: {a}) -> {c} {{
  %c = tensor_op.matmul %a, %b{flags} accumulate<{policy}> : ({a}, {a}) -> {c}
  func.return %c : {c}
}}
"""


@dataclass(frozen=True)
class Kind:
    """One artefact: a product of which every size is `?`."""

    dtype: str
    transpose_a: bool = False
    transpose_b: bool = True
    batched: bool = False
    policy: str = "f32"

    @property
    def artefact(self) -> str:
        """The folder's name."""
        words = (self.dtype, "ta" * self.transpose_a, "tb" * self.transpose_b, "batch" * self.batched, self.policy)
        return "_".join(filter(None, ("ragged", *words)))

    @property
    def text(self) -> str:
        """The product at level 1."""
        tensor = f"tensor<{'?x' * (3 if self.batched else 2)}{self.dtype}>"
        flags = " transpose_a" * self.transpose_a + " transpose_b" * self.transpose_b
        policy = "hybrid, max_k = 64" if self.policy == "hybrid" else self.policy
        return MATMUL.format(a=tensor, c=tensor, flags=flags, policy=policy)

    def shapes(self, batch: int, m: int, n: int, k: int) -> dict[str, list[int]]:
        """The arguments' shapes."""
        a, b = ([k, m] if self.transpose_a else [m, k]), ([n, k] if self.transpose_b else [k, n])
        first = [batch] if self.batched else []
        return {"a": first + a, "b": first + b}


KINDS = (
    *(Kind(dtype, ta, tb) for dtype in ("f16", "bf16") for ta in (False, True) for tb in (False, True)),
    Kind("f16", batched=True),
    Kind("f16", policy="hybrid"),
)


def ragged_cases() -> Iterator[tuple[Kind, Case]]:
    """All cases with the artefacts that they call."""
    yield from huge_cases()
    yield from small_cases()
    chance = random.Random(SEED)
    for number in range(CASES):
        kind = chance.choice(KINDS)
        yield kind, draw_case(chance, kind, number)


def draw_case(chance: random.Random, kind: Kind, number: int) -> Case:
    """One case; its name says its number, sizes and layouts."""
    most = MOST_IN_BATCH if kind.batched else MOST
    m, n, k = (draw_size(chance, most) for _ in range(3))
    shapes = kind.shapes(chance.randint(1, 3), m, n, k)
    drawn = {name: draw_layout(chance, shape) for name, shape in shapes.items()}
    layouts = {name: layout_fields(layout) for name, (_, layout) in drawn.items()}
    words = "ragged", f"{m}x{n}x{k}", kind.dtype, *(f"{name}:{word}" for name, (word, _) in drawn.items()), f"#{number}"
    # Integers are equal or wrong, f16 partial sums of them too, but those have errors of interest; the bound of these is for sums
    # of independent elements.
    repeated = any(word.startswith("repeated") for word, _ in drawn.values())
    data = chance.choice(("normal", "integers"))
    if kind.policy == "hybrid":
        data = "integers" if repeated else "normal"
    return Case(
        kind.artefact,
        "matmul",
        shapes,
        name=" ".join(words),
        data=data,
        magnitude=2,
        seed=number,
        time=False,
        policy=kind.policy,
        suite="ragged",
        layouts=layouts,
    )


def draw_size(chance: random.Random, most: int) -> int:
    """Any size, one beside a multiple of the tile, or a small one."""
    how = chance.random()
    if how < 0.5:
        return chance.randint(1, most)
    if how < 0.75:
        return max(1, 128 * chance.randint(0, most // 128 - 1) + chance.choice((-1, 0, 1)))
    return chance.randint(1, min(300, most))


GRANULES = (8, 8, 8, 4, 2, 1)
"""Elements that divide strides and offset of a drawn layout: 16-byte copies are legal with 8 of them only."""


def draw_layout(
    chance: random.Random, shape: list[int], granule: int | None = None, how: float | None = None
) -> tuple[str, Layout]:
    """A word for how the elements lie, and the layout. `granule`: of `GRANULES`; `how`: from 0 to 1, below 0.65 for rows."""
    granule = chance.choice(GRANULES) if granule is None else granule
    how = chance.random() if how is None else how
    rows, columns = shape[-2:]

    def padded(least: int) -> int:
        return -(-(least + chance.choice((0, chance.randint(1, 64)))) // granule) * granule

    def rest(extent: int) -> tuple[int, ...]:
        return (padded(extent),) if len(shape) == 3 else ()

    offset = chance.choice((0, granule * chance.randint(0, 63 // granule)))
    if how < 0.65:
        row = padded(columns)
        return f"rows/{granule}", Layout((*rest(rows * row), row, 1), offset)
    if how < 0.83:
        column = padded(rows)
        return f"transposed/{granule}", Layout((*rest(columns * column), 1, column), offset)
    if how < 0.93:
        step = chance.randint(2, 3)
        row = padded(columns * step)
        return f"steps/{granule}", Layout((*rest(rows * row), row, step), offset)
    strides = chance.choice(((0, 1), (1, 0)))
    return f"repeated/{granule}", Layout((*((0,) if len(shape) == 3 else ()), *strides), offset)


def layout_fields(layout: Layout) -> dict[str, Any]:
    """As `Case.layouts` has it."""
    return {"strides": list(layout.strides), "offset": layout.offset}


SMALL = ((8, 0.0), (4, 0.0), (2, 0.0), (1, 0.0), (8, 0.7), (1, 0.7), (1, 0.9), (8, 0.95), (1, 0.0))
"""(granule, how) of layouts: what 16-byte copies take, narrower ones, transposed, with steps, repeated."""


def small_cases() -> Iterator[tuple[Kind, Case]]:
    """Sizes up to 300: one dense product, then one for each of `SMALL`."""
    chance, kinds = random.Random(SEED + 1), [kind for kind in KINDS if kind.dtype == "f16" and not kind.batched]
    for number, (granule, how) in enumerate(((8, None), *SMALL)):
        kind = kinds[number % len(kinds)]
        m, n, k = (-(-chance.randint(1, 300) // granule) * granule for _ in range(3))
        shapes = kind.shapes(1, m, n, k)
        layouts = {
            name: layout_fields(dense(shape) if how is None else draw_layout(chance, shape, granule, how)[1])
            for name, shape in shapes.items()
        }
        case = Case(
            kind.artefact, "matmul", shapes, name=f"small {number} f16", seed=number, time=False, layouts=layouts
        )
        yield kind, replace(case, policy=kind.policy, suite="ragged")


def huge_cases() -> Iterator[tuple[Kind, Case]]:
    """More than 2^31 elements, which is beyond 32-bit element offsets, and twice beyond 32-bit byte offsets."""
    kind = Kind("f16")
    for word, (m, n, k), layouts in (
        ("result", (50_001, 45_003, 72), None),
        ("operand", (300_007, 72, 7_184), None),
        ("stride", (20_011, 136, 200), {"a": {"strides": [110_008, 1], "offset": 0}}),
    ):
        name = f"huge {word} {m}x{n}x{k} f16"
        shapes = kind.shapes(1, m, n, k)
        yield kind, Case(kind.artefact, "matmul", shapes, name=name, time=False, suite="ragged", layouts=layouts)
