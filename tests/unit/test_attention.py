"""The attention op: its text, what it refuses, its corners, and that only its own file names it."""

import re
from pathlib import Path

import numpy as np
import pytest

from emmy.chained_schedules import CHAINED_ROWS, Chain, choose_chained_schedule, problem_of_chain
from emmy.compilation import lower
from emmy.errors import EmmyError
from emmy.interpreters import level1, level2
from emmy.ir import make_context, parse_module, print_module, verify_module
from emmy.launch_facts import level1_facts
from emmy.lowering.composites import composite_ops
from emmy.lowering.tensor_op_to_tile import LowerTensorOp
from emmy.options import Options
from emmy.passes.assign_schedule import AssignSchedule
from emmy.targets import get_target
from emmy.tools.compare import compare, error_terms

ROOT = Path(__file__).resolve().parents[2]
TENSOR = "tensor<2x8x64x32xf16>"
HALF = "tensor<2x4x96x32xf16>"
WIDE = "tensor<2x4x96x48xf16>"
RESULT = "tensor<2x8x64x48xf16>"
ROWS = "tensor<2x8x64xf32>"
OPERANDS = f"({TENSOR}, {HALF}, {WIDE})"


def function(op, arguments=f"%q: {TENSOR}, %k: {HALF}, %v: {WIDE}", results=RESULT, returned="%o"):
    return f"func.func @f({arguments}) -> ({results}) {{\n  {op}\n  func.return {returned} : {results}\n}}\n"


def verified(text):
    module = parse_module(text, "t.mlir")
    verify_module(module)
    return module


def lowered(text, target="sm_90a"):
    """The level-2 module, through its text."""
    context = make_context()
    module = parse_module(text, "t.mlir", context)
    verify_module(module)
    AssignSchedule(target).apply(context, module)
    LowerTensorOp().apply(context, module)
    verify_module(module)
    again = parse_module(print_module(module), "lowered.mlir", context)
    verify_module(again)
    return again


# ---- text ------------------------------------------------------------------------------------------------------------

CLAUSES = [
    "scale 0.125",
    "scale -0.5 causal",
    "scale 0.0 window 7",
    "scale 1.0 causal window 1024 softcap 50.0",
    "scale 0.1 accumulate<hybrid, max_k = 64>",
    "scale 0.1 causal accumulate<f32> accumulate_scores<hybrid, max_k = 32>",
    "scale 0.1 {emmy.schedule = #tile.schedule<block = [32, 32, 32], warps = [2, 1]>}",
]


@pytest.mark.parametrize("clauses", CLAUSES)
def test_round_trip(clauses):
    text = print_module(verified(function(f"%o = tensor_op.attention %q, %k, %v {clauses} : {OPERANDS} -> {RESULT}")))
    assert f"tensor_op.attention %q, %k, %v {clauses} : {OPERANDS} -> {RESULT}" in text
    assert print_module(verified(text)) == text


def test_round_trip_with_a_bias_and_two_results():
    bias = "tensor<1x8x1x96xbf16>"
    op = f"%o, %l = tensor_op.attention %q, %k, %v scale 0.125 bias %b : ({TENSOR}, {HALF}, {WIDE}, {bias})"
    text = function(
        f"{op} -> ({RESULT}, {ROWS})",
        f"%q: {TENSOR}, %k: {HALF}, %v: {WIDE}, %b: {bias}",
        f"{RESULT}, {ROWS}",
        "%o, %l",
    )
    assert print_module(verified(print_module(verified(text)))) == print_module(verified(text))
    assert op in print_module(verified(text))


def types(q=TENSOR, k=HALF, v=WIDE, o=RESULT):
    return f"({q}, {k}, {v}) -> {o}"


