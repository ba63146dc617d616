"""Level 1: texts come back as they were; malformed ones are refused with a sentence."""

import pytest

from emmy.dialects.common import MapKind
from emmy.dialects.tensor_op import AccumulateAttr, MatmulOp, accumulation_policy
from emmy.elementwise import ELEMENTWISE
from emmy.errors import EmmyError
from emmy.ir import parse_attribute, parse_module, print_module, verify_module

WELL_FORMED = [
    "%r = tensor_op.matmul %a, %b : (tensor<?x3840xf16>, tensor<3840x64xf16>) -> tensor<?x64xf16>",
    "%r = tensor_op.matmul %a, %b transpose_a : (tensor<8x?xbf16>, tensor<8x64xbf16>) -> tensor<?x64xf32>",
    "%r = tensor_op.matmul %a, %b transpose_b accumulate<f16> : (tensor<2x?xf16>, tensor<64x?xf16>) -> tensor<2x64xf16>",
    "%r = tensor_op.matmul %a, %b transpose_a transpose_b accumulate<hybrid, max_k = 32, overflow = redo> : "
    "(tensor<?x7x8x9xf16>, tensor<?x7x4x8xf16>) -> tensor<?x7x9x4xf16>",
    "%r = tensor_op.map fma %a, %b, %c : (tensor<4x?xf16>, tensor<?xf32>, tensor<1x?xbf16>) -> tensor<4x?xf16>",
    "%r = tensor_op.matmul %a, %b transpose_b accumulate<hybrid, max_k = 128> : "
    "(tensor<?x64xf8E4M3FN>, tensor<4x64xf8E5M2>) -> tensor<?x4xbf16>",
    "%r = tensor_op.map gelu_tanh %a : (tensor<4x?xf16>) -> tensor<4x?xf16>",
    "%r = tensor_op.cast %a : tensor<?x4xf32> to tensor<?x4xbf16>",
]

