"""A schedule: every decision about one kernel that changes its speed and not its meaning. Plain data.

It stands in the IR as `#tile.schedule<...>`; the fields, their defaults and what they may be are this file's table.
`emmy.schedule_limits` says what a target can run of it, `emmy.schedule_table` where each target starts from,
`emmy.schedule_choice` which row of it a product takes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

TRANSPORTS = ("auto", "cp_async", "plain", "tma")
ROLES = ("unified", "specialized")
EPILOGUES = ("shared", "direct")
SITES = ("eager", "first")
PROMOTIONS = ("auto", "convert", "identity")
PARTIALS = ("auto", "slices", "steps")
ORDERS = ("auto", "grid", "heavy", "light")
MASKS = ("loops", "guard")
EXPONENTIALS = ("exp2", "exp", "halves")
SHARES = ("none", "a", "b")
EVICTIONS = ("none", "b", "both")
COOPERATIVE, PINGPONG = CONSUMERS = ("cooperative", "pingpong")

WARPGROUP_ATOM = "wgmma"
"""`atom` of products that four warps issue together, 64 rows of a block at a time and all its columns (sm_90a)."""

WARPGROUP_WARPS = 4
"""Warps of a warpgroup, which issue each product of `wgmma` together."""

ATOM_COLUMNS = 8
"""Columns that a product of warpgroups has a multiple of, where none stand beside each other."""

WARPGROUP_SHARE = "m16n8k16"
"""The atom whose register layouts one warp's share of a `wgmma` has (PTX ISA, "Register Fragments for wgmma")."""

EIGHT_BIT_SHARE = "m16n8k32"
"""The same where operands have 8 bits; also the only atom of `mma.sync` for them."""

NO_HYBRID_WARPGROUPS = f"atom = {WARPGROUP_ATOM} has no hybrid sums; use accumulate<f32>, or atom = {WARPGROUP_SHARE}"
"""Of 16-bit operands: f16 partial sums would be waited for one by one, where f32 ones are exact enough."""

SHARING_CTAS = 2
"""CTAs that share the tiles of an operand."""

CHOICES: dict[str, tuple[str, ...]] = {
    "transport": TRANSPORTS,
    "roles": ROLES,
    "epilogue": EPILOGUES,
    "sites": SITES,
    "promotion": PROMOTIONS,
    "partials": PARTIALS,
    "order": ORDERS,
    "masks": MASKS,
    "exponentials": EXPONENTIALS,
    "share": SHARES,
    "evict": EVICTIONS,
    "consumers": CONSUMERS,
}
"""Fields that hold one word, and the words."""

RANGES: dict[str, tuple[int, int]] = {
    "stages": (1, 16),
    "raster": (1, 1024),
    "fragments": (1, 2),
    "delay": (0, 64),
    "prefetch": (0, 1),
    "hold": (0, 1),
    "unroll": (1, 16),
    "opt_level": (0, 3),
    "store_columns": (0, 1024),
    "batches": (1, 8),
    "producer_warps": (1, 8),
    "persistent": (0, 1),
    "splits": (0, 32),
    "split_k": (1, 8),
    "spills": (0, 1024),
    "stagger": (0, 1),
    "lazy": (0, 12),
    "overlap": (0, 1),
    "turns": (0, 1),
    "carry": (0, 1),
    "ahead": (0, 32),
    "polynomial": (0, 32),
    "repeat": (0, 1),
    "seldom": (0, 1),
    "late_stages": (0, 16),
    "reuse": (0, 1),
    "min_ctas": (1, 8),
}
"""Fields that hold a count: the smallest and the largest one."""


