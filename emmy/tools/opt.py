"""`emmy-opt`: read a module, run passes, print the module or its PTX.

    emmy-opt matmul.mlir -p 'assign-schedule{target=sm_90a},lower-tensor-op'
    emmy-opt matmul.mlir -p '...,lower-to-ptx' --target sm_90a -t ptx

It takes xDSL's flags. Before the passes and after each one, every op is verified, and SSA dominance. Whatever is wrong
is one sentence, `file:line:column: error: ...`, with the source line; the exit code is then 1 (2 for the command line).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import IO

from xdsl.dialects import get_all_dialects
from xdsl.dialects.builtin import ModuleOp
from xdsl.frontend import get_all_frontends
from xdsl.passes import ModulePass
from xdsl.targets import get_all_targets
from xdsl.xdsl_opt_main import xDSLOptMain

from emmy.errors import EmmyError
from emmy.files import decode, read_text, write_file
from emmy.ir import DIALECTS, as_emmy_error, load_dialect, parse_module, print_module, verify_module
from emmy.ptx_target import PtxTarget
from emmy.registry import available_passes, describe_passes, parse_passes
from emmy.targets import get_target
from emmy.tools.shell import guarded

SEPARATOR = "// -----\n"
"""What stands between the modules of one file under `--split-input-file`."""


class EmmyOpt(xDSLOptMain):
    """xDSL's driver with Emmy's dialects, passes and target, checks between passes, and located errors."""

    version_format = "emmy-opt, on xDSL {xdsl_version}"

    def __init__(self, args: Sequence[str] | None, texts: dict[str, str]):
        self.texts = texts
        self.passes: list[ModulePass] = []
        super().__init__("Run passes over a module of textual IR.", args)

    # Tables are merged by hand: names of ours win, and another package's broken plug-in breaks nothing here.

    def register_all_dialects(self) -> None:
        factories = {**get_all_dialects(), **{name: partial(load_dialect, name) for name in DIALECTS}}
        for name, factory in factories.items():
            self.ctx.register_dialect(name, factory)

    def register_all_frontends(self) -> None:
        self.available_frontends.update(get_all_frontends())

    def register_all_passes(self) -> None:
        self.available_passes.update(available_passes())

    def register_all_targets(self) -> None:
        self.available_targets.update(get_all_targets())
        self.available_targets[PtxTarget.name] = lambda: PtxTarget

    def register_all_arguments(self, arg_parser: argparse.ArgumentParser) -> None:
        self.arg_parser = arg_parser
        super().register_all_arguments(arg_parser)
        for action in arg_parser._actions:  # pyright: ignore[reportPrivateUsage]
            if action.dest == "passes":
                action.help = "passes, as 'first,second{option=value}'; --list-passes lists them"
            if action.dest == "target":
                action.help = f"output format: {', '.join(self.available_targets)} (default mlir)"
                action.option_strings = ["-t"]  # its long name, --target, means the GPU target here
        del arg_parser._option_string_actions["--target"]  # pyright: ignore[reportPrivateUsage]
        add = arg_parser.add_argument
        add("--target", dest="gpu", metavar="SM", help="GPU target of passes with an option `target`, and of -t ptx")
        add("--list-passes", action="store_true", help="list the passes and their options")
        add("--print-ir-after-all", action="store_true", help="print the module to stderr after every pass")

    def setup_pipeline(self) -> None:
        if self.args.gpu is not None:
            get_target(self.args.gpu)
            if self.args.target == PtxTarget.name:
                self.args.target = f"{PtxTarget.name}{{target={self.args.gpu}}}"
        self.passes = parse_passes(self.args.passes, self.args.gpu)

    # ---- one file, in order ------------------------------------------------------------------------------------------

    def run(self) -> None:
        """List passes, or read the input, transform it and write the output: all of it or nothing."""
        if self.args.list_passes:
            sys.stdout.write(describe_passes())
            return
        pieces: list[str] = []
        for text, offset in self.read_chunks():
            try:
                pieces.append(self.transform(text, offset))
            except EmmyError as error:
                if not (self.args.verify_diagnostics or self.args.parsing_diagnostics):
                    raise
                pieces.append(f"{error}\n")
        output = SEPARATOR.join(pieces)
        if self.args.output_file is None:
            sys.stdout.write(output)
            sys.stdout.flush()
        else:
            write_file(self.args.output_file, output)

    def read_chunks(self) -> list[tuple[str, int]]:
        """The modules of the input, each with the number of lines before it."""
        name = self.get_input_name()
        text = decode(sys.stdin.buffer.read(), name) if self.args.input_file is None else read_text(name)
        self.texts[name] = text
        if not self.args.split_input_file:
            return [(text, 0)]
        chunks, offset = list[tuple[str, int]](), 0
        for chunk in text.split(SEPARATOR.strip()):
            chunks.append((chunk, offset))
            offset += chunk.count("\n")
        return chunks

    def transform(self, text: str, offset: int) -> str:
        """Parse, check, run the passes with checks between them, and print one module."""
        module = self.parse_text(text, offset)
        self.verify(module, "reading the input")
        for index, step in enumerate(self.passes):
            self.apply(step, module)
            last = index == len(self.passes) - 1
            if self.args.print_ir_after_all or (self.args.print_between_passes and not last):
                stream = sys.stderr if self.args.print_ir_after_all else sys.stdout
                stream.write(f"// IR after {step.name}:\n{print_module(module)}\n")
        try:
            return self.output_resulting_program(module)
        except Exception as error:
            raise as_emmy_error(error, f"printing as {self.args.target}") from None

    def parse_text(self, text: str, offset: int) -> ModuleOp:
        """The module, by our parser for MLIR text, else by the front end that was asked for."""
        name = self.get_input_name()
        frontend = self.args.frontend or os.path.splitext(name)[1].removeprefix(".")
        if frontend.partition("{")[0] not in self.available_frontends or frontend == "mlir":
            return parse_module(text, name, self.ctx, offset, not self.args.no_implicit_module)
        from io import BytesIO

        module = super().parse_chunk(BytesIO(text.encode()), frontend, offset)
        if module is None:
            raise EmmyError(f"the front end '{frontend}' gives no module for '{name}'")
        return module

    def apply(self, step: ModulePass, module: ModuleOp) -> None:
        """Run one pass and check what it leaves."""
        start = time.perf_counter()
        try:
            step.apply(self.ctx, module)
        except Exception as error:
            raise as_emmy_error(error, f"running {step.name}") from None
        if self.args.time_passes:
            sys.stderr.write(f"pass {step.name} took {1e3 * (time.perf_counter() - start):.1f} ms\n")
        self.verify(module, f"running {step.name}")

    def verify(self, module: ModuleOp, doing: str) -> None:
        """Every op and dominance, unless that was switched off."""
        if self.args.disable_verify:
            return
        try:
            verify_module(module)
        except EmmyError as error:
            if doing != "reading the input":
                raise EmmyError(f"{error.message} (after {doing})", error.location) from None
            raise

    def prepare_output(self) -> IO[str]:
        raise NotImplementedError("run() writes the output")


def make_parser() -> argparse.ArgumentParser:
    """The command line of emmy-opt: what completion and the manual page are made from."""
    parser = EmmyOpt([], {}).arg_parser
    parser.prog = "emmy-opt"
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run emmy-opt on `argv` (default: the process's arguments); the exit code."""
    texts: dict[str, str] = {}

    def action() -> int:
        EmmyOpt(argv, texts).run()
        return 0

    return guarded(action, texts)


if __name__ == "__main__":
    sys.exit(main())
