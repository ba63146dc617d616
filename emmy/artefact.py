"""An *artefact*: a folder with compiled kernels and the JSON that says how to call them, loadable without the compiler.

`launch.json` lists entries (what a user calls) with their arguments, results, checks and launches (`emmy.launch_specs`);
beside it stand the images, `NAME.ptx` and `NAME.cubin`. A launch may hold several kernels, of which a call takes the first
that its arrays fit (`emmy.binding`). This module imports neither xDSL nor CUDA.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from emmy import __version__
from emmy.binding import NOTHING, NoVariant, buffers_of
from emmy.binding import ArrayInfo as ArrayInfo
from emmy.binding import BoundBuffer as BoundBuffer
from emmy.binding import BoundCall as BoundCall
from emmy.binding import BoundLaunch as BoundLaunch
from emmy.binding import BoundTensorMap as BoundTensorMap
from emmy.binding import bind as bind
from emmy.binding import check_alignment as check_alignment
from emmy.emulated_calls import numpy_info as numpy_info
from emmy.emulated_calls import run_on_emulator as run_on_emulator
from emmy.errors import EmmyError
from emmy.launch_specs import DTYPE_NAMES as DTYPE_NAMES
from emmy.launch_specs import DTYPES as DTYPES
from emmy.launch_specs import EMULATED_SMS as EMULATED_SMS
from emmy.launch_specs import ArgumentSpec as ArgumentSpec
from emmy.launch_specs import Array as Array
from emmy.launch_specs import BufferSpec as BufferSpec
from emmy.launch_specs import CheckSpec as CheckSpec
from emmy.launch_specs import EntrySpec as EntrySpec
from emmy.launch_specs import Expression as Expression
from emmy.launch_specs import LaunchSpec as LaunchSpec
from emmy.launch_specs import Shape as Shape
from emmy.launch_specs import TensorMapSpec as TensorMapSpec
from emmy.launch_specs import evaluate as evaluate
from emmy.launch_specs import row_major as row_major
from emmy.variants import EXPORTED, EXPORTED_OPEN, PREFERRED, VARIANTS, Variant

FORMAT = 2
READABLE = (1, FORMAT)
"""Formats of `launch.json`. In format 1 every launch has one kernel, for row-major arguments."""

Supply = Callable[[str], "Artefact"]
"""Compiles the variant of that name of all kernels of an artefact."""


@dataclass(frozen=True)
class Image:
    """One module of kernels. The PTX serves the emulator and the driver's own compiler; the cubin loads as it is."""

    ptx: str | None = None
    cubin: bytes | None = None


