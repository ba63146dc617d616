"""TMA on the emulator: tensor maps, boxes and swizzles against NumPy, mbarrier byte counts, bulk groups, proxy fences.

The kernels are hand-written; `test_the_texts_assemble` keeps ptxas's opinion of them.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emmy.assemble import assemble, find_tool
from emmy.emulator import Emulator, EmulatorError, Pointer, TensorMap, Uninitialised

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


# Boxes and swizzles, against NumPy


def box_of(array: np.ndarray, corner, shape) -> np.ndarray:
    """The box at a corner, zeros outside."""
    result = np.zeros(shape, array.dtype)
    for index in np.ndindex(*shape):
        at = tuple(c + i for c, i in zip(corner, index, strict=True))
        if all(0 <= a < n for a, n in zip(at, array.shape, strict=True)):
            result[index] = array[at]
    return result


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


@st.composite
def boxes(draw):
    rank = draw(st.integers(1, 4))
    width = draw(st.sampled_from([1, 2, 4, 8]))
    swizzle = draw(st.sampled_from([0, 32, 64, 128]))
    inner = (swizzle if swizzle else 16 * draw(st.integers(1, 16 // width))) // width
    box = [*[draw(st.integers(1, 5)) for _ in range(rank - 1)], inner]
    sizes = [*[draw(st.integers(1, 7)) for _ in range(rank - 1)], draw(st.integers(1, 40))]
    corner = [draw(st.integers(-b - 1, n + 1)) for b, n in zip(box, sizes, strict=True)]
    padding = draw(st.integers(0, 2))
    return width, swizzle, box, sizes, corner, padding


def make(width: int, sizes, padding: int, seed: int = 0):
    """A padded buffer, the array inside it, and the byte strides of its outer dimensions."""
    pitch = -(-sizes[-1] * width // 16) * 16 + 16 * padding
    buffer = np.random.default_rng(seed).integers(1, 256, (*sizes[:-1], pitch), np.uint8)
    array = buffer.view(f"uint{8 * width}")[..., : sizes[-1]]
    return buffer, array, list(array.strides[:-1])


@settings(max_examples=60, deadline=None)
@given(boxes(), st.sampled_from(LANDINGS))
def test_loads_and_stores_of_boxes(case, landing):
    """A load brings the box with zeros outside and counts all of its bytes; a store touches the inside only."""
    width, swizzle, box, sizes, corner, padding = case
    buffer, array, strides = make(width, sizes, padding)
    target, target_array, _ = make(width, sizes, padding, seed=1)
    wanted, before = box_of(array, corner, box), target_array.copy()
    source = TensorMap(buffer, width, sizes, strides, box, swizzle)
    sink = TensorMap(target, width, sizes, strides, box, swizzle)
    out = np.zeros(16384, np.uint8)
    untouched = target.copy()
    report = launch(LOAD + DUMP + STORE, source, sink, corner, out, landing=landing)
    np.testing.assert_array_equal(out[: source.box_bytes], swizzled(wanted.view(np.uint8), swizzle))
    for index in np.ndindex(*sizes):
        inside = all(0 <= i - c < b for i, c, b in zip(index, corner, box, strict=True))
        before[index] = array[index] if inside else before[index]
    np.testing.assert_array_equal(target_array, before)
    # Neither does a store touch the padding.
    padding_bytes = target[..., sizes[-1] * width :]
    np.testing.assert_array_equal(padding_bytes, untouched[..., sizes[-1] * width :])
    assert report.instructions["cp.async.bulk.tensor"] == 2
    assert report.instructions["mbarrier.try_wait"] == 2


def test_a_view_inside_a_buffer():
    """Pointer and strides name a window: here rows 1, 3, 5 of a matrix, from column 8 on."""
    matrix = np.arange(8 * 32, dtype=np.float32).reshape(8, 32)
    source = TensorMap(Pointer(matrix, (32 + 8) * 4), 4, [3, 16], [2 * 32 * 4], [4, 16])
    out = np.zeros(16384, np.uint8)
    launch(LOAD + DUMP, source, source, [0, 0], out)
    result = out.view(np.float32)[:64].reshape(4, 16)
    np.testing.assert_array_equal(result[:3], matrix[1:6:2, 8:24])
    assert not result[3].any()


def simple(array=None, swizzle: int = 128) -> TensorMap:
    array = np.arange(16 * 64, dtype=np.uint16).reshape(16, 64) if array is None else array
    return TensorMap(array, 2, [16, 64], [128], [8, 64], swizzle)


def fails(body: str, words: str, **arguments) -> str:
    arguments = {"source": simple(), "sink": simple(np.zeros((16, 64), np.uint16)), "coordinates": [0, 0], **arguments}
    with pytest.raises(EmulatorError, match=words) as caught:
        launch(body, **arguments)
    return str(caught.value)
