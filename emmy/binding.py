"""A call of an entry: its arrays are checked, the variant of each kernel is chosen, every expression becomes a number.

The CUDA runtime and the emulator both start from `bind`'s `BoundCall`. This module imports neither xDSL nor CUDA.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from emmy.errors import EmmyError
from emmy.launch_specs import (
    DTYPES,
    EMULATED_SMS,
    MAP_STRIDE,
    MAX_GRID,
    MAX_MAP_SIZE,
    MAX_MAP_STRIDE,
    MAX_SIZE,
    SCALAR_RANGES,
    SMS,
    ArgumentSpec,
    BufferSpec,
    CheckSpec,
    EntrySpec,
    LaunchSpec,
    Shape,
    TensorMapSpec,
    WantedSpec,
    evaluate,
    row_major,
)
from emmy.variants import VARIANTS, Lying, fitting

NOTHING: Mapping[str, str] = MappingProxyType({})
"""No kernels that a device cannot hold."""


class NoVariant(EmmyError):
    """No kernel of a launch takes the call's tensors, or one that is still to be compiled is better: `variants`, best first."""

    def __init__(self, message: str, variants: tuple[str, ...]):
        super().__init__(message)
        self.variants = variants


@dataclass(frozen=True)
class ArrayInfo:
    """What is checked about an array that is passed: strides in elements (None: row-major), address if known."""

    dtype: str
    shape: Shape
    strides: Shape | None = None
    address: int | None = None


@dataclass(frozen=True)
class BoundBuffer:
    """A buffer to allocate, row-major."""

    name: str
    dtype: str
    shape: Shape

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class BoundTensorMap:
    """A `TensorMapSpec` with numbers for expressions."""

    of: str
    dtype: str
    sizes: Shape
    strides: Shape
    box: Shape
    swizzle: int

    @property
    def empty(self) -> bool:
        """Whether the tensor has no elements: nothing is moved by it, and the driver would not encode its sizes."""
        return 0 in self.sizes


Param: TypeAlias = tuple[str, str | int | BoundTensorMap]


@dataclass(frozen=True)
class BoundLaunch:
    """A launch with numbers for expressions. `params` holds ("pointer", name), ("u32" | "u64", value) or ("tensor_map",
    `BoundTensorMap`), in order. `passed_over`: the kernels that were preferred, and why each does not take this call, or those
    that take it too, and how much longer they take. `variant`: its name in `emmy.variants`, if it has one. `programmatic`,
    `cluster` (empty without clusters) and `persistent`: as in `LaunchSpec`."""

    image: str
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    params: tuple[Param, ...]
    passed_over: tuple[tuple[str, str], ...] = ()
    variant: str | None = None
    programmatic: bool = False
    cluster: tuple[int, ...] = ()
    persistent: bool = False


@dataclass(frozen=True)
class BoundCall:
    """A checked call. `launches` leaves out those whose grid is empty; `alignments` are bytes, by name of arguments and of
    results that the caller gave: where an address is no multiple, the call is to be bound again, with its addresses."""

    results: tuple[BoundBuffer, ...]
    temporaries: tuple[BoundBuffer, ...]
    launches: tuple[BoundLaunch, ...]
    alignments: dict[str, int]


@dataclass(frozen=True)
class _Tensors:
    """Everything that expressions and conditions are about, by name of the buffer. `labels`: what errors call it; `singles`:
    those whose rows have one element in every call."""

    shapes: dict[str, Shape]
    strides: dict[str, Shape]
    addresses: dict[str, int | None]
    dtypes: dict[str, str]
    labels: dict[str, str]
    singles: set[str]

    def add(self, name: str, array: ArrayInfo, label: str) -> None:
        """A buffer. `EmmyError` for sizes and strides that no kernel takes."""
        if max(array.shape, default=0) > MAX_SIZE:
            raise EmmyError(f"{label} has shape {array.shape}; a dimension has at most {MAX_SIZE} elements")
        if min(array.strides or (), default=0) < 0 and 0 not in array.shape:
            raise EmmyError(f"{label} has strides {array.strides} (in elements); negative ones are not supported")
        self.shapes[name], self.addresses[name] = array.shape, array.address
        self.strides[name] = used_strides(array.shape, array.strides)
        self.dtypes[name], self.labels[name] = array.dtype, label

    def lying(self, name: str) -> Lying:
        """The buffer as `emmy.variants` sees it."""
        itemsize = DTYPES[self.dtypes[name]].itemsize
        return Lying(self.shapes[name], self.strides[name], self.addresses[name], itemsize, name in self.singles)


