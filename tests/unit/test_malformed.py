"""Malformed input of every kind: one sentence with its place, exit code 1, no traceback, and nothing written."""
# ruff: noqa: E501 (a case is a line)

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import emmy
from emmy.tools import cli, opt

MATMUL = """func.func @mm(%a: tensor<64x32xf16>, %b: tensor<32x64xf16>) -> tensor<64x64xf16> {
  %c = tensor_op.matmul %a, %b : (tensor<64x32xf16>, tensor<32x64xf16>) -> tensor<64x64xf16>
  func.return %c : tensor<64x64xf16>
}
"""
DYNAMIC = MATMUL.replace("64x32xf16", "?x?xf16").replace("32x64xf16", "?x64xf16").replace("64x64xf16", "?x64xf16")
SQUARE = """func.func @f(%a: tensor<64x64xf16>, %b: tensor<64x64xf16>) -> tensor<64x64xf16> {
  %c = tensor_op.map add %a, %b : (tensor<64x64xf16>, tensor<64x64xf16>) -> tensor<64x64xf16>
  func.return %c : tensor<64x64xf16>
}
"""
KERNEL = """tile.kernel @k(%a: !tile.view<64x64xf16>) schedule <block = [64, 64, 64], warps = [1, 1]> {
  async_copy.pipeline @p stages 2 {x = !tile.tile<64x64xf16>}
  %z = arith.constant 0 : index
  async_copy.producer {
    %c = async_copy.begin_fill @p
    %s, %n = async_copy.acquire @p[%c]
    async_copy.copy %a[%z, %z] -> %s["x"] : !tile.view<64x64xf16> -> !async_copy.slot<@p, fill>
    async_copy.commit @p, %s
    async_copy.drain @p
  }
  async_copy.consumer {
    %c = async_copy.begin_read @p
    %s, %n = async_copy.wait @p[%c]
    async_copy.release @p, %s
    async_copy.drain @p
  }
}
"""
SCHEDULE = "block = [64, 64, 32], warps = [2, 1], stages = 2"


def edit(old: str, new: str, text: str = MATMUL) -> str:
    """The text with every `old` replaced; a case whose `old` is not there would test nothing."""
    assert old in text
    return text.replace(old, new)


def policy(words: str) -> str:
    """The product with an accumulation policy."""
    return edit("%a, %b :", f"%a, %b accumulate<{words}> :")


def schedule(old: str, new: str) -> str:
    """The product with a schedule that is legal but for one field."""
    return edit("%a, %b :", f"%a, %b {{emmy.schedule = #tile.schedule<{edit(old, new, SCHEDULE)}>}} :")


def body(lines: str, text: str = SQUARE) -> str:
    """The function with other lines before its return."""
    start, end = text.index("\n") + 1, text.index("  func.return")
    return text[:start] + lines + text[end:]


@dataclass(frozen=True)
class Case:
    """A text, where its error is (`line:column`, or "" if only the file is named), and the sentence.

    A sentence that ends in `...` goes on with a list that grows.
    """

    name: str
    text: str | bytes
    place: str
    sentence: str


# ---- what the parser and the verifiers refuse: every tool says the same ----------------------------------------------

