"""The level-3 interpreter itself: what fragments' ops compute, and that it says why and where a program is wrong."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from emmy.dialects.tile import KernelOp
from emmy.errors import EmmyError
from emmy.interpreters.host import grid_offsets, run_host
from emmy.interpreters.level3 import Level3Error, run_kernel, run_module
from emmy.interpreters.level3_memory import read_box, write_box
from emmy.interpreters.level3_values import mma_value
from emmy.ir import make_context, parse_module

CONTEXT = make_context()


def kernel(text: str) -> KernelOp:
    module = parse_module(text, "k.mlir", CONTEXT)
    return next(op for op in module.body.block.ops if isinstance(op, KernelOp))


def consumer(views: str, body: str, warps: int = 1, rings: str = "") -> KernelOp:
    """A kernel of one role."""
    return kernel(
        f"tile.kernel @kernel({views}) {{\n{rings}\n%c0 = arith.constant 0 : index\n"
        f'async_copy.role "main" warps {warps} {{\n{body}\n}}\n}}'
    )


# ---- views and grids -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 7), (16, 8), (3, 5, 9), (1, 1)])
@pytest.mark.parametrize("box", [(4, 8), (8, 4)])
@pytest.mark.parametrize("shares", [1, 2, 3])
def test_boxes(shape: tuple[int, ...], box: tuple[int, int], shares: int) -> None:
    """Shares of a box partition its rows; beyond the bounds is zero, and stores there are dropped."""
    view = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    at = [s // 2 for s in shape]
    padded = np.zeros([s + max(box) for s in shape], np.float32)
    padded[tuple(slice(s) for s in shape)] = view
    index = (*at[:-2], slice(at[-2], at[-2] + box[0]), slice(at[-1], at[-1] + box[1]))
    whole = padded[index]
    for share in range(shares):
        assert (read_box(view, at, box, share, shares) == whole[share::shares]).all()
    copy, expected = np.zeros_like(view), np.zeros_like(padded)
    for share in range(shares):
        write_box(copy, at, whole + 1, share, shares)
    expected[index] = whole + 1
    assert (copy == expected[tuple(slice(s) for s in shape)]).all()


def test_a_vector_belongs_to_one_warp() -> None:
    view = np.arange(6, dtype=np.float32)
    assert read_box(view, [4], (4,), 0, 2).tolist() == [4, 5, 0, 0]
    assert read_box(view, [4], (4,), 1, 2).size == 0


@pytest.mark.parametrize("raster", [1, 2, 3, 8])
def test_grid_visits_every_tile_once(raster: int) -> None:
    extents, blocks = (2, 70, 50), (1, 16, 16)
    seen = [grid_offsets(cta, extents, blocks, raster) for cta in range(2 * 5 * 4)]
    assert len(set(seen)) == len(seen)
    assert max(seen) == (1, 64, 48)
    if raster == 1:
        assert seen == sorted(seen)
    else:
        # One group: the rows of the last-but-one dimension are walked before the next column.
        assert seen[:3] == [(0, 0, 0), (0, 16, 0), (0, 32, 0) if raster > 2 else (0, 0, 16)]


# ---- fragments -------------------------------------------------------------------------------------------------------


def test_f16_accumulators_round_after_each_step() -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.normal(size=(8, 48)).astype(np.float16) for _ in range(2))
    c = np.zeros((8, 8), np.float16)
    expected = c
    for k in (0, 16, 32):
        step = a[:, k : k + 16].astype(np.float32) @ b[:, k : k + 16].astype(np.float32).T
        expected = (expected.astype(np.float32) + step).astype(np.float16)
    assert (mma_value(a, b, c) == expected).all()
    assert mma_value(a, b, c.astype(np.float32)).dtype == np.float32


def fragment(columns: int, element: str = "f32") -> str:
    return f"!mma.fragment<16x{columns}x{element}, c, m16n8k16>"


F = fragment(16)
I32 = fragment(16, "i32")
ROW, COLUMN = np.indices((16, 16)).astype(np.float32)

COMPUTED: dict[str, tuple[str, Callable[[], np.ndarray]]] = {
    "coordinates": (
        f"%r = mma.coord 0 from %five : {I32}\n%c = mma.coord 1 from %c0 : {I32}\n"
        f"%ge = mma.map ge %r, %c : ({I32}, {I32}) -> {fragment(16, 'i1')}\n"
        f"%v = mma.map select %ge, %two, %three : ({fragment(16, 'i1')}, {F}, f32) -> {F}",
        lambda: np.where(ROW + 5 >= COLUMN, 2, 3),
    ),
    "reductions": (
        f"%s = mma.reduce sum %two : {F} -> {fragment(1)}\n%m = mma.reduce max %two : {F} -> {fragment(1)}\n"
        f"%v0 = mma.map add %s, %m : ({fragment(1)}, {fragment(1)}) -> {fragment(1)}\n"
        f"%v = mma.map fma %two, %two, %v0 : ({F}, {F}, {fragment(1)}) -> {F}",
        lambda: np.full((16, 16), 2 * 2 + 32 + 2),
    ),
    "reductions of rows": (
        f"%r = mma.coord 0 from %c0 : {I32}\n%c3 = arith.constant 3 : index\n"
        f"%below = mma.map ge %r, %c3 : ({I32}, index) -> {fragment(16, 'i1')}\n"
        f"%x = mma.map select %below, %two, %three : ({fragment(16, 'i1')}, {F}, f32) -> {F}\n"
        f"%s = mma.reduce sum %x : {F} -> !mma.fragment<1x16xf32, c, m16n8k16>\n"
        f"%v = mma.map add %x, %s : ({F}, !mma.fragment<1x16xf32, c, m16n8k16>) -> {F}",
        lambda: np.where(ROW >= 3, 2, 3) + 13 * 2 + 3 * 3,
    ),
    "slices": (
        f"%s = mma.slice %two at [0, 8] : {F} -> {fragment(8)}\n"
        f"%e = mma.map exp2 %s : ({fragment(8)}) -> {fragment(8)}\n"
        f"%v = mma.join %s, %e axis 1 : {fragment(8)}, {fragment(8)} -> {F}",
        lambda: np.where(COLUMN < 8, 2, 4),
    ),
    "promotion": (
        f"%h = mma.fill 0.1 : f16 : {fragment(16, 'f16')}\n%v = mma.promote %h into %two : {fragment(16, 'f16')} -> {F}",
        lambda: np.full((16, 16), np.float32(2) + np.float32(np.float16(0.1))),
    ),
    "rounding": (
        f"%b = mma.convert %tenth : {F} to {fragment(16, 'bf16')}\n%v = mma.convert %b : {fragment(16, 'bf16')} to {F}",
        lambda: np.full((16, 16), np.float32(ml_dtypes.bfloat16(0.1))),
    ),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_fragments(name: str) -> None:
    body, expected = COMPUTED[name]
    head = f"""%five = arith.constant 5 : index
      %three = arith.constant 3.0 : f32
      %two = mma.fill 2.0 : f32 : {F}
      %tenth = mma.fill 0.1 : f32 : {F}
      """
    view = "!tile.view<16x12xf32>"
    op = consumer(f"%o: {view}", f"{head}{body}\nmma.store_global %v -> %o[%c0, %c0] : {F} -> {view}")
    out = np.full((16, 12), np.nan, np.float32)
    run_kernel(op, [out], 0, 1)
    assert (out == expected()[:, :12].astype(np.float32)).all()


# ---- faults ----------------------------------------------------------------------------------------------------------

VIEW = "!tile.view<16x16xf16>"
RING = "async_copy.pipeline @k stages 2 {k = !tile.tile<16x16xf16>}"
BEGIN = "%f0 = async_copy.begin_fill @k\n%r0 = async_copy.begin_read @k\n"
LOWERED_FILL = f"""%s, %f1 = async_copy.slot @k[%f0] : !async_copy.cursor<@k, fill>
async_copy.cp_async %v[%c0, %c0] -> %s["k"] bytes 16 : {VIEW} -> !async_copy.slot<@k, fill>
"""
LOWERED_READ = """%t, %r1 = async_copy.slot @k[%r0] : !async_copy.cursor<@k, read>
%x = mma.load %t["k"][%c0, %c0] : !async_copy.slot<@k, read> -> !mma.fragment<16x16xf16, a, m16n8k16>
"""

FAULTS = {
    "no wait": (
        LOWERED_FILL + "async_copy.commit_group\n" + LOWERED_READ,
        "finds poison|before the warp that copied it has waited for it",
    ),
    "no barrier": (
        LOWERED_FILL + "async_copy.commit_group\nasync_copy.wait_group 0\n" + LOWERED_READ,
        "with no barrier since another warp's copy|before the warp that copied it has waited|finds poison",
    ),
    "not committed": (
        LOWERED_FILL + "async_copy.wait_group 0\nasync_copy.barrier\n" + LOWERED_READ,
        "finds poison|before the warp that copied it has waited for it",
    ),
    "left in flight": (
        LOWERED_FILL + "async_copy.commit_group\nasync_copy.wait_group 1\n",
        "ends with copies in flight",
    ),
    "never read": (
        LOWERED_FILL + "async_copy.commit_group\nasync_copy.wait_group 0\n",
        r"@k ends with tickets left: filled \[1\], read \[0\]",
    ),
    "overwritten": (
        LOWERED_FILL.replace("%s", "%a").replace("%f1", "%f9")
        + LOWERED_FILL.replace("%f0", "%f9").replace("%f1", "%f8").replace("%s", "%b")
        + LOWERED_FILL.replace("%f0", "%f8"),
        "overwrites a slot of @k while a copy into it is in flight",
    ),
    "wait with nothing committed": (
        "%t, %r1 = async_copy.wait @k[%r0]\nasync_copy.release @k, %t",
        "deadlock: main warp 0: wait @k: ticket 0 is committed by 0 of 0 warps",
    ),
}


@pytest.mark.parametrize("order", ["fixed", "reversed", "random"])
@pytest.mark.parametrize("landing", ["late", "early", "random"])
@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str, landing: str, order: str) -> None:
    body, message = FAULTS[name]
    op = consumer(f"%v: {VIEW}", BEGIN + body, 2, RING)
    with pytest.raises(Level3Error, match=message) as raised:
        run_kernel(op, [np.ones((16, 16), np.float16)], 0, 1, landing, order)
    assert raised.value.location is not None
    assert raised.value.location.file == "k.mlir"


def test_a_role_of_one_warp_needs_its_barrier() -> None:
    """Lanes of one warp copy for each other too: it runs as two halves."""
    body = BEGIN + LOWERED_FILL + "async_copy.commit_group\nasync_copy.wait_group 0\n{}" + LOWERED_READ
    array = np.ones((16, 16), np.float16)
    run_kernel(consumer(f"%v: {VIEW}", body.format("async_copy.barrier\n"), 1, RING), [array], 0, 1)
    with pytest.raises(Level3Error, match=r"with no barrier since another warp|finds poison"):
        run_kernel(consumer(f"%v: {VIEW}", body.format(""), 1, RING), [array], 0, 1)


def test_outbound_and_inbound_slots_may_share_bytes() -> None:
    """Filling an outbound slot after another warp read any ring wants a barrier, wherever the bytes are."""
    rings = RING + "\nasync_copy.pipeline @out stages 1 {o = !tile.tile<16x16xf16>} outbound"
    fill = LOWERED_FILL + "async_copy.commit_group\nasync_copy.wait_group 0\nasync_copy.barrier\n" + LOWERED_READ
    store = """{}%o0 = async_copy.begin_fill @out
