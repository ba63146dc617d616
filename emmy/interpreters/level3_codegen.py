"""Level 3 as Python: one generator function for each role (or half) of a kernel, run once for each logical warp.

The generated source is straight Python over NumPy arrays. `M` is the machine, `W` the warp, `V` the views, `CTA` the
CTA's number. A blocking op is `while (why := M.cannot_..(W, ..)): yield why`; a bare `yield` before
other ops lets another warp run.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import scf
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Block, Operation, SSAValue

from emmy.dialects import async_copy as ac
from emmy.dialects import mma, tile
from emmy.dialects.common import DYNAMIC
from emmy.elementwise import ELEMENTWISE
from emmy.interpreters.contraction import K_STEP, reduce_axis, to_f32
from emmy.interpreters.host import grid_offsets
from emmy.interpreters.level3_machine import Level3Error
from emmy.interpreters.level3_memory import read_box, write_box
from emmy.interpreters.scalars import numpy_dtype, scalar_expression
from emmy.locations import location_of
from emmy.passes.protocol import EVENT_OPS

Array = NDArray[Any]
Body = Callable[..., Generator[str | None, None, None]]
HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


@dataclass(frozen=True)
class RoleProgram:
    """`body(M, W, V, CTA)` is the generator of one warp; `fills`, `reads`: the rings that the role fills and reads.

    shares: how many logical warps run it. A role of one warp runs as two halves of it, each of which copies its share, so that a
    missing barrier shows; but not a role that says that one warp of several is active, because that warp works alone.
    """

    name: str
    warps: int
    shares: int
    body: Body
    fills: frozenset[str]
    reads: frozenset[str]


@dataclass(frozen=True)
class Program:
    """A kernel ready to run. `ops[n]` is the op that a warp with `line == n` is executing. `lowered`: events, not tickets."""

    kernel: tile.KernelOp
    roles: tuple[RoleProgram, ...]
    ops: tuple[Operation, ...]
    sources: tuple[str, ...]
    lowered: bool


# ---- what the mathematics means --------------------------------------------------------------------------------------


def mma_value(a: Array, b: Array, c: Array) -> Array:
    """`c + a @ b.T` in steps of 16 along K; products and the sum of a step in f32."""
    left, right = to_f32(a), to_f32(b)
    with np.errstate(all="ignore"):
        for k in range(0, a.shape[1], K_STEP):
            c = (c.astype(np.float32) + left[:, k : k + K_STEP] @ right[:, k : k + K_STEP].T).astype(c.dtype)
    return c


@dataclass(frozen=True)
class InFlight:
    """A product that was issued: its operands are read when it is waited for, those in place from shared memory."""

    a: Array | Callable[[], Array]
    b: Callable[[], Array]
    c: Array | InFlight


def wait_value(sums: InFlight) -> Array:
    """The sums, with operands as shared memory holds them now: what was overwritten too early is wrong, or poison."""
    chain = [sums]
    while isinstance(chain[-1].c, InFlight):
        chain.append(chain[-1].c)
    total = chain[-1].c
    for product in reversed(chain):
        total = mma_value(product.a() if callable(product.a) else product.a, product.b(), total)
    return total


def promote_value(partial: Array, acc: Array) -> Array:
    """f32 sums and partial sums."""
    with np.errstate(all="ignore"):
        return acc + to_f32(partial)


def _widen(value: Any) -> Any:
    return to_f32(value) if getattr(value, "dtype", None) in HALVES else value


def map_value(kind: str, dtype: np.dtype[Any], shape: tuple[int, int], *args: Any) -> Array:
    """An elementwise function in f32 (integers and masks stay as they are), rounded to the result's type."""
    wide = [_widen(x) for x in args]
    with np.errstate(all="ignore"):
        result = ELEMENTWISE[kind].function(*wide)
        return np.broadcast_to(np.asarray(result).astype(dtype), shape)


def cast_value(x: Array, dtype: np.dtype[Any]) -> Array:
    """Rounded to nearest even; overflow gives an infinity."""
    with np.errstate(all="ignore"):
        return x.astype(dtype)


