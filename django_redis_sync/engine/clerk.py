"""Keeps the books of a process: the names it uses, and what else may be written a little later.

One daemon thread per process and cache alias, and none where nothing is to be written: it starts
with the first entry and ends when it was idle for a while. It is never the thread that renews
leases, so that a flood of new names can't make a renewal late.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import queue
import threading
from collections.abc import Callable
from typing import Protocol

from django.core.exceptions import ImproperlyConfigured

from ..protocol.keys import Keys
from .names import Names
from .server import Server, server_of
from .wire import RETRY, ROUND, clock

logger = logging.getLogger("django_redis_sync")

#: Seconds without anything to do after which the thread ends.
LINGER = 5.0


class Book(Protocol):
    """What the clerk tends. `due`: when it has to be looked at next, inf for never."""

    due: float

    def tend(self, server: Server, now: float) -> None: ...
    def hurry(self) -> None: ...
    @property
    def unwritten(self) -> bool: ...


class Clerk:
    """The books of one alias in this process. `in_use`: the names of the leases held now."""

    def __init__(self, alias: str, in_use: Callable[[], list[Keys]]) -> None:
        self.pid, self._alias, self._in_use = os.getpid(), alias, in_use
        self.names = Names(in_use)
        # No lock: entries come from any place, a destructor or a signal handler too, where a lock
        # might be held by the very thread that waits for it. A queue's put() may be interrupted
        # by itself; of two threads that were started at once the one that is noted here goes on.
        self._thread: threading.Thread | None = None
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._looks_at = math.inf

    @property
    def _books(self) -> tuple[Book, ...]:
        return (self.names,)

    def note(self, keys: Keys) -> None:
        """Have the name listed as in use. Costs a look-up when it was noted within the minute."""
        if keys.leases not in self.names.noted:
            self.names.add(keys)
            self.expect(self.names.due)

    def expect(self, due: float) -> None:
        """Have the thread look at `due`; it is woken only when it would sleep for longer."""
        if due < self._looks_at:
            self._looks_at = due
            self._wake.put(None)
        if self._thread is None:
            self._start()

    def last_words(self, until: float) -> None:
        """At the end of the process: what is still to be written is written now."""
        for book in self._books:
            book.hurry()
        self._wake.put(None)
        while any(book.unwritten for book in self._books):
            thread = self._thread
            if thread is None or clock() >= until:
                return
            thread.join(0.002)

    def forget(self) -> None:
        """Let go of all entries."""
        self.names = Names(self._in_use)

    def _start(self) -> None:
        thread = threading.Thread(
            target=self._run, name=f"redis-sync-clerk-{self._alias}", daemon=True
        )
        self._thread = thread
        try:
            thread.start()
        except RuntimeError as error:
            # No lease depends on it: the next entry tries again.
            self._thread = None
            logger.warning("the clerk of %r could not start: %s", self._alias, error)

    def _run(self) -> None:
        me = threading.current_thread()
        while self._thread is me:
            self._looks_at = -math.inf  # busy: an entry that comes now is seen below
            not_before = self._look()
            self._looks_at = due = max(not_before, self._earliest())
            if max(not_before, self._earliest()) < due:
                continue
            try:
                self._wake.get(timeout=max(0.0, min(LINGER, due - clock())))
            except queue.Empty:
                if due == math.inf:
                    break
        if self._thread is me:
            self._thread = None
            if self._earliest() < math.inf:
                self.expect(-math.inf)  # an entry came while it was ending

    def _earliest(self) -> float:
        return min(book.due for book in self._books)

    def _look(self) -> float:
        """Tend what is due, whatever happens. Returns a time before which not to look again."""
        try:
            now = clock()
            due = [book for book in self._books if book.due <= now]
            if due:
                server = server_of(self._alias)
                for book in due:
                    book.tend(server, now)
        except ImproperlyConfigured as error:
            # The alias is gone, as after a test's override_settings: nothing can be kept there.
            logger.warning("the clerk of %r keeps nothing: %s", self._alias, error)
            self.forget()
        except Exception:
            logger.exception("the clerk of %r met an error and goes on", self._alias)
            return clock() + RETRY
        return -math.inf


_clerks: dict[str, Clerk] = {}


@atexit.register
def _last_words() -> None:
    until = clock() + ROUND
    for one in list(_clerks.values()):
        if one.pid == os.getpid():
            one.last_words(until)


def clerk(alias: str, in_use: Callable[[], list[Keys]]) -> Clerk:
    """The clerk of an alias in this process; a fork starts with none."""
    found = _clerks.get(alias)
    if found is None or found.pid != os.getpid():
        found = _clerks[alias] = Clerk(alias, in_use)
    return found