ATTENTION = "%o = tensor_op.attention %q, %k, %v "
MALFORMED = [
    (
        "scale 1.0 : " + types(q="tensor<8x64x32xf16>"),
        "the queries have 4 dimensions (batch, heads, rows, head dimension)",
    ),
    ("scale 1.0 : " + types(k="tensor<2x4x96x16xf16>"), "queries and keys have one head dimension, got 32 and 16"),
    ("scale 1.0 : " + types(k="tensor<2x4x96x?xf16>"), "heads and head dimension of the keys are static, got 2x4x96x?"),
    ("scale 1.0 : " + types(q="tensor<2x?x64x32xf16>"), "heads and head dimension of the queries are static"),
    ("scale 1.0 : " + types(v="tensor<2x4x96x513xf16>"), "head dimensions are from 1 to 512, got 32 and 513"),
    ("scale 1.0 : " + types(v="tensor<2x4x96x0xf16>"), "head dimensions are from 1 to 512, got 32 and 0"),
    ("scale 1.0 : " + types(k="tensor<2x3x96x32xf16>"), "8 query heads do not share 3 key and 4 value heads evenly"),
    ("scale 1.0 : " + types(k="tensor<2x0x96x32xf16>"), "8 query heads do not share 0 key and 4 value heads evenly"),
    ("scale 1.0 : " + types(v="tensor<2x4x95x48xf16>"), "there are as many values as keys, got 95 and 96"),
    ("scale 1.0 : " + types(k="tensor<3x4x96x32xf16>"), "batch sizes are equal, got 2x3x2"),
    ("scale 1.0 : " + types(o="tensor<2x8x64x32xf16>"), "attention of these operands gives 2x8x64x48, not 2x8x64x32"),
    ("scale 1.0 : " + types(q="tensor<2x8x64x32xf32>"), "queries, keys and values are f16 or bf16, got f32"),
    ("scale 1.0 : " + types(k="tensor<2x4x96x32xbf16>"), "queries, keys and values have one element type"),
    ("scale 1.0 : " + types(o="tensor<2x8x64x48xbf16>"), "the result of f16 values is f16 or f32, got bf16"),
    ("scale 1.0e31 : " + types(), "scale is a number from -1e30 to 1e30, got 1e+31"),
    ("scale 1.0 softcap 0.0 : " + types(), "softcap is a number from 1e-30 to 1e30, got 0.0"),
    ("scale 1.0 softcap -2.0 : " + types(), "softcap is a number from 1e-30 to 1e30, got -2.0"),
    ("scale 1.0 window 0 : " + types(), "window is a number of keys from 1 to 1073741823, got 0"),
    ("scale 1.0 window -3 : " + types(), "window is a number of keys from 1 to 1073741823, got -3"),
    ("scale 1.0 accumulate<f16> : " + types(), "attention accumulates in f32 or hybrid: its sums are rescaled"),
    ("scale 1.0 accumulate<hybrid, overflow = redo> : " + types(), "attention has no overflow = redo"),
    (
        "scale 1.0 accumulate<hybrid> : " + types(*(t.replace("f16", "bf16") for t in (TENSOR, HALF, WIDE, RESULT))),
        "accumulate<hybrid> needs f16 operands, got bf16",
    ),
    (": " + types(), "Expected 'scale'"),
    ("scale 1.0 : " + types(o=f"({RESULT}, {ROWS}, {ROWS})"), "gives its result and perhaps a logarithm for each row"),
    ("scale 1.0 bias %q : " + types(), "types and operands differ in number: 3 and 4"),
]


@pytest.mark.parametrize(("rest", "sentence"), MALFORMED)
def test_malformed(rest, sentence):
    signature = re.search(r": \((.*)\) -> \(?(.*?)\)?$", rest)
    q, k, v = signature[1].split(", ")
    text = function(ATTENTION + rest, f"%q: {q}, %k: {k}, %v: {v}", signature[2].split(", ")[0])
    with pytest.raises(EmmyError) as caught:
        verified(text)
    assert sentence in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.location.line == 2


