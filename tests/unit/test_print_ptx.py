"""The printer: control flow and register sharing, judged by running the printed text on the emulator."""

import random
import re

import numpy as np
import pytest

from emmy.emulator import Emulator, Uninitialised
from emmy.errors import EmmyError
from emmy.ir import parse_module, verify_module
from emmy.lowering.print_ptx import print_ptx

LANES = 32


def kernel(body: str) -> str:
    """A kernel with an output of i32 (pointer %out, this lane's place %at), a run-time number %n and constants c0..c9."""
    constants = "".join(f"  %c{i} = ptx.constant {i} : i32\n" for i in range(10))
    return (
        "ptx.kernel @k(%out: i64, %n: i32) threads 32 min_ctas 1 shared_bytes 1024 params "
        '["pointer 0", "dim 0 0"] {\n' + constants + "  %tid = ptx.tid_x\n"
        "  %at = ptx.mad_wide_u32 %tid, %c4, %out\n" + body + "}\n"
    )


def ptx_of(text: str, target: str = "sm_90a") -> str:
    module = parse_module(text, "test")
    verify_module(module)
    return print_ptx(module, target)


def run(body: str, n: int = 3, outputs: int = 1) -> list[list[int]]:
    """What the kernel stored: `outputs` rows of 32 lanes, row i at byte offset 128 i."""
    out = np.zeros((outputs, LANES), np.int32)
    Emulator(ptx_of(kernel(body))).launch("k", (1, 1, 1), (LANES, 1, 1), [Uninitialised(out), n], 1024)
    return out.tolist()


def store(*names: str) -> str:
    return "".join(f"  ptx.st_global_b32 %at, %{name}, {128 * i}\n" for i, name in enumerate(names))


def same(*rows: int) -> list[list[int]]:
    return [[row] * LANES for row in rows]


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_a_loop_sums_its_counter(n: int):
    body = """
      %s = scf.for %i = %c0 to %n step %c1 iter_args(%a = %c7) -> (i32) : i32 {
        %b = ptx.add_s32 %a, %i
        scf.yield %b : i32
      }
    """
    assert run(body + store("s"), n) == same(7 + sum(range(n)))


@pytest.mark.parametrize(("n", "expected"), [(0, (1, 2)), (1, (2, 1)), (2, (1, 2)), (5, (2, 1))])
def test_a_loop_that_swaps(n: int, expected: tuple[int, int]):
    body = """
      %x, %y = scf.for %i = %c0 to %n step %c1 iter_args(%a = %c1, %b = %c2) -> (i32, i32) : i32 {
        scf.yield %b, %a : i32, i32
      }
    """
    assert run(body + store("x", "y"), n, 2) == same(*expected)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4])
def test_a_loop_that_rotates_three_and_keeps_one(n: int):
    body = """
      %w, %x, %y, %z = scf.for %i = %c0 to %n step %c1 iter_args(%a = %c1, %b = %c2, %c = %c3, %d = %c4)
          -> (i32, i32, i32, i32) : i32 {
        scf.yield %b, %c, %a, %d : i32, i32, i32, i32
      }
    """
    expected = [1, 2, 3]
    for _ in range(n):
        expected = expected[1:] + expected[:1]
    assert run(body + store("w", "x", "y", "z"), n, 4) == same(*expected, 4)


@pytest.mark.parametrize("n", [0, 1, 3])
def test_one_value_yielded_twice_and_an_argument_used_after_its_successor_is_made(n: int):
    body = """
      %x, %y, %z = scf.for %i = %c0 to %n step %c1 iter_args(%a = %c1, %b = %c2, %c = %c0) -> (i32, i32, i32) : i32 {
        %d = ptx.add_s32 %a, %b
        %e = ptx.add_s32 %d, %a
        scf.yield %d, %d, %e : i32, i32, i32
      }
    """
    a, b, c = 1, 2, 0
    for _ in range(n):
        a, b, c = a + b, a + b, a + b + a
    assert run(body + store("x", "y", "z"), n, 3) == same(a, b, c)


