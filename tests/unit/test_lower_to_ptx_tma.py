"""TMA, mbarriers and roles at level 4: exact on the emulator in any order of events, assembled without spills or notes."""

import itertools
import math
import re

import ml_dtypes
import numpy as np
import pytest

import emmy
from emmy.artefact import run_on_emulator
from emmy.assemble import assemble, find_tool, main_loop_mix, sass
from emmy.dialects.ptx import KernelOp
from emmy.emulator import Report
from emmy.errors import EmmyError
from emmy.ir import make_context, parse_module, verify_module
from emmy.registry import parse_passes

DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}
TARGETS = ("sm_90a", "sm_120a")
FORMS = ("unified", "specialized")
SMALL = {"block": [64, 64, 32], "warps": [2, 2], "stages": 3}
MODES = [
    {"landing": landing, "order": order, "seed": 3}
    for landing, order in itertools.product(("late", "early", "random"), ("fixed", "reversed", "random"))
]

needs_ptxas = pytest.mark.skipif(find_tool("ptxas") is None, reason="ptxas is not installed")
needs_nvdisasm = pytest.mark.skipif(find_tool("nvdisasm") is None, reason="nvdisasm is not installed")


def matmul_text(
    sizes: tuple[int, ...], layout: str = "nt", dtype: str = "f16", out: str | None = None, dynamic: str = ""
) -> str:
    """A product at level 1 of (batch,) M, N, K; layout and dynamic as in test_lower_to_ptx."""
    *batch, m, n, k = sizes
    m, n, k = ("?" if name in dynamic else size for name, size in zip("MNK", (m, n, k), strict=True))
    lead = "".join(f"{size}x" for size in batch)
    a = f"tensor<{lead}{f'{k}x{m}' if layout[0] == 't' else f'{m}x{k}'}x{dtype}>"
    b = f"tensor<{lead}{f'{n}x{k}' if layout[1] == 't' else f'{k}x{n}'}x{dtype}>"
    c = f"tensor<{lead}{m}x{n}x{out or dtype}>"
    flags = " transpose_a" * (layout[0] == "t") + " transpose_b" * (layout[1] == "t")
    return f"""func.func @mm(%a: {a}, %b: {b}) -> {c} {{
      %y = tensor_op.matmul %a, %b{flags} : ({a}, {b}) -> {c}
      func.return %y : {c}
    }}"""


def compiled(
    sizes: tuple[int, ...], roles: str, target: str = "sm_90a", schedule: dict[str, object] = SMALL, **form: str
) -> emmy.CompiledModule:
    return emmy.compile(
        matmul_text(sizes, **form), target=target, schedule={**schedule, "transport": "tma", "roles": roles}
    )


