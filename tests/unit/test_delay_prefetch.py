"""`prefetch-fragments` and `delay-copies` on loops that no compiled product has: run before and after, bit for bit."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp

from emmy.dialects import async_copy, mma
from emmy.errors import EmmyError
from emmy.interpreters import level3
from emmy.ir import make_context, parse_module, print_module, verify_module
from emmy.passes.delay_copies import DelayCopies
from emmy.passes.prefetch_fragments import PrefetchFragments

CONTEXT = make_context()

TEXT = """
!view = !tile.view<16x?xf16>
!fa = !mma.fragment<16x16xf16, a, m16n8k16>
!fb = !mma.fragment<16x16xf16, b, m16n8k16>
!fc = !mma.fragment<16x16xf32, c, m16n8k16>
!fill = !async_copy.cursor<@x, fill>
!read = !async_copy.cursor<@x, read>
!filled = !async_copy.slot<@x, fill>
!slot = !async_copy.slot<@x, read>
func.func @f(%x: tensor<16x?xf16>) -> tensor<16x16xf32> {
  %y = tile.alloc [] : tensor<16x16xf32>
  %one = arith.constant 1 : index
  tile.launch @k[%one] (%x, %y) : tensor<16x?xf16>, tensor<16x16xf32>
  func.return %y : tensor<16x16xf32>
}
tile.kernel @k(%x: !view, %y: !tile.view<16x16xf32>) {
  async_copy.pipeline @x stages 2 {t = !tile.tile<16x32xf16>}
  %n = tile.dim %x, 1 : !view
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c16 = arith.constant 16 : index
  %c32 = arith.constant 32 : index
  %c96 = arith.constant 96 : index
  %cm32 = arith.constant -32 : index
  async_copy.role "main" warps 1 {
    %zero = mma.fill 0.0 : f32 : !fc
    %two = mma.fill 2.0 : f32 : !fc
    %bf = async_copy.begin_fill @x
    %br = async_copy.begin_read @x
BODY
    async_copy.wait_group 0
    async_copy.barrier
    mma.store_global %out -> %y[%c0, %c0] : !fc -> !tile.view<16x16xf32>
  }
}
"""

FIRST = """
    %any = arith.cmpi slt, LOW, HIGH : index
    %s0, %f1 = async_copy.slot @x[%bf] if %any : !fill
    scf.if %any {
      async_copy.cp_async %x[%c0, LOW] -> %s0["t"] bytes 4 : !view -> !filled
    }
    async_copy.commit_group
"""

STEP = """
      async_copy.wait_group 0
      async_copy.barrier
      %slot, %rn = async_copy.slot @x[%ri] : !read
      AT
      %next = arith.addi %i, %c32 : index
      %more = arith.cmpi slt, %next, HIGH : index
      %to, %fn = async_copy.slot @x[%fi] if %more : !fill
      scf.if %more {
        async_copy.cp_async %x[%c0, %next] -> %to["t"] bytes 4 : !view -> !filled
      }
      async_copy.commit_group
      %a0 = mma.load %slot["t"][%c0, COLUMN] : !slot -> !fa
      %b0 = mma.load %slot["t"][%c0, %c16] : !slot -> !fb
      %p0 = mma.mma %a0, %b0, %si : (!fa, !fb) -> !fc
      %a1 = mma.load %slot["t"][%c0, %c16] : !slot -> !fa
      %p1 = mma.mma %a1, %b0, %p0 : (!fa, !fb) -> !fc
"""

SIMPLE = STEP.replace("AT", "").replace("COLUMN", "%c0")


def loop(low: str, high: str, step: str, carried: str = "", types: str = "", ends: str = "", names: str = "") -> str:
    """A prologue and a loop over tiles; `carried`, `types`, `ends` and `names` add carried values."""
    text = (
        f"{FIRST}    %out, %f, %r{names} = scf.for %i = LOW to HIGH step %c32 "
        f"iter_args(%si = %zero, %fi = %f1, %ri = %br{carried}) -> (!fc, !fill, !read{types}) {{"
        f"{step}      scf.yield %p1, %fn, %rn{ends} : !fc, !fill, !read{types}\n    }}\n"
    )
    return text.replace("LOW", low).replace("HIGH", high)


ODD = {
    # The bound is negative for fewer than 32 columns: read as an unsigned number it would be a large one.
    "negative bound": "%far = arith.addi %n, %cm32 : index\n" + loop("%c0", "%far", SIMPLE),
    # The load's column is computed from the loop's index, which only a region of the head names.
    "index in a region of the head": loop(
        "%c0",
        "%n",
        STEP.replace(
            "AT",
            """%at = scf.if %any -> (index) {
        %bit = arith.andi %i, %c32 : index
        %is = arith.cmpi eq, %bit, %c32 : index
        %u = arith.select %is, %c16, %c0 : index
        scf.yield %u : index
      } else {
        scf.yield %c16 : index
      }""",
        ).replace("COLUMN", "%at"),
    ),
    # Carried columns that change places, and the index itself as a result.
    "swapped values": loop(
        "%c0",
        "%n",
        STEP.replace("AT", "").replace("COLUMN", "%u"),
        ", %u = %c0, %v = %c16, %w = %c0",
        ", index, index, index",
        ", %v, %u, %i",
        ", %u1, %v1, %w1",
    ),
    # Head and later ops share what the head computes.
    "shared column": loop(
        "%c0",
        "%n",
        STEP.replace("AT", "%at = arith.andi %i, %c16 : index")
        .replace("COLUMN", "%at")
        .replace("%c0, %c16]", "%at, %c16]"),
    ),
    "lower bound above zero": loop("%c16", "%n", SIMPLE),
    "bounds known": loop("%c0", "%c96", SIMPLE),
}

NESTED = (
    """
    %out, %fo, %ro = scf.for %j = %c0 to %c2 step %c1 iter_args(%so = %zero, %fq = %bf, %rq = %br) -> (!fc, !fill, !read) {"""
    + loop("%c0", "%n", SIMPLE)
    .replace("%out, %f, %r", "%in, %f, %r")
    .replace("%si = %zero", "%si = %so")
    .replace("%bf", "%fq")
    .replace("%ri = %br", "%ri = %rq")
    + """
      scf.yield %in, %f, %r : !fc, !fill, !read
    }
