"""Renewal of leases in the background, and detection of lost leases.

In each process, one daemon thread per cache alias watches the leases of all threads and event
loops. So a busy event loop does not lose its leases. The watching thread never waits for a server.
It puts renewals into queues, one queue per Redis node, and each queue has its own thread. So even
if a node hangs, lost leases are reported in time, and renewals on other nodes are not delayed.

The renewer has only weak references to leases. If no code can release a lease any more, Python
garbage-collects the lease, and the renewer stops renewing it.
`locks/lease_state.py` decides when to renew a lease.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import math
import os
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Protocol

from django.core.exceptions import ImproperlyConfigured

from ..logs import logger
from ..protocol.keys import Keys
from ..protocol.steps import Answer, Failure, Run
from .housekeeping import Housekeeper
from .indexes import HeldLease
from .queues import Outcome, QueuedStep, RetryQueue, StepQueue
from .schedule import Schedule
from .server import server_of
from .threads import Worker, forgotten_in_forks, look_after_callbacks, made_once
from .wire import ROUND, clock

#: A renewal may be sent early by up to this fraction of its interval, so that it is sent together
#: with another renewal that is due.
EARLY = 1 / 8
#: Seconds between two checks of a lease that needs no renewals. A check finds out whether the lease
#: was garbage-collected.
POLL_INTERVAL = 60.0


class RenewableLease(HeldLease, Protocol):
    """The attributes of a lease that the renewer uses.

    `_due`: when to renew the lease. `_deadline`: when the lease counts as lost, unless a renewal
    succeeds before. If `_due` or `_deadline` changes, `LeaseRenewer.moved` must be called.
    """

    @property
    def _due(self) -> float: ...
    @property
    def _deadline(self) -> float: ...
    def _next_renewal(self, now: float) -> Run | None: ...
    def _renewal_done(self, step: Run, answer: Answer | Failure) -> None: ...


class LeaseRenewer:
    """Renews the leases of an alias in this process, and detects lost leases."""

    # Invariants: _in_flight has the token of each renewal that has no answer yet. Only the watching
    # thread changes _in_flight and calls methods of leases. Each watched token is in _fresh or in
    # _schedule. A token that is not released soon is moved from _fresh to _schedule.
    def __init__(self, alias: str) -> None:
        self.pid, self._alias = os.getpid(), alias
        self.housekeeper, self.retries = Housekeeper(alias, self._held), RetryQueue(alias)
        #: Function that queues a failed step, so that it is retried.
        self.later = self.retries.add
        self._watched: dict[str, tuple[weakref.ref[RenewableLease], Keys]] = {}
        self._schedule, self._in_flight, self._fresh = Schedule(), set[str](), dict[str, None]()
        self._answers: deque[tuple[QueuedStep, Outcome]] = deque()
        #: A queue for each node. Each entry of a queue is a renewal with the token of its lease.
        self._queues: dict[Hashable, StepQueue] = {}
        #: The nodes on which the most recent renewals failed.
        self._failing: set[Hashable] = set()
        self._worker = Worker(f"redis-sync-renewer-{alias}", self._turn, self._earliest)

    # Methods for holders, on any thread

    def watch(self, lease: RenewableLease, token: str, keys: Keys) -> None:
        """Renew `lease` whenever it is due, until `forget` is called. `lease._due` must not be
        later than `lease._deadline`."""
        self._watched[token] = weakref.ref(lease), keys
        self._fresh[token] = None
        due = lease._due
        if due < math.inf:
            self._worker.expect(due)
        else:
            self._worker.expect(clock() + POLL_INTERVAL)
            self.housekeeper.note_permanent(keys, lease.fence)
        self.housekeeper.note(keys, lease)

    def moved(self, lease: RenewableLease, token: str) -> None:
        """Schedule a watched lease again after its `_due` or `_deadline` has changed."""
        self._fresh[token] = None
        at = min(lease._due, lease._deadline)
        self._worker.expect(at)
        if at == math.inf:
            self.housekeeper.note_permanent(lease._settings.keys, lease.fence)

    def forget(self, token: str) -> None:
        """Stop watching a lease."""
        self._watched.pop(token, None)
        if self._fresh.pop(token, self) is self:  # if the token was not in _fresh
            self._schedule.drop(token)

    def newest(self, keys: Keys, limit: int) -> list[Any]:
        """Search the `limit` newest leases of this process, and return those of the name `keys`."""
        # Loop over a copy, because other threads call watch() and forget() during the loop. copy()
        # itself is atomic.
        newest = itertools.islice(reversed(self._watched.copy().values()), limit)
        mine = [ref() for ref, of in newest if of.leases == keys.leases]
        return [lease for lease in mine if lease is not None]

    def ensure_thread(self) -> None:
        """If leases are watched but the watching thread doesn't run, start it."""
        if self._watched:
            self._worker.expect(math.inf)

    def clear(self) -> None:
        """Stop watching all leases, and discard pending cleanups."""
        self._watched.clear()
        self._fresh.clear()
        self._schedule.clear()
        self.retries.clear()

    def finish(self, until: float) -> None:
        """When the process exits, send pending steps and let the housekeeper write its entries.
        Give up at the time `until`."""
        for queue in (self.retries, *list(self._queues.values())):
            queue.finish(until)
        self.housekeeper.finish(until)

    def _held(self) -> list[RenewableLease]:
        """Return the leases that are watched now."""
        return [lease for ref, _ in self._watched.copy().values() if (lease := ref()) is not None]

    # Methods for the watching thread

    def _earliest(self) -> float:
        self._plan_fresh()
        return -math.inf if self._answers else self._schedule.earliest()

    def _turn(self) -> float:
        """Queue the renewals that are due. Return the time at which to call this method again."""
        for _ in range(len(self._answers)):
            self._take(*self._answers.popleft())
        self._plan_fresh()
        now = clock()
        due = [self._renewal(token, now) for token in self._schedule.take(now)]
        self._send([entry for entry in due if entry is not None])
        return min(self._schedule.earliest(), look_after_callbacks(clock()))

    def _plan_fresh(self) -> None:
        while self._fresh:
            try:
                token, _ = self._fresh.popitem()
            except KeyError:  # raised if another thread has removed the last token
                return
            self._plan(token)

    def _take(self, entry: QueuedStep, outcome: Outcome) -> None:
        step, token = entry
        self._in_flight.discard(token)
        lease = self._lease(token)
        if lease is not None:
            self._guarded(lambda: lease._renewal_done(step, outcome), token)
            self._plan(token)

    def _renewal(self, token: str, now: float) -> QueuedStep | None:
        """Return the renewal to send for a lease that is due, or None if there is none to send."""
        lease, step = self._lease(token), None
        # While a renewal is in flight, don't send another one. But after the deadline, call
        # _next_renewal() nevertheless. It reports the lease as lost, because the server may already
        # have granted the permits to another holder.
        if lease is not None and (token not in self._in_flight or now >= lease._deadline):
            step = self._guarded(lambda: lease._next_renewal(now), token)
        if step is not None:
            self._in_flight.add(token)
        self._plan(token)
        return None if step is None else (step, token)

    def _lease(self, token: str) -> RenewableLease | None:
        ref, _ = self._watched.get(token, (None, None))
        return None if ref is None else ref()

    def _plan(self, token: str) -> None:
        """Schedule the next check of a lease. If it was garbage-collected, stop watching it."""
        lease = self._lease(token)
        if lease is None:
            # The lease was garbage-collected before it was released. Now no code can release it. If
            # it were still renewed, its permit would stay in use until this process exits.
            _, keys = self._watched.get(token, (None, None))
            if keys is not None:
                why = "was garbage-collected without being released: it is no longer renewed"
                logger.warning("lease of %r %s", keys.display, why)
            self.forget(token)
            return
        deadline = lease._deadline
        at = deadline if token in self._in_flight else min(lease._due, deadline)
        if at < deadline:
            early = at - max(0.0, at - clock()) * EARLY
        else:
            at = early = at if at < math.inf else clock() + POLL_INTERVAL
        self._schedule.put(token, at, early)

    def _guarded(self, call: Callable[[], Run | None], token: str) -> Run | None:
        """Return `call()`. If it raises an exception, stop watching this lease and return None, so
        that the other leases are still renewed."""
        try:
            return call()
        except BaseException:
            logger.exception("the renewal thread of %r continues after an error", self._alias)
            self.forget(token)
            return None

    def _send(self, entries: list[QueuedStep]) -> None:
        by_node: dict[Hashable, list[QueuedStep]] = {}
        try:
            for entry in entries:
                by_node.setdefault(server_of(self._alias).node_of(entry[0]), []).append(entry)
        except BaseException as error:
            self._answered(None, entries, [Failure(error, clock(), "unanswered")] * len(entries))
            return
        for node, some in by_node.items():
            if node not in self._queues:
                answered = partial(self._answered, node)
                self._queues[node] = StepQueue("renewal", self._alias, answered)
            if not self._queues[node].enqueue(some):
                self._queues[node].send()

    # Methods for the threads of the queues

    def _answered(
        self, node: Hashable, entries: Sequence[QueuedStep], outcomes: Sequence[Outcome]
    ) -> None:
        # Only the watching thread may change _in_flight, so pass the outcomes to that thread.
        self._answers.extend(zip(entries, outcomes, strict=True))
        self._worker.rouse()
        self._log(node, [outcome for outcome in outcomes if isinstance(outcome, Failure)])

    def _log(self, node: Hashable, failures: Sequence[Failure]) -> None:
        """Log one line when renewals on a node begin to fail, and one when they succeed again."""
        if failures and isinstance(failures[0].cause, ImproperlyConfigured):
            # The alias no longer exists, for example after override_settings in a test.
            message = "the leases of %r are no longer renewed: %s"
            logger.warning(message, self._alias, failures[0])
            self.clear()
        elif failures and node not in self._failing:
            args = len(failures), self._alias, failures[0]
            logger.warning("%d leases of %r could not be renewed: %s", *args)
            self._failing.add(node)
        elif not failures and node in self._failing:
            logger.warning("the leases of %r are renewed again", self._alias)
            self._failing.discard(node)


_renewers: dict[str, LeaseRenewer] = forgotten_in_forks({})


@atexit.register
def _finish() -> None:
    until = clock() + ROUND
    for one in list(_renewers.values()):
        if one.pid == os.getpid():
            one.finish(until)


def write_names() -> None:
    """Write the names in use of this process that are not yet in the registries, as far as the
    servers answer. Otherwise they are written within REGISTER_AFTER seconds."""
    for one in list(_renewers.values()):
        if one.pid == os.getpid():
            with contextlib.suppress(Failure, ImproperlyConfigured):
                one.housekeeper.write_names()


def renewer(alias: str) -> LeaseRenewer:
    """Return the LeaseRenewer of this process for an alias. A forked child makes its own."""
    found = _renewers.get(alias)
    if found is None or found.pid != os.getpid():
        found = made_once(_renewers, alias, lambda: LeaseRenewer(alias))
    return found
