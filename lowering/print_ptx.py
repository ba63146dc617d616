"""Level 4 to text: every `ptx.kernel` of a module as one PTX module.

Instructions print as their rows say. Loops and ifs become labels and uniform branches; `emmy.lowering.registers` says which
values share a register, and where loop-carried values do not, they are moved in parallel at the end of the body.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from functools import cache
from typing import cast

from xdsl.dialects.builtin import FloatAttr, IntAttr, IntegerAttr, ModuleOp, f32, i1, i16, i32, i64
from xdsl.dialects.scf import ForOp, IfOp, YieldOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from emmy.dialects.ptx import CommentOp, ConstantOp, Instruction, KernelOp, Row
from emmy.errors import EmmyError
from emmy.locations import location_of
from emmy.lowering.registers import PREFIXES, assign
from emmy.targets import get_target

SHARED = "smem"
"""The symbol of the dynamic shared memory."""

SHARED_ALIGNMENT = 1024
"""Bytes: the period of the widest swizzle, which XORs absolute address bits."""

DECLARED: dict[Attribute, str] = {i1: ".pred", i16: ".b16", i32: ".b32", i64: ".b64", f32: ".f32"}
MOVES: dict[Attribute, str] = {i1: "mov.pred", i16: "mov.b16", i32: "mov.b32", i64: "mov.b64", f32: "mov.f32"}
PARAMETER_TYPES: dict[Attribute, str] = {i32: "u32", i64: "u64"}

MAP_BYTES, MAP_ALIGNMENT = 128, 64
"""Of a tensor map as a parameter, whose address is taken (CUDA driver API, `CUtensorMap`)."""


def print_ptx(module: ModuleOp, target: str) -> str:
    """The PTX text of all `ptx.kernel` ops of `module` for a target such as `sm_90a`, by its lowest sufficient PTX version.

    Raises `EmmyError` for an unknown target, a module without kernels, and ops that are not of level 4.
    """
    kernels = [op for op in module.body.block.ops if isinstance(op, KernelOp)]
    if not kernels:
        raise EmmyError("there is no ptx.kernel to print; lower-to-ptx makes them", location_of(module))
    since = max((op.row.since for op in module.walk() if isinstance(op, Instruction)), default=0.0)
    version = get_target(target).ptx_version
    lines = [
        f".version {since if since > float(version) else version}",
        f".target {target}",
        ".address_size 64",
        "",
        f".extern .shared .align {SHARED_ALIGNMENT} .b8 {SHARED}[];",
    ]
    for kernel in kernels:
        lines.extend(KernelPrinter(kernel).lines())
    return "\n".join(lines) + "\n"


@cache
def _format(row: Row) -> str:
    """The row's text as a format string over its registers and immediates."""
    escaped = row.text.replace("{", "{{").replace("}", "}}")
    return "\t" + re.sub(r"\$(\d+)", r"{\1}", escaped) + ";"


def literal(value: IntegerAttr | FloatAttr) -> str:
    """A constant as PTX writes it; floats by their bits."""
    if isinstance(value, FloatAttr):
        return f"0f{struct.unpack('<I', struct.pack('<f', value.value.data))[0]:08X}"
    return str(value.value.data)


