"""`lower-transport{tma}`: which tensors TMA moves, what takes the place of the others, what mixed rings count."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from emmy.dialects import async_copy as ac
from emmy.errors import EmmyError
from emmy.ir import make_context, parse_module, verify_module
from emmy.passes.lower_transport import LowerTransport
from emmy.passes.place_roles import PlaceRoles
from emmy.passes.verify_pipelines import VerifyPipelines
from emmy.schedule_limits import AUTO_TRANSPORT

CONTEXT = make_context()


def kernel(view: str, tile: str = "64x64xf16", rank: int = 2, guard: bool = False, schedule: str = "") -> str:
    """A kernel that copies one tile of `%a` beside one of the legal `%b` and stores nothing."""
    at = ", ".join(["%z"] * rank)
    copy = f'async_copy.copy %a[{at}] -> %s["a"] : {view} -> !async_copy.slot<@ab, fill>'
    if guard:
        copy = f"%p = arith.cmpi ult, %z, %rows : index\n scf.if %p {{\n {copy}\n }}"
    return f"""
tile.kernel @k(%a: {view}, %b: !tile.view<?x64xf16>) {schedule} {{
  async_copy.pipeline @ab stages 2 {{a = !tile.tile<{tile}>, b = !tile.tile<64x64xf16>}}
  %z = arith.constant 0 : index
  %rows = tile.dim %b, 0 : !tile.view<?x64xf16>
  async_copy.producer {{
    %f0 = async_copy.begin_fill @ab
    %s, %f1 = async_copy.acquire @ab[%f0]
    {copy}
    async_copy.copy %b[%z, %z] -> %s["b"] : !tile.view<?x64xf16> -> !async_copy.slot<@ab, fill>
    async_copy.commit @ab, %s
    async_copy.drain @ab
  }}
  async_copy.consumer {{
    %w = mma.warp 0 of [4]
    %r0 = async_copy.begin_read @ab
    %t, %r1 = async_copy.wait @ab[%r0]
    async_copy.release @ab, %t
    async_copy.drain @ab
  }}
}}
"""


def lower(text: str, kind: str, mode: str = "unified", auto: str = "cp_async") -> list[str]:
    """The events of the lowered kernel by name, in order, and the counts of its pipeline as `name=count`."""
    module = parse_module(text, "k.mlir", CONTEXT)
    VerifyPipelines().apply(CONTEXT, module)
    PlaceRoles(mode).apply(CONTEXT, module)
    with patch.dict(AUTO_TRANSPORT, sm_90a=auto):
        LowerTransport(kind).apply(CONTEXT, module)
    verify_module(module)
    VerifyPipelines().apply(CONTEXT, module)
    pipeline = next(op for op in module.walk() if isinstance(op, ac.PipelineOp))
    counts = [
        f"{n}={pipeline.properties[n].value.data}"
        for n in ("full_count", "empty_count", "tx_bytes")
        if n in pipeline.properties
    ]
    return [*counts, *(op.name.split(".")[1] for op in module.walk() if op.name.startswith("async_copy."))]


LEGAL = [
    ("!tile.view<?x64xf16>", "64x64xf16", 2),
    ("!tile.view<64x?xf16>", "64x64xf16", 2),
    ("!tile.view<?x64xf16, strides [72, 1]>", "64x64xf16", 2),
    ("!tile.view<3x?x64xbf16>", "64x64xbf16", 3),
    ("!tile.view<2x2x?x64xf32>", "32x32xf32", 4),
    ("!tile.view<4096xf16>", "256xf16", 1),
    ("!tile.view<?x64xf16>", "4x64xf16", 2),
    ("!tile.view<?x16xf16>", "512x16xf16", 2),
]


@pytest.mark.parametrize(("view", "tile", "rank"), LEGAL)
def test_what_tma_moves(view: str, tile: str, rank: int) -> None:
    """Both fields of a ticket are loaded in one election, which says how many bytes will come."""
    element = 4 if "f32" in tile else 2
    extents = [int(n) for n in tile.split("x")[:-1]]
    size = element * extents[0] * (extents[1] if len(extents) > 1 else 1) + 2 * 64 * 64
    events = lower(kernel(view, tile, rank), "tma")
    assert events[:2] == ["full_count=1", f"tx_bytes={size}"]
    assert events[events.index("elect") :][:4] == ["elect", "expect_tx", "tma_load", "tma_load"]
    assert not {"cp_async", "commit_group", "plain_copy", "barrier"} & set(events)
    # By default TMA moves only what is legal in every call.
    certain = "x?xf16" not in view
    assert (lower(kernel(view, tile, rank), "auto", auto="tma") == events) == certain


ILLEGAL = [
    ("!tile.view<?x60xf16>", "64x64xf16", 2, "a stride of the tensor is 120 bytes, not a multiple of 16"),
    ("!tile.view<?x64xf16, strides [?, 1]>", "64x64xf16", 2, "a stride of the tensor is known at run time only"),
    ("!tile.view<?x64xf16, strides [64, 2]>", "64x64xf16", 2, "the tensor's last dimension is not contiguous"),
    ("!tile.view<1x1x1x1x?x64xf16>", "64x64xf16", 6, "the tensor has 6 dimensions, more than 5"),
    ("!tile.view<2x64x64xf16>", "2x64x64xf16", 3, "its tile has more than two dimensions, [2, 64, 64]"),
    ("!tile.view<?x64xf16>", "64x24xf16", 2, "its tile of 64 x 24 elements is padded in shared memory"),
]


@pytest.mark.parametrize(("view", "tile", "rank", "reason"), ILLEGAL)
def test_what_tma_does_not_move(view: str, tile: str, rank: int, reason: str) -> None:
    """Asked for by name, an error that says why; by default that field alone is copied by the threads."""
    with pytest.raises(EmmyError) as caught:
        lower(kernel(view, tile, rank), "tma")
    assert caught.value.message == (
        f"TMA cannot fill 'a' of pipeline @ab: {reason}; set transport = auto in the schedule"
    )
    assert caught.value.location is not None
    events = lower(kernel(view, tile, rank), "auto", auto="tma")
    assert events[:2] == ["full_count=1", "tx_bytes=8192"]
    copied = {"cp_async", "plain_copy"} & set(events)
    assert events.count("tma_load") == 1
    assert len(copied) == 1
    wait = events.index("wait_full")
    assert events[wait:][:3] == (
        ["wait_full", "wait_group", "barrier"] if "cp_async" in copied else ["wait_full", "barrier", "slot"]
    )


def test_bytes_of_a_ticket_are_known_when_it_is_issued() -> None:
    text = kernel("!tile.view<?x64xf16>", guard=True)
    with pytest.raises(EmmyError, match="it stands under a condition or in a loop of its own"):
        lower(text, "tma")
    assert "tx_bytes=8192" in lower(text, "auto", auto="tma")


def test_a_specialised_ring_may_mix_transports() -> None:
    """Each thread arrives for its cp.asyncs, one lane for TMA; a plain copy makes each warp arrive."""
    cp_async = lower(kernel("!tile.view<?x60xf16>"), "auto", "specialized", "tma")
    assert cp_async[:3] == ["full_count=129", "empty_count=4", "tx_bytes=8192"]
    assert {"arrive_full_noinc", "tma_load", "cp_async"} <= set(cp_async)
    assert "arrive_full" not in cp_async
    plain = lower(kernel("!tile.view<?x64xf16, strides [?, 1]>"), "auto", "specialized", "tma")
    assert plain[:3] == ["full_count=5", "empty_count=4", "tx_bytes=8192"]
    assert plain[plain.index("arrive_full") - 1] == "warp_sync"
    assert "arrive_full_noinc" not in plain


@pytest.mark.parametrize("mode", ["unified", "specialized"])
def test_auto_is_what_the_table_says(mode: str) -> None:
    text = kernel("!tile.view<?x64xf16>")
    assert "tma_load" not in lower(text, "auto", mode)
    assert "cp_async" not in lower(text, "auto", mode, "tma")
    pinned = kernel("!tile.view<?x64xf16>", schedule="schedule <block = [64, 64, 16], warps = [2, 2], transport = tma>")
    assert "tma_load" in lower(pinned, "auto", mode)


def test_only_a_role_that_uses_tma_alone_is_one_warp() -> None:
    def producer(text: str, kind: str, auto: str = "tma") -> ac.RoleOp:
        module = parse_module(text, "k.mlir", CONTEXT)
        PlaceRoles("specialized").apply(CONTEXT, module)
        with patch.dict(AUTO_TRANSPORT, sm_90a=auto):
            LowerTransport(kind).apply(CONTEXT, module)
        return [op for op in module.walk() if isinstance(op, ac.RoleOp)][1]

    assert producer(kernel("!tile.view<?x64xf16>"), "tma").active_warps == 1
    assert producer(kernel("!tile.view<?x64xf16>"), "cp_async").active_warps == 4
    assert producer(kernel("!tile.view<?x60xf16>"), "auto").active_warps == 4
