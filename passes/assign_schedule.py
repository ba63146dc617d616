"""`assign-schedule{target=sm_90a}`: write down how each product will be computed, before anything depends on it.

Accepts: level 1. Guarantees: every `tensor_op.matmul` has `emmy.schedule`, and the target can run each of them. A schedule
that stands in the text stays as it is; the others come from the target's table in `emmy.schedule_table`, by the number of waves
of CTAs over its SMs (a `?` dimension counts as large). Options of the pass replace single fields of what the table gives,
and the table's choice is one that is legal with them, and that ptxas keeps in registers.

Where sizes are `?`, rows, columns or the batch, so that no one schedule is best, `emmy.schedules` has those among which each
call chooses by its sizes, each with the time that its CTA takes for a step of the loop over K, in multiply-adds:
`emmy.schedules = [{schedule = #tile.schedule<..>, step_time = 1446206 : index}, ..]`. Products whose schedule stands in the text
have no others, unless these stand there too.

    %y = tensor_op.matmul %a, %b : (tensor<?x3840xf16>, tensor<3840x4096xf16>) -> tensor<?x4096xf16>
becomes
    %y = tensor_op.matmul %a, %b {emmy.schedule = #tile.schedule<block = [128, 256, 64], warps = [2, 4], ..>} : ..
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, cast

from xdsl.context import Context
from xdsl.dialects.builtin import AnyFloat, ArrayAttr, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from emmy.atoms import get_atom
from emmy.chained_schedules import choose_chained_schedule, problem_of_chain
from emmy.dialects.common import DYNAMIC
from emmy.dialects.tensor_op import (
    EIGHT_BITS,
    K_MAJOR_ONLY,
    AccumulateAttr,
    CompositeOp,
    MatmulOp,
    accumulation_policy,
    partial_sum_type,
    tensor_type,
)
from emmy.dialects.tile import ScheduleAttr
from emmy.errors import EmmyError
from emmy.locations import location_of
from emmy.passes.fusion import Group, group_ops, live_ops
from emmy.passes.timed_schedules import SCHEDULE, SCHEDULES, timed_entry, timed_schedules
from emmy.schedule_choice import Product, choose_schedule, competing_schedules
from emmy.schedule_limits import Epilogue, problem_on_target, problem_with_warpgroups
from emmy.schedule_meaning import problem_with_meaning, stated
from emmy.schedules import EIGHT_BIT_SHARE, Schedule
from emmy.targets import Target, get_target

GRIDS = {"block": ("block_m", "block_n", "block_k"), "warps": ("warps_m", "warps_n")}
SCALARS = (
    "atom",
    "stages",
    "transport",
    "roles",
    "producer_warps",
    "producer_regs",
    "consumer_regs",
    "consumers",
    "split_k",
    "share",
    "evict",
    "raster",
    "fragments",
    "epilogue",
    "sites",
    "batches",
    "unroll",
    "promote",
    "promotion",
    "partials",
    "order",
    "masks",
    "exponentials",
    "min_ctas",
)
COUNTS_FROM_ZERO = (
    "delay",
    "prefetch",
    "hold",
    "persistent",
    "splits",
    "opt_level",
    "spills",
    "store_columns",
    "stagger",
    "lazy",
    "overlap",
    "turns",
    "carry",
    "ahead",
    "polynomial",
    "repeat",
    "seldom",
    "late_stages",
    "reuse",
)
"""Fields for which 0 is a choice: their options are unset at -1."""


@dataclass(frozen=True)
class AssignSchedule(ModulePass):
    """See the module's docstring. An option of 0 or "" (of `COUNTS_FROM_ZERO`: -1) leaves the table's choice.

    Raises `EmmyError` at the product whose schedule the target cannot run, or about which a field of it says nothing, and for a
    schedule of what has no product.
    """

    name = "assign-schedule"

    target: str = "sm_90a"
    block_m: int = 0
    block_n: int = 0
    block_k: int = 0
    warps_m: int = 0
    warps_n: int = 0
    atom: str = ""
    stages: int = 0
    transport: str = ""
    roles: str = ""
    producer_warps: int = 0
    producer_regs: int = 0
    consumer_regs: int = 0
    persistent: int = -1
    consumers: str = ""
    splits: int = -1
    split_k: int = 0
    share: str = ""
    evict: str = ""
    spills: int = -1
    raster: int = 0
    fragments: int = 0
    epilogue: str = ""
    sites: str = ""
    delay: int = -1
    batches: int = 0
    prefetch: int = -1
    hold: int = -1
    unroll: int = 0
    promote: int = 0
    promotion: str = ""
    partials: str = ""
    order: str = ""
    masks: str = ""
    opt_level: int = -1
    store_columns: int = -1
    stagger: int = -1
    lazy: int = -1
    overlap: int = -1
    turns: int = -1
    carry: int = -1
    ahead: int = -1
    exponentials: str = ""
    polynomial: int = -1
    repeat: int = -1
    seldom: int = -1
    late_stages: int = -1
    reuse: int = -1
    min_ctas: int = 0

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = get_target(self.target)
        epilogues: dict[Operation, Epilogue] = {}
        for function in op.walk():
            if isinstance(function, FuncOp):
                for block in function.body.blocks:
                    epilogues |= {g.matmul: _epilogue(g, g.matmul) for g in group_ops(live_ops(block)) if g.matmul}
        products = 0
        for matmul in op.walk():
            if isinstance(matmul, CompositeOp):
                self.assign_chain(matmul, target)
            elif isinstance(matmul, MatmulOp):
                self.assign(matmul, epilogues.get(matmul, Epilogue()), target)
            else:
                _refuse_pin(matmul)
                continue
            products += 1
        if not products:
            self.refuse_options(op)

    def assign(self, matmul: MatmulOp, epilogue: Epilogue, target: Target) -> None:
        """Give one product a schedule unless it has one; check it either way."""
        policy = accumulation_policy(matmul)
        unable = _problem_with_operands(matmul, target)
        if unable is not None:
            raise EmmyError(unable, location_of(matmul))
        pinned = matmul.attributes.get(SCHEDULE)
        if pinned is None:
            problem = problem_with_meaning(self.override(Schedule()), 1, policy.policy.data)
            if problem:
                raise EmmyError(f"illegal schedule: {problem}", location_of(matmul))
            product = self.product(matmul, epilogue, policy)
            schedule, others = choose_schedule(target, product), competing_schedules(target, product)
        elif isinstance(pinned, ScheduleAttr):
            schedule, others = pinned.data, timed_schedules(matmul)
        else:
            raise EmmyError(f"{SCHEDULE} is a #tile.schedule<..>, got {pinned}", location_of(matmul))
        for one in (schedule, *(other.schedule for other in others)):
            problem = (
                one.problem()
                or problem_with_meaning(one, 1, policy.policy.data)
                or problem_on_target(
                    one,
                    target,
                    epilogue,
                    policy.policy.data == "f16",
                    _bytes(matmul.a),
                    _partial_bits(policy, matmul),
                )
                or _problem_with_atom(one, matmul, policy, target)
            )
            if problem:
                raise EmmyError(f"illegal schedule: {problem}", location_of(matmul))
        matmul.attributes[SCHEDULE] = ScheduleAttr.get(schedule)
        if others:
            matmul.attributes[SCHEDULES] = ArrayAttr([timed_entry(one) for one in others])

    def product(self, matmul: MatmulOp, epilogue: Epilogue, policy: AccumulateAttr) -> Product:
        """What the table's choice depends on."""
        *batch, m, n = tensor_type(matmul.result).get_shape()
        # Where overflowed tiles are redone, the text already holds every product a second time.
        redo = {"unroll": 1} if policy.overflow.data == "redo" else {}
        return Product(
            _static((m,)),
            _static((n,)),
            _static(batch),
            epilogue,
            self.promote or policy.max_k.data,
            asked=lambda schedule: self.override(replace(schedule, **redo)),
            wide=all(_wide(operand) for operand in (matmul.a, matmul.b)),
            f16_sums=policy.policy.data == "f16",
            k=_static((tensor_type(matmul.a).get_shape()[-2 if matmul.transpose_a is not None else -1],)),
            eight_bits=_bytes(matmul.a) == 1,
            partial_bits=_partial_bits(policy, matmul),
        )

    def assign_chain(self, op: CompositeOp, target: Target) -> None:
        """The same for the products of a composite."""
        chain, pinned = op.chain(), op.attributes.get(SCHEDULE)
        policy = "hybrid" if chain.max_k else "f32"
        if pinned is None:
            problem = problem_with_meaning(self.override(Schedule()), 2, policy, chain.ranged)
            if problem:
                raise EmmyError(f"illegal schedule: {problem}", location_of(op))
            schedule = choose_chained_schedule(target, chain, self.override)
        elif isinstance(pinned, ScheduleAttr):
            schedule = pinned.data
        else:
            raise EmmyError(f"{SCHEDULE} is a #tile.schedule<..>, got {pinned}", location_of(op))
        problem = (
            schedule.problem()
            or problem_with_meaning(schedule, 2, policy, chain.ranged)
            or problem_of_chain(schedule, target, chain)
        )
        if problem:
            raise EmmyError(f"illegal schedule: {problem}", location_of(op))
        op.attributes[SCHEDULE] = ScheduleAttr.get(schedule)

    def refuse_options(self, module: ModuleOp) -> None:
        """`EmmyError` if options set fields in a module that has no product."""
        name, value = next(stated(self.override(Schedule())), (None, None))
        functions = [op for op in module.body.block.ops if isinstance(op, FuncOp)]
        if name is not None and functions:
            raise EmmyError(
                f"illegal schedule: {name} = {value} is for products, and this module has none; kernels without one have a fixed "
                "schedule",
                location_of(functions[0]),
            )

    def override(self, schedule: Schedule) -> Schedule:
        """The schedule with the fields that this pass's options set."""
        changes: dict[str, Any] = {name: getattr(self, name) for name in SCALARS if getattr(self, name)}
        for name, options in GRIDS.items():
            values = zip(options, getattr(schedule, name), strict=True)
            changes[name] = tuple(getattr(self, option) or value for option, value in values)
        changes |= {name: getattr(self, name) for name in COUNTS_FROM_ZERO if getattr(self, name) >= 0}
        return replace(schedule, **changes)