class KernelPrinter:
    """Prints one kernel."""

    def __init__(self, kernel: KernelOp):
        self.kernel = kernel
        self.names, self.counts = assign(kernel.block)
        self.out: list[str] = []
        self.labels = 0

    def lines(self) -> list[str]:
        """The `.entry` and its body."""
        kernel, name = self.kernel, self.kernel.sym_name.data
        declared: list[str] = []
        for number, (kind, arg) in enumerate(zip(kernel.params, kernel.block.args, strict=True)):
            param, register = f"{name}_{number}", self.names[arg]
            if kind.data.startswith("tensor_map"):
                declared.append(f"\t.param .align {MAP_ALIGNMENT} .b8 {param}[{MAP_BYTES}]")
                self.out += [f"\tmov.b64 {register}, {param};", f"\tcvta.param.u64 {register}, {register};"]
            else:
                declared.append(f"\t.param .{PARAMETER_TYPES[arg.type]} {param}")
                self.out.append(f"\tld.param.{PARAMETER_TYPES[arg.type]} {register}, [{param}];")
        self.block(kernel.block)
        self.out.append("\tret;")
        head = ["", f".visible .entry {name}(", ",\n".join(declared), ")"]
        if kernel.cluster_shape:
            head += [f".reqnctapercluster {', '.join(map(str, kernel.cluster_shape))}", ".explicitcluster"]
        head += [f".maxntid {kernel.threads.value.data}, 1, 1", f".minnctapersm {kernel.min_ctas.value.data}", "{"]
        for type_, count in self.counts.items():
            if count:
                head.append(f"\t.reg {DECLARED[type_]} {PREFIXES[type_]}<{count}>;")
        return [*head, *self.out, "}"]

    # ---- values --------------------------------------------------------------------------------------------------

    def text(self, value: SSAValue) -> str:
        """The register of a value, or the literal that it is."""
        name = self.names.get(value)
        return literal(cast(ConstantOp, value.owner).value) if name is None else name

    def scratch(self, type_: Attribute) -> str:
        """A fresh register."""
        self.counts[type_] += 1
        return f"{PREFIXES[type_]}{self.counts[type_] - 1}"

    def label(self, word: str, number: int) -> str:
        """A label of the loop or if with this number."""
        return f"{word}_{number}"

    def number(self) -> int:
        """A fresh number for labels."""
        self.labels += 1
        return self.labels

    def move(self, targets: Sequence[SSAValue], sources: Sequence[SSAValue]) -> None:
        """Move all sources to the registers of all targets as if at once."""
        pending: dict[str, tuple[str, Attribute]] = {}
        for target, source in zip(targets, sources, strict=True):
            to, from_ = self.names[target], self.text(source)
            if to != from_:
                pending[to] = (from_, target.type)
        while pending:
            read = {from_ for from_, _ in pending.values()}
            free = [to for to in pending if to not in read]
            for to in free:
                from_, type_ = pending.pop(to)
                self.out.append(f"\t{MOVES[type_]} {to}, {from_};")
            if not free:  # only cycles are left: save one register, and read the copy instead
                saved, (_, type_) = next(iter(pending.items()))
                copy = self.scratch(type_)
                self.out.append(f"\t{MOVES[type_]} {copy}, {saved};")
                pending = {to: (copy if f == saved else f, t) for to, (f, t) in pending.items()}

    # ---- ops -----------------------------------------------------------------------------------------------------

    def block(self, block: Block) -> None:
        """All ops of a block but its yield."""
        for op in block.ops:
            if isinstance(op, Instruction):
                self.instruction(op)
            elif isinstance(op, ForOp):
                self.loop(op)
            elif isinstance(op, IfOp):
                self.branch(op)
            elif isinstance(op, CommentOp):
                self.out.append(f"\t// {op.text.data}")
            elif isinstance(op, ConstantOp):
                name = self.names.get(op.result)
                if name is not None:
                    self.out.append(f"\t{MOVES[op.result.type]} {name}, {literal(op.value)};")

    def instruction(self, op: Instruction) -> None:
        """One line; with a predicate, before it what its results are where the predicate is false. A wait: a small loop."""
        row, operands, names = op.row, op.operands, self.names
        count = len(row.operands)
        parts = [names[result] for result in op.results]
        parts += [names.get(o) or self.text(o) for o in operands[:count]]
        if row.immediates:
            properties = op.properties
            parts += [str(cast(IntAttr, properties[i]).data) for i in row.immediates]
        line = _format(row).format(*parts)
        if row.moves:
            self.tied_instruction(op, line)
            return
        if row.until:
            label = self.label("WAIT", self.number())
            self.out += [f"{label}:", line, f"\t@!{parts[0]} bra {label};"]
            return
        if len(operands) > count:
            self.move(op.results, operands[count + 1 :])
            line = f"\t@{names[operands[count]]} {line[1:]}"
        self.out.append(line)

    def tied_instruction(self, op: Instruction, line: str) -> None:
        """A line whose results must be in the registers of the operands that are tied to them, or are moved there."""
        tied, before = op.row.tied, op.row.moves == "before"
        if not before:
            self.out.append(line)
        self.move([op.results[i] for i, _ in tied], [op.operands[j] for _, j in tied])
        if before:
            self.out.append(line)

    def loop(self, op: ForOp) -> None:
        """Guard (unless the bounds are constants that run at least once), body, moves, test at the end."""
        number, block = self.number(), op.body.block
        counter, ub = self.names[block.args[0]], self.text(op.ub)
        step, test = self.text(op.step), self.scratch(i1)
        self.move(block.args, (op.lb, *op.iter_args))
        if not _runs(op):
            self.out.append(f"\tsetp.ge.s32 {test}, {counter}, {ub};")
            self.out.append(f"\t@{test} bra.uni {self.label('DONE', number)};")
        self.out.append(f"{self.label('LOOP', number)}:")
        self.block(block)
        self.move(block.args[1:], cast(YieldOp, block.last_op).operands)
        self.out.append(f"\tadd.s32 {counter}, {counter}, {step};")
        self.out.append(f"\tsetp.lt.s32 {test}, {counter}, {ub};")
        self.out.append(f"\t@{test} bra.uni {self.label('LOOP', number)};")
        self.out.append(f"{self.label('DONE', number)}:")

    def does_something(self, block: Block, op: IfOp) -> bool:
        """Does a region of an if hold ops, or give what is not in the registers of the results already?"""
        first = block.first_op
        if not isinstance(first, YieldOp):
            return True
        return any(self.names[r] != self.text(v) for r, v in zip(op.results, first.operands, strict=True))

    def branch(self, op: IfOp) -> None:
        """A uniform branch around the region that does not run."""
        number, otherwise = self.number(), op.false_region
        has_else = bool(otherwise.blocks) and self.does_something(otherwise.block, op)
        end, condition = self.label("END", number), self.names[op.cond]
        skip = self.label("ELSE", number) if has_else else end
        self.out.append(f"\t@!{condition} bra.uni {skip};")
        then = op.true_region.block
        self.block(then)
        self.move(op.results, cast(YieldOp, then.last_op).operands)
        if has_else:
            self.out.append(f"\tbra.uni {end};")
            self.out.append(f"{skip}:")
            self.block(otherwise.block)
            self.move(op.results, cast(YieldOp, otherwise.block.last_op).operands)
        self.out.append(f"{end}:")


def _constant(value: SSAValue) -> int | None:
    owner: Operation | Block = value.owner
    if isinstance(owner, ConstantOp) and isinstance(owner.value, IntegerAttr):
        return owner.value.value.data
    return None


def _runs(op: ForOp) -> bool:
    """Is it known that the body runs at least once?"""
    lb, ub = _constant(op.lb), _constant(op.ub)
    return lb is not None and ub is not None and lb < ub
