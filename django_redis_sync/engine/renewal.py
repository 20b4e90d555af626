"""Renewal of leases in the background, and detection of lost leases.

In each process, a daemon thread per cache alias watches the leases of threads and of event loops,
so that a busy event loop does not lose its leases. The watching thread never waits for a server:
each node has a queue of renewals with a thread of its own. So a lost lease is reported in time even
if a server hangs, and a hanging node does not delay renewals on other nodes. Leases are referenced
weakly: a lease that no code can release any more is not renewed.
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

#: Max renewals in a round trip, because a server runs them without interruption.
BATCH = 256
#: Part of the time until a renewal by which it may be earlier, to be sent with others.
EARLY = 1 / 8
#: Seconds between two checks whether a lease without renewals is still referenced.
POLL_INTERVAL = 60.0

#: The token of a lease, and the step that renews it.
PendingRenewal = tuple[str, Run]


class RenewableLease(Held, Protocol):
    """The attributes of a lease that the renewer uses.

    `_due`: when to renew it. `_deadline`: when it is lost if it was not renewed before. If either
    changes, `moved` has to be called.
    """

    @property
    def _due(self) -> float: ...
    @property
    def _deadline(self) -> float: ...
    def _next_renewal(self, now: float) -> Run | None: ...
    def _renewal_done(self, step: Run, answer: Answer | Failure) -> None: ...


class NodeQueue:
    """The queue of renewals for a node, which sends them in batches."""

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
        """Send renewals; `answered` is called with the outcomes. If no thread can be started, send
        them on the calling thread."""
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

    # Invariants: _in_flight has the tokens of renewals without an answer. Only the watching thread
    # changes it and calls methods of leases. A watched token is in _fresh or in _schedule. Most
    # leases are released before the thread looks, and never enter _schedule.
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
        """Renew `lease` whenever it is due, until `forget` is called. `_due` of a new lease is
        earlier than its `_deadline`."""
        self._watched[token] = weakref.ref(lease), keys
        self._fresh[token] = None
        due = lease._due
        self._worker.expect(due if due < math.inf else clock() + POLL_INTERVAL)
        self.housekeeper.note(keys)

    def moved(self, lease: RenewableLease, token: str) -> None:
        """Schedule a watched lease again, because its times have changed."""
        self._fresh[token] = None
        self._worker.expect(min(lease._due, lease._deadline))

    def forget(self, token: str) -> None:
        """Stop watching a lease."""
        self._watched.pop(token, None)
        if self._fresh.pop(token, self) is self:  # it was scheduled
            self._schedule.drop(token)

    def later(self, step: Run) -> None:
        """Queue a step that failed, to be retried."""
        self.retries.enqueue(step)

    def newest(self, keys: Keys, limit: int) -> list[Any]:
        """Return the leases of a name among the `limit` newest."""
        # copy() is atomic. A loop is not: other threads call watch() and forget() meanwhile.
        newest = itertools.islice(reversed(self._watched.copy().values()), limit)
        mine = [ref() for ref, of in newest if of.leases == keys.leases]
        return [lease for lease in mine if lease is not None]

    def look_after(self) -> None:
        """Start the watching thread if it ended or could not be started."""
        if self._watched and not self._worker.runs:
            self._worker.rouse()

    def clear(self) -> None:
        """Stop watching all leases, and discard pending cleanups."""
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

    # On the watching thread

    def _earliest(self) -> float:
        self._plan_fresh()
        return -math.inf if self._answers else self._schedule.earliest()

    def _turn(self) -> float:
        """Send the renewals that are due, and return when the next turn is due."""
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
            except KeyError:  # another thread removed the last one
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
        """Return the renewals to send for a lease that is due: one or none."""
        lease = self._lease(token)
        if lease is None:
            self._drop(token)
            return []
        step = None
        # A lease with a renewal in flight needs no other. But once its deadline has passed, it has
        # to be reported as lost: the server may grant its permits to another holder.
        if token not in self._in_flight or now >= lease._deadline:
            step = self._guarded(lambda: lease._next_renewal(now), token)
        if step is not None:
            self._in_flight.add(token)
        self._plan_again(token, lease)
        return [] if step is None else [(token, step)]

    def _drop(self, token: str) -> None:
        """Stop watching a lease that was garbage-collected."""
        # The lease is still watched, so it was never released, and now no code can release it. If
        # it were renewed, its permit would stay taken until this process exits.
        _, keys = self._watched.get(token, (None, None))
        if keys is not None:
            message = "lease of %r was garbage-collected without being released: it is not renewed"
            logger.warning(message, keys.display)
        self.forget(token)

    def _guarded(self, call: Callable[[], Run | None], token: str) -> Run | None:
        """Return `call()`. If it raises, stop watching this lease, and go on with the others."""
        try:
            return call()
        except BaseException:
            logger.exception("the renewal thread of %r continues after an error", self._alias)
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
        """Return an answer or a Failure for each step. Other exceptions become Failures too."""
        try:
            return server_of(self._alias).many([step._replace(timeout=ROUND) for step in steps])
        except BaseException as error:
            return self._failures(error, steps)

    def _failures(self, error: BaseException, of: Sequence[Any]) -> list[Answer | Failure]:
        if isinstance(error, ImproperlyConfigured):
            # The alias no longer exists, for example after override_settings in a test.
            logger.warning("the leases of %r are no longer renewed: %s", self._alias, error)
            self.clear()
        else:
            logger.error("a renewal on %r failed", self._alias, exc_info=error)
        return [Failure(error, clock(), "unanswered")] * len(of)

    def _answered(
        self, renewals: Sequence[PendingRenewal], answers: Sequence[Answer | Failure]
    ) -> None:
        # Through a deque, because only the watching thread may change _in_flight.
        self._answers.extend(zip(renewals, answers, strict=True))
        self._worker.rouse()

    # On any thread

    def _lease(self, token: str) -> RenewableLease | None:
        ref, _ = self._watched.get(token, (None, None))
        return None if ref is None else ref()

    def _plan(self, token: str, lease: RenewableLease) -> float:
        """Schedule the next check of a lease. Return its time."""
        deadline = lease._deadline
        at = deadline if token in self._in_flight else min(lease._due, deadline)
        if at < deadline:
            early = at - max(0.0, at - clock()) * EARLY
        else:
            at = early = at if at < math.inf else clock() + POLL_INTERVAL
        self._schedule.put(token, at, early)
        return at

    def _plan_again(self, token: str, lease: RenewableLease) -> None:
        """Schedule the next check, although the holder may change the lease's times or release it
        at the same time."""
        while True:
            at, deadline = self._plan(token, lease), lease._deadline
            if at <= (deadline if token in self._in_flight else min(lease._due, deadline)):
                break
        # If `forget` ran meanwhile, it may have found no entry to drop.
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
