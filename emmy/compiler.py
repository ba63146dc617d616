"""`emmy.compile`: textual IR in, a module out that can be read at every level, assembled, and called.

module = emmy.compile("docs/examples/matmul.mlir", target="sm_90a")
print(module.ir("tile"), module.ptx)
c = module.matmul(a, b)                              # on the GPU if there is one, else on the emulator
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from emmy.artefact import Artefact, Image, run_on_emulator
from emmy.assemble import Assembled, assemble, find_tool
from emmy.errors import EmmyError
from emmy.files import write_file
from emmy.ir import as_emmy_error, make_context, parse_attribute, parse_module, print_module, read_text, verify_module
from emmy.launch_plan import Facts, KernelFacts, kernel_facts, level1_facts, plan_entries
from emmy.locations import show_error
from emmy.pipelines import LEVELS, Step, has_work, level_of, pipeline_for
from emmy.ptx_target import DEFAULT_TARGET
from emmy.registry import parse_passes
from emmy.targets import TARGETS, get_target

if TYPE_CHECKING:
    from emmy.runtime import CudaModule
    from emmy.schedules import Schedule

TEXT_NAME = "<text>"
"""What errors call a module that came as a string."""

VERIFY_VARIABLE = "EMMY_VERIFY_EACH"
"""Set to 1, the environment variable verifies the module after every pass (the tests do)."""

DEVICES = ("auto", "cuda", "emulator")

Observer = Callable[[str, ModuleOp], None]
"""Called with "input" and then with each pass's name and the module that it left."""


# ---- options ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Options:
    """What a compilation depends on beside the text.

    target: a name of `emmy.targets`. accumulate: the policy of products that state none, as the text spells it
    (`f32`, `hybrid, max_k = 64`). schedule: fields of `emmy.schedules.Schedule` that replace the table's choice.
    opt_level: of ptxas, None for the schedule's. verify_each: verify after every pass.
    entry: the only function to compile, or None.
    """

    target: str
    accumulate: str | None = None
    schedule: tuple[tuple[str, Any], ...] = ()
    opt_level: int | None = None
    verify_each: bool = False
    entry: str | None = None

    def pass_text(self, step: Step) -> str:
        """The step's pass with these options."""
        if step.name != "assign-schedule" or not self.schedule:
            return step.spec
        return f"assign-schedule{{{' '.join(schedule_options(dict(self.schedule)))}}}"


GRIDS = {"block": ("block_m", "block_n", "block_k"), "warps": ("warps_m", "warps_n")}


def schedule_options(fields: Mapping[str, Any]) -> list[str]:
    """Schedule fields as options of `assign-schedule`: `block_m=128`, `transport="cp_async"`."""
    from emmy.schedules import SCHEDULE_FIELDS

    options: list[str] = []
    for name, value in fields.items():
        if name not in SCHEDULE_FIELDS:
            raise EmmyError(f"a schedule has no field '{name}'; its fields are {', '.join(SCHEDULE_FIELDS)}")
        if name in GRIDS:
            sizes = list(value) if isinstance(value, list | tuple) else []  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            if len(sizes) != len(GRIDS[name]):  # pyright: ignore[reportUnknownArgumentType]
                raise EmmyError(f"the schedule's {name} is {len(GRIDS[name])} numbers, got {value}")
            options += [f"{option}={size}" for option, size in zip(GRIDS[name], sizes, strict=True)]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        else:
            options.append(f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}")
    return options


def default_target() -> str:
    """The target of the first GPU of this machine, or `DEFAULT_TARGET`.

    A GPU of a generation without a target of its own gets the latest one whose PTX runs on it.
    """
    from emmy.runtime import Runtime, is_available

    if not is_available():
        return DEFAULT_TARGET
    present = Runtime(0).compute_capability
    older = [t for t in TARGETS.values() if t.compute_capability <= present and not t.architecture_specific]
    exact = [t for t in TARGETS.values() if t.compute_capability == present]
    candidates = exact or sorted(older, key=lambda t: t.compute_capability)
    return candidates[-1].name if candidates else DEFAULT_TARGET


# ---- lowering --------------------------------------------------------------------------------------------------------


@dataclass
class Lowered:
    """A module on its way down, and what was learnt on the way. `steps`: the passes that ran, with their levels."""

    module: ModuleOp
    facts: dict[str, Facts]
    kernel_facts: dict[str, KernelFacts]
    steps: list[Step]


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
        verify_module(module)
        if options.entry is not None:
            _keep_only(module, options.entry)
        if options.accumulate is not None:
            _set_policy(module, options.accumulate)
        complete = level_of(module) == "tensor_op"
        lowered = Lowered(module, level1_facts(module) if complete else {}, {}, [])
        if observe is not None:
            observe("input", module)
        if stop_after == "input":
            return lowered
        for step in pipeline:
            if step.name == "lower-to-ptx":
                lowered.kernel_facts = kernel_facts(module)
            if complete or has_work(step, module):
                _run(step, options, module, context)
                lowered.steps.append(step)
                if observe is not None:
                    observe(step.name, module)
            if step.name == stop_after:
                break
        verify_module(module)
    return lowered


