"""A holder's belief in its lease, and the next step that the lease needs. No I/O in here."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from .. import conf
from ..engine.wire import ATTEMPT
from ..exceptions import LeaseLost, NotAcquired
from ..protocol import plans
from ..protocol.keys import Keys
from ..protocol.plans import Answer, Belief, Failure, Grant, Run

#: Renewals in the time of a lease.
_RENEWALS = 3
#: Part of a lease that the keeper leaves when it calls a lease lost that it could not renew.
_MARGIN = 0.05
#: Seconds by which a detached lease may be shorter than was asked for.
_CLOSE = 0.005


class Terms(NamedTuple):
    """How a lease is kept. Seconds; `timeout` inf: permanent; `max_hold` inf: no cap.

    `template`: the str.format template of the name, where that is known.
    """

    keys: Keys
    alias: str
    timeout: float
    renew: bool
    max_hold: float
    min_hold: float
    attempt: float = ATTEMPT
    on_lost: Callable[[Any], Any] | None = None
    template: str = ""

    @property
    def budget(self) -> float:
        return 2 * self.attempt


class Lost(NamedTuple):
    """A lease turned out to be over; the holder has to be told."""

    reason: str


class _Course:
    """How a lease that lives for a while goes on: the belief in it, and its renewals.

    `aims`: the holder's own renewals that are in flight, by number: the ends they ask for. `ends`:
    the end of a lease that is not renewed by itself. `doubt`: seconds before the end at which a
    lease that could not be renewed is given up. `leaving`: it is about to be detached.
    """

    __slots__ = ("aims", "belief", "doubt", "ends", "leaving", "nth")

    def __init__(self, terms: Terms, grant: Grant, renewals: int) -> None:
        self.nth, self.belief = itertools.count(renewals + 1), Belief(grant.until, renewals)
        self.aims: dict[int, float] = {}
        self.ends, self.leaving = grant.ends, False
        self.doubt = _doubt(terms, grant.until - grant.began)


def _doubt(terms: Terms, left: float) -> float:
    return min(0.25, _MARGIN * min(terms.timeout, left)) if terms.renew else 0.0


class LeaseState:
    """Belief in a lease and its schedule. `now` is the client's monotonic clock, in seconds.

    Methods that find out that the lease is over return Lost, or raise LeaseLost to the caller.
    """

    # Invariants: over is empty while it is ours to lose, else says why it is not; closed is what
    # this side did last, released or detached;
    # due is when the keeper has to look, no later than lapses, and only the keeper or a renewal
    # moves it;
    # _untold is emptied by the first thread that finds out that it was lost, in one step;
    # _course is made by the first that asks for it, in one step: most leases are released before
    # anybody does.
    __slots__ = (
        "_courses",
        "_renewals",
        "_untold",
        "_writes",
        "closed",
        "due",
        "grant",
        "over",
        "permits",
        "pid",
        "terms",
    )

    def __init__(self, terms: Terms, grant: Grant, renewals: int, now: float) -> None:
        self.terms, self.grant, self.pid = terms, grant, os.getpid()
        self.permits, self._renewals = grant.permits, renewals
        self.over = self.closed = ""
        self._writes = self.permits == 0
        until = grant.until
        # As _look has it, for a lease that nobody has renewed.
        ends_so = not terms.renew and grant.ends <= until
        self.due = until if ends_so else now + (until - now) / _RENEWALS
        self._untold = [True]
        self._courses: dict[None, _Course] = {}

    @property
    def _course(self) -> _Course:
        found = self._courses.get(None)
        if found is None:
            made = _Course(self.terms, self.grant, self._renewals)
            found = self._courses.setdefault(None, made)
        return found

    # Belief

    @property
    def at_home(self) -> bool:
        """Whether this process took it; a forked child did not."""
        return self.pid == os.getpid()

    @property
    def ours(self) -> bool:
        """Whether it is this process's to use: not lost, released or detached."""
        return not self.over and self.at_home

    @property
    def until(self) -> float:
        """No later than the server's end of this lease, even with renewals on their way there."""
        found = self._courses.get(None)
        return self.grant.until if found is None else found.belief.until

    def remaining(self, now: float) -> float:
        """Seconds that the lease surely still has."""
        return max(0.0, self.until - now) if self.ours else 0.0

    def held(self, now: float) -> bool:
        return self.ours and now < self.until

    def check_ours(self) -> None:
        """LeaseLost when it is not this process's to use."""
        if not self.ours:
            raise self.lost_error()

    def lost_error(self) -> LeaseLost:
        name = self.terms.keys.display
        if not self.at_home:
            return LeaseLost(f"{name!r} is held by process {self.pid}, not by this one")
        return LeaseLost(f"the lease of {name!r} is over: {self.over or 'its time is up'}")

    # Its schedule

    @property
    def lapses(self) -> float:
        """When it is lost unless an answer came by then: before its end, so that there is time to
        say so."""
        return self.until - self._course.doubt if not self.over else math.inf

    def tend(self, now: float) -> Run | Lost | None:
        """The keeper's look: the renewal to send now, or None."""
        if not self.ours:
            self.due = math.inf
            return None
        until, wanted = self.until, self._wanted(now)
        if now >= until:
            return Lost("it was not renewed in time" if wanted > 0 else "its time is over")
        if until - now <= self._course.doubt:
            return Lost("it could not be renewed")
        if now + wanted <= until:
            self._schedule(now)
            return None
        lease, nth, terms = wanted + plans.TICK, next(self._course.nth), self.terms
        self._course.belief.asked(nth, lease, now)
        return plans.renewing(terms.keys, self.grant, lease, nth, terms.attempt)

    def tended(self, step: Run, answer: Answer | Failure, now: float) -> Lost | None:
        """The outcome of that renewal of the keeper's."""
        if not self.ours:
            return None
        if isinstance(answer, Failure):
            # Soon again, and exactly when there is no time left to hope.
            pause = min(1.0, max(0.05, self.terms.timeout / 10))
            self.due = min(now + pause, max(now, self.until - self._course.doubt))
            return None
        until = plans.renewed(answer)
        if until is None:
            return Lost("the server has it no more")
        self._course.belief.answered(plans.number_of(step), until)
        self._schedule(now)
        return None

    def _last(self) -> float:
        """When it ends at the latest, however often the keeper renews it."""
        if self.terms.renew:
            return self.grant.began + self.terms.max_hold
        return self._course.ends

    def _aim(self) -> float:
        """The latest end that its holder asks for at this moment."""
        return max(list(self._course.aims.values()), default=-math.inf)

    def _wanted(self, now: float) -> float:
        """Seconds from now at which the keeper wants it to end."""
        left, aim = self._last() - now, self._aim() - now
        if self._course.leaving:
            return aim
        # No shorter than its holder asks for at this moment: the later of two renewals rules.
        return max(min(self.terms.timeout, left) if self.terms.renew else left, aim)

    def _schedule(self, now: float) -> None:
        """Set when the keeper has to look again."""
        self._look(self.until, max(self._last(), self._aim()), now)

    def _look(self, until: float, last: float, now: float) -> None:
        """Have the keeper look in time: it ends then, and may be renewed up to `last`."""
        left = until - now
        self._course.doubt = doubt = _doubt(self.terms, left)
        self.due = now + left / _RENEWALS if until < last else until - doubt

    # Acts of its holder

    def renewal(self, timeout: float | None, now: float, leaving: bool = False) -> plans.Plan:
        """Has it end `timeout` seconds from now (None: its own). The plan's result: Lost, or None.

        `leaving`: it is about to be detached, and the keeper renews it for no longer than that.
        """
        if timeout is not None:
            timeout = conf.positive("timeout", timeout, infinite=True)
        self.check_ours()
        wanted = self.terms.timeout if timeout is None else timeout
        nth = next(self._course.nth)
        self._course.aims[nth] = end = now + wanted - plans.TICK
        self._course.leaving |= leaving
        # A shorter lease may begin at the server before its answer comes, or without one.
        self._course.belief.asked(nth, wanted, now)
        if not self.terms.renew:
            self._course.ends = min(self._course.ends, end)
        self._schedule(now)
        return self._renewing(nth, wanted, now, leaving)

    def _renewing(self, nth: int, lease: float, now: float, leaving: bool) -> plans.Plan:
        terms, end, aim = self.terms, now + lease, nth
        try:
            while True:
                until = yield from plans.renew(
                    terms.keys, self.grant, lease, nth, terms.budget, terms.attempt, now
                )
                if until is None:
                    return Lost("the server has it no more")
                self._course.belief.answered(nth, until)
                if not leaving or self.until >= end - _CLOSE:
                    break
                nth = next(self._course.nth)  # another thread renewed it meanwhile, for less
                self._course.belief.asked(nth, lease, now)
        except BaseException:
            self._course.leaving &= not leaving
            raise
        finally:
            self._course.aims.pop(aim, None)
        if not terms.renew:
            self._course.ends = self.until
        return None

    def renewed(self, now: float) -> None:
        """The holder's renewal was answered. LeaseLost when it was called lost meanwhile."""
        self.check_ours()
        self._schedule(now)

    def extended(self, additional_time: float, replace_ttl: bool, now: float) -> float:
        """The seconds to renew it for, so that so many are added to the time left."""
        extra = conf.positive("additional_time", additional_time)
        return extra if replace_ttl else self.remaining(now) + extra

    def sharing(self, now: float) -> plans.Plan:
        """Makes a reader's lease of a writer's."""
        self.check_ours()
        if not self._writes:
            raise TypeError(f"{self.terms.keys.display!r}: only a writer's lease can be downgraded")
        # Readers may get in before the answer comes, or without one.
        self.permits = 1
        return plans.share(self.terms.keys, self.grant, self.terms.attempt, now)

    def shared(self, done: bool) -> Lost | None:
        """The server's answer to that. Without one it may be asked again."""
        self._writes = False
        return None if done else Lost("the server has it no more")

    def confirming(self, now: float) -> plans.Plan:
        """Asks the server whether it still has it."""
        return plans.confirm(self.terms.keys, self.grant, self.terms.attempt, now)

    def looking(self, now: float) -> plans.Plan:
        """Asks the server whether the name is held."""
        return plans.run_once("inspect", self.terms.keys, ("", 1), self.terms.attempt, now)

    # Its end

    def lose(self, reason: str) -> bool:
        """False when it was over, or another thread was first: no receiver has to be told."""
        if self.over:
            return False
        try:
            self._untold.pop()
        except IndexError:
            return False
        self.over, self.due = reason, math.inf
        return True

    def end(self) -> None:
        """Nothing renews it from here on. Raises when there is nothing to give back."""
        if self.pid != os.getpid():
            raise self.lost_error()
        if self.closed:
            name = self.terms.keys.display
            raise NotAcquired(f"{name!r} was {self.closed} already", name=name)
        self.closed = "released"
        if not self.over:
            self.over, self.due = "released", math.inf

    def detached(self) -> int:
        """Nothing renews or releases it from here on; a number above those of its renewals."""
        self.over = self.closed = "detached"
        self.due = math.inf
        return next(self._course.nth)

    def giving_back(self) -> Run:
        """The step that gives it back: the first of `releasing`, or all that is done later."""
        terms = self.terms
        return plans.releasing(terms.keys, self.grant, terms.min_hold, terms.attempt)

    def releasing(self, now: float) -> plans.Plan:
        """Gives it back now."""
        terms = self.terms
        return plans.release(
            terms.keys, self.grant, terms.min_hold, terms.budget, terms.attempt, now
        )

    def released(self, done: bool) -> Lost | None:
        """The release's outcome. Lost when this is the first sign that the lease was over."""
        if self.over != "released":
            raise self.lost_error()
        if done:
            return None
        self.over = ""
        return Lost("the server has it no more")
