"""The checker compares a history with what a lock claims.

`check(history, claims)` returns findings, the worst first. It is strict where the observer knows,
and wide where it can only guess:

- An *overlap* is proven. The observed intervals lie inside the true ones. A killed holder counts up
  to its last message. A holder whose lock tells of losses counts up to the last moment at which the
  lock said that it is held. So a busy machine can't make two holders out of one.
- *Waiting* can only be measured from outside, and grows with the load of the machine. Its bounds
  are extended by all the time in which the observer or a worker was kept from running.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from .observer import Event

Spans = list[tuple[float, float]]

#: Two requests are in a known order if they are at least this many seconds apart.
APART = 0.3
#: The longest time in seconds from a grant to its `enter` event on an idle machine.
SHORTLY = 0.6
#: Bounds in seconds for locks that claim none: of a delay, of waiting in vain, of a lease.
DELAY, IN_VAIN, USUAL_LEASE = 2.0, 5.0, 2.0
#: An answer that comes this many seconds after its time is late.
LATE_BY = 1.0


@dataclass(frozen=True)
class Claims:
    """What a lock's own documentation promises; times are in seconds.

    limit     how many holders may be inside at once
    lease     a dead or stopped holder's place is free after this time; 0: at once; None: no promise
    renewed   a holder that keeps running keeps its place for longer than `lease`
    fair      places are granted in the order of arrival
    fenced    each grant has a number above all earlier ones
    told      a holder is told of a loss before another holder gets in
    punctual  acquire returns when its time to wait is up, and not before
    retries   one lost or doubled message, or a server that is out of memory, causes no error
    forks     a forked child neither releases nor keeps what its parent holds
    within    a free place is granted to a waiter within this time; None: no promise
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
    within: float | None = None


#: All kinds of findings, the worst first.
TWO_INSIDE, NEVER_TOLD, TOLD_LATE = "two inside", "never told", "told late"
NEVER_FREE, NOT_GIVEN, ORDER = "never free again", "free but not granted", "order broken"
NO_REASON, REFUSED = "lost without reason", "refused though free"
FENCE, LATE, ERROR = "fence went back", "past its lease", "error"
HUNG, EARLY = "came back late", "gave up early"
KINDS = (
    TWO_INSIDE, NEVER_TOLD, TOLD_LATE, NEVER_FREE, NOT_GIVEN, ORDER, FENCE, NO_REASON, REFUSED,
    ERROR, HUNG, EARLY, LATE,
)  # fmt: skip
#: Findings that no load of the machine can cause.
PROVEN = {TWO_INSIDE, NEVER_TOLD, TOLD_LATE, FENCE}


@dataclass(frozen=True, order=True)
class Finding:
    """One observation. `against`: it contradicts the claims; otherwise it is only reported."""

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
    """One acquire and what followed. All times are the observer's."""

    who: str
    pid: int
    name: str
    permits: int
    wait: float
    asked: float
    entered: float = math.inf
    fence: float | None = None
    #: Up to when it is known to be inside.
    proven: float = -math.inf
    told: float = math.inf
    left: float = math.inf
    released: float = math.inf
    gave_up: float = math.inf
    failed: float = math.inf
    gone: float = math.inf
    error: str = ""
    probe: float = 0.0
    stops: Spans = field(default_factory=list)
    #: Gaps between two looks of a holder: it may have been kept from running.
    pauses: Spans = field(default_factory=list)
    #: When its messages were harmed: it may have a grant that it does not know of.
    harmed: Spans = field(default_factory=list)

    @property
    def answered(self) -> float:
        """When acquire returned or its process ended."""
        return min(self.entered, self.gave_up, self.failed, self.gone)

    def __str__(self) -> str:
        return self.who


@dataclass
class Course:
    """A history as visits and spans of time."""

    visits: list[Visit]
    harms: Spans  # that concern all workers
    own_harms: dict[str, Spans]  # that concern one worker
    busy: dict[str, Spans]  # of each process
    end: float

    def busy_in(self, start: float, end: float, *pids: int) -> float:
        """Return for how many seconds of a span one process was kept from running, at most; only
        the observer and `pids` count if given."""
        span, ours = (start, end), {"", *map(str, pids)}
        busy = [some for pid, some in self.busy.items() if not pids or pid in ours]
        return max((sum(_overlap(span, one) for one in some) for some in busy), default=0.0)


