"""What a target can run of a schedule: transports, shared memory, registers and how roles share them, limits of a CTA."""

from __future__ import annotations

from dataclasses import dataclass, replace

from emmy.schedules import NO_HYBRID_WARPGROUPS, WARPGROUP_ATOM, Schedule
from emmy.targets import Target

AUTO_TRANSPORT = {"sm_80": "cp_async", "sm_89": "cp_async", "sm_90a": "tma", "sm_120a": "tma"}
"""Target name -> what `transport = auto` means; with `tma`, tensors that TMA cannot move are copied by cp.async."""


def transport_on(schedule: Schedule, target: Target) -> str:
    """What moves a schedule's tiles on a target: `auto` by its name."""
    return AUTO_TRANSPORT[target.name] if schedule.transport == "auto" else schedule.transport


MBARRIER_BYTES = 8
"""Bytes of shared memory of an mbarrier: a slot has one if TMA fills it, two if another role reads it than fills it."""

PRODUCER_REGISTERS = {"tma": 24, "cp_async": 40, "plain": 72}
"""Transport -> registers of a thread that only fills rings: TMA needs a few counters, copies by threads addresses."""

MOST_CONSUMER_REGISTERS = 240
"""More than the 255 that an instruction can name, rounded down to what `setmaxnreg` takes, would be idle."""

ADDRESS_REGISTERS = 24
"""Registers that a product's main loop needs beside accumulators and fragments: addresses, counters (measured: 20-30)."""

SHARED_ALIGNMENT = 1024
"""Bytes at a multiple of which each ring begins in shared memory (`allocate-shared`; the 128-byte swizzle wants it)."""

PARTIAL_SUM_BYTES = 4
"""Bytes of an f32 sum that the CTAs of a cluster exchange."""

SHARED_ROW_BYTES = 32
"""What each row of a tile takes at least in shared memory, and a multiple of (`emmy.layout.shared`)."""

SHARED_SLOT_BYTES = 128
"""What a slot takes a multiple of: TMA writes to such addresses."""


@dataclass(frozen=True)
class Epilogue:
    """What a product's kernel does with its sums, as far as shared memory goes.

    result_bytes: of one element of the widest result, which is staged over the drained operand ring.
    tensors: of each tensor that it reads beside the product's operands, whether its tile spans rows and columns, and the
    bytes of one element; each tile has a place of its own, so that it can arrive during the main loop.
    further_bytes: of one element of all other results; where the ring fills again meanwhile, each has a place of its own.
    columns_first: whether columns of operand b lie beside each other, where they are padded to whole units of 32 bytes.
    """

    result_bytes: int = 2
    tensors: tuple[tuple[bool, bool, int], ...] = ()
    further_bytes: int = 0
    columns_first: bool = False


def shared_bytes(schedule: Schedule, epilogue: Epilogue = Epilogue(), operand_bytes: int = 2) -> int:
    """Bytes of shared memory of a product whose operands have `operand_bytes` an element, as `allocate-shared` places its rings:
    the largest first, each where those before it end; mbarriers behind them."""
    rows, columns, depth = schedule.block
    own = columns // schedule.split_k
    row_bytes = columns * operand_bytes
    row_bytes = _round_up(row_bytes, SHARED_ROW_BYTES) if epilogue.columns_first else row_bytes
    rings = [schedule.stages * (rows * operand_bytes + row_bytes) * depth]
    for spans_rows, spans_columns, element in epilogue.tensors:
        row_bytes = _round_up((own if spans_columns else 1) * element, SHARED_ROW_BYTES)
        rings.append(schedule.groups * _round_up((rows if spans_rows else 1) * row_bytes, SHARED_SLOT_BYTES))
    if schedule.split_k > 1:
        # What the other CTAs of the cluster have of this one's columns arrives while the ring is in use.
        rings.append(rows * (columns - own) * PARTIAL_SUM_BYTES)
    result, further = (
        rows * _round_up(staged_columns(schedule) * element, SHARED_ROW_BYTES)
        for element in (epilogue.result_bytes, epilogue.further_bytes)
    )
    if schedule.persistent:
        # A CTA that goes on with the next tile fills the ring while the result leaves: they do not share bytes.
        rings += [result, further] * schedule.groups
    end = 0
    for size in sorted(rings, reverse=True):
        end = _round_up(end, SHARED_ALIGNMENT) + size if size else end
    return max(end, result) + _barriers(schedule, epilogue) * MBARRIER_BYTES


