"""The table of PTX instructions: a row each. To add an instruction is to add a row.

Results first, then register operands, then immediates (bytes of an address offset, a count). What needs a target with
clusters or `wgmma` is at the end; `wgmma` itself, whose registers are up to 260 operands, is in `ptx_wgmma`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xdsl.dialects.builtin import Float32Type, IntegerType, f32, i1, i16, i32, i64
from xdsl.ir import Attribute

from emmy.atoms import ATOMS, PTX_F8, Atom

REGISTER_TYPES: dict[str, IntegerType | Float32Type] = {"h": i16, "r": i32, "l": i64, "f": f32, "p": i1}
"""The letters with which the table writes register types."""


@dataclass(frozen=True, eq=False)
class Row:
    """One PTX instruction.

    results, operands: a letter of REGISTER_TYPES for each. immediates: what the integers after the operands are.
    text: the instruction; `$i` is the i-th of results, operands and immediates, counted through. pure: neither memory nor
    synchronisation nor other lanes. literals: register operands may be replaced by constants.
    tied: (result, operand) pairs that want one register, because ptxas then has nothing to move.
    piecewise: ptxas makes several instructions of it on some target, and writes the first results before it has read all
    operands (mma.sync of 8-bit floats on sm_90a, 13.0, with f32 or f16 sums): an operand that stands at two places shares no
    register with a result.
    moves: where the printer moves tied operands that did not get their result's register: not at all if the text names both,
    else `before` the instruction (which then changes the register) or `after` it (which then touches neither).
    until: the instruction is repeated until its result, a predicate, holds; it takes no predicate of its own.
    needs: the flag of `emmy.targets.Target` that a target must have, or nothing. since: the first PTX version, if it is above
    that of some target with that flag; a module that holds the instruction is printed in no older one.
    """

    name: str
    results: str
    operands: str
    immediates: tuple[str, ...]
    text: str
    pure: bool = False
    literals: bool = False
    tied: tuple[tuple[int, int], ...] = ()
    piecewise: bool = False
    moves: Literal["", "before", "after"] = ""
    until: bool = False
    needs: str = ""
    since: float = 0.0

    @property
    def result_types(self) -> tuple[Attribute, ...]:
        """Register types of the results."""
        return tuple(REGISTER_TYPES[letter] for letter in self.results)

    @property
    def operand_types(self) -> tuple[Attribute, ...]:
        """Register types of the operands, without predicate and `else` values."""
        return tuple(REGISTER_TYPES[letter] for letter in self.operands)


# ---- the table -------------------------------------------------------------------------------------------------------

_ARITHMETIC: tuple[tuple[str, str, str], ...] = (
    # 32-bit integers
    ("add.s32", "r", "rr"),
    ("sub.s32", "r", "rr"),
    ("mul.lo.s32", "r", "rr"),
    ("mul.hi.u32", "r", "rr"),
    ("mad.lo.s32", "r", "rrr"),
    ("div.u32", "r", "rr"),
    ("rem.u32", "r", "rr"),
    ("div.s32", "r", "rr"),
    ("rem.s32", "r", "rr"),
    ("min.s32", "r", "rr"),
    ("max.s32", "r", "rr"),
    ("min.u32", "r", "rr"),
    ("max.u32", "r", "rr"),
    ("and.b32", "r", "rr"),
    ("or.b32", "r", "rr"),
    ("xor.b32", "r", "rr"),
    ("shl.b32", "r", "rr"),
    ("shr.u32", "r", "rr"),
    ("shr.s32", "r", "rr"),
    *((f"setp.{test}.s32", "p", "rr") for test in ("eq", "ne", "lt", "le", "gt", "ge")),
    *((f"setp.{test}.u32", "p", "rr") for test in ("lt", "le", "gt", "ge")),
    ("selp.b32", "r", "rrp"),
    # 64-bit integers: addresses
    ("add.s64", "l", "ll"),
    ("mul.lo.s64", "l", "ll"),
    ("shl.b64", "l", "lr"),
    ("mul.wide.s32", "l", "rr"),
    ("mul.wide.u32", "l", "rr"),
    ("mad.wide.s32", "l", "rrl"),
    ("mad.wide.u32", "l", "rrl"),
    ("cvt.s64.s32", "l", "r"),
    ("cvt.u64.u32", "l", "r"),
    ("cvta.to.global.u64", "l", "l"),
    # predicates
    ("and.pred", "p", "pp"),
    ("or.pred", "p", "pp"),
    ("xor.pred", "p", "pp"),
    ("not.pred", "p", "p"),
    # floats
    ("add.f32", "f", "ff"),
    ("sub.f32", "f", "ff"),
    ("mul.f32", "f", "ff"),
    ("fma.rn.f32", "f", "fff"),
    ("div.full.f32", "f", "ff"),
    ("min.f32", "f", "ff"),
    ("max.f32", "f", "ff"),
    ("max.NaN.f32", "f", "ff"),
    ("min.NaN.f32", "f", "ff"),
    ("neg.f32", "f", "f"),
    ("abs.f32", "f", "f"),
    ("ex2.approx.ftz.f32", "f", "f"),
    ("ex2.approx.f16x2", "r", "r"),
    ("lg2.approx.ftz.f32", "f", "f"),
    ("rcp.approx.f32", "f", "f"),
    ("rcp.approx.ftz.f32", "f", "f"),
    ("sqrt.approx.f32", "f", "f"),
    ("rsqrt.approx.f32", "f", "f"),
    ("tanh.approx.f32", "f", "f"),
    ("setp.ge.f32", "p", "ff"),
    ("setp.lt.f32", "p", "ff"),
    ("setp.neu.f32", "p", "ff"),
    ("selp.f32", "f", "ffp"),
    # conversions; the first source of a pair is its upper half
    ("cvt.rn.f16x2.f32", "r", "ff"),
    ("cvt.rn.bf16x2.f32", "r", "ff"),
    ("cvt.rn.f16.f32", "h", "f"),
    ("cvt.rn.bf16.f32", "h", "f"),
    ("cvt.f32.f16", "f", "h"),
    ("cvt.f32.bf16", "f", "h"),
)
"""Opcode, results, operands: pure instructions, printed `opcode result, operand, ...`."""

_MOVES: tuple[tuple[str, str, str, str], ...] = (
    ("tid_x", "r", "", "mov.u32 $0, %tid.x"),
    ("ctaid_x", "r", "", "mov.u32 $0, %ctaid.x"),
    ("nctaid_x", "r", "", "mov.u32 $0, %nctaid.x"),
    ("shared_base", "r", "", "mov.u32 $0, smem"),
    ("lanemask_lt", "r", "", "mov.u32 $0, %lanemask_lt"),
    ("createpolicy_evict_first", "l", "", "createpolicy.fractional.L2::evict_first.b64 $0"),
    ("mov_b32_f32", "f", "r", "mov.b32 $0, $1"),
    ("mov_f32_b32", "r", "f", "mov.b32 $0, $1"),
    ("unpack_b32", "hh", "r", "mov.b32 {$0,$1}, $2"),
    ("pack_b32", "r", "hh", "mov.b32 $0, {$1,$2}"),
)
"""Name, results, operands, text: reads of special registers, cache policies, and changes of a register's type. Pure, registers
only."""

CACHE_HINT = "_cache_hint"
"""The end of the name of a copy that takes a cache policy (i64), its last operand (PTX ISA, `.level::cache_hint`)."""

_COPIES: tuple[tuple[str, str], ...] = (
    ("cp_async_ca_4", "cp.async.ca.shared.global.L2::128B [$0+{to}], [$1+{from}], 4"),
    ("cp_async_ca_8", "cp.async.ca.shared.global.L2::128B [$0+{to}], [$1+{from}], 8"),
    ("cp_async_cg_16", "cp.async.cg.shared.global.L2::128B [$0+{to}], [$1+{from}], 16"),
)
"""Each exists without and with a source size (`_zfill`): bytes beyond it are filled with zeros; and all of them without and with
a cache policy."""

_SYNCHRONISATION: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("cp_async_commit_group", (), "cp.async.commit_group"),
    ("cp_async_wait_group", ("pending",), "cp.async.wait_group $0"),
    ("bar_sync", ("barrier",), "bar.sync $0"),
    ("bar_sync_count", ("barrier", "threads"), "bar.sync $0, $1"),
    ("bar_warp_sync", (), "bar.warp.sync -1"),
)
"""Name, immediates, text: on every target."""

_ASYNC_SYNCHRONISATION: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    ("fence_mbarrier_init", (), "fence.mbarrier_init.release.cluster", "tma"),
    ("fence_proxy_async_shared", (), "fence.proxy.async.shared::cta", "tma"),
    ("cp_async_bulk_commit_group", (), "cp.async.bulk.commit_group", "tma"),
    ("cp_async_bulk_wait_group", ("pending",), "cp.async.bulk.wait_group $0", "tma"),
    ("cp_async_bulk_wait_group_read", ("pending",), "cp.async.bulk.wait_group.read $0", "tma"),
    ("griddepcontrol_wait", (), "griddepcontrol.wait", "tma"),
    ("griddepcontrol_launch_dependents", (), "griddepcontrol.launch_dependents", "tma"),
    ("setmaxnreg_inc", ("registers",), "setmaxnreg.inc.sync.aligned.u32 $0", "setmaxnreg"),
    ("setmaxnreg_dec", ("registers",), "setmaxnreg.dec.sync.aligned.u32 $0", "setmaxnreg"),
)
"""Name, immediates, text, what of a target they need: the async proxy, launches that overlap, and the register pool."""

_CLUSTER_SYNCHRONISATION: tuple[tuple[str, str, str], ...] = (
    ("barrier_cluster_arrive", "barrier.cluster.arrive.release.aligned", "tma"),
    ("barrier_cluster_arrive_relaxed", "barrier.cluster.arrive.relaxed.aligned", "tma"),
    ("barrier_cluster_wait", "barrier.cluster.wait.acquire.aligned", "tma"),
    ("wgmma_fence", "wgmma.fence.sync.aligned", "wgmma"),
    ("wgmma_commit_group", "wgmma.commit_group.sync.aligned", "wgmma"),
)
"""Name, text, what of a target they need. An arrival at another CTA's mbarrier has no `.release.cluster`: it would wait for
all of memory, a fifth of a kernel's time."""