READING = (
    # files
    Case("an empty file", "", "1:1", "the text holds no operation"),
    Case("blank lines", "\n \n\t\n", "1:1", "the text holds no operation"),
    Case("a comment only", "// nothing here\n", "1:16", "an operation was expected here"),
    Case("a binary file", bytes(range(256)), "", "'bad.mlir' is not a text file: byte 128 is not UTF-8"),
    Case("Latin-1", edit("@mm", "@mé").encode("latin-1"), "", "'bad.mlir' is not a text file: byte 12 is not UTF-8"),
    Case("UTF-16", MATMUL.encode("utf-16"), "", "'bad.mlir' is not a text file: byte 0 is not UTF-8"),
    Case("a zero byte", edit("tensor<64x32", "tensor<64\0x32"), "", "'bad.mlir' is not a text file: byte 27 is zero"),
    Case("CRLF", edit("%a, %b :", "%a, %q :").replace("\n", "\r\n").encode(), "2:29", "%q is used but not defined"),
    Case("tabs", edit("  %c = tensor_op.matmul %a, %b", "\t\t%c = tensor_op.matmul %a, %q"), "2:29", "%q is used but not defined"),
    Case("a byte-order mark", b"\xef\xbb\xbf" + edit("return %c", "return %q").encode(), "3:15", "%q is used but not defined"),
    Case("an unknown first character", "$", "1:1", "Unexpected character: $"),
    # syntax
    Case("prose", "this is no IR at all\n", "1:1", "there is no operation 'this'"),
    Case("a comma is missing", edit("%a, %b :", "%a %b :"), "2:28", "Expected ',', got '%b'"),
    Case("an arrow is missing", edit(") -> tensor<64x64xf16>\n", ") tensor<64x64xf16>\n"), "2:73", "Expected '->', got 'tensor'"),
    Case("an unknown word", edit("%a, %b :", "%a, %b transpose :"), "2:32", "Expected ':', got 'transpose'"),
    Case("two names for one result", edit("%c = tensor", "%c, %d = tensor"), "2:3", "results and their names differ in number: 1 and 2"),
    Case("a brace is missing", MATMUL.rstrip("}\n"), "3:37", "the block is not closed: '}' was expected here"),
    Case("a brace too many", MATMUL + "}\n", "5:1", "an operation was expected here"),
    Case("an open string", 'func.func @f() attributes {a = "x} {\n}', "1:32", "End of file reached before closing string literal."),
    Case("an open string in a long line", f'"builtin.module{" " * 200}\n', "1:1", "End of file reached before closing string literal."),
    Case("a symbol without a name", edit("@mm", "@"), "1:11", "@ identifier expected to start with letter, '_', or '\"'."),
    Case("two dots in a number", "%a = arith.constant 1.0.0 : f32\n", "1:24", "Expected three consecutive '.' for an ellipsis"),
    Case("5000 digits", f"%a = arith.constant {'9' * 5000} : i32\n", "1:1", "an integer has too many digits"),
    Case("an integer beyond its type", f"%a = arith.constant {10**30} : i32\n", "1:1", f"Integer value {10**30} is out of range for type i32 which supports values in the range [-2147483648, 4294967296)"),
    Case("a nesting of modules", "builtin.module {" * 2000, "1:", "operations or attributes are nested too deeply"),
    Case("a nesting of lists", "builtin.module attributes {a = " + "[" * 3000 + "} {}", "1:1", "operations or attributes are nested too deeply"),
    Case("a nesting of types", "func.func @f(%a: " + "tuple<" * 900, "1:1", "operations or attributes are nested too deeply"),
    # names
    Case("an unknown dialect", edit("tensor_op.matmul", "tensorop.matmul"), "2:8", "there is no operation 'tensorop.matmul'"),
    Case("an unknown op", edit("tensor_op.matmul", "tensor_op.matmull"), "2:8", "there is no operation 'tensor_op.matmull'"),
    Case("an unknown op in the generic form", edit("tensor_op.matmul %a, %b", '"foo.bar"(%a, %b)'), "2:9", "there is no operation 'foo.bar'"),
    Case("an unknown attribute", edit("%a, %b :", "%a, %b {s = #tile.sched<1>} :"), "2:48", "there is no attribute or type 'tile.sched'"),
    Case("an unknown type", edit("tensor<64x32xf16>", "!foo.tensor<64x32xf16>"), "1:30", "there is no attribute or type 'foo.tensor'"),
    Case("an unknown alias", edit("%a, %b :", "%a, %b {s = #alias} :"), "2:43", "undefined symbol alias '#alias'"),
    Case("an unknown element type", edit("64x32xf16", "64x32xf17"), "1:32", "a dimension, or an element type such as f16, was expected here"),
    Case("a negative size", edit("64x32xf16", "-64x32xf16"), "1:26", "a dimension, or an element type such as f16, was expected here"),
    Case("an undefined value", edit("%a, %b :", "%a, %q :"), "2:29", "%q is used but not defined"),
    Case("a use before the definition", body("  %d = tensor_op.map exp %c : (tensor<64x64xf16>) -> tensor<64x64xf16>\n  %c = tensor_op.map exp %a : (tensor<64x64xf16>) -> tensor<64x64xf16>\n"), "2:3", "operand 0 of 'tensor_op.map' uses %c, the result of 'tensor_op.map', where it is not defined (defined later or elsewhere)"),
    Case("a value defined twice", MATMUL.replace("  func.return", MATMUL.splitlines()[1] + "\n  func.return"), "3:3", "SSA value %c is already defined"),
    Case("an argument twice", edit("%b: tensor", "%a: tensor"), "1:38", "SSA value %a is already defined"),
    Case("a function twice", MATMUL + MATMUL, "5:1", "@mm is defined twice; the first is in line 1"),
    Case("a pipeline twice", edit("  %z =", "  async_copy.pipeline @p stages 2 {x = !tile.tile<64x64xf16>}\n  %z =", KERNEL), "3:3", "@p is defined twice; the first is in line 2"),
    Case("an unknown function is called", edit("  func.return", "  %d = func.call @g(%c) : (tensor<64x64xf16>) -> tensor<64x64xf16>\n  func.return"), "3:3", "'func.call': '@g' could not be found in symbol table"),
    # ranks, shapes and types
    Case("tensors of rank 0", edit("64x32xf16", "f16").replace("32x64xf16", "f16").replace("64x64xf16", "f16"), "2:3", "'tensor_op.matmul': matmul wants operands and result of one rank, at least 2; got a scalar, a scalar, a scalar"),
    Case("a tensor of rank 1", edit("64x32xf16", "32xf16"), "2:3", "'tensor_op.matmul': matmul wants operands and result of one rank, at least 2; got 32, 32x64, 64x64"),
    Case("different ranks", edit("64x32xf16", "2x64x32xf16"), "2:3", "'tensor_op.matmul': matmul wants operands and result of one rank, at least 2; got 2x64x32, 32x64, 64x64"),
    Case("a tensor without rank", edit("64x32xf16", "*xf16"), "2:3", "a tensor was expected, got tensor<*xf16>"),
    Case("a memref", edit("tensor<64x32xf16>", "memref<64x32xf16>"), "2:3", "a tensor was expected, got memref<64x32xf16>"),
    Case("different contractions", edit("32x64xf16", "48x64xf16"), "2:3", "'tensor_op.matmul': matmul contracts K = 32 of A with K = 48 of B; they must be equal"),
    Case("a dynamic result of static operands", edit("64x64xf16", "?x64xf16"), "2:3", "'tensor_op.matmul': matmul of these operands gives 64x64, not ?x64"),
    Case("a static result of dynamic operands", edit("?x64xf16>\n", "64x64xf16>\n", DYNAMIC), "2:3", "'tensor_op.matmul': matmul of these operands gives ?x64, not 64x64"),
    Case("a dynamic batch and a static one", body("  %c = tensor_op.matmul %x, %y : (tensor<?x4x4xf16>, tensor<2x4x4xf16>) -> tensor<2x4x4xf16>\n").replace("%a: tensor<64x64xf16>, %b: tensor<64x64xf16>", "%x: tensor<?x4x4xf16>, %y: tensor<2x4x4xf16>").replace("tensor<64x64xf16>", "tensor<2x4x4xf16>"), "2:3", "'tensor_op.matmul': matmul wants equal leading (batch) dimensions on both operands and the result"),
    Case("f64", edit("xf16", "xf64"), "2:3", "'tensor_op.matmul': matmul operands are f16, bf16, f8E4M3FN or f8E5M2, got f64"),
    Case("i32", edit("xf16", "xi32"), "2:3", "'tensor_op.matmul': matmul operands are f16, bf16, f8E4M3FN or f8E5M2, got i32"),
    Case("two operand types", edit("32x64xf16", "32x64xbf16"), "2:3", "'tensor_op.matmul': matmul operands have one element type, got f16 and bf16"),
    Case("an integer result", edit("64x64xf16", "64x64xi8"), "2:3", "'tensor_op.matmul': matmul of f16 gives f16 or f32, got i8"),
    Case("a map of integers", edit("xf16", "xi32", SQUARE), "2:3", "'tensor_op.map': map works on float tensors, got tensor<64x64xi32>"),
    Case("a map of too many", edit("map add", "map exp", SQUARE), "2:3", "'tensor_op.map': map exp takes 1 operand(s), got 2"),
    Case("an unknown map", edit("map add", "map plus", SQUARE), "2:22", "Expected `add`, `sub`, `mul`, `div`, ..."),
    Case("a map that does not broadcast", edit("tensor_op.matmul", "tensor_op.map add"), "2:3", "'tensor_op.map': operand of shape 64x32 does not broadcast to 64x64"),
    Case("a cast to another shape", body("  %c = tensor_op.cast %a : tensor<64x64xf16> to tensor<64x32xf32>\n"), "3:15", "operand is used with type tensor<64x64xf16>, but has been previously used or defined with type tensor<64x32xf32>"),
    Case("a type unlike the definition's", edit(": (tensor<64x32xf16>,", ": (tensor<64x48xf16>,"), "2:25", "operand is used with type tensor<64x48xf16>, but has been previously used or defined with type tensor<64x32xf16>"),
    Case("no return", edit("  func.return %c : tensor<64x64xf16>\n", ""), "2:3", "Operation tensor_op.matmul terminates block in single-block region but is not a terminator"),
    Case("a return of too few", edit("return %c : tensor<64x64xf16>", "return"), "3:3", "'func.return': Expected arguments to have the same types as the function output types: expected [tensor<64x64xf16>], got []"),
    Case("a return of another type", edit("-> tensor<64x64xf16> {", "-> tensor<64x64xf32> {"), "3:3", "'func.return': Expected arguments to have the same types as the function output types: expected [tensor<64x64xf32>], got [tensor<64x64xf16>]"),
    Case("a literal of another shape", "%a = arith.constant dense<[1.0, 2.0]> : tensor<3xf32>\n", "1:54", "Shape mismatch in dense literal. Expected [3] shape from the type, but got [2] shape."),
    Case("several errors: the first counts", edit("64x64xf16", "64x65xf16") + edit("@mm", "@nn").replace("32x64xf16", "48x64xf16"), "2:3", "'tensor_op.matmul': matmul of these operands gives 64x64, not 64x65"),
    # policies and schedules, as far as they need no target
    Case("an unknown policy", policy("f64"), "2:3", "accumulate is one of f32, f16, hybrid, got 'f64'"),
    Case("an unknown field of a policy", policy("hybrid, max = 3"), "2:57", "accumulate has no field 'max'; its fields are max_k, overflow and partial"),
    Case("max_k within a k-step", policy("hybrid, max_k = 17"), "2:3", "max_k is a positive multiple of 16 (one k-step), got 17"),
    Case("f16 sums of bf16", edit("xf16", "xbf16", policy("f16")), "2:3", "'tensor_op.matmul': accumulate<f16> needs f16 operands, got bf16"),
    Case("an unknown field of a schedule", schedule("block", "blocks"), "2:64", "a schedule has no field 'blocks'; its fields are ..."),
    Case("a field twice", schedule("stages = 2", "stages = 2, stages = 3"), "2:114", "the schedule's field 'stages' is given twice"),
    Case("a word for a number", schedule("stages = 2", "stages = two"), "2:111", "Expected integer literal"),
    Case("a negative number of stages", schedule("stages = 2", "stages = -1"), "2:111", "Expected integer literal"),
    Case("no stages", schedule("stages = 2", "stages = 0"), "2:3", "illegal schedule: stages is from 1 to 16, got 0"),
    Case("two block sizes", schedule("[64, 64, 32]", "[64, 64]"), "2:3", "illegal schedule: block is three positive multiples of 16 (M, N, K), got [64, 64]"),
    Case("a block of 100", schedule("[64, 64, 32]", "[64, 100, 32]"), "2:3", "illegal schedule: block is three positive multiples of 16 (M, N, K), got [64, 100, 32]"),
    Case("three rows of warps", schedule("[2, 1]", "[3, 1]"), "2:3", "illegal schedule: block[0] = 64 does not split over 3 warps in multiples of 16"),
    Case("too many warps", schedule("[64, 64, 32], warps = [2, 1]", "[1024, 256, 16], warps = [32, 4]"), "2:3", "illegal schedule: a CTA has at most 32 warps, got 128"),
    Case("unknown roles", schedule("stages = 2", "stages = 2, roles = many"), "2:3", "illegal schedule: roles is one of unified, specialized, got 'many'"),
    Case("a schedule of a kernel", "tile.kernel @k() schedule <block = [1, 2, 3]> {\n}\n", "1:1", "illegal schedule: block is three positive multiples of 16 (M, N, K), got [1, 2, 3]"),
    # kernels
    Case("a tensor for a view", "tile.kernel @k(%a: tensor<4x4xf16>) {\n}\n", "1:1", "'tile.kernel': kernel arguments are views, got tensor<4x4xf16>"),
    Case("a launch with too few", "func.func @f() {\n  %g = arith.constant 1 : index\n  tile.launch @k[%g] () :\n  func.return\n}\ntile.kernel @k(%a: !tile.view<4x4xf16>) {\n}\n", "3:3", "'tile.launch': kernel @k takes 1 view(s), got 0 tensor(s)"),
    Case("more CTAs than tiles", "func.func @f(%a: tensor<20x4xf16>) {\n  %g = arith.constant 3 : index\n  tile.launch @k[%g] (%a) : tensor<20x4xf16>\n  func.return\n}\ntile.kernel @k(%a: !tile.view<20x4xf16>) {\n  %c20 = arith.constant 20 : index\n  %m = tile.grid [%c20 by 16] raster 1\n}\n", "3:3", "'tile.launch': the tile.grid of kernel @k has 2 tile(s), and 3 CTAs are launched: the others would have none"),
    Case("a launch with a type too few", "func.func @f() {\n  %g = arith.constant 1 : index\n  tile.launch @k[%g] (%g) :\n  func.return\n}\n", "3:3", "types and operands differ in number: 0 and 1"),
    Case("a fill of another type", "tile.kernel @k() {\n  %z = tile.fill 0.0 : f16 : !tile.tile<4x4xf32>\n}\n", "2:3", "'tile.fill': fill of a tile of f32 wants a value of that type, got f16"),
    Case("an unknown place of a fragment", "tile.kernel @k() {\n  %z = mma.fill 0.0 : f32 : !mma.fragment<16x8xf32, d, m16n8k16>\n}\n", "2:3", "a fragment's place is one of a, b, c, got 'd'"),
    Case("an unknown field of a slot", edit('%s["x"]', '%s["y"]', KERNEL), "7:5", "'async_copy.copy': pipeline @p has no field 'y'"),
    Case("one offset of two", edit("%a[%z, %z]", "%a[%z]", KERNEL), "7:5", "'async_copy.copy': a view of rank 2 wants 2 element offsets, got 1"),
    Case("a pipeline without stages", edit("stages 2", "stages 0", KERNEL), "2:3", "'async_copy.pipeline': a pipeline has 1 to 1024 stages, got 0"),
    Case("a pipeline of too many stages", edit("stages 2", f"stages {2**31}", KERNEL), "2:3", f"'async_copy.pipeline': a pipeline has 1 to 1024 stages, got {2**31}"),
    Case("the cursor of another pipeline", edit("begin_fill @p", "begin_fill @q", KERNEL), "6:36", "operand is used with type !async_copy.cursor<@p, fill>, but has been previously used or defined with type !async_copy.cursor<@q, fill>"),
)  # fmt: skip


