"""An artefact's images on a device: which form of an image is loaded, when, and what is said if the driver refuses it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from emmy.artefact import Artefact, BoundLaunch, Image
from emmy.driver import call, describe, launch_config
from emmy.errors import EmmyError
from emmy.targets import get_target

if TYPE_CHECKING:
    from emmy.runtime import Runtime

JIT_LOG_BYTES = 8192

_PTX_VERSION = re.compile(r"^\s*\.version\s+(\d+)\.(\d+)", re.MULTILINE)

CUDA_OF_PTX_8 = {0: "12.0", 1: "12.1", 2: "12.2", 3: "12.3", 4: "12.4", 5: "12.5", 6: "12.7", 7: "12.8", 8: "12.9"}
"""Minor version of PTX ISA 8 -> the CUDA release whose driver is the first to know it (PTX ISA manual, "Release Notes")."""


def first_cuda_with(major: int, minor: int) -> str:
    """The CUDA release that brought a PTX ISA version, 7.0 or later: PTX 7.x came with CUDA 11.x, 9.x with 13.x."""
    if major == 8:
        return CUDA_OF_PTX_8.get(minor, "12.9")
    return f"{major + 4}.{minor}"


def loadable(target: str, compute_capability: tuple[int, int], image: Image) -> str | None:
    """Which form of an image built for `target` runs on a device: `"cubin"`, `"ptx"` or neither.

    A cubin runs on its own compute capability and later minor ones of the same generation; PTX on every later
    device; code for an `a` target on exactly its own (CUDA C++ Programming Guide, "Binary Compatibility").
    """
    wanted = get_target(target)
    exact = compute_capability == wanted.compute_capability
    later = compute_capability >= wanted.compute_capability and not wanted.architecture_specific
    same_generation = later and compute_capability[0] == wanted.compute_capability[0]
    if image.cubin is not None and (exact or same_generation):
        return "cubin"
    return "ptx" if image.ptx is not None and (exact or later) else None


class DeviceImages:
    """The images of one artefact on one device, each loaded when a kernel of it is first needed."""

    def __init__(self, runtime: Runtime, artefact: Artefact):
        self.runtime = runtime
        self.artefact = artefact
        self._modules: dict[str, Any] = {}
        self._functions: dict[tuple[str, str], tuple[Any, int]] = {}
        self._clusters: dict[tuple[Any, ...], int] = {}

    def unload(self) -> None:
        """Unload all of them. None of their kernels may be running."""
        for module in self._modules.values():
            call("unload a module", self.runtime.driver.cuModuleUnload, module)
        self._modules.clear()
        self._functions.clear()

    def function(self, launch: BoundLaunch, stream: int) -> Any:
        """The kernel, allowed as much dynamic shared memory as any launch of it has asked for. Loads its image when it is
        first asked for; `stream` is where it will be launched."""
        driver = self.runtime.driver
        function, allowed = self._functions.get((launch.image, launch.kernel), (None, 0))
        if function is None:
            if launch.image not in self._modules:
                self._modules[launch.image] = self._load(launch, stream)
            what = f"find kernel '{launch.kernel}' in image '{launch.image}'"
            function = call(what, driver.cuModuleGetFunction, self._modules[launch.image], launch.kernel.encode())
        if launch.shared_bytes > allowed:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            what = f"give kernel '{launch.kernel}' {launch.shared_bytes} bytes of shared memory"
            call(what, driver.cuFuncSetAttribute, function, attribute, launch.shared_bytes)
            allowed = launch.shared_bytes
        self._functions[launch.image, launch.kernel] = (function, allowed)
        return function

    def clusters(self, launch: BoundLaunch, stream: int) -> int:
        """How many clusters of a launch the device holds at once, at least; 0 if it cannot hold any. The driver is asked once for
        each kernel, block, shared memory and cluster.

        `cuOccupancyMaxActiveClusters` knows what the number of multiprocessors does not tell: a cluster lies in one GPC, of which
        a device may have few, or a part.
        """
        key = (launch.image, launch.kernel, launch.block, launch.shared_bytes, launch.cluster)
        held = self._clusters.get(key)
        if held is None:
            held = self._clusters[key] = self._ask_clusters(launch, self.function(launch, stream))
        return held

    def _ask_clusters(self, launch: BoundLaunch, function: Any) -> int:
        driver = self.runtime.driver

        def set_value(value: Any) -> None:
            value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = launch.cluster

        config = launch_config(
            driver, launch.cluster, launch.block, launch.shared_bytes, "CLUSTER_DIMENSION", set_value
        )
        status, held = driver.cuOccupancyMaxActiveClusters(function, config)
        if status == driver.CUresult.CUDA_ERROR_INVALID_CLUSTER_SIZE:
            return 0
        if status != driver.CUresult.CUDA_SUCCESS:
            what = f"cannot ask how many clusters of kernel '{launch.kernel}' the device holds"
            raise EmmyError(f"{what}: {describe(driver, status)}")
        return int(held)

    def _load(self, launch: BoundLaunch, stream: int) -> Any:
        """The cubin where this device runs it, else the PTX through the driver's compiler."""
        name = launch.image
        if self.runtime.is_capturing(stream):
            raise EmmyError(
                f"kernel '{launch.kernel}' is used for the first time on a stream that is being captured; "
                "call it once before the capture, so that it is loaded"
            )
        image, driver = self.artefact.images[name], self.runtime.driver
        kind = loadable(self.artefact.target, self.runtime.compute_capability, image)
        if kind == "cubin":
            status, module = driver.cuModuleLoadData(image.cubin)
            too_new = (driver.CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU, driver.CUresult.CUDA_ERROR_INVALID_IMAGE)
            if status == driver.CUresult.CUDA_SUCCESS:
                return module
            if image.ptx is None or status not in too_new:
                raise EmmyError(f"cannot load the cubin of image '{name}': {describe(driver, status)}")
            kind = "ptx"  # an older driver may compile what it cannot load
        if kind == "ptx":
            return self._compile(name, image.ptx or "")
        major, minor = self.runtime.compute_capability
        raise EmmyError(
            f"image '{name}' is for {self.artefact.target}; device {self.runtime.device} ({self.runtime.name}) "
            f"has compute capability {major}.{minor}"
        )

    def _compile(self, name: str, ptx: str) -> Any:
        """Load PTX. The driver's compiler writes its errors into `log`."""
        driver = self.runtime.driver
        log = bytearray(JIT_LOG_BYTES)
        options = {
            driver.CUjit_option.CU_JIT_ERROR_LOG_BUFFER: log,
            driver.CUjit_option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: len(log),
        }
        text = ptx.encode() + b"\0"
        status, module = driver.cuModuleLoadDataEx(text, len(options), list(options), list(options.values()))
        if status == driver.CUresult.CUDA_SUCCESS:
            return module
        version = _PTX_VERSION.search(ptx)
        if status == driver.CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION and version is not None:
            has, wants = self.runtime.driver_cuda(), first_cuda_with(int(version[1]), int(version[2]))
            raise EmmyError(
                f"the driver, of CUDA {has[0]}.{has[1]}, is too old for image '{name}', whose PTX is of version "
                f"{version[1]}.{version[2]}; install the driver of CUDA {wants} or later"
            )
        said = log.split(b"\0")[0].decode(errors="replace").strip()
        raise EmmyError(f"the driver cannot compile image '{name}': {describe(driver, status)} {said}".rstrip())