_MBARRIERS: tuple[Row, ...] = (
    Row("mbarrier_init", "", "r", ("offset", "count"), "mbarrier.init.shared.b64 [$0+$1], $2", needs="mbarrier"),
    Row("mbarrier_arrive", "l", "r", ("offset",), "mbarrier.arrive.shared.b64 $0, [$1+$2]", needs="mbarrier"),
    Row(
        "mbarrier_arrive_expect_tx",
        "",
        "r",
        ("offset", "bytes"),
        "mbarrier.arrive.expect_tx.shared.b64 _, [$0+$1], $2",
        needs="tma",
    ),
    Row(
        "mbarrier_try_wait_parity",
        "p",
        "rr",
        ("offset",),
        "mbarrier.try_wait.parity.shared.b64 $0, [$1+$3], $2",
        literals=True,
        until=True,
        needs="tma",
    ),
    Row(
        "mbarrier_test_wait_parity",
        "p",
        "rr",
        ("offset",),
        "mbarrier.test_wait.parity.shared.b64 $0, [$1+$3], $2",
        literals=True,
        until=True,
        needs="mbarrier",
    ),
    Row(
        "cp_async_mbarrier_arrive_noinc",
        "",
        "r",
        ("offset",),
        "cp.async.mbarrier.arrive.noinc.shared.b64 [$0+$1]",
        needs="mbarrier",
    ),
)
"""Barriers in shared memory. An arrive gives the phase that it arrived in, which nobody needs; a wait takes a parity."""

