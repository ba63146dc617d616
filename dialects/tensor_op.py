"""Level 1: whole tensors, pure values, in a `func.func`. No tiles, no threads, no targets.

func.func @q_proj(%x: tensor<?x3840xf16>, %w: tensor<4096x3840xf16>) -> tensor<?x4096xf16> {
  %y = tensor_op.matmul %x, %w transpose_b accumulate<f32>
     : (tensor<?x3840xf16>, tensor<4096x3840xf16>) -> tensor<?x4096xf16>
  func.return %y : tensor<?x4096xf16>
}
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from xdsl.dialects.builtin import (
    AnyFloat,
    BFloat16Type,
    Float8E4M3FNType,
    Float8E5M2Type,
    Float16Type,
    Float32Type,
    IntAttr,
    StringAttr,
    TensorType,
    UnitAttr,
)
from xdsl.ir import Attribute, Dialect, Operation, ParametrizedAttribute, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from emmy.dialects.common import DYNAMIC, MapKindAttr, ReduceKindAttr, check_map, shape_text
from emmy.errors import EmmyError
from emmy.locations import location_of

if TYPE_CHECKING:
    from emmy.chained_schedules import Chain
    from emmy.dialects.tile import KernelOp
    from emmy.passes.emitter import Emitter
    from emmy.variants import Variant

POLICIES = ("f32", "f16", "hybrid")
OVERFLOW = ("propagate", "redo")
PARTIALS = ("", "f16", "f32")
DEFAULT_MAX_K = 64


@irdl_attr_definition
class AccumulateAttr(ParametrizedAttribute):
    """The accumulation policy of a contraction: part of its meaning.

    `f32`: every partial sum is f32. `f16`: every partial sum is f16. `hybrid`: at most `max_k` contraction elements are
    summed in f16 before the partial is added into an f32 sum. `overflow`: whether an output tile whose sum is not
    finite is computed again in f32 (`redo`) or passed on (`propagate`). `partial`: the type of the partial sums of `hybrid`,
    where operands leave a choice: those of 8 bits are summed in f32 unless it is `f16`, since what they want promotion for may
    be the few bits that f32 sums keep inside the tensor cores of some targets, or the rate of f16 sums on others.
    """

    name = "tensor_op.accumulate"
    policy: StringAttr
    max_k: IntAttr
    overflow: StringAttr
    partial: StringAttr

    @staticmethod
    def get(
        policy: str = "f32", max_k: int | None = None, overflow: str = "propagate", partial: str = ""
    ) -> AccumulateAttr:
        """The attribute from plain values; `max_k` (contraction elements) defaults to 64 for hybrid, else 0."""
        most = (DEFAULT_MAX_K if policy == "hybrid" else 0) if max_k is None else max_k
        return AccumulateAttr(StringAttr(policy), IntAttr(most), StringAttr(overflow), StringAttr(partial))

    def verify(self) -> None:
        if self.policy.data not in POLICIES:
            raise VerifyException(f"accumulate is one of {', '.join(POLICIES)}, got '{self.policy.data}'")
        if self.overflow.data not in OVERFLOW:
            raise VerifyException(f"overflow is one of {', '.join(OVERFLOW)}, got '{self.overflow.data}'")
        if self.policy.data == "hybrid" and (self.max_k.data < 16 or self.max_k.data % 16):
            raise VerifyException(f"max_k is a positive multiple of 16 (one k-step), got {self.max_k.data}")
        if self.policy.data != "hybrid" and self.max_k.data:
            raise VerifyException("max_k belongs to the hybrid policy only")
        if self.partial.data not in PARTIALS:
            raise VerifyException(f"partial is f16 or f32, got '{self.partial.data}'")
        if self.policy.data != "hybrid" and self.partial.data:
            raise VerifyException("partial belongs to the hybrid policy only")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            policy = parser.parse_identifier()
            max_k, overflow, partial = (DEFAULT_MAX_K if policy == "hybrid" else 0), "propagate", ""
            while parser.parse_optional_punctuation(",") is not None:
                key = parser.parse_identifier()
                parser.parse_punctuation("=")
                if key == "max_k":
                    max_k = parser.parse_integer(allow_boolean=False, allow_negative=False)
                elif key == "overflow":
                    overflow = parser.parse_identifier()
                elif key == "partial":
                    partial = parser.parse_identifier()
                else:
                    parser.raise_error(f"accumulate has no field '{key}'; its fields are max_k, overflow and partial")
        return (StringAttr(policy), IntAttr(max_k), StringAttr(overflow), StringAttr(partial))

    def print_parameters(self, printer: Printer) -> None:
        text = self.policy.data
        if self.policy.data == "hybrid":
            text += f", max_k = {self.max_k.data}"
        if self.overflow.data != "propagate":
            text += f", overflow = {self.overflow.data}"
        if self.partial.data:
            text += f", partial = {self.partial.data}"
        printer.print_string(f"<{text}>")


def tensor_type(value: SSAValue) -> TensorType[Attribute]:
    """The type of a value that is known to be a tensor."""
    return cast(TensorType[Attribute], value.type)


EIGHT_BITS = (Float8E4M3FNType, Float8E5M2Type)
"""Element types of 8 bits: operands of products, and nothing else."""

EIGHT_BIT_STEP = 32
"""Contraction elements of one product of 8-bit operands, the least that a tensor core sums."""


K_MAJOR_ONLY = "8-bit operands are read K-major only: store A as M x K, and B as N x K with transpose_b"
"""Neither `ldmatrix` nor `wgmma` transposes elements of 8 bits."""


def partial_sum_type(policy: AccumulateAttr, operand: Attribute) -> Float16Type | Float32Type:
    """The element type of the hybrid policy's partial sums: f16, or f32 where operands have 8 bits and it asks for no other."""
    wide = isinstance(operand, EIGHT_BITS) and policy.partial.data != "f16"
    return Float32Type() if wide else Float16Type()


