"""`tensor_op.attention`: softmax(scale * Q K^T, masked) V, its float64 meaning and its tile program.

    %o = tensor_op.attention %q, %k, %v scale 0.125 causal
       : (tensor<BxHxSxDxf16>, tensor<BxGxTxDxf16>, tensor<BxGxTxExf16>) -> tensor<BxHxSxExf16>

The kernel is one loop over blocks of keys with a running maximum and sum (online softmax, Milakov and Gimelshein 2018; the loop
of FlashAttention-2, Dao 2023). Scores are kept in base 2, and the maximum in units of the exponent: where it does not change,
the factor of the old sums is exactly 1. The maximum begins finite and hidden scores are minus infinity, so that no infinity is
ever subtracted from another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from xdsl.dialects import scf
from xdsl.dialects.builtin import (
    BFloat16Type,
    Float16Type,
    Float32Type,
    FloatAttr,
    IntegerAttr,
    StringAttr,
    TensorType,
    UnitAttr,
    f32,
    f64,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.irdl import (
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

from emmy.chained_schedules import Chain
from emmy.dialects.common import DYNAMIC, shape_text
from emmy.dialects.tensor_op import (
    AccumulateAttr,
    CompositeOp,
    CompositeSizes,
    check_accumulate,
    module_policy,
    tensor_type,
)
from emmy.dialects.tile import (
    AllocOp,
    CoordOp,
    DimOp,
    GridOp,
    Index,
    KernelOp,
    LaunchOp,
    ScheduleAttr,
    SqueezeOp,
    StoreOp,
    TileType,
    ViewType,
)
from emmy.errors import EmmyError
from emmy.locations import location_of
from emmy.lowering.tile_builder import Number, TileBuilder, named
from emmy.passes.emitter import Emitter

LOG2_E = math.log2(math.e)
K_STEP = 16
LEFT = 8
"""Columns that the row sum keeps inside the loop: what a lane of an accumulator holds are 2 of every 8."""
LOWEST = -1e30
"""Where the maximum begins: finite, and below every score that is not minus infinity."""
LEAST = 1e-30
"""What a sum of no keys is divided by."""
TINY = 1e-30
"""Scales up to here are not folded into the unit of the exponents, which must not be 0."""
MOST_KEYS = 2**30
"""Positions of keys, and sums of two of them, are i32."""
MOST_DEPTH = 512
"""The largest head dimension."""
CARRIED = ("j", "top", "total", "sums")
FINAL = ("last_top", "last_total", "last_sums")
"""Names of what the loop carries, and of what it leaves."""


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
    `accumulate` is the policy of the product with the values (without it the module's), `accumulate_scores` that of the scores;
    either is f32 or hybrid. All of softmax is f32; its weights are rounded to the type of the values.
    """

    name = "tensor_op.attention"
    q = operand_def(TensorType)
    k = operand_def(TensorType)
    v = operand_def(TensorType)
    bias = opt_operand_def(TensorType)
    result = result_def(TensorType)
    lse = opt_result_def(TensorType)
    scale = prop_def(FloatAttr)
    causal = opt_prop_def(UnitAttr)
    window = opt_prop_def(IntegerAttr)
    softcap = opt_prop_def(FloatAttr)
    accumulate = opt_prop_def(AccumulateAttr)
    accumulate_scores = opt_prop_def(AccumulateAttr)
    traits = traits_def(Pure())

    # ---- text

    @classmethod
    def parse(cls, parser: Parser) -> AttentionOp:
        operands = [parser.parse_unresolved_operand()]
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
        if parser.parse_optional_keyword("bias") is not None:
            operands.append(parser.parse_unresolved_operand())
        for policy in ("accumulate", "accumulate_scores"):
            if parser.parse_optional_keyword(policy) is not None:
                properties[policy] = AccumulateAttr.new(AccumulateAttr.parse_parameters(parser))
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        place = parser.pos
        types = parser.parse_function_type()
        values = parser.resolve_operands(operands, types.inputs.data, place)
        results = types.outputs.data
        if not 1 <= len(results) <= 2:
            message = f"attention gives its result and perhaps a logarithm for each row, got {len(results)} types"
            parser.raise_error(message, place, place)
        return cls.create(operands=values, result_types=results, properties=properties, attributes=attributes)

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
        if self.bias is not None:
            printer.print_string(" bias ")
            printer.print_ssa_value(self.bias)
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
        if not _agree(q[0], k[0]) or not _agree(q[0], v[0]):
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
        depth, width = (_padded(tensor_type(x).get_shape()[3]) for x in (self.q, self.v))
        return Chain(
            depth,
            width,
            str(tensor_type(self.q).element_type),
            max(policy.max_k.data for policy in self.policies()),
            _bytes(self.result),
            () if self.bias is None else (_bytes(self.bias),),
        )

    def sizes(self, operands: Sequence[Sequence[Any]]) -> CompositeSizes:
        q, k, v, *bias = operands
        equal = [(q[0], x[0], "attention has batch sizes that must be equal") for x in (k, v)]
        equal.append((k[2], v[2], "attention has as many values as keys"))
        if self.bias is not None:
            declared = tensor_type(self.bias).get_shape()
            pairs = zip(declared, bias[0], (*q[:3], k[2]), strict=True)
            equal += [(b, full, "attention has a bias whose sizes must be equal to") for d, b, full in pairs if d != 1]
        results = ((*q[:3], v[3]),) if self.lse is None else ((*q[:3], v[3]), tuple(q[:3]))
        seen = 1 if self.causal is not None else 2  # of causal scores, half
        return CompositeSizes(results, tuple(equal), (seen, *q[:3], k[2], q[3] + v[3]))

    def error(self) -> float:
        # Weights are rounded to the type of the values, sums of f16 once more; scores and their exponentials are f32.
        f16_scores, f16_values = (policy.max_k.data > 0 for policy in self.policies())
        unit = 2.0**-11 if isinstance(tensor_type(self.v).element_type, Float16Type) else 2.0**-8
        return unit * (1 + f16_values + 4 * f16_scores) + 1e-5

    # ---- what it means

    def evaluate(self, operands: Sequence[Any], contract: Callable[..., Any] | None) -> list[Any]:
        q, k, v, *bias = operands
        if k.shape[2] != v.shape[2] or not q.shape[0] == k.shape[0] == v.shape[0]:
            shapes = ", ".join(str(x.shape) for x in (q, k, v))
            raise EmmyError(f"attention of shapes {shapes}: the `?` sizes do not agree", location_of(self))
        group = q.shape[1] // k.shape[1]
        k, v = (np.repeat(x, group, axis=1) for x in (k, v))
        of_scores, of_values = self.policies()
        scores = _product(q, k.swapaxes(-1, -2), of_scores, contract) * q.dtype.type(self.scale.value.data)
        if self.softcap is not None:
            cap = q.dtype.type(self.softcap.value.data)
            scores = cap * np.tanh(scores / cap)
        if bias:
            declared = tensor_type(self.bias).get_shape() if self.bias is not None else ()
            if any(d != 1 and b != f for d, b, f in zip(declared, bias[0].shape, scores.shape, strict=True)):
                message = f"a bias of shape {bias[0].shape} does not broadcast to {scores.shape}"
                raise EmmyError(message, location_of(self))
            scores = scores + bias[0]
        scores = np.where(self._seen(q.shape[2], k.shape[2]), scores, -np.inf)
        top = np.max(scores, axis=-1, keepdims=True, initial=LOWEST)
        weights = np.exp(scores - top)
        total = np.sum(weights, axis=-1, keepdims=True)
        if contract is not None:
            stored = np.float16 if isinstance(tensor_type(self.v).element_type, Float16Type) else ml_dtypes.bfloat16
            weights = weights.astype(stored).astype(np.float32)
        value = _product(weights, v, of_values, contract) / np.maximum(total, LEAST)
        logarithm = np.where(total > 0, top + np.log(total), -np.inf)[..., 0]
        return [value] if self.lse is None else [value, logarithm]

    def _seen(self, rows: int, keys: int) -> Any:
        """Which keys each row sees."""
        row, key = np.arange(rows)[:, None] + keys - rows, np.arange(keys)[None]
        seen = np.ones((rows, keys), np.bool_)
        if self.causal is not None:
            seen &= key <= row
        if self.window is not None:
            seen &= key > row - self.window.value.data
            if self.causal is None:
                seen &= key < row + self.window.value.data
        return seen

    # ---- its program

    def lower(self, host: Emitter, fresh: Callable[[str], str]) -> tuple[list[KernelOp], list[SSAValue]]:
        schedule = self.attributes.get("emmy.schedule")
        if not isinstance(schedule, ScheduleAttr):
            message = "this attention has no emmy.schedule; run assign-schedule{target=..} before lower-tensor-op"
            raise EmmyError(message, location_of(self))
        build = TileBuilder(host)
        q = tensor_type(self.q)
        batch, heads, rows, _ = sizes = [
            named(host.value(DimOp(self.q, axis)), "size") if size == DYNAMIC else size
            for axis, size in enumerate(q.get_shape())
        ]
        dynamic = [size for size in sizes if not isinstance(size, int)]
        results = [named(host.value(AllocOp(dynamic, r.type)), r.name_hint) for r in self.results]
        tiles = build.ceildiv(rows, schedule.data.block[0])
        ctas = build.index(build.mul(build.mul(batch, heads), tiles, "ctas"))
        kernel = Program(self, schedule, fresh("")).kernel()
        inputs = list(dict.fromkeys(self.operands))
        host(LaunchOp(kernel.sym_name.data, ctas, [*inputs, *results]))
        return [kernel], results


