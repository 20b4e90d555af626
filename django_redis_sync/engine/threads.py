"""The daemon threads of this package. They start when there is work, and are woken without a lock.

Callbacks and signal receivers run on separate threads, so that they delay neither renewals nor each
other.

Any thread of the project may wake one of these threads, also in a destructor or a signal handler.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from ..logs import logger
from .mutex import Mutex, start_thread
from .wire import RETRY, clock

#: Seconds without work after which a thread ends.
IDLE_TIMEOUT = 60.0
#: Max callbacks that run at the same time.
MAX_THREADS = 8
#: Seconds between two looks of a new thread at the thread that runs in its place.
_LOOK_AGAIN = 0.05
#: Seconds between two log lines about a thread that can't be started.
_LOG_INTERVAL = 1.0

#: The function `threading.get_ident` at the import of this module. If `threading` has another
#: function later, gevent has replaced it.
_get_ident = threading.get_ident
_warned: set[str] = set()


class _OfProcess(Protocol):
    pid: int


P = TypeVar("P", bound=_OfProcess)


def made_once(found: dict[str, P], alias: str, make: Callable[[], P]) -> P:
    """Return the object for an alias from the dict `found`. If the dict has no object of this
    process, make one. All threads get the same object. A forked child makes its own object."""
    one = found.get(alias)
    if one is None:
        return found.setdefault(alias, make())
    if one.pid != os.getpid():
        one = found[alias] = make()
    return one


def forgotten_in_forks(found: dict[str, P]) -> dict[str, P]:
    """Return the dict `found`. From now on, each forked child starts with an empty dict."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=found.clear)
    return found


def is_shutdown(error: RuntimeError) -> bool:
    """Return True if a thread could not start because the interpreter shuts down (Python 3.12)."""
    return "interpreter shutdown" in str(error)


class Bell:
    """Wakes the thread that waits for the bell. If the bell has already rung, the next wait ends
    immediately.

    threading.Event can't be used: see `mutex`. Here, each method is one call of C code, which can't
    be interrupted halfway.
    """

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # raised if ring() has run since the last wait()
            self._silent.release()

    def wait(self, seconds: float) -> bool:
        """Wait until the bell rings, but at most `seconds`. Return True if it rang."""
        limit = max(0.0, min(seconds, threading.TIMEOUT_MAX))
        return self._silent.acquire(timeout=limit)


class Worker:
    """Runs the function `turn` on its own thread whenever work is due.

    `turn()` does the work that is due, and returns the time at which to call `turn` next.
    `earliest()` returns the time at which work is due, including work that was added during `turn`.
    The thread calls `earliest` before it sleeps. Only one thread at a time runs these functions.
    """

    # Invariants: The thread wakes up at _looks_at or earlier, or _looks_at is before _wakes_at. A
    # thread that runs `turn` or `earliest` holds the lock _runs. The thread in _thread calls
    # earliest() before it ends. Only this thread changes _wakes_at.
    def __init__(self, name: str, turn: Callable[[], float], earliest: Callable[[], float]) -> None:
        self._name, self._turn, self._earliest = name, turn, earliest
        self._bell, self._looks_at, self._wakes_at = Bell(), math.inf, math.inf
        self._runs, self._starting = Mutex(), Mutex()
        self._thread: threading.Thread | None = None
        self._logged_at = -math.inf

    def expect(self, due: float) -> bool:
        """Let the thread run `turn` at the time `due` or earlier. Wake the thread only if it would
        sleep longer.

        Return False if no thread runs and none can be started. The next call then tries again to
        start a thread.
        """
        # If _looks_at is before _wakes_at, the thread has not yet noticed it. Perhaps a signal
        # handler's exception kept the caller that set it from ringing the bell.
        if due < self._looks_at or self._looks_at < self._wakes_at or self._thread is None:
            self._looks_at = min(due, self._looks_at)
            return self.rouse()
        return True

    def rouse(self) -> bool:
        """Let the thread run `turn` now. Return False if no thread runs and none can be started."""
        runs = self._thread is not None or self._start()
        self._bell.ring()
        return runs

    def finish(self, is_pending: Callable[[], object], until: float) -> None:
        """When the process exits, run `turn` until nothing is pending, or until the time `until`.

        If no thread runs, run `turn` on the calling thread: from Python 3.12 on, no thread can be
        started when the process exits.
        """
        while is_pending() and clock() < until:
            self._bell.ring()
            if self._thread is None:
                self._runs.run_within(0, self._turn)
            time.sleep(0.002)

    def _start(self) -> bool:
        # `_starting` keeps callers from starting several threads. If two threads start
        # nevertheless, the second thread ends.
        try:
            self._starting.run(self._start_if_missing)
            return True
        except RuntimeError as error:
            if clock() >= self._logged_at + _LOG_INTERVAL and not is_shutdown(error):
                self._logged_at = clock()
                logger.error(
                    "thread %s could not start: %s. Its next use tries again", self._name, error
                )
            return False

    def _start_if_missing(self) -> None:
        if self._thread is None:
            warn_about_this_process()
            start_thread(self._run, self._name)

    def _run(self) -> None:
        while (is_left := self._runs.run_within(_LOOK_AGAIN, self._work)) is None:
            if self._thread is not None:
                return  # another thread of this worker runs `turn`
        if is_left:
            self.rouse()

    def _work(self) -> bool:
        """Take turns until no work is due. Return True if work arrived while the thread ended."""
        self._thread = threading.current_thread()
        try:
            self._take_turns()
        finally:
            self._thread = None
        return self._earliest() < math.inf

    def _take_turns(self) -> None:
        while True:
            due = self._turn()
            # Keep a wake-up that is planned before `due`, even if its work is gone, such as the
            # renewal of a released lease. Otherwise, each new short lease would wake the thread.
            if self._looks_at > clock():
                due = min(due, self._looks_at)
            self._looks_at = self._wakes_at = due
            if self._earliest() < due:
                continue
            if not self._bell.wait(min(due - clock(), IDLE_TIMEOUT)) and due == math.inf:
                return


