"""Level 4: one thread. One op for each PTX instruction, virtual registers as SSA values.

Builtin types stand for registers: i32 = .b32, i64 = .b64, f32 = .f32, i1 = .pred, i16 = .b16; a pair of 16-bit floats is
an i32. Control flow is `scf.for` and `scf.if` on i32 and i1, uniform over the CTA, until the printer turns it into labels
and branches. No op prints types, because the table of instructions below fixes them:

    %x0, %x1, %x2, %x3 = ptx.ldmatrix_x4 %address, 1024
    %y = ptx.ld_global_b32 %pointer, 0 if %inside else %zero
    ptx.cp_async_cg_16 %to, %from, 4096, 0 if %more

An instruction is a row: to add one is to add a row. Results first, then register operands, then immediates (bytes of an
address offset, a count), in the op as in the table. Any instruction with an effect takes a predicate (`if`); if it has
results, `else` gives their values where the predicate is false.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, cast

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    DictionaryAttr,
    Float32Type,
    FloatAttr,
    IntAttr,
    IntegerAttr,
    IntegerType,
    StringAttr,
    SymbolNameConstraint,
    f32,
    i1,
    i16,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, Dialect, Operation, OpTraits, Region, SSAValue
from xdsl.irdl import IRDLOperation, eq, irdl_op_definition, opt_prop_def, prop_def, region_def, result_def, traits_def
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import ConstantLike, IsolatedFromAbove, NoTerminator, Pure, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from emmy.atoms import ATOMS, Atom

REGISTER_TYPES: dict[str, IntegerType | Float32Type] = {"h": i16, "r": i32, "l": i64, "f": f32, "p": i1}
"""The letters with which the table writes register types."""


@dataclass(frozen=True, eq=False)
class Row:
    """One PTX instruction.

    results, operands: a letter of REGISTER_TYPES for each. immediates: what the integers after the operands are.
    text: the instruction; `$i` is the i-th of results, operands and immediates, counted through. pure: neither memory nor
    synchronisation nor other lanes. literals: register operands may be replaced by constants.
    tied: (result, operand) pairs that want one register, because ptxas then has nothing to move.
    until: the instruction is repeated until its result, a predicate, holds; it takes no predicate of its own.
    needs: the flag of `emmy.targets.Target` that a target must have, or nothing. since: the first PTX version, if it is above
    that of some target with that flag.
    """

    name: str
    results: str
    operands: str
    immediates: tuple[str, ...]
    text: str
    pure: bool = False
    literals: bool = False
    tied: tuple[tuple[int, int], ...] = ()
    until: bool = False
    needs: str = ""
    since: float = 0.0

    @property
    def result_types(self) -> tuple[Attribute, ...]:
        """Register types of the results."""
        return tuple(REGISTER_TYPES[letter] for letter in self.results)

    @property
    def operand_types(self) -> tuple[Attribute, ...]:
        """Register types of the operands, without predicate and `else` values."""
        return tuple(REGISTER_TYPES[letter] for letter in self.operands)


# ---- the table -------------------------------------------------------------------------------------------------------

_ARITHMETIC: tuple[tuple[str, str, str], ...] = (
    # 32-bit integers
    ("add.s32", "r", "rr"),
    ("sub.s32", "r", "rr"),
    ("mul.lo.s32", "r", "rr"),
    ("mul.hi.u32", "r", "rr"),
    ("mad.lo.s32", "r", "rrr"),
    ("div.u32", "r", "rr"),
    ("rem.u32", "r", "rr"),
    ("div.s32", "r", "rr"),
    ("rem.s32", "r", "rr"),
    ("min.s32", "r", "rr"),
    ("max.s32", "r", "rr"),
    ("min.u32", "r", "rr"),
    ("max.u32", "r", "rr"),
    ("and.b32", "r", "rr"),
    ("or.b32", "r", "rr"),
    ("xor.b32", "r", "rr"),
    ("shl.b32", "r", "rr"),
    ("shr.u32", "r", "rr"),
    ("shr.s32", "r", "rr"),
    *((f"setp.{test}.s32", "p", "rr") for test in ("eq", "ne", "lt", "le", "gt", "ge")),
    *((f"setp.{test}.u32", "p", "rr") for test in ("lt", "le", "gt", "ge")),
    ("selp.b32", "r", "rrp"),
    # 64-bit integers: addresses
    ("add.s64", "l", "ll"),
    ("mul.lo.s64", "l", "ll"),
    ("shl.b64", "l", "lr"),
    ("mul.wide.s32", "l", "rr"),
    ("mul.wide.u32", "l", "rr"),
    ("mad.wide.s32", "l", "rrl"),
    ("mad.wide.u32", "l", "rrl"),
    ("cvt.s64.s32", "l", "r"),
    ("cvt.u64.u32", "l", "r"),
    ("cvta.to.global.u64", "l", "l"),
    # predicates
    ("and.pred", "p", "pp"),
    ("or.pred", "p", "pp"),
    ("xor.pred", "p", "pp"),
    ("not.pred", "p", "p"),
    # floats
    ("add.f32", "f", "ff"),
    ("sub.f32", "f", "ff"),
    ("mul.f32", "f", "ff"),
    ("fma.rn.f32", "f", "fff"),
    ("div.full.f32", "f", "ff"),
    ("min.f32", "f", "ff"),
    ("max.f32", "f", "ff"),
    ("max.NaN.f32", "f", "ff"),
    ("min.NaN.f32", "f", "ff"),
    ("neg.f32", "f", "f"),
    ("abs.f32", "f", "f"),
    ("ex2.approx.ftz.f32", "f", "f"),
    ("lg2.approx.ftz.f32", "f", "f"),
    ("rcp.approx.f32", "f", "f"),
    ("sqrt.approx.f32", "f", "f"),
    ("rsqrt.approx.f32", "f", "f"),
    ("tanh.approx.f32", "f", "f"),
    ("setp.ge.f32", "p", "ff"),
    ("setp.lt.f32", "p", "ff"),
    ("setp.neu.f32", "p", "ff"),
    ("selp.f32", "f", "ffp"),
    # conversions; the first source of a pair is its upper half
    ("cvt.rn.f16x2.f32", "r", "ff"),
    ("cvt.rn.bf16x2.f32", "r", "ff"),
    ("cvt.rn.f16.f32", "h", "f"),
    ("cvt.rn.bf16.f32", "h", "f"),
    ("cvt.f32.f16", "f", "h"),
    ("cvt.f32.bf16", "f", "h"),
)
"""Opcode, results, operands: pure instructions, printed `opcode result, operand, ...`."""

_MOVES: tuple[tuple[str, str, str, str], ...] = (
    ("tid_x", "r", "", "mov.u32 $0, %tid.x"),
    ("ctaid_x", "r", "", "mov.u32 $0, %ctaid.x"),
    ("nctaid_x", "r", "", "mov.u32 $0, %nctaid.x"),
    ("shared_base", "r", "", "mov.u32 $0, smem"),
    ("mov_b32_f32", "f", "r", "mov.b32 $0, $1"),
    ("mov_f32_b32", "r", "f", "mov.b32 $0, $1"),
    ("unpack_b32", "hh", "r", "mov.b32 {$0,$1}, $2"),
    ("pack_b32", "r", "hh", "mov.b32 $0, {$1,$2}"),
)
"""Name, results, operands, text: reads of special registers, and changes of a register's type. Pure, registers only."""

