"""The ptx dialect: every row prints, parses and verifies; wrong ops are rejected with a sentence."""

import re

import pytest

from emmy.assemble import assemble, find_tool
from emmy.dialects.ptx import INSTRUCTIONS, REGISTER_TYPES, ROWS
from emmy.emulator import Emulator
from emmy.errors import EmmyError
from emmy.ir import parse_module, print_module, verify_module
from emmy.lowering.print_ptx import print_ptx
from emmy.targets import TARGETS

HEAD = (
    "ptx.kernel @k(%l0: i64, %r0: i32, %l1: i64) threads 64 min_ctas 1 shared_bytes 1024 "
    'params ["pointer 0", "dim 0 0", "stride 0 1"] {\n'
)
VALUES = {"l": "%l0", "r": "%r0", "f": "%f0", "p": "%p0", "h": "%h0"}
IMMEDIATES = {"registers": 24, "count": 4, "bytes": 64, "threads": 32}
DEFINITIONS = "  %f0 = ptx.constant 1.5 : f32\n  %p0 = ptx.setp_lt_s32 %r0, %r0\n  %h0, %h1 = ptx.unpack_b32 %r0\n"


def kernel(*lines: str) -> str:
    return HEAD + DEFINITIONS + "".join(f"  {line}\n" for line in lines) + "}\n"


def spell(name: str, predicated: bool = False) -> str:
    row = ROWS[name]
    parts = [VALUES[letter] for letter in row.operands]
    parts += [str(IMMEDIATES.get(word, 32 * i)) for i, word in enumerate(row.immediates)]
    text = f"ptx.{name} {', '.join(parts)}"
    if predicated:
        text += " if %p0" + (f" else {', '.join(VALUES[x] for x in row.results)}" if row.results else "")
    results = ", ".join(f"%x{i}" for i in range(len(row.results)))
    return f"{results} = {text}" if results else text


def round_trip(text: str) -> str:
    module = parse_module(text, "test")
    verify_module(module)
    printed = print_module(module)
    assert print_module(parse_module(printed, "test")) == printed
    return printed


@pytest.mark.parametrize("name", ROWS)
def test_every_row_round_trips(name: str):
    assert f"ptx.{name}" in round_trip(kernel(spell(name)))


@pytest.mark.parametrize("name", [n for n, row in ROWS.items() if not (row.pure or row.until)])
def test_every_row_with_effects_takes_a_predicate(name: str):
    assert "if %p0" in round_trip(kernel(spell(name, predicated=True)))


@pytest.mark.parametrize("name", ROWS)
def test_the_text_of_a_row_uses_each_of_its_values_once(name: str):
    row = ROWS[name]
    used = sorted(int(i) for i in re.findall(r"\$(\d+)", row.text))
    assert used == list(range(len(row.results) + len(row.operands) + len(row.immediates)))
    for result, operand in row.tied:
        assert row.results[result] == row.operands[operand]
    assert set(row.results + row.operands) <= set(REGISTER_TYPES)


def every_row(target: str) -> str:
    """The PTX of a kernel with one op of every row that the target has, results renamed apart."""
    lines: list[str] = []
    for number, (name, row) in enumerate(ROWS.items()):
        if not row.needs or getattr(TARGETS[target], row.needs):
            for predicated in (False,) if row.pure or row.until else (False, True):
                lines.append(spell(name, predicated).replace("%x", f"%x{number}_{int(predicated)}_"))
    return print_ptx(parse_module(kernel(*lines), "test"), target)


@pytest.mark.skipif(find_tool("ptxas") is None, reason="ptxas is not installed")
@pytest.mark.parametrize("target", TARGETS)
def test_the_assembler_takes_every_row(target: str):
    # One kernel that gives registers up, uses many and asks for more: ptxas says that it leaves the pool alone. And it has a
    # wgmma.fence without any wgmma, for which ptxas adds a wait.
    assert list(assemble(every_row(target), target, allow=frozenset({"C7507", "C7517"})).kernels) == ["k"]