def _agree(a: int, b: int) -> bool:
    return a == b or DYNAMIC in (a, b)


def _padded(size: int) -> int:
    return -(-size // K_STEP) * K_STEP


def _bytes(value: SSAValue) -> int:
    return 4 if isinstance(tensor_type(value).element_type, Float32Type) else 2


def _product(a: Any, b: Any, policy: AccumulateAttr, contract: Callable[..., Any] | None) -> Any:
    if contract is None:
        return a @ b
    return contract(np.zeros((*a.shape[:-1], b.shape[-1]), np.float32), a, b, policy)


# ---- the tile program ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Keys:
    """The keys that any row of a tile of rows may see, from `low` (a multiple of the block) to `high`.

    edges: what hides keys in between, as the operands of a comparison that is true of a key that is seen; `key` stands for it.
    """

    low: Number
    high: Number
    edges: tuple[tuple[str, SSAValue | None, SSAValue | None], ...]


class Program:
    """The kernel of one op, under construction."""

    def __init__(self, op: AttentionOp, schedule: ScheduleAttr, name: str):
        self.op = op
        self.schedule = schedule
        self.name = name
        self.rows, self.keys, self.depth = schedule.data.block
        self.width = _padded(tensor_type(op.v).get_shape()[3])
        tensors = [*dict.fromkeys(op.operands), *op.results]
        self.block = Block(
            arg_types=[ViewType.get(tensor_type(t).get_shape(), tensor_type(t).element_type) for t in tensors]
        )
        self.views: dict[SSAValue, SSAValue] = dict(zip(tensors, self.block.args, strict=True))
        for tensor, view in self.views.items():
            view.name_hint = tensor.name_hint
        self.build = TileBuilder(Emitter(self.block, op))

    def size(self, tensor: SSAValue, axis: int, name: str) -> Number:
        """A size of a tensor: a number, or read from its view."""
        size = tensor_type(tensor).get_shape()[axis]
        return size if size != DYNAMIC else named(self.build.emit.value(DimOp(self.views[tensor], axis)), name)

    def kernel(self) -> KernelOp:
        """All of it."""
        op, build = self.op, self.build
        extents = [self.size(op.q, axis, name) for axis, name in enumerate(("batch", "heads", "rows"))]
        grid = GridOp([build.index(x) for x in extents], (1, 1, self.rows), self.schedule.data.raster)
        b, h, m = (named(offset, name) for offset, name in zip(build.emit(grid).results, "bhm", strict=True))
        heads, groups = (tensor_type(x).get_shape()[1] for x in (op.q, op.k))
        at = (b, h, build.div(h, heads // groups, "kv_head") if groups > 1 else 0, m)
        q = build.load(self.views[op.q], (b, h, m, 0), (self.rows, self.depth), "q_tile")
        keys = self.visible(m, extents[2], self.size(op.k, 2, "keys"))
        self.finish(self.loop(q, keys, at), (b, h, m))
        kernel = KernelOp(self.name, self.schedule, Region(self.block))
        remark = op.remark()
        if remark is not None:
            kernel.attributes["emmy.remark"] = StringAttr(remark)
        kernel.location = op.location
        return kernel

    # ---- which keys

    def visible(self, m: SSAValue, rows: Number, keys: Number) -> Keys:
        """The keys that the rows from `m` on see."""
        op, build = self.op, self.build
        causal, window = op.causal is not None, None if op.window is None else op.window.value.data
        # A row that sees no key after its own sees none beyond the last one; rows beyond the last one are not stored.
        whole = causal or (isinstance(keys, int) and keys % self.keys == 0)
        edges: list[tuple[str, SSAValue | None, SSAValue | None]] = [] if whole else [("lt", None, build.index(keys))]
        if not causal and window is None:
            return Keys(0, keys, tuple(edges))
        shift = build.sub(keys, rows, "shift")
        first = build.add(m, shift, "first")
        reach = self.rows + (0 if causal or window is None else window - 1)
        high = build.min(build.add(first, reach, "reach"), keys, "last")
        if not isinstance(shift, int) or shift + reach < 0:
            high = build.max(high, 0, "high")
        low: Number = 0
        if window is not None:
            oldest = build.max(build.sub(first, window - 1, "reach_back"), 0, "oldest")
            low = build.mul(build.div(oldest, self.keys, "blocks"), self.keys, "low")
            edges.append(("lt", self.position(first, -window, "before"), None))
            if not causal:
                edges.append(("lt", None, self.position(first, window, "beyond")))
        if causal:
            edges.append(("ge", self.position(first, 0, "position"), None))
        return Keys(low, high, tuple(edges))

    def position(self, first: Number, distance: int, name: str) -> SSAValue:
        """For each row the key at a distance from its own."""
        at = self.build.index(self.build.add(first, distance, f"{name}_first"))
        return named(self.build.emit.value(CoordOp(0, at, TileType.get((self.rows, 1), i32))), name)

    def hide(self, build: TileBuilder, scores: SSAValue, keys: Keys, j: SSAValue, hidden: SSAValue) -> SSAValue:
        """The scores of the keys from `j` on, `hidden` where a row does not see the key."""
        if not keys.edges:
            return scores
        key = named(build.emit.value(CoordOp(1, j, TileType.get((1, self.keys), i32))), "key")
        for comparison, left, right in keys.edges:
            seen = build.map(comparison, left or key, right or key, name="seen")
            scores = build.map("select", seen, scores, hidden, name="shown")
        return scores

    # ---- the loop

    def loop(self, q: SSAValue, keys: Keys, at: tuple[Number, ...]) -> list[SSAValue]:
        """The running maximum (rows x 1, in base 2), sum (rows x LEFT) and product (rows x width) after all keys."""
        build, (b, h, kv, m) = self.build, at
        zero = build.fill(0.0, (self.rows, self.keys), "zero")
        starts = [
            build.fill(LOWEST, (self.rows, 1), "lowest"),
            build.fill(0.0, (self.rows, LEFT), "none"),
            build.fill(0.0, (self.rows, self.width), "nothing"),
        ]
        hidden = build.scalar(-math.inf, "hidden") if keys.edges else starts[0]
        body = Block(arg_types=[Index, *(start.type for start in starts)])
        j, top, total, sums = (named(arg, name) for arg, name in zip(body.args, CARRIED, strict=True))
        bounds = build.index(keys.low), build.index(keys.high), build.index(self.keys)
        inner = build.inside(body)
        of_scores, of_values = self.op.policies()
        k = inner.load(self.views[self.op.k], (b, kv, j, 0), (self.keys, self.depth), "k_tile")
        scores, unit = self.scores(inner, inner.dot(q, k, zero, "scores", True, of_scores), (b, h, m, j))
        scores = self.hide(inner, scores, keys, j, hidden)
        peak = inner.map("mul", inner.reduce("max", scores, "row_max"), unit, name="peak")
        new_top = inner.map("max", top, peak, name="new_top")
        minus_top = inner.map("neg", new_top, name="minus_top")
        weights = inner.map("exp2", inner.map("fma", scores, unit, minus_top, name="exponents"), name="weights")
        kept = inner.map("exp2", inner.map("add", top, minus_top, name="fallen"), name="kept")
        new_total = inner.map("fma", total, kept, inner.reduce("sum", weights, "gained", LEFT), name="new_total")
        rescaled = inner.map("mul", sums, kept, name="rescaled")
        p = inner.cast(weights, tensor_type(self.op.v).element_type, "p")
        v = inner.load(self.views[self.op.v], (b, kv, j, 0), (self.keys, self.width), "v_tile")
        inner.emit(scf.YieldOp(new_top, new_total, inner.dot(p, v, rescaled, "new_sums", policy=of_values)))
        loop = build.emit(scf.ForOp(*bounds, starts, body))
        loop.attributes["emmy.hidden_is_identity"] = UnitAttr()
        return [named(result, name) for result, name in zip(loop.results, FINAL, strict=True)]

    def scores(self, build: TileBuilder, products: SSAValue, at: tuple[Number, ...]) -> tuple[SSAValue, SSAValue]:
        """(scores, unit): a score times the unit is what 2 is raised to; the unit is positive, so maxima keep their order."""
        op, scale = self.op, self.op.scale.value.data
        cap = None if op.softcap is None else op.softcap.value.data
        unit = LOG2_E
        if cap is not None:
            capped = build.map("mul", products, build.scalar(scale / cap, "inner_scale"), name="uncapped")
            scores, unit, scale = build.map("tanh", capped, name="capped"), cap * LOG2_E, cap
        elif op.bias is None and scale > TINY:
            scores, unit = products, scale * LOG2_E
        elif op.bias is None:
            scores = build.map("mul", products, build.scalar(scale, "scale"), name="scaled")
        else:
            scores = products
        if op.bias is not None:
            bias, unit = build.cast(self.bias(build, op.bias, at), f32, "bias_f32"), LOG2_E
            scores = build.map("fma", scores, build.scalar(scale, "scale"), bias, name="biased")
        return scores, build.scalar(unit, "unit")

    def bias(self, build: TileBuilder, bias: SSAValue, at: tuple[Number, ...]) -> SSAValue:
        """The tile of the bias; sizes of 1 broadcast."""
        sizes = tensor_type(bias).get_shape()
        places = [0 if size == 1 else place for size, place in zip(sizes, at, strict=True)]
        shape = [1 if size == 1 else block for size, block in zip(sizes[2:], (self.rows, self.keys), strict=True)]
        return build.load(self.views[bias], places, shape, "bias_tile")

    def finish(self, state: Sequence[SSAValue], at: tuple[Number, ...]) -> None:
        """Divide by the sum; store the result and, if it is asked for, the logarithm."""
        build, op, (top, total, sums) = self.build, self.op, state
        sum_ = build.reduce("sum", total, "sum")
        inverse = build.map("rcp", build.map("max", sum_, build.scalar(LEAST, "least"), name="safe"), name="inverse")
        tile = build.cast(build.map("mul", sums, inverse, name="value"), tensor_type(op.result).element_type, "rounded")
        build.emit(StoreOp(tile, self.views[op.result], [build.index(x) for x in (*at, 0)]))
        if op.lse is not None:
            # The logarithm of no sum is minus infinity.
            exponent = build.map("add", top, build.map("log2", sum_, name="log2_sum"), name="exponent")
            log = build.map("mul", exponent, build.scalar(math.log(2), "ln2"), name="log_sum")
            column = named(build.emit.value(SqueezeOp(log, 1)), "lse_tile")
            build.emit(StoreOp(column, self.views[op.lse], [build.index(x) for x in at]))
