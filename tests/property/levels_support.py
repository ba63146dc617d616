"""A text at level 1 and at level 2, for tests that run both."""

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