@dataclass(frozen=True)
class Schedule:
    """One kernel's schedule.

    block: CTA tile (M, N, K) in elements. warps: warp grid (M, N) over the CTA tile. atom: tensor-core shape, or
    `wgmma` for products of whole warpgroups, 16 rows a warp.
    stages: slots of the operand ring. transport: how global tiles reach shared memory.
    roles: one set of warps, or specialised ones: `producer_warps` more warps that only fill the rings. producer_regs,
    consumer_regs: registers of a thread of each (`setmaxnreg`); 0 takes `register_split`'s.
    persistent: 1 for as many CTAs as the card runs at once, each of which computes one tile after the other.
    consumers: `cooperative` ones compute one tile together; of `pingpong` there are two times `warps`, each of which computes
    tiles of its own, in turn, while the other one stores its last (`alternate-tiles`).
    splits: CTAs for each multiprocessor that share the keys of chained products, for a second kernel to combine; 0 for none.
    split_k: CTAs of a cluster that share the contraction of one tile, and add up what they have (`split-k`); 1, 2, 4 or 8.
    share: the operand whose tiles two CTAs of a cluster read together, each a half for both (`share-operands`); `b` for CTAs
    below each other, `a` for those beside each other.
    evict: what the L2 cache gives up before all else of what loops copy: operands `b` of products (keys and values; weights that
    all CTAs read at about the same time, and nobody after them), or operands a and further tensors as well (`both`). It belongs
    to asynchronous copies: what only loads can move, for want of 4-byte alignment, stays as it is.
    raster: group size of M tiles in CTA order (1 = row-major).
    fragments: operand fragments in flight (2 = double-buffered).
    epilogue: results leave through shared memory (16-byte rows) or straight from registers.
    sites: where a unified kernel issues copies: after each wait, or once a loop body.
    delay: products of a loop body that stand before its copies: one a k-step, in hybrid sums one a slice and k-step.
    batches: how many the cp.async copies of a slot are issued in, spread over the tensor instructions up to the next wait.
    hold: 1 to keep fragments of an operand that stays the same in the main loop in registers.
    prefetch: 1 to load the first fragments of the next slot before the last product of this one.
    unroll: steps of the main loop in one body; a multiple of the stages makes the slots of its rings known.
    promote: contraction elements per f16 partial; 0 takes the policy's max_k.
    promotion: how a partial goes into the f32 sum: `convert` and add, or a product with an `identity`; `auto` takes the target's.
    partials: what order the products of a partial have (`split-accumulation`); `auto` takes what registers suffice for.
    order: of tiles whose loops differ in length: as the grid numbers them, `heavy` or `light` ones first; `auto`: `order-tiles`.
    masks: where iterations need them: `loops` of their own, or a `guard` in one loop (`split-masks`).
    opt_level: of ptxas. spills: bytes that it may spill (stored and loaded, of each thread); more are an error.
    lazy: powers of two by which a running maximum may be passed before sums are rescaled; 0 rescales always.
    stagger: 1 to compute a product's operand k-step by k-step, each under the product of the step before (`stagger-products`).
    overlap: 1 to put a product with a computed operand under the next iteration, where roles are apart (`overlap-products`).
    turns: 1 to let two halves of the warps take turns at products, where roles are apart (`take-turns`).
    carry: 1 to leave the products of an iteration of a main loop in flight while the next one begins, where roles are apart and
    K is known (`carry-products`).
    repeat: 1 where warps beside each other each compute all that a computed operand is made of, for their own columns of the
    product with it (`tile_exchange`); 0 where each computes a part, and the parts are exchanged.
    seldom: 1 to look for a row's lazy maximum only where some lane has passed it (`reduce-seldom`), not on `wgmma`.
    late_stages: slots of the ring of what is multiplied by a computed operand; 0 for `stages`.
    reuse: 1 to multiply by one tile twice where both of two products in a row have the same operand b: it is copied once.
    ahead: tensor instructions between an `ldmatrix` and the first that takes what it loads, which wants `opt_level` = 1
    (`place-loads`); 0 leaves it to ptxas.
    exponentials: weights of a running maximum are powers of 2, their scale folded into the exponent, of e, or two powers of 2
    at a time in f16 (`halves`). polynomial: every how-manieth weight is a polynomial; 0 for none (`approximate-exponentials`).
    min_ctas: CTAs that an SM has room for at once: they share its registers, shared memory and threads, of roles as well.
    store_columns: columns of a result that are staged in shared memory at once, two such parts at a time; 0 for the whole tile.
    """

    block: tuple[int, ...] = (128, 128, 64)
    warps: tuple[int, ...] = (2, 2)
    atom: str = "m16n8k16"
    stages: int = 3
    transport: str = "auto"
    roles: str = "unified"
    producer_warps: int = 4
    producer_regs: int = 0
    consumer_regs: int = 0
    persistent: int = 0
    consumers: str = COOPERATIVE
    splits: int = 0
    split_k: int = 1
    share: str = "none"
    evict: str = "none"
    raster: int = 8
    fragments: int = 2
    epilogue: str = "shared"
    sites: str = "eager"
    delay: int = 1
    batches: int = 1
    prefetch: int = 1
    hold: int = 0
    unroll: int = 1
    promote: int = 0
    promotion: str = "auto"
    partials: str = "auto"
    order: str = "auto"
    masks: str = "loops"
    opt_level: int = 3
    spills: int = 0
    stagger: int = 0
    lazy: int = 0
    overlap: int = 0
    turns: int = 0
    carry: int = 0
    ahead: int = 0
    exponentials: str = "exp2"
    polynomial: int = 0
    repeat: int = 0
    seldom: int = 0
    late_stages: int = 0
    reuse: int = 0
    min_ctas: int = 1
    store_columns: int = 0

    def problem(self) -> str | None:
        """One sentence about what is wrong with this schedule on any target, or None."""
        alone = self.atom == WARPGROUP_ATOM and self.warps[1:] == (1,)
        columns = ATOM_COLUMNS if alone else 16
        if len(self.block) != 3 or any(b < 16 or b % s for b, s in zip(self.block, (16, columns, 16), strict=True)):
            which = "" if columns == 16 else f"; N may be one of {columns}"
            return f"block is three positive multiples of 16 (M, N, K), got {list(self.block)}{which}"
        if len(self.warps) != 2 or any(w < 1 for w in self.warps):
            return f"warps is a grid of two positive numbers, got {list(self.warps)}"
        for axis, step in ((0, 16), (1, columns))[: 1 if self.repeat else 2]:
            if self.block[axis] % (self.warps[axis] * step):
                return (
                    f"block[{axis}] = {self.block[axis]} does not split over {self.warps[axis]} warps "
                    f"in multiples of {step}"
                )
        for name, words in CHOICES.items():
            if getattr(self, name) not in words:
                return f"{name} is one of {', '.join(words)}, got '{getattr(self, name)}'"
        for name, (least, most) in RANGES.items():
            if not least <= getattr(self, name) <= most:
                return f"{name} is from {least} to {most}, got {getattr(self, name)}"
        for name in ("producer_regs", "consumer_regs"):
            registers = getattr(self, name)
            if registers and (registers % 8 or not 24 <= registers <= 256):
                return f"{name} is 0 or a multiple of 8 from 24 to 256, got {registers}"
            if registers and self.roles == "unified":
                return f"{name} belongs to roles = specialized"
        if self.atom == WARPGROUP_ATOM and self.transport not in ("auto", "tma"):
            return f"atom = {WARPGROUP_ATOM} reads what TMA has written, and transport is {self.transport}"
        if self.atom == WARPGROUP_ATOM and (self.warps[0] % 4 or self.block[0] != 16 * self.warps[0]):
            return (
                f"atom = {WARPGROUP_ATOM} wants warps in fours along M and 16 rows for each, "
                f"got {self.block[0]} rows for {self.warps[0]} warps"
            )
        if self.atom == WARPGROUP_ATOM and self.stagger:
            return f"atom = {WARPGROUP_ATOM} reads registers that nothing may write meanwhile; use overlap, not stagger"
        if self.evict != "none" and self.transport == "plain":
            return f"evict = {self.evict} belongs to asynchronous copies, and transport is plain; use cp_async or tma"
        if self.overlap and self.roles == "unified":
            return "overlap belongs to roles = specialized"
        if self.carry and (self.roles == "unified" or self.atom != WARPGROUP_ATOM or self.stages < 2):
            return f"carry is for products of warpgroups and two slots: atom = {WARPGROUP_ATOM}, roles = specialized, stages >= 2"
        if self.reuse and (self.overlap or self.late_stages):
            return "reuse leaves no tile of its own to a second product: it wants overlap = 0 and late_stages = 0"
        if self.split_k > 1 and (problem := self._problem_with_split()) is not None:
            return problem
        if self.share != "none" and (problem := self._problem_with_sharing()) is not None:
            return problem
        if self.consumers == PINGPONG and (problem := self._problem_with_pingpong()) is not None:
            return problem
        unit = 2 * (WARPGROUP_WARPS if self.atom == WARPGROUP_ATOM else 1)
        halves = self.warps[0] % unit == 0 if self.warps[1] == 1 else self.warps[1] == 2 and self.repeat
        if self.turns and not (halves and self.roles == "specialized" and not self.stagger and self.stages >= 2):
            return (
                "turns are for two halves of warps that exchange nothing, and for two slots or more: roles = specialized,"
                f" stagger = 0, warps = (multiple of {unit}, 1), or (any, 2) with repeat = 1, stages of at least 2"
            )
        if self.seldom and (not self.lazy or self.atom == WARPGROUP_ATOM):
            return f"seldom belongs to lazy maxima, and not to atom = {WARPGROUP_ATOM}, whose products a branch would serialise"
        if self.promote % 16 or self.promote < 0:
            return f"promote is a multiple of 16 elements, got {self.promote}"
        if self.cta_threads > 1024:
            return f"a CTA has at most 32 warps, got {self.cta_threads // 32}"
        return None

    def _problem_with_split(self) -> str | None:
        """What `split_k` wants of the other fields, or None."""
        if self.split_k & (self.split_k - 1):
            return f"split_k is 1, 2, 4 or 8, got {self.split_k}"
        if self.warps[1] > 1 or self.block[1] % (16 * self.split_k):
            return (
                f"split_k = {self.split_k} gives each CTA a part of the columns, in multiples of 16, where one warp holds a "
                f"whole row; got {self.block[1]} columns for {self.warps[1]} warps"
            )
        if self.persistent:
            return "split_k is for tiles that fill less than one wave: it wants persistent = 0"
        return None

    def _problem_with_sharing(self) -> str | None:
        """What `share` wants of the other fields, or None."""
        size = self.block[0 if self.share == "a" else 1]
        if size % 32 or self.block[2] % 32:
            return f"share = {self.share} copies halves of tiles, of multiples of 16; got {size} x {self.block[2]}"
        if self.roles == "unified" or self.transport not in ("auto", "tma"):
            return f"share = {self.share} is multicast by TMA, by a role that fills only: roles = specialized, transport = tma"
        if self.split_k > 1:
            return "share and split_k each make a cluster of their own: set one of them"
        return None

    def _problem_with_pingpong(self) -> str | None:
        """What `consumers = pingpong` wants of the other fields, or None."""
        if self.roles == "unified" or not self.persistent:
            return (
                f"consumers = {PINGPONG} wants a producer, and a loop over tiles: roles = specialized, persistent = 1"
            )
        if self.turns:
            return f"turns and consumers = {PINGPONG} are two ways to take turns: set one of them"
        return None

    @property
    def cluster(self) -> int:
        """CTAs of a cluster."""
        return self.split_k if self.share == "none" else SHARING_CTAS

    @property
    def fragment_atom(self) -> str:
        """The atom that says how fragments lie in registers, where operands have 16 bits."""
        return self.fragment_atom_of(16)

    def fragment_atom_of(self, bits: int) -> str:
        """The same where an element of the operands has so many bits."""
        if self.atom != WARPGROUP_ATOM:
            return self.atom
        return EIGHT_BIT_SHARE if bits == 8 else WARPGROUP_SHARE

    @property
    def groups(self) -> int:
        """How many times its grid of warps a CTA has."""
        return 2 if self.consumers == PINGPONG else 1

    @property
    def threads(self) -> int:
        """Threads of the math warps."""
        return 32 * self.warps[0] * self.warps[1] * self.groups

    @property
    def cta_threads(self) -> int:
        """Threads of all roles."""
        return self.threads + (32 * self.producer_warps if self.roles == "specialized" else 0)


SCHEDULE_FIELDS: dict[str, object] = {f.name: f.default for f in fields(Schedule)}
"""Field name -> default, in declaration order."""
