"""From a lowered module to launch metadata: what an entry takes, gives, allocates and launches, as JSON expressions.

A host function (`tile.dim`, `arith`, `tile.alloc`, `tile.launch`, `func.return`) is evaluated symbolically: an index is
an expression over the arguments' shapes, a tensor is a buffer with a name. Together with the parameters that each
`ptx.kernel` describes this gives the entries of `emmy.artefact`.

What is known at other levels only, `emmy.launch_facts` collects there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from xdsl.dialects import arith, func
from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, ModuleOp, TensorType
from xdsl.ir import Attribute, Operation, SSAValue

from emmy.dialects import ptx, tile
from emmy.dialects.common import DYNAMIC
from emmy.errors import EmmyError
from emmy.launch_expressions import ARITHMETIC, Expression, Sizes, ceildiv, floordiv, multiply
from emmy.launch_facts import DEFAULT_ALIGN, Facts, KernelFacts, argument_names, argument_sizes, fresh_name
from emmy.launch_specs import (
    DTYPES,
    ArgumentSpec,
    BufferSpec,
    CheckSpec,
    EntrySpec,
    LaunchSpec,
    TensorMapSpec,
    WantedSpec,
)
from emmy.locations import location_of

WAITS = "griddepcontrol_wait"
"""The instruction of kernels that wait for earlier launches by themselves."""

COUNTS_CTAS = "nctaid_x"
"""The instruction of kernels that go from tile to tile by as many as there are CTAs."""


@dataclass(frozen=True)
class Buffer:
    """A tensor of the host function: an argument, a result or a temporary."""

    name: str
    dtype: str
    sizes: Sizes
    argument: bool
    parts: tuple[tuple[int, Expression], ...] = ()
    """Of a reshaped tensor, for each axis: the axis of the tensor in memory that it is a part of, and a step along that one."""

    transposed: bool = False
    """Whether it is another buffer with its last two dimensions exchanged, as a kernel reads it."""

    def transpose(self) -> Buffer:
        """The same memory with the last two dimensions exchanged."""
        *outer, rows, columns = self.sizes
        *first, of_rows, of_columns = self.parts or [(axis, 1) for axis in range(len(self.sizes))]
        parts = (*first, of_columns, of_rows)
        return replace(self, sizes=(*outer, columns, rows), parts=parts, transposed=True)

    def stride(self, axis: int) -> Expression:
        """The stride of an axis in elements, as the tensor lies in the call."""
        if not self.parts:
            return ["stride", self.name, axis]
        whole, step = self.parts[axis]
        return multiply(step, ["stride", self.name, whole])


class HostEvaluator:
    """Walks one host function; `spec()` gives its entry."""

    def __init__(
        self,
        function: func.FuncOp,
        kernels: Mapping[str, ptx.KernelOp],
        kernel_facts: Mapping[str, KernelFacts],
        images: Mapping[str, str],
    ):
        self.function = function
        self.kernels = kernels
        self.kernel_facts = kernel_facts
        self.images = images
        self.indices: dict[SSAValue, Expression] = {}
        self.buffers: dict[SSAValue, Buffer] = {}
        self.launches: list[LaunchSpec] = []
        self.checks: list[CheckSpec] = []
        self.row_major: set[str] = set()
        self.from_level1 = False
        self.returned: list[Buffer] = []

    def spec(self, facts: Facts) -> EntrySpec:
        """The entry. Raises `EmmyError` at an op that is none of a host function's."""
        self.from_level1 = bool(facts.work)
        names = argument_names(self.function)
        for name, arg in zip(names, self.function.body.block.args, strict=True):
            self.buffers[arg] = Buffer(name, self.element_type(arg), argument_sizes(name, arg.type), True)
        self.name_results()
        for op in self.function.body.block.ops:
            self.visit(op)
        own = [buffer for buffer in self.buffers.values() if not buffer.parts]
        arguments = [buffer for buffer in own if buffer.argument]
        allocated = [buffer for buffer in own if not buffer.argument]
        spec: EntrySpec = {
            "arguments": [self.argument_spec(buffer) for buffer in arguments],
            "results": [self.buffer_spec(buffer) for buffer in self.returned],
            "temporaries": [self.buffer_spec(buffer) for buffer in allocated if buffer not in self.returned],
            "checks": self.checks,
            "launches": self.launches,
        }
        if facts.work:
            spec["work"] = facts.work
        return spec

    def name_results(self) -> None:
        """Names of the tensors that the function allocates, distinct from those of the arguments."""
        self.names: dict[SSAValue, str] = {}
        taken = [buffer.name for buffer in self.buffers.values()]
        for op in self.function.body.block.ops:
            if isinstance(op, tile.AllocOp):
                self.names[op.result] = fresh_name(op.result.name_hint or "out", taken)
                taken.append(self.names[op.result])

    def element_type(self, value: SSAValue) -> str:
        """The element type's name; `EmmyError` if the runtime has none such."""
        type_ = value.type
        if not isinstance(type_, TensorType):
            raise EmmyError(f"a host function takes and gives tensors, got {type_}", location_of(self.function))
        name = str(cast("TensorType[Attribute]", type_).element_type)
        if name not in DTYPES:
            raise EmmyError(f"tensors hold {', '.join(DTYPES)}, got {name}", location_of(self.function))
        return name

    # ---- ops ---------------------------------------------------------------------------------------------------------

    def compute(self, op: Operation) -> Expression:
        """The value of index arithmetic."""
        build, operands = ARITHMETIC[type(op)], [self.indices[operand] for operand in op.operands]
        if build in (ceildiv, floordiv) and isinstance(operands[1], int) and operands[1] < 1:
            raise EmmyError(f"{op.name} by {operands[1]}; divisors are positive", location_of(op))
        return build(*operands)

    def visit(self, op: Operation) -> None:
        """Evaluate one op."""
        if isinstance(op, arith.ConstantOp) and isinstance(op.value, IntegerAttr):
            self.indices[op.result] = op.value.value.data
        elif type(op) in ARITHMETIC:
            self.indices[op.results[0]] = self.compute(op)
        elif isinstance(op, tile.DimOp):
            self.indices[op.result] = self.buffers[op.source].sizes[op.axis.value.data]
        elif isinstance(op, tile.SmCountOp):
            self.indices[op.result] = ["sms"]
        elif isinstance(op, tile.RequireEqualOp):
            self.require_equal(op)
        elif isinstance(op, tile.AllocOp):
            self.buffers[op.result] = self.allocate(op)
        elif isinstance(op, tile.ReshapeOp):
            self.buffers[op.result] = self.reshape(op)
        elif isinstance(op, tile.LaunchOp):
            self.launches.append(self.launch(op, op.kernel.root_reference.data, op.ctas, ()))
        elif isinstance(op, tile.DispatchOp):
            first, *others = (
                self.launch(op, name, ctas, transposed)
                for name, ctas, transposed in zip(op.names, op.ctas, op.get_transposed(), strict=True)
            )
            for one, time in zip((first, *others), op.times, strict=False):
                one["time"] = self.indices[time]
            self.launches.append({**first, "otherwise": others} if others else first)
        elif isinstance(op, func.ReturnOp):
            self.returned = self.results(op)
        else:
            raise EmmyError(f"'{op.name}' cannot stand in a host function", location_of(op))

    def require_equal(self, op: tile.RequireEqualOp) -> None:
        """A check of the entry, unless it holds by construction."""
        left, right = self.indices[op.left], self.indices[op.right]
        if left != right:
            self.checks.append({"value": left, "equals": right, "message": op.message.data})

    def allocate(self, op: tile.AllocOp) -> Buffer:
        dynamic = iter([self.indices[size] for size in op.sizes])
        shape = op.result.type.get_shape()
        sizes = tuple(next(dynamic) if size == DYNAMIC else size for size in shape)
        return Buffer(self.names[op.result], self.element_type(op.result), sizes, False)

    def reshape(self, op: tile.ReshapeOp) -> Buffer:
        source, origins = self.buffers[op.source], op.origins()
        declared = op.result.type.get_shape()
        sizes = tuple(
            s if s != DYNAMIC else source.sizes[axis] if step == 1 else floordiv(source.sizes[axis], step)
            for s, (axis, step) in zip(declared, origins, strict=True)
        )
        if source.parts:
            origins = [(source.parts[axis][0], multiply(step, source.parts[axis][1])) for axis, step in origins]
        return replace(source, sizes=sizes, parts=tuple(origins))

    def results(self, op: func.ReturnOp) -> list[Buffer]:
        buffers = [self.buffers[value] for value in op.arguments]
        for position, buffer in enumerate(buffers):
            if buffer.argument:
                raise EmmyError(f"the function returns its argument '{buffer.name}' unchanged", location_of(op))
            if buffer in buffers[:position]:
                raise EmmyError(f"the function returns '{buffer.name}' twice", location_of(op))
        return buffers

    def launch(
        self, op: tile.LaunchOp | tile.DispatchOp, name: str, ctas: SSAValue, transposed: Sequence[int]
    ) -> LaunchSpec:
        """A launch of the kernel called `name`, at `op`; `transposed`: the tensors whose last dimensions are exchanged."""
        kernel = self.kernels.get(name)
        if kernel is None:
            raise EmmyError(f"there is no kernel @{name} at level 4", location_of(op))
        buffers = [self.buffers[value] for value in op.args]
        buffers = [buffer.transpose() if i in transposed else buffer for i, buffer in enumerate(buffers)]
        facts = self.kernel_facts.get(name)
        spec: LaunchSpec = {
            "image": self.images[name],
            "kernel": name,
            "grid": [self.indices[ctas], 1, 1],
            "block": [kernel.threads.value.data, 1, 1],
            "shared_bytes": kernel.shared_bytes.value.data,
            "params": [self.parameter(param.data, kernel, buffers, facts, op) for param in kernel.params],
        }
        instructions = {op.row.name for op in kernel.body.block.ops if isinstance(op, ptx.Instruction)}
        if WAITS in instructions:
            spec["programmatic"] = True
        if kernel.cluster_shape:
            spec["cluster"] = list(kernel.cluster_shape)
            if COUNTS_CTAS in instructions and counts_multiprocessors(spec["grid"][0]):
                spec["persistent"] = True
        if facts is None:
            self.row_major |= {buffer.name for buffer in buffers}
        else:
            spec["wants"] = _wants(buffers, facts)
            if self.from_level1:
                spec["variant"] = facts.variant
        return spec

    def parameter(
        self, text: str, kernel: ptx.KernelOp, buffers: Sequence[Buffer], facts: KernelFacts | None, op: Operation
    ) -> dict[str, Any]:
        """One launch parameter from its description in `ptx.kernel`."""
        word, *numbers = text.split()
        index, *axis = (int(number) for number in numbers)
        if word == "tensor_map":
            return {"tensor_map": self.tensor_map(kernel.maps[index], buffers, facts, op)}
        if index >= len(buffers) or (axis and axis[0] >= len(buffers[index].sizes)):
            raise EmmyError(f"the launch passes nothing for the kernel's parameter '{text}'", location_of(op))
        buffer = buffers[index]
        if word == "pointer":
            return {"pointer": buffer.name}
        return {"u32": buffer.sizes[axis[0]]} if word == "dim" else {"u64": buffer.stride(axis[0])}

    def tensor_map(
        self, described: ptx.TensorMap, buffers: Sequence[Buffer], facts: KernelFacts | None, op: Operation
    ) -> TensorMapSpec:
        """A tensor map of a launch argument: row-major, unless the kernel's view has strides of its own."""
        if described.view >= len(buffers) or len(described.box) != len(buffers[described.view].sizes):
            raise EmmyError(
                f"the launch passes no tensor for the tensor map of argument {described.view}", location_of(op)
            )
        buffer = buffers[described.view]
        itemsize, rank = DTYPES[buffer.dtype].itemsize, len(buffer.sizes)
        dense = [multiply(*buffer.sizes[axis + 1 :]) for axis in range(rank - 1)]
        declared = facts.views[described.view].strides if facts is not None and facts.views else None
        strides = [buffer.stride(axis) for axis in range(rank - 1)] if isinstance(declared, ArrayAttr) else dense
        return {
            "of": buffer.name,
            "dtype": buffer.dtype,
            "sizes": list(buffer.sizes),
            "strides": [multiply(itemsize, stride) for stride in strides],
            "box": list(described.box),
            "swizzle": described.swizzle,
        }

    # ---- arguments and results -----------------------------------------------------------------------------------------

    def argument_spec(self, buffer: Buffer) -> ArgumentSpec:
        """Any strides, where the kernels say which they want; row-major and aligned, where nobody does (level-4 text)."""
        spec: ArgumentSpec = {"name": buffer.name, "dtype": buffer.dtype, "shape": list(buffer.sizes)}
        if buffer.name in self.row_major:
            return {**spec, "align": DEFAULT_ALIGN}
        return {**spec, "strides": [None] * len(buffer.sizes), "align": DTYPES[buffer.dtype].itemsize}

    def buffer_spec(self, buffer: Buffer) -> BufferSpec:
        align = DEFAULT_ALIGN if buffer.name in self.row_major else DTYPES[buffer.dtype].itemsize
        return {"name": buffer.name, "dtype": buffer.dtype, "shape": list(buffer.sizes), "align": align}


