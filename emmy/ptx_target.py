"""The output format `ptx` of emmy-opt: a level-4 module as PTX text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.target import Target

from emmy.targets import DEFAULT_TARGET, get_target


@dataclass(frozen=True)
class PtxTarget(Target):
    """Print the `ptx.kernel` ops of a module as one PTX module for a target of `emmy.targets`."""

    name = "ptx"
    target: str = DEFAULT_TARGET

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        from emmy.lowering.print_ptx import print_ptx

        output.write(print_ptx(module, get_target(self.target).name))