def _run(step: Step, options: Options, module: ModuleOp, context: Any) -> None:
    for one in parse_passes(options.pass_text(step), options.target):
        try:
            one.apply(context, module)
            if options.verify_each:
                verify_module(module)
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


# ---- the result ------------------------------------------------------------------------------------------------------


class CompiledModule:
    """A module lowered to PTX. Its functions are attributes (and items): `module.matmul(a, b)`."""

    def __init__(self, text: str, file: str, options: Options, lowered: Lowered):
        self.text = text
        self.file = file
        self.options = options
        self.target = options.target
        self._lowered = lowered
        self._ir: dict[str, str] = {}
        self._cuda: CudaModule | None = None

    # ---- reading it --------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> tuple[str, ...]:
        """The passes that ran, in order."""
        return tuple(step.name for step in self._lowered.steps)

    def ir(self, stage: str) -> str:
        """The module's text at a level (`tensor_op`, `tile`, `level3`, `ptx`), after a pass, or as it came (`input`).

        A level's text is that after its last pass. Raises `EmmyError` for a stage that did not occur.
        """
        if stage not in self._ir:
            name = self._last_step(stage)
            module = lower(self.text, self.file, self.options, stop_after=name).module
            self._ir[stage] = print_module(module)
        return self._ir[stage]

    def _last_step(self, stage: str) -> str:
        if stage in ("input", *self.steps):
            return stage
        if stage in LEVELS:
            names = [step.name for step in self._lowered.steps if step.level == stage]
            if names:
                return names[-1]
            if level_of(parse_module(self.text, self.file)) == stage:
                return "input"
        known = ", ".join(("input", *LEVELS, *self.steps))
        raise EmmyError(f"the compilation had no stage '{stage}'; there are {known}")

    @cached_property
    def ptx(self) -> str:
        """The PTX text of all kernels."""
        return _print_ptx(self._lowered.module, self.target)

    @cached_property
    def images(self) -> dict[str, tuple[int, list[str]]]:
        """Image name -> (ptxas optimisation level, its kernels): kernels of one optimisation level share an image."""
        levels: dict[int, list[str]] = {}
        for name in _kernel_names(self._lowered.module):
            facts = self._lowered.kernel_facts.get(name)
            level = facts.opt_level if facts is not None else 3
            levels.setdefault(level if self.options.opt_level is None else self.options.opt_level, []).append(name)
        single = len(levels) == 1
        return {"kernels" if single else f"kernels_O{level}": (level, names) for level, names in levels.items()}

    def image_ptx(self, image: str) -> str:
        """The PTX text of one image."""
        names = set(self.images[image][1])
        if len(self.images) == 1:
            return self.ptx
        module = self._lowered.module.clone()
        for op in list(module.body.block.ops):
            if _kernel_name(op) not in names:
                op.detach()
                op.erase(safe_erase=False)
        return _print_ptx(module, self.target)

    @cached_property
    def assembled(self) -> dict[str, Assembled]:
        """Each image assembled. Raises `EmmyError` without ptxas, and for spills and ignored instructions."""
        return {image: assemble(self.image_ptx(image), self.target, level) for image, (level, _) in self.images.items()}

    # ---- calling it --------------------------------------------------------------------------------------------------

    @property
    def entries(self) -> tuple[str, ...]:
        """The functions that can be called."""
        return tuple(self.portable_artefact.entries)

    @cached_property
    def portable_artefact(self) -> Artefact:
        """The artefact with PTX only: what the emulator runs."""
        image_of = {name: image for image, (_, names) in self.images.items() for name in names}
        lowered = self._lowered
        entries = plan_entries(lowered.module, image_of, lowered.facts, lowered.kernel_facts)
        images = {image: Image(self.image_ptx(image)) for image in self.images}
        return Artefact(self.target, images, entries)

    @cached_property
    def artefact(self) -> Artefact:
        """The artefact, with cubins where ptxas is installed."""
        portable = self.portable_artefact
        if find_tool("ptxas") is None:
            return portable
        images = {name: Image(image.ptx, self.assembled[name].cubin) for name, image in portable.images.items()}
        resources = {
            kernel: asdict(used) for assembled in self.assembled.values() for kernel, used in assembled.kernels.items()
        }
        return Artefact(self.target, images, portable.entries, resources)

    def cuda(self) -> CudaModule:
        """The artefact loaded on the first GPU. Raises `EmmyError` if there is none."""
        if self._cuda is None:
            from emmy.runtime import Runtime

            self._cuda = Runtime(0).load(self.artefact)
        return self._cuda

    def __getitem__(self, name: str) -> Entry:
        self.portable_artefact.entry(name)
        return Entry(self, name)

    def __getattr__(self, name: str) -> Entry:
        if name.startswith("_") or name not in self.entries:
            raise AttributeError(f"the module has no function '{name}'")
        return Entry(self, name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.entries]


