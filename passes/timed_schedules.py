"""The attributes in which `assign-schedule` leaves its choice on a product, and `lower-tensor-op` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IndexType, IntegerAttr
from xdsl.ir import Attribute, Operation

from emmy.dialects.tile import ScheduleAttr
from emmy.errors import EmmyError
from emmy.locations import location_of
from emmy.schedule_choice import Timed

SCHEDULE, SCHEDULES = "emmy.schedule", "emmy.schedules"
"""A product's schedule; the schedules among which a call chooses by sizes that are `?` here."""


def timed_entry(one: Timed) -> DictionaryAttr:
    """One of `SCHEDULES`: `{schedule = #tile.schedule<..>, step_time = 1446206 : index}`."""
    return DictionaryAttr({"schedule": ScheduleAttr.get(one.schedule), "step_time": IntegerAttr(one.step, IndexType())})


def timed_schedules(op: Operation) -> tuple[Timed, ...]:
    """What a product's `SCHEDULES` say. `EmmyError` if they are something else."""
    found: list[Timed] = []
    listed = op.attributes.get(SCHEDULES, ArrayAttr([]))
    for entry in cast("ArrayAttr[Attribute]", listed) if isinstance(listed, ArrayAttr) else (listed,):
        fields: Mapping[str, Attribute] = entry.data if isinstance(entry, DictionaryAttr) else {}
        schedule, step = fields.get("schedule"), fields.get("step_time")
        if not isinstance(schedule, ScheduleAttr) or not isinstance(step, IntegerAttr) or step.value.data < 1:
            message = (
                f"{SCHEDULES} is a list of {{schedule = #tile.schedule<..>, step_time = number : index}}, got {entry}"
            )
            raise EmmyError(message, location_of(op))
        found.append(Timed(schedule.data, step.value.data))
    return tuple(found)