def used_strides(shape: Shape, strides: Shape | None) -> Shape:
    """Strides (elements) that are those of a row-major tensor wherever they do not matter: along dimensions of 0 or 1
    elements, where frameworks put anything, and everywhere in an empty tensor."""
    dense = row_major(shape)
    if strides is None or 0 in shape:
        return dense
    return tuple(given if size > 1 else own for size, given, own in zip(shape, strides, dense, strict=True))


def bind(
    entry: EntrySpec,
    arrays: Sequence[ArrayInfo],
    sms: int = EMULATED_SMS,
    outs: Sequence[ArrayInfo] | None = None,
    lacking: AbstractSet[str] = frozenset(),
    unheld: Mapping[str, str] = NOTHING,
) -> BoundCall:
    """Check a call of `entry` with `arrays` (one for each argument, in order) and evaluate every expression.

    `sms`: multiprocessors of the device. `outs`: the caller's own results. Addresses that are not known (None) count as
    aligned. `lacking`: variants that the entry has not, but could have. `unheld`: kernels that the device cannot hold, by name,
    and a sentence about why.

    Raises `EmmyError`, one sentence that names the argument, for a wrong number of arguments, dtype, rank, dimension,
    strides or alignment, for a check of the entry that fails, and for a grid beyond the hardware's limits; `NoVariant`
    where a launch has no kernel for what is given, or a worse one than a variant that it lacks.
    """
    specs = entry["arguments"]
    if len(arrays) != len(specs):
        names = ", ".join(spec["name"] for spec in specs)
        raise EmmyError(f"{len(arrays)} arguments given; expected {len(specs)}: {names}")
    everything = (*specs, *entry["results"], *entry.get("temporaries", []))
    singles = {spec["name"] for spec in everything if list(spec["shape"][-1:]) == [1]}
    tensors = _Tensors({SMS: (sms,)}, {}, {}, {}, {}, singles)
    for spec, array in zip(specs, arrays, strict=True):
        _check_kind(spec, array)
        tensors.add(spec["name"], array, f"argument '{spec['name']}'")
    for spec in specs:
        _check_layout(spec, tensors)
    for check in entry.get("checks", []):
        _check_condition(check, tensors.shapes, tensors.strides)

    def buffers(specs: Sequence[BufferSpec]) -> tuple[BoundBuffer, ...]:
        return tuple(
            BoundBuffer(
                spec["name"],
                spec["dtype"],
                tuple(evaluate(dim, tensors.shapes, tensors.strides) for dim in spec["shape"]),
            )
            for spec in specs
        )

    results, temporaries = buffers(entry["results"]), buffers(entry.get("temporaries", []))
    if outs is not None:
        check_outs(results, outs)
    for position, buffer in enumerate((*results, *temporaries)):
        given = outs[position] if outs is not None and position < len(results) else None
        tensors.add(buffer.name, given or ArrayInfo(buffer.dtype, buffer.shape), "out" if given else f"'{buffer.name}'")
    chosen = [_choose(launch, entry, tensors, lacking, unheld) for launch in entry["launches"]]
    launches = [_bind_launch(launch, tensors, passed_over) for launch, passed_over in chosen]
    named: Sequence[BufferSpec | ArgumentSpec] = [*specs, *(entry["results"] if outs is not None else [])]
    return BoundCall(
        results,
        temporaries,
        tuple(launch for launch in launches if 0 not in launch.grid),
        {spec["name"]: _alignment(spec, [launch for launch, _ in chosen], tensors) for spec in named},
    )


