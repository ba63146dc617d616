"""`evict`: what loops copy has that priority in the L2 cache and the same bits; where it says nothing it is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import emmy
from emmy.artefact import run_on_emulator
from emmy.assemble import assemble, find_tool, sass
from emmy.emulator import Emulator, EmulatorError
from emmy.errors import EmmyError
from emmy.interpreters import level3
from emmy.ir import parse_module

COPY = re.compile(r"cp\.async\.(c[ag]\.|bulk\.tensor\S*complete_tx)")
POLICY, HINT = "createpolicy.fractional.L2::evict_first.b64", ".L2::cache_hint"
Fields = dict[str, Any]
UNIFIED: Fields = {"block": (64, 32, 32), "warps": (2, 1), "stages": 2, "roles": "unified"}
APART: Fields = {"block": (64, 64, 32), "warps": (4, 1), "stages": 2, "roles": "specialized"}


def product(k: int) -> str:
    a, b, c = f"tensor<128x{k}xf16>", f"tensor<64x{k}xf16>", "tensor<128x64xf16>"
    return (
        f"func.func @f(%a: {a}, %b: {b}) -> {c} {{\n"
        f"  %c = tensor_op.matmul %a, %b transpose_b : ({a}, {b}) -> {c}\n  func.return %c : {c}\n}}\n"
    )


def attention() -> str:
    q, k = "tensor<1x2x32x32xf16>", "tensor<1x1x96x32xf16>"
    return (
        f"func.func @f(%q: {q}, %k: {k}, %v: {k}) -> {q} {{\n"
        f"  %o = tensor_op.attention %q, %k, %v scale 0.125 : ({q}, {k}, {k}) -> {q}\n  func.return %o : {q}\n}}\n"
    )


ROWS: Fields = {"block": (16, 32, 32), "warps": (1, 1), "stages": 2, "roles": "unified", "splits": 0}
CASES: dict[str, tuple[str, str, Fields, int]] = {
    "16 bytes": (product(96), "sm_80", UNIFIED, 0),
    "8 bytes": (product(92), "sm_89", UNIFIED, 0),
    "4 bytes": (product(94), "sm_120a", UNIFIED, 0),
    "TMA": (product(96), "sm_120a", APART, 0),
    "multicast": (product(96), "sm_90a", {**APART, "share": "b"}, 0),
    "keys": (attention(), "sm_90a", {**ROWS, "transport": "cp_async"}, 2),
    "keys by TMA": (attention(), "sm_90a", ROWS, 1),
}
"""Text, target, schedule, and how many copies of queries stand before the loop."""


def without_policy(ptx: str) -> str:
    """PTX without the policy, what keeps its copies' addresses apart, their uses, and the numbers of registers."""
    ptx = re.sub(rf"\t{POLICY} .*\n", "", ptx)
    ptx = re.sub(rf"{HINT}(.*), %rd\d+;", r"\1;", ptx)
    zero = re.search(r"\tmov.u32 (%r\d+), %lanemask_lt;\n\tshr.u32 (%r\d+), \1, 31;\n", ptx)
    if zero is not None:
        ptx = re.sub(rf"\txor.b32 %r\d+, %r\d+, {zero[2]};\n", "", ptx.replace(zero[0], ""))
    return re.sub(r"%(rd?)(<\d+>|\d+)", r"%\1", ptx)


@pytest.mark.parametrize("name", CASES)
def test_the_policy_is_made_once_and_changes_no_bit(name: str):
    text, target, fields, once = CASES[name]
    plain, first = (emmy.compile(text, target, schedule={**fields, "evict": which}) for which in ("none", "both"))
    assert POLICY not in plain.ptx
    assert HINT not in plain.ptx
    assert first.ptx.count(POLICY) == 1
    copies = [line for line in first.ptx.splitlines() if COPY.search(line)]
    assert [HINT in line for line in copies].count(False) == once
    assert without_policy(first.ptx) == without_policy(plain.ptx)
    rng = np.random.default_rng(1)
    sizes = [tuple(map(int, s.split("x"))) for s in re.findall(r"%\w: tensor<([\dx]+)xf16>", text)]
    arrays = [rng.standard_normal(size).astype(np.float16) for size in sizes]
    (wanted,), _ = run_on_emulator(plain.portable_artefact, "f", arrays)
    (got,), _ = run_on_emulator(first.portable_artefact, "f", arrays)
    np.testing.assert_array_equal(got, wanted)
    (read,) = level3.run_module(parse_module(first.ir("lower-transport"), "f.mlir"), "f", arrays)
    np.testing.assert_allclose(read.astype(np.float32), wanted.astype(np.float32), atol=0.02)


@pytest.mark.skipif(find_tool("ptxas") is None, reason="needs ptxas")
@pytest.mark.parametrize("name", CASES)
def test_it_assembles(name: str):
    text, target, fields, _ = CASES[name]
    assemble(emmy.compile(text, target, schedule={**fields, "evict": "both"}).ptx, target)