# Reading


def read(history: Sequence[Event], claims: Claims = Claims()) -> Course:
    """Return the visits of a history, and the spans of harm and load."""
    end = history[-1].at if history else 0.0
    course = Course([], [], defaultdict(list), defaultdict(list), end)
    latest: dict[int, Visit] = {}
    for event in history:
        if event.what == "ask":
            wait, permits = float(event.text or "inf"), int(event.number or 1)
            visit = Visit(event.who, event.pid, event.name, permits, wait, event.at)
            latest[event.seat] = visit
            course.visits.append(visit)
        elif event.what == "busy":
            course.busy[event.name].append((event.at - (event.number or 0), event.at))
        elif event.what in ("harm", "calm"):
            harms = course.own_harms[event.name] if event.name else course.harms
            if event.what == "harm":
                harms.append((event.at, math.inf))
            else:
                harms[-1] = (harms[-1][0], event.at)
        elif event.seat in latest:
            _note(latest[event.seat], event, claims.told)
    for visit in course.visits:
        visit.harmed = course.own_harms.get(visit.who, [])
    return course


def _note(visit: Visit, event: Event, told: bool) -> None:
    """Write one event into its visit."""
    what, at = event.what, event.at
    if what == "enter":
        visit.entered, visit.fence, visit.probe = at, event.number, at
    elif what == "probe":
        if at - visit.probe > APART:
            visit.pauses.append((visit.probe, at))
        visit.probe = at
    elif what in ("lost", "refused"):
        visit.told = min(visit.told, at)
    elif what in ("closed", "died"):
        visit.gone = min(visit.gone, at)
    elif what == "error":
        visit.failed, visit.error = min(visit.failed, at), event.text
    elif what == "stopped":
        visit.stops.append((event.number or at, math.inf))
    elif what == "resumed" and visit.stops:
        visit.stops[-1] = (visit.stops[-1][0], at)
    elif what == "leave":
        visit.left = at
    elif what == "released":
        visit.released = at
    elif what == "gave_up":
        visit.gave_up = at
    if what == "held":
        visit.proven = visit.probe if told else at
    elif what in ("enter", "leave") and not told:
        visit.proven = at


# Checking


def check(
    history: Sequence[Event],
    claims: Claims = Claims(),
    *,
    lossy: bool = False,
    keeps: bool = False,
    retried: bool = False,
) -> list[Finding]:
    """Return every finding of a history, the worst first.

    `lossy`: the lock's memory was taken away on purpose, so that two may be inside until the
    earlier one is told. `keeps`: what was done is not a reason to lose a lease or to fail a
    release. `retried`: nor, for a lock that claims `retries`, to fail an acquire.
    """
    course = read(history, claims)
    found: list[Finding] = []
    for name in dict.fromkeys(visit.name for visit in course.visits):
        visits = [visit for visit in course.visits if visit.name == name]
        for rule in (_crowds, _fences, _orders, _delays, _answers, _refusals):
            found += rule(visits, claims, course, lossy)
        found += _losses(visits, claims, course, keeps)
        found += _errors(visits, claims, course, keeps, retried)
    return sorted(found, key=lambda one: (not one.against, KINDS.index(one.kind), one.at))


def gap(history: Sequence[Event], limit: int = 1) -> float:
    """Return the longest time in which somebody waited, and nobody else ran inside."""
    calm = [event for event in history if event.what not in ("harm", "calm", "busy")]
    claims = Claims(limit, lease=1e-6, renewed=True, within=0)
    course = read(calm, claims)
    found = _idle(course.visits, claims, course)
    return max((one.seconds for one in found), default=0.0)


def against(found: Iterable[Finding]) -> list[Finding]:
    """Return the findings that contradict the claims."""
    return [one for one in found if one.against]


# More inside than the limit


def rightful(visit: Visit, claims: Claims, course: Course) -> float:
    """Return the time up to which a holder may believe to be inside without being told."""
    if claims.told or not claims.lease:
        return math.inf
    if not claims.renewed:
        return _granted(visit, course) + claims.lease
    return _renewed_until(visit, claims, course)