"""
)


def kernel(body: str) -> ModuleOp:
    module = parse_module(TEXT.replace("BODY", body), "odd.mlir", CONTEXT)
    verify_module(module)
    return module


def rewritten(module: ModuleOp, delay: int) -> ModuleOp:
    copy = module.clone()
    DelayCopies(delay).apply(CONTEXT, copy)
    PrefetchFragments(force=True).apply(CONTEXT, copy)
    verify_module(copy)
    return copy


def same(before: ModuleOp, after: ModuleOp, columns: tuple[int, ...]) -> None:
    for count in columns:
        x = np.random.default_rng(count).normal(size=(16, count)).astype(np.float16)
        (expected,) = level3.run_module(before, "f", [x], "late", "fixed", 0)
        for landing, order in product(level3.LANDINGS, level3.ORDERS):
            (got,) = level3.run_module(after, "f", [x], landing, order, 0)
            assert got.tobytes() == expected.tobytes(), (count, landing, order)


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("delay", [0, 1])
def test_odd_loops(name: str, delay: int) -> None:
    before = kernel(ODD[name])
    after = rewritten(before, delay)
    (rotated,) = [op for op in after.walk() if isinstance(op, scf.ForOp)]
    assert any(isinstance(a.type, mma.FragmentType) and a.type.place.data == "a" for a in rotated.body.block.args)
    same(before, after, (96,) if name == "bounds known" else (2, 16, 30, 32, 34, 64, 100))


@pytest.mark.parametrize("delay", [0, 1])
def test_inner_loops_are_rotated_and_outer_ones_stay(delay: int) -> None:
    """The inner loop's head and last body stand in the outer loop then, which is no reason to rotate that one."""
    before = kernel(NESTED)
    after = rewritten(before, delay)
    outer, inner = [op for op in after.walk() if isinstance(op, scf.ForOp)]
    assert len(outer.iter_args) == 3
    assert len(inner.iter_args) > 3
    same(before, after, (2, 32, 64, 96))


def test_a_guard_reads_bounds_as_signed() -> None:
    after = print_module(rewritten(kernel(ODD["negative bound"]), 0))
    assert after.count("arith.cmpi slt, %c0, %far") == 2, "that of the first copy, and that of the loop"


def test_dead_cursors_are_not_carried() -> None:
    """The head reads the cursor; later it is the next one that counts: one cursor of each side is carried, not two."""
    after = rewritten(kernel(ODD["negative bound"]), 0)
    (loop_,) = [op for op in after.walk() if isinstance(op, scf.ForOp)]
    cursors = [a.type for a in loop_.body.block.args if isinstance(a.type, async_copy.CursorType)]
    assert len(cursors) == 2


@pytest.mark.parametrize("products", [-1, -7])
def test_negative_delays(products: int) -> None:
    with pytest.raises(EmmyError, match=f"behind 0 or more products, got {products}"):
        DelayCopies(products).apply(CONTEXT, kernel(ODD["bounds known"]))


@pytest.mark.parametrize("delay", [0, 3])
def test_kernels_without_a_schedule_are_left_alone(delay: int) -> None:
    """Unless they are asked for: neither pass has a default of its own."""
    module = kernel(ODD["bounds known"])
    text = print_module(module)
    DelayCopies().apply(CONTEXT, module)
    PrefetchFragments().apply(CONTEXT, module)
    assert print_module(module) == text
    DelayCopies(delay).apply(CONTEXT, module)
    assert (print_module(module) != text) == (delay > 0)
