"""The state of one CTA, or of the CTAs of a cluster: registers as arrays [warps, 32], memories, clocks, and the
instructions bound to them."""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from emmy.emulator.barriers import MBarriers, NamedBarriers, Waiting
from emmy.emulator.bulk_copies import BulkCopies
from emmy.emulator.clocks import FULL_MASK, Clocks
from emmy.emulator.cluster import Cluster, Dimensions
from emmy.emulator.copies import CopyQueues
from emmy.emulator.datatypes import STORAGE, Array, DataType
from emmy.emulator.decode import Execute, Operation
from emmy.emulator.faults import Fault
from emmy.emulator.global_memory import GlobalMemory
from emmy.emulator.register_pool import RegisterPool
from emmy.emulator.shared_memory import SHARED_BASE, SharedMemory, bank_conflicts
from emmy.emulator.syntax import (
    Address,
    Immediate,
    Instruction,
    Kernel,
    Negated,
    Operand,
    Register,
    Sink,
    Special,
    Symbol,
    TensorAddress,
    registers_of,
)
from emmy.emulator.tensor_map import BoundMap
from emmy.emulator.wgmma import WgmmaQueues

Write = Callable[[int, int, "Array | None", Array], None]
Landing = str  # "late", "early" or "random"
_LANES = np.arange(32)
PARAMETER_WINDOW = 1 << 32  # generic address of parameter space: beyond shared memory, below all buffers


@dataclass(frozen=True)
class Program:
    """A kernel with its decoded instructions; `granule`: bytes of the narrowest shared access (1, 2, 4 or 8).

    uses: of each instruction, the numbers of the registers that it reads and of those that it makes whole.
    late_readers: some instruction reads shared memory after it was issued.
    """

    kernel: Kernel
    operations: list[Operation]
    uses: list[tuple[Array, Array]]
    granule: int
    late_readers: bool


@dataclass
class Slot:
    """One bound instruction. `checked` and `written`: bits of the warps whose registers need no further check.

    touches: registers, by number, that it uses and that some wgmma uses, too.
    """

    source: Instruction
    operation: Operation
    execute: Execute
    sources: Array
    destinations: Array
    guard: Array | None
    guard_number: int
    negated: bool
    checked: int = 0
    written: int = 0
    count: int = 0
    touches: Array | None = None


def register_uses(source: Instruction, operation: Operation) -> tuple[Array, Array]:
    """The registers that an instruction reads, and those that it makes whole, as `Program.uses` has them."""
    written = {r.number for o in source.operands[: operation.destinations] for r in registers_of(o)}
    if operation.in_place:
        written.clear()
    read: dict[int, None] = {}
    for position, operand in enumerate(source.operands):
        if position >= operation.destinations or isinstance(operand, Address | TensorAddress):
            read.update(dict.fromkeys(r.number for r in registers_of(operand)))
    return np.array(list(read), dtype=np.intp), np.array(sorted(written), dtype=np.intp)


def mask_bits(mask: Array) -> Array:
    """Boolean [warps, 32] -> uint32 [warps], lane 0 in bit 0."""
    return np.packbits(mask, axis=1, bitorder="little").view(np.uint32).reshape(-1)


