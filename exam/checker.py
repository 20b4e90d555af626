"""The checker compares a history, which is a list of observed events, with the claims of a lock.

`check(history, claims)` returns findings, the worst first. It is strict about facts that the
observer can prove, and tolerant about others:

- An *overlap* of two holders is proven, because the observed time of a holder is always within its
  true time. A killed holder counts as inside until its last report. If a lock claims to report
  losses (`told`), a holder counts as inside until the lock's last report that it is held.
- A *wait* is measured from outside, and takes longer on a busy machine. So the allowed time is
  extended by a multiple of the time for which a process of the trial could not run: see LOAD.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

from .observer import Event

Span = tuple[float, float]

#: If two requests are at most this many seconds apart, the checker treats their order as unknown.
APART = 0.3
#: Max seconds of a wait for a free permit. A longer wait is a finding. If a lock claims `within`,
#: that time is used instead.
DELAY = 2.0
#: Factor of excused delays. If a process could not run for N seconds, a delay of N times LOAD is
#: excused. LOAD is 3 because a grant passes through three processes: releaser, server, and waiter.
LOAD = 3
#: Max seconds from a grant to its `enter` event on an idle machine.
SHORTLY = 0.3
#: Max seconds of a wait for a free permit. A longer wait contradicts the claims of every lock, even
#: of a lock that does not claim `within`.
IN_VAIN = 5.0
#: Assumed lease duration in seconds, if a lock claims no lease.
USUAL_LEASE = 2.0
#: Max seconds by which an acquire may exceed its timeout without a finding.
LATE_BY = 1.0

#: All kinds of findings, the worst first.
KINDS = (
    TWO_INSIDE := "two inside", NEVER_TOLD := "never told", TOLD_LATE := "told late",
    NEVER_FREE := "never free again", NOT_GIVEN := "free but not granted", ORDER := "order broken",
    FENCE := "fence went back", NO_REASON := "lost without reason",
    REFUSED := "refused though free", ERROR := "error", HUNG := "came back late",
    EARLY := "gave up early", LATE := "past its lease",
)  # fmt: skip
#: Kinds of findings that a busy machine can't cause.
PROVEN = {TWO_INSIDE, NEVER_TOLD, TOLD_LATE, FENCE}


@dataclass(frozen=True)
class Claims:
    """The promises of a lock's own documentation. All times are in seconds."""

    limit: int = 1  # max holders at the same time
    #: Time after which a dead or stopped holder's permit is free. 0: at once. None: no promise.
    lease: float | None = None
    renewed: bool = False  # a running holder keeps its permit for longer than `lease`
    fair: bool = False  # permits are granted in the order of arrival
    fenced: bool = False  # the number of each grant is greater than all earlier numbers
    told: bool = False  # a holder can detect a loss before another holder gets in
    punctual: bool = False  # acquire returns at the end of its timeout, and not before
    retries: bool = False  # one lost or doubled message, or full memory, causes no error
    forks: bool = False  # a forked child neither releases nor renews its parent's permit
    within: float | None = None  # max wait for a free permit; None: no promise


@dataclass(frozen=True)
class Finding:
    """A finding in a history. `at`: its time. `seconds`: its duration, or 0. `against`: True if the
    finding contradicts the lock's claims, False if it is only reported."""

    kind: str
    at: float
    seconds: float
    text: str
    against: bool = True

    def __str__(self) -> str:
        took = f" for {self.seconds:.2f} s" if self.seconds else ""
        return f"{self.kind}{took}, at {self.at:.2f} s: {self.text}"


def check(history: Sequence[Event], claims: Claims, flags: Collection[str] = ()) -> list[Finding]:
    """Return all findings of a history, the worst first. `flags` describe the harm in the trial:

    - "lossy": the harm deleted data of the server. This excuses fences that go back, and a second
      holder that gets in before the first holder has detected the loss.
    - "keeps": the harm does not excuse a lost lease or a failed release.
    - "retried": the harm does not excuse a failed acquire.

    "keeps" and "retried" are ignored unless the lock claims `retries`.
    """
    course, found = replace(read(history, claims), flags=flags), list[Finding]()
    for name in dict.fromkeys(visit.name for visit in course.visits):
        one = replace(course, visits=[visit for visit in course.visits if visit.name == name])
        found += [*one.crowds(), *one.fences(), *one.orders(), *one.delays()]
        found += [*one.outcomes(), *one.refusals()]
    return sorted(found, key=lambda one: (not one.against, KINDS.index(one.kind), -one.seconds))


