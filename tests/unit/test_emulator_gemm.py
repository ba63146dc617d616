"""A whole cp.async double-buffered mma.sync GEMM, printed by a small generator here, in every landing x order mode;
then the same text with one fault seeded at a time, each of which the emulator must name."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from emmy.emulator import Emulator, EmulatorError, Uninitialised

MODES = list(itertools.product(("late", "early", "random"), ("fixed", "reversed", "random")))


class GemmText:
    """Prints C[M,N] (f32) = A[M,K] B[N,K]^T (f16): `stages` slots of bm x bk and bn x bk, wm x wn warps.

    Each k-tile: wait_group, bar.sync, refill the slot that was read last, ldmatrix and mma. The epilogue stages every
    warp's tile through the ring (after a bar.sync) and stores 16 bytes a lane. Lines end in // tags that name them.
    """

    def __init__(self, bm: int, bn: int, bk: int, wm: int, wn: int, stages: int, swizzle: bool = True):
        self.bm, self.bn, self.bk, self.wm, self.wn, self.stages = bm, bn, bk, wm, wn, stages
        self.swizzle = swizzle
        self.threads = 32 * wm * wn
        self.row_bytes = 2 * bk
        self.a_bytes, self.b_bytes = bm * self.row_bytes, bn * self.row_bytes
        self.slot_bytes = self.a_bytes + self.b_bytes
        self.tm, self.tn = bm // wm, bn // wn
        self.shared_bytes = max(stages * self.slot_bytes, wm * wn * 16 * (self.tn + 4) * 4)

    def xor(self, row: str, out: str) -> list[str]:
        """out = the swizzle's chunk XOR for a row, so that 8 rows of one chunk cover all banks."""
        if not self.swizzle:
            return [f"mov.u32 {out}, 0;"]
        shift = {8: 0, 4: 1, 2: 2}[self.bk // 8]
        return [f"shr.u32 {out}, {row}, {shift};", f"and.b32 {out}, {out}, {self.bk // 8 - 1};"]

    def copies(self, operand: str, rows: int, offset: int, global_: str) -> list[str]:
        """One thread's share of the copies of one operand's tile; %r20 is the slot's address, %r21 the k offset."""
        chunks = self.bk // 8
        lines = []
        for i in range(rows * chunks // self.threads):
            lines += [
                f"add.u32 %r30, %r1, {i * self.threads};",
                f"shr.u32 %r31, %r30, {chunks.bit_length() - 1};",
                f"and.b32 %r32, %r30, {chunks - 1};",
                *self.xor("%r31", "%r33"),
                "xor.b32 %r33, %r33, %r32;",
                "shl.b32 %r33, %r33, 4;",
                f"mad.lo.u32 %r33, %r31, {self.row_bytes}, %r33;",
                "add.u32 %r33, %r33, %r20;",
                f"add.u32 %r34, %r31, {'%r5' if operand == 'a' else '%r6'};",
                "mul.wide.u32 %rd10, %r34, %r7;",
                "shl.b32 %r35, %r32, 3;",
                "add.u32 %r35, %r35, %r21;",
                "cvt.u64.u32 %rd11, %r35;",
                "add.s64 %rd10, %rd10, %rd11;",
                "shl.b64 %rd10, %rd10, 1;",
                f"add.s64 %rd10, %rd10, {global_};",
                f"@%p2 cp.async.cg.shared.global.L2::128B [%r33+{offset}], [%rd10], 16; // copy {operand}{i}",
            ]
        return lines

    def issue(self, tag: str) -> list[str]:
        """Copy k-tile %r8 into slot %r9 if there is such a tile, and commit; then advance both."""
        return [
            "setp.lt.u32 %p2, %r8, %r10;",
            f"mad.lo.u32 %r20, %r9, {self.slot_bytes}, %r2;",
            f"mul.lo.u32 %r21, %r8, {self.bk};",
            *self.copies("a", self.bm, 0, "%rd1"),
            *self.copies("b", self.bn, self.a_bytes, "%rd2"),
            f"cp.async.commit_group; // commit {tag}",
            "add.u32 %r8, %r8, 1;",
            "add.u32 %r9, %r9, 1;",
            f"setp.eq.u32 %p3, %r9, {self.stages};",
            "selp.b32 %r9, 0, %r9, %p3;",
        ]

    def math(self) -> list[str]:
        """ldmatrix and mma of slot %r11."""
        tiles_m, tiles_n = self.tm // 16, self.tn // 8
        lines = [f"mad.lo.u32 %r22, %r11, {self.slot_bytes}, %r2;"]
        for step in range(self.bk // 16):
            for base, row, half in (("%r23", "%r12", "%r14"), ("%r24", "%r13", "%r15")):
                lines += [
                    f"add.u32 %r25, {half}, {2 * step};",
                    *self.xor(row, "%r26"),
                    "xor.b32 %r25, %r25, %r26;",
                    "shl.b32 %r25, %r25, 4;",
                    f"mad.lo.u32 {base}, {row}, {self.row_bytes}, %r25;",
                    f"add.u32 {base}, {base}, %r22;",
                ]
            for i in range(tiles_m):
                regs = ", ".join(f"%a{4 * i + j}" for j in range(4))
                at = i * 16 * self.row_bytes
                lines.append(f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{regs}}}, [%r23+{at}]; // load a{i}")
            for i in range(tiles_n // 2):
                regs = ", ".join(f"%b{4 * i + j}" for j in range(4))
                at = self.a_bytes + i * 16 * self.row_bytes
                lines.append(f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{regs}}}, [%r24+{at}]; // load b{i}")
            for i, j in itertools.product(range(tiles_m), range(tiles_n)):
                d = ", ".join(f"%f{4 * (i * tiles_n + j) + e}" for e in range(4))
                a = ", ".join(f"%a{4 * i + e}" for e in range(4))
                b = ", ".join(f"%b{2 * j + e}" for e in range(2))
                lines.append(f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{{d}}}, {{{a}}}, {{{b}}}, {{{d}}};")
        return lines

    def epilogue(self) -> list[str]:
        """Stage 16 rows at a time in the warp's own part of the ring, then store them by 16 bytes."""
        tiles_n, pitch = self.tn // 8, (self.tn + 4) * 4
        lines = [
            "bar.sync 0; // barrier epilogue",
            f"mad.lo.u32 %r40, %r3, {16 * pitch}, %r2;",
            "shr.u32 %r41, %r4, 2;",
            "and.b32 %r42, %r4, 3;",
            "shl.b32 %r42, %r42, 3;",
            f"mad.lo.u32 %r43, %r41, {pitch}, %r42;",
            "add.u32 %r43, %r43, %r40;",
        ]
        per_row = self.tn // 4
        for i in range(self.tm // 16):
            for j in range(tiles_n):
                f = 4 * (i * tiles_n + j)
                lines += [
                    f"st.shared.v2.f32 [%r43+{32 * j}], {{%f{f}, %f{f + 1}}};",
                    f"st.shared.v2.f32 [%r43+{32 * j + 8 * pitch}], {{%f{f + 2}, %f{f + 3}}};",
                ]
            lines.append(f"bar.warp.sync 0xffffffff; // warp barrier {2 * i}")
            for q in range(16 * per_row // 32):
                lines += [
                    f"add.u32 %r44, %r4, {32 * q};",
                    f"shr.u32 %r45, %r44, {per_row.bit_length() - 1};",
                    f"and.b32 %r46, %r44, {per_row - 1};",
                    "shl.b32 %r47, %r46, 4;",
                    f"mad.lo.u32 %r47, %r45, {pitch}, %r47;",
                    "add.u32 %r47, %r47, %r40;",
                    "ld.shared.v4.f32 {%g0, %g1, %g2, %g3}, [%r47];",
                    f"add.u32 %r48, %r45, {16 * i};",
                    "add.u32 %r48, %r48, %r16;",
                    "mul.wide.u32 %rd12, %r48, %r18;",
                    "shl.b32 %r49, %r46, 2;",
                    "add.u32 %r49, %r49, %r17;",
                    "cvt.u64.u32 %rd13, %r49;",
                    "add.s64 %rd12, %rd12, %rd13;",
                    "shl.b64 %rd12, %rd12, 2;",
                    "add.s64 %rd12, %rd12, %rd3;",
                    "st.global.v4.f32 [%rd12], {%g0, %g1, %g2, %g3}; // store c",
                ]
            if i + 1 < self.tm // 16:
                lines.append(f"bar.warp.sync 0xffffffff; // warp barrier {2 * i + 1}")
        return lines

    def text(self) -> str:
        tiles_m, tiles_n = self.tm // 16, self.tn // 8
        body = [
            "ld.param.u64 %rd1, [a];",
            "ld.param.u64 %rd2, [b];",
            "ld.param.u64 %rd3, [c];",
            "ld.param.u32 %r18, [n];",
            "ld.param.u32 %r7, [k];",
            "mov.u32 %r1, %tid.x;",
            "mov.u32 %r2, smem;",
            "shr.u32 %r3, %r1, 5;",
            "and.b32 %r4, %r1, 31;",
            "mov.u32 %r5, %ctaid.y;",
            f"mul.lo.u32 %r5, %r5, {self.bm};",
            "mov.u32 %r6, %ctaid.x;",
            f"mul.lo.u32 %r6, %r6, {self.bn};",
            f"div.u32 %r10, %r7, {self.bk};",
            f"div.u32 %r50, %r3, {self.wn};",
            f"rem.u32 %r51, %r3, {self.wn};",
            # First row of the warp, in the tile and in C, and the rows that this lane gives to ldmatrix.
            f"mul.lo.u32 %r12, %r50, {self.tm};",
            "add.u32 %r16, %r12, %r5;",
            "and.b32 %r52, %r4, 15;",
            "add.u32 %r12, %r12, %r52;",
            "shr.u32 %r14, %r4, 4;",
            f"mul.lo.u32 %r13, %r51, {self.tn};",
            "add.u32 %r17, %r13, %r6;",
            "and.b32 %r52, %r4, 7;",
            "add.u32 %r13, %r13, %r52;",
            "shr.u32 %r53, %r4, 4;",
            "shl.b32 %r53, %r53, 3;",
            "add.u32 %r13, %r13, %r53;",
            "shr.u32 %r15, %r4, 3;",
            "and.b32 %r15, %r15, 1;",
            *[f"mov.f32 %f{i}, 0f00000000;" for i in range(4 * tiles_m * tiles_n)],
            "mov.u32 %r8, 0;",
            "mov.u32 %r9, 0;",
            *[line for s in range(self.stages - 1) for line in self.issue(f"prologue {s}")],
            "mov.u32 %r11, 0;",
            "mov.u32 %r19, 0;",
            "LOOP:",
            f"cp.async.wait_group {self.stages - 2}; // wait",
            "bar.sync 0; // barrier loop",
            *self.issue("loop"),
            *self.math(),
            "add.u32 %r11, %r11, 1;",
            f"setp.eq.u32 %p3, %r11, {self.stages};",
            "selp.b32 %r11, 0, %r11, %p3;",
            "add.u32 %r19, %r19, 1;",
            "setp.lt.u32 %p1, %r19, %r10;",
            "@%p1 bra LOOP;",
            *self.epilogue(),
            "ret;",
        ]
        head = f"""
.version 7.4
.target sm_80
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry gemm(.param .u64 .ptr .global .align 16 a, .param .u64 b, .param .u64 c, .param .u32 n, .param .u32 k)
.maxntid {self.threads}, 1, 1
{{
.reg .pred %p<4>;
.reg .b32 %r<60>;
.reg .b64 %rd<14>;
.reg .b32 %a<{4 * tiles_m}>;
.reg .b32 %b<{2 * tiles_n}>;
.reg .f32 %f<{4 * tiles_m * tiles_n}>;
.reg .f32 %g<4>;
"""
        return head + "\n".join(body) + "\n}\n"


def operands(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Small integers: every sum is exact in f32, so the result must be equal bit for bit."""
    rng = np.random.default_rng(7)
    a = rng.integers(-4, 5, (m, k)).astype(np.float16)
    b = rng.integers(-4, 5, (n, k)).astype(np.float16)
    return a, b, np.full((m, n), np.nan, np.float32)


def run(gemm: GemmText, text: str, m: int, n: int, k: int, **mode):
    a, b, c = operands(m, n, k)
    report = Emulator(text).launch(
        "gemm",
        grid=(n // gemm.bn, m // gemm.bm, 1),
        block=(gemm.threads, 1, 1),
        args=[a, b, Uninitialised(c), n, k],
        shared_bytes=gemm.shared_bytes,
        **mode,
    )
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)
    return report


SMALL = GemmText(32, 32, 32, 2, 2, 2)
SMALL_SHAPE = (64, 32, 128)


@pytest.mark.parametrize(("landing", "order"), MODES)
@pytest.mark.parametrize("stages", [2, 3])
def test_gemm_is_exact(landing, order, stages):
    gemm = GemmText(32, 32, 32, 2, 2, stages)
    report = run(gemm, gemm.text(), *SMALL_SHAPE, landing=landing, order=order, seed=3)
    assert report.instructions["mma"] == 64 * 32 * 128 // (16 * 8 * 16)
    assert report.instructions["cp.async"] == 2 * 4 * (32 + 32) * 32 * 2 // (16 * 32)
    assert report.instructions["bar.sync"] == 2 * 4 * (4 + 1)


def test_swizzle_decides_bank_conflicts():
    plain = GemmText(32, 32, 32, 2, 2, 2, swizzle=False)
    with_swizzle = run(SMALL, SMALL.text(), *SMALL_SHAPE)
    without = run(plain, plain.text(), *SMALL_SHAPE)

    def of_ldmatrix(report, text):
        lines = text.splitlines()
        return sum(n for line, n in report.bank_conflicts.items() if lines[line - 1].startswith("ldmatrix"))

    assert of_ldmatrix(with_swizzle, SMALL.text()) == 0
    # 64-byte rows: 8 rows of one chunk meet in 2 bank groups, 4 wavefronts instead of 1, 4 phases a ldmatrix.x4.
    assert of_ldmatrix(without, plain.text()) == 3 * 4 * without.instructions["ldmatrix"]


# name: (what is replaced, by what, words of the error)
FAULTS = {
    "dropped wait_group": ("cp.async.wait_group 1; // wait", "", ("race", "poison", "uninit")),
    "wait_group N+1": ("cp.async.wait_group 1; // wait", "cp.async.wait_group 2;", ("race", "poison", "uninit")),
    "dropped loop barrier": ("bar.sync 0; // barrier loop", "", ("race", "poison", "uninit")),
    "dropped epilogue barrier": ("bar.sync 0; // barrier epilogue", "", ("race", "poison", "uninit")),
    "barrier before the wait": (
        "cp.async.wait_group 1; // wait\nbar.sync 0; // barrier loop",
        "bar.sync 0;\ncp.async.wait_group 1;",
        ("race", "poison", "uninit"),
    ),
    "dropped commit in the prologue": ("cp.async.commit_group; // commit prologue 0", "", ("race", "poison", "uninit")),
    "dropped commit in the loop": ("cp.async.commit_group; // commit loop", "", ("race", "poison", "uninit")),
    "dropped warp barrier": ("bar.warp.sync 0xffffffff; // warp barrier 0", "", ("race",)),
    "dropped copy": ("@%p2 cp.async.cg.shared.global.L2::128B [%r33+0], [%rd10], 16; // copy a0", "", ("uninit",)),
    "wrong chunk order in the copy": ("[%r33+0], [%rd10], 16; // copy a0", "[%r33+8], [%rd10], 16;", ("misaligned",)),
    "load beyond the slot": ("[%r24+2048]; // load b0", "[%r24+999424];", ("out of bounds",)),
    "store beyond C": (
        "[%rd12], {%g0, %g1, %g2, %g3}; // store c",
        "[%rd12+65536], {%g0, %g1, %g2, %g3};",
        ("bounds",),
    ),
}


@pytest.mark.parametrize(("landing", "order"), MODES)
@pytest.mark.parametrize("fault", FAULTS)
def test_seeded_fault(fault, landing, order):
    gemm = GemmText(32, 32, 32, 2, 2, 3)
    old, new, words = FAULTS[fault]
    text = gemm.text()
    assert old in text
    with pytest.raises(EmulatorError, match="|".join(words)) as caught:
        run(gemm, text.replace(old, new), *SMALL_SHAPE, landing=landing, order=order, seed=5)
    assert "PTX line" in str(caught.value)
    assert "CTA (" in str(caught.value)


@pytest.mark.parametrize(("landing", "order"), MODES)
def test_early_overwrite_of_a_slot(landing, order):
    """Refilling one slot too early (a ring of 3 used as 2) overwrites what other warps still read."""
    gemm = GemmText(32, 32, 32, 2, 2, 3)
    text = gemm.text().replace("setp.eq.u32 %p3, %r9, 3;", "setp.eq.u32 %p3, %r9, 2;")
    with pytest.raises(EmulatorError, match=r"race|poison|uninit"):
        run(gemm, text, *SMALL_SHAPE, landing=landing, order=order)


@pytest.mark.parametrize(("landing", "order"), MODES)
def test_refill_before_the_barrier(landing, order):
    """The barrier still orders the copies before the reads, but no longer the last reads before the refill."""
    gemm = GemmText(32, 32, 32, 2, 2, 3)
    text = gemm.text().replace("bar.sync 0; // barrier loop", "")
    text = text.replace("cp.async.commit_group; // commit loop", "cp.async.commit_group; bar.sync 0;")
    with pytest.raises(EmulatorError, match=r"race: overwrites .* still read by warp") as caught:
        run(gemm, text, *SMALL_SHAPE, landing=landing, order=order)
    assert "cp.async" in str(caught.value)
    assert "ldmatrix" in str(caught.value)


def test_speed_of_a_full_size_tile():
    gemm = GemmText(128, 128, 32, 2, 4, 3)
    report = run(gemm, gemm.text(), 256, 256, 256)
    assert report.instructions["mma"] == 256**3 // (16 * 8 * 16)
    assert report.seconds < 5  # about 0.4 s on an idle core
