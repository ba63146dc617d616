"""Host functions as launch metadata: expressions, buffers, parameters, checks."""

from __future__ import annotations

from typing import Any

import pytest

import emmy
from emmy.artefact import ArrayInfo, bind
from emmy.errors import EmmyError
from emmy.ir import parse_module, verify_module
from emmy.launch_expressions import add, multiply
from emmy.launch_facts import Facts, KernelFacts, kernel_facts, level1_facts
from emmy.launch_plan import plan_entries

KERNEL = """ptx.kernel @k({args}) threads 256 min_ctas 1 shared_bytes 1024 params [{params}] {{
}}
"""

DYNAMIC = """func.func @mm(%a: tensor<?x?xf16>, %b: tensor<256x?xf16>) -> tensor<?x256xf32> {
  %M = tile.dim %a, 0 : tensor<?x?xf16>
  %c = tile.alloc [%M] : tensor<?x256xf32>
  %c128 = arith.constant 128 : index
  %t = arith.ceildivui %M, %c128 : index
  %two = arith.constant 2 : index
  %g = arith.muli %t, %two : index
  tile.launch @k[%g] (%a, %b, %c) : tensor<?x?xf16>, tensor<256x?xf16>, tensor<?x256xf32>
  func.return %c : tensor<?x256xf32>
}
"""


def kernel(*params: str) -> str:
    types = {"pointer": "i64", "dim": "i32", "stride": "i64"}
    args = ", ".join(f"%p{i}: {types[p.split()[0]]}" for i, p in enumerate(params))
    return KERNEL.format(args=args, params=", ".join(f'"{p}"' for p in params))


def plan(text: str, **options: Any) -> Any:
    module = parse_module(text, "t.mlir")
    verify_module(module)
    return plan_entries(module, {"k": "image", "k2": "image"}, **options)


def test_expressions_are_folded():
    m = ["dim", "a", 0]
    assert add(1, 2) == 3
    assert add(1, m, 2) == ["add", m, 3]
    assert add(m, 0) == m
    assert multiply(2, multiply(3, m)) == ["mul", 6, m]
    assert multiply(1, m) == m
    assert multiply(0, m) == 0
    assert multiply() == 1


def test_a_dynamic_entry():
    entry = plan(DYNAMIC + kernel("pointer 0", "dim 0 0", "dim 0 1", "pointer 1", "pointer 2", "stride 2 0"))["mm"]
    assert [a["name"] for a in entry["arguments"]] == ["a", "b"]
    assert entry["arguments"][0]["shape"] == [["dim", "a", 0], ["dim", "a", 1]]
    assert entry["results"] == [{"name": "c", "dtype": "f32", "shape": [["dim", "a", 0], 256], "align": 16}]
    assert entry["temporaries"] == []
    (launch,) = entry["launches"]
    assert launch["grid"] == [["mul", 2, ["ceildiv", ["dim", "a", 0], 128]], 1, 1]
    assert launch["block"] == [256, 1, 1]
    assert launch["shared_bytes"] == 1024
    assert launch["params"] == [
        {"pointer": "a"},
        {"u32": ["dim", "a", 0]},
        {"u32": ["dim", "a", 1]},
        {"pointer": "b"},
        {"pointer": "c"},
        {"u64": ["stride", "c", 0]},
    ]
    call = bind(entry, [ArrayInfo("f16", (200, 64)), ArrayInfo("f16", (256, 64))])
    assert call.results[0].shape == (200, 256)
    assert call.launches[0].grid == (4, 1, 1)
    assert call.launches[0].params == (
        ("pointer", "a"),
        ("u32", 200),
        ("u32", 64),
        ("pointer", "b"),
        ("pointer", "c"),
        ("u64", 256),
    )


def test_an_unreturned_allocation_is_a_temporary():
    text = """func.func @two(%a: tensor<64x64xf16>) -> tensor<64x64xf16> {
  %one = arith.constant 1 : index
  %x = tile.alloc [] : tensor<64x64xf32>
  %y = tile.alloc [] : tensor<64x64xf16>
  tile.launch @k[%one] (%a, %x) : tensor<64x64xf16>, tensor<64x64xf32>
  tile.launch @k2[%one] (%x, %y) : tensor<64x64xf32>, tensor<64x64xf16>
  func.return %y : tensor<64x64xf16>
}
"""
    second = kernel("pointer 0", "pointer 1").replace("@k", "@k2")
    entry = plan(text + kernel("pointer 0", "pointer 1") + second)["two"]
    assert [b["name"] for b in entry["temporaries"]] == ["x"]
    assert [b["name"] for b in entry["results"]] == ["y"]
    assert [launch["kernel"] for launch in entry["launches"]] == ["k", "k2"]


