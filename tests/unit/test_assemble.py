"""The assembler: four targets, its report, what it refuses, and the counts read off its SASS."""

import re

import pytest
from two_kernels import smoke_ptx

from emmy import assemble as assembler
from emmy.assemble import (
    KernelResources,
    assemble,
    assemble_in_registers,
    main_loop_mix,
    occupancy,
    parse_report,
    refuse_spills,
    resources,
    sass,
)
from emmy.errors import EmmyError
from emmy.targets import TARGETS

pytestmark = pytest.mark.skipif(
    assembler.find_tool("ptxas") is None or assembler.find_tool("nvdisasm") is None,
    reason='needs ptxas and nvdisasm (pip install "emmy[ptxas]"): not run',
)

HEADER = ".version 8.0\n.target sm_90a\n.address_size 64\n"

# 64 live registers in a kernel that may use 32.
SPILLING = (
    HEADER
    + ".visible .entry spilling(.param .u64 p)\n.maxnreg 32\n{\n.reg .b32 %r<64>;\n.reg .b64 %rd<2>;\nld.param.u64 %rd1, [p];\n"
    + "".join(f"ld.volatile.global.u32 %r{i}, [%rd1+{4 * i}];\n" for i in range(64))
    + "".join(f"st.volatile.global.u32 [%rd1+{4 * i}], %r{i};\n" for i in range(64))
    + "ret;\n}\n"
)

# setmaxnreg in a kernel whose register count at entry is not known: ptxas ignores it and says C7508.
IGNORED = HEADER + ".visible .entry ignored()\n.maxntid 128, 1, 1\n{\nsetmaxnreg.dec.sync.aligned.u32 40;\nret;\n}\n"

# Two nested loops; the tensor-core instruction is in the inner one, a store in the outer one.
LOOPS = (
    HEADER
    + """.visible .entry loops(.param .u64 out, .param .u32 n)
.maxntid 32, 1, 1
{
  .reg .pred %p<3>; .reg .b32 %r<8>; .reg .b64 %rd<2>; .reg .f32 %f<4>; .shared .align 16 .b8 smem[64];
  ld.param.u64 %rd1, [out]; ld.param.u32 %r0, [n]; mov.u32 %r4, %tid.x;
  mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
  mov.u32 %r2, 0;
OUTER:
  mov.u32 %r1, 0;
INNER:
  xor.b32 %r3, %r4, %r1;
  mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0,%f1,%f2,%f3}, {%r3,%r3,%r3,%r4}, {%r4,%r3}, {%f0,%f1,%f2,%f3};
  bar.sync 0;
  add.u32 %r1, %r1, 1;
  setp.lt.u32 %p1, %r1, %r0;
  @%p1 bra INNER;
  st.volatile.shared.f32 [smem], %f0;
  add.u32 %r2, %r2, 1;
  setp.lt.u32 %p2, %r2, %r0;
  @%p2 bra OUTER;
  st.global.v4.f32 [%rd1], {%f0,%f1,%f2,%f3};
  ret;
}
"""
)


@pytest.mark.parametrize("target", list(TARGETS))
@pytest.mark.parametrize("opt_level", [1, 3])
def test_every_target_assembles(target, opt_level):
    done = assemble(smoke_ptx(target), target, opt_level)
    assert done.cubin.startswith(b"\x7fELF")
    assert set(done.kernels) == {"vector_add", "naive_matmul"}
    assert all(0 < kernel.registers <= 64 and kernel.spill_store_bytes == 0 for kernel in done.kernels.values())
    assert done.messages == ()


def test_what_spills_at_every_level_is_refused():
    with pytest.raises(EmmyError, match="kernel 'spilling' spills registers"):
        assemble_in_registers(SPILLING, "sm_90a")


def test_a_spill_is_refused_unless_allowed():
    with pytest.raises(
        EmmyError, match=r"kernel 'spilling' spills registers \(\d+ bytes stored, \d+ loaded per thread\)"
    ):
        assemble(SPILLING, "sm_90a")
    kernel = assemble(SPILLING, "sm_90a", allow=frozenset({"spills"})).kernels["spilling"]
    assert kernel.spill_store_bytes > 0
    assert kernel.spill_load_bytes > 0
    assert kernel.stack_bytes > 0
    assert kernel.registers == 32


def test_resources_as_an_artefact_keeps_them():
    spilling = assemble(SPILLING, "sm_90a", allow=frozenset({"spills"}))
    kernel = spilling.kernels["spilling"]
    found = resources(spilling)["spilling"]
    assert found == {
        "registers": 32,
        "spill_bytes": kernel.spill_store_bytes + kernel.spill_load_bytes,
        "shared_bytes": kernel.shared_bytes,
    }


