"""Arguments in any layout, in the benchmark runner: how they are drawn, placed, checked; and `?` timed against static sizes."""

from __future__ import annotations

import copy
import ctypes
import dataclasses
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from two_kernels import smoke_artefact

from emmy.artefact import Artefact, row_major
from emmy.bench import one, prepare, suites
from emmy.bench.against import against_lines, against_table
from emmy.bench.cases import Case, infos_of, load_cases, numpy_inputs
from emmy.bench.layouts import Layout, layout_of, place
from emmy.bench.ragged import CASES, KINDS, MOST, draw_layout, ragged_cases
from emmy.errors import EmmyError

PADDED = {"a": {"strides": [72, 1], "offset": 3}, "b": {"strides": [1, 81], "offset": 0}}
CASE = Case("smoke", "naive_matmul", {"a": [96, 64], "b": [80, 64]}, name="padded", layouts=PADDED)
TINY = {"block": (32, 32, 16), "warps": (1, 1)}


@pytest.mark.parametrize(
    ("shape", "strides", "span", "stored"),
    [
        ((3, 4), (10, 2), 27, (3, 4)),
        ((3, 4), (0, 1), 4, (1, 4)),
        ((2, 3, 4), (100, 1, 7), 124, (2, 3, 4)),
        ((3, 0), (4, 1), 0, (3, 0)),
        ((0, 3), (0, 1), 0, (0, 3)),
    ],
)
def test_layouts(shape, strides, span, stored):
    layout = Layout(strides, 5)
    assert (layout.span(shape), layout.stored_shape(shape)) == (span, stored)


def test_placed_data_ends_with_the_last_element():
    data = np.arange(1, 13, dtype=np.float16).reshape(1, 3, 4)
    memory, view = place(data, (2, 3, 4), Layout((0, 5, 1), 7))
    assert memory.size == 2 * (7 + 2 * 5 + 4)
    assert np.array_equal(view, np.broadcast_to(data, (2, 3, 4)))
    assert np.isnan(memory.view(np.float16)).sum() == 7 + 2


@pytest.mark.parametrize("fields", [{"strides": [1]}, {"strides": [-1, 1]}, {"strides": [4, 1], "offset": -1}])
def test_what_is_no_layout(fields):
    with pytest.raises(EmmyError, match="the layout of 'a' needs 2 strides and an offset, none of them negative"):
        layout_of({"a": fields}, "a", (2, 4))


@pytest.mark.parametrize("shape", [[5, 7], [3, 5, 7], [1, 1]])
def test_drawn_layouts_name_each_element_once(shape):
    """Apart from strides of 0; and they hold what they promise about alignment."""
    words = Counter()
    for seed in range(300):
        word, layout = draw_layout(random.Random(seed), list(shape))
        how, granule = word.split("/")
        words[how] += 1
        stored = layout.stored_shape(shape)
        places = np.zeros(stored, np.int64)
        for axis, stride in enumerate(layout.strides):
            places += np.expand_dims(np.arange(stored[axis]) * stride, tuple(a for a in range(len(shape)) if a != axis))
        assert np.unique(places).size == places.size, layout
        assert layout.offset % int(granule) == 0
        if how in ("rows", "transposed"):
            assert all(stride % int(granule) == 0 or stride == 1 for stride in layout.strides)
    assert set(words) == {"rows", "transposed", "steps", "repeated"}


def test_the_suite_covers_what_it_says():
    cases = list(ragged_cases())
    drawn = [case for kind, case in cases if case.name.startswith("ragged")]
    assert len(drawn) == CASES
    assert len({case.name for case in drawn}) == CASES
    assert {kind.artefact for kind, _ in cases} == {kind.artefact for kind in KINDS}
    assert max(size for case in drawn for shape in case.shapes.values() for size in shape) <= MOST
    assert {case.data for case in drawn} == {"normal", "integers"}
    small = [case for _, case in cases if case.name.startswith("small")]
    assert [case.name for case in small] == [f"small {number} f16" for number in range(10)]
    assert all(case.layouts is not None for case in small)
    huge = {case.name.split()[1]: case for _, case in cases if case.name.startswith("huge")}
    rows, columns = huge["result"].shapes["a"][0], huge["result"].shapes["b"][0]
    assert rows * columns > 2**31
    assert np.prod(huge["operand"].shapes["a"], dtype=np.int64) > 2**31
    stretched = huge["stride"]
    assert layout_of(stretched.layouts, "a", stretched.shapes["a"]).span(stretched.shapes["a"]) > 2**31


