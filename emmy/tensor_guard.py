"""PyTorch's own test of "tensors like those": dtype, sizes, strides, device in one call, a third of what asking each costs.

`torch._C._dynamo.guards.TensorGuards` is what `torch.compile` guards its graphs with. It is private, so that whoever uses
it must be able to do without: a guard that cannot be made, or does not recognise the tensors that it was made from, is
None. It is strict (it also tells inference mode, subclasses and `requires_grad` apart), and never mistaken: a False means
"ask them", a True "the same in everything that a kernel depends on, but the address". It keeps no tensor alive.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

Guard = Callable[..., bool]


def guard_of(tensors: Sequence[Any]) -> Guard | None:
    """A test of whether as many tensors are like these; None if this PyTorch has no such thing."""
    try:
        kind: Any = sys.modules["torch"]._C._dynamo.guards.TensorGuards
        guards = kind(
            *tensors,
            dynamic_dims_sizes=[list(tensor.shape) for tensor in tensors],
            dynamic_dims_strides=[list(tensor.stride()) for tensor in tensors],
        )
        check: Guard = guards.check
        return check if check(*tensors) else None
    except Exception:  # whatever another version raises
        return None
