"""The `mma` dialect: every op prints and parses back to itself; each rule that is broken is one sentence with a place."""

from __future__ import annotations

import pytest

from emmy import ir
from emmy.dialects import mma
from emmy.errors import EmmyError


def fragment(shape: str, element: str = "f16", place: str = "c", atom: str = "m16n8k16") -> str:
    return f"!mma.fragment<{shape}x{element}, {place}, {atom}>"


A, B, C, F = fragment("64x16", place="a"), fragment("32x16", place="b"), fragment("64x32"), fragment("64x32", "f32")
SEEN = fragment("64x32", "i1")
READ = "!async_copy.slot<@ab, read>"
GIVEN = "!async_copy.slot<@sums, fill>"

HEAD = f"""tile.kernel @k(%v: !tile.view<64x64xf16>, %w: !tile.view<2x64x64xf32>) {{
  async_copy.pipeline @ab stages 3 {{a = !tile.tile<64x64xf16>, b = !tile.tile<64xf16>}}
  async_copy.pipeline @out stages 1 {{c = !tile.tile<64x64xf16>}} outbound
  %z = arith.constant 0 : index
  %r = async_copy.begin_read @ab
  %s, %n = async_copy.wait @ab[%r]
  %o0 = async_copy.begin_fill @out
  %o, %o1 = async_copy.acquire @out[%o0]
  async_copy.pipeline @sums stages 1 {{sums = !tile.tile<192x8xf32>}} internal cluster 4
  %g0 = async_copy.begin_fill @sums
  %given, %g1 = async_copy.acquire @sums[%g0]
  %a = mma.load %s["a"][%z, %z] : {READ} -> {A}
  %b = mma.load %s["a"][%z, %z] transposed : {READ} -> {B}
  %c = mma.fill 0.0 : f16 : {C}
  %f = mma.fill 1.5 : f32 : {F}
"""

WHOLE = (
    HEAD
    + f"""
  %wm = mma.warp 1 of [2, 4]
  %bias = mma.load %s["b"][%wm] : {READ} -> {fragment("1x32")}
  %d = mma.mma %a, %b, %f accumulate<hybrid, max_k = 32> : ({A}, {B}) -> {F}
  %e = mma.mma %a, %b, %c : ({A}, {B}) -> {C}
  %p = mma.promote %e into %d : {C} -> {F}
  %x = mma.map fma %p, %bias, %f : ({F}, {fragment("1x32")}, {F}) -> {F}
  %m = mma.reduce max %x : {F} -> {fragment("64x1", "f32")}
  %h = mma.convert %x : {F} to {C}
  %pa = mma.convert %x : {F} to {fragment("64x32", place="a")}
  %i = mma.coord 1 from %z : {fragment("1x32", "i32")}
  %l = mma.slice %h at [16, 8] : {C} -> {fragment("16x8")}
  %j = mma.join %l, %l axis 1 : {fragment("16x8")}, {fragment("16x8")} -> {fragment("16x16")}
  %ga = mma.load_global %v[%z, %wm] : !tile.view<64x64xf16> -> {A}
  %gb = mma.load_global %v[%z, %wm] transposed : !tile.view<64x64xf16> -> {B}
  %bad = mma.any_nonfinite %d : {F}
  %seen = mma.map ge %f, %f : ({F}, {F}) -> {SEEN}
  %some = mma.any %seen : {SEEN}
  %rows = mma.slice %a at [16, 0] : {A} -> {fragment("16x16", place="a")}
  %place = mma.load %s["a"][%z, %z] in_place : {READ} -> {fragment("64x16", place="b")}
  %start = mma.fill 0.0 : f32 : {fragment("16x64", "f32")}
  mma.fence
  %flying = mma.issue %rows, %place, %start
    : ({fragment("16x16", place="a")}, {fragment("64x16", place="b")}) -> {fragment("16x64", "f32")}
  mma.commit
  %still = mma.wait_older %flying : {fragment("16x64", "f32")}
  %there = mma.wait 0 %still : {fragment("16x64", "f32")}
  mma.store %h -> %o["c"][%z, %z] : {C} -> !async_copy.slot<@out, fill>
  mma.store_global %f -> %w[%z, %z, %z] : {F} -> !tile.view<2x64x64xf32>
  mma.scatter %f by %z -> %given["sums"][%z] : {F} -> {GIVEN}
  %own = mma.part %f, %z of 4 : {F} -> {fragment("64x8", "f32")}
}}
"""
)

