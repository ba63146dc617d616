"""A CPU emulator for printed PTX: whole CTAs, warp by warp, strict about everything that hardware leaves to luck.

    emulator = Emulator(ptx_text)
    report = emulator.launch("gemm", grid=(4, 2, 1), block=(256, 1, 1), args=[a, b, Uninitialised(c), 1024])

A parameter that holds a tensor map takes a `TensorMap(array, element_bytes, sizes, strides, box, swizzle)`.

It reports as `EmulatorError`, with the PTX line: unknown instructions and modifiers (when the text is parsed),
divergent branches, reads of registers, shared or global bytes that were never written, out-of-bounds and misaligned
accesses, reads of asynchronous copies that were not waited for, races between warps (or lanes) through shared memory,
missing proxy fences before TMA and wgmma, registers of a wgmma in flight, shared memory of a CTA that has ended,
deadlocks and endless loops. Lanes of a warp are NumPy vectors of 32; warps that stand at one instruction share a call.
The CTAs of a cluster run together, as the warps of one machine.
"""

from emmy.emulator.faults import EmulatorError
from emmy.emulator.global_memory import Pointer, Uninitialised
from emmy.emulator.launch import Emulator, Report
from emmy.emulator.tensor_map import TensorMap

__all__ = ["Emulator", "EmulatorError", "Pointer", "Report", "TensorMap", "Uninitialised"]