def policy_problem(policy: AccumulateAttr, operand: Attribute) -> str | None:
    """A sentence about why products of these operands cannot be summed by a policy, or None.

    bf16 products have no f16 accumulator; partial sums of f16 operands are f16, and those of 8-bit ones are whole products.
    """
    name, max_k = policy.policy.data, policy.max_k.data
    if name == "f32":
        return None
    if isinstance(operand, Float16Type):
        return f"partial sums of {operand} are f16; leave out partial = f32" if policy.partial.data == "f32" else None
    if not isinstance(operand, EIGHT_BITS):
        return f"accumulate<{name}> needs f16 operands, got {operand}"
    if max_k % EIGHT_BIT_STEP:
        return f"products of {operand} take {EIGHT_BIT_STEP} elements of K at once; max_k is a multiple of that, got {max_k}"
    if policy.overflow.data == "redo" and isinstance(partial_sum_type(policy, operand), Float32Type):
        return f"sums of {operand} are f32 and do not overflow as f16 ones do; leave out overflow = redo"
    return None


def check_accumulate(policy: AccumulateAttr | None, operand: Attribute) -> None:
    """A product's operands can be summed by its own policy. Raises VerifyException."""
    problem = None if policy is None else policy_problem(policy, operand)
    if problem is not None:
        raise VerifyException(problem)


def accumulation_policy(matmul: MatmulOp) -> AccumulateAttr:
    """The policy that holds for a product: its own, else the module's (`emmy.accumulate`), else f32.

    A module's policy that is not for these operands leaves the product at f32. Raises `EmmyError` if the module's attribute
    is no policy.
    """
    policy = matmul.accumulate or module_policy(matmul)
    fits = policy is not None and policy_problem(policy, tensor_type(matmul.a).element_type) is None
    return policy if policy is not None and fits else AccumulateAttr.get()


