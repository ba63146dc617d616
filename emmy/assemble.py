"""PTX text to a cubin, and what the assembler says about it: registers, spills, messages, and the SASS that came out.

`ptxas` is looked for on PATH, then in the wheel that the extra `emmy[ptxas]` installs. Nothing here needs a GPU.
Where there is no ptxas, a driver can still compile the PTX when it loads it (see `emmy.runtime`); what is lost is
the report.

nvJitLink is not used: it compiles relocatably and then ignores every `setmaxnreg` (message C7504).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from emmy.errors import EmmyError
from emmy.targets import Target, get_target

INSTALL_HINT = 'install it with: pip install "emmy[ptxas]"'
# Where NVIDIA's wheels put their programs, below site-packages.
WHEEL_FOLDERS = ("nvidia/cu13/bin", "nvidia/cuda_nvcc/bin", "nvidia/cuda_nvdisasm/bin")
TENSOR_OPCODES = frozenset({"HMMA", "HGMMA", "IMMA", "IGMMA", "QMMA", "QGMMA", "BMMA", "DMMA"})


@dataclass(frozen=True)
class KernelResources:
    """What one kernel takes. Bytes are per thread for stack and spills, per block for (static) shared memory."""

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class Assembled:
    """A cubin and ptxas's report: `kernels` by entry name, and every message that is not part of the resource
    report."""

    cubin: bytes
    kernels: dict[str, KernelResources]
    messages: tuple[str, ...]


def find_tool(name: str) -> Path | None:
    """The program `name` on PATH, else in NVIDIA's wheels in this environment, else None."""
    on_path = shutil.which(name)
    if on_path is not None:
        return Path(on_path)
    for packages in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for folder in WHEEL_FOLDERS:
            candidate = Path(packages, folder, name)
            if candidate.is_file() and os.access(candidate, os.X_OK):
                return candidate
    return None


def require_tool(name: str) -> Path:
    """`find_tool`, or an `EmmyError` that says how to install it."""
    tool = find_tool(name)
    if tool is None:
        raise EmmyError(f"{name} was not found on PATH or among the installed wheels; {INSTALL_HINT}")
    return tool