def test_operands_b_alone():
    """Keys and values are operands b; of a product with `evict = b` every other copy has the policy."""
    for name in ("16 bytes", "TMA", "keys"):
        text, target, fields, once = CASES[name]
        module = emmy.compile(text, target, schedule={**fields, "evict": "b"})
        copies = re.findall(r"async_copy.copy %(\w)\S* ?\[.*?(evict_first)? :", module.ir("lower-tile"))
        assert {operand for operand, first in copies if first} == ({"k", "v"} if once else {"b"})
        assert {operand for operand, first in copies if not first} == ({"q"} if once else {"a"})


@pytest.mark.skipif(None in (find_tool("ptxas"), find_tool("nvdisasm")), reason="needs ptxas and nvdisasm")
@pytest.mark.parametrize("name", [name for name, (*_, fields, _) in CASES.items() if "by TMA" not in name])
def test_no_address_is_a_sum_with_a_uniform_register(name: str):
    """ptxas for sm_90 loses the policy's register in such a copy, which is illegal then (found on an H200)."""
    text, _, fields, _ = CASES[name]
    if fields.get("roles") == "specialized":
        fields = {**fields, "transport": "cp_async"}
    fields = {key: value for key, value in fields.items() if key != "share"}
    ptx = emmy.compile(text, "sm_90a", schedule={**fields, "transport": "cp_async", "evict": "both"}).ptx
    copies = re.findall(r"LDGSTS[^;]*", sass(assemble(ptx, "sm_90a").cubin))
    assert copies
    assert not [copy for copy in copies if "+UR" in copy]


def test_plain_copies_have_no_priority():
    """Asked for by name; where only loads can move a tensor, they stay loads."""
    with pytest.raises(
        EmmyError, match="illegal schedule: evict = both belongs to asynchronous copies, and transport is plain"
    ):
        emmy.compile(product(96), "sm_80", schedule={**UNIFIED, "evict": "both", "transport": "plain"})
    assert POLICY not in emmy.compile(product(95), "sm_80", schedule={**UNIFIED, "evict": "both"}).ptx


def test_a_kernel_without_loops_is_refused():
    kernel = """tile.kernel @k(%a: !tile.view<16x16xf16>, %c: !tile.view<16x16xf16>) schedule <evict = both> {
  %c0 = arith.constant 0 : index
  %x = tile.load %a[%c0, %c0] : !tile.view<16x16xf16> -> !tile.tile<16x16xf16>
  tile.store %x, %c[%c0, %c0] : !tile.tile<16x16xf16>, !tile.view<16x16xf16>
}
"""
    with pytest.raises(EmmyError, match="kernel @k: evict = both is about tiles that are copied in loops") as found:
        emmy.compile(kernel, "sm_80")
    assert found.value.location.line == 1


def test_operands_b_that_no_loop_copies_are_refused():
    """Level 2 may load b once, before the loop over rows of a: `both` is about these, `b` about nothing."""
    a, b, c = "!tile.view<64x16xf16>", "!tile.view<16x16xf16>", "!tile.view<64x16xf32>"
    operand, sums = "!tile.tile<16x16xf16>", "!tile.tile<16x16xf32>"
    kernel = f"""tile.kernel @k(%a: {a}, %b: {b}, %c: {c}) schedule <block = [16, 16, 16], warps = [1, 1], evict = b> {{
  %c0 = arith.constant 0 : index
  %c16 = arith.constant 16 : index
  %c64 = arith.constant 64 : index
  %y = tile.load %b[%c0, %c0] : {b} -> !tile.tile<16x16xf16>
  scf.for %i = %c0 to %c64 step %c16 {{
    %zero = tile.fill 0.0 : f32 : !tile.tile<16x16xf32>
    %x = tile.load %a[%i, %c0] : {a} -> !tile.tile<16x16xf16>
    %d = tile.dot %x, %y into %zero transpose_b : ({operand}, {operand}, {sums}) -> {sums}
    tile.store %d, %c[%i, %c0] : !tile.tile<16x16xf32>, {c}
  }}
}}
"""
    with pytest.raises(EmmyError, match="kernel @k: evict = b is about operands b that are copied in loops") as found:
        emmy.compile(kernel, "sm_80")
    assert found.value.location.line == 1
    assert HINT in emmy.compile(kernel.replace("evict = b", "evict = both"), "sm_80").ptx


WRONG = {
    "3 operands, expected 4 or 5": (", 16, %rd1;", ", 16;"),
    "uses 64": (", 16, %rd1;", ", 16, %r0;"),
    "is missing": (".L2::evict_first", ""),
    "needs .version 7.4": (".version 7.4", ".version 7.3"),
}


@pytest.mark.parametrize("words", WRONG)
def test_misspelt_policies(words: str):
    body = f"{POLICY} %rd1; cp.async.cg.shared.global{HINT}.L2::128B [smem], [%rd0], 16, %rd1;"
    good = (
        ".version 7.4\n.target sm_80\n.address_size 64\n.extern .shared .align 16 .b8 smem[];\n"
        f".visible .entry k(.param .u64 p) {{ .reg .b64 %rd<2>; .reg .b32 %r<1>; ld.param.u64 %rd0, [p]; {body} ret; }}"
    )
    Emulator(good)
    old, new = WRONG[words]
    assert old in good
    with pytest.raises(EmulatorError, match=words):
        Emulator(good.replace(old, new))
