"""The geometry of bars, sparklines and charts, as text for SVG attributes.

The colors are in the stylesheet, and the words are in the templates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from ..operators.formats import local
from ..operators.history import Counters, add

#: Max steps on the time axis.
MAX_STEPS = 60
#: Size of a chart in SVG units. The page stretches the chart.
WIDTH, HEIGHT = 600, 100
SPARK_WIDTH, SPARK_HEIGHT = 120, 24

#: A step on the time axis: the start of a period, and the events in the period.
Step = tuple[datetime, Counters]


class Bar(NamedTuple):
    """A bar that shows the permits in use. `width`: 0 to 100, as text. `level`: calm, busy, or
    full."""

    width: str
    level: str


class ChartColumn(NamedTuple):
    """A rectangle of a chart."""

    x: str
    y: str
    width: str
    height: str


class Chart(NamedTuple):
    """Two plots on the same time axis. The upper plot shows the permits in use, the lower plot
    shows waits and rejections.

    `use`: the outline of the upper plot. `limit_y`: the y coordinate of the limit in the upper
    plot, or None without a limit. `use_top`, `count_top`: the highest values of the two plots.
    `ticks`: times on the axis. `eventful`: the steps in which permits were in use, or requests
    waited or were rejected.
    """

    use: str
    use_top: int
    limit_y: str | None
    waits: list[ChartColumn]
    rejections: list[ChartColumn]
    count_top: int
    ticks: list[datetime]
    eventful: list[Step]


def number(value: float) -> str:
    """Return a number as text for SVG. The text does not depend on the visitor's language."""
    return f"{value:.1f}".removesuffix(".0")


def bar(in_use: int, limit: int | None, waiting: int = 0, permanent: bool = False) -> Bar:
    """Return a bar with a max width of 100. Without a limit, the width is 100 if there is a holder.

    The level is "full" if all permits are in use and there are waiters. It is "busy" if at least
    three quarters of the permits are in use. A lock is "busy" only if its lease is `permanent`,
    because it is normal that a lock is held.
    """
    part = min(1.0, in_use / limit) if limit else float(in_use > 0)
    if part >= 1 and waiting:
        return Bar("100", "full")
    busy = part >= 0.75 and ((limit or 1) > 1 or permanent)
    return Bar(number(part * 100), "busy" if busy else "calm")


def chart(rows: Sequence[Step], limit: int | None) -> Chart:
    """Return a chart of the history `rows`. Combine adjacent rows into at most MAX_STEPS steps."""
    length = max(1, -(-len(rows) // MAX_STEPS))
    groups = [rows[i : i + length] for i in range(0, len(rows), length)]
    steps = [(local(group[0][0]), add(counters for _, counters in group)) for group in groups]
    found = [counters for _, counters in steps]
    use_top = max([1, limit or 1, *(step.peak for step in found)])
    count_top = max([1, *(step.waited + step.rejected_or_timed_out for step in found)])
    waits = [(0, step.waited) for step in found]
    rejections = [(step.waited, step.rejected_or_timed_out) for step in found]
    return Chart(
        use=_stairs([step.peak for step in found], use_top),
        use_top=use_top,
        limit_y=number(HEIGHT - limit / use_top * HEIGHT) if limit else None,
        waits=[*_columns(waits, count_top)],
        rejections=[*_columns(rejections, count_top)],
        count_top=count_top,
        ticks=[start for start, _ in steps[:: max(1, len(steps) // 4)]],
        eventful=[
            (start, step)
            for start, step in steps
            if step.peak or step.waited or step.rejected_or_timed_out
        ],
    )


def _columns(pairs: Sequence[tuple[int, int]], top: int) -> Iterator[ChartColumn]:
    """Yield a column for each step with a value other than 0. `pairs`: for each step, the value at
    the bottom of the column, and the step's value. `top`: the value at the top of the plot."""
    across = WIDTH / max(1, len(pairs))
    for position, (below, value) in enumerate(pairs):
        if value:
            y, height = HEIGHT - (below + value) / top * HEIGHT, value / top * HEIGHT
            yield ChartColumn(*map(number, (position * across, y, across * 0.8, height)))


def _stairs(values: Sequence[int], top: int) -> str:
    """Return the SVG path of the area below a stepped line. `values`: the value of each step.
    `top`: the value at the top of the plot."""
    across = WIDTH / max(1, len(values))
    path = [f"M0 {HEIGHT}"]
    for position, value in enumerate(values, 1):
        path.append(f"V{number(HEIGHT - value / top * HEIGHT)}H{number(position * across)}")
    return "".join([*path, f"V{HEIGHT}Z"])


def sparkline(peaks: Sequence[int], top: int) -> str:
    """Return the points of an SVG polyline through `peaks`, or "" if all peaks are 0."""
    if not any(peaks):
        return ""
    across, highest = SPARK_WIDTH / max(1, len(peaks) - 1), max(top, *peaks)
    height = SPARK_HEIGHT - 4
    return " ".join(
        f"{number(i * across)},{number(2 + height - peak / highest * height)}"
        for i, peak in enumerate(peaks)
    )
