"""Which pass is where, as one table. Passes are imported when they are first used."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from functools import partial
from typing import Literal, cast, get_args, get_origin, get_type_hints

from xdsl.passes import ModulePass, get_pass_option_infos
from xdsl.transforms import get_all_passes
from xdsl.utils.arg_spec import ArgSpec, parse_pipeline
from xdsl.utils.exceptions import ArgSpecParseError

from emmy.errors import EmmyError

PASSES: dict[str, str] = {
    "check-dominance": "emmy.passes.check_dominance",
    "assign-schedule": "emmy.passes.assign_schedule",
    "lower-tensor-op": "emmy.lowering.tensor_op_to_tile",
    "lower-tile": "emmy.lowering.tile_to_level3",
    "split-masks": "emmy.passes.split_masks",
    "split-accumulation": "emmy.passes.split_accumulation",
    "reduce-seldom": "emmy.passes.reduce_seldom",
    "skip-unit-factors": "emmy.passes.skip_unit_factors",
    "stagger-products": "emmy.passes.stagger_products",
    "overlap-products": "emmy.passes.overlap_products",
    "take-turns": "emmy.passes.take_turns",
    "prefetch-fragments": "emmy.passes.prefetch_fragments",
    "double-buffer-fragments": "emmy.passes.double_buffer_fragments",
    "issue-products": "emmy.passes.issue_products",
    "carry-products": "emmy.passes.carry_products",
    "alternate-tiles": "emmy.passes.alternate_tiles",
    "verify-pipelines": "emmy.passes.verify_pipelines",
    "place-roles": "emmy.passes.place_roles",
    "lower-transport": "emmy.passes.lower_transport",
    "delay-copies": "emmy.passes.delay_copies",
    "allocate-shared": "emmy.passes.allocate_shared",
    "lower-raster": "emmy.passes.lower_raster",
    "split-k": "emmy.passes.split_k",
    "persistent-grid": "emmy.passes.persistent_grid",
    "share-operands": "emmy.passes.share_operands",
    "order-tiles": "emmy.passes.order_tiles",
    "unroll-loops": "emmy.passes.unroll_loops",
    "lower-to-ptx": "emmy.lowering.level3_to_ptx",
    "spread-copies": "emmy.passes.spread_copies",
    "approximate-exponentials": "emmy.passes.approximate_exponentials",
    "place-loads": "emmy.passes.place_loads",
}
"""Emmy's passes, in the order of the default pipeline, and the module in which each is defined."""

COMMON_PASSES = ("canonicalize", "cse", "dce", "licm")
"""The passes of xDSL that are useful at every level; all others of xDSL can be named, too."""

TARGET_OPTION = "target"
"""The pass option that `--target` fills in."""

PassType = type[ModulePass]


def load_pass(name: str) -> PassType:
    """The pass class of one of `PASSES`. Raises `EmmyError` if its module does not hold it."""
    module = importlib.import_module(PASSES[name])
    for value in list(vars(module).values()):
        if isinstance(value, type) and issubclass(value, ModulePass) and getattr(value, "name", None) == name:
            return value
    raise EmmyError(f"module {PASSES[name]} defines no pass named '{name}'")


def available_passes() -> dict[str, Callable[[], PassType]]:
    """Every pass by name: xDSL's and ours; ours win. Calling the value imports the pass."""
    return {**get_all_passes(), **{name: partial(load_pass, name) for name in PASSES}}


def parse_passes(text: str, target: str | None = None) -> list[ModulePass]:
    """The passes that `text` names: `first,second{option=value other=1,2}`.

    Passes with an option `target` that the text leaves out get `target`, if given.
    Raises `EmmyError` for bad syntax, an unknown pass, an unknown option, or a value of the wrong type.
    """
    try:
        specs = list(parse_pipeline(text))
    except ArgSpecParseError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise EmmyError(f"cannot read the passes '{text}': {reason}") from None
    except Exception as error:
        raise EmmyError(f"cannot read the passes '{text}': {error}") from None
    return [_make_pass(spec, target) for spec in specs]