_COPIES: tuple[tuple[str, str], ...] = (
    ("cp_async_ca_4", "cp.async.ca.shared.global.L2::128B [$0+{to}], [$1+{from}], 4"),
    ("cp_async_ca_8", "cp.async.ca.shared.global.L2::128B [$0+{to}], [$1+{from}], 8"),
    ("cp_async_cg_16", "cp.async.cg.shared.global.L2::128B [$0+{to}], [$1+{from}], 16"),
)
"""Each exists without and with a source size (`_zfill`): bytes beyond it are filled with zeros."""

_SYNCHRONISATION: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("cp_async_commit_group", (), "cp.async.commit_group"),
    ("cp_async_wait_group", ("pending",), "cp.async.wait_group $0"),
    ("bar_sync", ("barrier",), "bar.sync $0"),
    ("bar_sync_count", ("barrier", "threads"), "bar.sync $0, $1"),
    ("bar_warp_sync", (), "bar.warp.sync -1"),
)
"""Name, immediates, text: on every target."""

_ASYNC_SYNCHRONISATION: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    ("fence_mbarrier_init", (), "fence.mbarrier_init.release.cluster", "tma"),
    ("fence_proxy_async_shared", (), "fence.proxy.async.shared::cta", "tma"),
    ("cp_async_bulk_commit_group", (), "cp.async.bulk.commit_group", "tma"),
    ("cp_async_bulk_wait_group", ("pending",), "cp.async.bulk.wait_group $0", "tma"),
    ("cp_async_bulk_wait_group_read", ("pending",), "cp.async.bulk.wait_group.read $0", "tma"),
    ("setmaxnreg_inc", ("registers",), "setmaxnreg.inc.sync.aligned.u32 $0", "setmaxnreg"),
    ("setmaxnreg_dec", ("registers",), "setmaxnreg.dec.sync.aligned.u32 $0", "setmaxnreg"),
)
"""Name, immediates, text, what of a target they need: the async proxy and the register pool."""

