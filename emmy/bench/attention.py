"""Problems of attention for the bench: what level 1 says of them, and the cases whose speed docs/ quotes.

A case's `task` says what is computed: kind (`attention`), scale, causal, window (0 for none; the last key is the row's own under
`causal`), and for some: `shared` (keys are values, two arguments only), `bias` (a further argument, added to scores), `starts`
(two lists: where packed sequences begin, two more arguments), `inputs` (see `emmy.bench.attention_inputs`). Arguments are q
(batch, heads, rows, depth) and k, v (batch, groups, keys, depth); causal rows are aligned at the bottom right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Task = dict[str, Any]

KIND = "attention"

TEXT = """func.func @attention({arguments}) -> {q} {{
  %o = tensor_op.attention %q, %k, {values} scale {scale}{clauses} : ({types}) -> {q}
  func.return %o : {q}
}}
"""


@dataclass(frozen=True)
class Attention:
    """One problem: q is batch x heads x rows x depth, k and v are batch x groups x keys x depth.

    shared: keys are the values, too. bias: its sizes (each 1 or that of the scores) in the operands' type. starts: where packed
    sequences begin in rows and in keys, with their ends. accumulate: policy of the product with the values, if not the default.
    factor: of the scores, for which None is depth^-1/2.
    """

    name: str
    batch: int
    heads: int
    groups: int
    rows: int
    keys: int
    depth: int
    causal: bool = False
    window: int = 0
    dtype: str = "f16"
    suite: str = KIND
    shared: bool = False
    bias: tuple[int, ...] | None = None
    starts: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    accumulate: str | None = None
    factor: float | None = None
    inputs: str | None = None

    @property
    def text(self) -> str:
        """Level 1."""
        types = {
            name: f"tensor<{'x'.join(map(str, shape))}x{self.type_of(name)}>" for name, shape in self.shapes.items()
        }
        clauses = " causal" * self.causal + (f" window {self.window}" if self.window else "")
        clauses += " bias %bias" * (self.bias is not None)
        clauses += " lengths %starts_q, %starts_k" * (self.starts is not None)
        clauses += f" accumulate<{self.accumulate}>" if self.accumulate else ""
        given = [
            types["q"],
            types["k"],
            types["k" if self.shared else "v"],
            *list(types.values())[2 if self.shared else 3 :],
        ]
        return TEXT.format(
            arguments=", ".join(f"%{name}: {type_}" for name, type_ in types.items()),
            values="%k" if self.shared else "%v",
            types=", ".join(given),
            scale=self.scale,
            clauses=clauses,
            q=types["q"],
        )

    def type_of(self, argument: str) -> str:
        """The element type of an argument."""
        return "i32" if argument.startswith("starts") else self.dtype

    @property
    def scale(self) -> float:
        """Of the scores."""
        return self.depth**-0.5 if self.factor is None else self.factor

    @property
    def shapes(self) -> dict[str, list[int]]:
        """Of the arguments."""
        keys = [self.batch, self.groups, self.keys, self.depth]
        found = {"q": [self.batch, self.heads, self.rows, self.depth], "k": keys}
        if not self.shared:
            found["v"] = list(keys)
        if self.bias is not None:
            found["bias"] = list(self.bias)
        if self.starts is not None:
            found |= {f"starts_{name}": [len(starts)] for name, starts in zip("qk", self.starts, strict=True)}
        return found

    @property
    def task(self) -> Task:
        """What `cases.json` says of it; flops count pairs of a row and a key that it sees."""
        flops = 4 * self.batch * self.heads * self.depth * self.pairs
        fields: Task = {"kind": KIND, "scale": self.scale, "causal": self.causal, "window": self.window}
        more = {"shared": self.shared, "bias": self.bias is not None, "inputs": self.inputs}
        fields |= {name: value for name, value in more.items() if value}
        if self.starts is not None:
            fields["starts"] = [list(starts) for starts in self.starts]
        return fields | {"flops": flops}

    @property
    def pairs(self) -> int:
        """Pairs of a row and a key that it sees, of one head."""
        return sum(seen_pairs(*sizes, self.causal, self.window) for sizes in self.sequences)

    @property
    def sequences(self) -> list[tuple[int, int]]:
        """Rows and keys of each sequence; one of all without `starts`."""
        if self.starts is None:
            return [(self.rows, self.keys)]
        lengths = [[end - start for start, end in pairwise(s)] for s in self.starts]
        return list(zip(*lengths, strict=True))


def seen_pairs(rows: int, keys: int, causal: bool, window: int) -> int:
    """Pairs of a row and a key that it sees, by the formula of the operation."""
    total = 0
    for row in range(rows):
        own = row + keys - rows
        last = max(own, -1) if causal else min(keys - 1, own + window - 1 if window else keys - 1)
        first = max(own - window + 1, 0) if window else 0
        total += max(min(keys - 1, last) - first + 1, 0)
    return total


SIZES = (("A", 1, 8, 8, 64), ("B", 4, 16, 16, 64), ("C", 4, 16, 16, 128), ("D", 1, 16, 8, 256))
"""Letter, batch, heads, groups, depth of what is quoted at 4096 rows and keys."""

LONGER = (
    ("Ps", 4, 16, 16, 2048, 128),
    ("Qs", 1, 16, 8, 2048, 256),
    ("Pl", 1, 16, 16, 16384, 128),
    ("Ql", 1, 16, 8, 16384, 256),
)
"""Shorter and longer: name, batch, heads, groups, rows, depth."""

DECODING = ((1, 8192, 128), (1, 32768, 128), (8, 8192, 256), (8, 32768, 256))
"""Batch, keys and depth of one query with 16 heads on 8."""

QUERIES = ((1, 4, 32768, 128), (8, 8, 8192, 256))
"""The same of several queries: batch, queries, keys and depth."""


def attention_cases() -> Iterator[Attention]:
    """The problems that docs/ quotes: four sizes, shorter and longer ones, each causal too; Gemma's layers; decoding."""
    for causal in (False, True):
        for letter, batch, heads, groups, depth in SIZES:
            name = f"{letter} b{batch} h{heads}/{groups} s4096 d{depth}{' causal' * causal}"
            yield Attention(name, batch, heads, groups, 4096, 4096, depth, causal)
    for letter, batch, heads, groups, length, depth in LONGER:
        for causal in (False, True):
            name = f"{letter} b{batch} h{heads}/{groups} s{length} d{depth}{' causal' * causal}"
            yield Attention(name, batch, heads, groups, length, length, depth, causal, suite="attention lengths")
    for length in (2048, 4096, 8192):
        name = f"gemma window s{length} d256"
        yield Attention(name, 1, 16, 8, length, length, 256, True, 1024, suite="attention window")
    for causal in (False, True):
        name = f"gemma global s4096 d512{' causal' * causal}"
        yield Attention(name, 1, 16, 1, 4096, 4096, 512, causal, suite="attention d512")
    for batch, keys, depth in DECODING:
        yield Attention(
            f"decode b{batch} h16/8 k{keys} d{depth}", batch, 16, 8, 1, keys, depth, suite="attention decoding"
        )
    for batch, queries, keys, depth in QUERIES:
        name = f"{queries} queries b{batch} h16/8 k{keys} d{depth}"
        yield Attention(name, batch, 16, 8, queries, keys, depth, suite="attention queries")
