"""Emmy: a multi-level GPU kernel compiler, textual IR to PTX, every level executable.

Importing this package is light: xDSL is loaded when something is compiled, the CUDA bindings when something runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from emmy.compiler import CompiledModule, compile
    from emmy.module import Module, load

__all__ = ["CompiledModule", "Module", "__version__", "compile", "load"]


def __getattr__(name: str) -> Any:
    if name in ("compile", "CompiledModule"):
        from emmy import compiler

        return getattr(compiler, name)
    if name in ("load", "Module"):
        from emmy import module

        return getattr(module, name)
    raise AttributeError(f"module 'emmy' has no attribute '{name}'")
