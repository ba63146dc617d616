"""Every field of a schedule changes what some program becomes, or is refused where it is stated, in one sentence."""

from __future__ import annotations

import functools
from typing import Any

import pytest

import emmy
from emmy.chained_schedules import CHAINED_ROWS
from emmy.errors import EmmyError
from emmy.schedule_meaning import ABOUT, ABOUT_HYBRID, problem_with_meaning
from emmy.schedule_table import TABLES
from emmy.schedules import SCHEDULE_FIELDS, Schedule
from emmy.tools import cli

MATRIX, HEADS = "tensor<264x264xf16>", "tensor<1x2x128x64xf16>"
ONE = f"""func.func @f(%a: {MATRIX}, %b: {MATRIX}) -> {MATRIX} {{
  %c = tensor_op.matmul %a, %b transpose_b PIN : ({MATRIX}, {MATRIX}) -> {MATRIX}
  func.return %c : {MATRIX}
}}
"""
TWO = f"""func.func @f(%q: {HEADS}, %k: {HEADS}, %v: {HEADS}) -> {HEADS} {{
  %o = tensor_op.attention %q, %k, %v scale 0.125 causal PIN : ({HEADS}, {HEADS}, {HEADS}) -> {HEADS}
  func.return %o : {HEADS}
}}
"""
ALIKE = TWO.replace("%v: ", "%unused: ").replace("%k, %v", "%k, %k")
"""Keys are values."""

NONE = f"""func.func @f(%a: {MATRIX}) -> {MATRIX} {{
  %c = tensor_op.map relu %a PIN : ({MATRIX}) -> {MATRIX}
  func.return %c : {MATRIX}
}}
"""

APART, HALVES, THREADS = {"roles": "specialized"}, {"warps": (4, 1)}, {"transport": "cp_async"}
Sample = tuple[dict[str, Any], Any]
"""Other fields, and a value of the field which says something beside them."""

BOTH: dict[str, Sample] = {
    "stages": ({}, 4),
    "transport": ({}, "cp_async"),
    "roles": ({}, "specialized"),
    "producer_warps": (APART, 1),
    "producer_regs": (APART, 40),
    "consumer_regs": (APART, 160),
    "persistent": ({}, 1),
    "raster": ({}, 2),
    "fragments": ({}, 1),
    "evict": ({}, "both"),
    "epilogue": ({}, "direct"),
    "delay": ({}, 2),
    "batches": (THREADS, 2),
    "unroll": ({}, 2),
    "promote": ({}, 16),
    "promotion": ({}, "convert"),
    "partials": ({}, "steps"),
    "ahead": ({"opt_level": 1}, 2),
    "min_ctas": ({}, 2),
    "store_columns": (HALVES, 32),
}
SAMPLES: dict[int, dict[str, Sample]] = {
    1: {
        **BOTH,
        "block": ({}, (64, 64, 32)),
        "warps": ({}, (4, 1)),
        "atom": ({"block": (64, 64, 64), **HALVES}, "wgmma"),
        "prefetch": ({}, 0),
        "consumers": ({**APART, "persistent": 1}, "pingpong"),
        "carry": ({"atom": "wgmma", "block": (64, 64, 64), **APART, **HALVES}, 1),
        "split_k": (HALVES, 2),
        "share": (APART, "b"),
    },
    2: {
        **BOTH,
        "block": ({}, (64, 32, 64)),
        "warps": ({}, (2, 1)),
        "atom": ({"block": (64, 64, 64), **HALVES, "stages": 2}, "wgmma"),
        "prefetch": ({}, 1),
        "splits": ({}, 2),
        "hold": ({}, 1),
        "sites": ({}, "first"),
        "order": ({}, "light"),
        "masks": (APART, "guard"),
        "stagger": ({}, 1),
        "lazy": ({}, 8),
        "overlap": (APART, 1),
        "turns": ({**APART, **HALVES, "stages": 2}, 1),
        "exponentials": ({}, "exp"),
        "polynomial": ({}, 4),
        "repeat": ({"warps": (2, 2), "block": (64, 64, 64)}, 1),
        "reuse": ({}, 1),
        "seldom": ({"lazy": 8}, 1),
        "late_stages": ({}, 1),
    },
}
BASE: dict[int, dict[str, Any]] = {
    1: {
        "block": (64, 64, 64),
        "warps": (2, 2),
        "stages": 3,
        "atom": "m16n8k16",
        "roles": "unified",
        "delay": 0,
        "prefetch": 1,
    },
    2: {
        "block": (64, 64, 64),
        "warps": (4, 1),
        "stages": 2,
        "atom": "m16n8k16",
        "roles": "unified",
        "masks": "loops",
        "lazy": 0,
    },
}
OF_PTXAS = ("opt_level", "spills")
OF_TEXT = ("sites",)
"""About loop bodies that wait for several rings: one product has them in written text of level 2 only."""


