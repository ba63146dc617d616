"""ldmatrix, stmatrix and mma.sync, for all warps of a group at once. Lane maps: PTX ISA, "Warp Level Matrix".

An mma computes all its products and sums in float64, adds the accumulator and rounds once (to nearest) to the
accumulator's type. Products of 16- and 8-bit floats are exact there. Hardware truncates in between, so results agree bit
for bit whenever every partial sum is representable (small integers), and within an ulp or so of the k-step otherwise; sums of
8-bit floats keep far fewer bits on some chips (about 14 on Hopper) than they do here, and f16 sums of them are rounded more
than once: ptxas 13.0 makes two HMMA of an m16n8k32 product on sm_90a, whose sum it adds to c by HADD2 (3 roundings, here 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emmy.emulator.datatypes import TYPES, Array, DataType, narrow
from emmy.emulator.decode import Execute, Operation, Spelling, instruction
from emmy.emulator.faults import Fault
from emmy.emulator.machine import Machine
from emmy.emulator.shared_memory import ALL_LANES
from emmy.emulator.syntax import Address, Operand

B32 = TYPES["b32"]
_SHARED = ("shared", "shared::cta")


def _matrix_access(spelling: Spelling) -> tuple[int, bool]:
    """Number of 8x8 matrices, and whether they are transposed."""
    for modifier in ("sync", "aligned", "m8n8"):
        spelling.require(modifier)
    count = int(spelling.require("x1", "x2", "x4")[1])
    transposed = bool(spelling.take("trans"))
    spelling.require(*_SHARED)
    spelling.require("b16")
    spelling.finish(2)
    return count, transposed


def _need_full_warps(machine: Machine, mask: Array | None, low: int) -> None:
    if mask is not None:
        raise Fault("a matrix instruction needs all 32 lanes of its warp", low)


@dataclass(frozen=True)
class _Rows:
    """The 16-byte rows that lanes 0 .. 8 * count - 1 of each warp address; entries in warp order, then row order."""

    machine: Machine
    address: Address
    count: int
    line: int

    def locate(self, low: int, high: int) -> tuple[Array, Array, Array]:
        """Byte offsets, warp and lane of each row."""
        machine, rows = self.machine, 8 * self.count
        every = machine.shared_address(self.address)(low, high, None).reshape(-1, 32)[:, :rows].reshape(-1)
        warp, lane = (x.reshape(-1, 32)[:, :rows].reshape(-1) for x in machine.lanes(low, high, None))
        offsets = machine.shared.locate(every, 16, warp, lane)
        machine.count_conflicts(self.line, offsets, 16, warp, lane)
        machine.touch(low, high, None)
        return offsets, warp, np.full(warp.size, ALL_LANES)


@instruction("ldmatrix")
def decode_ldmatrix(spelling: Spelling) -> Operation:
    """Lane l gets elements 2(l % 4), +1 of row l / 4 of each matrix (transposed: of column l / 4)."""
    count, transposed = _matrix_access(spelling)
    targets = spelling.vector(spelling.operands[0], count)
    for target in targets:
        spelling.check(target, B32)
    address = spelling.address(spelling.operands[1], "shared")
    line = spelling.source.line

    def bind(machine: Machine) -> Execute:
        writers = [machine.writer(t, B32) for t in targets]
        rows = _Rows(machine, address, count, line)

        def execute(low: int, high: int, mask: Array | None) -> None:
            _need_full_warps(machine, mask, low)
            offsets, warp, lane = rows.locate(low, high)
            shared = machine.shared
            shared.check_read(shared.granules(offsets, 16), warp, lane, line)
            words = shared.rows[offsets >> 4]
            if transposed:
                halves = words.view(np.uint16).reshape(-1, 8, 8)
                words = np.ascontiguousarray(halves.transpose(0, 2, 1)).view(np.uint32)
            words = words.reshape(high - low, count, 32)
            for i, write in enumerate(writers):
                write(low, high, None, words[:, i])

        return execute

    return Operation("ldmatrix", bind, collective=True, shared_bytes=16)


@instruction("stmatrix")
def decode_stmatrix(spelling: Spelling) -> Operation:
    """The mirror of ldmatrix."""
    count, transposed = _matrix_access(spelling)
    address = spelling.address(spelling.operands[0], "shared")
    sources = spelling.vector(spelling.operands[1], count)
    for source in sources:
        spelling.check(source, B32)
    line = spelling.source.line

    def bind(machine: Machine) -> Execute:
        arrays = [machine.source(s, B32) for s in sources]
        rows = _Rows(machine, address, count, line)

        def execute(low: int, high: int, mask: Array | None) -> None:
            _need_full_warps(machine, mask, low)
            offsets, warp, lane = rows.locate(low, high)
            shared = machine.shared
            shared.check_write(shared.granules(offsets, 16), warp, lane, line)
            words = np.stack([a[low:high] for a in arrays], axis=1).reshape(-1, 8, 4)
            if transposed:
                halves = words.view(np.uint16).reshape(-1, 8, 8)
                words = np.ascontiguousarray(halves.transpose(0, 2, 1)).view(np.uint32)
            shared.rows[offsets >> 4] = words.reshape(-1, 4)

        return execute

    return Operation("stmatrix", bind, destinations=0, collective=True, shared_bytes=16)


_F8 = ("e4m3", "e5m2")

# mma.sync: (shape, accumulator, type of A, type of B); D and C have one type
_ATOMS = {
    ("m16n8k16", "f32", "f16", "f16"),
    ("m16n8k16", "f16", "f16", "f16"),
    ("m16n8k16", "f32", "bf16", "bf16"),
    ("m16n8k8", "f32", "f16", "f16"),
    ("m16n8k8", "f16", "f16", "f16"),
    ("m16n8k8", "f32", "bf16", "bf16"),
    *((k, c, a, b) for k in ("m16n8k16", "m16n8k32") for c in ("f32", "f16") for a in _F8 for b in _F8),
}


def _gather(arrays: Sequence[Array], low: int, high: int) -> Array:
    """Fragment registers as [warps, registers, 8 lane groups, 4 lanes] words."""
    result = np.empty((high - low, len(arrays), 8, 4), np.uint32)
    for i, array in enumerate(arrays):
        result[:, i] = array[low:high].reshape(-1, 8, 4)
    return result


@instruction("mma")
def decode_mma(spelling: Spelling) -> Operation:
    """D = A B + C; A 16 x k row-major, B k x 8 column-major, C and D 16 x 8."""
    spelling.require("sync")
    spelling.require("aligned")
    shape = spelling.require("m16n8k16", "m16n8k8", "m16n8k32")
    spelling.require("row")
    spelling.require("col")
    d_type, a_type, b_type, c_type = (spelling.type("f16", "bf16", "f32", "e4m3", "e5m2") for _ in range(4))
    if d_type != c_type or (shape, d_type.name, a_type.name, b_type.name) not in _ATOMS:
        spelling.fail(f"the emulator has no atom {shape} with these types")
    if a_type.name in _F8:
        newer = shape == "m16n8k16" or d_type.name == "f16"
        spelling.available((8, 7) if newer else (8, 4), 89)
    spelling.finish(4)
    steps = int(shape.removeprefix("m16n8k")) * a_type.bytes // 16
    sums = 4 if d_type.name == "f32" else 2
    d, a, b, c = (spelling.vector(o, n) for o, n in zip(spelling.operands, (sums, 2 * steps, steps, sums), strict=True))
    for operand in (*d, *a, *b, *c):
        spelling.check(operand, B32)
    types = a_type, b_type, d_type
    return Operation("mma", lambda machine: _bind_mma(machine, d, a, b, c, types, steps), collective=True)


def _bind_mma(
    machine: Machine,
    d: Sequence[Operand],
    a: Sequence[Operand],
    b: Sequence[Operand],
    c: Sequence[Operand],
    types: tuple[DataType, DataType, DataType],
    steps: int,
) -> Execute:
    a_type, b_type, sum_type = types
    left, right, addend = ([machine.source(o, B32) for o in operands] for operands in (a, b, c))
    writers = [machine.writer(o, B32) for o in d]
    single = sum_type.name == "f32"
    each = 4 // a_type.bytes  # elements in a register, which are neighbours along k

    def execute(low: int, high: int, mask: Array | None) -> None:
        _need_full_warps(machine, mask, low)
        n = high - low
        # A register r: row half r % 2, k half r / 2; lane: row lane / 4, group of k lane % 4.
        x = _gather(left, low, high).view(a_type.dtype).reshape(n, steps, 2, 8, 4, each)
        x = x.transpose(0, 2, 3, 1, 4, 5).astype(np.float64).reshape(n, 16, 4 * each * steps)
        # B register r: k half r; lane: column lane / 4, group of k lane % 4.
        y = _gather(right, low, high).view(b_type.dtype).reshape(n, steps, 8, 4, each)
        y = y.transpose(0, 1, 3, 4, 2).astype(np.float64).reshape(n, 4 * each * steps, 8)
        z = _gather(addend, low, high).view(sum_type.dtype)
        # f32 registers: row half, then column parity; f16 registers: row half, columns packed in pairs.
        z = z.reshape(n, 2, 2, 8, 4).transpose(0, 1, 3, 4, 2) if single else z.reshape(n, 2, 8, 4, 2)
        total = narrow(x @ y + z.reshape(n, 16, 8), sum_type.dtype).reshape(n, 2, 8, 4, 2)
        if single:
            for r, write in enumerate(writers):
                words = np.ascontiguousarray(total[:, r // 2, :, :, r % 2]).view(np.uint32)
                write(low, high, None, words.reshape(n, 32))
        else:
            words = total.view(np.uint32).reshape(n, 2, 32)
            for r, write in enumerate(writers):
                write(low, high, None, words[:, r])

    return execute
