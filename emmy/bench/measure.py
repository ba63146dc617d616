"""Check and time one case on a CUDA device, with PyTorch for data, references and peers.

What is checked: nothing is written outside the result (guard bytes around every buffer), every element of the result is
written (it starts as NaN), the error against a float32 or float64 product of the same rounded operands, equality bit
for bit for integer data and between repeated launches.

What is timed: our call and its peers (`torch.matmul`, those of `emmy.bench.peers`, the artefact of ours that a case is compared
with), alternating in one process, each launch between two events with the L2 flushed before it; the figure is the median over
the rounds.
"""

from __future__ import annotations

import functools
import importlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from emmy.artefact import DTYPES, bind
from emmy.bench import attention, attention_check, fused
from emmy.bench.attention_inputs import make_inputs
from emmy.bench.bounds import HALF_ULP, ErrorSums, judge
from emmy.bench.cases import Case, infos_of, integer_data, shapes_of, work_of
from emmy.bench.errors import seed_statistics, summarize
from emmy.bench.fp8 import SCALED
from emmy.bench.layouts import Layout, dense, layout_of
from emmy.bench.peers import DEFAULT_PEERS, Peer, make_peer, matmul_operands
from emmy.device_arrays import TORCH_DTYPES
from emmy.runtime import CudaModule

GUARD_BYTES = 1 << 16  # on either side of a buffer; a multiple of the alignment that PyTorch's allocator gives
POISON = 0xFF  # as every byte: NaN in f16, bf16, f32
FLUSH_BYTES = 256 << 20
BLOCK_ELEMENTS = 1 << 27  # of a reference held at a time
FLOAT64_FLOPS = 2e10  # products up to this size get a float64 reference
REPEAT_SHARE = 0.35  # of a case's time limit that repeated launches may take
STRESS_SHARE = 0.75  # the same, if nothing is timed
WARM_UP_CALLS = 3
HOST_CALLS = 50

Block: TypeAlias = tuple[tuple[Any, ...], Any]  # where in the result, and the reference's values there


class Guarded:
    """A tensor with guard bytes before and after it, all poisoned at first, as are the gaps between its elements.

    `stored` is the tensor without repetition (where strides are 0), which can be written; `nbytes` are those of its elements.
    """

    def __init__(self, torch: Any, shape: Sequence[int], dtype: str, device: str, layout: Layout | None = None):
        self.layout, itemsize = layout or dense(shape), DTYPES[dtype].itemsize
        self.stored_shape = self.layout.stored_shape(shape)
        self.nbytes = math.prod(self.stored_shape) * itemsize
        self.first = GUARD_BYTES // itemsize + self.layout.offset
        bytes_ = 2 * GUARD_BYTES + (self.layout.offset + self.layout.span(shape)) * itemsize
        self.memory = torch.full((bytes_,), POISON, dtype=torch.uint8, device=device)
        self.bits = {1: torch.int8, 2: torch.int16, 4: torch.int32}[itemsize]
        flat = self.memory.view(getattr(torch, TORCH_DTYPES[dtype]))
        self.tensor = flat.as_strided(tuple(shape), self.layout.strides, self.first)
        self.stored = flat.as_strided(self.stored_shape, self.layout.strides, self.first)

    def poison(self) -> None:
        self.memory.fill_(POISON)

    def intact(self) -> bool:
        """Whether no byte around or between the elements was changed."""
        others = self.memory.clone()
        others.view(self.bits).as_strided(self.stored_shape, self.layout.strides, self.first).fill_(-1)
        return bool((others == POISON).all())


