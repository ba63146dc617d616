"""Level 2: texts come back as they were; malformed ones are refused with a sentence and its place."""

import numpy as np
import pytest
from xdsl.dialects.builtin import f16

from emmy.dialects.common import DYNAMIC
from emmy.dialects.tile import ReshapeOp, ScheduleAttr, TileType, ViewType
from emmy.dialects.tile_kernels import find_kernel
from emmy.errors import EmmyError
from emmy.ir import parse_module, print_module, verify_module
from emmy.schedules import CHOICES, RANGES, SCHEDULE_FIELDS, Schedule

KERNEL = """tile.kernel @k(%v: !tile.view<?x64xf16>, %w: !tile.view<3x?x64xf16, strides [?, 64, 1]>, %n: !tile.view<?xi32>) {{
  %i = tile.cta_id
  %d = tile.coord 0 from %i : !tile.tile<32x1xi32>
  %y = tile.map lt %d, %i : (!tile.tile<32x1xi32>, index) -> !tile.tile<32x1xi1>
  %s = tile.fill 0.0 : f32 : !tile.tile<32x1xf32>
  %x = tile.load %v[%i, %i] : !tile.view<?x64xf16> -> !tile.tile<32x16xf16>
  %f = tile.fill 0.0 : f32 : !tile.tile<32x32xf32>
  {op}
}}
"""
LINE = 8  # of {op}

WELL_FORMED = [
    "%r = tile.dim %w, 1 : !tile.view<3x?x64xf16, strides [?, 64, 1]>",
    "%r:3 = tile.grid [%i by 1, %i by 64, %i by 128] raster 4",
    "%r = tile.load %w[%i, %i, %i] : !tile.view<3x?x64xf16, strides [?, 64, 1]> -> !tile.tile<8x8xf16>",
    "tile.store %x, %w[%i, %i, %i] : !tile.tile<32x16xf16>, !tile.view<3x?x64xf16, strides [?, 64, 1]>",
    "%r = tile.dot %x, %x into %f transpose_b accumulate<hybrid, max_k = 16> : "
    "(!tile.tile<32x16xf16>, !tile.tile<32x16xf16>, !tile.tile<32x32xf32>) -> !tile.tile<32x32xf32>",
    "%r = tile.map relu %f : (!tile.tile<32x32xf32>) -> !tile.tile<32x32xf32>",
    "%r = tile.cast %f : !tile.tile<32x32xf32> to !tile.tile<32x32xbf16>",
    "%r = tile.reduce sum %f axis 0 : !tile.tile<32x32xf32> -> !tile.tile<1x32xf32>",
    "%r = tile.reduce sum %f axis 1 : !tile.tile<32x32xf32> -> !tile.tile<32x8xf32>",
    "%r = tile.coord 1 from %i : !tile.tile<1x32xi32>",
    "%r = tile.read %n[%i] : !tile.view<?xi32>",
    "%r = tile.squeeze %s axis 1 : !tile.tile<32x1xf32> -> !tile.tile<32xf32>",
    "%r = tile.map add %d, %i : (!tile.tile<32x1xi32>, index) -> !tile.tile<32x1xi32>",
    "%r = tile.map ge %d, %d : (!tile.tile<32x1xi32>, !tile.tile<32x1xi32>) -> !tile.tile<32x1xi1>",
    "%r = tile.map lt %s, %s : (!tile.tile<32x1xf32>, !tile.tile<32x1xf32>) -> !tile.tile<32x1xi1>",
    "%r = tile.map ge %s, %s : (!tile.tile<32x1xf32>, !tile.tile<32x1xf32>) -> !tile.tile<32x1xf32>",
    "%r = tile.map select %y, %f, %s : (!tile.tile<32x1xi1>, !tile.tile<32x32xf32>, !tile.tile<32x1xf32>) -> "
    "!tile.tile<32x32xf32>",
    "%r = tile.map select %y, %d, %i : (!tile.tile<32x1xi1>, !tile.tile<32x1xi32>, index) -> !tile.tile<32x1xi32>",
    "%r = tile.fill 1.500000e+00 : f16 : !tile.tile<8xf16>",
]

