"""Products of any size whose tensors lie anywhere: how cases are drawn, run on the emulator and compared with NumPy's float64.

A `Program` is compiled once and run on many `Case`s. Both are drawn from a seed, and their `repr` is what repeats them:

    run(Program(...).compile(), Case(...))
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np

import emmy
from emmy.artefact import run_on_emulator
from emmy.emulator.machine import Machine
from emmy.schedule_limits import AUTO_TRANSPORT, Epilogue, problem_on_target
from emmy.schedules import WARPGROUP_ATOM, Schedule
from emmy.targets import get_target

DTYPES = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16), "f32": np.dtype(np.float32)}
HALF_ULP = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24}
MOST = 200
ALIGNED = 256  # bytes; arrays begin at an element of their offset behind a multiple of this
GUARD = 64  # elements around a result
SENTINEL = 0xA5  # as every byte that no kernel may write

Shape = tuple[int, ...]


# ---- programs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Program:
    """C = A B, perhaps + D, at level 1. `static`: sizes (batch sizes, m, n, k) that the text gives; None for `?`."""

    operand: str
    result: str
    policy: str
    transpose_a: bool
    transpose_b: bool
    static: tuple[int | None, ...]
    addend: bool
    target: str
    schedule: tuple[tuple[str, Any], ...]

    @property
    def batch_rank(self) -> int:
        return len(self.static) - 3

    @property
    def text(self) -> str:
        def tensor(shape: tuple[int | None, ...], dtype: str) -> str:
            sizes = ["?" if size is None else str(size) for size in shape]
            return f"tensor<{'x'.join([*sizes, dtype])}>"

        a, b, c = self.shapes(self.static)
        (ta, tb), tc = (tensor(shape, self.operand) for shape in (a, b)), tensor(c, self.result)
        flags = " transpose_a" * self.transpose_a + " transpose_b" * self.transpose_b
        lines = [f"%c = tensor_op.matmul %a, %b{flags} accumulate<{self.policy}> : ({ta}, {tb}) -> {tc}"]
        if self.addend:
            lines.append(f"%y = tensor_op.map add %c, %d : ({tc}, {tc}) -> {tc}")
        arguments = f"%a: {ta}, %b: {tb}" + f", %d: {tc}" * self.addend
        lines.append(f"func.return %{'y' if self.addend else 'c'} : {tc}")
        return "\n".join([f"func.func @mm({arguments}) -> {tc} {{", *(f"  {line}" for line in lines), "}\n"])

    def shapes(self, sizes: tuple[Any, ...]) -> tuple[tuple[Any, ...], ...]:
        """Of a, b and c."""
        *batch, m, n, k = sizes
        a = (k, m) if self.transpose_a else (m, k)
        b = (n, k) if self.transpose_b else (k, n)
        return (*batch, *a), (*batch, *b), (*batch, m, n)

    def compile(self) -> Compiled:
        """By TMA where that is what the schedule says and a tensor allows; variants are compiled when they are met."""
        schedule = dict(self.schedule)
        preferred = AUTO_TRANSPORT[self.target]
        if schedule["transport"] == "tma":
            schedule["transport"], preferred = "auto", "tma" if get_target(self.target).tma else "cp_async"
        with patch.dict(AUTO_TRANSPORT, {self.target: preferred}):
            module = emmy.compile(self.text, self.target, schedule=schedule, verify_each=False)
            return Compiled(self, module.portable_artefact, preferred)


@dataclass(frozen=True)
class Compiled:
    """A program's artefact; `preferred` is what `transport = auto` meant."""

    program: Program
    artefact: Any
    preferred: str


# ---- cases -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class View:
    """Strides and offset from an aligned address, in elements."""

    strides: Shape
    offset: int = 0

    def span(self, shape: Shape) -> int:
        """Elements from the first to the last."""
        return 1 + sum((n - 1) * s for n, s in zip(shape, self.strides, strict=True)) if 0 not in shape else 0


