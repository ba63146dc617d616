"""The attention texts of this folder as PTX: every placement and transport agrees with NumPy on the emulator, in any order of
events, and what lies in shared memory is read without bank conflicts."""

from __future__ import annotations

import numpy as np
import protocol_support as support
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emmy.dialects.ptx import KernelOp
from emmy.emulator import Emulator, Report, TensorMap, Uninitialised
from emmy.interpreters.level3 import LANDINGS, ORDERS
from emmy.lowering.print_ptx import print_ptx
from emmy.registry import parse_passes

TEXTS = {"flash_attention": 32, "flash_attention_lag": 32, "flash_attention_persistent": 64}
"""Name -> rows of a CTA."""

TARGETS = {"tma": ("sm_90a", "sm_120a"), "cp_async": ("sm_80", "sm_90a"), "plain": ("sm_89",)}


def to_ptx(name: str, kind: str, placement: str, target: str, sites: str = "eager") -> tuple[KernelOp, str]:
    """A text through place-roles, lower-transport, allocate-shared, lower-to-ptx."""
    module = support.forms(name, (), sites, kind, mode=placement).lowered.clone()
    for spec in ("allocate-shared", "lower-raster", "canonicalize", "cse", "unroll-loops", "lower-to-ptx"):
        for one in parse_passes(spec, target):
            one.apply(support.CONTEXT, module)
    return next(op for op in module.walk() if isinstance(op, KernelOp)), print_ptx(module, target)


def launch(
    kernel: KernelOp, text: str, inputs: list[np.ndarray], ctas: int, **mode: object
) -> tuple[np.ndarray, Report]:
    """Run a kernel whose last view is the result, shaped as the first."""
    out = np.full(inputs[0].shape, np.nan, np.float16)
    views, args = [*inputs, out], []
    for param in kernel.params:
        word, number, *axis = param.data.split()
        if word == "tensor_map":
            tensor_map = kernel.maps[int(number)]
            view = views[tensor_map.view]
            buffer = Uninitialised(out) if view is out else view
            args.append(TensorMap(buffer, 2, view.shape, view.strides[:-1], tensor_map.box, tensor_map.swizzle))
        elif word == "pointer":
            args.append(Uninitialised(out) if views[int(number)] is out else views[int(number)])
        else:
            args.append(views[int(number)].shape[int(axis[0])])
    threads, shared = kernel.threads.value.data, kernel.shared_bytes.value.data
    report = Emulator(text).launch(kernel.sym_name.data, (ctas, 1, 1), (threads, 1, 1), args, shared, **mode)
    return out, report


def check(name: str, kind: str, placement: str, target: str, queries: int, keys: int, **mode: object) -> Report:
    kernel, text = to_ptx(name, kind, placement, target)
    persistent = name == "flash_attention_persistent"
    queries = keys if persistent else queries
    inputs = support.attention_inputs(queries, keys)
    out, report = launch(kernel, text, inputs, 2 if persistent else -(-queries // TEXTS[name]), **mode)
    wanted = support.attention(inputs, causal=persistent)
    np.testing.assert_allclose(out.astype(np.float64), wanted, atol=2e-3, rtol=2e-3)
    return report


CASES = [(kind, placement, target) for kind in TARGETS for placement in support.MODES for target in TARGETS[kind]]


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize(("kind", "placement", "target"), CASES)
def test_attention_agrees_with_numpy_and_has_no_bank_conflicts(name: str, kind: str, placement: str, target: str):
    report = check(name, kind, placement, target, 64, 96)
    assert report.total_bank_conflicts == 0


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_lengths_in_any_order_of_events(data: st.DataObject):
    name = data.draw(st.sampled_from(list(TEXTS)))
    kind, placement, target = data.draw(st.sampled_from(CASES))
    keys = data.draw(st.integers(1, 70)) if name == "flash_attention" else 16 * data.draw(st.integers(1, 5))
    mode = {"landing": data.draw(st.sampled_from(LANDINGS)), "order": data.draw(st.sampled_from(ORDERS))}
    check(
        name, kind, placement, target, data.draw(st.integers(1, 40)), keys, seed=data.draw(st.integers(0, 99)), **mode
    )
