"""Fragments of integers, predicates and statistics at level 4, by hand-written level 3, on the emulator."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from emmy.dialects.ptx import KernelOp
from emmy.emulator import Emulator, Report, Uninitialised
from emmy.errors import EmmyError
from emmy.ir import make_context, parse_module, verify_module
from emmy.lowering.print_ptx import print_ptx
from emmy.registry import parse_passes

ROWS, COLUMNS, COUNT = 32, 24, 48


def fragment(shape: str, element: str = "f32") -> str:
    return f"!mma.fragment<{shape}x{element}, c, m16n8k16>"


F, SEEN = fragment("32x24"), fragment("32x24", "i1")
ROW, COL = fragment("32x1", "i32"), fragment("1x24", "i32")
STAT, PART = fragment("32x1"), fragment("32x8")


def kernel(body: str) -> ModuleOp:
    """One warp: %x is the 32 x 24 view %a; %n is the number of %v's elements, %m that minus 60; the body stores to %c and %v."""
    text = f"""
    builtin.module {{
      tile.kernel @k(%a: !tile.view<32x24xf32>, %c: !tile.view<32x24xf32>, %v: !tile.view<?xf32>) {{
        async_copy.pipeline @in stages 1 {{a = !tile.tile<32x24xf32>}}
        %c0 = arith.constant 0 : index
        %c3 = arith.constant 3 : index
        %c60 = arith.constant 60 : index
        %n = tile.dim %v, 0 : !tile.view<?xf32>
        async_copy.role "main" warps 1 {{
          %m = arith.subi %n, %c60 : index
          %cursor = async_copy.begin_fill @in
          %slot, %next = async_copy.slot @in[%cursor] : !async_copy.cursor<@in, fill>
          async_copy.plain_copy %a[%c0, %c0] -> %slot["a"] bytes 16
            : !tile.view<32x24xf32> -> !async_copy.slot<@in, fill>
          async_copy.barrier
          %read = async_copy.begin_read @in
          %s, %ne = async_copy.slot @in[%read] : !async_copy.cursor<@in, read>
          %x = mma.load %s["a"][%c0, %c0] : !async_copy.slot<@in, read> -> {F}
          %one = arith.constant 1.0 : f32
          %none = arith.constant 0.0 : f32
          {body}
        }}
      }}
    }}"""
    module = parse_module(text, "test")
    for one in parse_passes("allocate-shared,lower-to-ptx", "sm_90a"):
        one.apply(make_context(), module)
    verify_module(module)
    return module


def run(body: str, a: np.ndarray, count: int = COUNT) -> tuple[np.ndarray, np.ndarray, Report, str]:
    """%c, %v (NaN where nothing was stored), the report and the text."""
    module = kernel(body)
    op = next(op for op in module.walk() if isinstance(op, KernelOp))
    out, vector = np.full((ROWS, COLUMNS), np.nan, np.float32), np.full(count, np.nan, np.float32)
    views: list[object] = [a, Uninitialised(out), Uninitialised(vector)]
    args = [views[int(p.data.split()[1])] if p.data.startswith("pointer") else count for p in op.params]
    text = print_ptx(module, "sm_90a")
    report = Emulator(text).launch("k", (1, 1, 1), (32, 1, 1), args, op.shared_bytes.value.data)
    return out, vector, report, text


def counted(report: Report, name: str) -> int:
    return sum(count for kind, count in report.instructions.items() if kind.startswith(name))


def store(name: str) -> str:
    return f"mma.store_global %{name} -> %c[%c0, %c0] : {F} -> !tile.view<32x24xf32>"


A = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32)
ROW_NUMBERS, COLUMN_NUMBERS = np.arange(ROWS)[:, None], np.arange(COLUMNS)[None, :]
BASE = COUNT - 60

COMPARISONS = {"ge": np.greater_equal, "lt": np.less, "ne": np.not_equal}


@pytest.mark.parametrize("kind", COMPARISONS)
def test_coordinates_are_compared_and_selected(kind: str):
    """Rows from a negative base, columns from 3; a predicate each, no number between compare and select."""
    body = f"""
      %row = mma.coord 0 from %m : {ROW}
      %col = mma.coord 1 from %c3 : {COL}
      %seen = mma.map {kind} %row, %col : ({ROW}, {COL}) -> {SEEN}
      %y = mma.map select %seen, %x, %none : ({SEEN}, {F}, f32) -> {F}
      {store("y")}"""
    out, _, report, text = run(body, A)
    np.testing.assert_array_equal(out, np.where(COMPARISONS[kind](ROW_NUMBERS + BASE, COLUMN_NUMBERS + 3), A, 0))
    assert counted(report, "selp") == ROWS * COLUMNS // 32
    assert "selp.b32" not in text


