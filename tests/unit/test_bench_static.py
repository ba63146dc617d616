"""Main loops counted from SASS: the page of what is recorded, its arithmetic, and that the record is what the compiler gives."""

import json
from pathlib import Path

import pytest

from emmy.assemble import find_tool
from emmy.bench import static, static_attention
from emmy.bench.records import read_records
from emmy.bench.static_attention_page import attention_page, cycles, gains, hopper, mix, serial
from emmy.bench.static_page import (
    classify,
    issued,
    meets_budget,
    others,
    overhead,
    page,
    section,
    speed,
    tensor_cycles,
    useful,
)

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "docs" / "static.jsonl"
needs_tools = pytest.mark.skipif(
    find_tool("ptxas") is None or find_tool("nvdisasm") is None, reason="needs ptxas and nvdisasm: not run"
)


def record(policy, products, target="sm_89", transport="cp_async", **mix):
    hmma = sum(products.values())
    return {
        "target": target, "schedule": {"transport": transport}, "policy": policy, "products": products,
        "mix": {"HMMA": hmma, **mix}, "registers": 200, "spill_bytes": 0, "threads": 256, "shared_bytes": 98304,
        "blocks_per_sm": 1, "warps_per_sm": 8, "limited_by": "shared", "conflicts": {"operands": 0, "result": 3},
        "executed": {"mma": 2 * hmma, "ldmatrix": 5, "other": hmma},
    }  # fmt: skip


F32 = record("f32", {"HMMA.16816.F32": 64}, LDSM=16, LDGSTS=6, BAR=1, IADD3=8, NOP=4)
IDENTITY = record("hybrid, max_k = 64", {"HMMA.16816.F16": 128, "HMMA.1688.F32": 32}, LDSM=32)
CONVERT = record("hybrid, max_k = 64", {"HMMA.16816.F16": 128}, LDSM=32, HADD2=128, FADD=128, **{"@!PT LDS": 3})


def test_the_page_shows_what_is_recorded():
    assert (ROOT / "docs" / "static.md").read_text() == static.whole_page(read_records(RECORDED))


def test_instructions_by_kind():
    mix = {"HMMA": 9, "LDSM": 3, "UTMALDG": 2, "SYNCS": 1, "FHADD": 4, "NOP": 5, "@!UPT UIADD3": 6, "LDL": 7, "SHF": 8}
    found = classify(mix)
    assert dict(found) == {
        "LDSM": 3, "UTMALDG": 2, "sync": 1, "convert, add": 4, "fillers": 11, "stray": 7, "integer": 8
    }  # fmt: skip


def test_the_tensor_cycle_model():
    assert (tensor_cycles(F32), useful(F32)) == (32.0, 64)
    assert tensor_cycles(IDENTITY) == 16 + 16 / 4
    assert tensor_cycles(CONVERT) == 16.0
    assert speed(IDENTITY, F32) == 1.6
    assert speed(CONVERT, F32) == 2.0
    assert speed({**CONVERT, "target": "sm_90a"}, F32) is None
    assert issued(F32) == 99 / 64
    assert (others(F32, True), others(F32, False), overhead(F32)) == (35 / 64, 31 / 64, 30)
    slow = record("hybrid, max_k = 64", {"HMMA.16816.F16": 2}, IADD3=78)
    assert speed(slow, F32) == 32 / 40  # more instructions than tensor cycles


def test_8_bit_products_have_a_section_of_their_own():
    f32 = {**record("f32", {"QMMA.16832.F32.E4M3.E4M3": 128}, LDSM=32), "operands": "f8E4M3FN"}
    half = {**record("hybrid, max_k = 64, partial = f16", {"QMMA.16832.F16.E4M3.E4M3": 128}), "operands": "f8E4M3FN"}
    half["mix"] = {"QMMA": 128, "LDSM": 32, "HADD2": 256, "FADD": 256}
    assert (tensor_cycles(f32), tensor_cycles(half), speed(half, f32), others(half, True)) == (32, 16, 2, 4.25)
    text = page([F32, f32, half])
    assert "## sm_89\n" in text
    assert "## sm_89, 8-bit operands\n\n| loop | QMMA f32 | QMMA f16 | HMMA k8 f32 |" in text
    assert "5.25 instructions, 0 bytes of spills: 2.00 times as fast as f32 sums, by the model." in " ".join(
        text.split()
    )


def test_the_budget():
    assert meets_budget(IDENTITY)["ok"]
    assert meets_budget(CONVERT) == {"ok": True, "tensor_cycles": 16.0, "others": 291 / 128, "spill_bytes": 0}
    assert not meets_budget(F32)["ok"]
    assert not meets_budget({**CONVERT, "spill_bytes": 8})["ok"]
    assert not meets_budget(record("hybrid", {"HMMA.16816.F16": 128}, IADD3=385))["ok"]