def _granted(visit: Visit, course: Course) -> float:
    """Return the earliest beginning of a lease: shortly before `enter`, unless it was held up."""
    when = (visit.asked, visit.entered)
    if _any_overlap([*visit.stops, *visit.harmed, *course.harms], *when):
        return visit.asked
    return max(visit.asked, visit.entered - SHORTLY - course.busy_in(*when))


def _renewed_until(visit: Visit, claims: Claims, course: Course) -> float:
    """Return the first time at which its process did not run, or did not reach its server."""
    short = (claims.lease or math.inf) / 3
    busy = [*course.busy[""], *course.busy[str(visit.pid)]]
    spans = [*visit.stops, *busy, *visit.harmed, *course.harms]
    since = [(max(start, visit.asked), end) for start, end in spans]
    return min((start for start, end in since if end - start > short), default=math.inf)


def _crowds(visits: list[Visit], claims: Claims, course: Course, lossy: bool) -> list[Finding]:
    found: dict[tuple[int, int], Finding] = {}
    here: list[tuple[float, float, Visit]] = []
    spans = [
        (start, end, visit)
        for visit in visits
        for start, end in minus((visit.entered, visit.proven), visit.stops)
    ]
    for start, end, visit in sorted(spans, key=lambda one: one[:2]):
        here = [one for one in here if one[1] > start and one[2] is not visit]
        others = list(here)
        here.append((start, end, visit))
        if sum(one[2].permits for one in here) <= claims.limit or not others:
            continue
        first = min(others, key=lambda one: one[2].entered)
        until = min(first[1], end)
        if until <= start:
            continue
        one, two = sorted((first[2], visit), key=lambda one: one.entered)
        key = (id(one), id(two))
        at, took = (found[key].at, found[key].seconds) if key in found else (start, 0.0)
        among = [one[2] for one in here]
        found[key] = _crowd(one, two, among, at, took + until - start, claims, course, lossy)
    return list(found.values())


def _crowd(
    first: Visit, second: Visit, among: list[Visit], at: float, took: float,
    claims: Claims, course: Course, lossy: bool,
) -> Finding:  # fmt: skip
    said = [f"{one} {_telling(one, second.entered)}" for one in (first, second)]
    text = ", ".join(said) + (f", {len(among)} inside" if len(among) > 2 else "")
    if at > min(rightful(one, claims, course) for one in among):
        # A holder stayed longer than its lease. A lock that can't tell its holders is not to blame.
        fences = (first.fence, second.fence)
        seen = None not in fences and fences[0] < fences[1]  # type: ignore[operator]
        return Finding(LATE, at, took, text, claims.fenced and not seen)
    if not lossy:
        return Finding(TOLD_LATE if first.told < math.inf and claims.told else TWO_INSIDE,
                       at, took, text)  # fmt: skip
    if not claims.told:
        return Finding(TWO_INSIDE, at, took, text, against=False)
    late = took > (claims.lease or 0) + (claims.within or DELAY) + course.busy_in(at, at + took)
    return Finding(NEVER_TOLD if first.told == math.inf else TOLD_LATE, at, took, text, late)


def _telling(visit: Visit, since: float) -> str:
    if visit.told == math.inf:
        return "was never told"
    return f"was told {visit.told - since:+.2f} s after"


# Fences and order


def _fences(visits: list[Visit], claims: Claims, course: Course, lossy: bool) -> list[Finding]:
    """Find grants whose number is not above all that had entered before they asked."""
    if not claims.fenced:
        return []
    found, top, index = [], -math.inf, 0
    granted = sorted((v for v in visits if v.entered < math.inf), key=lambda v: v.asked)
    arrived = sorted(granted, key=lambda v: v.entered)
    for visit in granted:
        while index < len(arrived) and arrived[index].entered < visit.asked:
            number = arrived[index].fence
            top, index = max(top, -math.inf if number is None else number), index + 1
        if visit.fence is None or visit.fence <= top:
            text = f"{visit} got {visit.fence or 'none'} after {top}"
            found.append(Finding(FENCE, visit.entered, 0.0, text))
    return found


def _orders(visits: list[Visit], claims: Claims, course: Course, lossy: bool) -> list[Finding]:
    """Find grants to a waiter that asked clearly later than one who waited all the time."""
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
    # A message of the waiter may have been on its way for as long as its process did not run.
    asked = APART + course.busy_in(early.asked, late.asked, early.pid)
    entered = APART + course.busy_in(late.entered, early.answered, early.pid)
    held_up = [*early.stops, *early.harmed, *course.harms]
    return (
        early.permits <= late.permits
        and early.asked + asked < late.asked
        and late.entered + entered < early.answered
        and not _any_overlap(held_up, early.asked, late.entered)
    )