def test_columns_are_compared_with_a_size():
    flags = fragment("1x24", "i1")
    body = f"""
      %col = mma.coord 1 from %c3 : {COL}
      %seen = mma.map lt %col, %m : ({COL}, index) -> {flags}
      %y = mma.map select %seen, %x, %none : ({flags}, {F}, f32) -> {F}
      {store("y")}"""
    for count in (60, 63, 70, 87, 200):
        out, *_ = run(body, A, count)
        np.testing.assert_array_equal(out, np.where(COLUMN_NUMBERS + 3 < count - 60, A, 0))


ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


@pytest.mark.parametrize("kind", ARITHMETIC)
def test_integers_are_exact(kind: str):
    """f(row, column), shown by comparing it with a constant."""
    both = fragment("32x24", "i32")
    body = f"""
      %row = mma.coord 0 from %m : {ROW}
      %col = mma.coord 1 from %c3 : {COL}
      %z = mma.map {kind} %row, %col : ({ROW}, {COL}) -> {both}
      %back = mma.map neg %z : ({both}) -> {both}
      %size = mma.map abs %back : ({both}) -> {both}
      %seen = mma.map ge %size, %c3 : ({both}, index) -> {SEEN}
      %y = mma.map select %seen, %x, %none : ({SEEN}, {F}, f32) -> {F}
      {store("y")}"""
    out, *_ = run(body, A)
    np.testing.assert_array_equal(
        out, np.where(np.abs(ARITHMETIC[kind](ROW_NUMBERS + BASE, COLUMN_NUMBERS + 3)) >= 3, A, 0)
    )


def test_floats_compare_as_numpy_does():
    a = A.copy()
    a[3, 5] = np.nan
    for kind, function in COMPARISONS.items():
        body = f"%y = mma.map {kind} %x, %none : ({F}, f32) -> {F}\n{store('y')}"
        np.testing.assert_array_equal(run(body, a)[0], function(a, 0).astype(np.float32))


def test_parts_of_sums_stay_in_their_lanes():
    """R x C to R x 8 without shuffles, then to R x 1; a row's statistic goes to neighbours of a vector, up to its end."""
    body = f"""
      %part = mma.reduce sum %x : {F} -> {PART}
      %sum = mma.reduce sum %part : {PART} -> {STAT}
      mma.store_global %sum -> %v[%c3] : {STAT} -> !tile.view<?xf32>
      mma.store_global %part -> %c[%c0, %c0] : {PART} -> !tile.view<32x24xf32>"""
    whole = np.rint(A * 8).astype(np.float32)
    for count in (COUNT, 20):
        out, vector, report, _ = run(body, whole, count)
        np.testing.assert_array_equal(out[:, :8], whole.reshape(ROWS, 3, 8).sum(axis=1))
        np.testing.assert_array_equal(vector[3:35], whole.sum(axis=1)[: count - 3])
        assert np.isnan(vector[:3]).all()
        assert counted(report, "shfl") == 4 * 2  # rows of a lane, halvings


@pytest.mark.parametrize("kind", ["sum", "max"])
def test_rows_are_reduced_inside_lanes_and_over_eight_of_them(kind: str):
    """R x C to 1 x C, which broadcasts against its source; one column to a single number."""
    body = f"""
      %part = mma.reduce {kind} %x : {F} -> {fragment("1x24")}
      %y = mma.map sub %x, %part : ({F}, {fragment("1x24")}) -> {F}
      %row = mma.reduce {kind} %x : {F} -> {STAT}
      %all = mma.reduce {kind} %row : {STAT} -> {fragment("1x1")}
      mma.store_global %all -> %v[%c3] : {fragment("1x1")} -> !tile.view<?xf32>
      {store("y")}"""
    whole = np.rint(A * 8).astype(np.float32)
    out, vector, report, _ = run(body, whole)
    function = {"sum": np.sum, "max": np.max}[kind]
    np.testing.assert_array_equal(out, whole - function(whole, axis=0, keepdims=True))
    assert vector[3] == function(whole)
    assert counted(report, "shfl") == 3 * 6 + 2 * 4 + 3  # halvings of columns of a lane, of its rows, of the number