VIEW2, VIEW3 = "!tile.view<?x64xf16>", "!tile.view<3x?x64xf16, strides [?, 64, 1]>"
MALFORMED = [
    (f"%r = tile.dim %v, 2 : {VIEW2}", "dim 2 of a value of rank 2"),
    ("%r:2 = tile.grid [%i by 0, %i by 64] raster 8", "grid wants one positive block size for each extent"),
    ("%r:2 = tile.grid [%i by 64, %i by 64] raster 0", "raster is a positive group size, got 0"),
    (f"%r = tile.load %v[%i] : {VIEW2} -> !tile.tile<8x8xf16>", "a view of rank 2 wants 2 element offsets, got 1"),
    (f"%r = tile.load %v[%i, %i] : {VIEW2} -> !tile.tile<1x8x8xf16>", "a tile of rank 3 does not fit a view of rank 2"),
    (f"%r = tile.load %v[%i, %i] : {VIEW2} -> !tile.tile<8x8xbf16>", "the view holds f16, the tile bf16"),
    (f"tile.store %x, %v[%i, %i, %i] : !tile.tile<32x16xf16>, {VIEW2}", "wants 2 element offsets, got 3"),
    (f"tile.store %f, %v[%i, %i] : !tile.tile<32x32xf32>, {VIEW2}", "the view holds f16, the tile f32"),
    (f"tile.store %x, %w[%i, %i] : !tile.tile<32x16xf16>, {VIEW3}", "a view of rank 3 wants 3 element offsets, got 2"),
    ("%r = tile.fill 0.0 : f32 : !tile.tile<8xf16>", "fill of a tile of f16 wants a value of that type, got f32"),
    ("%r = tile.fill 0.0 : f16 : !tile.tile<0xf16>", "a tile has positive static sizes, got 0"),
    ("%r = tile.fill 0.0 : f16 : !tile.tile<?x4xf16>", "a tile has positive static sizes, got ?x4"),
    (
        "%r = tile.dot %x, %x into %f : "
        "(!tile.tile<32x16xf16>, !tile.tile<32x16xf16>, !tile.tile<32x32xf32>) -> !tile.tile<32x32xf32>",
        "dot contracts K = 16 of A with K = 32 of B",
    ),
    (
        "%r = tile.dot %x, %x into %f transpose_a : "
        "(!tile.tile<32x16xf16>, !tile.tile<32x16xf16>, !tile.tile<32x32xf32>) -> !tile.tile<32x32xf32>",
        "dot of these tiles gives 16x16, not 32x32",
    ),
    (
        "%r = tile.dot %x, %x into %f transpose_b : "
        "(!tile.tile<32x16xf16>, !tile.tile<32x16xf16>, !tile.tile<32x32xf32>) -> !tile.tile<32x32xf16>",
        "dot gives the type of what it accumulates into",
    ),
    (
        "%r = tile.dot %f, %f into %f : "
        "(!tile.tile<32x32xf32>, !tile.tile<32x32xf32>, !tile.tile<32x32xf32>) -> !tile.tile<32x32xf32>",
        "matmul operands are f16, bf16, f8E4M3FN or f8E5M2, got f32",
    ),
    (
        "%b = tile.fill 0.0 : f16 : !tile.tile<2x32x16xf16>\n  %r = tile.dot %b, %x into %f transpose_b : "
        "(!tile.tile<2x32x16xf16>, !tile.tile<32x16xf16>, !tile.tile<32x32xf32>) -> !tile.tile<32x32xf32>",
        "dot wants tiles of one rank, at least 2; got ranks 3, 2, 2",
    ),
    (
        "%r = tile.map add %f, %x : (!tile.tile<32x32xf32>, !tile.tile<32x16xf16>) -> !tile.tile<32x32xf32>",
        "operand of shape 32x16 does not broadcast to 32x32",
    ),
    ("%r = tile.map exp %f, %f : (!tile.tile<32x32xf32>, !tile.tile<32x32xf32>) -> !tile.tile<32x32xf32>", "got 2"),
    ("%r = tile.cast %f : !tile.tile<32x32xf32> to !tile.tile<32x16xf16>", "cast keeps the shape"),
    ("%r = tile.coord 2 from %i : !tile.tile<1x32xi32>", "axis 2 of a tile of rank 2"),
    ("%r = tile.coord 1 from %i : !tile.tile<1x32xf32>", "coord gives a tile of i32, got !tile.tile<1x32xf32>"),
    ("%r = tile.read %v[%i, %i] : " + VIEW2, "the view holds f16, the tile i32"),
    ("%r = tile.read %n[%i, %i] : !tile.view<?xi32>", "a view of rank 1 wants 1 element offsets, got 2"),
    (
        "%r = tile.squeeze %f axis 1 : !tile.tile<32x32xf32> -> !tile.tile<32xf32>",
        "squeeze drops an axis of size 1 of a tile of rank 2 or more, got axis 1 of !tile.tile<32x32xf32>",
    ),
    (
        "%r = tile.squeeze %s axis 1 : !tile.tile<32x1xf32> -> !tile.tile<1x32xf32>",
        "squeeze of axis 1 of !tile.tile<32x1xf32> gives !tile.tile<32xf32>, got !tile.tile<1x32xf32>",
    ),
    (
        "%r = tile.reduce sum %f axis 1 : !tile.tile<32x32xf32> -> !tile.tile<32x12xf32>",
        "reduce over axis 1 gives 32x1 of f32, or a divisor of 32 in place of the 1; got !tile.tile<32x12xf32>",
    ),
    (
        "%r = tile.map add %f, %d : (!tile.tile<32x32xf32>, !tile.tile<32x1xi32>) -> !tile.tile<32x32xf32>",
        "map add takes floats, or integers of i32 and index, got f32, i32",
    ),
    (
        "%r = tile.map exp %d : (!tile.tile<32x1xi32>) -> !tile.tile<32x1xf32>",
        "map exp is not for integers; add, sub, mul",
    ),
    (
        "%r = tile.map lt %d, %i : (!tile.tile<32x1xi32>, index) -> !tile.tile<32x1xi32>",
        "map lt of i32, index gives i1, got i32",
    ),
    (
        "%r = tile.map add %d, %i : (!tile.tile<32x1xi32>, index) -> !tile.tile<32x1xf32>",
        "map add of i32, index gives i32, got f32",
    ),
    ("%r = tile.map exp %f : (!tile.tile<32x32xf32>) -> !tile.tile<32x32xi1>", "map exp of f32 gives a float, got i1"),
    ("%r = tile.map neg %y : (!tile.tile<32x1xi1>) -> !tile.tile<32x1xi1>", "or integers of i32 and index, got i1"),
    ("%r = tile.reduce max %f axis 2 : !tile.tile<32x32xf32> -> !tile.tile<32x1xf32>", "axis 2 of a tile of rank 2"),
    (
        "%r = tile.reduce max %f axis 0 : !tile.tile<32x32xf32> -> !tile.tile<32x1xf32>",
        "reduce over axis 0 gives 1x32 of f32",
    ),
]

