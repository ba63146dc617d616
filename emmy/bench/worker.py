"""The child process of a benchmark run: answers requests about one device, one JSON line each.

    {"do": "device"}                     what card, driver and libraries there are
    {"do": "bracket", "directory": DIR}  a cuBLAS product, a device-to-device copy and, if DIR has the artefact `peak`,
                                         `mma.sync` on registers alone: what to judge the machine by
    {"do": "case", "case": {...}, ...}   `emmy.bench.measure.run_case`

Started by `emmy.bench.run`; not meant to be run by hand.
"""

from __future__ import annotations

import datetime
import functools
import importlib
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from emmy import __version__
from emmy.artefact import Artefact, evaluate
from emmy.bench.cases import Case
from emmy.bench.measure import interleaved, run_case
from emmy.bench.peak import ACCUMULATORS, PEAK_ARTEFACT, ROW_ELEMENTS, THREADS, entry_name
from emmy.errors import EmmyError
from emmy.runtime import CudaModule, Runtime

COPY_BYTES = 1 << 30
BRACKET_SIZE = 4096
BRACKET_ROUNDS = 20
CLOCK_SECONDS = 5.0  # at most, for a query that takes a fraction of one


class Worker:
    """Holds the device and the modules loaded so far."""

    def __init__(self) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.torch.cuda.init()
        self.torch.set_float32_matmul_precision("highest")
        self.runtime = Runtime(self.torch.cuda.current_device())
        self.modules: dict[str, CudaModule] = {}

    def device(self, request: dict[str, Any]) -> dict[str, Any]:
        torch = self.torch
        properties = torch.cuda.get_device_properties(self.runtime.device)
        return {
            "ok": True,
            "card": self.runtime.name,
            "compute_capability": list(self.runtime.compute_capability),
            "sms": properties.multi_processor_count,
            "memory_gb": round(properties.total_memory / 1e9, 1),
            "driver": _smi("driver_version") or "unknown",
            "torch": torch.__version__,
            "triton": _version("triton"),
            "emmy": __version__,
            "cuda": torch.version.cuda,
            "python": platform.python_version(),
            "kernel": platform.release(),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }

    def bracket(self, request: dict[str, Any]) -> dict[str, Any]:
        torch, size = self.torch, BRACKET_SIZE
        a, b = (torch.randn((size, size), device="cuda").to(torch.float16) for _ in range(2))
        out = torch.empty_like(a)
        source = torch.randint(0, 255, (COPY_BYTES,), dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        functions: dict[str, Callable[[], Any]] = {
            "matmul": lambda: torch.matmul(a, b.mT, out=out),
            "copy": lambda: target.copy_(source),
        }
        peaks, flops = self._peak_calls(Path(request["directory"]) / PEAK_ARTEFACT)
        functions |= peaks
        times = {name: statistics.median(us) for name, us in interleaved(torch, functions, BRACKET_ROUNDS).items()}
        return {f"{name}_tflops": flops[name] / times[name] * 1e-6 for name in peaks} | {
            "ok": True,
            "cublas_4096_us": times["matmul"],
            "cublas_4096_tflops": 2 * size**3 / times["matmul"] * 1e-6,
            "copy_tb_per_s": 2 * COPY_BYTES / times["copy"] * 1e-6,
            "clocks": self._clocks_under(functions["matmul"]),
        }

    def _peak_calls(self, path: Path) -> tuple[dict[str, Callable[[], Any]], dict[str, int]]:
        """The peak kernels of the artefact at `path`, one block an SM, and their flops; nothing if there is none."""
        torch = self.torch
        if not (path / "launch.json").is_file():
            return {}, {}
        module = self._module(str(path))
        threads = torch.cuda.get_device_properties(self.runtime.device).multi_processor_count * THREADS
        rows = torch.randn((threads, ROW_ELEMENTS), device="cuda").to(torch.float16)
        out = torch.empty((threads,), dtype=torch.int32, device="cuda")
        calls: dict[str, Callable[[], Any]] = {}
        flops: dict[str, int] = {}
        for name in map(entry_name, ACCUMULATORS):
            calls[name] = functools.partial(module.run, name, [rows], out=[out])
            work = module.artefact.entry(name).get("work", {})
            flops[name] = evaluate(work["flops"], {"a": (threads, ROW_ELEMENTS)}, {})
        return calls, flops

    def _module(self, path: str) -> CudaModule:
        if path not in self.modules:
            self.modules[path] = self.runtime.load(Artefact.load(path))
        return self.modules[path]

    def _clocks_under(self, load: Callable[[], Any]) -> str | None:
        """SM clock and power while `load` runs; None where the query tool is missing."""
        try:
            query = subprocess.Popen([*_SMI, "--query-gpu=clocks.sm,power.draw"], **_PIPED)
        except OSError:
            return None
        until = datetime.datetime.now() + datetime.timedelta(seconds=CLOCK_SECONDS)
        while query.poll() is None and datetime.datetime.now() < until:
            for _ in range(20):
                load()
            self.torch.cuda.synchronize()
        query.kill()
        lines = query.communicate()[0].splitlines()
        return lines[0].strip() if lines else None

    def case(self, request: dict[str, Any]) -> dict[str, Any]:
        directory, case = Path(request["directory"]), Case.parse(request["case"])
        against = self._module(str(directory / case.against)) if case.against is not None else None
        found = run_case(self._module(str(directory / case.artefact)), case, directory, request, against)
        self.torch.cuda.empty_cache()
        return found


def _version(package: str) -> str | None:
    """The installed version of a package, None if it is not there."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


_SMI = ["nvidia-smi", "--format=csv,noheader"]
# Standard input is the parent's requests: no other program may read it.
_PIPED: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}


def _smi(field: str) -> str | None:
    try:
        query = subprocess.Popen([*_SMI, f"--query-gpu={field}"], **_PIPED)
        output = query.communicate(timeout=20)[0]
    except (OSError, subprocess.TimeoutExpired):
        return None
    return output.splitlines()[0].strip() if query.returncode == 0 and output else None


def serve(make_worker: Callable[[], Any]) -> int:
    """Answer requests from standard input until it ends. Answers go to what was standard output; anything that a
    library prints goes to standard error instead."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)

        def answer(fields: dict[str, Any]) -> None:
            answers.write(json.dumps(fields) + "\n")
            answers.flush()

        try:
            worker = make_worker()
        except Exception as error:
            answer({"ready": False, "message": f"{type(error).__name__}: {error}"})
            return 1
        answer({"ready": True})
        for line in sys.stdin:
            request: dict[str, Any] = json.loads(line)
            try:
                answer(getattr(worker, request["do"])(request))
            except EmmyError as error:
                # A refused call leaves the device usable, but a failed launch does not: CUDA's error is sticky.
                answer({"ok": False, "message": str(error), "fatal": "CUDA_ERROR" in str(error)})
            except Exception as error:
                traceback.print_exc()
                answer({"ok": False, "message": f"{type(error).__name__}: {error}", "fatal": True})
    return 0


if __name__ == "__main__":
    raise SystemExit(serve(Worker))
