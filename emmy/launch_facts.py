"""What launches must know of the levels above the one that runs.

Level 1 knows which sizes must agree and how much work there is (`level1_facts`); level 3 how tensors must lie, which the views
say, and how wide the copies are, hence how aligned the bases must be (`kernel_facts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp, StringAttr, TensorType
from xdsl.ir import Attribute, Operation, SSAValue

from emmy.dialects import async_copy, mma, tensor_op, tile
from emmy.dialects.common import DYNAMIC
from emmy.launch_expressions import Expression, Sizes, add, describe, multiply
from emmy.launch_specs import DTYPES, CheckSpec
from emmy.passes.alignment import WIDEST, stored_by_vectors
from emmy.variants import PREFERRED, VARIANT

DEFAULT_ALIGN = 16
"""Bytes; the base alignment of arguments of kernels that came as level-4 text, which does not say what they need."""


@dataclass
class Facts:
    """What level 1 knows about a function: conditions on `?` sizes, which its lowering writes down (`tile.require_equal`), and
    the work that it does."""

    checks: list[CheckSpec] = field(default_factory=list[CheckSpec])
    work: dict[str, Any] = field(default_factory=dict[str, Any])


def level1_facts(module: ModuleOp) -> dict[str, Facts]:
    """`Facts` of every function of a level-1 module, by name."""
    functions = [op for op in module.body.block.ops if isinstance(op, func.FuncOp)]
    return {f.sym_name.data: function_facts(f) for f in functions if len(f.body.blocks) == 1}


def function_facts(function: func.FuncOp) -> Facts:
    """`Facts` of a function of one block."""
    facts = Facts()
    names = argument_names(function)
    shapes: dict[SSAValue, Sizes] = {
        arg: argument_sizes(name, arg.type) for name, arg in zip(names, function.body.block.args, strict=True)
    }
    works: list[dict[str, Any]] = []
    for op in function.body.block.ops:
        if isinstance(op, tensor_op.MatmulOp):
            shapes[op.result], work = _matmul_facts(op, shapes, facts)
            works.append(work)
        elif isinstance(op, tensor_op.MapOp | tensor_op.CastOp):
            shapes[op.results[0]] = _elementwise_sizes(op, shapes, facts)
        elif isinstance(op, tensor_op.CompositeOp):
            known = op.sizes([shapes[operand] for operand in op.operands])
            shapes.update(zip(op.results, known.results, strict=True))
            for left, right, message in known.equal:
                _require_equal(facts, left, right, message)
            works.append({"kind": "composite", "flops": multiply(*known.flops)})
    facts.work = _total_work(function, works)
    return facts


def _matmul_facts(op: tensor_op.MatmulOp, shapes: dict[SSAValue, Sizes], facts: Facts) -> tuple[Sizes, dict[str, Any]]:
    transpose_a, transpose_b = op.transpose_a is not None, op.transpose_b is not None
    a, b = shapes[op.a], shapes[op.b]
    m, ka = (a[-1], a[-2]) if transpose_a else (a[-2], a[-1])
    n, kb = (b[-2], b[-1]) if transpose_b else (b[-1], b[-2])
    _require_equal(facts, ka, kb, "the matmul contracts sizes of its operands that must be equal")
    for left, right in zip(a[:-2], b[:-2], strict=True):
        _require_equal(facts, left, right, "the matmul has batch sizes of its operands that must be equal")
    batch = multiply(*a[:-2])
    work = {
        "kind": "matmul",
        "m": m,
        "n": n,
        "k": ka,
        "batch": batch,
        "transpose_a": transpose_a,
        "transpose_b": transpose_b,
        "flops": multiply(2, batch, m, n, ka),
    }
    return (*a[:-2], m, n), work


def _elementwise_sizes(op: Operation, shapes: dict[SSAValue, Sizes], facts: Facts) -> Sizes:
    """Sizes of a map's or cast's result; `?` sizes of its operands do not broadcast, so they must agree."""
    declared = cast("TensorType[Attribute]", op.results[0].type).get_shape()
    sizes: list[Expression] = [None if s == DYNAMIC else s for s in declared]
    for operand in op.operands:
        given = shapes[operand]
        skip = len(sizes) - len(given)
        for axis, size in enumerate(given, skip):
            if size == 1:
                continue
            if sizes[axis] is None:
                sizes[axis] = size
            _require_equal(facts, size, sizes[axis], "an elementwise operation has operands whose sizes must be equal")
    return tuple(1 if size is None else size for size in sizes)


def _require_equal(facts: Facts, left: Expression, right: Expression, message: str) -> None:
    """Add the condition unless it holds by construction."""
    if left != right and not (isinstance(left, int) and isinstance(right, int)):
        if isinstance(left, int):
            left, right = right, left
        text = f"{message}: {describe(left)} and {describe(right)}"
        check: CheckSpec = {"value": left, "equals": right, "message": text}
        if check not in facts.checks:
            facts.checks.append(check)


def _total_work(function: func.FuncOp, works: list[dict[str, Any]]) -> dict[str, Any]:
    """One matmul of the two arguments is told apart, since its result can be compared with a library's."""
    ops = list(function.body.block.ops)
    args = list(function.body.block.args)
    first = ops[0] if ops else None
    if len(ops) == 2 and isinstance(first, tensor_op.MatmulOp) and [first.a, first.b] == args:
        return works[0]
    return {"kind": "composite", "flops": add(*(work["flops"] for work in works))}