class Measurement:
    """One case, ready to run: inputs on the device, guarded results, the module that computes it."""

    def __init__(
        self, module: CudaModule, case: Case, directory: Path, device: str = "cuda", against: CudaModule | None = None
    ):
        self.torch: Any = importlib.import_module("torch")
        self.against = against
        self.module, self.case, self.directory, self.device = module, case, directory, device
        self.entry = module.artefact.entry(case.entry)
        self.work = work_of(case, self.entry)
        call = bind(self.entry, infos_of(case, self.entry))
        self.outputs = [Guarded(self.torch, b.shape, b.dtype, device) for b in call.results]
        self.result_dtype = call.results[0].dtype
        self.inputs = [
            self._input(position, argument["dtype"], shape, layout_of(case.layouts, argument["name"], shape))
            for position, (argument, shape) in enumerate(
                zip(self.entry["arguments"], shapes_of(case, self.entry), strict=True)
            )
        ]
        if self.work.get("inputs"):
            for guarded, data in zip(self.inputs, make_inputs(self.work, case.shapes, case.seed), strict=True):
                guarded.stored.copy_(self.torch.from_numpy(data))
        for argument, guarded in zip(self.entry["arguments"], self.inputs, strict=True):
            if argument["name"] in self.work.get("values", ()):
                guarded.stored.fill_(self.work["values"][argument["name"]])
        self.args = [guarded.tensor for guarded in self.inputs]
        self.outs = [guarded.tensor for guarded in self.outputs]

    def _input(self, position: int, dtype: str, shape: Sequence[int], layout: Layout) -> Guarded:
        torch = self.torch
        guarded = Guarded(torch, shape, dtype, self.device, layout)
        if self.case.data == "integers":
            data = integer_data(guarded.stored_shape, self.case.seed, position, self.case.magnitude)
            guarded.stored.copy_(torch.from_numpy(data).float())  # there is no copy from int8 to 8-bit floats
        else:
            generator = torch.Generator(device=self.device).manual_seed(self.case.seed * 1000 + position)
            guarded.stored.copy_(torch.randn(guarded.stored_shape, generator=generator, device=self.device))
        return guarded

    def launch(self) -> None:
        self.module.run(self.case.entry, self.args, out=self.outs)

    def synchronize(self) -> None:
        self.torch.cuda.synchronize()

    def check(self) -> dict[str, Any]:
        """Run once and compare. `ok`, the errors, and a `message` if something is wrong."""
        self.launch()
        self.synchronize()
        guards = [guarded.intact() for guarded in (*self.inputs, *self.outputs)]
        if not all(guards):
            names = [argument["name"] for argument in self.entry["arguments"]]
            names += [result["name"] for result in self.entry["results"]]
            broken = [name for name, whole in zip(names, guards, strict=True) if not whole]
            return {"ok": False, "message": f"bytes outside {', '.join(broken)} were overwritten"}
        found: dict[str, Any] = {"ok": True}
        if not self.outs[0].numel():
            return found
        if self.case.expect is not None:
            found |= self._compare_expected()
        if self.work.get("kind") == attention.KIND:
            found = {**attention_check.compare(self.torch, self.args, self.work, self.outs[0]), **found}
        elif self.work.get("kind") in fused.FUSED:
            found = {**fused.compare(self.torch, self.args, self.work, self.outs[0]), **found}
        elif self.work.get("kind") in REFERENCES:
            compared = self._compare_integers() if self.case.data == "integers" else self._compare_reference()
            found = {**compared, **found, "ok": found["ok"] and compared["ok"]}
        elif self.case.expect is None:
            return {"ok": False, "message": f"no reference for work of kind '{self.work.get('kind')}'"}
        return found

    def _compare_expected(self) -> dict[str, Any]:
        torch = self.torch
        wanted = np.load(self.directory / str(self.case.expect))
        names = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
        signed = np.ascontiguousarray(wanted).view({1: np.uint8, 2: np.int16, 4: np.int32}[wanted.dtype.itemsize])
        got = self.outs[0].view(names[self.outs[0].element_size()])
        if tuple(wanted.shape) != tuple(got.shape) or wanted.dtype.itemsize != got.element_size():
            return {"ok": False, "message": f"the expected result has shape {wanted.shape}"}
        different = int((got != torch.from_numpy(signed).to(self.device)).sum())
        found: dict[str, Any] = {"ok": different == 0, "differ_from_expected": different}
        return found | ({"message": f"{different} elements differ from the expected bits"} if different else {})

    def _compare_integers(self) -> dict[str, Any]:
        """Every partial sum is an integer that the reference represents, so that results are equal or wrong."""
        exact_in_f32 = self.work.get("k", 1) * self.case.magnitude**2 < 2**24
        torch = self.torch
        dtype = torch.float32 if exact_in_f32 else torch.float64
        out, wrong, not_finite, worst = self.outs[0], 0, 0, 0.0
        for where, reference in self._reference_blocks(dtype):
            got, wanted = out[where], reference.to(out.dtype)
            wrong += int((got != wanted).sum())  # NaN differs from everything
            not_finite += int((~torch.isfinite(got)).sum())
            worst = max(worst, float((got.to(dtype) - reference).abs().nan_to_num(0.0, 0.0, 0.0).max()))
        error = {"ok": wrong == 0, "wrong_elements": wrong, "not_finite": not_finite, "largest_difference": worst}
        found: dict[str, Any] = {"ok": wrong == 0, "error": error}
        return found | ({"message": f"{wrong} of {out.numel()} integer elements are wrong"} if wrong else {})

    def _compare_reference(self) -> dict[str, Any]:
        torch, out = self.torch, self.outs[0]
        dtype = torch.float64 if self.work.get("flops", 0) <= FLOAT64_FLOPS else torch.float32
        sums = [0.0, 0.0, 0.0]
        largest, excess, not_finite, elements = 0.0, -math.inf, 0, 0
        half_ulp = HALF_ULP[self.result_dtype]
        for where, reference in self._reference_blocks(dtype):
            got = out[where]
            not_finite += int((~torch.isfinite(got)).sum())
            error = (got.to(dtype) - reference).nan_to_num(0.0, 0.0, 0.0).abs_()
            rounding = reference.to(out.dtype).to(dtype) - reference
            for index, values in enumerate((error, reference, rounding)):
                sums[index] += float(torch.linalg.vector_norm(values, dtype=torch.float64)) ** 2
            largest = max(largest, float(error.max()))
            excess = max(excess, float((error - reference.abs() * half_ulp).max()))
            elements += reference.numel()
        judged = judge(
            ErrorSums(elements, not_finite, sums[0], sums[1], sums[2], largest, excess),
            self.case.policy,
            int(self.work.get("k", 1)),
            self.result_dtype,
            self.case.max_k,
            self.work.get("eight_bits", False),
            self.case.partial,
        )
        found = {"ok": judged["ok"], "error": judged, "reference": str(dtype).removeprefix("torch.")}
        if judged["ok"]:
            return found
        if not_finite:
            return found | {"message": f"{not_finite} of {elements} elements are NaN or infinite"}
        return found | {
            "message": f"rms error {judged['rms_error']:.2e} (bound {judged['rms_bound']:.2e}), "
            f"excess {judged['max_excess']:.2e} (bound {judged['max_excess_bound']:.2e})"
        }

    def _reference_blocks(self, dtype: Any) -> Iterator[Block]:
        yield from REFERENCES[self.work["kind"]](self.args, self.work, dtype)

    def repeat(self, repeats: int, seconds: float) -> dict[str, Any]:
        """Launch again and again, poisoning in between, and count launches whose bits differ from the first's. Fewer
        than `repeats` if they would take longer than `seconds`."""
        torch = self.torch
        first = [guarded.memory.clone() for guarded in self.outputs]
        count, done, began = 0, 0, time.perf_counter()
        while done < repeats and time.perf_counter() - began < seconds:
            for guarded in self.outputs:
                guarded.poison()
            self.launch()
            # Guards are compared too; `equal` waits for the device.
            count += not all([torch.equal(g.memory, kept) for g, kept in zip(self.outputs, first, strict=True)])
            done += 1
        found: dict[str, Any] = {"ok": count == 0, "repeats": done, "differing_launches": count}
        return found | ({"message": f"{count} of {done} repeated launches differ from the first"} if count else {})

    def study(self, seeds: int) -> dict[str, Any]:
        """Errors against float64 over `seeds` draws of normal operands: of the result as it is, and rounded to f16."""
        torch = self.torch
        rows: dict[str, list[dict[str, float]]] = {"f32": [], "f16": []}
        for seed in range(seeds):
            for position, guarded in enumerate(self.inputs):
                generator = torch.Generator(device=self.device).manual_seed(1_000_000 + seed * 1000 + position)
                guarded.tensor.copy_(torch.randn(guarded.tensor.shape, generator=generator, device=self.device))
            self.launch()
            self.synchronize()
            a, b = matmul_operands(self.args, self.work)
            reference, result = a.double() @ b.double(), self.outs[0]
            rows["f32"].append(seed_statistics(torch, result.double(), reference))
            rows["f16"].append(seed_statistics(torch, result.half().double(), reference))
        return {"study": {dtype: summarize(found) for dtype, found in rows.items()}}

    def time(self, rounds: int, peers: Sequence[str] = DEFAULT_PEERS, clean: bool = False) -> dict[str, Any]:
        """Median times of our call and of the peers, interleaved, and ratios (a peer's time over ours: higher is better).
        `clean`: as of `interleaved`.

        `peers` of the result holds each one's figures, or the `message` of one that failed; those of the first one that
        ran stand beside ours too, as `peer_us` and so on, and its `ratio`.
        """
        made, failed = self._peers(peers)
        times = interleaved(self.torch, {"ours": self.launch, **made}, rounds, clean)
        figures = {name: self._figures(spent) for name, spent in times.items()}
        ours = figures.pop("ours")
        for name in made:
            figures[name]["ratio"] = figures[name]["us"] / ours["us"]
        found: dict[str, Any] = {
            "host_us": self._host_microseconds(),
            **ours,
            "rounds": rounds,
            "bytes": self._traffic(),
        }
        if clean:
            found["clean"] = True
        if made:
            first = dict(figures[next(iter(made))])
            found["ratio"] = first.pop("ratio")
            found |= {f"peer_{key}": value for key, value in first.items()}
        return found | {"peers": figures | failed}

    def _figures(self, times: Sequence[float]) -> dict[str, Any]:
        """Median and spread of microseconds, and the rate."""
        ordered = sorted(times)
        found = {
            "us": statistics.median(ordered),
            "us_p20": ordered[len(ordered) // 5],
            "us_p80": ordered[len(ordered) * 4 // 5],
        }
        if self.work.get("flops"):
            found["tflops"] = self.work["flops"] / found["us"] * 1e-6
        return found

    def _peers(self, names: Sequence[str]) -> tuple[dict[str, Peer], dict[str, dict[str, str]]]:
        """The calls of the peers that can do this work, and why others failed."""
        made: dict[str, Peer] = {}
        failed: dict[str, dict[str, str]] = {}
        for name in names:
            try:
                peer = make_peer(name, self.torch, self.args, self.work)
            except Exception as error:  # a peer's fault is not ours: it is told, and we are measured without it
                said = " ".join(str(error).split())
                failed[name] = {"message": f"{type(error).__name__}: {said}"[:200]}
                continue
            if peer is not None:
                made[name] = peer
        if self.against is not None:
            name, args, outs = self._static()
            made[name] = functools.partial(self.against.run, self.case.entry, args, out=outs)
        return made, failed

    def _static(self) -> tuple[str, list[Any], list[Any]]:
        """What the artefact to compare with is called as a peer, its arguments and results: ours, in its own types. It is
        `static`, or the name of its operands' type if that is another one."""
        assert self.against is not None
        entry = self.against.artefact.entry(self.case.entry)

        def typed(specs: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
            names = [TORCH_DTYPES[spec["dtype"]] for spec in specs]
            return [t.to(getattr(self.torch, name)) for name, t in zip(names, tensors, strict=True)]

        outs = typed(entry["results"], [self.torch.empty_like(out) for out in self.outs])
        dtypes = [e["arguments"][0]["dtype"] for e in (entry, self.entry)]
        return "static" if dtypes[0] == dtypes[1] else dtypes[0], typed(entry["arguments"], self.args), outs

    def _traffic(self) -> int:
        """Bytes of all arguments and results: what must cross the memory bus at least once."""
        return sum(guarded.nbytes for guarded in (*self.inputs, *self.outputs))

    def _host_microseconds(self) -> float:
        """Host time of one warm call. Few enough calls that the launch queue does not fill up."""
        self.synchronize()
        began = time.perf_counter()
        for _ in range(HOST_CALLS):
            self.launch()
        spent = time.perf_counter() - began
        self.synchronize()
        return spent / HOST_CALLS * 1e6


def matmul_reference(args: Sequence[Any], work: dict[str, Any], dtype: Any) -> Iterator[Block]:
    """The product in `dtype`, some rows at a time so that it fits beside the operands."""
    a, b = matmul_operands(args, work)
    b = b.to(dtype)
    rows = a.shape[-2]
    row_elements = max(b.shape[-1] * math.prod(a.shape[:-2]) * math.prod(b.shape[:-2]), 1)
    step = max(BLOCK_ELEMENTS // row_elements, 1)
    for start in range(0, rows, step):
        block = slice(start, min(start + step, rows))
        yield (..., block, slice(None)), a[..., block, :].to(dtype) @ b


def scaled_reference(args: Sequence[Any], work: dict[str, Any], dtype: Any) -> Iterator[Block]:
    """The product, its rows scaled by the third argument and its columns by the fourth."""
    rows, columns = (scale.to(dtype) for scale in args[2:4])
    for where, product in matmul_reference(args, work, dtype):
        yield where, product * rows[where[1]] * columns


def add_reference(args: Sequence[Any], work: dict[str, Any], dtype: Any) -> Iterator[Block]:
    """The sum of the first two arguments."""
    yield (...,), args[0].to(dtype) + args[1].to(dtype)


REFERENCES: dict[str, Callable[[Sequence[Any], dict[str, Any], Any], Iterator[Block]]] = {
    "matmul": matmul_reference,
    SCALED: scaled_reference,
    "add": add_reference,
}


def interleaved(
    torch: Any, functions: dict[str, Callable[[], Any]], rounds: int, clean: bool = False
) -> dict[str, list[float]]:
    """Microseconds of each function in each round; every call has a cold L2, and the order alternates.

    The flush leaves L2 full of what it wrote, which goes to memory while the call reads: as many bytes as L2 has. `clean`: it
    is written back before, by reading other memory.
    """
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    other = torch.zeros(FLUSH_BYTES // 4 if clean else 0, dtype=torch.float32, device="cuda")
    for function in functions.values():
        for _ in range(WARM_UP_CALLS):
            function()
    names = list(functions)
    marks: dict[str, list[tuple[Any, Any]]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            # The host queues the launch while the flush still runs, so that no host time is measured.
            flush.zero_()
            if clean:
                other.sum()
            start.record()
            functions[name]()
            end.record()
            marks[name].append((start, end))
    torch.cuda.synchronize()
    return {name: [start.elapsed_time(end) * 1e3 for start, end in pairs] for name, pairs in marks.items()}


def run_case(
    module: CudaModule, case: Case, directory: Path, how: Mapping[str, Any], against: CudaModule | None = None
) -> dict[str, Any]:
    """Everything about one case, as the fields of its JSON line. `how`: the request's `repeats`, `rounds`, `seconds`,
    `check_only`, `clean` and `peers`. `against`: the module of the case's field of that name."""
    measurement = Measurement(module, case, directory, against=against)
    found = measurement.check()
    if found["ok"] and how["repeats"]:
        share = STRESS_SHARE if how["check_only"] else REPEAT_SHARE
        found |= measurement.repeat(how["repeats"], how["seconds"] * share)
    if found["ok"] and case.seeds:
        found |= measurement.study(case.seeds)
    if found["ok"] and case.time and not how["check_only"]:
        found |= measurement.time(how["rounds"], how["peers"], how["clean"])
    return found | {"resources": module.artefact.resources, "work": measurement.work}