SCHEDULES = [
    ("block = [128, 128]", "block is three positive multiples of 16 (M, N, K), got [128, 128]"),
    ("block = [128, 120, 64]", "block is three positive multiples of 16 (M, N, K), got [128, 120, 64]"),
    ("block = [64, 64, 64], warps = [2, 8]", "block[1] = 64 does not split over 8 warps in multiples of 16"),
    ("warps = [2, 0]", "warps is a grid of two positive numbers, got [2, 0]"),
    ("stages = 0", "stages is from 1 to 16, got 0"),
    ("fragments = 3", "fragments is from 1 to 2, got 3"),
    ("transport = bulk", "transport is one of auto, cp_async, plain, tma, got 'bulk'"),
    ("promote = 8", "promote is a multiple of 16 elements, got 8"),
    ("block = [256, 512, 64], warps = [8, 8]", "a CTA has at most 32 warps, got 64"),
    ("colour = 3", "a schedule has no field 'colour'; its fields are block, warps, atom, stages,"),
]


@pytest.mark.parametrize("op", WELL_FORMED)
def test_round_trip(op):
    module = parse_module(KERNEL.format(op=op), "t.mlir")
    verify_module(module)
    text = print_module(module)
    assert op.replace("%r:3", "%r, %r_1, %r_2") in text
    assert print_module(parse_module(text, "again.mlir")) == text


@pytest.mark.parametrize(("op", "sentence"), MALFORMED)
def test_malformed(op, sentence):
    with pytest.raises(EmmyError) as caught:
        verify_module(parse_module(KERNEL.format(op=op), "t.mlir"))
    assert sentence in caught.value.message
    assert caught.value.location.line == LINE + op.count("\n")


@pytest.mark.parametrize(("fields", "sentence"), SCHEDULES)
def test_malformed_schedule(fields, sentence):
    with pytest.raises(EmmyError) as caught:
        verify_module(parse_module(f"tile.kernel @k() schedule <{fields}> {{\n}}", "t.mlir"))
    assert sentence in caught.value.message
    assert caught.value.location.line == 1


HOST = """func.func @f(%a: tensor<?x64xf16>) {{
  %n = tile.dim %a, 0 : tensor<?x64xf16>
  {op}
  func.return
}}
tile.kernel @k(%v: !tile.view<?x64xf16>) {{
}}
"""


