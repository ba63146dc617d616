"""Seeded faults in a compiled matmul: each is caught on the emulator, which raises or gives another result than NumPy.

A fault is a textual change of the last level-3 form or of the printed PTX, at a place that must be there; the kernel without
it is right in every mode. Faults of level 3 must be caught by the level-3 interpreter too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import pytest

import emmy
from emmy.artefact import Artefact, Image, run_on_emulator
from emmy.compiler import CompiledModule
from emmy.emulator import Emulator
from emmy.errors import EmmyError
from emmy.interpreters import level3
from emmy.ir import make_context, parse_module
from emmy.lowering.print_ptx import print_ptx
from emmy.registry import parse_passes

MODES = tuple(product(("late", "early", "random"), ("fixed", "reversed", "random")))
BASE = {
    "block": (64, 64, 32),
    "warps": (2, 2),
    "stages": 3,
    "transport": "cp_async",
    "fragments": 2,
    "epilogue": "shared",
    "delay": 1,
    "prefetch": 1,
}


@dataclass(frozen=True)
class Kernel:
    """C = A B, or A B^T, of one size, with some schedule fields."""

    m: int = 128
    n: int = 128
    k: int = 128
    transpose_b: bool = True
    fields: tuple[tuple[str, object], ...] = ()

    @cache
    def compiled(self) -> CompiledModule:
        a, b = f"tensor<{self.m}x{self.k}xf16>", f"tensor<{self.n}x{self.k}xf16>"
        b = b if self.transpose_b else f"tensor<{self.k}x{self.n}xf16>"
        c, flag = f"tensor<{self.m}x{self.n}xf16>", " transpose_b" * self.transpose_b
        text = (
            f"func.func @mm(%a: {a}, %b: {b}) -> {c} {{\n"
            f"  %c = tensor_op.matmul %a, %b{flag} accumulate<f32> : ({a}, {b}) -> {c}\n  func.return %c : {c}\n}}\n"
        )
        return emmy.compile(text, "sm_90a", schedule={**BASE, **dict(self.fields)})

    def arguments(self) -> tuple[list[np.ndarray], np.ndarray]:
        """Integers, so that the result is exact, and what it is."""
        rng = np.random.default_rng(1)
        a, b = (rng.integers(-3, 4, (rows, self.k)).astype(np.float16) for rows in (self.m, self.n))
        expected = (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float16)
        return [a, b if self.transpose_b else np.ascontiguousarray(b.T)], expected


STEADY = Kernel()
"""The main loop as `BASE` has it: copies behind the first product, the next fragments before the last."""

PLAIN_ORDER = Kernel(fields=(("delay", 0), ("prefetch", 0)))
"""The loop as transport leaves it: wait, barrier, copies, loads, products."""

NOT_TRANSPOSED = Kernel(transpose_b=False)
EDGES = Kernel(100, 104, 72)


@dataclass(frozen=True)
class Fault:
    """What is seeded: the `nth` match of `pattern` (all of them if None) becomes `replacement`."""

    what: str
    level: str
    pattern: str
    replacement: str
    nth: int | None = 0
    kernel: Kernel = STEADY

    def apply(self, text: str) -> str:
        matches = list(re.finditer(self.pattern, text, re.MULTILINE))
        chosen = matches if self.nth is None else matches[self.nth : self.nth + 1]
        assert chosen, f"there is no place {self.nth} for: {self.what}"
        for match in reversed(chosen):
            text = text[: match.start()] + match.expand(self.replacement) + text[match.end() :]
        return text


COPY = r" *async_copy\.cp_async.*\n"
GROUP = r"( *scf\.if %\w+ \{\n(?: *async_copy\.cp_async.*\n)+ *\}\n *async_copy\.commit_group\n)"
FENCE = r"( *async_copy\.wait_group 1\n)( *async_copy\.barrier\n)"
LANE_SWIZZLE = r"(and\.b32 %r\d+, %r\d+), 48;(?=(?:\n.*){1,3}\n\tldmatrix)"

FAULTS = [
    Fault("the wait before the first loads is dropped", "level3", r"^ *async_copy\.wait_group 1\n", ""),
    Fault("the wait in the loop is dropped", "level3", r"^ *async_copy\.wait_group 1\n", "", 1),
    Fault("the wait before the first loads leaves one group more", "level3", r"wait_group 1", "wait_group 2"),
    Fault("the wait in the loop leaves one group more", "level3", r"wait_group 1", "wait_group 2", 1),
    Fault("the barrier before the first loads is dropped", "level3", r"^ *async_copy\.barrier\n", ""),
    Fault("the barrier in the loop is dropped", "level3", r"^ *async_copy\.barrier\n", "", 1),
    Fault("the barrier between main loop and staged results is dropped", "level3", r"^ *async_copy\.barrier\n", "", 2),
    Fault("the barrier between staging and storing results is dropped", "level3", r"^ *async_copy\.barrier\n", "", 3),
    Fault("wait and barrier change places", "level3", FENCE, r"\2\1", 0, PLAIN_ORDER),
    Fault(
        "copies are issued before the barrier behind which their slot is free",
        "level3",
        rf"{FENCE}((?:.*\n)*?){GROUP}",
        r"\1\3\4\2",
        0,
        PLAIN_ORDER,
    ),
    Fault("a commit in the prologue is dropped", "level3", r"^ *async_copy\.commit_group\n", ""),
    Fault("the commit in the loop is dropped", "level3", r"^ *async_copy\.commit_group\n", "", 2),
    Fault("the copies in the loop ignore their guard", "level3", rf"scf\.if %\w+ \{{\n((?:{COPY})+) *\}}\n", r"\1"),
    Fault(
        "fragments of the second product come from the first k-step",
        "level3",
        r"(%a1 = mma\.load %\w+\[\"a\"\] \[%\w+), %c16\]",
        r"\1, %c0]",
    ),
    Fault("the loop runs once too little", "level3", r"(scf\.for %k = %c0) to %\w+ step", r"\1 to %c32 step"),
    Fault("the loop runs once too often", "level3", r"(scf\.for %k = %c0) to %\w+ step", r"\1 to %c128 step"),
    Fault(
        "the first slot that the loop reads is the one after",
        "ptx",
        r"(mov\.b32 %r\d+), 8192;(?=(?:\n\tmov.*)*\nLOOP_1)",
        r"\1, 16384;",
    ),
    Fault("the ring wraps one slot early", "ptx", r"(setp\.eq\.s32 %p\d+, %r\d+), 24576;", r"\1, 16384;", 1),
    Fault("the lane address of ldmatrix swizzles with one bit less", "ptx", LANE_SWIZZLE, r"\1, 16;"),
    Fault("the lane address of ldmatrix swizzles with one bit more", "ptx", LANE_SWIZZLE, r"\1, 112;"),
    Fault(
        "an ldmatrix transposes that should not",
        "ptx",
        r"ldmatrix\.sync\.aligned\.m8n8\.x4\.shared",
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared",
    ),
    Fault("an ldmatrix does not transpose that should", "ptx", r"x4\.trans\.shared", "x4.shared", 0, NOT_TRANSPOSED),
    Fault("rows of A are taken to be 16 bytes longer", "ptx", r"(mad\.wide\.s32 %rd\d+, %r\d+), 256,", r"\1, 272,", 1),
    Fault("the later rows of a copy come from the wrong row", "ptx", r"\+8192\], 16;", "+7936], 16;"),
    Fault(
        "registers of an A fragment change places",
        "ptx",
        r"\{(%r\d+),(%r\d+),(%r\d+),(%r\d+)\}, \{(%r\d+),(%r\d+)\}",
        r"{\1,\3,\2,\4}, {\5,\6}",
    ),
    Fault(
        "results leave through swapped halves", "ptx", r"(cvt\.rn\.f16x2\.f32 %r\d+), (%f\d+), (%f\d+);", r"\1, \3, \2;"
    ),
    Fault("an accumulator does not start at zero", "ptx", r"^\tmov\.f32 %f3, 0f00000000;\n", ""),
    Fault(
        "rows beyond an edge are read, not filled with zeros",
        "ptx",
        r"(cp\.async\.cg.*, 16), %r\d+;",
        r"\1;",
        None,
        EDGES,
    ),
    Fault(
        "rows beyond an edge are half filled", "ptx", r"selp\.b32 (%r\d+), 16, 0,", r"selp.b32 \1, 16, 8,", None, EDGES
    ),
    Fault("a store ignores the edge", "ptx", r"@%p\d+ st\.global", "st.global", None, EDGES),
]


def to_ptx(text: str) -> str:
    """The last lowering alone: no pass before it can repair what was seeded."""
    context = make_context()
    module = parse_module(text, "mutant", context)
    for one in parse_passes("lower-to-ptx", "sm_90a"):
        one.apply(context, module)
    return print_ptx(module, "sm_90a")


def emulated(kernel: Kernel, ptx: str, mode: tuple[str, str]) -> np.ndarray:
    """The result of other PTX under the kernel's launch metadata."""
    whole = kernel.compiled().portable_artefact
    artefact = Artefact(whole.target, {name: Image(ptx) for name in whole.images}, whole.entries)
    (result,), _ = run_on_emulator(artefact, "mm", kernel.arguments()[0], landing=mode[0], order=mode[1], seed=3)
    return result