# ---- what a compilation refuses --------------------------------------------------------------------------------------

ONLY = "a function of tensor_op ops holds only them and func.return; got"
COMPILING = (
    Case("f64 in a map", edit("xf16", "xf64", SQUARE), "2:3", "kernels work on f16, bf16 and f32 tensors, got tensor<64x64xf64>"),
    Case("a map of rank 0", edit("64x64xf16", "f16", SQUARE), "2:3", "kernels work on tensors of rank 1 and more, got tensor<f16>"),
    Case("an operand of rank 0", edit("%b: tensor<64x64xf16>", "%b: tensor<f16>", edit(", tensor<64x64xf16>)", ", tensor<f16>)", SQUARE)), "2:3", "kernels work on tensors of rank 1 and more, got tensor<f16>"),
    Case("a dimension of more than 32 bits", edit("64", "9999999999"), "2:3", "a dimension of tensor<9999999999x32xf16> is over 2147482624, the largest that is counted in 32 bits"),
    Case("a scalar argument", edit("%b: tensor<64x64xf16>)", "%b: tensor<64x64xf16>, %p: i1)", SQUARE), "1:1", "function @f takes and gives tensors; got i1"),
    Case("scf.if", body("  %p = arith.constant true\n  %c = scf.if %p -> (tensor<64x64xf16>) {\n    scf.yield %a : tensor<64x64xf16>\n  } else {\n    scf.yield %b : tensor<64x64xf16>\n  }\n"), "2:3", f"{ONLY} 'arith.constant'"),
    Case("scf.for", body("  %z = tensor_op.map exp %a : (tensor<64x64xf16>) -> tensor<64x64xf16>\n  %i = arith.constant 1 : index\n  %c = scf.for %k = %i to %i step %i iter_args(%x = %z) -> (tensor<64x64xf16>) {\n    scf.yield %x : tensor<64x64xf16>\n  }\n"), "3:3", f"{ONLY} 'arith.constant'"),
    Case("a constant tensor", body("  %k = arith.constant dense<1.0> : tensor<64x64xf16>\n  %c = tensor_op.map add %a, %k : (tensor<64x64xf16>, tensor<64x64xf16>) -> tensor<64x64xf16>\n"), "2:3", f"{ONLY} 'arith.constant'"),
    Case("arith on tensors", body("  %c = arith.addf %a, %b : tensor<64x64xf16>\n"), "2:3", f"{ONLY} 'arith.addf'"),
    Case("a recursion", body("  %c = func.call @f(%a, %b) : (tensor<64x64xf16>, tensor<64x64xf16>) -> tensor<64x64xf16>\n"), "2:3", f"{ONLY} 'func.call'"),
    Case("a declaration", "func.func private @g(tensor<4x4xf16>) -> tensor<4x4xf16>\n" + MATMUL, "1:1", "function @g has no body; write one, or remove the declaration"),
    Case("an op outside functions", "%a = arith.constant 1 : i32\n", "1:1", "a module holds functions and kernels; got 'arith.constant'"),
    Case("a kernel inside a function", "func.func @f() {\n  tile.kernel @k() {\n  }\n  func.return\n}\n", "2:3", "'tile.kernel' stands in a module, not in function @f"),
    Case("a name that PTX cannot have", edit("@mm", '@"my kernel; ret"'), "1:1", '"my kernel; ret" is no name for PTX: it has letters, digits, _ and $'),
    Case("no op at all", "func.func @f() {\n  func.return\n}\n", "1:1", "there is nothing to compile: function @f returns the result of no tensor_op op"),
    Case("an unused product", edit("-> tensor<64x64xf16> {", "{").replace("return %c : tensor<64x64xf16>", "return"), "1:1", "there is nothing to compile: function @mm returns the result of no tensor_op op"),
    Case("an argument returned", body("", SQUARE).replace("return %c", "return %a"), "1:1", "there is nothing to compile: function @f returns the result of no tensor_op op"),
    Case("a result twice", edit("-> tensor<64x64xf16> {", "-> (tensor<64x64xf16>, tensor<64x64xf16>) {").replace("return %c : tensor<64x64xf16>", "return %c, %c : tensor<64x64xf16>, tensor<64x64xf16>"), "3:3", "function @mm returns one value twice"),
    Case("an unknown kernel is launched", "func.func @f() {\n  %g = arith.constant 1 : index\n  tile.launch @k[%g] () :\n  func.return\n}\n", "3:3", "there is no kernel @k"),
    Case("a module's policy of another kind", "builtin.module attributes {emmy.accumulate = 3 : i32} {\n" + MATMUL + "}\n", "1:1", "emmy.accumulate is a #tensor_op.accumulate<..>, got 3 : i32"),
    Case("a schedule of another kind", edit("%a, %b :", "%a, %b {emmy.schedule = 7 : i32} :"), "2:3", "emmy.schedule is a #tile.schedule<..>, got 7 : i32"),
    Case("more shared memory than there is", schedule("[64, 64, 32], warps = [2, 1], stages = 2", "[256, 256, 128], warps = [2, 4], stages = 3"), "2:3", "illegal schedule: it needs 393216 bytes of shared memory, and a CTA of sm_80 has 166912; reduce block or stages"),
    Case("more registers than there are", schedule("[64, 64, 32], warps = [2, 1]", "[256, 256, 32], warps = [1, 1]"), "2:3", "illegal schedule: each thread needs at least 2200 registers and can have 255; use more warps or a smaller block"),
    Case("TMA on sm_80", schedule("stages = 2", "stages = 2, transport = tma"), "2:3", "illegal schedule: transport = tma needs sm_90 or later, and the target is sm_80; use cp_async"),
    Case("a slot that is not committed", edit("    async_copy.commit @p, %s\n", "", KERNEL), "6:5", "a slot of pipeline @p is not committed on every path"),
    Case("a slot that is not released", edit("    async_copy.release @p, %s\n", "", KERNEL), "13:5", "a slot of pipeline @p is not released on every path"),
)  # fmt: skip