# Free, and not granted


def _delays(visits: list[Visit], claims: Claims, course: Course, lossy: bool) -> list[Finding]:
    """Find waiters that did not get a free place, as claimed; and report what is not claimed."""
    found = _idle(visits, claims, course)
    if claims.lease is None:  # what depends on a lease is reported, as of a lease of the usual time
        usual = _idle(visits, replace(claims, lease=USUAL_LEASE), course)
        known = {one.at for one in found}
        found += [replace(one, against=False) for one in usual if one.at not in known]
    return found


def _idle(visits: list[Visit], claims: Claims, course: Course) -> list[Finding]:
    """Find stretches in which there was room for a waiter, and nobody got in."""
    changes: dict[float, int] = defaultdict(int)
    for visit in visits:
        for since, until in _occupied(visit, claims):
            if since < until:
                changes[since] -= visit.permits
                changes[until] += visit.permits
    spans = sorted(
        (
            (*span, visit)
            for visit in visits
            for span in minus(
                (visit.asked, min(visit.answered, course.end)), [*visit.stops, *visit.harmed]
            )
        ),
        key=lambda one: one[:2],
    )
    entries = {visit.entered for visit in visits if visit.entered < math.inf}
    times = {time for a, b, _ in spans for time in (a, b)} | set(changes) | entries
    times |= {time for pause in course.harms for time in pause} | {course.end}
    found: list[Finding] = []
    queue: list[tuple[float, float, Visit]] = []
    free, start, whom = claims.limit, -1.0, ""
    for now, after in pairwise(sorted(time for time in times if time <= course.end)):
        free += changes[now]
        while spans and spans[0][0] <= now:
            queue.append(spans.pop(0))
        queue = [one for one in queue if one[1] >= after]
        calm = not _any_overlap(course.harms, now, after)
        waiter = next((v for _, _, v in queue if v.permits <= free), None) if calm else None
        if now in entries or not waiter:
            found += _stretch(start, now, whom, visits, claims, course)
            start = -1.0
        if waiter and start < 0:
            start, whom = now, str(waiter)
    return found + _stretch(start, course.end, whom, visits, claims, course)


def _stretch(
    start: float, end: float, whom: str, visits: list[Visit], claims: Claims, course: Course
) -> list[Finding]:
    took = end - start
    # Who runs for more than half of the time gets turns enough to see a free place.
    busy = min(course.busy_in(start, end), 0.4 * took)
    bound = DELAY if claims.within is None else claims.within
    if start < 0 or took <= bound + busy:
        return []
    newcomer = next((one for one in visits if start <= one.asked < end - 1), None)
    again = any(start < one.entered < math.inf for one in visits)
    if newcomer and not again:
        return [Finding(NEVER_FREE, start, took, f"{whom} waited, {newcomer} came later")]
    # Without a claim of a time, only waiting in vain without any harm to the server counts.
    in_vain = took > IN_VAIN + busy and not course.harms
    text = f"{whom} waited" + (f", {newcomer} came later" if newcomer else "")
    return [Finding(NOT_GIVEN, start, took, text, claims.within is not None or in_vain)]


def _occupied(visit: Visit, claims: Claims) -> Spans:
    """Return when its permits may be taken, at most; also by a grant that it never learned of."""
    lease = math.inf if claims.lease is None else claims.lease
    # A waiter that was stopped may have been granted: for a lease, or until it runs again.
    stops = [(a, b) for a, b in visit.stops if a < visit.answered]
    waited = [(a, min(b, a + (lease or math.inf))) for a, b in stops]
    if _any_overlap(visit.harmed, visit.asked, visit.answered):
        waited.append((visit.asked, min(visit.answered, visit.harmed[-1][1]) + lease))
    if visit.entered == math.inf:
        if visit.failed < visit.gave_up:  # it may have been granted all the same
            waited.append((visit.asked, visit.failed + lease))
        elif visit.gone < visit.gave_up:
            waited.append((visit.gone, visit.gone + lease))
        return waited
    # A holder that runs has its place: no lock has to give it away under a living holder.
    ends = [min(visit.released, visit.told), min(visit.gone, visit.failed) + lease]
    if lease:
        ends += [start + lease for start, end in visit.stops if end - start > lease]
    return [*waited, (visit.entered, min(ends))]


