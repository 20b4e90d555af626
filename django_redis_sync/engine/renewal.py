"""Renews leases in the background, and says in time that a lease is lost.

In each process a daemon thread per cache alias watches the leases of threads and event loops alike,
so a busy event loop does not lose its leases. The watching thread never waits for a server.
Renewals go through a queue per node, and each queue has a thread of its own. So a lease is called
lost in time while a server hangs, and a node that hangs delays no renewal on the other nodes.
Leases are held weakly: a lease that no code can release any more is not renewed.
"""

from __future__ import annotations

import atexit
import itertools
import math
import os
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from django.core.exceptions import ImproperlyConfigured

from ..logs import logger
from ..protocol.keys import Keys
from ..protocol.steps import Answer, Failure, Run
from .housekeeping import RetryQueue, housekeeper
from .names import Held
from .schedule import Schedule
from .server import server_of
from .threads import Worker, forgotten_in_forks, look_after_callbacks, made_once
from .wire import ROUND, clock

#: Max renewals in a round trip: a server runs them without a break.
BATCH = 256
#: Part of the time until a renewal by which it may come earlier, together with others.
EARLY = 1 / 8
#: Seconds between two looks at a lease that needs no renewal: is it still referred to?
POLL_INTERVAL = 60.0

#: The token of a lease, and the step that renews it.
PendingRenewal = tuple[str, Run]


class RenewableLease(Held, Protocol):
    """The parts of a lease that the renewer needs.

    `_due`: the time to renew it. `_deadline`: the time at which it is lost unless it was renewed by
    then. A holder that moves either calls `moved`.
    """

    @property
    def _due(self) -> float: ...
    @property
    def _deadline(self) -> float: ...
    def _next_renewal(self, now: float) -> Run | None: ...
    def _renewal_done(self, step: Run, answer: Answer | Failure) -> None: ...


class NodeQueue:
    """Sends the renewals of a node, the oldest first, a batch at a time."""

    def __init__(
        self,
        alias: str,
        perform: Callable[[Sequence[Run]], Sequence[Answer | Failure]],
        answered: Callable[[Sequence[PendingRenewal], Sequence[Answer | Failure]], None],
    ) -> None:
        self._perform, self._answered = perform, answered
        self._pending: deque[PendingRenewal] = deque()
        self._alias, self._sending, self._failing = alias, False, False
        self._worker = Worker(f"redis-sync-renewal-{alias}", self._turn, self._earliest)

    @property
    def busy(self) -> bool:
        return self._sending or bool(self._pending)

    def enqueue(self, renewals: list[PendingRenewal]) -> None:
        """Have `answered` called with the outcomes. Without a thread, send them on this one."""
        self._pending.extend(renewals)
        while not self._worker.rouse() and self._pending:
            self._turn()

    def finish(self, until: float) -> None:
        """At exit: send what is pending."""
        self._worker.finish(lambda: self.busy, until)

    def _earliest(self) -> float:
        return -math.inf if self._pending else math.inf

    def _turn(self) -> float:
        self._sending = True
        renewals = [self._pending.popleft() for _ in range(min(BATCH, len(self._pending)))]
        if renewals:
            answers = self._perform([step for _, step in renewals])
            self._answered(renewals, answers)
            self._log([answer for answer in answers if isinstance(answer, Failure)])
        self._sending = False
        return self._earliest()

    def _log(self, failures: Sequence[Failure]) -> None:
        """Log one line when renewals begin to fail, and one when they work again."""
        if failures and not self._failing:
            args = len(failures), self._alias, failures[0]
            logger.warning("%d leases of %r could not be renewed: %s", *args)
        elif self._failing and not failures:
            logger.warning("the leases of %r are renewed again", self._alias)
        self._failing = bool(failures)