def test_a_row_of_columns_is_stored_once():
    body = f"""
      %col = mma.coord 1 from %c3 : {COL}
      %seen = mma.map ge %col, %c60 : ({COL}, index) -> {fragment("1x24", "i1")}
      %y = mma.map select %seen, %one, %none : ({fragment("1x24", "i1")}, f32, f32) -> {fragment("1x24")}
      mma.store_global %y -> %v[%c3] : {fragment("1x24")} -> !tile.view<?xf32>"""
    _, vector, *_ = run(body, A)
    np.testing.assert_array_equal(vector[3:27], 0)
    assert np.isnan(vector[27:]).all()


def test_a_vote_chooses_a_branch_that_gives_fragments():
    """Both outcomes; what is multiplied stays in its registers where it is not."""
    for limit, factor in ((float(A.max()), 0.5), (float(A.max()) + 1, 1.0)):
        body = f"""
          %limit = arith.constant {limit:.9e} : f32
          %flags = mma.map ge %x, %limit : ({F}, f32) -> {SEEN}
          %some = mma.any %flags : {SEEN}
          %half = arith.constant 0.5 : f32
          %y = scf.if %some -> ({F}) {{
            %z = mma.map mul %x, %half : ({F}, f32) -> {F}
            scf.yield %z : {F}
          }} else {{
            scf.yield %x : {F}
          }}
          {store("y")}"""
        out, _, _, text = run(body, A)
        np.testing.assert_array_equal(out, A * np.float32(factor))
        branch = text[text.index("vote.sync") :]
        assert branch.count("mul.f32") == ROWS * COLUMNS // 32  # in the branch, not before it
        assert "mov.f32" not in branch


@pytest.mark.parametrize("shift", [8, 12])
@pytest.mark.parametrize("operation", ["divsi", "floordivsi", "ceildivsi", "remsi"])
def test_signed_division_rounds_as_it_says(operation: str, shift: int):
    """Dividends of both signs, by a power of two and another number: the quotient is where a one stands."""
    body = f"""
      %by = arith.constant {shift} : index
      %q = arith.{operation} %m, %by : index
      %col = mma.coord 1 from %c0 : {COL}
      %q10 = arith.addi %q, %c12 : index
      %other = mma.map ne %col, %q10 : ({COL}, index) -> {fragment("1x24", "i1")}
      %y = mma.map select %other, %none, %one : ({fragment("1x24", "i1")}, f32, f32) -> {fragment("1x24")}
      mma.store_global %y -> %v[%c0] : {fragment("1x24")} -> !tile.view<?xf32>"""
    expected = {
        "divsi": lambda x: int(x / shift),
        "floordivsi": lambda x: x // shift,
        "ceildivsi": lambda x: -(-x // shift),
        "remsi": lambda x: x - shift * int(x / shift),
    }[operation]
    for count in (30, 36, 37, 48, 52, 59, 60, 61, 72, 85):
        _, vector, *_ = run("%c12 = arith.constant 12 : index\n" + body, A, count)
        assert np.flatnonzero(vector[:24]).tolist() == [12 + expected(count - 60)]


REFUSED = {
    "other sizes of parts": (f"%y = mma.reduce sum %x : {F} -> {fragment('32x4')}", "1 column or multiples of 8"),
    "integers with floats": (
        f"%row = mma.coord 0 from %c0 : {ROW}\n%y = mma.map add %row, %x : ({ROW}, {F}) -> {F}",
        "f32 and i32|i32",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_instruction_is_refused(name: str):
    body, message = REFUSED[name]
    with pytest.raises((EmmyError), match=message):
        kernel(body)


def test_a_scaled_tanh_has_one_factor_and_no_care_for_subnormal_numbers():
    body = f"""
      %third = arith.constant 0.333 : f32
      %z = mma.map mul %x, %third : ({F}, f32) -> {F}
      %y = mma.map tanh %z : ({F}) -> {F}
      {store("y")}"""
    out, _, _, text = run(body, 10 * A)
    np.testing.assert_allclose(out, np.tanh(0.333 * 10 * A.astype(np.float64)), rtol=3e-6, atol=5e-7)
    assert text.count("mul.f32") == 2 * ROWS * COLUMNS // 32  # into the exponent, and twice the quotient
    assert text.count("rcp.approx.ftz.f32") == ROWS * COLUMNS // 32