def _refuse_pin(op: Operation) -> None:
    """`EmmyError` for a schedule of an op that is no product."""
    pinned = next((name for name in (SCHEDULE, SCHEDULES) if name in op.attributes), None)
    if pinned is not None:
        raise EmmyError(
            f"{pinned} is for products, and '{op.name}' is none: it is computed with the product before it, or by a fixed "
            "schedule",
            location_of(op),
        )


def _problem_with_operands(matmul: MatmulOp, target: Target) -> str | None:
    """A sentence about why no kernel of the target multiplies these operands, or None."""
    elements = [tensor_type(operand).element_type for operand in (matmul.a, matmul.b)]
    if not isinstance(elements[0], EIGHT_BITS):
        return None
    if matmul.transpose_a is not None or matmul.transpose_b is None:
        return K_MAJOR_ONLY
    try:
        get_atom(EIGHT_BIT_SHARE, str(elements[0]), "f32", target.name, b_dtype=str(elements[1]))
    except EmmyError as error:
        return error.message
    return None


def _problem_with_atom(schedule: Schedule, matmul: MatmulOp, policy: AccumulateAttr, target: Target) -> str | None:
    """The target has the atom for these types; promotion happens at least as often as the policy wants."""
    a, b = (tensor_type(operand).element_type for operand in (matmul.a, matmul.b))
    try:
        bits = _partial_bits(policy, matmul)
        accumulator = f"f{bits}" if bits else policy.policy.data
        atom = schedule.fragment_atom_of(8 * _bytes(matmul.a))
        get_atom(atom, str(a), accumulator, target.name, b_dtype=str(b))
    except EmmyError as error:
        return error.message
    hybrid = policy.policy.data == "hybrid" and not isinstance(a, EIGHT_BITS)
    problem = problem_with_warpgroups(schedule, target, hybrid)
    if problem is not None:
        return problem
    if schedule.split_k > 1 and policy.policy.data != "f32":
        return f"split_k = {schedule.split_k} adds up f32 sums, and this product accumulates in {policy.policy.data}"
    if schedule.promote > policy.max_k.data:
        return f"promote = {schedule.promote} is more than the policy's max_k = {policy.max_k.data}"
    return None


