"""Schedules of which only some fields are stated: what is tried, and what is given where nothing fits."""

from __future__ import annotations

from dataclasses import replace

from emmy.schedule_fitting import fitted
from emmy.schedules import Schedule


def test_stated_stages_are_tried_once():
    """They replace those of every row, so a range of them is not walked: it took a minute to refuse 100 stages."""
    tried: list[Schedule] = []

    def asked(schedule: Schedule) -> Schedule:
        tried.append(schedule)
        return replace(schedule, stages=100)

    found = fitted([replace(Schedule(), stages=100)], asked, lambda one: "it never fits")
    assert found.problem() == "stages is from 1 to 16, got 100"
    assert len(tried) <= 4 * len({(one.block, one.warps, one.roles) for one in tried})


def test_stages_that_are_not_stated_shrink_until_they_fit():
    found = fitted([replace(Schedule(), stages=6)], lambda one: one, lambda one: "too many" if one.stages > 2 else None)
    assert found == replace(Schedule(), stages=2)
