"""The table of tensor-core atoms, and the fragments that are made of them.

An *atom* is one matrix instruction: D = A x B + C with A of m x k, B of k x n, C and D of m x n. A is described as
(m, k), C as (m, n), and B as (n, k): its rows are n, as the tiles of `A x B^T` lie in memory. One entry holds
everything that the rest of the compiler wants to know about the instruction: shape, dtypes, which lane and register
holds which element, targets and PTX spelling. A new atom of a known family is a new entry and nothing else.

A *fragment* is the tile of one warp: atoms side by side. Its registers run atom by atom, row-major over the fragment
(atom row outer, atom column inner), inside an atom in the order of the PTX operands. Registers are counted in
*elements*: element e of 16 bits is in 32-bit register e // 2, the lower half if e is even; of 8 bits in register e // 4.

    fragment c, 32 x 16, m16n8k16, f32:     atom (0,0) r0-3     atom (0,1) r4-7
                                            atom (1,0) r8-11    atom (1,1) r12-15

`ldmatrix_plan` says how one `ldmatrix` fills the registers of a block of a fragment from shared memory. It is derived
from the layouts, and so is right for every atom whose registers `ldmatrix` can fill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from emmy.errors import EmmyError
from emmy.layout.access import MATRIX_ROWS, WARP_LANES
from emmy.layout.algebra import Dimension, Integers, Layout, Place, Repeat, fit

OperandPlace = Literal["a", "b", "c"]

DTYPE_BITS: Mapping[str, int] = {"f16": 16, "bf16": 16, "f32": 32, "f8E4M3FN": 8, "f8E5M2": 8}
"""Width of the dtypes that atoms use, by the names that the IR gives them."""

PTX_F8: Mapping[str, str] = {"f8E4M3FN": "e4m3", "f8E5M2": "e5m2"}
"""Operand types of 8 bits, and what PTX calls them; any two of them may be multiplied."""

FRAGMENT_AXES = ("register", "lane")


@dataclass(frozen=True)
class Operand:
    """One operand of an atom. `layout` maps (row, col) to (register, lane) over one warp, registers counting elements;
    rows and columns are (m, k) for a, (n, k) for b, (m, n) for c."""

    place: OperandPlace
    dtype: str
    layout: Layout

    @property
    def rows(self) -> int:
        return self.layout.shape[0]

    @property
    def cols(self) -> int:
        return self.layout.shape[1]

    @property
    def elements(self) -> int:
        """Elements that each lane holds."""
        return self.layout.place_shape[0]

    @property
    def packed(self) -> int:
        """Elements in a 32-bit register."""
        return 32 // DTYPE_BITS[self.dtype]

    @property
    def registers(self) -> int:
        """32-bit registers that each lane holds: the length of the operand's list in the PTX instruction."""
        return self.elements // self.packed


@dataclass(frozen=True)
class Atom:
    """One matrix instruction.

    `targets` names the only targets that have it, or is empty if every target from `minimum_sm` on does. `since` is the first
    PTX version that has it, 0 if every target's does. An `asynchronous` atom needs a wait before its result is read. `issue`
    says who executes it together."""

    name: str
    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    c: Operand
    ptx: str
    minimum_sm: int
    since: float = 0.0
    targets: tuple[str, ...] = ()
    issue: Literal["warp", "warpgroup"] = "warp"
    asynchronous: bool = False

    @property
    def operand_dtype(self) -> str:
        """Of a, and of b unless both have 8 bits."""
        return self.a.dtype

    @property
    def accumulator_dtype(self) -> str:
        """Of c and d."""
        return self.c.dtype

    def operand(self, place: OperandPlace) -> Operand:
        """The operand by the name of its place."""
        return {"a": self.a, "b": self.b, "c": self.c}[place]

    def supports(self, target: str) -> bool:
        """Does a target such as "sm_89" or "sm_120a" have this atom?"""
        return target in self.targets if self.targets else sm_number(target) >= self.minimum_sm


