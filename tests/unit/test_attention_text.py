"""The text of the attention op: what is printed and read back, and what is malformed."""

import re

import pytest
from attention_texts import (
    ATTENTION,
    HALF,
    OPERANDS,
    PACKED,
    PAGED,
    RESULT,
    ROWS,
    TENSOR,
    WIDE,
    function,
    ragged,
    verified,
)

from emmy.errors import EmmyError
from emmy.ir import print_module

CLAUSES = [
    "scale 0.125",
    "scale -0.5 causal",
    "scale 0.0 window 7",
    "scale 1.0 causal window 1024 softcap 50.0",
    "scale 0.1 accumulate<hybrid, max_k = 64>",
    "scale 0.1 causal accumulate<f32> accumulate_scores<hybrid, max_k = 32>",
    "scale 0.1 {emmy.schedule = #tile.schedule<block = [32, 32, 32], warps = [2, 1]>}",
]


@pytest.mark.parametrize("clauses", CLAUSES)
def test_round_trip(clauses):
    text = print_module(verified(function(f"%o = tensor_op.attention %q, %k, %v {clauses} : {OPERANDS} -> {RESULT}")))
    assert f"tensor_op.attention %q, %k, %v {clauses} : {OPERANDS} -> {RESULT}" in text
    assert print_module(verified(text)) == text


def test_round_trip_with_a_bias_and_two_results():
    bias = "tensor<1x8x1x96xbf16>"
    op = f"%o, %l = tensor_op.attention %q, %k, %v scale 0.125 bias %b : ({TENSOR}, {HALF}, {WIDE}, {bias})"
    text = function(
        f"{op} -> ({RESULT}, {ROWS})",
        f"%q: {TENSOR}, %k: {HALF}, %v: {WIDE}, %b: {bias}",
        f"{RESULT}, {ROWS}",
        "%o, %l",
    )
    assert print_module(verified(print_module(verified(text)))) == print_module(verified(text))
    assert op in print_module(verified(text))


def types(q=TENSOR, k=HALF, v=WIDE, o=RESULT):
    return f"({q}, {k}, {v}) -> {o}"


MALFORMED = [
    (
        "scale 1.0 : " + types(q="tensor<8x64x32xf16>"),
        "the queries have 4 dimensions (batch, heads, rows, head dimension)",
    ),
    ("scale 1.0 : " + types(k="tensor<2x4x96x16xf16>"), "queries and keys have one head dimension, got 32 and 16"),
    ("scale 1.0 : " + types(k="tensor<2x4x96x?xf16>"), "heads and head dimension of the keys are static, got 2x4x96x?"),
    ("scale 1.0 : " + types(q="tensor<2x?x64x32xf16>"), "heads and head dimension of the queries are static"),
    ("scale 1.0 : " + types(v="tensor<2x4x96x513xf16>"), "head dimensions are from 1 to 512, got 32 and 513"),
    ("scale 1.0 : " + types(v="tensor<2x4x96x0xf16>"), "head dimensions are from 1 to 512, got 32 and 0"),
    ("scale 1.0 : " + types(k="tensor<2x3x96x32xf16>"), "8 query heads do not share 3 key and 4 value heads evenly"),
    ("scale 1.0 : " + types(k="tensor<2x0x96x32xf16>"), "8 query heads do not share 0 key and 4 value heads evenly"),
    ("scale 1.0 : " + types(v="tensor<2x4x95x48xf16>"), "there are as many values as keys, got 95 and 96"),
    ("scale 1.0 : " + types(k="tensor<3x4x96x32xf16>"), "batch sizes are equal, got 2x3x2"),
    ("scale 1.0 : " + types(o="tensor<2x8x64x32xf16>"), "attention of these operands gives 2x8x64x48, not 2x8x64x32"),
    ("scale 1.0 : " + types(q="tensor<2x8x64x32xf32>"), "queries, keys and values are f16 or bf16, got f32"),
    ("scale 1.0 : " + types(k="tensor<2x4x96x32xbf16>"), "queries, keys and values have one element type"),
    ("scale 1.0 : " + types(o="tensor<2x8x64x48xbf16>"), "the result of f16 values is f16 or f32, got bf16"),
    ("scale 1.0e31 : " + types(), "scale is a number from -1e30 to 1e30, got 1e+31"),
    ("scale 1.0 softcap 0.0 : " + types(), "softcap is a number from 1e-30 to 1e30, got 0.0"),
    ("scale 1.0 softcap -2.0 : " + types(), "softcap is a number from 1e-30 to 1e30, got -2.0"),
    ("scale 1.0 window 0 : " + types(), "window is a number of keys from 1 to 1073741823, got 0"),
    ("scale 1.0 window -3 : " + types(), "window is a number of keys from 1 to 1073741823, got -3"),
    ("scale 1.0 accumulate<f16> : " + types(), "attention accumulates in f32 or hybrid: its sums are rescaled"),
    ("scale 1.0 accumulate<hybrid, overflow = redo> : " + types(), "attention has no overflow = redo"),
    (
        "scale 1.0 accumulate<hybrid> : " + types(*(t.replace("f16", "bf16") for t in (TENSOR, HALF, WIDE, RESULT))),
        "accumulate<hybrid> needs f16 operands, got bf16",
    ),
    (": " + types(), "Expected 'scale'"),
    ("scale 1.0 : " + types(o=f"({RESULT}, {ROWS}, {ROWS})"), "gives its result and perhaps a logarithm for each row"),
    ("scale 1.0 bias %q : " + types(), "types and operands differ in number: 3 and 4"),
]