@pytest.mark.parametrize(
    ("bias", "lse", "sentence"),
    [
        ("tensor<2x8x64x95xf32>", ROWS, "a bias of 2x8x64x95 does not broadcast to 2x8x64x96"),
        ("tensor<64x96xf32>", ROWS, "a bias of 64x96 does not broadcast to 2x8x64x96"),
        ("tensor<1x1x1x96xi32>", ROWS, "the bias is f16, bf16 or f32, got i32"),
        ("tensor<1x1x1x96xf16>", "tensor<2x8x64xf16>", "the logarithms are f32, got f16"),
        ("tensor<1x1x1x96xf16>", "tensor<2x8xf32>", "the logarithms are 2x8x64, one for each row, not 2x8"),
    ],
)
def test_malformed_bias_and_logarithms(bias, lse, sentence):
    op = f"%o, %l = tensor_op.attention %q, %k, %v scale 1.0 bias %b : ({TENSOR}, {HALF}, {WIDE}, {bias})"
    arguments = f"%q: {TENSOR}, %k: {HALF}, %v: {WIDE}, %b: {bias}"
    with pytest.raises(EmmyError) as caught:
        verified(function(f"{op} -> ({RESULT}, {lse})", arguments, f"{RESULT}, {lse}", "%o, %l"))
    assert sentence in caught.value.message


PACKED = "tensor<1x8x?x32xf16>", "tensor<1x4x?x32xf16>", "tensor<1x4x?x48xf16>", "tensor<1x8x?x48xf16>"
PAGED = "tensor<?x8x1x32xf16>", "tensor<9x4x32x32xf16>", "tensor<9x4x32x48xf16>", "tensor<?x8x1x48xf16>"


def ragged(clause, first, second, tensors, more="", more_types=""):
    """A function whose attention has a clause with two tensors."""
    q, k, v, o = tensors
    arguments = f"%q: {q}, %k: {k}, %v: {v}, %x: {first}, %y: {second}{more_types}"
    given = ", ".join(part.partition(": ")[2] for part in arguments.split(", %"))
    return function(f"{ATTENTION}scale 1.0{more} {clause} : ({given}) -> {o}", arguments, o)


@pytest.mark.parametrize(
    ("clause", "first", "second", "tensors"),
    [
        ("lengths %x, %y", "tensor<?xi32>", "tensor<5xi32>", PACKED),
        ("lengths %x, %y rows 512", "tensor<?xi32>", "tensor<?xi32>", PACKED),
        ("pages %x, %y", "tensor<?x?xi32>", "tensor<?xi32>", PAGED),
    ],
)
def test_round_trip_of_lengths_and_pages(clause, first, second, tensors):
    text = print_module(verified(ragged(clause, first, second, tensors)))
    assert f" scale 1.0 {clause} : (" in text
    assert print_module(verified(text)) == text


RAGGED = [
    (("lengths %x, %y", "tensor<?xi64>", "tensor<?xi32>", PACKED), "lengths takes tensors of i32 of ranks 1 and 1"),
    (("lengths %x, %y", "tensor<?xi32>", "tensor<?x1xi32>", PACKED), "lengths takes tensors of i32 of ranks 1 and 1"),
    (
        ("lengths %x, %y", "tensor<4xi32>", "tensor<5xi32>", PACKED),
        "lengths takes two tensors of one size, at least 1, got 4x5",
    ),
    (
        ("lengths %x, %y", "tensor<0xi32>", "tensor<?xi32>", PACKED),
        "lengths takes two tensors of one size, at least 1, got 0x?",
    ),
    (
        ("lengths %x, %y", "tensor<?xi32>", "tensor<?xi32>", (TENSOR, HALF, WIDE, RESULT)),
        "with lengths has a batch of 1",
    ),
    (
        ("lengths %x, %y rows 0", "tensor<?xi32>", "tensor<?xi32>", PACKED),
        "rows belongs to lengths, and is a number from 1",
    ),
    (
        ("pages %x, %y rows 5", "tensor<?x?xi32>", "tensor<?xi32>", PAGED),
        "rows belongs to lengths, and is a number from 1",
    ),
    (("pages %x, %y", "tensor<?xi32>", "tensor<?xi32>", PAGED), "pages takes tensors of i32 of ranks 2 and 1"),
    (
        ("pages %x, %y", "tensor<3x?xi32>", "tensor<4xi32>", PAGED),
        "a row of the table and a count for each batch, got ?x3x4",
    ),
    (
        (
            "pages %x, %y",
            "tensor<2x?xi32>",
            "tensor<2xi32>",
            (TENSOR, HALF.replace("96", "?"), WIDE.replace("96", "?"), RESULT),
        ),
        "a page has a static multiple of 16 keys, and there is no bias; got 2x4x?x32",
    ),
    (
        (
            "pages %x, %y",
            "tensor<2x?xi32>",
            "tensor<2xi32>",
            (TENSOR, HALF.replace("96", "24"), WIDE.replace("96", "24"), RESULT),
        ),
        "a page has a static multiple of 16 keys, and there is no bias; got 2x4x24x32",
    ),
    (("lengths %x", "tensor<?xi32>", "tensor<?xi32>", PACKED), "attention takes 5 operands with these clauses, got 4"),
]


