"""The checker compares a history, which is a list of observed events, with a lock's promises.

`check(history, promises)` returns the problems of the lock, the worst first:

- *Too many holders*: this is certain, because the observer sees holders enter later and leave
  earlier than they really do. A killed holder counts as inside until its last report. If the lock
  promises `reports_loss`, a holder counts as inside until the last check that found the lock held.
- *Too long a wait*: this is uncertain, because waits take longer on a busy machine. If a process of
  the trial could not run for some time, the checker excuses a multiple of this time: see LOAD.
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
#: Seconds that a caller may wait for a free permit. The checker reports longer waits as problems.
#: If a lock promises `max_wait`, the checker uses `max_wait` instead of DELAY.
DELAY = 2.0
#: If a process could not run for N seconds, the checker excuses a delay of N times LOAD. LOAD is 3
#: because a grant passes through three processes: releaser, server, and waiter.
LOAD = 3
#: Max seconds on an idle machine from the server's grant to the worker's `enter` event.
SHORTLY = 0.3
#: Seconds that a caller may wait for a free permit of a lock that does not promise `max_wait`. Only
#: a longer wait counts as a broken promise.
IN_VAIN = 5.0
#: Lease duration in seconds that the checker assumes for locks that promise no `lease`.
USUAL_LEASE = 2.0
#: Seconds by which an acquire may exceed its timeout, before the checker reports a problem.
LATE_BY = 1.0

#: All kinds of problems that the checker reports, the worst first.
KINDS = (
    TWO_INSIDE := "two inside", NEVER_REPORTED := "loss never reported",
    REPORTED_LATE := "loss reported late", NEVER_FREE := "never free again",
    NOT_GIVEN := "free but not granted", ORDER := "order broken", FENCE := "fence went back",
    NO_REASON := "lost without reason", REFUSED := "refused though free", ERROR := "error",
    HUNG := "came back late", EARLY := "gave up early", LATE := "past its lease",
)  # fmt: skip
#: Kinds of problems that can't be caused by a busy machine, only by the lock.
PROVEN = {TWO_INSIDE, NEVER_REPORTED, REPORTED_LATE, FENCE}


@dataclass(frozen=True)
class Promises:
    """What a lock's own documentation promises. All times are in seconds."""

    limit: int = 1  # max holders at the same time
    #: Time until the permit of a dead or stopped holder is free. 0: at once. None: no promise.
    lease: float | None = None
    renewed: bool = False  # a running holder keeps its permit for longer than `lease`
    fair: bool = False  # permits are granted in the order of arrival
    fenced: bool = False  # the fencing token of each grant is greater than all earlier tokens
    reports_loss: bool = False  # a holder can detect a loss before another caller gets its permit
    punctual: bool = False  # acquire returns by the end of its timeout, and never gives up earlier
    retries: bool = False  # one lost or doubled message, or full Redis memory, causes no error
    forks: bool = False  # a forked child can't release or renew the permit of its parent
    max_wait: float | None = None  # max wait for a permit that is free; None: no promise


@dataclass(frozen=True)
class Problem:
    """A problem of a lock. `at`: when it began. `seconds`: its duration, or 0. `breach`: True if
    the problem breaks a promise of the lock. If it is False, the problem is only shown."""

    kind: str
    at: float
    seconds: float
    text: str
    breach: bool = True

    def __str__(self) -> str:
        took = f" for {self.seconds:.2f} s" if self.seconds else ""
        return f"{self.kind}{took}, at {self.at:.2f} s: {self.text}"


def check(
    history: Sequence[Event], promises: Promises, flags: Collection[str] = ()
) -> list[Problem]:
    """Return the problems that a history shows, the worst first. `flags` describe the fault:

    - "lossy": the fault deletes data of the server. Then fencing tokens may go back, and a second
      holder may get in before the first holder has detected its loss.
    - "keeps": even under the fault, a lost lease or a failed release is a problem.
    - "retried": even under the fault, a failed acquire is a problem.

    If the lock does not promise `retries`, ignore "keeps" and "retried".
    """
    course, found = replace(read(history, promises), flags=flags), list[Problem]()
    for name in dict.fromkeys(attempt.name for attempt in course.attempts):
        one = replace(course, attempts=[one for one in course.attempts if one.name == name])
        found += [*one.overlaps(), *one.fences(), *one.orders(), *one.delays()]
        found += [*one.outcomes(), *one.refusals()]
    return sorted(found, key=lambda one: (not one.breach, KINDS.index(one.kind), -one.seconds))


