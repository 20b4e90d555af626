"""The daemon threads of this package: started where they are needed, roused without a lock.

A thread is roused from any thread of the project: inside a destructor that the garbage
collector runs anywhere, or interrupted by an exception out of a signal handler at any bytecode. So
nothing in here holds a lock from one bytecode to the next where another caller would wait for it
without end.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from .wire import clock

logger = logging.getLogger("django_redis_sync")

#: Seconds without anything to do after which a thread ends.
LINGER = 60.0
#: Seconds for which a caller waits while another starts the same thread, and between two lines
#: in the log about a thread that can't be started.
_STARTING, _SAID_EVERY = 0.05, 1.0

#: As it was when this module was imported: gevent replaces it.
_get_ident = threading.get_ident
_warned: set[str] = set()


class _OfProcess(Protocol):
    pid: int


P = TypeVar("P", bound=_OfProcess)


def made_once(found: dict[str, P], alias: str, make: Callable[[], P]) -> P:
    """What this process has for an alias: threads that come at once get the same, a fork starts
    with none."""
    one = found.get(alias)
    if one is None:
        return found.setdefault(alias, make())
    if one.pid != os.getpid():
        one = found[alias] = make()
    return one


def forgotten_in_forks(found: dict[str, P]) -> dict[str, P]:
    """The same dict, emptied in a forked child before any thread of it can look."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=found.clear)
    return found


class Bell:
    """Wakes a thread that waits for it; rung before, it ends the next wait at once.

    Each method is one call of C: unlike in an Event, there is no inner lock for an interrupted call
    to leave taken, or for a destructor to meet again.
    """

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # it was rung already
            self._silent.release()

    def wait(self, seconds: float) -> bool:
        """Whether it rang within `seconds`."""
        limit = max(0.0, min(seconds, threading.TIMEOUT_MAX))
        return self._silent.acquire(timeout=limit)


class Worker:
    """Takes turns on a thread of its own, when a turn is expected.

    `turn()` does the due work, and returns when the next is due by the clock; `earliest()` says
    the same of the waiting work, and is asked once more before the thread sleeps. Neither is
    called by two threads at a time.
    """

    # Invariants: the thread looks no later than _looks_at; _runs is held by the thread that takes
    # turns; _thread is None unless a thread will call earliest() again.
    def __init__(self, name: str, turn: Callable[[], float], earliest: Callable[[], float]) -> None:
        self._name, self._turn, self._earliest = name, turn, earliest
        self._bell, self._looks_at = Bell(), math.inf
        self._runs, self._starting = threading.Lock(), threading.Lock()
        self._thread: threading.Thread | None = None
        self._said_at = -math.inf

    @property
    def runs(self) -> bool:
        """Whether there is a thread: a forked child has none of its parent's."""
        return self._thread is not None

    def expect(self, due: float) -> bool:
        """Have a turn at `due` at the latest; it is roused only when it would sleep for longer.

        False when there is no thread, and none can be started: the next call tries again.
        """
        if due < self._looks_at or self._thread is None:
            self._looks_at = min(due, self._looks_at)
            return self.rouse()
        return True

    def rouse(self) -> bool:
        """Have a turn now. Returns as expect."""
        runs = self._thread is not None or self._start()
        self._bell.ring()
        return runs

    def _start(self) -> bool:
        # Only against a herd of threads: one that an interrupted caller left taken costs the
        # others a moment, and of two threads started at once the second ends.
        first = self._starting.acquire(timeout=_STARTING)
        try:
            if self._thread is None:
                warn_about_this_process()
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
            return True
        except RuntimeError as error:
            self._say(error)
            return False
        finally:
            if first:
                self._starting.release()

    def _say(self, error: RuntimeError) -> None:
        now = clock()
        if now >= self._said_at + _SAID_EVERY:
            self._said_at = now
            logger.error("%s could not start, the next use tries again: %s", self._name, error)

    def _run(self) -> None:
        while not self._runs.acquire(timeout=_STARTING):
            if self._thread is not None:
                return  # another thread takes the turns
        try:
            self._thread = threading.current_thread()
            self._take_turns()
        finally:
            self._thread = None
            self._runs.release()
        if self._earliest() < math.inf:  # it came while this thread was ending
            self.rouse()

    def _take_turns(self) -> None:
        while True:
            due = self._turn()
            # Kept even when nothing is due then: else every short lease would rouse the thread.
            if self._looks_at > clock():
                due = min(due, self._looks_at)
            self._looks_at = due
            if self._earliest() < due:
                continue
            if not self._bell.wait(min(due - clock(), LINGER)) and due == math.inf:
                return


def uwsgi_runs_threads() -> bool | None:
    """Whether uWSGI was told to run threads; None when this process is not uWSGI's."""
    uwsgi = sys.modules.get("uwsgi")
    if uwsgi is None:
        return None
    options = {o.decode() if isinstance(o, bytes) else o for o in getattr(uwsgi, "opt", {})}
    return bool(options & {"enable-threads", "threads"})


def patched_late() -> bool:
    """Whether gevent replaced threads after this package was imported, and made its locks."""
    return threading.get_ident is not _get_ident


def warn_about_this_process() -> None:
    """Warn once if threads of ours would stand still here: nothing would be renewed."""
    if uwsgi_runs_threads() is False:
        _warn("uWSGI runs without --enable-threads: leases can't be renewed")
    if patched_late():
        _warn(
            "gevent patched this process after django_redis_sync was imported: waits hang and "
            "leases are lost. Call monkey.patch_all() before anything else is imported."
        )


def _warn(words: str) -> None:
    if words not in _warned:
        _warned.add(words)
        logger.error(words)
