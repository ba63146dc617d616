"""A module that can be called: `module.matmul(a, b)`, on GPUs or on the emulator. Imports neither xDSL nor CUDA.

`emmy.load(DIR)` gives one from an artefact, without the compiler; `emmy.compile` gives one that can also be read at every
level (`emmy.compiler.CompiledModule`). Both are called alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from emmy.artefact import Array, Artefact, Image, numpy_info, run_on_emulator
from emmy.errors import EmmyError
from emmy.parameters import check_kind

if TYPE_CHECKING:
    from emmy.report import Report
    from emmy.runtime import CudaModule

DEVICES = ("auto", "cuda", "cuda:N", "emulator")
_CUDA_DEVICE = re.compile(r"cuda(?::(\d+))?")

Call: TypeAlias = Callable[[Sequence[Any], Any, Any], Any]
"""Takes arguments, out and stream; the entry's result, or a tuple of them."""


class Module:
    """Compiled kernels. Their entries are attributes (and items): `module.matmul(a, b)`, see `Entry.__call__`."""

    def __init__(self, artefact: Artefact):
        self.artefact = self.portable_artefact = artefact
        self._prepare(artefact.target)

    def _prepare(self, target: str) -> None:
        self.target = target
        self._cuda: dict[int, CudaModule] = {}
        self._entries: dict[str, Entry] = {}

    @property
    def entries(self) -> tuple[str, ...]:
        """The functions that can be called."""
        return tuple(self.portable_artefact.entries)

    def cuda(self, device: int = 0) -> CudaModule:
        """The artefact loaded on a GPU, once for each. Raises `EmmyError` if there is no such GPU."""
        loaded = self._cuda.get(device)
        if loaded is None:
            from emmy.runtime import open_device

            loaded = self._cuda[device] = open_device(device).load(self.artefact)
        return loaded

    def report(self) -> Report:
        """What each kernel takes and why it is as it is; `str()` of it is a table, `.as_json()` data (see `emmy.report`)."""
        from emmy.report import make_report

        launches = (one for entry in self.artefact.entries.values() for one in entry["launches"])
        clusters = any("cluster" in one for launch in launches for one in (launch, *launch.get("otherwise", [])))
        return make_report(self.artefact, self.cuda() if clusters and runs_on_gpu(self.target) else None)

    def __getitem__(self, name: str) -> Entry:
        entry = self._entries.get(name)
        if entry is None:
            self.portable_artefact.entry(name)
            entry = self._entries[name] = Entry(self, name)
        return entry

    def __getattr__(self, name: str) -> Entry:
        if name.startswith("_") or name not in self.entries:
            raise AttributeError(f"the module has no function '{name}'; it has {', '.join(self.entries) or 'none'}")
        entry = self[name]
        self.__dict__[name] = entry  # found without this method from now on
        return entry

    def __repr__(self) -> str:
        return f"<Emmy module of {', '.join(self.entries) or 'no functions'} for {self.target}>"

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.entries]


class Entry:
    """One function of a module."""

    def __init__(self, module: Module, name: str):
        self.module = module
        self.name = name
        # GPU -> the entry there, for calls with PyTorch tensors: no search on a warm call.
        self._calls: dict[int, Call] = {}

    def __call__(self, *args: Any, device: str = "auto", stream: Any = None, out: Any = None) -> Any:
        """Run the function: its result, or a tuple of them.

        `device`: `cuda` (the GPU of the arguments, the first one for NumPy arrays), `cuda:1` (that GPU), `emulator`, or
        `auto`: `cuda` if there is a GPU that runs the module's target, else the emulator. Arguments are NumPy arrays or,
        on a GPU, arrays that are there already (PyTorch, CuPy, JAX: DLPack or the CUDA array interface). `out`, an array
        or several, receives the results; `stream`: a CUDA stream.
        Raises `EmmyError` for a call that breaks the function's contract.
        """
        if args and device in ("auto", "cuda"):
            first = args[0]
            if type(first) in _tensor_types:
                call = self._calls.get(first.get_device())
                if call is not None:
                    return call(args, out, stream)
        return self._first_call(args, device, stream, out)

    def choice(self, *args: Any) -> list[str]:
        """Which kernels a call with these arguments runs, a line each, and why not those preferred to them. Runs nothing.

        `args` as in a call, taken as they lie: NumPy arrays as the emulator does, others as the GPU that they are on does.
        """
        import numpy as np

        from emmy.device_arrays import device_ordinal, read_device_array
        from emmy.report import show_choice

        names = [argument["name"] for argument in self.module.portable_artefact.entry(self.name)["arguments"]]
        names += [str(position) for position in range(len(names), len(args))]
        emulated = all(isinstance(array, np.ndarray) for array in args)
        infos = [
            numpy_info(cast(Array, array), placed=True)
            if isinstance(array, np.ndarray)
            else read_device_array(array, name, 0).info
            for array, name in zip(args, names, strict=False)
        ]
        if emulated:
            return show_choice(self.module.portable_artefact.bind(self.name, infos))
        return show_choice(self.module.cuda(device_ordinal(args)).choose(self.name, infos))

    def __repr__(self) -> str:
        return f"<Emmy function {self.name} for {self.module.target}>"

    def _first_call(self, args: Sequence[Any], device: str, stream: Any, out: Any) -> Any:
        """Find the device; tensors are expected to come again."""
        check_kind("device", device, "word")
        cuda = _CUDA_DEVICE.fullmatch(device)
        if cuda is None and device not in ("auto", "emulator"):
            raise EmmyError(f"device is one of {', '.join(DEVICES)}, got '{device}'")
        if device == "emulator" or (device == "auto" and not runs_on_gpu(self.module.target)):
            if stream is not None:
                raise EmmyError("the emulator has no streams; leave stream out, or pass device='cuda'")
            return self._emulate(args, out)
        from emmy.device_arrays import device_ordinal, is_torch_tensor

        ordinal = int(cuda[1]) if cuda is not None and cuda[1] is not None else device_ordinal(args)
        call = self.module.cuda(ordinal).caller(self.name)
        if args and is_torch_tensor(args[0]) and args[0].get_device() == ordinal:
            _tensor_types.add(type(args[0]))
            self._calls[ordinal] = call
        return call(args, out, stream)

    def _emulate(self, args: Sequence[Any], out: Any) -> Any:
        import numpy as np

        outs: list[Any] = [] if out is None else list(out) if isinstance(out, list | tuple) else [out]  # pyright: ignore[reportUnknownArgumentType]
        for array in (*args, *outs):
            if not isinstance(array, np.ndarray):
                raise EmmyError(f"the emulator takes NumPy arrays, got a {type(array).__name__}")
        given = None if out is None else outs
        results, _ = run_on_emulator(self.module.portable_artefact, self.name, args, given)
        return results[0] if len(results) == 1 else tuple(results)


_tensor_types: set[Any] = set()
"""Types of arguments that turned out to be PyTorch tensors: the class itself and its subclasses, such as Parameter."""


def runs_on_gpu(target: str) -> bool:
    """Whether this machine has a GPU that runs code for `target`."""
    from emmy.runtime import is_available, loadable, open_device

    if not is_available():
        return False
    return loadable(target, open_device(0).compute_capability, Image(ptx="", cubin=b"")) is not None


def load(path: str | Path) -> Module:
    """The artefact in the folder `path` (what `emmy compile FILE -o DIR` writes), ready to be called.

    Raises `EmmyError` if the folder holds no artefact.
    """
    check_kind("path", path, "path")
    return Module(Artefact.load(path))
