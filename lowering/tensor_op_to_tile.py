"""Level 1 to level 2: `lower-tensor-op` turns products and elementwise chains into kernels over tiles and their launches.

Accepts: functions of one block that hold `tensor_op.matmul` and composites (each with its `emmy.schedule`), `map`, `cast`
and `func.return`, over f16, bf16 and f32 tensors, products also over 8-bit ones; `?` dimensions, transposes and leading batch
dimensions are fine.
Guarantees: no tensor_op op is left; for each group of `emmy.passes.fusion` there are one `tile.kernel` after the function
and, in the function, the `tile.alloc` of its results and its `tile.launch`. Results are the same numbers: every `map` is
computed in f32 and rounded to its own type, as level 1 says, even where a chain stays in registers. Ops that nothing reads
are dropped. A product of bf16 that cannot follow the module's policy is summed in f32; its kernel says so (`emmy.remark`).

A kernel exists in the `variants` that are asked for (names of `emmy.variants`, or `all`): `dense`, the default, for tensors
that are row-major without gaps, and whose `?` rows are whole 16 bytes; the others for tensors with strides of their own, with
less alignment, or with any strides, by other copies and with a schedule for these. Of several variants a `tile.dispatch`
chooses at the call; a kernel that is not `dense` says what it is (`emmy.variant`). Where a product has several schedules for
sizes that are `?` (`emmy.schedules`), the dense variant has a kernel of each, and the dispatch the time that each of them takes.

    func.func @mm(%a: tensor<?x64xf16>, %b: tensor<256x64xf16>) -> tensor<?x256xf16> {
      %y = tensor_op.matmul %a, %b transpose_b {emmy.schedule = #tile.schedule<block = [128, 128, 64], warps = [2, 2]>} : ..
      func.return %y : tensor<?x256xf16>
    }
becomes
    func.func @mm(%a: tensor<?x64xf16>, %b: tensor<256x64xf16>) -> tensor<?x256xf16> {
      %size = tile.dim %a, 0 : tensor<?x64xf16>
      %y = tile.alloc [%size] : tensor<?x256xf16>
      ..                                                           // %ctas = ceil(%size / 128) * 2
      tile.launch @mm_kernel[%ctas] (%a, %b, %y) : ..
      func.return %y : tensor<?x256xf16>
    }
    tile.kernel @mm_kernel(%a: !tile.view<?x64xf16>, %b: !tile.view<256x64xf16>, %y: !tile.view<?x256xf16>) schedule <..> {
      %m, %n = tile.grid [%M by 128, %N by 128] raster 8
      %acc = scf.for %k = .. { tile.load, tile.load, tile.dot }    // no iteration if K is 0: the result is zeros
      %y_tile = tile.cast %acc : ..
      tile.store %y_tile, %y[%m, %n] : ..
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects import func, scf
from xdsl.dialects.builtin import (
    AnyFloat,
    BFloat16Type,
    Float16Type,
    Float32Type,
    FloatAttr,
    ModuleOp,
    StringAttr,
    TensorType,
    f16,
    f32,
    i32,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from emmy.dialects.common import DYNAMIC, Index
from emmy.dialects.tensor_op import (
    EIGHT_BITS,
    AccumulateAttr,
    CompositeOp,
    MapOp,
    MatmulOp,
    accumulation_policy,
    module_policy,
    policy_problem,
    tensor_type,
)
from emmy.dialects.tile import (
    CastOp,
    DimOp,
    DotOp,
    FillOp,
    GridOp,
    KernelOp,
    LoadOp,
    ScheduleAttr,
    StoreOp,
    TileType,
    ViewType,
)
from emmy.dialects.tile import MapOp as TileMapOp
from emmy.errors import EmmyError
from emmy.launch_specs import MAX_SIZE
from emmy.locations import location_of
from emmy.lowering.tile_launches import (
    Choice,
    contraction_size,
    index_constant,
    launch_group,
    require_equal_sizes,
    size_source,
)
from emmy.passes.emitter import Emitter
from emmy.passes.fusion import LEVEL1_OPS, Group, group_ops, live_ops
from emmy.passes.timed_schedules import SCHEDULE, timed_schedules
from emmy.schedule_table import ELEMENTWISE_BLOCK
from emmy.schedules import Schedule
from emmy.variants import DENSE_ALIGN, PREFERRED, VARIANT, VARIANTS, Variant, parse_variants, schedule_of


@dataclass(frozen=True)
class LowerTensorOp(ModulePass):
    """See the module's docstring. Raises `EmmyError` for a product without a schedule and for ops that it does not know."""

    name = "lower-tensor-op"
    variants: str = PREFERRED

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        variants = [VARIANTS[name] for name in parse_variants(self.variants)]
        names = {o.sym_name.data for o in op.body.block.ops if isinstance(o, func.FuncOp | KernelOp)}
        for function in [o for o in op.body.block.ops if isinstance(o, func.FuncOp)]:
            if any(isinstance(inner, LEVEL1_OPS) for inner in function.walk()):
                lower_function(op, function, names, variants)


