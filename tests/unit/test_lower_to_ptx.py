"""Level 3 to level 4, judged by running the printed text on the emulator (exact on small integers) and by assembling it.

Copies are by threads here, mostly cp.async; test_lower_to_ptx_tma.py is about those of TMA.
"""

import math
import re

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from emmy.assemble import assemble, find_tool, main_loop_mix, sass
from emmy.dialects.ptx import KernelOp
from emmy.emulator import Emulator, Report, Uninitialised
from emmy.errors import EmmyError
from emmy.ir import make_context, parse_module, verify_module
from emmy.lowering.print_ptx import print_ptx
from emmy.pipelines import pipeline_for
from emmy.registry import parse_passes

DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}
SMALL = "block = [64, 64, 32], warps = [2, 2], stages = 3, transport = cp_async"
TARGETS = ("sm_80", "sm_89", "sm_90a", "sm_120a")

needs_ptxas = pytest.mark.skipif(find_tool("ptxas") is None, reason="ptxas is not installed")
needs_nvdisasm = pytest.mark.skipif(find_tool("nvdisasm") is None, reason="nvdisasm is not installed")


def lower(text: str, target: str = "sm_90a") -> ModuleOp:
    """Through the default pipeline."""
    module = parse_module(text, "test")
    for step in pipeline_for(target):
        if not step.needs or any(op.name in step.needs for op in module.walk()):
            for one in parse_passes(step.spec, target):
                one.apply(make_context(), module)
    verify_module(module)
    return module


def kernel_of(module: ModuleOp) -> KernelOp:
    return next(op for op in module.walk() if isinstance(op, KernelOp))


