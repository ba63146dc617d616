"""Level 3 is no GEMM template: hand-written kernels pass verifier, placement, transport and interpreter unchanged."""

from itertools import cycle, product

import numpy as np
import protocol_support as support
import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp

from emmy.errors import EmmyError
from emmy.interpreters.level3 import LANDINGS, ORDERS

MODES = cycle(product(LANDINGS, ORDERS))
SITES = ("eager", "first")


def check(forms: support.Forms, inputs: list[np.ndarray], expected: np.ndarray, tolerance: float) -> None:
    """All forms give one result, bit for bit; it is the expected one. Each form takes four of the nine modes, all in turn."""
    first = support.run(forms.canonical, inputs, "late", "fixed")
    assert np.abs(first.astype(np.float64) - expected).max(initial=0) <= tolerance
    for module in forms.all():
        for landing, order in (next(MODES), next(MODES), next(MODES), next(MODES)):
            result = support.run(module, inputs, landing, order)
            assert result.tobytes() == first.tobytes(), (landing, order)


@pytest.mark.parametrize("sites", SITES)
@pytest.mark.parametrize(("k_stages", "v_stages"), list(product((1, 2, 3), (1, 2, 3))))
@pytest.mark.parametrize("kind", ["cp_async", "plain"])
def test_attention(sites: str, k_stages: int, v_stages: int, kind: str) -> None:
    """0, 1, 2, 3, 5 key blocks, with and without a masked one; masked only."""
    forms = support.forms("flash_attention", (("k", k_stages), ("v", v_stages)), sites, kind)
    for keys in (0, 16, 10, 32, 43, 80) if kind == "cp_async" else (0, 43):
        inputs = support.attention_inputs(40, keys)
        check(forms, inputs, support.attention(inputs), 2e-3)


@pytest.mark.parametrize("sites", SITES)
@pytest.mark.parametrize(("k_stages", "v_stages"), list(product((1, 2, 3), (1, 2, 3))))
def test_lagged_attention(sites: str, k_stages: int, v_stages: int) -> None:
    forms = support.forms("flash_attention_lag", (("k", k_stages), ("v", v_stages)), sites, "cp_async")
    for keys in (16, 32, 80):
        inputs = support.attention_inputs(32, keys)
        check(forms, inputs, support.attention(inputs), 2e-3)


@pytest.mark.parametrize("sites", SITES)
@pytest.mark.parametrize(("q_stages", "k_stages", "v_stages"), [(1, 1, 1), (1, 2, 2), (2, 3, 1), (1, 1, 3), (2, 2, 3)])
def test_persistent_attention(sites: str, q_stages: int, k_stages: int, v_stages: int) -> None:
    stages = (("q", q_stages), ("k", k_stages), ("v", v_stages))
    forms = support.forms("flash_attention_persistent", stages, sites, "cp_async")
    for length in (16, 144):
        inputs = support.attention_inputs(length, length)
        check(forms, inputs, support.attention(inputs, causal=True), 2e-3)


@pytest.mark.parametrize("kind", ["cp_async", "plain"])
@pytest.mark.parametrize("sites", SITES)
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_gemm(stages: int, sites: str, kind: str) -> None:
    for depth in (0, 16, 20, 33, 80):
        forms = support.forms("gemm", (("ab", stages),), sites, kind, depth)
        inputs = support.gemm_inputs(40, 32, depth)
        check(forms, inputs, support.gemm(inputs), 0)


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("out_stages", [1, 2])
@pytest.mark.parametrize("kind", ["cp_async", "plain"])
def test_persistent_gemm(stages: int, out_stages: int, kind: str) -> None:
    for rows, depth in ((0, 32), (32, 0), (32, 48), (150, 32)):
        forms = support.forms("gemm_persistent", (("ab", stages), ("out", out_stages)), "eager", kind, depth)
        inputs = support.gemm_inputs(rows, 40, depth)
        check(forms, inputs, support.gemm(inputs), 0)


@pytest.mark.parametrize("name", ["gemm_two_waits", "gemm_deferred_release"])
@pytest.mark.parametrize("sites", SITES)
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_rewritten_consumers(name: str, sites: str, stages: int) -> None:
    for depth in (32, 64, 160):
        forms = support.forms(name, (("ab", stages),), sites, "cp_async", depth)
        inputs = support.gemm_inputs(32, 32, depth)
        check(forms, inputs, support.gemm(inputs), 0)


def loops_of(module: ModuleOp) -> list[scf.ForOp]:
    """The innermost loops of the kernel's role."""
    loops = [op for op in module.walk() if isinstance(op, scf.ForOp)]
    return [loop for loop in loops if not any(isinstance(op, scf.ForOp) for op in loop.body.block.ops)]


def events(loop: scf.ForOp) -> list[str]:
    """The synchronisation of one iteration, in order."""
    pending = "async_copy.wait_group"
    names = [f"{op.name} {op.pending.value.data}" if op.name == pending else op.name for op in loop.body.block.ops]
    return [name.split(".")[1] for name in names if name.split(".")[1].split(" ")[0] in EVENTS]


EVENTS = ("wait_group", "barrier", "commit_group")


@pytest.mark.parametrize("name", ["gemm", "gemm_persistent"])
@pytest.mark.parametrize("stages", [2, 3, 4, 5])
def test_gemm_has_one_barrier_a_step(name: str, stages: int) -> None:
    """The copies stand right behind the barrier, and the loop carries one cursor more than the consumer's did: no index."""
    forms = support.forms(name, (("ab", stages),), "eager", "cp_async")
    (loop,) = loops_of(forms.lowered)
    assert events(loop) == [f"wait_group {stages - 2}", "barrier", "commit_group"]
    assert len(loop.iter_args) == 3
    plain = support.forms(name, (("ab", stages),), "eager", "plain")
    assert events(loops_of(plain.lowered)[0]) == ["barrier"]


@pytest.mark.parametrize("name", ["flash_attention", "flash_attention_lag", "flash_attention_persistent"])
@pytest.mark.parametrize("stages", [2, 3])
def test_attention_has_one_barrier_a_block(name: str, stages: int) -> None:
    """With sites = first, K and V of a block are one commit group, and both loops look alike."""
    forms = support.forms(name, (("k", stages), ("v", stages)), "first", "cp_async")
    for loop in loops_of(forms.lowered):
        assert events(loop) == [f"wait_group {stages - 2}", "barrier", "commit_group"]


@pytest.mark.parametrize("name", ["gemm_two_waits", "gemm_deferred_release"])
def test_too_few_stages(name: str) -> None:
    """Two slots are held at once: one stage cannot do, and every pass that sees it says so."""
    module = support.parse(name, {"ab": 1})
    with pytest.raises(EmmyError, match=r"pipeline @ab has 1 stage\(s\) and every slot is held here"):
        support.VerifyPipelines().apply(support.CONTEXT, module)
    with pytest.raises(EmmyError, match=r"pipeline @ab has 1 stage\(s\) and every slot is held here"):
        support.PlaceRoles().apply(support.CONTEXT, module)
    with pytest.raises(EmmyError, match=r"deadlock: .*acquire @ab: ticket 0 in its slot is given back by 0 of 2 warps"):
        support.run(module, support.gemm_inputs(32, 32, 96), "late", "fixed")