def test_names_are_distinct():
    text = """func.func @f(%0: tensor<4x4xf16>, %1: tensor<4x4xf16>) -> (tensor<4x4xf16>, tensor<4x4xf16>) {
  %one = arith.constant 1 : index
  %2 = tile.alloc [] : tensor<4x4xf16>
  %3 = tile.alloc [] : tensor<4x4xf16>
  tile.launch @k[%one] (%0, %1, %2, %3) : tensor<4x4xf16>, tensor<4x4xf16>, tensor<4x4xf16>, tensor<4x4xf16>
  func.return %3, %2 : tensor<4x4xf16>, tensor<4x4xf16>
}
"""
    entry = plan(text + kernel("pointer 0", "pointer 1", "pointer 2", "pointer 3"))["f"]
    assert [a["name"] for a in entry["arguments"]] == ["arg0", "arg1"]
    assert [r["name"] for r in entry["results"]] == ["out_1", "out"]
    assert entry["launches"][0]["params"] == [{"pointer": name} for name in ("arg0", "arg1", "out", "out_1")]


def test_wide_copies_want_aligned_bases_and_whole_rows():
    facts = {"k": KernelFacts((16, 2, 8), 3)}
    entry = plan(DYNAMIC + kernel("pointer 0"), kernel_facts=facts)["mm"]
    (launch,) = entry["launches"]
    assert launch["wants"] == {"a": {"align": 16, "rows": 16}, "b": {"align": 2}, "c": {"align": 8}}
    with pytest.raises(EmmyError, match="dimension 1 of 'a' must be a multiple of 8"):
        bind(entry, [ArrayInfo("f16", (200, 63)), ArrayInfo("f16", (256, 63))])
    with pytest.raises(EmmyError, match="multiple of 16 bytes"):
        bind(entry, [ArrayInfo("f16", (200, 64), address=4104), ArrayInfo("f16", (256, 64))])