# ---- options ---------------------------------------------------------------------------------------------------------

OPTIONS = (
    ("compile bad.mlir -o absent/out.ptx", "cannot write 'absent/out.ptx': no such file or directory"),
    ("compile bad.mlir -o absent/out.mlir", "cannot write 'absent/out.mlir': no such file or directory"),
    ("compile bad.mlir -o bad.mlir/out.ptx", "cannot write 'bad.mlir/out.ptx': not a directory"),
    ("compile bad.mlir -o folder.ptx", "cannot write 'folder.ptx': it is a directory"),
    ("compile bad.mlir -o /proc/out.ptx", "cannot write '/proc/out.ptx': no such file or directory"),
    ("compile bad.mlir -o /proc/out", "cannot write '/proc/out': no such file or directory"),
    ("compile bad.mlir -o out.txt", "'out.txt' ends in none of .ptx, .cubin, .mlir; a folder's name has no dot"),
    ("compile bad.mlir -o empty", "'empty' exists and is no artefact; it is left as it is"),
    ("compile bad.mlir --dump-ir bad.mlir", "cannot create 'bad.mlir': file exists"),
    ("compile folder.ptx", "cannot read 'folder.ptx': is a directory"),
    ("compile absent.mlir", "cannot read 'absent.mlir': no such file or directory"),
    ("compile bad.mlir --target sm_10", "unknown target 'sm_10'; the targets are ..."),
    ("compile bad.mlir --target sm_90", "target 'sm_90' is not one of Emmy's; use 'sm_90a'"),
    ("compile bad.mlir --accumulate f17", "'f17' is no accumulation policy: accumulate is one of f32, f16, hybrid, got 'f17'"),
    ("compile bad.mlir --opt-level 9", "optimisation level 9 does not exist; ptxas has 0 to 3"),
    ("compile bad.mlir --entry nn", "the module has no function 'nn'; it has mm"),
    ("compile bad.mlir --level nowhere", "the compilation had no stage 'nowhere'; there are input, ..."),
    ("compile bad.mlir --level tile -o out.ptx", "--level writes text of the IR; 'out.ptx' does not end in .mlir"),
    ("run bad.mlir --entry nn", "the module has no function 'nn'; it has mm"),
    ("run bad.mlir --shape x=1x1", "--shape x=1x1: there is no argument 'x'; there are a, b"),
    ("run bad.mlir --shape a=64", "--shape a=64: 'a' has 2 dimensions, got 1"),
    ("run bad.mlir --shape a=64xfoo", "--shape a=64xfoo: sizes are numbers, as in a=256x256"),
    ("run bad.mlir --shape a=-1x2", "--shape a=-1x2: sizes are numbers, as in a=256x256"),
    ("run bad.mlir --shape a", "--shape a: sizes are numbers, as in a=256x256"),
    ("run bad.mlir --shape b=8x65", "--shape b=8x65: the function takes ?x64"),
    ("run bad.mlir --shape a=8x8 --shape a=9x8", "--shape a=9x8: the shape of 'a' is given twice"),
    ("run bad.mlir --shape a=8x8 --shape b=9x64", "these shapes do not fit each other (8 and 9): the matmul contracts sizes of its operands that must be equal: ..."),
    ("check bad.mlir --shape a=8x8 --shape b=9x64", "these shapes do not fit each other (8 and 9): the matmul contracts sizes of its operands that must be equal: ..."),
    ("run bad.mlir --shape a=9999999999x99999999", "argument 'a' of 9999999999x99999999 does not fit into this machine's memory"),
    ("run bad.mlir --random -1", "--random takes a seed that is 0 or more, got -1"),
    ("opt bad.mlir -p no-such-pass", "there is no pass 'no-such-pass'; emmy-opt --list-passes lists them"),
    ("opt bad.mlir -p canonicalise", "there is no pass 'canonicalise'; did you mean 'canonicalize'?"),
    ("opt bad.mlir -p cse{", "cannot read the passes 'cse{': Expected argument name here"),
    ("opt bad.mlir -p cse,,dce", "cannot read the passes 'cse,,dce': Expected pass name here"),
    ("opt bad.mlir -p cse}", "cannot read the passes 'cse}': Expected a comma or pass arguments here"),
    ("opt bad.mlir -p cse{x=1}", "pass 'cse' has no option 'x'; it has none"),
    ("opt bad.mlir -p split-accumulation{order=x}", "option 'order' of pass 'split-accumulation' is one of auto, slices, steps, got 'x'"),
    ("opt bad.mlir -p assign-schedule{stages=many}", "option 'stages' of pass 'assign-schedule' takes int, got 'many'"),
    ("opt bad.mlir -p assign-schedule{stages=2,3}", "option 'stages' of pass 'assign-schedule' takes int, got '2,3'"),
    ("opt bad.mlir -p assign-schedule{stagess=1}", "pass 'assign-schedule' has no option 'stagess'; its options are ..."),
    ("opt bad.mlir -p assign-schedule{target=sm_10}", "unknown target 'sm_10'; the targets are ..."),
    ("opt bad.mlir -p lower-transport{kind=foo}", "option 'kind' of pass 'lower-transport' is one of auto, cp_async, plain, tma, got 'foo'"),
    ("opt bad.mlir --target sm_10", "unknown target 'sm_10'; the targets are ..."),
    ("opt bad.mlir -o absent/out.mlir", "cannot write 'absent/out.mlir': no such file or directory"),
    ("opt absent.mlir", "cannot read 'absent.mlir': no such file or directory"),
    ("opt folder.ptx", "cannot read 'folder.ptx': is a directory"),
)  # fmt: skip
"""A command line over `DYNAMIC`, and the sentence."""

