"""The `async_copy` dialect: every op prints and parses back to itself; each rule that is broken is one sentence with a
place."""

from __future__ import annotations

import pytest

from emmy import ir
from emmy.dialects import async_copy as ac
from emmy.dialects.async_copy_rings import ring_name
from emmy.errors import EmmyError

WHOLE = """
tile.kernel @k(%a: !tile.view<?x64xf16>, %v: !tile.view<2x?x64xf16>) {
  async_copy.pipeline @ab stages 3 {a = !tile.tile<64x64xf16>, b = !tile.tile<64x64xf16>}
  async_copy.pipeline @io stages 3 {a = !tile.tile<64x64xf16>} {full_count = 1 : i64, empty_count = 8 : i64, \
tx_bytes = 8192 : i64, full_base = 8192 : i64, empty_base = 8216 : i64}
  async_copy.pipeline @out stages 1 {c = !tile.tile<64x64xf16>} outbound {base = 1024 : i64, slot_bytes = 8192 : i64, \
offsets = {c = 0 : i64}, swizzles = {c = 128 : i64}}
  %z = arith.constant 0 : index
  %p = arith.constant true
  async_copy.producer {
    %f0 = async_copy.begin_fill @ab
    %s, %f1 = async_copy.acquire @ab[%f0]
    async_copy.copy %a[%z, %z] -> %s["a"] : !tile.view<?x64xf16> -> !async_copy.slot<@ab, fill>
    async_copy.copy %v[%z, %z, %z] -> %s["b"] : !tile.view<2x?x64xf16> -> !async_copy.slot<@ab, fill>
    async_copy.commit @ab, %s joined
    %t, %f2 = async_copy.acquire @ab[%f1] if %p
    async_copy.commit @ab, %t if %p
    async_copy.drain @ab
  }
  async_copy.consumer {
    %r0 = async_copy.begin_read @ab
    %s, %r1 = async_copy.wait @ab[%r0]
    async_copy.release @ab, %s
    %o0 = async_copy.begin_fill @out
    %o, %o1 = async_copy.acquire @out[%o0]
    async_copy.store %o["c"] -> %a[%z, %z] : !async_copy.slot<@out, fill> -> !tile.view<?x64xf16>
    async_copy.commit @out, %o
    async_copy.drain @out
  }
  async_copy.role "producer" warps 1 regs 24 {
    %f0 = async_copy.begin_fill @ab
    %s, %f1 = async_copy.slot @ab[%f0] if %p : !async_copy.cursor<@ab, fill>
    async_copy.cp_async %a[%z, %z] -> %s["a"] bytes 16 : !tile.view<?x64xf16> -> !async_copy.slot<@ab, fill>
    async_copy.plain_copy %a[%z, %z] -> %s["b"] bytes 2 : !tile.view<?x64xf16> -> !async_copy.slot<@ab, fill>
    async_copy.commit_group
    async_copy.wait_group 0
    async_copy.barrier
    async_copy.plain_store %s["a"] -> %a[%z, %z] bytes 8 : !async_copy.slot<@ab, fill> -> !tile.view<?x64xf16>
    async_copy.wait_empty @ab[%f1]
    async_copy.wait_empty @ab[%f1] if %p
    async_copy.wait_released @ab[%f1]
    async_copy.elect {
      async_copy.expect_tx @ab, %s bytes 16384
      async_copy.tma_load %a[%z, %z] -> %s["a"] : !tile.view<?x64xf16> -> !async_copy.slot<@ab, fill>
      async_copy.tma_store %s["a"] -> %a[%z, %z] : !async_copy.slot<@ab, fill> -> !tile.view<?x64xf16>
      async_copy.bulk_commit
      async_copy.bulk_wait 1 read
      async_copy.bulk_wait 0
    }
    async_copy.arrive_full @ab, %s
    async_copy.arrive_full_noinc @ab, %s
  }
  async_copy.role "main" warps 8 active 4 regs 240 {
    %r0 = async_copy.begin_read @ab
    async_copy.wait_full @ab[%r0]
    %s, %r1 = async_copy.slot @ab[%r0] : !async_copy.cursor<@ab, read>
    async_copy.fence_proxy_async
    async_copy.warp_sync
    async_copy.pass_turn
    async_copy.await_turn
    async_copy.pass_turn consumer 1 if %p
    async_copy.await_turn consumer 0
    %r2 = async_copy.skip @ab[%r1] by %z
    async_copy.cluster_wait
    async_copy.arrive_empty @ab, %s
  }
}
"""