def run(
    module: ModuleOp, arrays: list[np.ndarray], out: np.ndarray, ctas: int, target: str = "sm_90a", **mode
) -> Report:
    """Run the only kernel; the last view is `out`."""
    kernel, views = kernel_of(module), [*arrays, out]
    args: list[object] = []
    for param in kernel.params:
        word, number, *axis = param.data.split()
        view = views[int(number)]
        if word == "pointer":
            args.append(Uninitialised(out) if view is out else view)
        elif word == "dim":
            args.append(view.shape[int(axis[0])])
        else:
            args.append(view.strides[int(axis[0])] // view.itemsize)
    emulator = Emulator(print_ptx(module, target))
    threads, shared = kernel.threads.value.data, kernel.shared_bytes.value.data
    return emulator.launch(kernel.sym_name.data, (ctas, 1, 1), (threads, 1, 1), args, shared, **mode)


def matmul_text(
    sizes: tuple[int, int, int],
    layout: str = "nt",
    dtype: str = "f16",
    out: str | None = None,
    schedule: str = SMALL,
    dynamic: str = "",
    policy: str = "",
) -> str:
    """A product at level 1. layout: n or t for a (stored M x K, K x M) and b (K x N, N x K). dynamic: which of MNK are `?`."""
    m, n, k = ("?" if name in dynamic else size for name, size in zip("MNK", sizes, strict=True))
    a = f"tensor<{f'{k}x{m}' if layout[0] == 't' else f'{m}x{k}'}x{dtype}>"
    b = f"tensor<{f'{n}x{k}' if layout[1] == 't' else f'{k}x{n}'}x{dtype}>"
    c = f"tensor<{m}x{n}x{out or dtype}>"
    flags = " transpose_a" * (layout[0] == "t") + " transpose_b" * (layout[1] == "t")
    flags += f" accumulate<{policy}>" if policy else ""
    return f"""func.func @mm(%a: {a}, %b: {b}) -> {c} {{
      %y = tensor_op.matmul %a, %b{flags} {{emmy.schedule = #tile.schedule<{schedule}>}} : ({a}, {b}) -> {c}
      func.return %y : {c}
    }}"""


def operands(sizes: tuple[int, int, int], layout: str, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Small integers: every sum is exact in every accumulator."""
    m, n, k = sizes
    random = np.random.default_rng(m + 7 * n + 31 * k)
    a = random.integers(-3, 4, (k, m) if layout[0] == "t" else (m, k)).astype(DTYPES[dtype])
    b = random.integers(-3, 4, (n, k) if layout[1] == "t" else (k, n)).astype(DTYPES[dtype])
    return a, b


def product(a: np.ndarray, b: np.ndarray, layout: str) -> np.ndarray:
    x, y = a.astype(np.float64), b.astype(np.float64)
    return (x.T if layout[0] == "t" else x) @ (y.T if layout[1] == "t" else y)


def ctas_of(sizes: tuple[int, int, int], schedule: str) -> int:
    block = [int(x) for x in schedule.split("[")[1].split("]")[0].split(",")]
    return math.ceil(sizes[0] / block[0]) * math.ceil(sizes[1] / block[1])


def check(
    sizes: tuple[int, int, int],
    layout: str = "nt",
    dtype: str = "f16",
    out: str | None = None,
    schedule: str = SMALL,
    target: str = "sm_90a",
    dynamic: str = "",
    policy: str = "",
    **mode,
) -> Report:
    module = lower(matmul_text(sizes, layout, dtype, out, schedule, dynamic, policy), target)
    a, b = operands(sizes, layout, dtype)
    c = np.full(sizes[:2], np.nan, DTYPES[out or dtype])
    report = run(module, [a, b], c, ctas_of(sizes, schedule), target, **mode)
    np.testing.assert_array_equal(c.astype(np.float64), product(a, b, layout).astype(c.dtype).astype(np.float64))
    return report


LAYOUTS = ("nn", "nt", "tn", "tt")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_whole_tiles_are_exact_and_free_of_bank_conflicts(layout: str):
    report = check((128, 128, 96), layout)
    assert report.total_bank_conflicts == 0
    products = sum(count for kind, count in report.instructions.items() if kind.startswith("mma"))
    assert products == 4 * 4 * 3 * 2 * 8  # CTAs, warps, k-tiles, k-steps, atoms


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "sizes", [(100, 72, 40), (1, 8, 8), (65, 64, 33), (70, 65, 31), (64, 64, 1), (64, 64, 0), (130, 66, 64)], ids=str
)
def test_ragged_sizes(sizes: tuple[int, int, int], layout: str):
    check(sizes, layout)


@pytest.mark.parametrize("layout", ["nt", "tn"])
@pytest.mark.parametrize("dynamic", ["M", "N", "K", "MNK"])
def test_sizes_known_at_run_time(dynamic: str, layout: str):
    """Rows of whole 16 bytes, as the first variant of a kernel wants them; for others there are further variants."""
    check((104, 72, 40), layout, dynamic=dynamic)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("dtype", "out"), [("f16", "f16"), ("bf16", "bf16"), ("f16", "f32"), ("bf16", "f32")])
def test_dtypes_on_every_target(target: str, dtype: str, out: str):
    check((72, 64, 64), "nn", dtype, out, target=target)


@pytest.mark.parametrize("sizes", [(128, 128, 64), (100, 71, 40)], ids=str)
def test_f16_accumulators(sizes: tuple[int, int, int]):
    check(sizes, policy="f16")


@pytest.mark.parametrize("out", ["f16", "f32"])
@pytest.mark.parametrize("sizes", [(128, 128, 64), (100, 72, 40), (100, 71, 40)], ids=str)
def test_results_straight_from_registers(sizes: tuple[int, int, int], out: str):
    check(sizes, out=out, schedule=f"{SMALL}, epilogue = direct")


@pytest.mark.parametrize(
    "schedule",
    [
        "block = [96, 96, 64], warps = [3, 2], stages = 2",
        "block = [64, 192, 32], warps = [2, 3], stages = 4",
        "block = [16, 16, 16], warps = [1, 1], stages = 2",
        "block = [32, 320, 16], warps = [1, 4], stages = 1",
        "block = [128, 64, 48], warps = [4, 1], stages = 3",
        "block = [64, 80, 80], warps = [1, 1], stages = 2",
        "block = [48, 48, 16], warps = [3, 1], stages = 3",
        "block = [64, 64, 128], warps = [2, 2], stages = 2, fragments = 1",
    ],
)
@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_other_schedules(schedule: str, layout: str):
    check((130, 200, 72), layout, schedule=f"{schedule}, transport = cp_async")


@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_plain_copies(layout: str):
    check((130, 200, 72), layout, schedule=SMALL.replace("cp_async", "plain"))


@pytest.mark.parametrize("landing", ["late", "early", "random"])
@pytest.mark.parametrize("order", ["fixed", "reversed", "random"])
def test_any_landing_and_order(landing: str, order: str):
    check((64, 128, 160), landing=landing, order=order, seed=3)


def test_strides_are_parameters_in_elements():
    text = """
    builtin.module {
      tile.kernel @k(%a: !tile.view<?x64xf16, strides [?, 1]>, %b: !tile.view<64x64xf16>, %c: !tile.view<?x64xf16>)
          schedule <block = [64, 64, 32], warps = [2, 2], stages = 2, transport = cp_async> {
        %M = tile.dim %a, 0 : !tile.view<?x64xf16, strides [?, 1]>
        %N = arith.constant 64 : index
        %c0 = arith.constant 0 : index
        %c32 = arith.constant 32 : index
        %m, %n = tile.grid [%M by 64, %N by 64] raster 1
        %zero = tile.fill 0.0 : f32 : !tile.tile<64x64xf32>
        %acc = scf.for %k = %c0 to %N step %c32 iter_args(%s = %zero) -> (!tile.tile<64x64xf32>) {
          %x = tile.load %a[%m, %k] : !tile.view<?x64xf16, strides [?, 1]> -> !tile.tile<64x32xf16>
          %y = tile.load %b[%n, %k] : !tile.view<64x64xf16> -> !tile.tile<64x32xf16>
          %d = tile.dot %x, %y into %s transpose_b
            : (!tile.tile<64x32xf16>, !tile.tile<64x32xf16>, !tile.tile<64x64xf32>) -> !tile.tile<64x64xf32>
          scf.yield %d : !tile.tile<64x64xf32>
        }
        %out = tile.cast %acc : !tile.tile<64x64xf32> to !tile.tile<64x64xf16>
        tile.store %out, %c[%m, %n] : !tile.tile<64x64xf16>, !tile.view<?x64xf16>
      }
    }"""
    module = lower(text)
    assert [p.data for p in kernel_of(module).params] == [
        "pointer 0", "dim 0 0", "stride 0 0", "pointer 1", "pointer 2", "dim 2 0",
    ]  # fmt: skip
    a, b = operands((70, 64, 64), "nt", "f16")
    padded = np.zeros((70, 80), np.float16)
    padded[:, :64] = a
    c = np.full((70, 64), np.nan, np.float16)
    args = [padded, 70, 80, b, Uninitialised(c), 70]
    kernel = kernel_of(module)
    emulator = Emulator(print_ptx(module, "sm_90a"))
    emulator.launch("k", (2, 1, 1), (128, 1, 1), args, kernel.shared_bytes.value.data)
    np.testing.assert_array_equal(c, product(a, b, "nt").astype(np.float16))


@pytest.mark.parametrize("element", ["f16", "f32"])
@pytest.mark.parametrize("shape", ["1x72", "72", "100x72", "100x1"])
@pytest.mark.parametrize("epilogue", ["shared", "direct"])
def test_an_epilogue_with_another_operand(shape: str, element: str, epilogue: str):
    schedule = f"{SMALL}, epilogue = {epilogue}"
    types = f"%a: tensor<100x64xf16>, %b: tensor<72x64xf16>, %v: tensor<{shape}x{element}>"
    text = f"""func.func @mm({types}) -> tensor<100x72xf16> {{
      %y = tensor_op.matmul %a, %b transpose_b {{emmy.schedule = #tile.schedule<{schedule}>}}
        : (tensor<100x64xf16>, tensor<72x64xf16>) -> tensor<100x72xf32>
      %z = tensor_op.map add %y, %v : (tensor<100x72xf32>, tensor<{shape}x{element}>) -> tensor<100x72xf32>
      %w = tensor_op.map relu %z : (tensor<100x72xf32>) -> tensor<100x72xf32>
      %o = tensor_op.cast %w : tensor<100x72xf32> to tensor<100x72xf16>
      func.return %o : tensor<100x72xf16>
    }}"""
    module = lower(text)
    a, b = operands((100, 72, 64), "nt", "f16")
    v = np.random.default_rng(5).integers(-9, 9, [int(s) for s in shape.split("x")]).astype(DTYPES[element])
    out = np.full((100, 72), np.nan, np.float16)
    run(module, [a, b, v], out, 4)
    np.testing.assert_array_equal(out, np.maximum(product(a, b, "nt") + v.astype(np.float64), 0).astype(np.float16))


# ---- fragments, by hand-written level 3 ------------------------------------------------------------------------------

F32 = "!mma.fragment<16x16xf32, c, m16n8k16>"
HALF = "!mma.fragment<16x16xf16, c, m16n8k16>"
COLUMN = "!mma.fragment<16x1xf32, c, m16n8k16>"


def fragment_kernel(body: str, element: str = "f32") -> ModuleOp:
    """One warp; %x is the fragment of the 16 x 16 view %a (through shared memory); %c receives what `body` stores."""
    type_ = F32 if element == "f32" else HALF
    text = f"""
    builtin.module {{
      tile.kernel @k(%a: !tile.view<16x16x{element}>, %c: !tile.view<16x16x{element}>) {{
        async_copy.pipeline @in stages 1 {{a = !tile.tile<16x16x{element}>}}
        %c0 = arith.constant 0 : index
        async_copy.role "main" warps 1 {{
          %cursor = async_copy.begin_fill @in
          %slot, %next = async_copy.slot @in[%cursor] : !async_copy.cursor<@in, fill>
          async_copy.plain_copy %a[%c0, %c0] -> %slot["a"] bytes 16 : !tile.view<16x16x{element}> -> !async_copy.slot<@in, fill>
          async_copy.barrier
          %read = async_copy.begin_read @in
          %s, %n = async_copy.slot @in[%read] : !async_copy.cursor<@in, read>
          %x = mma.load %s["a"][%c0, %c0] : !async_copy.slot<@in, read> -> {type_}
          {body}
        }}
      }}
    }}"""
    module = parse_module(text, "test")
    for one in parse_passes("allocate-shared,lower-to-ptx", "sm_90a"):
        one.apply(make_context(), module)
    verify_module(module)
    return module


def run_fragment(body: str, a: np.ndarray) -> np.ndarray:
    out = np.full((16, 16), np.nan, a.dtype)
    run(fragment_kernel(body, "f32" if a.dtype == np.float32 else "f16"), [a], out, 1)
    return out


def store(name: str) -> str:
    return f"mma.store_global %{name} -> %c[%c0, %c0] : {F32} -> !tile.view<16x16xf32>"


MAPS = {
    "neg": lambda x: -x,
    "abs": np.abs,
    "exp": np.exp,
    "exp2": np.exp2,
    "rcp": lambda x: 1 / x,
    "sqrt": lambda x: np.sqrt(np.abs(x)),
    "rsqrt": lambda x: 1 / np.sqrt(np.abs(x)),
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x**3))),
}


@pytest.mark.parametrize("kind", MAPS)
def test_elementwise_functions_are_accurate_to_f32(kind: str):
    a = np.random.default_rng(1).normal(size=(16, 16)).astype(np.float32) * 3
    if "sqrt" in kind:
        a = np.abs(a) + np.float32(0.1)
    out = run_fragment(f"%y = mma.map {kind} %x : ({F32}) -> {F32}\n{store('y')}", a)
    np.testing.assert_allclose(out, MAPS[kind](a.astype(np.float64)), rtol=2e-6, atol=5e-7)


def test_functions_of_two_and_three_operands_and_scalars():
    body = f"""
      %half = arith.constant 0.5 : f32
      %row = mma.reduce max %x : {F32} -> {COLUMN}
      %d = mma.map sub %x, %row : ({F32}, {COLUMN}) -> {F32}
      %big = mma.map ge %x, %half : ({F32}, f32) -> {F32}
      %t = mma.map fma %d, %half, %x : ({F32}, f32, {F32}) -> {F32}
      %y = mma.map select %big, %t, %d : ({F32}, {F32}, {F32}) -> {F32}
      {store("y")}
    """
    a = np.random.default_rng(2).integers(-8, 8, (16, 16)).astype(np.float32)
    d = a - a.max(axis=1, keepdims=True)
    np.testing.assert_array_equal(run_fragment(body, a), np.where(a >= 0.5, d * 0.5 + a, d))


def test_a_row_sum():
    body = f"""
      %row = mma.reduce sum %x : {F32} -> {COLUMN}
      %y = mma.map add %x, %row : ({F32}, {COLUMN}) -> {F32}
      {store("y")}
    """
    a = np.random.default_rng(3).integers(-8, 8, (16, 16)).astype(np.float32)
    np.testing.assert_array_equal(run_fragment(body, a), a + a.sum(axis=1, keepdims=True))


def test_nan_passes_through_relu_and_max():
    a = np.ones((16, 16), np.float32)
    a[3, 5] = np.nan
    out = run_fragment(f"%y = mma.map relu %x : ({F32}) -> {F32}\n{store('y')}", a)
    assert np.isnan(out[3, 5])
    assert np.isnan(out).sum() == 1


def test_slices_are_joined_in_another_order():
    part = "!mma.fragment<16x8xf32, c, m16n8k16>"
    body = f"""
      %l = mma.slice %x at [0, 0] : {F32} -> {part}
      %r = mma.slice %x at [0, 8] : {F32} -> {part}
      %y = mma.join %r, %l axis 1 : {part}, {part} -> {F32}
      {store("y")}
    """
    a = np.arange(256, dtype=np.float32).reshape(16, 16)
    np.testing.assert_array_equal(run_fragment(body, a), np.concatenate([a[:, 8:], a[:, :8]], axis=1))


def test_an_f16_accumulator_is_the_next_a_operand():
    a_type = "!mma.fragment<16x16xf16, a, m16n8k16>"
    b_type = "!mma.fragment<16x16xf16, b, m16n8k16>"
    body = f"""
      %p = mma.convert %x : {HALF} to {a_type}
      %b = mma.load %s["a"][%c0, %c0] : !async_copy.slot<@in, read> -> {b_type}
      %zero = mma.fill 0.0 : f32 : {F32}
      %d = mma.mma %p, %b, %zero : ({a_type}, {b_type}) -> {F32}
      %y = mma.convert %d : {F32} to {HALF}
      mma.store_global %y -> %c[%c0, %c0] : {HALF} -> !tile.view<16x16xf16>
    """
    a = np.random.default_rng(4).integers(-4, 5, (16, 16)).astype(np.float16)
    wide = a.astype(np.float64)
    np.testing.assert_array_equal(run_fragment(body, a), (wide @ wide.T).astype(np.float16))


# ---- index arithmetic ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("divisor", [1, 2, 3, 5, 6, 7, 10, 24, 32, 127, 641, 65537, 2**30, 2**31 - 1])
def test_division_by_constants_is_exact(divisor: int):
    from xdsl.dialects.builtin import i32, i64
    from xdsl.ir import Block, Region

    from emmy.lowering.ptx_builder import Builder

    block = Block(arg_types=[i64, i64])
    b = Builder(block)
    tid = b.pure("tid_x")
    at = b.pure("mad_wide_u32", tid, 4, block.args[0])
    x = b.emit("ld_global_b32", (at,), (0,)).results[0]
    to = b.pure("mad_wide_u32", tid, 4, block.args[1])
    for i, value in enumerate((b.divide(x, divisor), b.remainder(x, divisor))):
        b.emit("st_global_b32", (to, b.register(value, i32)), (128 * i,))
    kernel = KernelOp("k", 32, 1, 0, ["pointer 0", "pointer 1"], Region(block))
    x_values = np.random.default_rng(divisor).integers(0, 2**31, 32).astype(np.int32)
    x_values[:6] = [0, 1, divisor - 1, divisor % 2**31, 2**31 - 1, (2**31 - 1) // divisor * divisor - 1]
    out = np.zeros((2, 32), np.int32)
    text = print_ptx(ModuleOp([kernel]), "sm_90a")
    assert "div" not in text
    assert "rem" not in text
    Emulator(text).launch("k", (1, 1, 1), (32, 1, 1), [np.maximum(x_values, 0), Uninitialised(out)])
    np.testing.assert_array_equal(out[0], np.maximum(x_values, 0) // divisor)
    np.testing.assert_array_equal(out[1], np.maximum(x_values, 0) % divisor)


def test_rows_of_more_than_two_gigabytes_are_addressed_in_64_bits():
    text = matmul_text((128, 64, 2**31 - 1024), dynamic="")
    ptx = print_ptx(lower(text), "sm_90a")
    assert re.search(r"mul\.lo\.s64", ptx)  # 2^32 bytes do not fit the 32-bit factor of mad.wide
    for offset in re.findall(r"\[%rd\d+\+(-?\d+)\]", ptx):
        assert -(2**31) <= int(offset) < 2**31


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_what_level_4_cannot_have_is_named():
    canonical = (
        "tile.kernel @k(%a: !tile.view<16x16xf16>) { async_copy.pipeline @p stages 1 {a = !tile.tile<16x16xf16>} }"
    )
    for text, message in (
        (canonical, "kernel @k has no role; run place-roles"),
        (canonical[:-2] + ' async_copy.role "main" warps 1 {} }', "pipeline @p has no place in shared memory"),
        (
            'tile.kernel @k(%a: !tile.view<8xf16>) { async_copy.role "main" warps 1 { async_copy.drain @p } }',
            "no lowering of",
        ),
    ):
        module = parse_module(text, "test")
        with pytest.raises(EmmyError, match=re.escape(message)) as caught:
            parse_passes("lower-to-ptx", "sm_90a")[0].apply(make_context(), module)
        assert caught.value.location is not None


def test_a_conversion_that_needs_shuffles_is_refused():
    with pytest.raises(EmmyError, match="would exchange elements between lanes"):
        fragment_kernel(f"%y = mma.convert %x : {HALF} to !mma.fragment<16x16xf16, b, m16n8k16>", "f16")


# ---- what ptxas makes of it ------------------------------------------------------------------------------------------

LARGE = "block = [128, 256, 64], warps = [2, 4], stages = 3, transport = cp_async"
MIDDLE = "block = [128, 128, 64], warps = [2, 2], stages = 3, transport = cp_async"


@needs_ptxas
@pytest.mark.parametrize(
    ("target", "schedule"),
    [("sm_80", LARGE), ("sm_90a", LARGE), ("sm_89", MIDDLE), ("sm_120a", MIDDLE), ("sm_90a", MIDDLE)],
)
@pytest.mark.parametrize(
    ("sizes", "layout", "dynamic"),
    [
        ((4096, 4096, 4096), "nt", ""),
        ((4096, 4096, 4096), "tn", ""),
        ((4000, 4000, 4000), "nn", ""),
        ((4096, 4096, 3840), "nt", "M"),
        ((4096, 4096, 4096), "nt", "MNK"),
    ],
)
def test_large_tiles_assemble_without_spills(
    target: str, schedule: str, sizes: tuple[int, int, int], layout: str, dynamic: str
):
    module = lower(matmul_text(sizes, layout, schedule=schedule, dynamic=dynamic), target)
    ops = sum(1 for op in kernel_of(module).walk())
    assert ops <= 2000
    (resources,) = assemble(print_ptx(module, target), target).kernels.values()  # raises EmmyError for a spill
    assert resources.registers <= 255
    assert resources.stack_bytes == 0


@needs_ptxas
@needs_nvdisasm
@pytest.mark.parametrize(
    ("sizes", "layout", "most"),
    [((4096, 4096, 4096), "nt", 226), ((4096, 4096, 4096), "nn", 226), ((4000, 4000, 4000), "nt", 240)],
)
def test_the_main_loop_holds_what_it_must_and_little_else(sizes: tuple[int, int, int], layout: str, most: int):
    ptx = print_ptx(lower(matmul_text(sizes, layout, schedule=LARGE)), "sm_90a")
    mix = main_loop_mix(sass(assemble(ptx, "sm_90a").cubin), "mm_kernel")
    assert (mix["HMMA"], mix["LDSM"], mix["LDGSTS"], mix["BAR"]) == (128, 32, 12, 1)
    assert mix["@!PT LDS"] == 3  # trap 4: the copies are in one batch
    assert "MOV" not in mix
    assert sum(mix.values()) <= most