def check_alignment(name: str, address: int, align: int) -> None:
    """`EmmyError` unless `address` is a multiple of `align` bytes."""
    if address % align:
        raise EmmyError(f"argument '{name}' is at address {address:#x}; it must be a multiple of {align} bytes")


# ---- the arrays ------------------------------------------------------------------------------------------------------


def _check_kind(spec: ArgumentSpec, array: ArrayInfo) -> None:
    """Dtype and rank, which everything after relies on."""
    name = spec["name"]
    if array.dtype != spec["dtype"]:
        raise EmmyError(f"argument '{name}' has dtype {array.dtype}; expected {spec['dtype']}")
    if len(array.shape) != len(spec["shape"]):
        raise EmmyError(f"argument '{name}' has {len(array.shape)} dimensions; expected {len(spec['shape'])}")


def _check_layout(spec: ArgumentSpec, tensors: _Tensors) -> None:
    name = spec["name"]
    expected = tuple(evaluate(dim, tensors.shapes, tensors.strides) for dim in spec["shape"])
    if tensors.shapes[name] != expected:
        raise EmmyError(f"argument '{name}' has shape {tensors.shapes[name]}; expected {expected}")
    wanted: WantedSpec = {"align": spec.get("align", 1)}
    if "strides" in spec:
        wanted["strides"] = spec["strides"]
    problem = _unmet(name, wanted, tensors)
    if problem is not None:
        raise EmmyError(problem)


def _check_condition(check: CheckSpec, shapes: Mapping[str, Shape], strides: Mapping[str, Shape]) -> None:
    value = evaluate(check["value"], shapes, strides)
    if "multiple_of" in check and value % evaluate(check["multiple_of"], shapes, strides):
        raise EmmyError(f"{check['message']} (it is {value})")
    if "equals" in check and value != evaluate(check["equals"], shapes, strides):
        raise EmmyError(f"{check['message']} (it is {value})")


def check_outs(results: Sequence[BoundBuffer], outs: Sequence[ArrayInfo]) -> None:
    """`EmmyError` unless `outs` are as many arrays as there are results, of their dtypes and shapes."""
    if len(outs) != len(results):
        raise EmmyError(f"out holds {len(outs)} arrays; expected {len(results)}")
    for out, wanted in zip(outs, results, strict=True):
        if out.dtype != wanted.dtype or out.shape != wanted.shape:
            raise EmmyError(f"out is {out.dtype} of shape {out.shape}; expected {wanted.dtype} of shape {wanted.shape}")
        written = used_strides(out.shape, out.strides)
        if 0 not in out.shape and any(stride == 0 for stride, size in zip(written, out.shape, strict=True) if size > 1):
            raise EmmyError(f"out has strides {out.strides} (in elements): several elements of it share one place")


# ---- variants --------------------------------------------------------------------------------------------------------

PassedOver: TypeAlias = tuple[tuple[str, str], ...]


def _choose(
    launch: LaunchSpec,
    entry: EntrySpec,
    tensors: _Tensors,
    lacking: AbstractSet[str],
    unheld: Mapping[str, str],
) -> tuple[LaunchSpec, PassedOver]:
    """The first kernel of a launch that takes the tensors, those with a time in the order of it; and those passed over. Raises
    `NoVariant` if there is none, or one that is `lacking` comes before it."""
    passed_over: list[tuple[str, str]] = []
    chosen: LaunchSpec | None = None
    for candidate in _in_order(launch, tensors):
        problem = unheld.get(candidate["kernel"]) or _refusal(candidate, entry, tensors)
        if problem is None:
            chosen = candidate
            break
        passed_over.append((candidate["kernel"], problem))
    if chosen is launch:
        return launch, _slower(launch, launch, tensors)
    better: tuple[str, ...] = ()
    if "variant" in launch and lacking:
        fits = [name for name in fitting([tensors.lying(name) for name in buffers_of(launch)]) if name in lacking]
        last = VARIANTS[chosen["variant"]] if chosen is not None and "variant" in chosen else None
        order = list(VARIANTS.values())
        better = tuple(name for name in fits if last is None or order.index(VARIANTS[name]) < order.index(last))
    if chosen is not None and not better:
        return chosen, tuple(passed_over) or _slower(launch, chosen, tensors)
    reasons = "; ".join(f"'{kernel}': {reason}" for kernel, reason in passed_over)
    alike = len({reason for _, reason in passed_over}) == 1
    raise NoVariant(passed_over[0][1] if alike else f"no kernel takes this call: {reasons}", better)


