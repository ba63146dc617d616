"""`lower-to-ptx`: level 3 to level 4. A kernel of placed and lowered pipelines becomes the program of one thread.

One walk in order with a map from old values to new ones (`ptx_values`). What each family of ops becomes is in `ptx_events`,
`ptx_tma`, `ptx_fragment_ops`, `ptx_copies`, `ptx_fragments` and `ptx_addresses`; how ops are hoisted, shared and folded in
`ptx_builder`. Here: roles, control flow, and index arithmetic.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import (
    Float32Type,
    FloatAttr,
    IntegerAttr,
    ModuleOp,
    i1,
    i32,
    i64,
)
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from emmy.dialects import async_copy, mma, tile
from emmy.dialects.common import DYNAMIC
from emmy.dialects.ptx import ConstantOp, Instruction, KernelOp
from emmy.errors import EmmyError
from emmy.locations import location_of
from emmy.lowering.ptx_addresses import make_view, parameter_kinds
from emmy.lowering.ptx_arithmetic import BINARY, COMPARISONS, DIVISIONS
from emmy.lowering.ptx_builder import Builder, Number
from emmy.lowering.ptx_copies import Copies
from emmy.lowering.ptx_events import EVENTS, Convert, Role
from emmy.lowering.ptx_fragment_ops import FRAGMENT_OPS, FragmentLowering
from emmy.lowering.ptx_shapes import Registers
from emmy.lowering.ptx_tma import TMA_EVENTS
from emmy.passes.allocate_shared import SHARED_BYTES
from emmy.passes.approximate_exponentials import HALVES, POLYNOMIAL
from emmy.passes.bounds import OUTER_OVERRUNS, may_overrun
from emmy.passes.clusters import cluster_of
from emmy.passes.place_loads import AHEAD
from emmy.passes.protocol import takes_turns
from emmy.passes.spread_copies import BATCHES
from emmy.schedule_limits import entry_registers
from emmy.targets import Target, get_target


@dataclass(frozen=True)
class LowerToPtx(ModulePass):
    """Contract: replaces every `tile.kernel` by a `ptx.kernel` of the same name; the host function stays.

    Accepts kernels with `async_copy.role`s whose pipelines have their places in shared memory (`allocate-shared`), after
    `place-roles`, `lower-transport` and `lower-raster`: all events, fragments (`mma.*`), `scf.for` and `scf.if` with
    conditions that are uniform over the role (over the warp, if no event stands inside), `arith` on index, i1 and f32. What it
    cannot lower is an `EmmyError` at that op.

    Guarantees: parameters are, for each view in order, its address, its `?` sizes, its explicit `?` strides; then the tensor
    maps of its TMA boxes. Copies never touch memory beyond a view's bounds. Bytes are addressed in 64 bits. Lane addresses
    and all else that does not change in a loop are computed before it. `mma` accumulators are updated in the order of the
    text. Roles own consecutive warps in textual order and are told apart by a branch on the warp's number, which is
    provably uniform; what TMA needs stays in uniform registers. Barriers of a role count its warps only.

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


def roles_of(kernel: tile.KernelOp) -> list[async_copy.RoleOp]:
    """The roles of a kernel, in the order in which they own its warps."""
    roles = [op for op in kernel.block.ops if isinstance(op, async_copy.RoleOp)]
    if not roles:
        raise EmmyError(f"kernel @{kernel.sym_name.data} has no role; run place-roles", location_of(kernel))
    return roles


def drop_unused(block: Block) -> None:
    """Remove arithmetic that nothing reads: of some elements only the known part is needed, or a product of their factors."""
    for op in reversed(list(block.ops)):
        for region in op.regions:
            for inner in region.blocks:
                drop_unused(inner)
        pure = isinstance(op, ConstantOp) or (isinstance(op, Instruction) and op.row.pure)
        if pure and not any(result.first_use for result in op.results):
            op.detach()
            op.erase()


def holds_only(op: scf.IfOp, kind: type[Operation]) -> bool:
    """Are events of a kind all that an if does?

    Then no region is needed: cp.asyncs are predicated, which leaves ptxas one block to schedule, and one lane's events stand
    behind a branch already.
    """
    return not op.false_region.blocks and all(isinstance(i, kind | scf.YieldOp) for i in op.true_region.block.ops)