BROKEN = {
    "shape of a fragment": (f"%q = mma.fill 0.0 : f16 : {fragment('64')}", "a fragment has two positive sizes, got 64"),
    "size of a fragment": (
        f"%q = mma.fill 0.0 : f16 : {fragment('64x0')}",
        "a fragment has two positive sizes, got 64x0",
    ),
    "place of a fragment": (
        f"%q = mma.fill 0.0 : f16 : {fragment('64x8', place='d')}",
        "a fragment's place is one of a, b, c, got 'd'",
    ),
    "axis of warp": ("%q = mma.warp 2 of [2, 4]", "axis 2 of a warp grid of rank 2"),
    "field of load": (f'%q = mma.load %s["c"][%z, %z] : {READ} -> {A}', "pipeline @ab has no field 'c'"),
    "offsets of load": (f'%q = mma.load %s["a"][%z] : {READ} -> {A}', "field 'a' has rank 2, got 1 offset(s)"),
    "element of load": (
        f'%q = mma.load %s["a"][%z, %z] : {READ} -> {fragment("64x16", "bf16", "a")}',
        "field 'a' holds f16, the fragment bf16",
    ),
    "field of store": (f'mma.store %c -> %o["q"][%z, %z] : {C} -> !async_copy.slot<@out, fill>', "no field 'q'"),
    "element of store": (
        f'mma.store %f -> %o["c"][%z, %z] : {F} -> !async_copy.slot<@out, fill>',
        "field 'c' holds f16, the fragment f32",
    ),
    "element of store_global": (
        f"mma.store_global %f -> %v[%z, %z] : {F} -> !tile.view<64x64xf16>",
        "the view holds f16, the tile f32",
    ),
    "offsets of store_global": (
        f"mma.store_global %f -> %w[%z, %z] : {F} -> !tile.view<2x64x64xf32>",
        "a view of rank 3 wants 3 element offsets, got 2",
    ),
    "element of load_global": (
        f"%q = mma.load_global %w[%z, %z, %z] : !tile.view<2x64x64xf32> -> {A}",
        "the view holds f32, the tile f16",
    ),
    "offsets of load_global": (
        f"%q = mma.load_global %v[%z] : !tile.view<64x64xf16> -> {A}",
        "a view of rank 2 wants 2 element offsets, got 1",
    ),
    "element of any_nonfinite": (
        f"%i = mma.coord 1 from %z : {fragment('1x32', 'i32')}\n%q = mma.any_nonfinite %i : {fragment('1x32', 'i32')}",
        "any_nonfinite tests floats",
    ),
    "element of any": (f"%q = mma.any %c : {C}", "any takes a fragment of i1"),
    "places of mma": (
        f"%q = mma.mma %b, %b, %c : ({B}, {B}) -> {C}",
        "operand a of mma is a fragment of place a, got b",
    ),
    "accumulator of mma": (
        f"%q = mma.mma %a, %b, %a : ({A}, {B}) -> {A}",
        "operand c of mma is a fragment of place c, got a",
    ),
    "K of mma": (
        f'%q = mma.load %s["a"][%z, %z] : {READ} -> {fragment("64x32", place="a")}\n'
        f"%p = mma.mma %q, %b, %c : ({fragment('64x32', place='a')}, {B}) -> {C}",
        "mma contracts K = 32 of a with K = 16 of b",
    ),
    "shape of mma": (
        f"%q = mma.fill 0.0 : f16 : {fragment('64x64')}\n%p = mma.mma %a, %b, %q : ({A}, {B}) -> {fragment('64x64')}",
        "mma of these operands gives 64x32, not 64x64",
    ),
    "atoms of mma": (
        f"%q = mma.fill 0.0 : f16 : {fragment('64x32', atom='m16n8k8')}\n"
        f"%p = mma.mma %a, %b, %q : ({A}, {B}) -> {fragment('64x32', atom='m16n8k8')}",
        "mma wants fragments of one atom",
    ),
    "result of mma": (f"%q = mma.mma %a, %b, %c : ({A}, {B}) -> {F}", "!mma.fragment<64x32xf32"),
    "policy of bf16": (
        f"%g = mma.fill 0.0 : bf16 : {fragment('64x16', 'bf16', 'a')}\n%h = mma.fill 0.0 : bf16 : "
        f"{fragment('32x16', 'bf16', 'b')}\n%q = mma.mma %g, %h, %f accumulate<hybrid> : "
        f"({fragment('64x16', 'bf16', 'a')}, {fragment('32x16', 'bf16', 'b')}) -> {F}",
        "accumulate<hybrid> needs f16 operands, got bf16",
    ),
    "operands of map": (f"%q = mma.map add %c : ({C}) -> {C}", "map add takes 2 operand(s), got 1"),
    "broadcast of map": (
        f"%q = mma.map add %a, %c : ({A}, {C}) -> {C}",
        "operand of shape 64x16 does not broadcast to 64x32",
    ),
    "type of what CTAs give each other": (
        f'mma.scatter %c by %z -> %given["sums"][%z] : {C} -> {GIVEN}',
        "CTAs give each other f32 sums",
    ),
    "pipeline of what CTAs give each other": (
        f'mma.scatter %f by %z -> %o["c"][%z] : {F} -> !async_copy.slot<@out, fill>',
        "pipeline @out is not one of a cluster",
    ),
    "field of what CTAs give each other": (
        f'mma.scatter %f by %z -> %given["none"][%z] : {F} -> {GIVEN}',
        "pipeline @sums has no field 'none' of rows of f32",
    ),
    "columns of what CTAs give each other": (
        f"%q = mma.fill 0.0 : f32 : {fragment('64x16', 'f32')}\n"
        f'  mma.scatter %q by %z -> %given["sums"][%z] : {fragment("64x16", "f32")} -> {GIVEN}',
        "4 CTAs share 16 columns of 64 rows, and field 'sums' has 192x8",
    ),
    "part of a fragment": (
        f"%q = mma.part %f, %z of 3 : {F} -> {fragment('64x8', 'f32')}",
        "is none of 3 parts of the columns of",
    ),
    "unknown map": (f"%q = mma.map cosh %c : ({C}) -> {C}", "`gelu_tanh`"),
    "shape of reduce": (
        f"%q = mma.reduce sum %f : {F} -> {fragment('1x16', 'f32')}",
        "reduce takes a c fragment of R x C to R x 1, to R x D where D divides C, or to 1 x C",
    ),
    "place of reduce": (
        f"%q = mma.reduce sum %a : {A} -> {fragment('64x1', place='a')}",
        "reduce takes a c fragment of R x C to R x 1",
    ),
    "shape of convert": (f"%q = mma.convert %f : {F} to {fragment('32x64')}", "convert keeps the shape"),
    "slice outside": (
        f"%q = mma.slice %c at [48, 8] : {C} -> {fragment('32x8')}",
        "slice of 32x8 at [48, 8] leaves 64x32",
    ),
    "slice of another type": (
        f"%q = mma.slice %c at [0, 0] : {C} -> {fragment('32x8', 'f32')}",
        "slice keeps element type, place and atom",
    ),
    "join of too little": (
        f"%q = mma.join %c, %c axis 0 : {C}, {C} -> {fragment('64x64')}",
        "join of these fragments along axis 0 does not give !mma.fragment<64x64xf16",
    ),
    "axis of join": (f"%q = mma.join %c axis 2 : {C} -> {C}", "join takes at least one fragment along axis 0 or 1"),
}


def test_round_trip():
    module = ir.parse_module(WHOLE, "whole.mlir")
    ir.verify_module(module)
    text = ir.print_module(module)
    again = ir.parse_module(text, "again.mlir")
    ir.verify_module(again)
    assert ir.print_module(again) == text
    assert {op.name for op in module.walk() if op.name.startswith("mma.")} == {op.name for op in mma.Mma.operations}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_rules(case: str):
    body, sentence = BROKEN[case]
    with pytest.raises(EmmyError) as caught:
        ir.verify_module(ir.parse_module(HEAD + body + "\n}\n", "k.mlir"))
    assert sentence in caught.value.message
    assert caught.value.location is not None
    assert caught.value.location.line > HEAD.count("\n")