def test_the_initial_value_lives_on():
    body = """
      %start = ptx.add_s32 %tid, %c5
      %x = scf.for %i = %c0 to %n step %c1 iter_args(%a = %start) -> (i32) : i32 {
        %b = ptx.add_s32 %a, %start
        scf.yield %b : i32
      }
      %y = ptx.add_s32 %x, %start
    """
    assert run(body + store("y"), 2) == [[(lane + 5) * 4 for lane in range(LANES)]]


def test_two_arguments_start_from_one_value():
    body = """
      %start = ptx.add_s32 %tid, %c5
      %x, %y = scf.for %i = %c0 to %n step %c1 iter_args(%a = %start, %b = %start) -> (i32, i32) : i32 {
        %d = ptx.add_s32 %a, %c1
        %e = ptx.add_s32 %b, %a
        scf.yield %d, %e : i32, i32
      }
    """
    x, y = np.arange(LANES) + 5, np.arange(LANES) + 5
    for _ in range(3):
        x, y = x + 1, y + x
    assert run(body + store("x", "y"), 3, 2) == [x.tolist(), y.tolist()]


@pytest.mark.parametrize("n", [0, 1, 3])
def test_nested_loops_carry_through(n: int):
    body = """
      %x, %y = scf.for %i = %c0 to %n step %c1 iter_args(%a = %c1, %b = %c0) -> (i32, i32) : i32 {
        %f, %g = scf.for %j = %c0 to %i step %c1 iter_args(%c = %a, %d = %b) -> (i32, i32) : i32 {
          %e = ptx.add_s32 %c, %a
          %h = ptx.add_s32 %d, %j
          scf.yield %e, %h : i32, i32
        }
        %k = ptx.add_s32 %g, %a
        scf.yield %f, %k : i32, i32
      }
    """
    a, b = 1, 0
    for i in range(n):
        c, d = a, b
        for j in range(i):
            c, d = c + a, d + j
        a, b = c, d + a
    assert run(body + store("x", "y"), n, 2) == same(a, b)


def test_a_lower_bound_that_is_carried_by_an_outer_loop():
    body = """
      %x = scf.for %i = %c0 to %n step %c1 iter_args(%a = %c0) -> (i32) : i32 {
        %f = scf.for %j = %a to %c5 step %c2 iter_args(%c = %c9) -> (i32) : i32 {
          %e = ptx.add_s32 %c, %j
          scf.yield %e : i32
        }
        scf.yield %f : i32
      }
    """
    a = 0
    for _ in range(3):
        a = 9 + sum(range(a, 5, 2))
    assert run(body + store("x")) == same(a)


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_ifs_give_values_and_may_stand_in_loops(n: int):
    body = """
      %x, %y = scf.for %i = %c0 to %n step %c1 iter_args(%a = %c1, %b = %c2) -> (i32, i32) : i32 {
        %p = ptx.setp_eq_s32 %i, %c1
        %d, %e = scf.if %p -> (i32, i32) {
          scf.yield %b, %a : i32, i32
        } else {
          %f = ptx.add_s32 %a, %b
          scf.yield %f, %a : i32, i32
        }
        scf.if %p {
          ptx.st_global_b32 %at, %d, 256
        }
        scf.yield %d, %e : i32, i32
      }
    """
    a, b, written = 1, 2, 0
    for i in range(n):
        a, b = (b, a) if i == 1 else (a + b, a)
        written = a if i == 1 else written
    out = np.zeros((3, LANES), np.int32)
    text = ptx_of(kernel(body + store("x", "y")))
    Emulator(text).launch("k", (1, 1, 1), (LANES, 1, 1), [out, n], 1024)
    assert out.tolist() == same(a, b, written)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_loop_in_a_region_reads_what_the_other_region_reads_too_until_it_ends(n: int):
    """`%v` starts the inner loop each time, so that what the inner loop carries may not take its register."""
    body = """
      %v = ptx.mad_lo_s32 %tid, %c0, %n
      %p = ptx.setp_lt_s32 %c0, %n
      %r = scf.if %p -> (i32) {
        %s = scf.for %i = %c0 to %n step %c1 iter_args(%a = %c7) -> (i32) : i32 {
          %t = scf.for %j = %c0 to %c3 step %c1 iter_args(%b = %v) -> (i32) : i32 {
            %d = ptx.add_s32 %b, %c1
            scf.yield %d : i32
          }
          %e = ptx.add_s32 %a, %t
          scf.yield %e : i32
        }
        scf.yield %s : i32
      } else {
        %u = ptx.add_s32 %v, %c1
        scf.yield %u : i32
      }
    """
    assert run(body + store("r"), n) == same(7 + n * (n + 3))


