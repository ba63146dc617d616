"""Calls on a real device with tensors that lie anyhow: every variant of a product, addresses that differ from call to call."""

import pytest

import emmy
from emmy import runtime

TEXT = """func.func @mm(%a: tensor<?x?x?xf16>, %b: tensor<?x?x?xf16>) -> tensor<?x?x?xf16> {
  %c = tensor_op.matmul %a, %b transpose_b : (tensor<?x?x?xf16>, tensor<?x?x?xf16>) -> tensor<?x?x?xf16>
  func.return %c : tensor<?x?x?xf16>
}
"""
BATCH, M, N, K = 2, 200, 136, 96

LAYOUTS = {
    "dense": ((M * K, K, 1), 0, "mm_kernel"),
    "gaps": ((M * (K + 8), K + 8, 1), 8, "mm_kernel_rows16"),
    "8 bytes": ((M * K, K, 1), 4, "mm_kernel_rows8"),
    "4 bytes": ((M * (K + 2), K + 2, 1), 0, "mm_kernel_rows4"),
    "2 bytes": ((M * K, K, 1), 1, "mm_kernel_rows2"),
    "columns": ((M * K, 1, M), 0, "mm_kernel_rows16_ta"),
    "columns, 2 bytes": ((M * K, 1, M), 3, "mm_kernel_rows2_ta"),
    "expanded": ((0, K, 1), 0, "mm_kernel_rows8"),
    "every other": ((2 * M * K, 2 * K, 2), 0, "mm_kernel_any"),
}
"""Strides and offset of A in elements, and the kernel that takes it on a GPU with TMA."""


@pytest.fixture
def torch():
    if not runtime.is_available():
        pytest.skip("needs a GPU: not run")
    return pytest.importorskip("torch", reason="needs PyTorch: not run")


def integers(torch, shape, strides, offset):
    """Small integers in that layout; all else in its memory is NaN."""
    span = offset + 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    memory = torch.full((span,), float("nan"), dtype=torch.float16, device="cuda")
    view = memory.as_strided(shape, strides, offset)
    stored = [size if stride else 1 for size, stride in zip(shape, strides, strict=True)]
    memory.as_strided(stored, strides, offset).copy_(torch.randint(-2, 3, stored, device="cuda"))
    return view


def test_every_layout_gives_the_same_product(torch):
    module = emmy.compile(TEXT)
    b = integers(torch, (BATCH, N, K), (N * K, K, 1), 0)
    for name, (strides, offset, kernel) in LAYOUTS.items():
        a = integers(torch, (BATCH, M, K), strides, offset)
        expected = (a.float() @ b.float().mT).half()
        for _ in range(2):
            assert torch.equal(module.mm(a, b), expected), name
        if emmy.compiler.default_target() in ("sm_90a", "sm_120a"):
            call = module.artefact.bind("mm", [runtime.read_device_array(t, "t", 0).info for t in (a, b)])
            assert [launch.kernel for launch in call.launches] == [kernel], name


def test_addresses_decide_anew_in_every_call(torch):
    module = emmy.compile(TEXT)
    memory = torch.randint(-2, 3, (BATCH * M * K + 8,), device="cuda").half()
    b = integers(torch, (BATCH, N, K), (N * K, K, 1), 0)
    for offset in (1, 0, 4, 1, 2, 0):
        a = memory[offset : offset + BATCH * M * K].view(BATCH, M, K)
        assert torch.equal(module.mm(a, b), (a.float() @ b.float().mT).half())


@pytest.mark.parametrize("offset", [0, 1, 4])
def test_results_may_have_gaps(torch, offset):
    module = emmy.compile(TEXT)
    a, b = (integers(torch, (BATCH, rows, K), (rows * K, K, 1), 0) for rows in (M, N))
    memory = torch.full((BATCH * M * (N + 8) + 16,), float("nan"), dtype=torch.float16, device="cuda")
    out = memory.as_strided((BATCH, M, N), (M * (N + 8), N + 8, 1), offset)
    assert module.mm(a, b, out=out) is out
    assert torch.equal(out, (a.float() @ b.float().mT).half())
    out.fill_(float("nan"))
    assert memory.isnan().all()
