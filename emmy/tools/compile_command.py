"""`emmy compile`: text to PTX, a cubin, the text of a level, or an artefact folder."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emmy.assemble import require_tool
from emmy.compiler import CompiledModule, compile
from emmy.errors import EmmyError
from emmy.files import write_file
from emmy.tools.schedule_option import parse_schedule, schedule_remarks
from emmy.variants import PREFERRED, VARIANTS, parse_variants


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `emmy compile`."""
    add = parser.add_argument
    add("file", help="a module of textual IR, at any level")
    add("--target", metavar="SM", help="sm_80, sm_89, sm_90a or sm_120a (default: the GPU's, else sm_90a)")
    add(
        "-o",
        "--output",
        metavar="OUT",
        help="OUT.ptx, OUT.cubin, OUT.mlir, or an artefact folder (default: PTX on stdout)",
    )
    add(
        "--level",
        metavar="STAGE",
        help="the text of a level or after a pass, instead of PTX (with -o OUT.mlir or on stdout)",
    )
    add("--dump-ir", metavar="DIR", help="write the text after every pass into DIR")
    add("--entry", metavar="NAME", help="compile this function only")
    add(
        "--variants",
        metavar="NAMES",
        default=PREFERRED,
        help=f"lower kernels for tensors that lie otherwise too: all, or some of {', '.join(VARIANTS)} "
        "(default: dense; an artefact folder has all)",
    )
    add_report_option(parser)
    add_compile_options(parser)


def add_report_option(parser: argparse.ArgumentParser) -> None:
    """What compile and run share, for `print_report`."""
    parser.add_argument(
        "--report",
        nargs="?",
        const="text",
        choices=("text", "json"),
        help="print what each kernel takes (registers, spills, shared memory, occupancy, main loop) and its schedule",
    )


def print_report(module: CompiledModule, form: str) -> None:
    """The report on stdout."""
    report = module.report()
    print(json.dumps(report.as_json(), indent=1) if form == "json" else report)


def add_compile_options(parser: argparse.ArgumentParser) -> None:
    """What compile, run and check share."""
    add_lowering_options(parser)
    parser.add_argument("--opt-level", type=int, metavar="N", help="optimisation level of ptxas, 0 to 3")


def add_lowering_options(parser: argparse.ArgumentParser) -> None:
    """What changes the text of the levels; `emmy view ir` has them too."""
    parser.add_argument(
        "--accumulate", metavar="POLICY", help="policy of products that state none: f32, f16, hybrid, ..."
    )
    parser.add_argument(
        "--schedule",
        metavar="FIELDS",
        help="fields of the schedule that replace the table's choice, as the IR spells them: "
        "'block = [64, 64, 64], stages = 4'; what the text pins stays",
    )


def run(args: argparse.Namespace) -> int:
    """Compile and write what was asked for."""
    schedule = parse_schedule(args.schedule)
    module = compile(
        Path(args.file),
        args.target,
        accumulate=args.accumulate,
        schedule=schedule,
        dump_ir=args.dump_ir,
        opt_level=args.opt_level,
        entry=args.entry,
        variants=parse_variants(args.variants),
    )
    print_remarks(module, schedule)
    if args.output is not None:
        write_output(module, args.output, args.level)
    elif args.level or not args.report:
        sys.stdout.write(module.ir(args.level) if args.level else module.ptx)
    if args.report:
        print_report(module, args.report)
    elif args.output is not None and Path(args.output).suffix in ("", ".cubin"):
        for kernel, used in resources(module).items():
            print(f"{kernel}: {used}", file=sys.stderr)
    return 0


def print_remarks(module: CompiledModule, schedule: Mapping[str, Any] | None) -> None:
    """On stderr: what the compiler did otherwise than the options or the module asked, a line a kernel."""
    for remark in schedule_remarks(module, schedule):
        print(f"remark: {remark}", file=sys.stderr)
    for name, kernel in module.portable_artefact.kernels.items():
        if "remark" in kernel:
            print(f"remark: {name}: {kernel['remark']}", file=sys.stderr)


def write_output(module: CompiledModule, output: str, level: str | None) -> None:
    """Write the module in the format that the name of `output` says."""
    suffix = Path(output).suffix
    if level is not None and suffix != ".mlir":
        raise EmmyError(f"--level writes text of the IR; '{output}' does not end in .mlir")
    if suffix == ".mlir":
        write_file(output, module.ir(level or "ptx"))
    elif suffix == ".ptx":
        write_file(output, module.ptx)
    elif suffix == ".cubin":
        if len(module.images) != 1:
            raise EmmyError(
                "the module has kernels of several optimisation levels; write a folder, or give --opt-level"
            )
        (image,) = module.artefact.images.values()
        if image.cubin is None:
            require_tool("ptxas")
        write_file(output, image.cubin or b"")
    elif suffix:
        raise EmmyError(f"'{output}' ends in none of .ptx, .cubin, .mlir; a folder's name has no dot")
    else:
        if Path(output).exists() and not (Path(output) / "launch.json").is_file():
            raise EmmyError(f"'{output}' exists and is no artefact; it is left as it is")
        try:
            module.artefact.save(output)
        except OSError as error:
            raise EmmyError(f"cannot write '{output}': {(error.strerror or str(error)).lower()}") from None


def resources(module: CompiledModule) -> dict[str, str]:
    """Registers and shared memory of each kernel, as the assembler reports them."""
    return {
        kernel: f"{used['registers']} registers, {used['spill_store_bytes']} bytes spilled"
        for kernel, used in module.artefact.resources.items()
    }