class KernelLowering(FragmentLowering):
    """Lowers one kernel."""

    def __init__(self, kernel: tile.KernelOp, target: Target):
        self.kernel = kernel
        self.roles = roles_of(kernel)
        self.threads = 32 * sum(role.warps.value.data for role in self.roles)
        self.waits = False
        kinds = [parameter_kinds(i, cast(tile.ViewType, arg.type)) for i, arg in enumerate(kernel.block.args)]
        params = [kind for view in kinds for kind in view]
        block = Block(arg_types=[i32 if kind.startswith("dim") else i64 for kind in params])
        builder = Builder(block)
        builder.location = kernel.location
        super().__init__(builder, block, target, params, kernel.schedule.data if kernel.schedule else None)
        self.turn_threads = 32 * sum(role.active_warps for role in self.roles if takes_turns(role))
        parameters = iter(block.args)
        for number, (arg, kind) in enumerate(zip(kernel.block.args, kinds, strict=True)):
            given = [next(parameters) for _ in kind]
            for name, parameter in zip(kind, given, strict=True):
                parameter.name_hint = f"{arg.name_hint or 'view'}_{name.split()[0]}"
            view = make_view(builder, cast(tile.ViewType, arg.type), given)
            view = replace(view, outer_checked=may_overrun(kernel, number, OUTER_OVERRUNS))
            self.views[arg] = view.with_bounds(builder) if may_overrun(kernel, number) else view
            self.view_numbers[arg] = number

    def lower(self) -> KernelOp:
        """The `ptx.kernel`."""
        for op in self.kernel.block.ops:
            if not isinstance(op, async_copy.RoleOp):
                self.convert(op)
        self.begin_barriers(self.kernel)
        self.wait_for_launches()
        self.dispatch(self.roles, 0)
        drop_unused(self.block)
        shared_bytes = cast(IntegerAttr | None, self.kernel.attributes.get(SHARED_BYTES))
        ctas = cluster_of(self.kernel)
        new = KernelOp(
            self.kernel.sym_name.data,
            threads=self.threads,
            min_ctas=self.min_ctas,
            shared_bytes=0 if shared_bytes is None else shared_bytes.value.data,
            params=self.params,
            body=Region(self.block),
            tensor_maps=list(self.maps),
            cluster=() if ctas == 1 else (ctas, 1, 1),
        )
        new.location = self.kernel.location
        if self.schedule is not None and self.schedule.batches > 1:
            new.attributes[BATCHES] = IntegerAttr(self.schedule.batches, i64)
        if self.schedule is not None:
            halves = int(self.schedule.exponentials == "halves")
            notes = {AHEAD: self.schedule.ahead, POLYNOMIAL: self.schedule.polynomial, HALVES: halves}
            new.attributes |= {name: IntegerAttr(value, i64) for name, value in notes.items() if value}
        return new

    def launch_dependents(self, op: tile.LaunchDependentsOp) -> None:
        """Where the target has it."""
        if self.target.tma:
            self.builder.emit("griddepcontrol_launch_dependents", ())

    def dependency_wait(self, op: tile.DependencyWaitOp) -> None:
        """Later: all that needs no memory comes before."""
        read = next((x for x in self.kernel.block.ops if isinstance(x, tile.ReadOp)), None)
        if read is not None:
            raise EmmyError(
                "a kernel that waits for other launches reads no number outside of its roles", location_of(op)
            )
        self.waits = self.target.tma

    def wait_for_launches(self) -> None:
        """Barriers are there and tensor maps on their way."""
        if self.waits:
            self.builder.emit("griddepcontrol_wait", ())

    @property
    def min_ctas(self) -> int:
        """CTAs that an SM has room for, as the schedule says."""
        return self.schedule.min_ctas if self.schedule else 1

    # ---- roles -------------------------------------------------------------------------------------------------------

    def dispatch(self, roles: Sequence[async_copy.RoleOp], first: int) -> None:
        """Branch to the role that the warp's number says; `roles` own the warps from `first`."""
        role, others = roles[0], roles[1:]
        if not others:
            self.run_role(role, first)
            return
        b, after = self.builder, first + role.warps.value.data
        condition = b.predicate(b.compare("lt", self.cta_warp(), after))
        regions: list[Region] = []
        thread = self.tid, self.lane, self.warp_number
        for part, at in (([role], first), (others, after)):
            self.tid, self.lane, self.warp_number = thread
            block = Block()
            b.enter(block)
            self.dispatch(part, at)
            b.add_op(scf.YieldOp())
            b.leave()
            regions.append(Region(block))
        b.location = role.location
        b.add_op(scf.IfOp(condition, [], regions[0], regions[1]))

    def run_role(self, op: async_copy.RoleOp, first: int) -> None:
        """The body of a role: its warps count from 0, what it computes stays in its branch."""
        b, number = self.builder, self.roles.index(op)
        warps, active = op.warps.value.data, op.active_warps
        self.role = Role(first, warps, active, number + 1 if len(self.roles) > 1 or active < warps else 0)
        b.location, floor = op.location, b.floor
        b.floor = len(b.scopes) - 1
        if len(self.roles) > 1:
            b.comment(f"role {op.role.data}")
            self.change_registers(op)
            self.read_thread()
            self.fragments.lane = self.lane
        with self.branch_on(active == warps or b.compare("lt", self.cta_warp(), first + active)):
            b.floor = len(b.scopes) - 1
            tid = cast(SSAValue, b.sub(self.tid, 32 * first))
            self.copies = Copies(b, self.shared, 32 * active, tid)
            if any(isinstance(inner, async_copy.ElectOp) for inner in op.walk()):
                # Now, so that a predicate lives through the loops and not the number.
                self.in_first_warp = b.compare("eq", self.role_warp(), 0)
            self.convert_block(op.body.block)
        b.floor = floor

    def change_registers(self, op: async_copy.RoleOp) -> None:
        """`setmaxnreg`, where the target has it: from the registers that all warps start with to those of the role."""
        if op.regs is None or not self.target.setmaxnreg:
            return
        entry = entry_registers(self.target, self.threads, self.min_ctas)
        taken = sum(32 * r.warps.value.data * (entry if r.regs is None else r.regs.value.data) for r in self.roles)
        if taken > entry * self.threads:
            raise EmmyError(
                f"the roles want {taken} registers, and {self.threads} threads that start with {entry} each have "
                f"{entry * self.threads}",
                location_of(op),
            )
        wanted = op.regs.value.data
        self.builder.emit("setmaxnreg_inc" if wanted > entry else "setmaxnreg_dec", (), (wanted,))

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

    # ---- control flow ------------------------------------------------------------------------------------------------

    def loop(self, op: scf.ForOp) -> None:
        """A loop that carries registers. The counter takes the multiple that bounds and step have in common."""
        b, old = self.builder, op.body.block
        bounds = [self.number(v) for v in (op.lb, op.ub, op.step)]
        fixed = self.fixed_places(op)
        starts = [
            register for arg, stays in zip(op.iter_args, fixed, strict=True) for register in self.flat(arg, stays)
        ]
        body = Block(arg_types=[i32, *(v.type for v in starts)])
        multiple = min(b.multiple(bounds[0]), b.multiple(bounds[2]))
        b.enter(body)
        b.multiples[body.args[0]] = multiple
        self.values[old.args[0]] = body.args[0]
        self.bind(old.args[1:], op.iter_args, list(body.args[1:]), fixed)
        self.convert_block(old)
        last = cast(scf.YieldOp, old.last_op)
        ends = [r for value, stays in zip(last.operands, fixed, strict=True) for r in self.flat(value, stays)]
        b.add_op(scf.YieldOp(*ends))
        b.leave()
        b.location = op.location
        loop = scf.ForOp(b.register(bounds[0]), b.register(bounds[1]), b.register(bounds[2]), starts, body)
        b.add_op(loop)
        self.bind(op.results, op.iter_args, list(loop.results), fixed)

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
        if holds_only(op, async_copy.CpAsyncOp):
            self.copies.guard = condition
            self.convert_block(op.true_region.block)
            self.copies.guard = True
            return
        if holds_only(op, async_copy.ElectOp):
            self.elect_guard = condition
            self.convert_block(op.true_region.block)
            self.elect_guard = True
            return
        regions: list[Region] = []
        ends: Registers = []
        outer = self.builder.branch
        for old in (op.true_region, op.false_region):
            block = Block()
            if old.blocks:
                self.builder.enter(block)
                self.builder.branch = len(self.builder.scopes) - 1
                with self.alone(op):
                    self.convert_block(old.block)
                last = cast(scf.YieldOp, old.block.last_op)
                ends = [register for value in last.operands for register in self.flat(value)]
                self.builder.add_op(scf.YieldOp(*ends))
                self.builder.leave()
                self.builder.branch = outer
            regions.append(Region(block) if old.blocks else Region())
        self.builder.location = op.location
        new = scf.IfOp(condition, [v.type for v in ends], regions[0], regions[1])
        self.builder.add_op(new)
        if op.results:
            models = cast(scf.YieldOp, op.true_region.block.last_op).operands
            self.bind(op.results, models, list(new.results))

    @contextmanager
    def alone(self, op: scf.IfOp) -> Generator[None]:
        """What a branch computes stays in it if it runs rarely: a promotion between loop iterations, a redo."""
        b, lane = self.builder, self.fragments.lane
        floor, apart = b.floor, b.apart
        if any(isinstance(inner, mma.PromoteOp | mma.LoadGlobalOp) for inner in op.walk()):
            b.floor = b.apart = len(b.scopes) - 1
            self.fragments.lane = cast(SSAValue, b.low_bits(b.pure("tid_x"), 31))
        yield
        b.floor, b.apart, self.fragments.lane = floor, apart, lane

    # ---- index arithmetic --------------------------------------------------------------------------------------------

    def dim(self, op: tile.DimOp) -> None:
        """A parameter, or a number."""
        self.values[op.result] = self.views[op.source].sizes[op.axis.value.data]

    def read(self, op: tile.ReadOp) -> None:
        """`ld.global` by every thread, of one address."""
        view, b = self.views[op.view], self.builder
        box = view.part(b, [self.number(index) for index in op.indices], view.sizes)
        self.values[op.result] = b.emit("ld_global_b32", [box.pointer], (0,)).results[0]

    def slice_view(self, op: tile.SliceOp) -> None:
        """Another address, and sizes in registers."""
        view, sizes = self.views[op.view], iter(op.sizes)
        extents = [self.number(next(sizes)) if s == DYNAMIC else s for s in op.result.type.get_shape()]
        part = view.part(self.builder, [self.number(offset) for offset in op.offsets], extents)
        self.views[op.result] = part.with_bounds(self.builder)

    def cta_id(self, op: tile.CtaIdOp) -> None:
        """`%ctaid.x`"""
        self.values[op.result] = self.builder.pure("ctaid_x")

    def cta_count(self, op: tile.CtaCountOp) -> None:
        """`%nctaid.x`"""
        self.values[op.result] = self.builder.pure("nctaid_x")

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


