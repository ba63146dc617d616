"""cp.async.bulk and cp.async.bulk.tensor in both directions, their groups, and prefetch.tensormap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from emmy.emulator.copy_operations import without_policy
from emmy.emulator.datatypes import TYPES, Array
from emmy.emulator.decode import Execute, Operation, Spelling, instruction
from emmy.emulator.faults import Fault
from emmy.emulator.machine import Machine
from emmy.emulator.shared_memory import WINDOW
from emmy.emulator.syntax import Address, Operand, Symbol, TensorAddress
from emmy.emulator.tensor_map import BoundMap

S32, U16, U32 = TYPES["s32"], TYPES["u16"], TYPES["u32"]
_RANKS = tuple(f"{n}d" for n in range(1, 6))
_ALIGNMENT = 16  # of cp.async.bulk: addresses and size, bytes

# One lane's part of an instruction: (warp, lane).
Act = Callable[[int, int], None]


def _for_each_lane(machine: Machine, act: Act) -> Execute:
    """Every active lane issues its own copy, in order."""

    def execute(low: int, high: int, mask: Array | None) -> None:
        for warp, lane in zip(*(x.tolist() for x in machine.lanes(low, high, mask)), strict=True):
            act(warp, lane)

    return execute


def _lane_address(machine: Machine, address: Address, shared: bool = False) -> Callable[[int, int], int]:
    """The address of one lane; `shared`: in its CTA's shared memory."""
    compute = machine.shared_address(address) if shared else machine.address(address)
    return lambda warp, lane: int(compute(warp, warp + 1, None)[lane])


def _destination_space(spelling: Spelling) -> None:
    """.shared::cluster, an address of the own CTA, or .shared::cta where the ISA has it."""
    if spelling.require("shared::cluster", "shared::cta") == "shared::cta":
        spelling.available((8, 6), 90, what="the destination space .shared::cta")


# Tensor copies


@dataclass
class _Box:
    """[map, {c0, ..}] bound to a machine."""

    maps: dict[int, BoundMap]
    address: Callable[[int, int], int]
    coordinates: list[Array]

    def find(self, warp: int, lane: int) -> tuple[BoundMap, list[int]]:
        """The map and the coordinates, outermost first, of one lane."""
        map_ = find_map(self.maps, self.address(warp, lane), warp, lane)
        if map_.rank != len(self.coordinates):
            raise Fault(f"a tensor map of {map_.rank} dimensions in a copy of {len(self.coordinates)}", warp, lane)
        return map_, [int(c[warp, lane]) for c in reversed(self.coordinates)]


def find_map(maps: dict[int, BoundMap], address: int, warp: int, lane: int) -> BoundMap:
    """The tensor map at a generic address. Raises Fault."""
    if address not in maps:
        raise Fault(
            f"no tensor map is at the generic address {address:#x} (a parameter's address becomes generic by "
            "cvta.param.u64)",
            warp,
            lane,
        )
    return maps[address]


def _tensor_address(spelling: Spelling, operand: Operand, rank: int) -> TensorAddress:
    if not isinstance(operand, TensorAddress):
        spelling.fail("a tensor address [map, {coordinates}] is expected")
    if isinstance(operand.map.base, Symbol):
        spelling.fail("the tensor map's address must be generic: mov it to a register and use cvta.param.u64")
    spelling.address(operand.map, "global")
    if len(operand.coordinates) != rank:
        spelling.fail(f"{rank} coordinates are expected, {len(operand.coordinates)} given")
    for coordinate in operand.coordinates:
        spelling.check(coordinate, S32)
    return operand


def _bind_box(machine: Machine, tensor: TensorAddress) -> _Box:
    coordinates = [machine.source(c, S32) for c in tensor.coordinates]
    return _Box(machine.maps, _lane_address(machine, tensor.map), coordinates)


