"""New PyTorch tensors of one shape, again and again: the quickest way that a PyTorch has.

`torch._C._dynamo.guards._empty_strided_cuda` is what the code that `torch.compile` makes allocates with: little is looked at, and
the tensor is on the current device. It is private, so that whoever uses it must be able to do without. Otherwise `new_empty` of
an empty tensor, which knows dtype and device; sizes one by one, for a `torch.Size` costs it twice as much.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from emmy.launch_specs import row_major

Make = Callable[[], Any]


def maker_of(torch: Any, shape: Sequence[int], dtype: Any, device: Any) -> Make:
    """A function that makes a row-major tensor without contents. `device` (a `torch.device`) is current when it is called."""
    sizes = tuple(shape)
    quick = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "_empty_strided_cuda", None)
    if quick is not None and _works(quick, dtype, device):
        return functools.partial(quick, sizes, row_major(sizes), dtype)
    return functools.partial(torch.empty((0,), dtype=dtype, device=device).new_empty, *(sizes or ((),)))


@functools.cache
def _works(quick: Any, dtype: Any, device: Any) -> bool:
    """Whether the private function makes what is asked for. An empty tensor takes no memory."""
    try:
        made = quick((0, 3), (3, 1), dtype)
        return (tuple(made.shape), made.dtype, made.device) == ((0, 3), dtype, device)
    except Exception:  # whatever another version raises
        return False
