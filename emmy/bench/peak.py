"""The card's tensor peak: a loop of `mma.sync` on registers alone, as an artefact that benchmark runs are bracketed with.

Eight warps an SM keep sixteen independent sums each, of normal data, since zeros draw less power and so raise the clock.
Products with B and with -B alternate, so that sums stay in the range of f16 whatever the number of rounds.
"""

from __future__ import annotations

from collections.abc import Iterator

from emmy.artefact import Artefact, EntrySpec, Image
from emmy.assemble import assemble, find_tool, resources
from emmy.targets import get_target

PEAK_ARTEFACT = "peak"
"""The artefact's folder beside those of the cases."""

ACCUMULATORS = ("f32", "f16")
THREADS = 256
FRAGMENTS = 4  # of each operand: 4 x 4 sums
A_WORDS, B_WORDS = 4 * FRAGMENTS, 2 * FRAGMENTS  # 32-bit registers of m16n8k16 operands
ROW_ELEMENTS = 2 * (A_WORDS + B_WORDS)
ROUNDS = 4096
ATOM_FLOPS = 2 * 16 * 8 * 16
SIGNS = 0x80008000  # of both halves of a register


def entry_name(accumulator: str) -> str:
    """The entry, and the kernel, of an accumulator type."""
    return f"peak_{accumulator}"


def peak_ptx(target: str, rounds: int = ROUNDS) -> str:
    """A PTX module with one kernel for each accumulator type; `rounds` is how often each product is added and taken away."""
    head = f".version {get_target(target).ptx_version}\n.target {target}\n.address_size 64\n"
    return head + "".join(_kernel(accumulator, rounds) for accumulator in ACCUMULATORS)


def _kernel(accumulator: str, rounds: int) -> str:
    """Thread t of the grid loads row t of `a` as its fragments, and stores the XOR of its sums to `out`[t]."""
    words = 4 if accumulator == "f32" else 2  # registers of one sum
    total = words * FRAGMENTS * FRAGMENTS
    lines = [
        f".visible .entry {entry_name(accumulator)}(\n  .param .u64 a,\n  .param .u64 out\n)",
        f".maxntid {THREADS}, 1, 1\n{{",
        f"  .reg .pred %p;\n  .reg .b64 %rd<5>;\n  .reg .b32 %r<4>, %a<{A_WORDS}>, %b<{B_WORDS}>, %n<{B_WORDS}>, %s<{total}>;",
        "  ld.param.u64 %rd0, [a];\n  ld.param.u64 %rd1, [out];",
        f"  mov.u32 %r0, %ctaid.x;\n  mov.u32 %r1, %tid.x;\n  mad.lo.u32 %r0, %r0, {THREADS}, %r1;",
        f"  mul.wide.u32 %rd2, %r0, {2 * ROW_ELEMENTS};\n  add.u64 %rd0, %rd0, %rd2;",
        "  mul.wide.u32 %rd3, %r0, 4;\n  add.u64 %rd1, %rd1, %rd3;",
        *(f"  ld.global.v4.b32 {_registers('a', 4 * i, 4)}, [%rd0+{16 * i}];" for i in range(A_WORDS // 4)),
        *(f"  ld.global.v4.b32 {_registers('b', 4 * i, 4)}, [%rd0+{4 * A_WORDS + 16 * i}];" for i in range(B_WORDS // 4)),
        *(f"  xor.b32 %n{i}, %b{i}, {SIGNS};" for i in range(B_WORDS)),
        *(f"  mov.b32 %s{i}, 0;" for i in range(total)),
        "  mov.u32 %r2, 0;\nNEXT:",
        *_products(accumulator, words, "b"),
        *_products(accumulator, words, "n"),
        f"  add.u32 %r2, %r2, 1;\n  setp.lt.u32 %p, %r2, {rounds};\n  @%p bra NEXT;",
        *(f"  xor.b32 %s0, %s0, %s{i};" for i in range(1, total)),
        "  st.global.b32 [%rd1], %s0;\n  ret;\n}\n",
    ]  # fmt: skip
    return "\n".join(lines)


def _products(accumulator: str, words: int, operand: str) -> Iterator[str]:
    spelling = f"mma.sync.aligned.m16n8k16.row.col.{accumulator}.f16.f16.{accumulator}"
    for i in range(FRAGMENTS):
        for j in range(FRAGMENTS):
            sums = _registers("s", words * (FRAGMENTS * i + j), words)
            yield f"  {spelling} {sums}, {_registers('a', 4 * i, 4)}, {_registers(operand, 2 * j, 2)}, {sums};"


def _registers(name: str, first: int, count: int) -> str:
    return "{" + ", ".join(f"%{name}{i}" for i in range(first, first + count)) + "}"


def peak_entry(accumulator: str, rounds: int = ROUNDS) -> EntrySpec:
    """`a`: f16, one row of `ROW_ELEMENTS` a thread, a multiple of `THREADS` of them; the result is of no interest."""
    threads = ["dim", "a", 0]
    flops = 2 * rounds * FRAGMENTS * FRAGMENTS * ATOM_FLOPS // 32  # of one thread
    return {
        "arguments": [{"name": "a", "dtype": "f16", "shape": [threads, ROW_ELEMENTS], "align": 16}],
        "results": [{"name": "out", "dtype": "i32", "shape": [threads]}],
        "checks": [
            {"value": threads, "multiple_of": THREADS, "message": f"'a' must have whole blocks of {THREADS} rows"}
        ],
        "launches": [
            {
                "image": PEAK_ARTEFACT,
                "kernel": entry_name(accumulator),
                "grid": [["floordiv", threads, THREADS], 1, 1],
                "block": [THREADS, 1, 1],
                "shared_bytes": 0,
                "params": [{"pointer": "a"}, {"pointer": "out"}],
            }
        ],
        "work": {"kind": "peak", "flops": ["mul", threads, flops]},
    }


def peak_artefact(target: str, rounds: int = ROUNDS) -> Artefact:
    """Both kernels, with a cubin if there is an assembler."""
    ptx = peak_ptx(target, rounds)
    entries = {entry_name(accumulator): peak_entry(accumulator, rounds) for accumulator in ACCUMULATORS}
    if find_tool("ptxas") is None:
        return Artefact(target, {PEAK_ARTEFACT: Image(ptx)}, entries)
    assembled = assemble(ptx, target)
    return Artefact(target, {PEAK_ARTEFACT: Image(ptx, assembled.cubin)}, entries, resources(assembled))
