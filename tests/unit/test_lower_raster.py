"""`lower-raster`: for every grid, group size and choice of static and dynamic extents, each tile is computed exactly once,
in the order that `tile.grid` defines."""

from __future__ import annotations

from math import ceil, prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects import arith

from emmy import ir
from emmy.dialects import tile
from emmy.interpreters.host import grid_offsets
from emmy.interpreters.scalars import evaluate_scalar
from emmy.passes.lower_raster import LowerRaster


def lowered_kernel(extents, blocks, raster, dynamic) -> tile.KernelOp:
    """The kernel of one grid; extent i is dimension i of the view where `dynamic[i]`, else a constant."""
    shape = "x".join("?" if d else str(e) for e, d in zip(extents, dynamic, strict=True))
    view = f"!tile.view<{shape}xf16>"
    lines = [
        f"%e{i} = tile.dim %c, {i} : {view}" if d else f"%e{i} = arith.constant {e} : index"
        for i, (e, d) in enumerate(zip(extents, dynamic, strict=True))
    ]
    offsets = ", ".join(f"%o{i}" for i in range(len(extents)))
    dims = ", ".join(f"%e{i} by {b}" for i, b in enumerate(blocks))
    ones = "x".join("1" * len(extents))
    lines += [
        f"{offsets} = tile.grid [{dims}] raster {raster}",
        f"%t = tile.fill 0.0 : f16 : !tile.tile<{ones}xf16>",
        f"tile.store %t, %c[{offsets}] : !tile.tile<{ones}xf16>, {view}",
    ]
    module = ir.parse_module(f"tile.kernel @k(%c: {view}) {{\n" + "\n".join(lines) + "\n}\n", "grid.mlir")
    LowerRaster().apply(ir.make_context(), module)
    ir.verify_module(module)
    kernel = module.body.block.first_op
    assert isinstance(kernel, tile.KernelOp)
    return kernel


def offsets_of(kernel: tile.KernelOp, extents, cta: int) -> tuple[int, ...]:
    """Run the kernel's index arithmetic for one CTA; the offsets of its store."""
    values = {}
    for op in kernel.block.ops:
        if isinstance(op, tile.StoreOp):
            return tuple(values[i] for i in op.indices)
        if isinstance(op, tile.CtaIdOp):
            values[op.result] = cta
        elif isinstance(op, tile.DimOp):
            values[op.result] = extents[op.axis.value.data]
        elif not isinstance(op, tile.FillOp):
            values[op.results[0]] = evaluate_scalar(op, [values[v] for v in op.operands])
    raise AssertionError("the kernel stores nothing")


@st.composite
def grids(draw):
    rank = draw(st.integers(1, 4))
    blocks = draw(st.lists(st.integers(1, 9), min_size=rank, max_size=rank))
    tiles = draw(st.lists(st.integers(1, 13 if rank < 3 else 5), min_size=rank, max_size=rank))
    extents = [b * t - draw(st.integers(0, b - 1)) for b, t in zip(blocks, tiles, strict=True)]
    dynamic = draw(st.lists(st.booleans(), min_size=rank, max_size=rank))
    return extents, blocks, draw(st.integers(1, 9)), dynamic


@settings(max_examples=120, deadline=None)
@given(grids())
def test_every_tile_once_in_the_defined_order(grid):
    extents, blocks, raster, dynamic = grid
    kernel = lowered_kernel(extents, blocks, raster, dynamic)
    ctas = prod(ceil(e / b) for e, b in zip(extents, blocks, strict=True))
    got = [offsets_of(kernel, extents, cta) for cta in range(ctas)]
    assert len(set(got)) == ctas
    assert all(o % b == 0 and o < e for one in got for o, b, e in zip(one, blocks, extents, strict=True))
    assert got == [grid_offsets(cta, extents, blocks, raster) for cta in range(ctas)]


@pytest.mark.parametrize("dynamic", [(False, False), (True, False), (False, True), (True, True)])
def test_all_small_grids_and_groups(dynamic):
    for rows in range(1, 8):
        for columns in (1, 2, 5):
            for raster in range(1, 9):
                kernel = lowered_kernel((rows, columns), (1, 1), raster, dynamic)
                got = {offsets_of(kernel, (rows, columns), cta) for cta in range(rows * columns)}
                assert got == {(i, j) for i in range(rows) for j in range(columns)}


def test_a_static_gemm_has_few_ops_and_no_dynamic_division():
    kernel = lowered_kernel((4096, 15360), (128, 256), 8, (False, False))
    divisions = [op for op in kernel.walk() if isinstance(op, arith.DivUIOp | arith.RemUIOp)]
    assert len(divisions) == 4
    assert all(isinstance(op.rhs.owner, arith.ConstantOp) for op in divisions)
    assert sum(1 for op in kernel.block.ops if op.name.startswith("arith.") and op.name != "arith.constant") <= 8


def test_an_empty_grid_lowers():
    """No CTA runs, so the arithmetic only has to exist."""
    kernel = lowered_kernel((0, 64), (16, 16), 4, (False, False))
    assert not any(isinstance(op, tile.GridOp) for op in kernel.walk())
