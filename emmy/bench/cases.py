"""What the benchmark runner is asked to do: `cases.json` in a folder of artefacts, and the data that cases run on.

`cases.json` is a list of objects:

    artefact   folder of the artefact, relative to the file
    entry      the entry to call
    shapes     {argument: [sizes]}
    name       what results are listed under (default: entry and shapes)
    data       "normal" (standard normal, rounded to the dtype) or "integers" (uniform in -magnitude..magnitude)
    magnitude  of integer data (default 4): keep magnitude^2 * K under 2^24 for f32 sums, under 2^11 for f16 ones
    seed       of the data (default 0)
    time       whether to time it (default true)
    expect     a .npy file, relative to cases.json, with the bits that the first result must have (see `save_bits`)
    policy     accumulation policy for the error bound: "f32" (default), "hybrid" or "f16"
    max_k      of the hybrid policy: contraction elements summed in f16 (default 64)
    partial    "f16" if the partial sums of 8-bit operands are f16, which are f32 else
    variant    which of several schedules it is, if there are several (its name ends with it)
    settings   {field: value} that make this variant, for tables
    seeds      how many seeds to study the error over (default 0: none; see `emmy.bench.study`)
    suite      a tag; geometric means are over cases of one tag
    layouts    {argument: {"strides": [..], "offset": n}}, elements, of arguments that are not dense (see `emmy.bench.layouts`)
    task       what is computed, where it takes more than the artefact says of its work (see `emmy.bench.attention`)
    peers      what it is timed beside, where the run names no peers (default: see `emmy.bench.peers`)
    calls      how often one forward pass of the model calls it (default 0: it is of no model)
    against    folder of an artefact that computes the same from the same arguments: timed beside this one, as the peer
               `static`, or by the name of its operands' type if that is another one
"""

from __future__ import annotations

import dataclasses
import fnmatch
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from emmy.artefact import DTYPES, Array, ArrayInfo, Artefact, EntrySpec, evaluate, row_major, run_on_emulator
from emmy.bench.attention_inputs import make_inputs
from emmy.bench.layouts import layout_of
from emmy.errors import EmmyError

DATA_KINDS = ("normal", "integers")
REFUSED = "refused.json"


@dataclass(frozen=True)
class Case:
    """One line of `cases.json`; the module's docstring explains the fields."""

    artefact: str
    entry: str
    shapes: dict[str, list[int]]
    name: str = ""
    data: str = "normal"
    magnitude: int = 4
    seed: int = 0
    time: bool = True
    expect: str | None = None
    policy: str = "f32"
    suite: str | None = None
    max_k: int = 64
    variant: str = ""
    settings: dict[str, Any] | None = None
    seeds: int = 0
    layouts: dict[str, dict[str, Any]] | None = None
    against: str | None = None
    task: dict[str, Any] | None = None
    peers: list[str] | None = None
    calls: int = 0
    partial: str = ""

    @staticmethod
    def parse(fields: Mapping[str, Any]) -> Case:
        """A case from its JSON object. `EmmyError` for unknown or missing fields and unknown kinds of data."""
        known = {field.name for field in dataclasses.fields(Case)}
        unknown = sorted(set(fields) - known)
        missing = sorted({"artefact", "entry", "shapes"} - set(fields))
        if unknown or missing:
            raise EmmyError(f"a case has unknown fields {unknown} and lacks {missing}; the fields are {sorted(known)}")
        case = Case(**fields)
        if case.data not in DATA_KINDS:
            raise EmmyError(f"case '{case.name}' asks for data '{case.data}'; there is {' and '.join(DATA_KINDS)}")
        if not case.name:
            sizes = " ".join("x".join(map(str, shape)) for shape in case.shapes.values())
            return dataclasses.replace(case, name=f"{case.entry} {sizes}")
        return case


def load_cases(directory: Path, only: str | None = None) -> list[Case]:
    """The cases of `directory` whose name matches the shell pattern `only` (or contains it)."""
    try:
        listed = cast("list[dict[str, Any]]", json.loads((directory / "cases.json").read_text()))
    except (OSError, ValueError) as error:
        why = str(error.strerror).lower() if isinstance(error, OSError) else error
        raise EmmyError(f"'{directory}' has no readable cases.json ({why})") from error
    cases = [Case.parse(fields) for fields in listed]
    return [case for case in cases if matches(case, only)]


def matches(case: Case, only: str | None) -> bool:
    """Whether the case's name contains `only` or matches it as a shell pattern; None matches all."""
    return only is None or only in case.name or fnmatch.fnmatch(case.name, only)


