"""The host's part of lowering level 1: sizes that must be equal are compared, results are allocated, and of the kernels of a
group the one is launched that fits.

Of several schedules of a product the call takes the one that takes least time by `emmy.schedule_choice.Timed.time`, which is
written here as index arithmetic over the sizes of the call and the device's multiprocessors.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects import arith, func
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Block, SSAValue

from emmy.dialects.common import DYNAMIC, Index
from emmy.dialects.tensor_op import MatmulOp, contraction, tensor_type
from emmy.dialects.tile import AllocOp, DimOp, DispatchOp, GridOp, KernelOp, LaunchOp, RequireEqualOp, SmCountOp
from emmy.errors import EmmyError
from emmy.launch_facts import argument_names, function_facts
from emmy.launch_specs import Expression
from emmy.locations import location_of
from emmy.passes.emitter import Emitter
from emmy.passes.fusion import Group
from emmy.schedule_choice import Timed


@dataclass(frozen=True)
class Choice:
    """A kernel that a launch may take: the operands that it reads transposed, and its schedule with its time, if it is chosen by
    that."""

    kernel: KernelOp
    transposed: tuple[int, ...] = ()
    timed: Timed | None = None


class Host:
    """The host's part of a group: sizes, numbers of tiles and times, each computed once."""

    def __init__(self, block: Block, group: Group):
        self.group = group
        self.emit = Emitter(block, group.ops[-1], anchor=group.ops[-1])
        self.dims: dict[tuple[SSAValue, int], SSAValue] = {}
        self.constants: dict[int, SSAValue] = {}
        self.divided: dict[tuple[SSAValue, int], SSAValue] = {}
        self.counts: dict[tuple[int, ...], SSAValue] = {}
        self.multiprocessors: SSAValue | None = None

    def size(self, tensor: SSAValue, axis: int) -> SSAValue:
        """The size of a tensor's axis."""
        if (tensor, axis) not in self.dims:
            self.dims[tensor, axis] = self.emit.value(DimOp(tensor, axis))
            self.dims[tensor, axis].name_hint = "size"
        return self.dims[tensor, axis]

    def constant(self, number: int, hint: str) -> SSAValue:
        """An index constant."""
        if number not in self.constants:
            self.constants[number] = index_constant(self.emit, number, hint)
        return self.constants[number]

    def blocks(self, extent: SSAValue, block: int) -> SSAValue:
        """How many blocks an extent is."""
        if block == 1:
            return extent
        if (extent, block) not in self.divided:
            self.divided[extent, block] = self.emit.value(arith.CeilDivUIOp(extent, self.constant(block, f"c{block}")))
            self.divided[extent, block].name_hint = "blocks"
        return self.divided[extent, block]

    def tiles(self, blocks: tuple[int, ...]) -> SSAValue:
        """How many tiles of these sizes the group's results are."""
        if blocks not in self.counts:
            shape = self.group.shape
            known = prod(-(-s // b) for s, b in zip(shape, blocks, strict=True) if s != DYNAMIC)
            count = self.constant(known, "tiles")
            for axis in dynamic_axes(self.group, shape):
                extent = self.blocks(self.size(*size_source(self.group, axis)), blocks[axis])
                count = self.emit.value(arith.MuliOp(extent, count))
                count.name_hint = "ctas"
            self.counts[blocks] = count
        return self.counts[blocks]

    def time(self, ctas: SSAValue, matmul: MatmulOp, timed: Timed) -> SSAValue:
        """What a product takes: waves of CTAs over the device x steps over K x time of a step (`Timed.time`)."""
        emit, split = self.emit, timed.schedule.split_k
        depth = timed.schedule.block[2] * split
        if self.multiprocessors is None:
            self.multiprocessors = emit.value(SmCountOp())
            self.multiprocessors.name_hint = "sms"
        if split > 1:
            ctas = emit.value(arith.MuliOp(ctas, self.constant(split, f"c{split}")))
        waves = emit.value(arith.CeilDivUIOp(ctas, self.multiprocessors))
        waves.name_hint = "waves"
        size, axis = contraction_size(matmul)
        if size != DYNAMIC:
            each = self.constant(-(-(size + timed.exchange) // depth) * timed.step, "work")
        else:
            extent = self.size(matmul.a, axis)
            if timed.exchange:
                extent = emit.value(arith.AddiOp(extent, self.constant(timed.exchange, "exchange")))
            steps = self.blocks(extent, depth)
            each = emit.value(arith.MuliOp(steps, self.constant(timed.step, "step")))
        time = emit.value(arith.MuliOp(waves, each))
        time.name_hint = "time"
        return time


EXPRESSIONS: dict[str, type[arith.SignlessIntegerBinaryOperation]] = {
    "add": arith.AddiOp,
    "sub": arith.SubiOp,
    "mul": arith.MuliOp,
    "min": arith.MinUIOp,
    "max": arith.MaxUIOp,
    "ceildiv": arith.CeilDivUIOp,
    "floordiv": arith.DivUIOp,
}
"""Operation of a size expression (`emmy.launch_specs`) -> its op."""


def require_equal_sizes(function: func.FuncOp) -> None:
    """Write down, where a level-1 function begins, which sizes of a call must be equal."""
    block, facts = function.body.block, function_facts(function)
    first = block.first_op
    if first is None or not facts.checks:
        return
    emit = Emitter(block, first, anchor=first)
    arguments = dict(zip(argument_names(function), block.args, strict=True))
    made: dict[str, SSAValue] = {}

    def value(expression: Expression) -> SSAValue:
        key = str(expression)
        if key not in made:
            made[key] = computed(expression)
        return made[key]

    def computed(expression: Expression) -> SSAValue:
        if isinstance(expression, int):
            return index_constant(emit, expression, f"c{expression}")
        operation, *operands = expression
        if operation == "dim":
            size = emit.value(DimOp(arguments[operands[0]], operands[1]))
            size.name_hint = "size"
            return size
        return functools.reduce(lambda a, b: emit.value(EXPRESSIONS[operation](a, b)), [value(one) for one in operands])

    for check in facts.checks:
        if "equals" in check:
            emit(RequireEqualOp(value(check["value"]), value(check["equals"]), check["message"]))


def launch_group(block: Block, group: Group, choices: Sequence[Choice]) -> None:
    """Allocate the group's results and launch its kernel, or that of several which the call takes, where the group's last op
    stands; readers take the new tensors."""
    host = Host(block, group)
    inputs, outputs = group.inputs(), group.outputs()
    results: list[SSAValue] = []
    for value in outputs:
        sizes = [host.size(*size_source(group, axis)) for axis in dynamic_axes(group, tensor_type(value).get_shape())]
        results.append(host.emit.value(AllocOp(sizes, value.type)))
        results[-1].name_hint = value.name_hint
    names, counts, times = list[str](), list[SSAValue](), list[SSAValue]()
    for choice in choices:
        names.append(choice.kernel.sym_name.data)
        counts.append(host.tiles(blocks_of(choice.kernel)))
        if choice.timed is not None and group.matmul is not None:
            times.append(host.time(counts[-1], group.matmul, choice.timed))
    if len(choices) == 1 and not choices[0].transposed:
        host.emit(LaunchOp(names[0], counts[0], [*inputs, *results]))
    else:
        host.emit(DispatchOp(names, counts, [*inputs, *results], [one.transposed for one in choices], times))
    ops = set(group.ops)
    for value, result in zip(outputs, results, strict=True):
        value.replace_uses_with_if(result, lambda use: use.operation not in ops)


def blocks_of(kernel: KernelOp) -> tuple[int, ...]:
    """The elements of a kernel's tile."""
    return next(op for op in kernel.block.ops if isinstance(op, GridOp)).get_blocks()


def dynamic_axes(group: Group, shape: Sequence[int]) -> list[int]:
    """The axes of the group's grid that are the `?` dimensions of a value of the group."""
    skip = len(group.shape) - len(shape)
    return [skip + i for i, s in enumerate(shape) if s == DYNAMIC]


def size_source(group: Group, axis: int) -> tuple[SSAValue, int]:
    """The input tensor, and its axis, whose size is that of an axis of the group's grid."""
    rank, matmul = len(group.shape), group.matmul
    if matmul is not None:
        if axis == rank - 1:
            return matmul.b, rank - 2 if matmul.transpose_b is not None else rank - 1
        return matmul.a, rank - 1 if axis == rank - 2 and matmul.transpose_a is not None else axis
    for tensor in group.inputs():
        shape = tensor_type(tensor).get_shape()
        own = axis - (rank - len(shape))
        if own >= 0 and shape[own] == DYNAMIC:
            return tensor, own
    message = f"dimension {axis} of the result is `?`, but no operand has it"
    raise EmmyError(message, location_of(group.ops[-1]))


def index_constant(emit: Emitter, number: int, hint: str) -> SSAValue:
    value = emit.value(arith.ConstantOp(IntegerAttr(number, Index)))
    value.name_hint = hint
    return value


def contraction_size(matmul: MatmulOp) -> tuple[int, int]:
    """The contraction's size, `DYNAMIC` if neither operand has it, and its axis of operand a."""
    shapes = tensor_type(matmul.a).get_shape(), tensor_type(matmul.b).get_shape()
    transpose_a = matmul.transpose_a is not None
    *_, of_a, of_b = contraction(*shapes, transpose_a, matmul.transpose_b is not None)
    rank = len(shapes[0])
    return next((s for s in (of_a, of_b) if s != DYNAMIC), DYNAMIC), rank - 2 if transpose_a else rank - 1
