"""From text to a module at level 4, and from there to an artefact without cubins: the part of compiling that needs xDSL."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from emmy.artefact import Artefact, Image
from emmy.errors import EmmyError
from emmy.explain import Places, kernel_schedules, pinned_products, schedule_reasons
from emmy.files import write_file
from emmy.function_checks import check_functions, nothing_to_compile
from emmy.ir import Verifier, as_emmy_error, make_context, parse_attribute, parse_module, print_module
from emmy.launch_facts import Facts, KernelFacts, kernel_facts, level1_facts
from emmy.launch_plan import plan_entries
from emmy.locations import show_error
from emmy.options import Options
from emmy.pipelines import LEVELS, Step, has_work, level_of, pipeline_for
from emmy.registry import parse_passes

Observer = Callable[[str, ModuleOp], None]
"""Called with "input" and then with each pass's name and the module that it left."""


@dataclass
class Lowered:
    """A module on its way down, and what was learnt on the way.

    `steps`: the passes that ran, with their levels. `reasons`: why each product has its schedules, by the product's place.
    `schedules`: the fields of each kernel's schedule, and why it has that one, by kernel name.
    """

    module: ModuleOp
    facts: dict[str, Facts]
    kernel_facts: dict[str, KernelFacts] = field(default_factory=dict[str, KernelFacts])
    steps: list[Step] = field(default_factory=list[Step])
    reasons: Places = field(default_factory=Places)
    schedules: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])


@contextlib.contextmanager
def _without_garbage_collection() -> Generator[None]:
    """IR is made of many small objects in cycles; the collector would walk all of them again and again for nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def lower(
    text: str, file: str, options: Options, stop_after: str | None = None, observe: Observer | None = None
) -> Lowered:
    """Parse and verify `text`, run the target's pipeline, verify what it leaves.

    `stop_after`: the name of the last pass to run, or "input". Raises `EmmyError`.
    """
    pipeline = pipeline_for(options.target)
    context = make_context()
    with _without_garbage_collection():
        module = parse_module(text, file, context)
        verify = Verifier(module)
        verify()
        if options.entry is not None:
            _keep_only(module, options.entry)
        if options.accumulate is not None:
            _set_policy(module, options.accumulate)
        check_functions(module)
        complete = level_of(module) == "tensor_op"
        lowered = Lowered(module, level1_facts(module) if complete else {})
        if observe is not None:
            observe("input", module)
        if stop_after == "input":
            return lowered
        for step in pipeline:
            if step.name == "lower-to-ptx":
                lowered.kernel_facts = kernel_facts(module)
                lowered.schedules = kernel_schedules(module, lowered.reasons, complete)
            if complete or has_work(step, module):
                pinned = pinned_products(module) if step.name == "assign-schedule" else None
                _run(step, options, module, context, verify)
                if pinned is not None:
                    lowered.reasons = schedule_reasons(module, pinned, options)
                lowered.steps.append(step)
                if observe is not None:
                    observe(step.name, module)
            if step.name == stop_after:
                break
        verify()
    return lowered


def _run(step: Step, options: Options, module: ModuleOp, context: Any, verify: Verifier) -> None:
    for one in parse_passes(options.pass_text(step), options.target):
        try:
            one.apply(context, module)
            if options.verify_each:
                verify()
        except Exception as error:
            raise as_emmy_error(error, f"running {step.name}") from None


def _keep_only(module: ModuleOp, entry: str) -> None:
    """Erase all functions but one; kernels stay."""
    functions = {op.sym_name.data: op for op in module.body.block.ops if isinstance(op, FuncOp)}
    if entry not in functions:
        raise EmmyError(f"the module has no function '{entry}'; it has {', '.join(functions) or 'none'}")
    for name, function in functions.items():
        if name != entry:
            function.detach()
            function.erase()


def _set_policy(module: ModuleOp, policy: str) -> None:
    """The accumulation policy of the module's products that state none."""
    try:
        module.attributes["emmy.accumulate"] = parse_attribute(f"#tensor_op.accumulate<{policy}>")
    except EmmyError as error:
        raise EmmyError(f"'{policy}' is no accumulation policy: {error.message}") from None