%o, %o1 = async_copy.slot @out[%o0] : !async_copy.cursor<@out, fill>"""
    array = np.ones((16, 16), np.float16)
    run_kernel(consumer(f"%v: {VIEW}", BEGIN + fill + store.format("async_copy.barrier\n"), 2, rings), [array], 0, 1)
    with pytest.raises(Level3Error, match=r"fills @out, which may lie over @k, with no barrier since warp . read that"):
        run_kernel(consumer(f"%v: {VIEW}", BEGIN + fill + store.format(""), 2, rings), [array], 0, 1, order="random")


def test_not_at_level_3() -> None:
    with pytest.raises(Level3Error, match="it is not at level 3"):
        run_kernel(kernel("tile.kernel @k(%v: !tile.view<4xf16>) { %c = arith.constant 0 : index }"), [], 0, 1)
    body = "%f = tile.fill 0.0 : f32 : !tile.tile<4xf32>"
    with pytest.raises(Level3Error, match=r"the level-3 interpreter has no rule for tile.fill"):
        run_kernel(consumer("%v: !tile.view<4xf16>", body), [], 0, 1)


def test_modes_are_checked() -> None:
    op = consumer(f"%v: {VIEW}", "%w = mma.warp 0 of [1]")
    with pytest.raises(Level3Error, match="landing is one of late, early, random"):
        run_kernel(op, [np.ones((16, 16), np.float16)], 0, 1, landing="soon")
    with pytest.raises(Level3Error, match="CTA 3 of a launch of 2"):
        run_kernel(op, [np.ones((16, 16), np.float16)], 3, 2)


# ---- the host's side -------------------------------------------------------------------------------------------------

HOST = """
func.func @entry(%a: tensor<?x8xbf16>) -> (tensor<?x4xbf16>, tensor<2xi32>) {
  %n = tile.dim %a, 0 : tensor<?x8xbf16>
  %c3 = arith.constant 3 : index
  %g = arith.ceildivui %n, %c3 : index
  %o = tile.alloc[%n] : tensor<?x4xbf16>
  %i = tile.alloc[] : tensor<2xi32>
  tile.launch @kernel[%g] (%a, %o) : tensor<?x8xbf16>, tensor<?x4xbf16>
  func.return %o, %i : tensor<?x4xbf16>, tensor<2xi32>
}
tile.kernel @kernel(%a: !tile.view<?x8xbf16>, %o: !tile.view<?x4xbf16>) {
  async_copy.consumer {
    %w = mma.warp 0 of [1]
  }
}
"""


def test_host() -> None:
    module = parse_module(HOST, "h.mlir", CONTEXT)
    launched: list[tuple[str, list[tuple[int, ...]], int]] = []
    array = np.zeros((7, 8), ml_dtypes.bfloat16)
    out, numbers = run_host(
        module,
        "entry",
        [array],
        lambda op, arrays, ctas: launched.append((op.name, [a.shape for a in arrays], ctas)),
    )
    assert launched == [("tile.kernel", [(7, 8), (7, 4)], 3)]
    assert out.dtype == ml_dtypes.bfloat16
    assert np.isnan(out.astype(np.float32)).all()
    assert numbers.dtype == np.int32
    assert len(run_module(module, "entry", [array])) == 2


def test_host_errors() -> None:
    module = parse_module(HOST, "h.mlir", CONTEXT)
    with pytest.raises(EmmyError, match="the module has no function @other"):
        run_module(module, "other", [])
    with pytest.raises(EmmyError, match=r"@entry takes 1 array\(s\), got 0"):
        run_module(module, "entry", [])
    with pytest.raises(EmmyError, match=r"argument 0 of @entry is tensor<\?x8xbf16>, got float16 of shape"):
        run_module(module, "entry", [np.zeros((7, 8), np.float16)])