@dataclass(frozen=True)
class Case:
    """Sizes (batch sizes, m, n, k); how a, b and d lie; `out`: how the caller's result lies, None for one of the runtime's;
    `how`: options of the emulator."""

    sizes: Shape
    views: tuple[View, ...]
    out: View | None = None
    data: str = "integers"
    seed: int = 0
    how: tuple[tuple[str, Any], ...] = ()


def arena(elements: int, dtype: np.dtype[Any], fill: int) -> np.ndarray:
    """Aligned memory for `elements` of `dtype`, every byte of it `fill`."""
    memory = np.full(elements * dtype.itemsize + ALIGNED, fill, np.uint8)
    start = -memory.ctypes.data % ALIGNED
    return memory[start : start + elements * dtype.itemsize].view(dtype)


def lying(shape: Shape, view: View, dtype: np.dtype[Any], data: str, chance: np.random.Generator) -> np.ndarray:
    """An array of random elements that lies as `view` says, between NaNs. Strides may name an element more than once."""
    memory = arena(view.offset + view.span(shape) + GUARD, dtype, 0xFF)
    steps = [stride * dtype.itemsize for stride in view.strides]
    used = np.zeros(memory.shape, np.bool_)
    np.lib.stride_tricks.as_strided(used[view.offset :], shape, view.strides)[...] = True
    count = int(np.count_nonzero(used))
    memory[used] = (chance.integers(-3, 4, count) if data == "integers" else chance.standard_normal(count)).astype(
        dtype
    )
    return np.lib.stride_tricks.as_strided(memory[view.offset :], shape, steps)


def run(compiled: Compiled, case: Case) -> None:
    """Run one case and compare. Raises AssertionError, or what the compiler, `bind` or the emulator raise."""
    program, chance = compiled.program, np.random.default_rng(case.seed)
    shape_a, shape_b, shape_c = program.shapes(case.sizes)
    operand, result = DTYPES[program.operand], DTYPES[program.result]
    shapes = [(shape_a, operand), (shape_b, operand), *([(shape_c, result)] if program.addend else [])]
    arguments = [
        lying(shape, view, dtype, case.data, chance) for (shape, dtype), view in zip(shapes, case.views, strict=True)
    ]
    outs, memory = None, np.zeros(0, np.uint8)
    if case.out is not None:
        memory = arena(case.out.offset + case.out.span(shape_c) + 2 * ALIGNED, result, SENTINEL)
        steps = [stride * result.itemsize for stride in case.out.strides]
        outs = [np.lib.stride_tricks.as_strided(memory[ALIGNED + case.out.offset :], shape_c, steps)]
    # Variants that are compiled now mean the same by `auto`. Counting bank conflicts takes an eighth of the time.
    auto = patch.dict(AUTO_TRANSPORT, {program.target: compiled.preferred})
    with auto, patch.object(Machine, "count_conflicts", lambda *_: None):
        (got,), _ = run_on_emulator(compiled.artefact, "mm", arguments, outs, **dict(case.how))
    compare(program, case, arguments, got)
    if outs is not None:
        got[...] = np.frombuffer(bytes([SENTINEL] * result.itemsize), result)[0]
        assert (memory.view(np.uint8) == SENTINEL).all(), "bytes around or between the result's elements were written"