HEAD = """tile.kernel @k(%a: !tile.view<64x64xf16>, %w: !tile.view<64x64xf32>, %x: !tile.view<64xf16>) {
  async_copy.pipeline @ab stages 3 {a = !tile.tile<64x64xf16>}
  async_copy.pipeline @cd stages 3 {c = !tile.tile<64x64xf16>}
  %z = arith.constant 0 : index
  %f = async_copy.begin_fill @ab
  %r = async_copy.begin_read @ab
"""
ACQUIRE = "%s, %n = async_copy.acquire @ab[%f]\n"
WAIT = "%s, %n = async_copy.wait @ab[%r]\n"
SLOT = "!async_copy.slot<@ab, fill>"

BROKEN = {
    "more active warps than there are": (
        'async_copy.role "main" warps 4 active 5 {\n async_copy.barrier\n}',
        "of 4 warps 1 to 4 are active, got 5",
    ),
    "registers of setmaxnreg": (
        'async_copy.role "main" warps 4 regs 30 {\n async_copy.barrier\n}',
        "a multiple of 8 from 24 to 256, got 30",
    ),
    "no warps": ('async_copy.role "main" warps 0 {\n async_copy.barrier\n}', "a role has at least 1 warp, got 0"),
    "arrivals of an mbarrier": (
        "async_copy.pipeline @p stages 1 {a = !tile.tile<8x8xf16>} {full_count = 0 : i64}",
        "an mbarrier counts 1 to 2^20-1 arrivals, got full_count = 0",
    ),
    "a bulk wait by all threads": ("async_copy.bulk_wait 0", "it stands in async_copy.elect"),
    "a bulk commit by all threads": ("async_copy.bulk_commit", "it stands in async_copy.elect"),
    "a barrier by one lane": (
        "async_copy.elect {\n async_copy.barrier\n}",
        "is not an event that one elected lane issues",
    ),
    "bulk_wait from 0": ("async_copy.elect {\n async_copy.bulk_wait -1\n}", "bulk_wait counts from 0, got -1"),
    "bytes of a phase": (
        ACQUIRE + "async_copy.elect {\n async_copy.expect_tx @ab, %s bytes 0\n}",
        "a phase expects 1 to 2^20-1 bytes, got 0",
    ),
    "TMA outside of elect": (
        ACQUIRE + f'async_copy.tma_load %a[%z, %z] -> %s["a"] : !tile.view<64x64xf16> -> {SLOT}',
        "it stands in async_copy.elect",
    ),
    "a cluster's pipeline that results leave through": (
        "async_copy.pipeline @p stages 1 {a = !tile.tile<8x8xf16>} outbound cluster 2",
        "a pipeline of a cluster is inbound, or internal with 1 stage",
    ),
    "CTAs of a cluster": (
        "async_copy.pipeline @p stages 1 {a = !tile.tile<8x8xf16>} internal cluster 16",
        "a cluster has 2 to 8 CTAs, got 16",
    ),
    "a shared copy of one CTA": (
        ACQUIRE + f'async_copy.copy %a[%z, %z] -> %s["a"] shared : !tile.view<64x64xf16> -> {SLOT}',
        "pipeline @ab is none that the CTAs of a cluster fill together",
    ),
    "no stages": (
        "async_copy.pipeline @p stages 0 {a = !tile.tile<8x8xf16>}",
        "a pipeline has 1 to 1024 stages, got 0",
    ),
    "no fields": ("async_copy.pipeline @p stages 1 {}", "a pipeline has at least one field"),
    "field is no tile": ("async_copy.pipeline @p stages 1 {a = f16}", "field 'a' is a tile type, got f16"),
    "side of a cursor": (
        "%c = builtin.unrealized_conversion_cast %z : index to !async_copy.cursor<@ab, write>",
        "a cursor or slot is of the side fill or read, got 'write'",
    ),
    "acquire on the reading side": (
        "%s, %n = async_copy.acquire @ab[%r]",
        "used with type !async_copy.cursor<@ab, fill>",
    ),
    "wait on the filling side": ("%s, %n = async_copy.wait @ab[%f]", "used with type !async_copy.cursor<@ab, read>"),
    "another ring's cursor": ("%s, %n = async_copy.acquire @cd[%f]", "used with type !async_copy.cursor<@cd, fill>"),
    "commit of a slot that is read": (WAIT + "async_copy.commit @ab, %s", "used with type !async_copy.slot<@ab, fill>"),
    "release of a slot that is filled": (
        ACQUIRE + "async_copy.release @ab, %s",
        "used with type !async_copy.slot<@ab, read>",
    ),
    "release on another ring": (WAIT + "async_copy.release @cd, %s", "used with type !async_copy.slot<@cd, read>"),
    "unknown field": (
        ACQUIRE + f'async_copy.copy %a[%z, %z] -> %s["q"] : !tile.view<64x64xf16> -> {SLOT}',
        "pipeline @ab has no field 'q'",
    ),
    "offsets of a copy": (
        ACQUIRE + f'async_copy.copy %a[%z] -> %s["a"] : !tile.view<64x64xf16> -> {SLOT}',
        "a view of rank 2 wants 2 element offsets, got 1",
    ),
    "rank of a copy": (
        ACQUIRE + f'async_copy.copy %x[%z] -> %s["a"] : !tile.view<64xf16> -> {SLOT}',
        "a tile of rank 2 does not fit a view of rank 1",
    ),
    "element type of a copy": (
        ACQUIRE + f'async_copy.copy %w[%z, %z] -> %s["a"] : !tile.view<64x64xf32> -> {SLOT}',
        "the view holds f32, the tile f16",
    ),
    "element type of a store": (
        ACQUIRE + f'async_copy.store %s["a"] -> %w[%z, %z] : {SLOT} -> !tile.view<64x64xf32>',
        "the view holds f32, the tile f16",
    ),
    "field of a store": (
        ACQUIRE + f'async_copy.store %s["b"] -> %a[%z, %z] : {SLOT} -> !tile.view<64x64xf16>',
        "pipeline @ab has no field 'b'",
    ),
    "width of cp_async": (
        ACQUIRE + f'async_copy.cp_async %a[%z, %z] -> %s["a"] bytes 2 : !tile.view<64x64xf16> -> {SLOT}',
        "cp.async copies 4, 8 or 16 bytes, not 2",
    ),
    "width of plain_copy": (
        ACQUIRE + f'async_copy.plain_copy %a[%z, %z] -> %s["a"] bytes 32 : !tile.view<64x64xf16> -> {SLOT}',
        "a plain copy moves 1, 2, 4, 8 or 16 bytes at a time, not 32",
    ),
    "width of plain_store": (
        ACQUIRE + f'async_copy.plain_store %s["a"] -> %a[%z, %z] bytes 1 : {SLOT} -> !tile.view<64x64xf16>',
        "a plain store moves 2, 4, 8 or 16 bytes at a time, not 1",
    ),
    "field of cp_async": (
        ACQUIRE + f'async_copy.cp_async %a[%z, %z] -> %s["c"] bytes 16 : !tile.view<64x64xf16> -> {SLOT}',
        "pipeline @ab has no field 'c'",
    ),
    "turn of a third": ("async_copy.await_turn consumer 2", "turns are of consumer 0 and 1, got 2"),
    "predicate": ("%q, %m = async_copy.acquire @ab[%f] if %z", "used with type i1"),
}


