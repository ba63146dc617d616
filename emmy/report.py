"""What each kernel of an artefact takes, and why it is as it is: `module.report()`, `emmy compile FILE --report`.

Everything comes from the artefact, so that a module from the cache or from `emmy.load` has the same report: registers and
spills as ptxas counted them, shared memory of the launch, occupancy by `emmy.assemble.occupancy`, the main loop's
instructions as nvdisasm prints them, the schedule and its reason as the compiler noted them.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from emmy.artefact import Artefact, Expression, LaunchSpec
from emmy.assemble import Occupancy, find_tool, main_loop_mix, occupancy, sass
from emmy.binding import BoundCall
from emmy.targets import get_target

SHOWN_OPCODES = 10
"""How many opcodes of the main loop the text shows; the JSON has all."""

INFIX = {"add": " + ", "sub": " - ", "mul": " * "}


@dataclass(frozen=True)
class KernelReport:
    """One kernel.

    registers, spill_bytes (stored and loaded) and stack_bytes are per thread, shared_bytes per CTA (static and dynamic),
    None where no assembler ran. grids: CTAs of each launch, as expressions over the arguments' sizes. cluster: CTAs of a cluster,
    1 without clusters; clusters_held: how many the GPU of this machine holds at once, None where there is none. occupancy: CTAs
    and warps an SM holds at a time. main_loop: SASS opcode -> count, most frequent first, empty if no loop is left; None without
    cubin or nvdisasm. ptx_instructions: of the whole kernel. schedule: its fields; reason: why these. copies: how each field of
    a ring is moved (`tma`, `cp_async`, `plain`), which a schedule's `transport = auto` leaves to the tensors. variant: its name
    in `emmy.variants`, None for kernels that have none; takes: how the tensors of a call must lie for this kernel. times: by what
    a call chooses among several kernels that take it, as expressions over the sizes: the least.
    """

    name: str
    opt_level: int | None
    registers: int | None
    spill_bytes: int | None
    stack_bytes: int | None
    shared_bytes: int
    threads: int
    grids: tuple[str, ...]
    cluster: int
    clusters_held: int | None
    occupancy: Occupancy | None
    main_loop: dict[str, int] | None
    ptx_instructions: int | None
    schedule: dict[str, Any] | None
    reason: str | None
    copies: dict[str, str] | None
    variant: str | None
    takes: str | None
    times: tuple[str, ...] = ()

    def __str__(self) -> str:
        ctas = "1 CTA" if self.grids == ("1",) else f"{' and '.join(self.grids) or 'no'} CTAs"
        rows = [("launch", f"{ctas} of {self.threads} threads")]
        if self.cluster > 1:
            held = "" if self.clusters_held is None else f"; this GPU holds {self.clusters_held} at once"
            rows.append(("clusters", f"of {self.cluster} CTAs{held}"))
        if self.registers is not None:
            spilled = f"{self.spill_bytes} bytes spilled" if self.spill_bytes else "no spills"
            rows.append(("registers", f"{self.registers} a thread, {spilled} (ptxas -O{self.opt_level})"))
        rows.append(("shared", f"{self.shared_bytes} bytes a CTA"))
        if self.occupancy is not None:
            blocks, warps = self.occupancy.blocks, self.occupancy.warps
            ctas = "1 CTA" if blocks == 1 else f"{blocks} CTAs"
            rows.append(("occupancy", f"{ctas}, {warps} warps an SM, limited by {self.occupancy.limited_by}"))
        if self.main_loop is not None:
            counts = [f"{opcode} {count}" for opcode, count in self.main_loop.items()]
            more = ", ..." if len(counts) > SHOWN_OPCODES else ""
            total = sum(self.main_loop.values())
            shown = f"{total} instructions: {', '.join(counts[:SHOWN_OPCODES])}{more}"
            rows.append(("main loop", shown if counts else "none: no loop is left in it"))
        if self.ptx_instructions is not None:
            rows.append(("PTX", f"{self.ptx_instructions} instructions"))
        if self.schedule is not None:
            rows.append(("schedule", ", ".join(f"{name} = {value}" for name, value in self.schedule.items())))
        if self.reason is not None:
            rows.append(("reason", self.reason))
        if self.copies:
            rows.append(("copies", ", ".join(f"{field} by {transport}" for field, transport in self.copies.items())))
        if self.takes:
            rows.append(("takes", self.takes + (f" (variant {self.variant})" if self.variant else "")))
        rows += [("time", f"{time}; the kernel whose time is least is launched") for time in self.times]
        return "\n".join([self.name, *(f"  {label:10} {text}" for label, text in rows)])


@dataclass(frozen=True)
class Report:
    """The kernels of a module; `str()` of it is the text that the command line prints."""

    target: str
    kernels: tuple[KernelReport, ...]

    def __str__(self) -> str:
        return f"for {self.target}\n" + "\n".join(map(str, self.kernels))

    def as_json(self) -> dict[str, Any]:
        """The report as data that `json.dumps` takes."""
        return asdict(self)


class Device(Protocol):
    """What a report asks a GPU (`emmy.runtime.CudaModule`)."""

    def clusters(self, launch: LaunchSpec) -> int:
        """How many clusters of a launch it holds at once."""
        ...


def make_report(artefact: Artefact, device: Device | None = None) -> Report:
    """The report of every kernel that an artefact holds; `device`: the GPU to ask what it holds. Raises `EmmyError` for a cubin
    that cannot be read."""
    launches: dict[str, list[LaunchSpec]] = {}
    for entry in artefact.entries.values():
        for first in entry["launches"]:
            for launch in (first, *first.get("otherwise", [])):
                launches.setdefault(launch["kernel"], []).append(launch)
    listings: dict[str, str | None] = {}
    names = dict.fromkeys([*artefact.kernels, *launches])
    kernels = [_kernel(artefact, name, launches.get(name, []), listings, device) for name in names]
    return Report(artefact.target, tuple(kernels))


def _kernel(
    artefact: Artefact,
    name: str,
    launches: list[LaunchSpec],
    listings: dict[str, str | None],
    device: Device | None,
) -> KernelReport:
    notes: dict[str, Any] = artefact.kernels.get(name, {})
    used: dict[str, int] = artefact.resources.get(name, {})
    image = notes["image"] if "image" in notes else launches[0]["image"]
    shared = used.get("shared_bytes", 0) + max((launch["shared_bytes"] for launch in launches), default=0)
    threads = max((math.prod(launch["block"]) for launch in launches), default=0)
    registers = used.get("registers")
    spills = [value for field, value in used.items() if field.startswith("spill_")]
    if image not in listings:
        cubin = artefact.images[image].cubin
        listings[image] = sass(cubin) if cubin is not None and find_tool("nvdisasm") is not None else None
    listing = listings[image]
    clusters = [launch for launch in launches if "cluster" in launch]
    fits = occupancy(get_target(artefact.target), registers, threads, shared) if registers and threads else None
    return KernelReport(
        name=name,
        opt_level=notes.get("opt_level"),
        registers=registers,
        spill_bytes=sum(spills) if spills else None,
        stack_bytes=used.get("stack_bytes"),
        shared_bytes=shared,
        threads=threads,
        grids=tuple(dict.fromkeys(_grid(launch) for launch in launches)),
        cluster=max((math.prod(launch.get("cluster", ())) for launch in launches), default=1),
        clusters_held=min((device.clusters(launch) for launch in clusters), default=None) if device else None,
        occupancy=fits,
        main_loop=main_loop_mix(listing, name) if listing is not None else None,
        ptx_instructions=count_ptx(artefact.images[image].ptx, name),
        schedule=notes.get("schedule"),
        reason=notes.get("reason"),
        copies=notes.get("copies"),
        variant=next((launch["variant"] for launch in launches if "variant" in launch), None),
        takes="; ".join(dict.fromkeys(show_wants(launch) for launch in launches)) or None,
        times=tuple(dict.fromkeys(show_expression(launch["time"]) for launch in launches if "time" in launch)),
    )


def show_wants(launch: LaunchSpec) -> str:
    """What a launch's kernel wants of its tensors, in words: `a, b: row-major, at multiples of 16 bytes`."""
    names: dict[str, list[str]] = {}
    for name, wanted in launch.get("wants", {}).items():
        strides = wanted.get("strides")
        words = ["row-major" if strides is None else "any strides" if strides[-1] is None else "rows without gaps"]
        if "align" in wanted:
            words.append(f"at multiples of {wanted['align']} bytes")
        if "rows" in wanted:
            words.append(f"rows and strides of whole {wanted['rows']} bytes")
        names.setdefault(", ".join(words), []).append(name)
    return "; ".join(f"{', '.join(tensors)}: {words}" for words, tensors in names.items())