@pytest.mark.parametrize(("arguments", "sentence"), RAGGED)
def test_malformed_lengths_and_pages(arguments, sentence):
    with pytest.raises(EmmyError) as caught:
        verified(ragged(*arguments))
    assert sentence in caught.value.message
    assert caught.value.location.line == 2


def test_illegal_schedules_of_lengths_and_pages():
    pinned = "{{emmy.schedule = #tile.schedule<block = [64, {keys}, 32], warps = [4, 1], splits = {splits}>}}"
    packed = ("lengths %x, %y " + pinned.format(keys=64, splits=2), "tensor<?xi32>", "tensor<?xi32>", PACKED)
    with pytest.raises(EmmyError, match="splits wants sequences of one number of rows, got 2"):
        lowered(ragged(*packed))
    paged = ("pages %x, %y " + pinned.format(keys=64, splits=0), "tensor<?x?xi32>", "tensor<?xi32>", PAGED)
    with pytest.raises(EmmyError, match=r"block\[1\] divides a page's 32 keys, got 64"):
        lowered(ragged(*paged))


def test_lengths_that_do_not_rise():
    text = ragged("lengths %x, %y", "tensor<?xi32>", "tensor<?xi32>", PACKED)
    arrays = [draw(1, 8, 9, 32), draw(1, 4, 9, 32), draw(1, 4, 9, 48)]
    for starts in ([0, 5, 4, 9], [1, 9], [0, 8]):
        with pytest.raises(EmmyError, match="lengths rise from 0 to the 9 rows there are, got"):
            level1.run(verified(text), "f", [*arrays, np.int32(starts), np.int32(starts)])


# ---- where it is known -----------------------------------------------------------------------------------------------


def test_only_its_own_file_names_it():
    """Of the compiler's files: benchmarks and pages of measurements may."""
    folders = [ROOT / name for name in ("emmy", "dialects", "passes", "lowering")]
    files = [f for folder in folders for f in folder.rglob("*.py") if not f.name.endswith("_page.py")]
    files = [f for f in files if "bench" not in f.relative_to(ROOT).parts]
    naming = {f.relative_to(ROOT) for f in files if "attention" in f.read_text().lower()}
    assert len(files) > 100
    assert naming == {Path("lowering/composites/attention.py")}


def test_composites_are_found():
    assert [op.name for op in composite_ops()] == ["tensor_op.attention"]


def test_the_text_of_the_program_is_short():
    """As printed, with the host function and the module around it."""
    op = "%o = tensor_op.attention %q, %k, %v scale 0.125 causal : "
    tensor = "tensor<1x8x4096x64xf16>"
    text = function(
        f"{op}({tensor}, {tensor}, {tensor}) -> {tensor}", f"%q: {tensor}, %k: {tensor}, %v: {tensor}", tensor
    )
    assert len(print_module(lowered(text, "sm_80")).splitlines()) < 60
    example = (ROOT / "docs" / "examples" / "flash_causal.mlir").read_text().replace("flash_causal", "f")
    assert (
        print_module(lowered(text, "sm_80"))
        == "".join(line for line in example.splitlines(True) if not line.startswith("//")).rstrip() + "\n"
    )


# ---- what it asks for ------------------------------------------------------------------------------------------------