_MBARRIERS: tuple[Row, ...] = (
    Row("mbarrier_init", "", "r", ("offset", "count"), "mbarrier.init.shared.b64 [$0+$1], $2", needs="mbarrier"),
    Row("mbarrier_arrive", "l", "r", ("offset",), "mbarrier.arrive.shared.b64 $0, [$1+$2]", needs="mbarrier"),
    Row(
        "mbarrier_arrive_expect_tx",
        "",
        "r",
        ("offset", "bytes"),
        "mbarrier.arrive.expect_tx.shared.b64 _, [$0+$1], $2",
        needs="tma",
    ),
    Row(
        "mbarrier_try_wait_parity",
        "p",
        "rr",
        ("offset",),
        "mbarrier.try_wait.parity.shared.b64 $0, [$1+$3], $2",
        literals=True,
        until=True,
        needs="tma",
    ),
    Row(
        "mbarrier_test_wait_parity",
        "p",
        "rr",
        ("offset",),
        "mbarrier.test_wait.parity.shared.b64 $0, [$1+$3], $2",
        literals=True,
        until=True,
        needs="mbarrier",
    ),
    Row(
        "cp_async_mbarrier_arrive_noinc",
        "",
        "r",
        ("offset",),
        "cp.async.mbarrier.arrive.noinc.shared.b64 [$0+$1]",
        needs="mbarrier",
    ),
)
"""Barriers in shared memory. An arrive gives the phase that it arrived in, which nobody needs; a wait takes a parity."""

_TMA_LOADS: tuple[tuple[str, str, float], ...] = (
    ("shared_cluster", "shared::cluster", 0.0),
    ("shared_cta", "shared::cta", 8.6),
)
"""The same load in two spellings. For the first, ptxas calls a function at every load on sm_120a; the second is newer."""

_ACCESSES: tuple[tuple[str, str], ...] = (
    ("b16", "h"),
    ("b32", "r"),
    ("v2.b32", "rr"),
    ("v4.b32", "rrrr"),
    ("f32", "f"),
    ("v2.f32", "ff"),
)
"""Widths of plain loads and stores, and the registers that they move."""


def _list(first: int, count: int) -> str:
    """`$4,$5`"""
    return ",".join(f"${i}" for i in range(first, first + count))


def _braces(first: int, count: int) -> str:
    """`{$4,$5}`; a single register stands alone."""
    return f"{{{_list(first, count)}}}" if count > 1 else _list(first, count)


def _arithmetic_rows() -> list[Row]:
    rows: list[Row] = []
    for opcode, results, operands in _ARITHMETIC:
        slots = ", ".join(f"${i}" for i in range(len(results) + len(operands)))
        name = opcode.replace(".", "_")
        rows.append(Row(name, results, operands, (), f"{opcode} {slots}", pure=True, literals=True))
    rows.extend(Row(name, results, operands, (), text, pure=True) for name, results, operands, text in _MOVES)
    rows.append(Row("add_f32_f16", "f", "hf", (), "add.f32.f16 $0, $1, $2", pure=True, needs="mixed_add"))
    return rows


