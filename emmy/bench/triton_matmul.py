# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownArgumentType=false
# pyright: reportUntypedFunctionDecorator=false, reportUnknownLambdaType=false
"""A peer: C = A B in Triton, f32 sums, tuned over a small list of tiles. Imported only where Triton is installed.

Triton reads the kernel's source and has no types for what is in it, hence the exceptions above.
"""

from typing import Any

import triton
import triton.language as tl

TILES = (
    # block M, N, K, warps, stages
    (128, 256, 64, 8, 3),
    (128, 256, 64, 8, 4),
    (256, 128, 64, 8, 3),
    (128, 128, 64, 4, 4),
    (128, 128, 64, 8, 3),
    (64, 256, 64, 4, 4),
    (64, 128, 64, 4, 4),
)
GROUP = 8
"""Tile rows that are walked together, so that their operands stay in the L2."""


def _configurations() -> list[Any]:
    return [
        triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP": GROUP}, num_warps=warps, num_stages=stages)
        for m, n, k, warps, stages in TILES
    ]


@triton.jit
def matmul_kernel(
    a, b, c, m, n, k, a_row, a_column, b_row, b_column, c_row,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One tile of C; strides in elements, C's columns are contiguous. Rows and columns outside wrap around and are not stored."""
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    tile = tl.program_id(0)
    first = tile // (GROUP * tiles_n) * GROUP
    rows_in_group = tl.minimum(tiles_m - first, GROUP)
    tile_m = first + tile % (GROUP * tiles_n) % rows_in_group
    tile_n = tile % (GROUP * tiles_n) // rows_in_group
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    a_at = a + (rows % m)[:, None] * a_row + depth[None, :] * a_column
    b_at = b + depth[:, None] * b_row + (columns % n)[None, :] * b_column
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(0, tl.cdiv(k, BLOCK_K)):
        left = k - step * BLOCK_K
        x = tl.load(a_at, mask=depth[None, :] < left, other=0.0)
        y = tl.load(b_at, mask=depth[:, None] < left, other=0.0)
        total = tl.dot(x, y, total)
        a_at += BLOCK_K * a_column
        b_at += BLOCK_K * b_row
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c + rows[:, None] * c_row + columns[None, :], total.to(c.dtype.element_ty), mask=inside)


tuned_kernel = triton.autotune(configs=_configurations(), key=["m", "n", "k"])(matmul_kernel)


def matmul_call(a: Any, b: Any, out: Any) -> Any:
    """A function that computes `out` = `a` @ `b`; `a` (m, k) and `b` (k, n) with any strides, `out` (m, n) row-major."""
    (m, k), n = a.shape, b.shape[1]

    def grid(chosen: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(m, chosen["BLOCK_M"]) * triton.cdiv(n, chosen["BLOCK_N"]),)

    return lambda: tuned_kernel[grid](a, b, out, m, n, k, *a.stride(), *b.stride(), out.stride(0))
