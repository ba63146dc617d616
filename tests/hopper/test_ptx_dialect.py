"""The ops of Hopper at level 4: wgmma in all its forms, waits, clusters; printed, parsed, assembled and run."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hopper_texts import pack_a, place, unpack_sums
from hypothesis import given
from hypothesis import strategies as st
from xdsl.dialects import test as xdsl_test
from xdsl.dialects.builtin import f32, i1, i32, i64
from xdsl.utils.exceptions import VerifyException

from emmy.assemble import assemble, find_tool
from emmy.dialects.ptx import WgmmaForm, WgmmaMmaAsyncOp, WgmmaWaitGroupOp
from emmy.emulator import Emulator, EmulatorError, Uninitialised
from emmy.errors import EmmyError
from emmy.ir import parse_module, print_module, verify_module
from emmy.layout import OperandDescriptors, shared_layout
from emmy.lowering.print_ptx import print_ptx

needs_ptxas = pytest.mark.skipif(find_tool("ptxas") is None, reason="ptxas is not installed")


@st.composite
def forms(draw) -> WgmmaForm:
    a, b = draw(
        st.sampled_from(
            [("f16", "f16"), ("bf16", "bf16")] + [(x, y) for x in ("e4m3", "e5m2") for y in ("e4m3", "e5m2")]
        )
    )
    wide, in_registers = a in ("f16", "bf16"), draw(st.booleans())
    return WgmmaForm(
        8 * draw(st.integers(1, 32)),
        "f32" if a == "bf16" else draw(st.sampled_from(["f32", "f16"])),
        a,
        b,
        in_registers,
        draw(st.sampled_from(["one", "zero", "predicate"])),
        draw(st.booleans()),
        draw(st.booleans()),
        wide and not in_registers and draw(st.booleans()),
        wide and draw(st.booleans()),
    )


def kernel(*lines: str, head: str = "") -> str:
    body = "".join(f"  {line}\n" for line in lines)
    return (
        f"ptx.kernel @k(%out: i64, %image: i64, %n: i32) threads 128 min_ctas 1 shared_bytes 32768 {head}params "
        '["pointer 0", "pointer 1", "dim 0 0"] {\n' + body + "}\n"
    )


def ptx_of(text: str) -> str:
    module = parse_module(text, "test")
    verify_module(module)
    printed = print_module(module)
    assert print_module(parse_module(printed, "test")) == printed
    return print_ptx(module, "sm_90a")


def names(prefix: str, count: int) -> str:
    return ", ".join(f"%{prefix}{i}" for i in range(count))


def body_of(form: WgmmaForm) -> list[str]:
    """One wgmma of a form; sums begin at 0, %d is the descriptor of both operands."""
    count = form.registers
    zero = "0.0 : f32" if form.accumulator == "f32" else "0 : i32"
    store = "f32" if form.accumulator == "f32" else "b32"
    a = names("x", 4) if form.a_registers else "%d"
    operands = [a, "%d", *(["%p"] if form.scale_d == "predicate" else [])]
    operands += [names("s", count)] if form.scale_d != "zero" else []
    letter = "f" if form.accumulator == "f32" else "r"
    return [
        "%s = ptx.shared_base",
        "%c4 = ptx.constant 4 : i32",
        "%start = ptx.shr_u32 %s, %c4",
        "%wide = ptx.cvt_u64_u32 %start",
        "%fields = ptx.constant 4611686293305360384 : i64",
        "%d = ptx.add_s64 %wide, %fields",
        "%p = ptx.setp_eq_s32 %n, %c4",
        *[f"%x{i} = ptx.ld_global_b32 %image, {4 * i}" for i in range(4)],
        *[f"%s{i} = ptx.constant {zero}" for i in range(count)],
        "ptx.wgmma_fence",
        f'{names("e", count)} = ptx.wgmma_mma_async "{form.text}" {", ".join(operands)}',
        "ptx.wgmma_commit_group",
        f'{names("w", count)} = ptx.wgmma_wait_group 0 "{letter}{count}" {names("e", count)} keep "r4" {names("x", 4)}',
        *[f"ptx.st_global_{store} %out, %w{i}, {4 * i}" for i in range(count)],
    ]


@given(forms())
def test_forms_round_trip_and_print(form: WgmmaForm):
    form.check()
    assert WgmmaForm.of(form.text) == form
    text = ptx_of(kernel(*body_of(form)))
    (line,) = re.findall(r"wgmma.mma_async.*;", text)
    assert f".m64n{form.n}k{form.k}.{form.accumulator}.{form.a}.{form.b} {{" in line
    assert len(re.findall(r"%[fr]\d+", line.split("}")[0])) == form.registers
    assert "k" in Emulator(text).kernels


@needs_ptxas
@pytest.mark.parametrize("n", [8, 24, 96, 160])
@pytest.mark.parametrize(
    "words",
    [
        "",
        "zero",
        "predicate",
        "a_registers",
        "a_registers predicate transpose_b",
        "negate_a transpose_a",
        "zero negate_b",
    ],
)
def test_the_assembler_takes_the_forms(n: int, words: str):
    """Without a C75xx message: the sums need no move."""
    bases = ["f32.f16.f16", "f16.f16.f16", "f32.bf16.bf16", "f32.e4m3.e5m2", "f16.e5m2.e5m2"]
    for base in bases[: 3 if "transpose" in words else 5]:
        k = 32 if ".e" in base else 16
        form = WgmmaForm.of(f"m64n{n}k{k}.{base} {words}".strip())
        assert assemble(ptx_of(kernel(*body_of(form))), "sm_90a").messages == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m64n12k16.f32.f16.f16", "a multiple of 8 from 8 to 256, got 12"),
        ("m64n264k16.f32.f16.f16", "a multiple of 8 from 8 to 256, got 264"),
        ("m64n16k32.f32.f16.f16", "the k of wgmma with f16 operands is 16, got 32"),
        ("m64n16k16.f32.f16.bf16", "no operands of types f16 and bf16"),
        ("m64n16k16.f16.bf16.bf16", "accumulates in f32"),
        ("m64n16k32.f32.e4m3.e4m3 transpose_b", "8-bit operands K-major only"),
        ("m64n16k16.f32.f16.f16 a_registers transpose_a", "in registers is not transposed"),
        ("m64n16k16.f32.f16.f16 zero predicate", "is no form of wgmma"),
        ("m64n16k16.f32.f16.f16 transpose_b zero", "is no form of wgmma"),
        ("m64n16k16.f32.f32.f32", "is no form of wgmma"),
    ],
)
def test_what_is_no_form(text: str, message: str):
    with pytest.raises(VerifyException, match=re.escape(message)):
        WgmmaForm.of(text)
    with pytest.raises(EmmyError, match=re.escape(message)):
        verify_module(parse_module(kernel(f'"ptx.wgmma_mma_async"() <{{form = "{text}"}}> : () -> ()'), "test"))


def test_wrong_operands_are_rejected():
    with pytest.raises(EmmyError, match=re.escape("operands are (i64, i64), got ()")):
        verify_module(
            parse_module(kernel('"ptx.wgmma_mma_async"() <{form = "m64n8k16.f32.f16.f16 zero"}> : () -> ()'), "t")
        )
    with pytest.raises(EmmyError, match="the property 'form' is missing"):
        verify_module(parse_module(kernel('"ptx.wgmma_mma_async"() : () -> ()'), "t"))
    with pytest.raises(EmmyError, match="registers are counted as in"):
        parse_module(kernel('ptx.wgmma_wait_group 0 "f"'), "t")


def test_ops_are_made_from_values():
    values = xdsl_test.TestOp(result_types=[i64, i64, i1, *[f32] * 4, *[i32] * 4]).results
    b, sums, registers = values[1], values[3:7], values[7:]
    form = WgmmaForm(8, "f32", "f16", "f16", scale_d="predicate")
    op = WgmmaMmaAsyncOp.make(form, [values[0]], b, sums, values[2])
    assert op.form == form
    assert [r.type for r in op.results] == [f32] * 4
    op.verify()
    other = WgmmaMmaAsyncOp.make(WgmmaForm(8, "f16", "f16", "f16", a_registers=True), registers, b, registers[:2])
    other.verify()
    WgmmaMmaAsyncOp.make(WgmmaForm(8, "f32", "f16", "f16", scale_d="zero"), [values[0]], b).verify()
    wait = WgmmaWaitGroupOp.make(1, [*op.results, *other.results], registers)
    wait.verify()
    assert [r.type for r in wait.results] == [*[f32] * 4, *[i32] * 2]
    WgmmaWaitGroupOp.make(0, []).verify()


# Registers: what is in flight stays where it is.

DESCRIPTORS = (
    "%s = ptx.shared_base",
    "%tid = ptx.tid_x",
    "%c4 = ptx.constant 4 : i32",
    "%c0 = ptx.constant 0 : i32",
    "%c1 = ptx.constant 1 : i32",
    "%start = ptx.shr_u32 %s, %c4",
    "%wide = ptx.cvt_u64_u32 %start",
    "%fields = ptx.constant 4611686293305360384 : i64",
    "%da = ptx.add_s64 %wide, %fields",
    "%far = ptx.constant 512 : i64",
    "%db = ptx.add_s64 %da, %far",
    "%at = ptx.mad_wide_u32 %tid, %c4, %image",
    "%to = ptx.mad_wide_u32 %tid, %c4, %out",
    *[
        line
        for i in range(24)  # 12 KiB of the image, 512 bytes at a time
        for line in (f"%v{i} = ptx.ld_global_b32 %at, {512 * i}",)
    ],
    "%sa = ptx.mad_lo_s32 %tid, %c4, %s",
    *[f"ptx.st_shared_b32 %sa, %v{i}, {512 * i}" for i in range(24)],
    "ptx.fence_proxy_async_shared",
    "ptx.bar_sync 0",
)


def run(text: str, n: int, registers: int = 8) -> np.ndarray:
    """The sums of an m64n16 product of integers, of which `image` holds A (64 x 16) and B (16 x 16) 128B-swizzled."""
    random = np.random.default_rng(1)
    a, b = (random.integers(-3, 4, (rows, 16)).astype(np.float16) for rows in (64, 16))
    image = np.zeros(12288, np.uint8)
    for base, matrix in ((0, a), (8192, b)):
        offsets = shared_layout(64, 64, 2, 128).layout.apply(np.arange(len(matrix))[:, None], np.arange(16))[0]
        place(image, base, offsets, matrix)
    out = np.zeros((registers, 128), np.uint32)
    Emulator(text).launch("k", (1, 1, 1), (128, 1, 1), [Uninitialised(out), image, n], 32768)
    return unpack_sums(out.T, 16, "f32"), a.astype(np.float64) @ b.astype(np.float64).T


@pytest.mark.parametrize("n", [1, 2, 5])
def test_sums_of_a_loop_stay_in_place(n: int):
    """A group in flight from one step of the loop to the next, and no move anywhere."""
    sums, types = names("l", 8), ", ".join(["f32"] * 8)
    begin = ", ".join(f"%a{i} = %d{i}" for i in range(8))
    text = ptx_of(
        kernel(
            *DESCRIPTORS,
            "ptx.wgmma_fence",
            f'{names("d", 8)} = ptx.wgmma_mma_async "m64n16k16.f32.f16.f16 zero" %da, %db',
            "ptx.wgmma_commit_group",
            f"{sums} = scf.for %i = %c1 to %n step %c1 iter_args({begin}) -> ({types}) : i32 {{",
            "ptx.wgmma_fence",
            f'{names("e", 8)} = ptx.wgmma_mma_async "m64n16k16.f32.f16.f16" %da, %db, {names("a", 8)}',
            "ptx.wgmma_commit_group",
            f'{names("g", 8)} = ptx.wgmma_wait_group 1 "f8" {names("e", 8)}',
            f"scf.yield {names('g', 8)} : {types}",
            "}",
            f'{names("w", 8)} = ptx.wgmma_wait_group 0 "f8" {sums}',
            *[f"ptx.st_global_f32 %to, %w{i}, {512 * i}" for i in range(8)],
        )
    )
    assert not re.search(r"mov.f32", text)
    if find_tool("ptxas") is not None:
        assert assemble(text, "sm_90a").messages == ()
    found, product = run(text, n)
    assert (found == n * product).all()


def test_sums_that_are_used_twice_are_moved_before():
    """Registers that keep their value are not changed in place: the printer moves a copy, which is not in flight."""
    text = ptx_of(
        kernel(
            *DESCRIPTORS,
            *[f"%z{i} = ptx.ld_global_f32 %image, {12000 + 4 * i}" for i in range(8)],
            "ptx.wgmma_fence",
            f'{names("d", 8)} = ptx.wgmma_mma_async "m64n16k16.f32.f16.f16 zero" %da, %db',
            "ptx.wgmma_commit_group",
            f'{names("w", 8)} = ptx.wgmma_wait_group 0 "f8" {names("d", 8)}',
            "ptx.wgmma_fence",
            f'{names("e", 8)} = ptx.wgmma_mma_async "m64n16k16.f32.f16.f16" %da, %db, {names("w", 8)}',
            "ptx.wgmma_commit_group",
            f'{names("x", 8)} = ptx.wgmma_wait_group 0 "f8" {names("e", 8)}',
            *[f"%y{i} = ptx.add_f32 %w{i}, %x{i}" for i in range(8)],
            *[f"ptx.st_global_f32 %to, %y{i}, {512 * i}" for i in range(8)],
        )
    )
    assert len(re.findall("mov.b32 %f|mov.f32", text)) == 8
    # The moves come after the fence, which the emulator reports: who wants both copies moves before it.
    with pytest.raises(EmulatorError, match=r"no wgmma\.fence follows the last access to the register"):
        run(text, 1)


def test_registers_of_a_are_kept_until_the_wait():
    """The next operand a of a loop, loaded while the wgmma is in flight, takes no register that the wait keeps."""
    types = ", ".join(["i32"] * 4)
    begin = ", ".join(f"%a{i} = %x{i}" for i in range(4))
    lines = [
        *DESCRIPTORS,
        *[f"%x{i} = ptx.ld_global_b32 %at, {512 * i}" for i in range(4)],
        f"{names('l', 4)} = scf.for %i = %c0 to %n step %c1 iter_args({begin}) -> ({types}) : i32 {{",
        "ptx.wgmma_fence",
        f'{names("d", 8)} = ptx.wgmma_mma_async "m64n16k16.f32.f16.f16 a_registers zero" {names("a", 4)}, %db',
        "ptx.wgmma_commit_group",
        *[f"%y{i} = ptx.ld_global_b32 %at, {512 * i + 4096}" for i in range(4)],
        f'{names("w", 8)} = ptx.wgmma_wait_group 0 "f8" {names("d", 8)} keep "r4" {names("a", 4)}',
        *[f"ptx.st_global_f32 %to, %w{i}, {512 * i}" for i in range(8)],
        f"scf.yield {names('y', 4)} : {types}",
        "}",
    ]
    run(ptx_of(kernel(*lines)), 2)
    with pytest.raises(EmulatorError, match="is operand a of the wgmma at line"):
        run(ptx_of(kernel(*lines).replace(f' keep "r4" {names("a", 4)}', "")), 2)


def test_a_in_registers_multiplies():
    random = np.random.default_rng(2)
    a, b = (random.integers(-3, 4, (rows, 16)).astype(np.float16) for rows in (64, 16))
    image = np.zeros(12288, np.uint8)
    shared = shared_layout(16, 64, 2, 128)
    place(image, 8192, shared.layout.apply(np.arange(16)[:, None], np.arange(16))[0], b)
    image[:2048] = pack_a(a).reshape(-1).view(np.uint8)
    assert OperandDescriptors(shared, False, 16).constant == 4611686293305360384
    text = ptx_of(
        kernel(
            *DESCRIPTORS,
            *[f"%x{i} = ptx.ld_global_b32 %at, {512 * i}" for i in range(4)],
            "ptx.wgmma_fence",
            f'{names("d", 8)} = ptx.wgmma_mma_async "m64n16k16.f32.f16.f16 a_registers zero" {names("x", 4)}, %db',
            "ptx.wgmma_commit_group",
            f'{names("w", 8)} = ptx.wgmma_wait_group 0 "f8" {names("d", 8)} keep "r4" {names("x", 4)}',
            *[f"ptx.st_global_f32 %to, %w{i}, {512 * i}" for i in range(8)],
        )
    )
    out = np.zeros((8, 128), np.uint32)
    Emulator(text).launch("k", (1, 1, 1), (128, 1, 1), [Uninitialised(out), image, 1], 32768)
    assert (unpack_sums(out.T, 16, "f32") == a.astype(np.float64) @ b.astype(np.float64).T).all()


# Clusters


def test_a_kernel_in_clusters():
    """Each CTA arrives at the other one's mbarrier, waits at its own, and writes what it knows of the cluster."""
    text = ptx_of(
        kernel(
            "%s = ptx.shared_base",
            "%tid = ptx.tid_x",
            "%c0 = ptx.constant 0 : i32",
            "%c1 = ptx.constant 1 : i32",
            "%c4 = ptx.constant 4 : i32",
            "%first = ptx.setp_eq_s32 %tid, %c0",
            "ptx.mbarrier_init %s, 0, 1 if %first",
            "ptx.fence_mbarrier_init if %first",
            "ptx.barrier_cluster_arrive_relaxed",
            "ptx.barrier_cluster_wait",
            "%rank = ptx.cluster_ctarank",
            "%size = ptx.cluster_nctarank",
            "%other = ptx.sub_s32 %c1, %rank",
            "%far = ptx.mapa %s, %other",
            "ptx.mbarrier_arrive_remote %far, 0 if %first",
            "%done = ptx.mbarrier_try_wait_parity %s, %c0, 0",
            "%both = ptx.mad_lo_s32 %size, %c4, %rank",
            "%to = ptx.mad_wide_u32 %rank, %c4, %out",
            "ptx.st_global_b32 %to, %both, 0 if %first",
            "ptx.barrier_cluster_arrive",
            "ptx.barrier_cluster_wait",
            head="cluster [2, 1, 1] ",
        )
    )
    assert ".reqnctapercluster 2, 1, 1\n.explicitcluster\n" in text
    if find_tool("ptxas") is not None:
        assert assemble(text, "sm_90a").messages == ()
    for landing in ("late", "early", "random"):
        for order in ("fixed", "reversed", "random"):
            out = np.zeros(2, np.int32)
            arguments = [Uninitialised(out), np.zeros(4, np.uint8), 0]
            Emulator(text).launch("k", (2, 1, 1), (128, 1, 1), arguments, 32768, landing=landing, order=order)
            assert out.tolist() == [8, 9]


@pytest.mark.parametrize("cluster", ["[2, 1]", "[0, 1, 1]", "[4, 4, 1]"])
def test_what_is_no_cluster(cluster: str):
    with pytest.raises(EmmyError, match="a cluster has three extents and at most 8 CTAs"):
        verify_module(parse_module(kernel(head=f"cluster {cluster} "), "test"))


def test_a_kernel_without_clusters_prints_as_before():
    assert "cluster" not in print_module(parse_module(kernel(), "test"))
    assert "cluster" not in print_ptx(parse_module(kernel(), "test"), "sm_90a")