def _time(launch: LaunchSpec, tensors: _Tensors) -> int:
    return evaluate(launch["time"], tensors.shapes, tensors.strides) if "time" in launch else 0


def _in_order(launch: LaunchSpec, tensors: _Tensors) -> list[LaunchSpec]:
    """The kernels of a launch as they are tried: those with a time first, the least first."""
    candidates = [launch, *launch.get("otherwise", [])]
    return sorted(candidates, key=lambda one: (0, _time(one, tensors)) if "time" in one else (1, 0))


def _slower(launch: LaunchSpec, chosen: LaunchSpec, tensors: _Tensors) -> PassedOver:
    """The kernels that have a time as the chosen one has, and how it compares."""
    least, slower = _time(chosen, tensors), list[tuple[str, str]]()
    for other in (launch, *launch.get("otherwise", [])) if "time" in chosen else ():
        if "time" in other and other is not chosen:
            more = _time(other, tensors) / least if least else 1.0
            slower.append((other["kernel"], f"takes {more:.2f} times as long" if more > 1 else "is no faster"))
    return tuple(slower)


def buffers_of(launch: LaunchSpec) -> list[str]:
    """The names of the buffers that a launch passes to its kernel."""
    names: dict[str, None] = {}
    for param in launch["params"]:
        ((kind, value),) = param.items()
        if kind in ("pointer", "tensor_map"):
            names[str(value["of"] if kind == "tensor_map" else value)] = None
    return list(names)


def _refusal(launch: LaunchSpec, entry: EntrySpec, tensors: _Tensors) -> str | None:
    """Why a launch's kernel does not take the tensors; None if it does."""
    wants = launch.get("wants", {})
    given = {spec["name"] for spec in entry["arguments"]}
    for name in buffers_of(launch):
        wanted: WantedSpec = wants.get(name, {})
        if name in wants or name not in given:  # what is wanted of other arguments stands in their own description
            problem = _unmet(name, wanted, tensors)
            if problem is not None:
                return problem
    for param in launch["params"]:
        if "tensor_map" in param:
            problem = _map_problem(_bind_tensor_map(param["tensor_map"], tensors))
            if problem is not None:
                return problem
    return None


