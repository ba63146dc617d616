"""Whole-tensor ops that are programs of their own, one module each: `composite_ops` finds them by listing this folder.

A module defines a `CompositeOp` with everything special to it: its text, its meaning in float64, what it asks of a schedule,
and its tile program. No other file of the compiler names one.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from emmy.dialects.tensor_op import CompositeOp


@cache
def composite_ops() -> tuple[type[CompositeOp], ...]:
    """The ops of this folder's modules, in the order of their names."""
    found: dict[str, type[CompositeOp]] = {}
    for module in pkgutil.iter_modules(__path__):
        for value in vars(importlib.import_module(f"{__name__}.{module.name}")).values():
            if isinstance(value, type) and issubclass(value, CompositeOp) and value is not CompositeOp:
                found[value.name] = value
    return tuple(found[name] for name in sorted(found))