def coord_value(axis: int, base: int, shape: tuple[int, int]) -> Array:
    """`base` plus the coordinate along an axis."""
    line = np.arange(shape[axis], dtype=np.int32) + np.int32(base)
    return np.broadcast_to(line.reshape((-1, 1) if axis == 0 else (1, -1)), shape)


# ---- code generation -------------------------------------------------------------------------------------------------


class _Writer:
    """Writes the source of one role; `constants` are the names that it uses besides its parameters."""

    def __init__(self, kernel: tile.KernelOp, ops: list[Operation]):
        self.lines: list[str] = []
        self.depth = 1
        self.names: dict[SSAValue, str] = {}
        self.constants: dict[str, Any] = {}
        self.ops = ops
        for position, view in enumerate(kernel.block.args):
            self.names[view] = f"V[{position}]"

    def put(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def name(self, value: SSAValue) -> str:
        if value not in self.names:
            self.names[value] = f"v{len(self.names)}"
        return self.names[value]

    def names_of(self, values: Sequence[SSAValue]) -> str:
        """`a, b, ` for use in a tuple or a call."""
        return "".join(f"{self.name(v)}, " for v in values)

    def indices(self, values: Sequence[SSAValue]) -> str:
        return f"({self.names_of(values)})"

    def constant(self, value: Any) -> str:
        name = f"K{len(self.constants)}"
        self.constants[name] = value
        return name

    def block(self, block: Block) -> None:
        for op in block.ops:
            if not isinstance(op, scf.YieldOp):
                self.op(op)

    def op(self, op: Operation) -> None:
        rule = RULES.get(type(op))
        if rule is not None:
            rule(self, op)
            return
        expression = scalar_expression(op, [self.name(v) for v in op.operands])
        if expression is None:
            raise Level3Error(f"the level-3 interpreter has no rule for {op.name}", location_of(op))
        self.put(f"{self.name(op.results[0])} = {expression}")

    def mark(self, op: Operation, preempt: bool = True) -> None:
        """Say which op runs, and let others run before it."""
        if preempt:
            self.put("yield None")
        self.put(f"W.line = {len(self.ops)}")
        self.ops.append(op)

    def blocking(self, op: Operation, condition: str, doing: str) -> None:
        self.mark(op)
        self.put(f"while (why := M.{condition}): yield why")
        self.put(doing)


Rule = Callable[[_Writer, Any], None]
RULES: dict[type[Operation], Rule] = {}


def _rule(kind: type[Operation]) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES[kind] = rule
        return rule

    return register


@_rule(scf.ForOp)
def _for(w: _Writer, op: scf.ForOp) -> None:
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


@_rule(scf.IfOp)
def _if(w: _Writer, op: scf.IfOp) -> None:
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


@_rule(tile.DimOp)
def _dim(w: _Writer, op: tile.DimOp) -> None:
    w.put(f"{w.name(op.result)} = {w.name(op.source)}.shape[{op.axis.value.data}]")


@_rule(tile.ReadOp)
def _read(w: _Writer, op: tile.ReadOp) -> None:
    w.put(f"{w.name(op.result)} = int({w.name(op.view)}[{w.indices(op.indices)}])")


@_rule(tile.SliceOp)
def _slice_view(w: _Writer, op: tile.SliceOp) -> None:
    sizes = iter(op.sizes)
    extents = [w.name(next(sizes)) if s == DYNAMIC else str(s) for s in op.result.type.get_shape()]
    parts = [f"{w.name(at)}:{w.name(at)} + {extent}" for at, extent in zip(op.offsets, extents, strict=True)]
    w.put(f"{w.name(op.result)} = {w.name(op.view)}[{', '.join(parts)}]")


@_rule(tile.CtaIdOp)
def _cta(w: _Writer, op: tile.CtaIdOp) -> None:
    w.put(f"{w.name(op.result)} = CTA")


@_rule(tile.CtaCountOp)
def _cta_count(w: _Writer, op: tile.CtaCountOp) -> None:
    w.put(f"{w.name(op.result)} = M.ctas")


@_rule(tile.GridOp)
def _grid(w: _Writer, op: tile.GridOp) -> None:
    number = "CTA" if op.number is None else w.name(op.number)
    grid = f"grid_offsets({number}, {w.indices(op.extents)}, {op.get_blocks()}, {op.raster.value.data})"
    w.put(f"{w.names_of(op.offsets)} = {grid}")


@_rule(mma.WarpOp)
def _warp(w: _Writer, op: mma.WarpOp) -> None:
    w.put(f"{w.name(op.result)} = W.index // {op.stride} % {op.get_grid()[op.axis.value.data]}")


def _begin(w: _Writer, op: ac.BeginFillOp | ac.BeginReadOp) -> None:
    w.put(f"{w.name(op.cursor)} = 0")


RULES[ac.BeginFillOp] = RULES[ac.BeginReadOp] = _begin


def _ring(op: Any) -> str:
    return repr(op.pipeline.root_reference.data)


@_rule(ac.AcquireOp)
def _acquire(w: _Writer, op: ac.AcquireOp) -> None:
    cursor, taken = w.name(op.cursor), w.name(op.predicate) if op.predicate else "True"
    w.mark(op)
    w.put(f"while {taken} and (why := M.cannot_acquire(W, {_ring(op)}, {cursor})): yield why")
    w.put(f"{w.name(op.slot)}, {w.name(op.next)} = M.acquire(W, {_ring(op)}, {cursor}, {taken})")


@_rule(ac.WaitOp)
def _wait(w: _Writer, op: ac.WaitOp) -> None:
    at = f"W, {_ring(op)}, {w.name(op.cursor)}"
    w.blocking(op, f"cannot_wait({at})", f"{w.name(op.slot)}, {w.name(op.next)} = M.wait({at})")


@_rule(ac.SlotOp)
def _slot(w: _Writer, op: ac.SlotOp) -> None:
    w.mark(op, preempt=False)
    side = cast(ac.CursorType, op.cursor.type).side.data
    taken = w.name(op.predicate) if op.predicate else "True"
    w.put(f"{w.name(op.slot)}, {w.name(op.next)} = M.slot(W, {_ring(op)}, {side!r}, {w.name(op.cursor)}, {taken})")


def _copy(method: str) -> Rule:
    def rule(w: _Writer, op: ac.CopyOp | ac.CpAsyncOp | ac.PlainCopyOp | ac.TmaLoadOp) -> None:
        w.mark(op)
        where = f"{w.name(op.view)}, {w.indices(op.indices)}, {w.name(op.slot)}, {op.field.data!r}"
        w.put(f"M.{method}(W, {where})")

    return rule


RULES[ac.CopyOp] = _copy("copy")
RULES[ac.CpAsyncOp] = _copy("cp_async")
RULES[ac.PlainCopyOp] = _copy("plain_copy")
RULES[ac.TmaLoadOp] = _copy("tma_load")


@_rule(ac.CommitOp)
def _commit(w: _Writer, op: ac.CommitOp) -> None:
    w.mark(op)
    w.put(f"M.commit(W, {w.name(op.slot)}, {w.name(op.predicate) if op.predicate else 'True'})")


@_rule(ac.ReleaseOp)
def _release(w: _Writer, op: ac.ReleaseOp) -> None:
    w.mark(op)
    w.put(f"M.release(W, {w.name(op.slot)})")


@_rule(ac.DrainOp)
def _drain(w: _Writer, op: ac.DrainOp) -> None:
    w.blocking(op, f"cannot_drain(W, {_ring(op)})", f"M.drain(W, {_ring(op)})")


@_rule(ac.StoreOp)
def _store(w: _Writer, op: ac.StoreOp) -> None:
    slot = w.name(op.slot)
    w.mark(op)
    w.put(f"key = M.arrive_store(W, {slot})")
    w.put(f"while (why := M.cannot_store(W, {slot}, key)): yield why")
    w.put(f"M.store(W, {slot}, {op.field.data!r}, {w.name(op.view)}, {w.indices(op.indices)})")


def _event_store(method: str) -> Rule:
    def rule(w: _Writer, op: ac.PlainStoreOp | ac.TmaStoreOp) -> None:
        w.mark(op)
        where = f"{w.name(op.slot)}, {op.field.data!r}, {w.name(op.view)}, {w.indices(op.indices)}"
        w.put(f"M.{method}(W, {where})")

    return rule


RULES[ac.PlainStoreOp] = _event_store("store")
RULES[ac.TmaStoreOp] = _event_store("tma_store")


@_rule(ac.CommitGroupOp)
def _commit_group(w: _Writer, op: ac.CommitGroupOp) -> None:
    w.mark(op)
    w.put("M.commit_group(W)")


@_rule(ac.WaitGroupOp)
def _wait_group(w: _Writer, op: ac.WaitGroupOp) -> None:
    w.mark(op)
    w.put(f"M.wait_group(W, {op.pending.value.data})")


def _meeting(kind: str) -> Rule:
    def rule(w: _Writer, op: Operation) -> None:
        w.mark(op)
        w.put(f"M.arrive(W, {kind!r})")
        w.put(f"while (why := M.cannot_pass(W, {kind!r})): yield why")

    return rule


RULES[ac.BarrierOp] = _meeting("barrier")
RULES[ac.WarpSyncOp] = _meeting("warp_sync")


def _simple(method: str) -> Rule:
    """An event without operands."""

    def rule(w: _Writer, op: Operation) -> None:
        w.mark(op)
        w.put(f"M.{method}(W)")

    return rule


RULES[ac.ClusterArriveOp] = _simple("cluster_arrive")
RULES[ac.FenceProxyAsyncOp] = _simple("fence_proxy_async")
RULES[ac.BulkCommitOp] = _simple("bulk_commit")


@_rule(ac.ClusterWaitOp)
def _cluster_wait(w: _Writer, op: ac.ClusterWaitOp) -> None:
    w.mark(op)
    w.put("while (why := M.cannot_pass_cluster(W)): yield why")


@_rule(ac.BulkWaitOp)
def _bulk_wait(w: _Writer, op: ac.BulkWaitOp) -> None:
    w.mark(op)
    w.put(f"M.bulk_wait(W, {op.pending.value.data})")


@_rule(ac.WaitFullOp)
def _wait_full(w: _Writer, op: ac.WaitFullOp) -> None:
    w.mark(op)
    w.put(f"while (why := M.cannot_wait_for(W, 'full', {_ring(op)}, {w.name(op.cursor)})): yield why")


@_rule(ac.WaitEmptyOp)
def _wait_empty(w: _Writer, op: ac.WaitEmptyOp) -> None:
    w.mark(op)
    taken = w.name(op.predicate) if op.predicate else "True"
    w.put(f"while {taken} and (why := M.cannot_wait_for(W, 'empty', {_ring(op)}, {w.name(op.cursor)})): yield why")


def _arrival(method: str) -> Rule:
    def rule(w: _Writer, op: ac.ArriveFullOp | ac.ArriveFullNoincOp | ac.ArriveEmptyOp) -> None:
        w.mark(op)
        w.put(f"M.{method}(W, {w.name(op.slot)})")

    return rule


RULES[ac.ArriveFullOp] = _arrival("arrive_full")
RULES[ac.ArriveFullNoincOp] = _arrival("arrive_full_noinc")
RULES[ac.ArriveEmptyOp] = _arrival("arrive_empty")


@_rule(ac.ElectOp)
def _elect(w: _Writer, op: ac.ElectOp) -> None:
    w.put("if W.share == 0:")
    w.depth += 1
    w.block(op.body.block)
    w.put("pass")
    w.depth -= 1


@_rule(ac.ExpectTxOp)
def _expect_tx(w: _Writer, op: ac.ExpectTxOp) -> None:
    w.mark(op)
    w.put(f"M.expect_tx(W, {w.name(op.slot)}, {op.bytes.value.data})")


# ---- fragments -------------------------------------------------------------------------------------------------------


def _type(value: SSAValue) -> mma.FragmentType:
    return cast(mma.FragmentType, value.type)


def _shape(value: SSAValue) -> tuple[int, int]:
    rows, columns = _type(value).get_shape()
    return rows, columns


def _dtype(w: _Writer, value: SSAValue) -> str:
    return w.constant(numpy_dtype(_type(value).element_type))


@_rule(mma.LoadOp)
def _load(w: _Writer, op: mma.LoadOp) -> None:
    w.mark(op)
    shape = _shape(op.result)
    stored = shape[::-1] if op.transposed is not None else shape
    transposed = ".T" if op.transposed is not None else ""
    where = f"{w.name(op.slot)}, {op.field.data!r}, {w.indices(op.indices)}, {stored}"
    if op.in_place is None:
        rank = "" if op.rank is None else f", rank={op.rank.value.data}"
        w.put(f"{w.name(op.result)} = M.load(W, {where}{rank}){transposed}")
    else:
        slot, indices = w.name(op.slot), w.indices(op.indices)
        where = f"slot, {op.field.data!r}, indices, {stored}"
        w.put(f"{w.name(op.result)} = lambda slot={slot}, indices={indices}: M.load(W, {where}, True){transposed}")


@_rule(mma.StoreOp)
def _fragment_store(w: _Writer, op: mma.StoreOp) -> None:
    w.mark(op)
    w.put(f"M.fragment_store(W, {w.name(op.value)}, {w.name(op.slot)}, {op.field.data!r}, {w.indices(op.indices)})")


@_rule(mma.StoreGlobalOp)
def _store_global(w: _Writer, op: mma.StoreGlobalOp) -> None:
    w.mark(op)
    value = f"{w.name(op.value)}.reshape(-1)" if 1 in _shape(op.value) else w.name(op.value)
    w.put(f"write_box({w.name(op.view)}, {w.indices(op.indices)}, {value})")


@_rule(mma.LoadGlobalOp)
def _load_global(w: _Writer, op: mma.LoadGlobalOp) -> None:
    w.mark(op)
    shape, transposed = _shape(op.result), op.transposed is not None
    box = f"read_box({w.name(op.view)}, {w.indices(op.indices)}, {shape[::-1] if transposed else shape})"
    w.put(f"{w.name(op.result)} = {box}{'.T' if transposed else ''}")


@_rule(mma.FillOp)
def _fill(w: _Writer, op: mma.FillOp) -> None:
    value = w.constant(np.full(_shape(op.result), op.value.value.data, numpy_dtype(_type(op.result).element_type)))
    w.put(f"{w.name(op.result)} = {value}")


@_rule(mma.MmaOp)
def _mma(w: _Writer, op: mma.MmaOp) -> None:
    w.put(f"{w.name(op.result)} = mma_value({w.name(op.a)}, {w.name(op.b)}, {w.name(op.c)})")


@_rule(mma.IssueOp)
def _issue(w: _Writer, op: mma.IssueOp) -> None:
    w.put(f"{w.name(op.result)} = InFlight({w.name(op.a)}, {w.name(op.b)}, {w.name(op.c)})")


@_rule(mma.WaitOp)
def _wait_products(w: _Writer, op: mma.WaitOp) -> None:
    w.mark(op)
    w.put(f"{w.name(op.result)} = wait_value({w.name(op.sum)})")


@_rule(mma.FenceOp)
def _fence_registers(w: _Writer, op: mma.FenceOp) -> None:
    """Registers are values here."""


@_rule(mma.CommitOp)
def _commit_products(w: _Writer, op: mma.CommitOp) -> None:
    """A wait names the sums that it is for."""


@_rule(mma.PromoteOp)
def _promote(w: _Writer, op: mma.PromoteOp) -> None:
    w.put(f"{w.name(op.result)} = promote_value({w.name(op.partial)}, {w.name(op.acc)})")


@_rule(mma.MapOp)
def _map(w: _Writer, op: mma.MapOp) -> None:
    head = f"{op.kind.data.value!r}, {_dtype(w, op.result)}, {_shape(op.result)}"
    w.put(f"{w.name(op.result)} = map_value({head}, {w.names_of(op.args)})")


@_rule(mma.ReduceOp)
def _reduce(w: _Writer, op: mma.ReduceOp) -> None:
    w.put(f"{w.name(op.result)} = reduce_axis({op.kind.data.value!r}, {w.name(op.arg)}, 1, {_shape(op.result)[1]})")


@_rule(mma.AnyNonfiniteOp)
def _any_nonfinite(w: _Writer, op: mma.AnyNonfiniteOp) -> None:
    w.put(f"{w.name(op.result)} = not np.isfinite({w.name(op.arg)}.astype(np.float32)).all()")


@_rule(mma.AnyOp)
def _any(w: _Writer, op: mma.AnyOp) -> None:
    w.put(f"{w.name(op.result)} = bool({w.name(op.arg)}.any())")


@_rule(mma.ConvertOp)
def _convert(w: _Writer, op: mma.ConvertOp) -> None:
    w.put(f"{w.name(op.result)} = cast_value({w.name(op.arg)}, {_dtype(w, op.result)})")


@_rule(mma.CoordOp)
def _coord(w: _Writer, op: mma.CoordOp) -> None:
    w.put(f"{w.name(op.result)} = coord_value({op.axis.value.data}, {w.name(op.base)}, {_shape(op.result)})")


@_rule(mma.SliceOp)
def _slice(w: _Writer, op: mma.SliceOp) -> None:
    (row, column), (rows, columns) = (int(v) for v in op.at.get_values()), _shape(op.result)
    w.put(f"{w.name(op.result)} = {w.name(op.arg)}[{row}:{row + rows}, {column}:{column + columns}]")


@_rule(mma.JoinOp)
def _join(w: _Writer, op: mma.JoinOp) -> None:
    w.put(f"{w.name(op.result)} = np.concatenate(({w.names_of(op.args)}), axis={op.axis.value.data})")


# ---- programs --------------------------------------------------------------------------------------------------------


def compile_kernel(kernel: tile.KernelOp) -> Program:
    """The program of a kernel in any of its level-3 forms. Raises Level3Error for a kernel that is not at level 3."""
    ops: list[Operation] = []
    parts = [op for op in kernel.block.ops if isinstance(op, ac.ProducerOp | ac.ConsumerOp | ac.RoleOp)]
    if not parts:
        raise Level3Error(
            f"kernel @{kernel.sym_name.data} has no roles or halves: it is not at level 3", location_of(kernel)
        )
    roles = [_compile_role(kernel, part, ops) for part in parts]
    lowered = any(isinstance(op, EVENT_OPS) for op in kernel.walk())
    return Program(kernel, tuple(r for r, _ in roles), tuple(ops), tuple(s for _, s in roles), lowered)


def _compile_role(
    kernel: tile.KernelOp, part: ac.ProducerOp | ac.ConsumerOp | ac.RoleOp, ops: list[Operation]
) -> tuple[RoleProgram, str]:
    w = _Writer(kernel, ops)
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
        elif isinstance(op, ac.WaitOp):
            reads.add(op.pipeline.root_reference.data)
    name = part.role.data if isinstance(part, ac.RoleOp) else part.name.removeprefix("async_copy.")
    warps = _warps(kernel, part)
    alone = isinstance(part, ac.RoleOp) and part.active is not None and warps == 1
    shares = 1 if alone else max(2, warps)
    return RoleProgram(name, warps, shares, scope["body"], frozenset(fills), frozenset(reads)), source


def _warps(kernel: tile.KernelOp, part: ac.ProducerOp | ac.ConsumerOp | ac.RoleOp) -> int:
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


HELPERS: dict[str, Any] = {
    "np": np,
    "grid_offsets": grid_offsets,
    "read_box": read_box,
    "write_box": write_box,
    "mma_value": mma_value,
    "InFlight": InFlight,
    "wait_value": wait_value,
    "promote_value": promote_value,
    "map_value": map_value,
    "reduce_axis": reduce_axis,
    "cast_value": cast_value,
    "coord_value": coord_value,
}
"""What generated source may call."""
