"""What a holder may believe of its lease, and what is to be done for it next. No I/O in here."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from .. import conf
from ..engine.wire import ATTEMPT
from ..exceptions import LeaseLost, NotAcquired
from ..protocol import plans
from ..protocol.keys import Keys
from ..protocol.plans import Answer, Failure, Grant, Run

#: Part of a lease that the keeper leaves when it calls a lease lost that it could not renew.
_MARGIN = 0.05


@dataclass(frozen=True, slots=True)
class Terms:
    """How a lease is kept. Seconds; `timeout` inf: permanent; `max_hold` inf: no cap."""

    keys: Keys
    alias: str
    timeout: float
    renew: bool
    max_hold: float
    min_hold: float
    attempt: float = ATTEMPT
    on_lost: Callable[[Any], Any] | None = None

    @property
    def budget(self) -> float:
        return 2 * self.attempt


class Lost(NamedTuple):
    """A lease turned out to be over; the holder has to be told."""

    reason: str


class LeaseState:
    """Belief in one lease and its schedule. `now` is the client's monotonic clock, in seconds.

    Methods that find out that the lease is over return Lost, or raise LeaseLost to the caller.
    """

    # Invariants: until never lies behind the server's end of this lease;
    # over is empty while it is ours to lose, else says why it is not; closed is what this side
    # did last, released or detached;
    # due is when the keeper has to look, and only the keeper or a renewal moves it.
    __slots__ = ("closed", "due", "grant", "nth", "over", "pid", "terms", "until")

    def __init__(self, terms: Terms, grant: Grant, renewals: int, now: float) -> None:
        self.terms, self.grant, self.pid = terms, grant, os.getpid()
        self.nth = itertools.count(renewals + 1)
        self.over = self.closed = ""
        self.until, self.due = grant.until, math.inf
        self._schedule(now)

    # What is believed

    @property
    def at_home(self) -> bool:
        """Whether this process took it; a forked child did not."""
        return self.pid == os.getpid()

    @property
    def ours(self) -> bool:
        """Whether it is this process's to use: not lost, released or detached."""
        return not self.over and self.at_home

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

    def tend(self, now: float) -> Run | Lost | None:
        """The keeper's look: the renewal to send now, or None."""
        if not self.ours:
            self.due = math.inf
            return None
        wanted = self._wanted(now)
        if now >= self.until:
            return Lost("it was not renewed in time" if wanted > 0 else "its time is over")
        if self.until - now <= self._doubt():
            return Lost("it could not be renewed")
        if wanted == math.inf or now + wanted <= self.until:
            self._schedule(now)
            return None
        lease, terms = wanted + plans.TICK, self.terms
        return plans.renewing(terms.keys, self.grant, lease, next(self.nth), terms.attempt)

    def tended(self, answer: Answer | Failure, now: float) -> Lost | None:
        """What came of the keeper's renewal."""
        if not self.ours:
            return None
        if isinstance(answer, Failure):
            # Soon again, and exactly when there is no time left to hope.
            step = min(1.0, max(0.05, self.terms.timeout / 10))
            self.due = min(now + step, max(now, self.until - self._doubt()))
            return None
        until = plans.renewed(answer)
        if until is None:
            return Lost("the server has it no more")
        self.until = until
        self._schedule(now)
        return None

    def _last(self) -> float:
        """When it ends at the latest, however often it is renewed."""
        if self.terms.renew:
            return self.grant.began + self.terms.max_hold
        return self.grant.ends

    def _wanted(self, now: float) -> float:
        """Seconds from now at which the lease should end."""
        left = self._last() - now
        return min(self.terms.timeout, left) if self.terms.renew else left

    def _doubt(self) -> float:
        """Seconds before the end at which a lease that has to be renewed is given up."""
        return min(0.25, self.terms.timeout * _MARGIN) if self.terms.renew else 0.0

    def _schedule(self, now: float) -> None:
        """Set when the keeper has to look again."""
        renewable = self.until < self._last()
        self.due = now + (self.until - now) / 3 if renewable else self.until

    # What its holder does

    def renewal(self, timeout: float | None, now: float) -> plans.Plan:
        """Has it end `timeout` seconds from now (None: its own)."""
        if timeout is not None:
            timeout = conf.positive("timeout", timeout, infinite=True)
        self.check_ours()
        terms = self.terms
        wanted = terms.timeout if timeout is None else timeout
        # A shorter lease may begin at the server before its answer comes, or without one.
        self.until = min(self.until, now + wanted)
        nth = next(self.nth)
        return plans.renew(terms.keys, self.grant, wanted, nth, terms.budget, terms.attempt, now)

    def renewed(self, until: float | None, now: float) -> Lost | None:
        """What came of a renewal of the holder's."""
        if until is None:
            return Lost("the server has it no more")
        self.until = until
        if not self.terms.renew:
            self.grant = self.grant._replace(ends=until)
        self._schedule(now)
        return None

    def extended(self, additional_time: float, replace_ttl: bool, now: float) -> float:
        """The seconds to renew it for, so that so many are added to what is left."""
        extra = conf.positive("additional_time", additional_time)
        return extra if replace_ttl else self.remaining(now) + extra

    def sharing(self, now: float) -> plans.Plan:
        """Makes a reader's lease of a writer's."""
        self.check_ours()
        if self.grant.permits != 0:
            raise TypeError(f"{self.terms.keys.display!r}: only a writer's lease can be downgraded")
        # Readers may get in before the answer comes, or without one.
        self.grant = self.grant._replace(permits=1)
        return plans.share(self.terms.keys, self.grant, self.terms.attempt, now)

    def confirming(self, now: float) -> plans.Plan:
        """Asks the server whether it still has it."""
        return plans.confirm(self.terms.keys, self.grant, self.terms.attempt, now)

    def looking(self, now: float) -> plans.Plan:
        """Asks the server who holds the name."""
        return plans.run_once("inspect", self.terms.keys, ("", 1), self.terms.attempt, now)

    # Its end

    def lose(self, reason: str) -> bool:
        """False when it was over before: nobody has to be told."""
        if self.over:
            return False
        self.over, self.due = reason, math.inf
        return True

    def end(self) -> None:
        """Nothing renews it from here on. Raises when there is nothing to give back."""
        if not self.at_home:
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
        return next(self.nth)

    def giving_back(self) -> Run:
        """The step that gives it back, for later."""
        terms = self.terms
        return plans.releasing(terms.keys, self.grant, terms.min_hold, terms.attempt)

    def releasing(self, now: float) -> plans.Plan:
        """Gives it back now."""
        terms = self.terms
        return plans.release(
            terms.keys, self.grant, terms.min_hold, terms.budget, terms.attempt, now
        )

    def released(self, done: bool) -> Lost | None:
        """What came of that. Lost when nobody knew yet that it was over."""
        if self.over != "released":
            raise self.lost_error()
        if done:
            return None
        self.over = ""
        return Lost("the server has it no more")