def _unmet(name: str, wanted: WantedSpec, tensors: _Tensors) -> str | None:
    """What is wrong with a buffer for a kernel that wants something of it, as a sentence; None if nothing is."""
    shape, strides, address, label = (
        tensors.shapes[name],
        tensors.strides[name],
        tensors.addresses[name],
        tensors.labels[name],
    )
    if 0 in shape:
        return None
    if wanted.get("transposed", False):
        shape, strides, label = (
            (*shape[:-2], *shape[:-3:-1]),
            (*strides[:-2], *strides[:-3:-1]),
            f"{label}, transposed,",
        )
    declared = wanted.get("strides")
    expected = row_major(shape)
    if declared is not None:
        expected = tuple(
            own if stride is None else evaluate(stride, tensors.shapes, tensors.strides)
            for stride, own in zip(declared, strides, strict=True)
        )
    if any(own != want for own, want, size in zip(strides, expected, shape, strict=True) if size > 1):
        shown = tuple(
            "any" if stride is None else want for stride, want in zip(declared or shape, expected, strict=True)
        )
        return f"{label} has strides {strides} (in elements); expected ({', '.join(map(str, shown))})"
    align, rows, itemsize = wanted.get("align", 1), wanted.get("rows", 1), DTYPES[tensors.dtypes[name]].itemsize
    if address is not None and address % align:
        return f"{label} is at address {address:#x}; it must be a multiple of {align} bytes"
    elements = max(rows // itemsize, 1)
    if shape[-1] % elements:
        where = f"dimension {len(shape) - 1 - wanted.get('transposed', False)} of '{name}'"
        return f"{where} must be a multiple of {elements} (it is {shape[-1]})"
    if any(stride % elements for stride in strides[:-1]):
        return f"{label} has strides {strides} (in elements); all but the last must be multiples of {elements}"
    return None


def _alignment(spec: BufferSpec | ArgumentSpec, launches: Sequence[LaunchSpec], tensors: _Tensors) -> int:
    """Bytes that the address of a buffer must be a multiple of, in a call that takes these launches."""
    name = spec["name"]
    if 0 in tensors.shapes[name]:
        return 1
    own = spec.get("align", DTYPES[spec["dtype"]].itemsize)
    mapped = [
        MAP_STRIDE
        for launch in launches
        for param in launch["params"]
        if "tensor_map" in param and param["tensor_map"]["of"] == name
    ]
    wanted = [launch.get("wants", {}).get(name, {}).get("align", 1) for launch in launches]
    return max([own, *wanted, *mapped])


# ---- launches --------------------------------------------------------------------------------------------------------


def _bind_launch(launch: LaunchSpec, tensors: _Tensors, passed_over: PassedOver) -> BoundLaunch:
    kernel, shapes, strides = launch["kernel"], tensors.shapes, tensors.strides
    grid = tuple(evaluate(size, shapes, strides) for size in launch["grid"])
    if any(size > limit or size < 0 for size, limit in zip(grid, MAX_GRID, strict=True)):
        raise EmmyError(f"kernel '{kernel}' needs a grid of {grid} blocks; at most {MAX_GRID} can be launched")
    params: list[Param] = []
    for param in launch["params"]:
        ((kind, value),) = param.items()
        if kind == "pointer":
            params.append((kind, str(value)))
            continue
        if kind == "tensor_map":
            params.append((kind, _bind_tensor_map(value, tensors)))
            continue
        number = evaluate(value, shapes, strides)
        low, high = SCALAR_RANGES[kind]
        if not low <= number <= high:
            raise EmmyError(f"kernel '{kernel}' takes a {kind} parameter, which cannot hold {number}")
        params.append((kind, number))
    x, y, z = grid
    block_x, block_y, block_z = launch["block"]
    return BoundLaunch(
        launch["image"],
        kernel,
        (x, y, z),
        (block_x, block_y, block_z),
        launch["shared_bytes"],
        tuple(params),
        passed_over,
        launch.get("variant"),
        launch.get("programmatic", False),
        tuple(launch.get("cluster", ())),
        launch.get("persistent", False),
    )


def _bind_tensor_map(spec: TensorMapSpec, tensors: _Tensors) -> BoundTensorMap:
    sizes, steps = (
        tuple(evaluate(e, tensors.shapes, tensors.strides) for e in spec[name]) for name in ("sizes", "strides")
    )
    return BoundTensorMap(spec["of"], spec["dtype"], sizes, steps, tuple(spec["box"]), spec["swizzle"])


def _map_problem(bound: BoundTensorMap) -> str | None:
    """Why TMA cannot move a tensor (CUDA driver API, `cuTensorMapEncodeTiled`), or None.

    A stride of 0, which repeats a dimension, is none that the driver is documented to take.
    """
    if bound.empty:
        return None
    if max(bound.sizes) > MAX_MAP_SIZE or max(bound.strides, default=0) >= MAX_MAP_STRIDE:
        return f"'{bound.of}' is too large for TMA: sizes {bound.sizes}, strides of {bound.strides} bytes"
    for axis, (size, step) in enumerate(zip(bound.sizes, bound.strides, strict=False)):
        if step % MAP_STRIDE:
            return (
                f"dimension {axis} of '{bound.of}' has a stride of {step} bytes; TMA needs a multiple of {MAP_STRIDE}"
            )
        if size > 1 and step == 0:
            return f"dimension {axis} of '{bound.of}' has a stride of 0 bytes, which TMA does not take"
    return None
