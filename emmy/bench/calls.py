"""What a call costs the host: warm ones with PyTorch tensors, and the first one of a process.

    python -m emmy.bench.calls DIR --entry matmul --shape a=256x256 --shape b=256x256 [--out FILE.json]

DIR is an artefact. Warm calls: the least of some runs of `CALLS` calls each, with `out=` and without, of one size and of two that
take turns; the same calls of `torch.matmul` beside them, where the entry is one product of its two arguments, and the parts that
a call is made of. First call: a fresh process for each of `FIRST`, from after `import emmy` and PyTorch's initialisation to the
result, with the artefact loaded from DIR. Needs PyTorch and a GPU; never imports xDSL.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from emmy.bench.pages import told
from emmy.errors import EmmyError
from emmy.module import Module, load
from emmy.tools.inputs import parse_shapes, resolve_shapes

CALLS, RUNS = 200, 40
"""Few enough calls that the launch queue does not fill up; the least of many runs is without what else the machine does."""

FIRST = 3

FIRST_CALL = """
import sys, time
import torch, emmy
arguments = [torch.randn(shape, device="cuda").half() for shape in {shapes}]
torch.cuda.synchronize()
began = time.perf_counter()
result = getattr(emmy.load({path!r}), {entry!r})(*arguments)
torch.cuda.synchronize()
print(time.perf_counter() - began)
assert "xdsl" not in sys.modules
"""


def least_microseconds(torch: Any, call: Callable[[], Any]) -> float:
    """Of one call, on the host."""
    best = float("inf")
    for _ in range(RUNS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, (time.perf_counter() - began) / CALLS * 1e6)
    torch.cuda.synchronize()
    return best


def warm_calls(torch: Any, module: Module, entry: str, shapes: Sequence[Sequence[int]]) -> dict[str, float]:
    """Microseconds of each kind of call."""
    function = module[entry]
    arguments = [torch.randn(tuple(shape), device="cuda").half() for shape in shapes]
    others = [argument[: argument.shape[0] // 2].contiguous() for argument in arguments]
    out, other = function(*arguments), function(*others)
    turns = [(arguments, out), (others, other)]

    def alternating() -> None:
        turns.reverse()
        function(*turns[0][0], out=turns[0][1])

    calls: dict[str, Callable[[], Any]] = {
        "with out": lambda: function(*arguments, out=out),
        "without out": lambda: function(*arguments),
        "with out, two sizes in turn": alternating,
    }
    if module.artefact.entry(entry).get("work", {}).get("kind") == "matmul":
        a, b = arguments[0], arguments[1].mT
        calls["torch.matmul with out"] = lambda: torch.matmul(a, b, out=out)
        calls["torch.matmul without out"] = lambda: torch.matmul(a, b)
    return {
        name: least_microseconds(torch, call) for name, call in (calls | parts(torch, module, entry, turns)).items()
    }


def parts(
    torch: Any, module: Module, entry: str, turns: Sequence[tuple[Sequence[Any], Any]]
) -> dict[str, Callable[[], Any]]:
    """What a warm call does, one by one."""
    caller: Any = module.cuda().caller(entry)
    (arguments, out), _ = turns
    module[entry](*arguments)
    module[entry](*arguments, out=out)
    kept, addresses = caller._last, tuple(tensor.data_ptr() for tensor in (*arguments, out))
    caller._launch(kept.plan, addresses, 0)
    (launch, *_), stream_object = kept.plan.made[addresses], caller.module._stream_type(0)
    return {
        "part: a lambda and its call": lambda: None,
        "part: guard": lambda: kept.guard(*arguments),
        "part: context": lambda: int(caller._current_context()[1]),
        "part: allocation": kept.makers[0],
        "part: addresses": lambda: tuple([tensor.data_ptr() for tensor in arguments]),
        "part: stream": lambda: caller._current_stream(0),
        "part: launch of a plan": lambda: caller._launch(kept.plan, addresses, 0),
        "part: the driver's launch": lambda: launch.start(stream_object, launch.pointers_address, 0),
    }


def first_calls(path: Path, entry: str, shapes: Sequence[Sequence[int]]) -> list[float]:
    """Milliseconds of the first call of processes."""
    text = FIRST_CALL.format(shapes=[tuple(shape) for shape in shapes], path=str(path), entry=entry)
    return [
        1e3 * float(subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True).stdout)
        for _ in range(FIRST)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for, and print it."""
    parser = argparse.ArgumentParser(
        prog="emmy.bench.calls", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, help="an artefact")
    parser.add_argument("--entry", required=True)
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=AxBx..")
    parser.add_argument("--out", type=Path, help="file for the figures, as JSON")
    args = parser.parse_args(argv)

    def action() -> int:
        try:
            torch = importlib.import_module("torch")
        except ImportError:
            raise EmmyError("calls are timed with PyTorch tensors, and this Python has no PyTorch") from None
        module = load(args.directory)
        spec = module.artefact.entry(args.entry)
        shapes = [list(shape) for shape in resolve_shapes(spec, parse_shapes(args.shape, spec)).values()]
        warm = warm_calls(torch, module, args.entry, shapes)
        first = first_calls(args.directory, args.entry, shapes)
        for name, microseconds in warm.items():
            print(f"{name:32} {microseconds:6.2f} us")
        print(f"first call of a process: {statistics.median(first):.0f} ms (of {', '.join(f'{t:.0f}' for t in first)})")
        if args.out is not None:
            found = {"card": torch.cuda.get_device_name(), "shapes": shapes, "warm_us": warm, "first_ms": first}
            args.out.write_text(json.dumps(found, indent=1) + "\n")
        return 0

    return told(action)


if __name__ == "__main__":
    sys.exit(main())