def test_facts():
    q, k = "tensor<?x8x?x32xf16>", "tensor<?x4x?x32xf16>"
    text = function(f"{ATTENTION}scale 1.0 causal : ({q}, {k}, {k}) -> {q}", f"%q: {q}, %k: {k}, %v: {k}", q)
    facts = level1_facts(verified(text))["f"]
    assert [check["message"] for check in facts.checks] == [
        "attention has batch sizes that must be equal: dimension 0 of 'q' and dimension 0 of 'k'",
        "attention has batch sizes that must be equal: dimension 0 of 'q' and dimension 0 of 'v'",
        "attention has as many values as keys: dimension 2 of 'k' and dimension 2 of 'v'",
    ]
    assert facts.work["flops"] == ["mul", 8 * 64, ["dim", "q", 0], ["dim", "q", 2], ["dim", "k", 2]]


@pytest.mark.parametrize("target", sorted(CHAINED_ROWS))
@pytest.mark.parametrize("depth", [16, 64, 80, 128, 256, 512])
@pytest.mark.parametrize("max_k", [0, 64])
@pytest.mark.parametrize("tensors", [(), (4,)])
def test_every_target_has_a_legal_schedule(target, depth, max_k, tensors):
    chain = Chain(depth, depth, max_k=max_k, tensors=tensors)
    schedule = choose_chained_schedule(get_target(target), chain)
    assert schedule.problem() is None
    assert problem_of_chain(schedule, get_target(target), chain) is None


SCHEDULES = [
    (
        "block = [64, 48, 32], warps = [2, 2]",
        "block[1] = 48 does not split over 2 warps in multiples of 16",
    ),
    ("block = [64, 64, 64], warps = [4, 1]", "block[2] is the whole depth of the first product, 32, got 64"),
    ("block = [64, 64, 32], warps = [4, 1], promote = 16", "promote belongs to the hybrid policy"),
    ("block = [64, 64, 32], warps = [4, 1], transport = tma", "transport = tma needs sm_90 or later"),
    ("block = [64, 512, 32], warps = [4, 1], stages = 4", "bytes of shared memory, and a CTA of sm_89 has 101376"),
    (
        "block = [128, 256, 32], warps = [2, 1], stages = 1",
        "registers and can have 255; use more warps or a smaller block",
    ),
    ("block = [64, 64, 32], warps = [4, 1], atom = m64n8k16", "m64n8k16"),
]


@pytest.mark.parametrize(("schedule", "sentence"), SCHEDULES)
def test_illegal_schedules(schedule, sentence):
    op = f"{ATTENTION}scale 1.0 {{emmy.schedule = #tile.schedule<{schedule}>}} : {OPERANDS} -> {RESULT}"
    with pytest.raises(EmmyError) as caught:
        lowered(function(op), "sm_89")
    assert "illegal schedule: " in caught.value.message
    assert sentence in caught.value.message
    assert caught.value.location.line == 2


def test_a_promotion_beyond_the_policy():
    pinned = "{emmy.schedule = #tile.schedule<block = [64, 64, 32], warps = [4, 1], promote = 64>}"
    op = f"{ATTENTION}scale 1.0 accumulate<hybrid, max_k = 32> {pinned} : {OPERANDS} -> {RESULT}"
    with pytest.raises(EmmyError, match="promote = 64 is more than the policy's max_k = 32"):
        lowered(function(op))


def test_options_replace_fields_of_the_table():
    op = f"{ATTENTION}scale 1.0 : {OPERANDS} -> {RESULT}"
    context, module = make_context(), verified(function(op))
    AssignSchedule("sm_90a", block_m=64, block_n=32, stages=4).apply(context, module)
    assert "block = [64, 32, 32], warps = [4, 1], stages = 4" in print_module(module)


def test_a_missing_schedule():
    with pytest.raises(EmmyError, match=r"has no emmy\.schedule; run assign-schedule"):
        LowerTensorOp().apply(make_context(), verified(function(f"{ATTENTION}scale 1.0 : {OPERANDS} -> {RESULT}")))