def operands(sizes: tuple[int, ...], layout: str, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Small integers: every sum is exact in every accumulator."""
    *batch, m, n, k = sizes
    random = np.random.default_rng(m + 7 * n + 31 * k)
    a = random.integers(-3, 4, (*batch, *((k, m) if layout[0] == "t" else (m, k)))).astype(DTYPES[dtype])
    b = random.integers(-3, 4, (*batch, *((n, k) if layout[1] == "t" else (k, n)))).astype(DTYPES[dtype])
    return a, b


def check(
    sizes: tuple[int, ...],
    roles: str,
    layout: str = "nt",
    dtype: str = "f16",
    out: str | None = None,
    target: str = "sm_90a",
    dynamic: str = "",
    schedule: dict[str, object] = SMALL,
    **mode: object,
) -> Report:
    module = compiled(sizes, roles, target, schedule, layout=layout, dtype=dtype, out=out, dynamic=dynamic)
    assert "cp.async.bulk.tensor" in module.ptx
    a, b = operands(sizes, layout, dtype)
    (c,), (report,) = run_on_emulator(module.portable_artefact, "mm", (a, b), **mode)
    x, y = a.astype(np.float64), b.astype(np.float64)
    x, y = x.swapaxes(-1, -2) if layout[0] == "t" else x, y.swapaxes(-1, -2) if layout[1] == "t" else y
    np.testing.assert_array_equal(c.astype(np.float64), (x @ y).astype(c.dtype).astype(np.float64))
    return report


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("roles", FORMS)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_whole_tiles_are_exact_and_free_of_bank_conflicts(layout: str, roles: str, target: str):
    report = check((128, 128, 96), roles, layout, target=target)
    assert report.total_bank_conflicts == 0
    moves = sum(count for kind, count in report.instructions.items() if "bulk.tensor" in kind)
    assert moves == 4 * (3 * 2 + 1)  # CTAs, k-tiles, operands; results


@pytest.mark.parametrize("roles", FORMS)
@pytest.mark.parametrize(
    "sizes", [(100, 72, 40), (8, 8, 8), (72, 64, 136), (64, 64, 8), (136, 72, 64), (64, 64, 0)], ids=str
)
def test_edges_are_filled_with_zeros_and_not_stored(sizes: tuple[int, ...], roles: str):
    check(sizes, roles)


@pytest.mark.parametrize("roles", FORMS)
@pytest.mark.parametrize("depth", [0, 1, 2, 3, 4, 5, 7])
def test_any_number_of_tickets(depth: int, roles: str):
    check((64, 64, 32 * depth), roles)


@pytest.mark.parametrize("roles", FORMS)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: f"{mode['landing']}-{mode['order']}")
def test_any_landing_and_order(mode: dict[str, object], roles: str):
    check((64, 128, 160), roles, **mode)


@pytest.mark.parametrize("roles", FORMS)
@pytest.mark.parametrize("dynamic", ["M", "N", "K", "MNK"])
def test_sizes_known_at_run_time(dynamic: str, roles: str):
    check((104, 72, 40), roles, dynamic=dynamic)


@pytest.mark.parametrize("roles", FORMS)
@pytest.mark.parametrize("sizes", [(3, 64, 64, 64), (2, 72, 40, 72), (2, 2, 64, 64, 32)], ids=str)
def test_batches_are_leading_dimensions_of_the_boxes(sizes: tuple[int, ...], roles: str):
    check(sizes, roles)


@pytest.mark.parametrize("roles", FORMS)
@pytest.mark.parametrize(("dtype", "out"), [("bf16", "bf16"), ("f16", "f32")])
def test_dtypes(dtype: str, out: str, roles: str):
    check((72, 64, 64), roles, "nn", dtype, out)


@pytest.mark.parametrize("roles", FORMS)
@pytest.mark.parametrize(
    "schedule",
    [
        {"block": [64, 192, 32], "warps": [2, 2], "stages": 4},
        {"block": [32, 320, 16], "warps": [1, 4], "stages": 2},
        {"block": [128, 64, 48], "warps": [4, 1], "stages": 3},
        {"block": [64, 80, 80], "warps": [4, 1], "stages": 2},
        {"block": [64, 64, 128], "warps": [2, 2], "stages": 2, "fragments": 1},
        {"block": [64, 64, 32], "warps": [2, 2], "stages": 1},
        {"block": [64, 64, 32], "warps": [2, 2], "stages": 3, "epilogue": "direct"},
    ],
    ids=str,
)
def test_other_schedules(schedule: dict[str, object], roles: str):
    check((136, 200, 72), roles, schedule=schedule)


@pytest.mark.parametrize("roles", FORMS)
@pytest.mark.parametrize(
    ("transport", "shape", "element", "epilogue"),
    [
        ("tma", "104x72", "f16", "shared"),
        ("tma", "104x72", "f32", "direct"),
        ("tma", "1x72", "f32", "shared"),
        ("tma", "72", "f16", "direct"),
        ("auto", "104x1", "f16", "shared"),  # a column: rows of 2 bytes are copied by threads
        ("auto", "104x1", "f32", "direct"),
    ],
)
def test_an_epilogue_with_another_operand(transport: str, shape: str, element: str, epilogue: str, roles: str):
    types = f"%a: tensor<104x64xf16>, %b: tensor<72x64xf16>, %v: tensor<{shape}x{element}>"
    text = f"""func.func @mm({types}) -> tensor<104x72xf16> {{
      %y = tensor_op.matmul %a, %b transpose_b : (tensor<104x64xf16>, tensor<72x64xf16>) -> tensor<104x72xf32>
      %z = tensor_op.map add %y, %v : (tensor<104x72xf32>, tensor<{shape}x{element}>) -> tensor<104x72xf32>
      %w = tensor_op.map relu %z : (tensor<104x72xf32>) -> tensor<104x72xf32>
      %o = tensor_op.cast %w : tensor<104x72xf32> to tensor<104x72xf16>
      func.return %o : tensor<104x72xf16>
    }}"""
    schedule = {**SMALL, "transport": transport, "roles": roles, "epilogue": epilogue}
    module = emmy.compile(text, target="sm_90a", schedule=schedule)
    by_threads = re.search(r"cp\.async\.c[ag]\.|ld\.global", module.ptx) is not None
    assert by_threads == (transport == "auto")
    a, b = operands((104, 72, 64), "nt", "f16")
    v = np.random.default_rng(5).integers(-9, 9, [int(s) for s in shape.split("x")]).astype(DTYPES[element])
    (c,), _ = run_on_emulator(module.portable_artefact, "mm", (a, b, v))
    sums = a.astype(np.float64) @ b.astype(np.float64).T + v.astype(np.float64)
    np.testing.assert_array_equal(c, np.maximum(sums, 0).astype(np.float16))


@pytest.mark.parametrize("roles", FORMS)
@pytest.mark.parametrize("unroll", [2, 3, 5])
@pytest.mark.parametrize("k", [32, 96, 200, 416])
def test_unrolled_loops_and_what_is_left(k: int, unroll: int, roles: str):
    check((64, 64, k), roles, schedule={**SMALL, "unroll": unroll})
    check((64, 64, k), roles, schedule={**SMALL, "unroll": unroll}, dynamic="K")


# ---- hand-written level 3: what is refused ---------------------------------------------------------------------------

KERNEL = """
builtin.module {{
  tile.kernel @k(%a: !tile.view<{view}xf16>) {{
    async_copy.pipeline @in stages 1 {{a = !tile.tile<{tile}xf16>}} {{full_count = 1 : i64, tx_bytes = {bytes} : i64}}
    %c0 = arith.constant 0 : index
    async_copy.role "main" warps {warps} {regs} {{
      %cursor = async_copy.begin_fill @in
      %slot, %next = async_copy.slot @in[%cursor] : !async_copy.cursor<@in, fill>
      async_copy.elect {{
        async_copy.expect_tx @in, %slot bytes {bytes}
        async_copy.tma_load %a[{at}] -> %slot["a"] : !tile.view<{view}xf16> -> !async_copy.slot<@in, fill>
      }}
    }}
    {more}
  }}
}}"""


def lowered(
    view: str,
    tile: str,
    bytes: int,
    rank: int,
    warps: int = 1,
    regs: str = "",
    more: str = "",
    passes: str = "allocate-shared,",
) -> KernelOp:
    at = ", ".join(["%c0"] * rank)
    text = KERNEL.format(view=view, tile=tile, bytes=bytes, warps=warps, regs=regs, at=at, more=more)
    module = parse_module(text, "test")
    for one in parse_passes(f"{passes}lower-to-ptx", "sm_90a"):
        one.apply(make_context(), module)
    verify_module(module)
    return next(op for op in module.walk() if isinstance(op, KernelOp))


@pytest.mark.parametrize(
    ("view", "tile", "rank", "box", "swizzle", "loads"),
    [
        ("512x128", "128x64", 2, (128, 64), 128, 1),
        ("512x128", "128x128", 2, (128, 64), 128, 2),
        ("512x128", "320x64", 2, (160, 64), 128, 2),
        ("512x128", "64x32", 2, (64, 32), 64, 1),
        ("512x80", "64x80", 2, (64, 16), 32, 5),
        ("4x512x128", "64x64", 3, (1, 64, 64), 128, 1),
        ("4x512x128", "2x64x64", 3, (1, 64, 64), 128, 2),
        ("2x3x4x512x128", "64x64", 5, (1, 1, 1, 64, 64), 128, 1),
        ("4096", "512", 1, (256,), 0, 2),
        ("4096x64", "4x64", 2, (4, 64), 0, 1),
    ],
)
def test_boxes_and_tensor_maps(view: str, tile: str, rank: int, box: tuple[int, ...], swizzle: int, loads: int):
    kernel = lowered(view, tile, math.prod(int(n) for n in tile.split("x")) * 2, rank)
    (found,) = kernel.maps
    assert (found.view, found.box, found.swizzle) == (0, box, swizzle)
    assert [p.data for p in kernel.params] == ["pointer 0", "tensor_map 0"]
    assert sum("bulk_tensor" in op.name for op in kernel.walk()) == loads


PRODUCER = 'async_copy.role "producer" warps 4 regs {} {{ async_copy.warp_sync }}'


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bytes": 4096}, "the slot expects 4096 bytes and its TMA loads bring 8192"),
        ({"view": "1x1x1x1x64x64", "rank": 6}, "TMA moves boxes of at most 5 dimensions, and the view has 6"),
        (
            {"view": "64x48", "tile": "5x48", "bytes": 480},
            "TMA cannot move a tile of 5x48 elements of 2 bytes in aligned boxes",
        ),
        ({"passes": ""}, "pipeline @in has no place in shared memory; run allocate-shared"),
        (
            {"warps": 8, "regs": "regs 240", "more": PRODUCER.format(40)},
            "the roles want 66560 registers, and 384 threads that start with 168 each have 64512",
        ),
    ],
)
def test_what_cannot_be_lowered_is_one_sentence(change: dict[str, object], message: str):
    with pytest.raises(EmmyError, match=re.escape(message)) as caught:
        lowered(**{"view": "64x64", "tile": "64x64", "bytes": 8192, "rank": 2, **change})
    assert caught.value.location is not None


# ---- what ptxas makes of it ------------------------------------------------------------------------------------------

LARGE = {"block": [128, 256, 64], "warps": [2, 4], "stages": 4}
MIDDLE = {"block": [128, 128, 64], "warps": [2, 2], "stages": 3}
CARDS = {"sm_90a": LARGE, "sm_120a": MIDDLE}


@needs_ptxas
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("roles", FORMS)
@pytest.mark.parametrize(
    ("sizes", "form"),
    [
        ((4096, 4096, 4096), {}),
        ((4096, 4096, 4096), {"layout": "tn"}),
        ((4000, 4000, 4000), {"layout": "nn"}),
        ((4, 4096, 4096, 4096), {}),
        ((4096, 4096, 4096), {"dynamic": "MNK"}),
    ],
    ids=str,
)
def test_large_tiles_assemble_without_spills_or_notes(
    sizes: tuple[int, ...], form: dict[str, str], roles: str, target: str
):
    ptx = compiled(sizes, roles, target, CARDS[target], **form).ptx
    made = assemble(ptx, target)  # raises EmmyError for a spill and for what ptxas ignores: setmaxnreg is effective
    (resources,) = made.kernels.values()
    assert resources.stack_bytes == 0
    assert made.messages == ()


BOUNDS = {
    # (target, roles, steps a body): most instructions of a step beside HMMA, LDSM and fillers
    ("sm_90a", "unified", 1): 42,
    ("sm_90a", "unified", 4): 20,
    ("sm_90a", "specialized", 1): 22,
    ("sm_90a", "specialized", 4): 10,
    ("sm_120a", "unified", 1): 40,
    ("sm_120a", "unified", 3): 20,
    ("sm_120a", "specialized", 1): 22,
    ("sm_120a", "specialized", 3): 10,
}


@needs_ptxas
@needs_nvdisasm
@pytest.mark.parametrize(("target", "roles", "unroll"), BOUNDS)
def test_the_main_loop_holds_what_it_must_and_little_else(target: str, roles: str, unroll: int):
    module = compiled((4096,) * 3, roles, target, {**CARDS[target], "unroll": unroll})
    mix = main_loop_mix(sass(assemble(module.ptx, target).cubin), "mm_kernel")
    unified = roles == "unified"
    fixed = {"HMMA": 128, "LDSM": 32, "SYNCS": 2, "UTMALDG": 2 * unified, "BAR": unified}
    assert {name: mix.pop(name, 0) for name in fixed} == {name: unroll * count for name, count in fixed.items()}
    fillers = mix.pop("@!UPT UIADD3", 0)
    assert sum(mix.values()) <= unroll * BOUNDS[target, roles, unroll]
    assert fillers <= unroll * (125 if target == "sm_120a" else 6)
    assert not {"R2UR", "CALL", "LDL", "STL", "VOTE", "LDGSTS"} & set(mix)