PLACED_OPTIONS = (
    ("opt bad.mlir -p assign-schedule{stages=100}", "2:3", "illegal schedule: stages is from 1 to 16, got 100"),
    ("opt bad.mlir -p assign-schedule{atom=foo}", "2:3", "illegal schedule: there is no atom foo; known atoms are ..."),
    ("opt bad.mlir -p lower-tensor-op", "2:3", "this product has no emmy.schedule; run assign-schedule{target=..} before lower-tensor-op"),
    ("opt bad.mlir -t ptx", "1:1", "there is no ptx.kernel to print; lower-to-ptx makes them"),
)  # fmt: skip
"""The same, with a place in the text."""


# ---- the tests -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for all tests of this file: bad options mostly come with the same good text."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def folder(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with an output that must survive, and folders in the way."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EMMY_CACHE_DIR", str(cache))
    monkeypatch.setenv("EMMY_VERIFY_EACH", "0")
    (tmp_path / "out.mlir").write_text("what was there before")
    (tmp_path / "folder.ptx").mkdir()
    (tmp_path / "empty").mkdir()
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], folder: Path, words: list[str], place: str, sentence: str) -> None:
    """Run a command; it must fail with just this sentence at this place, and leave the folder as it was."""
    before = sorted(path.name for path in folder.rglob("*"))
    tool, *rest = words
    code = opt.main(rest) if tool == "opt" else cli.main(words)
    out, err = capsys.readouterr()
    assert (code, out) == (1, "")
    first, *shown = err.splitlines()
    prefix = f"bad.mlir:{place}" if place else ""
    assert first.startswith(prefix)
    told = first.removeprefix(prefix)
    if place.endswith(":"):
        told = told.lstrip("0123456789")
    wanted = f"{': ' if place else ''}error: {sentence}"
    assert told.startswith(wanted.removesuffix("...")) if sentence.endswith("...") else told == wanted
    assert len(shown) == (2 if place and (folder / "bad.mlir").read_bytes().strip() else 0)
    if shown:
        assert shown[1].strip() == "^"
    assert (folder / "out.mlir").read_text() == "what was there before"
    assert sorted(path.name for path in folder.rglob("*")) == before


