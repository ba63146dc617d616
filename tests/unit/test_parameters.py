"""Wrong kinds of arguments from Python: one sentence that names the parameter, for each keyword of each public function."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import emmy
from emmy.errors import EmmyError
from emmy.schedules import SCHEDULE_FIELDS, Schedule

MATMUL = """func.func @mm(%a: tensor<16x16xf16>) -> tensor<16x16xf16> {
  %c = tensor_op.matmul %a, %a : (tensor<16x16xf16>, tensor<16x16xf16>) -> tensor<16x16xf16>
  func.return %c : tensor<16x16xf16>
}"""
WRONG: dict[str, list[object]] = {
    "source": [None, 3, b"x", [], MATMUL.encode()],
    "target": [3, [], b"sm_90a"],
    "accumulate": [3, {}, True],
    "schedule": [3, [], [("stages", 2)], "stages = 2", Schedule],
    "dump_ir": [3, True, []],
    "opt_level": ["3", 2.0, True, [], 7],
    "verify_each": ["yes", 1, []],
    "entry": [3, [], b"mm"],
    "variants": [None, "none of them", [3], 3, ["none of them"]],
}


def one_sentence(caught: pytest.ExceptionInfo[EmmyError]) -> str:
    message = caught.value.message
    assert message
    assert "\n" not in message
    assert "Traceback" not in message
    return message


def test_every_parameter_is_covered():
    assert set(WRONG) == set(inspect.signature(emmy.compile).parameters)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_compile(name: str, value: object):
    with pytest.raises(EmmyError) as caught:
        emmy.compile(**{"source": MATMUL, "target": "sm_90a"} | {name: value})
    if name not in ("opt_level", "variants"):
        assert name in one_sentence(caught)


@pytest.mark.parametrize("name", SCHEDULE_FIELDS)
@pytest.mark.parametrize("value", [None, "", "no such word", -1, 1 << 40, 1.5, True, [], [0, 0, 0], [1], {}])
def test_fields_of_a_schedule(name: str, value: object):
    """0 and "" do not silently mean the table's choice, and nothing reaches the text of a pass that is no value."""
    with pytest.raises(EmmyError) as caught:
        emmy.compile(MATMUL, "sm_90a", schedule={name: value})
    assert name in one_sentence(caught)


@pytest.mark.parametrize("name", ["stages", "raster", "fragments", "unroll", "producer_warps"])
def test_zero_is_not_the_tables_choice(name: str):
    with pytest.raises(EmmyError) as caught:
        emmy.compile(MATMUL, "sm_90a", schedule={name: 0})
    assert f"the schedule's {name} is from 1 to" in one_sentence(caught)


@pytest.mark.parametrize("name", ["no_such_field", 3, None, ()])
def test_a_field_that_no_schedule_has(name: object):
    with pytest.raises(EmmyError) as caught:
        emmy.compile(MATMUL, "sm_90a", schedule={name: 1})
    assert "a schedule has no field" in one_sentence(caught)


def test_a_whole_schedule_is_taken():
    schedule = Schedule(block=(32, 32, 32), warps=(1, 1), stages=2)
    module = emmy.compile(MATMUL, "sm_90a", schedule=schedule)
    (kernel,) = module.portable_artefact.kernels.values()
    assert kernel["schedule"]["block"] == [32, 32, 32]


@pytest.mark.parametrize(
    "keywords", [{"device": value} for value in (None, 0, b"cuda", [], "gpu")] + [{"out": 3}, {"out": "x"}]
)
def test_calls(keywords: dict[str, object]):
    module = emmy.compile(MATMUL, "sm_90a")
    with pytest.raises(EmmyError) as caught:
        module.mm(np.zeros((16, 16), np.float16), **({"device": "emulator"} | keywords))
    one_sentence(caught)


@pytest.mark.parametrize("argument", [None, 3, "x", [[0.0]], object()])
def test_arguments(argument: object):
    with pytest.raises(EmmyError) as caught:
        emmy.compile(MATMUL, "sm_90a").mm(argument, device="emulator")
    one_sentence(caught)


@pytest.mark.parametrize("path", [None, 3, [], "/no/such/folder"])
def test_load(path: object):
    with pytest.raises(EmmyError) as caught:
        emmy.load(path)
    one_sentence(caught)


@pytest.mark.parametrize("size", ["1000", "?"])
def test_results_of_one_dimension(size: str):
    """They are refused with what would do."""
    tensor = f"tensor<{size}xf32>"
    head = f"func.func @f(%a: {tensor}) -> {tensor}"
    text = f"{head} {{\n  %c = tensor_op.map neg %a : ({tensor}) -> {tensor}\n  func.return %c : {tensor}\n}}"
    with pytest.raises(EmmyError) as caught:
        emmy.compile(text, "sm_90a")
    assert "make a tensor<Nxf16> of one dimension a tensor<1xNxf16>" in one_sentence(caught)
    module = emmy.compile(text.replace("tensor<", "tensor<1x"), "sm_90a")
    a = np.linspace(-1, 1, 1000, dtype=np.float32).reshape(1, 1000)
    np.testing.assert_array_equal(module.f(a, device="emulator"), -a)