@functools.cache
def kernels(text: str, accumulate: str | None, fields: tuple[tuple[str, Any], ...]) -> str:
    """PTX, and the launches."""
    asked = {} if accumulate is None else {"accumulate": accumulate}
    artefact = emmy.compile(
        text.replace("PIN", ""), "sm_90a", schedule=dict(fields), verify_each=False, **asked
    ).portable_artefact
    return "".join(image.ptx or "" for image in artefact.images.values()) + str(artefact.entries)


def sample(name: str) -> Sample:
    """Of a field of any kind of kernel."""
    return next((samples[name] for samples in SAMPLES.values() if name in samples), ({}, 2))


def pin(name: str) -> str:
    """The field, and those beside which it is legal, as an attribute."""
    beside, value = sample(name)
    spelled = {
        k: f"[{', '.join(map(str, v))}]" if isinstance(v, tuple) else v for k, v in {**beside, name: value}.items()
    }
    return f"{{emmy.schedule = #tile.schedule<{', '.join(f'{k} = {v}' for k, v in spelled.items())}>}}"


SAID = [(n, name) for n in (1, 2) for name in SCHEDULE_FIELDS if name in SAMPLES[n]]


@pytest.mark.parametrize(("products", "name"), SAID)
def test_a_field_that_says_something_changes_the_kernel(products: int, name: str):
    beside, value = SAMPLES[products][name]
    accumulate = "hybrid" if name in ABOUT_HYBRID else None
    text = {1: ONE, 2: ALIKE if name == "reuse" else TWO}[products]
    fields = {**BASE[products], **beside}
    assert problem_with_meaning(Schedule(**{name: value}), products) is None
    before, after = (
        kernels(text, accumulate, tuple(sorted(some.items()))) for some in (fields, {**fields, name: value})
    )
    assert before != after


def test_all_fields_are_known():
    for products, samples in SAMPLES.items():
        refused = {name for fields, _ in ABOUT[products] for name in fields}
        assert SCHEDULE_FIELDS.keys() <= {*samples, *refused, *OF_PTXAS, *OF_TEXT}
        assert not refused & samples.keys()


REFUSED = [(n, name) for n in (1, 2) for fields, _ in ABOUT[n] for name in fields]
REFUSED += [(n, name) for n in (1, 2) for name in ABOUT_HYBRID]


@pytest.mark.parametrize(("products", "name"), REFUSED)
def test_a_field_that_says_nothing_is_refused(products: int, name: str):
    """As an option and in the text, at the product."""
    beside, value = sample(name)
    text, names = {1: ONE, 2: TWO}[products], "|".join((name, *beside))
    for source, schedule in ((text.replace("PIN", ""), {name: value}), (text.replace("PIN", pin(name)), None)):
        with pytest.raises(EmmyError, match=rf"illegal schedule: ({names}) (= \w+ is about|belongs to) ") as found:
            emmy.compile(source, "sm_90a", schedule=schedule)
        assert (found.value.location.line, found.value.location.column) == (2, 3)


@pytest.mark.parametrize("name", SCHEDULE_FIELDS)
def test_kernels_without_a_product_have_no_schedule(name: str):
    value = sample(name)[1]
    with pytest.raises(
        EmmyError, match=f"illegal schedule: {name} = .* is for products, and this module has none"
    ) as found:
        emmy.compile(NONE.replace("PIN", ""), "sm_90a", schedule={name: value})
    assert found.value.location.line == 1
    with pytest.raises(EmmyError, match=r"emmy\.schedule is for products, and 'tensor_op\.map' is none") as found:
        emmy.compile(NONE.replace("PIN", pin(name)), "sm_90a")
    assert found.value.location.line == 2


def test_orders_are_for_tiles_whose_loops_differ():
    for fields in ({"order": "heavy"}, {"order": "light"}):
        with pytest.raises(EmmyError, match="is about tiles whose loops differ in length, and all of these are alike"):
            emmy.compile(TWO.replace(" causal PIN", ""), "sm_90a", schedule=fields)


def test_edited_text_of_level_2_is_refused_too():
    given = emmy.compile(ONE.replace("PIN", ""), "sm_90a", schedule=BASE[1]).ir("tile")
    edited = given.replace("schedule <", "schedule <lazy = 8, ")
    assert edited != given
    with pytest.raises(
        EmmyError, match="illegal schedule of kernel @f_kernel: lazy = 8 is about two products in a row"
    ):
        emmy.compile(edited, "sm_90a")


def test_the_tables_state_nothing_that_says_nothing():
    """What the compiler prints can be read again."""
    for tables in TABLES.values():
        for rows in tables.values():
            assert {problem_with_meaning(row.schedule, 1) for row in rows} <= {None}
    for rows in CHAINED_ROWS.values():
        assert {problem_with_meaning(row.schedule, 2, "f32", bool(row.ranged)) for row in rows} == {None}


def test_the_command_line_ends_with_1(tmp_path, capsys):
    file = tmp_path / "product.mlir"
    file.write_text(ONE.replace("PIN", ""))
    assert cli.main(["compile", str(file), "--target", "sm_90a", "--schedule", "turns = 1"]) == 1
    told = capsys.readouterr().err
    assert told.startswith(
        f"{file}:2:3: error: illegal schedule: turns = 1 is about two products in a row, and this is one"
    )