_TMA_LOADS: tuple[tuple[str, str, float], ...] = (
    ("shared_cluster", "shared::cluster", 0.0),
    ("shared_cta", "shared::cta", 8.6),
)
"""The same load in two spellings. For the first, ptxas calls a function at every load on sm_120a; the second is newer."""

_ACCESSES: tuple[tuple[str, str], ...] = (
    ("b8", "h"),
    ("b16", "h"),
    ("b32", "r"),
    ("v2.b32", "rr"),
    ("v4.b32", "rrrr"),
    ("f32", "f"),
    ("v2.f32", "ff"),
    ("v4.f32", "ffff"),
)
"""Widths of plain loads and stores, and the registers that they move."""


def listed(first: int, count: int) -> str:
    """`$4,$5`"""
    return ",".join(f"${i}" for i in range(first, first + count))


def _braces(first: int, count: int) -> str:
    """`{$4,$5}`; a single register stands alone."""
    return f"{{{listed(first, count)}}}" if count > 1 else listed(first, count)


def _arithmetic_rows() -> list[Row]:
    rows: list[Row] = []
    for opcode, results, operands in _ARITHMETIC:
        slots = ", ".join(f"${i}" for i in range(len(results) + len(operands)))
        name = opcode.replace(".", "_")
        rows.append(Row(name, results, operands, (), f"{opcode} {slots}", pure=True, literals=True))
    rows.extend(Row(name, results, operands, (), text, pure=True) for name, results, operands, text in _MOVES)
    rows.append(Row("add_f32_f16", "f", "hf", (), "add.f32.f16 $0, $1, $2", pure=True, needs="mixed_add"))
    return rows


