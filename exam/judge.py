"""The judge: says of a witness' history where it contradicts what a lock claims.

`judge(history, claims)` returns findings, the worst first. It is strict where the witness knows,
and wide where it can only guess:

- An *overlap* is proven. The intervals that the witness saw lie inside the true ones, a killed
  holder counts up to the last word that was heard from it, and a lock that tells of a loss counts
  up to the last moment at which it was asked and said that it was held. So no busy machine, and no
  message on its way, makes two out of one.
- *Waiting* can only be measured from outside, and grows with the machine's load. Its bounds are
  the claims', and are extended by all the time in which the witness itself got no turn.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from .witness import Event

#: Seconds by which two who ask must lie apart for their order to be known from outside.
APART = 0.3
#: Seconds between a grant and the news of it, at the most, when nothing came between.
SHORTLY = 0.5


@dataclass(frozen=True)
class Claims:
    """What a lock says of itself. Only this is held against it; times are in seconds.

    limit        permits inside at once
    lease        within this time after a holder died, or was stopped, its place is free again; 0:
                 at once; None: never
    renewed      a holder that goes on keeps it for longer than `lease`
    fair         whoever asked first gets it first
    fenced       each grant has a number above all earlier ones
    told         a holder is told of a loss, before another one gets in
    punctual     acquire comes back when its time to wait is up, whatever happens
    retries      one message that is lost or doubled, and a server that has no memory left for
                 others, are no reason for an error
    forks        a forked child neither gives back nor keeps what its parent holds
    within       a free place is taken by whoever waits within this time
    dead_waiter  the same after a waiter died; None: `lease`
    """

    limit: int = 1
    lease: float | None = None
    renewed: bool = False
    fair: bool = False
    fenced: bool = False
    told: bool = False
    punctual: bool = False
    retries: bool = False
    forks: bool = False
    within: float = 2.0
    dead_waiter: float | None = None


#: What can be found, the worst first.
TWO_INSIDE, NEVER_TOLD, TOLD_LATE = "two inside", "never told", "told late"
NEVER_FREE, NOT_GIVEN, ORDER = "never free again", "free but nobody got it", "order broken"
NO_REASON, REFUSED = "lost without reason", "refused though free"
FENCE, LATE, ERROR = "fence went back", "past its lease", "error"
HUNG, EARLY = "came back late", "gave up early"
KINDS = (
    TWO_INSIDE, NEVER_TOLD, TOLD_LATE, NEVER_FREE, NOT_GIVEN, ORDER, FENCE, NO_REASON, REFUSED,
    ERROR, HUNG, EARLY, LATE,
)  # fmt: skip


@dataclass(frozen=True, order=True)
class Finding:
    """One thing seen. `against`: it contradicts the claims; else it is only worth telling."""

    kind: str
    at: float
    seconds: float
    text: str
    against: bool = True

    def __str__(self) -> str:
        took = f" for {self.seconds:.2f} s" if self.seconds else ""
        return f"{self.kind}{took}, at {self.at:.2f} s: {self.text}"


@dataclass
class Visit:
    """One acquire, and what came of it; times are the witness'."""

    who: str
    seat: int
    pid: int
    name: str
    permits: int
    wait: float
    asked: float
    entered: float = math.inf
    fence: float | None = None
    #: Up to when it is known to have been inside, by its last word or by what the lock said.
    proven: float = -math.inf
    told: float = math.inf
    left: float = math.inf
    back: float = math.inf
    gave_up: float = math.inf
    failed: float = math.inf
    gone: float = math.inf
    error: str = ""
    probes: list[float] = field(default_factory=list)
    stops: list[tuple[float, float]] = field(default_factory=list)
    #: When harm was done to its messages: it may have been granted and not know it.
    mute: list[tuple[float, float]] = field(default_factory=list)

    @property
    def answered(self) -> float:
        """When acquire came back, or its process ended."""
        return min(self.entered, self.gave_up, self.failed, self.gone)

    @property
    def over(self) -> float:
        return min(self.told, self.left, self.back, self.gone)

    def __str__(self) -> str:
        return self.who


@dataclass
class Course:
    """A history, read."""

    visits: list[Visit]
    troubles: list[tuple[float, float]]  # that all had
    own_troubles: dict[str, list[tuple[float, float]]]  # that one worker had
    busy: list[tuple[float, float]]
    end: float

    def busy_in(self, start: float, end: float) -> float:
        return overlap([(start, end)], self.busy)


