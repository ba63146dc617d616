"""`lower-to-ptx`: level 3 to level 4. A kernel of placed and lowered pipelines becomes the program of one thread.

One walk in order with a map from old values to new ones: an index is a number or an i32, a cursor or slot the byte offset of
the slot in its ring, a fragment the list of its registers. What each family of ops becomes is in `ptx_copies`,
`ptx_fragments` and `ptx_addresses`; how ops are hoisted, shared and folded in `ptx_builder`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import (
    Float32Type,
    FloatAttr,
    IntegerAttr,
    ModuleOp,
    f32,
    i1,
    i32,
    i64,
)
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from emmy.dialects import async_copy, mma, tile
from emmy.dialects.ptx import KernelOp
from emmy.errors import EmmyError
from emmy.locations import location_of
from emmy.lowering.ptx_addresses import Ring, SharedAddresses, SharedField, View, make_ring, make_view, parameter_kinds
from emmy.lowering.ptx_arithmetic import BINARY, COMPARISONS
from emmy.lowering.ptx_builder import Builder, Condition, Number
from emmy.lowering.ptx_copies import Copies
from emmy.lowering.ptx_fragments import Fragments, Registers, shape_of
from emmy.passes.allocate_shared import SHARED_BYTES
from emmy.schedules import Schedule
from emmy.targets import Target, get_target

Value = int | float | SSAValue | Registers
"""What stands for a value of level 3: a number or condition known now, a register, or the registers of a fragment."""

OpT = TypeVar("OpT", bound=Operation)


@dataclass(frozen=True)
class LowerToPtx(ModulePass):
    """Contract: replaces every `tile.kernel` by a `ptx.kernel` of the same name; the host function stays.

    Accepts kernels with one `async_copy.role` whose pipelines have their places in shared memory (`allocate-shared`), after
    `place-roles`, `lower-transport` and `lower-raster`: events (`slot`, `cp_async`, `plain_copy`, `plain_store`,
    `commit_group`, `wait_group`, `barrier`), fragments (`mma.*`), `scf.for` and `scf.if` with conditions that are uniform over
    the CTA, `arith` on index, i1 and f32. What it cannot lower is an `EmmyError` at that op.

    Guarantees: parameters are, for each view in order, its address, its `?` sizes, its explicit `?` strides. Copies never
    touch memory beyond a view's bounds. Bytes are addressed in 64 bits. Lane addresses and all else that does not change in
    a loop are computed before it. `mma` accumulators are updated in the order of the text.

    Before:                                                       After (the ops of one thread):
        %s, %next = async_copy.slot @ab[%cursor]                     %n = ptx.add_s32 %cursor, 49152 ...
        %a0 = mma.load %s["a"][%row, %c16] : ..                      %at = ptx.add_s32 %lane, %cursor
                                                                     %at16 = ptx.xor_b32 %at, 32
                                                                     %r0, %r1, %r2, %r3 = ptx.ldmatrix_x4 %at16, 0
        %d = mma.mma %a0, %b0, %c : ..                               %d0, .. = ptx.mma_m16n8k16_f32_f16 %r0, ..
    """

    name = "lower-to-ptx"
    target: str = "sm_90a"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target, enabled = get_target(self.target), gc.isenabled()
        gc.disable()  # thousands of ops are made and none dropped: collections would only cost time
        try:
            for kernel in [k for k in op.body.block.ops if isinstance(k, tile.KernelOp)]:
                new = KernelLowering(kernel, target).lower()
                op.body.block.insert_op_before(new, kernel)
                kernel.detach()
                kernel.erase()
        finally:
            if enabled:
                gc.enable()


def only_role(kernel: tile.KernelOp) -> async_copy.RoleOp:
    """The role of a unified kernel."""
    roles = [op for op in kernel.block.ops if isinstance(op, async_copy.RoleOp)]
    if len(roles) != 1:
        what = "has no role; run place-roles" if not roles else f"has {len(roles)} roles; lower-to-ptx takes one"
        raise EmmyError(f"kernel @{kernel.sym_name.data} {what}", location_of(kernel))
    return roles[0]


def is_copies(op: scf.IfOp) -> bool:
    """Are cp.asyncs all that an if does? Then they are predicated, which leaves ptxas one block to schedule."""
    return not op.false_region.blocks and all(
        isinstance(inner, async_copy.CpAsyncOp | scf.YieldOp) for inner in op.true_region.block.ops
    )


class KernelLowering:
    """Lowers one kernel."""

    def __init__(self, kernel: tile.KernelOp, target: Target):
        self.kernel, self.target = kernel, target
        self.role = only_role(kernel)
        self.schedule: Schedule | None = kernel.schedule.data if kernel.schedule else None
        self.warps = self.role.warps.value.data
        self.values: dict[SSAValue, Value] = {}
        self.rings: dict[str, Ring] = {}
        self.views: dict[SSAValue, View] = {}
        kinds = [parameter_kinds(i, cast(tile.ViewType, arg.type)) for i, arg in enumerate(kernel.block.args)]
        self.params = [kind for view in kinds for kind in view]
        types = [i32 if kind.startswith("dim") else i64 for kind in self.params]
        self.block = Block(arg_types=types)
        self.builder = Builder(self.block)
        self.builder.location = kernel.location
        self.tid = self.builder.pure("tid_x")
        self.tid.name_hint = "tid"
        shared = SharedAddresses(self.builder)
        self.copies = Copies(self.builder, shared, 32 * self.warps, self.tid)
        lane = cast(SSAValue, self.builder.low_bits(self.tid, 31))
        lane.name_hint = "lane"
        self.fragments = Fragments(self.builder, shared, lane, target)
        parameters = iter(self.block.args)
        for arg, kind in zip(kernel.block.args, kinds, strict=True):
            given = [next(parameters) for _ in kind]
            for name, parameter in zip(kind, given, strict=True):
                parameter.name_hint = f"{arg.name_hint or 'view'}_{name.split()[0]}"
            self.views[arg] = make_view(self.builder, cast(tile.ViewType, arg.type), given)

    def lower(self) -> KernelOp:
        """The `ptx.kernel`."""
        for op in self.kernel.block.ops:
            if op is not self.role:
                self.convert(op)
        self.convert_block(self.role.body.block)
        shared_bytes = cast(IntegerAttr | None, self.kernel.attributes.get(SHARED_BYTES))
        new = KernelOp(
            self.kernel.sym_name.data,
            threads=32 * self.warps,
            min_ctas=1,
            shared_bytes=0 if shared_bytes is None else shared_bytes.value.data,
            params=self.params,
            body=Region(self.block),
        )
        new.location = self.kernel.location
        return new

    def convert_block(self, block: Block) -> None:
        """All ops of a block but its yield."""
        for op in block.ops:
            if not isinstance(op, scf.YieldOp):
                self.convert(op)

    def convert(self, op: Operation) -> None:
        """One op. Raises `EmmyError` for what level 4 does not have."""
        convert = CONVERSIONS.get(type(op))
        if convert is None:
            raise EmmyError(f"lower-to-ptx has no lowering of {op.name}", location_of(op))
        self.builder.location = op.location
        convert(self, op)

    # ---- values ------------------------------------------------------------------------------------------------------

    def number(self, value: SSAValue) -> Number:
        """What stands for an index, a cursor, a slot or an i1."""
        found = self.values[value]
        assert isinstance(found, int | SSAValue)
        return found

    def condition(self, value: SSAValue) -> Condition:
        """What stands for an i1."""
        found = self.number(value)
        return found if isinstance(found, SSAValue) else bool(found)

    def registers(self, value: SSAValue) -> Registers:
        """What stands for a fragment."""
        found = self.values[value]
        assert isinstance(found, list)
        return found

    def flat(self, value: SSAValue) -> Registers:
        """What stands for a value that a loop carries, as registers."""
        found = self.values[value]
        if isinstance(found, list):
            return found
        if value.type == i1:
            return [self.builder.predicate(self.condition(value))]
        return [self.builder.register(found, f32 if value.type == f32 else i32)]

    def bind(self, values: Sequence[SSAValue], like: Sequence[SSAValue], registers: Registers) -> None:
        """Let `values` be made of `registers`, as many for each as `like` has."""
        at = 0
        for value, model in zip(values, like, strict=True):
            known = self.values[model]
            count = len(known) if isinstance(known, list) else 1
            self.values[value] = registers[at : at + count] if isinstance(known, list) else registers[at]
            at += count

    def place(self, slot: SSAValue, field: str) -> tuple[SharedField, Number]:
        """A field, and the byte offset of a slot in its ring."""
        return self.rings[async_copy.ring_name(slot)].fields[field], self.number(slot)

    def offsets(self, indices: Sequence[SSAValue]) -> list[Number]:
        """Element offsets."""
        return [self.number(index) for index in indices]

    def offsets_in(self, indices: Sequence[SSAValue]) -> tuple[Number, Number]:
        """Element offsets in a field as (row, column)."""
        found = self.offsets(indices)
        return (0, found[0]) if len(found) == 1 else (found[-2], found[-1])

    # ---- control flow ------------------------------------------------------------------------------------------------

    def loop(self, op: scf.ForOp) -> None:
        """A loop that carries registers. The counter takes the multiple that bounds and step have in common."""
        b, old = self.builder, op.body.block
        bounds = [self.number(v) for v in (op.lb, op.ub, op.step)]
        starts = [register for arg in op.iter_args for register in self.flat(arg)]
        body = Block(arg_types=[i32, *(v.type for v in starts)])
        multiple = min(b.multiple(bounds[0]), b.multiple(bounds[2]))
        b.enter(body)
        b.multiples[body.args[0]] = multiple
        self.values[old.args[0]] = body.args[0]
        self.bind(old.args[1:], op.iter_args, list(body.args[1:]))
        self.convert_block(old)
        last = cast(scf.YieldOp, old.last_op)
        ends = [register for value in last.operands for register in self.flat(value)]
        b.add_op(scf.YieldOp(*ends))
        b.leave()
        b.location = op.location
        loop = scf.ForOp(b.register(bounds[0]), b.register(bounds[1]), b.register(bounds[2]), starts, body)
        b.add_op(loop)
        self.bind(op.results, op.iter_args, list(loop.results))

    def branch(self, op: scf.IfOp) -> None:
        """A uniform branch; a condition known now leaves one region."""
        condition = self.condition(op.cond)
        if isinstance(condition, bool):
            region = op.true_region if condition else op.false_region
            if region.blocks:
                self.convert_block(region.block)
                last = cast(scf.YieldOp, region.block.last_op)
                for result, value in zip(op.results, last.operands, strict=True):
                    self.values[result] = self.values[value]
            return
        if is_copies(op):
            self.copies.guard = condition
            self.convert_block(op.true_region.block)
            self.copies.guard = True
            return
        regions: list[Region] = []
        ends: Registers = []
        for old in (op.true_region, op.false_region):
            block = Block()
            if old.blocks:
                self.builder.enter(block)
                self.convert_block(old.block)
                last = cast(scf.YieldOp, old.block.last_op)
                ends = [register for value in last.operands for register in self.flat(value)]
                self.builder.add_op(scf.YieldOp(*ends))
                self.builder.leave()
            regions.append(Region(block) if old.blocks else Region())
        self.builder.location = op.location
        new = scf.IfOp(condition, [v.type for v in ends], regions[0], regions[1])
        self.builder.add_op(new)
        if op.results:
            models = cast(scf.YieldOp, op.true_region.block.last_op).operands
            self.bind(op.results, models, list(new.results))

    # ---- pipelines ---------------------------------------------------------------------------------------------------

    def pipeline(self, op: async_copy.PipelineOp) -> None:
        """Addresses; no instruction."""
        self.rings[op.sym_name.data] = make_ring(op)

    def begin(self, op: async_copy.BeginFillOp | async_copy.BeginReadOp) -> None:
        """Slot 0."""
        self.values[op.cursor] = 0

    def slot(self, op: async_copy.SlotOp) -> None:
        """The slot is where the cursor is; the next one is a slot further on, or the first again."""
        b, ring, cursor = self.builder, self.rings[async_copy.ring_name(op.cursor)], self.number(op.cursor)
        self.values[op.slot] = cursor
        following = b.add(cursor, ring.slot_bytes)
        wrapped = b.compare("eq", following, ring.stages * ring.slot_bytes)
        following = b.select(wrapped, 0, following)
        if op.predicate is not None:
            following = b.select(self.condition(op.predicate), following, cursor)
        self.values[op.next] = 0 if ring.stages == 1 else following

    def cp_async(self, op: async_copy.CpAsyncOp) -> None:
        """`cp.async` of a box."""
        field, slot = self.place(op.slot, op.field.data)
        self.builder.comment(f"cp.async into @{async_copy.ring_name(op.slot)}.{op.field.data}")
        self.copies.cp_async(self.views[op.view], self.offsets(op.indices), field, slot, op.bytes.value.data)

    def plain_copy(self, op: async_copy.PlainCopyOp) -> None:
        """Loads and stores of a box, into shared memory."""
        field, slot = self.place(op.slot, op.field.data)
        self.builder.comment(f"load into @{async_copy.ring_name(op.slot)}.{op.field.data}")
        self.copies.plain_copy(self.views[op.view], self.offsets(op.indices), field, slot, op.bytes.value.data)

    def plain_store(self, op: async_copy.PlainStoreOp) -> None:
        """Loads and stores of a box, out of shared memory."""
        field, slot = self.place(op.slot, op.field.data)
        self.builder.comment(f"store from @{async_copy.ring_name(op.slot)}.{op.field.data}")
        self.copies.plain_store(self.views[op.view], self.offsets(op.indices), field, slot, op.bytes.value.data)

    def commit_group(self, op: async_copy.CommitGroupOp) -> None:
        """`cp.async.commit_group`"""
        self.builder.emit("cp_async_commit_group", ())

    def wait_group(self, op: async_copy.WaitGroupOp) -> None:
        """`cp.async.wait_group`"""
        self.builder.emit("cp_async_wait_group", (), (op.pending.value.data,))

    def barrier(self, op: async_copy.BarrierOp) -> None:
        """`bar.sync` over the CTA, which has one role."""
        self.builder.emit("bar_sync", (), (0,))

    # ---- fragments ---------------------------------------------------------------------------------------------------

    def warp(self, op: mma.WarpOp) -> None:
        """The warp's number, made provably uniform by a shuffle, and its coordinate."""
        b, grid, axis = self.builder, op.get_grid(), op.axis.value.data
        found: Number = 0
        if self.warps > 1:
            shuffle = ("shfl_idx_b32", self.tid)
            memo = b.scopes[0].memo
            if shuffle not in memo:
                number = b.register(b.divide(self.tid, 32))
                memo[shuffle] = b.emit("shfl_idx_b32", (number,), (0,), self.block).results[0]
            found = memo[shuffle]
        for size in reversed(grid[axis + 1 :]):
            found = b.divide(found, size)
        if axis:
            found = b.remainder(found, grid[axis])
        self.values[op.result] = 0 if grid[axis] == 1 else found

    def load(self, op: mma.LoadOp) -> None:
        """`ldmatrix`"""
        field, slot = self.place(op.slot, op.field.data)
        at = self.offsets_in(op.indices)
        self.values[op.result] = self.fragments.load(op, field, slot, at, op.transposed is not None)

    def store(self, op: mma.StoreOp) -> None:
        """`stmatrix` or `st.shared`"""
        field, slot = self.place(op.slot, op.field.data)
        self.builder.comment(f"fragments into @{async_copy.ring_name(op.slot)}.{op.field.data}")
        self.fragments.store(op, self.registers(op.value), field, slot, self.offsets_in(op.indices))

    def store_global(self, op: mma.StoreGlobalOp) -> None:
        """`st.global`. Without a schedule nothing is known of the CTA's tile, and every element is checked."""
        block = self.schedule.block[:2] if self.schedule else (1 << 30, 1 << 30)
        self.builder.comment("fragments to global memory")
        values, view = self.registers(op.value), self.views[op.view]
        self.fragments.store_global(op, values, view, self.offsets(op.indices), block)

    def fill(self, op: mma.FillOp) -> None:
        """Constants"""
        self.values[op.result] = self.fragments.fill(shape_of(op.result.type), op.value.value.data)

    def mma(self, op: mma.MmaOp) -> None:
        """`mma.sync`"""
        a, b, c = (self.registers(v) for v in (op.a, op.b, op.c))
        self.values[op.result] = self.fragments.multiply(op, a, b, c)

    def promote(self, op: mma.PromoteOp) -> None:
        """As the schedule says, else as the target is best at."""
        by = self.schedule.promotion if self.schedule else "auto"
        partial, sums = self.registers(op.partial), self.registers(op.acc)
        by = self.target.promotion if by == "auto" else by
        self.values[op.result] = self.fragments.promote(op, partial, sums, by)

    def map(self, op: mma.MapOp) -> None:
        """Elementwise"""
        args: list[Registers | SSAValue] = []
        for arg in op.args:
            value = self.values[arg]
            args.append(value if isinstance(value, list) else self.builder.register(value, arg.type))
        self.values[op.result] = self.fragments.map(op, args)

    def reduce(self, op: mma.ReduceOp) -> None:
        """Shuffles"""
        self.values[op.result] = self.fragments.reduce(op, self.registers(op.arg))

    def convert_fragment(self, op: mma.ConvertOp) -> None:
        """`cvt`"""
        self.values[op.result] = self.fragments.convert(op, self.registers(op.arg))

    def coord(self, op: mma.CoordOp) -> None:
        """Lane arithmetic"""
        self.values[op.result] = self.fragments.coordinates(op, self.number(op.base))

    def slice(self, op: mma.SliceOp) -> None:
        """No instruction"""
        self.values[op.result] = self.fragments.slice(op, self.registers(op.arg))

    def join(self, op: mma.JoinOp) -> None:
        """No instruction"""
        self.values[op.result] = self.fragments.join(op, [self.registers(arg) for arg in op.args])

    # ---- index arithmetic --------------------------------------------------------------------------------------------

    def dim(self, op: tile.DimOp) -> None:
        """A parameter, or a number."""
        self.values[op.result] = self.views[op.source].sizes[op.axis.value.data]

    def cta_id(self, op: tile.CtaIdOp) -> None:
        """`%ctaid.x`"""
        self.values[op.result] = self.builder.pure("ctaid_x")

    def constant(self, op: arith.ConstantOp) -> None:
        """A number"""
        value = op.value
        if isinstance(value, FloatAttr) and isinstance(value.type, Float32Type):
            self.values[op.result] = value.value.data
        elif isinstance(value, IntegerAttr):
            self.values[op.result] = bool(value.value.data) if value.type == i1 else value.value.data
        else:
            raise EmmyError(f"lower-to-ptx takes constants of type index, i1 and f32, got {value}", location_of(op))

    def compare(self, op: arith.CmpiOp) -> None:
        """`setp`"""
        test, unsigned = COMPARISONS[op.predicate.value.data]
        x, y = self.number(op.lhs), self.number(op.rhs)
        self.values[op.result] = self.builder.compare(test, x, y, unsigned)

    def select(self, op: arith.SelectOp) -> None:
        """`selp` of two numbers"""
        x, y = self.number(op.lhs), self.number(op.rhs)
        self.values[op.result] = self.builder.select(self.condition(op.cond), x, y)


