"""The target table: its limits, its flags, and the error for a name that is not in it."""

import pytest

from emmy.chained_schedules import CHAINED_ROWS
from emmy.errors import EmmyError
from emmy.pipelines import PIPELINES
from emmy.schedule_limits import AUTO_TRANSPORT
from emmy.schedule_table import SPILLS, TABLES
from emmy.targets import TARGETS, get_target


def test_four_targets_have_the_shared_memory_of_the_programming_guide():
    sizes = {name: target.shared_bytes_per_block for name, target in TARGETS.items()}
    assert sizes == {"sm_80": 166912, "sm_89": 101376, "sm_90a": 232448, "sm_120a": 101376}
    for target in TARGETS.values():
        assert target.shared_bytes_per_block == target.shared_bytes_per_sm - target.reserved_shared_bytes


def test_flags_follow_the_generation():
    assert [name for name, target in TARGETS.items() if target.wgmma] == ["sm_90a"]
    assert [name for name, target in TARGETS.items() if target.tma] == ["sm_90a", "sm_120a"]
    assert all(target.cp_async and target.ldmatrix for target in TARGETS.values())
    assert [target.architecture_specific for target in TARGETS.values()] == [False, False, True, True]


def test_accumulating_in_f16_doubles_the_rate_on_geforce_only():
    ratios = {name: target.tensor_rate_f16 // target.tensor_rate_f32 for name, target in TARGETS.items()}
    assert ratios == {"sm_80": 1, "sm_89": 2, "sm_90a": 1, "sm_120a": 2}


def test_every_table_has_a_row_for_every_target():
    tables = {"PIPELINES": PIPELINES, "AUTO_TRANSPORT": AUTO_TRANSPORT, "SPILLS": SPILLS, "CHAINED_ROWS": CHAINED_ROWS}
    for name, table in tables.items():
        assert set(table) == set(TARGETS), f"of {name}"
    for (eight_bits, partial_bits), table in TABLES.items():
        wanted = {name for name, target in TARGETS.items() if target.fp8 or not eight_bits}
        assert set(table) == wanted, f"of the schedules with {eight_bits=}, {partial_bits=}"


@pytest.mark.parametrize(("name", "message"), [("sm_90", "use 'sm_90a'"), ("sm_120", "use 'sm_120a'")])
def test_a_near_miss_names_the_target_to_use(name, message):
    with pytest.raises(EmmyError, match=message):
        get_target(name)


def test_an_unknown_target_lists_the_known_ones():
    with pytest.raises(EmmyError, match="unknown target 'sm_7'; the targets are sm_80, sm_89, sm_90a, sm_120a"):
        get_target("sm_7")