@pytest.mark.parametrize(
    ("op", "sentence"),
    [
        ("%r = tile.alloc [] : tensor<?x4xf16>", "alloc of 1 dynamic dimension(s) got 0 size(s)"),
        ("%r = tile.alloc [%n, %n] : tensor<?x4xf16>", "alloc of 1 dynamic dimension(s) got 2 size(s)"),
        ("tile.launch @k[%n] (%a, %a) : tensor<?x64xf16>, tensor<?x64xf16>", "takes 1 view(s), got 2 tensor(s)"),
        (
            "%r = tile.alloc [] : tensor<5x32xf16>\n  tile.launch @k[%n] (%r) : tensor<5x32xf16>",
            "kernel @k takes a !tile.view<?x64xf16> here, got a tensor<5x32xf16>",
        ),
        (
            "%r = tile.alloc [] : tensor<5x64xf32>\n  tile.launch @k[%n] (%r) : tensor<5x64xf32>",
            "kernel @k takes a !tile.view<?x64xf16> here, got a tensor<5x64xf32>",
        ),
        ("%r = tile.reshape %a : tensor<?x64xf16> to tensor<?x64xf32>", "reshape keeps the element type"),
        ("%r = tile.reshape %a : tensor<?x64xf16> to tensor<?x4x15xf16>", "?x4x15 is not ?x64 with dimensions split"),
        ("%r = tile.reshape %a : tensor<?x64xf16> to tensor<2x?x64xf16>", "2x?x64 is not ?x64 with dimensions split"),
        ("%r = tile.reshape %a : tensor<?x64xf16> to tensor<64x?xf16>", "64x? is not ?x64 with dimensions split"),
        ("%r = tile.reshape %a : tensor<?x64xf16> to tensor<?x64x2xf16>", "?x64x2 is not ?x64 with dimensions split"),
    ],
)
def test_malformed_host(op, sentence):
    with pytest.raises(EmmyError) as caught:
        verify_module(parse_module(HOST.format(op=op), "t.mlir"))
    assert sentence in caught.value.message


@pytest.mark.parametrize(
    ("source", "result", "origins"),
    [
        ("?x64", "?x64", [(0, 1), (1, 1)]),
        ("2x8x1x64", "2x2x4x64", [(0, 1), (1, 4), (1, 1), (3, 1)]),
        ("2x?x4", "2x?x4x1", [(0, 1), (1, 1), (2, 1), (0, 1)]),
        ("1x24", "2x1x3x4", [(1, 12), (0, 1), (1, 4), (1, 1)]),
        ("0x6", "0x3x2", [(0, 1), (1, 2), (1, 1)]),
        ("2x0", "2x0x3", [(0, 1), (1, 3), (1, 1)]),
        ("5x?", "5x?x4", [(0, 1), (1, 4), (1, 1)]),
        ("1x1", "1", [(0, 1)]),
    ],
)
def test_reshape(source, result, origins):
    """Where dimensions come from; NumPy agrees, and shares the memory."""
    text = HOST.replace("?x64", source).format(
        op=f"%r = tile.reshape %a : tensor<{source}xf16> to tensor<{result}xf16>"
    )
    module = parse_module(text.replace("%n = tile.dim %a, 0 : tensor<" + source + "xf16>", ""), "t.mlir")
    verify_module(module)
    [op] = [op for op in module.walk() if isinstance(op, ReshapeOp)]
    assert op.origins() == origins
    # The last `?` that is split is 12 elements.
    unknown = 12 if result.count("x") > source.count("x") and source.endswith("?") else 3
    array = np.zeros([unknown if s == "?" else int(s) for s in source.split("x")], np.int32)
    reshaped = array.reshape([3 if s == "?" else int(s) for s in result.split("x")])
    for size, stride, (axis, step) in zip(reshaped.shape, reshaped.strides, origins, strict=True):
        assert size == 1 or array.size == 0 or stride == step * array.strides[axis]


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("tensor<4x4xf16>", "kernel arguments are views, got tensor<4x4xf16>"),
        ("!tile.view<4x4xf16, strides [1]>", "a view has one stride for each dimension"),
    ],
)
def test_malformed_kernel_argument(argument, sentence):
    with pytest.raises(EmmyError, match=sentence):
        verify_module(parse_module(f"tile.kernel @k(%v: {argument}) {{\n}}", "t.mlir"))


