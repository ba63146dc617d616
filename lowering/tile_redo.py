"""The redo of hybrid sums: where a warp's sum overflowed, its part of the tile is computed again in f32.

An f16 partial sum can overflow where f32 does not. Under `overflow = redo` the loop of a product is followed, before anything
uses its result, by a test and a second loop that almost never runs:

    %sum = scf.for .. { .. mma.mma .. accumulate<hybrid, max_k = 64, overflow = redo> }
    %bad = mma.any_nonfinite %sum
    %c = scf.if %bad -> (!mma.fragment<64x64xf32, c, m16n8k16>) {
      %again = scf.for %k = .. iter_args(%s = %zero) {           // the same loop over k
        %d = scf.for %step = 0 to 64 step 16 iter_args(%t = %s) {  // the k-steps of a dot
          %a = mma.load_global %view_a[%m + %row, %k + %step]
          %b = mma.load_global %view_b[%n + %col, %k + %step]
          mma.mma %a, %b, %t                                       // sums in f32
        }
      }
    } else { %sum }

Fragments come straight from global memory, so no ring is touched: a producer may be a tile ahead, and warps need not agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import arith, scf
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.traits import is_side_effect_free

from emmy.atoms import any_atom
from emmy.dialects import mma, tile
from emmy.dialects.common import Index
from emmy.dialects.tensor_op import contraction
from emmy.errors import EmmyError
from emmy.locations import location_of
from emmy.lowering.tile_rings import tile_type, touches_tiles
from emmy.passes.emitter import Emitter

Offset = Callable[[int, int], SSAValue]
"""(axis, extent of the tile) -> element offset of this warp's part of it."""


def wants_redo(op: Operation) -> bool:
    """A dot whose overflowed sums are to be computed again, or a loop that holds one itself."""
    if isinstance(op, scf.ForOp):
        return any(isinstance(inner, tile.DotOp) and wants_redo(inner) for inner in op.body.block.ops)
    if not isinstance(op, tile.DotOp) or op.accumulate is None or op.accumulate.overflow.data != "redo":
        return False
    return op.accumulate.policy.data != "f32"


class Redo:
    """Writes the test and the second computation of one loop of level 2 that holds a product."""

    def __init__(self, values: dict[SSAValue, SSAValue], constant: Callable[[int], SSAValue], offset: Offset):
        """values: what stands for values of level 2 at level 3, outside of the loop. constant: an index constant."""
        self.values = dict(values)
        self.constant = constant
        self.offset = offset

    def of_loop(
        self, loop: scf.ForOp, sums: Sequence[SSAValue], starts: Sequence[SSAValue], emit: Emitter
    ) -> list[SSAValue]:
        """The sums of a loop (its results, fragments), or where one is not finite, all of them again from `starts`.

        Raises `EmmyError` where the loop does more than multiply.
        """
        tests = [emit.value(mma.AnyNonfiniteOp(v)) for v in sums if isinstance(v.type, mma.FragmentType)]
        bad = tests[0]
        for test in tests[1:]:
            bad = emit.value(arith.OrIOp(bad, test))
        again, kept = Block(), Block()
        inner = emit.inside(again)
        inner(scf.YieldOp(*self.loop(loop, starts, inner)))
        emit.inside(kept)(scf.YieldOp(*sums))
        return list(emit(scf.IfOp(bad, [v.type for v in sums], Region(again), Region(kept))).results)

    def loop(self, op: scf.ForOp, starts: Sequence[SSAValue], emit: Emitter) -> list[SSAValue]:
        """The loop in f32, without rings."""
        old = op.body.block
        bounds = [self.values.get(v, v) for v in (op.lb, op.ub, op.step)]
        body = Block(arg_types=[old.args[0].type, *(v.type for v in starts)])
        self.values |= dict(zip(old.args, body.args, strict=True))
        inner = emit.inside(body)
        for inside in old.ops:
            inner.at(inside)
            if isinstance(inside, tile.DotOp):
                self.values[inside.result] = self.dot(inside, inner)
            elif isinstance(inside, scf.YieldOp):
                inner(scf.YieldOp(*(self.values.get(v, v) for v in inside.arguments)))
            elif not isinstance(inside, tile.LoadOp):
                if touches_tiles(inside) or not is_side_effect_free(inside):
                    raise EmmyError(
                        f"overflow = redo needs a loop of products alone, and this one has {inside.name}",
                        location_of(inside),
                    )
                inner(inside.clone(self.values))
        return list(emit.at(op)(scf.ForOp(bounds[0], bounds[1], bounds[2], starts, body)).results)

    def dot(self, op: tile.DotOp, emit: Emitter) -> SSAValue:
        """One k-step after another, each from fragments that are loaded straight from the views."""
        acc = self.values[op.acc]
        held = acc.type
        assert isinstance(held, mma.FragmentType)
        a, b = tile_type(op.a), tile_type(op.b)
        ta, tb = op.transpose_a is not None, op.transpose_b is not None
        m, n, k, _ = contraction(a.get_shape(), b.get_shape(), ta, tb)
        step, (rows, cols) = any_atom(held.atom.data).k, held.get_shape()
        body = Block(arg_types=[Index, held])
        inner, at = emit.inside(body), body.args[0]
        types = [
            mma.FragmentType.get((size, step), type_.element_type, place, held.atom.data)
            for type_, size, place in ((a, rows, "a"), (b, cols, "b"))
        ]
        fa = self.operand(op.a, [at, self.offset(0, m)] if ta else [self.offset(0, m), at], types[0], ta, inner)
        fb = self.operand(op.b, [self.offset(1, n), at] if tb else [at, self.offset(1, n)], types[1], not tb, inner)
        inner(scf.YieldOp(inner.value(mma.MmaOp(fa, fb, body.args[1]))))
        bounds = self.constant(0), self.constant(k), self.constant(step)
        return emit.value(scf.ForOp(*bounds, [acc], body))

    def operand(
        self, value: SSAValue, at: Sequence[SSAValue], type_: mma.FragmentType, transposed: bool, emit: Emitter
    ) -> SSAValue:
        """A fragment of a loaded tile: where the tile begins in its view, plus `at`."""
        load = value.owner
        assert isinstance(load, tile.LoadOp)
        first = [self.values.get(index, index) for index in load.indices]
        moved = [emit.value(arith.AddiOp(x, y)) for x, y in zip(first[-2:], at, strict=True)]
        return emit.value(
            mma.LoadGlobalOp(self.values.get(load.view, load.view), [*first[:-2], *moved], type_, transposed)
        )
