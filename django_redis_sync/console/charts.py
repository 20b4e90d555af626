"""The geometry of bars, sparklines and charts, as text for SVG attributes.

The stylesheet has the colors, and the templates have the texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ..operators.history import Counters

#: Max steps on the time axis.
STEPS = 60
#: Size of a chart in units of its SVG; the page stretches it.
WIDTH, HEIGHT = 600, 100
SPARK_WIDTH, SPARK_HEIGHT = 120, 24


@dataclass(frozen=True, slots=True)
class Bar:
    """The bar of the permits in use. `width`: from 0 to 100. `level`: calm, busy, or full."""

    width: str
    level: str


@dataclass(frozen=True, slots=True)
class Column:
    """A rectangle of a chart."""

    x: str
    y: str
    width: str
    height: str


@dataclass(frozen=True, slots=True)
class Step:
    """The events from `start` to the next step."""

    start: datetime
    peak: int = 0
    waited: int = 0
    rejected_or_timed_out: int = 0


@dataclass(frozen=True, slots=True)
class Chart:
    """A plot of the use, and below it one of waits and rejections, on the same time axis.

    `limit_y`: the height of the limit in the upper plot, or None.
    """

    use: str
    use_top: int
    limit_y: str | None
    waits: tuple[Column, ...]
    rejections: tuple[Column, ...]
    count_top: int
    steps: tuple[Step, ...]
    ticks: tuple[datetime, ...]

    @property
    def eventful(self) -> tuple[Step, ...]:
        """The steps in which something happened."""
        return tuple(
            step for step in self.steps if step.peak or step.waited or step.rejected_or_timed_out
        )


def number(value: float) -> str:
    """Return a number for SVG, which must not depend on the language."""
    return f"{value:.1f}".removesuffix(".0")


def bar(in_use: int, limit: int | None, waiting: int = 0, permanent: bool = False) -> Bar:
    """Return a bar with a max width of 100. Without a limit, one holder makes it full.

    The level is "full" only if there are waiters, because it is normal that a lock is held. A lock
    that is held is "busy" if the lease is `permanent`.
    """
    share = min(1.0, in_use / limit) if limit else float(in_use > 0)
    if share >= 1 and waiting:
        return Bar("100", "full")
    busy = share >= 0.75 and ((limit or 1) > 1 or permanent)
    return Bar(number(share * 100), "busy" if busy else "calm")


def steps(rows: Sequence[tuple[datetime, Counters]]) -> tuple[Step, ...]:
    """Return the rows combined into at most STEPS steps."""
    length = max(1, -(-len(rows) // STEPS))
    return tuple(_step(rows[i : i + length]) for i in range(0, len(rows), length))


def _step(rows: Sequence[tuple[datetime, Counters]]) -> Step:
    counters = [row for _start, row in rows]
    return Step(
        rows[0][0],
        max(row.peak for row in counters),
        sum(row.waited for row in counters),
        sum(row.rejected_or_timed_out for row in counters),
    )


def chart(found: Sequence[Step], limit: int | None) -> Chart:
    """Return the chart of these steps."""
    use_top = max([1, limit or 1, *(step.peak for step in found)])
    count_top = max([1, *(step.waited + step.rejected_or_timed_out for step in found)])
    across = WIDTH / max(1, len(found))
    waits, rejections = [], []
    for position, step in enumerate(found):
        waited, rejected = (
            n / count_top * HEIGHT for n in (step.waited, step.rejected_or_timed_out)
        )
        x, width = number(position * across), number(across * 0.8)
        if waited:
            waits.append(Column(x, number(HEIGHT - waited), width, number(waited)))
        if rejected:
            y = number(HEIGHT - waited - rejected)
            rejections.append(Column(x, y, width, number(rejected)))
    return Chart(
        use=_stairs([step.peak for step in found], use_top),
        use_top=use_top,
        limit_y=number(HEIGHT - limit / use_top * HEIGHT) if limit else None,
        waits=tuple(waits),
        rejections=tuple(rejections),
        count_top=count_top,
        steps=tuple(found),
        ticks=tuple(found[i].start for i in range(0, len(found), max(1, len(found) // 4))),
    )


def _stairs(values: Sequence[int], top: int) -> str:
    """Return the outline of an area of steps, closed at the bottom."""
    across = WIDTH / max(1, len(values))
    path = [f"M0 {HEIGHT}"]
    for position, value in enumerate(values, 1):
        path.append(f"V{number(HEIGHT - value / top * HEIGHT)}H{number(position * across)}")
    return "".join([*path, f"V{HEIGHT}Z"])


def sparkline(peaks: Sequence[int], top: int) -> str:
    """Return the points of a polyline, or "" if nothing happened."""
    if not any(peaks):
        return ""
    across, highest = SPARK_WIDTH / max(1, len(peaks) - 1), max(top, *peaks)
    height = SPARK_HEIGHT - 4
    return " ".join(
        f"{number(i * across)},{number(2 + height - peak / highest * height)}"
        for i, peak in enumerate(peaks)
    )
