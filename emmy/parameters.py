"""What callers from Python may pass: the kind of each parameter is checked before anything is done with it.

The type hints say the same; these sentences are for callers that no type checker reads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from emmy.errors import EmmyError

KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "path": ((str, os.PathLike), "a path"),
    "source": ((str, os.PathLike), "a path, or the text itself"),
    "word": ((str,), "a string"),
    "number": ((int,), "a whole number"),
    "flag": ((bool,), "True or False"),
    "fields": ((Mapping,), "a mapping of fields, or a Schedule"),
}
"""Kind -> the types that it may have, and what it is called."""


def check_kind(name: str, value: Any, kind: str, optional: bool = False) -> None:
    """`EmmyError` unless a parameter has the kind, or is None and may be. True and False are no numbers."""
    types, called = KINDS[kind]
    if (value is None and optional) or (
        isinstance(value, types) and not (kind == "number" and isinstance(value, bool))
    ):
        return
    raise EmmyError(f"{name} is {called}{' or None' if optional else ''}, got {describe(value)}")


def check_words(name: str, value: Any) -> None:
    """`EmmyError` unless a parameter is a list or tuple of strings."""
    words: list[Any] = list(value) if isinstance(value, list | tuple) else [None]  # pyright: ignore[reportUnknownArgumentType]
    if not all(isinstance(word, str) for word in words):
        raise EmmyError(f"{name} is a list of strings, got {describe(value)}")


def describe(value: Any) -> str:
    """A wrong value in a sentence: what it is, unless that is long."""
    text = repr(value)
    return text if len(text) <= 40 and not text.startswith("<") else f"a {type(value).__name__}"


def check_fields(fields: Mapping[Any, Any]) -> None:
    """`EmmyError` for schedule fields that do not exist, or have no value that the field may have on any target.

    0 and "" are no way of leaving a field to the table (as they are in the options of `assign-schedule`): leave it out.
    """
    from emmy.atoms import ATOMS
    from emmy.schedules import CHOICES, RANGES, SCHEDULE_FIELDS, WARPGROUP_ATOM

    atoms = (*dict.fromkeys(atom.name for atom in ATOMS), WARPGROUP_ATOM)
    for name, value in fields.items():
        if name not in SCHEDULE_FIELDS:
            known = ", ".join(SCHEDULE_FIELDS)
            called = f"'{name}'" if isinstance(name, str) else describe(name)
            raise EmmyError(f"a schedule has no field {called}; its fields are {known}")
        default = SCHEDULE_FIELDS[name]
        field = f"the schedule's {name}"
        if isinstance(default, tuple):
            _check_grid(field, value, len(default))  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(default, str):
            check_kind(field, value, "word")
            choices = atoms if name == "atom" else CHOICES[name]
            if value not in choices:
                raise EmmyError(f"{field} is one of {', '.join(choices)}, got '{value}'")
        else:
            check_kind(field, value, "number")
            least, most = RANGES.get(name, (0, 1 << 31))
            if not least <= value <= most:
                raise EmmyError(f"{field} is from {least} to {most}, got {value}")


def _check_grid(field: str, value: Any, length: int) -> None:
    sizes: list[Any] = list(value) if isinstance(value, list | tuple) else []  # pyright: ignore[reportUnknownArgumentType]
    whole = all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes)
    if len(sizes) != length or not whole:
        raise EmmyError(f"{field} is {length} positive numbers, got {describe(value)}")