@pytest.mark.parametrize(
    ("policy", "element", "dots"),
    [
        ("hybrid", "f16", "accumulate<hybrid, max_k = 64>"),
        ("hybrid", "bf16", None),
        ("hybrid, overflow = redo", "f16", None),
        ("f16", "f16", None),
    ],
)
def test_a_policy_of_the_module_is_for_the_values(policy, element, dots):
    """It serves the second product only; where it cannot be followed, sums stay f32, and the kernel says so."""
    text = function(f"{ATTENTION}scale 1.0 : {OPERANDS} -> {RESULT}").replace("f16", element)
    context = make_context()
    module = parse_module(
        f"builtin.module attributes {{emmy.accumulate = #tensor_op.accumulate<{policy}>}} {{{text}}}", "t"
    )
    AssignSchedule().apply(context, module)
    LowerTensorOp().apply(context, module)
    lines = [line for line in print_module(module).splitlines() if "tile.dot" in line]
    assert ["accumulate" in line for line in lines] == [False, dots is not None]
    assert dots is None or dots in lines[1]
    assert ("emmy.remark" in print_module(module)) == (dots is None)


# ---- corners ---------------------------------------------------------------------------------------------------------


def run(clauses, arrays, bias=False, element="f16", target="sm_90a"):
    """(exact, of level 2): each the result and the logarithms, of q, k, v and perhaps a bias in f32."""
    shapes = ["x".join(map(str, a.shape)) for a in arrays]
    tensors = [f"tensor<{s}x{'f32' if i == 3 else element}>" for i, s in enumerate(shapes)]
    result = f"tensor<{'x'.join(map(str, (*arrays[0].shape[:3], arrays[2].shape[3])))}x{element}>"
    rows = f"tensor<{'x'.join(map(str, arrays[0].shape[:3]))}xf32>"
    names = ["%q", "%k", "%v", "%b"]
    op = f"%o, %l = tensor_op.attention %q, %k, %v {clauses}{' bias %b' if bias else ''}"
    arguments = ", ".join(f"{n}: {t}" for n, t in zip(names, tensors, strict=False))
    text = function(f"{op} : ({', '.join(tensors)}) -> ({result}, {rows})", arguments, f"{result}, {rows}", "%o, %l")
    return level1.run(verified(text), "f", arrays), level2.run_module(lowered(text, target), "f", arrays)


def draw(*shape, seed=0):
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float16)


def test_rows_that_see_no_key():
    """More queries than keys, causal: the first ones stand before all keys."""
    exact, tiles = run("scale 0.5 causal", [draw(1, 2, 70, 16), draw(1, 2, 40, 16), draw(1, 2, 40, 16)])
    for value, logarithm in (exact, tiles):
        assert not np.any(value[:, :, :30])
        assert np.all(np.isneginf(logarithm[:, :, :30]))
        assert np.all(np.isfinite(logarithm[:, :, 30:]))


def test_no_keys():
    exact, tiles = run("scale 0.5", [draw(1, 2, 70, 16), draw(1, 2, 0, 16), draw(1, 2, 0, 24)])
    for value, logarithm in (exact, tiles):
        assert value.shape == (1, 2, 70, 24)
        assert not np.any(value)
        assert np.all(np.isneginf(logarithm))


def test_a_bias_that_hides_everything_of_a_row():
    bias = np.zeros((1, 1, 5, 9), np.float32)
    bias[0, 0, 2] = -np.inf
    exact, tiles = run("scale 0.5", [draw(1, 1, 5, 16), draw(1, 1, 9, 16), draw(1, 1, 9, 16), bias], bias=True)
    for value, logarithm in (exact, tiles):
        assert not np.any(value[0, 0, 2])
        assert np.isneginf(logarithm[0, 0]).tolist() == [False, False, True, False, False]