def _make_pass(spec: ArgSpec, target: str | None) -> ModulePass:
    passes = available_passes()
    if spec.name not in passes:
        raise EmmyError(
            f"there is no pass '{spec.name}'{suggest(spec.name, passes) or '; emmy-opt --list-passes lists them'}"
        )
    pass_type = _import_pass(spec.name, passes[spec.name])
    options = {info.name: info for info in get_pass_option_infos(pass_type)}
    given = dict(spec.normalize_parameter_names().parameters)
    for option in given:
        if option not in options:
            known = f"its options are {', '.join(options)}" if options else "it has none"
            raise EmmyError(f"pass '{spec.name}' has no option '{option}'; {known}")
    if target is not None and TARGET_OPTION in options and TARGET_OPTION not in given:
        given[TARGET_OPTION] = (target,)
    try:
        return pass_type.from_spec(ArgSpec(spec.name, given))
    except EmmyError:
        raise
    except ValueError as error:
        raise EmmyError(_option_problem(pass_type, given, error)) from None


def _import_pass(name: str, factory: Callable[[], PassType]) -> PassType:
    try:
        return factory()
    except ImportError as error:
        raise EmmyError(f"pass '{name}' cannot be imported: {error}") from None


def _option_problem(
    pass_type: PassType, given: dict[str, tuple[str | int | bool | float, ...]], error: ValueError
) -> str:
    """Which option is at fault: each is tried alone, since xDSL's message does not name it."""
    name = pass_type.name
    missing = [option for option in sorted(pass_type.required_fields()) if option not in given]
    if missing:
        return f"pass '{name}' needs its option '{missing[0]}'"
    for info in get_pass_option_infos(pass_type):
        if info.name not in given:
            continue
        try:
            pass_type.from_spec(ArgSpec(name, {info.name: given[info.name]}))
        except ValueError:
            value = ",".join(str(v) for v in given[info.name])
            choices = _words(pass_type, info.name)
            wanted = f"is one of {', '.join(choices)}" if choices else f"takes {info.expected_type.strip(chr(39))}"
            return f"option '{info.name}' of pass '{name}' {wanted}, got '{value}'"
    return f"pass '{name}' does not take these options: {error}"


def _words(pass_type: PassType, option: str) -> list[str]:
    """The words that an option may be, where its type is some words, or those or nothing."""
    hint = get_type_hints(pass_type)[option]
    parts = [part for part in (hint, *get_args(hint)) if get_origin(part) is Literal]
    return [word for part in parts for word in get_args(part)]


def suggest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for a name close to `name`, else nothing."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean '{close[0]}'?" if close else ""


def is_present(name: str) -> bool:
    """Whether the module of one of `PASSES` exists."""
    try:
        return importlib.util.find_spec(PASSES[name]) is not None
    except ImportError:
        return False


def describe_passes() -> str:
    """One paragraph for each pass of ours, then xDSL's by name: what `--list-passes` prints."""
    lines: list[str] = []
    for name in PASSES:
        if not is_present(name):
            continue
        pass_type = load_pass(name)
        options = [f"{o.name}={_default_text(pass_type, o.name)}" for o in get_pass_option_infos(pass_type)]
        lines.append(name + ("{" + " ".join(options) + "}" if options else ""))
        lines.append("    " + pass_summary(pass_type))
    lines.append("")
    lines.append("of xDSL, useful at every level: " + ", ".join(COMMON_PASSES))
    lines.append("of xDSL, others: " + ", ".join(sorted(set(get_all_passes()) - set(COMMON_PASSES))))
    return "\n".join(lines) + "\n"


def pass_summary(pass_type: PassType) -> str:
    """The first sentence about a pass: of its module if that describes one pass, else of the class."""
    own = (pass_type.__doc__ or "").strip()
    text = (sys.modules[pass_type.__module__].__doc__ or "").strip() if own.startswith("See the module") else own
    paragraph = " ".join(text.split("\n\n")[0].split())
    return paragraph.split(". ")[0].rstrip(".:") + "."


def _default_text(pass_type: PassType, option: str) -> str:
    for field in fields(pass_type):
        if field.name == option and field.default is not MISSING:
            default = cast("str | int | float | bool | tuple[int, ...] | None", field.default)
            if default in (None, ""):
                return "<none>"
            return ",".join(str(v) for v in default) if isinstance(default, tuple) else str(default).lower()
    return "<value>"