# Reading


def read(history: Sequence[Event], claims: Claims = Claims()) -> Course:
    """The visits of a history, and what else went on."""
    course = Course([], [], defaultdict(list), [], history[-1].at if history else 0.0)
    latest: dict[int, Visit] = {}
    for event in history:
        if event.what == "ask":
            latest[event.seat] = _asked(event)
            course.visits.append(latest[event.seat])
        elif event.what == "busy":
            course.busy.append((event.at - (event.number or 0), event.at))
        elif event.what in ("trouble", "peace"):
            troubles = course.own_troubles[event.name] if event.name else course.troubles
            if event.what == "trouble":
                troubles.append((event.at, math.inf))
            else:
                troubles[-1] = (troubles[-1][0], event.at)
        elif visit := latest.get(event.seat):
            _STEPS[event.what](visit, event, claims)
    for visit in course.visits:
        visit.mute = course.own_troubles.get(visit.who, [])
    return course


def _asked(event: Event) -> Visit:
    wait = float(event.text) if event.text else math.inf
    permits = int(event.number or 1)
    return Visit(event.who, event.seat, event.pid, event.name, permits, wait, event.at)


def _entered(visit: Visit, event: Event, claims: Claims) -> None:
    visit.entered, visit.fence = event.at, event.number
    if not claims.told:
        visit.proven = event.at


def _probe(visit: Visit, event: Event, claims: Claims) -> None:
    visit.probes.append(event.at)


def _still(visit: Visit, event: Event, claims: Claims) -> None:
    visit.proven = visit.probes[-1] if claims.told else event.at


def _left(visit: Visit, event: Event, claims: Claims) -> None:
    visit.left = event.at
    if not claims.told:
        visit.proven = event.at


def _told(visit: Visit, event: Event, claims: Claims) -> None:
    visit.told = min(visit.told, event.at)


def _back(visit: Visit, event: Event, claims: Claims) -> None:
    visit.back = event.at


def _gave_up(visit: Visit, event: Event, claims: Claims) -> None:
    visit.gave_up = event.at


def _failed(visit: Visit, event: Event, claims: Claims) -> None:
    visit.failed, visit.error = min(visit.failed, event.at), event.text


def _gone(visit: Visit, event: Event, claims: Claims) -> None:
    visit.gone = min(visit.gone, event.at)


def _stopped(visit: Visit, event: Event, claims: Claims) -> None:
    visit.stops.append((event.number or event.at, math.inf))


def _resumed(visit: Visit, event: Event, claims: Claims) -> None:
    if visit.stops:
        visit.stops[-1] = (visit.stops[-1][0], event.at)


_STEPS: dict[str, Callable[[Visit, Event, Claims], None]] = {
    "enter": _entered, "probe": _probe, "still": _still, "leave": _left, "lost": _told,
    "refused": _told, "back": _back, "gave_up": _gave_up, "error": _failed, "closed": _gone,
    "died": _gone, "stopped": _stopped, "resumed": _resumed,
}  # fmt: skip


# Judging


def judge(
    history: Sequence[Event],
    claims: Claims = Claims(),
    *,
    lossy: bool = False,
    keeps: bool = False,
    retried: bool = False,
) -> list[Finding]:
    """Every finding of a history, of all its names, the worst first.

    `lossy`: the lock's memory was taken from it on purpose, so that two may be inside, until the
    earlier one is told. `keeps`: what was done is no reason to lose a lease, `retried`: nor for an
    error of acquire, where a lock claims to retry.
    """
    course = read(history, claims)
    found: list[Finding] = []
    for name in dict.fromkeys(visit.name for visit in course.visits):
        visits = [visit for visit in course.visits if visit.name == name]
        for rule in RULES:
            found += rule(visits, claims, course, lossy)
        found += _losses(visits, claims, course, keeps)
        found += _errors(visits, claims, course, keeps, retried)
    return sorted(found, key=lambda one: (not one.against, KINDS.index(one.kind), one.at))


def gap(history: Sequence[Event], limit: int = 1) -> float:
    """The longest time in which somebody waited and nobody was inside any more: since the holder
    left, died or was stopped, whatever was done to anybody."""
    calm = [event for event in history if event.what not in ("trouble", "peace")]
    claims = Claims(limit, lease=1e-6, renewed=True, dead_waiter=0, within=0)
    found = judge(calm, claims)
    return max((one.seconds for one in found if one.kind in (NOT_GIVEN, NEVER_FREE)), default=0.0)


