"""Rules of level 3 for fragments."""

from __future__ import annotations

from typing import cast

import numpy as np
from xdsl.ir import SSAValue

from emmy.dialects import mma
from emmy.interpreters.level3_writer import Rules, Writer, rule_of
from emmy.interpreters.scalars import numpy_dtype

FRAGMENT_RULES: Rules = {}


def _type(value: SSAValue) -> mma.FragmentType:
    return cast(mma.FragmentType, value.type)


def _shape(value: SSAValue) -> tuple[int, int]:
    rows, columns = _type(value).get_shape()
    return rows, columns


def _dtype(w: Writer, value: SSAValue) -> str:
    return w.constant(numpy_dtype(_type(value).element_type))


@rule_of(FRAGMENT_RULES, mma.LoadOp)
def _load(w: Writer, op: mma.LoadOp) -> None:
    w.mark(op)
    shape = _shape(op.result)
    stored = shape[::-1] if op.transposed is not None else shape
    transposed = ".T" if op.transposed is not None else ""
    where = f"{w.name(op.slot)}, {op.field.data!r}, {w.indices(op.indices)}, {stored}"
    if op.in_place is None:
        w.put(f"{w.name(op.result)} = M.load(W, {where}){transposed}")
    else:
        slot, indices = w.name(op.slot), w.indices(op.indices)
        where = f"slot, {op.field.data!r}, indices, {stored}"
        w.put(f"{w.name(op.result)} = lambda slot={slot}, indices={indices}: M.load(W, {where}, True){transposed}")


@rule_of(FRAGMENT_RULES, mma.StoreOp)
def _fragment_store(w: Writer, op: mma.StoreOp) -> None:
    w.mark(op)
    w.put(f"M.fragment_store(W, {w.name(op.value)}, {w.name(op.slot)}, {op.field.data!r}, {w.indices(op.indices)})")


@rule_of(FRAGMENT_RULES, mma.StoreGlobalOp)
def _store_global(w: Writer, op: mma.StoreGlobalOp) -> None:
    w.mark(op)
    value = f"{w.name(op.value)}.reshape(-1)" if 1 in _shape(op.value) else w.name(op.value)
    w.put(f"write_box({w.name(op.view)}, {w.indices(op.indices)}, {value})")


@rule_of(FRAGMENT_RULES, mma.LoadGlobalOp)
def _load_global(w: Writer, op: mma.LoadGlobalOp) -> None:
    w.mark(op)
    shape, transposed = _shape(op.result), op.transposed is not None
    box = f"read_box({w.name(op.view)}, {w.indices(op.indices)}, {shape[::-1] if transposed else shape})"
    w.put(f"{w.name(op.result)} = {box}{'.T' if transposed else ''}")


@rule_of(FRAGMENT_RULES, mma.FillOp)
def _fill(w: Writer, op: mma.FillOp) -> None:
    value = w.constant(np.full(_shape(op.result), op.value.value.data, numpy_dtype(_type(op.result).element_type)))
    w.put(f"{w.name(op.result)} = {value}")


@rule_of(FRAGMENT_RULES, mma.MmaOp)
def _mma(w: Writer, op: mma.MmaOp) -> None:
    w.put(f"{w.name(op.result)} = mma_value({w.name(op.a)}, {w.name(op.b)}, {w.name(op.c)})")


@rule_of(FRAGMENT_RULES, mma.IssueOp)
def _issue(w: Writer, op: mma.IssueOp) -> None:
    w.put(f"{w.name(op.result)} = InFlight({w.name(op.a)}, {w.name(op.b)}, {w.name(op.c)})")


@rule_of(FRAGMENT_RULES, mma.WaitOp)
def _wait_products(w: Writer, op: mma.WaitOp) -> None:
    w.mark(op)
    w.put(f"{w.name(op.result)} = wait_value({w.name(op.sum)})")