def module_policy(op: Operation) -> AccumulateAttr | None:
    """The attribute `emmy.accumulate` of the module that holds `op`, if it has one."""
    module = op
    while (parent := module.parent_op()) is not None:
        module = parent
    policy = module.attributes.get("emmy.accumulate")
    if policy is not None and not isinstance(policy, AccumulateAttr):
        raise EmmyError(f"emmy.accumulate is a #tensor_op.accumulate<..>, got {policy}", location_of(module))
    return policy


def contraction(a: Sequence[int], b: Sequence[int], transpose_a: bool, transpose_b: bool) -> tuple[int, int, int, int]:
    """(M, N, K of a, K of b) of the two trailing dimensions; DYNAMIC where unknown."""
    m, ka = (a[-1], a[-2]) if transpose_a else (a[-2], a[-1])
    n, kb = (b[-2], b[-1]) if transpose_b else (b[-1], b[-2])
    return m, n, ka, kb


@irdl_op_definition
class MatmulOp(IRDLOperation):
    """C[.., M, N] = A[.., M, K] * B[.., K, N]. `transpose_a`: A is stored [.., K, M]; `transpose_b`: B [.., N, K].

    Operands f16 or bf16 of one type; the result is that type or f32. Or operands of 8 bits, f8E4M3FN and f8E5M2 in any pair;
    the result is f16, bf16 or f32. Leading batch dimensions are equal on all three.
    Without `accumulate` the policy is the module's, else f32.
    """

    name = "tensor_op.matmul"
    a = operand_def(TensorType)
    b = operand_def(TensorType)
    result = result_def(TensorType)
    transpose_a = opt_prop_def(UnitAttr)
    transpose_b = opt_prop_def(UnitAttr)
    accumulate = opt_prop_def(AccumulateAttr)
    traits = traits_def(Pure())
    assembly_format = (
        "$a `,` $b (`transpose_a` $transpose_a^)? (`transpose_b` $transpose_b^)? (`accumulate` `` $accumulate^)? attr-dict "
        "`:` functional-type(operands, results)"
    )

    def verify_(self) -> None:
        a, b, c = (tensor_type(v) for v in (self.a, self.b, self.result))
        shapes = [t.get_shape() for t in (a, b, c)]
        if len({len(s) for s in shapes}) != 1 or len(shapes[0]) < 2:
            raise VerifyException(
                "matmul wants operands and result of one rank, at least 2; got "
                + ", ".join(shape_text(s) or "a scalar" for s in shapes)
            )
        m, n, ka, kb = contraction(shapes[0], shapes[1], self.transpose_a is not None, self.transpose_b is not None)
        if DYNAMIC not in (ka, kb) and ka != kb:
            raise VerifyException(f"matmul contracts K = {ka} of A with K = {kb} of B; they must be equal")
        batch_a, batch_b, batch_c = (tuple(s[:-2]) for s in shapes)
        if batch_a != batch_b or batch_a != batch_c:
            raise VerifyException("matmul wants equal leading (batch) dimensions on both operands and the result")
        if tuple(shapes[2][-2:]) != (m, n):
            raise VerifyException(
                f"matmul of these operands gives {shape_text((m, n))}, not {shape_text(shapes[2][-2:])}"
            )
        check_matmul_types(a.element_type, b.element_type, c.element_type)
        check_accumulate(self.accumulate, a.element_type)


def check_matmul_types(a: Attribute, b: Attribute, c: Attribute) -> None:
    """The element types of a contraction: f16 or bf16 operands of one type, a result of that type or f32; or two operands of
    8 bits, a result of f16, bf16 or f32."""
    if isinstance(a, EIGHT_BITS) and isinstance(b, EIGHT_BITS):
        if not isinstance(c, Float16Type | BFloat16Type | Float32Type):
            raise VerifyException(f"matmul of {a} and {b} gives f16, bf16 or f32, got {c}")
        return
    if not isinstance(a, Float16Type | BFloat16Type | Float8E4M3FNType | Float8E5M2Type):
        raise VerifyException(f"matmul operands are f16, bf16, f8E4M3FN or f8E5M2, got {a}")
    if a != b:
        raise VerifyException(f"matmul operands have one element type, got {a} and {b}")
    if c != a and str(c) != "f32":
        raise VerifyException(f"matmul of {a} gives {a} or f32, got {c}")


