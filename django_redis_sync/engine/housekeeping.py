"""Housekeeping of a process: register the names in use, read operators' overrides, and write
statistics.

In each process, one daemon thread per cache alias does this. The thread ends if it has no work for
a while. Leases are renewed on separate threads, so that many new names can't delay a renewal.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from django.core.exceptions import ImproperlyConfigured

from ..logs import logger
from ..protocol.keys import Keys, PolicyOverrides
from ..protocol.steps import Failure, Plan
from .indexes import HeldLease, HolderIndex, WaiterIndex
from .names import REGISTER_EVERY, Names
from .overrides import OverridePoller, reading
from .server import Server, server_of
from .shares import ShareSampler
from .statistics import Kind, NameAndTemplate, StatisticsBuffer, Use
from .threads import Worker
from .wire import RETRY, clock


class Chore(Protocol):
    """A chore of the housekeeping thread. `due`: when to run the chore next; inf if it has no work.

    `run` runs the chore, and sets `due`. If `run` raises an exception, the chore keeps its
    unwritten entries, and the thread runs it again later. `leaving`: True if the process is
    exiting, so that the chore must write all entries now.
    """

    due: float

    def run(self, server: Server, now: float, leaving: bool) -> None: ...


class Housekeeper:
    """The housekeeping chores of an alias in this process. `held`: a function that returns the
    leases that this process holds."""

    def __init__(self, alias: str, held: Callable[[], Iterable[HeldLease]]) -> None:
        self._alias, self._held = alias, held
        #: For each waiter of this process, by its token: the name for which it waits.
        self.waiting: dict[str, NameAndTemplate] = {}
        self.forget()
        self._worker = Worker(f"redis-sync-housekeeping-{alias}", self._turn, self._earliest)

    def forget(self) -> None:
        """Discard what is not yet written to Redis: replace the housekeeping chores with new
        ones."""
        self.names, self.overrides = Names(self._uses), OverridePoller(self._uses)
        self.statistics = StatisticsBuffer(self._uses, self.names.group)
        self.holders, self.waiters = HolderIndex(self._held), WaiterIndex(self.waiting)
        self.shares = ShareSampler(self._uses)
        self._leaving = self._left = False

    @property
    def _chores(self) -> tuple[Chore, ...]:
        return (
            self.names,
            self.overrides,
            self.statistics,
            self.holders,
            self.waiters,
            self.shares,
        )

    def note(self, keys: Keys, lease: HeldLease) -> None:
        """Let the housekeeping thread register the name of a lease. Do nothing if the name was
        registered within the current minute."""
        if keys.leases not in self.names.registered:
            self.note_wanted(lease._settings)

    def note_wanted(self, named: NameAndTemplate) -> None:
        """Let the housekeeping thread register the name of a waiter or of a rejected caller, as
        `note` does. The process that holds the name may have been killed before it did that."""
        if named.keys.leases not in self.names.registered:
            self.names.add(named.keys, named.template)
            self._worker.expect(self.names.due)

    def note_permanent(self, keys: Keys, fence: int) -> None:
        """Record that the name of a permanent lease was written to the index of holders. `fence`:
        that of the lease."""
        self.holders.written(keys, fence // 1000)
        self._worker.expect(self.holders.due)

    def write_names(self) -> None:
        """Write the names that are not yet in the registry now, on the calling thread. Raise
        Failure if that is impossible; then the housekeeping thread writes them later."""
        if self.names.due < math.inf:
            self.names.run(server_of(self._alias), clock(), False)

    def load_overrides(self, policy: PolicyOverrides) -> Plan:
        """Read the operators' overrides of `policy`, unless they were read lately. This is a plan.
        Each acquire of a key of the policy first carries out this plan."""
        if self.overrides.needed(policy):
            try:
                answer = yield reading(policy.registry)
            except Failure as failure:
                self.overrides.unreadable(policy.registry, failure)
            else:
                self.overrides.read(policy.registry, answer)
        self._worker.expect(self.overrides.due)

    def note_waiter(self, token: str, named: NameAndTemplate | None) -> None:
        """Record for which name a waiter of this process waits. `token`: the waiter's token.
        `named`: the name, or None if the wait has ended."""
        if named is None:
            self.waiting.pop(token, None)
        else:
            self.waiting[token] = named
            self.note_wanted(named)
            self.changed(named.keys)
            if self.waiters.due == math.inf:
                self.waiters.expect()
                self._worker.expect(self.waiters.due)

    def count(self, named: NameAndTemplate, kind: Kind, ms: int, used: int = 0) -> None:
        """Count the outcome of an acquire, or the end of a lease. `kind`: a letter (see `Kind`).
        `ms`: duration of the wait or the lease. `used`: permits of the name in use at that time."""
        keys = named.keys
        if keys.keep:
            statistics = self.statistics
            statistics.events.append((keys, named.template, kind, ms, used))
            if statistics.due == math.inf:
                self.changed(keys)

    def changed(self, keys: Keys) -> None:
        """Schedule a write of the statistics. Call this when this process adopts a lease, or when a
        waiter begins to wait. No event is counted then, but the gauge has changed."""
        if keys.keep and self.statistics.due == math.inf:
            self.statistics.rouse()
            self._worker.expect(self.statistics.due)

    def _uses(self) -> Iterator[Use]:
        for lease in self._held():
            yield lease._settings, lease.permits or 1, 0
        for named in list(self.waiting.values()):
            yield named, 0, 1

    def finish(self, until: float) -> None:
        """When the process exits, write what is not yet written. Give up at the time `until`."""
        if any(chore.due < math.inf for chore in self._chores):
            self._leaving = True
            self._worker.finish(lambda: not self._left, until)

    def _earliest(self) -> float:
        return min(chore.due for chore in self._chores)

    def _turn(self) -> float:
        """Run the housekeeping chores that are due. Return the time at which the next one is
        due."""
        leaving, now = self._leaving, clock()
        try:
            for chore in self._chores:
                if chore.due <= now or leaving:
                    self._run(chore, now, leaving)
        except ImproperlyConfigured as error:
            # The alias no longer exists, for example after override_settings in a test.
            message = "housekeeping of %r discards its unwritten entries: %s"
            logger.warning(message, self._alias, error)
            self.forget()
        self._left = leaving
        if self.names.registered:  # `note` does nothing for further leases of these names
            self.holders.expect()
            self.shares.expect()
        return self._earliest()

    def _run(self, chore: Chore, now: float, leaving: bool) -> None:
        """Run a chore. If it fails, log the error and run the chore again later. Other chores still
        run on time. Raise ImproperlyConfigured if the alias no longer exists."""
        try:
            chore.run(server_of(self._alias), now, leaving)
        except ImproperlyConfigured:
            raise
        except Failure as failure:
            lasting = failure.why == "final"
            chore.due = now + (REGISTER_EVERY if lasting else RETRY)
            level = logging.WARNING if lasting else logging.DEBUG
            logger.log(level, "housekeeping of %r could not write: %s", self._alias, failure)
        except Exception:
            chore.due = now + RETRY
            logger.exception("housekeeping of %r failed and will be retried", self._alias)