def lower_function(module: ModuleOp, function: func.FuncOp, names: set[str], variants: Sequence[Variant]) -> None:
    """Lower one function; its kernels are added after it. `names` are the module's symbols, kept up to date."""
    ops = _level1_ops(function)
    require_equal_sizes(function)
    groups = group_ops(ops)
    anchor = _lower_composites(module, function, groups, names, variants)
    groups = [group for group in groups if group.composite is None]
    for i, group in enumerate(groups):
        base = f"{function.sym_name.data}_kernel{i if len(groups) > 1 else ''}"
        own = [v for v in variants if _has_variant(group, v)] or [VARIANTS[PREFERRED]]
        choices = [choice for variant in own for choice in _choices(group, variant, base, names)]
        for choice in choices:
            module.body.block.insert_op_after(choice.kernel, anchor)
            anchor = choice.kernel
        launch_group(function.body.block, group, choices)
    for op in reversed(ops):
        op.detach()
        op.erase()


def _lower_composites(
    module: ModuleOp, function: func.FuncOp, groups: Sequence[Group], names: set[str], variants: Sequence[Variant]
) -> Operation:
    """Add the kernels of composites after the function, their launches where they stand; the last op added, or the function.

    Readers of a composite take the tensors that its launches fill.
    """
    last: Operation = function
    for i, group in enumerate(groups):
        op = group.composite
        if op is None:
            continue
        name = f"{function.sym_name.data}_kernel{i if len(groups) > 1 else ''}"
        host = Emitter(function.body.block, op, anchor=op)
        kernels, results = op.lower(host, lambda suffix, name=name: _fresh(name + suffix, names), variants)
        for value, result in zip(op.results, results, strict=True):
            value.replace_all_uses_with(result)
        for kernel in kernels:
            module.body.block.insert_op_after(kernel, last)
            last = kernel
    return last


def _level1_ops(function: func.FuncOp) -> list[Operation]:
    """The tensor_op ops of a function in order, after dropping those that nothing reads; other ops are errors."""
    if len(function.body.blocks) != 1:
        raise EmmyError("a function of tensor_op ops has one block", location_of(function))
    ops = live_ops(function.body.block)
    for op in reversed(list(function.body.block.ops)):
        if op in ops:
            _check_types(op)
        elif isinstance(op, LEVEL1_OPS):
            op.detach()
            op.erase()
        elif not isinstance(op, func.ReturnOp):
            message = f"a function of tensor_op ops holds only them and func.return; got '{op.name}'"
            raise EmmyError(message, location_of(op))
    return ops


def _check_types(op: Operation) -> None:
    for value in (*op.operands, *op.results):
        tensor = tensor_type(value)
        integers = tensor.element_type == i32 and isinstance(op, CompositeOp)
        if isinstance(tensor.element_type, EIGHT_BITS):
            if not isinstance(op, MatmulOp):
                message = f"kernels read tensors of {tensor.element_type} as operands of products only; got {op.name}"
                raise EmmyError(message, location_of(op))
        elif not integers and not isinstance(tensor.element_type, Float16Type | BFloat16Type | Float32Type):
            raise EmmyError(f"kernels work on f16, bf16 and f32 tensors, got {tensor}", location_of(op))
        if any(size > MAX_SIZE for size in tensor.get_shape()):
            raise EmmyError(
                f"a dimension of {tensor} is over {MAX_SIZE}, the largest that is counted in 32 bits", location_of(op)
            )
        if not tensor.get_shape():
            raise EmmyError(f"kernels work on tensors of rank 1 and more, got {tensor}", location_of(op))


