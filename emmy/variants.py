"""The variants of a kernel: how the tensors of a call may lie in memory, from what is quickest to copy to what is always legal.

A kernel that is lowered from level 1 exists in several variants, which compute the same; a call takes the first that its
tensors fit. What a variant wants stands in its views (`!tile.view<.., strides [..], align ..>`), and from there in the launch
metadata; this table is what the views are made from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from emmy.errors import EmmyError
from emmy.schedules import Schedule

Layout = Literal["dense", "rows", "any"]


@dataclass(frozen=True)
class Variant:
    """How tensors lie. `layout`: `dense` (row-major without gaps), `rows` (rows without gaps, all other strides as they are)
    or `any`. `align`: bytes that divide addresses, rows and the other strides; 0 for what each size of the text proves, and
    16 for `?` rows. Elements wider than `align` count as aligned to their own size. `transposed`: the operands of the product
    (0: A, 1: B) whose columns are without gaps, not their rows: they are read as if the text had them transposed."""

    name: str
    layout: Layout
    align: int
    transposed: tuple[int, ...] = ()


TRANSPOSED: dict[str, tuple[int, ...]] = {"": (), "_ta": (0,), "_tb": (1,), "_tab": (0, 1)}
"""How a variant's name ends, and the operands that it reads transposed."""

VARIANTS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant("dense", "dense", 0),
        *(
            Variant(f"rows{align}{ending}", "rows", align, operands)
            for align in (16, 8, 4, 2)
            for ending, operands in TRANSPOSED.items()
        ),
        Variant("any", "any", 2),
    )
}
"""Variants by name, in the order in which a call tries them: TMA or copies of 16 bytes, then 8, 4, one element."""

PREFERRED = "dense"
"""What is compiled at once; the others when a call needs them, or an artefact is saved."""

VARIANT = "emmy.variant"
"""The attribute of a `tile.kernel` that names its variant; without it, it is the preferred one."""

DENSE_ALIGN = 16
"""Bytes that divide a `?` row of a dense tensor."""

EXPORTED = ("rows16", "any")
EXPORTED_OPEN = ("rows16", "rows16_ta", "rows16_tb", "rows16_tab", "rows8", "rows4", "rows2", "any")
"""What a saved artefact holds beside the preferred variant, for there is no compiler where it is loaded: enough for any call;
and where rows are `?`, so that more calls have unaligned ones, what is quick for these."""


def parse_variants(text: str) -> tuple[str, ...]:
    """`dense,any` or `all`: names of `VARIANTS`, in their order. `EmmyError` for others."""
    names = list(VARIANTS) if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in VARIANTS]
    if unknown or not names:
        if "all" in unknown:
            raise EmmyError("'all' stands alone: it is every variant there is")
        wrong = f"there is no variant '{unknown[0]}'" if unknown else "no variant is named"
        raise EmmyError(f"{wrong}; there are {', '.join(VARIANTS)} and all")
    return tuple(name for name in VARIANTS if name in names)


WIDE_BLOCK, NARROW_BLOCK = (128, 128, 64), (64, 128, 64)
"""The largest tiles of 16-bit operands that are copied by `cp.async`, and element by element: those need registers for what is
on its way."""

MOST_STAGES = 3
"""Of rings that are filled by threads."""


def schedule_of(variant: Variant, schedule: Schedule, hybrid: bool, operand_bits: int = 16) -> Schedule:
    """The schedule of a variant of a product whose preferred kernel has `schedule`, and whose operands so many bits.

    Tensors that are aligned to 16 bytes keep it, for TMA and the widest copies take them with any strides. Others are copied by
    all threads, whose addresses take registers: a smaller tile, one set of warps, and no field that was tuned for TMA.
    """
    if variant.layout == "dense" or variant.align == 16:
        return schedule
    narrow = variant.layout == "any" or variant.align < 4
    rows, columns, depth = NARROW_BLOCK if narrow else WIDE_BLOCK
    largest = rows, columns, depth * 16 // operand_bits
    block = tuple(min(-(-size // 16) * 16, most) for size, most in zip(schedule.block, largest, strict=True))
    return Schedule(
        block=block,
        atom=schedule.fragment_atom_of(operand_bits),
        warps=(2 if block[0] % 32 == 0 else 1, next((n for n in (4, 2) if block[1] % (32 * n) == 0), 1)),
        stages=min(schedule.stages, MOST_STAGES),
        transport="cp_async",
        raster=schedule.raster,
        epilogue=schedule.epilogue,
        delay=2 if hybrid else 1,
        prefetch=0,
        promote=schedule.promote,
        promotion=schedule.promotion,
        partials=schedule.partials,
        opt_level=schedule.opt_level,
    )


@dataclass(frozen=True)
class Lying:
    """A tensor as far as variants go: sizes, strides (elements, those of sizes up to 1 row-major), address if known.
    `single`: its rows have one element in every call, so that no kernel wants anything of them."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int | None
    itemsize: int
    single: bool = False

    def fits(self, variant: Variant, position: int) -> bool:
        """Whether a kernel of this variant takes the tensor as its argument of that position, as far as this table knows."""
        shape, strides = self.shape, self.strides
        if position in variant.transposed:
            if len(shape) < 2:
                return False
            shape, strides = (*shape[:-2], *shape[:-3:-1]), (*strides[:-2], *strides[:-3:-1])
        elif variant.layout == "any" or self.single or 0 in shape:
            return True
        *outer, inner = strides
        align = max(variant.align, self.itemsize)
        counts = [self.address or 0, shape[-1] * self.itemsize, *(stride * self.itemsize for stride in outer)]
        return inner == 1 and not any(count % align for count in counts)


def fitting(tensors: Sequence[Lying]) -> tuple[str, ...]:
    """The variants other than `dense` that all tensors fit, the preferred one first."""
    rest = (variant for variant in VARIANTS.values() if variant.layout != "dense")
    return tuple(v.name for v in rest if all(tensor.fits(v, position) for position, tensor in enumerate(tensors)))