def counts_multiprocessors(expression: Expression) -> bool:
    """Whether an expression has the device's number of multiprocessors in it."""
    if isinstance(expression, int | str) or expression is None:
        return False
    return expression[0] == "sms" or any(counts_multiprocessors(operand) for operand in expression[1:])


def _wants(buffers: Sequence[Buffer], facts: KernelFacts) -> dict[str, WantedSpec]:
    """What a kernel wants of the buffers that it is launched on, by name: what its views say, and what its copies need.

    A buffer that is passed twice must be what both views want, so that row-major is wanted before anything else.
    """
    wants: dict[str, WantedSpec] = {}
    views = facts.views or (None,) * len(buffers)
    for buffer, view, width in zip(buffers, views, facts.widths, strict=False):
        itemsize = DTYPES[buffer.dtype].itemsize
        promised = view.align.data if view is not None else 0
        # Without a promise, a `?` row holds whole copies or the kernel would not make them so wide.
        rows = promised or (width if not isinstance(buffer.sizes[-1], int) else 0)
        before = wants.get(buffer.name, {})
        wanted: WantedSpec = {"align": max(width, promised, itemsize, before.get("align", 1))}
        if max(rows, before.get("rows", 0)) > itemsize:
            wanted["rows"] = max(rows, before.get("rows", 0))
        if view is not None and isinstance(view.strides, ArrayAttr) and (not before or "strides" in before):
            wanted["strides"] = [None if stride == DYNAMIC else stride for stride in view.get_strides()]
        if buffer.transposed:
            wanted["transposed"] = True
        wants[buffer.name] = wanted
    return wants


def plan_entries(
    module: ModuleOp,
    images: Mapping[str, str],
    facts: Mapping[str, Facts] | None = None,
    kernel_facts: Mapping[str, KernelFacts] | None = None,
) -> dict[str, EntrySpec]:
    """The entries of a level-4 module, by function name.

    `images` maps kernel names to the image that holds them; `facts` and `kernel_facts` come from the levels above.
    Raises `EmmyError` for a host function that cannot be expressed.
    """
    kernels = {op.sym_name.data: op for op in module.body.block.ops if isinstance(op, ptx.KernelOp)}
    entries: dict[str, EntrySpec] = {}
    for function in module.body.block.ops:
        if isinstance(function, func.FuncOp):
            name = function.sym_name.data
            if len(function.body.blocks) != 1:
                raise EmmyError("a host function has one block", location_of(function))
            evaluator = HostEvaluator(function, kernels, kernel_facts or {}, images)
            entries[name] = evaluator.spec((facts or {}).get(name, Facts()))
    return entries