def test_inputs_of_repeated_elements_are_what_is_stored():
    entry = smoke_artefact("sm_90a").entry("naive_matmul")
    case = dataclasses.replace(CASE, layouts={"a": {"strides": [0, 1]}})
    a, b = numpy_inputs(case, entry)
    assert (a.shape, b.shape) == ((1, 64), (80, 64))
    assert [info.strides for info in infos_of(case, entry)] == [(0, 1), row_major((80, 64))]


class StandIn:
    """Computes on the CPU what the kernel would, then lets `fault(args, result)` spoil something."""

    def __init__(self, fault=None):
        entry = copy.deepcopy(smoke_artefact("sm_90a").entry("naive_matmul"))
        for argument in entry["arguments"]:  # this one takes any strides
            argument["strides"] = [["stride", argument["name"], axis] for axis in (0, 1)]
        self.artefact, self.fault = Artefact("sm_90a", {}, {"naive_matmul": entry}), fault

    def run(self, entry, args, out):
        a, b = (tensor.double() for tensor in args)
        assert bool(a.isfinite().all() & b.isfinite().all())
        out[0].copy_(a @ b.mT)
        if self.fault:
            self.fault(*args, out[0])


def spoil(which, offset):
    def fault(*tensors):
        tensor = tensors[which]
        tensor.as_strided((1,), (1,), tensor.storage_offset() + offset).fill_(0)

    return fault


@pytest.mark.parametrize(
    ("fault", "broken"),
    [
        (None, None),
        (spoil(0, 64), "a"),  # behind the first row
        (spoil(0, -1), "a"),  # before the first
        (spoil(1, 80), "b"),  # behind the first column
        (spoil(2, 96 * 80), "out0"),
    ],
)
@pytest.mark.parametrize("data", ["normal", "integers"])
def test_the_runner_sees_what_lies_between_elements(tmp_path, fault, broken, data):
    pytest.importorskip("torch", reason="needs PyTorch: not run")
    from emmy.bench.measure import Measurement

    measurement = Measurement(StandIn(fault), dataclasses.replace(CASE, data=data), tmp_path, "cpu")
    measurement.synchronize = lambda: None
    assert [tensor.stride() for tensor in measurement.args] == [(72, 1), (1, 81)]
    assert measurement.inputs[0].first % 8 == 3
    found = measurement.check()
    assert found["ok"] == (broken is None)
    if broken is not None:
        assert found["message"] == f"bytes outside {broken} were overwritten"


def test_repeated_elements_are_written_once(tmp_path):
    pytest.importorskip("torch", reason="needs PyTorch: not run")
    from emmy.bench.measure import Measurement

    case = dataclasses.replace(CASE, layouts={"a": {"strides": [0, 1]}, "b": {"strides": [1, 0], "offset": 1}})
    measurement = Measurement(StandIn(), case, tmp_path, "cpu")
    measurement.synchronize = lambda: None
    assert measurement.args[0].stride() == (0, 1)
    assert measurement.check()["ok"]


class HostDriver:
    """The driver's memory calls, on memory of this process."""

    def __init__(self):
        self.allocated = {}

    def cuMemAlloc(self, size):
        buffer = (ctypes.c_uint8 * size)()
        self.allocated[ctypes.addressof(buffer)] = buffer
        return ctypes.addressof(buffer)

    def cuMemFree(self, address):
        del self.allocated[address]

    def cuMemcpyHtoD(self, to, of, size):
        assert size <= len(self.allocated[to])
        ctypes.memmove(to, of, size)

    def cuMemcpyDtoH(self, to, of, size):
        ctypes.memmove(to, of, size)

    def cuCtxSynchronize(self):
        pass


