"""An *artefact*: a folder with compiled kernels and the JSON that says how to call them, loadable without the compiler.

`launch.json` lists entries (what a user calls) with their arguments, results, checks and launches; beside it stand
the images, `NAME.ptx` and `NAME.cubin`. Sizes that are known only at the call are *expressions* over the arguments'
shapes:

    E = int | ["dim", argument, axis] | ["stride", argument, axis]        (elements)
      | ["add" | "mul" | "sub" | "min" | "max", E, E, ...] | ["ceildiv" | "floordiv", E, E]
      | ["sms"]                                                           (multiprocessors of the device)

A launch parameter is a buffer's address, a number, or a tensor map: what TMA needs of a buffer.

`bind` checks a call against an entry and turns every expression into a number; the CUDA runtime and the emulator both
start from its `BoundCall`. This module imports neither xDSL nor CUDA.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypeAlias, TypedDict, cast

import ml_dtypes
import numpy as np
import numpy.typing as npt

from emmy import __version__
from emmy.errors import EmmyError

if TYPE_CHECKING:
    from emmy.emulator import Report

FORMAT = 1

Expression: TypeAlias = int | Sequence[Any]
Array: TypeAlias = npt.NDArray[Any]
Shape: TypeAlias = tuple[int, ...]

# The element types of buffers, by their name in the IR.
DTYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "i32": np.dtype(np.int32),
    "i8": np.dtype(np.int8),
}
DTYPE_NAMES: dict[np.dtype[Any], str] = {dtype: name for name, dtype in DTYPES.items()}

MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_MAP_SIZE, MAX_MAP_STRIDE, MAP_STRIDE = 2**32, 2**40, 16
# A launch parameter is a pointer, or a number of one of these types with its range.
SCALAR_RANGES: dict[str, tuple[int, int]] = {"u32": (0, 2**32 - 1), "u64": (0, 2**64 - 1)}


class ArgumentSpec(TypedDict):
    """An input. Without `strides` it is row-major; `align` is the bytes that its address must be a multiple of."""

    name: str
    dtype: str
    shape: list[Any]
    strides: NotRequired[list[Any]]
    align: NotRequired[int]


class BufferSpec(TypedDict):
    """A result or a temporary: row-major, allocated by whoever runs the entry, contents undefined before."""

    name: str
    dtype: str
    shape: list[Any]
    align: NotRequired[int]


class CheckSpec(TypedDict):
    """A condition on a call: `value` is a multiple of, or equal to, an expression; `message` is the error's text."""

    value: Expression
    multiple_of: NotRequired[Expression]
    equals: NotRequired[Expression]
    message: str


class TensorMapSpec(TypedDict):
    """What TMA needs of a tensor, outermost dimension first: sizes in elements, strides in bytes (of all dimensions but the
    innermost), the elements of a box, and the bytes that the swizzle of shared memory spans (0, 32, 64 or 128)."""

    of: str
    dtype: str
    sizes: list[Any]
    strides: list[Any]
    box: list[int]
    swizzle: int


class LaunchSpec(TypedDict):
    """One kernel launch: an image, the kernel in it, grid and block in x, y, z, and parameters in order.

    A parameter is {"pointer": buffer}, {"u32" | "u64": E} or {"tensor_map": TensorMapSpec}.
    """

    image: str
    kernel: str
    grid: list[Any]
    block: list[int]
    shared_bytes: int
    params: list[dict[str, Any]]


class EntrySpec(TypedDict):
    """What a user calls. `work` says what it computes (for references and rates) and is not used to run it."""

    arguments: list[ArgumentSpec]
    results: list[BufferSpec]
    temporaries: NotRequired[list[BufferSpec]]
    checks: NotRequired[list[CheckSpec]]
    launches: list[LaunchSpec]
    work: NotRequired[dict[str, Any]]


@dataclass(frozen=True)
class Image:
    """One module of kernels. The PTX serves the emulator and the driver's own compiler; the cubin loads as it is."""

    ptx: str | None = None
    cubin: bytes | None = None


