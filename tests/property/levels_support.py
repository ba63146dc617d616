"""A text at level 1 and at level 2, and what passes make of it, for tests that run both sides."""

from xdsl.dialects.builtin import ModuleOp

from emmy.ir import make_context, parse_module, print_module, verify_module
from emmy.lowering.tensor_op_to_tile import LowerTensorOp
from emmy.passes.assign_schedule import AssignSchedule


def lower(text):
    """(level 1, level 2); level 2 is printed and read back, so that its text is what is executed."""
    context = make_context()
    module = parse_module(text, "t.mlir", context)
    verify_module(module)
    lowered = module.clone()
    AssignSchedule().apply(context, lowered)
    LowerTensorOp().apply(context, lowered)
    verify_module(lowered)
    again = parse_module(print_module(lowered), "lowered.mlir", context)
    verify_module(again)
    return module, again


def apply(module: ModuleOp, *passes) -> ModuleOp:
    """A copy of the module after some passes, read back from its text."""
    context, module = make_context(), module.clone()
    for one in passes:
        one.apply(context, module)
        verify_module(module)
    text = print_module(module)
    again = parse_module(text, "again.mlir")
    assert print_module(again) == text
    return again
