"""The checker compares a history with the claims of a lock.

`check(history, claims)` returns findings, the worst first. It is strict about facts that the
observer can prove, and tolerant about others:

- An *overlap* is proven, because observed intervals are inside the true ones. A killed holder
  counts until its last message. If a lock reports losses, its holder counts until the last time
  when the lock reported that it is held. So a busy machine can't make one holder look like two.
- *Waiting* is measured from outside, and takes longer on a busy machine. Its bounds are extended by
  the time for which the observer or a worker could not run.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from .observer import Event

Spans = list[tuple[float, float]]

#: The order of two requests is known if they are at least this many seconds apart.
APART = 0.3
#: Max seconds from a grant to its `enter` event on an idle machine.
SHORTLY = 0.6
#: Seconds for locks that claim no time: max delay, max wait in vain, and lease duration.
DELAY, IN_VAIN, USUAL_LEASE = 2.0, 5.0, 2.0
#: Seconds after its time from which on an answer counts as late.
LATE_BY = 1.0


@dataclass(frozen=True)
class Claims:
    """The promises of a lock's own documentation. Times are in seconds.

    limit     max holders at the same time
    lease     the permit of a dead or stopped holder is free after this time; 0: at once; None: no
              promise
    renewed   a running holder keeps its permit for longer than `lease`
    fair      permits are granted in the order of arrival
    fenced    each grant has a number above all earlier ones
    told      a holder can detect a loss before another holder gets in
    punctual  acquire returns at the end of its timeout, and not before
    retries   one lost or doubled message, or a server with full memory, causes no error
    forks     a forked child neither releases nor keeps its parent's permit
    within    a free permit is granted to a waiter within this time; None: no promise
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
KINDS = (
    TWO_INSIDE, NEVER_TOLD, TOLD_LATE, NEVER_FREE, NOT_GIVEN, ORDER, FENCE, NO_REASON, REFUSED,
    ERROR, HUNG, EARLY, LATE,
) = (
    "two inside", "never told", "told late", "never free again", "free but not granted",
    "order broken", "fence went back", "lost without reason", "refused though free",
    "error", "came back late", "gave up early", "past its lease",
)  # fmt: skip
#: Kinds of findings that a busy machine can't cause.
PROVEN = {TWO_INSIDE, NEVER_TOLD, TOLD_LATE, FENCE}


@dataclass(frozen=True, order=True)
class Finding:
    """An observation. `against`: True if it contradicts the claims. Others are only reported."""

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
    """An acquire and the events that followed. All times are those of the observer."""

    who: str
    pid: int
    name: str
    permits: int
    wait: float
    asked: float
    entered: float = math.inf
    fence: float | None = None
    #: The last time at which it was certainly inside.
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
    #: Long gaps between two checks of a holder, in which it may not have run.
    pauses: Spans = field(default_factory=list)
    #: When its messages were harmed, so that it may have an unknown grant.
    harmed: Spans = field(default_factory=list)

    @property
    def answered(self) -> float:
        """The time when acquire returned or the process ended."""
        return min(self.entered, self.gave_up, self.failed, self.gone)

    def __str__(self) -> str:
        return self.who


@dataclass
class Course:
    """A history as visits and spans of time."""

    visits: list[Visit]
    harms: Spans  # harm to all workers
    own_harms: dict[str, Spans]  # harm to one worker, by its name
    busy: dict[str, Spans]  # times when a process could not run, by its id; "": the observer
    end: float

    def busy_in(self, start: float, end: float, *pids: int) -> float:
        """Return the max seconds of a span for which one process could not run. If `pids` are
        given, only they and the observer count."""
        span, ours = (start, end), {"", *map(str, pids)}
        busy = [some for pid, some in self.busy.items() if not pids or pid in ours]
        return max((sum(_overlap(span, one) for one in some) for some in busy), default=0.0)


# Reading