def sm_number(target: str) -> int:
    """89 for "sm_89", 120 for "sm_120a". Raises `EmmyError` for anything else."""
    number = target.removeprefix("sm_").rstrip("af")
    if not target.startswith("sm_") or not number.isdecimal():
        raise EmmyError(f"{target!r} is not the name of a target; names are like sm_89 or sm_120a")
    return int(number)


# ---- The table. Layouts: PTX ISA, "Matrix Fragments for mma.m16n8k16 / mma.m16n8k8 with .f16 and .bf16", and "for
# mma.m16n8k32". ----


def _register(number: int) -> Place:
    return (number, 0)


def _lane(number: int) -> Place:
    return (0, number)


def _layout(row: tuple[Place, ...], col: tuple[Place, ...]) -> Layout:
    return Layout((Dimension("row", row), Dimension("col", col)), FRAGMENT_AXES)


_GROUP = (_lane(4), _lane(8), _lane(16))  # eight rows: one for each group of four lanes
_PAIR = (_register(1), _lane(1), _lane(2))  # eight columns: two adjacent ones in each lane of a group
_QUAD = (_register(1), _register(2), _lane(1), _lane(2))  # sixteen columns of 8 bits: four adjacent ones in each lane

_A_16x16 = _layout((*_GROUP, _register(2)), (*_PAIR, _register(4)))
_A_16x8 = _layout((*_GROUP, _register(2)), _PAIR)
_A_16x32 = _layout((*_GROUP, _register(4)), (*_QUAD, _register(8)))
_B_8x16 = _layout(_GROUP, (*_PAIR, _register(2)))
_B_8x8 = _layout(_GROUP, _PAIR)
_B_8x32 = _layout(_GROUP, (*_QUAD, _register(4)))
_C_16x8 = _A_16x8

#           name        m   n   k   layouts of a and b  types of a and b, sum  minimum sm, PTX version if it is later
_MMA_SYNC: tuple[tuple[str, int, int, int, Layout, Layout, str, str, str, int, float], ...] = (
    ("m16n8k16", 16, 8, 16, _A_16x16, _B_8x16, "f16", "f16", "f32", 80, 0),
    ("m16n8k16", 16, 8, 16, _A_16x16, _B_8x16, "f16", "f16", "f16", 80, 0),
    ("m16n8k16", 16, 8, 16, _A_16x16, _B_8x16, "bf16", "bf16", "f32", 80, 0),
    # With an identity as b it adds an f16 partial sum (as a) to f32 accumulators: one instruction to promote an atom.
    ("m16n8k8", 16, 8, 8, _A_16x8, _B_8x8, "f16", "f16", "f32", 75, 0),
    *(("m16n8k32", 16, 8, 32, _A_16x32, _B_8x32, a, b, "f32", 89, 8.4) for a in PTX_F8 for b in PTX_F8),
    # Twice the rate of f32 sums on GeForce dies. ptxas 13.0 makes one QMMA of it on sm_89 and sm_120a; on sm_90a operands are
    # unpacked to f16, and the sum of two HMMA is added to c by HADD2.
    *(("m16n8k32", 16, 8, 32, _A_16x32, _B_8x32, a, b, "f16", 89, 8.7) for a in PTX_F8 for b in PTX_F8),
)

ATOMS: tuple[Atom, ...] = tuple(
    Atom(
        name,
        m,
        n,
        k,
        Operand("a", a, layout_a),
        Operand("b", b, layout_b),
        Operand("c", accumulator, _C_16x8),
        f"mma.sync.aligned.{name}.row.col.{accumulator}.{PTX_F8.get(a, a)}.{PTX_F8.get(b, b)}.{accumulator}",
        minimum_sm,
        since,
    )
    for name, m, n, k, layout_a, layout_b, a, b, accumulator, minimum_sm, since in _MMA_SYNC
)
"""Every atom that Emmy knows."""