def load_refused(directory: Path) -> list[dict[str, Any]]:
    """The variants that could not be compiled, as `write_refused` left them: name, variant, settings, message."""
    path = directory / REFUSED
    return json.loads(path.read_text()) if path.is_file() else []


def write_refused(directory: Path, refused: Sequence[Mapping[str, Any]]) -> None:
    """Write (or, if there are none, remove) the list of variants that could not be compiled."""
    if refused:
        (directory / REFUSED).write_text(json.dumps(list(refused), indent=1) + "\n")
    else:
        (directory / REFUSED).unlink(missing_ok=True)


def shapes_of(case: Case, entry: EntrySpec) -> list[tuple[int, ...]]:
    """The shape of each argument, in the entry's order."""
    names = [argument["name"] for argument in entry["arguments"]]
    if sorted(names) != sorted(case.shapes):
        raise EmmyError(f"case '{case.name}' has shapes for {sorted(case.shapes)}; the entry's arguments are {names}")
    return [tuple(case.shapes[name]) for name in names]


def work_of(case: Case, entry: EntrySpec) -> dict[str, Any]:
    """The entry's `work` with its expressions evaluated for the case's shapes, whether operands have `eight_bits`, and the case's
    task; empty without work and task."""
    shapes = dict(zip([argument["name"] for argument in entry["arguments"]], shapes_of(case, entry), strict=True))
    strides = {name: row_major(shape) for name, shape in shapes.items()}
    work = entry.get("work", {})
    found = {
        key: value if isinstance(value, (str, bool)) else evaluate(value, shapes, strides)
        for key, value in work.items()
    }
    eight_bits = {"eight_bits": True} if DTYPES[entry["arguments"][0]["dtype"]].itemsize == 1 and work else {}
    return found | eight_bits | (case.task or {})


def infos_of(case: Case, entry: EntrySpec) -> list[ArrayInfo]:
    """What `bind` takes, for a call with the case's shapes."""
    return [
        ArrayInfo(argument["dtype"], shape, layout_of(case.layouts, argument["name"], shape).strides)
        for argument, shape in zip(entry["arguments"], shapes_of(case, entry), strict=True)
    ]


def integer_data(shape: Sequence[int], seed: int, position: int, magnitude: int) -> Array:
    """Small integers for the argument at `position`, as int8. RandomState's stream is frozen by NumPy's policy, so
    that a result computed on one machine can be compared bit for bit on another."""
    generator = np.random.RandomState(seed * 1000 + position)
    return generator.randint(-magnitude, magnitude + 1, size=tuple(shape), dtype=np.int8)


def numpy_inputs(case: Case, entry: EntrySpec) -> list[Array]:
    """The distinct elements of the case's arguments, as NumPy arrays (sizes along strides of 0 are 1)."""
    if case.task and case.task.get("inputs"):
        made = make_inputs(case.task, case.shapes, case.seed)
        return [data.astype(DTYPES[a["dtype"]]) for data, a in zip(made, entry["arguments"], strict=True)]
    inputs: list[Array] = []
    for position, (argument, given) in enumerate(zip(entry["arguments"], shapes_of(case, entry), strict=True)):
        shape = layout_of(case.layouts, argument["name"], given).stored_shape(given)
        if case.data == "integers":
            data = integer_data(shape, case.seed, position, case.magnitude)
        else:
            data = np.random.RandomState(case.seed * 1000 + position).standard_normal(shape)
        inputs.append(data.astype(DTYPES[argument["dtype"]]))
    return inputs


def bits(array: Array) -> Array:
    """The array as unsigned integers of its width, so that NaN, -0 and bf16 compare and save as they are."""
    return array.view(f"u{array.dtype.itemsize}")


def save_bits(path: Path, array: Array) -> None:
    """Write what `expect` names."""
    np.save(path, bits(np.ascontiguousarray(array)))


def write_expectation(directory: Path, case: Case) -> None:
    """Run an integer case on the emulator and write the file that its `expect` names."""
    if case.expect is None or case.data != "integers":
        raise EmmyError(f"case '{case.name}' needs integer data and a file to expect")
    artefact = Artefact.load(directory / case.artefact)
    results, _ = run_on_emulator(artefact, case.entry, numpy_inputs(case, artefact.entry(case.entry)))
    save_bits(directory / case.expect, results[0])


def write_cases(directory: Path, cases: Sequence[Case]) -> None:
    """Write `cases.json`, leaving out fields at their defaults."""
    defaults = {field.name: field.default for field in dataclasses.fields(Case)}
    listed = [
        {key: value for key, value in dataclasses.asdict(case).items() if value != defaults[key]} for case in cases
    ]
    (directory / "cases.json").write_text(json.dumps(listed, indent=1) + "\n")