def write(folder: Path, text: str | bytes) -> None:
    (folder / "bad.mlir").write_bytes(text if isinstance(text, bytes) else text.encode())


TOOLS = {
    "opt": "opt bad.mlir -o out.mlir",
    "compile": "compile bad.mlir --target sm_80 -o out.mlir",
    "run": "run bad.mlir --target sm_80 --device emulator",
    "check": "check bad.mlir --target sm_80",
}


@pytest.mark.parametrize("case", READING, ids=lambda case: case.name)
def test_what_cannot_be_read(case: Case, folder: Path, capsys: pytest.CaptureFixture[str]):
    write(folder, case.text)
    for command in TOOLS.values():
        refused(capsys, folder, command.split(), case.place, case.sentence)


@pytest.mark.parametrize("case", COMPILING, ids=lambda case: case.name)
def test_what_cannot_be_compiled(case: Case, folder: Path, capsys: pytest.CaptureFixture[str]):
    write(folder, case.text)
    for tool in ("compile", "run", "check"):
        refused(capsys, folder, TOOLS[tool].split(), case.place, case.sentence)


@pytest.mark.parametrize(("command", "sentence"), OPTIONS)
def test_options(command: str, sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]):
    write(folder, DYNAMIC)
    refused(capsys, folder, command.split(), "", sentence)


