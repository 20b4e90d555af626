"""Keeps the books of a process: the names it uses, operators' marks, its asks' outcomes.

One daemon thread per process and cache alias, none where nothing is to be written: it starts
with the first entry and ends when it was idle for a while. It is never the thread that renews
leases, so that a flood of new names can't make a renewal late.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from django.core.exceptions import ImproperlyConfigured

from ..protocol.keys import Keys, Policy
from ..protocol.plans import Failure, Plan
from .marks import Marks, reading
from .names import Names
from .server import Server, server_of
from .tally import Kind, Named, Share, Tally
from .threads import Worker, forgotten_in_forks, made_once
from .wire import RETRY, ROUND, clock

logger = logging.getLogger("django_redis_sync")


class Book(Protocol):
    """A book that the clerk tends. `due`: when it has to be looked at next, inf for never."""

    due: float

    def tend(self, server: Server, now: float) -> None: ...
    def hurry(self) -> None: ...
    @property
    def unwritten(self) -> bool: ...


class Held(Protocol):
    """The parts of a lease that the clerk reads. `permits`: 0 for the whole name."""

    @property
    def permits(self) -> int: ...
    @property
    def terms(self) -> Named: ...


class Clerk:
    """The books of an alias in this process. `held`: the leases that it holds now."""

    def __init__(self, alias: str, held: Callable[[], Iterable[Held]]) -> None:
        self.pid, self._alias, self._held = os.getpid(), alias, held
        #: The names that this process waits for, by token.
        self.waiting: dict[str, Named] = {}
        self.forget()
        # `_busy`: what is being written is in no book any more.
        self._not_before, self._busy = -math.inf, False
        self._worker = Worker(f"redis-sync-clerk-{alias}", self._turn, self._earliest)

    @property
    def _books(self) -> tuple[Book, ...]:
        return self.names, self.marks, self.tally

    def note(self, keys: Keys) -> None:
        """A lease of that name is held: have it listed. Costs a look-up when that was so within the
        minute."""
        if keys.leases not in self.names.noted:
            self.names.add(keys)
            self._worker.expect(self.names.due)

    def heed(self, policy: Policy) -> Plan:
        """Know the operators' marks of `policy` before a child of it is asked for."""
        if self.marks.needed(policy):
            try:
                answer = yield reading(policy.registry)
            except Failure as failure:
                self.marks.unreadable(policy.registry, failure)
            else:
                self.marks.read(policy.registry, answer)
        self._worker.expect(self.marks.due)

    def waits(self, token: str, named: Named | None) -> None:
        """Keep in mind that `token` waits in this process for `named`'s name; None: it waits no
        more."""
        if named is None:
            self.waiting.pop(token, None)
        else:
            self.waiting[token] = named

    def count(self, named: Named, kind: Kind, ms: int) -> None:
        """Have the end of an ask, or of a lease, counted in the sums."""
        keys = named.keys
        if keys.keep:
            tally = self.tally
            tally.events.append((keys, named.template, kind, ms))
            if tally.due == math.inf:
                self._sum_up()

    def adopted(self, keys: Keys) -> None:
        """A lease of that name came from another process: no event tells the sums of it."""
        if keys.keep and self.tally.due == math.inf:
            self._sum_up()

    def _sum_up(self) -> None:
        self.tally.rouse()
        self._worker.expect(self.tally.due)

    def _in_use(self) -> list[Keys]:
        return [lease.terms.keys for lease in self._held()]

    def _waited_for(self) -> list[Keys]:
        return [named.keys for named in list(self.waiting.values())]

    def _shares(self) -> Iterator[Share]:
        for lease in self._held():
            yield Share(lease.terms, lease.permits or 1, 0)
        for named in list(self.waiting.values()):
            yield Share(named, 0, 1)

    def last_words(self, until: float) -> None:
        """At the end of the process: all entries not yet written are written now."""
        for book in self._books:
            book.hurry()
        self._worker.rouse()
        while (self._busy or any(book.unwritten for book in self._books)) and clock() < until:
            time.sleep(0.002)

    def forget(self) -> None:
        """Let go of all entries."""
        self.names = Names(self._in_use)
        self.marks = Marks(self._in_use, self._waited_for)
        self.tally = Tally(self._shares)

    def _earliest(self) -> float:
        return max(self._not_before, min(book.due for book in self._books))

    def _turn(self) -> float:
        """Tend the books that are due, even past errors; when the next turn is."""
        self._busy = True
        try:
            now = clock()
            for book in [book for book in self._books if book.due <= now]:
                book.tend(server_of(self._alias), now)
        except ImproperlyConfigured as error:
            # The alias is gone, as after a test's override_settings: nothing can be kept there.
            logger.warning("the clerk of %r keeps nothing: %s", self._alias, error)
            self.forget()
        except Failure as failure:
            logger.debug("what %r did could not be written: %s", self._alias, failure)
            self._not_before = clock() + RETRY
        except Exception:
            logger.exception("the clerk of %r met an error and goes on", self._alias)
            self._not_before = clock() + RETRY
        finally:
            self._busy = False
        return self._earliest()


_clerks: dict[str, Clerk] = forgotten_in_forks({})


@atexit.register
def _last_words() -> None:
    until = clock() + ROUND
    for one in list(_clerks.values()):
        if one.pid == os.getpid():
            one.last_words(until)


def clerk(alias: str, held: Callable[[], Iterable[Held]]) -> Clerk:
    """The clerk of an alias in this process; a fork starts with none."""
    return made_once(_clerks, alias, lambda: Clerk(alias, held))
