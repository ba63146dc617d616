"""ldmatrix, stmatrix and mma.sync of the emulator against their definitions, with several warps at once."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from emmy.emulator import Emulator, EmulatorError, Uninitialised

BF16 = ml_dtypes.bfloat16


def kernel(body: str, version: str = "8.7") -> Emulator:
    """A kernel of (in, out): %t thread, %l lane, %w warp, %smem the shared array."""
    return Emulator(f"""
.version {version}
.target sm_90
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out)
{{
.reg .pred %p<4>;
.reg .b32 %r<40>;
.reg .b32 %t, %l, %w, %s, %smem;
.reg .b64 %rd<4>;
.reg .b64 %in, %out;
.shared .align 128 .b8 smem[16384];
ld.param.u64 %in, [in];
ld.param.u64 %out, [out];
mov.u32 %t, %tid.x;
and.b32 %l, %t, 31;
shr.u32 %w, %t, 5;
mov.u32 %smem, smem;
{body}
ret;
}}
""")


def run(body: str, source: np.ndarray, out: np.ndarray, threads: int = 64, order="fixed"):
    report = kernel(body).launch("k", (1, 1, 1), (threads, 1, 1), [source, Uninitialised(out)], order=order)
    return out, report


def store_registers(first: int, count: int) -> str:
    """Thread t stores its registers to words count * t, ... of out."""
    lines = [f"mul.wide.u32 %rd0, %t, {4 * count};", "add.s64 %rd0, %rd0, %out;"]
    lines += [f"st.global.b32 [%rd0+{4 * i}], %r{first + i};" for i in range(count)]
    return "\n".join(lines)


# Each warp fills its own 512 bytes: row r (16 bytes) of its 32 rows comes from row 32 * warp + r of `in`.
FILL = """
shl.b32 %r30, %t, 4;
cvt.u64.u32 %rd1, %r30;
add.s64 %rd1, %rd1, %in;
ld.global.v4.b32 {%r31, %r32, %r33, %r34}, [%rd1];
add.u32 %s, %r30, %smem;
st.shared.v4.b32 [%s], {%r31, %r32, %r33, %r34};
bar.warp.sync 0xffffffff;
"""


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix(count, transposed):
    matrices = np.random.default_rng(0).integers(0, 2**16, (2, 4, 8, 8)).astype(np.uint16)
    registers = ", ".join(f"%r{i}" for i in range(count))
    trans = ".trans" if transposed else ""
    body = f"{FILL} ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{registers}}}, [%s];"
    out, report = run(body + store_registers(0, count), matrices, np.zeros((64, count), np.uint32))
    halves = out.view(np.uint16).reshape(2, 32, count, 2)
    wanted = matrices.transpose(0, 1, 3, 2) if transposed else matrices
    for warp in range(2):
        for lane in range(32):
            for j in range(count):
                pair = wanted[warp, j, lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2]
                np.testing.assert_array_equal(halves[warp, lane, j], pair)
    assert report.instructions["ldmatrix"] == 2
    assert report.total_bank_conflicts == 0


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_stmatrix_is_the_mirror_of_ldmatrix(count, transposed):
    matrices = np.random.default_rng(0).integers(0, 2**16, (2, 4, 8, 8)).astype(np.uint16)
    registers = ", ".join(f"%r{i}" for i in range(count))
    trans = ".trans" if transposed else ""
    body = f"""{FILL}
    ldmatrix.sync.aligned.m8n8.x{count}.shared.b16 {{{registers}}}, [%s];
    add.u32 %r20, %s, 4096;
    stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r20], {{{registers}}};
    bar.warp.sync 0xffffffff;
    setp.lt.u32 %p0, %l, {8 * count};
    @%p0 ld.shared.v4.b32 {{%r31, %r32, %r33, %r34}}, [%r20];
    add.s64 %rd1, %rd1, %out; sub.s64 %rd1, %rd1, %in;
    @%p0 st.global.v4.b32 [%rd1], {{%r31, %r32, %r33, %r34}};
    """
    out, _ = run(body, matrices, np.zeros((2, 4, 8, 8), np.uint16))
    wanted = matrices.transpose(0, 1, 3, 2) if transposed else matrices
    np.testing.assert_array_equal(out[:, :count], wanted[:, :count])


def test_matrix_access_needs_a_warp_barrier_and_whole_warps():
    load = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%s];"
    without = FILL.replace("bar.warp.sync 0xffffffff;", "")
    source, out = np.zeros(4096, np.uint8), np.zeros(16, np.uint32)
    with pytest.raises(EmulatorError, match=r"race: reads .* all lanes"):
        run(without + load, source, out)
    with pytest.raises(EmulatorError, match="all 32 lanes"):
        run(FILL + load, source, out, threads=40)
    with pytest.raises(EmulatorError, match="they disagree"):
        run(FILL + "setp.lt.u32 %p0, %l, 8; @%p0 " + load, source, out)
    with pytest.raises(EmulatorError, match="misaligned"):
        run(FILL + "add.u32 %s, %s, 8;" + load, source, out)
    uniform = FILL + "setp.eq.u32 %p0, %w, 1; @%p0 " + load
    assert run(uniform, source, out)[1].instructions["ldmatrix"] == 1


def test_ldmatrix_bank_conflicts():
    """Rows 64 bytes apart: a phase of 8 rows meets in two groups of banks, 4 wavefronts."""
    body = """
    mad.lo.u32 %s, %t, 256, %smem; mov.u32 %r1, 0;
    """ + "".join(f"st.shared.v4.b32 [%s+{16 * i}], {{%r1, %r1, %r1, %r1}};" for i in range(16))
    body += """bar.sync 0;
    mad.lo.u32 %s, %l, 64, %smem;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r2, %r3, %r4, %r5}, [%s];
    """
    emulator = kernel(body)
    report = emulator.launch("k", (1, 1, 1), (64, 1, 1), [np.zeros(4), np.zeros(4)])
    line = next(i.line for i in emulator.kernels["k"].instructions if i.opcode.startswith("ldmatrix"))
    assert report.bank_conflicts[line] == 2 * 4 * 3


ATOMS = [
    ("m16n8k16", "f32", "f16", "f16"),
    ("m16n8k16", "f16", "f16", "f16"),
    ("m16n8k16", "f32", "bf16", "bf16"),
    ("m16n8k8", "f32", "f16", "f16"),
    ("m16n8k8", "f16", "f16", "f16"),
    ("m16n8k8", "f32", "bf16", "bf16"),
    *(("m16n8k32", sums, a, b) for sums in ("f32", "f16") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")),
    *(("m16n8k16", sums, "e4m3", "e5m2") for sums in ("f32", "f16")),
]
DTYPES = {"f16": np.float16, "bf16": BF16, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def fragments(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Register words [32 lanes, A B C registers] of one warp, element by element from the PTX manual's maps."""
    k, each = a.shape[1], 4 // a.itemsize
    words = []
    for lane in range(32):
        g, t = lane // 4, lane % 4
        row: list[np.ndarray] = []
        for half in range(k // (4 * each)):
            for r in (g, g + 8):
                row.append(a[r, 4 * each * half + each * t :][:each])
        for half in range(k // (4 * each)):
            row.append(b[4 * each * half + each * t :, g][:each])
        for r in (g, g + 8):
            row.append(c[r, 2 * t : 2 * t + 2])
        words.append(np.concatenate([np.ascontiguousarray(x).view(np.uint8) for x in row]))
    return np.stack(words).view(np.uint32)


def run_mma(atom: tuple, a: np.ndarray, b: np.ndarray, c: np.ndarray, order: str = "fixed") -> np.ndarray:
    """D of each warp: a [warps, 16, k], b [warps, k, 8], c [warps, 16, 8] -> [warps, 16, 8]."""
    shape, sums, a_type, b_type = atom
    source = np.concatenate([fragments(*x) for x in zip(a, b, c, strict=True)])
    steps, count = a.shape[2] * a.itemsize // 16, 4 if sums == "f32" else 2
    total = source.shape[1]
    loads = [f"mul.wide.u32 %rd1, %t, {4 * total};", "add.s64 %rd1, %rd1, %in;"]
    loads += [f"ld.global.b32 %r{i}, [%rd1+{4 * i}];" for i in range(total)]

    def vector(first: int, n: int) -> str:
        return "{" + ", ".join(f"%r{i}" for i in range(first, first + n)) + "}"

    body = f"""{chr(10).join(loads)}
    mma.sync.aligned.{shape}.row.col.{sums}.{a_type}.{b_type}.{sums} {vector(30, count)}, {vector(0, 2 * steps)},
        {vector(2 * steps, steps)}, {vector(3 * steps, count)};
    """
    warps = a.shape[0]
    dtype = c.dtype
    out, report = run(
        body + store_registers(30, count), source, np.zeros((32 * warps, count), np.uint32), 32 * warps, order
    )
    assert report.instructions["mma"] == warps
    pairs = out.view(dtype).reshape(warps, 8, 4, 2, 2)  # lane group, lane in group, row half, column parity
    return pairs.transpose(0, 3, 1, 2, 4).reshape(warps, 16, 8)


@pytest.mark.parametrize("atom", ATOMS)
@pytest.mark.parametrize("order", ["fixed", "reversed"])
def test_mma_is_exact_on_integers(atom, order):
    rng = np.random.default_rng(3)
    k = int(atom[0].split("k")[1])
    sum_dtype = np.float32 if atom[1] == "f32" else np.float16
    a = rng.integers(-5, 6, (3, 16, k)).astype(DTYPES[atom[2]])
    b = rng.integers(-5, 6, (3, k, 8)).astype(DTYPES[atom[3]])
    c = rng.integers(-9, 10, (3, 16, 8)).astype(sum_dtype)
    expected = a.astype(np.int64) @ b.astype(np.int64) + c.astype(np.int64)
    np.testing.assert_array_equal(run_mma(atom, a, b, c, order).astype(np.float64), expected)


@pytest.mark.parametrize("atom", ATOMS)
def test_mma_rounds_once_and_propagates(atom):
    rng = np.random.default_rng(4)
    k = int(atom[0].split("k")[1])
    sum_dtype = np.float32 if atom[1] == "f32" else np.float16
    a = rng.standard_normal((1, 16, k)).astype(DTYPES[atom[2]])
    b = rng.standard_normal((1, k, 8)).astype(DTYPES[atom[3]])
    c = rng.standard_normal((1, 16, 8)).astype(sum_dtype)
    infinite = atom[3] != "e4m3"
    a[0, 3, 1], b[0, 2, 5] = np.nan, np.inf if infinite else -448.0
    with np.errstate(all="ignore"):
        expected = (a.astype(np.float64) @ b.astype(np.float64) + c).astype(sum_dtype)
    got = run_mma(atom, a, b, c)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    # The order of a float64 sum may differ in its last bit, which can move one final rounding.
    tolerance = 2 * float(np.finfo(sum_dtype).eps)
    np.testing.assert_allclose(got.astype(float), expected.astype(float), rtol=tolerance, atol=tolerance)
    assert np.isnan(got[0, 3]).all()
    assert np.isinf(got[0, [0, 1, 2, *range(4, 16)], 5]).all() == infinite


def test_unknown_atoms_are_rejected():
    for spelling in (
        "m16n8k16.row.col.f16.bf16.bf16.f16",
        "m16n8k16.row.col.f32.f16.bf16.f32",
        "m16n8k4.row.col.f32.f16.f16.f32",
        "m16n8k8.row.col.f16.e4m3.e4m3.f16",
        "m16n8k32.row.col.f32.e4m3.f16.f32",
    ):
        with pytest.raises(EmulatorError, match=r"no atom|missing"):
            kernel(
                f"mma.sync.aligned.{spelling} {{%r0,%r1,%r2,%r3}}, {{%r4,%r5,%r6,%r7}}, {{%r8,%r9}}, {{%r0,%r1,%r2,%r3}};"
            )


@pytest.mark.parametrize("spelling", ["m16n8k32.row.col.f16.e4m3.e4m3.f16", "m16n8k16.row.col.f32.e4m3.e4m3.f32"])
def test_products_of_8_bits_that_came_with_8_7(spelling):
    """ptxas 13.0: "requires PTX ISA .version 8.7 or later"; sums in f32 of 32 elements are older."""
    with pytest.raises(EmulatorError, match=r"mma needs .version 8.7 and .target sm_89 or later, the text has 8.6"):
        kernel(f"mma.sync.aligned.{spelling} {{%r0}}, {{%r1}}, {{%r2}}, {{%r0}};", version="8.6")