@dataclass(frozen=True)
class Entry:
    """One function of a compiled module."""

    module: CompiledModule
    name: str

    def __call__(self, *args: Any, device: str = "auto", stream: Any = None, out: Any = None) -> Any:
        """Run the function: its result, or a tuple of them.

        `device`: `cuda`, `emulator`, or `auto`: the GPU if there is one that runs the module's target. Arguments are
        NumPy arrays or, on the GPU, arrays that are there already. `out`, an array or several, receives the results;
        `stream`: a CUDA stream. Raises `EmmyError` for a call that breaks the function's contract.
        """
        if device not in DEVICES:
            raise EmmyError(f"device is one of {', '.join(DEVICES)}, got '{device}'")
        if device == "cuda" or (device == "auto" and runs_on_gpu(self.module.target)):
            return self.module.cuda().run(self.name, args, out=out, stream=stream)
        if stream is not None:
            raise EmmyError("the emulator has no streams; leave stream out, or pass device='cuda'")
        return self._emulate(args, out)

    def _emulate(self, args: Sequence[Any], out: Any) -> Any:
        import numpy as np

        outs: list[Any] = [] if out is None else list(out) if isinstance(out, list | tuple) else [out]  # pyright: ignore[reportUnknownArgumentType]
        for array in (*args, *outs):
            if not isinstance(array, np.ndarray):
                raise EmmyError(f"the emulator takes NumPy arrays, got a {type(array).__name__}")
        results, _ = run_on_emulator(self.module.portable_artefact, self.name, args)
        if out is not None:
            if [(o.shape, o.dtype) for o in outs] != [(r.shape, r.dtype) for r in results]:
                wanted = ", ".join(f"{r.dtype} of shape {r.shape}" for r in results)
                raise EmmyError(f"out does not fit the results; expected {wanted}")
            for target, result in zip(outs, results, strict=True):
                target[...] = result
            results = outs
        return results[0] if len(results) == 1 else tuple(results)


def runs_on_gpu(target: str) -> bool:
    """Whether this machine has a GPU that runs code for `target`."""
    from emmy.runtime import Runtime, is_available, loadable

    if not is_available():
        return False
    return loadable(target, Runtime(0).compute_capability, Image(ptx="", cubin=b"")) is not None


def _kernel_name(op: Any) -> str | None:
    return op.sym_name.data if op.name == "ptx.kernel" else None


def _kernel_names(module: ModuleOp) -> list[str]:
    return [name for op in module.body.block.ops if (name := _kernel_name(op)) is not None]


def _print_ptx(module: ModuleOp, target: str) -> str:
    from emmy.lowering.print_ptx import print_ptx

    try:
        return print_ptx(module, target)
    except Exception as error:
        raise as_emmy_error(error, "printing PTX") from None


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
) -> CompiledModule:
    """Lower a module to PTX.

    `source`: a path, or the text itself (a string with a newline or a brace). `target`: a name of `emmy.targets`, by
    default that of the GPU that is present, else sm_90a. `accumulate`: the accumulation policy of products that state
    none. `schedule`: fields that replace the table's choice, where the text pins no schedule. `dump_ir`: a folder that
    receives the text after every pass. `opt_level`: of ptxas. `verify_each`: verify after every pass. `entry`: compile
    this function only.
    Raises `EmmyError`, with the place in the text where there is one, for anything that is wrong with these.
    """
    text, file = read_source(source)
    fields = asdict(schedule) if schedule is not None and not isinstance(schedule, Mapping) else (schedule or {})
    options = Options(
        target=get_target(target).name if target is not None else default_target(),
        accumulate=accumulate,
        schedule=tuple(fields.items()),
        opt_level=opt_level,
        verify_each=os.environ.get(VERIFY_VARIABLE) == "1" if verify_each is None else verify_each,
        entry=entry,
    )
    dumper = _Dumper(Path(dump_ir)) if dump_ir is not None else None
    try:
        lowered = lower(text, file, options, observe=dumper)
        if not _kernel_names(lowered.module):
            raise EmmyError("the module has nothing to compile: no kernel, and no function of tensor_op ops")
        module = CompiledModule(text, file, options, lowered)
        if dumper is not None:
            dumper.write("kernels.ptx", module.ptx)
        return module
    except EmmyError as error:
        shown = show_error(error, {file: text}).partition("\n")[2]
        if shown:
            error.add_note(shown)
        raise


def read_source(source: str | Path) -> tuple[str, str]:
    """(text, the name that errors give it) of a path or of a text."""
    if isinstance(source, str) and ("\n" in source or "{" in source):
        return source, TEXT_NAME
    return read_text(source), os.fspath(source)


class _Dumper:
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
        write_file(self.folder / f"{self.count:02}_{name}", text)
        self.count += 1