def _memory_rows() -> list[Row]:
    rows: list[Row] = []
    for space, address in (("global", "l"), ("shared", "r")):
        for width, moved in _ACCESSES:
            n, suffix = len(moved), width.replace(".", "_")
            load = f"ld.{space}.{width} {_braces(0, n)}, [${n}+${n + 1}]"
            store = f"st.{space}.{width} [$0+${n + 1}], {_braces(1, n)}"
            rows.append(Row(f"ld_{space}_{suffix}", moved, address, ("offset",), load))
            rows.append(Row(f"st_{space}_{suffix}", "", address + moved, ("offset",), store))
    for count in (1, 2, 4):
        for trans in ("", ".trans"):
            shape, name = f"sync.aligned.m8n8.x{count}{trans}.shared.b16", f"x{count}{trans.replace('.', '_')}"
            load = f"ldmatrix.{shape} {{{_list(0, count)}}}, [${count}+${count + 1}]"
            store = f"stmatrix.{shape} [$0+${count + 1}], {{{_list(1, count)}}}"
            rows.append(Row(f"ldmatrix_{name}", "r" * count, "r", ("offset",), load))
            rows.append(Row(f"stmatrix_{name}", "", "r" + "r" * count, ("offset",), store, needs="stmatrix"))
    for name, text in _COPIES:
        offsets = ("shared_offset", "global_offset")
        rows.append(Row(name, "", "rl", offsets, text.replace("{to}", "$2").replace("{from}", "$3")))
        filled = text.replace("{to}", "$3").replace("{from}", "$4") + ", $2"
        rows.append(Row(f"{name}_zfill", "", "rlr", offsets, filled))
    return rows


def _async_rows() -> list[Row]:
    """mbarriers, TMA of 1 to 5 dimensions (coordinates innermost first), elections, register pool."""
    rows = [
        *_MBARRIERS,
        Row("elect_sync", "p", "", (), "elect.sync _|$0, -1", needs="tma"),
        Row("prefetch_tensormap", "", "l", (), "prefetch.tensormap [$0]", needs="tma"),
    ]
    rows.extend(Row(name, "", "", values, text, needs=needs) for name, values, text, needs in _ASYNC_SYNCHRONISATION)
    for rank in range(1, 6):
        coordinates = "r" * rank
        for name, space, since in _TMA_LOADS:
            text = (
                f"cp.async.bulk.tensor.{rank}d.{space}.global.mbarrier::complete_tx::bytes [$0+${rank + 3}], "
                f"[$1, {{{_list(2, rank)}}}], [${rank + 2}+${rank + 4}]"
            )
            offsets = ("shared_offset", "barrier_offset")
            row = Row(tma_load_name(rank, name), "", f"rl{coordinates}r", offsets, text, needs="tma", since=since)
            rows.append(row)
        text = f"cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group [$0, {{{_list(1, rank)}}}], [${rank + 1}+${rank + 2}]"
        rows.append(Row(tma_store_name(rank), "", f"l{coordinates}r", ("shared_offset",), text, needs="tma"))
    return rows


def tma_load_name(rank: int, space: str) -> str:
    """The op of a TMA load: destination, tensor map, coordinates, mbarrier; `space` is shared_cluster or shared_cta."""
    return f"cp_async_bulk_tensor_{rank}d_{space}_global"


def tma_store_name(rank: int) -> str:
    """The op of a TMA store: tensor map, coordinates, source."""
    return f"cp_async_bulk_tensor_{rank}d_global_shared"


def _warp_rows() -> list[Row]:
    rows = [Row(name, "", "", immediates, text) for name, immediates, text in _SYNCHRONISATION]
    for letter, suffix in (("r", "b32"), ("f", "f32")):
        for mode, last in (("idx", 31), ("bfly", 31)):
            text = f"shfl.sync.{mode}.b32 $0, $1, $2, {last}, -1"
            rows.append(Row(f"shfl_{mode}_{suffix}", letter, letter, ("lane",), text))
    rows.append(Row("vote_any_pred", "p", "p", (), "vote.sync.any.pred $0, $1, -1"))
    rows.extend(_mma_row(atom) for atom in ATOMS if not atom.asynchronous)
    return rows


def mma_name(atom: Atom) -> str:
    """The op of a synchronous atom: `mma_m16n8k16_f32_f16` (accumulator, then operands), without the dialect's name."""
    return f"mma_{atom.name}_{atom.accumulator_dtype}_{atom.operand_dtype}"


def _mma_row(atom: Atom) -> Row:
    sums = ("f" if atom.accumulator_dtype == "f32" else "r") * atom.c.registers
    counts = (len(sums), atom.a.registers, atom.b.registers, len(sums))
    lists, first = list[str](), 0
    for count in counts:
        lists.append(f"{{{_list(first, count)}}}")
        first += count
    operands = "r" * (atom.a.registers + atom.b.registers) + sums
    tied = tuple((i, atom.a.registers + atom.b.registers + i) for i in range(len(sums)))
    return Row(mma_name(atom), sums, operands, (), f"{atom.ptx} {', '.join(lists)}", pure=True, tied=tied)


