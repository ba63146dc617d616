"""softmax(scale * Q K^T, masked) V over arrays: what the tile program of `emmy.lowering.online_softmax` computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from emmy.dialects.tensor_op import AccumulateAttr
from emmy.errors import EmmyError, SourceLocation
from emmy.lowering.weighted_sum import LEAST, LOWEST


@dataclass(frozen=True)
class WeightedSumValues:
    """One of these programs by its meaning.

    scale, softcap (None: none), causal, window (None: every key): of the scores. of_scores, of_values: the policies of the two
    products. stored: the NumPy type to which weights are rounded where policies are followed.
    """

    scale: float
    softcap: float | None
    causal: bool
    window: int | None
    of_scores: AccumulateAttr
    of_values: AccumulateAttr
    stored: Any

    def compute(self, q: Any, k: Any, v: Any, bias: Any, contract: Callable[..., Any] | None) -> tuple[Any, Any]:
        """(result, logarithms of the sums) of q: B x H x S x D, k: B x G x T x D, v: B x G x T x E and a bias or None.

        `contract` follows the policy of a product; without it everything has the type of the operands.
        """
        k, v = (np.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
        scores = _product(q, k.swapaxes(-1, -2), self.of_scores, contract) * q.dtype.type(self.scale)
        if self.softcap is not None:
            cap = q.dtype.type(self.softcap)
            scores = cap * np.tanh(scores / cap)
        if bias is not None:
            scores = scores + bias
        scores = np.where(self.seen(q.shape[2], k.shape[2]), scores, -np.inf)
        top = np.max(scores, axis=-1, keepdims=True, initial=LOWEST)
        weights = np.exp(scores - top)
        total = np.sum(weights, axis=-1, keepdims=True)
        if contract is not None:
            weights = weights.astype(self.stored).astype(np.float32)
        value = _product(weights, v, self.of_values, contract) / np.maximum(total, LEAST)
        return value, np.where(total > 0, top + np.log(total), -np.inf)[..., 0]

    def seen(self, rows: int, keys: int) -> Any:
        """Which keys each row sees, rows x keys: the last row stands at the last key."""
        row, key = np.arange(rows)[:, None] + keys - rows, np.arange(keys)[None]
        seen = np.ones((rows, keys), np.bool_)
        if self.causal:
            seen &= key <= row
        if self.window is not None:
            seen &= key > row - self.window
            if not self.causal:
                seen &= key < row + self.window
        return seen


def sequences(given: Mapping[str, Any], location: SourceLocation | None) -> Iterator[tuple[Any, Any, Any, Any]]:
    """(place in the result, queries, keys, values) of what is computed together.

    given: the operands by name; q, k, v alone, or with `table` and `counts` (pages), or with `starts_q` and `starts_k` (sequences
    one after the other). Raises `EmmyError` at `location` for starts that do not rise.
    """
    q, k, v = given["q"], given["k"], given["v"]
    if "table" in given:
        for b, count in enumerate(given["counts"].astype(int)):
            places = given["table"][b].astype(int)[: -(-count // k.shape[2])]
            # Pages x heads x keys x columns, as heads x keys of all pages x columns.
            parts = [
                x[places].swapaxes(0, 1).reshape(1, x.shape[1], len(places) * x.shape[2], x.shape[3]) for x in (k, v)
            ]
            yield slice(b, b + 1), q[b : b + 1], parts[0][:, :, :count], parts[1][:, :, :count]
    elif "starts_q" in given:
        starts = [given[name].astype(int) for name in ("starts_q", "starts_k")]
        for x, edges in zip((q, k), starts, strict=True):
            if edges[0] != 0 or edges[-1] != x.shape[2] or np.any(np.diff(edges) < 0):
                message = f"lengths rise from 0 to the {x.shape[2]} rows there are, got {edges.tolist()}"
                raise EmmyError(message, location)
        for rows, keys in zip(*(map(slice, edges[:-1], edges[1:]) for edges in starts), strict=True):
            yield (slice(None), slice(None), rows), q[:, :, rows], k[:, :, keys], v[:, :, keys]
    else:
        yield slice(None), q, k, v


def _product(a: Any, b: Any, policy: AccumulateAttr, contract: Callable[..., Any] | None) -> Any:
    if contract is None:
        return a @ b
    return contract(np.zeros((*a.shape[:-1], b.shape[-1]), np.float32), a, b, policy)