@instruction("cp.async.bulk.tensor")
def decode_tensor_copy(spelling: Spelling) -> Operation:
    """[shared], [map, {..}], [mbarrier] loads a box, with .multicast::cluster and a mask into several CTAs of the cluster;
    [map, {..}], [shared] stores one. im2col, gather and reductions are not known here."""
    spelling.available((8, 0), 90)
    rank = int(spelling.require(*_RANKS)[0])
    spelling.take("tile")
    if spelling.take("mbarrier::complete_tx::bytes"):
        return _tensor_load(spelling, rank)
    return _tensor_store(spelling, rank)


def _tensor_load(spelling: Spelling, rank: int) -> Operation:
    multicast = bool(spelling.take("multicast::cluster"))
    _destination_space(spelling)
    spelling.require("global")
    target, source, barrier, *mask = without_policy(spelling, 3 + multicast)
    for operand in mask:
        spelling.check(operand, U16)
    to, at = spelling.address(target, "shared"), spelling.address(barrier, "shared")
    tensor = _tensor_address(spelling, source, rank)
    line = spelling.source.line

    def bind(machine: Machine) -> Execute:
        targets, barriers = _lane_address(machine, to, shared=True), _lane_address(machine, at, shared=True)
        box = _bind_box(machine, tensor)
        masks = [machine.source(operand, U16) for operand in mask]

        def act(warp: int, lane: int) -> None:
            map_, corner = box.find(warp, lane)
            ranks = _ranks(machine, int(masks[0][warp, lane]), warp, lane) if masks else [machine.cluster.rank_of(warp)]
            for rank in ranks:
                # The same offset in every CTA, of the box and of the mbarrier.
                away = (rank - machine.cluster.rank_of(warp)) * WINDOW
                place = machine.bulk.place(targets(warp, lane) + away, map_.chunks, map_.alignment, warp, lane, line)
                machine.bulk.load(place, lambda: map_.read(corner), barriers(warp, lane) + away)

        return _for_each_lane(machine, act)

    return Operation("cp.async.bulk.tensor", bind, destinations=0, shared_bytes=16)


def _ranks(machine: Machine, mask: int, warp: int, lane: int) -> list[int]:
    """The CTAs that a multicast's mask names. Raises Fault for one that is not in the cluster, or has ended."""
    ranks = [rank for rank in range(16) if mask >> rank & 1]
    if not ranks:
        raise Fault("the mask of a multicast names no CTA", warp, lane)
    for rank in ranks:
        machine.cluster.check_rank(rank, warp, lane)
    return ranks


def _tensor_store(spelling: Spelling, rank: int) -> Operation:
    for part in ("global", "shared::cta", "bulk_group"):
        spelling.require(part)
    target, source = without_policy(spelling, 2)
    tensor = _tensor_address(spelling, target, rank)
    from_ = spelling.address(source, "shared")
    line = spelling.source.line

    def bind(machine: Machine) -> Execute:
        sources, box = _lane_address(machine, from_, shared=True), _bind_box(machine, tensor)

        def act(warp: int, lane: int) -> None:
            map_, corner = box.find(warp, lane)
            place = machine.bulk.place(sources(warp, lane), map_.chunks, map_.alignment, warp, lane, line)
            machine.bulk.store(place, map_.covered(corner), lambda values: map_.write(corner, values))

        return _for_each_lane(machine, act)

    return Operation("cp.async.bulk.tensor", bind, destinations=0, shared_bytes=16, reads_late=True)


@instruction("prefetch")
def decode_prefetch(spelling: Spelling) -> Operation:
    """prefetch.tensormap [a] and prefetch.param.tensormap [a]: a hint, but the address must be a tensor map's."""
    spelling.available((8, 0), 90)
    spelling.require("tensormap")
    parameter = bool(spelling.take("param"))
    spelling.finish(1)
    operand = spelling.operands[0]
    if not isinstance(operand, Address) or (isinstance(operand.base, Symbol) and not parameter):
        spelling.fail("the generic address of a tensor map is expected (a parameter's is prefetch.param.tensormap)")

    def bind(machine: Machine) -> Execute:
        addresses = _lane_address(machine, operand)

        def act(warp: int, lane: int) -> None:
            address = addresses(warp, lane)
            find_map(machine.maps, machine.generic(address) if parameter else address, warp, lane)

        return _for_each_lane(machine, act)

    return Operation("prefetch.tensormap", bind, destinations=0)


