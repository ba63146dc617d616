"""What each GPU generation can do, as one table. Plain data at the bottom of the package: passes, the assembler and
tests read it.

Sources of the numbers
----------------------
* Shared memory, registers, threads, blocks: CUDA C++ Programming Guide, "Compute Capabilities" (technical
  specifications per compute capability). A block can use 1 KB less than an SM has, since the system reserves 1 KB for
  each block.
* Instruction availability and PTX ISA version: PTX ISA manual ("PTX ISA Notes" of each instruction, "Target ISA
  Notes"), checked with ptxas 13.0.88. `ptx_version` is the lowest that has every instruction printed for that target,
  so that old drivers load the text; a module with an instruction that came later (`Row.since`) says a later one.
* SM counts, L2 sizes and tensor rates: NVIDIA architecture whitepapers (A100; Ada, GeForce RTX 4090; H100/H200 SXM;
  Blackwell, GeForce RTX 5090). Rates are dense FMA per clock per SM with f16 operands; GeForce dies run f32
  accumulators at half rate.
"""

from __future__ import annotations

from dataclasses import dataclass

from emmy.errors import EmmyError

KIB = 1024
MIB = 1024 * 1024


@dataclass(frozen=True)
class Target:
    """One value of ptxas's `-arch`, with the limits of the architecture and the sizes of one reference card.

    Sizes are bytes; `registers_*` count 32-bit registers; rates are FMA per clock per SM. A flag says that ptxas
    accepts the instruction for this target *and* that using it is sensible there; `mixed_add`: `add.f32.f16`;
    `fp8`: products of 8-bit floats; `clusters`: CTAs that read each other's shared memory.
    `promotion`: how f16 partial sums are best added to f32 ones, `convert` or `identity` (see `emmy.schedules`).
    """

    name: str
    compute_capability: tuple[int, int]
    ptx_version: str
    reference_card: str
    sms: int
    l2_bytes: int
    shared_bytes_per_block: int
    shared_bytes_per_sm: int
    max_threads_per_sm: int
    max_blocks_per_sm: int
    tensor_rate_f16: int
    tensor_rate_f32: int
    stmatrix: bool
    mbarrier: bool
    tma: bool
    wgmma: bool
    setmaxnreg: bool
    multicast: bool
    fp8: bool
    promotion: str = "convert"
    clusters: bool = False
    mixed_add: bool = False
    cp_async: bool = True
    ldmatrix: bool = True
    max_threads: int = 1024
    registers_per_sm: int = 65536
    registers_per_thread: int = 255
    reserved_shared_bytes: int = KIB

    @property
    def architecture_specific(self) -> bool:
        """Whether code for this target runs on exactly this compute capability (the `a` suffix) and on no later one."""
        return self.name.endswith("a")


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target(
            name="sm_80",
            compute_capability=(8, 0),
            ptx_version="7.4",  # 7.4: cp.async with an L2 prefetch hint
            reference_card="A100 SXM 80 GB",
            sms=108,
            l2_bytes=40 * MIB,
            shared_bytes_per_block=163 * KIB,
            shared_bytes_per_sm=164 * KIB,
            max_threads_per_sm=2048,
            max_blocks_per_sm=32,
            tensor_rate_f16=1024,
            tensor_rate_f32=1024,
            stmatrix=False,
            mbarrier=True,
            tma=False,
            wgmma=False,
            setmaxnreg=False,
            multicast=False,
            fp8=False,
            promotion="identity",
        ),
        Target(
            name="sm_89",
            compute_capability=(8, 9),
            ptx_version="7.8",  # 7.8: the first that knows sm_89
            reference_card="GeForce RTX 4090",
            sms=128,
            l2_bytes=72 * MIB,
            shared_bytes_per_block=99 * KIB,
            shared_bytes_per_sm=100 * KIB,
            max_threads_per_sm=1536,
            max_blocks_per_sm=24,
            tensor_rate_f16=512,
            tensor_rate_f32=256,
            stmatrix=False,
            mbarrier=True,
            tma=False,
            wgmma=False,
            setmaxnreg=False,
            multicast=False,
            fp8=True,
        ),
        Target(
            name="sm_90a",
            compute_capability=(9, 0),
            ptx_version="8.0",  # 8.0: the first with wgmma, setmaxnreg and TMA
            reference_card="H200 SXM",
            sms=132,
            l2_bytes=60 * MIB,
            shared_bytes_per_block=227 * KIB,
            shared_bytes_per_sm=228 * KIB,
            max_threads_per_sm=2048,
            max_blocks_per_sm=32,
            tensor_rate_f16=2048,
            tensor_rate_f32=2048,
            stmatrix=True,
            mbarrier=True,
            tma=True,
            wgmma=True,
            setmaxnreg=True,
            multicast=True,
            clusters=True,
            fp8=True,
            promotion="identity",
        ),
        Target(
            name="sm_120a",
            compute_capability=(12, 0),
            ptx_version="8.7",  # 8.7: the first that knows sm_120a
            reference_card="GeForce RTX 5090",
            sms=170,
            l2_bytes=96 * MIB,
            shared_bytes_per_block=99 * KIB,
            shared_bytes_per_sm=100 * KIB,
            max_threads_per_sm=1536,
            max_blocks_per_sm=24,
            tensor_rate_f16=512,
            tensor_rate_f32=256,
            stmatrix=True,
            mbarrier=True,
            tma=True,
            wgmma=False,
            setmaxnreg=True,
            multicast=False,
            clusters=True,
            fp8=True,
            mixed_add=True,
        ),
    )
}

DEFAULT_TARGET = "sm_90a"
"""The target where none is named and no GPU is present."""

# Names people write for a generation, and the target whose instructions they most likely want.
USE_INSTEAD: dict[str, str] = {
    "sm_86": "sm_80",
    "sm_87": "sm_80",
    "sm_90": "sm_90a",
    "sm_120": "sm_120a",
    "sm_120f": "sm_120a",
}


def get_target(name: str) -> Target:
    """The target called `name`.

    Raises `EmmyError` with the name to use instead where one is obvious, else with the list of targets.
    """
    target = TARGETS.get(name)
    if target is not None:
        return target
    if name in USE_INSTEAD:
        raise EmmyError(f"target '{name}' is not one of Emmy's; use '{USE_INSTEAD[name]}'")
    raise EmmyError(f"unknown target '{name}'; the targets are {', '.join(TARGETS)}")