# Answers that are late, early or wrong


def _answers(visits: list[Visit], claims: Claims, course: Course, lossy: bool) -> list[Finding]:
    found = []
    for visit in visits:
        end = min(visit.answered, course.end)
        took = end - visit.asked - sum(_overlap((visit.asked, end), stop) for stop in visit.stops)
        text = f"{visit} wanted to wait for {visit.wait:.1f} s"
        if took - visit.wait > LATE_BY + course.busy_in(visit.asked, end):
            due = visit.asked + visit.wait
            found.append(Finding(HUNG, due, took - visit.wait, text, claims.punctual))
        early = visit.wait - (visit.gave_up - visit.asked)
        when = (visit.asked, visit.gave_up)
        if 0.2 < early < math.inf and not _in_harm(visit, *when, claims, course):
            found.append(Finding(EARLY, visit.gave_up, early, text, claims.punctual))
    return found


def _errors(
    visits: list[Visit], claims: Claims, course: Course, keeps: bool, retried: bool
) -> list[Finding]:
    def excused(one: Visit) -> bool:
        strict = claims.retries and (keeps if one.entered < math.inf else retried)
        return not strict and _in_harm(one, one.asked, one.failed, claims, course)

    return [
        Finding(ERROR, one.failed, 0.0, f"{one}: {one.error}")
        for one in visits
        if one.failed < math.inf and not excused(one)
    ]


def _in_harm(who: Visit, start: float, end: float, claims: Claims, course: Course) -> bool:
    """Return True if harm was done in that time, or shortly before it."""
    after = DELAY + (claims.lease or 0)
    return _any_overlap(((a, b + after) for a, b in [*course.harms, *who.harmed]), start, end)


def _losses(visits: list[Visit], claims: Claims, course: Course, keeps: bool) -> list[Finding]:
    """Find losses in the first half of a lease, or of a lease that is renewed."""
    if not (claims.told or claims.renewed):
        return []
    found = []
    for one in visits:
        due = one.entered + (claims.lease or math.inf) / 2
        if claims.renewed:
            due = _renewed_until(one, claims, course)
            # It did not look for a while: its process may not have run.
            due = min([due, *(a for a, b in one.pauses if b - a > (claims.lease or math.inf) / 3)])
        excused = not keeps and _in_harm(one, one.asked, one.told, claims, course)
        if one.entered <= one.told < min(due, math.inf) and not excused:
            text = f"{one} was running, and its lease was not over"
            found.append(Finding(NO_REASON, one.told, 0.0, text))
    return found


def _refusals(visits: list[Visit], claims: Claims, course: Course, lossy: bool) -> list[Finding]:
    """Find short waits that ended with no, though nobody else was there. See `_delays` for long
    ones."""
    spans = [(one, span) for one in visits for span in _occupied(one, claims)]
    found = []
    for visit in (one for one in visits if one.gave_up - one.asked < DELAY):
        when = (visit.asked, visit.gave_up)
        others = [one for one in visits if one is not visit]
        wanted = _any_overlap(((one.asked, one.answered) for one in others), *when)
        taken = sum(
            v.permits for v, span in spans if v is not visit and _any_overlap([span], *when)
        )
        room = taken + visit.permits <= claims.limit
        if room and not wanted and not _in_harm(visit, *when, claims, course):
            found.append(Finding(REFUSED, visit.gave_up, 0.0, f"{visit} was alone"))
    return found


# Intervals


def _any_overlap(spans: Iterable[tuple[float, float]], start: float, end: float) -> bool:
    return any(a < end and start < b for a, b in spans)


def _overlap(one: tuple[float, float], other: tuple[float, float]) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))


def minus(span: tuple[float, float], holes: Iterable[tuple[float, float]]) -> Spans:
    """Return what is left of a span outside the holes."""
    left = [span] if span[0] < span[1] else []
    for hole in holes:
        left = [
            part
            for start, end in left
            for part in ((start, min(end, hole[0])), (max(start, hole[1]), end))
            if part[0] < part[1]
        ]
    return left