class HostRuntime:
    def __init__(self):
        self.driver = HostDriver()

    def enter(self):
        return None

    def leave(self, previous):
        assert previous is None


class HostModule:
    """Multiplies what `DeviceView`s describe, then writes `spoil` bytes behind the first row of the first argument."""

    def __init__(self, spoil=0):
        self.artefact, self.runtime, self.spoil = StandIn().artefact, HostRuntime(), spoil

    def run(self, entry, args, out):
        a, b, c = (self.array(view.__cuda_array_interface__) for view in (*args, out))
        c[...] = a.astype(np.float64) @ b.astype(np.float64).T
        ctypes.memset(a.__array_interface__["data"][0] + 2 * a.shape[1], 0, self.spoil)

    @staticmethod
    def array(interface):
        first = (ctypes.c_uint8 * 2).from_address(interface["data"][0])
        element = np.frombuffer(first, interface["typestr"])
        return np.lib.stride_tricks.as_strided(element, interface["shape"], interface["strides"])


def test_one_case_in_exact_allocations(monkeypatch):
    monkeypatch.setattr(one, "call", lambda what, function, *args: function(*args))
    case = dataclasses.replace(CASE, data="integers")
    module = HostModule()
    inputs, result = one.run_views(module, case)
    assert module.runtime.driver.allocated == {}
    assert [array.strides for array in inputs] == [(144, 2), (2, 162)]
    assert np.array_equal(result, inputs[0].astype(np.float64) @ inputs[1].astype(np.float64).T)
    with pytest.raises(EmmyError, match="case 'padded' changed its arguments' memory"):
        one.run_views(HostModule(spoil=2), case)


def case_record(shape, variant, us, static, ratio):
    peers = {"cublas": {"us": us * ratio, "ratio": ratio}, "static": {"us": static, "ratio": static / us}}
    return {"name": f"{shape} f16 {variant}", "variant": variant, "ok": True, "us": us, "ratio": ratio, "peers": peers}


def test_the_table_of_dynamic_against_static():
    cases = [
        case_record("8x8x8", "dynamic", 100.0, 99.0, 0.7),
        case_record("8x8x8", "same_schedule", 100.0, 100.0, 0.7),
        case_record("9x9x9", "dynamic", 50.0, 48.0, 0.6),
    ]
    lines = against_table(cases).splitlines()
    assert lines[2] == "| 8x8x8 f16 | 99.0 | 100.0 | 0.990 | 0.700 | 100.0 | 1.000 | 0.700 |"
    assert lines[3] == "| 9x9x9 f16 | 48.0 | 50.0 | 0.960 | 0.600 | - | - | - |"
    assert lines[4] == "| geometric mean |  |  | 0.975 | 0.648 |  | - | - |"
    assert against_lines(cases)[0] == "dynamic: static / it 0.975 (geometric mean of 2), least 0.960"
    assert against_table([{**cases[0], "peers": {}}]) == ""


def test_the_dynamic_suite_names_what_it_is_timed_against(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(suites, "SIX", ((32, 48, 32),))
    directory = tmp_path / "out"
    directory.mkdir()
    cases = prepare.build(directory, "sm_90a", ["dynamic"], {"": {}})
    assert cases == load_cases(directory)
    assert [(case.name, case.artefact, case.against, case.variant) for case in cases] == [
        ("32x48x32 f16 dynamic", "dynamic", "32x48x32_f16", "dynamic"),
        ("32x48x32 f16 same_schedule", "32x48x32_f16_dynamic", "32x48x32_f16", "same_schedule"),
    ]
    static, same = (Artefact.load(directory / name) for name in ("32x48x32_f16", "32x48x32_f16_dynamic"))
    assert static.entry("matmul")["arguments"][0]["shape"] == [32, 32]
    assert same.entry("matmul")["arguments"][0]["shape"] == [["dim", "a", 0], ["dim", "a", 1]]
    preferred = [artefact.entry("matmul")["launches"][0]["kernel"] for artefact in (static, same)]
    assert static.kernels[preferred[0]]["schedule"] == same.kernels[preferred[1]]["schedule"]
