"""Two hand-written kernels as artefacts, for tests of assembler, runtime and benchmark runner.

`vector_add` adds two f32 vectors; `naive_matmul` computes C = A B^T in f16 with f32 sums, one thread an element. Both
take every size at run time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from emmy.artefact import Artefact, EntrySpec, Image
from emmy.assemble import assemble, find_tool, resources
from emmy.targets import get_target

HEADER = """.version {version}
.target {target}
.address_size 64
"""

VECTOR_ADD = """.visible .entry vector_add(
  .param .u64 a,
  .param .u64 b,
  .param .u64 out,
  .param .u32 length
)
.maxntid 128, 1, 1
{
  .reg .pred %p<2>;
  .reg .b32 %r<6>;
  .reg .b64 %rd<8>;
  .reg .f32 %f<4>;
  ld.param.u64 %rd1, [a];
  ld.param.u64 %rd2, [b];
  ld.param.u64 %rd3, [out];
  ld.param.u32 %r1, [length];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %tid.x;
  shl.b32 %r4, %r2, 7;
  add.u32 %r5, %r4, %r3;
  setp.lt.u32 %p1, %r5, %r1;
  mul.wide.u32 %rd4, %r5, 4;
  add.u64 %rd5, %rd1, %rd4;
  add.u64 %rd6, %rd2, %rd4;
  add.u64 %rd7, %rd3, %rd4;
  @%p1 ld.global.f32 %f1, [%rd5];
  @%p1 ld.global.f32 %f2, [%rd6];
  @%p1 add.f32 %f3, %f1, %f2;
  @%p1 st.global.f32 [%rd7], %f3;
  ret;
}
"""

NAIVE_MATMUL = """.visible .entry naive_matmul(
  .param .u64 a,
  .param .u64 b,
  .param .u64 out,
  .param .u32 n,
  .param .u32 k
)
.maxntid 32, 1, 1
{
  .reg .pred %p<3>;
  .reg .b16 %h<4>;
  .reg .b32 %r<10>;
  .reg .b64 %rd<10>;
  .reg .f32 %f<4>;
  ld.param.u64 %rd1, [a];
  ld.param.u64 %rd2, [b];
  ld.param.u64 %rd3, [out];
  ld.param.u32 %r1, [n];
  ld.param.u32 %r2, [k];
  mov.u32 %r3, %ctaid.x;
  mov.u32 %r4, %tid.x;
  mov.u32 %r5, %ctaid.y;
  shl.b32 %r3, %r3, 5;
  add.u32 %r3, %r3, %r4;
  setp.lt.u32 %p1, %r3, %r1;
  selp.b32 %r4, %r3, 0, %p1;
  mul.lo.u32 %r6, %r5, %r2;
  mul.wide.u32 %rd4, %r6, 2;
  add.u64 %rd1, %rd1, %rd4;
  mul.lo.u32 %r7, %r4, %r2;
  mul.wide.u32 %rd5, %r7, 2;
  add.u64 %rd2, %rd2, %rd5;
  mov.f32 %f1, 0f00000000;
  mov.u32 %r8, 0;
NEXT:
  ld.global.b16 %h1, [%rd1];
  ld.global.b16 %h2, [%rd2];
  cvt.f32.f16 %f2, %h1;
  cvt.f32.f16 %f3, %h2;
  fma.rn.f32 %f1, %f2, %f3, %f1;
  add.u64 %rd1, %rd1, 2;
  add.u64 %rd2, %rd2, 2;
  add.u32 %r8, %r8, 1;
  setp.lt.u32 %p2, %r8, %r2;
  @%p2 bra NEXT;
  cvt.rn.f16.f32 %h3, %f1;
  mul.lo.u32 %r9, %r5, %r1;
  add.u32 %r9, %r9, %r3;
  mul.wide.u32 %rd6, %r9, 2;
  add.u64 %rd7, %rd3, %rd6;
  @%p1 st.global.b16 [%rd7], %h3;
  ret;
}
"""

LENGTH, M, K, N = ["dim", "a", 0], ["dim", "a", 0], ["dim", "a", 1], ["dim", "b", 0]

ENTRIES: dict[str, EntrySpec] = {
    "vector_add": {
        "arguments": [
            {"name": "a", "dtype": "f32", "shape": [LENGTH], "strides": [1], "align": 4},
            {"name": "b", "dtype": "f32", "shape": [LENGTH], "strides": [1], "align": 4},
        ],
        "results": [{"name": "out0", "dtype": "f32", "shape": [LENGTH]}],
        "temporaries": [],
        "checks": [{"value": LENGTH, "multiple_of": 4, "message": "the length of 'a' must be a multiple of 4"}],
        "launches": [
            {
                "image": "smoke",
                "kernel": "vector_add",
                "grid": [["ceildiv", LENGTH, 128], 1, 1],
                "block": [128, 1, 1],
                "shared_bytes": 0,
                "params": [{"pointer": "a"}, {"pointer": "b"}, {"pointer": "out0"}, {"u32": LENGTH}],
            }
        ],
        "work": {"kind": "add", "flops": LENGTH},
    },
    "naive_matmul": {
        "arguments": [
            {"name": "a", "dtype": "f16", "shape": [M, K], "strides": [K, 1], "align": 2},
            {"name": "b", "dtype": "f16", "shape": [N, K], "strides": [K, 1], "align": 2},
        ],
        "results": [{"name": "out0", "dtype": "f16", "shape": [M, N]}],
        "temporaries": [],
        "checks": [],
        "launches": [
            {
                "image": "smoke",
                "kernel": "naive_matmul",
                "grid": [["ceildiv", N, 32], M, 1],
                "block": [32, 1, 1],
                "shared_bytes": 0,
                "params": [{"pointer": "a"}, {"pointer": "b"}, {"pointer": "out0"}, {"u32": N}, {"u32": K}],
            }
        ],
        "work": {
            "kind": "matmul",
            "m": M,
            "n": N,
            "k": K,
            "batch": 1,
            "transpose_a": False,
            "transpose_b": True,
            "flops": ["mul", 2, M, N, K],
        },
    },
}

CASES: list[dict[str, Any]] = [
    {"name": "add", "entry": "vector_add", "shapes": {"a": [1 << 20], "b": [1 << 20]}},
    {"name": "matmul 256", "entry": "naive_matmul", "shapes": {"a": [256, 256], "b": [256, 256]}, "suite": "six"},
    {
        "name": "matmul 100x200x300 integers",
        "entry": "naive_matmul",
        "shapes": {"a": [100, 300], "b": [200, 300]},
        "data": "integers",
        "time": False,
    },
]


def smoke_ptx(target: str) -> str:
    """Both kernels as one PTX module for `target`."""
    return HEADER.format(version=get_target(target).ptx_version, target=target) + VECTOR_ADD + NAIVE_MATMUL


def smoke_artefact(target: str) -> Artefact:
    """Both kernels as an artefact, with a cubin if there is an assembler."""
    ptx = smoke_ptx(target)
    if find_tool("ptxas") is None:
        return Artefact(target, {"smoke": Image(ptx)}, ENTRIES)
    assembled = assemble(ptx, target)
    return Artefact(target, {"smoke": Image(ptx, assembled.cubin)}, ENTRIES, resources(assembled))


def save_cases(directory: Path, target: str) -> None:
    """What `emmy.bench.run` takes: the artefact, and `cases.json`."""
    smoke_artefact(target).save(directory / "smoke")
    cases = [{"artefact": "smoke", **case} for case in CASES]
    (directory / "cases.json").write_text(json.dumps(cases, indent=1) + "\n")
