"""`tensor_op.attention`: softmax(scale * Q K^T, masked) V, its float64 meaning and its tile program.

    %o = tensor_op.attention %q, %k, %v scale 0.125 causal
       : (tensor<BxHxSxDxf16>, tensor<BxGxTxDxf16>, tensor<BxGxTxExf16>) -> tensor<BxHxSxExf16>

The tile program is that of `emmy.lowering.online_softmax`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
from xdsl.dialects.builtin import (
    BFloat16Type,
    Float16Type,
    Float32Type,
    FloatAttr,
    IntegerAttr,
    TensorType,
    UnitAttr,
    f32,
    f64,
    i32,
    i64,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    opt_result_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from emmy.chained_schedules import FEW_ROWS, Chain
from emmy.dialects.common import DYNAMIC, shape_text
from emmy.dialects.tensor_op import (
    AccumulateAttr,
    CompositeOp,
    CompositeSizes,
    check_accumulate,
    module_policy,
    tensor_type,
)
from emmy.dialects.tile import AllocOp, DimOp, KernelOp, ReshapeOp, ScheduleAttr
from emmy.errors import EmmyError
from emmy.locations import location_of
from emmy.lowering.online_softmax import lower_weighted_sum
from emmy.lowering.tile_builder import named
from emmy.lowering.weighted_sum import K_STEP, TINY, WeightedSum, Whole, padded
from emmy.lowering.weighted_sum_values import WeightedSumValues, sequences
from emmy.passes.emitter import Emitter
from emmy.variants import Variant

MOST_KEYS = 2**30
"""Positions of keys, and sums of two of them, are i32."""
MOST_DEPTH = 512
"""The largest head dimension."""

CLAUSES = {"bias": ("bias",), "lengths": ("starts_q", "starts_k"), "pages": ("table", "counts")}
"""Keyword of the text -> the operands that it brings."""
BATCHES = "attention has batch sizes that must be equal"
OPERANDS = ("q", "k", "v", *(name for names in CLAUSES.values() for name in names))


@irdl_op_definition
class AttentionOp(CompositeOp):
    """For each query row: softmax of its scores over the keys that it sees, times the values.

    q: B x H x S x D, k: B x G x T x D, v: B x G x T x E, f16 or bf16; the result B x H x S x E of that type or f32, and if it is
    asked for, the logarithm of each row's sum of exponentials, B x H x S in f32. Head h reads key head h / (H / G); H is a
    multiple of G. Heads and head dimensions are static.

    A score is scale * q . k; with `softcap c` it is c * tanh(score / c); then `bias` is added, whose sizes are B, H, S, T or 1
    (minus infinity hides a key; scores below -7e29 count as such). The query of row i stands at key p = i + T - S. `causal` hides
    keys after p, `window W` keys before p - W + 1, without `causal` also those after p + W - 1. A row that sees no key gives
    zeros, and minus infinity.

    `lengths %starts_q, %starts_k` (both N + 1 x i32, rising from 0): N sequences lie one after the other along S and T, and B is
    1; sequence n has the rows from starts[n] to starts[n + 1] - 1, of which there are at most `rows R`, if that is said.
    `pages %table, %counts` (B x M x i32, B x i32): k and v are P pages, P x G x L x D and P x G x L x E; key t of sequence b is
    key t mod L of page table[b, t / L], and there are counts[b] of them.

    `accumulate` is the policy of the product with the values (without it the module's), `accumulate_scores` that of the scores;
    either is f32 or hybrid. All of softmax is f32; its weights are rounded to the type of the values.

    Text, in this order: `%q, %k, %v scale S`, then what is wanted of `causal`, `window W`, `softcap C`, `bias %b`, `lengths ..`,
    `pages ..`, `rows R`, `accumulate<..>`, `accumulate_scores<..>`, then the types of all operands and of the results.
    """

    name = "tensor_op.attention"
    q = operand_def(TensorType)
    k = operand_def(TensorType)
    v = operand_def(TensorType)
    bias = opt_operand_def(TensorType)
    starts_q = opt_operand_def(TensorType)
    starts_k = opt_operand_def(TensorType)
    table = opt_operand_def(TensorType)
    counts = opt_operand_def(TensorType)
    result = result_def(TensorType)
    lse = opt_result_def(TensorType)
    scale = prop_def(FloatAttr)
    causal = opt_prop_def(UnitAttr)
    window = opt_prop_def(IntegerAttr)
    softcap = opt_prop_def(FloatAttr)
    rows = opt_prop_def(IntegerAttr)
    accumulate = opt_prop_def(AccumulateAttr)
    accumulate_scores = opt_prop_def(AccumulateAttr)
    traits = traits_def(Pure())
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    # ---- text

    @classmethod
    def parse(cls, parser: Parser) -> AttentionOp:
        names, operands = ["q", "k", "v"], [parser.parse_unresolved_operand()]
        for _ in range(2):
            parser.parse_punctuation(",")
            operands.append(parser.parse_unresolved_operand())
        parser.parse_keyword("scale")
        properties: dict[str, Attribute] = {"scale": FloatAttr(float(parser.parse_number()), f64)}
        if parser.parse_optional_keyword("causal") is not None:
            properties["causal"] = UnitAttr()
        if parser.parse_optional_keyword("window") is not None:
            properties["window"] = IntegerAttr(parser.parse_integer(allow_boolean=False), i64)
        if parser.parse_optional_keyword("softcap") is not None:
            properties["softcap"] = FloatAttr(float(parser.parse_number()), f64)
        for keyword, more in CLAUSES.items():
            if parser.parse_optional_keyword(keyword) is not None:
                names += more
                operands += parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        if parser.parse_optional_keyword("rows") is not None:
            properties["rows"] = IntegerAttr(parser.parse_integer(allow_boolean=False), i64)
        for policy in ("accumulate", "accumulate_scores"):
            if parser.parse_optional_keyword(policy) is not None:
                properties[policy] = AccumulateAttr.new(AccumulateAttr.parse_parameters(parser))
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        place = parser.pos
        if len(names) != len(operands):
            parser.raise_error(
                f"attention takes {len(names)} operands with these clauses, got {len(operands)}", place, place
            )
        types = parser.parse_function_type()
        values = dict(zip(names, parser.resolve_operands(operands, types.inputs.data, place), strict=True))
        results = types.outputs.data
        if not 1 <= len(results) <= 2:
            message = f"attention gives its result and perhaps a logarithm for each row, got {len(results)} types"
            parser.raise_error(message, place, place)
        return cls(
            operands=[values.get(name) for name in OPERANDS],
            result_types=[results[0], results[1] if len(results) > 1 else None],
            properties=properties,
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list((self.q, self.k, self.v), printer.print_ssa_value)
        printer.print_string(f" scale {self.scale.value.data!r}")
        if self.causal is not None:
            printer.print_string(" causal")
        if self.window is not None:
            printer.print_string(f" window {self.window.value.data}")
        if self.softcap is not None:
            printer.print_string(f" softcap {self.softcap.value.data!r}")
        for keyword, names in CLAUSES.items():
            values = [value for name in names if (value := getattr(self, name)) is not None]
            if values:
                printer.print_string(f" {keyword} ")
                printer.print_list(values, printer.print_ssa_value)
        if self.rows is not None:
            printer.print_string(f" rows {self.rows.value.data}")
        for policy in ("accumulate", "accumulate_scores"):
            attribute = self.properties.get(policy)
            if isinstance(attribute, AccumulateAttr):
                printer.print_string(f" {policy}")
                attribute.print_parameters(printer)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_operation_type(self)

    # ---- what is well-formed

    def verify_(self) -> None:
        self._check_shapes()
        self._check_tables()
        self._check_numbers()
        q, result = tensor_type(self.q).element_type, tensor_type(self.result).element_type
        if not isinstance(q, Float16Type | BFloat16Type):
            raise VerifyException(f"queries, keys and values are f16 or bf16, got {q}")
        if any(tensor_type(v).element_type != q for v in (self.k, self.v)):
            raise VerifyException("queries, keys and values have one element type")
        if result != q and result != f32:
            raise VerifyException(f"the result of {q} values is {q} or f32, got {result}")
        if self.lse is not None and tensor_type(self.lse).element_type != f32:
            raise VerifyException(f"the logarithms are f32, got {tensor_type(self.lse).element_type}")
        if self.bias is not None and not isinstance(
            tensor_type(self.bias).element_type, Float16Type | BFloat16Type | Float32Type
        ):
            raise VerifyException(f"the bias is f16, bf16 or f32, got {tensor_type(self.bias).element_type}")
        for policy in (self.accumulate, self.accumulate_scores):
            check_accumulate(policy, q)
            if policy is not None and policy.policy.data == "f16":
                raise VerifyException(
                    "attention accumulates in f32 or hybrid: its sums are rescaled from block to block"
                )
            if policy is not None and policy.overflow.data == "redo":
                raise VerifyException("attention has no overflow = redo")

    def _check_shapes(self) -> None:
        for name, value in (("queries", self.q), ("keys", self.k), ("values", self.v), ("result", self.result)):
            shape = tensor_type(value).get_shape()
            if len(shape) != 4:
                raise VerifyException(
                    f"the {name} have 4 dimensions (batch, heads, rows, head dimension), got {len(shape)}"
                )
            if DYNAMIC in (shape[1], shape[3]):
                raise VerifyException(f"heads and head dimension of the {name} are static, got {shape_text(shape)}")
        q, k, v = (tensor_type(value).get_shape() for value in (self.q, self.k, self.v))
        if q[3] != k[3]:
            raise VerifyException(f"queries and keys have one head dimension, got {q[3]} and {k[3]}")
        if not 1 <= q[3] <= MOST_DEPTH or not 1 <= v[3] <= MOST_DEPTH:
            raise VerifyException(f"head dimensions are from 1 to {MOST_DEPTH}, got {q[3]} and {v[3]}")
        if k[1] != v[1] or not k[1] or q[1] % k[1]:
            raise VerifyException(f"{q[1]} query heads do not share {k[1]} key and {v[1]} value heads evenly")
        if not _agree(k[2], v[2]):
            raise VerifyException(f"there are as many values as keys, got {v[2]} and {k[2]}")
        batches = [k[0], v[0]] if self.table is not None else [q[0], k[0], v[0]]
        if not all(_agree(a, b) for a in batches for b in batches):
            raise VerifyException(f"batch sizes are equal, got {shape_text((q[0], k[0], v[0]))}")
        if tuple(tensor_type(self.result).get_shape()) != (*q[:3], v[3]):
            given = shape_text(tensor_type(self.result).get_shape())
            raise VerifyException(f"attention of these operands gives {shape_text((*q[:3], v[3]))}, not {given}")
        if self.lse is not None and tuple(tensor_type(self.lse).get_shape()) != tuple(q[:3]):
            given = shape_text(tensor_type(self.lse).get_shape())
            raise VerifyException(f"the logarithms are {shape_text(q[:3])}, one for each row, not {given}")
        if self.bias is not None:
            shape, full = tensor_type(self.bias).get_shape(), (*q[:3], k[2])
            if len(shape) != 4 or any(s != 1 and not _agree(s, f) for s, f in zip(shape, full, strict=True)):
                raise VerifyException(f"a bias of {shape_text(shape)} does not broadcast to {shape_text(full)}")

    def _check_tables(self) -> None:
        """What `lengths` and `pages` bring."""
        starts, pages = (self.starts_q, self.starts_k), (self.table, self.counts)
        for values, ranks, keyword in ((starts, (1, 1), "lengths"), (pages, (2, 1), "pages")):
            for value, rank in zip(values, ranks, strict=True):
                if (value is None) != (values[0] is None):
                    raise VerifyException(f"{keyword} takes two tensors")
                if value is not None and (
                    tensor_type(value).element_type != i32 or len(tensor_type(value).get_shape()) != rank
                ):
                    raise VerifyException(
                        f"{keyword} takes tensors of i32 of ranks {ranks[0]} and {ranks[1]}, got {value.type}"
                    )
        q, k = tensor_type(self.q).get_shape(), tensor_type(self.k).get_shape()
        if self.starts_q is not None and self.starts_k is not None:
            sizes = [tensor_type(x).get_shape()[0] for x in (self.starts_q, self.starts_k)]
            if not _agree(*sizes) or 0 in sizes:
                raise VerifyException(f"lengths takes two tensors of one size, at least 1, got {shape_text(sizes)}")
            if (q[0], k[0]) != (1, 1) or self.bias is not None or self.table is not None:
                raise VerifyException("attention with lengths has a batch of 1, and neither bias nor pages")
        if self.table is not None and self.counts is not None:
            sizes = [q[0], tensor_type(self.table).get_shape()[0], tensor_type(self.counts).get_shape()[0]]
            if not all(_agree(a, b) for a in sizes for b in sizes):
                raise VerifyException(
                    f"pages takes a row of the table and a count for each batch, got {shape_text(sizes)}"
                )
            if k[2] == DYNAMIC or k[2] < K_STEP or k[2] % K_STEP or self.bias is not None:
                raise VerifyException(
                    f"a page has a static multiple of {K_STEP} keys, and there is no bias; got {shape_text(k)}"
                )
        if self.rows is not None and (self.starts_q is None or not 1 <= self.rows.value.data < MOST_KEYS):
            given = self.rows.value.data
            raise VerifyException(f"rows belongs to lengths, and is a number from 1 to {MOST_KEYS - 1}, got {given}")

    def _check_numbers(self) -> None:
        if not abs(self.scale.value.data) <= 1 / TINY:
            raise VerifyException(f"scale is a number from -1e30 to 1e30, got {self.scale.value.data}")
        if self.softcap is not None and not TINY <= self.softcap.value.data <= 1 / TINY:
            raise VerifyException(f"softcap is a number from 1e-30 to 1e30, got {self.softcap.value.data}")
        if self.window is not None and not 1 <= self.window.value.data < MOST_KEYS:
            given = self.window.value.data
            raise VerifyException(f"window is a number of keys from 1 to {MOST_KEYS - 1}, got {given}")

    # ---- what it asks for

    def policies(self) -> tuple[AccumulateAttr, AccumulateAttr]:
        """(of the scores, of the product with the values). A module's policy that cannot be followed leaves f32."""
        f32_sums = AccumulateAttr.get()
        module = module_policy(self) if self.accumulate is None and self.remark() is None else None
        return self.accumulate_scores or f32_sums, self.accumulate or module or f32_sums

    def remark(self) -> str | None:
        """A sentence if the module asks for a policy that this op cannot follow."""
        module = module_policy(self)
        if module is None or self.accumulate is not None or module.policy.data == "f32":
            return None
        name = module.policy.data
        if not isinstance(tensor_type(self.q).element_type, Float16Type):
            return f"accumulate<{name}> of the module needs f16 operands; these sums of bf16 stay f32"
        if name == "f16" or module.overflow.data == "redo":
            return (
                f"accumulate<{name}> of the module is no policy of rescaled sums, or wants to redo them; they stay f32"
            )
        return None

    def chain(self) -> Chain:
        depth, width = (padded(tensor_type(x).get_shape()[3]) for x in (self.q, self.v))
        return Chain(
            depth,
            width,
            str(tensor_type(self.q).element_type),
            max(policy.max_k.data for policy in self.policies()),
            _bytes(self.result),
            () if self.bias is None else (_bytes(self.bias),),
            self._rows(),
            None if self.table is None else tensor_type(self.k).get_shape()[2],
            self.starts_q is not None,
            self.causal is not None or self.window is not None,
            self._batches(),
            all(_whole_units(x) for x in (self.q, self.v)),
            self._narrow(),
            self.window is not None,
            self.k is self.v and self.table is None and self.starts_q is None,
            self._streamed(),
        )

    def _streamed(self) -> int | None:
        """Bytes of keys and values, None for `?`."""
        shapes = [tensor_type(x).get_shape() for x in dict.fromkeys((self.k, self.v))]
        known = all(DYNAMIC not in shape for shape in shapes)
        return sum(prod(shape) for shape in shapes) * _bytes(self.k) if known else None

    def _narrow(self) -> bool:
        """Whether the bias has rows, and some tensor's are no whole units of 16 bytes."""
        of_rows = self.bias is not None and tensor_type(self.bias).get_shape()[2] != 1
        return of_rows and not all(_whole_units(x) for x in (self.q, self.v, self.bias) if x is not None)

    def _batches(self) -> int | None:
        """Pairs of a batch and a head, None for `?`."""
        batch, heads = tensor_type(self.q).get_shape()[:2]
        return None if DYNAMIC in (batch, heads) else batch * heads

    def _rows(self) -> int | None:
        """Rows of one key head, None for `?` and with lengths: those of one query's heads are packed, and of few queries'."""
        if self.starts_q is not None:
            return None
        (_, heads, rows, _), groups = tensor_type(self.q).get_shape(), tensor_type(self.k).get_shape()[1]
        return heads // groups if rows == 1 else self._rows_together() or (rows if rows != DYNAMIC else None)

    def _rows_together(self) -> int:
        """Rows of all heads that share a key head, if there are several of each and few in all; else 0."""
        (_, heads, rows, _), groups = tensor_type(self.q).get_shape(), tensor_type(self.k).get_shape()[1]
        together = heads // groups * rows
        alike = self.bias is None and self.starts_q is None and heads > groups
        return together if alike and 1 < rows < together <= FEW_ROWS else 0

    def sizes(self, operands: Sequence[Sequence[Any]]) -> CompositeSizes:
        given = dict(zip(self.given(), operands, strict=True))
        q, k, v = given["q"], given["k"], given["v"]
        if "table" in given:
            equal = [(q[0], given["table"][0], BATCHES), (q[0], given["counts"][0], BATCHES), (k[0], v[0], BATCHES)]
        else:
            equal = [(q[0], k[0], BATCHES), (q[0], v[0], BATCHES)]
        equal.append((k[2], v[2], "attention has as many values as keys"))
        if "starts_q" in given:
            equal.append((given["starts_q"][0], given["starts_k"][0], "attention has lengths of equal sizes"))
        if self.bias is not None:
            declared = tensor_type(self.bias).get_shape()
            pairs = zip(declared, given["bias"], (*q[:3], k[2]), strict=True)
            equal += [(b, full, "attention has a bias whose sizes must be equal to") for d, b, full in pairs if d != 1]
        results = ((*q[:3], v[3]),) if self.lse is None else ((*q[:3], v[3]), tuple(q[:3]))
        seen = 1 if self.causal is not None else 2  # of causal scores, half
        keys = (k[2], given["table"][1]) if "table" in given else (k[2],)
        return CompositeSizes(results, tuple(equal), (seen, *q[:3], *keys, q[3] + v[3]))

    def given(self) -> list[str]:
        """The names of the operands that there are, in order."""
        return [name for name in OPERANDS if getattr(self, name) is not None]

    def error(self) -> float:
        # Weights are rounded to the type of the values, sums of f16 once more; scores and their exponentials are f32.
        f16_scores, f16_values = (policy.max_k.data > 0 for policy in self.policies())
        unit = 2.0**-11 if isinstance(tensor_type(self.v).element_type, Float16Type) else 2.0**-8
        return unit * (1 + f16_values + 4 * f16_scores) + 1e-5

    # ---- what it means

    def evaluate(self, operands: Sequence[Any], contract: Callable[..., Any] | None) -> list[Any]:
        given = dict(zip(self.given(), operands, strict=True))
        q, k, v = given["q"], given["k"], given["v"]
        batch = v.shape[0] if self.table is not None else q.shape[0]
        if k.shape[2] != v.shape[2] or not batch == k.shape[0] == v.shape[0]:
            shapes = ", ".join(str(x.shape) for x in (q, k, v))
            raise EmmyError(f"attention of shapes {shapes}: the `?` sizes do not agree", location_of(self))
        bias: Any = given.get("bias")
        if self.bias is not None:
            declared, full = tensor_type(self.bias).get_shape(), (*q.shape[:3], k.shape[2])
            if any(d != 1 and b != f for d, b, f in zip(declared, bias.shape, full, strict=True)):
                raise EmmyError(f"a bias of shape {bias.shape} does not broadcast to {full}", location_of(self))
        value, logarithm = np.zeros((*q.shape[:3], v.shape[3]), q.dtype), np.zeros(q.shape[:3], q.dtype)
        meaning = self._values()
        for at, rows, keys, values in sequences(given, location_of(self)):
            value[at], logarithm[at] = meaning.compute(rows, keys, values, bias, contract)
        return [value] if self.lse is None else [value, logarithm]

    def _values(self) -> WeightedSumValues:
        of_scores, of_values = self.policies()
        return WeightedSumValues(
            scale=self.scale.value.data,
            softcap=None if self.softcap is None else self.softcap.value.data,
            causal=self.causal is not None,
            window=None if self.window is None else self.window.value.data,
            of_scores=of_scores,
            of_values=of_values,
            stored=np.float16 if isinstance(tensor_type(self.v).element_type, Float16Type) else ml_dtypes.bfloat16,
        )

    # ---- its program

    def lower(
        self, host: Emitter, fresh: Callable[[str], str], variants: Sequence[Variant]
    ) -> tuple[list[KernelOp], list[SSAValue]]:
        schedule = self.attributes.get("emmy.schedule")
        if not isinstance(schedule, ScheduleAttr):
            message = "this attention has no emmy.schedule; run assign-schedule{target=..} before lower-tensor-op"
            raise EmmyError(message, location_of(self))
        shape = tensor_type(self.q).get_shape()
        dynamic = [named(host.value(DimOp(self.q, axis)), "size") for axis in (0, 2) if shape[axis] == DYNAMIC]
        results = [named(host.value(AllocOp(dynamic, r.type)), r.name_hint) for r in self.results]
        what = WeightedSum(
            source=self,
            q=self._packed(self.q, host),
            k=self.k,
            v=self.v,
            bias=None if self.bias is None else self._packed(self.bias, host),
            starts=None if self.starts_q is None or self.starts_k is None else (self.starts_q, self.starts_k),
            most_rows=None if self.rows is None else self.rows.value.data,
            pages=None if self.table is None or self.counts is None else (self.table, self.counts),
            scale=self.scale.value.data,
            softcap=None if self.softcap is None else self.softcap.value.data,
            causal=self.causal is not None,
            window=None if self.window is None else self.window.value.data,
            last_row=shape[2] == 1 and self.starts_q is None,
            of_scores=self.policies()[0],
            of_values=self.policies()[1],
            remark=self.remark(),
            tokens=shape[2] if schedule.data.splits and self._rows_together() else None,
        )
        whole = Whole(*[self._packed(result, host) for result in results], *[None] * (2 - len(results)))
        return lower_weighted_sum(what, whole, schedule.data, host, fresh, variants), results

    def _packed(self, tensor: SSAValue, host: Emitter) -> SSAValue:
        """One query's heads that share keys as rows: B x H x 1 x .. as B x G x H/G x .., the same memory."""
        heads, groups = (tensor_type(x).get_shape()[1] for x in (self.q, self.k))
        batch, own, rows, *columns = tensor_type(tensor).get_shape()
        alone = tensor_type(self.q).get_shape()[2] == 1 and self.starts_q is None
        if not alone or heads == groups or own != heads or rows != 1:
            return tensor
        type_ = TensorType(tensor_type(tensor).element_type, [batch, groups, heads // groups, *columns])
        return named(host.value(ReshapeOp(tensor, type_)), tensor.name_hint)


def _agree(a: int, b: int) -> bool:
    return a == b or DYNAMIC in (a, b)


def _bytes(value: SSAValue) -> int:
    return 4 if isinstance(tensor_type(value).element_type, Float32Type) else 2


def _whole_units(value: SSAValue) -> bool:
    """Whether rows are known to be whole units of 16 bytes, or there is one element that all columns share."""
    columns = tensor_type(value).get_shape()[3]
    return columns == 1 or (columns != DYNAMIC and columns * _bytes(value) % 16 == 0)
