"""Random protocols: rings of random depth, filled in random order, read by random loops. What the verifier accepts is placed, and
all forms read every ticket in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import protocol_support as support
from hypothesis import given, settings
from hypothesis import strategies as st

from emmy.dialects.tile import KernelOp
from emmy.errors import EmmyError
from emmy.interpreters.level3 import LANDINGS, ORDERS, run_kernel
from emmy.ir import parse_module

VIEW = "!tile.view<?x16xf16>"
SKEWED = "!tile.view<?x16xf16, strides [20, 1]>"
"""Rows that TMA cannot read: 40 bytes apart."""
ACC = "!mma.fragment<16x16xf32, c, m16n8k16>"
Body = list["Wait | Release | Loop"]


@dataclass
class Wait:
    """Wait for ring `ring` as ticket `number` of its body, and fold what is read into the ring's sum."""

    ring: int
    number: int


@dataclass
class Release:
    ring: int
    number: int


@dataclass
class Loop:
    trips: int
    body: Body = field(default_factory=list)


@dataclass
class Protocol:
    stages: list[int]
    producers: list[list[int]]
    """Rings that one producer loop fills, in the order of its body."""
    consumer: Body

    def tickets(self) -> list[int]:
        counts = [0] * len(self.stages)

        def count(body: Body, times: int) -> None:
            for step in body:
                if isinstance(step, Loop):
                    count(step.body, times * step.trips)
                elif isinstance(step, Wait):
                    counts[step.ring] += times

        count(self.consumer, 1)
        return counts


@st.composite
def bodies(draw: st.DrawFn, rings: int, depth: int) -> Body:
    """Waits and releases in random order (a release after its wait, all before the end), and loops."""
    body: Body = []
    held: list[tuple[int, int]] = []
    for number in range(draw(st.integers(0, 3))):
        choice = draw(st.integers(0, 3 if depth else 1))
        if choice < 2:
            ring = draw(st.integers(0, rings - 1))
            body.append(Wait(ring, number))
            held.append((ring, number))
        else:
            body.append(Loop(draw(st.integers(0, 4)), draw(bodies(rings, depth - 1))))
        while held and draw(st.booleans()):
            body.append(Release(*held.pop(0)))
    return body + [Release(*ticket) for ticket in held]


@st.composite
def protocols(draw: st.DrawFn) -> Protocol:
    rings = draw(st.integers(1, 3))
    consumer = [step for _ in range(draw(st.integers(1, 3))) for step in draw(bodies(rings, 2))]
    consumer.append(Loop(draw(st.integers(1, 4)), [x for r in range(rings) for x in (Wait(r, r), Release(r, r))]))
    protocol = Protocol([draw(st.integers(1, 4)) for _ in range(rings)], [], rename(consumer))
    groups: dict[int, list[int]] = {}
    for ring, count in enumerate(protocol.tickets()):
        # Rings with equal counts may share a producer loop.
        groups.setdefault(count if draw(st.booleans()) else -1 - ring, []).append(ring)
    protocol.producers = [draw(st.permutations(group)) for group in groups.values()]
    return protocol


def rename(body: Body) -> Body:
    """Give every wait of a body a number of its own."""
    numbers: dict[tuple[int, int], int] = {}
    result: Body = []
    for step in body:
        if isinstance(step, Loop):
            result.append(Loop(step.trips, rename(step.body)))
        elif isinstance(step, Wait):
            numbers[step.ring, step.number] = len(result)
            result.append(Wait(step.ring, len(result)))
        else:
            result.append(Release(step.ring, numbers[step.ring, step.number]))
    return result