def get_atom(
    shape_name: str, operand_dtype: str, accumulator_dtype: str, target: str | None = None, b_dtype: str | None = None
) -> Atom:
    """The atom of this shape and these dtypes; `b_dtype` is that of b where it is another one than that of a. Raises
    `EmmyError` if there is none, or if `target` (if given) lacks it."""
    any_atom(shape_name)
    named = [atom for atom in ATOMS if atom.name == shape_name]
    dtypes = operand_dtype, b_dtype or operand_dtype
    given = operand_dtype if dtypes[0] == dtypes[1] else " and ".join(dtypes)
    typed = [atom for atom in ATOMS if (atom.a.dtype, atom.b.dtype) == dtypes]
    accumulators = [atom.accumulator_dtype for atom in typed if atom.name == shape_name]
    if not accumulators:
        operands = ", ".join(dict.fromkeys(atom.operand_dtype for atom in named))
        others = dict.fromkeys(atom.name for atom in typed)
        instead = f"; {' and '.join(others)} {'have' if len(others) > 1 else 'has'} them" if others else ""
        raise EmmyError(f"atom {shape_name} has no {given} operands; it takes {operands}{instead}")
    if accumulator_dtype not in accumulators:
        raise EmmyError(
            f"atom {shape_name} with {given} operands has no {accumulator_dtype} accumulator;"
            f" it accumulates in {' or '.join(accumulators)}"
        )
    atom = next(a for a in typed if (a.name, a.accumulator_dtype) == (shape_name, accumulator_dtype))
    if target is not None and not atom.supports(target):
        wanted = ", ".join(atom.targets) or f"sm_{atom.minimum_sm} or newer"
        raise EmmyError(f"target {target} does not have atom {shape_name} with {given} operands; it needs {wanted}")
    return atom


def any_atom(shape_name: str) -> Atom:
    """An atom of this shape, for what does not depend on dtypes: sizes, and layouts of operands of one width. Raises
    `EmmyError` if there is none."""
    known = dict.fromkeys(atom.name for atom in ATOMS)
    if shape_name not in known:
        raise EmmyError(f"there is no atom {shape_name}; known atoms are {', '.join(known)}")
    return next(atom for atom in ATOMS if atom.name == shape_name)


# ---- Fragments. ----


