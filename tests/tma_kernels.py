"""Kernels around single TMA copies, for tests of the emulator."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from emmy.emulator import Emulator, EmulatorError, TensorMap, Uninitialised

MODES = list(itertools.product(("late", "early", "random"), ("fixed", "reversed", "random")))
LANDINGS = ("late", "early", "random")
# .version, and the destination space of loads: sm_120a wants .shared::cta, which PTX 8.0 does not have.
TARGETS = {"sm_90a": ("8.0", "shared::cluster"), "sm_120a": ("8.7", "shared::cta")}


def text(body: str, target: str = "sm_90a", rank: int = 2) -> str:
    """A kernel of maps `source` and `sink`, a pointer `out`, and c0 ..: %from and %to the maps' addresses, %smem 16 KiB,
    %bar 64 bytes of mbarriers, %t thread, %w warp, %first true in thread 0. {load} and {store} move one box at %c."""
    version, space = TARGETS[target]
    corner = ", ".join(f"%c{i}" for i in range(rank))
    parts = {
        "load": f"cp.async.bulk.tensor.{rank}d.{space}.global.mbarrier::complete_tx::bytes "
        f"[%smem], [%from, {{{corner}}}], [%bar];",
        "store": f"cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group [%to, {{{corner}}}], [%smem];",
        "wait": "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p0, [%bar], 0; @!%p0 bra WAIT;",
        "expect": "@%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], %bytes;",
        "commit": "cp.async.bulk.commit_group;",
    }
    for name, part in parts.items():
        body = body.replace("{" + name + "}", part)
    coordinates = "".join(f", .param .u32 c{i}" for i in range(rank))
    loads = "\n".join(f"ld.param.u32 %c{i}, [c{i}];" for i in range(rank))
    return f"""
.version {version}
.target {target}
.address_size 64
.visible .entry k(
    .param .align 64 .b8 source[128], .param .align 64 .b8 sink[128], .param .u64 out, .param .u32 bytes{coordinates})
{{
.reg .pred %p<6>, %first;
.reg .b32 %r<12>, %c<5>;
.reg .b32 %t, %w, %smem, %bar, %bytes;
.reg .b64 %rd<6>, %from, %to, %out;
.shared .align 1024 .b8 smem[16384];
.shared .align 8 .b8 bars[64];
mov.u64 %from, source; cvta.param.u64 %from, %from;
mov.u64 %to, sink; cvta.param.u64 %to, %to;
ld.param.u64 %out, [out];
ld.param.u32 %bytes, [bytes];
{loads}
mov.u32 %t, %tid.x;
shr.u32 %w, %t, 5;
setp.eq.u32 %first, %t, 0;
mov.u32 %smem, smem;
mov.u32 %bar, bars;
{body}
ret;
}}
"""


TMA_HINTED = {
    target: f"cp.async.bulk.tensor.2d.{space}.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
    "[%smem], [%from, {%c0, %c1}], [%bar], %rd2;"
    for target, (_, space) in TARGETS.items()
}
INIT = """
@%first mbarrier.init.shared::cta.b64 [%bar], 1;
@%first fence.mbarrier_init.release.cluster;
bar.sync 0;
"""
DUMP = """
mov.u32 %r0, %t;
DUMP: shl.b32 %r1, %r0, 4; setp.lt.u32 %p1, %r1, %bytes; add.u32 %r2, %r1, %smem; cvt.u64.u32 %rd0, %r1;
add.s64 %rd0, %rd0, %out;
@%p1 ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r2];
@%p1 st.global.v4.u32 [%rd0], {%r4, %r5, %r6, %r7};
add.u32 %r0, %r0, 64; setp.lt.u32 %p2, %r0, 1024; @%p2 bra DUMP;
"""
LOAD = INIT + "{expect}\n@%first {load}\n{wait}\n"
STORE = "bar.sync 0;\n@%first {store}\n@%first {commit}\n@%first cp.async.bulk.wait_group 0;\n"


def launch(body: str, source: TensorMap, sink: TensorMap, coordinates, out=None, bytes_: int | None = None, **mode):
    """Coordinates come as NumPy would write them, the outermost first."""
    out = np.zeros(16384, np.uint8) if out is None else out
    rank = len(coordinates)
    return Emulator(text(body, rank=rank)).launch(
        "k",
        (1, 1, 1),
        (64, 1, 1),
        [source, sink, Uninitialised(out), source.box_bytes if bytes_ is None else bytes_, *reversed(coordinates)],
        **mode,
    )


def swizzled(rows: np.ndarray, swizzle: int) -> np.ndarray:
    """Dense rows of `swizzle` bytes as they lie in shared memory: row r has its 16-byte chunks permuted by an XOR."""
    if not swizzle:
        return rows.reshape(-1)
    chunks = rows.reshape(-1, swizzle // 16, 16)
    rows_a_line = 128 // swizzle
    result = np.empty_like(chunks)
    for r, row in enumerate(chunks):
        for j, chunk in enumerate(row):
            result[r, j ^ (r // rows_a_line % (swizzle // 16))] = chunk
    return result.reshape(-1)


def simple(array=None, swizzle: int = 128) -> TensorMap:
    array = np.arange(16 * 64, dtype=np.uint16).reshape(16, 64) if array is None else array
    return TensorMap(array, 2, [16, 64], [128], [8, 64], swizzle)


def fails(body: str, words: str, **arguments) -> str:
    arguments = {"source": simple(), "sink": simple(np.zeros((16, 64), np.uint16)), "coordinates": [0, 0], **arguments}
    with pytest.raises(EmulatorError, match=words) as caught:
        launch(body, **arguments)
    return str(caught.value)
