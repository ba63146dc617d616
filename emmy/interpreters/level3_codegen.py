"""Level 3 as Python: one generator function for each role (or half) of a kernel, run once for each logical warp.

The generated source is straight Python over NumPy arrays. `M` is the machine, `W` the warp, `V` the views, `CTA` the
CTA's number. A blocking op is `while (why := M.cannot_..(W, ..)): yield why`; a bare `yield` before
other ops lets another warp run. Here: control flow, and programs; `level3_ring_rules` and `level3_fragment_rules` have the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

from xdsl.dialects import scf
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Operation

from emmy.dialects import async_copy as ac
from emmy.dialects import mma, tile
from emmy.dialects.common import DYNAMIC
from emmy.interpreters.level3_fragment_rules import FRAGMENT_RULES
from emmy.interpreters.level3_machine import Level3Error
from emmy.interpreters.level3_ring_rules import RING_RULES
from emmy.interpreters.level3_values import HELPERS
from emmy.interpreters.level3_writer import Rules, Writer, rule_of
from emmy.locations import location_of
from emmy.passes.protocol import EVENT_OPS, pipelines_of, ring_of, takes_turns

Body = Callable[..., Generator[str | None, None, None]]

Part = ac.ProducerOp | ac.ConsumerOp | ac.RoleOp


@dataclass(frozen=True)
class RoleProgram:
    """`body(M, W, V, CTA)` is the generator of one warp; `fills`, `reads`: the rings that the role fills and reads.

    turns: whether it takes turns with another role. shares: how many logical warps run it. A role of one warp runs as two halves
    of it, each of which copies its share, so that a missing barrier shows; but not a role that says that one warp of several is
    active, because that warp works alone.
    """

    name: str
    warps: int
    shares: int
    body: Body
    fills: frozenset[str]
    reads: frozenset[str]
    turns: bool = False


@dataclass(frozen=True)
class Program:
    """A kernel ready to run. `ops[n]` is the op that a warp with `line == n` is executing. `lowered`: events, not tickets."""

    kernel: tile.KernelOp
    roles: tuple[RoleProgram, ...]
    ops: tuple[Operation, ...]
    sources: tuple[str, ...]
    lowered: bool


RULES: Rules = {}


@rule_of(RULES, scf.ForOp)
def _for(w: Writer, op: scf.ForOp) -> None:
    last = op.body.block.last_op
    yields = list(last.operands) if isinstance(last, scf.YieldOp) else []
    iv, *carried = op.body.block.args
    if carried:
        w.put(f"{w.names_of(carried)} = {w.names_of(op.iter_args)}")
    w.put(f"for {w.name(iv)} in range({w.name(op.lb)}, {w.name(op.ub)}, {w.name(op.step)}):")
    w.depth += 1
    w.block(op.body.block)
    w.put(f"{w.names_of(carried)} = {w.names_of(yields)}" if carried else "pass")
    w.depth -= 1
    if carried:
        w.put(f"{w.names_of(op.results)} = {w.names_of(carried)}")


@rule_of(RULES, scf.IfOp)
def _if(w: Writer, op: scf.IfOp) -> None:
    for head, region in ((f"if {w.name(op.cond)}:", op.true_region), ("else:", op.false_region)):
        if not region.blocks:
            continue
        w.put(head)
        w.depth += 1
        w.block(region.block)
        last = region.block.last_op
        yields = list(last.operands) if isinstance(last, scf.YieldOp) else []
        w.put(f"{w.names_of(op.results)} = {w.names_of(yields)}" if op.results else "pass")
        w.depth -= 1


@rule_of(RULES, tile.DimOp)
def _dim(w: Writer, op: tile.DimOp) -> None:
    w.put(f"{w.name(op.result)} = {w.name(op.source)}.shape[{op.axis.value.data}]")


def _dependency(w: Writer, op: Operation) -> None:
    """Nothing: launches run one after the other here."""


RULES[tile.DependencyWaitOp] = RULES[tile.LaunchDependentsOp] = _dependency


@rule_of(RULES, tile.ReadOp)
def _read(w: Writer, op: tile.ReadOp) -> None:
    w.put(f"{w.name(op.result)} = int({w.name(op.view)}[{w.indices(op.indices)}])")


@rule_of(RULES, tile.SliceOp)
def _slice_view(w: Writer, op: tile.SliceOp) -> None:
    sizes = iter(op.sizes)
    extents = [w.name(next(sizes)) if s == DYNAMIC else str(s) for s in op.result.type.get_shape()]
    parts = [f"{w.name(at)}:{w.name(at)} + {extent}" for at, extent in zip(op.offsets, extents, strict=True)]
    w.put(f"{w.name(op.result)} = {w.name(op.view)}[{', '.join(parts)}]")


@rule_of(RULES, tile.CtaIdOp)
def _cta(w: Writer, op: tile.CtaIdOp) -> None:
    w.put(f"{w.name(op.result)} = CTA")


@rule_of(RULES, tile.CtaCountOp)
def _cta_count(w: Writer, op: tile.CtaCountOp) -> None:
    w.put(f"{w.name(op.result)} = M.ctas")


@rule_of(RULES, tile.GridOp)
def _grid(w: Writer, op: tile.GridOp) -> None:
    number = "CTA" if op.number is None else w.name(op.number)
    grid = f"grid_offsets({number}, {w.indices(op.extents)}, {op.get_blocks()}, {op.raster.value.data})"
    w.put(f"{w.names_of(op.offsets)} = {grid}")


@rule_of(RULES, mma.WarpOp)
def _warp(w: Writer, op: mma.WarpOp) -> None:
    w.put(f"{w.name(op.result)} = W.index // {op.stride} % {op.get_grid()[op.axis.value.data]}")


def compile_kernel(kernel: tile.KernelOp) -> Program:
    """The program of a kernel in any of its level-3 forms. Raises Level3Error for a kernel that is not at level 3, or lacks a
    pipeline that an op names."""
    ops: list[Operation] = []
    parts = [op for op in kernel.block.ops if isinstance(op, ac.ProducerOp | ac.ConsumerOp | ac.RoleOp)]
    if not parts:
        raise Level3Error(
            f"kernel @{kernel.sym_name.data} has no roles or halves: it is not at level 3", location_of(kernel)
        )
    pipelines = pipelines_of(kernel)
    for op in kernel.walk():
        ring = ring_of(op)
        if ring is not None and ring not in pipelines:
            raise Level3Error(f"the kernel has no pipeline @{ring}", location_of(op))
    roles = [_compile_role(kernel, part, name, ops) for part, name in zip(parts, _names(parts), strict=True)]
    lowered = any(isinstance(op, EVENT_OPS) for op in kernel.walk())
    return Program(kernel, tuple(r for r, _ in roles), tuple(ops), tuple(s for _, s in roles), lowered)


def _compile_role(kernel: tile.KernelOp, part: Part, name: str, ops: list[Operation]) -> tuple[RoleProgram, str]:
    w = Writer(kernel, ops, {**RULES, **RING_RULES, **FRAGMENT_RULES})
    skipped = (ac.PipelineOp, ac.ProducerOp, ac.ConsumerOp, ac.RoleOp)
    for op in kernel.block.ops:
        if not isinstance(op, skipped):
            w.op(op)
    w.block(part.body.block)
    w.put("yield None")
    source = "def body(M, W, V, CTA):\n" + "\n".join(w.lines) + "\n"
    scope: dict[str, Any] = {**HELPERS, **w.constants}
    exec(compile(source, f"<{part.name} of @{kernel.sym_name.data}>", "exec"), scope)
    fills, reads = set[str](), set[str]()
    for op in part.walk():
        if isinstance(op, ac.AcquireOp):
            fills.add(op.pipeline.root_reference.data)
        elif isinstance(op, ac.WaitOp) or (isinstance(op, ac.SlotOp) and _side(op) == "read"):
            reads.add(op.pipeline.root_reference.data)
    warps = _warps(kernel, part)
    alone = isinstance(part, ac.RoleOp) and part.active is not None and warps == 1
    shares = 1 if alone else max(2, warps)
    role = RoleProgram(name, warps, shares, scope["body"], frozenset(fills), frozenset(reads), takes_turns(part))
    return role, source


def _side(op: ac.SlotOp) -> str:
    return cast(ac.CursorType, op.cursor.type).side.data


def _names(parts: Sequence[Part]) -> list[str]:
    """The names of roles and halves, with a number from the second of a name on: by name warps find who they meet."""
    names = [part.role.data if isinstance(part, ac.RoleOp) else part.name.removeprefix("async_copy.") for part in parts]
    earlier = [names[:at].count(name) for at, name in enumerate(names)]
    return [f"{name}_{count}" if count else name for name, count in zip(names, earlier, strict=True)]


def _warps(kernel: tile.KernelOp, part: Part) -> int:
    """Real warps of a role; a producer half has two, each copying its share."""
    if isinstance(part, ac.RoleOp):
        return part.active_warps
    if isinstance(part, ac.ProducerOp):
        return 2
    given = part.attributes.get("warps")
    if kernel.schedule:
        return prod(kernel.schedule.data.warps)
    if isinstance(given, IntegerAttr):
        return given.value.data
    return max((prod(op.get_grid()) for op in part.walk() if isinstance(op, mma.WarpOp)), default=1)