CONVERSIONS: dict[type[Operation], Callable[[KernelLowering, Operation], None]] = {}
"""How each op is lowered."""


def _register(op: type[OpT], convert: Callable[[KernelLowering, OpT], None]) -> None:
    def typed(lowering: KernelLowering, operation: Operation) -> None:
        assert isinstance(operation, op)
        convert(lowering, operation)

    CONVERSIONS[op] = typed


def _register_binary(op: type[Operation], build: Callable[[Builder, Number, Number], Number]) -> None:
    def convert(lowering: KernelLowering, operation: Operation) -> None:
        x, y = (lowering.number(v) for v in operation.operands)
        lowering.values[operation.results[0]] = build(lowering.builder, x, y)

    CONVERSIONS[op] = convert


for _op, _build in BINARY.items():
    _register_binary(_op, _build)
_register(scf.ForOp, KernelLowering.loop)
_register(scf.IfOp, KernelLowering.branch)
_register(async_copy.PipelineOp, KernelLowering.pipeline)
_register(async_copy.BeginFillOp, KernelLowering.begin)
_register(async_copy.BeginReadOp, KernelLowering.begin)
_register(async_copy.SlotOp, KernelLowering.slot)
_register(async_copy.CpAsyncOp, KernelLowering.cp_async)
_register(async_copy.PlainCopyOp, KernelLowering.plain_copy)
_register(async_copy.PlainStoreOp, KernelLowering.plain_store)
_register(async_copy.CommitGroupOp, KernelLowering.commit_group)
_register(async_copy.WaitGroupOp, KernelLowering.wait_group)
_register(async_copy.BarrierOp, KernelLowering.barrier)
_register(mma.WarpOp, KernelLowering.warp)
_register(mma.LoadOp, KernelLowering.load)
_register(mma.StoreOp, KernelLowering.store)
_register(mma.StoreGlobalOp, KernelLowering.store_global)
_register(mma.FillOp, KernelLowering.fill)
_register(mma.MmaOp, KernelLowering.mma)
_register(mma.PromoteOp, KernelLowering.promote)
_register(mma.MapOp, KernelLowering.map)
_register(mma.ReduceOp, KernelLowering.reduce)
_register(mma.ConvertOp, KernelLowering.convert_fragment)
_register(mma.CoordOp, KernelLowering.coord)
_register(mma.SliceOp, KernelLowering.slice)
_register(mma.JoinOp, KernelLowering.join)
_register(tile.DimOp, KernelLowering.dim)
_register(tile.CtaIdOp, KernelLowering.cta_id)
_register(arith.ConstantOp, KernelLowering.constant)
_register(arith.CmpiOp, KernelLowering.compare)
_register(arith.SelectOp, KernelLowering.select)
