"""Parsing with locations, verification op by op, dominance, and the text's way back."""

from __future__ import annotations

from pathlib import Path

import pytest
from xdsl.dialects.arith import AddiOp, ConstantOp
from xdsl.dialects.builtin import FileLineColLoc, ModuleOp, i32
from xdsl.ir import Block, Region

from emmy.errors import EmmyError, SourceLocation
from emmy.files import decode, read_text
from emmy.ir import parse_attribute, parse_module, print_module, verify_module
from emmy.locations import location_of, show_error
from emmy.passes.check_dominance import check_dominance

MATMUL = """func.func @mm(%a: tensor<64x32xf16>, %b: tensor<32x64xf16>) -> tensor<64x64xf16> {
  %c = tensor_op.matmul %a, %b : (tensor<64x32xf16>, tensor<32x64xf16>) -> tensor<64x64xf16>
  func.return %c : tensor<64x64xf16>
}
"""


def error_of(text: str) -> EmmyError:
    with pytest.raises(EmmyError) as caught:
        verify_module(parse_module(text, "t.mlir"))
    return caught.value


def test_every_op_has_its_place():
    module = parse_module(MATMUL, "t.mlir")
    places = {op.name: str(location_of(op)) for op in module.walk()}
    assert places == {
        "builtin.module": "t.mlir:1:1",
        "func.func": "t.mlir:1:1",
        "tensor_op.matmul": "t.mlir:2:3",
        "func.return": "t.mlir:3:3",
    }


def test_an_explicit_location_stays():
    module = parse_module('%a = arith.constant 1 : i32 loc("other":7:8)', "t.mlir")
    (op,) = module.body.block.ops
    assert isinstance(op.location, FileLineColLoc)
    assert str(location_of(op)) == "other:7:8"


def test_an_op_without_a_place_has_that_of_the_op_around_it():
    module = parse_module("builtin.module {\n  builtin.module {\n  }\n}", "t.mlir")
    inner = next(iter(module.body.block.ops))
    op = ConstantOp.from_int_and_width(1, 32)
    inner.regions[0].block.add_op(op)
    assert location_of(op) == SourceLocation("t.mlir", 2, 3)


def test_line_offset_is_added():
    module = parse_module("\n%a = arith.constant 1 : i32", "t.mlir", line_offset=10)
    assert str(location_of(next(iter(module.body.block.ops)))) == "t.mlir:12:1"


def test_print_and_parse_are_inverse():
    module = parse_module(MATMUL, "t.mlir")
    text = print_module(module)
    assert print_module(parse_module(text, "again")) == text
    assert text.endswith("}\n")


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", "1:1", "no operation"),
        ("  \n\n", "1:1", "no operation"),
        ("nonsense", "1:1", "no operation 'nonsense'"),
        ("%a = arith.nonsense", "1:6", "no operation 'arith.nonsense'"),
        ('func.func @f() {\n  "tile.lod"() : () -> ()\n}', "2:4", "no operation 'tile.lod'"),
        ("%a = arith.addi %b, %b : index", "1:17", "%b is used but not defined"),
        ("%a = arith.constant 1 : index\n%a = arith.constant 1 : index", "2:1", "already defined"),
        ("%b = arith.addi %a, %a : i32\n%a = arith.constant 1 : i32", "1:1", "uses %a"),
        ("func.func @f(", "1:14", ""),
        ("%a = arith.constant 1 : index }", "1:31", "operation was expected"),
        ("%a = arith.constant 1.0 : floot", "1:27", ""),
        (MATMUL.replace("64x64xf16", "64x65xf16"), "2:3", "gives 64x64, not 64x65"),
        (MATMUL.replace("matmul %a, %b", "matmul %b, %a", 1), "2:", "type"),
        ("tile.kernel @k() schedule <block = [1, 2, 3]> {\n}", "1:1", "illegal schedule: block is three"),
        ("tile.kernel @k() schedule <blok = [1, 2, 3]> {\n}", "1:", "no field 'blok'"),
        ("func.func @f() -> i32 {\n  %a = arith.constant 1.0 : f32\n  func.return %a : f32\n}", "3:3", "expected"),
        ("func.func @f() -> i32 {\n  %a = arith.constant 1 : i32\n}", "2:3", "terminat"),
    ],
)  # fmt: skip
def test_errors_have_a_place_and_one_sentence(text: str, place: str, words: str):
    error = error_of(text)
    assert str(error).startswith(f"t.mlir:{place}")
    assert words in error.message
    assert "\n" not in str(error)


