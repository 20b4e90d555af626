"""The checker compares a history with the claims of a lock.

`check(history, claims)` returns findings, the worst first. It is strict about facts that the
observer can prove, and tolerant about others:

- An *overlap* is proven, because observed intervals are inside the true ones. A killed holder
  counts until its last message. If a lock reports losses, its holder counts until the last time
  when the lock reported that it is held. So a busy machine can't make one holder look like two.
- *Waiting* is measured from outside, and takes longer on a busy machine. Its bounds are extended by
  a multiple of the time for which a process of the trial could not run: see LOAD.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from .course import (
    APART,
    DELAY,
    LOAD,
    Claims,
    Course,
    Span,
    Visit,
    any_overlap,
    minus,
    overlap,
    read,
    sweep,
)
from .observer import Event

#: Max seconds from a grant to its `enter` event on an idle machine.
SHORTLY = 0.3
#: For locks that claim no time: the longest wait in vain, and the lease duration, in seconds.
IN_VAIN, USUAL_LEASE = 5.0, 2.0
#: An answer counts as late if it comes more than this many seconds after the claimed time.
LATE_BY = 1.0

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


@dataclass(frozen=True)
class Finding:
    """A finding in a history. `against`: True if the finding contradicts the claims. If False, the
    finding is only reported."""

    kind: str
    at: float
    seconds: float
    text: str
    against: bool = True

    def __str__(self) -> str:
        took = f" for {self.seconds:.2f} s" if self.seconds else ""
        return f"{self.kind}{took}, at {self.at:.2f} s: {self.text}"


def check(history: Sequence[Event], claims: Claims, flags: Collection[str] = ()) -> list[Finding]:
    """Return all findings of a history, the worst first. `flags` describe the harm of the trial.

    "lossy" means that the server's data was deleted. Then fences may go back, and two holders may
    be inside until the first one has detected the loss. The other flags count only if the lock
    claims `retries`. "keeps" means that the harm may not make it lose a lease or fail a release.
    "retried" means that the harm may not make an acquire fail.
    """
    course, found = replace(read(history, claims, _Judge), flags=flags), list[Finding]()
    for name in dict.fromkeys(visit.name for visit in course.visits):
        one = replace(course, visits=[visit for visit in course.visits if visit.name == name])
        found += [*one.crowds(), *one.fences(), *one.orders(), *one.delays()]
        found += [*one.outcomes(), *one.refusals()]
    return sorted(found, key=lambda one: (not one.against, KINDS.index(one.kind), -one.seconds))


def gap(history: Sequence[Event], limit: int = 1) -> float:
    """Return the longest time in seconds in which the lock was free although a worker waited."""
    calm = [event for event in history if event.what not in ("harm", "calm", "busy")]
    found = read(calm, Claims(limit, lease=1e-6, renewed=True, within=0), _Judge).idle()
    return max((one.seconds for one in found), default=0.0)


@dataclass
class _Judge(Course):
    """The rules, for the visits of one name."""

    flags: Collection[str] = ()  # see `check`

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
        for pair, (at, took, most) in found.items():
            yield self.crowd(*pair, most, at, took)

    def crowd(
        self, first: Visit, second: Visit, among: list[Visit], at: float, took: float
    ) -> Finding:
        claims, told = self.claims, first.told < math.inf
        parts = [f"{one.who} {_telling(one, second.entered)}" for one in (first, second)]
        text = ", ".join(parts) + (f", {len(among)} inside" if len(among) > 2 else "")
        if at > min(map(self.rightful, among)):
            # A holder stayed longer than its lease, and its lock does not claim to report that.
            fences = (first.fence, second.fence)
            seen = None not in fences and fences[0] < fences[1]
            return Finding(LATE, at, took, text, claims.fenced and not seen)
        if "lossy" not in self.flags:
            return Finding(TOLD_LATE if told and claims.told else TWO_INSIDE, at, took, text)
        if not claims.told:
            return Finding(TWO_INSIDE, at, took, text, against=False)
        bound = (claims.lease or 0) + (claims.within or DELAY) + self.load(at, at + took)
        return Finding(TOLD_LATE if told else NEVER_TOLD, at, took, text, took > bound)

    def rightful(self, visit: Visit) -> float:
        """Return the time until which a holder may rely on its lease without a check."""
        if self.claims.told or not self.claims.lease:
            return math.inf
        if self.claims.renewed:
            return self.renewed_until(visit)
        # Its lease began shortly before `enter`, or before what delayed the reply to its process.
        harms = [span for span in (*visit.stops, *self.harm_to(visit)) if span[0] < visit.entered]
        start = visit.entered
        for _ in range(5):
            start = visit.entered - SHORTLY - self.load(start, visit.entered, visit.pid)
            start = min([start, *(a for a, b in harms if start < b + SHORTLY)])
        return max(visit.asked, start) + self.claims.lease

    def renewed_until(self, visit: Visit) -> float:
        """Return the first time when the visit's process could not run, or could not reach its
        server."""
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
        """Find waiters that were overtaken by a waiter that clearly arrived later."""
        if not self.claims.fair:
            return
        patient = [one for one in self.visits if one.answered - one.asked > 2 * APART]
        for late in self.visits:
            early = next((one for one in patient if self.passed(one, late)), None)
            if early is not None:
                after = late.asked - early.asked
                text = f"{late.who} asked {after:.2f} s after {early.who}, and passed it"
                yield Finding(ORDER, late.entered, 0.0, text)

    def passed(self, early: Visit, late: Visit) -> bool:
        # The waiter's message may have been delayed while its process could not run.
        asked, got = early.asked, early.answered
        return (
            asked + APART + self.load(asked, late.asked, early.pid) < late.asked
            and late.entered + APART + self.load(late.entered, got, early.pid) < got
            and not any_overlap([*early.stops, *self.harm_to(early)], asked, late.entered)
        )

    # Free, and not granted

    def delays(self) -> list[Finding]:
        """Find times when a permit was free and not granted. If the lock claims no lease, also
        report what would contradict a lease of USUAL_LEASE seconds."""
        found = self.idle()
        if self.claims.lease is None:
            usual = replace(self, claims=replace(self.claims, lease=USUAL_LEASE)).idle()
            known = {one.at for one in found}
            found += [replace(one, against=False) for one in usual if one.at not in known]
        return found

    def idle(self) -> list[Finding]:
        """Find times when a permit was free, and no waiter got in."""
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
        # A process that runs for a third of the time can detect a free permit.
        load = min(self.load(start, end), 0.7 * took)
        if took <= (DELAY if claims.within is None else claims.within) + load:
            return []
        newcomer = next((one for one in self.visits if start <= one.asked < end - 1), None)
        text = f"{whom} waited" + (f", {newcomer.who} came later" if newcomer else "")
        if newcomer and not any(start < one.entered < math.inf for one in self.visits):
            return [Finding(NEVER_FREE, start, took, text)]
        # If the lock claims no time, the wait counts only if the server was not harmed.
        in_vain = took > IN_VAIN + load and not self.harms[""]
        return [Finding(NOT_GIVEN, start, took, text, claims.within is not None or in_vain)]

    def occupied(self, visit: Visit) -> list[Span]:
        """Return the longest times for which a visit may have a permit. The caller may not know of
        the grant, because the reply was lost."""
        lease = math.inf if self.claims.lease is None else self.claims.lease
        # A stopped waiter may have a grant until it runs again, or until the lease expires.
        stops = [(a, b) for a, b in visit.stops if a < visit.answered]
        spans = [(a, min(b, a + (lease or math.inf))) for a, b in stops]
        if any_overlap(visit.harmed, visit.asked, visit.answered):
            # If the lock claims to survive a lost message, the grant of the lost reply ends.
            left = min(lease, USUAL_LEASE) if self.claims.retries else lease
            spans.append((visit.asked, min(visit.answered, visit.harmed[-1][1]) + left))
        if visit.entered < math.inf:
            # A running holder has its permit.
            ends = [min(visit.released, visit.told), min(visit.gone, visit.failed) + lease]
            if lease:
                ends += [start + lease for start, end in visit.stops if end - start > lease]
            spans.append((visit.entered, min(ends)))
        elif visit.failed < visit.gave_up:  # the failed acquire may have got a grant
            spans.append((visit.asked, visit.failed + lease))
        elif visit.gone < visit.gave_up:
            spans.append((visit.gone, visit.gone + lease))
        return spans

    # Answers that are late, early or wrong, and losses

    def outcomes(self) -> Iterator[Finding]:
        claims, lease = self.claims, self.claims.lease or math.inf
        for one in self.visits:
            end, due = min(one.answered, self.end), one.asked + one.wait
            late = end - due - sum(overlap((one.asked, end), stop) for stop in one.stops)
            text = f"{one.who} wanted to wait for {one.wait:.1f} s"
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
            # The holder may not lose the first half of a lease. It may not lose a renewed lease
            # while it runs. After a long time between two of its checks, it may not have run.
            until = one.entered + lease / 2 if claims.told else -math.inf
            if claims.renewed:
                pauses = [start for start, end in one.pauses if LOAD * (end - start) > lease / 3]
                until = min([self.renewed_until(one), *pauses])
            excused = "keeps" not in strict and self.in_harm(one, one.asked, one.told)
            if one.entered <= one.told < min(until, math.inf) and not excused:
                text = f"{one.who} was running, and its lease was not over"
                yield Finding(NO_REASON, one.told, 0.0, text)

    def refusals(self) -> Iterator[Finding]:
        """Find short waits that got no permit although there was no other caller. `delays` finds
        long waits."""
        for visit in (one for one in self.visits if one.gave_up - one.asked < DELAY):
            when = (visit.asked, visit.gave_up)
            others = [one for one in self.visits if one is not visit]
            wanted = any_overlap(((one.asked, one.answered) for one in others), *when)
            spans = [span for one in others for span in self.occupied(one)]
            taken = sum(a < visit.gave_up and visit.asked < b for a, b in spans)
            excused = self.in_harm(visit, *when) or 0 < visit.wait < 2 * self.load(*when)
            if taken < self.claims.limit and not wanted and not excused:
                yield Finding(REFUSED, visit.gave_up, 0.0, f"{visit.who} was alone")


def _telling(visit: Visit, since: float) -> str:
    if visit.told == math.inf:
        return "got no report of a loss"
    return f"got the report of its loss {visit.told - since:+.2f} s later"
