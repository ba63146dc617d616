"""What a module may hold for `emmy.compile`: functions of tensor_op ops, host functions that launch, and kernels.

A pass leaves alone what is not for it, so that a module of other things would come out unchanged; whoever asks for kernels
is told here which op is in the way.
"""

from __future__ import annotations

import re

from xdsl.dialects.builtin import ModuleOp, StringAttr, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation

from emmy.dialects.tile import LaunchOp
from emmy.errors import EmmyError
from emmy.locations import location_of

TOP_LEVEL = ("func.func", "tile.kernel", "ptx.kernel")
"""The ops that a module holds."""

NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
"""Symbols become names in PTX and in C (PTX ISA, "Identifiers")."""

HOST_DIALECT = "tile"
"""A function with an op of this dialect is a host function already: the lowering made it, or its text."""


def check_functions(module: ModuleOp) -> None:
    """Raise `EmmyError` at the first op that no lowering takes."""
    for op in module.body.block.ops:
        if op.name not in TOP_LEVEL:
            raise EmmyError(f"a module holds functions and kernels; got '{op.name}'", location_of(op))
        name = op.get_attr_or_prop("sym_name")
        if isinstance(name, StringAttr) and not NAME.fullmatch(name.data):
            raise EmmyError(f'"{name.data}" is no name for PTX: it has letters, digits, _ and $', location_of(op))
        if isinstance(op, FuncOp):
            _check_function(op)


def _check_function(function: FuncOp) -> None:
    name = function.sym_name.data
    if not function.body.blocks:
        raise EmmyError(f"function @{name} has no body; write one, or remove the declaration", location_of(function))
    if len(function.body.blocks) > 1:
        raise EmmyError(f"function @{name} has several blocks; it must have one", location_of(function))
    for type_ in (*function.function_type.inputs, *function.function_type.outputs):
        if not isinstance(type_, TensorType):
            raise EmmyError(f"function @{name} takes and gives tensors; got {type_}", location_of(function))
    ops = list(function.body.block.ops)
    for op in ops:
        if isinstance(op, ReturnOp) and len(set(op.arguments)) < len(op.arguments):
            raise EmmyError(f"function @{name} returns one value twice", location_of(op))
        if op.name in TOP_LEVEL:
            raise EmmyError(f"'{op.name}' stands in a module, not in function @{name}", location_of(op))
    if any(_dialect(op) == HOST_DIALECT for op in ops):
        return
    for op in ops:
        if _dialect(op) != "tensor_op" and not isinstance(op, ReturnOp):
            message = f"a function of tensor_op ops holds only them and func.return; got '{op.name}'"
            raise EmmyError(message, location_of(op))


def _dialect(op: Operation) -> str:
    return op.name.partition(".")[0]


def nothing_to_compile(module: ModuleOp) -> EmmyError:
    """The error of a module from which no kernel came, at its first function."""
    for op in module.walk():
        if isinstance(op, LaunchOp):
            return EmmyError(f"there is no kernel {op.kernel}", location_of(op))
    functions = (op for op in module.body.block.ops if isinstance(op, FuncOp))
    first = next(functions, None)
    if first is None:
        return EmmyError("the module has nothing to compile: no kernel and no function", location_of(module))
    message = f"there is nothing to compile: function @{first.sym_name.data} returns the result of no tensor_op op"
    return EmmyError(message, location_of(first))
