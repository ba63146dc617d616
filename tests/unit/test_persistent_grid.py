"""`persistent-grid`: every tile once, whatever the number of CTAs, in the order of the raster; what it refuses."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest

import emmy
from emmy.artefact import EMULATED_SMS, bind, evaluate, run_on_emulator
from emmy.dialects import tile
from emmy.errors import EmmyError
from emmy.interpreters import host, level2
from emmy.ir import make_context, parse_module, verify_module
from emmy.passes.lower_raster import LowerRaster
from emmy.passes.persistent_grid import PersistentGrid

CONTEXT = make_context()

TEXT = """
func.func @count(%x: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %rows = tile.dim %x, 0 : tensor<?x?xf32>
  %columns = tile.dim %x, 1 : tensor<?x?xf32>
  %y = tile.alloc[%rows, %columns] : tensor<?x?xf32>
  %c16 = arith.constant 16 : index
  %c8 = arith.constant 8 : index
  %i = arith.ceildivui %rows, %c16 : index
  %j = arith.ceildivui %columns, %c8 : index
  %tiles = arith.muli %i, %j : index
  tile.launch @kernel[%tiles] (%x, %y) : tensor<?x?xf32>, tensor<?x?xf32>
  func.return %y : tensor<?x?xf32>
}
tile.kernel @kernel(%x: !tile.view<?x?xf32>, %y: !tile.view<?x?xf32>) {
  %rows = tile.dim %x, 0 : !tile.view<?x?xf32>
  %columns = tile.dim %x, 1 : !tile.view<?x?xf32>
  %m, %n = tile.grid [%rows by 16, %columns by 8] raster 3
  %old = tile.load %x[%m, %n] : !tile.view<?x?xf32> -> !tile.tile<16x8xf32>
  %one = tile.fill 1.0 : f32 : !tile.tile<16x8xf32>
  %new = tile.map add %old, %one : (!tile.tile<16x8xf32>, !tile.tile<16x8xf32>) -> !tile.tile<16x8xf32>
  tile.store %new, %x[%m, %n] : !tile.tile<16x8xf32>, !tile.view<?x?xf32>
}
"""


@pytest.mark.parametrize("sms", [1, 3, 7, 1000])
@pytest.mark.parametrize("shape", [(0, 8), (16, 8), (70, 40), (100, 9)])
@pytest.mark.parametrize("raster", [False, True])
def test_every_tile_once(sms: int, shape: tuple[int, int], raster: bool) -> None:
    module = parse_module(TEXT, "t.mlir", CONTEXT)
    PersistentGrid(force=True).apply(CONTEXT, module)
    if raster:
        LowerRaster().apply(CONTEXT, module)
    verify_module(module)
    launched: list[int] = []
    array = np.zeros(shape, np.float32)

    def run(kernel, arrays, ctas):
        launched.append(ctas)
        level2.run_kernel(kernel, arrays, ctas)

    with patch.object(host, "EMULATED_SMS", sms):
        host.run_host(module, "count", [array], run)
    assert (array == 1).all()
    assert launched == [min(sms, -(-shape[0] // 16) * -(-shape[1] // 8))]


def test_tiles_keep_the_order_of_the_raster() -> None:
    """With one CTA the tiles come in the order in which CTAs were numbered."""
    orders = []
    for force in (False, True):
        module = parse_module(TEXT, "t.mlir", CONTEXT)
        PersistentGrid(force=force).apply(CONTEXT, module)
        seen: list[tuple[int, int]] = []
        steps = level2.STEPS[tile.GridOp]

        def step(cta, op, operands, seen=seen, steps=steps):
            seen.append(tuple(steps(cta, op, operands)))
            return list(seen[-1])

        with patch.dict(level2.STEPS, {tile.GridOp: step}), patch.object(host, "EMULATED_SMS", 1):
            level2.run_module(module, "count", [np.zeros((70, 40), np.float32)])
        orders.append(seen)
    assert orders[0] == orders[1]
    assert len(set(orders[0])) == 25


def test_a_kernel_is_wrapped_once_and_only_if_it_has_a_grid() -> None:
    module = parse_module(TEXT, "t.mlir", CONTEXT)
    PersistentGrid().apply(CONTEXT, module)
    assert str(module) == str(parse_module(TEXT, "t.mlir", CONTEXT))
    PersistentGrid(force=True).apply(CONTEXT, module)
    once = str(module)
    PersistentGrid(force=True).apply(CONTEXT, module)
    assert str(module) == once


def test_what_it_refuses() -> None:
    grid = "%m, %n = tile.grid [%rows by 16, %columns by 8] raster 3"
    text = TEXT.replace(grid, f"{grid}\n  {grid.replace('%m, %n', '%i, %j')}")
    with pytest.raises(EmmyError, match=r"a persistent kernel has one tile\.grid") as caught:
        PersistentGrid(force=True).apply(CONTEXT, parse_module(text, "t.mlir", CONTEXT))
    assert caught.value.location is not None
    with pytest.raises(EmmyError, match="persistent-grid runs 1 or more CTAs on each multiprocessor, got 0"):
        PersistentGrid(ctas_per_sm=0).apply(CONTEXT, parse_module(TEXT, "t.mlir", CONTEXT))


def test_multiprocessors_in_a_grid() -> None:
    """`["sms"]` of an artefact is the device's number; the emulated device has few."""
    launch = {"image": "i", "kernel": "k", "grid": [["min", 100, ["sms"]], 1, 1], "block": [32, 1, 1], "params": []}
    entry = {"arguments": [], "results": [], "launches": [launch | {"shared_bytes": 0}]}
    assert [one.grid for one in bind(entry, []).launches] == [(EMULATED_SMS, 1, 1)]
    assert [one.grid for one in bind(entry, [], 132).launches] == [(100, 1, 1)]
    with pytest.raises(EmmyError, match="is no operation"):
        evaluate(["warps"], {}, {})


@pytest.mark.parametrize("epilogue", ["shared", "direct"])
def test_rows_that_a_tile_cuts_out_of_a_result(epilogue: str) -> None:
    """Packed sequences: each tile makes its views in the loop, and stores to one of them."""
    q, k, starts = "tensor<1x2x?x16xf16>", "tensor<1x1x?x16xf16>", "tensor<3xi32>"
    text = (
        f"func.func @f(%q: {q}, %k: {k}, %v: {k}, %x: {starts}, %y: {starts}) -> {q} {{\n"
        f"  %o = tensor_op.attention %q, %k, %v scale 0.25 lengths %x, %y : ({q}, {k}, {k}, {starts}, {starts}) -> {q}\n"
        f"  func.return %o : {q}\n}}\n"
    )
    chance = np.random.default_rng(1)
    tensors = [chance.standard_normal((1, heads, 90, 16)).astype(np.float16) for heads in (2, 1, 1)]
    arguments = [*tensors, *(np.array([0, middle, 90], np.int32) for middle in (7, 33))]
    schedule = {"block": (16, 32, 16), "warps": (1, 1), "stages": 1, "epilogue": epilogue}
    (once,), (staying,) = (
        run_on_emulator(
            emmy.compile(text, "sm_80", schedule={**schedule, "persistent": persistent}).portable_artefact,
            "f",
            arguments,
        )[0]
        for persistent in (0, 1)
    )
    np.testing.assert_array_equal(once, staying)