def test_strides_follow_from_sizes_as_far_as_they_are_known():
    assert ViewType.get((4, 8, 16), f16).get_strides() == (128, 16, 1)
    assert ViewType.get((4, DYNAMIC, 16), f16).get_strides() == (DYNAMIC, 16, 1)
    assert ViewType.get((DYNAMIC, 16), f16, (DYNAMIC, 1)).get_strides() == (DYNAMIC, 1)
    assert TileType.get((4, 8), f16).get_shape() == (4, 8)


def test_schedule_attribute_holds_every_field():
    counts = {n: most for n, (_, most) in RANGES.items() if SCHEDULE_FIELDS[n] != most}
    counts |= {n: least for n, (least, most) in RANGES.items() if SCHEDULE_FIELDS[n] == most}
    words = {n: next(w for w in words if w != SCHEDULE_FIELDS[n]) for n, words in CHOICES.items()}
    counts["store_columns"] = 16  # of the columns that there are
    counts["split_k"] = SCHEDULE_FIELDS["split_k"]  # is for kernels that are not persistent
    counts["turns"] = SCHEDULE_FIELDS["turns"]  # is without stagger
    counts["carry"] = SCHEDULE_FIELDS["carry"]  # is for wgmma
    counts["reuse"] = SCHEDULE_FIELDS["reuse"]  # is without overlap
    words["share"] = SCHEDULE_FIELDS["share"]  # is for TMA
    others = {"block": (64, 32, 16), "warps": (2, 1), "atom": "m16n8k8", "promote": 16}
    schedule = Schedule(**counts, **words, **others, producer_regs=24, consumer_regs=240)
    apart = ("split_k", "share", "turns", "carry", "reuse")
    assert all(getattr(schedule, n) != default for n, default in SCHEDULE_FIELDS.items() if n not in apart)
    for other in (
        Schedule(block=(64, 32, 16), warps=(4, 1), split_k=2),
        Schedule(block=(64, 32, 32), roles="specialized", share="a"),
        Schedule(block=(64, 32, 32), roles="specialized", warps=(2, 1), turns=1),
        Schedule(atom="wgmma", block=(64, 64, 64), warps=(4, 1), roles="specialized", transport="auto", carry=1),
        Schedule(block=(64, 32, 32), warps=(2, 1), reuse=1),
    ):
        assert ScheduleAttr.get(other).data == other
    assert ScheduleAttr.get(schedule).data == schedule
    text = print_module(
        parse_module(f"tile.kernel @k() schedule {str(ScheduleAttr.get(schedule))[14:]} {{\n}}", "t.mlir")
    )
    kernel = find_kernel(parse_module(text, "t.mlir"), "k")
    assert kernel.schedule.data == schedule
    assert find_kernel(parse_module(text, "t.mlir"), "other") is None


SLICE = "!tile.view<3x?x64xf16, strides [?, 64, 1]>"


@pytest.mark.parametrize(
    ("op", "sentence"),
    [
        (
            f"tile.slice %w[%i, %i] [%i] : {SLICE} -> {SLICE}",
            "a slice of a view of rank 3 has that rank, and as many offsets",
        ),
        (f"tile.slice %w[%i, %i, %i] [] : {SLICE} -> {SLICE}", "a slice with 1 `?` size(s) got 0"),
        (
            f"tile.slice %w[%i, %i, %i] [%i] : {SLICE} -> !tile.view<4x?x64xf16, strides [?, 64, 1]>",
            "a slice of 4x?x64 does not fit a view of 3x?x64",
        ),
        (
            f"tile.slice %w[%i, %i, %i] [%i] : {SLICE} -> !tile.view<3x?x64xbf16, strides [?, 64, 1]>",
            "a slice of f16 holds f16, got bf16",
        ),
        (
            f"tile.slice %w[%i, %i, %i] [%i] : {SLICE} -> !tile.view<3x?x64xf16>",
            "a slice says its strides, which are those of its source",
        ),
        (
            f"tile.slice %w[%i, %i, %i] [%i] : {SLICE} -> !tile.view<3x?x32xf16, strides [?, 32, 1]>",
            "a slice says its strides, which are those of its source",
        ),
    ],
)
def test_malformed_slice(op, sentence):
    with pytest.raises(EmmyError) as caught:
        verify_module(parse_module(KERNEL.format(op=f"%r = {op}"), "t.mlir"))
    assert sentence in caught.value.message


def test_a_slice_comes_back():
    op = f"%r = tile.slice %w[%i, %i, %i] [%i] : {SLICE} -> !tile.view<1x?x64xf16, strides [?, 64, 1], align 16>"
    module = parse_module(KERNEL.format(op=op), "t.mlir")
    verify_module(module)
    assert op in print_module(module)