def returning(values: str, types: str) -> str:
    """DYNAMIC with another return."""
    signature = DYNAMIC.replace("-> tensor<?x256xf32> {", f"-> ({types}) {{")
    return signature.replace("func.return %c : tensor<?x256xf32>", f"func.return {values} : {types}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (DYNAMIC.replace("@k[", "@other["), "no kernel @other"),
        (returning("%a", "tensor<?x?xf16>"), "returns its argument 'a'"),
        (returning("%c, %c", "tensor<?x256xf32>, tensor<?x256xf32>"), "returns 'c' twice"),
        (DYNAMIC.replace("tile.launch", "%z = arith.constant 0.0 : f32\n  tile.launch"), "cannot stand in a host function"),
        (DYNAMIC.replace("xf32", "xf64"), "tensors hold f16"),
        ("func.func @f(%n: index) {\n  func.return\n}\n", "takes and gives tensors"),
    ],
)  # fmt: skip
def test_host_functions_that_cannot_be_expressed(text: str, words: str):
    with pytest.raises(EmmyError, match=words) as caught:
        plan(text + kernel("pointer 0"))
    assert caught.value.location is not None


def test_a_parameter_that_the_launch_does_not_pass():
    with pytest.raises(EmmyError, match="parameter 'pointer 5'"):
        plan(DYNAMIC + kernel("pointer 5"))
    with pytest.raises(EmmyError, match="parameter 'dim 0 2'"):
        plan(DYNAMIC + kernel("dim 0 2"))


# ---- what level 1 and level 3 know -----------------------------------------------------------------------------------


def facts_of(text: str) -> Facts:
    module = parse_module(text, "t.mlir")
    verify_module(module)
    (facts,) = level1_facts(module).values()
    return facts


def test_contracted_sizes_must_agree():
    facts = facts_of("""func.func @mm(%a: tensor<5x?x?xf16>, %b: tensor<5x64x?xf16>) -> tensor<5x?x64xf16> {
  %c = tensor_op.matmul %a, %b transpose_b : (tensor<5x?x?xf16>, tensor<5x64x?xf16>) -> tensor<5x?x64xf16>
  func.return %c : tensor<5x?x64xf16>
}""")
    (check,) = facts.checks
    assert check["value"] == ["dim", "a", 2]
    assert check.get("equals") == ["dim", "b", 2]
    assert "dimension 2 of 'a' and dimension 2 of 'b'" in check["message"]
    assert facts.work == {
        "kind": "matmul",
        "m": ["dim", "a", 1],
        "n": 64,
        "k": ["dim", "a", 2],
        "batch": 5,
        "transpose_a": False,
        "transpose_b": True,
        "flops": ["mul", 640, ["dim", "a", 1], ["dim", "a", 2]],
    }


def test_a_static_size_binds_a_dynamic_one():
    facts = facts_of("""func.func @mm(%a: tensor<?x96xf16>, %b: tensor<?x64xf16>) -> tensor<?x64xf16> {
  %c = tensor_op.matmul %a, %b : (tensor<?x96xf16>, tensor<?x64xf16>) -> tensor<?x64xf16>
  %d = tensor_op.map relu %c : (tensor<?x64xf16>) -> tensor<?x64xf16>
  func.return %d : tensor<?x64xf16>
}""")
    (check,) = facts.checks
    assert (check["value"], check.get("equals")) == (["dim", "b", 0], 96)
    assert facts.work == {"kind": "composite", "flops": ["mul", 12288, ["dim", "a", 0]]}


def test_elementwise_sizes_must_agree_unless_they_broadcast():
    facts = facts_of("""func.func @f(%a: tensor<?x64xf32>, %b: tensor<?x64xf32>, %c: tensor<64xf32>) -> tensor<?x64xf32> {
  %d = tensor_op.map add %a, %c : (tensor<?x64xf32>, tensor<64xf32>) -> tensor<?x64xf32>
  %e = tensor_op.map add %d, %b : (tensor<?x64xf32>, tensor<?x64xf32>) -> tensor<?x64xf32>
  func.return %e : tensor<?x64xf32>
}""")
    (check,) = facts.checks
    assert {str(check["value"]), str(check.get("equals"))} == {"['dim', 'a', 0]", "['dim', 'b', 0]"}
    assert facts.work["flops"] == 0


def test_static_modules_need_no_checks():
    facts = facts_of("""func.func @mm(%a: tensor<64x96xf16>, %b: tensor<96x64xf16>) -> tensor<64x64xf16> {
  %c = tensor_op.matmul %a, %b : (tensor<64x96xf16>, tensor<96x64xf16>) -> tensor<64x64xf16>
  func.return %c : tensor<64x64xf16>
}""")
    assert facts.checks == []
    assert facts.work["flops"] == 2 * 64 * 96 * 64


def test_kernel_facts_are_the_widest_accesses():
    text = """tile.kernel @k(%a: !tile.view<64x64xf16>, %b: !tile.view<64x64xf16>, %c: !tile.view<64x64xf32>)
    schedule <block = [64, 64, 64], warps = [1, 1], opt_level = 1> {
  async_copy.pipeline @p stages 1 {x = !tile.tile<64x64xf16>}
  %z = arith.constant 0 : index
  async_copy.role "main" warps 1 {
    %c0 = async_copy.begin_fill @p
    %s, %n = async_copy.slot @p[%c0] : !async_copy.cursor<@p, fill>
    async_copy.plain_copy %a[%z, %z] -> %s["x"] bytes 4 : !tile.view<64x64xf16> -> !async_copy.slot<@p, fill>
    async_copy.cp_async %a[%z, %z] -> %s["x"] bytes 8 : !tile.view<64x64xf16> -> !async_copy.slot<@p, fill>
    %f = mma.fill 0.0 : f32 : !mma.fragment<64x64xf32, c, m16n8k16>
    mma.store_global %f -> %c[%z, %z] : !mma.fragment<64x64xf32, c, m16n8k16> -> !tile.view<64x64xf32>
  }
}"""
    module = parse_module(text, "t.mlir")
    verify_module(module)
    facts = kernel_facts(module)["k"]
    assert (facts.widths, facts.opt_level, facts.variant) == ((8, 2, 8), 1, "dense")
    assert [str(view) for view in facts.views[:2]] == ["!tile.view<64x64xf16>"] * 2


MAPPED = """ptx.kernel @k(%a: i64, %m: i64) threads 256 min_ctas 1 shared_bytes 1024 params ["pointer 0", "tensor_map 0"]
  tensor_maps [{view = VIEW : i64, box = array<i64: 128, 64>, swizzle = 128 : i64}] {
}
"""


def test_a_tensor_map_is_described_by_the_sizes_of_its_argument():
    entry = plan(DYNAMIC + MAPPED.replace("VIEW", "0"))["mm"]
    (launch,) = entry["launches"]
    m, k = ["dim", "a", 0], ["dim", "a", 1]
    wanted = {"of": "a", "dtype": "f16", "sizes": [m, k], "strides": [["mul", 2, k]], "box": [128, 64], "swizzle": 128}
    assert launch["params"] == [{"pointer": "a"}, {"tensor_map": wanted}]
    arrays = [ArrayInfo("f16", (300, 72)), ArrayInfo("f16", (256, 72))]
    (_, (kind, bound)) = bind(entry, arrays).launches[0].params
    assert (kind, bound.sizes, bound.strides, bound.empty) == ("tensor_map", (300, 72), (144,), False)


def test_a_result_has_a_tensor_map_too():
    entry = plan(DYNAMIC + MAPPED.replace("VIEW", "2"))["mm"]
    wanted = {"of": "c", "dtype": "f32", "sizes": [["dim", "a", 0], 256], "strides": [1024]}
    assert entry["launches"][0]["params"][1]["tensor_map"].items() >= wanted.items()


def test_a_tensor_map_of_nothing():
    with pytest.raises(EmmyError, match="the launch passes no tensor for the tensor map of argument 3"):
        plan(DYNAMIC + MAPPED.replace("VIEW", "3"))


def test_tma_wants_rows_of_16_bytes_of_every_argument():
    module = emmy.compile(
        "func.func @mm(%a: tensor<?x?xf16>, %b: tensor<64x?xf16>) -> tensor<?x64xf16> {\n"
        "  %c = tensor_op.matmul %a, %b transpose_b : (tensor<?x?xf16>, tensor<64x?xf16>) -> tensor<?x64xf16>\n"
        "  func.return %c : tensor<?x64xf16>\n}",
        "sm_90a",
        schedule={"transport": "tma"},
    )
    spec = module.portable_artefact.entry("mm")
    assert [spec["launches"][0]["wants"][name] for name in "ab"] == [{"align": 16, "rows": 16}] * 2
    with pytest.raises(EmmyError, match="dimension 1 of 'a' must be a multiple of 8"):
        bind(spec, [ArrayInfo("f16", (64, 36)), ArrayInfo("f16", (64, 36))])


PRODUCT = """func.func @m(%a: tensor<512x512xf16>, %b: tensor<512x512xf16>) -> tensor<512x512xf16> {
  %c = tensor_op.matmul %a, %b transpose_b : (tensor<512x512xf16>, tensor<512x512xf16>) -> tensor<512x512xf16>
  func.return %c : tensor<512x512xf16>
}
"""


@pytest.mark.parametrize(
    ("fields", "cluster", "persistent"),
    [
        ({"split_k": 2}, [2, 1, 1], False),
        ({"share": "b", "roles": "specialized", "persistent": 1, "block": [128, 128, 64]}, [2, 1, 1], True),
        ({"share": "b", "roles": "specialized", "persistent": 0, "block": [128, 128, 64]}, [2, 1, 1], False),
        ({"persistent": 1}, None, False),
    ],
)
def test_clusters_are_told_to_the_runtime(fields: dict[str, Any], cluster: list[int] | None, persistent: bool):
    """So that it can ask the device whether it holds one, and how many."""
    artefact = emmy.compile(PRODUCT, "sm_90a", schedule=fields, verify_each=False).portable_artefact
    (launch,) = artefact.entry("m")["launches"]
    assert (launch.get("cluster"), launch.get("persistent", False)) == (cluster, persistent)
    (bound,) = artefact.bind("m", [ArrayInfo("f16", (512, 512))] * 2).launches
    assert (list(bound.cluster), bound.persistent) == (cluster or [], persistent)


def test_kernels_that_a_device_cannot_hold_are_passed_over():
    """As `emmy.runtime` does: of a variant with clusters too, up to one without, which is compiled for that."""
    artefact = emmy.compile(PRODUCT, "sm_90a", schedule={"split_k": 2}, verify_each=False).portable_artefact
    unheld: dict[str, str] = {}
    while True:
        (bound,) = artefact.bind("m", [ArrayInfo("f16", (512, 512))] * 2, unheld=unheld).launches
        if not bound.cluster:
            break
        unheld[bound.kernel] = "no room for a cluster"
    assert bound.passed_over == (("m_kernel", "no room for a cluster"), ("m_kernel_rows16", "no room for a cluster"))
    assert bound.kernel == "m_kernel_rows8"