def test_the_emulator_knows_every_row():
    assert "k" in Emulator(every_row("sm_90a")).kernels


def test_each_instruction_says_what_it_prints():
    assert INSTRUCTIONS["bar_sync"].__doc__ == "`bar.sync $0;`"


def test_the_mma_row_follows_the_atom_table():
    row = ROWS["mma_m16n8k16_f32_f16"]
    assert (row.results, row.operands) == ("ffff", "rrrrrrffff")
    assert row.text.startswith("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {$0,$1,$2,$3}, {$4,$5,$6,$7}, ")
    assert len(ROWS["mma_m16n8k16_f16_f16"].results) == 2


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['%x = "ptx.add_s32"(%l0, %r0) : (i64, i32) -> i32'], "operands are"),
        (['%x = "ptx.add_s32"(%r0, %r0) : (i32, i32) -> i64'], "results are"),
        (['"ptx.bar_sync"() : () -> ()'], "the immediate 'barrier' is missing"),
        (['%x = "ptx.add_s32"(%r0, %r0, %p0, %r0) : (i32, i32, i1, i32) -> i32'], "takes no predicate"),
        (
            [
                '%x = "ptx.mbarrier_try_wait_parity"(%r0, %r0, %p0, %p0) <{offset = #builtin.int<0>}> : (i32, i32, i1, i1) -> i1'
            ],
            "that is repeated takes no predicate",
        ),
        (['"ptx.comment"() <{"text" = "two\\nlines"}> : () -> ()'], "a comment is one line"),
        (['%x = "ptx.constant"() <{"value" = 1 : i32}> : () -> f32'], "has the type of its value"),
        (["%x = ptx.constant 1 : i8"], "i16, i32, i64 or f32"),
    ],
)
def test_wrong_ops_are_rejected(lines: list[str], message: str):
    with pytest.raises(EmmyError, match=re.escape(message)):
        verify_module(parse_module(kernel(*lines), "test"))


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ('ptx.kernel @k(%a: i64) threads 48 min_ctas 1 shared_bytes 0 params ["pointer 0"] {}', "multiple of 32"),
        ("ptx.kernel @k(%a: i64) threads 32 min_ctas 1 shared_bytes 0 params [] {}", "1 parameter(s) but 0"),
        ('ptx.kernel @k(%a: i64) threads 32 min_ctas 1 shared_bytes 0 params ["dim 0 0"] {}', "is i32, got i64"),
        ('ptx.kernel @k(%a: i64) threads 32 min_ctas 1 shared_bytes 0 params ["pointer"] {}', "describes no parameter"),
        (
            'ptx.kernel @k(%a: i64) threads 32 min_ctas 1 shared_bytes 0 params ["tensor_map 0"] {}',
            "there are 0 tensor map(s)",
        ),
        (
            "ptx.kernel @k() threads 32 min_ctas 1 shared_bytes 0 params [] "
            "tensor_maps [{view = 0 : i64, box = array<i64: 320, 64>, swizzle = 128 : i64}] {}",
            "1 to 5 dimensions of 1 to 256 elements, got [320, 64]",
        ),
        (
            "ptx.kernel @k() threads 32 min_ctas 1 shared_bytes 0 params [] "
            "tensor_maps [{view = 0 : i64, box = array<i64: 32, 64>, swizzle = 16 : i64}] {}",
            "spans 0, 32, 64 or 128 bytes, got 16",
        ),
        (
            "ptx.kernel @k() threads 32 min_ctas 1 shared_bytes 0 params [] tensor_maps [{view = 0 : i64}] {}",
            "a tensor map has a view, a box and a swizzle",
        ),
    ],
)
def test_wrong_kernels_are_rejected(head: str, message: str):
    with pytest.raises(EmmyError, match=re.escape(message)):
        verify_module(parse_module(head, "test"))