# Plain bulk copies


@instruction("cp.async.bulk")
def decode_bulk_copy(spelling: Spelling) -> Operation:
    """[shared], [global], size, [mbarrier] loads, [global], [shared], size stores contiguous bytes."""
    spelling.available((8, 0), 90)
    loads = bool(spelling.take("mbarrier::complete_tx::bytes"))
    if loads:
        _destination_space(spelling)
        spelling.require("global")
    else:
        for part in ("global", "shared::cta", "bulk_group"):
            spelling.require(part)
    operands = without_policy(spelling, 4 if loads else 3)
    spaces = ("shared", "global") if loads else ("global", "shared")
    first, second = (spelling.address(o, s) for o, s in zip(operands, spaces, strict=False))
    to, from_ = (first, second) if loads else (second, first)
    spelling.check(operands[2], U32)
    barrier = spelling.address(operands[3], "shared") if loads else to
    line = spelling.source.line

    def bind(machine: Machine) -> Execute:
        inner, barriers = _lane_address(machine, to, shared=True), _lane_address(machine, barrier, shared=True)
        outer = _lane_address(machine, from_)
        sizes = machine.source(operands[2], U32)

        def act(warp: int, lane: int) -> None:
            size, address = int(sizes[warp, lane]), outer(warp, lane)
            if not size or size % _ALIGNMENT or address % _ALIGNMENT:
                raise Fault(
                    f"misaligned: {size} bytes at global address {address:#x}, a bulk copy moves multiples of "
                    f"{_ALIGNMENT} bytes",
                    warp,
                    lane,
                )
            machine.memory.window(address, [size], [1])  # a bad address is the fault of this line, not of the landing
            chunks = np.arange(0, size, 16)
            place = machine.bulk.place(inner(warp, lane), chunks, _ALIGNMENT, warp, lane, line)
            if loads:
                machine.bulk.load(place, lambda: _contiguous(machine, address, size), barriers(warp, lane))
            else:
                every: Array = np.ones(chunks.size, np.bool_)
                machine.bulk.store(place, every, lambda values: _put(machine, address, values))

        return _for_each_lane(machine, act)

    return Operation("cp.async.bulk", bind, destinations=0, shared_bytes=16, reads_late=not loads)


def _contiguous(machine: Machine, address: int, size: int) -> Array:
    values, initialised = machine.memory.window(address, [size], [1])
    if initialised is not None and not initialised.all():
        raise Fault(f"uninitialised: {size} bytes at global address {address:#x} were not all written")
    return values.copy()


def _put(machine: Machine, address: int, values: Array) -> None:
    target, initialised = machine.memory.window(address, [values.size], [1])
    target[...] = values
    if initialised is not None:
        initialised[...] = True


# Groups


@instruction("cp.async.bulk.commit_group")
def decode_bulk_commit(spelling: Spelling) -> Operation:
    """Close each thread's group of the stores that it issued since its last commit."""
    spelling.available((8, 0), 90)
    spelling.finish(0)

    def bind(machine: Machine) -> Execute:
        def execute(low: int, high: int, mask: Array | None) -> None:
            for warp, lanes in machine.lanes_by_warp(low, high, mask):
                machine.bulk.commit(warp, lanes)

        return execute

    return Operation("cp.async.bulk.commit_group", bind, destinations=0)


@instruction("cp.async.bulk.wait_group")
def decode_bulk_wait(spelling: Spelling) -> Operation:
    """Wait until at most N of the thread's youngest groups are outstanding; .read: until the others were read."""
    spelling.available((8, 0), 90)
    read_only = bool(spelling.take("read"))
    spelling.finish(1)
    pending = spelling.integer(spelling.operands[0])

    def bind(machine: Machine) -> Execute:
        def execute(low: int, high: int, mask: Array | None) -> None:
            for warp, lanes in machine.lanes_by_warp(low, high, mask):
                machine.bulk.wait(warp, lanes, pending, read_only)

        return execute

    return Operation("cp.async.bulk.wait_group", bind, destinations=0)
