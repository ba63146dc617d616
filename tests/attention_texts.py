"""Functions of one attention op, as text and lowered, for tests."""

from emmy.ir import make_context, parse_module, print_module, verify_module
from emmy.lowering.tensor_op_to_tile import LowerTensorOp
from emmy.passes.assign_schedule import AssignSchedule

TENSOR = "tensor<2x8x64x32xf16>"
HALF = "tensor<2x4x96x32xf16>"
WIDE = "tensor<2x4x96x48xf16>"
RESULT = "tensor<2x8x64x48xf16>"
ROWS = "tensor<2x8x64xf32>"
OPERANDS = f"({TENSOR}, {HALF}, {WIDE})"


def function(op, arguments=f"%q: {TENSOR}, %k: {HALF}, %v: {WIDE}", results=RESULT, returned="%o"):
    return f"func.func @f({arguments}) -> ({results}) {{\n  {op}\n  func.return {returned} : {results}\n}}\n"


def verified(text):
    module = parse_module(text, "t.mlir")
    verify_module(module)
    return module


def lowered(text, target="sm_90a"):
    """The level-2 module, through its text."""
    context = make_context()
    module = parse_module(text, "t.mlir", context)
    verify_module(module)
    AssignSchedule(target).apply(context, module)
    LowerTensorOp().apply(context, module)
    verify_module(module)
    again = parse_module(print_module(module), "lowered.mlir", context)
    verify_module(again)
    return again


ATTENTION = "%o = tensor_op.attention %q, %k, %v "


PACKED = "tensor<1x8x?x32xf16>", "tensor<1x4x?x32xf16>", "tensor<1x4x?x48xf16>", "tensor<1x8x?x48xf16>"
PAGED = "tensor<?x8x1x32xf16>", "tensor<9x4x32x32xf16>", "tensor<9x4x32x48xf16>", "tensor<?x8x1x48xf16>"


def ragged(clause, first, second, tensors, more="", more_types=""):
    """A function whose attention has a clause with two tensors."""
    q, k, v, o = tensors
    arguments = f"%q: {q}, %k: {k}, %v: {v}, %x: {first}, %y: {second}{more_types}"
    given = ", ".join(part.partition(": ")[2] for part in arguments.split(", %"))
    return function(f"{ATTENTION}scale 1.0{more} {clause} : ({given}) -> {o}", arguments, o)
