"""Inputs for `emmy run` and `emmy check`: sizes for `?` dimensions and random arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from emmy.artefact import DTYPES, Array, EntrySpec, evaluate
from emmy.errors import EmmyError

DEFAULT_SIZE = 256
"""What a `?` dimension becomes that neither the command line nor another dimension determines."""

INTEGER_MAGNITUDE = 2
"""Integer data lies in -2..2, so that sums of products stay exact in f16 for every K of practical size."""

Sizes = dict[str, list[int | None]]


def parse_shapes(texts: Sequence[str], entry: EntrySpec) -> dict[str, tuple[int, ...]]:
    """`["x=512x3840"]` as {"x": (512, 3840)}; `EmmyError` for anything that does not fit the entry's arguments."""
    ranks = {argument["name"]: len(argument["shape"]) for argument in entry["arguments"]}
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, sizes = text.partition("=")
        if name not in ranks:
            raise EmmyError(f"--shape {text}: there is no argument '{name}'; there are {', '.join(ranks) or 'none'}")
        if name in shapes:
            raise EmmyError(f"--shape {text}: the shape of '{name}' is given twice")
        parts = sizes.split("x")
        if not all(part.isdecimal() for part in parts):
            raise EmmyError(f"--shape {text}: sizes are numbers, as in {name}={'x'.join(['256'] * ranks[name])}")
        if len(parts) != ranks[name]:
            raise EmmyError(f"--shape {text}: '{name}' has {ranks[name]} dimensions, got {len(parts)}")
        shapes[name] = tuple(int(part) for part in parts)
    return shapes


def resolve_shapes(
    entry: EntrySpec, given: Mapping[str, tuple[int, ...]], default: int = DEFAULT_SIZE
) -> dict[str, tuple[int, ...]]:
    """A shape for every argument: `given` ones, static sizes, sizes that the entry's checks tie to those, `default`."""
    sizes: Sizes = {}
    for argument in entry["arguments"]:
        name = argument["name"]
        static = [size if isinstance(size, int) else None for size in argument["shape"]]
        chosen = given.get(name)
        if chosen is not None and any(s not in (None, c) for s, c in zip(static, chosen, strict=True)):
            wanted = "x".join("?" if s is None else str(s) for s in static)
            raise EmmyError(f"--shape {name}={'x'.join(map(str, chosen))}: the function takes {wanted}")
        sizes[name] = list(chosen) if chosen is not None else static
    _propagate(entry, sizes)
    for shape in sizes.values():
        for axis, size in enumerate(shape):
            if size is None:
                shape[axis] = default
                _propagate(entry, sizes)
    for check in entry.get("checks", []):
        found, wanted = _value(check["value"], sizes), _value(check.get("equals", check["value"]), sizes)
        if None not in (found, wanted) and found != wanted:
            raise EmmyError(f"these shapes do not fit each other ({found} and {wanted}): {check['message']}")
    return {name: tuple(size for size in shape if size is not None) for name, shape in sizes.items()}


def _propagate(entry: EntrySpec, sizes: Sizes) -> None:
    """Give a dimension the size that an `equals` check demands, until nothing changes."""
    equal: list[tuple[Any, Any]] = [
        (check["value"], check["equals"]) for check in entry.get("checks", []) if "equals" in check
    ]
    changed = True
    while changed:
        changed = False
        for pair in equal:
            for unknown, known in (pair, pair[::-1]):
                value = _value(known, sizes)
                if value is not None and _is_open(unknown, sizes):
                    sizes[unknown[1]][unknown[2]] = value
                    changed = True


def _is_open(expression: Any, sizes: Sizes) -> bool:
    return not isinstance(expression, int) and expression[0] == "dim" and sizes[expression[1]][expression[2]] is None


def _value(expression: Any, sizes: Sizes) -> int | None:
    if isinstance(expression, int):
        return expression
    return sizes[str(expression[1])][int(expression[2])] if expression[0] == "dim" else None


def random_arrays(entry: EntrySpec, shapes: Mapping[str, tuple[int, ...]], seed: int, kind: str) -> list[Array]:
    """An array for every argument: `normal` (standard normal, rounded to the dtype) or `integers` (-2..2)."""
    if seed < 0:
        raise EmmyError(f"--random takes a seed that is 0 or more, got {seed}")
    generator = np.random.default_rng(seed)
    arrays: list[Array] = []
    for argument in entry["arguments"]:
        shape, dtype = shapes[argument["name"]], DTYPES[argument["dtype"]]
        if prod(shape) * np.dtype(np.float32).itemsize > memory_bytes():  # else the system might end the process
            text = "x".join(map(str, shape))
            raise EmmyError(f"argument '{argument['name']}' of {text} does not fit into this machine's memory")
        if kind == "integers" or argument["dtype"] in ("i8", "i32"):
            data = generator.integers(-INTEGER_MAGNITUDE, INTEGER_MAGNITUDE + 1, shape)
        else:
            data = generator.standard_normal(shape, dtype=np.float32)
        arrays.append(data.astype(dtype))
    return arrays


def memory_bytes() -> int:
    """The physical memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def flops(entry: EntrySpec, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Floating-point operations of the entry's products, 0 if it does not say."""
    expression = entry.get("work", {}).get("flops", 0)
    return evaluate(expression, dict(shapes), {})


def choose_entry(names: Sequence[str], wanted: str | None) -> str:
    """The function to run: `wanted`, or the only one."""
    if wanted is not None:
        if wanted not in names:
            raise EmmyError(f"the module has no function '{wanted}'; it has {', '.join(names) or 'none'}")
        return wanted
    if not names:
        raise EmmyError("the module has no function to call")
    if len(names) > 1:
        raise EmmyError(f"the module has several functions; choose one with --entry: {', '.join(names)}")
    return names[0]
