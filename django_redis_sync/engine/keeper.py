"""Renews leases in the background, and says in time when a lease is lost.

Per process and cache alias a daemon thread watches the leases of threads and of event loops
alike: a loop that is busy for long does not lose its leases. It never waits for a server: renewals
go over lanes, one for each node, which have threads of their own. So a lease is called lost in time
while a server hangs, and a node that hangs holds up no other's renewals. Leases are held weakly:
a lease that no code can release any more is not renewed.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import math
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from django.core.exceptions import ImproperlyConfigured

from ..protocol.keys import Keys
from ..protocol.plans import Answer, Failure, Run
from . import courier
from .clerk import Held, clerk
from .errands import Errands
from .schedule import Schedule
from .server import server_of
from .threads import Worker, forgotten_in_forks, made_once
from .wire import ROUND, clock

logger = logging.getLogger("django_redis_sync")

#: Renewals in a round trip at the most: a server runs them without a break.
BATCH = 256
#: Part of the time until a renewal by which it may come earlier, together with others.
EARLY = 1 / 8
#: Seconds between two looks at a lease that needs no renewal: is it still referred to?
GLANCE = 60.0

#: A renewal and the token of its lease.
Order = tuple[str, Run]


class Kept(Held, Protocol):
    """The parts of a lease that the keeper needs.

    `due`: when it has to be renewed; `lapses`: when it is lost unless it was renewed by then. Both
    are times of the clock. A holder that moves them says so.
    """

    @property
    def due(self) -> float: ...
    @property
    def lapses(self) -> float: ...
    def tend(self, now: float) -> Run | None: ...
    def tended(self, step: Run, answer: Answer | Failure) -> None: ...


class Lane:
    """Sends renewals to a node, the oldest first, a batch at a time."""

    def __init__(
        self,
        alias: str,
        perform: Callable[[Sequence[Run]], Sequence[Answer | Failure]],
        answered: Callable[[Sequence[Order], Sequence[Answer | Failure]], None],
    ) -> None:
        self._perform, self._answered = perform, answered
        self._orders: deque[Order] = deque()
        self._alias, self._sending, self._failing = alias, False, False
        self._worker = Worker(f"redis-sync-renewal-{alias}", self._turn, self._earliest)

    @property
    def busy(self) -> bool:
        return self._sending or bool(self._orders)

    def send(self, orders: list[Order]) -> None:
        """Have `answered` called with the outcomes. Without a thread, the caller's sends them."""
        self._orders.extend(orders)
        while not self._worker.rouse() and self._orders:
            self._turn()

    def _earliest(self) -> float:
        return -math.inf if self._orders else math.inf

    def _turn(self) -> float:
        self._sending = True
        orders = [self._orders.popleft() for _ in range(min(BATCH, len(self._orders)))]
        if orders:
            answers = self._perform([step for _, step in orders])
            self._answered(orders, answers)
            self._say([answer for answer in answers if isinstance(answer, Failure)])
        self._sending = False
        return self._earliest()

    def _say(self, failures: Sequence[Failure]) -> None:
        """A line when renewals begin to fail and when they work again, however many leases."""
        if failures and not self._failing:
            words = len(failures), self._alias, failures[0]
            logger.warning("%d leases of %r could not be renewed: %s", *words)
        elif self._failing and not failures:
            logger.warning("the leases of %r are renewed again", self._alias)
        self._failing = bool(failures)