CONVERSIONS: dict[type[Operation], Convert] = {
    **EVENTS,
    **TMA_EVENTS,
    **FRAGMENT_OPS,
    scf.ForOp: KernelLowering.loop,
    scf.IfOp: KernelLowering.branch,
    tile.DimOp: KernelLowering.dim,
    tile.DependencyWaitOp: KernelLowering.dependency_wait,
    tile.LaunchDependentsOp: KernelLowering.launch_dependents,
    tile.ReadOp: KernelLowering.read,
    tile.SliceOp: KernelLowering.slice_view,
    tile.CtaIdOp: KernelLowering.cta_id,
    tile.CtaCountOp: KernelLowering.cta_count,
    arith.ConstantOp: KernelLowering.constant,
    arith.CmpiOp: KernelLowering.compare,
    arith.SelectOp: KernelLowering.select,
}
"""How each op is lowered."""


def _register_binary(op: type[Operation], build: Callable[[Builder, Number, Number], Number]) -> None:
    def convert(lowering: KernelLowering, operation: Operation) -> None:
        x, y = (lowering.number(v) for v in operation.operands)
        if isinstance(operation, DIVISIONS) and isinstance(y, int) and y < 1:
            raise EmmyError(f"{operation.name} by {y}; divisors are positive", location_of(operation))
        lowering.values[operation.results[0]] = build(lowering.builder, x, y)

    CONVERSIONS[op] = convert


for _op, _build in BINARY.items():
    _register_binary(_op, _build)