def test_a_predicated_load_keeps_the_other_value():
    body = """
      ptx.st_global_b32 %at, %tid, 0
      %p = ptx.setp_lt_s32 %tid, %c8
      %x = ptx.ld_global_b32 %at, 0 if %p else %c9
      %base = ptx.shared_base
      %four = ptx.mul_lo_s32 %tid, %c4
      %s = ptx.add_s32 %base, %four
      ptx.st_shared_b32 %s, %x, 0
      %y = ptx.ld_shared_b32 %s, 0 if %p else %s
      %z = ptx.sub_s32 %y, %base
    """
    lanes = np.arange(LANES)
    rows = run(body + store("x", "y"), 3, 2)
    assert rows[0] == np.where(lanes < 8, lanes, 9).tolist()
    assert rows[1][:8] == lanes[:8].tolist()
    assert rows[1][9] - rows[1][8] == 4


def test_accumulators_and_loop_values_stay_in_their_registers():
    body = """
      %f0 = ptx.constant 0.0 : f32
      %w, %x, %y, %z = scf.for %i = %c0 to %n step %c1 iter_args(%a = %f0, %b = %f0, %c = %f0, %d = %f0)
          -> (f32, f32, f32, f32) : i32 {
        %e, %f, %g, %h = ptx.mma_m16n8k16_f32_f16 %tid, %tid, %tid, %tid, %tid, %tid, %a, %b, %c, %d
        %j, %k, %l, %m = ptx.mma_m16n8k16_f32_f16 %tid, %tid, %tid, %tid, %tid, %tid, %e, %f, %g, %h
        scf.yield %j, %k, %l, %m : f32, f32, f32, f32
      }
    """
    text = ptx_of(kernel(body))
    loop = text[text.index("LOOP_1:") : text.index("DONE_1:")]
    assert "mov" not in loop
    lists = re.findall(r"\{(%f[^}]*)\}", loop)
    assert len(lists) == 4
    assert len(set(lists)) == 1


def test_results_of_a_piecewise_product_change_no_operand_that_is_read_again():
    """ptxas 13.0 makes of the last product on sm_90a two of f16 and four additions, `%f0 += %f0` first: had %d the register of
    %zero, the others would get its first sum added (found on an H200)."""
    body = """
      %zero = ptx.constant 0.0 : f32
      %a, %b, %c, %d = ptx.NAME %tid, %tid, %tid, %tid, %tid, %tid, %zero, %zero, %zero, %zero
      %e, %f, %g, %h = ptx.NAME %tid, %tid, %tid, %tid, %tid, %tid, %a, %b, %c, %d
      ptx.st_global_v2_f32 %at, %e, %h, 0
    """
    lists: dict[str, list[list[str]]] = {}
    for name in ("mma_m16n8k32_f32_e4m3_e5m2", "mma_m16n8k16_f32_f16"):
        text = ptx_of(kernel(body.replace("NAME", name)))
        lists[name] = [part.split(",") for part in re.findall(r"\{(%f[^}]*)\}", text)]
    first, zeros, second, sums = lists["mma_m16n8k32_f32_e4m3_e5m2"][:4]
    assert not set(first) & set(zeros)
    assert first == second == sums  # what stands at one place only is changed where it is
    whole, zeros = lists["mma_m16n8k16_f32_f16"][:2]
    assert whole[0] == zeros[0]