def read(history: Sequence[Event], claims: Claims = Claims()) -> Course:
    """Return the visits of a history, and the times of harm and of load."""
    end = history[-1].at if history else 0.0
    course = Course([], [], defaultdict(list), defaultdict(list), end)
    latest: dict[int, Visit] = {}
    for event in history:
        if event.what == "ask":
            wait, permits = float(event.text or "inf"), int(event.number or 1)
            visit = Visit(event.who, event.pid, event.name, permits, wait, event.at)
            visit.harmed = course.own_harms[visit.who]
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
    return course


#: The attribute of a visit that an event sets. The first event counts.
_TIMES = {
    "enter": "entered", "lost": "told", "refused": "told", "closed": "gone", "died": "gone",
    "error": "failed", "leave": "left", "released": "released", "gave_up": "gave_up",
}  # fmt: skip


def _note(visit: Visit, event: Event, told: bool) -> None:
    """Apply an event to its visit. `told`: the claim of that name."""
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
        visit.stops[-1] = (visit.stops[-1][0], at)
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
    """Return all findings of a history, the worst first.

    `lossy`: True if the server's data was deleted, so that fences may go back, and two holders may
    be inside until the first has detected the loss. `keeps`: True if the harm is not a reason to
    lose a lease or to fail a release. `retried`: True if it is not a reason to fail an acquire, for
    a lock that claims `retries`.
    """
    course = read(history, claims)
    found: list[Finding] = []
    for name in dict.fromkeys(visit.name for visit in course.visits):
        judge = _Judge([one for one in course.visits if one.name == name], claims, course)
        found += [*judge.crowds(lossy), *judge.fences(lossy), *judge.orders(), *judge.delays()]
        found += [*judge.answers(), *judge.refusals()]
        found += [*judge.losses(keeps), *judge.errors(keeps, retried)]
    return sorted(found, key=lambda one: (not one.against, KINDS.index(one.kind), one.at))


def gap(history: Sequence[Event], limit: int = 1) -> float:
    """Return the longest time in seconds in which the lock was free although a worker waited."""
    calm = [event for event in history if event.what not in ("harm", "calm", "busy")]
    claims = Claims(limit, lease=1e-6, renewed=True, within=0)
    course = read(calm, claims)
    return max((one.seconds for one in _Judge(course.visits, claims, course).idle()), default=0.0)


def against(found: Iterable[Finding]) -> list[Finding]:
    """Return the findings that contradict the claims."""
    return [one for one in found if one.against]