def is_caught(run: Callable[[tuple[str, str]], np.ndarray], expected: np.ndarray) -> bool:
    """Does some mode raise an error of ours, or give another result?"""
    for mode in MODES:
        try:
            if not np.array_equal(run(mode), expected):
                return True
        except EmmyError:
            return True
    return False


@pytest.mark.parametrize("kernel", [STEADY, PLAIN_ORDER, NOT_TRANSPOSED, EDGES], ids=["steady", "plain", "kn", "edges"])
def test_without_a_fault_every_mode_is_right(kernel: Kernel) -> None:
    arguments, expected = kernel.arguments()
    text = kernel.compiled().ir("level3")
    assert to_ptx(text) == kernel.compiled().ptx
    lowered = parse_module(text, "level3")
    for mode in MODES:
        assert np.array_equal(emulated(kernel, kernel.compiled().ptx, mode), expected)
        assert np.array_equal(level3.run_module(lowered, "mm", arguments, *mode, 3)[0], expected)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what.replace(" ", "-"))
def test_fault_is_caught(fault: Fault) -> None:
    kernel, module = fault.kernel, fault.kernel.compiled()
    arguments, expected = kernel.arguments()
    if fault.level == "level3":
        text = fault.apply(module.ir("level3"))
        parsed = parse_module(text, "mutant")
        assert is_caught(lambda mode: level3.run_module(parsed, "mm", arguments, *mode, 3)[0], expected)
        ptx = to_ptx(text)
    else:
        ptx = fault.apply(module.ptx)
    assert is_caught(lambda mode: emulated(kernel, ptx, mode), expected)


