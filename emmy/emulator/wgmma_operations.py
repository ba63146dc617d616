"""wgmma.mma_async, fence, commit_group and wait_group. What is in flight is in `wgmma`.

Lane maps: PTX ISA, "Register Fragments". Products and sums of one instruction are computed in float64, the old sums added,
and the result rounded once to the type of the sums, as `matrix_operations` does for mma.sync.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from emmy.emulator import async_proxy
from emmy.emulator.clocks import WARPGROUP
from emmy.emulator.datatypes import TYPES, Array, narrow
from emmy.emulator.decode import Execute, Operation, Spelling, instruction
from emmy.emulator.faults import Fault
from emmy.emulator.machine import Machine
from emmy.emulator.matrix_descriptor import CHUNK, MatrixDescriptor
from emmy.emulator.shared_memory import WINDOW
from emmy.emulator.syntax import Immediate, Operand, Register, Vector
from emmy.emulator.wgmma import Flight, Registers, Warpgroup

B32, B64, PRED = TYPES["b32"], TYPES["b64"], TYPES["pred"]
_ROWS = 64
_DTYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}


@dataclass(frozen=True)
class _Form:
    """A decoded wgmma.mma_async. a: four registers, or one 64-bit descriptor. scale_d: None if the old sums always count."""

    n: int
    sum_type: str
    a_type: str
    b_type: str
    sums: tuple[Operand, ...]
    a: tuple[Operand, ...]
    b: Operand
    scale_d: Operand
    signs: tuple[int, int]
    mn_major: tuple[bool, bool]
    line: int

    @property
    def k(self) -> int:
        """Elements in 32 bytes."""
        return 32 // _DTYPES[self.a_type].itemsize

    @property
    def shape(self) -> str:
        """What wgmma on the same sums must agree in."""
        return f"m64n{self.n}k{self.k}.{self.sum_type}"


@instruction("wgmma.mma_async")
def decode_wgmma(spelling: Spelling) -> Operation:
    """D (64 x n) = A (64 x k) B (k x n) + D, asynchronously."""
    _available(spelling)
    shape = next((m for m in spelling.rest if re.fullmatch(r"m64n\d+k\d+", m)), "")
    n, k = (int(x) for x in re.findall(r"\d+", spelling.require(shape or "m64nNk16"))[1:])
    sum_type = spelling.require("f32", "f16")
    a_type, b_type = (spelling.require(*_DTYPES) for _ in range(2))
    wide = _DTYPES[a_type].itemsize == 2
    if n % 8 or not 8 <= n <= 256 or k != (16 if wide else 32):
        spelling.fail(f"there is no shape {shape} for operands of type .{a_type}")
    if (wide and a_type != b_type) or _DTYPES[b_type].itemsize != _DTYPES[a_type].itemsize:
        spelling.fail(f"no wgmma multiplies .{a_type} by .{b_type}")
    if sum_type == "f16" and a_type == "bf16":
        spelling.fail("wgmma of .bf16 has sums of .f32")
    in_registers = any(isinstance(o, Vector) for o in spelling.operands[1:2])
    spelling.finish(6 + wide + (wide and not in_registers))
    d, left, b, scale, *constants = spelling.operands
    sums = spelling.vector(d, n // 2 if sum_type == "f32" else n // 4)
    a = spelling.vector(left, 4 if in_registers else 1)
    checks = [*((o, B32) for o in sums), *((o, B32 if in_registers else B64) for o in a), (b, B64)]
    for operand, type_ in checks:
        spelling.check(operand, type_)
        if not isinstance(operand, Register):
            spelling.fail("wgmma takes registers here")
    signs, flags = [spelling.integer(o) for o in constants[:2]], [spelling.integer(o) for o in constants[2:]]
    if any(abs(sign) != 1 for sign in signs) or any(flag not in (0, 1) for flag in flags):
        spelling.fail("scales of a and b are 1 or -1, their transpositions 0 or 1")
    mn_major = [False] * (2 - len(flags)) + [bool(flag) for flag in flags]
    form = _Form(
        n,
        sum_type,
        a_type,
        b_type,
        sums,
        a,
        b,
        _scale(spelling, scale),
        (signs[0], signs[1]),
        (mn_major[0], mn_major[1]),
        spelling.source.line,
    )
    bind = _Binder(form).bind
    return Operation("wgmma", bind, collective=True, control=True, shared_bytes=CHUNK, reads_late=True, in_place=True)


def _available(spelling: Spelling) -> None:
    spelling.available((8, 0), 90, specific=True)
    if spelling.module.architecture != 90:
        spelling.fail("wgmma is for sm_90a only")
    spelling.require("sync")
    spelling.require("aligned")


def _scale(spelling: Spelling, operand: Operand) -> Operand:
    """scale-d: a predicate, or 0 or 1."""
    if isinstance(operand, Immediate):
        if operand.value not in (0, 1):
            spelling.fail("scale-d is a predicate, 0 or 1")
    else:
        spelling.check(operand, PRED)
    return operand


def _numbers(operands: Sequence[Operand]) -> Array:
    return np.array([o.number for o in operands if isinstance(o, Register)], np.intp)


def _indices(operands: Sequence[Operand]) -> Array:
    """Where the registers are in their bank."""
    return np.array([o.index for o in operands if isinstance(o, Register)], np.intp)


class _Binder:
    """One wgmma.mma_async on a machine."""

    def __init__(self, form: _Form):
        self.form = form

    def bind(self, machine: Machine) -> Execute:
        form = self.form
        in_registers = len(form.a) > 1
        registers = Registers(_numbers(form.sums), _numbers(form.a) if in_registers else _numbers(()), form.line)
        machine.wgmma.operands.append(registers)
        bank, d = machine.banks[32], _indices(form.sums)
        a_at = _indices(form.a)
        a_bits = None if in_registers else machine.source(form.a[0], B64)
        b_bits = machine.source(form.b, B64)
        scale = None if isinstance(form.scale_d, Immediate) else machine.source(form.scale_d, PRED)
        always = isinstance(form.scale_d, Immediate) and form.scale_d.value == 1

        def issue(group: Warpgroup) -> None:
            adds = always if scale is None else bool(_same(scale[group.warps], group, "scale-d"))
            right = _operand(machine, group, b_bits, form.n, form.b_type, form.mn_major[1], "b", form.line)
            if a_bits is None:
                left: Callable[[], Array] = lambda: _fragment(bank[a_at, group.warps], form.a_type)  # noqa: E731
            else:
                left = _operand(machine, group, a_bits, _ROWS, form.a_type, form.mn_major[0], "a", form.line)

            def land() -> None:
                x, y = left() * form.signs[0], right() * form.signs[1]
                old = _sums(bank[d, group.warps], form) if adds else 0.0
                bank[d, group.warps] = _words(narrow(x @ y.T + old, TYPES[form.sum_type].dtype), form)

            machine.wgmma.issue(group, Flight(registers, form.shape, land), adds)

        return lambda low, high, mask: machine.wgmma.meet(low, high, issue)


def _same(values: Array, group: Warpgroup, what: str) -> int:
    """The one value that all 128 lanes have. Raises Fault."""
    first = values.flat[0]
    different = values != first
    if different.any():
        warp, lane = (int(x[0]) for x in different.nonzero())
        raise Fault(f"the threads of a warpgroup disagree on {what}", group.first + warp, lane)
    return int(first)


def _operand(
    machine: Machine, group: Warpgroup, bits: Array, extent: int, type_: str, mn_major: bool, name: str, line: int
) -> Callable[[], Array]:
    """Check an operand in shared memory; the function reads it as float64 [extent, k]."""
    what = f"operand {name}"
    descriptor = MatrixDescriptor.decode(_same(bits[group.warps], group, f"the descriptor of {what}"), what)
    addresses = descriptor.chunks(extent, mn_major)
    flat = addresses.reshape(-1) + machine.cluster.rank_of(group.first) * WINDOW
    warp = np.full(flat.size, group.first)
    offsets = machine.shared.locate(flat, CHUNK, warp, np.zeros(flat.size, np.int64))
    cells = machine.shared.granules(offsets, CHUNK).reshape(-1)
    async_proxy.begin_wgmma(machine.shared, cells, group.epoch, group.first, group.index, line)
    rows, dtype = offsets >> 4, _DTYPES[type_]

    def read() -> Array:
        values = machine.shared.rows[rows].view(dtype)
        if mn_major:
            return values.reshape(16, extent).T.astype(np.float64)
        return values.reshape(extent, -1).astype(np.float64)

    return read


# Registers of the four warps: [registers, warps, 32 lanes] words


def _fragment(words: Array, type_: str) -> Array:
    """A in registers: register r has row half r % 2 and k half r / 2; lane: row lane / 4, part of k lane % 4."""
    dtype = _DTYPES[type_]
    parts = np.ascontiguousarray(words).view(dtype).reshape(2, 2, WARPGROUP, 8, 4, 4 // dtype.itemsize)
    return parts.transpose(2, 1, 3, 0, 4, 5).reshape(_ROWS, -1).astype(np.float64)


def _sums(words: Array, form: _Form) -> Array:
    """D as float64 [64, n]. Eight columns are four f32 registers (row half, column parity) or two of f16 pairs."""
    if form.sum_type == "f32":
        parts = np.ascontiguousarray(words).view(np.float32).reshape(-1, 2, 2, WARPGROUP, 8, 4)
        return parts.transpose(3, 1, 4, 0, 5, 2).reshape(_ROWS, form.n).astype(np.float64)
    parts = np.ascontiguousarray(words).view(np.float16).reshape(-1, 2, WARPGROUP, 8, 4, 2)
    return parts.transpose(2, 1, 3, 0, 4, 5).reshape(_ROWS, form.n).astype(np.float64)


def _words(values: Array, form: _Form) -> Array:
    """The reverse of `_sums`, from values of the type of the sums."""
    parts = values.reshape(WARPGROUP, 2, 8, form.n // 8, 4, 2)
    order = (3, 1, 5, 0, 2, 4) if form.sum_type == "f32" else (3, 1, 0, 2, 4, 5)
    return np.ascontiguousarray(parts.transpose(order)).view(np.uint32).reshape(-1, WARPGROUP, 32)


# Fences and groups


@instruction("wgmma.fence")
def decode_wgmma_fence(spelling: Spelling) -> Operation:
    """What this warp did with registers is before its next wgmma."""
    _available(spelling)
    spelling.finish(0)

    def bind(machine: Machine) -> Execute:
        return lambda low, high, mask: machine.wgmma.fence(low, high)

    return Operation("wgmma.fence", bind, destinations=0, collective=True)


@instruction("wgmma.commit_group")
def decode_wgmma_commit(spelling: Spelling) -> Operation:
    """Close the group of wgmma issued since the last commit; an empty group counts too."""
    _available(spelling)
    spelling.finish(0)

    def bind(machine: Machine) -> Execute:
        return lambda low, high, mask: machine.wgmma.meet(low, high, machine.wgmma.commit)

    return Operation("wgmma.commit_group", bind, destinations=0, collective=True, control=True)


@instruction("wgmma.wait_group")
def decode_wgmma_wait(spelling: Spelling) -> Operation:
    """Wait until at most N of the warpgroup's youngest groups are outstanding."""
    _available(spelling)
    spelling.finish(1)
    pending = spelling.integer(spelling.operands[0])

    def bind(machine: Machine) -> Execute:
        queues = machine.wgmma
        return lambda low, high, mask: queues.meet(low, high, lambda group: queues.wait(group, pending))

    return Operation("wgmma.wait_group", bind, destinations=0, collective=True, control=True)
