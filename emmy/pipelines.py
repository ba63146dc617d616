"""The default way from level 1 to level 4, as a table. Every row is a pass that can be run alone with `emmy-opt`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emmy.errors import EmmyError

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

LEVELS = ("tensor_op", "tile", "level3", "ptx")
"""The levels, from whole tensors to one thread."""


@dataclass(frozen=True)
class Step:
    """One pass of a pipeline: the level of the module after it, the pass and its options as `emmy-opt -p` takes them.

    `needs`: operations one of which must be present for the pass to have work, where input may begin below level 1;
    empty if it always runs.
    """

    level: str
    spec: str
    needs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The pass's name without its options."""
        return self.spec.partition("{")[0]


PROTOCOL = ("async_copy.acquire", "async_copy.wait", "async_copy.commit", "async_copy.release", "async_copy.drain")

DEFAULT: tuple[Step, ...] = (
    Step("tensor_op", "assign-schedule", ("tensor_op.matmul",)),
    Step("tile", "lower-tensor-op", ("tensor_op.matmul", "tensor_op.map", "tensor_op.cast")),
    Step("tile", "split-k", ("tile.dot",)),
    Step("tile", "persistent-grid", ("tile.grid",)),
    Step("tile", "share-operands", ("tile.dot",)),
    Step("tile", "order-tiles", ("tile.dot",)),
    Step("level3", "lower-tile", ("tile.load", "tile.store")),
    Step("level3", "split-masks", ("mma.coord",)),
    Step("level3", "split-accumulation", ("mma.mma",)),
    Step("level3", "reduce-seldom", ("mma.reduce",)),
    Step("level3", "skip-unit-factors", ("mma.map",)),
    Step("level3", "stagger-products", ("mma.convert",)),
    Step("level3", "overlap-products", ("mma.convert",)),
    Step("level3", "take-turns", ("mma.convert",)),
    Step("level3", "double-buffer-fragments", ("mma.mma",)),
    Step("level3", "issue-products", ("mma.mma",)),
    Step("level3", "carry-products", ("mma.issue",)),
    Step("level3", "alternate-tiles", ("async_copy.consumer",)),
    Step("level3", "verify-pipelines", PROTOCOL),
    Step("level3", "place-roles", ("async_copy.producer", "async_copy.consumer")),
    Step("level3", "lower-transport{kind=auto}", PROTOCOL),
    Step("level3", "delay-copies", ("async_copy.commit_group", "async_copy.elect")),
    Step("level3", "prefetch-fragments", ("async_copy.barrier", "async_copy.wait_full")),
    Step("level3", "allocate-shared", ("async_copy.pipeline",)),
    Step("level3", "lower-raster", ("tile.grid",)),
    Step("level3", "canonicalize", ("tile.kernel",)),
    Step("level3", "cse", ("tile.kernel",)),
    Step("level3", "unroll-loops", ("async_copy.slot",)),
    Step("ptx", "lower-to-ptx", ("tile.kernel",)),
    Step("ptx", "spread-copies", ("ptx.cp_async_commit_group",)),
    Step("ptx", "approximate-exponentials", ("ptx.kernel",)),
    Step("ptx", "place-loads", ("ptx.kernel",)),
)
"""Options named `target` are filled in by whoever runs the pipeline; everything else is in the schedule."""

PIPELINES: dict[str, tuple[Step, ...]] = {name: DEFAULT for name in ("sm_80", "sm_89", "sm_90a", "sm_120a")}
"""Target name -> its pipeline."""


def pipeline_for(target: str) -> tuple[Step, ...]:
    """The default pipeline of a target; `EmmyError` if there is none."""
    if target not in PIPELINES:
        raise EmmyError(f"there is no pipeline for target '{target}'; there are {', '.join(PIPELINES)}")
    return PIPELINES[target]


def has_work(step: Step, module: ModuleOp) -> bool:
    """Whether the module holds an op that `step` is for."""
    return not step.needs or any(op.name in step.needs for op in module.walk())


def level_of(module: ModuleOp) -> str:
    """The highest level that any part of the module is at: what must be lowered first."""
    names = {op.name for op in module.walk()}
    dialects = {name.partition(".")[0] for name in names}
    if "tensor_op" in dialects:
        return "tensor_op"
    if names & {"tile.load", "tile.store", "tile.dot", "tile.map"}:
        return "tile"
    if "tile.kernel" in names:
        return "level3"
    return "ptx" if "ptx.kernel" in names else "tensor_op"
