"""Text of level 2 that runs past the end of a view: nothing is read or written there, and elements count as zeros."""

from __future__ import annotations

import re

import numpy as np
import pytest

import emmy
from emmy.interpreters import level2
from emmy.ir import parse_module
from emmy.passes.bounds import OUTER_OVERRUNS, OVERRUNS, greatest

MATMUL = """func.func @mm(%a: tensor<64x64xf16>, %b: tensor<64x64xf16>) -> tensor<64x64xf16> {
  %c = tensor_op.matmul %a, %b transpose_b : (tensor<64x64xf16>, tensor<64x64xf16>) -> tensor<64x64xf16>
  func.return %c : tensor<64x64xf16>
}"""
LOOP = "scf.for %k = %c0 to %c64"
GRID = "tile.grid [%c64 by 32, %c64 by 32]"
FAR = "%far = arith.constant 128 : index\n    "
EDITS = {
    "loop": (LOOP, FAR, LOOP.replace("%c64", "%far"), 4, [0, 1]),
    "loop to a computed end": (
        LOOP,
        "%far = arith.addi %m, %c64 : index\n    ",
        LOOP.replace("%c64", "%far"),
        4,
        [0, 1],
    ),
    "rows of the grid": (GRID, FAR, GRID.replace("[%c64", "[%far"), 8, [0, 2]),
    "columns of the grid": (GRID, FAR, GRID.replace(", %c64", ", %far"), 8, [1, 2]),
    "nothing": (LOOP, "", LOOP, 4, []),
}
KERNELS = [
    {"transport": "cp_async"},
    {"transport": "plain"},
    {"transport": "tma"},
    {"transport": "cp_async", "roles": "specialized"},
    {"transport": "cp_async", "epilogue": "direct"},
]


def edited(edit: str, **fields: object) -> tuple[str, list[int]]:
    """The product's text at level 2, changed, and which arguments it may overrun."""
    schedule = {"block": (32, 32, 32), "warps": (1, 2), "stages": 2, "atom": "m16n8k16", "persistent": 0, **fields}
    text = emmy.compile(MATMUL, "sm_90a", schedule=schedule).ir("tile")
    old, before, new, tiles, overrun = EDITS[edit]
    line = next(line for line in text.splitlines() if old in line)
    head = re.match(r"\s*", line)
    assert head is not None
    text = text.replace(line, f"{head[0]}{before}{line.replace(old, new)}")
    return text.replace("%tiles = arith.constant 4", f"%tiles = arith.constant {tiles}"), overrun


@pytest.mark.parametrize("fields", KERNELS, ids=str)
@pytest.mark.parametrize("edit", EDITS)
def test_text_that_runs_past_the_end(edit: str, fields: dict[str, str]):
    text, overrun = edited(edit, **fields)
    module = emmy.compile(text, "sm_90a")
    generator = np.random.default_rng(0)
    a, b = (generator.integers(-3, 4, (64, 64)).astype(np.float16) for _ in "ab")
    wanted = (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float16)
    np.testing.assert_array_equal(module.mm(a, b, device="emulator"), wanted)
    kernel = next(op for op in parse_module(module.ir("lower-tile"), "t").walk() if op.name == "tile.kernel")
    noted = kernel.attributes.get(OVERRUNS)
    assert (list(noted.get_values()) if noted is not None else []) == overrun


@pytest.mark.parametrize("transport", ["cp_async", "tma"])
def test_parts_of_a_result_that_begin_where_the_view_ends(transport: str):
    """48 columns are one and a half tiles of 32, and three parts of 16: the last tile's second part is past the end."""
    fields = {"block": (32, 32, 32), "warps": (2, 1), "stages": 2, "atom": "m16n8k16", "store_columns": 16}
    module = emmy.compile(MATMUL.replace("64x64", "48x48"), "sm_90a", schedule={**fields, "transport": transport})
    generator = np.random.default_rng(0)
    a, b = (generator.integers(-3, 4, (48, 48)).astype(np.float16) for _ in "ab")
    wanted = (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float16)
    np.testing.assert_array_equal(module.mm(a, b, device="emulator"), wanted)


BATCHES = MATMUL.replace("64x64", "3x64x64")
OUTER_EDITS = {"load": ("tile.load %a[%b_1", [0]), "store": ("tile.store %0, %c[%b_1", [2]), "nothing": ("", [])}


@pytest.mark.parametrize("fields", KERNELS, ids=str)
@pytest.mark.parametrize("edit", OUTER_EDITS)
def test_text_whose_batches_run_past_the_end(edit: str, fields: dict[str, str]):
    """Batch b + 2 of three: what is not there reads as zeros, and is not stored."""
    place, overrun = OUTER_EDITS[edit]
    schedule = {"block": (32, 32, 32), "warps": (1, 2), "stages": 2, "atom": "m16n8k16", "persistent": 0, **fields}
    text = emmy.compile(BATCHES, "sm_90a", schedule=schedule).ir("tile")
    if place:
        far = "    %c2 = arith.constant 2 : index\n    %far = arith.addi %b_1, %c2 : index\n"
        text = text.replace("    %c0 = arith", f"{far}    %c0 = arith").replace(place, place.replace("%b_1", "%far"))
    module = emmy.compile(text, "sm_90a")
    generator = np.random.default_rng(0)
    a, b = (generator.integers(-3, 4, (3, 64, 64)).astype(np.float16) for _ in "ab")
    seen = np.concatenate([a[2:], 0 * a[:2]]) if edit == "load" else a
    wanted = seen.astype(np.float32) @ b.astype(np.float32).swapaxes(1, 2)
    result = module.mm(a, b, device="emulator")
    [same] = level2.run_module(parse_module(text, "t"), "mm", [a, b])
    for got in (result, same):
        assert np.array_equal(got[2], wanted[0]) if edit == "store" else np.array_equal(got, wanted)
    kernel = next(op for op in parse_module(module.ir("lower-tile"), "t").walk() if op.name == "tile.kernel")
    noted = kernel.attributes.get(OUTER_OVERRUNS)
    assert (list(noted.get_values()) if noted is not None else []) == overrun


INDICES = """tile.kernel @k(%v: !tile.view<?xi32>) {
  %c3 = arith.constant 3 : index
  %c10 = arith.constant 10 : index
  %c64 = arith.constant 64 : index
  %any = tile.read %v[%c3] : !tile.view<?xi32>
  %grid, %open = tile.grid [%c64 by 10, %any by 10] raster 1
  scf.for %i = %c3 to %c10 step %c3 {
    %sum = arith.addi %i, %grid : index
    %product = arith.muli %i, %c3 : index
    %least = arith.minui %any, %grid : index
    %most = arith.maxui %i, %grid : index
    %half = arith.divui %grid, %c10 : index
    %rest = arith.remui %any, %c10 : index
    %less = arith.subi %grid, %i : index
    %unknown = arith.addi %any, %i : index
    scf.yield
  }
}"""


def test_the_greatest_value_of_an_index():
    values = {}
    for op in parse_module(INDICES, "t").walk():
        for value in (*op.results, *(arg for region in op.regions for block in region.blocks for arg in block.args)):
            values[value.name_hint] = value
    expected = {
        "c10": 10,
        "any": None,
        "grid": 60,
        "open": None,
        "i": 9,
        "sum": 69,
        "product": 27,
        "least": 60,
        "most": 60,
    }
    expected |= {"half": 6, "less": 60, "unknown": None, "rest": None}
    assert {name: greatest(values[name]) for name in expected} == expected