def compare(program: Program, case: Case, arguments: list[np.ndarray], got: np.ndarray) -> None:
    """Equality for integers, which every policy sums exactly; else an element-wise bound for the policy."""
    wide = [argument.astype(np.float64) for argument in arguments]
    a = wide[0].swapaxes(-1, -2) if program.transpose_a else wide[0]
    b = wide[1].swapaxes(-1, -2) if program.transpose_b else wide[1]
    assert np.isfinite(a).all() and np.isfinite(b).all()  # noqa: PT018
    exact = a @ b
    added = wide[2] if program.addend else 0.0
    assert got.shape == exact.shape
    assert got.dtype == DTYPES[program.result]
    if case.data == "integers":
        wanted = (exact.astype(got.dtype).astype(np.float64) + added).astype(got.dtype)
        wrong = np.argwhere(got != wanted)
        assert not len(wrong), f"{len(wrong)} of {got.size} elements are wrong, the first at {wrong[0].tolist()}"
        return
    absolute = np.abs(a) @ np.abs(b)
    sums = {"f32": 2.0**-20, "f16": 2.0**-11 * max(case.sizes[-1], 1)}.get(program.policy, 2.0**-5) * absolute
    rounding = HALF_ULP[program.result] * (np.abs(exact) + np.abs(exact + added) + sums) + 2.0**-24
    error = np.abs(got.astype(np.float64) - exact - added)
    assert np.all(error <= sums + rounding), f"an error of {np.nanmax(error - sums - rounding)} beyond the bound"


# ---- drawing ---------------------------------------------------------------------------------------------------------

TYPES = (("f16", "f16"), ("f16", "f32"), ("bf16", "bf16"), ("bf16", "f32"))
POLICIES = ("f32", "f16", "hybrid, max_k = 64", "hybrid, max_k = 32", "hybrid, max_k = 64, overflow = redo")
# Many warps of small tiles: the emulator runs warps that stand at one instruction as one.
TILES = (
    ((64, 64, 32), (4, 4)),
    ((64, 64, 64), (4, 4)),
    ((32, 64, 16), (2, 4)),
    ((64, 32, 32), (4, 2)),
    ((48, 80, 48), (3, 5)),
    ((128, 128, 32), (4, 4)),
    ((128, 64, 64), (4, 4)),
)
FIELDS = {
    "stages": (1, 2, 3, 4),
    "raster": (1, 2, 8),
    "fragments": (1, 2),
    "epilogue": ("shared", "shared", "direct"),
    "transport": ("cp_async", "plain", "tma", "auto"),
    "roles": ("unified", "specialized"),
    "producer_warps": (1, 4),
    "persistent": (0, 0, 1),
    "sites": ("eager", "first"),
    "delay": (0, 1, 2),
    "prefetch": (0, 1),
    "unroll": (1, 1, 2),
}
WGMMA_TILES = (((64, 64, 32), (4, 1)), ((64, 32, 64), (4, 1)), ((64, 96, 64), (4, 1)), ((128, 64, 64), (8, 1)))
TARGET_NAMES = ("sm_80", "sm_89", "sm_90a", "sm_90a", "sm_120a")
CORNERS = (
    0,
    1,
    2,
    7,
    8,
    9,
    15,
    16,
    17,
    31,
    32,
    33,
    47,
    48,
    63,
    64,
    65,
    79,
    80,
    95,
    96,
    97,
    127,
    128,
    129,
    160,
    192,
    199,
    200,
)


def one_of(chance: np.random.Generator, values: Any) -> Any:
    """One of `values`."""
    return values[int(chance.integers(len(values)))]