@dataclass
class _Judge:
    """The rules, for the visits of one name."""

    visits: list[Visit]
    claims: Claims
    course: Course

    def in_harm(self, visit: Visit, start: float, end: float) -> bool:
        """Return True if harm was done in this time, or shortly before."""
        after = DELAY + (self.claims.lease or 0)
        harms = [*self.course.harms, *visit.harmed]
        return _any_overlap(((a, b + after) for a, b in harms), start, end)

    # More holders than the limit

    def crowds(self, lossy: bool) -> Iterable[Finding]:
        """Find times with more holders than the limit."""
        found: dict[tuple[int, int], Finding] = {}
        here: list[tuple[float, float, Visit]] = []
        spans = [
            (start, end, visit)
            for visit in self.visits
            for start, end in minus((visit.entered, visit.proven), visit.stops)
        ]
        for start, end, visit in sorted(spans, key=lambda one: one[:2]):
            others = [one for one in here if one[1] > start and one[2] is not visit]
            here = [*others, (start, end, visit)]
            if sum(one[2].permits for one in here) <= self.claims.limit or not others:
                continue
            first = min(others, key=lambda one: one[2].entered)
            until = min(first[1], end)
            if until <= start:
                continue
            pair = sorted((first[2], visit), key=lambda one: one.entered)
            key = (id(pair[0]), id(pair[1]))
            at, took = (found[key].at, found[key].seconds) if key in found else (start, 0.0)
            took += until - start
            found[key] = self.crowd(*pair, [one[2] for one in here], at, took, lossy)
        return found.values()

    def crowd(
        self, first: Visit, second: Visit, among: list[Visit], at: float, took: float, lossy: bool
    ) -> Finding:
        claims, told = self.claims, first.told < math.inf
        parts = [f"{one} {_telling(one, second.entered)}" for one in (first, second)]
        text = ", ".join(parts) + (f", {len(among)} inside" if len(among) > 2 else "")
        if at > min(map(self.rightful, among)):
            # A holder stayed longer than its lease, and its lock does not claim to report that.
            fences = (first.fence, second.fence)
            seen = None not in fences and fences[0] < fences[1]  # type: ignore[operator]
            return Finding(LATE, at, took, text, claims.fenced and not seen)
        if not lossy:
            return Finding(TOLD_LATE if told and claims.told else TWO_INSIDE, at, took, text)
        if not claims.told:
            return Finding(TWO_INSIDE, at, took, text, against=False)
        bound = (claims.lease or 0) + (claims.within or DELAY)
        late = took > bound + self.course.busy_in(at, at + took)
        return Finding(TOLD_LATE if told else NEVER_TOLD, at, took, text, late)

    def rightful(self, visit: Visit) -> float:
        """Return the time until which a holder may rely on its lease without a check."""
        if self.claims.told or not self.claims.lease:
            return math.inf
        if self.claims.renewed:
            return self.renewed_until(visit)
        # The earliest start of its lease: shortly before `enter`, unless it was delayed.
        when = (visit.asked, visit.entered)
        held_up = _any_overlap([*visit.stops, *visit.harmed, *self.course.harms], *when)
        shortly = math.inf if held_up else SHORTLY + self.course.busy_in(*when)
        return max(visit.asked, visit.entered - shortly) + self.claims.lease

    def renewed_until(self, visit: Visit) -> float:
        """Return the first time when the visit's process could not run or not reach its server."""
        short, course = (self.claims.lease or math.inf) / 3, self.course
        busy = [*course.busy[""], *course.busy[str(visit.pid)]]
        spans = [*visit.stops, *busy, *visit.harmed, *course.harms]
        since = [(max(start, visit.asked), end) for start, end in spans]
        return min((start for start, end in since if end - start > short), default=math.inf)

    # Fences and order

    def fences(self, lossy: bool) -> Iterable[Finding]:
        """Find grants with a number that is not above those of all earlier grants."""
        if not self.claims.fenced:
            return
        top, index = -math.inf, 0
        granted = sorted((v for v in self.visits if v.entered < math.inf), key=lambda v: v.asked)
        arrived = sorted(granted, key=lambda v: v.entered)
        for visit in granted:
            while index < len(arrived) and arrived[index].entered < visit.asked:
                number = arrived[index].fence
                top, index = max(top, -math.inf if number is None else number), index + 1
            if visit.fence is None or visit.fence <= top:
                text = f"{visit} got {visit.fence or 'none'} after {top}"
                yield Finding(FENCE, visit.entered, 0.0, text, not lossy)

    def orders(self) -> Iterable[Finding]:
        """Find waiters that were overtaken by a waiter that clearly arrived later."""
        if not self.claims.fair:
            return
        patient = [one for one in self.visits if one.answered - one.asked > 2 * APART]
        for late in self.visits:
            early = next((one for one in patient if self.passed(one, late)), None)
            if early is not None:
                text = f"{late} asked {late.asked - early.asked:.2f} s after {early}, and passed it"
                yield Finding(ORDER, late.entered, 0.0, text)

    def passed(self, early: Visit, late: Visit) -> bool:
        # The waiter's message may have been delayed while its process could not run.
        busy = self.course.busy_in
        return (
            early.permits <= late.permits
            and early.asked + APART + busy(early.asked, late.asked, early.pid) < late.asked
            and late.entered + APART + busy(late.entered, early.answered, early.pid)
            < early.answered
            and not _any_overlap(
                [*early.stops, *early.harmed, *self.course.harms], early.asked, late.entered
            )
        )

    # Free, and not granted

    def delays(self) -> Iterable[Finding]:
        """Find times when a permit was free and not granted. Without a claimed lease, report also
        what would contradict a lease of USUAL_LEASE."""
        found = self.idle()
        if self.claims.lease is None:
            usual = replace(self, claims=replace(self.claims, lease=USUAL_LEASE)).idle()
            known = {one.at for one in found}
            found += [replace(one, against=False) for one in usual if one.at not in known]
        return found

    def idle(self) -> list[Finding]:
        """Find times when permits for a waiter were free, and no waiter got in."""
        course = self.course
        changes: dict[float, int] = defaultdict(int)
        spans: list[tuple[float, float, Visit]] = []
        for visit in self.visits:
            for since, until in self.occupied(visit):
                if since < until:
                    changes[since] -= visit.permits
                    changes[until] += visit.permits
            waited = (visit.asked, min(visit.answered, course.end))
            spans += [(*one, visit) for one in minus(waited, [*visit.stops, *visit.harmed])]
        spans.sort(key=lambda one: one[:2])
        entries = {visit.entered for visit in self.visits if visit.entered < math.inf}
        times = {time for span in (*spans, *course.harms) for time in span[:2]} | entries
        times |= {*changes, course.end}
        found: list[Finding] = []
        queue: list[tuple[float, float, Visit]] = []
        free, start, whom = self.claims.limit, math.inf, ""
        for now, after in pairwise(sorted(time for time in times if time <= course.end)):
            free += changes[now]
            while spans and spans[0][0] <= now:
                queue.append(spans.pop(0))
            queue = [one for one in queue if one[1] >= after]
            calm = not _any_overlap(course.harms, now, after)
            waiter = next((v for _, _, v in queue if v.permits <= free), None) if calm else None
            if now in entries or not waiter:
                found += self.stretch(start, now, whom)
                start = math.inf
            if waiter and start == math.inf:
                start, whom = now, str(waiter)
        return found + self.stretch(start, course.end, whom)

    def stretch(self, start: float, end: float, whom: str) -> list[Finding]:
        claims, took = self.claims, end - start
        # A process that runs for more than half of the time can detect a free permit.
        busy = min(self.course.busy_in(start, end), 0.4 * took)
        if took <= (DELAY if claims.within is None else claims.within) + busy:
            return []
        newcomer = next((one for one in self.visits if start <= one.asked < end - 1), None)
        text = f"{whom} waited" + (f", {newcomer} came later" if newcomer else "")
        if newcomer and not any(start < one.entered < math.inf for one in self.visits):
            return [Finding(NEVER_FREE, start, took, text)]
        # Without a claimed time, it counts only if there was no harm to the server.
        in_vain = took > IN_VAIN + busy and not self.course.harms
        return [Finding(NOT_GIVEN, start, took, text, claims.within is not None or in_vain)]

    def occupied(self, visit: Visit) -> Spans:
        """Return the times when a visit may have its permits, at most, also by an unknown grant."""
        lease = math.inf if self.claims.lease is None else self.claims.lease
        # A stopped waiter may have a grant until it runs again, or until the lease expires.
        stops = [(a, b) for a, b in visit.stops if a < visit.answered]
        waited = [(a, min(b, a + (lease or math.inf))) for a, b in stops]
        if _any_overlap(visit.harmed, visit.asked, visit.answered):
            # If the lock claims to cope with a lost message, a grant that it left behind ends.
            left = min(lease, USUAL_LEASE) if self.claims.retries else lease
            waited.append((visit.asked, min(visit.answered, visit.harmed[-1][1]) + left))
        if visit.entered < math.inf:
            # A running holder has its permits.
            ends = [min(visit.released, visit.told), min(visit.gone, visit.failed) + lease]
            if lease:
                ends += [start + lease for start, end in visit.stops if end - start > lease]
            waited.append((visit.entered, min(ends)))
        elif visit.failed < visit.gave_up:  # it may have a grant nevertheless
            waited.append((visit.asked, visit.failed + lease))
        elif visit.gone < visit.gave_up:
            waited.append((visit.gone, visit.gone + lease))
        return waited

    # Answers that are late, early or wrong

    def answers(self) -> Iterable[Finding]:
        for visit in self.visits:
            end, due = min(visit.answered, self.course.end), visit.asked + visit.wait
            late = end - due - sum(_overlap((visit.asked, end), stop) for stop in visit.stops)
            text = f"{visit} wanted to wait for {visit.wait:.1f} s"
            if late > LATE_BY + self.course.busy_in(visit.asked, end):
                yield Finding(HUNG, due, late, text, self.claims.punctual)
            early = due - visit.gave_up
            if 0.2 < early < math.inf and not self.in_harm(visit, visit.asked, visit.gave_up):
                yield Finding(EARLY, visit.gave_up, early, text, self.claims.punctual)

    def errors(self, keeps: bool, retried: bool) -> Iterable[Finding]:
        for one in self.visits:
            strict = self.claims.retries and (keeps if one.entered < math.inf else retried)
            excused = not strict and self.in_harm(one, one.asked, one.failed)
            if one.failed < math.inf and not excused:
                yield Finding(ERROR, one.failed, 0.0, f"{one}: {one.error}")

    def losses(self, keeps: bool) -> Iterable[Finding]:
        """Find losses in the first half of a lease, or of a renewed lease."""
        claims = self.claims
        for one in self.visits if claims.told or claims.renewed else ():
            due = one.entered + (claims.lease or math.inf) / 2
            if claims.renewed:
                # Long gaps between its checks: its process may not have run.
                pauses = [a for a, b in one.pauses if b - a > (claims.lease or math.inf) / 3]
                due = min([self.renewed_until(one), *pauses])
            excused = not keeps and self.in_harm(one, one.asked, one.told)
            if one.entered <= one.told < min(due, math.inf) and not excused:
                text = f"{one} was running, and its lease was not over"
                yield Finding(NO_REASON, one.told, 0.0, text)

    def refusals(self) -> Iterable[Finding]:
        """Find short waits without success although there was no other caller. For long waits, see
        `delays`."""
        spans = [(one, span) for one in self.visits for span in self.occupied(one)]
        for visit in (one for one in self.visits if one.gave_up - one.asked < DELAY):
            when = (visit.asked, visit.gave_up)
            others = [one for one in self.visits if one is not visit]
            wanted = _any_overlap(((one.asked, one.answered) for one in others), *when)
            taken = sum(
                v.permits for v, span in spans if v is not visit and _any_overlap([span], *when)
            )
            room = taken + visit.permits <= self.claims.limit
            if room and not wanted and not self.in_harm(visit, *when):
                yield Finding(REFUSED, visit.gave_up, 0.0, f"{visit} was alone")


def _telling(visit: Visit, since: float) -> str:
    if visit.told == math.inf:
        return "got no report of a loss"
    return f"got the report of its loss {visit.told - since:+.2f} s later"


# Intervals


def _any_overlap(spans: Iterable[tuple[float, float]], start: float, end: float) -> bool:
    return any(a < end and start < b for a, b in spans)


def _overlap(one: tuple[float, float], other: tuple[float, float]) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))


def minus(span: tuple[float, float], holes: Iterable[tuple[float, float]]) -> Spans:
    """Return the parts of a span outside the holes."""
    left = [span] if span[0] < span[1] else []
    for hole in holes:
        left = [
            part
            for start, end in left
            for part in ((start, min(end, hole[0])), (max(start, hole[1]), end))
            if part[0] < part[1]
        ]
    return left