@pytest.mark.parametrize(("rest", "sentence"), MALFORMED)
def test_malformed(rest, sentence):
    signature = re.search(r": \((.*)\) -> \(?(.*?)\)?$", rest)
    q, k, v = signature[1].split(", ")
    text = function(ATTENTION + rest, f"%q: {q}, %k: {k}, %v: {v}", signature[2].split(", ")[0])
    with pytest.raises(EmmyError) as caught:
        verified(text)
    assert sentence in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.location.line == 2


@pytest.mark.parametrize(
    ("bias", "lse", "sentence"),
    [
        ("tensor<2x8x64x95xf32>", ROWS, "a bias of 2x8x64x95 does not broadcast to 2x8x64x96"),
        ("tensor<64x96xf32>", ROWS, "a bias of 64x96 does not broadcast to 2x8x64x96"),
        ("tensor<1x1x1x96xi32>", ROWS, "the bias is f16, bf16 or f32, got i32"),
        ("tensor<1x1x1x96xf16>", "tensor<2x8x64xf16>", "the logarithms are f32, got f16"),
        ("tensor<1x1x1x96xf16>", "tensor<2x8xf32>", "the logarithms are 2x8x64, one for each row, not 2x8"),
    ],
)
def test_malformed_bias_and_logarithms(bias, lse, sentence):
    op = f"%o, %l = tensor_op.attention %q, %k, %v scale 1.0 bias %b : ({TENSOR}, {HALF}, {WIDE}, {bias})"
    arguments = f"%q: {TENSOR}, %k: {HALF}, %v: {WIDE}, %b: {bias}"
    with pytest.raises(EmmyError) as caught:
        verified(function(f"{op} -> ({RESULT}, {lse})", arguments, f"{RESULT}, {lse}", "%o, %l"))
    assert sentence in caught.value.message


@pytest.mark.parametrize(
    ("clause", "first", "second", "tensors"),
    [
        ("lengths %x, %y", "tensor<?xi32>", "tensor<5xi32>", PACKED),
        ("lengths %x, %y rows 512", "tensor<?xi32>", "tensor<?xi32>", PACKED),
        ("pages %x, %y", "tensor<?x?xi32>", "tensor<?xi32>", PAGED),
    ],
)
def test_round_trip_of_lengths_and_pages(clause, first, second, tensors):
    text = print_module(verified(ragged(clause, first, second, tensors)))
    assert f" scale 1.0 {clause} : (" in text
    assert print_module(verified(text)) == text


RAGGED = [
    (("lengths %x, %y", "tensor<?xi64>", "tensor<?xi32>", PACKED), "lengths takes tensors of i32 of ranks 1 and 1"),
    (("lengths %x, %y", "tensor<?xi32>", "tensor<?x1xi32>", PACKED), "lengths takes tensors of i32 of ranks 1 and 1"),
    (
        ("lengths %x, %y", "tensor<4xi32>", "tensor<5xi32>", PACKED),
        "lengths takes two tensors of one size, at least 1, got 4x5",
    ),
    (
        ("lengths %x, %y", "tensor<0xi32>", "tensor<?xi32>", PACKED),
        "lengths takes two tensors of one size, at least 1, got 0x?",
    ),
    (
        ("lengths %x, %y", "tensor<?xi32>", "tensor<?xi32>", (TENSOR, HALF, WIDE, RESULT)),
        "with lengths has a batch of 1",
    ),
    (
        ("lengths %x, %y rows 0", "tensor<?xi32>", "tensor<?xi32>", PACKED),
        "rows belongs to lengths, and is a number from 1",
    ),
    (
        ("pages %x, %y rows 5", "tensor<?x?xi32>", "tensor<?xi32>", PAGED),
        "rows belongs to lengths, and is a number from 1",
    ),
    (("pages %x, %y", "tensor<?xi32>", "tensor<?xi32>", PAGED), "pages takes tensors of i32 of ranks 2 and 1"),
    (
        ("pages %x, %y", "tensor<3x?xi32>", "tensor<4xi32>", PAGED),
        "a row of the table and a count for each batch, got ?x3x4",
    ),
    (
        (
            "pages %x, %y",
            "tensor<2x?xi32>",
            "tensor<2xi32>",
            (TENSOR, HALF.replace("96", "?"), WIDE.replace("96", "?"), RESULT),
        ),
        "a page has a static multiple of 16 keys, and there is no bias; got 2x4x?x32",
    ),
    (
        (
            "pages %x, %y",
            "tensor<2x?xi32>",
            "tensor<2xi32>",
            (TENSOR, HALF.replace("96", "24"), WIDE.replace("96", "24"), RESULT),
        ),
        "a page has a static multiple of 16 keys, and there is no bias; got 2x4x24x32",
    ),
    (("lengths %x", "tensor<?xi32>", "tensor<?xi32>", PACKED), "attention takes 5 operands with these clauses, got 4"),
]


@pytest.mark.parametrize(("arguments", "sentence"), RAGGED)
def test_malformed_lengths_and_pages(arguments, sentence):
    with pytest.raises(EmmyError) as caught:
        verified(ragged(*arguments))
    assert sentence in caught.value.message
    assert caught.value.location.line == 2
