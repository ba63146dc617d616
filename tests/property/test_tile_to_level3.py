"""Interpret(level 2) = interpret(level 3), exactly: halves, reordered fragments, placed roles, events with their bytes.

Drawn together: sizes (ragged ones, 0), batches, transposes, element types, policy, epilogue, schedule, when copies land and
which warp runs first. Data are small integers, so every sum is exact and the order of sums does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import ml_dtypes
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from levels_support import apply
from xdsl.dialects.builtin import ModuleOp

from emmy.dialects import async_copy, mma
from emmy.dialects.tile import KernelOp
from emmy.interpreters import level2, level3
from emmy.ir import make_context, parse_module, verify_module
from emmy.layout import shared_layout
from emmy.lowering.tensor_op_to_tile import LowerTensorOp
from emmy.lowering.tile_to_level3 import LowerTile
from emmy.passes.allocate_shared import AllocateShared
from emmy.passes.double_buffer_fragments import DoubleBufferFragments
from emmy.passes.lower_raster import LowerRaster
from emmy.passes.lower_transport import LowerTransport
from emmy.passes.place_roles import PlaceRoles
from emmy.passes.verify_pipelines import VerifyPipelines

DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}
SIZES = st.sampled_from([1, 8, 16, 17, 40, 64, 70])

Landing = st.sampled_from(level3.LANDINGS)
Order = st.sampled_from(level3.ORDERS)
Seed = st.integers(0, 2**16)


MODES = ("unified", "specialized")


@dataclass(frozen=True)
class Case:
    """A product with a chain of elementwise ops behind it, and the schedule of its kernel."""

    text: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    def arrays(self, seed: int) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        return [rng.integers(-2, 3, shape).astype(DTYPES[d]) for shape, d in zip(self.shapes, self.dtypes, strict=True)]

    def level2(self) -> ModuleOp:
        module = parse_module(self.text, "case.mlir")
        verify_module(module)
        LowerTensorOp().apply(make_context(), module)
        return module


@st.composite
def schedules(draw) -> str:
    warps = [draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2]))]
    block = [16 * w * draw(st.sampled_from([1, 2])) for w in warps] + [draw(st.sampled_from([16, 32, 64]))]
    words = [
        f"stages = {draw(st.integers(1, 4))}",
        f"raster = {draw(st.integers(1, 3))}",
        f"fragments = {draw(st.sampled_from([1, 2]))}",
        f"epilogue = {draw(st.sampled_from(['shared', 'direct']))}",
        f"sites = {draw(st.sampled_from(['eager', 'first']))}",
    ]
    return f"#tile.schedule<block = {block}, warps = {warps}, {', '.join(words)}>"


@st.composite
def cases(draw) -> Case:
    batch = tuple(draw(st.lists(st.integers(1, 2), max_size=1)))
    m, n = draw(SIZES), draw(SIZES)
    k = draw(st.sampled_from([0, 8, 16, 48, 64, 100, 130]))
    policy = draw(st.sampled_from(["f32", "f32", "f16", "hybrid, max_k = 32"]))
    dtype = draw(st.sampled_from(["f16", "bf16"])) if policy == "f32" else "f16"
    result = draw(st.sampled_from([dtype, "f32"]))
    ta, tb = draw(st.booleans()), draw(st.booleans())
    dynamic = draw(st.sets(st.sampled_from("mnk")))

    def tensor(sizes: tuple[int, ...], names: str, element: str) -> str:
        dims = [*map(str, sizes[: len(sizes) - len(names)])]
        dims += ["?" if name in dynamic else str(s) for s, name in zip(sizes[-len(names) :], names, strict=True)]
        return f"tensor<{'x'.join(dims)}x{element}>"

    a, b = batch + ((k, m) if ta else (m, k)), batch + ((n, k) if tb else (k, n))
    types = [tensor(a, "km" if ta else "mk", dtype), tensor(b, "nk" if tb else "kn", dtype)]
    c = tensor((*batch, m, n), "mn", result)
    shapes, dtypes, parameters = [a, b], [dtype, dtype], [f"%a: {types[0]}", f"%b: {types[1]}"]
    flags = (" transpose_a" if ta else "") + (" transpose_b" if tb else "")
    chosen = draw(schedules())
    lines = [
        f"%y0 = tensor_op.matmul %a, %b{flags} accumulate<{policy}> {{emmy.schedule = {chosen}}} : "
        f"({', '.join(types)}) -> {c}"
    ]
    for kind in draw(st.lists(st.sampled_from(["relu", "bias", "column", "residual"]), max_size=2)):
        old, new = f"%y{len(lines) - 1}", f"%y{len(lines)}"
        if kind == "relu":
            lines.append(f"{new} = tensor_op.map relu {old} : ({c}) -> {c}")
            continue
        shape, names = {
            "bias": ((n,), "n"),
            "column": ((m, 1), "m1"),
            "residual": ((*batch, m, n), "mn"),
        }[kind]
        type_ = tensor(shape, names, result)
        parameters.append(f"%e{len(lines)}: {type_}")
        shapes.append(shape)
        dtypes.append(result)
        lines.append(f"{new} = tensor_op.map add {old}, %e{len(lines)} : ({c}, {type_}) -> {c}")
    body = "\n".join([*lines, f"func.return %y{len(lines) - 1} : {c}"])
    text = f"func.func @f({', '.join(parameters)}) -> {c} {{\n{body}\n}}\n"
    return Case(text, tuple(shapes), tuple(dtypes))


@settings(max_examples=100, deadline=None)
@given(cases(), Landing, Order, Seed)
def test_every_form_of_level_3_computes_what_level_2_does(case: Case, landing: str, order: str, seed: int):
    before = case.level2()
    arrays = case.arrays(seed)
    [expected] = level2.run_module(before, "f", arrays)
    halves = apply(before, LowerTile())
    buffered = apply(halves, DoubleBufferFragments(), VerifyPipelines(), LowerRaster())
    events = apply(buffered, PlaceRoles(), LowerTransport(), AllocateShared())
    for module in (halves, buffered, events):
        [got] = level3.run_module(module, "f", arrays, landing=landing, order=order, seed=seed)
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)


NESTED = """
func.func @f(%x: tensor<64x128xf16>, %u: tensor<32x128xf16>, %v: tensor<128x32xf16>, %r: tensor<64x32xf16>)
    -> (tensor<64x32xf32>, tensor<64x32xf16>) {
  %y = tile.alloc [] : tensor<64x32xf32>
  %z = tile.alloc [] : tensor<64x32xf16>
  %one = arith.constant 1 : index
  tile.launch @k[%one] (%x, %u, %v, %r, %y, %z) : tensor<64x128xf16>, tensor<32x128xf16>, tensor<128x32xf16>,
    tensor<64x32xf16>, tensor<64x32xf32>, tensor<64x32xf16>
  func.return %y, %z : tensor<64x32xf32>, tensor<64x32xf16>
}
tile.kernel @k(%x: !tile.view<64x128xf16>, %u: !tile.view<32x128xf16>, %v: !tile.view<128x32xf16>,
    %r: !tile.view<64x32xf16>, %y: !tile.view<64x32xf32>, %z: !tile.view<64x32xf16>)
    schedule <block = [64, 32, 32], warps = [2, 2], stages = STAGES> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c32 = arith.constant 32 : index
  START
  %wide = tile.cast %start : !tile.tile<64x32xf16> to !tile.tile<64x32xf32>
  %acc OUTER_RESULT = scf.for %i = %c0 to %c2 step %c1 iter_args(%s = %wide OUTER) -> (!tile.tile<64x32xf32> INDEX) {
    %t INNER_RESULT = scf.for %j = %c0 to %c2 step %c1 iter_args(%q = %s INNER) -> (!tile.tile<64x32xf32> INDEX) {
      OFFSET
      %tx = tile.load %x[%c0, %k] : !tile.view<64x128xf16> -> !tile.tile<64x32xf16>
      %tu = tile.load %u[%c0, %k] : !tile.view<32x128xf16> -> !tile.tile<32x32xf16>
      %tv = tile.load %v[%k, %c0] : !tile.view<128x32xf16> -> !tile.tile<32x32xf16>
      %d = tile.dot %tx, %tu into %q transpose_b
        : (!tile.tile<64x32xf16>, !tile.tile<32x32xf16>, !tile.tile<64x32xf32>) -> !tile.tile<64x32xf32>
      %e = tile.dot %tx, %tv into %d
        : (!tile.tile<64x32xf16>, !tile.tile<32x32xf16>, !tile.tile<64x32xf32>) -> !tile.tile<64x32xf32>
      scf.yield %e INNER_NEXT : !tile.tile<64x32xf32> INDEX
    }
    %twice = tile.map add %t, %t : (!tile.tile<64x32xf32>, !tile.tile<64x32xf32>) -> !tile.tile<64x32xf32>
    scf.yield %twice OUTER_NEXT : !tile.tile<64x32xf32> INDEX
  }
  tile.store %acc, %y[%c0, %c0] : !tile.tile<64x32xf32>, !tile.view<64x32xf32>
  %half = tile.cast %acc : !tile.tile<64x32xf32> to !tile.tile<64x32xf16>
  tile.store %half, %z[%c0, %c0] : !tile.tile<64x32xf16>, !tile.view<64x32xf16>
}
"""


CARRIED = {
    "START": "%start = tile.load %r[%c0, %c0] : !tile.view<64x32xf16> -> !tile.tile<64x32xf16>",
    "OUTER_RESULT": ", %end",
    "INNER_RESULT": ", %to",
    "OUTER_NEXT": ", %to",
    "INNER_NEXT": ", %next",
    "OUTER": ", %at = %c0",
    "INNER": ", %k = %at",
    "INDEX": ", index",
    "OFFSET": "%next = arith.addi %k, %c32 : index",
}
"""The offset of the operands is carried through both loops, and the sum begins with a load."""

COMPUTED = {
    **dict.fromkeys(CARRIED, ""),
    "START": "%start = tile.fill 3.0 : f16 : !tile.tile<64x32xf16>",
    "OFFSET": """%i2 = arith.muli %i, %c2 : index
      %ij = arith.addi %i2, %j : index
      %k = arith.muli %ij, %c32 : index""",
}
"""The same within the bounds of place-roles: an outer loop carries cursors only, and no ring stands beside it."""


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.booleans(), Landing, Order, Seed)
def test_no_template(stages: int, carried: bool, landing: str, order: str, seed: int):
    """Two products of two rings in nested loops, two results."""
    text = NESTED.replace("STAGES", str(stages))
    for hole, filling in (CARRIED if carried else COMPUTED).items():
        text = text.replace(hole, filling)
    before = parse_module(text, "nested.mlir")
    verify_module(before)
    rng = np.random.default_rng(seed)
    shapes = ((64, 128), (32, 128), (128, 32), (64, 32))
    arrays = [rng.integers(-1, 2, shape).astype(np.float16) for shape in shapes]
    expected = level2.run_module(before, "f", arrays)
    forms = [apply(before, LowerTile(), DoubleBufferFragments(), VerifyPipelines())]
    if not carried:
        forms += [apply(forms[0], PlaceRoles(mode), LowerTransport(), AllocateShared()) for mode in MODES]
    for module in forms:
        got = level3.run_module(module, "f", arrays, landing=landing, order=order, seed=seed)
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_array_equal(one, other)


@settings(max_examples=50, deadline=None)
@given(cases())
def test_rings_that_live_together_lie_apart(case: Case):
    """Fields are where their layout wants them, only outbound rings share bytes with others, mbarriers lie behind them all."""
    halves = apply(case.level2(), LowerTile())
    forms = [
        (PlaceRoles(mode), LowerTransport(kind)) for mode in ("unified", "specialized") for kind in ("auto", "plain")
    ]
    for module in (apply(halves, *form, AllocateShared()) for form in ((), *forms)):
        for kernel in module.walk():
            if not isinstance(kernel, KernelOp):
                continue
            spans, barriers = [], []
            for ring in (op for op in kernel.block.ops if isinstance(op, async_copy.PipelineOp)):
                start, slot = ring.base.value.data, ring.slot_bytes.value.data
                spans.append((start, start + slot * ring.stages.value.data, ring.outbound is not None))
                free = 0
                for name, type_ in ring.fields.data.items():
                    rows, cols = (1, *type_.get_shape())[-2:]
                    layout = shared_layout(rows, cols, type_.element_type.bitwidth // 8)
                    at = ring.offsets.data[name].value.data
                    assert ring.swizzles.data[name].value.data == layout.swizzle
                    assert at >= free
                    assert all((start + i * slot + at) % layout.alignment == 0 for i in range(2))
                    free = at + layout.size_bytes
                assert start % 1024 == 0
                assert free <= slot
                bases = [base.value.data for base in (ring.full_base, ring.empty_base) if base is not None]
                barriers += [base + 8 * stage for base in bases for stage in range(ring.stages.value.data)]
            total = max(end for _, end, _ in spans)
            # One word after the other.
            assert sorted(barriers) == [total + 8 * number for number in range(len(barriers))]
            assert kernel.attributes["emmy.shared_bytes"].value.data == total + 8 * len(barriers)
            inbound = sorted((s, e) for s, e, out in spans if not out)
            assert all(end <= start for (_, end), (start, _) in pairwise(inbound))
            # One result leaves after all operands have been read: it costs nothing unless it is the largest.
            outbound = [e - s for s, e, out in spans if out]
            assert total == max(max(e for _, e in inbound), *outbound, 0)


@settings(max_examples=50, deadline=None)
@given(cases(), st.integers(1, 5))
def test_reordering_keeps_ops_and_slots(case: Case, depth: int):
    """The same ops in every block; loads stay between their wait and its release; fragments arrive `depth` steps early."""
    halves = apply(case.level2(), LowerTile())
    after = apply(halves, DoubleBufferFragments(depth))
    for old, new in zip(blocks(halves), blocks(after), strict=True):
        assert sorted(op.name for op in old) == sorted(op.name for op in new)
        fences = [[op.name for op in ops if op.name.startswith("async_copy")] for ops in (old, new)]
        assert fences[0] == fences[1]
        loads, products = 0, 0
        steps = sum(isinstance(op, mma.MmaOp) for op in new)
        for op in new:
            if isinstance(op, mma.LoadOp) and op.result.type.place.data != "c":
                loads += 1
            elif isinstance(op, mma.MmaOp):
                assert loads == 2 * min(products + depth, steps)
                products += 1


def blocks(module: ModuleOp):
    """The ops of every block, in the order of the text."""
    return [list(block.ops) for op in module.walk() for region in op.regions for block in region.blocks]