def uwsgi_runs_threads() -> bool | None:
    """Return True if uWSGI lets this process run threads, and False if not. Return None if uWSGI
    does not run this process."""
    uwsgi = sys.modules.get("uwsgi")
    if uwsgi is None:
        return None
    options = {o.decode() if isinstance(o, bytes) else o for o in getattr(uwsgi, "opt", {})}
    return bool(options & {"enable-threads", "threads"})


def warn_about_this_process() -> None:
    """Log an error if the setup of uWSGI or gevent prevents the renewal of leases. Log each error
    only once."""
    mistakes = {
        "uWSGI runs without --enable-threads: leases can't be renewed": (
            uwsgi_runs_threads() is False
        ),
        "gevent patched this process after django_redis_sync was imported: waits hang and leases "
        "are lost. Call monkey.patch_all() before anything else is imported.": (
            threading.get_ident is not _get_ident
        ),
    }
    for message in {one for one, is_made in mistakes.items() if is_made} - _warned:
        _warned.add(message)
        logger.error(message)


class CallbackExecutor:
    """Runs callbacks on up to MAX_THREADS threads, which end when no callback is left. Callbacks
    that are submitted together run one after the other.

    A callback is the project's own code. If it raises an exception, even SystemExit, the other
    callbacks run nevertheless.
    """

    # Invariant: before a thread ends, it starts another thread if callbacks are left.
    def __init__(self) -> None:
        self.pid = os.getpid()
        self._todo: deque[tuple[Callable[[], Any], ...]] = deque()
        self._threads: dict[object, None] = {}

    def submit(self, *calls: Callable[[], Any]) -> None:
        """Run these callbacks in order on another thread. If one fails, run the others
        nevertheless.
        """
        self._todo.append(calls)
        self.ensure_thread()

    def ensure_thread(self) -> bool:
        """If callbacks wait and fewer than MAX_THREADS threads run, start a thread. Return True if
        callbacks wait but no thread runs yet, for example because none could be started."""
        if self._todo and len(self._threads) < MAX_THREADS:
            me = object()
            try:
                self._threads[me] = None  # before the start, because threads may start slowly
                start_thread(partial(self._run, me), "redis-sync-callbacks")
            except BaseException as error:
                self._threads.pop(me, None)
                if not isinstance(error, RuntimeError):  # for example, from a signal handler
                    raise
                if not is_shutdown(error):
                    logger.error("callbacks wait, because no thread could be started: %s", error)
        return bool(self._todo) and not self._threads

    def _run(self, me: object) -> None:
        try:
            with contextlib.suppress(IndexError):  # another thread took the last callbacks
                while self._todo:
                    _run_all(self._todo.popleft())
        finally:
            self._threads.pop(me, None)
            self.ensure_thread()


def _run_all(calls: tuple[Callable[[], Any], ...]) -> None:
    from django.db import connections as databases

    for call in calls:
        try:
            call()
        except BaseException:
            logger.exception("a callback or receiver failed")
    databases.close_all()


_executor: CallbackExecutor | None = None


def run_callbacks(*calls: Callable[[], Any]) -> None:
    """Run these callbacks in order on another thread. Don't wait for them."""
    global _executor
    if _executor is None or _executor.pid != os.getpid():
        _executor = CallbackExecutor()
    _executor.submit(*calls)


def look_after_callbacks(now: float) -> float:
    """If callbacks wait for a thread, start a thread. Return the time at which to call this
    function again, if no thread runs yet. Otherwise, return inf. `now`: the current time.
    """
    stuck = _executor is not None and _executor.pid == os.getpid() and _executor.ensure_thread()
    return now + RETRY if stuck else math.inf