@pytest.mark.parametrize(("command", "place", "sentence"), PLACED_OPTIONS)
def test_options_with_a_place(
    command: str, place: str, sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
):
    write(folder, DYNAMIC)
    refused(capsys, folder, command.split(), place, sentence)


def mutations(text: str, count: int) -> Iterator[str]:
    """The text with one token removed, doubled, or replaced by another of it, or with one line removed."""
    choose = random.Random(0)
    tokens = list(re.finditer(r"[%@#!]?[\w.]+|[^\s\w]", text))
    for _ in range(count):
        token, other, lines = choose.choice(tokens), choose.choice(tokens), text.split("\n")
        lines.pop(choose.randrange(len(lines)))
        replaced = choose.choice(("", token[0] * 2, other[0]))
        yield choose.choice((text[: token.start()] + replaced + text[token.end() :], "\n".join(lines)))


@pytest.mark.parametrize("level", ["input", "tile", "lower-tile", "ptx"])
def test_slips_at_every_level(level: str, folder: Path, capsys: pytest.CaptureFixture[str]):
    text = emmy.compile(schedule("stages = 2", "stages = 3"), "sm_80").ir(level)
    failed = 0
    for mutant in mutations(text, 40):
        write(folder, mutant)
        code = opt.main(["bad.mlir", "-o", "new.mlir"])
        out, err = capsys.readouterr()
        assert (code, out) in ((0, ""), (1, ""))
        if code == 1:
            failed += 1
            assert re.match(r"bad\.mlir:\d+:\d+: error: \S", err), mutant
            assert len(err.splitlines()) in (1, 3)
            assert not (folder / "new.mlir").exists()
        else:
            assert err == ""
            (folder / "new.mlir").unlink()
    assert failed > 10


def test_the_texts_that_cases_are_made_from_are_fine(folder: Path, capsys: pytest.CaptureFixture[str]):
    for text in (MATMUL, DYNAMIC, SQUARE, KERNEL, schedule("stages = 2", "stages = 3")):
        write(folder, text)
        assert cli.main(["compile", "bad.mlir", "--target", "sm_80"]) == 0
        assert capsys.readouterr().err == ""


def test_a_process_says_the_same(folder: Path):
    write(folder, MATMUL.replace("%a, %b :", "%a, %q :"))
    command = [sys.executable, "-m", "emmy.tools.cli", "compile", "bad.mlir", "-o", "out.mlir"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "EMMY_DEBUG": ""})
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "bad.mlir:2:29: error: %q is used but not defined",
        "  %c = tensor_op.matmul %a, %q : (tensor<64x32xf16>, tensor<32x64xf16>) -> tensor<64x64xf16>",
        " " * 28 + "^",
    ]