def read(history: Sequence[Event], promises: Promises = Promises()) -> Course:
    """Return a Course: the attempts in a history, and the spans of time with faults or load."""
    course = Course(promises, history[-1].at if history else 0.0)
    latest: dict[str, Attempt] = {}
    for event in history:
        what, at, faults = event.what, event.at, course.faults
        if what == "ask":
            wait = math.inf if event.number is None else event.number
            made = Attempt(event.who, event.pid, event.name, wait, at, faults[event.who])
            latest[event.reporter] = made
            course.attempts.append(made)
        elif what == "busy":
            course.busy[event.name].append((at - (event.number or 0), at))
        elif what == "fault":
            faults[event.name].append((at, math.inf))
        elif what == "fault_end":
            faults[event.name][-1] = (faults[event.name][-1][0], at)
        elif event.reporter in latest:
            latest[event.reporter].note(event, promises.reports_loss)
    return course


def gap(history: Sequence[Event], limit: int = 1) -> float:
    """Return the longest time in seconds for which a permit was free although a worker waited."""
    calm = [event for event in history if event.what not in ("fault", "fault_end", "busy")]
    found = read(calm, Promises(limit, lease=1e-6, renewed=True, max_wait=0)).idle()
    return max((one.seconds for one in found), default=0.0)


#: Kind of event -> attribute of `Attempt` that stores when such an event first happened.
_TIMES = {
    "enter": "entered", "lost": "reported", "refused": "reported", "closed": "gone", "died": "gone",
    "error": "failed", "leave": "left", "released": "released", "gave_up": "gave_up",
}  # fmt: skip


@dataclass(eq=False)
class Attempt:
    """A worker's acquire of a lock, and what followed. All times are those of the observer."""

    who: str
    pid: int
    name: str
    wait: float
    asked: float
    #: Times of faults that affected this worker. Then a reply with a grant may have been lost.
    faults: list[Span]
    entered: float = math.inf
    fence: float | None = None
    proven: float = -math.inf  # the last time at which the worker certainly held the lock
    reported: float = math.inf
    left: float = math.inf
    released: float = math.inf
    gave_up: float = math.inf
    failed: float = math.inf
    gone: float = math.inf
    error: str = ""
    probe: float = 0.0
    stops: list[Span] = field(default_factory=list)
    #: Periods longer than APART seconds between two checks. Perhaps the holder did not run then.
    pauses: list[Span] = field(default_factory=list)

    @property
    def answered(self) -> float:
        """The time when acquire returned or raised an error, or when the worker ended."""
        return min(self.entered, self.gave_up, self.failed, self.gone)

    def note(self, event: Event, reports_loss: bool) -> None:
        """Add an event to this attempt. `reports_loss`: True if the lock promises this."""
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
            self.proven = self.probe if reports_loss else at
        elif what in ("enter", "leave") and not reports_loss:
            self.proven = at


