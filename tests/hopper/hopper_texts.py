"""PTX texts with `wgmma`, printed by small generators of their own; used by the tests of the emulator, and on a GPU."""

from __future__ import annotations

import ml_dtypes
import numpy as np

HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 smem[];\n"
DTYPES = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}


def listed(prefix: str, count: int) -> str:
    return "{" + ", ".join(f"%{prefix}{i}" for i in range(count)) + "}"


def one_product(
    name: str,
    n: int,
    sums: str,
    a: str,
    b: str,
    *,
    in_registers: bool = False,
    mn_a: bool = False,
    mn_b: bool = False,
    signs=(1, 1),
) -> str:
    """A kernel of 128 threads: shared memory = `image`; out = A B, then out = A B + out, each register of each thread.

    Parameters: image, out, the descriptors of a and b relative to shared address 0 (or, for `in_registers`, the address of
    the registers [4][128]), bytes of the image.
    """
    k = 32 // DTYPES[a].itemsize
    registers = n // 2 if sums == "f32" else n // 4
    suffix = "f32" if sums == "f32" else "b32"
    d, left = listed("d", registers), listed("a", 4) if in_registers else "%da"
    flags = "" if k == 32 else f", {int(mn_b)}" if in_registers else f", {int(mn_a)}, {int(mn_b)}"
    multiply = f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{sums}.{a}.{b} {d}, {left}, %db, SCALE, {signs[0]}, {signs[1]}{flags};"
    fragment = [f"ld.global.b32 %a{i}, [%x+{512 * i}];" for i in range(4)]
    lines = [
        f".visible .entry {name}(.param .u64 image, .param .u64 out, .param .u64 a, .param .u64 b, .param .u32 bytes)",
        ".maxntid 128, 1, 1\n.minnctapersm 1\n{",
        f".reg .{suffix} %d<{registers}>;\n.reg .b32 %r<12>, %a<4>;\n.reg .b64 %rd<8>, %da, %db, %x;\n.reg .pred %p<2>;",
        "ld.param.u64 %rd0, [image];\nld.param.u64 %rd1, [out];\nld.param.u64 %da, [a];\nld.param.u64 %db, [b];",
        "ld.param.u32 %r0, [bytes];\nmov.u32 %r1, %tid.x;\nmov.u32 %r2, smem;\nshl.b32 %r3, %r1, 4;",
        "COPY: setp.ge.u32 %p0, %r3, %r0;\nadd.u32 %r4, %r2, %r3;\ncvt.u64.u32 %rd2, %r3;\nadd.s64 %rd2, %rd2, %rd0;",
        "@!%p0 ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%rd2];\n@!%p0 st.shared.v4.u32 [%r4], {%r5, %r6, %r7, %r8};",
        "add.u32 %r3, %r3, 2048;\nsub.u32 %r9, %r3, 2048;\nand.b32 %r9, %r9, 0xfffff800;\nsetp.lt.u32 %p1, %r9, %r0;",
        "@%p1 bra COPY;",
        "fence.proxy.async.shared::cta; // proxy fence\nbar.sync 0;",
        "shr.u32 %r10, %r2, 4;\ncvt.u64.u32 %rd3, %r10;\nadd.s64 %db, %db, %rd3;",
        "add.s64 %x, %da, 0;\nmul.wide.u32 %rd4, %r1, 4;\nadd.s64 %x, %x, %rd4;"
        if in_registers
        else "add.s64 %da, %da, %rd3;",
        *(fragment if in_registers else []),
        "wgmma.fence.sync.aligned; // fence",
        multiply.replace("SCALE", "0") + " // first",
        "wgmma.commit_group.sync.aligned; // commit\nwgmma.wait_group.sync.aligned 0; // wait",
        f"mad.wide.u32 %rd5, %r1, {4 * registers}, %rd1;",
        *[f"st.global.{suffix} [%rd5+{4 * i}], %d{i};" for i in range(registers)],
        "wgmma.fence.sync.aligned; // second fence",
        multiply.replace("SCALE", "1"),
        "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;",
        f"add.s64 %rd5, %rd5, {512 * registers};",
        *[f"st.global.{suffix} [%rd5+{4 * i}], %d{i};" for i in range(registers)],
        "ret;\n}\n",
    ]
    return "\n".join(lines)


def unpack_sums(words: np.ndarray, n: int, sums: str) -> np.ndarray:
    """What threads hold, [128, registers] words, as the matrix [64, n]: written out element by element."""
    matrix = np.empty((64, n), np.float32 if sums == "f32" else np.float16)
    thread = np.arange(128)
    row, pair = thread // 32 * 16 + thread % 32 // 4, 2 * (thread % 4)
    for column in range(0, n, 8):
        for half in (0, 1):
            for parity in (0, 1):
                at = row + 8 * half, column + pair + parity
                if sums == "f32":
                    matrix[at] = words[:, column // 2 + 2 * half + parity].copy().view(np.float32)
                else:
                    matrix[at] = words[:, column // 4 + half].copy().view(np.float16).reshape(-1, 2)[:, parity]
    return matrix


def pack_a(matrix: np.ndarray) -> np.ndarray:
    """A [64, k] as four registers of 128 threads: words [4, 128]."""
    size = matrix.dtype.itemsize
    each = 4 // size
    words = np.empty((4, 128), np.uint32)
    for thread in range(128):
        row, column = thread // 32 * 16 + thread % 32 // 4, each * (thread % 4)
        for register in range(4):
            first = column + 4 * each * (register // 2)
            part = np.ascontiguousarray(matrix[row + 8 * (register % 2), first : first + each])
            words[register, thread] = part.view(np.uint32)[0]
    return words


def place(image: np.ndarray, base: int, offsets: np.ndarray, matrix: np.ndarray) -> None:
    """Put elements [mn, k] into a byte image at `base` + offsets [mn, k]."""
    raw = matrix.view(np.uint8).reshape(*matrix.shape, matrix.dtype.itemsize)
    image[base + offsets[..., None] + np.arange(matrix.dtype.itemsize)] = raw