def test_results_of_a_piecewise_product_of_f16_sums_change_none_either():
    """ptxas 13.0 adds c last on sm_90a, `HADD2 R4, R4, c0` before it reads c1: that were R4, had %a the register of %zero."""
    body = """
      %zero = ptx.constant 0 : i32
      %a, %b = ptx.mma_m16n8k32_f16_e4m3_e5m2 %tid, %tid, %tid, %tid, %tid, %tid, %zero, %zero
      %c, %d = ptx.mma_m16n8k32_f16_e4m3_e5m2 %tid, %tid, %tid, %tid, %tid, %tid, %a, %b
      ptx.st_global_v2_b32 %at, %c, %d, 0
    """
    products = [line for line in ptx_of(kernel(body)).splitlines() if line.strip().startswith("mma")]
    lists = [[part.split(",") for part in re.findall(r"\{([^}]*)\}", line)] for line in products]
    (first, *_, zeros), (second, *_, sums) = lists
    assert not set(first) & set(zeros)
    assert first == second == sums


def test_an_instruction_that_came_later_raises_the_version():
    body = "%a, %b, %c, %d = ptx.mma_m16n8k32_f32_e4m3 %tid, %tid, %tid, %tid, %tid, %tid, %z, %z, %z, %z\n"
    text = kernel("%z = ptx.constant 0.0 : f32\n" + body)
    versions = [ptx_of(text, target).splitlines()[0] for target in ("sm_89", "sm_90a", "sm_120a")]
    assert versions == [".version 8.4", ".version 8.4", ".version 8.7"]
    halves = kernel("%z = ptx.constant 0 : i32\n%a, %b = ptx.mma_m16n8k32_f16_e4m3 " + "%tid, " * 6 + "%z, %z\n")
    assert {ptx_of(halves, target).splitlines()[0] for target in ("sm_89", "sm_90a", "sm_120a")} == {".version 8.7"}


def test_a_loop_that_surely_runs_has_no_guard():
    text = ptx_of(kernel("scf.for %i = %c0 to %c3 step %c1 : i32 {\n ptx.bar_sync 0\n }\n"))
    assert "setp.ge" not in text
    assert text.count("bra") == 1


def test_constants_are_literals_where_they_can_be():
    text = ptx_of(kernel("%x = ptx.add_s32 %tid, %c9\n" + store("x", "c7")))
    assert "add.s32" in text
    assert re.search(r"add\.s32 %r\d+, %r\d+, 9;", text)
    assert re.search(r"mov\.b32 (%r\d+), 7;", text)


def test_the_head_of_the_text():
    text = ptx_of(kernel('ptx.comment "nothing else"\n'), "sm_89")
    lines = text.splitlines()
    assert lines[:3] == [".version 7.8", ".target sm_89", ".address_size 64"]
    assert ".extern .shared .align 1024 .b8 smem[];" in lines
    assert ".maxntid 32, 1, 1" in lines
    assert ".minnctapersm 1" in lines
    assert "\t// nothing else" in lines


def test_errors_are_sentences():
    with pytest.raises(EmmyError, match=r"there is no ptx\.kernel to print"):
        print_ptx(parse_module("builtin.module {}", "test"), "sm_90a")
    with pytest.raises(EmmyError, match=r"'arith\.constant' is no op of level 4"):
        ptx_of(kernel("%x = arith.constant 1 : index\n"))
    with pytest.raises(EmmyError, match="unknown target"):
        ptx_of(kernel(""), "sm_1")