def _memory_rows() -> list[Row]:
    rows: list[Row] = []
    for space, address in (("global", "l"), ("shared", "r")):
        for width, moved in _ACCESSES:
            n, suffix = len(moved), width.replace(".", "_")
            load = f"ld.{space}.{width} {_braces(0, n)}, [${n}+${n + 1}]"
            store = f"st.{space}.{width} [$0+${n + 1}], {_braces(1, n)}"
            rows.append(Row(f"ld_{space}_{suffix}", moved, address, ("offset",), load))
            rows.append(Row(f"st_{space}_{suffix}", "", address + moved, ("offset",), store))
    for count in (1, 2, 4):
        for trans in ("", ".trans"):
            shape, name = f"sync.aligned.m8n8.x{count}{trans}.shared.b16", f"x{count}{trans.replace('.', '_')}"
            load = f"ldmatrix.{shape} {{{listed(0, count)}}}, [${count}+${count + 1}]"
            store = f"stmatrix.{shape} [$0+${count + 1}], {{{listed(1, count)}}}"
            rows.append(Row(f"ldmatrix_{name}", "r" * count, "r", ("offset",), load))
            rows.append(Row(f"stmatrix_{name}", "", "r" + "r" * count, ("offset",), store, needs="stmatrix"))
    for name, text in _COPIES:
        for fill, policy in (("", ""), ("r", ""), ("", "l"), ("r", "l")):
            rows.append(_copy_row(name, text, fill, policy))
    return rows


def _copy_row(name: str, text: str, fill: str, policy: str) -> Row:
    """A `cp.async`. fill, policy: the letters of its source size and of its cache policy, if it has them."""
    first = 2 + len(fill + policy)
    text = text.replace("{to}", f"${first}").replace("{from}", f"${first + 1}")
    text = "".join((text, *(f", ${i}" for i in range(2, first))))
    if policy:
        text = text.replace(".L2::128B", ".L2::cache_hint.L2::128B")
    name += "_zfill" * len(fill) + CACHE_HINT * len(policy)
    return Row(name, "", f"rl{fill}{policy}", ("shared_offset", "global_offset"), text)


def _tma_load_row(rank: int, modifiers: str, name: str, mask: str, policy: str, needs: str, since: float) -> Row:
    """A TMA load. mask, policy: the letters of the mask of CTAs and of its cache policy, if it has them."""
    first = rank + 3 + len(mask + policy)
    text = f"cp.async.bulk.tensor.{rank}d.{modifiers}{'.L2::cache_hint' * len(policy)}"
    text += f" [$0+${first}], [$1, {{{listed(2, rank)}}}], [${rank + 2}+${first + 1}]"
    text = "".join((text, *(f", ${i}" for i in range(rank + 3, first))))
    operands = f"rl{'r' * rank}r{mask}{policy}"
    return Row(name, "", operands, ("shared_offset", "barrier_offset"), text, needs=needs, since=since)


def _async_rows() -> list[Row]:
    """mbarriers, TMA of 1 to 5 dimensions (coordinates innermost first), elections, register pool."""
    rows = [
        *_MBARRIERS,
        Row("elect_sync", "p", "", (), "elect.sync _|$0, -1", needs="tma"),
        Row("prefetch_tensormap", "", "l", (), "prefetch.tensormap [$0]", needs="tma"),
    ]
    rows.extend(Row(name, "", "", values, text, needs=needs) for name, values, text, needs in _ASYNC_SYNCHRONISATION)
    for rank in range(1, 6):
        coordinates = "r" * rank
        for name, space, since in _TMA_LOADS:
            modifiers = f"{space}.global.mbarrier::complete_tx::bytes"
            for policy in ("", "l"):
                row = tma_load_name(rank, name, bool(policy))
                rows.append(_tma_load_row(rank, modifiers, row, "", policy, "tma", since))
        to = f"[$0, {{{listed(1, rank)}}}]"
        text = f"cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group {to}, [${rank + 1}+${rank + 2}]"
        rows.append(Row(tma_store_name(rank), "", f"l{coordinates}r", ("shared_offset",), text, needs="tma"))
    return rows


def multicast_load_name(rank: int, hint: bool = False) -> str:
    """The op of a TMA load into several CTAs: destination, tensor map, coordinates, mbarrier, mask of CTA ranks (i16), and a
    cache policy (i64) if it takes one, by `hint`."""
    return f"cp_async_bulk_tensor_{rank}d_multicast{CACHE_HINT * hint}"


