"""The emulator against the hardware: products through matrix descriptors, and GEMMs in clusters, equal bit for bit.

Operands are small integers, so that every partial sum is exact on both. Needs a Hopper GPU, and ptxas.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

from emmy.assemble import assemble, find_tool
from emmy.driver import call, is_available, open_driver
from emmy.emulator import Emulator, Uninitialised
from emmy.tensor_maps import DATA_TYPES, SWIZZLES, HostMap, encoder

sys.path.insert(0, str(Path(__file__).parent.parent / "hopper"))

import test_wgmma as products
import test_wgmma_gemm as gemms
from hopper_texts import HEAD, one_product


def is_hopper() -> bool:
    if not is_available():
        return False
    driver = open_driver()
    kind = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
    return int(call("query", driver.cuDeviceGetAttribute, kind, call("open", driver.cuDeviceGet, 0))) == 9


pytestmark = pytest.mark.skipif(
    not is_hopper() or find_tool("ptxas") is None, reason="needs a Hopper GPU and ptxas: not run"
)


class Device:
    """Launches kernels of one cubin on device 0."""

    def __init__(self, ptx: str):
        self.driver = open_driver()
        context = call("retain", self.driver.cuDevicePrimaryCtxRetain, call("open", self.driver.cuDeviceGet, 0))
        call("use", self.driver.cuCtxSetCurrent, context)
        self.module = call("load", self.driver.cuModuleLoadData, assemble(ptx, "sm_90a").cubin)

    def buffer(self, array: np.ndarray) -> int:
        address = call("allocate", self.driver.cuMemAlloc, max(array.nbytes, 16))
        call("copy", self.driver.cuMemcpyHtoD, address, array.ctypes.data, array.nbytes)
        return int(address)

    def read(self, address: int, array: np.ndarray) -> np.ndarray:
        result = np.empty_like(array)
        call("copy", self.driver.cuMemcpyDtoH, result.ctypes.data, address, result.nbytes)
        return result

    def map(self, address: int, array: np.ndarray, box) -> HostMap:
        """A tensor map of a row-major f16 matrix, under the 128-byte swizzle."""
        host = HostMap()
        sizes, strides = (ctypes.c_uint64 * 2)(*array.shape[::-1]), (ctypes.c_uint64 * 1)(array.strides[0])
        boxes, steps = (ctypes.c_uint32 * 2)(*box[::-1]), (ctypes.c_uint32 * 2)(1, 1)
        function = encoder(self.driver, call)
        what = (host.address, DATA_TYPES["f16"], 2, address, sizes, strides, boxes, steps, 0, SWIZZLES[128], 3, 0)
        assert function(*what) == 0
        return host

    def launch(self, name: str, grid, threads: int, shared: int, arguments) -> None:
        """arguments: ctypes values, and tensor maps."""
        driver = self.driver
        function = call("find", driver.cuModuleGetFunction, self.module, name.encode())
        most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call("configure", driver.cuFuncSetAttribute, function, most, shared)
        places = [a.address if isinstance(a, HostMap) else ctypes.addressof(a) for a in arguments]
        pointers = (ctypes.c_void_p * len(places))(*places)
        call("launch", driver.cuLaunchKernel, function, *grid, threads, 1, 1, shared, 0, ctypes.addressof(pointers), 0)
        call("wait", driver.cuCtxSynchronize)


def compare(n: int, sums: str, a_type: str, b_type: str, signs=(1, 1), **layout) -> None:
    flags = {key: layout[key] for key in ("in_registers", "mn_a", "mn_b") if key in layout}
    text = HEAD + one_product("k", n, sums, a_type, b_type, signs=signs, **flags)
    _, _, image, first, second = products.setup(n, a_type, b_type, **layout)
    out = np.full((2, 128, n // 2 if sums == "f32" else n // 4), 0xFFFFFFFF, np.uint32)
    device = Device(text)
    addresses = [
        device.buffer(image),
        device.buffer(out),
        device.buffer(first) if first.ndim else int(first),
        int(second),
    ]
    numbers = [*map(ctypes.c_uint64, addresses), ctypes.c_uint32(products.SHARED)]
    device.launch("k", (1, 1, 1), 128, products.SHARED, numbers)
    found = device.read(addresses[1], out)
    argument = first if first.ndim else int(first)
    arguments = [image, Uninitialised(out), argument, int(second), products.SHARED]
    Emulator(text).launch("k", (1, 1, 1), (128, 1, 1), arguments, products.SHARED)
    assert (found == out).all()


@pytest.mark.parametrize(("mn_a", "mn_b"), list(itertools.product((False, True), repeat=2)))
@pytest.mark.parametrize("n", [8, 40, 136, 256])
def test_descriptors(n: int, mn_a: bool, mn_b: bool):
    for swizzles in itertools.product((0, 32, 64, 128), repeat=2):
        compare(n, "f32", "f16", "f16", mn_a=mn_a, mn_b=mn_b, swizzles=swizzles, at_k=16)


@pytest.mark.parametrize("in_registers", [False, True])
@pytest.mark.parametrize(("a_type", "b_type"), [("f16", "f16"), ("e4m3", "e5m2"), ("e5m2", "e4m3")])
def test_types(a_type: str, b_type: str, in_registers: bool):
    for sums, signs in itertools.product(("f32", "f16"), ((1, 1), (-1, 1), (1, -1))):
        compare(24, sums, a_type, b_type, signs, in_registers=in_registers, swizzles=(64, 128))


@pytest.mark.parametrize("name", gemms.KERNELS)
def test_gemms(name: str):
    """A launch without attributes runs in the clusters that the kernel requires."""
    kernel = gemms.KERNELS[name]
    rows, columns, steps = 2 * kernel.cluster, 3, 7
    m, n = rows * kernel.bm, columns * kernel.bn
    a, b = gemms.operands(m, n, steps * kernel.BK, kernel.mn_b)
    c = np.full((m, n), np.nan, np.float32)
    device = Device(kernel.text())
    at_a, at_b, at_c = (device.buffer(array) for array in (a, b, c))
    maps = [device.map(at_a, a, (kernel.bm, kernel.BK)), device.map(at_b, b, kernel.box_b)]
    numbers = [ctypes.c_uint64(at_c), ctypes.c_uint32(n), ctypes.c_uint32(steps)]
    wanted = a.astype(np.float64) @ (b if kernel.mn_b else b.T).astype(np.float64)
    for _ in range(20):
        device.launch("gemm", (rows, columns, 1), kernel.threads, kernel.shared_bytes, [*maps, *numbers])
        assert (device.read(at_c, c) == wanted).all()