def _partial_bits(policy: AccumulateAttr, matmul: MatmulOp) -> int:
    """Of the partial sums of the hybrid policy, 0 under another one."""
    operand = tensor_type(matmul.a).element_type
    return partial_sum_type(policy, operand).bitwidth if policy.policy.data == "hybrid" else 0


def _static(sizes: Sequence[int]) -> int | None:
    """The product of sizes, or None if one is known at run time only."""
    return None if DYNAMIC in sizes else prod(sizes)


def _epilogue(group: Group, matmul: MatmulOp) -> Epilogue:
    """What the kernel of a group keeps in shared memory beside the operand ring."""
    read = [v for v in dict.fromkeys(v for op in group.elementwise for v in op.operands) if v in group.inputs()]
    results = [_bytes(value) for value in group.outputs()]
    return Epilogue(
        max(results),
        tuple((*_spans(tensor_type(v).get_shape(), group.shape), _bytes(v)) for v in read),
        sum(results) - max(results),
        matmul.transpose_b is None,
    )


def _spans(shape: Sequence[int], grid: Sequence[int]) -> tuple[bool, bool]:
    """Whether the tile of a tensor that broadcasts to `grid` has its rows and its columns."""
    padded = [1] * (len(grid) - len(shape)) + list(shape)
    return padded[-2] == grid[-2], padded[-1] == grid[-1]


def _wide(operand: SSAValue) -> bool:
    """Whether rows of an operand are whole units of 16 bytes; `?` ones are, where this schedule's kernel is launched."""
    columns = tensor_type(operand).get_shape()[-1]
    return columns == DYNAMIC or columns * _bytes(operand) % 16 == 0


def _bytes(value: SSAValue) -> int:
    """Of an element."""
    return cast(AnyFloat, tensor_type(value).element_type).bitwidth // 8
