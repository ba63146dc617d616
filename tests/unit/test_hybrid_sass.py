"""What hybrid sums cost on each target, from SASS: registers, tensor cycles and other instructions of the main loop.

The model is that of GeForce parts, where an f16 `m16n8k16` takes as long as an f32 `m16n8k8`, and an f32 one twice as long:
16, 16 and 32 cycles of a tensor core. A loop of f32 products takes 32 a product; hybrid may take 20.
"""

from __future__ import annotations

from functools import lru_cache

import pytest

import emmy
from emmy.assemble import Assembled, find_tool, main_loop_mix, main_loop_products, sass
from emmy.targets import TARGETS

pytestmark = [
    pytest.mark.skipif(find_tool("ptxas") is None, reason="ptxas is not installed"),
    pytest.mark.skipif(find_tool("nvdisasm") is None, reason="nvdisasm is not installed"),
]

CYCLES = {"HMMA.16816.F16": 16, "HMMA.1688.F32": 16, "HMMA.16816.F32": 32}
USEFUL = ("HMMA.16816.F16", "HMMA.16816.F32")
PROMOTIONS = ("convert", "identity")
MATMUL = """func.func @mm(%a: tensor<{m}x4096xf16>, %b: tensor<{k}xf16>) -> tensor<{m}x4096xf16> {{
  %c = tensor_op.matmul %a, %b {flags} accumulate<{policy}>
    : (tensor<{m}x4096xf16>, tensor<{k}xf16>) -> tensor<{m}x4096xf16>
  func.return %c : tensor<{m}x4096xf16>
}}"""


@lru_cache(maxsize=64)
def build(
    target: str, policy: str, m: str = "4096", transpose_b: bool = True, **schedule: object
) -> tuple[str, Assembled]:
    """The kernel's PTX and cubin with the schedule that the target chooses, but for some fields. Spills are an error."""
    text = MATMUL.format(m=m, k="4096x4096", policy=policy, flags="transpose_b" if transpose_b else "")
    module = emmy.compile(text, target, schedule=schedule)
    (assembled,) = module.assembled.values()
    return module.ptx, assembled


def loop(assembled: Assembled) -> tuple[dict[str, int], dict[str, int]]:
    text = sass(assembled.cubin)
    return main_loop_mix(text, "mm_kernel"), main_loop_products(text, "mm_kernel")


def per_product(assembled: Assembled) -> tuple[float, float]:
    """(tensor cycles, other instructions) of the main loop for each product that adds to the sum."""
    mix, products = loop(assembled)
    useful = sum(products.get(name, 0) for name in USEFUL)
    cycles = sum(CYCLES[name] * count for name, count in products.items())
    return cycles / useful, (sum(mix.values()) - sum(products.values())) / useful


@pytest.mark.parametrize("promotion", PROMOTIONS)
@pytest.mark.parametrize("target", TARGETS)
def test_the_default_policy_against_f32(target: str, promotion: str):
    """No spills, at most 20 tensor cycles and 3.0 other instructions a product; in f32 it is 32."""
    cycles, others = per_product(build(target, "hybrid, max_k = 64", promotion=promotion)[1])
    assert cycles == {"convert": 16, "identity": 20}[promotion]
    assert others <= 3.0
    assert per_product(build(target, "f32", atom="m16n8k16")[1])[0] / cycles >= 1.6


@pytest.mark.parametrize("target", TARGETS)
def test_each_target_promotes_as_its_table_says(target: str):
    mix, products = loop(build(target, "hybrid")[1])
    identity = TARGETS[target].promotion == "identity"
    assert ("HMMA.1688.F32" in products) == identity
    assert mix.get("FADD", 0) == (0 if identity or TARGETS[target].mixed_add else 128)
    assert mix.get("FHADD", 0) == (128 if TARGETS[target].mixed_add and not identity else 0)


@pytest.mark.parametrize("policy", ["hybrid, max_k = 32", "hybrid, max_k = 128", "hybrid, overflow = redo"])
@pytest.mark.parametrize("target", TARGETS)
def test_other_policies_do_not_spill(target: str, policy: str):
    for m, transpose_b in (("4096", True), ("?", False)):
        assert build(target, policy, m, transpose_b)[1].kernels["mm_kernel"].spill_store_bytes == 0


def test_the_redo_adds_nothing_to_the_main_loop():
    plain, redo = (loop(build("sm_90a", f"hybrid, overflow = {word}", unroll=1)[1]) for word in ("propagate", "redo"))
    assert redo[1] == plain[1]
    assert sum(redo[0].values()) <= sum(plain[0].values()) + 4


def test_partials_that_span_two_slots_are_promoted_half_as_often():
    """128 products an iteration; the promotion stands in a branch that every second iteration takes."""
    slots = {"block": (128, 256, 64), "stages": 3, "transport": "cp_async", "prefetch": 0, "opt_level": 1}
    mix, products = loop(build("sm_90a", "hybrid, max_k = 128", **slots)[1])
    assert products == {"HMMA.16816.F16": 128, "HMMA.1688.F32": 32}
    assert mix["BRA"] >= 2


def test_a_slot_of_128_elements_is_promoted_once():
    slots = {"block": (128, 256, 128), "stages": 2, "transport": "tma", "opt_level": 1}
    _, products = loop(build("sm_90a", "hybrid, max_k = 128", **slots)[1])
    assert products == {"HMMA.16816.F16": 256, "HMMA.1688.F32": 32}


def test_size_of_the_text():
    for policy in ("hybrid", "hybrid, overflow = redo", "hybrid, max_k = 128, overflow = redo"):
        ptx = build("sm_90a", policy)[0]
        assert sum(line.endswith(";") for line in ptx.splitlines()) <= 2000, policy
