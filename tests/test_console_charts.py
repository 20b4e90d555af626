"""The geometry of bars, sparklines and charts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from django_redis_sync.console import charts
from django_redis_sync.console.charts import Bar, Step
from django_redis_sync.operators.history import Counters
from tests.support import statuses as make
from tests.support.statuses import ago


@pytest.mark.parametrize(
    ("arguments", "bar"),
    [
        ((0, 4), Bar("0", "calm")),
        ((1, 3), Bar("33.3", "calm")),
        ((3, 4), Bar("75", "busy")),
        ((4, 4), Bar("100", "busy")),
        ((4, 4, 1), Bar("100", "full")),
        ((9, 4, 1), Bar("100", "full")),
        ((2, 4, 1), Bar("50", "calm")),
        ((1, 1), Bar("100", "calm")),
        ((1, 1, 1), Bar("100", "full")),
        ((1, 1, 0, True), Bar("100", "busy")),
        ((1, None), Bar("100", "calm")),
        ((0, None), Bar("0", "calm")),
    ],
)
def test_bar_is_full_only_with_waiters(arguments: Any, bar: Bar) -> None:
    assert bar == charts.bar(*arguments)


def test_step_has_the_highest_peak_and_the_sums_of_its_minutes() -> None:
    rows = [
        (make.AT + timedelta(minutes=n), Counters(peak=n % 7, waited=1, rejected=1, timed_out=1))
        for n in range(361)
    ]
    found = charts.steps(rows)
    assert 52 == len(found)  # of seven minutes each
    assert Step(rows[0][0], peak=6, waited=7, rejected_or_timed_out=14) == found[0]
    assert 60 == len(charts.steps(rows[:60]))
    assert () == charts.steps([])


@pytest.mark.parametrize(
    ("length", "ticks"),
    [(1, [0]), (3, [0, 1, 2]), (5, [0, 1, 2, 3, 4]), (60, [0, 15, 30, 45]), (0, [])],
)
def test_chart_has_up_to_five_ticks(length: int, ticks: list[int]) -> None:
    some = [Step(ago(60 * (length - n)), 1, 0, 0) for n in range(length)]
    assert [some[n].start for n in ticks] == [*charts.chart(some, None).ticks]


def test_chart_draws_the_limit_as_a_line_and_rejections_above_waits() -> None:
    found = charts.chart([Step(make.AT, 2, 3, 1), Step(make.AT, 8, 0, 0)], limit=4)
    assert (8, "50") == (found.use_top, found.limit_y)
    assert "M0 100V75H300V0H600V100Z" == found.use
    (waits,), (rejections,) = found.waits, found.rejections
    assert ("0", "25", "240", "75") == (waits.x, waits.y, waits.width, waits.height)
    assert ("0", "0", "240", "25") == (
        rejections.x,
        rejections.y,
        rejections.width,
        rejections.height,
    )
    assert charts.chart([], None).limit_y is None
    later = charts.chart([Step(make.AT), Step(make.AT), Step(make.AT, 0, 1, 1)], None)
    assert ["400"] * 2 == [later.waits[0].x, later.rejections[0].x]


@pytest.mark.parametrize("event", ["peak", "waited", "rejected_or_timed_out"])
def test_chart_table_has_the_steps_with_events(event: str) -> None:
    quiet, eventful = Step(ago(120)), Step(ago(60), **{event: 1})
    assert (eventful,) == charts.chart([quiet, eventful], 3).eventful


def test_sparkline_spans_the_full_width() -> None:
    assert "0,22 60,12 120,2" == charts.sparkline([0, 1, 2], 2)
    assert "0,12 120,22" == charts.sparkline([2, 0], 4)
    assert ("", "0,2") == (charts.sparkline([0, 0], 2), charts.sparkline([3], 1))