def test_deep_nesting_is_an_error():
    error = error_of("builtin.module {" * 1000)
    assert "nested too deeply" in error.message
    assert len(show_error(error, {"t.mlir": "builtin.module {" * 1000})) < 1000


def test_the_line_is_shown_with_a_caret():
    text = "func.func @f() {\n\t%a = arith.addi %b, %b : index\n}"
    error = error_of(text)
    assert show_error(error, {"t.mlir": text}).splitlines() == [
        "t.mlir:2:18: error: %b is used but not defined",
        "\t%a = arith.addi %b, %b : index",
        "\t                ^",
    ]
    assert show_error(error, {}) == str(error)


def test_read_text_errors(tmp_path: Path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "zero").write_bytes(b"a\0b")
    cases = {".": "directory", "absent": "no such file", "binary": "not UTF-8", "zero": "byte 1 is zero"}
    for name, words in cases.items():
        path = tmp_path / name
        with pytest.raises(EmmyError, match=words):
            read_text(path)
    assert decode(b"a\r\nb", "f") == "a\nb"


def test_parse_attribute():
    assert str(parse_attribute("i32")) == str(i32)
    for text in ("", "i32 i32", "#tensor_op.accumulate<f23>"):
        with pytest.raises(EmmyError):
            parse_attribute(text)


# ---- dominance -------------------------------------------------------------------------------------------------------


def test_dominance_of_nested_regions():
    text = """
func.func @f(%n: index) {
  %c = arith.constant 1 : index
  scf.for %i = %c to %n step %c {
    %d = arith.addi %i, %c : index
  }
  func.return
}"""
    module = parse_module(text, "t.mlir")
    check_dominance(module)
    function = next(iter(module.body.block.ops))
    loop = next(op for op in function.regions[0].block.ops if op.name == "scf.for")
    inner = next(iter(loop.regions[0].block.ops))
    use = AddiOp(inner.results[0], inner.results[0])
    function.regions[0].block.insert_op_after(use, loop)
    with pytest.raises(EmmyError, match=r"arith.addi.*uses %d"):
        check_dominance(module)


def test_dominance_stops_at_isolated_ops():
    outer = ConstantOp.from_int_and_width(1, 32)
    module = parse_module("tile.kernel @k() {\n}", "t.mlir")
    kernel = next(iter(module.body.block.ops))
    module.body.block.insert_op_before(outer, kernel)
    kernel.regions[0].block.add_op(AddiOp(outer.result, outer.result))
    with pytest.raises(EmmyError, match="not defined"):
        check_dominance(module)


def test_dominance_of_blocks():
    diamond = """
func.func @f(%p: i1) {
  "cf.cond_br"(%p)[^bb1, ^bb2] <{operandSegmentSizes = array<i32: 1, 0, 0>}> : (i1) -> ()
^bb1:
  %a = arith.constant 1 : i32
  "cf.br"()[^bb3] : () -> ()
^bb2:
  %b = arith.constant 1 : i32
  "cf.br"()[^bb3] : () -> ()
^bb3:
  %c = arith.addi %NAME, %NAME : i32
  func.return
}"""
    from xdsl.dialects.cf import Cf

    from emmy.ir import make_context

    for name in ("a", "b"):
        context = make_context()
        context.load_dialect(Cf)
        module = parse_module(diamond.replace("%NAME", f"%{name}"), "t.mlir", context)
        with pytest.raises(EmmyError, match=f"uses %{name}"):
            check_dominance(module)
    context = make_context()
    context.load_dialect(Cf)
    first = diamond.replace("%NAME", "%z").replace('  "cf.cond_br"', '  %z = arith.constant 2 : i32\n  "cf.cond_br"')
    check_dominance(parse_module(first, "t.mlir", context))


def test_a_use_before_its_definition_in_built_ir():
    one = ConstantOp.from_int_and_width(1, 32)
    module = ModuleOp(Region(Block([AddiOp(one.result, one.result), one])))
    with pytest.raises(EmmyError, match="uses a value"):
        verify_module(module)