def against(found: Iterable[Finding]) -> list[Finding]:
    """Those that contradict the claims."""
    return [one for one in found if one.against]


# More inside than the limit


def rightful(visit: Visit, claims: Claims, course: Course) -> float:
    """Until when it may believe to be inside without being told of anything."""
    if claims.told or not claims.lease:
        return math.inf
    if not claims.renewed:
        return _granted(visit, course) + claims.lease
    return _renewed_until(visit, claims, course)


def _granted(visit: Visit, course: Course) -> float:
    """When its lease began, at the earliest: shortly before it heard so, unless it was held up."""
    when = (visit.asked, visit.entered)
    if _any_overlap([*visit.stops, *visit.mute, *course.troubles], *when):
        return visit.asked
    return max(visit.asked, visit.entered - SHORTLY - course.busy_in(*when))


def _renewed_until(visit: Visit, claims: Claims, course: Course) -> float:
    """Nobody renews for a process that does not run, or reaches nobody."""
    still = (claims.lease or math.inf) / 3
    spans = [*visit.stops, *visit.mute, *course.busy, *course.troubles]
    pauses = [start for start, end in spans if end - start > still]
    return min((start for start in pauses if start > visit.asked), default=math.inf)


def inside(visit: Visit) -> list[tuple[float, float]]:
    """When it is proven to have been inside and going."""
    return minus((visit.entered, visit.proven), visit.stops)


def _crowds(visits: list[Visit], claims: Claims, course: Course, lossy: bool) -> list[Finding]:
    found: dict[tuple[int, int], Finding] = {}
    here: list[tuple[float, float, Visit]] = []
    for start, end, visit in _spans(visits):
        here = [one for one in here if one[1] > start]
        others = [one for one in here if one[2] is not visit]
        here.append((start, end, visit))
        if sum(one[2].permits for one in here) <= claims.limit or not others:
            continue
        first = min((one for one in others), key=lambda one: one[2].entered)
        until = min(first[1], end)
        if until <= start:
            continue
        one, two = sorted((first[2], visit), key=lambda one: one.entered)
        key = (id(one), id(two))
        at, took = (found[key].at, found[key].seconds) if key in found else (start, 0.0)
        found[key] = _crowd(one, two, at, took + until - start, claims, course, lossy)
    return list(found.values())


def _spans(visits: list[Visit]) -> list[tuple[float, float, Visit]]:
    spans = [(start, end, visit) for visit in visits for start, end in inside(visit)]
    return sorted(spans, key=lambda one: one[:2])


def _crowd(
    first: Visit, second: Visit, at: float, took: float, claims: Claims, course: Course, lossy: bool
) -> Finding:
    said = [f"{one} {_telling(one, second.entered)}" for one in (first, second)]
    text = f"{said[0]}, {said[1]}"
    if at > min(rightful(one, claims, course) for one in (first, second)):
        # One stayed for longer than it was given, and a lock that can't tell is not to blame.
        harm = claims.fenced and not _sees(first, second)
        return Finding(LATE, at, took, text, harm)
    if not lossy:
        kind = TOLD_LATE if first.told < math.inf and claims.told else TWO_INSIDE
        return Finding(kind, at, took, text)
    if not claims.told:
        return Finding(TWO_INSIDE, at, took, text, against=False)
    late = took > (claims.lease or 0) + claims.within + course.busy_in(at, at + took)
    return Finding(NEVER_TOLD if first.told == math.inf else TOLD_LATE, at, took, text, late)


def _sees(first: Visit, second: Visit) -> bool:
    """Whether storage can tell a late write of the first from one of the second."""
    return first.fence is not None and second.fence is not None and first.fence < second.fence


def _telling(visit: Visit, since: float) -> str:
    if visit.told == math.inf:
        return "was never told"
    return f"was told {visit.told - since:+.2f} s after"


# Fences


def _fences(visits: list[Visit], claims: Claims, course: Course, lossy: bool) -> list[Finding]:
    if not claims.fenced:
        return []
    found, top = [], -math.inf
    granted = sorted((v for v in visits if v.entered < math.inf), key=lambda v: v.asked)
    arrived = sorted(granted, key=lambda v: v.entered)
    index = 0
    for visit in granted:  # above all that had come in before it asked
        while index < len(arrived) and arrived[index].entered < visit.asked:
            top, index = max(top, _number(arrived[index])), index + 1
        if visit.fence is None or visit.fence <= top:
            text = f"{visit} got {_short(visit.fence)} after {_short(top)}"
            found.append(Finding(FENCE, visit.entered, 0.0, text))
    return found


