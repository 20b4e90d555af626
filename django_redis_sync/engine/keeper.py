"""Renews leases in the background, says in time when one is lost, and finishes what failed.

One daemon thread per process and cache alias serves leases of threads and of event loops alike: a
loop that is busy for long does not lose its leases. Leases are held weakly: one that nobody can
release any more is not renewed. Receivers run on a thread of their own, so that none holds up a
renewal.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from ..protocol.plans import Answer, Failure, Run
from . import connections
from .wire import clock

logger = logging.getLogger("django_redis_sync")

#: Seconds that one round of renewals may take: a hung server must not stall the watch for longer.
ROUND = 1.0
#: Seconds between two tries of what failed, and after which it is given up: its lease is over then.
RETRY, GIVE_UP = 1.0, 120.0


class Kept(Protocol):
    """What the keeper needs of a lease."""

    @property
    def due(self) -> float: ...
    def tend(self, now: float) -> Run | None: ...
    def tended(self, answer: Answer | Failure) -> None: ...


class Keeper:
    """Watches the leases of one alias in this process."""

    def __init__(self, alias: str) -> None:
        self._alias, self._pid = alias, os.getpid()
        self._kept: dict[str, tuple[weakref.ref[Kept], str]] = {}
        self._later: deque[tuple[Run, float]] = deque()
        self._wake, self._sleeping_until = threading.Event(), 0.0
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def watch(self, token: str, lease: Kept, name: str) -> None:
        """Tend `lease` whenever it is due, until `forget`."""
        self._kept[token] = (weakref.ref(lease), name)
        if lease.due < self._sleeping_until or self._thread is None:
            self._rouse()

    def forget(self, token: str) -> None:
        self._kept.pop(token, None)

    def later(self, step: Run) -> None:
        """Do `step` as soon as the server answers again."""
        self._later.append((step, clock() + GIVE_UP))
        self._rouse()

    def _rouse(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            with self._lock:
                if self._thread is None or not self._thread.is_alive():
                    warn_about_uwsgi()
                    name = f"redis-sync-keeper-{self._alias}"
                    self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                    self._thread.start()
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                due = self._round()
            except Exception:
                logger.exception("the keeper of %r met an error and goes on", self._alias)
                due = clock() + RETRY
            self._sleeping_until = due
            # A lease that came between the look and here is not slept over.
            if self._earliest() < due:
                continue
            self._wake.wait(None if due == math.inf else max(0.0, due - clock()))
            self._sleeping_until = 0.0

    def _round(self) -> float:
        """Tend what is due; when the next one will be."""
        now, leases, steps = clock(), [], []
        for token, (ref, name) in list(self._kept.items()):
            lease = ref()
            if lease is None:
                if self._kept.pop(token, None):
                    logger.warning("a lease of %r was dropped without a release: not renewed", name)
            elif lease.due <= now:
                step = lease.tend(now)
                if step is not None:
                    leases.append(lease)
                    steps.append(step._replace(timeout=ROUND))
        server = connections.server(self._alias)
        for kept, answer in zip(leases, server.many(steps), strict=True):
            kept.tended(answer)
        del leases
        self._finish(server)
        return min(self._earliest(), clock() + RETRY if self._later else math.inf)

    def _earliest(self) -> float:
        leases = [ref() for ref, _ in list(self._kept.values())]
        return min((lease.due for lease in leases if lease is not None), default=math.inf)

    def _finish(self, server: connections.Server) -> None:
        todo = [self._later.popleft() for _ in range(len(self._later))]
        answers = server.many([step._replace(timeout=ROUND) for step, _ in todo])
        for (step, give_up_at), answer in zip(todo, answers, strict=True):
            if isinstance(answer, Failure):
                if clock() < give_up_at:
                    self._later.append((step, give_up_at))
                else:
                    logger.error("gave up undoing on %s: %s", step.keys[0], answer)


_keepers: dict[str, Keeper] = {}


def keeper(alias: str) -> Keeper:
    """The keeper of an alias in this process; a fork starts with none."""
    found = _keepers.get(alias)
    if found is None or found._pid != os.getpid():
        found = _keepers[alias] = Keeper(alias)
    return found


class _Courier:
    """Runs receivers one after the other, on a thread that ends when there is nothing to do."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._todo: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def send(self, call: Callable[[], Any]) -> None:
        self._todo.put(call)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="redis-sync-courier", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        from django.db import connections as databases

        while True:
            try:
                call = self._todo.get(timeout=5)
            except queue.Empty:
                with self._lock:
                    if self._todo.empty():
                        self._thread = None
                        return
                continue
            try:
                call()
            except Exception:
                logger.exception("a receiver of a lost lease failed")
            finally:
                databases.close_all()


_courier: _Courier | None = None


def tell(call: Callable[[], Any]) -> None:
    """Run a receiver off the keeper's thread."""
    global _courier
    if _courier is None or _courier._pid != os.getpid():
        _courier = _Courier()
    _courier.send(call)


_warned: list[bool] = []


def warn_about_uwsgi() -> None:
    """uWSGI runs no threads of ours unless told to: nothing would be renewed."""
    uwsgi = sys.modules.get("uwsgi")
    if uwsgi is None or _warned:
        return
    options = {o.decode() if isinstance(o, bytes) else o for o in getattr(uwsgi, "opt", {})}
    if not options & {"enable-threads", "threads"}:
        _warned.append(True)
        logger.error("uWSGI runs without --enable-threads: leases can't be renewed")