# ---- what comes of it ------------------------------------------------------------------------------------------------


def portable_artefact(lowered: Lowered, options: Options) -> Artefact:
    """The artefact with PTX only. Kernels of one ptxas optimisation level share an image."""
    levels: dict[int, list[str]] = {}
    for name in _kernel_names(lowered.module):
        facts = lowered.kernel_facts.get(name)
        level = facts.opt_level if facts is not None else 3
        levels.setdefault(level if options.opt_level is None else options.opt_level, []).append(name)
    single = len(levels) == 1
    images: dict[str, Image] = {}
    kernels: dict[str, dict[str, Any]] = {}
    for level, names in levels.items():
        image = "kernels" if single else f"kernels_O{level}"
        images[image] = Image(print_kernels(lowered.module, options.target, None if single else names))
        for name in names:
            kernels[name] = {"image": image, "opt_level": level, **lowered.schedules.get(name, {})}
    image_of = {name: kernel["image"] for name, kernel in kernels.items()}
    entries = plan_entries(lowered.module, image_of, lowered.facts, lowered.kernel_facts)
    return Artefact(options.target, images, entries, kernels=kernels)


def print_kernels(module: ModuleOp, target: str, names: Sequence[str] | None = None) -> str:
    """The PTX text of the kernels called `names`, by default of all."""
    from emmy.lowering.print_ptx import print_ptx

    if names is not None:
        module = module.clone()
        for op in list(module.body.block.ops):
            if _kernel_name(op) not in names:
                op.detach()
                op.erase(safe_erase=False)
    try:
        return print_ptx(module, target)
    except Exception as error:
        raise as_emmy_error(error, "printing PTX") from None


def last_step(stage: str, lowered: Lowered, text: str, file: str) -> str:
    """The pass whose result is meant by a stage: a level (its last pass), a pass, or `input`. `EmmyError` for others."""
    names = [step.name for step in lowered.steps]
    if stage in ("input", *names):
        return stage
    if stage in LEVELS:
        of_level = [step.name for step in lowered.steps if step.level == stage]
        if of_level:
            return of_level[-1]
        if level_of(parse_module(text, file)) == stage:
            return "input"
    known = ", ".join(("input", *LEVELS, *names))
    raise EmmyError(f"the compilation had no stage '{stage}'; there are {known}")


def _kernel_name(op: Any) -> str | None:
    return op.sym_name.data if op.name == "ptx.kernel" else None


def _kernel_names(module: ModuleOp) -> list[str]:
    return [name for op in module.body.block.ops if (name := _kernel_name(op)) is not None]


class Dumper:
    """Writes `NN_pass.mlir` into a folder for every pass."""

    def __init__(self, folder: Path):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EmmyError(f"cannot create '{folder}': {(error.strerror or str(error)).lower()}") from None
        self.folder = folder
        self.count = 0

    def __call__(self, step: str, module: ModuleOp) -> None:
        self.write(f"{step}.mlir", print_module(module))

    def write(self, name: str, text: str) -> None:
        """Write the next file."""
        write_file(self.folder / f"{self.count:02}_{name}", text)
        self.count += 1


def compile_text(text: str, file: str, options: Options, dump_ir: Path | None = None) -> Lowered:
    """`lower`, for a module that must hold kernels; an error gets a note with its line of the text."""
    dumper = Dumper(dump_ir) if dump_ir is not None else None
    try:
        lowered = lower(text, file, options, observe=dumper)
        if not _kernel_names(lowered.module):
            raise nothing_to_compile(lowered.module)
        if dumper is not None:
            dumper.write("kernels.ptx", print_kernels(lowered.module, options.target))
        return lowered
    except EmmyError as error:
        shown = show_error(error, {file: text}).partition("\n")[2]
        if shown:
            error.add_note(shown)
        raise
