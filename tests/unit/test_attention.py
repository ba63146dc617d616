"""The attention op: what it asks for and refuses, its corners, and that only its own file names it."""

from pathlib import Path

import numpy as np
import pytest
from attention_texts import (
    ATTENTION,
    OPERANDS,
    PACKED,
    PAGED,
    RESULT,
    function,
    lowered,
    ragged,
    verified,
)

from emmy.chained_schedules import CHAINED_ROWS, Chain, choose_chained_schedule, problem_of_chain
from emmy.compilation import lower
from emmy.errors import EmmyError
from emmy.interpreters import level1, level2
from emmy.ir import make_context, parse_module, print_module
from emmy.launch_facts import level1_facts
from emmy.lowering.composites import composite_ops
from emmy.lowering.tensor_op_to_tile import LowerTensorOp
from emmy.options import Options
from emmy.passes.assign_schedule import AssignSchedule
from emmy.targets import get_target
from emmy.tools.compare import compare, error_terms

ROOT = Path(__file__).resolve().parents[2]


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