@pytest.mark.parametrize("clauses", ["scale 0.5 causal", "scale 0.5 causal window 9", "scale -0.5 causal softcap 3.0"])
def test_nan_in_hidden_keys_does_not_leak(clauses):
    q, k, v = draw(1, 1, 32, 16), draw(1, 1, 64, 16), draw(1, 1, 64, 16)
    clean = run(clauses, [q, k, v])
    k = np.concatenate([k, np.full((1, 1, 7, 16), np.nan, np.float16)], axis=2)
    v = np.concatenate([v, np.zeros((1, 1, 7, 16), np.float16)], axis=2)
    q = np.concatenate([q, np.zeros((1, 1, 7, 16), np.float16)], axis=2)
    for before, after in zip(clean, run(clauses, [q, k, v]), strict=True):
        np.testing.assert_array_equal(after[0][:, :, :32], before[0])


def test_equal_scores_give_the_mean():
    q, k, v = np.ones((1, 1, 16, 16), np.float16), np.ones((1, 1, 64, 16), np.float16), draw(1, 1, 64, 16)
    _, tiles = run("scale 1.0", [q, k, v])
    np.testing.assert_allclose(
        tiles[0].astype(float), np.broadcast_to(v.astype(float).mean(2), (1, 1, 16, 16)), atol=1e-3
    )
    np.testing.assert_allclose(tiles[1], 16 + np.log(64), rtol=1e-6)


def test_one_score_wins():
    """Scores hundreds apart: the weights are one-hot, exactly, in whatever block the best key is."""
    q, k, v = np.ones((1, 1, 16, 16), np.float16), draw(1, 1, 200, 16) * 0, draw(1, 1, 200, 16)
    k[0, 0, 130] = 60
    exact, tiles = run("scale 1.0", [q, k, v])
    for value, _ in (exact, tiles):
        np.testing.assert_array_equal(value[0, 0], np.broadcast_to(v[0, 0, 130], (16, 16)))


def test_blocks_without_visible_keys_change_nothing():
    """The statistics after more hidden blocks are the same bits: the fact that the loop states."""
    arrays = [draw(1, 1, 40, 16), draw(1, 1, 200, 16), draw(1, 1, 200, 16)]
    hidden = np.zeros((1, 1, 1, 200), np.float32)
    hidden[..., 64:] = -np.inf
    _, tiles = run("scale 3.0", [*arrays, hidden], bias=True)
    _, short = run("scale 3.0", [arrays[0], *(a[:, :, :64] for a in arrays[1:]), hidden[..., :64]], bias=True)
    np.testing.assert_array_equal(tiles[0], short[0])
    np.testing.assert_array_equal(tiles[1], short[1])


def test_sizes_that_do_not_agree():
    q, k = "tensor<1x1x?x16xf16>", "tensor<1x1x?x16xf16>"
    text = function(f"{ATTENTION}scale 1.0 : ({q}, {k}, {k}) -> {q}", f"%q: {q}, %k: {k}, %v: {k}", q)
    with pytest.raises(EmmyError, match=r"attention of shapes .* the `.` sizes do not agree"):
        level1.run(verified(text), "f", [draw(1, 1, 4, 16), draw(1, 1, 5, 16), draw(1, 1, 6, 16)])


def test_a_bias_whose_size_does_not_agree():
    t, bias = "tensor<1x1x16x16xf16>", "tensor<1x1x1x?xf16>"
    text = function(
        f"{ATTENTION}scale 1.0 bias %b : ({t}, {t}, {t}, {bias}) -> {t}", f"%q: {t}, %k: {t}, %v: {t}, %b: {bias}", t
    )
    with pytest.raises(EmmyError, match=r"a bias of shape \(1, 1, 1, 15\) does not broadcast to \(1, 1, 16, 16\)"):
        level1.run(verified(text), "f", [*[draw(1, 1, 16, 16)] * 3, draw(1, 1, 1, 15)])


