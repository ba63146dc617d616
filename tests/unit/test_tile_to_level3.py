"""`lower-tile`: what it refuses and says, where results leave, how rings are formed, and that locations survive."""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import FileLineColLoc

from emmy import ir
from emmy.dialects import async_copy, mma, tile
from emmy.errors import EmmyError
from emmy.lowering.tile_to_level3 import LowerTile
from emmy.passes.verify_pipelines import VerifyPipelines

SCHEDULE = "block = [64, 64, 32], warps = [2, 2], stages = 2"


def lower(body: str, views: str = "", schedule: str = SCHEDULE, target: str | None = None) -> tile.KernelOp:
    """Lower a kernel of that body; the module is verified before and after, and its text must round-trip."""
    head = "%a: !tile.view<64x64xf16>, %b: !tile.view<64x64xf16>, %c: !tile.view<64x64xf16>" + views
    chosen = f"schedule <{schedule}> " if schedule else ""
    module = ir.parse_module(
        f"tile.kernel @k({head}) {chosen}{{\n%z = arith.constant 0 : index\n{body}\n}}\n", "k.mlir"
    )
    ir.verify_module(module)
    LowerTile(target).apply(ir.make_context(), module)
    ir.verify_module(module)
    VerifyPipelines().apply(ir.make_context(), module)
    text = ir.print_module(module)
    assert ir.print_module(ir.parse_module(text, "again.mlir")) == text
    kernel = module.body.block.first_op
    assert isinstance(kernel, tile.KernelOp)
    return kernel


def ops(kernel: tile.KernelOp, kind: type):
    return [op for op in kernel.walk() if isinstance(op, kind)]


def names(kernel: tile.KernelOp) -> list[str]:
    return [op.sym_name.data for op in ops(kernel, async_copy.PipelineOp)]


LOAD_A = "%x = tile.load %a[%z, %z] : !tile.view<64x64xf16> -> !tile.tile<64x32xf16>"
LOAD_B = "%y = tile.load %b[%z, %z] : !tile.view<64x64xf16> -> !tile.tile<32x64xf16>"
ZERO = "%s = tile.fill 0.0 : f32 : !tile.tile<64x64xf32>"
DOT_TYPE = "(!tile.tile<64x32xf16>, !tile.tile<32x64xf16>, !tile.tile<64x64xf32>) -> !tile.tile<64x64xf32>"
DOT = f"%d = tile.dot %x, %y into %s : {DOT_TYPE}"
STORE = "tile.store %{0}, %{1}[%z, %z] : !tile.tile<64x64xf16>, !tile.view<64x64xf16>"
HALF = "%h = tile.cast %d : !tile.tile<64x64xf32> to !tile.tile<64x64xf16>"
GEMM = "\n".join([LOAD_A, LOAD_B, ZERO, DOT, HALF, STORE.format("h", "c")])

