"""`emmy.compile`: textual IR in, a module out that can be read at every level, assembled, and called.

module = emmy.compile("docs/examples/matmul.mlir", target="sm_90a")
print(module.ir("tile"), module.ptx)
c = module.matmul(a, b)                              # on the GPU if there is one, else on the emulator

A module that was compiled before comes from the cache (`emmy.cache`), without the compiler, and without importing xDSL; it
is lowered when something is read that the cache does not keep.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emmy import cache
from emmy.artefact import Artefact, Image
from emmy.assemble import Assembled, assemble, assemble_in_registers, find_tool, refuse_spills
from emmy.errors import missing_module
from emmy.files import read_text
from emmy.module import Module
from emmy.options import Options
from emmy.parameters import check_kind, check_words
from emmy.targets import DEFAULT_TARGET, TARGETS, get_target
from emmy.variants import PREFERRED, parse_variants

if TYPE_CHECKING:
    from emmy.compilation import Lowered
    from emmy.schedules import Schedule

TEXT_NAME = "<text>"
"""What errors call a module that came as a string."""

VERIFY_VARIABLE = "EMMY_VERIFY_EACH"
"""Set to 1, the environment variable verifies the module after every pass (the tests do)."""


def default_target() -> str:
    """The target of the first GPU of this machine, or `DEFAULT_TARGET`.

    A GPU of a generation without a target of its own gets the latest one whose PTX runs on it.
    """
    from emmy.runtime import is_available, open_device

    if not is_available():
        return DEFAULT_TARGET
    present = open_device(0).compute_capability
    older = [t for t in TARGETS.values() if t.compute_capability <= present and not t.architecture_specific]
    exact = [t for t in TARGETS.values() if t.compute_capability == present]
    candidates = exact or sorted(older, key=lambda t: t.compute_capability)
    return candidates[-1].name if candidates else DEFAULT_TARGET


# ---- the result ------------------------------------------------------------------------------------------------------


class CompiledModule(Module):
    """A module lowered to PTX: `Module`, and its text at every level.

    It has been lowered, or it has the artefact that the cache kept (`assembled`: with cubins).
    """

    def __init__(
        self,
        text: str,
        file: str,
        options: Options,
        lowered: Lowered | None,
        kept: Artefact | None = None,
        assembled: bool = False,
    ):
        self.text = text
        self.file = file
        self.options = options
        self._lowered_now = lowered
        self._ir: dict[str, str] = {}
        if kept is not None:
            self._portable = kept
            if assembled:
                self._assembled_artefact = kept
        self._prepare(options.target)

    # ---- reading it --------------------------------------------------------------------------------------------------

    @property
    def _lowered(self) -> Lowered:
        if self._lowered_now is None:
            from emmy.compilation import compile_text

            self._lowered_now = compile_text(self.text, self.file, self.options)
        return self._lowered_now

    @property
    def steps(self) -> tuple[str, ...]:
        """The passes that ran, in order."""
        return tuple(step.name for step in self._lowered.steps)

    def ir(self, stage: str) -> str:
        """The module's text at a level (`tensor_op`, `tile`, `level3`, `ptx`), after a pass, or as it came (`input`).

        A level's text is that after its last pass. Raises `EmmyError` for a stage that did not occur.
        """
        if stage not in self._ir:
            from emmy.compilation import last_step, lower
            from emmy.ir import print_module

            name = last_step(stage, self._lowered, self.text, self.file)
            self._ir[stage] = print_module(lower(self.text, self.file, self.options, stop_after=name).module)
        return self._ir[stage]

    @cached_property
    def ptx(self) -> str:
        """The PTX text of all kernels."""
        if len(self.images) == 1:
            return self.image_ptx(next(iter(self.images)))
        from emmy.compilation import print_kernels

        return print_kernels(self._lowered.module, self.target)

    @cached_property
    def images(self) -> dict[str, tuple[int, list[str]]]:
        """Image name -> (ptxas optimisation level, its kernels): kernels of one optimisation level share an image."""
        images: dict[str, tuple[int, list[str]]] = {}
        for name, kernel in self._portable.kernels.items():
            images.setdefault(kernel["image"], (kernel["opt_level"], []))[1].append(name)
        return images

    def image_ptx(self, image: str) -> str:
        """The PTX text of one image."""
        return self._portable.images[image].ptx or ""

    @cached_property
    def assembled(self) -> dict[str, Assembled]:
        """Each image assembled; at -O1 what spills at its schedule's level, unless the caller asked for a level.

        Raises `EmmyError` without ptxas, and for ignored instructions and spills, unless a schedule allows them; but variants
        that take what the preferred one does not may spill: they are there so that every call has an answer.
        """
        run = assemble_in_registers if self.options.opt_level is None else assemble
        allow = frozenset({"spills"} if self.options.variants != (PREFERRED,) else ())
        found: dict[str, Assembled] = {}
        for image, (level, kernels) in self.images.items():
            most = {name: self._portable.kernels[name].get("schedule", {}).get("spills", 0) for name in kernels}
            if any(most.values()) and not allow:
                found[image] = assemble(self.image_ptx(image), self.target, level, frozenset({"spills"}))
                refuse_spills(found[image].kernels, most)
            else:
                found[image] = run(self.image_ptx(image), self.target, level, allow)
        return found

    # ---- its artefacts -----------------------------------------------------------------------------------------------

    @cached_property
    def portable_artefact(self) -> Artefact:
        """The artefact with PTX only: what the emulator runs. Grows by the variants that calls need (`Artefact.bind`)."""
        return self._growing(self._portable, assembled=False)

    @cached_property
    def artefact(self) -> Artefact:
        """The artefact, with cubins where ptxas is installed. Grows by the variants that calls need."""
        return self._growing(self._assembled_artefact, assembled=True)

    @cached_property
    def _portable(self) -> Artefact:
        """What was compiled at once, as PTX."""
        from emmy.compilation import portable_artefact

        return self._keep(portable_artefact(self._lowered, self.options), assembled=False)

    @cached_property
    def _assembled_artefact(self) -> Artefact:
        """What was compiled at once, with cubins."""
        portable = self._portable
        if find_tool("ptxas") is None:
            return portable
        images = {name: Image(image.ptx, self.assembled[name].cubin) for name, image in portable.images.items()}
        resources = {
            kernel: asdict(used) for assembled in self.assembled.values() for kernel, used in assembled.kernels.items()
        }
        whole = Artefact(self.target, images, portable.entries, resources, portable.kernels)
        return self._keep(whole, assembled=True)

    def _keep(self, artefact: Artefact, assembled: bool) -> Artefact:
        """Put an artefact into the cache."""
        if cache.is_enabled():
            cache.Cache().put(cache.key_of(self.text, self.options, assembled), artefact)
        return artefact

    def _growing(self, base: Artefact, assembled: bool) -> Artefact:
        """A copy of an artefact to which variants are added when they are needed, if its kernels have any."""
        if self.options.variants != (PREFERRED,) or not base.has_variants:
            return base

        def supply(variant: str) -> Artefact:
            other = _open(self.text, self.file, replace(self.options, variants=(variant,)))
            return other._assembled_artefact if assembled else other._portable

        return base.growing(supply)


# ---- the front door --------------------------------------------------------------------------------------------------


def compile(
    source: str | Path,
    target: str | None = None,
    *,
    accumulate: str | None = None,
    schedule: Mapping[str, Any] | Schedule | None = None,
    dump_ir: str | Path | None = None,
    opt_level: int | None = None,
    verify_each: bool | None = None,
    entry: str | None = None,
    variants: str | Sequence[str] = PREFERRED,
) -> CompiledModule:
    """Lower a module to PTX.

    `source`: a path, or the text itself (a string with a newline or a brace). `target`: a name of `emmy.targets`, by
    default that of the GPU that is present, else sm_90a. `accumulate`: the accumulation policy of products that state
    none. `schedule`: fields that replace the table's choice, where the text pins no schedule. `dump_ir`: a folder that
    receives the text after every pass. `opt_level`: of ptxas. `verify_each`: verify after every pass. `entry`: compile
    this function only. `variants`: names of `emmy.variants`, or `all`, to compile at once; by default the preferred one, to
    which those are added that calls need.
    Raises `EmmyError`, with the place in the text where there is one, for anything that is wrong with these.
    """
    for name, value, kind in (
        ("target", target, "word"),
        ("accumulate", accumulate, "word"),
        ("dump_ir", dump_ir, "path"),
        ("opt_level", opt_level, "number"),
        ("verify_each", verify_each, "flag"),
        ("entry", entry, "word"),
    ):
        check_kind(name, value, kind, optional=True)
    if not isinstance(variants, str):
        check_words("variants", variants)
    text, file = read_source(source)
    options = Options(
        target=get_target(target).name if target is not None else default_target(),
        accumulate=accumulate,
        schedule=tuple(_fields_of(schedule).items()),
        opt_level=opt_level,
        verify_each=os.environ.get(VERIFY_VARIABLE) == "1" if verify_each is None else verify_each,
        entry=entry,
        variants=parse_variants(variants if isinstance(variants, str) else ",".join(variants)),
    )
    return _open(text, file, options, Path(dump_ir) if dump_ir is not None else None)


def _open(text: str, file: str, options: Options, dump_ir: Path | None = None) -> CompiledModule:
    """The module from the cache, or lowered now; always lowered where the passes are wanted, not only what comes of them."""
    if not options.verify_each and dump_ir is None:
        kept = _from_cache(text, file, options)
        if kept is not None:
            return kept
    try:
        from emmy.compilation import compile_text
    except ModuleNotFoundError as error:
        raise missing_module(error) from None
    return CompiledModule(text, file, options, compile_text(text, file, options, dump_ir))


def _fields_of(schedule: Mapping[str, Any] | Schedule | None) -> Mapping[str, Any]:
    """The fields that a caller asks for; of a whole schedule all."""
    if schedule is None or isinstance(schedule, Mapping):
        return schedule or {}
    if not is_dataclass(schedule) or isinstance(schedule, type):
        check_kind("schedule", schedule, "fields", optional=True)
    return asdict(schedule)


def read_source(source: str | Path) -> tuple[str, str]:
    """(text, the name that errors give it) of a path or of a text."""
    check_kind("source", source, "source")
    if isinstance(source, str) and ("\n" in source or "{" in source):
        return source, TEXT_NAME
    return read_text(source), os.fspath(source)


def _from_cache(text: str, file: str, options: Options) -> CompiledModule | None:
    """The module as it was compiled before: with cubins, or as PTX that is still to be assembled."""
    if not cache.is_enabled():
        return None
    for assembled in (True, False):
        artefact = cache.Cache().get(cache.key_of(text, options, assembled))
        if artefact is not None:
            return CompiledModule(text, file, options, None, artefact, assembled)
    return None