def _fresh(name: str, names: set[str]) -> str:
    while name in names:
        name += "_"
    names.add(name)
    return name


# ---- which kernels ----------------------------------------------------------------------------------------------------


def _has_variant(group: Group, variant: Variant) -> bool:
    """Whether a group can be computed by a variant: what is read transposed is read by the product only, and no 8-bit operand."""
    matmul = group.matmul
    if not variant.transposed:
        return True
    if matmul is None or matmul.a is matmul.b or isinstance(tensor_type(matmul.a).element_type, EIGHT_BITS):
        return False
    read = {value for op in group.elementwise for value in op.operands}
    return not any((matmul.a, matmul.b)[operand] in read for operand in variant.transposed)


def _choices(group: Group, variant: Variant, base: str, names: set[str]) -> list[Choice]:
    """The kernels of a variant: of the preferred one those of every schedule among which sizes choose, else one."""
    if variant.name != PREFERRED:
        return [Choice(_kernel(_fresh(f"{base}_{variant.name}", names), group, variant), variant.transposed)]
    competing = timed_schedules(group.matmul) if group.matmul is not None else ()
    if not competing:
        return [Choice(_kernel(_fresh(base, names), group, variant))]
    choices: list[Choice] = []
    for one in competing:
        rows, columns, _ = one.schedule.block
        split = f"_by{one.schedule.split_k}" if one.schedule.split_k > 1 else ""
        usual = group.matmul is not None and _schedule_of(group.matmul).data == one.schedule
        name = _fresh(base if usual else f"{base}_{rows}x{columns}{split}", names)
        choices.append(Choice(_kernel(name, group, variant, one.schedule), timed=one))
    return choices


# ---- kernels ---------------------------------------------------------------------------------------------------------