def _number(visit: Visit) -> float:
    return -math.inf if visit.fence is None else visit.fence


def _short(fence: float | None) -> str:
    return "none" if fence is None else f"{fence:.0f}" if math.isfinite(fence) else "none"


# Order


def _orders(visits: list[Visit], claims: Claims, course: Course, lossy: bool) -> list[Finding]:
    """Who asked clearly later, and got in clearly earlier, than one who waited all the time."""
    if not claims.fair:
        return []
    found = []
    patient = [one for one in visits if one.answered - one.asked > 2 * APART]
    for late in visits:
        early = next((one for one in patient if _passed(one, late, course)), None)
        if early is not None:
            text = f"{late} asked {late.asked - early.asked:.2f} s after {early}, and passed it"
            found.append(Finding(ORDER, late.entered, 0.0, text))
    return found


def _passed(early: Visit, late: Visit, course: Course) -> bool:
    apart = APART + course.busy_in(early.asked, late.entered)
    return (
        early.permits <= late.permits
        and early.asked + apart < late.asked
        and late.entered + apart < early.answered
        and not _any_overlap([*early.stops, *early.mute], early.asked, late.entered)
        and not _any_overlap(course.troubles, early.asked, late.entered)
    )


# Free, and nobody got it


def _idle(visits: list[Visit], claims: Claims, course: Course, lossy: bool) -> list[Finding]:
    """Stretches in which there was room for somebody who waited, and nobody came in."""
    changes: dict[float, int] = defaultdict(int)
    for visit in visits:
        for since, until in _occupied(visit, claims):
            if since < until:
                changes[since] -= visit.permits
                changes[until] += visit.permits
    spans = sorted(
        ((*span, visit) for visit in visits for span in _waiting(visit, course)),
        key=lambda one: one[:2],
    )
    entries = {visit.entered for visit in visits if visit.entered < math.inf}
    times = {time for a, b, _ in spans for time in (a, b)} | set(changes) | entries
    times |= {time for pause in course.troubles for time in pause} | {course.end}
    found: list[Finding] = []
    queue: list[tuple[float, float, Visit]] = []
    free, start, whom = claims.limit, -1.0, ""
    for now, after in pairwise(sorted(time for time in times if time <= course.end)):
        free += changes[now]
        while spans and spans[0][0] <= now:
            queue.append(spans.pop(0))
        queue = [one for one in queue if one[1] >= after]
        calm = not _any_overlap(course.troubles, now, after)
        waiter = next((v for _, _, v in queue if v.permits <= free), None) if calm else None
        if now in entries or not waiter:
            found += _stretch(start, now, whom, entries, claims, course)
            start = -1.0
        if waiter and start < 0:
            start, whom = now, str(waiter)
    return found + _stretch(start, course.end, whom, entries, claims, course)


def _stretch(
    start: float, end: float, whom: str, entries: set[float], claims: Claims, course: Course
) -> list[Finding]:
    took = end - start
    if start < 0 or took <= claims.within + course.busy_in(start, end):
        return []
    again = any(entered > start for entered in entries)
    return [Finding(NOT_GIVEN if again else NEVER_FREE, start, took, f"{whom} waited")]


def _occupied(visit: Visit, claims: Claims) -> list[tuple[float, float]]:
    """From when to when its permits may be taken, at the most; also by nobody."""
    lease = math.inf if claims.lease is None else claims.lease
    dead = lease if claims.dead_waiter is None else claims.dead_waiter
    # Granted while it was stopped: it has it for a lease, or until it goes on.
    passed = dead if lease else math.inf
    waited = [(a, min(b, a + passed)) for a, b in visit.stops if a < visit.answered]
    if _any_overlap(visit.mute, visit.asked, visit.answered):
        waited.append((visit.asked, min(visit.answered, visit.mute[-1][1]) + lease))
    if visit.entered == math.inf:
        if visit.failed < visit.gave_up:  # it may have been granted all the same
            waited.append((visit.asked, visit.failed + lease))
        elif visit.gone < visit.gave_up:
            waited.append((visit.gone, visit.gone + dead))
        return waited
    ends = [min(visit.back, visit.told), min(visit.gone, visit.failed) + lease]
    if lease:
        ends += [start + lease for start, end in visit.stops if end - start > lease]
    if lease and not claims.renewed:
        ends.append(visit.entered + lease)
    return [*waited, (visit.entered, min(ends))]