@rule_of(FRAGMENT_RULES, mma.WaitOlderOp)
def _wait_older(w: Writer, op: mma.WaitOlderOp) -> None:
    w.mark(op)
    w.put(f"{w.name(op.result)} = wait_older_value({w.name(op.sum)})")


@rule_of(FRAGMENT_RULES, mma.FenceOp)
def _fence_registers(w: Writer, op: mma.FenceOp) -> None:
    """Registers are values here."""


@rule_of(FRAGMENT_RULES, mma.CommitOp)
def _commit_products(w: Writer, op: mma.CommitOp) -> None:
    """A wait names the sums that it is for."""


@rule_of(FRAGMENT_RULES, mma.PromoteOp)
def _promote(w: Writer, op: mma.PromoteOp) -> None:
    w.put(f"{w.name(op.result)} = promote_value({w.name(op.partial)}, {w.name(op.acc)})")


@rule_of(FRAGMENT_RULES, mma.MapOp)
def _map(w: Writer, op: mma.MapOp) -> None:
    head = f"{op.kind.data.value!r}, {_dtype(w, op.result)}, {_shape(op.result)}"
    w.put(f"{w.name(op.result)} = map_value({head}, {w.names_of(op.args)})")


@rule_of(FRAGMENT_RULES, mma.ReduceOp)
def _reduce(w: Writer, op: mma.ReduceOp) -> None:
    left = _shape(op.result)[op.axis]
    w.put(f"{w.name(op.result)} = reduce_axis({op.kind.data.value!r}, {w.name(op.arg)}, {op.axis}, {left})")


@rule_of(FRAGMENT_RULES, mma.AnyNonfiniteOp)
def _any_nonfinite(w: Writer, op: mma.AnyNonfiniteOp) -> None:
    w.put(f"{w.name(op.result)} = not np.isfinite({w.name(op.arg)}.astype(np.float32)).all()")


@rule_of(FRAGMENT_RULES, mma.AnyOp)
def _any(w: Writer, op: mma.AnyOp) -> None:
    w.put(f"{w.name(op.result)} = bool({w.name(op.arg)}.any())")


@rule_of(FRAGMENT_RULES, mma.ConvertOp)
def _convert(w: Writer, op: mma.ConvertOp) -> None:
    w.put(f"{w.name(op.result)} = cast_value({w.name(op.arg)}, {_dtype(w, op.result)})")


@rule_of(FRAGMENT_RULES, mma.CoordOp)
def _coord(w: Writer, op: mma.CoordOp) -> None:
    w.put(f"{w.name(op.result)} = coord_value({op.axis.value.data}, {w.name(op.base)}, {_shape(op.result)})")


@rule_of(FRAGMENT_RULES, mma.SliceOp)
def _slice(w: Writer, op: mma.SliceOp) -> None:
    (row, column), (rows, columns) = (int(v) for v in op.at.get_values()), _shape(op.result)
    w.put(f"{w.name(op.result)} = {w.name(op.arg)}[{row}:{row + rows}, {column}:{column + columns}]")


@rule_of(FRAGMENT_RULES, mma.JoinOp)
def _join(w: Writer, op: mma.JoinOp) -> None:
    w.put(f"{w.name(op.result)} = np.concatenate(({w.names_of(op.args)}), axis={op.axis.value.data})")


@rule_of(FRAGMENT_RULES, mma.ScatterOp)
def _scatter(w: Writer, op: mma.ScatterOp) -> None:
    w.mark(op)
    where = f"{w.name(op.slot)}, {op.field.data!r}, {w.name(op.row)}, {w.name(op.part)}"
    w.put(f"M.scatter(W, {w.name(op.value)}, {where})")


@rule_of(FRAGMENT_RULES, mma.PartOp)
def _part(w: Writer, op: mma.PartOp) -> None:
    w.mark(op, preempt=False)
    w.put(f"{w.name(op.result)} = M.part(W, {w.name(op.arg)}, {w.name(op.part)}, {_shape(op.result)[1]})")
