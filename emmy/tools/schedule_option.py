"""`--schedule "block = [64, 64, 64], warps = [4, 1], stages = 4"`: fields of a schedule on the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from emmy.compiler import CompiledModule
from emmy.errors import EmmyError

FIELD = re.compile(r"\s*(\w+)\s*=\s*(\[[^\]]*\]|\([^)]*\)|[-\w]+)\s*(?:,|$)")
"""One `name = value`: a grid in brackets or parentheses, a number or a word; with the comma after it."""

WRAPPING = re.compile(r"(?:emmy\.schedule\s*=\s*)?(?:#tile\.)?(?:schedule\s*)?<(.*)>", re.DOTALL)
"""What stands around the fields where the IR prints a schedule, so that it can be pasted as it is."""

PINNED = ("pinned by the text", "given by the text")
"""How the reasons of schedules begin that no option replaces (`emmy.explain`)."""


def parse_schedule(text: str | None) -> dict[str, Any] | None:
    """The fields, None for no option. `EmmyError` for what is no list of them; `compile` checks names and values."""
    if text is None:
        return None
    wrapped = WRAPPING.fullmatch(text.strip())
    rest = (wrapped[1] if wrapped else text).strip()
    fields: dict[str, Any] = {}
    while rest:
        match = FIELD.match(rest)
        if match is None:
            raise EmmyError(f"--schedule cannot read '{rest}'; write for example block = [64, 64, 64], stages = 4")
        name, value = match.groups()
        if name in fields:
            raise EmmyError(f"--schedule gives the field '{name}' twice")
        fields[name] = _value(value)
        rest = rest[match.end() :].strip()
    return fields


def _value(text: str) -> Any:
    """A grid as a tuple, a number, or the word itself."""
    if text[0] in "[(":
        return tuple(_value(part.strip()) for part in text[1:-1].split(",")) if text[1:-1].strip() else ()
    return int(text) if re.fullmatch(r"-?[0-9]+", text) else text


def schedule_remarks(module: CompiledModule, fields: Mapping[str, Any] | None) -> list[str]:
    """A line for each kernel that has another schedule than the option asks for, because its text has one."""
    remarks: list[str] = []
    for name, kernel in module.portable_artefact.kernels.items():
        reason = kernel.get("reason", "")
        if fields and reason.startswith(PINNED):
            remarks.append(f"{name}: its schedule is {reason.partition(';')[0]}, so --schedule changes nothing there")
    return remarks