def assemble(ptx: str, target: str, opt_level: int = 3, allow: frozenset[str] = frozenset()) -> Assembled:
    """Assemble a PTX module for `target` (a name in `emmy.targets.TARGETS`) with `ptxas -O<opt_level>`.

    `allow` names what would otherwise be an error: `"spills"`, or a message code such as `"C7508"`.
    Raises `EmmyError` if ptxas is missing or rejects the text (with its first error and the PTX line), if a kernel
    spills, or if ptxas prints a C75xx message: those tell of instructions it ignored or serialised, which is a bug in
    the text and never wanted.
    """
    get_target(target)
    if not 0 <= opt_level <= 3:
        raise EmmyError(f"optimisation level {opt_level} does not exist; ptxas has 0 to 3")
    ptxas = require_tool("ptxas")
    with tempfile.TemporaryDirectory(prefix="emmy-") as folder:
        source, output = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        command = [str(ptxas), "-v", f"-O{opt_level}", "-arch", target, "-o", str(output), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        report = done.stdout + done.stderr
        if done.returncode != 0:
            raise EmmyError(f"ptxas rejects the PTX for {target}: {_first_error(report, ptx)}")
        cubin = output.read_bytes()
    kernels, messages = parse_report(report)
    _refuse_unwanted(kernels, messages, allow)
    return Assembled(cubin, kernels, messages)


def assemble_in_registers(ptx: str, target: str, opt_level: int = 3, allow: frozenset[str] = frozenset()) -> Assembled:
    """As `assemble`, but text that spills at `opt_level` is assembled with -O1, which keeps the order of its instructions,
    and with it the registers that the order was made for. Raises `EmmyError` if it spills there too, unless `allow` has it."""
    found = assemble(ptx, target, opt_level, allow=frozenset({"spills"}))
    if not any(kernel.spill_store_bytes + kernel.spill_load_bytes for kernel in found.kernels.values()):
        return found
    return assemble(ptx, target, min(opt_level, 1), allow)


def resources(assembled: Assembled) -> dict[str, dict[str, int]]:
    """The report in the form that an artefact keeps: registers, spill_bytes (stored and loaded, per thread) and
    shared_bytes (static), by kernel."""
    return {
        name: {
            "registers": kernel.registers,
            "spill_bytes": kernel.spill_store_bytes + kernel.spill_load_bytes,
            "shared_bytes": kernel.shared_bytes,
        }
        for name, kernel in assembled.kernels.items()
    }


_COMPILING = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_NOISE = re.compile(r"\d+ bytes gmem|Compile time =|Overriding maximum register limit")
_CODE = re.compile(r"\(C75\d\d\)")


def parse_report(report: str) -> tuple[dict[str, KernelResources], tuple[str, ...]]:
    """The output of `ptxas -v`: resources by kernel, and the lines that report something else (notes, warnings)."""
    kernels: dict[str, KernelResources] = {}
    messages: list[str] = []
    kernel, function = "", ""
    stack: dict[str, tuple[int, int, int]] = {}
    for line in report.splitlines():
        if match := _COMPILING.search(line):
            kernel = function = match[1]
        elif match := _PROPERTIES.search(line):
            function = match[1]
        elif match := _STACK.search(line):
            stack[function] = (int(match[1]), int(match[2]), int(match[3]))
        elif match := _USED.search(line):
            frame, stores, loads = stack.get(kernel, (0, 0, 0))
            shared = _SHARED.search(line)
            kernels[kernel] = KernelResources(int(match[1]), stores, loads, frame, int(shared[1]) if shared else 0)
        elif line.strip() and not _NOISE.search(line):
            messages.append(re.sub(r"^ptxas (info|warning)\s*:\s*", "", line.strip()))
    return kernels, tuple(messages)


def _refuse_unwanted(kernels: dict[str, KernelResources], messages: tuple[str, ...], allow: frozenset[str]) -> None:
    for message in messages:
        code = _CODE.search(message)
        if code and code[0].strip("()") not in allow:
            raise EmmyError(f"ptxas reports {message}")
    if "spills" not in allow:
        refuse_spills(kernels)


def refuse_spills(kernels: Mapping[str, KernelResources], most: Mapping[str, int] | None = None) -> None:
    """Raise `EmmyError` for a kernel that spills more bytes (stored and loaded) than `most` has for it, by default any."""
    for name, kernel in kernels.items():
        if kernel.spill_store_bytes + kernel.spill_load_bytes > (most or {}).get(name, 0):
            raise EmmyError(
                f"kernel '{name}' spills registers ({kernel.spill_store_bytes} bytes stored, "
                f"{kernel.spill_load_bytes} loaded per thread) at {kernel.registers} registers; "
                "use a smaller tile or more warps"
            )


def _first_error(report: str, ptx: str) -> str:
    """The first error of a failed run, with the PTX line that it points at."""
    lines = ptx.splitlines()
    for line in report.splitlines():
        if match := re.search(r", line (\d+); (?:error|fatal)\s*: (.*)", line):
            number = int(match[1])
            text = lines[number - 1].strip() if 0 < number <= len(lines) else ""
            return f"line {number}: {match[2].strip()}: {text}"
    errors = [line for line in report.splitlines() if "error" in line or "fatal" in line]
    return errors[0] if errors else report.strip() or "no message"


def sass(cubin: bytes) -> str:
    """The disassembly of a cubin's code, as nvdisasm prints it. Raises `EmmyError` without nvdisasm or if it fails."""
    nvdisasm = require_tool("nvdisasm")
    with tempfile.TemporaryDirectory(prefix="emmy-") as folder:
        image = Path(folder, "kernel.cubin")
        image.write_bytes(cubin)
        done = subprocess.run([str(nvdisasm), "-c", str(image)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EmmyError(f"nvdisasm cannot read the cubin: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


@dataclass(frozen=True)
class _Instruction:
    address: int
    full: str  # the opcode with its modifiers
    opcode: str  # without modifiers; `@!PT LDS` for one that never executes (a filler ptxas places)
    branches_to: str  # a label, or empty


_SASS_LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+)?\s*([A-Z][\w.]*)([^;]*)")
_SASS_LABEL = re.compile(r"^(\.L_\w+):")
_SASS_TARGET = re.compile(r"`\((\.L_\w+)\)")


def _instructions(text: str, kernel: str) -> tuple[list[_Instruction], dict[str, int]]:
    """The instructions of one kernel up to the endless branch that pads its end, and the address of each label."""
    section = re.search(rf"^\.text\.{re.escape(kernel)}:$(.*?)(?=^//-----|\Z)", text, re.MULTILINE | re.DOTALL)
    if section is None:
        raise EmmyError(f"the cubin has no kernel '{kernel}'")
    found: list[_Instruction] = []
    labels: dict[str, int] = {}
    pending: list[str] = []
    for line in section[1].splitlines():
        if label := _SASS_LABEL.match(line):
            pending.append(label[1])
        elif match := _SASS_LINE.match(line):
            address, predicate, opcode = int(match[1], 16), match[2] or "", match[3].split(".")[0]
            labels.update(dict.fromkeys(pending, address))
            pending.clear()
            goal = _SASS_TARGET.search(match[4]) if opcode == "BRA" else None
            if goal and labels.get(goal[1]) == address and not predicate:
                break
            never = predicate in ("@!PT", "@!UPT")
            name = f"{predicate} {opcode}" if never else opcode
            found.append(_Instruction(address, match[3], name, goal[1] if goal else ""))
    return found, labels


def main_loop_mix(text: str, kernel: str) -> dict[str, int]:
    """How often each opcode stands in the hottest loop of the SASS `text` of `kernel`, most frequent first; modifiers are
    dropped (`HMMA.16816.F32` counts as `HMMA`), instructions predicated off for good are counted apart (`@!PT LDS`).

    Of the loops that hold no other loop with tensor-core instructions, the
    one with the most of them (the shortest, if equal). A loop is a backward branch and what it jumps over; regions
    with an EXIT are no loops but out-of-line code. Without tensor-core instructions it is the longest loop that holds
    no other; without loops, empty."""
    return dict(Counter(instruction.opcode for instruction in _main_loop(text, kernel)).most_common())


def main_loop_products(text: str, kernel: str) -> dict[str, int]:
    """The tensor-core instructions of that loop with their modifiers: `{"HMMA.16816.F16": 128, "HMMA.1688.F32": 32}`."""
    products = (i.full for i in _main_loop(text, kernel) if i.opcode in TENSOR_OPCODES)
    return dict(Counter(products).most_common())


def _main_loop(text: str, kernel: str) -> list[_Instruction]:
    found, labels = _instructions(text, kernel)
    loops: list[list[_Instruction]] = []
    for branch in found:
        start = labels.get(branch.branches_to, branch.address + 1)
        body = [instruction for instruction in found if start <= instruction.address <= branch.address]
        if body and all(instruction.opcode != "EXIT" for instruction in body):
            loops.append(body)
    if not loops:
        return []
    heavy = [loop for loop in loops if _tensor_count(loop)] or loops
    innermost = [loop for loop in heavy if not any(_holds(loop, other) for other in heavy if other is not loop)]
    return max(innermost, key=lambda loop: (_tensor_count(loop), -len(loop) if _tensor_count(loop) else len(loop)))


def _tensor_count(loop: list[_Instruction]) -> int:
    return sum(instruction.opcode in TENSOR_OPCODES for instruction in loop)


def _holds(loop: list[_Instruction], other: list[_Instruction]) -> bool:
    """Whether `other` lies inside `loop` and is shorter."""
    return loop[0].address <= other[0].address and other[-1].address <= loop[-1].address and len(other) < len(loop)


@dataclass(frozen=True)
class Occupancy:
    """Blocks and warps that one SM holds at a time, and what limits them: `registers`, `shared`, `threads` or
    `blocks`."""

    blocks: int
    warps: int
    limited_by: str


def occupancy(target: Target, registers: int, threads: int, shared_bytes: int) -> Occupancy:
    """How many blocks of `threads` threads with `registers` registers a thread and `shared_bytes` of shared memory
    fit on one SM.

    Registers are given to whole warps in units of 256 and belong to one of four sub-cores, so that the warps of a
    block count in fours: nine warps cost as much as twelve (CUDA occupancy calculator, "warp allocation
    granularity").
    """
    warps = -(-threads // 32)
    registers_per_warp = -(-registers * 32 // 256) * 256
    warps_per_sub_core = target.registers_per_sm // 4 // max(registers_per_warp, 256)
    limits = {
        "registers": warps_per_sub_core * 4 // (-(-warps // 4) * 4),
        "shared": target.shared_bytes_per_sm // (shared_bytes + target.reserved_shared_bytes),
        "threads": target.max_threads_per_sm // (warps * 32),
        "blocks": target.max_blocks_per_sm,
    }
    if shared_bytes > target.shared_bytes_per_block:
        limits["shared"] = 0
    limited_by = min(limits, key=lambda name: limits[name])
    return Occupancy(limits[limited_by], limits[limited_by] * warps, limited_by)