def show_choice(call: BoundCall) -> list[str]:
    """Which kernels a call runs, a line each, and why not those that are preferred to them, or take longer."""
    lines: list[str] = []
    for launch in call.launches:
        kernels: dict[str, list[str]] = {}
        for kernel, reason in launch.passed_over:
            kernels.setdefault(reason, []).append(kernel)
        reasons = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in kernels.items())
        lines.append(launch.kernel + (f", not {reasons}" if reasons else ""))
    return lines


def _grid(launch: LaunchSpec) -> str:
    sizes = [size for size in launch["grid"] if size != 1] or [1]
    return " x ".join(show_expression(size) for size in sizes)


def show_expression(expression: Expression) -> str:
    """A size expression of an artefact as a formula: `ceil(a.0 / 128) * 16`, where `a.0` is dimension 0 of `a`."""
    if isinstance(expression, int):
        return str(expression)
    operation, *operands = expression
    if operation == "sms":
        return "SMs"
    if operation in ("dim", "stride"):
        return f"{operands[0]}.{operands[1]}" if operation == "dim" else f"stride({operands[0]}.{operands[1]})"
    shown = [show_expression(operand) for operand in operands]
    if operation in INFIX:
        inner = [f"({s})" if operation != "add" and re.search(r" [+-] ", s) and s[-1] != ")" else s for s in shown]
        return INFIX[operation].join(inner)
    if operation in ("ceildiv", "floordiv"):
        return f"{operation.removesuffix('div')}({shown[0]} / {shown[1]})"
    return f"{operation}({', '.join(shown)})"


def count_ptx(ptx: str | None, kernel: str) -> int | None:
    """Instructions of a kernel in PTX text as our printer writes it, one a line; None if it is not there."""
    body = re.search(rf"^\.?(?:visible )?\.entry {re.escape(kernel)}\b(.*?)^}}", ptx or "", re.MULTILINE | re.DOTALL)
    if body is None:
        return None
    return len(re.findall(r"^\s*(?:@!?%\w+\s+)?[a-z][\w.:]*(?:\s[^\n]*)?;", body[1], re.MULTILINE))