class Text:
    """Writes the kernel of a protocol."""

    def __init__(self, protocol: Protocol, skewed: bool):
        # Of several rings one has rows that TMA cannot read.
        self.view_types = [SKEWED if skewed and r == 0 else VIEW for r in range(len(protocol.stages))]
        self.lines: list[str] = []
        self.names = 0
        self.constants = dict[int, str]()
        self.protocol = protocol

    def name(self) -> str:
        self.names += 1
        return f"%x{self.names}"

    def constant(self, value: int) -> str:
        return self.constants.setdefault(value, f"%c{value}")

    def body(self, body: Body, cursors: list[str], sums: list[str]) -> None:
        """Emit a body; `cursors` and `sums` of each ring are updated in place."""
        slots: dict[int, str] = {}
        for number, step in enumerate(body):
            if isinstance(step, Loop):
                self.loop(step, cursors, sums)
            elif isinstance(step, Release):
                self.lines.append(f"async_copy.release @r{step.ring}, {slots[step.number]}")
            else:
                slot, cursor, half, wide, total = (self.name() for _ in range(5))
                ring, read = step.ring, f"!async_copy.slot<@r{step.ring}, read>"
                self.lines += [
                    f"{slot}, {cursor} = async_copy.wait @r{ring}[{cursors[ring]}]",
                    f'{half} = mma.load {slot}["t"][%c0, %c0] : {read} -> !mma.fragment<16x16xf16, a, m16n8k16>',
                    f"{wide} = mma.convert {half} : !mma.fragment<16x16xf16, a, m16n8k16> to {ACC}",
                    f"{total} = mma.map fma {sums[ring]}, %half, {wide} : ({ACC}, f32, {ACC}) -> {ACC}",
                ]
                cursors[ring], sums[ring], slots[number] = cursor, total, slot

    def loop(self, loop: Loop, cursors: list[str], sums: list[str]) -> None:
        rings = range(len(cursors))
        inner = [self.name() for _ in [*rings, *rings]]
        outer = [self.name() for _ in inner]
        types = [f"!async_copy.cursor<@r{r}, read>" for r in rings] + [ACC for _ in rings]
        inits = ", ".join(f"{a} = {b}" for a, b in zip(inner, [*cursors, *sums], strict=True))
        head = f"{', '.join(outer)} = scf.for {self.name()} = %c0 to {self.constant(loop.trips)} step %c1"
        self.lines.append(f"{head} iter_args({inits}) -> ({', '.join(types)}) {{")
        current = inner[: len(cursors)], inner[len(cursors) :]
        self.body(loop.body, *current)
        self.lines.append(f"scf.yield {', '.join([*current[0], *current[1]])} : {', '.join(types)}")
        self.lines.append("}")
        cursors[:], sums[:] = outer[: len(cursors)], outer[len(cursors) :]

    def producer(self, rings: list[int], trips: int) -> None:
        types = ", ".join(f"!async_copy.cursor<@r{r}, fill>" for r in rings)
        cursors = ", ".join(f"%cur{r} = %fill{r}" for r in rings)
        results = ", ".join(self.name() for _ in rings)
        bound = self.constant(16 * trips)
        self.lines.append(f"{results} = scf.for %i = %c0 to {bound} step %c16 iter_args({cursors}) -> ({types}) {{")
        for r in rings:
            self.lines += [
                f"%s{r}, %n{r} = async_copy.acquire @r{r}[%cur{r}]",
                f'async_copy.copy %v{r}[%i, %c0] -> %s{r}["t"] : {self.view_types[r]} -> !async_copy.slot<@r{r}, fill>',
                f"async_copy.commit @r{r}, %s{r}",
            ]
        self.lines += [f"scf.yield {', '.join(f'%n{r}' for r in rings)} : {types}", "}"]

    def kernel(self) -> str:
        rings, tickets = range(len(self.protocol.stages)), self.protocol.tickets()
        for value in (0, 1, 16):
            self.constant(value)
        self.lines += [f"%fill{r} = async_copy.begin_fill @r{r}" for r in rings]
        for group in self.protocol.producers:
            self.producer(group, tickets[group[0]])
        self.lines += ["}", "async_copy.consumer attributes {warps = 2} {", "%half = arith.constant 0.5 : f32"]
        self.lines += [f"%read{r} = async_copy.begin_read @r{r}" for r in rings]
        self.lines += [f"%zero{r} = mma.fill 0.0 : f32 : {ACC}" for r in rings]
        sums = [f"%zero{r}" for r in rings]
        self.body(self.protocol.consumer, [f"%read{r}" for r in rings], sums)
        self.lines += [f"mma.store_global {sums[r]} -> %o{r}[%c0, %c0] : {ACC} -> !tile.view<16x16xf32>" for r in rings]
        views = ", ".join(f"%v{r}: {self.view_types[r]}, %o{r}: !tile.view<16x16xf32>" for r in rings)
        pipelines = [
            f"async_copy.pipeline @r{r} stages {n} {{t = !tile.tile<16x16xf16>}}"
            for r, n in enumerate(self.protocol.stages)
        ]
        constants = [f"{name} = arith.constant {value} : index" for value, name in self.constants.items()]
        lines = [*pipelines, *constants, "async_copy.producer {", *self.lines, "}"]
        return f"tile.kernel @random({views}) {{\n" + "\n".join(lines) + "\n}\n"


FAULTS = ("every slot is held here", "a slot is given back in this loop while an older one is held")


@settings(max_examples=200)
@given(
    protocols(),
    st.sampled_from(["eager", "first"]),
    st.sampled_from([*support.KINDS, "mixed"]),
    st.sampled_from(support.MODES),
    st.sampled_from(LANDINGS),
    st.sampled_from(ORDERS),
    st.integers(0, 1000),
)
def test_random_protocols(
    protocol: Protocol, sites: str, kind: str, mode: str, landing: str, order: str, seed: int
) -> None:
    module = parse_module(Text(protocol, kind == "mixed").kernel(), "random.mlir", support.CONTEXT)
    problem = fault_of(lambda: support.VerifyPipelines().apply(support.CONTEXT, module))
    if problem is not None:
        # The only faults that these texts can have; placement sees them too.
        assert any(fault in problem for fault in FAULTS)
        again = str(fault_of(lambda: support.PlaceRoles("unified", sites).apply(support.CONTEXT, module)))
        assert any(fault in again for fault in FAULTS)
        return
    rng = np.random.default_rng(seed)
    inputs = [rng.normal(size=(16 * n, 16)).astype(np.float16) for n in protocol.tickets()]
    placed = support.place(module, sites, mode)
    stuck = False
    for form in (module, placed, support.lower(placed, kind)):
        outputs = [np.full((16, 16), np.nan, np.float32) for _ in inputs]
        kernel = next(op for op in form.body.block.ops if isinstance(op, KernelOp))
        views = [array for pair in zip(inputs, outputs, strict=True) for array in pair]
        problem = fault_of(lambda: run_kernel(kernel, views, 0, 1, landing, order, seed))
        if problem is not None and (form is module or (stuck and mode == "specialized")):
            # A producer that fills in another order than the consumer reads may hold itself up; one role cannot.
            assert "deadlock" in problem
            stuck = True
            continue
        assert problem is None
        for output, array in zip(outputs, inputs, strict=True):
            assert (output == fold(array)).all()


def fault_of(action: Callable[[], None]) -> str | None:
    """The sentence of the EmmyError that an action raises, or None."""
    try:
        action()
    except EmmyError as error:
        return error.message
    return None


def fold(array: np.ndarray) -> np.ndarray:
    """What a ring's sum is after all tickets: it depends on their order."""
    total = np.zeros((16, 16), np.float32)
    for block in array.reshape(-1, 16, 16):
        total = total * np.float32(0.5) + block.astype(np.float32)
    return total