@dataclass(frozen=True)
class KernelFacts:
    """`widths`: for each view argument of a kernel, the widest access to it in bytes. `opt_level`: of ptxas. `views`: the
    types of these arguments; without them, they are row-major. `variant`: which one of `emmy.variants` the kernel is."""

    widths: tuple[int, ...]
    opt_level: int
    views: tuple[tile.ViewType, ...] = ()
    variant: str = PREFERRED


def kernel_facts(module: ModuleOp) -> dict[str, KernelFacts]:
    """`KernelFacts` of every `tile.kernel`, by name; the module is at level 3, with transports lowered."""
    facts: dict[str, KernelFacts] = {}
    for kernel in module.body.block.ops:
        if isinstance(kernel, tile.KernelOp):
            widths = tuple(_widest_access(arg) for arg in kernel.block.args)
            views = tuple(cast(tile.ViewType, arg.type) for arg in kernel.block.args)
            opt_level = kernel.schedule.data.opt_level if kernel.schedule is not None else 3
            variant = kernel.attributes.get(VARIANT)
            name = variant.data if isinstance(variant, StringAttr) else PREFERRED
            facts[kernel.sym_name.data] = KernelFacts(widths, opt_level, views, name)
    return facts


def _widest_access(view: SSAValue) -> int:
    """Bytes. A fragment goes straight to and from memory by pairs of elements, or to it by vectors (`ptx_fragments`)."""
    type_ = cast(tile.ViewType, view.type)
    itemsize = DTYPES[str(type_.element_type)].itemsize
    widest = itemsize
    for use in view.uses:
        op = use.operation
        if isinstance(op, async_copy.CpAsyncOp | async_copy.PlainCopyOp | async_copy.PlainStoreOp):
            widest = max(widest, op.bytes.value.data)
        elif isinstance(op, async_copy.TmaLoadOp | async_copy.TmaStoreOp):
            widest = max(widest, DEFAULT_ALIGN)
        elif isinstance(op, tile.SliceOp):
            widest = max(widest, _widest_access(op.result))
        elif isinstance(op, mma.StoreGlobalOp) and stored_by_vectors(op):
            widest = max(widest, WIDEST)
        elif isinstance(op, mma.StoreGlobalOp | mma.LoadGlobalOp) and _in_pairs(type_):
            widest = max(widest, 2 * itemsize)
    return widest


def _in_pairs(view: tile.ViewType) -> bool:
    """Whether two neighbouring elements of a view may be one access: rows and strides that are known to be even."""
    *outer, inner = view.get_strides()
    counts = (view.get_shape()[-1], *outer)
    return inner == 1 and all(count != DYNAMIC and count % 2 == 0 for count in counts)


def argument_names(function: func.FuncOp) -> list[str]:
    """A distinct name for each argument: that of the text, or `argN`."""
    names: list[str] = []
    for index, arg in enumerate(function.body.block.args):
        names.append(fresh_name(arg.name_hint or f"arg{index}", names))
    return names


def fresh_name(name: str, taken: Sequence[str]) -> str:
    """The name, or the first of `name_1`, `name_2`, .. that is not taken."""
    candidate, number = name, 1
    while candidate in taken:
        candidate, number = f"{name}_{number}", number + 1
    return candidate


def argument_sizes(name: str, type_: Attribute) -> Sizes:
    """The sizes of an argument: numbers, and `["dim", name, axis]` for `?`."""
    if not isinstance(type_, TensorType):
        return ()
    return tuple(["dim", name, i] if s == DYNAMIC else s for i, s in enumerate(type_.get_shape()))
