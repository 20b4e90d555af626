"""A history as visits and spans of time, and the claims that it is compared with."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from .observer import Event

Span = tuple[float, float]

#: The order of two requests is known if they are at least this many seconds apart.
APART = 0.3
#: Max seconds until a free permit is granted, for locks that claim no time.
DELAY = 2.0
#: A grant passes through the process that releases, the server, and the waiter. If one of these
#: three could not run for a second, a delay of this many seconds has its cause in the load.
LOAD = 3


@dataclass(frozen=True)
class Claims:
    """The promises of a lock's own documentation. All times are in seconds."""

    limit: int = 1  # max holders at the same time
    #: A dead or stopped holder's permit is free after this time. 0 means at once, and None means
    #: that there is no promise.
    lease: float | None = None
    renewed: bool = False  # a running holder keeps its permit for longer than `lease`
    fair: bool = False  # permits are granted in the order of arrival
    fenced: bool = False  # the number of each grant is greater than all earlier numbers
    told: bool = False  # a holder can detect a loss before another holder gets in
    punctual: bool = False  # acquire returns at the end of its timeout, and not before
    #: One lost or doubled message, or a server with full memory, causes no error.
    retries: bool = False
    forks: bool = False  # a forked child neither releases nor keeps its parent's permit
    within: float | None = None  # max time until a waiter gets a free permit; None: no promise


@dataclass(eq=False)
class Visit:
    """An acquire and the events that followed. All times are those of the observer."""

    who: str
    pid: int
    name: str
    wait: float
    asked: float
    harmed: list[Span]  # times of harm to its messages, which may have hidden a grant
    entered: float = math.inf
    fence: float | None = None
    proven: float = -math.inf  # the last time at which it was certainly inside
    told: float = math.inf
    left: float = math.inf
    released: float = math.inf
    gave_up: float = math.inf
    failed: float = math.inf
    gone: float = math.inf
    error: str = ""
    probe: float = 0.0
    stops: list[Span] = field(default_factory=list)
    #: Times in which a holder made no check for long, perhaps because its process did not run.
    pauses: list[Span] = field(default_factory=list)

    @property
    def answered(self) -> float:
        """The time when acquire returned or the process ended."""
        return min(self.entered, self.gave_up, self.failed, self.gone)


@dataclass
class Course:
    """The visits that were read from a history, and the times of harm and of load."""

    claims: Claims
    end: float
    visits: list[Visit] = field(default_factory=list)
    #: Times of harm by the name of the harmed worker. The name "" means harm to all workers.
    harms: dict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))
    #: Times when a process could not run, by the process id. The id "" means the observer.
    busy: dict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))

    def load(self, start: float, end: float, *pids: int) -> float:
        """Return the seconds by which load may have delayed what happened in a span. If `pids` are
        given, only they and the observer count."""
        names = ["", *map(str, pids)] if pids else [*self.busy]
        when = (start, end)
        return LOAD * max((sum(overlap(when, one) for one in self.busy[name]) for name in names),
                          default=0.0)  # fmt: skip

    def harm_to(self, visit: Visit) -> list[Span]:
        """Return the times when harm was done to a visit or to all."""
        return [*self.harms[""], *visit.harmed]

    def in_harm(self, visit: Visit, start: float, end: float) -> bool:
        """Return True if harm was done in this time, or shortly before."""
        after = DELAY + (self.claims.lease or 0)
        return any_overlap(((a, b + after) for a, b in self.harm_to(visit)), start, end)


#: The attribute of a visit that an event sets. If an event is repeated, its first time counts.
_TIMES = {
    "enter": "entered", "lost": "told", "refused": "told", "closed": "gone", "died": "gone",
    "error": "failed", "leave": "left", "released": "released", "gave_up": "gave_up",
}  # fmt: skip


def read(history: Sequence[Event], claims: Claims = Claims(), kind: type[Course] = Course) -> Any:
    """Return a `kind` of Course: the visits of a history, and the times of harm and of load."""
    course = kind(claims, history[-1].at if history else 0.0)
    latest: dict[str, Visit] = {}
    for event in history:
        what, at = event.what, event.at
        if what == "ask":
            wait = math.inf if event.number is None else event.number
            harms = course.harms[event.who]
            latest[event.seat] = Visit(event.who, event.pid, event.name, wait, at, harms)
            course.visits.append(latest[event.seat])
        elif what == "busy":
            course.busy[event.name].append((at - (event.number or 0), at))
        elif what == "harm":
            course.harms[event.name].append((at, math.inf))
        elif what == "calm":
            _end_last(course.harms[event.name], at)
        elif event.seat in latest:
            _note(latest[event.seat], event, claims.told)
    return course


def _note(visit: Visit, event: Event, told: bool) -> None:
    """Apply an event to its visit. `told`: the claim `told` of the lock."""
    what, at = event.what, event.at
    if name := _TIMES.get(what):
        setattr(visit, name, min(getattr(visit, name), at))
    if what == "enter":
        visit.fence, visit.probe = event.number, at
    elif what == "probe":
        if at - visit.probe > APART:
            visit.pauses.append((visit.probe, at))
        visit.probe = at
    elif what == "error":
        visit.error = event.text
    elif what == "stopped":
        visit.stops.append((event.number or at, math.inf))
    elif what == "resumed" and visit.stops:
        _end_last(visit.stops, at)
    if what == "held":
        visit.proven = visit.probe if told else at
    elif what in ("enter", "leave") and not told:
        visit.proven = at


def _end_last(spans: list[Span], at: float) -> None:
    spans[-1] = (spans[-1][0], at)


# Intervals


def any_overlap(spans: Iterable[Span], start: float, end: float) -> bool:
    return any(a < end and start < b for a, b in spans)


def overlap(one: Span, other: Span) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))


def minus(span: Span, holes: Iterable[Span]) -> list[Span]:
    """Return the parts of a span outside the holes."""
    left = [span] if span[0] < span[1] else []
    for hole in holes:
        parts = [((a, min(b, hole[0])), (max(a, hole[1]), b)) for a, b in left]
        left = [part for pair in parts for part in pair if part[0] < part[1]]
    return left


def sweep(spans: list[tuple[float, float, Any]]) -> Iterator[tuple[float, float, list[Any]]]:
    """Yield the times between two neighboring ends of spans, each with the values of the spans
    that cover it, in the order of their starts."""
    spans = [one for one in spans if one[0] < one[1]]
    later = sorted(spans, key=lambda one: one[0], reverse=True)
    here: list[tuple[float, float, Any]] = []
    for now, after in pairwise(sorted({time for one in spans for time in one[:2]})):
        here = [one for one in here if one[1] > now]
        while later and later[-1][0] <= now:
            here.append(later.pop())
        yield now, after, [value for _, _, value in here]