def draw_program(chance: np.random.Generator, dynamic: bool, wgmma: bool = False) -> Program:
    """Any product with any schedule. `dynamic`: every size is `?`, else some are given. `wgmma`: products of warpgroups."""
    operand, result = one_of(chance, TYPES)
    policy = one_of(chance, POLICIES) if operand == "f16" and chance.random() < 0.6 else "f32"
    block, warps = one_of(chance, TILES)
    schedule = {"block": block, "warps": warps} | {name: one_of(chance, values) for name, values in FIELDS.items()}
    rank = one_of(chance, (0, 0, 0, 1, 1, 2))
    static: tuple[int | None, ...] = (None,) * (rank + 3)
    if not dynamic:
        # wgmma that the text asks for is refused where the text says that TMA cannot move an operand.
        sizes = draw_sizes(chance, rank, 8 if chance.random() < 0.5 or wgmma else 1, (True, True, True))
        static = tuple(size if chance.random() < 0.75 else None for size in sizes)
    transposes = bool(chance.integers(2)), bool(chance.integers(2))
    addend = bool(operand == "f16" and chance.random() < 0.2)
    target = one_of(chance, TARGET_NAMES)
    if wgmma:
        block, warps = one_of(chance, WGMMA_TILES)
        columns = one_of(chance, (0, 32))
        schedule |= {
            "atom": WARPGROUP_ATOM,
            "block": block,
            "warps": warps,
            "transport": "auto",
            "store_columns": columns,
        }
        policy, target = policy if policy in ("f32", "f16") else "f32", "sm_90a"
    itemsize = DTYPES[result].itemsize
    epilogue = Epilogue(itemsize, ((True, True, itemsize),) if addend else ())
    while refused(schedule, target, epilogue, policy) and schedule["stages"] > 1:
        schedule["stages"] -= 1
    # One stage of 128 x 128 in f32 is still too much for sm_89 beside an addend of that size, where CTAs stay.
    addend = addend and refused(schedule, target, epilogue, policy) is None
    return Program(operand, result, policy, *transposes, static, addend, target, tuple(schedule.items()))


def refused(schedule: dict[str, Any], target: str, epilogue: Epilogue, policy: str) -> str | None:
    """Why a target cannot run a schedule: it has too little shared memory."""
    transport = "auto" if schedule["transport"] == "tma" else schedule["transport"]
    return problem_on_target(
        Schedule(**(schedule | {"transport": transport})), get_target(target), epilogue, policy == "f16"
    )


def draw_size(chance: np.random.Generator) -> int:
    """Any size, one that is a corner of some tile, or a small one."""
    how = chance.random()
    if how < 0.4:
        return int(chance.integers(0, MOST + 1))
    return int(one_of(chance, CORNERS)) if how < 0.8 else int(chance.integers(1, 41))