def staged_columns(schedule: Schedule) -> int:
    """Columns of a CTA's result that are in shared memory at once."""
    own = schedule.block[1] // schedule.split_k
    return (min(2 * schedule.store_columns, own) or own) if schedule.epilogue == "shared" else 0


def _barriers(schedule: Schedule, epilogue: Epilogue) -> int:
    """Mbarriers of a product's rings: two of a slot that another role fills, one of a slot that TMA fills, and of what CTAs of
    a cluster exchange."""
    # A row of one element, or one that is padded, is nothing that TMA moves.
    own = schedule.block[1] // schedule.split_k
    tensors = [
        spans_columns and own * element % SHARED_ROW_BYTES == 0 for _, spans_columns, element in epilogue.tensors
    ]
    slots = [True] * schedule.stages + tensors * schedule.groups
    if schedule.roles == "specialized":
        count = 2 * len(slots)
    else:
        count = sum(slots) if schedule.transport == "tma" else 0
    return count + (schedule.split_k > 1)


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step


def least_registers(schedule: Schedule, f16_sums: bool = False, partial_bits: int = 0) -> int:
    """32-bit registers that a thread of a product cannot do without: accumulators, one set of fragments, addresses.

    `partial_bits`: of the partial sums that they are added up from, 0 if there are none; those of warpgroups are whole.
    """
    rows, columns = (schedule.block[axis] // schedule.warps[axis] for axis in (0, 1))
    accumulators = rows * columns // (64 if f16_sums else 32)
    if schedule.atom == WARPGROUP_ATOM:
        accumulators += rows * columns * partial_bits // 1024
    operands = 0 if schedule.atom == WARPGROUP_ATOM else (rows + columns) * 16 // 64
    return accumulators + operands + ADDRESS_REGISTERS


def entry_registers(target: Target, threads: int, ctas: int = 1) -> int:
    """Registers that ptxas gives each thread at entry, with so many CTAs on an SM: it rounds down to a multiple of 8."""
    return min(target.registers_per_sm // (threads * ctas), target.registers_per_thread) // 8 * 8


@dataclass(frozen=True)
class RegisterSplit:
    """Registers of a thread of each role, for `setmaxnreg`."""

    producer: int
    consumer: int


def register_split(schedule: Schedule, target: Target) -> RegisterSplit | str | None:
    """How specialised roles share the registers; a sentence about what is wrong with what the schedule asks for.

    The pool is what all threads have at entry. None where nothing is to be gained, or can be: the target has no
    `setmaxnreg`, a role is no whole number of warpgroups, or each thread has all registers that it can use anyway.
    """
    asked = schedule.producer_regs or schedule.consumer_regs
    warps = schedule.threads // 32 // schedule.groups, schedule.producer_warps
    if not target.setmaxnreg or any(count % 4 for count in warps):
        if not asked:
            return None
        if not target.setmaxnreg:
            return f"producer_regs and consumer_regs need setmaxnreg, which {target.name} has not"
        return f"setmaxnreg is for whole warpgroups of 4 warps, and the roles have {warps[0]} and {warps[1]}"
    entry = entry_registers(target, schedule.cta_threads, schedule.min_ctas)
    if not asked and entry >= MOST_CONSUMER_REGISTERS:
        return None
    pool = entry * schedule.cta_threads
    transport = transport_on(schedule, target)
    producer = schedule.producer_regs or PRODUCER_REGISTERS[transport]
    left = (pool - 32 * warps[1] * producer) // schedule.threads // 8 * 8
    consumer = schedule.consumer_regs or min(left, MOST_CONSUMER_REGISTERS)
    if consumer > left:
        return (
            f"{warps[0]} warps with {consumer} registers a thread and {warps[1]} with {producer} are more than the "
            f"{pool} registers that {schedule.cta_threads} threads start with"
        )
    return RegisterSplit(producer, consumer)


def problem_on_target(
    schedule: Schedule,
    target: Target,
    epilogue: Epilogue = Epilogue(),
    f16_sums: bool = False,
    operand_bytes: int = 2,
    partial_bits: int = 0,
) -> str | None:
    """One sentence about why a target cannot run a product with this schedule, or None.

    `f16_sums`: whether accumulators are f16. `operand_bytes`: of an element. `partial_bits`: of the partial sums of
    the hybrid policy, 0 for others.
    """
    if schedule.share != "none" and not target.multicast:
        return f"share = {schedule.share} needs the multicast of sm_90a, and the target is {target.name}"
    if schedule.split_k > 1:
        if not target.clusters:
            return (
                f"split_k = {schedule.split_k} shares a tile among the CTAs of a cluster, which needs sm_90 or later, "
                f"and the target is {target.name}"
            )
        if f16_sums:
            return f"split_k = {schedule.split_k} adds up sums in f32; use accumulate<f32>"
    if (problem := problem_with_parts(schedule, schedule.block[1])) is not None:
        return problem
    if schedule.transport == "tma" and not target.tma:
        return f"transport = tma needs sm_90 or later, and the target is {target.name}; use cp_async"
    if schedule.transport == "tma" and staged_columns(schedule) * epilogue.result_bytes % SHARED_ROW_BYTES:
        return (
            f"transport = tma stores rows of whole {SHARED_ROW_BYTES} bytes, and {staged_columns(schedule)} columns of the "
            f"result leave together; use auto"
        )
    needed = shared_bytes(replace(schedule, transport=transport_on(schedule, target)), epilogue, operand_bytes)
    columns = schedule.block[1] // schedule.warps[1] // (2 if f16_sums else 1)
    return problem_with_limits(schedule, target, needed, least_registers(schedule, f16_sums, partial_bits), columns)


INSTRUCTION_REGISTERS = 30
"""Registers that ptxas wants for a `wgmma` beside its f32 sums, of those at the kernel's entry (C7602: 158 for 256 columns)."""

INSTRUCTION_COLUMNS = 256
"""Columns of a `wgmma` at most; more are several of one width."""


def instruction_registers(columns: int) -> int:
    """Registers that one of the instructions which multiply so many columns names."""
    return columns // max(-(-columns // INSTRUCTION_COLUMNS), 1) // 2 + INSTRUCTION_REGISTERS


def problem_with_limits(schedule: Schedule, target: Target, shared: int, registers: int, columns: int) -> str | None:
    """One sentence about which limit of a CTA of the target a kernel exceeds, or None.

    shared: bytes of shared memory that it needs. registers: 32-bit registers that each of its math threads needs. columns: of
    its widest sums in each warp, as if they were f32.
    """
    ctas, beside = schedule.min_ctas, f", one of {schedule.min_ctas} on an SM," if schedule.min_ctas > 1 else ""
    limit = min(target.shared_bytes_per_block, target.shared_bytes_per_sm // ctas - target.reserved_shared_bytes)
    if shared > limit:
        return (
            f"it needs {shared} bytes of shared memory, and a CTA of {target.name}{beside} has {limit}; "
            f"reduce block or stages"
        )
    limit = min(target.max_threads, target.max_threads_per_sm // ctas)
    if schedule.cta_threads > limit:
        return f"it has {schedule.cta_threads} threads, and a CTA of {target.name}{beside} has at most {limit}"
    limit = min(target.registers_per_thread, target.registers_per_sm // (schedule.cta_threads * ctas))
    if schedule.roles == "specialized":
        split = register_split(schedule, target)
        if isinstance(split, str):
            return split
        limit = min(split.consumer, target.registers_per_thread) if split else limit
    entry = entry_registers(target, schedule.cta_threads, ctas)
    if schedule.atom == WARPGROUP_ATOM and instruction_registers(columns) > entry:
        return (
            f"a product of {columns} columns names {instruction_registers(columns)} registers, and {schedule.cta_threads} threads"
            f"{beside} start with {entry} each; use fewer warps or a smaller block"
        )
    if registers > limit:
        return (
            f"each thread needs at least {registers} registers and can have {limit}; use more warps or a smaller block"
        )
    return None


def problem_with_parts(schedule: Schedule, columns: int) -> str | None:
    """One sentence about why a tile of the result, of so many columns, does not leave in parts of `store_columns`, or None."""
    if schedule.store_columns and (
        columns % schedule.store_columns or schedule.store_columns % 16 or schedule.warps[1] > 1
    ):
        return (
            f"store_columns is 0, or a multiple of 16 that divides the columns of a tile where one warp holds a whole row, "
            f"got {schedule.store_columns} of {columns} columns for {schedule.warps[1]} warps"
        )
    return None


def problem_with_warpgroups(schedule: Schedule, target: Target, hybrid: bool) -> str | None:
    """One sentence about why products of warpgroups, if the schedule asks for them, cannot be, or None."""
    if schedule.atom != WARPGROUP_ATOM:
        return None
    if not target.wgmma:
        return f"atom = {WARPGROUP_ATOM} needs sm_90a, and the target is {target.name}"
    return NO_HYBRID_WARPGROUPS if hybrid else None