ERRORS = {
    "no schedule": (GEMM, "", "kernel @k has no schedule: run assign-schedule"),
    "statistics of f16 over warps": (
        "\n".join([LOAD_A, "%r = tile.reduce max %x axis 1 : !tile.tile<64x32xf16> -> !tile.tile<64x1xf16>"]),
        SCHEDULE,
        "warps exchange statistics in f32, and these are f16",
    ),
    "maximum in parts over warps": (
        ZERO + "\n%r = tile.reduce max %s axis 1 : !tile.tile<64x64xf32> -> !tile.tile<64x16xf32>",
        SCHEDULE,
        "where warps split columns, a maximum is over whole rows",
    ),
    "function of a sum in parts": (
        ZERO + "\n%r = tile.reduce sum %s axis 1 : !tile.tile<64x64xf32> -> !tile.tile<64x8xf32>\n"
        "%e = tile.map exp2 %r : (!tile.tile<64x8xf32>) -> !tile.tile<64x8xf32>",
        SCHEDULE,
        "warps hold parts of this sum, which can be scaled and added up, and then reduced; tile.map is none of these",
    ),
    "reduce of rows": (
        "\n".join([LOAD_A, "%r = tile.reduce max %x axis 0 : !tile.tile<64x32xf16> -> !tile.tile<1x32xf16>"]),
        "block = [64, 64, 32], warps = [4, 1]",
        "lower-tile reduces the rows of a tile to one, where no others of them are another warp's",
    ),
    "squeezed and used": (
        "%r = tile.fill 1.0 : f32 : !tile.tile<64x1xf32>\n"
        "%f = tile.squeeze %r axis 1 : !tile.tile<64x1xf32> -> !tile.tile<64xf32>\n"
        "%n = tile.map neg %f : (!tile.tile<64xf32>) -> !tile.tile<64xf32>",
        SCHEDULE,
        "what tile.squeeze gives can be stored, and nothing else",
    ),
    "computed operand transposed": (
        "\n".join([ZERO, LOAD_B, "%x = tile.fill 1.0 : f16 : !tile.tile<32x64xf16>"])
        + "\n%d = tile.dot %x, %y into %s transpose_a : "
        + DOT_TYPE.replace("64x32", "32x64"),
        "block = [64, 64, 32], warps = [2, 1]",
        "lower-tile takes a computed operand a of a tile.dot only where it lies in registers as the atom wants it",
    ),
    "operand b computed": (
        "\n".join([ZERO, LOAD_A, "%y = tile.fill 1.0 : f16 : !tile.tile<32x64xf16>", DOT]),
        SCHEDULE,
        "lower-tile takes operand b of a tile.dot from a tile.load only",
    ),
    "rows do not split": (
        GEMM,
        "block = [192, 64, 32], warps = [6, 1]",
        "64 rows of a tile do not split over 6 warps in multiples of 16, as m16n8k16 needs",
    ),
    "columns do not split": (
        GEMM,
        "block = [64, 96, 32], warps = [1, 3]",
        "64 columns of a tile do not split over 3 warps in multiples of 8, as m16n8k16 needs",
    ),
    "k-step": (
        "%x = tile.load %a[%z, %z] : !tile.view<64x64xf16> -> !tile.tile<64x24xf16>\n"
        "%y = tile.load %b[%z, %z] : !tile.view<64x64xf16> -> !tile.tile<24x64xf16>\n"
        + ZERO
        + "\n%d = tile.dot %x, %y into %s : "
        + DOT_TYPE.replace("32x", "24x").replace("64x32", "64x24"),
        SCHEDULE,
        "a dot over 24 elements of K is not whole k-steps of 16",
    ),
    "atom": (GEMM, SCHEDULE + ", atom = m8n8k4", "there is no atom m8n8k4"),
    "one row stored": (
        "%r = tile.fill 0.0 : f16 : !tile.tile<1x64xf16>\n"
        "tile.store %r, %c[%z, %z] : !tile.tile<1x64xf16>, !tile.view<64x64xf16>",
        SCHEDULE,
        "kernels store tiles of two dimensions, neither of them 1; got 1x64",
    ),
    "rank 3": (
        "%r = tile.fill 0.0 : f16 : !tile.tile<2x64x64xf16>",
        SCHEDULE,
        "lower-tile takes tiles of rank 1 or 2; tile.fill has one of rank 3",
    ),
    "load in a branch": (
        "%p = arith.constant true\nscf.if %p {\n" + GEMM + "\n}",
        SCHEDULE,
        "tile.load stands in a scf.if; copies are issued from scf.for only",
    ),
    "store in a branch": (
        "%r = tile.fill 0.0 : f16 : !tile.tile<64x64xf16>\n%p = arith.constant true\n"
        "scf.if %p {\n" + STORE.format("r", "c") + "\n}",
        SCHEDULE,
        "lower-tile cannot lower scf.if yet",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_refusals_are_one_sentence_with_a_place(case: str):
    body, schedule, sentence = ERRORS[case]
    with pytest.raises(EmmyError) as caught:
        lower(body, schedule=schedule)
    assert sentence in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.location is not None
    assert caught.value.location.file == "k.mlir"


def test_loads_outside_loops_have_rings_of_one_slot():
    kernel = lower(GEMM)
    assert names(kernel) == ["a", "b", "out"]
    assert [op.stages.value.data for op in ops(kernel, async_copy.PipelineOp)] == [1, 1, 1]


def test_every_op_has_a_location():
    kernel = lower(GEMM)
    assert all(isinstance(op.location, FileLineColLoc) for op in kernel.walk())
    product = ops(kernel, mma.MmaOp)[0].location
    assert isinstance(product, FileLineColLoc)
    assert product.line.data == 3 + GEMM.split("\n").index(DOT)


def test_a_kernel_without_products_needs_no_schedule():
    copy = "%x = tile.load %a[%z, %z] : !tile.view<64x64xf16> -> !tile.tile<32x64xf16>\n"
    kernel = lower(copy + "tile.store %x, %c[%z, %z] : !tile.tile<32x64xf16>, !tile.view<64x64xf16>", schedule="")
    assert kernel.schedule is not None
    assert names(kernel) == ["a", "out"]


def test_an_unused_load_is_no_copy():
    kernel = lower(LOAD_A + "\n%r = tile.fill 0.0 : f16 : !tile.tile<64x64xf16>\n" + STORE.format("r", "c"))
    assert names(kernel) == ["out"]
    assert not ops(kernel, async_copy.CopyOp)


def test_two_results_leave_through_two_pipelines():
    kernel = lower(GEMM + "\n" + STORE.format("h", "a"))
    assert names(kernel) == ["a", "b", "out", "out1"]
    assert len(ops(kernel, async_copy.StoreOp)) == 2


def test_a_loaded_tile_may_be_operand_and_elementwise():
    """One slot, read as operand a and as an accumulator's layout; released after the later use."""
    square = DOT_TYPE.replace("32x64", "64x64").replace("64x32", "64x64")
    body = "\n".join(
        [
            "%x = tile.load %a[%z, %z] : !tile.view<64x64xf16> -> !tile.tile<64x64xf16>",
            "%y = tile.load %b[%z, %z] : !tile.view<64x64xf16> -> !tile.tile<64x64xf16>",
            ZERO,
            f"%d = tile.dot %x, %y into %s : {square}",
            HALF,
            "%r = tile.map add %h, %x : (!tile.tile<64x64xf16>, !tile.tile<64x64xf16>) -> !tile.tile<64x64xf16>",
            STORE.format("r", "c"),
        ]
    )
    kernel = lower(body)
    loads = [op for op in ops(kernel, mma.LoadOp) if op.field.data == "a"]
    assert [op.result.type.place.data for op in loads] == ["a"] * 4 + ["c"]
    assert len(ops(kernel, async_copy.CopyOp)) == 2


@pytest.mark.parametrize(
    ("rows", "element", "stages", "target", "staged"),
    [
        (128, "f16", 2, None, True),
        (128, "f32", 2, None, False),  # 128 KiB: more than the rings (48 KiB) and the smallest CTA (99 KiB)
        (128, "f32", 2, "sm_90a", True),
        (128, "f32", 2, "sm_89", False),
        (128, "f32", 6, "sm_89", True),  # not more than the rings, which need as much
        (64, "f32", 1, "sm_89", True),
    ],
)
def test_results_are_staged_where_they_fit(rows: int, element: str, stages: int, target: str | None, staged: bool):
    body = f"""
        %c1 = arith.constant 32 : index
        %s = tile.fill 0.0 : f32 : !tile.tile<{rows}x256xf32>
        %acc = scf.for %k = %z to %c1 step %c1 iter_args(%q = %s) -> (!tile.tile<{rows}x256xf32>) {{
          %x = tile.load %a[%z, %k] : !tile.view<64x64xf16> -> !tile.tile<{rows}x32xf16>
          %y = tile.load %b[%z, %k] : !tile.view<64x64xf16> -> !tile.tile<256x32xf16>
          %d = tile.dot %x, %y into %q transpose_b : (!tile.tile<{rows}x32xf16>, !tile.tile<256x32xf16>,
            !tile.tile<{rows}x256xf32>) -> !tile.tile<{rows}x256xf32>
          scf.yield %d : !tile.tile<{rows}x256xf32>
        }}
        %o = tile.cast %acc : !tile.tile<{rows}x256xf32> to !tile.tile<{rows}x256x{element}>
        tile.store %o, %w[%z, %z] : !tile.tile<{rows}x256x{element}>, !tile.view<128x256x{element}>"""
    schedule = f"block = [{rows}, 256, 32], warps = [2, 4], stages = {stages}"
    kernel = lower(body, f", %w: !tile.view<128x256x{element}>", schedule, target)
    assert ("out" in names(kernel)) == staged
    assert bool(ops(kernel, mma.StoreGlobalOp)) != staged


@pytest.mark.parametrize(
    ("policy", "accumulator", "left"),
    [("f32", "f32", None), ("f16", "f16", None), ("hybrid, max_k = 32", "f32", "hybrid"), ("f16", "f32", "f16")],
)
def test_a_policy_stays_where_the_types_do_not_say_it(policy: str, accumulator: str, left: str | None):
    body = "\n".join(
        [
            LOAD_A,
            LOAD_B,
            f"%s = tile.fill 0.0 : {accumulator} : !tile.tile<64x64x{accumulator}>",
            f"%d = tile.dot %x, %y into %s accumulate<{policy}> : {DOT_TYPE.replace('f32', accumulator)}",
            f"%h = tile.cast %d : !tile.tile<64x64x{accumulator}> to !tile.tile<64x64xf16>",
            STORE.format("h", "c"),
        ]
    )
    for product in ops(lower(body), mma.MmaOp):
        assert (None if product.accumulate is None else product.accumulate.policy.data) == left


def test_level_3_is_left_alone():
    module = ir.parse_module(ir.print_module(lower(GEMM).parent_op()), "level3.mlir")
    before = ir.print_module(module)
    LowerTile().apply(ir.make_context(), module)
    assert ir.print_module(module) == before