MATMUL = "%r = tensor_op.matmul %a, %b "
MALFORMED = [
    (MATMUL + ": (tensor<4x8xf16>, tensor<9x4xf16>) -> tensor<4x4xf16>", "contracts K = 8 of A with K = 9 of B"),
    (MATMUL + "transpose_b : (tensor<4x8xf16>, tensor<8x4xf16>) -> tensor<4x8xf16>", "contracts K = 8 of A with K = 4"),
    (MATMUL + ": (tensor<4x8xf16>, tensor<8x6xf16>) -> tensor<6x4xf16>", "matmul of these operands gives 4x6, not 6x4"),
    (MATMUL + ": (tensor<?x8xf16>, tensor<8x6xf16>) -> tensor<4x6xf16>", "matmul of these operands gives ?x6, not 4x6"),
    (MATMUL + ": (tensor<8xf16>, tensor<8xf16>) -> tensor<8xf16>", "operands and result of one rank, at least 2"),
    (MATMUL + ": (tensor<2x4x8xf16>, tensor<8x4xf16>) -> tensor<2x4x4xf16>", "got 2x4x8, 8x4, 2x4x4"),
    (MATMUL + ": (tensor<2x4x8xf16>, tensor<3x8x4xf16>) -> tensor<2x4x4xf16>", "equal leading (batch) dimensions"),
    (MATMUL + ": (tensor<2x4x8xf16>, tensor<2x8x4xf16>) -> tensor<?x4x4xf16>", "equal leading (batch) dimensions"),
    (
        MATMUL + ": (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>",
        "matmul operands are f16, bf16, f8E4M3FN or f8E5M2, got f32",
    ),
    (
        MATMUL + ": (tensor<4x8xf8E4M3FN>, tensor<8x4xf16>) -> tensor<4x4xf32>",
        "one element type, got f8E4M3FN and f16",
    ),
    (
        MATMUL + ": (tensor<4x8xf8E4M3FN>, tensor<8x4xf8E5M2>) -> tensor<4x4xf8E5M2>",
        "matmul of f8E4M3FN and f8E5M2 gives f16, bf16 or f32, got f8E5M2",
    ),
    (
        MATMUL + "accumulate<f16> : (tensor<4x8xbf16>, tensor<8x4xbf16>) -> tensor<4x4xf32>",
        "accumulate<f16> needs f16 operands, got bf16",
    ),
    (
        MATMUL + "accumulate<hybrid, partial = f32> : (tensor<4x8xf16>, tensor<8x4xf16>) -> tensor<4x4xf16>",
        "partial sums of f16 are f16; leave out partial = f32",
    ),
    (
        MATMUL + "accumulate<f16, partial = f16> : (tensor<4x8xf8E5M2>, tensor<8x4xf8E5M2>) -> tensor<4x4xf16>",
        "partial belongs to the hybrid policy only",
    ),
    (
        MATMUL + "accumulate<hybrid, partial = bf16> : (tensor<4x8xf16>, tensor<8x4xf16>) -> tensor<4x4xf16>",
        "partial is f16 or f32, got 'bf16'",
    ),
    (
        MATMUL + "accumulate<hybrid, max_k = 48> : (tensor<4x8xf8E5M2>, tensor<8x4xf8E5M2>) -> tensor<4x4xf16>",
        "products of f8E5M2 take 32 elements of K at once; max_k is a multiple of that, got 48",
    ),
    (
        MATMUL + "accumulate<hybrid, overflow = redo> : (tensor<4x8xf8E5M2>, tensor<8x4xf8E5M2>) -> tensor<4x4xf16>",
        "sums of f8E5M2 are f32 and do not overflow as f16 ones do; leave out overflow = redo",
    ),
    (MATMUL + ": (tensor<4x8xf16>, tensor<8x4xbf16>) -> tensor<4x4xf32>", "one element type, got f16 and bf16"),
    (MATMUL + ": (tensor<4x8xf16>, tensor<8x4xf16>) -> tensor<4x4xbf16>", "matmul of f16 gives f16 or f32, got bf16"),
    (
        MATMUL + "accumulate<f16> : (tensor<4x8xbf16>, tensor<8x4xbf16>) -> tensor<4x4xbf16>",
        "accumulate<f16> needs f16 operands, got bf16",
    ),
    (MATMUL + "accumulate<f64> : (tensor<4x8xf16>, tensor<8x4xf16>) -> tensor<4x4xf16>", "one of f32, f16, hybrid"),
    (
        MATMUL + "accumulate<hybrid, max_k = 24> : (tensor<4x8xf16>, tensor<8x4xf16>) -> tensor<4x4xf16>",
        "multiple of 16",
    ),
    (
        MATMUL + "accumulate<hybrid, max_k = 0> : (tensor<4x8xf16>, tensor<8x4xf16>) -> tensor<4x4xf16>",
        "multiple of 16",
    ),
    (
        MATMUL + "accumulate<f32, max_k = 32> : (tensor<4x8xf16>, tensor<8x4xf16>) -> tensor<4x4xf16>",
        "max_k belongs to the hybrid policy only",
    ),
    (
        MATMUL + "accumulate<hybrid, overflow = ignore> : (tensor<4x8xf16>, tensor<8x4xf16>) -> tensor<4x4xf16>",
        "overflow is one of propagate, redo, got 'ignore'",
    ),
    (
        MATMUL + "accumulate<hybrid, depth = 3> : (tensor<4x8xf16>, tensor<8x4xf16>) -> tensor<4x4xf16>",
        "accumulate has no field 'depth'; its fields are max_k, overflow and partial",
    ),
    ("%r = tensor_op.map add %a : (tensor<4xf16>) -> tensor<4xf16>", "map add takes 2 operand(s), got 1"),
    ("%r = tensor_op.map neg %a, %b : (tensor<4xf16>, tensor<4xf16>) -> tensor<4xf16>", "takes 1 operand(s), got 2"),
    ("%r = tensor_op.map neg %a : (tensor<4xf16>) -> tensor<5xf16>", "operand of shape 4 does not broadcast to 5"),
    ("%r = tensor_op.map neg %a : (tensor<4x5xf16>) -> tensor<5xf16>", "shape 4x5 does not broadcast to 5"),
    ("%r = tensor_op.map neg %a : (tensor<5xf16>) -> tensor<?xf16>", "shape 5 does not broadcast to ?"),
    ("%r = tensor_op.map neg %a : (tensor<4xi32>) -> tensor<4xi32>", "map works on float tensors, got tensor<4xi32>"),
    ("%r = tensor_op.map sine %a : (tensor<4xf16>) -> tensor<4xf16>", "Expected `add`, `sub`, `mul`"),
    ("%r = tensor_op.cast %a : tensor<4xf16> to tensor<5xf32>", "cast keeps the shape"),
    ("%r = tensor_op.cast %a : tensor<4xf16> to tensor<4xi32>", "cast converts between float types"),
]