# ---- offsets beyond 32 bits ------------------------------------------------------------------------------------------

STRIDE = 1 << 24
"""Elements between rows of A: row 64 begins 2^31 bytes behind row 0."""

FAR = """
!far = !tile.view<128x16xf16, strides [16777216, 1]>
tile.kernel @far(%a: !far, %c: !tile.view<128x16xf16>)
    schedule <block = [64, 16, 16], warps = [1, 1]> {
  %c0 = arith.constant 0 : index
  %rows = arith.constant 128 : index
  %m = tile.grid [%rows by 64] raster 1
  async_copy.pipeline @x stages 1 {t = !tile.tile<64x16xf16>}
  async_copy.role "main" warps 1 {
    %f = async_copy.begin_fill @x
    %s, %n = async_copy.slot @x[%f] : !async_copy.cursor<@x, fill>
    async_copy.cp_async %a[%m, %c0] -> %s["t"] bytes 16 : !far -> !async_copy.slot<@x, fill>
    async_copy.commit_group
    async_copy.wait_group 0
    async_copy.barrier
    %r = async_copy.begin_read @x
    %t, %u = async_copy.slot @x[%r] : !async_copy.cursor<@x, read>
    async_copy.plain_store %s["t"] -> %c[%m, %c0] bytes 16 : !async_copy.slot<@x, fill> -> !tile.view<128x16xf16>
  }
}
"""


def copy_far_rows(ptx: str) -> bool:
    """Whether a kernel copies rows that are 2^25 bytes apart. The buffer is 4 GiB of zeros, of which 128 pages are touched."""
    source = np.zeros(127 * STRIDE + 16, np.float16)
    expected = np.random.default_rng(0).normal(size=(128, 16)).astype(np.float16)
    rows = np.lib.stride_tricks.as_strided(source, (128, 16), (2 * STRIDE, 2))
    rows[:] = expected
    result = np.zeros((128, 16), np.float16)
    Emulator(ptx).launch(kernel="far", grid=(2, 1, 1), block=(32, 1, 1), args=[source, result], shared_bytes=2048)
    return np.array_equal(result, expected)


def test_offsets_beyond_32_bits() -> None:
    """Byte addresses are 64-bit; a product in 32 bits that is widened afterwards is caught."""
    ptx = emmy.compile(FAR, "sm_90a").ptx
    assert copy_far_rows(ptx)
    narrow = Fault(
        "the index of a row is not promoted to 64 bits",
        "ptx",
        r"mad\.wide\.s32 (%rd\d+), (%r\d+), 33554432, (%rd\d+);",
        r"mul.lo.s32 %r900, \2, 33554432;\n\tcvt.s64.s32 %rd900, %r900;\n\tadd.s64 \1, %rd900, \3;",
        None,
    )
    mutant = narrow.apply(re.sub(r"(\.reg \.b(?:32|64) %rd?)<\d+>", r"\1<901>", ptx))
    with pytest.raises(EmmyError, match="out of bounds"):
        copy_far_rows(mutant)
