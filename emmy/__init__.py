"""Emmy: a multi-level GPU kernel compiler, textual IR to PTX, every level executable.

Importing this package is light: xDSL is loaded when something is compiled, the CUDA bindings when something runs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from emmy.compiler import CompiledModule, compile
    from emmy.errors import EmmyError
    from emmy.module import Module, load

__all__ = ["CompiledModule", "EmmyError", "Module", "__version__", "compile", "load"]

_DEFINED_IN = {
    "CompiledModule": "emmy.compiler",
    "compile": "emmy.compiler",
    "EmmyError": "emmy.errors",
    "Module": "emmy.module",
    "load": "emmy.module",
}


def __getattr__(name: str) -> Any:
    if name not in _DEFINED_IN:
        raise AttributeError(f"module 'emmy' has no attribute '{name}'")
    return getattr(importlib.import_module(_DEFINED_IN[name]), name)
