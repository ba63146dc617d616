"""`emmy check`: run a module at every level on the same inputs and name the first level at which results part."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from emmy.artefact import DTYPES, Array, run_on_emulator
from emmy.compiler import CompiledModule, compile
from emmy.ir import as_emmy_error, parse_module
from emmy.pipelines import level_of
from emmy.progress import Progress
from emmy.tools.compare import Product, compare, error_terms, is_exact_on_integers, maps_are_exact
from emmy.tools.compile_command import add_compile_options, print_remarks
from emmy.tools.inputs import choose_entry, parse_shapes, random_arrays, resolve_shapes
from emmy.tools.run_command import add_data_options
from emmy.tools.schedule_option import parse_schedule

Runner = Callable[[Sequence[Array]], list[Array]]

SCHEDULES = (("late", "fixed"), ("early", "reversed"), ("random", "random"))
"""(landing of asynchronous copies, order of warps) under which level 3 and PTX are run; `late` finds most faults."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `emmy check`."""
    parser.add_argument("file", help="a module of textual IR, at any level")
    parser.add_argument(
        "--target", metavar="SM", help="sm_80, sm_89, sm_90a or sm_120a (default: the GPU's, else sm_90a)"
    )
    add_data_options(parser)
    add_compile_options(parser)


@dataclass
class Stage:
    """One way of executing the module, and what came of it: a verdict for integer and one for normal data."""

    name: str
    run: Runner
    verdicts: list[str] = field(default_factory=list[str])
    ok: bool = True


def run(args: argparse.Namespace) -> int:
    """Run every level on both kinds of data; print a table; 1 if a level parts from the reference."""
    schedule = parse_schedule(args.schedule)
    module = compile(
        Path(args.file), args.target, accumulate=args.accumulate, schedule=schedule, opt_level=args.opt_level
    )
    print_remarks(module, schedule)
    entry = choose_entry(module.entries, args.entry)
    spec = module.portable_artefact.entry(entry)
    shapes = resolve_shapes(spec, parse_shapes(args.shape, spec))
    inputs = {kind: random_arrays(spec, shapes, args.random, kind) for kind in ("integers", "normal")}
    print(f"{entry} for {module.target}, " + ", ".join(f"{n}: {'x'.join(map(str, s))}" for n, s in shapes.items()))
    with Progress() as progress:
        progress.tell("lowering to every level")
        stages = make_stages(module, entry, args.random)
        progress.tell("computing the reference")
        judges = [Judge(module, entry, arrays, kind, stages[0]) for kind, arrays in inputs.items()]
        return judge_stages(stages, judges, progress)


def judge_stages(stages: Sequence[Stage], judges: Sequence[Judge], progress: Progress) -> int:
    """Run every stage, printing a line for each; 1 at the first whose results part from the reference."""
    width = max(len(stage.name) for stage in stages)
    progress.clear()
    print(f"{'level':{width}}  integers     normal (RMS error, bound {judges[1].bound_text()})")
    for number, stage in enumerate(stages, 1):
        progress.tell(f"{number} of {len(stages)}: {stage.name}")
        for judge in judges:
            judge.visit(stage)
        progress.clear()
        print(f"{stage.name:{width}}  {stage.verdicts[0]:11}  {stage.verdicts[1]}", flush=True)
        if not stage.ok:
            print(f"results part at: {stage.name}")
            return 1
    print("all levels agree")
    return 0


def make_stages(module: CompiledModule, entry: str, seed: int) -> list[Stage]:
    """Every level of the module that can be executed, highest first."""
    stages: list[Stage] = []
    source = parse_module(module.ir("input"), module.file)
    if level_of(source) == "tensor_op":
        from emmy.interpreters import level1

        stages.append(Stage("level 1, by policy", lambda arrays: level1.run(source, entry, arrays, "policy")))
    for step in ("input", *module.steps):
        text = module.ir(step)
        stages += _stages_after(step, text, module, entry, seed)
    for landing, order in SCHEDULES:
        stages.append(Stage(f"PTX, {landing} landing, {order} order", _emulator(module, entry, landing, order, seed)))
    return stages


