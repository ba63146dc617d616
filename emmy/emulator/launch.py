"""The emulator's front door: parse a PTX text once, launch its kernels on NumPy arrays, get a report."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from emmy.emulator.cluster import Dimensions
from emmy.emulator.datatypes import Array
from emmy.emulator.decode import decode, load_table
from emmy.emulator.faults import EmulatorError
from emmy.emulator.global_memory import GlobalMemory, Pointer, Uninitialised
from emmy.emulator.machine import Machine, Program, register_uses
from emmy.emulator.parser import Parser
from emmy.emulator.scheduler import Budget, Scheduler
from emmy.emulator.syntax import Kernel, Parameter
from emmy.emulator.tensor_map import MAP_BYTES, BoundMap, TensorMap

Argument = Array | Uninitialised | Pointer | int | float | bytes | np.generic
DEFAULT_BUDGET = 50_000_000
MOST_SHARED_BYTES = 232_448  # of a CTA on sm_90, the largest of all targets
MOST_GRANULE = 8  # bytes: of an mbarrier
GRID_WAIT = "griddepcontrol.wait"
GLOBAL_ACCESSES = ("ld.global", "st.global", "cp.async.c", "cp.async.bulk.tensor", "red.global", "atom.global")
MOST_CTAS = 8  # of a portable cluster


@dataclass
class Report:
    """What a launch executed.

    instructions: warp instructions that at least one lane executed, by kind (the opcode, for memory instructions
    with the state space: "ld.global").
    bank_conflicts: extra wavefronts of shared accesses, by PTX line (from 1). seconds: wall time of the emulation.
    """

    instructions: Counter[str] = field(default_factory=Counter[str])
    bank_conflicts: dict[int, int] = field(default_factory=dict[int, int])
    warp_instructions: int = 0
    seconds: float = 0.0

    @property
    def total_bank_conflicts(self) -> int:
        return sum(self.bank_conflicts.values())


class Emulator:
    """Runs the kernels of one PTX text on the CPU.

    Raises EmulatorError at once for anything in the text that it does not know, with the PTX line.
    """

    def __init__(self, ptx_text: str):
        load_table()
        self.kernels = Parser(ptx_text).parse()
        self.programs = {name: _decode(kernel) for name, kernel in self.kernels.items()}

    def launch(
        self,
        kernel: str,
        grid: Dimensions,
        block: Dimensions,
        args: list[Any],
        shared_bytes: int = 0,
        landing: Literal["late", "early", "random"] = "late",
        order: Literal["fixed", "reversed", "random"] = "fixed",
        seed: int = 0,
        max_instructions: int = DEFAULT_BUDGET,
        cluster: Dimensions | None = None,
    ) -> Report:
        """Run every cluster of a grid (without clusters: every CTA), one after another, and write the buffers in place.

        args: for each parameter a C-contiguous array (passed as its address), `Uninitialised(array)`,
        `Pointer(array, byte_offset)`, a `TensorMap` for a `.param .align 64 .b8 name[128]`, or a number converted to
        the parameter's type (`bytes` for an array of bytes).
        landing: when asynchronous copies and wgmma land. order: which warp, and which CTA, runs next. seed: of both randoms.
        max_instructions: warp instructions after which a loop counts as endless.
        cluster: CTAs of a cluster, as a launch attribute; a kernel with .reqnctapercluster needs none.

        Raises EmulatorError for a broken launch contract and for every fault listed in the package's docstring.
        """
        if kernel not in self.programs:
            raise EmulatorError(f"there is no kernel {kernel}; the text has {', '.join(self.programs) or 'none'}")
        if landing not in ("late", "early", "random") or order not in ("fixed", "reversed", "random"):
            raise EmulatorError(f"unknown landing {landing!r} or order {order!r}")
        program = self.programs[kernel]
        _check_dependency(program.kernel)
        _check_block(program.kernel, grid, block)
        shape = _cluster_shape(program.kernel, grid, cluster)
        began = time.perf_counter()
        memory = GlobalMemory()
        parameters, maps = _parameter_space(program.kernel, args, memory)
        chance = random.Random(seed)
        budget = Budget(0, max_instructions)
        with np.errstate(all="ignore"):
            machine = Machine(program, grid, block, shape, shared_bytes, memory, parameters, maps, landing, chance)
            if machine.shared_size > MOST_SHARED_BYTES:
                raise EmulatorError(f"{machine.shared_size} bytes of shared memory, {MOST_SHARED_BYTES} is the most")
            clusters = (grid[0] // shape[0], grid[1] // shape[1], grid[2] // shape[2])
            for index in _order(clusters, order, chance):
                machine.reset(index)
                Scheduler(machine, order, budget).run()
        report = Report(bank_conflicts=dict(sorted(machine.conflicts.items())))
        for slot in machine.slots:
            if slot.count:
                report.instructions[slot.operation.kind] += slot.count
        report.warp_instructions = report.instructions.total()
        report.seconds = time.perf_counter() - began
        return report


def _check_dependency(kernel: Kernel) -> None:
    """A kernel that waits for the launches before it touches global memory after that, and waits unconditionally."""
    opcodes = [instruction.opcode for instruction in kernel.instructions]
    if GRID_WAIT not in opcodes:
        return
    place = opcodes.index(GRID_WAIT)
    for instruction in kernel.instructions[: place + 1]:
        if instruction.opcode.startswith(GLOBAL_ACCESSES):
            raise EmulatorError(
                f"line {instruction.line}: {instruction.opcode} touches global memory before {GRID_WAIT}, while the launch "
                "before may still write it"
            )
    if kernel.instructions[place].guard is not None:
        raise EmulatorError(f"line {kernel.instructions[place].line}: {GRID_WAIT} stands under a predicate")


def _decode(kernel: Kernel) -> Program:
    operations = [decode(instruction, kernel.module) for instruction in kernel.instructions]
    widths = [o.shared_bytes for o in operations if o.shared_bytes]
    uses = [register_uses(*pair) for pair in zip(kernel.instructions, operations, strict=True)]
    return Program(kernel, operations, uses, min([MOST_GRANULE, *widths]), any(o.reads_late for o in operations))


def _check_block(kernel: Kernel, grid: Dimensions, block: Dimensions) -> None:
    if len(grid) != 3 or len(block) != 3 or min(*grid, *block) < 1:
        raise EmulatorError(f"grid {grid} and block {block} must have three positive dimensions each")
    threads = block[0] * block[1] * block[2]
    if threads > 1024:
        raise EmulatorError(f"a block of {threads} threads is too large, 1024 is the most")
    if "maxntid" in kernel.limits:
        most = int(np.prod(kernel.limits["maxntid"]))
        if threads > most:
            raise EmulatorError(f"{kernel.name} is limited to {most} threads by .maxntid, launched with {threads}")
    if "reqntid" in kernel.limits:
        needed = (*kernel.limits["reqntid"], 1, 1)[:3]
        if tuple(block) != needed:
            raise EmulatorError(f"{kernel.name} needs blocks of {needed} by .reqntid, launched with {tuple(block)}")


def _cluster_shape(kernel: Kernel, grid: Dimensions, asked: Dimensions | None) -> Dimensions:
    """CTAs of a cluster along x, y, z: what the kernel requires or the launch asks for; one CTA if neither does."""
    required = kernel.limits.get("reqnctapercluster")
    shape = asked or (1, 1, 1)
    if required is not None:
        x, y, z = (*required, 1, 1)[:3]
        shape = (x, y, z)
        if asked is not None and tuple(asked) != shape:
            raise EmulatorError(f"{kernel.name} needs clusters of {shape} by .reqnctapercluster, launched with {asked}")
    elif "explicitcluster" in kernel.limits and asked is None:
        raise EmulatorError(f"{kernel.name} is .explicitcluster: its launch must give the CTAs of a cluster")
    if min(shape) < 1 or int(np.prod(shape)) > MOST_CTAS:
        raise EmulatorError(f"a cluster of {shape} CTAs is none of 1 to {MOST_CTAS}")
    if any(n % each for n, each in zip(grid, shape, strict=True)):
        raise EmulatorError(f"the grid {grid} is no multiple of the cluster {shape}")
    return shape


def _order(grid: Dimensions, order: str, chance: random.Random) -> list[Dimensions]:
    indices = [(x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0])]
    if order == "reversed":
        indices.reverse()
    elif order == "random":
        chance.shuffle(indices)
    return indices


def _parameter_space(kernel: Kernel, args: list[Any], memory: GlobalMemory) -> tuple[Array, dict[int, BoundMap]]:
    """The parameter space of a launch: uint8, laid out as declared; and the tensor maps by their offset in it."""
    if len(args) != len(kernel.parameters):
        raise EmulatorError(f"{kernel.name} has {len(kernel.parameters)} parameters, {len(args)} arguments given")
    space = np.zeros(-(-kernel.parameter_bytes // 16) * 16, np.uint8)
    maps: dict[int, BoundMap] = {}
    for parameter, argument in zip(kernel.parameters, args, strict=True):
        if isinstance(argument, TensorMap):
            maps[parameter.offset] = _bind_map(kernel, parameter, argument, memory)
            continue
        space[parameter.offset : parameter.offset + parameter.size] = _argument(kernel, parameter, argument, memory)
    return space, maps


def _bind_map(kernel: Kernel, parameter: Parameter, map_: TensorMap, memory: GlobalMemory) -> BoundMap:
    if parameter.size != MAP_BYTES or parameter.alignment < 64 or parameter.type.bytes != 1:
        raise EmulatorError(
            f"parameter {parameter.name} of {kernel.name} cannot hold a tensor map: declare it as "
            f".param .align 64 .b8 {parameter.name}[{MAP_BYTES}]"
        )
    return BoundMap(map_, memory)


def _argument(kernel: Kernel, parameter: Parameter, argument: Argument, memory: GlobalMemory) -> Array:
    name = f"parameter {parameter.name} of {kernel.name}"
    if isinstance(argument, bytes):
        if len(argument) != parameter.size:
            raise EmulatorError(f"{name} has {parameter.size} bytes, {len(argument)} given")
        return np.frombuffer(argument, np.uint8)
    if parameter.size != parameter.type.bytes:
        raise EmulatorError(f"{name} is an array of {parameter.size} bytes: pass a TensorMap or bytes")
    if isinstance(argument, np.ndarray | Uninitialised | Pointer):
        if parameter.size != 8:
            raise EmulatorError(f"{name} has {parameter.size} bytes and cannot hold an address")
        return np.array([memory.add(argument)], np.uint64).view(np.uint8)
    if isinstance(argument, np.generic) and parameter.type.kind == "bits" and argument.nbytes == parameter.size:
        return np.frombuffer(argument.tobytes(), np.uint8)
    dtype = parameter.type.dtype
    if parameter.type.kind == "float":
        return np.array([argument]).astype(dtype).view(np.uint8)
    if int(argument) != argument:
        raise EmulatorError(f"{name} is an integer, {argument} given")
    bits = int(argument) & ((1 << parameter.type.bits) - 1)
    if int(argument) not in (bits, bits - (1 << parameter.type.bits)):
        raise EmulatorError(f"{argument} does not fit {name} (.{parameter.type.name})")
    return np.array([bits], f"uint{parameter.type.bits}").view(np.uint8)