ROWS: dict[str, Row] = {row.name: row for row in (*_arithmetic_rows(), *_memory_rows(), *_warp_rows(), *_async_rows())}
"""Every instruction by the name of its op, without `ptx.`."""


# ---- ops -------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def integer(value: int) -> IntAttr:
    """The attribute of an immediate; attributes are costly to build and the same few return."""
    return IntAttr(value)


class Instruction(Operation):
    """One PTX instruction, described by its row of the table.

    Operands: those of the row; then the predicate if there is one; then, if there are results too, one value for each
    result where the predicate is false.
    """

    row: ClassVar[Row]

    @property
    def predicate(self) -> SSAValue | None:
        """The i1 under which the instruction runs, or None."""
        count = len(self.row.operands)
        return self.operands[count] if len(self.operands) > count else None

    @classmethod
    def parse(cls, parser: Parser) -> Instruction:
        row, names, values = cls.row, list[UnresolvedOperand](), list[int]()
        types = list(row.operand_types)
        for index in range(len(row.operands) + len(row.immediates)):
            if index:
                parser.parse_punctuation(",")
            if index < len(row.operands):
                names.append(parser.parse_unresolved_operand())
            else:
                values.append(parser.parse_integer(allow_boolean=False))
        if parser.parse_optional_keyword("if") is not None:
            names.append(parser.parse_unresolved_operand())
            types.append(i1)
            for index, type_ in enumerate(row.result_types):
                parser.parse_keyword("else") if index == 0 else parser.parse_punctuation(",")
                names.append(parser.parse_unresolved_operand())
                types.append(type_)
        operands = parser.resolve_operands(names, types, parser.pos)
        op = cls.create(
            operands=operands,
            result_types=row.result_types,
            properties=dict(zip(row.immediates, map(integer, values), strict=True)),
        )
        op.attributes = parser.parse_optional_attr_dict()
        return op

    def print(self, printer: Printer) -> None:
        row, count = self.row, len(self.row.operands)
        if count or row.immediates:
            printer.print_string(" ")
        printer.print_list(self.operands[:count], printer.print_ssa_value)
        if count and row.immediates:
            printer.print_string(", ")
        printer.print_string(", ".join(str(cast(IntAttr, self.properties[name]).data) for name in row.immediates))
        if len(self.operands) > count:
            printer.print_string(" if ")
            printer.print_ssa_value(self.operands[count])
            if row.results:
                printer.print_string(" else ")
                printer.print_list(self.operands[count + 1 :], printer.print_ssa_value)
        printer.print_op_attributes(self.attributes)

    def verify_(self) -> None:
        row, types = self.row, tuple(self.operand_types)
        wanted = row.operand_types
        if len(types) > len(wanted):
            if row.pure or row.until:
                what = "that is repeated" if row.until else "without effects"
                raise VerifyException(f"an instruction {what} takes no predicate")
            wanted = (*wanted, i1, *row.result_types)
        if types != wanted:
            raise VerifyException(f"operands are {_type_list(wanted)}, got {_type_list(types)}")
        if tuple(self.result_types) != row.result_types:
            raise VerifyException(f"results are {_type_list(row.result_types)}, got {_type_list(self.result_types)}")
        for name in row.immediates:
            if not isinstance(self.properties.get(name), IntAttr):
                raise VerifyException(f"the immediate '{name}' is missing")


def _type_list(types: Sequence[Attribute]) -> str:
    return f"({', '.join(str(t) for t in types)})"


def _define(row: Row) -> type[Instruction]:
    """The op of a row. Pure ones have xDSL's Pure trait; the others have none, so that nothing moves or drops them."""
    traits = (Pure(),) if row.pure else ()
    body: dict[str, object] = {"name": f"ptx.{row.name}", "row": row, "traits": OpTraits(lambda: traits)}
    body["__doc__"] = f"`{row.text};`"
    return type(f"Ptx_{row.name}", (Instruction,), body)


INSTRUCTIONS: dict[str, type[Instruction]] = {name: _define(row) for name, row in ROWS.items()}
"""Row name -> op class; build with `INSTRUCTIONS[name].create(operands=, result_types=, properties=)`."""


