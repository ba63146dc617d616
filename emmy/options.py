"""What a compilation depends on beside its text. Imports no xDSL, so that a cached compilation needs none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from emmy.errors import EmmyError
from emmy.parameters import check_fields
from emmy.pipelines import Step
from emmy.variants import PREFERRED


@dataclass(frozen=True)
class Options:
    """What a compilation depends on beside the text.

    target: a name of `emmy.targets`. accumulate: the policy of products that state none, as the text spells it
    (`f32`, `hybrid, max_k = 64`). schedule: fields of `emmy.schedules.Schedule` that replace the table's choice.
    opt_level: of ptxas, None for the schedule's. verify_each: verify after every pass.
    entry: the only function to compile, or None. variants: names of `emmy.variants` that kernels of level 1 are lowered to.
    Raises `EmmyError` for an opt_level that ptxas does not have, and for
    fields that no schedule has.
    """

    target: str
    accumulate: str | None = None
    schedule: tuple[tuple[str, Any], ...] = ()
    opt_level: int | None = None
    verify_each: bool = False
    entry: str | None = None
    variants: tuple[str, ...] = (PREFERRED,)

    def __post_init__(self) -> None:
        if self.opt_level not in (None, 0, 1, 2, 3):
            raise EmmyError(f"optimisation level {self.opt_level} does not exist; ptxas has 0 to 3")
        check_fields(dict(self.schedule))

    def pass_text(self, step: Step) -> str:
        """The step's pass with these options."""
        if step.name == "lower-tensor-op" and self.variants != (PREFERRED,):
            return f'lower-tensor-op{{variants="{",".join(self.variants)}"}}'
        if step.name != "assign-schedule" or not self.schedule:
            return step.spec
        return f"assign-schedule{{{' '.join(schedule_options(dict(self.schedule)))}}}"


GRIDS = {"block": ("block_m", "block_n", "block_k"), "warps": ("warps_m", "warps_n")}


def schedule_options(fields: Mapping[str, Any]) -> list[str]:
    """Schedule fields, checked ones, as options of `assign-schedule`: `block_m=128`, `transport="cp_async"`."""
    options: list[str] = []
    for name, value in fields.items():
        if name in GRIDS:
            options += [f"{option}={size}" for option, size in zip(GRIDS[name], value, strict=True)]
        else:
            options.append(f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}")
    return options