def test_a_section_has_loops_resources_claims_and_refusals():
    tma = record("f32", {"HMMA.16816.F32": 64}, transport="tma", LDSM=16, UTMALDG=2, SYNCS=1)
    text = section("sm_89", [F32, CONVERT, tma, {**F32, "policy": "f16", "message": "no\nmore"}])
    assert "| cp_async; f32 | 128 | 0 | 0 | 32 | 12 | 0 | 2 | 0 | 0 | 16 | 8 |" in text
    assert (
        "| cp_async; hybrid 64 | 200 | 0 | 96 KiB | 1 x 8 warps (shared) | 0 / 3 | 2 / 64 | 16.0 | 2.25 / 2.27 | 3.27 | 2.00 |"
        in text
    )
    assert "promotes by converting and adding (`HADD2.F32` and `FADD`, two instructions a value)" in text
    assert "within budget" in text
    assert "* tma; f32: 6 instructions that are neither HMMA nor LDSM nor fillers" in text
    assert "0.20 of cp.async's 30; executed by a CTA: 64, 1.00 of 64." in " ".join(text.split())
    assert "* cp_async; f16 was not compiled: no\n" in text


@needs_tools
def test_what_cannot_be_compiled_is_recorded_with_the_reason():
    found = static.row("sm_89", {"transport": "tma"}, "f32")
    assert "tma" in found["message"].lower()
    assert "mix" not in found


@needs_tools
@pytest.mark.slow
def test_the_record_is_what_the_compiler_gives():
    recorded = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    assert list(static.rows()) == recorded, "run: python -m emmy.bench.static"


# ---- attention -------------------------------------------------------------------------------------------------------


def attention_record(variant, products, target="sm_120a", depth=64, **mix):
    return {
        "kind": static_attention.KIND, "target": target, "depth": depth, "variant": variant, "block": [128, 64],
        "products": products, "mix": {"HMMA": sum(products.values()), **mix}, "registers": 200, "spill_bytes": 0,
        "threads": 128, "shared_bytes": 49152, "blocks_per_sm": 2, "limited_by": "registers",
    }  # fmt: skip


LOOP = attention_record("tma", {"HMMA.16816.F32": 64}, LDSM=20, MUFU=34, FMUL=10, NOP=2, UTMALDG=1)
HALF = attention_record("tma, hybrid values", {"HMMA.16816.F32": 32, "HMMA.16816.F16": 32}, LDSM=20, MUFU=34, FHADD=32)


def test_the_model_of_attention_counts_pipes_and_slots():
    assert cycles(LOOP) == {"tensor": 4096, "special": 544, "shared": 640, "issue": 262}
    assert mix(LOOP)["MUFU"] == 68
    assert mix(LOOP)["rest"] == 4
    assert (mix(HALF)["HMMA f32"], mix(HALF)["convert, promote"]) == (64, 64)
    assert serial(LOOP) == 4096 + 544 + 262 - 128 - 68
    best, worst = gains(HALF, LOOP)
    assert best == 4096 / 3072
    assert worst == serial(LOOP) / serial(HALF)
    assert hopper(LOOP) == 1
    assert hopper(attention_record("x", {"HMMA.16816.F32": 128}, LDSM=80)) == 80 * 16 / (128 * 6.4)


def test_what_is_recorded_of_attention_keeps_the_promise():
    """Within 99 KiB and without spills at every head dimension, on both targets."""
    records = [record for record in read_records(RECORDED) if record["kind"] == static_attention.KIND]
    asked = {(t, d, v.name) for t, variants in static_attention.ROWS.items() for d in (64, 128, 256) for v in variants}
    assert {(r["target"], r["depth"], r["variant"]) for r in records} == asked
    assert all("message" not in r and r["spill_bytes"] == 0 and r["shared_bytes"] <= 99 * 1024 for r in records)


def test_the_part_on_attention_has_mixes_models_refusals_and_a_judgement():
    rows = [
        LOOP,
        *(
            {**LOOP, "variant": v}
            for v in (
                "cp_async",
                "tma, specialized",
                "tma, lazy",
                "tma, powers of e",
                "tma, polynomial 4",
                "tma, powers in f16",
            )
        ),
        HALF,
        {**HALF, "variant": "tma, both hybrid"},
    ]
    text = attention_page([F32 | {"kind": "static"}, *rows, {**LOOP, "variant": "other", "message": "no\nmore"}])
    assert "| d64 tma | 128 | 0 | 40 | 0 | 2 | 68 | 20 | 0 | 0 | 0 | 0 | 0 | 0 | 4 |" in text
    assert (
        "| d64 tma, hybrid values | 128x64 | 200 | 0 | 48 KiB | 2 x 4 warps (registers) | 3072 | 544 | 640 | 300 | 1.33 |"
        in text
    )
    assert "* d64 other was not compiled: no\n" in text
    assert "Hybrid sums of P*V give 1.27 to 1.33 of the speed" in " ".join(text.split())
    assert attention_page([F32 | {"kind": "static"}]) == ""


@needs_tools
@pytest.mark.parametrize("target", static_attention.ROWS)
def test_a_row_of_attention_is_what_the_compiler_gives(target):
    variant = static_attention.ROWS[target][0]
    found = static_attention.attention_row(target, 64, variant)
    assert found in [json.loads(line) for line in RECORDED.read_text().splitlines()], "run: python -m emmy.bench.static"


@needs_tools
def test_attention_that_cannot_be_compiled_is_recorded_with_the_reason():
    found = static_attention.attention_row("sm_89", 64, static_attention.TMA)
    assert "tma" in found["message"].lower()