class LeaseRenewer:
    """Watches the leases of an alias in this process."""

    # Invariants: _in_flight has the tokens of the renewals that were sent and not answered; only
    # the watching thread changes it, and only that thread calls the leases. A watched token is in
    # _fresh or planned. A lease released before the next look, as nearly all are, is never planned.
    def __init__(self, alias: str) -> None:
        self.pid, self._alias = os.getpid(), alias
        self.housekeeper, self.retries = housekeeper(alias, self._held), RetryQueue(alias)
        self._watched: dict[str, tuple[weakref.ref[RenewableLease], Keys]] = {}
        self._schedule, self._in_flight, self._fresh = Schedule(), set[str](), dict[str, None]()
        self._answers: deque[tuple[PendingRenewal, Answer | Failure]] = deque()
        self._queues: dict[Hashable, NodeQueue] = {}
        self._worker = Worker(f"redis-sync-renewer-{alias}", self._turn, self._earliest)

    # For holders, in any thread

    def watch(self, lease: RenewableLease, token: str, keys: Keys) -> None:
        """Renew `lease` whenever it is due, until `forget`. A new lease is due before its
        deadline."""
        self._watched[token] = weakref.ref(lease), keys
        self._fresh[token] = None
        due = lease._due
        self._worker.expect(due if due < math.inf else clock() + POLL_INTERVAL)
        self.housekeeper.note(keys)

    def moved(self, lease: RenewableLease, token: str) -> None:
        """Plan a watched lease anew: its times have moved."""
        self._fresh[token] = None
        self._worker.expect(min(lease._due, lease._deadline))

    def forget(self, token: str) -> None:
        """Stop watching a lease."""
        self._watched.pop(token, None)
        if self._fresh.pop(token, self) is self:  # it was planned
            self._schedule.drop(token)

    def later(self, step: Run) -> None:
        """Have `step` sent as soon as the server answers again."""
        self.retries.enqueue(step)

    def newest(self, keys: Keys, limit: int) -> list[Any]:
        """Return the leases of a name among the `limit` newest."""
        # copy() is one step for other threads, which watch and forget meanwhile; a loop is not.
        newest = itertools.islice(reversed(self._watched.copy().values()), limit)
        mine = [ref() for ref, of in newest if of.leases == keys.leases]
        return [lease for lease in mine if lease is not None]

    def look_after(self) -> None:
        """Start the watching thread if it ended or could not be started."""
        if self._watched and not self._worker.runs:
            self._worker.rouse()

    def clear(self) -> None:
        """Watch nothing any more."""
        self._watched.clear()
        self._fresh.clear()
        self._schedule.clear()
        self.retries.clear()

    def finish(self, until: float) -> None:
        """At exit: send what is pending, and write what the process did."""
        self.retries.finish(until)
        for queue in list(self._queues.values()):
            queue.finish(until)
        self.housekeeper.finish(until)

    # On the thread that watches

    def _earliest(self) -> float:
        self._plan_fresh()
        return -math.inf if self._answers else self._schedule.earliest()

    def _turn(self) -> float:
        """Send the renewals that are due, even past errors. Return when the next turn is due."""
        renewals: list[PendingRenewal] = []
        for _ in range(len(self._answers)):
            self._take(*self._answers.popleft())
        self._plan_fresh()
        now = clock()
        for token in self._schedule.take(now):
            renewals += self._renew(token, now)
        self._send(renewals)
        return min(self._schedule.earliest(), look_after_callbacks(clock()))

    def _plan_fresh(self) -> None:
        while self._fresh:
            try:
                token, _ = self._fresh.popitem()
            except KeyError:  # forgotten meanwhile
                return
            lease = self._lease(token)
            if lease is None:
                self._drop(token)
            else:
                self._plan_again(token, lease)

    def _take(self, renewal: PendingRenewal, answer: Answer | Failure) -> None:
        token, step = renewal
        self._in_flight.discard(token)
        lease = self._lease(token)
        if lease is not None:
            self._guarded(lambda: lease._renewal_done(step, answer), token)
            self._plan_again(token, lease)

    def _renew(self, token: str, now: float) -> list[PendingRenewal]:
        """Return the renewal of a lease that is due, if it is to be renewed."""
        lease = self._lease(token)
        if lease is None:
            self._drop(token)
            return []
        step = None
        # While a renewal is in flight there is nothing to send. But a lease past its deadline has
        # to be called lost now: the server may give it away before the answer comes.
        if token not in self._in_flight or now >= lease._deadline:
            step = self._guarded(lambda: lease._next_renewal(now), token)
        if step is not None:
            self._in_flight.add(token)
        self._plan_again(token, lease)
        return [] if step is None else [(token, step)]

    def _drop(self, token: str) -> None:
        """Stop watching a lease that is gone."""
        # The lease is still watched, so it was never released. Its last reference is gone, so no
        # code can release it now. If it were renewed, its permit would stay taken until this
        # process exits.
        _, keys = self._watched.get(token, (None, None))
        if keys is not None:
            message = "a lease of %r was dropped without a release: not renewed"
            logger.warning(message, keys.display)
        self.forget(token)

    def _guarded(self, call: Callable[[], Run | None], token: str) -> Run | None:
        """Call a lease. A lease that fails must not stop the watch over the others."""
        try:
            return call()
        except BaseException:
            logger.exception("the renewal thread of %r met an error and goes on", self._alias)
            self.forget(token)
            return None

    def _send(self, renewals: list[PendingRenewal]) -> None:
        if not renewals:
            return
        by_node: dict[Hashable, list[PendingRenewal]] = {}
        try:
            server = server_of(self._alias)
            for renewal in renewals:
                by_node.setdefault(server.node_of(renewal[1]), []).append(renewal)
        except BaseException as error:
            self._answered(renewals, self._failures(error, renewals))
            return
        for node, some in by_node.items():
            if node not in self._queues:
                self._queues[node] = NodeQueue(self._alias, self._perform, self._answered)
            self._queues[node].enqueue(some)

    # On the threads of the nodes' queues

    def _perform(self, steps: Sequence[Run]) -> Sequence[Answer | Failure]:
        """Return the outcomes of the steps, with a Failure in place of any exception."""
        try:
            return server_of(self._alias).many([step._replace(timeout=ROUND) for step in steps])
        except BaseException as error:
            return self._failures(error, steps)

    def _failures(self, error: BaseException, of: Sequence[Any]) -> list[Answer | Failure]:
        if isinstance(error, ImproperlyConfigured):
            # The alias is gone, as after a test's override_settings.
            logger.warning("the leases of %r are not renewed any more: %s", self._alias, error)
            self.clear()
        else:
            logger.error("a renewal on %r met an error", self._alias, exc_info=error)
        return [Failure(error, clock(), "unanswered")] * len(of)

    def _answered(
        self, renewals: Sequence[PendingRenewal], answers: Sequence[Answer | Failure]
    ) -> None:
        # Over a deque, for only the watching thread may touch _in_flight.
        self._answers.extend(zip(renewals, answers, strict=True))
        self._worker.rouse()

    # On any of them

    def _lease(self, token: str) -> RenewableLease | None:
        ref, _ = self._watched.get(token, (None, None))
        return None if ref is None else ref()

    def _plan(self, token: str, lease: RenewableLease) -> float:
        """Have the lease looked at when it is next due. Return that time."""
        lapses = lease._deadline
        at = lapses if token in self._in_flight else min(lease._due, lapses)
        if at < lapses:
            early = at - max(0.0, at - clock()) * EARLY
        else:
            at = early = at if at < math.inf else clock() + POLL_INTERVAL
        self._schedule.put(token, at, early)
        return at

    def _plan_again(self, token: str, lease: RenewableLease) -> None:
        """As `_plan`, while the holder may move the lease's times or release it."""
        while True:
            at, lapses = self._plan(token, lease), lease._deadline
            if at <= (lapses if token in self._in_flight else min(lease._due, lapses)):
                break
        # It was forgotten since the look at it: `forget` came before there was an entry to drop.
        if token not in self._watched:
            self._schedule.drop(token)

    def _held(self) -> list[RenewableLease]:
        """Return the leases that are watched now."""
        return [lease for ref, _ in self._watched.copy().values() if (lease := ref()) is not None]


_renewers: dict[str, LeaseRenewer] = forgotten_in_forks({})


@atexit.register
def _finish() -> None:
    until = clock() + ROUND
    for one in list(_renewers.values()):
        if one.pid == os.getpid():
            one.finish(until)


def renewer(alias: str) -> LeaseRenewer:
    """Return this process's renewer of an alias. A forked child makes its own."""
    found = _renewers.get(alias)
    if found is None or found.pid != os.getpid():
        found = made_once(_renewers, alias, lambda: LeaseRenewer(alias))
    return found