class Keeper:
    """Watches the leases of an alias in this process."""

    # Invariants: _flying has the tokens of the renewals that are under way; only the watching
    # thread changes it, and only that thread tends and plans. A kept token is in _fresh, or
    # planned; what is released before the next look, as nearly all is, is never planned.
    def __init__(self, alias: str) -> None:
        self.pid, self._alias = os.getpid(), alias
        self.clerk, self.errands = clerk(alias, self._held), Errands(alias)
        self._kept: dict[str, tuple[weakref.ref[Kept], Keys]] = {}
        self._schedule, self._flying, self._fresh = Schedule(), set[str](), dict[str, None]()
        self._answers: deque[tuple[Order, Answer | Failure]] = deque()
        self._lanes: dict[Hashable, Lane] = {}
        self._worker = Worker(f"redis-sync-keeper-{alias}", self._turn, self._earliest)

    # For holders, in any thread

    def watch(self, lease: Kept, token: str, keys: Keys) -> None:
        """Tend `lease` whenever it is due, until `forget`. It is new: due before it lapses."""
        self._kept[token] = weakref.ref(lease), keys
        self._fresh[token] = None
        due = lease.due
        self._worker.expect(due if due < math.inf else clock() + GLANCE)
        self.clerk.note(keys)

    def moved(self, lease: Kept, token: str) -> None:
        """The times of a lease that is watched have moved."""
        self._fresh[token] = None
        self._worker.expect(min(lease.due, lease.lapses))

    def forget(self, token: str) -> None:
        self._kept.pop(token, None)
        if self._fresh.pop(token, self) is self:  # it was planned
            self._schedule.drop(token)

    def later(self, step: Run) -> None:
        """Do `step` as soon as the server answers again."""
        self.errands.send(step)

    def newest(self, keys: Keys, most: int) -> list[Any]:
        """The leases of a name, of the `most` newest."""
        # copy() is one step for other threads, which watch and forget meanwhile; a loop is not.
        newest = itertools.islice(reversed(self._kept.copy().values()), most)
        mine = [ref() for ref, of in newest if of.leases == keys.leases]
        return [lease for lease in mine if lease is not None]

    def look_after(self) -> None:
        """Start the thread that watches, when it could not be started or ended."""
        if self._kept and not self._worker.runs:
            self._worker.rouse()

    def let_go(self) -> None:
        """Keep nothing any more."""
        self._kept.clear()
        self._fresh.clear()
        self._schedule.clear()
        self.errands.let_go()

    def last_words(self, until: float) -> None:
        """At the end of the process: renewals on their way, and loose ends, are finished now."""
        self.errands.hurry()
        while clock() < until and (self.errands.busy or self._sending()):
            time.sleep(0.002)

    def _sending(self) -> bool:
        return any(lane.busy for lane in self._lanes.copy().values())

    # On the thread that watches

    def _earliest(self) -> float:
        self._plan_fresh()
        return -math.inf if self._answers else self._schedule.earliest()

    def _turn(self) -> float:
        """Tend the leases that are due, even past errors; when the next is due."""
        orders: list[Order] = []
        for _ in range(len(self._answers)):
            self._heed(*self._answers.popleft())
        self._plan_fresh()
        now = clock()
        for token in self._schedule.take(now):
            orders += self._tend(token, now)
        self._send(orders)
        return min(self._schedule.earliest(), courier.look_after(clock()))

    def _plan_fresh(self) -> None:
        while self._fresh:
            try:
                token, _ = self._fresh.popitem()
            except KeyError:  # forgotten meanwhile
                return
            lease = self._lease(token)
            if lease is None:
                self._let_drop(token)
            else:
                self._plan_again(token, lease)

    def _heed(self, order: Order, answer: Answer | Failure) -> None:
        token, step = order
        self._flying.discard(token)
        lease = self._lease(token)
        if lease is not None:
            self._guarded(lambda: lease.tended(step, answer), token)
            self._plan_again(token, lease)

    def _tend(self, token: str, now: float) -> list[Order]:
        """The renewal of a lease that is due, if it is to be renewed."""
        lease = self._lease(token)
        if lease is None:
            self._let_drop(token)
            return []
        step = None
        # With a renewal under way there is nothing to send. But a lease that lapses has to be
        # called lost now: the server may give it away before the answer comes.
        if token not in self._flying or now >= lease.lapses:
            step = self._guarded(lambda: lease.tend(now), token)
        if step is not None:
            self._flying.add(token)
        self._plan_again(token, lease)
        return [] if step is None else [(token, step)]

    def _let_drop(self, token: str) -> None:
        """Look no more at a lease that is gone."""
        # Kept still, so `forget` never came: its last reference went, and no code can release it.
        # Renewed, it would hold the name as long as this process lives.
        _, keys = self._kept.get(token, (None, None))
        if keys is not None:
            said = "a lease of %r was dropped without a release: not renewed"
            logger.warning(said, keys.display)
        self.forget(token)

    def _guarded(self, tend: Callable[[], Run | None], token: str) -> Run | None:
        """Tend each: a lease that fails must not stop the watch of the others."""
        try:
            return tend()
        except BaseException:
            logger.exception("the keeper of %r met an error and goes on", self._alias)
            self.forget(token)
            return None

    def _send(self, orders: list[Order]) -> None:
        if not orders:
            return
        by_place: dict[Hashable, list[Order]] = {}
        try:
            server = server_of(self._alias)
            for order in orders:
                by_place.setdefault(server.place(order[1]), []).append(order)
        except BaseException as error:
            self._answered(orders, self._failures(error, orders))
            return
        for place, some in by_place.items():
            self._lane(place).send(some)

    def _lane(self, place: Hashable) -> Lane:
        found = self._lanes.get(place)
        if found is None:
            found = self._lanes[place] = Lane(self._alias, self._perform, self._answered)
        return found

    # On the threads of lanes

    def _perform(self, steps: Sequence[Run]) -> Sequence[Answer | Failure]:
        """The outcomes of the steps; Failures in place of any exception."""
        try:
            return server_of(self._alias).many([step._replace(timeout=ROUND) for step in steps])
        except BaseException as error:
            return self._failures(error, steps)

    def _failures(self, error: BaseException, of: Sequence[Any]) -> list[Answer | Failure]:
        if isinstance(error, ImproperlyConfigured):
            # The alias is gone, as after a test's override_settings: nothing can be kept there.
            logger.warning("the keeper of %r keeps nothing: %s", self._alias, error)
            self.let_go()
        else:
            logger.error("a renewal on %r met an error", self._alias, exc_info=error)
        return [Failure(error, clock(), "unanswered")] * len(of)

    def _answered(self, orders: Sequence[Order], answers: Sequence[Answer | Failure]) -> None:
        # Over a deque, for only the watching thread may touch _flying.
        self._answers.extend(zip(orders, answers, strict=True))
        self._worker.rouse()

    # On any of them

    def _lease(self, token: str) -> Kept | None:
        ref, _ = self._kept.get(token, (None, None))
        return None if ref is None else ref()

    def _plan(self, token: str, lease: Kept) -> float:
        """Have it looked at when it is next due; returns when."""
        lapses = lease.lapses
        at = lapses if token in self._flying else min(lease.due, lapses)
        if at < lapses:
            early = at - max(0.0, at - clock()) * EARLY
        else:
            at = early = at if at < math.inf else clock() + GLANCE
        self._schedule.put(token, at, early)
        return at

    def _plan_again(self, token: str, lease: Kept) -> None:
        """As _plan, while its holder may be moving its times, or letting go of it."""
        while True:
            at, lapses = self._plan(token, lease), lease.lapses
            if at <= (lapses if token in self._flying else min(lease.due, lapses)):
                break
        # Forgotten since the look at it: `forget` came before there was an entry to drop.
        if token not in self._kept:
            self._schedule.drop(token)

    def _held(self) -> list[Kept]:
        """The leases that are kept now."""
        return [lease for ref, _ in self._kept.copy().values() if (lease := ref()) is not None]


_keepers: dict[str, Keeper] = forgotten_in_forks({})


@atexit.register
def _last_words() -> None:
    until = clock() + ROUND
    for one in list(_keepers.values()):
        if one.pid == os.getpid():
            one.last_words(until)


def keeper(alias: str) -> Keeper:
    """The keeper of an alias in this process; a fork starts with none."""
    found = _keepers.get(alias)
    if found is None or found.pid != os.getpid():
        found = made_once(_keepers, alias, lambda: Keeper(alias))
    return found
