"""`emmy view`: a layout as an SVG picture, or all levels of a module as one HTML page."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import cast

from emmy.atoms import ATOMS, DTYPE_BITS, OperandPlace, get_atom
from emmy.errors import EmmyError
from emmy.files import read_text, write_file
from emmy.layout.shared import Swizzle, shared_layout
from emmy.targets import DEFAULT_TARGET, TARGETS, get_target
from emmy.tools.compile_command import add_lowering_options
from emmy.views.layouts import fragment_svg, shared_svg

ELEMENT_BYTES = {"f16": 2, "bf16": 2, "f32": 4, "f8": 1, "f8E4M3FN": 1, "f8E5M2": 1, "i8": 1, "i32": 4}
"""Bytes of an element of a shared tile; what it means does not matter here."""

SWIZZLES: dict[str, Swizzle] = {"auto": "auto", "none": "none", "128": 128, "64": 64, "32": 32}

ATOM_NAMES = tuple(dict.fromkeys(atom.name for atom in ATOMS))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `emmy view`."""
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    layout_summary, ir_summary = (
        "a tile in shared memory, or a fragment, as SVG",
        "a module at every level, as one HTML page",
    )
    layout = kinds.add_parser("layout", help=layout_summary, description=layout_summary)
    which = layout.add_mutually_exclusive_group(required=True)
    which.add_argument("--shared", metavar="ROWSxCOLSxDTYPE", help="a tile in shared memory, such as 128x64xf16")
    which.add_argument("--fragment", metavar="ROWSxCOLS", help="a fragment of one warp, such as 64x16")
    layout.add_argument(
        "--swizzle", choices=SWIZZLES, default="auto", help="of a shared tile, in bytes (default: auto)"
    )
    layout.add_argument("--rows", type=int, default=32, metavar="N", help="how many rows of a shared tile to draw (32)")
    layout.add_argument("--place", choices=("a", "b", "c"), default="a", help="operand of a fragment (default: a)")
    layout.add_argument("--atom", choices=ATOM_NAMES, default=ATOM_NAMES[0], help=f"default: {ATOM_NAMES[0]}")
    layout.add_argument("--dtype", choices=DTYPE_BITS, default="f16", help="of a fragment's operands (default: f16)")
    layout.add_argument("--accumulate", choices=("f32", "f16"), default="f32", help="dtype of its sums (default: f32)")
    ir = kinds.add_parser("ir", help=ir_summary, description=ir_summary)
    ir.add_argument("file", help="a module of textual IR, at any level")
    ir.add_argument("--target", metavar="SM", default=DEFAULT_TARGET, help=f"default: {DEFAULT_TARGET}")
    add_lowering_options(ir)
    ir.add_argument("--every-pass", action="store_true", help="the module after every pass, not after every level")
    for kind in (layout, ir):
        kind.add_argument("-o", "--output", metavar="OUT", help="a file (default: stdout)")


def run(args: argparse.Namespace) -> int:
    """Draw and write."""
    text = _layout(args) if args.kind == "layout" else _ir(args)
    if args.output is None:
        sys.stdout.write(text)
    else:
        write_file(args.output, text)
    return 0


def _layout(args: argparse.Namespace) -> str:
    if args.shared is not None:
        match = re.fullmatch(r"([0-9]{1,6})x([0-9]{1,6})x(\w+)", args.shared)
        if match is None or match[3] not in ELEMENT_BYTES:
            known = ", ".join(ELEMENT_BYTES)
            raise EmmyError(f"--shared is ROWSxCOLSxDTYPE with a dtype of {known}; got '{args.shared}'")
        if args.rows < 1:
            raise EmmyError(f"--rows draws 1 row or more, got {args.rows}")
        rows, columns, element = int(match[1]), int(match[2]), ELEMENT_BYTES[match[3]]
        most = max(target.shared_bytes_per_block for target in TARGETS.values())
        if rows * columns * element > most:
            raise EmmyError(
                f"a tile of {rows * columns * element} bytes is in no shared memory; a CTA has {most} at most"
            )
        tile = shared_layout(rows, columns, element, SWIZZLES[args.swizzle])
        return shared_svg(tile, match[3], args.rows)
    match = re.fullmatch(r"([0-9]{1,6})x([0-9]{1,6})", args.fragment)
    if match is None or "0" in match.groups():
        raise EmmyError(f"--fragment is ROWSxCOLS, such as 64x16; got '{args.fragment}'")
    atom = get_atom(args.atom, args.dtype, args.accumulate)
    return fragment_svg(atom, cast(OperandPlace, args.place), int(match[1]), int(match[2]))


def _ir(args: argparse.Namespace) -> str:
    from emmy.options import Options
    from emmy.tools.schedule_option import parse_schedule
    from emmy.views.ir_page import ir_page, panels_of

    text = read_text(args.file)
    fields = tuple((parse_schedule(args.schedule) or {}).items())
    options = Options(target=get_target(args.target).name, accumulate=args.accumulate, schedule=fields)
    return ir_page(Path(args.file).name, panels_of(text, args.file, options, args.every_pass))