@dataclass
class Course:
    """The attempts in a history, and the times of faults and of load. Methods that return problems
    expect that all attempts use the same lock name."""

    promises: Promises
    end: float
    flags: Collection[str] = ()  # see `check`
    attempts: list[Attempt] = field(default_factory=list)
    #: Name of a worker -> times of faults that affected it. The name "" means all workers.
    faults: dict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))
    #: Process id -> times when the process could not run. The id "" stands for the observer.
    busy: dict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))

    def load(self, start: float, end: float, *pids: int) -> float:
        """Return how many seconds of delay are excused between `start` and `end`, because processes
        could not run: LOAD times the longest total time for which one process could not run.

        `pids`: consider only these processes and the observer. By default, consider all."""
        names = ["", *map(str, pids)] if pids else [*self.busy]
        waits = (sum(overlap((start, end), one) for one in self.busy[name]) for name in names)
        return LOAD * max(waits, default=0.0)

    def faults_of(self, attempt: Attempt) -> list[Span]:
        """Return the times of faults that affected all workers, or the worker of an attempt."""
        return [*self.faults[""], *attempt.faults]

    def under_fault(self, attempt: Attempt, start: float, end: float) -> bool:
        """Return True if a fault may have affected the worker of an attempt between `start` and
        `end`. A fault has effects until DELAY plus a lease duration after its end."""
        after = DELAY + (self.promises.lease or 0)
        return any_overlap(((a, b + after) for a, b in self.faults_of(attempt)), start, end)

    # More holders than the limit

    def overlaps(self) -> Iterator[Problem]:
        """Find times with more holders than the limit. Report times that have the same first holder
        and the same last holder as one problem."""
        spans = [
            (start, end, attempt)
            for attempt in self.attempts
            for start, end in minus((attempt.entered, attempt.proven), attempt.stops)
        ]
        found: dict[tuple[Attempt, Attempt], tuple[float, float, list[Attempt]]] = {}
        for start, end, inside in sweep(spans):
            if len(inside) > self.promises.limit:
                inside.sort(key=lambda one: one.entered)
                pair = inside[0], inside[-1]
                at, took, most = found.get(pair, (start, 0.0, inside))
                found[pair] = at, took + end - start, max(most, inside, key=len)
        for (first, second), (at, took, among) in found.items():
            promises, late, parts = self.promises, first.reported < math.inf, list[str]()
            for one in (first, second):
                after = f"{one.reported - second.entered:+.2f} s after {second.who} entered"
                got = f"the report {after}" if one.reported < math.inf else "no report of a loss"
                parts.append(f"{one.who} got {got}")
            text = ", ".join(parts) + (f", {len(among)} inside" if len(among) > 2 else "")
            kind, breach = REPORTED_LATE if late and promises.reports_loss else TWO_INSIDE, True
            if at > min(map(self.unexpired_until, among)):
                # The lease of a holder may have expired. The lock does not promise to report this.
                fences = (first.fence, second.fence)
                seen = None not in fences and fences[0] < fences[1]
                kind, breach = LATE, promises.fenced and not seen
            elif "lossy" in self.flags and promises.reports_loss:
                bound = (promises.lease or 0) + (promises.max_wait or DELAY)
                bound += self.load(at, at + took)
                kind, breach = REPORTED_LATE if late else NEVER_REPORTED, took > bound
            elif "lossy" in self.flags:
                breach = False
            yield Problem(kind, at, took, text, breach)

    def unexpired_until(self, attempt: Attempt) -> float:
        """Return a time before which the lease of an attempt can't have expired. Return inf if the
        lock promises `reports_loss`, or no `lease`. Such a lock has no excuse for an overlap."""
        if self.promises.reports_loss or not self.promises.lease:
            return math.inf
        if self.promises.renewed:
            return self.renewed_until(attempt)
        # Find the earliest time at which the lease may have begun: SHORTLY before the attempt's
        # `enter` event, or earlier if a process could not run. If a stop of the worker or a fault
        # delayed the reply, the lease may have begun when the stop or the fault began.
        spans = [*attempt.stops, *self.faults_of(attempt)]
        start = attempt.entered
        for _ in range(5):
            start = attempt.entered - SHORTLY - self.load(start, attempt.entered, attempt.pid)
            start = min([start, *(a for a, b in spans if start < b + SHORTLY)])
        return max(attempt.asked, start) + self.promises.lease

    def renewed_until(self, attempt: Attempt) -> float:
        """Return the time until which the worker of an attempt could certainly renew its lease: the
        start of the first stop, fault, or load that took more than a third of the lease duration.
        Load counts as LOAD times its duration. If there was none of these, return inf."""
        short = (self.promises.lease or math.inf) / 3
        busy = [*self.busy[""], *self.busy[str(attempt.pid)]]
        spans = [*attempt.stops, *self.faults_of(attempt)]
        spans += [(start, start + LOAD * (end - start)) for start, end in busy]
        since = [(max(start, attempt.asked), end) for start, end in spans]
        return min((start for start, end in since if end - start > short), default=math.inf)

    # Fences and order

    def fences(self) -> Iterator[Problem]:
        """Find grants whose fencing token is not greater than the tokens of all earlier grants."""
        if not self.promises.fenced:
            return
        granted = [one for one in self.attempts if one.entered < math.inf]
        granted.sort(key=lambda one: one.entered)
        numbers = [-math.inf if one.fence is None else one.fence for one in granted]
        tops = [-math.inf, *accumulate(numbers, max)]
        for attempt in granted:
            top = tops[bisect_left(granted, attempt.asked, key=lambda one: one.entered)]
            if attempt.fence is None or attempt.fence <= top:
                text = f"{attempt.who} got {attempt.fence or 'none'} after {top}"
                yield Problem(FENCE, attempt.entered, 0.0, text, "lossy" not in self.flags)

    def orders(self) -> Iterator[Problem]:
        """Find callers that got a permit before a waiter that had clearly asked earlier."""
        if not self.promises.fair:
            return
        for late in self.attempts:
            early = next((one for one in self.attempts if self.passed(one, late)), None)
            if early is not None:
                after = late.asked - early.asked
                text = f"{late.who} asked {after:.2f} s after {early.who}, but got in first"
                yield Problem(ORDER, late.entered, 0.0, text)

    def passed(self, early: Attempt, late: Attempt) -> bool:
        # Allow for load: if the process of `early` could not run, its request or reply was late.
        asked, got = early.asked, early.answered
        return (
            got - asked > 2 * APART
            and asked + APART + self.load(asked, late.asked, early.pid) < late.asked
            and late.entered + APART + self.load(late.entered, got, early.pid) < got
            and not any_overlap([*early.stops, *self.faults_of(early)], asked, late.entered)
        )

    # Permits that are free, but not granted

    def delays(self) -> list[Problem]:
        """Find times when a permit was free, but was not granted. If the lock promises no lease,
        also search as if it had promised a lease of USUAL_LEASE seconds. A problem that only this
        second search finds breaks no promise."""
        found = self.idle()
        if self.promises.lease is None:
            usual = replace(self, promises=replace(self.promises, lease=USUAL_LEASE)).idle()
            known = {one.at for one in found}
            found += [replace(one, breach=False) for one in usual if one.at not in known]
        return found

    def idle(self) -> list[Problem]:
        """Find times when a permit was free and a worker waited, but no waiter got in."""
        fault, found = ("fault", None), list[Problem]()
        spans: list[Any] = [(start, end, fault) for start, end in self.faults[""]]
        for attempt in self.attempts:
            spans += [(start, end, ("inside", attempt)) for start, end in self.occupied(attempt)]
            waits = minus((attempt.asked, attempt.answered), [*attempt.stops, *attempt.faults])
            spans += [(start, end, ("waits", attempt)) for start, end in waits]
        spans = [(start, min(end, self.end), value) for start, end, value in spans]
        entries = {attempt.entered for attempt in self.attempts}
        since, whom = math.inf, ""
        for now, _, values in sweep(spans):
            waits = [attempt for what, attempt in values if what == "waits"]
            taken = sum(what == "inside" for what, _ in values)
            free = waits and taken < self.promises.limit and fault not in values
            if now in entries or not free:
                found += self.stretch(since, now, whom)
                since = math.inf
            if free and since == math.inf:
                since, whom = now, waits[0].who
        return found + self.stretch(since, self.end, whom)

    def stretch(self, start: float, end: float, whom: str) -> list[Problem]:
        promises, took = self.promises, end - start
        # Load excuses at most 70 % of a wait. So even under load, an endless wait is reported.
        load = min(self.load(start, end), 0.7 * took)
        if took <= (DELAY if promises.max_wait is None else promises.max_wait) + load:
            return []
        newcomer = next((one for one in self.attempts if start <= one.asked < end - 1), None)
        text = f"{whom} waited" + (f", {newcomer.who} came later" if newcomer else "")
        if newcomer and not any(start < one.entered < math.inf for one in self.attempts):
            return [Problem(NEVER_FREE, start, took, text)]
        # If the lock does not promise `max_wait`, a wait only counts as a broken promise if it was
        # longer than IN_VAIN plus the load, and if no fault affected all workers.
        in_vain = took > IN_VAIN + load and not self.faults[""]
        return [Problem(NOT_GIVEN, start, took, text, promises.max_wait is not None or in_vain)]

    def occupied(self, attempt: Attempt) -> list[Span]:
        """Return all times at which the worker of an attempt may have had a permit. If a reply was
        lost, the worker may have a permit without knowing it."""
        lease = math.inf if self.promises.lease is None else self.promises.lease
        # Redis may grant a permit to a waiter whose process is stopped. Assume that this permit is
        # in use until the process runs again, but no longer than the lease duration.
        stops = [(a, b) for a, b in attempt.stops if a < attempt.answered]
        spans = [(a, min(b, a + (lease or math.inf))) for a, b in stops]
        if any_overlap(attempt.faults, attempt.asked, attempt.answered):
            # Redis may have granted a permit although the worker got no reply. If the lock promises
            # `retries`, assume that this permit is free again after USUAL_LEASE seconds at most.
            left = min(lease, USUAL_LEASE) if self.promises.retries else lease
            spans.append((attempt.asked, min(attempt.answered, attempt.faults[-1][1]) + left))
        if attempt.entered < math.inf:
            # A holder has its permit until it releases the permit or learns of a loss. If the
            # holder dies or gets an error, its permit is in use for another lease duration.
            ends = [attempt.released, attempt.reported, min(attempt.gone, attempt.failed) + lease]
            if lease:
                ends += [start + lease for start, end in attempt.stops if end - start > lease]
            spans.append((attempt.entered, min(ends)))
        elif attempt.failed < attempt.gave_up:  # despite the error, Redis may have granted a permit
            spans.append((attempt.asked, attempt.failed + lease))
        elif attempt.gone < attempt.gave_up:
            spans.append((attempt.gone, attempt.gone + lease))
        return spans

    # Late, early, and wrong answers, and lost leases

    def outcomes(self) -> Iterator[Problem]:
        promises, lease = self.promises, self.promises.lease or math.inf
        for one in self.attempts:
            end, due = min(one.answered, self.end), one.asked + one.wait
            late = end - due - sum(overlap((one.asked, end), stop) for stop in one.stops)
            text = f"{one.who} called acquire with a timeout of {one.wait:.1f} s"
            if late > LATE_BY + self.load(one.asked, end):
                yield Problem(HUNG, due, late, text, promises.punctual)
            early = due - one.gave_up
            if 0.2 < early < math.inf and not self.under_fault(one, one.asked, one.gave_up):
                yield Problem(EARLY, one.gave_up, early, text, promises.punctual)
            strict = self.flags if promises.retries else ()
            flag = "keeps" if one.entered < math.inf else "retried"
            excused = flag not in strict and self.under_fault(one, one.asked, one.failed)
            if one.failed < math.inf and not excused:
                yield Problem(ERROR, one.failed, 0.0, f"{one.who}: {one.error}")
            # A lease must not be lost in its first half. If the lock renews leases, a lease must
            # not be lost before the first long time in which its holder may not have run.
            until = one.entered + lease / 2 if promises.reports_loss else -math.inf
            if promises.renewed:
                pauses = [start for start, end in one.pauses if LOAD * (end - start) > lease / 3]
                until = min([self.renewed_until(one), *pauses])
            excused = "keeps" not in strict and self.under_fault(one, one.asked, one.reported)
            if one.entered <= one.reported < min(until, math.inf) and not excused:
                text = f"{one.who} was running, and its lease had not expired"
                yield Problem(NO_REASON, one.reported, 0.0, text)

    def refusals(self) -> Iterator[Problem]:
        """Find attempts that gave up in less than DELAY seconds, although a permit was free and no
        other caller waited. `delays()` finds longer waits for a free permit."""
        for attempt in (one for one in self.attempts if one.gave_up - one.asked < DELAY):
            when = (attempt.asked, attempt.gave_up)
            others = [one for one in self.attempts if one is not attempt]
            wanted = any_overlap(((one.asked, one.answered) for one in others), *when)
            spans = [span for one in others for span in self.occupied(one)]
            taken = sum(a < attempt.gave_up and attempt.asked < b for a, b in spans)
            excused = self.under_fault(attempt, *when) or 0 < attempt.wait < 2 * self.load(*when)
            if taken < self.promises.limit and not wanted and not excused:
                yield Problem(REFUSED, attempt.gave_up, 0.0, f"{attempt.who} was alone")


# Intervals


def any_overlap(spans: Iterable[Span], start: float, end: float) -> bool:
    return any(a < end and start < b for a, b in spans)


def overlap(one: Span, other: Span) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))


def minus(span: Span, holes: Iterable[Span]) -> list[Span]:
    """Return the parts of the interval `span` that no interval in `holes` covers."""
    left = [span] if span[0] < span[1] else []
    for hole in holes:
        parts = [((a, min(b, hole[0])), (max(a, hole[1]), b)) for a, b in left]
        left = [part for pair in parts for part in pair if part[0] < part[1]]
    return left


def sweep(spans: list[tuple[float, float, Any]]) -> Iterator[tuple[float, float, list[Any]]]:
    """Divide time at the start and the end of each span (start, end, value). For each part, yield
    its start, its end, and the values of all spans that cover it, in the order of their starts."""
    spans = [one for one in spans if one[0] < one[1]]
    later = sorted(spans, key=lambda one: one[0], reverse=True)
    here: list[tuple[float, float, Any]] = []
    for now, after in pairwise(sorted({time for one in spans for time in one[:2]})):
        here = [one for one in here if one[1] > now]
        while later and later[-1][0] <= now:
            here.append(later.pop())
        yield now, after, [value for _, _, value in here]
