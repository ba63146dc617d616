"""Kernels in clusters on the hardware: the bits that the emulator foretells, on small integers. Needs a Hopper GPU, and ptxas."""

from __future__ import annotations

import numpy as np
import pytest

import emmy
from emmy.artefact import run_on_emulator
from emmy.assemble import find_tool
from emmy.driver import call, is_available, open_driver

SCHEDULE = {"atom": "wgmma", "roles": "specialized", "stages": 3, "fragments": 1, "prefetch": 0, "store_columns": 0}

CLUSTERS = {
    "two CTAs on one tile": {"split_k": 2, "persistent": 0},
    "eight CTAs on one tile": {"split_k": 8, "persistent": 0, "block": [64, 128, 64]},
    "CTAs below each other": {"share": "b", "persistent": 1},
    "CTAs beside each other": {"share": "a", "persistent": 0},
}


def is_hopper() -> bool:
    if not is_available():
        return False
    driver = open_driver()
    kind = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
    return int(call("query", driver.cuDeviceGetAttribute, kind, call("open", driver.cuDeviceGet, 0))) == 9


@pytest.mark.skipif(not is_hopper() or find_tool("ptxas") is None, reason="needs a Hopper GPU and ptxas: not run")
@pytest.mark.parametrize("name", CLUSTERS)
def test_clusters_agree_with_the_emulator(name: str):
    text = (
        "func.func @mm(%a: tensor<328x584xf16>, %b: tensor<200x584xf16>) -> tensor<328x200xf16> {\n"
        "  %c = tensor_op.matmul %a, %b transpose_b : (tensor<328x584xf16>, tensor<200x584xf16>) -> tensor<328x200xf16>\n"
        "  func.return %c : tensor<328x200xf16>\n}\n"
    )
    schedule = {"block": [64, 64, 64], "warps": [4, 1], **SCHEDULE, **CLUSTERS[name]}
    module = emmy.compile(text, "sm_90a", schedule=schedule)
    generator = np.random.default_rng(5)
    a, b = (generator.integers(-2, 3, size=shape).astype(np.float16) for shape in ((328, 584), (200, 584)))
    (wanted,), _ = run_on_emulator(module.portable_artefact, "mm", [a, b])
    for _ in range(50):
        np.testing.assert_array_equal(module.mm(a, b), wanted)