@dataclass(frozen=True)
class Artefact:
    """Compiled kernels for one target. `resources` maps kernel names to what the assembler reported.

    `kernels` says, by kernel name, what a report shows beside that: its `image`, the assembler's `opt_level`, the fields
    of its `schedule`, the `reason` for that schedule, a `remark` where a policy could not be followed.
    Nothing in it is needed to run the kernels.
    """

    target: str
    images: dict[str, Image]
    entries: dict[str, EntrySpec]
    resources: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    kernels: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    def entry(self, name: str) -> EntrySpec:
        """The entry called `name`; `EmmyError` with the names there are, if there is none."""
        if name not in self.entries:
            raise EmmyError(f"the artefact has no entry '{name}'; it has {', '.join(self.entries) or 'none'}")
        return self.entries[name]

    def save(self, path: str | Path) -> None:
        """Write the folder `path`, replacing an artefact that is there. A reader never sees half of it."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
        try:
            names: dict[str, dict[str, str]] = {}
            for name, image in self.images.items():
                names[name] = {}
                if image.ptx is not None:
                    names[name]["ptx"] = f"{name}.ptx"
                    (staging / f"{name}.ptx").write_text(image.ptx)
                if image.cubin is not None:
                    names[name]["cubin"] = f"{name}.cubin"
                    (staging / f"{name}.cubin").write_bytes(image.cubin)
            metadata = {
                "format": FORMAT,
                "emmy": __version__,
                "target": self.target,
                "images": names,
                "entries": self.entries,
                "resources": self.resources,
                "kernels": self.kernels,
            }
            (staging / "launch.json").write_text(json.dumps(metadata, indent=1) + "\n")
            staging.chmod(0o755)
            _replace_folder(staging, path)
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    @staticmethod
    def load(path: str | Path) -> Artefact:
        """Read the folder `path`. `EmmyError` if it is no artefact, or of another format."""
        path = Path(path)
        try:
            metadata = cast("dict[str, Any]", json.loads((path / "launch.json").read_text()))
        except (OSError, ValueError) as error:
            raise EmmyError(f"'{path}' is no artefact: launch.json cannot be read ({error})") from error
        found = metadata.get("format") if isinstance(metadata, dict) else None  # pyright: ignore[reportUnnecessaryIsInstance]
        if found != FORMAT:
            raise EmmyError(f"the artefact '{path}' has format {found}; this Emmy reads format {FORMAT}")
        lacking = [name for name in ("target", "images", "entries") if name not in metadata]
        if lacking:
            raise EmmyError(f"'{path}' is no artefact: launch.json has no {lacking[0]}")
        images: dict[str, Image] = {}
        for name, files in cast("dict[str, dict[str, str]]", metadata["images"]).items():
            missing = [file for file in files.values() if not (path / file).is_file()]
            if missing:
                raise EmmyError(f"the artefact '{path}' lacks its file {missing[0]}")
            images[name] = Image(
                ptx=(path / files["ptx"]).read_text() if "ptx" in files else None,
                cubin=(path / files["cubin"]).read_bytes() if "cubin" in files else None,
            )
        return Artefact(
            metadata["target"], images, metadata["entries"], metadata.get("resources", {}), metadata.get("kernels", {})
        )


def _replace_folder(staging: Path, path: Path) -> None:
    """Move `staging` to `path`. A folder cannot be renamed over a full one, so an old one steps aside first."""
    aside = staging.with_name(staging.name + "-old")
    while True:
        try:
            os.rename(staging, path)
            break
        except OSError:
            if not path.is_dir():
                raise
            try:
                os.rename(path, aside)
            except FileNotFoundError:  # another writer moved it; try again
                continue
            shutil.rmtree(aside, ignore_errors=True)


def row_major(shape: Sequence[int]) -> Shape:
    """The strides, in elements, of a dense row-major array."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return tuple(strides)


SMS = "(multiprocessors)"
"""Where `evaluate` finds the value of `["sms"]` among the shapes; no argument has such a name."""

EMULATED_SMS = 3
"""Multiprocessors of the emulated device: few, so that a small grid has more tiles than CTAs."""