class RandomProgram:
    """A random structured program, as level 4 and as Python: every live value is stored at the end."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.count = 0
        self.text: list[str] = []
        self.python: list[str] = []

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def block(self, names: list[str], indent: str, depth: int) -> list[str]:
        names = list(names)
        for _ in range(self.random.randint(1, 4)):
            kind = self.random.choice(["add", "add", "for", "if"] if depth < 3 else ["add"])
            names.extend(getattr(self, kind if kind == "add" else f"{kind}_")(names, indent, depth))
        return names

    def add(self, names: list[str], indent: str, depth: int) -> list[str]:
        x, y, z = self.random.choice(names), self.random.choice(names), self.name()
        self.text.append(f"%{z} = ptx.add_s32 %{x}, %{y}")
        self.python.append(f"{indent}{z} = ({x} + {y}) & MASK")
        return [z]

    def for_(self, names: list[str], indent: str, depth: int) -> list[str]:
        count, counter = self.random.randint(1, 4), self.name()
        starts = [self.random.choice(names) for _ in range(count)]
        args, results = [self.name() for _ in starts], [self.name() for _ in starts]
        bound = self.random.choice(["n", "c0", "c2"])
        types = ", ".join(["i32"] * count)
        carried = ", ".join(f"%{a} = %{s}" for a, s in zip(args, starts, strict=True))
        self.text.append(
            f"{', '.join('%' + r for r in results)} = scf.for %{counter} = %c0 to %{bound} step %c1 "
            f"iter_args({carried}) -> ({types}) : i32 {{"
        )
        self.python.append(f"{indent}{', '.join(args)}, = {', '.join(starts)},")
        self.python.append(f"{indent}for {counter} in range(0, {bound}):")
        inner = self.block([*names, *args, counter], indent + "  ", depth + 1)
        ends = [self.random.choice(inner[-6:] + args) for _ in args]
        self.text.append(f"scf.yield {', '.join('%' + e for e in ends)} : {types}")
        self.text.append("}")
        self.python.append(f"{indent}  {', '.join(args)}, = {', '.join(ends)},")
        self.python.append(f"{indent}{', '.join(results)}, = {', '.join(args)},")
        return results

    def if_(self, names: list[str], indent: str, depth: int) -> list[str]:
        count, predicate = self.random.randint(1, 3), self.name()
        results, types = [self.name() for _ in range(count)], ", ".join(["i32"] * count)
        # tid is the only value that differs between lanes; conditions must be uniform, so they look at counters only
        x = self.random.choice([n for n in ("n", "c0", "c1", "c2")])
        self.text.append(f"%{predicate} = ptx.setp_lt_s32 %{x}, %n")
        self.text.append(f"{', '.join('%' + r for r in results)} = scf.if %{predicate} -> ({types}) {{")
        self.python.append(f"{indent}if {x} < n:")
        for branch in range(2):
            inner = self.block(names, indent + "  ", depth + 1)
            ends = [self.random.choice(inner[-6:]) for _ in results]
            self.text.append(f"scf.yield {', '.join('%' + e for e in ends)} : {types}")
            self.text.append("} else {" if branch == 0 else "}")
            self.python.append(f"{indent}  {', '.join(results)}, = {', '.join(ends)},")
            if branch == 0:
                self.python.append(f"{indent}else:")
        return results


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_compute_what_python_computes(seed: int):
    program = RandomProgram(seed)
    live = program.block(["tid", "n", "c1", "c2"], "", 0)
    n = seed % 4
    rows = run("\n".join(program.text) + "\n" + store(*live), n, len(live))
    for lane in (0, 31):
        scope = {"tid": lane, "n": n, "MASK": 0xFFFFFFFF, **{f"c{i}": i for i in range(10)}}
        exec("\n".join(program.python), scope)
        assert [row[lane] & 0xFFFFFFFF for row in rows] == [scope[name] for name in live]
