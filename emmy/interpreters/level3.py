"""Executes level-3 kernels on NumPy, in all three forms: halves, placed roles, and events.

Fragments are arrays, lanes do not exist; every warp of every role is a generator, and asynchronous copies land when `landing`
says: `late` (only what a wait names), `early` (at once) or `random`. `order` is which warp runs first whenever several can.
A program that depends on luck (a missing wait or barrier, an early release, a wrong count) raises `Level3Error`.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from emmy.dialects.async_copy import PipelineOp
from emmy.dialects.tile import KernelOp, TileType
from emmy.errors import EmmyError
from emmy.interpreters.host import run_host
from emmy.interpreters.level3_codegen import Program, RoleProgram, compile_kernel
from emmy.interpreters.level3_events import EventMachine
from emmy.interpreters.level3_machine import (
    LANDINGS,
    ORDERS,
    Level3Error,
    Machine,
    ProtocolMachine,
    Warp,
)
from emmy.interpreters.level3_memory import Barriers, Ring
from emmy.interpreters.scalars import numpy_dtype
from emmy.ir import verify_once
from emmy.locations import location_of
from emmy.passes.clusters import cluster_of
from emmy.passes.protocol import pipelines_of

__all__ = ["LANDINGS", "ORDERS", "Level3Error", "compile_kernel", "run_kernel", "run_module", "run_program"]

Array = NDArray[Any]
Running = Generator[str | None, None, None]


def run_kernel(
    kernel: KernelOp,
    args: list[Array],
    cta: int,
    ctas: int,
    landing: str = "late",
    order: str = "fixed",
    seed: int = 0,
) -> None:
    """Run one CTA of a kernel, with all of its cluster; `args` are the views' arrays, written in place. Raises Level3Error.

    `ctas` is the size of the launch that `cta` belongs to.
    """
    if not 0 <= cta < ctas:
        raise Level3Error(f"CTA {cta} of a launch of {ctas}")
    cta -= cta % cluster_of(kernel)
    run_program(compile_kernel(kernel), args, cta, ctas, landing, order, seed)


def run_module(
    module: ModuleOp, entry: str, arrays: Sequence[Array], landing: str = "late", order: str = "fixed", seed: int = 0
) -> list[Array]:
    """Run a host function whose kernels are at level 3, CTA after CTA, and give its results.

    Raises `EmmyError` for a module that `verify_module` refuses, a missing function and arrays that do not fit, `Level3Error` for
    a program that depends on luck.
    """
    verify_once(module)
    programs: dict[Operation, Program] = {}

    def run(kernel: Operation, args: list[Array], ctas: int) -> None:
        if kernel not in programs:
            programs[kernel] = compile_kernel(cast(KernelOp, kernel))
        for cta in range(0, ctas, cluster_of(cast(KernelOp, kernel))):
            run_program(programs[kernel], args, cta, ctas, landing, order, seed + cta)

    return run_host(module, entry, arrays, run)


def run_program(program: Program, args: list[Array], cta: int, ctas: int, landing: str, order: str, seed: int) -> None:
    """Run one CTA of a compiled kernel, or the cluster that begins with it."""
    if landing not in LANDINGS or order not in ORDERS:
        raise Level3Error(f"landing is one of {', '.join(LANDINGS)} and order one of {', '.join(ORDERS)}")
    size = cluster_of(program.kernel)
    if cta + size > ctas:
        raise Level3Error(f"a launch of {ctas} CTAs is no multiple of its clusters of {size}")
    chance = random.Random(seed)
    machines = [_machine(program, rank, size, landing, chance) for rank in range(size)]
    bodies: list[Running] = []
    for rank, machine in enumerate(machines):
        machine.cluster, machine.ctas = machines, ctas
        bodies += [role.body(machine, warp, args, cta + rank) for role, warp in _staff(program, machine.warps)]
    try:
        _schedule(machines, bodies, order, chance)
        for machine in machines:
            machine.finish()
    except (EmmyError, ZeroDivisionError) as found:
        zero = isinstance(found, ZeroDivisionError)
        error = Level3Error("a division by 0; divisors are positive") if zero else found
        if error.location is None and program.ops:
            error.location = location_of(program.ops[machines[0].everyone[machines[0].running].line])
        raise error from None


def _staff(program: Program, warps: list[Warp]) -> Iterator[tuple[RoleProgram, Warp]]:
    """Each warp with its role, in order."""
    roles = [role for role in program.roles for _ in range(role.shares)]
    return zip(roles, warps, strict=True)


def _warps(program: Program, rank: int) -> list[Warp]:
    """The warps of the CTA of a rank, counted through the cluster."""
    first = rank * sum(role.shares for role in program.roles)
    found: list[Warp] = []
    for role in program.roles:
        for share in range(role.shares):
            warp = Warp(first + len(found), role.name, share % role.warps, share, role.shares, turns=role.turns)
            found.append(warp)
    return found


def _machine(program: Program, rank: int, size: int, landing: str, chance: random.Random) -> Machine:
    """The CTA of a rank of a cluster. Parties are the warps of all CTAs, then their copy engines."""
    warps, pipelines = _warps(program, rank), pipelines_of(program.kernel)
    count, engines = size * len(warps), sum(op.stages.value.data for op in pipelines.values())
    parties, engine = count + size * engines, rank * engines
    rings: dict[str, Ring] = {}
    for name, op in pipelines.items():
        fields: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        for field, type_ in op.fields.data.items():
            tile = cast(TileType, type_)
            fields[field] = (tile.get_shape(), numpy_dtype(tile.element_type))
        stages = op.stages.value.data
        cluster = 1 if op.cluster is None else op.cluster.value.data
        outbound = op.outbound is not None
        ring = Ring(name, stages, outbound, fields, count, parties, count + engine, _barriers(op), cluster)
        engine += stages
        ring.fillers = sum(role.shares for role in program.roles if name in role.fills)
        # Where two roles read a ring, each ticket is for one of them.
        ring.readers = max((role.shares for role in program.roles if name in role.reads), default=0)
        rings[name] = ring
    if program.lowered:
        return EventMachine(rings, warps, landing, chance, parties)
    return ProtocolMachine(rings, warps, landing, chance)


def _barriers(op: PipelineOp) -> Barriers:
    """What passes have written about a pipeline."""
    span = None
    if op.base is not None and op.slot_bytes is not None:
        start = op.base.value.data
        span = (start, start + op.stages.value.data * op.slot_bytes.value.data)
    full, empty = (None if count is None else count.value.data for count in (op.full_count, op.empty_count))
    return Barriers(full, empty, op.tx_bytes is not None, span)


def _schedule(machines: list[Machine], bodies: list[Running], order: str, chance: random.Random) -> None:
    """Run all warps to their ends. Raises Level3Error when none of them can move."""
    alive, each = list(range(len(bodies))), len(machines[0].warps)
    if order == "reversed":
        alive.reverse()
    reasons: dict[int, str] = {}
    while alive:
        before, ended = sum(machine.steps for machine in machines), len(alive)
        for number in list(alive) if order != "random" else chance.sample(alive, len(alive)):
            machines[0].running = number
            _run(machines[number // each], bodies, number, order, chance, reasons, alive)
        steps = sum(machine.steps for machine in machines)
        if steps == before and len(alive) == ended and all(number in reasons for number in alive):
            everyone = machines[0].everyone
            blocked = [f"{everyone[n].role} warp {n}: {reasons[n]}" for n in sorted(alive)]
            raise Level3Error("deadlock: " + "; ".join(blocked))


def _run(
    machine: Machine,
    bodies: list[Running],
    number: int,
    order: str,
    chance: random.Random,
    reasons: dict[int, str],
    alive: list[int],
) -> None:
    """Run one warp until it is blocked or ends; in random order perhaps only a little."""
    reasons.pop(number, None)
    while True:
        machine.land_some()
        try:
            why = next(bodies[number])
        except StopIteration:
            alive.remove(number)

            return
        if why is not None:
            reasons[number] = why
            return
        if order == "random" and chance.random() < 0.5:
            return
