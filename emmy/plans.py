"""A checked call as it is repeated: launches whose parameters lack nothing but addresses, and those made ready for some.

Parameters are handed to the driver as an array of pointers to their values. Such arrays are made once for each set of addresses
and never changed, so that a repeated call only looks them up, and threads need no lock.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from emmy.binding import ArrayInfo, BoundCall, BoundTensorMap
from emmy.overlap import Apart
from emmy.tensor_maps import HostMap

MAX_READY = 256
"""Sets of addresses that a plan keeps launches for."""

Addresses = tuple[int, ...]
"""Of arguments, results and temporaries, in this order."""


@dataclass(slots=True)
class PlannedMap:
    """A parameter that is a tensor map: its slot, whose it is, and those encoded so far by the tensor's address. A plan is
    for one set of shapes and strides, so the address is all that differs."""

    slot: int
    position: int  # in `Addresses`
    bound: BoundTensorMap
    encoded: dict[int, HostMap]


@dataclass(slots=True)
class Ready:
    """A launch with all its parameters: `start` takes a stream object, `pointers_address` and 0."""

    start: Callable[..., Any]
    pointers_address: int
    kept: tuple[Any, ...]
    """What the pointers point to."""


@dataclass(slots=True)
class PlannedLaunch:
    """A launch that lacks addresses. `values`: for each parameter a number of 8 bytes, of which the driver reads as many as the
    kernel declares, from the low end; `buffers` says which slot takes whose address, `maps` which points to whose tensor map."""

    start: Callable[..., Any]
    values: list[int]
    buffers: list[tuple[int, int]]  # (slot, index in `Addresses`)
    maps: list[PlannedMap]

    def ready(self, addresses: Addresses, encode: Callable[[PlannedMap, int], HostMap]) -> Ready:
        """The launch for these addresses; `encode` makes a tensor map that is not there yet."""
        count = max(len(self.values), 1)
        values = (ctypes.c_uint64 * count)(*self.values)
        first = ctypes.addressof(values)
        pointers = (ctypes.c_void_p * count)(*range(first, first + 8 * count, 8))
        for slot, position in self.buffers:
            values[slot] = addresses[position]
        hosts: list[HostMap] = []
        for planned in self.maps:
            address = addresses[planned.position]
            hosts.append(planned.encoded.get(address) or encode(planned, address))
            pointers[planned.slot] = hosts[-1].address
        return Ready(self.start, ctypes.addressof(pointers), (values, pointers, hosts))


@dataclass(slots=True)
class Plan:
    """All that a warm call needs."""

    call: BoundCall
    launches: list[PlannedLaunch]
    alignments: list[tuple[int, int]]  # (index into arguments + results, bytes), those above 1
    entry: str
    arrays: tuple[ArrayInfo, ...]  # of the arguments, and of results that the caller gave
    apart: Apart | None  # whether the caller's results have memory of their own
    others: dict[Addresses, Plan] = field(default_factory=dict["Addresses", "Plan"])
    """By what the addresses of `arrays` are multiples of: plans for addresses that are less aligned than this one wants."""

    made: dict[Addresses, Sequence[Ready]] = field(default_factory=dict["Addresses", "Sequence[Ready]"])
    """Launches by the addresses of a call, which have passed all checks."""

    def keep(self, addresses: Addresses, launches: Sequence[Ready]) -> Sequence[Ready]:
        """Keep launches for calls with the same addresses."""
        if len(self.made) >= MAX_READY:
            self.made.clear()
        self.made[addresses] = launches
        return launches

    def takes(self, addresses: Addresses) -> bool:
        """Whether they are as aligned as this plan wants."""
        return not any(addresses[position] % align for position, align in self.alignments)