def read(history: Sequence[Event], claims: Claims = Claims()) -> Course:
    """Return a Course with the visits in a history, and with the times of harm and of load."""
    course = Course(claims, history[-1].at if history else 0.0)
    latest: dict[str, Visit] = {}
    for event in history:
        what, at, harms = event.what, event.at, course.harms
        if what == "ask":
            wait = math.inf if event.number is None else event.number
            made = Visit(event.who, event.pid, event.name, wait, at, harms[event.who])
            latest[event.seat] = made
            course.visits.append(made)
        elif what == "busy":
            course.busy[event.name].append((at - (event.number or 0), at))
        elif what == "harm":
            harms[event.name].append((at, math.inf))
        elif what == "calm":
            harms[event.name][-1] = (harms[event.name][-1][0], at)
        elif event.seat in latest:
            latest[event.seat].note(event, claims.told)
    return course


def gap(history: Sequence[Event], limit: int = 1) -> float:
    """Return the longest time in seconds in which the lock was free although a worker waited."""
    calm = [event for event in history if event.what not in ("harm", "calm", "busy")]
    found = read(calm, Claims(limit, lease=1e-6, renewed=True, within=0)).idle()
    return max((one.seconds for one in found), default=0.0)


#: Event -> attribute of `Visit` that stores its time. Of repeated events, the first time is stored.
_TIMES = {
    "enter": "entered", "lost": "told", "refused": "told", "closed": "gone", "died": "gone",
    "error": "failed", "leave": "left", "released": "released", "gave_up": "gave_up",
}  # fmt: skip


@dataclass(eq=False)
class Visit:
    """An acquire and the events that follow, such as the release. All times are the observer's."""

    who: str
    pid: int
    name: str
    wait: float
    asked: float
    #: Times of harm to this worker. During these times, a reply with a grant may have been lost.
    harmed: list[Span]
    entered: float = math.inf
    fence: float | None = None
    proven: float = -math.inf  # the last time at which the worker was certainly inside
    told: float = math.inf
    left: float = math.inf
    released: float = math.inf
    gave_up: float = math.inf
    failed: float = math.inf
    gone: float = math.inf
    error: str = ""
    probe: float = 0.0
    stops: list[Span] = field(default_factory=list)
    #: Long times between two checks by a holder. Perhaps its process did not run.
    pauses: list[Span] = field(default_factory=list)

    @property
    def answered(self) -> float:
        """The time when acquire returned or the process ended."""
        return min(self.entered, self.gave_up, self.failed, self.gone)

    def note(self, event: Event, told: bool) -> None:
        """Add an event of this visit. `told`: True if the lock claims to report losses."""
        what, at = event.what, event.at
        if name := _TIMES.get(what):
            setattr(self, name, min(getattr(self, name), at))
        if what == "enter":
            self.fence, self.probe = event.number, at
        elif what == "probe":
            if at - self.probe > APART:
                self.pauses.append((self.probe, at))
            self.probe = at
        elif what == "error":
            self.error = event.text
        elif what == "stopped":
            self.stops.append((event.number or at, math.inf))
        elif what == "resumed" and self.stops:
            self.stops[-1] = (self.stops[-1][0], at)
        if what == "held":
            self.proven = self.probe if told else at
        elif what in ("enter", "leave") and not told:
            self.proven = at


