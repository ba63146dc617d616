"""How far results may be from the reference, and how far they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from emmy.artefact import DTYPE_NAMES, Array
from emmy.bench.bounds import accumulation_rms
from emmy.dialects.common import COMPARISONS, MapKindAttr
from emmy.dialects.tensor_op import (
    EIGHT_BITS,
    CastOp,
    CompositeOp,
    MapOp,
    MatmulOp,
    accumulation_policy,
    tensor_type,
)

EXACT_MAPS = ("add", "sub", "neg", "abs", "max", "min", "relu")
"""Elementwise functions that every level computes to the last bit (others go through the hardware's approximations)."""


@dataclass(frozen=True)
class Comparison:
    """A result against a float64 reference: root mean square of the error over that of the reference, and its bound."""

    rms: float
    bound: float

    @property
    def ok(self) -> bool:
        """Whether the error is within the bound; NaN never is."""
        return self.rms <= self.bound


@dataclass(frozen=True)
class Product:
    """What its error depends on: the accumulation policy and its `max_k`, the contraction, whether operands have 8 bits, and
    the type that the policy names for partial sums."""

    policy: str
    max_k: int
    k: int
    eight_bits: bool
    partial: str = ""


Term = Product | float
"""What an op on the way may add to the error: a product's, or the root mean square, over that of the result."""


def compare(result: Array, reference: Array, roundings: int, terms: Sequence[Term]) -> Comparison:
    """Compare a result with its float64 reference.

    `roundings`: how many values on the way were rounded to the result's type; each may cost what rounding the reference
    costs. `terms`: of the products and composites on the way. Infinities that are equal are no error.
    """
    same = np.isinf(reference) & (result == reference)
    result, reference = result[~same], reference[~same]
    if result.size == 0:
        return Comparison(0.0, 0.0)
    scale = _rms(reference) or 1.0
    with np.errstate(all="ignore"):
        floor = _rms(reference.astype(result.dtype).astype(np.float64) - reference) / scale
        error = _rms(result.astype(np.float64) - reference) / scale
    dtype = DTYPE_NAMES[result.dtype]
    bound = 1.02 * floor * roundings
    for term in terms:
        if isinstance(term, Product):
            bound += accumulation_rms(term.policy, term.k, dtype, floor, term.max_k, term.eight_bits, term.partial)
        else:
            bound += term
    return Comparison(error, bound)


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


def error_terms(module: ModuleOp, entry: str, arrays: Sequence[Array]) -> tuple[int, list[Term]]:
    """(roundings, terms) of a level-1 function for these arguments: what `compare` takes."""
    function = find_function(module, entry)
    shapes: dict[SSAValue, tuple[int, ...]] = dict(
        zip(function.body.block.args, (a.shape for a in arrays), strict=True)
    )
    roundings, terms = 0, list[Term]()
    for op in function.body.block.ops:
        if isinstance(op, ReturnOp):
            continue
        roundings += 1
        if isinstance(op, MatmulOp):
            a, b = shapes[op.a], shapes[op.b]
            m, k = a[-2:] if op.transpose_a is None else (a[-1], a[-2])
            n = b[-2] if op.transpose_b is not None else b[-1]
            shapes[op.result] = (*a[:-2], m, n)
            policy = accumulation_policy(op)
            eight_bits = isinstance(tensor_type(op.a).element_type, EIGHT_BITS)
            terms.append(Product(policy.policy.data, policy.max_k.data, k, eight_bits, policy.partial.data))
        elif isinstance(op, CompositeOp):
            results = op.sizes([shapes[operand] for operand in op.operands]).results
            shapes.update(zip(op.results, results, strict=True))
            terms.append(op.error())
        else:
            shapes[op.results[0]] = np.broadcast_shapes(*(shapes[operand] for operand in op.operands))
    return max(roundings, 1), terms


def is_exact_on_integers(module: ModuleOp, entry: str) -> bool:
    """Whether every level must give the same bits for small-integer data."""

    def exact(op: Operation) -> bool:
        return isinstance(op, MatmulOp | CastOp | ReturnOp) or (
            isinstance(op, MapOp) and op.kind.data.value in EXACT_MAPS
        )

    return all(exact(op) for op in find_function(module, entry).body.block.ops)


def maps_are_exact(module: ModuleOp) -> bool:
    """The same of a module at a lower level, by its elementwise functions: levels approximate `exp` each in their way."""
    kinds = [one.data.value for op in module.walk() for one in op.properties.values() if isinstance(one, MapKindAttr)]
    return set(kinds) <= {*EXACT_MAPS, *COMPARISONS, "select"}


def find_function(module: ModuleOp, name: str) -> FuncOp:
    """The function of that name, which the caller knows to be there."""
    return cast(Any, next(op for op in module.body.block.ops if isinstance(op, FuncOp) and op.sym_name.data == name))
