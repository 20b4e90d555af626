"""Housekeeping of a process: register the names in use, read operators' overrides, write
statistics, and retry failed cleanups.

One daemon thread per process and cache alias runs these jobs, and ends after an idle time. Leases
are renewed on another thread, so that many new names can't delay a renewal.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from django.core.exceptions import ImproperlyConfigured

from ..logs import logger
from ..protocol.keys import Keys, Policy
from ..protocol.steps import Failure, Plan, Run, uncounted
from .names import Held, HolderIndex, Names
from .overrides import OverridePoller, reading
from .server import Server, server_of
from .statistics import Gauge, Kind, Named, StatisticsBuffer
from .threads import Worker, forgotten_in_forks, made_once
from .wire import RETRY, ROUND, clock

#: Seconds for which a failed step is retried. By then, its lease has expired.
GIVE_UP = 120.0
#: Max steps in a round trip.
BATCH = 256


class Job(Protocol):
    """A job of the housekeeping thread.

    `due`: when to run it next; inf: never. `tend` runs it. `hurry` makes it due at once, because
    the process exits. `unwritten`: True while it has entries to write.
    """

    due: float

    def tend(self, server: Server, now: float) -> None: ...
    def hurry(self) -> None: ...
    @property
    def unwritten(self) -> bool: ...


class Housekeeper:
    """The housekeeping jobs of an alias in this process. `held`: returns the leases held now."""

    def __init__(self, alias: str, held: Callable[[], Iterable[Held]]) -> None:
        self.pid, self._alias, self._held = os.getpid(), alias, held
        #: The names that this process waits for, by token.
        self.waiting: dict[str, Named] = {}
        self.forget()
        # _busy: True while a job runs. Entries that are being written don't count as unwritten.
        self._not_before, self._busy = -math.inf, False
        self._worker = Worker(f"redis-sync-housekeeping-{alias}", self._turn, self._earliest)

    @property
    def _books(self) -> tuple[Job, ...]:
        return self.names, self.marks, self.statistics, self.holders

    def note(self, keys: Keys) -> None:
        """Register the name of a held lease. Do nothing if this process has done so within the
        current minute."""
        if keys.leases not in self.names.noted:
            self.names.add(keys)
            self.holders.expect()
            self._worker.expect(min(self.names.due, self.holders.due))

    def heed(self, policy: Policy) -> Plan:
        """Load the overrides of `policy` before a key of it is acquired."""
        if self.marks.needed(policy):
            try:
                answer = yield reading(policy.registry)
            except Failure as failure:
                self.marks.unreadable(policy.registry, failure)
            else:
                self.marks.read(policy.registry, answer)
        self._worker.expect(self.marks.due)

    def waits(self, token: str, named: Named | None) -> None:
        """Record that `token` waits in this process for a name. None: it no longer waits."""
        if named is None:
            self.waiting.pop(token, None)
        else:
            self.waiting[token] = named

    def count(self, named: Named, kind: Kind, ms: int, used: int = 0) -> None:
        """Count the outcome of an acquire, or the end of a lease. `used`: permits of the name in
        use at that time."""
        keys = named.keys
        if keys.keep:
            statistics = self.statistics
            statistics.events.append((keys, named.template, kind, ms, used))
            if statistics.due == math.inf:
                self._sum_up()

    def adopted(self, keys: Keys) -> None:
        """Schedule a write of the gauges, because a lease was adopted. That is not an event."""
        if keys.keep and self.statistics.due == math.inf:
            self._sum_up()

    def _sum_up(self) -> None:
        self.statistics.rouse()
        self._worker.expect(self.statistics.due)

    def _in_use(self) -> list[Keys]:
        return [lease._settings.keys for lease in self._held()]

    def _waited_for(self) -> list[Keys]:
        return [named.keys for named in list(self.waiting.values())]

    def _shares(self) -> Iterator[Gauge]:
        for lease in self._held():
            yield Gauge(lease._settings, lease.permits or 1, 0)
        for named in list(self.waiting.values()):
            yield Gauge(named, 0, 1)

    def finish(self, until: float) -> None:
        """Write all entries at once, at the exit of the process."""
        for book in self._books:
            book.hurry()
        self._worker.finish(lambda: self._busy or any(b.unwritten for b in self._books), until)

    def forget(self) -> None:
        """Discard all entries."""
        self.names = Names(self._in_use)
        self.marks = OverridePoller(self._in_use, self._waited_for)
        self.statistics = StatisticsBuffer(self._shares)
        self.holders = HolderIndex(self._held)

    def _earliest(self) -> float:
        return max(self._not_before, min(book.due for book in self._books))

    def _turn(self) -> float:
        """Run the jobs that are due, and return when the next job is due. After an error, the jobs
        run again later."""
        self._busy = True
        try:
            now = clock()
            for book in [book for book in self._books if book.due <= now]:
                book.tend(server_of(self._alias), now)
        except ImproperlyConfigured as error:
            # The alias no longer exists, for example after override_settings in a test.
            logger.warning(
                "housekeeping of %r discards what it had not written: %s", self._alias, error
            )
            self.forget()
        except Failure as failure:
            logger.debug("housekeeping of %r could not write: %s", self._alias, failure)
            self._not_before = clock() + RETRY
        except Exception:
            logger.exception("housekeeping of %r failed, and is tried again", self._alias)
            self._not_before = clock() + RETRY
        finally:
            self._busy = False
        return self._earliest()


_housekeepers: dict[str, Housekeeper] = forgotten_in_forks({})


def housekeeper(alias: str, held: Callable[[], Iterable[Held]]) -> Housekeeper:
    """Return the housekeeper of an alias in this process. A forked child makes its own."""
    return made_once(_housekeepers, alias, lambda: Housekeeper(alias, held))


class RetryQueue:
    """Sends steps of an alias until they succeed. Any thread may call `enqueue`, also in a
    destructor."""

    # Invariant: only the thread that runs _turn changes _failed, or sets _retry_at to a later time.
    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._fresh: deque[tuple[Run, float]] = deque()
        self._failed: deque[tuple[Run, float]] = deque()
        self._retry_at, self._sending = math.inf, False
        self._worker = Worker(f"redis-sync-retries-{alias}", self._turn, self._earliest)

    @property
    def busy(self) -> bool:
        return self._sending or bool(self._fresh or self._failed)

    def enqueue(self, step: Run) -> None:
        """Send `step`, and retry it for up to GIVE_UP seconds."""
        self._fresh.append((step, clock() + GIVE_UP))
        self._worker.rouse()

    def finish(self, until: float) -> None:
        """Send all steps once more, at the exit of the process."""
        self._retry_at = 0.0
        self._worker.finish(lambda: self.busy, until)

    def clear(self) -> None:
        self._fresh.clear()
        self._failed.clear()

    def _earliest(self) -> float:
        if self._fresh:
            return -math.inf
        return self._retry_at if self._failed else math.inf

    def _turn(self) -> float:
        self._sending = True
        if self._failed and clock() >= self._retry_at:
            self._fresh.extendleft(reversed(self._failed))
            self._failed.clear()
        todo = [self._fresh.popleft() for _ in range(min(BATCH, len(self._fresh)))]
        try:
            self._try(todo)
        except ImproperlyConfigured as error:
            # The alias no longer exists, for example after override_settings in a test.
            logger.warning("pending cleanups on %r are discarded: %s", self._alias, error)
            self.clear()
        except BaseException:
            logger.exception("a cleanup on %r failed, and is tried again", self._alias)
            self._requeue(todo)
        self._sending = False
        return self._earliest()

    def _try(self, todo: list[tuple[Run, float]]) -> None:
        if not todo:
            return
        steps = [step._replace(timeout=ROUND) for step, _ in todo]
        answers = server_of(self._alias).many(steps)
        for entry, answer in zip(todo, answers, strict=True):
            if isinstance(answer, Failure):
                step, until = entry
                if answer.why == "unanswered":
                    step = uncounted(step)
                if clock() < until:
                    self._requeue([(step, until)])
                else:
                    logger.error("a cleanup of %s failed for good: %s", step.keys[0], answer)

    def _requeue(self, todo: list[tuple[Run, float]]) -> None:
        if not self._failed:
            self._retry_at = clock() + RETRY
        self._failed.extend(todo)