@dataclass
class Course:
    """The visits of a history, and the times of harm and of load. A visit is an acquire with what
    follows. The methods that return findings need a Course with visits of a single lock name."""

    claims: Claims
    end: float
    flags: Collection[str] = ()  # see `check`
    visits: list[Visit] = field(default_factory=list)
    #: Name of a worker -> times of harm to it. The name "" means all workers.
    harms: dict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))
    #: Process id -> times when the process could not run. The id "" means the observer.
    busy: dict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))

    def load(self, start: float, end: float, *pids: int) -> float:
        """Return how many seconds of delay load excuses between `start` and `end`: LOAD times the
        seconds for which a process could not run. The process with the most such seconds counts.

        `pids`: look only at these processes and at the observer. By default, look at all."""
        names = ["", *map(str, pids)] if pids else [*self.busy]
        waits = (sum(overlap((start, end), one) for one in self.busy[name]) for name in names)
        return LOAD * max(waits, default=0.0)

    def harm_to(self, visit: Visit) -> list[Span]:
        """Return the times when harm was done to the worker of a visit, or to all workers."""
        return [*self.harms[""], *visit.harmed]

    def in_harm(self, visit: Visit, start: float, end: float) -> bool:
        """Return True if harm to the worker of a visit, or to all workers, had an effect between
        `start` and `end`. The effect lasts until DELAY plus a lease after the harm."""
        after = DELAY + (self.claims.lease or 0)
        return any_overlap(((a, b + after) for a, b in self.harm_to(visit)), start, end)

    # More holders than the limit

    def crowds(self) -> Iterator[Finding]:
        """Find times with more holders than the limit. Times with the same first and last holder
        are one finding."""
        spans = [
            (start, end, visit)
            for visit in self.visits
            for start, end in minus((visit.entered, visit.proven), visit.stops)
        ]
        found: dict[tuple[Visit, Visit], tuple[float, float, list[Visit]]] = {}
        for start, end, inside in sweep(spans):
            if len(inside) > self.claims.limit:
                inside.sort(key=lambda one: one.entered)
                pair = inside[0], inside[-1]
                at, took, most = found.get(pair, (start, 0.0, inside))
                found[pair] = at, took + end - start, max(most, inside, key=len)
        for (first, second), (at, took, among) in found.items():
            claims, told, parts = self.claims, first.told < math.inf, list[str]()
            for one in (first, second):
                late = f"the report {one.told - second.entered:+.2f} s after {second.who} entered"
                got = late if one.told < math.inf else "no report of a loss"
                parts.append(f"{one.who} got {got}")
            text = ", ".join(parts) + (f", {len(among)} inside" if len(among) > 2 else "")
            kind, against = TOLD_LATE if told and claims.told else TWO_INSIDE, True
            if at > min(map(self.rightful, among)):
                # A holder's lease may have expired, and the lock does not claim to report that.
                fences = (first.fence, second.fence)
                seen = None not in fences and fences[0] < fences[1]
                kind, against = LATE, claims.fenced and not seen
            elif "lossy" in self.flags and claims.told:
                bound = (claims.lease or 0) + (claims.within or DELAY) + self.load(at, at + took)
                kind, against = TOLD_LATE if told else NEVER_TOLD, took > bound
            elif "lossy" in self.flags:
                against = False
            yield Finding(kind, at, took, text, against)

    def rightful(self, visit: Visit) -> float:
        """Return a time until which the lease of a visit can't have expired. If the lock claims to
        report losses, or claims no lease, return inf: an expiry excuses no overlap."""
        if self.claims.told or not self.claims.lease:
            return math.inf
        if self.claims.renewed:
            return self.renewed_until(visit)
        # Find the earliest time at which the lease may have begun: SHORTLY before `enter`, or
        # earlier if load excuses a delay. A stop or a harm at that time may have delayed the reply.
        # Then the lease may have begun as early as the stop or the harm.
        harms = [span for span in (*visit.stops, *self.harm_to(visit)) if span[0] < visit.entered]
        start = visit.entered
        for _ in range(5):
            start = visit.entered - SHORTLY - self.load(start, visit.entered, visit.pid)
            start = min([start, *(a for a, b in harms if start < b + SHORTLY)])
        return max(visit.asked, start) + self.claims.lease

    def renewed_until(self, visit: Visit) -> float:
        """Return the time until which the process of a visit could renew its lease: the start of
        the first stop, harm, or load of more than a third of the lease. Load counts LOAD times.
        Return inf if there was none."""
        short = (self.claims.lease or math.inf) / 3
        busy = [*self.busy[""], *self.busy[str(visit.pid)]]
        spans = [*visit.stops, *self.harm_to(visit)]
        spans += [(start, start + LOAD * (end - start)) for start, end in busy]
        since = [(max(start, visit.asked), end) for start, end in spans]
        return min((start for start, end in since if end - start > short), default=math.inf)

    # Fences and order

    def fences(self) -> Iterator[Finding]:
        """Find grants whose fence is not greater than the fences of all earlier grants."""
        if not self.claims.fenced:
            return
        granted = sorted((v for v in self.visits if v.entered < math.inf), key=lambda v: v.entered)
        numbers = [-math.inf if one.fence is None else one.fence for one in granted]
        tops = [-math.inf, *accumulate(numbers, max)]
        for visit in granted:
            top = tops[bisect_left(granted, visit.asked, key=lambda one: one.entered)]
            if visit.fence is None or visit.fence <= top:
                text = f"{visit.who} got {visit.fence or 'none'} after {top}"
                yield Finding(FENCE, visit.entered, 0.0, text, "lossy" not in self.flags)

    def orders(self) -> Iterator[Finding]:
        """Find callers that got in before a waiter, although they had clearly arrived later."""
        if not self.claims.fair:
            return
        for late in self.visits:
            early = next((one for one in self.visits if self.passed(one, late)), None)
            if early is not None:
                after = late.asked - early.asked
                text = f"{late.who} asked {after:.2f} s after {early.who}, but got in first"
                yield Finding(ORDER, late.entered, 0.0, text)

    def passed(self, early: Visit, late: Visit) -> bool:
        # Load on the process of `early` may have delayed its request or its reply. Allow for this.
        asked, got = early.asked, early.answered
        return (
            got - asked > 2 * APART
            and asked + APART + self.load(asked, late.asked, early.pid) < late.asked
            and late.entered + APART + self.load(late.entered, got, early.pid) < got
            and not any_overlap([*early.stops, *self.harm_to(early)], asked, late.entered)
        )

    # Permits that are free, but not granted

    def delays(self) -> list[Finding]:
        """Find times when a permit was free, but was not granted. If the lock claims no lease, also
        search as if its lease were USUAL_LEASE seconds. Findings of only this second search don't
        contradict the claims."""
        found = self.idle()
        if self.claims.lease is None:
            usual = replace(self, claims=replace(self.claims, lease=USUAL_LEASE)).idle()
            known = {one.at for one in found}
            found += [replace(one, against=False) for one in usual if one.at not in known]
        return found

    def idle(self) -> list[Finding]:
        """Find times when a permit was free and a worker waited, but no waiter got in."""
        harm, found = ("harm", None), list[Finding]()
        spans: list[Any] = [(start, end, harm) for start, end in self.harms[""]]
        for visit in self.visits:
            spans += [(start, end, ("inside", visit)) for start, end in self.occupied(visit)]
            waits = minus((visit.asked, visit.answered), [*visit.stops, *visit.harmed])
            spans += [(start, end, ("waits", visit)) for start, end in waits]
        spans = [(start, min(end, self.end), value) for start, end, value in spans]
        entries = {visit.entered for visit in self.visits}
        since, whom = math.inf, ""
        for now, _, values in sweep(spans):
            waits = [visit for what, visit in values if what == "waits"]
            taken = sum(what == "inside" for what, _ in values)
            free = waits and taken < self.claims.limit and harm not in values
            if now in entries or not free:
                found += self.stretch(since, now, whom)
                since = math.inf
            if free and since == math.inf:
                since, whom = now, waits[0].who
        return found + self.stretch(since, self.end, whom)

    def stretch(self, start: float, end: float, whom: str) -> list[Finding]:
        claims, took = self.claims, end - start
        # Load excuses at most 70 % of a wait. In the other 30 %, the waiter could run and detect
        # the free permit.
        load = min(self.load(start, end), 0.7 * took)
        if took <= (DELAY if claims.within is None else claims.within) + load:
            return []
        newcomer = next((one for one in self.visits if start <= one.asked < end - 1), None)
        text = f"{whom} waited" + (f", {newcomer.who} came later" if newcomer else "")
        if newcomer and not any(start < one.entered < math.inf for one in self.visits):
            return [Finding(NEVER_FREE, start, took, text)]
        # If the lock does not claim `within`, a wait contradicts its claims on two conditions: the
        # wait is longer than IN_VAIN plus the load, and no harm was done to all workers.
        in_vain = took > IN_VAIN + load and not self.harms[""]
        return [Finding(NOT_GIVEN, start, took, text, claims.within is not None or in_vain)]

    def occupied(self, visit: Visit) -> list[Span]:
        """Return all times at which a visit may have had a permit. If a reply was lost, the worker
        may not know of its permit."""
        lease = math.inf if self.claims.lease is None else self.claims.lease
        # While a waiter's process is stopped, Redis may grant it a permit. Count this permit as in
        # use until the process runs again, or for the lease duration.
        stops = [(a, b) for a, b in visit.stops if a < visit.answered]
        spans = [(a, min(b, a + (lease or math.inf))) for a, b in stops]
        if any_overlap(visit.harmed, visit.asked, visit.answered):
            # The reply with a grant may have been lost. A lock that claims `retries` must free the
            # permit within USUAL_LEASE seconds, even if its lease is longer.
            left = min(lease, USUAL_LEASE) if self.claims.retries else lease
            spans.append((visit.asked, min(visit.answered, visit.harmed[-1][1]) + left))
        if visit.entered < math.inf:
            # A holder has its permit until the release, or until it learns of a loss. If the holder
            # dies or fails, the permit stays taken for the lease duration.
            ends = [min(visit.released, visit.told), min(visit.gone, visit.failed) + lease]
            if lease:
                ends += [start + lease for start, end in visit.stops if end - start > lease]
            spans.append((visit.entered, min(ends)))
        elif visit.failed < visit.gave_up:  # despite the error, Redis may have granted a permit
            spans.append((visit.asked, visit.failed + lease))
        elif visit.gone < visit.gave_up:
            spans.append((visit.gone, visit.gone + lease))
        return spans

    # Late, early, and wrong answers, and lost leases

    def outcomes(self) -> Iterator[Finding]:
        claims, lease = self.claims, self.claims.lease or math.inf
        for one in self.visits:
            end, due = min(one.answered, self.end), one.asked + one.wait
            late = end - due - sum(overlap((one.asked, end), stop) for stop in one.stops)
            text = f"{one.who} called acquire with a timeout of {one.wait:.1f} s"
            if late > LATE_BY + self.load(one.asked, end):
                yield Finding(HUNG, due, late, text, claims.punctual)
            early = due - one.gave_up
            if 0.2 < early < math.inf and not self.in_harm(one, one.asked, one.gave_up):
                yield Finding(EARLY, one.gave_up, early, text, claims.punctual)
            strict = self.flags if claims.retries else ()
            flag = "keeps" if one.entered < math.inf else "retried"
            excused = flag not in strict and self.in_harm(one, one.asked, one.failed)
            if one.failed < math.inf and not excused:
                yield Finding(ERROR, one.failed, 0.0, f"{one.who}: {one.error}")
            # A loss in the first half of a lease is a finding. If the lock renews leases, each loss
            # is a finding until the first long time in which the holder may not have run.
            until = one.entered + lease / 2 if claims.told else -math.inf
            if claims.renewed:
                pauses = [start for start, end in one.pauses if LOAD * (end - start) > lease / 3]
                until = min([self.renewed_until(one), *pauses])
            excused = "keeps" not in strict and self.in_harm(one, one.asked, one.told)
            if one.entered <= one.told < min(until, math.inf) and not excused:
                text = f"{one.who} was running, and its lease had not expired"
                yield Finding(NO_REASON, one.told, 0.0, text)

    def refusals(self) -> Iterator[Finding]:
        """Find short waits that ended without a permit, although a permit was free and no other
        caller waited. Short means less than DELAY seconds. `delays()` finds longer waits."""
        for visit in (one for one in self.visits if one.gave_up - one.asked < DELAY):
            when = (visit.asked, visit.gave_up)
            others = [one for one in self.visits if one is not visit]
            wanted = any_overlap(((one.asked, one.answered) for one in others), *when)
            spans = [span for one in others for span in self.occupied(one)]
            taken = sum(a < visit.gave_up and visit.asked < b for a, b in spans)
            excused = self.in_harm(visit, *when) or 0 < visit.wait < 2 * self.load(*when)
            if taken < self.claims.limit and not wanted and not excused:
                yield Finding(REFUSED, visit.gave_up, 0.0, f"{visit.who} was alone")


# Intervals


def any_overlap(spans: Iterable[Span], start: float, end: float) -> bool:
    return any(a < end and start < b for a, b in spans)


def overlap(one: Span, other: Span) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))


def minus(span: Span, holes: Iterable[Span]) -> list[Span]:
    """Return the parts of `span` that are outside of all `holes`."""
    left = [span] if span[0] < span[1] else []
    for hole in holes:
        parts = [((a, min(b, hole[0])), (max(a, hole[1]), b)) for a, b in left]
        left = [part for pair in parts for part in pair if part[0] < part[1]]
    return left


def sweep(spans: list[tuple[float, float, Any]]) -> Iterator[tuple[float, float, list[Any]]]:
    """Divide time into parts, at each start and each end of a span. For each part, yield its start,
    its end, and the values of all spans that cover the part, in the order of their starts."""
    spans = [one for one in spans if one[0] < one[1]]
    later = sorted(spans, key=lambda one: one[0], reverse=True)
    here: list[tuple[float, float, Any]] = []
    for now, after in pairwise(sorted({time for one in spans for time in one[:2]})):
        here = [one for one in here if one[1] > now]
        while later and later[-1][0] <= now:
            here.append(later.pop())
        yield now, after, [value for _, _, value in here]