def _waiting(visit: Visit, course: Course) -> list[tuple[float, float]]:
    return minus((visit.asked, min(visit.answered, course.end)), [*visit.stops, *visit.mute])


# Answers late and early, errors, and losses that were none


def _answers(visits: list[Visit], claims: Claims, course: Course, lossy: bool) -> list[Finding]:
    found = []
    for visit in visits:
        end = min(visit.answered, course.end)
        took = end - visit.asked - overlap([(visit.asked, end)], visit.stops)
        text = f"{visit} wanted to wait for {visit.wait:.1f} s"
        if took - visit.wait > claims.within + course.busy_in(visit.asked, end):
            due = visit.asked + visit.wait
            found.append(Finding(HUNG, due, took - visit.wait, text, claims.punctual))
        early = visit.wait - (visit.gave_up - visit.asked)
        when = (visit.asked, visit.gave_up)
        if 0.2 < early < math.inf and not _in_trouble(visit, *when, claims, course):
            found.append(Finding(EARLY, visit.gave_up, early, text, claims.punctual))
    return found


def _errors(
    visits: list[Visit], claims: Claims, course: Course, keeps: bool, retried: bool
) -> list[Finding]:
    def due(one: Visit) -> bool:
        strict = claims.retries and (keeps if one.entered < math.inf else retried)
        return not strict and _in_trouble(one, one.asked, one.failed, claims, course)

    return [
        Finding(ERROR, one.failed, 0.0, f"{one}: {one.error}")
        for one in visits
        if one.failed < math.inf and not due(one)
    ]


def _in_trouble(who: Visit, start: float, end: float, claims: Claims, course: Course) -> bool:
    """Whether harm was done in that time, or so shortly before it that it may still be felt."""
    after = claims.within + (claims.lease or 0)
    troubles = [*course.troubles, *who.mute]
    return _any_overlap(((a, b + after) for a, b in troubles), start, end)


def _losses(visits: list[Visit], claims: Claims, course: Course, keeps: bool) -> list[Finding]:
    return [
        Finding(NO_REASON, one.told, 0.0, f"{one} was going, and had it for less than its lease")
        for one in visits
        if one.entered <= one.told < math.inf
        and one.told < _lost_at(one, claims, course)
        and (keeps or not _in_trouble(one, one.asked, one.told, claims, course))
    ]


def _lost_at(visit: Visit, claims: Claims, course: Course) -> float:
    """When its lease may end by itself, at the earliest."""
    if claims.lease and not claims.renewed:
        return visit.asked + claims.lease
    return _renewed_until(visit, claims, course)


def _refusals(visits: list[Visit], claims: Claims, course: Course, lossy: bool) -> list[Finding]:
    """Somebody was told no, though there had been room all the time, and nobody else wanted it.
    For those who waited for long, `_idle` says so."""
    spans = [(one, span) for one in visits for span in _occupied(one, claims)]
    found = []
    for visit in (one for one in visits if one.gave_up - one.asked < claims.within):
        when = (visit.asked, visit.gave_up)
        others = [one for one in visits if one is not visit]
        wanted = _any_overlap(((one.asked, one.answered) for one in others), *when)
        taken = sum(
            v.permits for v, span in spans if v is not visit and _any_overlap([span], *when)
        )
        room = taken + visit.permits <= claims.limit
        if room and not wanted and not _in_trouble(visit, *when, claims, course):
            found.append(Finding(REFUSED, visit.gave_up, 0.0, f"{visit} was alone"))
    return found


RULES = (_crowds, _fences, _orders, _idle, _answers, _refusals)


# Intervals


def _any_overlap(spans: Iterable[tuple[float, float]], start: float, end: float) -> bool:
    return any(a < end and start < b for a, b in spans)


def overlap(some: Iterable[tuple[float, float]], others: Sequence[tuple[float, float]]) -> float:
    """The time in both."""
    return sum(max(0.0, min(b, d) - max(a, c)) for a, b in some for c, d in others)


def minus(
    span: tuple[float, float], holes: Iterable[tuple[float, float]]
) -> list[tuple[float, float]]:
    """What is left of a span outside of the holes."""
    left = [span] if span[0] < span[1] else []
    for hole in holes:
        left = [
            part
            for start, end in left
            for part in ((start, min(end, hole[0])), (max(start, hole[1]), end))
            if part[0] < part[1]
        ]
    return left