@irdl_op_definition
class ConstantOp(IRDLOperation):
    """A register-sized constant. Not an instruction where its users take literals; else a `mov`."""

    name = "ptx.constant"
    value = prop_def(IntegerAttr | FloatAttr)
    result = result_def(IntegerType | Float32Type)
    traits = traits_def(Pure(), ConstantLike())

    def __init__(self, value: IntegerAttr[IntegerType] | FloatAttr[Float32Type]):
        Operation.__init__(self, result_types=[value.type], properties={"value": value})

    @classmethod
    def parse(cls, parser: Parser) -> ConstantOp:
        value = parser.parse_attribute()
        if not isinstance(value, IntegerAttr | FloatAttr):
            parser.raise_error("a constant is a number of type i16, i32, i64 or f32")
        op = cls(cast(IntegerAttr[IntegerType], value))
        op.attributes = parser.parse_optional_attr_dict()
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_attribute(self.value)
        printer.print_op_attributes(self.attributes)

    def verify_(self) -> None:
        if self.result.type not in (i16, i32, i64, f32):
            raise VerifyException("a constant is a number of type i16, i32, i64 or f32")
        if cast(IntegerAttr, self.value).type != self.result.type:
            raise VerifyException(f"a constant {self.value} has the type of its value")


@irdl_op_definition
class CommentOp(IRDLOperation):
    """A line of explanation in the printed text."""

    name = "ptx.comment"
    text = prop_def(StringAttr)
    assembly_format = "$text attr-dict"

    def __init__(self, text: str):
        super().__init__(properties={"text": StringAttr(text)})

    def verify_(self) -> None:
        if "\n" in self.text.data:
            raise VerifyException("a comment is one line")


PARAMETER_WORDS: dict[str, tuple[int, IntegerType]] = {
    "pointer": (1, i64),
    "dim": (2, i32),
    "stride": (2, i64),
    "tensor_map": (1, i64),
}
"""What a kernel parameter can be, how many numbers follow the word, and its type."""


@dataclass(frozen=True)
class TensorMap:
    """What TMA moves at once. view: number of the launch argument. box: elements in each of the view's dimensions,
    outermost first. swizzle: 0, 32, 64 or 128 bytes."""

    view: int
    box: tuple[int, ...]
    swizzle: int

    def attribute(self) -> DictionaryAttr:
        """`{view = 0 : i64, box = array<i64: 128, 64>, swizzle = 128 : i64}`"""
        numbers = {"view": IntegerAttr(self.view, i64), "swizzle": IntegerAttr(self.swizzle, i64)}
        return DictionaryAttr({"box": DenseArrayBase.from_list(i64, self.box), **numbers})

    @staticmethod
    def of(attribute: Attribute) -> TensorMap:
        """The tensor map of an attribute. Raises `VerifyException` if it is none."""
        data: dict[str, Attribute] = dict(attribute.data) if isinstance(attribute, DictionaryAttr) else {}
        view, box, swizzle = data.get("view"), data.get("box"), data.get("swizzle")
        if (
            not isinstance(view, IntegerAttr)
            or not isinstance(box, DenseArrayBase)
            or not isinstance(swizzle, IntegerAttr)
        ):
            raise VerifyException(f"a tensor map has a view, a box and a swizzle, got {attribute}")
        return TensorMap(view.value.data, tuple(int(n) for n in box.get_values()), swizzle.value.data)

    def check(self) -> None:
        """Raises `VerifyException` for a box that TMA does not move (CUDA driver API, `cuTensorMapEncodeTiled`)."""
        if not 1 <= len(self.box) <= 5 or not all(1 <= n <= 256 for n in self.box):
            raise VerifyException(f"a box has 1 to 5 dimensions of 1 to 256 elements, got {list(self.box)}")
        if self.swizzle not in (0, 32, 64, 128):
            raise VerifyException(f"a swizzle spans 0, 32, 64 or 128 bytes, got {self.swizzle}")