OPERATIONS: dict[str, Callable[[list[int]], int]] = {
    "add": sum,
    "mul": math.prod,
    "sub": lambda values: values[0] - sum(values[1:]),
    "min": min,
    "max": max,
    "ceildiv": lambda values: -(-values[0] // values[1]),
    "floordiv": lambda values: values[0] // values[1],
}


def evaluate(expression: Expression, shapes: Mapping[str, Shape], strides: Mapping[str, Shape]) -> int:
    """The value of an expression, given each argument's shape and strides (in elements) by name."""
    if isinstance(expression, int):
        return expression
    operation, operands = str(expression[0]), expression[1:]
    if operation in ("dim", "stride"):
        table = shapes if operation == "dim" else strides
        return table[str(operands[0])][int(operands[1])]
    if operation == "sms":
        return shapes[SMS][0]
    if operation not in OPERATIONS:
        raise EmmyError(f"'{operation}' is no operation of a size expression; those are {', '.join(OPERATIONS)}")
    return OPERATIONS[operation]([evaluate(operand, shapes, strides) for operand in operands])


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
    `BoundTensorMap`), in order."""

    image: str
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    params: tuple[Param, ...]


@dataclass(frozen=True)
class BoundCall:
    """A checked call. `launches` leaves out those whose grid is empty; `alignments` are bytes, by argument."""

    results: tuple[BoundBuffer, ...]
    temporaries: tuple[BoundBuffer, ...]
    launches: tuple[BoundLaunch, ...]
    alignments: dict[str, int]


def bind(entry: EntrySpec, arrays: Sequence[ArrayInfo], sms: int = EMULATED_SMS) -> BoundCall:
    """Check a call of `entry` with `arrays` (one for each argument, in order) and evaluate every expression.

    `sms`: multiprocessors of the device.

    Raises `EmmyError`, one sentence that names the argument, for a wrong number of arguments, dtype, rank, dimension,
    strides or alignment, for a check of the entry that fails, and for a grid beyond the hardware's limits.
    """
    specs = entry["arguments"]
    if len(arrays) != len(specs):
        names = ", ".join(spec["name"] for spec in specs)
        raise EmmyError(f"{len(arrays)} arguments given; expected {len(specs)}: {names}")
    for spec, array in zip(specs, arrays, strict=True):
        _check_kind(spec, array)
    named = {spec["name"]: array for spec, array in zip(specs, arrays, strict=True)}
    shapes: dict[str, Shape] = {SMS: (sms,)} | {name: array.shape for name, array in named.items()}
    strides = {name: array.strides or row_major(array.shape) for name, array in named.items()}
    for spec in specs:
        _check_layout(spec, named[spec["name"]], shapes, strides)
    for check in entry.get("checks", []):
        _check_condition(check, shapes, strides)

    def buffers(specs: list[BufferSpec]) -> tuple[BoundBuffer, ...]:
        return tuple(
            BoundBuffer(spec["name"], spec["dtype"], tuple(evaluate(dim, shapes, strides) for dim in spec["shape"]))
            for spec in specs
        )

    launches = (_bind_launch(launch, shapes, strides) for launch in entry["launches"])
    return BoundCall(
        results=buffers(entry["results"]),
        temporaries=buffers(entry.get("temporaries", [])),
        launches=tuple(launch for launch in launches if 0 not in launch.grid),
        alignments={spec["name"]: spec.get("align", DTYPES[spec["dtype"]].itemsize) for spec in specs},
    )


def check_alignment(name: str, address: int, align: int) -> None:
    """`EmmyError` unless `address` is a multiple of `align` bytes."""
    if address % align:
        raise EmmyError(f"argument '{name}' is at address {address:#x}; it must be a multiple of {align} bytes")


def _check_kind(spec: ArgumentSpec, array: ArrayInfo) -> None:
    """Dtype and rank, which everything after relies on."""
    name = spec["name"]
    if array.dtype != spec["dtype"]:
        raise EmmyError(f"argument '{name}' has dtype {array.dtype}; expected {spec['dtype']}")
    if len(array.shape) != len(spec["shape"]):
        raise EmmyError(f"argument '{name}' has {len(array.shape)} dimensions; expected {len(spec['shape'])}")


def _check_layout(
    spec: ArgumentSpec, array: ArrayInfo, shapes: Mapping[str, Shape], strides: Mapping[str, Shape]
) -> None:
    name = spec["name"]
    expected = tuple(evaluate(dim, shapes, strides) for dim in spec["shape"])
    if array.shape != expected:
        raise EmmyError(f"argument '{name}' has shape {array.shape}; expected {expected}")
    declared = spec.get("strides")
    wanted = row_major(expected) if declared is None else tuple(evaluate(s, shapes, strides) for s in declared)
    # The stride of a dimension of size 0 or 1 is never used, and frameworks put anything there.
    used = [axis for axis, size in enumerate(expected) if size > 1]
    actual = strides[name]
    if 0 not in expected and any(actual[axis] != wanted[axis] for axis in used):
        raise EmmyError(f"argument '{name}' has strides {actual} (in elements); expected {wanted}")
    if array.address is not None and 0 not in expected:
        check_alignment(name, array.address, spec.get("align", 1))


def _check_condition(check: CheckSpec, shapes: Mapping[str, Shape], strides: Mapping[str, Shape]) -> None:
    value = evaluate(check["value"], shapes, strides)
    if "multiple_of" in check and value % evaluate(check["multiple_of"], shapes, strides):
        raise EmmyError(f"{check['message']} (it is {value})")
    if "equals" in check and value != evaluate(check["equals"], shapes, strides):
        raise EmmyError(f"{check['message']} (it is {value})")


def _bind_launch(launch: LaunchSpec, shapes: Mapping[str, Shape], strides: Mapping[str, Shape]) -> BoundLaunch:
    kernel = launch["kernel"]
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
            params.append((kind, _bind_tensor_map(value, shapes, strides)))
            continue
        number = evaluate(value, shapes, strides)
        low, high = SCALAR_RANGES[kind]
        if not low <= number <= high:
            raise EmmyError(f"kernel '{kernel}' takes a {kind} parameter, which cannot hold {number}")
        params.append((kind, number))
    x, y, z = grid
    block_x, block_y, block_z = launch["block"]
    return BoundLaunch(
        launch["image"], kernel, (x, y, z), (block_x, block_y, block_z), launch["shared_bytes"], tuple(params)
    )


def _bind_tensor_map(spec: TensorMapSpec, shapes: Mapping[str, Shape], strides: Mapping[str, Shape]) -> BoundTensorMap:
    """Numbers, within the limits of TMA (CUDA driver API, `cuTensorMapEncodeTiled`)."""
    sizes, steps = (tuple(evaluate(e, shapes, strides) for e in spec[name]) for name in ("sizes", "strides"))
    if max(sizes) > MAX_MAP_SIZE or max(steps, default=0) >= MAX_MAP_STRIDE:
        raise EmmyError(f"'{spec['of']}' is too large for TMA: sizes {sizes}, strides of {steps} bytes")
    for axis, step in enumerate(steps):
        if step % MAP_STRIDE:
            raise EmmyError(
                f"dimension {axis} of '{spec['of']}' has a stride of {step} bytes; TMA needs a multiple of {MAP_STRIDE}"
            )
    return BoundTensorMap(spec["of"], spec["dtype"], sizes, steps, tuple(spec["box"]), spec["swizzle"])


def numpy_info(array: Array) -> ArrayInfo:
    """The `ArrayInfo` of a NumPy array, without its address: NumPy arrays are copied to aligned memory."""
    itemsize = array.dtype.itemsize
    return ArrayInfo(
        DTYPE_NAMES.get(array.dtype, str(array.dtype)),
        array.shape,
        tuple(stride // itemsize for stride in array.strides),
    )


def run_on_emulator(
    artefact: Artefact, entry: str, arrays: Sequence[Array], **options: Any
) -> tuple[list[Array], list[Report]]:
    """Run an entry on the PTX emulator: the results in order, and one report for each launch.

    `options` go to `Emulator.launch` (`landing`, `order`, `seed`). Arrays are made contiguous first, as they are when
    they are copied to a GPU. Results and temporaries count as uninitialised until a kernel writes them.
    """
    from emmy.emulator import Emulator, Uninitialised

    arrays = [np.ascontiguousarray(array) for array in arrays]
    spec = artefact.entry(entry)
    call = bind(spec, [numpy_info(array) for array in arrays])
    buffers: dict[str, Any] = {
        argument["name"]: array for argument, array in zip(spec["arguments"], arrays, strict=True)
    }
    for buffer in (*call.results, *call.temporaries):
        buffers[buffer.name] = np.zeros(buffer.shape, DTYPES[buffer.dtype])
    unwritten = {buffer.name for buffer in (*call.results, *call.temporaries)}
    emulators: dict[str, Emulator] = {}
    reports: list[Report] = []
    for launch in call.launches:
        ptx = artefact.images[launch.image].ptx
        if ptx is None:
            raise EmmyError(f"image '{launch.image}' has no PTX, so the emulator cannot run it")
        if launch.image not in emulators:
            emulators[launch.image] = Emulator(ptx)
        args: list[Any] = []
        for _, value in launch.params:
            if isinstance(value, int):
                args.append(value)
                continue
            name = value.of if isinstance(value, BoundTensorMap) else value
            buffer = Uninitialised(buffers[name]) if name in unwritten else buffers[name]
            args.append(_emulated_map(value, buffer) if isinstance(value, BoundTensorMap) else buffer)
        reports.append(
            emulators[launch.image].launch(
                kernel=launch.kernel,
                grid=launch.grid,
                block=launch.block,
                args=args,
                shared_bytes=launch.shared_bytes,
                **options,
            )
        )
        unwritten -= {value for _, value in launch.params if isinstance(value, str)}
    return [buffers[buffer.name] for buffer in call.results], reports


def _emulated_map(bound: BoundTensorMap, buffer: Any) -> Any:
    """The emulator's argument for a tensor map; of an empty tensor one element that nothing reads, as on a device."""
    from emmy.emulator import TensorMap

    size = DTYPES[bound.dtype].itemsize
    if bound.empty:
        sizes, strides = (1,) * len(bound.sizes), (16,) * len(bound.strides)
        return TensorMap(np.zeros(1, DTYPES[bound.dtype]), size, sizes, strides, bound.box, bound.swizzle)
    return TensorMap(buffer, size, bound.sizes, bound.strides, bound.box, bound.swizzle)
