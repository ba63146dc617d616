"""A small generator of TMA-loaded GEMMs, unified and specialised, with stmatrix and TMA stores, for tests of the emulator."""

from __future__ import annotations

import itertools

import numpy as np

from emmy.emulator import TensorMap, Uninitialised

TARGETS = {"sm_90a": ("8.0", "shared::cluster"), "sm_120a": ("8.7", "shared::cta")}


class TmaGemmText:
    """Prints C[M,N] (f16) = A[M,K] B[N,K]^T (f16): a ring of `stages` slots of bm x bk and bn x bk, wm x wn warps.

    A CTA makes `tiles` tiles of C side by side. Rows of a slot have bk elements, which is also the swizzle's span; C is
    staged in panels of 64 columns under the 128-byte swizzle, in shared memory of its own.

    Unified: each k-tile waits at its full mbarrier and at a CTA barrier, then refills the slot read last.
    Specialised: the consumers' warps come first, then a warpgroup whose first warp is the producer; full and empty
    mbarriers, setmaxnreg, a named barrier for the consumers. Lines end in // tags that name them.
    """

    def __init__(self, bm: int, bn: int, bk: int, wm: int, wn: int, stages: int, specialised: bool):
        self.bm, self.bn, self.bk, self.wm, self.wn, self.stages = bm, bn, bk, wm, wn, stages
        self.specialised = specialised
        self.warps = wm * wn
        self.threads = 32 * (self.warps + (4 if specialised else 0))
        self.row_bytes = 2 * bk
        self.a_bytes, self.b_bytes = bm * self.row_bytes, bn * self.row_bytes
        self.slot_bytes = self.a_bytes + self.b_bytes
        self.tm, self.tn = bm // wm, bn // wn
        self.panel_bytes = bm * 128
        self.staging = stages * self.slot_bytes
        self.barriers = self.staging + bn // 64 * self.panel_bytes
        self.shared_bytes = self.barriers + 128
        self.sync = f"bar.sync 1, {32 * self.warps};" if specialised else "bar.sync 0;"

    def maps(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> list[TensorMap]:
        def of(array: np.ndarray, box: list[int], swizzle: int) -> TensorMap:
            wrapped = Uninitialised(array) if array is c else array
            return TensorMap(wrapped, 2, array.shape, [array.strides[0]], box, swizzle)

        span = self.row_bytes
        return [of(a, [self.bm, self.bk], span), of(b, [self.bn, self.bk], span), of(c, [self.bm, 64], 128)]

    def xor(self, row: str, out: str) -> list[str]:
        """out = what the hardware swizzle XORs into the number of a row's 16-byte chunk."""
        shift = {8: 0, 4: 1, 2: 2}[self.bk // 8]
        return [f"shr.u32 {out}, {row}, {shift};", f"and.b32 {out}, {out}, {self.bk // 8 - 1}; // swizzle"]

    def advance(self, name: str) -> list[str]:
        """The next slot of a cursor; its phase flips when the ring wraps."""
        return [
            f"add.u32 %{name}, %{name}, 1;",
            f"setp.eq.u32 %q, %{name}, {self.stages}; // wrap {name}",
            f"selp.b32 %{name}, 0, %{name}, %q;",
            f"@%q xor.b32 %{name}_phase, %{name}_phase, 1;",
        ]

    def issue(self, tag: str, space: str) -> list[str]:
        """Load k-tile %k into slot %fill if there is such a tile; %lead is true in the issuing thread."""
        load = f"cp.async.bulk.tensor.2d.{space}.global.tile.mbarrier::complete_tx::bytes"
        return [
            "setp.lt.and.u32 %go, %k, %nk, %lead;",
            f"mad.lo.u32 %dst, %fill, {self.slot_bytes}, %smem;",
            "mad.lo.u32 %at, %fill, 8, %full;",
            f"mul.lo.u32 %kc, %k, {self.bk};",
            f"@%go mbarrier.arrive.expect_tx.shared::cta.b64 _, [%at], {self.slot_bytes}; // expect {tag}",
            f"@%go {load} [%dst], [%map_a, {{%kc, %m0}}], [%at]; // load a {tag}",
            f"@%go {load} [%dst+{self.a_bytes}], [%map_b, {{%kc, %n0}}], [%at]; // load b {tag}",
            "setp.lt.u32 %more, %k, %nk;",
            "@!%more bra NONE;",
            *self.advance("fill"),
            "add.u32 %k, %k, 1;",
            "NONE:",
        ]

    def wait(self, barrier: str, cursor: str, parity: str, tag: str) -> list[str]:
        return [
            f"mad.lo.u32 %at, %{cursor}, 8, %{barrier};",
            "{",
            f"AGAIN: mbarrier.try_wait.parity.shared::cta.b64 %p, [%at], {parity}; // wait {tag}",
            "@!%p bra AGAIN;",
            "}",
        ]

    def math(self) -> list[str]:
        """ldmatrix and mma of slot %read."""
        tiles_m, tiles_n = self.tm // 16, self.tn // 8
        lines = [f"mad.lo.u32 %slot, %read, {self.slot_bytes}, %smem;"]
        for step in range(self.bk // 16):
            for base, row, half in (("%a_at", "%a_row", "%a_half"), ("%b_at", "%b_row", "%b_half")):
                lines += [
                    f"add.u32 %x, {half}, {2 * step};",
                    *self.xor(row, "%y"),
                    "xor.b32 %x, %x, %y;",
                    "shl.b32 %x, %x, 4;",
                    f"mad.lo.u32 {base}, {row}, {self.row_bytes}, %x;",
                    f"add.u32 {base}, {base}, %slot;",
                ]
            for i in range(tiles_m):
                regs = ", ".join(f"%a{4 * i + j}" for j in range(4))
                at = i * 16 * self.row_bytes
                lines.append(f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{regs}}}, [%a_at+{at}]; // fragment a{i}")
            for i in range(tiles_n // 2):
                regs = ", ".join(f"%b{4 * i + j}" for j in range(4))
                at = self.a_bytes + i * 16 * self.row_bytes
                lines.append(f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{regs}}}, [%b_at+{at}]; // fragment b{i}")
            for i, j in itertools.product(range(tiles_m), range(tiles_n)):
                d = ", ".join(f"%f{4 * (i * tiles_n + j) + e}" for e in range(4))
                a = ", ".join(f"%a{4 * i + e}" for e in range(4))
                b = ", ".join(f"%b{2 * j + e}" for e in range(2))
                lines.append(f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{{d}}}, {{{a}}}, {{{b}}}, {{{d}}};")
        return lines

    def epilogue(self) -> list[str]:
        """Round to f16, stage by stmatrix, store by TMA."""
        tiles_n = self.tn // 8
        lines = [
            "@%lead cp.async.bulk.wait_group.read 0; // acquire",
            f"{self.sync} // barrier acquire",
        ]
        for i, j in itertools.product(range(self.tm // 16), range(tiles_n // 2)):
            for e in range(4):
                f = 4 * (i * tiles_n + 2 * j + e // 2) + 2 * (e % 2)
                lines.append(f"cvt.rn.f16x2.f32 %h{e}, %f{f + 1}, %f{f};")
            lines += [
                f"add.u32 %x, %c_row, {16 * i};",
                f"add.u32 %y, %c_chunk, {2 * j};",
                "shr.u32 %z, %y, 3;",
                f"mad.lo.u32 %z, %z, {self.panel_bytes}, %stage;",
                "xor.b32 %y, %y, %x;",
                "and.b32 %y, %y, 7;",
                "shl.b32 %y, %y, 4;",
                "mad.lo.u32 %z, %x, 128, %z;",
                "add.u32 %z, %z, %y;",
                "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%z], {%h0, %h1, %h2, %h3};",
            ]
        lines += [
            "fence.proxy.async.shared::cta; // fence store",
            f"{self.sync} // barrier store",
        ]
        for panel in range(self.bn // 64):
            lines += [
                f"add.u32 %x, %n0, {64 * panel};",
                "@%lead cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group "
                f"[%map_c, {{%x, %m0}}], [%stage+{panel * self.panel_bytes}]; // store {panel}",
            ]
        return [*lines, "@%lead cp.async.bulk.commit_group; // commit"]

    def setup(self) -> list[str]:
        lines = [
            f"mov.u64 %map_{x}, {x}; cvta.param.u64 %map_{x}, %map_{x}; prefetch.tensormap [%map_{x}];" for x in "abc"
        ]
        lines += [
            "ld.param.u32 %nk, [nk];",
            "ld.param.u32 %tiles, [tiles];",
            "mov.u32 %t, %tid.x;",
            "shr.u32 %w, %t, 5;",
            "shfl.sync.idx.b32 %w, %w, 0, 31, 0xffffffff;",
            "and.b32 %l, %t, 31;",
            "mov.u32 %smem, smem;",
            f"add.u32 %stage, %smem, {self.staging};",
            f"add.u32 %full, %smem, {self.barriers};",
            f"add.u32 %empty, %smem, {self.barriers + 64};",
            "setp.eq.u32 %p, %t, 0;",
        ]
        for stage in range(self.stages):
            lines.append(f"@%p mbarrier.init.shared::cta.b64 [%full+{8 * stage}], 1; // init full {stage}")
            lines.append(f"@%p mbarrier.init.shared::cta.b64 [%empty+{8 * stage}], {self.warps}; // init empty {stage}")
        return [
            *lines,
            "@%p fence.mbarrier_init.release.cluster; // fence init",
            "bar.sync 0; // barrier init",
            "elect.sync _|%elected, 0xffffffff;",
            "setp.eq.and.u32 %lead, %w, 0, %elected;",
            "mov.u32 %m0, %ctaid.y;",
            f"mul.lo.u32 %m0, %m0, {self.bm};",
            "mov.u32 %n0, %ctaid.x;",
            "mul.lo.u32 %n0, %n0, %tiles;",
            f"mul.lo.u32 %n0, %n0, {self.bn};",
            *[f"mov.u32 %{x}, 0;" for x in ("fill", "fill_phase", "read", "read_phase", "tile")],
        ]

    def lane_rows(self) -> list[str]:
        """What each lane addresses: rows of A and B for ldmatrix, row and 16-byte column of C for stmatrix."""
        return [
            f"div.u32 %x, %w, {self.wn};",
            f"rem.u32 %y, %w, {self.wn};",
            "and.b32 %z, %l, 15;",
            f"mad.lo.u32 %a_row, %x, {self.tm}, %z;",
            "mov.u32 %c_row, %a_row;",
            "shr.u32 %a_half, %l, 4;",
            f"mad.lo.u32 %c_chunk, %y, {self.tn // 8}, %a_half;",
            "and.b32 %z, %l, 7;",
            f"mad.lo.u32 %b_row, %y, {self.tn}, %z;",
            "mad.lo.u32 %b_row, %a_half, 8, %b_row;",
            "shr.u32 %b_half, %l, 3;",
            "and.b32 %b_half, %b_half, 1;",
        ]

    def next_tile(self, label: str) -> list[str]:
        return [
            f"add.u32 %n0, %n0, {self.bn};",
            "add.u32 %tile, %tile, 1;",
            "setp.lt.u32 %p, %tile, %tiles;",
            f"@%p bra {label};",
        ]

    def k_loop(self, refill: list[str], release: list[str]) -> list[str]:
        sums = [f"mov.f32 %f{i}, 0f00000000;" for i in range(self.tm * self.tn // 32)]
        return [
            *sums,
            "mov.u32 %i, 0;",
            "LOOP:",
            *self.wait("full", "read", "%read_phase", "full"),
            *refill,
            *self.math(),
            *release,
            *self.advance("read"),
            "add.u32 %i, %i, 1;",
            "setp.lt.u32 %p, %i, %nk;",
            "@%p bra LOOP;",
        ]

    def scoped(self, lines: list[str]) -> list[str]:
        return ["{", *lines, "}"]

    def unified(self, space: str) -> list[str]:
        prologue = [self.scoped(self.issue(f"prologue {s}", space)) for s in range(self.stages - 1)]
        refill = ["bar.sync 0; // barrier loop", *self.scoped(self.issue("loop", space))]
        return [
            *self.lane_rows(),
            "TILE:",
            "mov.u32 %k, 0;",
            *itertools.chain(*prologue),
            *self.k_loop(refill, []),
            *self.epilogue(),
            *self.next_tile("TILE"),
            "@%lead cp.async.bulk.wait_group 0; // drain",
        ]

    def roles(self, space: str) -> list[str]:
        release = [
            "fence.proxy.async.shared::cta; // fence release",
            "bar.warp.sync 0xffffffff; // sync release",
            "mad.lo.u32 %at, %read, 8, %empty;",
            "@%elected mbarrier.arrive.shared::cta.b64 _, [%at]; // release",
        ]
        return [
            f"setp.ge.u32 %p, %w, {self.warps};",
            "@%p bra PRODUCER;",
            "setmaxnreg.inc.sync.aligned.u32 208;",
            *self.lane_rows(),
            "TILE:",
            *self.k_loop([], release),
            *self.epilogue(),
            *self.next_tile("TILE"),
            "@%lead cp.async.bulk.wait_group 0; // drain",
            "bra DONE;",
            "PRODUCER: setmaxnreg.dec.sync.aligned.u32 40;",
            f"setp.ne.u32 %p, %w, {self.warps};",
            "@%p bra DONE;",
            "mov.pred %lead, %elected;",
            "FILL_TILE:",
            "mov.u32 %k, 0;",
            "FILL:",
            "xor.b32 %x, %fill_phase, 1;",
            *self.wait("empty", "fill", "%x", "empty"),
            *self.scoped(self.issue("loop", space)),
            "setp.lt.u32 %p, %k, %nk;",
            "@%p bra FILL;",
            *self.next_tile("FILL_TILE"),
            "DONE:",
        ]

    def text(self, target: str = "sm_90a") -> str:
        version, space = TARGETS[target]
        names = (
            "t w l smem stage full empty nk tiles m0 n0 k kc i tile dst at slot x y z fill fill_phase read read_phase"
        )
        names += " a_at b_at a_row b_row a_half b_half c_row c_chunk"
        registers = ", ".join(f"%{n}" for n in names.split())
        head = f"""
.version {version}
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry gemm(
    .param .align 64 .b8 a[128], .param .align 64 .b8 b[128], .param .align 64 .b8 c[128],
    .param .u32 nk, .param .u32 tiles)
.maxntid {self.threads}, 1, 1
.minnctapersm {2 if self.specialised else 1}
{{
.reg .pred %p, %q, %go, %more, %lead, %elected;
.reg .b32 {registers};
.reg .b64 %map_a, %map_b, %map_c;
.reg .b32 %a<{self.tm // 4}>;
.reg .b32 %b<{self.tn // 4}>;
.reg .b32 %h<4>;
.reg .f32 %f<{self.tm * self.tn // 32}>;
"""
        body = self.setup() + (self.roles(space) if self.specialised else self.unified(space))
        return head + "\n".join(body) + "\nret;\n}\n"
