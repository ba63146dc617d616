"""What `lower-transport` can prove about offsets, and how wide a copy it then allows."""

from __future__ import annotations

import pytest
from xdsl.ir import SSAValue

from emmy.dialects.tile import ViewType
from emmy.ir import make_context, parse_module
from emmy.passes.alignment import divisor, vector_bytes

CONTEXT = make_context()

INDICES = """
tile.kernel @k(%v: !tile.view<?x40xf16>) {
  %zero = arith.constant 0 : index
  %dim = tile.dim %v, 0 : !tile.view<?x40xf16>
  %c4 = arith.constant 4 : index
  %c6 = arith.constant 6 : index
  %c8 = arith.constant 8 : index
  %p = arith.cmpi ult, %dim, %c8 : index
  %grid, %column = tile.grid [%dim by 32, %dim by 12] raster 1
  %product = arith.muli %dim, %c8 : index
  %sum = arith.addi %product, %c6 : index
  %least = arith.minui %product, %grid : index
  %choice = arith.select %p, %c4, %c6 : index
  %quotient = arith.divui %product, %c8 : index
  %loop = scf.for %variable = %c8 to %dim step %c6 iter_args(%walk = %c8) -> (index) {
    %next = arith.addi %walk, %c4 : index
    scf.yield %next : index
  }
  %straight = scf.for %stepped = %zero to %dim step %c8 iter_args(%same = %c8) -> (index) {
    scf.yield %same : index
  }
}
"""

DIVISORS = {
    "zero": 0,
    "dim": 1,
    "c6": 6,
    "grid": 32,
    "column": 12,
    "product": 8,
    "sum": 2,
    "least": 8,
    "choice": 2,
    "quotient": 1,
    "variable": 2,
    "walk": 4,
    "loop": 4,
    "stepped": 8,
    "same": 8,
    "straight": 8,
}


def values() -> dict[str, SSAValue]:
    module = parse_module(INDICES, "k.mlir", CONTEXT)
    found: dict[str, SSAValue] = {}
    for op in module.walk():
        for value in [*op.results, *(a for r in op.regions for b in r.blocks for a in b.args)]:
            found[value.name_hint or ""] = value
    return found


@pytest.mark.parametrize("name", DIVISORS)
def test_divisor(name: str) -> None:
    assert divisor(values()[name]) == DIVISORS[name]


WIDTHS = [
    ("!tile.view<?x64xf16>", "zero", 16),
    ("!tile.view<?x60xf16>", "zero", 8),
    ("!tile.view<?x30xf16>", "zero", 4),
    ("!tile.view<?x33xf16>", "zero", 2),
    ("!tile.view<?x?xf16>", "zero", 2),
    ("!tile.view<?x64xf16>", "c6", 4),
    ("!tile.view<?x64xf16>", "stepped", 16),
    ("!tile.view<?x64xf16, strides [?, 1]>", "zero", 2),
    ("!tile.view<1x64xf16, strides [?, 1]>", "zero", 16),
    ("!tile.view<?x64xf16, strides [72, 1]>", "zero", 16),
    ("!tile.view<?x64xf16, strides [1, 64]>", "zero", 2),
    ("!tile.view<8x?x64xf16, strides [100, 64, 1]>", "zero", 8),
    ("!tile.view<?x33xf32>", "zero", 4),
    ("!tile.view<?x34xf32>", "zero", 8),
]


@pytest.mark.parametrize(("view", "column", "width"), WIDTHS)
def test_width(view: str, column: str, width: int) -> None:
    module = parse_module(f"tile.kernel @k(%v: {view}) {{ %c = arith.constant 0 : index }}", "k.mlir", CONTEXT)
    kernel = module.body.block.first_op
    type_ = kernel.regions[0].block.args[0].type
    assert isinstance(type_, ViewType)
    known = values()
    indices = [known["dim"]] * (len(type_.get_shape()) - 1) + [known[column]]
    assert vector_bytes(type_, indices, (16, 32), type_.element_type.size) == width