def _stages_after(step: str, text: str, module: CompiledModule, entry: str, seed: int) -> list[Stage]:
    parsed = parse_module(text, f"{module.file} after {step}")
    level = level_of(parsed)
    if level == "tensor_op" and step != "input":
        from emmy.interpreters import level1

        return [Stage(f"level 1, {step}", lambda arrays: level1.run(parsed, entry, arrays, "policy"))]
    if level == "tile":
        from emmy.interpreters import level2

        return [Stage(f"level 2, {step}", lambda arrays: level2.run_module(parsed, entry, arrays))]
    if level != "level3":
        return []
    from emmy.interpreters import level3

    def runner(landing: str, order: str) -> Runner:
        return lambda arrays: level3.run_module(parsed, entry, arrays, landing=landing, order=order, seed=seed)  # pyright: ignore[reportArgumentType]

    return [Stage(f"level 3, {step}, {landing} landing", runner(landing, order)) for landing, order in SCHEDULES[:1]]


def _emulator(module: CompiledModule, entry: str, landing: str, order: str, seed: int) -> Runner:
    def run(arrays: Sequence[Array]) -> list[Array]:
        artefact = module.portable_artefact
        return run_on_emulator(artefact, entry, arrays, landing=landing, order=order, seed=seed)[0]

    return run


class Judge:
    """Compares what each stage makes of one set of inputs with the reference.

    Integer data: the same bits as the first stage, where the function allows that. Normal data: within the policy's
    bound of level 1 in float64; of the first stage, if the module begins below level 1.
    """

    def __init__(self, module: CompiledModule, entry: str, arrays: Sequence[Array], kind: str, first: Stage):
        self.arrays = arrays
        self.dtype = DTYPES[module.portable_artefact.entry(entry)["results"][0]["dtype"]]
        source = parse_module(module.ir("input"), module.file)
        self.exact, self.roundings, self.terms = kind == "integers", 1, [Product("f32", 0, 1 << 16, False)]
        if level_of(source) != "tensor_op":
            self.exact = self.exact and maps_are_exact(source)
            self.reference = first.run(arrays)
            return
        from emmy.interpreters import level1

        self.exact = self.exact and is_exact_on_integers(source, entry)
        self.roundings, self.terms = error_terms(source, entry, arrays)
        self.reference = level1.run(source, entry, arrays, "policy" if self.exact else "float64")

    def bound_text(self) -> str:
        """The bound of the first result, for a heading."""
        reference = self.reference[0].astype(np.float64)
        return f"{compare(reference.astype(self.dtype), reference, self.roundings, self.terms).bound:.1e}"

    def visit(self, stage: Stage) -> None:
        """Run the stage on these inputs and add its verdict."""
        try:
            results = stage.run(self.arrays)
        except Exception as error:
            stage.ok = False
            stage.verdicts.append("error")
            print(as_emmy_error(error, f"running {stage.name}"))
            return
        verdicts = [self.verdict(*pair) for pair in zip(results, self.reference, strict=True)]
        stage.ok = stage.ok and all(ok for ok, _ in verdicts)
        stage.verdicts.append(", ".join(text for _, text in verdicts))

    def verdict(self, result: Array, reference: Array) -> tuple[bool, str]:
        """(whether a result will do, the table's text)."""
        if self.exact:
            wrong = int(np.count_nonzero(~(result.astype(np.float64) == reference.astype(np.float64))))
            return wrong == 0, "exact" if wrong == 0 else f"{wrong} of {result.size} wrong"
        outcome = compare(result, reference.astype(np.float64), self.roundings, self.terms)
        return outcome.ok, f"{outcome.rms:.2e}" + ("" if outcome.ok else f" (bound {outcome.bound:.1e})")