@irdl_op_definition
class KernelOp(IRDLOperation):
    """The program of one thread: `.entry`. Its block arguments are the parameters.

    threads: of a CTA. min_ctas: CTAs a multiprocessor must be able to hold (bounds registers). shared_bytes: dynamic shared
    memory of a launch. params says of each parameter what the launch passes: `"pointer 2"`, the address of launch argument
    2; `"dim 0 1"`, the size of axis 1 of argument 0; `"stride 0 1"`, the stride of that axis in elements; `"tensor_map 0"`,
    the 128 bytes of the first of `tensor_maps`, by value: the block argument is their address.
    """

    name = "ptx.kernel"
    sym_name = prop_def(SymbolNameConstraint())
    threads = prop_def(IntegerAttr.constr(type=eq(i64)))
    min_ctas = prop_def(IntegerAttr.constr(type=eq(i64)))
    shared_bytes = prop_def(IntegerAttr.constr(type=eq(i64)))
    params = prop_def(ArrayAttr[StringAttr])
    tensor_maps = opt_prop_def(ArrayAttr[DictionaryAttr])
    body = region_def("single_block")
    traits = traits_def(IsolatedFromAbove(), SymbolOpInterface(), NoTerminator())

    def __init__(
        self,
        name: str,
        threads: int,
        min_ctas: int,
        shared_bytes: int,
        params: Sequence[str],
        body: Region,
        tensor_maps: Sequence[TensorMap] = (),
    ):
        super().__init__(
            regions=[body],
            properties={
                "sym_name": StringAttr(name),
                "threads": IntegerAttr(threads, i64),
                "min_ctas": IntegerAttr(min_ctas, i64),
                "shared_bytes": IntegerAttr(shared_bytes, i64),
                "params": ArrayAttr([StringAttr(p) for p in params]),
                "tensor_maps": ArrayAttr([m.attribute() for m in tensor_maps]) if tensor_maps else None,
            },
        )

    @property
    def maps(self) -> tuple[TensorMap, ...]:
        """The tensor maps that a launch passes."""
        return tuple(TensorMap.of(m) for m in self.tensor_maps) if self.tensor_maps is not None else ()

    @property
    def block(self) -> Block:
        """The kernel's only block; its arguments are the parameters."""
        return self.body.block

    @classmethod
    def parse(cls, parser: Parser) -> KernelOp:
        name = parser.parse_symbol_name()
        args = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_argument)
        numbers: list[int] = []
        for word in ("threads", "min_ctas", "shared_bytes"):
            parser.parse_keyword(word)
            numbers.append(parser.parse_integer(allow_boolean=False, allow_negative=False))
        parser.parse_keyword("params")
        params = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_str_literal)
        maps: list[TensorMap] = []
        if parser.parse_optional_keyword("tensor_maps") is not None:
            found = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_attribute)
            maps = [TensorMap.of(attribute) for attribute in found]
        attributes = parser.parse_optional_attr_dict_with_keyword()
        op = cls(name.data, numbers[0], numbers[1], numbers[2], params, parser.parse_region(args), maps)
        if attributes is not None:
            op.attributes = dict(attributes.data)
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name.data)
        with printer.in_parens():
            printer.print_list(self.block.args, printer.print_block_argument)
        for word, value in (
            ("threads", self.threads),
            ("min_ctas", self.min_ctas),
            ("shared_bytes", self.shared_bytes),
        ):
            printer.print_string(f" {word} {value.value.data}")
        printer.print_string(" params [" + ", ".join(f'"{p.data}"' for p in self.params) + "]")
        if self.tensor_maps is not None:
            printer.print_string(" tensor_maps [")
            printer.print_list(self.tensor_maps, printer.print_attribute)
            printer.print_string("]")
        printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False, print_empty_block=False)

    def verify_(self) -> None:
        if not 1 <= self.threads.value.data <= 1024 or self.threads.value.data % 32:
            raise VerifyException(f"a CTA has a multiple of 32 threads up to 1024, got {self.threads.value.data}")
        if len(self.params) != len(self.block.args):
            raise VerifyException(f"{len(self.block.args)} parameter(s) but {len(self.params)} description(s)")
        for param, arg in zip(self.params, self.block.args, strict=True):
            word, *numbers = param.data.split()
            count, type_ = PARAMETER_WORDS.get(word, (0, None))
            if len(numbers) != count or not all(n.isdecimal() for n in numbers):
                raise VerifyException(
                    f"'{param.data}' describes no parameter; examples: pointer 0, dim 0 1, stride 0 1, tensor_map 0"
                )
            if arg.type != type_:
                raise VerifyException(f"the parameter '{param.data}' is {type_}, got {arg.type}")
            if word == "tensor_map" and int(numbers[0]) >= len(self.maps):
                raise VerifyException(f"'{param.data}', and there are {len(self.maps)} tensor map(s)")
        for tensor_map in self.maps:
            tensor_map.check()


Ptx = Dialect("ptx", [KernelOp, ConstantOp, CommentOp, *INSTRUCTIONS.values()], [])