@irdl_op_definition
class MapOp(IRDLOperation):
    """An elementwise function of tensors; sizes of 1 and missing leading dimensions broadcast."""

    name = "tensor_op.map"
    kind = prop_def(MapKindAttr)
    args = var_operand_def(TensorType)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$kind $args attr-dict `:` functional-type($args, $result)"

    def __init__(self, kind: MapKindAttr, args: Sequence[SSAValue], result_type: Attribute):
        super().__init__(operands=[args], result_types=[result_type], properties={"kind": kind})

    def verify_(self) -> None:
        for value in (*self.args, self.result):
            if not isinstance(tensor_type(value).element_type, AnyFloat):
                raise VerifyException(f"map works on float tensors, got {value.type}")
        shapes = [tensor_type(a).get_shape() for a in self.args]
        check_map(self.kind, shapes, tensor_type(self.result).get_shape())


@irdl_op_definition
class CastOp(IRDLOperation):
    """Round every element to another float type (nearest, ties to even)."""

    name = "tensor_op.cast"
    arg = operand_def(TensorType)
    result = result_def(TensorType)
    traits = traits_def(Pure())
    assembly_format = "$arg attr-dict `:` type($arg) `to` type($result)"

    def __init__(self, arg: SSAValue, result_type: Attribute):
        super().__init__(operands=[arg], result_types=[result_type])

    def verify_(self) -> None:
        a, r = tensor_type(self.arg), tensor_type(self.result)
        if a.get_shape() != r.get_shape():
            raise VerifyException("cast keeps the shape")
        if not isinstance(r.element_type, AnyFloat) or not isinstance(a.element_type, AnyFloat):
            raise VerifyException("cast converts between float types")


# ---- composites ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CompositeSizes:
    """What a call of a composite computes. A size is an integer or an expression of the caller's.

    results: the sizes of each result. equal: pairs of sizes that must agree, with a sentence that says so.
    flops: factors of the number of floating-point operations.
    """

    results: tuple[tuple[Any, ...], ...]
    equal: tuple[tuple[Any, Any, str], ...]
    flops: tuple[Any, ...]


class CompositeOp(IRDLOperation, ABC):
    """A whole-tensor op that is a program of its own: what is special to it is in one module of `emmy.lowering.composites`.

    Interpreters, launch plans and passes know composites by these methods only. It is launched alone: elementwise ops around
    it stay outside its kernels.
    """

    @abstractmethod
    def evaluate(self, operands: Sequence[Any], contract: Callable[..., Any] | None) -> list[Any]:
        """The results as NumPy arrays, of float64 operands exactly, or of f32 ones with the op's own roundings.

        `contract` is how products are summed (`emmy.interpreters.contraction.contract`), None where all is exact.
        Raises `EmmyError` for `?` sizes that do not agree.
        """

    @abstractmethod
    def sizes(self, operands: Sequence[Sequence[Any]]) -> CompositeSizes:
        """What follows from the sizes of the operands."""

    @abstractmethod
    def error(self) -> float:
        """A bound on the root mean square, over that of the result, of what its own roundings add for normal operands."""

    @abstractmethod
    def chain(self) -> Chain:
        """What its kernel asks of a schedule."""

    @abstractmethod
    def lower(
        self, host: Emitter, fresh: Callable[[str], str], variants: Sequence[Variant]
    ) -> tuple[list[KernelOp], list[SSAValue]]:
        """Its kernels, and the tensors that stand for its results; `host` takes allocations and launches.

        The schedule is the op's `emmy.schedule`; `fresh` makes a new name from a suffix; each kernel that takes arguments of the
        function exists in all `variants`. Raises `EmmyError` without a schedule.
        """


TensorOp: Dialect = Dialect("tensor_op", [MatmulOp, MapOp, CastOp], [AccumulateAttr, MapKindAttr, ReduceKindAttr])