def test_its_neighbours_have_kernels_of_their_own():
    """Elementwise ops and products before and after it are not made part of its kernel; all launches are in order."""
    t = "tensor<1x2x48x16xf16>"
    text = f"""func.func @f(%x: {t}, %w: tensor<1x2x16x16xf16>) -> ({t}, {t}) {{
      %q = tensor_op.matmul %x, %w : ({t}, tensor<1x2x16x16xf16>) -> {t}
      %k = tensor_op.map neg %x : ({t}) -> {t}
      %o = tensor_op.attention %q, %k, %x scale 0.25 causal : ({t}, {t}, {t}) -> {t}
      %r = tensor_op.map add %o, %x : ({t}, {t}) -> {t}
      %p = tensor_op.attention %r, %k, %o scale 0.25 : ({t}, {t}, {t}) -> {t}
      func.return %r, %p : {t}, {t}
    }}"""
    module = verified(text)
    tiles = lowered(text)
    assert print_module(tiles).count("tile.launch") == 5
    arrays = [draw(1, 2, 48, 16), draw(1, 2, 16, 16) / 4]
    for expected, got in zip(level1.run(module, "f", arrays), level2.run_module(tiles, "f", arrays), strict=True):
        np.testing.assert_allclose(got.astype(float), expected, atol=1e-2)


def test_keys_that_are_values():
    """One tensor as keys and values, as where a model shares them."""
    t = "tensor<1x2x48x16xf16>"
    text = function(f"%o = tensor_op.attention %q, %k, %k scale 0.25 : ({t}, {t}, {t}) -> {t}", f"%q: {t}, %k: {t}", t)
    arrays = [draw(1, 2, 48, 16), draw(1, 2, 48, 16)]
    [expected], [got] = level1.run(verified(text), "f", arrays), level2.run_module(lowered(text), "f", arrays)
    np.testing.assert_allclose(got.astype(float), expected, atol=2e-3)


def test_what_the_tools_allow():
    """A product before it and its own error; sizes of what follows it are known."""
    t = "tensor<1x2x32x16xf16>"
    op = f"""%s = tensor_op.map add %q, %k : ({t}, {t}) -> {t}
      {ATTENTION.replace("%q,", "%s,")}scale 0.25 : ({t}, {t}, {t}) -> {t}
      %r = tensor_op.map add %o, %q : ({t}, {t}) -> {t}"""
    text = function(op, f"%q: {t}, %k: {t}, %v: {t}", t, "%r")
    arrays = [draw(1, 2, 32, 16, seed=i) for i in range(3)]
    roundings, terms = error_terms(verified(text), "f", arrays)
    assert (roundings, terms) == (3, [pytest.approx(2**-11, rel=0.1)])
    [exact], [got] = level1.run(verified(text), "f", arrays), level2.run_module(lowered(text), "f", arrays)
    assert compare(got, exact, roundings, terms).ok


def test_its_schedule_has_a_reason():
    text = function(f"{ATTENTION}scale 1.0 : {OPERANDS} -> {RESULT}")
    found = lower(text, "t.mlir", Options(target="sm_80"), stop_after="lower-tensor-op")
    assert list(found.reasons.values()) == [
        "row 6 of 9 of the table of chained products of sm_80; 16 CTAs are 1 wave of 108 SMs, 15 % full"
    ]


@pytest.mark.parametrize(("depth", "keys", "variant"), [(59, "511", "dense"), (64, "512", "any"), (64, "?", "dense")])
def test_small_pieces_of_a_bias_leave_a_kernel_of_5000_ops(depth, keys, variant):
    """Threads that copy element by element do so for fewer keys at a time, in each of the loops that masks make of one."""
    q, k, b = f"tensor<1x4x512x{depth}xf16>", f"tensor<1x2x{keys}x{depth}xf16>", f"tensor<1x4x512x{keys}xf16>"
    text = f"""func.func @f(%q: {q}, %k: {k}, %v: {k}, %b: {b}) -> {q} {{
      %o = tensor_op.attention %q, %k, %v scale 0.125 causal window 100 softcap 20.0 bias %b : ({q}, {k}, {k}, {b}) -> {q}
      func.return %o : {q}
    }}"""
    module = lower(text, "t.mlir", Options(target="sm_90a", variants=(variant,))).module
    kernels = [op for op in module.walk() if op.name == "ptx.kernel"]
    assert len(kernels) == 1
    assert sum(1 for _ in kernels[0].walk()) <= 5000