def function_with(op: str) -> str:
    """A function whose parameters have the types of the op's operands; the op is on its second line."""
    types = op.split(" : ", 1)[1]
    types = types[types.index("(") + 1 : types.index(") ->")] if "->" in types else types.split(" to ")[0]
    parameters = ", ".join(f"%{n}: {t}" for n, t in zip("abc", types.split(", "), strict=False))
    return f"func.func @f({parameters}) {{\n  {op}\n  func.return\n}}\n"


@pytest.mark.parametrize("op", WELL_FORMED)
def test_round_trip(op):
    module = parse_module(function_with(op), "t.mlir")
    verify_module(module)
    text = print_module(module)
    assert op in text
    assert print_module(parse_module(text, "again.mlir")) == text


@pytest.mark.parametrize(("op", "sentence"), MALFORMED)
def test_malformed(op, sentence):
    with pytest.raises(EmmyError) as caught:
        verify_module(parse_module(function_with(op), "t.mlir"))
    assert sentence in caught.value.message
    assert caught.value.location is not None
    assert (caught.value.location.file, caught.value.location.line) == ("t.mlir", 2)


def test_map_names_are_those_of_the_table():
    assert [kind.value for kind in MapKind] == list(ELEMENTWISE)


def test_defaults_of_a_policy_are_not_printed():
    assert AccumulateAttr.get("hybrid").max_k.data == 64
    assert str(AccumulateAttr.get("hybrid", overflow="redo")) == (
        "#tensor_op.accumulate<hybrid, max_k = 64, overflow = redo>"
    )
    assert str(AccumulateAttr.get()) == "#tensor_op.accumulate<f32>"
    half = AccumulateAttr.get("hybrid", partial="f16")
    assert str(half) == "#tensor_op.accumulate<hybrid, max_k = 64, partial = f16>"
    assert parse_attribute(str(half)) == half


def policies(attributes: str) -> list[str]:
    text = f"""builtin.module {attributes} {{
      func.func @f(%a: tensor<4x4xf16>, %b: tensor<4x4xbf16>) {{
        %0 = tensor_op.matmul %a, %a : (tensor<4x4xf16>, tensor<4x4xf16>) -> tensor<4x4xf16>
        %1 = tensor_op.matmul %a, %a accumulate<f32> : (tensor<4x4xf16>, tensor<4x4xf16>) -> tensor<4x4xf16>
        %2 = tensor_op.matmul %b, %b : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
        func.return
      }}
    }}"""
    matmuls = [op for op in parse_module(text, "t.mlir").walk() if isinstance(op, MatmulOp)]
    return [accumulation_policy(op).policy.data for op in matmuls]


def test_the_module_sets_the_policy_where_an_op_has_none_and_f16_operands():
    assert policies("attributes {emmy.accumulate = #tensor_op.accumulate<f16>}") == ["f16", "f32", "f32"]
    assert policies("") == ["f32", "f32", "f32"]


def test_a_module_attribute_that_is_no_policy_is_an_error():
    with pytest.raises(EmmyError, match=r'emmy.accumulate is a #tensor_op.accumulate<..>, got "f16"') as caught:
        policies('attributes {emmy.accumulate = "f16"}')
    assert caught.value.location.line == 1


def test_a_policy_is_verified_when_it_is_built():
    with pytest.raises(Exception, match="max_k is a positive multiple of 16"):
        AccumulateAttr.get("hybrid", max_k=8)