class Body:
    """A kernel under construction: its views, the offsets of its tile, and the tile of every tensor computed so far."""

    def __init__(self, group: Group, blocks: Sequence[int], raster: int, variant: Variant):
        self.group = group
        self.variant = variant
        self.blocks = tuple(blocks)
        tensors = [*group.inputs(), *group.outputs()]
        types = [view_type(tensor_type(t), variant, i) for i, t in enumerate(tensors)]
        self.transposed = [tensors[operand] for operand in variant.transposed]
        self.block = Block(arg_types=types)
        self.emit = Emitter(self.block, group.matmul or group.ops[0])
        self.views: dict[SSAValue, SSAValue] = dict(zip(tensors, self.block.args, strict=True))
        for tensor, view in self.views.items():
            view.name_hint = tensor.name_hint
        self.tiles: dict[SSAValue, SSAValue] = {}
        self.constants: dict[int, SSAValue] = {}
        extents = [self.extent(*self._axis(i)) for i in range(len(self.blocks))]
        grid = self.emit(GridOp(extents, self.blocks, raster))
        self.offsets = tuple(grid.results)
        for offset, hint in zip(reversed(self.offsets), "nmb", strict=False):
            offset.name_hint = hint

    def _axis(self, axis: int) -> tuple[SSAValue | None, int]:
        """(tensor, its axis) of a `?` axis of the grid, or (None, size)."""
        size = self.group.shape[axis]
        return (None, size) if size != DYNAMIC else size_source(self.group, axis)

    def extent(self, tensor: SSAValue | None, axis: int) -> SSAValue:
        """The size of an axis of an input, or the constant `axis`."""
        if tensor is None:
            return self.constant(axis)
        rank = len(tensor_type(tensor).get_shape())
        if tensor in self.transposed and axis >= rank - 2:
            axis = 2 * rank - 3 - axis
        size = self.emit.value(DimOp(self.views[tensor], axis))
        size.name_hint = f"{tensor.name_hint or 'size'}_{axis}"
        return size

    def constant(self, number: int) -> SSAValue:
        """An index constant, one op for each number."""
        if number not in self.constants:
            self.constants[number] = index_constant(self.emit, number, f"c{number}")
        return self.constants[number]

    def box(self, tensor: SSAValue) -> tuple[list[SSAValue], TileType]:
        """Where the tile of a tensor lies, and its type: sizes of 1 broadcast, leading batch sizes are left out."""
        type_ = tensor_type(tensor)
        shape = type_.get_shape()
        skip = len(self.blocks) - len(shape)
        broadcast = [s == 1 and self.group.shape[skip + i] != 1 for i, s in enumerate(shape)]
        indices = [self.constant(0) if b else self.offsets[skip + i] for i, b in enumerate(broadcast)]
        sizes = [1 if b else self.blocks[skip + i] for i, b in enumerate(broadcast)]
        return indices, TileType.get(sizes[-2:], type_.element_type)

    def tile(self, tensor: SSAValue) -> SSAValue:
        """The tile of a tensor: computed before, or loaded now."""
        if tensor not in self.tiles:
            indices, type_ = self.box(tensor)
            self.tiles[tensor] = self.emit.value(LoadOp(self.views[tensor], indices, type_))
            self.tiles[tensor].name_hint = tensor.name_hint
        return self.tiles[tensor]

    def cast(self, tile: SSAValue, element: Attribute) -> SSAValue:
        """The tile, rounded to another type if it is not of that type."""
        type_ = cast(TileType, tile.type)
        if type_.element_type == element:
            return tile
        return self.emit.value(CastOp(tile, TileType.get(type_.get_shape(), element)))

    def finish(self, name: str, schedule: ScheduleAttr | None) -> KernelOp:
        """Compute the elementwise ops, store the outputs; the kernel."""
        for op in self.group.elementwise:
            self.emit.at(op)
            self.tiles[op.results[0]] = self._compute(op)
        for value in self.group.outputs():
            self.emit.at(cast(Operation, value.owner))
            self.emit(StoreOp(self.tiles[value], self.views[value], self.box(value)[0]))
        kernel = KernelOp(name, schedule, Region(self.block))
        if self.variant.name != PREFERRED:
            kernel.attributes[VARIANT] = StringAttr(self.variant.name)
        kernel.location = (self.group.matmul or self.group.ops[0]).location
        return kernel

    def _compute(self, op: Operation) -> SSAValue:
        element = tensor_type(op.results[0]).element_type
        if not isinstance(op, MapOp):
            return self.cast(self.tile(op.operands[0]), element)
        # In f32, then one rounding: what a map means, and what the hardware has every function for.
        args = [self.cast(self.tile(arg), f32) for arg in op.args]
        shape = self.box(op.result)[1].get_shape()
        return self.cast(self.emit.value(TileMapOp(op.kind, args, TileType.get(shape, f32))), element)


def view_type(tensor: TensorType[Attribute], variant: Variant, position: int) -> ViewType:
    """The view of the tensor of that position in a kernel of a variant. Rows of static sizes prove their alignment themselves;
    of a row of one element nothing is wanted."""
    shape, element = tensor.get_shape(), tensor.element_type
    if position in variant.transposed:
        shape = (*shape[:-2], *shape[:-3:-1])
    size = cast(AnyFloat, element).bitwidth // 8
    if variant.layout == "dense":
        return ViewType.get(shape, element, None, DENSE_ALIGN if shape[-1] == DYNAMIC else 0)
    if variant.layout == "any" or shape[-1] == 1:
        return ViewType.get(shape, element, [DYNAMIC] * len(shape), size)
    return ViewType.get(shape, element, (*([DYNAMIC] * (len(shape) - 1)), 1), max(variant.align, size))


def _kernel(name: str, group: Group, variant: Variant, schedule: Schedule | None = None) -> KernelOp:
    """The kernel of a group as one variant, with the product's schedule or the one that is given."""
    if group.matmul is None:
        return _elementwise_kernel(name, group, variant)
    return _matmul_kernel(name, group, group.matmul, variant, schedule or _schedule_of(group.matmul).data)