class Machine:
    """Runs the clusters of one launch, one after another. Built once a launch; `reset` begins a cluster.

    warps: of the whole cluster; cta_warps: of one CTA. ctas: of a cluster.
    """

    def __init__(
        self,
        program: Program,
        grid: Dimensions,
        block: Dimensions,
        cluster: Dimensions,
        shared_bytes: int,
        memory: GlobalMemory,
        parameters: Array,
        maps: dict[int, BoundMap],
        landing: Landing,
        chance: random.Random,
    ):
        kernel = program.kernel
        threads = block[0] * block[1] * block[2]
        self.kernel, self.grid, self.block, self.threads = kernel, grid, block, threads
        self.ctas = cluster[0] * cluster[1] * cluster[2]
        self.cta_warps = -(-threads // 32)
        self.warps = self.ctas * self.cta_warps
        self.memory, self.parameters = memory, parameters
        self.maps = {self.generic(offset): map_ for offset, map_ in maps.items()}
        self.landing, self.chance = landing, chance
        linear = np.arange(self.warps * 32).reshape(self.warps, 32) % (32 * self.cta_warps)
        self.live: Array = linear < threads
        # Warps below this number have 32 threads; with partial warps in several CTAs, none is taken to have.
        self.full_warps = self.warps if threads % 32 == 0 else threads // 32 if self.ctas == 1 else 0
        self.live_bits = mask_bits(self.live)
        self.clocks = Clocks(self.warps, self.ctas)
        self.symbols, shared_size = _layout(kernel, shared_bytes)
        self.shared_size, self.dynamic_size = shared_size, shared_bytes
        self.shared = SharedMemory(
            shared_size, program.granule, self.clocks, self.describe, program.late_readers, self.ctas
        )
        self.lines = {i.line: i.text for i in kernel.instructions}
        self.banks: dict[int, Array] = {
            width: np.zeros((count, self.warps, 32), STORAGE[width]) for width, count in kernel.widths.items()
        }
        self.initialised: Array = np.zeros((len(kernel.registers), self.warps), np.uint32)
        self.special = _special_registers(self, linear, cluster)
        self.conflicts: Counter[int] = Counter()
        self.everyone: dict[tuple[int, int], tuple[Array, Array]] = {}
        self.pcs = [0] * self.warps
        self.exited = [False] * self.warps
        self.waiting: list[Waiting | None] = [None] * self.warps
        self.poll_fails: set[int] = set()  # warps whose next mbarrier poll may return false
        self.failed_poll: list[tuple[int, int] | None] = [None] * self.warps  # position and mbarrier of the last poll
        self.cluster = Cluster(self, cluster)
        self.barriers = NamedBarriers(self)
        self.mbarriers = MBarriers(self)
        self.copies = CopyQueues(self)
        self.bulk = BulkCopies(self)
        self.registers = RegisterPool(self)
        self.wgmma = WgmmaQueues(self)
        decoded = zip(kernel.instructions, program.operations, program.uses, strict=True)
        self.slots = [self._bind(i, o, *uses) for i, o, uses in decoded]
        self.wgmma.watch()

    def describe(self, line: int) -> str:
        return f"line {line} (`{self.lines.get(line, '')}`)"

    def reset(self, cluster: Dimensions) -> None:
        """Begin the cluster with index (x, y, z): nothing is initialised, all warps stand at the first instruction."""
        self.initialised[:] = ~self.live_bits & np.uint32(FULL_MASK)
        for slot in self.slots:
            slot.checked = slot.written = 0
        self.pcs = [0] * self.warps
        self.exited = [False] * self.warps
        self.waiting = [None] * self.warps
        self.poll_fails.clear()
        self.failed_poll = [None] * self.warps
        self.clocks.reset()
        self.cluster.reset(cluster)
        self.shared.reset()
        self.barriers.reset()
        self.mbarriers.reset()
        self.copies.reset()
        self.bulk.reset()
        self.registers.reset()
        self.wgmma.reset()

    def generic(self, parameter_address: int) -> int:
        """cvta.param: the generic address of an offset in parameter space."""
        return PARAMETER_WINDOW + parameter_address

    # Binding

    def _bind(self, source: Instruction, operation: Operation, read: Array, written: Array) -> Slot:
        guard = None if source.guard is None else self.banks[1][source.guard[0].index]
        return Slot(
            source,
            operation,
            operation.bind(self),
            read,
            written,
            guard,
            -1 if source.guard is None else source.guard[0].number,
            source.guard is not None and source.guard[1],
        )

    def register(self, register: Register) -> Array:
        width = 1 if register.type.kind == "pred" else register.type.bits
        return self.banks[width][register.index]

    def source(self, operand: Operand, type_: DataType) -> Array:
        """The operand as an array [warps, 32 * packed] of the type's dtype; a register gives a live view."""
        match operand:
            case Register():
                raw = self.register(operand)
                view: Array = raw.view(type_.dtype)
                step = raw.dtype.itemsize // type_.bytes
                return view[:, ::step] if step > 1 else view
            case Special(name):
                return self.source_constant(self.special[name], type_)
            case Symbol(name):
                return self.source_constant(np.full((self.warps, 32), self.symbols[name]), type_)
            case Immediate(value):
                return self.source_constant(np.full((self.warps, 32), _immediate_bits(value, type_)), type_)
            case _:
                raise AssertionError(f"decode let {operand} through as a value")

    def source_constant(self, values: Array, type_: DataType) -> Array:
        if values.dtype == STORAGE[type_.bits]:
            return values.view(type_.dtype)
        return values.astype(STORAGE[type_.bits]).view(type_.dtype)

    def predicate(self, operand: Operand) -> Callable[[int, int], Array]:
        """A predicate operand, possibly negated, as a function of the warps."""
        if isinstance(operand, Negated):
            register = self.register(operand.register)
            return lambda low, high: ~register[low:high]
        array = self.register(_as_register(operand))
        return lambda low, high: array[low:high]

    def writer(self, operand: Operand, type_: DataType) -> Write:
        """A function that stores values of the type's dtype into a register for the lanes of a mask."""
        if isinstance(operand, Sink):
            return lambda low, high, mask, value: None
        raw = self.register(_as_register(operand))
        wide = raw.dtype.itemsize > type_.bytes
        prefix = "int" if type_.kind == "signed" else "uint"
        target: Array = raw.view(f"{prefix}{8 * raw.dtype.itemsize}") if wide else raw.view(type_.dtype)
        as_bits = STORAGE[type_.bits] if wide and type_.kind == "float" else None
        packed = type_.packed

        def write(low: int, high: int, mask: Array | None, value: Array) -> None:
            if as_bits is not None:
                value = value.view(as_bits)
            if mask is None:
                target[low:high] = value
            else:
                where = mask if packed == 1 else np.repeat(mask, packed, axis=1)
                np.copyto(target[low:high], value, where=where, casting="unsafe")

        return write

    def address(self, operand: Address) -> Callable[[int, int, Array | None], Array]:
        """Flat int64 addresses of the active lanes."""
        offset = operand.offset
        if isinstance(operand.base, Register):
            raw = self.register(operand.base)
            base: Array = raw.view(np.int64) if raw.dtype.itemsize == 8 else raw

            def compute(low: int, high: int, mask: Array | None) -> Array:
                chosen = base[low:high].reshape(-1) if mask is None else base[low:high][mask]
                return chosen.astype(np.int64) + offset

            return compute
        constant = operand.base.value if isinstance(operand.base, Immediate) else self.symbols[operand.base.name]
        value = int(constant) + offset
        return lambda low, high, mask: np.full((high - low) * 32 if mask is None else int(mask.sum()), value, np.int64)

    def shared_address(self, operand: Address, cluster: bool = False) -> Callable[[int, int, Array | None], Array]:
        """`address` for shared memory; `cluster`: also other CTAs', whose addresses mapa made."""
        compute = self.address(operand)
        if self.ctas == 1 and not cluster:
            return compute

        def place(low: int, high: int, mask: Array | None) -> Array:
            warp, lane = self.lanes(low, high, mask)
            found = compute(low, high, mask)
            return self.cluster.anywhere(found, warp, lane) if cluster else self.cluster.own(found, warp)

        return place

    # Lanes

    def lanes(self, low: int, high: int, mask: Array | None) -> tuple[Array, Array]:
        """Warp and lane of every active lane, flat."""
        if mask is not None:
            warp, lane = mask.nonzero()
            return warp + low, lane
        key = (low, high)
        if key not in self.everyone:
            self.everyone[key] = (np.repeat(np.arange(low, high), 32), np.tile(_LANES, high - low))
        return self.everyone[key]

    def lane_bits(self, low: int, high: int, mask: Array | None) -> list[int]:
        """The active lanes of each warp as an integer mask."""
        return [FULL_MASK] * (high - low) if mask is None else [int(b) for b in mask_bits(mask)]

    def lanes_by_warp(self, low: int, high: int, mask: Array | None) -> list[tuple[int, list[int]]]:
        """Each warp that has active lanes, with those lanes."""
        bits = self.lane_bits(low, high, mask)
        return [(w, [i for i in range(32) if b >> i & 1]) for w, b in enumerate(bits, low) if b]

    def touch(self, low: int, high: int, mask: Array | None) -> None:
        """These lanes access shared memory (see `Clocks.publish`)."""
        for touched in (self.clocks.touched, self.clocks.unfenced):
            touched[low:high] = FULL_MASK if mask is None else touched[low:high] | mask_bits(mask)

    def count_conflicts(self, line: int, offsets: Array, size: int, warp: Array, lane: Array) -> None:
        extra = bank_conflicts(offsets, size, warp, lane)
        if extra:
            self.conflicts[line] += extra

    def uniform(self, values: Array, low: int, what: str) -> list[int]:
        """One integer for each warp from [warps, 32] values; Fault if the live lanes of a warp disagree."""
        result: list[int] = []
        for warp, row in enumerate(values, low):
            live = row[self.live[warp]]
            different = (live != live[0]).nonzero()[0]
            if different.size:
                raise Fault(f"the lanes of a warp disagree on {what}", warp, int(different[0]))
            result.append(int(live[0]))
        return result

    # Registers that were never written

    def check_guard(self, slot: Slot, low: int, high: int) -> None:
        missing = ~self.initialised[slot.guard_number, low:high]
        if missing.any():
            self._unwritten(slot.guard_number, missing, low)

    def check_sources(self, slot: Slot, low: int, high: int, mask: Array | None, bits: int) -> None:
        """Raise Fault if an active lane reads a register that it never wrote; remember warps that need no more checks."""
        written = self.initialised[slot.sources, low:high]
        if not written.tobytes().strip(b"\xff"):
            slot.checked |= bits
            return
        missing = ~written if mask is None else ~written & mask_bits(mask)
        for number, lanes in zip(slot.sources.tolist(), missing, strict=True):
            if lanes.any():
                self._unwritten(number, lanes, low)

    def _unwritten(self, number: int, missing: Array, low: int) -> None:
        warp = int(missing.nonzero()[0][0])
        bits = int(missing[warp])
        lane = (bits & -bits).bit_length() - 1
        poison = self.wgmma.in_flight(number, warp + low)
        if poison is not None:
            raise Fault(poison, warp + low, lane)
        name = self.kernel.registers[number].name
        raise Fault(f"uninitialised: the register {name} was never written", warp + low, lane)

    def mark_written(self, slot: Slot, low: int, high: int, mask: Array | None, bits: int) -> None:
        if not slot.destinations.size:
            slot.written |= bits
            return
        self.wgmma.check_written(slot.destinations, low, high)
        if mask is None:
            self.initialised[slot.destinations, low:high] = FULL_MASK
            slot.written |= bits
        else:
            self.initialised[slot.destinations, low:high] |= mask_bits(mask)


def _as_register(operand: Operand) -> Register:
    assert isinstance(operand, Register), operand
    return operand


def _immediate_bits(value: float, type_: DataType) -> Any:
    """The bit pattern of a constant, as an unsigned scalar of the type's width."""
    unsigned = STORAGE[type_.bits]
    if type_.kind == "float" and type_.packed == 1 and (isinstance(value, float) or type_.bits > 16):
        return np.array(value, type_.dtype).view(unsigned)[()]
    if isinstance(value, float):
        layout = (">d", 8) if type_.bits == 64 else (">f", 4)
        value = int.from_bytes(struct.pack(layout[0], value), "big")
    return unsigned.type(value & ((1 << type_.bits) - 1))


def _layout(kernel: Kernel, dynamic_bytes: int) -> tuple[dict[str, int], int]:
    """Addresses of the shared variables (static first, then the dynamic block) and the bytes of all of them; and
    those of the parameters, in parameter space."""
    symbols = {parameter.name: parameter.offset for parameter in kernel.parameters}
    end = SHARED_BASE
    for variable in sorted(kernel.shared, key=lambda v: v.dynamic):
        end = -(-end // variable.alignment) * variable.alignment
        symbols[variable.name] = end
        end += variable.size
    return symbols, end - SHARED_BASE + dynamic_bytes


def _special_registers(machine: Machine, linear: Array, cluster: Dimensions) -> dict[str, Array]:
    """Every special register as uint32 [warps, 32]; those that say which CTA it is are filled in for each cluster."""
    x, y, z = machine.block
    shape = linear.shape
    values: dict[str, Array] = {
        "%tid.x": linear % x,
        "%tid.y": linear // x % y,
        "%tid.z": linear // (x * y) % z,
        "%laneid": linear % 32,
        "%warpid": linear // 32,
        "%nwarpid": np.full(shape, machine.cta_warps),
        "%cluster_ctarank": np.zeros(shape, np.int64),
        "%cluster_nctarank": np.full(shape, machine.ctas),
        "%dynamic_smem_size": np.full(shape, machine.dynamic_size),
        "%total_smem_size": np.full(shape, machine.shared_size),
    }
    for axis, threads, ctas, each in zip("xyz", machine.block, machine.grid, cluster, strict=True):
        values[f"%ntid.{axis}"] = np.full(shape, threads)
        values[f"%nctaid.{axis}"] = np.full(shape, ctas)
        values[f"%ctaid.{axis}"] = np.zeros(shape, np.int64)
        values[f"%cluster_ctaid.{axis}"] = np.zeros(shape, np.int64)
        values[f"%cluster_nctaid.{axis}"] = np.full(shape, each)
        values[f"%clusterid.{axis}"] = np.zeros(shape, np.int64)
        values[f"%nclusterid.{axis}"] = np.full(shape, ctas // each)
    lane = linear % 32
    bit = 1 << lane
    masks = {
        "eq": bit,
        "lt": bit - 1,
        "le": 2 * bit - 1,
        "gt": FULL_MASK & ~(2 * bit - 1),
        "ge": FULL_MASK & ~(bit - 1),
    }
    values.update({f"%lanemask_{name}": mask for name, mask in masks.items()})
    return {name: value.astype(np.uint32) for name, value in values.items()}
