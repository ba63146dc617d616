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


class WgmmaGemm:
    """Prints C[M,N] (f32) = A[M,K] B: a ring of `stages` slots, a producer warpgroup, `groups` consumer warpgroups.

    A CTA makes a tile of (64 groups) x bn; a k-tile has 64 columns, panels of 128-byte rows under the 128-byte swizzle. B is
    [N,K] (K-major), or [K,N] for `mn_b`, whose panels of 64 columns are loaded one by one. The CTAs of a cluster, along x,
    have different rows and one tile of B: each loads its part of it and multicasts that to all. Grid: (M / bm, N / bn, 1).
    A consumer warpgroup releases a slot once the wgmma after it is issued. Lines end in // tags that name them.
    """

    BK = 64

    def __init__(self, groups: int, bn: int, stages: int, cluster: int = 1, mn_b: bool = False):
        self.groups, self.bn, self.stages, self.cluster, self.mn_b = groups, bn, stages, cluster, mn_b
        self.bm, self.threads = 64 * groups, 128 * (groups + 1)
        self.a_bytes, self.b_bytes = 128 * self.bm, 128 * bn
        self.slot_bytes = self.a_bytes + self.b_bytes
        self.barriers = stages * self.slot_bytes
        self.shared_bytes = self.barriers + 16 * stages
        self.box_b = (self.BK, 64) if mn_b else (bn // cluster, self.BK)
        # Fields of the descriptors but the start: mode 128 B, sbo 1024, lbo 16 or (MN-major) a panel.
        self.a_fields = 1 << 62 | 64 << 32 | 1 << 16
        self.b_fields = 1 << 62 | 64 << 32 | (512 if mn_b else 1) << 16

    def text(self) -> str:
        head = [
            ".visible .entry gemm(.param .align 64 .b8 a[128], .param .align 64 .b8 b[128], .param .u64 c,",
            "    .param .u32 ldc, .param .u32 nk)",
            *([f".reqnctapercluster {self.cluster}, 1, 1", ".explicitcluster"] if self.cluster > 1 else []),
            f".maxntid {self.threads}, 1, 1",
            ".minnctapersm 1",
            "{",
            f".reg .f32 %d<{self.bn // 2}>;",
            ".reg .b32 %t, %w, %l, %g, %smem, %full, %empty, %slot, %at, %far, %x, %y, %stage, %before, %phase, %i, %nk;",
            ".reg .b32 %k, %m0, %n0, %rank, %ldc;",
            ".reg .b64 %map_a, %map_b, %c, %da, %db, %rd<4>;",
            ".reg .b16 %mask;",
            ".reg .pred %p, %q, %lead, %adds, %elected;",
        ]
        return (
            HEAD
            + "\n".join([*head, *self.setup(), *self.producer(), *self.consumer(), "END:", *self.end(), "ret;", "}"])
            + "\n"
        )

    def setup(self) -> list[str]:
        lines = [f"mov.u64 %map_{x}, {x}; cvta.param.u64 %map_{x}, %map_{x};" for x in "ab"]
        lines += [
            "ld.param.u64 %c, [c]; ld.param.u32 %ldc, [ldc]; ld.param.u32 %nk, [nk];",
            "mov.u32 %t, %tid.x; shr.u32 %w, %t, 5; shfl.sync.idx.b32 %w, %w, 0, 31, 0xffffffff;",
            "and.b32 %l, %t, 31; shr.u32 %g, %w, 2; mov.u32 %smem, smem;",
            f"add.u32 %full, %smem, {self.barriers}; add.u32 %empty, %full, {8 * self.stages};",
            f"mov.u32 %m0, %ctaid.x; mul.lo.u32 %m0, %m0, {self.bm}; mov.u32 %n0, %ctaid.y; mul.lo.u32 %n0, %n0, {self.bn};",
            "mov.u32 %rank, %cluster_ctarank;" if self.cluster > 1 else "mov.u32 %rank, 0;",
            "setp.eq.u32 %p, %t, 0;",
        ]
        for stage in range(self.stages):
            lines.append(f"@%p mbarrier.init.shared::cta.b64 [%full+{8 * stage}], 1;")
            lines.append(
                f"@%p mbarrier.init.shared::cta.b64 [%empty+{8 * stage}], {self.groups * self.cluster}; // count"
            )
        lines.append("@%p fence.mbarrier_init.release.cluster; // fence init")
        if self.cluster > 1:
            lines += [
                "barrier.cluster.arrive.relaxed.aligned; // begin",
                "barrier.cluster.wait.acquire.aligned; // begin",
            ]
        else:
            lines.append("bar.sync 0; // begin")
        return [*lines, "mov.u32 %stage, 0; mov.u32 %phase, 0; mov.u32 %i, 0; elect.sync _|%elected, 0xffffffff;"]

    def wait(self, barrier: str, parity: str) -> list[str]:
        return [
            f"mad.lo.u32 %at, %stage, 8, %{barrier};",
            f"{{ AGAIN: mbarrier.try_wait.parity.shared::cta.b64 %q, [%at], {parity}; // wait {barrier}",
            "@!%q bra AGAIN; }",
        ]

    def advance(self) -> list[str]:
        return [
            "add.u32 %stage, %stage, 1;",
            f"setp.eq.u32 %q, %stage, {self.stages};",
            "selp.b32 %stage, 0, %stage, %q; @%q xor.b32 %phase, %phase, 1; // flip",
        ]

    def producer(self) -> list[str]:
        load = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        lines = [
            f"setp.ne.u32 %p, %g, {self.groups};",
            "@%p bra CONSUMER;",
            *(["setmaxnreg.dec.sync.aligned.u32 24;"] if self.groups == 2 else []),
            f"setp.ne.u32 %p, %w, {4 * self.groups};",
            "@%p bra END;",
            f"mov.u16 %mask, {(1 << self.cluster) - 1}; // mask",
            "LOAD:",
            "xor.b32 %y, %phase, 1; // producer parity",
            *self.wait("empty", "%y"),
            f"mad.lo.u32 %slot, %stage, {self.slot_bytes}, %smem;",
            f"mad.lo.u32 %at, %stage, 8, %full; mul.lo.u32 %k, %i, {self.BK};",
            f"@%elected mbarrier.arrive.expect_tx.shared::cta.b64 _, [%at], {self.slot_bytes}; // expect",
            f"@%elected {load} [%slot], [%map_a, {{%k, %m0}}], [%at];",
        ]
        if self.mn_b:
            for panel in range(self.bn // 64):
                to = self.a_bytes + 8192 * panel
                lines.append(f"add.u32 %x, %n0, {64 * panel};")
                lines.append(f"@%elected {load} [%slot+{to}], [%map_b, {{%x, %k}}], [%at];")
        else:
            part = self.bn // self.cluster
            multicast, mask = (".multicast::cluster", ", %mask") if self.cluster > 1 else ("", "")
            lines += [
                f"mad.lo.u32 %x, %rank, {part}, %n0; mad.lo.u32 %y, %rank, {128 * part}, %slot;",
                f"@%elected {load}{multicast} [%y+{self.a_bytes}], [%map_b, {{%k, %x}}], [%at]{mask}; // load b",
            ]
        return [*lines, *self.advance(), "add.u32 %i, %i, 1; setp.lt.u32 %p, %i, %nk;", "@%p bra LOAD;", "bra END;"]

    def release(self, tag: str) -> list[str]:
        """One thread of the warpgroup tells every CTA of the cluster that the slot %before is free."""
        lines = ["mad.lo.u32 %at, %before, 8, %empty;"]
        if self.cluster == 1:
            return [*lines, f"@%lead mbarrier.arrive.shared::cta.b64 _, [%at]; // release {tag}"]
        for rank in range(self.cluster):
            lines.append(f"mapa.shared::cluster.u32 %far, %at, {rank};")
            lines.append(f"@%lead mbarrier.arrive.shared::cluster.b64 _, [%far]; // release {tag} {rank}")
        return lines

    def consumer(self) -> list[str]:
        registers = self.bn // 2
        d = listed("d", registers)
        step = 128 if self.mn_b else 2
        shape = f"wgmma.mma_async.sync.aligned.m64n{self.bn}k16.f32.f16.f16"
        lines = [
            "CONSUMER:",
            *(["setmaxnreg.inc.sync.aligned.u32 240;"] if self.groups == 2 else []),
            "and.b32 %x, %w, 3; setp.eq.and.u32 %lead, %x, 0, %elected;",
            "setp.ne.u32 %adds, %smem, %smem; mov.u32 %before, 0;",
            "MATH:",
            *self.wait("full", "%phase"),
            f"mad.lo.u32 %slot, %stage, {self.slot_bytes}, %smem; mad.lo.u32 %x, %g, 8192, %slot;",
            f"shr.u32 %x, %x, 4; cvt.u64.u32 %da, %x; add.s64 %da, %da, {self.a_fields}; // descriptor a",
            f"add.u32 %x, %slot, {self.a_bytes}; shr.u32 %x, %x, 4; cvt.u64.u32 %db, %x;",
            f"add.s64 %db, %db, {self.b_fields}; // descriptor b",
            "wgmma.fence.sync.aligned; // fence",
        ]
        for k in range(4):
            lines += [f"add.s64 %rd0, %da, {2 * k}; add.s64 %rd1, %db, {step * k};"]
            adds = "%adds" if k == 0 else "1"
            lines += [f"{shape} {d}, %rd0, %rd1, {adds}, 1, 1, 0, {int(self.mn_b)};"]
        lines += [
            "wgmma.commit_group.sync.aligned; // commit",
            "wgmma.wait_group.sync.aligned 1; // wait loop",
            "setp.eq.u32 %p, %i, 0;",
            "@%p bra FIRST;",
            *self.release("loop"),
            "FIRST:",
            "mov.u32 %before, %stage; // previous",
            "setp.eq.u32 %adds, %smem, %smem;",
            *self.advance(),
            "add.u32 %i, %i, 1; setp.lt.u32 %p, %i, %nk;",
            "@%p bra MATH;",
            "wgmma.wait_group.sync.aligned 0; // wait end",
            *self.release("end"),
            "and.b32 %x, %w, 3; shl.b32 %x, %x, 4; shr.u32 %y, %l, 2; add.u32 %x, %x, %y; mad.lo.u32 %x, %g, 64, %x;",
            "add.u32 %x, %x, %m0; and.b32 %y, %l, 3; shl.b32 %y, %y, 1; add.u32 %y, %y, %n0; mad.lo.u32 %x, %x, %ldc, %y;",
            "mad.wide.u32 %rd2, %x, 4, %c; mul.wide.u32 %rd3, %ldc, 32; add.s64 %rd3, %rd3, %rd2;",
        ]
        for j in range(self.bn // 8):
            for half, base in ((0, "%rd2"), (1, "%rd3")):
                r = 4 * j + 2 * half
                lines.append(f"st.global.v2.f32 [{base}+{32 * j}], {{%d{r}, %d{r + 1}}};")
        return lines

    def end(self) -> list[str]:
        if self.cluster == 1:
            return []
        return ["barrier.cluster.arrive.release.aligned; // end", "barrier.cluster.wait.acquire.aligned; // end"]