def _schedule_of(matmul: MatmulOp) -> ScheduleAttr:
    """What `assign-schedule` left."""
    schedule = matmul.attributes.get(SCHEDULE)
    if not isinstance(schedule, ScheduleAttr):
        message = f"this product has no {SCHEDULE}; run assign-schedule{{target=..}} before lower-tensor-op"
        raise EmmyError(message, location_of(matmul))
    return schedule


def _elementwise_kernel(name: str, group: Group, variant: Variant) -> KernelOp:
    rank = len(group.shape)
    blocks = ELEMENTWISE_BLOCK[-1:] if rank == 1 else (*([1] * (rank - 2)), *ELEMENTWISE_BLOCK[:2])
    return Body(group, blocks, raster=1, variant=variant).finish(name, None)


def _matmul_kernel(name: str, group: Group, matmul: MatmulOp, variant: Variant, preferred: Schedule) -> KernelOp:
    policy = accumulation_policy(matmul)
    bits = cast(AnyFloat, tensor_type(matmul.a).element_type).bitwidth
    schedule = ScheduleAttr.get(schedule_of(variant, preferred, policy.policy.data == "hybrid", bits))
    rows, columns, _ = schedule.data.block
    body = Body(group, (*([1] * (len(group.shape) - 2)), rows, columns), schedule.data.raster, variant)
    result = tensor_type(matmul.result)
    accumulated = _contract(body, matmul, schedule, policy)
    body.tiles[matmul.result] = body.cast(accumulated, result.element_type)
    kernel = body.finish(name, schedule)
    wanted = matmul.accumulate or module_policy(matmul)
    if wanted is not None and wanted != policy:
        remark = f"accumulate<{wanted.policy.data}> of the module needs f16 operands; this product of bf16 stays f32"
        if bits == 8:
            remark = f"{policy_problem(wanted, tensor_type(matmul.a).element_type)}; this product stays f32"
        kernel.attributes["emmy.remark"] = StringAttr(remark)
    return kernel


def _contract(body: Body, matmul: MatmulOp, schedule: ScheduleAttr, policy: AccumulateAttr) -> SSAValue:
    """The loop over K: a tile of f32, or of f16 if the policy sums in f16 throughout."""
    (rows, columns, step), emit = schedule.data.block, body.emit
    # As the operands lie in memory: a variant may read one as if the text had it the other way round.
    transpose_a, transpose_b = (
        (flag is not None) != (operand in body.variant.transposed)
        for operand, flag in enumerate((matmul.transpose_a, matmul.transpose_b))
    )
    element_a, element_b = (tensor_type(operand).element_type for operand in (matmul.a, matmul.b))
    sum_type = TileType.get((rows, columns), f16 if policy.policy.data == "f16" else f32)
    a_type = TileType.get((step, rows) if transpose_a else (rows, step), element_a)
    b_type = TileType.get((columns, step) if transpose_b else (step, columns), element_b)
    bounds = body.constant(0), _depth(body, matmul), body.constant(step)
    zero = emit.value(FillOp(FloatAttr(0.0, cast(Float32Type, sum_type.element_type)), sum_type))
    zero.name_hint = "zero"
    loop_body = Block(arg_types=[Index, sum_type])
    (k, partial), (*batch, m, n) = loop_body.args, body.offsets
    k.name_hint, partial.name_hint = "k", "sum"
    inner = emit.inside(loop_body)
    a = inner.value(LoadOp(body.views[matmul.a], [*batch, *((k, m) if transpose_a else (m, k))], a_type))
    b = inner.value(LoadOp(body.views[matmul.b], [*batch, *((n, k) if transpose_b else (k, n))], b_type))
    a.name_hint, b.name_hint = "x", "w"
    total = inner.value(DotOp(a, b, partial, transpose_a, transpose_b, policy))
    total.name_hint = "total"
    inner(scf.YieldOp(total))
    accumulated = emit(scf.ForOp(*bounds, [zero], loop_body)).results[0]
    accumulated.name_hint = "acc"
    return accumulated


def _depth(body: Body, matmul: MatmulOp) -> SSAValue:
    """The contraction's size: a constant if either operand has it."""
    size, axis = contraction_size(matmul)
    return body.constant(size) if size != DYNAMIC else body.extent(matmul.a, axis)