def test_an_ignored_instruction_is_refused_unless_allowed():
    with pytest.raises(EmmyError, match=r"ptxas reports \(C7508\).*setmaxnreg"):
        assemble(IGNORED, "sm_90a")
    done = assemble(IGNORED, "sm_90a", allow=frozenset({"C7508"}))
    assert len(done.messages) == 1
    assert done.messages[0].startswith("(C7508)")


def test_an_error_shows_the_line_of_ptx():
    with pytest.raises(EmmyError, match=r"line 6: Not a name of any known instruction: 'oops': oops.b32 %r0;"):
        assemble(HEADER + ".visible .entry f() {\n.reg .b32 %r<2>;\noops.b32 %r0;\nret;\n}\n", "sm_90a")


def test_the_text_must_be_for_the_target():
    with pytest.raises(EmmyError, match="ptxas rejects the PTX for sm_80"):
        assemble(smoke_ptx("sm_90a"), "sm_80")


def test_wrong_target_and_level_are_named():
    with pytest.raises(EmmyError, match="use 'sm_90a'"):
        assemble(HEADER, "sm_90")
    with pytest.raises(EmmyError, match="optimisation level 4 does not exist"):
        assemble(HEADER, "sm_90a", opt_level=4)


def test_a_missing_tool_says_what_to_install(monkeypatch):
    monkeypatch.setattr(assembler, "find_tool", lambda name: None)
    with pytest.raises(EmmyError, match=r'ptxas was not found .* pip install "emmy\[ptxas\]"'):
        assemble(HEADER, "sm_90a")


def test_the_report_of_several_kernels_is_told_apart():
    kernels, messages = parse_report(
        """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90a'
ptxas info    : Function properties for first
    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 16 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compile time = 9.213 ms
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers
ptxas warning : something else
"""
    )
    first, second = kernels["first"], kernels["second"]
    assert (first.registers, first.spill_store_bytes, first.spill_load_bytes) == (40, 4, 8)
    assert (first.stack_bytes, first.shared_bytes) == (16, 1024)
    assert (second.registers, second.spill_store_bytes, second.shared_bytes) == (12, 0, 0)
    assert messages == ("something else",)


def test_instruction_counts_of_a_main_loop():
    text = sass(assemble(LOOPS, "sm_90a").cubin)
    loop = main_loop_mix(text, "loops")
    assert {"STS", "STG", "EXIT"} <= set(re.findall(r"[A-Z]+", text))
    assert loop["HMMA"] >= 1
    assert loop["BAR"] == loop["HMMA"]
    assert loop["BRA"] == 1
    assert not {"STS", "STG", "EXIT"} & set(loop)


def test_the_main_loop_without_tensor_cores():
    text = sass(assemble(smoke_ptx("sm_80"), "sm_80").cubin)
    assert main_loop_mix(text, "vector_add") == {}
    loop = main_loop_mix(text, "naive_matmul")
    assert loop["FFMA"] >= 1
    assert loop["LDG"] == 2 * loop["FFMA"]


def test_an_unknown_kernel_is_named():
    with pytest.raises(EmmyError, match="the cubin has no kernel 'other'"):
        main_loop_mix(sass(assemble(LOOPS, "sm_90a").cubin), "other")


@pytest.mark.parametrize(
    ("target", "registers", "threads", "shared", "expected"),
    [
        ("sm_90a", 128, 256, 98304, (2, 16, "registers")),
        ("sm_90a", 255, 256, 147456, (1, 8, "registers")),
        ("sm_90a", 168, 288, 0, (1, 9, "registers")),  # 9 warps cost as much as 12
        ("sm_90a", 32, 128, 115000, (2, 8, "shared")),
        ("sm_89", 32, 1024, 0, (1, 32, "threads")),
        ("sm_120a", 16, 32, 0, (24, 24, "blocks")),
        ("sm_89", 32, 128, 110000, (0, 0, "shared")),
    ],
)
def test_occupancy(target, registers, threads, shared, expected):
    found = occupancy(TARGETS[target], registers, threads, shared)
    assert (found.blocks, found.warps, found.limited_by) == expected


def test_a_budget_of_spills():
    """What a schedule allows is not refused; one byte more is, with the kernel's name."""
    used = {"k": KernelResources(168, 100, 60, 0, 0), "other": KernelResources(32, 0, 0, 0, 0)}
    refuse_spills(used, {"k": 160})
    for most in ({"k": 159}, {"other": 400}, None):
        with pytest.raises(EmmyError, match=r"kernel 'k' spills registers \(100 bytes stored, 60 loaded per thread\)"):
            refuse_spills(used, most)