def fragment_layout(atom: Atom, place: OperandPlace, rows: int, cols: int) -> Layout:
    """The layout of a fragment of `rows` x `cols`: (row, col) -> (register, lane), registers counting elements.

    `rows` and `cols` are multiples of the atom's operand. With `cols` 1 it is the layout of one value for each row,
    such as a row maximum: every lane that holds an element of the row holds the value, so the lane bits of the
    columns are copies, and the register bits of the columns are gone. With `rows` 1, likewise one value for each
    column. Raises `EmmyError` if the shape is not made of whole atoms.
    """
    operand = atom.operand(place)
    extents = {"row": (rows, operand.rows), "col": (cols, operand.cols)}
    if any(extent != 1 and extent % atom_extent for extent, atom_extent in extents.values()):
        raise EmmyError(
            f"a fragment {place} of {rows}x{cols} is not made of whole operands of {atom.name},"
            f" which are {operand.rows}x{operand.cols}"
        )
    kept = {d.name: d.bits for d in operand.layout.dimensions if extents[d.name][0] != 1}
    dropped = [bit for d in operand.layout.dimensions if extents[d.name][0] == 1 for bit in d.bits]

    # What is left of the registers is numbered without gaps, in the same order.
    left = sorted(register for bits in kept.values() for register, _ in bits if register)
    renumbered = {register: 1 << position for position, register in enumerate(left)} | {0: 0}
    elements = 1 << len(left)
    strides = {"row": elements * max(cols // operand.cols, 1), "col": elements}
    dimensions = tuple(
        Dimension(
            name,
            tuple((renumbered[register], lane) for register, lane in kept[name]),
            (Repeat(extent // atom_extent, _register(strides[name])),),
        )
        if name in kept
        else Dimension(name)
        for name, (extent, atom_extent) in extents.items()
    )
    return Layout(dimensions, FRAGMENT_AXES, tuple(Repeat(2, _lane(lane)) for _, lane in dropped if lane))


def accumulator_feeds(atom: Atom, consumer: Atom, rows: int, cols: int) -> bool:
    """Does the `rows` x `cols` accumulator fragment of `atom`, packed to the consumer's 16-bit dtype in register order,
    already lie as operand a of `consumer`? Then P = softmax(Q K^T) feeds P V without any exchange between lanes."""
    return fragment_layout(atom, "c", rows, cols) == fragment_layout(consumer, "a", rows, cols)


# ---- Loading fragments with ldmatrix. ----


@dataclass(frozen=True, eq=False)
class LdmatrixPlan:
    """One `ldmatrix` that fills a block of a fragment; also one `stmatrix` that stores it.

    `addresses` maps (lane,) to (row, col) of the *stored* tile, relative to the block: the lane passes the address of
    the 16 bytes that start at this element. `transposed` asks for `.trans`. Destination i of the instruction is
    32-bit register `destinations[i][1]` of atom `destinations[i][0]` of the block (atoms row-major); these are in
    order, so the destinations can be used as they are as consecutive operands of `mma` (else ptxas inserts moves).
    """

    addresses: Layout
    transposed: bool
    destinations: tuple[tuple[int, int], ...]

    @property
    def count(self) -> int:
        """Matrices: 1, 2 or 4, the `.x1`, `.x2`, `.x4` of the instruction."""
        return len(self.destinations)

    @cached_property
    def rows(self) -> Integers:
        """The stored row whose address each of the 32 lanes passes."""
        return self.addresses.values[0]

    @cached_property
    def cols(self) -> Integers:
        """The stored column, in elements, whose address each of the 32 lanes passes: a multiple of 8."""
        return self.addresses.values[1]


def ldmatrix_plan(
    place: OperandPlace, transposed: bool, rows: int = 16, cols: int = 16, atom: Atom = ATOMS[0]
) -> LdmatrixPlan:
    """How one `ldmatrix` loads a `rows` x `cols` block (logical, as the operand's layout) of operand `place` of `atom`.

    Not `transposed`: element (row, col) is stored at (row, col): a stored [m][k], b stored [n][k]. `transposed`: it is
    stored at (col, row), so a stored [k][m], b stored [k][n], and `.trans` exchanges it back, if elements have 16 bits. The
    block must fill 1, 2 or 4 registers (16 x 16 elements of 16 bits fill 4, 16 x 32 of 8); of fewer than 4, further lanes
    repeat the addresses of the first ones. Place "c" is for `stmatrix` of an accumulator block that was packed to 16 bits.
    Raises `EmmyError` otherwise.
    """
    layout = fragment_layout(atom, place, rows, cols)
    packed = 2 if place == "c" else atom.operand(place).packed
    if transposed and packed != 2:
        raise EmmyError(
            f"ldmatrix transposes elements of 16 bits only, and those of operand {place} have {32 // packed}"
        )
    count = layout.place_shape[0] // packed
    if count not in (1, 2, 4) or layout.copies:
        raise EmmyError(f"ldmatrix loads 1, 2 or 4 registers; a {rows}x{cols} block of operand {place} has {count}")

    # Lane 8 i + j passes row j of matrix i. In matrix i, lane t receives 4 bytes of row t / 4, from byte 4 (t % 4) on, so
    # row j begins with the lowest element of lane 4 j. With .trans lane t receives element t / 4 of rows 2 (t % 4) and
    # 2 (t % 4) + 1, so row j begins with element j % 2 of lane j / 2.
    matrix, j = np.divmod(np.arange(WARP_LANES) % (MATRIX_ROWS * count), MATRIX_ROWS)
    register, lane = (2 * matrix + j % 2, j // 2) if transposed else (packed * matrix, 4 * j)
    row, col = layout.inverse().apply(register, lane)
    stored = (col, row) if transposed else (row, col)
    each = atom.operand(place).elements // packed
    return LdmatrixPlan(
        fit(("lane",), ("row", "col"), stored), transposed, tuple(divmod(register, each) for register in range(count))
    )
