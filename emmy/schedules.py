"""A schedule: every decision about one kernel that changes its speed and not its meaning. Plain data.

It stands in the IR as `#tile.schedule<...>`; the fields, their defaults and what they may be are this file's table.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

TRANSPORTS = ("auto", "cp_async", "plain", "tma")
ROLES = ("unified", "specialized")
EPILOGUES = ("shared", "direct")
SITES = ("eager", "first")

CHOICES: dict[str, tuple[str, ...]] = {
    "transport": TRANSPORTS,
    "roles": ROLES,
    "epilogue": EPILOGUES,
    "sites": SITES,
}
"""Fields that hold one word, and the words."""


@dataclass(frozen=True)
class Schedule:
    """One kernel's schedule.

    block: CTA tile (M, N, K) in elements. warps: warp grid (M, N) over the CTA tile. atom: tensor-core shape.
    stages: slots of the operand ring. transport: how global tiles reach shared memory.
    roles: one set of warps, or specialised ones. raster: group size of M tiles in CTA order (1 = row-major).
    fragments: operand fragments in flight (2 = double-buffered).
    epilogue: results leave through shared memory (16-byte rows) or straight from registers.
    sites: where a unified kernel issues copies: after each wait, or once a loop body.
    promote: contraction elements per f16 partial; 0 takes the policy's max_k. opt_level: of ptxas.
    """

    block: tuple[int, ...] = (128, 128, 64)
    warps: tuple[int, ...] = (2, 2)
    atom: str = "m16n8k16"
    stages: int = 3
    transport: str = "auto"
    roles: str = "unified"
    raster: int = 8
    fragments: int = 2
    epilogue: str = "shared"
    sites: str = "eager"
    promote: int = 0
    opt_level: int = 3

    def problem(self) -> str | None:
        """One sentence about what is wrong with this schedule on any target, or None."""
        if len(self.block) != 3 or any(b < 16 or b % 16 for b in self.block):
            return f"block is three positive multiples of 16 (M, N, K), got {list(self.block)}"
        if len(self.warps) != 2 or any(w < 1 for w in self.warps):
            return f"warps is a grid of two positive numbers, got {list(self.warps)}"
        for axis, step in ((0, 16), (1, 16)):
            if self.block[axis] % (self.warps[axis] * step):
                return (
                    f"block[{axis}] = {self.block[axis]} does not split over {self.warps[axis]} warps "
                    f"in multiples of {step}"
                )
        for name, words in CHOICES.items():
            if getattr(self, name) not in words:
                return f"{name} is one of {', '.join(words)}, got '{getattr(self, name)}'"
        for name, least, most in (("stages", 1, 16), ("raster", 1, 1024), ("fragments", 1, 2), ("opt_level", 0, 3)):
            if not least <= getattr(self, name) <= most:
                return f"{name} is from {least} to {most}, got {getattr(self, name)}"
        if self.promote % 16 or self.promote < 0:
            return f"promote is a multiple of 16 elements, got {self.promote}"
        if self.warps[0] * self.warps[1] * 32 > 1024:
            return f"a CTA has at most 32 warps, got {self.warps[0] * self.warps[1]}"
        return None

    @property
    def threads(self) -> int:
        """Threads of the math warps."""
        return 32 * self.warps[0] * self.warps[1]


SCHEDULE_FIELDS: dict[str, object] = {f.name: f.default for f in fields(Schedule)}
"""Field name -> default, in declaration order."""