@dataclass(frozen=True)
class Artefact:
    """Compiled kernels for one target. `resources` maps kernel names to what the assembler reported.

    `kernels` says, by kernel name, what a report shows beside that: its `image`, the assembler's `opt_level`, the fields
    of its `schedule`, the `reason` for that schedule, a `remark` where a policy could not be followed.
    Nothing in it is needed to run the kernels. `supply`, where there is a compiler, gives variants that are not in it yet.
    """

    target: str
    images: dict[str, Image]
    entries: dict[str, EntrySpec]
    resources: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    kernels: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    supply: Supply | None = field(default=None, compare=False, repr=False)
    supplied: set[str] = field(default_factory=lambda: {PREFERRED}, compare=False, repr=False)
    supplying: threading.Lock = field(default_factory=threading.Lock, compare=False, repr=False)

    def entry(self, name: str) -> EntrySpec:
        """The entry called `name`; `EmmyError` with the names there are, if there is none."""
        if name not in self.entries:
            raise EmmyError(f"the artefact has no entry '{name}'; it has {', '.join(self.entries) or 'none'}")
        return self.entries[name]

    # ---- variants ----------------------------------------------------------------------------------------------------

    @property
    def has_variants(self) -> bool:
        """Whether its kernels come from level 1, so that there may be others that compute the same."""
        return any("variant" in launch for entry in self.entries.values() for launch in entry["launches"])

    def growing(self, supply: Supply) -> Artefact:
        """A copy to which variants can be added, which `supply` compiles."""
        return replace(
            self,
            images=dict(self.images),
            entries=copy.deepcopy(self.entries),
            resources=dict(self.resources),
            kernels=dict(self.kernels),
            supply=supply,
            supplied={PREFERRED},
            supplying=threading.Lock(),
        )

    def bind(
        self,
        entry: str,
        arrays: Sequence[ArrayInfo],
        sms: int = EMULATED_SMS,
        outs: Sequence[ArrayInfo] | None = None,
        unheld: Mapping[str, str] = NOTHING,
    ) -> BoundCall:
        """`emmy.binding.bind`; a variant that is not here yet, and is the best for this call, is compiled first."""
        while True:
            lacking = VARIANTS.keys() - self.supplied if self.supply is not None else frozenset[str]()
            try:
                return bind(self.entry(entry), arrays, sms, outs, lacking, unheld)
            except NoVariant as missing:
                if not missing.variants:
                    raise
                if not self.add_variant(missing.variants[0]) and not VARIANTS[missing.variants[0]].transposed:
                    self.supplied.update(VARIANTS)  # its kernels are for dense tensors only

    def add_variant(self, name: str) -> bool:
        """Have a variant compiled and add its kernels, in the order of preference, to the launches that have it; False if none
        has, or nobody can compile it. What was added before is not added again."""
        with self.supplying:  # two threads want each variant once
            if name in self.supplied or self.supply is None:
                return name in self.supplied
            added = self._merge(self.supply(name), name)
            self.supplied.add(name)
            return added

    def _merge(self, other: Artefact, name: str) -> bool:
        """Take in the kernels of a variant, images before the launches that name them; whether there are any."""
        renamed = {image: f"{image}_{name}" for image in other.images}
        self.images.update({renamed[image]: content for image, content in other.images.items()})
        self.resources.update(other.resources)
        for kernel, notes in other.kernels.items():
            self.kernels.setdefault(kernel, {**notes, "image": renamed[notes["image"]]})
        added = False
        for entry_name, entry in other.entries.items():
            for launch, extra in zip(self.entries[entry_name]["launches"], entry["launches"], strict=True):
                if extra.get("variant") == name:
                    added = True
                    extra = cast(LaunchSpec, {**extra, "image": renamed[extra["image"]]})
                    launch["otherwise"] = sorted([*launch.get("otherwise", []), extra], key=_rank)
        return added

    def _is_useful(self, name: str) -> bool:
        """Whether the sizes that are known let any launch take a kernel of a variant."""
        return any(
            all(_rows_fit(VARIANTS[name], i, buffers[buffer]) for i, buffer in enumerate(buffers_of(launch)))
            for entry in self.entries.values()
            for buffers in (_buffers(entry),)
            for launch in entry["launches"]
        )

    # ---- folders -----------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the folder `path`, replacing an artefact that is there. A reader never sees half of it.

        Where there is a compiler, the variants of `emmy.variants.EXPORTED` are compiled first, so that what is saved takes any
        call; of `EXPORTED_OPEN`, if the rows of an argument are `?`.
        """
        rows = [spec["shape"][-1:] for entry in self.entries.values() for spec in entry["arguments"]]
        open_rows = any(not isinstance(size, int) for row in rows for size in row)
        for name in (EXPORTED_OPEN if open_rows else EXPORTED) if self.supply is not None else ():
            if self._is_useful(name):
                self.add_variant(name)
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
        try:
            names: dict[str, dict[str, str]] = {}
            for name, image in self.images.items():
                names[name] = {}
                if image.ptx is not None:
                    names[name]["ptx"] = f"{name}.ptx"
                    (staging / f"{name}.ptx").write_text(image.ptx)
                if image.cubin is not None:
                    names[name]["cubin"] = f"{name}.cubin"
                    (staging / f"{name}.cubin").write_bytes(image.cubin)
            metadata = {
                "format": FORMAT,
                "emmy": __version__,
                "target": self.target,
                "images": names,
                "entries": self.entries,
                "resources": self.resources,
                "kernels": self.kernels,
            }
            (staging / "launch.json").write_text(json.dumps(metadata, indent=1) + "\n")
            staging.chmod(0o755)
            _replace_folder(staging, path)
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    @staticmethod
    def load(path: str | Path) -> Artefact:
        """Read the folder `path`. `EmmyError` if it is no artefact, or of another format."""
        path = Path(path)
        try:
            metadata = cast("dict[str, Any]", json.loads((path / "launch.json").read_text()))
        except (OSError, ValueError) as error:
            why = str(error.strerror).lower() if isinstance(error, OSError) else error
            raise EmmyError(f"'{path}' is no artefact: launch.json cannot be read ({why})") from error
        found = metadata.get("format") if isinstance(metadata, dict) else None  # pyright: ignore[reportUnnecessaryIsInstance]
        if found not in READABLE:
            readable = " and ".join(map(str, READABLE))
            raise EmmyError(f"the artefact '{path}' has format {found}; this Emmy reads formats {readable}")
        lacking = [name for name in ("target", "images", "entries") if name not in metadata]
        if lacking:
            raise EmmyError(f"'{path}' is no artefact: launch.json has no {lacking[0]}")
        images: dict[str, Image] = {}
        for name, files in cast("dict[str, dict[str, str]]", metadata["images"]).items():
            missing = [file for file in files.values() if not (path / file).is_file()]
            if missing:
                raise EmmyError(f"the artefact '{path}' lacks its file {missing[0]}")
            images[name] = Image(
                ptx=(path / files["ptx"]).read_text() if "ptx" in files else None,
                cubin=(path / files["cubin"]).read_bytes() if "cubin" in files else None,
            )
        return Artefact(
            metadata["target"], images, metadata["entries"], metadata.get("resources", {}), metadata.get("kernels", {})
        )


def _buffers(entry: EntrySpec) -> dict[str, ArgumentSpec | BufferSpec]:
    """Arguments, results and temporaries of an entry by name."""
    specs = (*entry["arguments"], *entry["results"], *entry.get("temporaries", []))
    return {spec["name"]: spec for spec in specs}


def _rows_fit(variant: Variant, position: int, buffer: ArgumentSpec | BufferSpec) -> bool:
    """Whether rows (columns, if transposed) of a launch's buffer may be what a variant wants: `?` sizes may be anything."""
    axis = -2 if position in variant.transposed and len(buffer["shape"]) > 1 else -1
    size, itemsize = buffer["shape"][axis], DTYPES[buffer["dtype"]].itemsize
    if variant.layout != "rows" or not isinstance(size, int) or size == 1:
        return True
    return size * itemsize % max(variant.align, itemsize) == 0


def _rank(launch: LaunchSpec) -> int:
    """The place of a launch's kernel among the variants."""
    return list(VARIANTS).index(launch.get("variant", PREFERRED))


def _replace_folder(staging: Path, path: Path) -> None:
    """Move `staging` to `path`. A folder cannot be renamed over a full one, so an old one steps aside first."""
    aside = staging.with_name(staging.name + "-old")
    while True:
        try:
            os.rename(staging, path)
            break
        except OSError:
            if not path.is_dir():
                raise
            try:
                os.rename(path, aside)
            except FileNotFoundError:  # another writer moved it; try again
                continue
            shutil.rmtree(aside, ignore_errors=True)