def test_round_trip():
    module = ir.parse_module(WHOLE, "whole.mlir")
    ir.verify_module(module)
    text = ir.print_module(module)
    again = ir.parse_module(text, "again.mlir")
    ir.verify_module(again)
    assert ir.print_module(again) == text
    assert {op.name for op in module.walk() if op.name.startswith("async_copy.")} == {
        op.name for op in ac.AsyncCopy.operations
    }


@pytest.mark.parametrize("case", BROKEN)
def test_broken_rules(case: str):
    body, sentence = BROKEN[case]
    with pytest.raises(EmmyError) as caught:
        ir.verify_module(ir.parse_module(HEAD + body + "\n}\n", "k.mlir"))
    assert sentence in caught.value.message
    assert caught.value.location is not None
    assert caught.value.location.line >= 2 if "pipeline @p" in body else caught.value.location.line >= 7


def test_the_constructors_build_what_the_text_says():
    """Result types and properties follow from cursor and slot."""
    begin = ac.BeginFillOp("ab")
    acquire = ac.AcquireOp(begin.cursor)
    commit = ac.CommitOp(acquire.slot, joined=True)
    read = ac.BeginReadOp("ab")
    wait = ac.WaitOp(read.cursor)
    slot = ac.SlotOp(read.cursor)
    for op in (begin, acquire, commit, read, wait, ac.ReleaseOp(wait.slot), slot, ac.DrainOp("ab")):
        op.verify()
    assert acquire.slot.type == ac.SlotType.get("ab", "fill")
    assert acquire.next.type == begin.cursor.type
    assert wait.slot.type == slot.slot.type == ac.SlotType.get("ab", "read")
    assert commit.joined is not None
    assert ring_name(wait.next) == "ab"