def tma_load_name(rank: int, space: str, hint: bool = False) -> str:
    """The op of a TMA load: destination, tensor map, coordinates, mbarrier, and a cache policy (i64) if it takes one, by `hint`;
    `space` is shared_cluster or shared_cta."""
    return f"cp_async_bulk_tensor_{rank}d_{space}_global{CACHE_HINT * hint}"


def tma_store_name(rank: int) -> str:
    """The op of a TMA store: tensor map, coordinates, source."""
    return f"cp_async_bulk_tensor_{rank}d_global_shared"


def _cluster_rows() -> list[Row]:
    """Clusters, and the instructions around `wgmma.mma_async`."""
    rows = [
        Row(f"{name}{axis}", "r", "", (), f"mov.u32 $0, %{name}{axis.replace('_', '.')}", pure=True, needs="tma")
        for name in ("cluster_ctaid", "cluster_nctaid", "clusterid", "nclusterid")
        for axis in ("_x", "_y", "_z")
    ]
    for name in ("cluster_ctarank", "cluster_nctarank"):
        rows.append(Row(name, "r", "", (), f"mov.u32 $0, %{name}", pure=True, needs="tma"))
    rows.append(
        Row("mapa", "r", "rr", (), "mapa.shared::cluster.u32 $0, $1, $2", pure=True, literals=True, needs="tma")
    )
    rows.extend(Row(name, "", "", (), text, needs=needs) for name, text, needs in _CLUSTER_SYNCHRONISATION)
    store = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [$0+$6], {$1,$2,$3,$4}, [$5+$7]"
    offsets = ("offset", "barrier_offset")
    rows.append(Row("st_async_v4_f32", "", "rffffr", offsets, store, needs="clusters", since=8.1))
    remote = "mbarrier.arrive.shared::cluster.b64 _, [$0+$1]"
    rows.append(Row("mbarrier_arrive_remote", "", "r", ("offset",), remote, needs="tma"))
    for rank in range(1, 6):
        modifiers = "shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        for policy in ("", "l"):
            name = multicast_load_name(rank, bool(policy))
            rows.append(_tma_load_row(rank, modifiers, name, "h", policy, "multicast", 0.0))
    return rows


def _warp_rows() -> list[Row]:
    rows = [Row(name, "", "", immediates, text) for name, immediates, text in _SYNCHRONISATION]
    rows += [Row(f"bar_{verb}_number", "", "r", ("threads",), f"bar.{verb} $0, $1") for verb in ("sync", "arrive")]
    for letter, suffix in (("r", "b32"), ("f", "f32")):
        for mode, last in (("idx", 31), ("bfly", 31)):
            text = f"shfl.sync.{mode}.b32 $0, $1, $2, {last}, -1"
            rows.append(Row(f"shfl_{mode}_{suffix}", letter, letter, ("lane",), text))
    rows.append(Row("vote_any_pred", "p", "p", (), "vote.sync.any.pred $0, $1, -1"))
    rows.extend(_mma_row(atom) for atom in ATOMS if not atom.asynchronous)
    return rows


def mma_name(atom: Atom) -> str:
    """The op of a synchronous atom: `mma_m16n8k16_f32_f16` (accumulator, then operands), without the dialect's name."""
    operands = dict.fromkeys(PTX_F8.get(operand.dtype, operand.dtype) for operand in (atom.a, atom.b))
    return "_".join(("mma", atom.name, atom.accumulator_dtype, *operands))


def _mma_row(atom: Atom) -> Row:
    sums = ("f" if atom.accumulator_dtype == "f32" else "r") * atom.c.registers
    counts = (len(sums), atom.a.registers, atom.b.registers, len(sums))
    lists, first = list[str](), 0
    for count in counts:
        lists.append(f"{{{listed(first, count)}}}")
        first += count
    operands = "r" * (atom.a.registers + atom.b.registers) + sums
    tied = tuple((i, atom.a.registers + atom.b.registers + i) for i in range(len(sums)))
    text = f"{atom.ptx} {', '.join(lists)}"
    f8 = atom.operand_dtype in PTX_F8
    needs = "fp8" if f8 else ""
    return Row(mma_name(atom), sums, operands, (), text, True, tied=tied, piecewise=f8, needs=needs, since=atom.since)


ROWS: dict[str, Row] = {
    row.name: row for row in (*_arithmetic_rows(), *_memory_rows(), *_warp_rows(), *_async_rows(), *_cluster_rows())
}
"""Every instruction by the name of its op, without `ptx.`."""