def draw_sizes(chance: np.random.Generator, rank: int, granule: int, contiguous: tuple[bool, bool, bool]) -> Shape:
    """(batch sizes, m, n, k); the sizes that are said to be `contiguous` are multiples of `granule`."""
    batch = [int(chance.integers(0, 4)) if chance.random() < 0.9 else 0 for _ in range(rank)]
    sizes = [draw_size(chance) for _ in range(3)]
    return (*batch, *(-(-s // granule) * granule if whole else s for s, whole in zip(sizes, contiguous, strict=True)))


@dataclass(frozen=True)
class Manner:
    """How the tensors of a case lie: multiples of `granule` elements, rows without steps (`rows`) or anything at all."""

    granule: int
    rows: bool


# A call takes the best kernel that all of its tensors fit, so that they are drawn to be alike.
MANNERS = (*(Manner(granule, True) for granule in (8, 8, 4, 2, 1)), *(Manner(granule, False) for granule in (8, 2, 1)))


USUAL_WORK = 12


def work(program: Program, sizes: Shape) -> int:
    """Steps of all CTAs: what emulating a product takes."""
    *batch, m, n, k = sizes
    tiles = [-(-size // tile) for size, tile in zip((m, n, k), dict(program.schedule)["block"], strict=True)]
    return int(np.prod(batch)) * tiles[0] * tiles[1] * (2 + tiles[2])


def draw_case(chance: np.random.Generator, program: Program) -> Case:
    """A case for a program: sizes (those that the text leaves open), layouts, data and emulation."""
    manner = one_of(chance, MANNERS)
    contiguous = (program.transpose_a, True, not program.transpose_a or program.transpose_b)
    for _ in range(3):  # large products are rarer than small ones, and possible
        drawn = draw_sizes(chance, program.batch_rank, manner.granule, contiguous)
        sizes = tuple(size if given is None else given for size, given in zip(drawn, program.static, strict=True))
        if work(program, sizes) <= USUAL_WORK:
            break
    shapes = program.shapes(sizes)
    dense = chance.random() < 0.12
    views = tuple(
        View(dense_strides(shape)) if dense else draw_view(chance, shape, manner)
        for shape in (*shapes[:2], *([shapes[2]] if program.addend else []))
    )
    own = not dense and chance.random() < 0.5
    out = draw_view(chance, shapes[2], manner, overlapping=False) if own else None
    little = int(np.prod(sizes[-3:])) <= 40**3 and max(sizes) <= 96
    how = {
        "landing": one_of(chance, ("late", "early", "random")),
        "order": one_of(chance, ("fixed", "reversed", "random") if little and chance.random() < 0.3 else ("fixed",)),
        "seed": int(chance.integers(1000)),
    }
    data = "integers" if chance.random() < 0.85 else "normal"
    return Case(sizes, views, out, data, int(chance.integers(1 << 30)), tuple(how.items()))


def dense_strides(shape: Shape) -> Shape:
    """Row-major, without gaps."""
    return tuple(int(np.prod(np.maximum(shape[axis + 1 :], 1), dtype=np.int64)) for axis in range(len(shape)))


def draw_view(chance: np.random.Generator, shape: Shape, manner: Manner, overlapping: bool = True) -> View:
    """A view of a tensor; `overlapping`: several indices may name one element, as is legal for what is only read."""
    granule = manner.granule

    def padded(least: int) -> int:
        gap = int(one_of(chance, (0, 0, 1, granule, int(chance.integers(1, 40)))))
        return -(-(max(least, 1) + gap) // granule) * granule

    *batch, rows, columns = shape
    how = chance.random() if not manner.rows else 0.0
    strides: list[int]
    if how < 0.3:
        strides = [padded(columns), 1]
        if overlapping and chance.random() < 0.15:  # every row the same, or each beginning within the one before
            strides[0] = int(one_of(chance, (0, granule)))
    elif how < 0.55:
        strides = [1, padded(rows)]
    elif how < 0.8:
        strides = [0, int(chance.integers(2, 4))]
        strides[0] = padded(columns * strides[1])
    elif not overlapping:
        strides = [int(chance.integers(2, 4)), 0]
        strides[1] = padded(rows * strides[0])
    else:
        strides = [int(chance.integers(0, 3)), int(chance.integers(0, 3))]
    extent = max(rows - 1, 0) * strides[0] + max(columns - 1, 0) * strides[1] + 1
    for size in reversed(batch):
        step = padded(extent)
        if overlapping and chance.random() < 0.2:
            step = int(one_of(chance, (0, granule)))
        strides.insert(0, step)
        extent += max(size - 1, 0) * step
    return View(tuple(strides), int(one_of(chance, (0, granule * int(chance.integers(0, 24 // granule))))))


def draw_group(
    seed: int, group: int, dynamic_cases: int, static_cases: int, wgmma: bool = False
) -> Iterator[tuple[Program, Case]]:
    """The cases of one group: of one program without sizes, then of others with sizes, two each."""
    chance = np.random.default_rng((seed, group, *([1] if wgmma else [])))
    program = draw_program(chance, True, wgmma)
    for _ in range(dynamic_cases):
        yield program, draw_case(chance, program)
    for number in range(static_cases):
        if number % 2 == 0:
            program = draw_program(chance, False, wgmma)
        yield program, draw_case(chance, program)


def run_group(seed: int, group: int, dynamic_cases: int, static_cases: int, wgmma: bool = False) -> int:
    """Run a group; how many cases. A failure says what repeats it."""
    compiled: dict[Program, Compiled] = {}
    count = 0
    for program, case in draw_group(seed, group, dynamic_cases, static_cases, wgmma):
        try:
            if program not in compiled:
                compiled[program] = program.compile()
            run(compiled[program], case)
        except Exception as error:
            where = f"seed {seed}, group {group}, case {count}"
            error.add_note(f"{where}:\nrun({program!r}.compile(),\n    {case!r})")
            raise
        count += 1
    return count
